/**
 * What is sent besides the thread: the request's body, its headers and its address, as the server receives them.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import { type Adapter, Message, type Tool } from "heddle"
import type { Anthropic } from "heddle/adapters"
import * as Wire from "../support/anthropic.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Requests from "../support/requests.ts"

const answered = Wire.reply([Wire.text(0, "ok")], "end_turn")

/** The request that a server receives. */
const sent = (request: Partial<Adapter.Request> = {}, options: Partial<Anthropic.Options> = {}) =>
  Requests.received(answered, (url) => Wire.stream(url, options, { ...Chunks.request, ...request }))

const bodyOf = (request: Partial<Adapter.Request> = {}, options: Partial<Anthropic.Options> = {}) =>
  Effect.map(sent(request, options), ({ body }) => body)

const weather: Tool.Definition = {
  name: "get_weather",
  description: "Current temperature",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] }
}

const bare: Tool.Definition = { name: "bare", description: "", parameters: { properties: {} } }

describe("the request body", () => {
  it.effect("R-123: a plain request holds the model, a token limit, the messages, the system text apart, and stream: true", () =>
    Effect.gen(function*() {
      const received = yield* sent({ messages: [Message.system("Be brief."), Message.user("Hello")] })
      assert.deepStrictEqual([received.method, received.path], ["POST", "/v1/messages"])
      assert.deepStrictEqual(received.body, {
        model: "test-model",
        max_tokens: 8192,
        system: [{ type: "text", text: "Be brief." }],
        messages: [{ role: "user", content: [{ type: "text", text: "Hello" }] }],
        stream: true
      })
    }))

  it.effect("R-123: each setting of a request has its place in the body", () =>
    Effect.gen(function*() {
      const body = yield* bodyOf({
        model: "other-model",
        tools: [weather, bare],
        toolChoice: { name: "bare" },
        temperature: 0,
        maxTokens: 100,
        responseFormat: {
          type: "json_schema",
          name: "answer",
          schema: { type: "object", properties: { n: { type: "integer", minimum: 1 } }, required: ["n"] }
        },
        options: { stop_sequences: ["a"], stream: false }
      }, { options: { stop_sequences: ["b"], metadata: { user_id: "u" } } })
      assert.deepStrictEqual(body, {
        model: "other-model",
        max_tokens: 100,
        tools: [
          { name: "get_weather", description: "Current temperature", input_schema: weather.parameters },
          { name: "bare", input_schema: { type: "object", properties: {} } }
        ],
        messages: [{ role: "user", content: [{ type: "text", text: "Hello" }] }],
        tool_choice: { type: "tool", name: "bare" },
        output_config: {
          format: {
            type: "json_schema",
            schema: {
              type: "object",
              properties: { n: { type: "integer" } },
              required: ["n"],
              additionalProperties: false
            }
          }
        },
        temperature: 0,
        stop_sequences: ["a"],
        metadata: { user_id: "u" },
        stream: true
      })
    }))

  it.effect("R-123: the token limit comes from the request, the adapter options, or the known limit of the model", () =>
    Effect.gen(function*() {
      const limitOf = (model: string, options: Partial<Anthropic.Options> = {}) =>
        Effect.map(bodyOf({ model }, options), (body) => body.max_tokens)
      const known: ReadonlyArray<readonly [string, number]> = [
        ["claude-3-haiku-20240307", 4096],
        ["anthropic.claude-3-5-sonnet-20241022-v2:0", 8192],
        ["claude-opus-4-1", 32_000],
        ["claude-sonnet-4-6", 32_000],
        ["kimi-k2", 8192]
      ]
      for (const [model, limit] of known) assert.strictEqual(yield* limitOf(model), limit, model)
      assert.strictEqual(yield* limitOf("claude-sonnet-4-6", { maxTokens: 77 }), 77)
      assert.strictEqual(yield* limitOf("claude-sonnet-4-6", { reasoning: { maxTokens: 50_000 } }), 54_096)
      assert.strictEqual((yield* bodyOf({ maxTokens: 5 }, { maxTokens: 77 })).max_tokens, 5)
    }))

  it.effect("R-122: the adapter refuses a JSON response format without a schema before it sends anything", () =>
    Effect.gen(function*() {
      const { error } = yield* Chunks.outcome(
        Wire.stream("http://nowhere.test", {}, { ...Chunks.request, responseFormat: { type: "json_object" } })
      )
      assert.deepStrictEqual([error?.reason, error?.provider], ["unsupported_feature", "anthropic"])
      assert.notProperty(yield* bodyOf({ responseFormat: { type: "text" } }), "output_config")
    }))
})

