/**
 * Plans each call of a reply: the call runs, is refused with an error (unknown tool, unusable arguments), is handed
 * over to the caller, or is cancelled because the reply is not acted on. Every call gets a plan, so the history stays
 * valid however the reply ended. Decisions without caller code happen when the turn opens; arguments are decoded when
 * it begins.
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type * as Policy from "../../Policy.ts"
import type * as Response from "../../Response.ts"
import type * as Tool from "../../Tool.ts"
import * as Contents from "../answer/content.ts"
import * as OpenCalls from "../answer/openCalls.ts"
import { timeoutOf } from "../ask/options.ts"
import { timedOut, ToolError, toolError } from "../declare/outcome.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import * as ToolCalls from "../hear/toolCalls.ts"
import * as Json from "../json.ts"
import type { HookFibers } from "../stop/ownedFibers.ts"
import * as Telemetry from "../telemetry.ts"

type Calls = ReadonlyArray<Message.ToolCall>

/** A call to an existing tool. Decoding shows whether its arguments fit. */
export interface Decode {
  readonly _tag: "Decode"
  /** Position of the call in its turn. */
  readonly index: number
  /** Position among the calls to answer, not counting provider-run calls. */
  readonly place: number
  readonly call: Message.ToolCall
  readonly tool: Tool.Any
  /** `true` if the caller now runs this tool's calls: a call started earlier is not retried. */
  readonly isByHand?: boolean
}

/** A call to run. */
export interface Run {
  readonly _tag: "Run"
  readonly index: number
  readonly place: number
  readonly call: Message.ToolCall
  readonly tool: Tool.Any
  readonly args: unknown
  readonly isExclusive: boolean
  /** `true` if a stop lets the handler finish, as declared by the tool. */
  readonly isBlocking: boolean
  /** `true` if the caller now runs this tool's calls. */
  readonly isByHand?: boolean
}

/** A call answered without running: with an error or a known answer. */
interface Refuse {
  readonly _tag: "Refuse"
  readonly index: number
  readonly call: Message.ToolCall
  readonly tool: Tool.Any | undefined
  readonly outcome: Tool.Outcome
}

/** A call in a turn that is not acted on. */
interface Cancel {
  readonly _tag: "Cancel"
  readonly index: number
  readonly call: Message.ToolCall
  readonly tool: undefined
  /** `true` if the run has a tool with the call's name. */
  readonly isOffered: boolean
  readonly detail: string
  /** `true` if this answer closes a question asked by the call. */
  readonly isSettlement?: boolean
  /** `true` if the call had started before its process ended, and so may have had its effect. */
  readonly isUnknown?: boolean
}

/** A call run by the caller. */
export interface HandOver {
  readonly _tag: "HandOver"
  readonly index: number
  readonly call: Message.ToolCall
  readonly tool: Tool.Any | undefined
  /** Existing suspension, if the call was handed over before the run was resumed. */
  readonly suspension: Event.Suspension | undefined
}

/** The initial plan for a call, made when its turn opens. */
export type Job = Decode | Refuse | Cancel | HandOver

/** The final plan for a call, once its arguments are decoded. */
export type Decided = Run | Refuse | Cancel | HandOver

/**
 * A journaled call, as seen by the plan. `asked`: nothing has begun. `granted`: approved, may begin. `handed`: waiting,
 * to be run by the caller. `started`: may have had its effect. `settled`: answered, waiting for another answer, or
 * answered by its nested run.
 */
export type RecordedCall =
  & {
    readonly toolCall: Message.ToolCall
    /** Tool version for the run that asked for the call. */
    readonly version: string | undefined
    /** `true` if the call's effect is unknown. */
    readonly isInDoubt: boolean
  }
  & (
    | { readonly _tag: "asked" | "granted" | "started" | "settled" }
    | { readonly _tag: "handed"; readonly suspension: Event.Suspension }
  )

