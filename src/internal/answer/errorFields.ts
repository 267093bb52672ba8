/**
 * Selects the fields of an error that may be shown: to the model that made the call, in a log, in a span, on the wire.
 * An error carries more than its author meant to show, such as the request it failed on, with its headers and the key
 * in its URL. So its fields are shown as its own schema writes them, and without one only those that are plain text,
 * numbers and booleans.
 */
import * as Cause from "effect/Cause"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { isCrash } from "../declare/outcome.ts"
import * as Json from "../json.ts"

/** The longest that the fields of one error get, in characters of JSON. */
const longest = 8_192

/** Room for the names that enclose the fields where they are shown. */
const envelope = 192

const never: ReadonlySet<string> = new Set(["cause", "stack", "__proto__"])

const isObject = (value: unknown): value is object => typeof value === "object" && value !== null

const attempt = <A>(read: () => A): A | undefined => Result.getOrUndefined(Result.try(read))

/** A member that may be a getter of foreign code. */
const member = (value: object, key: string): unknown => attempt(() => Reflect.get(value, key))

const textOf = (value: object, key: string): string | undefined => {
  const text = member(value, key)
  return typeof text === "string" && text !== "" ? text : undefined
}

/** A text that has been cut to `most` UTF-16 code units, without splitting a surrogate pair. */
const cut = (text: string, most: number): string => {
  if (text.length <= most) return text
  const end = /[\uD800-\uDBFF]/.test(text.charAt(most - 1)) ? most - 1 : most
  return `${text.slice(0, Math.max(0, end))}…`
}

/** A text as it may be shown, cut. What a cut would split is looked at whole. */
export const shownText = (text: string, isAll = false, most = Infinity): string =>
  cut(Json.beginningWithoutSecrets(text, isAll, most), most)

/** Room for so many characters of JSON. A text that does not fit is cut, and what comes after it is left out. */
class JsonRoom extends Json.Room {
  override get isSpent(): boolean {
    return this.left <= 2
  }

  override enter(value: unknown): boolean {
    if (this.isSpent) return false
    // A text takes its own.
    const size = isObject(value) ? 3 : typeof value === "string" ? 0 : String(value).length + 1
    const hasRoom = isObject(value) || size <= this.left
    this.left = hasRoom ? this.left - size : 0
    return hasRoom
  }

