/**
 * Leaving a run: at any step of it, and from inside of its own code. Nothing is alive afterwards, and every finalizer
 * has run once.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Encoder, Message, Policy, Tool, ToolRunner } from "heddle"
import { Recorder, Simulation } from "heddle/testing"
import { timed } from "../support/runs.ts"
import * as Tools from "../support/tools.ts"

const call = Message.toolCall

const calling = (...names: ReadonlyArray<string>) => names.map((name, index) => call(`c${index}`, name))

/** What is recorded under a name has ended, and its finalizers have run once. */
const isOver = (recorder: Recorder.Recorder, name?: string) =>
  Effect.map(recorder.counts(name), (counts) => {
    assert.strictEqual(counts.live, 0, `${name ?? "something"} is alive`)
    assert.strictEqual(counts.starts, counts.finalizers, `${name ?? "something"} was finalized as often as started`)
    return counts
  })

/** Takes its time, also to stop. */
const pausing = (millis: number) => Effect.onInterrupt(Effect.sleep(millis), () => Effect.sleep(3))

describe("ToolRunner: an interruption at any step", () => {
  /** A run in which every kind of code of the caller's takes its time. */
  const run = (recorder: Recorder.Recorder, policy: Policy.Policy) => {
    const track = recorder.track
    const decode = (args: unknown) => track("decode")(Effect.as(pausing(5), args))
    const base = { parameters: Tools.anything, timeout: 40 }
    const tools: ReadonlyArray<Tool.Any> = [
      Tool.make("quick", { ...base, handler: recorder.handler(() => Effect.succeed("quick")) }),
      Tool.make("slow", { ...base, handler: recorder.handler(() => Effect.as(pausing(20), "slow")) }),
      Tool.make("late", { ...base, handler: recorder.handler(() => pausing(500)) }),
      Tool.make("alone", { ...base, concurrency: "exclusive", handler: recorder.handler(() => pausing(5)) }),
      Tool.make("flaky", { ...base, retry: Schedule.spaced(4), handler: recorder.handler(() => Effect.fail("no")) }),
      Tool.make("block", { ...base, interrupt: "block", handler: recorder.handler(() => pausing(10)) })
    ].map((tool) => ({ ...tool, parameters: { jsonSchema: {}, decode } }))
    const encode = (value: unknown) => track("encode")(Effect.andThen(pausing(4), Encoder.json.encode(value)))
    const onToolError = (_call: Message.ToolCall, _error: unknown) =>
      track("policy")(Effect.as(pausing(6), Tool.ErrorDecision.continue("replaced")))
    const calls = calling("quick", "slow", "late", "ghost", "alone", "flaky", "block")
    const stream = ToolRunner.stream(calls, tools, { policy, onToolError, maxConcurrency: 2, grace: 50 })
    return Stream.runDrain(recorder.tap(stream)).pipe(Effect.provide(Encoder.layer({ encode })))
  }

  for (
    const [name, policy] of Object.entries(
      { standard: Policy.standard, allm: { ...Policy.allm, unknownTool: "answer" } } as const
    )
  ) {
    it.effect(`law 3, R-111: a run under ${name}, interrupted before any step, leaves no fiber and ends within the grace period`, () =>
      Effect.gen(function*() {
        const whole = yield* Recorder.make
        const undisturbed = yield* Simulation.run(run(whole, policy))
        assert.isTrue(undisturbed.exit !== undefined && Exit.isSuccess(undisturbed.exit))
        yield* isOver(whole)
        assert.strictEqual((yield* whole.at("ToolResultEncoded")).length, 7)
        assert.isAbove(undisturbed.steps, 30)
        for (let step = 0; step < undisturbed.steps; step++) {
          const recorder = yield* Recorder.make
          const report = yield* Simulation.run(run(recorder, policy), { interruptAt: step })
          assert.isDefined(report.exit, `interrupted before step ${step} it does not end`)
          assert.strictEqual(report.sleeping, 0, `interrupted before step ${step} it leaves a sleeping fiber`)
          yield* isOver(recorder)
          assert.isAtMost(report.millis, undisturbed.millis + 50)
        }
      }))
  }
})

