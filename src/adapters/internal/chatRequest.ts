/**
 * Writes a Chat Completions request: the thread as messages, the tools, the answer format, and the differences between
 * servers.
 */
import type * as Adapter from "../../Adapter.ts"
import * as Json from "../../internal/json.ts"
import * as Message from "../../Message.ts"
import type * as Tool from "../../Tool.ts"
import * as ChatReply from "./chatReply.ts"
import * as Media from "./media.ts"
import * as StrictSchema from "./strictSchema.ts"
import * as Wire from "./wire.ts"
import type * as WireProtocol from "./wireProtocol.ts"

/** Metadata key for values sent back to servers of this protocol only. */
export const metadataKey = Media.chatKey

// ---------------------------------------------------------------------------------------------------------------------
// messages

/** Message style for a server. */
export interface Style
  extends
    WireProtocol.Sending,
    Pick<Vendor, "sendReasoningAs" | "reasoningOf" | "missingReasoning" | "emptyContent" | "ids">
{
  readonly systemRole: "system" | "developer"
  /** `true` if the model thinks before it answers. */
  readonly isThinking: boolean
}

/**
 * Writes messages. Content a tool answer cannot hold here, such as an image, follows the turn's answers in a user
 * message, where possible.
 */
export const write = (messages: ReadonlyArray<Message.Message>, style: Style): ReadonlyArray<Json.JsonObject> => {
  const written: Array<Json.JsonObject> = []
  let attached: Array<Json.JsonObject> = []
  const flush = (): void => {
    if (attached.length > 0) written.push({ role: "user", content: attached })
    attached = []
  }
  const sentIds = new Wire.SentIds(style.ids, Wire.isCallOf(metadataKey, style.server))
  const wanted = wantedReasoning(messages, style)
  for (const [index, message] of messages.entries()) {
    if (message.role !== "tool") flush()
    const body = messageBody(message, wanted(index) ? style : { ...style, sendReasoningAs: "none" }, sentIds)
    if (!isSilent(body)) written.push(body)
    const media = message.role === "tool" ? Media.held(message.content, isHeld).flatMap(part) : []
    if (media.length > 0) {
      attached.push(text(`From the tool call ${String(body["tool_call_id"])}:`), ...media)
    }
  }
  flush()
  return written
}

/**
 * Returns whether the reasoning of the message at an index goes back. Some vendors expect reasoning only from turns
 * with calls: then it goes back if the model called a tool between the surrounding user messages, or if the turn is
 * still open and may call one later.
 */
const wantedReasoning = (
  messages: ReadonlyArray<Message.Message>,
  { reasoningOf }: Style
): (index: number) => boolean => {
  if (reasoningOf === "everyMessage") return () => true
  const open = messages.findLastIndex(({ role }) => role === "user")
  const asked: Array<number> = []
  let turn = 0
  const turns = messages.map((message, index) => {
    if (message.role === "user") turn = index
    if (Wire.ownCalls(message).length > 0) asked.push(turn)
    return turn
  })
  const withCalls = new Set(asked)
  return (index) => index > open || withCalls.has(turns[index] ?? 0)
}

/** Detects an assistant message without content and calls: servers refuse such a message or return nothing. */
const isSilent = ({ content, role, tool_calls }: Json.JsonObject): boolean =>
  role === "assistant" && content === "" && tool_calls === undefined

const messageBody = (message: Message.Message, style: Style, ids: Wire.SentIds): Json.JsonObject => {
  const name = Wire.defined({ name: message.name })
  switch (message.role) {
    case "system":
      return { role: style.systemRole, content: Message.text(message), ...name }
    case "user":
      return { role: "user", content: parts(message.content), ...name }
    case "assistant":
      return { role: "assistant", ...name, ...assistantBody(message, style, ids) }
    case "tool":
      return {
        role: "tool",
        tool_call_id: ids.answered(message.toolCallId ?? ""),
        content: Media.textWith(message.content, isHeld)
      }
  }
}

/**
 * Returns `true` for content allowed to follow a tool answer: common images, WAV and MP3 data, PDF data, and uploaded
 * files.
 */
