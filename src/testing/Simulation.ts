/**
 * Runs an effect in a world of its own: a virtual clock that moves by itself whenever everything waits, and a scheduler
 * that counts. The same effect takes the same steps each time, an hour of timeouts takes no time, and a run can be
 * interrupted at any one of its steps. Whatever still sleeps when it has ended shows.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import * as Scheduler from "effect/Scheduler"

/**
 * What became of a simulated effect.
 *
 * - `exit`: how it ended, or `undefined` when nothing could happen any more and it had not.
 * - `steps`: how often somebody ran: a task of the scheduler, or a sleeper that woke.
 * - `millis`: the virtual time it took, until it had ended and its finalizers had run.
 * - `sleeping`: how many fibers it left asleep. Above zero, something outlived the effect.
 *
 * @category models
 * @since 0.1.0
 */
export interface Report<out A, out E = never> {
  readonly exit: Exit.Exit<A, E> | undefined
  readonly steps: number
  readonly millis: number
  readonly sleeping: number
}

/**
 * How to simulate: `interruptAt` interrupts the effect before the step of that number (0 is before its first),
 * `maxSteps` (100,000) ends a simulation that goes on for ever.
 *
 * @category models
 * @since 0.1.0
 */
export interface Options {
  readonly interruptAt?: number
  readonly maxSteps?: number
}

interface Sleeper {
  readonly at: number
  readonly wake: () => void
}

/** The clock and the scheduler of one simulation, and the loop that moves both. */
class World {
  steps = 0
  private now = 0
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
        while (this.runTask()) { /* until there is none */ }
      }
    })
  }

  readonly clock: Clock.Clock = {
    currentTimeMillisUnsafe: () => this.now,
    currentTimeMillis: Effect.sync(() => this.now),
    currentTimeNanosUnsafe: () => this.nanos,
    currentTimeNanos: Effect.sync(() => this.nanos),
    monotonicTimeNanosUnsafe: () => this.nanos,
    monotonicTimeNanos: Effect.sync(() => this.nanos),
    sleep: (duration) => this.sleep(Duration.toMillis(duration))
  }

  get millis(): number {
    return this.now
  }

  private get nanos(): bigint {
    return BigInt(Math.floor(this.now * 1e6))
  }

  get sleeping(): number {
    return this.sleepers.length
  }

  private sleep(millis: number): Effect.Effect<void> {
    if (millis <= 0) return Effect.void
    return Effect.callback<void>((resume) => {
      const sleeper: Sleeper = { at: this.now + millis, wake: () => resume(Effect.void) }
      const later = this.sleepers.findIndex((other) => other.at > sleeper.at)
      this.sleepers.splice(later === -1 ? this.sleepers.length : later, 0, sleeper)
      return Effect.sync(() => {
        const index = this.sleepers.indexOf(sleeper)
        if (index >= 0) this.sleepers.splice(index, 1)
      })
    })
  }

  runTask(): boolean {
    const task = this.tasks.shift()
    if (task === undefined) return false
    this.steps++
    task()
    return true
  }

  /** Moves the clock to the next sleeper, if one will ever wake. */
  wakeNext(): boolean {
    const next = this.sleepers[0]
    if (next === undefined || !Number.isFinite(next.at)) return false
    this.sleepers.shift()
    this.now = next.at
    this.steps++
    next.wake()
    return true
  }
}

/** Lets promises that are ready settle: they belong to no scheduler. */
const settlePromises = Effect.promise(() => Promise.resolve()).pipe(Effect.andThen(Effect.yieldNow))

/** How often a world in which nothing moves is looked at again before it counts as stuck. */
const patience = 8

const drive = <A, E>(world: World, fiber: Fiber.Fiber<A, E>, options: Options): Effect.Effect<void> =>
  Effect.gen(function*() {
    const { interruptAt = Infinity, maxSteps = 100_000 } = options
    let isInterrupted = false
    let idle = 0
    while (idle < patience && world.steps < maxSteps) {
      if (!isInterrupted && world.steps >= interruptAt) {
        isInterrupted = true
        fiber.interruptUnsafe()
      }
      const hasEnded = fiber.pollUnsafe() !== undefined
      if (world.runTask() || (!hasEnded && world.wakeNext())) {
        idle = 0
        continue
      }
      idle++
      yield* settlePromises
    }
  })

/**
 * Simulates an effect. It fails never: how the effect ended stands in the report.
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
 * @since 0.1.0
 */
export const run = <A, E, R>(
  effect: Effect.Effect<A, E, R>,
  options: Options = {}
): Effect.Effect<Report<A, E>, never, R> =>
  Effect.contextWith((context: Context.Context<R>) =>
    Effect.suspend(() => {
      const world = new World()
      const inside = context.pipe(
        Context.add(Clock.Clock, world.clock),
        Context.add(Scheduler.Scheduler, world.scheduler)
      )
      const started = Effect.andThen(Effect.yieldNow, effect)
      const fiber = Effect.runForkWith(inside)(started)
      return Effect.map(drive(world, fiber, options), () => ({
        exit: fiber.pollUnsafe(),
        steps: world.steps,
        millis: world.millis,
        sleeping: world.sleeping
      }))
    })
  )
