/**
 * The operations of a session. Each is checked against the session first: a wrong status is a defect that names the right
 * call, and wrong data a typed error. Then it runs through the same loop as every run: first the calls that were approved,
 * then the model, and every event of these goes through the reducer that gives the session after it. What
 * has to be recorded before something follows from it is recorded where that starts: a run before its first event, a call
 * before its handler. Public as `Session`.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Adapter from "../../Adapter.ts"
import * as Chat from "../../Chat.ts"
import * as Collector from "../../Collector.ts"
import type * as Event from "../../Event.ts"
import * as Executor from "../../Executor.ts"
import * as Message from "../../Message.ts"
import * as Policy from "../../Policy.ts"
import type * as Response from "../../Response.ts"
import * as Step from "../../Step.ts"
import * as Thread from "../../Thread.ts"
import type * as Tool from "../../Tool.ts"
import * as ToolRunner from "../../ToolRunner.ts"
import * as Answers from "../answer/answer.ts"
import * as OpenCalls from "../answer/openCalls.ts"
import * as SubAgent from "../answer/subAgent.ts"
import * as Settings from "../ask/options.ts"
import * as ToolOutcomes from "../declare/outcome.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import * as Outcomes from "../fold/outcome.ts"
import * as SharedMessages from "../fold/sharedMessages.ts"
import * as ToolCalls from "../hear/toolCalls.ts"
import * as Json from "../json.ts"
import * as Loop from "../loop/loop.ts"
import * as Replay from "../run/replay.ts"
import * as Cancellation from "../stop/cancellation.ts"
import * as Deadline from "../stop/deadline.ts"
import * as Inherited from "../stop/inherited.ts"
import { CurrentOperation, Running } from "../stop/ownedFibers.ts"
import * as Ledgers from "./ledger.ts"
import * as Nested from "./nested.ts"
import { type NestedAnswers, type NestingOf, OperationRun, recording } from "./operation.ts"
import * as Recorders from "./recorder.ts"
import type * as Records from "./records.ts"
import * as Reducer from "./reducer.ts"
import * as SessionState from "./state.ts"
import type * as Stores from "./store.ts"

/**
 * Why an operation could not be done. The caller's session is as it was, and no approved call of it has run: once one
 * has, a model that cannot be asked ends the operation with outcome `Failed`, so that its answer is kept.
 *
 * @category errors
 * @since 0.1.0
 */
export type Failure = Chat.ChatError | SessionState.SessionError

type Session = SessionState.Session

type Started = Extract<Records.Record, { readonly _tag: "RunStarted" }>

type Tools = ReadonlyArray<Tool.Any>

const none: Tools = []

// Checks: what the status of a session allows.

/** A run that was cut, as it is taken up. */
interface Resumed {
  /** The journal as it was read. */
  readonly state: Records.JournalState
  readonly interrupted: Records.Interrupted
  readonly ledger: Ledgers.Ledger
  /** Why the run is ended in place of being taken up: what has happened is answered, and nothing new starts. */
  readonly ending: Ending | undefined
}

/** A stop that was requested, or what the run fails with. */
type Ending = { readonly _tag: "Stop" } | { readonly _tag: "Failure"; readonly error: Ledgers.ResumeError }

/** An operation that the session allows, and the user message of it. */
export interface Operation<M extends Reducer.Mode> {
  readonly mode: M
  readonly name: Started["operation"]
  readonly session: Session
  readonly messages: ReadonlyArray<Message.Message>
  /** An open question that it answers in the place where the question waits. */
  readonly answered?: Started["answered"]
  /** The submission that it takes up. */
  readonly submitted?: string
  /** The run that was cut and is taken up. */
  readonly resumed?: Resumed
  /** What it is a part of. */
  readonly parent?: Records.Parent
}

const wrong = (operation: string, { status }: Session, instead: string) =>
  Effect.die(new Error(`Session.${operation}: the session is ${status}; call ${instead}`))

/** What settles a suspension, by its kind. */
const settling: Record<Event.Suspension["kind"], string> = {
  question: "Session.answer for each question",
  manual: "Session.submitToolResult for each manual call",
  approval: "Session.approve or Session.deny for each approval"
}

const kinds = ({ suspensions }: Session): ReadonlyArray<Event.Suspension["kind"]> => [
  ...new Set(suspensions.map(({ kind }) => kind))
]

/** The operations that are possible. A reply answers a question if nothing else is open. */
const instead = (session: Session): string =>
  session.suspensions.length === 1 && session.suspensions[0]?.kind === "question"
    ? "Session.reply"
    : kinds(session).map((kind) => settling[kind]).join(", ")

/** Checks that no call is open. */
const free = (operation: string, session: Session): Effect.Effect<void, SessionState.SessionError> =>
  Effect.andThen(
    usable(session),
    session.suspensions.length === 0 ? Effect.void : wrong(operation, session, instead(session))
  )

const approvalPending = (session: Session): string => {
  const others = kinds(session).filter((kind) => kind !== "approval").map((kind) => settling[kind])
  const beside = others.length === 0 ? "" : `; beside it, call ${others.join(" and ")}`
  return "a call waits for an approval: call Session.approve or Session.deny first, or Session.expire where its time is "
    + `up, or Session.reply with { pending: "deny" }${beside}`
}

const withdrawn: Record<Event.Suspension["kind"], string> = {
  approval: "the user went on instead of approving the call",
  manual: "the user went on before the call had its result",
  question: "the user went on instead of answering the question"
}

type Settled = NonNullable<Operation<"chat">["answered"]>

