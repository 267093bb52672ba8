/**
 * Session data as seen by programs, and its errors. A *suspension* is a call waiting for an outside answer: a question
 * to the user, an approval, a manual call, or a call with an unknown effect. Public as `Session`.
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
 * Session status:
 *
 * - `idle`: nothing waits, and the next operation may begin
 * - `awaiting_user`: a question is open
 * - `awaiting_tools`: approvals or manual calls are open, and no question
 * - `completed`: the last run ended
 * - `stopped`: the last run was stopped by request (`Session.stop`)
 * - `error`: the last run failed
 *
 * @category schemas
 */
export const Status = Schema.Literals(["idle", "awaiting_user", "awaiting_tools", "completed", "stopped", "error"])

/**
 * @see {@link Status}
 *
 * @category models
 */
export type Status = (typeof Status)["Type"]

/**
 * Answer to a question, or result of a manual call.
 *
 * @category schemas
 */
export class ValueAnswer extends Schema.Opaque<ValueAnswer>()(Schema.TaggedStruct("Value", {
  /** Value, as plain JSON. */
  value: Json.Opaque
})) {}

/**
 * Approves the call.
 *
 * @category schemas
 */
export class ApprovedAnswer extends Schema.Opaque<ApprovedAnswer>()(Schema.TaggedStruct("Approved", {
  /** Arguments replacing the call's own. */
  arguments: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
})) {}

/**
 * Denies the call.
 *
 * @category schemas
 */
export class DeniedAnswer extends Schema.Opaque<DeniedAnswer>()(Schema.TaggedStruct("Denied", {
  /** Reason, read by the model. */
  reason: Schema.optionalKey(Schema.String)
})) {}

/**
 * The time for an answer is over: a question gets its default, and an approval is denied.
 *
 * @category schemas
 */
export class ExpiredAnswer extends Schema.Opaque<ExpiredAnswer>()(Schema.TaggedStruct("Expired", {})) {}

/**
 * The answer settling a suspension.
 *
 * @category schemas
 */
export const Answer = Schema.Opaque<Answer>()(Schema.Union([ValueAnswer, ApprovedAnswer, DeniedAnswer, ExpiredAnswer]))

/**
 * @see {@link Answer}
 *
 * @category models
 */
export type Answer = ValueAnswer | ApprovedAnswer | DeniedAnswer | ExpiredAnswer

const verdict = Schema.Literals(["answered", "approved", "denied", "expired"])

/**
 * A settled suspension.
 *
 * @category schemas
 */
export class Settled extends Schema.Opaque<Settled>()(Schema.Struct({
  /** Suspension id. */
  id: Schema.String,
  /** Verdict. */
  verdict,
  /** Time of the verdict, in milliseconds since 1970. Left out if not recorded. */
  at: Schema.optionalKey(Schema.Finite),
  /** Sender of a denial, as named by the program. Left out if unknown. */
  by: Schema.optionalKey(Schema.String),
  /** Reason for a denial. Left out if absent. */
  detail: Schema.optionalKey(Schema.String)
})) {}

/** Standing verdict, as in receipts. */
export const standing = {
  /** Standing verdict. Left out if absent. */
  verdict: Schema.optionalKey(verdict),
  /** Verdict time, in milliseconds since 1970. Left out if not recorded. */
  at: Schema.optionalKey(Schema.Finite)
}

/**
 * Answers for a call's nested run.
 *
 * @category schemas
 */
export class NestedAnswers extends Schema.Opaque<NestedAnswers>()(Schema.Struct({
  /** Call id. */
  id: Schema.String,
  /** Answers, each for a call the nested run waits for. */
  answers: Schema.Array(Schema.Struct({
    /** Id under which the nested run waits for the call. */
    id: Schema.String,
    /** Answer. */
    answer: Answer,
    /** Sender of the answer, as named by the program. Left out if unknown. */
    by: Schema.optionalKey(Schema.String)
  }))
})) {}

const resume = {
  /** State left by the handler with its question. */
  state: Json.Opaque,
  /** Idempotency key of the call. */
  idempotencyKey: Schema.String,
  /** Number of the asking attempt. */
  attempt: Schema.Int
}

/**
 * State left by a handler with its question: `resume` of `Tool.askUser`.
 *
 * @category schemas
 */
export class Resume extends Schema.Opaque<Resume>()(Schema.Struct(resume)) {}

/**
 * A call whose handler is restarted once its question is answered.
 *
 * @category schemas
 */
export class Resumable extends Schema.Opaque<Resumable>()(Schema.Struct({
  /** Call id. */
  id: Schema.String,
  ...resume,
  /** Answer. Left out until available. */
  answer: Schema.optionalKey(Json.Opaque)
})) {}

/**
 * A remembered approval: calls covered by the approval run without asking again.
 *
 * @category schemas
 */
