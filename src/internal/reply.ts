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
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Pull from "effect/Pull"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Adapter from "../Adapter.ts"
import type * as Event from "../Event.ts"
import type * as Response from "../Response.ts"
import type * as Tool from "../Tool.ts"
import type { Batch } from "./batch.ts"
import * as Division from "./division.ts"
import * as Plan from "./plan.ts"
import type * as Turn from "./turn.ts"

/** What a reply comes to: its end, or what broke it and whether it had begun by then. */
type Ending =
  | { readonly _tag: "Ended" }
  | { readonly _tag: "Broken"; readonly error: Adapter.AdapterError; readonly hasBegun: boolean }

/** What a reply comes to next. */
export type Signal = ReadonlyArray<Event.Event> | Ending

export const isEvents = (signal: Signal): signal is ReadonlyArray<Event.Event> => Array.isArray(signal)

const ended: Signal = { _tag: "Ended" }

/** Events after which nothing more is worth starting early: what follows decides on all calls at once. */
const isEnding = (event: Event.Event): boolean => event._tag === "MessageCompleted" || event._tag === "Error"

const isCompletedCall = (event: Event.Event): boolean => event._tag === "ToolCallCompleted"

type ModelPull = Pull.Pull<Arr.NonEmptyReadonlyArray<Event.AdapterEvent>, Adapter.AdapterError>

export class Reply<E, R> {
  private readonly run: Turn.Run<E, R>
  private readonly connection: Scope.Closeable
  private readonly openBatch: (calls: number) => Effect.Effect<Batch<E>, never, R>
  private batch: Batch<E> | undefined
  private hasBegun = false
  private isOver = false
  private model: Effect.Effect<Signal> = Effect.succeed(ended)
  private fiber: Fiber.Fiber<Signal> | undefined
  private read: Exit.Exit<Signal> | undefined

  constructor(run: Turn.Run<E, R>, connection: Scope.Closeable, openBatch: Reply<E, R>["openBatch"]) {
    this.run = run
    this.connection = connection
    this.openBatch = openBatch
  }

  /** Connects to the model. Nothing is asked of it before the first read. A run that can be cancelled reads beside. */
  connect(stream: Stream.Stream<Event.AdapterEvent, Adapter.AdapterError>): Effect.Effect<void, never, R> {
    return Effect.gen({ self: this }, function*() {
      // Below the connection, so that whoever reads the model has been stopped when what it opened is closed.
      const model = Scope.forkUnsafe(this.connection)
      // Not `Stream.toPull`, which puts a semaphore and a context around each pull: there is one reader.
      const opened = Channel.toTransform(Stream.toChannel(stream))(Cause.done(), model)
      const pull = yield* Effect.catchCause(opened, (cause) => Effect.succeed(Effect.failCause(cause)))
      this.model = this.signalled(pull)
      if (this.run.ambient.cancellation !== undefined) yield* this.beside()
    })
  }

  private signalled(pull: ModelPull): Effect.Effect<Signal> {
    return Effect.matchCauseEffect(pull, {
      onSuccess: (events) => {
        this.hasBegun = true
        return Effect.succeed<Signal>(events)
      },
      onFailure: (cause) => {
        if (Pull.isDoneCause(cause)) return Effect.succeed(ended)
        const error = Cause.findErrorOption(cause as Cause.Cause<Adapter.AdapterError>)
        return Option.isNone(error)
          ? Effect.failCause(cause as Cause.Cause<never>)
          : Effect.succeed<Signal>({ _tag: "Broken", error: error.value, hasBegun: this.hasBegun })
      }
    })
  }

  /** What comes next, of the model or of the tools beside it. Each is to be read once. */
  get next(): Effect.Effect<Signal, E> {
    return this.batch === undefined ? this.model : this.besideModel(this.batch)
  }

  private besideModel(batch: Batch<E>): Effect.Effect<Signal, E> {
    if (!batch.isEmpty) return batch.take
    if (this.run.ambient.cancellation?.isRequested === true) return Effect.succeed(ended)
    this.listen(batch)
    const { read } = this
    if (read === undefined) {
      return Effect.flatMap(
        batch.take,
        (events): Effect.Effect<Signal, E> => events.length === 0 ? this.next : Effect.succeed(events)
      )
    }
    this.read = undefined
    return read
  }

  private listen(batch: Batch<E>): void {
    if (this.fiber !== undefined || this.read !== undefined) return
    const fiber = Effect.runForkWith(batch.services)(this.model)
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
    if (this.isOver || !events.some(isCompletedCall)) return []
    const { settings, mode } = this.run
    if (settings.policy.start === "afterTurn" || mode === "manual" || events.some(isEnding)) return []
    return events.flatMap((event) => event._tag === "ToolCallCompleted" ? this.decodable(event) : [])
  }

  private decodable(event: Event.Of<"ToolCallCompleted">): ReadonlyArray<Plan.Decode> {
    const { tools, settings, state } = this.run
    const tool = tools.get(event.name)
    if (tool === undefined || !this.mayStart(tool)) return []
    const taken = state.calls.take(event)
    if (taken === undefined) return []
    const job = Plan.planned(taken.index, taken.call, tools, settings.policy)
    if (job._tag === "Decode" && taken.call.argumentsLost === undefined) return [job]
    state.calls.giveBack(taken.index)
    return []
  }

  private mayStart(tool: Tool.Any): boolean {
    const isWaiting = tool.manual || (tool.approval ?? false) !== false
    return !isWaiting && (this.run.settings.policy.start === "onCallReady" || tool.readOnly)
  }

  /** Starts calls. From the first one on the model is read beside the tools. */
  start(jobs: ReadonlyArray<Plan.Decode>): Effect.Effect<void, never, R> {
    return Effect.map(this.beside(), (batch) => {
      batch.add(jobs)
      batch.begin()
    })
  }

  private beside(): Effect.Effect<Batch<E>, never, R> {
    return Effect.gen({ self: this }, function*() {
      if (this.batch !== undefined) return this.batch
      this.batch = yield* this.openBatch(Infinity)
      yield* Scope.addFinalizer(this.connection, this.stopReading)
      return this.batch
    })
  }

  private readonly stopReading: Effect.Effect<void> = Effect.suspend(() =>
    this.fiber === undefined ? Effect.void : Fiber.interrupt(this.fiber)
  )

  /** The reply has been read: its connection is closed, and nothing starts early any more. */
  readonly close: Effect.Effect<void> = Effect.suspend(() => {
    this.isOver = true
    return Scope.close(this.connection, Exit.void)
  })

  /**
   * The batch of the early calls, for the rest of the turn to join. Those of a reply that was cut off, filtered or
   * broken are called back; after the latter two the rest is not to run either.
   */
  handOver(finishReason: Response.FinishReason | null): Batch<E> | undefined {
    const { batch } = this
    this.batch = undefined
    if (finishReason === "length") batch?.callBack(Division.ending(finishReason))
    if (finishReason === "content_filter" || finishReason === "error") batch?.cancel(Division.ending(finishReason))
    return batch
  }
}
