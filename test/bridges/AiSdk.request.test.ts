/**
 * What a model of the AI SDK is asked: by its own packages' requests on the wire, and by the call options that each
 * version of the interface is given.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import * as Stream from "effect/Stream"
import { type Adapter, Message, Tool } from "heddle"
import * as AiSdk from "heddle/bridges/ai-sdk"
import * as Models from "../support/aiSdk.ts"
import * as Chunks from "../support/openAiChat.ts"

const { scripted, sent, stream, versions } = Models

const png = "iVBORw0KGgoAAAANSUhEUg=="

/** What a model of a version is called with for a request. */
const called = (
  request: Partial<Adapter.Request>,
  version: Models.Version = "v4",
  options: Partial<AiSdk.Options> = {}
) =>
  Effect.gen(function*() {
    const model = scripted([Models.text("ok"), Models.finish("stop")], version)
    yield* Stream.runDrain(stream(AiSdk.layer({ model, retries: 0, ...options }), { ...Chunks.request, ...request }))
    return model.calls[0]
  })

const promptOf = (messages: ReadonlyArray<Message.Message>, version: Models.Version = "v4") =>
  Effect.map(called({ messages }, version), ({ prompt }) => prompt)

const refused = (request: Partial<Adapter.Request>, options: Partial<AiSdk.Options> = {}, version?: Models.Version) => {
  const model = scripted([Models.finish("stop")], version)
  const adapter = AiSdk.layer({ model, retries: 0, ...options })
  return Effect.map(Chunks.outcome(stream(adapter, { ...Chunks.request, ...request })), ({ error }) => {
    assert.deepStrictEqual(model.calls, [])
    return [error?.reason, error?.detail] as const
  })
}

describe("a bridged request on the wire", () => {
  for (const version of versions) {
    it.effect(`R-123: each setting of a request has its place in the body of version ${version}`, () =>
      Effect.gen(function*() {
        const { body, headers } = yield* sent(
          {
            messages: [Message.system("Be brief"), Message.user("Hi")],
            tools: [{ name: "now", description: "The time", parameters: { type: "object", properties: {} } }],
            toolChoice: { name: "now" },
            temperature: 0.5,
            maxTokens: 7,
            responseFormat: { type: "json_schema", name: "answer", schema: { type: "object" } },
            options: { topP: 0.1, stopSequences: ["."], providerOptions: { acme: { user: "me" } } }
          },
          version,
          { options: { seed: 1, topP: 0.9, providerOptions: { acme: { logit_bias: { 1: 2 } } } } }
        )
        assert.strictEqual(headers.authorization, "Bearer sk-secret")
        assert.deepInclude(body, {
          model: "test-model",
          temperature: 0.5,
          max_tokens: 7,
          top_p: 0.1,
          seed: 1,
          stop: ["."],
          user: "me",
          logit_bias: { 1: 2 },
          stream: true
        })
        assert.deepStrictEqual(body.messages, [{ role: "system", content: "Be brief" }, {
          role: "user",
          content: "Hi"
        }])
        assert.deepStrictEqual(body.tools, [{
          type: "function",
          function: { name: "now", description: "The time", parameters: { type: "object", properties: {} } }
        }])
        assert.deepStrictEqual(body.tool_choice, { type: "function", function: { name: "now" } })
        assert.strictEqual(body.response_format.type, "json_schema")
        assert.deepInclude(body.response_format.json_schema, { name: "answer", schema: { type: "object" } })
      }))

    it.effect(`R-123: images go out in the form of version ${version}`, () =>
      Effect.gen(function*() {
        const { body } = yield* sent({
          messages: [Message.user([
            { type: "text", text: "What is this?" },
            { type: "image", data: png },
            { type: "image", url: `data:image/gif;base64,R0lGOD` },
            { type: "image", url: "https://example.com/cat.png" }
          ])]
        }, version)
        assert.deepStrictEqual(body.messages[0].content, [
          { type: "text", text: "What is this?" },
          { type: "image_url", image_url: { url: `data:image/png;base64,${png}` } },
          { type: "image_url", image_url: { url: "data:image/gif;base64,R0lGOD" } },
          { type: "image_url", image_url: { url: "https://example.com/cat.png" } }
        ])
      }))
  }

  it.effect("R-123: headers, strict tools and reasoning reach the model", () =>
    Effect.gen(function*() {
      const { body, headers } = yield* sent(
        { tools: [{ name: "now", description: "", parameters: { type: "object" } }] },
        "v4",
        { headers: { "x-plain": "a", "x-key": Redacted.make("b") }, strict: true, reasoning: { effort: "low" } }
      )
      assert.deepInclude(headers, { "x-plain": "a", "x-key": "b" })
      assert.isTrue(body.tools[0].function.strict)
      assert.strictEqual(body.reasoning_effort, "low")
    }))
})

