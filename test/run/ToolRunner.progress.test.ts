/**
 * Progress and slow readers: progress is bounded and never displaces a result, and a reader that does not read delays
 * no tool.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import * as Pull from "effect/Pull"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { type Event, Message, Policy, Tool, ToolRunner } from "heddle"
import { Recorder } from "heddle/testing"
import { idOf, watched } from "../support/runs.ts"
import * as Tools from "../support/tools.ts"

const call = Message.toolCall

const calling = (...names: ReadonlyArray<string>) => names.map((name, index) => call(`c${index}`, name))

/** A tool that reports progress the given number of times, and waits the given time between two reports. */
const reporting = (times: number, wait: Effect.Effect<void> = Effect.void) =>
  Tool.make("reporting", {
    parameters: {},
    handler: (_args, call) =>
      Effect.gen(function*() {
        for (let step = 1; step <= times; step++) {
          yield* call.progress({ index: call.index, step })
          yield* wait
        }
        return "done"
      })
  })

const stepsOf = (events: ReadonlyArray<Event.Event>, index = 0) =>
  events.flatMap((event) => {
    if (event._tag !== "ToolProgress") return []
    const progress = event.progress as { readonly index: number; readonly step: number }
    return progress.index === index ? [progress.step] : []
  })

/** A stream that is read by hand. */
const opened = <E, R>(stream: Stream.Stream<Event.Event, E, R>) =>
  Effect.gen(function*() {
    const scope = yield* Scope.make()
    yield* Effect.addFinalizer(() => Scope.close(scope, Exit.void))
    const pull: Pull.Pull<ReadonlyArray<Event.Event>, E, void, R> = yield* Stream.toPull(stream).pipe(
      Scope.provide(scope)
    )
    return { pull, leave: Scope.close(scope, Exit.void) }
  })

const policies = {
  live: Policy.standard,
  grouped: { ...Policy.standard, toolEvents: "grouped" },
  request: { ...Policy.standard, resultOrder: "request" },
  allm: Policy.allm
} as const

