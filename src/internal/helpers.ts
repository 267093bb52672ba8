/**
 * What waits on behalf of a batch: for a time to be up, for arguments to be decoded. It holds no resources and runs none
 * of the caller's code itself; when it is closed it stops waiting, and nothing it was to do happens any more.
 */
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Alarm from "./alarm.ts"

/** Something that waits, until it is told not to. */
export interface Helper {
  readonly stop: () => void
}

export class Helpers {
  private readonly services: Context.Context<any>
  private helpers: Set<Helper> | undefined
  private known: Alarm.Alarm | undefined
  private isClosed = false

  constructor(services: Context.Context<any>) {
    this.services = services
  }

  /** Waits for something and then does something, unless it is closed by then. */
  when<A>(waiting: Effect.Effect<A, never, any>, then: (value: A) => void): void {
    if (this.isClosed) return
    const fiber = Effect.runForkWith(this.services)(
      Effect.map(waiting, (value) => {
        if (!this.isClosed) then(value)
      })
    )
    if (fiber.pollUnsafe() !== undefined) return
    const helper: Helper = { stop: () => fiber.interruptUnsafe() }
    this.add(helper)
    fiber.addObserver(() => this.forget(helper))
    if (this.isClosed) fiber.interruptUnsafe()
  }

  /** Does something when so many milliseconds have passed, unless it is stopped or closed by then. */
  after(millis: number, act: () => void): Helper | undefined {
    return this.isClosed ? undefined : this.at(this.alarm.now + millis, act)
  }

  /** Does something at a time of the clock, unless it is stopped or closed by then. */
  at(time: number, act: () => void): Helper | undefined {
    if (this.isClosed) return undefined
    const timer = new Timer(this, this.alarm, time, act)
    this.add(timer)
    this.alarm.set(timer)
    return timer
  }

  private get alarm(): Alarm.Alarm {
    return this.known ??= Alarm.of(this.services)
  }

  forget(helper: Helper): void {
    this.helpers?.delete(helper)
  }

  private add(helper: Helper): void {
    this.helpers ??= new Set()
    this.helpers.add(helper)
  }

  close(): void {
    this.isClosed = true
    for (const helper of this.helpers ?? []) helper.stop()
  }
}

class Timer implements Helper, Alarm.Bell {
  readonly at: number
  private readonly helpers: Helpers
  private readonly alarm: Alarm.Alarm
  private readonly act: () => void

  constructor(helpers: Helpers, alarm: Alarm.Alarm, at: number, act: () => void) {
    this.helpers = helpers
    this.alarm = alarm
    this.at = at
    this.act = act
  }

  ring(): void {
    this.helpers.forget(this)
    this.act()
  }

  stop(): void {
    this.helpers.forget(this)
    this.alarm.unset(this)
  }
}
