/**
 * Runs an effect in its own world: a virtual clock that advances by itself whenever everything waits, and a scheduler
 * that counts. The same effect takes the same steps each time, an hour of timeouts takes no time, and a run can be
 * interrupted at any step. Anything still alive after its end is reported.
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import * as Metric from "effect/Metric"
import * as Scheduler from "effect/Scheduler"
import { checkNames, type NamesOf } from "../internal/declare/schema.ts"
import * as Values from "../internal/declare/values.ts"

/**
 * Outcome of a simulated effect.
 *
 * @category models
 */
export interface Report<out A, out E = never> {
  /** Exit of the effect. `undefined` if it had not ended when nothing more could happen. */
  readonly exit: Exit.Exit<A, E> | undefined
  /** Scheduler tasks run, plus sleepers woken. */
  readonly steps: number
  /** Virtual time in milliseconds until it had ended and its finalizers had run. */
  readonly millis: number
  /** Number of fibers left asleep. Above zero, something outlived the effect. */
  readonly sleeping: number
  /** Number of fibers left running, asleep or not. An unfinished effect counts as a fiber. */
  readonly fibers: number
}

/**
 * Options of a simulation.
 *
 * @category models
 */
export interface Options {
  /** Step before which the effect is interrupted; 0 is before its first. Never by default. */
  readonly interruptAt?: number
  /** Receives each step number before the step, and once more when nothing is left to run. */
  readonly onStep?: (step: number) => void
  /** Most steps a simulation may take before it is ended. 100,000 by default. */
  readonly maxSteps?: number
}

const knownOptions = {
  interruptAt: Values.limit,
  onStep: Values.fn,
  maxSteps: Values.countOrNone
} satisfies NamesOf<Options>

interface Sleeper {
  readonly at: number
  readonly wake: () => void
}

/** Clock and scheduler of one simulation, advanced by the same loop. */
class World {
  steps = 0
  fibers = 0
  /** Virtual time. */
  millis = 0
  private readonly tasks: Array<() => void> = []
  private readonly sleepers: Array<Sleeper> = []

  readonly scheduler: Scheduler.Scheduler = {
    executionMode: "async",
    shouldYield: (fiber) => fiber.currentOpCount >= fiber.cache.maxOpsBeforeYield,
    makeDispatcher: () => ({
      scheduleTask: (task) => {
        this.tasks.push(task)
      },
      flush: () => {
        while (this.hasTask) this.runTask()
      }
    })
  }

  readonly clock: Clock.Clock = {
    currentTimeMillisUnsafe: () => this.millis,
    currentTimeMillis: Effect.sync(() => this.millis),
    currentTimeNanosUnsafe: () => this.nanos,
    currentTimeNanos: Effect.sync(() => this.nanos),
    monotonicTimeNanosUnsafe: () => this.nanos,
    monotonicTimeNanos: Effect.sync(() => this.nanos),
    sleep: (duration) => this.sleep(Duration.toMillis(duration))
  }

  readonly metrics: Metric.FiberRuntimeMetricsService = {
    recordFiberStart: () => {
      this.fibers++
    },
    recordFiberEnd: () => {
      this.fibers--
    }
  }

  private get nanos(): bigint {
    return BigInt(Math.floor(this.millis * 1e6))
  }

  get sleeping(): number {
    return this.sleepers.length
  }

  private sleep(millis: number): Effect.Effect<void> {
    if (millis <= 0) return Effect.void
    return Effect.callback<void>((resume) => {
      const sleeper: Sleeper = { at: this.millis + millis, wake: () => resume(Effect.void) }
      const later = this.sleepers.findIndex((other) => other.at > sleeper.at)
      this.sleepers.splice(later === -1 ? this.sleepers.length : later, 0, sleeper)
      return Effect.sync(() => {
        const index = this.sleepers.indexOf(sleeper)
        if (index >= 0) this.sleepers.splice(index, 1)
      })
    })
  }

  get hasTask(): boolean {
    return this.tasks.length > 0
  }

  runTask(): void {
    this.steps++
    this.tasks.shift()?.()
  }

  /** `true` if a remaining sleeper will ever wake. */
  get hasSleeper(): boolean {
    const next = this.sleepers[0]
    return next !== undefined && Number.isFinite(next.at)
  }

  /** Moves the clock to the next sleeper. */
  wakeNext(): void {
    const next = this.sleepers.shift()
    if (next === undefined) return
    this.millis = next.at
    this.steps++
    next.wake()
  }
}

/** Number of extra checks before a simulation without progress counts as stuck, or as over. */
const patience = { stuck: 8, over: 2 }

/**
 * Drives a world. Promises belong to no scheduler: whenever nothing is left to do at an instant, ready promises settle,
 * before the clock moves and before the world counts as stuck.
 */
const drive = <A, E>(world: World, fiber: Fiber.Fiber<A, E>, options: Options): Effect.Effect<void> =>
  Effect.gen(function*() {
    const { interruptAt = Infinity, maxSteps = 100_000, onStep } = options
    let reached = -1
    let isInterrupted = false
    let idle = 0
    while (world.steps < maxSteps) {
      if (idle >= (fiber.pollUnsafe() === undefined ? patience.stuck : patience.over)) return
      // Another sleeper may be next after this step.
      if (reached < world.steps) {
        reached = world.steps
        onStep?.(reached)
        if (!isInterrupted && reached >= interruptAt) {
          isInterrupted = true
          fiber.interruptUnsafe()
        }
      }
      const isTimeUp = idle > 0 && world.hasSleeper && fiber.pollUnsafe() === undefined
      if (world.hasTask) world.runTask()
      else if (isTimeUp) world.wakeNext()
      else {
        idle++
        yield* Effect.yieldNow
        continue
      }
      idle = 0
    }
  })

/**
 * Simulates an effect. It never fails: the report contains the effect's exit.
 *
 * **Example** (A minute, at once)
 *
 * ```ts import.meta.vitest
 * import { Simulation } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const report = await Effect.runPromise(Simulation.run(Effect.sleep("1 minute")))
 *
 * report.millis // => 60000
 * report.sleeping // => 0
 * ```
 *
 * @category running
 */
export const run = <A, E, R>(
  effect: Effect.Effect<A, E, R>,
  options: Options = {}
): Effect.Effect<Report<A, E>, never, R> =>
  Effect.contextWith((context: Context.Context<R>) =>
    Effect.suspend(() => {
      checkNames("Simulation.run", options, knownOptions)
      const world = new World()
      const inside = context.pipe(
        Context.add(Clock.Clock, world.clock),
        Context.add(Scheduler.Scheduler, world.scheduler),
        Context.add(Metric.FiberRuntimeMetrics, world.metrics)
      )
      const started = Effect.andThen(Effect.yieldNow, effect)
      const fiber = Effect.runForkWith(inside)(started)
      return Effect.map(drive(world, fiber, options), () => ({
        exit: fiber.pollUnsafe(),
        steps: world.steps,
        millis: world.millis,
        sleeping: world.sleeping,
        fibers: world.fibers
      }))
    })
  )
