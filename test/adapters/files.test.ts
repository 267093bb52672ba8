/**
 * Files of text in a message: whether their data is the text itself or its base64, every protocol and bridge sends the
 * same. What is sent is read off a server on the loopback interface.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Adapter, Message } from "heddle"
import * as Chunks from "../support/openAiChat.ts"
import { protocols } from "../support/replying.ts"
import * as Server from "../support/server.ts"

const text = "Høj sky: 100 %, 🌤"
const base64 = Buffer.from(text).toString("base64")

describe("M-36: text files and files without a type", () => {
  for (const [name, { answered, layer }] of Object.entries(protocols)) {
    it.effect(`M-36: ${name}: a text and its base64 go out alike, and other data goes out unchanged`, () =>
      Effect.scoped(Effect.gen(function*() {
        const server = yield* Server.serve(() => ({ pieces: [answered] }))
        const { stream } = yield* Effect.provide(Adapter.Adapter, layer(server.url))
        const sent = (data: string, mediaType: string, filename: string) =>
          Effect.gen(function*() {
            const messages = [Message.user([{ type: "file", data, mediaType, filename }])]
            const { error } = yield* Chunks.outcome(stream({ messages, tools: [] }))
            return [error?.reason, JSON.stringify(server.requests.at(-1)?.body)]
          })
        const plain = yield* sent(text, "text/plain", "sky.txt")
        assert.deepStrictEqual(plain, yield* sent(base64, "text/plain", "sky.txt"))
        if (plain[0] === undefined) assert.isTrue([text, base64].some((data) => plain[1]?.includes(data)))
        const [, pdf] = yield* sent("JVBERi0xLjQ=", "application/pdf", "a.pdf")
        assert.include(pdf, "JVBERi0xLjQ=")
      })))
  }

  const answers = (part: Message.Part) => [
    Message.user("go"),
    Message.assistant("", [Message.toolCall("c0", "show")]),
    { role: "tool", content: [part], toolCallId: "c0", name: "show", metadata: {} } satisfies Message.Message
  ]
  const files: ReadonlyArray<readonly [file: { readonly [key: string]: string }, mediaType: string]> = [
    [{ filename: "a.pdf", data: "JVBERi0xLjQ=" }, "application/pdf"],
    [{ filename: "A.PDF", data: "AAAA" }, "application/pdf"],
    [{ data: "JVBERi0xLjQ=" }, "application/pdf"],
    [{ filename: "a.txt", data: text }, "text/plain"],
    [{ filename: "a.md", data: base64 }, "text/plain"],
    [{ filename: "a.png", data: "iVBORw0KGgoAAAAN" }, "image/png"],
    [{ filename: "a.mp3", data: "SUQzBAAA" }, "audio/mpeg"],
    [{ url: "https://example.com/a.pdf" }, "application/pdf"],
    [{ url: "https://example.com/b/a.png?size=1" }, "image/png"]
  ]
  for (const [name, { answered, layer }] of Object.entries(protocols)) {
    it.effect(`M-36, M-19: ${name}: a file without a media type goes out with the type found from its name or data`, () =>
      Effect.scoped(Effect.gen(function*() {
        const server = yield* Server.serve(() => ({ pieces: [answered] }))
        const { stream } = yield* Effect.provide(Adapter.Adapter, layer(server.url))
        const sent = (messages: ReadonlyArray<Message.Message>) =>
          Effect.gen(function*() {
            const before = server.requests.length
            const { error } = yield* Chunks.outcome(stream({ messages, tools: [] }))
            return [error?.reason, JSON.stringify(server.requests.slice(before).map(({ body }) => body))]
          })
        for (const [given, mediaType] of files) {
          const untyped = { type: "file", ...given } as const
          const typed = { ...untyped, mediaType }
          for (const thread of [(part: Message.Part) => [Message.user([part])], answers]) {
            const [reason, body] = yield* sent(thread(untyped))
            assert.deepStrictEqual([reason, body], yield* sent(thread(typed)), JSON.stringify(given))
            assert.notInclude(body, "octet-stream")
          }
        }
      })))
  }
})
