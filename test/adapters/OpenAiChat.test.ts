/**
 * What a streamed reply says: text, reasoning, calls out of fragments, truncation and the finish word. The replies come
 * from a server on the loopback interface, over the real HTTP client.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Collector, type Event, Message, type Response } from "heddle"
import {
  body,
  call,
  calls,
  chunk,
  finish,
  interleaved,
  interleavedCalls,
  of,
  outcomeOf,
  request,
  said
} from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"

const tagsOf = (events: ReadonlyArray<Event.AdapterEvent>) => events.map((event) => event._tag)

const completed = (events: ReadonlyArray<Event.AdapterEvent>) => of(events, "MessageCompleted")[0]!

/** What the events fold into. */
const responseOf = (events: ReadonlyArray<Event.AdapterEvent>) =>
  Collector.toResponse(Collector.applyAll(Collector.initial(), events))

describe("the text of a Chat Completions reply", () => {
  it.effect("R-334: the reply streams and joins its text between the start and the end of the message", () =>
    Effect.gen(function*() {
      const { error, events } = yield* outcomeOf(
        body(said("Hel"), said(""), chunk({ content: null }), said("lo"), finish("stop"))
      )
      assert.isUndefined(error)
      assert.deepStrictEqual(events, [
        { _tag: "MessageStarted", message: Message.assistant("") },
        { _tag: "TextDelta", id: null, delta: "Hel" },
        { _tag: "TextDelta", id: null, delta: "lo" },
        { _tag: "TextCompleted", id: null, text: "Hello" },
        {
          _tag: "MessageCompleted",
          message: { ...Message.assistant("Hello"), finishReason: "stop" },
          finishReason: "stop",
          rawFinishReason: "stop",
          responseId: "chatcmpl-1",
          model: "test-model"
        }
      ])
    }))

  it.effect("R-334: reasoning stays apart from the text, and alternative reasoning fields count once", () =>
    Effect.gen(function*() {
      const details = [{ type: "reasoning.text", text: "b" }]
      const { events } = yield* outcomeOf(
        body(
          chunk({ reasoning_content: "a" }),
          chunk({ reasoning: "b", reasoning_details: details }),
          chunk({ reasoning_details: [{ type: "reasoning.summary", summary: "c" }] }),
          chunk({
            content: [{ type: "thinking", thinking: [{ type: "text", text: "d" }] }, { type: "text", text: "Hi" }]
          }),
          finish("stop")
        ),
        { vendor: "openrouter" }
      )
      assert.deepStrictEqual(of(events, "ReasoningDelta").map((event) => event.delta), ["a", "b", "c", "d"])
      assert.deepStrictEqual(of(events, "TextCompleted").map((event) => event.text), ["Hi"])
      const kept = [...details, { type: "reasoning.summary", summary: "c" }]
      assert.deepStrictEqual(completed(events).message.reasoning, [
        { type: "reasoning", text: "abcd", metadata: { openaiChat: { reasoning_details: kept, server: "openrouter" } } }
      ])
    }))

  it.effect("R-358: the metadata lists each source once, and log probabilities in order", () =>
    Effect.gen(function*() {
      const source = (url: string) => ({ type: "url_citation", url_citation: { url } })
      const token = (text: string) => ({ token: text, logprob: -0.5 })
      const { events } = yield* outcomeOf(body(
        chunk({ content: "a", annotations: [source("x")] }, { logprobs: { content: [token("a")], refusal: null } }),
        chunk({ content: "b", annotations: [source("x"), source("y")] }, { logprobs: { content: [token("b")] } }),
        chunk({}, { finish_reason: "stop", logprobs: null })
      ))
      assert.deepInclude(completed(events).metadata, {
        annotations: [source("x"), source("y")],
        logprobs: [token("a"), token("b")]
      })
      const plain = yield* outcomeOf(body(said("a"), finish("stop")))
      assert.notProperty(completed(plain.events).metadata ?? {}, "annotations")
      assert.notProperty(completed(plain.events).metadata ?? {}, "logprobs")
    }))

  it.effect("R-333: a reply without content is a message without text and calls", () =>
    Effect.gen(function*() {
      const { error, events } = yield* outcomeOf(body(chunk({ role: "assistant", content: "" }), finish("stop")))
      assert.isUndefined(error)
      assert.deepStrictEqual(tagsOf(events), ["MessageStarted", "MessageCompleted"])
      assert.strictEqual(completed(events).finishReason, "stop")
      assert.isNull(responseOf(events).outputText)
    }))

  it.effect("O-08, R-334: all choices of a reply form a single message, and a refusal is part of the metadata", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(
        chunk({ content: "other" }, { index: 1 }),
        chunk({ refusal: "I can" }),
        chunk({ refusal: "not" }),
        chunk({}, { index: 1, finish_reason: "length" }),
        finish("stop")
      ))
      assert.deepStrictEqual(of(events, "TextDelta").map(({ delta }) => delta), ["other"])
      assert.strictEqual(completed(events).metadata?.["refusal"], "I cannot")
      assert.strictEqual(completed(events).finishReason, "length")
    }))
})