const isHeld = (media: Media.Media): boolean => {
  const { data, url } = media
  const type = Media.plainTypeOf(media)
  const isInline = data !== undefined || url?.startsWith("data:") === true
  if (Media.isImage(media)) return Media.isCommonImage(media) && (isInline || /^https?:/i.test(url ?? ""))
  if (type?.startsWith("audio/") === true) return data !== undefined && /wav|mpeg|mp3/.test(type)
  return isInline ? type === "application/pdf" : url?.startsWith("file-") === true
}

const assistantBody = (message: Message.Message, style: Style, ids: Wire.SentIds): Json.JsonObject => {
  const { emptyContent, now, server } = style
  const calls = Wire.ownCalls(message)
  const idOf = ids.turn(calls)
  const whole = Message.text(message)
  const sound = soundIn(message, whole, now)
  const said = sound === undefined ? whole : sound.beside
  return {
    ...(sound === undefined ? {} : { audio: { id: sound.id } }),
    ...(sound !== undefined && said === "" ? {} : { content: said === "" && calls.length > 0 ? emptyContent : said }),
    ...(calls.length === 0 ? {} : { tool_calls: calls.map((call) => toolCall(call, server, idOf(call))) }),
    ...reasoningBody(message, style, said)
  }
}

/**
 * Returns a message's audio, and its text before the transcript. If the text has changed, or the provider has forgotten
 * the id, all text goes back as text.
 */
const soundIn = (
  message: Message.Message,
  said: string,
  now: number
): { readonly id: string; readonly beside: string } | undefined => {
  const { expires_at, id: known, transcript } = Media.soundOf(message) ?? {}
  const id = Wire.string(known)
  const words = Wire.string(transcript) ?? ""
  const isKnown = typeof expires_at !== "number" || expires_at * 1000 > now
  return id !== undefined && isKnown && said.endsWith(words)
    ? { id, beside: said.slice(0, said.length - words.length) }
    : undefined
}

type Thought = Extract<Message.Part, { readonly type: "reasoning" }>

/**
 * Returns `true` for this protocol's own reasoning. Reasoning signed or annotated by another protocol means nothing
 * here.
 */
const isOwnReasoning = (part: Message.Part): part is Thought =>
  part.type === "reasoning" &&
  (part.metadata === undefined ? part.signature === undefined : part.metadata[metadataKey] !== undefined)

/** Opaque reasoning fields, sent only to their maker. */
const opaqueReasoning = ["reasoning_details", "thinking_blocks", "reasoning_opaque"]

/**
 * Returns the reasoning to send back: its text in the vendor's form, and this server's opaque fields. Details without a
 * known maker go to servers reading that form.
 */
const reasoningBody = (message: Message.Message, style: Style, said: string): Json.JsonObject => {
  const { sendReasoningAs: form, server } = style
  const thoughts = Media.partsOf(message).filter(isOwnReasoning)
  const thought = thoughts.map(({ text }) => text).join("")
  const isWanted = (name: string, kept: Json.JsonObject): boolean =>
    !opaqueReasoning.includes(name) || name === form || (form !== "none" && kept["server"] !== undefined)
  const opaque = new ChatReply.Opaque()
  for (const kept of Media.keptIn(thoughts, metadataKey).filter((kept) => Wire.isMadeBy(server, kept))) {
    const fields = Object.entries(ChatReply.opaqueOf(kept)).filter(([name]) => isWanted(name, kept))
    opaque.add(Object.fromEntries(fields))
  }
  const { fields } = opaque
  const words = inWords(message, thought, style, said)
  // GitHub Copilot signs the text beside its opaque reasoning.
  const signed = fields["reasoning_opaque"] === undefined || thought === "" ? {} : { reasoning_text: thought }
  return { ...(form === "reasoning_details" && form in fields ? {} : words), ...signed, ...fields }
}

const inWords = (
  message: Message.Message,
  thought: string,
  { isThinking, missingReasoning, sendReasoningAs: form, reasoningOf }: Style,
  said: string
): Json.JsonObject => {
  if (form === undefined || form === "none") return {}
  if (thought === "") {
    const isMissed = form === "reasoning_content" && isThinking &&
      (reasoningOf === "turnsWithCalls" || Wire.ownCalls(message).length > 0)
    return isMissed ? Wire.defined({ reasoning_content: missingReasoning }) : {}
  }
  if (form !== "thinking") return { [form === "reasoning_details" ? "reasoning" : form]: thought }
  return { content: [{ type: "thinking", thinking: [text(thought)] }, ...(said === "" ? [] : [text(said)])] }
}

