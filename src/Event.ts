/**
 * Everything a run emits, as one closed union of plain data, and the results those events fold into. An adapter emits
 * the model's part, the runner the tools', a step ends in exactly one `StepCompleted` and a chat in exactly one
 * `ChatCompleted`. Events are literals: nothing validates them on the way, and all of them round-trip through JSON.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Wires from "./internal/fold/wire.ts"
import * as Json from "./internal/json.ts"
import * as Message from "./Message.ts"
import * as Response from "./Response.ts"
import * as Thread from "./Thread.ts"

/**
 * How a turn or a run was ended by a tool: a question, a halt of the tool's own, or a failure under
 * `onToolError: "halt"`.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Halt = Schema.Union([
  Schema.Struct({
    haltedReason: Schema.Literal("ask_user"),
    pendingQuestion: Schema.String,
    pendingToolCallId: Schema.String,
    askUserOpts: Schema.Array(Json.Opaque)
  }),
  Schema.Struct({
    haltedReason: Schema.Literal("tool_error"),
    haltToolCallId: Schema.String,
    onToolErrorException: Schema.optionalKey(Json.Opaque)
  }),
  Schema.Struct({ haltedReason: Schema.String, haltToolCallId: Schema.String, haltResult: Json.Opaque })
])

/**
 * @see {@link Halt}
 *
 * @category models
 * @since 0.1.0
 */
export type Halt =
  | {
    readonly haltedReason: "ask_user"
    readonly pendingQuestion: string
    readonly pendingToolCallId: string
    readonly askUserOpts: ReadonlyArray<unknown>
  }
  | { readonly haltedReason: "tool_error"; readonly haltToolCallId: string; readonly onToolErrorException?: unknown }
  | { readonly haltedReason: string; readonly haltToolCallId: string; readonly haltResult: unknown }

const AnswerSchema = Schema.Record(Schema.String, Json.Opaque)

const Content = Schema.Union([Schema.String, Schema.Array(Message.Part)])

const ContextUpdate = Schema.Record(Schema.String, Json.Opaque)

const Mode = Schema.Literals(["auto", "manual"])

/**
 * A call that waits for somebody outside the run, under the id of the call: a `question` that a handler asks, an
 * `approval` without which its handler does not start, or a `manual` call that the caller runs. `answerSchema` is the
 * JSON Schema of the answer to a typed question. From `expiresAt` on (milliseconds since the epoch) it is settled without
 * anybody: a question and a manual call by `defaultAnswer`, an approval by a denial. The result of a manual call is cut to
 * `resultLimit` characters as `resultCut` says, where the tool or the policy of the run that made the call has a limit.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Suspension = Schema.Struct({
  id: Schema.String,
  kind: Schema.Literals(["question", "approval", "manual"]),
  toolCall: Message.ToolCall,
  question: Schema.optionalKey(Schema.String),
  opts: Schema.optionalKey(Schema.Array(Json.Opaque)),
  answerSchema: Schema.optionalKey(AnswerSchema),
  expiresAt: Schema.optionalKey(Schema.Finite),
  defaultAnswer: Schema.optionalKey(Json.Opaque),
  resultLimit: Schema.optionalKey(Schema.Finite),
  resultCut: Schema.optionalKey(Schema.Literals(["headAndTail", "head"]))
})

/**
 * @see {@link Suspension}
 *
 * @category models
 * @since 0.1.0
 */
export type Suspension = (typeof Suspension)["Type"]

/**
 * One step: the thread after it, the model's response, the answers to its calls in call order. `done` says that the
 * model has nothing more to do; a halt stands in the optional fields, `manualToolCalls` are the caller's to answer,
 * `suspensions` are all calls that wait, in call order, and `contextUpdate` is what the handlers added to the context of the next step, merged in call order.
 *
 * @category schemas
 * @since 0.1.0
 */
