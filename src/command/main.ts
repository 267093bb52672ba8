#!/usr/bin/env node
/** The command `heddle`: starts if Node and the package it needs are there, otherwise says what to install. */
const needs = "the command needs the package @effect/platform-node, and Node 22.19 or later"

const isInstalled = await import("@effect/platform-node/NodeServices").then(() => true, () => false)
const missing = process.getBuiltinModule?.("node:sqlite") === undefined
  ? `this is Node ${process.versions.node}; npm install node@24 gives npx a later Node`
  : isInstalled
  ? undefined
  : "npm install @effect/platform-node"
if (missing === undefined) {
  const { main } = await import("./internal/cli.ts")
  main()
} else {
  process.stderr.write(`heddle: ${needs}: ${missing}\n`)
  process.exitCode = 1
}
