/**
 * The messages exchanged with a model, and the tool calls inside them. Everything here is immutable plain data that
 * round-trips through JSON; what the runtime knows about a message stands in typed fields, `metadata` is the caller's.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"
import * as ToolOutcomes from "./internal/declare/outcome.ts"
import * as Json from "./internal/json.ts"

/**
 * The author of a message: `system` instructs, `user` asks, `assistant` is the model, `tool` answers one tool call.
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
 * The reason why a call's arguments cannot be trusted: the text was no JSON, it or a piece of it never arrived, it was
 * cut off by the token limit, it was JSON but no object, or it nests deeper than 256 levels. Such a call is answered
 * and never run.
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
 * One request of the model to run a tool.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ToolCall extends Schema.Opaque<ToolCall>()(Schema.Struct({
  /** The id by which the call is answered. Unique in its thread. */
  id: Schema.String,
  /** The name of the tool, as the model wrote it. */
  name: Schema.String,
  /** The parsed arguments. `{}` when they were lost (`argumentsLost`). */
  arguments: Schema.Record(Schema.String, Json.Opaque),
  /** The JSON text that the arguments were parsed from. Left out when there was none. */
  rawArguments: Schema.optionalKey(Schema.String),
  /**
   * The reason why the arguments cannot be trusted. The call is answered with an error and never run. Left out when
   * they can.
   */
  argumentsLost: Schema.optionalKey(ArgumentsLost),
  /** `true` for a call that the provider has run itself. It is listed, and neither run nor answered here. */
  providerExecuted: Schema.optionalKey(Schema.Boolean),
  /** The data that the adapter or you attach to the call. `{}` by default. */
  metadata: Json.Metadata
})) {}

/**
 * Text in a message.
 *
 * @category schemas
 * @since 0.1.0
 */
export class TextPart extends Schema.Opaque<TextPart>()(Schema.Struct({
  /** The kind of the part. */
  type: Schema.Literal("text"),
  /** The text. */
  text: Schema.String
})) {}

/**
 * An image in a message, by `url` or as `data`.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ImagePart extends Schema.Opaque<ImagePart>()(Schema.Struct({
  /** The kind of the part. */
  type: Schema.Literal("image"),
  /** The address from which the provider fetches the image. Give this or `data`. */
  url: Schema.optionalKey(Schema.String),
  /** The image in base64. Give this or `url`. */
  data: Schema.optionalKey(Schema.String),
  /** The media type, such as `"image/png"`. Needed with `data` by most providers. */
  mediaType: Schema.optionalKey(Schema.String),
  /** Fields for one protocol, under a key named after it. Other protocols ignore them. */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
})) {}

/**
 * A file in a message, by `url` or as `data`.
 *
 * @category schemas
 * @since 0.1.0
 */
export class FilePart extends Schema.Opaque<FilePart>()(Schema.Struct({
  /** The kind of the part. */
  type: Schema.Literal("file"),
  /** The address from which the provider fetches the file. Give this or `data`. */
  url: Schema.optionalKey(Schema.String),
  /** The file in base64, or, for a text file, its text. Give this or `url`. */
  data: Schema.optionalKey(Schema.String),
  /** The media type, such as `"application/pdf"`. Needed with `data` by most providers. */
  mediaType: Schema.optionalKey(Schema.String),
  /** The name that the model reads. */
  filename: Schema.optionalKey(Schema.String),
  /**
   * Fields for one protocol, under a key named after it, such as
   * `{ anthropic: { title, context, citations } }`. Other protocols ignore them.
   */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
})) {}

/**
 * Reasoning of the model, which is sent back unchanged.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ReasoningPart extends Schema.Opaque<ReasoningPart>()(Schema.Struct({
  /** The kind of the part. */
  type: Schema.Literal("reasoning"),
  /** The reasoning as text. `""` when the provider shows none. */
  text: Schema.String,
  /** The provider's signature, without which it does not accept the reasoning. Left out when it gave none. */
  signature: Schema.optionalKey(Schema.String),
  /** Further data that has to be sent back, under a key named after the protocol. Other protocols ignore it. */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
})) {}

/**
 * A piece of a message: text, an image, a file, or reasoning.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Part = Schema.Opaque<Part>()(Schema.Union([TextPart, ImagePart, FilePart, ReasoningPart]))

/**
 * @see {@link Part}
 *
 * @category models
 * @since 0.1.0
 */
export type Part = TextPart | ImagePart | FilePart | ReasoningPart

