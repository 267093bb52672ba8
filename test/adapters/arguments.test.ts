/**
 * What all protocols, both bridges and the fold do alike with the arguments of calls: how deep they may nest, and what a
 * call without any fragment comes to. The replies of the protocols come from a server on the loopback interface.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Chat, Collector, Event, Message, Policy, Thread, Tool } from "heddle"
import { AdapterSuite, Conformance } from "heddle/testing"
import * as AiSdk from "../support/aiSdk.ts"
import * as Anthropic from "../support/anthropic.ts"
import * as EffectAi from "../support/effectAi.ts"
import * as Gemini from "../support/gemini.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Responses from "../support/openAiResponses.ts"
import * as Server from "../support/server.ts"

/** An object that nests so many levels, as text: values of that depth cannot be written. */
const nested = (levels: number): string => `${"{\"a\":".repeat(levels - 1)}{}${"}".repeat(levels - 1)}`

const value = (levels: number): unknown => JSON.parse(nested(levels))

/** A body that has the text of the arguments in place of a mark: as JSON, or as a string of JSON. */
const filled = (body: string, text: string): string =>
  body.replaceAll("\"@json\"", () => text).replaceAll("\"@text\"", () => JSON.stringify(text))

/** A reply of each protocol with one call, whose arguments stand in it as text or as data. */
const replies: Readonly<Record<string, { readonly body: string; readonly outcome: typeof Chunks.outcomeOf }>> = {
  "OpenAiChat, as text": {
    body: Chunks.body(
      Chunks.call({ index: 0, id: "a", name: "echo", arguments: "@text" }),
      Chunks.finish("tool_calls")
    ),
    outcome: Chunks.outcomeOf
  },
  "OpenAiChat, as data": {
    body: Chunks.body(
      Chunks.call({ index: 0, id: "a", name: "echo", arguments: "@json" }),
      Chunks.finish("tool_calls")
    ),
    outcome: Chunks.outcomeOf
  },
  "OpenAiResponses, in fragments": {
    body: Responses.body(
      Responses.created,
      Responses.added(0, Responses.call("a", "echo")),
      Responses.args(0, "@text"),
      Responses.done(0, Responses.call("a", "echo", "@text")),
      Responses.completed({ output: [Responses.call("a", "echo", "@text")] })
    ),
    outcome: (answer) => Responses.outcomeOf(answer)
  },
  "OpenAiResponses, as data": {
    body: Responses.body(
      Responses.created,
      Responses.done(0, Responses.call("a", "echo", "@json")),
      Responses.completed()
    ),
    outcome: (answer) => Responses.outcomeOf(answer)
  },
  "Anthropic, in fragments": {
    body: Anthropic.reply([Anthropic.called(0, "a", "echo", "@text")], "tool_use"),
    outcome: (answer) => Anthropic.outcomeOf(answer)
  },
  "Anthropic, from the start": {
    body: Anthropic.reply([[Anthropic.call(0, "a", "echo", { input: "@json" }), Anthropic.closed(0)]], "tool_use"),
    outcome: (answer) => Anthropic.outcomeOf(answer)
  },
  "Gemini, whole": {
    body: Gemini.body(Gemini.chunk([Gemini.call("echo", "@json")]), Gemini.finish("STOP")),
    outcome: (answer) => Gemini.outcomeOf(answer, {}, Gemini.offering("echo"))
  },
  "Gemini, streamed": {
    body: Gemini.body(
      Gemini.chunk([Gemini.call("echo", "@json", { willContinue: true })]),
      Gemini.chunk([{ functionCall: {} }]),
      Gemini.finish("STOP")
    ),
    outcome: (answer) => Gemini.outcomeOf(answer, {}, Gemini.offering("echo"))
  },
  "the AI SDK": {
    body: Chunks.body(
      Chunks.call({ index: 0, id: "a", name: "echo", arguments: "@text" }),
      Chunks.finish("tool_calls")
    ),
    outcome: (answer) => AiSdk.outcomeOf(answer)
  },
  "effect/ai, whole": {
    body: EffectAi.body(EffectAi.call("a", "echo", "@json"), EffectAi.finish("tool-calls")),
    outcome: (answer) => EffectAi.outcomeOf(answer)
  },
  "effect/ai, in fragments": {
    body: EffectAi.body(
      { type: "tool-params-start", id: "a", name: "echo" },
      { type: "tool-params-delta", id: "a", delta: "@text" },
      { type: "tool-params-end", id: "a" },
      EffectAi.finish("tool-calls")
    ),
    outcome: (answer) => EffectAi.outcomeOf(answer)
  }
}

