/**
 * One model turn and its tools: the primitive of the loop, and of callers that drive a loop of their own. Its stream is
 * the adapter's events, then the tools', then exactly one `StepCompleted`.
 *
 * @since 0.1.0
 */
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Adapter from "./Adapter.ts"
import * as Collector from "./Collector.ts"
import type * as Event from "./Event.ts"
import * as Settings from "./internal/ask/options.ts"
import * as Request from "./internal/ask/request.ts"
import * as Plan from "./internal/decide/plan.ts"
import * as ToolOptions from "./internal/declare/toolOptions.ts"
import * as Fold from "./internal/fold/state.ts"
import * as Turn from "./internal/loop/runEnvironment.ts"
import * as Pulled from "./internal/loop/scopedPull.ts"
import * as StepRun from "./internal/loop/stepRun.ts"
import * as Now from "./internal/now.ts"
import * as Ambient from "./internal/stop/inherited.ts"
import { Running } from "./internal/stop/ownedFibers.ts"
import * as Telemetry from "./internal/telemetry.ts"
import * as Policy from "./Policy.ts"
import * as Thread from "./Thread.ts"
import type * as Tool from "./Tool.ts"

/**
 * The run cannot be driven as asked.
 *
 * @category errors
 * @since 0.1.0
 */
export const EngineError = Plan.EngineError

/**
 * @see {@link EngineError}
 *
 * @category errors
 * @since 0.1.0
 */
export type EngineError = Plan.EngineError

/**
 * Why a step could not be started. What goes wrong after the model's first event is told in the step's result.
 *
 * @category errors
 * @since 0.1.0
 */
export type StepError = Thread.ValidationError | EngineError | Adapter.AdapterError

/**
 * How a step is run.
 *
 * @category models
 * @since 0.1.0
 */
export interface Options<
  Tools extends ReadonlyArray<Tool.Any> = ReadonlyArray<Tool.Any>,
  E = never,
  R = never,
  REvent = R
> extends Settings.RunnerOptions<E, R, Tool.Failure<Tools[number]>>, Request.ModelOptions, Turn.View<REvent> {
  /**
   * What the model may call, besides the tools of `Policy.Defaults`; one of the same name replaces it. None by default.
   */
  readonly tools?: Tools
  /** `"manual"` runs no call and hands all of them to the caller. `"auto"` by default. */
  readonly mode?: "auto" | "manual"
  /**
   * A schedule on which the model is asked again for a reply that broke, before or after its first event. Only errors
   * that may pass are tried again: those that are `isRetryable`, and `malformed_response`. Once a tool has started on
   * the word of the reply, the reply is not asked for again. Each reply has the whole schedule to itself, and waits at
   * least as long as the provider asks for. A `StepReset` in the stream says that what came of the reply counts as not
   * said; what it cost stays in `usage`. Never by default.
   */
  readonly retryReply?: Schedule.Schedule<unknown, Adapter.AdapterError> | null
}

/**
 * What a run with these tools needs.
 *
 * @category utility types
 * @since 0.1.0
 */
export type Services<Tools extends ReadonlyArray<Tool.Any>> = Adapter.Adapter | Tool.Services<Tools[number]>

/**
 * A run that has been checked and not started: its thread, and what its steps share.
 *
 * @category models
 * @since 0.1.0
 */
export interface Prepared<E, R> {
  /** The thread that the run starts from. */
  readonly thread: Thread.Thread
  /** What its steps share. */
  readonly run: Turn.Run<E, R>
}

/**
 * Checks the input and the options, and makes what the steps of a run share. Handlers that are alive when `scope`
 * closes are stopped.
 *
 * @category running
 * @since 0.1.0
 */
export const prepare = <Tools extends ReadonlyArray<Tool.Any>, E, R>(
  input: Thread.Input,
  options: Options<Tools, E, R>,
  scope: Scope.Scope,
  spanName: string
): Effect.Effect<Prepared<E, R>, Thread.ValidationError | EngineError, R> =>
  Effect.suspend((): Effect.Effect<Prepared<E, R>, Thread.ValidationError | EngineError, R> => {
    const context = Now.services<R>()
    const defaults = Context.get(context, Policy.Defaults)
    const settings = Settings.resolve(options, defaults, Policy.standard, Settings.mintRequestId(context))
    const given: ReadonlyArray<Tool.Any> = options.tools ?? []
    const tools = ToolOptions.toolbox(defaults.tools ?? [], given)
    const adapter = Context.getOrUndefined(context, Adapter.Adapter)
    if (adapter === undefined) {
      return Effect.fail(new EngineError({ reason: "missing_adapter", detail: "provide an Adapter with a Layer" }))
    }
    const valid = Thread.validate(input)
    if (Result.isFailure(valid)) return Effect.fail(valid.failure)
    const thread = valid.success
    const unpaired = Request.pairingIssues(thread.messages)
    if (unpaired.length > 0) {
      return Effect.fail(new Thread.ValidationError({ reason: "invalid_thread", errors: unpaired }))
    }
    const template = Request.template(options, defaults, tools)
    const errors = Request.issues(thread.messages, template, given, tools)
    if (errors.length > 0) return Effect.fail(new Thread.ValidationError({ reason: "invalid_request", errors }))
    const made = { adapter, settings, template, tools }
    return enter(context, { thread, made, options }, scope, spanName)
  })