/**
 * One message of a thread.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Message extends Schema.Opaque<Message>()(Schema.Struct({
  /** The author of the message. */
  role: Role,
  /** The content: a text, or parts. */
  content: Schema.Union([Schema.String, Schema.Array(Part)]),
  /** The name of the speaker, for providers that distinguish several users. */
  name: Schema.optionalKey(Schema.String),
  /** The id of the call that a `tool` message answers. */
  toolCallId: Schema.optionalKey(Schema.String),
  /** `true` when the answer of a `tool` message is an error. Left out when it is not. */
  isError: Schema.optionalKey(Schema.Boolean),
  /**
   * The reason of the `Tool.ToolError` that a `tool` message tells, such as `"denied"`, `"timeout"` or `"cancelled"`.
   * It is not sent to the model. Left out of a result, of an error that a handler reports, and where `Policy.callFacts`
   * hides it.
   */
  code: Schema.optionalKey(ToolOutcomes.ToolError.fields.reason),
  /** The reason why a message of the model ended. `null` when the provider gave no reason. */
  finishReason: Schema.optionalKey(Schema.NullOr(ToolOutcomes.FinishReason)),
  /** The calls that a message of the model makes. Left out when there are none. */
  toolCalls: Schema.optionalKey(Schema.Array(ToolCall)),
  /** The reasoning that has to be sent back with a message of the model. */
  reasoning: Schema.optionalKey(Schema.Array(Part)),
  /** `true` for the question of a tool that waits for the user. */
  askUser: Schema.optionalKey(Schema.Boolean),
  /** The data that you attach to the message. It is not sent to the model. `{}` by default. */
  metadata: Json.Metadata
})) {}

/**
 * A message as a caller may write it: `metadata` can be left out.
 *
 * @category models
 * @since 0.1.0
 */
export interface Input extends Omit<Message, "metadata"> {
  /** The data that you attach to the message. It is not sent to the model. `{}` by default. */
  readonly metadata?: Message["metadata"]
}

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
 * **Example** (An instruction)
 *
 * ```ts import.meta.vitest
 * import { Message } from "heddle"
 *
 * Message.system("Answer in one line.").role // => "system"
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const system = (content: Content): Message => ({
  role: "system",
  content: Json.wellFormed(content),
  metadata: Json.none
})

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
export const user = (content: Content): Message => ({
  role: "user",
  content: Json.wellFormed(content),
  metadata: Json.none
})

/**
 * An assistant message, with the tool calls it made, if any.
 *
 * **Example** (A message with a call)
 *
 * ```ts import.meta.vitest
 * import { Message } from "heddle"
 *
 * const message = Message.assistant("", [Message.toolCall("c0", "search", { text: "heddle" })])
 *
 * message.toolCalls?.map((call) => call.name) // => ["search"]
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const assistant = (content: Content, toolCalls?: ReadonlyArray<ToolCall>): Message =>
  toolCalls === undefined || toolCalls.length === 0
    ? { role: "assistant", content: Json.wellFormed(content), metadata: Json.none }
    : { role: "assistant", content: Json.wellFormed(content), toolCalls, metadata: Json.none }

/**
 * The answer to one tool call.
 *
 * **Example** (An answer)
 *
 * ```ts import.meta.vitest
 * import { Message } from "heddle"
 *
 * Message.tool("c0", "7 °C").toolCallId // => "c0"
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const tool = (toolCallId: string, content: Content): Message => ({
  role: "tool",
  toolCallId,
  content: Json.wellFormed(content),
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
  const content = ToolOutcomes.partsOf(value)
  if (content !== undefined) return tool(toolCallId, content)
  if (Array.isArray(value) && value.length > 0 && isParts(value)) return tool(toolCallId, ToolOutcomes.owned(value))
  return tool(
    toolCallId,
    Json.isObject(value) ? Json.wellFormedJson(JSON.stringify(Json.toJson(value))) : Json.render(value)
  )
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
 * **Example** (The text of a list of parts)
 *
 * ```ts import.meta.vitest
 * import { Message } from "heddle"
 *
 * Message.text(Message.user([{ type: "text", text: "What is " }, { type: "text", text: "this?" }])) // => "What is this?"
 * ```
 *
 * @category getters
 * @since 0.1.0
 */
export const text = (message: Pick<Message, "content">): string =>
  typeof message.content === "string"
    ? message.content
    : message.content.flatMap((part) => part.type === "text" ? [part.text] : []).join("")
