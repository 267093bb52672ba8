/**
 * The law of repeated statements: a client that keeps prepared statements gives what a client gives that prepares each of
 * them anew, whatever ran before: in another mode, in a transaction, with an error, with big integers, on another
 * connection, on a connection that was closed.
 */
import { describe } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import * as SqlClient from "effect/sql/SqlClient"
import type { SqlError } from "effect/sql/SqlError"
import type * as Statement from "effect/sql/Statement"
import * as Stream from "effect/Stream"
import { SqliteClient } from "heddle/sql"
import { drawing, type Draws, draws } from "../support/drawing.ts"
import { property } from "../support/property.ts"
import { temporaryFile } from "./support/files.ts"

/** Statements, few so that each is used again: some share a name, some fail by what is in the table. */
const texts = [
  "SELECT id, name FROM things WHERE id > ? ORDER BY id",
  "SELECT id, id, name FROM things WHERE id > ? ORDER BY id",
  "SELECT count(*) AS count FROM things WHERE id <> ?",
  "SELECT 9007199254740993 AS big WHERE ? > 0",
  "INSERT INTO things (name) VALUES ('n' || ?)",
  "INSERT INTO things (name) VALUES ('r' || ?) RETURNING id, name",
  "UPDATE things SET name = name || 'x' WHERE id = ?",
  "DELETE FROM things WHERE id = ? RETURNING name",
  "SELECT nothing FROM things WHERE id = ?"
] as const

const modes = [
  "rows",
  "rows",
  "values",
  "values",
  "raw",
  "stream",
  "few of a stream",
  "unprepared",
  "valuesUnprepared"
] as const

/** Where a statement runs: by itself, twice in one transaction, in one that is undone, or in one within another. */
const places = ["alone", "alone", "twice", "undone", "within"] as const

interface Use {
  readonly text: string
  readonly mode: (typeof modes)[number]
  readonly other: (typeof modes)[number]
  readonly place: (typeof places)[number]
  readonly number: number
  readonly isBig: boolean
  readonly connection: "first" | "second" | "reopened"
}

const usesOf = ({ count, seed }: Draws): ReadonlyArray<Use> => {
  const below = drawing(seed)
  const among = <A>(all: ReadonlyArray<A>): A => all[below(all.length)]!
  return Array.from({ length: count }, () => ({
    text: among(texts),
    mode: among(modes),
    other: among(modes),
    place: among(places),
    number: below(4),
    isBig: below(2) === 0,
    connection: below(20) === 0 ? "reopened" : below(3) === 0 ? "second" : "first"
  }))
}

const read = (
  statement: Statement.Statement<object>,
  mode: (typeof modes)[number]
): Effect.Effect<unknown, SqlError> => {
  switch (mode) {
    case "rows":
      return Effect.map(statement, (rows) => rows)
    case "stream":
      return Stream.runCollect(statement.stream)
    case "few of a stream":
      return Stream.runCollect(Stream.take(statement.stream, 1))
    default:
      return statement[mode]
  }
}

const plain = (value: unknown): unknown =>
  JSON.parse(
    JSON.stringify(value, (_, member: unknown) => typeof member === "bigint" ? `${member}n` : member) ?? "null"
  )

/** What a use comes to: its results, or the message of its error. */
const used = (sql: SqlClient.SqlClient, { isBig, mode, number, other, place, text }: Use) => {
  const once = (mode: Use["mode"]) => Effect.map(read(sql.unsafe(text, [number]), mode), plain)
  const twice = Effect.all([once(mode), once(other)])
  const placed = (): Effect.Effect<unknown, unknown> => {
    switch (place) {
      case "alone":
        return once(mode)
      case "twice":
        return sql.withTransaction(twice)
      case "undone":
        return Effect.flip(sql.withTransaction(Effect.flatMap(twice, (results) => Effect.fail(results))))
      case "within":
        return sql.withTransaction(Effect.all([once(mode), Effect.result(sql.withTransaction(twice)), once(other)]))
    }
  }
  return placed().pipe(
    Effect.provideService(SqlClient.SafeIntegers, isBig),
    Effect.match({
      onSuccess: (value) => plain(value),
      onFailure: (error) => error instanceof Error ? error.message : plain(error)
    })
  )
}

/** Uses a file through two connections, one of which may be closed and opened again, with so many statements kept. */
const playing = (uses: ReadonlyArray<Use>, preparedStatements: number) =>
  Effect.gen(function*() {
    const filename = yield* temporaryFile
    const opened = Effect.gen(function*() {
      const scope = yield* Scope.fork(yield* Effect.scope)
      const layer = Layer.fresh(SqliteClient.layer({ filename, preparedStatements, synchronous: "normal" }))
      const context = yield* Layer.buildWithScope(layer, scope)
      const close = Effect.suspend(() => Scope.close(scope, Effect.runSyncExit(Effect.void)))
      return { close, sql: yield* Effect.provide(SqlClient.SqlClient, context) }
    })
    const second = yield* opened
    let first = yield* opened
    yield* first.sql`CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT UNIQUE)`
    yield* first.sql`INSERT INTO things (name) VALUES ('one'), ('two'), ('three')`
    const results: Array<unknown> = []
    for (const use of uses) {
      if (use.connection === "reopened") {
        yield* first.close
        first = yield* opened
      }
      results.push(yield* used(use.connection === "second" ? second.sql : first.sql, use))
    }
    return [...results, yield* first.sql`SELECT * FROM things ORDER BY id`.values]
  }).pipe(Effect.scoped)

describe("laws of repeated statements", () => {
  property(
    "a cached statement gives the results of a new statement, in every mode, place and connection",
    draws,
    (draws) =>
      Effect.gen(function*() {
        const uses = usesOf(draws)
        const expected = yield* playing(uses, 0)
        const problems: Array<string> = []
        for (const capacity of [1, 2, 200]) {
          const results = yield* playing(uses, capacity)
          for (const [index, result] of results.entries()) {
            const [left, right] = [JSON.stringify(result), JSON.stringify(expected[index])]
            if (left !== right) problems.push(`${capacity} kept, use ${index + 1}: ${left}, and ${right} by a new one`)
          }
        }
        return problems
      }),
    150
  )
})
