/**
 * A model's reply while it is read, and the tools that run beside it. A call starts early when the wire has called its
 * arguments final and the policy lets its tool go; tool events are then passed on as they come, also while the model is
 * silent. The model is read only when somebody asks, and never more than one read ahead. A reply that ends badly calls
 * back what was started on its word.
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
import type * as Response from "../../Response.ts"
import * as Plan from "../decide/plan.ts"
import type { Events } from "../fold/events.ts"
import * as Json from "../json.ts"
import * as Lists from "../lists.ts"
import type * as Turn from "../loop/runEnvironment.ts"
import * as Now from "../now.ts"
import type { Batch } from "../run/batch.ts"
import { Worker } from "../stop/worker.ts"

/**
 * What a reply comes to: its end, or what broke it and whether it had begun by then. What broke it is what the adapter
 * failed with, or died of.
 */
export type Ending =
  | { readonly _tag: "Ended" }
  | { readonly _tag: "Broken"; readonly error: unknown; readonly hasBegun: boolean }

/** What a reply comes to next. */
type Signal = ReadonlyArray<Event.Event> | Ending

const isEvents = (signal: Signal): signal is ReadonlyArray<Event.Event> => Array.isArray(signal)

const ended: Ending = { _tag: "Ended" }

/** No soft stop leaves a read. */
const leftUnread = Exit.interrupt()

/** Where the first element stands that is no event. */
const foreignAt = (events: ReadonlyArray<unknown>): number => {
  for (let index = 0; index < events.length; index++) {
    const event = events[index]
    if (typeof event !== "object" || event === null || !("_tag" in event)) return index
  }
  return -1
}

type ModelPull = Pull.Pull<Arr.NonEmptyReadonlyArray<Event.AdapterEvent>, Adapter.AdapterError>

/** What the reader makes of what it heard. */
type Heard<E, R> = Pull.Pull<Events, Adapter.AdapterError | E, void, R>

/** Who reads a reply. */
export interface Listener<E, R> {
  readonly openBatch: (calls: number) => Batch<E>
  /** Goes on with what the model said, or a tool beside it. */
  readonly told: (events: ReadonlyArray<Event.Event>) => Heard<E, R>
  /** Goes on when the reply is over. */
  readonly over: (ending: Ending) => Heard<E, R>
}

export class Reply<E, R> {
  private readonly run: Turn.Run<E, R>
  private readonly listener: Listener<E, R>
  /** What the adapter opened, until it is closed. */
  private connection: Scope.Closeable | undefined
  /** The services of its reader, with which it is closed: a soft stop may be asked for outside of every fiber. */
  private context: Context.Context<any> | undefined
  private batch: Batch<E> | undefined
  private hasBegun = false
  /** Whether a tool was started on the word of it. */
  hasStarted = false
  /** Whether nothing starts early any more: it has ended or broken, by what the wire said, or it is left. */
  private isOver = false
  private pull: ModelPull = Cause.done()
  private reading: Heard<E, R> | undefined
  /** In its fiber the adapter opens its connection and reads. */
  private readonly reader: Worker
  private read: Exit.Exit<Signal> | undefined
  /** Opens when the connection is closed. There is one as soon as that has begun. */
  private closing: Latch.Latch | undefined

  constructor(run: Turn.Run<E, R>, listener: Listener<E, R>) {
    this.run = run
    this.listener = listener
    this.reader = new Worker(run.running, {
      kind: "adapter",
      id: run.settings.requestId,
      name: "stream",
      // What is read when the run is asked to stop is closed by the step.
      onSoftStop: "unaffected"
    })
  }

  /** Connects to the model, and reads for the first time. */
  connect(open: () => Stream.Stream<Event.AdapterEvent, Adapter.AdapterError>): Heard<E, R> {
    // Not `Stream.toPull`, which puts a semaphore and a context around each pull: there is one reader.
    const connection = this.connection = Scope.makeUnsafe()
    this.context = Now.services()
    const opening = Now.attempt(() => Channel.toTransform(Stream.toChannel(open()))(Cause.done(), connection))
    // A run that can be cancelled listens for that while the connection opens.
    if (this.run.ambient.cancellation !== undefined) this.beside()
    return this.connected(Effect.flatMap(opening, (pull) => {
      this.reading = undefined
      return this.pull = pull
    }))
  }

  private connected(pull: ModelPull): Heard<E, R> {
    this.pull = pull
    return this.next
  }

  /** What came of a read. What stands before an element that is no event is still told. */
  private came(events: ReadonlyArray<Event.Event>): Signal {
    const foreign = foreignAt(events)
    if (foreign < 0) {
      this.hasBegun = true
      return events
    }
    const error = new TypeError(`the adapter emitted ${Json.render(events[foreign])}, which is no event`)
    if (foreign === 0) return this.broken(error)
    this.hasBegun = true
    this.pull = Effect.die(error)
    this.reading = undefined
    return events.slice(0, foreign)
  }

  private broken(error: unknown): Ending {
    return { _tag: "Broken", error, hasBegun: this.hasBegun }
  }

  private broke(cause: Cause.Cause<Adapter.AdapterError | Cause.Done>): Signal {
    return Pull.isDoneCause(cause) ? ended : this.broken(Cause.squash(cause))
  }

  /** What comes next, of the model or of the tools beside it. It is to be asked for in a step of its reader's fiber. */
  get next(): Heard<E, R> {
    const { batch } = this
    if (batch !== undefined && this.isBeside(batch)) return this.besideModel(batch)
    return this.reading ??= Effect.matchCauseEffect(this.reader.do(this.pull, leftUnread), {
      onSuccess: (events) => this.hear(this.came(events)),
      onFailure: (cause) => this.hear(this.broke(cause))
    })
  }

