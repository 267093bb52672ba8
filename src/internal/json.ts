/**
 * JSON at the borders of a run. Model output is hostile input, so parsing drops `__proto__` members. Values never meant
 * as JSON (errors, handler results) are rendered without throwing, and without the secrets carried by errors.
 */
import * as Effect from "effect/Effect"
import * as Inspectable from "effect/Inspectable"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as SchemaGetter from "effect/SchemaGetter"

export type JsonObject = Readonly<Record<string, unknown>>

/** No members. Most messages have no metadata, and a thread has many messages. */
export const none: JsonObject = Object.freeze({})

/** `__proto__` in any JSON spelling: each letter may be escaped. */
const suspicious = /__proto__|\\u00/i

const isContainer = (value: unknown): value is object => typeof value === "object" && value !== null

/** Returns the objects and lists one level below, each once: parsed data share nothing, but other data may. */
const below = (level: Iterable<object>): Set<object> => {
  const found = new Set<object>()
  for (const container of level) {
    for (const member of Array.isArray(container) ? container : Object.values(container)) {
      if (isContainer(member)) found.add(member)
    }
  }
  return found
}

/**
 * Returns `true` if objects and lists in a value nest deeper than `levels`, counting the value itself. A cycle counts
 * as deeper. Walks level by level, so no depth overflows the stack.
 */
export const isDeeper = (value: unknown, levels: number): boolean => {
  let level = new Set(isContainer(value) ? [value] : [])
  for (let depth = 0; level.size > 0; depth++) {
    if (depth === levels) return true
    level = below(level)
  }
  return false
}

/** Removes `__proto__` members from parsed data, and replaces objects and lists below `levels` with `null`. */
const cleared = (parsed: unknown, levels: number): unknown => {
  let level = new Set(isContainer(parsed) ? [parsed] : [])
  for (let depth = 1; level.size > 0; depth++) {
    for (const container of level as Set<Record<string, unknown>>) {
      delete container["__proto__"]
      if (depth < levels) continue
      for (const [key, member] of Object.entries(container)) if (isContainer(member)) container[key] = null
    }
    level = below(level)
  }
  return parsed
}

/**
 * Returns the start and end of each escaped name in a JSON text, including quotes. A pattern matching whole strings
 * would overflow V8's stack on a string with millions of escapes.
 */
const escapedNames = (text: string): ReadonlyArray<readonly [start: number, end: number]> => {
  const found: Array<readonly [start: number, end: number]> = []
  let at = text.indexOf("\\")
  while (at !== -1) {
    const start = text.lastIndexOf("\"", at)
    let quote = 0
    do {
      at += 2
      if (quote < at) quote = text.indexOf("\"", at)
      at = text.indexOf("\\", at)
    } while (at !== -1 && at < quote)
    let behind = quote + 1
    while (text.charCodeAt(behind) <= 32) behind++
    if (text[behind] === ":") found.push([start, quote + 1])
  }
  return found
}

/** Replaces placeholder names in parsed data by the original names, in the same order. */
const renamed = (parsed: unknown, names: ReadonlyMap<string, string>): unknown => {
  const root = [parsed]
  for (let level = new Set<object>([root]); level.size > 0; level = below(level)) {
    for (const container of level as Set<Record<string, unknown>>) {
      for (const [key, member] of Object.entries(container)) {
        if (!isContainer(member) || Array.isArray(member)) continue
        container[key] = Object.fromEntries(Object.entries(member).map(([name, own]) => [names.get(name) ?? name, own]))
      }
    }
  }
  return root[0]
}

/**
 * Parses a JSON text. V8 13.6 (Node 24) reads an escaped name such as `"\u00fc"` as its escape text (`"\\"`) if any
 * JSON in the process had a member with that name after the same members: one hostile reply would change the arguments
 * of later calls. Placeholders replace such names during parsing.
 */
