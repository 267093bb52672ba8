/**
 * Messages exchanged with a model, and the tool calls they contain. Everything here is immutable plain data and
 * round-trips through JSON. Typed fields hold the runtime's knowledge about a message; `metadata` belongs to the
 * caller.
 */
import * as Schema from "effect/Schema"
import * as ToolOutcomes from "./internal/declare/outcome.ts"
import * as Json from "./internal/json.ts"

/**
 * Message author: `system` instructs, `user` asks, `assistant` is the model, `tool` answers one tool call.
 *
 * @category schemas
 */
export const Role = Schema.Literals(["system", "user", "assistant", "tool"])

/**
 * @see {@link Role}
 *
 * @category models
 */
export type Role = (typeof Role)["Type"]

/**
 * Reason not to trust a call's arguments: the text was not JSON, never arrived in full, was cut off by the token limit,
 * was JSON but not an object, or nests deeper than 256 levels. Such a call is answered with an error and does not run,
 * unless `Policy.badArguments` says otherwise.
 *
 * @category schemas
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
 */
export type ArgumentsLost = (typeof ArgumentsLost)["Type"]

/**
 * One tool call requested by the model.
 *
 * @category schemas
 */
export class ToolCall extends Schema.Opaque<ToolCall>()(Schema.Struct({
  /** Call id, to which the answer refers. A run gives its calls ids unique in the thread. */
  id: Schema.String,
  /** Tool name, as written by the model. */
  name: Schema.String,
  /** Parsed arguments. `{}` if lost (`argumentsLost`). */
  arguments: Schema.Record(Schema.String, Json.Opaque),
  /** JSON text of the arguments before parsing. Absent without such text. */
  rawArguments: Schema.optionalKey(Schema.String),
  /**
   * Reason not to trust the arguments. By default the call is answered with an error and does not run
   * (`Policy.badArguments`). Absent for trustworthy arguments.
   */
  argumentsLost: Schema.optionalKey(ArgumentsLost),
  /** `true` for a call already run by the provider. Such a call is listed, and neither run nor answered here. */
  providerExecuted: Schema.optionalKey(Schema.Boolean),
  /** Data attached to the call by you or the adapter. `{}` by default. */
  metadata: Json.Metadata
})) {}

/**
 * Text in a message.
 *
 * @category schemas
 */
export class TextPart extends Schema.Opaque<TextPart>()(Schema.Struct({
  /** Part kind. */
  type: Schema.Literal("text"),
  /** The text. */
  text: Schema.String
})) {}

/**
 * An image in a message, by `url` or as `data`.
 *
 * @category schemas
 */
export class ImagePart extends Schema.Opaque<ImagePart>()(Schema.Struct({
  /** Part kind. */
  type: Schema.Literal("image"),
  /** Address from which the provider fetches the image. Give either this or `data`. */
  url: Schema.optionalKey(Schema.String),
  /** The image in base64. Give either this or `url`. */
  data: Schema.optionalKey(Schema.String),
  /** Media type, such as `"image/png"`. Most providers require it with `data`. */
  mediaType: Schema.optionalKey(Schema.String),
  /** Fields for one protocol, under a key with its name. Other protocols ignore them. */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
})) {}

/**
 * A file in a message, by `url` or as `data`.
 *
 * @category schemas
 */
export class FilePart extends Schema.Opaque<FilePart>()(Schema.Struct({
  /** Part kind. */
  type: Schema.Literal("file"),
  /** Address from which the provider fetches the file. Give either this or `data`. */
  url: Schema.optionalKey(Schema.String),
  /** The file in base64, or the plain text of a text file. Give either this or `url`. */
  data: Schema.optionalKey(Schema.String),
  /** Media type, such as `"application/pdf"`. Most providers require it with `data`. */
  mediaType: Schema.optionalKey(Schema.String),
  /** File name shown to the model. */
  filename: Schema.optionalKey(Schema.String),
  /**
   * Fields for one protocol, under a key with its name, such as `{ anthropic: { title, context, citations } }`. Other
   * protocols ignore them.
   */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
})) {}

/**
 * Model reasoning, sent back unchanged.
 *
 * @category schemas
 */
