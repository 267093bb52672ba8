/**
 * The bounds of a worker, each by every way in which a session comes to it: a place is taken by each of them, given back
 * at each end of what was driven, and the bounds on time are those of the options. A cell of the table is a test.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, type Event, Journal, Message, Session, Tool } from "heddle"
import { Worker } from "heddle/durable"
import * as Peers from "../../src/durable/internal/peers.ts"
import { until } from "../support/edges.ts"
import { sampleOf } from "../support/property.ts"
import { ledger } from "./support/ledger.ts"

ledger()

/** What the model does with its next requests. */
type Says = "calls" | "breaks" | "dies" | "asks" | "refuses"

/** A worker, and sessions whose calls of `hold` are under way until the test ends them. */
const world = (given: Partial<Worker.Options> = {}, isElsewhere = false, isTaken = false) =>
  Effect.gen(function*() {
    const base = yield* Session.Store
    /** The sessions whose call is under way. */
    const working = new Set<string>()
    const gates = new Map<string, Deferred.Deferred<void>>()
    const gate = (id: string) => {
      const known = gates.get(id) ?? Deferred.makeUnsafe<void>()
      gates.set(id, known)
      return known
    }
    const state = { asked: 0, begun: 0, isRefused: false, isSearched: false, says: "calls" as Says }
    const tools = [
      Tool.make("hold", {
        parameters: {},
        idempotent: true,
        timeout: "1 day",
        handler: (_, call) => {
          const sessionId = call.sessionId ?? ""
          return Effect.acquireUseRelease(
            Effect.sync(() => {
              state.begun++
              working.add(sessionId)
            }),
            () => Deferred.await(gate(sessionId)),
            () => Effect.sync(() => working.delete(sessionId))
          )
        }
      }),
      Tool.make("pay", {
        parameters: {},
        approval: true,
        answerWithin: "1 minute",
        handler: () => Effect.succeed("paid")
      })
    ] as ReadonlyArray<Tool.Any> as []
    const model = Adapter.layer({
      stream: ({ messages }) =>
        Stream.suspend((): Stream.Stream<Event.AdapterEvent, Adapter.AdapterError> => {
          state.asked++
          const { says } = state
          if (says === "dies") return Stream.die(new Error("broken"))
          if (says === "refuses") return Stream.fail(new Adapter.AdapterError({ reason: "provider_unavailable" }))
          const asked = messages.findLastIndex(({ role }) => role === "user")
          const isHeld = messages.slice(asked).some(({ toolCalls = [] }) =>
            toolCalls.some(({ name }) => name === "hold")
          )
          const name = says === "asks" ? "pay" : isHeld ? undefined : "hold"
          const calls = name === undefined ? [] : [Message.toolCall(`c${messages.length}`, name, {})]
          const said: ReadonlyArray<Event.AdapterEvent> = [
            { _tag: "MessageStarted", message: Message.assistant("") },
            { _tag: "TextDelta", id: null, delta: "said" },
            ...calls.map(({ id, name }) =>
              ({ _tag: "ToolCallCompleted", id, name, arguments: {}, rawArguments: "{}" }) as const
            ),
            {
              _tag: "MessageCompleted",
              message: Message.assistant("said", calls),
              finishReason: calls.length === 0 ? "stop" : "tool_calls",
              metadata: {}
            }
          ]
          return says === "breaks"
            ? Stream.concat(
              Stream.fromIterable(said.slice(0, 2)),
              Stream.fail(new Adapter.AdapterError({ reason: "network_error" }))
            )
            : Stream.fromIterable(said)
        })
    })
    const store = Session.Store.of({
      ...base,
      append: (id, ...append) =>
        Effect.suspend(() =>
          state.isRefused
            ? Effect.fail(new Journal.StoreError({ reason: "unavailable", operation: "append", id }))
            : base.append(id, ...append)
        ),
      claimUnfinished: (...claim) =>
        Effect.suspend(() => state.isSearched ? base.claimUnfinished(...claim) : Effect.succeed([]))
    })
    /** What the owner was asked for, and the claim of the session then. */
    const passed: Array<ReadonlyArray<unknown>> = []
    // Another process owns every session, and takes none unless the test says so.
    const peers: Peers.Peers = {
      isHere: () => false,
      take: (id, failed) =>
        Effect.gen(function*() {
          passed.push([id, failed, (yield* Effect.orDie(base.claimOf(id))) ?? "free"])
          return isTaken
        }),
      read: () => Stream.empty,
      serve: () => Effect.void
    }
    const scope = yield* Scope.fork(yield* Effect.scope)
    const context = yield* Layer.buildWithScope(
      Worker.layer({ drain: 0, ...given, run: () => ({ tools, grace: 100 }) }).pipe(
        Layer.provide([model, Logger.layer([]), Layer.succeed(Session.Store, store)]),
        Layer.provide(Layer.succeed(Peers.Peers, isElsewhere ? peers : undefined))
      ),
      scope
    )
    const direct = (id: string, says: Says, content: string) =>
      Effect.gen(function*() {
        state.says = says
        const opened = yield* Session.open(id)
        const fiber = yield* Session.keep(opened, (session) => Session.reply(session, content, { tools })).pipe(
          Effect.provide(model),
          Effect.forkChild
        )
        yield* until(Effect.sync(() => fiber.pollUnsafe() !== undefined || working.has(id)))
        yield* Fiber.interrupt(fiber)
        state.says = "calls"
      })
    return {
      base,
      passed,
      state,
      working,
      gate,
      direct,
      worker: Context.get(context, Worker.Worker),
      leave: Scope.close(scope, Exit.void)
    }
  })

