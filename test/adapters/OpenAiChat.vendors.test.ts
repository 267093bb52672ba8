/**
 * Request fields that differ from server to server: reasoning and how it is sent back, strict schemas, prompt caches,
 * tool choices, keys. Each server stands behind its name here, since its address is not ours to run.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import * as Stream from "effect/Stream"
import { type Adapter, type Event, Message, type Tool } from "heddle"
import { OpenAiChat } from "heddle/adapters"
import * as Chunks from "../support/openAiChat.ts"
import * as Requests from "../support/requests.ts"
import * as Server from "../support/server.ts"

type Options = Partial<OpenAiChat.Options>

const answered = Chunks.body(Chunks.said("ok"), Chunks.finish("stop"))

const sent = (request: Partial<Adapter.Request>, options: Options = {}) =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => ({ pieces: [answered] }))
    yield* Stream.runDrain(Chunks.stream(server.url, options, { ...Chunks.request, ...request }))
    return server.requests[0]!
  }))

const bodyOf = (request: Partial<Adapter.Request>, options: Options = {}) =>
  Effect.map(sent(request, options), ({ body }) => body)

const completed = (events: ReadonlyArray<Event.AdapterEvent>) => Chunks.of(events, "MessageCompleted")[0]!

const search: Tool.Definition = {
  name: "search",
  description: "",
  parameters: {
    type: "object",
    properties: { query: { type: "string", minLength: 1 }, limit: { type: "integer" } },
    required: ["query"]
  }
}

const open: Tool.Definition = { name: "open", description: "", parameters: { type: "object", properties: {} } }

describe("request fields of a vendor", () => {
  it.effect("R-123: a reasoning setting goes out in the form of the vendor", () =>
    Effect.gen(function*() {
      const told = (vendor: OpenAiChat.Options["vendor"], reasoning: OpenAiChat.Options["reasoning"]) =>
        Effect.map(
          bodyOf({}, {
            ...(vendor === undefined ? {} : { vendor }),
            ...(reasoning === undefined ? {} : { reasoning })
          }),
          ({ messages: _messages, model: _model, stream: _stream, stream_options: _options, ...rest }) => rest
        )
      assert.deepStrictEqual(yield* told(undefined, undefined), {})
      assert.deepStrictEqual(yield* told(undefined, { effort: "low" }), { reasoning_effort: "low" })
      assert.deepStrictEqual(yield* told("openai", { enabled: false }), { reasoning_effort: "none" })
      assert.deepStrictEqual(yield* told("openai", { enabled: true }), {})
      const budget = { effort: "high", maxTokens: 1024, enabled: true }
      const unified = { reasoning: { effort: "high", max_tokens: 1024, enabled: true } }
      assert.deepStrictEqual(yield* told("openrouter", budget), unified)
      assert.deepStrictEqual(yield* told("snowflake", { effort: "low" }), { reasoning: { effort: "low" } })
      assert.deepStrictEqual(yield* told("deepseek", { enabled: true }), { thinking: { type: "enabled" } })
      assert.deepStrictEqual(yield* told("zai", { effort: "none" }), { thinking: { type: "disabled" } })
      const effort = { thinking: { type: "enabled" }, reasoning_effort: "high" }
      assert.deepStrictEqual(yield* told("deepseek", { effort: "high" }), effort)
      assert.deepStrictEqual(yield* told("qwen", { enabled: false, maxTokens: 9 }), { enable_thinking: false })
      assert.deepStrictEqual(yield* told("qwen", { maxTokens: 9 }), { enable_thinking: true, thinking_budget: 9 })
      assert.deepStrictEqual(yield* told("mistral", { effort: "high" }), { reasoning_effort: "high" })
    }))

  it.effect("R-123: the address of a server selects its vendor, unless an option names the vendor", () =>
    Effect.gen(function*() {
      const tools = [search]
      const request: Partial<Adapter.Request> = { tools, toolChoice: "required", maxTokens: 5 }
      const bodyAt = (baseUrl: string, options: Options = {}) => addressed(baseUrl, request, options)
      assert.strictEqual((yield* bodyAt("https://api.mistral.ai/v1")).body.tool_choice, "any")
      assert.notProperty((yield* bodyAt("https://api.mistral.ai/v1")).body, "stream_options")
      assert.strictEqual((yield* bodyAt("https://mistral.ai.example.org/v1")).body.tool_choice, "required")
      assert.strictEqual((yield* bodyAt("http://127.0.0.1:1/v1", { vendor: "mistral" })).body.tool_choice, "any")
      assert.strictEqual(
        (yield* bodyAt("https://api.mistral.ai/v1", { vendor: "generic" })).body.tool_choice,
        "required"
      )
      const wished = yield* bodyAt("https://api.mistral.ai/v1", { includeUsage: true })
      assert.deepStrictEqual(wished.body.stream_options, { include_usage: true })
      assert.strictEqual((yield* bodyAt("https://eu.api.openai.com/v1")).body.max_completion_tokens, 5)
      assert.strictEqual((yield* bodyAt("https://openrouter.ai/api/v1")).body.max_tokens, 5)
    }))

  it.effect("R-123: the key for Azure goes out in the api-key header", () =>
    Effect.gen(function*() {
      const apiKey = Redacted.make("sk-secret-3")
      const azure = yield* addressed("https://me.openai.azure.com/openai/deployments/d?api-version=1", {}, { apiKey })
      assert.strictEqual(azure.url, "https://me.openai.azure.com/openai/deployments/d/chat/completions?api-version=1")
      assert.strictEqual(azure.headers["api-key"], "sk-secret-3")
      assert.notProperty(azure.headers, "authorization")
      const other = yield* addressed("https://openrouter.ai/api/v1", {}, { apiKey })
      assert.strictEqual(other.headers["authorization"], "Bearer sk-secret-3")
    }))
})

/** The request that would have gone to a server that is not ours to run. */
const addressed = (baseUrl: string, request: Partial<Adapter.Request>, options: Options = {}) =>
  Requests.elsewhere(answered, OpenAiChat.layer({ model: "m", baseUrl, ...options }), request)

