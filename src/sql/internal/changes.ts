/**
 * Changes to journals in a SQL store, each complete or absent.
 *
 * In Postgres an append is a single statement, which the server completes whatever happens to the process. An open
 * transaction in a frozen or disconnected process would lock the journal row, and no other owner could continue. In
 * SQLite no statement can change two tables, and the committing process holds the lock, however many statements it
 * runs.
 */
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import * as SqlClient from "effect/sql/SqlClient"
import type * as SqlError from "effect/sql/SqlError"
import type * as Statement from "effect/sql/Statement"
import * as Journal from "../../Journal.ts"
import * as Keys from "./keys.ts"

type Sql = SqlClient.SqlClient

type Change<A = void, E = never> = Effect.Effect<A, E | SqlError.SqlError>

const isPostgres = (sql: Sql): boolean => sql.onDialectOrElse({ pg: () => true, orElse: () => false })

// Stricter isolation would hide other writers' concurrent commits from later statements.
const begin = "BEGIN ISOLATION LEVEL READ COMMITTED"

const inTransaction = <A, E>(sql: Sql, change: Effect.Effect<A, E>): Change<A, E> =>
  Effect.provideService(sql.withTransaction(change), SqlClient.BeginTransaction, isPostgres(sql) ? begin : undefined)

/** Retries a statement refused due to a conflict between serializable transactions. */
const again = {
  while: ({ reason }: SqlError.SqlError) => reason._tag === "SerializationError",
  schedule: Schedule.exponential("1 millis"),
  times: 10
} as const

/**
 * Makes a change with one statement. In an application transaction, Postgres needs a savepoint so that a failure does
 * not break the transaction, and only the application can retry.
 */
export const atOnce = (sql: Sql) => <A>(statement: Change<A>): Change<A> =>
  isPostgres(sql)
    ? Effect.flatMap(
      Effect.serviceOption(sql.transactionService),
      (around) => around._tag === "Some" ? inTransaction(sql, statement) : Effect.retry(statement, again)
    )
    : statement

/** Condition for changing the records: the journal row was changed. */
const isMoved = (sql: Sql): Statement.Fragment =>
  sql.literal(isPostgres(sql) ? "EXISTS (SELECT 1 FROM moved)" : "1 = 1")

/** Changes a journal row and then, on success, its records. Returns `true` on success. */
const changeBoth = (
  sql: Sql,
  journal: Statement.Statement<object>,
  records: Statement.Statement<object>
): Change<boolean> => {
  const rows = isPostgres(sql)
    ? atOnce(sql)(sql`WITH moved AS (${journal}), changed AS (${records}) SELECT id FROM moved`)
    : inTransaction(
      sql,
      Effect.flatMap(journal, (moved) => moved.length === 0 ? Effect.succeed([]) : Effect.as(records, moved))
    )
  return Effect.map(rows, ({ length }) => length > 0)
}

/** Returns texts as rows of one parameter, so the statement does not depend on their number. */
const rowsOf = (sql: Sql, texts: ReadonlyArray<string>): Statement.Fragment => {
  const json = JSON.stringify(texts)
  return isPostgres(sql)
    ? sql`json_array_elements_text(${json}::json) WITH ORDINALITY AS entries (record, place)`
    : sql`(SELECT value AS record, key + 1 AS place FROM json_each(${json}))`
}

/** Returns the summary change, by the rule in `Journal.summaryAfter`. */
const summarized = (sql: Sql, records: Journal.Records, { summary }: Journal.AppendOptions): Statement.Fragment => {
  const now = Keys.now(sql)
  if (summary !== undefined) {
    const { next, status } = summary
    return sql`, since = CASE WHEN next = ${next} THEN since ELSE ${now} END, next = ${next}, status = ${status},
      summary = ${JSON.stringify(summary)}, due = ${Journal.dueOf(summary)}`
  }
  const { next } = Journal.summaryAfter(undefined, records)
  return next === "nothing"
    ? sql.literal("")
    : sql`, since = CASE WHEN next = 'nothing' THEN ${now} ELSE since END,
      due = CASE WHEN next = 'nothing' THEN 0 ELSE due END,
      next = CASE WHEN next = 'nothing' THEN ${next} ELSE next END`
}

