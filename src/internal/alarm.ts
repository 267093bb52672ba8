/**
 * Times that something waits for. All that wait by one clock share one sleeping fiber, for a call in a thousand is late:
 * what is in time costs neither a fiber nor a timer. Where nothing waits, nothing sleeps.
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import * as Scheduler from "effect/Scheduler"

/** Something that happens at a time of the clock, unless it is taken back before. */
export interface Bell {
  readonly at: number
  readonly ring: () => void
}

export class Alarm {
  private readonly clock: Clock.Clock
  private readonly services: Context.Context<never>
  /** In the order in which they were set. */
  private readonly bells = new Set<Bell>()
  private sleeper: Fiber.Fiber<void> | undefined
  /** When the sleeper wakes. It may find that nobody waits for that time any more. */
  private wakesAt = Infinity

  constructor(clock: Clock.Clock, scheduler: Scheduler.Scheduler) {
    this.clock = clock
    this.services = Context.add(Context.make(Clock.Clock, clock), Scheduler.Scheduler, scheduler)
  }

  /** The time of the clock, in milliseconds. */
  get now(): number {
    return this.clock.currentTimeMillisUnsafe()
  }

  set(bell: Bell): void {
    this.bells.add(bell)
    if (bell.at < this.wakesAt) this.sleepUntil(bell.at)
  }

  unset(bell: Bell): void {
    this.bells.delete(bell)
    if (this.bells.size === 0) this.stop()
  }

  private sleepUntil(at: number): void {
    this.stop()
    this.wakesAt = at
    const sleeper = this.run(Effect.map(Effect.sleep(Math.max(0, at - this.now)), () => this.wake()))
    // What is due at once may have woken, and gone to sleep again, by now.
    if (sleeper.pollUnsafe() === undefined) this.sleeper = sleeper
  }

  private stop(): void {
    const { sleeper } = this
    this.sleeper = undefined
    this.wakesAt = Infinity
    sleeper?.interruptUnsafe()
  }

  /** Each rings in a fiber of its own: what breaks in one of them is nothing to the others. */
  private wake(): void {
    this.sleeper = undefined
    this.wakesAt = Infinity
    const { now } = this
    const due = Array.from(this.bells).filter((bell) => bell.at <= now)
    for (const bell of due.toSorted((left, right) => left.at - right.at)) {
      if (this.bells.delete(bell)) this.run(Effect.sync(() => bell.ring()))
    }
    this.sleepOn()
  }

  private sleepOn(): void {
    let at = this.wakesAt
    for (const bell of this.bells) at = Math.min(at, bell.at)
    if (at < this.wakesAt) this.sleepUntil(at)
  }

  private run<A>(effect: Effect.Effect<A>): Fiber.Fiber<A> {
    return Effect.runForkWith(this.services)(effect)
  }
}

const alarms = new WeakMap<Clock.Clock, WeakMap<Scheduler.Scheduler, Alarm>>()

/** The alarm of all that run by the same clock. */
export const of = (services: Context.Context<never>): Alarm => {
  const clock = Context.get(services, Clock.Clock)
  const scheduler = Context.get(services, Scheduler.Scheduler)
  const ofClock = alarms.get(clock) ?? new WeakMap<Scheduler.Scheduler, Alarm>()
  const alarm = ofClock.get(scheduler) ?? new Alarm(clock, scheduler)
  if (!alarms.has(clock)) alarms.set(clock, ofClock)
  if (!ofClock.has(scheduler)) ofClock.set(scheduler, alarm)
  return alarm
}
