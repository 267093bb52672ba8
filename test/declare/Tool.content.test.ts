/**
 * Results that are made of parts: from the handler to the message and the event, past every encoder, kept by sessions,
 * and how each wire writes them.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import {
  Adapter,
  Chat,
  Collector,
  Encoder,
  Event,
  Executor,
  Message,
  Policy,
  Session,
  StreamingToolExecutor,
  Tool,
  ToolRunner
} from "heddle"
import * as AiSdk from "heddle/bridges/ai-sdk"
import { check, Script } from "heddle/testing"
import * as Models from "../support/aiSdk.ts"
import * as Anthropic from "../support/anthropic.ts"
import * as EffectAi from "../support/effectAi.ts"
import * as Gemini from "../support/gemini.ts"
import * as OpenAiChat from "../support/openAiChat.ts"
import * as OpenAiResponses from "../support/openAiResponses.ts"
import { only } from "../support/runs.ts"
import * as Server from "../support/server.ts"
import { throughJson } from "../support/sessions.ts"
import { anything } from "../support/tools.ts"

/** Base64 that no other text of a test holds. */
const png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
const zip = "UEsDBBQAAAAIAAAAIQAAAAAAAAAAAAAAAAAIAAAAUEsFBgAAAAABAAEA"
const pdf = "JVBERi0xLjQKJcOkw7zDtsOfCjIgMCBvYmoKPDwvTGVuZ3RoIDMgMCBS"

const text = { type: "text", text: "Here it is" } as const
const image = { type: "image", mediaType: "image/png", data: png } as const
const archive = { type: "file", mediaType: "application/zip", data: zip, filename: "a.zip" } as const
const paper = { type: "file", mediaType: "application/pdf", data: pdf, filename: "a.pdf" } as const

const archiveLine = "[file \"a.zip\": application/zip, 42 bytes]"

const call = Message.toolCall("c0", "show")

const showing = (
  parts: ReadonlyArray<Message.Part>,
  options: { readonly maxResultChars?: number; readonly readOnly?: boolean; readonly approval?: boolean } = {}
) => Tool.make("show", { parameters: anything, handler: () => Effect.succeed(Tool.content(parts)), ...options })

const script = [
  [Script.toolCall("c0", "show"), Script.finish("tool_calls")],
  [Script.text("done"), Script.finish("stop")]
]

