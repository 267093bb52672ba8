/**
 * Everything a run emits, as one closed union of plain data, and the results of folding those events. An adapter emits
 * the model's part and the runner the tools' part. A step ends in exactly one `StepCompleted`, a chat in exactly one
 * `ChatCompleted`. Events are literals: nothing validates them on the way, and all of them round-trip through JSON.
 */
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as ToolOutcomes from "./internal/declare/outcome.ts"
import * as EventJson from "./internal/fold/eventJson.ts"
import * as Public from "./internal/fold/publicEvent.ts"
import * as Json from "./internal/json.ts"
import * as Message from "./Message.ts"
import * as Response from "./Response.ts"
import * as Thread from "./Thread.ts"

export type {
  PublicAbandoned,
  PublicAmount,
  PublicCall,
  PublicError,
  PublicEvent,
  PublicOptions,
  PublicOutcome,
  PublicSpent,
  PublicSuspension,
  PublicUsage,
  Publish
} from "./internal/fold/publicEvent.ts"

/**
 * A tool asked the user.
 *
 * @category schemas
 */
export class QuestionHalt extends Schema.Opaque<QuestionHalt>()(Schema.Struct({
  /** Halt kind. */
  haltedReason: Schema.Literal("ask_user"),
  /** Question, as asked by the handler. */
  pendingQuestion: Schema.String,
  /** Id of the asking call. */
  pendingToolCallId: Schema.String,
  /** Choices offered to the user, or other data from the handler for a user interface. `[]` by default. */
  askUserOpts: Schema.Array(Json.Opaque)
})) {}

/**
 * A call failed, and `onToolError` decided to halt.
 *
 * @category schemas
 */
export class ErrorHalt extends Schema.Opaque<ErrorHalt>()(Schema.Struct({
  /** Halt kind. */
  haltedReason: Schema.Literal("tool_error"),
  /** Id of the failed call. */
  haltToolCallId: Schema.String,
  /** Defect of the `onToolError` function, if it died. */
  onToolErrorException: Schema.optionalKey(Json.Opaque)
})) {}

/**
 * A handler succeeded with `Tool.halt(reason, result)`.
 *
 * @category schemas
 */
export class ReasonHalt extends Schema.Opaque<ReasonHalt>()(Schema.Struct({
  /** Reason given by the handler. */
  haltedReason: Schema.String,
  /** Id of the halting call. */
  haltToolCallId: Schema.String,
  /** The handler's last result, unchanged. */
  haltResult: Json.Opaque
})) {}

/**
 * The way a tool ended a turn, and thereby the run: a question, a failure under `onToolError: "halt"`, or the tool's
 * own halt.
 *
 * @category schemas
 */
export const Halt = Schema.Opaque<Halt>()(Schema.Union([QuestionHalt, ErrorHalt, ReasonHalt]))

/**
 * @see {@link Halt}
 *
 * @category models
 */
export type Halt = QuestionHalt | ErrorHalt | ReasonHalt

const AnswerSchema = Schema.Record(Schema.String, Json.Opaque)

const Content = Schema.Union([Schema.String, Schema.Array(Message.Part)])

const ContextUpdate = Schema.Record(Schema.String, Json.Opaque)

const Mode = Schema.Literals(["auto", "manual"])

/**
 * Extent to which the session may remember an approval.
 *
 * @category schemas
 */
export class Rememberable extends Schema.Opaque<Rememberable>()(Schema.Struct({
  /** Calls covered: all of the tool's, or those with the same arguments. */
  scope: Schema.Literals(["tool", "arguments"]),
  /** Tool hash: another tool with the same name is not covered. */
  tool: Schema.String
})) {}

/**
 * A call waiting for an answer from outside the run.
 *
 * @category schemas
 */
export class Suspension extends Schema.Opaque<Suspension>()(Schema.Struct({
  /**
   * Id for answering it: the call id or, for a call in a nested run, the ids of the calls leading there, joined by `/`.
   * Within an id, `%`, `/` and `~` are written as `%25`, `%2F` and `%7E`.
   */
  id: Schema.String,
  /** Ids of the calls leading to a nested run's call, from this run's call to the call itself. */
  path: Schema.optionalKey(Schema.Array(Schema.String)),
  /**
   * Kind of answer needed: `"question"` for the user's answer, `"approval"` for permission to run, `"manual"` for a
   * result from you, `"unknown"` for a verdict on a call already started when its process ended: `Session.answer` with
   * its result, `Session.approve` to try it again, `Session.deny` to answer it as failed.
   */
  kind: Schema.Literals(["question", "approval", "manual", "unknown"]),
  /** The waiting call. */
  toolCall: Message.ToolCall,
  /** Text to show, for a question or a call with an unknown effect. */
  question: Schema.optionalKey(Schema.String),
  /** Choices for a question, or other data from the handler for a user interface. */
  opts: Schema.optionalKey(Schema.Array(Json.Opaque)),
  /** JSON Schema for the answer to a typed question. */
  answerSchema: Schema.optionalKey(AnswerSchema),
  /**
   * Expiry time, in milliseconds since 1970. From then on answers are refused, and `Session.expire` settles the call: a
   * question with its `defaultAnswer` or else as unanswered, any other call as denied. Absent without a time limit.
   */
  expiresAt: Schema.optionalKey(Schema.Finite),
  /** Answer after expiry. */
  defaultAnswer: Schema.optionalKey(Json.Opaque),
  /** Extent to which the session may remember the approval. Absent if it may not. */
  remember: Schema.optionalKey(Rememberable),
  /** Maximum length of a manual call's result for the model, in characters. Absent if unlimited. */
  resultLimit: Schema.optionalKey(Schema.Finite),
  /** Part kept from a manual call's longer result, as in `Policy.resultCut`. */
  resultCut: Schema.optionalKey(Schema.Literals(["headAndTail", "head"]))
})) {}

/**
 * One model turn with its tools.
 *
 * @category schemas
 */
export class StepResult extends Schema.Opaque<StepResult>()(Schema.Struct({
  /** Thread after the step. */
  thread: Thread.Thread,
  /** Model reply. */
  response: Response.Response,
  /** Answers to the reply's calls, in call order. */
  toolResults: Schema.Array(Message.Message),
  /** `true` if the model has nothing more to do. */
  done: Schema.Boolean,
  /** `"manual"` for a step handing all its calls to the caller. Absent otherwise. */
  mode: Schema.optionalKey(Schema.Literal("manual")),
  /** Calls to manual tools, for the caller to answer. Absent without such calls. */
  manualToolCalls: Schema.optionalKey(Schema.Array(Message.ToolCall)),
  /** Halt by which a tool ended the run. Absent without a halt. */
  halt: Schema.optionalKey(Halt),
  /** All waiting calls, in call order. Absent without such calls. */
  suspensions: Schema.optionalKey(Schema.Array(Suspension)),
  /** Values added by handlers to the next step's context, merged in call order. Absent without such values. */
  contextUpdate: Schema.optionalKey(ContextUpdate),
  /** Data attached to the step by you. `{}` by default. */
  metadata: Json.Metadata
})) {}

