/**
 * One step while it runs: the model speaks, the tools run, the step is told. It is driven by whoever reads it, and most
 * of what it does takes no step of a fiber: a run is made of many of them.
 *
 * @since 0.1.0
 */
import * as Cause from "effect/Cause"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Pull from "effect/Pull"
import * as Scope from "effect/Scope"
import * as Adapter from "../../Adapter.ts"
import * as Collector from "../../Collector.ts"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import * as Response from "../../Response.ts"
import type * as Thread from "../../Thread.ts"
import * as Request from "../ask/request.ts"
import * as Plan from "../decide/plan.ts"
import { type Events, isNonEmpty } from "../fold/events.ts"
import * as Log from "../fold/sharedMessages.ts"
import * as Fold from "../fold/state.ts"
import { type Ending, type Listener, Reply } from "../hear/replyReader.ts"
import * as Lists from "../lists.ts"
import * as Now from "../now.ts"
import type { Batch } from "../run/batch.ts"
import * as Open from "../run/open.ts"
import * as Cancellation from "../stop/cancellation.ts"
import type { Leaving } from "../stop/ownedFibers.ts"
import { Worker } from "../stop/worker.ts"
import * as Telemetry from "../telemetry.ts"
import { Retries } from "./retries.ts"
import * as Turn from "./runEnvironment.ts"

type EventPull<E, R> = Pull.Pull<Events, Adapter.AdapterError | E, void, R>

/**
 * Where the next events come from. They are to be asked for in a step of the fiber that reads them.
 *
 * @category models
 * @since 0.1.0
 */
export interface Source<E, R> {
  readonly next: () => EventPull<E, R>
}

/**
 * How a step ended: whether the run was cancelled first, and why it could not be started if it has no `StepCompleted`.
 *
 * @category models
 * @since 0.1.0
 */
export interface Ended {
  readonly isCut: boolean
  readonly startError?: unknown
}

/** Where a step stands in its run, and what follows it. */
interface Place<E, R> {
  readonly thread: Thread.Thread
  readonly stepIndex: number
  readonly following: Following<E, R>
}

/**
 * What goes on when a step has ended.
 *
 * @category models
 * @since 0.1.0
 */
export interface Following<E, R> {
  readonly after: (ended: Ended) => EventPull<E, R>
}

/** What a phase of a step comes to. It leaves behind which phase is next. */
type Told<E, R> = Effect.Effect<ReadonlyArray<Event.Event>, Adapter.AdapterError | E | Cause.Done, R>

type Phase<E, R> = () => Told<E, R>

/**
 * Opens a step on a thread, which goes on with what follows it when it has ended. Nothing happens before the first read.
 * Until it has ended the run's scope closes what it holds: the adapter's connection, and its batches.
 *
 * @category running
 * @since 0.1.0
 */
export const open = <E, R>(
  context: Context.Context<R>,
  run: Turn.Run<E, R>,
  place: Place<E, R>
): Effect.Effect<Source<E, R>, never, R> => {
  const isTraced = run.isTraced || Telemetry.isTraced(context)
  const span = isTraced ? Scope.makeUnsafe() : undefined
  const step = new StepRun(run, place, span)
  run.running.step = step
  if (span === undefined) return Effect.succeed(step)
  const spanned = run.within(Telemetry.stepSpan(span, run.settings.requestId, place.stepIndex))
  return Effect.map(spanned, (within) => ({ next: () => within(Effect.suspend(() => step.next())) }))
}

/** The phases of a step. */
class StepRun<E, R> implements Source<E, R>, Listener<E, R>, Leaving {
  /** How it ended by itself: handlers that outlive such a step are the run's. */
  private ended: Ended | undefined
  private readonly run: Turn.Run<E, R>
  private readonly thread: Thread.Thread
  private readonly stepIndex: number
  private readonly following: Following<E, R>
  private readonly span: Scope.Closeable | undefined
  /** What the model says, until its calls are those of the turn: of a step whose tools run there may be many. */
  private reply: Reply<E, R> | undefined
  /** The latest, and those before it. */
  private batch: Batch<E> | undefined
  private earlier: ReadonlyArray<Batch<E>> = Lists.none
  /** Whether the latest is worked to its end before the next phase. */
  private isWorking = false
  private phase: Phase<E, R> | undefined
  private isSpeaking = false
  /** Milliseconds until the model is asked again, if it is. */
  private delay: number | undefined
  private readonly retries: Retries | undefined

