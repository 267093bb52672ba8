/**
 * How a thread is sent: turns that alternate, results together and first, system texts, ids and media.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Message } from "heddle"
import * as Wire from "../support/anthropic.ts"
import { answered, bodyOf, messagesOf, result, said, used } from "../support/anthropicThreads.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"

describe("the messages of a request", () => {
  it.effect("R-146: one user message holds all results of a turn before the user's text, and marks failures", () =>
    Effect.gen(function*() {
      const calls = [Message.toolCall("a", "look", { q: 1 }), Message.toolCall("b", "look")]
      assert.deepStrictEqual(
        yield* messagesOf(
          Message.user("go"),
          Message.assistant("Looking.", calls),
          Message.tool("a", "one"),
          { ...Message.tool("b", "broken"), isError: true },
          Message.user("and?"),
          Message.user([{ type: "text", text: "well?" }])
        ),
        [
          { role: "user", content: [said("go")] },
          { role: "assistant", content: [said("Looking."), used("a", "look", { q: 1 }), used("b", "look")] },
          {
            role: "user",
            content: [result("a", "one"), result("b", "broken", { is_error: true }), said("and?"), said("well?")]
          }
        ]
      )
    }))

  it.effect("R-351: the request omits empty texts and empty messages", () =>
    Effect.gen(function*() {
      const call = Message.toolCall("a", "look")
      assert.deepStrictEqual(
        yield* messagesOf(
          Message.system(""),
          Message.user("go"),
          Message.assistant("", [call]),
          Message.tool("a", ""),
          Message.assistant(" \n"),
          Message.user([{ type: "text", text: "" }, { type: "text", text: "on" }]),
          Message.assistant("A"),
          Message.user(""),
          Message.assistant("B \n")
        ),
        [
          { role: "user", content: [said("go")] },
          { role: "assistant", content: [used("a", "look")] },
          { role: "user", content: [{ type: "tool_result", tool_use_id: "a" }, said("on")] },
          { role: "assistant", content: [said("A"), said("B")] }
        ]
      )
    }))

  it.effect("R-146: system texts keep their place, after a user message and before the model's, where the model accepts inline system texts", () =>
    Effect.gen(function*() {
      const call = Message.toolCall("a", "look")
      const thread = [
        Message.system("First."),
        Message.user("go"),
        Message.assistant("", [call]),
        Message.system("Early."),
        Message.tool("a", "1"),
        Message.assistant("One."),
        Message.system("Now."),
        Message.system("And."),
        Message.user("on"),
        Message.assistant(""),
        Message.system(""),
        Message.user("and on"),
        Message.assistant("Two."),
        Message.system("Late.")
      ]
      const body = yield* bodyOf(thread, { model: "claude-opus-4-8" })
      assert.deepStrictEqual(body.system, [said("First."), said("Late.")])
      assert.deepStrictEqual(body.messages, [
        { role: "user", content: [said("go")] },
        { role: "assistant", content: [used("a", "look")] },
        { role: "user", content: [result("a", "1")] },
        { role: "system", content: [said("Early.")] },
        { role: "assistant", content: [said("One.")] },
        { role: "user", content: [said("on"), said("and on")] },
        { role: "system", content: [said("Now."), said("And.")] },
        { role: "assistant", content: [said("Two.")] }
      ])
      const last = yield* bodyOf([Message.user("go"), Message.system("Now.")], { inlineSystem: true })
      assert.deepStrictEqual(last.messages.at(-1), { role: "system", content: [said("Now.")] })
      assert.notProperty(last, "system")
      const taking = [
        "claude-opus-4-8",
        "anthropic.claude-opus-4-9-v1",
        "claude-opus-5",
        "claude-fable-5",
        "claude-opus-5-5"
      ]
      const refusing = ["claude-opus-4-7", "claude-sonnet-4-6", "claude-opus-4-20250514", "claude-haiku-4-5", "kimi-k2"]
      const systems = (models: ReadonlyArray<string>) =>
        Effect.forEach(
          models,
          (model) => Effect.map(bodyOf([Message.user("go"), Message.system("Now.")], { model }), ({ system }) => system)
        )
      assert.deepStrictEqual(yield* systems(taking), taking.map(() => undefined))
      assert.deepStrictEqual(yield* systems(refusing), refusing.map(() => [said("Now.")]))
    }))

  it.effect("R-146: the request collects system texts from every position outside the messages where the model requires that", () =>
    Effect.gen(function*() {
      const body = yield* bodyOf([
        Message.system("One."),
        Message.user("go"),
        Message.system([{ type: "text", text: "Two." }, { type: "text", text: "Three." }])
      ])
      assert.deepStrictEqual(body.system, [said("One."), said("Two."), said("Three.")])
      assert.deepStrictEqual(body.messages, [{ role: "user", content: [said("go")] }])
      assert.notProperty(yield* bodyOf([Message.user("go")]), "system")
    }))

  it.effect("R-357: a call with lost arguments goes back without arguments, together with its answer", () =>
    Effect.gen(function*() {
      const lost: Message.ToolCall = {
        ...Message.toolCall("a", "look"),
        rawArguments: "{\"cut",
        argumentsLost: "truncated"
      }
      const messages = yield* messagesOf(
        Message.user("go"),
        Message.assistant("", [lost]),
        { ...Message.tool("a", " "), isError: true }
      )
      assert.deepStrictEqual(messages.slice(1), [
        { role: "assistant", content: [used("a", "look")] },
        { role: "user", content: [result("a", [said("The tool failed.")], { is_error: true })] }
      ])
    }))
})

describe("the ids of a request", () => {
  it.effect("R-146: the request rewrites invalid, missing and repeated call ids, and their results follow", () =>
    Effect.gen(function*() {
      const turn = (...ids: ReadonlyArray<string>) => [
        Message.assistant("", ids.map((id) => Message.toolCall(id, "look"))),
        ...ids.map((id) => Message.tool(id, id))
      ]
      const messages = yield* messagesOf(
        Message.user("go"),
        ...turn("functions.look:0", "functions_look_0", "call_0"),
        ...turn("call_0", "call_0_2"),
        ...turn("call_0", "æ"),
        ...turn("x_2", "x"),
        ...turn("x")
      )
      const idsOf = (key: string) =>
        messages.flatMap(({ content }) => content.flatMap((block: any) => block[key] ?? []))
      const written = [
        "functions_look_0",
        "functions_look_0_2",
        "call_0",
        "call_0_2",
        "call_0_2_2",
        "call_0_3",
        "_",
        "x_2",
        "x",
        "x_3"
      ]
      assert.deepStrictEqual(idsOf("id"), written)
      assert.deepStrictEqual(idsOf("tool_use_id"), written)
      assert.deepStrictEqual(
        messages.filter(({ role }) => role === "user").flatMap(({ content }) =>
          content.map((block: any) => block.content)
        ),
        [
          undefined,
          "functions.look:0",
          "functions_look_0",
          "call_0",
          "call_0",
          "call_0_2",
          "call_0",
          "æ",
          "x_2",
          "x",
          "x"
        ]
      )
    }))
})

describe("the media of a request", () => {
  const base64 = Buffer.from("Høj sky").toString("base64")

  it.effect("R-123: images, PDFs, text files and uploads go out as blocks of their kinds", () =>
    Effect.gen(function*() {
      const [message] = yield* messagesOf(Message.user([
        { type: "text", text: "What is this?" },
        { type: "image", url: "https://example.com/cat.png" },
        { type: "image", data: "AAAA", mediaType: "image/jpeg" },
        { type: "image", data: "AAAA" },
        { type: "image", url: "data:image/webp;base64,BBBB" },
        { type: "image", url: "file_img" },
        { type: "file", data: "CCCC", mediaType: "image/gif" },
        { type: "file", data: "DDDD", mediaType: "application/pdf", filename: "a.pdf" },
        { type: "file", url: "https://example.com/b.pdf" },
        { type: "file", data: base64, mediaType: "text/csv", filename: "c.csv" },
        { type: "file", url: `data:text/plain;charset=utf-8;base64,${base64}` },
        { type: "file", url: "file_doc", mediaType: "application/pdf" },
        { type: "file", url: "file_data", mediaType: "application/zip" }
      ]))
      const text = { type: "text", media_type: "text/plain", data: "Høj sky" }
      assert.deepStrictEqual(message.content, [
        said("What is this?"),
        { type: "image", source: { type: "url", url: "https://example.com/cat.png" } },
        { type: "image", source: { type: "base64", media_type: "image/jpeg", data: "AAAA" } },
        { type: "image", source: { type: "base64", media_type: "image/png", data: "AAAA" } },
        { type: "image", source: { type: "base64", media_type: "image/webp", data: "BBBB" } },
        { type: "image", source: { type: "file", file_id: "file_img" } },
        { type: "image", source: { type: "base64", media_type: "image/gif", data: "CCCC" } },
        { type: "document", source: { type: "base64", media_type: "application/pdf", data: "DDDD" }, title: "a.pdf" },
        { type: "document", source: { type: "url", url: "https://example.com/b.pdf" } },
        { type: "document", source: text, title: "c.csv" },
        { type: "document", source: text },
        { type: "document", source: { type: "file", file_id: "file_doc" } },
        { type: "container_upload", file_id: "file_data" }
      ])
    }))

  it.effect("M-36: a text file goes out as a plain-text document, encoded or not, with the given title and citations", () =>
    Effect.gen(function*() {
      const citations = { enabled: true }
      const latin1 = Buffer.from("Høj sky. ".repeat(10), "latin1").toString("base64")
      const [message] = yield* messagesOf(Message.user([
        { type: "file", data: "Høj sky: 100 %", mediaType: "text/plain", filename: "sky.txt" },
        { type: "file", data: base64, mediaType: "text/plain; charset=utf-8" },
        { type: "file", data: "word", mediaType: "text/markdown" },
        { type: "file", data: "", mediaType: "text/plain" },
        { type: "file", data: "a: 1\nb: 2", filename: "notes.yaml" },
        { type: "file", data: latin1, mediaType: "text/csv" },
        { type: "file", url: "data:text/plain,H%C3%B8j%20sky" },
        { type: "file", url: "data:,plain" },
        {
          type: "file",
          data: "{\"a\":1}",
          mediaType: "application/json",
          filename: "a.json",
          metadata: { anthropic: { citations, context: "Measured today.", title: "A" }, openaiChat: { x: 1 } }
        },
        { type: "file", data: "DDDD", mediaType: "application/pdf", metadata: { anthropic: { citations } } }
      ]))
      const text = (data: string) => ({ type: "text", media_type: "text/plain", data })
      assert.deepStrictEqual(message.content, [
        { type: "document", source: text("Høj sky: 100 %"), title: "sky.txt" },
        { type: "document", source: text("Høj sky") },
        { type: "document", source: text("word") },
        { type: "document", source: text("") },
        { type: "document", source: text("a: 1\nb: 2"), title: "notes.yaml" },
        { type: "document", source: text("H\ufffdj sky. ".repeat(10)) },
        { type: "document", source: text("Høj sky") },
        { type: "document", source: text("plain") },
        { type: "document", source: text("{\"a\":1}"), title: "A", context: "Measured today.", citations },
        { type: "document", source: { type: "base64", media_type: "application/pdf", data: "DDDD" }, citations }
      ])
    }))

  it.effect("R-146: a tool result holds its images; the images of a failed result follow all results", () =>
    Effect.gen(function*() {
      const image = { type: "image", url: "https://example.com/a.png" } as const
      const block = { type: "image", source: { type: "url", url: image.url } }
      const parts: Message.Content = [{ type: "text", text: "seen" }, image, {
        type: "file",
        url: "file_1",
        mediaType: "x/y"
      }]
      const messages = yield* messagesOf(
        Message.user("go"),
        Message.assistant("", ["a", "b", "c"].map((id) => Message.toolCall(id, "look"))),
        { ...Message.tool("a", [{ type: "text", text: "no" }, image]), isError: true },
        Message.tool("b", parts),
        Message.tool("c", [image])
      )
      assert.deepStrictEqual(messages.at(-1).content, [
        result("a", [said("no")], { is_error: true }),
        result("b", [said("seen"), block]),
        result("c", [block]),
        said("From the tool call a:"),
        block,
        said("From the tool call b:"),
        { type: "container_upload", file_id: "file_1" }
      ])
    }))

  it.effect("R-122: the adapter refuses content without a form in the protocol before it sends anything", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({ pieces: [answered] }))
      const refused: ReadonlyArray<Message.Message> = [
        Message.user([{ type: "image" }]),
        Message.user([{ type: "image", url: "ftp://example.com/a.png" }]),
        Message.user([{ type: "file", url: "data:text/plain,%ff" }]),
        Message.user([{ type: "file", url: "https://example.com/a.csv", mediaType: "text/csv" }]),
        Message.user([{ type: "file", data: "AAAA", mediaType: "audio/wav" }]),
        Message.tool("a", [{ type: "file" }]),
        Message.system([{ type: "image", data: "AAAA" }]),
        Message.assistant([{ type: "image", data: "AAAA" }])
      ]
      for (const message of refused) {
        const { error, events } = yield* Chunks.outcome(Wire.stream(server.url, {}, { messages: [message], tools: [] }))
        assert.deepStrictEqual([events, error?.reason], [[], "unsupported_feature"], JSON.stringify(message))
      }
      assert.strictEqual(server.requests.length, 0)
    })))
})
