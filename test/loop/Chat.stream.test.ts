/**
 * Reading a run as it happens: nothing is done before it is pulled, least of all the next model call, and leaving the
 * stream closes the connection and stops the tools, each once.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Chat, Collector, type Event, Message, Tool } from "heddle"
import { Recorder, Script } from "heddle/testing"
import { deepFreeze } from "../support/frozen.ts"
import { chatOf, echo, only, overTime, start, tags } from "../support/scenarios.ts"

const { delay, finish, text, toolCall } = Script

const callEcho = [toolCall("c0", "echo", { x: 1 }), finish("tool_calls")]
const done = [text("done"), finish("stop")]
const scripts = [callEcho, done]

/** What a reader saw who left at an event, and the model it left. */
const until = (
  input: Script.Input,
  isLast: (event: Event.Event) => boolean,
  options: Chat.Options<ReadonlyArray<Tool.Tool<string, any, any, any, never>>> = { tools: [echo] }
) =>
  Effect.gen(function*() {
    const model = yield* Script.make(input)
    const events = yield* Chat.stream(start, options).pipe(
      Stream.takeUntil(isLast),
      Stream.runCollect,
      Effect.provide(model.layer)
    )
    const fold = Collector.applyAll(Collector.initial({ thread: start }), events)
    return { model, events, result: Collector.toChatResult(fold) }
  })

/** Never ends, and says in the recorder that it was stopped. */
const forever = (recorder: Recorder.Recorder) =>
  Tool.make("forever", { parameters: {}, handler: recorder.handler(() => Effect.never) })

describe("Chat.stream: cold", () => {
  it.effect("a reader and an observer may freeze every event they receive, and the run continues", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([callEcho, callEcho, callEcho, done])
      const events = yield* Chat.stream(start, { tools: [echo], onEvent: (event) => void deepFreeze(event) }).pipe(
        Stream.map(deepFreeze),
        Stream.runCollect,
        Effect.provide(model.layer)
      )
      const { thread } = Collector.toChatResult(Collector.applyAll(Collector.initial({ thread: start }), events))
      assert.deepStrictEqual(thread.messages.map(({ role }) => role[0]).join(""), "uatatata")
    }))

  it.effect("R-125, R-188: a stream makes no model request before its first pull", () =>
    Effect.gen(function*() {
      const model = yield* Script.make(scripts)
      const stream = Chat.stream(start, { tools: [echo] }).pipe(Stream.provide(model.layer))
      assert.strictEqual(yield* model.opens, 0)
      yield* Stream.runHead(stream)
      assert.strictEqual(yield* model.opens, 1)
    }))

  it.effect("R-205: the next model call is made when the reader goes past StepCompleted, and not before", () =>
    Effect.gen(function*() {
      const model = yield* Script.make(scripts)
      const opens: Array<readonly [string, number]> = []
      yield* Chat.stream(start, { tools: [echo] }).pipe(
        Stream.runForEach((event) => Effect.map(model.opens, (count) => void opens.push([event._tag, count]))),
        Effect.provide(model.layer)
      )
      assert.deepStrictEqual(opens.filter(([tag]) => tag === "StepCompleted"), [["StepCompleted", 1], [
        "StepCompleted",
        2
      ]])
    }))

  it.effect("R-205: halt_when is not asked before the next pull after StepCompleted", () =>
    Effect.gen(function*() {
      let asked = 0
      const haltWhen = () => {
        asked++
        return true
      }
      yield* until(scripts, (event) => event._tag === "StepCompleted", { tools: [echo], haltWhen })
      assert.strictEqual(asked, 0)
    }))

  it.effect("R-186: every event of a step comes before every event of the next step", () =>
    Effect.gen(function*() {
      const { events } = yield* chatOf([callEcho, callEcho, done], { tools: [echo] })
      const turns = tags(events).join(" ").split("StepCompleted").map((turn) => turn.trim())
      assert.strictEqual(turns.length, 4)
      assert.strictEqual(turns.at(-1), "ChatCompleted")
      for (const turn of turns.slice(0, 3)) assert.isTrue(turn.startsWith("MessageStarted"))
    }))

  it.effect("running one stream twice makes two runs", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([...scripts, ...scripts])
      const stream = Chat.stream(start, { tools: [echo] }).pipe(Stream.provide(model.layer))
      const first = tags(yield* Stream.runCollect(stream))
      assert.deepStrictEqual(tags(yield* Stream.runCollect(stream)), first)
      assert.strictEqual(yield* model.opens, 4)
    }))
})

