/**
 * Reads one reply from the adapter, in a fiber that the run owns: a stop of the run leaves a read, or a closing, that
 * does not end, and the adapter's own time never holds up its reader. It reads only when it is asked to, never more
 * than one read ahead, and reports what breaks a reply as the way in which the reply ended.
 */
import type * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Channel from "effect/Channel"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Latch from "effect/Latch"
import * as Pull from "effect/Pull"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import * as Json from "../json.ts"
import type { Worker } from "../stop/ownedFibers.ts"
import * as Telemetry from "../telemetry.ts"

/**
 * The end of a reply: as the adapter ended it, or broken, by the adapter's failure or defect. `hasBegun` is `true` if
 * an event came before that.
 */
export type Ending =
  | { readonly _tag: "Ended" }
  | { readonly _tag: "Broken"; readonly error: unknown; readonly hasBegun: boolean }

/** The result of a read: events, or the end of the reply. */
export type Heard = ReadonlyArray<Event.Event> | Ending

export const isEvents = (heard: Heard): heard is ReadonlyArray<Event.Event> => Array.isArray(heard)

const ended: Ending = { _tag: "Ended" }

/** A fiber that the run owns, in which the adapter's code runs. */
type OwnedFiber = Pick<Worker, "isBusy" | "start" | "close" | "end">

/** The fibers of a reply: one that opens the connection and reads, and one that closes it. */
export interface Fibers {
  readonly reading: OwnedFiber
  readonly closing: OwnedFiber
}

/** The exit of a read. */
type Read = Exit.Exit<ReadonlyArray<Event.AdapterEvent>, Adapter.AdapterError | Cause.Done>

type ModelPull = Pull.Pull<Arr.NonEmptyReadonlyArray<Event.AdapterEvent>, Adapter.AdapterError>

/** The position of the first element that is no event, or -1. */
const foreignAt = (events: ReadonlyArray<unknown>): number =>
  events.findIndex((event) => typeof event !== "object" || event === null || !("_tag" in event))

export class ReplyReader<A, E, R> {
  private readonly fibers: Fibers
  private readonly goOn: (heard: Heard) => Effect.Effect<A, E, R>
  /** The services that the connection is closed with: a soft stop may come from outside of every fiber. */
  private readonly context: Context.Context<any>
  /** The services of the latest read. */
  private services: Context.Context<any>
  private readonly connection = Scope.makeUnsafe()
  private pull: ModelPull
  private hasBegun = false
  /** The result of a read that ended before a reader waited for it. */
  private heard: Heard | undefined
  /** Opens when the connection is closed. There is one as soon as that has begun. */
  private closed: Latch.Latch | undefined

  /** The stream is opened by the first read. `goOn` is what a fiber that waits for a read continues with. */
  constructor(
    fibers: Fibers,
    context: Context.Context<any>,
    open: () => Stream.Stream<Event.AdapterEvent, Adapter.AdapterError>,
    goOn: (heard: Heard) => Effect.Effect<A, E, R>
  ) {
    this.fibers = fibers
    this.context = context
    this.services = context
    this.goOn = goOn
    this.pull = Effect.flatMap(
      Effect.suspend(() => Channel.toPullScoped(Stream.toChannel(open()), this.connection)),
      (pull) => this.pull = pull
    )
  }

  /** Reads once, waits for the events and continues with them, in the fiber that waits. */
  next(context: Context.Context<any>): Effect.Effect<A, E, R> {
    this.services = context
    return this.waiting
  }

  /** One effect for all reads: most of them are a single delta. */
  private readonly waiting: Effect.Effect<A, E, R> = Effect.callback((resume) =>
    this.read((exit) => resume(Effect.suspend(() => this.goOn(this.heardIn(exit)))))
  )

  /**
   * Returns the result of a read without waiting for it. Where there is none yet a read is under way, and `wake` is
   * called when it has ended.
   */
  listen(context: Context.Context<any>, wake: () => void): Heard | undefined {
    let isAtOnce = true
    if (this.heard === undefined && !this.fibers.reading.isBusy) {
      this.services = context
      this.read((exit) => {
        this.heard = this.heardIn(exit)
        if (!isAtOnce) wake()
      })
    }
    isAtOnce = false
    const { heard } = this
    this.heard = undefined
    return heard
  }

  private read(settle: (exit: Read) => void): void {
    this.fibers.reading.start(this.pull, this.services, settle)
  }

  private heardIn(exit: Read): Heard {
    return Exit.isSuccess(exit) ? this.came(exit.value) : this.broke(exit.cause)
  }

  /** Returns the events of a read. Events that throw when they are read fail the reply: nothing else ends the wait. */
  private came(given: ReadonlyArray<Event.Event>): Heard {
    try {
      return this.checked(given)
    } catch (error) {
      return this.broken(error)
    }
  }

  /** Events that come before an element that is no event are kept. */
  private checked(events: ReadonlyArray<Event.Event>): Heard {
    const foreign = foreignAt(events)
    const error = foreign < 0
      ? undefined
      : new TypeError(`the adapter emitted ${Json.render(events[foreign])}, which is no event`)
    if (foreign === 0) return this.broken(error)
    this.hasBegun = true
    if (error === undefined) return events
    this.pull = Effect.die(error)
    return events.slice(0, foreign)
  }

  private broke(cause: Cause.Cause<Adapter.AdapterError | Cause.Done>): Heard {
    return Pull.isDoneCause(cause) ? ended : this.broken(Cause.squash(cause))
  }

  private broken(error: unknown): Ending {
    return { _tag: "Broken", error, hasBegun: this.hasBegun }
  }

  /**
   * Interrupts a read that is under way, and closes the connection. That begins now; what is returned waits until it is
   * done, within the grace period of a stop.
   */
  close(exit: Exit.Exit<unknown, unknown>): Effect.Effect<void> {
    if (this.closed === undefined) {
      const closed = this.closed = Latch.makeUnsafe(false)
      this.pull = Cause.done()
      // A read that is still opening the connection has not yet registered what is to be closed: it ends first.
      this.fibers.reading.close(() => this.disconnect(exit, closed))
    }
    return this.closed.isOpen() ? Effect.void : this.closed.await
  }

  private disconnect(exit: Exit.Exit<unknown, unknown>, closed: Latch.Latch): void {
    const closing = Scope.closeUnsafe(this.connection, exit)
    if (closing === undefined || (Exit.isExit(closing) && Exit.isSuccess(closing))) return void closed.openUnsafe()
    const quietly = Effect.catchCause(
      closing,
      (cause) => Telemetry.warned("the adapter failed to close its connection", cause)
    )
    this.fibers.closing.end(quietly, this.context, () => closed.openUnsafe())
  }
}
