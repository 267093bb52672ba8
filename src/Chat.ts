/**
 * Steps repeated until an outcome. Its stream is every event of every step in order and then exactly one
 * `ChatCompleted`; a run is its fold. When it ends, for whatever reason, no handler, timer or model call of it is alive.
 *
 * @since 0.1.0
 */
import type * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Channel from "effect/Channel"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Pull from "effect/Pull"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Collector from "./Collector.ts"
import type * as Event from "./Event.ts"
import type * as Deadline from "./internal/deadline.ts"
import * as Ending from "./internal/ending.ts"
import * as Now from "./internal/now.ts"
import type { Running } from "./internal/running.ts"
import * as Settings from "./internal/settings.ts"
import * as Turn from "./internal/turn.ts"
import * as Message from "./Message.ts"
import * as Policy from "./Policy.ts"
import * as Step from "./Step.ts"
import * as StepRun from "./StepRun.ts"
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
 * - `maxTurns` (8): model calls, the last one included. Under `onMaxTurns: "finalize"` one more follows, without tools.
 * - `deadline`: tools get until a little before it, then the model answers without them; what is not done by then is
 *   stopped softly (outcome `Cancelled`), and has its `grace` for that.
 * - `haltWhen`: asked after each step that does not end the run by itself; what it throws fails the run as a defect.
 * - `structuredFinalize`: with a `responseFormat`, runs the tools without the format, and then makes one more call
 *   without tools and with the format, led in by `finalizePrompt` (a default text; `""` for none). That call does not
 *   count as a turn.
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
  readonly maxTurns?: number | null
  readonly haltWhen?: ((step: Event.StepResult) => boolean | Effect.Effect<boolean, never, RHalt>) | null
  readonly structuredFinalize?: boolean
  readonly finalizePrompt?: string
}

const defaultMaxTurns = 8
const defaultFinalizePrompt = "Now provide your final structured response."

type Events = Arr.NonEmptyReadonlyArray<Event.Event>

/** What a loop of steps runs by. */
interface Plan<E, R> {
  readonly prepared: Step.Prepared<E, R>
  readonly maxTurns: number
  readonly haltWhen: Options<ReadonlyArray<Tool.Any>, E, R>["haltWhen"]
  /** The index of the first step, so that the steps of a run are numbered through. */
  readonly firstStep: number
  /** Whether one more model call, without tools, answers what the turns did not come to. */
  readonly isClosedByAnswer: boolean
}

/** The next events, which whoever reads them asks for in a step of his fiber. */
type Next<E, R> = () => Pull.Pull<Events, Failure<E>, void, R>

/** A run that is driven by reads: it opens the next step only when somebody asks for what comes after the last one. */
class Loop<E, R> {
  private readonly plan: Plan<E, R>
  private readonly end: (result: Event.ChatResult) => Next<E, R>
  private run: Turn.Run<E, R>
  private thread: Thread.Thread
  private steps: Array<Event.StepResult> = []
  /** Why the step in progress is the last, which the model is to answer in without tools. */
  private closing: Event.ChatResult["finalized"]
  private phase: Next<E, R>

  constructor(plan: Plan<E, R>, end: Loop<E, R>["end"]) {
    this.plan = plan
    this.end = end
    this.run = plan.prepared.run
    this.thread = plan.prepared.thread
    this.phase = this.opening
  }

  readonly next: Next<E, R> = () => this.phase()

  private readonly opening: Next<E, R> = () =>
    Effect.contextWith((context: Context.Context<R>) => {
      const { ambient: { cancellation, deadline } } = this.run
      if (cancellation?.isRequested === true) return this.ending({ _tag: "Cancelled" })
      if (deadline !== undefined) this.hurry(deadline, Context.get(context, Clock.Clock).currentTimeMillisUnsafe())
      const stepIndex = this.plan.firstStep + this.steps.length
      const opened = StepRun.open(context, this.run, { thread: this.thread, stepIndex, after: this.afterStep })
      return Effect.flatMapEager(opened, (step) => {
        this.phase = step
        return step()
      })
    })

