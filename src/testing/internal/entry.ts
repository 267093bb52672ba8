/**
 * Script entries as plain data, each with a constructor. The constructor documents what its entry plays; `Script`
 * exports this entire module.
 */
import * as Duration from "effect/Duration"
import type * as Effect from "effect/Effect"
import type * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type * as Response from "../../Response.ts"

type Data = Readonly<Record<string, unknown>>

/**
 * Reason for an adapter failure, as in `AdapterError`.
 *
 * @category models
 */
export type Reason = Adapter.AdapterError["reason"]

/**
 * Fields of an adapter error besides its reason.
 *
 * @category models
 */
export interface ErrorDetails extends
  Pick<
    Adapter.AdapterError,
    "detail" | "provider" | "status" | "retryAfterMillis" | "requestId" | "cause" | "metadata"
  >
{}

/**
 * An event inside a message. The script writes the frame around it: `MessageStarted`, `TextCompleted` and
 * `MessageCompleted`.
 *
 * @category models
 */
export type InnerEvent = Exclude<
  Event.AdapterEvent,
  { readonly _tag: "MessageStarted" | "TextCompleted" | "MessageCompleted" }
>

/**
 * One entry of a script.
 *
 * @category models
 */
export type Entry =
  | {
    readonly _tag: "Text" | "Reasoning"
    /** Text of the entry. */
    readonly text: string
  }
  | ToolCallEntry
  | {
    readonly _tag: "ToolCallDelta"
    /** Call id. */
    readonly id: string
    /** A fragment of JSON text. */
    readonly argumentsDelta: string
  }
  | {
    readonly _tag: "Usage"
    /** Usage of the call. */
    readonly usage: Partial<Response.Usage>
  }
  | {
    readonly _tag: "RawChunk"
    /** Chunk sent by the provider. */
    readonly chunk: unknown
  }
  | {
    readonly _tag: "Event"
    /** Event to emit unchanged. */
    readonly event: InnerEvent
  }
  | {
    readonly _tag: "Delay"
    /** Length of the pause, in milliseconds. */
    readonly millis: number
  }
  | {
    readonly _tag: "Error" | "ErrorThenContinue"
    /** Error breaking the reply. */
    readonly error: unknown
    /** Fields of an adapter error besides its reason. */
    readonly details?: ErrorDetails
  }
  | {
    readonly _tag: "StreamError" | "PreflightError"
    /** Reason for the adapter failure. */
    readonly reason: Reason
    /** Other fields of the error. */
    readonly details: ErrorDetails
  }
  | {
    readonly _tag: "Finish"
    /** Finish reason of the reply. */
    readonly reason: Response.FinishReason | null
    /** Provider's own finish reason. */
    readonly rawFinishReason?: string
    /** `true` if the provider pauses the reply before its end. */
    readonly paused?: boolean
    /** Reply id. */
    readonly responseId?: string
    /** Replying model. */
    readonly model?: string
    /** Metadata added by the adapter. */
    readonly metadata?: Data
  }

/**
 * Entry for a whole tool call.
 *
 * @category models
 */
export interface ToolCallEntry extends Omit<Message.ToolCall, "metadata"> {
  readonly _tag: "ToolCall"
  /** Metadata the adapter adds to the call. */
  readonly metadata?: Data
}

/**
 * Plays text, as one `TextDelta`. The message ends with one `TextCompleted` joining all texts.
 *
 * @category entries
 */
export const text = (value: string): Entry => ({ _tag: "Text", text: value })

/**
 * Plays reasoning, as one `ReasoningDelta`.
 *
 * @category entries
 */
export const reasoning = (value: string): Entry => ({ _tag: "Reasoning", text: value })

/**
 * Plays a whole tool call: `ToolCallStarted` and `ToolCallCompleted`. `raw` is the arguments' original text, by default
 * the JSON of `args`. For a call with lost arguments, spread the entry:
 * `{ ...Script.toolCall("c0", "echo"), argumentsLost: "json_decode_error" }`.
 *
 * @category entries
 */
export const toolCall = (
  id: string,
  name: string,
  args: Message.ToolCall["arguments"] = {},
  raw?: string
): ToolCallEntry => ({
  _tag: "ToolCall",
  id,
  name,
  arguments: args,
  ...(raw === undefined ? {} : { rawArguments: raw })
})

/**
 * Plays a fragment of a call's arguments, as a single `ToolCallDelta`: the adapter never completes the call, and its
 * fragments form its arguments once the message has ended.
 *
 * @category entries
 */
export const toolCallDelta = (id: string, fragment: string): Entry => ({
  _tag: "ToolCallDelta",
  id,
  argumentsDelta: fragment
})

/**
 * Sets the call's usage. It emits no event: the last usage becomes the `usage` of `MessageCompleted`. A name other than
 * a `Response.Usage` field is a defect when the call opens.
 *
 * @category entries
 */
export const usage = (value: Partial<Response.Usage>): Entry => ({ _tag: "Usage", usage: value })

/**
 * Plays a `RawChunk` with any content.
 *
 * @category entries
 */
export const rawChunk = (chunk: unknown): Entry => ({ _tag: "RawChunk", chunk })

