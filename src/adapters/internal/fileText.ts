/**
 * Files of text in a message. Their `data` is base64 like that of every file, or the text itself: a text is seldom
 * base64 by accident, and base64 of a text decodes to a text.
 */
import * as Base64 from "effect/encoding/Base64"
import * as Result from "effect/Result"
import type * as Message from "../../Message.ts"

const textual = /^text\/|[/+](json|xml|yaml|toml|csv|javascript|x-sh|sql)\s*(;|$)/i

/** Whether a file of that type is a text. */
export const isTextual = (mediaType: string | undefined): boolean => mediaType !== undefined && textual.test(mediaType)

const extension = /\.(txt|md|markdown|csv|tsv|json|xml|ya?ml|toml|html?|log)$/i

/** The type of a file that has none of its own, if its name tells that it is a text. */
export const typeOf = (part: Message.Part): string | undefined =>
  part.type === "file" && extension.test(part.filename ?? "") ? "text/plain" : undefined

/** The shortest data that counts as base64 although its bytes are no UTF-8: no word of a text is as long. */
const certain = 64

/** The text that a file holds. */
export const decode = (data: string): string => {
  const bytes = Result.getOrUndefined(Base64.decode(data))
  if (bytes === undefined) return data
  const exact = Result.try(() => new TextDecoder("utf-8", { fatal: true }).decode(bytes))
  if (Result.isSuccess(exact)) return exact.success
  return data.length < certain ? data : new TextDecoder().decode(bytes)
}

/** The data of a file in base64: that of a text may be the text itself. */
export const base64 = (part: Extract<Message.Part, { readonly type: "image" | "file" }>): string => {
  const { data = "" } = part
  if (part.type !== "file" || !isTextual(part.mediaType ?? typeOf(part))) return data
  return decode(data) === data ? Base64.encode(data) : data
}
