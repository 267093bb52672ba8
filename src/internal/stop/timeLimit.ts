/**
 * A limit of time that holds whatever the work does about it. The work runs in a fiber of its own; when the time is up
 * it is interrupted, and whoever waited goes on without it, even if it refuses to stop.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"

export interface Limit<E> {
  readonly millis: number
  /** Takes over the fiber of work that has not ended at once, and returns what stops it. */
  readonly own: (fiber: Fiber.Fiber<unknown, unknown>) => () => void
  /** What the waiting fails with when the time is up. */
  readonly late: () => E
}

/** Work that ends without waiting costs no timer. What it has forked may outlive it, and is not waited for here. */
export const limited = <A, E, R>(work: Effect.Effect<A, E, R>, limit: Limit<E>): Effect.Effect<A, E, R> =>
  Effect.contextWith((context) => {
    const ended = Deferred.makeUnsafe<A, E>()
    const fiber = Effect.runForkWith(context)(Effect.onExit(work, (exit) => Deferred.done(ended, exit)))
    // What is no effect ends the fiber, and passes over what was to follow.
    fiber.addObserver((exit) => Deferred.doneUnsafe(ended, exit))
    const stop = fiber.pollUnsafe() === undefined ? limit.own(fiber) : () => {}
    return Deferred.isDoneUnsafe(ended) ? Deferred.await(ended) : inTime(ended, limit, stop)
  })

const inTime = <A, E>(ended: Deferred.Deferred<A, E>, limit: Limit<E>, stop: () => void): Effect.Effect<A, E> => {
  const end = Effect.onInterrupt(Deferred.await(ended), () => Effect.sync(stop))
  if (!Number.isFinite(limit.millis)) return end
  return Effect.timeoutOrElse(end, { duration: limit.millis, orElse: () => Effect.fail(limit.late()) })
}
