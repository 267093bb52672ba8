/**
 * What a streamed reply says: text and thinking, calls out of blocks, and tools of the provider's own. The replies come from a server on the loopback interface, over the real HTTP client.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Collector, type Event } from "heddle"
import * as Wire from "../support/anthropic.ts"
import { calls, of } from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"

const { args, body, call, called, closed, completed, delta, ended, opened, outcomeOf, reply, start, text, thinking } =
  Wire

const tagsOf = (events: ReadonlyArray<Event.AdapterEvent>) => events.map((event) => event._tag)

const textsOf = (events: ReadonlyArray<Event.AdapterEvent>) => of(events, "TextCompleted").map((event) => event.text)

const responseOf = (events: ReadonlyArray<Event.AdapterEvent>) =>
  Collector.toResponse(Collector.applyAll(Collector.initial(), events))

describe("the text of a reply", () => {
  it.effect("R-334: the texts of all blocks join in order and complete once", () =>
    Effect.gen(function*() {
      const { error, events } = yield* outcomeOf(reply([text(0, "a", "", "b"), text(1, "c")], "end_turn"))
      assert.isUndefined(error)
      assert.deepStrictEqual(tagsOf(events), [
        "MessageStarted",
        "TextDelta",
        "TextDelta",
        "TextDelta",
        "TextCompleted",
        "MessageCompleted"
      ])
      assert.deepStrictEqual(textsOf(events), ["abc"])
      assert.deepInclude(completed(events).message, { role: "assistant", content: "abc", finishReason: "stop" })
      assert.notProperty(completed(events).message, "reasoning")
      const { model, responseId } = completed(events)
      assert.deepStrictEqual([responseId, model], ["msg_1", "test-model"])
    }))

  it.effect("R-334: the reply emits the opening text of a block and reads a block without an opening", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(
        start(),
        opened(0, { type: "text", text: "a" }),
        delta(0, { type: "text_delta", text: "b" }),
        closed(0),
        delta(1, { type: "text_delta", text: "c" }),
        delta(1, { type: "text_delta", text: 7 }),
        { type: "content_block_delta", delta: { type: "text_delta", text: "d" } },
        delta(2, { type: "thinking_delta", thinking: "hm" }),
        { type: "content_block_stop" },
        ...ended("end_turn")
      ))
      assert.deepStrictEqual(textsOf(events), ["abcd"])
      assert.strictEqual(responseOf(events).reasoning, "hm")
    }))

  it.effect("R-333: an empty reply is complete and has no text", () =>
    Effect.gen(function*() {
      const { error, events } = yield* outcomeOf(reply([], "end_turn"))
      assert.isUndefined(error)
      assert.deepStrictEqual(tagsOf(events), ["MessageStarted", "MessageCompleted"])
      assert.isNull(responseOf(events).outputText)
    }))

  it.effect("R-358: the metadata reports citations with their range in the text", () =>
    Effect.gen(function*() {
      const first = { type: "char_location", cited_text: "x" }
      const second = { type: "web_search_result_location", url: "https://example.com" }
      const { events } = yield* outcomeOf(body(
        start(),
        ...text(0, "So: "),
        opened(1, { type: "text", text: "", citations: [first] }),
        delta(1, { type: "citations_delta", citation: second }),
        delta(1, { type: "text_delta", text: "Ruby." }),
        closed(1),
        ...ended("end_turn")
      ))
      assert.deepStrictEqual(completed(events).metadata?.["anthropic"], {
        citations: [{ start: 4, end: 9, citation: first }, { start: 4, end: 9, citation: second }]
      })
      assert.notProperty(completed(events).message, "reasoning")
    }))
})

describe("the thinking of a reply", () => {
  it.effect("R-334, R-342: reasoning stays apart from the text and keeps the signature for the next request", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(
        reply([thinking(0, "hm", "sig_a"), thinking(1, "", "sig_b"), text(2, "Hi")], "end_turn")
      )
      assert.deepStrictEqual(of(events, "ReasoningDelta"), [{ _tag: "ReasoningDelta", id: null, delta: "hm" }])
      const metadata = { anthropic: { type: "thinking" } }
      assert.deepStrictEqual(completed(events).message.reasoning, [
        { type: "reasoning", text: "hm", signature: "sig_a", metadata },
        { type: "reasoning", text: "", signature: "sig_b", metadata }
      ])
      assert.deepStrictEqual(textsOf(events), ["Hi"])
    }))

  it.effect("R-342: a signature may come in pieces or with the block's opening", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(
        start(),
        opened(0, { type: "thinking", thinking: "whole", signature: "given" }),
        closed(0),
        opened(1, { type: "thinking", thinking: "" }),
        delta(1, { type: "signature_delta", signature: "a" }),
        delta(1, { type: "signature_delta", signature: "b" }),
        closed(1),
        ...text(2, "Hi"),
        ...ended("end_turn")
      ))
      const signatures = completed(events).message.reasoning?.map((part) => part.type === "reasoning" && part.signature)
      assert.deepStrictEqual(signatures, ["given", "ab"])
      assert.strictEqual(responseOf(events).reasoning, "whole")
    }))

  it.effect("R-342: redacted thinking is kept unchanged", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(reply([
        [opened(0, { type: "redacted_thinking", data: "EvgF" }), closed(0)],
        text(1, "Hi")
      ], "end_turn"))
      assert.deepStrictEqual(completed(events).message.reasoning, [
        { type: "reasoning", text: "", metadata: { anthropic: { type: "redacted_thinking", data: "EvgF" } } }
      ])
    }))
})

describe("the tool calls of a reply", () => {
  it.effect("R-349, R-356: a tool call is a block with argument fragments and completes when its block closes", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(Wire.rich)
      assert.deepStrictEqual(calls(events), [
        { id: "toolu_a", name: "search", arguments: { query: "tøj" } },
        { id: "toolu_b", name: "now", arguments: {} }
      ])
      assert.deepStrictEqual(tagsOf(events).filter((tag) => tag.startsWith("ToolCall")), [
        "ToolCallStarted",
        "ToolCallDelta",
        "ToolCallDelta",
        "ToolCallCompleted",
        "ToolCallStarted",
        "ToolCallCompleted"
      ])
      assert.deepStrictEqual(completed(events).message.toolCalls?.map(({ id }) => id), ["toolu_a", "toolu_b"])
      assert.strictEqual(completed(events).finishReason, "tool_calls")
    }))

  it.effect("R-335, R-337: blocks open at the same time keep their fragments apart", () =>
    Effect.gen(function*() {
      const count = 64
      const indices = Array.from({ length: count }, (_, index) => index)
      const text = (index: number) => JSON.stringify({ n: index, pad: "x".repeat(index % 5) })
      const pieces = (index: number) => [text(index).slice(0, 4), text(index).slice(4, 7), text(index).slice(7)]
      const { error, events } = yield* outcomeOf(body(
        start(),
        ...indices.map((index) => call(index, `toolu_${index}`, "count")),
        ...[0, 1, 2].flatMap((round) => indices.toReversed().map((index) => args(index, pieces(index)[round]!))),
        ...indices.map(closed),
        ...ended("tool_use")
      ))
      assert.isUndefined(error)
      assert.deepStrictEqual(
        responseOf(events).toolCalls.map((found) => [found.id, found.arguments["n"]]),
        indices.map((index) => [`toolu_${index}`, index])
      )
    }))

  it.effect("R-349: a call that continues while another block is open completes when its own block closes", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(
        start(),
        call(0, "a", "search"),
        args(0, "{\"q\":"),
        opened(1, { type: "text", text: "Hi" }),
        args(0, "1}"),
        closed(0),
        delta(1, { type: "text_delta", text: "!" }),
        closed(1),
        ...ended("tool_use")
      ))
      assert.deepStrictEqual(tagsOf(events).slice(-5), [
        "ToolCallDelta",
        "ToolCallCompleted",
        "TextDelta",
        "TextCompleted",
        "MessageCompleted"
      ])
      assert.deepStrictEqual(calls(events), [{ id: "a", name: "search", arguments: { q: 1 } }])
    }))

  it.effect("M-34, I-05, I-06, R-340: a call with empty or missing argument fragments has no arguments", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(reply([
        called(0, "a", "now", ""),
        called(1, "b", "now"),
        called(2, "c", "now", " "),
        called(3, "d", "now")
      ], "tool_use"))
      assert.deepStrictEqual(
        Object.fromEntries(of(events, "ToolCallCompleted").map(({ argumentsLost, id }) => [id, argumentsLost])),
        { a: undefined, b: undefined, c: undefined, d: undefined }
      )
    }))

  it.effect("R-349: a call by the provider's code has its whole input from the start and names its caller", () =>
    Effect.gen(function*() {
      const caller = { type: "code_execution_20250825", tool_id: "srvtoolu_1" }
      const { events } = yield* outcomeOf(reply([
        [call(0, "a", "roll", { input: { player: "one" }, caller }), closed(0)],
        [call(1, "b", "roll", { caller }), closed(1)],
        [call(2, "c", "roll", { input: { player: "two" }, caller: { type: "direct" } })]
      ], "tool_use"))
      assert.deepStrictEqual(calls(events), [
        { id: "a", name: "roll", arguments: { player: "one" } },
        { id: "b", name: "roll", arguments: {} },
        { id: "c", name: "roll", arguments: { player: "two" } }
      ])
      const server = "anywhere"
      assert.deepStrictEqual(Server.anywhere(of(events, "ToolCallCompleted").map(({ metadata }) => metadata)), [
        { anthropic: { caller, server } },
        { anthropic: { caller, server } },
        { anthropic: { server } }
      ])
      assert.deepStrictEqual(of(events, "ToolCallDelta").map((event) => event.argumentsDelta), [
        "{\"player\":\"one\"}",
        "{\"player\":\"two\"}"
      ])
    }))

  it.effect("I-21, R-336: fragments before their block count, a call without an id gets an id, and a call without a name is dropped", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(
        start(),
        args(0, "{\"a\""),
        opened(0, { type: "tool_use", name: "early", input: {} }),
        args(0, ":1}"),
        closed(0),
        opened(1, { type: "tool_use", id: "x", name: "", input: {} }),
        args(1, "{}"),
        closed(1),
        args(7, "{\"lost\":true}"),
        call(0, "late", "late"),
        args(0, "{}"),
        closed(0),
        ...ended("tool_use")
      ))
      const [found, late, ...others] = of(events, "ToolCallCompleted")
      assert.deepStrictEqual([found?.name, found?.arguments, others], ["early", { a: 1 }, []])
      assert.deepStrictEqual([late?.id, late?.rawArguments], ["late", "{}"])
      assert.match(found!.id, /^call_[\da-f]{32}$/)
    }))

  it.effect("R-343: blocks that all have index 0 stay distinct, also when their kinds differ", () =>
    Effect.gen(function*() {
      const { error, events } = yield* outcomeOf(body(
        start(),
        opened(0, { type: "text", text: "" }),
        delta(0, { type: "text_delta", text: "Hi" }),
        call(0, "a", "search"),
        args(0, "{\"q\":1}"),
        delta(0, { type: "text_delta", text: "!" }),
        call(0, "b", "search"),
        args(0, "{\"q\":2}"),
        closed(0),
        ...ended("tool_use")
      ))
      assert.isUndefined(error)
      assert.deepStrictEqual(textsOf(events), ["Hi!"])
      assert.deepStrictEqual(calls(events), [
        { id: "a", name: "search", arguments: { q: 1 } },
        { id: "b", name: "search", arguments: { q: 2 } }
      ])
    }))

  it.effect("R-297, R-336: of two calls with one id the second gets a new id; a call opened twice is a single call", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(reply([
        called(0, "x", "search", "{\"q\":1}"),
        [call(1, "x", "search"), call(1, "x", "search"), args(1, "{\"q\":2}"), closed(1)]
      ], "tool_use"))
      assert.deepStrictEqual(calls(events), [
        { id: "x", name: "search", arguments: { q: 1 } },
        { id: "x_2", name: "search", arguments: { q: 2 } }
      ])
      const { duplicateOf, ...kept } = of(events, "ToolCallCompleted")[1]!.metadata!
      assert.strictEqual(duplicateOf, "x")
      assert.deepStrictEqual(Server.anywhere(kept), { anthropic: { server: "anywhere" } })
    }))

  it.effect("R-339, R-359: arguments that are not a JSON object are lost, stay as raw text, and spoil no other call", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(reply([
        called(0, "a", "search", "{\"a\":"),
        called(1, "b", "search", "[1]"),
        called(2, "c", "search", "{\"c\":3}")
      ], "tool_use"))
      const found = Object.fromEntries(of(events, "ToolCallCompleted").map((event) => [event.id, event]))
      assert.deepStrictEqual([found["a"]!.arguments, found["a"]!.argumentsLost], [{}, "json_decode_error"])
      assert.deepStrictEqual([found["b"]!.arguments, found["b"]!.argumentsLost], [{}, "not_an_object"])
      assert.deepStrictEqual([found["c"]!.arguments, found["c"]!.argumentsLost], [{ c: 3 }, undefined])
      assert.strictEqual(found["a"]!.rawArguments, "{\"a\":")
      assert.deepStrictEqual(responseOf(events).toolCalls.map(({ id }) => id), ["a", "b", "c"])
    }))

  it.effect("R-339: the parsed arguments have no __proto__ key at any depth", () =>
    Effect.gen(function*() {
      const text = "{\"__proto__\":{\"admin\":true},\"q\":{\"\\u005f_proto__\":1}}"
      const { events } = yield* outcomeOf(reply([called(0, "a", "search", text)], "tool_use"))
      const found = of(events, "ToolCallCompleted")[0]!.arguments
      assert.deepStrictEqual(Object.getOwnPropertyNames(found), ["q"])
      assert.strictEqual(Object.getPrototypeOf(found), Object.prototype)
      assert.deepStrictEqual(Object.getOwnPropertyNames(found["q"]), [])
    }))

  it.effect("R-349: a new fragment after a complete call fails the reply; a repetition does not", () =>
    Effect.gen(function*() {
      const opening = called(0, "a", "search", "{\"q\":1}")
      const repeated = yield* outcomeOf(reply([opening, [args(0, "{\"q\":1}"), args(0, " ")]], "tool_use"))
      assert.deepStrictEqual([repeated.error, calls(repeated.events).length], [undefined, 1])
      const broken = yield* outcomeOf(reply([opening, [args(0, "{\"q\":3}")]], "tool_use"))
      assert.strictEqual(broken.error?.reason, "malformed_response")
    }))

  it.effect("R-343: two replies in one stream fail the reply, and no call is built from both", () =>
    Effect.gen(function*() {
      const first = [start(), call(0, "first", "note"), args(0, "{\"value\":\"Spark")]
      const second = [
        start({ id: "msg_2" }),
        ...called(0, "second", "note", "{\"value\":\"Day\"}"),
        ...ended("tool_use")
      ]
      const { error, events } = yield* outcomeOf(body(...first, ...second))
      assert.deepStrictEqual([error?.reason, error?.detail], ["malformed_response", "the stream starts a second reply"])
      assert.deepStrictEqual(of(events, "ToolCallCompleted"), [])
      const nameless = yield* outcomeOf(body(...first, start({ id: null }), ...ended("tool_use")))
      assert.strictEqual(nameless.error?.detail, "the stream starts a second reply")
      const repeated = yield* outcomeOf(body(start(), start(), ...text(0, "Hi"), start(), ...ended("end_turn")))
      assert.deepStrictEqual([repeated.error, textsOf(repeated.events)], [undefined, ["Hi"]])
    }))
})

describe("the tools of the provider", () => {
  const search = { type: "server_tool_use", id: "srvtoolu_1", name: "web_search", input: {} }
  const found = { type: "web_search_tool_result", tool_use_id: "srvtoolu_1", content: [{ url: "https://example.com" }] }

  it.effect("I-10, R-332: a server-side call is listed as executed by the provider and makes no tool turn", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(reply([
        [opened(0, search), args(0, ""), args(0, "{\"query\":\"sky\"}"), closed(0)],
        [opened(1, found), closed(1)],
        text(2, "Blue.")
      ], "end_turn"))
      assert.deepInclude(of(events, "ToolCallCompleted")[0], {
        id: "srvtoolu_1",
        name: "web_search",
        arguments: { query: "sky" },
        providerExecuted: true,
        metadata: { anthropic: { type: "server_tool_use" } }
      })
      const response = responseOf(events)
      assert.deepStrictEqual([response.finishReason, response.toolCalls.length], ["stop", 1])
      assert.isTrue(response.toolCalls[0]!.providerExecuted)
    }))

  it.effect("R-332: MCP, file and code calls of the provider are listed alike, and their results are kept for the next request", () =>
    Effect.gen(function*() {
      const remote = { type: "mcp_tool_use", id: "mcptoolu_1", name: "ask", server_name: "wiki", input: {} }
      const edited = { type: "text_editor_code_execution_tool_result", tool_use_id: "srvtoolu_2", content: {} }
      const { events } = yield* outcomeOf(reply([
        [opened(0, remote), args(0, "{\"q\":1}"), closed(0)],
        [opened(1, { type: "mcp_tool_result", tool_use_id: "mcptoolu_1", is_error: false, content: [] }), closed(1)],
        [opened(2, { ...search, id: "srvtoolu_2", name: "text_editor_code_execution" }), args(2, "{}"), closed(2)],
        [opened(3, edited), closed(3)]
      ], "end_turn"))
      assert.deepStrictEqual(
        responseOf(events).toolCalls.map(({ name, providerExecuted }) => [name, providerExecuted]),
        [["ask", true], ["text_editor_code_execution", true]]
      )
      assert.deepStrictEqual(
        completed(events).message.reasoning?.map((part) => part.type === "reasoning" && part.metadata?.["anthropic"]),
        [
          { ...remote, input: { q: 1 } },
          { type: "mcp_tool_result", tool_use_id: "mcptoolu_1", is_error: false, content: [] },
          { ...search, id: "srvtoolu_2", name: "text_editor_code_execution" },
          edited
        ]
      )
    }))

  it.effect("R-344: a call of the caller's tools makes a tool turn although the stop reason is end_turn", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(reply([
        [opened(0, search), args(0, "{}"), closed(0)],
        called(1, "a", "now", "{}")
      ], "end_turn"))
      assert.deepInclude(completed(events), { finishReason: "tool_calls", rawFinishReason: "end_turn" })
    }))

  it.effect("R-342: a compaction comes in pieces and is kept whole, and so are blocks of unknown kinds", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(reply([
        [
          opened(0, { type: "compaction", content: null }),
          delta(0, { type: "compaction_delta", content: "## Sum" }),
          delta(0, { type: "compaction_delta", content: "mary" }),
          closed(0)
        ],
        [opened(1, { type: "fallback", reason: 1 }), delta(1, { type: "fallback_delta", reason: 2 }), closed(1)],
        text(2, "On.")
      ], "end_turn"))
      assert.deepStrictEqual(
        completed(events).message.reasoning?.map((part) => part.type === "reasoning" && part.metadata?.["anthropic"]),
        [{ type: "compaction", content: "## Summary" }, { type: "fallback", reason: 2 }]
      )
    }))
})
