/**
 * A thread as Gemini reads it: the system's words apart, and turns of a user and a model. All answers of a turn stand in
 * one content, in the order of the calls, whatever order they came in. What the protocol has no words for is named before
 * anything is sent.
 */
import type * as Adapter from "../../Adapter.ts"
import * as ToolCalls from "../../internal/hear/toolCalls.ts"
import * as Json from "../../internal/json.ts"
import * as Message from "../../Message.ts"
import type * as Tool from "../../Tool.ts"
import * as GeminiReply from "./geminiReply.ts"
import * as GeminiSchema from "./geminiSchema.ts"
import * as Media from "./media.ts"
import type * as Protocol from "./protocol.ts"
import * as Wire from "./wire.ts"

export interface Contents {
  readonly system: ReadonlyArray<Json.JsonObject>
  readonly contents: ReadonlyArray<Json.JsonObject>
}

type Calls = ReadonlyArray<Message.ToolCall>

/** `isSigned` says that the model wants a signature on every first call of a turn. */
export const write = (messages: ReadonlyArray<Message.Message>, isSigned: boolean): Contents => {
  const system: Array<Json.JsonObject> = []
  const contents: Array<{ readonly role: string; readonly parts: ReadonlyArray<Json.JsonObject> }> = []
  const calls = new Map<string, Message.ToolCall>()
  let latest: Calls = []
  let answers: Array<Message.Message> = []
  const add = (role: string, parts: ReadonlyArray<Json.JsonObject>): void => {
    const last = contents.at(-1)
    if (parts.length === 0) return
    // What the model says in a row is one turn. A user's contents stay apart: answers are counted against their calls.
    if (role === "model" && last?.role === role) {
      contents[contents.length - 1] = { role, parts: [...last.parts, ...parts] }
    } else contents.push({ role, parts })
  }
  const flush = (): void => {
    const inOrder = sorted(answers, latest)
    const callOf = (answer: Message.Message) => calls.get(answer.toolCallId ?? "")
    add("user", inOrder.map((answer) => answerPart(answer, callOf(answer))))
    add(
      "user",
      inOrder.flatMap((answer, index) =>
        attachments(answer, `${nameOf(answer, callOf(answer))} (function response ${index + 1} of ${inOrder.length})`)
      )
    )
    answers = []
  }
  for (const message of messages) {
    if (message.role !== "tool") flush()
    if (message.role === "tool") answers.push(message)
    else if (message.role === "system") system.push(...systemParts(message))
    else if (message.role === "user") add("user", userParts(message.content))
    else {
      latest = ownCalls(message)
      for (const call of latest) calls.set(call.id, call)
      add("model", modelParts(message, isSigned))
    }
  }
  flush()
  return { system, contents }
}

const ownCalls = (message: Message.Message): Calls =>
  (message.toolCalls ?? []).filter((call) => call.providerExecuted !== true)

const systemParts = (message: Message.Message): ReadonlyArray<Json.JsonObject> => {
  const text = Message.text(message)
  return text === "" ? [] : [{ text }]
}

/** Calls of another provider's model, or of a thread made by hand, have no signature; this one is known to pass. */
const anySignature = "skip_thought_signature_validator"

const modelParts = (message: Message.Message, isSigned: boolean): ReadonlyArray<Json.JsonObject> => {
  const parts = GeminiReply.parts(message, mediaParts(message.content))
  const first = parts.findIndex((part) => "functionCall" in part)
  if (!isSigned || first < 0 || parts[first]?.["thoughtSignature"] !== undefined) return parts
  return parts.map((part, index) => index === first ? { ...part, thoughtSignature: anySignature } : part)
}

// ---------------------------------------------------------------------------------------------------------------------
// answers

const sorted = (answers: ReadonlyArray<Message.Message>, calls: Calls): ReadonlyArray<Message.Message> => {
  const places = new Map(calls.map(({ id }, place) => [id, place]))
  const placeOf = (answer: Message.Message): number => places.get(answer.toolCallId ?? "") ?? places.size
  return answers.toSorted((left, right) => placeOf(left) - placeOf(right))
}

const nameOf = (answer: Message.Message, call: Message.ToolCall | undefined): string | undefined =>
  call?.name ?? answer.name

