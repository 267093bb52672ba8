/**
 * The budget rule: each request reserves on all accounts around its run, and its reply settles the reservation. It
 * comes with the value of `Budget.make`, so runs without a budget do not load it.
 *
 * A run has two rules of this name. The first settles a reply before any other rule hears it; the last reserves for the
 * request made by the others.
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Schema from "effect/Schema"
import type * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import * as Response from "../../Response.ts"
import * as Requests from "../ask/request.ts"
import * as SharedMessages from "../fold/sharedMessages.ts"
import * as Json from "../json.ts"
import * as Accounts from "../permits/account.ts"
import { CurrentRunning } from "../stop/ownedFibers.ts"
import { CurrentSpending, type Spending } from "../stop/spending.ts"
import {
  type Accounting,
  type Ask,
  type Asked,
  type At,
  CurrentBudget,
  type End,
  end,
  type Hooks,
  keep,
  type Last,
  last,
  noNotes,
  type Replied,
  type Reply,
  type Rule,
  type Run,
  type Spender
} from "./rules.ts"
import * as Turns from "./turns.ts"

const { rule: name } = Accounts

/** A request to price, or its reply. */
export interface Priced {
  readonly provider: string
  readonly model: string
  readonly usage: Response.Usage
}

/** Model prices, in millionths of the currency. Public as `Pricing.Prices`. */
export const Prices: Context.Reference<(call: Priced) => number | undefined> = Context.Reference<
  (call: Priced) => number | undefined
>("heddle/Pricing/Prices", { defaultValue: () => () => undefined })

/** Currency of prices. Public as `Pricing.Currency`. */
export const Currency: Context.Reference<string> = Context.Reference<string>("heddle/Pricing/Currency", {
  defaultValue: () => "USD"
})

/** A request, as seen by a caller's own account. */
interface Reserved {
  readonly id: string
  readonly provider: string
  readonly model: string | undefined
  readonly amount: Accounts.Amount
}

/** A caller's own account. */
interface Outside {
  readonly reserve: (reserved: Reserved) => Effect.Effect<boolean>
  readonly settle: (reserved: Reserved, spent: Accounts.Amount) => Effect.Effect<unknown>
}

/** Budget choices. */
export interface Choices {
  readonly onExhausted: "finalize" | "halt"
  readonly onUnpriced: "refuse" | "count-tokens"
  readonly outputReserve: number
  readonly estimate: ((request: { readonly messages: ReadonlyArray<Message.Message> }) => number) | undefined
  readonly scope: "run" | "session"
}

type Asking = ReturnType<NonNullable<Hooks["ask"]>>

/** An account around a run. */
interface Member {
  readonly account: Accounts.Account
  readonly choices: Choices
  readonly outside: Outside | undefined
}

export const usual: Choices = {
  onExhausted: "finalize",
  onUnpriced: "refuse",
  outputReserve: 4_096,
  estimate: undefined,
  scope: "run"
}

// Request size.

/** Characters counted for a non-text part: 1,500 tokens. */
const charactersOfPart = 6_000
const charactersOfToken = 4

const contentLength = (content: Message.Content): number =>
  typeof content === "string"
    ? content.length
    : content.reduce((all, part) => all + ("text" in part ? part.text.length : charactersOfPart), 0)

const messageLength = ({ content, toolCalls = [] }: Message.Message): number =>
  toolCalls.reduce(
    (all, call) => all + call.name.length + (call.rawArguments ?? JSON.stringify(call.arguments)).length,
    contentLength(content)
  )

const lengthOf = (messages: ReadonlyArray<Message.Message>): number =>
  messages.reduce((all, message) => all + messageLength(message), 0)

const tokensOf = (characters: number): number => Math.ceil(characters / charactersOfToken)

/** Counts the characters in a growing thread. A shortened thread is counted again. */
class Counted {
  private characters = 0
  private messages = 0

  of(thread: At["thread"]): number {
    const length = SharedMessages.length(thread)
    if (length < this.messages) this.characters = this.messages = 0
    this.characters += lengthOf(SharedMessages.since(thread, this.messages))
    this.messages = length
    return this.characters
  }
}

/** Checks the return value of a caller's function: a non-number would remove the bound. */
const counted = (value: unknown, source: string): number => {
  if (typeof value === "number" && Number.isFinite(value) && value >= 0) return Accounts.roundedUp(value)
  throw new TypeError(`${source} returned ${String(value)}; return a number, 0 or more`)
}

// The reply.

