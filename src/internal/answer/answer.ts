/**
 * Turns a call's outcome into its one answer: the text for the model, the raw result for the consumer, and the halt, if
 * any. Every failure passes the caller's error policy exactly once, whatever its origin. Only the
 * policy's `fail` leaves as an error.
 */
import * as Cause from "effect/Cause"
import type * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import type * as Types from "effect/Types"
import type * as Event from "../../Event.ts"
import * as Message from "../../Message.ts"
import type * as Tool from "../../Tool.ts"
import * as ToolOutcomes from "../declare/outcome.ts"
import { isCrash, ToolError, toolError } from "../declare/outcome.ts"
import type { OnToolError } from "../declare/tool.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import * as ToolCalls from "../hear/toolCalls.ts"
import * as Json from "../json.ts"
import * as Telemetry from "../telemetry.ts"
import * as Contents from "./content.ts"
import type { Subject } from "./content.ts"
import * as ErrorFields from "./errorFields.ts"
import * as OpenCalls from "./openCalls.ts"
import { ChatFailed } from "./subAgent.ts"
import * as Teller from "./teller.ts"

/** Policies and services answering the calls of a batch. */
export interface Answering<E, R> extends Contents.Writing {
  /** Error policy for tools without their own. */
  readonly onToolError: OnToolError<E, R>
  readonly clock: Clock.Clock
}

export interface Answer {
  readonly raw: Tool.Outcome
  readonly message: Message.Message
  readonly tail: OpenCalls.Tail
  readonly halt?: Event.Halt
  /** Kind of handler failure: reported or crashed. Absent for a call not run to its end. */
  readonly failure?: "reported" | "crashed"
  /** Reason of the answered `ToolError`, or `"cancelled"` for a cancelled sub-agent. */
  readonly code?: ToolError["reason"]
  /** Public fields of the error the call crashed with. The answer itself may differ. */
  readonly cause?: Json.JsonObject
  /** Fields a successful handler adds to the context. */
  readonly contextUpdate?: Json.JsonObject
  /** `true` if the call was answered before the run was resumed. */
  readonly isReplayed?: boolean
}

/** A call in a batch, with its position. A call that never runs is neither shared nor exclusive. */
export interface Numbered extends Subject {
  readonly index: number
  readonly isExclusive?: boolean
  /** `true` if this answer settles a question asked by the call. */
  readonly isSettlement?: boolean
}

const encoded = (
  id: string,
  { content, originalLength }: Contents.Shown,
  isError: boolean
): Event.Of<"ToolResultEncoded"> => {
  const event: Types.Mutable<Event.Of<"ToolResultEncoded">> = { _tag: "ToolResultEncoded", id, content }
  if (originalLength !== undefined) event.originalLength = originalLength
  if (isError) event.isError = isError
  return event
}

/** Builds the answer from the event ending a call, including its message and halt. */
const ended = (raw: Tool.Outcome, tail: OpenCalls.Tail): Answer => {
  const message = OpenCalls.messageOf(tail)
  const halt = OpenCalls.haltOf(tail)
  return halt === undefined ? { raw, message, tail } : { raw, message, tail, halt }
}

const result = (call: Message.ToolCall, raw: Tool.Outcome, text: Contents.Shown, isError: boolean): Answer =>
  ended(raw, encoded(call.id, text, isError))

const encodingFailed = (subject: Subject, cause: Cause.Cause<unknown>): Tool.ToolError =>
  toolError("encoding_failed", subject.call, { cause: Cause.squash(cause) })

const continued = <E, R>(
  answering: Answering<E, R>,
  subject: Subject,
  reason: unknown
): Effect.Effect<Answer, never, any> =>
  Effect.map(Contents.errorContent(answering, subject, reason), (text) => told(answering, subject, reason, text))

const told = (
  writing: Pick<Contents.Writing, "policy">,
  { call }: Subject,
  reason: unknown,
  text: Contents.Shown
): Answer => ({
  ...ended({ _tag: "Error", error: reason }, { ...encoded(call.id, text, true), ...toldCode(writing, reason) }),
  ...failure(reason)
})

/** Returns an error's code for the event and the message. */
const toldCode = ({ policy }: Pick<Contents.Writing, "policy">, error: unknown): Pick<Answer, "code"> => {
  const code = codeOf(error)
  return code === undefined || policy.callFacts === "hidden" ? {} : { code }
}

const failure = (reason: unknown): Pick<Answer, "failure" | "code"> => {
  const code = codeOf(reason)
  const coded = code === undefined ? {} : { code }
  if (!(reason instanceof ToolError)) return { failure: "reported", ...coded }
  return isCrash(reason) ? { failure: "crashed", ...coded } : coded
}

