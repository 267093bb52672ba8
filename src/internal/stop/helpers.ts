/**
 * What waits on behalf of a batch: for a time to be up, for arguments to be decoded. It holds no resources and runs none
 * of the caller's code itself; when it is closed it stops waiting, and nothing it was to do happens any more.
 */
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { Few } from "../few.ts"
import * as Timer from "./timer.ts"

export type Helper = Fiber.Fiber<unknown> | Timer.Timer

/** Who waits for a time. An object, since each handler is one already and would have a function beside it. */
export interface Waiter {
  readonly timeUp: () => void
}

export class Helpers {
  private readonly services: Context.Context<any>
  /** Those that wait. */
  private readonly waiting = new Few<Helper>()
  private isClosed = false

  constructor(services: Context.Context<any>) {
    this.services = services
  }

  /** Waits for something and then does something, unless it is closed by then. */
  when<A>(waiting: Effect.Effect<A, never, any>, then: (value: A) => void): Helper | undefined {
    if (this.isClosed) return undefined
    let helper: Helper | undefined
    const fiber = Effect.runForkWith(this.services)(
      Effect.map(waiting, (value) => {
        if (helper !== undefined) this.waiting.delete(helper)
        if (!this.isClosed) then(value)
      })
    )
    if (fiber.pollUnsafe() !== undefined) return fiber
    helper = fiber
    this.waiting.add(fiber)
    if (this.isClosed) this.stop(fiber)
    return fiber
  }

  /** Nobody needs what it waits for any more. It is known until it has ended. */
  stop(helper: Helper | undefined): void {
    if (helper === undefined) return
    stopNow(helper)
    if (!isAlive(helper)) this.waiting.delete(helper)
  }

  /**
   * Does something when so much time has passed. Each has a sleep of its own, which begins here: whoever falls asleep
   * later, for the same time, wakes later, and what the clock is set to meanwhile is nothing to either.
   */
  after(millis: number, waiter: Waiter): Helper | undefined {
    if (this.isClosed) return undefined
    return Timer.suffices(this.services, millis)
      ? this.timer(millis, waiter)
      : this.when(Effect.sleep(millis), () => waiter.timeUp())
  }

  private timer(millis: number, waiter: Waiter): Timer.Timer {
    // One function for all of it: each handler that waits has one.
    const timer = Timer.set(millis, () => {
      this.waiting.delete(timer)
      Effect.runForkWith(this.services)(Effect.sync(() => waiter.timeUp()))
    })
    this.waiting.add(timer)
    return timer
  }

  /** Stops all, and waits until they have ended: a scheduler may give them their turn later than whoever closes. */
  close(): Effect.Effect<void> {
    this.isClosed = true
    if (this.waiting.size === 0) return Effect.void
    const { all } = this.waiting
    for (const helper of all) stopNow(helper)
    const left = all.filter(isAlive)
    return left.length === 0 ? Effect.void : Effect.asVoid(Fiber.awaitAll(left))
  }
}

const stopNow = (helper: Helper): void => Fiber.isFiber(helper) ? helper.interruptUnsafe() : Timer.clear(helper)

/** A timer that was stopped is gone. */
const isAlive = (helper: Helper): helper is Fiber.Fiber<unknown> =>
  Fiber.isFiber(helper) && helper.pollUnsafe() === undefined
