/**
 * The data of a session and its transitions: the thread, the calls that wait, and what each thing that happens changes.
 * Every function is pure, so that the same history gives the same session in every process. Public as `Session`.
 *
 * **Details**
 *
 * A *suspension* is a call that waits for an answer from outside: a question to the user, an approval, or a manual call.
 * Every comment and name here uses that word for all three, and "question" only for the first kind. `suspensions` is the
 * one list of them. The fold of a run knows what is open in it
 * (`tools.open` of `fold/state`), the reducer hands that on, and the list is changed here alone:
 *
 * - `stepped` opens the calls that a turn leaves open; `withApproved` and `brokenOff` open the questions of approved calls
 * - `settle` closes a call with its answer, and `withdrawn` a question that its run withdraws
 * - `running` and `spokenTo` close what a message of the user answers
 * - `ended` sets what is open behind a run, which is what was open at its end
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"
import * as Event from "../../Event.ts"
import * as Message from "../../Message.ts"
import * as Policy from "../../Policy.ts"
import * as Thread from "../../Thread.ts"
import * as Answers from "../answer/answer.ts"
import * as Contents from "../answer/content.ts"
import * as OpenCalls from "../answer/openCalls.ts"
import * as ToolOutcomes from "../declare/outcome.ts"
import * as SharedMessages from "../fold/sharedMessages.ts"
import * as Json from "../json.ts"

/**
 * Where a session stands:
 *
 * - `idle`: nothing waits, and the next operation may begin
 * - `awaiting_user`: a question is open
 * - `awaiting_tools`: approvals or manual calls are open, and no question
 * - `completed`: the last run ended
 * - `stopped`: the last run was stopped by request (`Session.stop`)
 * - `error`: the last run broke
 *
 * @category schemas
 * @since 0.1.0
 */
export const Status = Schema.Literals(["idle", "awaiting_user", "awaiting_tools", "completed", "stopped", "error"])

/**
 * @see {@link Status}
 *
 * @category models
 * @since 0.1.0
 */
export type Status = (typeof Status)["Type"]

/**
 * The answer to a question, or the result of a manual call.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ValueAnswer extends Schema.Opaque<ValueAnswer>()(Schema.TaggedStruct("Value", {
  /** The value, as plain JSON. */
  value: Json.Opaque
})) {}

/**
 * The call may run.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ApprovedAnswer extends Schema.Opaque<ApprovedAnswer>()(Schema.TaggedStruct("Approved", {
  /** The arguments that the call runs with in place of its own. */
  arguments: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
})) {}

/**
 * The call may not run.
 *
 * @category schemas
 * @since 0.1.0
 */
export class DeniedAnswer extends Schema.Opaque<DeniedAnswer>()(Schema.TaggedStruct("Denied", {
  /** Why, as the model reads it. */
  reason: Schema.optionalKey(Schema.String)
})) {}

/**
 * The time for an answer was up: the default of the question counts, and an approval counts as denied.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ExpiredAnswer extends Schema.Opaque<ExpiredAnswer>()(Schema.TaggedStruct("Expired", {})) {}

/**
 * How a suspension was settled.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Answer = Schema.Opaque<Answer>()(Schema.Union([ValueAnswer, ApprovedAnswer, DeniedAnswer, ExpiredAnswer]))

/**
 * @see {@link Answer}
 *
 * @category models
 * @since 0.1.0
 */
export type Answer = ValueAnswer | ApprovedAnswer | DeniedAnswer | ExpiredAnswer

/**
 * Answers for the run inside a call.
 *
 * @category schemas
 * @since 0.1.0
 */
export class NestedAnswers extends Schema.Opaque<NestedAnswers>()(Schema.Struct({
  /** The id of the call. */
  id: Schema.String,
  /** The answers, each to a call that the inner run waits for. */
  answers: Schema.Array(Schema.Struct({
    /** The id under which the inner run waits for it. */
    id: Schema.String,
    /** How it was settled. */
    answer: Answer
  }))
})) {}

const Data = Schema.Struct({
  /** The id in a store, which is also the default of `cacheKey`. Absent if the session was made without one. */
  id: Schema.optionalKey(Schema.String),
  /** The conversation. Every provider accepts it as it is, except for the calls in `suspensions`. */
  thread: Thread.Thread,
  /** Where the session stands. */
  status: Status,
  /** The calls that wait for an answer from outside, each under its own id, in call order. */
  suspensions: Schema.Array(Event.Suspension),
  /** The calls that were approved and have not run yet, in call order. The next run begins with them. */
  approved: Schema.Array(Message.ToolCall),
  /** The ids that were answered since the last run. The next run reports each of them that it does not run as an event. */
  answered: Schema.Array(Schema.String),
  /**
   * Answers for runs inside calls, until those calls run again, each under the id of its call. Left out when there are none.
   */
  nested: Schema.optionalKey(Schema.Array(NestedAnswers)),
  /** The calls of `suspensions` that wait for an approval or for a result, without the questions. */
  pendingToolCalls: Schema.Array(Message.ToolCall),
  /** The text of the first question that is open. */
  pendingQuestion: Schema.optionalKey(Schema.String),
  /** The id of the call that asked it. */
  pendingToolCallId: Schema.optionalKey(Schema.String),
  /** What handlers read as `call.context`, with the updates that they returned. Empty by default. */
  context: Schema.Record(Schema.String, Json.Opaque),
  /** The caller's own data, and in status `error` the error of the last run under `error`. Empty by default. */
  metadata: Json.Metadata
})