/** The protocol matches by id where the call had one, else by name and order. */
const answerPart = (answer: Message.Message, call: Message.ToolCall | undefined): Json.JsonObject => ({
  functionResponse: {
    ...Wire.given("id", Wire.string(Wire.object(call?.metadata[GeminiReply.metadataKey])["id"])),
    name: nameOf(answer, call),
    response: response(answer)
  }
})

/** A result has to be an object: a text that is a JSON object is that object, any other stands under `result`. */
const response = (answer: Message.Message): Json.JsonObject => {
  const text = Media.textWith(answer.content, isHeld)
  const parsed = isExact(text) ? ToolCalls.ofText(text) : undefined
  const told = parsed !== undefined && ToolCalls.isWhole(parsed) ? parsed.arguments : undefined
  if (answer.isError === true) return told !== undefined && "error" in told ? told : { error: told ?? text }
  return told ?? { result: text }
}

/** Whether a text is an object that comes out of JSON as it went in: no number is longer than a double can hold. */
const isExact = (text: string): boolean => text.trimStart().startsWith("{") && !/\d{16}/.test(text)

/** What an answer cannot hold, such as an image, follows the answers of its turn. The model knows no ids of calls. */
const attachments = (answer: Message.Message, from: string): ReadonlyArray<Json.JsonObject> => {
  const media = Media.held(answer.content, isHeld).map(mediaPart)
  return media.length === 0 ? [] : [{ text: `From the tool ${from}:` }, ...media]
}

const readable = /^(image\/(png|jpe?g|webp|hei[cf]|\*)|audio\/.*|video\/.*|application\/pdf)$/

/** What the model reads beside an answer. */
const isHeld = (media: Media.Media): boolean => {
  if (mediaProblem("tool", media) !== undefined) return false
  const type = Media.plainTypeOf(media) ?? (media.type === "image" ? "image/png" : undefined)
  if (type === undefined) return media.data === undefined
  return readable.test(type) || (!type.startsWith("image/") && Media.isTextual(type))
}

// ---------------------------------------------------------------------------------------------------------------------
// parts

const mediaOf = (content: Message.Content): ReadonlyArray<Media.Media> =>
  typeof content === "string" ? [] : content.filter(Media.isMedia)

const userParts = (content: Message.Content): ReadonlyArray<Json.JsonObject> =>
  typeof content === "string" ? [{ text: content }] : content.flatMap((part) => {
    if (part.type === "text") return [{ text: part.text }]
    return Media.isMedia(part) ? [mediaPart(part)] : []
  })

const mediaParts = (content: Message.Content): ReadonlyArray<Json.JsonObject> => mediaOf(content).map(mediaPart)

const dataUri = /^data:[^;,]*[^,]*;base64,/

const mediaPart = (media: Media.Media): Json.JsonObject => {
  const { data, url = "" } = media
  const mimeType = Media.givenType(media)
  const found = data === undefined ? dataUri.exec(url.slice(0, 1000)) : null
  if (data !== undefined) return { inlineData: { mimeType, data: Media.base64(media) } }
  if (found === null) return { fileData: { ...Wire.given("mimeType", Media.typeOf(media)), fileUri: url } }
  return { inlineData: { mimeType, data: url.slice(found[0].length) } }
}

/** The image or file that a part of a reply holds. */
export const media = (part: Json.JsonObject): ReadonlyArray<Message.Part> => {
  const { data } = Wire.object(part["inlineData"])
  const { fileUri } = Wire.object(part["fileData"])
  const mediaType = Wire.string(Wire.object(part["inlineData"] ?? part["fileData"])["mimeType"])
  const type = mediaType?.startsWith("image/") === true ? "image" : "file"
  const common = { type, ...(mediaType === undefined ? {} : { mediaType }) } as const
  if (typeof data === "string") return [{ ...common, data }]
  return typeof fileUri === "string" ? [{ ...common, url: fileUri }] : []
}

// ---------------------------------------------------------------------------------------------------------------------
// what cannot be said

