/**
 * An operation of a session while it runs: what has been settled since the last run, the calls that were approved, then the
 * model, and every event of these through the reducer that gives the session after it. What has to be written down before something goes on is written
 * by what it belongs to: a run before its first event, a call before its handler. Public as `Session`.
 *
 * @since 0.1.0
 */
import type * as Arr from "effect/Array"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Chat from "../../Chat.ts"
import * as Collector from "../../Collector.ts"
import type * as Event from "../../Event.ts"
import * as Executor from "../../Executor.ts"
import type * as Message from "../../Message.ts"
import * as Policy from "../../Policy.ts"
import * as Step from "../../Step.ts"
import type * as Tool from "../../Tool.ts"
import * as ToolRunner from "../../ToolRunner.ts"
import * as OpenCalls from "../answer/openCalls.ts"
import * as Settings from "../ask/options.ts"
import * as Ending from "../fold/outcome.ts"
import * as Log from "../fold/sharedMessages.ts"
import * as Turn from "../loop/runEnvironment.ts"
import * as Cancellation from "../stop/cancellation.ts"
import * as Deadline from "../stop/deadline.ts"
import * as Ambient from "../stop/inherited.ts"
import * as Limits from "../stop/limits.ts"
import { Running } from "../stop/ownedFibers.ts"
import { Spending } from "../stop/spending.ts"
import * as Journal from "./record.ts"
import * as Keeper from "./recorder.ts"
import * as StreamReducer from "./reducer.ts"
import * as Conversation from "./state.ts"

/** Why an operation could not be done. The caller's session is as it was, and no approved call of it has run. */
export type Failure = Chat.ChatError | Conversation.SessionError

type Session = Conversation.Session

type Started = Extract<Journal.Record, { readonly _tag: "RunStarted" }>

type Tools = ReadonlyArray<Tool.Any>

const isEmpty = (context: Session["context"]): boolean => Object.keys(context).length === 0

/** Each handler start and each outcome is written down where it happens. A run inside a handler is that run's affair. */
const journaled = (
  executor: Executor.Service,
  requestId: string,
  write: (record: Journal.Record) => Effect.Effect<void>
): Executor.Service => ({
  execute: (tool, args, call) => {
    const execution = executor.execute(tool, args, call).pipe(
      Effect.provideService(Keeper.Scribe, undefined),
      Effect.provideService(Limits.CurrentOperation, undefined)
    )
    if (call.requestId !== requestId) return execution
    const { attempt, id: toolCallId, idempotencyKey, stepIndex, toolCall } = call
    return Effect.gen(function*() {
      yield* write({ _tag: "CallStarted", requestId, stepIndex, toolCall, attempt, idempotencyKey })
      const outcome = yield* execution
      const expiry = OpenCalls.expiry(outcome, yield* Clock.currentTimeMillis)
      yield* write({ _tag: "CallEnded", requestId, stepIndex, toolCallId, outcome, ...expiry })
      return outcome
    })
  }
})

/** Where the records of an operation go, and what it waits for beside its runs. */
interface Surroundings {
  readonly scribe: Keeper.Scribe | undefined
  readonly running: Running
  readonly stopping: Running
}

/** One operation while it runs: its reducer, and where its records go. */
export class Run<M extends StreamReducer.Mode> {
  reducer: StreamReducer.StreamReducer<M>
  readonly requestId: string
  private readonly scribe: Keeper.Scribe | undefined

  private readonly running: Running
  /** What the effect runs in that may ask the operation to stop. It is stopped when there is a result. */
  private readonly stopping: Running
  /** Handlers of approved calls that did not stop. */
  private readonly abandoned: Array<Event.Abandoned> = []

  constructor(session: Session, mode: M, requestId: string, { running, scribe, stopping }: Surroundings) {
    this.requestId = requestId
    this.scribe = scribe
    this.running = running
    this.stopping = stopping
    this.reducer = StreamReducer.started(session, mode, { session })
  }

