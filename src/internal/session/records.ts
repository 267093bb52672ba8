/**
 * The records of a journal, in the order in which things happened. A journal only grows: its version is the number of
 * its records, and an append names the version that it follows, so that one of two concurrent writers fails with a
 * conflict. Public as `Journal`.
 *
 * **Details**
 *
 * An interrupted run can be resumed from its journal alone:
 *
 * - `RunStarted` precedes every record of a run, and `RunEnded` follows them. Between the two the run is under way,
 *   or was interrupted. `RunStarted` contains the messages that start the run.
 * - `ReplyReceived` contains a reply with calls. It is written before one of them starts, except for read-only tools
 *   that start while the model still streams.
 * - `CallStarted` is written before a handler starts. From then on the call may have had its effect.
 * - `CallEnded` contains the answer of a call as the model reads it. It is written before anything follows from that
 *   answer, and a call with an answer never runs again. `CallWaits` contains the suspensions of a call, and
 *   `CallSettled` a verdict about one.
 * - `StepPrepared` contains what rules noted about a request, and the messages that they added. It is written before
 *   the request.
 * - `StepCompleted` marks a turn as whole, or as waiting. It does not repeat earlier records.
 *
 * @since 0.1.0
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
  /** The run that the record belongs to. */
  requestId: Schema.String
}

const ofCall = {
  ...ofRun,
  /** The id of the call. */
  toolCallId: Schema.String
}

const after = {
  /**
   * The fingerprint of the records before it, by which `Journal.check` finds that one of them is missing, doubled,
   * moved or altered. The writer of the record adds it.
   */
  after: Schema.optionalKey(Schema.String)
}

const at = {
  /**
   * Time in whole milliseconds since the `startedAt` of the last `RunStarted`, never less than that of an earlier
   * record. The writer of the journal adds it. Left out of a record that no store has.
   */
  at: Schema.optionalKey(Schema.Int)
}

const time = {
  /** Time of the record, in milliseconds since 1970. Left out where it is not known. */
  time: Schema.optionalKey(Schema.Finite)
}

const requested = {
  /** Time at which the request of the reply went out, as `at`. */
  requested: Schema.Int,
  /** Time of the first event of the reply, as `at`. Left out where there was none. */
  first: Schema.optionalKey(Schema.Int),
  /** Number of the request within the step. Left out for the first one. */
  attempt: Schema.optionalKey(Schema.Int),
  /** The model that was asked. Left out where it is not known, and where the reply names it. */
  model: Schema.optionalKey(Schema.String),
  /** The provider of the model. Left out where it is not known, and where the reply names it. */
  provider: Schema.optionalKey(Schema.String)
}

const Requested = Schema.Struct(requested)

/** The request of a reply. */
export type Requested = (typeof Requested)["Type"]

/** The request of a reply, beside that. */
const ofReply = {
  ...requested,
  /** The time of the request. Left out where it is not known. */
  requested: Schema.optionalKey(requested.requested)
}

const by = {
  /** The sender, as the program names them. Left out where the program does not say. */
  by: Schema.optionalKey(Schema.String)
}

/**
 * The error of a run that failed without a result.
 *
 * @category schemas
 * @since 0.1.0
 */
export class RunError extends Schema.Opaque<RunError>()(Schema.Struct({
  /**
   * The reason of a `SessionError`, the `_tag` of another error, or `"unknown"` where it has none. At most 200
   * characters.
   */
  reason: Schema.String,
  /** The message of the error, without the keys in its URLs, at most 10,000 characters. */
  detail: Schema.String
})) {}

/** Limits of the texts of an error, in characters. */
const longestReason = 200
const longestDetail = 10_000

/** Returns a text without secrets, cut between characters. */
const shown = (text: string, longest: number): string =>
  // A secret that the limit cuts is known by what follows it.
  Json.withoutSecrets(text.slice(0, 2 * longest), false).slice(0, longest).replace(/[\uD800-\uDBFF]$/, "")

