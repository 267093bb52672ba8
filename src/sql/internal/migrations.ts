/**
 * Tables of the store.
 */
import * as Effect from "effect/Effect"
import * as SqlClient from "effect/sql/SqlClient"
import * as Keys from "./keys.ts"

const tables = Effect.gen(function*() {
  const sql = yield* SqlClient.SqlClient
  const id = Keys.ordered(sql, "id")
  // Stores the summary as JSON. The fields used to find sessions have columns, which take precedence: a submitted
  // message changes only columns. `since` is when `next` began to hold. `due` is when the session becomes unfinished: 0
  // with remaining work, otherwise the first expiry while it waits. `name` belongs to the last named append.
  yield* sql`CREATE TABLE heddle_journals (
    id TEXT NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    oldest INTEGER NOT NULL DEFAULT 1,
    next TEXT NOT NULL DEFAULT 'nothing',
    since DOUBLE PRECISION NOT NULL DEFAULT 0,
    status TEXT NOT NULL DEFAULT 'idle',
    summary TEXT NOT NULL DEFAULT '{}',
    due DOUBLE PRECISION,
    name TEXT,
    named_version INTEGER
  )`
  yield* sql`CREATE TABLE heddle_records (
    id TEXT NOT NULL,
    version INTEGER NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (id, version)
  )`
  yield* sql`CREATE TABLE heddle_claims (
    id TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    until DOUBLE PRECISION NOT NULL
  )`
  // A Postgres primary key is ordered by the database's collation, unlike this index.
  yield* sql.onDialectOrElse({
    pg: () => sql`CREATE INDEX heddle_journals_by_id ON heddle_journals (${id})`,
    orElse: () => Effect.void
  })
  yield* sql`CREATE INDEX heddle_journals_unfinished ON heddle_journals (due, ${id}) WHERE due IS NOT NULL`
})

/** Migrations by name, each beginning with its number. */
export const all = { "1_tables": tables }
