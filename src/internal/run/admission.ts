/**
 * Admission: a pure state machine that decides which calls may run next. Calls are admitted first come, first served;
 * shared calls overlap up to a bound, an exclusive call waits until nothing runs, and blocks everything behind it.
 * Handlers that still run outside of this queue, from an earlier turn or after the answer of their call, count as long
 * as they are alive: none runs concurrently with an exclusive call, and those still within their grace period count
 * towards the bound.
 */
import type * as Types from "effect/Types"

export interface Ticket {
  readonly index: number
  readonly isExclusive: boolean
}

/** Handlers of the run that hold no place in the queue. */
export interface Outsiders {
  /** Number of handlers that are alive. They keep exclusive calls out. */
  readonly alive: number
  /** Number of live handlers that have not been given up. They count towards the bound. */
  readonly occupying: number
  /** Number of live handlers that are exclusive. They keep every call out. */
  readonly exclusive: number
}

export const noOutsiders: Outsiders = { alive: 0, occupying: 0, exclusive: 0 }

export interface Admission<T extends Ticket = Ticket> {
  readonly bound: number
  readonly queue: ReadonlyArray<T>
  /** Number of admitted calls at the head of `queue`, which is emptied when all of its calls have been admitted. */
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

/** Frees the place of a call that has ended. */
export const release = <T extends Ticket>(state: Admission<T>, ticket: Ticket): Admission<T> =>
  ticket.isExclusive ? { ...state, isExclusiveRunning: false } : { ...state, shared: state.shared - 1 }

/** Adds calls to the end of the queue. */
export const enqueue = <T extends Ticket>(state: Admission<T>, tickets: ReadonlyArray<T>): Admission<T> => ({
  ...state,
  queue: isWaiting(state) ? [...waiting(state), ...tickets] : tickets,
  admitted: 0
})

/** Sets the handlers that run outside of the queue now. */
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
 * Tells whether the head is stuck only until outsiders lose their places, as all do when their grace period is over: it
 * is a shared call that the bound keeps out.
 */
export const isCrowdedOut = (state: Admission): boolean => {
  const head = state.queue[state.admitted]
  return head !== undefined && !head.isExclusive && fits(head, state, { ...state.outsiders, occupying: 0 })
}

/** Takes the head out of the queue without running it. */
export const skip = <T extends Ticket>(state: Admission<T>): Admission<T> => ({
  ...state,
  admitted: state.admitted + 1
})

/** Tells whether a call of the queue has not been admitted yet. */
export const isWaiting = (state: Admission): boolean => state.admitted < state.queue.length

/** Returns the calls that have not been admitted yet. */
export const waiting = <T extends Ticket>(state: Admission<T>): ReadonlyArray<T> => state.queue.slice(state.admitted)

/**
 * Returns those of the last `count` calls of the queue that have not been admitted, each with the reason: an exclusive
 * call, which runs or is to run no later than this one, or the bound; and with the exclusive calls before it.
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

/** Removes one call from the queue, unless it has been admitted. */
export const withdraw = <T extends Ticket>(state: Admission<T>, index: number): Admission<T> => ({
  ...state,
  queue: waiting(state).filter((ticket) => ticket.index !== index),
  admitted: 0
})

/** Removes the calls from the queue that have not been admitted. */
export const clear = <T extends Ticket>(state: Admission<T>): Admission<T> => ({ ...state, queue: [], admitted: 0 })