/**
 * Source of a cancellation. `"cancel"` is the run's own `cancel` option, or an outer run's. `"deadline"` is an expired
 * deadline. `"stop"` is a `Session.stop`. `"interrupt"` is a reader leaving the stream, as found by a fold of the
 * events so far, or a handler around the run abandoned after the grace period.
 *
 * @category schemas
 */
export const CancelReason = Schema.Literals(["cancel", "deadline", "interrupt", "stop"])

/**
 * @see {@link CancelReason}
 *
 * @category models
 */
export type CancelReason = (typeof CancelReason)["Type"]

/**
 * The model answered and asked for nothing more.
 *
 * @category schemas
 */
export class CompletedOutcome extends Schema.Opaque<CompletedOutcome>()(Schema.TaggedStruct("Completed", {
  /**
   * Finish reason of the last reply: `"length"` means cut off by the token limit, `"content_filter"` filtered. `null`
   * for a reply without a finish reason.
   */
  finishReason: Schema.NullOr(Response.FinishReason)
})) {}

/**
 * The run used up its model calls, and the model still asked for tools.
 *
 * @category schemas
 */
export class MaxTurnsOutcome extends Schema.Opaque<MaxTurnsOutcome>()(Schema.TaggedStruct("MaxTurns", {
  /** Maximum number of model calls in the run (`Chat.Options.maxTurns`). */
  maxTurns: Schema.Int
})) {}

/**
 * The `haltWhen` option returned `true`.
 *
 * @category schemas
 */
export class HaltWhenOutcome extends Schema.Opaque<HaltWhenOutcome>()(Schema.TaggedStruct("HaltWhen", {
  /** Index of the halting step, from 0. */
  stepIndex: Schema.Int
})) {}

/**
 * A tool asked the user. If several calls wait, the outcome prefers questions to manual calls, and manual calls to
 * approvals; the result's `suspensions` list all these calls.
 *
 * @category schemas
 */
export class AskUserOutcome extends Schema.Opaque<AskUserOutcome>()(Schema.TaggedStruct("AskUser", {
  /** Question, as asked by the handler. */
  pendingQuestion: Schema.String,
  /** Id of the asking call. */
  pendingToolCallId: Schema.String,
  /** Choices offered to the user, or other data from the handler for a user interface. `[]` by default. */
  askUserOpts: Schema.Array(Json.Opaque)
})) {}

/**
 * A call failed, and `onToolError` decided to halt.
 *
 * @category schemas
 */
export class ToolFailedOutcome extends Schema.Opaque<ToolFailedOutcome>()(Schema.TaggedStruct("ToolFailed", {
  /** Id of the failed call. */
  haltToolCallId: Schema.String,
  /** Defect of the `onToolError` function, if it died. */
  onToolErrorException: Schema.optionalKey(Json.Opaque)
})) {}

/**
 * A handler ended the run with `Tool.halt(reason, result)`.
 *
 * @category schemas
 */
export class HaltedOutcome extends Schema.Opaque<HaltedOutcome>()(Schema.TaggedStruct("Halted", {
  /** Reason given by the handler. */
  reason: Schema.String,
  /** Id of the halting call. */
  haltToolCallId: Schema.String,
  /** The handler's last result, unchanged. */
  haltResult: Json.Opaque
})) {}

/**
 * The caller has calls to run: all calls under `mode: "manual"`, or those to `manual` tools.
 *
 * @category schemas
 */
export class ManualToolCallsOutcome extends Schema.Opaque<ManualToolCallsOutcome>()(
  Schema.TaggedStruct("ManualToolCalls", {
    /** Index of the step with the calls, from 0. */
    stepIndex: Schema.Int,
    /** Calls to `manual` tools. Absent under `mode: "manual"`, for all calls in `finalResponse`. */
    manualToolCalls: Schema.optionalKey(Schema.Array(Message.ToolCall))
  })
) {}

/**
 * Calls wait for permission: they need an approval, or had started when their process ended (`afterCrash: "ask"`).
 *
 * @category schemas
 */
export class ApprovalRequestedOutcome extends Schema.Opaque<ApprovalRequestedOutcome>()(
  Schema.TaggedStruct("ApprovalRequested", {
    /** Index of the step with the calls, from 0. */
    stepIndex: Schema.Int,
    /** Waiting calls, in call order. */
    approvalToolCalls: Schema.Array(Message.ToolCall)
  })
) {}

/**
 * The run was stopped softly: running work was interrupted, and every call is answered.
 *
 * @category schemas
 */
export class CancelledOutcome extends Schema.Opaque<CancelledOutcome>()(Schema.TaggedStruct("Cancelled", {
  /** Source of the cancellation. */
  reason: CancelReason
})) {}

/**
 * A rule ended the run (`Rule`).
 *
 * @category schemas
 */
export class RuleEndedOutcome extends Schema.Opaque<RuleEndedOutcome>()(Schema.TaggedStruct("RuleEnded", {
  /** Rule name. */
  rule: Schema.String,
  /** Data from the rule about the end. Absent without data. */
  detail: Schema.optionalKey(Json.Opaque),
  /** `"error"` if the run failed its purpose, in which case the session has this status too. */
  status: Schema.Literals(["completed", "error"])
})) {}

/**
 * The run broke after it had begun.
 *
 * @category schemas
 */
export class FailedOutcome extends Schema.Opaque<FailedOutcome>()(Schema.TaggedStruct("Failed", {
  /** The breaking error: an `Adapter.AdapterError`, or the value of a defect. */
  error: Json.Opaque
})) {}

/**
 * Reason why a run ended, with its details.
 *
 * @category schemas
 */
export const Outcome = Schema.Opaque<Outcome>()(Schema.Union([
  CompletedOutcome,
  MaxTurnsOutcome,
  HaltWhenOutcome,
  AskUserOutcome,
  ToolFailedOutcome,
  HaltedOutcome,
  ManualToolCallsOutcome,
  ApprovalRequestedOutcome,
  CancelledOutcome,
  RuleEndedOutcome,
  FailedOutcome
]))

