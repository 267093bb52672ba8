/** Group commit: what is written at the same time is appended at once, in its order, and fails together. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Journal, Session, Tool } from "heddle"
import { SessionStore } from "heddle/sql"
import { Script } from "heddle/testing"
import { temporaryFile } from "../sql/support/files.ts"

const done = [Script.text("done"), Script.finish("stop")]

/** A turn with so many calls of a tool. */
const turn = (calls: number, prefix: string, tool = "work") => [
  ...Array.from({ length: calls }, (_, index) => Script.toolCall(`${prefix}${index}`, tool)),
  Script.finish("tool_calls")
]

type Append = Journal.Service["append"]

/** The store with another `append`, which has the one of the store to go on with. */
const appending = (change: (append: Append) => Append) =>
  Layer.effect(Session.Store, Effect.map(Session.Store, (store) => ({ ...store, append: change(store.append) })))

/** Counts what is appended, append by append, and goes on. */
const counting = (appends: Array<ReadonlyArray<Journal.Record>>) =>
  appending((append) => (id, expected, records, options) =>
    Effect.suspend(() => {
      appends.push([...records])
      return append(id, expected, records, options)
    })
  )

const journal = (id: string) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    return (yield* Stream.runCollect(store.read(id))).map(({ record }) => record)
  })

/** What a record is of, for a call with its id. */
const named = (record: Journal.Record): string => {
  if (record._tag === "CallStarted") return `started ${record.toolCallId}`
  return record._tag === "CallEnded" ? `ended ${record.message.toolCallId}` : record._tag
}

const work = Tool.make("work", { parameters: {}, handler: () => Effect.yieldNow })

const replied = (tools: ReadonlyArray<Tool.Any>, script: Script.Input) => (session: Session.Session) =>
  Effect.provide(Session.reply(session, "go", { tools, maxConcurrency: 1000, requestId: "r" }), Script.layer(script))

