/**
 * Anthropic's own package behind the bridge, over HTTP: the provider that wants everything back unchanged and in order,
 * signed reasoning, redacted reasoning, tools it ran itself and their results.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Chat, Message, Thread, Tool } from "heddle"
import * as AiSdk from "heddle/bridges/ai-sdk"
import * as Models from "../support/aiSdk.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"

type Json = Readonly<Record<string, unknown>>

const { calls, of } = Chunks
const { completed, stream, tagsOf } = Models

const sse = (...events: ReadonlyArray<Json>): string =>
  events.map((event) => `event: ${String(event["type"])}\ndata: ${JSON.stringify(event)}\n\n`).join("")

const begin = {
  type: "message_start",
  message: {
    id: "msg_1",
    type: "message",
    role: "assistant",
    model: "claude-test",
    content: [],
    stop_reason: null,
    stop_sequence: null,
    usage: { input_tokens: 20, output_tokens: 1, cache_read_input_tokens: 5, cache_creation_input_tokens: 2 }
  }
}

/** A block as it is streamed: its start, its deltas, its end. */
const block = (index: number, content: Json, ...deltas: ReadonlyArray<Json>): ReadonlyArray<Json> => [
  { type: "content_block_start", index, content_block: content },
  ...deltas.map((delta) => ({ type: "content_block_delta", index, delta })),
  { type: "content_block_stop", index }
]

const end = (stop_reason: string): ReadonlyArray<Json> => [
  { type: "message_delta", delta: { stop_reason, stop_sequence: null }, usage: { output_tokens: 9 } },
  { type: "message_stop" }
]

const thinking = (index: number, text: string, signature: string) =>
  block(
    index,
    { type: "thinking", thinking: "", signature: "" },
    { type: "thinking_delta", thinking: text },
    { type: "signature_delta", signature }
  )

const said = (index: number, text: string) => block(index, { type: "text", text: "" }, { type: "text_delta", text })

const used = (index: number, id: string, name: string, ...fragments: ReadonlyArray<string>) =>
  block(
    index,
    { type: "tool_use", id, name, input: {} },
    ...fragments.map((partial_json) => ({ type: "input_json_delta", partial_json }))
  )

const answer = (...blocks: ReadonlyArray<ReadonlyArray<Json>>): string => sse(begin, ...blocks.flat())

const adapter = (url: string, options: Models.Options = {}) =>
  AiSdk.layer({ model: Models.anthropic(url)("claude-test"), retries: 0, ...options })

const celsius = Tool.make("celsius", {
  parameters: { type: "object", properties: { city: { type: "string" } } },
  handler: () => Effect.succeed({ celsius: 7 })
})

/** The second request of a run whose first reply is the given one. */
const secondRequest = (first: string, options: Models.Options = {}) =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve((_, index) => ({
      pieces: [index === 0 ? first : answer(said(0, "Done"), end("end_turn"))]
    }))
    const { thread } = yield* Chat.run("Hi", { tools: [celsius] }).pipe(Effect.provide(adapter(server.url, options)))
    if (server.requests.length === 1) {
      yield* Chat.run(Thread.append(thread, [Message.user("And?")]), { tools: [celsius] }).pipe(
        Effect.provide(adapter(server.url, options))
      )
    }
    return server.requests[1]!.body
  }))

describe("a reply of Anthropic's AI SDK package", () => {
  it.effect("R-349: the bridge reads reasoning, text, a call in fragments and usage from two events", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({
        pieces: Server.pieces(
          answer(
            thinking(0, "hm", "sig"),
            said(1, "Høj"),
            used(2, "toolu_1", "celsius", "", "{\"city\":", " \"Oslo\"}"),
            end("tool_use")
          ),
          9
        )
      }))
      const { error, events } = yield* Chunks.outcome(
        stream(adapter(server.url), { ...Chunks.request, tools: [Tool.definition(celsius)] })
      )
      assert.isUndefined(error)
      assert.deepStrictEqual(of(events, "ReasoningDelta").map(({ delta }) => delta), ["hm"])
      assert.deepStrictEqual(calls(events), [{ id: "toolu_1", name: "celsius", arguments: { city: "Oslo" } }])
      const last = completed(events)
      assert.deepStrictEqual([last.finishReason, last.rawFinishReason], ["tool_calls", "tool_use"])
      assert.deepInclude(last.usage, {
        inputTokens: 27,
        outputTokens: 9,
        cachedInputTokens: 5,
        cacheWriteInputTokens: 2
      })
    })))

  it.effect("R-357: a call whose block the token limit closes is truncated", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({
        pieces: [answer(used(0, "toolu_1", "celsius", "{\"city\":"), end("max_tokens"))]
      }))
      const { events } = yield* Chunks.outcome(stream(adapter(server.url)))
      assert.deepStrictEqual(calls(events), [
        { id: "toolu_1", name: "celsius", arguments: {}, argumentsLost: "truncated" }
      ])
    })))

  it.effect("R-122, R-145: an overloaded error fails the reply before its start or inside it with the same reason", () =>
    Effect.scoped(Effect.gen(function*() {
      const busy = { type: "error", error: { type: "overloaded_error", message: "Overloaded" } }
      const server = yield* Server.serve((_, index) => ({
        pieces: [index === 0 ? sse(busy) : answer(said(0, "a"), [busy])]
      }))
      const before = yield* Chunks.outcome(stream(adapter(server.url)))
      assert.deepStrictEqual([before.error?.reason, before.events], ["provider_unavailable", []])
      const within = yield* Chunks.outcome(stream(adapter(server.url)))
      assert.deepStrictEqual([within.error?.reason, within.error?.detail], [
        "provider_unavailable",
        "HTTP 529: Overloaded"
      ])
      assert.deepStrictEqual(tagsOf(within.events).slice(0, 2), ["MessageStarted", "TextDelta"])
    })))
})

