/**
 * Runs in virtual time: what came of an effect, and when.
 */
import { assert } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import type { Event, Message, ToolRunner } from "heddle"
import { Recorder, type Simulation } from "heddle/testing"

/** What came of a run that was simulated. */
export const succeeded = <A, E>(report: Simulation.Report<A, E>): A => {
  if (report.exit !== undefined && Exit.isSuccess(report.exit)) return report.exit.value
  return assert.fail(
    `the run did not succeed: ${report.exit === undefined ? "it hung" : Cause.pretty(report.exit.cause)}`
  )
}

export interface Timed<A, E> {
  readonly at: number
  readonly exit: Exit.Exit<A, E>
}

/** Starts an effect now, lets an hour pass, and tells how it ended and after how many milliseconds. */
export const timed = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<Timed<A, E>, never, R> =>
  Effect.gen(function*() {
    const start = yield* Clock.currentTimeMillis
    const ended = Effect.flatMap(
      Effect.exit(effect),
      (exit) => Effect.map(Clock.currentTimeMillis, (now) => ({ at: now - start, exit }))
    )
    const fiber = yield* Effect.forkChild(ended, { startImmediately: true })
    yield* TestClock.adjust("1 hour")
    assert.isDefined(fiber.pollUnsafe(), "it did not end within an hour")
    return yield* Fiber.join(fiber)
  })

/** The value an effect succeeds with within an hour, and when. */
export const elapsed = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.flatMap(timed(effect), ({ at, exit }) => Effect.map(exit, (value) => ({ at, value })))

/** The value an effect succeeds with within an hour. */
export const withinHour = <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.map(elapsed(effect), ({ value }) => value)

/** The events of a stream as `[time, tag, id]`, when it ended, and the events themselves. */
export const watched = <E, R>(stream: Stream.Stream<Event.Event, E, R>) =>
  Effect.gen(function*() {
    const recorder = yield* Recorder.make
    const { at, exit } = yield* timed(Stream.runDrain(recorder.tap(stream)))
    const log = yield* recorder.log
    const events = yield* recorder.events
    const line = log.flatMap((entry) =>
      entry._tag === "Emitted" ? [[entry.at, entry.event._tag, idOf(entry.event)] as const] : []
    )
    return { at, exit, events, line }
  })

/** The call that an event is about. */
export const idOf = (event: Event.Event): string => {
  if ("toolCallId" in event) return event.toolCallId
  return "id" in event ? event.id ?? "" : ""
}

/** What the model reads, by call. */
export const contents = (result: ToolRunner.Result): ReadonlyArray<readonly [string | undefined, unknown]> =>
  result.messages.map(({ toolCallId, content }: Message.Message) => [toolCallId, content])

/** The defect an effect dies with. */
export const defectOf = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.exit(effect), (exit) => {
    assert.isTrue(Exit.isFailure(exit) && Cause.hasDies(exit.cause), "it must die")
    return Exit.isFailure(exit) ? Cause.squash(exit.cause) as Error : new Error("no defect")
  })

/** The only event with a tag. */
export const only = <Tag extends Event.Event["_tag"]>(
  events: ReadonlyArray<Event.Event>,
  tag: Tag
): Event.Of<Tag> => {
  const found = events.filter((event): event is Event.Of<Tag> => event._tag === tag)
  assert.strictEqual(found.length, 1, `events with tag ${tag}`)
  return found[0]!
}