describe("D-19: group commit", () => {
  const stores = {
    memory: Session.Store.layerMemory,
    SQLite: Layer.unwrap(Effect.map(temporaryFile, (filename) => SessionStore.layerSqlite({ filename })))
  }

  for (const [name, layer] of Object.entries(stores)) {
    for (const calls of [1, 8, 64]) {
      it.live(`a run of five turns with ${calls} calls each takes at most 2 + 3 commits a turn: ${name}`, () =>
        Effect.gen(function*() {
          const appends: Array<ReadonlyArray<Journal.Record>> = []
          const kept = yield* Session.open("s")
          const script = [...["a", "b", "c", "d", "e"].map((prefix) => turn(calls, prefix)), done]
          yield* Effect.provide(Session.keep(kept, replied([work], script)), counting(appends))
          assert.isAtMost(appends.length, 2 + 3 * 5 + 1)
          assert.strictEqual(appends.flat().filter(({ _tag }) => _tag === "CallEnded").length, 5 * calls)
        }).pipe(Effect.provide(layer)))
    }
  }

  it.effect("records are appended in the order of writing: the reply, each call's start, its end, and the step", () =>
    Effect.gen(function*() {
      const kept = yield* Session.open("s")
      yield* Session.keep(kept, replied([work], [turn(5, "c"), done]))
      const records = (yield* journal("s")).map(named)
      const at = (name: string) => records.indexOf(name)
      for (let index = 0; index < 5; index++) {
        assert.isBelow(at("ReplyReceived"), at(`started c${index}`))
        assert.isBelow(at(`started c${index}`), at(`ended c${index}`))
        assert.isBelow(at(`ended c${index}`), at("StepCompleted"))
      }
      assert.deepStrictEqual(records.slice(3, 8), [0, 1, 2, 3, 4].map((index) => `started c${index}`))
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("records written during an append are appended together after that append", () =>
    Effect.gen(function*() {
      const appends: Array<ReadonlyArray<Journal.Record>> = []
      const slow = appending((append) => (...args) => Effect.delay(append(...args), 100))
      const kept = yield* Session.open("s")
      // They end one by one, the last of them while the end of the first is being written.
      let index = 0
      const late = Tool.make("work", { parameters: {}, handler: () => Effect.sleep(++index) })
      const run = Session.keep(kept, replied([late], [turn(5, "c"), done]))
      const fiber = yield* Effect.forkChild(Effect.provide(run, Layer.provide(counting(appends), slow)))
      for (let wait = 0; wait < 10; wait++) yield* TestClock.adjust(100)
      assert.isTrue(Exit.isSuccess(fiber.pollUnsafe() ?? Exit.die("it has not ended")))
      const ended = appends.filter((records) => records.some(({ _tag }) => _tag === "CallEnded"))
      assert.deepStrictEqual(ended.map((records) => records.length), [1, 4])
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("an append has a bounded number of records and of characters", () =>
    Effect.gen(function*() {
      const appends: Array<ReadonlyArray<Journal.Record>> = []
      const big = Tool.make("big", {
        parameters: {},
        handler: () => Effect.succeed({ text: "x".repeat(300_000), bytes: new Uint8Array(1000) }),
        maxResultChars: 0
      })
      const kept = yield* Session.open("s")
      const script = [turn(700, "a"), turn(10, "b", "big"), done]
      yield* Effect.provide(Session.keep(kept, replied([work, big], script)), counting(appends))
      assert.isAtMost(Math.max(...appends.map((records) => records.length)), 256)
      const results = appends.filter((records) => records.some((record) => named(record).startsWith("ended b")))
      assert.deepStrictEqual(results.map((records) => records.length), [3, 3, 3, 1])
      const records = yield* journal("s")
      assert.strictEqual(records.filter(({ _tag }) => _tag === "CallEnded").length, 710)
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("an interrupted run writes what has happened, and withdraws a waiting call start", () =>
    Effect.gen(function*() {
      const ran: Array<string> = []
      const slow = appending((append) => (...args) => Effect.delay(append(...args), 100))
      const tool = Tool.make("work", {
        parameters: {},
        authorize: (_, { id }) => Effect.as(id === "c0" || id === "c1" ? Effect.void : Effect.sleep(50), true),
        handler: (_, { id }) => Effect.andThen(Effect.sync(() => ran.push(id)), Effect.sleep(id === "c0" ? 5 : 10))
      })
      const kept = yield* Session.open("s")
      const run = Session.keep(kept, (session) =>
        Effect.provide(
          Session.reply(session, "go", { tools: [tool], maxConcurrency: 2 }),
          Script.layer([turn(4, "c"), done])
        ))
      const fiber = yield* Effect.forkDetach(Effect.provide(run, slow))
      // The start and the calls are written; c0 ends, and c1 while that is written, and c2 is allowed while c1 is written.
      for (const wait of [100, 100, 5, 5, 95, 50, 20]) yield* TestClock.adjust(wait)
      assert.deepStrictEqual((yield* journal("s")).map(named).slice(-1), ["ended c0"])
      fiber.interruptUnsafe()
      for (let wait = 0; wait < 5; wait++) yield* TestClock.adjust(100)
      assert.deepStrictEqual((yield* journal("s")).map(named).slice(-2), ["ended c0", "ended c1"])
      assert.deepStrictEqual(ran, ["c0", "c1"])
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})

describe("D-17: a store that fails", () => {
  /** How many appends of the run are tried when this one fails so often, what the run comes to, and what has run by then. */
  const failingAt = (at: number, millis: number, times: 1 | 2 = 2, isWritten = false) =>
    Effect.gen(function*() {
      const ran: Array<string> = []
      let appends = 0
      const tool = Tool.make("work", {
        parameters: {},
        // While the end of the first call is written the others wait to be.
        handler: (_, { id }) => Effect.andThen(Effect.sync(() => ran.push(id)), Effect.sleep(Number(id.slice(1)) * 3))
      })
      const failing = appending((append) => (id, expected, records, options) =>
        Effect.suspend(() => {
          const isFailing = appends === at || appends === at + 1 && times > 1
          appends++
          const failure = new Journal.StoreError({ reason: "unavailable", operation: "append", id })
          const appended = append(id, expected, records, options)
          return isFailing ? isWritten ? Effect.andThen(appended, failure) : failure : appended
        }).pipe((appended) => millis === 0 ? appended : Effect.delay(appended, millis))
      )
      const kept = yield* Session.open("s")
      const run = Session.keep(kept, replied([tool], [turn(3, "a"), turn(3, "b"), done]))
      const fiber = yield* Effect.forkChild(Effect.exit(Effect.provide(run, failing)))
      // What is left behind would write meanwhile.
      for (let wait = 0; wait < 30; wait++) yield* TestClock.adjust(10)
      return { exit: yield* Fiber.join(fiber), ran, appends, records: (yield* journal("s")).map(named) }
    }).pipe(Effect.provide(Session.Store.layerMemory))

  for (const millis of [0, 10]) {
    it.effect(`a store that fails at any append, ${millis} ms after the request, fails the run, and nothing follows`, () =>
      Effect.gen(function*() {
        const whole = yield* failingAt(Infinity, millis)
        assert.isTrue(Exit.isSuccess(whole.exit))
        assert.isAtLeast(whole.appends, 8)
        for (let at = 0; at < whole.appends; at++) {
          const { appends, exit, ran, records } = yield* failingAt(at, millis)
          const error = yield* Effect.flip(exit)
          assert.strictEqual(error._tag, "StoreError", `append ${at}`)
          assert.strictEqual(appends, at + 2, `nothing but append ${at} is repeated, once`)
          assert.deepStrictEqual(records, whole.records.slice(0, records.length))
          const intended = records.filter((name) => name.startsWith("started")).map((name) => name.slice(8))
          assert.deepStrictEqual(ran, intended, `no call of append ${at} runs`)
        }
      }))

    for (const isWritten of [false, true]) {
      const what = isWritten ? "fails after it has written" : "fails before it writes"
      it.effect(`an append of a store that ${what}, after ${millis} ms, is repeated, and the run continues as if nothing had failed`, () =>
        Effect.gen(function*() {
          const whole = yield* failingAt(Infinity, millis)
          for (let at = 0; at < whole.appends; at++) {
            const { appends, exit, ran, records } = yield* failingAt(at, millis, 1, isWritten)
            assert.isTrue(Exit.isSuccess(exit), `append ${at}`)
            assert.isAtLeast(appends, at + 2)
            assert.sameMembers(records, whole.records)
            assert.sameMembers(ran, whole.ran)
          }
        }))
    }
  }
})