  constructor(run: Turn.Run<E, R>, place: Place<E, R>, span: Scope.Closeable | undefined) {
    this.run = run
    this.thread = place.thread
    this.stepIndex = place.stepIndex
    this.following = place.following
    this.span = span
    this.retries = run.retryReply === undefined ? undefined : new Retries(run.retryReply)
  }

  /** The next events that are shown. While the model speaks this is most of what a run does: it takes few steps. */
  next(): EventPull<E, R> {
    if (this.isSpeaking && this.reply !== undefined) return this.reply.next
    if (this.ended !== undefined) return this.following.after(this.ended)
    return this.phase === undefined ? this.opening() : this.goOn()
  }

  private goOn(before?: ReadonlyArray<Event.Event>): EventPull<E, R> {
    return this.tell(this.proceed(), before)
  }

  private proceed(): Told<E, R> {
    const { batch, phase } = this
    if (this.isLeft || phase === undefined) return Cause.done()
    return this.isWorking && batch?.isAtEnd === false ? batch.take : phase()
  }

  /** Whether somebody else has left the run, while its reader was still in a pull: that one goes no further. */
  private get isLeft(): boolean {
    return this.run.running.isStopping
  }

  /**
   * The phase that is next. A function that stands where a property is set is made among the old objects, and keeps all that
   * it closes over until these are collected, which a long run does not live to see: it is handed over instead.
   */
  private follow(phase: Phase<E, R>): void {
    this.phase = phase
  }

  private tell(events: Told<E, R>, before?: ReadonlyArray<Event.Event>): EventPull<E, R> {
    return Now.flatMap(events, (told) => this.told(told, before))
  }

  /**
   * Its connection is closed first: a model that nobody hears must not go on generating while handlers take their time to
   * stop. Then its handlers are stopped, unless it has ended by itself, and what it holds is returned.
   */
  leave(exit: Exit.Exit<unknown, unknown>): Effect.Effect<void> {
    let closed = Effect.void
    for (const batch of this.earlier) closed = Now.both(closed, batch.close())
    if (this.batch !== undefined) closed = Now.both(closed, this.batch.close())
    if (this.span !== undefined) closed = Now.both(closed, Scope.close(this.span, exit))
    const disconnected = this.disconnect(exit)
    // In a run that is left, what still closes is waited for with the handlers.
    if (!this.run.running.isLeft) return Now.both(disconnected, closed)
    return this.ended === undefined ? Effect.flatMap(this.run.running.stop, () => closed) : closed
  }

  told(events: ReadonlyArray<Event.Event>, before: ReadonlyArray<Event.Event> = Lists.none): EventPull<E, R> {
    const { state, view } = this.run
    Fold.apply(state, events)
    const seen = Turn.lookAt(view, events)
    // Without anything to hide the array is handed on as it is.
    const shown = (seen & Turn.Look.hidden) === 0 ? events : Turn.shown(view, events)
    const visible = before.length === 0 ? shown : before.concat(shown)
    const ready = (seen & Turn.Look.final) === 0 ? Lists.none : this.reply?.ready(events) ?? Lists.none
    if (view.onEvent !== undefined) return this.observed(events, visible, ready)
    if (ready.length > 0) return this.started(ready, visible)
    const isWorked = this.ended === undefined && this.batch?.isAtEnd === true
    return isWorked ? this.goOn(visible) : this.show(visible)
  }

  /** What a tool shows that needs no time comes with the event that made it start. */
  private started(ready: ReadonlyArray<Plan.Decode>, visible: ReadonlyArray<Event.Event>): EventPull<E, R> {
    this.reply?.start(ready)
    const events = this.reply?.takeNow() ?? Lists.none
    return events.length === 0 ? this.show(visible) : this.told(events, visible)
  }

  /** An observer has seen what comes first before anything comes of it. */
  private observed(
    events: ReadonlyArray<Event.Event>,
    visible: ReadonlyArray<Event.Event>,
    ready: ReadonlyArray<Plan.Decode>
  ): EventPull<E, R> {
    const after = ready.length === 0 ? Effect.void : Effect.sync(() => this.reply?.start(ready))
    return Turn.observed(this.run, events).pipe(
      Effect.andThen(after),
      Effect.flatMap(() => this.show(visible))
    )
  }

