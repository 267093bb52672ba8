/**
 * Everything a run emits, as one closed union of plain data, and the results those events fold into. An adapter emits
 * the model's part, the runner the tools', a step ends in exactly one `StepCompleted` and a chat in exactly one
 * `ChatCompleted`. Events are literals: nothing validates them on the way, and all of them round-trip through JSON.
 *
 * @since 0.1.0
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
 * @since 0.1.0
 */
export class QuestionHalt extends Schema.Opaque<QuestionHalt>()(Schema.Struct({
  /** The kind of the halt. */
  haltedReason: Schema.Literal("ask_user"),
  /** The question, as the handler put it. */
  pendingQuestion: Schema.String,
  /** The id of the call that asks. */
  pendingToolCallId: Schema.String,
  /** The choices of the user, or whatever the handler gave a user interface. `[]` by default. */
  askUserOpts: Schema.Array(Json.Opaque)
})) {}

/**
 * A call failed, and `onToolError` decided to halt.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ErrorHalt extends Schema.Opaque<ErrorHalt>()(Schema.Struct({
  /** The kind of the halt. */
  haltedReason: Schema.Literal("tool_error"),
  /** The id of the call that failed. */
  haltToolCallId: Schema.String,
  /** The defect of the `onToolError` function, if it died. */
  onToolErrorException: Schema.optionalKey(Json.Opaque)
})) {}

/**
 * A handler succeeded with `Tool.halt(reason, result)`.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ReasonHalt extends Schema.Opaque<ReasonHalt>()(Schema.Struct({
  /** The handler's own reason. */
  haltedReason: Schema.String,
  /** The id of the call that halted. */
  haltToolCallId: Schema.String,
  /** The handler's last result, as it gave it. */
  haltResult: Json.Opaque
})) {}

/**
 * The way in which a tool ended a turn, and with it the run: a question, a failure under `onToolError: "halt"`, or a
 * halt of its own.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Halt = Schema.Opaque<Halt>()(Schema.Union([QuestionHalt, ErrorHalt, ReasonHalt]))

/**
 * @see {@link Halt}
 *
 * @category models
 * @since 0.1.0
 */
export type Halt = QuestionHalt | ErrorHalt | ReasonHalt

const AnswerSchema = Schema.Record(Schema.String, Json.Opaque)

const Content = Schema.Union([Schema.String, Schema.Array(Message.Part)])

const ContextUpdate = Schema.Record(Schema.String, Json.Opaque)

const Mode = Schema.Literals(["auto", "manual"])

/**
 * An approval that may be remembered.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Rememberable extends Schema.Opaque<Rememberable>()(Schema.Struct({
  /** The calls for which it may be: all of the tool, or those with the same arguments. */
  scope: Schema.Literals(["tool", "arguments"]),
  /** The hash of the tool: it is not remembered for another one of its name. */
  tool: Schema.String
})) {}

/**
 * A call that waits for an answer from outside of the run.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Suspension extends Schema.Opaque<Suspension>()(Schema.Struct({
  /**
   * The id under which it is answered: that of the call, or, of a call of a nested run, the ids of the calls that lead
   * to it, joined by `/`. In an id, `%`, `/` and `~` are written as `%25`, `%2F` and `%7E`.
   */
  id: Schema.String,
  /** The ids of the calls that lead to a call of a nested run, from this run's call to its own. */
  path: Schema.optionalKey(Schema.Array(Schema.String)),
  /**
   * The answer that the call waits for: `"question"` for the user's answer, `"approval"` for permission to run,
   * `"manual"` for a result of yours, `"unknown"` for a verdict about a call that had started when its process ended:
   * `Session.answer` with its result, `Session.approve` to try it again, `Session.deny` to answer it as failed.
   */
  kind: Schema.Literals(["question", "approval", "manual", "unknown"]),
  /** The call. */
  toolCall: Message.ToolCall,
  /** The text to show, of a question and of a call whose effect is not known. */
  question: Schema.optionalKey(Schema.String),
  /** The choices of the user, of a question, or whatever the handler gave a user interface. */
  opts: Schema.optionalKey(Schema.Array(Json.Opaque)),
  /** The JSON Schema that an answer to a typed question has to fit. */
  answerSchema: Schema.optionalKey(AnswerSchema),
  /**
   * The time at which it expires, in milliseconds since 1970. From then on no answer is taken, and `Session.expire`
   * settles it: a question and a manual call with `defaultAnswer`, an approval as denied. Left out when it waits
   * without a limit.
   */
  expiresAt: Schema.optionalKey(Schema.Finite),
  /** The value that answers it once it has expired. */
  defaultAnswer: Schema.optionalKey(Json.Opaque),
  /** The extent to which an approval may be remembered for the session. Left out where it may not. */
  remember: Schema.optionalKey(Rememberable),
  /** The number of characters of a manual call's result that the model reads. Left out for all of them. */
  resultLimit: Schema.optionalKey(Schema.Finite),
  /** The part of a manual call's longer result that is kept, as in `Policy.resultCut`. */
  resultCut: Schema.optionalKey(Schema.Literals(["headAndTail", "head"]))
})) {}

/**
 * One model turn with its tools.
 *
 * @category schemas
 * @since 0.1.0
 */
