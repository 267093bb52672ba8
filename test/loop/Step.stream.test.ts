/**
 * The events of a step: their order, what filters hide and observers see, that nothing runs before the first pull, and
 * that leaving the stream stops everything.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Collector, type Event, Message, Policy, Response, Step, Tool } from "heddle"
import { Recorder, Script } from "heddle/testing"
import { anything, boom, echo, only, slow, start, stepOf, type StepOptions, tags } from "../support/scenarios.ts"

const { finish, rawChunk, text, toolCall, toolCallDelta } = Script

const collect = (input: Script.Input, options: StepOptions) =>
  Effect.flatMap(
    Script.make(input),
    (model) => Effect.provide(Stream.runCollect(Step.stream(start, options)), model.layer)
  )

const done: Event.AdapterEvent = {
  _tag: "MessageCompleted",
  message: Message.assistant(""),
  finishReason: "tool_calls"
}

const scripted = (...events: ReadonlyArray<Event.AdapterEvent>): Stream.Stream<Event.AdapterEvent> =>
  Stream.fromIterable(events)

/** A step over a stream of one's own. */
const over = (stream: () => Stream.Stream<Event.AdapterEvent, Adapter.AdapterError>, options: StepOptions = {}) =>
  Stream.runCollect(Step.stream(start, options)).pipe(Effect.provide(Adapter.layer({ stream })))

const calledEcho: Event.AdapterEvent = {
  _tag: "ToolCallCompleted",
  id: "c0",
  name: "echo",
  arguments: {},
  rawArguments: "{}"
}

describe("Step: event order", () => {
  it.effect("R-126, R-128: a step emits the adapter's events, then the events of each call, then one StepCompleted", () =>
    Effect.gen(function*() {
      const { events } = yield* stepOf([text("a"), toolCall("c0", "echo"), finish("tool_calls")], { tools: [echo] })
      assert.deepStrictEqual(tags(events), [
        "MessageStarted",
        "TextDelta",
        "ToolCallStarted",
        "ToolCallCompleted",
        "TextCompleted",
        "MessageCompleted",
        "ToolExecutionStarted",
        "ToolExecutionCompleted",
        "ToolResultEncoded",
        "StepCompleted"
      ])
    }))

  it.effect("P-08, R-127: events that an adapter emits after its message precede the events of every tool", () =>
    Effect.gen(function*() {
      const late: Event.AdapterEvent = { _tag: "RawChunk", chunk: { late: true } }
      const events = yield* over(() => scripted(calledEcho, done, late), { tools: [echo], includeRawChunks: true })
      assert.deepStrictEqual(tags(events), [
        "ToolCallCompleted",
        "MessageCompleted",
        "RawChunk",
        "ToolExecutionStarted",
        "ToolExecutionCompleted",
        "ToolResultEncoded",
        "StepCompleted"
      ])
    }))

  it.effect("R-127: a call that arrives after the end of the message runs like any other call", () =>
    Effect.gen(function*() {
      const events = yield* over(() => scripted(done, calledEcho), { tools: [echo] })
      assert.deepStrictEqual(only(events, "ToolResultEncoded").map((event) => event.id), ["c0"])
    }))

  it.effect("an adapter that emits nothing gives an empty message and one StepCompleted", () =>
    Effect.gen(function*() {
      const events = yield* over(() => Stream.empty)
      assert.deepStrictEqual(tags(events), ["StepCompleted"])
      const [event] = only(events, "StepCompleted")
      assert.isTrue(event?.done)
      assert.deepStrictEqual(event?.thread.messages[1], {
        role: "assistant",
        content: "",
        finishReason: null,
        metadata: {}
      })
    }))

  it.effect("chunks whose events are all hidden do not reach the reader as empty chunks", () =>
    Effect.gen(function*() {
      const model = yield* Script.make({ script: [text("a"), text("b"), rawChunk(1), finish("stop")], chunkSize: 1 })
      const sizes = yield* Step.stream(start, { emitTextDeltas: false }).pipe(
        Stream.chunks,
        Stream.map((chunk) => chunk.length),
        Stream.runCollect,
        Effect.provide(model.layer)
      )
      assert.deepStrictEqual(sizes, [1, 1, 1, 1])
    }))
})