export class Allowed extends Schema.Opaque<Allowed>()(Schema.Struct({
  /** Tool name. */
  name: Schema.String,
  /** Hash of the approved tool: a different tool of the same name is asked about. */
  tool: Schema.String,
  /** Covered calls: all calls to the tool, or calls with the same arguments. */
  remember: Schema.Literals(["tool", "arguments"]),
  /** Arguments, as sent by the model. Left out if all calls are covered. */
  arguments: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)),
  /** Id of the approved suspension. */
  id: Schema.String,
  /** Person who approved, as named by the program. Left out if unknown. */
  by: Schema.optionalKey(Schema.String),
  /** Time of the approval, in milliseconds since 1970. Left out if unknown. */
  time: Schema.optionalKey(Schema.Finite)
})) {}

const Data = Schema.Struct({
  /** Id in a store, and default for `cacheKey`. Left out if the session was made without an id. */
  id: Schema.optionalKey(Schema.String),
  /** Conversation. Every provider accepts it unchanged, except for the calls in `suspensions`. */
  thread: Thread.Thread,
  /** Session status. */
  status: Status,
  /** Calls waiting for an outside answer, each under its own id, in call order. */
  suspensions: Schema.Array(Event.Suspension),
  /** Approved calls that have not run yet, in call order. The next run begins with these. */
  approved: Schema.Array(Message.ToolCall),
  /** Suspensions settled since the last run. The next run reports each call it does not run as an event. */
  answered: Schema.Array(Settled),
  /** Answers for nested runs, by call id, until the call runs again. Left out if empty. */
  nested: Schema.optionalKey(Schema.Array(NestedAnswers)),
  /**
   * States of asking handlers to be restarted with the answer, until their calls run again. Not meant for clients. Left
   * out if empty.
   */
  resumable: Schema.optionalKey(Schema.Array(Resumable)),
  /** Tool versions of open calls, by call id. Left out if no such tool has a version. */
  versions: Schema.optionalKey(Schema.Record(Schema.String, Schema.String)),
  /** Remembered approvals, oldest first: at most 100. Left out if empty. */
  allowed: Schema.optionalKey(Schema.Array(Allowed)),
  /** Calls in `suspensions` waiting for an approval or a result, without questions. */
  pendingToolCalls: Schema.Array(Message.ToolCall),
  /** Text of the first open question. */
  pendingQuestion: Schema.optionalKey(Schema.String),
  /** Id of the asking call. */
  pendingToolCallId: Schema.optionalKey(Schema.String),
  /** Value of `call.context` for handlers, with their updates. Empty by default. */
  context: Schema.Record(Schema.String, Json.Opaque),
  /** The caller's own data. In status `error` it has the last run's error as `error`. Empty by default. */
  metadata: Json.Metadata
})

/** Checks the status invariants, which hand-written data may violate. */
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
 * A session: serializable data only.
 *
 * @category schemas
 */
export class Session
  extends Schema.Opaque<Session>()(Data.check(Schema.makeFilter((session) => broken(session) ?? true)))
{}

/** Returns `true` for a session, and `false` for a thread. */
export const isSession = Schema.is(Session)

/** Returns the text of the model's last reply, or `""`. A tool's question is not a reply. */
export const outputText = ({ thread }: Session): string => {
  const reply = thread.messages.findLast(SharedMessages.isReply)
  return reply === undefined ? "" : Message.text(reply)
}

/**
 * Options for a new session.
 *
 * @category options
 */
export interface Options {
  /** Session id, for the caller's own use. A session in a store has the id passed to `open`. */
  readonly id?: string
  /** Initial conversation. Empty by default. */
  readonly thread?: Thread.Thread
  /** Value of `call.context` for handlers. Empty by default. */
  readonly context?: Session["context"]
  /** The caller's own data. Empty by default. */
  readonly metadata?: Session["metadata"]
}

/** Options for a new session. */
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
 * Mistakes by the caller in session data. A wrong status is a defect instead, naming the right call.
 *
 * - `session_in_error_state`: the last run failed; call `Session.recover` first
 * - `approval_pending`: the user replied while calls wait for an approval. Settle them with `Session.approve` or
 *   `Session.deny` first (`Session.expire` if their time is over), or reply with `pending: "deny"`. Answer a question
 *   beside an approval with `Session.answer`
 * - `unknown_tool_call_id`: no such call waits; `already_answered`: the call has its answer
 * - `invalid_answer`: the answer does not fit the question, or the kind of call
 * - `invalid_arguments`: the call's tool cannot read an approval's arguments. `metadata.issues` has the `path` and
 *   `reason` of each misfit. The call keeps waiting
 * - `expired`: the time for an answer is over; `Session.expire` settles the call
 * - `several_pending`: several calls are open, so a reply cannot answer just one call; use `Session.answer`
 * - `unfinished`: the session has work left, which a snapshot would lose
 * - `id_taken`: the id was already used for a message, a verdict or a session with different content
 * - `unknown_message`: no run of the session began with this message, so no branch can start before it
 * - `invalid_title`: a session title is empty, too long, or has forbidden characters
 * - `nested`: the session is a nested run, which only its parent continues; submit to, label or snapshot the parent's
 *   session
 *
 * @category errors
 */
export class SessionError extends Schema.TaggedError<SessionError>("heddle/Session/SessionError")("SessionError", {
  /** Kind of mistake. */
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
  /** Describes the problem, and names the call resolving it. */
  detail: Schema.optionalKey(Schema.String),
  /** `toolCallId` for an error about one call, and `issues` for `invalid_arguments`. */
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