/**
 * Returns an error as journals and clients have it: its reason and its message, without secrets and of bounded length.
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
 * @since 0.1.0
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
 * Outcome of a command: a message, a verdict or a stop that was given under an id.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Receipt extends Schema.Opaque<Receipt>()(Schema.Struct({
  /** The id of the command. */
  id: Schema.String,
  /** A hash of the content. The same id with different content is refused. */
  hash: Schema.String,
  /**
   * `queued`: no run has taken the message yet. `taken`: the run `requestId` has taken it. The other values say how
   * that run ended: `completed`, which includes a run that waits for an answer, `failed`, `stopped` by request, or
   * `withdrawn` where it was abandoned. A verdict is `completed` at once. A message into a run is `delivered` to a step
   * of the run `requestId`, or `refused` by its end. A message that was taken back is `withdrawn`, too, without a run.
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
  /** `true` for a request to stop a run, or one of its calls. Left out of any other command. */
  isStop: Schema.optionalKey(Schema.Literal(true)),
  /** The verdict of the command, and its time. Left out of any other command. */
  ...SessionData.standing,
  /** The run that has taken the command. Left out until then. */
  requestId: Schema.optionalKey(Schema.String),
  /** The step that the message was delivered to, from 0. Left out of any other command. */
  stepIndex: Schema.optionalKey(Schema.Int),
  /**
   * The reason of a refusal: `finished`, `waiting`, `stopped`, `failed`, `max_turns`, `halted`, or the rule that ended
   * the run. Left out of any other command.
   */
  reason: Schema.optionalKey(Schema.String),
  /** The error of that run. Left out unless it failed without a result. */
  error: Schema.optionalKey(RunError)
})) {}

/** Notes of rules, by their names. */
const Notes = Schema.Record(Schema.String, Json.Opaque)

/** The rule that ended a run. */
const EndedBy = Schema.Struct({
  /** The name of the rule. */
  name: Schema.String,
  /** Data of the rule about the end. Left out where it gives none. */
  detail: Schema.optionalKey(Json.Opaque)
})

/**
 * The last run that has ended.
 *
 * @category schemas
 * @since 0.1.0
 */
export class LastRun extends Schema.Opaque<LastRun>()(Schema.Struct({
  /** Its `haltedReason`: `"error"` where it failed, `"abandoned"` where it was abandoned. */
  outcome: Schema.String,
  /** Its error. Left out unless it failed. */
  error: Schema.optionalKey(RunError),
  /** The rule that ended it. Left out where none did. */
  rule: Schema.optionalKey(EndedBy),
  /** The rule that made its last step the last one, such as `"budget"`, or `"max_turns"`. Left out where none did. */
  finalized: Schema.optionalKey(Schema.String),
  /** Its typed answer, encoded. Left out where it has none. */
  output: Schema.optionalKey(Json.Opaque)
})) {}

const origin = {
  /** The principal whose session it is, as the server that created it names them. Left out elsewhere. */
  principal: Schema.optionalKey(Schema.String),
  /** The name of the agent that runs the session. Left out where none does. */
  agent: Schema.optionalKey(Schema.String),
  /** The data that the server keeps with the session. Left out where there are none. */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)),
  /** The session that this one branched from. Left out for any other session. */
  forkedFrom: Schema.optionalKey(Schema.Struct({
    /** The id of that session. */
    id: Schema.String,
    /** The other journal's version before that message. This session begins with the conversation at that version. */
    version: Schema.Int,
    /** The id of the message before which this session branched. */
    message: Schema.String
  }))
}

/**
 * The origin of a session: who may read it, and which agent runs it. A server records it when it creates the session,
 * and later records repeat it.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Origin extends Schema.Opaque<Origin>()(Schema.Struct(origin)) {}

/**
 * The labels that a person has given a session.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Labels extends Schema.Opaque<Labels>()(Schema.Struct({
  /** The title. Left out where the session has that of its first message. */
  title: Schema.optionalKey(Schema.String),
  /** `true` where the session is pinned. Left out otherwise. */
  pinned: Schema.optionalKey(Schema.Boolean)
})) {}

/** Client tools. The caller of a run answers their calls. */
const ClientTools = Schema.Array(Schema.Struct({
  /** The name of the tool. */
  name: Schema.String,
  /** The description, as the model reads it. */
  description: Schema.String,
  /** The JSON Schema of the arguments. */
  parameters: Schema.Record(Schema.String, Json.Opaque)
}))

/** The tools of a client. */
export type ClientTools = (typeof ClientTools)["Type"]