/** Calls of a turn already journaled at run start, by id. */
export type RecordedCalls = ReadonlyMap<string, RecordedCall>

/** Returns whether a recorded call has begun. */
const hasBegun = (recorded: RecordedCall | undefined): boolean => recorded !== undefined && recorded._tag !== "asked"

/** Returns whether any recorded call in a turn has begun. */
export const isBegun = (recorded: RecordedCalls | undefined): boolean =>
  recorded !== undefined && Array.from(recorded.values()).some(hasBegun)

/** Declarations and policies for deciding about calls. */
export interface Rules {
  /** `"manual"` hands all calls to the caller. */
  readonly mode: "auto" | "manual"
  /** Tools offered in this step, by name. */
  readonly tools: ReadonlyMap<string, Tool.Any>
  /** All tools of the run. */
  readonly runTools: ReadonlyMap<string, Tool.Any>
  /** Settings of the run. */
  readonly settings: {
    /** The policy. */
    readonly policy: Policy.Policy
  }
}

/**
 * The run cannot be driven as asked: no adapter is given, or a call names an unknown tool under a policy failing the
 * turn. `metadata` names the missing item. Public as `Step.EngineError`.
 *
 * @category errors
 */
export class EngineError extends Schema.TaggedError<EngineError>("heddle/Step/EngineError")("EngineError", {
  /**
   * Kind of the missing item: the adapter, or a tool. A missing tool was called under `unknownTool: "failTurn"`, or was
   * forced by `toolChoice` but cannot be offered.
   */
  reason: Schema.Literals(["missing_adapter", "unknown_tool"]),
  /** Description of the missing item, as text. */
  detail: Schema.optionalKey(Schema.String),
  /** Description of the missing item, as data: `toolName` for an unknown tool. */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
}) {
  override get message(): string {
    return this.detail ?? `the run cannot be driven: ${this.reason}`
  }
}

Json.addError("EngineError", EngineError)

/**
 * Returns the error for a turn failed by policy because of an unknown tool name: no tool in the turn runs. A call begun
 * before the run was resumed fails nothing.
 */
export const failing = (
  calls: Calls,
  tools: ToolOptions.Toolbox,
  policy: Policy.Policy,
  recorded?: RecordedCalls
): EngineError | undefined => {
  if (policy.unknownTool === "answer") return undefined
  const unknown = calls.find((call) =>
    tools.get(call.name) === undefined && ToolOptions.help(call, tools) === undefined &&
    !hasBegun(recorded?.get(call.id))
  )
  if (unknown === undefined) return undefined
  const names = Array.from(tools.keys()).join(", ")
  return new EngineError({
    reason: "unknown_tool",
    detail: `the model called "${unknown.name}", not one of the run's tools${names === "" ? "" : ` (${names})`}`,
    metadata: { toolName: unknown.name }
  })
}

/** Returns the error for a run forced by `toolChoice` to call a tool it cannot offer. */
export const forcedToLeftOut = (
  { toolChoice: choice }: { readonly toolChoice?: unknown },
  leftOut: ReadonlyArray<ToolOptions.LeftOut>
): EngineError | undefined => {
  const tool = Json.isObject(choice) ? leftOut.find(({ name }) => name === choice["name"]) : undefined
  return tool && new EngineError({
    reason: "unknown_tool",
    detail: `toolChoice names "${tool.name}", which is left out: ${tool.reason}`,
    metadata: { toolName: tool.name }
  })
}

type Start = Pick<Policy.Policy, "start">

/**
 * Returns `true` if a call to the tool may start before the reply ends. Its arguments may still decide. A typed answer
 * waits for the whole reply: a cut reply has no answer, and may be repeated.
 */
export const mayStartEarly = (tool: Tool.Any, { start }: Start): boolean =>
  start !== "afterTurn" && tool["~heddle/Output"] !== true && !tool.manual && (tool.approval ?? false) === false &&
  (start === "onCallReady" || (tool.readOnly ?? false) !== false)

