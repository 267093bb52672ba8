/**
 * Selects the public fields of an error, safe for the calling model, logs, spans and the wire. An error may carry more
 * than its author meant to show, such as the failed request with headers and a key in its URL. So fields are shown as
 * written by the error's own schema, or, without a schema, only plain strings, numbers and booleans.
 */
import * as Cause from "effect/Cause"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { isCrash } from "../declare/outcome.ts"
import * as Json from "../json.ts"

/** Longest JSON for one error's fields, in characters. */
const longest = 8_192

/** Room for the names enclosing the fields. */
const envelope = 192

const never: ReadonlySet<string> = new Set(["cause", "stack", "__proto__"])

const isObject = (value: unknown): value is object => typeof value === "object" && value !== null

const attempt = <A>(read: () => A): A | undefined => Result.getOrUndefined(Result.try(read))

/** Reads a member, perhaps through a foreign getter. */
const member = (value: object, key: string): unknown => attempt(() => Reflect.get(value, key))

const textOf = (value: object, key: string): string | undefined => {
  const text = member(value, key)
  return typeof text === "string" && text !== "" ? text : undefined
}

/** Cuts a text to `most` UTF-16 code units, without splitting a surrogate pair. */
const cut = (text: string, most: number): string => {
  if (text.length <= most) return text
  const end = /[\uD800-\uDBFF]/.test(text.charAt(most - 1)) ? most - 1 : most
  return `${text.slice(0, Math.max(0, end))}…`
}

/** Returns a text safe to show, cut. Secrets across the cut are recognized whole. */
export const shownText = (text: string, isAll = false, most = Infinity): string =>
  cut(Json.beginningWithoutSecrets(text, isAll, most), most)

/** Room measured in JSON characters. A text too long is cut, and everything after it is left out. */
class JsonRoom extends Json.Room {
  override get isSpent(): boolean {
    return this.left <= 2
  }

  override enter(value: unknown): boolean {
    if (this.isSpent) return false
    // Text is charged separately.
    const size = isObject(value) ? 3 : typeof value === "string" ? 0 : String(value).length + 1
    const hasRoom = isObject(value) || size <= this.left
    this.left = hasRoom ? this.left - size : 0
    return hasRoom
  }

  override text(text: string): string {
    // One character may take six in JSON.
    const whole = text.length <= this.left ? JSON.stringify(text).length + 1 : Infinity
    if (whole <= this.left) {
      this.left -= whole
      return text
    }
    let size = 4
    let end = 0
    while (end < text.length) {
      const character = String.fromCodePoint(text.codePointAt(end) ?? 0)
      size += JSON.stringify(character).length - 2
      if (size > this.left) break
      end += character.length
    }
    this.left = 0
    return cut(text, end)
  }

  override name(name: string): string | undefined {
    const size = JSON.stringify(name).length + 2
    if (size + 2 > this.left) return undefined
    this.left -= size
    return name
  }
}

/** Writes JSON cut to a given room. */
const fitted = (json: unknown, room = longest - envelope): unknown =>
  Json.write(json, { view: (value) => ({ members: Object.entries(value) }) }, new JsonRoom(room))

const bounded = (fields: Json.JsonObject): Json.JsonObject => fitted(fields, longest - envelope + 3) as Json.JsonObject

/** Sensitive values found in a failure, at any depth. */
interface Load {
  /** `true` if there is a `Redacted`, which Schema writes as the hidden text. */
  readonly hasSecrets: boolean
  /** `true` if there is a request or a response: any URL parameter may then be a key. */
  readonly hasExchange: boolean
}

/** Most objects inspected in a failure. A larger failure may hold anything. */
const mostLookedAt = 10_000

const valuesOf = (value: object): ReadonlyArray<unknown> =>
  attempt(() => [
    ...(value instanceof Map || value instanceof Set ? value : Object.values(value)),
    member(value, "cause")
  ]) ?? []

const loadOf = (value: unknown): Load => {
  const seen = new Set<object>(isObject(value) ? [value] : [])
  let hasSecrets = false
  let hasExchange = false
  // Iterating a set also visits elements added on the way.
  for (const object of seen) {
    if (seen.size > mostLookedAt) return { hasSecrets: true, hasExchange: true }
    hasSecrets ||= attempt(() => Redacted.isRedacted(object)) ?? true
    hasExchange ||= attempt(() => "request" in object || "response" in object || Json.isExchange(object)) ?? true
    for (const inner of valuesOf(object)) if (isObject(inner)) seen.add(inner)
  }
  return { hasSecrets, hasExchange }
}

