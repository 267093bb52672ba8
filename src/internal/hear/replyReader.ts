/**
 * Reads one reply from the adapter, in a fiber owned by the run. A stopped run abandons a read or a close that never
 * ends, so the adapter cannot delay its reader. Reads happen on demand, at most one ahead. Anything breaking the reply
 * is reported as the reply's ending.
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
 * The end of a reply: completed by the adapter, or broken by its failure or defect. `hasBegun` is `true` if an event
 * came before the break.
 */
export type Ending =
  | { readonly _tag: "Ended" }
  | { readonly _tag: "Broken"; readonly error: unknown; readonly hasBegun: boolean }

/** Read result: events, or the end of the reply. */
export type Heard = ReadonlyArray<Event.Event> | Ending

export const isEvents = (heard: Heard): heard is ReadonlyArray<Event.Event> => Array.isArray(heard)

const ended: Ending = { _tag: "Ended" }

/** A fiber owned by the run, running adapter code. */
type OwnedFiber = Pick<Worker, "isBusy" | "start" | "close" | "end">

/** Two fibers per reply: one opens the connection and reads, the other closes it again. */
export interface Fibers {
  readonly reading: OwnedFiber
  readonly closing: OwnedFiber
}

type Read = Exit.Exit<ReadonlyArray<Event.AdapterEvent>, Adapter.AdapterError | Cause.Done>

type ModelPull = Pull.Pull<Arr.NonEmptyReadonlyArray<Event.AdapterEvent>, Adapter.AdapterError>

/** Returns the position of the first element not shaped like an event, or -1. */
const foreignAt = (events: ReadonlyArray<unknown>): number =>
  events.findIndex((event) => typeof event !== "object" || event === null || !("_tag" in event))

export class ReplyReader<A, E, R> {
  private readonly fibers: Fibers
  private readonly goOn: (heard: Heard) => Effect.Effect<A, E, R>
  /** Services for closing the connection: a soft stop may come from outside every fiber. */
  private readonly context: Context.Context<any>
  /** Services for the latest read. */
  private services: Context.Context<any>
  private readonly connection = Scope.makeUnsafe()
  private pull: ModelPull
  private hasBegun = false
  /** Result of a read ended before any reader waited for its events. */
  private heard: Heard | undefined
  /** Opens once the connection is closed. Created when closing begins. */
  private closed: Latch.Latch | undefined

  /** The first read opens the stream. A fiber waiting for a read continues with `goOn`. */
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

  /** Reads once, waits for the events and continues with them, in the waiting fiber. */
  next(context: Context.Context<any>): Effect.Effect<A, E, R> {
    this.services = context
    return this.waiting
  }

  /** One effect shared by all reads: most reads yield a single delta. */
  private readonly waiting: Effect.Effect<A, E, R> = Effect.callback((resume) =>
    this.read((exit) => resume(Effect.suspend(() => this.goOn(this.heardIn(exit)))))
  )

  /** Returns a read result without waiting. With no result yet, a read is running, and calls `wake` when it ends. */
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

  /**
   * Returns the events from a read. Events that throw while being inspected fail the reply: nothing else would end the
   * wait.
   */
  private came(given: ReadonlyArray<Event.Event>): Heard {
    try {
      return this.checked(given)
    } catch (error) {
      return this.broken(error)
    }
  }

  /** Keeps the events before the first foreign element. */
  private checked(events: ReadonlyArray<Event.Event>): Heard {
    const foreign = foreignAt(events)
    const error = foreign < 0
      ? undefined
      : new TypeError(`the adapter emitted ${Json.render(events[foreign])}, which is not an event`)
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
   * Interrupts a running read and closes the connection. Closing begins now; the returned effect waits for its end,
   * within a stop's grace period.
   */
  close(exit: Exit.Exit<unknown, unknown>): Effect.Effect<void> {
    if (this.closed === undefined) {
      const closed = this.closed = Latch.makeUnsafe(false)
      this.pull = Cause.done()
      // A read still opening the connection has not registered its finalizers yet, so closing waits for the read.
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