const parseNames = (text: string): unknown => {
  // Refuses invalid JSON, whose strings cannot be located.
  const parsed: unknown = JSON.parse(text)
  const escaped = escapedNames(text)
  if (escaped.length === 0) return parsed
  let mark = "~"
  while (text.includes(mark)) mark += mark
  const names = new Map<string, string>()
  let plain = ""
  let done = 0
  for (const [start, end] of escaped) {
    const name = `${mark}${names.size}`
    names.set(name, String(JSON.parse(text.slice(start, end))))
    plain += `${text.slice(done, start)}"${name}"`
    done = end
  }
  return renamed(JSON.parse(plain + text.slice(done)), names)
}

/** Parses without a `JSON.parse` reviver, which overflows the stack on deep data. */
const parseUnsafe = (text: string, levels: number): unknown => {
  const parsed = parseNames(text)
  return suspicious.test(text) || text.length > 2 * levels ? cleared(parsed, levels) : parsed
}

export const parse = (text: string): Result.Result<unknown, unknown> => Result.try(() => parseUnsafe(text, Infinity))

/** Deepest level kept and written. `JSON.stringify` and `JSON.parse` handle a few thousand levels. */
const deepest = 512

/** Parses provider data. Data nested deeper than anything meaningful is cut off. */
export const parseWire = (text: string): Result.Result<unknown, unknown> => Result.try(() => parseUnsafe(text, deepest))

/** Escapes a text as in a JSON string: databases and URIs refuse some characters, such as NUL and lone surrogates. */
export const escaped = (text: string): string => JSON.stringify(text).slice(1, -1)

/** Returns the original of an escaped text. */
export const unescaped = (text: string): string => String(JSON.parse(`"${text}"`))

export const isObject = (value: unknown): value is JsonObject =>
  typeof value === "object" && value !== null && !Array.isArray(value)

// Lone surrogates: UTF-8 cannot write them, and providers refuse a whole conversation because of one surrogate. A lone
// surrogate may be the first half of a pair continued in the next delta, so only whole texts are checked.

const hasHalves = (value: unknown, depth: number): boolean => {
  if (typeof value === "string") return !value.isWellFormed()
  if (depth === deepest || !isPlain(value)) return false
  return Object.values(value).some((member) => hasHalves(member, depth + 1))
}

const withoutHalves = (value: unknown, depth: number): unknown => {
  if (typeof value === "string") return value.toWellFormed()
  if (depth === deepest || !isPlain(value)) return value
  if (Array.isArray(value)) return value.map((item) => withoutHalves(item, depth + 1))
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, withoutHalves(member, depth + 1)]))
}

/** Replaces each lone surrogate in a text, or in the texts of data, with U+FFFD. */
export const wellFormed = <A>(value: A): A => hasHalves(value, 0) ? withoutHalves(value, 0) as A : value

/**
 * JSON escapes relevant to lone surrogates: a whole pair, a lone one, and any other escape that might hide a surrogate.
 */
const escapes = /\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|\\u[dD][89a-fA-F][\da-fA-F]{2}|\\[^u]/g
const halfLength = "\\ud800".length

/** Replaces lone surrogates in a JSON text, where a surrogate may be an escape. */
export const wellFormedJson = (json: string): string =>
  /\\u[dD]/.test(json)
    ? json.toWellFormed().replace(escapes, (found) => found.length === halfLength ? "\ufffd" : found)
    : json.toWellFormed()

const isWord = (value: unknown): value is string => typeof value === "string" && /^[\w./-]{1,64}$/.test(value)

/** Returns an error's name and reason, which are a program's own words, without any interpolated text. */
export const nameOf = (error: unknown): string => {
  if (!isObject(error)) return typeof error
  const { _tag, name, reason } = error
  const own = [_tag, name].find(isWord) ?? "Error"
  return isWord(reason) ? `${own}: ${reason}` : own
}

const isPlain = (value: unknown): value is object => {
  if (typeof value !== "object" || value === null) return false
  if (Array.isArray(value)) return true
  const prototype = Object.getPrototypeOf(value)
  return prototype === null || prototype === Object.prototype
}