/** What of a run can be said before it is entered. */
interface Ready<E, R> {
  readonly thread: Thread.Thread
  readonly made: Pick<Turn.Run<E, R>, "adapter" | "settings" | "template" | "tools">
  readonly options: Options<ReadonlyArray<Tool.Any>, E, R>
}

/** Enters a run: what it holds is returned when the scope closes. */
const enter = <E, R>(
  context: Context.Context<R>,
  { made, options, thread }: Ready<E, R>,
  scope: Scope.Scope,
  spanName: string
): Effect.Effect<Prepared<E, R>, never, R> => {
  const { adapter, settings, template, tools } = made
  const { policy, requestId } = settings
  const mode = options.mode ?? "auto"
  const running = new Running(settings.graceMillis, context as Context.Context<never>)
  const isTraced = Telemetry.isTraced(context as Context.Context<never>)
  const spanned = Telemetry.spanOf(isTraced, scope, spanName, () => ({ "heddle.request.id": requestId }))
  return Now.flatMap(
    spanned,
    (within) =>
      Now.flatMap(
        Ambient.enter(settings, options.cancel, scope),
        (ambient) =>
          Effect.map(leaving(running, scope), () => {
            Ambient.listen(running, ambient, options.cancel, requestId)
            const state = Fold.initial(policy, { thread, requestId })
            ambient.spending.of(state)
            const run = {
              adapter,
              system: options.system,
              mode,
              settings,
              template,
              tools,
              startsEarly: mode === "auto" &&
                Array.from(tools.values()).some((tool) => Plan.mayStartEarly(tool, policy)),
              view: options,
              retryReply: options.retryReply ?? undefined,
              running,
              ambient,
              state,
              isTraced,
              within
            } as const
            return { thread, run: Turn.begun(run) }
          })
      )
  )
}

/** A function of its own, since it is kept as long as the run, and keeps all that it is made beside. */
const leaving = (running: Running, scope: Scope.Scope): Effect.Effect<void> =>
  Scope.addFinalizerExit(scope, (exit) => running.end(exit))

/**
 * The events of one step. Cold: nothing runs before the first pull. Leaving it closes the connection and stops every
 * handler.
 *
 * @category running
 * @since 0.1.0
 */
export const stream = <const Tools extends ReadonlyArray<Tool.Any> = [], E = never, R = never, REvent = never>(
  input: Thread.Input,
  options: Options<Tools, E, R, REvent> = {}
): Stream.Stream<
  Event.Event,
  StepError | E | Tool.Fatal<Tools[number]>,
  R | REvent | Adapter.Adapter | Tool.Services<Tools[number]>
> =>
  Pulled.stream((scope) =>
    Effect.flatMap(
      prepare<Tools, E, R | REvent>(input, options, scope, "heddle.step.run"),
      ({ run, thread }) =>
        StepRun.open(Now.services<R | REvent>(), run, {
          thread,
          stepIndex: 0,
          following: { after: () => Cause.done() }
        })
    )
  )

/**
 * One step, awaited: the fold of {@link stream}. Under `unknownTool: "failTurn"` a call that names no tool fails it.
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
 * @since 0.1.0
 */
export const run = <const Tools extends ReadonlyArray<Tool.Any> = [], E = never, R = never, REvent = never>(
  input: Thread.Input,
  options: Options<Tools, E, R, REvent> = {}
): Effect.Effect<
  Event.StepResult,
  StepError | E | Tool.Fatal<Tools[number]>,
  R | REvent | Adapter.Adapter | Tool.Services<Tools[number]>
> =>
  Effect.suspend(() => {
    const defaults = Context.get(Now.services(), Policy.Defaults)
    const policy = options.policy ?? defaults.policy ?? Policy.standard
    const state = Fold.initial(policy, { thread: Thread.empty })
    const read = Stream.runForEachArray(
      stream(input, options),
      (events) => Effect.sync(() => Fold.apply(state, events))
    )
    return Effect.flatMap(read, () => {
      const result = Collector.toStepResult(state)
      const { error } = result.response
      return error instanceof EngineError ? Effect.fail(error) : Effect.succeed(result)
    })
  })
