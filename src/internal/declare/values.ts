/**
 * Kinds of option values. Each option list names the kind of every option; `checkNames` checks the values where options
 * enter, so later code never meets an unknown value.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Json from "../json.ts"

type Accepts = (value: unknown) => boolean

/** Parts of a value checked in turn, and whether errors may show the value. */
interface Parts {
  /** Option list of an accepted object. */
  readonly inner?: OptionKinds
  /** Kind of all elements in an accepted list, or all values in an accepted object. */
  readonly each?: Kind
  /** Alternative kinds; an accepted value has one of these. */
  readonly among?: ReadonlyArray<Kind>
  /**
   * `false` if errors must not show a wrong value: a secret in the wrong form is still a secret. Defaults to `true`.
   */
  readonly isShown?: boolean
}

/** A kind of value: describes and tests right values. */
export class Kind {
  readonly right: string
  readonly accepts: Accepts
  readonly parts: Parts

  constructor(right: string, accepts: Accepts, parts: Parts = {}) {
    this.right = right
    this.accepts = accepts
    this.parts = parts
  }

  get isShown(): boolean {
    return this.parts.isShown !== false
  }

  /** Options an accepted object may have. */
  get inner(): OptionKinds | undefined {
    return this.parts.inner ?? this.parts.among?.find(({ inner }) => inner !== undefined)?.inner
  }

  /** Returns the parts of an accepted value. */
  partsOf(value: unknown): Parts {
    return this.parts.among?.find(({ accepts }) => accepts(value))?.partsOf(value) ?? this.parts
  }
}

/** Option kinds by name. */
export interface OptionKinds {
  readonly [name: string]: Kind
}

/** Names of tools and schemas that every provider takes. */
export const namePattern = /^[A-Za-z0-9_-]{1,64}$/

const isText: Accepts = (value) => typeof value === "string"
const isList: Accepts = (value) => Array.isArray(value)
const isFunction: Accepts = (value) => typeof value === "function"

/** A value checked where it is used, with its own error naming the value. */
export const checkedLater: Kind = new Kind("", () => true)

/** A value of any type. */
export const anything: Kind = new Kind("", () => true)

export const text: Kind = new Kind("a string", isText)
export const name: Kind = new Kind("a non-empty string", (value) => isText(value) && value !== "")
/** A name sent to providers, as of a tool. */
export const sentName: Kind = new Kind(
  "1 to 64 letters, digits, _ or -",
  (value) => typeof value === "string" && namePattern.test(value)
)
export const flag: Kind = new Kind("true or false", (value) => typeof value === "boolean")
export const record: Kind = new Kind("an object", (value) => Json.isObject(value))
export const list: Kind = new Kind("a list", isList)
export const map: Kind = new Kind("a Map", (value) => value instanceof Map)
export const fn: Kind = new Kind("a function", isFunction)
export const schedule: Kind = new Kind("a Schedule", (value) => Schedule.isSchedule(value))

/** A secret, never shown. */
export const secret: Kind = new Kind(
  "a Redacted string: Redacted.make(key)",
  (value) => Redacted.isRedacted(value) && isText(Redacted.value(value)),
  { isShown: false }
)

const isWhole = (value: unknown, least: number): boolean => Number.isSafeInteger(value) && Number(value) >= least

export const count: Kind = new Kind("a positive integer", (value) => isWhole(value, 1))
export const countOrNone: Kind = new Kind(
  "a positive integer, or Infinity",
  (value) => value === Infinity || isWhole(value, 1)
)
export const whole: Kind = new Kind("a whole number, 0 or more", (value) => isWhole(value, 0))
export const limit: Kind = new Kind(
  "a whole number, 0 or Infinity for no limit",
  (value) => value === Infinity || isWhole(value, 0)
)
export const amount: Kind = new Kind("a number, 0 or more", (value) => typeof value === "number" && value >= 0)
export const bound: Kind = new Kind("a number, 0 or more; Infinity for no bound", amount.accepts)

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

/** Returns `true` if an object is not a duration: its other members would be ignored. */
const hasOtherUnits = (input: unknown): boolean =>
  Json.isObject(input) && !Duration.isDuration(input) &&
  (Object.keys(input).length === 0 || Object.keys(input).some((unit) => !units.has(unit)))