describe("ToolRunner: code that must not outlive the run", () => {
  it.effect("R-075, R-111: an error policy that never decides is interrupted with its run, which waits for the finalizer", () =>
    Effect.gen(function*() {
      for (const name of ["ghost", "boom", "never"]) {
        const recorder = yield* Recorder.make
        const never = Tool.make("never", { parameters: {}, timeout: 5, handler: () => Effect.never })
        const onToolError = (_call: Message.ToolCall, _error: unknown) =>
          recorder.track("policy")(Effect.onInterrupt(Effect.never, () => Effect.sleep(7)))
        const fiber = yield* Effect.forkChild(ToolRunner.run(calling(name), [Tools.boom, never], { onToolError }), {
          startImmediately: true
        })
        yield* TestClock.adjust(10)
        assert.deepInclude(yield* recorder.counts("policy"), { live: 1 })
        assert.strictEqual((yield* timed(Fiber.interrupt(fiber))).at, 7)
        assert.deepInclude(yield* isOver(recorder, "policy"), { interrupts: 1, finalizers: 1 })
      }
    }))

  it.effect("R-075: a run whose error policy does not stop ends after the grace period", () =>
    Effect.gen(function*() {
      const never = Tool.make("never", { parameters: {}, timeout: 5, handler: () => Effect.never })
      const onToolError = (_call: Message.ToolCall, _error: unknown) => Effect.uninterruptible(Effect.never)
      const fiber = yield* Effect.forkChild(ToolRunner.run(calling("never"), [never], { onToolError, grace: 30 }), {
        startImmediately: true
      })
      yield* TestClock.adjust(10)
      assert.strictEqual((yield* timed(Fiber.interrupt(fiber))).at, 30)
    }))

  it.effect("R-075, R-111: after an interruption no time limit stops a blocking handler, and no error policy is asked", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const block = Tool.make("block", {
        parameters: {},
        interrupt: "block",
        timeout: 50,
        handler: recorder.handler(() => Effect.sleep(80))
      })
      let asked = 0
      const onToolError = (_call: Message.ToolCall, _error: unknown) => {
        asked++
        return Effect.succeed(Tool.ErrorDecision.halt)
      }
      const run = ToolRunner.run(calling("block"), [block], { onToolError, grace: 1000 })
      const report = yield* Simulation.run(Effect.timeoutOption(run, 20))
      assert.strictEqual(report.millis, 80)
      const { ends, interrupts } = yield* recorder.counts("block")
      assert.deepStrictEqual({ asked, ends, interrupts }, { asked: 0, ends: 1, interrupts: 0 })
    }))

  it.effect("R-034, R-111: a running encoder is interrupted with its run, which waits for the finalizer", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const encode = () => recorder.track("encode")(Effect.onInterrupt(Effect.never, () => Effect.sleep(7)))
      const run = ToolRunner.run(calling("echo", "ghost"), [Tools.echo]).pipe(Effect.provide(Encoder.layer({ encode })))
      const fiber = yield* Effect.forkChild(run, { startImmediately: true })
      yield* TestClock.adjust(10)
      assert.deepInclude(yield* recorder.counts("encode"), { live: 2 })
      assert.strictEqual((yield* timed(Fiber.interrupt(fiber))).at, 7)
      assert.deepInclude(yield* isOver(recorder, "encode"), { interrupts: 2, finalizers: 2 })
    }))

  it.effect("R-034, R-111: the encoder of a blocking handler's result is interrupted with its run", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const block = { ...Tools.slow(20), interrupt: "block" as const }
      const encode = () => recorder.track("encode")(Effect.never)
      const run = ToolRunner.run(calling("slow"), [block]).pipe(Effect.provide(Encoder.layer({ encode })))
      const fiber = yield* Effect.forkChild(run, { startImmediately: true })
      yield* TestClock.adjust(10)
      assert.strictEqual((yield* timed(Fiber.interrupt(fiber))).at, 10)
      yield* isOver(recorder, "encode")
    }))
})

