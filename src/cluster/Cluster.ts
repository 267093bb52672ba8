/**
 * Runs sessions on a cluster of processes, using Effect's cluster. Each session has one owner at a time: the process
 * whose runner has its shard. Any process can send it commands through a `SessionClient`. Commands wait for an owner;
 * if the owner is killed, the next owner carries them out. The store's journal records what has happened, and the
 * cluster only decides who continues.
 *
 * **Details**
 *
 * Two processes may both believe they own a session, for example after a frozen process wakes up. The journal decides:
 * the new owner's first record changes its version. Every later append from the old owner is refused, which stops the
 * old owner's run. An effect already running in the frozen process may still happen; for such effects, use
 * `idempotencyKey` and `lookUp`.
 *
 * This module uses Effect modules marked unstable, which may change in a minor version of Effect. Nothing in `heddle`
 * itself imports them.
 */
import * as RunnerAddress from "effect/cluster/RunnerAddress"
import type * as Sharding from "effect/cluster/Sharding"
import type * as ShardingConfig from "effect/cluster/ShardingConfig"
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import type * as Adapter from "../Adapter.ts"
import * as Owners from "../durable/internal/ownerHealth.ts"
import * as Peers from "../durable/internal/peers.ts"
import { checkNames, type NamesOf } from "../internal/declare/schema.ts"
import type * as Declared from "../internal/declare/tool.ts"
import * as Values from "../internal/declare/values.ts"
import type * as Session from "../Session.ts"
import type * as Tool from "../Tool.ts"
import * as Commands from "./internal/commands.ts"
import * as Drain from "./internal/drain.ts"
import * as Owner from "./internal/owner.ts"
import * as Protocol from "./internal/protocol.ts"
import * as ServerEntity from "./internal/serverEntity.ts"

export type { Health } from "../durable/internal/ownerHealth.ts"

/**
 * Options of a runner.
 *
 * @category options
 */
export interface Options<
  T extends ReadonlyArray<Tool.Any> = ReadonlyArray<Tool.Any>,
  E = never,
  R = never,
  RHalt = R,
  REvent = R
> {
  /**
   * Returns the options for a session's next run: tools, system prompt, limits, and the limit on resumptions. Every
   * runner in a cluster must return the same options. The runner calls this function before each run, with the current
   * session.
   */
  readonly run: (kept: Session.Kept) => Session.ResumeOptions<T, E, R, RHalt, REvent>
  /**
   * Duration of an owner's claim unless renewed, in addition to its shard lock. `"5 seconds"` by default, equal to the
   * lock duration in {@link transport}. Choose at least three times a process's longest pause.
   */
  readonly term?: Duration.Input
}

/**
 * Runner of this process, for a health check.
 *
 * @category services
 */
export class Runner extends Context.Service<Runner, Owners.Owner>()("heddle/cluster/Runner") {}

/**
 * Runner health: driven sessions, recently lost claims, and whether the runner is leaving. A runner is ready unless it
 * is leaving or the store was unavailable to its last command.
 *
 * **Example** (A runner that has nothing to do)
 *
 * ```ts import.meta.vitest
 * import * as TestRunner from "effect/cluster/TestRunner"
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 * import { Session } from "heddle"
 * import { Cluster } from "heddle/cluster"
 * import { Script } from "heddle/testing"
 *
 * const owner = Cluster.layer({ run: () => ({}) }).pipe(
 *   Layer.provide([Script.layer([]), Session.Store.layerMemory, TestRunner.layer])
 * )
 * const health = await Effect.runPromise(Effect.provide(Cluster.ready, owner))
 *
 * health // => { isReady: true, isLeaving: false, driven: 0, lostClaims: 0, latestMillis: 0 }
 * ```
 *
 * @category getters
 */
export const ready: Effect.Effect<Owners.Health, never, Runner> = Effect.flatMap(Runner, ({ health }) => health)

