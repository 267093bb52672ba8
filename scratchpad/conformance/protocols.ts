/**
 * The protocols that can be replayed: how a request is read, and the adapter, if there is one. The transcripts of a
 * protocol without an adapter, and of one that is not listed, fail.
 */
import type * as HttpClient from "effect/http/HttpClient"
import type * as Layer from "effect/Layer"
import type { Adapter } from "heddle"
import { Anthropic, Gemini, OpenAiChat, OpenAiResponses } from "heddle/adapters"
import type * as Conversation from "./conversation.ts"
import * as AnthropicRequests from "./requests/anthropic.ts"
import * as GeminiRequests from "./requests/gemini.ts"
import * as OpenAiChatRequests from "./requests/openAiChat.ts"
import * as OpenAiResponsesRequests from "./requests/openAiResponses.ts"

/** Where a session is replayed, and for which model of which vendor it was recorded. */
export interface Target {
  readonly baseUrl: string
  readonly model: string
  readonly vendor: string
}

/** Makes the adapter of a protocol. A recorded answer is the answer: nothing is tried again. */
type MakeAdapter = (target: Target) => Layer.Layer<Adapter.Adapter, never, HttpClient.HttpClient>

export interface Protocol {
  readonly adapter: MakeAdapter
  /** The conversation inside a request's body. */
  readonly read: (body: Conversation.Json) => Conversation.Conversation
}

const readers: Readonly<Record<string, Protocol["read"]>> = {
  "openai-chat": OpenAiChatRequests.read,
  "openai-responses": OpenAiResponsesRequests.read,
  anthropic: AnthropicRequests.read,
  gemini: GeminiRequests.read
}

/** Vendors that are spoken to in words of their own, which their addresses do not tell here. */
const chatVendors: Readonly<Record<string, OpenAiChat.Options["vendor"]>> = {
  azure: "azure",
  deepseek: "deepseek",
  mistral: "mistral",
  openai: "openai",
  openrouter: "openrouter",
  snowflake: "snowflake",
  zai: "zai"
}

const adapters: Readonly<Record<string, MakeAdapter>> = {
  "openai-chat": ({ baseUrl, model, vendor }) =>
    OpenAiChat.layer({ baseUrl, model, retries: 0, vendor: chatVendors[vendor] ?? "generic" }),
  "openai-responses": ({ baseUrl, model }) => OpenAiResponses.layer({ baseUrl, model, retries: 0 }),
  anthropic: ({ baseUrl, model }) => Anthropic.layer({ baseUrl, model, retries: 0 }),
  gemini: ({ baseUrl, model }) => Gemini.layer({ baseUrl, model, retries: 0 })
}

/** The protocol of that name. */
export const find = (name: string): Protocol | undefined => {
  const adapter = adapters[name]
  const read = readers[name]
  return adapter === undefined || read === undefined ? undefined : { adapter, read }
}
