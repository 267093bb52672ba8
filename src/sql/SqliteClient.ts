/**
 * Implements a `SqlClient` over Node's built-in SQLite: no package, no server, one file. A committed transaction
 * survives a killed process and a power failure. Any number of processes may use the file, with one writer at a time.
 *
 * **Details**
 *
 * - The file is in write-ahead mode: readers and the writer do not wait for each other. Keep the file on a local disk.
 * - A transaction takes the write lock when it begins, so another transaction cannot make it fail halfway.
 * - Statements block the calling thread. Waiting for another connection's lock does not block the thread,
 *   so one process may have two clients for one file.
 *
 * **Gotchas**
 *
 * - Reading an integer beyond `Number.MAX_SAFE_INTEGER` is an error, unless `SqlClient.SafeIntegers` requests `bigint`.
 * - Before Node 22.16, `values` returns a single value for columns sharing a name, and `raw` returns no rows for a
 *   query.
 */
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Reactivity from "effect/reactivity/Reactivity"
import * as Schedule from "effect/Schedule"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import * as SqlClient from "effect/sql/SqlClient"
import type * as SqlConnection from "effect/sql/SqlConnection"
import { classifySqliteError, SqlError } from "effect/sql/SqlError"
import * as Statement from "effect/sql/Statement"
import * as Stream from "effect/Stream"
import { checkNames, type NamesOf } from "../internal/declare/schema.ts"
import * as Values from "../internal/declare/values.ts"
import * as Locks from "./internal/locks.ts"
import * as NodeSqlite from "./internal/nodeSqlite.ts"

/**
 * Options of a client.
 *
 * @category options
 */
export interface Options {
  /**
   * Database file path, in an existing folder, or `:memory:`. A new file is created with mode 0600, readable only by
   * its owner, like SQLite's files beside it. An existing file keeps its mode.
   */
  readonly filename: string
  /**
   * Commit durability. With `"full"`, the default, a commit reaches the disk before it succeeds. With `"normal"`, a
   * power failure may undo the latest commits, but a killed process cannot; commits are several times faster.
   */
  readonly synchronous?: "full" | "normal"
  /**
   * Maximum time a statement waits for another connection's lock before failing. A number is milliseconds. 5 seconds by
   * default.
   */
  readonly busyTimeout?: Duration.Input
  /** Number of prepared statements to cache, keeping the most recently used. 200 by default. */
  readonly preparedStatements?: number
}

const knownOptions = {
  filename: Values.name,
  synchronous: Values.oneOf("full", "normal"),
  busyTimeout: Values.durationOrNone,
  preparedStatements: Values.whole
} satisfies NamesOf<Options>

/** Returns the options with defaults applied. Throws for an invalid value. */
const checked = (options: Options) => {
  checkNames("SqliteClient", options, knownOptions)
  const { busyTimeout = "5 seconds", preparedStatements = 200, synchronous = "full" } = options
  return { busyTimeout: Duration.fromInputUnsafe(busyTimeout), preparedStatements, synchronous }
}

type Bindings = ReadonlyArray<unknown>
type Rows = ReadonlyArray<object>
type Transform = Parameters<SqlConnection.Connection["execute"]>[2]

/**
 * SQLITE_BUSY and SQLITE_BUSY_RECOVERY. SQLITE_BUSY_SNAPSHOT is missing, since waiting does not resolve the conflict.
 */
const passing = new Set([5, 261])

const codeOf = (cause: unknown): number | undefined => {
  const code = cause instanceof Error && "errcode" in cause ? cause.errcode : undefined
  return typeof code === "number" ? code : undefined
}

const failed = (operation: string) => (cause: unknown): SqlError => {
  const errno = codeOf(cause)
  // Effect reads SQLite's code from `errno`, the name other drivers use.
  const known = errno === undefined ? cause : Object.assign(cause as Error, { errno })
  const message = cause instanceof Error ? cause.message : "the statement failed"
  return new SqlError({ reason: classifySqliteError(known, { message, operation }) })
}

const isPassing = (error: SqlError): boolean => passing.has(codeOf(error.reason.cause) ?? 0)