const callsOf = ({ error, events }: Chunks.Outcome) => {
  assert.isUndefined(error)
  return Chunks.of(events, "ToolCallCompleted").map(({ arguments: args, argumentsLost, rawArguments }) => ({
    args,
    argumentsLost,
    rawArguments
  }))
}

describe("argument names with escapes", () => {
  // V8 13.6 reads them as the texts of their escapes, if those were names of members in JSON that was parsed earlier.
  for (const [name, { body, outcome }] of Object.entries(replies)) {
    // The test parses the parts of this one.
    if (name === "effect/ai, whole") continue
    it.effect(`argument names with escapes are read as the model wrote them, whatever replies came earlier: ${name}`, () =>
      Effect.gen(function*() {
        for (let times = 0; times < 4; times++) {
          yield* outcome(filled(body, `{"to":"ann","w\\\\u00e4":1}`))
          yield* outcome(filled(body, `{"to":"ann","\\\\u0064r":1}`))
        }
        const [call] = callsOf(yield* outcome(filled(body, `{"to":"ann","w\\u00e4hrung":"EUR"}`)))
        const [other] = callsOf(yield* outcome(filled(body, `{"to":"ann","\\u0064ry_run":true}`)))
        assert.deepStrictEqual([call?.args, other?.args], [{ to: "ann", "währung": "EUR" }, {
          to: "ann",
          dry_run: true
        }])
      }))
  }
})