/** What a status promises; data that was written by hand may break it. */
const broken = (session: (typeof Data)["Type"]): string | undefined => {
  switch (session.status) {
    case "awaiting_user":
      return typeof session.pendingQuestion === "string" ? undefined : "awaiting_user needs a pending question"
    case "awaiting_tools":
      return session.pendingToolCalls.length > 0 ? undefined : "awaiting_tools needs pending tool calls"
    case "error":
      return "error" in session.metadata ? undefined : "error needs metadata.error"
    default:
      return undefined
  }
}

/**
 * A session: serialisable data and nothing else.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Session
  extends Schema.Opaque<Session>()(Data.check(Schema.makeFilter((session) => broken(session) ?? true)))
{}

/** Whether a value is a session, and no thread. */
export const isSession = Schema.is(Session)

/**
 * What a session is made of.
 *
 * @category options
 * @since 0.1.0
 */
export interface Options {
  /** The id of the session, for the caller's own use. A session of a store has the id that it is opened with. */
  readonly id?: string
  /** The conversation so far. Empty by default. */
  readonly thread?: Thread.Thread
  /** What handlers read as `call.context`. Empty by default. */
  readonly context?: Session["context"]
  /** The caller's own data. Empty by default. */
  readonly metadata?: Session["metadata"]
}

/** A session at rest. */
export const make = (options: Options = {}): Session => ({
  ...(options.id === undefined ? {} : { id: options.id }),
  thread: options.thread ?? Thread.empty,
  status: "idle",
  suspensions: [],
  approved: [],
  answered: [],
  pendingToolCalls: [],
  context: options.context ?? {},
  metadata: options.metadata ?? {}
})

/**
 * What a caller got wrong about a session's data. A wrong status is a defect instead, and names the right call.
 *
 * - `session_in_error_state`: the last run broke; `Session.recover` leads out
 * - `approval_pending`: the user spoke while calls wait for an approval: settle them with `Session.approve` or
 *   `Session.deny` first (`Session.expire` where their time is up), or reply with `pending: "deny"`. A question beside an
 *   approval is answered with `Session.answer`
 * - `unknown_tool_call_id`: no such call waits; `already_answered`: it has had its answer
 * - `invalid_answer`: the answer does not fit the question, or the kind of the call
 * - `expired`: the time for an answer is up: `Session.expire` settles the call
 * - `several_pending`: a reply cannot choose between several open calls: `Session.answer` can
 *
 * @category errors
 * @since 0.1.0
 */
export class SessionError extends Schema.TaggedError<SessionError>("heddle/Session/SessionError")("SessionError", {
  /** What is wrong. */
  reason: Schema.Literals([
    "session_in_error_state",
    "approval_pending",
    "unknown_tool_call_id",
    "already_answered",
    "invalid_answer",
    "expired",
    "several_pending",
    "unfinished"
  ]),
  /** The problem as text, with the call that resolves it. */
  detail: Schema.optionalKey(Schema.String),
  /** `toolCallId` where the error is about one call. */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
}) {
  override get message(): string {
    return this.detail === undefined ? this.reason : `${this.reason}: ${this.detail}`
  }
}

/** The session with these suspensions, and in status `rest` without any. The summaries of the suspensions are made here. */
const waitingFor = (session: Session, suspensions: Session["suspensions"], rest: Status): Session => {
  const { pendingQuestion: _, pendingToolCallId: __, ...cleared } = session
  const question = suspensions.find((suspension) => suspension.kind === "question")
  const calls = suspensions.filter((suspension) => suspension.kind !== "question")
  return {
    ...cleared,
    status: question !== undefined ? "awaiting_user" : calls.length > 0 ? "awaiting_tools" : rest,
    suspensions,
    pendingToolCalls: calls.map((suspension) => suspension.toolCall),
    ...(question === undefined
      ? {}
      : { pendingQuestion: question.question ?? "", pendingToolCallId: question.id })
  }
}

/**
 * The session with messages at the end of its thread. A thread that grows message by message shares what it has with the
 * threads before it, so that the cost of reading a journal is linear: see {@link plain}.
 */