export const StepResult = Schema.Struct({
  thread: Thread.Thread,
  response: Response.Response,
  toolResults: Schema.Array(Message.Message),
  done: Schema.Boolean,
  mode: Schema.optionalKey(Schema.Literal("manual")),
  manualToolCalls: Schema.optionalKey(Schema.Array(Message.ToolCall)),
  haltedReason: Schema.optionalKey(Schema.String),
  pendingQuestion: Schema.optionalKey(Schema.String),
  pendingToolCallId: Schema.optionalKey(Schema.String),
  askUserOpts: Schema.optionalKey(Schema.Array(Json.Opaque)),
  haltToolCallId: Schema.optionalKey(Schema.String),
  haltResult: Schema.optionalKey(Json.Opaque),
  onToolErrorException: Schema.optionalKey(Json.Opaque),
  suspensions: Schema.optionalKey(Schema.Array(Suspension)),
  contextUpdate: Schema.optionalKey(ContextUpdate),
  metadata: Json.Metadata
})

/**
 * @see {@link StepResult}
 *
 * @category models
 * @since 0.1.0
 */
export type StepResult = (typeof StepResult)["Type"]

/**
 * What cancelled a run: `"cancel"` is its `cancel` option, or that of the run around it; `"deadline"` is a deadline that
 * passed; `"interrupt"` is a reader that left the stream, as a fold of the events up to there finds it, or a handler
 * around the run that was given up. Results stored by 0.1 do not record it, and decode as `"cancel"`.
 *
 * @category schemas
 * @since 0.1.0
 */
export const CancelReason = Schema.Literals(["cancel", "deadline", "interrupt"])

/**
 * @see {@link CancelReason}
 *
 * @category models
 * @since 0.1.0
 */
export type CancelReason = (typeof CancelReason)["Type"]

/**
 * Why a run ended, with what belongs to it. `Completed` says how the last reply ended: with `"length"` it was cut, with
 * `"content_filter"` it was filtered, and `null` is a reply without a finish reason, or a result stored by 0.1. Where several calls wait, a question stands before manual calls, and these
 * before approvals; the result's `suspensions` have all of them. `Failed` is a run that broke after it had begun: its `error` is the value
 * that broke it.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Outcome = Schema.Union([
  Schema.TaggedStruct("Completed", {
    finishReason: Schema.NullOr(Response.FinishReason).pipe(
      Schema.withDecodingDefaultKey(Effect.succeed(null), { encodingStrategy: "passthrough" })
    )
  }),
  Schema.TaggedStruct("MaxTurns", { maxTurns: Schema.Int }),
  Schema.TaggedStruct("HaltWhen", { haltWhenStepIndex: Schema.Int }),
  Schema.TaggedStruct("AskUser", {
    pendingQuestion: Schema.String,
    pendingToolCallId: Schema.String,
    askUserOpts: Schema.Array(Json.Opaque)
  }),
  Schema.TaggedStruct("ToolFailed", {
    haltToolCallId: Schema.String,
    onToolErrorException: Schema.optionalKey(Json.Opaque)
  }),
  Schema.TaggedStruct("Halted", { reason: Schema.String, haltToolCallId: Schema.String, haltResult: Json.Opaque }),
  Schema.TaggedStruct("ManualToolCalls", {
    manualTurnIndex: Schema.Int,
    manualToolCalls: Schema.optionalKey(Schema.Array(Message.ToolCall))
  }),
  Schema.TaggedStruct("ApprovalRequested", {
    approvalTurnIndex: Schema.Int,
    approvalToolCalls: Schema.Array(Message.ToolCall)
  }),
  Schema.TaggedStruct("Cancelled", {
    reason: CancelReason.pipe(
      Schema.withDecodingDefaultKey(Effect.succeed("cancel" as const), { encodingStrategy: "passthrough" })
    )
  }),
  Schema.TaggedStruct("Failed", { error: Json.Opaque })
])

/**
 * @see {@link Outcome}
 *
 * @category models
 * @since 0.1.0
 */
export type Outcome = (typeof Outcome)["Type"]