/**
 * Makes this process a session owner, running the sessions in its runner's shards. Provide it with a cluster
 * (`NodeClusterHttp.layer` from `@effect/platform-node`, with {@link transport}), a store every process can reach, and
 * an adapter.
 *
 * **Example** (A cluster of one process, in memory)
 *
 * ```ts import.meta.vitest
 * import * as TestRunner from "effect/cluster/TestRunner"
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 * import { Session } from "heddle"
 * import { Cluster, SessionClient } from "heddle/cluster"
 * import { Script } from "heddle/testing"
 *
 * const model = Script.layer([[Script.text("Hello, Ann."), Script.finish("stop")]])
 * const owner = Cluster.layer({ run: () => ({ system: "Be friendly." }) })
 * const cluster = Layer.mergeAll(owner, SessionClient.layer).pipe(
 *   Layer.provide([model, Session.Store.layerMemory]),
 *   Layer.provide(TestRunner.layer)
 * )
 *
 * const program = Effect.gen(function*() {
 *   const client = yield* SessionClient.SessionClient
 *   const { outputText, status } = yield* client.reply("ann", "Hi, I am Ann")
 *   return [status, outputText]
 * })
 *
 * await Effect.runPromise(program.pipe(Effect.provide(cluster))) // => ["completed", "Hello, Ann."]
 * ```
 *
 * @category layers
 */
export const layer = <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never
>(
  options: Options<T, E, R, RHalt, REvent>
): Layer.Layer<
  Runner,
  never,
  Sharding.Sharding | Session.Store | Adapter.Adapter | Tool.Services<T[number]> | Declared.Later<R | RHalt | REvent>
> =>
  Layer.effect(
    Runner,
    Effect.gen(function*() {
      checkNames("Cluster.layer", options, { run: Values.fn, term: Values.finiteDuration } satisfies NamesOf<Options>)
      const { run, term = "5 seconds" } = options
      const runner = new Owners.Owner(yield* Effect.context<never>())
      yield* Layer.build(
        Protocol.SessionEntity.toLayer(Owner.make(Commands.make({ run, term, runner })), {
          // The feed and a stop do not wait for earlier commands.
          concurrency: "unbounded",
          // A defect in a run answers its command. Otherwise the entity would restart the run forever.
          disableFatalDefects: true
        })
      )
      yield* Effect.addFinalizer(() => Effect.sync(() => runner.leave()))
      return runner
    })
  )

/**
 * Combines `Server.layer` from `heddle/server` in many processes into one server: the process whose runner has a
 * session's shard drives the session. Any other process forwards requests, and sends its client everything the owner
 * sends, including deltas. Provide it to `Server.layer` in each process, with a cluster (`NodeClusterHttp.layer` from
 * `@effect/platform-node`, with {@link transport}).
 *
 * **Details**
 *
 * The store's claims keep sessions safe, with and without this layer. If the owner does not answer within a second, the
 * asked process drives the session itself. If the owner is silent for 20 seconds, its reader asks the current owner
 * again, and without an answer reads the journal.
 *
 * **Example** (A server on a cluster of one process, in memory)
 *
 * ```ts import.meta.vitest
 * import * as TestRunner from "effect/cluster/TestRunner"
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 * import { Session } from "heddle"
 * import { Cluster } from "heddle/cluster"
 * import { Agent, Server } from "heddle/server"
 * import { Script } from "heddle/testing"
 *
 * const helper = Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({}) })
 * const app = Server.layer({ agents: [helper], authorize: Server.allowLoopback }).pipe(
 *   Layer.provide([Script.layer([[Script.text("Hello"), Script.finish("stop")]]), Session.Store.layerMemory]),
 *   Layer.provide(Cluster.servers),
 *   Layer.provide(TestRunner.layer)
 * )
 * const { dispose, handler } = Server.toWebHandler(app)
 * const response = await handler(
 *   new Request("http://localhost/agents/helper/sessions/s1/messages", {
 *     method: "POST",
 *     headers: { "content-type": "application/json" },
 *     body: JSON.stringify({ content: "Hi" })
 *   })
 * )
 * const text = await response.text()
 * await dispose()
 *
 * text.includes("Hello") // => true
 * ```
 *
 * @category layers
 */