/** Returns the reason of a `ToolError`, or `"cancelled"` for a cancelled sub-agent. */
export const codeOf = (error: unknown): ToolError["reason"] | undefined => {
  if (error instanceof ToolError) return error.reason
  return error instanceof ChatFailed && error.reason === "cancelled" ? "cancelled" : undefined
}

interface Exception {
  readonly onToolErrorException?: unknown
}

const halted = <E, R>(
  answering: Answering<E, R>,
  subject: Subject,
  reason: unknown,
  exception: Exception = {}
): Effect.Effect<Answer, never, any> =>
  Effect.map(
    Contents.errorContent(answering, subject, reason),
    ({ content }) => toldHalt(answering, subject, reason, content, exception)
  )

const toldHalt = (
  writing: Pick<Contents.Writing, "policy">,
  { call: { id: toolCallId } }: Subject,
  reason: unknown,
  content: Message.Content,
  exception: Exception
): Answer => ({
  ...ended(
    { _tag: "Error", error: reason },
    {
      _tag: "ToolHalt",
      toolCallId,
      reason: "tool_error",
      result: reason,
      content,
      ...toldCode(writing, reason),
      ...exception
    }
  ),
  ...failure(reason)
})

/** Halts the run after the caller's function broke, and reports the exception next to the tool error. */
const broken = <E, R>(
  answering: Answering<E, R>,
  subject: Subject,
  cause: Cause.Cause<unknown>
): Effect.Effect<Answer, never, any> => {
  const exception = Cause.squash(cause)
  const error = toolError("invalid_return", subject.call, {
    detail: "onToolError threw",
    cause: exception,
    metadata: { onToolErrorRaised: true, onToolErrorException: exception }
  })
  return halted(answering, subject, error, { onToolErrorException: exception })
}

/**
 * Returns the policy's replacement content. With `resultCut: "head"`, limits cover only a tool's own results.
 */
const replaced = <E, R>({ policy }: Answering<E, R>, { tool }: Subject, content: Message.Content): Contents.Shown =>
  policy.resultCut === "head"
    ? { content: Json.wellFormed(content) }
    : Contents.cutResult(content, tool?.maxResultChars, policy)

const decided = <E, R>(
  answering: Answering<E, R>,
  subject: Subject,
  reason: unknown,
  decision: unknown
): Effect.Effect<Answer, E, R> => {
  const tag = Json.isObject(decision) ? decision["_tag"] : undefined
  const known = decision as Tool.ErrorDecision<E>
  if (tag === "Halt") return halted(answering, subject, reason)
  if (tag === "Fail" && known._tag === "Fail") return Effect.fail(known.error)
  if (tag === "Continue" && known._tag === "Continue") {
    const { replacement } = known
    return Contents.writeResult(answering, subject, replacement).pipe(
      Effect.map((content) =>
        result(subject.call, { _tag: "Ok", value: replacement }, replaced(answering, subject, content), false)
      ),
      Effect.catchCause((cause) => halted(answering, subject, encodingFailed(subject, cause)))
    )
  }
  const mistake = ToolOptions.promised("onToolError", decision, "return an Effect")
  const error = toolError("invalid_return", subject.call, {
    detail: mistake?.message ?? "onToolError must return an Effect of a Tool.ErrorDecision",
    cause: decision,
    metadata: { onToolErrorInvalid: true }
  })
  return halted(answering, subject, error)
}

/** Answers a failure by the caller's policy, asked once. A crash is logged, whatever the policy decides. */
export const failed = <E, R>(
  answering: Answering<E, R>,
  subject: Subject,
  reason: unknown
): Effect.Effect<Answer, E, R> => {
  const answer = byPolicy(answering, subject, reason)
  if (!isCrash(reason)) return answer
  const cause = ErrorFields.crashFields(reason)
  return Effect.andThen(
    warnOfCrash(subject.call, reason),
    Effect.map(answer, (answer) => ({ ...answer, ...cause }))
  )
}

/** Returns the error policy for a call: the tool's own policy takes precedence over the run's. */
const policyOf = <E, R>(answering: Answering<E, R>, { tool }: Subject): OnToolError<E, R> =>
  tool?.onToolError ?? answering.onToolError

/** Returns an error policy's decision as an Effect. Plain values are judged like decisions. */
const asEffect = <R>(decision: unknown): Effect.Effect<unknown, never, R> =>
  Effect.isEffect(decision) ? decision as Effect.Effect<unknown, never, R> : Effect.succeed(decision)