describe("Step: filters and observers", () => {
  const reply = [text("a"), text("b"), finish("stop")]

  it.effect("P-09, R-129, R-130: hiding text deltas leaves the completed text and the response whole", () =>
    Effect.gen(function*() {
      const { events, step } = yield* stepOf(reply, { emitTextDeltas: false })
      assert.deepStrictEqual(tags(events), ["MessageStarted", "TextCompleted", "MessageCompleted", "StepCompleted"])
      assert.strictEqual(only(events, "TextCompleted")[0]?.text, "ab")
      assert.strictEqual(step.response.outputText, "ab")
    }))

  it.effect("R-129: hiding argument fragments changes neither the calls nor the order of their answers", () =>
    Effect.gen(function*() {
      const late = slow("late", 30)
      const name = (id: string, tool: string) => Script.event({ _tag: "ToolCallStarted", id, name: tool })
      const script = [
        toolCallDelta("a", "{\"x\":1}"),
        toolCallDelta("b", "{\"x\":2}"),
        name("a", "late"),
        name("b", "echo"),
        finish("tool_calls")
      ]
      const shown = yield* stepOf(script, { tools: [late, echo] })
      const hidden = yield* stepOf(script, { tools: [late, echo], emitToolDeltas: false })
      assert.isEmpty(only(hidden.events, "ToolCallDelta"))
      assert.strictEqual(only(shown.events, "ToolCallDelta").length, 2)
      assert.deepStrictEqual(hidden.step, shown.step)
      assert.deepStrictEqual(hidden.step.toolResults.map((message) => message.toolCallId), ["a", "b"])
    }))

  it.effect("R-129: hiding the fragments of calls without other events leaves the result unchanged", () =>
    Effect.gen(function*() {
      const script = [toolCallDelta("a", "{}"), toolCallDelta("b", "{}"), finish("tool_calls")]
      const nameless = Tool.make("named", { parameters: {} })
      const shown = yield* stepOf(script, { tools: [nameless] })
      const hidden = yield* stepOf(script, { tools: [nameless], emitToolDeltas: false })
      assert.deepStrictEqual(hidden.step, shown.step)
    }))

  it.effect("P-10, R-129, R-300: raw chunks without usage are hidden, and usage is in the response either way", () =>
    Effect.gen(function*() {
      const script = [
        rawChunk({ a: 1 }),
        rawChunk({ usage: { inputTokens: 5 } }),
        rawChunk({ usage: 5 }),
        finish("stop")
      ]
      const { events, step } = yield* stepOf(script)
      assert.deepStrictEqual(only(events, "RawChunk").map((event) => event.chunk), [{ usage: { inputTokens: 5 } }])
      assert.deepStrictEqual(step.response.usage, Response.usage({ inputTokens: 5 }))
      const all = yield* stepOf(script, { includeRawChunks: true })
      assert.strictEqual(only(all.events, "RawChunk").length, 3)
      assert.deepStrictEqual(all.step, step)
    }))

  it.effect("P-21, R-129, R-131: the observer sees every event of every kind before the filters, in order", () =>
    Effect.gen(function*() {
      const script = [text("a"), rawChunk(1), toolCallDelta("c0", "{}"), toolCall("c1", "echo"), finish("tool_calls")]
      const all = yield* collect(script, { tools: [echo], includeRawChunks: true })
      for (const isFiltered of [false, true]) {
        const seen: Array<string> = []
        const filters = isFiltered ? { emitTextDeltas: false, emitToolDeltas: false } : { includeRawChunks: true }
        yield* collect(script, { tools: [echo], ...filters, onEvent: (event) => void seen.push(event._tag) })
        assert.deepStrictEqual(seen, [...tags(all)])
      }
    }))

  it.effect("R-131: the run waits for the observer's effect at each event", () =>
    Effect.gen(function*() {
      const seen: Array<readonly [string, number]> = []
      const onEvent = (event: Event.Event) =>
        Effect.delay(
          Effect.map(Clock.currentTimeMillis, (now) => void seen.push([event._tag, now])),
          10
        )
      const fiber = yield* Effect.forkChild(collect([finish("stop")], { onEvent }), { startImmediately: true })
      yield* TestClock.adjust("1 second")
      yield* Fiber.join(fiber)
      assert.deepStrictEqual(seen, [["MessageStarted", 10], ["MessageCompleted", 20], ["StepCompleted", 30]])
    }))

  it.effect("R-131: an observer that throws is a defect of the step, which closes its connection", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([text("a"), finish("stop")])
      const onEvent = () => {
        throw new Error("observer")
      }
      const exit = yield* Effect.exit(Effect.provide(Step.run(start, { onEvent }), model.layer))
      assert.isTrue(Exit.hasDies(exit))
      assert.strictEqual(yield* model.cleanups, 1)
    }))
})