/**
 * @see {@link Outcome}
 *
 * @category models
 */
export type Outcome =
  | CompletedOutcome
  | MaxTurnsOutcome
  | HaltWhenOutcome
  | AskUserOutcome
  | ToolFailedOutcome
  | HaltedOutcome
  | ManualToolCallsOutcome
  | ApprovalRequestedOutcome
  | CancelledOutcome
  | RuleEndedOutcome
  | FailedOutcome

/**
 * Code still running after the grace period: the run ended without it, and dropped its late value.
 *
 * @category schemas
 */
export class Abandoned extends Schema.Opaque<Abandoned>()(Schema.Struct({
  /**
   * Kind of code: a tool handler; a `"hook"`, meaning another function of the caller's (`onEvent`, `haltWhen`,
   * `onToolError`, a decoder, an encoder); a store's `append`; the adapter; or the effect given as `cancel`.
   */
  kind: Schema.Literals(["handler", "hook", "store", "adapter", "cancel"]),
  /** Id of the call or the run; for a store, the session id. */
  id: Schema.String,
  /** Name of the tool or the option. */
  name: Schema.String,
  /** Running time so far, in milliseconds. */
  ageMillis: Schema.Finite,
  /** Ids leading to code of a run inside this run's handlers, from this run's call to the code's own `id`. */
  path: Schema.optionalKey(Schema.Array(Schema.String))
})) {}

/**
 * End of a tool loop followed by a request for a structured answer.
 *
 * @category schemas
 */
export class StructuredFinalize extends Schema.Opaque<StructuredFinalize>()(Schema.Struct({
  /** The tool loop's `haltedReason`. */
  pass1Halted: Schema.String,
  /** Error breaking the last call before its first event. Absent without an error. */
  pass2Error: Schema.optionalKey(Json.Opaque)
})) {}

/**
 * A tool withheld from the model.
 *
 * @category schemas
 */
export class LeftOutTool extends Schema.Opaque<LeftOutTool>()(Schema.Struct({
  /** Tool name. */
  name: Schema.String,
  /** Reason for withholding the tool. */
  reason: Schema.String
})) {}

/**
 * Amount spent by a run, including runs started by its handlers.
 *
 * @category schemas
 */
export class Spent extends Schema.Opaque<Spent>()(Schema.Struct({
  /** Number of model requests. */
  calls: Schema.Finite,
  /** Request tokens: reported or, for a reply without a report, reserved. */
  inputTokens: Schema.Finite,
  /** Reply tokens. */
  outputTokens: Schema.Finite,
  /** Price, in millionths of the currency. Absent if no price is known and no budget limits money. */
  money: Schema.optionalKey(Schema.Finite),
  /**
   * Remaining amounts of the limits around the run, minus the reservations of running requests: for each limit, the
   * smallest.
   */
  left: Schema.Struct({
    /** Requests. Absent if unlimited. */
    calls: Schema.optionalKey(Schema.Finite),
    /** Request tokens. Absent if unlimited. */
    inputTokens: Schema.optionalKey(Schema.Finite),
    /** Reply tokens. Absent if unlimited. */
    outputTokens: Schema.optionalKey(Schema.Finite),
    /** Request and reply tokens together. Absent if unlimited. */
    tokens: Schema.optionalKey(Schema.Finite),
    /** Millionths of the currency. Absent if money is unlimited. */
    money: Schema.optionalKey(Schema.Finite)
  })
})) {}

/** Fields of a result besides its thread and steps. */
const chatEnd = {
  /** Reason why the run ended. Match on its `_tag`. */
  outcome: Outcome,
  /** Outcome as one word, such as `"completed"` or `"max_turns"`. Derived from `outcome`. */
  haltedReason: Schema.String,
  /** Question waiting for the user. Derived from `outcome`; absent unless that is `AskUser`. */
  pendingQuestion: Schema.optionalKey(Schema.String),
  /** Asking call, by id. Derived from `outcome`, for `AskUser` only. */
  pendingToolCallId: Schema.optionalKey(Schema.String),
  /** All waiting calls, in call order. Absent without such calls. */
  suspensions: Schema.optionalKey(Schema.Array(Suspension)),
  /** Usage of all steps. `null` if nothing was reported. */
  usage: Schema.NullOr(Response.Usage),
  /**
   * Usage of the run, including runs started by its handlers, at any depth and with any end, and, in a session,
   * including approved calls' runs. `null` if nothing was reported.
   */
  totalUsage: Schema.NullOr(Response.Usage),
  /** Share of `totalUsage` used by those other runs. Absent if they reported nothing. */
  nestedUsage: Schema.optionalKey(Response.Usage),
  /** End of the tool loop under `structuredFinalize`. Absent without that option. */
  structuredFinalize: Schema.optionalKey(StructuredFinalize),
  /**
   * Reason for closing the tool loop with an answer without tools: `"max_turns"`, `"deadline"`, or a rule's reason.
   * Absent for any other end.
   */
  finalized: Schema.optionalKey(Schema.String),
  /** Values added to the context by all steps. Absent without such values. */
  contextUpdate: Schema.optionalKey(ContextUpdate),
  /** Code still running after the grace period. Absent if everything stopped. */
  abandoned: Schema.optionalKey(Schema.Array(Abandoned)),
  /**
   * Tools withheld from the model, because their parameters cannot be written as one object, as every provider
   * requires. Absent if all tools were offered.
   */
  leftOutTools: Schema.optionalKey(Schema.Array(LeftOutTool)),
  /** Typed answer, encoded. Absent without the option `output`, or if the run has no answer. */
  output: Schema.optionalKey(Json.Opaque),
  /** Amount spent by the run. Absent without a budget around the run. */
  spent: Schema.optionalKey(Spent),
  /** Data attached to the result by you. `{}` by default. */
  metadata: Json.Metadata
} as const

/**
 * Result of a run.
 *
 * @category schemas
 */
export class ChatResult extends Schema.Opaque<ChatResult>()(Schema.Struct({
  /** Thread after the run. */
  thread: Thread.Thread,
  /** The model's last reply. `null` without any step. */
  finalResponse: Schema.NullOr(Response.Response),
  /** Steps, in order. */
  steps: Schema.Array(StepResult),
  ...chatEnd
})) {}

/**
 * The handler produced a value.
 *
 * @category schemas
 */
export class CallSucceeded extends Schema.Opaque<CallSucceeded>()(Schema.TaggedStruct("Ok", {
  /** Value, before encoding. */
  value: Json.Opaque
})) {}

/**
 * The call failed.
 *
 * @category schemas
 */