const byPolicy = <E, R>(answering: Answering<E, R>, subject: Subject, reason: unknown): Effect.Effect<Answer, E, R> => {
  const onToolError = policyOf(answering, subject)
  if (onToolError === "continue") return continued(answering, subject, reason)
  if (onToolError === "halt") return halted(answering, subject, reason)
  return Effect.suspend(() => asEffect<R>(onToolError(subject.call, reason))).pipe(
    Effect.exit,
    Effect.flatMap((exit) =>
      Exit.isSuccess(exit) ? decided(answering, subject, reason, exit.value) : broken(answering, subject, exit.cause)
    )
  )
}

const asked = <E, R>(answering: Answering<E, R>, { call }: Subject, raw: Tool.AskUser): Answer => {
  const tail = OpenCalls.asked(call, raw, answering.clock.currentTimeMillisUnsafe())
  return ended(raw, tail)
}

/**
 * Answers a halt. The halt is kept even if its result cannot be encoded: the result is then rendered as literal JSON.
 */
const stopped = <E, R>(
  answering: Answering<E, R>,
  subject: Subject,
  raw: Tool.Halt
): Effect.Effect<Answer, never, R> => {
  const { call } = subject
  return Contents.writeResult(answering, subject, raw.result).pipe(
    Effect.catchCause(() => Effect.succeed(Contents.literalValue(raw.result))),
    Effect.map((encoded) => Contents.cutResult(encoded, subject.tool?.maxResultChars, answering.policy).content),
    Effect.map((content) =>
      ended(raw, { _tag: "ToolHalt", toolCallId: call.id, reason: raw.reason, result: raw.result, content })
    )
  )
}

/** Returns `true` for a reason no handler may give. The tool of a typed answer has its rule's reason. */
const isReserved = ({ tool }: Subject, { reason }: Tool.Halt): boolean =>
  ToolOutcomes.reservedHaltReasons.has(reason) && !(reason === "output" && tool?.["~heddle/Output"] === true)

const reserved = (subject: Subject, raw: Tool.Halt): Tool.ToolError =>
  toolError("invalid_return", subject.call, {
    detail: `the halt reason "${raw.reason}" is reserved`,
    cause: raw,
    metadata: { reservedHaltAtom: raw.reason }
  })

/** Answers a result that could not be written. */
export const unwritten = <E, R>(
  answering: Answering<E, R>,
  subject: Subject,
  cause: Cause.Cause<unknown>
): Effect.Effect<Answer, E, R> => failed(answering, subject, encodingFailed(subject, cause))

/** Answers a successful result, given the exit of its encoding. */
export const succeeded = <E, R>(
  answering: Answering<E, R>,
  subject: Subject,
  raw: Tool.Ok,
  written: Exit.Exit<unknown, unknown>
): Effect.Effect<Answer, E, R> => {
  if (Exit.isFailure(written)) return unwritten(answering, subject, written.cause)
  const { value: content } = written
  if (!Contents.isContent(content)) return unwritten(answering, subject, Cause.fail(Contents.noText()))
  const whole = typeof content === "string" ? Contents.textOf(content, raw.value) : content
  const shown = Contents.cutResult(whole, subject.tool?.maxResultChars, answering.policy)
  return Effect.succeed(result(subject.call, raw, shown, false))
}

/**
 * Answers an error outcome. If a call may have had its effect, its tool has already decided: the error policy is not
 * asked.
 */
const errored = <E, R>(answering: Answering<E, R>, subject: Subject, raw: Tool.Error): Effect.Effect<Answer, E, R> => {
  if (ToolOutcomes.isEndingRun(raw)) return halted(answering, subject, raw.error)
  return raw.error instanceof ToolError && raw.error.reason === "unknown_effect"
    ? continued(answering, subject, raw.error)
    : failed(answering, subject, raw.error)
}

/** Answers an executor's outcome, lazily. */
export const fromOutcome = <E, R>(
  answering: Answering<E, R>,
  subject: Subject,
  raw: unknown
): Effect.Effect<Answer, E, R> => Effect.suspend(() => answerTo(answering, subject, raw))

/** Answers an executor's outcome. */
export const answerTo = <E, R>(
  answering: Answering<E, R>,
  subject: Subject,
  raw: unknown
): Effect.Effect<Answer, E, R> => {
  if (!ToolOutcomes.isWellFormed(raw)) {
    return failed(answering, subject, toolError("invalid_return", subject.call, { cause: raw }))
  }
  switch (raw._tag) {
    case "Ok":
      return Effect.flatMap(
        Effect.exit(Contents.encodeInTime(answering, subject, raw)),
        (written) => succeeded(answering, subject, raw, written)
      )
    case "Error":
      return errored(answering, subject, raw)
    case "AskUser":
      return Effect.succeed(asked(answering, subject, raw))
    case "Halt":
      return isReserved(subject, raw)
        ? failed(answering, subject, reserved(subject, raw))
        : stopped(answering, subject, raw)
  }
}