describe("the tools of a request", () => {
  const choiceOf = (request: Partial<Adapter.Request>, options: Partial<Anthropic.Options> = {}) =>
    Effect.map(bodyOf({ tools: [weather], ...request }, options), (body) => body.tool_choice)

  it.effect("R-123: each tool choice is mapped, together with a ban on parallel calls", () =>
    Effect.gen(function*() {
      assert.isUndefined(yield* choiceOf({}))
      assert.deepStrictEqual(yield* choiceOf({ toolChoice: "auto" }), { type: "auto" })
      assert.deepStrictEqual(yield* choiceOf({ toolChoice: "required" }), { type: "any" })
      assert.deepStrictEqual(yield* choiceOf({ toolChoice: "none" }), { type: "none" })
      assert.deepStrictEqual(yield* choiceOf({ toolChoice: { name: "bare" } }), { type: "tool", name: "bare" })
      const one = { parallelToolCalls: false }
      const isOne = { disable_parallel_tool_use: true }
      assert.deepStrictEqual(yield* choiceOf({}, one), { type: "auto", ...isOne })
      assert.deepStrictEqual(yield* choiceOf({ toolChoice: "required" }, one), { type: "any", ...isOne })
      assert.deepStrictEqual(yield* choiceOf({ toolChoice: { name: "x" } }, one), { type: "tool", name: "x", ...isOne })
      assert.deepStrictEqual(yield* choiceOf({ toolChoice: "none" }, one), { type: "none" })
      assert.isUndefined(yield* choiceOf({}, { parallelToolCalls: true }))
      assert.notProperty(yield* bodyOf({ toolChoice: "required" }, one), "tool_choice")
    }))

  it.effect("R-123: tools from the options follow the tools of the request", () =>
    Effect.gen(function*() {
      const search = { type: "web_search_20250305", name: "web_search", max_uses: 2 }
      const body = yield* bodyOf({ tools: [weather] }, { options: { tools: [search] } })
      assert.deepStrictEqual(body.tools.map(({ name }: any) => name), ["get_weather", "web_search"])
      const only = yield* bodyOf({ toolChoice: "auto" }, { options: { tools: [search] } })
      assert.deepStrictEqual([only.tools, only.tool_choice], [[search], { type: "auto" }])
    }))

  it.effect("R-123: a request without tools declares the tools that its thread calls, and forbids their use", () =>
    Effect.gen(function*() {
      const messages = [
        Message.user("go"),
        Message.assistant("", [Message.toolCall("a", "look"), Message.toolCall("b", "look")]),
        Message.tool("a", "1"),
        Message.tool("b", "2"),
        Message.assistant("done")
      ]
      const body = yield* bodyOf({ messages })
      assert.deepStrictEqual(body.tools, [{ name: "look", input_schema: { type: "object" } }])
      assert.deepStrictEqual(body.tool_choice, { type: "none" })
    }))

  it.effect("R-123: strict tools have schemas that the provider can enforce; other tools go out unchanged", () =>
    Effect.gen(function*() {
      const open: Tool.Definition = { name: "open", description: "", parameters: { type: "object" } }
      const bounded: Tool.Definition = {
        name: "bounded",
        description: "",
        parameters: { type: "object", properties: { n: { type: "number", minimum: 0 } }, required: [] }
      }
      const { tools } = yield* bodyOf({ tools: [weather, bounded, open] }, { strict: true })
      assert.deepStrictEqual(tools, [
        {
          name: "get_weather",
          description: "Current temperature",
          input_schema: { ...weather.parameters, additionalProperties: false },
          strict: true
        },
        {
          name: "bounded",
          input_schema: {
            type: "object",
            properties: { n: { type: "number" } },
            required: [],
            additionalProperties: false
          },
          strict: true
        },
        { name: "open", input_schema: { type: "object" } }
      ])
    }))
})

