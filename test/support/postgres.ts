/**
 * Databases on a real Postgres server, for tests: a new one on the server of the test run, or on a server that a test has to
 * itself, which it may stop and start.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import * as Reactivity from "effect/reactivity/Reactivity"
import * as Redacted from "effect/Redacted"
import type * as Scope from "effect/Scope"
import * as Servers from "./postgresServer.ts"

const urlOf = (port: number, database: string): string => `postgres://postgres@127.0.0.1:${port}/${database}`

/** A client of a database. */
export const client = (url: string, options: Omit<PgClient.PgPoolConfig, "url"> = {}) =>
  PgClient.layer({ url: Redacted.make(url), ...options })

const createDatabase = (port: number): Effect.Effect<string> =>
  Effect.gen(function*() {
    const name = `test_${crypto.randomUUID().replaceAll("-", "")}`
    const sql = yield* PgClient.make({ url: Redacted.make(urlOf(port, "postgres")), maxConnections: 1 })
    yield* sql`CREATE DATABASE ${sql(name)} TEMPLATE template0`
    return urlOf(port, name)
  }).pipe(Effect.scoped, Effect.provide(Reactivity.layer), Effect.orDie)

/** The URL of a new database on the server of the run. */
export const database: Effect.Effect<string> = Effect.flatMap(Effect.promise(Servers.sharedPort), createDatabase)

/** A server that a test has to itself. */
export interface Server {
  /** The URL of its database. */
  readonly url: string
  /** Stops it, at once, as a machine does that goes down. */
  readonly stop: Effect.Effect<void>
  /** Starts it again, on the same port. */
  readonly start: Effect.Effect<void>
}

/** A server of the scope's own. */
export const server: Effect.Effect<Server, never, Scope.Scope> = Effect.gen(function*() {
  const folder = yield* Effect.acquireRelease(
    Effect.sync(Servers.makeFolder),
    (folder) => Effect.promise(() => Servers.remove(folder))
  )
  yield* Effect.promise(() => Servers.initialise(folder))
  const port = yield* Effect.promise(() => Servers.start(folder))
  return {
    url: yield* createDatabase(port),
    stop: Effect.promise(() => Servers.stop(folder)),
    start: Effect.promise(() => Servers.start(folder, port)).pipe(Effect.asVoid)
  }
})