export const saying = (session: Session, messages: ReadonlyArray<Message.Message>): Session =>
  messages.length === 0 ? session : { ...session, thread: SharedMessages.appendedShared(session.thread, messages) }

/** The session with its thread as plain data, as a caller gets it. */
export const plain = (session: Session): Session => {
  const thread = SharedMessages.plain(session.thread)
  return thread === session.thread ? session : { ...session, thread }
}

/** The session with answers to its calls, each in the place of its call. */
const answering = (session: Session, answers: ReadonlyArray<Message.Message>): Session => ({
  ...session,
  thread: SharedMessages.placed(session.thread, answers)
})

/** The session led out of status `error`: idle, with its whole thread and without `metadata.error`. */
export const recover = (session: Session): Session => {
  if (session.status !== "error") return session
  const { error: _, ...metadata } = session.metadata
  return { ...session, status: "idle", metadata }
}

/** The session as the model is asked: nothing is open any more, since the messages of the run answer it. */
export const running = (session: Session): Session => waitingFor(session, [], "idle")

/**
 * The session as the user's message takes its place behind the answers of approved calls. It answers what was open before
 * the run; a question that one of those calls asked stays open.
 */
export const spokenTo = (session: Session): Session =>
  waitingFor(session, session.suspensions.filter(({ id }) => session.answered.includes(id)), "idle")

/** The suspensions of the session with more of them, in the order of the calls of the turn. */
const opened = ({ suspensions, thread }: Session, more: Session["suspensions"]): Session["suspensions"] => {
  const waiting = [...suspensions, ...more].map((suspension) => ({ id: OpenCalls.outerOf(suspension), suspension }))
  return SharedMessages.inCallOrder(thread, waiting).map(({ suspension }) => suspension)
}

/** The session without the answers for what runs inside some calls. */
const withoutNested = (session: Session, ids: ReadonlySet<string | undefined>): Session => {
  if (session.nested === undefined) return session
  const { nested, ...rest } = session
  const left = nested.filter(({ id }) => !ids.has(id))
  return left.length === 0 ? rest : { ...rest, nested: left }
}

/** The session after calls that were approved have been answered. Those that asked a question are open again. */
export const withApproved = (
  session: Session,
  answers: ReadonlyArray<Message.Message>,
  questions: ReadonlyArray<Event.Suspension>
): Session => {
  const ids = new Set([...answers.map((message) => message.toolCallId), ...questions.map(OpenCalls.outerOf)])
  const approved = session.approved.filter((call) => !ids.has(call.id))
  const answered = answering(withoutNested({ ...session, approved }, ids), answers)
  if (questions.length === 0) return answered
  const suspensions = opened(session, questions)
  return waitingFor(answered, suspensions, session.status)
}

/** A call whose handler has started, and its outcome once it has ended. */
export interface Begun {
  readonly toolCall: Message.ToolCall
  readonly outcome?: unknown
  /** Whether the outcome is in the form that `Tool.encodeOutcome` writes. */
  readonly encoded?: boolean
  /** Of a call whose outcome is a question: when it is settled without an answer. */
  readonly expiresAt?: number
}

/** The questions that calls ended with. */
export const questionsOf = (calls: ReadonlyArray<Begun>): ReadonlyArray<Event.Suspension> =>
  calls.flatMap((call) => OpenCalls.remembered(call.toolCall, call))

/**
 * The session after a run that broke off between the start of approved calls and their answers. None of the calls that
 * have begun runs again: each has its outcome as its answer, or is open if that is a question, or `unfinished` answers it.
 */
export const brokenOff = (
  session: Session,
  begun: ReadonlyArray<Begun>,
  unfinished: (toolCall: Message.ToolCall) => Message.Message
): Session => {
  const left = begun.filter(({ toolCall }) => session.approved.some((call) => call.id === toolCall.id))
  if (left.length === 0) return session
  const answers = left.flatMap((call) => {
    if (!("outcome" in call)) return [unfinished(call.toolCall)]
    const isOpen = ToolOutcomes.readSuspended(call.outcome) !== undefined
    return isOpen ? [] : [Answers.recalled(call.toolCall, call, Policy.standard)]
  })
  return withApproved(session, answers, questionsOf(left))
}

/** The session after a question was withdrawn: `answer` is what the call has instead. */
export const withdrawn = (session: Session, answer: Message.Message): Session => {
  const suspensions = session.suspensions.filter((suspension) => OpenCalls.outerOf(suspension) !== answer.toolCallId)
  return waitingFor(answering(session, [answer]), suspensions, "idle")
}

/** The session after a whole step: its messages, and the calls of it that are open. */
export const stepped = (
  session: Session,
  messages: ReadonlyArray<Message.Message>,
  suspensions: Session["suspensions"]
): Session => waitingFor(saying(session, messages), suspensions, "idle")

