/**
 * The program that is killed, on a cluster of three processes over one Postgres. Each of them is a runner and sends the same
 * command; the one that owns the session runs it, and is killed there. The others go on, and report the result. `npm run
 * crash -- --store cluster` runs it.
 */
import * as NodeClusterHttp from "@effect/platform-node/NodeClusterHttp"
import * as ShardId from "effect/cluster/ShardId"
import * as Sharding from "effect/cluster/Sharding"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Schedule from "effect/Schedule"
import { Session } from "heddle"
import { Cluster, SessionClient } from "heddle/cluster"
import { SessionStore } from "heddle/sql"
import { KillPoint } from "heddle/testing"
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs"
import { createServer } from "node:net"
import * as Database from "./database.ts"
import { resultOf } from "./result.ts"
import { options, services, settings } from "./session.ts"

const freePort = Effect.callback<number>((resume) => {
  const server = createServer().listen(0, "127.0.0.1", () => {
    const address = server.address()
    server.close(() => resume(Effect.succeed(typeof address === "object" && address !== null ? address.port : 0)))
  })
})

const places = Array.from({ length: 300 }, (_, index) => ShardId.make("default", index + 1))

/**
 * Waits until each of the three has shards and all of them are somewhere. They move while processes join, and a run that
 * moves with them is none that was killed. The processes know of each other by files.
 */
const settled = Effect.gen(function*() {
  const { hasShardId } = yield* Sharding.Sharding
  const folder = KillPoint.folder()
  const look = Effect.sync(() => {
    if (existsSync(`${folder}/settled`)) return true
    writeFileSync(`${folder}/shards.${process.pid}`, `${places.filter(hasShardId).length}`)
    const files = readdirSync(folder).filter((name) => name.startsWith("shards."))
    const counts = files.map((name) => Number(readFileSync(`${folder}/${name}`, "utf8")))
    const isSettled = counts.length === 3 && !counts.includes(0)
      && counts.reduce((sum, count) => sum + count) === places.length
    if (isSettled) writeFileSync(`${folder}/settled`, "")
    return isSettled
  })
  yield* Effect.repeat(look, { schedule: Schedule.spaced("50 millis"), until: (isSettled) => isSettled })
})

const program = Effect.gen(function*() {
  yield* settled
  const { reply } = yield* SessionClient.SessionClient
  yield* reply("order", "Pay both orders", { command: "first" })
  const kept = yield* Session.open("order")
  yield* KillPoint.done(resultOf(kept.session))
})

const cluster = (port: number) => {
  const database = Database.client(settings.server)
  const runner = NodeClusterHttp.layer(Cluster.transport({ host: "127.0.0.1", port }))
  return Layer.merge(SessionClient.layer, Cluster.layer({ run: () => options })).pipe(
    Layer.provideMerge(services(Layer.provide(SessionStore.layer, database))),
    Layer.provideMerge(Layer.provide(runner, database)),
    Layer.provide(Logger.layer([]))
  )
}

await Effect.runPromise(Effect.gen(function*() {
  yield* Database.made(settings.server)
  yield* Effect.provide(program, cluster(yield* freePort))
}))
