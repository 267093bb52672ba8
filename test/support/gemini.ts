/**
 * The Gemini protocol as a server writes it: chunks, the parts in them, and bodies made of them in either framing; and
 * the adapter that reads them, over the real HTTP client.
 */
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import * as Random from "effect/Random"
import * as Stream from "effect/Stream"
import { Adapter } from "heddle"
import { Gemini } from "heddle/adapters"
import { type Outcome, outcome, request } from "./openAiChat.ts"
import * as Server from "./server.ts"

export { calls, of, type Outcome, outcome, request } from "./openAiChat.ts"

type Json = Readonly<Record<string, unknown>>

/** A chunk with parts. `rest` stands in the candidate. */
export const chunk = (parts: ReadonlyArray<Json>, rest: Json = {}): Json => ({
  candidates: [{ content: { role: "model", parts }, index: 0, ...rest }],
  modelVersion: "test-model",
  responseId: "resp-1"
})

export const said = (text: string): Json => chunk([{ text }])

export const thought = (text: string): Json => chunk([{ text, thought: true }])

/** A part with a whole call. */
export const call = (name: string, args?: unknown, rest: Json = {}): Json => ({
  functionCall: { name, ...(args === undefined ? {} : { args }), ...rest }
})

/** A last chunk as the protocol likes it: without content. */
export const finish = (finishReason: string): Json => ({ candidates: [{ finishReason, index: 0 }] })

export const usage = (usageMetadata: Json): Json => ({ usageMetadata })

/** A body of the chunks, as `alt=sse` has it. */
export const body = (...chunks: ReadonlyArray<Json>): string =>
  chunks.map((item) => `data: ${JSON.stringify(item)}\r\n\r\n`).join("")

/** A body of the chunks, as it is without `alt=sse`. */
export const array = (...chunks: ReadonlyArray<Json>): string =>
  `[${chunks.map((item) => JSON.stringify(item, null, 2)).join("\n,\r\n")}\n]`

/** A reply with thoughts, text, a call that comes whole and one that is streamed; it is not ASCII. */
export const mixed: ReadonlyArray<Json> = [
  thought("Høj? "),
  said("Himmel "),
  said("🌤"),
  chunk([call("search", { query: "tøj {}\"\\" })]),
  chunk([call("read", undefined, { willContinue: true })]),
  chunk([{
    functionCall: {
      partialArgs: [{ jsonPath: "$.path", stringValue: "å", willContinue: true }],
      willContinue: true
    }
  }]),
  chunk([{ functionCall: { partialArgs: [{ jsonPath: "$.path", stringValue: ".txt" }] } }]),
  { ...finish("STOP"), usageMetadata: { promptTokenCount: 12, candidatesTokenCount: 7, totalTokenCount: 19 } }
]

/** The calls in it, but for their ids. */
export const mixedCalls = [
  { name: "search", arguments: { query: "tøj {}\"\\" } },
  { name: "read", arguments: { path: "å.txt" } }
]

export const layer = (url: string, options: Partial<Gemini.Options> = {}): Layer.Layer<Adapter.Adapter> =>
  Gemini.layer({ model: "test-model", baseUrl: `${url}/v1beta`, ...options }).pipe(
    Layer.provide(FetchHttpClient.layer)
  )

/** The stream that a server's answer comes to. */
export const stream = (url: string, options: Partial<Gemini.Options> = {}, asked = request) =>
  Stream.unwrap(Adapter.Adapter.useSync((adapter) => adapter.stream(asked))).pipe(
    Stream.provide(layer(url, options))
  )

/** What an answer of a loopback server comes to. */
export const outcomeOf = (
  answer: string | Server.Answer,
  options: Partial<Gemini.Options> = {},
  asked = request
): Effect.Effect<Outcome> =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => typeof answer === "string" ? { pieces: [answer] } : answer)
    return yield* outcome(stream(server.url, { retries: 0, ...options }, asked))
  }))

/** A request that declares tools of these names. */
export const offering = (...names: ReadonlyArray<string>): Adapter.Request => ({
  ...request,
  tools: names.map((name) => ({ name, description: "", parameters: { type: "object" } }))
})

/** The same numbers for every run, so that the ids that are made up are the same. */
export const steady = Effect.provideService(Random.Random, { nextDoubleUnsafe: () => 0.5, nextIntUnsafe: () => 7 })
