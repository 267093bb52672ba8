/**
 * Describes and decodes model and user input. A tool declares parameters in one of four forms: struct fields, a Schema,
 * a Standard Schema from another library, or a raw JSON Schema. Each becomes a JSON Schema for the model and a decoder
 * for its arguments, both made once per tool. Anything else is refused when the tool is made: a wrong guess would be
 * sent to the model, and nothing would check the arguments coming back.
 */
import * as Effect from "effect/Effect"
import type * as JsonSchema from "effect/JsonSchema"
import * as Predicate from "effect/Predicate"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as SchemaAST from "effect/SchemaAST"
import * as SchemaIssue from "effect/SchemaIssue"
import type { StandardJSONSchemaV1, StandardSchemaV1 } from "effect/StandardSchema"
import * as Json from "../json.ts"
import { withoutNulls } from "./jsonSchema.ts"
import { type Kind, type OptionKinds, shown } from "./values.ts"

// JSON, read by a Schema. The codec is Schema's own JSON codec except for numbers: Schema's codec writes `NaN` and the
// infinities as words and reads them back, so a model would see three words beside each number, and again in the error
// after writing `"5"`. Here a number is a finite JSON number.

const finite = Schema.Number.check(Schema.isFinite())

/** Schema's transformation for reading numbers of any kind from JSON. */
const fromWords = Schema.toCodecJson(Schema.Number).ast.encoding?.[0].transformation

const changed = <A extends SchemaAST.AST>(ast: A, changes: Partial<A>): A =>
  Object.assign(Object.create(Object.getPrototypeOf(ast)), ast, changes)

/** Returns a number schema reading plain JSON numbers. Its error message asks for a number and nothing else. */
const asNumber = (ast: SchemaAST.Number): SchemaAST.Number =>
  new SchemaAST.Number(
    { message: "Expected a number", ...ast.annotations },
    [...(ast.checks ?? []), ...(finite.ast.checks ?? [])] as unknown as SchemaAST.Checks,
    undefined,
    ast.context
  )

/**
 * Returns a converter to the written schema with finite numbers. A schema may contain itself, so each part is made
 * once.
 */
const finiteNumbers = (): (ast: SchemaAST.AST) => SchemaAST.AST => {
  const made = new Map<SchemaAST.AST, SchemaAST.AST>()
  const change = (ast: SchemaAST.AST): SchemaAST.AST => {
    const known = made.get(ast) ?? changedOf(ast)
    made.set(ast, known)
    return known
  }
  const changedOf = (ast: SchemaAST.AST): SchemaAST.AST => {
    const { encoding } = ast
    const last = encoding?.at(-1)
    if (encoding === undefined || last === undefined) return inside(ast)
    if (SchemaAST.isNumber(ast) && last.transformation === fromWords) return asNumber(ast)
    const to = change(last.to)
    if (to === last.to) return ast
    const links = [...encoding.slice(0, -1), new SchemaAST.Link(to, last.transformation)]
    return changed(ast, { encoding: links as unknown as SchemaAST.Encoding })
  }
  const inside = (ast: SchemaAST.AST): SchemaAST.AST => {
    switch (ast._tag) {
      case "Number":
        return asNumber(ast)
      case "Arrays":
        return changed(ast, { elements: ast.elements.map(change), rest: ast.rest.map(change) })
      case "Objects":
        return changed(ast, {
          propertySignatures: ast.propertySignatures.map(({ name, type }) =>
            new SchemaAST.PropertySignature(name, change(type))
          ),
          indexSignatures: ast.indexSignatures.map(({ parameter, type }) =>
            new SchemaAST.IndexSignature(change(parameter), change(type))
          )
        })
      case "Union":
        return changed(ast, { types: ast.types.map(change) })
      case "Suspend":
        return new SchemaAST.Suspend(() => change(ast.thunk()), ast.annotations, undefined, undefined, ast.context)
      default:
        return ast
    }
  }
  return change
}

