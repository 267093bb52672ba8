/**
 * What owners keep between two uses, each at its second use: health, metrics, replies that were not recorded, calls of
 * which one is due, settled calls, a retry, the options of a program.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Metric from "effect/Metric"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Chat, type Event, Journal, Message, Session, Tool } from "heddle"
import { Durable, Worker } from "heddle/durable"
import { Script } from "heddle/testing"
import * as Owners from "../../src/durable/internal/ownerHealth.ts"
import * as Replies from "../../src/durable/internal/replies.ts"
import { linesOf, until, wrapped } from "../support/edges.ts"
import { acting, casting, type Turn } from "../support/nests.ts"
import type { Deed } from "../support/survivor.ts"
import { ledger } from "./support/ledger.ts"

ledger()

const quiet = Logger.layer([])

const memory = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  effect.pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory))

const loaded = Effect.map(Session.load("s"), (kept) => kept!)

const isCompleted = Effect.map(loaded, ({ session }) => session.status === "completed")

describe("the health of an owner", () => {
  it.effect("a worker is ready again each time its store answers again", () =>
    memory(Effect.gen(function*() {
      const store = yield* Session.Store
      let isAway = false
      const flaky = Layer.succeed(Session.Store, {
        ...store,
        claimUnfinished: (...args: Parameters<typeof store.claimUnfinished>) =>
          Effect.suspend(() =>
            isAway
              ? new Journal.StoreError({ reason: "unavailable", operation: "claimUnfinished" })
              : store.claimUnfinished(...args)
          )
      })
      const context = yield* Layer.build(
        Worker.layer({ run: () => ({}) }).pipe(Layer.provide([flaky, Script.layer([]), quiet]))
      )
      const isReady = Effect.map(Effect.provideContext(Worker.ready, context), ({ isReady }) => isReady)
      for (let times = 0; times < 3; times++) {
        yield* until(isReady, 50)
        isAway = true
        yield* until(Effect.map(isReady, (isReady) => !isReady), 50)
        isAway = false
      }
      yield* until(isReady, 50)
    })))

  it.effect("a worker asks an unavailable store with growing pauses, which start anew behind an answer", () =>
    memory(Effect.gen(function*() {
      const store = yield* Session.Store
      let isAway = false
      const asked: Array<number> = []
      const flaky = Layer.succeed(Session.Store, {
        ...store,
        claimUnfinished: (...args: Parameters<typeof store.claimUnfinished>) =>
          Effect.flatMap(Clock.currentTimeMillis, (now) => {
            asked.push(now)
            return isAway
              ? new Journal.StoreError({ reason: "unavailable", operation: "claimUnfinished" })
              : store.claimUnfinished(...args)
          })
      })
      yield* Layer.build(Worker.layer({ run: () => ({}) }).pipe(Layer.provide([flaky, Script.layer([]), quiet])))
      for (let times = 0; times < 2; times++) {
        isAway = true
        asked.length = 0
        yield* until(Effect.sync(() => asked.length === 6), 200)
        isAway = false
        const pauses = asked.slice(1).map((at, index) => at - asked[index]!)
        yield* until(Effect.sync(() => asked.length === 8), 200)
        assert.deepStrictEqual(pauses, [1_000, 4_000, 16_000, 60_000, 60_000])
      }
    })))

  it.effect("the health of an owner counts the lost claims of the last five minutes and reports the largest delay among them", () =>
    Effect.gen(function*() {
      const owner = new Owners.Owner(yield* Effect.context<never>())
      const lostAt = (millis: number) => Effect.map(Clock.currentTimeMillis, (now) => owner.lose(millis, now))
      const lost = Effect.map(owner.health, ({ latestMillis, lostClaims }) => [lostClaims, latestMillis])
      yield* lostAt(500)
      yield* TestClock.adjust("2 minutes")
      yield* lostAt(200)
      assert.deepStrictEqual(yield* lost, [2, 500])
      yield* TestClock.adjust("4 minutes")
      assert.deepStrictEqual(yield* lost, [1, 200])
      yield* lostAt(300)
      assert.deepStrictEqual(yield* lost, [2, 300])
      yield* TestClock.adjust("6 minutes")
      assert.deepStrictEqual(yield* lost, [0, 0])
    }))

  it.effect("the health of an owner counts a session once, like its gauge, and returns to 0", () =>
    Effect.gen(function*() {
      const owner = new Owners.Owner(yield* Effect.context<never>())
      const gauge = Effect.map(Metric.value(Owners.metrics.driven), ({ value }) => value)
      for (
        const [id, what, driven] of [
          ["a", "begin", 1],
          ["a", "begin", 1],
          ["b", "begin", 2],
          ["a", "end", 1],
          ["a", "end", 1],
          ["a", "begin", 2],
          ["b", "end", 1],
          ["a", "end", 0]
        ] as const
      ) {
        owner[what](id)
        assert.deepStrictEqual([owner.size, yield* gauge, owner.drives(id)], [driven, driven, what === "begin"])
      }
    }).pipe(Effect.provideService(Metric.MetricRegistry, new Map())))
})

describe("a due call beside another waiting call", () => {
  const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
  const tools = [
    { ...pay, name: "soon", answerWithin: "1 minute" as const },
    { ...pay, name: "later", answerWithin: "10 minutes" as const },
    { ...pay, name: "never" }
  ]
  for (const order of [["soon", "never"], ["never", "soon"], ["later", "soon"], ["soon", "later"], ["soon", "soon"]]) {
    it.effect(`a due call expires, and the other call waits for its own time: ${order.join(" and ")}`, () =>
      memory(Effect.gen(function*() {
        const model = casting({ go: [order.map((name, index) => [`c${index}`, name, {}] as const), "Done"] })
        yield* Session.submit("s", "go")
        yield* Layer.build(
          Worker.layer({ run: () => ({ tools: tools as ReadonlyArray<Tool.Any> as [] }) }).pipe(
            Layer.provide([model, quiet])
          )
        )
        yield* until(Effect.map(loaded, (kept) => Session.next(kept) === "wait"))
        yield* TestClock.adjust("2 minutes")
        const waiting = Effect.map(
          loaded,
          ({ session }) => session.suspensions.map(({ id }) => order[Number(id.slice(1))])
        )
        yield* until(Effect.map(waiting, (names) => !names.includes("soon")), 200)
        const left = order.filter((name) => name !== "soon")
        assert.deepStrictEqual(yield* waiting, left)
        yield* TestClock.adjust("10 minutes")
        const status = left.includes("never") ? "awaiting_tools" : "completed"
        yield* until(Effect.map(loaded, ({ session }) => session.status === status), 200)
      })))
  }
})

describe("a call settled while its run is active", () => {
  const kinds = {
    "an approval": {
      gate: Tool.make("gate", { parameters: {}, approval: true, handler: () => Effect.succeed("passed") }),
      settle: (session: Session.Session, id: string) => Session.approve(session, id)
    },
    "a denial": {
      gate: Tool.make("gate", { parameters: {}, approval: true, handler: () => Effect.succeed("passed") }),
      settle: (session: Session.Session, id: string) => Session.deny(session, id)
    },
    "a result": {
      gate: Tool.make("gate", { parameters: {}, manual: true }),
      settle: (session: Session.Session, id: string) => Session.answer(session, id, "passed")
    },
    "an answer": {
      gate: Tool.make("gate", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Pass?")) }),
      settle: (session: Session.Session, id: string) => Session.answer(session, id, "passed")
    }
  }
  for (const [what, { gate, settle }] of Object.entries(kinds)) {
    it.effect(`a call settled while its run is active continues at once, each time: ${what}`, () =>
      memory(Effect.gen(function*() {
        const begun: Array<number> = []
        const slow = Tool.make("slow", {
          parameters: {},
          handler: () =>
            Effect.gen(function*() {
              begun.push(yield* Clock.currentTimeMillis)
              yield* Effect.sleep("3 seconds")
              return "slept"
            })
        })
        const turns = [0, 1, 2].map((turn): Turn => [[`slow${turn}`, "slow", {}], [`gate${turn}`, "gate", {}]])
        const model = casting({ go: [[["first", "gate", {}]], ...turns, "Done"] })
        yield* Session.submit("s", "go")
        yield* Layer.build(
          Worker.layer({ run: () => ({ tools: [slow, gate] as ReadonlyArray<Tool.Any> as [] }) }).pipe(
            Layer.provide([model, quiet])
          )
        )
        for (const id of ["first", "gate0", "gate1", "gate2"]) {
          const isOpen = Effect.map(loaded, ({ session }) => session.suspensions.some((open) => open.id === id))
          yield* until(isOpen)
          yield* Effect.retry(Effect.flatMap(loaded, (kept) => Session.keep(kept, (session) => settle(session, id))), {
            times: 10
          })
        }
        yield* until(isCompleted)
        const pauses = begun.slice(1).map((at, index) => at - begun[index]!)
        assert.lengthOf(pauses, 2)
        for (const pause of pauses) assert.isBelow(pause, 3_900)
      })))
  }
})

describe("a retry requested twice", () => {
  it.effect("a retry requested twice runs once, and a later failure may be retried", () =>
    memory(Effect.gen(function*() {
      const broken = [Script.text("so"), Script.streamError("network_error")]
      const script = yield* Script.make([broken, broken, [Script.text("Done"), Script.finish("stop")]])
      const context = yield* Layer.build(
        Worker.layer({ run: () => ({}), poll: "1 hour" }).pipe(Layer.provide([script.layer, quiet]))
      )
      const worker = Context.get(context, Worker.Worker)
      const settled = until(Effect.sync(() => worker.size === 0))
      yield* Session.submit("s", "go")
      yield* worker.take("s")
      yield* settled
      const failed = (yield* loaded).state.ended?.requestId ?? ""
      yield* worker.take("s", failed)
      yield* settled
      const again = (yield* loaded).state.ended?.requestId ?? ""
      assert.notStrictEqual(again, failed)
      yield* worker.take("s", failed)
      yield* settled
      assert.strictEqual(yield* script.opens, 2)
      yield* worker.take("s", again)
      yield* settled
      assert.deepStrictEqual([yield* script.opens, (yield* loaded).session.status], [3, "completed"])
      for (const run of [failed, again]) yield* worker.take("s", run)
      yield* settled
      assert.strictEqual(yield* script.opens, 3)
    })))
})

describe("unrecorded replies", () => {
  const message = (text: string): Event.AdapterEvent => ({
    _tag: "MessageCompleted",
    message: Message.assistant(text),
    finishReason: "stop",
    metadata: {}
  })
  const begun: Event.AdapterEvent = { _tag: "MessageStarted", message: Message.assistant("") }

  /** An adapter that says how often it was asked, and whole replies or a part of one. */
  const counting = (isWhole: () => boolean) => {
    let asked = 0
    const adapter = Adapter.Adapter.of({
      stream: () =>
        Stream.suspend(() => {
          asked++
          return Stream.fromIterable(isWhole() ? [begun, message(`reply ${asked}`)] : [begun])
        })
    } as Adapter.Service)
    return adapter
  }

  const ask = ({ stream }: Adapter.Service, requestId: string, stepIndex = 0) =>
    Effect.map(
      Stream.runCollect(stream({ messages: [], run: { requestId, stepIndex } } as unknown as Adapter.Request)),
      (events) => Array.from(events, (event) => event._tag === "MessageCompleted" ? event.message.content : event._tag)
    )

  it.effect("an unrecorded reply is given once, to its run and step, and the last reply counts", () =>
    Effect.gen(function*() {
      const replies = new Replies.Unrecorded()
      const model = counting(() => true)
      const first = replies.begin("s", model)
      assert.deepStrictEqual(yield* ask(first.adapter, "r"), ["MessageStarted", "reply 1"])
      assert.deepStrictEqual(yield* ask(first.adapter, "r"), ["MessageStarted", "reply 2"])
      yield* ask(first.adapter, "inner")
      first.keep()
      const other = replies.begin("t", model)
      assert.deepStrictEqual(yield* ask(other.adapter, "r"), ["MessageStarted", "reply 4"])
      const second = replies.begin("s", model)
      assert.deepStrictEqual(yield* ask(second.adapter, "r"), ["MessageStarted", "reply 2"])
      assert.deepStrictEqual(yield* ask(second.adapter, "r"), ["MessageStarted", "reply 5"])
      assert.deepStrictEqual(yield* ask(second.adapter, "inner", 1), ["MessageStarted", "reply 6"])
      second.keep()
      const third = replies.begin("s", model)
      assert.deepStrictEqual(yield* ask(third.adapter, "r"), ["MessageStarted", "reply 5"])
      // An attempt that keeps nothing leaves nothing of those before.
      const fourth = replies.begin("s", model)
      assert.deepStrictEqual(yield* ask(fourth.adapter, "r"), ["MessageStarted", "reply 7"])
    }))

  it.effect("only a whole unrecorded reply is given again", () =>
    Effect.gen(function*() {
      const replies = new Replies.Unrecorded()
      let isWhole = false
      const model = counting(() => isWhole)
      const first = replies.begin("s", model)
      assert.deepStrictEqual(yield* ask(first.adapter, "r"), ["MessageStarted"])
      first.keep()
      isWhole = true
      assert.deepStrictEqual(yield* ask(replies.begin("s", model).adapter, "r"), ["MessageStarted", "reply 2"])
    }))

  it.effect("unrecorded replies are kept for the last hundred sessions", () =>
    Effect.gen(function*() {
      const replies = new Replies.Unrecorded()
      const model = counting(() => true)
      for (let index = 0; index <= 100; index++) {
        const { adapter, keep } = replies.begin(`s${index}`, model)
        yield* ask(adapter, "r")
        keep()
      }
      assert.deepStrictEqual(yield* ask(replies.begin("s1", model).adapter, "r"), ["MessageStarted", "reply 2"])
      assert.deepStrictEqual(yield* ask(replies.begin("s0", model).adapter, "r"), ["MessageStarted", "reply 102"])
    }))

  it.effect("a run completes after the store has refused the start of its early call", () => {
    const world: Array<Deed> = []
    let refusals = 0
    const store = wrapped((base) => (...append) =>
      Effect.suspend(() =>
        append[2].some(({ _tag }) => _tag === "CallStarted") && refusals++ < 2
          ? Effect.fail(new Journal.StoreError({ reason: "unavailable", operation: "append", id: append[0] }))
          : base.append(...append)
      )
    )
    return Effect.gen(function*() {
      const tools = [{ ...acting(world, "act"), readOnly: true }] as ReadonlyArray<Tool.Any> as []
      yield* Layer.build(Worker.layer({ run: () => ({ tools }) }))
      yield* Session.submit("s", "go")
      yield* until(isCompleted, 200)
      assert.deepStrictEqual(linesOf((yield* loaded).session), [
        "user: go",
        "assistant +a: turn 0",
        "tool a: act done",
        "assistant: Done"
      ])
    }).pipe(Effect.scoped, Effect.provide([casting({ go: [[["a", "act", {}]], "Done"] }), store, quiet]))
  })
})

