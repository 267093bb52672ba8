/**
 * The kinds of values that options have. Each list of options names the kind of each option, and `checkNames` holds the
 * values to it where the options enter, so that no later code meets a value that it does not know.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Json from "../json.ts"

type Accepts = (value: unknown) => boolean

/** The kind of a value: what a right one is, in words, and the test of it. */
export class Kind {
  readonly right: string
  readonly accepts: Accepts
  /** The list of the options that an accepted object has. */
  readonly inner: OptionKinds | undefined
  /** Tells whether an error may show a wrong value. A secret in the wrong form is still one. */
  readonly isShown: boolean

  constructor(right: string, accepts: Accepts, inner?: OptionKinds, isShown = true) {
    this.right = right
    this.accepts = accepts
    this.inner = inner
    this.isShown = isShown
  }
}

/** The kinds of options by name. `true` stands where the module of the option checks it. */
export interface OptionKinds {
  readonly [name: string]: Kind | true
}

const isText: Accepts = (value) => typeof value === "string"
const isList: Accepts = (value) => Array.isArray(value)
const isFunction: Accepts = (value) => typeof value === "function"

/** A value that is checked where it is used, with an error of its own that names it. */
export const checkedLater: Kind = new Kind("", () => true)

/** A value of any type. */
export const anything: Kind = new Kind("", () => true)

export const text: Kind = new Kind("a text", isText)
export const name: Kind = new Kind("a text that is not empty", (value) => isText(value) && value !== "")
export const flag: Kind = new Kind("true or false", (value) => typeof value === "boolean")
export const record: Kind = new Kind("an object", (value) => Json.isObject(value))
export const fn: Kind = new Kind("a function", isFunction)
export const schedule: Kind = new Kind("a Schedule", (value) => Schedule.isSchedule(value))

/** A secret. It is never shown. */
export const secret: Kind = new Kind(
  "a Redacted text: Redacted.make(key)",
  (value) => Redacted.isRedacted(value) && isText(Redacted.value(value)),
  undefined,
  false
)

const isWhole = (value: unknown, least: number): boolean => Number.isSafeInteger(value) && Number(value) >= least

export const count: Kind = new Kind("a positive integer", (value) => isWhole(value, 1))
export const countOrNone: Kind = new Kind(
  "a whole number above zero, or Infinity",
  (value) => value === Infinity || isWhole(value, 1)
)
export const whole: Kind = new Kind("a whole number, 0 or more", (value) => isWhole(value, 0))
export const limit: Kind = new Kind(
  "a whole number, 0 or Infinity for no limit",
  (value) => value === Infinity || isWhole(value, 0)
)
export const number: Kind = new Kind("a finite number", (value) => Number.isFinite(value))
export const amount: Kind = new Kind("a number, 0 or more", (value) => typeof value === "number" && value >= 0)

const units: ReadonlySet<string> = new Set([
  "weeks",
  "days",
  "hours",
  "minutes",
  "seconds",
  "milliseconds",
  "microseconds",
  "nanoseconds"
])

/** Tells whether an object is no duration: its other members would be ignored. */
const hasOtherUnits = (input: unknown): boolean =>
  Json.isObject(input) && !Duration.isDuration(input) &&
  (Object.keys(input).length === 0 || Object.keys(input).some((unit) => !units.has(unit)))

/** The duration that an option gives, if it is one: a `Duration.Input`, or "infinity". */
export const readDuration = (input: unknown): Duration.Duration | undefined => {
  if (input === "infinity") return Duration.infinity
  if (Number.isNaN(input) || hasOtherUnits(input)) return undefined
  const duration = Duration.fromInput(input as Duration.Input)
  return duration._tag === "Some" ? duration.value : undefined
}

const finiteForm = `milliseconds, "30 seconds"`

const durationOf = (range: string, accepts: (millis: number) => boolean, forms: string): Kind =>
  new Kind(`a ${forms === finiteForm ? "finite " : ""}duration ${range} (${forms})`, (value) => {
    // A number is milliseconds already. Each run asks some times.
    if (typeof value === "number") return accepts(value)
    const duration = readDuration(value)
    return duration !== undefined && accepts(Duration.toMillis(duration))
  })

const anyForm = `milliseconds, "30 seconds", "infinity"`
export const duration: Kind = durationOf("above zero", (millis) => millis > 0, anyForm)
export const durationOrNone: Kind = durationOf("of zero or more", (millis) => millis >= 0, anyForm)

export const finiteDuration: Kind = durationOf(
  "longer than 0",
  (millis) => millis > 0 && Number.isFinite(millis),
  finiteForm
)
export const finiteDurationOrNone: Kind = durationOf(
  "of 0 or more",
  (millis) => millis >= 0 && Number.isFinite(millis),
  finiteForm
)