  begin({ answered, messages, operation }: Plan<M>): Effect.Effect<void> {
    const { requestId } = this
    const begun = { _tag: "RunStarted", requestId, operation, messages } as const
    const records = [answered === undefined ? begun : { ...begun, answered }] as const
    return Effect.map(Keeper.note(this.reducer.state, records, this.scribe, this.running), (state) => {
      this.reducer = { ...this.reducer, state }
    })
  }

  readonly fail: Effect.Effect<void> = Effect.suspend(() =>
    this.write({ _tag: "RunFailed", requestId: this.requestId })
  )

  /** What tells of a call is written by the call itself; the reducer does not see it. */
  readonly write = (record: Journal.Record): Effect.Effect<void> => {
    const { scribe } = this
    return scribe === undefined
      ? Effect.void
      : Effect.suspend(() => scribe.write([record], Journal.apply(this.reducer.state, record).session, this.running))
  }

  readonly told = (events: Arr.NonEmptyReadonlyArray<Event.Event>) =>
    Effect.forEach(events, (told) => told._tag === "ChatCompleted" ? this.completed(told) : this.tell(told))

  private tell(event: Event.Event): Effect.Effect<Event.Event> {
    return Effect.suspend(() => {
      const [reducer, records] = StreamReducer.next(this.reducer, event)
      const [first, ...rest] = records
      this.reducer = reducer
      const written = first === undefined || this.scribe === undefined
        ? Effect.void
        : this.scribe.write([first, ...rest], reducer.state.session, this.running)
      return Effect.as(written, event)
    })
  }

  /** What the operation is to the runs that it consists of. The turns behind the approved calls have their own result. */
  operation(isOfApproved: boolean, continued?: string): Limits.Operation {
    const isLeft = (now: number) => this.running.leftWith(now)
    if (isOfApproved) return { isLeft, left: (abandoned) => void this.abandoned.push(...abandoned) }
    return continued === undefined ? { isLeft } : { isLeft, continued }
  }

  /**
   * The result names what else was left behind: handlers of approved calls, an append, and what may ask for the stop, which
   * it may still do while the end is written.
   */
  private completed(event: Event.Of<"ChatCompleted">): Effect.Effect<Event.Event> {
    return Effect.suspend(() => {
      const before = this.reducer
      const known = [...this.abandoned, ...this.running.leftBehind]
      return Effect.flatMap(Effect.andThen(this.tell(event), this.stopping.stop), (deaf) => {
        const left = [...known, ...deaf]
        if (left.length === 0) return Effect.succeed(event)
        const abandoned = [...left, ...event.result.abandoned ?? []]
        const named = { ...event, result: { ...event.result, abandoned } }
        this.reducer = StreamReducer.next(before, named)[0]
        return Effect.succeed(named)
      })
    })
  }
}

const none: Tools = []

/** The calls that were approved, through the runner that every call goes through. */
const approvedCalls = <T extends Tools, E, R>(
  session: Session,
  options: Step.Options<T, E, R>,
  policy: Policy.Policy
): Stream.Stream<Event.Event, E | Tool.Fatal<T[number]>, R | Tool.Services<T[number]>> =>
  ToolRunner.stream<T, E, R>(session.approved, options.tools ?? none as T, {
    ...options,
    policy: { ...policy, unknownTool: "answer" },
    approved: session.approved.map((call) => call.id)
  })

/** What stops the approved calls and the turns behind them alike. The deadline counts from the start of the operation. */
interface Stops {
  readonly cancellation: Cancellation.Cancellation | undefined
  readonly deadline: number | undefined
}

const unstopped: Stops = { cancellation: undefined, deadline: undefined }

