/**
 * The seam running one tool call, in its own scope. Everything failing inside the handler becomes an outcome; only a
 * caller's mistake is a defect, and interrupting the caller stays an interruption. Retries and timeouts belong to the
 * runner, not to an executor.
 */
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as ToolOutcomes from "./internal/declare/outcome.ts"
import { ToolError, toolError } from "./internal/declare/outcome.ts"
import * as ToolOptions from "./internal/declare/toolOptions.ts"
import type * as Tool from "./Tool.ts"

/**
 * An executor.
 *
 * @category services
 */
export interface Service {
  /**
   * Runs one call. `args` are its arguments, decoded by the tool's parameters; `call` reaches the handler unchanged.
   * Succeeds with an outcome whatever the handler does.
   */
  readonly execute: <T extends Tool.Any>(
    tool: T,
    args: unknown,
    call: Tool.CallContext
  ) => Effect.Effect<Tool.Outcome<T>, never, Tool.Services<T>>
}

/**
 * The default executor: it calls the handler.
 *
 * **Example** (What a log executor falls back on)
 *
 * ```ts import.meta.vitest
 * import { Executor, Message, Tool, ToolRunner } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const names: Array<string> = []
 * const logged = Executor.layer({
 *   execute: (tool, args, call) => {
 *     names.push(tool.name)
 *     return Executor.direct.execute(tool, args, call)
 *   }
 * })
 * const ping = Tool.make("ping", { parameters: {}, handler: () => Effect.succeed("pong") })
 * await Effect.runPromise(ToolRunner.run([Message.toolCall("c0", "ping")], [ping]).pipe(Effect.provide(logged)))
 *
 * names // => ["ping"]
 * ```
 *
 * @category constructors
 */
export const direct: Service = {
  execute: ((tool: Tool.Any, args: unknown, call: Tool.CallContext) => {
    const handler: unknown = tool.handler
    if (handler === undefined) return Effect.succeed(failed(tool, "not_found"))
    const mistake = ToolOptions.handlerMistake(tool.name, handler)
    return mistake === undefined ? run(tool, handler as ToolOptions.Handler, args, call) : Effect.die(mistake)
  }) as Service["execute"]
}

const run = (tool: Tool.Any, handler: ToolOptions.Handler, args: unknown, call: Tool.CallContext) => {
  const handled = Effect.suspend(() => {
    const result = handler(args, call)
    if (Effect.isEffect(result)) return result
    const error = ToolOptions.promisedOutcome("the handler", result, call)
    return Effect.succeed(
      ToolOutcomes.brand(
        error === undefined ? failed(tool, "invalid_return", result) : { _tag: "Error", error } as const
      )
    )
  })
  return Effect.matchCause(Effect.scoped(handled), {
    onSuccess: (value) => returned(tool, value, call),
    onFailure: (cause) => crashed(tool, cause)
  })
}

/** Returns a handler's outcome: its own, if well formed, or its value as a result. */
const returned = (tool: Tool.Any, value: unknown, call: Tool.CallContext): Tool.Outcome => {
  try {
    // Suspensions are made and read only by the runtime.
    if (ToolOutcomes.isSuspended(value)) return value as unknown as Tool.Outcome
    if (!ToolOutcomes.isBranded(value)) {
      const error = ToolOptions.promisedOutcome("the handler", value, call)
      return error === undefined ? { _tag: "Ok", value } : { _tag: "Error", error }
    }
    return ToolOutcomes.isWellFormed(value) ? value : failed(tool, "invalid_return", value)
  } catch (cause) {
    return { _tag: "Error", error: toolError("handler_raised", call, { cause }) }
  }
}

/** Outcome of a handler after a failure, a defect or an interruption. */
const crashed = (tool: Tool.Any, cause: Cause.Cause<unknown>): Tool.Outcome => {
  const reported = Cause.findError(cause)
  if (Result.isSuccess(reported)) return { _tag: "Error", error: reported.success }
  const defect = Cause.findDefect(cause)
  if (Result.isFailure(defect)) return failed(tool, "handler_exit", Cause.squash(cause))
  const thrown = defect.success
  return failed(tool, "handler_raised", thrown instanceof globalThis.Error ? thrown : { _tag: "Thrown", value: thrown })
}

const failed = (
  tool: Tool.Any,
  reason: "handler_raised" | "handler_exit" | "invalid_return" | "not_found",
  cause?: unknown
): Tool.Error<ToolError> => ({
  _tag: "Error",
  error: new ToolError({ reason, toolName: tool.name, ...(cause === undefined ? {} : { cause }) })
})

/**
 * The run's executor. A Context reference: {@link direct} without a layer.
 *
 * @category references
 */
export const Executor: Context.Reference<Service> = Context.Reference<Service>("heddle/Executor", {
  defaultValue: () => direct
})

/**
 * Replaces the executor.
 *
 * **Example** (A dry run)
 *
 * ```ts import.meta.vitest
 * import { Executor, Message, Tool, ToolRunner } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const remove = Tool.make("remove", { parameters: {}, handler: () => Effect.die("must not run") })
 * const dryRun = Executor.layer({
 *   execute: (tool) => Effect.succeed(Tool.ok(`would run ${tool.name}`)) as any
 * })
 * const result = await Effect.runPromise(
 *   ToolRunner.run([Message.toolCall("c0", "remove")], [remove]).pipe(Effect.provide(dryRun))
 * )
 *
 * result.messages[0]?.content // => "would run remove"
 * ```
 *
 * @category layers
 */
export const layer = (service: Service): Layer.Layer<never> => Layer.succeed(Executor, service)
