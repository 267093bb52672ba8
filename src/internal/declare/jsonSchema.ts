/**
 * Reads JSON Schemas: reference targets, nulls standing for absent members in a model's arguments, and the single
 * object schema sent to providers for a choice of objects.
 */
import * as Result from "effect/Result"
import * as Json from "../json.ts"

// References: `$ref` targets, and references without a target. A reference is a JSON pointer, an anchor name, or a
// part's `$id`. External addresses are not fetched.

/** Keywords whose members are schemas, whatever their names. */
const schemaMaps: ReadonlySet<string> = new Set([
  "$defs",
  "definitions",
  "dependentSchemas",
  "patternProperties",
  "properties"
])

/** Keywords holding data, without references. */
const dataKeywords: ReadonlySet<string> = new Set(["const", "default", "enum", "examples"])

const percentDecoded = (text: string): string => {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

const unescaped = (step: string): string => step.replaceAll("~1", "/").replaceAll("~0", "~")

const isContainer = (value: unknown): value is Json.JsonObject => typeof value === "object" && value !== null

const memberAt = (root: Json.JsonObject, pointer: string): unknown =>
  pointer.split("/").slice(1).map(unescaped)
    .reduce<unknown>((node, step) => isContainer(node) && Object.hasOwn(node, step) ? node[step] : undefined, root)

const isPart = (value: unknown): boolean => Json.isObject(value) || typeof value === "boolean"

/** Returns the schema at a pointer within `root`: `#`, or `#/$defs/Name`. */
const referenceTarget = (reference: string, root: Json.JsonObject): unknown => {
  if (reference !== "#" && !reference.startsWith("#/")) return undefined
  const found = memberAt(root, reference.slice(1))
  const value = found === undefined ? memberAt(root, percentDecoded(reference.slice(1))) : found
  return isPart(value) ? value : undefined
}

interface Reference {
  readonly path: string
  readonly reference: string
  /** Schema whose root the pointer starts from: the nearest enclosing schema with an `$id`. */
  readonly base: Json.JsonObject
}

/** Collects a schema's references, and the names its parts can be referenced by. */
class Parts {
  readonly references: Array<Reference> = []
  readonly names = new Set<string>()
  private readonly seen = new Set<unknown>()

  read(node: unknown, path: string, base: Json.JsonObject): void {
    if (!isContainer(node) || this.seen.has(node)) return
    this.seen.add(node)
    const id = Array.isArray(node) ? undefined : node["$id"]
    const own = typeof id === "string" && !id.startsWith("#") ? node : base
    for (const [key, value] of Object.entries(node)) {
      const place = path === "" ? key : `${path}.${key}`
      if (typeof value === "string") this.word(key, value, place, own)
      else if (schemaMaps.has(key) && Json.isObject(value)) {
        for (const [name, schema] of Object.entries(value)) this.read(schema, `${place}.${name}`, own)
      } else if (!dataKeywords.has(key)) this.read(value, place, own)
    }
  }

  private word(key: string, value: string, path: string, base: Json.JsonObject): void {
    if (key === "$ref") this.references.push({ path, reference: value, base })
    if (key === "$anchor" || key === "$dynamicAnchor") this.names.add(`#${value}`)
    if (key === "$id") this.names.add(value)
  }
}

/** Returns the dangling references, each with its path in the schema. */
export const danglingReferences = (
  schema: Json.JsonObject
): ReadonlyArray<{ readonly path: string; readonly reference: string }> => {
  const parts = new Parts()
  parts.read(schema, "", schema)
  return parts.references.filter(({ base, reference }) => {
    if (/^[a-z][a-z0-9+.-]*:/i.test(reference) || parts.names.has(reference)) return false
    if (!reference.startsWith("#")) return !parts.names.has(reference.replace(/#.*$/s, ""))
    return referenceTarget(reference, base) === undefined && referenceTarget(reference, schema) === undefined
  })
}

// Nulls standing for absent members: models write null for an optional member, asked or unasked. A null counts if the
// member is required, or if its schema allows null; otherwise the member is absent.

type Schema = Json.JsonObject

/** Longest chain of schemas followed for one value: a schema may refer to itself endlessly. */
const deepest = 64

const objects = (value: unknown): ReadonlyArray<Schema> => Array.isArray(value) ? value.filter(Json.isObject) : []

const members = (schema: Schema, keyword: string): Schema =>
  Json.isObject(schema[keyword]) ? schema[keyword] : Json.none

/** Returns a reference's schema, or `undefined` for a dangling reference. */
const resolved = (schema: Schema, root: Schema, depth = 0): Schema | undefined => {
  const { $ref, ...beside } = schema
  if (typeof $ref !== "string") return schema
  const target = depth > 8 ? undefined : referenceTarget($ref, root)
  if (!Json.isObject(target)) return undefined
  return resolved(isBeside(target, beside) ? { allOf: [target, beside] } : { ...target, ...beside }, root, depth + 1)
}

/** Returns `true` if keywords beside a reference extend the target's own keywords; otherwise they replace these. */
const isBeside = (target: Schema, beside: Schema): boolean =>
  ["properties", "required", "allOf", "anyOf", "oneOf"].some((keyword) => keyword in beside && keyword in target)

/** Returns `true` if a schema allows null. A dangling schema does not. */
export const admitsNull = (schema: unknown, root: Schema, depth = 0): boolean => {
  if (!Json.isObject(schema)) return schema === true
  const found = depth > deepest ? undefined : resolved(schema, root)
  if (found === undefined) return false
  const { allOf, anyOf, const: only, enum: values, oneOf, type } = found
  const inside = (part: unknown): boolean => admitsNull(part, root, depth + 1)
  const options = anyOf ?? oneOf
  return (type === undefined || type === "null" || (Array.isArray(type) && type.includes("null"))) &&
    (!("const" in found) || only === null) && (!Array.isArray(values) || values.includes(null)) &&
    (!Array.isArray(options) || options.some(inside)) && (!Array.isArray(allOf) || allOf.every(inside))
}

const typesOf = ({ type }: Schema): ReadonlyArray<unknown> =>
  Array.isArray(type) ? type : type === undefined ? [] : [type]

const isOf = (schema: Schema, type: "object" | "array"): boolean =>
  typesOf(schema).includes(type) || (schema["type"] === undefined && type === "object" && "properties" in schema)

const requires = ({ required }: Schema, name: string): boolean => Array.isArray(required) && required.includes(name)

/**
 * Returns `true` if an object may match this branch of a choice: the branch declares its members, with the same fixed
 * values. A null may stand for another branch's member.
 */
const fits = (schema: Schema, value: Schema): boolean => {
  const properties = members(schema, "properties")
  return isOf(schema, "object") && Object.entries(value).every(([name, member]) => {
    if (member === null) return true
    if (!Object.hasOwn(properties, name)) return false
    const { const: constant, enum: values } = members(properties, name)
    return Array.isArray(values) ? values.includes(member) : constant === undefined || constant === member
  })
}

/** Schemas matching a value, and the unmatched choices. */
interface Held {
  readonly own: Array<Schema>
  readonly others: Array<Schema>
}

const hold = (given: unknown, root: Schema, value: object, held: Held, depth: number): Held => {
  const schema = Json.isObject(given) && depth <= deepest ? resolved(given, root) : undefined
  if (schema === undefined) return held
  held.own.push(schema)
  for (const part of objects(schema["allOf"])) hold(part, root, value, held, depth + 1)
  const branches = objects(schema["anyOf"] ?? schema["oneOf"]).map((branch) => resolved(branch, root) ?? Json.none)
  const chosen = branches.find((branch) => Array.isArray(value) ? isOf(branch, "array") : fits(branch, value as Schema))
  held.others.push(...branches.filter((branch) => branch !== chosen))
  return chosen === undefined ? held : hold(chosen, root, value, held, depth + 1)
}

const read = (schemas: ReadonlyArray<unknown>, root: Schema, value: unknown, depth: number): unknown => {
  if (typeof value !== "object" || value === null || depth > 4 * deepest) return value
  const held: Held = { own: [], others: [] }
  for (const schema of schemas) hold(schema, root, value, held, 0)
  if (Array.isArray(value)) {
    return value.map((item, index) => read(held.own.map((schema) => itemOf(schema, index)), root, item, depth + 1))
  }
  const entries = Object.entries(value).flatMap(([name, member]) => {
    if (member === null && isAbsent(name, held, root)) return []
    return [[name, read(held.own.map((schema) => memberOf(schema, name)), root, member, depth + 1)] as const]
  })
  return Object.fromEntries(entries)
}

const itemOf = ({ items, prefixItems }: Schema, index: number): unknown =>
  Array.isArray(prefixItems) && index < prefixItems.length ? prefixItems[index] : items

const memberOf = (schema: Schema, name: string): unknown => {
  const properties = members(schema, "properties")
  return Object.hasOwn(properties, name) ? properties[name] : schema["additionalProperties"]
}

const isAbsent = (name: string, { others, own }: Held, root: Schema): boolean => {
  const declaring = (schemas: ReadonlyArray<Schema>) =>
    schemas.map((schema) => members(schema, "properties")).filter((properties) => Object.hasOwn(properties, name))
  if (own.some((schema) => requires(schema, name))) return false
  const declared = declaring(own)
  if (declared.length > 0) return !declared.every((properties) => admitsNull(properties[name], root))
  const foreign = declaring(others)
  return foreign.length > 0 && !foreign.some((properties) => admitsNull(properties[name], root))
}

const hasNull = (value: unknown, depth = 0): boolean =>
  value === null ||
  (typeof value === "object" && depth < 4 * deepest &&
    Object.values(value).some((member) => hasNull(member, depth + 1)))

/** Removes the nulls standing for absent members. */
export const withoutNulls = (schemaOf: () => Schema, value: unknown): unknown => {
  if (typeof value !== "object" || !hasNull(value)) return value
  const schema = schemaOf()
  return read([schema], schema, value, 0)
}

// One object for a schema whose root is a choice, a conjunction or a list of values: providers refuse a whole request
// because of one such tool. The object has every choice's members; members required by all choices are required; a
// description states which members go together. It accepts more than the schema, which still decodes the arguments.

/** Keywords refused by providers at a schema's root. */
const refusedAtRoot = ["allOf", "anyOf", "const", "enum", "not", "oneOf"] as const

/** Bounds on the choices read, in number and in nested levels. */
const mostChoices = 64
const deepestChoice = 16

const longestDescription = 2000

/** One of a schema's possible objects. */
interface Choice {
  readonly properties: Schema
  readonly required: ReadonlySet<string>
  readonly additional: unknown
}

type Choices = Result.Result<ReadonlyArray<Choice>, string>

const open: Choice = { properties: {}, required: new Set(), additional: undefined }

const names = (value: unknown): ReadonlyArray<string> =>
  Array.isArray(value) ? value.filter((name) => typeof name === "string") : []

const exactly = (value: unknown): ReadonlyArray<Choice> =>
  Json.isObject(value)
    ? [{
      properties: Object.fromEntries(Object.entries(value).map(([name, only]) => [name, { const: only }])),
      required: new Set(Object.keys(value)),
      additional: false
    }]
    : []

const isSame = (left: unknown, right: unknown): boolean => JSON.stringify(left) === JSON.stringify(right)

/**
 * Combines the schemas of two objects' further members. A ban in one object would forbid the other's members, so it is
 * kept only if both have the same members.
 */
const further = (left: Choice, right: Choice): unknown => {
  const isBan = [left, right].every(({ additional }) => additional === false)
  if (isBan && isSame(Object.keys(left.properties).sort(), Object.keys(right.properties).sort())) return false
  const schemas = [left.additional, right.additional].filter((additional) => Json.isObject(additional))
  return schemas.every((schema) => isSame(schema, schemas[0])) ? schemas[0] : { allOf: schemas }
}

/** Combines two objects. */
const both = (left: Choice, right: Choice): Choice => ({
  properties: {
    ...left.properties,
    ...Object.fromEntries(
      Object.entries(right.properties).map(([name, schema]) => {
        const known = Object.hasOwn(left.properties, name) ? left.properties[name] : undefined
        return [name, known === undefined || isSame(known, schema) ? schema : { allOf: [known, schema] }]
      })
    )
  },
  required: new Set([...left.required, ...right.required]),
  additional: further(left, right)
})

const isBare = ({ additional, properties, required }: Choice): boolean =>
  additional === undefined && required.size === 0 && Object.keys(properties).length === 0

const product = (left: Choices, right: Choices): Choices =>
  Result.flatMap(left, (left) =>
    Result.flatMap(right, (right) =>
      left.length * right.length > mostChoices
        ? Result.fail(`it has more than ${mostChoices} choices`)
        : Result.succeed(
          left.flatMap((one) => right.map((other) => isBare(one) ? other : isBare(other) ? one : both(one, other)))
        )))

const isOfObjects = ({ type }: Schema): boolean =>
  type === undefined || type === "object" || (Array.isArray(type) && type.includes("object"))

/** Returns a schema's possible objects, or the reason they cannot be determined. */
const choices = (given: unknown, root: Schema, depth: number): Choices => {
  if (!Json.isObject(given)) return Result.succeed(given === false ? [] : [open])
  const schema = resolved(given, root)
  if (schema === undefined) return Result.fail(`its reference ${JSON.stringify(given["$ref"])} has no target`)
  if (depth > deepestChoice) return Result.fail("it refers to itself endlessly")
  const { additionalProperties: additional, allOf, anyOf, const: only, enum: values, oneOf } = schema
  if (!isOfObjects(schema)) return Result.succeed([])
  if ("const" in schema) return Result.succeed(exactly(only))
  if (Array.isArray(values)) return Result.succeed(values.flatMap(exactly))
  const own: Choice = {
    properties: members(schema, "properties"),
    required: new Set(names(schema["required"])),
    additional
  }
  const parts = Array.isArray(allOf) ? allOf.map((part) => choices(part, root, depth + 1)) : []
  const options = [anyOf, oneOf].flatMap((list): ReadonlyArray<Choices> =>
    Array.isArray(list)
      ? [Result.map(Result.all(list.map((option) => choices(option, root, depth + 1))), (found) => found.flat())]
      : []
  )
  return [...parts, ...options].reduce(product, Result.succeed([own]))
}

/** Combines several choices' schemas for one member. */
const either = (schemas: ReadonlyArray<unknown>): unknown => {
  const distinct = schemas.filter((schema, index) => schemas.findIndex((other) => isSame(schema, other)) === index)
  if (distinct.length === 1) return distinct[0]
  const fixed = distinct.map((schema) => {
    const { const: only, enum: values, type, ...rest } = Json.isObject(schema) ? schema : { type: true }
    const list = only === undefined ? values : [only]
    return Array.isArray(list) && Object.keys(rest).length === 0 ? { list, type } : undefined
  })
  const isFixed = fixed.every((one) => one !== undefined && isSame(one.type, fixed[0]?.type))
  if (!isFixed) return { anyOf: distinct }
  const type = fixed[0]?.type
  return { ...(type === undefined ? {} : { type }), enum: [...new Set(fixed.flatMap((one) => one?.list ?? []))] }
}

/** Describes a choice's members in text: fixed members with their value, optional ones with a mark. */
const inWords = ({ properties, required }: Choice): string => {
  const all = [...new Set([...Object.keys(properties), ...required])]
  const said = all.map((name) => {
    const { const: only, enum: values } = members(properties, name)
    const value = only ?? (Array.isArray(values) && values.length === 1 ? values[0] : undefined)
    const fixed = value === undefined ? "" : `: ${JSON.stringify(value)}`
    return `${name}${required.has(name) ? "" : "?"}${fixed}`
  })
  return `{ ${said.join(", ")} }`
}

const together = (found: ReadonlyArray<Choice>): string => {
  const told = [...new Set(found.map(inWords))]
  const text = `Give the members of one of these, and no others: ${told.join(" or ")}`
  return told.length < 2 ? "" : text.length > longestDescription ? `${text.slice(0, longestDescription)}…` : text
}

const merged = (root: Schema, found: ReadonlyArray<Choice>): Schema => {
  const { description, title, $defs, definitions } = root
  const all = [...new Set(found.flatMap(({ properties }) => Object.keys(properties)))]
  const schemasOf = (name: string) =>
    found.flatMap(({ properties }) => Object.hasOwn(properties, name) ? [properties[name]] : [])
  const [first = open] = found
  const required = [...first.required].filter((name) => found.every((choice) => choice.required.has(name)))
  const isOpen = found.some(({ additional }) => additional !== false)
  const additional = found.every((choice) => isSame(choice.additional, first.additional)) ? first.additional : undefined
  const said = [description, together(found), "not" in root ? `Not: ${JSON.stringify(root["not"])}` : ""]
    .filter((text) => typeof text === "string" && text !== "")
  return {
    type: "object",
    ...(title === undefined ? {} : { title }),
    ...(said.length === 0 ? {} : { description: said.join("\n") }),
    properties: Object.fromEntries(all.map((name) => [name, either(schemasOf(name))])),
    ...(required.length === 0 ? {} : { required }),
    ...(isOpen
      ? additional === undefined ? {} : { additionalProperties: additional }
      : { additionalProperties: false }),
    ...($defs === undefined ? {} : { $defs }),
    ...(definitions === undefined ? {} : { definitions })
  }
}

/** Returns `true` if a schema's root is an object, and no choice. */
export const isObject = (schema: Schema): boolean => {
  const root = resolved(schema, schema)
  return root?.["type"] === "object" && !("anyOf" in root) && !("oneOf" in root) && Result.isSuccess(objectOf(schema))
}

const made = new WeakMap<Schema, Result.Result<Schema, string>>()

/**
 * Returns the object schema for a tool's parameters, as sent to providers, or the reason it cannot be made. Made once
 * per schema.
 */
export const objectOf = (schema: Schema): Result.Result<Schema, string> => {
  const known = made.get(schema) ?? makeObject(schema)
  made.set(schema, known)
  return known
}

const makeObject = (schema: Schema): Result.Result<Schema, string> => {
  const isPlain = schema["$ref"] === undefined && refusedAtRoot.every((keyword) => !(keyword in schema))
  // Gemini writes types in capitals.
  if (isPlain && (schema["type"] === "object" || schema["type"] === "OBJECT")) return Result.succeed(schema)
  if (isPlain && isOfObjects(schema)) return Result.succeed({ ...schema, type: "object" })
  return Result.flatMap(choices(schema, schema, 0), (found) => {
    if (found.length === 0) return Result.fail("no object matches its schema")
    const one = merged(resolved(schema, schema) ?? schema, found)
    const lost = danglingReferences(one).find(({ reference }) =>
      !danglingReferences(schema).some((before) => before.reference === reference)
    )
    return lost === undefined
      ? Result.succeed(one)
      : Result.fail(`it refers to ${lost.reference}, a part missing from the combined object`)
  })
}
