/**
 * The messages exchanged with a model, and the tool calls inside them. Everything here is immutable plain data that
 * round-trips through JSON; what the runtime knows about a message stands in typed fields, `metadata` is the caller's.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"
import * as Contents from "./internal/answer/content.ts"
import * as FinishReasons from "./internal/hear/finishReason.ts"
import * as Json from "./internal/json.ts"

/**
 * Who speaks: `system` instructs, `user` asks, `assistant` is the model, `tool` answers one tool call.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Role = Schema.Literals(["system", "user", "assistant", "tool"])

/**
 * @see {@link Role}
 *
 * @category models
 * @since 0.1.0
 */
export type Role = (typeof Role)["Type"]

/**
 * Why a call's arguments cannot be trusted: the text was no JSON, it or a piece of it never arrived, it was cut off by
 * the token limit, it was JSON but no object, or it nests deeper than 256 levels. Such a call is answered and never run.
 *
 * @category schemas
 * @since 0.1.0
 */
export const ArgumentsLost = Schema.Literals([
  "json_decode_error",
  "missing_fragments",
  "truncated",
  "not_an_object",
  "too_deep"
])

/**
 * @see {@link ArgumentsLost}
 *
 * @category models
 * @since 0.1.0
 */
export type ArgumentsLost = (typeof ArgumentsLost)["Type"]

/**
 * One request of the model to run a tool. `arguments` is the parsed object, `rawArguments` the text it came from.
 * `argumentsLost` marks a call whose arguments did not arrive whole; `providerExecuted` one that ran at the provider
 * and is listed only.
 *
 * @category schemas
 * @since 0.1.0
 */
export const ToolCall = Schema.Struct({
  id: Schema.String,
  name: Schema.String,
  arguments: Schema.Record(Schema.String, Json.Opaque),
  rawArguments: Schema.optionalKey(Schema.String),
  argumentsLost: Schema.optionalKey(ArgumentsLost),
  providerExecuted: Schema.optionalKey(Schema.Boolean),
  metadata: Json.Metadata
})

/**
 * @see {@link ToolCall}
 *
 * @category models
 * @since 0.1.0
 */
export type ToolCall = (typeof ToolCall)["Type"]

/**
 * A piece of a message: text, an image or a file (by `url` or inline base64 `data`; of a
 * file of text, `data` may be the text itself), or reasoning that has to be sent
 * back unchanged with the `signature` the provider gave it. `metadata` holds what else has to go back, under one key
 * named after the protocol it came by, so that every other protocol leaves it alone. Of a file or an image it holds what
 * one protocol is told besides: `{ anthropic: { title, context, citations } }` of a document.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Part = Schema.Union([
  Schema.Struct({ type: Schema.Literal("text"), text: Schema.String }),
  Schema.Struct({
    type: Schema.Literal("image"),
    url: Schema.optionalKey(Schema.String),
    data: Schema.optionalKey(Schema.String),
    mediaType: Schema.optionalKey(Schema.String),
    metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
  }),
  Schema.Struct({
    type: Schema.Literal("file"),
    url: Schema.optionalKey(Schema.String),
    data: Schema.optionalKey(Schema.String),
    mediaType: Schema.optionalKey(Schema.String),
    filename: Schema.optionalKey(Schema.String),
    metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
  }),
  Schema.Struct({
    type: Schema.Literal("reasoning"),
    text: Schema.String,
    signature: Schema.optionalKey(Schema.String),
    metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
  })
])

/**
 * @see {@link Part}
 *
 * @category models
 * @since 0.1.0
 */
export type Part = (typeof Part)["Type"]