describe("the tool calls of a Chat Completions reply", () => {
  it.effect("R-335, R-337, R-356: two interleaved calls keep their fragments apart, and each emits its own deltas", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(interleaved)
      assert.deepStrictEqual(calls(events), interleavedCalls)
      assert.deepStrictEqual(tagsOf(events).filter((tag) => tag.startsWith("ToolCall")), [
        "ToolCallStarted",
        "ToolCallStarted",
        "ToolCallDelta",
        "ToolCallDelta",
        "ToolCallDelta",
        "ToolCallDelta",
        "ToolCallCompleted",
        "ToolCallCompleted"
      ])
      assert.strictEqual(tagsOf(events).at(-1), "MessageCompleted")
      assert.deepStrictEqual(
        of(events, "ToolCallDelta").filter(({ id }) => id === "call_b").map((event) => event.argumentsDelta),
        ["{\"path\":\"a", ".txt\"}"]
      )
      assert.deepStrictEqual(completed(events).message.toolCalls?.map(({ id }) => id), ["call_a", "call_b"])
    }))

  it.effect("R-349: a call completes as soon as the next call opens, before the reply ends", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(
        call({ index: 0, id: "a", name: "search", arguments: "{\"q\":1}" }),
        call({ index: 1, id: "b", name: "search", arguments: "{\"q\":2}" }),
        said("later"),
        finish("tool_calls"),
        said("last")
      ))
      assert.deepStrictEqual(tagsOf(events).slice(1), [
        "ToolCallStarted",
        "ToolCallDelta",
        "ToolCallCompleted",
        "ToolCallStarted",
        "ToolCallDelta",
        "TextDelta",
        "ToolCallCompleted",
        "TextDelta",
        "TextCompleted",
        "MessageCompleted"
      ])
      assert.strictEqual(responseOf(events).outputText, "laterlast")
    }))

  it.effect("R-343: ids distinguish calls that all have index 0, whichever id a fragment names", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(
        call({ index: 0, id: "a", name: "search", arguments: "{\"q\":" }),
        call({ index: 0, id: "b", name: "search", arguments: "{\"q\":2}" }),
        call({ index: 0, id: "a", arguments: "1}" }),
        call({ index: 0, id: "c", name: "search", arguments: "{\"q\":3" }),
        call({ index: 0, arguments: "}" }),
        finish("stop")
      ))
      assert.deepStrictEqual(calls(events), [
        { id: "b", name: "search", arguments: { q: 2 } },
        { id: "a", name: "search", arguments: { q: 1 } },
        { id: "c", name: "search", arguments: { q: 3 } }
      ])
      assert.deepStrictEqual(responseOf(events).toolCalls.map(({ id }) => id), ["a", "b", "c"])
    }))

  it.effect("R-343: the adapter ignores repeated, null and empty ids and names in later fragments", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(
        call({ index: 1, id: null, type: "", name: null, arguments: "" }),
        call({ index: 1, id: "0", type: "function", name: "version", arguments: null }),
        call({ index: 1, id: "0", type: "function", name: "version", arguments: "{" }),
        call({ index: 1, id: "", type: "", name: "", arguments: "\"v\":" }),
        call({ index: 1, id: null, name: null, arguments: null }),
        call({ index: 1, id: "0", name: "version", arguments: "1}" }),
        finish("tool_calls")
      ))
      assert.deepStrictEqual(calls(events), [{ id: "0", name: "version", arguments: { v: 1 } }])
    }))

  it.effect("R-336: a call without an id gets a new id, and a call without a name is dropped", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(
        call({ index: 0, name: "search", arguments: "{\"q\":1}" }),
        call({ index: 0, name: "search", arguments: "{\"q\":2}" }),
        call({ index: 0, id: "", name: "read", arguments: "{}" }),
        call({ name: "read", arguments: "{\"p\":1}" }),
        call({ name: "read", arguments: "{\"p\":" }),
        call({ arguments: "2}" }),
        call({ index: 7, arguments: "{\"lost\":true}" }),
        finish("stop")
      ))
      const found = of(events, "ToolCallCompleted")
      assert.deepStrictEqual(
        found.map(({ arguments: args, name }) => [name, args]),
        [["search", { q: 1 }], ["search", { q: 2 }], ["read", {}], ["read", { p: 1 }], ["read", { p: 2 }]]
      )
      assert.strictEqual(new Set(found.map(({ id }) => id)).size, 5)
      for (const { id } of found) {
        assert.match(id, /^call_[\da-f]{12}7[\da-f]{3}[89ab][\da-f]{15}$/)
      }
      assert.deepStrictEqual(found.map(({ id }) => id), of(events, "ToolCallStarted").map(({ id }) => id))
    }))

  it.effect("R-297, R-336: of two calls with one id the first keeps the id, and the second gets a new id", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(
        call({ index: 0, id: "x", name: "search", arguments: "{\"q\":1}" }),
        call({ index: 1, id: "x", name: "search", arguments: "{\"q\":" }),
        call({ index: 1, arguments: "2}" }),
        finish("tool_calls")
      ))
      assert.deepStrictEqual(calls(events), [
        { id: "x", name: "search", arguments: { q: 1 } },
        { id: "x_2", name: "search", arguments: { q: 2 } }
      ])
      const { duplicateOf, ...kept } = of(events, "ToolCallCompleted")[1]!.metadata!
      assert.strictEqual(duplicateOf, "x")
      assert.deepStrictEqual(Server.anywhere(kept), { openaiChat: { server: "anywhere" } })
    }))

  it.effect("R-338: fragments before the name count, and are emitted once the name arrives", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(
        call({ index: 0, arguments: "{\"q\"" }),
        call({ index: 0, id: "a", name: "search", arguments: ":1" }),
        call({ index: 0, arguments: "}" }),
        finish("tool_calls")
      ))
      assert.deepStrictEqual(calls(events), [{ id: "a", name: "search", arguments: { q: 1 } }])
      assert.deepStrictEqual(of(events, "ToolCallDelta").map((event) => event.argumentsDelta), ["{\"q\"", ":1", "}"])
    }))

  it.effect("M-34, R-340: missing arguments are the empty object, whether empty, blank, null or absent on the wire", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(
        call({ index: 0, id: "empty", name: "now", arguments: "" }),
        call({ index: 1, id: "blank", name: "now", arguments: " " }),
        call({ index: 2, id: "null", name: "now", arguments: "null" }),
        call({ index: 3, id: "never", name: "now" }),
        finish("tool_calls")
      ))
      const byId = Object.fromEntries(of(events, "ToolCallCompleted").map((event) => [event.id, event.argumentsLost]))
      assert.deepStrictEqual(byId, { empty: undefined, blank: undefined, null: undefined, never: undefined })
    }))

  /** As a server writes it that cuts its text, and with it the names, wherever a token ends. */
  const inTwoPieces = [
    "data: {\"id\":\"chatcmpl-7\",\"object\":\"chat.completion.chunk\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":null},\"finish_reason\":null}]}",
    "data: {\"id\":\"chatcmpl-7\",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_9\",\"type\":\"function\",\"function\":{\"name\":\"get_\",\"arguments\":\"\"}}]},\"finish_reason\":null}]}",
    "data: {\"id\":\"chatcmpl-7\",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"name\":\"weather\",\"arguments\":\"\"}}]},\"finish_reason\":null}]}",
    "data: {\"id\":\"chatcmpl-7\",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"city\\\":\"}}]},\"finish_reason\":null}]}",
    "data: {\"id\":\"chatcmpl-7\",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"\\\"Oslo\\\"}\"}}]},\"finish_reason\":null}]}",
    "data: {\"id\":\"chatcmpl-7\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}",
    "data: [DONE]"
  ].map((line) => `${line}\n\n`).join("")

  /** As a server writes it that repeats the header of a call in every fragment. */
  const repeated = [
    "data: {\"id\":\"gen-3\",\"object\":\"chat.completion.chunk\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"index\":0,\"id\":\"call_9\",\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"arguments\":\"\"}}]},\"finish_reason\":null}]}",
    "data: {\"id\":\"gen-3\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"index\":0,\"id\":\"call_9\",\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"arguments\":\"\"}}]},\"finish_reason\":null}]}",
    "data: {\"id\":\"gen-3\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"index\":0,\"id\":\"call_9\",\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"arguments\":\"{\\\"city\\\":\"}}]},\"finish_reason\":null}]}",
    "data: {\"id\":\"gen-3\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"index\":0,\"id\":\"call_9\",\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"arguments\":\"\\\"Oslo\\\"}\"}}]},\"finish_reason\":\"tool_calls\"}]}",
    "data: [DONE]"
  ].map((line) => `${line}\n\n`).join("")

  for (
    const [kind, transcript] of [["a name in two pieces", inTwoPieces], ["a name in every fragment", repeated]] as const
  ) {
    it.effect(`M-38: ${kind} makes a single call, emitted once with its whole name`, () =>
      Effect.gen(function*() {
        const tools = ["get_weather", "get_time"].map((name) => ({ name, description: "", parameters: {} }))
        for (const asked of [request, { ...request, tools }]) {
          const { error, events } = yield* outcomeOf(transcript, {}, asked)
          assert.isUndefined(error)
          assert.deepStrictEqual(of(events, "ToolCallStarted").map(({ id, name }) => [id, name]), [[
            "call_9",
            "get_weather"
          ]])
          assert.deepStrictEqual(calls(events), [{ id: "call_9", name: "get_weather", arguments: { city: "Oslo" } }])
          assert.deepStrictEqual(completed(events).message.toolCalls?.map(({ name }) => name), ["get_weather"])
        }
        const repeatedId = yield* outcomeOf(body(
          call({ index: 0, id: "a", name: "get_" }),
          call({ index: 0, id: "a", name: "weather" }),
          finish("tool_calls")
        ))
        assert.deepStrictEqual(calls(repeatedId.events), [{ id: "a", name: "get_weather", arguments: {} }])
      }))
  }

  it.effect("M-38: the index keeps names in pieces apart, and the last piece may come with the first arguments", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(
        call({ index: 0, id: "a", name: "get_" }),
        call({ index: 1, id: "b", name: "read" }),
        call({ index: 0, name: "wea" }),
        call({ index: 1, name: "_file", arguments: "{\"path\":" }),
        call({ index: 0, arguments: "{}" }),
        call({ index: 1, arguments: "1}" }),
        finish("tool_calls")
      ))
      assert.deepStrictEqual(calls(events), [
        { id: "a", name: "get_wea", arguments: {} },
        { id: "b", name: "read_file", arguments: { path: 1 } }
      ])
      const legacy = yield* outcomeOf(body(
        chunk({ function_call: { name: "get_" } }),
        chunk({ function_call: { name: "weather", arguments: "" } }),
        chunk({ function_call: { arguments: "{}" } }),
        finish("function_call")
      ))
      assert.deepStrictEqual(calls(legacy.events).map((one) => (one as { readonly name: string }).name), [
        "get_weather"
      ])
    }))

  it.effect("M-38: another name starts another call after a new id, after arguments, or after the name of a declared tool", () =>
    Effect.gen(function*() {
      const names = (...fragments: ReadonlyArray<ReturnType<typeof call>>) =>
        Effect.map(
          outcomeOf(body(...fragments, finish("tool_calls")), {}, {
            ...request,
            tools: [{ name: "now", description: "", parameters: {} }]
          }),
          ({ events }) => of(events, "ToolCallCompleted").map(({ name }) => name)
        )
      const another = yield* names(
        call({ index: 0, id: "a", name: "get_" }),
        call({ index: 0, id: "b", name: "weather" })
      )
      assert.deepStrictEqual(another, ["get_", "weather"])
      const late = yield* names(call({ index: 0, name: "get_", arguments: "{}" }), call({ index: 0, name: "weather" }))
      assert.deepStrictEqual(late, ["get_", "weather"])
      const declared = yield* names(call({ index: 0, name: "now" }), call({ index: 0, name: "later" }))
      assert.deepStrictEqual(declared, ["now", "later"])
    }))

  it.effect("R-339, R-359: arguments that are not a JSON object are lost, stay as raw text, and spoil no other call", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(
        call({ index: 0, id: "a", name: "search", arguments: "{\"a\":" }),
        call({ index: 1, id: "b", name: "search", arguments: "[1]" }),
        call({ index: 2, id: "c", name: "search", arguments: "{\"c\":3}" }),
        finish("tool_calls")
      ))
      const found = Object.fromEntries(of(events, "ToolCallCompleted").map((event) => [event.id, event]))
      assert.deepStrictEqual([found["a"]!.arguments, found["a"]!.argumentsLost], [{}, "json_decode_error"])
      assert.deepStrictEqual([found["b"]!.arguments, found["b"]!.argumentsLost], [{}, "not_an_object"])
      assert.deepStrictEqual([found["c"]!.arguments, found["c"]!.argumentsLost], [{ c: 3 }, undefined])
      assert.strictEqual(found["a"]!.rawArguments, "{\"a\":")
    }))

  it.effect("R-339: the parsed arguments have no __proto__ key at any depth", () =>
    Effect.gen(function*() {
      const text = "{\"__proto__\":{\"admin\":true},\"q\":{\"\\u005f_proto__\":1}}"
      const { events } = yield* outcomeOf(
        body(call({ index: 0, id: "a", name: "search", arguments: text }), finish("stop"))
      )
      const args = of(events, "ToolCallCompleted")[0]!.arguments
      assert.deepStrictEqual(Object.getOwnPropertyNames(args), ["q"])
      assert.strictEqual(Object.getPrototypeOf(args), Object.prototype)
      assert.deepStrictEqual(Object.getOwnPropertyNames(args["q"]), [])
      assert.isUndefined((args as { admin?: unknown }).admin)
    }))

  it.effect("R-342: the metadata of a call keeps its extra_content from the wire", () =>
    Effect.gen(function*() {
      const extra = { google: { thought_signature: "abc" } }
      const { events } = yield* outcomeOf(
        body(
          call({ index: 0, id: "a", name: "search", arguments: "{}", extra_content: extra, custom: {}, padding: null }),
          finish("tool_calls")
        ),
        { vendor: "openrouter" }
      )
      assert.deepStrictEqual(of(events, "ToolCallCompleted")[0]!.metadata, {
        openaiChat: { extra_content: extra, server: "openrouter" }
      })
    }))

  it.effect("R-349: a legacy function_call is read as a call, and an empty function_call is ignored", () =>
    Effect.gen(function*() {
      const legacy = yield* outcomeOf(body(
        chunk({ function_call: { name: "search", arguments: "{\"q\":" } }),
        chunk({ function_call: { arguments: "1}" } }),
        finish("function_call")
      ))
      assert.deepStrictEqual(of(legacy.events, "ToolCallCompleted").map((event) => event.arguments), [{ q: 1 }])
      assert.strictEqual(completed(legacy.events).finishReason, "tool_calls")
      const zero = yield* outcomeOf(
        body(chunk({ content: "Hi", function_call: { name: "", arguments: "" } }), finish("stop"))
      )
      assert.deepStrictEqual(tagsOf(zero.events), ["MessageStarted", "TextDelta", "TextCompleted", "MessageCompleted"])
    }))

  it.effect("R-349: a new fragment after a complete call fails the reply; a repetition of the call does not", () =>
    Effect.gen(function*() {
      const opening = [
        call({ index: 0, id: "a", name: "search", arguments: "{\"q\":1}" }),
        call({ index: 1, id: "b", name: "search", arguments: "{\"q\":2}" })
      ]
      const repeated = yield* outcomeOf(body(...opening, call({ index: 0, arguments: "{\"q\":1}" }), finish("stop")))
      assert.deepStrictEqual([repeated.error, calls(repeated.events).length], [undefined, 2])
      const broken = yield* outcomeOf(body(...opening, call({ index: 0, arguments: "{\"q\":3}" }), finish("stop")))
      assert.strictEqual(broken.error?.reason, "malformed_response")
    }))
})

