/**
 * Plans each call of a reply: it runs, it is refused with an error (an unknown tool, unusable arguments), it is handed
 * over to the caller, or it is cancelled because the reply is not acted on. No call is left out, so that the history
 * stays valid however the reply ended. Everything that needs no code of the caller is decided when the turn is opened;
 * arguments are decoded when it begins.
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

/** A call of a tool that exists. Whether its arguments fit shows when they are decoded. */
export interface Decode {
  readonly _tag: "Decode"
  /** The position of the call in its turn. */
  readonly index: number
  /** Its place among the calls to be answered: not counted are those that the provider ran. */
  readonly place: number
  readonly call: Message.ToolCall
  readonly tool: Tool.Any
  /** `true` if the caller runs the calls of the tool by now: one that had started before is not tried again. */
  readonly isByHand?: boolean
}

/** A call that is run. */
export interface Run {
  readonly _tag: "Run"
  readonly index: number
  readonly place: number
  readonly call: Message.ToolCall
  readonly tool: Tool.Any
  readonly args: unknown
  readonly isExclusive: boolean
  /** `true` if a stop lets the handler finish, as the tool declares. */
  readonly isBlocking: boolean
  /** `true` if the caller runs the calls of the tool by now. */
  readonly isByHand?: boolean
}

/** A call that is answered without running it: with an error, or with an answer that is known. */
interface Refuse {
  readonly _tag: "Refuse"
  readonly index: number
  readonly call: Message.ToolCall
  readonly tool: Tool.Any | undefined
  readonly outcome: Tool.Outcome
}

/** A call of a turn that is not acted on. */
interface Cancel {
  readonly _tag: "Cancel"
  readonly index: number
  readonly call: Message.ToolCall
  readonly tool: undefined
  /** Tells whether the run has a tool of the call's name. */
  readonly isOffered: boolean
  readonly detail: string
  /** `true` if a question that is withdrawn has answered the call. */
  readonly isSettlement?: boolean
  /** `true` if the call had started when its process ended, so that it may have had its effect. */
  readonly isUnknown?: boolean
}

/** A call that the caller runs. */
export interface HandOver {
  readonly _tag: "HandOver"
  readonly index: number
  readonly call: Message.ToolCall
  readonly tool: Tool.Any | undefined
  /** The suspension under which it waits, if it was handed over before the run was resumed. */
  readonly suspension: Event.Suspension | undefined
}

/** A call as a turn is opened with it. */
export type Job = Decode | Refuse | Cancel | HandOver

/** A call as it is acted on. */
export type Decided = Run | Refuse | Cancel | HandOver

/**
 * A call in the journal, as the plan sees it. `asked`: nothing of it has begun; `granted`: it was approved, and may
 * begin; `handed`: it waits for the caller, who runs it; `started`: it may have had its effect; `settled`: it is
 * answered, waits for another answer, or has that of its nested run.
 */
export type RecordedCall =
  & {
    readonly toolCall: Message.ToolCall
    /** The version that the tool had for the run that asked for the call. */
    readonly version: string | undefined
    /** Tells whether the effect of the call is not known. */
    readonly isInDoubt: boolean
  }
  & (
    | { readonly _tag: "asked" | "granted" | "started" | "settled" }
    | { readonly _tag: "handed"; readonly suspension: Event.Suspension }
  )

/** The calls of a turn that the journal had when the run began, by their ids. */
export type RecordedCalls = ReadonlyMap<string, RecordedCall>

/** Tells whether something of a recorded call has begun. */
const hasBegun = (recorded: RecordedCall | undefined): boolean => recorded !== undefined && recorded._tag !== "asked"

/** Tells whether something of a turn has begun. */
export const isBegun = (recorded: RecordedCalls | undefined): boolean =>
  recorded !== undefined && Array.from(recorded.values()).some(hasBegun)

/** The declarations and policies that decide about the calls of a turn. */
export interface Rules {
  /** `"manual"` hands all calls to the caller. */
  readonly mode: "auto" | "manual"
  /** The tools that this step offers, by their names. */
  readonly tools: ReadonlyMap<string, Tool.Any>
  /** All tools of the run. */
  readonly runTools: ReadonlyMap<string, Tool.Any>
  /** The decisions of the run. */
  readonly settings: {
    /** The policy. */
    readonly policy: Policy.Policy
  }
}

/**
 * The run cannot be driven as asked: there is no adapter, or a call names a tool that does not exist under a policy
 * that fails the turn. `metadata` names what is missing. Public as `Step.EngineError`.
 *
 * @category errors
 * @since 0.1.0
 */
export class EngineError extends Schema.TaggedError<EngineError>("heddle/Step/EngineError")("EngineError", {
  /**
   * The kind of thing that is missing: the adapter, or a tool that the model calls under `unknownTool: "failTurn"`, or
   * is to call by `toolChoice` and cannot be offered.
   */
  reason: Schema.Literals(["missing_adapter", "unknown_tool"]),
  /** A description of the missing thing, as text. */
  detail: Schema.optionalKey(Schema.String),
  /** A description of the missing thing, as data: `toolName` and `toolCallId` of an unknown tool. */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
}) {
  override get message(): string {
    return this.detail ?? `the run cannot be driven: ${this.reason}`
  }
}

Json.addError("EngineError", EngineError)