describe("a turn in the next request to Anthropic's package", () => {
  it.effect("R-342: signed and redacted reasoning goes back unchanged before the calls, and all answers in a single message", () =>
    Effect.gen(function*() {
      const { messages } = yield* secondRequest(answer(
        thinking(0, "Let me see", "EqQB"),
        block(1, { type: "redacted_thinking", data: "zzz" }),
        said(2, "Looking."),
        used(3, "toolu_1", "celsius", "{\"city\":\"Oslo\"}"),
        used(4, "toolu_2", "celsius", "{\"city\":\"Rome\"}"),
        end("tool_use")
      ))
      assert.deepStrictEqual(messages.slice(1), [
        {
          role: "assistant",
          content: [
            { type: "thinking", thinking: "Let me see", signature: "EqQB" },
            { type: "redacted_thinking", data: "zzz" },
            { type: "text", text: "Looking." },
            { type: "tool_use", id: "toolu_1", name: "celsius", input: { city: "Oslo" } },
            { type: "tool_use", id: "toolu_2", name: "celsius", input: { city: "Rome" } }
          ]
        },
        {
          role: "user",
          content: [
            { type: "tool_result", tool_use_id: "toolu_1", content: "{\"celsius\":7}" },
            { type: "tool_result", tool_use_id: "toolu_2", content: "{\"celsius\":7}" }
          ]
        }
      ])
    }))

  it.effect("R-332: a search executed by the provider goes back with its result, in place between its neighbours", () =>
    Effect.gen(function*() {
      const found = {
        type: "web_search_result",
        url: "https://example.com",
        title: "Example",
        encrypted_content: "secret",
        page_age: null
      }
      const search = (input: string) =>
        block(
          1,
          { type: "server_tool_use", id: "srvtoolu_1", name: "web_search", input: {} },
          { type: "input_json_delta", partial_json: input }
        )
      const { messages, tools } = yield* secondRequest(
        answer(
          thinking(0, "first", "sig1"),
          search("{\"query\":\"x\"}"),
          block(2, { type: "web_search_tool_result", tool_use_id: "srvtoolu_1", content: [found] }),
          thinking(3, "second", "sig2"),
          said(4, "Found."),
          end("end_turn")
        ),
        { providerTools: [{ id: "anthropic.web_search_20250305", name: "web_search", args: { maxUses: 1 } }] }
      )
      assert.deepStrictEqual(messages[1].content.map((part: Json) => part["type"]), [
        "thinking",
        "server_tool_use",
        "web_search_tool_result",
        "thinking",
        "text"
      ])
      assert.deepInclude(messages[1].content[1], { id: "srvtoolu_1", name: "web_search", input: { query: "x" } })
      assert.deepStrictEqual(messages[1].content[2].content[0].encrypted_content, "secret")
      assert.deepStrictEqual(messages[1].content[3], { type: "thinking", thinking: "second", signature: "sig2" })
      assert.deepStrictEqual(tools.map((tool: Json) => tool["type"] ?? tool["name"]), [
        "celsius",
        "web_search_20250305"
      ])
    }))

  it.effect("O-15: a paused turn goes back unchanged and the run continues, unless the bridge loses a part of the turn", () =>
    Effect.gen(function*() {
      const hosted = { type: "server_tool_use", id: "srvtoolu_1", name: "web_search" }
      const search = block(
        0,
        { ...hosted, input: {} },
        { type: "input_json_delta", partial_json: "{\"query\":\"x\"}" }
      )
      const found = { type: "web_search_tool_result", tool_use_id: "srvtoolu_1", content: [] }
      const requestsOf = (blocks: ReadonlyArray<ReadonlyArray<Json>>, container?: Json) =>
        Effect.scoped(Effect.gen(function*() {
          const paused = answer(...blocks, [
            { type: "message_delta", delta: { stop_reason: "pause_turn", container }, usage: { output_tokens: 9 } },
            { type: "message_stop" }
          ])
          const server = yield* Server.serve((_, index) => ({
            pieces: [index === 0 ? paused : answer(said(0, "Blue."), end("end_turn"))]
          }))
          const providerTools = [{ id: "anthropic.web_search_20250305", name: "web_search", args: {} }] as const
          const { outcome } = yield* Chat.run("Hi").pipe(Effect.provide(adapter(server.url, { providerTools })))
          assert.strictEqual(outcome._tag, "Completed")
          return server.requests.map(({ body }) => body.messages)
        }))
      const [, again] = yield* requestsOf([search, block(1, found), said(2, "So far.")])
      assert.deepStrictEqual(again?.slice(1), [{
        role: "assistant",
        content: [{ ...hosted, input: { query: "x" } }, found, { type: "text", text: "So far." }]
      }])
      assert.lengthOf(yield* requestsOf([said(0, "So far."), search]), 1)
      assert.lengthOf(yield* requestsOf([said(0, "So far.")], { id: "c", expires_at: "2026-01-01T00:00:00Z" }), 1)
    }))

  it.effect("R-123: a cache mark on a message reaches the wire", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({ pieces: [answer(said(0, "a"), end("end_turn"))] }))
      const metadata = { aiSdk: { options: { anthropic: { cacheControl: { type: "ephemeral" } } } } }
      yield* Chat.run([{ ...Message.system("Be brief"), metadata }, Message.user("Hi")]).pipe(
        Effect.provide(adapter(server.url))
      )
      assert.deepStrictEqual(server.requests[0]?.body.system, [
        { type: "text", text: "Be brief", cache_control: { type: "ephemeral" } }
      ])
    })))
})
