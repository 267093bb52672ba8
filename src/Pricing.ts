/**
 * Prices of models, for budgets of money. The library has no prices: give it a table.
 *
 * @since 0.1.0
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
 * A request or a reply whose price is asked for.
 *
 * @category models
 * @since 0.1.0
 */
export interface Call {
  /** The provider, as spans name it. */
  readonly provider: string
  /** The name of the model. */
  readonly model: string
  /** The tokens. */
  readonly usage: Response.Usage
}

/**
 * The price of a call in millionths of the currency: a whole number, 0 for nothing, `undefined` where the model has no
 * price. A fraction is rounded up; what is negative or no number is a defect. Where the price of a reply throws, the
 * reply counts by its reservation. A budget looks a model up by the name of the request, by that of the reply, and then
 * by both without a date at the end.
 *
 * @category references
 * @since 0.1.0
 */
export const Prices: Context.Reference<(call: Call) => number | undefined> = BudgetRule.Prices

/**
 * The currency of the prices. Prices that a provider reports itself count where it is `"USD"`, which is the default.
 *
 * @category references
 * @since 0.1.0
 */
export const Currency: Context.Reference<string> = BudgetRule.Currency

/**
 * The prices of one model, for a million tokens each.
 *
 * @category options
 * @since 0.1.0
 */
export interface Cost {
  /** Price of request tokens. */
  readonly input: number
  /** Price of reply tokens. */
  readonly output: number
  /** Price of request tokens read from the provider's cache. `input` by default. */
  readonly cache_read?: number | undefined
  /** Price of request tokens written to the provider's cache. `input` by default. */
  readonly cache_write?: number | undefined
}

/**
 * Prices by provider and model, in the form of models.dev: further fields are left alone.
 *
 * @category options
 * @since 0.1.0
 */
export interface Table {
  readonly [provider: string]: {
    /** The models of the provider, by their names. */
    readonly models: {
      readonly [model: string]: {
        /** The prices of the model. Left out where they are not known. */
        readonly cost?: Cost | undefined
      }
    }
  }
}

/**
 * The options of the prices.
 *
 * @category options
 * @since 0.1.0
 */
export interface Options {
  /** The currency of the table. `"USD"` by default. */
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

/** The prices of one model, as a table has them. */
type Known = NonNullable<(typeof Tables)["Type"][string]["models"][string]["cost"]>

/** Reads a table into a map, so that no name of a model reaches a prototype. */
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

/** Returns the price of a call. A price for a million tokens is one in millionths for each of them. */
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
 * Prices from a table. A price that is no number, or is negative, is a defect that names its place.
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
 * @since 0.1.0
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
