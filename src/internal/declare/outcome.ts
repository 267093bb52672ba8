/**
 * The possible outcomes of a call: a value, a failure, a question to the user, or an end of the run. Outcomes and
 * parts that a handler returns carry an invisible mark, so that a handler may also return an object of its own that
 * looks like one. What an executor yields is checked by its shape. A question may have the type of its answer.
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

/** The finish reasons, for the schemas of messages and of responses. Public as `Response.FinishReason`. */
export const FinishReason = Schema.Literals(["stop", "length", "tool_calls", "content_filter", "error", "other"])

/**
 * The handler produced a value.
 *
 * @category models
 * @since 0.1.0
 */
export interface Ok<out A = unknown> {
  readonly _tag: "Ok"
  /** The result, as the handler returned it. */
  readonly value: A
}

/**
 * The call failed: with the handler's own reason as it reported it, or with a {@link ToolError}.
 *
 * @category models
 * @since 0.1.0
 */
export interface Error<out E = unknown> {
  readonly _tag: "Error"
  /** The failure that the handler reported, or a `ToolError`. */
  readonly error: E
}

/**
 * The handler asks the user; the run ends and waits for the answer.
 *
 * @category models
 * @since 0.1.0
 */
export interface AskUser {
  readonly _tag: "AskUser"
  /** The text of the question. */
  readonly question: string
  /** The choices of the user; empty if none were given. */
  readonly opts: ReadonlyArray<unknown>
  /** The JSON Schema of the answer. Any answer is taken without one. */
  readonly answerSchema?: JsonSchema.JsonSchema
  /** The time that the question waits, in milliseconds. For ever without it. */
  readonly expiresInMillis?: number
  /** The answer that counts once that time is over. */
  readonly defaultAnswer?: unknown
  /** The state with which the handler is started again once it has its answer. It is in no event. */
  readonly resume?: unknown
}

/**
 * The handler ends the run with a reason of its own and a last result.
 *
 * @category models
 * @since 0.1.0
 */
export interface Halt<out A = unknown> {
  readonly _tag: "Halt"
  /** The run's halt reason. */
  readonly reason: string
  /** The last result, which the model reads like any other. */
  readonly result: A
}

/** The outcome of a call of any tool. */
export type Outcome = Ok | Error | AskUser | Halt

/** A part of a result: text, an image or a file, each image and file by its `url` or its base64 `data`. */
export type Part =
  | {
    readonly type: "text"
    /** The text. */
    readonly text: string
  }
  | {
    readonly type: "image"
    /** The address from which the provider fetches it. Give this or `data`. */
    readonly url?: string
    /** Its content in base64. Give this or `url`. */
    readonly data?: string
    /** The media type, such as `"image/png"`. */
    readonly mediaType?: string
    /** Settings for one protocol, under a key named after it. */
    readonly metadata?: Json.JsonObject
  }
  | {
    readonly type: "file"
    /** The address from which the provider fetches it. Give this or `data`. */
    readonly url?: string
    /** Its content in base64. Give this or `url`. */
    readonly data?: string
    /** The media type, such as `"image/png"`. */
    readonly mediaType?: string
    /** The name that the model reads. */
    readonly filename?: string
    /** Settings for one protocol, under a key named after it. */
    readonly metadata?: Json.JsonObject
  }

/**
 * A result that is made of parts. See `Tool.content`.
 *
 * @category models
 * @since 0.1.0
 */
export interface Content {
  readonly _tag: "Content"
  /** The parts in the order in which the model reads them. */
  readonly parts: ReadonlyArray<Part>
}

/** The decision of an `onToolError` function, in an Effect. */
export type ErrorDecision<E = never> =
  | {
    readonly _tag: "Continue"
    /** The value that answers the call, as a result. */
    readonly replacement: unknown
  }
  | { readonly _tag: "Halt" }
  | {
    readonly _tag: "Fail"
    /** The error that the run fails with. */
    readonly error: E
  }

