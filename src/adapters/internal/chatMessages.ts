/**
 * The messages of Chat Completions, both ways: how a thread is written, and what the delta of a streamed reply, or the
 * message of a whole one, says. Reading is total: whatever has another form than expected is not there.
 */
import * as CallArguments from "../../internal/hear/callArguments.ts"
import * as CallIds from "../../internal/hear/callIds.ts"
import * as Json from "../../internal/json.ts"
import * as Message from "../../Message.ts"
import type * as CallFragments from "./callFragments.ts"
import type * as Vendors from "./chatVendors.ts"
import * as FileText from "./fileText.ts"
import * as ToolContent from "./toolContent.ts"
import { list, object, string } from "./wire.ts"

/** Under this key stands what has to go back to a server of this protocol, and to no other. */
export const metadataKey = "openaiChat"

// ---------------------------------------------------------------------------------------------------------------------
// writing

/** How messages are written for a server. */
export interface Style {
  readonly systemRole: "system" | "developer"
  readonly sendReasoningAs: Vendors.ReasoningForm
  readonly isReasoningOfLoop: boolean
}

/** What a tool's answer cannot hold here, such as an image, follows the answers of its turn in a user message, if that can. */
export const write = (messages: ReadonlyArray<Message.Message>, style: Style): ReadonlyArray<Json.JsonObject> => {
  const written: Array<Json.JsonObject> = []
  let attached: Array<Json.JsonObject> = []
  const flush = (): void => {
    if (attached.length > 0) written.push({ role: "user", content: attached })
    attached = []
  }
  const ids = new CallIds.SentIds({ mayRepeat: true })
  const loop = messages.findLastIndex(({ role }) => role === "user")
  for (const [index, message] of messages.entries()) {
    if (message.role !== "tool") flush()
    const isThoughtLeft = style.isReasoningOfLoop && index < loop
    const body = messageBody(message, isThoughtLeft ? { ...style, sendReasoningAs: "none" } : style, ids)
    if (!isSilent(body)) written.push(body)
    const media = message.role === "tool" ? ToolContent.held(message.content, isHeld).flatMap(part) : []
    if (media.length > 0) attached.push(text(`From the tool call ${ids.answered(message.toolCallId ?? "")}:`), ...media)
  }
  flush()
  return written
}

/** An assistant message with neither content nor calls: servers refuse it, or answer it with nothing. */
const isSilent = ({ content, role, tool_calls }: Json.JsonObject): boolean =>
  role === "assistant" && content === "" && tool_calls === undefined

const messageBody = (message: Message.Message, style: Style, ids: CallIds.SentIds): Json.JsonObject => {
  const name = message.name === undefined ? {} : { name: message.name }
  switch (message.role) {
    case "system":
      return { role: style.systemRole, content: Message.text(message), ...name }
    case "user":
      return { role: "user", content: parts(message.content), ...name }
    case "assistant":
      return { role: "assistant", ...name, ...assistantBody(message, style.sendReasoningAs, ids) }
    case "tool":
      return {
        role: "tool",
        tool_call_id: ids.answered(message.toolCallId ?? ""),
        content: ToolContent.text(message.content, isHeld)
      }
  }
}

/** What may follow a tool's answer. A file is a PDF here, and has no address. */
const isHeld = (media: Media): boolean => {
  const { data, url } = media
  const type = ToolContent.typeOf(media)
  const isInline = data !== undefined || url?.startsWith("data:") === true
  if (ToolContent.isImage(media)) return ToolContent.isCommonImage(media) && (isInline || /^https?:/i.test(url ?? ""))
  if (type?.startsWith("audio/") === true) return data !== undefined && /wav|mpeg|mp3/.test(type)
  return isInline ? type === "application/pdf" : url?.startsWith("file-") === true
}

const assistantBody = (
  message: Message.Message,
  form: Vendors.ReasoningForm,
  ids: CallIds.SentIds
): Json.JsonObject => {
  const calls = (message.toolCalls ?? []).filter((call) => call.providerExecuted !== true)
  const said = Message.text(message)
  return {
    content: said === "" && calls.length > 0 ? null : said,
    ...(calls.length === 0 ? {} : { tool_calls: calls.map((call) => toolCall(call, ids.called(call.id))) }),
    ...reasoningBody(ofMessage(message).filter(isOwnReasoning), form, said)
  }
}

type Thought = Extract<Message.Part, { readonly type: "reasoning" }>

/** Reasoning that another protocol signed, or keeps something with, means nothing here. */
const isOwnReasoning = (part: Message.Part): part is Thought =>
  part.type === "reasoning" &&
  (part.metadata === undefined ? part.signature === undefined : part.metadata[metadataKey] !== undefined)

const reasoningBody = (
  thoughts: ReadonlyArray<Thought>,
  form: Vendors.ReasoningForm,
  said: string
): Json.JsonObject => {
  const thought = thoughts.map(({ text }) => text).join("")
  const details = thoughts.flatMap(({ metadata }) => list(object(metadata?.[metadataKey])["reasoning_details"]))
  if (form === "reasoning_details" && details.length > 0) return { reasoning_details: details }
  if (form === "none" || thought === "") return {}
  if (form !== "thinking") return { [form === "reasoning_details" ? "reasoning" : form]: thought }
  return { content: [{ type: "thinking", thinking: [text(thought)] }, ...(said === "" ? [] : [text(said)])] }
}