type World = Effect.Success<ReturnType<typeof world>>

/** The states in which a session comes to a worker. Each leads to a call of `hold`. */
const states: Readonly<Record<string, (world: World, id: string) => Effect.Effect<unknown, unknown, Session.Store>>> = {
  "a new message": (_, id) => Session.submit(id, "go"),
  "a run of a killed process": ({ direct }, id) => direct(id, "calls", "go"),
  "an approval": ({ direct }, id) =>
    Effect.gen(function*() {
      yield* direct(id, "asks", "go")
      yield* Session.keep((yield* Session.load(id))!, (session) => Session.approve(session, session.suspensions[0]!.id))
    }),
  "an overdue call": ({ direct }, id) => Effect.andThen(direct(id, "asks", "go"), TestClock.adjust("2 minutes")),
  "a retried failed run": ({ direct }, id) => direct(id, "breaks", "go")
}

/** The way in which a worker gets a session. */
interface Door {
  readonly isElsewhere: boolean
  readonly enter: (world: World, id: string) => Effect.Effect<unknown, unknown, Session.Store>
}

const named: Door["enter"] = ({ worker }, id) =>
  Effect.gen(function*() {
    const { session, state } = (yield* Session.load(id))!
    return yield* worker.take(id, session.status === "error" ? state.ended?.requestId ?? "" : undefined)
  })

const searched: Door["enter"] = ({ state }) => Effect.sync(() => void (state.isSearched = true))

const doors: Readonly<Record<string, Door>> = {
  "found by a search": { isElsewhere: false, enter: searched },
  "taken by name": { isElsewhere: false, enter: named },
  "found, owned elsewhere": { isElsewhere: true, enter: searched },
  "taken by name, owned elsewhere": { isElsewhere: true, enter: named }
}

const rows = Object.entries(states).flatMap(([what, prepare]) =>
  Object.entries(doors).flatMap(([how, door]) =>
    // A search does not find a failed run.
    what === "a retried failed run" && door.enter === searched ? [] : [{
      what: `${what}, ${how}`,
      prepare,
      door
    }]
  )
)

/** The ends of a drive. Each ends the call of a session. */
const ends: Readonly<Record<string, (world: World, id: string) => Effect.Effect<unknown, unknown, Session.Store>>> = {
  success: ({ gate }, id) => Deferred.succeed(gate(id), undefined),
  "a wait": ({ gate, state }, id) => {
    state.says = "asks"
    return Deferred.succeed(gate(id), undefined)
  },
  "a failure of its run": ({ gate, state }, id) => {
    state.says = "breaks"
    return Deferred.succeed(gate(id), undefined)
  },
  "a defect": ({ gate, state }, id) => {
    state.says = "dies"
    return Deferred.succeed(gate(id), undefined)
  },
  "a failure of the store": ({ gate, state }, id) => {
    state.isRefused = true
    return Deferred.succeed(gate(id), undefined)
  },
  "a stop": (_, id) => Session.stop(id),
  "a claim of another owner": ({ base }, id) =>
    Effect.andThen(Session.revoke(id), base.claim(id, "another", 3_600_000)),
  "its removal": (_, id) => Session.delete(id)
}

const drivenBy = ({ worker }: World) => Effect.map(worker.health, ({ driven }) => driven)

/** Has a worker drive a session, however often it has to be asked. */
const driving = (world: World, { enter }: Door, id: string) =>
  until(
    Effect.gen(function*() {
      yield* enter(world, id)
      assert.isAtMost(world.working.size, 2, "calls at once")
      assert.isAtMost(yield* drivenBy(world), 2, "sessions at once")
      return world.working.has(id)
    }),
    50
  )