/** Returns the data form of Effect's wrapper values and of bytes, or `undefined` for any other value. */
const contents = (value: object): unknown => {
  if (Cause.isCause(value)) return { _tag: "Cause", reasons: value.reasons.map(reasonOf) }
  if (Exit.isExit(value)) return Exit.isSuccess(value) ? { _tag: "Success", value: value.value } : contents(value.cause)
  if (Result.isResult(value)) {
    return Result.isSuccess(value)
      ? { _tag: "Success", success: value.success }
      : { _tag: "Failure", failure: value.failure }
  }
  if (Option.isOption(value)) return Option.isSome(value) ? { _tag: "Some", value: value.value } : { _tag: "None" }
  if (Redacted.isRedacted(value)) return "<redacted>"
  return ArrayBuffer.isView(value) ? `[${value.byteLength} bytes]` : undefined
}

/** Returns `true` for wrapper values: data despite their tag. */
const isContainer = (value: object): boolean => attempt(() => contents(value) !== undefined) ?? false

/** Returns a cause's reason as data: the error or defect, without its location. */
export const reasonOf = (reason: Cause.Reason<unknown>): Json.JsonObject => {
  switch (reason._tag) {
    case "Fail":
      return { _tag: "Fail", error: reason.error }
    case "Die":
      return { _tag: "Die", defect: reason.defect }
    case "Interrupt":
      return { _tag: "Interrupt" }
  }
}

/** Room for a failure's contents. Texts are cut and shown without secrets. */
class ShownRoom extends Json.Room {
  private readonly isAll: boolean

  constructor(isAll: boolean) {
    super(2 * longest, 1)
    this.isAll = isAll
  }

  override text(text: string): string {
    const shown = shownText(text, this.isAll, Math.min(longest, this.left))
    this.left -= shown.length
    return shown
  }
}

/** Yields the public members. Each is read on demand, so nothing is read without room. */
function* shownMembers(
  keys: ReadonlyArray<string>,
  read: (key: string) => unknown
): Iterable<readonly [string, unknown]> {
  for (const key of keys) {
    if (never.has(key)) continue
    const value = read(key)
    if (!(Json.exchanges.has(key) && isObject(value))) yield [key, Json.isCredential(key) ? "<redacted>" : value]
  }
}

const scalarOf = (value: object, key: string): unknown => {
  const scalar = member(value, key)
  return isObject(scalar) ? undefined : scalar
}

/** Returns the writing rules for a failure: errors by their fields, data without anything an error merely carries. */
const telling = (): Json.Writing => {
  const errors = new Map<object, Json.JsonObject>()
  /** Inspects an error once, even if it occurs in many places. */
  const fieldsOf = (error: object): Json.JsonObject => {
    const fields = errors.get(error) ?? errorFields(error)
    errors.set(error, fields)
    return fields
  }
  const view = (value: object): Json.View => {
    const instead = contents(value)
    if (instead !== undefined) return { instead }
    if (isError(value)) {
      const fields = fieldsOf(value)
      return { members: shownMembers(Object.keys(fields), (key) => fields[key]) }
    }
    if (Json.isExchange(value)) return { members: shownMembers(Json.exchangeMembers, (key) => scalarOf(value, key)) }
    const toJson = member(value, "toJSON")
    return typeof toJson === "function"
      ? { instead: Reflect.apply(toJson, value, []) }
      : { members: shownMembers(Object.keys(value), (key) => member(value, key)) }
  }
  return { view }
}

/** Returns the public form of any value in a failure, or nothing if no part may be shown. */
const toldOf = (value: unknown, isAll = loadOf(value).hasExchange): unknown =>
  Json.write(value, telling(), new ShownRoom(isAll))

type Encoder = (value: unknown) => unknown

const encoders = new WeakMap<object, Encoder>()

