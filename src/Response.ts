/**
 * Result of one model turn: its text, reasoning, tool calls, end and cost. Plain data; the provider's own words and
 * numbers are kept next to the normalized values.
 */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as ToolOutcomes from "./internal/declare/outcome.ts"
import * as Json from "./internal/json.ts"
import * as Message from "./Message.ts"

/**
 * Reason why a model turn ended, in one vocabulary for all providers.
 *
 * @category schemas
 */
export const FinishReason = ToolOutcomes.FinishReason

/**
 * @see {@link FinishReason}
 *
 * @category models
 */
export type FinishReason = (typeof FinishReason)["Type"]

const Count = Schema.NullOr(Schema.Finite).pipe(Schema.withDecodingDefaultKey(Effect.succeed(null)))

const counts = {
  /** Request tokens, including those read from or written to a cache. */
  inputTokens: Count,
  /** Reply tokens, including reasoning. */
  outputTokens: Count,
  /** Request tokens read from the provider's cache. */
  cachedInputTokens: Count,
  /** Request tokens written to the provider's cache. */
  cacheWriteInputTokens: Count,
  /** Tokens used for reasoning. */
  reasoningTokens: Count,
  /** All tokens, as counted by the provider. */
  totalTokens: Count,
  /** Price of the request, in the provider's currency. */
  inputCost: Count,
  /** Price of the reply, in the provider's currency. */
  outputCost: Count,
  /** Total price, in the provider's currency. */
  totalCost: Count
} as const

/**
 * Usage of a turn. A figure is `null`, not zero, if the provider did not report a value.
 *
 * @category schemas
 */
export class Usage extends Schema.Opaque<Usage>()(Schema.Struct({
  ...counts,
  /** The provider's reported usage of its own tools. `{}` by default. */
  toolUsage: Json.Metadata,
  /** Reported figures under keys not listed here. `{}` by default. */
  extra: Json.Metadata
})) {}

type CountName = keyof typeof counts

const countNames = Object.keys(counts) as ReadonlyArray<CountName>

/** Tells whether a value is a count. JSON may be unable to express sums of larger values. */
const isCount = (value: unknown): value is number =>
  typeof value === "number" && value >= 0 && value <= Number.MAX_SAFE_INTEGER

const isCountName = (name: string): name is CountName => Object.hasOwn(counts, name)

/**
 * Makes usage from any record: known keys with a number from 0 to `Number.MAX_SAFE_INTEGER` are kept, everything else
 * goes to `extra`. Total: it never fails, so an odd usage report cannot end a run.
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

/** Returns the currency of a sum. For parts in different currencies: `XXX`, unassigned in ISO 4217. */
const currencyOf = (left: Usage, right: Usage): Json.JsonObject => {
  const currency = (hasCost(left) ? left : right).extra["currency"]
  const isMixed = hasCost(left) && hasCost(right) && currency !== right.extra["currency"]
  return isMixed ? { currency: "XXX" } : currency === undefined ? {} : { currency }
}

/**
 * Adds up the usage of several turns. A figure reported by no turn stays `null`. If turns report costs with different
 * values of `currency` in `extra`, the sum has the value `"XXX"`: its costs are no amount of money.
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
 */
export class Response extends Schema.Opaque<Response>()(Schema.Struct({
  /** Reply id assigned by the provider. `null` without an id. */
  id: Schema.NullOr(Schema.String),
  /** Id of the run, as in `Chat.Options`. `null` for a reply read outside a run. */
  requestId: Schema.NullOr(Schema.String),
  /** The replying model, as named by the provider. `null` without a name. */
  model: Schema.NullOr(Schema.String),
  /** The replying provider, under `Adapter.fallback`. Absent for any other adapter. */
  provider: Schema.optionalKey(Schema.String),
  /** Streamed text. `null` without text. See `Response.text`. */
  outputText: Schema.NullOr(Schema.String),
  /** Streamed reasoning, as one text. `""` without reasoning. */
  reasoning: Schema.String,
  /** Tool calls, in the order in which the model began them, including calls run by the provider. */
  toolCalls: Schema.Array(Message.ToolCall),
  /** Message for the thread. `null` if the reply broke off before its end. */
  message: Schema.NullOr(Message.Message),
  /** Reason why the reply ended, in one vocabulary for all providers. `null` without a reason. */
  finishReason: Schema.NullOr(FinishReason),
  /** The provider's own finish reason. */
  rawFinishReason: Schema.NullOr(Schema.String),
  /**
   * `true` if the provider paused the reply before its end: it continues once the thread, including this reply, is sent
   * back. Absent for any other reply.
   */
  paused: Schema.optionalKey(Schema.Boolean),
  /** Usage of the reply, including broken replies asked for again. `null` if nothing was reported. */
  usage: Schema.NullOr(Usage),
  /** Error breaking the reply after its first event. Absent for an unbroken reply. */
  error: Schema.optionalKey(Json.Opaque),
  /** Metadata added by the adapter, such as request ids. `{}` by default. */
  metadata: Json.Metadata
})) {}

/**
 * Returns a turn's visible text: the streamed text, else the message text, else `null`.
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
 */
export const text = (response: Pick<Response, "outputText" | "message">): string | null =>
  response.outputText ?? (response.message === null ? null : Message.text(response.message))

/**
 * Returns `true` if this side has to answer a call: not if the provider ran the call, and not if its name never
 * arrived.
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
 */
export const isActionable = (call: Message.ToolCall): boolean => call.providerExecuted !== true && call.name !== ""

/**
 * Returns the calls for this side to answer.
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
 */
export const actionableCalls = (response: Pick<Response, "toolCalls">): ReadonlyArray<Message.ToolCall> =>
  response.toolCalls.every(isActionable) ? response.toolCalls : response.toolCalls.filter(isActionable)
