/**
 * Runs the tool calls of a turn. Every call is answered exactly once, whatever happens to it; handlers are fibers the
 * run owns, bounded in number and in time, and none is alive when the run has ended.
 *
 * @since 0.1.0
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Pull from "effect/Pull"
import * as Scope from "effect/Scope"
import type * as Stream from "effect/Stream"
import * as Encoder from "./Encoder.ts"
import type * as Event from "./Event.ts"
import * as Executor from "./Executor.ts"
import * as Settings from "./internal/ask/options.ts"
import * as Plan from "./internal/decide/plan.ts"
import type * as Declared from "./internal/declare/tool.ts"
import * as ToolOptions from "./internal/declare/toolOptions.ts"
import * as Fold from "./internal/fold/state.ts"
import * as Pulled from "./internal/loop/scopedPull.ts"
import { Batch } from "./internal/run/batch.ts"
import * as Ambient from "./internal/stop/inherited.ts"
import { Running } from "./internal/stop/ownedFibers.ts"
import * as Telemetry from "./internal/telemetry.ts"
import type * as Message from "./Message.ts"
import * as Policy from "./Policy.ts"
import type * as Tool from "./Tool.ts"

/**
 * What happens after a call failed: `"continue"` hands the error to the model, `"halt"` ends the run, and a function
 * `(call, error)` returns an Effect of a `Tool.ErrorDecision`. It is asked once per failing call, outside the call's
 * timeout, and gets what the handler reported (`Failure`, of all tools of the run) or a `Tool.ToolError`. A tool's own
 * `onToolError` goes before it.
 *
 * **Gotchas**
 *
 * It decides also about calls that never ran since the model wrote them wrong: those with the reason `unknown_tool`,
 * `invalid_arguments` or `truncated_arguments`. With `"halt"`, or a function that does not look at `error.reason`, a slip of
 * the model ends your run. It does not decide about calls that were `denied` or `cancelled`.
 *
 * @category models
 * @since 0.1.0
 */
export type OnToolError<E = never, R = never, Failure = unknown> = Declared.OnToolError<E, R, Failure>

/**
 * How calls are run.
 *
 * - `toolTimeout` (30 s): per call, from the start of its handler; a tool's own `timeout` wins; `"infinity"` for none. The
 *   call is answered when its time is up, also where its handler does not stop, and the model goes on. The handler then
 *   keeps its place for the grace period, and the end of the run waits for it that long.
 * - `maxConcurrency`: handlers at once; by default twice the number of cores, at most one per call.
 * - `context`: what handlers get as `call.context`; replaces the application's.
 * - `grace` (5 s): how long a handler may take to stop before it is abandoned; after its answer, how long the fibers may
 *   take that it has forked. Until then it keeps its place.
 * - `requestId`, `sessionId`: handed to handlers; a request id is made when none is given.
 * - `deadline`: when the run is stopped softly, from its start (`Limits.DeadlineInput`), its tools earlier by what is kept
 *   for a last answer of the model. What does not stop at once has its `grace` on top, and uses up that time: let `reserve`
 *   be more than `grace`. The earlier of it and what a run around this one has left counts.
 * - `cancel`: an `AbortSignal`, or an effect that succeeds, to stop softly: nothing starts any more, running handlers are
 *   interrupted (those with `interrupt: "block"` finish), and every call is answered.
 * - `approved`: the ids of calls that are allowed to run. Without it a call whose tool asks for an approval is not run, and
 *   stands in the result's `suspensions`.
 *
 * @category models
 * @since 0.1.0
 */
export interface Options<E = never, R = never, Failure = unknown> extends Settings.RunnerOptions<E, R, Failure> {
  /** The index of the step that the calls are of, as handlers read it: `0` if none is given. */
  readonly stepIndex?: number
  /** The ids of calls that are allowed to run although their tools ask for an approval. */
  readonly approved?: ReadonlyArray<string>
}

/**
 * The answers in the order of the calls, one per call, and the halt that decides, if a tool halted. `contextUpdate` is
 * what handlers added to the context, merged in call order; `suspensions` are the calls that wait for somebody, of which
 * those that wait for an approval have no message; `abandoned` names handlers that refused to stop.
 *
 * @category models
 * @since 0.1.0
 */
export interface Result {
  readonly messages: ReadonlyArray<Message.Message>
  readonly halt?: Event.Halt
  readonly contextUpdate?: Readonly<Record<string, unknown>>
  readonly suspensions?: ReadonlyArray<Event.Suspension>
  readonly abandoned?: ReadonlyArray<Event.Abandoned>
}

