/**
 * The records of a journal: what happened in a session, one after the other. A journal only grows: its version is the number
 * of its records, and an append names the version that it follows, so that of two writers one fails with a conflict. Public
 * as `Session`.
 *
 * **Details**
 *
 * A journal is written so that a run that was killed can be taken up by a reader of the journal alone:
 *
 * - `RunStarted` precedes every record of a run, and `RunEnded` follows them. A journal with the first and without the
 *   second belongs to a run that is under way, was interrupted, or was killed.
 * - `RunFailed` means that a run could not be started: its user message is discarded. A run that had completed
 *   a step keeps what it came to.
 * - `RunStarted` has what was said to the session with it. An answer to a question that was not asked in words is no
 *   message: `answered` has it. Calls that were approved run first, and `ApprovedAnswered` has the answer of each that has
 *   one now, and the questions that some of them asked; what was said stands behind the last of them. `QuestionWithdrawn`
 *   has the answer to such a question when the run ends for another reason than to wait.
 * - `ReplyReceived` has the assistant message of a turn before one of its calls starts (except for calls of read-only
 *   tools, which may start while the model still streams).
 * - `CallStarted` is written before a handler starts: the intent. `CallEnded` has its outcome before anything follows from
 *   it. A call with both is not run again; a call with neither has not started and can be run; a call that has only started
 *   may have had its effect: its `idempotencyKey` lets an idempotent tool be asked again, and anything else is for a person
 *   to decide. An approved call that ended with a question is open, until `expiresAt` if there is one.
 * - `StepCompleted` adds the messages of the turn, all at once, and those of its calls that are open. The thread of a
 *   session that is read back is therefore whole at every version: a call is in it with its answer, or with a suspension,
 *   or not at all.
 *
 * @since 0.1.0
 */
import type * as Arr from "effect/Array"
import * as Schema from "effect/Schema"
import * as Event from "../../Event.ts"
import * as Message from "../../Message.ts"
import * as Response from "../../Response.ts"
import * as Json from "../json.ts"
import * as SessionState from "./state.ts"

const ofRun = {
  /** The run that the record belongs to. */
  requestId: Schema.String
}

const ofStep = {
  ...ofRun,
  /** The turn of the run, from 0. */
  stepIndex: Schema.Int
}

/**
 * The first record of a journal, and the session as a whole where an operation went on with another one.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Opened extends Schema.Opaque<Opened>()(Schema.TaggedStruct("Opened", {
  /** What the session begins with. */
  session: SessionState.Session,
  /** Whether a message was submitted that no run has taken up. Left out where there is none. */
  unfinished: Schema.optionalKey(Schema.Boolean)
})) {}

/**
 * Messages were added between runs.
 *
 * @category schemas
 * @since 0.1.0
 */
export class MessagesAppended extends Schema.Opaque<MessagesAppended>()(Schema.TaggedStruct("MessagesAppended", {
  /** The messages, in order. */
  messages: Schema.Array(Message.Message),
  /**
   * Behind a run that was cut, whether a message was submitted that no run has taken up, or calls that were settled wait for
   * a run. Left out behind any other.
   */
  unfinished: Schema.optionalKey(Schema.Boolean)
})) {}

/**
 * A suspension was settled between runs, which happens at most once.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Answered extends Schema.Opaque<Answered>()(Schema.TaggedStruct("Answered", {
  /** The id of the call. */
  id: Schema.String,
  /** How it was settled. */
  answer: SessionState.Answer,
  /** Whether the session can go on now: nothing else waits. Left out where that is not known. */
  unfinished: Schema.optionalKey(Schema.Boolean)
})) {}

/**
 * A program asks the run of the session to stop. Any process may append it, also while another one runs the session.
 *
 * @category schemas
 * @since 0.1.0
 */
export class StopRequested extends Schema.Opaque<StopRequested>()(Schema.TaggedStruct("StopRequested", {
  /** The id of the request. */
  id: Schema.String,
  /** The run that is to stop: the one that had no end when the stop was requested. */
  requestId: Schema.String
})) {}

