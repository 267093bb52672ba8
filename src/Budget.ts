/**
 * Budgets limit spending over a whole tree of runs. Before a model request goes out, it reserves on every account
 * around its run; its reply is settled on the same accounts. So no run in the tree spends another run's reservation.
 */
import * as Effect from "effect/Effect"
import type * as Event from "./Event.ts"
import * as Settings from "./internal/ask/options.ts"
import { checkNames, type NamesOf } from "./internal/declare/schema.ts"
import * as Values from "./internal/declare/values.ts"
import * as Json from "./internal/json.ts"
import * as BudgetRule from "./internal/loop/budgetRule.ts"
import * as Rules from "./internal/loop/rules.ts"
import type * as Accounts from "./internal/permits/account.ts"
import type * as Message from "./Message.ts"

export type { Spender } from "./internal/loop/rules.ts"

/**
 * A budget, made by `make` or `from`. Each run given the budget opens its own account.
 *
 * @category models
 */
export interface Budget {
  /** Opens an account inside those around a run. */
  readonly open: (around: Rules.Spender | undefined) => Rules.Spender
}

/**
 * A run's spending so far, and the remainder.
 *
 * @category models
 */
export type Spent = Event.Spent

/**
 * Budget limits: whole numbers, with at least one limit set. 0 allows nothing.
 *
 * @category options
 */
export interface Limits {
  /** Maximum number of model requests. Unbounded by default. */
  readonly calls?: number | undefined
  /** Maximum request tokens. Unbounded by default. */
  readonly inputTokens?: number | undefined
  /** Maximum reply tokens. Unbounded by default. */
  readonly outputTokens?: number | undefined
  /** Maximum tokens of requests and replies together. Unbounded by default. */
  readonly tokens?: number | undefined
  /** Maximum price, in millionths of the `Pricing` currency. Unbounded by default. */
  readonly money?: number | undefined
}

/**
 * Options of a budget.
 *
 * @category options
 */
export interface Options {
  /**
   * End of a run once its own budget is exhausted. `"finalize"` asks the model once more, without tools, for an answer:
   * the budget keeps one call for it, as large as the run's latest request. `"halt"` ends the run (`RuleEnded` with the
   * rule `budget`). If the exhausted budget is not its own, a run always ends. `"finalize"` by default.
   */
  readonly onExhausted?: "finalize" | "halt" | undefined
  /**
   * Treatment of a model without a price, under a money limit. `"refuse"` ends the run before the request.
   * `"count-tokens"` counts no money, and needs a token limit. `"refuse"` by default.
   */
  readonly onUnpriced?: "refuse" | "count-tokens" | undefined
  /** Tokens reserved for a reply if the request has no `maxTokens`. 4,096 by default. */
  readonly outputReserve?: number | undefined
  /**
   * Estimates a request's tokens. By default: the count reported by the run's last reply, plus a quarter of the
   * characters since; an image or a file counts 1,500. Fractions are rounded up; a negative value or a non-number is a
   * defect.
   */
  readonly estimate?:
    | ((request: {
      /** Messages in the request. */
      readonly messages: ReadonlyArray<Message.Message>
    }) => number)
    | undefined
  /** Extent of the account. `"session"` counts across a kept session's runs. `"run"` by default. */
  readonly scope?: "run" | "session" | undefined
}

const limitNames = Values.nullable(
  {
    calls: Values.whole,
    inputTokens: Values.whole,
    outputTokens: Values.whole,
    tokens: Values.whole,
    money: Values.whole
  } satisfies NamesOf<Limits>
)

const optionNames = Values.nullable(
  {
    onExhausted: Values.oneOf("finalize", "halt"),
    onUnpriced: Values.oneOf("refuse", "count-tokens"),
    outputReserve: Values.whole,
    estimate: Values.fn,
    scope: Values.oneOf("run", "session")
  } satisfies NamesOf<Options>
)

const made = (opened: BudgetRule.Opened): Budget => {
  const budget: Budget = { open: (around) => BudgetRule.opened(opened, around) }
  Settings.madeBudgets.add(budget)
  return budget
}

