/**
 * The data of a session as programs see it, and the errors about it. A *suspension* is a call that waits for an
 * answer from outside: a question to the user, an approval, a manual call, or a call whose effect is unknown. Public
 * as `Session`.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"
import * as Event from "../../Event.ts"
import * as Message from "../../Message.ts"
import * as Thread from "../../Thread.ts"
import { checkNames, type NamesOf } from "../declare/schema.ts"
import * as Values from "../declare/values.ts"
import * as SharedMessages from "../fold/sharedMessages.ts"
import * as Json from "../json.ts"

/**
 * Status of a session:
 *
 * - `idle`: nothing waits, and the next operation may begin
 * - `awaiting_user`: a question is open
 * - `awaiting_tools`: approvals or manual calls are open, and no question
 * - `completed`: the last run ended
 * - `stopped`: the last run was stopped by request (`Session.stop`)
 * - `error`: the last run failed
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
 * Approves the call.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ApprovedAnswer extends Schema.Opaque<ApprovedAnswer>()(Schema.TaggedStruct("Approved", {
  /** Arguments that replace those of the call. */
  arguments: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
})) {}

/**
 * Denies the call.
 *
 * @category schemas
 * @since 0.1.0
 */
export class DeniedAnswer extends Schema.Opaque<DeniedAnswer>()(Schema.TaggedStruct("Denied", {
  /** The reason, as the model reads it. */
  reason: Schema.optionalKey(Schema.String)
})) {}

/**
 * The time for an answer is over: a question gets its default, and an approval is denied.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ExpiredAnswer extends Schema.Opaque<ExpiredAnswer>()(Schema.TaggedStruct("Expired", {})) {}

/**
 * The answer that settles a suspension.
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

const verdict = Schema.Literals(["answered", "approved", "denied", "expired"])

/**
 * A settled suspension.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Settled extends Schema.Opaque<Settled>()(Schema.Struct({
  /** The id of the suspension. */
  id: Schema.String,
  /** The verdict. */
  verdict,
  /** Time of the verdict, in milliseconds since 1970. Left out where no record has it. */
  at: Schema.optionalKey(Schema.Finite),
  /** The sender of a denial, as the program names them. Left out where the program does not say. */
  by: Schema.optionalKey(Schema.String),
  /** The reason of a denial. Left out where there is none. */
  detail: Schema.optionalKey(Schema.String)
})) {}

/** The verdict that stands, as receipts have it. */
export const standing = {
  /** The verdict that stands. Left out where none does. */
  verdict: Schema.optionalKey(verdict),
  /** Time of that verdict, in milliseconds since 1970. Left out where no record has it. */
  at: Schema.optionalKey(Schema.Finite)
}

/**
 * Answers for the nested run of a call.
 *
 * @category schemas
 * @since 0.1.0
 */
export class NestedAnswers extends Schema.Opaque<NestedAnswers>()(Schema.Struct({
  /** The id of the call. */
  id: Schema.String,
  /** The answers, each for a call that the nested run waits for. */
  answers: Schema.Array(Schema.Struct({
    /** The id under which the nested run waits for the call. */
    id: Schema.String,
    /** The answer. */
    answer: Answer,
    /** The sender of the answer, as the program names them. Left out where the program does not say. */
    by: Schema.optionalKey(Schema.String)
  }))
})) {}

const resume = {
  /** The state that the handler left with its question. */
  state: Json.Opaque,
  /** The key of the call. */
  idempotencyKey: Schema.String,
  /** The number of the attempt that asked. */
  attempt: Schema.Int
}

/**
 * The state that a handler left with its question: `resume` of `Tool.askUser`.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Resume extends Schema.Opaque<Resume>()(Schema.Struct(resume)) {}

/**
 * A call whose handler is started again once its question has its answer.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Resumable extends Schema.Opaque<Resumable>()(Schema.Struct({
  /** The id of the call. */
  id: Schema.String,
  ...resume,
  /** The answer. Left out until it is there. */
  answer: Schema.optionalKey(Json.Opaque)
})) {}

/**
 * An approval that is remembered: calls that it covers run without being asked about again.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Allowed extends Schema.Opaque<Allowed>()(Schema.Struct({
  /** The name of the tool. */
  name: Schema.String,
  /** The hash of the tool, as the approval was asked for: another tool of its name is asked about. */
  tool: Schema.String,
  /** The calls that it covers: all of the tool, or those with the same arguments. */
  remember: Schema.Literals(["tool", "arguments"]),
  /** The arguments, as the model sent them. Left out where all are covered. */
  arguments: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)),
  /** The id of the suspension that was approved. */
  id: Schema.String,
  /** The person who approved it, as the program names them. Left out where the program did not say. */
  by: Schema.optionalKey(Schema.String),
  /** Time of the approval, in milliseconds since 1970. Left out where it is not known. */
  time: Schema.optionalKey(Schema.Finite)
})) {}