/** Errors after which the model may have worked, even if nothing arrived. */
const unclear: ReadonlySet<unknown> = new Set(["timeout", "network_error", "malformed_response", "unknown"])

/** A granted request. */
interface Open {
  readonly reservation: Accounts.Reservation
  readonly reserved: Accounts.Amount
  readonly ask: Ask
  /** Caller accounts that granted the request. */
  readonly outside: Array<readonly [Outside, Reserved]>
  /** `true` once the request was sent. */
  isSent: boolean
}

/** Counts the characters in a reply. */
const saidIn = ({ outputText, reasoning, toolCalls }: Response.Response): number =>
  toolCalls.reduce(
    (all, { rawArguments = "" }) => all + rawArguments.length,
    (outputText ?? "").length + reasoning.length
  )

/** Returns the usage settling a reply: `null` to count the reservation, `undefined` to count nothing. */
const settledBy = (
  reply: Response.Response | undefined,
  error: unknown,
  hasSaid: boolean
): Response.Usage | null | undefined => {
  const { message = null, usage = null } = reply ?? {}
  if (message !== null) return usage
  const isRefused = error !== undefined && !hasSaid && !unclear.has((error as Partial<Adapter.AdapterError>).reason)
  if (isRefused) return usage ?? undefined
  if (reply === undefined || usage === null) return null
  return { ...usage, outputTokens: Math.max(usage.outputTokens ?? 0, tokensOf(saidIn(reply))) }
}

/** A date at the end of a model name. */
const dated = /-\d{4}-?\d{2}-?\d{2}$/

/** Prices for one run. */
class Tariff {
  private readonly prices: (call: Priced) => number | undefined
  private readonly isDollar: boolean

  constructor(prices: (call: Priced) => number | undefined, currency: string) {
    this.prices = prices
    this.isDollar = currency === "USD"
  }

  /** Returns the price by the first priced name: as requested, as replied, then without a trailing date. */
  of({ adapter, template }: Ask, usage: Response.Usage, replied?: string): number | undefined {
    const reported = usage.totalCost
    if (this.isDollar && reported !== null) return Accounts.roundedUp(reported * 1_000_000)
    const provider = adapter.provider ?? "_OTHER"
    const names = [template.model ?? adapter.model, replied].filter((model) => model !== undefined)
    for (const model of [...names, ...names.map((model) => model.replace(dated, ""))]) {
      const price = this.prices({ provider, model, usage })
      if (price !== undefined) return counted(price, "Pricing.Prices")
    }
    return undefined
  }
}

/** Returns an adapter reporting when a request is sent. */
const telling = (adapter: Adapter.Service, onSent: () => void): Adapter.Service =>
  Object.create(adapter, {
    stream: {
      value: (request: Adapter.Request) => {
        onSent()
        return adapter.stream(request)
      }
    }
  }) as Adapter.Service

/** Waits for amounts reserved by other runs. Enclosing handlers do not count as idle meanwhile. */
const heldUp = <A>(wait: Effect.Effect<A>): Effect.Effect<A> =>
  Effect.flatMap(CurrentRunning, (running) => running === undefined ? wait : running.heldUp(wait))

/** Accounts around a run, and the run's spending. */
class Chain implements Spender {
  readonly members: ReadonlyArray<Member>
  /** The run's own account: its budget, or an unbounded account. */
  readonly own: Member
  /** `true` if the run opened a bounded account. */
  readonly isOwner: boolean

  constructor(around: ReadonlyArray<Member>, budget: Opened | undefined) {
    this.own = {
      account: new Accounts.Account(budget?.bounds ?? {}),
      choices: budget?.choices ?? usual,
      outside: budget?.outside
    }
    this.members = [...around, this.own]
    this.isOwner = budget !== undefined
  }

  within(budget?: Opened): Chain {
    return new Chain(this.members, budget)
  }

  get services(): Context.Context<never> {
    return Context.add(Context.make(CurrentBudget, this), Requests.CurrentGoverning, Turns.governing)
  }

  get spent(): Event.Spent {
    const { account: { spent: { calls, inputTokens, money, outputTokens } } } = this.own
    const isPriced = money > 0 || this.members.some(({ account }) => account.bounds.money !== undefined)
    const left: Record<string, number> = {}
    for (const { account } of this.members) {
      for (const [resource, amount] of Object.entries(account.left)) {
        left[resource] = Math.min(left[resource] ?? Infinity, amount)
      }
    }
    return { calls, inputTokens, outputTokens, ...(isPriced ? { money } : {}), left }
  }

