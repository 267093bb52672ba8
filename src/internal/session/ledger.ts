/**
 * What a journal knows of the step in which a run was cut, and how that step is run again: the reply is emitted as it was
 * recorded, a call that ended has its recorded outcome, a call that was answered has its recorded answer, and of a call
 * that only started its tool decides. Everything behind that step is new. A call is known by its id, its name, its
 * arguments and its key, which has its place: a model may use an id in every turn.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import type * as Types from "effect/Types"
import type * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import type * as Executor from "../../Executor.ts"
import * as Message from "../../Message.ts"
import type * as Response from "../../Response.ts"
import type * as Tool from "../../Tool.ts"
import * as OutcomeJson from "../answer/outcomeJson.ts"
import * as ToolOutcomes from "../declare/outcome.ts"
import { toolError } from "../declare/outcome.ts"
import type * as ToolOptions from "../declare/toolOptions.ts"
import * as Json from "../json.ts"
import * as Replay from "../run/replay.ts"
import type * as Records from "./records.ts"

/**
 * Why a run that was cut cannot be taken up. Nothing was written, and no handler has started.
 *
 * - `unclaimed`: the session was loaded without a claim; another process may be running it
 * - `tool_missing`: a call of the cut step has started, and its tool is none of the tools given
 * - `arguments_changed`: the arguments of such a call no longer fit the parameters of its tool
 * - `result_changed`: the result of such a call no longer fits the `success` or `failure` schema of its tool
 *
 * Two reasons are those of a run that is ended in place of being taken up: `Failed` has them as its error.
 *
 * - `too_old`: the run started longer ago than `maxAge`
 * - `too_many_attempts`: it was taken up as often as `maxAttempts` allows
 *
 * @category errors
 * @since 0.1.0
 */
export class ResumeError extends Schema.TaggedError<ResumeError>("heddle/Session/ResumeError")("ResumeError", {
  /** What is wrong. */
  reason: Schema.Literals([
    "unclaimed",
    "tool_missing",
    "arguments_changed",
    "result_changed",
    "too_old",
    "too_many_attempts"
  ]),
  /** The id of the session. */
  id: Schema.String,
  /** The problem as text, with what resolves it. */
  detail: Schema.String,
  /** The name of the tool, where the error is about a call. */
  toolName: Schema.optionalKey(Schema.String),
  /** The id of the call, where the error is about one. */
  toolCallId: Schema.optionalKey(Schema.String)
}) {
  override get message(): string {
    return `session ${JSON.stringify(this.id)} cannot be resumed: ${this.reason}: ${this.detail}`
  }
}

/** What is known of a call that had started when the run was cut. */
export interface Known {
  readonly toolCall: Message.ToolCall
  /** Whether it is one of the calls that were approved before the run. */
  readonly isApproved: boolean
  readonly attempt: number
  readonly idempotencyKey: string
  readonly contextUpdate: Json.JsonObject | undefined
  /** What the handler came to. */
  readonly outcome: Tool.Outcome | undefined
  /** Of a question: when it is settled without an answer. */
  readonly expiresAt: number | undefined
  readonly answer: Records.InterruptedCall["answer"]
}

const sameCall = (left: Message.ToolCall, right: Message.ToolCall): boolean =>
  left.id === right.id && left.name === right.name &&
  JSON.stringify(Json.toJson(left.arguments)) === JSON.stringify(Json.toJson(right.arguments))

/** The calls of the cut step that had started. */
export class Ledger {
  /** Whether nothing new may start: the step is only answered. */
  readonly isClosing: boolean
  /** What becomes of a call of which it is not known whether it had its effect, where its tool does not say. */
  readonly unknown: Tool.Unknown | undefined
  private readonly requestId: string
  private readonly stepIndex: number
  private readonly calls: ReadonlyMap<string, Known>
  /** The calls whose recorded outcome has been given: another attempt of theirs is a new one. */
  private readonly given = new Set<string>()

  constructor(
    { requestId, steps }: Records.Interrupted,
    calls: ReadonlyArray<Known>,
    isClosing: boolean,
    unknown: Tool.Unknown | undefined
  ) {
    this.requestId = requestId
    this.stepIndex = steps.length
    this.calls = new Map(calls.map((call) => [call.toolCall.id, call]))
    this.isClosing = isClosing
    this.unknown = unknown
  }

  /** What is known of a call, until its recorded outcome has been given. */
  take({ idempotencyKey, toolCall }: Tool.CallContext): Known | undefined {
    const known = this.of(toolCall)
    // A call of another turn has another key.
    if (known?.idempotencyKey !== idempotencyKey || this.given.has(toolCall.id)) return undefined
    this.given.add(toolCall.id)
    return known
  }

