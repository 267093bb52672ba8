/**
 * Runners of a cluster that leave, in one process: each is built over the messages and the store that the one before it had.
 * On the live clock, since the loops of the cluster sleep between their looks.
 */
import { assert, describe, it } from "@effect/vitest"
import * as MessageStorage from "effect/cluster/MessageStorage"
import * as RunnerHealth from "effect/cluster/RunnerHealth"
import * as Runners from "effect/cluster/Runners"
import * as RunnerStorage from "effect/cluster/RunnerStorage"
import * as Sharding from "effect/cluster/Sharding"
import * as ShardingConfig from "effect/cluster/ShardingConfig"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { Session, Tool } from "heddle"
import { Cluster, SessionClient } from "heddle/cluster"
import type * as Commands from "../../src/cluster/internal/commands.ts"
import * as Owner from "../../src/cluster/internal/owner.ts"
import * as Protocol from "../../src/cluster/internal/protocol.ts"
import { ledger } from "../durable/support/ledger.ts"
import { linesOf } from "../support/edges.ts"
import { casting } from "../support/nests.ts"

ledger()

/** What outlives a runner. */
const shared = Layer.merge(
  MessageStorage.layerMemory.pipe(Layer.provide(ShardingConfig.layer())),
  Session.Store.layerMemory
)

/** A cluster of one runner. */
const clusterOf = (drain: Duration.Input) =>
  Sharding.layer.pipe(
    Layer.provide([Runners.layerNoop, RunnerStorage.layerMemory, RunnerHealth.layerNoop]),
    Layer.provide(
      ShardingConfig.layer({ ...Cluster.transport({ drain }).shardingConfig, entityMessagePollInterval: "20 millis" })
    ),
    Layer.fresh
  )

/** A runner that leaves when it is asked to. */
const runner = (tool: Tool.Any, drain: Duration.Input) =>
  Effect.gen(function*() {
    const scope = yield* Scope.fork(yield* Effect.scope)
    const run = () => ({ tools: [tool] as unknown as [], maxConcurrency: 1 })
    const layer = Layer.merge(Cluster.layer({ run, term: "3 seconds" }), SessionClient.layer).pipe(
      Layer.provide(casting({ go: [[["a", "work", {}], ["b", "work", {}]], "Done"] })),
      Layer.provide(clusterOf(drain))
    )
    const services = yield* Layer.buildWithScope(layer, scope)
    return {
      reply: Effect.provideContext(
        Effect.flatMap(SessionClient.SessionClient, ({ reply }) => reply("ann", "go", { command: "m1" })),
        services
      ),
      ready: Effect.provideContext(Cluster.ready, services),
      leave: Effect.forkChild(Scope.close(scope, Exit.void), { startImmediately: true })
    }
  })

const worked = () => {
  const starts: Array<string> = []
  const started = Latch.makeUnsafe()
  const gate = Latch.makeUnsafe()
  const tool = Tool.make("work", {
    parameters: {},
    handler: (_, { id }) =>
      Effect.suspend(() => {
        starts.push(id)
        return Effect.as(Effect.andThen(started.open, gate.await), `worked ${id}`)
      })
  })
  return { starts, started, gate, tool }
}

const loaded = Effect.map(Session.load("ann"), (kept) => kept!)

const done = loaded.pipe(
  Effect.repeat({ schedule: Schedule.spaced("10 millis"), until: ({ session }) => session.status === "completed" })
)

const lines = ["user: go", "assistant +a +b: turn 0", "tool a: worked a", "tool b: worked b", "assistant: Done"]

