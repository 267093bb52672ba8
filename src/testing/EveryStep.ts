/**
 * Stops a run at every point at which it can be stopped, and holds what is left to the laws. The run is simulated once
 * to its end, and then once for each of its steps: interrupted there, and, if it takes a `cancel`, asked to stop there.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Scheduler from "effect/Scheduler"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Event from "../Event.ts"
import { checkNames, type NamesOf } from "../internal/declare/schema.ts"
import * as Values from "../internal/declare/values.ts"
import * as Policy from "../Policy.ts"
import type * as Check from "./Check.ts"
import { spread } from "./internal/spread.ts"
import * as Verdict from "./internal/verdict.ts"
import * as Watching from "./internal/watching.ts"
import * as Recorder from "./Recorder.ts"
import * as Simulation from "./Simulation.ts"

/**
 * The context of an attempt at a run.
 *
 * @category models
 * @since 0.1.0
 */
export interface Attempt {
  /** Fires when the run is to stop softly. A run that reads it is also stopped softly at each of its steps. */
  readonly cancel: AbortSignal
  /**
   * A recorder for whatever else is to be watched. An effect that it tracks has to end with the run, and events that
   * pass its `tap` are held to the laws of events.
   */
  readonly recorder: Recorder.Recorder
}

/**
 * A run: a stream of events, which is read to its end, or an effect.
 *
 * @category models
 * @since 0.1.0
 */
export type Run<R> = Stream.Stream<Event.Event, unknown, R> | Effect.Effect<unknown, unknown, R>

/**
 * The options of the attempts at a run.
 *
 * @category models
 * @since 0.1.0
 */
export interface Options<Out = never, In = never> {
  /**
   * The services that the run needs, built anew for each attempt: the model, and the executor, if it is one of yours. A
   * service that a run provides for itself works as well, but is not watched: its handlers and requests are not seen.
   * None by default.
   */
  readonly layer?: Layer.Layer<Out, unknown, In>
  /**
   * The number of operations after which a fiber makes room for others, from 3 on. Within Effect's own 2,048 (the
   * default) a fiber that has nothing to wait for is not stopped; with a few there are points everywhere in it.
   */
  readonly maxOpsBeforeYield?: number
  /** The number of points that are tried at most; beyond it that many, spread evenly. 1,000 by default. */
  readonly limit?: number
  /**
   * The time that the run may take to stop: the `grace` that it was given. A number is milliseconds. 5 seconds by
   * default.
   */
  readonly grace?: Duration.Input
  /** The number of handlers that may run at once: the `maxConcurrency` that it was given. Any number by default. */
  readonly bound?: number
  /** The policy that the run was given. `Policy.standard` by default. */
  readonly policy?: Policy.Policy
}

/**
 * A fault that was found at one step.
 *
 * The laws are those of `check`, and two more:
 *
 * - `"stop"`: no handler starts and no model is asked after the stop, and the run is over within its grace period, with
 *   its result or interrupted. With `maxOpsBeforeYield`, what is on its way at that instant may still start, and is
 *   stopped then.
 * - `"repeatable"`: the run takes the same steps each time. One that does not cannot be stopped at each of them.
 *
 * @category models
 * @since 0.1.0
 */
export interface Violation {
  /** The step before which the run was stopped. Left out for a run that was not stopped. */
  readonly step?: number
  /** The way in which the run was stopped. */
  readonly stop: "none" | "hard" | "soft"
  /** The law that was broken: one of `Check.Violation`, or one of the two above. */
  readonly law: Check.Violation["law"] | "stop" | "repeatable"
  /** A description of the fault. */
  readonly message: string
}

/**
 * The findings of all attempts.
 *
 * @category models
 * @since 0.1.0
 */
export interface Report {
  /** The number of points at which the run can be stopped. */
  readonly points: number
  /** The number of times that it was run. */
  readonly attempts: number
  /** The number of handlers that started, over all attempts. */
  readonly handlers: number
  /** The number of model requests, over all attempts. */
  readonly requests: number
  /** The faults that were found. */
  readonly violations: ReadonlyArray<Violation>
}