describe("M-33: the nesting of arguments", () => {
  for (const [name, { body, outcome }] of Object.entries(replies)) {
    it.effect(`M-33: ${name}: arguments of 256 levels arrive, and arguments of 257 or 5,000 levels are lost as too deep`, () =>
      Effect.gen(function*() {
        const [fine] = callsOf(yield* outcome(filled(body, nested(256))))
        assert.isUndefined(fine?.argumentsLost)
        assert.strictEqual(JSON.stringify(fine?.args), nested(256))
        for (
          const text of [
            nested(257),
            nested(5000),
            `{"a\\u0062":${nested(4999)}}`,
            `{"__proto__":{},"b":${nested(4999)}}`
          ]
        ) {
          const [call, ...others] = callsOf(yield* outcome(filled(body, text)))
          assert.deepStrictEqual([call?.args, call?.argumentsLost, others], [{}, "too_deep", []], text.slice(0, 40))
        }
      }))
  }

  it.effect("M-33: the AI SDK: a model's arguments passed as data nest at most 256 levels, like a text", () =>
    Effect.gen(function*() {
      for (const [levels, expected] of [[256, undefined], [257, "too_deep"], [5000, "too_deep"]] as const) {
        const part = { ...AiSdk.call("a", "echo", ""), input: value(levels) }
        const [call] = callsOf(yield* AiSdk.outcomeOfParts(part, AiSdk.finish("tool-calls")))
        assert.strictEqual(call?.argumentsLost, expected)
      }
    }))

  it.effect("M-33: Gemini: a path of more than 256 steps loses the arguments, and so does a deep value below a path", () =>
    Effect.gen(function*() {
      const streamed = (piece: Readonly<Record<string, unknown>>) =>
        Gemini.body(
          Gemini.chunk([Gemini.call("echo", undefined, { partialArgs: [piece], willContinue: true })]),
          Gemini.chunk([{ functionCall: {} }]),
          Gemini.finish("STOP")
        )
      const ask = (body: string) => Effect.map(Gemini.outcomeOf(body, {}, Gemini.offering("echo")), callsOf)
      const path = (steps: number) => ({ jsonPath: `$${".a".repeat(steps)}`, stringValue: "x" })
      assert.isUndefined((yield* ask(streamed(path(256))))[0]?.argumentsLost)
      assert.isDefined((yield* ask(streamed(path(257))))[0]?.argumentsLost)
      const below = filled(streamed({ jsonPath: "$.a", stringValue: "@json" }), nested(5000))
      assert.strictEqual((yield* ask(below))[0]?.argumentsLost, "too_deep")
    }))

  it.effect("M-33: server-side calls are listed however deep their arguments and results nest", () =>
    Effect.gen(function*() {
      const deep = nested(5000)
      const hosted: ReadonlyArray<readonly [string, typeof Chunks.outcomeOf]> = [
        [
          Gemini.body(
            Gemini.chunk([{ toolCall: "@json" }, { toolResponse: "@json" }, { executableCode: "@json" }]),
            Gemini.chunk([{ text: "done" }], { groundingMetadata: "@json" }),
            Gemini.finish("STOP")
          ),
          (answer) => Gemini.outcomeOf(answer)
        ],
        [
          Anthropic.reply([[
            Anthropic.opened(0, { type: "server_tool_use", id: "s", name: "search", input: "@json" }),
            Anthropic.closed(0)
          ], Anthropic.text(1, "done")], "end_turn"),
          (answer) => Anthropic.outcomeOf(answer)
        ],
        [
          Responses.body(
            Responses.created,
            Responses.done(0, { type: "web_search_call", id: "w", action: "@json" }),
            Responses.said("done", 1),
            Responses.completed()
          ),
          (answer) => Responses.outcomeOf(answer)
        ]
      ]
      for (const [body, outcome] of hosted) {
        const { error, events } = yield* outcome(filled(body, deep))
        assert.isUndefined(error)
        const state = Collector.applyAll(Collector.initial(), events)
        const response = Collector.toResponse(state)
        assert.strictEqual(response.outputText, "done")
        for (const event of events) JSON.stringify(yield* Schema.encodeUnknownEffect(Event.Event)(event))
      }
    }))

  it("M-33: Collector: the arguments in the events of any adapter nest at most 256 levels, in fragments or whole", () => {
    const header: Event.Event = { _tag: "ToolCallStarted", id: "a", name: "echo" }
    const ended: Event.Event = { _tag: "MessageCompleted", message: Message.assistant(""), finishReason: "tool_calls" }
    for (const [levels, expected] of [[256, undefined], [257, "too_deep"], [5000, "too_deep"]] as const) {
      const streamed: Event.Event = { _tag: "ToolCallDelta", id: "a", argumentsDelta: nested(levels) }
      const whole: Event.Event = {
        _tag: "ToolCallCompleted",
        id: "a",
        name: "echo",
        arguments: value(levels) as Message.ToolCall["arguments"],
        rawArguments: nested(levels)
      }
      for (const events of [[header, streamed, ended], [header, whole, ended]]) {
        const { toolCalls } = Collector.toResponse(Collector.applyAll(Collector.initial(), events))
        assert.deepStrictEqual(toolCalls.map(({ argumentsLost }) => argumentsLost), [expected])
        assert.deepStrictEqual(Collector.classify(events).toolCalls, toolCalls)
      }
    }
  })

  it("M-33: Collector: arguments with shared members are read in bounded time, and circular arguments are too deep", () => {
    let shared: Record<string, unknown> = {}
    for (let level = 0; level < 200; level++) shared = { left: shared, right: shared }
    const circular: Record<string, unknown> = {}
    circular["self"] = circular
    const lost = [shared, circular].map((args) => {
      const event: Event.Event = { _tag: "ToolCallCompleted", id: "a", name: "echo", arguments: args, rawArguments: "" }
      return Collector.classify([event]).toolCalls[0]?.argumentsLost
    })
    assert.deepStrictEqual(lost, [undefined, "too_deep"])
  })

  const servers: Readonly<Record<string, (url: string) => ReturnType<typeof Chunks.layer>>> = {
    "OpenAiChat, as text": (url) => Chunks.layer(url),
    "OpenAiResponses, in fragments": (url) => Responses.layer(url),
    "Anthropic, in fragments": (url) => Anthropic.layer(url),
    "Gemini, whole": (url) => Gemini.layer(url),
    "the AI SDK": (url) => AiSdk.layer(url),
    "effect/ai, whole": (url) => EffectAi.layer(url)
  }

  const answers: Readonly<Record<string, string>> = {
    "OpenAiChat, as text": Chunks.body(Chunks.said("ok"), Chunks.finish("stop")),
    "OpenAiResponses, in fragments": Responses.body(Responses.created, Responses.said("ok"), Responses.completed()),
    "Anthropic, in fragments": Anthropic.reply([Anthropic.text(0, "ok")], "end_turn"),
    "Gemini, whole": Gemini.body(Gemini.said("ok"), Gemini.finish("STOP")),
    "the AI SDK": Chunks.body(Chunks.said("ok"), Chunks.finish("stop")),
    "effect/ai, whole": EffectAi.body(EffectAi.text("ok"), EffectAi.finish("stop"))
  }

  for (const [name, layer] of Object.entries(servers)) {
    it.effect(`M-33: ${name}: a run answers a call with too deep arguments and continues, and its thread can be encoded`, () =>
      Effect.scoped(Effect.gen(function*() {
        const body = filled(replies[name]!.body, nested(5000))
        const server = yield* Server.serve((_, index) => ({ pieces: [index === 0 ? body : answers[name]!] }))
        let runs = 0
        const echo = Tool.make("echo", {
          description: "Echoes.",
          parameters: { type: "object" },
          handler: () => Effect.sync(() => runs++)
        })
        const result = yield* Chat.run("go", { tools: [echo] }).pipe(Effect.provide(layer(server.url)))
        assert.strictEqual(result.outcome._tag, "Completed")
        assert.deepStrictEqual([runs, server.requests.length], [0, 2])
        const answer = result.thread.messages.find(({ role }) => role === "tool")
        assert.isTrue(answer?.isError)
        assert.include(String(answer?.content), "256 levels")
        const stored = JSON.stringify(yield* Schema.encodeEffect(Thread.Thread)(result.thread))
        yield* Schema.decodeUnknownEffect(Thread.Thread)(JSON.parse(stored))
        assert.notInclude(JSON.stringify(server.requests[1]!.body), "\\\"a\\\":{\\\"a\\\":")
      })))
  }
})