  /** Where the deadline leaves no time for tools, the model is to answer now. */
  private hurry({ toolsUntil }: Deadline.Deadline, now: number): void {
    if (now >= toolsUntil && this.run.tools.size > 0) this.close("deadline")
  }

  private close(reason: Event.ChatResult["finalized"]): void {
    this.closing ??= reason
    this.run = Turn.closing(this.run)
  }

  private readonly afterStep = ({ isCut, startError }: StepRun.Ended): ReturnType<Next<E, R>> =>
    startError === undefined ? this.stepped(isCut) : this.notStarted(startError)

  /** A later model call could not be made: the run ends with what it has. */
  private notStarted(error: unknown): ReturnType<Next<E, R>> {
    this.phase = () => this.ending({ _tag: "Failed", error })
    const events: Events = [{ _tag: "Error", error }]
    return Effect.as(Turn.observed(this.run.view, events), events)
  }

  /** A step that a cancellation cut short ends the run, whatever else it came to. */
  private stepped(isCut: boolean): ReturnType<Next<E, R>> {
    const step = Collector.toStepResult(this.run.state)
    this.steps.push(step)
    this.thread = step.thread
    if (step.contextUpdate !== undefined) this.run = Turn.withContext(this.run, step.contextUpdate)
    return Effect.flatMapEager(this.outcome(step, isCut), (outcome) => {
      this.phase = outcome === undefined ? this.opening : () => this.ending(outcome)
      return this.phase()
    })
  }

  private outcome(step: Event.StepResult, isCut: boolean): Effect.Effect<Event.Outcome | undefined, never, R> {
    const { firstStep, haltWhen, maxTurns } = this.plan
    const turns = this.steps.length
    const stepIndex = firstStep + turns - 1
    const own = isCut ? cancelled : Ending.ofStep(step, stepIndex)
    if (own !== undefined) return Effect.succeed(own)
    if (haltWhen === undefined || haltWhen === null) return Effect.succeed(this.bounded(turns, maxTurns))
    return Effect.mapEager(
      Now.toEffect(haltWhen(step)),
      (isHalted) => isHalted ? { _tag: "HaltWhen", haltWhenStepIndex: stepIndex } : this.bounded(turns, maxTurns)
    )
  }

  /** The end that the bounds of the run bring. A model that calls tools when it was to answer gets no further turn. */
  private bounded(turns: number, maxTurns: number): Event.Outcome | undefined {
    if (this.closing === "deadline") return cancelled
    if (turns < maxTurns) return undefined
    if (this.closing !== undefined || !this.plan.isClosedByAnswer) return { _tag: "MaxTurns", maxTurns }
    this.close("max_turns")
    return undefined
  }

  private ending(outcome: Event.Outcome): ReturnType<Next<E, R>> {
    const isQuestion = outcome._tag === "AskUser" && (this.steps.at(-1)?.suspensions ?? []).length <= 1
    const thread = isQuestion ? withQuestion(this.thread, outcome) : this.thread
    const { closing: finalized, steps } = this
    this.phase = this.end(Collector.chatResult({ thread, steps, outcome, finalized }))
    return this.phase()
  }
}

const cancelled: Event.Outcome = { _tag: "Cancelled" }

type Failure<E> = Step.StepError | E

/**
 * The question stands in the result's thread, so that the user's reply follows it. Where other calls wait as well, their
 * answers are to come first, and nothing may stand between them and the calls.
 */
const withQuestion = (
  thread: Thread.Thread,
  outcome: Extract<Event.Outcome, { readonly _tag: "AskUser" }>
): Thread.Thread =>
  Thread.append(thread, [{
    ...Message.assistant(outcome.pendingQuestion),
    askUser: true,
    toolCallId: outcome.pendingToolCallId
  }])

/** The last event. Handlers that run on are waited for first, so that the result can name those that refuse to stop. */
const completed = <E, R>(running: Running, result: Event.ChatResult): Next<E, R> => {
  let isOut = false
  return () => {
    if (isOut) return Cause.done()
    isOut = true
    return Effect.mapEager(running.stop, (abandoned): Events => [{
      _tag: "ChatCompleted",
      result: abandoned.length === 0 ? result : { ...result, abandoned }
    }])
  }
}