describe("Tool.content", () => {
  for (const [name, policy] of Object.entries({ standard: Policy.standard, allm: Policy.allm, falai: Policy.falai })) {
    it.effect(`M-19: parts are the content of the message and of the event, awaited and streamed (${name})`, () =>
      Effect.gen(function*() {
        const parts = [text, image, paper]
        for (const readOnly of [true, false]) {
          const options = { tools: [showing(parts, { readOnly })], policy }
          const result = yield* Chat.run("go", options).pipe(Effect.provide(Script.layer(script)))
          assert.deepStrictEqual(result.steps[0]?.toolResults, [Message.tool("c0", parts)])
          assert.deepStrictEqual(result.thread.messages[2], Message.tool("c0", parts))
          const events = yield* Stream.runCollect(Chat.stream("go", options)).pipe(Effect.provide(Script.layer(script)))
          assert.deepStrictEqual(only(events, "ToolResultEncoded"), {
            _tag: "ToolResultEncoded",
            id: "c0",
            content: parts
          })
          const folded = Collector.toChatResult(Collector.applyAll(Collector.initial(), events))
          assert.deepStrictEqual(folded.thread.messages, result.thread.messages)
          assert.deepStrictEqual(check(events, { policy }), [])
        }
      }))
  }

  it.effect("M-19: parts bypass the success schema and every encoder", () =>
    Effect.gen(function*() {
      const tool = Tool.make("show", {
        parameters: anything,
        success: Schema.Struct({ n: Schema.Finite }),
        handler: () => Effect.succeed(Tool.content([image]))
      })
      const never = Encoder.layer({ encode: () => Effect.die("it was asked") })
      for (const layer of [never, Encoder.layer(Encoder.allm), Encoder.layer(Encoder.falai)]) {
        const { messages } = yield* ToolRunner.run([call], [tool]).pipe(Effect.provide(layer))
        assert.deepStrictEqual(messages, [Message.tool("c0", [image])])
      }
    }))

  it.effect("M-19: parts pass as Tool.ok, halt result, replacement, data of a result object and executor outcome", () =>
    Effect.gen(function*() {
      const contentOf = (handler: () => Effect.Effect<any, any>, options: ToolRunner.Options<never, never> = {}) =>
        Effect.map(
          ToolRunner.run([call], [Tool.make("show", { parameters: anything, handler })], options),
          ({ messages }) => messages[0]?.content
        )
      const content = Tool.content([text, image])
      assert.deepStrictEqual(yield* contentOf(() => Effect.succeed(Tool.ok(content))), [text, image])
      assert.deepStrictEqual(yield* contentOf(() => Effect.succeed(Tool.halt("shown", content))), [text, image])
      assert.deepStrictEqual(
        yield* contentOf(() => Effect.fail("no"), {
          onToolError: (_call, _error) => Effect.succeed(Tool.ErrorDecision.continue(content))
        }),
        [text, image]
      )
      assert.deepStrictEqual(
        yield* contentOf(() => Effect.succeed({ success: true, data: content }), { policy: Policy.falai }),
        [text, image]
      )
      const executor = Executor.layer({ execute: () => Effect.succeed({ _tag: "Ok", value: content }) as any })
      assert.deepStrictEqual(yield* contentOf(() => Effect.die("not run")).pipe(Effect.provide(executor)), [
        text,
        image
      ])
    }))

  it.effect("M-19: a halt with parts folds to the same thread", () =>
    Effect.gen(function*() {
      const tool = Tool.make("show", {
        parameters: anything,
        handler: () => Effect.succeed(Tool.halt("shown", Tool.content([image])))
      })
      const events = yield* Stream.runCollect(Chat.stream("go", { tools: [tool] })).pipe(
        Effect.provide(Script.layer(script))
      )
      assert.deepStrictEqual(only(events, "ToolHalt").content, [image])
      const folded = Collector.toChatResult(Collector.applyAll(Collector.initial(), events))
      assert.deepStrictEqual(folded.thread.messages.at(-1), Message.tool("c0", [image]))
    }))

  it.effect("M-19: later changes of parts by a handler do not change the content", () =>
    Effect.gen(function*() {
      const parts: Array<any> = [{ ...text }]
      const content = Tool.content(parts)
      const tool = Tool.make("show", { parameters: anything, handler: () => Effect.succeed(content) })
      parts[0].text = "changed"
      parts.push(image)
      const { messages } = yield* ToolRunner.run([call], [tool])
      assert.deepStrictEqual(messages, [Message.tool("c0", [text])])
    }))

  it.effect("M-19, M-20: a later change of parts, content or metadata changes neither the thread nor a request", () =>
    Effect.gen(function*() {
      const cyclic: Record<string, unknown> = { n: 12n, at: new Date(0), page: 1 }
      cyclic["self"] = cyclic
      const shown = {
        ...image,
        metadata: { own: { n: "12", at: "1970-01-01T00:00:00.000Z", page: 1, self: "[Circular]" } }
      }
      const halting = (content: unknown) => Tool.halt("shown", content)
      for (const wrap of [(content: unknown) => content, Tool.ok, halting]) {
        let spoil = () => {}
        const tool = Tool.make("show", {
          parameters: anything,
          handler: () =>
            Effect.sync(() => {
              const metadata = { own: { ...cyclic, self: cyclic["self"] } }
              metadata.own["self"] = metadata.own
              const parts: Array<any> = [{ ...image, metadata }, { ...text }]
              const content = Tool.content(parts)
              spoil = () => {
                for (const held of [parts, content.parts] as Array<Array<any>>) {
                  held[0].metadata.own.page = 2
                  held[0].data = "changed"
                  held[1].text = "changed"
                  held.push({ type: "text", text: 7n })
                }
              }
              spoil()
              return wrap(content)
            })
        })
        const model = yield* Script.make(script)
        const onEvent = () => spoil()
        const { thread } = yield* Effect.provide(Chat.run("go", { tools: [tool], onEvent }), model.layer)
        spoil()
        assert.deepStrictEqual(thread.messages[2], Message.tool("c0", [shown, text]))
        const [, second] = yield* model.requests
        if (wrap !== halting) assert.deepStrictEqual(second?.messages[2], Message.tool("c0", [shown, text]))
        const written = Schema.encodeUnknownSync(Schema.toCodecJson(Schema.Array(Message.Message)))(thread.messages)
        assert.doesNotThrow(() => JSON.stringify(written))
        assert.doesNotThrow(() => JSON.stringify(thread))
      }
      const submitted = [{ ...image, metadata: { own: { page: 1n } } }]
      const answer = Message.answer("c0", submitted)
      Object.assign(submitted[0]!, { data: "changed" })
      assert.deepStrictEqual(answer, Message.tool("c0", [{ ...image, metadata: { own: { page: "1" } } }]))
    }))

  it.effect("M-19: data shaped like content stays data", () =>
    Effect.gen(function*() {
      const tool = Tool.make("show", {
        parameters: anything,
        handler: () => Effect.succeed({ _tag: "Content", parts: [text] })
      })
      const { messages } = yield* ToolRunner.run([call], [tool])
      assert.strictEqual(messages[0]?.content, JSON.stringify({ _tag: "Content", parts: [text] }))
    }))

  it("M-19: Tool.content refuses an invalid part with its index", () => {
    const refused = (parts: unknown) => {
      try {
        Tool.content(parts as never)
      } catch (error) {
        return String(error)
      }
      return assert.fail("it was taken")
    }
    assert.include(refused([text, { type: "image" }]), "Tool.content: part 1 needs a url, or base64 data")
    assert.include(refused([{ type: "reasoning", text: "hm" }]), "part 0 must be a text, image or file part")
    assert.include(refused([{ type: "text" }]), "part 0 has no text")
    assert.include(
      refused([{ type: "file", data: new Uint8Array(2) }]),
      "part 0 must have a string as its url or data"
    )
    assert.include(
      refused([{ type: "file", data: "", filename: 7n }]),
      "part 0 must have strings as its mediaType and filename"
    )
    assert.include(refused([null]), "part 0 must be a text, image or file part")
    assert.include(refused("text"), "takes a list of parts")
  })

  it.effect("M-18, M-19: the result limit applies to the texts together, and images and files do not count", () =>
    Effect.gen(function*() {
      const long = (size: number) => ({ type: "text", text: "x".repeat(size) }) as const
      const parts = [long(600), { ...image, data: png.repeat(100) }, long(200)]
      const events = yield* Stream.runCollect(ToolRunner.stream([call], [showing(parts, { maxResultChars: 400 })]))
      const { content, originalLength } = only(events, "ToolResultEncoded")
      assert.strictEqual(originalLength, 800)
      assert.isTrue(typeof content !== "string")
      const texts = (typeof content === "string" ? [] : content).flatMap((part) =>
        part.type === "text" ? [part.text.length] : []
      )
      assert.isAtMost(texts[0]! + texts[1]!, 400)
      assert.isAtLeast(texts[0]! + texts[1]!, 380)
      assert.deepStrictEqual(typeof content === "string" ? undefined : content[1], parts[1])
      const whole = yield* ToolRunner.run([call], [showing(parts, { maxResultChars: 800 })])
      assert.deepStrictEqual(whole.messages[0]?.content, parts)
    }))

  const cutOf = (texts: ReadonlyArray<string>, policy: Policy.Policy, maxResultChars?: number) =>
    Effect.map(
      ToolRunner.run(
        [call],
        [showing(
          texts.flatMap((text): ReadonlyArray<Message.Part> => [{ type: "text", text }, image]),
          maxResultChars === undefined ? {} : { maxResultChars }
        )],
        { policy }
      ),
      ({ messages }) => {
        const content = messages[0]?.content ?? ""
        assert.isTrue(typeof content !== "string")
        const parts = typeof content === "string" ? [] : content
        assert.strictEqual(parts.filter((part) => part.type === "image").length, texts.length)
        return parts.flatMap((part) => part.type === "text" ? [part.text] : [])
      }
    )

  it.effect("M-18, M-19: texts too long together keep their head and tail, with one notice", () =>
    Effect.gen(function*() {
      const limit = Policy.standard.resultLimit
      const notices = /\[truncated: (\d+) characters in all, (\d+) shown\]/g
      const cases: ReadonlyArray<readonly [texts: ReadonlyArray<string>, first: string, last: string]> = [
        [["exit code 1", "z".repeat(400_000)], "exit code 1", "z"],
        [["z".repeat(400_000), "exit code 1"], "z", "exit code 1"],
        [["begin", "z".repeat(400_000), "end"], "begin", "end"],
        [Array.from({ length: 40_000 }, (_, index) => index === 0 ? "<a" : index === 39_999 ? "b>" : "xy"), "<a", "b>"],
        [["🌤".repeat(20_000), "🌤".repeat(20_000)], "🌤", "🌤"]
      ]
      for (const [texts, first, last] of cases) {
        const shown = yield* cutOf(texts, Policy.standard)
        const all = shown.join("")
        assert.isAtMost(all.length, limit)
        assert.isAtLeast(all.length, limit - 10)
        assert.isTrue(all.startsWith(first) && all.endsWith(last))
        const told = [...all.matchAll(notices)]
        assert.deepStrictEqual(told.map(([, length]) => Number(length)), [texts.join("").length])
        const [head = "", tail = ""] = all.split(/\n\[truncated: [^\]]*\]\n/)
        assert.isTrue(texts.join("").startsWith(head) && texts.join("").endsWith(tail))
        assert.strictEqual(Number(told[0]?.[2]), head.length + tail.length)
        assert.isFalse(/[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/.test(all))
      }
      assert.deepStrictEqual(yield* cutOf(["abc", "def"], Policy.standard, 2), ["a…"])
    }))

  it.effect("M-18, M-19: under allm and falai texts too long together keep only their head, with one notice", () =>
    Effect.gen(function*() {
      for (const policy of [Policy.allm, Policy.falai]) {
        assert.deepStrictEqual(
          yield* cutOf(["exit code 1", "z".repeat(400), "end"], policy, 20),
          ["exit code 1", `${"z".repeat(9)}\n[truncated: 414 characters in all, 20 shown]`]
        )
        assert.deepStrictEqual(yield* cutOf(["exit", "z".repeat(400)], policy, 4), [
          "exit\n[truncated: 404 characters in all, 4 shown]"
        ])
      }
    }))

  it.effect("M-19: a StreamingToolExecutor emits parts", () =>
    Effect.gen(function*() {
      const executor = yield* StreamingToolExecutor.make()
      yield* executor.addTool(call, showing([text, image]))
      yield* executor.noMoreCalls
      const updates = yield* Stream.runCollect(executor.remainingResults)
      assert.deepStrictEqual(updates[0]?.result?.content, [text, image])
    }).pipe(Effect.scoped))

  it.effect("M-19: a session keeps parts of a tool, an approved call and a submission, in memory and in a journal", () =>
    Effect.gen(function*() {
      const tools = [showing([text, image])]
      const opened = yield* Session.open("s")
      const { session } = yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools }))
      assert.deepStrictEqual(session.thread.messages[2], Message.tool("c0", [text, image]))
      const loaded = yield* Session.load("s")
      assert.deepStrictEqual(loaded?.session.thread.messages, session.thread.messages)
      assert.deepStrictEqual(throughJson(session).thread.messages, session.thread.messages)

      const guarded = [showing([image], { approval: true })]
      const model = (turn: ReadonlyArray<Script.Entry>) => Effect.provide(Script.layer([turn]))
      const asked = yield* model(script[0]!)(Session.start("go", { tools: guarded }))
      const allowed = yield* Session.approve(asked.session, "c0")
      const continued = yield* model(script[1]!)(Session.continue(allowed, null, { tools: guarded }))
      assert.deepStrictEqual(continued.session.thread.messages[2], Message.tool("c0", [image]))

      const manual = [Tool.make("show", { parameters: anything, manual: true })]
      const handed = yield* model(script[0]!)(Session.start("go", { tools: manual }))
      const submitted = yield* Session.answer(handed.session, "c0", Tool.content([image]))
      assert.deepStrictEqual(submitted.thread.messages[2], Message.tool("c0", [image]))
    }).pipe(Effect.provide([Session.Store.layerMemory, Script.layer(script)])))

  it.effect("M-19: a result submitted between two runs is settled with its parts", () =>
    Effect.gen(function*() {
      const manual = [Tool.make("show", { parameters: anything, manual: true })]
      const model = (turn: ReadonlyArray<Script.Entry>) => Effect.provide(Script.layer([turn]))
      const handed = yield* model(script[0]!)(Session.start("go", { tools: manual }))
      const submitted = yield* Session.answer(handed.session, "c0", Tool.content([text, image]))
      const events: Array<Event.Event> = []
      const onEvent = (event: Event.Event) => void events.push(event)
      yield* model(script[1]!)(Session.continue(submitted, null, { tools: manual, onEvent }))
      assert.deepStrictEqual(only(events, "ToolResultEncoded"), {
        _tag: "ToolResultEncoded",
        id: "c0",
        content: [text, image],
        settled: true
      })
    }))

  it.effect("M-19: events read from the wire fold to the same thread", () =>
    Effect.gen(function*() {
      const events = yield* Stream.runCollect(Chat.stream("go", { tools: [showing([text, image, paper])] })).pipe(
        Effect.provide(Script.layer(script))
      )
      const wires = events.map((event): unknown => JSON.parse(JSON.stringify(Event.toWire(event))))
      const folded = Collector.toChatResult(Collector.applyAll(Collector.initial(), events))
      assert.deepStrictEqual(Collector.fromWire("go", wires as never).thread.messages, folded.thread.messages)
      assert.deepStrictEqual(folded.thread.messages[2]?.content, [text, image, paper])
    }))

  it("M-19: events with parts survive JSON", () => {
    const codec = Schema.toCodecJson(Event.Event)
    const events: ReadonlyArray<Event.Event> = [
      { _tag: "ToolResultEncoded", id: "c0", content: [text, image, paper] },
      { _tag: "ToolResultEncoded", id: "c0", content: "as ever", isError: true },
      { _tag: "ToolHalt", toolCallId: "c0", reason: "shown", result: null, content: [image] },
      { _tag: "ToolHalt", toolCallId: "c0", reason: "shown", result: null, content: "as ever" }
    ]
    for (const event of events) {
      const json: unknown = JSON.parse(JSON.stringify(Schema.encodeSync(codec)(event)))
      assert.deepStrictEqual(Schema.decodeUnknownSync(codec)(json), event)
    }
  })
})