/** Reads a duration option: a `Duration.Input` or "infinity". */
export const readDuration = (input: unknown): Duration.Duration | undefined => {
  if (input === "infinity") return Duration.infinity
  if (Number.isNaN(input) || hasOtherUnits(input)) return undefined
  const duration = Duration.fromInput(input as Duration.Input)
  return duration._tag === "Some" ? duration.value : undefined
}

const finiteForm = `milliseconds, "30 seconds"`

const durationOf = (range: string, accepts: (millis: number) => boolean, forms: string): Kind =>
  new Kind(`a ${forms === finiteForm ? "finite " : ""}duration ${range} (${forms})`, (value) => {
    // Numbers already are milliseconds. Every run checks a few durations.
    if (typeof value === "number") return accepts(value)
    const duration = readDuration(value)
    return duration !== undefined && accepts(Duration.toMillis(duration))
  })

const anyForm = `milliseconds, "30 seconds", "infinity"`
export const duration: Kind = durationOf("above zero", (millis) => millis > 0, anyForm)
export const durationOrNone: Kind = durationOf("of zero or more", (millis) => millis >= 0, anyForm)

const timeLimits = { total: duration, idle: duration }

/** Returns `true` for `{ total, idle }`, as opposed to a duration in units. */
export const isTimeLimits = (value: unknown): value is { readonly [Limit in keyof typeof timeLimits]?: unknown } =>
  Json.isObject(value) && !Duration.isDuration(value) &&
  Object.entries(value).some(([name, limit]) => limit !== undefined && !units.has(name))

/** Time limits of a call: total, and without progress. */
export const timeout: Kind = new Kind(
  `${duration.right}, or { total, idle } with one or both of them`,
  (value) => duration.accepts(value) || isTimeLimits(value),
  { among: [duration, new Kind("an object", isTimeLimits, { inner: timeLimits })] }
)

/** A duration read by Effect itself, which does not know "infinity". */
export const plainDuration: Kind = new Kind(
  `a duration above zero (milliseconds, "30 seconds", Infinity)`,
  (value) => value !== "infinity" && duration.accepts(value)
)

export const finiteDuration: Kind = durationOf(
  "above zero",
  (millis) => millis > 0 && Number.isFinite(millis),
  finiteForm
)
export const finiteDurationOrNone: Kind = durationOf(
  "of zero or more",
  (millis) => millis >= 0 && Number.isFinite(millis),
  finiteForm
)

/** One of several words. */
export const oneOf = (...words: ReadonlyArray<unknown>): Kind =>
  new Kind(
    words.map((word) => JSON.stringify(word)).join(", ").replace(/, (?=[^,]*$)/, " or "),
    (value) => words.includes(value)
  )

/** A list with values of one kind. */
export const listOf = (each: Kind, things: string): Kind =>
  new Kind(`a list of ${things}`, isList, { each, isShown: each.isShown })

export const texts: Kind = listOf(text, "strings")

/** An object whose own values have one kind. */
export const recordOf = (each: Kind, things: string): Kind =>
  new Kind(`an object of ${things}`, (value) => Json.isObject(value), { each, isShown: each.isShown })

/** A value fitting one of several kinds. */
export const either = (...among: readonly [Kind, ...ReadonlyArray<Kind>]): Kind =>
  new Kind(
    among.map(({ right }) => right).join(", or "),
    (value) => among.some(({ accepts }) => accepts(value)),
    { among, isShown: among.every(({ isShown }) => isShown) }
  )

/** An object with its own options. */
export const options = (inner: OptionKinds): Kind => new Kind("an object", (value) => Json.isObject(value), { inner })

/** An object with required options: the named ones, or all. */
export const required = (inner: OptionKinds, names: ReadonlyArray<string> = Object.keys(inner)): Kind =>
  new Kind(
    "an object",
    (value) => Json.isObject(value) && names.every((name) => value[name] !== undefined),
    { inner }
  )

export const effect: Kind = new Kind("an Effect", (value) => Effect.isEffect(value))

export const layer: Kind = new Kind("a Layer", (value) => Layer.isLayer(value))

/** The same kind in other words. */
export const described = (kind: Kind, right: string): Kind => new Kind(right, kind.accepts, kind.parts)