/**
 * The first record of a journal. It also replaces the whole session where an operation continued with a different
 * one.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Opened extends Schema.Opaque<Opened>()(Schema.TaggedStruct("Opened", {
  /** The format of the records. */
  format: Schema.Literal(1),
  /** The session that the journal begins with. */
  session: SessionData.Session,
  ...origin,
  ...after,
  /** The last run that has ended. Left out where none has. */
  lastRun: Schema.optionalKey(LastRun),
  /** The tools of the client that the last run served. Left out where there are none. */
  clientTools: Schema.optionalKey(ClientTools),
  /** The notes that rules keep for the session, by their names. Left out where there are none. */
  kept: Schema.optionalKey(Notes),
  /** The labels of the session. The writer of the record adds them. Left out where there are none. */
  labels: Schema.optionalKey(Labels),
  /** Receipts of the last commands, in a snapshot. */
  receipts: Schema.optionalKey(Schema.Array(Receipt)),
  /**
   * The key of each open call, the number of its attempts and, where it waits, the run in which it began to wait, by
   * ids. Left out where no call is open.
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
 * @since 0.1.0
 */
export class MessagesAppended extends Schema.Opaque<MessagesAppended>()(Schema.TaggedStruct("MessagesAppended", {
  /** The messages, in order. */
  messages: Schema.Array(Message.Message)
})) {}

/**
 * A submitted message that no run has taken yet. Any process may append it, even while another process runs the
 * session.
 *
 * @category schemas
 * @since 0.1.0
 */
export class MessageSubmitted extends Schema.Opaque<MessageSubmitted>()(Schema.TaggedStruct("MessageSubmitted", {
  /** The id of the submission. */
  id: Schema.String,
  /** The message. */
  message: Message.Message,
  /**
   * `"steer"` for a message that the open run gets between two steps, `"follow"` where it would complete. Left out for
   * a message that the next run begins with.
   */
  mode: Schema.optionalKey(Schema.Literals(["steer", "follow"])),
  /** `"refuse"` for a message that no later run takes. Left out for any other message. */
  otherwise: Schema.optionalKey(Schema.Literal("refuse")),
  /**
   * The path of the call whose handler has a run under way: that run gets the message, and is refused it where there is
   * none. Left out for a message to the session's own runs.
   */
  to: Schema.optionalKey(Schema.String),
  /** The tools of the client that sent it. Left out where there are none. */
  clientTools: Schema.optionalKey(ClientTools),
  ...time,
  ...by
})) {}

/**
 * The withdrawal of a submitted message that no run has. Any process may append it, even while another process runs the
 * session.
 *
 * @category schemas
 * @since 0.1.0
 */
export class MessageWithdrawn extends Schema.Opaque<MessageWithdrawn>()(Schema.TaggedStruct("MessageWithdrawn", {
  /** The id of the submission. */
  id: Schema.String,
  ...time,
  ...by
})) {}

/**
 * The passing of a submitted message to the journal of the run inside its call. Written before that journal has the
 * message, under the same id, so that no other run gets it.
 *
 * @category schemas
 * @since 0.1.0
 */
export class MessageForwarded extends Schema.Opaque<MessageForwarded>()(Schema.TaggedStruct("MessageForwarded", {
  ...ofRun,
  /** The id of the submission. */
  id: Schema.String,
  /** The id of that journal. */
  session: Schema.String
})) {}

/**
 * The outcome of a submitted message for a run inside a call: as the journal of that run has it, or a refusal where no
 * run is under way. Any process may append it, even while another process runs the session.
 *
 * @category schemas
 * @since 0.1.0
 */
export class MessageSettled extends Schema.Opaque<MessageSettled>()(Schema.TaggedStruct("MessageSettled", {
  /** The id of the submission. */
  id: Schema.String,
  /** The outcome. */
  fate: Schema.Struct({
    /** `"delivered"` to a step of the run inside, `"refused"` for a reason, or `"withdrawn"`. */
    became: Schema.Literals(["delivered", "refused", "withdrawn"]),
    /** The run that has the message. Left out of any other outcome. */
    requestId: Schema.optionalKey(Schema.String),
    /** The step that the message was delivered to, from 0. Left out of any other outcome. */
    stepIndex: Schema.optionalKey(Schema.Int),
    /** The reason of a refusal. Left out of any other outcome. */
    reason: Schema.optionalKey(Schema.String)
  })
})) {}

/**
 * A request to stop the run of the session, or one of its calls. Any process may append it, even while another process
 * runs the session.
 *
 * @category schemas
 * @since 0.1.0
 */