/** Returns the encoder for a value whose class is a schema. A schema needing services writes nothing here. */
const encoderOf = (value: object): Encoder | undefined => {
  const schema = member(value, "constructor")
  if (typeof schema !== "function" || !Schema.isSchema(schema)) return undefined
  const known = encoders.get(schema)
  if (known !== undefined) return known
  const encoder: Encoder = Schema.encodeUnknownSync(Schema.toCodecJson(schema as Schema.Codec<unknown>))
  encoders.set(schema, encoder)
  return encoder
}

/** Returns the public part of a schema-written failure: no `cause`, no `stack`, nothing redacted. */
const written = (error: unknown, fields: unknown): unknown => {
  const { hasExchange, hasSecrets } = loadOf(error)
  if (!hasSecrets) return toldOf(fields, hasExchange)
  if (!isObject(fields)) return "<redacted>"
  const masked = (inner: unknown, key: string) => loadOf(member(Object(error), key)).hasSecrets ? "<redacted>" : inner
  const shown = Array.isArray(fields)
    ? fields.map((inner: unknown, index) => masked(inner, String(index)))
    : Object.fromEntries(Object.entries(fields).map(([key, inner]) => [key, masked(inner, key)]))
  return toldOf(shown, hasExchange)
}

/** Returns the fields as written by the schema of the error's class. */
const declared = (error: object): Json.JsonObject | undefined =>
  attempt(() => {
    const fields = written(error, encoderOf(error)?.(error))
    return Json.isObject(fields) ? fields : undefined
  })

/** Returns own string, number and boolean fields. */
const plain = (error: object, isAll: boolean): Json.JsonObject => {
  const keys = attempt(() => Object.keys(error)) ?? []
  const entries = keys.flatMap((key): ReadonlyArray<readonly [string, unknown]> => {
    if (never.has(key) || Json.exchanges.has(key) || key.startsWith("~")) return []
    const value = member(error, key)
    if (typeof value === "string") {
      return [[key, Json.isCredential(key) ? "<redacted>" : shownText(value, isAll, longest)]]
    }
    return typeof value === "number" || typeof value === "boolean" ? [[key, Json.toJson(value)]] : []
  })
  return Object.fromEntries(entries)
}

const deepest = 8

const isUnknown = (error: unknown): error is Cause.UnknownError => attempt(() => Cause.isUnknownError(error)) ?? false

/** Returns the thrown value inside an exception of unknown type. */
const unwrapped = (error: unknown): unknown => {
  let inner = error
  for (let depth = 0; depth < deepest && isUnknown(inner); depth++) {
    const cause = member(inner, "cause")
    if (cause === undefined || cause === null) return inner
    inner = cause
  }
  return inner
}

/**
 * Returns the public fields of an error as plain JSON: `_tag`, `name` and `message` first, then its own. Own fields are
 * those written by the schema of its class; without a schema, the strings, numbers and booleans among its properties.
 * `cause` and `stack` are always left out, and so are `request` and `response`, unless a schema writes them as plain
 * values. An `UnknownError` from Effect is shown as the thrown value. At most 8,192 characters of JSON. Never throws.
 */
export const errorFields = (value: object): Json.JsonObject => {
  const error = unwrapped(value)
  if (typeof error !== "object" || error === null) return { name: "UnknownError", message: described(error).text }
  const { hasExchange } = loadOf(error)
  const tag = textOf(error, "_tag")
  const name = textOf(error, "name") ?? tag
  const message = member(error, "message")
  const text = (value: string) => shownText(value, hasExchange, longest)
  const head = {
    ...(tag === undefined ? {} : { _tag: text(tag) }),
    ...(name === undefined ? {} : { name: text(name) }),
    ...(typeof message === "string" ? { message: text(message) } : {})
  }
  // `head` appears twice: it comes first, and no own field replaces it.
  return bounded({ ...head, ...(declared(error) ?? plain(error, hasExchange)), ...head })
}

/** An error as text, with additional fields. */
export interface Described {
  readonly text: string
  readonly details?: Json.JsonObject
}

/**
 * Returns `true` for a value shown by its fields: an error, an instance of a schema class, or an instance of any other
 * class with a `_tag`. Other objects are data.
 */
const isError = (value: object): boolean =>
  attempt(() => {
    if (value instanceof Error || encoderOf(value) !== undefined) return true
    const prototype: unknown = Object.getPrototypeOf(value)
    return prototype !== Object.prototype && prototype !== null && textOf(value, "_tag") !== undefined
  }) ?? true

