/**
 * Images and files of a message in the one form that bridged libraries take them: base64 data or a URL, with a media
 * type, which is found out where the message does not tell it.
 */
import * as Base64 from "effect/encoding/Base64"
import * as Result from "effect/Result"
import * as Media from "../../adapters/internal/media.ts"
import type * as Layout from "./layout.ts"

export interface Source {
  readonly mediaType: string
  /** Where the content is: base64 data, or an address. */
  readonly content: string | URL
  readonly filename: string | undefined
}

/** The source of an image or a file, or what is wrong with it. */
export const source = (media: Layout.Media): Result.Result<Source, string> => {
  const { data, type, url } = media
  const filename = media.type === "file" ? media.filename : undefined
  const mediaType = Media.typeOf(media) ?? (type === "image" ? "image/*" : "application/octet-stream")
  if (data !== undefined) {
    return Result.succeed({ mediaType, content: Media.base64(media), filename })
  }
  if (url === undefined) return Result.fail(`the ${type} part has neither url nor data`)
  const inline = /^data:[^;,]*((?:;[^;,]*)*),(.*)$/s.exec(url)
  if (inline !== null) {
    const [, parameters = "", body = ""] = inline
    return Result.map(
      parameters.endsWith(";base64") ? Result.succeed(body) : encoded(body, type),
      (content) => ({ mediaType, content, filename })
    )
  }
  return Result.try({
    try: () => new URL(url),
    catch: () => `the url of the ${type} part is no URL: ${url.slice(0, 100)}`
  }).pipe(Result.map((address) => ({ mediaType, content: address, filename })))
}

/** Whether a part of a tool's answer is told in a line, since its address is none that a library takes. */
export const isTold = (media: Layout.Media, found: Result.Result<Source, string>): boolean =>
  Result.isFailure(found) && (media.data ?? media.url) !== undefined

const encoded = (body: string, type: string): Result.Result<string, string> =>
  Result.try({
    try: () => Base64.encode(decodeURIComponent(body)),
    catch: () => `the data URL of the ${type} part is malformed`
  })