/** Returns the end of an encoding chain. */
const written = (ast: SchemaAST.AST): SchemaAST.AST => {
  const last = ast.encoding?.at(-1)
  return last === undefined ? ast : written(last.to)
}

const mayBeObject = (ast: SchemaAST.AST): boolean => {
  switch (ast._tag) {
    case "Objects":
    case "ObjectKeyword":
    case "Unknown":
    case "Any":
    case "Declaration":
    case "Suspend":
      return true
    case "Union":
      return ast.types.some((type) => mayBeObject(written(type)))
    default:
      return false
  }
}

/** Returns `true` if a schema may read a JSON object. The codec is made only if the schema itself leaves that open. */
const readsObject = (schema: Schema.Constraint): boolean =>
  SchemaAST.isObjects(written(schema.ast)) || mayBeObject(written(Schema.toCodecJson(schema).ast))

/** Returns the codec from JSON to a schema's decoded type. */
export const jsonCodec = <S extends Schema.Constraint>(schema: S): Schema.toCodecJson<S> =>
  Schema.make(finiteNumbers()(Schema.toCodecJson(schema).ast), { schema })

/**
 * Returns `true` if a decoded value shares no object with the codec's input: a codec rebuilds structs, records and
 * lists, and passes on unknown values unchanged.
 */
const isFresh = (codec: Schema.Constraint): boolean => {
  const seen = new Set<SchemaAST.AST>()
  const isMade = (ast: SchemaAST.AST): boolean => {
    if (seen.has(ast)) return true
    seen.add(ast)
    const last = ast.encoding?.at(-1)
    if (last !== undefined) return isMade(last.to)
    switch (ast._tag) {
      case "Unknown":
      case "Any":
      case "ObjectKeyword":
      case "Declaration":
        return false
      case "Arrays":
        return [...ast.elements, ...ast.rest].every(isMade)
      case "Objects": {
        const members = [...ast.propertySignatures, ...ast.indexSignatures]
        return members.length > 0 && members.every(({ type }) => isMade(type))
      }
      case "Union":
        return ast.types.every(isMade)
      case "Suspend":
        return isMade(ast.thunk())
      default:
        return true
    }
  }
  return isMade(codec.ast)
}

// Schemas from other libraries, by their common interface: a Standard Schema with a JSON Schema. The JSON Schema is
// requested once, when the tool is made; the library itself validates the model's arguments, so its transforms and
// checks apply.

/** A Standard Schema with a JSON Schema: Zod 4, ArkType, or Valibot through `toStandardJsonSchema`. */
interface StandardSchema<Input = unknown, Output = Input> {
  readonly "~standard":
    & StandardSchemaV1<Input, Output>["~standard"]
    & StandardJSONSchemaV1<Input, Output>["~standard"]
}

/** The handler's value, with asynchronous transforms awaited. */
type Output<S extends StandardSchemaV1> = Awaited<StandardSchemaV1.InferOutput<S>>

const propsOf = (input: unknown): Json.JsonObject | undefined => {
  if ((typeof input !== "object" && typeof input !== "function") || input === null) return undefined
  const props: unknown = Reflect.get(input, "~standard")
  return Json.isObject(props) ? props : undefined
}

/** Returns `true` for a schema from another library. An ArkType schema is a function. */
const isStandard = (input: unknown): boolean => propsOf(input) !== undefined

const isComplete = (input: unknown): input is StandardSchema => {
  const props = propsOf(input)
  return typeof props?.["validate"] === "function" && Json.isObject(props["jsonSchema"]) &&
    typeof props["jsonSchema"]["input"] === "function"
}

const vendorOf = (input: unknown): string => Json.render(propsOf(input)?.["vendor"] ?? "unknown")

const raise = ({ code }: { readonly code: string }): never => {
  throw new Error(`the type has no JSON form (${code})`)
}

interface ValibotAction {
  readonly errors: ReadonlyArray<string> | undefined
  readonly jsonSchema: JsonSchema.JsonSchema
}

