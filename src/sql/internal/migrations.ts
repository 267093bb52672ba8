/**
 * The tables of a SQL store, release by release. A migration never changes once it is released: databases exist that have
 * run it.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as SqlClient from "effect/sql/SqlClient"
import type * as SqlError from "effect/sql/SqlError"
import type * as Statement from "effect/sql/Statement"
import * as Json from "../../internal/json.ts"
import type * as Records from "../../internal/session/records.ts"
import * as Stores from "../../internal/session/store.ts"
import * as Keys from "./keys.ts"

const journals = Effect.gen(function*() {
  const sql = yield* SqlClient.SqlClient
  yield* sql`CREATE TABLE heddle_journals (id TEXT NOT NULL PRIMARY KEY, version INTEGER NOT NULL)`
  yield* sql`CREATE TABLE heddle_records (
    id TEXT NOT NULL,
    version INTEGER NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (id, version)
  )`
})

const pageSize = 128

interface Row {
  readonly id: string
  readonly version: number
}

/** Whether the journal has work left. It reads from the end, where most journals say so within a few records. */
const isUnfinished = (
  sql: SqlClient.SqlClient,
  key: string,
  from: number
): Effect.Effect<boolean, SqlError.SqlError> =>
  Effect.gen(function*() {
    const rows = yield* sql<{ readonly version: number; readonly record: string }>`
      SELECT version, record FROM heddle_records
      WHERE id = ${key} AND version < ${from} ORDER BY version DESC LIMIT ${pageSize}`
    for (const { record } of rows) {
      const parsed = Json.parse(record)
      // A record that cannot be read is reported where its journal is read.
      if (Result.isFailure(parsed) || !Json.isObject(parsed.success)) continue
      const records = [parsed.success as unknown as Records.Record]
      const after = Stores.isUnfinishedAfter(records, true)
      if (after === Stores.isUnfinishedAfter(records, false)) return after
    }
    const last = rows.at(-1)
    return last === undefined || rows.length < pageSize ? false : yield* isUnfinished(sql, key, last.version)
  })

/** What makes it possible to find a session that a killed process left, to take it over, and to forget what is old. */
const recovery = Effect.gen(function*() {
  const sql = yield* SqlClient.SqlClient
  const id = Keys.ordered(sql)
  yield* sql`CREATE TABLE heddle_claims (
    id TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    until DOUBLE PRECISION NOT NULL
  )`
  yield* sql`ALTER TABLE heddle_journals ADD COLUMN oldest INTEGER NOT NULL DEFAULT 1`
  yield* sql`ALTER TABLE heddle_journals ADD COLUMN unfinished INTEGER NOT NULL DEFAULT 0`
  // The key of the table is in the order of the database, which Postgres chooses.
  yield* sql.onDialectOrElse({
    pg: () => sql`CREATE INDEX heddle_journals_by_id ON heddle_journals (${id})`,
    orElse: () => Effect.void
  })
  yield* sql`CREATE INDEX heddle_journals_unfinished ON heddle_journals (${id}) WHERE unfinished = 1`
  for (let after: Statement.Fragment | undefined = sql`${id} >= ''`; after !== undefined;) {
    const rows: ReadonlyArray<Row> = yield* sql<Row>`SELECT id, version FROM heddle_journals
      WHERE ${after} ORDER BY ${id} LIMIT ${pageSize}`
    for (const row of rows) {
      if (!(yield* isUnfinished(sql, row.id, row.version + 1))) continue
      yield* sql`UPDATE heddle_journals SET unfinished = 1 WHERE id = ${row.id}`
    }
    const last = rows.length < pageSize ? undefined : rows.at(-1)
    after = last === undefined ? undefined : sql`${id} > ${last.id}`
  }
})

/** The migrations by their names, which begin with their numbers. */
export const all = { "1_journals": journals, "2_recovery": recovery }