export class StopRequested extends Schema.Opaque<StopRequested>()(Schema.TaggedStruct("StopRequested", {
  /** The id of the request. */
  id: Schema.String,
  /** The path of the call that alone is to stop. Left out where the whole run is. */
  call: Schema.optionalKey(Schema.String),
  ...ofRun,
  ...time,
  ...by
})) {}

/**
 * A change of the labels of the session. Any process may append it, even while another process runs the session.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Labelled extends Schema.Opaque<Labelled>()(Schema.TaggedStruct("Labelled", {
  /** The title. `null` where the session gets that of its first message. Left out where it stays. */
  title: Schema.optionalKey(Schema.NullOr(Schema.String)),
  /** Tells whether the session is pinned. Left out where that stays. */
  pinned: Schema.optionalKey(Schema.Boolean),
  ...time,
  ...by
})) {}

/**
 * The parent of a nested run. A nested run has a journal of its own, and only its parent resumes it.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Parent extends Schema.Opaque<Parent>()(Schema.Struct({
  /** The id of the session, or of the `Durable.layer`, in which the run was started. */
  id: Schema.String,
  /** The id of the call whose handler started the run. Left out where no handler did. */
  toolCallId: Schema.optionalKey(Schema.String),
  /** The key of that call, which distinguishes it from a call with the same id in another turn. */
  idempotencyKey: Schema.optionalKey(Schema.String)
})) {}

/** A command that a run takes. */
const Taken = Schema.Struct({
  /** The id of the command. */
  id: Schema.String,
  /** A hash of its content. */
  hash: Schema.String
})

/** The verdict about a suspension. */
const verdict = {
  /** The id of the suspension. */
  id: Schema.String,
  /** The verdict. */
  answer: SessionData.Answer,
  /** Time of the verdict, in milliseconds since 1970. Left out where it is that of the run, or not known. */
  time: Schema.optionalKey(Schema.Finite)
}

/**
 * The start of a run, or its resumption.
 *
 * @category schemas
 * @since 0.1.0
 */
export class RunStarted extends Schema.Opaque<RunStarted>()(Schema.TaggedStruct("RunStarted", {
  ...ofRun,
  ...after,
  /** The operation of `Session` that started the run. */
  operation: Schema.Literals(["start", "reply", "continue", "step"]),
  /** `true` where the interrupted run `requestId` is resumed. Left out at the first start. */
  resumes: Schema.optionalKey(Schema.Boolean),
  /** Time of the start, in milliseconds since 1970. */
  startedAt: Schema.Finite,
  /** End of the deadline, in milliseconds since 1970. Left out where the run has none. */
  deadlineAt: Schema.optionalKey(Schema.Finite),
  /** The owner of the claim under which the run started. Left out where it runs without a claim. */
  owner: Schema.optionalKey(Schema.String),
  /** The process that started or resumed the run: a name that each start of a process has anew. */
  processName: Schema.optionalKey(Schema.String),
  /** The parent of a nested run. Left out for any other run. */
  parent: Schema.optionalKey(Parent),
  /** The span of the run. Left out where the run is not traced. */
  span: Schema.optionalKey(Schema.Struct({
    /** The id of the trace. */
    traceId: Schema.String,
    /** The id of the span. */
    spanId: Schema.String
  })),
  /** The message that the run takes, which was submitted or came with a command. Left out where there is none. */
  takes: Schema.optionalKey(Taken),
  /** The tools of the client that the run serves. Left out where there are none. */
  clientTools: Schema.optionalKey(ClientTools),
  /** The versions of the tools of the run that have one, by their names. Left out where none has. */
  versions: Schema.optionalKey(Schema.Record(Schema.String, Schema.String)),
  /** Messages that start the run. */
  messages: Schema.Array(Message.Message),
  /** The open question that the run answers in its place, and the answer. Left out where there is none. */
  answered: Schema.optionalKey(Schema.Struct(verdict))
})) {}

/**
 * A reply of the model with calls.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ReplyReceived extends Schema.Opaque<ReplyReceived>()(Schema.TaggedStruct("ReplyReceived", {
  ...ofRun,
  ...at,
  /** Index of the turn in the run, from 0. */
  stepIndex: Schema.Int,
  ...ofReply,
  /** The reply. */
  response: Response.Response
})) {}

