/**
 * Writes a Responses request: the tools, the answer format, and the thread as input items. These are messages, calls,
 * outputs, and values kept from earlier replies, each in its place. Values from other protocols are ignored. The
 * request omits items still waiting for an answer, and reasoning with nothing after it: servers refuse both.
 */
import type * as Adapter from "../../Adapter.ts"
import * as Json from "../../internal/json.ts"
import * as Message from "../../Message.ts"
import type * as Tool from "../../Tool.ts"
import * as Media from "./media.ts"
import { metadataKey, unanswered } from "./responsesReply.ts"
import * as StrictSchema from "./strictSchema.ts"
import * as Wire from "./wire.ts"

/** Request fields derived from the thread. */
export interface Input {
  readonly instructions: string | undefined
  readonly items: ReadonlyArray<Json.JsonObject>
}

/**
 * Writes a thread. Leading system messages become its instructions; without other messages they are the entire input.
 */
export const write = (messages: ReadonlyArray<Message.Message>, isStored: boolean, server: string): Input => {
  const calls = new Calls(server)
  const first = messages.findIndex((message) => message.role !== "system")
  const leading = first < 0 ? [] : messages.slice(0, first)
  return {
    instructions: leading.length === 0 ? undefined : leading.map(Message.text).join("\n\n"),
    items: messages.slice(leading.length).flatMap((message) => itemsOf(message, calls, isStored))
  }
}

const itemsOf = (message: Message.Message, calls: Calls, isStored: boolean): ReadonlyArray<Json.JsonObject> => {
  switch (message.role) {
    case "system":
      return [{ role: "system", content: Message.text(message) }]
    case "user":
      return [{ role: "user", content: typeof message.content === "string" ? message.content : parts(message.content) }]
    case "assistant":
      return assistantItems(message, calls, isStored)
    case "tool":
      return [calls.answer(message)]
  }
}

/** Id rules, with the protocol's own limit: some servers make ids almost as long. */
const ids: Wire.IdRules = { longest: 64, mayRepeat: false }

/** Tracks sent call ids and each call's item type. */
class Calls {
  private readonly ids: Wire.SentIds
  /** Type of the latest call per id. */
  private readonly types = new Map<string, string>()

  constructor(server: string) {
    this.ids = new Wire.SentIds(ids, Wire.isCallOf(metadataKey, server))
  }

  /** Writes a message's calls as items. Subsequent answers refer to these calls. */
  open(calls: ReadonlyArray<Message.ToolCall>): ReadonlyArray<Placed> {
    const idOf = this.ids.turn(calls)
    return calls.map((call) => {
      const kept = Wire.object(call.metadata[metadataKey])
      this.types.set(call.id, Wire.string(Wire.object(kept["item"])["type"]) ?? "function_call")
      return callItem(call, kept, idOf(call))
    })
  }

