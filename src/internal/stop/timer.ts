/**
 * The live clock's sleep without a fiber that sleeps. It is the one place where a timer of the platform's is set: each
 * handler that waits has one for its timeout, and a fiber to sleep in weighs ten times as much.
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"

/** A timer of the platform's. */
export type Timer = ReturnType<typeof setTimeout>

/** The clock that sleeps by such timers. */
const live = Context.get(Context.empty(), Clock.Clock)

/** The longest time that one can wait for, in milliseconds. */
const longest = 2 ** 31 - 1

/** Whether a timer does what a sleep would: any other clock is to be slept by. */
export const suffices = (services: Context.Context<any>, millis: number): boolean =>
  millis > 0 && millis <= longest && Context.get(services, Clock.Clock) === live

/** Does something when the time is up. */
export const set = (millis: number, then: () => void): Timer => setTimeout(then, millis)

/** What has been cleared is gone, and does nothing. */
export const clear = (timer: Timer): void => clearTimeout(timer)
