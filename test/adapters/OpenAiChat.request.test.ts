/**
 * What is sent: the request's body, its headers and its address, as the server receives them; and a whole run over two
 * turns, in which a model's calls are run and go back to it answered.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { type Adapter, Chat, Message, Thread, Tool } from "heddle"
import { OpenAiChat } from "heddle/adapters"
import * as Chunks from "../support/openAiChat.ts"
import * as Requests from "../support/requests.ts"
import * as Server from "../support/server.ts"

const { body, call, finish, said } = Chunks

const answered = body(said("ok"), finish("stop"))

/** The request that a server receives. */
const sent = (request: Partial<Adapter.Request>, options: Partial<OpenAiChat.Options> = {}) =>
  Requests.received(answered, (url) => Chunks.stream(url, options, { ...Chunks.request, ...request }))

const bodyOf = (request: Partial<Adapter.Request>, options: Partial<OpenAiChat.Options> = {}) =>
  Effect.map(sent(request, options), ({ body }) => body)

const messagesOf = (messages: ReadonlyArray<Message.Message>, options: Partial<OpenAiChat.Options> = {}) =>
  Effect.map(bodyOf({ messages }, options), (body) => body.messages as ReadonlyArray<unknown>)

const weather: Tool.Definition = {
  name: "get_weather",
  description: "Current temperature",
  parameters: { type: "object", properties: { city: { type: "string" } } }
}

describe("the body of a Chat Completions request", () => {
  it.effect("R-123: a plain request holds the model and the messages, and asks for a stream with usage", () =>
    Effect.gen(function*() {
      const received = yield* sent({ messages: [Message.system("Be brief."), Message.user("Hello")] })
      assert.deepStrictEqual([received.method, received.path], ["POST", "/v1/chat/completions"])
      assert.deepStrictEqual(received.body, {
        model: "test-model",
        messages: [{ role: "system", content: "Be brief." }, { role: "user", content: "Hello" }],
        stream_options: { include_usage: true },
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
        options: { seed: 1, parallel_tool_calls: false }
      }, { options: { seed: 2, user: "u" } })
      assert.deepInclude(body, {
        model: "other-model",
        tools: [
          { type: "function", function: weather },
          { type: "function", function: { name: "bare", parameters: weather.parameters } }
        ],
        tool_choice: { type: "function", function: { name: "bare" } },
        temperature: 0,
        max_tokens: 100,
        response_format: {
          type: "json_schema",
          json_schema: { name: "answer", schema: { type: "object" }, strict: true }
        },
        seed: 1,
        user: "u",
        parallel_tool_calls: false
      })
    }))

  it.effect("R-123: the body omits unset options and always asks for a stream", () =>
    Effect.gen(function*() {
      const body = yield* bodyOf(
        { toolChoice: "required", responseFormat: { type: "text" }, options: { stream: false } },
        { includeUsage: false }
      )
      assert.deepStrictEqual(Object.keys(body).sort(), ["messages", "model", "stream"])
      assert.isTrue(body.stream)
      const json = yield* bodyOf({ tools: [weather], toolChoice: "required", responseFormat: { type: "json_object" } })
      assert.deepInclude(json, { tool_choice: "required", response_format: { type: "json_object" } })
    }))

  it.effect("R-123: the token limit has the field name that the server and the model expect", () =>
    Effect.gen(function*() {
      const fieldFor = (model: string, options: Partial<OpenAiChat.Options> = {}) =>
        Effect.map(
          bodyOf({ model, maxTokens: 9 }, options),
          (body) => Object.keys(body).filter((key) => body[key] === 9)
        )
      assert.deepStrictEqual(yield* fieldFor("llama3"), ["max_tokens"])
      for (const model of ["o3-mini", "gpt-5", "openai/gpt-5-mini"]) {
        assert.deepStrictEqual(yield* fieldFor(model), ["max_completion_tokens"], model)
      }
      assert.deepStrictEqual(yield* fieldFor("gpt-5", { maxTokensField: "max_tokens" }), ["max_tokens"])
      const own = yield* ownServer("https://api.openai.com/v1", { model: "gpt-4.1", maxTokens: 9 })
      assert.strictEqual(own.url, "https://api.openai.com/v1/chat/completions")
      assert.strictEqual(own.body.max_completion_tokens, 9)
    }))

  /** The request that would have been sent to a server that is not ours to run. */
  const ownServer = (baseUrl: string | undefined, request: Partial<Adapter.Request>) =>
    Requests.elsewhere(
      answered,
      OpenAiChat.layer({ model: "m", ...(baseUrl === undefined ? {} : { baseUrl }) }),
      request
    )

  it.effect("R-123: the default base URL is OpenAI's, and a query string stays at the end", () =>
    Effect.gen(function*() {
      assert.strictEqual((yield* ownServer(undefined, {})).url, "https://api.openai.com/v1/chat/completions")
      const azure = yield* ownServer("https://x.openai.azure.com/openai/deployments/d/?api-version=1", {})
      assert.strictEqual(azure.url, "https://x.openai.azure.com/openai/deployments/d/chat/completions?api-version=1")
    }))
})

