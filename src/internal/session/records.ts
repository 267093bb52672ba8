/**
 * Journal records, in the order of events. A journal only grows: its version is its number of records, and an append
 * names the version it follows, so that one of two concurrent writers fails with a conflict. Public as `Journal`.
 *
 * **Details**
 *
 * An interrupted run can be resumed from its journal alone:
 *
 * - `RunStarted` precedes every record of a run, and `RunEnded` follows them. In between the run is active or was
 *   interrupted. `RunStarted` contains the messages starting the run.
 * - `ReplyReceived` contains a reply with calls. It is written before any of these starts, except for read-only tools
 *   starting while the model still streams.
 * - `CallStarted` is written before a handler starts. From then on the call may have had its effect.
 * - `CallEnded` contains a call's answer as read by the model. It is written before anything follows from that answer,
 *   and an answered call never runs again. `CallWaits` contains a call's suspensions, and `CallSettled` a verdict on a
 *   suspension.
 * - `StepPrepared` contains rule notes on a request, and messages added by rules. It is written before the request.
 * - `StepCompleted` marks a turn as whole, or as waiting. It does not repeat earlier records.
 */
import type * as Arr from "effect/Array"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Event from "../../Event.ts"
import * as Message from "../../Message.ts"
import * as Response from "../../Response.ts"
import * as ToolOutcomes from "../declare/outcome.ts"
import * as Json from "../json.ts"
import * as SessionData from "./data.ts"

const ofRun = {
  /** Id of the record's run. */
  requestId: Schema.String
}

const ofCall = {
  ...ofRun,
  /** Call id. */
  toolCallId: Schema.String
}

const after = {
  /**
   * Fingerprint of the records before, by which `Journal.check` finds missing, doubled, moved or altered records. Added
   * by the record's writer.
   */
  after: Schema.optionalKey(Schema.String)
}

const at = {
  /**
   * Time in whole milliseconds since the `startedAt` of the last `RunStarted`, never below an earlier record's. Added
   * by the journal's writer. Left out of an unstored record.
   */
  at: Schema.optionalKey(Schema.Int)
}

const time = {
  /** Time of the record, in milliseconds since 1970. Left out if unknown. */
  time: Schema.optionalKey(Schema.Finite)
}

const requested = {
  /** Time the reply's request was sent, as `at`. */
  requested: Schema.Int,
  /** Time of the reply's first event, as `at`. Left out without events. */
  first: Schema.optionalKey(Schema.Int),
  /** Request number within the step. Left out for the first request. */
  attempt: Schema.optionalKey(Schema.Int),
  /** Requested model. Left out if unknown, and if the reply names its model. */
  model: Schema.optionalKey(Schema.String),
  /** The model's provider. Left out if unknown, and if the reply names its provider. */
  provider: Schema.optionalKey(Schema.String)
}

const Requested = Schema.Struct(requested)

/** A reply's request. */
export type Requested = (typeof Requested)["Type"]

/** A reply's request, beside the reply. */
const ofReply = {
  ...requested,
  /** Request time. Left out if unknown. */
  requested: Schema.optionalKey(requested.requested)
}

const by = {
  /** Sender, as named by the program. Left out if unknown. */
  by: Schema.optionalKey(Schema.String)
}

/**
 * Error in a run failed without a result.
 *
 * @category schemas
 */
export class RunError extends Schema.Opaque<RunError>()(Schema.Struct({
  /** Reason of a `SessionError`, otherwise the error's `_tag`, or `"unknown"`. At most 200 characters. */
  reason: Schema.String,
  /** Error message, without keys in its URLs, at most 10,000 characters. */
  detail: Schema.String
})) {}

/** Limits for error texts, in characters. */
const longestReason = 200
const longestDetail = 10_000

/** Returns a text without secrets, cut between characters. */
const shown = (text: string, longest: number): string =>
  // A secret cut by the limit is recognized by the text after the cut.
  Json.withoutSecrets(text.slice(0, 2 * longest), false).slice(0, longest).replace(/[\uD800-\uDBFF]$/, "")

/**
 * Returns an error for journals and clients: its reason and its message, without secrets and with bounded length.
 * Reading the error may run foreign code.
 *
 * **Example** (An error with a key in its message)
 *
 * ```ts import.meta.vitest
 * import { Journal, Session } from "heddle"
 *
 * Journal.runErrorOf(new Session.SessionError({ reason: "expired", detail: "the time is up" }))
 * // => { reason: "expired", detail: "the time is up" }
 * Journal.runErrorOf("https://a.b/?key=sk-0123456789abcdef").reason // => "unknown"
 * ```
 *
 * @category getters
 */