/** A call as a provider or a caller may write it. */
type Call = Omit<Message.ToolCall, "arguments" | "metadata"> & {
  readonly arguments?: Message.ToolCall["arguments"] | null
  readonly metadata?: Message.ToolCall["metadata"]
}

type ServicesOf<Tools extends ReadonlyArray<Tool.Any>> = Tool.Services<Tools[number]>

/**
 * A batch of calls inside a run: what a step opens for its turn. `calls` is how many are expected at most, `Infinity`
 * when nobody knows. Its handlers belong to `running`; whoever opens it has to close it.
 *
 * @category running
 * @since 0.1.0
 */
export const open = <E, R>(
  context: Context.Context<R>,
  calls: number,
  settings: Settings.Settings<E, R>,
  stepIndex: number,
  running: Running,
  ambient: Ambient.Ambient
): Batch<E> =>
  new Batch<E>({
    found: find(context, ambient),
    settings,
    bound: settings.maxConcurrency ?? Settings.defaultBound(calls),
    stepIndex,
    running,
    ambient
  })

/** What a batch needs of the services of a step. It is looked up once for all steps that have the same. */
const find = <R>(context: Context.Context<R>, ambient: Ambient.Ambient): Ambient.Found => {
  if (ambient.found?.context === context) return ambient.found
  return ambient.found = {
    context,
    executor: Context.get(context, Executor.Executor),
    encoder: Context.get(context, Encoder.Encoder),
    services: Ambient.forHandlers(context, ambient),
    clock: Context.get(context, Clock.Clock),
    isTraced: Telemetry.isTraced(context)
  }
}

/**
 * A batch that is closed with the scope, of a run that ends with it.
 *
 * @category running
 * @since 0.1.0
 */
export const openScoped = <E, R>(
  calls: number,
  settings: Settings.Settings<E, R>,
  options: { readonly stepIndex?: number; readonly cancel?: Settings.RunnerOptions<E, R>["cancel"] | undefined },
  scope: Scope.Scope
): Effect.Effect<Opened<E>, never, R> =>
  Effect.contextWith((context: Context.Context<R>) => {
    const running = new Running(settings.graceMillis, context as Context.Context<never>)
    return Effect.flatMap(Ambient.enter(settings, options.cancel, scope), (ambient) => {
      const batch = open<E, R>(context, calls, settings, options.stepIndex ?? 0, running, ambient)
      const leaving = Effect.suspend(() => {
        const closed = batch.close()
        return Effect.andThen(running.end(Exit.void), closed)
      })
      return Effect.map(Scope.addFinalizer(scope, leaving), () => {
        Ambient.listen(running, ambient, options.cancel, settings.requestId)
        return { ambient, batch, running }
      })
    })
  }).pipe(
    // A batch listens and waits from the start: nothing can come between that and the scope that ends it.
    Effect.uninterruptible
  )

/**
 * A batch and the run that it is of.
 *
 * @category models
 * @since 0.1.0
 */
export interface Opened<E> {
  readonly ambient: Ambient.Ambient
  readonly batch: Batch<E>
  readonly running: Running
}

interface Prepared<E, R> {
  readonly settings: Settings.Settings<E, R>
  readonly tools: ToolOptions.Toolbox
  readonly calls: ReadonlyArray<Message.ToolCall>
  readonly unknown: Plan.EngineError | undefined
}

const toCall = (call: Call): Message.ToolCall => ({
  ...call,
  arguments: call.arguments ?? {},
  metadata: call.metadata ?? {}
})

const prepare = <E, R>(
  calls: ReadonlyArray<Call>,
  tools: ReadonlyArray<Tool.Any>,
  options: Options<E, R, any>
): Effect.Effect<Prepared<E, R>> =>
  Effect.contextWith((context: Context.Context<never>) => {
    const defaults = Context.get(context, Policy.Defaults)
    const resolved = Settings.resolve(options, defaults, Policy.standard, Settings.mintRequestId(context))
    const settings = { ...resolved, approved: new Set(options.approved) }
    const byName = ToolOptions.toolbox(defaults.tools ?? [], tools)
    const normalised = calls.map(toCall)
    const unknown = Plan.failing(normalised, byName, settings.policy)
    return Effect.succeed({ settings, tools: byName, calls: normalised, unknown })
  })

/** The batch of a run of its own, whose handlers are stopped when the scope closes. */
const openAlone = <E, R>(
  { calls, settings, tools }: Prepared<E, R>,
  options: Options<E, R, any>,
  scope: Scope.Scope
): Effect.Effect<Opened<E>, never, R> =>
  Effect.map(openScoped<E, R>(calls.length, settings, options, scope), (opened) => {
    opened.batch.add(calls.map((call, index) => Plan.planned(index, call, tools, settings.policy)))
    opened.batch.seal()
    return opened
  })

