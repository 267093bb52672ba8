/** The database of an attempt on a Postgres server, which the first of its processes makes. */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import * as Schedule from "effect/Schedule"
import { KillPoint } from "heddle/testing"
import { basename } from "node:path"

const name = basename(KillPoint.folder()).replace(/\W/g, "_").toLowerCase()

const connect = (server: string, database: string) =>
  PgClient.layer({ url: Redacted.make(`${server}/${database}`), maxConnections: 5 })

/** A client of the database. */
export const client = (server: string) => connect(server, name)

/** Makes the database, if no process of the attempt has, and waits until it is there. */
export const made = (server: string) =>
  Effect.gen(function*() {
    yield* PgClient.PgClient.pipe(
      Effect.flatMap((sql) => sql`CREATE DATABASE ${sql(name)} TEMPLATE template0`),
      // Another process has made it, or makes it now.
      Effect.ignore,
      Effect.provide(connect(server, "postgres"))
    )
    yield* PgClient.PgClient.pipe(
      Effect.flatMap((sql) => sql`SELECT 1`),
      Effect.provide(client(server)),
      Effect.retry({ times: 50, schedule: Schedule.spaced("100 millis") })
    )
  })
