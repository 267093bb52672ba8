/**
 * Possible call outcomes: a value, a failure, a question to the user, or the end of the run. Outcomes and parts
 * returned by a handler carry an invisible mark, so a handler may also return its own object of the same shape. An
 * executor's outcome is checked by shape. A question may declare the type of its answer.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as JsonSchema from "effect/JsonSchema"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as SchemaRepresentation from "effect/SchemaRepresentation"
import * as Json from "../json.ts"
import { checkNames, jsonCodec, jsonSchemaOf, type NamesOf } from "./schema.ts"
import * as Values from "./values.ts"

/** Finish reasons, for message and response schemas. Public as `Response.FinishReason`. */
export const FinishReason = Schema.Literals(["stop", "length", "tool_calls", "content_filter", "error", "other"])

/**
 * The handler produced a value.
 *
 * @category models
 */
export interface Ok<out A = unknown> {
  readonly _tag: "Ok"
  /** Result, as returned by the handler. */
  readonly value: A
}

/**
 * The call failed: with the handler's own reason as reported, or with a {@link ToolError}.
 *
 * @category models
 */
export interface Error<out E = unknown> {
  readonly _tag: "Error"
  /** Failure reported by the handler, or a `ToolError`. */
  readonly error: E
}

/**
 * The handler asks the user; the run ends and waits for the answer.
 *
 * @category models
 */
export interface AskUser {
  readonly _tag: "AskUser"
  /** Question text. */
  readonly question: string
  /** Choices for the user; may be empty. */
  readonly opts: ReadonlyArray<unknown>
  /** JSON Schema of the answer. Without a schema, any answer is accepted. */
  readonly answerSchema?: JsonSchema.JsonSchema
  /** Time the question waits, in milliseconds. Unlimited by default. */
  readonly expiresInMillis?: number
  /** Answer used once that time is over. */
  readonly defaultAnswer?: unknown
  /** State for restarting the handler with its answer. Never included in events. */
  readonly resume?: unknown
}

/**
 * The handler ends the run with its own reason and a last result.
 *
 * @category models
 */
export interface Halt<out A = unknown> {
  readonly _tag: "Halt"
  /** Halt reason of the run. */
  readonly reason: string
  /** Last result, read by the model like any other. */
  readonly result: A
}

/** The outcome of a call to any tool. */
export type Outcome = Ok | Error | AskUser | Halt

/** A result part: text, an image or a file. Images and files come by `url` or as base64 `data`. */
export type Part =
  | {
    readonly type: "text"
    /** The text. */
    readonly text: string
  }
  | {
    readonly type: "image"
    /** Address fetched by the provider. Give this or `data`. */
    readonly url?: string
    /** Base64 content. Give this or `url`. */
    readonly data?: string
    /** Media type, such as `"image/png"`. */
    readonly mediaType?: string
    /** Settings for one protocol, under its name as the key. */
    readonly metadata?: Json.JsonObject
  }
  | {
    readonly type: "file"
    /** Address fetched by the provider. Give this or `data`. */
    readonly url?: string
    /** Base64 content. Give this or `url`. */
    readonly data?: string
    /** Media type, such as `"application/pdf"`. */
    readonly mediaType?: string
    /** File name, read by the model. */
    readonly filename?: string
    /** Settings for one protocol, under its name as the key. */
    readonly metadata?: Json.JsonObject
  }

/**
 * A result made of parts. See `Tool.content`.
 *
 * @category models
 */
export interface Content {
  readonly _tag: "Content"
  /** Parts, in the order the model reads them. */
  readonly parts: ReadonlyArray<Part>
}

/** The decision of an `onToolError` function, in an Effect. */
export type ErrorDecision<E = never> =
  | {
    readonly _tag: "Continue"
    /** Value answering the call, as a result. */
    readonly replacement: unknown
  }
  | { readonly _tag: "Halt" }
  | {
    readonly _tag: "Fail"
    /** Error the run fails with. */
    readonly error: E
  }