describe("a Chat Completions reply cut by the token limit", () => {
  const first = call({ index: 0, id: "a", name: "note", arguments: "{\"text\":\"whole\"}" })

  it.effect("R-357: a call cut by the token limit has lost its arguments as truncated", () =>
    Effect.gen(function*() {
      const cut = call({ index: 1, id: "b", name: "note", arguments: "{\"text\":\"The" })
      const { events } = yield* outcomeOf(body(first, cut, finish("length")))
      assert.deepStrictEqual(calls(events), [
        { id: "a", name: "note", arguments: { text: "whole" } },
        { id: "b", name: "note", arguments: {}, argumentsLost: "truncated" }
      ])
      assert.strictEqual(completed(events).finishReason, "length")
    }))

  it.effect("R-357: the last call at the token limit is truncated although its arguments parse", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(first, finish("length")))
      assert.deepStrictEqual(calls(events), [{ id: "a", name: "note", arguments: {}, argumentsLost: "truncated" }])
      assert.strictEqual(of(events, "ToolCallCompleted")[0]!.rawArguments, "{\"text\":\"whole\"}")
    }))

  it.effect("R-357: a call opened with empty arguments is truncated at the token limit, at every position", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(
        call({ index: 0, id: "a", name: "note", arguments: "" }),
        call({ index: 1, id: "b", name: "note", arguments: "" }),
        call({ index: 1, arguments: "{}" }),
        finish("length")
      ))
      assert.deepStrictEqual(of(events, "ToolCallCompleted").map((event) => event.argumentsLost), [
        "truncated",
        "truncated"
      ])
    }))

  it.effect("R-357: a cut call in a reply with finish reason tool_calls has lost its arguments", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(
        body(call({ index: 0, id: "a", name: "note", arguments: "{\"t" }), finish("tool_calls"))
      )
      assert.deepStrictEqual(of(events, "ToolCallCompleted").map((event) => event.argumentsLost), ["json_decode_error"])
    }))
})