export const runErrorOf = (error: unknown): RunError => {
  const { _tag, detail, message, reason } = Result.getOrElse(
    Result.try((): Json.JsonObject => Json.isObject(error) ? pick(error) : {}),
    (): Json.JsonObject => ({})
  )
  // The message of a `SessionError` begins with its reason.
  const [name, text] = _tag === "SessionError" ? [reason, detail ?? message] : [_tag, message]
  return {
    reason: typeof name === "string" ? shown(name, longestReason) : "unknown",
    detail: shown(typeof text === "string" ? text : Json.render(error), longestDetail)
  }
}

const pick = ({ _tag, detail, message, reason }: Json.JsonObject): Json.JsonObject => ({
  _tag,
  detail,
  message,
  reason
})

/**
 * Outcome of a command: a message, a verdict or a stop given under an id.
 *
 * @category schemas
 */
export class Receipt extends Schema.Opaque<Receipt>()(Schema.Struct({
  /** Command id. */
  id: Schema.String,
  /** Content hash. The same id with different content is refused. */
  hash: Schema.String,
  /**
   * `queued`: no run has taken the message yet. `taken`: taken by the run `requestId`. Other values describe how that
   * run ended: `completed`, including a run that waits for an answer, `failed`, `stopped` by request, or `withdrawn` if
   * abandoned. A verdict is `completed` at once. A message into a run is `delivered` to a step of the run `requestId`,
   * or `refused` by its end. A message taken back is `withdrawn`, too, without a run.
   */
  became: Schema.Literals([
    "queued",
    "taken",
    "completed",
    "failed",
    "stopped",
    "withdrawn",
    "delivered",
    "refused"
  ]),
  /** `true` for a request to stop a run or one of its calls. Left out of other commands. */
  isStop: Schema.optionalKey(Schema.Literal(true)),
  /** The command's verdict, and its time. Left out of other commands. */
  ...SessionData.standing,
  /** The run that took the command. Left out until then. */
  requestId: Schema.optionalKey(Schema.String),
  /** Index of the step the message was delivered to, from 0. Left out of other commands. */
  stepIndex: Schema.optionalKey(Schema.Int),
  /**
   * Refusal reason: `finished`, `waiting`, `stopped`, `failed`, `max_turns`, `halted`, or the rule that ended the run.
   * Left out of other commands.
   */
  reason: Schema.optionalKey(Schema.String),
  /** That run's error. Left out unless the run failed without a result. */
  error: Schema.optionalKey(RunError)
})) {}

/** Rule notes, by rule name. */
const Notes = Schema.Record(Schema.String, Json.Opaque)

/** The rule that ended a run. */
const EndedBy = Schema.Struct({
  /** Rule name. */
  name: Schema.String,
  /** The rule's data about the end. Left out if absent. */
  detail: Schema.optionalKey(Json.Opaque)
})

/**
 * The last ended run.
 *
 * @category schemas
 */
export class LastRun extends Schema.Opaque<LastRun>()(Schema.Struct({
  /** Its `haltedReason`: `"error"` for a failed run, `"abandoned"` for an abandoned run. */
  outcome: Schema.String,
  /** Its error. Left out unless it failed. */
  error: Schema.optionalKey(RunError),
  /** Rule that ended the run. Left out without such a rule. */
  rule: Schema.optionalKey(EndedBy),
  /** Rule that made its last step final, such as `"budget"`, or `"max_turns"`. Left out without such a rule. */
  finalized: Schema.optionalKey(Schema.String),
  /** Its typed answer, encoded. Left out if absent. */
  output: Schema.optionalKey(Json.Opaque)
})) {}

const origin = {
  /** Principal owning the session, as named by the creating server. Left out elsewhere. */
  principal: Schema.optionalKey(Schema.String),
  /** Name of the agent running the session. Left out without an agent. */
  agent: Schema.optionalKey(Schema.String),
  /** Server data kept with the session. Left out if absent. */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)),
  /** Session this one branched from. Left out for other sessions. */
  forkedFrom: Schema.optionalKey(Schema.Struct({
    /** Id of that session. */
    id: Schema.String,
    /** The other journal's version before that message. This session begins with the conversation at that version. */
    version: Schema.Int,
    /** The session branched before the message with this id. */
    message: Schema.String
  }))
}

