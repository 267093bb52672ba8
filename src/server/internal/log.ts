/**
 * The logs of the runs that this process drives: their public events, in memory, for any number of readers. A reader
 * holds its log, so that a slow one neither slows the run nor loses an event; the process forgets a log once its run
 * has ended and no reader follows the session, or once the next run has ended as well.
 *
 * @since 0.1.0
 */
import type * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Event from "../../Event.ts"
import type * as Requests from "../../internal/ask/request.ts"
import type * as Journal from "../../Journal.ts"
import { Joined } from "../../ui/internal/joined.ts"
import * as JournalEvents from "./journalEvents.ts"

type PublicEvent = Event.PublicEvent

/** An event as readers get it: with its JSON, and the offset from which a reader continues. Empty for none. */
export interface Entry {
  readonly _tag: "Event"
  readonly offset: string
  readonly event: PublicEvent
  readonly text: string
}

/** Returns an event as readers get it. */
export const entry = (offset: string, event: PublicEvent): Entry => ({
  _tag: "Event",
  offset,
  event,
  text: JSON.stringify(event)
})

/** The beginning of a run. */
export interface Beginning {
  readonly runId: string
  /** The version of the journal at which the run began or was resumed, which no other beginning has. */
  readonly version: number
  /** The message that the run takes. */
  readonly takes: string | undefined
  /** The events of the run before it was resumed. */
  readonly past: ReadonlyArray<PublicEvent>
}

/** Returns a name for the typed answer that an event is a part of. Models choose ids: as JSON, no two read as one. */
const answerOf = (event: PublicEvent): string | undefined => {
  if (event._tag === "OutputPartial" || event._tag === "OutputCompleted") return ""
  const inner = event._tag === "ToolProgress" && event.nested !== undefined ? answerOf(event.nested) : undefined
  return inner === undefined || event._tag !== "ToolProgress" ? undefined : `${JSON.stringify(event.id)} ${inner}`
}

/** Tells whether progress of a sub-agent, at any depth, was not read in time. */
const isMissed = (event: unknown): boolean => {
  for (let at = event as Partial<Event.Of<"ToolProgress">> | undefined; at?._tag === "ToolProgress";) {
    if (at.missed === true) return true
    at = at.progress as typeof at
  }
  return false
}

/** The log of one attempt at a run, or the place of the next one of a session. */
export class RunLog {
  begun: Beginning | undefined
  /** `true` once the attempt has ended. */
  isEnded = false
  /** The end of the run, which its readers get once its owner has given the claim back: they answer at once. */
  last: PublicEvent | undefined
  /** `true` where the run has come to its end in this attempt. */
  isWhole = false
  /** `true` where the log was too large to be held: the journal has the run. */
  isFull = false
  /** `true` where the session was removed: what follows is another one. */
  isRemoved = false
  /** The events. The place of a part of a typed answer is empty once a later part has all that it had. */
  readonly entries: Array<Entry | undefined> = []
  bytes = 0
  next: RunLog | undefined
  readonly calls = new Map<string, Event.PublicCall>()
  /** The calls whose progress was not read in time. */
  readonly missed = new Set<string>()
  /** Deltas that wait for those which follow at once. */
  readonly joined = new Joined()
  private waiting = new Set<() => void>()
  /** Number of changes. */
  changes = 0
  /** The places of the last parts of typed answers, of the run and of those inside its handlers. */
  private readonly parts = new Map<string, number>()

  /**
   * Waits until the log has more changes than the caller has seen, since a fiber may yield between its look at the log
   * and the wait. `onWait` receives a function that ends this wait alone, which a `Deferred` of all readers cannot do.
   */
  changed(seen: number, onWait?: (wake: () => void) => void): Effect.Effect<void> {
    return Effect.callback((resume) => {
      const wake = () => resume(Effect.void)
      onWait?.(wake)
      if (this.changes !== seen) return wake()
      this.waiting.add(wake)
      return Effect.sync(() => this.waiting.delete(wake))
    })
  }

  wake(): void {
    const { waiting } = this
    this.changes++
    // A reader may run before this returns, and then waits for the next change.
    this.waiting = new Set()
    for (const wake of waiting) wake()
  }

