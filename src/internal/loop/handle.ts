/**
 * A run started at once, and its handle. Public as `Chat.start`.
 *
 * The run never waits for a reader of its events (`Unread`). From 1,024 unread events on, pieces of one text are
 * joined, only the last call progress and partial typed answer are kept, and provider chunks are left out. The number
 * of unread events is then bounded by the run's actions, not by the length of its output. An Effect `Queue` instead of
 * the array could not replace a queued event.
 */
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Event from "../../Event.ts"
import * as CallPaths from "../answer/callPath.ts"
import * as Deltas from "../fold/deltas.ts"
import * as EventJson from "../fold/eventJson.ts"
import * as Cancellation from "../stop/cancellation.ts"
import * as Inherited from "../stop/inherited.ts"

/** Joining begins at this number of unread events. */
const most = 1_024

/** Number of text pieces kept apart: a text in many short pieces takes many times its length. */
const mostPieces = 256

/** A growing text, with its place among the unread events. */
interface Growing {
  readonly place: number
  text: string
  pieces: Array<string>
}

class Unread<E> {
  private events: Array<Event.Event> = []
  /** Texts still growing, by key. */
  private readonly growing = new Map<string, Growing>()
  /** The growing text or reasoning, which keep their order among each other. */
  private said: string | undefined
  /** Places of replaceable events, by name: a later event takes the place. */
  private readonly latest = new Map<string, number>()
  private exit: Exit.Exit<unknown, E> | undefined
  private readonly latch = Latch.makeUnsafe(false)

  /** Adds events. Never waits. */
  add(events: ReadonlyArray<Event.Event>): void {
    for (const event of events) {
      if (this.events.length < most) this.events.push(event)
      else this.addLate(event)
    }
    this.latch.openUnsafe()
  }

  private addLate(event: Event.Event): void {
    if (event._tag === "RawChunk" && !EventJson.isUsage(event)) return
    const text = Deltas.keyOf(event)
    if (text !== undefined) return this.join(text, event)
    const name = event._tag === "ToolProgress"
      ? `call ${event.id}`
      : event._tag === "OutputPartial"
      ? "output"
      : undefined
    const place = name === undefined ? undefined : this.latest.get(name)
    if (place !== undefined) {
      this.events[place] = event._tag === "ToolProgress" ? { ...event, missed: true } : event
      return
    }
    if (name === undefined) this.close()
    else this.latest.set(name, this.events.length)
    this.events.push(event)
  }

  private join(key: string, event: Event.Event): void {
    if (Deltas.isSaid(event)) {
      if (this.said !== undefined && this.said !== key) this.close()
      this.said = key
    }
    const known = this.growing.get(key)
    if (known === undefined) {
      this.growing.set(key, { place: this.events.length, text: "", pieces: [Deltas.pieceOf(event)] })
      this.events.push(event)
      return
    }
    known.pieces.push(Deltas.pieceOf(event))
    if (known.pieces.length >= mostPieces) flatten(known)
  }

  /** Ends the growing texts: later events follow. */
  private close(): void {
    for (const grown of this.growing.values()) {
      const { place } = grown
      const event = this.events[place]
      flatten(grown)
      if (event !== undefined) this.events[place] = Deltas.withPiece(event, grown.text)
    }
    this.growing.clear()
    this.said = undefined
  }

  /** Notes the end of the run. An interruption ends the events. */
  end(exit: Exit.Exit<unknown, E>): void {
    this.exit = exit
    this.latch.openUnsafe()
  }

  /** Events, each read once. The stream ends or fails with the run. */
  readonly stream: Stream.Stream<Event.Event, E> = Stream.suspend(() =>
    Stream.fromPull(Effect.succeed(Effect.suspend(() => this.take())))
  )

  private take(): Effect.Effect<readonly [Event.Event, ...Array<Event.Event>], E | Cause.Done> {
    this.close()
    this.latest.clear()
    const [first, ...rest] = this.events
    if (first !== undefined) {
      this.events = []
      return Effect.succeed([first, ...rest])
    }
    const { exit } = this
    if (exit !== undefined) {
      const isFailed = Exit.isFailure(exit) && !Cause.hasInterruptsOnly(exit.cause)
      return isFailed ? Effect.failCause(exit.cause) : Cause.done()
    }
    this.latch.closeUnsafe()
    return Effect.flatMap(this.latch.await, () => this.take())
  }
}

const flatten = (grown: Growing): void => {
  grown.text += grown.pieces.join("")
  grown.pieces = []
}

/** A run in progress, with functions to control the run. */
export interface Handle<Result, E> {
  readonly events: Stream.Stream<Event.Event, E>
  readonly result: Effect.Effect<Result, E>
  readonly cancel: (reason?: string) => Effect.Effect<void>
  readonly cancelCall: (path: string, reason?: string) => Effect.Effect<boolean>
}

/**
 * Begins a stream's run in a fiber of the scope, and waits until it is entered. Fails if the run cannot start.
 * `toResult` makes the result from its last event.
 */
export const start = <Result, E, R, E2, R2>(
  run: Stream.Stream<Event.Event, E, R>,
  toResult: (last: Event.Event | undefined) => Effect.Effect<Result, E2, R2>
): Effect.Effect<Handle<Result, E | E2>, E | E2, R | R2 | Scope.Scope> =>
  Effect.gen(function*() {
    const around = yield* Inherited.ParentCancellation
    const stop = new Cancellation.Cancellation()
    const unfollow = around?.onRequest(() => stop.request(around.reason, around.cause))
    const begun = Deferred.makeUnsafe<void, E | E2>()
    const hold = new Inherited.Hold(() => Deferred.doneUnsafe(begun, Exit.void))
    const unread = new Unread<E | E2>()
    const services = Context.make(Inherited.CurrentHold, hold).pipe(Context.add(Inherited.ParentCancellation, stop))
    let last: Event.Event | undefined
    const read = Stream.runForEachArray(Stream.provideContext(run, services), (events) =>
      Effect.sync(() => {
        // A run inside a handler that had ended before a kill is not entered again.
        Deferred.doneUnsafe(begun, Exit.void)
        last = events.at(-1)
        unread.add(events)
      }))
    const ended = (exit: Exit.Exit<Result, E | E2>) =>
      Effect.sync(() => {
        unfollow?.()
        unread.end(exit)
        Deferred.doneUnsafe(begun, Exit.asVoid(exit))
      })
    const fiber = yield* Effect.forkScoped(
      Effect.onExit(Effect.flatMap(read, () => toResult(last)), ended),
      { startImmediately: true }
    )
    yield* Deferred.await(begun)
    return {
      events: unread.stream,
      result: Fiber.join(fiber),
      cancel: (reason) => Effect.sync(() => stop.request("cancel", Cancellation.causeOf(reason, "Chat.Handle.cancel"))),
      cancelCall: (path, reason) =>
        Effect.sync(() => {
          const why = Cancellation.reasonOf(reason, "Chat.Handle.cancelCall")
          const parsed = CallPaths.parse(path)
          return parsed !== undefined && parsed.run === undefined && hold.running?.stopCall(parsed.path, why) === true
        })
    }
  })