describe("ToolRunner: progress", () => {
  it.effect("R-103: progress is emitted when reported, between start and completion", () =>
    Effect.gen(function*() {
      const { line, events } = yield* watched(ToolRunner.stream(calling("reporting"), [reporting(3, Effect.sleep(10))]))
      assert.deepStrictEqual(line, [
        [0, "ToolExecutionStarted", "c0"],
        [0, "ToolProgress", "c0"],
        [10, "ToolProgress", "c0"],
        [20, "ToolProgress", "c0"],
        [30, "ToolExecutionCompleted", "c0"],
        [30, "ToolResultEncoded", "c0"]
      ])
      assert.deepStrictEqual(events[1], {
        _tag: "ToolProgress",
        id: "c0",
        name: "reporting",
        progress: { index: 0, step: 1 }
      })
    }))

  for (const [name, policy] of Object.entries(policies)) {
    it.effect(`R-101, R-103: the events of a call keep their order around its progress under the policy ${name}`, () =>
      Effect.gen(function*() {
        const calls = calling("reporting", "reporting", "reporting")
        const { events } = yield* watched(ToolRunner.stream(calls, [reporting(3, Effect.sleep(10))], { policy }))
        for (const { id } of calls) {
          const own = events.filter((event) => idOf(event) === id).map((event) => event._tag)
          assert.deepStrictEqual(own, [
            "ToolExecutionStarted",
            "ToolProgress",
            "ToolProgress",
            "ToolProgress",
            "ToolExecutionCompleted",
            "ToolResultEncoded"
          ])
        }
      }))

    it.effect(`R-103: of 10,000 unread reports a reader gets few with the latest, and every result, under the policy ${name}`, () =>
      Effect.gen(function*() {
        const done = yield* Latch.make()
        const last = Tool.make("last", { parameters: {}, handler: () => Effect.as(done.open, "done") })
        const calls = calling("reporting", "echo", "reporting", "last")
        const tools = [reporting(10_000), Tools.echo, last]
        const { pull } = yield* opened(ToolRunner.stream(calls, tools, { policy, maxConcurrency: 1 }))
        const read = [...yield* pull]
        yield* done.await
        const before = new Map([0, 2].map((index) => [index, stepsOf(read, index).length]))
        yield* Effect.forever(Effect.map(pull, (events) => read.push(...events))).pipe(Effect.ignore)
        for (const index of [0, 2]) {
          const steps = stepsOf(read, index)
          assert.isAtMost(steps.length - (before.get(index) ?? 0), 16)
          assert.strictEqual(steps.at(-1), 10_000)
          assert.deepStrictEqual(steps, steps.toSorted((a, b) => a - b))
        }
        const results = read.filter((event) => event._tag === "ToolResultEncoded")
        assert.deepStrictEqual(results.map((event) => idOf(event)).toSorted(), ["c0", "c1", "c2", "c3"])
        assert.strictEqual(read.filter((event) => event._tag === "ToolExecutionStarted").length, 4)
      }))
  }

  it.effect("R-103: a reader that keeps up reads every report", () =>
    Effect.gen(function*() {
      const { events } = yield* watched(ToolRunner.stream(calling("reporting"), [reporting(500, Effect.sleep(1))]))
      assert.deepStrictEqual(stepsOf(events), Array.from({ length: 500 }, (_, index) => index + 1))
    }))

  it.effect("R-103, R-082: two calls with one id keep their progress apart", () =>
    Effect.gen(function*() {
      const calls = [call("c0", "reporting"), call("c0", "reporting")]
      const { events } = yield* watched(ToolRunner.stream(calls, [reporting(1_000)]))
      assert.strictEqual(stepsOf(events, 0).at(-1), 1_000)
      assert.strictEqual(stepsOf(events, 1).at(-1), 1_000)
      assert.strictEqual(stepsOf(events, 0).length, stepsOf(events, 1).length)
    }))

  it.effect("R-109: progress of a handler that still runs after its timeout is dropped", () =>
    Effect.gen(function*() {
      const deaf = Tool.make("deaf", {
        parameters: {},
        handler: (_args, call) =>
          Effect.uninterruptible(Effect.gen(function*() {
            for (let step = 1; step <= 10; step++) {
              yield* Effect.sleep(20)
              yield* call.progress({ index: 0, step })
            }
          }))
      })
      const tools = [{ ...deaf, timeout: Duration.millis(50) }, Tools.slow(150)]
      const { line } = yield* watched(ToolRunner.stream(calling("deaf", "slow"), tools))
      assert.deepStrictEqual(line.slice(2), [
        [20, "ToolProgress", "c0"],
        [40, "ToolProgress", "c0"],
        [150, "ToolExecutionCompleted", "c1"],
        [150, "ToolResultEncoded", "c1"],
        [200, "ToolExecutionCompleted", "c0"],
        [200, "ToolResultEncoded", "c0"]
      ])
    }))
})

