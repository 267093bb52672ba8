/**
 * The entries that scripts are written in, as plain data, each with its constructor. What an entry plays is documented
 * at its constructor; `Script` exports all of this module.
 *
 * @since 0.1.0
 */
import * as Duration from "effect/Duration"
import type * as Effect from "effect/Effect"
import type * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type * as Response from "../../Response.ts"

type Data = Readonly<Record<string, unknown>>

/**
 * The reason why an adapter fails, of the reasons of `AdapterError`.
 *
 * @category models
 * @since 0.1.0
 */
export type Reason = Adapter.AdapterError["reason"]

/**
 * The fields of an adapter error besides its reason.
 *
 * @category models
 * @since 0.1.0
 */
export interface ErrorDetails extends
  Pick<
    Adapter.AdapterError,
    "detail" | "provider" | "status" | "retryAfterMillis" | "requestId" | "cause" | "metadata"
  >
{}

/**
 * An event inside a message. The frame around it is written by the script: `MessageStarted`, `TextCompleted` and
 * `MessageCompleted`.
 *
 * @category models
 * @since 0.1.0
 */
export type InnerEvent = Exclude<
  Event.AdapterEvent,
  { readonly _tag: "MessageStarted" | "TextCompleted" | "MessageCompleted" }
>

/**
 * One entry of a script.
 *
 * @category models
 * @since 0.1.0
 */
export type Entry =
  | {
    readonly _tag: "Text" | "Reasoning"
    /** The text. */
    readonly text: string
  }
  | ToolCallEntry
  | {
    readonly _tag: "ToolCallDelta"
    /** The id of the call. */
    readonly id: string
    /** A piece of JSON text. */
    readonly argumentsDelta: string
  }
  | {
    readonly _tag: "Usage"
    /** The usage of the call. */
    readonly usage: Partial<Response.Usage>
  }
  | {
    readonly _tag: "RawChunk"
    /** The chunk that the provider sent. */
    readonly chunk: unknown
  }
  | {
    readonly _tag: "Event"
    /** The event, as it is emitted. */
    readonly event: InnerEvent
  }
  | {
    readonly _tag: "Delay"
    /** The length of the pause, in milliseconds. */
    readonly millis: number
  }
  | {
    readonly _tag: "Error" | "ErrorThenContinue"
    /** The error that breaks the reply. */
    readonly error: unknown
    /** The fields of an adapter error besides its reason. */
    readonly details?: ErrorDetails
  }
  | {
    readonly _tag: "StreamError" | "PreflightError"
    /** The reason why the adapter fails. */
    readonly reason: Reason
    /** The error's other fields. */
    readonly details: ErrorDetails
  }
  | {
    readonly _tag: "Finish"
    /** The reason why the reply ends. */
    readonly reason: Response.FinishReason | null
    /** The provider's own finish reason. */
    readonly rawFinishReason?: string
    /** `true` if the provider pauses the reply before its end. */
    readonly paused?: boolean
    /** The id of the reply. */
    readonly responseId?: string
    /** The model that replied. */
    readonly model?: string
    /** The metadata that the adapter adds. */
    readonly metadata?: Data
  }

/**
 * The entry of a whole tool call.
 *
 * @category models
 * @since 0.1.0
 */
export interface ToolCallEntry extends Omit<Message.ToolCall, "metadata"> {
  readonly _tag: "ToolCall"
  /** The metadata that the adapter adds to the call. */
  readonly metadata?: Data
}

/**
 * Text, as one `TextDelta`. The message ends with one `TextCompleted` that repeats all texts joined.
 *
 * @category entries
 * @since 0.1.0
 */
export const text = (value: string): Entry => ({ _tag: "Text", text: value })

/**
 * Reasoning, as one `ReasoningDelta`.
 *
 * @category entries
 * @since 0.1.0
 */
export const reasoning = (value: string): Entry => ({ _tag: "Reasoning", text: value })

/**
 * A whole tool call: `ToolCallStarted` and `ToolCallCompleted`. `raw` is the text that the arguments came from, and
 * the JSON of `args` when it is left out. For a call whose arguments were lost, spread the entry:
 * `{ ...Script.toolCall("c0", "echo"), argumentsLost: "json_decode_error" }`.
 *
 * @category entries
 * @since 0.1.0
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
 * A fragment of a call's arguments, as one `ToolCallDelta` and nothing more: the call is never completed by the
 * adapter, and its arguments are those of its fragments when the message has ended.
 *
 * @category entries
 * @since 0.1.0
 */
export const toolCallDelta = (id: string, fragment: string): Entry => ({
  _tag: "ToolCallDelta",
  id,
  argumentsDelta: fragment
})

