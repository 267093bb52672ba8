/**
 * The outcome of a call as JSON, and back, so that a call which had ended before its process did is answered with the text
 * that it would have had. A result goes by the `success` schema of its tool, a failure by the `failure` schema; without
 * one, what JSON does not have is written beside it. Of an error there is what may be shown of it, and nothing that it
 * carries along. An outcome that was read again remembers what its schema had written, and is not written anew.
 */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Predicate from "effect/Predicate"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as ToolOutcomes from "../declare/outcome.ts"
import { ToolError } from "../declare/outcome.ts"
import * as Schemas from "../declare/schema.ts"
import type * as Declared from "../declare/tool.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import * as Json from "../json.ts"
import * as ErrorFields from "./errorFields.ts"

/**
 * The recorded outcome of a call cannot be read: it is damaged, or the schema of its tool has changed. The message names the
 * tool and the field.
 *
 * @category errors
 * @since 0.1.0
 */
export class OutcomeError extends Schema.TaggedError<OutcomeError>("heddle/Tool/OutcomeError")("OutcomeError", {
  /** The name of the tool. */
  toolName: Schema.String,
  /** Which field is wrong, and how. */
  detail: Schema.String
}) {
  override get message(): string {
    return `the recorded outcome of a call of "${this.toolName}" cannot be read: ${this.detail}`
  }
}

// Values. JSON stands for itself; anything else is { "~": [kind, what it is read from] }.

const special = "~"

type Special = { readonly "~": ReadonlyArray<Schema.Json> }

/** How deep a value is written, and how much of it: as of an event. */
const deepest = 512
const mostValues = 1_000_000
const mostCharacters = 64 * 1_048_576

const toBase64 = Schema.encodeSync(Schema.Uint8ArrayFromBase64)
const fromDate = Schema.encodeSync(Schema.DateFromString)
const toDate = Schema.decodeSync(Schema.DateFromString)
const fromBase64 = Schema.decodeUnknownSync(Schema.Uint8ArrayFromBase64)

/** A member of a value, or what reading it threw. Values are foreign code. */
const read = <A>(reading: () => A): Result.Result<A, unknown> => Result.try({ try: reading, catch: (thrown) => thrown })

class Writer {
  private readonly path: Array<object> = []
  private values = mostValues
  private characters = mostCharacters

  write(value: unknown, key = ""): Schema.Json {
    if (this.values-- <= 0 || this.characters <= 0) return "[truncated]"
    switch (typeof value) {
      case "string":
        this.characters -= value.length
        return value
      case "boolean":
        return value
      case "number":
        return Number.isFinite(value) && !Object.is(value, -0)
          ? value
          : as("number", Object.is(value, -0) ? "-0" : String(value))
      case "bigint":
        return as("bigint", String(value))
      case "symbol":
        return value.description === undefined ? as("symbol") : as("symbol", value.description)
      case "function":
        return as("function", Result.getOrElse(read(() => String(value)), () => ""))
      case "undefined":
        return as("undefined")
      case "object":
        return value === null ? null : this.object(value, key)
    }
  }

  private object(value: object, key: string): Schema.Json {
    const above = this.path.lastIndexOf(value)
    if (above >= 0) return as("cycle", this.path.length - above)
    if (this.path.length >= deepest) return "[too deep]"
    this.path.push(value)
    const json = read(() => this.inside(value, key))
    this.path.pop()
    if (Result.isSuccess(json)) return json.success
    return as("throws", reasonToJson(json.failure), keysOf(value))
  }

  /** May throw. */
  private inside(value: object, key: string): Schema.Json {
    if (Array.isArray(value)) {
      return Array.from({ length: value.length }, (_, index) => this.member(value, String(index)))
    }
    const parts = ToolOutcomes.isContent(value) ? ToolOutcomes.partsOf(value) : undefined
    if (parts !== undefined) return as("content", this.write(parts))
    if (ToolOutcomes.isBranded(value)) return as("outcome", this.members(value))
    if (Predicate.isDate(value)) {
      return Number.isNaN(value.getTime())
        ? as("json", null, [])
        : as("Date", fromDate(value))
    }
    const toJson = Reflect.get(value, "toJSON")
    if (typeof toJson === "function") return as("json", this.write(Reflect.apply(toJson, value, [key])), keysOf(value))
    if (value instanceof Map) {
      return as("Map", Array.from(value, ([name, item]) => [this.write(name), this.write(item)]))
    }
    if (value instanceof Set) return as("Set", Array.from(value, (item) => this.write(item)))
    if (value instanceof Uint8Array) return as("Uint8Array", toBase64(value))
    return this.members(value)
  }

