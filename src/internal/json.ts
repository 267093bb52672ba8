/**
 * JSON as it crosses the borders of a run. Model output is hostile input, so parsing drops `__proto__` members; values
 * that were never meant to be JSON (errors, handler results) are rendered without throwing, and without the secrets
 * that errors carry along.
 */
import * as Effect from "effect/Effect"
import * as Inspectable from "effect/Inspectable"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as SchemaGetter from "effect/SchemaGetter"

export type JsonObject = Readonly<Record<string, unknown>>

/** No members. Most messages have no metadata, and a thread is made of many. */
export const none: JsonObject = Object.freeze({})

/** `__proto__` in any spelling that JSON allows: each of its letters may be escaped. */
const suspicious = /__proto__|\\u00/i

const isContainer = (value: unknown): value is object => typeof value === "object" && value !== null

/** The objects and lists in those of one level, each once: parsed data share nothing, but other data may. */
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
 * Returns `true` if objects and lists nest deeper in a value than so many levels, itself included. A cycle does. It
 * goes level by level, so that no depth overflows the stack.
 */
export const isDeeper = (value: unknown, levels: number): boolean => {
  let level = new Set(isContainer(value) ? [value] : [])
  for (let depth = 0; level.size > 0; depth++) {
    if (depth === levels) return true
    level = below(level)
  }
  return false
}

/** Parsed data without its `__proto__` members, and, below so many levels, without its objects and lists. */
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
 * The start and the end of each name with an escape in a text of JSON, quotes included. A pattern that fits a whole
 * string overflows the stack of V8 where the string has millions of escapes.
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

/** Gives the members of parsed data the names that stand for theirs, in the same order. */
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
 * Parses a text of JSON. V8 13.6 (Node 24) reads a name with an escape, such as `"\u00fc"`, as the text of its escape
 * (`"\\"`) where any JSON of the process had a member of that name behind the same members: one hostile reply would
 * change the arguments of later calls. Other names stand for such names while the text is parsed.
 */
