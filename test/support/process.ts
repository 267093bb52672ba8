/**
 * The agent as a process of its own, in a process group of its own: what it wrote, how it ended, and whether anything of
 * it is left.
 */
import * as Effect from "effect/Effect"
import { type ChildProcessByStdio, spawn, spawnSync } from "node:child_process"
import { readFileSync } from "node:fs"
import { resolve } from "node:path"
import type { Readable, Writable } from "node:stream"

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
  /** Gives it a terminal of its own, and types each text once the output has come to contain what stands before it. */
  readonly types?: ReadonlyArray<readonly [at: RegExp, text: string]>
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

/** Kills what runs in the terminal of `script`. */
const killInside = (pid: number): void => {
  const [child] = readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").split(" ")
  if (child !== undefined && child !== "") process.kill(Number(child), "SIGKILL")
}

/** Whether this machine can give a process a terminal of its own. */
export const hasTerminals = process.platform === "linux" && spawnSync("script", ["--version"]).status === 0

/** Runs the agent without the environment of the process that runs the tests, and without a terminal if nothing is typed. */
export const agent = (
  args: ReadonlyArray<string>,
  { dieAt, environment = {}, interruptAt = [], killAt, onStart, program = main, types }: Options = {}
): Effect.Effect<Ended> =>
  Effect.callback<Ended>((resume) => {
    const own = Object.entries(process.env).filter(([name]) => !settings.test(name))
    const flags = dieAt === undefined ? [] : ["--import", dying]
    const command = [process.execPath, "--conditions=source", ...flags, program, ...args]
    const quoted = command.map((word) => `'${word.replaceAll("'", `'\\''`)}'`).join(" ")
    const [first, ...rest] = types === undefined ? command : ["script", "-qec", `exec ${quoted}`, "/dev/null"]
    const child = spawn(first as string, rest, {
      env: { ...Object.fromEntries(own), ...environment, ...(dieAt === undefined ? {} : { DIE_AT: dieAt }) },
      stdio: [types === undefined ? "ignore" : "pipe", "pipe", "pipe"],
      detached: true
    }) as ChildProcessByStdio<Writable | null, Readable, Readable>
    const kill = () => types === undefined ? child.kill("SIGKILL") : killInside(child.pid as number)
    onStart?.(kill)
    let [stdout, stderr] = ["", ""]
    let signals = 0
    let typed = 0
    child.stdout.setEncoding("utf8").on("data", (text: string) => {
      stdout += text
      if (killAt?.test(stdout) === true) kill()
      for (let next = types?.[typed]; next?.[0].test(stdout) === true; next = types?.[++typed]) {
        child.stdin?.write(next[1])
      }
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
    return Effect.sync(kill)
  })