  private members(value: object): Schema.Json {
    const entries = Object.keys(value).map((key): readonly [string, Schema.Json] => {
      this.characters -= key.length
      return [key, this.member(value, key)]
    })
    const isPlain = entries.every(([key]) => key !== special && key !== "__proto__")
    return isPlain ? Object.fromEntries(entries) : as("object", entries)
  }

  private member(value: object, key: string): Schema.Json {
    const member = read((): unknown => Reflect.get(value, key))
    return Result.isSuccess(member) ? this.write(member.success, key) : as("unreadable", reasonToJson(member.failure))
  }
}

/** What is written of an object that cannot be written otherwise, by an encoder that does so. */
const keysOf = (value: object): ReadonlyArray<string> => Result.getOrElse(read(() => Object.keys(value)), () => [])

const as = (kind: string, ...content: ReadonlyArray<Schema.Json>): Special => ({ [special]: [kind, ...content] })

const toJson = (value: unknown): Schema.Json => new Writer().write(value)

/** What is wrong with what is read. It does not leave this file. */
class Damage extends Error {}

const damaged = (problem: string): never => {
  throw new Damage(problem)
}

const orDamaged = <A>(reading: () => A, problem: string): A => {
  const result = read(reading)
  return Result.isSuccess(result) ? result.success : damaged(problem)
}

const textOf = (json: unknown, what: string): string =>
  typeof json === "string" ? json : damaged(`${what} must be a text`)

const objectOf = (json: unknown, what: string): Json.JsonObject =>
  Json.isObject(json) ? json : damaged(`${what} must be an object`)

const listOf = (json: unknown, what: string): ReadonlyArray<unknown> =>
  Array.isArray(json) ? json : damaged(`${what} must be a list`)

/** A member of any name, and no prototype. */
const define = (object: object, key: string, value: unknown): void => {
  Object.defineProperty(object, key, { value, configurable: true, enumerable: true, writable: true })
}

/** A member that cannot be read. */
class Unreadable {
  readonly raise: () => never

  constructor(reason: unknown) {
    this.raise = () => {
      throw reason
    }
  }
}

const numbers: ReadonlyMap<unknown, number> = new Map([
  ["NaN", Number.NaN],
  ["Infinity", Infinity],
  ["-Infinity", -Infinity],
  ["-0", -0]
])

/** Reads what `Writer` has written. It throws `Damage` for anything else. */
class Reader {
  private readonly path: Array<object> = []

  read(json: unknown): unknown {
    if (typeof json !== "object" || json === null) return json
    if (Array.isArray(json)) return this.list(json)
    const kind = (json as Json.JsonObject)[special]
    return kind === undefined ? this.members({}, Object.entries(json)) : this.special(listOf(kind, "a kind of value"))
  }

  private within<O extends object>(object: O, fill: (object: O) => void): O {
    this.path.push(object)
    fill(object)
    this.path.pop()
    return object
  }

  private list(items: ReadonlyArray<unknown>): ReadonlyArray<unknown> {
    return this.within<Array<unknown>>([], (list) => {
      for (const item of items) list.push(this.read(item))
    })
  }

  private members(object: object, entries: ReadonlyArray<readonly [string, unknown]>): object {
    return this.within(object, () => {
      for (const [key, member] of entries) {
        const value = this.read(member)
        if (value instanceof Unreadable) Object.defineProperty(object, key, { get: value.raise, enumerable: true })
        else define(object, key, value)
      }
    })
  }