/** Answers a call denied by its tool's gates. Such an answer is an ordinary result, not a failure. */
export const denied = <E, R>(
  answering: Answering<E, R>,
  subject: Subject,
  error: Tool.ToolError
): Effect.Effect<Answer, never, any> => continued(answering, subject, error)

/** Adds a handler's context update to an answer. Errors add nothing. */
export const updating = (answer: Answer, contextUpdate: Json.JsonObject | undefined): Answer =>
  contextUpdate === undefined || answer.raw._tag === "Error" ? answer : { ...answer, contextUpdate }

/** Answers a call not run to its end. Such an answer is not a failure, and no policy is asked. */
export const cancelled = <E, R>(
  answering: Answering<E, R>,
  subject: Subject,
  error: Tool.ToolError
): Effect.Effect<Answer, never, any> => continued(answering, subject, error)

/** Answers a call at the end of its grace period, at once and without caller code. */
export const unfinished = (
  { policy }: Pick<Contents.Writing, "policy">,
  subject: Subject,
  error: Tool.ToolError
): Answer => told({ policy }, subject, error, Contents.cutError(Contents.literalError(error), policy))

/**
 * Answers a call after writing its answer broke off: a fiber was interrupted from outside, or a value could not even be
 * inspected. The error policy is not asked, since it may have been asked before.
 */
export const lost = <E, R>(answering: Answering<E, R>, subject: Subject, cause: Cause.Cause<unknown>): Answer => {
  const error = toolError(Cause.hasInterruptsOnly(cause) ? "handler_exit" : "encoding_failed", subject.call, {
    detail: "the answer could not be written",
    cause: Cause.squash(cause)
  })
  const text = Contents.cutError(Contents.literalError(error), answering.policy)
  return policyOf(answering, subject) === "continue"
    ? told(answering, subject, error, text)
    : toldHalt(answering, subject, error, text.content, {})
}

/** Recorded parts of an answer, beside its message. */
interface Recorded {
  readonly message: Message.Message
  readonly halt?: Event.Halt | undefined
  readonly failure?: Answer["failure"] | undefined
  readonly code?: Answer["code"] | undefined
  readonly contextUpdate?: Json.JsonObject | undefined
  readonly originalLength?: number | undefined
}

/** Returns message content as a value: parsed JSON, or the text itself. */
const valueOf = (content: Message.Content): unknown =>
  typeof content === "string" ? Result.getOrElse(Json.parse(content), () => content) : content

/** Rebuilds the answer a call had before its run was resumed. The result is the content the model read. */
export const replayed = (id: string, recorded: Recorded): Answer => {
  const { code, contextUpdate, failure, halt, message, originalLength } = recorded
  const value = valueOf(message.content)
  const raw: Tool.Outcome = message.isError === true ? { _tag: "Error", error: value } : { _tag: "Ok", value }
  return {
    ...ended(raw, Teller.ofAnswer({ ...message, toolCallId: id }, { halt, originalLength })),
    ...(failure === undefined ? {} : { failure }),
    ...(code === undefined ? {} : { code }),
    ...(contextUpdate === undefined ? {} : { contextUpdate }),
    isReplayed: true
  }
}

/** Rebuilds the open question of a waiting call. */
export const replayedQuestion = (event: Event.Of<"AskUserRequested">): Answer => {
  const { answerSchema, defaultAnswer, opts, question } = event
  const raw: Tool.AskUser = {
    _tag: "AskUser",
    question,
    opts: opts ?? [],
    ...(answerSchema === undefined ? {} : { answerSchema }),
    ...(defaultAnswer === undefined ? {} : { defaultAnswer })
  }
  return { ...ended(raw, event), isReplayed: true }
}

// Answers without a run, for calls whose tool and encoder are unavailable.

/** Answers a call denied or cancelled between runs, or left unanswered by its own run. */
export const refused = (
  reason: "denied" | "cancelled",
  call: Message.ToolCall,
  detail: string
): Message.Message => {
  const error = toolError(reason, call, { detail })
  return ofError(call, error)
}

