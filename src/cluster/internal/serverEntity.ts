/**
 * Connects a cluster's servers as peers: an entity per session, on the runner with its shard. Its requests are not
 * persisted, since the journal has everything that must outlive the owner.
 */
import * as ClusterSchema from "effect/cluster/ClusterSchema"
import * as Entity from "effect/cluster/Entity"
import * as EntityId from "effect/cluster/EntityId"
import * as Sharding from "effect/cluster/Sharding"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Rpc from "effect/rpc/Rpc"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import type * as Peers from "../../durable/internal/peers.ts"

/** Takes the session. Returns whether the owner drives the session. */
const Take = Rpc.make("Take", { payload: { failed: Schema.optional(Schema.String) }, success: Schema.Boolean })

const Read = Rpc.make("Read", { payload: { request: Schema.Json }, success: Schema.Json, stream: true })
  // A reader follows the session to its next owner.
  .annotate(ClusterSchema.InterruptOnTermination, true)

/** An entity per session. */
export const ServerEntity = Entity.make("HeddleServer", [Take, Read])

/** Maximum time for an owner to answer. Some seconds after a kill, its shards have another owner. */
const patience = "1 second"

/** Size in characters above which a batch is sent event by event. */
const large = 65_536

/** Sends large events one at a time: a batch becomes a single message. */
const parted = (stream: Stream.Stream<Schema.Json>): Stream.Stream<Schema.Json> =>
  stream.pipe(
    Stream.chunks,
    Stream.flatMap((parts) => {
      const together = Stream.fromIterable(parts)
      return parts.length > 1 && JSON.stringify(parts).length > large ? Stream.rechunk(together, 1) : together
    })
  )

/** Connects a cluster's servers. */
export const make: Effect.Effect<Peers.Peers, never, Sharding.Sharding> = Effect.gen(function*() {
  const sharding = yield* Sharding.Sharding
  const client = yield* ServerEntity.client
  const isHere = (key: string): boolean => {
    const id = EntityId.make(key)
    return sharding.hasShardId(sharding.getShardId(id, ServerEntity.getShardGroup(id)))
  }
  return {
    isHere,
    take: (key, failed) =>
      Effect.suspend(() => isHere(key) ? Effect.succeed(false) : client(key).Take({ failed })).pipe(
        Effect.timeout(patience),
        Effect.catchCause(() => Effect.succeed(false))
      ),
    read: (key, request) => Stream.orDie(client(key).Read({ request })),
    serve: ({ read, take }) => {
      const handlers = Effect.map(Entity.CurrentAddress, ({ entityId: key }) =>
        ServerEntity.of({
          Take: ({ payload }) => take(key, payload.failed),
          Read: ({ payload }) => parted(read(key, payload.request))
        }))
      const layer = ServerEntity.toLayer(handlers, { concurrency: "unbounded", disableFatalDefects: true })
      return Effect.asVoid(Effect.provideService(Layer.build(layer), Sharding.Sharding, sharding))
    }
  }
})