  private show(visible: ReadonlyArray<Event.Event>): EventPull<E, R> {
    return isNonEmpty(visible) ? Effect.succeed(visible) : Effect.suspend(() => this.next())
  }

  over(ending: Ending): EventPull<E, R> {
    this.isSpeaking = false
    if (this.isLeft) return Cause.done()
    const proceed = () => this.tell(this.replied(ending))
    if (this.retries === undefined || this.reply?.hasStarted === true || this.isCancelled) return proceed()
    const error = ending._tag === "Broken" ? ending.error : this.run.state.error?.value
    if (!(error instanceof Adapter.AdapterError)) return proceed()
    const { running, settings: { requestId: id } } = this.run
    const worker = new Worker(running, { kind: "hook", id, name: "retryReply", onSoftStop: "none", once: true })
    return Effect.flatMap(worker.do(this.retries.delay(error), Exit.succeed(undefined)), (delay) => {
      if (this.isLeft) return Cause.done()
      if (delay !== undefined) return this.again(error, delay)
      // Nothing was said, and nothing failed that was waited for.
      const isNothing = this.isCancelled && ending._tag === "Broken" && !ending.hasBegun
      return isNothing ? this.tell(this.spoken()) : proceed()
    })
  }

  /** What the reply came to. */
  private replied(ending: Ending): Told<E, R> {
    return ending._tag === "Ended" ? this.spoken() : this.broken(ending.error, ending.hasBegun)
  }

  /** The reply counts as not said, and the model is asked for it again after a delay. */
  private again(error: unknown, delay: number): EventPull<E, R> {
    return Effect.flatMap(this.disconnect(Exit.void), () => {
      this.reply = undefined
      this.delay = delay
      return this.told([{ _tag: "StepReset", error }])
    })
  }

  private get isCancelled(): boolean {
    return this.run.ambient.cancellation?.isRequested === true
  }

  /** The batch is known to the step before anything can come between. */
  openBatch(calls: number): Batch<E> {
    const { ambient, running, settings } = this.run
    const batch = Open.open<E, R>(Now.services(), calls, settings, this.stepIndex, running, ambient)
    if (this.batch !== undefined) this.earlier = [...this.earlier, this.batch]
    this.batch = batch
    return batch
  }

  /** A run that is cancelled before the model is asked again goes on with nothing said. */
  private waiting(delay: number): EventPull<E, R> {
    const waited = delay > 0 ? Effect.sleep(delay) : Effect.void
    this.delay = undefined
    return Effect.flatMap(Cancellation.orElse(waited, this.run.ambient.cancellation, () => undefined), () => {
      if (this.isLeft) return Cause.done()
      return this.isCancelled ? this.tell(this.spoken()) : this.opening()
    })
  }

  private opening(): EventPull<E, R> {
    if (this.delay !== undefined) return this.waiting(this.delay)
    const { adapter, system, template } = this.run
    const messages = Request.messages(system, Log.list(this.thread))
    this.isSpeaking = true
    const reply = this.reply = new Reply(this.run, this)
    return reply.connect(() => adapter.stream({ ...template, messages }))
  }

  /** Before its first event a failure is the step's, or that of a run that has come further; then it is an event. */
  private broken(error: unknown, hasBegun: boolean): Told<E, R> {
    if (hasBegun) {
      this.follow(() => this.spoken())
      return Effect.succeed([{ _tag: "Error", error } as const])
    }
    if (this.stepIndex === 0) return Effect.fail(Adapter.AdapterError.from(error))
    return Effect.as(this.close({ isCut: false, startError: error }), Lists.none)
  }

  /** The connection is closed before any other tool starts, however the reply has ended. */
  private disconnect(exit: Exit.Exit<unknown, unknown>): Effect.Effect<void> {
    return this.reply?.close(exit) ?? Effect.void
  }

  /** Its reader learns of the stop when it asks for what comes next, which may be after a hook of the caller's. */
  hangUp(): void {
    if (this.isSpeaking) void this.disconnect(Exit.void)
  }

