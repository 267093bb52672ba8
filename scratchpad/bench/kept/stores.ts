/**
 * The stores that kept runs are measured on, each with what it takes on the disk. Postgres is on the loopback interface, at
 * the address that the environment has.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import * as SqlClient from "effect/sql/SqlClient"
import { Session } from "heddle"
import { SessionStore } from "heddle/sql"
import { readdirSync, statSync } from "node:fs"
import { basename, join } from "node:path"

/** The variable that has the address of the Postgres server. */
export const address = "HEDDLE_BENCH_POSTGRES"

/** A store, and how many bytes it takes, which is known once it is closed. */
export interface Measured {
  readonly name: string
  readonly layer: Layer.Layer<Session.Store, unknown>
  readonly bytes: Effect.Effect<number, unknown>
}

const sizeOf = (folder: string): number =>
  readdirSync(folder, { recursive: true, encoding: "utf8" }).reduce((sum, name) => {
    const info = statSync(join(folder, name))
    return info.isFile() ? sum + info.size : sum
  }, 0)

const sqlite = (synchronous: "normal" | "full") => (folder: string): Measured => ({
  name: `SQLite, ${synchronous}`,
  layer: SessionStore.layerSqlite({ filename: join(folder, "sessions.db"), synchronous }),
  bytes: Effect.sync(() => sizeOf(folder))
})

const connect = (database: string) => PgClient.layer({ url: Redacted.make(`${process.env[address]}/${database}`) })

/** In a database of its own, which is gone with the server. */
const postgres = (folder: string): Measured => {
  const name = basename(folder).replaceAll(/\W/g, "_").toLowerCase()
  const created = SqlClient.SqlClient.use((sql) => sql`CREATE DATABASE ${sql(name)} TEMPLATE template0`).pipe(
    Effect.catch(() => Effect.void),
    Effect.provide(connect("postgres"))
  )
  const client = Layer.unwrap(Effect.as(created, connect(name)))
  const tables = SqlClient.SqlClient.use((sql) =>
    sql<{ readonly bytes: string }>`SELECT sum(pg_total_relation_size(oid)) AS bytes FROM pg_class
      WHERE relname IN ('heddle_journals', 'heddle_records', 'heddle_claims')`
  )
  return {
    name: "Postgres",
    layer: SessionStore.layer.pipe(Layer.provide(client)),
    bytes: Effect.map(Effect.provide(tables, client), ([row]) => Number(row?.bytes))
  }
}

const memory = (): Measured => ({
  name: "memory",
  layer: Session.Store.layerMemory,
  bytes: Effect.succeed(Number.NaN)
})

/** Each in an empty folder. */
export const stores: Readonly<Record<string, (folder: string) => Measured>> = {
  memory,
  sqliteNormal: sqlite("normal"),
  sqliteFull: sqlite("full"),
  postgres
}

/** Those that no server is needed for. */
export const alone: ReadonlyArray<string> = Object.keys(stores).filter((name) => name !== "postgres")