/**
 * Options by library. ArkType omits types without a JSON form, leaving the model to guess, so these are refused.
 * Valibot refuses actions without a JSON Schema form, such as `trim`; these are left out, since Valibot applies them
 * anyway.
 */
const libraryOptions: { readonly [vendor: string]: Record<string, unknown> } = {
  arktype: { fallback: { date: raise, domain: raise, proto: raise, symbolKey: raise } },
  valibot: {
    overrideAction: ({ errors, jsonSchema }: ValibotAction) => errors === undefined ? undefined : jsonSchema
  }
}

/** Returns the JSON Schema for the model's arguments, or the reason none exists. */
const standardJsonSchema = (schema: StandardSchema): Result.Result<JsonSchema.JsonSchema, string> =>
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
      `parameters must have a JSON Schema: ${Json.render(cause)}; use types with a JSON form, and transforms for others`
  })

const segment = (part: PropertyKey | StandardSchemaV1.PathSegment): PropertyKey =>
  typeof part === "object" ? part.key : part

const issueOf = ({ message, path }: StandardSchemaV1.Issue): SchemaIssue.Issue => {
  const issue = new SchemaIssue.InvalidValue({ message })
  return path === undefined || path.length === 0 ? issue : new SchemaIssue.Pointer(path.map(segment), issue)
}

const unexplained: StandardSchemaV1.Issue = { message: "the arguments do not match the parameters" }

const refused = (issues: ReadonlyArray<StandardSchemaV1.Issue>): Schema.SchemaError => {
  const [first = unexplained, ...others] = issues
  return new Schema.SchemaError(
    new SchemaIssue.Composite(Schema.Unknown.ast, [issueOf(first), ...others.map(issueOf)])
  )
}

/** Returns the validated value. A result with issues is a failure, even with a value. */
const judged = (result: StandardSchemaV1.Result<unknown>): Effect.Effect<unknown, Schema.SchemaError> => {
  if (result.issues !== undefined && result.issues !== null) return Effect.fail(refused(Array.from(result.issues)))
  const { value } = result
  return Predicate.isPromiseLike(value) ? Effect.promise(() => Promise.resolve(value)) : Effect.succeed(value)
}

/** Validates synchronously if the library does. An error thrown by a transform is a defect. */
const validated = (schema: StandardSchema, input: unknown): Effect.Effect<unknown, Schema.SchemaError> => {
  try {
    const result = schema["~standard"].validate(Json.copy(input))
    if (!Predicate.isPromiseLike(result)) return judged(result)
    // The work has begun. If nothing ever awaits the promise, its rejection must not end the process.
    const settled = Promise.resolve(result)
    settled.catch(() => {})
    return Effect.flatMap(Effect.promise(() => settled), judged)
  } catch (cause) {
    return Effect.die(cause)
  }
}

const remedies: { readonly [vendor: string]: string } = {
  valibot: "give toStandardJsonSchema(schema), from @valibot/to-json-schema",
  zod: "update Zod to 4.2 or later"
}

/** Returns the JSON Schema and decoder for a foreign schema, or the reason for refusing it. */
const fromStandard = (
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
    const remedy = remedies[vendor] ?? "use a library whose schemas have ~standard.validate and ~standard.jsonSchema"
    return Result.fail(`parameters must have a JSON Schema, and this ${vendor} schema has none: ${remedy}`)
  }
  return Result.map(standardJsonSchema(schema), (jsonSchema) => ({
    jsonSchema,
    decode: (input) => validated(schema, input)
  }))
}

/** A part of a value not matching its schema. */
export interface Misfit {
  /** Location, as in `"items[0].title"`. Empty for the whole value. */
  readonly path: string
  /** Description of the expected form. */
  readonly reason: string
}

const place = (path: ReadonlyArray<PropertyKey>): string =>
  path.reduce<string>((before, key) => {
    if (typeof key === "number") return `${before}[${key}]`
    const name = String(key).slice(0, longestName)
    return before === "" ? name : `${before}.${name}`
  }, "")

/** Most misfits reported, and the longest text per misfit. */
const [mostMisfits, longestReason] = [10, 200]