const stopsOf = <E, R>(
  options: Settings.RunnerOptions<E, R, any>,
  requestId: string,
  { running, stopping }: Surroundings
): Effect.Effect<Stops, never, R | Scope.Scope> =>
  Effect.gen(function*() {
    const defaults = yield* Policy.Defaults
    const settings = Settings.resolve(options, defaults, Policy.standard, requestId)
    const parent = yield* Limits.ParentCancellation
    const deadline = Deadline.resolve(settings.deadline, yield* Limits.Deadline, yield* Clock.currentTimeMillis)
    const cancel = options.cancel ?? undefined
    if ((parent ?? deadline ?? cancel) === undefined) return unstopped
    const cancellation = new Cancellation.Cancellation()
    yield* Ambient.watch(cancellation, { parent, deadline, cancel }, yield* Effect.scope)
    yield* Effect.sync(() => {
      Ambient.listen(running, { cancellation }, undefined, requestId)
      Ambient.listen(stopping, { cancellation }, cancel, requestId)
    })
    return { cancellation, deadline: deadline?.at }
  })

/** How the approved calls ended: cut short by a cancellation, with a halt that decides, and with open questions. */
interface Approved {
  readonly cancellation: Cancellation.Cancellation | undefined
  readonly halt: Event.Halt | undefined
  readonly questions: ReadonlyArray<Event.Suspension>
}

const endOf = (
  reducer: StreamReducer.StreamReducer,
  { cancellation }: Stops,
  policy: Policy.Policy
): Approved => {
  const cut = cancellation?.isRequested === true ? cancellation : undefined
  const halt = StreamReducer.haltOf(reducer, policy)
  const isQuestion = halt?.haltedReason === "ask_user"
  const questions = StreamReducer.questionsOf(reducer)
  return { cancellation: cut, halt: cut !== undefined && isQuestion ? undefined : halt, questions }
}

/** A run that does not end to wait withdraws its questions. */
const withdrawals = ({ cancellation, halt, questions }: Approved): ReadonlyArray<Event.Event> => {
  if (halt?.haltedReason === "ask_user") return []
  const detail = cancellation === undefined ? "another call of the turn ended the run" : "the run was cancelled"
  return questions.map(({ toolCall }) => OpenCalls.settlement(Conversation.cancelled(toolCall, `withdrawn: ${detail}`)))
}

/** How a run ends that goes no further than its approved calls: as a step without a reply. */
const endOfApproved = (
  { collector, mode, state: { session } }: StreamReducer.StreamReducer,
  { cancellation, halt }: Approved,
  totalUsage: Event.ChatResult["totalUsage"]
): Event.Event => {
  const { suspensions } = session
  const { thread } = Conversation.plain(session)
  const response = Collector.toResponse(Collector.initial())
  // The answers stand in the thread already, in the places of their calls.
  const step = { response, thread, messages: [], mode: "auto", manualToolCalls: [] } as const
  const completed = Turn.stepCompleted(step, false, cancellation !== undefined, halt, suspensions)
  if (mode === "step") return completed
  const folded = Collector.toStepResult(
    Collector.applyEvent(Collector.initial({ thread: collector.thread ?? thread }), completed)
  )
  const outcome: Event.Outcome = cancellation === undefined
    ? Ending.ofStep(folded, 0) ?? { _tag: "Completed", finishReason: null }
    : { _tag: "Cancelled", reason: cancellation.reason }
  return {
    _tag: "ChatCompleted",
    result: Collector.chatResult({ thread, steps: [], outcome, suspensions, totalUsage })
  }
}

/** How a run ends whose model could not be asked although approved calls have run: with their answers, and the error. */
const endOfUnasked = (
  { state: { session } }: StreamReducer.StreamReducer,
  error: unknown,
  totalUsage: Event.ChatResult["totalUsage"]
): ReadonlyArray<Event.Event> => {
  const { thread } = Conversation.plain(session)
  const outcome = { _tag: "Failed", error } as const
  return [
    { _tag: "Error", error },
    { _tag: "ChatCompleted", result: Collector.chatResult({ thread, steps: [], outcome, totalUsage }) }
  ]
}

