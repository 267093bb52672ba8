/**
 * Where tool fibers leave their events for the one pull that reads them. It is bounded by design: a call leaves at most
 * three events, and its unread progress is coalesced to the latest beyond a few. Offering never waits, so a slow reader
 * holds nothing up; and it never runs the reader, which goes on in a turn of its own, so that what is left together is
 * read together.
 */
import type * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as Event from "../../Event.ts"
import * as Lists from "../lists.ts"
import { type Outlet, unreadProgressLimit } from "./eventOrder.ts"

export class Mailbox<E> implements Outlet {
  private events: Array<Event.Event> | undefined
  /** By the index of the call, for ids may repeat: how much of its progress is unread, and where the last one is. */
  private unreadProgress: Map<number, { readonly count: number; readonly last: number }> | undefined
  private failure: Cause.Cause<E> | undefined
  /** Who waits for something to look at, and how it goes on. */
  private reader: Fiber.Fiber<unknown, unknown> | undefined
  private resume: ((next: Effect.Effect<ReadonlyArray<Event.Event>, E>) => void) | undefined
  /** Whether it was woken while nobody waited: whoever has just looked, and is about to wait, has to look again. */
  private wasWoken = false

  offer(events: ReadonlyArray<Event.Event>): void {
    if (this.failure !== undefined) return
    this.events = Lists.joined(this.events, events)
    this.wake()
  }

  started(_index: number, event: Event.Event): void {
    this.offer([event])
  }

  settled(_index: number, events: ReadonlyArray<Event.Event>): void {
    this.offer(events)
  }

  sealed(): void {}

  /** Progress of one call: once too many are unread, the latest takes the place of the one before it. */
  progress(index: number, event: Event.Event): void {
    if (this.failure !== undefined) return
    const known = this.unreadProgress ??= new Map()
    const unread = known.get(index)
    if (unread === undefined || unread.count < unreadProgressLimit) {
      known.set(index, { count: (unread?.count ?? 0) + 1, last: this.events?.length ?? 0 })
      this.events = Lists.added(this.events, event)
    } else if (this.events !== undefined) {
      this.events[unread.last] = event
    }
    this.wake()
  }

  /** The failure comes after what was left before it, and nothing comes after the failure. */
  fail(cause: Cause.Cause<E>): void {
    this.failure ??= cause
    this.wake()
  }

  /** Lets the reader look again, although there may be no event. */
  wake(): void {
    const { reader, resume } = this
    if (reader === undefined || resume === undefined) {
      this.wasWoken = true
      return
    }
    this.leave()
    reader.currentDispatcher.scheduleTask(() => resume(Effect.suspend(() => this.drain())), 0)
  }

  private leave(): void {
    this.reader = undefined
    this.resume = undefined
  }

  /**
   * Everything there is now; waits only when there is nothing, and may then have been woken for nothing. It is to be asked
   * for in a step of the fiber that reads it.
   */
  get take(): Effect.Effect<ReadonlyArray<Event.Event>, E> {
    return this.isDue ? this.drain() : this.wait()
  }

  private wait(): Effect.Effect<ReadonlyArray<Event.Event>, E> {
    return Effect.callback((resume) => {
      if (this.isDue) return resume(Effect.suspend(() => this.drain()))
      this.reader = Fiber.getCurrent()
      this.resume = resume
      return Effect.sync(() => this.leave())
    })
  }

  get isEmpty(): boolean {
    return (this.events === undefined || this.events.length === 0) && this.failure === undefined
  }

  /** Whether there is something to look at. A reader may be held up between a look and its wait. */
  private get isDue(): boolean {
    return !this.isEmpty || this.wasWoken
  }

  /** Everything there is now, which may be nothing. What else there is to look at is left for the reader who waits. */
  takeNow(): ReadonlyArray<Event.Event> {
    const events = this.events ?? Lists.none
    this.events = undefined
    this.unreadProgress = undefined
    return events
  }

  private drain(): Effect.Effect<ReadonlyArray<Event.Event>, E> {
    this.wasWoken = false
    const events = this.takeNow()
    return events.length === 0 && this.failure !== undefined ? Effect.failCause(this.failure) : Effect.succeed(events)
  }
}
