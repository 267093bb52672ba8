/**
 * Where tool fibers leave their events for the one pull that reads them. It is bounded by design: a call leaves at most
 * three events, and its unread progress is coalesced to the latest beyond a few. Offering never waits, so a slow reader
 * holds nothing up.
 */
import type * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Latch from "effect/Latch"
import type * as Event from "../Event.ts"

const unreadProgressLimit = 16

export class Mailbox<E> {
  private events: Array<Event.Event> = []
  private readonly unreadProgress = new Map<number, number>()
  private failure: Cause.Cause<E> | undefined
  private readonly latch = Latch.makeUnsafe(false)

  offer(events: ReadonlyArray<Event.Event>): void {
    for (const event of events) this.events.push(event)
    this.latch.openUnsafe()
  }

  /** Progress of one call: once too many are unread, the latest takes the place of the one before it. */
  offerProgress(index: number, event: Event.Of<"ToolProgress">): void {
    const unread = this.unreadProgress.get(index) ?? 0
    if (unread < unreadProgressLimit) {
      this.unreadProgress.set(index, unread + 1)
      this.events.push(event)
    } else {
      const last = this.events.findLastIndex((old) => old._tag === "ToolProgress" && old.id === event.id)
      this.events[last] = event
    }
    this.latch.openUnsafe()
  }

  fail(cause: Cause.Cause<E>): void {
    this.failure ??= cause
    this.latch.openUnsafe()
  }

  /** Lets the reader look again, although there may be no event. */
  wake(): void {
    this.latch.openUnsafe()
  }

  /** Everything there is now, which may be nothing; waits only when nothing has happened since the last look. */
  readonly take: Effect.Effect<ReadonlyArray<Event.Event>, E> = Effect.suspend(() =>
    this.hasNews ? this.drain() : Effect.flatMap(this.latch.await, () => this.drain())
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
