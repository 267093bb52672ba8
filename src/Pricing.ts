/**
 * Model prices, for money budgets. The library contains no prices: provide a table.
 */
import type * as Context from "effect/Context"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { checkNames, type NamesOf } from "./internal/declare/schema.ts"
import * as Values from "./internal/declare/values.ts"
import * as BudgetRule from "./internal/loop/budgetRule.ts"
import * as Accounts from "./internal/permits/account.ts"
import type * as Response from "./Response.ts"

/**
 * A request or reply to be priced.
 *
 * @category models
 */
export interface Call {
  /** Provider name, as in spans. */
  readonly provider: string
  /** Model name. */
  readonly model: string
  /** Token usage. */
  readonly usage: Response.Usage
}

/**
 * Price of a call in millionths of the currency: a whole number, 0 for a free call, `undefined` for a model without a
 * price. Fractions are rounded up; a negative value or a non-number is a defect. If pricing a reply throws, the reply
 * counts with its reservation. A budget looks up a model by the request's name, by the reply's, then by both without a
 * trailing date.
 *
 * @category references
 */
export const Prices: Context.Reference<(call: Call) => number | undefined> = BudgetRule.Prices

/**
 * Currency of the prices. Prices reported by a provider count only if it is `"USD"`, the default.
 *
 * @category references
 */
export const Currency: Context.Reference<string> = BudgetRule.Currency

/**
 * Prices for one model, per million tokens.
 *
 * @category options
 */
export interface Cost {
  /** Price for request tokens. */
  readonly input: number
  /** Price for reply tokens. */
  readonly output: number
  /** Price for request tokens read from the provider's cache. `input` by default. */
  readonly cache_read?: number | undefined
  /** Price for request tokens written to the provider's cache. `input` by default. */
  readonly cache_write?: number | undefined
}

/**
 * Prices by provider and model, in the models.dev format. Further fields are ignored.
 *
 * @category options
 */
export interface Table {
  readonly [provider: string]: {
    /** The provider's models, by name. */
    readonly models: {
      readonly [model: string]: {
        /** Model prices. Absent if unknown. */
        readonly cost?: Cost | undefined
      }
    }
  }
}

/**
 * Options of a price table.
 *
 * @category options
 */
export interface Options {
  /** Currency of the table. `"USD"` by default. */
  readonly currency?: string | undefined
}

const optionNames = Values.nullable({ currency: Values.name } satisfies NamesOf<Options>)

const Price = Schema.Finite.check(Schema.isGreaterThanOrEqualTo(0))

const Tables = Schema.Record(
  Schema.String,
  Schema.Struct({
    models: Schema.Record(
      Schema.String,
      Schema.Struct({
        cost: Schema.optionalKey(Schema.NullishOr(Schema.Struct({
          input: Price,
          output: Price,
          cache_read: Schema.optionalKey(Schema.NullishOr(Price)),
          cache_write: Schema.optionalKey(Schema.NullishOr(Price))
        })))
      })
    )
  })
)

/** Prices for one model, as found in a table. */
type Known = NonNullable<(typeof Tables)["Type"][string]["models"][string]["cost"]>

/** Reads a table into a map, so that no model name reaches a prototype. */
const read = (table: Table): ReadonlyMap<string, Known> => {
  const known = Schema.decodeUnknownResult(Tables)(table)
  if (Result.isFailure(known)) throw new TypeError(`Pricing.layer: ${known.failure.message}`)
  return new Map(
    Object.entries(known.success).flatMap(([provider, { models }]) =>
      Object.entries(models).flatMap(([model, { cost }]) => cost ? [[keyOf(provider, model), cost] as const] : [])
    )
  )
}

const keyOf = (provider: string, model: string): string => JSON.stringify([provider, model])

/** Returns the price of a call. A price per million tokens equals the millionths per token. */
const priceOf = (
  cost: Known,
  { cachedInputTokens, cacheWriteInputTokens, inputTokens, outputTokens }: Response.Usage
) => {
  const read = cachedInputTokens ?? 0
  const written = cacheWriteInputTokens ?? 0
  const plain = Math.max(0, (inputTokens ?? 0) - read - written)
  return Accounts.roundedUp(
    plain * cost.input + read * (cost.cache_read ?? cost.input) + written * (cost.cache_write ?? cost.input) +
      (outputTokens ?? 0) * cost.output
  )
}

/**
 * Provides prices from a table. A negative price or a non-number is a defect naming its place.
 *
 * **Example** (The price of a reply)
 *
 * ```ts import.meta.vitest
 * import { Pricing, Response } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const table = { openai: { models: { "gpt-5": { cost: { input: 1.25, output: 10 } } } } }
 * const usage = Response.usage({ inputTokens: 1_000, outputTokens: 100 })
 * const price = Effect.map(Pricing.Prices, (prices) => prices({ provider: "openai", model: "gpt-5", usage }))
 *
 * await Effect.runPromise(Effect.provide(price, Pricing.layer(table))) // => 2250
 * ```
 *
 * @category layers
 */
export const layer = (table: Table, options: Options = {}): Layer.Layer<never> => {
  checkNames("Pricing.layer", options, optionNames)
  const costs = read(table)
  const prices = ({ model, provider, usage }: Call): number | undefined => {
    const cost = costs.get(keyOf(provider, model))
    return cost && priceOf(cost, usage)
  }
  return Layer.merge(
    Layer.succeed(BudgetRule.Prices, prices),
    Layer.succeed(BudgetRule.Currency, options.currency ?? "USD")
  )
}