/** The strings of a body that hold some data, each under the key that it stands under. */
const keysOf = (body: unknown, data: string, key = ""): ReadonlyArray<string> => {
  if (typeof body === "string") return body.includes(data) ? [key] : []
  if (typeof body !== "object" || body === null) return []
  return Object.entries(body).flatMap(([name, value]) => keysOf(value, data, Array.isArray(body) ? key : name))
}

/** What a server is asked after the tool has given its parts. */
const bodyOf = (
  layer: (url: string) => Layer.Layer<Adapter.Adapter>,
  answer: string,
  parts: ReadonlyArray<Message.Part>
): Effect.Effect<any> =>
  Effect.scoped(Effect.gen(function*() {
    const { messages } = yield* ToolRunner.run([call], [showing(parts)])
    const server = yield* Server.serve(() => ({ pieces: [answer] }))
    const thread = [Message.user("go"), Message.assistant("", [call]), ...messages]
    const stream = Stream.unwrap(
      Adapter.Adapter.useSync((adapter) => adapter.stream({ messages: thread, tools: [] }))
    )
    yield* Stream.runDrain(stream).pipe(Effect.provide(layer(server.url)))
    return server.requests[0]?.body
  })).pipe(Effect.orDie)

const hostile: ReadonlyArray<Message.Part> = [
  { type: "image", mediaType: "image/svg+xml", url: `data:image/svg+xml;base64,${zip}` },
  { type: "file", mediaType: "application/zip\nx", data: zip, filename: "a\n\"b\".zip" },
  { type: "file", url: "ftp://example.com/a.bin", mediaType: "application/octet-stream" }
]