const issues = SchemaIssue.makeFormatterStandardSchemaV1({
  leafHook: (issue) => issue._tag === "MissingKey" ? "Expected a value" : SchemaIssue.defaultLeafHook(issue)
})

/** Returns the parts named by a schema error, at most ten. */
export const misfits = ({ issue }: Schema.SchemaError): ReadonlyArray<Misfit> =>
  issues(issue).issues.slice(0, mostMisfits).map(({ message, path = [] }) => ({
    path: place(path.map(segment)),
    reason: message.slice(0, longestReason)
  }))

/** Describes misfits within a value, as in `"arguments.items[0]: Expected a string"`. */
export const describeMisfits = (name: string, found: ReadonlyArray<Misfit>): string =>
  found.map(({ path, reason }) => `${name}${path === "" ? "" : `.${path}`}: ${reason}`).join("; ")

// Tool parameters, in any of the four forms.

/** Forms for declaring parameters. */
export type Input =
  | Schema.Constraint
  | Schema.Struct.Fields
  | StandardSchema<any, any>
  | JsonSchema.JsonSchema

/** The handler's argument type for parameters declared as `P`. */
export type Type<P> = P extends Schema.Constraint ? P["Type"]
  : P extends StandardSchema<any, any> ? Output<P>
  : P extends Schema.Struct.Fields ? Schema.Struct<P>["Type"]
  : Json.JsonObject

/** The services for decoding parameters declared as `P`. */
export type Services<P> = P extends Schema.Constraint ? P["DecodingServices"]
  : P extends StandardSchema<any, any> ? never
  : P extends Schema.Struct.Fields ? Schema.Struct<P>["DecodingServices"]
  : never

export interface Parameters<A, R> {
  /** Schema read by the model. */
  readonly jsonSchema: JsonSchema.JsonSchema
  /** Decodes arguments. The result shares nothing with the input, which remains in the thread and in events. */
  readonly decode: (input: unknown) => Effect.Effect<A, Schema.SchemaError, R>
}

const localReference = /^#\/\$defs\/([^/]+)$/

/** Inlines a named root schema: providers expect the object itself at the root, not a reference. */
const atRoot = (schema: JsonSchema.JsonSchema, definitions: JsonSchema.Definitions): JsonSchema.JsonSchema => {
  const [, name] = localReference.exec(String(schema["$ref"])) ?? []
  const { $ref: _, ...beside } = schema
  return name === undefined || definitions[name] === undefined ? schema : { ...definitions[name], ...beside }
}

/** Returns the JSON Schema of a codec's input. */
export const jsonSchemaOf = (codec: Schema.Constraint): JsonSchema.JsonSchema => {
  const { definitions, schema: root } = Schema.toJsonSchemaDocument(codec)
  return Object.keys(definitions).length === 0 ? root : { ...atRoot(root, definitions), $defs: definitions }
}

/** Computes `make` at the first read: a tool declared but never offered costs nothing. */
const once = <A>(make: () => A): () => A => {
  let made: { readonly value: A } | undefined
  return () => (made ??= { value: make() }).value
}

/** Replaces an empty schema, refused by providers, with an object of any members. */
const sayingSomething = (schema: JsonSchema.JsonSchema): JsonSchema.JsonSchema =>
  Object.keys(schema).length === 0 ? { type: "object" } : schema

const fromSchema = (schema: Schema.Constraint): Parameters<unknown, unknown> => {
  const codec = once(() => jsonCodec(schema))
  const jsonSchema = once(() => sayingSomething(jsonSchemaOf(codec())))
  const isMadeAnew = once(() => isFresh(codec()))
  const decoder = once(() => Schema.decodeUnknownEffect(codec(), { errors: "all" }))
  return {
    get jsonSchema() {
      return jsonSchema()
    },
    decode: (input) => decoder()(isMadeAnew() ? input : Json.copy(input))
  }
}

const objects = Schema.decodeUnknownEffect(Schema.Record(Schema.String, Schema.Unknown))