  private special([kind, content, more]: ReadonlyArray<unknown>): unknown {
    switch (kind) {
      case "undefined":
        return undefined
      case "number":
        return numbers.get(content) ?? damaged("a number must be NaN, Infinity, -Infinity or -0")
      case "bigint":
        return /^-?\d+$/.test(textOf(content, "a bigint"))
          ? BigInt(content as string)
          : damaged("a bigint must have digits")
      case "symbol":
        return content === undefined ? Symbol() : Symbol.for(textOf(content, "a symbol"))
      case "function":
        return Object.defineProperty(() => undefined, "toString", { value: () => textOf(content, "a function") })
      case "Date":
        return orDamaged(() => toDate(textOf(content, "a date")), "a date must be in ISO form")
      case "Uint8Array":
        return orDamaged(() => fromBase64(content), "bytes must be in base64")
      case "Map":
        return this.within(new Map(), (map) => {
          for (const entry of listOf(content, "a map")) {
            const [key, item] = listOf(entry, "an entry of a map")
            map.set(this.read(key), this.read(item))
          }
        })
      case "Set":
        return this.within(new Set(), (set) => {
          for (const item of listOf(content, "a set")) set.add(this.read(item))
        })
      case "object":
        return this.members(
          {},
          listOf(content, "the members of an object").map((entry) => {
            const [key, member] = listOf(entry, "a member of an object")
            return [textOf(key, "the name of a member"), member] as const
          })
        )
      case "outcome":
        return ToolOutcomes.brand(this.members({}, Object.entries(objectOf(content, "an outcome"))))
      case "content":
        return this.content(content)
      case "json":
        return this.writtenAs(content, more)
      case "unreadable":
        return new Unreadable(reasonFromJson(content))
      case "throws":
        return this.standIn(more, new Unreadable(reasonFromJson(content)).raise)
      case "cycle":
        return this.path[this.path.length - Number(content)] ?? damaged("a cycle must lead to a value around it")
      default:
        return damaged(`there is no kind of value ${Json.render(kind)}`)
    }
  }

  private content(content: unknown): ToolOutcomes.Content {
    const parts = listOf(this.read(content), "parts")
    const made = read(() => ToolOutcomes.content(parts))
    return Result.isSuccess(made) ? made.success : damaged(Json.render(made.failure))
  }

  /** An object with these keys that writes itself. */
  private standIn(keys: unknown, toJSON: () => unknown): object {
    const object = this.members({}, listOf(keys, "the keys of a value").map((key) => [textOf(key, "a key"), null]))
    return Object.defineProperty(object, "toJSON", { value: toJSON, enumerable: Object.hasOwn(object, "toJSON") })
  }

  private writtenAs(content: unknown, keys: unknown): object {
    let json: unknown
    return this.within(this.standIn(keys, () => json), () => {
      json = this.read(content)
    })
  }
}

const fromJson = (json: unknown): unknown => new Reader().read(json)

// Reasons of failures, as they may be shown.

/** How many causes of causes are written. */
const mostCauses = 8

const reasonToJson = (reason: unknown, depth = 0): Schema.Json => {
  if (typeof reason === "string") return { _tag: "Value", value: ErrorFields.shownText(reason) }
  if (typeof reason === "function") return { _tag: "Value", value: Json.render(reason) }
  if (typeof reason !== "object" || reason === null) return { _tag: "Value", value: toJson(reason) }
  if (depth > mostCauses) return { _tag: "Data", data: null }
  if (reason instanceof ToolError) return toolErrorToJson(reason, depth)
  const inner = ErrorFields.unwrapped(reason)
  if (inner !== reason) {
    return {
      _tag: "UnknownError",
      cause: reasonToJson(inner, depth + 1),
      message: ErrorFields.shownText(Json.render((reason as Cause.UnknownError).message))
    }
  }
  const error = ErrorFields.errorToJson(reason)
  if (error !== undefined) return { _tag: "Error", ...error } as unknown as Schema.Json
  const told = Result.getOrUndefined(read(() => ErrorFields.toldOf(reason))) ?? null
  return { _tag: "Data", data: (typeof told === "string" ? ErrorFields.described(reason).text : told) as Schema.Json }
}

const toolErrorToJson = ({ cause, detail, metadata, reason, toolCallId, toolName }: ToolError, depth: number) => ({
  _tag: "ToolError",
  reason,
  ...(toolName === undefined ? {} : { toolName }),
  ...(toolCallId === undefined ? {} : { toolCallId }),
  ...(detail === undefined ? {} : { detail: ErrorFields.shownText(detail) }),
  ...(cause === undefined ? {} : { cause: causeToJson(cause, depth) }),
  ...(metadata === undefined ? {} : { metadata: (ErrorFields.toldOf(metadata) ?? {}) as Schema.Json })
})