describe("a worker's concurrency", () => {
  const cells = rows.flatMap((row) => Object.entries(ends).map(([why, end]) => ({ ...row, why, end })))
  for (const { door, end, prepare, what, why } of sampleOf(cells, 40)) {
    it.effect(`a session takes a place and gives the place back: ${what}, behind ${why}`, () =>
      Effect.gen(function*() {
        const given = yield* world({ concurrency: 2, poll: "200 millis", term: "10 minutes" }, door.isElsewhere)
        const { base, gate, state, worker, working } = given
        yield* prepare(given, "one")
        yield* driving(given, door, "one")
        state.isSearched = false
        yield* prepare(given, "two")
        yield* driving(given, door, "two")
        state.isSearched = false
        yield* prepare(given, "three")
        for (let times = 0; times < 5; times++) {
          yield* door.enter(given, "three")
          yield* TestClock.adjust("300 millis")
        }
        state.isSearched = false
        assert.deepStrictEqual([[...working], yield* drivenBy(given)], [["one", "two"], 2])
        assert.isUndefined(yield* base.claimOf("three"), "another worker can have it")
        // A claim that another owner has takes no place.
        yield* base.claim("held", "another", 3_600_000)
        yield* Session.submit("held", "go")
        yield* end(given, "one")
        yield* until(Effect.map(drivenBy(given), (driven) => driven < 2), 50)
        Object.assign(state, { isRefused: false, says: "calls" })
        assert.isFalse(yield* worker.take("held"))
        // What failed is tried again, later than the one that waits.
        yield* driving(given, door, "three")
        assert.deepStrictEqual([[...working].sort(), yield* drivenBy(given)], [["three", "two"], 2])
        for (const id of ["one", "two", "three"]) yield* Deferred.succeed(gate(id), undefined)
        state.isSearched = true
        yield* until(
          Effect.gen(function*() {
            const claims = yield* Effect.forEach(["one", "two", "three"], base.claimOf)
            return (yield* drivenBy(given)) === 0 && claims.every((claim) => (claim?.owner ?? "another") === "another")
          }),
          500
        )
      }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))
  }
})

describe("a worker that already drives a session", () => {
  for (const { door, prepare, what } of rows) {
    it.effect(`a driven session takes no second place: ${what}`, () =>
      Effect.gen(function*() {
        const given = yield* world({ concurrency: 2, term: "10 minutes" }, door.isElsewhere)
        const { gate, state, worker, working } = given
        yield* prepare(given, "one")
        yield* driving(given, door, "one")
        state.isSearched = true
        // A retry of what is driven is asked for again: nothing tells whether the drive is about to end.
        assert.deepStrictEqual([yield* worker.take("one"), yield* worker.take("one", "r")], [true, false])
        assert.deepStrictEqual([[...working], yield* drivenBy(given)], [["one"], 1])
        yield* Session.submit("two", "go")
        yield* driving(given, { enter: searched, isElsewhere: false }, "two")
        for (const id of ["one", "two"]) yield* Deferred.succeed(gate(id), undefined)
        yield* until(Effect.map(drivenBy(given), (driven) => driven === 0))
      }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))
  }
})

describe("a worker whose claim is revoked", () => {
  const pollMillis = 200
  for (const { door, prepare, what } of rows) {
    it.effect(`a worker whose claim is revoked drives the session again within five polls: ${what}`, () =>
      Effect.gen(function*() {
        const given = yield* world({ poll: pollMillis, term: "10 minutes" }, door.isElsewhere)
        const { base, gate, state } = given
        yield* prepare(given, "s")
        state.begun = 0
        yield* driving(given, door, "s")
        state.isSearched = true
        // The second revocation finds a drive that has begun behind the first one.
        for (let times = 0; times < 2; times++) {
          const { owner } = (yield* base.claimOf("s"))!
          const before = yield* Clock.currentTimeMillis
          yield* Session.revoke("s")
          yield* until(Effect.sync(() => state.begun === 2 + times))
          assert.isAtMost((yield* Clock.currentTimeMillis) - before, 5 * pollMillis)
          assert.notStrictEqual((yield* base.claimOf("s"))!.owner, owner)
        }
        yield* Deferred.succeed(gate("s"), undefined)
        yield* until(Effect.map(drivenBy(given), (driven) => driven === 0))
      }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))
  }
})

