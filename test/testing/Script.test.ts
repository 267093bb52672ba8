/**
 * The scripted adapter: what each entry plays, which call is played next, and when.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Chat, Collector, type Event, Message, Policy, Response, Tool } from "heddle"
import { Recorder, Script } from "heddle/testing"

const request: Adapter.Request = { messages: [Message.user("go")], tools: [] }

const play = (input: Script.Input) =>
  Effect.flatMap(Script.make(input), (model) => Stream.runCollect(model.stream(request)))

const tagsOf = (events: ReadonlyArray<Event.AdapterEvent>) => events.map((event) => event._tag)

const generated = (input: Script.Input) => Effect.flatMap(Script.make(input), (model) => model.generate(request))

/** The message of the defect that opening a script ends with, by stream and by generate. */
const defects = (input: unknown) =>
  Effect.gen(function*() {
    const messages: Array<string> = []
    for (const open of [play(input as Script.Input), generated(input as Script.Input)]) {
      const exit = yield* Effect.exit<unknown, unknown, never>(open)
      assert.isTrue(Exit.isFailure(exit) && Cause.hasDies(exit.cause), "the open must die")
      messages.push((Cause.squash((exit as Exit.Failure<unknown, unknown>).cause) as Error).message)
    }
    return messages
  })

/** Each event with the virtual time at which it arrived, while the clock moves on for a minute. */
const timed = (input: Script.Input) =>
  Effect.gen(function*() {
    const model = yield* Script.make(input)
    const seen: Array<readonly [number, string]> = []
    const reader = model.stream(request).pipe(
      Stream.runForEach((event) =>
        Effect.map(Clock.currentTimeMillis, (now) => {
          seen.push([now, event._tag])
        })
      )
    )
    const fiber = yield* Effect.forkChild(reader, { startImmediately: true })
    yield* TestClock.adjust("1 minute")
    yield* Fiber.join(fiber)
    return seen
  })

const started: Event.AdapterEvent = { _tag: "MessageStarted", message: Message.assistant("") }

const completed = (text: string, finishReason: Response.FinishReason | null): Event.AdapterEvent => ({
  _tag: "MessageCompleted",
  message: Message.assistant(text),
  finishReason
})

