/**
 * Changes of journals in a SQL store. Each is made as a whole or not at all.
 *
 * In Postgres an append is one statement, which the server completes whatever becomes of the process. An open
 * transaction of a frozen or disconnected process would hold the row of the journal, and no other owner could
 * continue. In SQLite no statement can change two tables, and the committing process holds the lock, whatever the
 * number of statements.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import * as SqlClient from "effect/sql/SqlClient"
import type * as SqlError from "effect/sql/SqlError"
import type * as Statement from "effect/sql/Statement"
import * as Journals from "../../internal/session/journal.ts"
import type * as Records from "../../internal/session/records.ts"
import type * as States from "../../internal/session/state.ts"
import * as Keys from "./keys.ts"

/**
 * Returns `true` for a statement that serializable transactions refuse as it meets another one: it can be tried again.
 */
const isRefused = ({ reason }: SqlError.SqlError): boolean => reason._tag === "SerializationError"

const again = { while: isRefused, schedule: Schedule.exponential("1 millis"), times: 10 } as const

type Done<E = never> = Effect.Effect<void, E | SqlError.SqlError>

/** Returns the changes over a client. */
export const make = (sql: SqlClient.SqlClient) => {
  const isPostgres = sql.onDialectOrElse({ pg: () => true, orElse: () => false })
  // A stricter isolation would hide the concurrent commits of other writers from the later statements.
  const begin = isPostgres ? "BEGIN ISOLATION LEVEL READ COMMITTED" : undefined
  const inTransaction = <A, E>(change: Effect.Effect<A, E>): Effect.Effect<A, E | SqlError.SqlError> =>
    change.pipe(sql.withTransaction, Effect.provideService(SqlClient.BeginTransaction, begin))

  /**
   * Makes a change of one statement. In a transaction of the application, Postgres needs a savepoint to keep a failure
   * from breaking the transaction, and only the application can try again.
   */
  const atOnce = <A>(statement: Effect.Effect<A, SqlError.SqlError>): Effect.Effect<A, SqlError.SqlError> =>
    isPostgres
      ? Effect.flatMap(
        Effect.serviceOption(sql.transactionService),
        (around) => around._tag === "Some" ? inTransaction(statement) : Effect.retry(statement, again)
      )
      : statement

  const now = Keys.now(sql)

  /** Condition of the following statements: the row of the journal was changed. */
  const isMoved = sql.literal(isPostgres ? "EXISTS (SELECT 1 FROM moved)" : "1 = 1")

  /** Changes the row of a journal and, if that succeeded, the records. Returns `true` if it did. */
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

  /** Returns the records as rows of one parameter: the statement does not depend on their number. */
  const entries = (texts: ReadonlyArray<string>) => {
    const json = JSON.stringify(texts)
    return isPostgres
      ? sql`json_array_elements_text(${json}::json) WITH ORDINALITY AS entries (record, place)`
      : sql`(SELECT value AS record, key + 1 AS place FROM json_each(${json}))`
  }

  /** Returns the change of the summary, by the rule of `Journals.summaryAfter`. */
  const summarised = (records: Records.Records, summary: States.Summary | undefined): Statement.Fragment => {
    if (summary !== undefined) {
      const { expiresAt = null, next, resumptions = null } = summary
      return sql`, since = CASE WHEN next = ${next} THEN since ELSE ${now} END, next = ${next},
        resumptions = ${resumptions}, expires_at = ${expiresAt}, due = ${Journals.dueOf(summary)}`
    }
    const { next } = Journals.summaryAfter({ next: "nothing" }, records)
    return next === "nothing"
      ? sql.literal("")
      : sql`, since = CASE WHEN next = 'nothing' THEN ${now} ELSE since END,
        due = CASE WHEN next = 'nothing' THEN 0 ELSE due END,
        next = CASE WHEN next = 'nothing' THEN ${next} ELSE next END`
  }

  return {
    atOnce,

    append: (
      id: string,
      expected: number,
      texts: ReadonlyArray<string>,
      added: Records.Records,
      { name = null, summary }: { readonly name?: string | null; readonly summary?: States.Summary }
    ): Effect.Effect<number, Journals.SessionConflict | SqlError.SqlError> =>
      Effect.gen(function*() {
        const key = Keys.keyOf(id)
        const version = expected + texts.length
        const first = Journals.summaryAfter({ next: "nothing" }, added, summary === undefined ? {} : { summary })
        const named = name === null ? sql.literal("") : sql`, name = ${name}, named_version = ${version}`
        const journal = expected === 0
          ? sql`INSERT INTO heddle_journals
              (id, version, next, since, resumptions, expires_at, due, name, named_version)
            VALUES (${key}, ${version}, ${first.next}, ${now}, ${first.resumptions ?? null}, ${first.expiresAt ?? null},
              ${Journals.dueOf(first)}, ${name}, ${name === null ? null : version})
            ON CONFLICT (id) DO NOTHING RETURNING id`
          : sql`UPDATE heddle_journals SET version = ${version}${summarised(added, summary)}${named}
            WHERE id = ${key} AND version = ${expected} RETURNING id`
        const records = sql`INSERT INTO heddle_records (id, version, record)
          SELECT ${key}, ${expected} + place, record FROM ${entries(texts)} WHERE ${isMoved}`
        if (yield* both(journal, records)) return version
        const [row] = yield* sql<{
          readonly version: number
          readonly name: string | null
          readonly named_version: number
        }>`SELECT version, name, named_version FROM heddle_journals WHERE id = ${key}`
        if (name !== null && row?.name === name) return row.named_version
        return yield* new Journals.SessionConflict({ id, expected, actual: row?.version ?? 0 })
      }),

    truncate: (id: string, before: number): Done<Journals.StoreError> =>
      Effect.gen(function*() {
        const key = Keys.keyOf(id)
        const [row] = yield* sql<{ readonly record: string | null }>`SELECT records.record FROM heddle_journals journals
          LEFT JOIN heddle_records records ON records.id = journals.id AND records.version = ${before}
          WHERE journals.id = ${key} AND journals.oldest < ${before}`
        if (row === undefined) return
        const record = row.record === null ? undefined : yield* Journals.fromText(id, row.record, before)
        yield* Journals.checkSnapshot(id, before, record)
        yield* both(
          sql`UPDATE heddle_journals SET oldest = ${before}
            WHERE id = ${key} AND oldest < ${before} AND version >= ${before} RETURNING id`,
          sql`DELETE FROM heddle_records WHERE id = ${key} AND version < ${before} AND ${isMoved}`
        )
      }),

    // Deletes in several statements: each has to see the records that were appended before the row of the journal was
    // locked. A missing row is created, so that a session which begins at the same time waits.
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
