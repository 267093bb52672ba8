/**
 * Logs of the runs driven by this process: their public events, in memory, for any number of readers. A reader holds
 * its log, so a slow reader neither slows the run nor loses an event. The process forgets a log once its run has ended
 * and no reader follows the session, once the next run has ended as well, or if the logs grow beyond their limits.
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

/** An event for readers: with its JSON, and the offset for continuing, or an empty offset. */
export interface Entry {
  readonly _tag: "Event"
  readonly offset: string
  readonly event: PublicEvent
  readonly text: string
}

/** Prepares an event for readers. */
export const entry = (offset: string, event: PublicEvent): Entry => ({
  _tag: "Event",
  offset,
  event,
  text: JSON.stringify(event)
})

/** The beginning of a run. */
export interface Beginning {
  readonly runId: string
  /** Journal version at this beginning or resumption, and at no other. */
  readonly version: number
  /** Message taken by the run. */
  readonly takes: string | undefined
  /** Events of the run from before its resumption. */
  readonly past: ReadonlyArray<PublicEvent>
}

/**
 * Returns a name for the typed answer an event belongs to. Models choose ids: encoded as JSON, different ids stay
 * different.
 */
const answerOf = (event: PublicEvent): string | undefined => {
  if (event._tag === "OutputPartial" || event._tag === "OutputCompleted") return ""
  const inner = event._tag === "ToolProgress" && event.nested !== undefined ? answerOf(event.nested) : undefined
  return inner === undefined || event._tag !== "ToolProgress" ? undefined : `${JSON.stringify(event.id)} ${inner}`
}

/** Tells whether sub-agent progress, at any depth, was not read in time. */
const isMissed = (event: unknown): boolean => {
  for (let at = event as Partial<Event.Of<"ToolProgress">> | undefined; at?._tag === "ToolProgress";) {
    if (at.missed === true) return true
    at = at.progress as typeof at
  }
  return false
}

/** Log of one attempt at a run, or the place for a session's next log. */
export class RunLog {
  begun: Beginning | undefined
  /** `true` once the attempt has ended. */
  isEnded = false
  /**
   * End of the run, withheld from readers until the owner has released the claim, because readers may answer at once.
   */
  last: PublicEvent | undefined
  /** `true` if the run came to its end in this attempt. */
  isWhole = false
  /** `true` if the log was too large to hold: the journal contains the run. */
  isFull = false
  /** `true` if the session was removed: a later one is another session. */
  isRemoved = false
  /** Events. The slot of a partial typed answer is empty once a later part contains the same text. */
  readonly entries: Array<Entry | undefined> = []
  /** Characters of the events' JSON. */
  bytes = 0
  next: RunLog | undefined
  readonly calls = new Map<string, Event.PublicCall>()
  /** Calls whose progress was not read in time. */
  readonly missed = new Set<string>()
  /** Deltas waiting for others to join. */
  readonly joined = new Joined()
  private waiting = new Set<() => void>()
  /** Number of changes. */
  changes = 0
  /** Positions of the last partial typed answers, for the run and for runs inside its handlers. */
  private readonly parts = new Map<string, number>()

  /**
   * Waits until the log has more changes than the caller has seen, because a fiber may yield between looking at the log
   * and waiting. `onWait` receives a function ending only this wait, which a `Deferred` shared by all readers cannot
   * do.
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

  /** Adds an event, and returns the log's growth in characters. */
  add(event: PublicEvent): number {
    const { begun, entries } = this
    const added = entry(`${begun?.runId ?? ""}.${begun?.version ?? 0}.${entries.length}`, event)
    let grown = added.text.length
    const answer = answerOf(event)
    if (answer !== undefined) {
      // Each part contains the whole answer so far: together they would grow with the square of its length.
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

/** Limits on logs. */
interface Bounds {
  readonly log: number
  readonly logs: number
}

/** Maximum number of sessions with an expected run. */
const mostExpected = 10_000

/** The process's logs, by session key. */
export class Hub {
  private readonly logs = new Map<string, RunLog>()
  private readonly readers = new Map<string, number>()
  /** Logs of ended runs still available to readers, by session key. */
  private readonly ended = new Map<string, RunLog>()
  /** Sessions whose run is about to begin. */
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

  /** Returns the log of the run under way in this process. */
  current(key: string): RunLog | undefined {
    const log = this.logs.get(key)
    return log?.begun === undefined ? undefined : log
  }

  /**
   * Returns the sessions with a key prefix whose run is under way, or expected and about to begin because the session
   * is driven, here or elsewhere.
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

  /**
   * Expects a run of a session, until it begins or nothing drives the session. Tells whether it was not yet expected.
   */
  expect(key: string): boolean {
    if (this.expected.has(key)) return false
    const [oldest] = this.expected
    if (oldest !== undefined && this.expected.size >= mostExpected) this.expected.delete(oldest)
    this.expected.add(key)
    return true
  }

  /** Stops expecting a run. */
  forget(key: string): void {
    this.expected.delete(key)
  }

  /** Follows a session until the scope closes, returning its current log, or the place for the next. */
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

  /** Begins a run's log. An unfinished earlier attempt is over. */
  begin(key: string, beginning: Beginning): void {
    this.end(key)
    this.expected.delete(key)
    const log = this.place(key)
    log.begun = beginning
    for (const event of beginning.past) this.add(log, event)
    log.wake()
  }

  /** Adds an event of the run under way. Deltas are held briefly, for others to join. */
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
    // Readers of an emptied log read the journal.
    if (!log.isFull) log.wake()
    return Effect.void
  }

  /** Returns the call ending or waiting with an event, if its progress was not read in time, and its run. */
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

  /** Adds events of the run under way, after the preceding deltas. */
  retell(key: string, events: ReadonlyArray<PublicEvent>): void {
    const log = this.current(key)
    if (log === undefined) return
    this.flush(log)
    this.addAll(log, events)
  }

  /** Adds the request to stop the run under way, after the preceding deltas. */
  stop(key: string, request: Journal.StopRequested): Effect.Effect<void> {
    return Effect.sync(() => {
      const log = this.current(key)
      if (log === undefined || log.begun?.runId !== request.requestId) return
      this.flush(log)
      this.add(log, JournalEvents.stopOf(request, this.clock.currentTimeMillisUnsafe()))
      if (!log.isFull) log.wake()
    })
  }

  /** Adds a request event of the run under way. */
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

  /** Forgets a log's events. Its readers get the run from the journal. */
  private empty(log: RunLog): void {
    log.isFull = true
    log.entries.length = 0
    this.bytes -= log.bytes
    log.bytes = 0
    log.wake()
  }

  /** Forgets the events of a session's last ended run. */
  private drop(key: string): void {
    const log = this.ended.get(key)
    this.ended.delete(key)
    if (log !== undefined) this.empty(log)
  }

  /** Ends the current attempt, with the run's end if it was reached. */
  end(key: string): void {
    const log = this.current(key)
    if (log === undefined) return
    this.flush(log)
    if (log.last !== undefined) this.add(log, log.last)
    log.isEnded = true
    log.isWhole = log.last !== undefined
    // Otherwise a stalled reader would keep all following runs in memory.
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

  /** Tells a session's readers about its removal. */
  remove(key: string): void {
    this.expected.delete(key)
    // The run has ended in the journal, but its claim may not be released yet.
    this.end(key)
    const place = this.logs.get(key)
    if (place === undefined) return
    place.isRemoved = true
    this.logs.delete(key)
    place.wake()
  }
}