describe("Step: cold, and closed after the reader", () => {
  it.effect("R-125: a step makes no model request before the first pull", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([text("a"), finish("stop")])
      const stream = Step.stream(start).pipe(Stream.provide(model.layer))
      assert.strictEqual(yield* model.opens, 0)
      yield* Stream.runDrain(stream)
      assert.strictEqual(yield* model.opens, 1)
    }))

  it.effect("P-18, R-144: a reader that leaves during the reply closes the connection once and at once", () =>
    Effect.gen(function*() {
      const model = yield* Script.make({
        script: [text("a"), Script.delay("1 hour"), toolCall("c0", "echo"), finish("tool_calls")],
        chunkSize: 1
      })
      const recorder = yield* Recorder.make
      const spy = Tool.make("echo", { parameters: anything, handler: recorder.handler(() => Effect.succeed(1)) })
      const events = yield* Step.stream(start, { tools: [spy] }).pipe(
        Stream.take(2),
        Stream.runCollect,
        Effect.provide(model.layer)
      )
      assert.deepStrictEqual(tags(events), ["MessageStarted", "TextDelta"])
      assert.strictEqual(yield* model.cleanups, 1)
      assert.strictEqual(yield* Clock.currentTimeMillis, 0)
      assert.strictEqual((yield* recorder.counts()).starts, 0)
    }))

  it.effect("P-18, R-144: a reader interrupted while the model is silent closes the connection once", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([text("a"), Script.delay("1 hour"), finish("stop")])
      const fiber = yield* Effect.forkChild(Effect.provide(Step.run(start), model.layer), { startImmediately: true })
      yield* TestClock.adjust("1 second")
      yield* Fiber.interrupt(fiber)
      assert.strictEqual(yield* model.cleanups, 1)
    }))

  it.effect("P-19, R-144: a reader that leaves while tools run stops each handler once, after the connection was closed", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([toolCall("c0", "wait"), toolCall("c1", "wait"), finish("tool_calls")])
      const recorder = yield* Recorder.make
      const cleanups: Array<number> = []
      const wait = Tool.make("wait", {
        parameters: {},
        handler: recorder.handler(() =>
          Effect.andThen(Effect.map(model.cleanups, (count) => cleanups.push(count)), Effect.sleep("1 second"))
        )
      })
      const events = yield* Step.stream(start, { tools: [wait] }).pipe(
        Stream.takeUntil((event) => event._tag === "ToolExecutionStarted"),
        Stream.runCollect,
        Effect.provide(model.layer)
      )
      assert.strictEqual(events.at(-1)?._tag, "ToolExecutionStarted")
      assert.deepStrictEqual(cleanups, [1, 1], "the connection is closed before a tool starts")
      assert.deepStrictEqual(yield* recorder.counts(), {
        starts: 2,
        live: 0,
        peak: 2,
        ends: 0,
        interrupts: 2,
        finalizers: 2
      })
      assert.strictEqual(yield* model.cleanups, 1)
    }))

  it.effect("R-144: leaving at StepCompleted interrupts nothing, since all handlers have ended", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([toolCall("c0", "echo"), finish("tool_calls")])
      const recorder = yield* Recorder.make
      const spy = Tool.make("echo", { parameters: anything, handler: recorder.handler(() => Effect.succeed(1)) })
      yield* Step.stream(start, { tools: [spy] }).pipe(
        Stream.takeUntil((event) => event._tag === "StepCompleted"),
        Stream.runDrain,
        Effect.provide(model.layer)
      )
      assert.deepInclude(yield* recorder.counts(), { starts: 1, live: 0, ends: 1, interrupts: 0, finalizers: 1 })
      assert.strictEqual(yield* model.cleanups, 1)
    }))

  it.effect("R-144: a step closes its connection once when its adapter fails after the message", () =>
    Effect.gen(function*() {
      let closed = 0
      const close = Effect.sync(() => void closed++)
      const broken = new Adapter.AdapterError({ reason: "network_error" })
      const stream = () => Stream.ensuring(Stream.concat(scripted(calledEcho, done), Stream.fail(broken)), close)
      const events = yield* over(stream, { tools: [echo] })
      assert.deepStrictEqual(tags(events).slice(2, 3), ["Error"])
      assert.strictEqual(only(events, "Error")[0]?.error, broken)
      assert.strictEqual(closed, 1)
    }))
})

