/**
 * Accounts of what runs spend. A request reserves on all accounts around its run at once, and its reply is settled on
 * them. Who asks first is granted first: a request that waits holds up those behind it on the same account.
 *
 * Only a request whose reply is under way holds a reservation. What is held therefore comes back by itself, and no
 * request waits for ever.
 */
import * as Effect from "effect/Effect"
import type * as Response from "../../Response.ts"

/** An amount. Money is in millionths of the currency. */
export interface Amount {
  readonly calls: number
  readonly inputTokens: number
  readonly outputTokens: number
  readonly money: number
}

/** The resources that an account may bound. */
const resources = ["calls", "inputTokens", "outputTokens", "tokens", "money"] as const

export type Resource = (typeof resources)[number]

/** The bounds of an account. What is left out has no bound. */
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
 * Rounds an amount up, to the largest whole number that is exact at most. The error of binary fractions is no part of
 * an amount: 100 tokens at 0.07 are 7, not 8.
 */
export const roundedUp = (amount: number): number =>
  Math.min(Number.MAX_SAFE_INTEGER, Math.ceil(Number(amount.toPrecision(15))))

/** Returns the part of an amount that a bound is about. */
export const partOf = (amount: Amount, resource: Resource): number =>
  resource === "tokens" ? amount.inputTokens + amount.outputTokens : amount[resource]

// The notes of the rule of budgets, of which the account of a run is the sum.

/** The name of the rule, and so of its notes. */
export const rule = "budget"

type Notes = Readonly<Record<string, unknown>>

/** The note of a step: what its requests have spent, what a crash took, and what the open request has reserved. */
export interface Note {
  readonly settled?: Amount
  readonly lost?: Amount
  readonly reserved?: Amount
  /** The whole account so far, of a budget that counts over the runs of a session. */
  readonly session?: Amount
}

export const noteOf = (notes: Notes): Note => Object.hasOwn(notes, rule) ? notes[rule] as Note | undefined ?? {} : {}

export const sum = (...amounts: ReadonlyArray<Amount | undefined>): Amount =>
  amounts.reduce<Amount>((all, amount) => amount === undefined ? all : plus(all, amount), nothing)

/** Returns what the requests of a step have cost, those included that a crash took. */
export const costOf = (note: Note): Amount => sum(note.settled, note.lost)

/** Returns the amount of what a reply has used, with the reservation for what it does not say. */
export const amountOf = (usage: Response.Usage, reserved: Amount, money: number | undefined): Amount => ({
  calls: 1,
  inputTokens: roundedUp(usage.inputTokens ?? reserved.inputTokens),
  outputTokens: roundedUp(usage.outputTokens ?? reserved.outputTokens),
  money: money ?? 0
})

/** A step as a journal has it. */
interface Step {
  readonly notes: Notes
  /** The usage of its reply. `null` where the reply reported none. Left out while no reply is recorded. */
  readonly usage?: Response.Usage | null
}

/** Returns the cost of a step of a run inside: by its note, and by its reply where the note is of its request. */
export const costInside = ({ notes, usage }: Step): Amount => {
  const { reserved, ...note } = noteOf(notes)
  if (reserved === undefined) return costOf(note)
  return sum(costOf(note), usage ? amountOf(usage, reserved, reserved.money) : reserved)
}

/** Tells whether the account of a run is that of its session. */
export const isOfSession = (steps: ReadonlyArray<Step>): boolean =>
  steps.some(({ notes }) => noteOf(notes).session !== undefined)

/**
 * Returns the notes for the session behind a run that is given up: what it was given, and the cost of its steps and of
 * the runs inside it. The notes stay as they are where the account of the run is another one.
 */
export const keptBehind = (kept: Notes, steps: ReadonlyArray<Step>, inside: ReadonlyArray<Step>): Notes =>
  isOfSession(steps)
    ? { ...kept, [rule]: { session: sum(noteOf(kept).session, ...[...steps, ...inside].map(costInside)) } }
    : kept

/** A request as one account sees it. */
export interface Wanted {
  readonly account: Account
  readonly amount: Amount
  /** `true` for the last request of the run that opened the account, which may use what is kept for it. */
  readonly isLast: boolean
}

/** An account that does not suffice, and will not. */
export interface Exhausted {
  readonly _tag: "Exhausted"
  readonly account: Account
  readonly resource: Resource
}

/** A granted request. It is settled once: a second time changes nothing. */
export class Reservation {
  readonly _tag = "Reservation"
  private readonly wanted: ReadonlyArray<Wanted>
  private isOpen = true

  constructor(wanted: ReadonlyArray<Wanted>) {
    this.wanted = wanted
    for (const { account, amount } of wanted) account.hold(amount)
  }

  /** Gives the reservation back, and counts what was spent in its place, by what each account has reserved. */
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
  /** The amount that was spent. */
  spent: Amount = nothing
  /** The amount that is kept for a last request of the run that opened the account. */
  kept: Amount = nothing
  /** The requests that wait, in the order in which they asked. */
  readonly waiting = new Set<Waiting>()
  private held: Amount = nothing

  constructor(bounds: Bounds) {
    this.bounds = bounds
  }

  /** Returns the resource of which there is not enough, and whether held reservations may still give it back. */
  lacking(
    { amount, isLast }: Omit<Wanted, "account">
  ): { readonly resource: Resource; readonly mayReturn: boolean } | undefined {
    for (const resource of resources) {
      const bound = this.bounds[resource]
      if (bound === undefined) continue
      // A last request that has grown beyond what is kept takes what there is.
      const needed = isLast ? Math.min(partOf(amount, resource), partOf(this.kept, resource)) : partOf(amount, resource)
      const left = bound - partOf(this.spent, resource) - (isLast ? 0 : partOf(this.kept, resource))
      if (needed > left || left <= 0) return { resource, mayReturn: false }
      const held = partOf(this.held, resource)
      if (needed > left - held || left - held <= 0) return { resource, mayReturn: true }
    }
    return undefined
  }

  /** Returns what is left of each bound, without what is reserved. */
  get left(): { readonly [resource: string]: number } {
    return Object.fromEntries(resources.flatMap((resource) => {
      const bound = this.bounds[resource]
      return bound === undefined
        ? []
        : [[resource, Math.max(0, bound - partOf(this.spent, resource) - partOf(this.held, resource))] as const]
    }))
  }

  /** Counts what was spent without a reservation, such as before a run was resumed. */
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

/** Returns what a request gets now, and nothing while it has to wait. */
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

/** Grants the requests that wait for these accounts, as far as there is enough, in their order. */
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

/** Keeps an amount for the last request of the run that opened the account. */
export const keepFor = (account: Account, amount: Amount): void => {
  account.kept = amount
  moved([{ account }])
}

/**
 * Reserves on all accounts at once, or says which of them is exhausted. While others hold what may come back, it waits;
 * an interruption takes the request back. `take` receives a reservation in the moment in which it is made.
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
    // Nothing of what it needs may come back any more.
    moved(wanted)
    return Effect.sync(() => {
      leave(waiting)
      moved(wanted)
    })
  })
}
