/** The command as a process of its own: what it wrote, how it ended, and signals when it has written something. */
import { type ChildProcess, spawn } from "node:child_process"
import { resolve } from "node:path"

const main = resolve(import.meta.dirname, "../../src/command/main.ts")

/** Returns the path of a module of the fixtures. */
export const fixture = (name: string): string => resolve(import.meta.dirname, "../fixtures", `${name}.ts`)

/** A process that runs. */
export interface Running {
  readonly child: ChildProcess
  /** What it has written to both outputs. */
  readonly output: () => string
  /** Waits until it has written this, and returns the match. */
  readonly wrote: (pattern: RegExp) => Promise<RegExpExecArray>
  readonly ended: Promise<Ended>
}

export interface Ended {
  readonly code: number | null
  readonly signal: string | null
  readonly stdout: string
  readonly stderr: string
}

/** Starts the command without a terminal. */
export const start = (args: ReadonlyArray<string>, environment: Readonly<Record<string, string>> = {}): Running => {
  const child = spawn(process.execPath, ["--conditions=source", main, ...args], {
    env: { ...process.env, ...environment },
    stdio: ["ignore", "pipe", "pipe"]
  })
  let [stdout, stderr, all, isOver] = ["", "", "", false]
  const waiting = new Set<() => void>()
  const wake = () => {
    for (const look of waiting) look()
  }
  const take = (isError: boolean) => (text: string) => {
    if (isError) stderr += text
    else stdout += text
    all += text
    wake()
  }
  child.stdout.setEncoding("utf8").on("data", take(false))
  child.stderr.setEncoding("utf8").on("data", take(true))
  const ended = new Promise<Ended>((resolve) => {
    child.on("close", (code, signal) => {
      isOver = true
      resolve({ code, signal, stdout, stderr })
      wake()
    })
  })
  const wrote = (pattern: RegExp) =>
    new Promise<RegExpExecArray>((resolve, reject) => {
      const look = () => {
        const match = pattern.exec(all)
        if (match === null && !isOver) return
        waiting.delete(look)
        if (match === null) reject(new Error(`the command ended without ${pattern}; it wrote: ${all}`))
        else resolve(match)
      }
      waiting.add(look)
      look()
    })
  return { child, output: () => all, wrote, ended }
}

/** Runs the command to its end. */
export const run = (...args: ReadonlyArray<string>): Promise<Ended> => start(args).ended

/** Tells whether a process is alive. */
export const isAlive = (pid: number): boolean => {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}
