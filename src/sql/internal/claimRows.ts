/**
 * Claims in a SQL store: one row per claimed session, taken by a single statement reading the database clock. Process
 * clocks do not matter.
 */
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import type * as SqlClient from "effect/sql/SqlClient"
import type * as SqlError from "effect/sql/SqlError"
import type * as Journal from "../../Journal.ts"
import * as Changes from "./changes.ts"
import * as Keys from "./keys.ts"
import * as Locks from "./locks.ts"

/** Retries while another connection holds a SQLite file's lock. */
const untilUnlocked = {
  while: ({ reason }: SqlError.SqlError) => reason._tag === "LockTimeoutError",
  schedule: Schedule.spaced("10 millis").pipe(Schedule.jittered, Schedule.upTo({ duration: "5 seconds" }))
}

/** Returns the claims over a client. */
export const make = (sql: SqlClient.SqlClient) => {
  const atOnce = Changes.atOnce(sql)
  const now = Keys.now(sql)
  /** Concurrent owners do not wait for each other: each skips the rows another owner has locked. */
  const others = sql.onDialectOrElse({
    pg: () => sql.literal("FOR UPDATE OF journals SKIP LOCKED"),
    orElse: () => sql.literal("")
  })
  const until = (termMillis: number) => sql`${now} + CAST(${termMillis} AS DOUBLE PRECISION)`

  const claimOf = (id: string): Effect.Effect<Journal.Claim | undefined, SqlError.SqlError> =>
    Effect.map(
      sql<Journal.Claim>`SELECT owner, until FROM heddle_claims WHERE id = ${Keys.keyOf(id)}`,
      ([held]) => held === undefined ? undefined : { owner: Keys.idOf(held.owner), until: held.until }
    )

  const claim = (
    id: string,
    owner: string,
    termMillis: number
  ): Effect.Effect<Journal.Claim, SqlError.SqlError> =>
    Effect.gen(function*() {
      const key = Keys.keyOf(id)
      const [taken] = yield* sql<Journal.Claim>`INSERT INTO heddle_claims (id, owner, until)
        VALUES (${key}, ${Keys.keyOf(owner)}, ${until(termMillis)})
        ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, until = excluded.until
        WHERE heddle_claims.owner = excluded.owner OR heddle_claims.until <= ${now}
        RETURNING owner, until`.pipe(atOnce)
      if (taken !== undefined) return { owner, until: taken.until }
      // A claim released meanwhile is free.
      return (yield* claimOf(id)) ?? (yield* claim(id, owner, termMillis))
    })

  return {
    claim,
    renew: (id: string, owner: string, termMillis: number): Effect.Effect<boolean, SqlError.SqlError> =>
      Effect.map(
        sql`UPDATE heddle_claims SET until = ${until(termMillis)}
          WHERE id = ${Keys.keyOf(id)} AND owner = ${Keys.keyOf(owner)} RETURNING id`.pipe(atOnce),
        (rows) => rows.length > 0
      ),
    claimOf,
    release: (id: string, owner: string): Effect.Effect<void, SqlError.SqlError> =>
      sql`DELETE FROM heddle_claims WHERE id = ${Keys.keyOf(id)} AND owner = ${Keys.keyOf(owner)}`,
    /**
     * Claims sessions with remaining work. It reads first, so a poll finding nothing writes nothing. In SQLite, an
     * owner without the lock leaves the client to others and looks again, since the lock holder may take the session.
     */
    claimUnfinished: (
      owner: string,
      termMillis: number,
      limit: number
    ): Effect.Effect<ReadonlyArray<string>, SqlError.SqlError> => {
      const free = sql`heddle_journals journals LEFT JOIN heddle_claims claims ON claims.id = journals.id
        WHERE ${Keys.isDue(sql)} AND (claims.id IS NULL OR claims.until <= ${now})`
      const take = sql<{ readonly id: string }>`INSERT INTO heddle_claims (id, owner, until)
        SELECT journals.id, ${Keys.keyOf(owner)}, ${until(termMillis)} FROM ${free}
        ORDER BY COALESCE(claims.until, 0) LIMIT ${limit} ${others}
        ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, until = excluded.until
        WHERE heddle_claims.until <= ${now}
        RETURNING id`.pipe(atOnce, Effect.provideService(Locks.IsWaiting, false))
      return sql`SELECT journals.id FROM ${free} LIMIT 1`.pipe(
        Effect.flatMap((found) => found.length === 0 ? Effect.succeed([]) : take),
        Effect.retry(untilUnlocked),
        Effect.map((rows) => rows.map(({ id }) => Keys.idOf(id)))
      )
    }
  }
}