/**
 * One message. A `tool` message carries the `toolCallId` it answers, and `isError` when the answer tells of a failure.
 * An assistant message of the runtime carries `finishReason`, the `toolCalls` it made, and the reasoning to send back;
 * `askUser` marks the question of a tool that waits for the user.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Message = Schema.Struct({
  role: Role,
  content: Schema.Union([Schema.String, Schema.Array(Part)]),
  name: Schema.optionalKey(Schema.String),
  toolCallId: Schema.optionalKey(Schema.String),
  isError: Schema.optionalKey(Schema.Boolean),
  finishReason: Schema.optionalKey(Schema.NullOr(FinishReasons.FinishReason)),
  toolCalls: Schema.optionalKey(Schema.Array(ToolCall)),
  reasoning: Schema.optionalKey(Schema.Array(Part)),
  askUser: Schema.optionalKey(Schema.Boolean),
  metadata: Json.Metadata
})

/**
 * @see {@link Message}
 *
 * @category models
 * @since 0.1.0
 */
export type Message = (typeof Message)["Type"]

/**
 * A message as a caller may write it: `metadata` can be left out.
 *
 * @category models
 * @since 0.1.0
 */
export type Input = Omit<Message, "metadata"> & { readonly metadata?: Message["metadata"] }

/**
 * The content of a message: a text, or parts.
 *
 * @category models
 * @since 0.1.0
 */
export type Content = Message["content"]

/**
 * A system message.
 *
 * @category constructors
 * @since 0.1.0
 */
export const system = (content: Content): Message => ({ role: "system", content, metadata: Json.none })

/**
 * A user message.
 *
 * **Example** (Asking with a picture)
 *
 * ```ts import.meta.vitest
 * import { Message } from "heddle"
 *
 * const message = Message.user([
 *   { type: "text", text: "What is this?" },
 *   { type: "image", url: "https://example.com/cat.png" }
 * ])
 *
 * Message.text(message) // => "What is this?"
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const user = (content: Content): Message => ({ role: "user", content, metadata: Json.none })

/**
 * An assistant message, with the tool calls it made, if any.
 *
 * @category constructors
 * @since 0.1.0
 */
export const assistant = (content: Content, toolCalls?: ReadonlyArray<ToolCall>): Message =>
  toolCalls === undefined || toolCalls.length === 0
    ? { role: "assistant", content, metadata: Json.none }
    : { role: "assistant", content, toolCalls, metadata: Json.none }

/**
 * The answer to one tool call.
 *
 * @category constructors
 * @since 0.1.0
 */
export const tool = (toolCallId: string, content: Content): Message => ({
  role: "tool",
  toolCallId,
  content,
  metadata: Json.none
})

const isParts = Schema.is(Schema.Array(Part))

/**
 * The answer to a call that the caller runs itself: texts and lists of parts as they are, objects as JSON, everything
 * else as it reads. A run's own encoder is not asked.
 *
 * **Example** (Answering a manual call)
 *
 * ```ts import.meta.vitest
 * import { Message } from "heddle"
 *
 * Message.answer("call_1", "approved").content // => "approved"
 * Message.answer("call_1", { approved: true }).content // => '{"approved":true}'
 * Message.answer("call_1", 42).content // => "42"
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const answer = (toolCallId: string, value: unknown): Message => {
  if (typeof value === "string") return tool(toolCallId, value)
  const content = Contents.partsOf(value)
  if (content !== undefined) return tool(toolCallId, content)
  if (Array.isArray(value) && value.length > 0 && isParts(value)) return tool(toolCallId, Contents.owned(value))
  return tool(toolCallId, Json.isObject(value) ? JSON.stringify(Json.toJson(value)) : Json.render(value))
}

/**
 * A tool call with its arguments.
 *
 * **Example** (A call as a model makes it)
 *
 * ```ts import.meta.vitest
 * import { Message } from "heddle"
 *
 * Message.toolCall("call_1", "get_weather", { city: "Oslo" }).arguments // => { city: "Oslo" }
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const toolCall = (id: string, name: string, args: ToolCall["arguments"] = {}): ToolCall => ({
  id,
  name,
  arguments: args,
  metadata: Json.none
})

/**
 * The text of a message: its content, or its text parts joined.
 *
 * @category getters
 * @since 0.1.0
 */
export const text = (message: Pick<Message, "content">): string =>
  typeof message.content === "string"
    ? message.content
    : message.content.flatMap((part) => part.type === "text" ? [part.text] : []).join("")
