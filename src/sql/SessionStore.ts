/**
 * Implements `Session.Store` in a SQL database, over any Effect `SqlClient`. Journals outlive the process, and any
 * number of processes may write to one database.
 *
 * **Details**
 *
 * Migrations create three tables when the layer is built: journal versions, records, and claims. In one transaction, an
 * append changes the version from the expected value to the next, as only one writer can, and inserts the records. In
 * Postgres the transaction is a single statement, so a process frozen or disconnected during an append locks no row the
 * next owner needs. An append reads the version by key and reads no record, so its cost does not depend on the
 * journal's length.
 *
 * A claim ends by the database clock, so process clocks do not matter.
 *
 * SQLite and Postgres are supported: for Postgres, provide `PgClient.layer` from `@effect/sql-pg` where the examples
 * use `SqliteClient.layer`. The tests run on both: on SQLite files, and on a Postgres 18 server through
 * `@effect/sql-pg` 4.0.5, with several connections writing concurrently.
 *
 * **Gotchas**
 *
 * - An append inside your own transaction commits with your transaction. Until then other connections do not see the
 *   records, and a crash loses these records.
 * - A SQLite file has one lock. A process frozen during a commit holds the lock until it wakes up or is killed;
 *   meanwhile other writers fail with `unavailable`.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Migrator from "effect/sql/Migrator"
import * as SqlClient from "effect/sql/SqlClient"
import type * as SqlError from "effect/sql/SqlError"
import type * as Statement from "effect/sql/Statement"
import * as Stream from "effect/Stream"
import * as Json from "../internal/json.ts"
import * as Journal from "../Journal.ts"
import * as Session from "../Session.ts"
import * as Changes from "./internal/changes.ts"
import * as ClaimRows from "./internal/claimRows.ts"
import * as Keys from "./internal/keys.ts"
import * as Migrations from "./internal/migrations.ts"
import * as SqliteClient from "./SqliteClient.ts"

/** SQL client without the application's name transformations. */
const client = Effect.map(SqlClient.SqlClient, (sql) => sql.withoutTransforms())

const newest = Object.keys(Migrations.all).length

const migrate = Effect.gen(function*() {
  yield* Migrator.make({})({ loader: Migrator.fromRecord(Migrations.all), table: "heddle_migrations" })
  const sql = yield* SqlClient.SqlClient
  const rows = yield* sql`SELECT migration_id FROM heddle_migrations WHERE migration_id > ${newest}`
  if (rows.length > 0) {
    return yield* new Migrator.MigrationError({
      kind: "BadState",
      message: "a newer release of Heddle has changed the store's tables: upgrade Heddle to use this store"
    })
  }
}).pipe(Effect.provideServiceEffect(SqlClient.SqlClient, client))

/** Sessions per list page. */
const pageSize = 256

interface Kept {
  readonly id: string
  readonly version: number
  readonly oldest: number
  readonly next: Journal.Next
  readonly since: number
  readonly status: Journal.Summary["status"]
  readonly summary: string
}

/** A journal row, with its active claim. */
type Claimed = Kept & { readonly owner: string | null; readonly until: number }

const listedOf = (
  { id, next, owner, since, status, summary, until, version }: Claimed
): Journal.Listed => ({
  ...Result.getOrElse(Json.parse(summary), () => ({})) as Journal.Summary,
  id: Keys.idOf(id),
  version,
  next,
  status,
  since,
  ...(owner === null ? {} : { claim: { owner: Keys.idOf(owner), until } })
})

type Row = Pick<Kept, "version"> & { readonly record: string }

type Operation = Journal.StoreError["operation"]

const failed = (operation: Operation, id?: string) => (cause: SqlError.SqlError) =>
  new Journal.StoreError({ reason: reasonOf(cause), operation, ...(id === undefined ? {} : { id }), cause })

/** SQLite codes and Postgres states for a full database, and for a read-only database. */
const reasons = new Map<unknown, "full" | "read_only">([
  [8, "read_only"],
  [13, "full"],
  ["25006", "read_only"],
  ["53100", "full"]
])

const reasonOf = ({ reason }: SqlError.SqlError): Journal.StoreError["reason"] => {
  const { code, errcode, errno } = reason.cause as { code?: unknown; errcode?: unknown; errno?: unknown } ?? {}
  const number = errcode ?? errno
  // The upper bits of a SQLite code refine its kind.
  return reasons.get(typeof number === "number" ? number & 0xff : code) ?? "unavailable"
}

/** Returns the condition for listed journals. */
const isListed = (
  sql: SqlClient.SqlClient,
  { prefix = "", status }: Journal.ListOptions
): Statement.Fragment => {
  const isPrefixed = Keys.isPrefixed(sql, "journals.id", Keys.prefixOf(prefix))
  return status === undefined ? isPrefixed : sql`${isPrefixed} AND status = ${status}`
}

/** Reads the listed journals in key order, page by page. */
const listedIn = (
  sql: SqlClient.SqlClient,
  options: Journal.ListOptions
): Stream.Stream<Journal.Listed, SqlError.SqlError> => {
  const { prefix = "" } = options
  const id = Keys.ordered(sql, "journals.id")
  return Stream.paginate<Statement.Fragment, Claimed, SqlError.SqlError>(sql.literal("1 = 1"), (after) =>
    Effect.map(
      sql<Claimed>`SELECT journals.id, version, next, since, status, summary, owner, until
        FROM heddle_journals journals
        LEFT JOIN heddle_claims claims ON claims.id = journals.id AND claims.until > ${Keys.now(sql)}
        WHERE ${isListed(sql, options)} AND ${after} ORDER BY ${id} LIMIT ${pageSize}`,
      (rows) => {
        const last = rows.length < pageSize ? undefined : rows.at(-1)
        return [rows, last === undefined ? Option.none() : Option.some(sql`${id} > ${last.id}`)] as const
      }
    )).pipe(
      Stream.map(listedOf),
      // A prefix ending inside a character has a shorter key.
      Stream.filter((listed) => listed.id.startsWith(prefix))
    )
}