/** A text that is no JSON object is not sent back: many servers parse it, and refuse the whole history. */
const toolCall = (call: Message.ToolCall, id: string): Json.JsonObject => {
  const { rawArguments = "" } = call
  const isWhole = rawArguments.trim() !== "" && CallArguments.isWhole(CallArguments.ofText(rawArguments))
  const extra = object(call.metadata[metadataKey])["extra_content"]
  return {
    id,
    type: "function",
    function: { name: call.name, arguments: isWhole ? rawArguments : JSON.stringify(call.arguments) },
    ...(extra === undefined ? {} : { extra_content: extra })
  }
}

type Media = Extract<Message.Part, { readonly type: "image" | "file" }>

const isMedia = (value: Message.Part): value is Media => value.type === "image" || value.type === "file"

/** All parts of a message, the reasoning that is kept beside its content first. */
const ofMessage = (message: Message.Message): ReadonlyArray<Message.Part> => [
  ...(message.reasoning ?? []),
  ...(typeof message.content === "string" ? [] : message.content)
]

const text = (value: string): Json.JsonObject => ({ type: "text", text: value })

/** The content of a user message. */
const parts = (content: Message.Content): string | ReadonlyArray<Json.JsonObject> =>
  typeof content === "string" ? content : content.flatMap(part)

const part = (value: Message.Part): ReadonlyArray<Json.JsonObject> => {
  if (value.type === "text") return [text(value.text)]
  if (value.type === "reasoning") return []
  const { data, url } = value
  const type = ToolContent.typeOf(value)
  if (ToolContent.isImage(value)) return [{ type: "image_url", image_url: { url: url ?? dataUri(value) } }]
  if (type?.startsWith("audio/") === true && data !== undefined) {
    return [{ type: "input_audio", input_audio: { data, format: type.includes("wav") ? "wav" : "mp3" } }]
  }
  if (url?.startsWith("file-") === true) return [{ type: "file", file: { file_id: url } }]
  const filename = value.type === "file" && value.filename !== undefined ? { filename: value.filename } : {}
  return [{ type: "file", file: { ...filename, file_data: url ?? dataUri(value) } }]
}

const dataUri = (media: Media): string => `data:${FileText.givenType(media)};base64,${FileText.base64(media)}`

/** The first thing that the protocol has no words for. */
export const unsupported = (messages: ReadonlyArray<Message.Message>): string | undefined => {
  for (const message of messages) {
    for (const media of ofMessage(message).filter(isMedia)) {
      if (message.role === "system" || message.role === "assistant") {
        return `a ${message.role} message cannot hold ${media.type} parts`
      }
      if (media.url === undefined && media.data === undefined) return `the ${media.type} part has neither url nor data`
      if (message.role === "tool") continue
      if (!ToolContent.isImage(media) && media.url !== undefined && !/^(data:|file-)/.test(media.url)) {
        return "a file cannot be sent by its URL: send its data, or the id of an uploaded file"
      }
    }
  }
  return undefined
}

// ---------------------------------------------------------------------------------------------------------------------
// reading

/** What a delta says. */
export interface Said {
  readonly text: string
  readonly thought: string
  readonly details: ReadonlyArray<Json.JsonObject>
  readonly refusal: string
  readonly annotations: ReadonlyArray<Json.JsonObject>
  readonly fragments: ReadonlyArray<CallFragments.Fragment>
}

export const read = (delta: Json.JsonObject): Said => {
  const content = delta["content"]
  const parts = list(content)
  return {
    text: string(content) ?? joined(parts, "text"),
    thought: parts.length === 0 ? reasoning(delta) : thinking(parts),
    details: list(delta["reasoning_details"]),
    refusal: string(delta["refusal"]) ?? "",
    annotations: list(delta["annotations"]),
    fragments: fragments(delta)
  }
}

const joined = (items: ReadonlyArray<Json.JsonObject>, key: string): string =>
  items.length === 0 ? "" : items.map((item) => string(item[key]) ?? "").join("")

/** Mistral writes its reasoning as parts of the content. */
const thinking = (parts: ReadonlyArray<Json.JsonObject>): string =>
  parts.map(({ thinking }) => string(thinking) ?? joined(list(thinking), "text")).join("")

/** The same reasoning may stand in several fields: they are alternatives, and never added up. */
const reasoning = (delta: Json.JsonObject): string => {
  const plain = string(delta["reasoning_content"]) ?? string(delta["reasoning"])
  if (plain !== undefined) return plain
  const details = list(delta["reasoning_details"])
  return joined(details, "text") || joined(details, "summary")
}

const fragments = (delta: Json.JsonObject): ReadonlyArray<CallFragments.Fragment> => {
  const calls = list(delta["tool_calls"])
  const legacy = delta["function_call"]
  if (calls.length === 0 && !Json.isObject(legacy)) return []
  const own = calls.map(({ function: called, id, index, type: _type, ...metadata }) => ({
    ...fragment(object(called)),
    index: typeof index === "number" ? index : undefined,
    id: string(id),
    metadata: Object.fromEntries(Object.entries(metadata).filter(([, value]) => isSaid(value)))
  }))
  if (calls.length > 0 || !Json.isObject(legacy)) return own
  return [{ ...fragment(legacy), index: "function_call", id: undefined, metadata: {} }]
}

/** Some servers write what is not there as `null`, an empty string or an empty object. */
const isSaid = (value: unknown): boolean =>
  value !== null && value !== "" && !(Json.isObject(value) && Object.keys(value).length === 0)

const fragment = (called: Json.JsonObject) => {
  const args = called["arguments"]
  return {
    name: string(called["name"]),
    text: typeof args === "string" ? args : Json.isObject(args) ? JSON.stringify(args) : undefined
  }
}
