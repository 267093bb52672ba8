/** Waiting for what other processes do: for the event, however long a busy machine takes. */
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"

const often = Schedule.spaced("20 millis")

/** How long the tests wait for one event. Their own limit is longer. */
export const bound = "3 minutes"

/** The limit of a test that waits for events, in milliseconds. */
export const limit = 600_000

/** Looks again and again until what it sees is so. Dies with what it saw last if that takes minutes. */
export const until = <A, E, R>(
  what: string,
  look: Effect.Effect<A, E, R>,
  isSo: (seen: A) => boolean
): Effect.Effect<A, E, R> => {
  let last: unknown = "nothing"
  return look.pipe(
    Effect.tap((seen) => Effect.sync(() => void (last = seen))),
    Effect.repeat({ schedule: often, until: isSo }),
    Effect.timeoutOrElse({
      duration: bound,
      orElse: () => Effect.die(new Error(`${what}: not within ${bound}; seen last: ${JSON.stringify(last)}`))
    })
  )
}

/** Looks again and again until it finds something. Dies if that takes minutes. */
export const find = <A, E, R>(what: string, look: Effect.Effect<A | undefined, E, R>): Effect.Effect<A, E, R> =>
  Effect.map(until(what, look, (seen) => seen !== undefined), (seen) => seen!)
