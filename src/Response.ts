/**
 * What one model turn came to: its text, reasoning and tool calls, why it ended and what it cost. Plain data; a
 * provider's own words and numbers are kept next to the normalised ones.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as FinishReasons from "./internal/hear/finishReason.ts"
import * as Json from "./internal/json.ts"
import * as Message from "./Message.ts"

/**
 * Why a model turn ended, in one vocabulary for all providers.
 *
 * @category schemas
 * @since 0.1.0
 */
export const FinishReason = FinishReasons.FinishReason

/**
 * @see {@link FinishReason}
 *
 * @category models
 * @since 0.1.0
 */
export type FinishReason = (typeof FinishReason)["Type"]

const Count = Schema.NullOr(Schema.Finite).pipe(Schema.withDecodingDefaultKey(Effect.succeed(null)))

const counts = {
  inputTokens: Count,
  outputTokens: Count,
  cachedInputTokens: Count,
  cacheWriteInputTokens: Count,
  reasoningTokens: Count,
  totalTokens: Count,
  inputCost: Count,
  outputCost: Count,
  totalCost: Count
} as const

/**
 * What a turn consumed, in tokens (costs in the currency of the provider). `null` means not reported, which is not
 * zero. Keys that are not known here are kept in `extra`.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Usage = Schema.Struct({ ...counts, toolUsage: Json.Metadata, extra: Json.Metadata })

/**
 * @see {@link Usage}
 *
 * @category models
 * @since 0.1.0
 */
export type Usage = (typeof Usage)["Type"]

type CountName = keyof typeof counts

const countNames = Object.keys(counts) as ReadonlyArray<CountName>

const isCountName = (name: string): name is CountName => Object.hasOwn(counts, name)

/**
 * Usage from any record: known keys that hold a finite number are taken, everything else goes to `extra`. Total: it
 * never fails, so that an odd usage report cannot end a run.
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
    if (isCountName(name) && typeof value === "number" && Number.isFinite(value)) known[name] = value
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
  extra: { ...left.extra, ...right.extra }
})

/**
 * The usage of several turns together. A figure that no turn reported stays `null`.
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
 * One model turn. `toolCalls` stand in the order in which the model opened them; `finishReason` is normalised and
 * `rawFinishReason` the provider's word; `error` is what broke the turn after its first event, if anything did.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Response = Schema.Struct({
  id: Schema.NullOr(Schema.String),
  requestId: Schema.NullOr(Schema.String),
  model: Schema.NullOr(Schema.String),
  outputText: Schema.NullOr(Schema.String),
  reasoning: Schema.String,
  toolCalls: Schema.Array(Message.ToolCall),
  message: Schema.NullOr(Message.Message),
  finishReason: Schema.NullOr(FinishReason),
  rawFinishReason: Schema.NullOr(Schema.String),
  usage: Schema.NullOr(Usage),
  error: Schema.optionalKey(Json.Opaque),
  metadata: Json.Metadata
})

/**
 * @see {@link Response}
 *
 * @category models
 * @since 0.1.0
 */
export type Response = (typeof Response)["Type"]

/**
 * The visible text of a turn: what was streamed, else the text of the message, else `null`.
 *
 * @category getters
 * @since 0.1.0
 */
export const text = (response: Pick<Response, "outputText" | "message">): string | null =>
  response.outputText ?? (response.message === null ? null : Message.text(response.message))

/**
 * Whether this side has to answer a call: not if it ran at the provider, and not if its name never arrived.
 *
 * @category guards
 * @since 0.1.0
 */
export const isActionable = (call: Message.ToolCall): boolean => call.providerExecuted !== true && call.name !== ""

/**
 * The calls that this side has to answer.
 *
 * @category getters
 * @since 0.1.0
 */
export const actionableCalls = (response: Pick<Response, "toolCalls">): ReadonlyArray<Message.ToolCall> =>
  response.toolCalls.every(isActionable) ? response.toolCalls : response.toolCalls.filter(isActionable)