describe("the options of a program", () => {
  it.effect("a program holds its claim with the owner and the term of its options at each renewal", () =>
    memory(Effect.gen(function*() {
      const store = yield* Session.Store
      const claims: Array<unknown> = []
      const look = Tool.make("look", {
        parameters: {},
        timeout: "1 hour",
        handler: () =>
          Effect.gen(function*() {
            for (let times = 0; times < 4; times++) {
              const { owner, until } = (yield* Effect.orDie(store.claimOf("p")))!
              claims.push([owner, until - (yield* Clock.currentTimeMillis)])
              yield* Effect.sleep("1 minute")
            }
            return "seen"
          })
      })
      const fiber = yield* Chat.run("go", { tools: [look] }).pipe(
        Effect.provide(Durable.layer({ id: "p", owner: "me", term: "3 minutes" })),
        Effect.provide(casting({ go: [[["a", "look", {}]], "Done"] })),
        Effect.forkChild
      )
      yield* until(Effect.sync(() => fiber.pollUnsafe() !== undefined), 500)
      assert.lengthOf(claims, 4)
      for (const [owner, left] of claims as ReadonlyArray<[string, number]>) {
        assert.strictEqual(owner, "me")
        assert.isAtMost(left, 180_000)
        assert.isAtLeast(left, 119_000)
      }
    })))
})