export class StepResult extends Schema.Opaque<StepResult>()(Schema.Struct({
  /** The thread after the step. */
  thread: Thread.Thread,
  /** The model's reply. */
  response: Response.Response,
  /** The answers to its calls, in call order. */
  toolResults: Schema.Array(Message.Message),
  /** `true` if the model has nothing more to do. */
  done: Schema.Boolean,
  /** `"manual"` for a step that handed all of its calls to the caller. Left out otherwise. */
  mode: Schema.optionalKey(Schema.Literal("manual")),
  /** The calls of manual tools, which the caller has to answer. Left out when there are none. */
  manualToolCalls: Schema.optionalKey(Schema.Array(Message.ToolCall)),
  /** The halt by which a tool ended the run. Left out when none did. */
  halt: Schema.optionalKey(Halt),
  /** All calls that wait for an answer, in call order. Left out when none does. */
  suspensions: Schema.optionalKey(Schema.Array(Suspension)),
  /** The values that handlers added to the context of the next step, merged in call order. Left out when none did. */
  contextUpdate: Schema.optionalKey(ContextUpdate),
  /** The data that you attach to the step. `{}` by default. */
  metadata: Json.Metadata
})) {}

/**
 * The source of a cancellation: `"cancel"` is its `cancel` option, or that of the run around it; `"deadline"` is a
 * deadline that passed; `"interrupt"` is a reader that left the stream, as a fold of the events up to there finds it,
 * or a handler around the run that was given up.
 *
 * @category schemas
 * @since 0.1.0
 */
export const CancelReason = Schema.Literals(["cancel", "deadline", "interrupt", "stop"])

/**
 * @see {@link CancelReason}
 *
 * @category models
 * @since 0.1.0
 */
export type CancelReason = (typeof CancelReason)["Type"]

/**
 * The model answered and asked for nothing more.
 *
 * @category schemas
 * @since 0.1.0
 */
export class CompletedOutcome extends Schema.Opaque<CompletedOutcome>()(Schema.TaggedStruct("Completed", {
  /**
   * The finish reason of the last reply: `"length"` was cut off by the token limit, `"content_filter"` was filtered.
   * `null` for a reply without a finish reason.
   */
  finishReason: Schema.NullOr(Response.FinishReason)
})) {}

/**
 * The run made as many model calls as it may, and the model still asked for tools.
 *
 * @category schemas
 * @since 0.1.0
 */
export class MaxTurnsOutcome extends Schema.Opaque<MaxTurnsOutcome>()(Schema.TaggedStruct("MaxTurns", {
  /** The number of model calls that the run may make (`Chat.Options.maxTurns`). */
  maxTurns: Schema.Int
})) {}

/**
 * The `haltWhen` option returned `true`.
 *
 * @category schemas
 * @since 0.1.0
 */
export class HaltWhenOutcome extends Schema.Opaque<HaltWhenOutcome>()(Schema.TaggedStruct("HaltWhen", {
  /** The index of the step for which it did, from 0. */
  stepIndex: Schema.Int
})) {}

/**
 * A tool asked the user. Where several calls wait, a question stands before manual calls, and these before approvals;
 * the result's `suspensions` have all of them.
 *
 * @category schemas
 * @since 0.1.0
 */
export class AskUserOutcome extends Schema.Opaque<AskUserOutcome>()(Schema.TaggedStruct("AskUser", {
  /** The question, as the handler put it. */
  pendingQuestion: Schema.String,
  /** The id of the call that asks. */
  pendingToolCallId: Schema.String,
  /** The choices of the user, or whatever the handler gave a user interface. `[]` by default. */
  askUserOpts: Schema.Array(Json.Opaque)
})) {}

/**
 * A call failed, and `onToolError` decided to halt.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ToolFailedOutcome extends Schema.Opaque<ToolFailedOutcome>()(Schema.TaggedStruct("ToolFailed", {
  /** The id of the call that failed. */
  haltToolCallId: Schema.String,
  /** The defect of the `onToolError` function, if it died. */
  onToolErrorException: Schema.optionalKey(Json.Opaque)
})) {}

/**
 * A handler ended the run with `Tool.halt(reason, result)`.
 *
 * @category schemas
 * @since 0.1.0
 */
export class HaltedOutcome extends Schema.Opaque<HaltedOutcome>()(Schema.TaggedStruct("Halted", {
  /** The handler's own reason. */
  reason: Schema.String,
  /** The id of the call that halted. */
  haltToolCallId: Schema.String,
  /** The handler's last result, as it gave it. */
  haltResult: Json.Opaque
})) {}

/**
 * The caller has calls to run: all of them under `mode: "manual"`, or those of `manual` tools.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ManualToolCallsOutcome extends Schema.Opaque<ManualToolCallsOutcome>()(
  Schema.TaggedStruct("ManualToolCalls", {
    /** The index of the step that made them, from 0. */
    stepIndex: Schema.Int,
    /** The calls of `manual` tools. Left out under `mode: "manual"`, where all calls of `finalResponse` are meant. */
    manualToolCalls: Schema.optionalKey(Schema.Array(Message.ToolCall))
  })
) {}

/**
 * Calls wait to be allowed: they need an approval, or had started when their process ended (`afterCrash: "ask"`).
 *
 * @category schemas
 * @since 0.1.0
 */
export class ApprovalRequestedOutcome extends Schema.Opaque<ApprovalRequestedOutcome>()(
  Schema.TaggedStruct("ApprovalRequested", {
    /** The index of the step that made them, from 0. */
    stepIndex: Schema.Int,
    /** The calls that wait, in call order. */
    approvalToolCalls: Schema.Array(Message.ToolCall)
  })
) {}

/**
 * The run was stopped softly: what ran was interrupted, and every call is answered.
 *
 * @category schemas
 * @since 0.1.0
 */
export class CancelledOutcome extends Schema.Opaque<CancelledOutcome>()(Schema.TaggedStruct("Cancelled", {
  /** The source of the cancellation. */
  reason: CancelReason
})) {}

/**
 * A rule ended the run (`Rule`).
 *
 * @category schemas
 * @since 0.1.0
 */