/** Caches the most recently used prepared statements. */
const preparing = (database: NodeSqlite.Database, capacity: number) => {
  const kept = new Map<string, NodeSqlite.Statement>()
  return (sql: string): NodeSqlite.Statement => {
    const statement = kept.get(sql) ?? database.prepare(sql)
    kept.delete(sql)
    kept.set(sql, statement)
    for (const oldest of kept.keys()) {
      if (kept.size <= capacity) break
      kept.delete(oldest)
    }
    return statement
  }
}

const rowsOf = (statement: NodeSqlite.Statement, parameters: Bindings, bigInts: boolean): Rows => {
  statement.setReadBigInts(bigInts)
  statement.setReturnArrays?.(false)
  // `all` also runs statements without rows. `run` would return the last row's id, which may not fit in a number.
  return statement.all(...parameters)
}

const valuesOf = (statement: NodeSqlite.Statement, parameters: Bindings, bigInts: boolean) => {
  if (statement.setReturnArrays === undefined) return rowsOf(statement, parameters, bigInts).map(Object.values)
  statement.setReadBigInts(bigInts)
  statement.setReturnArrays(true)
  return statement.all(...parameters) as ReadonlyArray<ReadonlyArray<unknown>>
}

const rawOf = (statement: NodeSqlite.Statement, parameters: Bindings, bigInts: boolean): unknown => {
  if ((statement.columns?.().length ?? 0) > 0) return rowsOf(statement, parameters, bigInts)
  statement.setReadBigInts(true)
  return statement.run(...parameters)
}

const batchSize = 128

const takeFrom = (rows: Iterator<object>): Rows => {
  const batch: Array<object> = []
  while (batch.length < batchSize) {
    const next = rows.next()
    if (next.done === true) break
    batch.push(next.value)
  }
  return batch
}

/** Streams rows as they are pulled. The stream prepares its own statement, since other streams may run meanwhile. */
const streamOf = (database: NodeSqlite.Database, sql: string, parameters: Bindings, transform: Transform) =>
  Stream.unwrap(Effect.gen(function*() {
    const bigInts = yield* SqlClient.SafeIntegers
    const rows = yield* Effect.acquireRelease(
      Effect.try({
        try: () => {
          const statement = database.prepare(sql)
          statement.setReadBigInts(bigInts)
          return statement.iterate(...parameters)
        },
        catch: failed("stream")
      }),
      (rows) => Effect.sync(() => rows.return?.())
    )
    return Stream.paginate(
      undefined,
      () =>
        Effect.map(Effect.try({ try: () => takeFrom(rows), catch: failed("stream") }), (batch) =>
          [
            transform === undefined ? batch : transform(batch),
            batch.length < batchSize ? Option.none() : Option.some(undefined)
          ] as const)
    )
  }))

/** Retries a statement while another connection holds the lock, unless its caller does not wait for locks. */
const waiting = (busyTimeout: Duration.Duration) => {
  const schedule = Schedule.spaced("2 millis").pipe(Schedule.jittered, Schedule.upTo({ duration: busyTimeout }))
  return <A>(attempt: Effect.Effect<A, SqlError>): Effect.Effect<A, SqlError> =>
    Effect.catchIf(
      attempt,
      isPassing,
      (error) =>
        Effect.flatMap(
          Locks.IsWaiting,
          (isWaiting) => isWaiting ? Effect.retry(attempt, { schedule, while: isPassing }) : Effect.fail(error)
        )
    )
}

const connect = (
  database: NodeSqlite.Database,
  { busyTimeout, preparedStatements }: ReturnType<typeof checked>
): SqlConnection.Connection => {
  const prepared = preparing(database, preparedStatements)
  const patiently = waiting(busyTimeout)
  const run = <A>(
    read: (statement: NodeSqlite.Statement, parameters: Bindings, bigInts: boolean) => A,
    prepare: (sql: string) => NodeSqlite.Statement = prepared
  ) =>
  (sql: string, parameters: Bindings): Effect.Effect<A, SqlError> =>
    patiently(Effect.withFiber((fiber) =>
      Effect.try({
        try: () => read(prepare(sql), parameters, Context.get(fiber.context, SqlClient.SafeIntegers)),
        catch: failed("execute")
      })
    ))
  const once = (sql: string) => database.prepare(sql)
  const transformed = (rows: Effect.Effect<Rows, SqlError>, transform: Transform) =>
    transform === undefined ? rows : Effect.map(rows, transform)
  const rows = run(rowsOf)
  const rowsOnce = run(rowsOf, once)
  return {
    execute: (sql, parameters, transform) => transformed(rows(sql, parameters), transform),
    executeUnprepared: (sql, parameters, transform) => transformed(rowsOnce(sql, parameters), transform),
    executeValues: run(valuesOf),
    executeValuesUnprepared: run(valuesOf, once),
    executeRaw: run(rawOf),
    executeStream: (sql, parameters, transform) => streamOf(database, sql, parameters, transform)
  }
}

