/**
 * Writes a Gemini request: the thread as user and model turns with the system text apart, the tools with their schemas,
 * the answer format, and thinking. All results of a turn share one content, in call order. Content the protocol cannot
 * express is refused by name before anything is sent.
 */
import type * as Adapter from "../../Adapter.ts"
import * as ToolCalls from "../../internal/hear/toolCalls.ts"
import * as Json from "../../internal/json.ts"
import * as Message from "../../Message.ts"
import type * as Tool from "../../Tool.ts"
import * as GeminiReply from "./geminiReply.ts"
import * as Media from "./media.ts"
import * as Wire from "./wire.ts"
import type * as WireProtocol from "./wireProtocol.ts"

export interface Contents {
  readonly system: ReadonlyArray<Json.JsonObject>
  readonly contents: ReadonlyArray<Json.JsonObject>
}

/** A call, and its place in its message. */
interface Called {
  readonly call: Message.ToolCall
  readonly place: number
}

/** An answer, and its call if the thread has it. */
interface Answer {
  readonly message: Message.Message
  readonly called: Called | undefined
}

/** Writes a thread. With `isSigned`, the model requires a signature on each turn's first call. */
export const write = (messages: ReadonlyArray<Message.Message>, isSigned: boolean, server: string): Contents => {
  const system: Array<Json.JsonObject> = []
  const contents: Array<{ readonly role: string; readonly parts: ReadonlyArray<Json.JsonObject> }> = []
  /** Calls by id, from the latest message with that id. */
  const calls = new Map<string, Array<Called>>()
  let answers: Array<Answer> = []
  const add = (role: string, parts: ReadonlyArray<Json.JsonObject>): void => {
    const last = contents.at(-1)
    if (parts.length === 0) return
    // Consecutive model messages form one turn. User contents stay apart: the protocol counts answers against calls.
    if (role === "model" && last?.role === role) {
      contents[contents.length - 1] = { role, parts: [...last.parts, ...parts] }
    } else contents.push({ role, parts })
  }
  const flush = (): void => {
    const inOrder = answers.toSorted((left, right) => placeOf(left) - placeOf(right))
    add("user", inOrder.map((answer) => answerPart(answer, server)))
    add(
      "user",
      inOrder.flatMap((answer, index) =>
        attachments(answer.message, `${nameOf(answer)} (function response ${index + 1} of ${inOrder.length})`)
      )
    )
    answers = []
  }
  for (const message of messages) {
    if (message.role !== "tool") flush()
    if (message.role === "tool") answers.push({ message, called: taken(calls.get(message.toolCallId ?? "")) })
    else if (message.role === "system") system.push(...systemParts(message))
    else if (message.role === "user") add("user", userParts(message.content))
    else {
      const own = Wire.ownCalls(message)
      for (const { id } of own) calls.set(id, [])
      own.forEach((call, place) => calls.get(call.id)?.push({ call, place }))
      add("model", modelParts(message, isSigned, server))
    }
  }
  flush()
  return { system, contents }
}

/**
 * Cuts off the trailing replies a token continues, and returns the last token. The server expects the original request
 * again.
 */
export const continued = (
  messages: ReadonlyArray<Message.Message>,
  server: string
): { readonly messages: ReadonlyArray<Message.Message>; readonly token: string | undefined } => {
  const last = messages.findLastIndex((message) => GeminiReply.tokenOf(message, server) === undefined)
  const token = messages.slice(last + 1).map((message) => GeminiReply.tokenOf(message, server)).at(-1)
  return { messages: messages.slice(0, last + 1), token }
}

const systemParts = (message: Message.Message): ReadonlyArray<Json.JsonObject> => {
  const text = Message.text(message)
  return text === "" ? [] : [{ text }]
}

/** Placeholder signature accepted by the server, for calls from another provider's model or a handmade thread. */
const anySignature = "skip_thought_signature_validator"