/**
 * The intent to start a handler.
 *
 * @category schemas
 * @since 0.1.0
 */
export class CallStarted extends Schema.Opaque<CallStarted>()(Schema.TaggedStruct("CallStarted", {
  ...ofCall,
  ...at,
  /** The call. Left out where the reply of its turn is already recorded. */
  toolCall: Schema.optionalKey(Message.ToolCall),
  /** Number of the attempt, from 1. */
  attempt: Schema.Int,
  /** The key that identifies the call to an idempotent tool. */
  idempotencyKey: Schema.String,
  /** `true` where the handler is a run, of `Tool.fromChat`, which has a journal of its own. Left out for any other. */
  isRun: Schema.optionalKey(Schema.Literal(true)),
  /**
   * Time at which the call stood whole in the reply, as `at`. Left out of a further attempt, and of a call of an
   * earlier run.
   */
  asked: Schema.optionalKey(Schema.Int),
  /** The waits of the call for its turn, before its first attempt. Left out where there were none. */
  waited: Schema.optionalKey(Schema.Array(Event.Waited)),
  /** The request of the reply. Left out of a call that starts after its reply is whole, or after another such call. */
  request: Schema.optionalKey(Requested),
  /** The remembered approval by which the call was not asked about. Left out of any other call. */
  allowed: Schema.optionalKey(Schema.Struct({
    /** The id of the suspension that was approved. */
    id: Schema.String,
    ...by
  }))
})) {}

/**
 * A failed attempt: of a call, for which `retry` of its tool grants another one, or of the run, which can be resumed.
 *
 * @category schemas
 * @since 0.1.0
 */
export class AttemptFailed extends Schema.Opaque<AttemptFailed>()(Schema.TaggedStruct("AttemptFailed", {
  ...ofRun,
  ...at,
  /** The id of the call. Left out where the run failed. */
  toolCallId: Schema.optionalKey(Schema.String)
})) {}

/**
 * The call answer, from its handler, its gates, a timeout or a stop.
 *
 * @category schemas
 * @since 0.1.0
 */
export class CallEnded extends Schema.Opaque<CallEnded>()(Schema.TaggedStruct("CallEnded", {
  ...ofRun,
  ...at,
  /** The answer, as the model reads it. */
  message: Message.Message,
  /** Kind of the handler's failure. Left out where it did not fail, or did not run to its end. */
  failure: Schema.optionalKey(Schema.Literals(["reported", "crashed"])),
  /**
   * Reason of the `ToolError` in the answer, `"cancelled"` for a cancelled sub-agent. Left out for any other answer.
   */
  reason: Schema.optionalKey(ToolOutcomes.ToolError.fields.reason),
  /** The halt with which the call ended the run. Left out where it did not. */
  halt: Schema.optionalKey(Event.Halt),
  /** The handler's update of the context. Left out where there is none. */
  contextUpdate: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)),
  /** Usage of the handler's nested runs. Left out where they used nothing. */
  nestedUsage: Schema.optionalKey(Response.Usage),
  /** Length of the answer before it was truncated, in characters. Left out where it is whole. */
  originalLength: Schema.optionalKey(Schema.Int)
})) {}

/** A suspension. */
const Open = Schema.Struct({
  ...Event.Suspension.fields,
  /** The suspended call. Left out where it is a call of the turn. */
  toolCall: Schema.optionalKey(Message.ToolCall)
})

/**
 * The suspension of a call, which waits for answers from outside.
 *
 * @category schemas
 * @since 0.1.0
 */
export class CallWaits extends Schema.Opaque<CallWaits>()(Schema.TaggedStruct("CallWaits", {
  ...ofCall,
  ...at,
  /** The open suspensions: that of the call itself, or those of its nested run. */
  suspensions: Schema.Array(Open),
  /** The state with which the handler is started again once it has its answer. Left out where it is not. */
  resume: Schema.optionalKey(SessionData.Resume),
  /** The handler's update of the context. Left out where there is none. */
  contextUpdate: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)),
  /** Usage of the handler's nested runs. Left out where they used nothing. */
  nestedUsage: Schema.optionalKey(Response.Usage)
})) {}

/**
 * The verdict about a suspension, which is settled once. A verdict that arrives during a run counts at its end.
 *
 * @category schemas
 * @since 0.1.0
 */