describe("the messages of a Chat Completions request", () => {
  it.effect("R-146: an assistant's calls go out with their raw arguments, followed by their answers", () =>
    Effect.gen(function*() {
      const raw = { ...Message.toolCall("a", "search", { q: 1 }), rawArguments: "{ \"q\": 1 }" }
      const calls = [raw, Message.toolCall("b", "search", { q: 2 }), { ...raw, id: "c", providerExecuted: true }]
      assert.deepStrictEqual(
        yield* messagesOf([
          Message.user("go"),
          Message.assistant("Looking.", calls),
          Message.tool("a", "one"),
          Message.tool("b", [{ type: "text", text: "two" }]),
          Message.assistant("", [raw]),
          Message.tool("a", "")
        ]),
        [
          { role: "user", content: "go" },
          {
            role: "assistant",
            content: "Looking.",
            tool_calls: [
              { id: "a", type: "function", function: { name: "search", arguments: "{ \"q\": 1 }" } },
              { id: "b", type: "function", function: { name: "search", arguments: "{\"q\":2}" } }
            ]
          },
          { role: "tool", tool_call_id: "a", content: "one" },
          { role: "tool", tool_call_id: "b", content: "two" },
          {
            role: "assistant",
            content: "",
            tool_calls: [{ id: "a", type: "function", function: { name: "search", arguments: "{ \"q\": 1 }" } }]
          },
          { role: "tool", tool_call_id: "a", content: "" }
        ]
      )
    }))

  it.effect("R-357: a call with lost arguments goes out with empty arguments", () =>
    Effect.gen(function*() {
      const lost: ReadonlyArray<Message.ToolCall> = ["{\"cut\":", "", "null", "[1]"].map((rawArguments, index) => ({
        ...Message.toolCall(String(index), "search"),
        rawArguments,
        argumentsLost: "truncated"
      }))
      const [message] = yield* messagesOf([
        Message.assistant("", lost),
        ...lost.map(({ id }) => Message.tool(id, "lost"))
      ])
      const { tool_calls } = message as { tool_calls: ReadonlyArray<{ function: { arguments: string } }> }
      assert.deepStrictEqual(tool_calls.map((item) => item.function.arguments), ["{}", "{}", "{}", "{}"])
    }))

  it.effect("M-39: the request omits an assistant message with neither content nor calls", () =>
    Effect.gen(function*() {
      const reasoning = [{ type: "reasoning", text: "hm" }] as const
      const messages = [
        Message.user("a"),
        Message.assistant(""),
        Message.assistant([]),
        { ...Message.assistant(""), reasoning },
        { ...Message.assistant(""), toolCalls: [{ ...Message.toolCall("s", "search"), providerExecuted: true }] },
        Message.user("b"),
        Message.assistant("", [Message.toolCall("c", "read")]),
        Message.tool("c", "")
      ]
      for (const options of [{}, { vendor: "deepseek" }, { vendor: "openrouter" }] as const) {
        const { messages: sent } = yield* bodyOf({ messages }, options)
        assert.deepStrictEqual(sent.map(({ role }: { readonly role: string }) => role), [
          "user",
          "user",
          "assistant",
          "tool"
        ])
      }
      const { messages: thinking } = yield* bodyOf({ messages }, { vendor: "mistral" })
      assert.deepStrictEqual(thinking[1], {
        role: "assistant",
        content: [{ type: "thinking", thinking: [{ type: "text", text: "hm" }] }]
      })
    }))

  it.effect("R-342: extra fields of a call from the wire go back with the call", () =>
    Effect.gen(function*() {
      const metadata = { openaiChat: { extra_content: { google: { thought_signature: "abc" } } }, local: 1 }
      const [message] = yield* messagesOf([Message.assistant("", [{ ...Message.toolCall("a", "search"), metadata }])])
      assert.deepInclude((message as any).tool_calls[0], { extra_content: metadata.openaiChat.extra_content })
      assert.notProperty((message as any).tool_calls[0], "local")
    }))

  it.effect("R-358: the request omits reasoning unless an option names its field", () =>
    Effect.gen(function*() {
      const message: Message.Message = {
        ...Message.assistant([{ type: "reasoning", text: "b" }, { type: "text", text: "Hi" }]),
        reasoning: [{ type: "reasoning", text: "a" }]
      }
      assert.deepStrictEqual(yield* messagesOf([message]), [{ role: "assistant", content: "Hi" }])
      assert.deepStrictEqual(yield* messagesOf([message], { sendReasoningAs: "reasoning_content" }), [
        { role: "assistant", content: "Hi", reasoning_content: "ab" }
      ])
    }))

  it.effect("R-123: images, audio and files go out as parts", () =>
    Effect.gen(function*() {
      const [message] = yield* messagesOf([{
        ...Message.user([
          { type: "text", text: "What is this?" },
          { type: "image", url: "https://example.com/cat.png" },
          { type: "image", data: "AAAA", mediaType: "image/jpeg" },
          { type: "file", data: "BBBB", mediaType: "application/pdf", filename: "a.pdf" },
          { type: "file", url: "file-123" },
          { type: "file", data: "CCCC", mediaType: "audio/wav" }
        ]),
        name: "ann"
      }])
      assert.deepStrictEqual(message, {
        role: "user",
        name: "ann",
        content: [
          { type: "text", text: "What is this?" },
          { type: "image_url", image_url: { url: "https://example.com/cat.png" } },
          { type: "image_url", image_url: { url: "data:image/jpeg;base64,AAAA" } },
          { type: "file", file: { filename: "a.pdf", file_data: "data:application/pdf;base64,BBBB" } },
          { type: "file", file: { file_id: "file-123" } },
          { type: "input_audio", input_audio: { data: "CCCC", format: "wav" } }
        ]
      })
    }))

  it.effect("R-146: an image in a tool answer follows all answers of its turn", () =>
    Effect.gen(function*() {
      const image = { type: "image", url: "https://example.com/a.png" } as const
      const messages = yield* messagesOf([
        Message.assistant("", [Message.toolCall("a", "look"), Message.toolCall("b", "look")]),
        Message.tool("a", [{ type: "text", text: "seen" }, image]),
        Message.tool("b", "nothing"),
        Message.user("go on"),
        Message.assistant("", [Message.toolCall("c", "look")]),
        Message.tool("c", [image])
      ])
      assert.deepStrictEqual(messages.slice(1, 5), [
        { role: "tool", tool_call_id: "a", content: "seen" },
        { role: "tool", tool_call_id: "b", content: "nothing" },
        {
          role: "user",
          content: [
            { type: "text", text: "From the tool call a:" },
            { type: "image_url", image_url: { url: "https://example.com/a.png" } }
          ]
        },
        { role: "user", content: "go on" }
      ])
      assert.deepInclude(messages.at(-2), { role: "tool", content: "" })
      assert.deepInclude(messages.at(-1), { role: "user" })
    }))

  it.effect("R-122: the adapter refuses content without a form in the protocol, and data that is not JSON, before it sends anything", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({ pieces: [answered] }))
      const parts: ReadonlyArray<Message.Message> = [
        Message.user([{ type: "image" }]),
        Message.user([{ type: "file", url: "https://example.com/a.pdf" }]),
        Message.assistant([{ type: "image", data: "AAAA" }])
      ]
      for (const message of parts) {
        const { error, events } = yield* Chunks.outcome(
          Chunks.stream(server.url, {}, { messages: [message], tools: [] })
        )
        assert.deepStrictEqual([events, error?.reason], [[], "unsupported_feature"])
      }
      const cyclic: Record<string, unknown> = {}
      cyclic["self"] = cyclic
      const unwritable: ReadonlyArray<Partial<Adapter.Request>> = [
        { options: cyclic },
        { messages: [Message.assistant("", [Message.toolCall("a", "search", { q: 1n })])] }
      ]
      for (const request of unwritable) {
        const { error } = yield* Chunks.outcome(Chunks.stream(server.url, {}, { ...Chunks.request, ...request }))
        assert.strictEqual(error?.reason, "invalid_request")
        assert.match(error?.message ?? "", /cannot be written as JSON/)
      }
      assert.strictEqual(server.requests.length, 0)
    })))
})

