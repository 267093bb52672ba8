/**
 * The used subset of `node:sqlite`, loaded at run time. In a runtime without the module, a program merely importing
 * this package still starts, and connecting fails with an error naming the requirement.
 */
import * as Effect from "effect/Effect"
import { ConnectionError, SqlError } from "effect/sql/SqlError"

/** A prepared statement. The optional methods are newer than Node 22.13. */
export interface Statement {
  readonly all: (...parameters: ReadonlyArray<unknown>) => ReadonlyArray<object>
  readonly run: (...parameters: ReadonlyArray<unknown>) => object
  readonly iterate: (...parameters: ReadonlyArray<unknown>) => IterableIterator<object>
  readonly setReadBigInts: (enabled: boolean) => void
  readonly setReturnArrays?: (enabled: boolean) => void
  readonly columns?: () => ReadonlyArray<unknown>
}

/** An open database. Node 22.16 added `isTransaction`. */
export interface Database {
  readonly close: () => void
  readonly exec: (sql: string) => void
  readonly prepare: (sql: string) => Statement
  readonly isTransaction?: boolean
}

interface NodeSqlite {
  readonly DatabaseSync: new(filename: string) => Database
}

/** The subset of `node:fs` used to create a file. */
interface NodeFiles {
  readonly closeSync: (file: number) => void
  readonly openSync: (filename: string, flags: "wx", mode: number) => number
}

interface Process {
  /** Runtime versions. Runtimes similar to Node report Node's version and their own. */
  readonly versions?: { readonly bun?: string; readonly deno?: string; readonly node?: string }
  readonly getBuiltinModule?: (name: string) => unknown
}

const nameOf = ({ bun, deno, node }: NonNullable<Process["versions"]>): string => {
  if (bun !== undefined) return `Bun ${bun}`
  if (deno !== undefined) return `Deno ${deno}`
  return node === undefined ? "another runtime" : `Node ${node}`
}

const processOf = (): Process | undefined => (globalThis as { readonly process?: Process }).process

/** Loads `node:sqlite`, or fails with an error naming this runtime and the runtimes that include the module. */
export const load: Effect.Effect<NodeSqlite, SqlError> = Effect.suspend(() => {
  const process = processOf()
  const found = process?.getBuiltinModule?.("node:sqlite") as NodeSqlite | undefined
  if (found !== undefined) return Effect.succeed(found)
  const here = nameOf(process?.versions ?? {})
  const message = `heddle/sql needs node:sqlite, which Node 22.13 and later include; this is ${here}`
  return Effect.fail(new SqlError({ reason: new ConnectionError({ cause: undefined, message, operation: "connect" }) }))
})

/** Returns the path SQLite creates for this name, if any. */
const pathOf = (filename: string): string | undefined => {
  if (filename === "" || filename === ":memory:") return undefined
  const uri = /^file:(?:\/\/[^/]*)?([^?#]*)(?:\?([^#]*))?/.exec(filename)
  if (uri === null) return filename
  const [, path = "", query] = uri
  const parameters = new URLSearchParams(query)
  const creates = !parameters.has("vfs") && (parameters.get("mode") ?? "rwc") === "rwc"
  return creates ? pathOf(decodeURIComponent(path)) : undefined
}

/**
 * Creates a database file readable only by its owner, unless it exists. SQLite gives its files beside it the same mode.
 * An existing file is not opened, because closing it would release locks held by other connections in this process.
 */
export const create = (filename: string): void => {
  const files = processOf()?.getBuiltinModule?.("node:fs") as NodeFiles | undefined
  try {
    const path = pathOf(filename)
    if (files !== undefined && path !== undefined) files.closeSync(files.openSync(path, "wx", 0o600))
  } catch {
    // The file exists, or SQLite reports the reason.
  }
}