/** What a run leaves behind, besides its messages. */
export interface Ended {
  readonly status: Status
  readonly suspensions: Session["suspensions"]
  readonly context: Session["context"]
  readonly metadata: Session["metadata"]
}

/** The session at the end of a run. */
export const ended = (session: Session, { context, metadata, status, suspensions }: Ended): Session => ({
  ...waitingFor({ ...session, answered: [] }, suspensions, status),
  context: { ...session.context, ...context },
  metadata: { ...session.metadata, ...metadata }
})

const statusOf = (outcome: Event.Outcome | undefined): Status => {
  if (outcome === undefined) return "idle"
  if (outcome._tag === "Cancelled" && outcome.reason === "stop") return "stopped"
  return outcome._tag === "ToolFailed" || outcome._tag === "Failed" ? "error" : "completed"
}

const errorOf = (outcome: Event.Outcome | undefined): Session["metadata"] => {
  if (outcome?._tag === "Failed") return { error: outcome.error }
  if (outcome?._tag !== "ToolFailed") return {}
  const { haltToolCallId, onToolErrorException } = outcome
  return { error: onToolErrorException ?? { haltToolCallId } }
}

/** What a result leaves behind. A step that only ran tools has no outcome, and leaves the session idle. */
export const leaving = (
  result: Pick<Event.ChatResult, "contextUpdate" | "metadata">,
  outcome: Event.Outcome | undefined
): Omit<Ended, "suspensions"> => ({
  status: statusOf(outcome),
  context: result.contextUpdate ?? {},
  metadata: { ...result.metadata, ...errorOf(outcome) }
})

// The model reads this text, and stored threads have it.
const late = "nobody answered within the time there was"

const settled = (session: Session, suspension: Event.Suspension, answer: Answer): Session => {
  const { defaultAnswer, id, kind, resultCut = "headAndTail", resultLimit = 0, toolCall } = suspension
  const given = (value: unknown): Session => {
    const answered = Message.answer(id, value)
    const { content } = Contents.cutResult(answered.content, resultLimit, { resultLimit, resultCut })
    const message = { ...answered, content }
    return kind === "question"
      ? { ...session, thread: SharedMessages.withAnswer(session.thread, message) }
      : answering(session, [message])
  }
  switch (answer._tag) {
    case "Value":
      return given(answer.value)
    case "Approved": {
      const call = answer.arguments === undefined ? toolCall : edited(toolCall, answer.arguments)
      return { ...session, approved: SharedMessages.inCallOrder(session.thread, [...session.approved, call]) }
    }
    case "Denied":
      return answering(session, [Answers.refused("denied", toolCall, answer.reason ?? "the call was not approved")])
    case "Expired":
      if (kind === "question") return given(defaultAnswer ?? late)
      return defaultAnswer === undefined
        ? answering(session, [Answers.refused("denied", toolCall, late)])
        : given(defaultAnswer)
  }
}

/** The call with other arguments. What the model wrote is not what runs. */
const edited = (toolCall: Message.ToolCall, args: Message.ToolCall["arguments"]): Message.ToolCall => {
  const { rawArguments: _, ...call } = toolCall
  return { ...call, arguments: args }
}

/**
 * The session after a call of a nested run was answered. When that run waits for nothing any more, the call that has started
 * it may run, and hands the answers on.
 */
const settledWithin = (
  session: Session,
  suspension: Event.Suspension,
  answer: Answer,
  rest: Session["suspensions"]
): Session => {
  const outer = OpenCalls.outerOf(suspension)
  const given = { id: OpenCalls.innerOf(suspension), answer }
  const { nested = [] } = session
  const before = nested.find(({ id }) => id === outer)?.answers ?? []
  const others = nested.filter(({ id }) => id !== outer)
  const after = { ...session, nested: [...others, { id: outer, answers: [...before, given] }] }
  const toolCall = SharedMessages.callOf(session.thread, outer)
  if (toolCall === undefined || rest.some((other) => OpenCalls.outerOf(other) === outer)) return after
  return { ...after, approved: SharedMessages.inCallOrder(session.thread, [...session.approved, toolCall]) }
}

/**
 * The session after a suspension was answered. The others stay open, and the last one leaves it idle. An id that is not
 * open changes nothing: an answer counts once.
 */
export const settle = (session: Session, id: string, answer: Answer): Session => {
  const suspension = session.suspensions.find((suspension) => suspension.id === id)
  if (suspension === undefined) return session
  const rest = session.suspensions.filter((other) => other !== suspension)
  const after = suspension.path === undefined
    ? settled(session, suspension, answer)
    : settledWithin(session, suspension, answer, rest)
  return { ...waitingFor(after, rest, "idle"), answered: [...session.answered, id] }
}
