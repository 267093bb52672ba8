/**
 * Steps repeated until an outcome. Its stream is every event of every step in order and then exactly one
 * `ChatCompleted`; a run is its fold. When it ends, for whatever reason, no handler, timer or model call of it is alive.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Adapter from "./Adapter.ts"
import * as Collector from "./Collector.ts"
import type * as Event from "./Event.ts"
import * as Settings from "./internal/ask/options.ts"
import * as ChatRun from "./internal/loop/chatRun.ts"
import * as Turn from "./internal/loop/runEnvironment.ts"
import * as Pulled from "./internal/loop/scopedPull.ts"
import type * as StepRun from "./internal/loop/stepRun.ts"
import * as Now from "./internal/now.ts"
import * as Message from "./Message.ts"
import * as Policy from "./Policy.ts"
import * as Step from "./Step.ts"
import * as Thread from "./Thread.ts"
import type * as Tool from "./Tool.ts"

/**
 * Why a run could not be started. Once its first model call has begun, a run always ends in a result.
 *
 * @category errors
 * @since 0.1.0
 */
export type ChatError = Step.StepError

/**
 * How a run is driven.
 *
 * @category models
 * @since 0.1.0
 */
export interface Options<
  Tools extends ReadonlyArray<Tool.Any> = ReadonlyArray<Tool.Any>,
  E = never,
  R = never,
  RHalt = R,
  REvent = R
> extends Step.Options<Tools, E, R, REvent> {
  /**
   * How many model calls the run may make, the last one included. Under `onMaxTurns: "finalize"` one more follows,
   * without tools. 8 by default; a number that is no positive integer is a defect.
   */
  readonly maxTurns?: number | null
  /**
   * Ends the run after the first step for which it says `true` (outcome `HaltWhen`). It is asked after each step that
   * does not end the run by itself; what it throws fails the run as a defect. What it forks lives as long as the run.
   * When the run is stopped while it is asked, it is interrupted. Never by default.
   */
  readonly haltWhen?: ((step: Event.StepResult) => boolean | Effect.Effect<boolean, never, RHalt>) | null
  /**
   * With a `responseFormat`: runs the tools without the format, and then makes one more call with the format and
   * without tools, which does not count as a turn. `false` by default.
   */
  readonly structuredFinalize?: boolean
  /** What leads in that call, as a user message: a text of one line by default, none for `""`. */
  readonly finalizePrompt?: string
}

const defaultMaxTurns = 8
const defaultFinalizePrompt = "Now provide your final structured response."

type Source<E, R> = StepRun.Source<E, R>

type Failure<E> = Step.StepError | E

const finalized: ReadonlyArray<Event.Outcome["_tag"]> = ["Completed", "MaxTurns", "HaltWhen"]

/** The second pass of a structured run: one call, without tools, in the format that was asked for. */
const finalPass = <E, R>(first: Event.ChatResult, run: Turn.Run<E, R>, prompt: string): Source<E, R> => {
  const { toolChoice: _, ...template } = run.template
  const thread = prompt === "" ? first.thread : Thread.append(first.thread, [Message.user(prompt)])
  return ChatRun.make({
    thread,
    run: { ...run, tools: new Map(), template: { ...template, tools: [] } },
    maxTurns: 1,
    haltWhen: undefined,
    firstStep: first.steps.length,
    isClosedByAnswer: false,
    end: (second, run) => ChatRun.completed(merge(first, second), run)
  })
}

/** The first pass runs the tools; the format is for the answer alone. */
const withoutFormat = <E, R>(run: Turn.Run<E, R>): Turn.Run<E, R> => {
  const { responseFormat: _, ...template } = run.template
  return { ...run, template }
}

