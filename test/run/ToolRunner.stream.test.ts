/**
 * The events of a batch: which there are, in which order, and when; that nothing happens before the first pull and
 * nothing after the last.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { type Event, Message, Policy, Step, Tool, ToolRunner } from "heddle"
import { Recorder } from "heddle/testing"
import { defectOf, elapsed, only, watched } from "../support/runs.ts"
import * as Tools from "../support/tools.ts"

const { allm, standard } = Policy
const call = Message.toolCall

const calling = (...names: ReadonlyArray<string>) => names.map((name, index) => call(`c${index}`, name))

const grouped = { ...standard, toolEvents: "grouped" } as const
const inOrder = { ...standard, resultOrder: "request" } as const

const collect = (
  calls: Parameters<typeof ToolRunner.stream>[0],
  tools: ReadonlyArray<Tool.Any>,
  options: ToolRunner.Options = {}
) => Effect.map(watched(ToolRunner.stream(calls, tools, options)), ({ events }) => events)

describe("ToolRunner.stream: events of a call", () => {
  it.effect("T-01, R-101, R-105, R-106: a call emits its start, its completion with the raw result, and its encoded result", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* collect([call("c0", "echo", { x: 1 })], [Tools.echo]), [
        { _tag: "ToolExecutionStarted", id: "c0", name: "echo", arguments: { x: 1 } },
        { _tag: "ToolExecutionCompleted", id: "c0", name: "echo", result: { _tag: "Ok", value: { x: 1 } } },
        { _tag: "ToolResultEncoded", id: "c0", content: "{\"x\":1}" }
      ])
    }))

  it.effect("T-04, R-106: a question emits its raw result with its options, and AskUserRequested", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual((yield* collect(calling("ask"), [Tools.ask])).slice(1), [
        { _tag: "ToolExecutionCompleted", id: "c0", name: "ask", result: Tool.askUser("Which city?", []) },
        { _tag: "AskUserRequested", toolCallId: "c0", toolName: "ask", question: "Which city?", opts: [] }
      ])
      const [, , requested] = yield* collect(calling("askO"), [Tools.askO])
      assert.deepInclude(requested, { _tag: "AskUserRequested", opts: [{ kind: "pick" }] })
    }))

  it.effect("T-05, R-106, R-108: a halt emits its raw result, and ToolHalt with the encoded content", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual((yield* collect(calling("stop1"), [Tools.stop1])).slice(1), [
        { _tag: "ToolExecutionCompleted", id: "c0", name: "stop1", result: Tool.halt("done_early", { v: 1 }) },
        { _tag: "ToolHalt", toolCallId: "c0", reason: "done_early", result: { v: 1 }, content: "{\"v\":1}" }
      ])
    }))

  it.effect("T-06, R-106, R-107: a failure under halt ends in ToolHalt with the error, without ToolResultEncoded", () =>
    Effect.gen(function*() {
      const events = yield* collect(calling("boom"), [Tools.boom], { onToolError: "halt" })
      assert.deepStrictEqual(events.map((event) => event._tag), [
        "ToolExecutionStarted",
        "ToolExecutionCompleted",
        "ToolHalt"
      ])
      const { result } = only(events, "ToolExecutionCompleted")
      const error = result._tag === "Error" ? result.error : undefined
      assert.deepInclude(error, { _tag: "ToolError", reason: "handler_raised" })
      assert.deepStrictEqual(only(events, "ToolHalt"), {
        _tag: "ToolHalt",
        toolCallId: "c0",
        reason: "tool_error",
        result: error,
        content: "{\"error\":\"tool error (boom): handler_raised\",\"code\":\"handler_raised\"}",
        code: "handler_raised"
      })
    }))

  it.effect("R-106: a reported failure is emitted as reported, and a replacement as the result", () =>
    Effect.gen(function*() {
      const failed = only(yield* collect(calling("fail"), [Tools.fail]), "ToolExecutionCompleted")
      assert.deepStrictEqual(failed.result, { _tag: "Error", error: Tools.notFound })
      const onToolError = (_call: Message.ToolCall, _error: unknown) => Effect.succeed(Tool.ErrorDecision.continue([1]))
      const replaced = only(yield* collect(calling("fail"), [Tools.fail], { onToolError }), "ToolExecutionCompleted")
      assert.deepStrictEqual(replaced.result, { _tag: "Ok", value: [1] })
    }))

  it.effect("T-08, R-109: a timeout is emitted when its time is up, as a failure without a tag of its own", () =>
    Effect.gen(function*() {
      const { line, at, events } = yield* watched(
        ToolRunner.stream(calling("slow"), [Tools.slow(200)], { toolTimeout: 50 })
      )
      assert.deepStrictEqual(line, [
        [0, "ToolExecutionStarted", "c0"],
        [50, "ToolExecutionCompleted", "c0"],
        [50, "ToolResultEncoded", "c0"]
      ])
      assert.strictEqual(at, 50)
      const { result } = only(events, "ToolExecutionCompleted")
      assert.deepInclude(result._tag === "Error" ? result.error : undefined, { _tag: "ToolError", reason: "timeout" })
    }))

  it.effect("T-07, R-100: under allm an unknown tool name emits exactly one error event, and no call runs", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const echo = Tool.make("echo", { parameters: {}, handler: recorder.handler(() => Effect.void) })
      const events = yield* collect(calling("echo", "ghost"), [echo], { policy: allm })
      assert.strictEqual(events.length, 1)
      const { error } = only(events, "Error")
      assert.instanceOf(error, Step.EngineError)
      assert.deepInclude(error, { reason: "unknown_tool" })
      assert.strictEqual((yield* recorder.counts()).starts, 0)
    }))

  it.effect("R-100: a stream without calls emits nothing, and an unusable option is a defect of the stream", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* collect([], [Tools.echo]), [])
      const defect = yield* defectOf(Stream.runDrain(ToolRunner.stream([], [], { maxConcurrency: 0 })))
      assert.include(defect.message, "maxConcurrency")
    }))

  it.effect("R-100: by default a call of an unknown tool is answered without a start", () =>
    Effect.gen(function*() {
      const events = yield* collect(calling("ghost"), [Tools.echo])
      assert.deepStrictEqual(events.map((event) => event._tag), ["ToolExecutionCompleted", "ToolResultEncoded"])
    }))
})

describe("ToolRunner.stream: order", () => {
  const calls = calling("slow", "echo")
  const tools = [Tools.slow(60), Tools.echo]

  it.effect("T-02, R-102: call groups come as calls complete, and the events of each call in order", () =>
    Effect.gen(function*() {
      const { line } = yield* watched(ToolRunner.stream(calls, tools))
      assert.deepStrictEqual(line, [
        [0, "ToolExecutionStarted", "c0"],
        [0, "ToolExecutionStarted", "c1"],
        [0, "ToolExecutionCompleted", "c1"],
        [0, "ToolResultEncoded", "c1"],
        [60, "ToolExecutionCompleted", "c0"],
        [60, "ToolResultEncoded", "c0"]
      ])
    }))

  it.effect("T-03, R-102: in request order results wait for the results of earlier calls, and starts do not wait", () =>
    Effect.gen(function*() {
      const three = calling("slow", "echo", "mid")
      const { line } = yield* watched(
        ToolRunner.stream(three, [...tools, Tools.slow(20, "mid")], { policy: inOrder })
      )
      assert.deepStrictEqual(line, [
        [0, "ToolExecutionStarted", "c0"],
        [0, "ToolExecutionStarted", "c1"],
        [0, "ToolExecutionStarted", "c2"],
        [60, "ToolExecutionCompleted", "c0"],
        [60, "ToolResultEncoded", "c0"],
        [60, "ToolExecutionCompleted", "c1"],
        [60, "ToolResultEncoded", "c1"],
        [60, "ToolExecutionCompleted", "c2"],
        [60, "ToolResultEncoded", "c2"]
      ])
    }))

  it.effect("T-11, R-103: a start is emitted when it happens", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const stream = ToolRunner.stream(calling("slow"), [Tools.slow(60)])
      const fiber = yield* Effect.forkChild(Stream.runDrain(recorder.tap(stream)), { startImmediately: true })
      assert.deepStrictEqual(yield* recorder.timeline, [[0, "ToolExecutionStarted"]])
      yield* TestClock.adjust(60)
      yield* Fiber.join(fiber)
      assert.deepStrictEqual(yield* recorder.at("ToolResultEncoded"), [60])
    }))

  it.effect("T-11, R-101, R-103: under grouped events, as in allm, the events of each call are adjacent", () =>
    Effect.gen(function*() {
      const trio = (at: number, id: string) =>
        (["ToolExecutionStarted", "ToolExecutionCompleted", "ToolResultEncoded"] as const).map((tag) =>
          [at, tag, id] as const
        )
      for (const policy of [grouped, allm]) {
        const { line } = yield* watched(ToolRunner.stream(calls, tools, { policy }))
        assert.deepStrictEqual(line, [...trio(0, "c1"), ...trio(60, "c0")])
      }
      const ordered = { ...grouped, resultOrder: "request" } as const
      const { line } = yield* watched(ToolRunner.stream(calls, tools, { policy: ordered }))
      assert.deepStrictEqual(line, [...trio(60, "c0"), ...trio(60, "c1")])
    }))

  it.effect("R-112: a handler does not hold up the events of other calls", () =>
    Effect.gen(function*() {
      const many = Array.from({ length: 5 }, (_, index) => Tools.slow(10 * (5 - index), `t${index}`))
      const { line } = yield* watched(
        ToolRunner.stream(calling(...many.map(({ name }) => name)), many, { maxConcurrency: 8 })
      )
      const encoded = line.flatMap(([at, tag, id]) => tag === "ToolResultEncoded" ? [[at, id]] : [])
      assert.deepStrictEqual(encoded, [[10, "c4"], [20, "c3"], [30, "c2"], [40, "c1"], [50, "c0"]])
    }))

  it.effect("R-112: events from the time that a reader was away come in one array", () =>
    Effect.gen(function*() {
      const sizes: Array<number> = []
      const stream = Stream.mapArray(ToolRunner.stream(calling("echo", "echo", "echo"), [Tools.echo]), (events) => {
        sizes.push(events.length)
        return events
      })
      yield* Stream.runDrain(stream)
      assert.deepStrictEqual(sizes, [9])
    }))
})

describe("ToolRunner.stream: reading", () => {
  it.effect("T-09, R-104: an opened stream without a pull starts no handler and decodes no arguments", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const echo: Tool.Any = {
        ...Tools.echo,
        parameters: { jsonSchema: {}, decode: () => recorder.track("decode")(Effect.succeed({})) },
        handler: recorder.handler(() => Effect.void)
      }
      const scope = yield* Scope.make()
      const pull = yield* Stream.toPull(ToolRunner.stream(calling("echo"), [echo])).pipe(Scope.provide(scope))
      yield* TestClock.adjust("1 minute")
      assert.strictEqual((yield* recorder.counts()).starts, 0)
      yield* pull
      assert.strictEqual((yield* recorder.counts()).starts, 2)
      yield* Scope.close(scope, Exit.void)
    }))

  it.effect("T-10, R-111: leaving after one event interrupts the handler, and its finalizer runs once", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const slow = Tool.make("slow", {
        parameters: {},
        handler: recorder.handler(() => Effect.andThen(Effect.addFinalizer(() => Effect.sleep(5)), Effect.sleep(1_000)))
      })
      const seen: Array<Event.Event> = []
      const stream = ToolRunner.stream(calling("slow", "slow"), [slow], { maxConcurrency: 1 })
      const { at } = yield* elapsed(
        Stream.runForEach(Stream.take(stream, 1), (event) => Effect.sync(() => seen.push(event)))
      )
      assert.strictEqual(at, 5)
      assert.deepStrictEqual(seen.map((event) => event._tag), ["ToolExecutionStarted"])
      assert.deepInclude(yield* recorder.counts("slow"), { starts: 1, interrupts: 1, finalizers: 1, live: 0 })
    }))

  it.effect("R-111: a stream run twice runs its calls twice", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const echo = Tool.make("echo", { parameters: {}, handler: recorder.handler(() => Effect.succeed("ok")) })
      const stream = ToolRunner.stream(calling("echo"), [echo])
      assert.deepStrictEqual(yield* Stream.runCollect(stream), yield* Stream.runCollect(stream))
      assert.strictEqual((yield* recorder.counts()).starts, 2)
    }))

  it.effect("R-075: a decision to fail is the failure of the stream, after the earlier events", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const onToolError = (_call: Message.ToolCall, _error: unknown) =>
        Effect.succeed(Tool.ErrorDecision.fail("fatal" as const))
      const stream = ToolRunner.stream(calling("echo", "boom", "echo"), [Tools.echo, Tools.boom], {
        onToolError,
        maxConcurrency: 1
      })
      assert.strictEqual(yield* Effect.flip(Stream.runDrain(recorder.tap(stream))), "fatal")
      assert.deepStrictEqual((yield* recorder.timeline).map(([, tag]) => tag), [
        "ToolExecutionStarted",
        "ToolExecutionCompleted",
        "ToolResultEncoded",
        "ToolExecutionStarted"
      ])
    }))
})