/** The events of a run. Where it fails before the first reply of its model has begun, `end` takes its place. */
const orElseUnasked = <E, R, R2>(
  events: Stream.Stream<Event.Event, E, R>,
  end: (error: E) => Stream.Stream<Event.Event, never, R2>
): Stream.Stream<Event.Event, E, R | R2> => {
  let hasBegun = false
  return events.pipe(
    Stream.mapArray((told) => {
      // A reply that is asked for again counts as not begun.
      hasBegun = told[told.length - 1]?._tag !== "StepReset"
      return told
    }),
    Stream.catch((error): Stream.Stream<Event.Event, E, R2> => hasBegun ? Stream.fail(error) : end(error))
  )
}

/** Calls that have been settled since the last run. Those that may run now, or wait again, have no answer yet. */
const settledBefore = (session: Session): ReadonlyArray<Event.Event> => {
  const open = new Set([...session.approved, ...session.suspensions].map(({ id }) => id))
  return Log.answersTo(session.thread, session.answered.filter((id) => !open.has(id))).map(OpenCalls.settlement)
}

/** Whether calls of an earlier run have been settled since, or are now: one that waits is a question that is answered. */
const isContinued = ({ answered, approved, suspensions }: Session): boolean =>
  [answered, approved, suspensions].some((calls) => calls.length > 0)

/** What an operation does: how it is called, and what is said with it. */
export interface Plan<M extends StreamReducer.Mode> {
  readonly mode: M
  readonly operation: Started["operation"]
  readonly session: Session
  readonly messages: ReadonlyArray<Message.Message>
  /** A question that it answers in the place where the question waits. */
  readonly answered?: Started["answered"]
}

type Events<T extends Tools, E, R> = Stream.Stream<
  Event.Event,
  Failure | E | Tool.Fatal<T[number]>,
  R | Step.Services<T>
>

/**
 * The events of an operation: the approved calls, and what the model makes of them.
 *
 * @category running
 * @since 0.1.0
 */
