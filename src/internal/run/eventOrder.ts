/**
 * Orders a batch's events by policy, between the calls and the single pull reading them. Starts and progress are shown
 * at once; results are shown as they come, or in call order. With grouped events, a call's start and progress are held
 * back until its result is shown.
 *
 * Unread events are bounded: a call adds at most five events besides its progress, and after 16 unread progress events
 * the latest replaces the previous. Adding an event never waits, so a slow reader delays no call, and never runs the
 * reader, which continues in its own scheduler turn: events added together are read together. An Effect `Queue` instead
 * of the array could not replace a queued event.
 */
import type * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as Event from "../../Event.ts"
import type * as Policy from "../../Policy.ts"

type Events = ReadonlyArray<Event.Event>

/** Most progress events held or unread per call. */
const progressLimit = 16

/** A fiber waiting for events, with its resume function. */
interface Reader<E> {
  readonly fiber: Fiber.Fiber<unknown, unknown> | undefined
  readonly resume: (next: Effect.Effect<Events, E>) => void
}

export class EventOrder<E> {
  /** Starts and progress of calls without results, by position, held back if events are grouped. */
  private readonly begun: Map<number, Array<Event.Event>> | undefined
  /** Results by position, each with the events before it, held back if results are shown in call order. */
  private readonly results: Map<number, Events> | undefined
  /** Position of the next result to show, or its index in `positions` once all calls are known. */
  private next = 0
  private positions: ReadonlyArray<number> | undefined
  /** Events not read yet. */
  private unread: Array<Event.Event> = []
  /** Number of unread progress events, and the place of the last, by call position. */
  private unreadProgress: Map<number, { readonly count: number; readonly last: number }> | undefined
  private failure: Cause.Cause<E> | undefined
  private reader: Reader<E> | undefined
  /** `true` if `wake` found no reader: a reader about to wait must look again. */
  private wasWoken = false
  private readonly moved: (() => void) | undefined

  /** Calls `moved` with each event, even if held back. */
  constructor({ resultOrder, toolEvents }: Pick<Policy.Policy, "resultOrder" | "toolEvents">, moved?: () => void) {
    this.moved = moved
    this.begun = toolEvents === "grouped" ? new Map() : undefined
    this.results = resultOrder === "request" ? new Map() : undefined
  }

  /** Adds the event of a call waiting for its turn. */
  queued(index: number, event: Event.Event): void {
    this.moved?.()
    if (this.begun === undefined) this.show([event])
    else this.begun.set(index, [event])
  }

  /** Adds a start of a call's handler. */
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

  /** Adds the last events of a call that was answered or waits for an outside answer. */
  settled(index: number, events: Events): void {
    this.moved?.()
    const begun = this.begun?.get(index) ?? []
    this.begun?.delete(index)
    const all = begun.length === 0 ? events : [...begun, ...events]
    if (this.results === undefined) return this.show(all)
    this.results.set(index, all)
    this.showResults(this.results)
  }

  /** Adds events after a call's last ones: it waited for an outside answer. */
  withdrawn(index: number, events: Events): void {
    this.moved?.()
    const held = this.results?.get(index)
    if (held === undefined) this.show(events)
    else this.results?.set(index, [...held, ...events])
  }

  /**
   * Sets the batch's final calls. Before that, a position without a call holds back later results, since its call may
   * still come.
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

  /** Position of the next call whose result is shown. */
  private get due(): number | undefined {
    return this.positions === undefined ? this.next : this.positions[this.next]
  }

  private show(events: Events): void {
    if (this.failure !== undefined) return
    for (const event of events) this.unread.push(event)
    this.wake()
  }

  /** Adds a failure after the events so far. No event follows. */
  fail(cause: Cause.Cause<E>): void {
    this.failure ??= cause
    this.wake()
  }

  /** Lets a waiting reader look again. */
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
   * Takes all unread events. Waits if there are none yet, and may then return an empty list, since `wake` also resumes
   * the reader without events.
   */
  get take(): Effect.Effect<Events, E> {
    return this.isDue ? this.drain() : this.wait()
  }

  private wait(): Effect.Effect<Events, E> {
    return Effect.callback((resume) => {
      // Events may have come between the fiber's look and its wait.
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

  /** Takes all unread events, possibly none at all. A failure stays for `take`. */
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