describe("settings that differ by vendor", () => {
  it.effect("R-123: a ban on parallel calls goes out only with tools", () =>
    Effect.gen(function*() {
      const options: Options = { parallelToolCalls: false }
      assert.isFalse((yield* bodyOf({ tools: [search] }, options)).parallel_tool_calls)
      assert.notProperty(yield* bodyOf({}, options), "parallel_tool_calls")
      assert.notProperty(yield* bodyOf({ tools: [search] }), "parallel_tool_calls")
    }))

  it.effect("R-123: the prompt cache key comes from the cache option or from the request", () =>
    Effect.gen(function*() {
      const body = yield* bodyOf({}, { cache: { key: "k", retention: "24h" } })
      assert.deepInclude(body, { prompt_cache_key: "k", prompt_cache_retention: "24h" })
      assert.notProperty(yield* bodyOf({}, { cache: { key: "k" } }), "prompt_cache_retention")
      assert.deepInclude(yield* bodyOf({ cacheKey: "s1" }, { cache: {} }), { prompt_cache_key: "s1" })
      assert.deepInclude(yield* bodyOf({ cacheKey: "s1" }, { cache: { key: "k" } }), { prompt_cache_key: "k" })
      assert.notProperty(yield* bodyOf({ cacheKey: "s1" }), "prompt_cache_key")
    }))

  it.effect("R-123: system messages may go out in the developer role", () =>
    Effect.gen(function*() {
      const messages = [Message.system("Be brief."), Message.user("Hi")]
      assert.deepStrictEqual((yield* bodyOf({ messages }, { systemRole: "developer" })).messages[0], {
        role: "developer",
        content: "Be brief."
      })
    }))

  it.effect("R-123: strict mode rewrites the tool schemas that allow enforcement; other schemas go out unchanged", () =>
    Effect.gen(function*() {
      const { tools } = yield* bodyOf({ tools: [search, open] }, { strict: true })
      assert.deepStrictEqual(tools.map((tool: any) => tool.function), [
        {
          name: "search",
          strict: true,
          parameters: {
            type: "object",
            properties: { query: { type: "string" }, limit: { type: ["integer", "null"] } },
            required: ["query", "limit"],
            additionalProperties: false
          }
        },
        { name: "open", parameters: open.parameters }
      ])
    }))

  it.effect("R-123: strict mode rewrites the schema of a response format where the schema allows enforcement", () =>
    Effect.gen(function*() {
      const schema = { type: "object", properties: { city: { type: "string" } } }
      const formatOf = (strict: boolean | undefined, own: Readonly<Record<string, unknown>> = schema) =>
        Effect.map(
          bodyOf({
            responseFormat: {
              type: "json_schema",
              name: "answer",
              schema: own,
              ...(strict === undefined ? {} : { strict })
            }
          }),
          (body) => body.response_format.json_schema
        )
      assert.deepStrictEqual(yield* formatOf(undefined), { name: "answer", schema })
      assert.deepStrictEqual(yield* formatOf(false), { name: "answer", schema, strict: false })
      assert.deepStrictEqual(yield* formatOf(true), {
        name: "answer",
        strict: true,
        schema: {
          type: "object",
          properties: { city: { type: ["string", "null"] } },
          required: ["city"],
          additionalProperties: false
        }
      })
      const map = { type: "object", additionalProperties: { type: "string" } }
      assert.deepStrictEqual(yield* formatOf(true, map), { name: "answer", schema: map, strict: true })
    }))

  it.effect("R-358: pieces of reasoning details join in order, and signed or encrypted details are kept", () =>
    Effect.gen(function*() {
      const detail = (piece: object) => Chunks.chunk({ reasoning_details: [{ format: "f", index: 0, ...piece }] })
      const { events } = yield* Chunks.outcomeOf(Chunks.body(
        detail({ type: "reasoning.text", text: "a", signature: null }),
        detail({ type: "reasoning.text", text: "b" }),
        detail({ type: "reasoning.text", signature: "s", text: "" }),
        detail({ type: "reasoning.text", index: 1, text: "c" }),
        detail({ type: "reasoning.encrypted", index: 1, id: "r1", data: "x" }),
        detail({ type: "reasoning.encrypted", index: 1, id: "r2", data: "y" }),
        detail({ type: "reasoning.summary", index: 2, summary: "d" }),
        detail({ type: "reasoning.summary", index: 2, summary: "e" }),
        Chunks.finish("stop")
      ))
      const { metadata, text } = completed(events).message.reasoning![0] as any
      assert.strictEqual(text, "abcde")
      assert.deepStrictEqual(metadata.openaiChat.reasoning_details, [
        { format: "f", index: 0, type: "reasoning.text", text: "ab", signature: "s" },
        { format: "f", index: 1, type: "reasoning.text", text: "c" },
        { format: "f", index: 1, type: "reasoning.encrypted", id: "r1", data: "x" },
        { format: "f", index: 1, type: "reasoning.encrypted", id: "r2", data: "y" },
        { format: "f", index: 2, type: "reasoning.summary", summary: "de" }
      ])
      const hidden = yield* Chunks.outcomeOf(
        Chunks.body(detail({ type: "reasoning.encrypted", data: "x" }), Chunks.finish("stop")),
        { vendor: "openrouter" }
      )
      assert.deepStrictEqual(completed(hidden.events).message.reasoning, [{
        type: "reasoning",
        text: "",
        metadata: {
          openaiChat: {
            reasoning_details: [{ format: "f", index: 0, type: "reasoning.encrypted", data: "x" }],
            server: "openrouter"
          }
        }
      }])
    }))

  it.effect("R-339: the arguments of a strict tool lose the nulls that stand for missing members", () =>
    Effect.gen(function*() {
      const parameters = {
        type: "object",
        properties: { a: { type: "string" }, b: { type: "string" } },
        required: ["a"]
      }
      const asked = { ...Chunks.request, tools: [{ name: "search", description: "", parameters }] }
      const text = "{\"a\":null,\"b\":null}"
      const answer = Chunks.body(
        Chunks.call({ index: 0, id: "a", name: "search", arguments: text }),
        Chunks.finish("tool_calls")
      )
      const argumentsUnder = (options: Partial<OpenAiChat.Options>) =>
        Effect.map(Chunks.outcomeOf(answer, options, asked), ({ events }) => Chunks.of(events, "ToolCallCompleted")[0]!)
      const strict = yield* argumentsUnder({ strict: true })
      assert.deepStrictEqual([strict.arguments, strict.rawArguments], [{ a: null }, text])
      assert.deepStrictEqual((yield* argumentsUnder({})).arguments, { a: null, b: null })
    }))
})

