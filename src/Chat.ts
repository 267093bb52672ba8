/**
 * Repeats steps until an outcome. The stream emits every event of every step in order, then exactly one
 * `ChatCompleted`; a run is its fold. Once it ends, for whatever reason, none of its handlers, timers or model calls is
 * alive: code that refuses to stop is reported as abandoned.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Adapter from "./Adapter.ts"
import type * as Budget from "./Budget.ts"
import * as Collector from "./Collector.ts"
import type * as Event from "./Event.ts"
import * as Inbox from "./Inbox.ts"
import * as SubAgent from "./internal/answer/subAgent.ts"
import type * as Declared from "./internal/declare/tool.ts"
import * as Handles from "./internal/loop/handle.ts"
import * as Loop from "./internal/loop/loop.ts"
import * as Pulled from "./internal/loop/scopedPull.ts"
import * as Turns from "./internal/loop/turns.ts"
import type * as Telemetry from "./internal/telemetry.ts"
import type * as Output from "./Output.ts"
import type * as Rule from "./Rule.ts"
import * as Step from "./Step.ts"
import type * as Thread from "./Thread.ts"
import type * as Tool from "./Tool.ts"

/**
 * Reasons why a run could not start, or a first turn calling an unknown tool under `unknownTool: "failTurn"`. Any other
 * model error after the first event is in the run's result.
 *
 * @category errors
 */
export type ChatError = Step.StepError

export type { Agent } from "./internal/telemetry.ts"

/**
 * Options of a run.
 *
 * @category models
 */
export interface Options<
  Tools extends ReadonlyArray<Tool.Any> = ReadonlyArray<Tool.Any>,
  E = never,
  R = never,
  RHalt = R,
  REvent = R,
  A = unknown
> extends Step.Options<Tools, E, R, REvent> {
  /**
   * Maximum number of model calls, including the last. Under `onMaxTurns: "finalize"` one more follows, without tools.
   * 8 by default; anything but a positive integer is a defect.
   */
  readonly maxTurns?: number | undefined
  /**
   * Ends the run after the first step for which it returns `true` (outcome `HaltWhen`). It runs after each step that
   * does not already end the run; a thrown error fails the run as a defect. Fibers it forks live as long as the run.
   * Stopping the run interrupts the function. Never ends the run by default.
   */
  readonly haltWhen?: ((step: Event.StepResult) => boolean | Effect.Effect<boolean, never, RHalt>) | undefined
  /**
   * `true`, with a `responseFormat`, to run the tools without the format, then make one more call with the format and
   * without tools. That call does not count as a turn. `false` by default.
   */
  readonly structuredFinalize?: boolean
  /** User message before the final call: one line by default; `""` sends no message. */
  readonly finalizePrompt?: string
  /**
   * Rules of the run, asked in order, after `haltWhen` and before the turn limit: they can end the run, but not exceed
   * the limit. Runs started by handlers do not inherit them; for those, use `Rule.layer`. None by default.
   */
  readonly rules?: ReadonlyArray<Rule.Rule<E, R>> | undefined
  /**
   * Changes each step before its request: model, adapter (one of `Adapter.named`), offered tools, system text,
   * sampling. Called once a step, after `rules`. The change is recorded: a repeated request and a resumed run get the
   * same change. A failure in the first step fails the run; later it is the outcome `Failed`. An unknown tool or
   * adapter is a defect, and so is a thrown error. No change by default.
   */
  readonly prepareStep?: ((next: Rule.Place) => Rule.Change | Effect.Effect<Rule.Change, E, R>) | undefined
  /**
   * Typed answer of the run: the model is asked for a value fitting a schema, returned as `result.output`. Combining it
   * with `responseFormat` or `structuredFinalize` is a defect. A text by default.
   */
  readonly output?: Output.Output<A, R> | undefined
  /**
   * Limits on spending by the run and by runs its handlers start, within the enclosing accounts. Each run opens its own
   * account. `result.spent` reports the spending. Unbounded by default.
   */
  readonly budget?: Budget.Budget | undefined
  /**
   * Messages for the running run: delivered between two steps, or before it would complete. An inbox serves one run at
   * a time. None by default.
   */
  readonly inbox?: Inbox.Inbox | undefined
  /**
   * Agent name for the run's span and metrics: `invoke_agent NAME`. A run started by a handler uses its tool's name by
   * default; any other run has no name.
   */
  readonly agent?: Telemetry.Agent | undefined
}

