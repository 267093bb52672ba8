/**
 * Spans of tool calls: where a tracer is installed, one per call and as long as the call; otherwise none.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as References from "effect/References"
import * as Schema from "effect/Schema"
import * as TestClock from "effect/testing/TestClock"
import * as Tracer from "effect/Tracer"
import { Executor, Message, Tool, ToolRunner } from "heddle"
import { elapsed } from "../support/runs.ts"
import * as Tools from "../support/tools.ts"

const call = Message.toolCall

const calling = (...names: ReadonlyArray<string>) => names.map((name, index) => call(`c${index}`, name))

const recording = () => {
  const spans: Array<Tracer.Span> = []
  const tracer = Tracer.make({
    span: (options) => {
      const span = new Tracer.NativeSpan(options)
      spans.push(span)
      return span
    }
  })
  return { spans, provide: Effect.withTracer(tracer) }
}

/** How long a span lasted, in milliseconds, when it ended, and how. */
const ending = (span: Tracer.Span | undefined) => {
  if (span?.status._tag !== "Ended") throw new Error("the span has not ended")
  const { startTime, endTime, exit } = span.status
  return { millis: Number(endTime - startTime) / 1e6, endTime, exit }
}

const outcomes = (spans: ReadonlyArray<Tracer.Span>) => spans.map((span) => span.attributes.get("heddle.outcome"))