/** The endings of a reply in each protocol, around a call that has no fragment. */
interface Bare {
  readonly whole: string
  readonly truncated: string
  readonly begun: string
  readonly outcome: (body: string) => Effect.Effect<Chunks.Outcome>
}

const header = Chunks.call({ index: 0, id: "a", name: "now" })
const nothing = Chunks.call({ index: 0, id: "a", name: "now", arguments: null })
const cut = Chunks.call({ index: 0, id: "a", name: "now", arguments: "{\"x\":" })

const bare: Readonly<Record<string, Bare>> = {
  "OpenAiChat, missing": {
    whole: Chunks.body(header, Chunks.finish("tool_calls")),
    truncated: Chunks.body(header, Chunks.finish("length")),
    begun: Chunks.body(header, cut, Chunks.finish("tool_calls")),
    outcome: Chunks.outcomeOf
  },
  "OpenAiChat, null": {
    whole: Chunks.body(nothing, Chunks.finish("tool_calls")),
    truncated: Chunks.body(nothing, Chunks.finish("length")),
    begun: Chunks.body(nothing, cut, Chunks.finish("tool_calls")),
    outcome: Chunks.outcomeOf
  },
  OpenAiResponses: {
    whole: Responses.body(Responses.created, Responses.added(0, Responses.call("a", "now")), Responses.completed()),
    truncated: Responses.body(
      Responses.created,
      Responses.added(0, Responses.call("a", "now")),
      Responses.incomplete("max_output_tokens")
    ),
    begun: Responses.body(
      Responses.created,
      Responses.added(0, Responses.call("a", "now")),
      Responses.args(0, "{\"x\":"),
      Responses.completed()
    ),
    outcome: (body) => Responses.outcomeOf(body)
  },
  Anthropic: {
    whole: Anthropic.reply([Anthropic.called(0, "a", "now")], "tool_use"),
    truncated: Anthropic.reply([Anthropic.called(0, "a", "now")], "max_tokens"),
    begun: Anthropic.reply([Anthropic.called(0, "a", "now", "{\"x\":")], "tool_use"),
    outcome: (body) => Anthropic.outcomeOf(body)
  },
  "Anthropic, before another block": {
    whole: Anthropic.reply([Anthropic.called(0, "a", "now"), Anthropic.text(1, "so")], "tool_use"),
    truncated: Anthropic.reply([Anthropic.called(0, "a", "now"), Anthropic.text(1, "so")], "max_tokens"),
    begun: Anthropic.reply([Anthropic.called(0, "a", "now", "{\"x\":"), Anthropic.text(1, "so")], "tool_use"),
    outcome: (body) => Anthropic.outcomeOf(body)
  },
  "Gemini, streamed": {
    whole: Gemini.body(Gemini.chunk([Gemini.call("now", undefined, { willContinue: true })]), Gemini.finish("STOP")),
    truncated: Gemini.body(
      Gemini.chunk([Gemini.call("now", undefined, { willContinue: true })]),
      Gemini.finish("MAX_TOKENS")
    ),
    begun: Gemini.body(
      Gemini.chunk([
        Gemini.call("now", undefined, { partialArgs: [{ jsonPath: "$.x", numberValue: 1 }], willContinue: true })
      ]),
      Gemini.finish("STOP")
    ),
    outcome: (body) => Gemini.outcomeOf(body, {}, Gemini.offering("now"))
  },
  "effect/ai": {
    whole: EffectAi.body({ type: "tool-params-start", id: "a", name: "now" }, EffectAi.finish("tool-calls")),
    truncated: EffectAi.body({ type: "tool-params-start", id: "a", name: "now" }, EffectAi.finish("length")),
    begun: EffectAi.body(
      { type: "tool-params-start", id: "a", name: "now" },
      { type: "tool-params-delta", id: "a", delta: "{\"x\":" },
      EffectAi.finish("tool-calls")
    ),
    outcome: (body) => EffectAi.outcomeOf(body)
  }
}

