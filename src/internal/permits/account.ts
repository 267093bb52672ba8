/**
 * Accounts for run spending. A request reserves on all accounts around its run at once; its reply settles the
 * reservation. Requests are granted in order: a waiting request holds up later requests on the same account.
 *
 * Only requests under way hold a reservation. Held amounts therefore always return, and no request waits for ever.
 */
import * as Effect from "effect/Effect"
import type * as Response from "../../Response.ts"

/** Spent or reserved resources. */
export interface Amount {
  /** Model requests. */
  readonly calls: number
  /** Request tokens. */
  readonly inputTokens: number
  /** Reply tokens. */
  readonly outputTokens: number
  /** Money, in currency millionths. */
  readonly money: number
}

/** Resources an account can bound. */
const resources = ["calls", "inputTokens", "outputTokens", "tokens", "money"] as const

export type Resource = (typeof resources)[number]

/** Account bounds. A resource left out is unbounded. */
export type Bounds = { readonly [R in Resource]?: number | undefined }

export const nothing: Amount = { calls: 0, inputTokens: 0, outputTokens: 0, money: 0 }

const combined = (left: Amount, right: Amount, sign: 1 | -1): Amount => ({
  calls: left.calls + sign * right.calls,
  inputTokens: left.inputTokens + sign * right.inputTokens,
  outputTokens: left.outputTokens + sign * right.outputTokens,
  money: left.money + sign * right.money
})

export const plus = (left: Amount, right: Amount): Amount => combined(left, right, 1)

const minus = (left: Amount, right: Amount): Amount => combined(left, right, -1)

/**
 * Rounds an amount up, capped at the largest exact integer. Binary fraction errors do not count: 100 tokens at 0.07
 * are 7, not 8.
 */
export const roundedUp = (amount: number): number =>
  Math.min(Number.MAX_SAFE_INTEGER, Math.ceil(Number(amount.toPrecision(15))))

/** Returns one resource's number in an amount. */
export const partOf = (amount: Amount, resource: Resource): number =>
  resource === "tokens" ? amount.inputTokens + amount.outputTokens : amount[resource]

// Notes of the budget rule, which add up to a run's account.

/** Rule name, which its notes carry. */
export const rule = "budget"

type Notes = Readonly<Record<string, unknown>>

/** Usage figures by name. */
type Heard = Readonly<Record<string, number>>

/** A step's note: spending by its requests, losses in a crash, and the open request's reservation. */
export interface Note {
  readonly settled?: Amount
  readonly lost?: Amount
  readonly reserved?: Amount
  /** Usage reported so far by the step's replies, which the recorded reply's usage includes. */
  readonly heard?: Heard
  /** Whole account so far, for a budget counting across a session's runs. */
  readonly session?: Amount
}

export const noteOf = (notes: Notes): Note => Object.hasOwn(notes, rule) ? notes[rule] as Note | undefined ?? {} : {}

export const sum = (...amounts: ReadonlyArray<Amount | undefined>): Amount =>
  amounts.reduce<Amount>((all, amount) => amount === undefined ? all : plus(all, amount), nothing)

/** Returns the cost of a step's requests, including requests lost in a crash. */
export const costOf = (note: Note): Amount => sum(note.settled, note.lost)

/** Returns the amount used by a reply, with reserved amounts in place of unreported ones. */
export const amountOf = (usage: Response.Usage, reserved: Amount, money: number | undefined): Amount => ({
  calls: 1,
  inputTokens: roundedUp(usage.inputTokens ?? reserved.inputTokens),
  outputTokens: roundedUp(usage.outputTokens ?? reserved.outputTokens),
  money: money ?? 0
})

/** Returns the usage figures kept by a note. */
export const heardIn = (usage: Response.Usage | null): Heard | undefined =>
  usage === null
    ? undefined
    : Object.fromEntries(
      Object.entries(usage).flatMap(([name, count]) => typeof count === "number" ? [[name, count]] : [])
    )

