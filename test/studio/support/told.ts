/** Public events of real runs, with the times of the clock of the test, as a server tells them. */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Event } from "heddle"
import * as Fold from "../../../src/studio/data/fold.ts"

/** Returns the public events of a run, `RunStarted` first. */
export const tell = <E, R>(
  events: Stream.Stream<Event.Event, E, R>,
  services: Layer.Layer<R>,
  runId = "r"
): Effect.Effect<ReadonlyArray<Fold.Told>, E> =>
  Effect.gen(function*() {
    const calls = new Map<string, Event.PublicCall>()
    const begun: Fold.Told = { _tag: "RunStarted", runId, at: yield* Clock.currentTimeMillis }
    const reading = yield* Effect.forkChild(
      events.pipe(
        Stream.rechunk(1),
        Stream.mapEffect((event) =>
          Effect.map(
            Clock.currentTimeMillis,
            (at) => Event.toPublic(event, { calls, runId, at, publishReasoning: true })
          )
        ),
        Stream.runCollect,
        Effect.provide(services)
      )
    )
    for (let step = 0; step < 3_000; step++) yield* TestClock.adjust(10)
    const told = yield* Fiber.join(reading)
    return [begun, ...told.flatMap((event) => event ?? [])]
  })

/** Returns the fold of events. */
export const foldOf = (events: ReadonlyArray<Fold.Told>, id = "r"): Fold.Run => {
  const run = Fold.make(id)
  for (const event of events) Fold.take(run, event)
  return run
}