/**
 * Result of a run, with the typed answer decoded. Events and journals hold the encoded answer.
 *
 * @category models
 */
export type Result<A> = [A] extends [never] ? Event.ChatResult
  : Event.ChatResult & {
    /** Typed answer. Absent if the run has no answer: see `Output.get`. */
    readonly output?: A
  }

/**
 * Emits a run's events: every step's, then one `ChatCompleted`.
 *
 * **Details**
 *
 * Cold: nothing runs before the first pull, and the next model call starts only once the reader pulls past
 * `StepCompleted`. Leaving the stream (`Stream.take`, interruption) ends the run: the connection closes, handlers stop
 * within the grace period, and no `ChatCompleted` follows. The stream fails only if the run cannot start, or with an
 * error chosen by `onToolError`.
 *
 * **Example** (Reading a run as it happens)
 *
 * ```ts import.meta.vitest
 * import { Chat } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 * const tags = await Effect.runPromise(
 *   Chat.stream("Hi").pipe(Stream.map((event) => event._tag), Stream.runCollect, Effect.provide(model))
 * )
 *
 * tags.slice(-2) // => ["StepCompleted", "ChatCompleted"]
 * ```
 *
 * @category running
 */
export const stream = <
  const Tools extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never,
  A = never
>(
  input: Thread.Input,
  options: Options<Tools, E, R, RHalt, REvent, A> = {}
): Stream.Stream<
  Event.Event,
  ChatError | Declared.Later<E> | Tool.Fatal<Tools[number]>,
  Declared.Later<R | RHalt | REvent> | Adapter.Adapter | Tool.Services<Tools[number]>
> => {
  type Services = R | RHalt | REvent
  type Entered = Effect.Effect<Pulled.Next<Event.Event, ChatError | E, Services>, ChatError, Services>
  const enter = (scope: Scope.Scope, context: Context.Context<Services>): Entered =>
    Loop.enter<E, Services>(input, options, true, scope, context)
  // A run inside a recorded run is recorded too.
  return Pulled.stream((scope, context: Context.Context<Services>): Entered => {
    const nesting = Context.get(context, SubAgent.CurrentNesting)
    return nesting === undefined
      ? enter(scope, context)
      : Pulled.open(nesting.stream(input, options, Pulled.stream(enter)), scope)
  })
}

/**
 * Awaits a run: the fold of {@link stream}.
 *
 * **Details**
 *
 * It succeeds with a result whatever the model and the tools do; `outcome` tells how the run ended. Under
 * `unknownTool: "failTurn"` it fails if the first turn calls a nonexistent tool.
 *
 * **Example** (Matching the outcome)
 *
 * ```ts import.meta.vitest
 * import { Chat, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Schema from "effect/Schema"
 *
 * const weather = Tool.make("weather", {
 *   parameters: { city: Schema.String },
 *   handler: ({ city }) => city === "?" ? Effect.succeed(Tool.askUser("Which city?")) : Effect.succeed({ celsius: 7 })
 * })
 * const model = Script.layer([[Script.toolCall("c0", "weather", { city: "?" }), Script.finish("tool_calls")]])
 * const result = await Effect.runPromise(Chat.run("Weather?", { tools: [weather] }).pipe(Effect.provide(model)))
 *
 * result.outcome._tag // => "AskUser"
 * result.pendingQuestion // => "Which city?"
 * ```
 *
 * @category running
 */
export const run = <
  const Tools extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never,
  A = never
>(
  input: Thread.Input,
  options: Options<Tools, E, R, RHalt, REvent, A> = {}
): Effect.Effect<
  Result<A>,
  ChatError | Declared.Later<E> | Tool.Fatal<Tools[number]>,
  Declared.Later<R | RHalt | REvent> | Adapter.Adapter | Tool.Services<Tools[number]>
> =>
  Effect.suspend(() => {
    let last: Event.Event | undefined
    const read = Stream.runForEachArray(stream(input, options), (events) =>
      Effect.sync(() => {
        last = events[events.length - 1]
      }))
    return Effect.flatMap(read, () => resultOf(last, options.output))
  })