/** Returns a recorded reply's own usage, without the step's discarded replies. */
export const lastUsage = (usage: Response.Usage, { heard = {} }: Note): Response.Usage => {
  const own = Object.entries(usage).flatMap(([name, all]) => {
    const before = heard[name]
    // A figure that has not grown was not reported again.
    return before === undefined || typeof all !== "number" ? [] : [[name, all > before ? all - before : null]]
  })
  return { ...usage, ...Object.fromEntries(own) }
}

/** A journaled step. */
export interface Step {
  readonly notes: Notes
  /** Reply usage. `null` if the reply reported none at all, left out while no reply is recorded. */
  readonly usage?: Response.Usage | null
}

/**
 * Returns the cost of a nested run's step: the cost in its note and, for an open reservation, the recorded reply's
 * cost, or the reserved amount without a reported usage.
 */
export const costInside = ({ notes, usage }: Step): Amount => {
  const { reserved, ...note } = noteOf(notes)
  if (reserved === undefined) return costOf(note)
  return sum(costOf(note), usage ? amountOf(lastUsage(usage, note), reserved, reserved.money) : reserved)
}

/** Returns a step with the cost of a call's requests, for a call whose runs have no journal. */
export const insideOf = (spent: Amount = nothing): Step => ({ notes: { [rule]: { settled: spent } } })

/** Returns `true` if the run's account belongs to its session. */
export const isOfSession = (steps: ReadonlyArray<Step>): boolean =>
  steps.some(({ notes }) => noteOf(notes).session !== undefined)

/**
 * Returns the session's notes after an abandoned run: the spending before the run, plus the cost of its steps and
 * nested runs. Unchanged if the account is not the session's.
 */
export const keptBehind = (kept: Notes, steps: ReadonlyArray<Step>, inside: ReadonlyArray<Step>): Notes =>
  isOfSession(steps)
    ? { ...kept, [rule]: { session: sum(noteOf(kept).session, ...[...steps, ...inside].map(costInside)) } }
    : kept

/** A request against one account. */
export interface Wanted {
  readonly account: Account
  readonly amount: Amount
  /** `true` for the last request of the run owning the account. It may use the kept amount. */
  readonly isLast: boolean
}

/** An account without enough, now and later. */
export interface Exhausted {
  readonly _tag: "Exhausted"
  readonly account: Account
  readonly resource: Resource
}

/** A granted request. Settling a second time changes nothing. */
export class Reservation {
  readonly _tag = "Reservation"
  private readonly wanted: ReadonlyArray<Wanted>
  private isOpen = true

  constructor(wanted: ReadonlyArray<Wanted>) {
    this.wanted = wanted
    for (const { account, amount } of wanted) account.hold(amount)
  }

  /** Releases the reservation and counts spending instead. `spentOf` maps each account's reserved amount. */
  settle(spentOf: (reserved: Amount) => Amount): void {
    if (!this.isOpen) return
    this.isOpen = false
    for (const { account, amount } of this.wanted) account.settle(amount, spentOf(amount))
    moved(this.wanted)
  }
}

interface Waiting {
  readonly wanted: ReadonlyArray<Wanted>
  readonly take: (given: Reservation | Exhausted) => void
}

export class Account {
  readonly bounds: Bounds
  /** Amount spent. */
  spent: Amount = nothing
  /** Amount kept for a last request of the run owning the account. */
  kept: Amount = nothing
  /** Waiting requests, in order. */
  readonly waiting = new Set<Waiting>()
  private held: Amount = nothing

  constructor(bounds: Bounds) {
    this.bounds = bounds
  }

