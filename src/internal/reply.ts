/**
 * A model's reply while it is read, and the tools that run beside it. A call starts early when the wire has called its
 * arguments final and the policy lets its tool go; tool events are then passed on as they come, also while the model is
 * silent. The model is read only when somebody asks, and never more than one read ahead. A reply that ends badly calls
 * back what was started on its word.
 */
import type * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Channel from "effect/Channel"
import * as Effect from "effect/Effect"
import type * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Pull from "effect/Pull"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Adapter from "../Adapter.ts"
import type * as Event from "../Event.ts"
import type * as Response from "../Response.ts"
import type { Batch } from "./batch.ts"
import * as Division from "./division.ts"
import type { Events } from "./events.ts"
import * as Json from "./json.ts"
import * as Lists from "./lists.ts"
import * as Now from "./now.ts"
import * as Plan from "./plan.ts"
import * as Toolbox from "./toolbox.ts"
import * as Turn from "./turn.ts"

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
  private batch: Batch<E> | undefined
  private hasBegun = false
  /** Whether a tool was started on the word of it. */
  hasStarted = false
  /** Whether nothing starts early any more: it has ended or broken, by what the wire said, or it is left. */
  private isOver = false
  private pull: ModelPull = Cause.done()
  private reading: Heard<E, R> | undefined
  private fiber: Fiber.Fiber<Signal> | undefined
  private read: Exit.Exit<Signal> | undefined

  constructor(run: Turn.Run<E, R>, listener: Listener<E, R>) {
    this.run = run
    this.listener = listener
  }

  /** Connects to the model, and reads for the first time. */
  connect(open: () => Stream.Stream<Event.AdapterEvent, Adapter.AdapterError>): Heard<E, R> {
    // Not `Stream.toPull`, which puts a semaphore and a context around each pull: there is one reader.
    const connection = this.connection = Scope.makeUnsafe()
    const opening = Now.attempt(() => Channel.toTransform(Stream.toChannel(open()))(Cause.done(), connection))
    if (this.run.ambient.cancellation === undefined) {
      return Effect.matchCauseEffect(opening, {
        onSuccess: (pull) => this.connected(pull),
        onFailure: (cause) => this.connected(Effect.failCause(cause))
      })
    }
    // A run that can be cancelled reads beside, and opens there: that may take its time as well.
    this.beside()
    return this.connected(Effect.flatMap(opening, (pull) => this.pull = pull))
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
    return this.reading ??= Effect.matchCauseEffect(this.pull, {
      onSuccess: (events) => this.hear(this.came(events)),
      onFailure: (cause) => this.hear(this.broke(cause))
    })
  }

  /** Whether the model has to be read by somebody else: where it is alone, nobody has to be listened to meanwhile. */
  private isBeside(batch: Batch<E>): boolean {
    return this.run.ambient.cancellation !== undefined || this.fiber !== undefined || this.read !== undefined ||
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
    if (this.fiber !== undefined || this.read !== undefined) return
    const fiber = Effect.runForkWith(batch.services)(
      Effect.matchCause(this.pull, {
        onSuccess: (events) => this.came(events),
        onFailure: (cause) => this.broke(cause)
      })
    )
    this.read = fiber.pollUnsafe()
    if (this.read !== undefined) return
    this.fiber = fiber
    fiber.addObserver((exit) => {
      this.fiber = undefined
      this.read = exit
      batch.wake()
    })
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
    const tool = Toolbox.find(tools, event.name)
    if (tool === undefined || !Turn.mayStart(tool, settings.policy)) return []
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
   * The reply has been read, or is left: whoever reads the model is stopped, its connection is closed, and nothing starts
   * early any more.
   */
  close(exit: Exit.Exit<unknown, unknown>): Effect.Effect<void> {
    this.isOver = true
    // Nothing of the reply is kept while its tools run.
    this.pull = Cause.done()
    this.reading = undefined
    // Whoever closes may be interrupted before it has begun: who comes after it closes what is open by then.
    return this.fiber === undefined
      ? this.closed(exit)
      : Effect.uninterruptible(Effect.suspend(() => this.unread(exit)))
  }

  /** What is opened after this is closed at once: somebody else may close while its reader still opens. */
  private closed(exit: Exit.Exit<unknown, unknown>): Effect.Effect<void> {
    const { connection } = this
    if (connection?.state._tag === "Open") return Scope.close(connection, exit)
    if (connection?.state._tag === "Empty") Scope.closeUnsafe(connection, exit)
    return Effect.void
  }

  /** Whoever reads the model beside is stopped first. */
  private unread(exit: Exit.Exit<unknown, unknown>): Effect.Effect<void> {
    const closed = Effect.suspend(() => this.closed(exit))
    return this.fiber === undefined ? closed : Effect.andThen(Fiber.interrupt(this.fiber), closed)
  }

  /**
   * The batch of the early calls, for the rest of the turn to join. After a reply that was filtered or broke, those that
   * have started are called back, and the rest does not run. A reply that was cut off by the token limit keeps its calls:
   * only those whose arguments had been final have started.
   */
  handOver(finishReason: Response.FinishReason | null): Batch<E> | undefined {
    const { batch } = this
    this.batch = undefined
    if (finishReason === "content_filter" || finishReason === "error") batch?.cancel(Division.ending(finishReason))
    return batch
  }
}
