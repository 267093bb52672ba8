/**
 * From the events of a run to the session after it: the fold that the operations of a session use themselves, for a
 * reader who has the stream. A stream that was cut comes to a session as well: with every whole step of it, and with an
 * answer for each call that had begun. Public as `Session`.
 *
 * @since 0.1.0
 */
import * as Collector from "../../Collector.ts"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type * as Policy from "../../Policy.ts"
import * as Response from "../../Response.ts"
import type * as Thread from "../../Thread.ts"
import * as OpenCalls from "../answer/openCalls.ts"
import * as Ending from "../fold/outcome.ts"
import * as Log from "../fold/sharedMessages.ts"
import * as Turn from "../loop/runEnvironment.ts"
import * as Journal from "./record.ts"
import * as Conversation from "./state.ts"

/**
 * Whether the events are those of a whole run or of one step.
 *
 * @category models
 * @since 0.1.0
 */
export type Mode = "chat" | "step"

/** A call that has begun, and what its handler came to, if it has. */
interface Begun {
  readonly id: string
  readonly ended?: { readonly outcome: unknown }
}

/**
 * A fold in progress. `session` is the one it started from, which it never changes.
 *
 * @category models
 * @since 0.1.0
 */
export interface StreamReducer<M extends Mode = Mode> {
  readonly session: Conversation.Session
  readonly mode: M
  readonly state: Journal.State
  readonly collector: Collector.State
  /** What the approved calls have come to, which run before anything else does. */
  readonly approved: Collector.State
  /** Those of them that have begun, with what each came to. */
  readonly begun: ReadonlyArray<Begun>
  readonly isEnded: boolean
}

/**
 * What a stream came to.
 *
 * @category models
 * @since 0.1.0
 */
export interface Finalized<M extends Mode> {
  readonly session: Conversation.Session
  readonly result: M extends "chat" ? Event.ChatResult : Event.StepResult
}

type Records = ReadonlyArray<Journal.Record>

/** The reducer of an operation, which knows how the run is called and what was said with it. */
export const started = <M extends Mode>(
  session: Conversation.Session,
  mode: M,
  state: Journal.State
): StreamReducer<M> => ({
  session,
  mode,
  state,
  collector: Collector.initial({ thread: session.thread }),
  approved: Collector.initial(),
  begun: [],
  isEnded: false
})

/**
 * The reducer before the first event. Dies for a mode that is none.
 *
 * @category constructors
 * @since 0.1.0
 */
export const make = <const M extends Mode>(session: Conversation.Session, mode: M): StreamReducer<M> => {
  if (mode !== "chat" && mode !== "step") {
    throw new TypeError(`Session.reducer: the mode must be "chat" or "step"; got: ${JSON.stringify(mode)}`)
  }
  // The events do not say what the user said. What waits is open until they say that it was answered.
  return started(session, mode, { session, interrupted: { requestId: "", messages: [], before: session, calls: [] } })
}

const answersOf = ({ approved, session }: StreamReducer): ReadonlyArray<Message.Message> => {
  const answers = Collector.answers(approved)
  return session.approved.flatMap((call) => answers.filter((message) => message.toolCallId === call.id))
}

const isIn = (calls: ReadonlyArray<Message.ToolCall>) => (id: string | undefined): boolean =>
  calls.some((call) => call.id === id)

const isOpening = (reducer: StreamReducer): boolean => reducer.state.session.approved.length > 0

/** The questions of approved calls that are open, in call order. */
export const questionsOf = ({ approved, session }: StreamReducer): ReadonlyArray<Event.Suspension> =>
  approved.tools.open(session.approved)

/** The halt of an approved call that decides, as it would in a turn. */
export const haltOf = (
  { approved, session }: StreamReducer,
  { haltPrecedence }: Pick<Policy.Policy, "haltPrecedence">
): Event.Halt | undefined => approved.tools.deciding(session.approved.map((call) => call.id), haltPrecedence)

