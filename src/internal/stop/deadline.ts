/**
 * Deadlines. A run is stopped at its deadline. Its tools are stopped a little earlier, leaving time for the model's
 * last answer; runs started by a tool end with the tools.
 */
import type { DeadlineWish } from "../ask/options.ts"

/** Times in milliseconds since 1970: the end of the run, and the end of its tools. */
export interface Deadline {
  readonly at: number
  readonly toolsUntil: number
}

export const toolsCause = "the deadline of the run leaves no more time for tools"
export const cause = "the deadline of the run has passed"

/** Returns `true` for the cause of a deadline stop. */
export const isCause = (text: string): boolean => text === toolsCause || text === cause

const longestReserve = 10_000
const reservedShare = 0.25

/** Returns the earlier deadline: the caller's, or the enclosing run's. */
export const resolve = (
  wish: DeadlineWish | undefined,
  inherited: number | undefined,
  now: number
): Deadline | undefined => {
  const own = wish === undefined ? Infinity : wish.at ?? now + wish.afterMillis
  const at = Math.min(own, inherited ?? Infinity)
  if (!Number.isFinite(at)) return undefined
  const left = Math.max(0, at - now)
  const reserve = wish?.reserveMillis ?? Math.min(longestReserve, left * reservedShare)
  return { at, toolsUntil: at - Math.min(reserve, left) }
}