const finalized: ReadonlyArray<Event.Outcome["_tag"]> = ["Completed", "MaxTurns", "HaltWhen"]

/** The second pass of a structured run: one call, without tools, in the format that was asked for. */
const finalPass = <E, R>(first: Event.ChatResult, { run }: Step.Prepared<E, R>, prompt: string): Next<E, R> => {
  const { toolChoice: _, ...template } = run.template
  const thread = prompt === "" ? first.thread : Thread.append(first.thread, [Message.user(prompt)])
  const second: Plan<E, R> = {
    prepared: { thread, run: { ...run, tools: new Map(), template: { ...template, tools: [] } } },
    maxTurns: 1,
    haltWhen: undefined,
    firstStep: first.steps.length,
    isClosedByAnswer: false
  }
  return new Loop(second, (result) => completed<E, R>(run.running, merge(first, result))).next
}

/** The first pass runs the tools; the format is for the answer alone. */
const withoutFormat = <E, R>({ thread, run }: Step.Prepared<E, R>): Step.Prepared<E, R> => {
  const { responseFormat: _, ...template } = run.template
  return { thread, run: { ...run, template } }
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
): Effect.Effect<Pull.Pull<Events, Failure<E>, void, R>, Failure<E>, R> =>
  Effect.contextWith((context: Context.Context<R>) =>
    Effect.map(
      Step.prepare(input, options, scope, "heddle.chat"),
      (prepared) => Effect.suspend(nextOf(prepared, options, Context.get(context, Policy.Defaults)))
    )
  )

/** What a run that is prepared is read by. */
const nextOf = <E, R>(
  prepared: Step.Prepared<E, R>,
  { finalizePrompt, haltWhen, maxTurns, structuredFinalize }: Options<ReadonlyArray<Tool.Any>, E, R>,
  defaults: Policy.Defaults
): Next<E, R> => {
  const { running, settings: { policy }, template } = prepared.run
  const prompt = finalizePrompt ?? defaults.finalizePrompt ?? defaultFinalizePrompt
  const usual = defaults.maxTurns ?? policy.maxTurns ?? defaultMaxTurns
  const isTwoPass = structuredFinalize === true && template.responseFormat !== undefined
  const plan: Plan<E, R> = {
    prepared: isTwoPass ? withoutFormat(prepared) : prepared,
    maxTurns: Settings.positiveInteger("max_turns", maxTurns ?? usual),
    haltWhen,
    firstStep: 0,
    isClosedByAnswer: !isTwoPass && policy.onMaxTurns === "finalize"
  }
  return new Loop(plan, (result): Next<E, R> => {
    if (!isTwoPass) return completed(running, result)
    return finalized.includes(result.outcome._tag)
      ? finalPass(result, prepared, prompt)
      : completed(running, { ...result, structuredFinalize: { pass1Halted: result.haltedReason } })
  }).next
}

/** The events of steps have been shown to the observer by then; the end of the run has not. */
const observed = <E, R>(pull: Pull.Pull<Events, E, void, R>, view: Turn.View<R>): Pull.Pull<Events, E, void, R> =>
  view.onEvent === undefined
    ? pull
    : Effect.tap(pull, (events) => events[0]._tag === "ChatCompleted" ? Turn.observed(view, events) : Effect.void)

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
): Stream.Stream<Event.Event, ChatError | E, R | RHalt | REvent | Step.Services<Tools>> =>
  Stream.fromChannel(
    Channel.fromTransformBracket((_upstream, _scope, scope) =>
      Effect.map(start<Tools, E, R | RHalt | REvent>(input, options, scope), (pull) => observed(pull, options))
    )
  )

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
): Effect.Effect<Event.ChatResult, ChatError | E, R | RHalt | REvent | Step.Services<Tools>> =>
  Effect.gen(function*() {
    let last: Event.Event | undefined
    yield* Stream.runForEachArray(stream(input, options), (events) =>
      Effect.sync(() => {
        last = events[events.length - 1]
      }))
    const result = Collector.toChatResult(Collector.applyAll(Collector.initial(), last === undefined ? [] : [last]))
    const error = result.steps[0]?.response.error
    return error instanceof Step.EngineError ? yield* error : result
  })
