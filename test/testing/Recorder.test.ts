/**
 * The recorder: what it notes of streams and of handlers, and that it changes nothing about them.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { type Adapter, Executor, Message, Tool } from "heddle"
import { Recorder, Script } from "heddle/testing"
import { callOf } from "../support/calls.ts"

const request: Adapter.Request = { messages: [Message.user("go")], tools: [] }

describe("Recorder", () => {
  it.effect("a recorder records a tapped stream as it passes, with the time since the recorder was made", () =>
    Effect.gen(function*() {
      yield* TestClock.adjust("1 hour")
      const recorder = yield* Recorder.make
      const model = yield* Script.make([Script.text("a"), Script.delay(50), Script.text("b"), Script.finish("stop")])
      const chunks = Stream.mapArray(recorder.tap(model.stream(request)), (events) => [events] as const)
      const reader = yield* Effect.forkChild(Stream.runCollect(chunks), { startImmediately: true })
      yield* TestClock.adjust(49)
      assert.deepStrictEqual(yield* recorder.timeline, [[0, "MessageStarted"], [0, "TextDelta"]])
      yield* TestClock.adjust(1)
      const received = yield* Fiber.join(reader)
      assert.deepStrictEqual(received.map((events) => events.length), [2, 3])
      assert.deepStrictEqual(yield* recorder.events, received.flat())
      assert.deepStrictEqual(yield* recorder.at("TextDelta"), [0, 50])
      assert.deepStrictEqual(yield* recorder.at("ToolHalt"), [])
    }))

  it.effect("a recorder lets the failure of a stream pass, and records the earlier events", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const model = yield* Script.make([Script.text("a"), Script.streamError("network_error")])
      const error = yield* Effect.flip(Stream.runDrain(recorder.tap(model.stream(request))))
      assert.strictEqual(error.reason, "network_error")
      assert.deepStrictEqual(yield* recorder.timeline, [[0, "MessageStarted"], [0, "TextDelta"]])
    }))

  it.effect("a recorder counts tracked effects by their ends, with one finalizer each", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      assert.strictEqual(yield* recorder.track("ok")(Effect.succeed(42)), 42)
      assert.strictEqual(yield* Effect.flip(recorder.track("no")(Effect.fail("no"))), "no")
      assert.isTrue(Exit.isFailure(yield* Effect.exit(recorder.track("boom")(Effect.die("boom")))))
      const endless = yield* Effect.forkChild(recorder.track("endless")(Effect.never))
      yield* recorder.started("endless")
      assert.deepStrictEqual(yield* recorder.counts("endless"), {
        starts: 1,
        live: 1,
        peak: 1,
        ends: 0,
        interrupts: 0,
        finalizers: 0
      })
      yield* Fiber.interrupt(endless)
      assert.deepStrictEqual(yield* recorder.counts(), {
        starts: 4,
        live: 0,
        peak: 1,
        ends: 3,
        interrupts: 1,
        finalizers: 4
      })
      assert.deepInclude(yield* recorder.counts("ok"), { starts: 1, ends: 1, interrupts: 0, finalizers: 1 })
      assert.deepInclude(yield* recorder.counts("unknown"), { starts: 0, peak: 0 })
      const marks = (yield* recorder.log).map((entry) => entry._tag === "Emitted" ? "" : `${entry.name} ${entry._tag}`)
      assert.deepStrictEqual(marks, [
        "ok Started",
        "ok Succeeded",
        "ok Finalized",
        "no Started",
        "no Failed",
        "no Finalized",
        "boom Started",
        "boom Failed",
        "boom Finalized",
        "endless Started",
        "endless Interrupted",
        "endless Finalized"
      ])
    }))

  it.effect("the peak counts the effects alive at once", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const all = Effect.forEach([30, 20, 15, 6], (millis) => recorder.track(`t${millis}`)(Effect.sleep(millis)), {
        concurrency: 2
      })
      const fiber = yield* Effect.forkChild(all)
      yield* recorder.started("t20")
      yield* TestClock.adjust(100)
      yield* Fiber.join(fiber)
      assert.deepInclude(yield* recorder.counts(), { starts: 4, peak: 2, live: 0 })
      assert.deepInclude(yield* recorder.counts("t30"), { peak: 1 })
      const ends = (yield* recorder.log).flatMap((entry) =>
        entry._tag === "Succeeded" ? [[entry.at, entry.name] as const] : []
      )
      assert.deepStrictEqual(ends, [[20, "t20"], [30, "t30"], [35, "t15"], [36, "t6"]])
    }))

  it.effect("a tracked effect interrupted before its start leaves no trace, and an uninterruptible effect stays uninterruptible", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const late = yield* Effect.forkChild(recorder.track("late")(Effect.void))
      yield* Fiber.interrupt(late)
      assert.deepStrictEqual(yield* recorder.log, [])
      const blocked = Effect.uninterruptible(recorder.track("block")(Effect.sleep(10)))
      const fiber = yield* Effect.forkChild(blocked, { startImmediately: true })
      const interruption = yield* Effect.forkChild(Fiber.interrupt(fiber), { startImmediately: true })
      yield* TestClock.adjust(10)
      yield* Fiber.join(interruption)
      assert.deepInclude(yield* recorder.counts("block"), { ends: 1, interrupts: 0, finalizers: 1 })
    }))

  it.effect("recorder.started returns at the given start, returns at once for a past start, and can be interrupted", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const second = yield* Effect.forkChild(recorder.started("x", 2), { startImmediately: true })
      yield* recorder.track("y")(Effect.void)
      yield* recorder.track("x")(Effect.void)
      yield* Effect.yieldNow
      assert.isUndefined(second.pollUnsafe())
      yield* recorder.track("x")(Effect.void)
      yield* Fiber.join(second)
      yield* recorder.started("x", 2)
      const third = yield* Effect.forkChild(recorder.started("x", 3), { startImmediately: true })
      yield* Fiber.interrupt(third)
    }))

  it.effect("a recorder records a handler under its tool name, and leaves its arguments and result unchanged", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const double = Tool.make("double", {
        parameters: { n: Schema.Finite },
        handler: recorder.handler(({ n }, call) => n < 0 ? Effect.fail(`${call.id}: negative`) : Effect.succeed(n * 2))
      })
      const run = (n: number) => Executor.direct.execute(double, { n }, callOf("double"))
      assert.deepInclude(yield* run(21), { _tag: "Ok", value: 42 })
      assert.deepInclude(yield* run(-1), { _tag: "Error", error: "c0: negative" })
      assert.deepInclude(yield* recorder.counts("double"), { starts: 2, ends: 2, finalizers: 2, live: 0 })
      const thrown = recorder.handler((): Effect.Effect<never> => {
        throw new Error("at once")
      })
      assert.isTrue(Exit.isFailure(yield* Effect.exit(thrown({}, callOf("thrower")))))
      assert.deepInclude(yield* recorder.counts("thrower"), { starts: 1, ends: 1, finalizers: 1 })
    }))
})
