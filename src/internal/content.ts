/**
 * Results that are made of parts: what a handler gives in place of a value when the model is to see an image or a file.
 * They carry an invisible mark, like outcomes, so that a handler may return any object of its own.
 */
import type * as Message from "../Message.ts"
import * as Json from "./json.ts"
import * as Outcomes from "./outcome.ts"

/** What a part of a result may be: the model's reasoning is none. */
export type Part = Exclude<Message.Part, { readonly type: "reasoning" }>

/** A result that is made of parts. Public as `Tool.Content`. */
export interface Content {
  readonly _tag: "Content"
  readonly parts: ReadonlyArray<Part>
}

const mark = Symbol.for("heddle/Tool/Content")

const problem = (part: unknown): string | undefined => {
  const { data, text, type, url } = Json.isObject(part) ? part : {}
  if (type === "text") return typeof text === "string" ? undefined : "has no text"
  if (type !== "image" && type !== "file") return "must be a text, image or file part"
  if (data === undefined && url === undefined) return "needs a url, or base64 data"
  const isText = (value: unknown) => value === undefined || typeof value === "string"
  return isText(data) && isText(url) ? undefined : "must have its url or its data as a text"
}

/** Throws a `TypeError` that names the part that cannot be used. */
export const make = (parts: ReadonlyArray<Message.Part>): Content => {
  if (!Array.isArray(parts)) throw new TypeError("Tool.content takes a list of parts")
  for (const [index, part] of parts.entries()) {
    const found = problem(part)
    if (found !== undefined) throw new TypeError(`Tool.content: part ${index} ${found}`)
  }
  const content: Content = { _tag: "Content", parts: (parts as ReadonlyArray<Part>).map((part) => ({ ...part })) }
  return Object.defineProperty(content, mark, { value: true })
}

const isContent = (value: unknown): value is Content => typeof value === "object" && value !== null && mark in value

/** The parts of a result that is made of them, also of one that a handler says is well. */
export const partsOf = (value: unknown): ReadonlyArray<Part> | undefined => {
  if (isContent(value)) return value.parts
  return Outcomes.isBranded(value) && value._tag === "Ok" ? partsOf(value.value) : undefined
}