/** What was thrown and is no error stands in an object of its own. */
const causeToJson = (cause: unknown, depth: number): Schema.Json => {
  const thrown = ErrorFields.thrown(cause)
  return Object.is(thrown, cause)
    ? reasonToJson(cause, depth + 1)
    : { _tag: "Thrown", value: reasonToJson(thrown, depth + 1) }
}

const reasonFromJson = (json: unknown): unknown => {
  const { _tag: tag, ...fields } = objectOf(json, "a reason")
  switch (tag) {
    case "Value":
      return fromJson(fields["value"])
    case "Data":
      return fields["data"]
    case "Thrown":
      return { _tag: "Thrown", value: reasonFromJson(fields["value"]) }
    case "UnknownError":
      return new Cause.UnknownError(reasonFromJson(fields["cause"]), textOf(fields["message"], "a message"))
    case "Error":
      objectOf(fields["fields"], "the fields of an error")
      return ErrorFields.errorFrom(fields as unknown as ErrorFields.ErrorJson)
    case "ToolError":
      return toolErrorFromJson(fields)
    default:
      return damaged(`there is no kind of reason ${Json.render(tag)}`)
  }
}

const toolErrorFromJson = ({ cause, ...fields }: Json.JsonObject): ToolError => {
  const given = cause === undefined ? fields : { ...fields, cause: reasonFromJson(cause) }
  return orDamaged(
    () => new ToolError(given as unknown as ConstructorParameters<typeof ToolError>[0]),
    "a ToolError must have one of the reasons of the runtime, and texts"
  )
}

// Outcomes.

type Outcome = Declared.Outcome

/** An outcome as JSON, and the outcome as it counts, which is not written by its schema a second time. */
export interface Recorded {
  readonly json: Schema.Json
  readonly outcome: Outcome
}

/** Writes an outcome. Whatever an executor gave can be written. What interrupts it is not recorded. */
export const record = (tool: Declared.Any, outcome: Outcome): Effect.Effect<Recorded, never, any> =>
  Effect.suspend(() => {
    const isWellFormed = Result.getOrElse(read(() => ToolOutcomes.isWellFormed(outcome)), () => false)
    if (!isWellFormed) return Effect.succeed({ json: { _tag: "Invalid", reason: reasonToJson(outcome) }, outcome })
    switch (outcome._tag) {
      case "Ok":
        return recordOk(tool, outcome)
      case "Error":
        return Effect.map(errorToJson(tool, outcome.error), (fields) => ({
          json: { _tag: "Error", ...fields, ...(ToolOutcomes.isEndingRun(outcome) ? { endsRun: true } : {}) },
          outcome
        }))
      case "AskUser":
        return Effect.succeed({ json: questionToJson(outcome), outcome })
      case "Halt":
        return Effect.succeed({ json: toJson({ ...outcome }), outcome })
    }
  })

/** A question is shown as JSON wherever it goes. */
const questionToJson = ({ withinMillis = Infinity, ...question }: ToolOutcomes.AskUser): Schema.Json => {
  const json = Json.toJson(question) as { readonly [key: string]: Schema.Json }
  return Number.isFinite(withinMillis) ? { ...json, withinMillis } : json
}

const recordOk = (tool: Declared.Any, outcome: ToolOutcomes.Ok): Effect.Effect<Recorded, never, any> => {
  const { encodeSuccess } = tool
  const { value } = outcome
  if (encodeSuccess === undefined || ToolOutcomes.partsOf(value) !== undefined) {
    return Effect.succeed({ json: { _tag: "Ok", value: toJson(value) }, outcome })
  }
  const encoded = (part: unknown) => Effect.exit(ToolOptions.attempt(() => encodeSuccess(part)))
  return Effect.flatMap(encoded(value), (exit): Effect.Effect<Recorded, never, any> => {
    if (Exit.isSuccess(exit)) {
      const json = { _tag: "Ok", encoded: toJson(exit.value) }
      return Effect.succeed({ json, outcome: ToolOutcomes.withWritten({ ...outcome }, { whole: exit }) })
    }
    const json = { _tag: "Ok", value: toJson(value), failed: reasonToJson(Cause.squash(exit.cause)) }
    if (!ToolOutcomes.hasData(value)) {
      return Effect.succeed({ json, outcome: ToolOutcomes.withWritten({ ...outcome }, { whole: exit }) })
    }
    return Effect.map(encoded(value["data"]), (data) => ({
      json: Exit.isSuccess(data) ? { ...json, data: toJson(data.value) } : json,
      outcome: ToolOutcomes.withWritten({ ...outcome }, { whole: exit, data })
    }))
  })
}

