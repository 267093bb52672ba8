/**
 * A tool's parameters in the three forms a caller may give them: struct fields, a Schema, or a raw JSON Schema. All
 * become one pair of a JSON Schema for the model and a decoder for what the model sends; both are made once per tool.
 */
import type * as Effect from "effect/Effect"
import type * as JsonSchema from "effect/JsonSchema"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Json from "./json.ts"

/** The forms in which a caller declares parameters. */
export type Input = Schema.Constraint | Schema.Struct.Fields | JsonSchema.JsonSchema

/** What a handler receives for parameters declared as `P`. */
export type Type<P> = P extends Schema.Constraint ? P["Type"]
  : P extends Schema.Struct.Fields ? Schema.Struct<P>["Type"]
  : Json.JsonObject

/** The services that decoding parameters declared as `P` needs. */
export type Services<P> = P extends Schema.Constraint ? P["DecodingServices"]
  : P extends Schema.Struct.Fields ? Schema.Struct<P>["DecodingServices"]
  : never

export interface Parameters<A, R> {
  readonly jsonSchema: JsonSchema.JsonSchema
  readonly decode: (input: unknown) => Effect.Effect<A, Schema.SchemaError, R>
}

const isFields = (input: Json.JsonObject): input is Schema.Struct.Fields => Object.values(input).every(Schema.isSchema)

const jsonSchemaOf = (schema: Schema.Constraint): JsonSchema.JsonSchema => {
  const document = Schema.toJsonSchemaDocument(schema)
  return Object.keys(document.definitions).length === 0
    ? document.schema
    : { ...document.schema, $defs: document.definitions }
}

/** The value of `make`, computed at the first read: a tool that is declared and never offered costs nothing. */
const once = <A>(make: () => A): () => A => {
  let made: { readonly value: A } | undefined
  return () => (made ??= { value: make() }).value
}

const fromSchema = (schema: Schema.Constraint): Parameters<unknown, unknown> => {
  const jsonSchema = once(() => jsonSchemaOf(schema))
  const decoder = once(() => Schema.decodeUnknownEffect(Schema.toCodecJson(schema as Schema.Top), { errors: "all" }))
  return {
    get jsonSchema() {
      return jsonSchema()
    },
    decode: (input) => decoder()(input)
  }
}

const objects = Schema.decodeUnknownEffect(Schema.Record(Schema.String, Schema.Unknown))

/** The parameters, or why they cannot be used. */
export const make = (input: unknown): Result.Result<Parameters<any, any>, string> => {
  if (Schema.isSchema(input)) return Result.succeed(fromSchema(input))
  if (!Json.isObject(input)) {
    return Result.fail("parameters must be struct fields, a Schema or a JSON Schema object; use {} for none")
  }
  if (isFields(input)) return Result.succeed(fromSchema(Schema.Struct(input)))
  return Result.succeed({ jsonSchema: input, decode: objects })
}

/** Encodes a handler's result by the tool's success schema. */
export const successEncoder = (schema: Schema.Constraint): (value: unknown) => Effect.Effect<unknown, unknown, any> => {
  const encoder = once(() => Schema.encodeUnknownEffect(Schema.toCodecJson(schema as Schema.Top)))
  return (value) => encoder()(value)
}