export class RuleEndedOutcome extends Schema.Opaque<RuleEndedOutcome>()(Schema.TaggedStruct("RuleEnded", {
  /** The name of the rule. */
  rule: Schema.String,
  /** Data of the rule about the end. Left out where it gives none. */
  detail: Schema.optionalKey(Json.Opaque),
  /** `"error"` where the run failed to do what it was asked, which is then the status of its session. */
  status: Schema.Literals(["completed", "error"])
})) {}

/**
 * The run broke after it had begun.
 *
 * @category schemas
 * @since 0.1.0
 */
export class FailedOutcome extends Schema.Opaque<FailedOutcome>()(Schema.TaggedStruct("Failed", {
  /** The error that broke it: an `Adapter.AdapterError`, or the value of a defect. */
  error: Json.Opaque
})) {}

/**
 * The reason why a run ended, with what belongs to it.
 *
 * @category schemas
 * @since 0.1.0
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
 * @since 0.1.0
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
 * Something that did not stop: the run ended without it after the grace period, and dropped its late value.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Abandoned extends Schema.Opaque<Abandoned>()(Schema.Struct({
  /**
   * The kind of code: a tool's handler; another function of the caller's, a `"hook"` (`onEvent`, `haltWhen`,
   * `onToolError`, a decoder, an encoder); a store's `append`; the adapter; or the effect given as `cancel`.
   */
  kind: Schema.Literals(["handler", "hook", "store", "adapter", "cancel"]),
  /** The id of the call, or of the run, or, for a store, of the session. */
  id: Schema.String,
  /** The name of the tool, or of the option. */
  name: Schema.String,
  /** The time for which it had been running, in milliseconds. */
  ageMillis: Schema.Finite,
  /** The ids of the calls that lead to a run within a handler of this run, from this run's call to its own. */
  path: Schema.optionalKey(Schema.Array(Schema.String))
})) {}

/**
 * The end of a tool loop where a structured answer was asked for behind it.
 *
 * @category schemas
 * @since 0.1.0
 */
export class StructuredFinalize extends Schema.Opaque<StructuredFinalize>()(Schema.Struct({
  /** The `haltedReason` of the tool loop. */
  pass1Halted: Schema.String,
  /** The error that broke the last call before its first event. Left out when nothing did. */
  pass2Error: Schema.optionalKey(Json.Opaque)
})) {}

/**
 * A tool that the model was not offered.
 *
 * @category schemas
 * @since 0.1.0
 */
export class LeftOutTool extends Schema.Opaque<LeftOutTool>()(Schema.Struct({
  /** The name of the tool. */
  name: Schema.String,
  /** The reason why it was left out. */
  reason: Schema.String
})) {}

/**
 * The amount that a run has spent, together with the runs that its handlers started.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Spent extends Schema.Opaque<Spent>()(Schema.Struct({
  /** The number of requests to models. */
  calls: Schema.Finite,
  /** Tokens of these requests: those reported, and those reserved where a reply reported none. */
  inputTokens: Schema.Finite,
  /** Tokens of the replies. */
  outputTokens: Schema.Finite,
  /** The price, in millionths of the currency. Left out where no price is known and no budget bounds money. */
  money: Schema.optionalKey(Schema.Finite),
  /** The rest of the bounds around the run, without what requests under way have reserved: of each bound, the least. */
  left: Schema.Struct({
    /** Requests. Left out where they have no bound. */
    calls: Schema.optionalKey(Schema.Finite),
    /** Tokens of requests. Left out where they have no bound. */
    inputTokens: Schema.optionalKey(Schema.Finite),
    /** Tokens of replies. Left out where they have no bound. */
    outputTokens: Schema.optionalKey(Schema.Finite),
    /** Tokens of both. Left out where they have no bound. */
    tokens: Schema.optionalKey(Schema.Finite),
    /** Millionths of the currency. Left out where money has no bound. */
    money: Schema.optionalKey(Schema.Finite)
  })
})) {}

/** The fields of a result besides its thread and its steps. */
const chatEnd = {
  /** The reason why the run ended. Match on its `_tag`. */
  outcome: Outcome,
  /** The outcome as one word, such as `"completed"` or `"max_turns"`. Derived from `outcome`. */
  haltedReason: Schema.String,
  /** The question that waits for the user. Derived from `outcome`; left out unless that is `AskUser`. */
  pendingQuestion: Schema.optionalKey(Schema.String),
  /** The id of the call that asks it. Derived from `outcome`; left out unless that is `AskUser`. */
  pendingToolCallId: Schema.optionalKey(Schema.String),
  /** The calls that wait for an answer, in call order. Left out when none does. */
  suspensions: Schema.optionalKey(Schema.Array(Suspension)),
  /** The usage of all steps. `null` when nothing was reported. */
  usage: Schema.NullOr(Response.Usage),
  /**
   * The usage of the run together with the runs that its handlers started, at any depth and however they ended, and, in
   * a session, those of calls that were approved. `null` when nothing was reported.
   */
  totalUsage: Schema.NullOr(Response.Usage),
  /** The part of `totalUsage` that the other runs used. Left out where they reported nothing. */
  nestedUsage: Schema.optionalKey(Response.Usage),
  /** The end of the tool loop under `structuredFinalize`. Left out without it. */
  structuredFinalize: Schema.optionalKey(StructuredFinalize),
  /**
   * The reason why the tool loop was closed by an answer without tools: `"max_turns"`, `"deadline"`, or that of a rule.
   * Left out when it was not.
   */
  finalized: Schema.optionalKey(Schema.String),
  /** The values that all steps added to the context. Left out when nothing was added. */
  contextUpdate: Schema.optionalKey(ContextUpdate),
  /** The code that did not stop within the grace period. Left out when everything did. */
  abandoned: Schema.optionalKey(Schema.Array(Abandoned)),
  /**
   * The tools that the model was not offered, since their parameters cannot be written as one object, as every provider
   * demands. Left out when it was offered all.
   */
  leftOutTools: Schema.optionalKey(Schema.Array(LeftOutTool)),
  /** The typed answer, encoded. Left out without the option `output`, and where the run has no answer. */
  output: Schema.optionalKey(Json.Opaque),
  /** The amount that the run has spent. Left out unless a budget is around it. */
  spent: Schema.optionalKey(Spent),
  /** The data that you attach to the result. `{}` by default. */
  metadata: Json.Metadata
} as const