describe("Script: entries", () => {
  it.effect("F-01, R-246, R-247: text without a finish closes with the whole text and finish reason null", () =>
    Effect.gen(function*() {
      const script = [Script.text("a")]
      assert.deepStrictEqual(yield* play(script), [
        started,
        { _tag: "TextDelta", id: null, delta: "a" },
        { _tag: "TextCompleted", id: null, text: "a" },
        completed("a", null)
      ])
      const response = yield* generated(script)
      assert.strictEqual(response.finishReason, "stop")
      assert.strictEqual(response.outputText, "a")
      const empty = yield* play([Script.text("")])
      assert.deepStrictEqual(tagsOf(empty), ["MessageStarted", "TextDelta", "TextCompleted", "MessageCompleted"])
    }))

  it.effect("F-02, R-248: an empty script plays an empty message", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* play([]), [started, completed("", null)])
      const response = yield* generated([])
      assert.deepStrictEqual(response.metadata, { emptyScript: true })
      assert.strictEqual(response.finishReason, "stop")
      assert.deepStrictEqual((yield* generated([Script.finish(null)])).metadata, {})
    }))

  it.effect("F-03, R-246: a script ignores entries after its finish", () =>
    Effect.gen(function*() {
      const script = [Script.finish("stop"), Script.text("late"), Script.delay("1 hour")]
      assert.deepStrictEqual(yield* play(script), [started, completed("", "stop")])
      assert.strictEqual((yield* generated(script)).outputText, null)
    }))

  it.effect("R-245: a script plays the events of its entries in order", () =>
    Effect.gen(function*() {
      const events = yield* play([
        Script.reasoning("hm"),
        Script.text("a"),
        Script.toolCall("c0", "echo", { x: 1 }),
        Script.toolCall("c1", "echo"),
        Script.toolCall("c2", "echo", {}, "{ }"),
        Script.rawChunk({ vendor: 1 }),
        Script.event({ _tag: "ToolCallStarted", id: "c3", name: "echo" }),
        Script.toolCallDelta("c3", "{\"y\""),
        Script.toolCallDelta("c3", ":2}"),
        Script.text("b"),
        Script.finish("tool_calls")
      ])
      assert.deepStrictEqual(events, [
        started,
        { _tag: "ReasoningDelta", id: null, delta: "hm" },
        { _tag: "TextDelta", id: null, delta: "a" },
        { _tag: "ToolCallStarted", id: "c0", name: "echo" },
        { _tag: "ToolCallCompleted", id: "c0", name: "echo", arguments: { x: 1 }, rawArguments: "{\"x\":1}" },
        { _tag: "ToolCallStarted", id: "c1", name: "echo" },
        { _tag: "ToolCallCompleted", id: "c1", name: "echo", arguments: {}, rawArguments: "{}" },
        { _tag: "ToolCallStarted", id: "c2", name: "echo" },
        { _tag: "ToolCallCompleted", id: "c2", name: "echo", arguments: {}, rawArguments: "{ }" },
        { _tag: "RawChunk", chunk: { vendor: 1 } },
        { _tag: "ToolCallStarted", id: "c3", name: "echo" },
        { _tag: "ToolCallDelta", id: "c3", argumentsDelta: "{\"y\"" },
        { _tag: "ToolCallDelta", id: "c3", argumentsDelta: ":2}" },
        { _tag: "TextDelta", id: null, delta: "b" },
        { _tag: "TextCompleted", id: null, text: "ab" },
        completed("ab", "tool_calls")
      ])
    }))

  it.effect("R-245: a scripted call can have lost arguments, and a scripted finish can have the reason of a provider", () =>
    Effect.gen(function*() {
      const lost = { ...Script.toolCall("c0", "echo", {}, "{bad"), argumentsLost: "json_decode_error" } as const
      const finish = Script.finish("stop", { rawFinishReason: "end_turn", model: "m1", responseId: "r1" })
      const events = yield* play([lost, finish])
      assert.deepInclude(events[2], { argumentsLost: "json_decode_error", rawArguments: "{bad" })
      const response = Collector.toResponse(Collector.applyAll(Collector.initial(), events))
      assert.deepInclude(response, { model: "m1", id: "r1", rawFinishReason: "end_turn" })
    }))

  it.effect("R-251: call fragments never complete a call in a stream, and generate parses fragments that form an object", () =>
    Effect.gen(function*() {
      const script = (
        raw: string
      ) => [Script.toolCallDelta("c0", raw.slice(0, 3)), Script.toolCallDelta("c0", raw.slice(3))]
      const events = yield* play(script("{\"a\":1}"))
      assert.notInclude(tagsOf(events), "ToolCallCompleted")
      const streamed = Collector.toResponse(Collector.applyAll(Collector.initial({ policy: Policy.allm }), events))
      assert.deepInclude(streamed.toolCalls[0], { arguments: {}, rawArguments: "{\"a\":1}" })
      const [parsed] = (yield* generated(script("{\"a\":1}"))).toolCalls
      assert.deepInclude(parsed, { id: "c0", arguments: { a: 1 }, rawArguments: "{\"a\":1}" })
      const [list] = (yield* generated(script("[1,2]"))).toolCalls
      assert.deepInclude(list, { arguments: {}, rawArguments: "[1,2]" })
    }))

  it.effect("F-08, R-252: the last usage of a script goes into MessageCompleted, and the `usage` option replaces it", () =>
    Effect.gen(function*() {
      const script = [Script.usage({ inputTokens: 1 }), Script.usage({ inputTokens: 2 }), Script.finish("stop")]
      const usageOf = (events: ReadonlyArray<Event.AdapterEvent>) => {
        const last = events.at(-1)
        return last?._tag === "MessageCompleted" ? last.usage : undefined
      }
      const events = yield* play(script)
      assert.deepStrictEqual(tagsOf(events), ["MessageStarted", "MessageCompleted"])
      assert.deepStrictEqual(usageOf(events), Response.usage({ inputTokens: 2 }))
      assert.deepStrictEqual((yield* generated(script)).usage, Response.usage({ inputTokens: 2 }))
      const fixed = { script, usage: { inputTokens: 9 } }
      assert.deepStrictEqual(usageOf(yield* play(fixed)), Response.usage({ inputTokens: 9 }))
      assert.deepStrictEqual((yield* generated(fixed)).usage, Response.usage({ inputTokens: 9 }))
      assert.deepStrictEqual(yield* play([Script.finish("stop")]), [started, completed("", "stop")])
    }))

  it.effect("R-254: Script.reply makes the entries of a whole reply", () =>
    Effect.gen(function*() {
      const calls = [Message.toolCall("c0", "echo", { x: 1 })]
      const entries = Script.reply({ reasoning: "hm", text: "a", toolCalls: calls, usage: { inputTokens: 3 } })
      const response = yield* generated([entries])
      assert.deepInclude(response, { reasoning: "hm", outputText: "a", finishReason: "tool_calls" })
      assert.deepInclude(response.toolCalls[0], { id: "c0", name: "echo", arguments: { x: 1 } })
      assert.strictEqual(response.usage?.inputTokens, 3)
      assert.deepStrictEqual(Script.reply({ finishReason: null }), [Script.finish(null)])
    }))

  it("R-254, R-256: script entries survive JSON unchanged", () => {
    const entries = [
      ...Script.reply({ text: "a", toolCalls: [Message.toolCall("c0", "echo")], usage: { inputTokens: 1 } }),
      Script.delay("5 seconds"),
      Script.toolCallDelta("c0", "{"),
      Script.rawChunk([1]),
      Script.error("timeout", { status: 504 }),
      Script.errorThenContinue("odd"),
      Script.streamError("network_error"),
      Script.preflightError("rate_limited", { retryAfterMillis: 5 }),
      Script.event({ _tag: "ToolCallStarted", id: "c1", name: "echo" })
    ]
    assert.deepStrictEqual(JSON.parse(JSON.stringify(entries)), entries)
  })
})

