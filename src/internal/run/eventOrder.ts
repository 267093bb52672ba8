/**
 * Orders the events of a batch by the policy, on their way from the calls to the one pull that reads them. Starts and
 * progress are shown at once; results as they come, or after those of all earlier calls. With grouped events, the start
 * and the progress of a call are held back until its result is shown.
 *
 * The number of unread events is bounded: a call adds at most four events beside its progress, and beyond the first 16
 * unread events of progress the latest replaces the one before it. Adding an event never waits, so that a slow reader
 * delays no call, and never runs the reader, which continues in a turn of its own: events that are added together are
 * read together. An Effect `Queue` in place of the array could not replace an event that is in it.
 */
import type * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as Event from "../../Event.ts"
import type * as Policy from "../../Policy.ts"

type Events = ReadonlyArray<Event.Event>

/** The most events of progress of one call that are held or unread. */
const progressLimit = 16

/** A fiber that waits for events, and the function that resumes it. */
interface Reader<E> {
  readonly fiber: Fiber.Fiber<unknown, unknown> | undefined
  readonly resume: (next: Effect.Effect<Events, E>) => void
}

export class EventOrder<E> {
  /** Starts and progress of calls without a result, by position, held back if events are grouped. */
  private readonly begun: Map<number, Array<Event.Event>> | undefined
  /** Results by position, each with the events before it, held back if results are shown in call order. */
  private readonly results: Map<number, Events> | undefined
  /** The position of the next result that may be shown, or its index in `positions` once all calls are known. */
  private next = 0
  private positions: ReadonlyArray<number> | undefined
  /** Events that have not been read yet. */
  private unread: Array<Event.Event> = []
  /** Number of unread events of progress, and the place of the last one, by the position of the call. */
  private unreadProgress: Map<number, { readonly count: number; readonly last: number }> | undefined
  private failure: Cause.Cause<E> | undefined
  private reader: Reader<E> | undefined
  /** Tells whether `wake` found no reader: one that has just looked, and is about to wait, has to look again. */
  private wasWoken = false
  private readonly moved: (() => void) | undefined

  /** `moved` is called with each event, also with one that is held back. */
  constructor({ resultOrder, toolEvents }: Pick<Policy.Policy, "resultOrder" | "toolEvents">, moved?: () => void) {
    this.moved = moved
    this.begun = toolEvents === "grouped" ? new Map() : undefined
    this.results = resultOrder === "request" ? new Map() : undefined
  }

  /** Adds the event of the call at a position that waits for its turn. */
  queued(index: number, event: Event.Event): void {
    this.moved?.()
    if (this.begun === undefined) this.show([event])
    else this.begun.set(index, [event])
  }

  /** Adds the start of the handler of the call at a position. */
  started(index: number, event: Event.Event): void {
    this.moved?.()
    if (this.begun === undefined) this.show([event])
    else this.begun.set(index, [...this.begun.get(index) ?? [], event])
  }

  progress(index: number, event: Event.Of<"ToolProgress">): void {
    this.moved?.()
    const begun = this.begun?.get(index)
    if (begun !== undefined) {
      const isMissed = begun.length > progressLimit
      begun[Math.min(begun.length, progressLimit)] = isMissed ? { ...event, missed: true } : event
      return
    }
    if (this.failure !== undefined) return
    this.unreadProgress ??= new Map()
    const { count, last } = this.unreadProgress.get(index) ?? { count: 0, last: 0 }
    if (count < progressLimit) {
      this.unreadProgress.set(index, { count: count + 1, last: this.unread.length })
      this.unread.push(event)
    } else this.unread[last] = { ...event, missed: true }
    this.wake()
  }

  /** Adds the last events of the call at a position, which has been answered or waits for an answer from outside. */
  settled(index: number, events: Events): void {
    this.moved?.()
    const begun = this.begun?.get(index) ?? []
    this.begun?.delete(index)
    const all = begun.length === 0 ? events : [...begun, ...events]
    if (this.results === undefined) return this.show(all)
    this.results.set(index, all)
    this.showResults(this.results)
  }

  /** Adds events behind the last ones of the call at a position: it waited for an answer from outside. */
  withdrawn(index: number, events: Events): void {
    this.moved?.()
    const held = this.results?.get(index)
    if (held === undefined) this.show(events)
    else this.results?.set(index, [...held, ...events])
  }

  /**
   * Sets the calls of the batch, to which none is added any more. Before that, a position without a call holds back the
   * results behind it, since its call may still come.
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

  /** The position of the call whose result is shown next. */
  private get due(): number | undefined {
    return this.positions === undefined ? this.next : this.positions[this.next]
  }

  private show(events: Events): void {
    if (this.failure !== undefined) return
    for (const event of events) this.unread.push(event)
    this.wake()
  }

  /** Adds the failure after the events so far. No event follows it. */
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
   * Takes all unread events at once. Waits if there are none, and may then take none, since `wake` resumes the reader
   * without events, too.
   */
  get take(): Effect.Effect<Events, E> {
    return this.isDue ? this.drain() : this.wait()
  }

  private wait(): Effect.Effect<Events, E> {
    return Effect.callback((resume) => {
      // Events may have come between the look of the fiber and its wait.
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

  /** Takes all unread events, of which there may be none. A failure stays for `take`. */
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