export class CallFailed extends Schema.Opaque<CallFailed>()(Schema.TaggedStruct("Error", {
  /** Failure reported by the handler, or a `Tool.ToolError`. */
  error: Json.Opaque
})) {}

/**
 * The handler asks the user.
 *
 * @category schemas
 */
export class CallAsked extends Schema.Opaque<CallAsked>()(Schema.TaggedStruct("AskUser", {
  /** Question to the user. */
  question: Schema.String,
  /** Choices offered to the user, or other data from the handler for a user interface. `[]` by default. */
  opts: Schema.Array(Json.Opaque),
  /** JSON Schema for the answer to a typed question. */
  answerSchema: Schema.optionalKey(AnswerSchema),
  /** Time the question waits, in milliseconds from the moment of asking. Absent without a time limit. */
  expiresInMillis: Schema.optionalKey(Schema.Finite),
  /** Answer after expiry. */
  defaultAnswer: Schema.optionalKey(Json.Opaque)
})) {}

/**
 * The handler ends the run.
 *
 * @category schemas
 */
export class CallHalted extends Schema.Opaque<CallHalted>()(Schema.TaggedStruct("Halt", {
  /** Reason given by the handler. */
  reason: Schema.String,
  /** The handler's last result, before encoding. */
  result: Json.Opaque
})) {}

/**
 * Outcome of a call: a `Tool.Outcome` as plain data.
 *
 * @category schemas
 */
export const CallOutcome = Schema.Opaque<CallOutcome>()(
  Schema.Union([CallSucceeded, CallFailed, CallAsked, CallHalted])
)

/**
 * @see {@link CallOutcome}
 *
 * @category models
 */
export type CallOutcome = CallSucceeded | CallFailed | CallAsked | CallHalted

const replay = {
  /** `true` for events from before the run was resumed, emitted again. Absent otherwise. */
  replayed: Schema.optionalKey(Schema.Boolean)
} as const

/**
 * A reply begins.
 *
 * @category schemas
 */
export class MessageStarted extends Schema.Opaque<MessageStarted>()(Schema.TaggedStruct("MessageStarted", {
  /** Message at its beginning: an assistant message, usually without content. */
  message: Message.Message,
  ...replay
})) {}

/**
 * A piece of reply text.
 *
 * @category schemas
 */
export class TextDelta extends Schema.Opaque<TextDelta>()(Schema.TaggedStruct("TextDelta", {
  /** Text block id assigned by the provider. `null` without an id. */
  id: Schema.NullOr(Schema.String),
  /** Text to append to the preceding pieces. */
  delta: Schema.String,
  ...replay
})) {}

/**
 * Complete text of the reply. It replaces the pieces.
 *
 * @category schemas
 */
export class TextCompleted extends Schema.Opaque<TextCompleted>()(Schema.TaggedStruct("TextCompleted", {
  /** Text block id assigned by the provider. `null` without an id. */
  id: Schema.NullOr(Schema.String),
  /** Complete text. */
  text: Schema.String,
  ...replay
})) {}

/**
 * A piece of model reasoning.
 *
 * @category schemas
 */
export class ReasoningDelta extends Schema.Opaque<ReasoningDelta>()(Schema.TaggedStruct("ReasoningDelta", {
  /** Reasoning block id assigned by the provider. `null` without an id. */
  id: Schema.NullOr(Schema.String),
  /** Text to append to the preceding pieces. */
  delta: Schema.String,
  ...replay
})) {}

/**
 * The model begins a call.
 *
 * @category schemas
 */
export class ToolCallStarted extends Schema.Opaque<ToolCallStarted>()(Schema.TaggedStruct("ToolCallStarted", {
  /** Call id. In a run it is unique in the thread, and never changes. In adapter events it is unique in the reply. */
  id: Schema.String,
  /** Tool name. */
  name: Schema.String,
  /** `true` for the call giving the run's typed answer (`Output`). Absent for any other call. */
  output: Schema.optionalKey(Schema.Boolean),
  ...replay
})) {}

/**
 * A piece of a call's arguments.
 *
 * @category schemas
 */
export class ToolCallDelta extends Schema.Opaque<ToolCallDelta>()(Schema.TaggedStruct("ToolCallDelta", {
  /** Call id. */
  id: Schema.String,
  /** JSON text to append to the preceding pieces. */
  argumentsDelta: Schema.String
})) {}

/**
 * A call's arguments are final.
 *
 * @category schemas
 */
export class ToolCallCompleted extends Schema.Opaque<ToolCallCompleted>()(Schema.TaggedStruct("ToolCallCompleted", {
  /** Call id. */
  id: Schema.String,
  /** Tool name. */
  name: Schema.String,
  /** Parsed arguments. `{}` if lost. */
  arguments: Schema.Record(Schema.String, Json.Opaque),
  /** JSON text of the arguments before parsing. */
  rawArguments: Schema.String,
  /** Reason not to trust the arguments. Absent for trustworthy arguments. */
  argumentsLost: Schema.optionalKey(Message.ArgumentsLost),
  /** `true` for a call run by the provider itself. */
  providerExecuted: Schema.optionalKey(Schema.Boolean),
  /**
   * Metadata added to the call by the adapter, and the provider's id as `duplicateOf` if the call has another id.
   * Absent without metadata.
   */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)),
  ...replay
})) {}

/**
 * The reply has ended.
 *
 * @category schemas
 */
export class MessageCompleted extends Schema.Opaque<MessageCompleted>()(Schema.TaggedStruct("MessageCompleted", {
  /** Complete message. */
  message: Message.Message,
  /** Reason why the reply ended, in one vocabulary for all providers. `null` without a reason. */
  finishReason: Schema.NullOr(Response.FinishReason),
  /** The provider's own word for the reason. Absent without a reason. */
  rawFinishReason: Schema.optionalKey(Schema.String),
  /**
   * `true` if the provider paused the reply before its end: it continues once the thread, including this reply, is sent
   * back. Absent for any other reply.
   */
  paused: Schema.optionalKey(Schema.Boolean),
  /** Usage of the reply. Absent if the provider reports nothing. */
  usage: Schema.optionalKey(Response.Usage),
  /** Reply id assigned by the provider. Absent without an id. */
  responseId: Schema.optionalKey(Schema.String),
  /** The replying model, as named by the provider. Absent if unknown. */
  model: Schema.optionalKey(Schema.String),
  /** The replying provider, under `Adapter.fallback`. Absent for any other adapter. */
  provider: Schema.optionalKey(Schema.String),
  /** Further adapter data, under the adapter's own names. Absent without data. */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)),
  ...replay
})) {}