  private spoken(): Told<E, R> {
    return Now.andThen(this.disconnect(Exit.void), () => {
      const response = Turn.heard(Collector.toResponse(this.run.state), this.run)
      return Now.flatMap(Turn.reported(response), (reported) => this.acted(reported))
    })
  }

  private acted(response: Response.Response): Told<E, R> {
    const isActedOn = this.isActedOn(response)
    const calls = Response.actionableCalls(response)
    const { mode, settings: { policy }, state, tools } = this.run
    const unknown = isActedOn && mode === "auto" ? Plan.failing(calls, tools, policy) : undefined
    if (unknown !== undefined) {
      this.follow(() => this.completed({ ...response, finishReason: "error", error: unknown }, Plan.uncommitted))
      return Effect.succeed([{ _tag: "Error", error: unknown } as const])
    }
    const isStarted = (position: number) => state.calls.isTaken(position)
    return this.act(response, Plan.divide(calls, response, this.run, isStarted, isActedOn))
  }

  private act(response: Response.Response, division: Plan.Plan): Told<E, R> {
    const early = this.reply?.handOver(response.finishReason)
    this.reply = undefined
    return this.work(division.jobs, () => this.worked(response, division), early)
  }

  private isActedOn(response: Response.Response): boolean {
    return !this.isCancelled && Collector.isToolTurn(this.run.settings.policy, response)
  }

  /** Runs a batch to its end, and goes on with what it came to. */
  private work(jobs: ReadonlyArray<Plan.Job>, next: Phase<E, R>, early?: Batch<E>): Told<E, R> {
    if (early === undefined && jobs.length === 0) return next()
    const batch = early ?? this.openBatch(jobs.length)
    batch.add(jobs)
    batch.seal()
    this.isWorking = true
    this.follow(next)
    return this.proceed()
  }

  /** What waits stays open, unless the run is over: then it is answered as cancelled. */
  private worked(response: Response.Response, division: Plan.Plan): Told<E, R> {
    return Now.flatMap(Plan.ended(division, response, this.run, this.batch, this.isCancelled), (ended) => {
      if (ended.closed.length === 0) return this.completed(response, ended)
      return this.work(ended.closed, () => this.completed(response, ended))
    })
  }

  /** What the run put behind the step before, to introduce this one. */
  private get introduction(): ReadonlyArray<Message.Message> {
    const { thread } = this.run.state
    const known = thread === undefined ? Infinity : Log.length(thread)
    return Log.length(this.thread) > known ? Log.since(this.thread, known) : Lists.none
  }

  /** What comes after the step takes over once its last events have been told. */
  private close(ended: Ended): Effect.Effect<void> {
    this.ended = ended
    // Whoever leaves the run before this is done finds the step where it was.
    return Now.andThen(this.leave(Exit.void), () => {
      this.run.running.step = undefined
      return Effect.void
    })
  }

  private completed(response: Response.Response, division: Plan.Ended): Told<E, R> {
    const { suspensions } = division
    const { state, settings, mode } = this.run
    const message = Turn.assistantMessage(response, division.calls, response.message?.reasoning)
    // A step that has decided to wait is not cut any more: its calls are left open.
    const isCut = suspensions.length === 0 && this.run.ambient.cancellation?.isRequested === true
    // A question that was withdrawn halts nothing; another halt may decide in its place.
    const halt = isCut && division.halt?.haltedReason === "ask_user" ? Collector.halt(state) : division.halt
    return Now.andThen(this.close({ isCut }), () => {
      const said = isCut && Turn.isEmpty(message) ? [] : [message]
      // A run of one step has nobody to share its messages with.
      const grow = this.stepIndex === 0 ? Log.longer : Log.grown
      const added = said.concat(Collector.answers(state))
      const thread = grow(this.thread, added)
      const { introduction } = this
      const messages = introduction.length === 0 ? added : introduction.concat(added)
      const told = { response, thread, messages, mode, manualToolCalls: division.manual }
      const isToolTurn = Collector.isToolTurn(settings.policy, response)
      const isDone = isCut || Collector.isDone(settings.policy, response)
      return Effect.succeed([Turn.stepCompleted(told, isToolTurn, isDone, halt, suspensions)])
    })
  }
}