/** The first thing that the protocol has no words for. */
export const unsupported = (messages: ReadonlyArray<Message.Message>): string | undefined => {
  const ids = new Set<string>()
  for (const message of messages) {
    for (const media of mediaOf(message.content)) {
      const isTold = message.role === "tool" && (media.data ?? media.url) !== undefined
      const problem = isTold ? undefined : mediaProblem(message.role, media)
      if (problem !== undefined) return problem
    }
    for (const call of ownCalls(message)) ids.add(call.id)
    if (message.role === "tool" && message.name === undefined && !ids.has(message.toolCallId ?? "")) {
      return `the tool message ${message.toolCallId} answers no call of the thread, and names no tool`
    }
  }
  return undefined
}

const mediaProblem = (role: Message.Role, { data, type, url }: Media.Media): string | undefined => {
  if (role === "system") return `a system message cannot hold ${type} parts`
  if (data === undefined && url === undefined) return `the ${type} part has neither url nor data`
  const isText = data === undefined && url?.startsWith("data:") === true && !dataUri.test(url.slice(0, 1000))
  return isText ? `the ${type} part is a data URI that holds no base64` : undefined
}

// ---------------------------------------------------------------------------------------------------------------------
// tools, the form of the answer, thinking

/** How much a model may think, and whether the reply holds its thoughts. */
export interface Reasoning extends Protocol.Reasoning {
  /** `false` keeps the summary of the thoughts out of the reply. `true` by default. */
  readonly includeThoughts?: boolean
}

/** How schemas are written, and whether the model is always held to them. */
export interface Options {
  readonly schemas?: "jsonSchema" | "openApi"
  readonly strict?: boolean
}

export const tools = (options: Options, { toolChoice, tools }: Adapter.Request): Json.JsonObject => {
  if (tools.length === 0) return {}
  const functionCallingConfig = callingMode(options, toolChoice)
  return {
    tools: [{ functionDeclarations: tools.map((tool) => declaration(options, tool)) }],
    ...(functionCallingConfig === undefined ? {} : { toolConfig: { functionCallingConfig } })
  }
}

const declaration = (options: Options, { description, name, parameters }: Tool.Definition): Json.JsonObject => ({
  name,
  description,
  ...(options.schemas === "openApi"
    ? { parameters: GeminiSchema.openApi(parameters) }
    : { parametersJsonSchema: GeminiSchema.jsonSchema(parameters) })
})

const callingMode = (options: Options, choice: Adapter.ToolChoice = "auto"): Json.JsonObject | undefined => {
  if (typeof choice === "object") return { mode: "ANY", allowedFunctionNames: [choice.name] }
  if (choice === "auto") return options.strict === true ? { mode: "VALIDATED" } : undefined
  return { mode: choice === "none" ? "NONE" : "ANY" }
}

export const responseFormat = (options: Options, format: Adapter.ResponseFormat | undefined): Json.JsonObject => {
  if (format === undefined || format.type === "text") return {}
  const responseMimeType = "application/json"
  if (format.type === "json_object") return { responseMimeType }
  return options.schemas === "openApi"
    ? { responseMimeType, responseSchema: GeminiSchema.openApi(format.schema) }
    : { responseMimeType, responseJsonSchema: GeminiSchema.jsonSchema(format.schema) }
}

/** What Google's own compatibility layer takes the words for, where a model knows none. */
const budgets: { readonly [effort: string]: number } = { none: 0, minimal: 1024, low: 1024, medium: 8192, high: 24_576 }

export const thinking = (reasoning: Reasoning | undefined, model: string): Json.JsonObject => {
  if (reasoning === undefined) return {}
  const { effort, includeThoughts = true, maxTokens } = reasoning
  const isWord = effort !== undefined && effort !== "none" && !/gemini-[12]\b/.test(model)
  const budget = maxTokens ?? (effort === undefined || isWord ? undefined : budgets[effort])
  const level = budget === undefined ? Wire.given("thinkingLevel", effort) : { thinkingBudget: budget }
  return { thinkingConfig: { ...level, includeThoughts } }
}

/** A caller's own members over ours: objects are merged, and tools are added. */
export const merged = (base: Json.JsonObject, extra: Json.JsonObject = {}): Json.JsonObject => {
  const members = Object.entries(extra).map(([key, value]) => {
    const known = base[key]
    if (key === "tools" && Array.isArray(known) && Array.isArray(value)) return [key, [...known, ...value]]
    return [key, Json.isObject(known) && Json.isObject(value) ? merged(known, value) : value]
  })
  return { ...base, ...Object.fromEntries(members) }
}