/** Returns `true` if a name adds something to the known texts. */
const isNews = (name: unknown, ...known: ReadonlyArray<unknown>): boolean => name !== undefined && !known.includes(name)

/** Describes an error by its fields: by its message, or else its name. */
const byFields = (error: object): Described => {
  const { _tag: tag, message, name, ...own } = errorFields(error)
  const text = [message, tag, name].find((word) => typeof word === "string" && word !== "") ?? "Error"
  const details = {
    ...(isNews(tag, text) ? { _tag: tag } : {}),
    // A tag is the name; the schema's class name adds nothing.
    ...(tag === undefined && isNews(name, text, "Error") ? { name } : {}),
    ...own
  }
  return Object.keys(details).length === 0 ? { text: String(text) } : { text: String(text), details }
}

/**
 * Describes data. Data with a message or a tag, as written by an error's schema, keeps its other fields as details.
 * Other data becomes JSON.
 */
const byData = (value: unknown): Described => {
  const told = toldOf(value) ?? null
  const key = textOf(Object(told), "message") === undefined ? "_tag" : "message"
  const text = textOf(Object(told), key)
  if (text === undefined || !Json.isObject(told)) {
    const json = typeof told === "string" ? told : JSON.stringify(fitted(told) ?? null)
    return { text: String(fitted(json)) }
  }
  const { [key]: _, ...rest } = told
  return Object.keys(rest).length === 0 ? { text } : { text, details: bounded(rest) }
}

/**
 * Describes a failure reason in text and public fields. Text appears without the keys in its URLs. Other data becomes
 * JSON, with errors shown by their fields at any depth. Never throws.
 */
export const described = (reason: unknown): Described => {
  const error = unwrapped(reason)
  if (typeof error === "string") return { text: shownText(error) }
  if (typeof error !== "object" || error === null) return { text: Json.render(error) }
  if (!isContainer(error) && isError(error)) return byFields(error)
  return attempt(() => byData(error)) ?? { text: "Error" }
}

/** Returns a reason as one text, without name and tag: the message identifies the error. */
export const describedText = (reason: unknown): string => {
  const { details, text } = described(reason)
  const { _tag: _, name: __, ...own } = details ?? {}
  return Object.keys(own).length === 0 ? text : `${text} ${JSON.stringify(own)}`
}

// Failures reported by a handler, as shown to the model.

/** Returns an exception as data. An exception with only a message becomes text. */
const exception = (error: Error): unknown => {
  const { details, text } = described(error)
  if (details !== undefined) return { message: text, ...details }
  return error.message === "" ? text : shownText(error.message)
}

/** Adds the error's message if its schema writes no message. */
const withMessage = (reason: unknown, fields: unknown): unknown =>
  reason instanceof Error && reason.message !== "" && Json.isObject(fields)
    ? { message: shownText(reason.message), ...fields }
    : fields

/** Returns a failure without a schema, as shown to the model. */
export const unschemed = (reason: unknown): unknown => {
  const error = unwrapped(reason)
  return error instanceof Error && !("_tag" in error) ? exception(error) : error
}

/** Returns the public part of a failure's schema-written fields, and that part as told to the model. */
export const reportOf = (reason: unknown, fields: unknown): { readonly shown: unknown; readonly told: unknown } => {
  const shown = written(reason, fields)
  return { shown, told: withMessage(reason, shown) }
}

/** Returns `true` for a `ToolError` cause standing for a thrown non-`Error` value. */
const isThrown = (cause: unknown): cause is Json.JsonObject => Json.isObject(cause) && cause["_tag"] === "Thrown"

/** Returns the thrown value from a `ToolError` cause. */
export const thrown = (cause: unknown): unknown => isThrown(cause) ? cause["value"] : cause

/** Returns the public fields of a crash cause. Non-errors get their text as the message. */
export const causeFields = (cause: unknown): Json.JsonObject => {
  const value = thrown(cause)
  return isObject(value) && !isContainer(value) && isError(value)
    ? errorFields(value)
    : bounded({ message: described(value).text })
}

/** Returns the crash fields for the completing event. */
export const crashFields = (error: unknown): { readonly cause?: Json.JsonObject } =>
  isCrash(error) && error.cause !== undefined ? { cause: causeFields(error.cause) } : {}
