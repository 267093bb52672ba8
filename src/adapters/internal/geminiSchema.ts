/**
 * JSON Schema as Gemini takes it. The newer fields take JSON Schema as it is, but for one keyword that they pass over.
 * The older ones take a subset of OpenAPI's schemas and refuse a request for any keyword besides: there references are
 * written out, what cannot be said is left out, and a schema never asks for more than it did. Arguments are decoded with
 * the tool's own schema, whatever schema the model was given.
 */
import * as Json from "../../internal/json.ts"
import * as Wire from "./wire.ts"

type Definitions = Readonly<Record<string, unknown>>

/** Where a reference is written out: under which definitions, and inside of which of them and of the whole, "#". */
interface Place {
  readonly definitions: Definitions
  readonly within: ReadonlyArray<string>
}

// ---------------------------------------------------------------------------------------------------------------------
// JSON Schema

const schemaMaps = ["properties", "$defs", "definitions", "patternProperties"]
const plainValues = ["enum", "default", "examples", "required"]

/** The same schema; `const`, which is not read, is an `enum` of one. */
export const jsonSchema = (schema: Json.JsonObject): Json.JsonObject => Wire.object(mended(schema))

const mended = (schema: unknown): unknown => {
  if (Array.isArray(schema)) return schema.map(mended)
  if (!Json.isObject(schema)) return schema
  const { $schema: _, const: only, ...rest } = schema
  const members = Object.entries(rest).map(([key, value]) => {
    if (plainValues.includes(key)) return [key, value]
    return [key, schemaMaps.includes(key) && Json.isObject(value) ? mapped(value, mended) : mended(value)]
  })
  return { ...Object.fromEntries(members), ...("const" in schema ? { enum: [only] } : {}) }
}

const mapped = (schemas: Json.JsonObject, convert: (schema: unknown) => unknown): Json.JsonObject =>
  Object.fromEntries(Object.entries(schemas).map(([name, schema]) => [name, convert(schema)]))

// ---------------------------------------------------------------------------------------------------------------------
// OpenAPI

const always = ["title", "description", "nullable"]

/** What may be said of a type besides. */
const ofType: { readonly [type: string]: ReadonlyArray<string> } = {
  STRING: ["minLength", "maxLength", "pattern"],
  NUMBER: ["minimum", "maximum"],
  INTEGER: ["minimum", "maximum"],
  ARRAY: ["minItems", "maxItems"],
  OBJECT: ["minProperties", "maxProperties", "propertyOrdering"]
}

const formats: { readonly [type: string]: ReadonlyArray<unknown> } = {
  STRING: ["date-time"],
  NUMBER: ["float", "double"],
  INTEGER: ["int32", "int64"]
}

/** The schema in the subset of OpenAPI. */
export const openApi = (schema: Json.JsonObject): Json.JsonObject =>
  converted(schema, {
    definitions: { ...Wire.object(schema["definitions"]), ...Wire.object(schema["$defs"]) },
    within: ["#"]
  })

const converted = (input: unknown, place: Place): Json.JsonObject => {
  const { inside, schema } = resolved(Wire.object(input), place)
  const { isNullable, variants } = alternatives(schema)
  const nullable = isNullable ? { nullable: true } : {}
  const [only, ...others] = variants
  if (only !== undefined && others.length === 0) {
    const { anyOf: _, oneOf: __, type: ___, ...rest } = schema
    return { ...converted({ ...rest, ...only }, inside), ...nullable }
  }
  const common = { ...picked(schema, always), ...nullable }
  return variants.length > 0
    ? { ...common, anyOf: variants.map((variant) => converted(variant, inside)) }
    : { ...common, ...typed(schema, inside) }
}

const picked = (schema: Json.JsonObject, names: ReadonlyArray<string>): Json.JsonObject =>
  Object.fromEntries(Object.entries(schema).filter(([name]) => names.includes(name)))

/** A reference is what it refers to; one to a schema that it stands in is cut. Parts that all hold are one schema. */
const resolved = (
  schema: Json.JsonObject,
  place: Place
): { readonly schema: Json.JsonObject; readonly inside: Place } => {
  const { $ref, allOf, ...rest } = schema
  const name = typeof $ref !== "string"
    ? undefined
    : $ref === "#"
    ? $ref
    : /^#\/(?:\$defs|definitions)\/(.+)$/.exec($ref)?.[1]
  if (name !== undefined) {
    const target = place.within.includes(name) ? { type: "object" } : Wire.object(place.definitions[name])
    return resolved({ ...target, ...rest }, { ...place, within: [...place.within, name] })
  }
  if (!Array.isArray(allOf)) return { schema: rest, inside: place }
  let merged: Json.JsonObject = rest
  let inside = place
  for (const part of Wire.list(allOf)) {
    const found = resolved(part, inside)
    merged = both(merged, found.schema)
    inside = found.inside
  }
  return { schema: merged, inside }
}

