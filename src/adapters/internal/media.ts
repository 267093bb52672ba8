/**
 * Images and files of messages: their types, their data, and how a tool's result holds them. The `data` of a text file
 * is base64, as for every file, or the text itself: a text is seldom base64 by accident, and base64 of a text decodes
 * to a text.
 */
import * as Base64 from "effect/encoding/Base64"
import * as Result from "effect/Result"
import * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import * as Wire from "./wire.ts"

/** A part that is no text. */
export type Media = Extract<Message.Part, { readonly type: "image" | "file" }>

export const isMedia = (part: Message.Part): part is Media => part.type === "image" || part.type === "file"

export const mediaIn = (content: Message.Content): ReadonlyArray<Media> =>
  typeof content === "string" ? [] : content.filter(isMedia)

/** A part of a model's or a tool's making: an image, or a file of any other type. */
export const made = (
  mediaType: string | undefined,
  source: { readonly data: string } | { readonly url: string },
  filename?: string
): Media =>
  mediaType?.startsWith("image/") === true
    ? { type: "image", mediaType, ...source }
    : { type: "file", ...Wire.defined({ mediaType, filename }), ...source }

/** All parts of a message, starting with the reasoning that is kept beside its content. */
export const partsOf = (message: Message.Message): ReadonlyArray<Message.Part> => [
  ...(message.reasoning ?? []),
  ...(typeof message.content === "string" ? [] : message.content)
]

/** Returns what a protocol keeps with reasoning, under its key. */
export const keptIn = (parts: ReadonlyArray<Message.Part>, key: string): ReadonlyArray<Json.JsonObject> =>
  parts.flatMap((part) => {
    const kept = part.type === "reasoning" ? part.metadata?.[key] : undefined
    return Json.isObject(kept) ? [kept] : []
  })

/** The key of what Chat Completions keeps with a message. */
export const chatKey = "openaiChat"

/**
 * The facts of a sound in a message of Chat Completions, besides its data: its `id`, when that `expires_at`, and its
 * `transcript`, which is the message's text. The sound itself goes to no provider.
 */
export const soundOf = ({ reasoning = [] }: Pick<Message.Message, "reasoning">): Json.JsonObject | undefined =>
  keptIn(reasoning, chatKey).map((kept) => kept["audio"]).find(Json.isObject)

/** Returns the fault of a part that holds nothing, if it does not. */
export const empty = ({ data, type, url }: Media): string | undefined =>
  data === undefined && url === undefined ? `the ${type} part has neither url nor data` : undefined

/**
 * Returns the first image or file of a thread that a protocol cannot express, in which only users and tools send them.
 * `problemOf` names what is wrong with one of a user.
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

/** Returns `true` if a file of that type is a text. */
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

/** The type that a file's name implies. */
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

/** The head of an address that holds data. The data may be long: it is not read. */
const headOf = (url: string): RegExpExecArray | null => addressHead.exec(url.slice(0, 1000))

/** The type that an address implies: its own, that of its name, or that of the data in it. */
const ofUrl = (url: string): string | undefined => {
  const head = headOf(url)
  if (head === null) return /^[a-z][a-z0-9+.-]*:/i.test(url) ? ofName(url.replace(/[?#].*$/s, "")) : undefined
  return head[1] || ofData(url.slice(head[0].length, head[0].length + 100))
}

/**
 * The type of an image or a file: as the message names it, or else by its address, its name or its data. Nothing if
 * none of them implies it.
 */
export const typeOf = (part: Media): string | undefined => {
  const { data, mediaType, url } = part
  const given = mediaType ?? (url === undefined ? undefined : headOf(url)?.[1])
  if (given) return given
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

/** A sound as the protocols of OpenAI take it, by its data. */
export const inputAudio = (part: Media): Json.JsonObject | undefined => {
  const type = plainTypeOf(part)
  return type?.startsWith("audio/") === true && part.data !== undefined
    ? { type: "input_audio", input_audio: { data: part.data, format: type.includes("wav") ? "wav" : "mp3" } }
    : undefined
}

export const dataUri = (part: Media): string => `data:${givenType(part)};base64,${base64(part)}`

// ---------------------------------------------------------------------------------------------------------------------
// media in a tool's result: the parts that a protocol can hold, and one line of text for each other part, which names
// its kind, type and size, and never its data

/** The type of a part, in lower case and without parameters, if it is known. */
export const plainTypeOf = (part: Media): string | undefined => typeOf(part)?.split(";")[0]?.trim().toLowerCase()

export const isImage = (part: Media): boolean =>
  part.type === "image" || plainTypeOf(part)?.startsWith("image/") === true

/** Returns `true` if all providers read an image. One of an unknown type counts as such. */
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

/** Names and addresses are foreign text: they stay on the line, and short. */
const shown = (text: string): string => JSON.stringify(text.length > 200 ? `${text.slice(0, 199)}…` : text)

/** A part in one line: `[file "a.zip": application/zip, 1234 bytes]`. */
export const line = (part: Media): string => {
  const name = part.type === "file" && part.filename !== undefined ? ` ${shown(part.filename)}` : ""
  const type = plainTypeOf(part)
  const size = sizeOf(part)
  const isKnown = type !== undefined && /^[\w.+-]+\/[\w.+*-]+$/.test(type)
  const where = size === undefined ? `at ${shown(part.url ?? "")}` : `${size} bytes`
  return `[${part.type}${name}: ${isKnown ? type : "of unknown type"}, ${where}]`
}

/**
 * The texts of a result as one, with a line of its own, or with what `describe` gives, for each part that the wire
 * cannot hold.
 */
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

/** The parts of a result that the wire can hold. */
export const held = (content: Message.Content, isHeld: (part: Media) => boolean): ReadonlyArray<Media> =>
  mediaIn(content).filter(isHeld)