/** The signal of one attempt, which records whether it was read. */
class Cancel {
  isRead = false
  readonly controller = new AbortController()

  get signal(): AbortSignal {
    this.isRead = true
    return this.controller.signal
  }
}

type Make<R> = (attempt: Attempt) => Run<R>

interface Plan {
  readonly how: "none" | "hard" | "soft"
  readonly step: number
}

interface Tried extends Verdict.Attempted {
  readonly plan: Plan
  readonly takesCancel: boolean
}

/** Reads a stream to its end with all that it emits on record. */
const drained = <R>(run: Run<R>, recorder: Recorder.Recorder): Effect.Effect<unknown, unknown, R> =>
  Stream.isStream(run) ? Stream.runDrain(recorder.tap(run as Stream.Stream<Event.Event, unknown, R>)) : run

const usualOps = 2048

/** The smallest `maxOpsBeforeYield`: with fewer a fiber would do nothing but make room. */
const fewestOps = 3

const knownOptions = {
  layer: Values.layer,
  maxOpsBeforeYield: new Values.Kind(
    `${fewestOps} at least, a whole number`,
    (value) => Number.isSafeInteger(value) && Number(value) >= fewestOps
  ),
  limit: Values.countOrNone,
  grace: Values.plainDuration,
  bound: Values.countOrNone,
  policy: Values.policyOf(Policy.Policy)
} satisfies NamesOf<Options>

/** The world of an attempt starts at zero, and so do its recorders, which are made before it. */
const atZero = <A>(effect: Effect.Effect<A>): Effect.Effect<A> =>
  Effect.clockWith((clock) =>
    Effect.provideService(effect, Clock.Clock, { ...clock, currentTimeMillis: Effect.succeed(0) })
  )

/** The run of one attempt, closed, with its seams watched. */
const watched = <R, Out, In>(
  make: Make<R>,
  given: Attempt,
  watch: Watching.Watch,
  { layer = Layer.empty as Layer.Layer<any>, maxOpsBeforeYield = usualOps }: Options<Out, In>
) =>
  Effect.suspend(() => drained(make(given), given.recorder)).pipe(
    Effect.provideService(Scheduler.MaxOpsBeforeYield, maxOpsBeforeYield),
    Effect.updateContext(Watching.services(watch)<R>),
    Effect.provide(layer as Layer.Layer<Out, unknown, In>),
    Effect.scoped
  )

/** One attempt: the run in a world of its own, stopped as planned. */
const attempt = <R, Out, In>(make: Make<R>, options: Options<Out, In>, plan: Plan) =>
  Effect.gen(function*() {
    const cancel = new Cancel()
    const watch = yield* atZero(Watching.make(options.policy?.concurrency ?? "shared"))
    const recorder = yield* atZero(Recorder.make)
    let clock: Clock.Clock | undefined
    let stopped: Verdict.Stopped | undefined
    const given: Attempt = {
      get cancel() {
        return cancel.signal
      },
      recorder
    }
    const run = Effect.clockWith((own) => {
      clock = own
      return watched(make, given, watch, options)
    })
    const onStep = (step: number): void => {
      if (plan.how === "none" || step < plan.step || stopped !== undefined) return
      const millis = clock?.currentTimeMillisUnsafe() ?? 0
      stopped = { how: plan.how, starts: watch.starts.length, requests: watch.requests.length, millis }
      if (plan.how === "soft") cancel.controller.abort()
    }
    const report = yield* Simulation.run(run, { onStep, ...(plan.how === "hard" ? { interruptAt: plan.step } : {}) })
    const [handlers, log, events] = yield* Effect.all([watch.recorder.log, recorder.log, recorder.events])
    const tried: Tried = { plan, takesCancel: cancel.isRead, report, watch, handlers, log, events, stopped }
    return tried
  })

const violations = ({ plan, ...attempted }: Tried, known: Verdict.Known): ReadonlyArray<Violation> =>
  Verdict.of(attempted, known).map(({ law, message }) => ({
    ...(plan.how === "none" ? {} : { step: plan.step }),
    stop: plan.how,
    law,
    message
  }))