  /** Whether the model has to be read by somebody else: where it is alone, nobody has to be listened to meanwhile. */
  private isBeside(batch: Batch<E>): boolean {
    return this.run.ambient.cancellation !== undefined || this.reader.isBusy || this.read !== undefined ||
      batch.isBusy || !batch.isEmpty
  }

  private hear(signal: Signal): Heard<E, R> {
    return isEvents(signal) ? this.listener.told(signal) : this.listener.over(signal)
  }

  private besideModel(batch: Batch<E>): Heard<E, R> {
    if (!batch.isEmpty) return this.taken(batch)
    if (this.run.ambient.cancellation?.isRequested === true) return this.listener.over(ended)
    this.listen(batch)
    const { read } = this
    if (read === undefined) return this.taken(batch)
    this.read = undefined
    return Now.flatMap(read, (signal) => this.hear(signal))
  }

  /** What tools show, unless its reader was called for something else. */
  private taken(batch: Batch<E>): Heard<E, R> {
    return Now.flatMap(
      batch.take,
      (events) => events.length === 0 ? this.besideModel(batch) : this.listener.told(events)
    )
  }

  private listen(batch: Batch<E>): void {
    if (this.reader.isBusy || this.read !== undefined) return
    const reading = Effect.matchCause(this.pull, {
      onSuccess: (events) => this.came(events),
      onFailure: (cause) => this.broke(cause)
    })
    let isAtOnce = true
    this.reader.start<Signal, never>(reading, Now.services(), (exit) => {
      this.read = exit
      if (!isAtOnce) batch.wake()
    })
    isAtOnce = false
  }

  /** Calls that became final with these events and may start now. They have been folded already. */
  ready(events: ReadonlyArray<Event.Event>): ReadonlyArray<Plan.Decode> {
    if (this.isOver || !this.run.startsEarly) return Lists.none
    let completed: Array<Event.Of<"ToolCallCompleted">> | undefined
    for (let index = 0; index < events.length; index++) {
      const event = events[index] as Event.Event
      // How it ended decides on all calls at once, and on those that the wire still tells of.
      if (event._tag === "MessageCompleted" || event._tag === "Error") this.isOver = true
      if (event._tag === "ToolCallCompleted") completed = Lists.added(completed, event)
    }
    return completed === undefined || this.isOver ? Lists.none : completed.flatMap((event) => this.decodable(event))
  }

  private decodable(event: Event.Of<"ToolCallCompleted">): ReadonlyArray<Plan.Decode> {
    const { tools, settings, state } = this.run
    const tool = tools.get(event.name)
    if (tool === undefined || !Plan.mayStartEarly(tool, settings.policy)) return []
    const taken = state.calls.take(event)
    if (taken === undefined) return []
    const job = Plan.planned(taken.index, taken.call, tools, settings.policy)
    if (job._tag === "Decode" && taken.call.argumentsLost === undefined) return [job]
    state.calls.giveBack(taken.index)
    return []
  }

  /** Starts calls. While one of them runs, the model is read beside them. */
  start(jobs: ReadonlyArray<Plan.Decode>): void {
    this.hasStarted = true
    const batch = this.beside()
    batch.add(jobs)
    batch.begin()
  }

  /** What the tools beside the model have to show by now. */
  takeNow(): ReadonlyArray<Event.Event> {
    return this.batch?.takeNow() ?? Lists.none
  }

  private beside(): Batch<E> {
    return this.batch ??= this.listener.openBatch(Infinity)
  }

  /**
   * The reply has been read, or is left: nothing starts early any more, what reads the model is stopped, and its connection
   * is closed. That begins now. What is returned waits until it is done, within the grace period of a stop.
   */
  close(exit: Exit.Exit<unknown, unknown>): Effect.Effect<void> {
    this.isOver = true
    // Nothing of the reply is kept while its tools run.
    this.pull = Cause.done()
    this.reading = undefined
    const { connection, context } = this
    if (connection === undefined || context === undefined) return Effect.void
    if (this.closing === undefined) {
      const closing = this.closing = Latch.makeUnsafe(false)
      // What still opens or reads knows nothing yet of what it is to close: it comes first, unless it is left behind.
      this.reader.close(() => this.disconnect(connection, exit, context, closing))
    }
    return this.closing.isOpen() ? Effect.void : this.closing.await
  }

  private disconnect(
    connection: Scope.Closeable,
    exit: Exit.Exit<unknown, unknown>,
    context: Context.Context<any>,
    closing: Latch.Latch
  ): void {
    const closed = Scope.closeUnsafe(connection, exit)
    if (closed === undefined || Now.isDone(closed)) return void closing.openUnsafe()
    const closer = new Worker(this.run.running, {
      kind: "adapter",
      id: this.run.settings.requestId,
      name: "close",
      onSoftStop: "grace",
      once: true,
      isUninterruptible: true
    })
    const closedQuietly = Effect.catchCause(
      closed,
      (cause) => Effect.logWarning("the adapter failed to close its connection", cause)
    )
    closer.end(closedQuietly, context, () => closing.openUnsafe())
  }

  /**
   * The batch of the early calls, for the rest of the turn to join. After a reply that was filtered or broke, those that
   * have started are called back, and the rest does not run. A reply that was cut off by the token limit keeps its calls:
   * only those whose arguments had been final have started.
   */
  handOver(finishReason: Response.FinishReason | null): Batch<E> | undefined {
    const { batch } = this
    this.batch = undefined
    if (finishReason === "content_filter" || finishReason === "error") batch?.cancel(Plan.ending(finishReason))
    return batch
  }
}
