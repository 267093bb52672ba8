/**
 * The protocols that can be replayed, each with its adapter. A transcript of any other protocol fails.
 */
import type * as HttpClient from "effect/http/HttpClient"
import type * as Layer from "effect/Layer"
import type { Adapter } from "heddle"
import { OpenAiChat, OpenAiResponses } from "heddle/adapters"

/** Where a session is replayed, and for which model it was recorded. */
export interface Target {
  readonly baseUrl: string
  readonly model: string
  readonly vendor: string
}

export interface Protocol {
  readonly adapter: (target: Target) => Layer.Layer<Adapter.Adapter, never, HttpClient.HttpClient>
}

const openAiChat: Protocol = {
  adapter: ({ baseUrl, model }) => OpenAiChat.layer({ baseUrl, model, retries: 0 })
}

const openAiResponses: Protocol = {
  adapter: ({ baseUrl, model }) => OpenAiResponses.layer({ baseUrl, model, retries: 0 })
}

const protocols: ReadonlyMap<string, Protocol> = new Map([
  ["openai-chat", openAiChat],
  ["openai-responses", openAiResponses]
])

export const find = (name: string): Protocol | undefined => protocols.get(name)
