/**
 * What a tool's answer holds besides text, for a wire that has its own way for some of it: what the wire can hold, and one
 * line for each part that it cannot. The line names the kind, the type and the size of the part, and never its data.
 */
import type * as Message from "../../Message.ts"
import * as FileText from "./fileText.ts"

/** A part that is no text. */
export type Media = Extract<Message.Part, { readonly type: "image" | "file" }>

export const isMedia = (part: Message.Part): part is Media => part.type === "image" || part.type === "file"

const dataUri = /^data:([^;,]*)([^,]*),/i

/** The head of an address that holds data. The data may be long: it is not read. */
const headOf = (url: string | undefined): RegExpExecArray | null => dataUri.exec((url ?? "").slice(0, 1000))

/** The type of a part, in lower case and without parameters, if it can be told. */
export const typeOf = (part: Media): string | undefined => FileText.typeOf(part)?.split(";")[0]?.trim().toLowerCase()

export const isImage = (part: Media): boolean => part.type === "image" || typeOf(part)?.startsWith("image/") === true

/** The images that all providers read. One that does not say what it is counts as one of them. */
export const isCommonImage = (part: Media): boolean => {
  const type = typeOf(part)
  return type === undefined || type === "image/*" || /^image\/(png|jpe?g|gif|webp)$/.test(type)
}

const bytesOfBase64 = (length: number, end: string): number =>
  Math.max(0, Math.floor((length * 3) / 4) - (/=*$/.exec(end)?.[0].length ?? 0))

const sizeOf = (part: Media): number | undefined => {
  const { data, url } = part
  if (data !== undefined) {
    return FileText.isTextual(typeOf(part))
      ? new TextEncoder().encode(FileText.decode(data)).length
      : bytesOfBase64(data.length, data.slice(-2))
  }
  const head = headOf(url)
  if (url === undefined || head === null) return undefined
  const length = url.length - head[0].length
  return /;base64$/i.test(head[2] ?? "") ? bytesOfBase64(length, url.slice(-2)) : length
}

/** Names and addresses are foreign text: they stay on the line, and short. */
const shown = (text: string): string => JSON.stringify(text.length > 200 ? `${text.slice(0, 199)}…` : text)

/** A part in one line: `[file "a.zip": application/zip, 1234 bytes]`. */
export const line = (part: Media): string => {
  const name = part.type === "file" && part.filename !== undefined ? ` ${shown(part.filename)}` : ""
  const type = typeOf(part)
  const size = sizeOf(part)
  const isKnown = type !== undefined && /^[\w.+-]+\/[\w.+*-]+$/.test(type)
  const where = size === undefined ? `at ${shown(part.url ?? "")}` : `${size} bytes`
  return `[${part.type}${name}: ${isKnown ? type : "of unknown type"}, ${where}]`
}

/**
 * An answer's texts in one, with a line of its own for each part that the wire cannot hold, or with what `tell` says of
 * it.
 */
export const text = (content: Message.Content, isHeld: (part: Media) => boolean, tell = line): string => {
  if (typeof content === "string") return content
  let isLine = false
  let written = ""
  for (const part of content) {
    const isTold = isMedia(part) && !isHeld(part)
    if (!isTold && part.type !== "text") continue
    if ((isTold || isLine) && written !== "" && !written.endsWith("\n")) written += "\n"
    written += isTold ? tell(part) : part.type === "text" ? part.text : ""
    isLine = isTold
  }
  return written
}

/** The parts of an answer that the wire can hold. */
export const held = (content: Message.Content, isHeld: (part: Media) => boolean): ReadonlyArray<Media> =>
  typeof content === "string" ? [] : content.filter(isMedia).filter(isHeld)
