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
  session: SessionState.Session
})) {}

/**
 * Messages were added between runs.
 *
 * @category schemas
 * @since 0.1.0
 */
export class MessagesAppended extends Schema.Opaque<MessagesAppended>()(Schema.TaggedStruct("MessagesAppended", {
  /** The messages, in order. */
  messages: Schema.Array(Message.Message)
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
  answer: SessionState.Answer
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
  suspensions: Schema.optionalKey(Schema.Array(Event.Suspension))
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
  /** Its message. */
  message: Message.Message
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

/**
 * A handler ended.
 *
 * @category schemas
 * @since 0.1.0
 */
export class CallEnded extends Schema.Opaque<CallEnded>()(Schema.TaggedStruct("CallEnded", {
  ...ofStep,
  /** The id of the call. */
  toolCallId: Schema.String,
  /** What the handler came to. */
  outcome: Json.Opaque,
  /** Of an outcome that is a question: when it is settled without an answer, in milliseconds since 1970. */
  expiresAt: Schema.optionalKey(Schema.Finite)
})) {}

/**
 * A turn is whole.
 *
 * @category schemas
 * @since 0.1.0
 */
export class StepCompleted extends Schema.Opaque<StepCompleted>()(Schema.TaggedStruct("StepCompleted", {
  ...ofStep,
  /** The messages of the turn. */
  messages: Schema.Array(Message.Message),
  /** The calls of the turn that are open. */
  suspensions: Schema.optionalKey(Schema.Array(Event.Suspension))
})) {}

/**
 * The run could not be started.
 *
 * @category schemas
 * @since 0.1.0
 */
export class RunFailed extends Schema.Opaque<RunFailed>()(Schema.TaggedStruct("RunFailed", ofRun)) {}

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
  metadata: Json.Metadata
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
  /** The last message of the model, if it has calls and its turn is not whole. */
  readonly reply?: Message.Message
  /** The calls that started since the last whole step. They may have had their effect. */
  readonly calls: ReadonlyArray<InterruptedCall>
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
  /** The key under which an idempotent tool may be asked again. */
  readonly idempotencyKey: string
  /** What the handler came to. Absent if it has not ended. */
  readonly outcome?: unknown
  /** Of a call whose outcome is a question: when it is settled without an answer, in milliseconds since 1970. */
  readonly expiresAt?: number
}

/** The fold of a journal: the session, and the run that has no end yet. */
export interface JournalState {
  /** The session, with every whole step of the run, and the calls that are open. */
  readonly session: SessionState.Session
  /** The run that has no end, if there is one. */
  readonly interrupted?: Interrupted
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