/**
 * The events of a batch. Nothing starts before the first pull; from then on no handler waits for the reader. Leaving
 * the stream stops every handler. Under `unknownTool: "failTurn"` a call that names no tool gives one `Error` event.
 *
 * **Example** (Events of one call)
 *
 * ```ts import.meta.vitest
 * import { Message, Tool, ToolRunner } from "heddle"
 * import * as Effect from "effect/Effect"
 * import * as Schema from "effect/Schema"
 * import * as Stream from "effect/Stream"
 *
 * const echo = Tool.make("echo", {
 *   parameters: { x: Schema.Finite },
 *   handler: (args) => Effect.succeed(args)
 * })
 * const events = await Effect.runPromise(
 *   Stream.runCollect(ToolRunner.stream([Message.toolCall("c0", "echo", { x: 1 })], [echo]))
 * )
 *
 * events.map((event) => event._tag)
 * // => ["ToolExecutionStarted", "ToolExecutionCompleted", "ToolResultEncoded"]
 * ```
 *
 * @category running
 * @since 0.1.0
 */
export const stream = <const Tools extends ReadonlyArray<Tool.Any>, E = never, R = never>(
  calls: ReadonlyArray<Call>,
  tools: Tools,
  options: Options<E, R, Tool.Failure<Tools[number]>> = {}
): Stream.Stream<Event.Event, E | Tool.Fatal<Tools[number]>, R | ServicesOf<Tools>> =>
  Pulled.stream((scope) =>
    Effect.gen(function*() {
      const prepared = yield* prepare(calls, tools, options)
      if (prepared.unknown !== undefined) return single({ _tag: "Error", error: prepared.unknown })
      const { batch } = yield* openAlone(prepared, options, scope)
      return { next: () => batch.pull }
    })
  )

const single = (event: Event.Event): Pulled.Source<Event.Event, never, never> => {
  let isOut = false
  return {
    next: () => {
      if (isOut) return Cause.done()
      isOut = true
      return Effect.succeed([event] as const)
    }
  }
}

/**
 * Runs a batch and awaits its answers, in call order. It drives the same batch as {@link stream}.
 *
 * **Example** (Two calls at once)
 *
 * ```ts import.meta.vitest
 * import { Message, Tool, ToolRunner } from "heddle"
 * import * as Effect from "effect/Effect"
 * import * as Schema from "effect/Schema"
 *
 * const double = Tool.make("double", {
 *   parameters: { n: Schema.Finite },
 *   handler: ({ n }) => Effect.succeed(n * 2)
 * })
 * const result = await Effect.runPromise(ToolRunner.run(
 *   [Message.toolCall("a", "double", { n: 2 }), Message.toolCall("b", "double", { n: "two" })],
 *   [double]
 * ))
 *
 * result.messages[0]?.content // => "4"
 * result.messages[1]?.isError // => true
 * ```
 *
 * @category running
 * @since 0.1.0
 */
export const run = <const Tools extends ReadonlyArray<Tool.Any>, E = never, R = never>(
  calls: ReadonlyArray<Call>,
  tools: Tools,
  options: Options<E, R, Tool.Failure<Tools[number]>> = {}
): Effect.Effect<Result, Plan.EngineError | E | Tool.Fatal<Tools[number]>, R | ServicesOf<Tools>> =>
  Effect.scopedWith((scope) =>
    Effect.gen(function*() {
      const prepared = yield* prepare(calls, tools, options)
      if (prepared.unknown !== undefined) return yield* prepared.unknown
      const { batch, running } = yield* openAlone(prepared, options, scope)
      yield* drain(batch.pull)
      const abandoned = yield* running.stop
      const { halt, suspensions } = batch
      const contextUpdate = Fold.mergeUpdates(batch.answers.map((answer) => answer.contextUpdate))
      return {
        messages: batch.answers.map((answer) => answer.message),
        ...(halt === undefined ? {} : { halt }),
        ...(contextUpdate === undefined ? {} : { contextUpdate }),
        ...(suspensions.length === 0 ? {} : { suspensions }),
        ...(abandoned.length === 0 ? {} : { abandoned })
      }
    })
  )

const drain = <E>(pull: Pull.Pull<unknown, E>): Effect.Effect<void, E> =>
  Pull.catchDone(Effect.forever(pull, { disableYield: true }), () => Effect.void)