/** Answers a call with an error. */
export const ofError = ({ id }: Pick<Message.ToolCall, "id">, error: ToolError): Message.Message => ({
  ...Message.answer(id, { error: error.message, code: error.reason }),
  isError: true,
  code: error.reason
})

// Results shaped `{ success, data, error, contextUpdate }`, for tools written in that style. An object with any of the
// first three fields is read this way. An `error` without `success: true` is a failure, even beside `data`.

/** The effective outcome, and the handler's context update. */
export interface Reading {
  readonly outcome: unknown
  readonly contextUpdate?: Json.JsonObject
}

const isResultObject = (value: unknown): value is Json.JsonObject =>
  Json.isObject(value) && ["success", "data", "error"].some((field) => Object.hasOwn(value, field))

const reportedFailure = ({ data, error }: Json.JsonObject): ToolOutcomes.Outcome =>
  ToolOutcomes.brand({ _tag: "Error", error: error ?? data ?? "the tool reported a failure" })

export const readResultObject = (outcome: unknown): Reading => {
  if (!ToolOutcomes.isWellFormed(outcome) || outcome._tag !== "Ok" || !isResultObject(outcome.value)) return { outcome }
  const { value } = outcome
  const hasError = value["error"] !== undefined && value["error"] !== null
  if (value["success"] === false || (hasError && value["success"] !== true)) return { outcome: reportedFailure(value) }
  const { contextUpdate } = value
  const ok = { _tag: "Ok", value: value["data"] } as const
  return Json.isObject(contextUpdate) ? { outcome: ok, contextUpdate } : { outcome: ok }
}

// Reports defects in user code to its developer: a warning names the call and the error without its text, the whole
// error is logged at debug level, and the event completing the call has the public fields.

/** The broken call. */
interface Call {
  readonly id: string
  readonly name: string
}

const errorName = (cause: unknown): string => {
  const { _tag, name = _tag } = ErrorFields.causeFields(cause)
  return typeof name === "string" ? ` (${Json.nameOf({ name })})` : ""
}

/** Logs one warning without the error's own text, which may hold user data and is logged at debug level only. */
const warned = (subject: string, call: Call, code: string, error: unknown, cause: Cause.Cause<unknown>) =>
  Telemetry.logged(
    Effect.logWarning(`${subject} of tool "${call.name}" failed: ${code}${errorName(error)}`).pipe(
      Effect.andThen(Effect.logDebug(`the error of ${subject} of tool "${call.name}"`, cause)),
      Effect.annotateLogs({ "gen_ai.tool.name": call.name, ...Telemetry.callId(call.id), "error.type": code })
    )
  )

/** Warns of a crashed call, unless it only took too long: then no code is broken. */
const warnOfCrash = (call: Call, error: unknown): Effect.Effect<void> =>
  isCrash(error) && error.reason !== "timeout" && error.reason !== "abandoned"
    ? warned("a call", call, error.reason, error.cause, Cause.die(error.cause ?? error))
    : Effect.void

/** Warns if a gate died. A failing gate has explained its denial, as intended. */
export const warnOfGate = (gate: string, call: Call, cause: Cause.Cause<unknown>): Effect.Effect<void> =>
  Cause.hasDies(cause) ? warned(gate, call, "denied", Cause.squash(cause), cause) : Effect.void

/** Warns if a tool cannot look up a call's outcome. */
export const warnOfLookUp = (call: Call, cause: Cause.Cause<unknown>): Effect.Effect<void> =>
  warned("lookUp", call, "unknown_effect", Cause.squash(cause), cause)

const warningOf = ({ bytes, id, name, reason }: ToolCalls.LostArguments): Effect.Effect<void> =>
  Telemetry.logged(
    Effect.logWarning(`the arguments of a call of "${name}" were lost: ${reason}`).pipe(
      Effect.annotateLogs({
        "gen_ai.tool.name": name,
        ...Telemetry.callId(id),
        "heddle.arguments.lost": reason,
        "heddle.arguments.bytes": bytes
      })
    )
  )

/**
 * Returns the value after one warning per call with lost arguments. The warning names only known tools: the model may
 * have invented the name.
 */
export const warnedOfLost = <A extends { readonly toolCalls: ReadonlyArray<Message.ToolCall> }>(
  said: A,
  tools?: ReadonlyMap<string, unknown>
): Effect.Effect<A> => {
  const lost = ToolCalls.lostOf(said.toolCalls).map((call) =>
    tools === undefined || tools.has(call.name) ? call : { ...call, name: Telemetry.other }
  )
  return lost.length === 0 ? Effect.succeed(said) : Effect.as(Effect.forEach(lost, warningOf, { discard: true }), said)
}