const toolCall = (call: Message.ToolCall, server: string, id: string): Json.JsonObject => {
  const kept = call.metadata[metadataKey]
  const own = Json.isObject(kept) && Wire.isMadeBy(server, kept) ? kept : Json.none
  return {
    id,
    type: "function",
    function: {
      name: call.name,
      arguments: Wire.argumentsOf(call),
      ...ChatReply.opaqueOf(Wire.object(own["function"]))
    },
    ...ChatReply.opaqueOf(own)
  }
}

const text = (value: string): Json.JsonObject => ({ type: "text", text: value })

/** Returns the content of a user message. */
const parts = (content: Message.Content): string | ReadonlyArray<Json.JsonObject> =>
  typeof content === "string" ? content : content.flatMap(part)

const part = (value: Message.Part): ReadonlyArray<Json.JsonObject> => {
  if (value.type === "text") return [text(value.text)]
  if (value.type === "reasoning") return []
  const { url } = value
  if (Media.isImage(value)) return [{ type: "image_url", image_url: { url: url ?? Media.dataUri(value) } }]
  const sound = Media.inputAudio(value)
  if (sound !== undefined) return [sound]
  if (url?.startsWith("file-") === true) return [{ type: "file", file: { file_id: url } }]
  const filename = value.type === "file" ? value.filename : undefined
  return [{ type: "file", file: { ...Wire.defined({ filename }), file_data: url ?? Media.dataUri(value) } }]
}

export const unsupported = (messages: ReadonlyArray<Message.Message>): string | undefined =>
  Media.unsupported(
    messages,
    (media) =>
      !Media.isImage(media) && media.url !== undefined && !/^(data:|file-)/.test(media.url)
        ? "a file cannot be sent by its URL: send its data, or the id of an uploaded file"
        : undefined
  )

// ---------------------------------------------------------------------------------------------------------------------
// tools and the form of the answer

/** Writes the tools. Servers refuse tool settings in a request without tools. */
export const tools = (
  request: Adapter.Request,
  vendor: Vendor,
  options: { readonly strict?: boolean; readonly parallelToolCalls?: boolean },
  isThinking: boolean
): Json.JsonObject =>
  request.tools.length === 0 ? {} : {
    tools: request.tools.map((definition) => ({
      type: "function",
      function: tool(definition, options.strict === true)
    })),
    ...toolChoice(isThinking && isForced(request.toolChoice) ? undefined : request.toolChoice, vendor),
    ...Wire.defined({ parallel_tool_calls: options.parallelToolCalls })
  }

const tool = ({ description, name, parameters }: Tool.Definition, isWanted: boolean): Json.JsonObject => {
  const { isStrict, schema } = StrictSchema.written(parameters, isWanted, StrictSchema.openAi)
  return {
    name,
    ...(description === "" ? {} : { description }),
    parameters: schema,
    ...(isStrict ? { strict: true } : {})
  }
}

const isForced = (choice: Adapter.ToolChoice | undefined): boolean =>
  choice === "required" || typeof choice === "object"

const toolChoice = (choice: Adapter.ToolChoice | undefined, vendor: Vendor): Json.JsonObject => {
  if (choice === undefined) return {}
  if (typeof choice !== "string") return { tool_choice: { type: "function", function: { name: choice.name } } }
  return { tool_choice: choice === "required" ? vendor.required : choice }
}

/**
 * Writes the answer format. Under a strict schema, the model writes null for optional members. A schema without a
 * strict form goes out unchanged: the server decides whether to enforce it.
 */
export const responseFormat = (format: Adapter.ResponseFormat | undefined): Json.JsonObject => {
  if (format === undefined || format.type === "text") return {}
  if (format.type === "json_object") return { response_format: { type: format.type } }
  const { type, ...json_schema } = format
  const { schema } = StrictSchema.written(format.schema, format.strict === true, StrictSchema.openAi)
  return { response_format: { type, json_schema: { ...json_schema, schema } } }
}

