/**
 * The part of `node:sqlite` that the client uses. The module is loaded at run time: in a runtime without it, a
 * program that only imports this package still starts, and connecting fails with an error that names the requirement.
 */
import * as Effect from "effect/Effect"
import { ConnectionError, SqlError } from "effect/sql/SqlError"

/** A prepared statement. The optional methods came after Node 22.13. */
export interface Statement {
  readonly all: (...parameters: ReadonlyArray<unknown>) => ReadonlyArray<object>
  readonly run: (...parameters: ReadonlyArray<unknown>) => object
  readonly iterate: (...parameters: ReadonlyArray<unknown>) => IterableIterator<object>
  readonly setReadBigInts: (enabled: boolean) => void
  readonly setReturnArrays?: (enabled: boolean) => void
  readonly columns?: () => ReadonlyArray<unknown>
}

/** An open database. `isTransaction` came with Node 22.16. */
export interface Database {
  readonly close: () => void
  readonly exec: (sql: string) => void
  readonly prepare: (sql: string) => Statement
  readonly isTransaction?: boolean
}

interface NodeSqlite {
  readonly DatabaseSync: new(filename: string) => Database
}

/** The part of `node:fs` that creates a file. */
interface NodeFiles {
  readonly closeSync: (file: number) => void
  readonly openSync: (filename: string, flags: "wx", mode: number) => number
}

interface Process {
  /** Runtimes similar to Node report its version and their own. */
  readonly versions?: { readonly bun?: string; readonly deno?: string; readonly node?: string }
  readonly getBuiltinModule?: (name: string) => unknown
}

const nameOf = ({ bun, deno, node }: NonNullable<Process["versions"]>): string => {
  if (bun !== undefined) return `Bun ${bun}`
  if (deno !== undefined) return `Deno ${deno}`
  return node === undefined ? "another runtime" : `Node ${node}`
}

const find = (process: Process | undefined): Effect.Effect<NodeSqlite, SqlError> => {
  const found = process?.getBuiltinModule?.("node:sqlite") as NodeSqlite | undefined
  if (found !== undefined) return Effect.succeed(found)
  const here = nameOf(process?.versions ?? {})
  const message = `heddle/sql: node:sqlite is part of Node 22.13 and later, and this is ${here}, which has none`
  return Effect.fail(new SqlError({ reason: new ConnectionError({ cause: undefined, message, operation: "connect" }) }))
}

/**
 * Creates a file that only its owner can read and write, unless it exists. SQLite gives the files beside it the same
 * mode. Databases in memory and URIs are left to SQLite.
 */
export const create = (filename: string): void => {
  const { process } = globalThis as { readonly process?: Process }
  const files = process?.getBuiltinModule?.("node:fs") as NodeFiles | undefined
  if (files === undefined || filename === "" || filename.startsWith(":memory:") || filename.startsWith("file:")) return
  try {
    files.closeSync(files.openSync(filename, "wx", 0o600))
  } catch {
    // It exists, or SQLite reports what is wrong with it.
  }
}

/** Loads `node:sqlite`, or fails with an error that names the runtimes which have it, and this one. */
export const load: Effect.Effect<NodeSqlite, SqlError> = Effect.suspend(() =>
  find((globalThis as { readonly process?: Process }).process)
)
