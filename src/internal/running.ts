/**
 * The handlers of one run that are alive. Each is a fiber of the run; when the run ends they are told to stop, get a
 * grace period, and those that refuse are named and left behind: what they yield later is dropped.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import type * as Event from "../Event.ts"

export interface Handler {
  readonly id: string
  readonly name: string
  readonly startedAt: number
  readonly isBlocking: boolean
  readonly fiber: Fiber.Fiber<unknown, unknown>
}

export class Running {
  readonly graceMillis: number
  private readonly listeners = new Set<() => void>()
  private readonly live = new Set<Handler>()
  private readonly idle = Latch.makeUnsafe(true)

  constructor(graceMillis: number) {
    this.graceMillis = graceMillis
  }

  /** Takes a handler that has not ended yet. */
  add(handler: Handler): void {
    this.live.add(handler)
    this.idle.closeUnsafe()
    handler.fiber.addObserver(() => {
      this.live.delete(handler)
      if (this.live.size === 0) this.idle.openUnsafe()
      for (const listener of this.listeners) listener()
    })
  }

  /** Calls `listener` after a handler has ended, until the returned function is called. */
  onEnd(listener: () => void): () => void {
    this.listeners.add(listener)
    return () => this.listeners.delete(listener)
  }

  get size(): number {
    return this.live.size
  }

  /** Stops every handler and waits for them, within the grace period. What is still alive then is given up. */
  readonly stop: Effect.Effect<ReadonlyArray<Event.Abandoned>> = Effect.suspend(() => {
    if (this.size === 0) return Effect.succeed([])
    for (const handler of this.live) {
      if (!handler.isBlocking) handler.fiber.interruptUnsafe()
    }
    return this.idle.await.pipe(
      Effect.timeoutOption(this.graceMillis),
      Effect.flatMap(() => this.giveUp())
    )
  })

  /** Blocking handlers have had their time, too: they are told to stop as well, and given one turn to do so. */
  private giveUp(): Effect.Effect<ReadonlyArray<Event.Abandoned>> {
    for (const handler of this.live) handler.fiber.interruptUnsafe()
    return Effect.yieldNow.pipe(
      Effect.andThen(Clock.currentTimeMillis),
      Effect.map((now) =>
        Array.from(this.live, (handler) => ({ id: handler.id, name: handler.name, ageMillis: now - handler.startedAt }))
      ),
      Effect.tap(() => Effect.sync(() => this.live.clear())),
      Effect.tap((abandoned) => abandoned.length === 0 ? Effect.void : report(abandoned))
    )
  }
}

const report = (abandoned: ReadonlyArray<Event.Abandoned>): Effect.Effect<void> =>
  Effect.logWarning(`${abandoned.length} tool handlers refused to stop and were abandoned`, abandoned)