/**
 * The origin of a session: its reader, and its agent. A server records it on creation, and later records repeat the
 * origin.
 *
 * @category schemas
 */
export class Origin extends Schema.Opaque<Origin>()(Schema.Struct(origin)) {}

/**
 * Labels a person has given a session.
 *
 * @category schemas
 */
export class Labels extends Schema.Opaque<Labels>()(Schema.Struct({
  /** Title. Left out if the first message provides the title. */
  title: Schema.optionalKey(Schema.String),
  /** `true` if pinned. Left out otherwise. */
  pinned: Schema.optionalKey(Schema.Boolean)
})) {}

/** Client tools. The caller of a run answers their calls. */
const ClientTools = Schema.Array(Schema.Struct({
  /** Tool name. */
  name: Schema.String,
  /** Description for the model. */
  description: Schema.String,
  /** JSON Schema of the arguments. */
  parameters: Schema.Record(Schema.String, Json.Opaque)
}))

/** Client tools. */
export type ClientTools = (typeof ClientTools)["Type"]

/**
 * The first record of a journal. It also replaces the whole session when an operation continued with a different
 * session.
 *
 * @category schemas
 */
export class Opened extends Schema.Opaque<Opened>()(Schema.TaggedStruct("Opened", {
  /** Record format. */
  format: Schema.Literal(1),
  /** Initial session. */
  session: SessionData.Session,
  ...origin,
  ...after,
  /** The last ended run. Left out if no run has ended. */
  lastRun: Schema.optionalKey(LastRun),
  /** Client tools served by the last run. Left out if absent. */
  clientTools: Schema.optionalKey(ClientTools),
  /** Rule notes kept for the session, by rule name. Left out if absent. */
  kept: Schema.optionalKey(Notes),
  /** Session labels, added by the record's writer. Left out if absent. */
  labels: Schema.optionalKey(Labels),
  /** Receipts of the last commands, in a snapshot. */
  receipts: Schema.optionalKey(Schema.Array(Receipt)),
  /**
   * Idempotency key of each open call, its number of attempts and, for a waiting call, the run where it began to wait,
   * by call id. Left out if no call is open.
   */
  calls: Schema.optionalKey(Schema.Record(
    Schema.String,
    Schema.Struct({
      idempotencyKey: Schema.String,
      attempt: Schema.Int,
      requestId: Schema.optionalKey(Schema.String)
    })
  ))
})) {}

/**
 * Messages added between runs.
 *
 * @category schemas
 */
export class MessagesAppended extends Schema.Opaque<MessagesAppended>()(Schema.TaggedStruct("MessagesAppended", {
  /** Messages, in order. */
  messages: Schema.Array(Message.Message)
})) {}

/**
 * A submitted message no run has taken yet. Any process may append this record, even while another process runs the
 * session.
 *
 * @category schemas
 */
export class MessageSubmitted extends Schema.Opaque<MessageSubmitted>()(Schema.TaggedStruct("MessageSubmitted", {
  /** Submission id. */
  id: Schema.String,
  /** Message. */
  message: Message.Message,
  /**
   * `"steer"` for a message delivered to the open run between two steps, `"follow"` when it would complete. Left out
   * for a message starting the next run.
   */
  mode: Schema.optionalKey(Schema.Literals(["steer", "follow"])),
  /** `"refuse"` for a message no later run takes. Left out for other messages. */
  otherwise: Schema.optionalKey(Schema.Literal("refuse")),
  /**
   * Path of a call with an active nested run, which gets the message; refused without such a run. Left out for a
   * message to the session's own runs.
   */
  to: Schema.optionalKey(Schema.String),
  /** Tools of the sending client. Left out if absent. */
  clientTools: Schema.optionalKey(ClientTools),
  ...time,
  ...by
})) {}

/**
 * Withdrawal of a submitted message no run has taken. Any process may append this record, even while another process
 * runs the session.
 *
 * @category schemas
 */
export class MessageWithdrawn extends Schema.Opaque<MessageWithdrawn>()(Schema.TaggedStruct("MessageWithdrawn", {
  /** Submission id. */
  id: Schema.String,
  ...time,
  ...by
})) {}