describe("Script: errors", () => {
  it.effect("R-249, R-250: a scripted error is an event, ends the script and keeps the earlier text", () =>
    Effect.gen(function*() {
      const events = yield* play([
        Script.text("par"),
        Script.error("timeout"),
        Script.text("late"),
        Script.finish("stop")
      ])
      assert.deepStrictEqual(tagsOf(events), [
        "MessageStarted",
        "TextDelta",
        "Error",
        "TextCompleted",
        "MessageCompleted"
      ])
      assert.deepStrictEqual(events.at(-1), completed("par", null))
      const response = Collector.toResponse(Collector.applyAll(Collector.initial(), events))
      assert.deepInclude(response, { finishReason: "error", outputText: "par" })
    }))

  it.effect("R-249: a scripted reason becomes an AdapterError of this reason, and any other value the cause of an unknown error", () =>
    Effect.gen(function*() {
      const errorOf = (...args: Parameters<typeof Script.error>) =>
        Effect.map(play([Script.error(...args)]), (events) => {
          const event = events.find((event) => event._tag === "Error")
          assert.instanceOf(event?.error, Adapter.AdapterError)
          return event?.error as Adapter.AdapterError
        })
      assert.strictEqual((yield* errorOf("rate_limited")).reason, "rate_limited")
      const odd = yield* errorOf({ odd: true })
      assert.strictEqual(odd.reason, "unknown")
      assert.deepStrictEqual(odd.cause, { odd: true })
      assert.strictEqual((yield* errorOf("no such reason")).cause, "no such reason")
      const own = new Adapter.AdapterError({ reason: "timeout", status: 504 })
      assert.strictEqual(yield* errorOf(own), own)
      // the second argument selects the other dialect.
      const detailed = yield* errorOf("rate_limited", { status: 429, retryAfterMillis: 250 })
      assert.deepInclude(detailed, { reason: "rate_limited", status: 429, retryAfterMillis: 250 })
    }))

  it.effect("R-249, R-254: generate fails with the scripted error", () =>
    Effect.gen(function*() {
      for (const entry of [Script.error, Script.errorThenContinue]) {
        const plain = yield* Effect.flip(generated([Script.text("a"), entry("rate_limited"), Script.finish("stop")]))
        assert.deepInclude(plain, { reason: "unknown", detail: "scripted error", cause: "rate_limited" })
        const detailed = yield* Effect.flip(generated([entry("rate_limited", { status: 429 })]))
        assert.deepInclude(detailed, { reason: "rate_limited", status: 429 })
      }
      const own = new Adapter.AdapterError({ reason: "timeout" })
      assert.strictEqual(yield* Effect.flip(generated([Script.error(own)])), own)
    }))

  it.effect("F-04, R-250: a script continues after errorThenContinue, and the policy decides how the error is folded", () =>
    Effect.gen(function*() {
      const script = [
        Script.text("a"),
        Script.errorThenContinue("rate_limited"),
        Script.text("b"),
        Script.finish("stop")
      ]
      const events = yield* play(script)
      assert.deepStrictEqual(tagsOf(events), [
        "MessageStarted",
        "TextDelta",
        "Error",
        "TextDelta",
        "TextCompleted",
        "MessageCompleted"
      ])
      assert.deepStrictEqual(events.at(-1), completed("ab", "stop"))
      const folded = (policy: Policy.Policy) =>
        Collector.toResponse(Collector.applyAll(Collector.initial({ policy }), events))
      assert.strictEqual(folded(Policy.standard).finishReason, "error")
      assert.strictEqual(folded(Policy.allm).finishReason, "stop")
      assert.deepInclude(folded(Policy.allm).error, { reason: "rate_limited" })
    }))

  it.effect("R-254: a scripted stream error fails the stream after the earlier events, without MessageCompleted", () =>
    Effect.gen(function*() {
      const script = [Script.text("a"), Script.streamError("network_error", { detail: "reset" }), Script.text("b")]
      const model = yield* Script.make({ scripts: [script, script] })
      const seen: Array<string> = []
      const exit = yield* model.stream(request).pipe(
        Stream.runForEach((event) => Effect.sync(() => seen.push(event._tag))),
        Effect.flip
      )
      assert.deepStrictEqual(seen, ["MessageStarted", "TextDelta"])
      assert.deepInclude(exit, { reason: "network_error", detail: "reset" })
      assert.deepInclude(yield* Effect.flip(model.generate(request)), { reason: "network_error" })
      assert.strictEqual(yield* model.cleanups, 2)
    }))

  it.effect("F-07, R-254, R-244: a preflight error fails the open without an event, and the cursor advances", () =>
    Effect.gen(function*() {
      const preflight = [Script.preflightError("rate_limited", { status: 429 }), Script.text("never")]
      const model = yield* Script.make([
        preflight,
        [Script.text("second")],
        preflight,
        Script.reply({ text: "fourth" })
      ])
      const error = yield* Effect.flip(Stream.runHead(model.stream(request)))
      assert.deepInclude(error, { reason: "rate_limited", status: 429 })
      assert.strictEqual(yield* model.cleanups, 0)
      assert.deepInclude(yield* Stream.runCollect(model.stream(request)), completed("second", null))
      assert.deepInclude(yield* Effect.flip(model.generate(request)), { reason: "rate_limited" })
      assert.strictEqual((yield* model.generate(request)).outputText, "fourth")
      assert.strictEqual(yield* model.opens, 4)
    }))

  it.effect("F-05, R-241, R-252, R-254: an invalid script is a defect when it is opened", () =>
    Effect.gen(function*() {
      const call = [Script.text("a")]
      const cases: ReadonlyArray<readonly [input: unknown, message: RegExp]> = [
        [{ script: call, scripts: [call] }, /script and scripts/],
        [{ scripts: [call, [{ _tag: "Txt", text: "a" }]] }, /entry 0 of call 1.*Expected.*"Text"/s],
        [{ script: [Script.text("a"), "b"] }, /entry 1 of call 0/],
        [{ script: [{ _tag: "Text", text: 1 }] }, /entry 0 of call 0.*string.*text/s],
        [{ script: "a" }, /script must be a list; got: "a"/],
        [{ scripts: 1 }, /scripts must be a list; got: 1/],
        [{ script: call, streamScript: {} }, /streamScript must be a list/],
        [{ scripts: [call, "a"] }, /call 1 must be a list of entries/],
        [[call, Script.text("a")], /entry 0 of call 0/],
        [{ script: [Script.usage({ tokens: 1 } as any)] }, /only the names inputTokens, outputTokens/],
        [{ script: call, usage: { tokens: 1 } }, /usage must be an object with names of Response.Usage/],
        [{ script: [Script.event(completed("", null) as any)] }, /the script writes these/],
        [{ script: [{ _tag: "Delay", millis: -1 }] }, /greater than or equal to 0/],
        [{ script: [Script.text("a"), Script.preflightError("timeout")] }, /must be the first entry/],
        [{ script: call, retryUntilCall: 0 }, /retryUntilCall must be a positive integer; got: 0/],
        [{ script: call, chunkSize: 1.5 }, /chunkSize must be a positive integer; got: 1.5/]
      ]
      for (const [input, message] of cases) {
        for (const found of yield* defects(input)) assert.match(found, message)
      }
      const layer = Script.layer(cases[0]![0] as Script.Input)
      yield* Effect.provide(Effect.void, layer)
    }))
})

