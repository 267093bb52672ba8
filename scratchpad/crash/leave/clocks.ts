/**
 * The clock of a process, which can be set while the process runs: `Date`, and the clock of Effect. Timers and the clock that
 * only goes forward are not affected, as on a machine whose clock is set.
 */
import type * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"

const System = Date

let aheadMillis = 0

const now = (): number => System.now() + aheadMillis

/** Sets the clock of this process to be so many milliseconds ahead of the clock of the machine. */
export const set = (millis: number): void => {
  aheadMillis = millis
}

globalThis.Date = new Proxy(System, {
  construct: (target, args, self) => Reflect.construct(target, args.length === 0 ? [now()] : args, self),
  apply: () => new System(now()).toString(),
  get: (target, name, self) => name === "now" ? now : Reflect.get(target, name, self)
})

const nanos = (): bigint => BigInt(now()) * 1_000_000n

/** Returns a clock whose wall clock can be set. */
export const settable = (clock: Clock.Clock): Clock.Clock => ({
  currentTimeMillisUnsafe: now,
  currentTimeMillis: Effect.sync(now),
  currentTimeNanosUnsafe: nanos,
  currentTimeNanos: Effect.sync(nanos),
  monotonicTimeNanosUnsafe: () => clock.monotonicTimeNanosUnsafe(),
  monotonicTimeNanos: clock.monotonicTimeNanos,
  sleep: (duration) => clock.sleep(duration)
})