const modelParts = (
  message: Message.Message,
  isSigned: boolean,
  server: string
): ReadonlyArray<Json.JsonObject> => {
  const parts = GeminiReply.parts(
    message,
    Media.soundOf(message) === undefined ? Media.mediaIn(message.content).map(mediaPart) : [],
    server
  )
  const first = parts.findIndex((part) => "functionCall" in part)
  if (!isSigned || first < 0 || parts[first]?.["thoughtSignature"] !== undefined) return parts
  return parts.map((part, index) => index === first ? { ...part, thoughtSignature: anySignature } : part)
}

// ---------------------------------------------------------------------------------------------------------------------
// answers

/** Takes the call for the next answer. Answers sharing a call id follow call order. */
const taken = (calls: Array<Called> | undefined): Called | undefined =>
  calls !== undefined && calls.length > 1 ? calls.shift() : calls?.[0]

const placeOf = ({ called }: Answer): number => called?.place ?? Number.MAX_SAFE_INTEGER

const nameOf = ({ called, message }: Answer): string | undefined => called?.call.name ?? message.name

/** Writes an answer. The protocol matches by id if the call had an id, otherwise by name and order. */
const answerPart = (answer: Answer, server: string): Json.JsonObject => ({
  functionResponse: {
    ...GeminiReply.idFor(server, answer.called?.call),
    name: nameOf(answer),
    response: response(answer.message)
  }
})

/**
 * Returns a result as an object, as the protocol requires: JSON object text becomes that object, other text goes under
 * `result`, or under `error` after a failure.
 */
const response = (answer: Message.Message): Json.JsonObject => {
  const text = Media.textWith(answer.content, isHeld)
  const parsed = isExact(text) ? ToolCalls.ofText(text) : undefined
  const told = parsed !== undefined && ToolCalls.isWhole(parsed) ? parsed.arguments : undefined
  if (answer.isError === true) return told !== undefined && "error" in told ? told : { error: told ?? text }
  return told ?? { result: text }
}

/** Returns `true` if a text is an object that JSON reproduces exactly: no number exceeds double precision. */
const isExact = (text: string): boolean => text.trimStart().startsWith("{") && !/\d{16}/.test(text)

/**
 * Returns content an answer cannot hold, such as images. It follows the turn's answers, under the tool's name and the
 * answer's number, since the model sees no call ids.
 */
const attachments = (answer: Message.Message, from: string): ReadonlyArray<Json.JsonObject> => {
  const media = Media.held(answer.content, isHeld).map(mediaPart)
  return media.length === 0 ? [] : [{ text: `From the tool ${from}:` }, ...media]
}

const readable = /^(image\/(png|jpe?g|webp|hei[cf]|\*)|audio\/.*|video\/.*|application\/pdf)$/

/** Returns `true` for content the model can read beside an answer. */
const isHeld = (media: Media.Media): boolean => {
  if (mediaProblem("tool", media) !== undefined) return false
  const type = Media.plainTypeOf(media) ?? (media.type === "image" ? "image/png" : undefined)
  if (type === undefined) return media.data === undefined
  return readable.test(type) || (!type.startsWith("image/") && Media.isTextual(type))
}

// ---------------------------------------------------------------------------------------------------------------------
// parts

const userParts = (content: Message.Content): ReadonlyArray<Json.JsonObject> =>
  typeof content === "string" ? [{ text: content }] : content.flatMap((part) => {
    if (part.type === "text") return [{ text: part.text }]
    return Media.isMedia(part) ? [mediaPart(part)] : []
  })

const dataUri = /^data:[^;,]*[^,]*;base64,/

const mediaPart = (media: Media.Media): Json.JsonObject => {
  const { data, url = "" } = media
  const mimeType = Media.givenType(media)
  const found = data === undefined ? dataUri.exec(url.slice(0, 1000)) : null
  if (data !== undefined) return { inlineData: { mimeType, data: Media.base64(media) } }
  if (found === null) return { fileData: { ...Wire.defined({ mimeType: Media.typeOf(media) }), fileUri: url } }
  return { inlineData: { mimeType, data: url.slice(found[0].length) } }
}