export const stream = <M extends StreamReducer.Mode, T extends Tools, E, R, RHalt, REvent>(
  plan: Plan<M>,
  options: Chat.Options<T, E, R, RHalt, REvent>,
  seen: (run: Run<M>) => void = () => {}
): Events<T, E, R | RHalt | REvent> =>
  Stream.unwrap(Effect.gen(function*() {
    const { answered, mode, session } = plan
    const requestId = options.requestId ?? Settings.mintRequestId(yield* Effect.context<never>())
    const executor = yield* Executor.Executor
    const settled = settledBefore(
      answered === undefined ? session : Conversation.settle(session, answered.id, answered.answer)
    )
    const hasApproved = session.approved.length > 0
    const defaults = yield* Policy.Defaults
    const { graceMillis } = Settings.resolve(options, defaults, Policy.standard, requestId)
    const running = new Running(graceMillis, yield* Effect.context<never>())
    const stopping = new Running(graceMillis, yield* Effect.context<never>())
    // They have one grace period, both together.
    yield* Effect.addFinalizer((exit) =>
      Effect.all([running.end(exit), stopping.end(exit)], { concurrency: "unbounded", discard: true })
    )
    const scribe = yield* Keeper.Scribe
    const surroundings = { scribe, running, stopping }
    const run = new Run(session, mode, requestId, surroundings)
    seen(run)
    const isOwn = hasApproved || settled.length > 0 || scribe !== undefined
    const stops = isOwn ? yield* stopsOf(options, requestId, surroundings) : unstopped
    const spending = new Spending(yield* Limits.CurrentSpending, true)
    yield* spending.enter(yield* Effect.scope)
    const given = {
      ...options,
      requestId,
      context: options.context ?? (isEmpty(session.context) ? null : session.context),
      sessionId: options.sessionId ?? session.id ?? null,
      cacheKey: options.cacheKey ?? session.id,
      ...(stops === unstopped ? {} : { cancel: null })
    } as Chat.Options<T, E, R, RHalt, REvent>
    yield* run.begin(plan)
    const seenBy = <A extends ReadonlyArray<Event.Event>>(events: A) =>
      Effect.as(Turn.observed({ view: options, running, settings: { requestId } }, events), events)
    const policy = options.policy ?? defaults.policy ?? Policy.standard
    const approved = hasApproved
      ? Stream.provideService(
        approvedCalls(session, given as Step.Options<T, E, R>, policy),
        Limits.CurrentOperation,
        run.operation(true)
      )
      : Stream.empty
    const opening = Stream.concat(Stream.fromIterable(settled), approved).pipe(Stream.mapArrayEffect(seenBy))
    const rest = Stream.suspend((): Events<T, E, R | RHalt | REvent> => {
      const { reducer } = run
      const end = endOf(reducer, stops, policy)
      if (hasApproved && (mode === "step" || end.halt !== undefined || end.cancellation !== undefined)) {
        const last = Stream.suspend(() => Stream.make(endOfApproved(run.reducer, end, spending.total)))
        return Stream.concat(Stream.fromIterable(withdrawals(end)), last).pipe(Stream.mapArrayEffect(seenBy))
      }
      const { thread } = Conversation.plain(reducer.state.session)
      const { contextUpdate } = reducer.approved.tools.contextUpdate(session.approved.map((call) => call.id))
      const context = contextUpdate === undefined ? given.context ?? null : { ...given.context, ...contextUpdate }
      if (mode === "step") return Step.stream(thread, given)
      const turns = Chat.stream(thread, { ...given, context })
      if (!hasApproved) return turns
      // What has run must not be lost with a failure, or the caller who tries again pays twice.
      return orElseUnasked(turns, (error) =>
        Stream.fromIterable(endOfUnasked(run.reducer, error, spending.total)).pipe(Stream.mapArrayEffect(seenBy)))
    })
    const whole = Stream.concat(opening, rest).pipe(
      Stream.mapArrayEffect(run.told),
      Stream.tapError(() =>
        run.fail
      ),
      Stream.provideService(Executor.Executor, journaled(executor, requestId, run.write)),
      Stream.provideService(
        Limits.CurrentOperation,
        run.operation(false, isContinued(session) ? requestId : undefined)
      ),
      Stream.provideService(Limits.CurrentSpending, spending)
    )
    return stops === unstopped ? whole : whole.pipe(
      Stream.provideService(Limits.ParentCancellation, stops.cancellation),
      Stream.provideService(Limits.Deadline, stops.deadline)
    )
  }))

/**
 * An operation, awaited: the fold of its stream.
 *
 * @category running
 * @since 0.1.0
 */
export const awaited = <M extends StreamReducer.Mode, E, R>(
  events: (seen: (run: Run<M>) => void) => Stream.Stream<Event.Event, Failure | E, R>
): Effect.Effect<StreamReducer.Finalized<M>, Failure | E, R> =>
  Effect.suspend(() => {
    let run: Run<M> | undefined
    const drained = Stream.runDrain(events((started) => {
      run = started
    }))
    return Effect.flatMap(drained, () => run === undefined ? Effect.die("no run") : finished(run.reducer))
  })

const finished = <M extends StreamReducer.Mode>(
  reducer: StreamReducer.StreamReducer<M>
): Effect.Effect<StreamReducer.Finalized<M>, Step.EngineError> => {
  const done = StreamReducer.finalize(reducer)
  const { response } = "steps" in done.result ? done.result.steps[0] ?? {} : done.result
  const hasRun = reducer.session.approved.length > 0
  return response?.error instanceof Step.EngineError && !hasRun ? Effect.fail(response.error) : Effect.succeed(done)
}