/**
 * Something that refused to stop: the run settled without it after the grace period and dropped its late value.
 *
 * - `kind`: a tool's handler; another function of the caller's (`onEvent`, `haltWhen`, `onToolError`, a decoder, an
 *   encoder); a store's `append`; the adapter; the effect given as `cancel`.
 * - `id`, `name`: of the call, or the id of the run, or of the session for a store, and the name of the option.
 * - `ageMillis`: how long it had been running by then, in milliseconds.
 * - `path`: there where it belongs to a run within a handler of this run: the ids of the calls that lead to it, from the
 *   call of this run to its own.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Abandoned = Schema.Struct({
  kind: Schema.Literals(["handler", "hook", "store", "adapter", "cancel"]).pipe(
    Schema.withDecodingDefaultKey(Effect.succeed("handler" as const), { encodingStrategy: "passthrough" })
  ),
  id: Schema.String,
  name: Schema.String,
  ageMillis: Schema.Finite,
  path: Schema.optionalKey(Schema.Array(Schema.String))
})

/**
 * @see {@link Abandoned}
 *
 * @category models
 * @since 0.1.0
 */
export type Abandoned = (typeof Abandoned)["Type"]

/** What a result says besides its thread and its steps. */
const chatEnd = {
  outcome: Outcome,
  haltedReason: Schema.String,
  pendingQuestion: Schema.optionalKey(Schema.String),
  pendingToolCallId: Schema.optionalKey(Schema.String),
  suspensions: Schema.optionalKey(Schema.Array(Suspension)),
  usage: Schema.NullOr(Response.Usage),
  totalUsage: Schema.NullOr(Response.Usage).pipe(
    Schema.withDecodingDefaultKey(Effect.succeed(null), { encodingStrategy: "passthrough" })
  ),
  structuredFinalize: Schema.optionalKey(
    Schema.Struct({ pass1Halted: Schema.String, pass2Error: Schema.optionalKey(Json.Opaque) })
  ),
  finalized: Schema.optionalKey(Schema.Literals(["max_turns", "deadline"])),
  contextUpdate: Schema.optionalKey(ContextUpdate),
  abandoned: Schema.optionalKey(Schema.Array(Abandoned)),
  metadata: Json.Metadata
} as const

/**
 * A whole run. `outcome` is what a caller matches on, `haltedReason` the same as one word; `usage` is the sum over all
 * steps, each step's own stands in its response; `totalUsage` has besides what the runs used that its handlers started, at
 * any depth and however they ended, and, in a session, those of calls that were approved (`null` in a result stored by 0.1). `structuredFinalize` tells how the tool loop ended when a last,
 * structured answer was asked for, `suspensions` are the calls that the run waits for when it has ended, `finalized` why the tool loop was closed by an answer without tools. `contextUpdate`
 * is what all steps added to the context.
 *
 * @category schemas
 * @since 0.1.0
 */
export const ChatResult = Schema.Struct({
  thread: Thread.Thread,
  finalResponse: Schema.NullOr(Response.Response),
  steps: Schema.Array(StepResult),
  ...chatEnd
})

/**
 * @see {@link ChatResult}
 *
 * @category models
 * @since 0.1.0
 */
export type ChatResult = (typeof ChatResult)["Type"]

const ToolOutcome = Schema.Union([
  Schema.TaggedStruct("Ok", { value: Json.Opaque }),
  Schema.TaggedStruct("Error", { error: Json.Opaque }),
  Schema.TaggedStruct("AskUser", {
    question: Schema.String,
    opts: Schema.Array(Json.Opaque),
    answerSchema: Schema.optionalKey(AnswerSchema),
    withinMillis: Schema.optionalKey(Schema.Finite),
    defaultAnswer: Schema.optionalKey(Json.Opaque)
  }),
  Schema.TaggedStruct("Halt", { reason: Schema.String, result: Json.Opaque })
])

const adapterEvents = [
  Schema.TaggedStruct("MessageStarted", { message: Message.Message }),
  Schema.TaggedStruct("TextDelta", { id: Schema.NullOr(Schema.String), delta: Schema.String }),
  Schema.TaggedStruct("TextCompleted", { id: Schema.NullOr(Schema.String), text: Schema.String }),
  Schema.TaggedStruct("ReasoningDelta", { id: Schema.NullOr(Schema.String), delta: Schema.String }),
  Schema.TaggedStruct("ToolCallStarted", { id: Schema.String, name: Schema.String }),
  Schema.TaggedStruct("ToolCallDelta", { id: Schema.String, argumentsDelta: Schema.String }),
  Schema.TaggedStruct("ToolCallCompleted", {
    id: Schema.String,
    name: Schema.String,
    arguments: Schema.Record(Schema.String, Json.Opaque),
    rawArguments: Schema.String,
    argumentsLost: Schema.optionalKey(Message.ArgumentsLost),
    providerExecuted: Schema.optionalKey(Schema.Boolean),
    metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
  }),
  Schema.TaggedStruct("MessageCompleted", {
    message: Message.Message,
    finishReason: Schema.NullOr(Response.FinishReason),
    rawFinishReason: Schema.optionalKey(Schema.String),
    metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
  }),
  Schema.TaggedStruct("RawChunk", { chunk: Json.Opaque }),
  Schema.TaggedStruct("Error", { error: Json.Opaque })
] as const