/**
 * Other data sent by the provider. Shown with `includeRawChunks`, and always if it reports usage.
 *
 * @category schemas
 */
export class RawChunk extends Schema.Opaque<RawChunk>()(Schema.TaggedStruct("RawChunk", {
  /** The chunk as sent. Only `{ usage: { … } }` is read: it becomes the response's usage. */
  chunk: Json.Opaque
})) {}

/**
 * The reply broke after its first event.
 *
 * @category schemas
 */
export class ErrorEvent extends Schema.Opaque<ErrorEvent>()(Schema.TaggedStruct("Error", {
  /** The breaking error: an `Adapter.AdapterError`, or the value of a defect. */
  error: Json.Opaque
})) {}

const adapterEvents = [
  MessageStarted,
  TextDelta,
  TextCompleted,
  ReasoningDelta,
  ToolCallStarted,
  ToolCallDelta,
  ToolCallCompleted,
  MessageCompleted,
  RawChunk,
  ErrorEvent
] as const

/**
 * An event emitted by an adapter: the model's message from `MessageStarted` to `MessageCompleted`.
 *
 * @category schemas
 */
export const AdapterEvent = Schema.Union(adapterEvents).pipe(Schema.toTaggedUnion("_tag"))

/**
 * @see {@link AdapterEvent}
 *
 * @category models
 */
export type AdapterEvent =
  | MessageStarted
  | TextDelta
  | TextCompleted
  | ReasoningDelta
  | ToolCallStarted
  | ToolCallDelta
  | ToolCallCompleted
  | MessageCompleted
  | RawChunk
  | ErrorEvent

/**
 * A call waits for its turn. Emitted at most once, before the call starts, requests an approval, or is answered without
 * a start. A call whose turn comes immediately has no such event.
 *
 * @category schemas
 */
export class ToolQueued extends Schema.Opaque<ToolQueued>()(Schema.TaggedStruct("ToolQueued", {
  /** Call id. */
  id: Schema.String,
  /** Tool name. */
  name: Schema.String,
  /**
   * First reason for waiting: `"permit"` for a place in its run or in the application's `Limits`, `"key"` for a permit
   * by name (`Tool.Options.limits`), `"exclusive"` for the end of a call running alone, or for the moment to run alone
   * itself.
   */
  reason: Schema.Literals(["permit", "key", "exclusive"]),
  /** Permit name if the reason is `"key"`. Absent otherwise. */
  key: Schema.optionalKey(Schema.String),
  /**
   * Ids of this run's calls ahead, at most three: those holding the places or the permit, and those running alone
   * first. Absent without such calls.
   */
  behind: Schema.optionalKey(Schema.Array(Schema.String)),
  /**
   * `true` if another run holds the awaited place or permit: a run inside a handler, or a run beside this one. Absent
   * otherwise.
   */
  elsewhere: Schema.optionalKey(Schema.Boolean)
})) {}

/**
 * A call's finished wait for its turn.
 *
 * @category schemas
 */
export class Waited extends Schema.Opaque<Waited>()(Schema.Struct({
  /** Reason for the wait, as in `ToolQueued`. */
  reason: ToolQueued.fields.reason,
  /** Permit name if the reason is `"key"`. Absent otherwise. */
  key: Schema.optionalKey(Schema.String),
  /** Ids of this run's calls ahead, at most three. Absent without such calls. */
  behind: Schema.optionalKey(Schema.Array(Schema.String)),
  /** `true` if another run held the awaited place or permit. Absent otherwise. */
  elsewhere: Schema.optionalKey(Schema.Boolean),
  /** Length of the wait, in milliseconds. */
  millis: Schema.Finite
})) {}

/**
 * A handler starts.
 *
 * @category schemas
 */
export class ToolExecutionStarted extends Schema.Opaque<ToolExecutionStarted>()(
  Schema.TaggedStruct("ToolExecutionStarted", {
    /** Call id. */
    id: Schema.String,
    /** Tool name. */
    name: Schema.String,
    /** Arguments for the handler: as sent by the model, or as changed by an approval. */
    arguments: Schema.Record(Schema.String, Json.Opaque),
    /**
     * Number of the starting attempt; with `replayed`, the last attempt started before. Absent for the first. An
     * attempt that starts after a resume has its own event. Further attempts by the tool's `retry` emit no event.
     */
    attempt: Schema.optionalKey(Schema.Int),
    /**
     * Waits for the call's turn, in order: for a place, for each permit by name, for a place in `Limits`. Absent for a
     * call whose turn came immediately.
     */
    waited: Schema.optionalKey(Schema.Array(Waited)),
    ...replay
  })
) {}

/**
 * A handler reports progress.
 *
 * @category schemas
 */
export class ToolProgress extends Schema.Opaque<ToolProgress>()(Schema.TaggedStruct("ToolProgress", {
  /** Call id. */
  id: Schema.String,
  /** Tool name. */
  name: Schema.String,
  /** Progress reported by the handler. A tool made by `Tool.fromChat` reports its run's events. */
  progress: Json.Opaque,
  /** `true` if earlier progress was dropped, because nothing read it in time. Absent otherwise. */
  missed: Schema.optionalKey(Schema.Literal(true))
})) {}

/**
 * A handler has ended, or a call unable to run is answered.
 *
 * @category schemas
 */
export class ToolExecutionCompleted extends Schema.Opaque<ToolExecutionCompleted>()(
  Schema.TaggedStruct("ToolExecutionCompleted", {
    /** Call id. */
    id: Schema.String,
    /** Tool name. */
    name: Schema.String,
    /** Outcome of the call, before encoding and cutting. */
    result: CallOutcome,
    /** Values added to the context by the handler. Absent without such values. */
    contextUpdate: Schema.optionalKey(ContextUpdate),
    /** Name, message and plain fields of a dying handler's defect, even if the error policy replaced the result. */
    cause: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)),
    ...replay
  })
) {}

/**
 * A call has its answer for the model. With `settled` it closes a call already open: either a question withdrawn by its
 * own run, after its `AskUserRequested`, or a call answered, denied or submitted since the last run, at the beginning
 * of the continuing run.
 *
 * @category schemas
 */