  rules(isStep: boolean): readonly [first: Rule, last: Rule] {
    const requests = new Requested(this, isStep)
    const handlers = this.services
    return [
      {
        name,
        ask: (ask, at) => {
          requests.takeUp(at)
          return ask
        },
        reply: (reply, at) => requests.replied(reply, at)
      },
      {
        name,
        ...(this.own.choices.scope === "session" ? { keeps: "session" as const } : {}),
        open: (run) =>
          Effect.gen(function*() {
            yield* requests.begin(run)
            // A run left by its reader settles the received part of its reply.
            yield* Effect.addFinalizer(() => Effect.suspend(() => requests.settle(undefined, true)[1]))
            return { ...requests.hooks, handlers }
          })
      }
    ]
  }
}

/** Requests of one run: reserved before sending, and settled by their replies. */
class Requested {
  private readonly chain: Chain
  private readonly isStep: boolean
  private readonly counter = new Counted()
  private tariff = new Tariff(() => undefined, "USD")
  private heard: Run["heard"] = () => undefined
  private open: Open | undefined
  /** The recorded call whose handler takes this step or classification. */
  private call: Spending | undefined
  /** Settlements not yet passed to caller accounts. */
  private readonly owed: Array<() => Effect.Effect<unknown>> = []
  /** Request of a recorded reply. */
  private repeated: Ask | undefined
  /** Cost of runs inside its calls, from before the run was resumed, until counted. */
  private inside: Accounts.Amount | undefined
  /** Reservation of a request lost in a crash, until counted. */
  private crashed: Accounts.Amount | undefined
  private sizeOf: { readonly tools: unknown; readonly characters: number } | undefined

  constructor(chain: Chain, isStep: boolean) {
    this.chain = chain
    this.isStep = isStep
  }

  private get account(): Accounts.Account {
    return this.chain.own.account
  }

  /** `true` if the run may make a last request from the amount its own account keeps. */
  private get mayFinalize(): boolean {
    return this.chain.isOwner && !this.isStep && this.chain.own.choices.onExhausted === "finalize"
  }

  private note(note: { readonly [Name in keyof Accounts.Note]: Accounts.Note[Name] | undefined }): Schema.Json {
    return Json.toJson(this.chain.own.choices.scope === "session" ? { ...note, session: this.account.spent } : note)
  }

  readonly hooks: Hooks & Accounting = {
    ask: (ask, at) => this.ask(ask, at),
    spent: (notes) => {
      // A run resumed after its last step makes no request.
      this.takeUp({ notes, noted: noNotes })
      this.account.add(Accounts.sum(this.crashed))
      this.crashed = undefined
      return this.chain.spent
    },
    keptNote: () => this.note({})
  }

  /** Begins with everything spent in the session and the runs inside. */
  begin({ heard, inside = Effect.succeed([]), kept }: Run): Effect.Effect<void> {
    return Effect.gen({ self: this }, function*() {
      this.heard = heard
      if (this.isStep) this.call = yield* CurrentSpending
      this.tariff = new Tariff(yield* Prices, yield* Currency)
      this.inside = Accounts.sum(...(yield* inside).map(Accounts.costInside))
      const { session = Accounts.nothing } = Accounts.noteOf(kept)
      if (this.chain.own.choices.scope === "session") this.account.add(session)
    })
  }

  /** Counts, once, the run's spending from before it was resumed. Later rules may read the account. */
  takeUp({ noted, notes }: Pick<At, "noted" | "notes">): void {
    if (this.inside === undefined) return
    const all = [...notes, noted].map(Accounts.noteOf)
    this.account.add(Accounts.sum(...all.map(Accounts.costOf), this.inside))
    this.inside = undefined
    this.crashed = all.findLast(({ reserved }) => reserved !== undefined)?.reserved
  }

  // The reply.

  replied({ error, hasSaid, usage }: Replied, at: At): Reply | Effect.Effect<Reply> {
    const { lost, settled } = Accounts.noteOf(at.noted)
    const keeping = (spent: Accounts.Amount): Reply => ({
      ...keep,
      note: this.note({ settled: Accounts.sum(settled, spent), lost, heard: Accounts.heardIn(usage) })
    })
    if (at.isRepeated) {
      this.crashed = undefined
      // The reply was recorded but its note was not, so it is settled by its reported usage.
      const spent = this.spentRepeated(usage, Accounts.noteOf(at.noted))
      this.account.add(spent)
      return keeping(spent)
    }
    if (this.open === undefined) return keep
    const [spent, settling] = this.settle(error, hasSaid)
    return settling === Effect.void
      ? keeping(spent)
      : Effect.as(settling, keeping(spent))
  }

