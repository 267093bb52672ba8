/**
 * Images and files in messages: their types, their data, and their form in a tool result. A text file's `data` is
 * base64, as for every file, or the text itself: text is seldom valid base64 by accident, and base64 of a text decodes
 * to text.
 */
import * as Base64 from "effect/encoding/Base64"
import * as Result from "effect/Result"
import * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import * as Wire from "./wire.ts"

/** An image or file part. */
export type Media = Extract<Message.Part, { readonly type: "image" | "file" }>

export const isMedia = (part: Message.Part): part is Media => part.type === "image" || part.type === "file"

export const mediaIn = (content: Message.Content): ReadonlyArray<Media> =>
  typeof content === "string" ? [] : content.filter(isMedia)

/** Returns `true` for an image's media type, in capitals as well. */
export const isImageType = (mediaType: string | undefined): boolean => /^image\//i.test(mediaType ?? "")

/** Makes a part from model or tool output: an image, or a file of any other type. */
export const made = (
  mediaType: string | undefined,
  source: { readonly data: string } | { readonly url: string },
  filename?: string
): Media =>
  isImageType(mediaType)
    ? { type: "image", ...Wire.defined({ mediaType }), ...source }
    : { type: "file", ...Wire.defined({ mediaType, filename }), ...source }

/** All parts of a message, starting with the reasoning beside its content. */
export const partsOf = (message: Message.Message): ReadonlyArray<Message.Part> => [
  ...(message.reasoning ?? []),
  ...(typeof message.content === "string" ? [] : message.content)
]

/** Returns the values a protocol stored with reasoning, under its key. */
export const keptIn = (parts: ReadonlyArray<Message.Part>, key: string): ReadonlyArray<Json.JsonObject> =>
  parts.flatMap((part) => {
    const kept = part.type === "reasoning" ? part.metadata?.[key] : undefined
    return Json.isObject(kept) ? [kept] : []
  })

/** Metadata key of Chat Completions. */
export const chatKey = "openaiChat"

/**
 * Audio facts in a Chat Completions message, without the audio data: its `id`, the id's `expires_at`, and its
 * `transcript`, the end of the message text. The audio data goes to no provider.
 */
export const soundOf = ({ reasoning = [] }: Pick<Message.Message, "reasoning">): Json.JsonObject | undefined =>
  keptIn(reasoning, chatKey).map((kept) => kept["audio"]).find(Json.isObject)

/** Returns the problem with a part that has neither data nor address. */
export const empty = ({ data, type, url }: Media): string | undefined =>
  data === undefined && url === undefined ? `the ${type} part has neither url nor data` : undefined

/**
 * Finds the first image or file a protocol cannot express, where only users and tools may send media. `problemOf`
 * describes a user part's problem.
 */
export const unsupported = (
  messages: ReadonlyArray<Message.Message>,
  problemOf: (part: Media) => string | undefined = () => undefined
): string | undefined => {
  for (const message of messages) {
    const { role } = message
    if (role === "assistant" && soundOf(message) !== undefined) continue
    for (const part of partsOf(message).filter(isMedia)) {
      if (role === "system" || role === "assistant") return `a ${role} message cannot hold ${part.type} parts`
      const problem = empty(part) ?? (role === "user" ? problemOf(part) : undefined)
      if (problem !== undefined) return problem
    }
  }
  return undefined
}

const textual = /^text\/|[/+](json|xml|yaml|toml|csv|javascript|x-sh|sql)\s*(;|$)/i

/** Returns `true` if files of a media type are text. */
export const isTextual = (mediaType: string | undefined): boolean => mediaType !== undefined && textual.test(mediaType)

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

/** Media type implied by a file name. */
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

const addressHead = /^data:([^;,]*)([^,]*),/i

/** Matches a data URI's head, without its possibly long data. */
const headOf = (url: string): RegExpExecArray | null => addressHead.exec(url.slice(0, 1000))

