/**
 * A runner of a cluster as a process of its own: it owns sessions until it is killed.
 */
import * as NodeClusterHttp from "@effect/platform-node/NodeClusterHttp"
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as ShardId from "effect/cluster/ShardId"
import * as Sharding from "effect/cluster/Sharding"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Schedule from "effect/Schedule"
import { Cluster } from "heddle/cluster"
import * as module from "node:module"
import { model, type Place, stored, tools } from "./work.ts"

const { database, port, world } = JSON.parse(process.argv[2]!) as Place

const cluster = NodeClusterHttp.layer(Cluster.transport({ host: "127.0.0.1", port, drain: "4 minutes" }))
const owner = Cluster.layer({ run: () => ({ tools: tools(world) }) })

/**
 * Says how many shards this runner has, and how many claims it lost. The shards of a cluster are settled when all of them
 * are somewhere.
 */
const report = Effect.gen(function*() {
  const sharding = yield* Sharding.Sharding
  const shards = Array.from({ length: 300 }, (_, index) => ShardId.make("default", index + 1))
  const said = Effect.map(Cluster.ready, ({ lostClaims }) => {
    process.send?.({ shards: shards.filter((shard) => sharding.hasShardId(shard)).length, lostClaims })
  })
  yield* Effect.repeat(said, Schedule.spaced("50 millis"))
})

const runner = Effect.gen(function*() {
  // A process that is killed would leave nothing to the next, which then takes twice as long to start.
  yield* Effect.sync(module.flushCompileCache)
  yield* report
}).pipe(
  Effect.provide(owner.pipe(Layer.provide(model), Layer.provideMerge(cluster), Layer.provide(stored(database)))),
  Effect.provide(Logger.layer([]))
)

process.on("disconnect", () => process.exit(0))
NodeRuntime.runMain(runner)