describe("Script: cursor", () => {
  const textOf = (model: Script.Scripted) =>
    Stream.runFold(
      model.stream(request),
      () => "",
      (text, event) => event._tag === "TextDelta" ? text + event.delta : text
    )

  const awaitedTextOf = (model: Script.Scripted) =>
    Effect.map(model.generate(request), (response) => response.outputText)

  it.effect("R-240: a script plays the same events for every request", () =>
    Effect.gen(function*() {
      const script = [Script.text("a"), Script.toolCall("c0", "echo"), Script.rawChunk(1), Script.error("timeout")]
      const model = yield* Script.make([script, script])
      const other: Adapter.Request = { messages: [], tools: [], model: "other", temperature: 2, toolChoice: "none" }
      const first = yield* Stream.runCollect(model.stream(request))
      assert.deepStrictEqual(yield* Stream.runCollect(model.stream(other)), first)
    }))

  it.effect("F-06, R-243: a request after the last scripted call fails with no_scripted_response", () =>
    Effect.gen(function*() {
      const model = yield* Script.make({ scripts: [[Script.text("a")]] })
      assert.strictEqual(yield* textOf(model), "a")
      const exhausted = { reason: "no_scripted_response", detail: "no scripted response" } as const
      assert.deepInclude(yield* Effect.flip(Stream.runHead(model.stream(request))), exhausted)
      assert.deepInclude(yield* Effect.flip(model.generate(request)), exhausted)
      assert.deepInclude(yield* Effect.flip(play({})), exhausted)
      assert.deepInclude(yield* Effect.flip(play({ scripts: [] })), exhausted)
    }))

  it.effect("R-242: stream plays streamScript first, and generate plays only script or scripts", () =>
    Effect.gen(function*() {
      const [one, many, streamed] = [[Script.text("one")], [[Script.text("many")]], [[Script.text("streamed")]]]
      const cases: ReadonlyArray<readonly [Script.Options, stream: string, generate: string | undefined]> = [
        [{ script: one }, "one", "one"],
        [{ scripts: many }, "many", "many"],
        [{ script: one, streamScript: streamed }, "streamed", "one"],
        [{ scripts: many, streamScript: streamed }, "streamed", "many"],
        [{ streamScript: streamed }, "streamed", undefined],
        [{ streamScript: one }, "one", undefined]
      ]
      for (const [options, stream, generate] of cases) {
        assert.strictEqual(yield* Effect.flatMap(Script.make(options), textOf), stream)
        const awaited = Effect.flatMap(Script.make(options), awaitedTextOf)
        if (generate === undefined) assert.deepInclude(yield* Effect.flip(awaited), { reason: "no_scripted_response" })
        else assert.strictEqual(yield* awaited, generate)
      }
    }))

  it.effect("R-244: every open advances the cursor by one, consumed or not, and an empty script plays one empty call", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([[Script.text("a")], [Script.text("b")], [Script.text("c")]])
      yield* Stream.runHead(model.stream(request))
      assert.strictEqual(yield* awaitedTextOf(model), "b")
      const stream = model.stream(request)
      assert.strictEqual(yield* model.opens, 2)
      assert.strictEqual(yield* Stream.runCount(stream), 4)
      // A stream is a recipe: run again, it opens again.
      assert.deepInclude(yield* Effect.flip(Stream.runCount(stream)), { reason: "no_scripted_response" })
      assert.strictEqual(yield* model.opens, 4)
      for (const input of [{ streamScript: [] }, []]) {
        const empty = yield* Script.make(input)
        assert.strictEqual(yield* Stream.runCount(empty.stream(request)), 2)
        assert.deepInclude(yield* Effect.flip(Stream.runCount(empty.stream(request))), {
          reason: "no_scripted_response"
        })
      }
    }))

  it.effect("F-10, R-256: adapters with equal scripts have separate cursors", () =>
    Effect.gen(function*() {
      const scripts = [[Script.text("a")], [Script.text("b")]]
      const first = yield* Script.make(scripts)
      const second = yield* Script.make(scripts)
      assert.deepStrictEqual([yield* textOf(first), yield* textOf(first), yield* textOf(second)], ["a", "b", "a"])
    }))

  it.effect("R-255, R-256: adapters and rebuilt layers can share a cursor", () =>
    Effect.gen(function*() {
      const cursor = yield* Script.makeCursor
      const options = { scripts: [[Script.text("a")], [Script.text("b")], [Script.text("c")]], cursor }
      const first = yield* Script.make(options)
      const second = yield* Script.make(options)
      assert.deepStrictEqual([yield* textOf(first), yield* textOf(second)], ["a", "b"])
      const ask = Adapter.Adapter.use((adapter) => Stream.runCollect(adapter.stream(request)))
      assert.deepInclude(yield* Effect.provide(ask, Layer.fresh(Script.layer(options))), completed("c", null))
      assert.strictEqual(yield* cursor.position, 3)
      const layer = Script.layer([[Script.text("x")], [Script.text("y")]])
      const asked = yield* Effect.provide(Effect.all([ask, ask]), layer)
      assert.deepStrictEqual(asked.map((events) => events.at(-1)), [completed("x", null), completed("y", null)])
    }))

  it.effect("R-255: a scripted adapter records the request of each open, and its layer continues at its cursor", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([[Script.text("a")], [Script.text("b")]])
      const other: Adapter.Request = { ...request, model: "m2" }
      yield* Stream.runDrain(model.stream(request))
      const ask = Adapter.Adapter.use((adapter) => Stream.runCollect(adapter.stream(other)))
      assert.deepInclude(yield* Effect.provide(ask, model.layer), completed("b", null))
      yield* Effect.ignore(model.generate(request))
      assert.deepStrictEqual(yield* model.requests, [request, other, request])
    }))

  it.effect("R-255: generate returns the `requestId` option in its response", () =>
    Effect.gen(function*() {
      assert.strictEqual((yield* generated({ script: [], requestId: "req_1" })).requestId, "req_1")
      assert.strictEqual((yield* generated({ script: [] })).requestId, null)
    }))

  it.effect("R-255: retryUntilCall refuses the earlier calls as rate_limited without playing a script", () =>
    Effect.gen(function*() {
      const model = yield* Script.make({ scripts: [[Script.text("a")], [Script.text("b")]], retryUntilCall: 3 })
      const refused = { reason: "rate_limited", retryAfterMillis: 0, isRetryable: true }
      const error = yield* Effect.flip(Stream.runHead(model.stream(request)))
      assert.deepStrictEqual({ ...refused }, {
        reason: error.reason,
        retryAfterMillis: error.retryAfterMillis,
        isRetryable: error.isRetryable
      })
      assert.strictEqual((yield* Effect.flip(model.generate(request))).reason, "rate_limited")
      assert.strictEqual(yield* textOf(model), "a")
      assert.strictEqual(yield* awaitedTextOf(model), "b")
    }))
})