/** One of several words. */
export const oneOf = (...words: ReadonlyArray<unknown>): Kind =>
  new Kind(
    words.map((word) => JSON.stringify(word)).join(", ").replace(/, (?=[^,]*$)/, " or "),
    (value) => words.includes(value)
  )

/** A list of values of one kind. */
export const listOf = (kind: Kind, things: string): Kind =>
  new Kind(
    `a list of ${things}`,
    (value) => isList(value) && (value as Array<unknown>).every(kind.accepts),
    kind.inner,
    kind.isShown
  )

/** An object whose own values are of one kind. */
export const recordOf = (kind: Kind, things: string): Kind =>
  new Kind(
    `an object of ${things}`,
    (value) =>
      Json.isObject(value) && Object.values(value).every((inner) => inner === undefined || kind.accepts(inner)),
    undefined,
    false
  )

/** A value of one of several kinds. */
export const either = (...kinds: readonly [Kind, ...ReadonlyArray<Kind>]): Kind =>
  new Kind(
    kinds.map(({ right }) => right).join(", or "),
    (value) => kinds.some(({ accepts }) => accepts(value)),
    kinds.find(({ inner }) => inner !== undefined)?.inner,
    kinds.every(({ isShown }) => isShown)
  )

/** An object that has options of its own. */
export const options = (inner: OptionKinds): Kind => new Kind("an object", (value) => Json.isObject(value), inner)

/** An object that has each of its options. One without an option is refused with it. */
export const required = (inner: OptionKinds): Kind =>
  new Kind(
    "an object",
    (value) =>
      Json.isObject(value) && Object.entries(inner).every(([name, kind]) => kind === true || kind.accepts(value[name])),
    inner
  )

/** An Effect, or anything that a caller may give in place of one. */
export const effect: Kind = new Kind("an Effect", (value) => Effect.isEffect(value))

/** The same kind in other words. */
export const described = (kind: Kind, right: string): Kind => new Kind(right, kind.accepts, kind.inner, kind.isShown)

/** The same options, each of which may be `null`, which counts as left out. */
export const nullable = <Kinds extends { readonly [name: string]: Kind }>(
  kinds: Kinds
): { readonly [Name in keyof Kinds]: Kind } =>
  Object.fromEntries(
    Object.entries(kinds).map(([name, { accepts, inner, isShown, right }]) => [
      name,
      new Kind(right, (value) => value === null || accepts(value), inner, isShown)
    ])
  ) as { readonly [Name in keyof Kinds]: Kind }

/** Limit of the characters of a value that an error shows. */
const longestValue = 64

/** A wrong value, as an error shows it: never more than a short text, a number or what it is. */
export const shown = ({ isShown }: Kind, value: unknown): string => {
  if (typeof value === "function") {
    return `a function of ${value.length} ${value.length === 1 ? "argument" : "arguments"}`
  }
  if (typeof value === "string") {
    if (!isShown) return "a text"
    const text = value.length > longestValue ? `${value.slice(0, longestValue)}…` : value
    return JSON.stringify(text)
  }
  if (Array.isArray(value)) return "a list"
  if (typeof value === "object" && value !== null) return "an object"
  return typeof value === "symbol" ? "a symbol" : String(value)
}

/** An object that may be of any make. Whether it can be read is found out where it is. */
export const objectLike: Kind = new Kind("an object", (value) => typeof value === "object" && value !== null)

/** A TCP port. */
export const port: Kind = new Kind("a port from 0 to 65535", (value) => isWhole(value, 0) && Number(value) <= 65_535)

/** A function that decides whether a call may run. */
export const gate: Kind = described(fn, "a function (args, call)")

/** The policy after a failed call. The number of parameters of a function is checked where it is used. */
export const onToolError: Kind = described(
  either(oneOf("continue", "halt", null), fn),
  `"continue", "halt" or a function (call, error)`
)

/** A Schema of Effect. */
export const schema: Kind = new Kind("a Schema", (value) => Schema.isSchema(value))

/** A tool of another library: an object, or a class that is one. */
export const toolLike: Kind = new Kind("a tool", (value) => isFunction(value) || Json.isObject(value))

/** A policy, each decision of which is one of the words of its schema. */
export const policyOf = ({ fields }: { readonly fields: object }): Kind =>
  options({ ...wordsOf(fields), maxConcurrency: count, maxTurns: count, resultLimit: limit })

const wordsOf = (fields: object): OptionKinds =>
  Object.fromEntries(
    Object.entries(fields).flatMap(([name, field]: [string, object]) => {
      if ("literals" in field) return [[name, oneOf(...(field.literals as ReadonlyArray<unknown>))]]
      return "fields" in field ? [[name, options(wordsOf(field.fields as object))]] : []
    })
  )