export class ToolResultEncoded extends Schema.Opaque<ToolResultEncoded>()(Schema.TaggedStruct("ToolResultEncoded", {
  /** Call id. */
  id: Schema.String,
  /** Content for the model: the encoded result, cut to the result limit. */
  content: Content,
  /** `true` if the answer is an error, else absent. */
  isError: Schema.optionalKey(Schema.Boolean),
  /**
   * Reason of the `Tool.ToolError` in the answer, such as `"denied"`, or `"cancelled"` for a cancelled sub-agent.
   * Absent for results and for failures reported by a handler.
   */
  code: Schema.optionalKey(ToolOutcomes.ToolError.fields.reason),
  /**
   * Length of the complete text in characters (UTF-16 code units), if `content` was cut. Absent for uncut content; a
   * result submitted to a session has the cut notice only in its text.
   */
  originalLength: Schema.optionalKey(Schema.Int),
  /** `true` if it closes a call already open. Absent otherwise. */
  settled: Schema.optionalKey(Schema.Boolean),
  /**
   * Sender of a denial for a waiting call, as named by the program. Absent for any other answer, and if the program
   * names no sender.
   */
  by: Schema.optionalKey(Schema.String),
  /** Reason for such a denial. Absent without a reason. */
  detail: Schema.optionalKey(Schema.String),
  ...replay
})) {}

/**
 * A handler asks the user.
 *
 * @category schemas
 */
export class AskUserRequested extends Schema.Opaque<AskUserRequested>()(Schema.TaggedStruct("AskUserRequested", {
  /** Call id. */
  toolCallId: Schema.String,
  /** Tool name. */
  toolName: Schema.String,
  /** Question to the user. */
  question: Schema.String,
  /** Choices offered to the user, or other data from the handler for a user interface. `[]` by default. */
  opts: Schema.Array(Json.Opaque),
  /** JSON Schema for the answer to a typed question. */
  answerSchema: Schema.optionalKey(AnswerSchema),
  /** Expiry time of the question, in milliseconds since 1970. Absent without a time limit. */
  expiresAt: Schema.optionalKey(Schema.Finite),
  /** Answer after expiry. */
  defaultAnswer: Schema.optionalKey(Json.Opaque),
  ...replay
})) {}

/**
 * A call waits for approval. Until then it has no other event, except possibly `ToolQueued`.
 *
 * @category schemas
 */
export class ToolApprovalRequested extends Schema.Opaque<ToolApprovalRequested>()(
  Schema.TaggedStruct("ToolApprovalRequested", {
    /** Call id. */
    toolCallId: Schema.String,
    /** Tool name. */
    toolName: Schema.String,
    /** Arguments, as sent by the model. */
    arguments: Schema.Record(Schema.String, Json.Opaque),
    /**
     * Expiry time of the request, in milliseconds since 1970: the call then counts as denied. Absent without a time
     * limit.
     */
    expiresAt: Schema.optionalKey(Schema.Finite),
    /** Extent to which the session may remember the approval. Absent if it may not. */
    remember: Schema.optionalKey(Rememberable),
    ...replay
  })
) {}

/**
 * A call waits for answers from outside. Either its nested run waits; its handler asks the user and starts again with
 * the answer (`resume` of `Tool.askUser`); or the call had started when its process ended and waits for a verdict
 * (`afterCrash: "ask"`). Once a nested run has its answers, the handler starts again, and that run continues from its
 * open calls.
 *
 * @category schemas
 */
export class ToolSuspended extends Schema.Opaque<ToolSuspended>()(Schema.TaggedStruct("ToolSuspended", {
  /** Call id. */
  toolCallId: Schema.String,
  /** Tool name. */
  toolName: Schema.String,
  /** Open calls: the call itself, or its nested run's calls, each under the id path leading there. */
  suspensions: Schema.Array(Suspension),
  ...replay
})) {}

/**
 * A call ends the run: by `Tool.halt`, or as a failure under `onToolError: "halt"`.
 *
 * @category schemas
 */
export class ToolHalt extends Schema.Opaque<ToolHalt>()(Schema.TaggedStruct("ToolHalt", {
  /** Call id. */
  toolCallId: Schema.String,
  /** Reason given by the handler, or `"tool_error"`. */
  reason: Schema.String,
  /** The handler's last result, unchanged. */
  result: Json.Opaque,
  /** Result content for the model. */
  content: Schema.optionalKey(Content),
  /** Reason of the `Tool.ToolError` ending the run. Absent for any other halt. */
  code: Schema.optionalKey(ToolOutcomes.ToolError.fields.reason),
  /** Defect of the `onToolError` function, if it died. */
  onToolErrorException: Schema.optionalKey(Json.Opaque),
  ...replay
})) {}

const runnerEvents = [
  ToolQueued,
  ToolExecutionStarted,
  ToolProgress,
  ToolExecutionCompleted,
  ToolResultEncoded,
  AskUserRequested,
  ToolApprovalRequested,
  ToolSuspended,
  ToolHalt
] as const

const Notes = Schema.Record(Schema.String, Json.Opaque)

const stepEnd = {
  /** Model reply. */
  response: Response.Response,
  /**
   * Messages added to the thread since the previous step: the model's message, the answers to its calls, and any
   * messages inserted before by the run itself.
   */
  messages: Schema.Array(Message.Message),
  /** Mode of the step. */
  mode: Mode,
  /** `true` if the reply asks for tools, under `mode: "manual"`. */
  isToolTurn: Schema.optionalKey(Schema.Boolean),
  /** Calls to manual tools, for the caller to answer. */
  manualToolCalls: Schema.Array(Message.ToolCall),
  /** `true` if the model has nothing more to do. */
  done: Schema.optionalKey(Schema.Boolean),
  /** Halt by which a tool ended the run. Absent without a halt. */
  halt: Schema.optionalKey(Halt),
  /** All waiting calls, in call order. Absent without such calls. */
  suspensions: Schema.optionalKey(Schema.Array(Suspension)),
  /**
   * Rule notes about the step, by rule name; `last` holds the reason for making this the last step. Absent without
   * notes.
   */
  notes: Schema.optionalKey(Notes)
} as const

const behindLast = {
  /** Messages added to the thread after the last step, such as the question ending the run. Absent without messages. */
  messages: Schema.optionalKey(Schema.Array(Message.Message)),
  /** Rule notes kept for the session, by rule name. Absent without notes. */
  kept: Schema.optionalKey(Notes)
} as const

/**
 * The reply is discarded, and its request repeated: the reply broke (`retryReply`, `Adapter.fallback`), or a rule asks
 * again. Discard the reply's events, from its `MessageStarted` on. No tool has started because of such a reply.
 *
 * @category schemas
 */
export class StepReset extends Schema.Opaque<StepReset>()(Schema.TaggedStruct("StepReset", {
  /** Error breaking the reply. `undefined`, in JSON `null`, for a whole reply. */
  error: Json.Opaque
})) {}

