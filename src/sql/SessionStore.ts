/**
 * `Session.Store` in a SQL database, over any `SqlClient` of Effect. The journals outlive the process, and any number of
 * processes may write to one database.
 *
 * **Details**
 *
 * Two tables, created by a migration when the layer is built: the version of each journal, and its records. An append is
 * one transaction that moves the version on from the expected one, which only one writer can, and inserts the records. It
 * reads the version by its key and no record, so that its cost does not depend on the length of the journal.
 *
 * The SQL is common to SQLite and Postgres (`RETURNING`, `ON CONFLICT`): for Postgres, provide `PgClient.layer` of
 * `@effect/sql-pg` where the examples have `SqliteClient.layer`. The tests run on SQLite. On Postgres the suite for stores
 * passed by hand, through `@effect/sql-pg` 4.0.5 on PGlite, which has a single connection; two writers that race on a
 * Postgres server have not been tested.
 *
 * **Gotchas**
 *
 * An append inside a transaction of yours is committed with it. Until then other connections do not see the records, and
 * a crash loses them.
 *
 * @since 0.1.0
 */
import * as Arr from "effect/Array"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Migrator from "effect/sql/Migrator"
import * as SqlClient from "effect/sql/SqlClient"
import type * as SqlError from "effect/sql/SqlError"
import * as Stores from "../internal/session/store.ts"
import * as SqliteClient from "./SqliteClient.ts"

const tables = Effect.gen(function*() {
  const sql = yield* SqlClient.SqlClient
  yield* sql`CREATE TABLE heddle_journals (id TEXT NOT NULL PRIMARY KEY, version INTEGER NOT NULL)`
  yield* sql`CREATE TABLE heddle_records (
    id TEXT NOT NULL,
    version INTEGER NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (id, version)
  )`
})

/** The client without the transformations of names that the application may have set. */
const client = Effect.map(SqlClient.SqlClient, (sql) => sql.withoutTransforms())

const migrate = Migrator.make({})({
  loader: Migrator.fromRecord({ "1_journals": tables }),
  table: "heddle_migrations"
}).pipe(Effect.provideServiceEffect(SqlClient.SqlClient, client))

/** The id as a key. Databases refuse text with a zero or a lone surrogate; JSON escapes both. */
const keyOf = (id: string): string => JSON.stringify(id).slice(1, -1)

/** Three parameters a row, far below the number that a statement may have. */
const rowsPerInsert = 500

interface Versioned {
  readonly version: number
}

interface Row extends Versioned {
  readonly record: string
}

type Operation = Stores.StoreError["operation"]

const unavailable = (operation: Operation, id: string) => (cause: SqlError.SqlError) =>
  new Stores.StoreError({ reason: "unavailable", operation, id, cause })

/** The texts of a page, if its versions have no gap: the records behind one would be read at another version. */
const inPlace = (id: string, after: number, rows: ReadonlyArray<Row>) => {
  const gap = rows.findIndex(({ version }, index) => version !== after + index + 1)
  return gap < 0 ? Effect.succeed(rows.map(({ record }) => record)) : Effect.fail(
    new Stores.StoreError({
      reason: "unreadable",
      operation: "read",
      id,
      version: after + gap + 1,
      cause: "the record is missing"
    })
  )
}

const appending =
  (sql: SqlClient.SqlClient, currentVersion: (key: string) => Effect.Effect<number, SqlError.SqlError>) =>
  (id: string, expected: number, texts: ReadonlyArray<string>) =>
    Effect.gen(function*() {
      const key = keyOf(id)
      const version = expected + texts.length
      const moved = yield* expected === 0
        ? sql`INSERT INTO heddle_journals ${
          sql.insert({ id: key, version })
        } ON CONFLICT (id) DO NOTHING RETURNING version`
        : sql`UPDATE heddle_journals SET version = ${version} WHERE id = ${key} AND version = ${expected} RETURNING version`
      if (moved.length === 0) {
        return yield* new Stores.SessionConflict({ id, expected, actual: yield* currentVersion(key) })
      }
      const rows = texts.map((record, index) => ({ id: key, version: expected + index + 1, record }))
      yield* Effect.forEach(
        Arr.chunksOf(rows, rowsPerInsert),
        (chunk) => sql`INSERT INTO heddle_records ${sql.insert(chunk)}`,
        { discard: true }
      )
      return version
    }).pipe(sql.withTransaction)