  override text(text: string): string {
    // A character may take six in JSON.
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

/** JSON of at most so many characters. */
const fitted = (json: unknown, room = longest - envelope): unknown =>
  Json.write(json, { view: (value) => ({ members: Object.entries(value) }) }, new JsonRoom(room))

const bounded = (fields: Json.JsonObject): Json.JsonObject => fitted(fields, longest - envelope + 3) as Json.JsonObject

/** The values that a failure carries along, at any depth. */
interface Load {
  /** Schema writes a `Redacted` as the text it hides. */
  readonly hasSecrets: boolean
  /** A request or a response: any parameter of a URL may then be a key. */
  readonly hasExchange: boolean
}

/** The most objects of a failure that are looked at. One that has more may hold anything. */
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
  // A set is also walked over what is added on the way.
  for (const object of seen) {
    if (seen.size > mostLookedAt) return { hasSecrets: true, hasExchange: true }
    hasSecrets ||= attempt(() => Redacted.isRedacted(object)) ?? true
    hasExchange ||= attempt(() => "request" in object || "response" in object || Json.isExchange(object)) ?? true
    for (const inner of valuesOf(object)) if (isObject(inner)) seen.add(inner)
  }
  return { hasSecrets, hasExchange }
}

/** Values of Effect that stand for another value, as data. */
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

/** Returns `true` if a value stands for another. It is data, although it has a tag. */
const isContainer = (value: object): boolean => attempt(() => contents(value) !== undefined) ?? false

/** A reason of a cause as data: what failed or died, and nothing about where. */
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

/** Room for what a failure holds. A text is shown without its secrets, and cut. */
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

/** The members that may be shown. Each is read only when it is asked for, so that none is read without room. */
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

/**
 * Rules for what a failure holds: errors are written by their fields, data without what an error only carries along.
 */
const telling = (): Json.Writing => {
  const errors = new Map<object, Json.JsonObject>()
  /** Looks once at an error that stands in many places. */
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

/** Returns the fields that are shown of any value that a failure holds, and nothing where none of it may be shown. */
const toldOf = (value: unknown, isAll = loadOf(value).hasExchange): unknown =>
  Json.write(value, telling(), new ShownRoom(isAll))

type Encoder = (value: unknown) => unknown

const encoders = new WeakMap<object, Encoder>()

/** The class of a value that was made from a schema is that schema. One that needs services writes nothing here. */
const encoderOf = (value: object): Encoder | undefined => {
  const schema = member(value, "constructor")
  if (typeof schema !== "function" || !Schema.isSchema(schema)) return undefined
  const known = encoders.get(schema)
  if (known !== undefined) return known
  const encoder: Encoder = Schema.encodeUnknownSync(Schema.toCodecJson(schema as Schema.Codec<unknown>))
  encoders.set(schema, encoder)
  return encoder
}

/**
 * Returns what a schema wrote of a failure, as far as it may be shown: no `cause`, no `stack`, nothing that was
 * redacted.
 */
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

/** The fields as the schema of the error's class writes them. */
const declared = (error: object): Json.JsonObject | undefined =>
  attempt(() => {
    const fields = written(error, encoderOf(error)?.(error))
    return Json.isObject(fields) ? fields : undefined
  })

/** The fields of its own that are texts, numbers and booleans. */
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

/** An exception of unknown type stands for what was thrown. */
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
 * The fields of an error that may be shown, as plain JSON: its `_tag`, `name` and `message` first, then its own. They
 * are those that the schema of its class writes; without one the texts, numbers and booleans among its own properties.
 * Its `cause` and `stack` are never among them, nor a `request` or a `response`. An `UnknownError` of Effect is shown
 * as what was thrown. At most 8,192 characters of JSON. It never throws.
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
  // Named twice, so that they come first and nothing of the error's own takes their place.
  return bounded({ ...head, ...(declared(error) ?? plain(error, hasExchange)), ...head })
}

/** An error in words, and the fields beside them. */
export interface Described {
  readonly text: string
  readonly details?: Json.JsonObject
}

/**
 * Returns `true` if a value is shown by its fields: an error, or an instance of a class of its own. Other objects are
 * data.
 */
const isError = (value: object): boolean =>
  attempt(() => {
    if (value instanceof Error || encoderOf(value) !== undefined) return true
    const prototype: unknown = Object.getPrototypeOf(value)
    return prototype !== Object.prototype && prototype !== null && textOf(value, "_tag") !== undefined
  }) ?? true

/** Returns `true` if a name adds something to the texts that are known. */
const isNews = (name: unknown, ...known: ReadonlyArray<unknown>): boolean => name !== undefined && !known.includes(name)

/** An error by its fields: its message, or for want of one its name. */
const byFields = (error: object): Described => {
  const { _tag: tag, message, name, ...own } = errorFields(error)
  const text = [message, tag, name].find((word) => typeof word === "string" && word !== "") ?? "Error"
  const details = {
    ...(isNews(tag, text) ? { _tag: tag } : {}),
    // A tag is the name; what a schema calls the class says nothing more.
    ...(tag === undefined && isNews(name, text, "Error") ? { name } : {}),
    ...own
  }
  return Object.keys(details).length === 0 ? { text: String(text) } : { text: String(text), details }
}

/** Data with a message or a tag, as an error's schema writes it, has its fields beside. Other data are JSON. */
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
 * A reason for a failure, in words and fields that may be shown. A text is itself without the keys of its URLs, other
 * data is JSON, in which errors are shown by their fields at any depth. It never throws.
 */
export const described = (reason: unknown): Described => {
  const error = unwrapped(reason)
  if (typeof error === "string") return { text: shownText(error) }
  if (typeof error !== "object" || error === null) return { text: Json.render(error) }
  if (!isContainer(error) && isError(error)) return byFields(error)
  return attempt(() => byData(error)) ?? { text: "Error" }
}

/** A reason as one text, without its name and tag: the message identifies it. */
export const describedText = (reason: unknown): string => {
  const { details, text } = described(reason)
  const { _tag: _, name: __, ...own } = details ?? {}
  return Object.keys(own).length === 0 ? text : `${text} ${JSON.stringify(own)}`
}

// Failures that a handler reported, as a model reads them.

/** An exception as data. One that is no more than its message is a text. */
const exception = (error: Error): unknown => {
  const { details, text } = described(error)
  if (details !== undefined) return { message: text, ...details }
  return error.message === "" ? text : shownText(error.message)
}

/** The message of an error is added where its schema does not write it. */
const withMessage = (reason: unknown, fields: unknown): unknown =>
  reason instanceof Error && reason.message !== "" && Json.isObject(fields)
    ? { message: shownText(reason.message), ...fields }
    : fields

/** Returns what a model reads of a failure without a schema. */
export const unschemed = (reason: unknown): unknown => {
  const error = unwrapped(reason)
  return error instanceof Error && !("_tag" in error) ? exception(error) : error
}

/** Returns what a model reads of a failure of which a schema has written the fields, and what of them may be shown. */
export const reportOf = (reason: unknown, fields: unknown): { readonly shown: unknown; readonly told: unknown } => {
  const shown = written(reason, fields)
  return { shown, told: withMessage(reason, shown) }
}

/** Returns `true` for the cause of a `ToolError` that stands for a thrown value which is no `Error`. */
const isThrown = (cause: unknown): cause is Json.JsonObject => Json.isObject(cause) && cause["_tag"] === "Thrown"

/** Returns the thrown value, by the cause of a `ToolError`. */
export const thrown = (cause: unknown): unknown => isThrown(cause) ? cause["value"] : cause

/** The fields that may be shown of what a call broke with. What is no error has its text as a message. */
export const causeFields = (cause: unknown): Json.JsonObject => {
  const value = thrown(cause)
  return isObject(value) && !isContainer(value) && isError(value)
    ? errorFields(value)
    : bounded({ message: described(value).text })
}

/** Returns the fields by which the completing event tells of a crash. */
export const crashFields = (error: unknown): { readonly cause?: Json.JsonObject } =>
  isCrash(error) && error.cause !== undefined ? { cause: causeFields(error.cause) } : {}