describe("ToolRunner: telemetry", () => {
  it.effect("R-080: each call has one span with its name, its attributes and its own duration", () =>
    Effect.gen(function*() {
      const { spans, provide } = recording()
      const calls = calling("slow", "echo", "slow")
      const options = { requestId: "r1", stepIndex: 2, maxConcurrency: 2 }
      yield* provide(elapsed(ToolRunner.run(calls, [Tools.slow(60), Tools.echo], options)))
      assert.deepStrictEqual(spans.map(({ name }) => name), [
        "execute_tool slow",
        "execute_tool echo",
        "execute_tool slow"
      ])
      assert.deepStrictEqual(spans.map(ending).map(({ millis }) => millis), [60, 0, 60])
      assert.deepStrictEqual(Object.fromEntries(spans[0]?.attributes ?? []), {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "slow",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c0",
        "heddle.request.id": "r1",
        "heddle.step.index": 2,
        "heddle.outcome": "ok"
      })
    }))

  it.effect("R-080: call spans are children of the caller's span, and parents of the handler's spans", () =>
    Effect.gen(function*() {
      const { spans, provide } = recording()
      const inner = Tool.make("inner", { parameters: {}, handler: () => Effect.withSpan(Effect.void, "fetch") })
      yield* provide(Effect.withSpan(ToolRunner.run(calling("inner", "inner"), [inner], { maxConcurrency: 1 }), "turn"))
      const parents = spans.map(({ name, parent }) => [name, Option.getOrUndefined(parent)?.spanId])
      const [turn, first, , second] = spans
      assert.deepStrictEqual(parents, [
        ["turn", undefined],
        ["execute_tool inner", turn?.spanId],
        ["fetch", first?.spanId],
        ["execute_tool inner", turn?.spanId],
        ["fetch", second?.spanId]
      ])
    }))

  it.effect("M-12, R-080, W-23: the span of a failed or crashed handler fails, and names the code and the outcome", () =>
    Effect.gen(function*() {
      const { spans, provide } = recording()
      const tools = [Tools.echo, Tools.fail, Tools.boom, Tools.weird, Tools.ask, Tools.stop1]
      yield* provide(ToolRunner.run(tools.map((tool) => call(tool.name, tool.name)), tools))
      assert.deepStrictEqual(
        spans.filter((span) => Exit.isFailure(ending(span).exit)).map((span) => [
          span.name,
          span.attributes.get("error.type")
        ]),
        [
          ["execute_tool fail", "tool_error"],
          ["execute_tool boom", "handler_raised"],
          ["execute_tool weird", "invalid_return"]
        ]
      )
      assert.deepStrictEqual(outcomes(spans), ["ok", "error", "error", "error", "ask_user", "halt"])
      const odd = recording()
      yield* odd.provide(ToolRunner.run(calling("echo"), [Tools.echo])).pipe(
        Effect.provide(Executor.layer({ execute: (() => Effect.succeed("odd")) as never }))
      )
      assert.deepStrictEqual(outcomes(odd.spans), ["invalid"])
    }))

  it.effect("R-080, R-081, O-09: the span of a timeout ends as a failure, once the handler has ended or is abandoned", () =>
    Effect.gen(function*() {
      const deaf = Tool.make("deaf", { parameters: {}, handler: () => Effect.uninterruptible(Effect.never) })
      for (const [tool, at, code] of [[Tools.slow(200), 50, "timeout"], [deaf, 5_050, "abandoned"]] as const) {
        const { spans, provide } = recording()
        yield* provide(elapsed(ToolRunner.run(calling(tool.name), [tool], { toolTimeout: 50 })))
        assert.strictEqual(spans.length, 1)
        const { millis, exit } = ending(spans[0])
        assert.strictEqual(millis, at)
        const error = Exit.isFailure(exit) ? Option.getOrUndefined(Exit.findErrorOption(exit)) : undefined
        assert.strictEqual(error, code)
        assert.deepStrictEqual(outcomes(spans), [code])
      }
    }))

  it.effect("R-080: the span of a call excludes the time after its handler", () =>
    Effect.gen(function*() {
      const { spans, provide } = recording()
      const onToolError = (_call: Message.ToolCall, _error: unknown) =>
        Effect.as(Effect.sleep(500), Tool.ErrorDecision.continue("ok"))
      const { at } = yield* provide(elapsed(ToolRunner.run(calling("fail"), [Tools.fail], { onToolError })))
      assert.strictEqual(at, 500)
      assert.strictEqual(ending(spans[0]).millis, 0)
    }))

  it.effect("R-080: an interrupted run ends the spans of its handlers as interrupted", () =>
    Effect.gen(function*() {
      const { spans, provide } = recording()
      const fiber = yield* Effect.forkChild(provide(ToolRunner.run(calling("slow"), [Tools.slow(60)])), {
        startImmediately: true
      })
      yield* TestClock.adjust(10)
      yield* Fiber.interrupt(fiber)
      const { millis, exit } = ending(spans[0])
      assert.strictEqual(millis, 10)
      assert.isTrue(Exit.hasInterrupts(exit))
      assert.deepStrictEqual(outcomes(spans), ["interrupted"])
    }))

  it.effect("R-080, W-23: a call that does not run has a span of no length, with the reason", () =>
    Effect.gen(function*() {
      const { spans, provide } = recording()
      const denied = Tool.make("denied", {
        parameters: {},
        authorize: () => Effect.fail("a secret reason"),
        handler: () => Effect.void
      })
      const strict = Tool.make("strict", { parameters: { n: Schema.Finite }, handler: () => Effect.void })
      const lost: Message.ToolCall = { ...call("c3", "echo"), argumentsLost: "json_decode_error" }
      const calls = [...calling("ghost", "denied", "strict"), lost]
      yield* provide(ToolRunner.run(calls, [Tools.echo, denied, strict]))
      assert.deepStrictEqual(
        spans.map((span) => [span.name, span.attributes.get("error.type"), ending(span).millis, ending(span).exit]),
        [
          ["execute_tool _OTHER", "unknown_tool", 0, Exit.fail("unknown_tool")],
          ["execute_tool strict", "invalid_arguments", 0, Exit.fail("invalid_arguments")],
          ["execute_tool echo", "invalid_arguments", 0, Exit.fail("invalid_arguments")],
          ["execute_tool denied", "denied", 0, Exit.fail("denied")]
        ]
      )
    }))

  it.effect("R-080: a handler has a call span with a tracer or a span around the run, and otherwise none", () =>
    Effect.gen(function*() {
      const seen: Array<string | undefined> = []
      const look = Tool.make("look", {
        parameters: {},
        handler: () =>
          Effect.map(Effect.option(Effect.currentSpan), (span) => {
            seen.push(Option.getOrUndefined(span)?.name)
          })
      })
      const run = ToolRunner.run(calling("look"), [look])
      yield* run
      yield* Effect.withSpan(run, "around")
      yield* recording().provide(run)
      assert.deepStrictEqual(seen, [undefined, "execute_tool look", "execute_tool look"])
    }))

  it.effect("R-081: disabled tracing records nothing, and disabled timing records no time", () =>
    Effect.gen(function*() {
      const off = recording()
      yield* off.provide(Effect.withTracerEnabled(ToolRunner.run(calling("echo"), [Tools.echo]), false))
      assert.deepStrictEqual(off.spans, [])
      const untimed = recording()
      yield* TestClock.adjust(1_000)
      yield* untimed.provide(
        ToolRunner.run(calling("echo"), [Tools.echo]).pipe(Effect.provideService(References.TracerTimingEnabled, false))
      )
      assert.deepInclude(ending(untimed.spans[0]), { millis: 0, endTime: 0n })
    }))

  it.effect("the span of a handler that does not stop ends when the handler is abandoned", () =>
    Effect.gen(function*() {
      const { spans, provide } = recording()
      const deaf = Tool.make("deaf", { parameters: {}, handler: () => Effect.uninterruptible(Effect.never) })
      const program = Effect.gen(function*() {
        const run = yield* Effect.forkChild(ToolRunner.run(calling("deaf"), [deaf], { grace: 100 }))
        yield* TestClock.adjust(40)
        const stop = yield* Effect.forkChild(Fiber.interrupt(run))
        yield* TestClock.adjust(100)
        yield* Fiber.join(stop)
      })
      yield* provide(program)
      assert.deepStrictEqual(spans.map(ending).map(({ millis }) => millis), [140])
      assert.deepStrictEqual(outcomes(spans), ["abandoned"])
    }))
})
