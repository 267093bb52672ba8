/**
 * What to do with each call of a turn, decided before any of them runs: run it with these arguments, alone or shared,
 * or answer it without running it because it names no tool, its arguments are unusable or the answer is known.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Cause from "effect/Cause"
import type * as Message from "../Message.ts"
import type * as Policy from "../Policy.ts"
import type * as Tool from "../Tool.ts"
import * as Compact from "./compact.ts"
import { toolError } from "./toolError.ts"

export interface Run {
  readonly _tag: "Run"
  readonly index: number
  readonly call: Message.ToolCall
  readonly tool: Tool.Any
  readonly args: unknown
  readonly isExclusive: boolean
}

export interface Refuse {
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
}

export type Job = Run | Refuse | Cancel

const lostReasons: { readonly [Reason in Message.ArgumentsLost]: string } = {
  json_decode_error: "the arguments are not valid JSON",
  missing_fragments: "the arguments never arrived",
  truncated: "the arguments were cut off by the token limit",
  not_an_object: "the arguments are not a JSON object"
}

const unknownTool = (call: Message.ToolCall, tools: ReadonlyMap<string, Tool.Any>): Tool.ToolError =>
  toolError("unknown_tool", call, {
    detail: tools.size === 0 ? "there are no tools" : `the tools are ${[...tools.keys()].join(", ")}`
  })

const lostArguments = (call: Message.ToolCall, reason: Message.ArgumentsLost): Tool.ToolError =>
  toolError(reason === "truncated" ? "truncated_arguments" : "invalid_arguments", call, { detail: lostReasons[reason] })

/** Exclusiveness may depend on the arguments. A function that throws is taken as exclusive: that is always safe. */
const isExclusive = (tool: Tool.Any, args: unknown): Effect.Effect<boolean> => {
  const { concurrency } = tool
  if (typeof concurrency === "string") return Effect.succeed(concurrency === "exclusive")
  return Effect.sync(() => concurrency(args) === "exclusive").pipe(
    Effect.catchCause((cause) =>
      Effect.as(Effect.logWarning(`concurrency of tool "${tool.name}" threw; the call runs alone`, cause), true)
    )
  )
}

const decoded = (index: number, call: Message.ToolCall, tool: Tool.Any): Effect.Effect<Job, never, any> =>
  Effect.exit(tool.parameters.decode(call.arguments ?? {})).pipe(
    Effect.flatMap((exit): Effect.Effect<Job> => {
      if (Exit.isSuccess(exit)) {
        const args = exit.value
        return Effect.map(isExclusive(tool, args), (alone) => ({ _tag: "Run", index, call, tool, args, isExclusive: alone }))
      }
      const detail = Cause.prettyErrors(exit.cause)[0]?.message ?? "the arguments do not fit the parameters"
      return Effect.succeed(refuse(index, call, tool, toolError("invalid_arguments", call, { detail })))
    })
  )

const refuse = (index: number, call: Message.ToolCall, tool: Tool.Any | undefined, error: unknown): Refuse => ({
  _tag: "Refuse",
  index,
  call,
  tool,
  outcome: { _tag: "Error", error }
})

/** The job for one call. */
export const plan = (
  index: number,
  call: Message.ToolCall,
  tools: ReadonlyMap<string, Tool.Any>,
  policy: Policy.Policy
): Effect.Effect<Job, never, any> => {
  const tool = tools.get(call.name)
  if (tool === undefined) {
    const help = Compact.help(call, tools)
    return Effect.succeed(
      help === undefined
        ? refuse(index, call, undefined, unknownTool(call, tools))
        : { _tag: "Refuse", index, call, tool: undefined, outcome: help }
    )
  }
  if (call.argumentsLost !== undefined && policy.badArguments === "answer") {
    return Effect.succeed(refuse(index, call, tool, lostArguments(call, call.argumentsLost)))
  }
  const usage = Compact.missing(call, tool)
  return usage === undefined ? decoded(index, call, tool) : Effect.succeed(refuse(index, call, tool, usage))
}
