/**
 * What waits on behalf of a batch: for a time to be up, for arguments to be decoded. It holds no resources and runs none
 * of the caller's code itself; when it is closed it stops waiting, and nothing it was to do happens any more.
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"

/** A timer of the platform's. */
type Timer = ReturnType<typeof setTimeout>

export type Helper = Fiber.Fiber<unknown> | Timer

/** The clock that sleeps by timers of the platform's. */
const live = Context.get(Context.empty(), Clock.Clock)

/** The longest time that such a timer can wait for, in milliseconds. */
const longest = 2 ** 31 - 1

export class Helpers {
  private readonly services: Context.Context<any>
  /** Those that wait: mostly there is one. */
  private first: Helper | undefined
  private others: Set<Helper> | undefined
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
        this.forget(helper)
        if (!this.isClosed) then(value)
      })
    )
    if (fiber.pollUnsafe() !== undefined) return fiber
    helper = fiber
    this.know(fiber)
    if (this.isClosed) this.stop(fiber)
    return fiber
  }

  private know(helper: Helper): void {
    if (this.first === undefined) this.first = helper
    else (this.others ??= new Set()).add(helper)
  }

  private forget(helper: Helper | undefined): void {
    if (this.first === helper) this.first = undefined
    else if (helper !== undefined) this.others?.delete(helper)
  }

  /** Nobody needs what it waits for any more. It is known until it has ended. */
  stop(helper: Helper | undefined): void {
    if (helper === undefined) return
    stopNow(helper)
    if (!isAlive(helper)) this.forget(helper)
  }

  /**
   * Does something when so much time has passed. Each has a sleep of its own, which begins here: whoever falls asleep
   * later, for the same time, wakes later, and what the clock is set to meanwhile is nothing to either.
   */
  after(millis: number, then: () => void): Helper | undefined {
    if (this.isClosed) return undefined
    const isPlain = millis > 0 && millis <= longest && Context.get(this.services, Clock.Clock) === live
    return isPlain ? this.timer(millis, then) : this.when(Effect.sleep(millis), then)
  }

  /** What the live clock sleeps by, without a fiber that sleeps: one is there when there is something to do. */
  private timer(millis: number, then: () => void): Timer {
    const timer = setTimeout(() => {
      this.forget(timer)
      Effect.runForkWith(this.services)(Effect.sync(then))
    }, millis)
    this.know(timer)
    return timer
  }

  /** Stops all, and waits until they have ended: a scheduler may give them their turn later than whoever closes. */
  close(): Effect.Effect<void> {
    this.isClosed = true
    if (this.first === undefined && this.others === undefined) return Effect.void
    const all = [...(this.first === undefined ? [] : [this.first]), ...(this.others ?? [])]
    for (const helper of all) stopNow(helper)
    const left = all.filter(isAlive)
    return left.length === 0 ? Effect.void : Effect.asVoid(Fiber.awaitAll(left))
  }
}

const stopNow = (helper: Helper): void => Fiber.isFiber(helper) ? helper.interruptUnsafe() : clearTimeout(helper)

/** A timer that was stopped is gone. */
const isAlive = (helper: Helper): helper is Fiber.Fiber<unknown> =>
  Fiber.isFiber(helper) && helper.pollUnsafe() === undefined