/** Returns a run's result from its last event. */
const resultOf = <A, R>(
  last: Event.Event | undefined,
  output: Turns.Decodes<A, R> | null | undefined
): Effect.Effect<Result<A>, Step.EngineError, R> => {
  const result = Collector.toChatResult(Collector.applyAll(Collector.initial(), last === undefined ? [] : [last]))
  const error = result.steps[0]?.response.error
  return error instanceof Step.EngineError
    ? Effect.fail(error)
    : Turns.decoded(result, output) as Effect.Effect<Result<A>, never, R>
}

/**
 * A running run. It reads itself: its events need no reader.
 *
 * @category models
 */
export interface Handle<A, E> {
  /**
   * Events of the run; each can be read once. The run never waits for a reader. From 1,024 unread events on, it joins
   * the pieces of a text, keeps only the last progress of each call and the last `OutputPartial`, and drops provider
   * chunks without usage. The stream ends with the run, or fails like `result`.
   */
  readonly events: Stream.Stream<Event.Event, E>
  /** Waits for the run's result, as from `Chat.run`. Awaiting it is optional, and may be repeated. */
  readonly result: Effect.Effect<Result<A>, E>
  /**
   * Stops the run softly, like the option `cancel`, and returns at once: `result` has the outcome `Cancelled`. The
   * model reads the reason in the stopped calls' answers.
   */
  readonly cancel: (reason?: string) => Effect.Effect<void>
  /**
   * Stops one call, like `call.cancelCall`: by its id or, for a run inside handlers, by its path, such as `"c0/c1"`.
   * Succeeds with `false` if no such call exists, or if it has already been answered or stopped.
   */
  readonly cancelCall: (path: string, reason?: string) => Effect.Effect<boolean>
  /** Inbox of the run: the option `inbox`, or a new inbox. It refuses messages after the run has ended. */
  readonly inbox: Inbox.Inbox
}

/**
 * Starts a run immediately and returns its handle. The run ends with the scope.
 *
 * **Details**
 *
 * It fails if the run cannot start; `result` and `events` report every later failure. If the scope closes first, the
 * run ends as if its reader had left: its handlers stop, and `result` is interrupted.
 *
 * **Example** (Stopping one call, and keeping the run)
 *
 * ```ts import.meta.vitest
 * import { Chat, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const slow = Tool.make("slow", { parameters: {}, handler: () => Effect.never })
 * const model = Script.layer([
 *   [Script.toolCall("c0", "slow"), Script.finish("tool_calls")],
 *   [Script.text("Without it, then."), Script.finish("stop")]
 * ])
 * const program = Effect.gen(function*() {
 *   const run = yield* Chat.start("Go", { tools: [slow] })
 *   yield* Stream.runForEach(run.events, (event) =>
 *     event._tag === "ToolExecutionStarted" ? run.cancelCall(event.id, "the user does not want it") : Effect.void)
 *   return yield* run.result
 * })
 * const result = await Effect.runPromise(program.pipe(Effect.scoped, Effect.provide(model)))
 *
 * result.finalResponse?.outputText // => "Without it, then."
 * ```
 *
 * @category running
 */
export const start = <
  const Tools extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never,
  A = never
>(
  input: Thread.Input,
  options: Options<Tools, E, R, RHalt, REvent, A> = {}
): Effect.Effect<
  Handle<A, ChatError | Declared.Later<E> | Tool.Fatal<Tools[number]>>,
  ChatError,
  Declared.Later<R | RHalt | REvent> | Adapter.Adapter | Tool.Services<Tools[number]> | Scope.Scope
> => {
  type Failures = ChatError | E | Tool.Fatal<Tools[number]>
  const started = Effect.suspend(() => {
    const inbox = options.inbox ?? Inbox.make()
    const begun = Handles.start(stream(input, { ...options, inbox }), (last) => resultOf(last, options.output))
    return Effect.map(begun, (handle) => ({ ...handle, inbox }))
  })
  // A run fails with nothing else before it is entered.
  return started as Effect.Effect<Handle<A, Failures>, ChatError, Effect.Services<typeof started>>
}
