/**
 * Schemas of other libraries by their common interface: a Standard Schema that has a JSON Schema, too. The JSON Schema is
 * asked for once, when the tool is made; what a model sends is validated by the library itself, so that its transforms
 * and checks count.
 */
import * as Effect from "effect/Effect"
import type * as JsonSchema from "effect/JsonSchema"
import * as Predicate from "effect/Predicate"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as SchemaIssue from "effect/SchemaIssue"
import type { StandardJSONSchemaV1, StandardSchemaV1 } from "effect/StandardSchema"
import * as Json from "../json.ts"

/** A schema of Zod 4, of ArkType, of Valibot by way of `toStandardJsonSchema`, or of any other library that has both. */
export interface StandardSchema<Input = unknown, Output = Input> {
  readonly "~standard":
    & StandardSchemaV1<Input, Output>["~standard"]
    & StandardJSONSchemaV1<Input, Output>["~standard"]
}

/** What a handler receives. A transform that is asynchronous has been waited for. */
export type Output<S extends StandardSchemaV1> = Awaited<StandardSchemaV1.InferOutput<S>>

const propsOf = (input: unknown): Json.JsonObject | undefined => {
  if ((typeof input !== "object" && typeof input !== "function") || input === null) return undefined
  const props: unknown = Reflect.get(input, "~standard")
  return Json.isObject(props) ? props : undefined
}

/** Whether it is a schema of some library. An ArkType schema is a function. */
export const is = (input: unknown): boolean => propsOf(input) !== undefined

const isComplete = (input: unknown): input is StandardSchema => {
  const props = propsOf(input)
  return typeof props?.["validate"] === "function" && Json.isObject(props["jsonSchema"]) &&
    typeof props["jsonSchema"]["input"] === "function"
}

const vendorOf = (input: unknown): string => Json.render(propsOf(input)?.["vendor"] ?? "unknown")

const raise = ({ code }: { readonly code: string }): never => {
  throw new Error(`JSON has no value for it (${code})`)
}

interface ValibotAction {
  readonly errors: ReadonlyArray<string> | undefined
  readonly jsonSchema: JsonSchema.JsonSchema
}

/**
 * Where libraries differ. ArkType says nothing of a type that JSON does not have, so that the model would have to guess
 * it: it is refused. Valibot refuses every action that JSON Schema cannot say, such as `trim`: it is left out, since
 * Valibot sees to it.
 */
const libraryOptions: { readonly [vendor: string]: Record<string, unknown> } = {
  arktype: { fallback: { date: raise, domain: raise, proto: raise, symbolKey: raise } },
  valibot: {
    overrideAction: ({ errors, jsonSchema }: ValibotAction) => errors === undefined ? undefined : jsonSchema
  }
}

/** The JSON Schema of what a model is to send, or why there is none. */
const jsonSchemaOf = (schema: StandardSchema): Result.Result<JsonSchema.JsonSchema, string> =>
  Result.try({
    try: () => {
      const { jsonSchema, vendor } = schema["~standard"]
      const { $schema: _, ...rest } = jsonSchema.input({
        target: "draft-2020-12",
        libraryOptions: libraryOptions[vendor]
      })
      return rest
    },
    catch: (cause) =>
      `parameters must have a JSON Schema: ${
        Json.render(cause)
      }; use types that JSON has, and transform them if need be`
  })

const segment = (part: PropertyKey | StandardSchemaV1.PathSegment): PropertyKey =>
  typeof part === "object" ? part.key : part

const issueOf = ({ message, path }: StandardSchemaV1.Issue): SchemaIssue.Issue => {
  const issue = new SchemaIssue.InvalidValue({ message })
  return path === undefined || path.length === 0 ? issue : new SchemaIssue.Pointer(path.map(segment), issue)
}

const nothing: StandardSchemaV1.Issue = { message: "the arguments do not fit the parameters" }

const refused = (issues: ReadonlyArray<StandardSchemaV1.Issue>): Schema.SchemaError => {
  const [first = nothing, ...others] = issues
  return new Schema.SchemaError(
    new SchemaIssue.Composite(Schema.Unknown.ast, [issueOf(first), ...others.map(issueOf)])
  )
}

/** A result with issues is a failure, also where it has a value as well. */
const judged = (result: StandardSchemaV1.Result<unknown>): Effect.Effect<unknown, Schema.SchemaError> => {
  if (result.issues !== undefined && result.issues !== null) return Effect.fail(refused(Array.from(result.issues)))
  const { value } = result
  return Predicate.isPromiseLike(value) ? Effect.promise(() => Promise.resolve(value)) : Effect.succeed(value)
}

/** It is done at once where the library is. What a transform throws is a defect. */
const validated = (schema: StandardSchema, input: unknown): Effect.Effect<unknown, Schema.SchemaError> => {
  try {
    const result = schema["~standard"].validate(Json.copy(input))
    return Predicate.isPromiseLike(result) ? Effect.flatMap(Effect.promise(() => result), judged) : judged(result)
  } catch (cause) {
    return Effect.die(cause)
  }
}

const mends: { readonly [vendor: string]: string } = {
  valibot: "give toStandardJsonSchema(schema), from @valibot/to-json-schema",
  zod: "update Zod to 4.2 or later"
}

/** How the parameters of a schema are told and read, or why they cannot be. */
export const make = (
  schema: unknown
): Result.Result<
  {
    readonly jsonSchema: JsonSchema.JsonSchema
    readonly decode: (input: unknown) => Effect.Effect<unknown, Schema.SchemaError>
  },
  string
> => {
  if (!isComplete(schema)) {
    const vendor = vendorOf(schema)
    const mend = mends[vendor] ?? "use a library whose schemas have ~standard.validate and ~standard.jsonSchema"
    return Result.fail(`parameters must have a JSON Schema, and this ${vendor} schema has none: ${mend}`)
  }
  return Result.map(jsonSchemaOf(schema), (jsonSchema) => ({
    jsonSchema,
    decode: (input) => validated(schema, input)
  }))
}