  /** Adds an event, and returns the number of characters by which the log has grown. */
  add(event: PublicEvent): number {
    const { begun, entries } = this
    const added = entry(`${begun?.runId ?? ""}.${begun?.version ?? 0}.${entries.length}`, event)
    let grown = added.text.length
    const answer = answerOf(event)
    if (answer !== undefined) {
      // Each part has the whole answer so far: all of them together would be as long as its square.
      const place = this.parts.get(answer)
      if (place !== undefined) {
        grown -= entries[place]?.text.length ?? 0
        entries[place] = undefined
      }
      this.parts.set(answer, entries.length)
    }
    entries.push(added)
    this.bytes += grown
    return grown
  }
}

/** Bounds of the logs. */
interface Bounds {
  readonly log: number
  readonly logs: number
}

/** Number of sessions whose runs are expected. */
const mostExpected = 10_000

/** The logs of a process, by the keys of the sessions. */
export class Hub {
  private readonly logs = new Map<string, RunLog>()
  private readonly readers = new Map<string, number>()
  /** The logs of runs that have ended and whose events a reader may still get, by the keys of the sessions. */
  private readonly ended = new Map<string, RunLog>()
  /** The sessions whose run is about to begin. */
  private readonly expected = new Set<string>()
  private bytes = 0
  private readonly bounds: Bounds
  private readonly joinMillis: number
  private readonly scope: Scope.Scope
  private readonly publish: Event.PublicOptions
  private readonly clock: Clock.Clock

  constructor(
    bounds: Bounds,
    joinMillis: number,
    scope: Scope.Scope,
    publish: Event.PublicOptions,
    clock: Clock.Clock
  ) {
    this.clock = clock
    this.bounds = bounds
    this.joinMillis = joinMillis
    this.scope = scope
    this.publish = publish
  }

  /** The log of the run that is under way in this process. */
  current(key: string): RunLog | undefined {
    const log = this.logs.get(key)
    return log?.begun === undefined ? undefined : log
  }

  /**
   * Returns the sessions whose key begins with a prefix and whose run is under way, or was expected and is about to
   * begin: its session is driven, here or elsewhere.
   */
  running(prefix: string, isDriven: (key: string) => boolean): ReadonlySet<string> {
    const keys = new Set<string>()
    for (const [key, log] of this.logs) if (log.begun !== undefined && key.startsWith(prefix)) keys.add(key)
    for (const key of this.expected) {
      if (!key.startsWith(prefix)) continue
      if (isDriven(key)) keys.add(key)
      else this.expected.delete(key)
    }
    return keys
  }

  /** Expects a run of a session, until it begins or nothing drives the session. Tells whether it was not expected. */
  expect(key: string): boolean {
    if (this.expected.has(key)) return false
    const [oldest] = this.expected
    if (oldest !== undefined && this.expected.size >= mostExpected) this.expected.delete(oldest)
    this.expected.add(key)
    return true
  }

  /** Expects a run no longer. */
  forget(key: string): void {
    this.expected.delete(key)
  }

  /** Follows a session until the scope closes: its current log, or the place of the next one. */
  follow(key: string): Effect.Effect<RunLog, never, Scope.Scope> {
    return Effect.acquireRelease(
      Effect.sync(() => {
        this.readers.set(key, (this.readers.get(key) ?? 0) + 1)
        return this.place(key)
      }),
      () =>
        Effect.sync(() => {
          const left = (this.readers.get(key) ?? 1) - 1
          if (left > 0) this.readers.set(key, left)
          else {
            this.readers.delete(key)
            this.drop(key)
            if (this.logs.get(key)?.begun === undefined) this.logs.delete(key)
          }
        })
    )
  }

  private place(key: string): RunLog {
    const log = this.logs.get(key) ?? new RunLog()
    this.logs.set(key, log)
    return log
  }

  /** Begins the log of a run. An attempt before it that did not come to its end is over. */
  begin(key: string, beginning: Beginning): void {
    this.end(key)
    this.expected.delete(key)
    const log = this.place(key)
    log.begun = beginning
    for (const event of beginning.past) this.add(log, event)
    log.wake()
  }

