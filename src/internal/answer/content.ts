/**
 * Results that are made of parts: what a handler gives in place of a value when the model is to see an image or a file.
 * They carry an invisible mark, like outcomes, so that a handler may return any object of its own.
 */
import * as Json from "../json.ts"
import * as Outcomes from "./outcome.ts"

interface Media {
  readonly url?: string
  readonly data?: string
  readonly mediaType?: string
  readonly metadata?: Json.JsonObject
}

/** A part of a result: every `Message.Part` but the model's reasoning. */
export type Part =
  | { readonly type: "text"; readonly text: string }
  | Media & { readonly type: "image" }
  | Media & { readonly type: "file"; readonly filename?: string }

/** A part of a message, which may be the model's reasoning. */
type MessagePart = Part | { readonly type: "reasoning"; readonly text: string }

/** A result that is made of parts. Public as `Tool.Content`. */
export interface Content {
  readonly _tag: "Content"
  readonly parts: ReadonlyArray<Part>
}

/** Under it are the parts that count. Those that a handler sees are its own. */
const mark: unique symbol = Symbol.for("heddle/Tool/Content")

const fields = ["type", "text", "url", "data", "mediaType", "filename"] as const

/** A part of its own, which is JSON: what holds the given one goes on changing it, or has put into it what is none. */
const copied = (part: unknown): unknown => {
  if (!Json.isObject(part)) return part
  const { metadata } = part
  const own: Record<string, unknown> = {}
  for (const field of fields) if (part[field] !== undefined) own[field] = part[field]
  if (!Json.isObject(metadata)) return own
  const json = Json.toJson(metadata)
  return Json.isObject(json) ? { ...own, metadata: json } : own
}

/** Copies of parts. */
export const owned = <P extends MessagePart>(parts: ReadonlyArray<P>): ReadonlyArray<P> =>
  parts.map((part) => part.type === "reasoning" ? part : copied(part) as P)

const problem = (part: unknown): string | undefined => {
  const { data, filename, mediaType, text, type, url } = Json.isObject(part) ? part : {}
  if (type === "text") return typeof text === "string" ? undefined : "has no text"
  if (type !== "image" && type !== "file") return "must be a text, image or file part"
  if (data === undefined && url === undefined) return "needs a url, or base64 data"
  const isText = (value: unknown) => value === undefined || typeof value === "string"
  if (!isText(data) || !isText(url)) return "must have its url or its data as a text"
  return isText(mediaType) && isText(filename) ? undefined : "must have its mediaType and its filename as texts"
}

/** Throws a `TypeError` that names the part that cannot be used. */
export const make = (parts: ReadonlyArray<MessagePart>): Content => {
  if (!Array.isArray(parts)) throw new TypeError("Tool.content takes a list of parts")
  const own = Array.from(parts as ReadonlyArray<unknown>, copied)
  for (const [index, part] of own.entries()) {
    const found = problem(part)
    if (found !== undefined) throw new TypeError(`Tool.content: part ${index} ${found}`)
  }
  const content: Content = { _tag: "Content", parts: Json.copy(own as ReadonlyArray<Part>) }
  return Object.defineProperty(content, mark, { value: own })
}

const isContent = (value: unknown): value is { readonly [mark]: ReadonlyArray<Part> } =>
  typeof value === "object" && value !== null && mark in value

/** The parts of a result that is made of them, also of one that a handler says is well. */
export const partsOf = (value: unknown): ReadonlyArray<Part> | undefined => {
  if (isContent(value)) return value[mark]
  return Outcomes.isBranded(value) && value._tag === "Ok" ? partsOf(value.value) : undefined
}

/** The parts of a result, also of one that was written as JSON and read again. */
export const partsIn = (value: unknown): ReadonlyArray<Part> | undefined => {
  if (isContent(value)) return value[mark]
  const { _tag: tag, parts } = Json.isObject(value) ? value : {}
  if (tag !== "Content" || !Array.isArray(parts)) return undefined
  const own = Array.from(parts as ReadonlyArray<unknown>, copied)
  return own.every((part) => problem(part) === undefined) ? own as ReadonlyArray<Part> : undefined
}
