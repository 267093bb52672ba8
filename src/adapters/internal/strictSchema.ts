/**
 * Rewrites JSON Schema for providers enforcing only part of the language. The result contains only enforceable
 * keywords; the tool's own decoder still checks the rest. An inexpressible part, such as an open map, leaves the schema
 * unchanged. Optional members become nullable, and nulls standing for missing members are removed from the model's
 * arguments.
 */
import * as Option from "effect/Option"
import { admitsNull, withoutNulls } from "../../internal/declare/jsonSchema.ts"
import * as Json from "../../internal/json.ts"
import * as Wire from "./wire.ts"

type Schema = Json.JsonObject

/** A provider's dialect of JSON Schema. */
export interface Dialect {
  readonly keywords: ReadonlySet<string>
  readonly formats: ReadonlySet<string>
  /** `true` if every member must be required, so optional members must be nullable instead. */
  readonly isAllRequired: boolean
}

/** An enforceable schema, and the conversion back from a model's arguments. */
export interface Strict {
  readonly schema: Schema
  readonly restore: (value: Schema) => Schema
}

const structure = [
  "$ref",
  "$defs",
  "definitions",
  "type",
  "title",
  "description",
  "enum",
  "anyOf",
  "properties",
  "items"
]
const bounds = ["multipleOf", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "minItems", "maxItems"]
const formats = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"]

/** OpenAI's strict mode, in Chat Completions and in Responses. */
export const openAi: Dialect = {
  keywords: new Set([...structure, ...bounds, "pattern", "required", "additionalProperties"]),
  formats: new Set(formats),
  isAllRequired: true
}

/** Anthropic's strict mode: members may be missing; numbers and lists have no bounds. */
export const anthropic: Dialect = {
  keywords: new Set([...structure, "const", "pattern", "required", "additionalProperties"]),
  formats: new Set([...formats, "uri"]),
  isAllRequired: false
}

const known = new WeakMap<Dialect, WeakMap<Schema, Option.Option<Strict>>>()

/** Returns an object schema's strict form, if any. Results are cached, since every request sends the same schemas. */
export const rewrite = (schema: Schema, dialect: Dialect): Option.Option<Strict> => {
  const ofDialect = known.get(dialect) ?? new WeakMap<Schema, Option.Option<Strict>>()
  known.set(dialect, ofDialect)
  const made = ofDialect.get(schema) ?? make(schema, dialect)
  ofDialect.set(schema, made)
  return made
}

/** Returns a schema as sent: rewritten if strictness is wanted and possible, otherwise unchanged. */
export const written = (
  schema: Schema,
  isWanted: boolean,
  dialect: Dialect
): { readonly schema: Schema; readonly isStrict: boolean } =>
  Option.match(isWanted ? rewrite(schema, dialect) : Option.none(), {
    onNone: () => ({ schema, isStrict: false }),
    onSome: (strict) => ({ schema: strict.schema, isStrict: true })
  })

/** Returns the check of schemas a dialect can hold the model to: those with a strict form. */
export const holds = (dialect: Dialect) => (schema: Schema): boolean => Option.isSome(rewrite(schema, dialect))

/** Converts arguments written under a rewritten schema back to the tool's declared schema. */
export const restore = (
  tools: ReadonlyArray<{ readonly name: string; readonly parameters: Schema }>,
  dialect: Dialect
): (name: string, args: Schema) => Schema =>
(name, args) => {
  const tool = tools.find((tool) => tool.name === name)
  return tool === undefined ? args : Option.match(rewrite(tool.parameters, dialect), {
    onNone: () => args,
    onSome: (strict) => strict.restore(args)
  })
}

const make = (schema: Schema, dialect: Dialect): Option.Option<Strict> => {
  if (!isOfObjects(schema)) return Option.none()
  return Option.map(convert(schema, dialect), (strict) => ({
    schema: strict,
    restore: dialect.isAllRequired ? (value) => Wire.object(withoutNulls(() => schema, value)) : (value) => value
  }))
}

const types = (schema: Schema): ReadonlyArray<unknown> => {
  const type = schema["type"]
  return Array.isArray(type) ? type : type === undefined ? [] : [type]
}

const isOfObjects = (schema: Schema): boolean =>
  types(schema).includes("object") || (schema["type"] === undefined && Json.isObject(schema["properties"]))

// ---------------------------------------------------------------------------------------------------------------------
// Rewriting.