/** Returns the image or file in a reply part. */
export const media = (part: Json.JsonObject): ReadonlyArray<Message.Part> => {
  const { data } = Wire.object(part["inlineData"])
  const { fileUri } = Wire.object(part["fileData"])
  const mediaType = Wire.string(Wire.object(part["inlineData"] ?? part["fileData"])["mimeType"])
  if (typeof data === "string") return [Media.made(mediaType, { data })]
  return typeof fileUri === "string" ? [Media.made(mediaType, { url: fileUri })] : []
}

export const unsupported = (messages: ReadonlyArray<Message.Message>): string | undefined => {
  const ids = new Set<string>()
  for (const message of messages) {
    for (const media of Media.mediaIn(message.content)) {
      const isTold = message.role === "tool" && (media.data ?? media.url) !== undefined
      const problem = isTold ? undefined : mediaProblem(message.role, media)
      if (problem !== undefined) return problem
    }
    for (const call of Wire.ownCalls(message)) ids.add(call.id)
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

/** Thinking allowance, and the choice to include thoughts in the reply. */
export interface Reasoning extends WireProtocol.Reasoning {
  /** `false` omits the thought summary from the reply. `true` by default. */
  readonly includeThoughts?: boolean
}

/** Schema form, and the choice to enforce schemas always. */
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
    ? { parameters: openApi(parameters) }
    : { parametersJsonSchema: jsonSchema(parameters) })
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
    ? { responseMimeType, responseSchema: openApi(format.schema) }
    : { responseMimeType, responseJsonSchema: jsonSchema(format.schema) }
}

/** Token budgets for models without effort levels, as in Google's compatibility layer. */
const budgets: { readonly [effort: string]: number } = { none: 0, minimal: 1024, low: 1024, medium: 8192, high: 24_576 }

export const thinking = (reasoning: Reasoning | undefined, model: string): Json.JsonObject => {
  if (reasoning === undefined) return {}
  const { effort, includeThoughts = true, maxTokens } = reasoning
  const isWord = effort !== undefined && effort !== "none" && !/gemini-[12]\b/.test(model)
  const budget = maxTokens ?? (effort === undefined || isWord ? undefined : budgets[effort])
  const level = budget === undefined ? Wire.defined({ thinkingLevel: effort }) : { thinkingBudget: budget }
  return { thinkingConfig: { ...level, includeThoughts } }
}

/** Merges a caller's members over the adapter's own: objects merge, tools are added. */
export const merged = (base: Json.JsonObject, extra: Json.JsonObject = {}): Json.JsonObject => {
  const members = Object.entries(extra).map(([key, value]) => {
    const known = base[key]
    if (key === "tools" && Array.isArray(known) && Array.isArray(value)) return [key, [...known, ...value]]
    return [key, Json.isObject(known) && Json.isObject(value) ? merged(known, value) : value]
  })
  return { ...base, ...Object.fromEntries(members) }
}

// ---------------------------------------------------------------------------------------------------------------------
// Schemas. The newer fields take JSON Schema unchanged, ignoring one keyword. The older fields take a subset of OpenAPI
// schemas and refuse any other keyword: references are inlined, inexpressible constraints dropped, and a schema never
// becomes stricter. The tool's own schema decodes arguments in any case.

type Definitions = Readonly<Record<string, unknown>>

/** Definitions known while inlining a reference, and the enclosing references; "#" names the whole schema. */
interface Place {
  readonly definitions: Definitions
  readonly within: ReadonlyArray<string>
}

const schemaMaps = ["properties", "$defs", "definitions", "patternProperties"]
const plainValues = ["enum", "default", "examples", "required"]

