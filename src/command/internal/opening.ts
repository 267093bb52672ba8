/**
 * Opens an address in the browser on this machine.
 */
import * as Effect from "effect/Effect"
import { spawn } from "node:child_process"
import * as Problems from "./problem.ts"

/** Command for opening an address, and its arguments before the address. */
const opener = (platform: NodeJS.Platform): readonly [command: string, ...args: ReadonlyArray<string>] => {
  switch (platform) {
    case "darwin":
      return ["open"]
    case "win32":
      // The first quoted argument of start is a title.
      return ["cmd", "/c", "start", "\"\""]
    default:
      return ["xdg-open"]
  }
}

/** Opens an address. Fails if the opening command cannot start. */
export const open = (address: string): Effect.Effect<void, Problems.Problem> =>
  Effect.callback((resume) => {
    const [command, ...args] = opener(process.platform)
    const failed = (why: string) => resume(Effect.fail(Problems.problem(`${command} cannot open ${address}: ${why}`)))
    const child = spawn(command, [...args, address], { stdio: "ignore", detached: true })
    child.once("error", (error) => failed(error.message))
    child.once("spawn", () => {
      // The browser may stay open longer than this process.
      child.unref()
      resume(Effect.void)
    })
  })