/** Returns an option's answer for decoded arguments: an `Exit` unless there is something to warn about. */
const answerOf = <Option extends ToolOptions.ByArguments>(
  tool: Tool.Any,
  option: Option,
  args: unknown,
  usual: ToolOptions.Answer<Option>
): Effect.Effect<ToolOptions.Answer<Option>> => {
  const asked = ToolOptions.asked(tool, option, args, usual)
  if (Result.isSuccess(asked)) return Exit.succeed(asked.success)
  const { answer, message } = ToolOptions.broken(tool, option)
  return Effect.as(Telemetry.warned(message, Cause.die(asked.failure)), answer)
}

/** Returns the policy for a call whose effect is unknown and whose tool cannot look it up. */
export const afterCrashOf = (
  tool: Tool.Any,
  args: unknown,
  otherwise: Tool.AfterCrash = "report"
): Effect.Effect<Tool.AfterCrash> => {
  if (tool.afterCrash !== undefined) return Exit.succeed(tool.afterCrash)
  if (tool.idempotent === true) return Exit.succeed("retry")
  return Effect.mapEager(answerOf(tool, "readOnly", args, false), (isReadOnly) => isReadOnly ? "retry" : otherwise)
}

/**
 * Returns whether a call allowed to start early does so, judged by its arguments if the tool wants. The reply does not
 * wait for that decision: a call whose arguments take time to decode starts after the reply.
 */
export const startsEarly = ({ call, tool }: Decode, { start }: Start): Effect.Effect<boolean> => {
  if (start === "onCallReady" || typeof tool.readOnly !== "function") return Exit.succeed(true)
  const decoding = ToolOptions.attempt(() => tool.parameters.decode(call.arguments ?? {}))
  return Exit.isExit(decoding) && Exit.isSuccess(decoding)
    ? answerOf(tool, "readOnly", decoding.value, false)
    : Exit.succeed(false)
}

// One call, before it runs.

const lostReasons: { readonly [Reason in Message.ArgumentsLost]: string } = {
  json_decode_error: "the arguments are not valid JSON",
  missing_fragments: "the arguments never arrived",
  truncated: "the arguments were cut off by the token limit",
  not_an_object: "the arguments are not a JSON object",
  too_deep: `the arguments nest deeper than ${ToolCalls.deepest} levels`
}

const lostArguments = (call: Message.ToolCall, reason: Message.ArgumentsLost): Tool.ToolError =>
  toolError(reason === "truncated" ? "truncated_arguments" : "invalid_arguments", call, { detail: lostReasons[reason] })

const noSuchTool = (
  call: Message.ToolCall,
  tools: ToolOptions.Toolbox,
  runTools: ToolOptions.Toolbox
): Tool.ToolError => {
  if (runTools.has(call.name)) return toolError("unknown_tool", call, { detail: "not offered in this step" })
  const names = Array.from(tools.values()).map((tool) => tool.name)
  return toolError("unknown_tool", call, {
    detail: names.length === 0 ? "there are no tools" : `the tools are ${names.join(", ")}`
  })
}

const refuse = (index: number, call: Message.ToolCall, tool: Tool.Any | undefined, error: unknown): Refuse => ({
  _tag: "Refuse",
  index,
  call,
  tool,
  outcome: { _tag: "Error", error }
})

const cancel = (index: number, call: Message.ToolCall, tools: ToolOptions.Toolbox, detail: string): Cancel => ({
  _tag: "Cancel",
  index,
  call,
  tool: undefined,
  isOffered: tools.has(call.name),
  detail
})

/** Returns the job for a call to an unknown tool, without knowledge of the existing tools. */
export const unknown = (index: number, call: Message.ToolCall): Job =>
  refuse(index, call, undefined, toolError("unknown_tool", call))

