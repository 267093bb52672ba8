/**
 * Turns recorded data into events: a whole reply, or the answer to a call. A resumed run repeats its reply, a journal
 * replays its runs, and a page shows its thread with these functions, so all three match the live run. Folding a
 * reply's events yields that reply.
 */
import type * as Types from "effect/Types"
import type * as Event from "../../Event.ts"
import * as Message from "../../Message.ts"
import type * as Response from "../../Response.ts"
import * as Json from "../json.ts"
import * as CallPaths from "./callPath.ts"
import * as OpenCalls from "./openCalls.ts"

/** Marks events from before a run was resumed. */
interface Marks {
  readonly replayed?: true
}

/** Returns the events of a whole call. */
export const ofCall = (
  { rawArguments = "", ...call }: Omit<Message.ToolCall, "metadata"> & Partial<Message.ToolCall>,
  marks: Marks = {}
): ReadonlyArray<Event.Of<"ToolCallStarted" | "ToolCallCompleted">> => [
  {
    _tag: "ToolCallStarted",
    id: call.id,
    name: call.name,
    ...(call.metadata?.["output"] === true ? { output: true } : {}),
    ...marks
  },
  { _tag: "ToolCallCompleted", ...call, rawArguments, ...marks }
]

const completed = (reply: Response.Response, message: Message.Message, marks: Marks): Event.Of<"MessageCompleted"> => {
  const { finishReason, id, metadata, model, paused, provider, rawFinishReason, usage } = reply
  const event: Types.Mutable<Event.Of<"MessageCompleted">> = {
    _tag: "MessageCompleted",
    message,
    finishReason,
    metadata,
    ...marks
  }
  if (rawFinishReason !== null) event.rawFinishReason = rawFinishReason
  if (paused !== undefined) event.paused = paused
  if (usage !== null) event.usage = usage
  if (id !== null) event.responseId = id
  if (model !== null) event.model = model
  if (provider !== undefined) event.provider = provider
  return event
}

/** Returns the events of a reply. A broken reply has its error and no end event. */
export const ofReply = (reply: Response.Response, marks: Marks = {}): ReadonlyArray<Event.AdapterEvent> => {
  const { error, message, outputText, reasoning, toolCalls } = reply
  return [
    { _tag: "MessageStarted", message: Message.assistant(""), ...marks },
    ...(reasoning === "" ? [] : [{ _tag: "ReasoningDelta", id: null, delta: reasoning, ...marks } as const]),
    ...(outputText === null ? [] : [{ _tag: "TextCompleted", id: null, text: outputText, ...marks } as const]),
    ...toolCalls.flatMap((call) => ofCall(call, marks)),
    ...(error === undefined ? [] : [{ _tag: "Error", error } as const]),
    ...(message === null ? [] : [completed(reply, message, marks)])
  ]
}

/** Rebuilds the reply of an assistant message, as far as the thread has its parts. */
export const replyOf = (message: Message.Message): Response.Response => {
  const { content, finishReason = null, reasoning = [], toolCalls = [] } = message
  const parts = typeof content === "string" ? reasoning : [...reasoning, ...content]
  const text = Message.text(message)
  return {
    id: null,
    requestId: null,
    model: null,
    outputText: text === "" ? null : text,
    reasoning: parts.flatMap((part) => part.type === "reasoning" ? [part.text] : []).join(""),
    toolCalls,
    message,
    finishReason,
    rawFinishReason: null,
    usage: null,
    metadata: Json.none
  }
}

/** A denial: its sender and reason, as far as known. */
interface Denial {
  readonly by?: string
  readonly detail?: string
}

/** A verdict on a waiting call. */
interface Verdict {
  readonly answer: { readonly _tag: string; readonly reason?: string }
  readonly by?: string
}

/** Returns a verdict's denial. Empty for any other verdict. */
export const denialOf = ({ answer, by }: Verdict): Denial => ({
  ...(answer._tag !== "Denied" || by === undefined ? {} : { by }),
  ...(answer._tag !== "Denied" || answer.reason === undefined ? {} : { detail: answer.reason })
})

/** Verdicts by answer. */
const verdicts = { Value: "answered", Approved: "approved", Denied: "denied", Expired: "expired" } as const

/** A verdict, with its time in milliseconds since 1970 if recorded. */
export interface Standing {
  readonly verdict: (typeof verdicts)[keyof typeof verdicts]
  readonly at?: number
}

/** Returns the verdict given by an answer, with its time. */
export const verdictOf = ({ _tag }: { readonly _tag: keyof typeof verdicts }, at: number | undefined): Standing => ({
  verdict: verdicts[_tag],
  ...(at === undefined ? {} : { at })
})

/** A verdict given between two runs, by suspension id. */
export interface Settled extends Denial {
  readonly id: string
}

/**
 * Returns the event of a call settled between two runs, from its answering message. The first verdict on the call
 * counts.
 */
export const ofSettled = (
  message: Message.Message,
  settled: ReadonlyArray<Settled>
): Event.Of<"ToolResultEncoded" | "ToolHalt"> => {
  const { by, detail } = message.code === "denied"
    ? settled.find(({ id }) => CallPaths.ownCall(id) === message.toolCallId) ?? {}
    : {}
  return {
    ...ofAnswer(message, { settled: true }),
    ...(by === undefined ? {} : { by }),
    ...(detail === undefined ? {} : { detail })
  }
}

/** Recorded parts of an answer, beside its message. */
interface Recorded {
  readonly halt?: Event.Halt | undefined
  readonly originalLength?: number | undefined
  /** `true` if the answer closes a previously open call. */
  readonly settled?: true
}

/** Returns the event that ended a call, from its answering message. */
export const ofAnswer = (
  message: Message.Message,
  { halt, originalLength, settled }: Recorded = {}
): Event.Of<"ToolResultEncoded" | "ToolHalt"> => {
  if (halt !== undefined) return OpenCalls.haltedAgain(message, halt)
  const { code, content, isError, toolCallId = "" } = message
  const event: Types.Mutable<Event.Of<"ToolResultEncoded">> = { _tag: "ToolResultEncoded", id: toolCallId, content }
  if (originalLength !== undefined) event.originalLength = originalLength
  if (isError === true) event.isError = isError
  if (code !== undefined) event.code = code
  if (settled !== undefined) event.settled = settled
  return event
}