describe("the call options of a bridged model", () => {
  it.effect("R-123: unset options do not reach the model", () =>
    Effect.gen(function*() {
      assert.sameMembers(Object.keys(yield* called({ toolChoice: "required" })), ["prompt", "abortSignal"])
    }))

  it.effect("R-123: each tool choice is mapped", () =>
    Effect.gen(function*() {
      const tools = [{ name: "now", description: "", parameters: {} }]
      for (const choice of ["auto", "none", "required"] as const) {
        assert.deepStrictEqual((yield* called({ tools, toolChoice: choice })).toolChoice, { type: choice })
      }
      const one = yield* called({ tools, toolChoice: { name: "now" } })
      assert.deepStrictEqual(one.toolChoice, { type: "tool", toolName: "now" })
      assert.deepStrictEqual(one.tools, [{ type: "function", name: "now", inputSchema: {} }])
    }))

  it.effect("R-123: the response format json_object becomes json, and text becomes no format", () =>
    Effect.gen(function*() {
      const format = (responseFormat: Adapter.ResponseFormat) =>
        Effect.map(called({ responseFormat }), (options) => options.responseFormat)
      assert.deepStrictEqual(yield* format({ type: "json_object" }), { type: "json" })
      assert.isUndefined(yield* format({ type: "text" }))
    }))

  it.effect("a provider-defined tool has its version's type, and replaces the function tool of its name", () =>
    Effect.gen(function*() {
      const providerTools = [{ id: "acme.search", name: "search", args: { limit: 3 } }, {
        id: "acme.run",
        name: "run"
      }] as const
      const tools = ["search", "now"].map((name) => ({ name, description: "", parameters: {} }))
      for (const version of versions) {
        const options = yield* called({ tools }, version, { providerTools })
        const type = version === "v2" ? "provider-defined" : "provider"
        assert.deepStrictEqual(options.tools, [
          { type: "function", name: "now", inputSchema: {} },
          { type, id: "acme.search", name: "search", args: { limit: 3 } },
          { type, id: "acme.run", name: "run", args: {} }
        ])
      }
    }))

  it.effect("request options replace neither the prompt nor the abort signal", () =>
    Effect.gen(function*() {
      const options = yield* called({ options: { prompt: "mine", abortSignal: "mine" } })
      assert.deepStrictEqual(options.prompt, [{ role: "user", content: [{ type: "text", text: "Hello" }] }])
      assert.instanceOf(options.abortSignal, AbortSignal)
    }))

  it.effect("a request for another model goes to the model from `models`, or is refused without `models`", () =>
    Effect.gen(function*() {
      const other = scripted([Models.finish("stop")])
      const model = scripted([Models.finish("stop")])
      const asked: Array<string> = []
      const models = (id: string) => {
        asked.push(id)
        return other
      }
      const adapter = AiSdk.layer({ model, models })
      yield* Stream.runDrain(stream(adapter, { ...Chunks.request, model: "script" }))
      yield* Stream.runDrain(stream(adapter, { ...Chunks.request, model: "bigger" }))
      assert.deepStrictEqual([model.calls.length, other.calls.length, asked], [1, 1, ["bigger"]])
      const [reason, detail] = yield* refused({ model: "bigger" })
      assert.strictEqual(reason, "unsupported_feature")
      assert.include(detail, "\"bigger\"")
    }))

  it.effect("R-122: the bridge refuses settings without a form in the version before the model is called", () =>
    Effect.gen(function*() {
      const [reasoning, words] = yield* refused({}, { reasoning: { effort: "low" } }, "v3")
      assert.strictEqual(reasoning, "unsupported_feature")
      assert.include(words, "providerOptions")
      const [strict] = yield* refused({}, { strict: true }, "v2")
      assert.strictEqual(strict, "unsupported_feature")
    }))

  it("R-123: an invalid option throws an error with the option name", () => {
    const model = scripted([])
    const cases: ReadonlyArray<readonly [options: unknown, words: RegExp]> = [
      [{ model: "gpt-5" }, /model must be a language model.*gpt-5/],
      [{ model: { ...model, specificationVersion: "v1" } }, /got: one of version v1/],
      [{ model, retries: -1 }, /retries/],
      [{ model, idleTimeout: "soon" }, /idleTimeout/]
    ]
    for (const [options, words] of cases) {
      assert.throws(() => AiSdk.layer(options as AiSdk.Options), words)
    }
  })
})