/**
 * Decisions for an `onToolError` function: continue with a replacement result, end the run as a tool error, or fail the
 * run with a typed error.
 *
 * `continue(x)` answers the call with `x` as a result, without `isError`. If `x` is an error, it is written as a plain
 * value, possibly `{}`. To write the text `"continue"` writes, use `continue(Tool.error(error))`; the tool's `failure`
 * schema and `Policy.crashes` do not apply.
 *
 * **Example** (Continuing with another result)
 *
 * ```ts import.meta.vitest
 * import { Message, Tool, ToolRunner } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const flaky = Tool.make("flaky", { parameters: {}, handler: () => Effect.fail("no connection") })
 * const { messages } = await Effect.runPromise(
 *   ToolRunner.run([Message.toolCall("c0", "flaky")], [flaky], {
 *     onToolError: () => Effect.succeed(Tool.ErrorDecision.continue("try again later"))
 *   })
 * )
 *
 * messages[0]?.content // => "try again later"
 * ```
 *
 * @category constructors
 */
export const ErrorDecision: {
  /**
   * Answers the call with the replacement as its result, written like a handler's value, without `isError`. An error,
   * too, is written as a plain value: pass `Tool.error(error)` for the text `"continue"` writes.
   */
  readonly continue: (replacement: unknown) => ErrorDecision
  /** Ends the run with outcome `ToolFailed`. */
  readonly halt: ErrorDecision
  /** Fails the run with this error, which appears in the run's type. */
  readonly fail: <E>(error: E) => ErrorDecision<E>
} = {
  continue: (replacement) => ({ _tag: "Continue", replacement }),
  halt: { _tag: "Halt" },
  fail: (failure) => ({ _tag: "Fail", error: failure })
}

/**
 * Runtime error for a call that failed without a failure reported by its handler. `cause` keeps the thrown value (a
 * non-`Error` value as `{ _tag: "Thrown", value }`). `detail` is safe to show to a model.
 *
 * - `handler_raised`, `handler_exit`: the handler threw, or interrupted itself
 * - `timeout`: the call exceeded its time limit
 * - `invalid_return`: the handler returned something other than a result
 * - `not_found`: the tool has no handler
 * - `encoding_failed`: the result cannot be written as text
 * - `unknown_tool`, `invalid_arguments`, `truncated_arguments`: the call itself cannot be run
 * - `denied`: the tool's `validate` or `authorize` denied the call; `metadata.gate` names the gate
 * - `cancelled`: the call was answered without running to its end
 * - `unknown_effect`: the run was interrupted during the call, whose effect is unknown (`Tool.Options.afterCrash`)
 * - `abandoned`: the call was stopped, but its handler did not end in time and may still take effect. `metadata.after`
 *   is `"timeout"` after a timeout
 *
 * @category errors
 */
export class ToolError extends Schema.TaggedError<ToolError>("heddle/Tool/ToolError")("ToolError", {
  /** Kind of error. */
  reason: Schema.Literals([
    "handler_raised",
    "handler_exit",
    "timeout",
    "invalid_return",
    "not_found",
    "encoding_failed",
    "unknown_tool",
    "invalid_arguments",
    "truncated_arguments",
    "denied",
    "cancelled",
    "unknown_effect",
    "abandoned"
  ]),
  /** Tool name. */
  toolName: Schema.optionalKey(Schema.String),
  /** Call id. */
  toolCallId: Schema.optionalKey(Schema.String),
  /** Message text, safe to show to a model. */
  detail: Schema.optionalKey(Schema.String),
  /**
   * Value thrown by the handler, or the error an argument failed with. A thrown non-`Error` value appears as
   * `{ _tag: "Thrown", value }`.
   */
  cause: Schema.optionalKey(Json.Opaque),
  /** Further facts: the `gate` of a denial with its return value, or `after` of an abandoned call. */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
}) {
  override get message(): string {
    const subject = this.toolName === undefined ? "tool error" : `tool error (${this.toolName})`
    return `${subject}: ${this.reason}${this.detail === undefined ? "" : `: ${this.detail}`}`
  }
}

Json.addError("ToolError", ToolError)

/** The call an error is about. */
interface Subject {
  readonly id: string
  readonly name: string
}

/** Builds the error for one call. */
export const toolError = (
  reason: ToolError["reason"],
  call: Subject,
  fields: Partial<Pick<ToolError, "detail" | "cause" | "metadata">> = {}
): ToolError => new ToolError({ reason, toolName: call.name, toolCallId: call.id, ...fields })

