/**
 * A tool's parameters in the four forms a caller may give them: struct fields, a Schema, a Standard Schema of another
 * library, or a raw JSON Schema. All become one pair of a JSON Schema for the model and a decoder for what the model
 * sends; both are made once per tool. Anything else is refused when the tool is made: a form that is guessed wrong would
 * be sent to the model, and nothing would check what comes back.
 */
import * as Effect from "effect/Effect"
import type * as JsonSchema from "effect/JsonSchema"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as SchemaAST from "effect/SchemaAST"
import * as Json from "../json.ts"
import * as JsonCodec from "./jsonCodec.ts"
import * as StandardSchema from "./standardSchema.ts"

/** The forms in which a caller declares parameters. */
export type Input =
  | Schema.Constraint
  | Schema.Struct.Fields
  | StandardSchema.StandardSchema<any, any>
  | JsonSchema.JsonSchema

/** What a handler receives for parameters declared as `P`. */
export type Type<P> = P extends Schema.Constraint ? P["Type"]
  : P extends StandardSchema.StandardSchema<any, any> ? StandardSchema.Output<P>
  : P extends Schema.Struct.Fields ? Schema.Struct<P>["Type"]
  : Json.JsonObject

/** The services that decoding parameters declared as `P` needs. */
export type Services<P> = P extends Schema.Constraint ? P["DecodingServices"]
  : P extends StandardSchema.StandardSchema<any, any> ? never
  : P extends Schema.Struct.Fields ? Schema.Struct<P>["DecodingServices"]
  : never

export interface Parameters<A, R> {
  readonly jsonSchema: JsonSchema.JsonSchema
  /** What it gives shares nothing with its input, which stands in the thread and in events. */
  readonly decode: (input: unknown) => Effect.Effect<A, Schema.SchemaError, R>
}

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

/** A schema that says nothing is not one that providers take: arguments are an object, whatever is in it. */
const sayingSomething = (schema: JsonSchema.JsonSchema): JsonSchema.JsonSchema =>
  Object.keys(schema).length === 0 ? { type: "object" } : schema