/**
 * Copies plain objects and lists at every level. Other objects, such as dates, are kept unchanged. Handles any depth,
 * and cycles.
 */
export const copy = <A>(value: A): A => {
  if (!isPlain(value)) return value
  // Most arguments are flat.
  if (!Object.values(value).some(isPlain)) return (Array.isArray(value) ? value.slice() : { ...value }) as A
  const copies = new Map<object, object>()
  const begun: Array<readonly [from: object, to: object]> = []
  const copied = (from: unknown): unknown => {
    if (!isPlain(from)) return from
    const known = copies.get(from)
    if (known !== undefined) return known
    const to: object = Array.isArray(from) ? [] : {}
    copies.set(from, to)
    begun.push([from, to])
    return to
  }
  const root = copied(value)
  for (let next = begun.pop(); next !== undefined; next = begun.pop()) {
    const [from, to] = next
    if (Array.isArray(from)) { for (const item of from) (to as Array<unknown>).push(copied(item)) }
    else for (const [key, member] of Object.entries(from)) setOwn(to as Record<string, unknown>, key, copied(member))
  }
  return root as A
}

/** Sets an own member, even one called `__proto__`. */
const setOwn = (object: Record<string, unknown>, key: string, value: unknown): void => {
  if (key !== "__proto__") object[key] = value
  else Object.defineProperty(object, key, { value, enumerable: true, configurable: true, writable: true })
}

// An error's secrets are in the failed request carried along, and in URLs quoted by its texts.

/** Members holding headers and keys, if they are objects. A schema may write a text instead, such as a name. */
export const exchanges: ReadonlySet<string> = new Set(["request", "response"])

/** Members shown for a request or response under another name. */
export const exchangeMembers = ["method", "url", "status", "statusText"] as const

/**
 * Returns `true` if an object is a request or response, from any library: it has headers, and another typical member.
 */
export const isExchange = (value: object): boolean =>
  !Array.isArray(value) && "headers" in value && exchangeMembers.some((key) => key in value)

const credential = /^(proxy-)?authorization$|^(set-)?cookie$|^(x-)?(\w+-)?api[-_]?key$|^x-[\w-]*(token|secret)$/i

/** Returns `true` for the name of a credential header. */
export const isCredential = (name: string): boolean => name.length <= 64 && credential.test(name)

/**
 * A query parameter. Names are bounded, since they are foreign text: the time must not grow with the square of its
 * length.
 */