/**
 * A message for the session that no run has taken up yet. Any process may append it, also while another one runs the
 * session.
 *
 * @category schemas
 * @since 0.1.0
 */
export class MessageSubmitted extends Schema.Opaque<MessageSubmitted>()(Schema.TaggedStruct("MessageSubmitted", {
  /** The id of the submission. */
  id: Schema.String,
  /** What is said to the session. */
  message: Message.Message
})) {}

/**
 * What a run is a part of: it is kept in a journal of its own, and is taken up by what started it alone.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Parent extends Schema.Opaque<Parent>()(Schema.Struct({
  /** The id of the session, or of the `Durable.layer`, that it was started in. */
  id: Schema.String,
  /** The id of the call whose handler started it. Left out where no handler did. */
  toolCallId: Schema.optionalKey(Schema.String),
  /** The key of that call, which tells it from one with the same id in another turn. */
  idempotencyKey: Schema.optionalKey(Schema.String)
})) {}

/**
 * A run starts.
 *
 * @category schemas
 * @since 0.1.0
 */
export class RunStarted extends Schema.Opaque<RunStarted>()(Schema.TaggedStruct("RunStarted", {
  ...ofRun,
  /** The operation of `Session` that started it. */
  operation: Schema.Literals(["start", "reply", "continue", "step"]),
  /** The run that was cut and is taken up again, which is this one: it keeps its id. Left out at its first start. */
  resumes: Schema.optionalKey(Schema.String),
  /** When it started, in milliseconds since 1970. Journals of 0.1 do not have it. */
  startedAt: Schema.optionalKey(Schema.Finite),
  /** When its deadline is over, in milliseconds since 1970. Left out where it has none. */
  deadlineAt: Schema.optionalKey(Schema.Finite),
  /** The owner of the claim under which it runs. Left out where it runs without a claim. */
  owner: Schema.optionalKey(Schema.String),
  /** What the run is a part of. Left out where the session stands for itself. */
  parent: Schema.optionalKey(Parent),
  /** The submission that it takes up. Left out where there is none. */
  submitted: Schema.optionalKey(Schema.String),
  /** What was said to the session with it. */
  messages: Schema.Array(Message.Message),
  /** The open question that it answers in its place, and the answer. */
  answered: Schema.optionalKey(Schema.Struct({
    /** The id of the call that asked it. */
    id: Schema.String,
    /** The answer. */
    answer: SessionState.Answer
  }))
})) {}

/**
 * Calls that were approved have their answers.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ApprovedAnswered extends Schema.Opaque<ApprovedAnswered>()(Schema.TaggedStruct("ApprovedAnswered", {
  ...ofRun,
  /** The answers. */
  messages: Schema.Array(Message.Message),
  /** The questions that some of the calls asked. */
  suspensions: Schema.optionalKey(Schema.Array(Event.Suspension)),
  /** How some of the calls ended the run. Left out when none did. */
  halts: Schema.optionalKey(Schema.Array(Event.Halt)),
  /** What the handlers added to the context. Left out when they added nothing. */
  contextUpdate: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
})) {}

/**
 * The run withdrew the question of a call that was approved.
 *
 * @category schemas
 * @since 0.1.0
 */
export class QuestionWithdrawn extends Schema.Opaque<QuestionWithdrawn>()(Schema.TaggedStruct("QuestionWithdrawn", {
  ...ofRun,
  /** What the call has as its answer. */
  message: Message.Message
})) {}

/**
 * The model replied with calls.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ReplyReceived extends Schema.Opaque<ReplyReceived>()(Schema.TaggedStruct("ReplyReceived", {
  ...ofStep,
  /** Its message, in journals of 0.1. */
  message: Schema.optionalKey(Message.Message),
  /** The whole reply. Journals of 0.1 have its message only. */
  response: Schema.optionalKey(Response.Response)
})) {}

/**
 * A handler is about to start.
 *
 * @category schemas
 * @since 0.1.0
 */