export const servers: Layer.Layer<never, never, Sharding.Sharding> = Layer.effect(Peers.Peers, ServerEntity.make)

/**
 * Address of a runner.
 *
 * @category options
 */
export interface Address {
  /**
   * Host name or address at which other processes reach the runner. The ports have no authentication: keep them
   * private.
   */
  readonly host: string
  /** Port of the runner. */
  readonly port: number
}

/**
 * Options of {@link transport}.
 *
 * @category options
 */
export interface TransportOptions {
  /**
   * Maximum time for running calls to end when an owner is asked to leave (`SIGTERM`, or a moving shard). The owner
   * then interrupts the remaining calls, and the next owner treats their effects as unknown. The process takes at most
   * 10 more seconds to leave. A number is milliseconds. `"20 seconds"` by default.
   */
  readonly drain?: Duration.Input
}

/**
 * Settings for cluster connections and the takeover time, for {@link transport}.
 *
 * @category models
 */
export interface Transport {
  /**
   * Sends frames immediately. Over a plain socket, which waits to fill its packets, live events arrive 65 to 104 ms
   * late.
   */
  readonly transport: "websocket"
  /** Settings from `ShardingConfig` that determine the takeover time. */
  readonly shardingConfig: Partial<ShardingConfig.ShardingConfig["Service"]>
}

/**
 * Returns measured options for `NodeClusterHttp.layer`: another runner takes over 3 to 6 seconds after a kill. Pass
 * this runner's address, or `clientOnly: true` without an address for a process that only sends commands. All processes
 * need the same settings: a client with other settings keeps sending to a dead runner until its own timeout.
 *
 * **Details**
 *
 * A shard lock expires after 5 seconds and is renewed every 1.5 seconds. Runners read assignments every 300 ms, and
 * find waiting messages within a second. An owner asked to leave starts no further call and asks no model. It hands its
 * sessions over once none of their calls is running, at the latest when `drain` ends.
 *
 * **Gotchas**
 *
 * `NodeClusterHttp.layer` also reads environment variables without a prefix, such as `PORT`, and fails if they are
 * unsuitable.
 *
 * **Example** (A runner and a client)
 *
 * ```ts import.meta.vitest
 * import * as NodeClusterHttp from "@effect/platform-node/NodeClusterHttp"
 * import { Cluster } from "heddle/cluster"
 *
 * const runner = NodeClusterHttp.layer(Cluster.transport({ host: "10.0.0.7", port: 34431, drain: "1 minute" }))
 * const client = NodeClusterHttp.layer({ ...Cluster.transport(), clientOnly: true })
 *
 * Cluster.transport().shardingConfig.shardLockExpiration // => "5 seconds"
 * ```
 *
 * @category transport
 */
export const transport = (
  options: TransportOptions & (Address | { host?: undefined; port?: undefined }) = {}
): Transport => {
  const known = { drain: Values.finiteDurationOrNone, host: Values.name, port: Values.port } satisfies NamesOf<
    TransportOptions & Address
  >
  checkNames("Cluster.transport", options, known)
  const { drain = Drain.standard, ...address } = options
  return {
    transport: "websocket",
    shardingConfig: {
      ...(address.host === undefined
        ? {}
        : { runnerAddress: Option.some(RunnerAddress.make(address.host, address.port)) }),
      shardLockExpiration: "5 seconds",
      shardLockRefreshInterval: "1500 millis",
      refreshAssignmentsInterval: "300 millis",
      entityMessagePollInterval: "1 second",
      entityTerminationTimeout: Drain.termination(drain)
    }
  }
}