const parameter = /([?&])([^=&\s#?]{1,64})=([^&\s#"'<>)]*)/g
const userInfo = /([a-z]{2,12}:\/\/)[^/\s@?#]{1,256}@/gi
const secret = /key$|token|secret|sig(nature)?$|pass(wd|word)?$|pwd$|^auth$|authorization|credential|session|jwt/i

/** Start of a URL ending at a cut, possibly inside a password: its `@` is missing. */
const cutUserInfo = /[a-z]{2,12}:\/\/[^/\s@?#]{0,256}$/i

/**
 * Applies `withoutSecrets` to the beginning of a text: at least `most` UTF-16 code units, if nothing is removed. A
 * secret at the end is never shown in part, however much shorter the text becomes.
 */
export const beginningWithoutSecrets = (text: string, isAll: boolean, most: number): string => {
  const end = most + 512
  return text.length <= end
    ? withoutSecrets(text, isAll)
    : withoutSecrets(text.slice(0, end).replace(cutUserInfo, ""), isAll)
}

/**
 * Replaces known secrets in a text, longest first, since a shorter secret may be the beginning of another. `start` and
 * `end` mark a cut text: a partial secret is removed there, too.
 */
export const withoutKnown = (
  text: string,
  secrets: ReadonlyArray<string>,
  mark: string,
  { end = false, start = false }: { readonly end?: boolean; readonly start?: boolean } = {}
): string => {
  const known = secrets.filter((secret) => secret !== "").sort((left, right) => right.length - left.length)
  const partOf = (isPart: (secret: string, length: number) => boolean): number =>
    known.reduce((most, secret) => {
      let length = Math.min(secret.length - 1, text.length)
      while (length > most && !isPart(secret, length)) length--
      return Math.max(most, length)
    }, 0)
  const before = start ? partOf((secret, length) => text.startsWith(secret.slice(-length))) : 0
  const after = end ? partOf((secret, length) => text.endsWith(secret.slice(0, length))) : 0
  const whole = text.slice(before, Math.max(before, text.length - after))
  return known.reduce((clean, secret) => clean.replaceAll(secret, mark), whole)
}

/** Hides keys and passwords in a text's URLs; with `isAll`, as for a failed request, every query parameter's value. */
export const withoutSecrets = (text: string, isAll: boolean): string =>
  text.includes("=") || text.includes("@")
    ? text.replace(userInfo, "$1").replace(
      parameter,
      (all, start: string, name: string) => isAll || secret.test(name) ? `${start}${name}=REDACTED` : all
    )
    : text

/** Renders a value. Throws if a getter, a `toJSON` or a `toString` throws, which is foreign code. */
const rendered = (value: unknown): string => {
  if (value instanceof Error) return String(value.message)
  return typeof value === "object" && value !== null ? Inspectable.toStringUnknown(value, 0) : String(value)
}

/**
 * Returns text for any value: strings unchanged, errors by their message, everything else as readable JSON. Never
 * throws.
 */
export const render = (value: unknown): string =>
  Result.getOrElse(Result.try(() => rendered(value)), () => "[Unreadable]")

/** Returns an error's own fields, except its failed request and keys in URLs. */
const ownFields = (error: Error): Record<string, unknown> => {
  const isExchange = "request" in error || "response" in error
  const entries = Object.entries(error).filter(([key, value]) => !(exchanges.has(key) && typeof value === "object"))
  return Object.fromEntries(
    entries.map(([key, value]) => [key, typeof value === "string" ? withoutSecrets(value, isExchange) : value])
  )
}

/** Returns an `Error`'s fields as data to keep: its own, and the name and message JSON would lose. */
const errorFields = (error: Error): Record<string, unknown> => ({
  ...("_tag" in error ? {} : { name: error.name }),
  ...ownFields(error),
  message: withoutSecrets(error.message, "request" in error || "response" in error),
  ...(error.cause === undefined ? {} : { cause: error.cause })
})

// Values as JSON. One walker writes all values: events, failures and kept values differ in their view of an object.

/**
 * Space for writing a value, in characters. A value occurring in many places is written in each, and a text must fit
 * into one string with all escapes. Each value also costs some characters besides its text, which bounds the number of
 * values, too.
 */
export class Room {
  protected left: number
  private readonly price: number

  constructor(left = 64 * 1_048_576, price = 64) {
    this.left = left
    this.price = price
  }

  get isSpent(): boolean {
    return this.left <= 0
  }

  /** Takes a value's cost without its texts and members. Returns whether there was enough room. */
  enter(_value: unknown): boolean {
    const hasRoom = !this.isSpent
    this.left -= this.price
    return hasRoom
  }

  /**
   * Takes the room for a text. Returns the text, or `undefined` without enough room. A subclass may shorten the text.
   */
  text(text: string): string | undefined {
    if (text.length > this.left) return undefined
    this.left -= text.length
    return text
  }

  /** Takes the room for a member name. */
  name(name: string): string | undefined {
    return this.text(name)
  }
}

/** Texts standing for unwritable values. */
type Marks = Readonly<Record<"circular" | "tooDeep" | "truncated" | "unreadable", string>>

/** An object's written form: another value, or members. `undefined` members are left out. */
export type View = { readonly instead: unknown } | {
  readonly members: Iterable<readonly [name: string, value: unknown]>
}

/** Rules for writing values. */
export interface Writing {
  /** Views an object other than a list. It may throw: getters, `toJSON` and proxies are foreign code. */
  readonly view: (value: object) => View
  /** Placeholders for unwritable values. Without marks these are left out, and so are symbols and functions. */
  readonly marks?: Marks
  /** Returns the room for a member of an object written without room. */
  readonly roomOf?: (name: string, depth: number) => Room | undefined
}

class Walker {
  private readonly path = new Set<object>()
  private readonly writing: Writing

  constructor(writing: Writing) {
    this.writing = writing
  }

  write(value: unknown, room: Room | undefined): Schema.Json | undefined {
    const { marks } = this.writing
    if (room?.enter(value) === false) return marks?.truncated
    switch (typeof value) {
      case "boolean":
        return value
      case "number":
        // JSON has no negative zero.
        return Number.isFinite(value) ? value + 0 : String(value)
      case "string":
        return this.text(value, room)
      case "bigint":
        return this.text(String(value), room)
      case "symbol":
        return marks && this.text(String(value), room)
      case "function":
        return marks && "[function]"
      case "undefined":
        return undefined
      case "object":
        return value === null ? null : this.object(value, room)
    }
  }

  private text(text: string, room: Room | undefined): string | undefined {
    return room === undefined ? text : room.text(text) ?? this.writing.marks?.truncated
  }

  private object(value: object, room: Room | undefined): Schema.Json | undefined {
    const { marks } = this.writing
    if (this.path.has(value)) return marks?.circular
    if (this.path.size === deepest) return marks?.tooDeep
    this.path.add(value)
    const json = Result.try(() => Array.isArray(value) ? this.list(value, room) : this.inside(value, room))
    this.path.delete(value)
    return Result.getOrElse(json, () => marks?.unreadable)
  }

  /** Walks by index: an iterator may be endless, and a hole becomes `null`. */
  private list(items: ReadonlyArray<unknown>, room: Room | undefined): Schema.Json {
    const { marks } = this.writing
    const json: Array<Schema.Json> = []
    for (let index = 0; index < items.length; index++) {
      if (room?.isSpent === true) return marks === undefined ? json : [...json, marks.truncated]
      const item = Result.getOrElse(Result.try(() => items[index]), () => marks?.unreadable)
      json.push(this.write(item, room) ?? null)
    }
    return json
  }

  private inside(value: object, room: Room | undefined): Schema.Json | undefined {
    const view = this.writing.view(value)
    if ("instead" in view) return this.write(view.instead, room)
    const json: Record<string, Schema.Json> = {}
    for (const [key, member] of view.members) {
      if (room?.isSpent === true) break
      if (member === undefined) continue
      const name = room === undefined ? key : room.name(key)
      if (name === undefined) break
      const written = this.write(member, room ?? this.writing.roomOf?.(key, this.path.size))
      if (written !== undefined) setOwn(json, name, written)
    }
    return json
  }
}

/**
 * Writes a value as JSON, or returns `undefined` if nothing may be written. Never throws: an object that throws when
 * read becomes its mark, or is left out.
 */
export const write = (value: unknown, writing: Writing, room?: Room): Schema.Json | undefined =>
  new Walker(writing).write(value, room)

const keeping: Writing = {
  view: (value) => {
    if (value instanceof Error) return { members: Object.entries(errorFields(value)) }
    if ("toJSON" in value && typeof value.toJSON === "function") return { instead: value.toJSON() ?? null }
    return { members: Object.entries(value) }
  },
  marks: { circular: "[Circular]", tooDeep: "[Too deep]", truncated: "[Truncated]", unreadable: "[Unreadable]" }
}

/**
 * Converts any value to JSON. Never throws: errors become their fields; cycles, functions and unreadable objects,
 * marks.
 */
export const toJson = (value: unknown): Schema.Json => write(value, keeping, new Room()) ?? null

/** Sorts object members, for a hash or a signature. */
export const ordered = (value: unknown): unknown => {
  if (Array.isArray(value)) return value.map(ordered)
  if (typeof value !== "object" || value === null) return value
  const members = Object.entries(value).sort(([one], [other]) => one < other ? -1 : 1)
  return Object.fromEntries(members.map(([name, member]) => [name, ordered(member)]))
}

/** Returns a text for a value, independent of member order. */
export const canonical = (value: unknown): string => JSON.stringify(ordered(toJson(value)))

const utf8 = new TextEncoder()

/** Returns a value's SHA-256 in hexadecimal, independent of member order. */
export const digest = (value: unknown): Effect.Effect<string> =>
  Effect.map(
    Effect.promise(() => crypto.subtle.digest("SHA-256", utf8.encode(JSON.stringify(ordered(value))))),
    (bytes) => Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("")
  )

const hasSameMembers = (one: unknown, other: unknown, depth: number): boolean => {
  if (Object.is(one, other)) return true
  if (depth === deepest || !isPlain(one) || !isPlain(other) || Array.isArray(one) !== Array.isArray(other)) return false
  const members = Object.entries(one).filter(([, member]) => member !== undefined)
  const others = new Map(Object.entries(other).filter(([, member]) => member !== undefined))
  return members.length === others.size &&
    members.every(([key, member]) => hasSameMembers(member, others.get(key), depth + 1))
}

/**
 * Returns `true` if two values hold the same data. Shared data is not walked. Never throws: a non-plain value, such as
 * a date, or an unreadable value equals only itself.
 */
export const isSame = (one: unknown, other: unknown): boolean =>
  Result.getOrElse(Result.try(() => hasSameMembers(one, other, 0)), () => false)

/**
 * A value chosen by the caller or a provider. In memory it stays unchanged; encoding makes it JSON, and decoding yields
 * plain data. `Schema.Defect` is not used: it writes keys in URLs and request headers, drops error fields, fails on
 * long cause chains, and decodes any data with a `message` as an `Error`.
 */
export const Opaque: Schema.Codec<unknown, Schema.Json> = Schema.Json.pipe(
  Schema.decodeTo(Schema.Unknown, {
    decode: SchemaGetter.passthrough({ strict: false }),
    encode: SchemaGetter.transform(toJson)
  })
)

/** Caller data attached to a value of ours. */
export const Metadata = Schema.Record(Schema.String, Opaque).pipe(
  Schema.withDecodingDefaultKey(Effect.succeed({}), { encodingStrategy: "passthrough" })
)

// Error classes of this package. A value is kept as its fields; a resumed run reports an instance again, like the
// uninterrupted run.

type Read = (json: unknown) => Result.Result<unknown, unknown>

/** Readers by class tag, for loaded modules only. */
const readers = new Map<unknown, Read>()

/** Adds a class under a tag unique within the package. */
export const addError = (tag: string, error: Schema.Codec<unknown, unknown>): void => {
  readers.set(tag, Schema.decodeUnknownResult(Schema.toCodecJson(error)))
}

/** Returns the error a value was recorded from, or the value itself. Errors have a `message`. */
const revived = (value: unknown): unknown => {
  if (!isObject(value) || value instanceof Error || typeof value["message"] !== "string") return value
  const read = readers.get(value["_tag"])
  if (read === undefined) return value
  const { message: _, ...fields } = value
  const error = Result.getOrUndefined(read(fields))
  if (!(error instanceof Error)) return value
  const cause = revived(error.cause)
  // A cause's schema is JSON, which excludes instances.
  if (cause !== error.cause) Object.defineProperty(error, "cause", { value: cause, configurable: true, writable: true })
  return error
}

/** Restores the error in one member of data. */
export const withError = <A extends object>(data: A, name: string): A => {
  const value: unknown = Object.hasOwn(data, name) ? Reflect.get(data, name) : undefined
  const error = revived(value)
  return error === value ? data : { ...data, [name]: error }
}