export class CallStarted extends Schema.Opaque<CallStarted>()(Schema.TaggedStruct("CallStarted", {
  ...ofStep,
  /** The call, with the arguments that the handler gets. */
  toolCall: Message.ToolCall,
  /** The attempt, from 1. */
  attempt: Schema.Int,
  /** The key under which an idempotent tool may be asked again. */
  idempotencyKey: Schema.String
})) {}

/** The event that answered a call. */
const Answer = Schema.Union([Event.ToolResultEncoded, Event.ToolHalt])

/**
 * A handler ended, or its call was answered without it.
 *
 * @category schemas
 * @since 0.1.0
 */
export class CallEnded extends Schema.Opaque<CallEnded>()(Schema.TaggedStruct("CallEnded", {
  ...ofStep,
  /** The id of the call. */
  toolCallId: Schema.String,
  /** What the handler came to, as `Tool.encodeOutcome` writes it. Journals of 0.1 have the value before it was encoded. */
  outcome: Json.Opaque,
  /** Whether it is in that form. */
  encoded: Schema.optionalKey(Schema.Boolean),
  /** What the handler added to the context. Left out when it added nothing. */
  contextUpdate: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)),
  /** How many characters of the outcome the model reads, 0 for all. Left out where it is the standard number. */
  resultLimit: Schema.optionalKey(Schema.Finite),
  /** Which part of a longer outcome is left out. Left out where it is the standard one. */
  resultCut: Schema.optionalKey(Schema.Literals(["headAndTail", "head"])),
  /** Whether an `onToolError` decides what the model reads of a failure, which is not known then. */
  isErrorDecided: Schema.optionalKey(Schema.Boolean),
  /** What runs inside the handler have used. Left out when they have used nothing. */
  nestedUsage: Schema.optionalKey(Response.Usage),
  /** The answer of a call that its handler did not answer: a timeout or a cancellation came first. */
  answer: Schema.optionalKey(Answer),
  /** Of an outcome that is a question: when it is settled without an answer, in milliseconds since 1970. */
  expiresAt: Schema.optionalKey(Schema.Finite)
})) {}

/**
 * A message of a turn that the records before it contain: the reply, or the answer of a call that is written from its
 * outcome.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Reference extends Schema.Opaque<Reference>()(Schema.TaggedStruct("Reference", {
  /** The call that the message answers. Left out for the reply. */
  toolCallId: Schema.optionalKey(Schema.String),
  /** How many characters of the outcome the model reads. Left out where it reads all of them. */
  resultLimit: Schema.optionalKey(Schema.Finite),
  /** Which part of a longer outcome is left out. */
  resultCut: Schema.optionalKey(Schema.Literals(["headAndTail", "head"]))
})) {}

/**
 * A turn is whole.
 *
 * @category schemas
 * @since 0.1.0
 */
export class StepCompleted extends Schema.Opaque<StepCompleted>()(Schema.TaggedStruct("StepCompleted", {
  ...ofStep,
  /** The messages of the turn. What the records before it contain is not repeated. */
  messages: Schema.Array(Schema.Union([Message.Message, Reference])),
  /** The calls of the turn that are open. */
  suspensions: Schema.optionalKey(Schema.Array(Event.Suspension)),
  /** The reply, where no `ReplyReceived` has it. Journals of 0.1 do not have it. */
  response: Schema.optionalKey(Response.Response),
  /** Whether the model has nothing more to do. Journals of 0.1 do not have it. */
  done: Schema.optionalKey(Schema.Boolean),
  /** `"manual"` for a turn that handed all of its calls to the caller. */
  mode: Schema.optionalKey(Schema.Literals(["auto", "manual"])),
  /** The calls of manual tools. Left out when there are none. */
  manualToolCalls: Schema.optionalKey(Schema.Array(Message.ToolCall)),
  /** How a tool ended the run. Left out when none did. */
  halt: Schema.optionalKey(Event.Halt),
  /** What handlers added to the context. Left out when none did. */
  contextUpdate: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)),
  /** Why it was the last turn of the run, in which the model had no tools. Left out for any other turn. */
  closing: Schema.optionalKey(Schema.Literals(["max_turns", "deadline", "structured"])),
  /** What runs inside the handlers of the run have used so far, together. Left out when they have used nothing. */
  nestedUsage: Schema.optionalKey(Response.Usage)
})) {}