/**
 * Forwards a submitted message to the journal of the run inside its call. Written before that journal has the message,
 * under the same id, so that no other run gets the message.
 *
 * @category schemas
 */
export class MessageForwarded extends Schema.Opaque<MessageForwarded>()(Schema.TaggedStruct("MessageForwarded", {
  ...ofRun,
  /** Submission id. */
  id: Schema.String,
  /** Id of that journal. */
  session: Schema.String
})) {}

/**
 * Outcome of a submitted message for a run inside a call: from that run's journal, or a refusal without an active run.
 * Any process may append this record, even while another process runs the session.
 *
 * @category schemas
 */
export class MessageSettled extends Schema.Opaque<MessageSettled>()(Schema.TaggedStruct("MessageSettled", {
  /** Submission id. */
  id: Schema.String,
  /** Outcome. */
  fate: Schema.Struct({
    /** `"delivered"` to a step of the nested run, `"refused"` for a reason, or `"withdrawn"`. */
    became: Schema.Literals(["delivered", "refused", "withdrawn"]),
    /** Receiving run. Left out of other outcomes. */
    requestId: Schema.optionalKey(Schema.String),
    /** Index of the step the message was delivered to, from 0. Left out of other outcomes. */
    stepIndex: Schema.optionalKey(Schema.Int),
    /** Refusal reason. Left out of other outcomes. */
    reason: Schema.optionalKey(Schema.String)
  })
})) {}

/**
 * Request to stop the session's run, or one of its calls. Any process may append this record, even while another
 * process runs the session.
 *
 * @category schemas
 */
export class StopRequested extends Schema.Opaque<StopRequested>()(Schema.TaggedStruct("StopRequested", {
  /** Request id. */
  id: Schema.String,
  /** Path of the single call to stop. Left out to stop the whole run. */
  call: Schema.optionalKey(Schema.String),
  ...ofRun,
  ...time,
  ...by
})) {}

/**
 * A change of session labels. Any process may append this record, even while another process runs the session.
 *
 * @category schemas
 */
export class Labelled extends Schema.Opaque<Labelled>()(Schema.TaggedStruct("Labelled", {
  /** Title. `null` to use the first message's. Left out if unchanged. */
  title: Schema.optionalKey(Schema.NullOr(Schema.String)),
  /** `true` to pin the session, `false` to unpin. Left out if unchanged. */
  pinned: Schema.optionalKey(Schema.Boolean),
  ...time,
  ...by
})) {}

/**
 * Parent of a nested run. A nested run has its own journal, and only its parent resumes the run.
 *
 * @category schemas
 */
export class Parent extends Schema.Opaque<Parent>()(Schema.Struct({
  /** Id of the session or `Durable.layer` where the run was started. */
  id: Schema.String,
  /** Id of the call whose handler started the run. Left out if started elsewhere. */
  toolCallId: Schema.optionalKey(Schema.String),
  /** That call's idempotency key. It differs from the key of a call with the same id in another turn. */
  idempotencyKey: Schema.optionalKey(Schema.String)
})) {}

/** A command taken by a run. */
const Taken = Schema.Struct({
  /** Command id. */
  id: Schema.String,
  /** Content hash. */
  hash: Schema.String
})

/** The verdict on a suspension. */
const verdict = {
  /** Suspension id. */
  id: Schema.String,
  /** Verdict. */
  answer: SessionData.Answer,
  /** Time of the verdict, in milliseconds since 1970. Left out if equal to the run's, or unknown. */
  time: Schema.optionalKey(Schema.Finite)
}

/**
 * Start or resumption of a run.
 *
 * @category schemas
 */