describe("the thinking options", () => {
  const of = (options: Partial<Anthropic.Options>, request: Partial<Adapter.Request> = {}) =>
    Effect.map(bodyOf(request, options), ({ output_config, temperature, thinking }) => ({
      thinking,
      effort: output_config?.effort,
      temperature
    }))

  it.effect("R-123: reasoning sets a budget, an effort or both; thinking drops the temperature", () =>
    Effect.gen(function*() {
      const request = { temperature: 0.5 }
      assert.deepStrictEqual(yield* of({ reasoning: { maxTokens: 2048 } }, request), {
        thinking: { type: "enabled", budget_tokens: 2048 },
        effort: undefined,
        temperature: undefined
      })
      assert.deepStrictEqual(yield* of({ reasoning: { effort: "high", display: "summarized" } }, request), {
        thinking: { type: "adaptive", display: "summarized" },
        effort: "high",
        temperature: undefined
      })
      assert.deepStrictEqual(yield* of({ reasoning: { effort: "low", maxTokens: 1024 } }), {
        thinking: { type: "enabled", budget_tokens: 1024 },
        effort: "low",
        temperature: undefined
      })
      const off = { thinking: { type: "disabled" }, effort: undefined, temperature: 0.5 }
      assert.deepStrictEqual(yield* of({ reasoning: { effort: "none" } }, request), off)
    }))

  it.effect("R-123: the output options of the request merge with those of the adapter", () =>
    Effect.gen(function*() {
      const body = yield* bodyOf({
        responseFormat: { type: "json_schema", name: "x", schema: { type: "object", properties: { a: {} } } },
        options: { output_config: { effort: "max" } }
      }, { reasoning: { effort: "low" } })
      assert.deepStrictEqual(Object.keys(body.output_config).sort(), ["effort", "format"])
      assert.strictEqual(body.output_config.effort, "max")
    }))

  it.effect("R-123: the request has no thinking with a forced tool or in a turn that began without thinking", () =>
    Effect.gen(function*() {
      const reasoning = { maxTokens: 2048 }
      const thinks = (request: Partial<Adapter.Request>, options: Anthropic.Options["reasoning"] = reasoning) =>
        Effect.map(of({ reasoning: options }, request), ({ thinking }) => thinking !== undefined)
      assert.isFalse(yield* thinks({ tools: [weather], toolChoice: "required" }))
      assert.isFalse(yield* thinks({ tools: [weather], toolChoice: { name: "get_weather" } }))
      assert.isTrue(yield* thinks({ tools: [weather], toolChoice: "auto" }))
      const call = Message.toolCall("a", "get_weather")
      const metadata = { anthropic: { type: "thinking" } }
      const thoughtful: Message.Message = {
        ...Message.assistant("", [call]),
        reasoning: [{ type: "reasoning", text: "hm", signature: "sig", metadata }]
      }
      const turn = (...messages: ReadonlyArray<Message.Message>) => ({
        tools: [weather],
        messages: [Message.user("go"), ...messages, Message.tool("a", "1")]
      })
      assert.isFalse(yield* thinks(turn(Message.assistant("", [call]))))
      assert.isTrue(yield* thinks(turn(Message.assistant("", [call])), { effort: "high" }))
      assert.isTrue(yield* thinks(turn(thoughtful)))
      const later = { ...call, id: "b" }
      assert.isTrue(yield* thinks(turn(thoughtful, Message.tool("a", "0"), Message.assistant("", [later]))))
      const asked = turn(Message.assistant("", [call]))
      assert.isTrue(yield* thinks({ ...asked, messages: [...asked.messages, Message.user("and now?")] }))
    }))
})

