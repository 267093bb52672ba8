/**
 * The rule of budgets: each request reserves on the accounts around its run, and its reply is settled on them. It comes
 * with the value of `Budget.make`, so that runs without one do not load it.
 *
 * A run has two rules of this name. The first one settles a reply before any other rule hears it, and the last one
 * reserves for the request that the others have made.
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
import * as EventJson from "../fold/eventJson.ts"
import * as SharedMessages from "../fold/sharedMessages.ts"
import * as Json from "../json.ts"
import * as Accounts from "../permits/account.ts"
import { CurrentRunning } from "../stop/ownedFibers.ts"
import {
  type Ask,
  type At,
  CurrentBudget,
  end,
  type Hooks,
  type Inside,
  keep,
  last,
  noNotes,
  noteIn,
  type Rule,
  type Spender
} from "./rules.ts"
import * as Turns from "./turns.ts"

const name = "budget"

/** A request for which a price is asked, or its reply. */
export interface Priced {
  readonly provider: string
  readonly model: string
  readonly usage: Response.Usage
}

/** The prices of models, in millionths of the currency. Public as `Pricing.Prices`. */
export const Prices: Context.Reference<(call: Priced) => number | undefined> = Context.Reference<
  (call: Priced) => number | undefined
>("heddle/Pricing/Prices", { defaultValue: () => () => undefined })

/** The currency of prices. Public as `Pricing.Currency`. */
export const Currency: Context.Reference<string> = Context.Reference<string>("heddle/Pricing/Currency", {
  defaultValue: () => "USD"
})

/** A request as an account of the caller's own sees it. */
interface Reserved {
  readonly id: string
  readonly provider: string
  readonly model: string | undefined
  readonly amount: Accounts.Amount
}

/** An account of the caller's own. */
interface Outside {
  readonly reserve: (reserved: Reserved) => Effect.Effect<boolean>
  readonly settle: (reserved: Reserved, spent: Accounts.Amount) => Effect.Effect<unknown>
}

/** The choices of a budget. */
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

/** The note of a step: what its requests have spent, what a crash took, and what the open request has reserved. */
interface Note {
  readonly settled?: Accounts.Amount
  readonly lost?: Accounts.Amount
  readonly reserved?: Accounts.Amount
  /** The whole account so far, of a budget that counts over the runs of a session. */
  readonly session?: Accounts.Amount
}

const noteOf = (notes: At["noted"]): Note => (noteIn(notes, name) as Note | undefined) ?? {}

const sum = (...amounts: ReadonlyArray<Accounts.Amount | undefined>): Accounts.Amount =>
  amounts.reduce<Accounts.Amount>(
    (all, amount) => amount === undefined ? all : Accounts.plus(all, amount),
    Accounts.nothing
  )

/** Returns what the requests of a step have cost, those included that a crash took. */
const costOf = (note: Note): Accounts.Amount => sum(note.settled, note.lost)

// The size of a request.

/** The characters of a part that is no text: 1,500 tokens. */
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

/** Counts the characters of a thread that grows. A thread that has become shorter is counted anew. */
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

/** Checks what a function of the caller's own has returned: an amount that is no number would leave no bound. */
const counted = (value: unknown, source: string): number => {
  if (typeof value === "number" && Number.isFinite(value) && value >= 0) return Math.ceil(value)
  throw new TypeError(`${source} returned ${String(value)}; return a number, 0 or more`)
}

// The reply.

/** The facts of a reply so far: its characters, its usage and its model, so that it can be settled wherever it ends. */
class Heard {
  characters = 0
  usage: Response.Usage | null = null
  model: string | undefined
  isWhole = false

  add(event: Event.Event): void {
    switch (event._tag) {
      case "TextDelta":
      case "ReasoningDelta":
        this.characters += event.delta.length
        return
      case "ToolCallDelta":
        this.characters += event.argumentsDelta.length
        return
      case "RawChunk":
        if (EventJson.isUsage(event)) this.usage = Response.usage((event.chunk as { usage: Json.JsonObject }).usage)
        return
      case "MessageCompleted":
        this.isWhole = true
        this.model = event.model ?? this.model
        if (Json.isObject(event.usage)) this.usage = Response.usage(event.usage)
    }
  }
}