/** A run that takes other steps, or ends differently, when it is run again is not repeatable. */
const repeatable = (first: Tried, second: Tried): ReadonlyArray<Violation> => {
  const [before, after] = [course(first), course(second)]
  return before === after ? [] : [{ stop: "none", law: "repeatable", message: `${before} became ${after}` }]
}

const course = ({ report: { exit, steps }, watch: { requests, starts } }: Tried): string =>
  `${steps} steps, ${starts.length} handlers, ${requests.length} requests and ${exit?._tag ?? "no end"}`

const defaultGrace = "5 seconds"

/**
 * Stops a run at each of its suspension points in turn and checks the laws.
 *
 * **Details**
 *
 * After each attempt: the run has ended, in time, and nothing of it sleeps or lives on; every handler that started has
 * ended, with its finalizers run once, was started once, and before the stop; no model was asked after the stop, and
 * every request was closed; the events are lawful; every call in a thread that was handed out is answered once.
 * Handlers that refuse to stop may live on if the run names them, also those of runs within it.
 *
 * A run that is given as a function is made anew for each attempt, and may read the attempt's `cancel`. It must not
 * depend on the attempts before it: a scripted model belongs into `layer`. Real sockets and timers know nothing of a
 * simulation; a run that uses them does not fit.
 *
 * **Example** (A chat, stopped everywhere)
 *
 * ```ts import.meta.vitest
 * import { Chat, Tool } from "heddle"
 * import { everyStep, Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const wait = Tool.make("wait", { parameters: {}, handler: () => Effect.sleep("1 second") })
 * const layer = Script.layer([
 *   [Script.toolCall("c0", "wait"), Script.toolCall("c1", "wait"), Script.finish("tool_calls")],
 *   [Script.text("Done."), Script.finish("stop")]
 * ])
 * const report = await Effect.runPromise(
 *   everyStep(({ cancel }) => Chat.stream("go", { tools: [wait], cancel }), { layer })
 * )
 *
 * report.violations // => []
 * report.attempts === 2 + 2 * report.points // => true
 * report.handlers > 0 // => true
 * ```
 *
 * @category running
 * @since 0.1.0
 */
export const everyStep = <R, Out = never, In = never>(
  run: Run<R> | ((attempt: Attempt) => Run<R>),
  options: Options<Out, In> = {}
): Effect.Effect<Report, never, Exclude<Exclude<R, Out>, Scope.Scope> | In> =>
  Effect.gen(function*() {
    checkNames("everyStep", options, knownOptions)
    const { maxOpsBeforeYield = usualOps } = options
    const make: Make<R> = typeof run === "function" && !Effect.isEffect(run) ? run : () => run as Run<R>
    const count = { attempts: 0, handlers: 0, requests: 0 }
    const attemptOnce = (how: Plan["how"], step: number) =>
      Effect.map(attempt(make, options, { how, step }), (tried) => {
        count.attempts++
        count.handlers += tried.watch.starts.length
        count.requests += tried.watch.requests.length
        return tried
      })
    const whole = yield* attemptOnce("none", 0)
    const known: Verdict.Known = {
      bound: options.bound ?? Infinity,
      graceMillis: Duration.toMillis(options.grace ?? defaultGrace),
      isFine: maxOpsBeforeYield < usualOps,
      parents: Verdict.parentsOf(whole.watch),
      isChat: whole.events.some((event) => event._tag === "ChatCompleted"),
      isSound: whole.report.exit !== undefined && Exit.isSuccess(whole.report.exit),
      ...(options.policy === undefined ? {} : { policy: options.policy })
    }
    const found = [...violations(whole, known), ...repeatable(whole, yield* attemptOnce("none", 0))]
    for (const how of whole.takesCancel ? ["hard", "soft"] as const : ["hard"] as const) {
      for (const step of spread(whole.report.steps, options.limit ?? 1000)) {
        found.push(...violations(yield* attemptOnce(how, step), known))
      }
    }
    return { points: whole.report.steps, ...count, violations: found }
  })