const open = (filename: string) =>
  Effect.acquireRelease(
    Effect.flatMap(NodeSqlite.load, ({ DatabaseSync }) =>
      Effect.try({
        try: () => {
          NodeSqlite.create(filename)
          return new DatabaseSync(filename)
        },
        catch: failed("connect")
      })),
    (database) => Effect.sync(() => database.close())
  )

/**
 * Returns `true` if a transaction is open. Before 22.16, Node does not report this; a second `BEGIN` fails in that
 * case.
 */
const isTransaction = (database: NodeSqlite.Database): boolean => {
  if (database.isTransaction !== undefined) return database.isTransaction
  try {
    database.exec("BEGIN")
  } catch {
    return true
  }
  database.exec("ROLLBACK")
  return false
}

/**
 * Opens a database, closed with the scope. Fails with a `ConnectionError` if `node:sqlite` is missing or the file
 * cannot be opened. Dies for invalid options.
 *
 * **Example** (A statement in a database in memory)
 *
 * ```ts import.meta.vitest
 * import { SqliteClient } from "heddle/sql"
 * import * as Effect from "effect/Effect"
 * import * as Reactivity from "effect/reactivity/Reactivity"
 *
 * const program = Effect.gen(function*() {
 *   const sql = yield* SqliteClient.make({ filename: ":memory:" })
 *   return yield* sql`SELECT 1 + 1 AS two`
 * })
 *
 * await Effect.runPromise(Effect.scoped(program).pipe(Effect.provide(Reactivity.layer))) // => [{ two: 2 }]
 * ```
 *
 * @category constructors
 */
export const make = (
  options: Options
): Effect.Effect<SqlClient.SqlClient, SqlError, Scope.Scope | Reactivity.Reactivity> =>
  Effect.gen(function*() {
    const settings = yield* Effect.sync(() => checked(options))
    const database = yield* open(options.filename)
    const connection = connect(database, settings)
    yield* connection.executeUnprepared("PRAGMA journal_mode = WAL", [], undefined)
    yield* connection.executeUnprepared(`PRAGMA synchronous = ${settings.synchronous}`, [], undefined)
    const acquirers = SqlClient.makeSqliteAcquirers({
      connection: Effect.succeed(connection),
      semaphore: yield* Semaphore.make(1),
      isTransaction: () => isTransaction(database)
    })
    return yield* SqlClient.make({
      ...acquirers,
      driver: "sqlite-node",
      compiler: Statement.makeCompilerSqlite(),
      beginTransaction: "BEGIN IMMEDIATE",
      prepareTransactionControls: true,
      releaseSavepoint: (name) => `RELEASE SAVEPOINT ${name}`,
      spanAttributes: [["db.system.name", "sqlite"]]
    })
  })

/**
 * Provides the client as a layer. Fails and dies like {@link make}.
 *
 * **Example** (Asking for a sum)
 *
 * ```ts import.meta.vitest
 * import * as Effect from "effect/Effect"
 * import * as SqlClient from "effect/sql/SqlClient"
 * import { SqliteClient } from "heddle/sql"
 *
 * const program = Effect.gen(function*() {
 *   const sql = yield* SqlClient.SqlClient
 *   const rows = yield* sql<{ sum: number }>`SELECT ${1} + ${2} AS sum`
 *   return rows[0]?.sum
 * })
 *
 * await Effect.runPromise(Effect.provide(program, SqliteClient.layer({ filename: ":memory:" }))) // => 3
 * ```
 *
 * @category layers
 */
export const layer = (options: Options): Layer.Layer<SqlClient.SqlClient, SqlError> =>
  Layer.effect(SqlClient.SqlClient, make(options)).pipe(Layer.provide(Reactivity.layer))
