/**
 * The log of an attempt that processes are killed in: one file that each of them appends lines to, so that what
 * happened before a kill is there after it. `KillPoint` writes it, and `everyKill` reads it.
 */
import type * as Journal from "../../Journal.ts"
import * as Node from "./node.ts"

/** The variables by which `everyKill` reaches a program. Without the first the program runs as it would by itself. */
export const variables = {
  /** The folder of the attempt. */
  folder: "HEDDLE_KILL_FOLDER",
  /** The boundary at which each process dies, separated by commas: the first one that is to die at the first number. */
  plan: "HEDDLE_KILL_AT"
} as const

/** One thing that happened. */
export type Happened =
  /** A process is at a boundary. */
  | { readonly _tag: "Reached"; readonly name: string }
  /** The process kills itself there: the kill of the plan, and the number of the boundary, from 1. */
  | { readonly _tag: "Killed"; readonly kill: number; readonly at: number; readonly name: string }
  /** A model was asked. */
  | { readonly _tag: "Asked" }
  /** A call had an effect on the world. What it did is its name and its arguments. */
  | {
    readonly _tag: "Acted"
    readonly name: string
    readonly what: string
    readonly key: string
    readonly attempt: number
  }
  /** The handler of a call has ended. */
  | { readonly _tag: "Returned"; readonly what: string }
  /** A record is in the journal: the process has appended it, or read it there. */
  | {
    readonly _tag: "Recorded"
    readonly session: string
    readonly version: number
    readonly isOwn: boolean
    readonly record: Journal.Record
  }
  /** The program has its result. */
  | { readonly _tag: "Done"; readonly value: unknown }

/** A line of the log: what happened, in which process, and when by a clock that all processes share. */
export type Line = Happened & { readonly pid: number; readonly millis: number }

const fileOf = (folder: string): string => `${folder}/world.jsonl`

/** Opens the log of an attempt for one process. A line is one write to the end of the file, which a kill cannot cut. */
export const writer = (folder: string): (happened: Happened) => void => {
  const fs = Node.fileSystem()
  const file = fs.openSync(fileOf(folder), "a")
  return (happened) => {
    // The time since the machine has started, which is the same in all of its processes.
    const millis = Number((Node.process?.hrtime.bigint() ?? 0n) / 1000n) / 1000
    fs.writeSync(file, `${JSON.stringify({ ...happened, pid: Node.process?.pid, millis })}\n`)
  }
}

/** The lines so far. */
export const read = (folder: string): ReadonlyArray<Line> => {
  const fs = Node.fileSystem()
  const file = fileOf(folder)
  if (!fs.existsSync(file)) return []
  return fs.readFileSync(file, "utf8").split("\n").filter((text) => text !== "").map((text) => JSON.parse(text) as Line)
}

/** Takes the kill of this number for this process. One process can. */
export const claimKill = (folder: string, kill: number): boolean => {
  const fs = Node.fileSystem()
  try {
    fs.closeSync(fs.openSync(killFile(folder, kill), "wx"))
    return true
  } catch {
    return false
  }
}

/** Returns whether a process has died by the kill of this number. */
export const isKilled = (folder: string, kill: number): boolean => Node.fileSystem().existsSync(killFile(folder, kill))

const killFile = (folder: string, kill: number): string => `${folder}/kill.${kill}`

/** A call as what it does: its name and its arguments, whatever order they are written in. */
export const whatOf = (name: string, args: unknown): string => `${name} ${JSON.stringify(sorted(args))}`

const sorted = (value: unknown): unknown => {
  if (Array.isArray(value)) return value.map(sorted)
  if (typeof value !== "object" || value === null) return value
  return Object.fromEntries(
    Object.entries(value).toSorted(([a], [b]) => a < b ? -1 : 1).map(([name, member]) => [name, sorted(member)])
  )
}
