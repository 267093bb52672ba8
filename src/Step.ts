/**
 * One model turn and its tools: the primitive of the loop, and of callers that drive a loop of their own. Its stream is
 * the adapter's events, then the tools', then exactly one `StepCompleted`.
 *
 * @since 0.1.0
 */
import type * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Channel from "effect/Channel"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Pull from "effect/Pull"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Adapter from "./Adapter.ts"
import * as Collector from "./Collector.ts"
import type * as Event from "./Event.ts"
import * as Ambient from "./internal/ambient.ts"
import type { Batch } from "./internal/batch.ts"
import * as Division from "./internal/division.ts"
import * as EngineErrors from "./internal/engineError.ts"
import type * as Plan from "./internal/plan.ts"
import { isEvents, Reply, type Signal } from "./internal/reply.ts"
import * as Request from "./internal/request.ts"
import { Running } from "./internal/running.ts"
import * as Settings from "./internal/settings.ts"
import * as Telemetry from "./internal/telemetry.ts"
import * as Turn from "./internal/turn.ts"
import * as Policy from "./Policy.ts"
import * as Response from "./Response.ts"
import * as Thread from "./Thread.ts"
import type * as Tool from "./Tool.ts"
import * as ToolRunner from "./ToolRunner.ts"

/**
 * The run cannot be driven as asked.
 *
 * @category errors
 * @since 0.1.0
 */
export const EngineError = EngineErrors.EngineError

/**
 * @see {@link EngineError}
 *
 * @category errors
 * @since 0.1.0
 */
export type EngineError = EngineErrors.EngineError

/**
 * Why a step could not be started. What goes wrong after the model's first event is told in the step's result.
 *
 * @category errors
 * @since 0.1.0
 */
export type StepError = Thread.ValidationError | EngineError | Adapter.AdapterError

/**
 * How a step is run: what concerns the model, its tools, and what the consumer sees.
 *
 * - `mode: "manual"` hands every call to the caller and runs none.
 * - `system` is put in front of the messages of the request and kept out of the thread.
 * - `emitTextDeltas`, `emitToolDeltas` (true), `includeRawChunks` (false): what the stream shows; the result is the
 *   same whatever they say. Raw chunks that report usage are always shown.
 * - `onEvent` sees every event before that filter, in order; the run waits for the effect it may return.
 *
 * @category models
 * @since 0.1.0
 */
export interface Options<
  Tools extends ReadonlyArray<Tool.Any> = ReadonlyArray<Tool.Any>,
  E = never,
  R = never,
  REvent = R