const convert = (node: unknown, dialect: Dialect): Option.Option<Schema> => {
  if (!Json.isObject(node)) return Option.none()
  const flat = flattened(node)
  if (flat === undefined || !isSayable(flat)) return Option.none()
  const kept = Object.entries(flat).filter(([key, value]) =>
    dialect.keywords.has(key) && key !== "required" && key !== "additionalProperties" &&
    (key !== "items" || Json.isObject(value))
  )
  const hasFormat = typeof flat["format"] === "string" && dialect.formats.has(flat["format"])
  const rest: Schema = { ...Object.fromEntries(kept), ...(hasFormat ? { format: flat["format"] } : {}) }
  const below = ["anyOf", "items", "$defs", "definitions"].map((key) => inside(key, flat[key], dialect))
  const own = isOfObjects(flat) ? members(flat, dialect) : Option.some({})
  return Option.map(
    Option.all([...below, own]),
    (parts) => Object.fromEntries([rest, ...parts].flatMap(Object.entries))
  )
}

/** Returns `true` if a strict form exists: the schema must not be empty, and an object must name its members. */
const isSayable = (schema: Schema): boolean => {
  const isSaid = ["type", "$ref", "enum", "anyOf"].some((key) => schema[key] !== undefined) || isOfObjects(schema)
  return isSaid && schema["patternProperties"] === undefined && schema["prefixItems"] === undefined &&
    !(isOfObjects(schema) && isOpen(schema)) && (!types(schema).includes("array") || Json.isObject(schema["items"]))
}

/** Detects open objects. An open object without members may have members declared elsewhere. */
const isOpen = ({ additionalProperties, properties }: Schema): boolean => {
  const isNamed = Json.isObject(properties) && Object.keys(properties).length > 0
  return Json.isObject(additionalProperties) || (!isNamed && additionalProperties !== false)
}

/** Normalizes other spellings: `oneOf` to `anyOf`, `const` to `enum`, `allOf` to a single schema. */
const flattened = (schema: Schema): Schema | undefined => {
  const { allOf, const: constant, oneOf, ...rest } = schema
  const plain: Schema = {
    ...(oneOf === undefined || rest["anyOf"] !== undefined ? {} : { anyOf: oneOf }),
    ...(constant === undefined ? {} : { enum: [constant] }),
    ...(constant === undefined || rest["type"] !== undefined ? {} : { type: typeOf(constant) }),
    ...rest
  }
  return Array.isArray(allOf) ? allOf.reduce<Schema | undefined>(together, plain) : plain
}

const typeOf = (value: unknown): string => value === null ? "null" : Array.isArray(value) ? "array" : typeof value

/** Merges two schemas without contradictions. */
const together = (left: Schema | undefined, right: unknown): Schema | undefined => {
  if (left === undefined || !Json.isObject(right)) return undefined
  const isClash = Object.entries(right).some(([key, value]) =>
    key !== "title" && key !== "description" && left[key] !== undefined &&
    JSON.stringify(left[key]) !== JSON.stringify(value)
  )
  return isClash ? undefined : { ...right, ...left }
}

/** Converts the schemas below a keyword, or none if one has no strict form. */
const inside = (key: string, value: unknown, dialect: Dialect): Option.Option<Schema> => {
  if (value === undefined) return Option.some({})
  const converted: Option.Option<unknown> = Array.isArray(value)
    ? Option.all(value.map((item) => convert(item, dialect)))
    : key === "items"
    ? convert(value, dialect)
    : Option.all(
      Object.fromEntries(Object.entries(Wire.object(value)).map(([name, item]) => [name, convert(item, dialect)]))
    )
  return Option.map(converted, (schemas) => ({ [key]: schemas }))
}

const members = (schema: Schema, dialect: Dialect): Option.Option<Schema> => {
  const required = requiredOf(schema)
  const properties = Object.entries(Wire.object(schema["properties"])).map(([name, member]) => {
    const converted = convert(member, dialect)
    const isNullable = dialect.isAllRequired && !required.has(name)
    return [name, isNullable ? Option.map(converted, nullable) : converted] as const
  })
  return Option.map(Option.all(Object.fromEntries(properties)), (properties) => ({
    properties,
    required: Object.keys(properties).filter((name) => dialect.isAllRequired || required.has(name)),
    additionalProperties: false
  }))
}

const requiredOf = (schema: Schema): ReadonlySet<unknown> =>
  new Set(Array.isArray(schema["required"]) ? schema["required"] : [])

const nullable = (schema: Schema): Schema => {
  if (admitsNull(schema, Json.none)) return schema
  if (Array.isArray(schema["anyOf"])) return { ...schema, anyOf: [...schema["anyOf"], { type: "null" }] }
  if (schema["type"] === undefined) return { anyOf: [schema, { type: "null" }] }
  const values = Array.isArray(schema["enum"]) ? { enum: [...schema["enum"], null] } : {}
  return { ...schema, type: [...types(schema), "null"], ...values }
}