/** Adds records after the expected version. Repeating the last named append returns the first append's version. */
export const append = (
  sql: Sql,
  id: string,
  expected: number,
  records: Journal.Records,
  options: Journal.AppendOptions
): Change<number, Journal.SessionConflict | Journal.StoreError> =>
  Effect.gen(function*() {
    const texts = yield* Journal.toTexts(id, expected, records)
    const key = Keys.keyOf(id)
    const version = expected + texts.length
    const { name = null } = options
    const first = Journal.summaryAfter(undefined, records, options)
    const named = name === null ? sql.literal("") : sql`, name = ${name}, named_version = ${version}`
    const journal = expected === 0
      ? sql`INSERT INTO heddle_journals
          (id, version, next, since, status, summary, due, name, named_version)
        VALUES (${key}, ${version}, ${first.next}, ${Keys.now(sql)}, ${first.status}, ${JSON.stringify(first)},
          ${Journal.dueOf(first)}, ${name}, ${name === null ? null : version})
        ON CONFLICT (id) DO NOTHING RETURNING id`
      : sql`UPDATE heddle_journals SET version = ${version}${summarized(sql, records, options)}${named}
        WHERE id = ${key} AND version = ${expected} RETURNING id`
    const added = sql`INSERT INTO heddle_records (id, version, record)
      SELECT ${key}, ${expected} + place, record FROM ${rowsOf(sql, texts)} WHERE ${isMoved(sql)}`
    if (yield* changeBoth(sql, journal, added)) return version
    const [row] = yield* sql<{
      readonly version: number
      readonly name: string | null
      readonly named_version: number
    }>`SELECT version, name, named_version FROM heddle_journals WHERE id = ${key}`
    if (name !== null && row?.name === name) return row.named_version
    return yield* new Journal.SessionConflict({ id, expected, actual: row?.version ?? 0 })
  })

/** Removes the records below a version, whose record must be a snapshot. */
export const truncate = (sql: Sql, id: string, before: number): Change<void, Journal.StoreError> =>
  Effect.gen(function*() {
    const key = Keys.keyOf(id)
    const [row] = yield* sql<{ readonly record: string | null }>`SELECT records.record FROM heddle_journals journals
      LEFT JOIN heddle_records records ON records.id = journals.id AND records.version = ${before}
      WHERE journals.id = ${key} AND journals.oldest < ${before}`
    if (row === undefined) return
    yield* Journal.checkSnapshot(id, before, row.record ?? undefined)
    yield* changeBoth(
      sql,
      sql`UPDATE heddle_journals SET oldest = ${before}
        WHERE id = ${key} AND oldest < ${before} AND version >= ${before} RETURNING id`,
      sql`DELETE FROM heddle_records WHERE id = ${key} AND version < ${before} AND ${isMoved(sql)}`
    )
  })

/**
 * Removes a journal and its claim. It needs several statements, since each must see the records appended before the
 * journal row was locked. It creates a missing row, so that a session beginning at the same time waits.
 */
export const remove = (sql: Sql, id: string): Change =>
  inTransaction(
    sql,
    Effect.gen(function*() {
      const key = Keys.keyOf(id)
      yield* sql`INSERT INTO heddle_journals ${sql.insert({ id: key, version: 0 })}
        ON CONFLICT (id) DO UPDATE SET version = heddle_journals.version`
      yield* sql`DELETE FROM heddle_records WHERE id = ${key}`
      yield* sql`DELETE FROM heddle_claims WHERE id = ${key}`
      yield* sql`DELETE FROM heddle_journals WHERE id = ${key}`
    })
  )
