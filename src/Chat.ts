/**
 * Steps repeated until an outcome. Its stream is every event of every step in order and then exactly one
 * `ChatCompleted`; a run is its fold. When it ends, for whatever reason, no handler, timer or model call of it is
 * alive.
 *
 * @since 0.1.0
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
 * The reasons why a run could not be started. Once its first model call has begun, a run always ends in a result.
 *
 * @category errors
 * @since 0.1.0
 */
export type ChatError = Step.StepError

export type { Agent } from "./internal/telemetry.ts"

/**
 * The options of a run.
 *
 * @category models
 * @since 0.1.0
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
   * The number of model calls that the run may make, the last one included. Under `onMaxTurns: "finalize"` one more
   * follows, without tools. 8 by default; a number that is no positive integer is a defect.
   */
  readonly maxTurns?: number | undefined
  /**
   * Ends the run after the first step for which it returns `true` (outcome `HaltWhen`). It runs after each step that
   * does not end the run by itself; what it throws fails the run as a defect. Fibers it forks live as long as the run.
   * When the run is stopped while it runs, it is interrupted. Never by default.
   */
  readonly haltWhen?: ((step: Event.StepResult) => boolean | Effect.Effect<boolean, never, RHalt>) | undefined
  /**
   * `true`, with a `responseFormat`, to run the tools without the format, and then to make one more call with the
   * format and without tools, which does not count as a turn. `false` by default.
   */
  readonly structuredFinalize?: boolean
  /** The user message that leads in that call: a text of one line by default, none for `""`. */
  readonly finalizePrompt?: string
  /**
   * Rules of the run, asked in their order, behind `haltWhen` and before the bound of turns: they can end the run, and
   * cannot exceed it. They do not reach runs that handlers start; `Rule.layer` does. None by default.
   */
  readonly rules?: ReadonlyArray<Rule.Rule<E, R>> | undefined
  /**
   * Changes each step before its request: the model, the adapter (one of `Adapter.named`), the offered tools, the
   * system text, the sampling. Called once a step, behind `rules`. Its change is recorded: a repeated request and a
   * resumed run have the same one. A failure fails the run in its first step, and is the outcome `Failed` later. An
   * unknown tool or adapter, and what it throws, is a defect. No change by default.
   */
  readonly prepareStep?: ((next: Rule.Place) => Rule.Change | Effect.Effect<Rule.Change, E, R>) | undefined
  /**
   * The typed answer of the run: the model is asked for a value that fits a schema. `result.output` is that value. Not
   * beside `responseFormat` and `structuredFinalize`, which is a defect. A text by default.
   */
  readonly output?: Output.Output<A, R> | undefined
  /**
   * The bounds of what the run may spend, with the runs that its handlers start, also within the accounts around it.
   * Each run opens an account of its own. `result.spent` says what was spent. No bound by default.
   */
  readonly budget?: Budget.Budget | undefined
  /**
   * The messages that reach the run while it works: delivered between two steps, or before it would complete. One run
   * at a time has an inbox. None by default.
   */
  readonly inbox?: Inbox.Inbox | undefined
  /**
   * The agent that the run is, for its span and its metrics: `invoke_agent NAME`. A run that a handler starts goes by
   * the name of the tool by default, any other has no name.
   */
  readonly agent?: Telemetry.Agent | undefined
}

/**
 * The result of a run, with the typed answer as a value. Events and journals have it encoded.
 *
 * @category models
 * @since 0.1.0
 */
export type Result<A> = [A] extends [never] ? Event.ChatResult
  : Event.ChatResult & {
    /** The typed answer. Left out where the run has no answer: see `Output.get`. */
    readonly output?: A
  }

/**
 * The events of a run: every step's, and then one `ChatCompleted`.
 *
 * **Details**
 *
 * Cold: nothing runs before the first pull, and the next model call is made only when the reader goes past
 * `StepCompleted`. Leaving the stream (`Stream.take`, interruption) ends the run: the connection is closed, handlers
 * are stopped within the grace period, and there is no `ChatCompleted`. The stream fails only when the run cannot be
 * started, or with the error that `onToolError` decided on.
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
 * @since 0.1.0
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
 * A run, awaited: the fold of {@link stream}.
 *
 * **Details**
 *
 * It succeeds with a result whatever the model and the tools do; `outcome` says how it ended. Under
 * `unknownTool: "failTurn"` it fails when the first turn calls a tool that does not exist.
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
 * @since 0.1.0
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

/** Returns the result of a run, by its last event. */
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
 * A run under way. It reads itself: its events need no reader.
 *
 * @category models
 * @since 0.1.0
 */
export interface Handle<A, E> {
  /**
   * The events of the run, each of which is read once. Nothing waits for a reader: from 1,024 unread events on, the
   * pieces of one text are joined, of the progress of each call and of `OutputPartial` the last is kept, and provider
   * chunks are left out. The stream ends with the run, or fails as `result` does.
   */
  readonly events: Stream.Stream<Event.Event, E>
  /** Waits for the result of the run, as `Chat.run` gives it. It can be awaited more than once, and not at all. */
  readonly result: Effect.Effect<Result<A>, E>
  /**
   * Stops the run softly, as the option `cancel` does, and returns at once: `result` has the outcome `Cancelled`. The
   * model reads the reason in the answers of stopped calls.
   */
  readonly cancel: (reason?: string) => Effect.Effect<void>
  /**
   * Stops one call, as `call.cancelCall` does: by its id, or, in a run inside handlers, by its path, such as `"c0/c1"`.
   * Succeeds with `false` where there is no such call, or where it is answered or stopped already.
   */
  readonly cancelCall: (path: string, reason?: string) => Effect.Effect<boolean>
  /** The inbox of the run: the option `inbox`, or one of its own. It refuses what comes behind the end of the run. */
  readonly inbox: Inbox.Inbox
}

/**
 * Begins a run at once, and returns a handle to it. The run ends with the scope.
 *
 * **Details**
 *
 * It fails where the run cannot be started; every later failure is that of `result` and of `events`. When the scope
 * closes first, the run ends as if its reader had left: its handlers are stopped, and `result` is interrupted.
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
 * @since 0.1.0
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
  // A run that is not entered yet fails with nothing else.
  return started as Effect.Effect<Handle<A, Failures>, ChatError, Effect.Services<typeof started>>
}