> extends Settings.RunnerOptions<E, R>, Request.ModelOptions, Turn.View<REvent> {
  readonly tools?: Tools
  readonly mode?: "auto" | "manual"
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
  readonly thread: Thread.Thread
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
  Effect.gen(function*() {
    const defaults = yield* Policy.Defaults
    const settings = Settings.resolve(options, defaults, Policy.standard, yield* Settings.mintRequestId)
    const given: ReadonlyArray<Tool.Any> = options.tools ?? []
    const tools = Settings.toolsByName(defaults.tools ?? [], given)
    const adapter = yield* Effect.serviceOption(Adapter.Adapter)
    if (Option.isNone(adapter)) {
      return yield* new EngineError({ reason: "missing_adapter", detail: "provide an Adapter with a Layer" })
    }
    const thread = yield* Effect.fromResult(Thread.validate(input))
    const template = Request.template(options, defaults, tools)
    const errors = Request.issues(thread, template, given, tools)
    if (errors.length > 0) {
      return yield* new Thread.ValidationError({ reason: "invalid_request", errors })
    }
    const running = new Running(settings.graceMillis, yield* Effect.context<never>())
    const within = yield* Telemetry.spanOf(scope, spanName, () => ({ "heddle.request.id": settings.requestId }))
    const ambient = yield* Ambient.enter(settings, options.cancel, scope)
    yield* Scope.addFinalizer(scope, running.stop)
    const state = Collector.initial({ thread, policy: settings.policy, requestId: settings.requestId })
    return {
      thread,
      run: {
        adapter: adapter.value,
        system: options.system,
        mode: options.mode ?? "auto",
        settings,
        template,
        tools,
        view: options,
        running,
        ambient,
        state,
        within
      }
    }
  })

type Events = Arr.NonEmptyReadonlyArray<Event.Event>

type EventPull<E, R> = Pull.Pull<Events, Adapter.AdapterError | E, void, R>

type After<E, R> = (ended: Ended) => EventPull<E, R>

type Phase<E, R> = Effect.Effect<ReadonlyArray<Event.Event>, Adapter.AdapterError | E | Cause.Done, R>

/**
 * How a step ended: whether the run was cancelled first, and why it could not be started if it has no `StepCompleted`.
 *
 * @category models
 * @since 0.1.0
 */
export interface Ended {
  readonly isCut: boolean
  readonly startError?: Adapter.AdapterError
}

/**
 * Opens a step on a thread, and gives the pull of its events, which goes on with `after` when the step has ended.
 * Nothing happens before the first pull. The adapter's connection and the batch live in a scope below `parent` that
 * closes with the step.
 *
 * @category running
 * @since 0.1.0
 */
export const open = <E, R>(
  run: Turn.Run<E, R>,
  thread: Thread.Thread,
  stepIndex: number,
  parent: Scope.Scope,
  after: After<E, R>
): Effect.Effect<EventPull<E, R>, never, R> =>
  Effect.gen(function*() {
    const scope = yield* Scope.fork(parent)
    const within = yield* run.within(Telemetry.stepSpan(scope, run.settings.requestId, stepIndex))
    const machine = new Machine(run, { thread, stepIndex, scope, after })
    yield* Scope.addFinalizer(scope, Effect.suspend(() => machine.isOver ? Effect.void : run.running.stop))
    return within(machine.pull)
  })

interface Place<E, R> {
  readonly thread: Thread.Thread
  readonly stepIndex: number
  readonly scope: Scope.Closeable
  readonly after: After<E, R>
}

/** The phases of a step: the model speaks, the tools run, the step is told. */
class Machine<E, R> {
  /** Whether it ended by itself: handlers that outlive such a step are the run's. */
  isOver = false
  private readonly run: Turn.Run<E, R>
  private readonly place: Place<E, R>
  private readonly reply: Reply<E, R>
  private phase: Phase<E, R>
  private isSpeaking = false
  private successor: EventPull<E, R> | undefined

  constructor(run: Turn.Run<E, R>, place: Place<E, R>) {
    this.run = run
    this.place = place
    this.reply = new Reply(run, Scope.forkUnsafe(place.scope), this.openBatch)
    this.phase = this.opening()
  }

  /** The next events that are shown. While the model speaks this is most of what a run does: it takes few steps. */
  readonly pull: EventPull<E, R> = Effect.suspend(() => {
    if (this.isSpeaking) return Effect.flatMap(this.reply.next, this.heard)
    return this.successor ?? Effect.flatMap(this.phase, this.told)
  })

  private readonly told = (events: ReadonlyArray<Event.Event>): typeof this.pull => {
    const { state, view } = this.run
    Collector.applyAllUnsafe(state, events)
    const visible = Turn.shown(view, events)
    const after = isNonEmpty(visible) ? Effect.succeed(visible) : this.pull
    const ready = this.reply.ready(events)
    const next = ready.length === 0 ? after : Effect.andThen(this.reply.start(ready), after)
    return view.onEvent === undefined ? next : Effect.andThen(Turn.observed(view, events), next)
  }

  private readonly heard = (signal: Signal): typeof this.pull => {
    if (isEvents(signal)) return this.told(signal)
    this.isSpeaking = false
    const phase = signal._tag === "Ended" ? this.spoken() : this.broken(signal.error, signal.hasBegun)
    return Effect.flatMap(phase, this.told)
  }

  private readonly openBatch = (calls: number): Effect.Effect<Batch<E>, never, R> => {
    const { settings, running, ambient } = this.run
    return ToolRunner.open<E, R>(calls, settings, this.place.stepIndex, running, ambient, this.place.scope)
  }

  private opening(): typeof this.phase {
    return Effect.suspend(() => {
      const { adapter, template, system } = this.run
      const messages = Request.messages(system, this.place.thread.messages)
      this.isSpeaking = true
      return Effect.as(this.reply.connect(adapter.stream({ ...template, messages })), [])
    })
  }

  /** Before its first event a failure is the step's, or that of a run that has come further; then it is an event. */
  private broken(error: Adapter.AdapterError, hasBegun: boolean): typeof this.phase {
    if (hasBegun) {
      this.phase = this.spoken()
      return Effect.succeed([{ _tag: "Error", error } as const])
    }
    if (this.place.stepIndex === 0) return Effect.fail(error)
    return Effect.as(this.close({ isCut: false, startError: error }), [])
  }

  /** The reply has ended, well or not: the connection is closed before any other tool starts. */
  private spoken(): typeof this.phase {
    return Effect.gen({ self: this }, function*() {
      yield* this.reply.close
      const response = yield* Turn.reported(Turn.heard(Collector.toResponse(this.run.state), this.run))
      const isActedOn = this.isActedOn(response)
      const calls = Response.actionableCalls(response)
      const unknown = isActedOn ? Division.failing(calls, this.run) : undefined
      if (unknown !== undefined) {
        this.phase = this.completed({ ...response, finishReason: "error", error: unknown }, Division.uncommitted)
        return [{ _tag: "Error", error: unknown } as const]
      }
      const division = yield* Division.divide(calls, response, this.run, isActedOn)
      const early = this.reply.handOver(response.finishReason)
      return yield* this.work(division.jobs, (batch) => this.worked(response, division, batch), early)
    })
  }

  private isActedOn(response: Response.Response): boolean {
    const { settings, ambient } = this.run
    return ambient.cancellation?.isRequested !== true && Collector.isToolTurn(settings.policy, response)
  }

  /** Runs a batch to its end, and goes on with what it came to. */
  private work(
    jobs: ReadonlyArray<Plan.Job>,
    next: (batch?: Batch<E>) => typeof this.phase,
    early?: Batch<E>
  ): typeof this.phase {
    if (early === undefined && jobs.length === 0) return next()
    const opened = early === undefined ? this.openBatch(jobs.length) : Effect.succeed(early)
    return Effect.flatMap(opened, (batch) => {
      batch.add(jobs)
      batch.seal()
      this.phase = Pull.catchDone(batch.pull, () => next(batch))
      return this.phase
    })
  }

  /** What waits stays open, unless the run is over: then it is answered like the rest. */
  private worked(
    response: Response.Response,
    division: Division.Division,
    batch: Batch<E> | undefined
  ): typeof this.phase {
    return Effect.flatMap(Division.ended(division, response, this.run, batch), (ended) => {
      const open = Division.cancelled(ended.refused, Division.positions(response.toolCalls), ended.detail)
      return this.work(open, () => this.completed(response, ended))
    })
  }

  /** What comes after the step takes over once its last events have been told. */
  private close(ended: Ended): Effect.Effect<void> {
    return Effect.suspend(() => {
      this.isOver = true
      this.successor = Effect.suspend(() => this.place.after(ended))
      return Scope.close(this.place.scope, Exit.void)
    })
  }

  private completed(
    response: Response.Response,
    division: Division.Ended
  ): typeof this.phase {
    return Effect.gen({ self: this }, function*() {
      const { halt, suspensions } = division
      const { state, settings, mode } = this.run
      const message = Turn.assistantMessage(response, division.calls, response.message?.reasoning)
      const isCut = this.run.ambient.cancellation?.isRequested === true
      yield* this.close({ isCut })
      const said = isCut && Turn.isEmpty(message) ? [] : [message]
      const thread = Thread.append(this.place.thread, [...said, ...Collector.answers(state)])
      const told = { response, thread, mode, manualToolCalls: division.manual }
      return [Turn.stepCompleted(told, isCut || Collector.isDone(settings.policy, response), halt, suspensions)]
    })
  }
}

const isNonEmpty = (events: ReadonlyArray<Event.Event>): events is Events => events.length > 0

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
): Stream.Stream<Event.Event, StepError | E, R | REvent | Services<Tools>> =>
  Stream.fromChannel(Channel.fromTransformBracket((_upstream, _scope, scope) =>
    Effect.gen(function*() {
      const { run, thread } = yield* prepare<Tools, E, R | REvent>(input, options, scope, "heddle.step.run")
      return yield* open(run, thread, 0, scope, () => Cause.done())
    })
  ))

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
): Effect.Effect<Event.StepResult, StepError | E, R | REvent | Services<Tools>> =>
  Effect.gen(function*() {
    const state = Collector.initial({
      thread: Thread.empty,
      policy: options.policy ?? (yield* Policy.Defaults).policy ?? Policy.standard
    })
    yield* Stream.runForEachArray(stream(input, options), (events) =>
      Effect.sync(() => Collector.applyAllUnsafe(state, events)))
    const result = Collector.toStepResult(state)
    return result.response.error instanceof EngineError ? yield* result.response.error : result
  })