/** Rewrites `const`, which the server ignores, as an `enum` with one value. */
export const jsonSchema = (schema: Json.JsonObject): Json.JsonObject => Wire.object(mended(schema))

const mended = (schema: unknown): unknown => {
  if (Array.isArray(schema)) return schema.map(mended)
  if (!Json.isObject(schema)) return schema
  const { $schema: _, const: only, ...rest } = schema
  const members = Object.entries(rest).map(([key, value]) => {
    if (plainValues.includes(key)) return [key, value]
    return [key, schemaMaps.includes(key) && Json.isObject(value) ? mapped(value, mended) : mended(value)]
  })
  return { ...Object.fromEntries(members), ...("const" in schema ? { enum: [only] } : {}) }
}

const mapped = (schemas: Json.JsonObject, convert: (schema: unknown) => unknown): Json.JsonObject =>
  Object.fromEntries(Object.entries(schemas).map(([name, schema]) => [name, convert(schema)]))

const always = ["title", "description", "nullable"]

/** Further keywords allowed per type. */
const ofType: { readonly [type: string]: ReadonlyArray<string> } = {
  STRING: ["minLength", "maxLength", "pattern"],
  NUMBER: ["minimum", "maximum"],
  INTEGER: ["minimum", "maximum"],
  ARRAY: ["minItems", "maxItems"],
  OBJECT: ["minProperties", "maxProperties", "propertyOrdering"]
}

const formats: { readonly [type: string]: ReadonlyArray<unknown> } = {
  STRING: ["date-time"],
  NUMBER: ["float", "double"],
  INTEGER: ["int32", "int64"]
}

/** Converts a schema to the OpenAPI subset. */
export const openApi = (schema: Json.JsonObject): Json.JsonObject =>
  converted(schema, {
    definitions: { ...Wire.object(schema["definitions"]), ...Wire.object(schema["$defs"]) },
    within: ["#"]
  })

const converted = (input: unknown, place: Place): Json.JsonObject => {
  const { inside, schema } = resolved(Wire.object(input), place)
  const { isNullable, variants } = alternatives(schema)
  const nullable = isNullable ? { nullable: true } : {}
  const [only, ...others] = variants
  if (only !== undefined && others.length === 0) {
    const { anyOf: _, oneOf: __, type: ___, ...rest } = schema
    return { ...converted({ ...rest, ...only }, inside), ...nullable }
  }
  const common = { ...picked(schema, always), ...nullable }
  return variants.length > 0
    ? { ...common, anyOf: variants.map((variant) => converted(variant, inside)) }
    : { ...common, ...typed(schema, inside) }
}

const picked = (schema: Json.JsonObject, names: ReadonlyArray<string>): Json.JsonObject =>
  Object.fromEntries(Object.entries(schema).filter(([name]) => names.includes(name)))

/** Resolves references and merges `allOf` parts. A reference to an enclosing schema becomes a plain object. */
const resolved = (
  schema: Json.JsonObject,
  place: Place
): { readonly schema: Json.JsonObject; readonly inside: Place } => {
  const { $ref, allOf, ...rest } = schema
  const name = typeof $ref !== "string"
    ? undefined
    : $ref === "#"
    ? $ref
    : /^#\/(?:\$defs|definitions)\/(.+)$/.exec($ref)?.[1]
  if (name !== undefined) {
    const target = place.within.includes(name) ? { type: "object" } : Wire.object(place.definitions[name])
    return resolved({ ...target, ...rest }, { ...place, within: [...place.within, name] })
  }
  if (!Array.isArray(allOf)) return { schema: rest, inside: place }
  let merged: Json.JsonObject = rest
  let inside = place
  for (const part of Wire.list(allOf)) {
    const found = resolved(part, inside)
    merged = both(merged, found.schema)
    inside = found.inside
  }
  return { schema: merged, inside }
}