/**
 * The run could not be started.
 *
 * @category schemas
 * @since 0.1.0
 */
export class RunFailed extends Schema.Opaque<RunFailed>()(Schema.TaggedStruct("RunFailed", {
  ...ofRun,
  /** Whether a message was submitted that no run has taken up, or calls that were settled wait for a run. */
  unfinished: Schema.optionalKey(Schema.Boolean)
})) {}

/**
 * The run ended.
 *
 * @category schemas
 * @since 0.1.0
 */
export class RunEnded extends Schema.Opaque<RunEnded>()(Schema.TaggedStruct("RunEnded", {
  ...ofRun,
  /** The `haltedReason` of its result; empty for a step that only ran tools. */
  haltedReason: Schema.String,
  /** Messages that no step has, such as the answer to a structured request. */
  messages: Schema.Array(Message.Message),
  /** The status of the session after it, unless a call is open. */
  status: SessionState.Status,
  /** The calls that are open after it. */
  suspensions: Schema.Array(Event.Suspension),
  /** What it adds to the context of the session. */
  context: Schema.Record(Schema.String, Json.Opaque),
  /** What it adds to the metadata of the session. */
  metadata: Json.Metadata,
  /** What refused to stop. Left out when nothing did. */
  abandoned: Schema.optionalKey(Schema.Array(Event.Abandoned)),
  /** Of a run that is a part of another one: its result, without what the records before it contain. */
  result: Schema.optionalKey(Event.ReceivedResult),
  /** Whether a message was submitted that no run has taken up, or every call that it left open has been settled. */
  unfinished: Schema.optionalKey(Schema.Boolean)
})) {}

/**
 * One thing that happened in a session.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Record = Schema.Union([
  Opened,
  MessagesAppended,
  Answered,
  StopRequested,
  MessageSubmitted,
  RunStarted,
  ApprovedAnswered,
  QuestionWithdrawn,
  ReplyReceived,
  CallStarted,
  CallEnded,
  StepCompleted,
  RunFailed,
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
  | Answered
  | StopRequested
  | MessageSubmitted
  | RunStarted
  | ApprovedAnswered
  | QuestionWithdrawn
  | ReplyReceived
  | CallStarted
  | CallEnded
  | StepCompleted
  | RunFailed
  | RunEnded

/** Records of one append. */
export type Records = Arr.NonEmptyReadonlyArray<Record>

/**
 * A record in its place.
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
 * A run whose start the journal has, and not its end: it is under way elsewhere, was interrupted, or its process was
 * killed.
 *
 * @category models
 * @since 0.1.0
 */
export interface Interrupted {
  /** The id of the run. */
  readonly requestId: string
  /** What was said to the session with it. */
  readonly messages: ReadonlyArray<Message.Message>
  /** The session as it was before the run, until a step is whole. */
  readonly before?: SessionState.Session
  /** The operation of `Session` that started it. */
  readonly operation: RunStarted["operation"]
  /** The calls that were approved before it, in call order. It began with them. */
  readonly approved: ReadonlyArray<Message.ToolCall>
  /** Those of their answers that are recorded. */
  readonly approvedAnswers: ReadonlyArray<ApprovedAnswered>
  /** The whole steps of the run, in order. Steps of a journal of 0.1 are left out. */
  readonly steps: ReadonlyArray<WholeStep>
  /** The last message of the model, if it has calls and its turn is not whole. */
  readonly reply?: Message.Message
  /** The whole reply. Left out where only its message is known, from a journal of 0.1. */
  readonly response?: Response.Response
  /** The calls that started since the last whole step. They may have had their effect. */
  readonly calls: ReadonlyArray<InterruptedCall>
  /** What runs inside handlers have used that ended since the last whole step. Left out when they have used nothing. */
  readonly nestedUsage?: Response.Usage
  /** How often the run was taken up again. */
  readonly resumptions: number
  /** The submission that it has taken up. Left out where there is none. */
  readonly taken?: MessageSubmitted
  /** The answers to calls that it has left open, which came before its end. Left out where there are none. */
  readonly answers?: ReadonlyArray<Answered>
  /** When it started first, in milliseconds since 1970. */
  readonly startedAt?: number
  /** When its deadline is over, in milliseconds since 1970. */
  readonly deadlineAt?: number
  /** What it is a part of. Left out where the session stands for itself. */
  readonly parent?: Parent
}