/**
 * Builds the error for a call exceeding its time limit. `subject` names the slow part, if not the call itself; `which`
 * names one of several limits.
 */
export const timedOut = (call: Subject, millis: number, subject = "", which = ""): ToolError =>
  toolError("timeout", call, { detail: `${subject}timed out after ${millis} ms${which}` })

/**
 * Builds the error for a call stopped with `error` whose handler has not ended: its effect is unknown, and nothing
 * waits for the handler any longer.
 */
export const abandoned = (call: Subject, { detail, reason }: ToolError): ToolError =>
  toolError("abandoned", call, {
    detail: `${detail === undefined ? "" : `${detail}; `}it has not stopped, and may still take effect`,
    metadata: { after: reason }
  })

/** Returns `true` for a call abandoned by a stop. Unlike a timeout, that is not a failure. */
const isLeftByStop = ({ metadata, reason }: ToolError): boolean =>
  reason === "abandoned" && metadata?.["after"] !== "timeout"

/** Reasons for not running a call, or not to its end. */
const unrun: ReadonlySet<ToolError["reason"]> = new Set([
  "unknown_tool",
  "invalid_arguments",
  "truncated_arguments",
  "denied",
  "cancelled",
  "unknown_effect"
])

/** Returns `true` if a call crashed: its handler reported no failure, and the call was neither refused nor stopped. */
export const isCrash = (error: unknown): error is ToolError =>
  error instanceof ToolError && !unrun.has(error.reason) && !isLeftByStop(error)

/** Returns an error's message. A denial gives the gate's message, without a prefix. */
export const reasonText = (error: ToolError): string =>
  error.reason === "denied" ? error.detail ?? error.message : error.message

const outcomeMark = Symbol.for("heddle/Tool/Outcome")

/** Marks an outcome returned by a handler. */
export const brand = <O extends object>(outcome: O): O => Object.defineProperty(outcome, outcomeMark, { value: true })

export const isBranded = (value: unknown): value is Outcome =>
  typeof value === "object" && value !== null && outcomeMark in value

const endMark = Symbol.for("heddle/Tool/EndsRun")

/** Marks a failure ending the run, regardless of the error policy. */
export const endingRun = <O extends Error>(outcome: O): O => Object.defineProperty(outcome, endMark, { value: true })

export const isEndingRun = (outcome: Error): boolean => endMark in outcome

/** The outcome of a call whose nested run waits. Callers' handlers never return it themselves. */
export interface Suspended {
  readonly _tag: "Suspended"
  /** The nested run's suspensions, each under its id path from the call's run. */
  readonly suspensions: ReadonlyArray<{ readonly id: string }>
}

const suspendedMark = Symbol.for("heddle/Tool/Suspended")

/** State left by a handler with a question, and the call whose next attempt gets that state with the answer. */
export interface Resume {
  readonly state: unknown
  readonly idempotencyKey: string
  readonly attempt: number
}

const resumes = new WeakMap<object, Resume>()

/** Attaches a state to a suspension. It is not a field, so copies lack it: the state stays in the process. */
export const resumable = <S extends object>(suspension: S, resume: Resume): S => {
  resumes.set(suspension, resume)
  return suspension
}

export const resumeOf = (suspension: object | undefined): Resume | undefined => suspension && resumes.get(suspension)

export const suspended = (suspensions: Suspended["suspensions"]): Suspended =>
  Object.defineProperty({ _tag: "Suspended", suspensions }, suspendedMark, { value: true })

export const isSuspended = (value: unknown): value is Suspended =>
  typeof value === "object" && value !== null && suspendedMark in value

/** Returns `true` for a value with one of the four legal shapes and the fields consumers rely on. */
export const isWellFormed = (value: unknown): value is Outcome => {
  if (!Json.isObject(value)) return false
  switch (value["_tag"]) {
    case "Ok":
      return "value" in value
    case "Error":
      return "error" in value
    case "AskUser":
      return typeof value["question"] === "string" && Array.isArray(value["opts"]) &&
        (value["answerSchema"] === undefined || Json.isObject(value["answerSchema"])) &&
        (value["expiresInMillis"] === undefined || typeof value["expiresInMillis"] === "number")
    case "Halt":
      return typeof value["reason"] === "string" && value["reason"] !== "" && "result" in value
    default:
      return false
  }
}

