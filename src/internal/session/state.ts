/**
 * The plain data of a conversation that is kept: its thread, what it waits for, and how each thing that happens to it
 * changes it. Everything here is a pure function of the data, so that the same history always gives the same
 * conversation, in whatever process it is read. Public as `Session`.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"
import * as Event from "../../Event.ts"
import * as Message from "../../Message.ts"
import * as Policy from "../../Policy.ts"
import * as Thread from "../../Thread.ts"
import * as Tool from "../../Tool.ts"
import * as Cut from "../answer/cut.ts"
import { describedAgain, shownText } from "../answer/errorFields.ts"
import * as OpenCalls from "../answer/openCalls.ts"
import * as Outcomes from "../declare/outcome.ts"
import { toolError } from "../declare/outcome.ts"
import * as Log from "../fold/sharedMessages.ts"
import * as Json from "../json.ts"

/**
 * Where a session stands: `awaiting_user` while a question is open, `awaiting_tools` while approvals or manual calls
 * are, `error` after a run that broke, `completed` after one that ended, and `idle` otherwise.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Status = Schema.Literals(["idle", "awaiting_user", "awaiting_tools", "completed", "error"])

/**
 * @see {@link Status}
 *
 * @category models
 * @since 0.1.0
 */
export type Status = (typeof Status)["Type"]