// ---------------------------------------------------------------------------------------------------------------------
// Vendors: one row per server with its own dialect, found by address. Any other server gets what most servers
// understand.

/** Thinking allowance, for servers where thinking can also be switched off. */
export interface Reasoning extends WireProtocol.Reasoning {
  /** `true` to think, where thinking can be switched. Defaults to the vendor's setting. */
  readonly enabled?: boolean
}

/**
 * Form in which reasoning goes back with an assistant message: as text in one of two fields, as details signed by
 * OpenRouter, as Mistral's content parts, or not at all.
 */
export type ReasoningForm = "none" | "reasoning_content" | "reasoning" | "reasoning_details" | "thinking"

export interface Vendor {
  /** Key header. By default the key goes out as a bearer token. */
  readonly keyHeader?: string
  readonly maxTokensField: "max_tokens" | "max_completion_tokens"
  /** `true` to request usage with `stream_options`. Servers refusing the field send usage anyway. */
  readonly includeUsage: boolean
  /** The server's value to force a call to any tool. */
  readonly required: string
  readonly reasoning: (wanted: Reasoning) => Json.JsonObject
  /** Form in which reasoning text goes back. Unknown servers have no form and get no text. */
  readonly sendReasoningAs?: ReasoningForm
  /** Messages whose reasoning goes back: all, or those in turns with calls. */
  readonly reasoningOf: "everyMessage" | "turnsWithCalls"
  /**
   * Placeholder for missing reasoning. A server with a thinking model may require reasoning with every call, even calls
   * from another model or made without thinking.
   */
  readonly missingReasoning?: string
  /**
   * Returns `true` if a model thinks under the given settings, at a server refusing a forced tool choice while
   * thinking.
   */
  readonly isThinking: (settings: Json.JsonObject, model: string) => boolean
  /** Empty text beside calls: servers checking the content type refuse `null`. */
  readonly emptyContent: "" | null
  /** Rules for ids the server did not make. */
  readonly ids: Wire.IdRules
}

const isOff = ({ effort, enabled }: Reasoning): boolean => enabled === false || effort === "none"

const effortWords = (wanted: Reasoning): Json.JsonObject =>
  Wire.defined({ reasoning_effort: wanted.effort ?? (wanted.enabled === false ? "none" : undefined) })

const unified = ({ effort, enabled, maxTokens }: Reasoning): Json.JsonObject => ({
  reasoning: Wire.defined({ effort, max_tokens: maxTokens, enabled })
})

const switched = (wanted: Reasoning): Json.JsonObject => ({
  thinking: { type: isOff(wanted) ? "disabled" : "enabled" },
  ...(isOff(wanted) ? {} : Wire.defined({ reasoning_effort: wanted.effort }))
})

const flag = (wanted: Reasoning): Json.JsonObject => ({
  enable_thinking: !isOff(wanted),
  ...(isOff(wanted) ? {} : Wire.defined({ thinking_budget: wanted.maxTokens }))
})

const generic: Vendor = {
  maxTokensField: "max_tokens",
  includeUsage: true,
  required: "required",
  reasoning: effortWords,
  reasoningOf: "everyMessage",
  isThinking: () => false,
  emptyContent: "",
  // OpenAI refuses ids over 40 characters.
  ids: { mayRepeat: true }
}

/** Returns a thinking check: on unless switched off, except for models not thinking by default. */
const unless = (resting: RegExp) => ({ thinking }: Json.JsonObject, model: string): boolean => {
  const { type = resting.test(model) ? "disabled" : "enabled" } = Wire.object(thinking)
  return type !== "disabled"
}