/**
 * The decisions of an `onToolError` function: continue with a replacement result, end the run as a tool error, or
 * fail the run with a typed error of its own.
 *
 * `continue(x)` answers the call with `x` as a result, without `isError`. An error that is given as `x` is written as
 * a plain value, which may be `{}`: `continue(Tool.error(error))` writes the text that `"continue"` writes, but that
 * the tool's `failure` schema and `Policy.crashes` are not applied.
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
 * @since 0.1.0
 */
export const ErrorDecision: {
  /**
   * The call is answered with the replacement as its result: it is written as a value of the handler would be, without
   * `isError`. An error is written as a plain value, too: give `Tool.error(error)` for the text that `"continue"`
   * writes.
   */
  readonly continue: (replacement: unknown) => ErrorDecision
  /** The run ends with the outcome `ToolFailed`. */
  readonly halt: ErrorDecision
  /** The run fails with this error, which is in its type. */
  readonly fail: <E>(error: E) => ErrorDecision<E>
} = {
  continue: (replacement) => ({ _tag: "Continue", replacement }),
  halt: { _tag: "Halt" },
  fail: (failure) => ({ _tag: "Fail", error: failure })
}

/**
 * The runtime's error for a call that failed without the handler reporting a failure. `cause` keeps what was thrown (a
 * thrown value that is no `Error` stands as `{ _tag: "Thrown", value }`), `detail` is safe to show to a model.
 *
 * - `handler_raised`, `handler_exit`: the handler threw, or ended by interruption of its own
 * - `timeout`: it took longer than its limit
 * - `invalid_return`: it returned something that is no result
 * - `not_found`: the tool has no handler
 * - `encoding_failed`: its result cannot be written as text
 * - `unknown_tool`, `invalid_arguments`, `truncated_arguments`: the call itself cannot be run
 * - `denied`: its tool's `validate` or `authorize` did not let it run; `metadata.gate` names which
 * - `cancelled`: the call was answered without having been run to its end
 * - `unknown_effect`: its run was interrupted while it ran: its effect is not known (`Tool.Options.afterCrash`)
 * - `abandoned`: it was stopped, and its handler had not ended when the time for that was over: it may still take
 *   effect. `metadata.after` is `"timeout"` where its time was up
 *
 * @category errors
 * @since 0.1.0
 */
export class ToolError extends Schema.TaggedError<ToolError>("heddle/Tool/ToolError")("ToolError", {
  /** The kind of error. */
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
  /** The name of the tool. */
  toolName: Schema.optionalKey(Schema.String),
  /** The id of the call. */
  toolCallId: Schema.optionalKey(Schema.String),
  /** The message. It is safe to show to a model. */
  detail: Schema.optionalKey(Schema.String),
  /**
   * The value that the handler threw, or the error that an argument failed on. A thrown value that is no `Error`
   * stands as `{ _tag: "Thrown", value }`.
   */
  cause: Schema.optionalKey(Json.Opaque),
  /** Further facts: the `gate` of a denial, with what the gate returned. */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
}) {
  override get message(): string {
    const subject = this.toolName === undefined ? "tool error" : `tool error (${this.toolName})`
    return `${subject}: ${this.reason}${this.detail === undefined ? "" : `: ${this.detail}`}`
  }
}

Json.addError("ToolError", ToolError)

/** The call that an error is about. */
interface Subject {
  readonly id: string
  readonly name: string
}

/** The error of one call. */
export const toolError = (
  reason: ToolError["reason"],
  call: Subject,
  fields: Partial<Pick<ToolError, "detail" | "cause" | "metadata">> = {}
): ToolError => new ToolError({ reason, toolName: call.name, toolCallId: call.id, ...fields })

/**
 * The error of a call that took longer than it may. `subject` is what took so long, where that is not the call itself,
 * and `which` names one of several limits.
 */