/** What a handler reported. What its schema writes is recorded where all of it may be shown. */
const errorToJson = (tool: Declared.Any, reason: unknown): Effect.Effect<Json.JsonObject & object, never, any> => {
  const { encodeFailure } = tool
  if (encodeFailure === undefined || reason instanceof ToolError) {
    return Effect.succeed({ reason: reasonToJson(reason) })
  }
  return Effect.map(Effect.exit(ToolOptions.attempt(() => encodeFailure(reason))), (exit) => {
    if (Exit.isFailure(exit)) return { reason: reasonToJson(reason), isUnfit: true }
    const { shown, told } = ErrorFields.reportOf(reason, exit.value)
    const failure = toJson(exit.value)
    if (!isSame(toJson(shown), failure)) return { told: toJson(told) }
    return isSame(toJson(told), failure) ? { failure } : { failure, told: toJson(told) }
  })
}

const isSame = (one: Schema.Json, other: Schema.Json): boolean => JSON.stringify(one) === JSON.stringify(other)

/** How deep a record is read: what nests deeper was not written here. */
const deepestRecord = 4 * deepest

/** Reads an outcome that `record` has written. */
export const decode = (tool: Declared.Any, json: unknown): Effect.Effect<Outcome, OutcomeError, any> =>
  Effect.suspend(() => {
    if (Json.isDeeper(json, deepestRecord)) return damaged("it is nested too deeply")
    const { _tag: tag, ...fields } = objectOf(json, "it")
    switch (tag) {
      case "Ok":
        return okFromJson(tool, fields)
      case "Error":
        return errorFromJson(tool, fields)
      case "Invalid":
        return Effect.succeed(new ToolOutcomes.Invalid(reasonFromJson(fields["reason"])) as never)
      case "AskUser":
      case "Halt":
        return Effect.succeed(wholeFromJson(tag, json))
      default:
        return damaged(`there is no outcome ${Json.render(tag)}`)
    }
  }).pipe(
    Effect.catchDefect((defect) => defect instanceof Damage ? Effect.fail(defect.message) : Effect.die(defect)),
    Effect.mapError((detail) => new OutcomeError({ toolName: tool.name, detail }))
  )

/** A question or a halt. */
const wholeFromJson = (tag: "AskUser" | "Halt", json: unknown): ToolOutcomes.Outcome => {
  const outcome = ToolOutcomes.brand(objectOf(tag === "Halt" ? fromJson(json) : json, "it"))
  return ToolOutcomes.isWellFormed(outcome) ? outcome : damaged(`it is no ${tag}`)
}

/** Fails with the field that does not fit the schema, and why. A schema that only writes reads nothing. */
const decoded = (
  decoding: Effect.Effect<unknown, Schema.SchemaError, any>,
  what: string,
  json: unknown
): Effect.Effect<unknown, string, any> =>
  Effect.catch(decoding, (error) =>
    Schemas.isOneWay(error)
      ? Effect.succeed(json)
      : Effect.fail(`its ${what} does not fit the ${what} schema of the tool: ${error.message}`))

const okFromJson = (tool: Declared.Any, fields: Json.JsonObject): Effect.Effect<Outcome, string, any> => {
  if ("encoded" in fields) {
    const plain = fromJson(fields["encoded"])
    return Effect.map(
      successFromJson(tool, plain),
      (value) => ToolOutcomes.withWritten({ _tag: "Ok", value }, { whole: Exit.succeed(plain) })
    )
  }
  if (!("value" in fields)) return damaged("an Ok must have a value")
  const value = fromJson(fields["value"])
  const { failed } = fields
  const whole = failed === undefined ? Exit.succeed(value) : Exit.fail(reasonFromJson(failed))
  if (!("data" in fields)) return Effect.succeed(ToolOutcomes.withWritten({ _tag: "Ok", value }, { whole }))
  const plain = fromJson(fields["data"])
  return Effect.map(successFromJson(tool, plain), (data) =>
    ToolOutcomes.withWritten(
      { _tag: "Ok", value: { ...objectOf(value, "a value with data"), data } },
      { whole, data: Exit.succeed(plain) }
    ))
}