  /** Adds an event of the run that is under way. Deltas are held for a moment, for those that follow. */
  push(key: string, event: Event.Event): Effect.Effect<void> {
    const log = this.current(key)
    if (log?.begun === undefined) return Effect.void
    const { runId } = log.begun
    if (event._tag === "ToolProgress" && isMissed(event)) log.missed.add(event.id)
    const at = this.clock.currentTimeMillisUnsafe()
    const shown = Event.toPublic(event, { ...this.publish, runId, calls: log.calls, at })
    if (shown === undefined) return Effect.void
    const isHeld = !log.joined.isEmpty
    const before = this.joinMillis > 0 ? log.joined.add(shown) : undefined
    if (before !== undefined) {
      this.addAll(log, before)
      return isHeld ? Effect.void : Effect.asVoid(Effect.forkIn(
        Effect.andThen(Effect.sleep(this.joinMillis), Effect.sync(() => this.flush(log))),
        this.scope
      ))
    }
    this.flush(log)
    if (event._tag === "ChatCompleted") log.last = shown
    else this.add(log, shown)
    // Readers of a log that is not held read the journal.
    if (!log.isFull) log.wake()
    return Effect.void
  }

  /** Returns the call that ends or waits with an event, where progress of it was not read in time, and its run. */
  gapBefore(key: string, event: Event.Event): { readonly runId: string; readonly id: string } | undefined {
    const log = this.current(key)
    const id = event._tag === "ToolExecutionCompleted"
      ? event.id
      : event._tag === "ToolSuspended"
      ? event.toolCallId
      : undefined
    return id !== undefined && log?.begun !== undefined && log.missed.delete(id)
      ? { runId: log.begun.runId, id }
      : undefined
  }

  /** Adds events of the run that is under way, behind the deltas before them. */
  retell(key: string, events: ReadonlyArray<PublicEvent>): void {
    const log = this.current(key)
    if (log === undefined) return
    this.flush(log)
    this.addAll(log, events)
  }

  /** Adds the request to stop the run that is under way, behind the deltas before it. */
  stop(key: string, request: Journal.StopRequested): Effect.Effect<void> {
    return Effect.sync(() => {
      const log = this.current(key)
      if (log === undefined || log.begun?.runId !== request.requestId) return
      this.flush(log)
      this.add(log, JournalEvents.stopOf(request, this.clock.currentTimeMillisUnsafe()))
      if (!log.isFull) log.wake()
    })
  }

  /** Adds the event of a request of the run that is under way. */
  tell(key: string, event: Requests.RequestEvent): void {
    const log = this.current(key)
    const at = this.clock.currentTimeMillisUnsafe()
    const shown = log && Event.toPublic(event as unknown as Event.Event, { ...this.publish, at })
    if (log === undefined || shown === undefined) return
    this.flush(log)
    this.addAll(log, [shown])
  }

  private flush(log: RunLog): void {
    this.addAll(log, log.joined.flush())
  }

  private addAll(log: RunLog, events: ReadonlyArray<PublicEvent>): void {
    for (const event of events) this.add(log, event)
    if (events.length > 0 && !log.isFull) log.wake()
  }

  private add(log: RunLog, event: PublicEvent): void {
    if (log.isFull) return
    this.bytes += log.add(event)
    for (const [key] of this.ended) {
      if (this.bytes <= this.bounds.logs) break
      this.drop(key)
    }
    if (log.bytes <= this.bounds.log && this.bytes <= this.bounds.logs) return
    this.empty(log)
  }

  /** Forgets the events of a log. Its readers get the run from the journal. */
  private empty(log: RunLog): void {
    log.isFull = true
    log.entries.length = 0
    this.bytes -= log.bytes
    log.bytes = 0
    log.wake()
  }

  /** Forgets the events of the run of a session that has ended last. */
  private drop(key: string): void {
    const log = this.ended.get(key)
    this.ended.delete(key)
    if (log !== undefined) this.empty(log)
  }

  /** Ends the attempt that is under way, with the end of its run if it has come to that. */
  end(key: string): void {
    const log = this.current(key)
    if (log === undefined) return
    this.flush(log)
    if (log.last !== undefined) this.add(log, log.last)
    log.isEnded = true
    log.isWhole = log.last !== undefined
    // A reader that does not read would otherwise keep all runs that follow.
    this.drop(key)
    if (this.readers.has(key)) {
      this.ended.set(key, log)
      log.next = new RunLog()
      this.logs.set(key, log.next)
    } else {
      this.bytes -= log.bytes
      this.logs.delete(key)
    }
    log.wake()
  }

  /** Tells the readers of a session that it was removed. */
  remove(key: string): void {
    this.expected.delete(key)
    // The run has ended in the journal, and its claim may not be back yet.
    this.end(key)
    const place = this.logs.get(key)
    if (place === undefined) return
    place.isRemoved = true
    this.logs.delete(key)
    place.wake()
  }
}
