/**
 * Handlers of this process. Whatever goes wrong inside one becomes an outcome; only a caller's mistake is a defect. Public
 * as `Executor.direct`.
 */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Tool from "../../Tool.ts"
import * as Outcomes from "../declare/outcome.ts"
import { ToolError, toolError } from "../declare/outcome.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import * as Now from "../now.ts"

const failed = (
  tool: Tool.Any,
  reason: "handler_raised" | "handler_exit" | "invalid_return" | "not_found",
  cause?: unknown
): Tool.Error<ToolError> => ({
  _tag: "Error",
  error: new ToolError({ reason, toolName: tool.name, ...(cause === undefined ? {} : { cause }) })
})

/** The outcome of a handler that failed, broke or was stopped. */
const crashed = (tool: Tool.Any, cause: Cause.Cause<unknown>): Tool.Outcome => {
  const reported = Cause.findError(cause)
  if (Result.isSuccess(reported)) return { _tag: "Error", error: reported.success }
  const defect = Cause.findDefect(cause)
  if (Result.isFailure(defect)) return failed(tool, "handler_exit", Cause.squash(cause))
  const thrown = defect.success
  return failed(tool, "handler_raised", thrown instanceof globalThis.Error ? thrown : { _tag: "Thrown", value: thrown })
}

/** A value of the handler's own is a result; an outcome it returned counts only if it is well formed. */
const returned = (tool: Tool.Any, value: unknown, call: Tool.CallContext): Tool.Outcome => {
  try {
    if (!Outcomes.isBranded(value)) {
      const error = ToolOptions.promisedOutcome("the handler", value, call)
      return error === undefined ? { _tag: "Ok", value } : { _tag: "Error", error }
    }
    return Outcomes.isWellFormed(value) ? value : failed(tool, "invalid_return", value)
  } catch (cause) {
    return { _tag: "Error", error: toolError("handler_raised", call, { cause }) }
  }
}

/** What becomes of an outcome. */
export interface Next<A, E> {
  readonly came: (outcome: Tool.Outcome) => Effect.Effect<A, E, any>
}

const run = <A, E>(
  tool: Tool.Any,
  handler: ToolOptions.Handler,
  args: unknown,
  call: Tool.CallContext,
  next: Next<A, E>
) => {
  const handled = Effect.suspend(() => {
    const result = handler(args, call)
    if (Now.isEffect(result)) return result
    const error = ToolOptions.promisedOutcome("the handler", result, call)
    return Effect.succeed(
      Outcomes.brand(error === undefined ? failed(tool, "invalid_return", result) : { _tag: "Error", error } as const)
    )
  })
  return Effect.matchCauseEffect(Effect.scoped(handled), {
    onSuccess: (value) => next.came(returned(tool, value, call)),
    onFailure: (cause) => next.came(crashed(tool, cause))
  })
}

/** Calls the handler, and goes on with what that comes to in the same step. */
export const executeThen = <A, E>(
  tool: Tool.Any,
  args: unknown,
  call: Tool.CallContext,
  next: Next<A, E>
): Effect.Effect<A, E, any> => {
  const handler: unknown = tool.handler
  if (handler === undefined) return next.came(failed(tool, "not_found"))
  const mistake = ToolOptions.handlerMistake(tool.name, handler)
  return mistake === undefined ? run(tool, handler as ToolOptions.Handler, args, call, next) : Effect.die(mistake)
}

const asItIs: Next<Tool.Outcome, never> = { came: (outcome) => Effect.succeed(outcome) }

const execute = (tool: Tool.Any, args: unknown, call: Tool.CallContext) => executeThen(tool, args, call, asItIs)

/** Calls a handler in this process. Public as `Executor.direct`. */
export const direct = {
  execute: execute as <T extends Tool.Any>(
    tool: T,
    args: unknown,
    call: Tool.CallContext
  ) => Effect.Effect<Tool.Outcome<T>, never, Tool.Services<T>>
}
