/**
 * Files of text in a message: whether their data is the text itself or its base64, every protocol and bridge sends the
 * same. What is sent is read off a server on the loopback interface.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import { Adapter, Message } from "heddle"
import * as AiSdk from "../support/aiSdk.ts"
import * as Anthropic from "../support/anthropic.ts"
import * as EffectAi from "../support/effectAi.ts"
import * as Gemini from "../support/gemini.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Responses from "../support/openAiResponses.ts"
import * as Server from "../support/server.ts"

interface Protocol {
  readonly layer: (url: string) => Layer.Layer<Adapter.Adapter>
  readonly answered: string
}

const chat = Chunks.body(Chunks.said("ok"), Chunks.finish("stop"))

const protocols: Readonly<Record<string, Protocol>> = {
  OpenAiChat: { layer: Chunks.layer, answered: chat },
  OpenAiResponses: {
    layer: Responses.layer,
    answered: Responses.body(Responses.created, Responses.said("ok"), Responses.completed())
  },
  Anthropic: { layer: Anthropic.layer, answered: Anthropic.reply([Anthropic.text(0, "ok")], "end_turn") },
  Gemini: { layer: Gemini.layer, answered: Gemini.body(Gemini.said("ok"), Gemini.finish("STOP")) },
  "the AI SDK": { layer: (url) => AiSdk.layer(url), answered: chat },
  "effect/ai": { layer: EffectAi.layer, answered: EffectAi.body(EffectAi.text("ok"), EffectAi.finish("stop")) }
}

const text = "Høj sky: 100 %, 🌤"
const base64 = Buffer.from(text).toString("base64")

describe("M-36: files of text", () => {
  for (const [name, { answered, layer }] of Object.entries(protocols)) {
    it.effect(`M-36: ${name}: the text itself goes out like its base64, and other data as they are`, () =>
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
})