export class RunStarted extends Schema.Opaque<RunStarted>()(Schema.TaggedStruct("RunStarted", {
  ...ofRun,
  ...after,
  /** `Session` operation that started the run. */
  operation: Schema.Literals(["start", "reply", "continue", "step"]),
  /** `true` if the interrupted run `requestId` is resumed. Left out at the first start. */
  resumes: Schema.optionalKey(Schema.Boolean),
  /** Start time, in milliseconds since 1970. */
  startedAt: Schema.Finite,
  /** Deadline, in milliseconds since 1970. Left out without a deadline. */
  deadlineAt: Schema.optionalKey(Schema.Finite),
  /** Owner of the claim the run started under. Left out without a claim. */
  owner: Schema.optionalKey(Schema.String),
  /** Process that started or resumed the run: a name chosen anew at each process start. */
  processName: Schema.optionalKey(Schema.String),
  /** Parent of a nested run. Left out for other runs. */
  parent: Schema.optionalKey(Parent),
  /** Span. Left out if the run is not traced. */
  span: Schema.optionalKey(Schema.Struct({
    /** Trace id. */
    traceId: Schema.String,
    /** Span id. */
    spanId: Schema.String
  })),
  /** Message taken by the run, submitted or given with a command. Left out if absent. */
  takes: Schema.optionalKey(Taken),
  /** Client tools served by the run. Left out if absent. */
  clientTools: Schema.optionalKey(ClientTools),
  /** Versions of the run's versioned tools, by tool name. Left out if empty. */
  versions: Schema.optionalKey(Schema.Record(Schema.String, Schema.String)),
  /** Messages starting the run. */
  messages: Schema.Array(Message.Message),
  /** Open question answered by the run in its place, with the answer. Left out if absent. */
  answered: Schema.optionalKey(Schema.Struct(verdict))
})) {}

/**
 * A model reply with calls.
 *
 * @category schemas
 */
export class ReplyReceived extends Schema.Opaque<ReplyReceived>()(Schema.TaggedStruct("ReplyReceived", {
  ...ofRun,
  ...at,
  /** Index of the turn in the run, from 0. */
  stepIndex: Schema.Int,
  ...ofReply,
  /** Reply. */
  response: Response.Response
})) {}

/**
 * Intent to start a handler.
 *
 * @category schemas
 */
export class CallStarted extends Schema.Opaque<CallStarted>()(Schema.TaggedStruct("CallStarted", {
  ...ofCall,
  ...at,
  /** Call. Left out if its turn's reply is already recorded. */
  toolCall: Schema.optionalKey(Message.ToolCall),
  /** Attempt number, from 1. */
  attempt: Schema.Int,
  /** Key identifying the call to an idempotent tool. */
  idempotencyKey: Schema.String,
  /** `true` if the handler is a run, from `Tool.fromChat`, with its own journal. Left out otherwise. */
  isRun: Schema.optionalKey(Schema.Literal(true)),
  /** Time the call was complete in the reply, as `at`. Left out for further attempts, and for an earlier run's call. */
  asked: Schema.optionalKey(Schema.Int),
  /** The call's waits for its turn, before its first attempt. Left out if empty. */
  waited: Schema.optionalKey(Schema.Array(Event.Waited)),
  /** Request of the reply. Left out of a call starting after its complete reply, or after another such call. */
  request: Schema.optionalKey(Requested),
  /** Remembered approval that let the call run without asking. Left out of other calls. */
  allowed: Schema.optionalKey(Schema.Struct({
    /** Id of the approved suspension. */
    id: Schema.String,
    ...by
  }))
})) {}

/**
 * A failed attempt: at a call, whose tool's `retry` grants another, or at the run, which can be resumed.
 *
 * @category schemas
 */
export class AttemptFailed extends Schema.Opaque<AttemptFailed>()(Schema.TaggedStruct("AttemptFailed", {
  ...ofRun,
  ...at,
  /** Call id. Left out if the run failed. */
  toolCallId: Schema.optionalKey(Schema.String)
})) {}

/** Cost of requests. */
const Cost = Schema.Struct({
  /** Number of model requests. */
  calls: Schema.Finite,
  /** Request tokens. */
  inputTokens: Schema.Finite,
  /** Reply tokens. */
  outputTokens: Schema.Finite,
  /** Money, in millionths of the currency. */
  money: Schema.Finite
})

/**
 * A call's answer, from its handler, its gates, a timeout or a stop.
 *
 * @category schemas
 */
export class CallEnded extends Schema.Opaque<CallEnded>()(Schema.TaggedStruct("CallEnded", {
  ...ofRun,
  ...at,
  /** Answer, as read by the model. */
  message: Message.Message,
  /** Kind of handler failure. Left out without a failure, or if not run to its end. */
  failure: Schema.optionalKey(Schema.Literals(["reported", "crashed"])),
  /** Reason of the `ToolError` in the answer, `"cancelled"` for a cancelled sub-agent. Left out of other answers. */
  reason: Schema.optionalKey(ToolOutcomes.ToolError.fields.reason),
  /** Halt by which the call ended the run. Left out otherwise. */
  halt: Schema.optionalKey(Event.Halt),
  /** The handler's context update. Left out if absent. */
  contextUpdate: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)),
  /** Usage of the handler's nested runs. Left out if zero. */
  nestedUsage: Schema.optionalKey(Response.Usage),
  /** Cost of the handler's steps and classifications under a budget. Left out if zero. */
  nestedSpent: Schema.optionalKey(Cost),
  /** Answer length before truncation, in characters. Left out if not truncated. */
  originalLength: Schema.optionalKey(Schema.Int)
})) {}