/** The errors behind which the model may have worked, also where nothing has come. */
const unclear: ReadonlySet<unknown> = new Set(["timeout", "network_error", "malformed_response", "unknown"])

/** A granted request. */
interface Open {
  readonly reservation: Accounts.Reservation
  readonly reserved: Accounts.Amount
  readonly outside: ReadonlyArray<readonly [Outside, Reserved]>
  readonly ask: Ask
  readonly heard: Heard
  /** Tells whether the request has gone out. */
  isSent: boolean
}

/**
 * Returns the usage by which a reply is settled: `null` where the reservation counts, `undefined` where nothing does.
 */
const settledBy = (
  { heard, isSent }: Pick<Open, "heard" | "isSent">,
  error: unknown,
  hasSaid: boolean
): Response.Usage | null | undefined => {
  const { characters, isWhole, usage } = heard
  if (!isSent) return undefined
  if (isWhole) return usage
  const isRefused = error !== undefined && !hasSaid && !unclear.has((error as Partial<Adapter.AdapterError>).reason)
  if (isRefused || usage === null) return isRefused ? usage ?? undefined : null
  return { ...usage, outputTokens: Math.max(usage.outputTokens ?? 0, tokensOf(characters)) }
}

/** A date at the end of a model's name. */
const dated = /-\d{4}-?\d{2}-?\d{2}$/

/** The prices of one run. */
class Tariff {
  private readonly prices: (call: Priced) => number | undefined
  private readonly isDollar: boolean

  constructor(prices: (call: Priced) => number | undefined, currency: string) {
    this.prices = prices
    this.isDollar = currency === "USD"
  }

  /** Returns the price by the first name that has one: as requested, as replied, then without a date at its end. */
  of({ adapter, template }: Ask, usage: Response.Usage, replied?: string): number | undefined {
    const reported = usage.totalCost
    if (this.isDollar && reported !== null) return Math.ceil(reported * 1_000_000)
    const provider = adapter.provider ?? "_OTHER"
    const names = [template.model ?? adapter.model, replied].filter((model) => model !== undefined)
    for (const model of [...names, ...names.map((model) => model.replace(dated, ""))]) {
      const price = this.prices({ provider, model, usage })
      if (price !== undefined) return counted(price, "Pricing.Prices")
    }
    return undefined
  }
}

const usageOf = (inputTokens: number, outputTokens: number): Response.Usage =>
  Response.usage({ inputTokens, outputTokens })

/** Returns the amount of what a reply has used, with the reservation for what it does not say. */
const amountOf = (usage: Response.Usage, reserved: Accounts.Amount, money: number | undefined): Accounts.Amount => ({
  calls: 1,
  inputTokens: usage.inputTokens ?? reserved.inputTokens,
  outputTokens: usage.outputTokens ?? reserved.outputTokens,
  money: money ?? 0
})

/** Returns an adapter that tells when a request goes out. */
const telling = (adapter: Adapter.Service, onSent: () => void): Adapter.Service =>
  Object.create(adapter, {
    stream: {
      value: (request: Adapter.Request) => {
        onSent()
        return adapter.stream(request)
      }
    }
  }) as Adapter.Service

/** Waits for what other runs have reserved. The time does not count as idle time of the handlers around the run. */
const heldUp = <A>(wait: Effect.Effect<A>): Effect.Effect<A> =>
  Effect.flatMap(CurrentRunning, (running) => running === undefined ? wait : running.heldUp(wait))

/** The accounts around a run, and what the run spends on them. */
class Chain implements Spender {
  private readonly members: ReadonlyArray<Member>
  /** The account of the run itself: its budget, or one without bounds. */
  private readonly own: Member
  /** Tells whether the run has opened an account with bounds. */
  private readonly isOwner: boolean

