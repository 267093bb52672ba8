/**
 * The identity of a run and its spans: one request id for the whole run, spans that nest and last as long as what they
 * tell of, and none that stays open.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Stream from "effect/Stream"
import * as Tracer from "effect/Tracer"
import { Chat, Step, Tool } from "heddle"
import { Script } from "heddle/testing"
import { chatOf, echo, overTime, start } from "../support/scenarios.ts"

const { delay, finish, text, toolCall } = Script

const callEcho = [toolCall("c0", "echo", { x: "private" }), finish("tool_calls")]
const done = [text("done"), finish("stop")]

/** A tracer that keeps its spans, in the order in which they were started and ended. */
const recording = () => {
  const spans: Array<Tracer.NativeSpan> = []
  const ended: Array<string> = []
  const tracer = Tracer.make({
    span: (options) => {
      const span = new Tracer.NativeSpan(options)
      const end = span.end.bind(span)
      span.end = (time, exit) => {
        ended.push(span.name)
        end(time, exit)
      }
      spans.push(span)
      return span
    }
  })
  const parentOf = (span: Tracer.NativeSpan) => {
    const parent = Option.getOrUndefined(span.parent)
    return parent?._tag === "Span" ? parent.name : undefined
  }
  const millis = (span: Tracer.NativeSpan) =>
    span.status._tag === "Ended" ? Number(span.status.endTime - span.status.startTime) / 1e6 : undefined
  return { tracer, spans, ended, parentOf, millis }
}

describe("Chat: request id", () => {
  it.effect("R-201: a run makes one id of 22 URL-safe characters, which reaches every step and handler", () =>
    Effect.gen(function*() {
      const seen: Array<string | null> = []
      const spy = Tool.make("echo", {
        parameters: { type: "object" },
        handler: (_args, call) => Effect.sync(() => void seen.push(call.requestId))
      })
      const model = yield* Script.make([callEcho, callEcho, done])
      const result = yield* Effect.provide(Chat.run(start, { tools: [spy] }), model.layer)
      const [id] = seen
      assert.match(id!, /^[A-Za-z0-9_-]{22}$/)
      assert.deepStrictEqual(seen, [id, id])
      assert.deepStrictEqual(result.steps.map((step) => step.response.requestId), [id, id, id])
    }))

  it.effect("R-201: two runs have two ids, and a given id is kept", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([done, done, done])
      const idOf = (options: Chat.Options) =>
        Effect.map(Effect.provide(Chat.run(start, options), model.layer), (result) => result.finalResponse?.requestId)
      assert.notStrictEqual(yield* idOf({}), yield* idOf({}))
      assert.strictEqual(yield* idOf({ requestId: "mine" }), "mine")
    }))

  it.effect("R-201: no event carries the request id", () =>
    Effect.gen(function*() {
      const { events } = yield* chatOf([callEcho, done], { tools: [echo] })
      for (const event of events) assert.notProperty(event, "requestId")
    }))
})

