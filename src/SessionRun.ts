/**
 * An operation of a session while it runs: first the calls that were approved, then the model, and every event of both
 * through the reducer that gives the session after it. What has to be written down before something goes on is written
 * by what it belongs to: a run before its first event, a call before its handler. Public as `Session`.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import * as Chat from "./Chat.ts"
import * as Collector from "./Collector.ts"
import type * as Conversation from "./Conversation.ts"
import type * as Event from "./Event.ts"
import * as Executor from "./Executor.ts"
import * as Ending from "./internal/ending.ts"
import * as Settings from "./internal/settings.ts"
import * as Turn from "./internal/turn.ts"
import * as Journal from "./Journal.ts"
import * as Keeper from "./Keeper.ts"
import type * as Message from "./Message.ts"
import * as Policy from "./Policy.ts"
import * as Step from "./Step.ts"
import * as StreamReducer from "./StreamReducer.ts"
import type * as Tool from "./Tool.ts"
import * as ToolRunner from "./ToolRunner.ts"

/** Why an operation could not be done. The caller's session is as it was. */
export type Failure = Chat.ChatError | Conversation.SessionError

type Session = Conversation.Session

type Operation = Extract<Journal.Record, { readonly _tag: "RunStarted" }>["operation"]

type Tools = ReadonlyArray<Tool.Any>

const isEmpty = (context: Session["context"]): boolean => Object.keys(context).length === 0

/** Each handler start and each outcome is written down where it happens. A run inside a handler is that run's affair. */
const journaled = (
  executor: Executor.Service,
  requestId: string,
  write: (record: Journal.Record) => Effect.Effect<void>
): Executor.Service => ({
  execute: (tool, args, call) => {
    const execution = Effect.provideService(executor.execute(tool, args, call), Keeper.Scribe, undefined)
    if (call.requestId !== requestId) return execution
    const { attempt, id: toolCallId, idempotencyKey, stepIndex, toolCall } = call
    return Effect.gen(function*() {
      yield* write({ _tag: "CallStarted", requestId, stepIndex, toolCall, attempt, idempotencyKey })
      const outcome = yield* execution
      yield* write({ _tag: "CallEnded", requestId, stepIndex, toolCallId, outcome })
      return outcome
    })
  }
})

/** One operation while it runs: its reducer, and where its records go. */
export class Run<M extends StreamReducer.Mode> {
  reducer: StreamReducer.StreamReducer<M>
  readonly requestId: string
  private readonly scribe: Keeper.Scribe | undefined

  constructor(session: Session, mode: M, requestId: string, scribe: Keeper.Scribe | undefined) {
    this.requestId = requestId
    this.scribe = scribe
    this.reducer = StreamReducer.started(session, mode, { session })
  }