/**
 * Returns `true` for a struct without fields. For Schema it is any value but null, for a model and a handler an object
 * without members.
 */
const isEmpty = ({ ast }: Schema.Constraint): boolean =>
  SchemaAST.isObjects(ast) && ast.propertySignatures.length === 0 && ast.indexSignatures.length === 0 &&
  ast.checks === undefined && ast.encoding === undefined

const none: Parameters<{}, never> = {
  jsonSchema: { type: "object", properties: {} },
  decode: (input) => Effect.mapEager(objects(input), () => ({}))
}

const forms =
  "parameters must be struct fields, a Schema or a JSON Schema object, or a Standard Schema (Zod, ArkType, Valibot); use {} for none"

const isPlain = (input: Json.JsonObject): boolean => {
  const prototype = Object.getPrototypeOf(input)
  return prototype === null || Object.getPrototypeOf(prototype) === null
}

const isRecord = (value: unknown): boolean => Json.isObject(value)
const isFlag = (value: unknown): boolean => typeof value === "boolean"

/** Keywords identifying a JSON Schema without a type, as opposed to fields in some other notation. */
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

/** Lowercases a type: schemas in Gemini's own form have capitals. */
const lower = (type: unknown): unknown => typeof type === "string" ? type.toLowerCase() : type

const isType = (type: unknown): boolean => types.has(lower(type))

const isSchemaOfAny = (value: unknown): boolean => Schema.isSchema(value) || isStandard(value)

/** Returns `true` if a JSON Schema allows objects. A missing keyword excludes nothing. */
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