const Data = Schema.Struct({
  /** The id in a store, and the default of `cacheKey`. Absent if the session was made without one. */
  id: Schema.optionalKey(Schema.String),
  /** The conversation. Every provider accepts it unchanged, except for the calls in `suspensions`. */
  thread: Thread.Thread,
  /** Status of the session. */
  status: Status,
  /** The calls that wait for an answer from outside, each under its own id, in call order. */
  suspensions: Schema.Array(Event.Suspension),
  /** The calls that were approved and have not run yet, in call order. The next run begins with them. */
  approved: Schema.Array(Message.ToolCall),
  /**
   * The suspensions that were settled since the last run. The next run reports each call that it does not run as an
   * event.
   */
  answered: Schema.Array(Settled),
  /**
   * Answers for nested runs, each under the id of its call, until that call runs again. Left out when there are none.
   */
  nested: Schema.optionalKey(Schema.Array(NestedAnswers)),
  /**
   * The states of handlers that asked and are started again with the answer, until their calls run again. They are not
   * meant for clients. Left out when there are none.
   */
  resumable: Schema.optionalKey(Schema.Array(Resumable)),
  /** The versions of the tools of open calls, by the ids of the calls. Left out where no such tool has one. */
  versions: Schema.optionalKey(Schema.Record(Schema.String, Schema.String)),
  /** The approvals that are remembered, oldest first: at most 100. Left out where there are none. */
  allowed: Schema.optionalKey(Schema.Array(Allowed)),
  /** The calls of `suspensions` that wait for an approval or a result, without the questions. */
  pendingToolCalls: Schema.Array(Message.ToolCall),
  /** The text of the first open question. */
  pendingQuestion: Schema.optionalKey(Schema.String),
  /** The id of the call that asked it. */
  pendingToolCallId: Schema.optionalKey(Schema.String),
  /** The data that handlers read as `call.context`, with the updates that they returned. Empty by default. */
  context: Schema.Record(Schema.String, Json.Opaque),
  /** The caller's own data. In status `error` it contains the error of the last run as `error`. Empty by default. */
  metadata: Json.Metadata
})

/** Checks the invariants of a status, which hand-written data may violate. */
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
 * A session: serialisable data only.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Session
  extends Schema.Opaque<Session>()(Data.check(Schema.makeFilter((session) => broken(session) ?? true)))
{}

/** Tells whether a value is a session. A thread is not. */
export const isSession = Schema.is(Session)

/** Returns the text of the model's last reply, `""` without one. The question of a tool is no reply. */
export const outputText = ({ thread }: Session): string => {
  const reply = thread.messages.findLast(SharedMessages.isReply)
  return reply === undefined ? "" : Message.text(reply)
}

/**
 * Options of a new session.
 *
 * @category options
 * @since 0.1.0
 */
export interface Options {
  /** The id of the session, for the caller's own use. A session in a store has the id that it is opened with. */
  readonly id?: string
  /** The conversation so far. Empty by default. */
  readonly thread?: Thread.Thread
  /** The data that handlers read as `call.context`. Empty by default. */
  readonly context?: Session["context"]
  /** The caller's own data. Empty by default. */
  readonly metadata?: Session["metadata"]
}

/** The options of a new session. */
export const knownOptions = {
  id: Values.text,
  thread: Values.record,
  context: Values.record,
  metadata: Values.record
} satisfies NamesOf<Options>

/** Returns an idle session. */
export const make = (options: Options = {}): Session => {
  checkNames("Session.make", options, knownOptions)
  return {
    ...(options.id === undefined ? {} : { id: options.id }),
    thread: options.thread ?? Thread.empty,
    status: "idle",
    suspensions: [],
    approved: [],
    answered: [],
    pendingToolCalls: [],
    context: options.context ?? {},
    metadata: options.metadata ?? {}
  }
}

/**
 * The caller's mistakes in the data of a session. A wrong status is a defect instead, and names the right call.
 *
 * - `session_in_error_state`: the last run failed; call `Session.recover` first
 * - `approval_pending`: the user replied while calls wait for an approval. Settle them with `Session.approve` or
 *   `Session.deny` first (`Session.expire` where their time is over), or reply with `pending: "deny"`. Answer a
 *   question beside an approval with `Session.answer`
 * - `unknown_tool_call_id`: no such call waits; `already_answered`: the call has its answer
 * - `invalid_answer`: the answer does not fit the question, or the kind of the call
 * - `invalid_arguments`: the tool of the call cannot read the arguments of an approval. `metadata.issues` has the
 *   `path` of each part within the arguments that does not fit, and the `reason`. The call keeps waiting
 * - `expired`: the time for an answer is over; `Session.expire` settles the call
 * - `several_pending`: several calls are open, so a reply cannot answer one; use `Session.answer`
 * - `unfinished`: the session has work left, which a snapshot would lose
 * - `id_taken`: the id was used before, for a message, a verdict or a session with different content
 * - `unknown_message`: no run of the session began with this message, so that none can branch before it
 * - `invalid_title`: the title of a session is empty, too long, or has characters that no title may have
 * - `nested`: the session is a nested run, which only its parent continues; submit to the session of its parent, label
 *   or take the snapshot of that session
 *
 * @category errors
 * @since 0.1.0
 */
export class SessionError extends Schema.TaggedError<SessionError>("heddle/Session/SessionError")("SessionError", {
  /** The kind of the mistake. */
  reason: Schema.Literals([
    "session_in_error_state",
    "approval_pending",
    "unknown_tool_call_id",
    "already_answered",
    "invalid_answer",
    "invalid_arguments",
    "expired",
    "several_pending",
    "unfinished",
    "id_taken",
    "unknown_message",
    "invalid_title",
    "nested"
  ]),
  /** A description of the problem, with the call that resolves it. */
  detail: Schema.optionalKey(Schema.String),
  /** `toolCallId` where the error is about one call, and `issues` of `invalid_arguments`. */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
}) {
  override get message(): string {
    return this.detail === undefined ? this.reason : `${this.reason}: ${this.detail}`
  }
}

Json.addError("SessionError", SessionError)

/** Returns the session from status `error` to `idle`, with its whole thread and without `metadata.error`. */
export const recover = (session: Session): Session => {
  if (session.status !== "error") return session
  const { error: _, ...metadata } = session.metadata
  return { ...session, status: "idle", metadata }
}