  constructor(around: ReadonlyArray<Member>, own: Member, isOwner: boolean) {
    this.members = [...around, own]
    this.own = own
    this.isOwner = isOwner
  }

  within(budget?: Opened): Chain {
    return new Chain(this.members, memberOf(budget), budget !== undefined)
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
    const { isOwner, members, own, own: { account } } = this
    const isOfSession = own.choices.scope === "session"
    const counter = new Counted()
    let tariff = new Tariff(() => undefined, "USD")
    let open: Open | undefined
    /** The request of a recorded reply. */
    let repeated: Ask | undefined
    let hasBegun = false
    /** The cost of the runs inside its calls, from before the run was resumed. */
    let inside = Accounts.nothing
    let sizeOf: { readonly tools: unknown; readonly characters: number } | undefined

    const session = (): Pick<Note, "session"> => isOfSession ? { session: own.account.spent } : {}

    /** Counts what the run has spent before it was resumed. */
    const begin = (at: Pick<At, "noted" | "notes">): void => {
      if (hasBegun) return
      hasBegun = true
      for (const notes of at.notes) account.spent = sum(account.spent, costOf(noteOf(notes)))
      account.spent = sum(account.spent, costOf(noteOf(at.noted)), inside)
    }

    /** Returns what a step of a run inside has cost: by its note, and by its reply where the note is of its request. */
    const costInside = ({ notes, usage }: Inside): Accounts.Amount => {
      const { reserved, ...note } = noteOf(notes)
      if (reserved === undefined) return costOf(note)
      const isReported = usage !== undefined && usage !== null
      return sum(costOf(note), isReported ? amountOf(usage, reserved, reserved.money) : reserved)
    }

    const toolsLength = ({ system = "", template: { tools } }: Ask): number => {
      if (sizeOf?.tools !== tools) sizeOf = { tools, characters: JSON.stringify(tools).length }
      return system.length + sizeOf.characters
    }

    /** Returns the tokens of a request: those of the last reply, and those of the messages since. */
    const estimated = (ask: Ask, { steps, thread }: At): number => {
      const all = counter.of(thread)
      if (ask.view !== undefined) return tokensOf(toolsLength(ask) + lengthOf(ask.view))
      const step = steps.at(-1)
      const { inputTokens = null, outputTokens } = step?.response.usage ?? {}
      if (step === undefined || inputTokens === null) return tokensOf(toolsLength(ask) + all)
      const since = SharedMessages.since(thread, SharedMessages.length(step.thread))
      return inputTokens + (outputTokens ?? 0) + tokensOf(lengthOf(step.toolResults) + lengthOf(since))
    }

    const sizeFor = ({ choices: { estimate, outputReserve } }: Member, ask: Ask, at: At, tokens: number) => {
      const inputTokens = estimate === undefined
        ? tokens
        : counted(estimate({ messages: ask.view ?? SharedMessages.list(at.thread) }), "Budget.make: estimate")
      return { inputTokens, outputTokens: ask.template.maxTokens ?? outputReserve }
    }

    const ended = ({ account }: Member, resource: Accounts.Resource, more: Json.JsonObject = {}) =>
      end({
        _tag: "RuleEnded",
        rule: name,
        status: "completed",
        detail: {
          resource,
          limit: account.bounds[resource] ?? 0,
          spent: Accounts.partOf(account.spent, resource),
          ...more
        }
      })

    /**
     * Settles the open request. Accounts of the caller's own are settled by the returned effect, each also where
     * another one dies. Where the price of the reply throws, the reservation counts, and the effect dies.
     */
    const settle = (error: unknown, hasSaid: boolean): readonly [Accounts.Amount, Effect.Effect<unknown>] => {
      if (open === undefined) return [Accounts.nothing, Effect.void]
      const { ask, heard, isSent, outside, reservation, reserved } = open
      open = undefined
      let usage = settledBy({ heard, isSent }, error, hasSaid)
      let money: number | undefined
      let settling: Effect.Effect<unknown> = Effect.void
      try {
        money = usage ? tariff.of(ask, usage, heard.model) : undefined
      } catch (defect) {
        usage = null
        settling = Effect.die(defect)
      }
      const spentOf = (reserved: Accounts.Amount): Accounts.Amount =>
        usage === undefined ? Accounts.nothing : usage === null ? reserved : amountOf(usage, reserved, money)
      reservation.settle(spentOf)
      for (const [account, given] of outside) {
        settling = Effect.ensuring(settling, Effect.suspend(() => account.settle(given, spentOf(given.amount))))
      }
      return [spentOf(reserved), settling]
    }

    const first: Rule = {
      name,
      reply: ({ error, hasSaid, usage }, at) => {
        begin(at)
        const noted = noteOf(at.noted)
        if (at.isRepeated) {
          // The reply was recorded, and its note was not: it is settled by what it reported.
          const { reserved = Accounts.nothing } = noted
          const before = noted.settled ?? Accounts.nothing
          const own = usage && Response.usage({
            ...usage,
            inputTokens: Math.max(0, (usage.inputTokens ?? 0) - before.inputTokens),
            outputTokens: Math.max(0, (usage.outputTokens ?? 0) - before.outputTokens)
          })
          const money = own === null || repeated === undefined ? reserved.money : tariff.of(repeated, own)
          const spent = own === null ? reserved : amountOf(own, reserved, money)
          account.spent = sum(account.spent, spent)
          return { ...keep, note: written({ settled: sum(before, spent), lost: noted.lost, ...session() }) }
        }
        if (open === undefined) return keep
        const [spent, settling] = settle(error, hasSaid)
        const kept = { ...keep, note: written({ settled: sum(noted.settled, spent), lost: noted.lost, ...session() }) }
        return settling === Effect.void ? kept : Effect.as(Effect.uninterruptible(settling), kept)
      }
    }

    const ask = (ask: Ask, at: At): Asking => {
      begin(at)
      if (at.isRepeated) {
        repeated = ask
        return ask
      }
      if (open !== undefined) {
        // The request before was not made: the rules are asked anew.
        const [, settling] = settle(undefined, false)
        if (settling !== Effect.void) {
          return Effect.flatMap(settling, () => {
            const decided = reserving(ask, at)
            return Effect.isEffect(decided) ? decided : Effect.succeed(decided)
          })
        }
      }
      return reserving(ask, at)
    }

    const reserving = (ask: Ask, at: At): Asking => {
      const noted = noteOf(at.noted)
      // A request without a reply: a crash took it.
      const lost = noted.reserved === undefined ? noted.lost : sum(noted.lost, noted.reserved)
      if (noted.reserved !== undefined) own.account.spent = sum(own.account.spent, noted.reserved)
      const tokens = estimated(ask, at)
      const isLast = isOwner && at.last !== undefined
      const wanted: Array<Accounts.Wanted> = []
      for (const member of members) {
        const { inputTokens, outputTokens } = sizeFor(member, ask, at, tokens)
        const money = tariff.of(ask, usageOf(inputTokens, outputTokens))
        if (
          money === undefined && member.account.bounds.money !== undefined && member.choices.onUnpriced === "refuse"
        ) return ended(member, "money", { reason: "unpriced" })
        const amount = { calls: 1, inputTokens, outputTokens, money: money ?? 0 }
        const isOwn = member === own
        if (isOwn && isOwner && !isStep && member.choices.onExhausted === "finalize") {
          Accounts.keepFor(member.account, amount)
        }
        wanted.push({ account: member.account, amount, isLast: isOwn && isLast })
      }
      const reserved = wanted.at(-1)?.amount ?? Accounts.nothing
      const outside = members.flatMap(({ outside }): Open["outside"] =>
        outside === undefined ? [] : [[outside, {
          id: `${at.requestId}/${at.stepIndex}/${at.attempt + 1}`,
          provider: ask.adapter.provider ?? "_OTHER",
          model: ask.template.model ?? ask.adapter.model,
          amount: reserved
        }]]
      )
      const take = (reservation: Accounts.Reservation): void => {
        open = { reservation, reserved, outside: [], ask, heard: new Heard(), isSent: false }
      }
      const granted = (waitedMillis: number) => (given: Accounts.Reservation | Accounts.Exhausted) => {
        if (given._tag === "Exhausted") {
          const mayFinalize = given.account === own.account && !isStep && at.last === undefined &&
            own.choices.onExhausted === "finalize"
          const member = members.find(({ account }) => account === given.account) ?? own
          return mayFinalize ? last(name) : ended(member, given.resource)
        }
        const sent = () => {
          if (open !== undefined) open.isSent = true
        }
        const attributes = {
          "heddle.budget.spent": Accounts.partOf(own.account.spent, "tokens"),
          ...(waitedMillis === 0 ? {} : { "heddle.budget.waited_ms": waitedMillis })
        }
        return {
          _tag: "Ask" as const,
          ask: { ...ask, adapter: telling(ask.adapter, sent), attributes: { ...ask.attributes, ...attributes } },
          note: written({ settled: noted.settled, lost, reserved, ...session() })
        }
      }
      const given = Accounts.reserve(wanted, take)
      if (!Effect.isEffect(given) && outside.length === 0) return granted(0)(given)
      return Effect.gen(function*() {
        const before = yield* Clock.currentTimeMillis
        const reservation = Effect.isEffect(given) ? yield* heldUp(given) : given
        if (reservation._tag === "Reservation") {
          for (const [account, request] of outside) {
            const isGranted = yield* heldUp(account.reserve(request))
            if (isGranted && open !== undefined) open = { ...open, outside: [...open.outside, [account, request]] }
            if (isGranted) continue
            yield* settle(undefined, false)[1]
            return end({ _tag: "RuleEnded", rule: name, status: "completed", detail: { reason: "refused" } })
          }
        }
        return granted((yield* Clock.currentTimeMillis) - before)(reservation)
      })
    }

    const hooks = {
      ask,
      hear: (event: Event.Event) => {
        open?.heard.add(event)
        return []
      },
      handlers: this.services,
      spent: (notes: At["notes"]) => {
        // A run that is resumed behind its last step asks for nothing.
        begin({ notes, noted: noNotes })
        return this.spent
      },
      ...(isOfSession ? { keptNote: () => written(session()) } : {})
    }
    return [first, {
      name,
      ...(isOfSession ? { keeps: "session" as const } : {}),
      open: ({ inside: steps = Effect.succeed([]), kept }) =>
        Effect.gen(function*() {
          tariff = new Tariff(yield* Prices, yield* Currency)
          inside = sum(...(yield* steps).map(costInside))
          if (isOfSession) {
            // A run that was given up may have left its note with an open request.
            const { reserved, session } = noteOf(kept)
            own.account.spent = sum(own.account.spent, session, reserved)
          }
          // A run that its reader leaves settles what came of its reply.
          yield* Effect.addFinalizer(() => Effect.suspend(() => settle(undefined, true)[1]))
          return hooks
        })
    }]
  }
}

const written = (note: { readonly [Name in keyof Note]: Note[Name] | undefined }): Schema.Json => Json.toJson(note)

/** A budget as a run opens it. */
export interface Opened {
  readonly bounds: Accounts.Bounds
  readonly choices: Choices
  readonly outside?: Outside
}

const memberOf = (budget: Opened | undefined): Member => ({
  account: new Accounts.Account(budget?.bounds ?? {}),
  choices: budget?.choices ?? usual,
  outside: budget?.outside
})

/** Opens an account within those around. */
export const opened = (budget: Opened, around: Spender | undefined): Spender =>
  around instanceof Chain ? around.within(budget) : new Chain([], memberOf(budget), true)