/**
 * The result of a run.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ChatResult extends Schema.Opaque<ChatResult>()(Schema.Struct({
  /** The thread after the run. */
  thread: Thread.Thread,
  /** The last reply of the model. `null` when no step was made. */
  finalResponse: Schema.NullOr(Response.Response),
  /** The steps, in order. */
  steps: Schema.Array(StepResult),
  ...chatEnd
})) {}

/**
 * The handler produced a value.
 *
 * @category schemas
 * @since 0.1.0
 */
export class CallSucceeded extends Schema.Opaque<CallSucceeded>()(Schema.TaggedStruct("Ok", {
  /** The value, before it is encoded. */
  value: Json.Opaque
})) {}

/**
 * The call failed.
 *
 * @category schemas
 * @since 0.1.0
 */
export class CallFailed extends Schema.Opaque<CallFailed>()(Schema.TaggedStruct("Error", {
  /** The failure that the handler reported, or a `Tool.ToolError`. */
  error: Json.Opaque
})) {}

/**
 * The handler asks the user.
 *
 * @category schemas
 * @since 0.1.0
 */
export class CallAsked extends Schema.Opaque<CallAsked>()(Schema.TaggedStruct("AskUser", {
  /** The question. */
  question: Schema.String,
  /** The choices of the user, or whatever the handler gave a user interface. `[]` by default. */
  opts: Schema.Array(Json.Opaque),
  /** The JSON Schema that an answer to a typed question has to fit. */
  answerSchema: Schema.optionalKey(AnswerSchema),
  /**
   * The time that the question waits, in milliseconds from when it is asked. Left out when it waits without a limit.
   */
  expiresInMillis: Schema.optionalKey(Schema.Finite),
  /** The value that answers it once it has expired. */
  defaultAnswer: Schema.optionalKey(Json.Opaque)
})) {}

/**
 * The handler ends the run.
 *
 * @category schemas
 * @since 0.1.0
 */
export class CallHalted extends Schema.Opaque<CallHalted>()(Schema.TaggedStruct("Halt", {
  /** The handler's own reason. */
  reason: Schema.String,
  /** The handler's last result, before it is encoded. */
  result: Json.Opaque
})) {}

/**
 * The outcome of a call: a `Tool.Outcome` as plain data.
 *
 * @category schemas
 * @since 0.1.0
 */
export const CallOutcome = Schema.Opaque<CallOutcome>()(
  Schema.Union([CallSucceeded, CallFailed, CallAsked, CallHalted])
)

/**
 * @see {@link CallOutcome}
 *
 * @category models
 * @since 0.1.0
 */
export type CallOutcome = CallSucceeded | CallFailed | CallAsked | CallHalted

const replay = {
  /**
   * `true` for what had happened before the run was resumed, and is emitted again. Left out otherwise.
   */
  replayed: Schema.optionalKey(Schema.Boolean)
} as const

/**
 * A reply begins.
 *
 * @category schemas
 * @since 0.1.0
 */
export class MessageStarted extends Schema.Opaque<MessageStarted>()(Schema.TaggedStruct("MessageStarted", {
  /** The message as it begins: an assistant's, mostly without content. */
  message: Message.Message,
  ...replay
})) {}

/**
 * A piece of the reply's text.
 *
 * @category schemas
 * @since 0.1.0
 */
export class TextDelta extends Schema.Opaque<TextDelta>()(Schema.TaggedStruct("TextDelta", {
  /** The provider's id of the text block. `null` when it gives none. */
  id: Schema.NullOr(Schema.String),
  /** The piece, to be put behind those before it. */
  delta: Schema.String,
  ...replay
})) {}

/**
 * The whole text of the reply. It replaces the pieces.
 *
 * @category schemas
 * @since 0.1.0
 */
export class TextCompleted extends Schema.Opaque<TextCompleted>()(Schema.TaggedStruct("TextCompleted", {
  /** The provider's id of the text block. `null` when it gives none. */
  id: Schema.NullOr(Schema.String),
  /** The text. */
  text: Schema.String,
  ...replay
})) {}

/**
 * A piece of the model's reasoning.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ReasoningDelta extends Schema.Opaque<ReasoningDelta>()(Schema.TaggedStruct("ReasoningDelta", {
  /** The provider's id of the reasoning block. `null` when it gives none. */
  id: Schema.NullOr(Schema.String),
  /** The piece, to be put behind those before it. */
  delta: Schema.String,
  ...replay
})) {}

/**
 * The model begins a call.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ToolCallStarted extends Schema.Opaque<ToolCallStarted>()(Schema.TaggedStruct("ToolCallStarted", {
  /**
   * The id of the call. In a run it is unique in the thread and the same in all that follows. In the events of an
   * adapter it is unique in the reply.
   */
  id: Schema.String,
  /** The name of the tool. */
  name: Schema.String,
  /** `true` for the call by which the model gives the typed answer of the run (`Output`). Left out for any other. */
  output: Schema.optionalKey(Schema.Boolean),
  ...replay
})) {}

/**
 * A piece of a call's arguments.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ToolCallDelta extends Schema.Opaque<ToolCallDelta>()(Schema.TaggedStruct("ToolCallDelta", {
  /** The id of the call. */
  id: Schema.String,
  /** A piece of JSON text, to be put behind those before it. */
  argumentsDelta: Schema.String
})) {}

