/**
 * Questions to a client's user: MCP forms for Heddle's questions and approvals, and the interpretation of answers.
 */
import * as McpSchema from "effect/ai/McpSchema"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Json from "../../internal/json.ts"

/** A form for the client's user. */
export interface Form {
  readonly message: string
  readonly requestedSchema: Json.JsonObject
  /** `true` if a single field stands for a non-object answer. */
  readonly isWrapped: boolean
}

/** A user's answer, or its absence. */
export type Reply =
  | { readonly action: "accept"; readonly content: Json.JsonObject }
  | { readonly action: "decline" }
  | { readonly action: "cancel" }

/** Field for a non-object answer. */
const field = "answer"

const primitives: ReadonlySet<unknown> = new Set(["string", "number", "integer", "boolean"])

/** JSON Schema keywords allowed in a form field. */
const words = [
  "type",
  "title",
  "description",
  "enum",
  "enumNames",
  "default",
  "minLength",
  "maxLength",
  "minimum",
  "maximum",
  "format"
] as const

const formats: ReadonlySet<unknown> = new Set(["email", "uri", "date", "date-time"])

/** Returns the form field for a schema, if forms support it. */
const fieldOf = (schema: unknown): Json.JsonObject | undefined => {
  if (!Json.isObject(schema) || !primitives.has(schema["type"])) return undefined
  const { enum: values, format } = schema
  const isText = schema["type"] === "string"
  if (
    values !== undefined && !(isText && Array.isArray(values) && values.every((value) => typeof value === "string"))
  ) {
    return undefined
  }
  return Object.fromEntries(
    words.flatMap((word) =>
      schema[word] === undefined || word === "format" && !formats.has(format) ? [] : [[word, schema[word]]]
    )
  )
}

const object = (properties: Json.JsonObject, required: ReadonlyArray<unknown>): Json.JsonObject => ({
  type: "object",
  properties,
  required
})

/**
 * Returns a question's form: the fields of a flat object schema, otherwise a single field of the schema's primitive
 * type, or for text.
 */
export const formOf = (
  message: string,
  opts: ReadonlyArray<unknown> = [],
  schema: Json.JsonObject | undefined
): Form => {
  const { properties, required } = schema ?? {}
  if (schema?.["type"] === "object" && Json.isObject(properties)) {
    const fields = Object.entries(properties).map(([name, property]) => [name, fieldOf(property)] as const)
    if (fields.every(([, property]) => property !== undefined)) {
      const requested = object(Object.fromEntries(fields), Array.isArray(required) ? required : [])
      return { message, requestedSchema: requested, isWrapped: false }
    }
  }
  const isChoice = schema === undefined && opts.length > 0 && opts.every((choice) => typeof choice === "string")
  const text = { type: "string", ...(isChoice ? { enum: opts } : {}) }
  return { message, requestedSchema: object({ [field]: fieldOf(schema) ?? text }, [field]), isWrapped: true }
}

/** Maximum length of arguments shown in a question. */
const longestArguments = 1_000

const shown = (args: unknown): string => {
  const json = JSON.stringify(args)
  return json.length > longestArguments ? `${json.slice(0, longestArguments)}…` : json
}

/** Returns the form to allow a call. Without a given question it asks its own, showing the arguments if known. */
export const approvalOf = (name: string, args: unknown, question?: string): Form => ({
  message: question ?? `Allow ${name}${args === undefined ? "" : ` with ${shown(args)}`}?`,
  requestedSchema: object({ approve: { type: "boolean", title: "Allow this call" } }, ["approve"]),
  isWrapped: false
})

/** Returns `true` if a reply allows a call. */
export const isApproval = (reply: Reply): boolean => reply.action === "accept" && reply.content["approve"] === true

/** Returns the answer in a form. */
export const valueOf = ({ isWrapped }: Form, content: Json.JsonObject): unknown => isWrapped ? content[field] : content

/** Returns `true` if the requesting client can show forms. */
export const canAsk = ({ clientCapabilities }: McpSchema.McpRequestContext["Service"]): boolean => {
  const { elicitation } = clientCapabilities
  return elicitation !== undefined && (elicitation.form !== undefined || elicitation.url === undefined)
}

const paramsOf = ({ message, requestedSchema }: Form) => ({ mode: "form" as const, message, requestedSchema })

const decode = Schema.decodeUnknownEffect(McpSchema.ElicitRequestFormParams)

/** Builds the answer requests a modern client receives as its call's result. */
export const requests = (forms: ReadonlyMap<string, Form>): Record<string, McpSchema.McpInputRequest> =>
  Object.fromEntries(
    Array.from(forms, ([key, form]) => [key, { method: "elicitation/create" as const, params: paramsOf(form) }])
  )

/** Reads a client's answer. An invalid answer counts as a cancellation. */
export const replyOf = (response: unknown): Reply => {
  const { action, content } = Json.isObject(response) ? response : {}
  if (action === "accept") return { action, content: Json.isObject(content) ? content : {} }
  return { action: action === "decline" ? "decline" : "cancel" }
}

/**
 * Asks a legacy client, whose call stays open meanwhile. Returns `undefined` for a modern client, and a cancellation if
 * the client is unreachable. Without an answer in time the question counts as declined.
 */
export const ask = (form: Form, expiresAt = Infinity): Effect.Effect<Reply | undefined> =>
  Effect.gen(function*() {
    const client = Option.getOrUndefined(yield* Effect.serviceOption(McpSchema.McpServerClient))
    if (client === undefined) return undefined
    const reverse = yield* client.getClient
    const params = yield* Effect.orDie(decode(paramsOf(form)))
    const late = Effect.flatMap(Clock.currentTimeMillis, (now) => Effect.sleep(expiresAt - now))
    const answer = expiresAt === Infinity ? reverse.elicit(params) : Effect.raceFirst(reverse.elicit(params), late)
    const exit = yield* Effect.exit(answer)
    if (Exit.isSuccess(exit) && exit.value === undefined) return { action: "decline" as const }
    return Exit.isSuccess(exit) ? replyOf(exit.value) : { action: "cancel" as const }
  }).pipe(Effect.scoped)