const both = (left: Json.JsonObject, right: Json.JsonObject): Json.JsonObject => {
  const properties = { ...Wire.object(left["properties"]), ...Wire.object(right["properties"]) }
  const required = [left["required"], right["required"]].flatMap((names) => Array.isArray(names) ? names : [])
  return {
    ...left,
    ...right,
    ...(Object.keys(properties).length === 0 ? {} : { properties }),
    ...(required.length === 0 ? {} : { required: [...new Set<unknown>(required)] })
  }
}

/** Returns the alternatives in a schema: several types, or named variants. */
const alternatives = (
  schema: Json.JsonObject
): { readonly variants: ReadonlyArray<Json.JsonObject>; readonly isNullable: boolean } => {
  const { anyOf, oneOf, type } = schema
  const named = Wire.list(anyOf ?? oneOf)
  const types = Array.isArray(type) ? type.map((one): Json.JsonObject => ({ type: one })) : []
  const all = named.length > 0 ? named : types
  const variants = all.filter((variant) => variant["type"] !== "null")
  return { variants, isNullable: variants.length < all.length }
}

const typed = (schema: Json.JsonObject, place: Place): Json.JsonObject => {
  const type = typeOf(schema)
  const format = formats[type]?.includes(schema["format"]) === true ? { format: schema["format"] } : {}
  const said = { ...picked(schema, ofType[type] ?? []), ...choices(schema, type), ...bounds(schema, type) }
  return { type, ...format, ...said, ...members(schema, type, place) }
}

/** Returns the type, as every schema needs a type. An empty schema becomes a string, the safest choice. */
const typeOf = (schema: Json.JsonObject): string => {
  const { const: only, enum: values, items, prefixItems, properties, type } = schema
  if (typeof type === "string") return type === "null" ? "STRING" : type.toUpperCase()
  if (properties !== undefined) return "OBJECT"
  if (items !== undefined || prefixItems !== undefined) return "ARRAY"
  const example: unknown = only ?? (Array.isArray(values) ? values[0] : undefined)
  return typeof example === "number" ? "NUMBER" : typeof example === "boolean" ? "BOOLEAN" : "STRING"
}

/** Lists the choices in a schema. Only strings can be listed. */
const choices = (schema: Json.JsonObject, type: string): Json.JsonObject => {
  const values: unknown = "const" in schema ? [schema["const"]] : schema["enum"]
  if (type !== "STRING" || !Array.isArray(values)) return {}
  return values.every((value) => typeof value === "string") ? { format: "enum", enum: values } : {}
}

/** Converts exclusive bounds: to the next integer, or unchanged. */
const bounds = (schema: Json.JsonObject, type: string): Json.JsonObject => {
  const { exclusiveMaximum, exclusiveMinimum } = schema
  if (type !== "INTEGER" && type !== "NUMBER") return {}
  const next = type === "INTEGER" ? 1 : 0
  return {
    ...(typeof exclusiveMinimum === "number" ? { minimum: exclusiveMinimum + next } : {}),
    ...(typeof exclusiveMaximum === "number" ? { maximum: exclusiveMaximum - next } : {})
  }
}

const members = (schema: Json.JsonObject, type: string, place: Place): Json.JsonObject => {
  if (type === "ARRAY") return { items: items(schema, place) }
  if (type !== "OBJECT") return {}
  const properties = mapped(Wire.object(schema["properties"]), (property) => converted(property, place))
  const names: unknown = schema["required"]
  const required = Array.isArray(names) ? names.filter((name) => Object.hasOwn(properties, String(name))) : []
  return { properties, ...(required.length === 0 ? {} : { required }) }
}

/** Returns the item schema, without distinguishing tuple positions. */
const items = (schema: Json.JsonObject, place: Place): Json.JsonObject => {
  const places = Wire.list(schema["prefixItems"])
  const [first, ...others] = places
  if (first === undefined) return converted(schema["items"], place)
  return converted(others.length === 0 ? first : { anyOf: places }, place)
}
