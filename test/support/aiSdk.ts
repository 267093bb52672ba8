/**
 * Models of the AI SDK for tests: those of its own packages, one for each version of its interface, on a loopback
 * server; and models that answer with given parts, for what no server can be made to say.
 */
import { createAnthropic } from "@ai-sdk/anthropic"
import { createOpenAICompatible } from "@ai-sdk/openai-compatible"
import { createOpenAICompatible as createV2 } from "ai-sdk-v2"
import { createOpenAICompatible as createV3 } from "ai-sdk-v3"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, type Event } from "heddle"
import * as AiSdk from "heddle/bridges/ai-sdk"
import * as Chunks from "./openAiChat.ts"
import * as Server from "./server.ts"

/** A provider of each version, by the version of the models that it makes. */
export const providers = {
  v4: (url: string) =>
    createOpenAICompatible({
      name: "acme",
      baseURL: `${url}/v1`,
      apiKey: "sk-secret",
      includeUsage: true,
      supportsStructuredOutputs: true
    }),
  v3: (url: string) =>
    createV3({
      name: "acme",
      baseURL: `${url}/v1`,
      apiKey: "sk-secret",
      includeUsage: true,
      supportsStructuredOutputs: true
    }),
  v2: (url: string) =>
    createV2({
      name: "acme",
      baseURL: `${url}/v1`,
      apiKey: "sk-secret",
      includeUsage: true,
      supportsStructuredOutputs: true
    })
} as const

export type Version = keyof typeof providers

export const versions = ["v4", "v3", "v2"] as const satisfies ReadonlyArray<Version>

export const anthropic = (url: string) => createAnthropic({ baseURL: `${url}/v1`, apiKey: "sk-secret" })

export type Options = Omit<AiSdk.Options, "model">

/** The adapter of a model on a server. */
export const layer = (url: string, version: Version = "v4", options: Options = {}): Layer.Layer<Adapter.Adapter> =>
  AiSdk.layer({ model: providers[version](url)("test-model"), retries: 0, ...options })

/** What an adapter makes of a request. */
export const stream = (adapter: Layer.Layer<Adapter.Adapter>, request: Adapter.Request = Chunks.request) =>
  Stream.unwrap(Adapter.Adapter.useSync((service) => service.stream(request))).pipe(Stream.provide(adapter))

/** What an answer of a loopback server comes to. */
export const outcomeOf = (
  answer: string | Server.Answer,
  version: Version = "v4",
  options: Options = {}
): Effect.Effect<Chunks.Outcome> =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => typeof answer === "string" ? { pieces: [answer] } : answer)
    return yield* Chunks.outcome(stream(layer(server.url, version, options)))
  }))

/** What was sent for a request. */
export const sent = (
  request: Partial<Adapter.Request>,
  version: Version = "v4",
  options: Options = {}
): Effect.Effect<Server.Received, Adapter.AdapterError> =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => ({ pieces: [Chunks.body(Chunks.said("ok"), Chunks.finish("stop"))] }))
    yield* Stream.runDrain(stream(layer(server.url, version, options), { ...Chunks.request, ...request }))
    return server.requests[0]!
  }))

type Part = Readonly<Record<string, unknown>>

/** A model of version 4 that answers with parts, and keeps what it was asked. */
export interface Scripted extends AiSdk.LanguageModel {
  readonly calls: ReadonlyArray<any>
}

export const scripted = (
  parts: ReadonlyArray<Part> | ((call: any, index: number) => ReadonlyArray<Part>),
  specificationVersion: Version = "v4",
  provider = "scripted"
): Scripted => {
  const calls: Array<any> = []
  return {
    specificationVersion,
    provider,
    modelId: "script",
    calls,
    doStream: (call: unknown) => {
      calls.push(call)
      const answer = typeof parts === "function" ? parts(call, calls.length - 1) : parts
      return Promise.resolve({ stream: streamOf(answer) })
    }
  }
}

/** A stream of parts, which are handed out one by one. */
const streamOf = (parts: ReadonlyArray<unknown>): ReadableStream<unknown> => {
  let next = 0
  return new ReadableStream({
    pull: (controller) => next < parts.length ? controller.enqueue(parts[next++]) : controller.close()
  })
}

export const text = (delta: string, id = "0"): Part => ({ type: "text-delta", id, delta })

export const call = (toolCallId: string, toolName: string, input: string, rest: Part = {}): Part => ({
  type: "tool-call",
  toolCallId,
  toolName,
  input,
  ...rest
})

export const finish = (unified: string, rest: Part = {}): Part => ({
  type: "finish",
  finishReason: { unified, raw: undefined },
  usage: { inputTokens: { total: 5 }, outputTokens: { total: 2 } },
  ...rest
})

/** What a model that answers with the given parts comes to. */
export const outcomeOfParts = (...parts: ReadonlyArray<Part>): Effect.Effect<Chunks.Outcome> =>
  Chunks.outcome(stream(AiSdk.layer({ model: scripted(parts), retries: 0 })))

export const completed = (events: ReadonlyArray<Event.AdapterEvent>) => Chunks.of(events, "MessageCompleted")[0]!

export const tagsOf = (events: ReadonlyArray<Event.AdapterEvent>) => events.map(({ _tag }) => _tag)