/**
 * The usage of the call. No event of its own: the last one stands in the metadata of `MessageCompleted`. A name that is
 * no field of `Response.Usage` is a defect when the call is opened.
 *
 * @category entries
 * @since 0.1.0
 */
export const usage = (value: Partial<Response.Usage>): Entry => ({ _tag: "Usage", usage: value })

/**
 * A `RawChunk` with anything in it.
 *
 * @category entries
 * @since 0.1.0
 */
export const rawChunk = (chunk: unknown): Entry => ({ _tag: "RawChunk", chunk })

/**
 * An event as it is, for what the other entries cannot express: a call that is started and gets its fragments later,
 * reasoning with an id. `MessageStarted`, `TextCompleted` and `MessageCompleted` are written by the script itself.
 *
 * @category entries
 * @since 0.1.0
 */
export const event = (value: InnerEvent): Entry => ({ _tag: "Event", event: value })

/**
 * A pause before the next entry, or before the end of the message, on the runtime clock. `MessageStarted` never waits.
 * `Duration.infinity` is a model that emits nothing more.
 *
 * @category entries
 * @since 0.1.0
 */
export const delay = (duration: Duration.Input): Entry => ({ _tag: "Delay", millis: Duration.toMillis(duration) })

/**
 * The end of the message. Entries after it are ignored; a script without it ends with finish reason `null`.
 *
 * @category entries
 * @since 0.1.0
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
 * An `Error` event, after which the message ends with finish reason `null`. A reason of `AdapterError` becomes that
 * error (with `details`, if given), an `AdapterError` stands as it is, and anything else is the cause of an `unknown`
 * one. `generate` fails.
 *
 * @category entries
 * @since 0.1.0
 */
export const error = (reasonOrTerm: unknown, details?: ErrorDetails): Entry => ({
  _tag: "Error",
  error: reasonOrTerm,
  ...(details === undefined ? {} : { details })
})

/**
 * An `Error` event after which the script continues, as with a few providers.
 *
 * @category entries
 * @since 0.1.0
 */
export const errorThenContinue = (reasonOrTerm: unknown, details?: ErrorDetails): Entry => ({
  _tag: "ErrorThenContinue",
  error: reasonOrTerm,
  ...(details === undefined ? {} : { details })
})

/**
 * The stream itself fails here, as when the connection breaks: no event, no end of the message.
 *
 * @category entries
 * @since 0.1.0
 */
export const streamError = (reason: Reason, details: ErrorDetails = {}): Entry => ({
  _tag: "StreamError",
  reason,
  details
})

/**
 * The open fails: no event at all. Only the first entry of a call can be one.
 *
 * @category entries
 * @since 0.1.0
 */
export const preflightError = (reason: Reason, details: ErrorDetails = {}): Entry => ({
  _tag: "PreflightError",
  reason,
  details
})

/**
 * A whole reply from its parts, as the entries that play it. The finish reason is `"tool_calls"` if there are calls
 * and `"stop"` otherwise, unless it is given.
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
 * @since 0.1.0
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
 * The position in a script: the call that is played next. A cursor of your own may play calls in any order.
 *
 * @category models
 * @since 0.1.0
 */
export interface Cursor {
  /** Gives the position, from 0, and moves on. */
  readonly next: Effect.Effect<number>
  /** Gives the position. */
  readonly position: Effect.Effect<number>
}

/**
 * The script of an adapter, and its options.
 *
 * @category models
 * @since 0.1.0
 */
export interface Options {
  /** The entries of one call. Not together with `scripts`, which is a defect. */
  readonly script?: ReadonlyArray<Entry>
  /** The entries of each call. */
  readonly scripts?: ReadonlyArray<ReadonlyArray<Entry>>
  /** The entries for `stream` alone, where they win; a flat list is one call. `generate` does not see them. */
  readonly streamScript?: ReadonlyArray<Entry> | ReadonlyArray<ReadonlyArray<Entry>>
  /** Replaces the usage of every call. */
  readonly usage?: Partial<Response.Usage>
  /** Stands in the response of `generate`. */
  readonly requestId?: string
  /** A cursor that is shared with other adapters. One of its own by default. */
  readonly cursor?: Cursor
  /** The calls before this number fail as `rate_limited` and play nothing. None do by default. */
  readonly retryUntilCall?: number
  /**
   * The number of events that the stream emits at once, at most. As many as there are up to the next delay by default.
   */
  readonly chunkSize?: number
}

/**
 * The input that an adapter is made from: the entries of one call, a list of calls, or options.
 *
 * @category models
 * @since 0.1.0
 */
export type Input = ReadonlyArray<Entry> | ReadonlyArray<ReadonlyArray<Entry>> | Options