/**
 * What an adapter may emit: the model's message from `MessageStarted` to `MessageCompleted`. `RawChunk` carries what
 * the provider sent besides; the one form the runtime reads is `{ usage: { … } }`. `MessageCompleted.metadata` may
 * name `usage`, `responseId` and `model`.
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
export type AdapterEvent = (typeof AdapterEvent)["Type"]

const runnerEvents = [
  Schema.TaggedStruct("ToolExecutionStarted", {
    id: Schema.String,
    name: Schema.String,
    arguments: Schema.Record(Schema.String, Json.Opaque)
  }),
  Schema.TaggedStruct("ToolProgress", { id: Schema.String, name: Schema.String, progress: Json.Opaque }),
  Schema.TaggedStruct("ToolExecutionCompleted", {
    id: Schema.String,
    name: Schema.String,
    result: ToolOutcome,
    contextUpdate: Schema.optionalKey(ContextUpdate),
    cause: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
  }),
  Schema.TaggedStruct("ToolResultEncoded", {
    id: Schema.String,
    content: Content,
    isError: Schema.optionalKey(Schema.Boolean),
    originalLength: Schema.optionalKey(Schema.Int),
    settled: Schema.optionalKey(Schema.Boolean)
  }),
  Schema.TaggedStruct("AskUserRequested", {
    toolCallId: Schema.String,
    toolName: Schema.String,
    question: Schema.String,
    opts: Schema.Array(Json.Opaque),
    answerSchema: Schema.optionalKey(AnswerSchema),
    expiresAt: Schema.optionalKey(Schema.Finite),
    defaultAnswer: Schema.optionalKey(Json.Opaque)
  }),
  Schema.TaggedStruct("ToolApprovalRequested", {
    toolCallId: Schema.String,
    toolName: Schema.String,
    arguments: Schema.Record(Schema.String, Json.Opaque),
    expiresAt: Schema.optionalKey(Schema.Finite)
  }),
  Schema.TaggedStruct("ToolHalt", {
    toolCallId: Schema.String,
    reason: Schema.String,
    result: Json.Opaque,
    content: Schema.optionalKey(Content),
    onToolErrorException: Schema.optionalKey(Json.Opaque)
  })
] as const

const stepEnd = {
  response: Response.Response,
  messages: Schema.Array(Message.Message),
  mode: Mode,
  isToolTurn: Schema.optionalKey(Schema.Boolean),
  manualToolCalls: Schema.Array(Message.ToolCall),
  done: Schema.optionalKey(Schema.Boolean),
  halt: Schema.optionalKey(Halt),
  suspensions: Schema.optionalKey(Schema.Array(Suspension))
} as const

const behindLast = { messages: Schema.optionalKey(Schema.Array(Message.Message)) } as const

const stepReset = Schema.TaggedStruct("StepReset", { error: Json.Opaque })

const stepEvents = [
  stepReset,
  Schema.TaggedStruct("StepCompleted", { ...stepEnd, thread: Thread.Thread }),
  Schema.TaggedStruct("ChatCompleted", { ...behindLast, result: ChatResult })
] as const

const receivedEnd = Schema.Struct({ ...chatEnd, finalResponse: Schema.optionalKey(Schema.NullOr(Response.Response)) })

const receivedStepEvents = [
  stepReset,
  Schema.TaggedStruct("StepCompleted", stepEnd),
  Schema.TaggedStruct("ChatCompleted", { ...behindLast, result: receivedEnd })
] as const

/**
 * Every event. Per tool call: `ToolExecutionStarted` when its handler starts, `ToolProgress` while it runs,
 * `ToolExecutionCompleted` with the raw outcome, and, where the call crashed, the name, the message and the plain fields of
 * what it crashed with as its `cause`, even if the error policy put another result in its place; and one of `ToolResultEncoded`, `AskUserRequested` or `ToolHalt`
 * last. A call that cannot be run is answered without a start, and one that waits for an approval has
 * `ToolApprovalRequested` and nothing else.
 *
 * `ToolResultEncoded` has what the model reads as its `content`. `originalLength` is there where it was cut: how long the
 * whole text was, in UTF-16 code units; a result that was submitted to a session says so in its text only. The raw result is the `result` of `ToolExecutionCompleted`.
 *
 * A `ToolResultEncoded` with `settled: true` closes a call that was open, and stands for itself: a question that its own
 * run withdraws, once, behind its `AskUserRequested`; or a call that was answered, denied or submitted since the last run,
 * at the beginning of the run that continues.
 *
 * `StepReset` says that the reply so far broke and that the model is asked again for it: what came of the reply, from its
 * `MessageStarted` on, counts as not said. `error` is what broke it. No tool has started on the word of such a reply.
 *
 * `StepCompleted` has the whole `thread` after the step, and in `messages` all that came to it since the step before: the
 * model's message, the answers to its calls, and what the run itself put in front of them. `isToolTurn` says, in manual
 * mode, whether the reply asked for tools. `ChatCompleted` has in `messages` what came to the thread behind the last
 * step, the question that the run ended with for one; left out if that is nothing.
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
export const Event = Schema.Union([...adapterEvents, ...runnerEvents, ...stepEvents]).pipe(
  Schema.toTaggedUnion("_tag")
)

/**
 * @see {@link Event}
 *
 * @category models
 * @since 0.1.0
 */
