/**
 * A limit of time that holds whatever the work does about it. The work runs in a fiber of its own; when the time is up
 * it is interrupted, and whoever waited goes on without it, even if it refuses to stop.
 */
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"

export interface Limit<E> {
  readonly millis: number
  /** Takes over the fiber of work that has not ended at once, and returns what stops it. */
  readonly own: (fiber: Fiber.Fiber<unknown, unknown>) => () => void
  /** What the waiting fails with when the time is up. */
  readonly late: () => E
}

/** Work that ends without waiting costs no timer. */
export const limited = <A, E, R>(work: Effect.Effect<A, E, R>, limit: Limit<E>): Effect.Effect<A, E, R> =>
  Effect.contextWith((context) => {
    const fiber = Effect.runForkWith(context)(work)
    return fiber.pollUnsafe() ?? inTime(fiber, limit)
  })

const inTime = <A, E>(fiber: Fiber.Fiber<A, E>, limit: Limit<E>): Effect.Effect<A, E> => {
  const stop = limit.own(fiber)
  const end = Effect.callback<A, E>((resume) => {
    fiber.addObserver(resume)
    return Effect.sync(stop)
  })
  if (!Number.isFinite(limit.millis)) return end
  return Effect.timeoutOrElse(end, { duration: limit.millis, orElse: () => Effect.fail(limit.late()) })
}