describe("reasoning in the next Chat Completions request", () => {
  const details = [{ type: "reasoning.text", text: "why", signature: "s" }, { type: "reasoning.encrypted", data: "x" }]
  const thought: Message.Part = {
    type: "reasoning",
    text: "why",
    metadata: { openaiChat: { reasoning_details: details } }
  }
  const turn = (reasoning: ReadonlyArray<Message.Part>): Message.Message => ({
    ...Message.assistant("Hi", [Message.toolCall("a", "search", {})]),
    reasoning
  })
  const thread = (reasoning: ReadonlyArray<Message.Part>) => [
    Message.user("1"),
    turn(reasoning),
    Message.tool("a", "done")
  ]

  /** What an assistant message says besides its calls. */
  const back = (messages: ReadonlyArray<Message.Message>, options: Options, index = 1) =>
    Effect.map(bodyOf({ messages }, options), (body) => {
      const { role: _role, tool_calls: _calls, ...rest } = body.messages[index]
      return rest
    })

  it.effect("R-358: reasoning goes back in the form of the vendor, and a request to an unknown vendor omits reasoning", () =>
    Effect.gen(function*() {
      const messages = thread([thought])
      assert.deepStrictEqual(yield* back(messages, {}), { content: "Hi" })
      assert.deepStrictEqual(yield* back(messages, { vendor: "openrouter" }), {
        content: "Hi",
        reasoning_details: details
      })
      assert.deepStrictEqual(yield* back(messages, { vendor: "deepseek" }), { content: "Hi", reasoning_content: "why" })
      assert.deepStrictEqual(yield* back(messages, { vendor: "mistral" }), {
        content: [{ type: "thinking", thinking: [{ type: "text", text: "why" }] }, { type: "text", text: "Hi" }]
      })
      assert.deepStrictEqual(yield* back(messages, { vendor: "deepseek", sendReasoningAs: "none" }), { content: "Hi" })
      assert.deepStrictEqual(yield* back(messages, { sendReasoningAs: "reasoning" }), {
        content: "Hi",
        reasoning: "why"
      })
    }))

  it.effect("R-358: reasoning without details goes back as a string, and a message without text has reasoning alone", () =>
    Effect.gen(function*() {
      const plain = thread([{ type: "reasoning", text: "why" }])
      assert.deepStrictEqual(yield* back(plain, { vendor: "openrouter" }), { content: "Hi", reasoning: "why" })
      const silent = [Message.user("1"), { ...turn([thought]), content: "" }, Message.tool("a", "done")]
      assert.deepStrictEqual(yield* back(silent, { vendor: "mistral" }), {
        content: [{ type: "thinking", thinking: [{ type: "text", text: "why" }] }]
      })
    }))

  it.effect("R-358, O-06: DeepSeek receives the reasoning of turns with calls, and of no other turn", () =>
    Effect.gen(function*() {
      const silent = { ...Message.assistant("Ho"), reasoning: [thought] }
      const messages = [
        ...thread([thought]),
        silent,
        Message.user("2"),
        silent,
        Message.user("3"),
        ...thread([thought]).slice(1)
      ]
      const told = [1, 3, 5, 7].map((index) => back(messages, { vendor: "deepseek" }, index))
      assert.deepStrictEqual(yield* Effect.all(told), [
        { content: "Hi", reasoning_content: "why" },
        { content: "Ho", reasoning_content: "why" },
        { content: "Ho" },
        { content: "Hi", reasoning_content: "why" }
      ])
      const all = yield* back(messages, { vendor: "zai" })
      assert.deepStrictEqual(all, { content: "Hi", reasoning_content: "why" })
    }))

  it.effect("R-358: the request omits reasoning signed by another protocol", () =>
    Effect.gen(function*() {
      const foreign: ReadonlyArray<Message.Part> = [
        { type: "reasoning", text: "signed", signature: "s" },
        { type: "reasoning", text: "", metadata: { anthropic: { redacted: "x" } } },
        { type: "reasoning", text: "kept", metadata: { openaiResponses: { id: "rs_1" } } }
      ]
      const options: Options = { sendReasoningAs: "reasoning_content" }
      assert.deepStrictEqual(yield* back(thread(foreign), options), { content: "Hi" })
      const mixed = yield* back(thread([...foreign, { type: "reasoning", text: "own" }]), options)
      assert.deepStrictEqual(mixed, { content: "Hi", reasoning_content: "own" })
    }))
})
