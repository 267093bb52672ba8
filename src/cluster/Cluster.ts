/**
 * Sessions on a cluster of processes, over the cluster of Effect. Each session has one owner at a time: the process
 * whose runner has its shard. Any process sends it commands through a `SessionClient`. Commands wait for an owner,
 * and are carried out by the next one if the owner is killed. The journal in the store records what has happened; the
 * cluster only decides who continues it.
 *
 * **Details**
 *
 * Two processes may believe that they own a session, for example when a frozen one wakes up. The journal decides: the
 * first record of the new owner changes its version, every later append of the old one is refused, and its run is
 * stopped there. An effect under way in the frozen process may still happen; `idempotencyKey` and `lookUp` exist for
 * this.
 *
 * The modules of Effect that this module uses are marked unstable, and may change in a minor version of Effect.
 * Nothing in `heddle` itself imports them.
 *
 * @since 0.1.0
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
 * @since 0.1.0
 */
export interface Options<
  T extends ReadonlyArray<Tool.Any> = ReadonlyArray<Tool.Any>,
  E = never,
  R = never,
  RHalt = R,
  REvent = R
> {
  /**
   * Returns the options of the next run of a session: its tools, its system prompt, its limits, and the limit of its
   * resumptions. Every runner of a cluster has to return the same. It is called before each run, with the current
   * session.
   */
  readonly run: (kept: Session.Kept) => Session.ResumeOptions<T, E, R, RHalt, REvent>
  /**
   * Duration of an owner's claim unless it is renewed, in addition to the lock on its shard. `"5 seconds"` by
   * default, which is the duration of the locks in {@link transport}. At least three times the longest pause of a
   * process.
   */
  readonly term?: Duration.Input
}

/**
 * The runner of this process, for a health check.
 *
 * @category services
 * @since 0.1.0
 */
export class Runner extends Context.Service<Runner, Owners.Owner>()("heddle/cluster/Runner") {}

/**
 * The health of the runner: how many sessions it drives, whether it lost claims lately, and whether it is leaving. It
 * is ready unless it is leaving or the store did not answer its last command.
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
 * @since 0.1.0
 */
export const ready: Effect.Effect<Owners.Health, never, Runner> = Effect.flatMap(Runner, ({ health }) => health)

/**
 * Makes this process an owner of sessions: it runs the sessions whose shards its runner has. Provide it with a
 * cluster (`NodeClusterHttp.layer` of `@effect/platform-node`, with {@link transport}), a store that every process
 * reaches, and an adapter.
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
 * @since 0.1.0
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
          // The feed and a stop do not wait for the commands before them.
          concurrency: "unbounded",
          // A defect of a run answers its command. Otherwise the entity would start the run again forever.
          disableFatalDefects: true
        })
      )
      yield* Effect.addFinalizer(() => Effect.sync(() => runner.leave()))
      return runner
    })
  )

/**
 * Makes `Server.layer` of `heddle/server` one server of many processes: the process whose runner has the shard of
 * a session drives it. Any other one passes on what it is asked for, and sends its client what the owner sends, deltas
 * and all. Provide it to `Server.layer` in each process, with a cluster (`NodeClusterHttp.layer` of
 * `@effect/platform-node`, with {@link transport}).
 *
 * **Details**
 *
 * The claims of the store keep the sessions safe, with and without it. Where the owner does not answer within a
 * second, the process that was asked drives the session itself; where the owner is silent for 20 seconds, its reader
 * has the journal.
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
 * @since 0.1.0
 */
export const servers: Layer.Layer<never, never, Sharding.Sharding> = Layer.effect(Peers.Peers, ServerEntity.make)

/**
 * The address of a runner.
 *
 * @category options
 * @since 0.1.0
 */
export interface Address {
  /**
   * Host name or address by which the other processes reach the runner. The ports have no authentication: keep them
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
 * @since 0.1.0
 */
export interface TransportOptions {
  /**
   * Longest time that calls under way have to end when an owner is asked to leave (`SIGTERM`, or its shard moves). A
   * call that is still under way then is interrupted, and the next owner treats it as a call whose effect is unknown.
   * The process takes at most 10 seconds more to leave. A number is milliseconds. `"20 seconds"` by default.
   */
  readonly drain?: Duration.Input
}

/**
 * Settings of the connections in a cluster and of the time until another runner takes over, for {@link transport}.
 *
 * @category models
 * @since 0.1.0
 */
export interface Transport {
  /**
   * Sends frames immediately. Over a plain socket, which waits to fill its packets, live events are 65 to 104 ms
   * late.
   */
  readonly transport: "websocket"
  /** The settings of `ShardingConfig` that determine the time until another runner takes over. */
  readonly shardingConfig: Partial<ShardingConfig.ShardingConfig["Service"]>
}

/**
 * Returns the options of `NodeClusterHttp.layer` with measured settings: another runner takes over 3 to 6 seconds
 * after a kill. Pass the address of this runner, or no address and `clientOnly: true` for a process that only sends
 * commands. All processes need the same settings: a client with other settings keeps sending to a dead runner until
 * its own timeout is over.
 *
 * **Details**
 *
 * The lock on a shard expires after 5 seconds and is renewed every 1.5 seconds. Assignments are read every 300 ms,
 * and waiting messages are found within a second. An owner that is asked to leave starts no further call and asks no
 * model. It hands its sessions over as soon as no call of theirs is under way, at the end of `drain` at the latest.
 *
 * **Gotchas**
 *
 * `NodeClusterHttp.layer` also reads environment variables without a prefix, such as `PORT`, and fails where they do
 * not fit.
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
 * @since 0.1.0
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