/** The suspensions that a reply with `pending: "deny"` denies: all but a single question, which the reply answers. */
const denials = ({ suspensions }: Session): ReadonlyArray<Settled> => {
  const questions = suspensions.filter(({ kind }) => kind === "question")
  const refused = suspensions.filter(({ kind }) => kind !== "question" || questions.length > 1)
  return refused.map(({ id, kind }) => ({ id, answer: { _tag: "Denied", reason: withdrawn[kind] } }))
}

interface Said extends Pick<Operation<"chat">, "answered" | "messages"> {
  /** An answer for a nested run: the call that has started that run begins the operation. */
  readonly within?: Settled
}

/**
 * What a user message does to a session. It answers the one question that is open, if there is one: as a message
 * after a question that is in the thread, and else in the place of the call, since the question is not in the
 * thread.
 */
const spokenTo = (
  operation: string,
  session: Session,
  message: Message.Message
): Effect.Effect<Said, SessionState.SessionError> =>
  Effect.gen(function*() {
    yield* usable(session)
    if (session.suspensions.some(({ kind }) => kind === "approval")) {
      return yield* new SessionState.SessionError({ reason: "approval_pending", detail: approvalPending(session) })
    }
    if (session.status === "awaiting_tools") return yield* wrong(operation, session, instead(session))
    const [question, ...others] = session.suspensions
    if (question === undefined) return { messages: [message] }
    if (message.role !== "user") return yield* wrong(operation, session, instead(session))
    if (others.length > 0) {
      const detail = "several calls wait: call Session.answer for each by its id"
      return yield* new SessionState.SessionError({ reason: "several_pending", detail })
    }
    const { id } = question
    const value = yield* answerTo(session, id, message.content)
    if (question.path !== undefined) return { messages: [], within: { id, answer: { _tag: "Value", value } } }
    return SharedMessages.endsWithQuestion(session.thread, id)
      ? { messages: [message] }
      : { messages: [], answered: { id, answer: { _tag: "Value", value } } }
  })

/** The operation by which something is said to a session. */
const spoken = (
  name: "reply" | "continue",
  session: Session,
  { within, ...said }: Said
): Effect.Effect<Operation<"chat">> =>
  Effect.map(
    within === undefined ? Effect.succeed(session) : Recorders.settled(session, within.id, within.answer),
    (session) => ({ mode: "chat", name, session, ...said })
  )

/** The session that an input stands for. */
const opened = (input: unknown): Effect.Effect<Session, Thread.ValidationError> =>
  SessionState.isSession(input) ? Effect.succeed(input) : Effect.fromResult(Thread.validate(input)).pipe(
    Effect.map((thread) => SessionState.make({ thread })),
    Effect.mapError(({ errors }) => new Thread.ValidationError({ reason: "invalid_session_input", errors }))
  )

/** Starting a session, or what one can be made of. */
export const starting = (input: unknown): Effect.Effect<Operation<"chat">, Failure> =>
  Effect.gen(function*() {
    const session = yield* Recorders.leaving(yield* opened(input))
    yield* free("start", session)
    return { mode: "chat", name: "start", session, messages: [] }
  })

/** Saying something as the user. What is open is denied first, if that is wanted. */
export const replying = (
  given: Session,
  content: Message.Content,
  pending: "deny" | undefined
): Effect.Effect<Operation<"chat">, Failure> =>
  Effect.gen(function*() {
    const message = Message.user(content)
    const session = yield* Recorders.leaving(given)
    if (pending !== undefined && pending !== "deny") {
      return yield* Effect.die(new TypeError(`Session.reply: pending must be "deny"; got: ${Json.render(pending)}`))
    }
    const denied = pending === "deny" ? denials(session) : []
    const freed = denied.reduce((session, { answer, id }) => SessionState.settle(session, id, answer), session)
    // A reply that is refused denies nothing.
    const said = yield* spokenTo("reply", freed, message)
    const settled = yield* Effect.reduce(
      denied,
      () => session,
      (session, { answer, id }) => Recorders.settled(session, id, answer)
    )
    return yield* spoken("reply", settled, said)
  })

/** Going on, with a message or without. */
export const continuing = (
  given: Session,
  message: Message.Input | null
): Effect.Effect<Operation<"chat">, Failure> =>
  Effect.flatMap(Recorders.leaving(given), (session) => {
    const messages = message === null ? [] : Thread.fromMessages([message]).messages
    const [said] = messages
    const checked: Effect.Effect<Said, SessionState.SessionError> = said === undefined
      ? Effect.as(free("continue", session), { messages })
      : spokenTo("continue", session, said)
    return Effect.flatMap(checked, (said) => spoken("continue", session, said))
  })

/** One turn. */
export const stepping = (given: Session): Effect.Effect<Operation<"step">, Failure> =>
  Effect.flatMap(
    Recorders.leaving(given),
    (session) => Effect.as(free("step", session), { mode: "step", name: "step", session, messages: [] })
  )

/** How a run is taken up that was cut. */
export interface ResumeOptions {
  /**
   * How long after its start a run may be taken up; a number is milliseconds. An older one is ended: what has happened is
   * answered, nothing new starts, and the outcome is `Failed` with the `ResumeError` `too_old`. 7 days by default.
   */
  readonly maxAge?: Duration.Input
  /**
   * How often a run may be taken up. After that it is ended as one that is too old, as `too_many_attempts`. 10 by default.
   */
  readonly maxAttempts?: number
  /**
   * Whether a session that was loaded without a claim may be resumed: nothing else runs it, as you know. `false` by
   * default.
   */
  readonly takeOver?: boolean
}

