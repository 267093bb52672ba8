/** How a stream is read by the loops on Effect: by whole arrays, or event by event where the reader may leave. */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type { Loop, Run } from "../loop.ts"

/** Reads to the end, or until `tell` says to read no further. */
export const read = <A, E, R>(
  events: Stream.Stream<A, E, R>,
  run: Run,
  tell: (event: A) => boolean
): Effect.Effect<void, E, R> =>
  run.isLeftEarly === true
    ? Stream.runForEachWhile(events, (event) => Effect.sync(() => tell(event)))
    : Stream.runForEachArray(events, (some) => Effect.sync(() => some.forEach(tell)))

/** A loop whose runs are streams that need nothing and say nothing of how they ended. */
export const loop = <A>(events: (run: Run) => Stream.Stream<A>, tell: (run: Run, event: A) => boolean): Loop => ({
  run: async (run) => {
    const reading = read(events(run), run, (event) => tell(run, event))
    await Effect.runPromise(reading, run.signal === undefined ? {} : { signal: run.signal })
    return {}
  }
})