const requestId = ({ state }: StreamReducer): string => state.interrupted?.requestId ?? ""

/** The messages that a thread has more than the session. */
const news = ({ state }: StreamReducer, thread: Thread.Thread): ReadonlyArray<Message.Message> =>
  Log.since(thread, Log.length(state.session.thread))

const replied = (reducer: StreamReducer, stepIndex: number): Records => {
  const response = Collector.toResponse(reducer.collector)
  const calls = Response.actionableCalls(response)
  if (calls.length === 0) return []
  const message = Turn.assistantMessage(response, calls, response.message?.reasoning)
  return [{ _tag: "ReplyReceived", requestId: requestId(reducer), stepIndex, message }]
}

const endedAs = (
  reducer: StreamReducer,
  result: Parameters<typeof Conversation.leaving>[0],
  outcome: Event.Outcome | undefined,
  messages: ReadonlyArray<Message.Message> = []
): Journal.Record => {
  const ids = reducer.session.approved.map((call) => call.id)
  const left = Conversation.leaving(result, outcome)
  const context = { ...reducer.approved.tools.contextUpdate(ids).contextUpdate, ...left.context }
  const haltedReason = outcome === undefined ? "" : Ending.haltedReason(outcome)
  return { _tag: "RunEnded", requestId: requestId(reducer), haltedReason, messages, ...left, context }
}

const stepped = (reducer: StreamReducer, event: Event.Of<"StepCompleted">): Records => {
  const stepIndex = reducer.collector.steps.length - 1
  const whole: Journal.Record = {
    _tag: "StepCompleted",
    requestId: requestId(reducer),
    stepIndex,
    messages: news(reducer, event.thread),
    ...(event.suspensions === undefined ? {} : { suspensions: event.suspensions })
  }
  if (reducer.mode === "chat") return [whole]
  const step = Collector.toStepResult(reducer.collector)
  return [whole, endedAs(reducer, step, Ending.ofStep(step, 0))]
}

/**
 * A question of an approved call that its own run withdraws, or one that the user answers with the run. What was settled
 * before the run is in the session.
 */
const withdrawn = (reducer: StreamReducer, event: Event.Event): Records => {
  if (event._tag !== "ToolResultEncoded" || event.settled !== true) return []
  return reducer.state.session.suspensions.some(({ id }) => id === event.id)
    ? [{ _tag: "QuestionWithdrawn", requestId: requestId(reducer), message: OpenCalls.messageOf(event) }]
    : []
}

/** What an event says that is worth writing down, to a reducer that has folded it. */
const recordsOf = (reducer: StreamReducer, event: Event.Event): Records => {
  switch (event._tag) {
    case "MessageCompleted":
      return replied(reducer, reducer.collector.steps.length)
    case "ToolResultEncoded":
      return withdrawn(reducer, event)
    case "StepCompleted":
      return stepped(reducer, event)
    case "ChatCompleted":
      return [endedAs(reducer, event.result, event.result.outcome, news(reducer, event.result.thread))]
    default:
      return []
  }
}

const opening = <M extends Mode>(reducer: StreamReducer<M>, event: Event.Event): StreamReducer<M> => ({
  ...reducer,
  approved: Collector.applyEvent(reducer.approved, event),
  collector: reducer.mode === "step" ? Collector.applyEvent(reducer.collector, event) : reducer.collector,
  begun: begunWith(reducer.begun, event)
})

const begunWith = (begun: StreamReducer["begun"], event: Event.Event): StreamReducer["begun"] => {
  if (event._tag === "ToolExecutionStarted") return [...begun, { id: event.id }]
  if (event._tag !== "ToolExecutionCompleted") return begun
  const { id, result: outcome } = event
  return [...begun.filter((call) => call.id !== id), { id, ended: { outcome } }]
}

