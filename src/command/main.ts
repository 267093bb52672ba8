#!/usr/bin/env node
/**
 * The command `heddle`: starts it where the package that it needs is installed, and says what to install elsewhere.
 *
 * @since 0.1.0
 */
const missing = "heddle: the command needs the package @effect/platform-node, and Node 22.19 or later: "
  + "npm install @effect/platform-node"

/** The files of the page, which the package contains as they are written. */
const page = new URL("../../src/command/page/", import.meta.url)

const isInstalled = await import("@effect/platform-node/NodeServices").then(() => true, () => false)
if (isInstalled) {
  const { main } = await import("./internal/cli.ts")
  main(page)
} else {
  process.stderr.write(`${missing}\n`)
  process.exitCode = 1
}