/** Reasons used by the runtime and its rules; a handler using one would forge an end of the run. */
export const reservedHaltReasons: ReadonlySet<string> = new Set([
  "ask_user",
  "max_turns",
  "halt_when",
  "tool_error",
  "cancelled",
  "completed",
  "error",
  "manual_tool_calls",
  "approval_requested",
  "budget",
  "output",
  "inbox",
  "fallback",
  "prepareStep",
  "loops",
  "guard",
  "compaction"
])

/** Key of the authoritative parts. The parts visible to a handler are its own copy. */
const contentMark: unique symbol = Symbol.for("heddle/Tool/Content")

const partFields = ["type", "text", "url", "data", "mediaType", "filename"] as const

/** Copies a part as JSON, independent of later changes to the original. */
const copied = (part: unknown): unknown => {
  if (!Json.isObject(part)) return part
  const { metadata } = part
  const own: Record<string, unknown> = {}
  for (const field of partFields) if (part[field] !== undefined) own[field] = part[field]
  if (!Json.isObject(metadata)) return own
  const json = Json.toJson(metadata)
  return Json.isObject(json) ? { ...own, metadata: json } : own
}

/** Copies parts, except reasoning. */
export const owned = <P extends { readonly type: string }>(parts: ReadonlyArray<P>): ReadonlyArray<P> =>
  parts.map((part) => part.type === "reasoning" ? part : copied(part) as P)

const problem = (part: unknown): string | undefined => {
  const { data, filename, mediaType, text, type, url } = Json.isObject(part) ? part : {}
  if (type === "text") return typeof text === "string" ? undefined : "has no text"
  if (type !== "image" && type !== "file") return "must be a text, image or file part"
  if (data === undefined && url === undefined) return "needs a url, or base64 data"
  const isText = (value: unknown) => value === undefined || typeof value === "string"
  if (!isText(data) || !isText(url)) return "must have a string as its url or data"
  return isText(mediaType) && isText(filename) ? undefined : "must have strings as its mediaType and filename"
}

/** Builds a result from parts. Throws a `TypeError` naming the unusable part. */
export const content = (parts: ReadonlyArray<unknown>): Content => {
  if (!Array.isArray(parts)) throw new TypeError("Tool.content takes a list of parts")
  const own = Array.from(parts as ReadonlyArray<unknown>, copied)
  for (const [index, part] of own.entries()) {
    const found = problem(part)
    if (found !== undefined) throw new TypeError(`Tool.content: part ${index} ${found}`)
  }
  const made: Content = { _tag: "Content", parts: Json.copy(own as ReadonlyArray<Part>) }
  partLists.add(own)
  return Object.defineProperty(made, contentMark, { value: own })
}

/** Part lists made by `content`. */
const partLists = new WeakSet<object>()

export const isParts = (value: unknown): value is ReadonlyArray<Part> => partLists.has(value as object)

const isContent = (value: unknown): value is { readonly [contentMark]: ReadonlyArray<Part> } =>
  typeof value === "object" && value !== null && contentMark in value

/** Returns the parts of a content result, bare or in an `Ok`, or `undefined` for any other result. */
export const partsOf = (value: unknown): ReadonlyArray<Part> | undefined => {
  if (isContent(value)) return value[contentMark]
  return isBranded(value) && value._tag === "Ok" ? partsOf(value.value) : undefined
}

// A question with a typed answer. The type travels as a JSON Schema, since another process with nothing else may take
// the answer. A type that cannot travel is refused when the question is asked.

/**
 * Question options, besides the text.
 *
 * @category models
 */
export interface AskUserOptions<A> {
  /** Choices for the user, or any data for a user interface. Answers are not restricted to these. */
  readonly opts?: ReadonlyArray<unknown>
  /** Answer type. A mismatched answer is refused as `invalid_answer`, and the question stays open. */
  readonly answer?: Schema.Codec<A, any>
  /** Time the question waits, counted from asking; a number is milliseconds. Unlimited by default. */
  readonly expiresIn?: Duration.Input | "infinity"
  /**
   * Answer used when `expiresIn` is over and `Session.expire` is called. Without a default, the model reads that the
   * question was not answered.
   */
  readonly defaultAnswer?: NoInfer<A>
  /**
   * Handler state, as plain JSON. With a state, the answer does not go to the model: the handler is restarted as a new
   * attempt of the call, with the same `idempotencyKey`, and gets both as `call.resumed`. It may ask again. The state
   * is recorded in the journal, and never appears in events or server answers. Context updates from before the question
   * are dropped. None by default.
   */
  readonly resume?: unknown
}