/** A suspension. */
const Open = Schema.Struct({
  ...Event.Suspension.fields,
  /** Suspended call. Left out if it belongs to the turn. */
  toolCall: Schema.optionalKey(Message.ToolCall)
})

/**
 * Suspension of a call waiting for outside answers.
 *
 * @category schemas
 */
export class CallWaits extends Schema.Opaque<CallWaits>()(Schema.TaggedStruct("CallWaits", {
  ...ofCall,
  ...at,
  /** Open suspensions: the call's own, or its nested run's. */
  suspensions: Schema.Array(Open),
  /** State for restarting the handler with its answer. Left out if not restarted. */
  resume: Schema.optionalKey(SessionData.Resume),
  /** The handler's context update. Left out if absent. */
  contextUpdate: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)),
  /** Usage of the handler's nested runs. Left out if zero. */
  nestedUsage: Schema.optionalKey(Response.Usage),
  /** Cost of the handler's steps and classifications under a budget. Left out if zero. */
  nestedSpent: Schema.optionalKey(Cost)
})) {}

/**
 * Verdict on a suspension, which is settled once. A verdict arriving during a run counts at its end.
 *
 * @category schemas
 */
export class CallSettled extends Schema.Opaque<CallSettled>()(Schema.TaggedStruct("CallSettled", {
  ...verdict,
  /** Command that gave the verdict. Left out if given without an id. */
  command: Schema.optionalKey(Taken),
  /** Calls the approval is remembered for. Left out if for this call alone. */
  remember: Schema.optionalKey(Schema.Literals(["tool", "arguments"])),
  ...by
})) {}

/**
 * End of a tool's remembered approvals. Any process may append this record, even while another process runs the
 * session.
 *
 * @category schemas
 */
export class ToolDisallowed extends Schema.Opaque<ToolDisallowed>()(Schema.TaggedStruct("ToolDisallowed", {
  /** Tool name. */
  name: Schema.String,
  ...time,
  ...by
})) {}

/**
 * Rule notes and messages for a request, written before the request is made. A request without either has no record. A
 * reply to an earlier request in the step no longer counts.
 *
 * @category schemas
 */
export class StepPrepared extends Schema.Opaque<StepPrepared>()(Schema.TaggedStruct("StepPrepared", {
  ...ofRun,
  /** Index of the turn in the run, from 0. */
  stepIndex: Schema.Int,
  /** Request number within the step, from 1: the next request, or the one with the discarded reply. */
  attempt: Schema.Int,
  /** Notes missing from earlier records, by rule name. Left out if empty. */
  notes: Schema.optionalKey(Notes),
  /** Messages added by rules before the request. Left out if empty. */
  messages: Schema.optionalKey(Schema.Array(Message.Message)),
  /** Ids of submitted messages among these. Left out if empty. */
  delivered: Schema.optionalKey(Schema.Array(Schema.String)),
  /** Usage of the step's discarded replies so far. Left out if zero. */
  spent: Schema.optionalKey(Response.Usage)
})) {}

/**
 * End of a turn, whole or waiting for outside answers. Its messages are those introduced before the reply, the reply,
 * and its calls' answers in call order.
 *
 * @category schemas
 */