describe("Script: time", () => {
  it.effect("F-09, R-253, R-258: a scripted delay holds back the following events, never MessageStarted", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* timed([Script.delay(50), Script.text("a"), Script.finish("stop")]), [
        [0, "MessageStarted"],
        [50, "TextDelta"],
        [50, "TextCompleted"],
        [50, "MessageCompleted"]
      ])
    }))

  it.effect("R-253, R-258: scripted delays add up, play no event and also hold back the end", () =>
    Effect.gen(function*() {
      const script = [
        Script.text("a"),
        Script.delay("1 second"),
        Script.delay("2 seconds"),
        Script.text("b"),
        Script.delay(5)
      ]
      assert.deepStrictEqual(yield* timed(script), [
        [0, "MessageStarted"],
        [0, "TextDelta"],
        [3000, "TextDelta"],
        [3005, "TextCompleted"],
        [3005, "MessageCompleted"]
      ])
    }))

  it.effect("R-258: generate waits on the same clock as stream, and an infinite delay never ends", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([[Script.delay("1 hour"), Script.text("a")], [Script.delay(Duration.infinity)]])
      const awaited = yield* Effect.forkChild(model.generate(request), { startImmediately: true })
      yield* TestClock.adjust("59 minutes")
      assert.isUndefined(awaited.pollUnsafe())
      yield* TestClock.adjust("1 minute")
      assert.strictEqual((yield* Fiber.join(awaited)).outputText, "a")
      const endless = yield* Effect.forkChild(Stream.runDrain(model.stream(request)), { startImmediately: true })
      yield* TestClock.adjust("1000 days")
      assert.isUndefined(endless.pollUnsafe())
      assert.strictEqual(yield* model.cleanups, 1)
      yield* Fiber.interrupt(endless)
      assert.strictEqual(yield* model.cleanups, 2)
    }))

  it.effect("F-11, R-255: an opened stream is cleaned up once, and a stream that is never pulled is not opened", () =>
    Effect.gen(function*() {
      const script = [Script.text("a"), Script.delay("1 hour"), Script.text("b")]
      const cleanups = (read: (model: Script.Scripted) => Effect.Effect<unknown, unknown>) =>
        Effect.gen(function*() {
          const model = yield* Script.make({ script, chunkSize: 1 })
          const fiber = yield* Effect.forkChild(read(model), { startImmediately: true })
          yield* TestClock.adjust("2 hours")
          yield* Fiber.join(fiber)
          return [yield* model.opens, yield* model.cleanups]
        })
      assert.deepStrictEqual(yield* cleanups((model) => Stream.runDrain(model.stream(request))), [1, 1])
      assert.deepStrictEqual(yield* cleanups((model) => Stream.runHead(model.stream(request))), [1, 1])
      assert.deepStrictEqual(yield* cleanups((model) => Effect.scoped(Stream.toPull(model.stream(request)))), [0, 0])
      assert.deepStrictEqual(yield* cleanups((model) => Effect.sync(() => model.stream(request))), [0, 0])
    }))

  it.effect("R-255: a stream is cleaned up at its own end, before a concatenated stream continues", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([[Script.text("a")], [Script.text("b")]])
      const counts: Array<number> = []
      yield* model.stream(request).pipe(
        Stream.concat(model.stream(request)),
        Stream.runForEach((event) =>
          Effect.map(model.cleanups, (count) => {
            if (event._tag === "TextDelta") counts.push(count)
          })
        )
      )
      assert.deepStrictEqual([...counts, yield* model.cleanups], [0, 1, 2])
    }))

  it.effect("R-244: events without a delay between them arrive together, or in chunks of the given size", () =>
    Effect.gen(function*() {
      const script = [Script.text("a"), Script.text("b"), Script.delay(0), Script.text("c"), Script.finish("stop")]
      const chunks = (chunkSize?: number) =>
        Effect.gen(function*() {
          const model = yield* Script.make({ script, ...(chunkSize === undefined ? {} : { chunkSize }) })
          const sizes = Stream.mapArray(model.stream(request), (events) => [events.length] as const)
          return yield* Stream.runCollect(sizes)
        })
      assert.deepStrictEqual(yield* chunks(), [3, 3])
      assert.deepStrictEqual(yield* chunks(2), [2, 1, 2, 1])
      assert.deepStrictEqual(yield* chunks(1), [1, 1, 1, 1, 1, 1])
    }))
})

