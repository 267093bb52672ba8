/** Each adapter and bridge, with a reply of its server that says "ok". */
import type * as Layer from "effect/Layer"
import type { Adapter } from "heddle"
import * as AiSdk from "./aiSdk.ts"
import * as Anthropic from "./anthropic.ts"
import * as EffectAi from "./effectAi.ts"
import * as Gemini from "./gemini.ts"
import * as Chunks from "./openAiChat.ts"
import * as Responses from "./openAiResponses.ts"

/** An adapter or bridge. `answered` is the reply. */
interface Protocol {
  readonly layer: (url: string) => Layer.Layer<Adapter.Adapter>
  readonly answered: string
}

const chat = Chunks.body(Chunks.said("ok"), Chunks.finish("stop"))

export const protocols: Readonly<Record<string, Protocol>> = {
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