describe("ToolRunner: code that ends its own run", () => {
  /** A handler that interrupts the fiber of the run as its first act, and goes on. */
  const ending = (recorder: Recorder.Recorder, end: () => void) =>
    Tool.make("ending", {
      parameters: {},
      handler: recorder.handler(() =>
        Effect.andThen(Effect.sync(end), Effect.onInterrupt(Effect.never, () => Effect.sleep(7)))
      )
    })

  it.effect("law 3, R-111: a handler that aborts its own run is interrupted with the run", () =>
    Effect.gen(function*() {
      for (const calls of [calling("ending"), calling("slow", "ending"), calling("ending", "echo", "ending")]) {
        const recorder = yield* Recorder.make
        const controller = new AbortController()
        const tools = [ending(recorder, () => controller.abort()), Tools.slow(10), Tools.echo]
        const run = ToolRunner.run(calls, tools, { maxConcurrency: 1 })
        const fiber = Effect.runForkWith(yield* Effect.context<never>())(run, { signal: controller.signal })
        yield* TestClock.adjust(100)
        assert.isTrue(fiber.pollUnsafe() !== undefined, "the run is over")
        assert.deepInclude(yield* isOver(recorder), { starts: 1, interrupts: 1 })
      }
    }))

  it.effect("law 3, R-111: a run left at the start of a later call has stopped that call", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const wait = Tool.make("wait", {
        parameters: {},
        handler: recorder.handler(() => Effect.onInterrupt(Effect.never, () => Effect.sleep(7)))
      })
      const stream = ToolRunner.stream(calling("slow", "wait", "wait"), [Tools.slow(10), wait], { maxConcurrency: 1 })
      const untilStarted = Stream.takeUntil(
        stream,
        (event) => event._tag === "ToolExecutionStarted" && event.id === "c1"
      )
      const { at } = yield* timed(Stream.runDrain(untilStarted))
      assert.strictEqual(at, 17)
      assert.deepInclude(yield* isOver(recorder), { starts: 1, interrupts: 1 })
    }))

  it.effect("law 3: an error policy that aborts the run is interrupted, and no call starts afterwards", () =>
    Effect.gen(function*() {
      for (const names of [["never"], ["boom", "echo"], ["slow", "boom", "echo"]]) {
        const recorder = yield* Recorder.make
        const controller = new AbortController()
        const never = Tool.make("never", { parameters: {}, timeout: 5, handler: () => Effect.never })
        const echo = Tool.make("echo", { parameters: {}, handler: recorder.handler(() => Effect.void) })
        const onToolError = (_call: Message.ToolCall, _error: unknown) =>
          recorder.track("policy")(Effect.andThen(Effect.sync(() => controller.abort()), Effect.never))
        const run = ToolRunner.run(calling(...names), [Tools.boom, Tools.slow(3), never, echo], {
          onToolError,
          maxConcurrency: 1
        })
        const fiber = Effect.runForkWith(yield* Effect.context<never>())(run, { signal: controller.signal })
        yield* TestClock.adjust(100)
        assert.isDefined(fiber.pollUnsafe())
        assert.deepInclude(yield* isOver(recorder, "policy"), { starts: 1, interrupts: 1 })
        assert.strictEqual((yield* recorder.counts("echo")).starts, 0)
      }
    }))

  it.effect("law 3: a decoder that aborts the run is interrupted, and no call starts afterwards", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const controller = new AbortController()
      const decode = () => recorder.track("decode")(Effect.andThen(Effect.sync(() => controller.abort()), Effect.never))
      const handler = recorder.handler(() => Effect.void)
      const aborting = { ...Tools.echo, handler, parameters: { jsonSchema: {}, decode } }
      const run = ToolRunner.run(calling("echo", "echo"), [aborting])
      const fiber = Effect.runForkWith(yield* Effect.context<never>())(run, { signal: controller.signal })
      yield* Effect.exit(Fiber.await(fiber))
      yield* TestClock.adjust(100)
      yield* isOver(recorder, "decode")
      assert.strictEqual((yield* recorder.counts("echo")).starts, 0)
    }))
})