  private of(toolCall: Message.ToolCall): Known | undefined {
    const known = this.calls.get(toolCall.id)
    return known !== undefined && sameCall(known.toolCall, toolCall) ? known : undefined
  }

  /** How the calls of the cut step are replayed: they have passed their gates, and those that were answered have answers. */
  readonly replay: Replay.Service = {
    find: (toolCall, place) => {
      const isHere = place.requestId === this.requestId && place.stepIndex === this.stepIndex
      const known = isHere ? this.of(toolCall) : undefined
      if (known === undefined || known.isApproved !== place.isApproved) return undefined
      const { answer, attempt, idempotencyKey, outcome } = known
      const replayed = { hasStarted: true, hasEnded: outcome !== undefined, idempotencyKey, attempt }
      if (answer === undefined || outcome === undefined) return replayed
      const { id, name } = toolCall
      return {
        ...replayed,
        answer: { completed: { _tag: "ToolExecutionCompleted", id, name, result: outcome }, tail: answer }
      }
    }
  }
}

type Refused = (reason: ResumeError["reason"], detail: string, toolCall: Message.ToolCall) => ResumeError

/** Whether a call is one of those that were approved before the run. In journals of 0.1 its key does not say so. */
const isOfApproved = (
  { approved, reply, requestId, steps }: Records.Interrupted,
  { idempotencyKey, toolCall }: Records.InterruptedCall
): boolean =>
  idempotencyKey === `${requestId}:approved:${toolCall.id}` ||
  (steps.length === 0 && reply === undefined && idempotencyKey.startsWith(`${requestId}:0:`) &&
    approved.some(({ id }) => id === toolCall.id))

/** What a journal has of a call, as its tool reads it now. */
const read = (
  interrupted: Records.Interrupted,
  call: Records.InterruptedCall,
  tools: ToolOptions.Toolbox,
  refused: Refused
): Effect.Effect<Known, ResumeError, any> =>
  Effect.gen(function*() {
    const { answer, attempt, contextUpdate, expiresAt, idempotencyKey, toolCall } = call
    const tool = tools.get(toolCall.name)
    if (tool === undefined) {
      const detail =
        `call ${JSON.stringify(toolCall.id)} of the tool "${toolCall.name}" has started, and there is no tool `
        + "of that name; give the tools that the run was started with"
      return yield* refused("tool_missing", detail, toolCall)
    }
    const suspended = ToolOutcomes.readSuspended(call.outcome)
    const isApproved = isOfApproved(interrupted, call)
    const known = { toolCall, isApproved, attempt, idempotencyKey, contextUpdate, expiresAt, answer }
    if (suspended !== undefined) return { ...known, outcome: suspended as unknown as Tool.Outcome }
    if (answer !== undefined) return { ...known, outcome: OutcomeJson.readOlder(call.outcome) }
    yield* Effect.mapError(
      Effect.sandbox(tool.parameters.decode(toolCall.arguments)),
      () =>
        refused(
          "arguments_changed",
          `the arguments of call ${JSON.stringify(toolCall.id)} no longer fit the parameters of the tool `
            + `"${toolCall.name}"; give the tool that the run was started with`,
          toolCall
        )
    )
    if (!("outcome" in call)) return { ...known, outcome: undefined }
    if (call.encoded !== true) return { ...known, outcome: OutcomeJson.readOlder(call.outcome) }
    const outcome = OutcomeJson.decode(tool, call.outcome)
    return {
      ...known,
      outcome: yield* Effect.mapError(outcome, (problem) =>
        refused(
          "result_changed",
          `the result of call ${JSON.stringify(toolCall.id)} no longer fits the tool "${toolCall.name}" `
            + `(${problem.detail}); give the tool that the run was started with`,
          toolCall
        ))
    }
  })

/** The ledger of a run that was cut. Fails where the tools have changed so that what has happened cannot be read. */
export const make = (
  id: string,
  interrupted: Records.Interrupted,
  tools: ToolOptions.Toolbox,
  isClosing: boolean,
  unknown?: Tool.Unknown
): Effect.Effect<Ledger, ResumeError, any> => {
  const refused: Refused = (reason, detail, { id: toolCallId, name: toolName }) =>
    new ResumeError({ reason, id, detail, toolName, toolCallId })
  return Effect.map(
    Effect.forEach(interrupted.calls, (call) => read(interrupted, call, tools, refused)),
    (known) => new Ledger(interrupted, known, isClosing, unknown)
  )
}