/** The reducer after an event, and the records that tell of it. */
export const next = <M extends Mode>(
  reducer: StreamReducer<M>,
  event: Event.Event
): readonly [reducer: StreamReducer<M>, records: Records] => {
  if (reducer.isEnded) return [reducer, []]
  if (isOpening(reducer)) {
    const opened = opening(reducer, event)
    const settled = withdrawn(reducer, event)
    if (settled.length > 0) return after(opened, settled)
    const isPending = isIn(reducer.state.session.approved)
    const messages = answersOf(opened).filter(({ toolCallId }) => isPending(toolCallId))
    if (messages.length === 0) return [opened, []]
    const suspensions = questionsOf(opened).filter(({ id }) => isPending(id))
    const answered: Journal.Record = { _tag: "ApprovedAnswered", requestId: requestId(reducer), messages }
    return after(opened, [suspensions.length === 0 ? answered : { ...answered, suspensions }])
  }
  const folded = { ...reducer, collector: Collector.applyEvent(reducer.collector, event) }
  return after(folded, recordsOf(folded, event))
}

const after = <M extends Mode>(
  reducer: StreamReducer<M>,
  records: Records
): readonly [StreamReducer<M>, Records] => {
  if (records.length === 0) return [reducer, records]
  const state = records.reduce(Journal.apply, reducer.state)
  const isEnded = records.some((record) => record._tag === "RunEnded")
  return [
    { ...reducer, state: isEnded ? { ...state, session: Conversation.plain(state.session) } : state, isEnded },
    records
  ]
}

/**
 * The reducer after an event. The given one is not changed.
 *
 * @category folding
 * @since 0.1.0
 */
export const applyEvent = <M extends Mode>(reducer: StreamReducer<M>, event: Event.Event): StreamReducer<M> =>
  next(reducer, event)[0]

/** Of approved calls, what had come to an end has its answer, or waits for one, and what had begun is not run again. */
const brokenOff = (reducer: StreamReducer): Journal.State => {
  const { begun, state } = reducer
  if (!isOpening(reducer)) return state
  const left = state.session.approved.flatMap((toolCall) => {
    const call = begun.find(({ id }) => id === toolCall.id)
    return call === undefined ? [] : [{ toolCall, ...call.ended }]
  })
  const messages = left.map(({ toolCall, ...ended }) =>
    "outcome" in ended
      ? Conversation.recalled(toolCall, ended.outcome)
      : Conversation.cancelled(toolCall, "the run was left")
  )
  const questions = left.flatMap(({ toolCall, ...ended }) => OpenCalls.remembered(toolCall, ended) ?? [])
  return { ...state, session: Conversation.withApproved(state.session, messages, questions) }
}

/**
 * The session after the stream, and its result. A whole run gives the session that the operation gives. A run that was
 * cut is cancelled and leaves what was whole of it; a step that was cut leaves the session as it was, but for approved
 * calls that had begun. Asking twice gives the same.
 *
 * @category folding
 * @since 0.1.0
 */
export const finalize = <M extends Mode>(reducer: StreamReducer<M>): Finalized<M> => {
  const { collector, isEnded, mode, session, state } = reducer
  const finalized = (session: Conversation.Session, result: Event.ChatResult | Event.StepResult) =>
    ({ session, result }) as Finalized<M>
  if (isEnded) {
    return finalized(
      state.session,
      mode === "chat" ? Collector.toChatResult(collector) : Collector.toStepResult(collector)
    )
  }
  const left = brokenOff(reducer)
  if (mode === "step") {
    const result = { ...Collector.toStepResult(collector), haltedReason: "cancelled" }
    return finalized(session.approved.length === 0 ? session : Conversation.plain(left.session), result)
  }
  const result = Collector.toChatResult(collector)
  // A last step that was whole, or an approved call, may have left calls that wait: they wait on.
  const { suspensions } = left.session
  const record = endedAs(reducer, { ...result, suspensions }, result.outcome)
  const ended = Conversation.plain(Journal.apply(left, record).session)
  const isReady = ended.approved.length > 0 && ended.suspensions.length === 0
  return finalized(isReady ? { ...ended, status: "idle" } : ended, result)
}