/**
 * A call's arguments are final.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ToolCallCompleted extends Schema.Opaque<ToolCallCompleted>()(Schema.TaggedStruct("ToolCallCompleted", {
  /** The id of the call. */
  id: Schema.String,
  /** The name of the tool. */
  name: Schema.String,
  /** The parsed arguments. `{}` when they were lost. */
  arguments: Schema.Record(Schema.String, Json.Opaque),
  /** The JSON text that they were parsed from. */
  rawArguments: Schema.String,
  /** The reason why the arguments cannot be trusted. Left out when they can. */
  argumentsLost: Schema.optionalKey(Message.ArgumentsLost),
  /** `true` for a call that the provider runs itself. */
  providerExecuted: Schema.optionalKey(Schema.Boolean),
  /**
   * The metadata that the adapter adds to the call, with the provider's id as `duplicateOf` where the call has another
   * one. Left out when there is nothing.
   */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)),
  ...replay
})) {}

/**
 * The reply has ended.
 *
 * @category schemas
 * @since 0.1.0
 */
export class MessageCompleted extends Schema.Opaque<MessageCompleted>()(Schema.TaggedStruct("MessageCompleted", {
  /** The whole message. */
  message: Message.Message,
  /** The reason why the reply ended, in one vocabulary for all providers. `null` when no reason was given. */
  finishReason: Schema.NullOr(Response.FinishReason),
  /** The reason in the provider's own word. Left out when there is none. */
  rawFinishReason: Schema.optionalKey(Schema.String),
  /**
   * `true` if the provider paused the reply before its end: it continues once the thread is sent back with it. Left out
   * for any other reply.
   */
  paused: Schema.optionalKey(Schema.Boolean),
  /** The usage of the reply. Left out where the provider reports none. */
  usage: Schema.optionalKey(Response.Usage),
  /** The id that the provider gives the reply. Left out when there is none. */
  responseId: Schema.optionalKey(Schema.String),
  /** The model that replied, by the provider's name for it. Left out when it is not known. */
  model: Schema.optionalKey(Schema.String),
  /** The provider that replied, of an `Adapter.fallback`. Left out for any other adapter. */
  provider: Schema.optionalKey(Schema.String),
  /** Further data of the adapter, under names of its own. Left out when there is nothing. */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)),
  ...replay
})) {}

/**
 * Something else that the provider sent. Shown with `includeRawChunks`, and always where it reports usage.
 *
 * @category schemas
 * @since 0.1.0
 */
export class RawChunk extends Schema.Opaque<RawChunk>()(Schema.TaggedStruct("RawChunk", {
  /** The chunk that was sent. Only `{ usage: { … } }` is read: it becomes the usage of the response. */
  chunk: Json.Opaque
})) {}

/**
 * The reply broke after its first event.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ErrorEvent extends Schema.Opaque<ErrorEvent>()(Schema.TaggedStruct("Error", {
  /** The error that broke it: an `Adapter.AdapterError`, or the value of a defect. */
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
 * An event that an adapter may emit: the model's message from `MessageStarted` to `MessageCompleted`.
 *
 * @category schemas
 * @since 0.1.0
 */
export const AdapterEvent = Schema.Union(adapterEvents).pipe(Schema.toTaggedUnion("_tag"))

/**
 * @see {@link AdapterEvent}
 *
 * @category models
 * @since 0.1.0
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
 * A call waits for its turn. It comes at most once, before the start of the call, its request for an approval, or the
 * answer of a call that does not start. A call that has its turn at once has none.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ToolQueued extends Schema.Opaque<ToolQueued>()(Schema.TaggedStruct("ToolQueued", {
  /** The id of the call. */
  id: Schema.String,
  /** The name of the tool. */
  name: Schema.String,
  /**
   * The reason why it waits, the first one if there are several: `"permit"` for a place of its run or of the
   * application's `Limits`, `"key"` for a permit by name (`Tool.Options.limits`), `"exclusive"` for a call that runs
   * alone, or until it may run alone itself.
   */
  reason: Schema.Literals(["permit", "key", "exclusive"]),
  /** The name of the permit, where the reason is `"key"`. Left out otherwise. */
  key: Schema.optionalKey(Schema.String),
  /**
   * The ids of the calls of this run that it waits for, three at most: those that have the places or the permit, and
   * those that run alone before it. Left out where there are none.
   */
  behind: Schema.optionalKey(Schema.Array(Schema.String)),
  /**
   * `true` where another run has what it waits for: a run inside a handler, or one beside this one. Left out otherwise.
   */
  elsewhere: Schema.optionalKey(Schema.Boolean)
})) {}

/**
 * A wait of a call for its turn, which is over.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Waited extends Schema.Opaque<Waited>()(Schema.Struct({
  /** The reason why it waited, as in `ToolQueued`. */
  reason: ToolQueued.fields.reason,
  /** The name of the permit, where the reason is `"key"`. Left out otherwise. */
  key: Schema.optionalKey(Schema.String),
  /** The ids of the calls of this run that it waited for, three at most. Left out where there are none. */
  behind: Schema.optionalKey(Schema.Array(Schema.String)),
  /** `true` where another run had what it waited for. Left out otherwise. */
  elsewhere: Schema.optionalKey(Schema.Boolean),
  /** Length of the wait, in milliseconds. */
  millis: Schema.Finite
})) {}

/**
 * A handler starts.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ToolExecutionStarted extends Schema.Opaque<ToolExecutionStarted>()(
  Schema.TaggedStruct("ToolExecutionStarted", {
    /** The id of the call. */
    id: Schema.String,
    /** The name of the tool. */
    name: Schema.String,
    /** The arguments with which it runs: as the model sent them, or as an approval has changed them. */
    arguments: Schema.Record(Schema.String, Json.Opaque),
    /**
     * The number of the attempt that starts: with `replayed`, of the last one that had started before. Left out for the
     * first. Further attempts by `retry` of the tool have no event.
     */
    attempt: Schema.optionalKey(Schema.Int),
    /**
     * The waits for its turn, in their order: for a place, for each permit by name, for a place of `Limits`. Left out
     * of a call that had its turn at once.
     */
    waited: Schema.optionalKey(Schema.Array(Waited)),
    ...replay
  })
) {}

