/**
 * Where tool fibers leave their events for the one pull that reads them. It is bounded by design: a call leaves at most
 * three events, and its unread progress is coalesced to the latest beyond a few. Offering never waits, so a slow reader
 * holds nothing up.
 */
import type * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Latch from "effect/Latch"
import type * as Event from "../Event.ts"
import { type Outlet, unreadProgressLimit } from "./emission.ts"

export class Mailbox<E> implements Outlet {
  private events: Array<Event.Event> = []
  /** By the index of the call, for ids may repeat: how much of its progress is unread, and where the last one is. */
  private readonly unreadProgress = new Map<number, { readonly count: number; readonly last: number }>()
  private failure: Cause.Cause<E> | undefined
  private readonly latch = Latch.makeUnsafe(false)

  offer(events: ReadonlyArray<Event.Event>): void {
    if (this.failure !== undefined) return
    for (const event of events) this.events.push(event)
    this.latch.openUnsafe()
  }

  /** Progress of one call: once too many are unread, the latest takes the place of the one before it. */
  offerProgress(index: number, event: Event.Event): void {
    if (this.failure !== undefined) return
    const unread = this.unreadProgress.get(index)
    if (unread === undefined || unread.count < unreadProgressLimit) {
      this.unreadProgress.set(index, { count: (unread?.count ?? 0) + 1, last: this.events.length })
      this.events.push(event)
    } else {
      this.events[unread.last] = event
    }
    this.latch.openUnsafe()
  }

  /** The failure comes after what was left before it, and nothing comes after the failure. */
  fail(cause: Cause.Cause<E>): void {
    this.failure ??= cause
    this.latch.openUnsafe()
  }

  /** Lets the reader look again, although there may be no event. */
  wake(): void {
    this.latch.openUnsafe()
  }

  /**
   * Everything there is now, which may be nothing; waits only when nothing has happened since the last look. A reader
   * that waited comes back by the scheduler: opening the latch would otherwise run it inside the code that offers.
   */
  readonly take: Effect.Effect<ReadonlyArray<Event.Event>, E> = Effect.suspend(() =>
    this.hasNews
      ? this.drain()
      : Effect.flatMap(Effect.andThen(this.latch.await, Effect.yieldNow), () => this.drain())
  )

  get isEmpty(): boolean {
    return !this.hasNews
  }

  private get hasNews(): boolean {
    return this.events.length > 0 || this.failure !== undefined
  }

  private drain(): Effect.Effect<ReadonlyArray<Event.Event>, E> {
    this.latch.closeUnsafe()
    const events = this.events
    this.events = []
    this.unreadProgress.clear()
    return events.length === 0 && this.failure !== undefined ? Effect.failCause(this.failure) : Effect.succeed(events)
  }
}