  answer(message: Message.Message): Json.JsonObject {
    const { toolCallId = "" } = message
    const type = this.types.get(toolCallId) ?? "function_call"
    return { type: `${type}_output`, call_id: this.ids.answered(toolCallId), output: outputOf(message) }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// content

const parts = (content: ReadonlyArray<Message.Part>): ReadonlyArray<Json.JsonObject> =>
  content.flatMap((part) => Media.isMedia(part) ? [media(part)] : part.type === "text" ? [text(part.text)] : [])

/** Returns a tool answer, as plain text if possible, because some servers refuse parts. */
const outputOf = ({ content }: Message.Message): string | ReadonlyArray<Json.JsonObject> => {
  if (typeof content === "string" || Media.held(content, isHeld).length === 0) {
    return Media.textWith(content, isHeld)
  }
  return parts(
    content.map((part) => Media.isMedia(part) && !isHeld(part) ? { type: "text", text: Media.line(part) } : part)
  )
}

const document =
  /^application\/(pdf|rtf|msword|vnd\.(openxmlformats-officedocument|oasis\.opendocument|ms-excel|ms-powerpoint))/

/**
 * Returns `true` for content allowed in an answer: images, and files the provider reads as documents. The provider
 * refuses audio.
 */
const isHeld = (part: Media.Media): boolean => {
  const type = Media.plainTypeOf(part)
  if (isUploaded(part.url)) return true
  if (part.data === undefined && !/^(data|https?):/i.test(part.url ?? "")) return false
  if (Media.isImage(part)) return Media.isCommonImage(part)
  return type === undefined ? part.data === undefined : document.test(type) || Media.isTextual(type)
}

const text = (value: string): Json.JsonObject => ({ type: "input_text", text: value })

/** Returns `true` for an upload id. */
const isUploaded = (url: string | undefined): boolean => url?.startsWith("file-") === true

const media = (value: Media.Media): Json.JsonObject => {
  const { url } = value
  if (Media.isImage(value)) {
    return {
      type: "input_image",
      ...(isUploaded(url) ? { file_id: url } : { image_url: url ?? Media.dataUri(value) })
    }
  }
  const sound = Media.inputAudio(value)
  if (sound !== undefined) return sound
  if (isUploaded(url)) return { type: "input_file", file_id: url }
  const isInline = url === undefined || url.startsWith("data:")
  if (!isInline) return { type: "input_file", file_url: url }
  const filename = (value.type === "file" ? value.filename : undefined) ??
    `file.${extensionOf(Media.plainTypeOf(value))}`
  return { type: "input_file", filename, file_data: url ?? Media.dataUri(value) }
}

/** Returns a file extension: an inline file needs a name, whose extension states its type. */
const extensionOf = (mediaType = ""): string =>
  mediaType === "text/plain" ? "txt" : /\/([a-z0-9]+)/i.exec(mediaType)?.[1] ?? "bin"

export const unsupported = (messages: ReadonlyArray<Message.Message>): string | undefined => Media.unsupported(messages)

// ---------------------------------------------------------------------------------------------------------------------
// the model's turn

/** An item, and its place in its reply. */
interface Placed {
  readonly place: number
  readonly item: Json.JsonObject
}

const placeOf = (kept: Json.JsonObject): number => Wire.number(kept["index"]) ?? Infinity

const assistantItems = (
  message: Message.Message,
  callIds: Calls,
  isStored: boolean
): ReadonlyArray<Json.JsonObject> => {
  const kept = Media.keptIn(Media.partsOf(message), metadataKey)
  const calls = callIds.open(Wire.ownCalls(message))
  const items = answered(kept).flatMap((one): ReadonlyArray<Placed> => {
    const item = Json.isObject(one["item"]) ? backItem(one["item"], isStored) : undefined
    return item === undefined ? [] : [{ place: placeOf(one), item }]
  })
  const texts = textItems(Message.text(message), kept, Math.min(...calls.map(({ place }) => place)))
  const placed = [...items, ...texts, ...calls].sort((left, right) => compare(left.place, right.place))
  return followed(placed.map(({ item }) => item))
}

/** Compares places. They may be infinite, so subtraction fails. */
const compare = (left: number, right: number): number => left === right ? 0 : left < right ? -1 : 1

const callItem = (call: Message.ToolCall, kept: Json.JsonObject, call_id: string): Placed => {
  const { index: _, item, server: __, ...rest } = kept
  const place = placeOf(kept)
  if (Json.isObject(item)) return { place, item: { ...item, call_id } }
  return {
    place,
    item: { ...rest, type: "function_call", call_id, name: call.name, arguments: Wire.argumentsOf(call) }
  }
}

/**
 * Divides a reply's text into its original messages. A changed text becomes one message without ids, in front of the
 * calls.
 */
const textItems = (said: string, kept: ReadonlyArray<Json.JsonObject>, firstCall: number): ReadonlyArray<Placed> => {
  const parts = kept.flatMap((one) => Json.isObject(one["message"]) ? [{ place: placeOf(one), ...one["message"] }] : [])
  const texts = Wire.divided(said, parts.map((part: Json.JsonObject) => part["length"]))
  if (texts === undefined || parts.length === 0) {
    return said === "" ? [] : [{ place: firstCall, item: { role: "assistant", content: said } }]
  }
  return parts.flatMap((part, position): ReadonlyArray<Placed> => {
    const item = messageItem(part, texts[position] ?? "")
    return item === undefined ? [] : [{ place: part.place, item }]
  })
}

const messageItem = (part: Json.JsonObject, text: string): Json.JsonObject | undefined => {
  const id = Wire.string(part["id"])
  const refusal = Wire.string(part["refusal"])
  const phase = Wire.defined({ phase: part["phase"] })
  if (id === undefined) return text === "" ? undefined : { role: "assistant", content: text, ...phase }
  const content = [
    ...(text === "" ? [] : [{ type: "output_text", text, annotations: [] }]),
    ...(refusal === undefined ? [] : [{ type: "refusal", refusal }])
  ]
  return content.length === 0
    ? undefined
    : { type: "message", id, role: "assistant", status: "completed", content, ...phase }
}

/**
 * Returns an item to send back. The server knows reasoning without content, plain or encrypted, only by id, and only
 * while it stores replies.
 */
const backItem = (item: Json.JsonObject, isStored: boolean): Json.JsonObject | undefined => {
  if (item["type"] !== "reasoning") return item
  const { content, encrypted_content, status: _, summary = [], ...rest } = item
  const isEmpty = (value: unknown): boolean => !Array.isArray(value) || value.length === 0
  const isEncrypted = Wire.string(encrypted_content) !== undefined
  if (!isStored && !isEncrypted && isEmpty(summary) && isEmpty(content)) return undefined
  return {
    ...rest,
    summary,
    ...(isEmpty(content) ? {} : { content }),
    ...(isEncrypted ? { encrypted_content } : {})
  }
}

/** Removes calls waiting for an answer no tool can give. */
const answered = (kept: ReadonlyArray<Json.JsonObject>): ReadonlyArray<Json.JsonObject> => {
  const items = kept.map((one) => Wire.object(one["item"]))
  const open = unanswered(items)
  return kept.filter((_, index) => !open.has(items[index] ?? {}))
}

/** Removes reasoning at the end, whose continuation is missing. */
const followed = (items: ReadonlyArray<Json.JsonObject>): ReadonlyArray<Json.JsonObject> =>
  items.slice(0, items.findLastIndex((item) => item["type"] !== "reasoning") + 1)

// ---------------------------------------------------------------------------------------------------------------------
// Tools and answer format. Provider tools come from the options and join the run's tools; strict mode rewrites schemas.

interface Options {
  readonly strict?: boolean
  readonly parallelToolCalls?: boolean
}

/**
 * Returns the provider tools declared to take text instead of arguments, or `undefined` if no provider tools are
 * declared.
 */
export const custom = (given: ReadonlyArray<Json.JsonObject>): ReadonlySet<string> | undefined =>
  given.length === 0
    ? undefined
    : new Set(given.flatMap(({ name, type }) => type === "custom" && typeof name === "string" ? [name] : []))

/** Writes the tools. Servers refuse tool settings in a request without tools. */
export const tools = (
  request: Adapter.Request,
  given: ReadonlyArray<Json.JsonObject>,
  options: Options
): Json.JsonObject => {
  const texts = custom(given)
  const own = request.tools.filter(({ name }) => texts?.has(name) !== true).map((one) => tool(one, options))
  return own.length + given.length === 0 ? {} : {
    tools: [...own, ...given],
    ...toolChoice(request.toolChoice, texts),
    ...Wire.defined({ parallel_tool_calls: options.parallelToolCalls })
  }
}

/** Writes a tool. Without an explicit `strict`, the provider would rewrite the schema. */
const tool = ({ description, name, parameters }: Tool.Definition, options: Options): Json.JsonObject => {
  const { isStrict, schema } = StrictSchema.written(parameters, options.strict === true, StrictSchema.openAi)
  return {
    type: "function",
    name,
    ...(description === "" ? {} : { description }),
    parameters: schema,
    strict: isStrict
  }
}

const toolChoice = (
  choice: Adapter.ToolChoice | undefined,
  texts: ReadonlySet<string> | undefined
): Json.JsonObject => {
  if (choice === undefined) return {}
  if (typeof choice === "string") return { tool_choice: choice }
  return { tool_choice: { type: texts?.has(choice.name) === true ? "custom" : "function", name: choice.name } }
}

/**
 * Writes the answer format. A schema without a strict form goes out unchanged: the server decides whether to accept it.
 */
export const format = (wanted: Adapter.ResponseFormat | undefined): Json.JsonObject => {
  if (wanted === undefined || wanted.type === "text") return {}
  if (wanted.type === "json_object") return { format: wanted }
  const { schema } = StrictSchema.written(wanted.schema, wanted.strict === true, StrictSchema.openAi)
  return { format: { ...wanted, schema } }
}