/**
 * Plays an event unchanged, for anything other entries cannot express: a call started first and receiving fragments
 * later, reasoning with an id. The script itself writes `MessageStarted`, `TextCompleted` and `MessageCompleted`.
 *
 * @category entries
 */
export const event = (value: InnerEvent): Entry => ({ _tag: "Event", event: value })

/**
 * Pauses before the next entry, or before the message end, on the runtime clock. `MessageStarted` never waits.
 * `Duration.infinity` plays a model that emits nothing more.
 *
 * @category entries
 */
export const delay = (duration: Duration.Input): Entry => ({ _tag: "Delay", millis: Duration.toMillis(duration) })

/**
 * Ends the message. Later entries are ignored; a script without this entry ends with finish reason `null`.
 *
 * @category entries
 */
export const finish = (
  reason: Response.FinishReason | null,
  options: {
    readonly rawFinishReason?: string
    readonly paused?: boolean
    readonly responseId?: string
    readonly model?: string
    readonly metadata?: Readonly<Record<string, unknown>>
  } = {}
): Entry => ({ _tag: "Finish", reason, ...options })

/**
 * Plays an `Error` event, after which the message ends with finish reason `null`. An `AdapterError` reason becomes an
 * error with this reason (and `details`, if given), an `AdapterError` is used unchanged, and anything else becomes the
 * cause of an `unknown` error. `generate` fails.
 *
 * @category entries
 */
export const error = (reasonOrTerm: unknown, details?: ErrorDetails): Entry => ({
  _tag: "Error",
  error: reasonOrTerm,
  ...(details === undefined ? {} : { details })
})

/**
 * Plays an `Error` event after which the script continues, as with a few providers.
 *
 * @category entries
 */
export const errorThenContinue = (reasonOrTerm: unknown, details?: ErrorDetails): Entry => ({
  _tag: "ErrorThenContinue",
  error: reasonOrTerm,
  ...(details === undefined ? {} : { details })
})

/**
 * Fails the stream itself, as when the connection breaks: no `Error` event, no message end.
 *
 * @category entries
 */
export const streamError = (reason: Reason, details: ErrorDetails = {}): Entry => ({
  _tag: "StreamError",
  reason,
  details
})

/**
 * Fails the open: no event at all. Only the first entry of a call can be a preflight error.
 *
 * @category entries
 */
export const preflightError = (reason: Reason, details: ErrorDetails = {}): Entry => ({
  _tag: "PreflightError",
  reason,
  details
})

/**
 * Builds a whole reply from its parts, as entries. The finish reason defaults to `"tool_calls"` with calls, and to
 * `"stop"` otherwise.
 *
 * **Example** (A reply in one line)
 *
 * ```ts import.meta.vitest
 * import { Script } from "heddle/testing"
 *
 * Script.reply({ text: "Hello" })
 * // => [Script.text("Hello"), Script.finish("stop")]
 * ```
 *
 * @category entries
 */
export const reply = (parts: {
  readonly reasoning?: string
  readonly text?: string
  readonly toolCalls?: ReadonlyArray<Message.ToolCall>
  readonly usage?: Partial<Response.Usage>
  readonly finishReason?: Response.FinishReason | null
}): ReadonlyArray<Entry> => {
  const { finishReason, toolCalls = [] } = parts
  return [
    ...(parts.reasoning === undefined ? [] : [reasoning(parts.reasoning)]),
    ...(parts.text === undefined ? [] : [text(parts.text)]),
    ...toolCalls.map((call): Entry => ({ _tag: "ToolCall", ...call })),
    ...(parts.usage === undefined ? [] : [usage(parts.usage)]),
    finish(finishReason === undefined ? toolCalls.length === 0 ? "stop" : "tool_calls" : finishReason)
  ]
}

/**
 * Position in a script: the next call to play. Your own cursor may play calls in any order.
 *
 * @category models
 */
export interface Cursor {
  /** Returns the position, from 0, and advances. */
  readonly next: Effect.Effect<number>
  /** Returns the position. */
  readonly position: Effect.Effect<number>
}

/**
 * An adapter's script and its options.
 *
 * @category models
 */
export interface Options {
  /** Entries of a single call. Giving `scripts` as well is a defect. */
  readonly script?: ReadonlyArray<Entry>
  /** Entries of each call. */
  readonly scripts?: ReadonlyArray<ReadonlyArray<Entry>>
  /** Entries for `stream` only, taking precedence there; a flat list is one call. `generate` ignores these entries. */
  readonly streamScript?: ReadonlyArray<Entry> | ReadonlyArray<ReadonlyArray<Entry>>
  /** Replaces the usage of every call. */
  readonly usage?: Partial<Response.Usage>
  /** Request id in the response of `generate`. */
  readonly requestId?: string
  /** Cursor shared with other adapters. By default the adapter has its own. */
  readonly cursor?: Cursor
  /** First call number to succeed: earlier calls fail as `rate_limited` and play nothing. By default no call fails. */
  readonly retryUntilCall?: number
  /** Maximum number of events the stream emits at once. Defaults to all events up to the next delay. */
  readonly chunkSize?: number
}

/**
 * Input for an adapter: one call's entries, a list for several calls, or options.
 *
 * @category models
 */
export type Input = ReadonlyArray<Entry> | ReadonlyArray<ReadonlyArray<Entry>> | Options