describe("the prompt of a bridged model", () => {
  const asked = Message.user("Hi")

  it.effect("R-146: one message holds the answers to all calls of a turn, with the tool names", () =>
    Effect.gen(function*() {
      const calls = [Message.toolCall("a", "read", { path: "x" }), Message.toolCall("b", "write")]
      const prompt = yield* promptOf([
        asked,
        Message.assistant("Wait", calls),
        { ...Message.tool("a", "done"), metadata: { aiSdk: { options: { acme: { cached: true } } } } },
        { ...Message.tool("b", "no"), isError: true },
        Message.user("And?")
      ])
      assert.deepStrictEqual(prompt.slice(1), [
        {
          role: "assistant",
          content: [
            { type: "text", text: "Wait" },
            { type: "tool-call", toolCallId: "a", toolName: "read", input: { path: "x" } },
            { type: "tool-call", toolCallId: "b", toolName: "write", input: {} }
          ]
        },
        {
          role: "tool",
          content: [
            {
              type: "tool-result",
              toolCallId: "a",
              toolName: "read",
              output: { type: "text", value: "done" },
              providerOptions: { acme: { cached: true } }
            },
            { type: "tool-result", toolCallId: "b", toolName: "write", output: { type: "error-text", value: "no" } }
          ]
        },
        { role: "user", content: [{ type: "text", text: "And?" }] }
      ])
    }))

  it.effect("R-123: a message's own provider options go out with the message", () =>
    Effect.gen(function*() {
      const options = { anthropic: { cacheControl: { type: "ephemeral" } } }
      const metadata = { aiSdk: { options } }
      const prompt = yield* promptOf([{ ...Message.system("Be brief"), metadata }, { ...asked, metadata }])
      assert.deepStrictEqual(prompt.map((message: any) => message.providerOptions), [options, options])
    }))

  it.effect("R-146: a result with an image is content in the form of the version", () =>
    Effect.gen(function*() {
      const thread = [
        asked,
        Message.assistant("", [Message.toolCall("a", "draw")]),
        Message.tool("a", [
          { type: "text", text: "Here" },
          { type: "image", data: png },
          { type: "image", url: "https://example.com/cat.png" },
          { type: "file", data: "JVBERi0", filename: "a.pdf" }
        ])
      ]
      const valueOf = (version: Models.Version) =>
        Effect.map(promptOf(thread, version), (prompt) => prompt[2].content[0].output)
      const url = new URL("https://example.com/cat.png")
      assert.deepStrictEqual(yield* valueOf("v4"), {
        type: "content",
        value: [
          { type: "text", text: "Here" },
          { type: "file", mediaType: "image/png", data: { type: "data", data: png } },
          { type: "file", mediaType: "image/png", data: { type: "url", url } },
          { type: "file", mediaType: "application/pdf", data: { type: "data", data: "JVBERi0" }, filename: "a.pdf" }
        ]
      })
      assert.deepStrictEqual((yield* valueOf("v3")).value, [
        { type: "text", text: "Here" },
        { type: "image-data", data: png, mediaType: "image/png" },
        { type: "image-url", url: "https://example.com/cat.png" },
        { type: "file-data", data: "JVBERi0", mediaType: "application/pdf", filename: "a.pdf" }
      ])
      assert.deepStrictEqual((yield* valueOf("v2")).value, [
        { type: "text", text: "Here" },
        { type: "media", data: png, mediaType: "image/png" },
        { type: "text", text: "[image: image/png, at \"https://example.com/cat.png\"]" },
        { type: "media", data: "JVBERi0", mediaType: "application/pdf" }
      ])
    }))

  it.effect("R-146: a result's image is an image however its media type is written", () =>
    Effect.gen(function*() {
      for (const mediaType of ["image/png", "IMAGE/PNG", "Image/Png; q=1"]) {
        const thread = [
          asked,
          Message.assistant("", [Message.toolCall("a", "draw")]),
          Message.tool("a", [{ type: "image", data: png, mediaType }])
        ]
        const [part] = (yield* promptOf(thread, "v4"))[2].content[0].output.value
        assert.deepStrictEqual(part, { type: "file", mediaType, data: { type: "data", data: png } })
        const [older] = (yield* promptOf(thread, "v3"))[2].content[0].output.value
        assert.deepStrictEqual(older, { type: "image-data", mediaType, data: png })
      }
    }))

  it.effect("R-123: the bridge detects the type of a file without a media type", () =>
    Effect.gen(function*() {
      const prompt = yield* promptOf([Message.user([
        { type: "image", data: "unknown" },
        { type: "image", data: "/9j/4AAQ" },
        { type: "image", data: "unknown", mediaType: "image/avif" },
        { type: "file", url: "https://example.com/a.PDF?x=1" },
        { type: "file", url: "https://example.com/a" },
        { type: "file", url: "data:text/plain,h%C3%B8j" }
      ])])
      assert.deepStrictEqual(prompt[0].content.map((part: any) => part.mediaType), [
        "image/*",
        "image/jpeg",
        "image/avif",
        "application/pdf",
        "application/octet-stream",
        "text/plain"
      ])
      assert.deepStrictEqual(prompt[0].content[5].data, { type: "data", data: Buffer.from("høj").toString("base64") })
    }))

  it.effect("the bridge downloads a file at an unsupported URL once, and leaves other files to the model", () =>
    Effect.gen(function*() {
      const model = Object.assign(scripted([Models.finish("stop")]), {
        supportedUrls: Promise.resolve({ "image/*": [/^https:\/\/images\./g], "*": [/^https:\/\/any\./] })
      })
      const asked: Array<string> = []
      const download = (url: URL) => {
        asked.push(url.href)
        return url.pathname === "/gone"
          ? Effect.fail("gone")
          : Effect.succeed({ data: new Uint8Array([37, 80, 68, 70]), mediaType: "application/pdf" })
      }
      const urls = ["https://images.test/a.png", "https://any.test/b", "https://other.test/c?key=hidden", "gs://x/d"]
      const parts = urls.map((url) => ({ type: "file", url } as const))
      const asking = (messages: ReadonlyArray<Message.Message>) =>
        Chunks.outcome(stream(AiSdk.layer({ model, download, retries: 0 }), { ...Chunks.request, messages }))
      yield* asking([Message.user(parts), Message.user(parts.slice(2))])
      assert.deepStrictEqual(asked, ["https://other.test/c?key=hidden"])
      const loaded = { type: "file", mediaType: "application/pdf", data: { type: "data", data: "JVBERg==" } }
      assert.deepStrictEqual(model.calls[0].prompt[0].content, [
        { type: "file", mediaType: "image/png", data: { type: "url", url: new URL(urls[0]!) } },
        { type: "file", mediaType: "application/octet-stream", data: { type: "url", url: new URL(urls[1]!) } },
        loaded,
        { type: "file", mediaType: "application/octet-stream", data: { type: "url", url: new URL(urls[3]!) } }
      ])
      assert.deepStrictEqual(model.calls[0].prompt[1].content[0], loaded)
      const { error } = yield* asking([Message.user([{ type: "image", url: "https://other.test/gone?key=hidden" }])])
      assert.deepStrictEqual([error?.reason, error?.detail], [
        "invalid_request",
        "the file at https://other.test/gone cannot be loaded"
      ])
      assert.strictEqual(model.calls.length, 1)
    }))

  it.effect("R-122: the bridge refuses a part without usable data before the model is called", () =>
    Effect.gen(function*() {
      for (
        const part of [{ type: "image" }, { type: "file", url: "nowhere" }, { type: "file", url: "data:,%" }] as const
      ) {
        const [reason, detail] = yield* refused({ messages: [Message.user([part])] })
        assert.strictEqual(reason, "invalid_request")
        assert.include(detail, part.type)
      }
    }))

  it.effect("R-351: the prompt omits empty texts beside other content, and empty assistant messages", () =>
    Effect.gen(function*() {
      const prompt = yield* promptOf([
        Message.user([{ type: "text", text: "" }, { type: "image", data: png }]),
        Message.assistant(""),
        Message.user("")
      ])
      assert.deepStrictEqual(prompt.map((message: any) => [message.role, message.content.length]), [["user", 1], [
        "user",
        1
      ]])
      assert.deepStrictEqual(prompt[1].content, [{ type: "text", text: "" }])
    }))

  it.effect("the prompt omits reasoning and executed calls of another provider, and rewrites its call ids", () =>
    Effect.gen(function*() {
      const foreign = { provider: "other", at: 0, options: { other: { itemId: "x" } } }
      const thread: ReadonlyArray<Message.Message> = [
        asked,
        {
          ...Message.assistant("Look", [
            { ...Message.toolCall("functions.read:0", "read"), metadata: { aiSdk: foreign } },
            { ...Message.toolCall("functions/read:0", "read"), metadata: {} },
            {
              ...Message.toolCall("ws_1", "web_search"),
              providerExecuted: true,
              metadata: { aiSdk: { ...foreign, result: { value: 1 } } }
            }
          ]),
          reasoning: [
            { type: "reasoning", text: "hm", metadata: { aiSdk: foreign } },
            { type: "reasoning", text: "hm", signature: "abc" }
          ]
        },
        Message.tool("functions.read:0", "1"),
        Message.tool("functions/read:0", "2")
      ]
      const [, assistant, answers] = yield* promptOf(thread)
      assert.deepStrictEqual(assistant.content, [
        { type: "text", text: "Look" },
        { type: "tool-call", toolCallId: "functions_read_0", toolName: "read", input: {} },
        { type: "tool-call", toolCallId: "functions_read_0_2", toolName: "read", input: {} }
      ])
      assert.deepStrictEqual(
        answers.content.map((part: any) => [part.toolCallId, part.output.value]),
        [["functions_read_0", "1"], ["functions_read_0_2", "2"]]
      )
    }))

  it.effect("the model gets the definitions of Heddle tools", () =>
    Effect.gen(function*() {
      const tool = Tool.make("now", { description: "The time", parameters: {} })
      const options = yield* called({ tools: [Tool.definition(tool)] })
      assert.deepStrictEqual(options.tools, [{
        type: "function",
        name: "now",
        description: "The time",
        inputSchema: { type: "object", properties: {} }
      }])
    }))
})