describe("Chat: spans", () => {
  it.effect("R-201, R-202: the chat span holds the steps, steps hold the tools, and all carry the request id", () =>
    Effect.gen(function*() {
      const { ended, parentOf, spans, tracer } = recording()
      const model = yield* Script.make([callEcho, done])
      yield* Chat.run(start, { tools: [echo], requestId: "r" }).pipe(
        Effect.provide(model.layer),
        Effect.withTracer(tracer)
      )
      assert.deepStrictEqual(spans.map((span) => [span.name, parentOf(span)]), [
        ["invoke_agent", undefined],
        ["heddle.step", "invoke_agent"],
        ["chat", "heddle.step"],
        ["execute_tool echo", "heddle.step"],
        ["heddle.step", "invoke_agent"],
        ["chat", "heddle.step"]
      ])
      const own = spans.filter(({ name }) => name !== "chat")
      assert.deepStrictEqual(own.map((span) => span.attributes.get("heddle.request.id")), ["r", "r", "r", "r"])
      assert.deepStrictEqual(own.map((span) => span.attributes.get("heddle.step.index")), [undefined, 0, 0, 1])
      assert.deepStrictEqual(ended, [
        "chat",
        "execute_tool echo",
        "heddle.step",
        "chat",
        "heddle.step",
        "invoke_agent"
      ])
    }))

  it.effect("R-202: no span carries arguments or results", () =>
    Effect.gen(function*() {
      const { spans, tracer } = recording()
      const model = yield* Script.make([callEcho, done])
      yield* Chat.run(start, { tools: [echo] }).pipe(Effect.provide(model.layer), Effect.withTracer(tracer))
      for (const span of spans) assert.notInclude(JSON.stringify([...span.attributes]), "private")
    }))

  it.effect("R-203: a span lasts as long as its operation is read", () =>
    Effect.gen(function*() {
      const { millis, spans, tracer } = recording()
      const model = yield* Script.make([[text("a"), delay(200), finish("stop")]])
      const stream = Chat.stream(start).pipe(
        Stream.tap((event) => event._tag === "StepCompleted" ? Effect.sleep(1000) : Effect.void)
      )
      yield* overTime(Stream.runDrain(stream).pipe(Effect.provide(model.layer), Effect.withTracer(tracer)))
      assert.deepStrictEqual(spans.map((span) => [span.name, millis(span)]), [
        ["invoke_agent", 1200],
        ["heddle.step", 200],
        ["chat", 200]
      ])
    }))

  it.effect("R-203: leaving the stream ends every span, the tool spans first and the run span last", () =>
    Effect.gen(function*() {
      const { ended, spans, tracer } = recording()
      const model = yield* Script.make([[toolCall("c0", "wait"), finish("tool_calls")]])
      const wait = Tool.make("wait", { parameters: {}, handler: () => Effect.never })
      yield* Chat.stream(start, { tools: [wait] }).pipe(
        Stream.takeUntil((event) => event._tag === "ToolExecutionStarted"),
        Stream.runDrain,
        Effect.provide(model.layer),
        Effect.withTracer(tracer)
      )
      assert.deepStrictEqual(spans.map((span) => span.status._tag), ["Ended", "Ended", "Ended", "Ended"])
      assert.deepStrictEqual(ended, ["chat", "execute_tool wait", "heddle.step", "invoke_agent"])
    }))

  it.effect("R-203: a failed run ends its spans, whatever the cause", () =>
    Effect.gen(function*() {
      const breaks: ReadonlyArray<Script.Input> = [
        [[Script.preflightError("timeout")]],
        [[text("a"), Script.streamError("timeout")]],
        [callEcho]
      ]
      for (const input of breaks) {
        const { spans, tracer } = recording()
        const model = yield* Script.make(input)
        yield* Effect.exit(
          Chat.run(start, { tools: [echo] }).pipe(Effect.provide(model.layer), Effect.withTracer(tracer))
        )
        assert.isAbove(spans.length, 1)
        for (const span of spans) assert.strictEqual(span.status._tag, "Ended", span.name)
      }
    }))

  it.effect("R-202: the spans of a single step nest in an invoke_agent span below the caller's span", () =>
    Effect.gen(function*() {
      const { parentOf, spans, tracer } = recording()
      const model = yield* Script.make(callEcho)
      const exit = yield* Step.run(start, { tools: [echo] }).pipe(
        Effect.provide(model.layer),
        Effect.withTracer(tracer),
        Effect.withSpan("mine"),
        Effect.exit
      )
      assert.isTrue(Exit.isSuccess(exit))
      assert.deepStrictEqual(spans.map((span) => [span.name, parentOf(span)]), [
        ["invoke_agent", "mine"],
        ["heddle.step", "invoke_agent"],
        ["chat", "heddle.step"],
        ["execute_tool echo", "heddle.step"]
      ])
    }))
})
