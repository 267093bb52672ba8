/**
 * Images and files as blocks of Anthropic's: pictures, PDFs and texts, by their data, their address, or the id of an
 * upload. Other uploads are put into the container of the server's own tools. What a document is to be told besides
 * (`title`, `context`, `citations`) stands in the part's metadata, under this protocol's key.
 */
import * as Result from "effect/Result"
import type * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import { key } from "./anthropicTurn.ts"
import * as FileText from "./fileText.ts"
import * as Wire from "./wire.ts"

/** A part that is no text. */
export type Part = Extract<Message.Part, { readonly type: "image" | "file" }>

interface Source {
  readonly mediaType: string | undefined
  readonly data?: string
  readonly text?: string
  readonly url?: string
  readonly fileId?: string
}

const dataUri = /^data:([^;,]*)(?:;[^,]*)?;base64,/i
const textUri = /^data:(?:text\/[^;,]*)?(?:;[^,]*)?,/i
const uploaded = /^file_/

const sourceOf = (part: Part): Source => {
  const { data, mediaType = FileText.typeOf(part), url } = part
  if (url === undefined) return { mediaType, ...(data === undefined ? {} : { data }) }
  const [prefix, type] = dataUri.exec(url) ?? []
  if (prefix !== undefined) return { mediaType: type || mediaType, data: url.slice(prefix.length) }
  const [start] = (part.type === "file" ? textUri.exec(url) : null) ?? []
  const text = start === undefined ? undefined : percentDecoded(url.slice(start.length))
  if (text !== undefined) return { mediaType: "text/plain", text }
  return { mediaType, ...(uploaded.test(url) ? { fileId: url } : { url }) }
}

const percentDecoded = (text: string): string | undefined =>
  Result.getOrUndefined(Result.try(() => decodeURIComponent(text)))

const isImage = (part: Part, { mediaType }: Source): boolean =>
  part.type === "image" || mediaType?.startsWith("image/") === true

const isText = ({ mediaType }: Source): boolean => FileText.isTextual(mediaType)
const isPdf = ({ mediaType = "application/pdf" }: Source): boolean => mediaType === "application/pdf"

/** The block of a part that is supported. */
export const write = (part: Part): Json.JsonObject => {
  const source = sourceOf(part)
  if (isImage(part, source)) return { type: "image", source: wireSource(source, "image/png") }
  const { fileId } = source
  if (fileId !== undefined && !isPdf(source) && !isText(source)) return { type: "container_upload", file_id: fileId }
  const { citations, context, title = part.type === "file" ? part.filename : undefined } = Wire.object(
    part.metadata?.[key]
  )
  return {
    type: "document",
    source: wireSource(source, "application/pdf"),
    ...Wire.given("title", title),
    ...Wire.given("context", context),
    ...Wire.given("citations", citations)
  }
}

const wireSource = (source: Source, fallback: string): Json.JsonObject => {
  const { data = "", fileId, mediaType = fallback, text, url } = source
  if (fileId !== undefined) return { type: "file", file_id: fileId }
  if (url !== undefined) return { type: "url", url }
  if (isText(source)) return { type: "text", media_type: "text/plain", data: text ?? FileText.decode(data) }
  return { type: "base64", media_type: mediaType, data }
}

/** What is wrong with a part that holds nothing, if it does not. */
export const empty = (part: Part): string | undefined =>
  part.url === undefined && part.data === undefined ? `the ${part.type} part has neither url nor data` : undefined

/** Why a part cannot be sent, if it cannot. */
export const unsupported = (part: Part): string | undefined => {
  const source = sourceOf(part)
  const { fileId, mediaType, text, url } = source
  const problem = empty(part)
  if (problem !== undefined) return problem
  if (url !== undefined && !/^https?:/i.test(url)) {
    return `the ${part.type} part's url must be an address, base64 data or the id of an upload`
  }
  if (isImage(part, source) || fileId !== undefined || text !== undefined) return undefined
  if (url !== undefined) {
    return isPdf(source)
      ? undefined
      : "a file that is no PDF cannot be sent by its URL: send its data"
  }
  return isText(source) || isPdf(source)
    ? undefined
    : `a file of type ${mediaType} cannot be sent: only images, PDFs and texts can`
}
