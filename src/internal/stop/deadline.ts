/**
 * The time at which a run is stopped. Its tools are stopped a little earlier, so that a last answer of the model still
 * fits; runs that a tool starts have until then and no longer.
 */
import type * as Duration from "effect/Duration"

/** From the start of the run; `reserve` is what is kept for the last answer: a quarter, at most ten seconds. */
export type Input = Duration.Input | { readonly after: Duration.Input; readonly reserve?: Duration.Input }

/** What a caller asked for, in milliseconds. */
export interface Wish {
  readonly afterMillis: number
  readonly reserveMillis: number | undefined
}

/** Times of the clock, in milliseconds. */
export interface Deadline {
  readonly at: number
  readonly toolsUntil: number
}

export const toolsCause = "the deadline of the run leaves no more time for tools"
export const cause = "the deadline of the run has passed"

/** Whether a stop was brought about by a deadline. */
export const isCause = (text: string): boolean => text === toolsCause || text === cause

const longestReserve = 10_000
const reservedShare = 0.25

/** The earlier of what the caller asked for and what the run around it has left. */
export const resolve = (wish: Wish | undefined, inherited: number | undefined, now: number): Deadline | undefined => {
  const at = Math.min(wish === undefined ? Infinity : now + wish.afterMillis, inherited ?? Infinity)
  if (!Number.isFinite(at)) return undefined
  const left = Math.max(0, at - now)
  const reserve = wish?.reserveMillis ?? Math.min(longestReserve, left * reservedShare)
  return { at, toolsUntil: at - Math.min(reserve, left) }
}