const Data = Schema.Struct({
  id: Schema.optionalKey(Schema.String),
  thread: Thread.Thread,
  status: Status,
  suspensions: Schema.Array(Event.Suspension),
  approved: Schema.Array(Message.ToolCall),
  answered: Schema.Array(Schema.String),
  pendingToolCalls: Schema.Array(Message.ToolCall),
  pendingQuestion: Schema.optionalKey(Schema.String),
  pendingToolCallId: Schema.optionalKey(Schema.String),
  context: Schema.Record(Schema.String, Json.Opaque),
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
 * A session: serialisable data and nothing else. `suspensions` are the calls it waits for, each under its own id;
 * `approved` the calls that may run when it goes on, in call order, `answered` the ids that have had their answer since the
 * last run: the next run begins with an event for each of them that it does not run.
 * `pendingToolCalls`, `pendingQuestion` and `pendingToolCallId` say the same in fewer words: the calls that somebody has
 * to run or allow, and the first question. A session in status `error` has what broke it in `metadata.error`.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Session = Data.check(Schema.makeFilter((session) => broken(session) ?? true))

/** Whether a value is a session, and no thread. */
export const isSession = Schema.is(Session)

/**
 * @see {@link Session}
 *
 * @category models
 * @since 0.1.0
 */
export type Session = (typeof Session)["Type"]

/**
 * How a suspension was settled: with a value (the answer to a question, the result of a manual call), or with a decision
 * on an approval. `arguments` are what the approved call runs with instead of its own. `Expired` is the answer of one whose
 * time was up: its default.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Answer = Schema.Union([
  Schema.TaggedStruct("Value", { value: Json.Opaque }),
  Schema.TaggedStruct("Approved", { arguments: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)) }),
  Schema.TaggedStruct("Denied", { reason: Schema.optionalKey(Schema.String) }),
  Schema.TaggedStruct("Expired", {})
])

/**
 * @see {@link Answer}
 *
 * @category models
 * @since 0.1.0
 */
export type Answer = (typeof Answer)["Type"]

/**
 * What a session can be made of.
 *
 * @category models
 * @since 0.1.0
 */
export interface Options {
  readonly id?: string
  readonly thread?: Thread.Thread
  readonly context?: Session["context"]
  readonly metadata?: Session["metadata"]
}

/**
 * A session at rest.
 *
 * @category constructors
 * @since 0.1.0
 */
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
 * - `several_pending`: a reply cannot say which of several calls it answers: `Session.answer` can
 *
 * @category errors
 * @since 0.1.0
 */
export class SessionError extends Schema.TaggedError<SessionError>("heddle/Conversation/SessionError")("SessionError", {
  reason: Schema.Literals([
    "session_in_error_state",
    "approval_pending",
    "unknown_tool_call_id",
    "already_answered",
    "invalid_answer",
    "expired",
    "several_pending"
  ]),
  detail: Schema.optionalKey(Schema.String),
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
}) {
  override get message(): string {
    return this.detail === undefined ? this.reason : `${this.reason}: ${this.detail}`
  }
}

/**
 * The session with these calls pending, or at rest without any.
 *
 * @category transitions
 * @since 0.1.0
 */
export const waitingFor = (session: Session, suspensions: Session["suspensions"], rest: Status): Session => {
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
 * threads before it, so that reading a journal costs what is in it: see {@link plain}.
 *
 * @category transitions
 * @since 0.1.0
 */
export const saying = (session: Session, messages: ReadonlyArray<Message.Message>): Session =>
  messages.length === 0 ? session : { ...session, thread: Log.grown(session.thread, messages) }

/**
 * The session with its thread as plain data, as a caller gets it.
 *
 * @category transitions
 * @since 0.1.0
 */
export const plain = (session: Session): Session => {
  const thread = Log.plain(session.thread)
  return thread === session.thread ? session : { ...session, thread }
}

/** The session with answers to its calls, each in the place of its call. */
const answering = (session: Session, answers: ReadonlyArray<Message.Message>): Session => ({
  ...session,
  thread: Log.placed(session.thread, answers)
})

/**
 * The session led out of status `error`: idle, with its whole thread and without `metadata.error`. A session that is not
 * in error is given back as it is. It is not written by itself: within `Session.keep` recover in the operation that goes on.
 *
 * **Example** (Going on after a reply that broke)
 *
 * ```ts import.meta.vitest
 * import * as Effect from "effect/Effect"
 * import { Message, Session } from "heddle"
 * import { Script } from "heddle/testing"
 *
 * const { finish, streamError, text } = Script
 * const broken = [text("It is "), streamError("network_error")]
 * const whole = [text("It is raining."), finish("stop")]
 *
 * const program = Effect.gen(function*() {
 *   const { session } = yield* Session.start([Message.user("Is it raining?")])
 *   const after = yield* Session.reply(Session.recover(session), "Please say that again.")
 *   return [session.status, after.result.finalResponse?.outputText]
 * })
 *
 * await Effect.runPromise(Effect.provide(program, Script.layer([broken, whole]))) // => ["error", "It is raining."]
 * ```
 *
 * @category transitions
 * @since 0.1.0
 */
export const recover = (session: Session): Session => {
  if (session.status !== "error") return session
  const { error: _, ...metadata } = session.metadata
  return { ...session, status: "idle", metadata }
}

/**
 * The session as a run begins: what it waited for has been said.
 *
 * @category transitions
 * @since 0.1.0
 */
export const running = (session: Session): Session => waitingFor(session, [], "idle")

/**
 * The session after calls that were approved have been answered, of which those that asked a question go on waiting.
 *
 * @category transitions
 * @since 0.1.0
 */
export const withApproved = (
  session: Session,
  answers: ReadonlyArray<Message.Message>,
  questions: ReadonlyArray<Event.Suspension>
): Session => {
  const ids = new Set(answers.map((message) => message.toolCallId))
  const approved = session.approved.filter((call) => !ids.has(call.id))
  const answered = answering({ ...session, approved }, answers)
  if (questions.length === 0) return answered
  const suspensions = Log.inCallOrder(session.thread, [...session.suspensions, ...questions])
  return waitingFor(answered, suspensions, session.status)
}

/**
 * The session after a question was withdrawn: it has the answer that the message gives.
 *
 * @category transitions
 * @since 0.1.0
 */
export const withdrawn = (session: Session, answer: Message.Message): Session => {
  const suspensions = session.suspensions.filter(({ id }) => id !== answer.toolCallId)
  return waitingFor(answering(session, [answer]), suspensions, "idle")
}

/**
 * What a run left behind, besides its messages.
 *
 * @category models
 * @since 0.1.0
 */
export interface Ended {
  readonly status: Status
  readonly suspensions: Session["suspensions"]
  readonly context: Session["context"]
  readonly metadata: Session["metadata"]
}

/**
 * The session at the end of a run.
 *
 * @category transitions
 * @since 0.1.0
 */
export const ended = (session: Session, { context, metadata, status, suspensions }: Ended): Session => ({
  ...waitingFor({ ...session, answered: [] }, suspensions, status),
  context: { ...session.context, ...context },
  metadata: { ...session.metadata, ...metadata }
})

const statusOf = (outcome: Event.Outcome | undefined): Status => {
  if (outcome === undefined) return "idle"
  return outcome._tag === "ToolFailed" || outcome._tag === "Failed" ? "error" : "completed"
}

const errorOf = (outcome: Event.Outcome | undefined): Session["metadata"] => {
  if (outcome?._tag === "Failed") return { error: outcome.error }
  if (outcome?._tag !== "ToolFailed") return {}
  const { haltToolCallId, onToolErrorException } = outcome
  return { error: onToolErrorException ?? { haltToolCallId } }
}

/**
 * How a result leaves the session it came from: waiting, completed or in error. A step that only ran tools leaves it
 * idle.
 *
 * @category transitions
 * @since 0.1.0
 */
export const leaving = (
  result: Pick<Event.ChatResult, "suspensions" | "contextUpdate" | "metadata">,
  outcome: Event.Outcome | undefined
): Ended => ({
  status: statusOf(outcome),
  suspensions: result.suspensions ?? [],
  context: result.contextUpdate ?? {},
  metadata: { ...result.metadata, ...errorOf(outcome) }
})

const refused = ({ toolCall }: Event.Suspension, detail: string): Message.Message => {
  const { id: toolCallId, name: toolName } = toolCall
  const error = new Tool.ToolError({ reason: "denied", toolName, toolCallId, detail })
  return { ...Message.answer(toolCallId, { error: error.message, code: error.reason }), isError: true }
}

/**
 * The answer to an approved call that began and came to no end, or whose question was withdrawn.
 *
 * @category transitions
 * @since 0.1.0
 */
export const cancelled = ({ id: toolCallId, name: toolName }: Message.ToolCall, detail: string): Message.Message => {
  const error = new Tool.ToolError({ reason: "cancelled", toolName, toolCallId, detail })
  return { ...Message.answer(toolCallId, { error: error.message, code: error.reason }), isError: true }
}

/** What the model reads of an error. The error of a crash shows its reason, and never what the handler died with. */
const errorAgain = (error: unknown): Json.JsonObject => {
  const { message, reason } = Json.isObject(error) && error["_tag"] === "ToolError" ? error : {}
  if (typeof message === "string" && typeof reason === "string") return { error: shownText(message), code: reason }
  const { details, text } = describedAgain(error)
  return details === undefined ? { error: text } : { error: text, details }
}

/**
 * The answer to a call of which no more is known than what its handler came to, read from a journal or an event. It says
 * what the run would have said, without the tool and the encoder, which are not at hand: it shows no more of an error, and
 * no longer text.
 *
 * @category transitions
 * @since 0.1.0
 */
export const recalled = (call: Message.ToolCall, outcome: unknown): Message.Message => {
  const answered = (value: unknown): Message.Message => {
    const text = () => typeof value === "string" ? value : JSON.stringify(Json.toJson(value))
    return Message.tool(call.id, Cut.result(Outcomes.partsIn(value) ?? text(), undefined, Policy.standard).content)
  }
  const failed = (error: unknown): Message.Message => {
    const { content } = Cut.error(JSON.stringify(errorAgain(error)), Policy.standard)
    return { ...Message.tool(call.id, content), isError: true }
  }
  if (!Outcomes.isWellFormed(outcome)) return failed(toolError("invalid_return", call))
  switch (outcome._tag) {
    case "Ok":
      return answered(outcome.value)
    case "Error":
      return failed(outcome.error)
    case "Halt":
      return answered(outcome.result)
    case "AskUser":
      return OpenCalls.unanswered(call.id)
  }
}

const late = "nobody answered within the time there was"

const settled = (session: Session, suspension: Event.Suspension, answer: Answer): Session => {
  const { defaultAnswer, id, kind, resultCut = "headAndTail", resultLimit = 0, toolCall } = suspension
  const told = (value: unknown): Session => {
    const answered = Message.answer(id, value)
    const { content } = Cut.result(answered.content, resultLimit, { resultLimit, resultCut })
    const message = { ...answered, content }
    return kind === "question"
      ? { ...session, thread: Log.told(session.thread, message) }
      : answering(session, [message])
  }
  switch (answer._tag) {
    case "Value":
      return told(answer.value)
    case "Approved": {
      const call = answer.arguments === undefined ? toolCall : edited(toolCall, answer.arguments)
      return { ...session, approved: Log.inCallOrder(session.thread, [...session.approved, call]) }
    }
    case "Denied":
      return answering(session, [refused(suspension, answer.reason ?? "the call was not approved")])
    case "Expired":
      if (kind === "question") return told(defaultAnswer ?? late)
      return defaultAnswer === undefined ? answering(session, [refused(suspension, late)]) : told(defaultAnswer)
  }
}

/** What the model wrote is not what runs. */
const edited = (toolCall: Message.ToolCall, args: Message.ToolCall["arguments"]): Message.ToolCall => {
  const { rawArguments: _, ...call } = toolCall
  return { ...call, arguments: args }
}

/**
 * The session after a call that it waits for has had its answer. The others go on waiting, and the last one leaves it
 * idle. An id that does not wait changes nothing: an answer counts once.
 *
 * @category transitions
 * @since 0.1.0
 */
export const settle = (session: Session, id: string, answer: Answer): Session => {
  const suspension = session.suspensions.find((suspension) => suspension.id === id)
  if (suspension === undefined) return session
  const rest = session.suspensions.filter((other) => other !== suspension)
  const after = settled(session, suspension, answer)
  return { ...waitingFor(after, rest, "idle"), answered: [...session.answered, id] }
}