describe("a worker whose sessions another process owns", () => {
  for (const { door, prepare, what } of rows) {
    if (!door.isElsewhere) continue
    for (const isTaken of [true, false]) {
      it.effect(`a session is passed to its owner with its failed run and takes ${isTaken ? "no" : "a"} place: ${what}`, () =>
        Effect.gen(function*() {
          const given = yield* world({ concurrency: 1, poll: "200 millis", term: "10 minutes" }, true, isTaken)
          const { base, gate, passed, state } = given
          yield* prepare(given, "s")
          const { session, state: before } = (yield* Session.load("s"))!
          const failed = session.status === "error" ? before.ended?.requestId : undefined
          for (let times = 1; times <= 2; times++) {
            if (isTaken) {
              yield* door.enter(given, "s")
              yield* until(Effect.sync(() => passed.length >= times))
              state.isSearched = false
              assert.strictEqual(yield* drivenBy(given), 0)
            } else if (times === 1) {
              yield* driving(given, door, "s")
              state.isSearched = false
            }
            assert.deepStrictEqual(passed.at(-1), ["s", failed, "free"])
          }
          if (isTaken) assert.isUndefined(yield* base.claimOf("s"))
          yield* Deferred.succeed(gate("s"), undefined)
          yield* until(Effect.map(drivenBy(given), (driven) => driven === 0))
        }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))
    }
  }
})

describe("the time bounds of a worker", () => {
  for (const { door, prepare, what } of rows) {
    const driven = (options: Partial<Worker.Options>) =>
      Effect.gen(function*() {
        const given = yield* world(options, door.isElsewhere)
        yield* prepare(given, "s")
        yield* driving(given, door, "s")
        given.state.isSearched = false
        return given
      })

    it.effect(`poll: a worker sees a stop with its next poll: ${what}`, () =>
      Effect.gen(function*() {
        const { working } = yield* driven({ poll: "20 seconds", term: "1 hour" })
        const before = yield* Clock.currentTimeMillis
        yield* Session.stop("s")
        yield* until(Effect.sync(() => working.size === 0), 1_000)
        assert.isAtMost((yield* Clock.currentTimeMillis) - before, 21_000)
        assert.isAtLeast((yield* Clock.currentTimeMillis) - before, 5_000, "it has not looked each fifth of a second")
      }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

    it.effect(`poll: a worker asked for a session sees its stop at once: ${what}`, () =>
      Effect.gen(function*() {
        const { worker, working } = yield* driven({ poll: "20 seconds", term: "1 hour" })
        const before = yield* Clock.currentTimeMillis
        yield* Session.stop("s")
        yield* worker.take("s")
        yield* until(Effect.sync(() => working.size === 0))
        assert.isAtMost((yield* Clock.currentTimeMillis) - before, 200)
      }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

    it.effect(`term: a claim lasts for the term and is renewed in time: ${what}`, () =>
      Effect.gen(function*() {
        const { base, working } = yield* driven({ term: "90 seconds" })
        const first = (yield* base.claimOf("s"))!
        for (let seconds = 0; seconds < 300; seconds += 5) {
          const { owner, until } = (yield* base.claimOf("s"))!
          const left = until - (yield* Clock.currentTimeMillis)
          assert.strictEqual(owner, first.owner)
          assert.isAtMost(left, 90_000)
          assert.isAtLeast(left, 59_000)
          yield* TestClock.adjust("5 seconds")
        }
        assert.strictEqual(working.size, 1)
      }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

    it.effect(`drain: a leaving worker waits at most the drain for a running call: ${what}`, () =>
      Effect.gen(function*() {
        const { leave, working } = yield* driven({ drain: "7 seconds", term: "1 hour" })
        const leaving = yield* Effect.forkChild(leave, { startImmediately: true })
        yield* TestClock.adjust("6900 millis")
        assert.deepStrictEqual([leaving.pollUnsafe(), working.size], [undefined, 1])
        yield* TestClock.adjust("500 millis")
        assert.isDefined(leaving.pollUnsafe())
        assert.strictEqual(working.size, 0)
      }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

    it.effect(`maxFailures: a worker bounds the requests to a failing model: ${what}`, () =>
      Effect.gen(function*() {
        const given = yield* world({ maxFailures: 3, poll: "200 millis" }, door.isElsewhere)
        const { base, state } = given
        yield* prepare(given, "s")
        Object.assign(state, { asked: 0, says: "refuses" })
        yield* door.enter(given, "s")
        // What was taken by its name is found from then on.
        state.isSearched = true
        yield* Deferred.succeed(given.gate("s"), undefined)
        yield* until(
          Effect.gen(function*() {
            const { session } = (yield* Session.load("s"))!
            return session.status === "error" && (yield* base.claimOf("s")) === undefined
              && (yield* drivenBy(given)) === 0
          }),
          500
        )
        yield* TestClock.adjust("10 minutes")
        // A run that is tried again by a person ends with its first failure, as one does that has done something.
        const isOnce = !["a new message", "an overdue call"].some((state) => what.startsWith(state))
        assert.strictEqual(state.asked, isOnce ? 1 : 3)
      }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))
  }
})
