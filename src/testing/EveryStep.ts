/**
 * Stops a run at every possible point, and checks what remains against the laws. The run is simulated once to its end,
 * and then once per step: interrupted there, and, if it takes a `cancel`, also asked to stop there.
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
 * Context of an attempt at a run.
 *
 * @category models
 */
export interface Attempt {
  /** Fires when the run is to stop softly. A run reading it is also stopped softly at each step. */
  readonly cancel: AbortSignal
  /**
   * Recorder for anything else to watch. A tracked effect must end with the run, and events passing its `tap` are
   * checked against the event laws.
   */
  readonly recorder: Recorder.Recorder
}

/**
 * A run: a stream of events, read to its end, or an effect.
 *
 * @category models
 */
export type Run<R> = Stream.Stream<Event.Event, unknown, R> | Effect.Effect<unknown, unknown, R>

/**
 * Options for the attempts at a run.
 *
 * @category models
 */
export interface Options<Out = never, In = never> {
  /**
   * Services needed by the run, built anew for each attempt: the model, and your own executor, if any. Services a run
   * provides for itself also work, but are not watched: their handlers and requests stay invisible. None by default.
   */
  readonly layer?: Layer.Layer<Out, unknown, In>
  /**
   * A fiber yields to others after this many operations, at least 3. By default they are Effect's own 2,048, within
   * which a fiber without waits is not stopped; small numbers create stopping points everywhere inside.
   */
  readonly maxOpsBeforeYield?: number
  /** Maximum number of points to try; beyond it the tried points are spread evenly. 1,000 by default. */
  readonly limit?: number
  /** Time the run may take to stop: its own `grace`. A number is milliseconds. 5 seconds by default. */
  readonly grace?: Duration.Input
  /** Maximum number of concurrent handlers: the run's own `maxConcurrency`. Unlimited by default. */
  readonly bound?: number
  /** The run's own policy. `Policy.standard` by default. */
  readonly policy?: Policy.Policy
}

/**
 * A fault found at one step.
 *
 * The laws are those in `check`, and two more:
 *
 * - `"stop"`: after the stop no handler starts and no model is asked. The run ends within its grace period, with its
 *   result or interrupted. With `maxOpsBeforeYield`, work already on its way at that instant may still start, and is
 *   then stopped.
 * - `"repeatable"`: the run takes the same steps each time. Otherwise it cannot be stopped at each step.
 *
 * @category models
 */
export interface Violation {
  /** The run was stopped before this step. Undefined if never stopped. */
  readonly step?: number
  /** Kind of stop. */
  readonly stop: "none" | "hard" | "soft"
  /** Broken law: from `Check.Violation`, or `"stop"` or `"repeatable"`. */
  readonly law: Check.Violation["law"] | "stop" | "repeatable"
  /** Description of the fault. */
  readonly message: string
}

/**
 * Findings of all attempts.
 *
 * @category models
 */
export interface Report {
  /** Number of points where the run can be stopped. */
  readonly points: number
  /** Number of runs. */
  readonly attempts: number
  /** Number of started handlers, over all attempts. */
  readonly handlers: number
  /** Number of model requests, over all attempts. */
  readonly requests: number
  /** Faults found. */
  readonly violations: ReadonlyArray<Violation>
}

/** Signal of one attempt, recording whether it was read. */
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

/** Reads a stream to its end, recording all its events. */
const drained = <R>(run: Run<R>, recorder: Recorder.Recorder): Effect.Effect<unknown, unknown, R> =>
  Stream.isStream(run) ? Stream.runDrain(recorder.tap(run as Stream.Stream<Event.Event, unknown, R>)) : run

const usualOps = 2048

/** Smallest `maxOpsBeforeYield`: below it a fiber would only yield. */
const fewestOps = 3

const knownOptions = {
  layer: Values.layer,
  maxOpsBeforeYield: new Values.Kind(
    `a whole number, ${fewestOps} or more`,
    (value) => Number.isSafeInteger(value) && Number(value) >= fewestOps
  ),
  limit: Values.countOrNone,
  grace: Values.plainDuration,
  bound: Values.countOrNone,
  policy: Values.policyOf(Policy.Policy)
} satisfies NamesOf<Options>

/** Reads the clock as zero, because an attempt's world starts at zero, and its recorders are made earlier. */
const atZero = <A>(effect: Effect.Effect<A>): Effect.Effect<A> =>
  Effect.clockWith((clock) =>
    Effect.provideService(effect, Clock.Clock, { ...clock, currentTimeMillis: Effect.succeed(0) })
  )

/** Runs one attempt's run, with its services watched. */
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

/** Makes one attempt: the run in its own world, stopped as planned. */
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

/** Compares two runs. A run that takes other steps or ends differently the second time is not repeatable. */
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
 * After each attempt these conditions must hold:
 *
 * - The run has ended in time, and none of its fibers or timers remain.
 * - Every started handler has ended, ran its finalizers once, and started once, before the stop.
 * - No model was asked after the stop, and every request was closed.
 * - The events are lawful, and every call in a returned thread is answered once.
 *
 * Handlers that refuse to stop may live on if the run names them, also handlers in nested runs.
 *
 * A run given as a function is made anew for each attempt, and may read the attempt's `cancel`. It must not depend on
 * earlier attempts: put a scripted model into `layer`. Real sockets and timers ignore a simulation, so a run using them
 * does not fit.
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