  /** Returns a recorded reply's cost. `usage` includes the step's discarded replies, which are settled already. */
  private spentRepeated(usage: Response.Usage | null, note: Accounts.Note): Accounts.Amount {
    const { reserved = Accounts.nothing } = note
    if (usage === null) return reserved
    const own = Accounts.lastUsage(usage, note)
    const money = this.repeated === undefined ? reserved.money : this.tariff.of(this.repeated, own)
    return Accounts.amountOf(own, reserved, money)
  }

  /**
   * Settles the open request. The returned effect settles the caller's accounts, each even if another dies. If pricing
   * the reply throws, the reservation counts, and the effect dies.
   */
  settle(error: unknown, hasSaid: boolean): readonly [Accounts.Amount, Effect.Effect<unknown>] {
    const { open } = this
    if (open === undefined) return [Accounts.nothing, this.paying()]
    this.open = undefined
    const reply = open.isSent ? this.heard() : undefined
    let usage = open.isSent ? settledBy(reply, error, hasSaid) : undefined
    let money: number | undefined
    let failing: Effect.Effect<unknown> | undefined
    try {
      money = usage ? this.tariff.of(open.ask, usage, reply?.model ?? undefined) : undefined
    } catch (defect) {
      usage = null
      failing = Effect.die(defect)
    }
    const spentOf = (reserved: Accounts.Amount): Accounts.Amount =>
      usage === undefined ? Accounts.nothing : usage === null ? reserved : Accounts.amountOf(usage, reserved, money)
    open.reservation.settle(spentOf)
    this.call?.pay(spentOf(open.reserved))
    for (const [account, given] of open.outside) {
      this.owed.push(() => account.settle(given, spentOf(given.amount)))
    }
    const paying = this.paying()
    return [spentOf(open.reserved), failing === undefined ? paying : Effect.ensuring(failing, paying)]
  }

  /**
   * Settles the caller's accounts. If a stop comes before this effect begins, the end of the run settles them instead.
   */
  private paying(): Effect.Effect<unknown> {
    return this.owed.length === 0 ? Effect.void : Effect.uninterruptible(this.payEach)
  }

  private readonly payEach: Effect.Effect<unknown> = Effect.suspend(() => {
    const settle = this.owed.shift()
    return settle === undefined ? Effect.void : Effect.ensuring(Effect.suspend(settle), this.payEach)
  })

  // The request.

  private ask(ask: Ask, at: At): Asking {
    if (at.isRepeated) {
      this.repeated = ask
      // Runs inside its calls, resumed first, do not get the amount kept for its last request.
      const { reserved } = Accounts.noteOf(at.noted)
      if (reserved !== undefined && this.mayFinalize) Accounts.keepFor(this.account, reserved)
      return ask
    }
    // A request still open here was never made: the rules are asked again.
    const [, settling] = this.settle(undefined, false)
    if (settling === Effect.void) return this.reserving(ask, at)
    return Effect.flatMap(settling, () => {
      const decided = this.reserving(ask, at)
      return Effect.isEffect(decided) ? decided : Effect.succeed(decided)
    })
  }

  private reserving(ask: Ask, at: At): Asking {
    const { isOwner, members, own } = this.chain
    const { heard, lost: before, reserved: taken, settled } = Accounts.noteOf(at.noted)
    // A request without a reply was lost in a crash.
    const lost = taken === undefined ? before : Accounts.sum(before, taken)
    if (taken !== undefined) this.account.add(taken)
    this.crashed = undefined
    const tokens = this.estimated(ask, at)
    const wanted: Array<Accounts.Wanted> = []
    for (const member of members) {
      const amount = this.amountFor(member, ask, at, tokens)
      if (amount === undefined) return ended(member.account, "money", { reason: "unpriced" })
      if (member === own && this.mayFinalize) Accounts.keepFor(member.account, amount)
      wanted.push({ account: member.account, amount, isLast: member === own && isOwner && at.last !== undefined })
    }
    const reserved = wanted.at(-1)?.amount ?? Accounts.nothing
    const note = () => this.note({ settled, lost, heard, reserved })
    const given = Accounts.reserve(wanted, (reservation) => {
      this.open = { reservation, reserved, ask, outside: [], isSent: false }
    })
    const outside = members.flatMap((member) => member.outside ?? [])
    if (!Effect.isEffect(given) && outside.length === 0) return this.granted(given, ask, at, note, 0)
    return Effect.gen({ self: this }, function*() {
      const asked = yield* Clock.currentTimeMillis
      const reservation = Effect.isEffect(given) ? yield* heldUp(given) : given
      if (reservation._tag === "Reservation") {
        const request = requestOf(ask, at, reserved)
        for (const account of outside) {
          // A stop may come after the account has reserved, and before it reports that.
          this.open?.outside.push([account, request])
          if (yield* heldUp(account.reserve(request))) continue
          this.open?.outside.pop()
          yield* this.settle(undefined, false)[1]
          return end({ _tag: "RuleEnded", rule: name, status: "completed", detail: { reason: "refused" } })
        }
      }
      return this.granted(reservation, ask, at, note, (yield* Clock.currentTimeMillis) - asked)
    })
  }