const both = (left: Json.JsonObject, right: Json.JsonObject): Json.JsonObject => {
  const properties = { ...Wire.object(left["properties"]), ...Wire.object(right["properties"]) }
  const required = [left["required"], right["required"]].flatMap((names) => Array.isArray(names) ? names : [])
  return {
    ...left,
    ...right,
    ...(Object.keys(properties).length === 0 ? {} : { properties }),
    ...(required.length === 0 ? {} : { required: [...new Set<unknown>(required)] })
  }
}

/** The schemas that a value may fit, one of several: of several types, or named as alternatives. */
const alternatives = (
  schema: Json.JsonObject
): { readonly variants: ReadonlyArray<Json.JsonObject>; readonly isNullable: boolean } => {
  const { anyOf, oneOf, type } = schema
  const named = Wire.list(anyOf ?? oneOf)
  const types = Array.isArray(type) ? type.map((one): Json.JsonObject => ({ type: one })) : []
  const all = named.length > 0 ? named : types
  const variants = all.filter((variant) => variant["type"] !== "null")
  return { variants, isNullable: variants.length < all.length }
}

const typed = (schema: Json.JsonObject, place: Place): Json.JsonObject => {
  const type = typeOf(schema)
  const format = formats[type]?.includes(schema["format"]) === true ? { format: schema["format"] } : {}
  const said = { ...picked(schema, ofType[type] ?? []), ...choices(schema, type), ...bounds(schema, type) }
  return { type, ...format, ...said, ...members(schema, type, place) }
}

/** A schema has to have a type; one that says nothing is most safely a text. */
const typeOf = (schema: Json.JsonObject): string => {
  const { const: only, enum: values, items, prefixItems, properties, type } = schema
  if (typeof type === "string") return type === "null" ? "STRING" : type.toUpperCase()
  if (properties !== undefined) return "OBJECT"
  if (items !== undefined || prefixItems !== undefined) return "ARRAY"
  const example: unknown = only ?? (Array.isArray(values) ? values[0] : undefined)
  return typeof example === "number" ? "NUMBER" : typeof example === "boolean" ? "BOOLEAN" : "STRING"
}

/** Only texts can be listed one by one. */
const choices = (schema: Json.JsonObject, type: string): Json.JsonObject => {
  const values: unknown = "const" in schema ? [schema["const"]] : schema["enum"]
  if (type !== "STRING" || !Array.isArray(values)) return {}
  return values.every((value) => typeof value === "string") ? { format: "enum", enum: values } : {}
}

/** A bound that is not included is the next whole number, or itself. */
const bounds = (schema: Json.JsonObject, type: string): Json.JsonObject => {
  const { exclusiveMaximum, exclusiveMinimum } = schema
  if (type !== "INTEGER" && type !== "NUMBER") return {}
  const next = type === "INTEGER" ? 1 : 0
  return {
    ...(typeof exclusiveMinimum === "number" ? { minimum: exclusiveMinimum + next } : {}),
    ...(typeof exclusiveMaximum === "number" ? { maximum: exclusiveMaximum - next } : {})
  }
}

const members = (schema: Json.JsonObject, type: string, place: Place): Json.JsonObject => {
  if (type === "ARRAY") return { items: items(schema, place) }
  if (type !== "OBJECT") return {}
  const properties = mapped(Wire.object(schema["properties"]), (property) => converted(property, place))
  const names: unknown = schema["required"]
  const required = Array.isArray(names) ? names.filter((name) => Object.hasOwn(properties, String(name))) : []
  return { properties, ...(required.length === 0 ? {} : { required }) }
}

/** The places of a tuple are not distinguished. */
const items = (schema: Json.JsonObject, place: Place): Json.JsonObject => {
  const places = Wire.list(schema["prefixItems"])
  const [first, ...others] = places
  if (first === undefined) return converted(schema["items"], place)
  return converted(others.length === 0 ? first : { anyOf: places }, place)
}