/** Returns the job for one call. */
export const planned = (
  index: number,
  call: Message.ToolCall,
  tools: ToolOptions.Toolbox,
  policy: Policy.Policy,
  place = index,
  runTools = tools
): Job => {
  const tool = tools.get(call.name)
  if (tool === undefined) {
    const help = ToolOptions.help(call, tools)
    return help === undefined
      ? refuse(index, call, undefined, noSuchTool(call, tools, runTools))
      : { _tag: "Refuse", index, call, tool: undefined, outcome: help }
  }
  if (call.argumentsLost !== undefined && policy.badArguments === "answer") {
    return refuse(index, call, tool, lostArguments(call, call.argumentsLost))
  }
  const usage = ToolOptions.missingArguments(call, tool)
  return usage === undefined ? { _tag: "Decode", index, place, call, tool } : refuse(index, call, tool, usage)
}

/** Decides a call by its arguments. Decoding may need services and time; otherwise the result is an `Exit`. */
export const decide = (
  job: Decode,
  policy: Policy.Policy,
  timeoutMillis: number,
  fibers: HookFibers
): Effect.Effect<Decided, never, any> => {
  const { call, tool } = job
  const decoding = ToolOptions.attempt(() => tool.parameters.decode(call.arguments ?? {}))
  if (Exit.isExit(decoding)) return decided(job, policy, decoding)
  const late = (millis: number) => timedOut(call, millis, "decoding the arguments ")
  const limited = fibers.limited<unknown, unknown, any>(call, decoding, timeoutOf(tool, timeoutMillis), late)
  return Effect.flatMap(Effect.exit(limited), (exit) => decided(job, policy, exit))
}

const decided = (
  job: Decode,
  policy: Policy.Policy,
  exit: Exit.Exit<unknown, unknown>
): Effect.Effect<Decided> =>
  Exit.isSuccess(exit)
    ? runnable(job, exit.value, policy)
    : Effect.succeed(refuse(job.index, job.call, job.tool, undecodable(job.call, exit.cause)))

const undecodable = (call: Message.ToolCall, cause: Cause.Cause<unknown>): Tool.ToolError => {
  const error = Cause.squash(cause)
  if (error instanceof ToolError) return error
  const detail = Cause.prettyErrors(cause)[0]?.message ?? "the arguments do not match the parameters"
  return toolError("invalid_arguments", call, { detail })
}

/**
 * Builds the run plan. The arguments may decide whether the call runs alone, and whether it may finish after a stop.
 */
const runnable = (
  { call, index, isByHand = false, place, tool }: Decode,
  args: unknown,
  { concurrency, interrupt }: Policy.Policy
): Effect.Effect<Run> => {
  const ran = answerOf(tool, "concurrency", args, concurrency)
  return Effect.flatMapEager(
    ran,
    (ran) =>
      Effect.mapEager(answerOf(tool, "interrupt", args, interrupt), (stopped): Run => ({
        _tag: "Run",
        index,
        place,
        call,
        tool,
        args,
        isExclusive: ran === "exclusive",
        isBlocking: stopped === "block",
        isByHand
      }))
  )
}

/**
 * Decides whether a call needs approval, after its tool's gates and before its handler. Fails closed: every `approval`
 * result except `false` asks for approval. A waiting call is settled through its suspension, from outside the run.
 */
export const needsApproval = (
  { args, call, tool: { approval } }: Run,
  context: Tool.CallContext,
  approved: ReadonlySet<string> | undefined
): Effect.Effect<boolean, never, any> => {
  if (approval === undefined || approval === false || approved?.has(call.id) === true) return Effect.succeed(false)
  if (approval === true) return Effect.succeed(true)
  return Effect.suspend(() => ToolOptions.toEffect<unknown, unknown, any>(approval(args, context), "approval")).pipe(
    Effect.map((needed) => needed !== false),
    Effect.catchCause((cause) =>
      Effect.as(Telemetry.warned(`approval of tool "${call.name}" failed; the call waits for approval`, cause), true)
    )
  )
}