const fromSchema = (schema: Schema.Constraint): Parameters<unknown, unknown> => {
  const codec = once(() => JsonCodec.make(schema))
  const jsonSchema = once(() => sayingSomething(jsonSchemaOf(codec())))
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

const forms =
  "parameters must be struct fields, a Schema or a JSON Schema object, or a Standard Schema (Zod, ArkType, Valibot); use {} for none"

const isPlain = (input: Json.JsonObject): boolean => {
  const prototype = Object.getPrototypeOf(input)
  return prototype === null || Object.getPrototypeOf(prototype) === null
}

const isRecord = (value: unknown): boolean => Json.isObject(value)
const isFlag = (value: unknown): boolean => typeof value === "boolean"

/** By what a JSON Schema without a type is known for one, and not for fields of some other notation. */
const keywords: { readonly [keyword: string]: (value: unknown) => boolean } = {
  $defs: isRecord,
  $ref: (value) => typeof value === "string",
  $schema: (value) => typeof value === "string",
  additionalProperties: (value) => isRecord(value) || isFlag(value),
  allOf: Array.isArray,
  anyOf: Array.isArray,
  definitions: isRecord,
  oneOf: Array.isArray,
  patternProperties: isRecord,
  properties: isRecord,
  required: Array.isArray,
  unevaluatedProperties: (value) => isRecord(value) || isFlag(value)
}

const isJsonSchema = (input: Json.JsonObject): boolean => {
  const { type } = input
  if (type !== undefined) return typeof type === "string" ? isType(type) : Array.isArray(type) && type.every(isType)
  return Object.entries(keywords).some(([keyword, isUsable]) => isUsable(input[keyword]))
}

const types = new Set<unknown>(["object", "array", "string", "number", "integer", "boolean", "null"])

/** Types are known in any case: schemas in Gemini's own form have them in capitals. */
const lower = (type: unknown): unknown => typeof type === "string" ? type.toLowerCase() : type

const isType = (type: unknown): boolean => types.has(lower(type))

const isSchemaOfAny = (value: unknown): boolean => Schema.isSchema(value) || StandardSchema.is(value)

/** Whether a value that a JSON Schema describes may be an object. What is not told rules nothing out. */
const allowsObject = (schema: unknown, root: Json.JsonObject, depth = 0): boolean => {
  if (!Json.isObject(schema) || depth > 16) return schema !== false
  const { $ref, allOf, anyOf, const: only, enum: values, oneOf, type } = schema
  const inside = (part: unknown): boolean => allowsObject(part, root, depth + 1)
  const name = localReference.exec(String($ref))?.[1]
  const definition = name !== undefined && Json.isObject(root["$defs"]) ? root["$defs"][name] : undefined
  const options = anyOf ?? oneOf
  return (type === undefined || (Array.isArray(type) ? type : [type]).some((one) => lower(one) === "object")) &&
    (!("const" in schema) || Json.isObject(only)) && (!Array.isArray(values) || values.some(Json.isObject)) &&
    (!Array.isArray(options) || options.some(inside)) && (!Array.isArray(allOf) || allOf.every(inside)) &&
    (definition === undefined || inside(definition))
}

/** Why a schema cannot be the parameters' own. */
const noObject = ({ type }: Json.JsonObject): string => {
  const what = typeof type === "string" ? `a schema of type "${type}"` : "a schema that no object fits"
  return `parameters must be those of an object, and this is ${what}: give it a name, as in { value: … }`
}

const told = (json: Parameters<any, any>): Result.Result<Parameters<any, any>, string> =>
  allowsObject(json.jsonSchema, json.jsonSchema)
    ? Result.succeed({ ...json, jsonSchema: sayingSomething(json.jsonSchema) })
    : Result.fail(noObject(json.jsonSchema))

const raw = (input: Json.JsonObject): Result.Result<Parameters<any, any>, string> => {
  const members = Json.isObject(input["properties"]) ? Object.entries(input["properties"]) : []
  for (const [name, member] of members) {
    if (isSchemaOfAny(member)) {
      return Result.fail(
        `parameters must be a JSON Schema in every part, and properties.${name} is another: give the fields themselves`
      )
    }
    if (!Json.isObject(member) && typeof member !== "boolean") {
      return Result.fail(`parameters must be a JSON Schema in every part; properties.${name} is ${show(member)}`)
    }
  }
  return allowsObject(input, input)
    ? Result.succeed({ jsonSchema: input, decode: (value) => objects(Json.copy(value)) })
    : Result.fail(noObject(input))
}

const show = (value: unknown): string => JSON.stringify(Json.toJson(value)).slice(0, 100)

/** What a field is that is no Schema. */
const misfit = (name: string, value: unknown): string => {
  if (StandardSchema.is(value)) return `${name} is a schema of another library: declare the object itself with it`
  return `${name} must be a Schema, such as Schema.String; got: ${show(value)}`
}

/** The parameters, or why they cannot be used. */
export const make = (input: unknown): Result.Result<Parameters<any, any>, string> => {
  if (Schema.isSchema(input)) {
    if (isEmpty(input)) return Result.succeed(none)
    return JsonCodec.readsObject(input)
      ? Result.succeed(fromSchema(input))
      : Result.fail(noObject(fromSchema(input).jsonSchema))
  }
  if (StandardSchema.is(input)) return Result.flatMap(StandardSchema.make(input), told)
  if (!Json.isObject(input) || !isPlain(input)) return Result.fail(forms)
  const fields = Object.entries(input)
  if (fields.every(([, field]) => Schema.isSchema(field))) return make(Schema.Struct(input as Schema.Struct.Fields))
  if (isJsonSchema(input) && !fields.some(([, field]) => isSchemaOfAny(field))) return raw(input)
  const wrong = fields.flatMap(([name, field]) => Schema.isSchema(field) ? [] : [misfit(name, field)])
  return Result.fail(`parameters.${wrong[0]}. ${forms}`)
}

/** Encodes what a handler comes to by the tool's schema for it. */
export const encoder = (schema: Schema.Constraint): (value: unknown) => Effect.Effect<unknown, unknown, any> => {
  const encode = once(() => Schema.encodeUnknownEffect(Schema.toCodecJson(schema as Schema.Top)))
  return (value) => encode()(value)
}