describe("a runner that leaves", () => {
  it.live("N-05: a leaving runner ends and records its running call, and the next runner continues after the call", () => {
    const { gate, started, starts, tool } = worked()
    return Effect.gen(function*() {
      const first = yield* runner(tool, "1 hour")
      yield* Effect.forkChild(first.reply)
      yield* started.await
      const leaving = yield* first.leave
      yield* Effect.yieldNow
      assert.isUndefined(leaving.pollUnsafe())
      yield* gate.open
      yield* Fiber.await(leaving)
      const { interrupted } = yield* loaded
      assert.deepStrictEqual(interrupted?.calls.map(({ state }) => state), ["Answered", "Asked"])
      yield* runner(tool, "1 hour")
      const { session } = yield* done
      assert.deepStrictEqual([starts, linesOf(session)], [["a", "b"], lines])
    }).pipe(Effect.scoped, Effect.provide(shared))
  })

  it.live("N-05: a leaving runner waits no longer than its drain", () => {
    const { gate, started, starts, tool } = worked()
    return Effect.gen(function*() {
      const first = yield* runner({ ...tool, idempotent: true } as Tool.Any, 0)
      yield* Effect.forkChild(first.reply)
      yield* started.await
      yield* Fiber.await(yield* first.leave)
      assert.deepStrictEqual((yield* loaded).interrupted?.calls.map(({ state }) => state), ["Started", "Asked"])
      yield* gate.open
      yield* runner({ ...tool, idempotent: true } as Tool.Any, 0)
      const { session } = yield* done
      assert.deepStrictEqual([starts, linesOf(session)], [["a", "a", "b"], lines])
    }).pipe(Effect.scoped, Effect.provide(shared))
  })
})

describe("the health of a runner", () => {
  it.live("the health of a runner has the number of driven sessions, and says that the runner leaves", () => {
    const { gate, started, tool } = worked()
    const fresh = { isReady: true, isLeaving: false, driven: 0, lostClaims: 0, latestMillis: 0 }
    return Effect.gen(function*() {
      const { leave, ready, reply } = yield* runner(tool, "1 hour")
      assert.deepStrictEqual(yield* ready, fresh)
      yield* Effect.forkChild(reply)
      yield* started.await
      assert.deepStrictEqual(yield* ready, { ...fresh, driven: 1 })
      const leaving = yield* leave
      assert.deepStrictEqual(yield* ready, { ...fresh, driven: 1, isReady: false, isLeaving: true })
      yield* gate.open
      yield* Fiber.await(leaving)
      assert.deepStrictEqual(yield* ready, { ...fresh, isReady: false, isLeaving: true })
    }).pipe(Effect.scoped, Effect.provide(shared))
  })
})

describe("the settings of a cluster", () => {
  it.live("N-05: a cluster gives an owner its drain", () => {
    let given: Commands.Owned | undefined
    const make: Commands.Make<never> = (session) => {
      given = session
      return { carryOut: () => Effect.die("no command"), look: Effect.void, stopped: Effect.void }
    }
    const layer = Layer.merge(Protocol.SessionEntity.toLayer(Owner.make(make)), SessionClient.layer)
    return Effect.gen(function*() {
      const { events } = yield* SessionClient.SessionClient
      yield* Stream.runDrain(Stream.take(events("ann"), 1))
      assert.deepInclude(given, { id: "ann", drainMillis: 3_600_000 })
    }).pipe(Effect.provide(Layer.provide(layer, clusterOf("1 hour"))), Effect.provide(shared))
  })

  it("N-05: a cluster gives an owner the drain and ten seconds to leave", () => {
    const millis = (options?: Parameters<typeof Cluster.transport>[0]) =>
      Duration.toMillis(Duration.fromInputUnsafe(Cluster.transport(options).shardingConfig.entityTerminationTimeout!))
    assert.deepStrictEqual([millis(), millis({ drain: 500 }), millis({ drain: "1 minute" })], [30_000, 10_500, 70_000])
  })

  it("the settings have the address of a runner, and no address for a client", () => {
    const { shardingConfig } = Cluster.transport({ host: "10.0.0.7", port: 34431 })
    const address = Option.getOrThrow(shardingConfig.runnerAddress!)
    assert.deepStrictEqual([address.host, address.port], ["10.0.0.7", 34431])
    assert.notProperty(Cluster.transport({ drain: 500 }).shardingConfig, "runnerAddress")
  })
})