/**
 * A handler reports progress.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ToolProgress extends Schema.Opaque<ToolProgress>()(Schema.TaggedStruct("ToolProgress", {
  /** The id of the call. */
  id: Schema.String,
  /** The name of the tool. */
  name: Schema.String,
  /** The progress that the handler reports. A tool made by `Tool.fromChat` reports events of its run. */
  progress: Json.Opaque,
  /** `true` where progress before it was not read in time, and is left out. Left out otherwise. */
  missed: Schema.optionalKey(Schema.Literal(true))
})) {}

/**
 * A handler has ended, or a call that could not be run is answered.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ToolExecutionCompleted extends Schema.Opaque<ToolExecutionCompleted>()(
  Schema.TaggedStruct("ToolExecutionCompleted", {
    /** The id of the call. */
    id: Schema.String,
    /** The name of the tool. */
    name: Schema.String,
    /** The outcome of the call, before it is encoded and cut. */
    result: CallOutcome,
    /** The values that the handler added to the context. Left out when it added nothing. */
    contextUpdate: Schema.optionalKey(ContextUpdate),
    /**
     * The name, the message and the plain fields of what a handler died with, also where the error policy put another
     * result in its place.
     */
    cause: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque)),
    ...replay
  })
) {}

/**
 * A call has its answer for the model. With `settled` it closes a call that was open before: a question that its own
 * run withdraws, behind its `AskUserRequested`; or a call that was answered, denied or submitted since the last run, at
 * the beginning of the run that continues.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ToolResultEncoded extends Schema.Opaque<ToolResultEncoded>()(Schema.TaggedStruct("ToolResultEncoded", {
  /** The id of the call. */
  id: Schema.String,
  /** The content that the model reads: the encoded result, cut to the result limit. */
  content: Content,
  /** `true` when the answer is an error. Left out when it is not. */
  isError: Schema.optionalKey(Schema.Boolean),
  /**
   * The reason of the `Tool.ToolError` that the answer is, such as `"denied"`, or `"cancelled"` for a cancelled
   * sub-agent. Left out for results and for what a handler reported.
   */
  code: Schema.optionalKey(ToolOutcomes.ToolError.fields.reason),
  /**
   * The length of the whole text in characters (UTF-16 code units), where `content` was cut. Left out when it was not;
   * a result that was submitted to a session has the notice of the cut in its text only.
   */
  originalLength: Schema.optionalKey(Schema.Int),
  /** `true` when it closes a call that was open before. Left out otherwise. */
  settled: Schema.optionalKey(Schema.Boolean),
  /**
   * The sender of a denial that was given for a waiting call, as the program named them. Left out for any other answer,
   * and where the program does not say.
   */
  by: Schema.optionalKey(Schema.String),
  /** The reason of such a denial. Left out where none was given. */
  detail: Schema.optionalKey(Schema.String),
  ...replay
})) {}

/**
 * A handler asks the user.
 *
 * @category schemas
 * @since 0.1.0
 */
export class AskUserRequested extends Schema.Opaque<AskUserRequested>()(Schema.TaggedStruct("AskUserRequested", {
  /** The id of the call. */
  toolCallId: Schema.String,
  /** The name of the tool. */
  toolName: Schema.String,
  /** The question. */
  question: Schema.String,
  /** The choices of the user, or whatever the handler gave a user interface. `[]` by default. */
  opts: Schema.Array(Json.Opaque),
  /** The JSON Schema that an answer to a typed question has to fit. */
  answerSchema: Schema.optionalKey(AnswerSchema),
  /** The time at which the question expires, in milliseconds since 1970. Left out when it waits without a limit. */
  expiresAt: Schema.optionalKey(Schema.Finite),
  /** The value that answers it once it has expired. */
  defaultAnswer: Schema.optionalKey(Json.Opaque),
  ...replay
})) {}

/**
 * A call waits to be allowed. It has no other event until it is.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ToolApprovalRequested extends Schema.Opaque<ToolApprovalRequested>()(
  Schema.TaggedStruct("ToolApprovalRequested", {
    /** The id of the call. */
    toolCallId: Schema.String,
    /** The name of the tool. */
    toolName: Schema.String,
    /** The arguments of the call, as the model sent them. */
    arguments: Schema.Record(Schema.String, Json.Opaque),
    /**
     * The time at which the request expires, in milliseconds since 1970: the call then counts as denied. Left out
     * without a limit.
     */
    expiresAt: Schema.optionalKey(Schema.Finite),
    /** The extent to which the approval may be remembered for the session. Left out where it may not. */
    remember: Schema.optionalKey(Rememberable),
    ...replay
  })
) {}

/**
 * A call waits for answers from outside: its nested run does; its handler asks the user and is started again with the
 * answer (`resume` of `Tool.askUser`); or the call had started when its process ended and waits for a verdict
 * (`afterCrash: "ask"`). When the answers for a nested run are there, the handler is started again, and that run
 * continues where it was.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ToolSuspended extends Schema.Opaque<ToolSuspended>()(Schema.TaggedStruct("ToolSuspended", {
  /** The id of the call. */
  toolCallId: Schema.String,
  /** The name of the tool. */
  toolName: Schema.String,
  /**
   * The calls that are open: the call itself, or the calls of its nested run, each under the path of ids that leads to
   * it.
   */
  suspensions: Schema.Array(Suspension),
  ...replay
})) {}