const successFromJson = (tool: Declared.Any, plain: unknown): Effect.Effect<unknown, string, any> =>
  decoded(tool.decodeSuccess === undefined ? Effect.succeed(plain) : tool.decodeSuccess(plain), "success", plain)

const errorFromJson = (tool: Declared.Any, fields: Json.JsonObject): Effect.Effect<Outcome, string, any> =>
  Effect.map(reportedFromJson(tool, fields), (error) => {
    const outcome: ToolOutcomes.Error = { _tag: "Error", error }
    return fields["endsRun"] === true ? ToolOutcomes.endingRun(outcome) : outcome
  })

const reportedFromJson = (tool: Declared.Any, fields: Json.JsonObject): Effect.Effect<unknown, string, any> => {
  const { failure, isUnfit, reason, told } = fields
  if (reason !== undefined) {
    const error = reasonFromJson(reason)
    return Effect.succeed(isUnfit === true ? ErrorFields.withReport(error, ErrorFields.unschemed(error)) : error)
  }
  const report = fromJson(told === undefined ? failure : told)
  if (failure === undefined) {
    if (told === undefined) return damaged("an Error must have a reason")
    return Effect.succeed(ErrorFields.withReport(report, report))
  }
  const plain = fromJson(failure)
  const decoding = tool.decodeFailure === undefined ? Effect.succeed(plain) : tool.decodeFailure(plain)
  return Effect.map(decoded(decoding, "failure", plain), (error) => ErrorFields.withReport(error, report))
}

// Outcomes where the tool is not at hand, or in the form of an event.

/** What a recorded outcome says by itself: a value or a failure as its schema wrote it. Nothing of what is damaged. */
export const readAlone = (json: unknown): ToolOutcomes.Outcome | undefined =>
  Result.getOrUndefined(read(() => Json.isDeeper(json, deepestRecord) ? undefined : aloneFromJson(json)))

const aloneFromJson = (json: unknown): ToolOutcomes.Outcome | undefined => {
  const { _tag: tag, ...fields } = objectOf(json, "it")
  switch (tag) {
    case "Ok":
      return fields["failed"] === undefined
        ? { _tag: "Ok", value: fromJson("encoded" in fields ? fields["encoded"] : fields["value"]) }
        : {
          _tag: "Error",
          error: new ToolError({ reason: "encoding_failed", cause: reasonFromJson(fields["failed"]) })
        }
    case "Error": {
      const { failure, reason, told = failure } = fields
      return { _tag: "Error", error: reason === undefined ? fromJson(told) : reasonFromJson(reason) }
    }
    case "AskUser":
    case "Halt":
      return wholeFromJson(tag, json)
    default:
      return undefined
  }
}

/** An outcome as an event has it: plain JSON from before its tool's schema. It is not written by that schema. */
export const readOlder = (json: unknown): Outcome => {
  if (!ToolOutcomes.isWellFormed(json)) return json as Outcome
  switch (json._tag) {
    case "Ok": {
      const parts = ToolOutcomes.partsIn(json.value)
      const value = parts === undefined ? json.value : ToolOutcomes.content(parts)
      return ToolOutcomes.withWritten({ _tag: "Ok", value }, { whole: Exit.succeed(value) })
    }
    case "Error":
      return { _tag: "Error", error: olderError(json.error) }
    default:
      return json
  }
}

const olderError = (error: unknown): unknown => {
  const known = ToolOutcomes.readToolError(error)
  if (known !== undefined || !Json.isObject(error)) return known ?? error
  const { _tag: tag, message } = error
  const isError = typeof message === "string"
  return isError || typeof tag === "string" ? ErrorFields.errorFrom({ fields: error, isError }) : error
}