  begin(operation: Operation, messages: ReadonlyArray<Message.Message>): Effect.Effect<void> {
    const { requestId } = this
    const records = [{ _tag: "RunStarted", requestId, operation, messages }] as const
    return Effect.map(Keeper.note(this.reducer.state, records, this.scribe), (state) => {
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
      : Effect.suspend(() => scribe.write([record], Journal.apply(this.reducer.state, record).session))
  }

  readonly told = <A extends ReadonlyArray<Event.Event>>(events: A): Effect.Effect<A> =>
    Effect.forEach(events, (event) => {
      const [reducer, records] = StreamReducer.next(this.reducer, event)
      const [first, ...rest] = records
      this.reducer = reducer
      return first === undefined || this.scribe === undefined
        ? Effect.void
        : this.scribe.write([first, ...rest], reducer.state.session)
    }, { discard: true }).pipe(Effect.as(events))
}

/** The calls that were approved, through the runner that every call goes through. */
const approvedCalls = <T extends Tools, E, R>(
  session: Session,
  options: Step.Options<T, E, R>
): Effect.Effect<Stream.Stream<Event.Event, E, R | Tool.Services<T[number]>>> =>
  Effect.map(Policy.Defaults, (defaults) => {
    const policy: Policy.Policy = { ...(options.policy ?? defaults.policy ?? Policy.standard), unknownTool: "answer" }
    const approved = session.approved.map((call) => call.id)
    return ToolRunner.stream(session.approved, options.tools ?? [], { ...options, policy, approved })
  })

const questionOf = (session: Session, event: Event.Event): ReadonlyArray<Event.Suspension> => {
  const toolCall = event._tag === "AskUserRequested"
    ? session.approved.find((call) => call.id === event.toolCallId)
    : undefined
  if (event._tag !== "AskUserRequested" || toolCall === undefined) return []
  const { _tag: _, toolCallId, toolName: __, ...question } = event
  return [{ id: toolCallId, kind: "question", toolCall, ...question }]
}

/** How a run ends that goes no further than its approved calls: as a step without a reply. */
const endOfApproved = (
  { approved, collector, mode, state: { session: { thread } } }: StreamReducer.StreamReducer,
  halt: Event.Halt | undefined,
  questions: ReadonlyArray<Event.Suspension>
): Event.Event => {
  const suspensions = halt?.haltedReason === "ask_user" ? questions : []
  const response = Collector.toResponse(Collector.initial())
  const messages = Collector.answers(approved)
  const step = { response, thread, messages, mode: "auto", manualToolCalls: [] } as const
  const completed = Turn.stepCompleted(step, false, false, halt, suspensions)
  if (mode === "step") return completed
  const folded = Collector.toStepResult(
    Collector.applyEvent(Collector.initial({ thread: collector.thread ?? thread }), {
      ...completed
    })
  )
  const outcome: Event.Outcome = Ending.ofStep(folded, 0) ?? { _tag: "Completed", finishReason: null }
  return { _tag: "ChatCompleted", result: Collector.chatResult({ thread, steps: [], outcome, suspensions }) }
}

/** What an operation does: how it is called, and what is said with it. */
export interface Plan<M extends StreamReducer.Mode> {
  readonly mode: M
  readonly operation: Operation
  readonly session: Session
  readonly messages: ReadonlyArray<Message.Message>
}

/**
 * The events of an operation: the approved calls, and what the model makes of them.
 *
 * @category running
 * @since 0.1.0
 */
export const stream = <M extends StreamReducer.Mode, T extends Tools, E, R, RHalt, REvent>(
  { messages, mode, operation, session }: Plan<M>,
  options: Chat.Options<T, E, R, RHalt, REvent>,
  seen: (run: Run<M>) => void = () => {}
): Stream.Stream<Event.Event, Failure | E, R | RHalt | REvent | Step.Services<T>> =>
  Stream.unwrap(Effect.gen(function*() {
    const requestId = options.requestId ?? Settings.mintRequestId(yield* Effect.context<never>())
    const run = new Run(session, mode, requestId, yield* Keeper.Scribe)
    seen(run)
    const executor = yield* Executor.Executor
    const given = {
      ...options,
      requestId,
      context: options.context ?? (isEmpty(session.context) ? null : session.context),
      sessionId: options.sessionId ?? session.id ?? null,
      cacheKey: options.cacheKey ?? session.id
    } as Chat.Options<T, E, R, RHalt, REvent>
    yield* run.begin(operation, messages)
    const questions: Array<Event.Suspension> = []
    const opening = session.approved.length === 0
      ? Stream.empty
      : Stream.mapArray(yield* approvedCalls(session, given as Step.Options<T, E, R>), (events) => {
        for (const event of events) questions.push(...questionOf(session, event))
        return events
      })
    const rest = Stream.suspend((): Stream.Stream<Event.Event, Failure | E, R | RHalt | REvent | Step.Services<T>> => {
      const { reducer } = run
      const halt = StreamReducer.haltOf(reducer)
      const isOver = session.approved.length > 0 && (halt !== undefined || mode === "step")
      if (isOver) return Stream.make(endOfApproved(reducer, halt, questions))
      const { thread } = reducer.state.session
      const { contextUpdate } = reducer.approved.tools.contextUpdate(session.approved.map((call) => call.id))
      const context = contextUpdate === undefined ? given.context ?? null : { ...given.context, ...contextUpdate }
      return mode === "step" ? Step.stream(thread, given) : Chat.stream(thread, { ...given, context })
    })
    return Stream.concat(opening, rest).pipe(
      Stream.mapArrayEffect(run.told),
      Stream.tapError(() => run.fail),
      Stream.provideService(Executor.Executor, journaled(executor, requestId, run.write))
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
  return response?.error instanceof Step.EngineError ? Effect.fail(response.error) : Effect.succeed(done)
}