const hostileLines = [
  "[image: image/svg+xml, 42 bytes]",
  "[file \"a\\n\\\"b\\\".zip\": of unknown type, 42 bytes]",
  "[file: application/octet-stream, at \"ftp://example.com/a.bin\"]"
]

describe("Tool.content on a wire", () => {
  const chat = (parts: ReadonlyArray<Message.Part>) =>
    bodyOf(
      (url) => OpenAiChat.layer(url),
      OpenAiChat.body(OpenAiChat.said("ok"), OpenAiChat.finish("stop")),
      parts
    )
  const responses = (parts: ReadonlyArray<Message.Part>) =>
    bodyOf((url) => OpenAiResponses.layer(url), OpenAiResponses.body(OpenAiResponses.completed()), parts)
  const anthropic = (parts: ReadonlyArray<Message.Part>) =>
    bodyOf((url) => Anthropic.layer(url), Anthropic.reply([Anthropic.text(0, "ok")], "end_turn"), parts)
  const gemini = (parts: ReadonlyArray<Message.Part>) =>
    bodyOf((url) => Gemini.layer(url), Gemini.body(Gemini.chunk([{ text: "ok" }]), Gemini.finish("STOP")), parts)

  it.effect("M-19: Anthropic gets content blocks in the tool_result, and a line for unsupported content", () =>
    Effect.gen(function*() {
      const body = yield* anthropic([text, image, paper, archive])
      assert.deepStrictEqual(body.messages.at(-1).content[0].content, [
        { type: "text", text: "Here it is" },
        { type: "image", source: { type: "base64", media_type: "image/png", data: png } },
        {
          type: "document",
          source: { type: "base64", media_type: "application/pdf", data: pdf },
          title: "a.pdf"
        },
        { type: "text", text: archiveLine }
      ])
      assert.deepStrictEqual(
        (yield* anthropic(hostile)).messages.at(-1).content[0].content.map((block: any) => block.text),
        hostileLines
      )
    }))

  it.effect("M-19: Responses gets parts of the function_call_output, and a line for unsupported content", () =>
    Effect.gen(function*() {
      const body = yield* responses([text, image, paper, archive])
      assert.deepStrictEqual(body.input.at(-1), {
        type: "function_call_output",
        call_id: "c0",
        output: [
          { type: "input_text", text: "Here it is" },
          { type: "input_image", image_url: `data:image/png;base64,${png}` },
          { type: "input_file", filename: "a.pdf", file_data: `data:application/pdf;base64,${pdf}` },
          { type: "input_text", text: archiveLine }
        ]
      })
      assert.strictEqual((yield* responses([text, archive])).input.at(-1).output, `Here it is\n${archiveLine}`)
      assert.strictEqual((yield* responses(hostile)).input.at(-1).output, hostileLines.join("\n"))
    }))

  it.effect("M-19: Chat Completions gets content after the answers of the turn, and a line for unsupported content", () =>
    Effect.gen(function*() {
      const body = yield* chat([text, image, paper, archive])
      assert.deepStrictEqual(body.messages.slice(-2), [
        { role: "tool", tool_call_id: "c0", content: `Here it is\n${archiveLine}` },
        {
          role: "user",
          content: [
            { type: "text", text: "From the tool call c0:" },
            { type: "image_url", image_url: { url: `data:image/png;base64,${png}` } },
            { type: "file", file: { filename: "a.pdf", file_data: `data:application/pdf;base64,${pdf}` } }
          ]
        }
      ])
      assert.deepStrictEqual((yield* chat(hostile)).messages.at(-1), {
        role: "tool",
        tool_call_id: "c0",
        content: hostileLines.join("\n")
      })
    }))

  it.effect("M-19: Gemini gets inline data after the function responses, and a line for unsupported content", () =>
    Effect.gen(function*() {
      const body = yield* gemini([text, image, paper, archive])
      assert.deepStrictEqual(body.contents.slice(-2), [
        {
          role: "user",
          parts: [{ functionResponse: { name: "show", response: { result: `Here it is\n${archiveLine}` } } }]
        },
        {
          role: "user",
          parts: [
            { text: "From the tool show (function response 1 of 1):" },
            { inlineData: { mimeType: "image/png", data: png } },
            { inlineData: { mimeType: "application/pdf", data: pdf } }
          ]
        }
      ])
      assert.deepStrictEqual((yield* gemini(hostile)).contents.at(-1).parts, [
        { functionResponse: { name: "show", response: { result: hostileLines.join("\n") } } }
      ])
    }))

  it.effect("M-19: no wire has base64 in a text", () =>
    Effect.gen(function*() {
      const native: ReadonlyArray<string> = ["data", "url", "image_url", "file_data"]
      for (const wire of [anthropic, responses, chat, gemini]) {
        const body = yield* wire([text, image, paper, archive, ...hostile])
        assert.strictEqual(keysOf(body, zip).length, 0)
        for (const data of [png, pdf]) {
          const keys = keysOf(body, data)
          assert.strictEqual(keys.length, 1)
          assert.include(native, keys[0])
        }
      }
    }))

  it.effect("M-19: AI SDK gets output of type content, and a line for an invalid address", () =>
    Effect.gen(function*() {
      const upload = { type: "file", url: "file-123", mediaType: "application/pdf" } as const
      const { messages } = yield* ToolRunner.run([call], [showing([text, image, upload])])
      const thread = [Message.user("go"), Message.assistant("", [call]), ...messages]
      for (const version of Models.versions) {
        const model = Models.scripted([Models.text("ok"), Models.finish("stop")], version)
        yield* Stream.runDrain(
          Models.stream(AiSdk.layer({ model, retries: 0 }), { messages: thread, tools: [] })
        )
        const { output } = (model.calls[0] as any).prompt[2].content[0]
        assert.strictEqual(output.type, "content")
        assert.deepStrictEqual(output.value[0], { type: "text", text: "Here it is" })
        assert.deepStrictEqual(keysOf(output, png), ["data"])
        assert.deepStrictEqual(output.value[2], {
          type: "text",
          text: "[file: application/pdf, at \"file-123\"]"
        })
      }
    }))

  it.effect("M-19: AI SDK in every version sends images after the results to a model that would write them as JSON", () =>
    Effect.gen(function*() {
      const { messages } = yield* ToolRunner.run([call], [showing([text, image, archive])])
      const thread = [Message.user("go"), Message.assistant("", [call]), ...messages]
      for (const version of Models.versions) {
        const { body } = yield* Models.sent({ messages: thread }, version)
        assert.deepStrictEqual(body.messages.at(-2), {
          role: "tool",
          tool_call_id: "c0",
          content: `Here it is\n${archiveLine}`
        })
        assert.deepStrictEqual(body.messages.at(-1), {
          role: "user",
          content: [
            { type: "text", text: "From the tool call c0:" },
            { type: "image_url", image_url: { url: `data:image/png;base64,${png}` } }
          ]
        })
      }
    }))

  const resultOf = (parts: ReadonlyArray<Message.Part>) =>
    bodyOf(
      (url) => AiSdk.layer({ model: Models.anthropic(url)("claude-test"), retries: 0 }),
      Anthropic.reply([Anthropic.text(0, "ok")], "end_turn"),
      parts
    ).pipe(Effect.map((body) => body.messages.at(-1).content[0].content))

  it.effect("M-19: AI SDK for Anthropic gets text files as texts, and a line for content its package would drop", () =>
    Effect.gen(function*() {
      const note = { type: "file", mediaType: "text/markdown", data: btoa("# Note"), filename: "a.md" } as const
      const json = { type: "file", mediaType: "application/json", data: "{\"a\":1}" } as const
      const sound = { type: "file", mediaType: "audio/wav", data: "UklGRiQAAABXQVZF" } as const
      const drawing = { type: "image", mediaType: "image/svg+xml", data: zip } as const
      const source = (media_type: string, data: string) => ({ type: "base64", media_type, data })
      assert.deepStrictEqual(yield* resultOf([text, image, paper, note, json, archive, sound, drawing]), [
        { type: "text", text: "Here it is" },
        { type: "image", source: source("image/png", png) },
        { type: "document", source: source("application/pdf", pdf) },
        { type: "text", text: "# Note" },
        { type: "text", text: "{\"a\":1}" },
        { type: "text", text: archiveLine },
        { type: "text", text: "[file: audio/wav, 12 bytes]" },
        { type: "text", text: "[image: image/svg+xml, 42 bytes]" }
      ])
      for (const [part, told] of [[note, "# Note"], [archive, archiveLine]] as const) {
        assert.strictEqual(yield* resultOf([part]), told)
        assert.strictEqual(yield* resultOf([text, part]), `Here it is\n${told}`)
      }
      const unknown = { type: "image", data: "AAAAAAAA" } as const
      assert.strictEqual(yield* resultOf([unknown]), "[image: of unknown type, 6 bytes]")
    }))

  it.effect("M-19: AI SDK sends Chat Completions the files that its version can write, and a line for other files", () =>
    Effect.gen(function*() {
      const note = { type: "file", mediaType: "text/plain", data: "Hi", filename: "a.txt" } as const
      const far = { type: "file", mediaType: "application/pdf", url: "https://example.com/a.pdf" } as const
      const { messages } = yield* ToolRunner.run([call], [showing([text, note, paper, far, archive])])
      const thread = [Message.user("go"), Message.assistant("", [call]), ...messages]
      for (const version of Models.versions) {
        const { body } = yield* Models.sent({ messages: thread }, version)
        const isHeld = version !== "v2"
        const told = [
          "Here it is",
          "Hi",
          ...(isHeld ? [] : ["[file \"a.pdf\": application/pdf, 42 bytes]"]),
          "[file: application/pdf, at \"https://example.com/a.pdf\"]",
          archiveLine
        ]
        const tool = body.messages.find(({ role }: { readonly role: string }) => role === "tool")
        assert.strictEqual(tool.content, told.join("\n"), version)
        assert.strictEqual(JSON.stringify(body.messages.at(-1)).includes(pdf), isHeld)
      }
    }))

  it.effect("M-19: effect/ai gets content for the model, and a text with lines for models without content", () =>
    Effect.gen(function*() {
      const { messages } = yield* ToolRunner.run([call], [showing([text, image, archive])])
      const thread = [Message.user("go"), Message.assistant("", [call]), ...messages]
      const { prompt } = yield* EffectAi.sent({ messages: thread })
      const result = prompt[2].content[0]
      assert.strictEqual(result.result, `Here it is\n[image: image/png, 45 bytes]\n${archiveLine}`)
      assert.deepStrictEqual(result.modelOutput.map((part: any) => [part.type, part.mediaType]), [
        ["text", undefined],
        ["file", "image/png"],
        ["file", "application/zip"]
      ])
      assert.deepStrictEqual(keysOf(result, png), ["data"])
    }))
})