/** The same kind for values possibly holding a secret, never shown by errors. */
export const hidden = (kind: Kind): Kind => new Kind(kind.right, kind.accepts, { ...kind.parts, isShown: false })

/** An object of texts possibly holding secrets: headers, environment variables. */
export const hiddenTexts: Kind = recordOf(hidden(text), "strings")

/** Returns the options without `undefined` and `null`: an untyped program may pass `null` for a left-out option. */
export const given = <A extends object>(options: A): A =>
  Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined && value !== null)) as A

/** The same options, where `null` counts as left out. */
export const nullable = <Kinds extends { readonly [name: string]: Kind }>(
  kinds: Kinds
): { readonly [Name in keyof Kinds]: Kind } =>
  Object.fromEntries(
    Object.entries(kinds).map(([name, { accepts, parts, right }]) => [
      name,
      new Kind(right, (value) => value === null || accepts(value), parts)
    ])
  ) as { readonly [Name in keyof Kinds]: Kind }

/** Longest value shown in an error, in characters. */
const longestValue = 64

/** Describes a wrong value for an error: a short text, a number, or its type. */
export const shown = ({ isShown }: Kind, value: unknown): string => {
  if (typeof value === "function") {
    return `a function of ${value.length} ${value.length === 1 ? "argument" : "arguments"}`
  }
  if (typeof value === "string") {
    if (!isShown) return "a string"
    const text = value.length > longestValue ? `${value.slice(0, longestValue)}…` : value
    return JSON.stringify(text)
  }
  if (Array.isArray(value)) return "a list"
  if (typeof value === "object" && value !== null) return "an object"
  return typeof value === "symbol" ? "a symbol" : String(value)
}

/** Any object, also a list. Its use checks the rest. */
export const objectLike: Kind = new Kind("an object", (value) => typeof value === "object" && value !== null)

/** A TCP port. */
export const port: Kind = new Kind("a port from 0 to 65535", (value) => isWhole(value, 0) && Number(value) <= 65_535)

/** A function deciding whether a call may run. */
export const gate: Kind = described(fn, "a function (args, call)")

/** Policy after a failed call. A function's parameter count is checked at its use. */
export const onToolError: Kind = described(
  either(oneOf("continue", "halt", null), fn),
  `"continue", "halt" or a function (call, error)`
)

/** A Schema from Effect. */
export const schema: Kind = new Kind("a Schema", (value) => Schema.isSchema(value))

/** A tool from another library: an object, or a class standing for a tool. */
export const toolLike: Kind = new Kind("a tool", (value) => isFunction(value) || Json.isObject(value))

/** A Heddle tool. */
export const tool: Kind = new Kind(
  "a tool made with Tool.make",
  (value) => Json.isObject(value) && isText(value["name"]) && Json.isObject(value["parameters"])
)

export const tools: Kind = listOf(tool, "tools made with Tool.make")

/** Client tools, as recorded in a journal. */
export const clientTools: Kind = listOf(
  described(
    required({ name: text, description: text, parameters: record }),
    "a tool with name, description and parameters"
  ),
  "tools of a client"
)

/** A Heddle agent. */
const agent: Kind = new Kind(
  "an agent made with Agent.make",
  (value) => Json.isObject(value) && isText(value["name"]) && isFunction(value["run"])
)

export const agents: Kind = listOf(agent, "agents made with Agent.make")

/** Returns the given options, with standard values for options left out or `undefined`. */
export const filled = <Options extends object>(standard: Options, given: Partial<Options>): Options => ({
  ...standard,
  ...Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined))
})

/** A policy. Its schema lists the accepted words for each decision. */
export const policyOf = ({ fields }: { readonly fields: object }): Kind =>
  options({ ...wordsOf(fields), maxConcurrency: count, maxTurns: count, resultLimit: limit })

const wordsOf = (fields: object): OptionKinds =>
  Object.fromEntries(
    Object.entries(fields).flatMap(([name, field]: [string, object]) => {
      if ("literals" in field) return [[name, oneOf(...(field.literals as ReadonlyArray<unknown>))]]
      return "fields" in field ? [[name, options(wordsOf(field.fields as object))]] : []
    })
  )
