/**
 * The changes of the journals in a SQL store. Each is made as a whole or not at all.
 *
 * In Postgres an append is one statement, which the server ends whatever becomes of the process: one that is frozen, or cut
 * off from the network, would hold the row of the journal in an open transaction, and no other owner could go on. In SQLite
 * no statement can change two tables, and a lock is held by a process that commits, whatever the number of statements.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import * as SqlClient from "effect/sql/SqlClient"
import type * as SqlError from "effect/sql/SqlError"
import type * as Statement from "effect/sql/Statement"
import * as Stores from "../../internal/session/store.ts"
import * as Keys from "./keys.ts"

/** Where transactions are serializable, a statement that meets another one is refused, and can be tried again. */
const isRefused = ({ reason }: SqlError.SqlError): boolean => reason._tag === "SerializationError"

const again = { while: isRefused, schedule: Schedule.exponential("1 millis"), times: 10 } as const

type Done<E = never> = Effect.Effect<void, E | SqlError.SqlError>

/** The changes over a client. */
export const make = (sql: SqlClient.SqlClient) => {
  const isPostgres = sql.onDialectOrElse({ pg: () => true, orElse: () => false })
  // Under a stricter isolation the later statements would not see what another writer has committed meanwhile.
  const begin = isPostgres ? "BEGIN ISOLATION LEVEL READ COMMITTED" : undefined
  const inTransaction = <A, E>(change: Effect.Effect<A, E>): Effect.Effect<A, E | SqlError.SqlError> =>
    change.pipe(sql.withTransaction, Effect.provideService(SqlClient.BeginTransaction, begin))

  /**
   * Makes a change that is one statement. SQLite takes its lock before it begins, so that it does not fail halfway. In a
   * transaction of the application a savepoint keeps what fails from breaking the transaction, which alone can be tried again.
   */
  const atOnce = <A>(statement: Effect.Effect<A, SqlError.SqlError>): Effect.Effect<A, SqlError.SqlError> =>
    isPostgres
      ? Effect.flatMap(
        Effect.serviceOption(sql.transactionService),
        (around) => around._tag === "Some" ? inTransaction(statement) : Effect.retry(statement, again)
      )
      : inTransaction(statement)

  /** Whether the row of the journal was changed, as a condition of what follows from it. */
  const isMoved = sql.literal(isPostgres ? "EXISTS (SELECT 1 FROM moved)" : "1 = 1")

  /** Changes the row of a journal and, if it did, the records. Gives whether it did. */
  const both = (
    journal: Statement.Statement<object>,
    records: Statement.Statement<object>
  ): Effect.Effect<boolean, SqlError.SqlError> =>
    isPostgres
      ? Effect.map(
        atOnce(sql`WITH moved AS (${journal}), changed AS (${records}) SELECT id FROM moved`),
        (rows) => rows.length > 0
      )
      : inTransaction(Effect.gen(function*() {
        if ((yield* journal).length === 0) return false
        yield* records
        return true
      }))

  /** The records as rows, out of one parameter: the statement is the same whatever their number. */
  const entries = (texts: ReadonlyArray<string>) => {
    const json = JSON.stringify(texts)
    return isPostgres
      ? sql`json_array_elements_text(${json}::json) WITH ORDINALITY AS entries (record, place)`
      : sql`(SELECT value AS record, key + 1 AS place FROM json_each(${json}))`
  }

  return {
    atOnce,

    append: (
      id: string,
      expected: number,
      texts: ReadonlyArray<string>,
      flag: 0 | 1 | undefined
    ): Effect.Effect<number, Stores.SessionConflict | SqlError.SqlError> =>
      Effect.gen(function*() {
        const key = Keys.keyOf(id)
        const version = expected + texts.length
        const unfinished = flag === undefined ? sql.literal("unfinished") : sql`${flag}`
        const journal = expected === 0
          ? sql`INSERT INTO heddle_journals ${sql.insert({ id: key, version, unfinished: flag ?? 0 })}
            ON CONFLICT (id) DO NOTHING RETURNING id`
          : sql`UPDATE heddle_journals SET version = ${version}, unfinished = ${unfinished}
            WHERE id = ${key} AND version = ${expected} RETURNING id`
        const records = sql`INSERT INTO heddle_records (id, version, record)
          SELECT ${key}, ${expected} + place, record FROM ${entries(texts)} WHERE ${isMoved}`
        if (yield* both(journal, records)) return version
        const [row] = yield* sql<{ readonly version: number }>`SELECT version FROM heddle_journals WHERE id = ${key}`
        return yield* new Stores.SessionConflict({ id, expected, actual: row?.version ?? 0 })
      }),

    truncate: (id: string, before: number): Done<Stores.StoreError> =>
      Effect.gen(function*() {
        const key = Keys.keyOf(id)
        const [row] = yield* sql<{ readonly record: string | null }>`SELECT records.record FROM heddle_journals journals
          LEFT JOIN heddle_records records ON records.id = journals.id AND records.version = ${before}
          WHERE journals.id = ${key} AND journals.oldest < ${before}`
        if (row === undefined) return
        const record = row.record === null ? undefined : yield* Stores.fromText(id, row.record, before)
        yield* Stores.checkSnapshot(id, before, record)
        yield* both(
          sql`UPDATE heddle_journals SET oldest = ${before}
            WHERE id = ${key} AND oldest < ${before} AND version >= ${before} RETURNING id`,
          sql`DELETE FROM heddle_records WHERE id = ${key} AND version < ${before} AND ${isMoved}`
        )
      }),

    // Several statements: each has to see what was appended before the row of the journal was taken. Where there is no such
    // row it is made, so that a session which begins meanwhile waits.
    delete: (id: string): Done =>
      inTransaction(Effect.gen(function*() {
        const key = Keys.keyOf(id)
        yield* sql`INSERT INTO heddle_journals ${sql.insert({ id: key, version: 0 })}
          ON CONFLICT (id) DO UPDATE SET version = heddle_journals.version`
        yield* sql`DELETE FROM heddle_records WHERE id = ${key}`
        yield* sql`DELETE FROM heddle_claims WHERE id = ${key}`
        yield* sql`DELETE FROM heddle_journals WHERE id = ${key}`
      }))
  }
}
