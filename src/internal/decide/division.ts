/**
 * What becomes of the calls of a reply: they run, they are the caller's to answer, or, where the reply is not acted on,
 * they are answered as cancelled. No call is left out, so that history stays valid whatever the reply ended with.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type * as Response from "../../Response.ts"
import * as Cut from "../answer/cut.ts"
import * as OpenCalls from "../answer/openCalls.ts"
import * as Compact from "../declare/compact.ts"
import * as Toolbox from "../declare/toolbox.ts"
import * as Lists from "../lists.ts"
import type * as Turn from "../loop/runEnvironment.ts"
import * as Now from "../now.ts"
import { type EngineError, unknownTool } from "./engineError.ts"
import * as Plan from "./plan.ts"

type Calls = ReadonlyArray<Message.ToolCall>

/** The calls of a turn, all of them and those that are the caller's. */
export interface Division {
  readonly calls: Calls
  readonly manual: Calls
  readonly jobs: ReadonlyArray<Plan.Job>
}

/** The calls of a turn that has been worked: the halt that decided, and the calls that wait for somebody. */
export interface Ended extends Division {
  readonly halt: Event.Halt | undefined
  readonly suspensions: ReadonlyArray<Event.Suspension>
  /** Calls that would wait if the run were not over, and why they are answered as cancelled instead. */
  readonly closed: ReadonlyArray<Event.Suspension>
  readonly detail: string
}

/** The position of a call in its turn. */
export type Position = (call: Message.ToolCall) => number

/** The positions of the calls of a response. */
export const positions = (calls: Calls): Position => {
  if (calls.length < Lists.many) return (call) => calls.findLastIndex(({ id }) => id === call.id)
  const known = new Map(calls.map((call, index) => [call.id, index]))
  return (call) => known.get(call.id) ?? -1
}

const cancelled = (calls: Calls, position: Position, detail: string): ReadonlyArray<Plan.Cancel> =>
  calls.map((call) => ({ _tag: "Cancel", index: position(call), call, tool: undefined, detail }))

/** Open calls of a run that is over: what was asked is withdrawn, and the rest is answered unrun. */
export const closing = (
  { closed, detail }: Pick<Ended, "closed" | "detail">,
  position: Position
): ReadonlyArray<Plan.Cancel> =>
  closed.map(({ kind, toolCall: call }) => ({
    _tag: "Cancel",
    index: position(call),
    call,
    tool: undefined,
    detail: `${kind === "question" ? "withdrawn" : "not run"}: ${detail}`,
    isSettlement: kind === "question"
  }))

/** Calls of manual tools. Where lost arguments are answered, a call that lost them is not worth handing over. */
const manualCalls = <E, R>(calls: Calls, { settings, tools }: Turn.Run<E, R>): Calls =>
  calls.filter((call) =>
    Toolbox.find(tools, call.name)?.manual === true &&
    (call.argumentsLost === undefined || settings.policy.badArguments !== "answer")
  )

/** Under a policy that fails the turn, one unknown name keeps every tool of the turn from running. */
export const failing = <E, R>(calls: Calls, { mode, tools, settings }: Turn.Run<E, R>): EngineError | undefined =>
  mode === "manual" || settings.policy.unknownTool === "answer"
    ? undefined
    : unknownTool(calls.filter((call) => Compact.help(call, tools) === undefined), tools)

/** Divides the open calls of a reply that is acted on. */
const acting = <E, R>(calls: Calls, open: Calls, position: Position, run: Turn.Run<E, R>): Division => {
  if (run.mode === "manual") return { calls, manual: Lists.none, jobs: Lists.none }
  const { settings: { policy }, tools } = run
  const manual = manualCalls(open, run)
  const own = manual.length === 0 ? open : open.filter((call) => !manual.includes(call))
  const jobs = own.map((call) => Plan.planned(position(call), call, tools, policy))
  return { calls, manual, jobs }
}

/** Divides the open calls of a reply that ended in a way that forbids to act on it. */
const passing = (
  calls: Calls,
  open: Calls,
  position: Position,
  finishReason: Response.FinishReason | null
): Division => ({
  calls,
  manual: Lists.none,
  jobs: cancelled(open, position, `not run: ${ending(finishReason)}`)
})

/** Divides those of the calls of a reply that have not been started yet. */
export const divide = <E, R>(
  calls: Calls,
  response: Response.Response,
  run: Turn.Run<E, R>,
  isActedOn: boolean
): Division => {
  const position = positions(response.toolCalls)
  const open = calls.filter((call) => !run.state.calls.isTaken(position(call)))
  return isActedOn ? acting(calls, open, position, run) : passing(calls, open, position, response.finishReason)
}

/** What a batch came to. */
interface Worked {
  readonly halt: Event.Halt | undefined
  readonly suspensions: ReadonlyArray<Event.Suspension>
}

const unworked: Worked = { halt: undefined, suspensions: Lists.none }

/** The calls that wait for somebody outside, in call order: those of the batch, and the caller's own. */
const waiting = <E, R>(
  { calls, jobs, manual }: Division,
  response: Response.Response,
  { mode, settings: { policy }, tools }: Turn.Run<E, R>,
  own: ReadonlyArray<Event.Suspension>
): Effect.Effect<ReadonlyArray<Event.Suspension>> => {
  const handedOver = mode === "manual" && jobs.length === 0 ? calls : manual
  if (handedOver.length === 0) return Effect.succeed(own)
  const position = positions(response.toolCalls)
  return Effect.map(Clock.currentTimeMillis, (now) => {
    const manual = handedOver.map((call): Event.Suspension => {
      const tool = Toolbox.find(tools, call.name)
      return { ...OpenCalls.suspension("manual", call, tool, now), ...Cut.later(tool?.maxResultChars, policy) }
    })
    return [...own, ...manual].toSorted((left, right) => position(left.toolCall) - position(right.toolCall))
  })
}

/** What a worked turn leaves open: a question ends the run and waits; a run that ends otherwise leaves nothing open. */
export const ended = <E, R>(
  division: Division,
  response: Response.Response,
  run: Turn.Run<E, R>,
  worked: Worked = unworked
): Effect.Effect<Ended> =>
  Now.map(waiting(division, response, run, worked.suspensions), (suspensions) => {
    const { halt } = worked
    const isCut = run.ambient.cancellation?.isRequested === true
    const isOver = isCut || (halt !== undefined && halt.haltedReason !== "ask_user")
    const { calls, jobs, manual } = division
    if (!isOver) return { calls, manual, jobs, halt, suspensions, closed: Lists.none, detail: "" }
    return isCut
      ? { ...division, halt, manual: [], suspensions: [], closed: suspensions, detail: "the run was cancelled" }
      : { ...division, halt, suspensions: [], closed: suspensions, detail: "another call of the turn ended the run" }
  })

/** Why a call of a reply that ended badly has no result. */
export const ending = (finishReason: Response.FinishReason | null): string =>
  `the reply ended with ${finishReason ?? "no finish reason"}`

/** The calls of a turn that failed are not committed: nobody will answer them. */
export const uncommitted: Ended = {
  calls: [],
  manual: [],
  jobs: [],
  halt: undefined,
  suspensions: [],
  closed: [],
  detail: ""
}
