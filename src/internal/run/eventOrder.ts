/**
 * The events of a batch, from the calls to the one pull that reads them, in the order of the policy. Starts and progress
 * are shown at once; results as they come, or held back until those of all earlier calls are out. Grouped, a call's start
 * and progress are held back as well, until its result is shown.
 *
 * What is unread is bounded: a call leaves at most three events, and of its unread progress the latest replaces the one
 * before it beyond a few. Leaving an event never waits, so that a slow reader holds nothing up, and never runs the
 * reader, which goes on in a turn of its own: what is left together is read together. An Effect `Queue` in place of the
 * array could not replace an event that is in it.
 */
import type * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as Event from "../../Event.ts"
import type * as Policy from "../../Policy.ts"

type Events = ReadonlyArray<Event.Event>

/** The most events of progress of one call that are held or unread. */
const progressLimit = 16

/** A fiber that waits for something to look at, and how it goes on. */
interface Reader<E> {
  readonly fiber: Fiber.Fiber<unknown, unknown> | undefined
  readonly resume: (next: Effect.Effect<Events, E>) => void
}

export class EventOrder<E> {
  private readonly isGrouped: boolean
  private readonly isInOrder: boolean
  /** What is held back, by the position of the call: its start and progress, and its result with what is shown before it. */
  private readonly begun = new Map<number, Array<Event.Event>>()
  private readonly results = new Map<number, Events>()
  /** The position of the next result that may be shown; among `positions`, once it is certain which calls there are. */
  private next = 0
  private positions: ReadonlyArray<number> | undefined
  /** What nobody has read yet. */
  private unread: Array<Event.Event> = []
  /** By the position of the call: how much of its progress is unread, and where the last of it is. */
  private readonly unreadProgress = new Map<number, { readonly count: number; readonly last: number }>()
  private failure: Cause.Cause<E> | undefined
  private reader: Reader<E> | undefined
  /** Whether it was woken while no reader waited: one that has just looked, and is about to wait, has to look again. */
  private wasWoken = false

  constructor({ resultOrder, toolEvents }: Pick<Policy.Policy, "resultOrder" | "toolEvents">) {
    this.isGrouped = toolEvents === "grouped"
    this.isInOrder = resultOrder === "request"
  }

  /** The handler of the call at a position starts. */
  started(index: number, event: Event.Event): void {
    if (this.isGrouped) this.begun.set(index, [event])
    else this.show([event])
  }

  progress(index: number, event: Event.Event): void {
    if (this.isGrouped) return this.holdProgress(index, event)
    if (this.failure !== undefined) return
    const { count, last } = this.unreadProgress.get(index) ?? { count: 0, last: 0 }
    if (count < progressLimit) {
      this.unreadProgress.set(index, { count: count + 1, last: this.unread.length })
      this.unread.push(event)
    } else this.unread[last] = event
    this.wake()
  }

  private holdProgress(index: number, event: Event.Event): void {
    const events = this.begun.get(index)
    if (events === undefined) this.begun.set(index, [event])
    else if (events.length <= progressLimit) events.push(event)
    else events[progressLimit] = event
  }

  /** The call at a position has been answered, or waits for an approval. */
  settled(index: number, events: Events): void {
    const begun = this.begun.get(index)
    this.begun.delete(index)
    const all = begun === undefined ? events : [...begun, ...events]
    if (!this.isInOrder) return this.show(all)
    this.results.set(index, all)
    this.showResults()
  }

  /**
   * These are all calls. Until then a position at which no call has come up yet holds back what is behind it, since one
   * may still come.
   */
  sealed(calls: ReadonlyArray<{ readonly index: number }>): void {
    if (this.isInOrder) {
      const shown = this.next
      this.positions = calls.map(({ index }) => index).toSorted((left, right) => left - right)
      this.next = this.positions.filter((index) => index < shown).length
      this.showResults()
    }
    this.wake()
  }

  private showResults(): void {
    for (let index = this.due; index !== undefined; index = this.due) {
      const events = this.results.get(index)
      if (events === undefined) return
      this.results.delete(index)
      this.next++
      this.show(events)
    }
  }

  /** The position of the call whose result is to be shown next. */
  private get due(): number | undefined {
    return this.positions === undefined ? this.next : this.positions[this.next]
  }

  private show(events: Events): void {
    if (this.failure !== undefined) return
    for (const event of events) this.unread.push(event)
    this.wake()
  }

  /** The failure comes after what was left before it, and nothing comes after the failure. */
  fail(cause: Cause.Cause<E>): void {
    this.failure ??= cause
    this.wake()
  }

  /** Lets a reader that waits look again. */
  wake(): void {
    const { reader } = this
    if (reader?.fiber === undefined) {
      this.wasWoken = true
      return
    }
    this.reader = undefined
    reader.fiber.currentDispatcher.scheduleTask(() => reader.resume(Effect.suspend(() => this.drain())), 0)
  }

  get isEmpty(): boolean {
    return this.unread.length === 0 && this.failure === undefined
  }

  /** Everything there is now; waits only when there is nothing, and may then have been woken for nothing. */
  readonly take: Effect.Effect<Events, E> = Effect.suspend(() => this.isDue ? this.drain() : this.wait)

  private readonly wait: Effect.Effect<Events, E> = Effect.callback((resume) => {
    // A fiber may have been held up between its look and its wait.
    if (this.isDue) return resume(Effect.suspend(() => this.drain()))
    this.reader = { fiber: Fiber.getCurrent(), resume }
    return Effect.sync(() => {
      this.reader = undefined
    })
  })

  private get isDue(): boolean {
    return !this.isEmpty || this.wasWoken
  }

  /** Everything there is now, which may be nothing. A failure is left for the reader that waits. */
  takeNow(): Events {
    const events = this.unread
    this.unread = []
    this.unreadProgress.clear()
    return events
  }

  private drain(): Effect.Effect<Events, E> {
    this.wasWoken = false
    const events = this.takeNow()
    return events.length === 0 && this.failure !== undefined ? Effect.failCause(this.failure) : Effect.succeed(events)
  }
}