describe("Chat.stream: leaving", () => {
  it.effect("C-23, R-188, R-189, R-205: a reader leaving at the first StepCompleted causes no further request, and the fold is cancelled", () =>
    Effect.gen(function*() {
      const { events, model, result } = yield* until(scripts, (event) => event._tag === "StepCompleted")
      assert.strictEqual(yield* model.opens, 1)
      assert.strictEqual(yield* model.cleanups, 1)
      assert.isEmpty(only(events, "ChatCompleted"))
      assert.deepStrictEqual(result.outcome, { _tag: "Cancelled", reason: "interrupt" })
      assert.strictEqual(result.haltedReason, "cancelled")
      assert.strictEqual(result.steps.length, 1)
    }))

  it.effect("C-24, R-188, R-189: leaving within the text of turn 2 closes its connection, and the last whole step counts", () =>
    Effect.gen(function*() {
      const input = { scripts: [callEcho, [text("a"), text("b"), finish("stop")]], chunkSize: 1 }
      const { model, result } = yield* until(input, (event) => event._tag === "TextDelta")
      assert.strictEqual(yield* model.opens, 2)
      assert.strictEqual(yield* model.cleanups, 2)
      assert.strictEqual(result.steps.length, 1)
      assert.deepStrictEqual(result.finalResponse, result.steps[0]?.response)
      assert.strictEqual(result.haltedReason, "cancelled")
    }))

  it.effect("R-189: a stream left after an error folds to that error", () =>
    Effect.gen(function*() {
      const { result } = yield* until([[text("a"), Script.error("timeout")]], (event) => event._tag === "Error")
      assert.strictEqual(result.haltedReason, "error")
    }))

  it.effect("R-188: leaving during the tools of a later turn stops each handler once, and no handler stays alive", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const tools = [echo, forever(recorder)]
      const two = [toolCall("a", "forever"), toolCall("b", "forever"), finish("tool_calls")]
      const isSecondStart = (event: Event.Event) => event._tag === "ToolExecutionStarted" && event.id === "b"
      const { model } = yield* until([callEcho, two], isSecondStart, { tools })
      assert.deepStrictEqual(yield* recorder.counts(), {
        starts: 2,
        live: 0,
        peak: 2,
        ends: 0,
        interrupts: 2,
        finalizers: 2
      })
      assert.strictEqual(yield* model.cleanups, 2)
      assert.strictEqual(yield* Clock.currentTimeMillis, 0, "they stop at once")
    }))

  it.effect("R-188: interrupting an awaited run stops its handlers and closes its connection", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const model = yield* Script.make([[toolCall("a", "forever"), finish("tool_calls")]])
      const fiber = yield* Effect.forkChild(
        Effect.provide(Chat.run(start, { tools: [forever(recorder)] }), model.layer)
      )
      yield* recorder.started("forever")
      yield* Fiber.interrupt(fiber)
      assert.deepInclude(yield* recorder.counts(), { starts: 1, live: 0, interrupts: 1, finalizers: 1 })
      assert.strictEqual(yield* model.cleanups, 1)
    }))

  it.effect("R-188: leaving closes the connection, then the handler, then the reader", () =>
    Effect.gen(function*() {
      const order: Array<string> = []
      const note = (name: string) => Effect.sync(() => void order.push(name))
      const started: Event.AdapterEvent = {
        _tag: "ToolCallCompleted",
        id: "c0",
        name: "wait",
        arguments: {},
        rawArguments: "{}"
      }
      const adapter = Adapter.layer({ stream: () => Stream.ensuring(Stream.make(started), note("connection")) })
      const wait = Tool.make("wait", {
        parameters: {},
        handler: () => Effect.ensuring(Effect.andThen(note("handler starts"), Effect.never), note("handler"))
      })
      yield* Chat.stream(start, { tools: [wait] }).pipe(
        Stream.takeUntil((event) => event._tag === "ToolExecutionStarted"),
        Stream.runDrain,
        Effect.provide(adapter)
      )
      yield* note("reader")
      assert.deepStrictEqual(order, ["connection", "handler starts", "handler", "reader"])
    }))

  it.effect("a reader that ends by itself closes the connection of a model that still generates", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([[text("a"), delay("1 day"), finish("stop")]])
      yield* Chat.stream(start).pipe(Stream.take(1), Stream.runDrain, Effect.provide(model.layer))
      assert.strictEqual(yield* model.cleanups, 1)
    }))
})

describe("Chat.stream: time", () => {
  it.effect("a slow reader does not slow the tools down", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const wait = Tool.make("wait", {
        parameters: {},
        timeout: "50 millis",
        handler: recorder.handler(() => Effect.as(Effect.sleep("20 millis"), "in time"))
      })
      const model = yield* Script.make([[toolCall("c0", "wait"), finish("tool_calls")], done])
      const result = yield* overTime(
        Chat.stream(start, { tools: [wait] }).pipe(
          Stream.tap(() => Effect.sleep("100 millis")),
          Stream.runLast,
          Effect.provide(model.layer)
        )
      )
      const last = result._tag === "Some" ? result.value : undefined
      if (last?._tag !== "ChatCompleted") throw new Error("the run must complete")
      assert.strictEqual(Message.text(last.result.thread.messages[2]!), "in time")
    }))

  it.effect("X-07: deltas, completed text and the thread have the same text", () =>
    Effect.gen(function*() {
      const { events, result } = yield* chatOf([[text("a"), text("b"), text("c"), finish("stop")]])
      const streamed = only(events, "TextDelta").map((event) => event.delta).join("")
      assert.strictEqual(streamed, only(events, "TextCompleted")[0]?.text)
      assert.strictEqual(streamed, result.thread.messages.at(-1)?.content)
    }))

  it.effect("the run waits at its end for a handler that outlives its timeout, and names a handler that refuses to stop", () =>
    Effect.gen(function*() {
      const stubborn = Tool.make("stubborn", {
        parameters: {},
        timeout: "10 millis",
        handler: () => Effect.uninterruptible(Effect.sleep("1 day"))
      })
      const model = yield* Script.make([[toolCall("c0", "stubborn"), finish("tool_calls")], done])
      const fiber = yield* Effect.forkChild(
        Effect.provide(Chat.run(start, { tools: [stubborn], grace: "1 second" }), model.layer),
        { startImmediately: true }
      )
      yield* TestClock.adjust("10 seconds")
      const result = yield* Fiber.join(fiber)
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "stop" })
      assert.deepStrictEqual(result.abandoned?.map(({ id, name }) => [id, name]), [["c0", "stubborn"]])
    }))
})