export const timedOut = (call: Subject, millis: number, subject = "", which = ""): ToolError =>
  toolError("timeout", call, { detail: `${subject}timed out after ${millis} ms${which}` })

/**
 * The error of a call that was stopped with `error`, and whose handler has not ended: nothing is known of its effect,
 * and nothing waits for it any longer.
 */
export const abandoned = (call: Subject, { detail, reason }: ToolError): ToolError =>
  toolError("abandoned", call, {
    detail: `${detail === undefined ? "" : `${detail}; `}it has not stopped, and may still take effect`,
    metadata: { after: reason }
  })

/** Tells whether a call was abandoned by a stop, which is no failure: a call that took too long is one. */
const isLeftByStop = ({ metadata, reason }: ToolError): boolean =>
  reason === "abandoned" && metadata?.["after"] !== "timeout"

/** Reasons for which a call was not run, or not to its end. */
const unrun: ReadonlySet<ToolError["reason"]> = new Set([
  "unknown_tool",
  "invalid_arguments",
  "truncated_arguments",
  "denied",
  "cancelled",
  "unknown_effect"
])

/** Returns `true` if a call broke: it ran, and its handler did not report how it ended. */
export const isCrash = (error: unknown): error is ToolError =>
  error instanceof ToolError && !unrun.has(error.reason) && !isLeftByStop(error)

/** Returns an error's reason without its prefix. A denial gives the gate's message. */
export const reasonText = (error: ToolError): string =>
  error.reason === "denied" ? error.detail ?? error.message : error.message

const outcomeMark = Symbol.for("heddle/Tool/Outcome")

/** Marks an outcome that a handler returns as one. */
export const brand = <O extends object>(outcome: O): O => Object.defineProperty(outcome, outcomeMark, { value: true })

export const isBranded = (value: unknown): value is Outcome =>
  typeof value === "object" && value !== null && outcomeMark in value

const endMark = Symbol.for("heddle/Tool/EndsRun")

/** Marks a failure that ends the run, whatever the error policy says. */
export const endingRun = <O extends Error>(outcome: O): O => Object.defineProperty(outcome, endMark, { value: true })

export const isEndingRun = (outcome: Error): boolean => endMark in outcome

/** The outcome of a call whose nested run waits. It is no outcome of a handler of the caller's. */
export interface Suspended {
  readonly _tag: "Suspended"
  /** The suspensions of the nested run, under the path of ids that leads there from the run of the call. */
  readonly suspensions: ReadonlyArray<{ readonly id: string }>
}

const suspendedMark = Symbol.for("heddle/Tool/Suspended")

/** The state that a handler left with a question, and its call, whose next attempt gets it with the answer. */
export interface Resume {
  readonly state: unknown
  readonly idempotencyKey: string
  readonly attempt: number
}

const resumes = new WeakMap<object, Resume>()

/** Leaves a state with a suspension. It is no field of it, and so in none of its copies: it stays in the process. */
export const resumable = <S extends object>(suspension: S, resume: Resume): S => {
  resumes.set(suspension, resume)
  return suspension
}

export const resumeOf = (suspension: object | undefined): Resume | undefined => suspension && resumes.get(suspension)

export const suspended = (suspensions: Suspended["suspensions"]): Suspended =>
  Object.defineProperty({ _tag: "Suspended", suspensions }, suspendedMark, { value: true })

export const isSuspended = (value: unknown): value is Suspended =>
  typeof value === "object" && value !== null && suspendedMark in value

/** Returns `true` if a value has one of the four legal shapes, with the fields a consumer relies on. */
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

/** Reasons the runtime gives itself; a handler that could use one would forge an end of the run. */
export const reservedHaltReasons: ReadonlySet<string> = new Set([
  "ask_user",
  "max_turns",
  "halt_when",
  "tool_error",
  "cancelled",
  "completed",
  "error",
  "manual_tool_calls",
  "approval_requested"
])

/** The key of the parts that count. Those that a handler sees are its own. */
const contentMark: unique symbol = Symbol.for("heddle/Tool/Content")