export class CallSettled extends Schema.Opaque<CallSettled>()(Schema.TaggedStruct("CallSettled", {
  ...verdict,
  /** The command that gave the verdict. Left out where it was given without an id. */
  command: Schema.optionalKey(Taken),
  /** The calls for which the approval is remembered. Left out where it is for this one alone. */
  remember: Schema.optionalKey(Schema.Literals(["tool", "arguments"])),
  ...by
})) {}

/**
 * The end of the remembered approvals of a tool. Any process may append it, even while another process runs the
 * session.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ToolDisallowed extends Schema.Opaque<ToolDisallowed>()(Schema.TaggedStruct("ToolDisallowed", {
  /** The name of the tool. */
  name: Schema.String,
  ...time,
  ...by
})) {}

/**
 * Notes and messages of rules for a request, written before it is made. A request without either has no record. A reply
 * to an earlier request of the step does not count any more.
 *
 * @category schemas
 * @since 0.1.0
 */
export class StepPrepared extends Schema.Opaque<StepPrepared>()(Schema.TaggedStruct("StepPrepared", {
  ...ofRun,
  /** Index of the turn in the run, from 0. */
  stepIndex: Schema.Int,
  /** Request number within the step, from 1: the next request, or the one with the discarded reply. */
  attempt: Schema.Int,
  /** The notes that no record before has, by the names of the rules. Left out where there are none. */
  notes: Schema.optionalKey(Notes),
  /** Messages that the rules add to the thread before the request. Left out where there are none. */
  messages: Schema.optionalKey(Schema.Array(Message.Message)),
  /** The ids of submitted messages among these. Left out where there are none. */
  delivered: Schema.optionalKey(Schema.Array(Schema.String)),
  /** Usage of the discarded replies of the step so far. Left out where they used nothing. */
  spent: Schema.optionalKey(Response.Usage)
})) {}

/**
 * The end of a turn, which is whole or waits for answers from outside. Its messages are those introduced before the
 * reply, the reply, and the answers of its calls in call order.
 *
 * @category schemas
 * @since 0.1.0
 */
export class StepCompleted extends Schema.Opaque<StepCompleted>()(Schema.TaggedStruct("StepCompleted", {
  ...ofRun,
  ...after,
  ...at,
  /** Index of the turn in the run, from 0. */
  stepIndex: Schema.Int,
  /** Messages before the reply that no record contains. Left out where there are none. */
  introduced: Schema.optionalKey(Schema.Array(Message.Message)),
  /** The messages of the turn. Left out where they are those of the earlier records. */
  messages: Schema.optionalKey(Schema.Array(Message.Message)),
  ...ofReply,
  /** The reply. Left out where it is that of the preceding `ReplyReceived`. */
  response: Schema.optionalKey(Response.Response),
  /** `true` where the model has nothing more to do. */
  done: Schema.Boolean,
  /** `"manual"` for a turn that handed all of its calls to the caller. Left out for any other turn. */
  mode: Schema.optionalKey(Schema.Literals(["auto", "manual"])),
  /** The id of the call that ended the run. Left out where none did. */
  haltedBy: Schema.optionalKey(Schema.String),
  /** Notes of rules about the step that no record before has, by their names. Left out where there are none. */
  notes: Schema.optionalKey(Notes),
  /** Usage of nested runs so far in the run. Left out where they used nothing. */
  nestedUsage: Schema.optionalKey(Response.Usage)
})) {}

/**
 * The end of a run. Without a `haltedReason` the run failed: if none of its calls has started, its messages are given
 * back; otherwise its turn is closed.
 *
 * @category schemas
 * @since 0.1.0
 */
