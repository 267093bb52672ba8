/**
 * Questions to the user of a client: forms of MCP made of Heddle's questions and approvals, and what the answers mean.
 *
 * @since 0.1.0
 */
import * as McpSchema from "effect/ai/McpSchema"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Json from "../../internal/json.ts"

/** A form for the user of a client. */
export interface Form {
  readonly message: string
  readonly requestedSchema: Json.JsonObject
  /** `true` where one field stands for an answer that is no object. */
  readonly isWrapped: boolean
}

/** An answer of a user, or the word that there is none. */
export type Reply =
  | { readonly action: "accept"; readonly content: Json.JsonObject }
  | { readonly action: "decline" }
  | { readonly action: "cancel" }

/** The field of an answer that is no object. */
const field = "answer"

const primitives: ReadonlySet<unknown> = new Set(["string", "number", "integer", "boolean"])

/** The words of JSON Schema that a form has of a field. */
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

/** Returns the field of a form for a schema, if forms have such fields. */
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

/** Returns the form of a question: of its schema where that is flat, else of one text. */
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

/** Limit of the characters of the arguments in a question. */
const longestArguments = 1_000

const shown = (args: unknown): string => {
  const json = JSON.stringify(args)
  return json.length > longestArguments ? `${json.slice(0, longestArguments)}…` : json
}

/** Returns the form by which a call is allowed. Its arguments are shown where they are known. */
export const approvalOf = (name: string, args: unknown, question?: string): Form => ({
  message: question ?? `Allow ${name}${args === undefined ? "" : ` with ${shown(args)}`}?`,
  requestedSchema: object({ approve: { type: "boolean", title: "Allow this call" } }, ["approve"]),
  isWrapped: false
})

/** Tells whether a reply allows a call. */
export const isApproval = (reply: Reply): boolean => reply.action === "accept" && reply.content["approve"] === true

/** Returns the answer that a form has. */
export const valueOf = ({ isWrapped }: Form, content: Json.JsonObject): unknown => isWrapped ? content[field] : content

/** Tells whether the client of a request can show forms. */
export const canAsk = ({ clientCapabilities }: McpSchema.McpRequestContext["Service"]): boolean => {
  const { elicitation } = clientCapabilities
  return elicitation !== undefined && (elicitation.form !== undefined || elicitation.url === undefined)
}

const paramsOf = ({ message, requestedSchema }: Form) => ({ mode: "form" as const, message, requestedSchema })

const decode = Schema.decodeUnknownEffect(McpSchema.ElicitRequestFormParams)

/** The request for answers that a client of the modern era gets as the result of its call. */
export const requests = (forms: ReadonlyMap<string, Form>): Record<string, McpSchema.McpInputRequest> =>
  Object.fromEntries(
    Array.from(forms, ([key, form]) => [key, { method: "elicitation/create" as const, params: paramsOf(form) }])
  )

/** Reads the answer of a client. What is none is a cancellation. */
export const replyOf = (response: unknown): Reply => {
  const { action, content } = Json.isObject(response) ? response : {}
  if (action === "accept") return { action, content: Json.isObject(content) ? content : {} }
  return { action: action === "decline" ? "decline" : "cancel" }
}

/**
 * Asks a client of the legacy era, whose call stays open meanwhile. Succeeds with nothing in the modern era, and with a
 * cancellation where the client cannot be reached. Without an answer in time the question counts as declined.
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
