/**
 * How a thread is written, and how a model's turn goes back: whatever a reply held besides text and calls stands where it
 * stood, with its signature.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { type Adapter, Chat, Message, Step, Thread, Tool } from "heddle"
import type { Gemini } from "heddle/adapters"
import { body, call, chunk, finish, layer, outcome, request, said, stream, thought } from "../support/gemini.ts"
import * as Server from "../support/server.ts"

type Json = Readonly<Record<string, unknown>>

const stop = finish("STOP")
const answered = body(said("ok"), stop)

const bodyOf = (asked: Partial<Adapter.Request>, options: Partial<Gemini.Options> = {}) =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => ({ pieces: [answered] }))
    yield* Stream.runDrain(stream(server.url, options, { ...request, ...asked }))
    return server.requests[0]!.body
  }))

const contentsOf = (messages: ReadonlyArray<Message.Message>, options: Partial<Gemini.Options> = {}) =>
  Effect.map(bodyOf({ messages }, options), (body) => body.contents as ReadonlyArray<any>)

describe("the contents of a Gemini request", () => {
  const calls = [
    Message.toolCall("a", "read", { path: "x" }),
    { ...Message.toolCall("b", "read"), metadata: { gemini: { id: "w", thoughtSignature: "s" } } },
    { ...Message.toolCall("c", "codeExecution"), providerExecuted: true }
  ]

  it.effect("R-146: one content holds all answers of a turn in call order, each with its name and with the wire's call id if any", () =>
    Effect.gen(function*() {
      const contents = yield* contentsOf([
        Message.user("go"),
        Message.assistant("Looking.", calls),
        Message.tool("b", "{\"lines\": 2}"),
        Message.tool("a", [{ type: "text", text: "on" }, { type: "text", text: "e" }]),
        Message.user("and?"),
        Message.assistant("", [Message.toolCall("a", "write")]),
        { ...Message.tool("a", "no space"), isError: true }
      ])
      assert.deepStrictEqual(contents, [
        { role: "user", parts: [{ text: "go" }] },
        {
          role: "model",
          parts: [
            { text: "Looking." },
            { functionCall: { name: "read", args: { path: "x" } } },
            { functionCall: { id: "w", name: "read", args: {} }, thoughtSignature: "s" }
          ]
        },
        {
          role: "user",
          parts: [
            { functionResponse: { name: "read", response: { result: "one" } } },
            { functionResponse: { id: "w", name: "read", response: { lines: 2 } } }
          ]
        },
        { role: "user", parts: [{ text: "and?" }] },
        { role: "model", parts: [{ functionCall: { name: "write", args: {} } }] },
        { role: "user", parts: [{ functionResponse: { name: "write", response: { error: "no space" } } }] }
      ])
    }))

  it.effect("R-146: a tool answer that is a JSON object goes out unchanged, any other value as a member of an object", () =>
    Effect.gen(function*() {
      const responseOf = (content: string, isError = false) =>
        Effect.map(
          contentsOf([
            Message.assistant("", [Message.toolCall("a", "read")]),
            { ...Message.tool("a", content), ...(isError ? { isError } : {}) }
          ]),
          (contents) => contents[1].parts[0].functionResponse.response
        )
      const cases: ReadonlyArray<readonly [content: string, response: unknown]> = [
        ["", { result: "" }],
        ["42", { result: "42" }],
        ["[1]", { result: "[1]" }],
        ["{\"a\":1}", { a: 1 }],
        ["{\"a\":1", { result: "{\"a\":1" }],
        ["{\"id\":900719925474099}", { id: 900719925474099 }],
        // The smallest whole number that a double cannot hold.
        ["{\"id\":9007199254740993}", { result: "{\"id\":9007199254740993}" }],
        ["{\"id\":12345678901234567890}", { result: "{\"id\":12345678901234567890}" }]
      ]
      for (const [content, response] of cases) assert.deepStrictEqual(yield* responseOf(content), response)
      assert.deepStrictEqual(yield* responseOf("bad", true), { error: "bad" })
      assert.deepStrictEqual(yield* responseOf("{\"code\":1}", true), { error: { code: 1 } })
      assert.deepStrictEqual(yield* responseOf("{\"error\":\"x\",\"code\":1}", true), { error: "x", code: 1 })
    }))

  it.effect("R-351: the request omits empty messages", () =>
    Effect.gen(function*() {
      const contents = yield* contentsOf([
        Message.user("a"),
        Message.assistant(""),
        { ...Message.assistant(""), reasoning: [{ type: "reasoning", text: "hm" }] },
        Message.system(""),
        Message.user("b")
      ])
      assert.deepStrictEqual(contents, [
        { role: "user", parts: [{ text: "a" }] },
        { role: "user", parts: [{ text: "b" }] }
      ])
    }))

  it.effect("M-39: two model messages in a row become one content, with their parts in order", () =>
    Effect.gen(function*() {
      const contents = yield* contentsOf([
        Message.user("a"),
        Message.assistant("One."),
        Message.assistant(""),
        Message.system("Be brief."),
        Message.assistant("Two.", [Message.toolCall("c", "read")]),
        Message.tool("c", "done"),
        Message.assistant("Three."),
        Message.user("b"),
        Message.user("c")
      ])
      assert.deepStrictEqual(contents, [
        { role: "user", parts: [{ text: "a" }] },
        { role: "model", parts: [{ text: "One." }, { text: "Two." }, { functionCall: { name: "read", args: {} } }] },
        { role: "user", parts: [{ functionResponse: { name: "read", response: { result: "done" } } }] },
        { role: "model", parts: [{ text: "Three." }] },
        { role: "user", parts: [{ text: "b" }] },
        { role: "user", parts: [{ text: "c" }] }
      ])
    }))

  it.effect("R-123: images and files go out inline or by address", () =>
    Effect.gen(function*() {
      const [content] = yield* contentsOf([Message.user([
        { type: "text", text: "What is this?" },
        { type: "image", data: "AAAA" },
        { type: "image", data: "BBBB", mediaType: "image/webp" },
        { type: "image", url: "data:image/gif;base64,CCCC" },
        { type: "file", url: "data:;base64,DDDD" },
        { type: "file", data: "EEEE", mediaType: "application/pdf", filename: "a.pdf" },
        { type: "file", url: "https://generativelanguage.googleapis.com/v1beta/files/1", mediaType: "video/mp4" },
        { type: "image", url: "gs://bucket/a.png" }
      ])])
      assert.deepStrictEqual(content.parts, [
        { text: "What is this?" },
        { inlineData: { mimeType: "image/png", data: "AAAA" } },
        { inlineData: { mimeType: "image/webp", data: "BBBB" } },
        { inlineData: { mimeType: "image/gif", data: "CCCC" } },
        { inlineData: { mimeType: "application/octet-stream", data: "DDDD" } },
        { inlineData: { mimeType: "application/pdf", data: "EEEE" } },
        { fileData: { mimeType: "video/mp4", fileUri: "https://generativelanguage.googleapis.com/v1beta/files/1" } },
        { fileData: { mimeType: "image/png", fileUri: "gs://bucket/a.png" } }
      ])
    }))

  it.effect("M-19: media after the answers of a turn name the tool and the position of its answer, never a generated id", () =>
    Effect.gen(function*() {
      const image = { type: "image", data: "AAAA" } as const
      const contents = yield* contentsOf([
        Message.assistant("", [Message.toolCall("call_01a2", "look"), Message.toolCall("call_01a3", "look")]),
        Message.tool("call_01a3", [image, image]),
        Message.tool("call_01a2", [image])
      ])
      assert.notInclude(JSON.stringify(contents), "call_01a")
      const attached = contents.at(-1).parts.map(({ text }: { readonly text?: string }) => text ?? "image")
      assert.deepStrictEqual(attached, [
        "From the tool look (function response 1 of 2):",
        "image",
        "From the tool look (function response 2 of 2):",
        "image",
        "image"
      ])
    }))

  it.effect("R-146: an image in a tool answer follows all answers of its turn", () =>
    Effect.gen(function*() {
      const image = { type: "image", data: "AAAA" } as const
      const contents = yield* contentsOf([
        Message.assistant("", [Message.toolCall("a", "look"), Message.toolCall("b", "look")]),
        Message.tool("a", [{ type: "text", text: "seen" }, image]),
        Message.tool("b", "nothing")
      ])
      assert.deepStrictEqual(contents.slice(1), [
        {
          role: "user",
          parts: [
            { functionResponse: { name: "look", response: { result: "seen" } } },
            { functionResponse: { name: "look", response: { result: "nothing" } } }
          ]
        },
        {
          role: "user",
          parts: [{ text: "From the tool look (function response 1 of 2):" }, {
            inlineData: { mimeType: "image/png", data: "AAAA" }
          }]
        }
      ])
    }))

  it.effect("R-342: a call without a signature gets the skip signature, for models that require signatures", () =>
    Effect.gen(function*() {
      const foreign = { ...Message.toolCall("a", "read"), metadata: { openaiChat: { extra_content: {} } } }
      const thread = [
        Message.assistant("", [foreign, Message.toolCall("b", "read")]),
        Message.assistant("", [calls[1]!])
      ]
      const signaturesOf = (model: string) =>
        Effect.map(
          bodyOf({ model, messages: thread }),
          ({ contents }) => contents.flatMap(({ parts }: any) => parts.map((part: any) => part.thoughtSignature))
        )
      for (const model of ["gemini-3-flash-preview", "gemini-3.1-pro", "gemini-12-nano", "gemini-flash-latest"]) {
        assert.deepStrictEqual(yield* signaturesOf(model), ["skip_thought_signature_validator", undefined, "s"], model)
      }
      for (const model of ["gemini-2.5-pro", "gemini-1.5-flash-latest", "gemma-3"]) {
        assert.deepStrictEqual(yield* signaturesOf(model), [undefined, undefined, "s"], model)
      }
    }))

  it.effect("R-146: the request omits reasoning of another protocol", () =>
    Effect.gen(function*() {
      const [content] = yield* contentsOf([{
        ...Message.assistant([{ type: "reasoning", text: "a", signature: "x" }, { type: "text", text: "Hi" }]),
        reasoning: [{ type: "reasoning", text: "b", signature: "y", metadata: { anthropic: { redacted: "z" } } }]
      }])
      assert.deepStrictEqual(content.parts, [{ text: "Hi" }])
    }))

  it.effect("R-122: the adapter refuses content without a form in the protocol before it sends anything", () =>
    Effect.gen(function*() {
      const cases: ReadonlyArray<readonly [messages: ReadonlyArray<Message.Message>, detail: string]> = [
        [[Message.system([{ type: "image", data: "AAAA" }])], "a system message cannot hold image parts"],
        [[Message.user([{ type: "file" }])], "the file part has neither url nor data"],
        [[Message.user([{ type: "image", url: "data:image/svg+xml,<svg/>" }])], "a data URI that holds no base64"],
        [[Message.tool("z", "x")], "the tool message z answers no call of the thread"]
      ]
      yield* Effect.scoped(Effect.gen(function*() {
        const server = yield* Server.serve(() => ({ pieces: [answered] }))
        for (const [messages, detail] of cases) {
          const { error, events } = yield* outcome(stream(server.url, {}, { ...request, messages }))
          assert.deepStrictEqual([error?.reason, events], ["unsupported_feature", []])
          assert.include(error?.detail, detail)
        }
        assert.deepStrictEqual(server.requests, [])
      }))
      const named = yield* contentsOf([{ ...Message.tool("z", "x"), name: "read" }])
      assert.deepStrictEqual(named[0].parts, [{ functionResponse: { name: "read", response: { result: "x" } } }])
    }))
})

describe("a model's turn in the next Gemini request", () => {
  const encode = Schema.encodeEffect(Thread.Thread)
  const decode = Schema.decodeEffect(Thread.Thread)

  type Messages = ReadonlyArray<Message.Message>

  /** The parts that a reply goes back as, after its thread was kept as JSON. `edit` changes reply and answers before. */
  const goingBack = (chunks: ReadonlyArray<Json>, edit = (messages: Messages): Messages => messages) =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve((_, index) => ({ pieces: [index === 0 ? body(...chunks) : answered] }))
      const adapter = layer(server.url)
      const { thread } = yield* Effect.provide(Step.run("go"), adapter)
      const stored = yield* decode(JSON.parse(JSON.stringify(yield* encode(thread))))
      const [asked, ...said] = stored.messages
      yield* Effect.provide(Step.run([asked!, ...edit(said), Message.user("on")]), adapter)
      const contents = server.requests[1]!.body.contents as ReadonlyArray<{ role: string; parts: ReadonlyArray<Json> }>
      return contents.filter(({ role }) => role === "model").flatMap(({ parts }) => parts)
    }))

  const signed = (part: Json, thoughtSignature: string): Json => ({ ...part, thoughtSignature })
  const code = { executableCode: { language: "PYTHON", code: "1", id: "x" } }
  const result = { codeExecutionResult: { outcome: "OUTCOME_OK", output: "1" } }
  const image = { inlineData: { mimeType: "image/png", data: "AAAA" } }

  const replies: ReadonlyArray<readonly [name: string, chunks: ReadonlyArray<Json>, parts: ReadonlyArray<Json>]> = [
    [
      "text and calls",
      [said("Let "), said("me"), chunk([signed(call("a", { x: 1 }), "s"), call("b", {})]), stop],
      [{ text: "Let me" }, signed(call("a", { x: 1 }), "s"), call("b", {})]
    ],
    [
      "a call with an id, and one of no declared name",
      [chunk([call("a", {}, { id: "w" })]), stop],
      [call("a", {}, { id: "w" })]
    ],
    [
      "a signature on an empty last text",
      [thought("hm"), said("one "), said("two"), chunk([signed({ text: "" }, "s")], { finishReason: "STOP" })],
      [{ text: "one two" }, signed({ text: "" }, "s")]
    ],
    [
      "a signature on a text between others",
      [said("a"), chunk([signed({ text: "b" }, "s")]), said("c"), stop],
      [{ text: "a" }, signed({ text: "b" }, "s"), { text: "c" }]
    ],
    ["a signature on nothing", [said("a"), chunk([{ thoughtSignature: "s" }]), stop], [{ text: "a" }, {
      thoughtSignature: "s"
    }]],
    [
      "signed thoughts, which go back, and others, which do not",
      [thought("x"), chunk([signed({ text: "y", thought: true }, "s")]), thought("z"), said("a"), stop],
      [signed({ text: "y", thought: true }, "s"), { text: "a" }]
    ],
    [
      "calls between texts",
      [said("a"), chunk([call("f", {})]), said("b"), chunk([signed(call("g", {}), "s")]), said("c"), stop],
      [{ text: "a" }, call("f", {}), { text: "b" }, signed(call("g", {}), "s"), { text: "c" }]
    ],
    [
      "code that ran there, and an image",
      [
        chunk([signed(code, "s"), { ...image, thought: true }]),
        chunk([result]),
        said("It is"),
        chunk([signed(image, "t")]),
        stop
      ],
      [signed(code, "s"), result, { text: "It is" }, signed(image, "t")]
    ],
    [
      "a call that ran there, with its answer",
      [
        chunk([signed(call("far", { x: 1 }), "s")]),
        chunk([{ functionResponse: { name: "far", response: {} } }]),
        chunk([call("near", {})]),
        stop
      ],
      [signed(call("far", { x: 1 }), "s"), { functionResponse: { name: "far", response: {} } }, call("near", {})]
    ]
  ]

  for (const [name, chunks, parts] of replies) {
    it.effect(`R-342: a model's message goes back unchanged: ${name}`, () =>
      Effect.gen(function*() {
        assert.deepStrictEqual(yield* goingBack(chunks), parts)
      }))
  }

  it.effect("R-342: a streamed call goes back whole, with the signature of whichever piece carried the signature", () =>
    Effect.gen(function*() {
      const piece = { jsonPath: "$.x", stringValue: "y" }
      const opening = { functionCall: { name: "f", willContinue: true } }
      const rest = { functionCall: { partialArgs: [piece] } }
      const parts = [signed(call("f", { x: "y" }), "s")]
      assert.deepStrictEqual(yield* goingBack([chunk([signed(opening, "s")]), chunk([rest]), stop]), parts)
      assert.deepStrictEqual(yield* goingBack([chunk([opening]), chunk([signed(rest, "s")]), stop]), parts)
    }))

  it.effect("R-342: a changed text goes back as changed, without the metadata of the old text", () =>
    Effect.gen(function*() {
      const chunks = [chunk([signed({ text: "a" }, "s")]), chunk([signed(call("f", {}), "t")]), said("b"), stop]
      const parts = yield* goingBack(
        chunks,
        ([reply, ...answers]) => [{ ...reply!, content: "other" }, ...answers]
      )
      assert.deepStrictEqual(parts, [{ text: "other" }, signed(call("f", {}), "t")])
    }))

  it.effect("R-342: removed calls do not go back, and a turn with damaged metadata still goes back", () =>
    Effect.gen(function*() {
      const chunks = [chunk([call("f", {}), call("g", {})]), said("b"), stop]
      const without = yield* goingBack(chunks, ([reply, , second]) => {
        const toolCalls = reply!.toolCalls!.slice(1)
        return [{ ...reply!, toolCalls }, second!]
      })
      assert.deepStrictEqual(without, [call("g", {}), { text: "b" }])
      for (
        const kept of [null, {}, "x", [1, null, { text: "1" }, { thought: 7 }, { call: 1 }, { part: 1 }, { text: 1 }]]
      ) {
        const reasoning = [{ type: "reasoning", text: "", metadata: { gemini: { parts: kept } } } as const]
        const parts = yield* goingBack(chunks, ([reply, ...answers]) => [{ ...reply!, reasoning }, ...answers])
        assert.deepStrictEqual(parts, [{ text: "b" }, call("f", {}), call("g", {})])
      }
    }))

  it.effect("R-126, R-136, R-344: a run answers two calls, and the next request has both calls and both answers", () =>
    Effect.scoped(Effect.gen(function*() {
      const asking = chunk([
        signed(call("get_weather", { city: "Oslo" }), "sig"),
        call("get_weather", { city: "Bergen" })
      ], { finishReason: "STOP" })
      const server = yield* Server.serve((_, index) => ({
        pieces: [index > 0 ? body(said("4 and 6"), stop) : body(thought("hm"), asking)]
      }))
      const getWeather = Tool.make("get_weather", {
        parameters: { city: Schema.NonEmptyString },
        handler: ({ city }) => city === "Oslo" ? Effect.succeed({ celsius: 4 }) : Effect.fail({ reason: "storm" })
      })
      const result = yield* Chat.run("How warm is it?", { tools: [getWeather], system: "Be brief." }).pipe(
        Effect.provide(layer(server.url))
      )
      assert.deepStrictEqual([result.haltedReason, result.finalResponse?.outputText], ["completed", "4 and 6"])
      assert.deepStrictEqual(Thread.unanswered(result.thread), [])
      assert.deepStrictEqual(server.requests[1]!.body.contents, [
        { role: "user", parts: [{ text: "How warm is it?" }] },
        {
          role: "model",
          parts: [signed(call("get_weather", { city: "Oslo" }), "sig"), call("get_weather", { city: "Bergen" })]
        },
        {
          role: "user",
          parts: [
            { functionResponse: { name: "get_weather", response: { celsius: 4 } } },
            { functionResponse: { name: "get_weather", response: { error: "{\"reason\":\"storm\"}" } } }
          ]
        }
      ])
    })))
})