const parseNames = (text: string): unknown => {
  // Refuses what is no JSON, whose strings cannot be found.
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

/** Parses without a reviver of `JSON.parse`, which overflows the stack where the data are deep. */
const parseUnsafe = (text: string, levels: number): unknown => {
  const parsed = parseNames(text)
  return suspicious.test(text) || text.length > 2 * levels ? cleared(parsed, levels) : parsed
}

export const parse = (text: string): Result.Result<unknown, unknown> => Result.try(() => parseUnsafe(text, Infinity))

/** The deepest that values are kept and written. `JSON.stringify` and `JSON.parse` take some thousand levels. */
const deepest = 512

/** Parses what a provider sent. Data that nest deeper than anything means are cut off. */
export const parseWire = (text: string): Result.Result<unknown, unknown> => Result.try(() => parseUnsafe(text, deepest))

/** Escapes what databases and URIs refuse in a text, as JSON does: a zero, and a lone surrogate. */
export const escaped = (text: string): string => JSON.stringify(text).slice(1, -1)

/** Returns the text that was escaped. */
export const unescaped = (text: string): string => String(JSON.parse(`"${text}"`))

export const isObject = (value: unknown): value is JsonObject =>
  typeof value === "object" && value !== null && !Array.isArray(value)

// Halves of surrogate pairs, which UTF-8 cannot write, and which providers refuse a whole conversation for. A half may
// be the beginning of a pair whose other half comes with the next delta, so that only whole texts are looked at.

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

/** The same text, or data with the same texts, in which U+FFFD stands for each half of a surrogate pair. */
export const wellFormed = <A>(value: A): A => hasHalves(value, 0) ? withoutHalves(value, 0) as A : value

/** Escapes of JSON of which a half may be one: a pair, which is whole, a half, and any other that might hide one. */
const escapes = /\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|\\u[dD][89a-fA-F][\da-fA-F]{2}|\\[^u]/g
const halfLength = "\\ud800".length

/** The same for a text of JSON, where a half is an escape as well. */
export const wellFormedJson = (json: string): string =>
  /\\u[dD]/.test(json)
    ? json.toWellFormed().replace(escapes, (found) => found.length === halfLength ? "\ufffd" : found)
    : json.toWellFormed()

const isWord = (value: unknown): value is string => typeof value === "string" && /^[\w./-]{1,64}$/.test(value)

/** Returns the name of an error and its reason, which are a program's own words, without what was written into it. */
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
 * The same data in objects and lists of its own. What is neither, such as a date, is kept as it is. It takes any depth,
 * and cycles.
 */
export const copy = <A>(value: A): A => {
  if (!isPlain(value)) return value
  // Most arguments are such values.
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

/** A member that is called `__proto__` is a member like any other. */
const setOwn = (object: Record<string, unknown>, key: string, value: unknown): void => {
  if (key !== "__proto__") object[key] = value
  else Object.defineProperty(object, key, { value, enumerable: true, configurable: true, writable: true })
}

// The secrets of an error are in the request that it failed on, which it carries along, and in the URLs that its texts
// quote.

/**
 * The members that hold headers and keys where they are objects. A schema may write a text for one, such as its name.
 */
export const exchanges: ReadonlySet<string> = new Set(["request", "response"])

/** The members that are shown of a request or a response which stands under another name. */
export const exchangeMembers = ["method", "url", "status", "statusText"] as const

/**
 * Returns `true` if an object is a request or a response, of any library: it has headers, and a member that goes with
 * them.
 */
export const isExchange = (value: object): boolean =>
  !Array.isArray(value) && "headers" in value && exchangeMembers.some((key) => key in value)

const credential = /^(proxy-)?authorization$|^(set-)?cookie$|^(x-)?(\w+-)?api[-_]?key$|^x-[\w-]*(token|secret)$/i

/** Returns `true` if a member has the name of a header that lets its bearer in. */
export const isCredential = (name: string): boolean => name.length <= 64 && credential.test(name)

/**
 * A parameter of a query. Names are bounded, since they are foreign text: the time must not grow with the square of its
 * length.
 */
const parameter = /([?&])([^=&\s#?]{1,64})=([^&\s#"'<>)]*)/g
const userInfo = /([a-z]{2,12}:\/\/)[^/\s@?#]{1,256}@/gi
const secret = /key$|token|secret|sig(nature)?$|pass(wd|word)?$|pwd$|^auth$|authorization|credential|session|jwt/i

/** The beginning of a URL that a cut ends, which may be that of a password: the `@` behind it is missing. */
const cutUserInfo = /[a-z]{2,12}:\/\/[^/\s@?#]{0,256}$/i

/**
 * Does the same as `withoutSecrets` to the beginning of a text: at least `most` UTF-16 code units, where nothing is
 * taken out. A secret at the end is not shown in part, however much shorter the text before it becomes.
 */
export const beginningWithoutSecrets = (text: string, isAll: boolean, most: number): string => {
  const end = most + 512
  return text.length <= end
    ? withoutSecrets(text, isAll)
    : withoutSecrets(text.slice(0, end).replace(cutUserInfo, ""), isAll)
}

/**
 * Takes known secrets out of a text: longer ones first, since a shorter one may be the beginning of another. Where the
 * text was cut before, a part of one at that end goes, too.
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

/** Takes keys and passwords out of the URLs in a text; out of those of a request that failed, every parameter. */
export const withoutSecrets = (text: string, isAll: boolean): string =>
  text.includes("=") || text.includes("@")
    ? text.replace(userInfo, "$1").replace(
      parameter,
      (all, start: string, name: string) => isAll || secret.test(name) ? `${start}${name}=REDACTED` : all
    )
    : text

/** Renders a value. Throws where a getter, a `toJSON` or a `toString` does, which is foreign code. */
const rendered = (value: unknown): string => {
  if (value instanceof Error) return String(value.message)
  return typeof value === "object" && value !== null ? Inspectable.toStringUnknown(value, 0) : String(value)
}

/** A text for any value: strings as they are, errors by their message, the rest as readable JSON. Total. */
export const render = (value: unknown): string =>
  Result.getOrElse(Result.try(() => rendered(value)), () => "[Unreadable]")

/** The own fields of an error. What it failed on is none of them, nor is a key in a URL. */
const ownFields = (error: Error): Record<string, unknown> => {
  const isExchange = "request" in error || "response" in error
  const entries = Object.entries(error).filter(([key, value]) => !(exchanges.has(key) && typeof value === "object"))
  return Object.fromEntries(
    entries.map(([key, value]) => [key, typeof value === "string" ? withoutSecrets(value, isExchange) : value])
  )
}

/** Returns the fields of an `Error` as data that is kept: its own, and the name and message that JSON would lose. */
const errorFields = (error: Error): Record<string, unknown> => ({
  ...("_tag" in error ? {} : { name: error.name }),
  ...ownFields(error),
  message: withoutSecrets(error.message, "request" in error || "response" in error),
  ...(error.cause === undefined ? {} : { cause: error.cause })
})

// Values as JSON. One walker writes them all: events, failures and values that are kept differ in how they view an
// object.

/**
 * The room that a value is written into, in characters. A value that stands in many places is written in each of them,
 * and a text has to fit into one string with all of its escapes. Each value costs some characters beside those of its
 * text, so that the number of values is bounded, too.
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

  /** Takes what a value costs without its texts and members. Returns whether there was room for it. */
  enter(_value: unknown): boolean {
    const hasRoom = !this.isSpent
    this.left -= this.price
    return hasRoom
  }

  /** Takes the room of a text. Returns as much of it as may be written. */
  text(text: string): string | undefined {
    if (text.length > this.left) return undefined
    this.left -= text.length
    return text
  }

  /** Takes the room of the name of a member. */
  name(name: string): string | undefined {
    return this.text(name)
  }
}

/** Texts for what cannot be written. */
type Marks = Readonly<Record<"circular" | "tooDeep" | "truncated" | "unreadable", string>>

/** The form in which an object is written: another value, or members. Those that are `undefined` are left out. */
export type View = { readonly instead: unknown } | {
  readonly members: Iterable<readonly [name: string, value: unknown]>
}

/** The rules by which values are written. */
export interface Writing {
  /** Looks at an object that is no list. It may throw: a getter, a `toJSON` and a proxy are foreign code. */
  readonly view: (value: object) => View
  /** Stand for what cannot be written. Without them it is left out, and so are symbols and functions. */
  readonly marks?: Marks
  /** Gives the room of a member of an object that is written without one. */
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

  /** Goes by the indices: an iterator may have no end, and a hole is `null`. */
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

/** A value as JSON, or nothing where none of it may be written. Total: what throws when it is read is not written. */
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

/** Any value as JSON. Total: cycles, functions, errors and what throws when it is read are rendered. */
export const toJson = (value: unknown): Schema.Json => write(value, keeping, new Room()) ?? null

/** Returns a value with the members of its objects in one order, for a hash or a signature. */
export const ordered = (value: unknown): unknown => {
  if (Array.isArray(value)) return value.map(ordered)
  if (typeof value !== "object" || value === null) return value
  const members = Object.entries(value).sort(([one], [other]) => one < other ? -1 : 1)
  return Object.fromEntries(members.map(([name, member]) => [name, ordered(member)]))
}

/** Returns the text of a value that does not depend on the order of object members. */
export const canonical = (value: unknown): string => JSON.stringify(ordered(toJson(value)))

const utf8 = new TextEncoder()

/** Returns the SHA-256 of a value. The order of the members of its objects does not count. */
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
 * Returns `true` if two values hold the same data. Data that they share is not gone through. Total: a value that is not
 * plain, such as a date, or that cannot be read is the same as itself only.
 */
export const isSame = (one: unknown, other: unknown): boolean =>
  Result.getOrElse(Result.try(() => hasSameMembers(one, other, 0)), () => false)

/**
 * A value that the caller or a provider chose. It is kept as it is in memory, becomes JSON when it is encoded and
 * comes back as plain data. `Schema.Defect` is not used: it writes the keys in URLs and the headers of a request, drops
 * the fields of an error, fails on a long chain of causes, and decodes any data with a `message` as an `Error`.
 */
export const Opaque: Schema.Codec<unknown, Schema.Json> = Schema.Json.pipe(
  Schema.decodeTo(Schema.Unknown, {
    decode: SchemaGetter.passthrough({ strict: false }),
    encode: SchemaGetter.transform(toJson)
  })
)

/** The data that a caller attaches to a value of ours. */
export const Metadata = Schema.Record(Schema.String, Opaque).pipe(
  Schema.withDecodingDefaultKey(Effect.succeed({}), { encodingStrategy: "passthrough" })
)

// The error classes of this package. A value is kept as its fields; what a resumed run reports is an instance again, as
// it was in the run that was not interrupted.

type Read = (json: unknown) => Result.Result<unknown, unknown>

/** The readers by the tags of the classes. Only loaded modules are among them. */
const readers = new Map<unknown, Read>()

/** Adds a class, whose tag no other class of the package has. */
export const addError = (tag: string, error: Schema.Codec<unknown, unknown>): void => {
  readers.set(tag, Schema.decodeUnknownResult(Schema.toCodecJson(error)))
}

/** Returns the error that a value was recorded from, and any other value as it is. An error has a `message`. */
const revived = (value: unknown): unknown => {
  if (!isObject(value) || value instanceof Error || typeof value["message"] !== "string") return value
  const read = readers.get(value["_tag"])
  if (read === undefined) return value
  const { message: _, ...fields } = value
  const error = Result.getOrUndefined(read(fields))
  if (!(error instanceof Error)) return value
  const cause = revived(error.cause)
  // The schema of a cause is JSON, which an instance is not.
  if (cause !== error.cause) Object.defineProperty(error, "cause", { value: cause, configurable: true, writable: true })
  return error
}

/** Returns data with the error under a name as it was recorded from. */
export const withError = <A extends object>(data: A, name: string): A => {
  const value: unknown = Object.hasOwn(data, name) ? Reflect.get(data, name) : undefined
  const error = revived(value)
  return error === value ? data : { ...data, [name]: error }
}