const merge = (first: Event.ChatResult, second: Event.ChatResult): Event.ChatResult => {
  const pass1Halted = first.haltedReason
  if (second.steps.length === 0 && second.outcome._tag === "Failed") {
    return { ...first, structuredFinalize: { pass1Halted, pass2Error: second.outcome.error } }
  }
  const steps = [...first.steps, ...second.steps]
  // A second pass that was cancelled before it was asked for leaves no question behind.
  const { thread } = second.steps.length === 0 ? first : second
  return {
    ...Collector.chatResult({ thread, steps, outcome: second.outcome, finalized: first.finalized }),
    structuredFinalize: { pass1Halted }
  }
}

const start = <Tools extends ReadonlyArray<Tool.Any>, E, R>(
  input: Thread.Input,
  options: Options<Tools, E, R>,
  scope: Scope.Scope
): Effect.Effect<Source<E, R>, Failure<E>, R> =>
  Effect.map(
    Step.prepare(input, options, scope, "heddle.chat"),
    (prepared) => observed(sourceOf(prepared, options, Context.get(Now.services(), Policy.Defaults)), prepared.run)
  )

/** What a run that is prepared is read from. */
const sourceOf = <E, R>(
  { run, thread }: Step.Prepared<E, R>,
  { finalizePrompt, haltWhen, maxTurns, structuredFinalize }: Options<ReadonlyArray<Tool.Any>, E, R>,
  defaults: Policy.Defaults
): Source<E, R> => {
  const { settings: { policy }, template } = run
  const usual = defaults.maxTurns ?? policy.maxTurns ?? defaultMaxTurns
  const isTwoPass = structuredFinalize === true && template.responseFormat !== undefined
  return ChatRun.make({
    thread,
    run: isTwoPass ? withoutFormat(run) : run,
    maxTurns: Settings.positiveInteger("maxTurns", maxTurns ?? usual),
    haltWhen,
    firstStep: 0,
    isClosedByAnswer: !isTwoPass && policy.onMaxTurns === "finalize",
    end: isTwoPass
      ? twoPass(run, finalizePrompt ?? defaults.finalizePrompt ?? defaultFinalizePrompt)
      : ChatRun.completed
  })
}

/** What follows the first pass of a structured run. */
const twoPass = <E, R>(run: Turn.Run<E, R>, prompt: string) => (result: Event.ChatResult): Source<E, R> =>
  finalized.includes(result.outcome._tag)
    ? finalPass(result, run, prompt)
    : ChatRun.completed({ ...result, structuredFinalize: { pass1Halted: result.haltedReason } }, run)

/** The events of steps have been shown to the observer by then; the end of the run has not. */
const observed = <E, R>(source: Source<E, R>, run: Turn.Run<E, R>): Source<E, R> =>
  run.view.onEvent === undefined
    ? source
    : {
      next: () =>
        Effect.tap(
          source.next(),
          (events) => events[0]._tag === "ChatCompleted" ? Turn.observed(run, events) : Effect.void
        )
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
  REvent = never
>(
  input: Thread.Input,
  options: Options<Tools, E, R, RHalt, REvent> = {}
): Stream.Stream<
  Event.Event,
  ChatError | E | Tool.Fatal<Tools[number]>,
  R | RHalt | REvent | Adapter.Adapter | Tool.Services<Tools[number]>
> => Pulled.stream((scope) => start<Tools, E, R | RHalt | REvent>(input, options, scope))

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
  REvent = never
>(
  input: Thread.Input,
  options: Options<Tools, E, R, RHalt, REvent> = {}
): Effect.Effect<
  Event.ChatResult,
  ChatError | E | Tool.Fatal<Tools[number]>,
  R | RHalt | REvent | Adapter.Adapter | Tool.Services<Tools[number]>
> =>
  Effect.suspend(() => {
    let last: Event.Event | undefined
    const read = Stream.runForEachArray(stream(input, options), (events) =>
      Effect.sync(() => {
        last = events[events.length - 1]
      }))
    return Effect.flatMap(read, () => {
      const result = Collector.toChatResult(Collector.applyAll(Collector.initial(), last === undefined ? [] : [last]))
      const error = result.steps[0]?.response.error
      return error instanceof Step.EngineError ? Effect.fail(error) : Effect.succeed(result)
    })
  })
