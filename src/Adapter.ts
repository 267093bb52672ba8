/**
 * The seam to a model: one request in, one stream of events out. An adapter owns its connection through the stream's
 * scope, so that closing the stream closes the connection.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import type * as Stream from "effect/Stream"
import type * as Event from "./Event.ts"
import * as Json from "./internal/json.ts"
import type * as Message from "./Message.ts"
import type * as Tool from "./Tool.ts"

/**
 * Which tool the model may, must or must not call: `"auto"`, `"none"`, `"required"`, or one tool by name.
 *
 * @category models
 * @since 0.1.0
 */
export type ToolChoice = "auto" | "none" | "required" | { readonly name: string }

/**
 * The form of the answer: plain text, any JSON object, or JSON that fits a schema.
 *
 * @category models
 * @since 0.1.0
 */
export type ResponseFormat =
  | { readonly type: "text" }
  | { readonly type: "json_object" }
  | {
    readonly type: "json_schema"
    readonly name: string
    readonly schema: Readonly<Record<string, unknown>>
    readonly strict?: boolean
  }

/**
 * One model call. It holds what concerns the model and nothing of how the run is driven. `options` are handed to the
 * provider as they are.
 *
 * @category models
 * @since 0.1.0
 */
export interface Request {
  readonly messages: ReadonlyArray<Message.Message>
  readonly tools: ReadonlyArray<Tool.Definition>
  readonly model?: string
  readonly toolChoice?: ToolChoice
  readonly temperature?: number
  readonly maxTokens?: number
  readonly responseFormat?: ResponseFormat
  readonly options?: Readonly<Record<string, unknown>>
}

const retryable: ReadonlyArray<string> = ["rate_limited", "provider_unavailable", "timeout", "network_error"]

/**
 * What went wrong between this side and the model. `quota_exceeded` is a limit that waiting does not lift: money or a
 * plan is used up, which providers report like a rate limit. `retryAfterMillis` is what the provider asked for, in
 * milliseconds; `status` the HTTP status; `requestId` the provider's name for the request.
 *
 * @category errors
 * @since 0.1.0
 */
export class AdapterError extends Schema.TaggedError<AdapterError>("heddle/Adapter/AdapterError")("AdapterError", {
  reason: Schema.Literals([
    "rate_limited",
    "quota_exceeded",
    "authentication_failed",
    "invalid_request",
    "provider_unavailable",
    "context_length_exceeded",
    "content_filter",
    "timeout",
    "network_error",
    "malformed_response",
    "unsupported_feature",
    "no_scripted_response",
    "unknown"
  ]),
  detail: Schema.optionalKey(Schema.String),
  provider: Schema.optionalKey(Schema.String),
  status: Schema.optionalKey(Schema.Int),
  retryAfterMillis: Schema.optionalKey(Schema.Finite),
  requestId: Schema.optionalKey(Schema.String),
  cause: Schema.optionalKey(Json.Opaque),
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
}) {
  override get message(): string {
    const subject = this.provider === undefined ? "adapter error" : `adapter error (${this.provider})`
    return `${subject}: ${this.reason}${this.detail === undefined ? "" : `: ${this.detail}`}`
  }

  /** Whether the same request may succeed later. */
  get isRetryable(): boolean {
    return retryable.includes(this.reason)
  }
}

/**
 * The service that reaches a model.
 *
 * **Details**
 *
 * Nothing happens before the first pull. The stream starts with `MessageStarted` and ends with `MessageCompleted`;
 * `TextCompleted` repeats the whole text, `ToolCallCompleted` says that a call's arguments are final. A failure before
 * the first event fails the stream; one after it fails the stream too, and the step turns it into an `Error` event.
 * When the stream's scope closes, the connection is closed.
 *
 * @category services
 * @since 0.1.0
 */
export class Adapter extends Context.Service<Adapter, {
  readonly stream: (request: Request) => Stream.Stream<Event.AdapterEvent, AdapterError>
}>()("heddle/Adapter") {}

/**
 * A layer from an adapter.
 *
 * **Example** (An adapter for a test)
 *
 * ```ts import.meta.vitest
 * import { Adapter, Chat, Message } from "heddle"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const parrot = Adapter.layer({
 *   stream: () =>
 *     Stream.make(
 *       { _tag: "MessageStarted", message: Message.assistant("") },
 *       { _tag: "TextDelta", id: null, delta: "Hello" },
 *       { _tag: "TextCompleted", id: null, text: "Hello" },
 *       { _tag: "MessageCompleted", message: Message.assistant("Hello"), finishReason: "stop" }
 *     )
 * })
 * const result = await Effect.runPromise(Chat.run("Say hello").pipe(Effect.provide(parrot)))
 *
 * result.finalResponse?.outputText // => "Hello"
 * ```
 *
 * @category layers
 * @since 0.1.0
 */
export const layer = (adapter: Adapter["Service"]): Layer.Layer<Adapter> => Layer.succeed(Adapter, adapter)
