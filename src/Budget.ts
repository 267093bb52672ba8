/**
 * Budgets: what runs may spend, over a whole tree of them. A request to a model reserves on the accounts around its run
 * before it goes out, and its reply is settled on them, so that no run of the tree spends what another one has.
 *
 * @since 0.1.0
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
 * A budget: a value of `make` or `from`. Each run that has it opens an account of its own.
 *
 * @category models
 * @since 0.1.0
 */
export interface Budget {
  /** Opens an account within those around a run. */
  readonly open: (around: Rules.Spender | undefined) => Rules.Spender
}

/**
 * The amount that a run has spent, and what is left.
 *
 * @category models
 * @since 0.1.0
 */
export type Spent = Event.Spent

/**
 * The bounds of a budget: whole numbers, at least one of them. 0 is nothing left.
 *
 * @category options
 * @since 0.1.0
 */
export interface Limits {
  /** The number of requests to models. No bound by default. */
  readonly calls?: number | undefined
  /** Tokens of the requests. No bound by default. */
  readonly inputTokens?: number | undefined
  /** Tokens of the replies. No bound by default. */
  readonly outputTokens?: number | undefined
  /** Tokens of requests and replies. No bound by default. */
  readonly tokens?: number | undefined
  /** The price, in millionths of the currency of `Pricing`. No bound by default. */
  readonly money?: number | undefined
}

/**
 * The options of a budget.
 *
 * @category options
 * @since 0.1.0
 */
export interface Options {
  /**
   * The end of a run whose own budget is exhausted. `"finalize"` asks the model once more, without tools, for an
   * answer: the budget keeps one call for that, of the size of the run's latest request. `"halt"` ends the run
   * (`RuleEnded` with the rule `budget`). A run that does not own the budget always ends. `"finalize"` by default.
   */
  readonly onExhausted?: "finalize" | "halt" | undefined
  /**
   * The treatment of a model without a price, under a bound of money. `"refuse"` ends the run before the request.
   * `"count-tokens"` counts no money, and needs a bound of tokens. `"refuse"` by default.
   */
  readonly onUnpriced?: "refuse" | "count-tokens" | undefined
  /** The tokens that are reserved for a reply, where the request has no `maxTokens`. 4,096 by default. */
  readonly outputReserve?: number | undefined
  /**
   * Estimates the tokens of a request. By default those that the run's last reply reported, and a quarter of the
   * characters since; 1,500 for an image or a file. A fraction is rounded up; what is negative or no number is a
   * defect.
   */
  readonly estimate?:
    | ((request: {
      /** The messages of the request. */
      readonly messages: ReadonlyArray<Message.Message>
    }) => number)
    | undefined
  /**
   * The extent of the account. `"session"` counts over the runs of a kept session. `"run"` by default.
   */
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
 * Makes a budget, for the option `budget` of a run or for `Limits.layer`.
 *
 * **Details**
 *
 * Before each request a run reserves one call, the estimate of its tokens, and `maxTokens` for the reply, at once on
 * its own account and on those around it. What others hold and may give back is waited for, in the order of asking. A
 * reply is settled when it ends, before its calls start: by its usage; by the reservation, where a whole reply reports
 * none; by nothing, where the provider refused the request. A limit that is negative, no whole number or unknown, and a
 * budget without one, is a defect.
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
 * @since 0.1.0
 */
export const make = (limits: Limits, options: Options = {}): Budget => {
  if (!Json.isObject(limits)) throw new TypeError("Budget.make: the limits must be an object, such as { calls: 20 }")
  // Checked is what the account gets: a member that is computed may change.
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
 * A request as an account of your own sees it.
 *
 * @category models
 * @since 0.1.0
 */
export interface Request {
  /** The id of the reservation: run, step and request. The same request after a crash has another one. */
  readonly id: string
  /** The provider, as spans name it. */
  readonly provider: string
  /** The model. `undefined` where neither the request nor the adapter names one. */
  readonly model: string | undefined
  /** The amount that is reserved. */
  readonly amount: Amount
}

/**
 * An amount of a request. Money is in millionths of the currency of `Pricing`, 0 where no price is known.
 *
 * @category models
 * @since 0.1.0
 */
export interface Amount {
  /** Requests: 1, or 0 where the provider refused the request. */
  readonly calls: number
  /** Tokens of the request. */
  readonly inputTokens: number
  /** Tokens of the reply. */
  readonly outputTokens: number
  /** Millionths of the currency. */
  readonly money: number
}

/**
 * An account of your own, such as one for a tenant in a database.
 *
 * @category options
 * @since 0.1.0
 */
export interface Account {
  /** Reserves for a request. `false` refuses it, and the run ends (`RuleEnded`). May wait. */
  readonly reserve: (request: Request) => Effect.Effect<boolean>
  /**
   * Settles a reservation by what was spent, once each, also where the run is stopped or another account dies as it
   * settles. A `reserve` that is stopped or dies may have reserved: it is settled by nothing. A process that is killed
   * before leaves the reservation open.
   */
  readonly settle: (request: Request, spent: Amount) => Effect.Effect<unknown>
}

const accountNames = { reserve: Values.fn, settle: Values.fn } satisfies NamesOf<Account>

/**
 * Makes a budget whose account is your own.
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
 * @since 0.1.0
 */
export const from = (account: Account): Budget => {
  if (!Json.isObject(account)) {
    throw new TypeError("Budget.from: the account must be an object with the functions reserve and settle")
  }
  checkNames("Budget.from", { account }, { account: Values.required(accountNames) })
  return made({ bounds: {}, choices: { ...BudgetRule.usual, onExhausted: "halt" }, outside: account })
}

/**
 * The amount that the run around this code has spent so far, with the runs that its handlers started. `undefined`
 * without a budget.
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
 * @since 0.1.0
 */
export const spent: Effect.Effect<Spent | undefined> = Effect.map(Rules.CurrentBudget, (spender) => spender?.spent)
