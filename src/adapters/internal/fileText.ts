/**
 * Of what type the images and files of a message are, and files of text. Their `data` is base64 like that of every file,
 * or the text itself: a text is seldom base64 by accident, and base64 of a text decodes to a text.
 */
import * as Base64 from "effect/encoding/Base64"
import * as Result from "effect/Result"
import type * as Message from "../../Message.ts"

const textual = /^text\/|[/+](json|xml|yaml|toml|csv|javascript|x-sh|sql)\s*(;|$)/i

/** Whether a file of that type is a text. */
export const isTextual = (mediaType: string | undefined): boolean => mediaType !== undefined && textual.test(mediaType)

type Media = Extract<Message.Part, { readonly type: "image" | "file" }>

const extensions: ReadonlyMap<string, string> = new Map([
  ...["txt", "md", "markdown", "csv", "tsv", "json", "xml", "yaml", "yml", "toml", "html", "htm", "log"].map((
    extension
  ): readonly [string, string] => [extension, "text/plain"]),
  ["png", "image/png"],
  ["jpg", "image/jpeg"],
  ["jpeg", "image/jpeg"],
  ["gif", "image/gif"],
  ["webp", "image/webp"],
  ["pdf", "application/pdf"],
  ["mp3", "audio/mpeg"],
  ["wav", "audio/wav"]
])

/** The type that a file's name tells. */
const ofName = (name: string): string | undefined =>
  extensions.get(/\.([a-z0-9]+)$/i.exec(name)?.[1]?.toLowerCase() ?? "")

const magic: ReadonlyArray<readonly [start: RegExp, mediaType: string]> = [
  [/^iVBORw0KGgo/, "image/png"],
  [/^\/9j\//, "image/jpeg"],
  [/^R0lGOD/, "image/gif"],
  [/^UklGR.{6}XQVZF/, "audio/wav"],
  [/^UklGR/, "image/webp"],
  [/^JVBERi0/, "application/pdf"]
]

const ofData = (data: string): string | undefined => magic.find(([start]) => start.test(data))?.[1]

/** The head of an address that holds data. The data may be long: it is not read. */
const dataUri = /^data:([^;,]*)[^,]*,/i

/** The type that an address tells: its own, that of its name, or that of the data in it. */
const ofUrl = (url: string): string | undefined => {
  const head = dataUri.exec(url.slice(0, 1000))
  if (head === null) return /^[a-z][a-z0-9+.-]*:/i.test(url) ? ofName(url.replace(/[?#].*$/s, "")) : undefined
  return head[1] || ofData(url.slice(head[0].length, head[0].length + 100))
}

/**
 * The type of an image or a file: what the message says it is, or else its address, its name or its data. Nothing if none
 * of them tells it.
 */
export const typeOf = (part: Media): string | undefined => {
  const { data, mediaType, url } = part
  const told = mediaType ?? (url === undefined ? undefined : dataUri.exec(url.slice(0, 1000))?.[1])
  if (told) return told
  const named = part.type === "file" && part.filename !== undefined ? ofName(part.filename) : undefined
  return named ?? (data === undefined ? ofUrl(url ?? "") : ofData(data))
}

/** The same where a type has to be given. */
export const givenType = (part: Media): string =>
  typeOf(part) ?? (part.type === "image" ? "image/png" : "application/octet-stream")

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
export const base64 = (part: Media): string => {
  const { data = "" } = part
  if (part.type !== "file" || !isTextual(typeOf(part))) return data
  return decode(data) === data ? Base64.encode(data) : data
}