describe("ToolRunner: slow readers", () => {
  it.effect("R-112: a reader that stops after the first event makes no tool time out, and holds up no queued call", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const slow = Tool.make("slow", {
        parameters: {},
        handler: recorder.handler(() => Effect.as(Effect.sleep(40), "slow"))
      })
      const calls = calling("slow", "slow", "slow")
      const stream = ToolRunner.stream(calls, [slow], { toolTimeout: 50, maxConcurrency: 1 })
      const { pull } = yield* opened(stream)
      const first = yield* pull
      assert.deepStrictEqual(first.map((event) => event._tag), ["ToolExecutionStarted", "ToolQueued", "ToolQueued"])
      yield* TestClock.adjust("10 minutes")
      assert.deepInclude(yield* recorder.counts("slow"), { starts: 3, ends: 3, interrupts: 0, peak: 1 })
      const rest = yield* pull
      const results = rest.flatMap((event) => event._tag === "ToolResultEncoded" ? [event.content] : [])
      assert.deepStrictEqual(results, ["slow", "slow", "slow"])
    }))

  it.effect("R-112: an absent reader does not delay a timeout", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const never = Tool.make("never", { parameters: {}, handler: recorder.handler(() => Effect.never) })
      const { pull } = yield* opened(ToolRunner.stream(calling("never"), [never], { toolTimeout: 50 }))
      yield* pull
      yield* TestClock.adjust(50)
      assert.deepInclude(yield* recorder.counts("never"), { interrupts: 1, finalizers: 1, live: 0 })
      assert.deepStrictEqual((yield* pull).map((event) => event._tag), ["ToolExecutionCompleted", "ToolResultEncoded"])
    }))

  it.effect("R-075: a failure is emitted after the earlier events, and nothing after the failure", () =>
    Effect.gen(function*() {
      const fails = Tool.make("fails", {
        parameters: {},
        handler: () => Effect.andThen(Effect.sleep(10), Effect.fail("no"))
      })
      const onToolError = (_call: Message.ToolCall, _error: unknown) =>
        Effect.succeed(Tool.ErrorDecision.fail("fatal" as const))
      const calls = calling("slow", "fails", "later", "reporting")
      const tools = [Tools.slow(5), fails, Tools.slow(20, "later"), reporting(30, Effect.sleep(1))]
      const { pull } = yield* opened(ToolRunner.stream(calls, tools, { onToolError }))
      yield* pull
      yield* TestClock.adjust(25)
      const rest = yield* pull
      assert.deepStrictEqual(rest.filter((event) => event._tag === "ToolResultEncoded").map((event) => idOf(event)), [
        "c0"
      ])
      assert.strictEqual(stepsOf(rest, 3).at(-1), 10)
      assert.strictEqual(yield* Effect.flip(pull), "fatal")
    }))

  it.effect("R-111: closing a partly read stream interrupts its handlers", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const never = Tool.make("never", { parameters: {}, handler: recorder.handler(() => Effect.never) })
      const { pull, leave } = yield* opened(ToolRunner.stream(calling("never", "never"), [never]))
      yield* pull
      yield* TestClock.adjust("20 seconds")
      yield* leave
      assert.deepInclude(yield* recorder.counts("never"), { starts: 2, interrupts: 2, finalizers: 2, live: 0 })
    }))

  it.effect("R-111: the stream ends only after its stopping handlers have ended", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const reluctant = Tool.make("reluctant", {
        parameters: {},
        timeout: 50,
        handler: recorder.handler(() => Effect.onInterrupt(Effect.never, () => Effect.sleep(30)))
      })
      const { pull } = yield* opened(ToolRunner.stream(calling("reluctant"), [reluctant]))
      yield* pull
      yield* TestClock.adjust(50)
      const answered = yield* Effect.forkChild(pull, { startImmediately: true })
      yield* TestClock.adjust(29)
      assert.isUndefined(answered.pollUnsafe())
      yield* TestClock.adjust(1)
      yield* Fiber.join(answered)
      assert.isTrue(Pull.isDoneCause(yield* Effect.flip(Effect.sandbox(pull))))
      assert.deepInclude(yield* recorder.counts(), { live: 0, finalizers: 1 })
    }))

  it.effect("R-111: an interrupted pull interrupts the handlers, and the next pull is the end", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const never = Tool.make("never", { parameters: {}, handler: recorder.handler(() => Effect.never) })
      const { pull } = yield* opened(ToolRunner.stream(calling("never"), [never]))
      yield* pull
      const impatient = yield* Effect.forkChild(Effect.timeoutOption(pull, 10), { startImmediately: true })
      yield* TestClock.adjust(10)
      assert.strictEqual((yield* Fiber.join(impatient))._tag, "None")
      assert.deepInclude(yield* recorder.counts("never"), { starts: 1, interrupts: 1, finalizers: 1, live: 0 })
      assert.isTrue(Pull.isDoneCause(yield* Effect.flip(Effect.sandbox(pull))))
    }))
})