/** The recorded reply. Journals of 0.1 have its message only. */
export const responseOf = ({ reply, requestId, response }: Records.Interrupted): Response.Response | undefined => {
  if (response !== undefined || reply === undefined) return response
  const { finishReason = null, toolCalls = [] } = reply
  return {
    id: null,
    requestId,
    model: null,
    outputText: Message.text(reply) === "" ? null : Message.text(reply),
    reasoning: "",
    toolCalls,
    message: reply,
    finishReason,
    rawFinishReason: finishReason,
    usage: null,
    metadata: Json.none
  }
}

const replayed = { replayed: true } as const

/** The events that a reply is folded from again. */
const eventsOf = (response: Response.Response): ReadonlyArray<Event.AdapterEvent> => {
  const { finishReason, id, message, metadata, model, outputText, rawFinishReason, reasoning, toolCalls, usage } =
    response
  const facts: Record<string, unknown> = { ...metadata }
  if (usage !== null) facts["usage"] = usage
  if (id !== null) facts["responseId"] = id
  if (model !== null) facts["model"] = model
  const completed: Types.Mutable<Event.Of<"MessageCompleted">> = {
    _tag: "MessageCompleted",
    message: message ?? Message.assistant(outputText ?? "", toolCalls),
    finishReason,
    metadata: facts,
    ...replayed
  }
  if (rawFinishReason !== null) completed.rawFinishReason = rawFinishReason
  return [
    { _tag: "MessageStarted", message: Message.assistant(""), ...replayed },
    ...(reasoning === "" ? [] : [{ _tag: "ReasoningDelta", id: null, delta: reasoning, ...replayed } as const]),
    ...(outputText === null ? [] : [{ _tag: "TextCompleted", id: null, text: outputText, ...replayed } as const]),
    ...toolCalls.flatMap(({ metadata, rawArguments, ...call }): ReadonlyArray<Event.AdapterEvent> => [
      { _tag: "ToolCallStarted", id: call.id, name: call.name, ...replayed },
      {
        _tag: "ToolCallCompleted",
        ...call,
        rawArguments: rawArguments ?? JSON.stringify(call.arguments),
        metadata,
        ...replayed
      }
    ]),
    completed
  ]
}

/** The adapter that emits the recorded reply where the cut step asks for it, and asks the model for everything else. */
export const replaying = (
  adapter: Adapter.Service,
  requestId: string,
  stepIndex: number,
  response: Response.Response
): Adapter.Service => {
  let isReplayed = false
  return {
    ...adapter,
    stream: (request) => {
      const { run } = request
      if (isReplayed || run?.requestId !== requestId || run.stepIndex !== stepIndex) return adapter.stream(request)
      return Stream.suspend(() => {
        isReplayed = true
        return Stream.fromIterable(eventsOf(response))
      })
    }
  }
}

/**
 * Runs a call of the cut step: as it was recorded, or, where nothing is known of it, for the first time. `again` runs a
 * handler that had started.
 */
export const execute = <T extends Tool.Any>(
  ledger: Ledger,
  executor: Executor.Service,
  again: Executor.Service,
  tool: T,
  args: unknown,
  call: Tool.CallContext
): Effect.Effect<Tool.Outcome<T>, never, Tool.Services<T>> =>
  Effect.suspend((): Effect.Effect<any, never, Tool.Services<T>> => {
    const known = ledger.take(call)
    if (known === undefined) {
      return ledger.isClosing ? Effect.succeed(notRun(call)) : executor.execute(tool, args, call)
    }
    const { contextUpdate, expiresAt, outcome } = known
    // A run that is stopped withdraws its questions.
    if (ledger.isClosing && outcome?._tag === "AskUser") return Effect.succeed(withdrawn(call))
    if (outcome !== undefined) {
      const updated = contextUpdate === undefined ? Effect.void : call.updateContext(contextUpdate)
      return Effect.andThen(updated, stillWaiting(outcome, expiresAt))
    }
    return ledger.isClosing
      ? Effect.succeed(Replay.unknownEffect(call))
      : Replay.resolveUnknown(tool, args, call, again, ledger.unknown)
  })

/** A question waits until the time that was recorded, and not as long again. */
const stillWaiting = (outcome: Tool.Outcome, expiresAt: number | undefined): Effect.Effect<Tool.Outcome> =>
  outcome._tag !== "AskUser" || expiresAt === undefined
    ? Effect.succeed(outcome)
    : Effect.map(Clock.currentTimeMillis, (now) => ({ ...outcome, withinMillis: expiresAt - now }))

const withdrawn = (call: Tool.CallContext): Tool.Outcome => ({
  _tag: "Error",
  error: toolError("cancelled", call, { detail: "withdrawn: the run was stopped" })
})

const notRun = (call: Tool.CallContext): Tool.Outcome => ({
  _tag: "Error",
  error: toolError("cancelled", call, { detail: "not run: the run was stopped before it was taken up again" })
})