/**
 * Returns the error of a turn that a policy fails for one unknown name: no tool of the turn runs. A call that has begun
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
    detail: `the model called "${unknown.name}", which is none of the run's tools${names === "" ? "" : ` (${names})`}`,
    metadata: { toolName: unknown.name }
  })
}

/** Returns the error of a run whose model is to call a tool that it cannot be offered. */
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
 * Returns `true` if a call of a tool may start before the reply that makes it has ended. Its arguments may decide about
 * that.
 */
export const mayStartEarly = (tool: Tool.Any, { start }: Start): boolean =>
  start !== "afterTurn" && !tool.manual && (tool.approval ?? false) === false &&
  (start === "onCallReady" || (tool.readOnly ?? false) !== false)

/**
 * Returns the answer of an option for a call with these decoded arguments, an `Exit` unless there is something to warn
 * of.
 */
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

/**
 * Returns the policy for a call of a tool of which it is not known whether it had its effect, where the tool cannot
 * look it up.
 */
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
 * Tells whether a call that may start early does, by its arguments where its tool decides by them. A reply is not held
 * up for that: a call whose arguments take time to decode starts when the reply has ended.
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

/** The job for a call of a tool that does not exist, where the tools that do are not known. */
export const unknown = (index: number, call: Message.ToolCall): Job =>
  refuse(index, call, undefined, toolError("unknown_tool", call))

/** The job for one call. */
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

/**
 * The plan of the call, by its arguments. Decoding may need services and time; where it needs none, this is an `Exit`.
 */
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
  const detail = Cause.prettyErrors(cause)[0]?.message ?? "the arguments do not fit the parameters"
  return toolError("invalid_arguments", call, { detail })
}

/** The arguments may decide whether the call runs alone, and whether it may finish when it is stopped. */
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
 * Decides if a call has to be approved, after its tool's gates and before its handler. It fails closed: an `approval`
 * that does not return `false` asks for one. A call that waits is settled by its place among the suspensions, and is
 * answered from outside of the run.
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
      Effect.as(Telemetry.warned(`approval of tool "${call.name}" broke; the call waits for one`, cause), true)
    )
  )
}

// The calls of a turn.

/** The calls of a turn: all of them, those that are handed over to the caller, and what is done with the rest. */
export interface Plan {
  readonly calls: Calls
  readonly manual: ReadonlyArray<HandOver>
  readonly jobs: ReadonlyArray<Job>
}

const positions = (calls: Calls): (call: { readonly id: string }) => number => {
  const known = new Map(calls.map(({ id }, index) => [id, index]))
  return ({ id }) => known.get(id) ?? -1
}

/** Returns the reason why a call has no result whose reply is not acted on. */
export const ending = (finishReason: Response.FinishReason | null): string =>
  `the reply ended with ${finishReason ?? "no finish reason"}`

/** Tells whether a call is one of a manual tool. One that lost its arguments is not worth handing over. */
const isManualCall = ({ argumentsLost, name }: Message.ToolCall, { settings: { policy }, tools }: Rules): boolean =>
  tools.get(name)?.manual === true && (argumentsLost === undefined || policy.badArguments !== "answer")

/**
 * Plans one call by its record in the journal, where it has one, and its tool. `refusal` says why no call may begin, if
 * none may. The record decides before the tools, the mode, the policy and the reply: an answered call has its answer, a
 * waiting one waits, and one that had started is never called "not run".
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
  // A call whose tool is another one by now is denied.
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
 * Plans the calls of a reply. Those that were started while it was read are not planned again. `recorded` has the
 * calls of the turn that a resumed run begins in.
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

/** Plans the calls of an earlier turn that may begin, or that have begun. */
export const earlier = (
  recorded: RecordedCalls,
  rules: Rules,
  refusal: string | undefined
): ReadonlyArray<Job> =>
  Array.from(recorded.values(), (call, index) => plannedAs(call, index, call.toolCall, rules, refusal))

/** The result of a batch: the halt that decided, and the calls that wait for an answer from outside. */
export interface Worked {
  readonly halt: Event.Halt | undefined
  readonly suspensions: ReadonlyArray<Event.Suspension>
}

/** A turn that has been worked: what is committed of it. */
export interface Ended extends Worked {
  readonly calls: Calls
  /** The calls that are handed over to the caller. */
  readonly manual: Calls
  /** Calls that would wait if the run were not over. They are answered as cancelled instead. */
  readonly closed: ReadonlyArray<Cancel>
}

/** The calls of a turn that failed are not committed: they would never be answered. */
export const uncommitted: Ended = { calls: [], manual: [], halt: undefined, suspensions: [], closed: [] }

/** Returns the suspension of a call that the caller runs. One that was handed over before keeps its own. */
export const handedOver = (
  { call, suspension, tool }: HandOver,
  policy: Policy.Policy,
  now: number
): Event.Suspension =>
  suspension ??
    { ...OpenCalls.suspension("manual", call, tool, now), ...Contents.limitOf(tool?.maxResultChars, policy) }

/**
 * The calls that wait for an answer from outside, in call order: those of the batch, and those that are handed over.
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
 * Returns what a worked turn leaves open: a question ends the run and waits; a run that ends otherwise leaves nothing
 * open. `over` is the reason for which the run ends with this turn, if it does.
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

/** Open calls of a run that is over: what was asked is withdrawn, and the rest is answered unrun. */
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