const knownQuestion = {
  opts: Values.described(Values.list, "a list of choices"),
  answer: Values.described(Values.schema, "a Schema"),
  expiresIn: Values.duration,
  defaultAnswer: Values.anything,
  resume: Values.anything
} satisfies NamesOf<AskUserOptions<unknown>>

const isList = <A>(options: ReadonlyArray<unknown> | AskUserOptions<A>): options is ReadonlyArray<unknown> =>
  Array.isArray(options) || !Json.isObject(options)

const misuseOfAskUser = (problem: string): never => {
  throw new TypeError(`Tool.askUser: ${problem}`)
}

/** Returns the field for a time limit. Unlimited questions have no such field: infinity is not valid JSON. */
const limit = (input: unknown): { readonly expiresInMillis?: number } => {
  const duration = Values.readDuration(input)
  if (duration === undefined || !Duration.isPositive(duration)) {
    return misuseOfAskUser(`expiresIn must be a duration above zero or "infinity"; got: ${Json.render(input)}`)
  }
  return Duration.isFinite(duration) ? { expiresInMillis: Duration.toMillis(duration) } : {}
}

const typed = <A>(answer: Schema.Codec<A, any>): JsonSchema.JsonSchema => {
  const schema = jsonSchemaOf(jsonCodec(answer))
  const decoder = Result.try(() => validator(schema))
  return Result.isSuccess(decoder)
    ? schema
    : misuseOfAskUser(`the JSON Schema of the answer cannot be checked: ${String(decoder.failure)}`)
}

export const question = <A>(words: string, options: ReadonlyArray<unknown> | AskUserOptions<A>): AskUser => {
  if (isList(options)) return { _tag: "AskUser", question: words, opts: options }
  checkNames("Tool.askUser", options, knownQuestion)
  const { answer, defaultAnswer, expiresIn, opts = [], resume } = options
  return {
    _tag: "AskUser",
    question: words,
    opts,
    ...(answer === undefined ? {} : { answerSchema: typed(answer) }),
    ...(expiresIn === undefined ? {} : limit(expiresIn)),
    ...(defaultAnswer === undefined
      ? {}
      : { defaultAnswer: answer === undefined ? defaultAnswer : Schema.encodeSync(jsonCodec(answer))(defaultAnswer) }),
    ...(resume === undefined ? {} : { resume: Json.toJson(resume) })
  }
}

/** Makes a checker for answers against a JSON Schema. Throws for an unreadable schema. */
const validator = (jsonSchema: Json.JsonObject) => {
  const { $defs: definitions, ...schema } = jsonSchema
  const read = SchemaRepresentation.fromJsonSchemaDocument(
    {
      dialect: "draft-2020-12",
      schema,
      definitions: (definitions ?? {}) as JsonSchema.Definitions
    },
    { patterns: "apply" }
  )
  return Schema.decodeUnknownEffect(read as Schema.Codec<unknown>, { errors: "all", onExcessProperty: "error" })
}

/** Returns `true` if answers can be checked against a JSON Schema. */
export const isCheckable = (jsonSchema: Json.JsonObject): boolean =>
  Result.isSuccess(Result.try(() => validator(jsonSchema)))

/** Decodes an answer, or fails with the mismatch. A person may have typed JSON. */
export const decodeAnswer = (jsonSchema: Json.JsonObject, value: unknown): Effect.Effect<unknown, string> =>
  Effect.suspend(() => {
    const check = validator(jsonSchema)
    const meant = typeof value === "string" ? Result.getOrUndefined(Json.parse(value)) : undefined
    return check(value).pipe(
      Effect.catch((error) => meant === undefined ? Effect.fail(error) : Effect.mapError(check(meant), () => error))
    )
  }).pipe(
    Effect.sandbox,
    Effect.mapError((cause) => cause.reasons.map((reason) => "error" in reason ? String(reason.error) : "").join("; "))
  )