const defaultMaxAge = Duration.days(7)
const defaultMaxAttempts = 10

/** Going on with the run that was cut. */
const resuming = (
  kept: Records.Kept,
  { maxAge = defaultMaxAge, maxAttempts = defaultMaxAttempts, takeOver = false, tools = none }: ResumeOptions & {
    readonly tools?: Tools
  }
): Effect.Effect<Operation<"chat">, Ledgers.ResumeError, any> =>
  Effect.gen(function*() {
    const { cut: session, id, interrupted } = kept
    if (interrupted === undefined || session === undefined) {
      return yield* Effect.die(
        new Error("Session.resume: no run of the session was cut; call Session.reply or Session.continue")
      )
    }
    const refused = (reason: Ledgers.ResumeError["reason"], detail: string) =>
      new Ledgers.ResumeError({ reason, id, detail })
    if (kept.owner === undefined && !takeOver) {
      return yield* refused(
        "unclaimed",
        "another process may be running it; load it with Session.claim, or give { takeOver: true } where nothing else can"
      )
    }
    const oldest = (yield* Clock.currentTimeMillis) - Settings.millis("maxAge", maxAge)
    const { resumptions, startedAt = Infinity } = interrupted
    const ending: Ending | undefined = kept.stop !== undefined
      ? { _tag: "Stop" }
      : startedAt < oldest
      ? { _tag: "Failure", error: refused("too_old", "the run started longer ago than maxAge allows") }
      : resumptions >= Settings.positiveInteger("maxAttempts", maxAttempts)
      ? { _tag: "Failure", error: refused("too_many_attempts", `the run was taken up ${resumptions} times already`) }
      : undefined
    const defaults = yield* Policy.Defaults
    const toolbox = ToolOptions.toolbox(defaults.tools ?? [], tools)
    const unknown = (yield* Recorders.CurrentRecorder)?.unknown
    const ledger = yield* Ledgers.make(id, interrupted, toolbox, ending !== undefined, unknown)
    const { session: _, stop: __, ...rest } = kept
    const state = { ...rest, session, interrupted }
    return {
      mode: "chat",
      name: interrupted.operation,
      session,
      messages: [],
      resumed: { state, interrupted, ledger, ending },
      ...(interrupted.parent === undefined ? {} : { parent: interrupted.parent })
    }
  })

/** The session with messages at its end. Nothing may come between a call and its answer. */
export const append = (
  given: Session,
  messages: ReadonlyArray<Message.Input>
): Effect.Effect<Session, SessionState.SessionError> =>
  Effect.gen(function*() {
    const session = yield* Recorders.leaving(given)
    yield* free("append", session)
    if (session.approved.length > 0) return yield* wrong("append", session, "Session.continue")
    const added = Thread.fromMessages(messages).messages
    return yield* Recorders.happened(session, { _tag: "MessagesAppended", messages: added })
  })

/** The session with a message of the user at its end. */
export const appendUser = (
  session: Session,
  content: Message.Content
): Effect.Effect<Session, SessionState.SessionError> => append(session, [Message.user(content)])

// Runs: an operation, from its first event to the session after it.

/** The calls that were approved, through the runner of every call. */
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

