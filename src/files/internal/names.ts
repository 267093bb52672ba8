/**
 * Session ids as names of files: every id has a name of its own, on file systems that ignore case as well.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"

/** What may stand in a name as it is. A capital letter is another name for the same file where case does not count. */
const plain = /[^a-z0-9_-]/g

const escaped = (id: string): string =>
  id.replace(plain, (unit) => `%${unit.charCodeAt(0).toString(16).padStart(4, "0")}`)

/** File systems take 255 bytes, of which an ending takes a few. */
const longest = 180

const hex = (bytes: ArrayBuffer): string =>
  Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("")

/** The name of a session's files, without an ending. A long one is cut, and ends with a digest of the id. */
export const nameOf = (id: string): Effect.Effect<string> => {
  const name = escaped(id)
  if (name.length <= longest) return Effect.succeed(`s${name}`)
  // JSON has lone surrogates apart, which UTF-8 does not.
  const bytes = new TextEncoder().encode(JSON.stringify(id))
  return Effect.map(
    Effect.promise(() => crypto.subtle.digest("SHA-256", bytes)),
    (digest) => `s${name.slice(0, longest - 64).replace(/%[^%]*$/, "")}~${hex(digest)}`
  )
}
