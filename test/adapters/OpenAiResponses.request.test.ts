/**
 * What is sent: the request's body, its headers and its address, as the server receives them. How a thread becomes input
 * items has a file of its own.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { type Adapter, Message, type Tool } from "heddle"
import { OpenAiResponses } from "heddle/adapters"
import * as Chunks from "../support/openAiChat.ts"
import * as Replies from "../support/openAiResponses.ts"
import * as Requests from "../support/requests.ts"

const answered = Replies.body(Replies.said("ok"), Replies.completed())

/** The request that a server receives. */
const sent = (request: Partial<Adapter.Request>, options: Partial<OpenAiResponses.Options> = {}) =>
  Requests.received(answered, (url) => Replies.stream(url, options, { ...Chunks.request, ...request }))

const bodyOf = (request: Partial<Adapter.Request>, options: Partial<OpenAiResponses.Options> = {}) =>
  Effect.map(sent(request, options), ({ body }) => body)

const weather: Tool.Definition = {
  name: "get_weather",
  description: "Current temperature",
  parameters: {
    type: "object",
    properties: { city: { type: "string", minLength: 1 }, unit: { type: "string" } },
    required: ["city"]
  }
}

describe("the body of a Responses request", () => {
  it.effect("R-123: a plain request holds the model, the instructions and the input, and asks for a stream", () =>
    Effect.gen(function*() {
      const received = yield* sent({ messages: [Message.system("Be brief."), Message.user("Hello")] })
      assert.deepStrictEqual([received.method, received.path], ["POST", "/v1/responses"])
      assert.deepStrictEqual(received.body, {
        model: "test-model",
        instructions: "Be brief.",
        input: [{ role: "user", content: "Hello" }],
        include: ["reasoning.encrypted_content"],
        store: false,
        stream: true
      })
    }))

  it.effect("R-123: each setting of a request has its place in the body", () =>
    Effect.gen(function*() {
      const body = yield* bodyOf({
        model: "other-model",
        tools: [weather, { ...weather, name: "bare", description: "" }],
        toolChoice: { name: "bare" },
        temperature: 0,
        maxTokens: 100,
        responseFormat: { type: "json_schema", name: "answer", schema: { type: "object" }, strict: true },
        options: { user: "v" }
      }, {
        reasoning: { effort: "low", maxTokens: 50, summary: "auto" },
        parallelToolCalls: false,
        cache: { key: "chat-1", retention: "24h" },
        options: { user: "u", truncation: "auto" }
      })
      assert.deepStrictEqual(body, {
        model: "other-model",
        input: [{ role: "user", content: "Hello" }],
        tools: [
          { type: "function", ...weather, strict: false },
          { type: "function", name: "bare", parameters: weather.parameters, strict: false }
        ],
        tool_choice: { type: "function", name: "bare" },
        parallel_tool_calls: false,
        temperature: 0,
        max_output_tokens: 100,
        prompt_cache_key: "chat-1",
        prompt_cache_retention: "24h",
        text: { format: { type: "json_schema", name: "answer", schema: { type: "object" }, strict: true } },
        reasoning: { effort: "low", max_tokens: 50, summary: "auto" },
        include: ["reasoning.encrypted_content"],
        user: "v",
        truncation: "auto",
        store: false,
        stream: true
      })
    }))

  it.effect("R-123: the body omits unset options and always asks for a stream", () =>
    Effect.gen(function*() {
      const body = yield* bodyOf(
        { toolChoice: "required", responseFormat: { type: "text" }, options: { stream: false } },
        { store: true, parallelToolCalls: false }
      )
      assert.deepStrictEqual(body, {
        model: "test-model",
        input: [{ role: "user", content: "Hello" }],
        store: true,
        stream: true
      })
      const json = yield* bodyOf({ tools: [weather], toolChoice: "required", responseFormat: { type: "json_object" } })
      assert.deepInclude(json, { tool_choice: "required", text: { format: { type: "json_object" } } })
    }))

  it.effect("R-123: tools and includes from options are added, and text and reasoning settings merge", () =>
    Effect.gen(function*() {
      const body = yield* bodyOf({
        tools: [weather],
        toolChoice: "auto",
        responseFormat: { type: "json_object" },
        options: {
          tools: [{ type: "web_search" }],
          include: ["web_search_call.action.sources", "reasoning.encrypted_content"],
          text: { verbosity: "low" },
          reasoning: { effort: "high" },
          store: false
        }
      }, { reasoning: { effort: "low", summary: "concise" }, store: true })
      assert.deepInclude(body, {
        include: ["reasoning.encrypted_content", "web_search_call.action.sources"],
        text: { format: { type: "json_object" }, verbosity: "low" },
        reasoning: { effort: "high", summary: "concise" },
        store: false,
        tool_choice: "auto"
      })
      assert.deepStrictEqual(body.tools.map(({ type }: any) => type), ["function", "web_search"])
      const hosted = yield* bodyOf({ toolChoice: "required" }, { options: { tools: [{ type: "web_search" }] } })
      assert.deepInclude(hosted, { tools: [{ type: "web_search" }], tool_choice: "required" })
    }))

  it.effect("R-123: the request includes encrypted reasoning for models that may reason, unless the provider stores replies", () =>
    Effect.gen(function*() {
      const includeFor = (model: string, options: Partial<OpenAiResponses.Options> = {}) =>
        Effect.map(bodyOf({ model }, options), (body) => body.include !== undefined)
      for (const model of ["o3-mini", "gpt-5", "openai/gpt-5.4-mini", "codex-mini-latest", "grok-4", "deepseek-v4"]) {
        assert.isTrue(yield* includeFor(model), model)
        assert.isFalse(yield* includeFor(model, { store: true }), model)
      }
      for (
        const model of ["gpt-4.1", "openai/gpt-4o", "gpt-5-chat-latest", "openai/gpt-5.3-chat", "chatgpt-4o-latest"]
      ) {
        assert.isFalse(yield* includeFor(model), model)
      }
    }))

  it.effect("R-136: a strict schema requires every member and closes the object; a schema without a strict form goes out unchanged", () =>
    Effect.gen(function*() {
      const open: Tool.Definition = {
        name: "open",
        description: "",
        parameters: { type: "object", additionalProperties: { type: "string" } }
      }
      const { tools } = yield* bodyOf({ tools: [weather, open] }, { strict: true })
      assert.deepStrictEqual(tools, [
        {
          type: "function",
          name: "get_weather",
          description: "Current temperature",
          parameters: {
            type: "object",
            properties: { city: { type: "string" }, unit: { type: ["string", "null"] } },
            required: ["city", "unit"],
            additionalProperties: false
          },
          strict: true
        },
        { type: "function", name: "open", parameters: open.parameters, strict: false }
      ])
      const schema = weather.parameters
      const answer = yield* bodyOf({ responseFormat: { type: "json_schema", name: "answer", schema, strict: true } })
      assert.deepStrictEqual(answer.text.format.schema, tools[0].parameters)
      const loose = yield* bodyOf({ responseFormat: { type: "json_schema", name: "answer", schema } })
      assert.deepStrictEqual(loose.text.format, { type: "json_schema", name: "answer", schema })
    }))
})

describe("the address of the Responses adapter", () => {
  const addressOf = (options: Partial<OpenAiResponses.Options>) =>
    Effect.map(Requests.elsewhere(answered, OpenAiResponses.layer({ model: "m", ...options })), ({ url }) => url)

  it.effect("R-123: the default base URL is OpenAI's, and a query string stays at the end", () =>
    Effect.gen(function*() {
      assert.strictEqual(yield* addressOf({}), "https://api.openai.com/v1/responses")
      assert.strictEqual(
        yield* addressOf({ baseUrl: "https://x.openai.azure.com/openai/v1/?api-version=preview" }),
        "https://x.openai.azure.com/openai/v1/responses?api-version=preview"
      )
    }))
})