export type Event = (typeof Event)["Type"]

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
 * @category guards
 * @since 0.1.0
 */
export const guards = Object.fromEntries(
  Event.discriminants.map((tag) => [tag, (event: { readonly _tag: string }) => event._tag === tag])
) as { readonly [Tag in Event["_tag"]]: (event: { readonly _tag: string }) => event is Of<Tag> }

/**
 * Handles every tag; the compiler names the ones that are missing.
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

const ReceivedSchema = Schema.Union([...adapterEvents, ...runnerEvents, ...receivedStepEvents])

/**
 * An event as it is read from its wire form: as it was emitted, but that `StepCompleted` has the `messages` of its step
 * and no `thread`, and the result in `ChatCompleted` has neither `thread` nor `steps`, and no `finalResponse` where that
 * is the last step's. `Collector.fromWire` puts these together again.
 *
 * @category models
 * @since 0.1.0
 */
export type Received = (typeof ReceivedSchema)["Type"]

/**
 * What was read is no event in wire form. The message names the field.
 *
 * @category errors
 * @since 0.1.0
 */
export class WireError extends Schema.TaggedError<WireError>("heddle/Event/WireError")("WireError", {
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
 * - An error has its `name` and `message` and the fields of its own that a model may be shown: never its cause, its stack
 *   or a request. Of a cause there are its reasons.
 * - A BigInt is a decimal text, `NaN` and the infinities are their names, bytes are base64, a map is a list of its entries
 *   and a set of its values; what has a `toJSON` is what that gives, a date its ISO text. Functions, cycles, what throws
 *   when it is read and what is deeper than 256 levels in a value of the caller's own are short texts such as `"[circular]"`. Members named `__proto__`
 *   are left out. What one value has more than a million values or 64 Mi characters is left out.
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
export const toWire = (event: Event | Received): Wire => Wires.toJson(event) as Wire

const decodeWire = Schema.decodeUnknownResult(ReceivedSchema)

/**
 * The event that {@link toWire} has written. Values of the caller's own (arguments, results, progress, errors) come back
 * as the plain data they were written as; the event of a nested run is in the progress of its call in wire form, to be
 * read by this function in turn. Throws a {@link WireError} for anything else.
 *
 * @category wire
 * @since 0.1.0
 */
export const fromWire = (wire: unknown): Received => {
  // What is read may have been written by anybody.
  const decoded = decodeWire(Wires.toJson(wire))
  if (Result.isFailure(decoded)) throw new WireError({ detail: decoded.failure.message })
  return decoded.success
}