export class RunEnded extends Schema.Opaque<RunEnded>()(Schema.TaggedStruct("RunEnded", {
  ...ofRun,
  ...after,
  ...at,
  /**
   * The `haltedReason` of the result: empty for a step that only ran tools, `"abandoned"` for an abandoned run, and
   * left out for a failed one.
   */
  haltedReason: Schema.optionalKey(Schema.String),
  /** The rule that ended the run, and what it says about the end. Left out where none did. */
  rule: Schema.optionalKey(EndedBy),
  /** The typed answer, encoded. Left out where the run has none. */
  output: Schema.optionalKey(Json.Opaque),
  /** The notes that rules keep for the session, by their names. Left out where they are those from before the run. */
  kept: Schema.optionalKey(Notes),
  /** Messages that no step contains, such as the text of a question. Left out where there are none. */
  messages: Schema.optionalKey(Schema.Array(Message.Message)),
  /** Status of the session after the run, unless a call waits. `"idle"` by default. */
  status: Schema.optionalKey(SessionData.Status),
  /** Additions to the metadata of the session. Left out where there are none. */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)),
  /** The error of a failed run. Left out for any other run. */
  error: Schema.optionalKey(RunError),
  /** Handlers and other parts that refused to stop. Left out where there are none. */
  abandoned: Schema.optionalKey(Schema.Array(Event.Abandoned)),
  /** The amount that the run has spent, and the rest of its budget. Left out for a run without a budget. */
  spent: Schema.optionalKey(Event.Spent),
  /** The result of a nested run, without its thread and its steps. Left out for any other run. */
  result: Schema.optionalKey(Event.WireResult)
})) {}

/**
 * A record: one thing that happened in a session. `RunStarted` precedes the records of a run and `RunEnded` follows
 * them.
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
 * @since 0.1.0
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
 * @since 0.1.0
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
 * @since 0.1.0
 */
export interface Entry {
  /** The version of the journal after the record, from 1. */
  readonly version: number
  /** The record. */
  readonly record: Record
}

/**
 * Returns a 64-bit hash, computed over two halves with two multiplications per character. It distinguishes contents
 * and is not a security measure.
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

/** Tells whether a member says nothing: a record that was read has `{}` where nothing was written. */
const isEmpty = (value: unknown): boolean =>
  Json.isObject(value) && Object.keys(value).every((name) => name === "__proto__")

/**
 * Returns a value as JSON, independent of the order of object members, without the members that are left out, and
 * without those named `__proto__`, which reading drops.
 */
const canonical = (value: unknown, isLeftOut: (member: unknown) => boolean = () => false): string => {
  const isKept = ([name, member]: readonly [string, unknown]) => name !== "__proto__" && !isLeftOut(member)
  return JSON.stringify(Json.toJson(value), (_, member: unknown) =>
    Json.isObject(member)
      ? Object.fromEntries(Object.entries(member).filter(isKept).sort(([left], [right]) => left < right ? -1 : 1))
      : member)
}

/** Returns a hash of a value as JSON, independent of the order of object members. */
export const hashOf = (value: unknown): string => hash(canonical(value))

const encodeContent = Schema.encodeUnknownResult(Schema.toCodecJson(Message.Message.fields.content))

/**
 * Returns the hash of a message's content, as the receipt of the message has it. A program that receives a message
 * twice under one id tells by it whether the content is the same.
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
 * @since 0.1.0
 */
export const hashOfContent = (content: Message.Content): string =>
  hashOf(Result.getOrElse(encodeContent(content), () => content))

// The fingerprint of a journal.

const encode = Schema.encodeUnknownResult(Schema.toCodecJson(Record))

/**
 * Returns what a record says as JSON, without its fingerprint: as it is written, so that the text is the same when it
 * is read. What the schema lacks, such as an unknown field of a part, does not count.
 */
export const textOf = (record: Record): string => {
  const { after: _, ...own } = { after: undefined, ...record }
  return canonical(Result.getOrElse(encode(own), () => own), isEmpty)
}

/** Returns the length of a text in bytes of UTF-8. */
export const bytesOf = (text: string): number => {
  let bytes = text.length
  for (let index = 0; index < text.length; index++) {
    const unit = text.charCodeAt(index)
    // A pair of surrogates has two units and four bytes.
    if (unit > 0x7f) bytes += unit < 0x800 || unit >= 0xd800 && unit < 0xe000 ? 1 : 2
  }
  return bytes
}

/**
 * Returns the fingerprint of a journal after a record. An `Opened` begins a new one, so that the journal has the same
 * fingerprint with the records before a snapshot and without them.
 */
export const fingerprint = (before: string, record: Record, text = textOf(record)): string =>
  hash(`${record._tag === "Opened" ? "" : before}${text}`)

/** Tells whether the writer adds the fingerprint of the records before it to a record. */
export const isSealed = (record: Record): record is Opened | RunStarted | StepCompleted | RunEnded =>
  record._tag === "Opened" || record._tag === "RunStarted" || record._tag === "StepCompleted" ||
  record._tag === "RunEnded"
