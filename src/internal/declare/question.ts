/**
 * A question with the type of its answer. The type travels as a JSON Schema, since the answer may be taken
 * by another process that has nothing else; a type that cannot travel is refused when the question is asked.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as JsonSchema from "effect/JsonSchema"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as SchemaRepresentation from "effect/SchemaRepresentation"
import * as Json from "../json.ts"
import type * as Outcomes from "./outcome.ts"
import { jsonCodec, jsonSchemaOf } from "./schema.ts"
import type { DurationInput } from "./tool.ts"
import { readDuration } from "./toolOptions.ts"

/** How a question is asked, besides its words. Public as `Tool.AskUserOptions`. */
export interface AskUserOptions<A> {
  /** What the user may choose from, or whatever a user interface makes of it: plain data. An answer is not held to it. */
  readonly opts?: ReadonlyArray<unknown>
  /** The type of the answer. One that does not fit is refused as `invalid_answer`, and the question goes on waiting. */
  readonly answer?: Schema.Codec<A, any>
  /** How long the question waits, from when it is asked; a number is milliseconds. Without it, it waits for ever. */
  readonly within?: DurationInput
  /** The answer that counts once `within` is over and `Session.expire` is called. Without it the model reads that it had none. */
  readonly default?: NoInfer<A>
}

const isList = <A>(options: ReadonlyArray<unknown> | AskUserOptions<A>): options is ReadonlyArray<unknown> =>
  Array.isArray(options) || !Json.isObject(options)

const misuse = (problem: string): never => {
  throw new TypeError(`Tool.askUser: ${problem}`)
}

/** A question without a limit says nothing of one: infinity is no JSON. */
const limit = (input: DurationInput): { readonly withinMillis?: number } => {
  const duration = readDuration(input)
  if (duration === undefined || !Duration.isPositive(duration)) {
    return misuse(`within must be a duration above zero or "infinity"; got: ${Json.render(input)}`)
  }
  return Duration.isFinite(duration) ? { withinMillis: Duration.toMillis(duration) } : {}
}

const typed = <A>(answer: Schema.Codec<A, any>): JsonSchema.JsonSchema => {
  const schema = jsonSchemaOf(jsonCodec(answer))
  const decoder = Result.try(() => validator(schema))
  return Result.isSuccess(decoder)
    ? schema
    : misuse(`the type of the answer cannot be told: ${String(decoder.failure)}`)
}

export const make = <A>(question: string, options: ReadonlyArray<unknown> | AskUserOptions<A>): Outcomes.AskUser => {
  if (isList(options)) return { _tag: "AskUser", question, opts: options }
  const { answer, opts = [], within } = options
  const fallback = answer === undefined || options.default === undefined
    ? options.default
    : Schema.encodeSync(jsonCodec(answer))(options.default)
  return {
    _tag: "AskUser",
    question,
    opts,
    ...(answer === undefined ? {} : { answerSchema: typed(answer) }),
    ...(within === undefined ? {} : limit(within)),
    ...(options.default === undefined ? {} : { defaultAnswer: fallback })
  }
}

/** Checks an answer against a JSON Schema. Throws for one that cannot be read. */
const validator = (jsonSchema: Json.JsonObject) => {
  const { $defs: definitions, ...schema } = jsonSchema
  const read = SchemaRepresentation.fromJsonSchemaDocument(
    {
      dialect: "draft-2020-12",
      schema,
      definitions: (definitions ?? {}) as JsonSchema.Definitions
    },
    { patterns: "apply" }
  )
  return Schema.decodeUnknownEffect(read as Schema.Codec<unknown>, { errors: "all", onExcessProperty: "error" })
}

/** The answer as it counts, or why it does not fit. What a person typed may be meant as JSON. */
export const decode = (jsonSchema: Json.JsonObject, value: unknown): Effect.Effect<unknown, string> =>
  Effect.suspend(() => {
    const check = validator(jsonSchema)
    const meant = typeof value === "string" ? Result.getOrUndefined(Json.parse(value)) : undefined
    return check(value).pipe(
      Effect.catch((error) => meant === undefined ? Effect.fail(error) : Effect.mapError(check(meant), () => error))
    )
  }).pipe(
    Effect.sandbox,
    Effect.mapError((cause) => cause.reasons.map((reason) => "error" in reason ? String(reason.error) : "").join("; "))
  )