/**
 * A run that is a part of another one, and has ended.
 *
 * @category models
 * @since 0.1.0
 */
export interface Ended {
  /** The id of the run. */
  readonly requestId: string
  /** Its steps, in order. */
  readonly steps: ReadonlyArray<WholeStep>
  /** Its result, without its thread and its steps. */
  readonly result: Event.ReceivedResult
  /** What it was a part of. */
  readonly parent: Parent
}

/**
 * A whole step of a run that was interrupted.
 *
 * @category models
 * @since 0.1.0
 */
export interface WholeStep {
  /** The result of the step. */
  readonly result: Event.StepResult
  /** What runs inside the handlers of the run had used by then, together. Left out when they had used nothing. */
  readonly nestedUsage?: Response.Usage
  /** Why it was the last one, in which the model had no tools. Left out for any other step. */
  readonly closing?: "max_turns" | "deadline" | "structured"
}

/**
 * A call of a run that was interrupted.
 *
 * @category models
 * @since 0.1.0
 */
export interface InterruptedCall {
  /** The call, with the arguments that its handler got. */
  readonly toolCall: Message.ToolCall
  /** The attempt that started last, from 1. */
  readonly attempt: number
  /** The key under which an idempotent tool may be asked again. */
  readonly idempotencyKey: string
  /** What the handler came to. Absent if it has not ended. */
  readonly outcome?: unknown
  /** Whether the outcome is in the form that `Tool.encodeOutcome` writes. */
  readonly encoded?: boolean
  /** What the handler added to the context. */
  readonly contextUpdate?: Json.JsonObject
  /** How many characters of the outcome the model reads, 0 for all. Absent where it is the standard number. */
  readonly resultLimit?: number
  /** Which part of a longer outcome is left out. Absent where it is the standard one. */
  readonly resultCut?: "headAndTail" | "head"
  /** Whether an `onToolError` decides what the model reads of a failure. */
  readonly isErrorDecided?: boolean
  /** The answer, where a timeout or a cancellation answered the call. */
  readonly answer?: Event.Of<"ToolResultEncoded"> | Event.Of<"ToolHalt">
  /** Of a call whose outcome is a question: when it is settled without an answer, in milliseconds since 1970. */
  readonly expiresAt?: number
}

/** The fold of a journal: the session, and the run that has no end yet. */
export interface JournalState {
  /** The session, with every whole step of the run, and the calls that are open. */
  readonly session: SessionState.Session
  /** The run that has no end, if there is one. */
  readonly interrupted?: Interrupted
  /** Of a session that is kept for a part of another one: its last run, if that has ended and nothing has happened since. */
  readonly ended?: Ended
  /** The request that the run is to stop, if there is one. */
  readonly stop?: StopRequested
  /** Messages that were submitted and that no run has taken up, oldest first. Left out when there are none. */
  readonly submitted?: ReadonlyArray<MessageSubmitted>
}

/**
 * A session as a store has it.
 *
 * @category models
 * @since 0.1.0
 */
export interface Kept extends JournalState {
  /** The id of the session. */
  readonly id: string
  /** The version of the journal that the session was read at. The next operation is written behind it, or conflicts. */
  readonly version: number
  /**
   * The session as the interrupted run has it, for `Session.resume`: approved calls that have begun still wait for their
   * answers. Left out where no run was interrupted.
   */
  readonly cut?: SessionState.Session
  /** The owner of the claim under which it was loaded (`Session.claim`). Left out where there is none. */
  readonly owner?: string
}

/**
 * What a kept operation came to: the session as the store has it now, and the value of the operation.
 *
 * @category models
 * @since 0.1.0
 */
export interface Outcome<out A> extends Kept {
  /** What the operation succeeded with. */
  readonly value: A
}
