/**
 * What to do with each call of a turn, decided before any of them runs: run it with these arguments, alone or shared,
 * or answer it without running it because it names no tool, its arguments are unusable or the answer is known. What
 * needs no code of the caller's is planned when the turn is opened; arguments are decoded when it begins.
 */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Message from "../../Message.ts"
import type * as Policy from "../../Policy.ts"
import type * as Tool from "../../Tool.ts"
import { timedOut, ToolError, toolError } from "../answer/toolError.ts"
import * as Compact from "../declare/compact.ts"
import * as Toolbox from "../declare/toolbox.ts"
import * as CallArguments from "../hear/callArguments.ts"
import * as Now from "../now.ts"

/** A call of a tool that exists. Whether its arguments fit shows when they are decoded. */
export interface Decode {
  readonly _tag: "Decode"
  readonly index: number
  readonly call: Message.ToolCall
  readonly tool: Tool.Any
}

export interface Run {
  readonly _tag: "Run"
  readonly index: number
  readonly call: Message.ToolCall
  readonly tool: Tool.Any
  readonly args: unknown
  readonly isExclusive: boolean
  readonly isBlocking: boolean
}

interface Refuse {
  readonly _tag: "Refuse"
  readonly index: number
  readonly call: Message.ToolCall
  readonly tool: Tool.Any | undefined
  readonly outcome: Tool.Outcome
}

/** A call of a turn that is not acted on: it is answered, so that history stays valid. */
export interface Cancel {
  readonly _tag: "Cancel"
  readonly index: number
  readonly call: Message.ToolCall
  readonly tool: undefined
  readonly detail: string
  /** Whether it has been answered by a question, which is withdrawn. */
  readonly isSettlement?: boolean
}

/** A call as a turn is opened with it. */
export type Job = Decode | Refuse | Cancel

/** A call as it is acted on. */
export type Decided = Run | Refuse | Cancel

const lostReasons: { readonly [Reason in Message.ArgumentsLost]: string } = {
  json_decode_error: "the arguments are not valid JSON",
  missing_fragments: "the arguments never arrived",
  truncated: "the arguments were cut off by the token limit",
  not_an_object: "the arguments are not a JSON object",
  too_deep: `the arguments nest deeper than ${CallArguments.deepest} levels`
}

const unknownTool = (call: Message.ToolCall, tools: Toolbox.Toolbox): Tool.ToolError => {
  const names = Toolbox.all(tools).map((tool) => tool.name)
  return toolError("unknown_tool", call, {
    detail: names.length === 0 ? "there are no tools" : `the tools are ${names.join(", ")}`
  })
}

const lostArguments = (call: Message.ToolCall, reason: Message.ArgumentsLost): Tool.ToolError =>
  toolError(reason === "truncated" ? "truncated_arguments" : "invalid_arguments", call, { detail: lostReasons[reason] })

/** Exclusiveness may depend on the arguments. Whatever a function does but say "shared", the call runs alone: it is safe. */
const runnable = (job: Decode, args: unknown, policy: Policy.Policy): Effect.Effect<Run> => {
  const { tool } = job
  const { concurrency = policy.concurrency, interrupt = policy.interrupt } = tool
  const isBlocking = interrupt === "block"
  if (typeof concurrency === "string") return Effect.succeed(run(job, args, isBlocking, concurrency === "exclusive"))
  return Effect.matchCauseEffectEager(
    Now.attempt(() =>
      Now.map(Now.toEffect(concurrency(args), "concurrency", "return a value"), (given) => given !== "shared")
    ),
    {
      onSuccess: (isExclusive) => Effect.succeed(run(job, args, isBlocking, isExclusive)),
      onFailure: (cause) =>
        Effect.as(
          Effect.logWarning(`concurrency of tool "${tool.name}" threw; the call runs alone`, cause),
          run(job, args, isBlocking, true)
        )
    }
  )
}

const run = ({ call, index, tool }: Decode, args: unknown, isBlocking: boolean, isExclusive: boolean): Run => ({
  _tag: "Run",
  index,
  call,
  tool,
  args,
  isExclusive,
  isBlocking
})

/** Who bounds the time that decoding may take, where it takes any. */
export interface Court {
  readonly limit: (
    job: Decode,
    decoding: Effect.Effect<unknown, unknown, any>,
    late: (millis: number) => Tool.ToolError
  ) => Effect.Effect<unknown, unknown, any>
}

/** What the call came to by its arguments. Decoding may need services and time. */
export const decide = (job: Decode, policy: Policy.Policy, court: Court): Effect.Effect<Decided, never, any> => {
  const { call, tool } = job
  const decoding = Now.attempt(() => tool.parameters.decode(call.arguments ?? {}))
  if (Now.isExit(decoding)) return decided(job, policy, decoding)
  const late = (millis: number) => timedOut(call, millis, "decoding the arguments ")
  return Effect.flatMap(Effect.exit(court.limit(job, decoding, late)), (exit) => decided(job, policy, exit))
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

const refuse = (index: number, call: Message.ToolCall, tool: Tool.Any | undefined, error: unknown): Refuse => ({
  _tag: "Refuse",
  index,
  call,
  tool,
  outcome: { _tag: "Error", error }
})

/** The job for a call of a tool that does not exist, where nobody can tell which do. */
export const unknown = (index: number, call: Message.ToolCall): Job =>
  refuse(index, call, undefined, toolError("unknown_tool", call))

/** The job for one call. */
export const planned = (
  index: number,
  call: Message.ToolCall,
  tools: Toolbox.Toolbox,
  policy: Policy.Policy
): Job => {
  const tool = Toolbox.find(tools, call.name)
  if (tool === undefined) {
    const help = Compact.help(call, tools)
    return help === undefined
      ? refuse(index, call, undefined, unknownTool(call, tools))
      : { _tag: "Refuse", index, call, tool: undefined, outcome: help }
  }
  if (call.argumentsLost !== undefined && policy.badArguments === "answer") {
    return refuse(index, call, tool, lostArguments(call, call.argumentsLost))
  }
  const usage = Compact.missing(call, tool)
  return usage === undefined ? { _tag: "Decode", index, call, tool } : refuse(index, call, tool, usage)
}