/**
 * Another adapter of an `Adapter.fallback` takes over the request, because the previous adapter failed before saying
 * something. It follows the request's `StepReset`.
 *
 * @category schemas
 */
export class ModelSwitched extends Schema.Opaque<ModelSwitched>()(Schema.TaggedStruct("ModelSwitched", {
  /** Name of the failed candidate. */
  from: Schema.String,
  /** Name of the next candidate. */
  to: Schema.String,
  /** Error of the failed candidate. */
  error: Json.Opaque
})) {}

/**
 * An inbox message is delivered: the step's request contains the message. Emitted before the reply's events.
 *
 * @category schemas
 */
export class MessageDelivered extends Schema.Opaque<MessageDelivered>()(Schema.TaggedStruct("MessageDelivered", {
  /** Message id. */
  id: Schema.String,
  /** The message. */
  message: Message.Message,
  /** Index of the step in the run, from 0. */
  stepIndex: Schema.Int
})) {}

/**
 * An inbox message is refused: the run ends without the message. Emitted before the end of the run.
 *
 * @category schemas
 */
export class MessageRefused extends Schema.Opaque<MessageRefused>()(Schema.TaggedStruct("MessageRefused", {
  /** Message id. */
  id: Schema.String,
  /** The message. */
  message: Message.Message,
  /**
   * Reason: `"finished"`, `"waiting"`, `"stopped"`, `"failed"`, `"max_turns"`, `"halted"`, or the rule ending the run.
   */
  reason: Schema.String
})) {}

/**
 * A part of an arriving typed answer: the JSON so far. It is not validated; texts and lists grow, and a number appears
 * once complete. Emitted at most once per 50 ms, never beyond 64 KiB of text, and never recorded.
 *
 * @category schemas
 */
export class OutputPartial extends Schema.Opaque<OutputPartial>()(Schema.TaggedStruct("OutputPartial", {
  /** Answer so far. */
  value: Json.Opaque
})) {}

/**
 * The run's typed answer is accepted: the result's `output`, encoded. Emitted once, and never recorded.
 *
 * @category schemas
 */
export class OutputCompleted extends Schema.Opaque<OutputCompleted>()(Schema.TaggedStruct("OutputCompleted", {
  /** Answer, encoded. */
  value: Json.Opaque
})) {}

/**
 * A step has ended.
 *
 * @category schemas
 */
export class StepCompleted extends Schema.Opaque<StepCompleted>()(Schema.TaggedStruct("StepCompleted", {
  ...stepEnd,
  /** Whole thread after the step. */
  thread: Thread.Thread
})) {}

/**
 * The run has ended. Last event in a stream read to its end.
 *
 * @category schemas
 */
export class ChatCompleted extends Schema.Opaque<ChatCompleted>()(Schema.TaggedStruct("ChatCompleted", {
  ...behindLast,
  /** Result, as from `Chat.run`. */
  result: ChatResult
})) {}

/**
 * The result in a {@link WireChat}: a `ChatResult` without the contents of earlier events.
 *
 * @category schemas
 */
export class WireResult extends Schema.Opaque<WireResult>()(Schema.Struct({
  ...chatEnd,
  /** The model's last reply. Absent if equal to the last step's. */
  finalResponse: Schema.optionalKey(Schema.NullOr(Response.Response))
})) {}

/**
 * A `StepCompleted` decoded from its wire form: without the thread.
 *
 * @category schemas
 */
export class WireStep extends Schema.Opaque<WireStep>()(Schema.TaggedStruct("StepCompleted", stepEnd)) {}

/**
 * A `ChatCompleted` decoded from its wire form: without the thread and the steps.
 *
 * @category schemas
 */
export class WireChat extends Schema.Opaque<WireChat>()(Schema.TaggedStruct("ChatCompleted", {
  ...behindLast,
  /** Result of the run. */
  result: WireResult
})) {}

/**
 * Every event. A tool call emits `ToolQueued` if it waits for its turn, `ToolExecutionStarted` when its handler starts,
 * `ToolProgress` while it runs, `ToolExecutionCompleted` with the raw outcome, and last one of `ToolResultEncoded`,
 * `AskUserRequested` or `ToolHalt`. A call unable to run is answered without a start. A call waiting for approval emits
 * `ToolApprovalRequested` in place of everything after `ToolQueued`. `ToolSuspended` replaces the last two events of a
 * call whose nested run waits, whose handler asks with `resume`, or whose unknown effect waits for a verdict.
 *
 * **Example** (Matching on events)
 *
 * ```ts import.meta.vitest
 * import { Event } from "heddle"
 *
 * const event: Event.Event = { _tag: "TextDelta", id: null, delta: "Hello" }
 *
 * Event.guards.TextDelta(event) && event.delta // => "Hello"
 * ```
 *
 * @category schemas
 */
export const Event = Schema.Union([
  ...adapterEvents,
  ...runnerEvents,
  StepReset,
  ModelSwitched,
  MessageDelivered,
  MessageRefused,
  OutputPartial,
  OutputCompleted,
  StepCompleted,
  ChatCompleted
]).pipe(
  Schema.toTaggedUnion("_tag")
)

/**
 * @see {@link Event}
 *
 * @category models
 */
export type Event =
  | AdapterEvent
  | ToolQueued
  | ToolExecutionStarted
  | ToolProgress
  | ToolExecutionCompleted
  | ToolResultEncoded
  | AskUserRequested
  | ToolApprovalRequested
  | ToolSuspended
  | ToolHalt
  | StepReset
  | ModelSwitched
  | MessageDelivered
  | MessageRefused
  | OutputPartial
  | OutputCompleted
  | StepCompleted
  | ChatCompleted

/**
 * The event with the given tag.
 *
 * @category utility types
 */
export type Of<Tag extends Event["_tag"]> = Extract<Event, { readonly _tag: Tag }>

/**
 * One guard per tag. A guard reads only the tag: events are trusted, not validated again.
 *
 * **Example** (Picking the events of one tag)
 *
 * ```ts import.meta.vitest
 * import { Event } from "heddle"
 *
 * const events: ReadonlyArray<Event.Event> = [
 *   { _tag: "TextDelta", id: null, delta: "Hel" },
 *   { _tag: "RawChunk", chunk: {} },
 *   { _tag: "TextDelta", id: null, delta: "lo" }
 * ]
 *
 * events.filter(Event.guards.TextDelta).map((event) => event.delta).join("") // => "Hello"
 * ```
 *
 * @category guards
 */
