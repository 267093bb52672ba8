/**
 * The seam that runs one tool call, in a scope of its own. Whatever goes wrong inside the handler becomes an outcome;
 * only a caller's mistake is a defect, and interruption of the caller stays interruption. An executor neither retries
 * nor times out: that is the runner's.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Direct from "./internal/run/localExecutor.ts"
import type * as Tool from "./Tool.ts"

/**
 * An executor. `args` are the call's arguments, already decoded by the tool's parameters; `call` reaches the handler
 * as it is.
 *
 * @category services
 * @since 0.1.0
 */
export interface Service {
  readonly execute: <T extends Tool.Any>(
    tool: T,
    args: unknown,
    call: Tool.CallContext
  ) => Effect.Effect<Tool.Outcome<T>, never, Tool.Services<T>>
}

/**
 * The default executor: it calls the handler.
 *
 * @category constructors
 * @since 0.1.0
 */
export const direct: Service = Direct.direct

/**
 * The executor of a run. A Context reference: without a layer it is {@link direct}.
 *
 * @category references
 * @since 0.1.0
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
 * @since 0.1.0
 */
export const layer = (service: Service): Layer.Layer<never> => Layer.succeed(Executor, service)