  /** Returns the granted request. If an account is exhausted, returns a last step or the end instead. */
  private granted(
    given: Accounts.Reservation | Accounts.Exhausted,
    ask: Ask,
    at: At,
    note: () => Schema.Json,
    waitedMillis: number
  ): Asked | Last | End {
    if (given._tag === "Exhausted") {
      const isClosed = given.account === this.account && this.mayFinalize && at.last === undefined
      return isClosed ? last(name) : ended(given.account, given.resource)
    }
    const { open } = this
    const adapter = telling(ask.adapter, () => {
      if (open !== undefined) open.isSent = true
    })
    const attributes = {
      ...ask.attributes,
      "heddle.budget.spent": Accounts.partOf(this.account.spent, "tokens"),
      ...(waitedMillis === 0 ? {} : { "heddle.budget.waited_ms": waitedMillis })
    }
    return { _tag: "Ask", ask: { ...ask, adapter, attributes }, note: note() }
  }

  /** Returns the amount a request reserves on an account, or `undefined` if it needs a price but has no price. */
  private amountFor(
    { account: { bounds }, choices: { estimate, onUnpriced, outputReserve } }: Member,
    ask: Ask,
    at: At,
    tokens: number
  ): Accounts.Amount | undefined {
    const inputTokens = estimate === undefined
      ? tokens
      : counted(estimate({ messages: ask.view ?? SharedMessages.list(at.thread) }), "Budget.make: estimate")
    const outputTokens = ask.template.maxTokens ?? outputReserve
    const money = this.tariff.of(ask, Response.usage({ inputTokens, outputTokens }))
    if (money === undefined && bounds.money !== undefined && onUnpriced === "refuse") return undefined
    return { calls: 1, inputTokens, outputTokens, money: money ?? 0 }
  }

  /** Estimates a request's tokens: the last reply's tokens, plus later messages. */
  private estimated(ask: Ask, { steps, thread }: At): number {
    const { system = "", template: { tools }, view } = ask
    if (this.sizeOf?.tools !== tools) this.sizeOf = { tools, characters: JSON.stringify(tools).length }
    const around = system.length + this.sizeOf.characters
    const all = this.counter.of(thread)
    if (view !== undefined) return tokensOf(around + lengthOf(view))
    const step = steps.at(-1)
    const { inputTokens = null, outputTokens } = step?.response.usage ?? {}
    if (step === undefined || inputTokens === null) return tokensOf(around + all)
    const since = SharedMessages.since(thread, SharedMessages.length(step.thread))
    return inputTokens + (outputTokens ?? 0) + tokensOf(lengthOf(step.toolResults) + lengthOf(since))
  }
}

/** Returns a request as seen by a caller's account. */
const requestOf = ({ adapter, template }: Ask, { attempt, requestId, stepIndex }: At, amount: Accounts.Amount) => ({
  id: `${requestId}/${stepIndex}/${attempt + 1}`,
  provider: adapter.provider ?? "_OTHER",
  model: template.model ?? adapter.model,
  amount
})

/** Returns the end for an insufficient account. */
const ended = ({ bounds, spent }: Accounts.Account, resource: Accounts.Resource, more: Json.JsonObject = {}): End =>
  end({
    _tag: "RuleEnded",
    rule: name,
    status: "completed",
    detail: { resource, limit: bounds[resource] ?? 0, spent: Accounts.partOf(spent, resource), ...more }
  })

/** A budget, as opened by a run. */
export interface Opened {
  readonly bounds: Accounts.Bounds
  readonly choices: Choices
  readonly outside?: Outside
}

/** Opens an account within the enclosing ones. */
export const opened = (budget: Opened, around: Spender | undefined): Spender =>
  around instanceof Chain ? around.within(budget) : new Chain([], budget)