describe("Step: broken adapters", () => {
  it.effect("R-145: an adapter failure after the first event is an error of the reply, not of the step", () =>
    Effect.gen(function*() {
      const { events, step } = yield* stepOf([text("par"), Script.streamError("network_error")])
      assert.deepStrictEqual(tags(events), ["MessageStarted", "TextDelta", "Error", "StepCompleted"])
      assert.isTrue(step.done)
      assert.strictEqual(step.response.outputText, "par")
      assert.deepInclude(step.response.error, { reason: "network_error" })
    }))

  it.effect("R-145: calls made before an adapter failure are answered as errors and never start", () =>
    Effect.gen(function*() {
      const script = [toolCall("c0", "echo"), Script.streamError("network_error")]
      const { events, step } = yield* stepOf(script, { tools: [echo] })
      assert.isEmpty(only(events, "ToolExecutionStarted"))
      assert.deepStrictEqual(step.toolResults.map((message) => message.isError), [true])
    }))

  it.effect("M-04: an adapter defect fails the step before the first event and is an error of the reply after that event", () =>
    Effect.gen(function*() {
      for (const before of [[], [{ _tag: "MessageStarted", message: Message.assistant("") } as const]]) {
        let closed = 0
        const stream = () =>
          Stream.ensuring(
            Stream.concat(scripted(...before), Stream.die("bug")),
            Effect.sync(() => void closed++)
          )
        const exit = yield* Effect.exit(over(stream))
        if (Exit.isSuccess(exit)) {
          assert.deepStrictEqual(exit.value.map(({ _tag }) => _tag), ["MessageStarted", "Error", "StepCompleted"])
          assert.strictEqual(only(exit.value, "Error")[0]?.error, "bug")
        } else {
          assert.deepInclude(Cause.squash(exit.cause), { _tag: "AdapterError", reason: "unknown", cause: "bug" })
        }
        assert.strictEqual(Exit.isSuccess(exit), before.length > 0)
        assert.strictEqual(closed, 1)
      }
    }))

  it.effect("M-04: an adapter that throws instead of returning a stream fails the step", () =>
    Effect.gen(function*() {
      const bug = new Error("bug")
      const error = yield* Effect.flip(over(() => {
        throw bug
      }))
      assert.deepInclude(error, { _tag: "AdapterError", reason: "unknown", cause: bug })
    }))
})

describe("Step: a run and the fold of its stream", () => {
  const wait = slow("wait", 30)
  const tools = [echo, boom, wait]
  const fixtures: ReadonlyArray<readonly [string, Script.Input, StepOptions?]> = [
    ["text", [text("hi"), finish("stop")]],
    ["tools of every speed", [
      toolCall("b", "wait"),
      toolCall("a", "echo"),
      toolCall("c", "boom"),
      finish("tool_calls")
    ]],
    ["a repeated id", [toolCall("a", "echo", { x: 1 }), toolCall("a", "echo", { x: 2 }), finish("tool_calls")]],
    ["an id of two tools", [toolCall("a", "wait"), toolCall("a", "echo"), finish("tool_calls")]],
    ["an error", [text("a"), toolCall("a", "echo"), Script.error("timeout")]],
    ["hidden deltas", [text("a"), toolCallDelta("a", "{"), finish("stop")], {
      emitTextDeltas: false,
      emitToolDeltas: false
    }],
    ["a tool error that halts", [toolCall("a", "boom"), toolCall("b", "wait"), finish("tool_calls")], {
      onToolError: "halt"
    }]
  ]
  for (const [name, input, options] of fixtures) {
    for (const policy of [Policy.standard, Policy.allm]) {
      it.effect(`R-143: ${name}, ${policy.toolTurn}: the awaited and the streamed step are the same`, () =>
        stepOf(input, { tools, ...options, policy }))
    }
  }

  it.effect("R-206: the response of a step equals the fold of its events", () =>
    Effect.gen(function*() {
      const { events, step } = yield* stepOf([text("a"), toolCall("c0", "echo"), finish("stop")], { tools: [echo] })
      const before = events.slice(0, -1)
      const fold = Collector.applyAll(Collector.initial({ thread: start, requestId: "request" }), before)
      assert.deepStrictEqual(Collector.toResponse(fold), step.response)
      assert.deepStrictEqual(Collector.answers(fold), step.toolResults)
    }))
})

describe("Step: one layer, many runs", () => {
  it.effect("two concurrent steps over one adapter do not affect each other", () =>
    Effect.gen(function*() {
      const stream = (request: Adapter.Request) =>
        Stream.fromIterable<Event.AdapterEvent>([
          { _tag: "TextDelta", id: null, delta: Message.text(request.messages[0]!) },
          { _tag: "MessageCompleted", message: Message.assistant(""), finishReason: "stop" }
        ])
      const layer = Layer.succeed(Adapter.Adapter, { stream })
      const steps = yield* Effect.all([Step.run("a"), Step.run("b")], { concurrency: 2 }).pipe(Effect.provide(layer))
      assert.deepStrictEqual(steps.map((step) => step.response.outputText), ["a", "b"])
    }))
})
