/**
 * Where the servers that speak Chat Completions differ in what they want to be told: one row for each that is known to
 * differ, found by its address. Whoever is not in the table is spoken to in the words that most servers understand.
 */
import type * as Json from "../../internal/json.ts"
import type * as Protocol from "./protocol.ts"
import * as Wire from "./wire.ts"

/** How much a model may think, where it may be switched off as well. */
export interface Reasoning extends Protocol.Reasoning {
  readonly enabled?: boolean
}

/**
 * The form in which reasoning goes back with an assistant message: as a text in one of two fields, as the details that
 * OpenRouter signs, as Mistral's parts of the content, or not at all.
 */
export type ReasoningForm = "none" | "reasoning_content" | "reasoning" | "reasoning_details" | "thinking"

/** What a server wants. */
export interface Vendor {
  /** The header of the key; by default a bearer token is sent. */
  readonly keyHeader?: string
  readonly maxTokensField: "max_tokens" | "max_completion_tokens"
  /** Whether usage is asked for with `stream_options`. Those who refuse it send usage anyway. */
  readonly includeUsage: boolean
  /** The server's word for a model that has to call some tool. */
  readonly required: string
  readonly reasoning: (wanted: Reasoning) => Json.JsonObject
  readonly sendReasoningAs: ReasoningForm
  /** Whether reasoning goes back only while the tool loop is open that it belongs to. */
  readonly isReasoningOfLoop: boolean
}

const isOff = ({ effort, enabled }: Reasoning): boolean => enabled === false || effort === "none"

const effort = (wanted: Reasoning): Json.JsonObject =>
  Wire.given("reasoning_effort", wanted.effort ?? (wanted.enabled === false ? "none" : undefined))

const unified = ({ effort, enabled, maxTokens }: Reasoning): Json.JsonObject => ({
  reasoning: {
    ...Wire.given("effort", effort),
    ...Wire.given("max_tokens", maxTokens),
    ...Wire.given("enabled", enabled)
  }
})

const switched = (wanted: Reasoning): Json.JsonObject => ({
  thinking: { type: isOff(wanted) ? "disabled" : "enabled" },
  ...(isOff(wanted) ? {} : Wire.given("reasoning_effort", wanted.effort))
})

const flag = (wanted: Reasoning): Json.JsonObject => ({
  enable_thinking: !isOff(wanted),
  ...(isOff(wanted) ? {} : Wire.given("thinking_budget", wanted.maxTokens))
})

const generic: Vendor = {
  maxTokensField: "max_tokens",
  includeUsage: true,
  required: "required",
  reasoning: effort,
  sendReasoningAs: "none",
  isReasoningOfLoop: false
}

const vendors = {
  generic,
  openai: { ...generic, maxTokensField: "max_completion_tokens" },
  azure: { ...generic, keyHeader: "api-key" },
  openrouter: { ...generic, reasoning: unified, sendReasoningAs: "reasoning_details" },
  snowflake: { ...generic, reasoning: unified, sendReasoningAs: "reasoning_details" },
  deepseek: { ...generic, reasoning: switched, sendReasoningAs: "reasoning_content", isReasoningOfLoop: true },
  zai: { ...generic, reasoning: switched, sendReasoningAs: "reasoning_content" },
  qwen: { ...generic, reasoning: flag },
  mistral: { ...generic, includeUsage: false, required: "any", sendReasoningAs: "thinking" }
} satisfies Readonly<Record<string, Vendor>>

/** A server that differs from the others. */
export type Name = keyof typeof vendors

const hosts: ReadonlyArray<readonly [host: RegExp, name: Name]> = [
  [/(^|\.)openai\.com$/, "openai"],
  [/(^|\.)azure\.com$/, "azure"],
  [/(^|\.)openrouter\.ai$/, "openrouter"],
  [/(^|\.)snowflakecomputing\.com$/, "snowflake"],
  [/(^|\.)deepseek\.com$/, "deepseek"],
  [/(^|\.)(z\.ai|bigmodel\.cn)$/, "zai"],
  [/(^|\.)aliyuncs\.com$/, "qwen"],
  [/(^|\.)mistral\.ai$/, "mistral"]
]

/** The host of an address, or nothing if it is none. */
const hostOf = (address: string): string => /^https?:\/\/([^/?#:]+)/i.exec(address.trim())?.[1]?.toLowerCase() ?? ""

/** What is known of a server, by its name or else by its address. */
export const find = (name: Name | undefined, baseUrl: string): Vendor => {
  const host = hostOf(baseUrl)
  return vendors[name ?? hosts.find(([pattern]) => pattern.test(host))?.[1] ?? "generic"]
}
