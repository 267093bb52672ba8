/**
 * Images and files as blocks of Anthropic's: pictures, PDFs and texts, by their data, their address, or the id of an
 * upload. Other uploads are put into the container of the server's own tools.
 */
import * as Base64 from "effect/encoding/Base64"
import * as Result from "effect/Result"
import type * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"

/** A part that is no text. */
export type Part = Extract<Message.Part, { readonly type: "image" | "file" }>

interface Source {
  readonly mediaType: string | undefined
  readonly data?: string
  readonly url?: string
  readonly fileId?: string
}

const dataUri = /^data:([^;,]*)(?:;[^,]*)?;base64,/i
const uploaded = /^file_/
const textual = /^text\/|[/+](json|xml|yaml|toml|csv|javascript|x-sh|sql)$/i

const sourceOf = ({ data, mediaType, url }: Part): Source => {
  if (url === undefined) return { mediaType, ...(data === undefined ? {} : { data }) }
  const [prefix, type] = dataUri.exec(url) ?? []
  if (prefix !== undefined) return { mediaType: type || mediaType, data: url.slice(prefix.length) }
  return { mediaType, ...(uploaded.test(url) ? { fileId: url } : { url }) }
}

const isImage = (part: Part, { mediaType }: Source): boolean =>
  part.type === "image" || mediaType?.startsWith("image/") === true

const isText = ({ mediaType = "" }: Source): boolean => textual.test(mediaType)
const isPdf = ({ mediaType = "application/pdf" }: Source): boolean => mediaType === "application/pdf"

/** The block of a part that is supported. */
export const write = (part: Part): Json.JsonObject => {
  const source = sourceOf(part)
  if (isImage(part, source)) return { type: "image", source: wireSource(source, "image/png") }
  const { fileId } = source
  if (fileId !== undefined && !isPdf(source) && !isText(source)) return { type: "container_upload", file_id: fileId }
  const title = part.type === "file" && part.filename !== undefined ? { title: part.filename } : {}
  return { type: "document", source: wireSource(source, "application/pdf"), ...title }
}

const wireSource = (source: Source, fallback: string): Json.JsonObject => {
  const { data = "", fileId, mediaType = fallback, url } = source
  if (fileId !== undefined) return { type: "file", file_id: fileId }
  if (url !== undefined) return { type: "url", url }
  if (isText(source)) return { type: "text", media_type: "text/plain", data: textOf(data) }
  return { type: "base64", media_type: mediaType, data }
}

const textOf = (data: string): string => Result.getOrElse(Base64.decodeString(data), () => "")

/** Why a part cannot be sent, if it cannot. */
export const unsupported = (part: Part): string | undefined => {
  const source = sourceOf(part)
  const { data, fileId, mediaType, url } = source
  if (data === undefined && fileId === undefined && url === undefined) {
    return `the ${part.type} part has neither url nor data`
  }
  if (url !== undefined && !/^https?:/i.test(url)) {
    return `the ${part.type} part's url must be an address, base64 data or the id of an upload`
  }
  if (isImage(part, source) || fileId !== undefined) return undefined
  if (url !== undefined) {
    return isPdf(source)
      ? undefined
      : "a file that is no PDF cannot be sent by its URL: send its data"
  }
  if (isText(source)) {
    return Result.isSuccess(Base64.decodeString(data ?? ""))
      ? undefined
      : "the data of the file part is no base64"
  }
  return isPdf(source) ? undefined : `a file of type ${mediaType} cannot be sent: only images, PDFs and texts can`
}
