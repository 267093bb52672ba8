/**
 * The result of one model turn: its text, reasoning and tool calls, why it ended and what it cost. Plain data; a
 * provider's own words and numbers are kept next to the normalised ones.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as ToolOutcomes from "./internal/declare/outcome.ts"
import * as Json from "./internal/json.ts"
import * as Message from "./Message.ts"

/**
 * The reason why a model turn ended, in one vocabulary for all providers.
 *
 * @category schemas
 * @since 0.1.0
 */
export const FinishReason = ToolOutcomes.FinishReason

/**
 * @see {@link FinishReason}
 *
 * @category models
 * @since 0.1.0
 */
export type FinishReason = (typeof FinishReason)["Type"]

const Count = Schema.NullOr(Schema.Finite).pipe(Schema.withDecodingDefaultKey(Effect.succeed(null)))

const counts = {
  /** Tokens of the request, those that were read from or written to a cache included. */
  inputTokens: Count,
  /** Tokens of the reply, reasoning included. */
  outputTokens: Count,
  /** Tokens of the request that the provider read from its cache. */
  cachedInputTokens: Count,
  /** Tokens of the request that the provider wrote to its cache. */
  cacheWriteInputTokens: Count,
  /** Tokens that the model used for reasoning. */
  reasoningTokens: Count,
  /** All tokens, as the provider counts them. */
  totalTokens: Count,
  /** The price of the request, in the provider's currency. */
  inputCost: Count,
  /** The price of the reply, in the provider's currency. */
  outputCost: Count,
  /** The whole price, in the provider's currency. */
  totalCost: Count
} as const

/**
 * The usage of a turn. A figure is `null` where the provider did not report it, which is not zero.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Usage extends Schema.Opaque<Usage>()(Schema.Struct({
  ...counts,
  /** The usage of its own tools that the provider reports. `{}` by default. */
  toolUsage: Json.Metadata,
  /** The figures that it reports under keys which are not listed here. `{}` by default. */
  extra: Json.Metadata
})) {}

type CountName = keyof typeof counts

const countNames = Object.keys(counts) as ReadonlyArray<CountName>

/** Tells whether a value is a count. Sums of those that are larger would be no numbers that JSON has. */
const isCount = (value: unknown): value is number =>
  typeof value === "number" && value >= 0 && value <= Number.MAX_SAFE_INTEGER

const isCountName = (name: string): name is CountName => Object.hasOwn(counts, name)

/**
 * Usage from any record: known keys that hold a number from 0 to `Number.MAX_SAFE_INTEGER` are taken, everything else
 * goes to `extra`.
 * Total: it never fails, so that an odd usage report cannot end a run.
 *
 * **Example** (An unknown key is kept)
 *
 * ```ts import.meta.vitest
 * import { Response } from "heddle"
 *
 * const usage = Response.usage({ inputTokens: 12, audio_tokens: 3 })
 *
 * usage.inputTokens // => 12
 * usage.outputTokens // => null
 * usage.extra // => { audio_tokens: 3 }
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const usage = (input: Readonly<Record<string, unknown>>): Usage => {
  const known = Object.fromEntries(countNames.map((name) => [name, null])) as Record<CountName, number | null>
  let toolUsage: Usage["toolUsage"] = {}
  const extra: Array<readonly [string, unknown]> = []
  for (const [name, value] of Object.entries(input)) {
    if (isCountName(name) && (value === null || value === undefined)) continue
    if (isCountName(name) && isCount(value)) known[name] = value
    else if (name === "toolUsage" && Json.isObject(value)) toolUsage = value
    else if (name === "extra" && Json.isObject(value)) extra.push(...Object.entries(value))
    else extra.push([name, value])
  }
  return { ...known, toolUsage, extra: Object.fromEntries(extra) }
}

const bothCounts = (left: number | null, right: number | null): number | null =>
  left === null ? right : right === null ? left : left + right

const both = (left: Usage, right: Usage): Usage => ({
  ...left,
  ...Object.fromEntries(countNames.map((name) => [name, bothCounts(left[name], right[name])])),
  toolUsage: { ...left.toolUsage, ...right.toolUsage },
  extra: { ...left.extra, ...right.extra, ...currencyOf(left, right) }
})

const hasCost = ({ inputCost, outputCost, totalCost }: Usage): boolean =>
  (inputCost ?? outputCost ?? totalCost) !== null

/** Returns the currency of a sum where its parts have several: `XXX`, which is none in ISO 4217. */
const currencyOf = (left: Usage, right: Usage): Json.JsonObject => {
  const currency = (hasCost(left) ? left : right).extra["currency"]
  const isMixed = hasCost(left) && hasCost(right) && currency !== right.extra["currency"]
  return isMixed ? { currency: "XXX" } : currency === undefined ? {} : { currency }
}