describe("a run over the Chat Completions adapter", () => {
  it.effect("R-126, R-136, R-344: a run answers two calls, and the next request has both calls and both answers", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve((_, index) => ({
        pieces: [
          index > 0 ? body(said("12 and 9"), finish("stop")) : body(
            call({ index: 0, id: "a", name: "get_weather", arguments: "{\"city\":\"Oslo\"}" }),
            call({ index: 1, id: "b", name: "get_weather", arguments: "{\"city\":\"Bergen\"}" }),
            finish("stop")
          )
        ]
      }))
      const getWeather = Tool.make("get_weather", {
        parameters: { city: Schema.NonEmptyString },
        handler: ({ city }) => Effect.succeed({ celsius: city.length })
      })
      const result = yield* Chat.run("How warm is it?", { tools: [getWeather] }).pipe(
        Effect.provide(Chunks.layer(server.url))
      )
      assert.deepStrictEqual([result.haltedReason, result.finalResponse?.outputText], ["completed", "12 and 9"])
      assert.deepStrictEqual(Thread.unanswered(result.thread), [])
      assert.deepStrictEqual(
        server.requests[1]!.body.messages.slice(1).map((
          { content, role, tool_call_id }: any
        ) => [role, tool_call_id, content]),
        [["assistant", undefined, ""], ["tool", "a", "{\"celsius\":4}"], ["tool", "b", "{\"celsius\":6}"]]
      )
    })))
})