describe("the finish reason of a Chat Completions reply", () => {
  it.effect("R-344, R-348: stop with calls means tool_calls, and the wire's finish reason is kept", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(
        body(call({ index: 0, id: "a", name: "now", arguments: "{}" }), finish("stop"))
      )
      assert.deepInclude(completed(events), { finishReason: "tool_calls", rawFinishReason: "stop" })
    }))

  const words: ReadonlyArray<readonly [string, Response.FinishReason]> = [
    ...["stop", "completed", "end_turn", "eos"].map((word) => [word, "stop"] as const),
    ...["tool_calls", "tool_use", "function_call"].map((word) => [word, "tool_calls"] as const),
    ...["length", "max_tokens", "max_output_tokens", "model_length"].map((word) => [word, "length"] as const),
    ["content_filter", "content_filter"],
    ["error", "error"],
    ["cancelled", "error"],
    ...["incomplete", "wobbly", "toString"].map((word) => [word, "other"] as const)
  ]

  it.effect("R-347, R-348: each finish reason is mapped, and an unknown finish reason maps to other", () =>
    Effect.forEach(words, ([word, reason]) =>
      Effect.gen(function*() {
        const { events } = yield* outcomeOf(body(said("x"), finish(word)))
        assert.deepInclude(completed(events), { finishReason: reason, rawFinishReason: word })
      })))

  it.effect("R-346: the last finish reason counts, and a missing or empty one changes nothing", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(finish("stop"), finish("length"), chunk({}), finish("")))
      assert.deepInclude(completed(events), { finishReason: "length", rawFinishReason: "length" })
      const wordless = yield* outcomeOf(body(said("x"), finish("")))
      assert.isNull(completed(wordless.events).finishReason)
      assert.isUndefined(wordless.error)
    }))
})