// The calls of a turn.

/** The plan for a turn: all calls, the calls handed over to the caller, and jobs for the rest. */
export interface Plan {
  readonly calls: Calls
  readonly manual: ReadonlyArray<HandOver>
  readonly jobs: ReadonlyArray<Job>
}

const positions = (calls: Calls): (call: { readonly id: string }) => number => {
  const known = new Map(calls.map(({ id }, index) => [id, index]))
  return ({ id }) => known.get(id) ?? -1
}

/** Returns the reason for not running calls, if their reply is not acted on. */
export const ending = (finishReason: Response.FinishReason | null): string =>
  `the reply ended with ${finishReason ?? "no finish reason"}`

/**
 * Returns whether a call belongs to a manual tool. A call with lost arguments is not handed over where the policy
 * answers lost arguments.
 */
const isManualCall = ({ argumentsLost, name }: Message.ToolCall, { settings: { policy }, tools }: Rules): boolean =>
  tools.get(name)?.manual === true && (argumentsLost === undefined || policy.badArguments !== "answer")

/**
 * Plans one call by its tool and its journal record, if any. `refusal` says why no call may begin. The record takes
 * precedence over tools, mode, policy and reply: an answered call keeps its answer, a waiting call waits, and a started
 * call is never called "not run".
 */
const plannedAs = (
  recorded: RecordedCall | undefined,
  index: number,
  call: Message.ToolCall,
  rules: Rules,
  refusal: string | undefined,
  place = index
): Job => {
  const { mode, runTools, settings: { policy }, tools } = rules
  const isByHand = mode === "manual" || isManualCall(call, rules)
  const suspension = recorded?._tag === "handed" ? recorded.suspension : undefined
  const mayBegin = !hasBegun(recorded) || recorded?._tag === "granted"
  const tool = tools.get(call.name)
  // A call whose tool version changed since is denied.
  const isOther = recorded?.version !== undefined && recorded.version !== tool?.version
  if (suspension !== undefined || mayBegin && isByHand && !isOther && refusal === undefined) {
    return { _tag: "HandOver", index, call, tool, suspension }
  }
  if (refusal !== undefined && (mayBegin || recorded?._tag === "started")) {
    return { ...cancel(index, call, tools, `not run: ${refusal}`), isUnknown: recorded?.isInDoubt === true }
  }
  const job = planned(index, call, tools, policy, place, runTools)
  return isByHand && job._tag === "Decode" ? { ...job, isByHand } : job
}

/**
 * Plans the calls in a reply, except calls already started while it was read. `recorded` has the calls of the turn
 * where a resumed run begins.
 */
export const divide = (
  calls: Calls,
  toolCalls: Calls,
  rules: Rules,
  isStarted: (position: number) => boolean,
  refusal: string | undefined,
  recorded: RecordedCalls | undefined
): Plan => {
  const position = positions(toolCalls)
  const manual: Array<HandOver> = []
  const jobs: Array<Job> = []
  for (const [place, call] of calls.entries()) {
    const index = position(call)
    if (isStarted(index)) continue
    const job = plannedAs(recorded?.get(call.id), index, call, rules, refusal, place)
    if (job._tag === "HandOver") manual.push(job)
    else jobs.push(job)
  }
  return { calls, manual, jobs }
}

/** Plans calls from an earlier turn that may begin or have begun. */
export const earlier = (
  recorded: RecordedCalls,
  rules: Rules,
  refusal: string | undefined
): ReadonlyArray<Job> =>
  Array.from(recorded.values(), (call, index) => plannedAs(call, index, call.toolCall, rules, refusal))

/** Batch result: the deciding halt, and the calls waiting for an outside answer. */
export interface Worked {
  readonly halt: Event.Halt | undefined
  readonly suspensions: ReadonlyArray<Event.Suspension>
}