/**
 * A call ends the run: by `Tool.halt`, or as a failure under `onToolError: "halt"`.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ToolHalt extends Schema.Opaque<ToolHalt>()(Schema.TaggedStruct("ToolHalt", {
  /** The id of the call. */
  toolCallId: Schema.String,
  /** The handler's own reason, or `"tool_error"`. */
  reason: Schema.String,
  /** The handler's last result, as it gave it. */
  result: Json.Opaque,
  /** The content that the model reads of the result. */
  content: Schema.optionalKey(Content),
  /** The reason of the `Tool.ToolError` that ended the run. Left out of any other halt. */
  code: Schema.optionalKey(ToolOutcomes.ToolError.fields.reason),
  /** The defect of the `onToolError` function, if it died. */
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
  /** The model's reply. */
  response: Response.Response,
  /**
   * The messages that came to the thread since the step before: the model's message, the answers to its calls, and what
   * the run itself put in front of them.
   */
  messages: Schema.Array(Message.Message),
  /** The mode in which the step was run. */
  mode: Mode,
  /** `true` if the reply asks for tools, under `mode: "manual"`. */
  isToolTurn: Schema.optionalKey(Schema.Boolean),
  /** The calls of manual tools, which the caller has to answer. */
  manualToolCalls: Schema.Array(Message.ToolCall),
  /** `true` if the model has nothing more to do. */
  done: Schema.optionalKey(Schema.Boolean),
  /** The halt by which a tool ended the run. Left out when none did. */
  halt: Schema.optionalKey(Halt),
  /** All calls that wait for an answer, in call order. Left out when none does. */
  suspensions: Schema.optionalKey(Schema.Array(Suspension)),
  /**
   * Notes of rules about the step, by their names; under `last` the reason for which it was the last one. Left out when
   * there are none.
   */
  notes: Schema.optionalKey(Notes)
} as const

const behindLast = {
  /**
   * The messages that came to the thread behind the last step, such as the question that the run ended with. Left out
   * for nothing.
   */
  messages: Schema.optionalKey(Schema.Array(Message.Message)),
  /** The notes that rules keep for the session, by their names. Left out when there are none. */
  kept: Schema.optionalKey(Notes)
} as const

/**
 * The reply broke, and the request is retried (`retryReply`): the events of the reply, from its `MessageStarted` on,
 * are discarded. No tool has started because of such a reply.
 *
 * @category schemas
 * @since 0.1.0
 */
export class StepReset extends Schema.Opaque<StepReset>()(Schema.TaggedStruct("StepReset", {
  /** The error that broke the reply. */
  error: Json.Opaque
})) {}

/**
 * The model is asked again by another adapter of an `Adapter.fallback`, since one failed before it had said something.
 * It follows the `StepReset` of the request.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ModelSwitched extends Schema.Opaque<ModelSwitched>()(Schema.TaggedStruct("ModelSwitched", {
  /** The name of the candidate that failed. */
  from: Schema.String,
  /** The name of the candidate that is asked next. */
  to: Schema.String,
  /** The error of the first. */
  error: Json.Opaque
})) {}

/**
 * A message of an inbox is delivered: the request of the step has it. It comes before the events of that reply.
 *
 * @category schemas
 * @since 0.1.0
 */
export class MessageDelivered extends Schema.Opaque<MessageDelivered>()(Schema.TaggedStruct("MessageDelivered", {
  /** The id of the message. */
  id: Schema.String,
  /** The message. */
  message: Message.Message,
  /** The index of the step in the run, from 0. */
  stepIndex: Schema.Int
})) {}

/**
 * A message of an inbox is refused: the run ends without it. It comes before the end of the run.
 *
 * @category schemas
 * @since 0.1.0
 */
export class MessageRefused extends Schema.Opaque<MessageRefused>()(Schema.TaggedStruct("MessageRefused", {
  /** The id of the message. */
  id: Schema.String,
  /**
   * The reason: `"finished"`, `"waiting"`, `"stopped"`, `"failed"`, `"max_turns"`, `"halted"`, or the rule that ended
   * the run.
   */
  reason: Schema.String
})) {}

/**
 * A part of a typed answer, while it comes: the JSON so far. It is not validated; texts and lists grow, and a number
 * comes when it has ended. At most one each 50 ms, and none past 64 KiB of text. It is not recorded.
 *
 * @category schemas
 * @since 0.1.0
 */
export class OutputPartial extends Schema.Opaque<OutputPartial>()(Schema.TaggedStruct("OutputPartial", {
  /** The answer so far. */
  value: Json.Opaque
})) {}

/**
 * The typed answer of the run is accepted: the `output` of the result, encoded. It comes once. It is not recorded.
 *
 * @category schemas
 * @since 0.1.0
 */
export class OutputCompleted extends Schema.Opaque<OutputCompleted>()(Schema.TaggedStruct("OutputCompleted", {
  /** The answer, encoded. */
  value: Json.Opaque
})) {}

/**
 * A step has ended.
 *
 * @category schemas
 * @since 0.1.0
 */
export class StepCompleted extends Schema.Opaque<StepCompleted>()(Schema.TaggedStruct("StepCompleted", {
  ...stepEnd,
  /** The whole thread after the step. */
  thread: Thread.Thread
})) {}

/**
 * The run has ended. It is the last event of a stream that is read to its end.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ChatCompleted extends Schema.Opaque<ChatCompleted>()(Schema.TaggedStruct("ChatCompleted", {
  ...behindLast,
  /** The result that `Chat.run` succeeds with. */
  result: ChatResult
})) {}

/**
 * The result in a {@link WireChat}: a `ChatResult` without what earlier events contain.
 *
 * @category schemas
 * @since 0.1.0
 */