/**
 * Makes a budget, for a run's `budget` option or for `Limits.layer`.
 *
 * **Details**
 *
 * Before each request a run reserves one call, the estimated tokens, and `maxTokens` for the reply, at once on its own
 * account and on those around it. If other runs hold amounts they may give back, the request waits, in the order of
 * asking. A reply is settled when it ends, before its calls start. The settlement is the reply's usage, if reported;
 * nothing, if the provider refused the request; or else the whole reservation. These are defects: a limit that is
 * negative, fractional or unknown, and a budget without limits.
 *
 * **Example** (Two calls, and an answer from what is left)
 *
 * ```ts import.meta.vitest
 * import { Budget, Chat, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const look = Tool.make("look", { parameters: {}, handler: () => Effect.succeed("a loom") })
 * const asks = [Script.toolCall("c0", "look", {}), Script.finish("tool_calls")]
 * const answer = [Script.text("A loom."), Script.finish("stop")]
 * const run = Chat.run("What is there?", { tools: [look], budget: Budget.make({ calls: 2 }) })
 * const result = await Effect.runPromise(Effect.provide(run, Script.layer([asks, answer])))
 *
 * result.finalized // => "budget"
 * result.spent?.calls // => 2
 * ```
 *
 * @category constructors
 */
export const make = (limits: Limits, options: Options = {}): Budget => {
  if (!Json.isObject(limits)) throw new TypeError("Budget.make: the limits must be an object, such as { calls: 20 }")
  // The account gets exactly the checked values: a computed member may change between reads.
  const bounds: Accounts.Bounds = Values.given(limits)
  checkNames("Budget.make", bounds, limitNames)
  checkNames("Budget.make", options, optionNames)
  const choices = { ...BudgetRule.usual, ...Values.given(options) } as BudgetRule.Choices
  if (Object.keys(bounds).length === 0) {
    throw new TypeError("Budget.make: give at least one of calls, inputTokens, outputTokens, tokens and money")
  }
  const { inputTokens, outputTokens, tokens } = bounds
  if (choices.onUnpriced === "count-tokens" && (inputTokens ?? outputTokens ?? tokens) === undefined) {
    throw new TypeError("Budget.make: onUnpriced \"count-tokens\" needs a limit of tokens, inputTokens or outputTokens")
  }
  return made({ bounds, choices })
}

/**
 * A request as seen by your own account.
 *
 * @category models
 */
export interface Request {
  /** Reservation id: run, step and request. After a crash, the same request gets another id. */
  readonly id: string
  /** Provider name, as in spans. */
  readonly provider: string
  /** Model name. `undefined` if neither the request nor the adapter names a model. */
  readonly model: string | undefined
  /** Amount to reserve. */
  readonly amount: Amount
}

/**
 * Amount of one request. Money is in millionths of the `Pricing` currency, 0 without a known price.
 *
 * @category models
 */
export interface Amount {
  /** Requests: 1, or 0 if the provider refused the request. */
  readonly calls: number
  /** Request tokens. */
  readonly inputTokens: number
  /** Reply tokens. */
  readonly outputTokens: number
  /** Money, in millionths of the currency. */
  readonly money: number
}

/**
 * An account of your own, such as a tenant's in a database.
 *
 * @category options
 */
export interface Account {
  /** Reserves for a request. `false` refuses the request and ends the run (`RuleEnded`). May wait. */
  readonly reserve: (request: Request) => Effect.Effect<boolean>
  /**
   * Settles a reservation with the spent amount, once each, even if the run is stopped or another account dies while
   * settling. A stopped or dying `reserve` may have reserved, so it is settled with nothing. A process killed earlier
   * leaves the reservation open.
   */
  readonly settle: (request: Request, spent: Amount) => Effect.Effect<unknown>
}

const accountNames = { reserve: Values.fn, settle: Values.fn } satisfies NamesOf<Account>

/**
 * Makes a budget backed by your own account.
 *
 * **Example** (An account that refuses everything)
 *
 * ```ts import.meta.vitest
 * import { Budget, Chat } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const closed = Budget.from({ reserve: () => Effect.succeed(false), settle: () => Effect.void })
 * const run = Chat.run("Hi", { budget: closed })
 * const result = await Effect.runPromise(Effect.provide(run, Script.layer([])))
 *
 * result.haltedReason // => "budget"
 * ```
 *
 * @category constructors
 */
export const from = (account: Account): Budget => {
  if (!Json.isObject(account)) {
    throw new TypeError("Budget.from: the account must be an object with the functions reserve and settle")
  }
  checkNames("Budget.from", { account }, { account: Values.required(accountNames) })
  return made({ bounds: {}, choices: { ...BudgetRule.usual, onExhausted: "halt" }, outside: account })
}

/**
 * Amount spent so far by the run around this code, including runs started by its handlers. `undefined` without a
 * budget.
 *
 * **Example** (Without a budget)
 *
 * ```ts import.meta.vitest
 * import { Budget } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * await Effect.runPromise(Budget.spent) // => undefined
 * ```
 *
 * @category getters
 */
export const spent: Effect.Effect<Spent | undefined> = Effect.map(Rules.CurrentBudget, (spender) => spender?.spent)