const stopsOf = <M extends Reducer.Mode, R>(
  { recorder, requestId, running, stopping }: OperationRun<M>,
  cancel: Settings.CancelSource<R> | undefined,
  ownDeadline: Settings.Settings<unknown, unknown>["deadline"],
  resumed: Resumed | undefined
): Effect.Effect<Stops, never, R | Scope.Scope> =>
  Effect.gen(function*() {
    const parent = yield* Inherited.ParentCancellation
    const around = yield* Inherited.CurrentDeadline
    const begun = resumed?.interrupted.deadlineAt
    const latest = around === undefined ? begun : Math.min(around, begun ?? Infinity)
    const deadline = Deadline.resolve(ownDeadline, latest, yield* Clock.currentTimeMillis)
    if ((parent ?? deadline ?? cancel ?? recorder ?? resumed?.ending) === undefined) return unstopped
    const cancellation = new Cancellation.Cancellation()
    yield* Cancellation.watch(cancellation, { parent, deadline, cancel }, yield* Effect.scope)
    // A run that is ended in place of being taken up answers what has happened first.
    if (recorder !== undefined && resumed?.ending === undefined) {
      const stop = () => cancellation.request("stop", Cancellation.stopCause)
      const unsubscribe = recorder.commands.onStop(requestId, stop)
      yield* Effect.addFinalizer(() => Effect.sync(unsubscribe))
    }
    yield* Effect.sync(() => {
      Inherited.listen(running, { cancellation }, undefined, requestId)
      Inherited.listen(stopping, { cancellation }, cancel, requestId)
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
  reducer: Reducer.Progress,
  { cancellation }: Stops,
  policy: Policy.Policy
): Approved => {
  const cut = cancellation?.isRequested === true ? cancellation : undefined
  const halt = Reducer.haltOf(reducer, policy)
  const isQuestion = halt?.haltedReason === "ask_user"
  const questions = Reducer.questionsOf(reducer)
  return { cancellation: cut, halt: cut !== undefined && isQuestion ? undefined : halt, questions }
}

/** Whether the run ends with its approved calls: they have ended it, or left a call open that the model cannot be asked with. */
const isOver = ({ cancellation, halt, questions }: Approved): boolean =>
  halt !== undefined || cancellation !== undefined || questions.some(({ path }) => path !== undefined)

/** A run that does not end to wait withdraws its questions. */
const withdrawals = (
  { session: { thread } }: Reducer.Progress,
  { cancellation, halt, questions }: Approved
): ReadonlyArray<Event.Event> => {
  if (halt?.haltedReason === "ask_user" || halt === undefined && cancellation === undefined) return []
  const detail = cancellation === undefined ? "another call of the turn ended the run" : "the run was cancelled"
  const waiting = Array.from(new Set(questions.map(OpenCalls.outerOf)), (id) => SharedMessages.callOf(thread, id))
  return waiting.flatMap((toolCall) =>
    toolCall === undefined
      ? []
      : [OpenCalls.settlement(Answers.refused("cancelled", toolCall, `withdrawn: ${detail}`))]
  )
}

/** The end of a run that goes no further than its approved calls: a step without a reply. */
const endOfApproved = (
  { collector, mode, state: { session } }: Reducer.Progress,
  { cancellation, halt }: Approved,
  totalUsage: Event.ChatResult["totalUsage"]
): Event.Event => {
  const { suspensions } = session
  const { thread } = SessionState.plain(session)
  const response = Collector.toResponse(Collector.initial())
  // The answers stand in the thread already, in the places of their calls.
  const step = { response, thread, messages: [], mode: "auto", manualToolCalls: [] } as const
  const completed = Outcomes.stepCompleted(step, false, cancellation !== undefined, halt, suspensions)
  if (mode === "step") return completed
  const folded = Collector.toStepResult(
    Collector.applyEvent(Collector.initial({ thread: collector.thread ?? thread }), completed)
  )
  const outcome: Event.Outcome = cancellation === undefined
    ? Outcomes.ofStep(folded, 0) ?? { _tag: "Completed", finishReason: null }
    : { _tag: "Cancelled", reason: cancellation.reason }
  return {
    _tag: "ChatCompleted",
    result: Collector.chatResult({ thread, steps: [], outcome, suspensions, totalUsage })
  }
}

/** The end of a run whose approved calls ran and whose model could not be asked: with their answers, and the error. */
const endOfUnasked = (
  { state: { session } }: Reducer.Progress,
  error: unknown,
  totalUsage: Event.ChatResult["totalUsage"]
): ReadonlyArray<Event.Event> => {
  const { thread } = SessionState.plain(session)
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
    Stream.mapArray((events) => {
      // A reply that is asked for again counts as not begun.
      hasBegun = events[events.length - 1]?._tag !== "StepReset"
      return events
    }),
    Stream.catch((error): Stream.Stream<Event.Event, E, R2> => hasBegun ? Stream.fail(error) : end(error))
  )
}

/** The events of calls that were settled since the last run. Those that may run now, or are open again, have no answer. */
const settledBefore = (session: Session): ReadonlyArray<Event.Event> => {
  const open = new Set([...session.approved, ...session.suspensions].map(({ id }) => id))
  return SharedMessages.answersTo(session.thread, session.answered.filter((id) => !open.has(id))).map(
    OpenCalls.settlement
  )
}

/** Whether calls of an earlier run were settled since, or are now: a call that is open is a question that is answered. */
const isContinued = ({ answered, approved, suspensions }: Session): boolean =>
  [answered, approved, suspensions].some((calls) => calls.length > 0)

/** The record that a run begins with. */
const beginning = <M extends Reducer.Mode>(
  { answered, messages, name, parent, resumed, submitted }: Operation<M>,
  { recorder, requestId }: OperationRun<M>,
  deadlineAt: number | undefined
): Effect.Effect<Records.Record> =>
  Effect.map(Clock.currentTimeMillis, (startedAt) => ({
    _tag: "RunStarted",
    requestId,
    operation: name,
    messages,
    ...(answered === undefined ? {} : { answered }),
    ...(parent === undefined ? {} : { parent }),
    ...(resumed === undefined ? {} : { resumes: requestId }),
    startedAt,
    ...(deadlineAt === undefined ? {} : { deadlineAt }),
    ...(recorder?.owner === undefined ? {} : { owner: recorder.owner }),
    ...(submitted === undefined ? {} : { submitted })
  }))

/** The turns of a run that is taken up: the reply of the cut step is known, and the run may have to end with that step. */
const resumedTurns = <E, R>(
  turns: Stream.Stream<Event.Event, E, R>,
  { ending, interrupted: { requestId, steps } }: Resumed,
  adapter: Adapter.Service | undefined,
  response: Response.Response | undefined,
  { cancellation }: Stops
): Stream.Stream<Event.Event, E, R> => {
  const replayed = response === undefined || adapter === undefined
    ? turns
    : Stream.provideService(turns, Adapter.Adapter, Ledgers.replaying(adapter, requestId, steps.length, response))
  if (ending === undefined) return replayed as Stream.Stream<Event.Event, E, R>
  const ended = Stream.map(replayed, (event): Event.Event => {
    if (event._tag === "StepCompleted") cancellation?.request("stop", Cancellation.stopCause)
    return event._tag === "ChatCompleted" && ending._tag === "Failure" ? failedWith(event, ending.error) : event
  })
  return ended as Stream.Stream<Event.Event, E, R>
}

const failedWith = (event: Event.Of<"ChatCompleted">, error: unknown): Event.Event => {
  const outcome: Event.Outcome = { _tag: "Failed", error }
  return { ...event, result: { ...event.result, outcome, haltedReason: Outcomes.haltedReason(outcome) } }
}

/** An operation that is under way, with its events. */
interface Opened<M extends Reducer.Mode, out E, out R> {
  readonly run: OperationRun<M>
  readonly events: Stream.Stream<Event.Event, E, R>
}

type Errors<T extends Tools, E> = Failure | E | Tool.Fatal<T[number]>

type Services<T extends Tools, R> = R | Adapter.Adapter | Tool.Services<T[number]>

/** What is known of calls from before the run. Those that waited for what runs inside them have passed their gates. */
const replayOf = (
  { nested = [] }: Session,
  requestId: string,
  ledger: Ledgers.Ledger | undefined
): Replay.Service | undefined => {
  if (nested.length === 0) return ledger?.replay
  const ids = new Set(nested.map(({ id }) => id))
  const begun = { hasStarted: true } as const
  return {
    find: (call, place) =>
      ledger?.replay.find(call, place)
        ?? (place.isApproved && place.requestId === requestId && ids.has(call.id) ? begun : undefined)
  }
}

const isEmpty = (context: Session["context"]): boolean => Object.keys(context).length === 0

const open = <M extends Reducer.Mode, F, RF, T extends Tools, E, R, RHalt, REvent>(
  checked: Effect.Effect<Operation<M>, F, RF>,
  options: Chat.Options<T, E, R, RHalt, REvent>
): Effect.Effect<
  Opened<M, Errors<T, E>, Services<T, R | RHalt | REvent>>,
  F,
  RF | Services<T, R | RHalt | REvent> | Scope.Scope
> =>
  Effect.gen(function*() {
    const operation = yield* checked
    const { answered, mode, session } = operation
    const context = yield* Effect.context<never>()
    const scope = yield* Effect.scope
    const { resumed } = operation
    const requestId = resumed?.interrupted.requestId ?? options.requestId ?? Settings.mintRequestId(context)
    const executor = yield* Executor.Executor
    const recorder = yield* Recorders.CurrentRecorder
    const defaults = yield* Policy.Defaults
    const policy = options.policy ?? defaults.policy ?? Policy.standard
    const { deadline, graceMillis } = Settings.resolve(options, defaults, Policy.standard, requestId)

    const running = new Running(graceMillis, context)
    const stopping = new Running(graceMillis, context)
    // They share one grace period.
    yield* Effect.addFinalizer((exit) =>
      Effect.all([running.end(exit), stopping.end(exit)], { concurrency: "unbounded", discard: true })
    )
    const spending = new Inherited.Spending(yield* Inherited.CurrentSpending, true)
    const state = resumed?.state ?? { session }
    const reducer = Reducer.started(session, mode, state)
    const decides = typeof options.onToolError === "function"
    const run = new OperationRun(reducer, requestId, recorder, running, stopping, policy, decides, spending)

    const steps = resumed?.interrupted.steps ?? []
    const settled = steps.length > 0 ? [] : settledBefore(
      answered === undefined ? session : SessionState.settle(session, answered.id, answered.answer)
    )
    const hasApproved = reducer.approvedCalls.length > 0 && steps.length === 0
    // A step that was cut goes on as a run of one step.
    const isStep = mode === "step" || resumed?.interrupted.operation === "step"
    const isOwn = hasApproved || settled.length > 0 || recorder !== undefined
    const stops = isOwn ? yield* stopsOf(run, options.cancel ?? undefined, deadline, resumed) : unstopped
    for (const nestedUsage of [steps.at(-1)?.nestedUsage, resumed?.interrupted.nestedUsage]) {
      if (nestedUsage !== undefined) spending.takeUp(nestedUsage)
    }
    yield* spending.enter(scope)
    yield* run.begin({ state, records: [yield* beginning(operation, run, stops.deadline)] })

    const given = {
      ...options,
      requestId,
      context: options.context ?? (isEmpty(session.context) ? null : session.context),
      sessionId: options.sessionId ?? session.id ?? null,
      cacheKey: options.cacheKey ?? session.id,
      ...(isStep ? { maxTurns: 1 } : {}),
      ...(stops === unstopped ? {} : { cancel: null })
    } as Chat.Options<T, E, R, RHalt, REvent>
    const observed = <A extends ReadonlyArray<Event.Event>>(events: A) =>
      Effect.as(Loop.observed(options, running, requestId, events), events)
    const approved = hasApproved
      ? Stream.provideService(
        approvedCalls(session, given as Step.Options<T, E, R>, policy),
        CurrentOperation,
        { running, abandoned: run.abandoned }
      )
      : Stream.empty
    const opening = Stream.concat(Stream.fromIterable(settled), approved).pipe(Stream.mapArrayEffect(observed))
    const replied = resumed === undefined ? undefined : Ledgers.responseOf(resumed.interrupted)
    const turns = Stream.suspend((): Stream.Stream<Event.Event, Errors<T, E>, Services<T, R | RHalt | REvent>> => {
      const { reducer } = run
      if (resumed?.ending !== undefined && replied === undefined) {
        stops.cancellation?.request("stop", Cancellation.stopCause)
      }
      const end = endOf(reducer, stops, policy)
      if (hasApproved && (isStep || isOver(end))) {
        const last = Stream.suspend(() => Stream.make(endOfApproved(run.reducer, end, spending.total)))
        return Stream.concat(Stream.fromIterable(withdrawals(reducer, end)), last).pipe(Stream.mapArrayEffect(observed))
      }
      const { thread } = SessionState.plain(reducer.state.session)
      if (mode === "step") return Step.stream(thread, given)
      const contextUpdate = Reducer.contextUpdateOf(reducer)
      const context = contextUpdate === undefined ? given.context ?? null : { ...given.context, ...contextUpdate }
      const turns = Chat.stream(thread, { ...given, context })
      if (!hasApproved) return turns
      // What has run must not be lost with a failure, or the caller who tries again runs it twice.
      return orElseUnasked(turns, (error) =>
        Stream.fromIterable(endOfUnasked(run.reducer, error, spending.total)).pipe(
          Stream.mapArrayEffect(observed)
        ))
    })
    const past = steps.length === 0 ? {} : { past: { steps, hasReply: replied !== undefined } }
    const adapter = Context.getOrUndefined(context, Adapter.Adapter)
    const events = Stream.concat(
      opening,
      resumed === undefined ? turns : resumedTurns(turns, resumed, adapter, replied, stops)
    ).pipe(
      Stream.mapArrayEffect(run.takeAll),
      // A run that was taken up in vain can be taken up again.
      Stream.tapError(() => resumed === undefined ? run.record({ _tag: "RunFailed", requestId }) : Effect.void),
      Stream.provideService(Executor.Executor, recording(executor, run, resumed?.ledger, nesting)),
      Stream.provideService(SubAgent.CurrentNesting, undefined),
      Stream.provideService(
        CurrentOperation,
        isContinued(session) ? { running, continued: requestId, ...past } : { running, ...past }
      ),
      Stream.provideService(Inherited.CurrentSpending, spending),
      Stream.provideService(Replay.CurrentReplay, replayOf(session, requestId, resumed?.ledger))
    )
    return {
      run,
      events: stops === unstopped ? events : events.pipe(
        Stream.provideService(Inherited.ParentCancellation, stops.cancellation),
        Stream.provideService(Inherited.CurrentDeadline, stops.deadline)
      )
    }
  })

// Runs inside a run: what the handlers of a kept operation start with `Chat.stream` and `Chat.run`.

/** How often a part of a run is taken up, and how long after its start, is for the run to say. */
const unbounded = { maxAge: Duration.infinity, maxAttempts: Number.MAX_SAFE_INTEGER, takeOver: true }

/**
 * A run that was cut goes on, one that waits goes on with its answers, and one that has ended has its result. `undefined`
 * where nothing of it is known.
 */
const goneOn = (
  kept: Records.Kept,
  around: Recorders.Around,
  parent: Records.Parent,
  answers: NestedAnswers,
  options: Chat.Options
): Stream.Stream<Event.Event, any, any> | undefined => {
  const { ended, interrupted, session } = kept
  // A model may make the same call under the same id in another turn: its run is another one.
  const last = interrupted?.parent ?? ended?.parent
  if (answers.length === 0 && last !== undefined && last.idempotencyKey !== parent.idempotencyKey) return undefined
  if (interrupted !== undefined) {
    const cut = atCut(kept)
    return Recorders.keepWithin(cut, around, stream(resuming(cut, { ...options, ...unbounded }), options))
  }
  const ids = new Set(answers.map(({ id }) => id))
  const isAnswered = session.suspensions.every(({ id }) => ids.has(id))
  const hasAnswers = session.suspensions.length + session.answered.length + session.approved.length > 0
  if (isAnswered && hasAnswers) {
    return Recorders.keepWithin(kept, around, stream(answered(session, parent, answers), options))
  }
  if (ended === undefined) return undefined
  return Stream.fromEffect(Effect.map(Inherited.CurrentSpending, (spending) => {
    const { totalUsage } = ended.result
    if (totalUsage !== null) spending?.takeUp(totalUsage)
    return Nested.completed(ended, kept.session.thread)
  }))
}

/** Going on with a run that waited. An answer that its journal has already changes nothing. */
const answered = (
  session: Session,
  parent: Records.Parent,
  answers: NestedAnswers
): Effect.Effect<Operation<"chat">, Failure> =>
  Effect.gen(function*() {
    const open = new Set(session.suspensions.map(({ id }) => id))
    const settled = yield* Effect.reduce(
      answers.filter(({ id }) => open.has(id)),
      () => session,
      (session, answer) => Recorders.happened(session, { _tag: "Answered", ...answer })
    )
    return { ...yield* continuing(settled, null), parent }
  })

/** A run that is kept for the first time, or anew: from what it is given. */
const begun = (
  id: string,
  parent: Records.Parent,
  thread: Thread.Thread,
  around: Recorders.Around,
  options: Chat.Options
): Stream.Stream<Event.Event, any, any> =>
  Stream.unwrap(Effect.map(Recorders.stored(around, Recorders.versionOf(id)), (version) => {
    const operation = { mode: "chat", name: "start", session: SessionState.make({ thread }), messages: [], parent }
    const before = { id, version, session: SessionState.make() }
    return Recorders.keepWithin(before, around, stream(Effect.succeed(operation as Operation<"chat">), options))
  }))

/**
 * Keeps the runs that the handler of a call starts, or a program, each in a journal of its own. Where the handler is started again, since
 * its process had ended, they go on where they were.
 */
export const nesting: NestingOf = (around, call, answers) => {
  const toolCallId = call?.id
  const parent: Records.Parent = call === undefined
    ? { id: around.id }
    : { id: around.id, toolCallId: call.id, idempotencyKey: call.idempotencyKey }
  const ids = new Nested.Ids(around.id, toolCallId)
  const waiting = new WeakSet<Event.ChatResult>()
  const noted = (event: Event.Event): Event.Event => {
    if (event._tag === "ChatCompleted" && event.result.suspensions !== undefined) waiting.add(event.result)
    return event
  }
  return {
    canGoOn: (result) => around.isAnswerable && waiting.has(result),
    stream: (input: Thread.Input, options: Chat.Options) =>
      Stream.unwrap(Effect.gen(function*() {
        const valid = Thread.validate(input)
        if (Result.isFailure(valid)) return unkept(Chat.stream(input, options))
        const { giveBack, id } = ids.take(valid.success)
        const kept = answers !== undefined ? yield* Recorders.stored(around, Recorders.load(id)) : undefined
        const known = kept === undefined ? undefined : goneOn(kept, around, parent, answers ?? [], options)
        const events = unkept(known ?? begun(id, parent, valid.success, around, options))
        return events.pipe(Stream.map(noted), Stream.tapError(() => Effect.sync(giveBack)))
      }))
  }
}

/** What keeps a run keeps none of its own turns as runs. */
const unkept = <A, E, R>(events: Stream.Stream<A, E, R>): Stream.Stream<A, E, R> =>
  Stream.provideService(events, SubAgent.CurrentNesting, undefined)

/** The events of an operation, which is checked when it begins. */
export const stream = <M extends Reducer.Mode, F, RF, T extends Tools, E, R, RHalt, REvent>(
  operation: Effect.Effect<Operation<M>, F, RF>,
  options: Chat.Options<T, E, R, RHalt, REvent>
): Stream.Stream<Event.Event, F | Errors<T, E>, RF | Services<T, R | RHalt | REvent>> =>
  Stream.unwrap(Effect.map(open(operation, options), ({ events }) => events))

/** The result of an operation: the fold of its events. */
export const awaited = <M extends Reducer.Mode, F, RF, T extends Tools, E, R, RHalt, REvent>(
  operation: Effect.Effect<Operation<M>, F, RF>,
  options: Chat.Options<T, E, R, RHalt, REvent>
): Effect.Effect<Reducer.Done<M>, F | Errors<T, E>, RF | Services<T, R | RHalt | REvent>> =>
  // The scope is the operation's own: the events are read in the caller's.
  Effect.scopedWith((scope) =>
    Effect.flatMap(Scope.provide(open(operation, options), scope), ({ events, run }) =>
      Effect.andThen(Stream.runDrain(events), Effect.suspend(() => done(run.reducer))))
  )

type ResumeFailure = Ledgers.ResumeError | Failure | Recorders.Failure

/** The journal is read at the place where the run was cut. */
const atCut = (kept: Records.Kept): Records.Kept => kept.cut === undefined ? kept : { ...kept, session: kept.cut }

/** The events of a run that was cut and is taken up. */
export const streamResumed = <T extends Tools, E, R, RHalt, REvent>(
  kept: Records.Kept,
  options: Chat.Options<T, E, R, RHalt, REvent> & ResumeOptions
): Stream.Stream<
  Event.Event,
  ResumeFailure | E | Tool.Fatal<T[number]>,
  Stores.Store | Services<T, R | RHalt | REvent>
> => Recorders.keepStream(atCut(kept), () => stream(resuming(kept, options), options))

/** The result of a run that was cut and is taken up. */
export const resumed = <T extends Tools, E, R, RHalt, REvent>(
  kept: Records.Kept,
  options: Chat.Options<T, E, R, RHalt, REvent> & ResumeOptions
): Effect.Effect<
  Records.Outcome<Reducer.Done>,
  ResumeFailure | E | Tool.Fatal<T[number]>,
  Stores.Store | Services<T, R | RHalt | REvent>
> => Recorders.keep(atCut(kept), () => awaited(resuming(kept, options), options))

const done = <M extends Reducer.Mode>(
  reducer: Reducer.Progress<M>
): Effect.Effect<Reducer.Done<M>, Step.EngineError> => {
  const done = Reducer.finalize(reducer)
  const { response } = "steps" in done.result ? done.result.steps[0] ?? {} : done.result
  const hasRun = reducer.session.approved.length > 0
  return response?.error instanceof Step.EngineError && !hasRun ? Effect.fail(response.error) : Effect.succeed(done)
}

// How a suspension gets its answer: each by its own id, in any order, and once. An answer changes data and runs nothing. It
// is checked first, and one that does not fit leaves the session as it was.

const failed = (reason: SessionState.SessionError["reason"], detail: string, toolCallId?: string) =>
  new SessionState.SessionError({
    reason,
    detail,
    ...(toolCallId === undefined ? {} : { metadata: { toolCallId } })
  })

/** Refuses a session whose last run broke. */
const usable = (session: Session): Effect.Effect<void, SessionState.SessionError> =>
  session.status === "error"
    ? failed("session_in_error_state", "the last run broke: see metadata.error, and call Session.recover to go on")
    : Effect.void

/** The suspension with an id, if its time is not up. */
const find = (session: Session, id: string): Effect.Effect<Event.Suspension, SessionState.SessionError> =>
  Effect.gen(function*() {
    yield* usable(session)
    const suspension = session.suspensions.find((suspension) => suspension.id === id)
    if (suspension === undefined) {
      return yield* session.answered.includes(id)
        ? failed("already_answered", `call ${JSON.stringify(id)} has had its answer`, id)
        : failed("unknown_tool_call_id", `no call ${JSON.stringify(id)} waits for an answer`, id)
    }
    if (suspension.expiresAt !== undefined && suspension.expiresAt <= (yield* Clock.currentTimeMillis)) {
      return yield* failed("expired", "the time for an answer is up: call Session.expire", id)
    }
    return suspension
  })

/** Reads a content as the answer to a suspension. Refuses one that does not fit. */
const answerTo = (
  session: Session,
  id: string,
  content: unknown
): Effect.Effect<unknown, SessionState.SessionError> =>
  Effect.flatMap(find(session, id), (suspension) => fitting(suspension, content))

/** What `read` reads of a value. It may throw: the value may be an object of foreign code, or a revoked proxy. */
const readable = <A>(id: string, what: string, read: () => A): Effect.Effect<A, SessionState.SessionError> =>
  Effect.try({ try: read, catch: () => failed("invalid_answer", `the ${what} cannot be read`, id) })

/**
 * The answer, if it fits the schema of the question. A text that is JSON is also read as such. The answer is plain JSON
 * from here on, so that a session is the same whether it was stored or not: a list of parts has lost the mark of
 * `Tool.content`, a date is a text, and `undefined` is `null`.
 */
const fitting = (
  { answerSchema, id }: Event.Suspension,
  given: unknown
): Effect.Effect<unknown, SessionState.SessionError> =>
  Effect.flatMap(
    readable(id, "answer", () => Json.toJson(ToolOutcomes.partsOf(given) ?? given)),
    (value) =>
      answerSchema === undefined
        ? Effect.succeed(value)
        : Effect.mapError(
          ToolOutcomes.decodeAnswer(answerSchema, value),
          (problem) => failed("invalid_answer", problem, id)
        )
  )

/** Answers a question, or gives the result of a manual call. */
export const answer = (
  session: Session,
  id: string,
  value: unknown
): Effect.Effect<Session, SessionState.SessionError> =>
  Effect.gen(function*() {
    const suspension = yield* find(session, id)
    if (suspension.kind === "approval") {
      return yield* failed("invalid_answer", "the call waits for Session.approve or Session.deny", id)
    }
    return yield* Recorders.settled(session, id, { _tag: "Value", value: yield* fitting(suspension, value) })
  })

const approval = (session: Session, id: string) =>
  Effect.flatMap(find(session, id), ({ kind }) =>
    kind === "approval"
      ? Effect.void
      : Effect.fail(failed("invalid_answer", "the call waits for Session.answer, not for an approval", id)))

type Arguments = NonNullable<Message.ToolCall["arguments"]>

/** Arguments as plain JSON, like a model's. Refuses those that are nested too deeply to be written and read again. */
const writable = (id: string, given: Arguments): Effect.Effect<Arguments, SessionState.SessionError> =>
  Effect.flatMap(
    readable(id, "arguments", () =>
      Json.isDeeper(given, ToolCalls.deepest) ? undefined : Json.toJson(given) as Arguments),
    (plain) =>
      plain === undefined
        ? Effect.fail(failed("invalid_answer", `the arguments nest deeper than ${ToolCalls.deepest} levels`, id))
        : Effect.succeed(plain)
  )

/**
 * How a call is approved.
 *
 * @category options
 * @since 0.1.0
 */
export interface ApproveOptions {
  /**
   * The arguments that the call runs with in place of its own, nested at most 256 levels deep. They are decoded when the
   * call runs, like the model's.
   */
  readonly arguments?: Message.ToolCall["arguments"]
}

/** Allows a call, with its own arguments or with others. */
export const approve = (
  session: Session,
  id: string,
  options: ApproveOptions = {}
): Effect.Effect<Session, SessionState.SessionError> =>
  Effect.gen(function*() {
    yield* approval(session, id)
    const edited = options.arguments === undefined ? {} : { arguments: yield* writable(id, options.arguments) }
    return yield* Recorders.settled(session, id, { _tag: "Approved", ...edited })
  })

/** Refuses a call: it is answered as `denied`, and never runs. */
export const deny = (
  session: Session,
  id: string,
  reason?: string
): Effect.Effect<Session, SessionState.SessionError> =>
  Effect.andThen(
    approval(session, id),
    Recorders.settled(session, id, { _tag: "Denied", ...(reason === undefined ? {} : { reason }) })
  )

/** Settles every suspension whose time is up. */
export const expire = (session: Session): Effect.Effect<Session, SessionState.SessionError> =>
  Effect.gen(function*() {
    yield* usable(session)
    const now = yield* Clock.currentTimeMillis
    let settled = session
    for (const { expiresAt, id } of session.suspensions) {
      if (expiresAt !== undefined && expiresAt <= now) {
        settled = yield* Recorders.settled(settled, id, { _tag: "Expired" })
      }
    }
    return settled
  })

/** Gives the result of a manual call. Dies where no call waits for a result or has waited for one. */
export const submitToolResult = (
  session: Session,
  id: string,
  content: unknown
): Effect.Effect<Session, SessionState.SessionError> =>
  Effect.gen(function*() {
    yield* usable(session)
    if (session.pendingToolCalls.length === 0 && !session.answered.includes(id)) {
      return yield* Effect.die(
        new Error(`Session.submitToolResult: the session is ${session.status} and waits for no tool result`)
      )
    }
    const { kind } = yield* find(session, id)
    return kind === "manual"
      ? yield* answer(session, id, content)
      : yield* failed("invalid_answer", `call ${JSON.stringify(id)} is no manual call`, id)
  })

/**
 * The result of a manual call.
 *
 * @category models
 * @since 0.1.0
 */
export interface ToolResult {
  /** The id of the call. */
  readonly toolCallId: string
  /** Its result: a text, a list of parts (`Tool.content`), or a value, which is written as JSON. */
  readonly content: unknown
}

/** Gives several results, one after the other, up to the first that is refused. */
export const submitToolResults = (
  session: Session,
  results: ReadonlyArray<ToolResult>
): Effect.Effect<Session, SessionState.SessionError> =>
  Effect.reduce(
    results,
    () => session,
    (session, { content, toolCallId }) => submitToolResult(session, toolCallId, content)
  )
