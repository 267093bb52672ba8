/**
 * A clock for tests over real I/O, where virtual time cannot know how long an answer takes: it keeps a list of how long
 * was to be waited, and waits at all only where the test says that it should not go on.
 */
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"

export interface WaitingClock extends Clock.Clock {
  /** All waits so far, in milliseconds. */
  readonly waits: ReadonlyArray<number>
}

/** `passes` says of a wait, in milliseconds, whether it is over at once; the others never are. */
export const make = (passes: (millis: number) => boolean, startMillis = 0): WaitingClock => {
  const waits: Array<number> = []
  let now = startMillis
  const nanos = (): bigint => BigInt(Math.round(now)) * 1_000_000n
  return {
    waits,
    currentTimeMillisUnsafe: () => now,
    currentTimeMillis: Effect.sync(() => now),
    currentTimeNanosUnsafe: nanos,
    currentTimeNanos: Effect.sync(nanos),
    monotonicTimeNanosUnsafe: nanos,
    monotonicTimeNanos: Effect.sync(nanos),
    sleep: (duration) =>
      Effect.suspend(() => {
        const millis = Duration.toMillis(duration)
        waits.push(millis)
        if (!passes(millis)) return Effect.never
        now += millis
        return Effect.void
      })
  }
}

/** Runs an effect by the given clock. */
export const by = (clock: Clock.Clock) => Effect.provideService(Clock.Clock, clock)