export class WireResult extends Schema.Opaque<WireResult>()(Schema.Struct({
  ...chatEnd,
  /** The last reply of the model. Left out where it is the last step's. */
  finalResponse: Schema.optionalKey(Schema.NullOr(Response.Response))
})) {}

/**
 * A `StepCompleted` as it is read from its wire form: without the thread.
 *
 * @category schemas
 * @since 0.1.0
 */
export class WireStep extends Schema.Opaque<WireStep>()(Schema.TaggedStruct("StepCompleted", stepEnd)) {}

/**
 * A `ChatCompleted` as it is read from its wire form: without the thread and the steps.
 *
 * @category schemas
 * @since 0.1.0
 */
export class WireChat extends Schema.Opaque<WireChat>()(Schema.TaggedStruct("ChatCompleted", {
  ...behindLast,
  /** The result of the run. */
  result: WireResult
})) {}

/**
 * Every event. Per tool call: `ToolQueued` if it waits for its turn, `ToolExecutionStarted` when its handler starts,
 * `ToolProgress` while it runs, `ToolExecutionCompleted` with the raw outcome, and last one of `ToolResultEncoded`,
 * `AskUserRequested` or `ToolHalt`. A call that cannot be run is answered without a start. A call that waits for an
 * approval has `ToolApprovalRequested` and nothing else; one whose nested run waits, or whose effect is unknown, has
 * `ToolSuspended` in place of the last two.
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
 * @since 0.1.0
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
 * @since 0.1.0
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
 * @since 0.1.0
 */
export type Of<Tag extends Event["_tag"]> = Extract<Event, { readonly _tag: Tag }>

/**
 * One guard per tag. A guard reads the tag alone: events are trusted, not validated again.
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
 * @since 0.1.0
 */
export const guards = Object.fromEntries(
  Event.discriminants.map((tag) => [tag, (event: { readonly _tag: string }) => event._tag === tag])
) as { readonly [Tag in Event["_tag"]]: (event: { readonly _tag: string }) => event is Of<Tag> }

/**
 * Handles every tag; the compiler names the ones that are missing.
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
 * @since 0.1.0
 */
export const match: typeof Event.match = Event.match

/**
 * An event as plain JSON: what {@link toWire} writes.
 *
 * @category models
 * @since 0.1.0
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
 * An event as it is read from its wire form: as it was emitted, but that `StepCompleted` has the `messages` of its step
 * and no `thread`, and the result in `ChatCompleted` has neither `thread` nor `steps`, and no `finalResponse` where
 * that is the last step's. `Collector.fromWire` puts these together again.
 *
 * @category models
 * @since 0.1.0
 */
export type WireEvent = Exclude<Event, StepCompleted | ChatCompleted> | WireStep | WireChat

/**
 * The error of a value that is no event in wire form. The message names the field.
 *
 * @category errors
 * @since 0.1.0
 */
export class WireError extends Schema.TaggedError<WireError>("heddle/Event/WireError")("WireError", {
  /** The field that is wrong, and how. */
  detail: Schema.String
}) {
  override get message(): string {
    return `not the wire form of an event: ${this.detail}`
  }
}

/**
 * An event as plain JSON: the form for logs, servers and pages. `JSON.stringify` of an event itself loses errors, fails
 * for some values, and repeats the whole thread in each step.
 *
 * **Details**
 *
 * Total: it never throws, and what it gives survives `JSON.stringify` and `JSON.parse` unchanged, whatever handlers and
 * adapters put into the event. The size of all events of a run grows with what happened in it:
 *
 * - `StepCompleted` has the messages of its step in place of the thread, `ChatCompleted` no thread, no steps, and no
 *   response that the last step has. The same holds for events of nested runs, which are in the progress of their call.
 * - An error has its `name` and `message` and the fields of its own that a model may be shown: never its cause, its
 *   stack or a request. Of a cause there are its reasons.
 * - A BigInt is a decimal text, `NaN` and the infinities are their names, bytes are base64, a map is a list of its
 *   entries and a set of its values; what has a `toJSON` is what that gives, a date its ISO text. Functions, cycles,
 *   what throws when it is read and what is deeper than 512 levels are short texts such as `"[circular]"`. Members
 *   named `__proto__` are left out, and so is what a value of the caller's own has beyond 64 Mi characters, where each
 *   value in it counts as 64.
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
 * @since 0.1.0
 */
export const toWire = (event: Event | WireEvent): Wire => EventJson.toJson(event) as Wire

const decodeWire = Schema.decodeUnknownResult(WireSchema)

/**
 * The event that {@link toWire} has written. Values of the caller's own (arguments, results, progress, errors) come
 * back as the plain data they were written as; the event of a nested run is in the progress of its call in wire form,
 * to be read by this function in turn. Throws a {@link WireError} for anything else.
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
 * @since 0.1.0
 */
export const fromWire = (wire: unknown): WireEvent => {
  // The wire form may come from outside, in any shape.
  const decoded = decodeWire(EventJson.toJson(wire))
  if (Result.isFailure(decoded)) throw new WireError({ detail: decoded.failure.message })
  return decoded.success
}

/**
 * The event as it may leave a server, or nothing where it is not published. It is an allow list: text, names, ids,
 * arguments and answers as `publish` says, usage, the outcome, questions and approvals, and of errors a code and one
 * sentence. It never has a raw result, an update of the context, a cause, a thread, metadata of a reply or a raw chunk.
 *
 * **Details**
 *
 * Events of a run inside a handler, which are progress of its call, are published in the same way, and never more of
 * them than of that call: where it is published by its name, so is theirs, without their text.
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
 * @since 0.1.0
 */
export const toPublic = (
  event: Event | WireEvent,
  options: Public.PublicOptions = {}
): Public.PublicEvent | undefined => Public.toPublic(event, options)