/**
 * The usage of several turns together. A figure that no turn reported stays `null`. Where turns report their costs with
 * several values of `currency` in `extra`, the sum has the value `"XXX"`: its costs are no amount of money.
 *
 * **Example** (Two turns together)
 *
 * ```ts import.meta.vitest
 * import { Response } from "heddle"
 *
 * const usage = Response.sumUsage([Response.usage({ inputTokens: 3 }), Response.usage({ inputTokens: 4 }), null])
 *
 * usage?.inputTokens // => 7
 * usage?.outputTokens // => null
 * ```
 *
 * @category combinators
 * @since 0.1.0
 */
export const sumUsage = (usages: Iterable<Usage | null>): Usage | null => {
  let total: Usage | null = null
  for (const next of usages) total = total === null || next === null ? total ?? next : both(total, next)
  return total
}

/**
 * One reply of the model.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Response extends Schema.Opaque<Response>()(Schema.Struct({
  /** The provider's id of the reply. `null` when it gave none. */
  id: Schema.NullOr(Schema.String),
  /** The id of the run, as in `Chat.Options`. `null` when the reply was not read by a run. */
  requestId: Schema.NullOr(Schema.String),
  /** The model that replied, as the provider names it. `null` when it gave no name. */
  model: Schema.NullOr(Schema.String),
  /** The provider that replied, of an `Adapter.fallback`. Left out for any other adapter. */
  provider: Schema.optionalKey(Schema.String),
  /** The text that was streamed. `null` when there was none. See `Response.text`. */
  outputText: Schema.NullOr(Schema.String),
  /** The reasoning that was streamed, as one text. `""` when there was none. */
  reasoning: Schema.String,
  /** The calls, in the order in which the model began them. Those that the provider has run are listed as well. */
  toolCalls: Schema.Array(Message.ToolCall),
  /** The message for the thread. `null` when the reply broke off before its end. */
  message: Schema.NullOr(Message.Message),
  /** The reason why the reply ended, in one vocabulary for all providers. `null` when no reason was given. */
  finishReason: Schema.NullOr(FinishReason),
  /** The provider's own finish reason. */
  rawFinishReason: Schema.NullOr(Schema.String),
  /**
   * `true` if the provider paused the reply before its end: it continues once the thread is sent back with it. Left out
   * for any other reply.
   */
  paused: Schema.optionalKey(Schema.Boolean),
  /** The usage of the reply, replies included that broke and were asked for again. `null` when nothing was reported. */
  usage: Schema.NullOr(Usage),
  /** The error that broke the reply after its first event. Left out when nothing did. */
  error: Schema.optionalKey(Json.Opaque),
  /** The metadata that the adapter adds, such as request ids. `{}` by default. */
  metadata: Json.Metadata
})) {}

/**
 * The visible text of a turn: what was streamed, else the text of the message, else `null`.
 *
 * **Example** (The text of a message that was not streamed)
 *
 * ```ts import.meta.vitest
 * import { Message, Response } from "heddle"
 *
 * Response.text({ outputText: null, message: Message.assistant("Hello") }) // => "Hello"
 * ```
 *
 * @category getters
 * @since 0.1.0
 */
export const text = (response: Pick<Response, "outputText" | "message">): string | null =>
  response.outputText ?? (response.message === null ? null : Message.text(response.message))

/**
 * Returns `true` if this side has to answer a call: not if it ran at the provider, and not if its name never arrived.
 *
 * **Example** (A call that the provider has run)
 *
 * ```ts import.meta.vitest
 * import { Message, Response } from "heddle"
 *
 * const calls = [Message.toolCall("a", "search"), { ...Message.toolCall("b", "web_search"), providerExecuted: true }]
 *
 * calls.map(Response.isActionable) // => [true, false]
 * ```
 *
 * @category guards
 * @since 0.1.0
 */
export const isActionable = (call: Message.ToolCall): boolean => call.providerExecuted !== true && call.name !== ""

/**
 * The calls that this side has to answer.
 *
 * **Example** (The calls to answer)
 *
 * ```ts import.meta.vitest
 * import { Message, Response } from "heddle"
 *
 * const calls = [Message.toolCall("a", "search"), { ...Message.toolCall("b", "web_search"), providerExecuted: true }]
 *
 * Response.actionableCalls({ toolCalls: calls }).map((call) => call.id) // => ["a"]
 * ```
 *
 * @category getters
 * @since 0.1.0
 */
export const actionableCalls = (response: Pick<Response, "toolCalls">): ReadonlyArray<Message.ToolCall> =>
  response.toolCalls.every(isActionable) ? response.toolCalls : response.toolCalls.filter(isActionable)