export class StepCompleted extends Schema.Opaque<StepCompleted>()(Schema.TaggedStruct("StepCompleted", {
  ...ofRun,
  ...after,
  ...at,
  /** Index of the turn in the run, from 0. */
  stepIndex: Schema.Int,
  /** Unrecorded messages before the reply. Left out if empty. */
  introduced: Schema.optionalKey(Schema.Array(Message.Message)),
  /** Messages of the turn. Left out if equal to those in earlier records. */
  messages: Schema.optionalKey(Schema.Array(Message.Message)),
  ...ofReply,
  /** Reply. Left out if equal to the preceding `ReplyReceived`. */
  response: Schema.optionalKey(Response.Response),
  /** `true` if the model has nothing more to do. */
  done: Schema.Boolean,
  /** `"manual"` for a turn handing all calls to the caller. Left out of other turns. */
  mode: Schema.optionalKey(Schema.Literals(["auto", "manual"])),
  /** Id of the call ending the run. Left out without such a call. */
  haltedBy: Schema.optionalKey(Schema.String),
  /** Rule notes on the step missing from earlier records, by rule name. Left out if empty. */
  notes: Schema.optionalKey(Notes),
  /** Nested usage so far in the run. Left out if zero. */
  nestedUsage: Schema.optionalKey(Response.Usage)
})) {}

/**
 * End of a run. Without a `haltedReason` the run failed: if none of its calls has started, its messages are given back;
 * otherwise its turn is closed.
 *
 * @category schemas
 */
export class RunEnded extends Schema.Opaque<RunEnded>()(Schema.TaggedStruct("RunEnded", {
  ...ofRun,
  ...after,
  ...at,
  /**
   * `haltedReason` of the result: empty for a step that only ran tools, `"abandoned"` for an abandoned run, and left
   * out for a failed run.
   */
  haltedReason: Schema.optionalKey(Schema.String),
  /** Rule that ended the run, with its data about the end. Left out without such a rule. */
  rule: Schema.optionalKey(EndedBy),
  /** Typed answer, encoded. Left out if absent. */
  output: Schema.optionalKey(Json.Opaque),
  /** Rule notes kept for the session, by rule name. Left out if unchanged by the run. */
  kept: Schema.optionalKey(Notes),
  /** Messages missing from all steps, such as a question's text. Left out if empty. */
  messages: Schema.optionalKey(Schema.Array(Message.Message)),
  /** Session status after the run, unless a call waits. Defaults to `"idle"`. */
  status: Schema.optionalKey(SessionData.Status),
  /** Additions to the session metadata. Left out if empty. */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)),
  /** Error of a failed run. Left out of other runs. */
  error: Schema.optionalKey(RunError),
  /** Handlers and other code that refused to stop. Left out if empty. */
  abandoned: Schema.optionalKey(Schema.Array(Event.Abandoned)),
  /** The run's spending and remaining budget. Left out without a budget. */
  spent: Schema.optionalKey(Event.Spent),
  /** Result of a nested run, without thread and steps. Left out of other runs. */
  result: Schema.optionalKey(Event.WireResult)
})) {}

/**
 * A record: one session event. `RunStarted` precedes the records of a run, and `RunEnded` comes last.
 *
 * **Example** (A record as JSON)
 *
 * ```ts import.meta.vitest
 * import { Journal, Message } from "heddle"
 * import * as Schema from "effect/Schema"
 *
 * const record: Journal.Record = { _tag: "MessagesAppended", messages: [Message.user("Hi")] }
 * const json = Schema.encodeSync(Schema.toCodecJson(Journal.Record))(record)
 *
 * json // => { _tag: "MessagesAppended", messages: [{ role: "user", content: "Hi", metadata: {} }] }
 * ```
 *
 * @category schemas
 */
export const Record = Schema.Union([
  Opened,
  MessagesAppended,
  MessageSubmitted,
  MessageWithdrawn,
  MessageForwarded,
  MessageSettled,
  StopRequested,
  Labelled,
  RunStarted,
  ReplyReceived,
  CallStarted,
  AttemptFailed,
  CallEnded,
  CallWaits,
  CallSettled,
  ToolDisallowed,
  StepPrepared,
  StepCompleted,
  RunEnded
]).pipe(Schema.toTaggedUnion("_tag"))

/**
 * @see {@link Record}
 *
 * @category models
 */
export type Record =
  | Opened
  | MessagesAppended
  | MessageSubmitted
  | MessageWithdrawn
  | MessageForwarded
  | MessageSettled
  | StopRequested
  | Labelled
  | RunStarted
  | ReplyReceived
  | CallStarted
  | AttemptFailed
  | CallEnded
  | CallWaits
  | CallSettled
  | ToolDisallowed
  | StepPrepared
  | StepCompleted
  | RunEnded

/** Records of one append. */
export type Records = Arr.NonEmptyReadonlyArray<Record>

/**
 * A record with its version.
 *
 * @category models
 */