const vendors = {
  generic,
  openai: { ...generic, maxTokensField: "max_completion_tokens" },
  azure: { ...generic, keyHeader: "api-key" },
  openrouter: { ...generic, reasoning: unified, sendReasoningAs: "reasoning_details" },
  snowflake: { ...generic, reasoning: unified, sendReasoningAs: "reasoning_details", emptyContent: null },
  // Every later request must include the reasoning of turns with calls, even if empty
  // (api-docs.deepseek.com/guides/thinking_mode, deepseek-ai/deepseek-harness discussions 739 and 1850); other
  // reasoning is ignored. While the model thinks, a forced choice is a 400 (deepseek-ai/DeepSeek-V3 issue 1376).
  deepseek: {
    ...generic,
    reasoning: switched,
    sendReasoningAs: "reasoning_content",
    reasoningOf: "turnsWithCalls",
    missingReasoning: "",
    isThinking: unless(/deepseek-chat/)
  },
  // Kimi. All reasoning goes back; each call needs some, and an empty text does not count
  // (platform.moonshot.ai/docs/guide/use-kimi-k2-thinking-model, openclaw pull requests 59689 and 74846). While the
  // model thinks, a forced choice is a 400 (UKGovernmentBEIS/inspect_ai pull request 5152).
  moonshot: {
    ...generic,
    reasoning: switched,
    sendReasoningAs: "reasoning_content",
    missingReasoning: "(no reasoning)",
    isThinking: unless(/moonshot-v1/)
  },
  // Same rules as DeepSeek (platform.xiaomimimo.com/docs/en-US/usage-guide/passing-back-reasoning_content).
  xiaomi: {
    ...generic,
    reasoning: switched,
    sendReasoningAs: "reasoning_content",
    missingReasoning: "",
    isThinking: unless(/mimo-v2-flash/)
  },
  // Reasoning goes back unchanged but is not required (docs.z.ai/guides/capabilities/thinking-mode).
  zai: { ...generic, reasoning: switched, sendReasoningAs: "reasoning_content" },
  // A forced choice is a 400 while the model thinks (cloudwego/eino issue 994).
  qwen: { ...generic, reasoning: flag, isThinking: ({ enable_thinking }) => enable_thinking === true },
  // An id other than nine letters and digits is a 400 (nearai/ironclaw issue 1241).
  mistral: { ...generic, includeUsage: false, required: "any", sendReasoningAs: "thinking", ids: Wire.nineIds }
} satisfies Readonly<Record<string, Vendor>>

/** Name of a server with its own dialect. */
export type Name = keyof typeof vendors

export const names: ReadonlyArray<string> = Object.keys(vendors)

const hosts: ReadonlyArray<readonly [host: RegExp, name: Name]> = [
  [/(^|\.)openai\.com$/, "openai"],
  [/(^|\.)azure\.com$/, "azure"],
  [/(^|\.)openrouter\.ai$/, "openrouter"],
  [/(^|\.)snowflakecomputing\.com$/, "snowflake"],
  [/(^|\.)deepseek\.com$/, "deepseek"],
  [/(^|\.)(moonshot\.(ai|cn)|kimi\.(ai|com))$/, "moonshot"],
  [/(^|\.)xiaomimimo\.com$/, "xiaomi"],
  [/(^|\.)(z\.ai|bigmodel\.cn)$/, "zai"],
  [/(^|\.)aliyuncs\.com$/, "qwen"],
  [/(^|\.)mistral\.ai$/, "mistral"]
]

/** Returns an address's host, or an empty string for an invalid address. */
const hostOf = (address: string): string => /^https?:\/\/([^/?#:]+)/i.exec(address.trim())?.[1]?.toLowerCase() ?? ""

/** Returns the known vendor, or `undefined` for a generic server. */
export const vendorOf = (name: Name | undefined, baseUrl: string): Name | undefined => {
  const known = nameOf(name, baseUrl)
  return known === "generic" ? undefined : known
}

/** Returns the server name: the given name, or the name for the address. */
export const nameOf = (name: Name | undefined, baseUrl: string): Name => {
  const host = hostOf(baseUrl)
  return name ?? hosts.find(([pattern]) => pattern.test(host))?.[1] ?? "generic"
}

/** Finds the server's dialect by name, or else by address. */
export const find = (name: Name | undefined, baseUrl: string): Vendor => vendors[nameOf(name, baseUrl)]

/** Provider names in spans, where they differ from the vendor names. */
const spanNames: Readonly<Record<string, string>> = {
  generic: "openai",
  azure: "azure.ai.openai",
  mistral: "mistral_ai"
}

/** Returns a server's provider name in spans. */
export const providerOf = (name: Name | undefined, baseUrl: string): string => {
  const vendor = nameOf(name, baseUrl)
  return spanNames[vendor] ?? vendor
}
