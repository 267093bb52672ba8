/**
 * The lines of a journal file. Each is one JSON object: the first says what the file is, every other one is a record with a
 * checksum before it. The last record of an append says that the append is whole, and whether the session has work left; what
 * stands behind the last such line is of an append that was torn by a kill or a power failure.
 *
 * @since 0.1.0
 */
import * as Result from "effect/Result"
import * as Json from "../../internal/json.ts"

/** The format of the files. A later one is refused. */
const format = 1

const encoder = new TextEncoder()

const decoder = new TextDecoder()

const table = Uint32Array.from({ length: 256 }, (_, index) => {
  let sum = index
  for (let bit = 0; bit < 8; bit++) sum = (sum & 1) === 1 ? 0xedb88320 ^ (sum >>> 1) : sum >>> 1
  return sum
})

/** The CRC-32 of bytes, as eight digits. */
const checksum = (bytes: Uint8Array): string => {
  let sum = 0xffffffff
  for (const byte of bytes) sum = (table[(sum ^ byte) & 0xff] ?? 0) ^ (sum >>> 8)
  return ((sum ^ 0xffffffff) >>> 0).toString(16).padStart(8, "0")
}

/** The bytes of the first line. */
export const headerOf = (id: string): Uint8Array => encoder.encode(`${JSON.stringify({ heddle: format, id })}\n`)

/** What a first line says: the id, or that a later release has written the file. */
export const readHeader = (line: Uint8Array): { readonly id: string } | "newer" | undefined => {
  const parsed = Json.parse(decoder.decode(line))
  if (Result.isFailure(parsed) || !Json.isObject(parsed.success)) return undefined
  const { heddle, id } = parsed.success
  if (typeof heddle !== "number" || typeof id !== "string") return undefined
  return heddle > format ? "newer" : { id }
}

/** The bytes of an append: the texts of its records, the last of which ends it. */
export const linesOf = (texts: ReadonlyArray<string>, isUnfinished: boolean): Uint8Array => {
  const lines = texts.map((text, index) => {
    const left = index === texts.length - 1 ? isUnfinished : null
    const rest = `"left":${left},${text.slice(1)}`
    return `{"sum":"${checksum(encoder.encode(rest))}",${rest}\n`
  })
  return encoder.encode(lines.join(""))
}

/** What stands before the text of a record: the checksum, the end of the append, and the version. */
const start = /^\{"sum":"([0-9a-f]{8})",("left":(true|false|null),"version":(\d+),)/

/** A line whose record is as it was written. */
export interface Line {
  readonly version: number
  readonly text: string
  /** At the end of an append: whether the session has work left. */
  readonly isUnfinished?: boolean
}

/** The version that a line says it has. */
export const versionOf = (line: Uint8Array): number | undefined => {
  const [, , , , version] = start.exec(decoder.decode(line.subarray(0, 80))) ?? []
  return version === undefined ? undefined : Number(version)
}

/** The record of a line, unless it is damaged. */
export const readLine = (line: Uint8Array): Line | undefined => {
  const [, sum, , left, version] = start.exec(decoder.decode(line.subarray(0, 80))) ?? []
  // What the checksum covers begins behind it.
  if (sum === undefined || checksum(line.subarray(`{"sum":"${sum}",`.length)) !== sum) return undefined
  const text = decoder.decode(line)
  return { version: Number(version), text, ...(left === "null" ? {} : { isUnfinished: left === "true" }) }
}

/** Where the lines of bytes end, each behind its newline. */
export const endsOf = (bytes: Uint8Array): ReadonlyArray<number> => {
  const ends: Array<number> = []
  for (let at = bytes.indexOf(10); at >= 0; at = bytes.indexOf(10, at + 1)) ends.push(at + 1)
  return ends
}