export interface Entry {
  /** Journal version after the record, from 1. */
  readonly version: number
  /** Record. */
  readonly record: Record
}

/**
 * Returns a 64-bit hash, computed over two halves with two multiplications per character. It distinguishes contents and
 * is not a security measure.
 */
export const hash = (text: string): string => {
  let high = 0xdeadbeef
  let low = 0x41c6ce57
  for (let index = 0; index < text.length; index++) {
    const unit = text.charCodeAt(index)
    high = Math.imul(high ^ unit, 2654435761)
    low = Math.imul(low ^ unit, 1597334677)
  }
  high = Math.imul(high ^ (high >>> 16), 2246822507) ^ Math.imul(low ^ (low >>> 13), 3266489909)
  low = Math.imul(low ^ (low >>> 16), 2246822507) ^ Math.imul(high ^ (high >>> 13), 3266489909)
  return [high, low].map((half) => (half >>> 0).toString(16).padStart(8, "0")).join("")
}

/** Returns `true` for an empty member: a record read back has `{}` where nothing was written. */
const isEmpty = (value: unknown): boolean =>
  Json.isObject(value) && Object.keys(value).every((name) => name === "__proto__")

/**
 * Returns a value as JSON, independent of member order, without omitted members, and without members named `__proto__`,
 * which reading drops.
 */
const canonical = (value: unknown, isLeftOut: (member: unknown) => boolean = () => false): string => {
  const isKept = ([name, member]: readonly [string, unknown]) => name !== "__proto__" && !isLeftOut(member)
  return JSON.stringify(Json.toJson(value), (_, member: unknown) =>
    Json.isObject(member)
      ? Object.fromEntries(Object.entries(member).filter(isKept).sort(([left], [right]) => left < right ? -1 : 1))
      : member)
}

/** Hashes a value as JSON. Member order makes no difference. */
export const hashOf = (value: unknown): string => hash(canonical(value))

const encodeContent = Schema.encodeUnknownResult(Schema.toCodecJson(Message.Message.fields.content))

/**
 * Returns the hash of a message's content, as in its receipt. A program receiving a message twice under one id compares
 * this hash to see whether the content is the same.
 *
 * **Example** (The same message again)
 *
 * ```ts import.meta.vitest
 * import { Journal, Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.gen(function*() {
 *   yield* Session.submit("s1", "Hi", { id: "m1" })
 *   const receipt = Session.receipt(yield* Session.open("s1"), "m1")
 *   return [receipt?.hash === Journal.hashOfContent("Hi"), receipt?.hash === Journal.hashOfContent("Ho")]
 * })
 *
 * await Effect.runPromise(Effect.provide(program, Session.Store.layerMemory)) // => [true, false]
 * ```
 *
 * @category getters
 */
export const hashOfContent = (content: Message.Content): string =>
  hashOf(Result.getOrElse(encodeContent(content), () => content))

// Journal fingerprints.

const encode = Schema.encodeUnknownResult(Schema.toCodecJson(Record))

/**
 * Returns a record's content as JSON, without its fingerprint: in its written form, so that the text is the same when
 * read back. Data unknown to the schema, such as an unknown field of a part, does not count.
 */
export const textOf = (record: Record): string => {
  const { after: _, ...own } = { after: undefined, ...record }
  return canonical(Result.getOrElse(encode(own), () => own), isEmpty)
}

/** Returns a text's length in bytes of UTF-8. */
export const bytesOf = (text: string): number => {
  let bytes = text.length
  for (let index = 0; index < text.length; index++) {
    const unit = text.charCodeAt(index)
    // A surrogate pair has two units and four bytes.
    if (unit > 0x7f) bytes += unit < 0x800 || unit >= 0xd800 && unit < 0xe000 ? 1 : 2
  }
  return bytes
}

/**
 * Returns a journal's fingerprint after a record. An `Opened` begins a new fingerprint, so a journal has the same
 * fingerprint with and without the records before a snapshot.
 */
export const fingerprint = (before: string, record: Record, text = textOf(record)): string =>
  hash(`${record._tag === "Opened" ? "" : before}${text}`)

/** Returns `true` if the writer adds the fingerprint of earlier records to this record. */
export const isSealed = (record: Record): record is Opened | RunStarted | StepCompleted | RunEnded =>
  record._tag === "Opened" || record._tag === "RunStarted" || record._tag === "StepCompleted" ||
  record._tag === "RunEnded"
