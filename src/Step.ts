/**
 * One model turn and its tools: the primitive of the loop, and for callers with their own loop. The stream emits the
 * adapter's events, then the tools', then exactly one `StepCompleted`.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import type * as Adapter from "./Adapter.ts"
import type * as Event from "./Event.ts"
import type * as Settings from "./internal/ask/options.ts"
import type * as Requests from "./internal/ask/request.ts"
import * as Plan from "./internal/decide/plan.ts"
import type * as Declared from "./internal/declare/tool.ts"
import * as Fold from "./internal/fold/fold.ts"
import * as Loop from "./internal/loop/loop.ts"
import * as Pulled from "./internal/loop/scopedPull.ts"
import * as Policy from "./Policy.ts"
import * as Thread from "./Thread.ts"
import type * as Tool from "./Tool.ts"

export { EngineError } from "./internal/decide/plan.ts"

/**
 * Reasons why a step could not start, or a call to an unknown tool under `unknownTool: "failTurn"`. Any other model
 * error after the first event is in the step's result.
 *
 * @category errors
 */
export type StepError = Thread.ValidationError | Plan.EngineError | Adapter.AdapterError

/**
 * Options of a step.
 *
 * @category models
 */
export interface Options<
  Tools extends ReadonlyArray<Tool.Any> = ReadonlyArray<Tool.Any>,
  E = never,
  R = never,
  REvent = R
> extends Settings.RunnerOptions<E, R, Tool.Failure<Tools[number]>>, Requests.ModelOptions, Loop.View<REvent> {
  /**
   * Tools offered to the model, in addition to those in `Policy.Defaults`; a tool here replaces a default tool with the
   * same name. None by default.
   */
  readonly tools?: Tools
  /** `"manual"` runs no calls and hands all of them to the caller. `"auto"` by default. */
  readonly mode?: "auto" | "manual"
  /**
   * Schedule for asking the model again after a broken reply, before or after its first event. Only possibly transient
   * errors are retried: those with `isRetryable`, and `malformed_response`. Once a tool has started because of the
   * reply, the reply is not retried. Each reply has its own schedule, and waits at least as long as the provider
   * requests. A `StepReset` in the stream discards the reply's events; the cost stays in `usage`. Never by default.
   */
  readonly retryReply?: Schedule.Schedule<unknown, Adapter.AdapterError> | undefined
}

/**
 * Services required by a run with these tools.
 *
 * @category utility types
 */
export type Services<Tools extends ReadonlyArray<Tool.Any>> = Adapter.Adapter | Tool.Services<Tools[number]>

/**
 * Emits the events of one step. Cold: nothing runs before the first pull. Leaving the stream closes the connection and
 * stops every handler.
 *
 * **Example** (The events of a step)
 *
 * ```ts import.meta.vitest
 * import { Step } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 * const tags = await Effect.runPromise(
 *   Step.stream("Hi").pipe(Stream.map((event) => event._tag), Stream.runCollect, Effect.provide(model))
 * )
 *
 * tags.at(-1) // => "StepCompleted"
 * ```
 *
 * @category running
 */
export const stream = <const Tools extends ReadonlyArray<Tool.Any> = [], E = never, R = never, REvent = never>(
  input: Thread.Input,
  options: Options<Tools, E, R, REvent> = {}
): Stream.Stream<
  Event.Event,
  StepError | Declared.Later<E> | Tool.Fatal<Tools[number]>,
  Declared.Later<R | REvent> | Adapter.Adapter | Tool.Services<Tools[number]>
> => Pulled.stream((scope, context) => Loop.enter<E, R | REvent>(input, options, false, scope, context))

/**
 * Awaits one step: the fold of {@link stream}. Under `unknownTool: "failTurn"` a call to an unknown tool fails the
 * effect.
 *
 * **Example** (One turn with a tool)
 *
 * ```ts import.meta.vitest
 * import { Message, Step, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const ping = Tool.make("ping", { parameters: {}, handler: () => Effect.succeed("pong") })
 * const model = Script.layer([[Script.toolCall("c0", "ping"), Script.finish("tool_calls")]])
 * const step = await Effect.runPromise(
 *   Step.run([Message.user("go")], { tools: [ping] }).pipe(Effect.provide(model))
 * )
 *
 * step.done // => false
 * step.toolResults.map((message) => message.content) // => ["pong"]
 * ```
 *
 * @category running
 */
export const run = <const Tools extends ReadonlyArray<Tool.Any> = [], E = never, R = never, REvent = never>(
  input: Thread.Input,
  options: Options<Tools, E, R, REvent> = {}
): Effect.Effect<
  Event.StepResult,
  StepError | Declared.Later<E> | Tool.Fatal<Tools[number]>,
  Declared.Later<R | REvent> | Adapter.Adapter | Tool.Services<Tools[number]>
> =>
  Effect.contextWith((context: Context.Context<R | REvent | Adapter.Adapter | Tool.Services<Tools[number]>>) => {
    const defaults = Context.get(context, Policy.Defaults)
    const policy = options.policy ?? defaults.policy ?? Policy.standard
    const state = Fold.initial(policy, { thread: Thread.empty })
    const read = Stream.runForEachArray(
      stream(input, options),
      (events) => Effect.sync(() => Fold.apply(state, events))
    )
    return Effect.flatMap(read, () => {
      const result = Fold.toStepResult(state)
      const { error } = result.response
      return error instanceof Plan.EngineError ? Effect.fail(error) : Effect.succeed(result)
    })
  })