/** A worked turn, ready to commit. */
export interface Ended extends Worked {
  readonly calls: Calls
  /** Calls handed over to the caller. */
  readonly manual: Calls
  /** Calls that would wait if the run continued. They are answered as cancelled instead. */
  readonly closed: ReadonlyArray<Cancel>
}

/** A failed turn commits no calls: they would never be answered. */
export const uncommitted: Ended = { calls: [], manual: [], halt: undefined, suspensions: [], closed: [] }

/** Returns the suspension for a call run by the caller. A call handed over before keeps its own. */
export const handedOver = (
  { call, suspension, tool }: HandOver,
  policy: Policy.Policy,
  now: number
): Event.Suspension =>
  suspension ??
    { ...OpenCalls.suspension("manual", call, tool, now), ...Contents.limitOf(tool?.maxResultChars, policy) }

/**
 * Returns the calls waiting for an outside answer, in call order: waiting calls from the batch, and calls handed over.
 */
const waiting = (
  { manual }: Plan,
  response: Response.Response,
  { settings: { policy } }: Rules,
  own: ReadonlyArray<Event.Suspension>
): Effect.Effect<ReadonlyArray<Event.Suspension>> => {
  if (manual.length === 0) return Effect.succeed(own)
  const position = positions(response.toolCalls)
  return Effect.map(
    Clock.currentTimeMillis,
    (now) =>
      [...own, ...manual.map((job) => handedOver(job, policy, now))].toSorted((left, right) =>
        position({ id: OpenCalls.outerOf(left) }) - position({ id: OpenCalls.outerOf(right) })
      )
  )
}

/**
 * Returns what a worked turn leaves open. A question ends the run and stays open; any other ending leaves nothing open.
 * `over` gives the reason if the run ends with this turn.
 */
export const ended = (
  plan: Plan,
  response: Response.Response,
  rules: Rules,
  worked: Worked | undefined,
  over: string | undefined
): Effect.Effect<Ended> =>
  Effect.mapEager(waiting(plan, response, rules, worked?.suspensions ?? []), (suspensions) => {
    const { calls } = plan
    const manual = plan.manual.map(({ call }) => call)
    const halt = worked?.halt
    const isOver = over !== undefined || (halt !== undefined && halt.haltedReason !== "ask_user")
    if (!isOver) return { calls, manual, halt, suspensions, closed: [] }
    const why = over ?? "another call of the turn ended the run"
    const closed = withdrawn(suspensions, response, rules.tools, why)
    return { calls, manual: over === undefined ? manual : [], halt, suspensions: [], closed }
  })

/** Closes the open calls of an ended run: questions are withdrawn, other calls are answered as not run. */
const withdrawn = (
  suspensions: ReadonlyArray<Event.Suspension>,
  { toolCalls }: Response.Response,
  tools: ToolOptions.Toolbox,
  detail: string
): ReadonlyArray<Cancel> => {
  const position = positions(toolCalls)
  const nested = new Set(suspensions.flatMap(({ path }) => path?.[0] ?? []))
  const outer = toolCalls.filter(({ id }) => nested.has(id))
  const unknown = new Set(suspensions.flatMap((open) => open.kind === "unknown" ? [OpenCalls.outerOf(open)] : []))
  const own = suspensions.filter(({ path }) => path === undefined)
  const settled = (call: Message.ToolCall): Cancel => {
    const closed = { ...cancel(position(call), call, tools, `withdrawn: ${detail}`), isSettlement: true }
    return unknown.has(call.id) ? { ...closed, isUnknown: true } : closed
  }
  const waited = outer.map(settled)
  const closed = own.map(({ kind, toolCall: call }) =>
    kind === "question" || kind === "unknown"
      ? settled(call)
      : cancel(position(call), call, tools, `not run: ${detail}`)
  )
  return [...waited, ...closed]
}