/** Media type implied by an address: its own type, its file name's, or its data's. */
const ofUrl = (url: string): string | undefined => {
  const head = headOf(url)
  if (head === null) return /^[a-z][a-z0-9+.-]*:/i.test(url) ? ofName(url.replace(/[?#].*$/s, "")) : undefined
  return head[1] || ofData(url.slice(head[0].length, head[0].length + 100))
}

/**
 * Media type of an image or file: stated by the message, or implied by address, name or data. Undefined if nothing
 * implies a type.
 */
export const typeOf = (part: Media): string | undefined => {
  const { data, mediaType, url } = part
  const given = mediaType ?? (url === undefined ? undefined : headOf(url)?.[1])
  if (given) return given
  const named = part.type === "file" && part.filename !== undefined ? ofName(part.filename) : undefined
  return named ?? (data === undefined ? ofUrl(url ?? "") : ofData(data))
}

/** Media type, with a default for protocols requiring a type. */
export const givenType = (part: Media): string =>
  typeOf(part) ?? (part.type === "image" ? "image/png" : "application/octet-stream")

/**
 * Minimum length at which data counts as base64 even though its bytes are not UTF-8. No word in a text is this long.
 */
const certain = 64

/** Decodes a file's text. */
export const decode = (data: string): string => {
  const bytes = Result.getOrUndefined(Base64.decode(data))
  if (bytes === undefined) return data
  const exact = Result.try(() => new TextDecoder("utf-8", { fatal: true }).decode(bytes))
  if (Result.isSuccess(exact)) return exact.success
  return data.length < certain ? data : new TextDecoder().decode(bytes)
}

/** Returns a file's data as base64, encoding a text file's plain text. */
export const base64 = (part: Media): string => {
  const { data = "" } = part
  if (part.type !== "file" || !isTextual(typeOf(part))) return data
  return decode(data) === data ? Base64.encode(data) : data
}

/** Converts an audio part with data for the OpenAI protocols. */
export const inputAudio = (part: Media): Json.JsonObject | undefined => {
  const type = plainTypeOf(part)
  return type?.startsWith("audio/") === true && part.data !== undefined
    ? { type: "input_audio", input_audio: { data: part.data, format: type.includes("wav") ? "wav" : "mp3" } }
    : undefined
}

export const dataUri = (part: Media): string => `data:${givenType(part)};base64,${base64(part)}`

// ---------------------------------------------------------------------------------------------------------------------
// Media in a tool result: the parts a protocol can hold. Every other part becomes one line of text with its kind, type
// and size, never its data.

/** Media type in lower case and without parameters, if known. */
export const plainTypeOf = (part: Media): string | undefined => typeOf(part)?.split(";")[0]?.trim().toLowerCase()

export const isImage = (part: Media): boolean => part.type === "image" || isImageType(typeOf(part))

/** Returns `true` for images all providers can read. An unknown type counts as readable. */
export const isCommonImage = (part: Media): boolean => {
  const type = plainTypeOf(part)
  return type === undefined || type === "image/*" || /^image\/(png|jpe?g|gif|webp)$/.test(type)
}

const bytesOfBase64 = (length: number, end: string): number =>
  Math.max(0, Math.floor((length * 3) / 4) - (/=*$/.exec(end)?.[0].length ?? 0))

const sizeOf = (part: Media): number | undefined => {
  const { data, url } = part
  if (data !== undefined) {
    return isTextual(plainTypeOf(part))
      ? new TextEncoder().encode(decode(data)).length
      : bytesOfBase64(data.length, data.slice(-2))
  }
  const head = headOf(url ?? "")
  if (url === undefined || head === null) return undefined
  const length = url.length - head[0].length
  return /;base64$/i.test(head[2] ?? "") ? bytesOfBase64(length, url.slice(-2)) : length
}

/** Quotes names and addresses. They come from outside, so they stay short and on one line. */
const shown = (text: string): string => JSON.stringify(text.length > 200 ? `${text.slice(0, 199)}…` : text)

/** Describes a part in one line: `[file "a.zip": application/zip, 1234 bytes]`. */
export const line = (part: Media): string => {
  const name = part.type === "file" && part.filename !== undefined ? ` ${shown(part.filename)}` : ""
  const type = plainTypeOf(part)
  const size = sizeOf(part)
  const isKnown = type !== undefined && /^[\w.+-]+\/[\w.+*-]+$/.test(type)
  const where = size === undefined ? `at ${shown(part.url ?? "")}` : `${size} bytes`
  return `[${part.type}${name}: ${isKnown ? type : "of unknown type"}, ${where}]`
}

/** Joins a result's texts. Each part the wire cannot hold becomes a line of its own, written by `describe`. */
export const textWith = (content: Message.Content, isHeld: (part: Media) => boolean, describe = line): string => {
  if (typeof content === "string") return content
  let isLine = false
  let written = ""
  for (const part of content) {
    const isDescribed = isMedia(part) && !isHeld(part)
    if (!isDescribed && part.type !== "text") continue
    if ((isDescribed || isLine) && written !== "" && !written.endsWith("\n")) written += "\n"
    written += isDescribed ? describe(part) : part.type === "text" ? part.text : ""
    isLine = isDescribed
  }
  return written
}

/** Result parts the wire can hold. */
export const held = (content: Message.Content, isHeld: (part: Media) => boolean): ReadonlyArray<Media> =>
  mediaIn(content).filter(isHeld)