describe("the cache marks", () => {
  const call = (id: string) => Message.toolCall(id, "get_weather", { city: id })
  const thread: ReadonlyArray<Message.Message> = [
    Message.system("One."),
    Message.user("first"),
    Message.assistant("", [call("a"), call("b")]),
    Message.tool("a", "1"),
    Message.tool("b", "2"),
    Message.assistant("Both."),
    Message.user([{ type: "text", text: "second" }, { type: "image", url: "https://example.com/a.png" }])
  ]

  const mark = { type: "ephemeral" }

  it.effect("R-123: the cache marks the end of the tools, of the system text and of the last two user messages, nothing else", () =>
    Effect.gen(function*() {
      const body = yield* bodyOf({ messages: thread, tools: [weather, bare] }, { cache: true })
      assert.deepStrictEqual(body.tools.map((tool: any) => tool.cache_control), [undefined, mark])
      assert.deepStrictEqual(body.system, [{ type: "text", text: "One.", cache_control: mark }])
      assert.deepStrictEqual(
        body.messages.map(({ content }: any) => content.map((block: any) => block.cache_control)),
        [[undefined], [undefined, undefined], [undefined, mark], [undefined], [undefined, mark]]
      )
      const hour = yield* bodyOf({ messages: thread }, { cache: { ttl: "1h" } })
      assert.deepStrictEqual(hour.system[0].cache_control, { type: "ephemeral", ttl: "1h" })
      for (const cache of [false, undefined]) {
        const plain = yield* bodyOf({ messages: thread, tools: [weather] }, cache === undefined ? {} : { cache })
        assert.notInclude(JSON.stringify(plain), "cache_control")
      }
    }))

  it.effect("R-123: a growing thread begins with the bytes sent before, except for the cache marks", () =>
    Effect.gen(function*() {
      const sentOf = (length: number) =>
        Effect.map(
          bodyOf({ messages: thread.slice(0, length), tools: [weather] }, { cache: true }),
          (body) =>
            [body.tools, body.system, ...body.messages].map((part) =>
              JSON.stringify(part).replaceAll(",\"cache_control\":{\"type\":\"ephemeral\"}", "")
            )
        )
      const whole = yield* sentOf(thread.length)
      for (const length of [2, 5, 6]) {
        const before = yield* sentOf(length)
        assert.deepStrictEqual(whole.slice(0, before.length), before)
      }
    }))
})

describe("the address and the headers", () => {
  it.effect("R-123: the headers carry the key and the version; headers from the options win over the adapter's own", () =>
    Effect.gen(function*() {
      const { headers } = yield* sent({}, { apiKey: Redacted.make(" sk-ant-1\n"), betas: ["a-1", "b-2"] })
      assert.deepInclude(headers, {
        "x-api-key": "sk-ant-1",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "a-1,b-2",
        accept: "text/event-stream",
        "content-type": "application/json"
      })
      assert.isUndefined(headers.authorization)
      const other = yield* sent({}, { version: "2024-01-01", headers: { authorization: Redacted.make("Bearer t") } })
      assert.deepInclude(other.headers, { authorization: "Bearer t", "anthropic-version": "2024-01-01" })
      assert.isUndefined(other.headers["x-api-key"])
      assert.isUndefined(other.headers["anthropic-beta"])
    }))

  /** Where a request goes under a base URL. */
  const pathUnder = (path: string, options: Partial<Anthropic.Options> = {}, request: Partial<Adapter.Request> = {}) =>
    Requests.received(
      answered,
      (url) => Wire.stream("", { ...options, baseUrl: `${url}${path}` }, { ...Chunks.request, ...request })
    )

  it.effect("R-123: the base URL may end with the version path; a query string stays at the end", () =>
    Effect.gen(function*() {
      const paths: ReadonlyArray<readonly [string, string]> = [
        ["", "/v1/messages"],
        ["/", "/v1/messages"],
        ["/v1", "/v1/messages"],
        ["/v1/", "/v1/messages"],
        ["/anthropic", "/anthropic/v1/messages"],
        ["/anthropic/v1?x=1", "/anthropic/v1/messages?x=1"],
        ["/proxy?to=/v1", "/proxy/v1/messages?to=%2Fv1"]
      ]
      for (const [base, path] of paths) assert.strictEqual((yield* pathUnder(base)).path, path)
    }))

  it.effect("R-123: a Vertex AI request has the model in the path, the version in the body, and a bearer token", () =>
    Effect.gen(function*() {
      const vertex = { vertex: true, apiKey: Redacted.make("token") }
      const base = "/v1/projects/p/locations/l/publishers/anthropic/models"
      const received = yield* pathUnder(base, vertex, { model: "claude-haiku-4-5@20251001" })
      assert.strictEqual(received.path, `${base}/claude-haiku-4-5@20251001:streamRawPredict`)
      assert.notProperty(received.body, "model")
      assert.strictEqual(received.body.anthropic_version, "vertex-2023-10-16")
      assert.deepStrictEqual(
        [received.headers.authorization, received.headers["x-api-key"], received.headers["anthropic-version"]],
        ["Bearer token", undefined, undefined]
      )
    }))
})
