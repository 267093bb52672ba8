/**
 * A tool's parameters in the three forms a caller may give them: struct fields, a Schema, or a raw JSON Schema. All
 * become one pair of a JSON Schema for the model and a decoder for what the model sends; both are made once per tool.
 */
import * as Effect from "effect/Effect"
import type * as JsonSchema from "effect/JsonSchema"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as SchemaAST from "effect/SchemaAST"
import * as Json from "./json.ts"
import * as JsonCodec from "./jsonCodec.ts"

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
  /** What it gives shares nothing with its input, which stands in the thread and in events. */
  readonly decode: (input: unknown) => Effect.Effect<A, Schema.SchemaError, R>
}

const isFields = (input: Json.JsonObject): input is Schema.Struct.Fields => Object.values(input).every(Schema.isSchema)

const localReference = /^#\/\$defs\/([^/]+)$/

/** Providers want the object itself at the root: a schema with a name of its own is not left behind a reference. */
const atRoot = (schema: JsonSchema.JsonSchema, definitions: JsonSchema.Definitions): JsonSchema.JsonSchema => {
  const [, name] = localReference.exec(String(schema["$ref"])) ?? []
  const { $ref: _, ...beside } = schema
  return name === undefined || definitions[name] === undefined ? schema : { ...definitions[name], ...beside }
}

/** The JSON Schema of what a codec reads. */
export const jsonSchemaOf = (codec: Schema.Constraint): JsonSchema.JsonSchema => {
  const { definitions, schema: root } = Schema.toJsonSchemaDocument(codec)
  return Object.keys(definitions).length === 0 ? root : { ...atRoot(root, definitions), $defs: definitions }
}

/** The value of `make`, computed at the first read: a tool that is declared and never offered costs nothing. */
const once = <A>(make: () => A): () => A => {
  let made: { readonly value: A } | undefined
  return () => (made ??= { value: make() }).value
}

const fromSchema = (schema: Schema.Constraint): Parameters<unknown, unknown> => {
  const codec = once(() => JsonCodec.make(schema))
  const jsonSchema = once(() => jsonSchemaOf(codec()))
  const isFresh = once(() => JsonCodec.isFresh(codec()))
  const decoder = once(() => Schema.decodeUnknownEffect(codec(), { errors: "all" }))
  return {
    get jsonSchema() {
      return jsonSchema()
    },
    decode: (input) => decoder()(isFresh() ? input : Json.copy(input))
  }
}

const objects = Schema.decodeUnknownEffect(Schema.Record(Schema.String, Schema.Unknown))

/** A struct without fields: to Schema it is any value but null, to a model and a handler an object without members. */
const isEmpty = ({ ast }: Schema.Constraint): boolean =>
  SchemaAST.isObjects(ast) && ast.propertySignatures.length === 0 && ast.indexSignatures.length === 0 &&
  ast.checks === undefined && ast.encoding === undefined

const none: Parameters<{}, never> = {
  jsonSchema: { type: "object", properties: {} },
  decode: (input) => Effect.map(objects(input), () => ({}))
}

/** The parameters, or why they cannot be used. */
export const make = (input: unknown): Result.Result<Parameters<any, any>, string> => {
  if (Schema.isSchema(input)) return Result.succeed(isEmpty(input) ? none : fromSchema(input))
  if (!Json.isObject(input)) {
    return Result.fail("parameters must be struct fields, a Schema or a JSON Schema object; use {} for none")
  }
  if (isFields(input)) return make(Schema.Struct(input))
  return Result.succeed({ jsonSchema: input, decode: (value) => objects(Json.copy(value)) })
}

/** Encodes what a handler comes to by the tool's schema for it. */
export const encoder = (schema: Schema.Constraint): (value: unknown) => Effect.Effect<unknown, unknown, any> => {
  const encode = once(() => Schema.encodeUnknownEffect(Schema.toCodecJson(schema as Schema.Top)))
  return (value) => encode()(value)
}