  /** Returns the resource in short supply, and whether held reservations may still free enough. */
  lacking(
    { amount, isLast }: Omit<Wanted, "account">
  ): { readonly resource: Resource; readonly mayReturn: boolean } | undefined {
    for (const resource of resources) {
      const bound = this.bounds[resource]
      if (bound === undefined) continue
      // A last request grown beyond the kept amount takes whatever is left.
      const needed = isLast ? Math.min(partOf(amount, resource), partOf(this.kept, resource)) : partOf(amount, resource)
      const left = bound - partOf(this.spent, resource) - (isLast ? 0 : partOf(this.kept, resource))
      if (needed > left || left <= 0) return { resource, mayReturn: false }
      const held = partOf(this.held, resource)
      if (needed > left - held || left - held <= 0) return { resource, mayReturn: true }
    }
    return undefined
  }

  /** Returns the rest of each bound, after spent and reserved amounts. */
  get left(): { readonly [resource: string]: number } {
    return Object.fromEntries(resources.flatMap((resource) => {
      const bound = this.bounds[resource]
      return bound === undefined
        ? []
        : [[resource, Math.max(0, bound - partOf(this.spent, resource) - partOf(this.held, resource))] as const]
    }))
  }

  /** Counts spending without a reservation, such as spending before a run was resumed. */
  add(spent: Amount): void {
    this.spent = plus(this.spent, spent)
  }

  hold(amount: Amount): void {
    this.held = plus(this.held, amount)
  }

  settle(held: Amount, spent: Amount): void {
    this.held = minus(this.held, held)
    this.add(spent)
  }
}

/** Returns the result for a request now, or `undefined` while it must wait. */
const judged = (wanted: ReadonlyArray<Wanted>): Reservation | Exhausted | undefined => {
  let waits = false
  for (const { account, amount, isLast } of wanted) {
    const lacking = account.lacking({ amount, isLast })
    if (lacking?.mayReturn === false) return { _tag: "Exhausted", account, resource: lacking.resource }
    waits ||= lacking !== undefined
  }
  return waits ? undefined : new Reservation(wanted)
}

const isFirst = (waiting: Waiting): boolean =>
  waiting.wanted.every(({ account }) => account.waiting.values().next().value === waiting)

const leave = (waiting: Waiting): void => {
  for (const { account } of waiting.wanted) account.waiting.delete(waiting)
}

/** Decides about waiting requests on these accounts, in order, up to the first request that must wait longer. */
const moved = (changed: ReadonlyArray<Pick<Wanted, "account">>): void => {
  const accounts = changed.map(({ account }) => account)
  for (let account = accounts.pop(); account !== undefined; account = accounts.pop()) {
    const first = account.waiting.values().next().value
    if (first === undefined || !isFirst(first)) continue
    const given = judged(first.wanted)
    if (given === undefined) continue
    leave(first)
    accounts.push(...first.wanted.map(({ account }) => account))
    first.take(given)
  }
}

/** Keeps an amount for the last request of the run owning the account. */
export const keepFor = (account: Account, amount: Amount): void => {
  account.kept = amount
  moved([{ account }])
}

/**
 * Reserves on all accounts at once, or returns the exhausted account. Waits while held reservations may free enough;
 * interruption withdraws the request. `take` receives a reservation the moment it exists.
 */
export const reserve = (
  wanted: ReadonlyArray<Wanted>,
  take: (reservation: Reservation) => void
): Reservation | Exhausted | Effect.Effect<Reservation | Exhausted> => {
  const taken = (given: Reservation | Exhausted) => {
    if (given._tag === "Reservation") take(given)
    return given
  }
  const isBehind = wanted.some(({ account }) => account.waiting.size > 0)
  const given = isBehind ? undefined : judged(wanted)
  if (given !== undefined) return taken(given)
  return Effect.callback<Reservation | Exhausted>((resume) => {
    const waiting: Waiting = { wanted, take: (given) => resume(Effect.succeed(taken(given))) }
    for (const { account } of wanted) account.waiting.add(waiting)
    // Amounts may have been returned since the request was judged, and nothing else may be held.
    moved(wanted)
    return Effect.sync(() => {
      leave(waiting)
      moved(wanted)
    })
  })
}
