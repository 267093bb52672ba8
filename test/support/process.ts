/**
 * The agent as a process of its own, in a process group of its own: what it wrote, how it ended, and whether anything of
 * it is left.
 */
import * as Effect from "effect/Effect"
import { spawn } from "node:child_process"
import { resolve } from "node:path"

const dying = resolve(import.meta.dirname, "dying.ts")
const main = resolve(import.meta.dirname, "../../scratchpad/agent/main.ts")

/** What the agent reads of the environment. */
const settings = /^(OPENAI|ANTHROPIC|GEMINI|GOOGLE)_|^(NO|FORCE)_COLOR$/

export interface Ended {
  readonly code: number | null
  readonly signal: string | null
  readonly stdout: string
  readonly stderr: string
  /** Whether a process of its group is still there. */
  readonly isAnythingLeft: boolean
}

export interface Options {
  readonly environment?: Readonly<Record<string, string>>
  /** Sends a SIGINT each time the output has come to contain the next of these. */
  readonly interruptAt?: ReadonlyArray<RegExp>
  /** Gets a function that kills it with SIGKILL, before it has started. */
  readonly onStart?: (kill: () => void) => void
  /** Kills it with SIGKILL once the output has come to contain this. */
  readonly killAt?: RegExp
  /** Makes it kill itself with SIGKILL where it does something with a file: see `dying.ts`. */
  readonly dieAt?: string
  readonly program?: string
}

const isGroupAlive = (pid: number): boolean => {
  try {
    process.kill(-pid, 0)
    return true
  } catch {
    return false
  }
}

/** Runs the agent without a terminal and without the environment of the process that runs the tests. */
export const agent = (
  args: ReadonlyArray<string>,
  { dieAt, environment = {}, interruptAt = [], killAt, onStart, program = main }: Options = {}
): Effect.Effect<Ended> =>
  Effect.callback<Ended>((resume) => {
    const own = Object.entries(process.env).filter(([name]) => !settings.test(name))
    const flags = dieAt === undefined ? [] : ["--import", dying]
    const child = spawn(process.execPath, ["--conditions=source", ...flags, program, ...args], {
      env: { ...Object.fromEntries(own), ...environment, ...(dieAt === undefined ? {} : { DIE_AT: dieAt }) },
      stdio: ["ignore", "pipe", "pipe"],
      detached: true
    })
    onStart?.(() => child.kill("SIGKILL"))
    let [stdout, stderr] = ["", ""]
    let signals = 0
    child.stdout.setEncoding("utf8").on("data", (text: string) => {
      stdout += text
      if (killAt?.test(stdout) === true) child.kill("SIGKILL")
      if (interruptAt[signals]?.test(stdout) !== true) return
      signals++
      child.kill("SIGINT")
    })
    child.stderr.setEncoding("utf8").on("data", (text: string) => void (stderr += text))
    child.on("close", (code, signal) => {
      resume(Effect.sync(() => ({
        code,
        signal,
        stdout,
        stderr,
        isAnythingLeft: isGroupAlive(child.pid as number)
      })))
    })
    return Effect.sync(() => child.kill("SIGKILL"))
  })