export class ReasoningPart extends Schema.Opaque<ReasoningPart>()(Schema.Struct({
  /** Part kind. */
  type: Schema.Literal("reasoning"),
  /** Reasoning as text. `""` if the provider reveals nothing. */
  text: Schema.String,
  /** Provider signature, required for the provider to accept the reasoning again. Absent without a signature. */
  signature: Schema.optionalKey(Schema.String),
  /** Further data to send back, under a key with the protocol's name. Other protocols ignore it. */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
})) {}

/**
 * A piece of a message: text, an image, a file, or reasoning.
 *
 * @category schemas
 */
export const Part = Schema.Opaque<Part>()(Schema.Union([TextPart, ImagePart, FilePart, ReasoningPart]))

/**
 * @see {@link Part}
 *
 * @category models
 */
export type Part = TextPart | ImagePart | FilePart | ReasoningPart

/**
 * One message of a thread.
 *
 * @category schemas
 */
export class Message extends Schema.Opaque<Message>()(Schema.Struct({
  /** Message author. */
  role: Role,
  /** Content: a text, or parts. */
  content: Schema.Union([Schema.String, Schema.Array(Part)]),
  /** Speaker name, for providers distinguishing several users. */
  name: Schema.optionalKey(Schema.String),
  /** Id of the call answered by a `tool` message. */
  toolCallId: Schema.optionalKey(Schema.String),
  /** `true` if the answer in a `tool` message is an error, else absent. */
  isError: Schema.optionalKey(Schema.Boolean),
  /**
   * Reason of the `Tool.ToolError` reported by a `tool` message, such as `"denied"`, `"timeout"` or `"cancelled"`. It
   * is not sent to the model. Absent for a result, for an error reported by a handler, and if `Policy.callFacts` hides
   * the code.
   */
  code: Schema.optionalKey(ToolOutcomes.ToolError.fields.reason),
  /** Reason why a model message ended. `null` if the provider gave no reason. */
  finishReason: Schema.optionalKey(Schema.NullOr(ToolOutcomes.FinishReason)),
  /** Calls made by a model message. Absent without calls. */
  toolCalls: Schema.optionalKey(Schema.Array(ToolCall)),
  /** Reasoning to send back with a model message. */
  reasoning: Schema.optionalKey(Schema.Array(Part)),
  /** `true` for a question from a tool waiting for the user. */
  askUser: Schema.optionalKey(Schema.Boolean),
  /** Data attached to the message by you. It is not sent to the model. `{}` by default. */
  metadata: Json.Metadata
})) {}

/**
 * A message as written by a caller: `metadata` is optional.
 *
 * @category models
 */
export interface Input extends Omit<Message, "metadata"> {
  /** Data attached to the message by you. It is not sent to the model. `{}` by default. */
  readonly metadata?: Message["metadata"]
}

/**
 * Message content: a text, or parts.
 *
 * @category models
 */
export type Content = Message["content"]

/**
 * Makes a system message.
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
 */
export const system = (content: Content): Message => ({
  role: "system",
  content: Json.wellFormed(content),
  metadata: Json.none
})

/**
 * Makes a user message.
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
 */
export const user = (content: Content): Message => ({
  role: "user",
  content: Json.wellFormed(content),
  metadata: Json.none
})

/**
 * Makes an assistant message, with its tool calls, if any.
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
 */
export const assistant = (content: Content, toolCalls?: ReadonlyArray<ToolCall>): Message =>
  toolCalls === undefined || toolCalls.length === 0
    ? { role: "assistant", content: Json.wellFormed(content), metadata: Json.none }
    : { role: "assistant", content: Json.wellFormed(content), toolCalls, metadata: Json.none }

/**
 * Makes the answer to one tool call.
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
 */
export const tool = (toolCallId: string, content: Content): Message => ({
  role: "tool",
  toolCallId,
  content: Json.wellFormed(content),
  metadata: Json.none
})

const isParts = Schema.is(Schema.Array(Part))

/**
 * Makes the answer to a call run by the caller: texts and part lists stay unchanged, objects become JSON, everything
 * else becomes readable text. The run's encoder is not used.
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
 * Makes a tool call with its arguments.
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
 */
export const toolCall = (id: string, name: string, args: ToolCall["arguments"] = {}): ToolCall => ({
  id,
  name,
  arguments: args,
  metadata: Json.none
})

/**
 * Returns a message's text: its content, or its text parts joined.
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
 */
export const text = (message: Pick<Message, "content">): string =>
  typeof message.content === "string"
    ? message.content
    : message.content.flatMap((part) => part.type === "text" ? [part.text] : []).join("")