const partFields = ["type", "text", "url", "data", "mediaType", "filename"] as const

/** A copy of a part that is JSON: later changes of the given part do not show in it. */
const copied = (part: unknown): unknown => {
  if (!Json.isObject(part)) return part
  const { metadata } = part
  const own: Record<string, unknown> = {}
  for (const field of partFields) if (part[field] !== undefined) own[field] = part[field]
  if (!Json.isObject(metadata)) return own
  const json = Json.toJson(metadata)
  return Json.isObject(json) ? { ...own, metadata: json } : own
}

/** Copies of parts. */
export const owned = <P extends { readonly type: string }>(parts: ReadonlyArray<P>): ReadonlyArray<P> =>
  parts.map((part) => part.type === "reasoning" ? part : copied(part) as P)

const problem = (part: unknown): string | undefined => {
  const { data, filename, mediaType, text, type, url } = Json.isObject(part) ? part : {}
  if (type === "text") return typeof text === "string" ? undefined : "has no text"
  if (type !== "image" && type !== "file") return "must be a text, image or file part"
  if (data === undefined && url === undefined) return "needs a url, or base64 data"
  const isText = (value: unknown) => value === undefined || typeof value === "string"
  if (!isText(data) || !isText(url)) return "must have its url or its data as a text"
  return isText(mediaType) && isText(filename) ? undefined : "must have its mediaType and its filename as texts"
}

/** A result made of parts. Throws a `TypeError` that names the part that cannot be used. */
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

/** The lists that results are made of. */
const partLists = new WeakSet<object>()

export const isParts = (value: unknown): value is ReadonlyArray<Part> => partLists.has(value as object)

const isContent = (value: unknown): value is { readonly [contentMark]: ReadonlyArray<Part> } =>
  typeof value === "object" && value !== null && contentMark in value

/** Returns the parts of a content result, bare or in an `Ok`, and `undefined` for another result. */
export const partsOf = (value: unknown): ReadonlyArray<Part> | undefined => {
  if (isContent(value)) return value[contentMark]
  return isBranded(value) && value._tag === "Ok" ? partsOf(value.value) : undefined
}

// A question with the type of its answer. The type travels as a JSON Schema, since the answer may be taken by another
// process that has nothing else; a type that cannot travel is refused when the question is asked.

/**
 * The options of a question, besides its words.
 *
 * @category models
 * @since 0.1.0
 */
export interface AskUserOptions<A> {
  /** The choices of the user, or any data that a user interface reads. An answer is not held to it. */
  readonly opts?: ReadonlyArray<unknown>
  /** The type of the answer. One that does not fit is refused as `invalid_answer`, and the question stays open. */
  readonly answer?: Schema.Codec<A, any>
  /**
   * The time that the question waits, from when it is asked; a number is milliseconds. Without it, it waits for ever.
   */
  readonly expiresIn?: Duration.Input | "infinity"
  /**
   * The answer that counts once `expiresIn` is over and `Session.expire` is called. Without it the model reads that it
   * had none.
   */
  readonly defaultAnswer?: NoInfer<A>
  /**
   * A state of the handler, as plain JSON. With it the answer is not what the model reads: the handler is started
   * again, as a new attempt of the call with the same `idempotencyKey`, and gets both as `call.resumed`. It may ask
   * again. The state is recorded in the journal, and is in no event and no answer of a server. What the handler added
   * to the context before it asked does not count. None by default.
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

/** A question without a time limit has no field for it: infinity is no JSON. */
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

/** Checks an answer against a JSON Schema. Throws for one that cannot be read. */
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

/** Tells whether answers can be checked against a JSON Schema. */
export const isCheckable = (jsonSchema: Json.JsonObject): boolean =>
  Result.isSuccess(Result.try(() => validator(jsonSchema)))

/** The answer as it counts, or why it does not fit. What a person typed may be meant as JSON. */
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