/** Under a stricter isolation of Postgres the writer that loses would fail with a database error, not with a conflict. */
const isolation = (sql: SqlClient.SqlClient): string | undefined =>
  sql.onDialectOrElse({ pg: () => "BEGIN ISOLATION LEVEL READ COMMITTED", orElse: () => undefined })

/**
 * The store over the client in the context. The tables must exist: {@link layer} creates them.
 *
 * **Example** (A store without the migration)
 *
 * ```ts import.meta.vitest
 * import { SessionStore } from "heddle/sql"
 * import * as Effect from "effect/Effect"
 *
 * Effect.isEffect(SessionStore.make) // => true
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const make: Effect.Effect<Stores.Service, never, SqlClient.SqlClient> = Effect.gen(function*() {
  const sql = yield* client
  const begin = isolation(sql)
  const currentVersion = (key: string) =>
    Effect.map(sql<Versioned>`SELECT version FROM heddle_journals WHERE id = ${key}`, ([row]) => row?.version ?? 0)
  const commit = appending(sql, currentVersion)
  return {
    append: (id, expected, records) =>
      Stores.toTexts(id, expected, records).pipe(
        Effect.flatMap((texts) =>
          commit(id, expected, texts).pipe(
            Effect.provideService(SqlClient.BeginTransaction, begin),
            Effect.catchTag("SqlError", (error) => Effect.fail(unavailable("append", id)(error)))
          )
        )
      ),
    version: (id) => Effect.mapError(currentVersion(keyOf(id)), unavailable("version", id)),
    read: (id, from = 0) =>
      Stores.pages(id, from, (after, limit) =>
        sql<Row>`SELECT version, record FROM heddle_records
          WHERE id = ${keyOf(id)} AND version > ${after} ORDER BY version LIMIT ${limit}`.pipe(
          Effect.mapError(unavailable("read", id)),
          Effect.flatMap((rows) => inPlace(id, after, rows))
        ), Effect.mapError(currentVersion(keyOf(id)), unavailable("read", id)))
  }
})

/**
 * The store over any client, with its tables. Fails where they cannot be created.
 *
 * **Example** (A store on a client of your own)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import { SessionStore, SqliteClient } from "heddle/sql"
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 *
 * const store = SessionStore.layer.pipe(Layer.provide(SqliteClient.layer({ filename: ":memory:" })))
 * const opened = await Effect.runPromise(Session.open("s1").pipe(Effect.provide(store)))
 *
 * opened.version // => 1
 * ```
 *
 * @category layers
 * @since 0.1.0
 */
export const layer: Layer.Layer<Stores.Store, Migrator.MigrationError | SqlError.SqlError, SqlClient.SqlClient> = Layer
  .effect(Stores.Store, Effect.andThen(migrate, make))

/**
 * The store in a SQLite file, over the SQLite of Node 22.13 or later. Fails where the file cannot be opened.
 *
 * **Example** (A session that the next process resumes)
 *
 * ```ts import.meta.vitest
 * import * as Effect from "effect/Effect"
 * import { Session } from "heddle"
 * import { SessionStore } from "heddle/sql"
 *
 * const program = Effect.gen(function*() {
 *   const opened = yield* Session.open("s", { context: { user: "Ada" } })
 *   const loaded = yield* Session.load("s")
 *   return [opened.version, loaded?.session.context]
 * })
 *
 * const store = SessionStore.layerSqlite({ filename: ":memory:" })
 * await Effect.runPromise(Effect.provide(program, store)) // => [1, { user: "Ada" }]
 * ```
 *
 * @category layers
 * @since 0.1.0
 */
export const layerSqlite = (
  options: SqliteClient.Options
): Layer.Layer<Stores.Store, Migrator.MigrationError | SqlError.SqlError> =>
  Layer.provide(layer, SqliteClient.layer(options))
