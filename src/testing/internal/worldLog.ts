/**
 * Log of an attempt with killed processes. Each process appends lines to one file, so everything before a kill
 * survives. `KillPoint` writes it, and `everyKill` reads it.
 */
import type * as Journal from "../../Journal.ts"
import * as Node from "./node.ts"

/** Variables through which `everyKill` reaches a program. Without the first variable the program runs normally. */
export const variables = {
  /** Folder of the attempt. */
  folder: "HEDDLE_KILL_FOLDER",
  /** Boundary at which each process dies, separated by commas: the first number is for the first process to die. */
  plan: "HEDDLE_KILL_AT"
} as const

/** A single occurrence. */
export type Happened =
  /** A process is at a boundary. */
  | { readonly _tag: "Reached"; readonly name: string }
  /** The process kills itself there, with the kill's index in the plan and the boundary number, from 1. */
  | { readonly _tag: "Killed"; readonly kill: number; readonly at: number; readonly name: string }
  | { readonly _tag: "Asked" }
  /** A call had an effect on the world. Its name and arguments identify the effect. */
  | {
    readonly _tag: "Acted"
    readonly name: string
    readonly what: string
    readonly key: string
    readonly attempt: number
  }
  /** A call's handler has ended. */
  | { readonly _tag: "Returned"; readonly what: string }
  /** A record is in the journal: the process appended or read the record. */
  | {
    readonly _tag: "Recorded"
    readonly session: string
    readonly version: number
    readonly isOwn: boolean
    readonly record: Journal.Record
  }
  /** The program has its result. */
  | { readonly _tag: "Done"; readonly value: unknown }

/** A log line: what happened, in which process, and when, by a clock common to all processes. */
export type Line = Happened & { readonly pid: number; readonly millis: number }

const fileOf = (folder: string): string => `${folder}/world.jsonl`

/**
 * Opens an attempt's log for one process. Each line is a single write at the file's end: a kill cannot cut a line.
 */
export const writer = (folder: string): (happened: Happened) => void => {
  const fs = Node.fileSystem()
  const file = fs.openSync(fileOf(folder), "a")
  return (happened) => {
    // Time since the machine started, the same in all its processes.
    const millis = Number((Node.process?.hrtime.bigint() ?? 0n) / 1000n) / 1000
    fs.writeSync(file, `${JSON.stringify({ ...happened, pid: Node.process?.pid, millis })}\n`)
  }
}

/** Reads the lines so far. */
export const read = (folder: string): ReadonlyArray<Line> => {
  const fs = Node.fileSystem()
  const file = fileOf(folder)
  if (!fs.existsSync(file)) return []
  return fs.readFileSync(file, "utf8").split("\n").filter((text) => text !== "").map((text) => JSON.parse(text) as Line)
}

/** Takes the kill with this number for this process. Only one process succeeds. */
export const claimKill = (folder: string, kill: number): boolean => {
  const fs = Node.fileSystem()
  try {
    fs.closeSync(fs.openSync(killFile(folder, kill), "wx"))
    return true
  } catch {
    return false
  }
}

/** Returns `true` if a process has died by the kill with this number. */
export const isKilled = (folder: string, kill: number): boolean => Node.fileSystem().existsSync(killFile(folder, kill))

const killFile = (folder: string, kill: number): string => `${folder}/kill.${kill}`

/** Identifies a call by its name and its arguments, in any key order. */
export const whatOf = (name: string, args: unknown): string => `${name} ${JSON.stringify(sorted(args))}`

const sorted = (value: unknown): unknown => {
  if (Array.isArray(value)) return value.map(sorted)
  if (typeof value !== "object" || value === null) return value
  return Object.fromEntries(
    Object.entries(value).toSorted(([a], [b]) => a < b ? -1 : 1).map(([name, member]) => [name, sorted(member)])
  )
}
