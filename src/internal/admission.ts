/**
 * Who may run next: a pure state machine. Calls are admitted first come, first served; shared calls overlap up to a
 * bound, an exclusive call waits until nothing runs and holds back everything behind it. Handlers that run on outside of
 * this queue (left from an earlier turn, or given up) count as long as they are alive: none runs beside an exclusive
 * one, and those that still have their grace period take up room.
 */

export interface Ticket {
  readonly index: number
  readonly isExclusive: boolean
}

/** Handlers of the run that hold no place in the queue. */
export interface Outsiders {
  /** Those that are alive. They keep exclusive calls out. */
  readonly alive: number
  /** Those of them that have not been given up. They count towards the bound. */
  readonly occupying: number
  /** Those of them that are exclusive. They keep everything out. */
  readonly exclusive: number
}

export const nobody: Outsiders = { alive: 0, occupying: 0, exclusive: 0 }

export interface Admission {
  readonly bound: number
  readonly queue: ReadonlyArray<Ticket>
  /** How many of the queue have been admitted: the queue is never copied. */
  readonly admitted: number
  readonly shared: number
  readonly isExclusiveRunning: boolean
  readonly outsiders: Outsiders
}

export const make = (bound: number, queue: ReadonlyArray<Ticket> = []): Admission => ({
  bound,
  queue,
  admitted: 0,
  shared: 0,
  isExclusiveRunning: false,
  outsiders: nobody
})

const isIdle = (state: Admission): boolean => state.shared === 0 && !state.isExclusiveRunning

const fits = (state: Admission, ticket: Ticket): boolean =>
  ticket.isExclusive
    ? isIdle(state) && state.outsiders.alive === 0
    : !state.isExclusiveRunning && state.outsiders.exclusive === 0 &&
      state.shared + state.outsiders.occupying < state.bound

const admitted = (state: Admission, ticket: Ticket): Admission => ({
  bound: state.bound,
  queue: state.queue,
  admitted: state.admitted + 1,
  shared: state.shared + (ticket.isExclusive ? 0 : 1),
  isExclusiveRunning: ticket.isExclusive,
  outsiders: state.outsiders
})

/** Admits the longest startable run of tickets from the head of the queue. */
export const admit = (state: Admission): readonly [ReadonlyArray<Ticket>, Admission] => {
  const started: Array<Ticket> = []
  let next = state
  for (;;) {
    const ticket = next.queue[next.admitted]
    if (ticket === undefined || !fits(next, ticket)) return [started, next]
    started.push(ticket)
    next = admitted(next, ticket)
  }
}

/** A call has ended and left its place. */
export const release = (state: Admission, ticket: Ticket): Admission =>
  ticket.isExclusive ? { ...state, isExclusiveRunning: false } : { ...state, shared: state.shared - 1 }

/** Calls that have come up join the end of the queue. */
export const enqueue = (state: Admission, tickets: ReadonlyArray<Ticket>): Admission => ({
  ...state,
  queue: [...state.queue.slice(state.admitted), ...tickets],
  admitted: 0
})

/** Who runs outside of the queue now. */
export const withOutsiders = (state: Admission, outsiders: Outsiders): Admission => ({ ...state, outsiders })

/** The head of the queue, when only outsiders keep it out: it would wait for something that may never end. */
export const stuck = (state: Admission): Ticket | undefined => {
  const head = state.queue[state.admitted]
  return head !== undefined && isIdle(state) && !fits(state, head) ? head : undefined
}

/** Takes the head out of the queue without running it. */
export const skip = (state: Admission): Admission => ({ ...state, admitted: state.admitted + 1 })

/** Those that have not been admitted yet. */
export const waiting = (state: Admission): ReadonlyArray<Ticket> => state.queue.slice(state.admitted)

/** Takes everybody out of the queue who has not been admitted. */
export const clear = (state: Admission): Admission => ({ ...state, queue: [], admitted: 0 })
