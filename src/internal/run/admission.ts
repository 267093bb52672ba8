/**
 * Admission: a pure state machine deciding which calls may run next. Calls are admitted first come, first served.
 * Shared calls overlap up to a bound; an exclusive call waits until nothing runs, and blocks all later calls.
 * Handlers still running outside this queue, from an earlier turn or after their call's answer, count while alive: they
 * never run beside an exclusive call, and within their grace period they count toward the bound.
 */
import type * as Types from "effect/Types"

export interface Ticket {
  readonly index: number
  readonly isExclusive: boolean
}

/** Handlers in the run without a place in the queue. */
export interface Outsiders {
  /** Number of live handlers. They keep exclusive calls out. */
  readonly alive: number
  /** Number of live handlers not given up. They count toward the bound. */
  readonly occupying: number
  /** Number of live exclusive handlers. They keep every call out. */
  readonly exclusive: number
}

export const noOutsiders: Outsiders = { alive: 0, occupying: 0, exclusive: 0 }

export interface Admission<T extends Ticket = Ticket> {
  readonly bound: number
  readonly queue: ReadonlyArray<T>
  /** Number of admitted calls leading the `queue`. The queue is emptied once all its calls are admitted. */
  readonly admitted: number
  readonly shared: number
  readonly isExclusiveRunning: boolean
  readonly outsiders: Outsiders
}

export const make = <T extends Ticket>(bound: number, queue: ReadonlyArray<T> = []): Admission<T> => ({
  bound,
  queue,
  admitted: 0,
  shared: 0,
  isExclusiveRunning: false,
  outsiders: noOutsiders
})

const isIdle = (state: Admission): boolean => state.shared === 0 && !state.isExclusiveRunning

const fits = (
  ticket: Ticket,
  { bound, isExclusiveRunning, shared }: Pick<Admission, "bound" | "shared" | "isExclusiveRunning">,
  outsiders: Outsiders
): boolean =>
  ticket.isExclusive
    ? shared === 0 && !isExclusiveRunning && outsiders.alive === 0
    : !isExclusiveRunning && outsiders.exclusive === 0 && shared + outsiders.occupying < bound

/** Admits tickets from the head of the queue, up to the first that may not start. */
export const admit = <T extends Ticket>(
  { admitted, bound, isExclusiveRunning, outsiders: before, queue, shared }: Admission<T>,
  outsiders = before
): readonly [ReadonlyArray<T>, Admission<T>] => {
  const next: Types.Mutable<Admission<T>> = { bound, queue, admitted, shared, isExclusiveRunning, outsiders }
  for (let ticket = queue[admitted]; ticket !== undefined; ticket = queue[next.admitted]) {
    if (!fits(ticket, next, outsiders)) break
    next.admitted++
    next.isExclusiveRunning = ticket.isExclusive
    if (!ticket.isExclusive) next.shared++
  }
  const isEmptied = next.admitted === queue.length
  const tickets = admitted === 0 && isEmptied ? queue : queue.slice(admitted, next.admitted)
  if (isEmptied) {
    next.queue = []
    next.admitted = 0
  }
  return [tickets, next]
}

/** Frees the place of an ended call. */
export const release = <T extends Ticket>(state: Admission<T>, ticket: Ticket): Admission<T> =>
  ticket.isExclusive ? { ...state, isExclusiveRunning: false } : { ...state, shared: state.shared - 1 }

/** Appends calls to the queue. */
export const enqueue = <T extends Ticket>(state: Admission<T>, tickets: ReadonlyArray<T>): Admission<T> => ({
  ...state,
  queue: isWaiting(state) ? [...waiting(state), ...tickets] : tickets,
  admitted: 0
})

/** Sets the handlers now running outside the queue. */
export const withOutsiders = <T extends Ticket>(state: Admission<T>, outsiders: Outsiders): Admission<T> => ({
  ...state,
  outsiders
})

/** Returns the head of the queue if only outsiders keep it out: it would wait for a handler that may never end. */
export const stuck = <T extends Ticket>(state: Admission<T>): T | undefined => {
  const head = state.queue[state.admitted]
  return head !== undefined && isIdle(state) && !fits(head, state, state.outsiders) ? head : undefined
}

/**
 * Returns `true` if the head is a shared call kept out by the bound: it is stuck only until outsiders lose their
 * places, at the latest when their grace period ends.
 */
export const isCrowdedOut = (state: Admission): boolean => {
  const head = state.queue[state.admitted]
  return head !== undefined && !head.isExclusive && fits(head, state, { ...state.outsiders, occupying: 0 })
}

/** Removes the queue's head without running it. */
export const skip = <T extends Ticket>(state: Admission<T>): Admission<T> => ({
  ...state,
  admitted: state.admitted + 1
})

/** Returns `true` if any queued call is not admitted yet. */
export const isWaiting = (state: Admission): boolean => state.admitted < state.queue.length

/** Returns the calls not admitted yet. */
export const waiting = <T extends Ticket>(state: Admission<T>): ReadonlyArray<T> => state.queue.slice(state.admitted)

/**
 * Returns the waiting calls among the last `count` in the queue, each with its reason and the preceding exclusive
 * calls. The reason is an exclusive call, running or due no later than this call, or else the bound.
 */
export const waitingOf = <T extends Ticket>(
  state: Admission<T>,
  count: number
): ReadonlyArray<readonly [T, "exclusive" | "permit", exclusive: ReadonlyArray<T>]> => {
  const all = waiting(state)
  const isShutOut = state.isExclusiveRunning || state.outsiders.exclusive > 0
  const first = isShutOut ? 0 : all.findIndex(({ isExclusive }) => isExclusive)
  const added = Math.max(0, all.length - count)
  let exclusive: ReadonlyArray<T> = all.slice(0, added).filter(({ isExclusive }) => isExclusive)
  return all.slice(added).map((ticket, position) => {
    const before = exclusive
    if (ticket.isExclusive) exclusive = [...exclusive, ticket]
    return [ticket, first >= 0 && added + position >= first ? "exclusive" : "permit", before] as const
  })
}

/** Removes one call from the queue, unless it is already admitted. */
export const withdraw = <T extends Ticket>(state: Admission<T>, index: number): Admission<T> => ({
  ...state,
  queue: waiting(state).filter((ticket) => ticket.index !== index),
  admitted: 0
})

/** Removes all calls not admitted yet. */
export const clear = <T extends Ticket>(state: Admission<T>): Admission<T> => ({ ...state, queue: [], admitted: 0 })
