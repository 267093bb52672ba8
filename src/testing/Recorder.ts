/**
 * Records, for tests, what a stream emitted and what handlers did, in one log, with the time from the runtime clock. It
 * changes nothing about what it watches.
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Latch from "effect/Latch"
import * as Stream from "effect/Stream"
import type * as Event from "../Event.ts"
import type * as Tool from "../Tool.ts"
import * as CallTexts from "./internal/callTexts.ts"
import type { Entry, Mark } from "./internal/violation.ts"

export type { Entry, Mark } from "./internal/violation.ts"

/**
 * Counts of tracked effects.
 *
 * @category models
 */
export interface Counts {
  /** Number of started effects. */
  readonly starts: number
  /** Number of effects not yet ended. */
  readonly live: number
  /** Maximum number of effects live at once. */
  readonly peak: number
  /** Number of effects ended by themselves. */
  readonly ends: number
  /** Number of interrupted effects. */
  readonly interrupts: number
  /** Number of times their finalizers ran. */
  readonly finalizers: number
}

/**
 * A recorder.
 *
 * @category models
 */
export interface Recorder {
  /** Records a stream's events as they pass. */
  readonly tap: <A extends Event.Event, E, R>(stream: Stream.Stream<A, E, R>) => Stream.Stream<A, E, R>
  /** Records an effect under a name each time it runs. */
  readonly track: (name: string) => <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>
  /** Records each handler call under its tool's name. */
  readonly handler: <Args, A, E, R>(
    handler: (args: Args, call: Tool.CallContext) => Effect.Effect<A, E, R>
  ) => (args: Args, call: Tool.CallContext) => Effect.Effect<A, E, R>
  /** Events that passed `tap`. */
  readonly events: Effect.Effect<ReadonlyArray<Event.Event>>
  /** Their tags, each with its time in milliseconds. */
  readonly timeline: Effect.Effect<ReadonlyArray<readonly [at: number, tag: Event.Event["_tag"]]>>
  /** Times of all events with a tag, in milliseconds. */
  readonly at: (tag: Event.Event["_tag"]) => Effect.Effect<ReadonlyArray<number>>
  /** Everything recorded, in the order it happened. */
  readonly log: Effect.Effect<ReadonlyArray<Entry>>
  /** Counts tracked effects, by name or all together. */
  readonly counts: (name?: string) => Effect.Effect<Counts>
  /**
   * Waits until that many effects with a name have started, one by default. Before moving a test clock, wait for the
   * sleepers this way.
   */
  readonly started: (name: string, times?: number) => Effect.Effect<void>
}

/**
 * Makes a recorder whose time starts now.
 *
 * **Example** (Started once, stopped once, nothing alive)
 *
 * ```ts import.meta.vitest
 * import { Message, Tool, ToolRunner } from "heddle"
 * import { Recorder } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Fiber from "effect/Fiber"
 *
 * const program = Effect.gen(function*() {
 *   const recorder = yield* Recorder.make
 *   const wait = Tool.make("wait", { parameters: {}, handler: recorder.handler(() => Effect.never) })
 *   const run = yield* Effect.forkChild(ToolRunner.run([Message.toolCall("c0", "wait")], [wait]))
 *   yield* recorder.started("wait")
 *   yield* Fiber.interrupt(run)
 *   return yield* recorder.counts("wait")
 * })
 *
 * await Effect.runPromise(program)
 * // => { starts: 1, live: 0, peak: 1, ends: 0, interrupts: 1, finalizers: 1 }
 * ```
 *
 * @category constructors
 */
export const make: Effect.Effect<Recorder> = Effect.map(Clock.currentTimeMillis, (zero) => {
  const log: Array<Entry> = []
  const waiting = new Set<{ readonly name: string; readonly times: number; readonly latch: Latch.Latch }>()
  const now = Effect.map(Clock.currentTimeMillis, (time) => time - zero)
  const mark = (name: string, tag: Mark) =>
    Effect.map(now, (at) => {
      log.push({ _tag: tag, at, name })
      for (const waiter of waiting) if (hasStarted(log, waiter.name, waiter.times)) Latch.openUnsafe(waiter.latch)
    })
  const track = (name: string) => tracked((tag) => mark(name, tag))
  const emitted = Effect.sync(() => log.flatMap((entry) => entry._tag === "Emitted" ? [entry] : []))
  return {
    tap: Stream.mapArrayEffect((events) =>
      Effect.map(now, (at) => {
        for (const event of events) log.push(emittedAt(at, event))
        return events
      })
    ),
    track,
    handler:
      <Args, A, E, R>(handler: (args: Args, call: Tool.CallContext) => Effect.Effect<A, E, R>) =>
      (args: Args, call: Tool.CallContext) => track(call.name)(Effect.suspend(() => handler(args, call))),
    events: Effect.map(emitted, (entries) => entries.map(({ event }) => event)),
    timeline: Effect.map(emitted, (entries) => entries.map(({ at, event }) => [at, event._tag])),
    at: (tag) =>
      Effect.map(emitted, (entries) => entries.filter(({ event }) => event._tag === tag).map(({ at }) => at)),
    log: Effect.sync(() => log.slice()),
    counts: (name) => Effect.sync(() => count(marksOf(log, name))),
    started: (name, times = 1) =>
      Effect.suspend(() => {
        if (hasStarted(log, name, times)) return Effect.void
        const waiter = { name, times, latch: Latch.makeUnsafe() }
        waiting.add(waiter)
        return Effect.ensuring(waiter.latch.await, Effect.sync(() => waiting.delete(waiter)))
      })
  }
})

const emittedAt = (at: number, event: Event.Event): Entry => {
  const calls = CallTexts.of(event)
  return { _tag: "Emitted", at, event, ...(calls === undefined ? {} : { calls }) }
}

const markOf = (exit: Exit.Exit<unknown, unknown>): Mark =>
  Exit.isSuccess(exit) ? "Succeeded" : Cause.hasInterruptsOnly(exit.cause) ? "Interrupted" : "Failed"

/** Marks each run without a gap between a start and its following marks: only the effect itself can be interrupted. */
const tracked =
  (mark: (tag: Mark) => Effect.Effect<void>) => <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.uninterruptibleMask((restore) =>
      mark("Started").pipe(
        Effect.andThen(restore(effect)),
        Effect.onExit((exit) => mark(markOf(exit))),
        Effect.ensuring(mark("Finalized"))
      )
    )

const marksOf = (log: ReadonlyArray<Entry>, name: string | undefined): ReadonlyArray<Mark> =>
  log.flatMap((entry) => entry._tag !== "Emitted" && (name === undefined || entry.name === name) ? [entry._tag] : [])

const hasStarted = (log: ReadonlyArray<Entry>, name: string, times: number): boolean =>
  marksOf(log, name).filter((mark) => mark === "Started").length >= times

const count = (marks: ReadonlyArray<Mark>): Counts => {
  const of = (...wanted: ReadonlyArray<Mark>) => marks.filter((mark) => wanted.includes(mark)).length
  let live = 0
  let peak = 0
  for (const mark of marks) {
    if (mark === "Finalized") continue
    live += mark === "Started" ? 1 : -1
    peak = Math.max(peak, live)
  }
  return {
    starts: of("Started"),
    live,
    peak,
    ends: of("Succeeded", "Failed"),
    interrupts: of("Interrupted"),
    finalizers: of("Finalized")
  }
}
