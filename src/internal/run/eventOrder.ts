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
  /** What is held back of calls without a result, by their position, if events are grouped: their start and progress. */
  private readonly begun: Map<number, Array<Event.Event>> | undefined
  /** The results that are held back, with what is shown before them, if they are shown in call order. */
  private readonly results: Map<number, Events> | undefined
  /** The position of the next result that may be shown; among `positions`, once it is certain which calls there are. */
  private next = 0
  private positions: ReadonlyArray<number> | undefined
  /** What has not been read yet. */
  private unread: Array<Event.Event> = []
  /** By the position of the call: how much of its progress is unread, and where the last of it is. */
  private unreadProgress: Map<number, { readonly count: number; readonly last: number }> | undefined
  private failure: Cause.Cause<E> | undefined
  private reader: Reader<E> | undefined
  /** Whether it was woken while no reader waited: one that has just looked, and is about to wait, has to look again. */
  private wasWoken = false

  constructor({ resultOrder, toolEvents }: Pick<Policy.Policy, "resultOrder" | "toolEvents">) {
    this.begun = toolEvents === "grouped" ? new Map() : undefined
    this.results = resultOrder === "request" ? new Map() : undefined
  }

  /** The handler of the call at a position starts. */
  started(index: number, event: Event.Event): void {
    if (this.begun === undefined) this.show([event])
    else this.begun.set(index, [event])
  }

  progress(index: number, event: Event.Event): void {
    const begun = this.begun?.get(index)
    if (begun !== undefined) {
      begun[Math.min(begun.length, progressLimit)] = event
      return
    }
    if (this.failure !== undefined) return
    this.unreadProgress ??= new Map()
    const { count, last } = this.unreadProgress.get(index) ?? { count: 0, last: 0 }
    if (count < progressLimit) {
      this.unreadProgress.set(index, { count: count + 1, last: this.unread.length })
      this.unread.push(event)
    } else this.unread[last] = event
    this.wake()
  }

  /** The call at a position has been answered, or waits for an approval. */
  settled(index: number, events: Events): void {
    const begun = this.begun?.get(index) ?? []
    this.begun?.delete(index)
    const all = begun.length === 0 ? events : [...begun, ...events]
    if (this.results === undefined) return this.show(all)
    this.results.set(index, all)
    this.showResults(this.results)
  }

  /**
   * These are all calls. Until then a position at which no call has come up yet holds back what is behind it, since one
   * may still come.
   */
  sealed(calls: ReadonlyArray<{ readonly index: number }>): void {
    if (this.results !== undefined) {
      const shown = this.next
      this.positions = calls.map(({ index }) => index).toSorted((left, right) => left - right)
      this.next = this.positions.filter((index) => index < shown).length
      this.showResults(this.results)
    }
    this.wake()
  }

  private showResults(results: Map<number, Events>): void {
    for (let index = this.due; index !== undefined; index = this.due) {
      const events = results.get(index)
      if (events === undefined) return
      results.delete(index)
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

  /**
   * Everything there is now, taken at once; waits only when there is nothing, and may then have been woken for nothing.
   */
  get take(): Effect.Effect<Events, E> {
    return this.isDue ? this.drain() : this.wait()
  }

  private wait(): Effect.Effect<Events, E> {
    return Effect.callback((resume) => {
      // A fiber may have been held up between its look and its wait.
      if (this.isDue) return resume(Effect.suspend(() => this.drain()))
      this.reader = { fiber: Fiber.getCurrent(), resume }
      return Effect.sync(() => {
        this.reader = undefined
      })
    })
  }

  private get isDue(): boolean {
    return !this.isEmpty || this.wasWoken
  }

  /** Everything there is now, which may be nothing. A failure is left for the reader that waits. */
  takeNow(): Events {
    const events = this.unread
    this.unread = []
    this.unreadProgress = undefined
    return events
  }

  private drain(): Effect.Effect<Events, E> {
    this.wasWoken = false
    const events = this.takeNow()
    return events.length === 0 && this.failure !== undefined ? Effect.failCause(this.failure) : Effect.succeed(events)
  }
}