describe("M-34: a call without any argument fragment", () => {
  const found = (outcome: Chunks.Outcome) => callsOf(outcome).map(({ args, argumentsLost }) => [args, argumentsLost])

  for (const [name, { begun, outcome, truncated, whole }] of Object.entries(bare)) {
    it.effect(`M-34, I-06: ${name}: a call without fragments has no arguments in a complete reply, and has lost them in a cut reply`, () =>
      Effect.gen(function*() {
        assert.deepStrictEqual(found(yield* outcome(whole)), [[{}, undefined]])
        assert.deepStrictEqual(found(yield* outcome(truncated)), [[{}, "truncated"]])
        const [[args, lost] = [], ...others] = found(yield* outcome(begun))
        assert.deepStrictEqual([args, others], [{}, []])
        assert.isDefined(lost, "fragments had begun")
      }))
  }

  it.effect("M-34, I-06: the AI SDK: a call announced and never made has no arguments in a complete reply, and has lost them in a cut reply", () =>
    Effect.gen(function*() {
      const start = { type: "tool-input-start", id: "a", toolName: "now" }
      const delta = { type: "tool-input-delta", id: "a", delta: "{\"x\":" }
      const ask = (...parts: ReadonlyArray<Readonly<Record<string, unknown>>>) =>
        Effect.map(AiSdk.outcomeOfParts(...parts), found)
      assert.deepStrictEqual(yield* ask(start, AiSdk.finish("tool-calls")), [[{}, undefined]])
      assert.deepStrictEqual(yield* ask(start, AiSdk.finish("length")), [[{}, "truncated"]])
      assert.deepStrictEqual(yield* ask(start, AiSdk.finish("content-filter")), [[{}, "missing_fragments"]])
      assert.deepStrictEqual(yield* ask(start, delta, AiSdk.finish("tool-calls")), [[{}, "json_decode_error"]])
    }))

  it("M-34, I-06, R-340: Collector: a call without fragments has no arguments if the message ended well, and has lost them otherwise", () => {
    const started: Event.Event = { _tag: "ToolCallStarted", id: "a", name: "now" }
    const ended = (finishReason: "stop" | "tool_calls" | "other" | "length" | "error" | "content_filter" | null) =>
      ({ _tag: "MessageCompleted", message: Message.assistant(""), finishReason }) as const
    const lost = (...events: ReadonlyArray<Event.Event>) => {
      const { toolCalls } = Collector.toResponse(Collector.applyAll(Collector.initial(), [started, ...events]))
      assert.deepStrictEqual(Collector.classify([started, ...events]).toolCalls, toolCalls)
      assert.deepStrictEqual(toolCalls[0]?.arguments, {})
      return toolCalls[0]?.argumentsLost
    }
    for (const reason of ["stop", "tool_calls", "other", null] as const) assert.isUndefined(lost(ended(reason)))
    assert.strictEqual(lost(ended("length")), "truncated")
    for (const reason of ["error", "content_filter"] as const) assert.isDefined(lost(ended(reason)), reason)
    assert.strictEqual(lost(), "missing_fragments")
    assert.isDefined(lost({ _tag: "Error", error: "broken" }, ended("tool_calls")))
    assert.isDefined(lost({ _tag: "ToolCallDelta", id: "a", argumentsDelta: "{" }, ended("tool_calls")))
  })

  it.effect("M-34: for a call without fragments, a tool without parameters runs, and a tool with parameters answers its schema error", () =>
    Effect.scoped(Effect.gen(function*() {
      const calls = Chunks.body(
        Chunks.call({ index: 0, id: "a", name: "now" }),
        Chunks.call({ index: 1, id: "b", name: "search", arguments: null }),
        Chunks.finish("tool_calls")
      )
      const last = Chunks.body(Chunks.said("ok"), Chunks.finish("stop"))
      const server = yield* Server.serve((_, index) => ({ pieces: [index === 0 ? calls : last] }))
      const now = Tool.make("now", { description: "", parameters: {}, handler: () => Effect.succeed("noon") })
      const search = Tool.make("search", {
        description: "",
        parameters: { query: Schema.String },
        handler: ({ query }) => Effect.succeed(query)
      })
      const { thread } = yield* Chat.run("go", { tools: [now, search], policy: Policy.standard }).pipe(
        Effect.provide(Chunks.layer(server.url))
      )
      const [first, second] = thread.messages.filter(({ role }) => role === "tool")
      assert.deepStrictEqual([first?.content, first?.isError], ["noon", undefined])
      assert.isTrue(second?.isError)
      assert.include(String(second?.content), "query")
    })))

  it.effect("M-33, M-34: the adapter test suite accepts adapters that meet both rules", () =>
    Effect.gen(function*() {
      const failures = (body: string, layer: (url: string) => ReturnType<typeof Chunks.layer>) =>
        Effect.scoped(Effect.gen(function*() {
          const server = yield* Server.serve(() => ({ pieces: [body] }))
          return yield* Conformance.failures(AdapterSuite.answering(), layer(server.url))
        }))
      assert.deepStrictEqual(yield* failures(bare["OpenAiChat, missing"]!.whole, Chunks.layer), [])
      assert.deepStrictEqual(yield* failures(bare["Anthropic"]!.whole, Anthropic.layer), [])
      const deep = filled(replies["Gemini, whole"]!.body, nested(5000))
      assert.deepStrictEqual(yield* failures(deep, Gemini.layer), [])
    }))
})