/** Counts the listed journals by status. */
const counted = (
  sql: SqlClient.SqlClient,
  options: Journal.ListOptions
): Effect.Effect<Journal.Counts, SqlError.SqlError> => {
  const { prefix = "" } = options
  if (/[\ud800-\udbff]$/.test(prefix)) {
    return Effect.map(
      Stream.runCollect(listedIn(sql, options)),
      (listed) => Journal.countsOf(listed.map(({ status }) => [status, 1]))
    )
  }
  return Effect.map(
    sql<{ readonly status: Journal.Summary["status"]; readonly count: number }>`
      SELECT status, CAST(COUNT(*) AS DOUBLE PRECISION) AS count FROM heddle_journals journals
      WHERE ${isListed(sql, options)} GROUP BY status`,
    (rows) => Journal.countsOf(rows.map(({ count, status }) => [status, count]))
  )
}

/** A journal with remaining work, and the time it became due. */
interface Due {
  readonly id: string
  readonly due: number
}

/** Reads the journals with remaining work, the earliest due first, page by page. */
const unfinishedIn = (sql: SqlClient.SqlClient): Stream.Stream<Due, SqlError.SqlError> => {
  const id = Keys.ordered(sql, "id")
  return Stream.paginate<Due, Due, SqlError.SqlError>({ due: -1, id: "" }, (after) =>
    Effect.map(
      sql<Due>`SELECT id, due FROM heddle_journals
        WHERE ${Keys.isDue(sql)} AND (due, ${id}) > (${after.due}, ${after.id})
        ORDER BY due, ${id} LIMIT ${pageSize}`,
      (rows) => [rows, rows.length < pageSize ? Option.none() : Option.fromNullishOr(rows.at(-1))] as const
    ))
}

/**
 * Creates the store over the client in the context. {@link layer} also creates the tables, which must exist here.
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
 */
export const make: Effect.Effect<Journal.Service, never, SqlClient.SqlClient> = Effect.gen(function*() {
  const sql = yield* client
  const claims = ClaimRows.make(sql)
  const journal = (id: string) =>
    Effect.map(
      sql<Kept>`SELECT version, oldest FROM heddle_journals WHERE id = ${Keys.keyOf(id)}`,
      ([row]): Journal.Extent => ({ version: row?.version ?? 0, first: row?.oldest ?? 1 })
    )
  return {
    append: (id, expected, records, options = {}) =>
      Effect.catchTag(
        Changes.append(sql, id, expected, records, options),
        "SqlError",
        (error) => Effect.fail(failed("append", id)(error))
      ),
    version: (id) => journal(id).pipe(Effect.map(({ version }) => version), Effect.mapError(failed("version", id))),
    read: (id, from = 0) =>
      Journal.pages(id, from, (after, limit) =>
        sql<Row>`SELECT version, record FROM heddle_records
          WHERE id = ${Keys.keyOf(id)} AND version > ${after} ORDER BY version LIMIT ${limit}`.pipe(
          Effect.map((rows) => rows.map(({ record, version }): Journal.Line => ({ version, text: record }))),
          Effect.mapError(failed("read", id))
        ), Effect.mapError(journal(id), failed("read", id))),
    unfinished: unfinishedIn(sql).pipe(Stream.map((row) => Keys.idOf(row.id)), Stream.mapError(failed("unfinished"))),
    list: (options = {}) => Stream.mapError(listedIn(sql, options), failed("list")),
    count: (options = {}) => Effect.mapError(counted(sql, options), failed("count")),
    truncate: (id, before) =>
      Effect.catchTag(
        Changes.truncate(sql, id, before),
        "SqlError",
        (error) => Effect.fail(failed("truncate", id)(error))
      ),
    delete: (id) => Effect.mapError(Changes.remove(sql, id), failed("delete", id)),
    claim: (id, owner, termMillis) => Effect.mapError(claims.claim(id, owner, termMillis), failed("claim", id)),
    renew: (id, owner, termMillis) => Effect.mapError(claims.renew(id, owner, termMillis), failed("renew", id)),
    claimOf: (id) => Effect.mapError(claims.claimOf(id), failed("claimOf", id)),
    release: (id, owner) => Effect.mapError(claims.release(id, owner), failed("release", id)),
    claimUnfinished: (owner, termMillis, limit) =>
      Effect.mapError(claims.claimUnfinished(owner, termMillis, limit), failed("claimUnfinished"))
  }
})

/**
 * Provides the store over any client, and creates its tables. Fails if the tables cannot be created, or if a newer
 * release has changed the tables.
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
 */
export const layer: Layer.Layer<Session.Store, Migrator.MigrationError | SqlError.SqlError, SqlClient.SqlClient> = Layer
  .effect(Session.Store, Effect.andThen(migrate, make))

/**
 * Provides the store in a SQLite file, over Node's built-in SQLite. Fails if the file cannot be opened.
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
 */
export const layerSqlite = (
  options: SqliteClient.Options
): Layer.Layer<Session.Store, Migrator.MigrationError | SqlError.SqlError> =>
  Layer.provide(layer, SqliteClient.layer(options))