describe("Script: runs", () => {
  const echo = Tool.make("echo", { parameters: { x: Schema.Finite }, handler: (args) => Effect.succeed(args) })

  it.effect("R-257: a scripted run with one call has the fourteen events of the reference trace", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([
        [Script.toolCall("c0", "echo", { x: 1 }), Script.finish("tool_calls")],
        [Script.text("done"), Script.finish("stop")]
      ])
      const events = yield* Chat.stream("go", { tools: [echo] }).pipe(Stream.runCollect, Effect.provide(model.layer))
      assert.deepStrictEqual(events.map((event) => event._tag), [
        "MessageStarted",
        "ToolCallStarted",
        "ToolCallCompleted",
        "MessageCompleted",
        "ToolExecutionStarted",
        "ToolExecutionCompleted",
        "ToolResultEncoded",
        "StepCompleted",
        "MessageStarted",
        "TextDelta",
        "TextCompleted",
        "MessageCompleted",
        "StepCompleted",
        "ChatCompleted"
      ])
      const requests = yield* model.requests
      assert.deepStrictEqual(requests.map((asked) => asked.messages.map((message) => message.role)), [
        ["user"],
        ["user", "assistant", "tool"]
      ])
      assert.deepStrictEqual([yield* model.opens, yield* model.cleanups], [2, 2])
    }))

  it.effect("R-243, R-244: a run with more requests than scripted calls fails with no_scripted_response", () =>
    Effect.gen(function*() {
      const calls = [Script.toolCall("c0", "echo", { x: 1 }), Script.finish("tool_calls")]
      const model = yield* Script.make([calls])
      const result = yield* Chat.run("go", { tools: [echo] }).pipe(Effect.provide(model.layer))
      assert.strictEqual(result.outcome._tag, "Failed")
      assert.deepInclude((result.outcome as { readonly error: object }).error, { reason: "no_scripted_response" })
      assert.strictEqual(yield* model.opens, 2)
    }))

  it.effect("R-258: virtual time drives a whole scripted run", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const slow = Tool.make("slow", {
        parameters: {},
        handler: recorder.handler(() => Effect.as(Effect.sleep("20 seconds"), "slept"))
      })
      const model = Script.layer([
        [Script.delay("1 second"), Script.toolCall("c0", "slow"), Script.finish("tool_calls")],
        [Script.delay("2 seconds"), Script.text("done"), Script.finish("stop")]
      ])
      const events = recorder.tap(Chat.stream("go", { tools: [slow] }))
      const run = yield* Effect.forkChild(Effect.provide(Stream.runDrain(events), model), { startImmediately: true })
      yield* TestClock.adjust("1 minute")
      yield* Fiber.join(run)
      assert.deepStrictEqual(yield* recorder.at("ToolExecutionStarted"), [1000])
      assert.deepStrictEqual(yield* recorder.at("ToolResultEncoded"), [21_000])
      assert.deepStrictEqual(yield* recorder.at("MessageStarted"), [0, 21_000])
      assert.deepStrictEqual(yield* recorder.at("ChatCompleted"), [23_000])
      assert.deepInclude(yield* recorder.counts("slow"), { starts: 1, ends: 1, live: 0, finalizers: 1 })
    }))
})