export const guards = Object.fromEntries(
  Event.discriminants.map((tag) => [tag, (event: { readonly _tag: string }) => event._tag === tag])
) as { readonly [Tag in Event["_tag"]]: (event: { readonly _tag: string }) => event is Of<Tag> }

/**
 * Handles every tag; the compiler names missing tags.
 *
 * **Example** (One case for each tag)
 *
 * ```ts import.meta.vitest
 * import { Event } from "heddle"
 *
 * const event: Event.Event = { _tag: "TextDelta", id: null, delta: "Hello" }
 *
 * // `Event.match` asks for a case of every tag; `Event.Event.matchOrElse` takes those that you handle.
 * Event.Event.matchOrElse(event, { TextDelta: ({ delta }) => delta }, ({ _tag }) => _tag) // => "Hello"
 * ```
 *
 * @category matching
 */
export const match: typeof Event.match = Event.match

/**
 * An event as plain JSON, written by {@link toWire}.
 *
 * @category models
 */
export type Wire = { readonly [key: string]: Schema.Json }

const WireSchema = Schema.Union([
  ...adapterEvents,
  ...runnerEvents,
  StepReset,
  ModelSwitched,
  MessageDelivered,
  MessageRefused,
  OutputPartial,
  OutputCompleted,
  WireStep,
  WireChat
])

/**
 * An event decoded from its wire form. It equals the emitted event, with these exceptions: `StepCompleted` has the
 * `messages` of its step and no `thread`, and the result in `ChatCompleted` has neither `thread` nor `steps`, and no
 * `finalResponse` if equal to the last step's. `Collector.fromWire` reassembles these.
 *
 * @category models
 */
export type WireEvent = Exclude<Event, StepCompleted | ChatCompleted> | WireStep | WireChat

/**
 * The value is not an event in wire form. The message names the field.
 *
 * @category errors
 */
export class WireError extends Schema.TaggedError<WireError>("heddle/Event/WireError")("WireError", {
  /** The wrong field, and its fault. */
  detail: Schema.String
}) {
  override get message(): string {
    return `not the wire form of an event: ${this.detail}`
  }
}

/**
 * Converts an event to plain JSON, for logs, servers and pages. Applying `JSON.stringify` to the event itself loses
 * errors, fails for some values, and repeats the whole thread in each step.
 *
 * **Details**
 *
 * Total: it never throws, and its output survives `JSON.stringify` and `JSON.parse` unchanged, whatever handlers and
 * adapters put into the event. The size of a run's events grows with its activity:
 *
 * - `StepCompleted` has its step's messages in place of the thread. `ChatCompleted` has no thread, no steps, and no
 *   response equal to the last step's. The same applies to nested runs' events, inside their call's progress.
 * - An error has its `name`, its `message`, and its own fields fit for a model: never its cause, its stack or a
 *   request. From a cause only the reasons remain.
 * - A BigInt becomes decimal text, `NaN` and the infinities become their names, bytes become base64, a map becomes a
 *   list of its entries, and a set a list of its values. A value with `toJSON` becomes the result of that method, a
 *   date its ISO text. Functions, cycles, values throwing when read, and values deeper than 512 levels become short
 *   texts such as `"[circular]"`. Members named `__proto__` are omitted, and so is the rest of a caller's value beyond
 *   64 Mi characters, where each value inside counts as 64.
 *
 * **Example** (Sending events to a page)
 *
 * ```ts import.meta.vitest
 * import { Chat, Collector, Event } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 * const lines = await Effect.runPromise(
 *   Chat.stream("Hi").pipe(
 *     Stream.map((event) => JSON.stringify(Event.toWire(event))),
 *     Stream.runCollect,
 *     Effect.provide(model)
 *   )
 * )
 *
 * const wires = lines.map((line) => JSON.parse(line))
 * wires.map(Event.fromWire).some((event) => event._tag === "TextDelta" && event.delta === "Hello") // => true
 * Collector.fromWire("Hi", wires).thread.messages.map((message) => message.content) // => ["Hi", "Hello"]
 * ```
 *
 * @category wire
 */
export const toWire = (event: Event | WireEvent): Wire => EventJson.toJson(event) as Wire

const decodeWire = Schema.decodeUnknownResult(WireSchema)

/**
 * Restores an event written by {@link toWire}. The caller's values (arguments, results, progress, errors) come back as
 * the plain data written. A nested run's event stays in wire form inside its call's progress: pass it to this function
 * in turn. Throws a {@link WireError} for anything else.
 *
 * **Example** (Reading a line of a log)
 *
 * ```ts import.meta.vitest
 * import { Event } from "heddle"
 *
 * const event = Event.fromWire(JSON.parse('{"_tag":"TextDelta","id":null,"delta":"Hello"}'))
 *
 * event._tag === "TextDelta" && event.delta // => "Hello"
 * ```
 *
 * @category wire
 */
export const fromWire = (wire: unknown): WireEvent => {
  // The wire form may come from outside, in any shape.
  const decoded = decodeWire(EventJson.toJson(wire))
  if (Result.isFailure(decoded)) throw new WireError({ detail: decoded.failure.message })
  return decoded.success
}

/**
 * Returns the event in a form that may leave a server, or `undefined` if it is not published. An allow list admits:
 * text, names, ids, arguments and answers as permitted by `publish`, usage, the outcome, questions and approvals, and
 * for errors a code and a fixed text. The result never contains a raw result, a context update, a cause, a thread,
 * reply metadata or a raw chunk.
 *
 * **Details**
 *
 * Events of a run inside a handler, which are their call's progress, are published in the same way, and never to a
 * larger extent than that call: if only the call's name is published, so are their names, without their text.
 *
 * **Example** (The names of tools, but not what they say)
 *
 * ```ts import.meta.vitest
 * import { Event } from "heddle"
 *
 * const calls = new Map()
 * const publish = (tool: string) => tool === "search" ? "all" : "names"
 * const events: ReadonlyArray<Event.Event> = [
 *   { _tag: "ToolExecutionStarted", id: "c1", name: "pay", arguments: { card: "4111" } },
 *   { _tag: "ToolResultEncoded", id: "c1", content: "paid with 4111" }
 * ]
 *
 * events.map((event) => Event.toPublic(event, { publish, calls }))
 * // => [{ _tag: "ToolExecutionStarted", id: "c1", name: "pay" }, { _tag: "ToolResultEncoded", id: "c1" }]
 * ```
 *
 * @category public form
 */
export const toPublic = (
  event: Event | WireEvent,
  options: Public.PublicOptions = {}
): Public.PublicEvent | undefined => Public.toPublic(event, options)