/** Returns the reason a schema cannot be the parameters themselves. */
const noObject = ({ type }: Json.JsonObject): string => {
  const what = typeof type === "string" ? `a schema of type "${type}"` : "a schema no object matches"
  return `parameters must describe an object, and this is ${what}: make it a member, as in { value: … }`
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
        `parameters must be a JSON Schema in every part; properties.${name} is a library's schema: give the fields alone`
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

/** Describes a field without a Schema. */
const misfit = (name: string, value: unknown): string => {
  if (isStandard(value)) return `${name} is a schema of another library: declare the whole object with that library`
  return `${name} must be a Schema, such as Schema.String; got: ${show(value)}`
}

/** Reads parameters, or returns the reason they cannot be used. A null for an optional member reads as absent. */
export const parameters = (input: unknown): Result.Result<Parameters<any, any>, string> =>
  Result.map(declared(input), (given) => ({
    get jsonSchema() {
      return given.jsonSchema
    },
    decode: (value) => given.decode(withoutNulls(() => given.jsonSchema, value))
  }))

const declared = (input: unknown): Result.Result<Parameters<any, any>, string> => {
  if (Schema.isSchema(input)) {
    if (isEmpty(input)) return Result.succeed(none)
    return readsObject(input)
      ? Result.succeed(fromSchema(input))
      : Result.fail(noObject(fromSchema(input).jsonSchema))
  }
  if (isStandard(input)) return Result.flatMap(fromStandard(input), told)
  if (!Json.isObject(input) || !isPlain(input)) return Result.fail(forms)
  const fields = Object.entries(input)
  if (fields.every(([, field]) => Schema.isSchema(field))) {
    return declared(Schema.Struct(input as Schema.Struct.Fields))
  }
  if (isJsonSchema(input) && !fields.some(([, field]) => isSchemaOfAny(field))) return raw(input)
  const wrong = fields.flatMap(([name, field]) => Schema.isSchema(field) ? [] : [misfit(name, field)])
  return Result.fail(`parameters.${wrong[0]}. ${forms}`)
}

/** Returns the encoder for a handler's outcomes, by the tool's schema. */
export const encoder = (schema: Schema.Constraint): (value: unknown) => Effect.Effect<unknown, unknown, any> => {
  const encode = once(() => Schema.encodeUnknownEffect(Schema.toCodecJson(schema as Schema.Top)))
  return (value) => encode()(value)
}

// Options of each kind have one list, kept in step with their type by the compiler.

/** The option list of a type: `{ … } satisfies NamesOf<Options>` has exactly its options. */
export type NamesOf<Options> = { readonly [Name in keyof Options]-?: Kind }

/**
 * Throws for an unknown option, which an untyped program would otherwise never notice, and for a value of the wrong
 * kind. The error names the nearest known option, or the expected value. `undefined` counts as left out.
 */
export const checkNames = (subject: string, options: unknown, kinds: OptionKinds, path = ""): void => {
  if (!Json.isObject(options)) return
  for (const name in options) {
    if (!Object.hasOwn(options, name)) continue
    const value = options[name]
    if (value === undefined) continue
    const kind = Object.hasOwn(kinds, name) ? kinds[name] : undefined
    if (kind === undefined) return refuse(subject, name, kinds)
    checkValue(subject, name, `${path}${name}`, kind, value)
  }
}

/** Checks a value against its kind, and its parts against theirs. */
const checkValue = (subject: string, option: string, path: string, kind: Kind, value: unknown): void => {
  if (!kind.accepts(value)) return refuseValue(subject, path, kind, value)
  const { each, inner } = kind.partsOf(value)
  if (inner !== undefined) checkNames(`${option} of ${subject}`, value, inner, `${path}.`)
  if (each === undefined || typeof value !== "object" || value === null) return
  const isList = Array.isArray(value)
  for (const [key, one] of Object.entries(value)) {
    const place = isList ? `${path}[${key}]` : `${path}.${key.slice(0, longestName)}`
    if (isList || one !== undefined) checkValue(subject, option, place, each, one)
  }
}

const refuseValue = (subject: string, option: string, kind: Kind, value: unknown): never => {
  // Runs begin in several ways, so the message names no function.
  const where = / ?a run$/.test(subject) ? "" : `${subject.replace(/^.* of /, "")}: `
  const got = kind.isShown ? `; got: ${shown(kind, value)}` : ""
  throw new TypeError(`${where}${option} must be ${kind.right}${got}`)
}

const refuse = (subject: string, name: string, known: OptionKinds): never => {
  const names = Object.keys(known)
  const group = names.find((outer) => {
    const inner = known[outer]?.inner
    return inner !== undefined && Object.hasOwn(inner, name)
  })
  const near = nearest(name, names)
  const remedy = group !== undefined
    ? `it is an option of ${JSON.stringify(group)}`
    : near === undefined
    ? `its options are ${names.join(", ")}`
    : `did you mean "${near}"?`
  throw new TypeError(`${subject} has no option ${JSON.stringify(name.slice(0, longestName))}; ${remedy}`)
}

/** Longest part of a name written and compared, in characters: options may come from data. */
const longestName = 64

/** Returns the name fewest edits away, if within a third of the longer name's letters. */
export const nearest = (given: string, names: ReadonlyArray<string>): string | undefined => {
  const wanted = plain(given.slice(0, longestName))
  let near: string | undefined
  let fewest = Infinity
  for (const name of names) {
    const known = plain(name.slice(0, longestName))
    const edits = distance(wanted, known)
    if (edits < fewest && edits <= Math.max(1, Math.floor(Math.max(wanted.length, known.length) / 3))) {
      near = name
      fewest = edits
    }
  }
  return near
}

/** Normalizes naming styles: `max_turns` equals `maxTurns`. */
const plain = (name: string): string => name.replaceAll(/[_-]/g, "").toLowerCase()

/** Returns the edit distance between two words. */
const distance = (left: string, right: string): number => {
  let row = Array.from({ length: right.length + 1 }, (_, index) => index)
  for (let i = 1; i <= left.length; i++) {
    const next = [i]
    for (let j = 1; j <= right.length; j++) {
      const replaced = (row[j - 1] ?? 0) + (left[i - 1] === right[j - 1] ? 0 : 1)
      next.push(Math.min(replaced, (row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1))
    }
    row = next
  }
  return row[right.length] ?? 0
}
