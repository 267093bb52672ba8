/** The code of an answer stands in a thread for programs and pages: no protocol and no bridge sends it. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
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

const threadOf = (answer: Partial<Message.Message>): ReadonlyArray<Message.Message> => [
  Message.user("Pay"),
  Message.assistant("", [Message.toolCall("c0", "pay", { amount: 1 })]),
  { ...Message.tool("c0", "no"), isError: true, ...answer }
]

describe("the code of an answer", () => {
  for (const [name, { answered, layer }] of Object.entries(protocols)) {
    it.live(`R-526: ${name} sends a thread with codes as one without`, () =>
      Effect.scoped(Effect.gen(function*() {
        const server = yield* Server.serve(() => ({ pieces: [answered] }))
        const { stream } = yield* Effect.provide(Adapter.Adapter, layer(server.url))
        for (const answer of [{}, { code: "denied" as const }]) {
          yield* Stream.runDrain(stream({ messages: threadOf(answer), tools: [] }))
        }
        const [without, coded] = server.requests
        assert.deepStrictEqual(coded!.body, without!.body)
      })))
  }
})
