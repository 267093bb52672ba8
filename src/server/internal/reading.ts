/**
 * Reads session events for clients: from the log if this process drives the run, otherwise, or if the log is gone, from
 * the journal. A reader unable to continue from its offset gets a reset, and the run as a whole.
 */
import { isReadonlyArrayNonEmpty, type NonEmptyReadonlyArray } from "effect/Array"
import * as Cause from "effect/Cause"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Pull from "effect/Pull"
import * as Queue from "effect/Queue"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Event from "../../Event.ts"
import type * as Journal from "../../Journal.ts"
import * as Session from "../../Session.ts"
import * as JournalEvents from "./journalEvents.ts"
import * as Logs from "./log.ts"
import type * as Polls from "./polls.ts"
import * as Refusals from "./refusal.ts"

/** A place in a session's events. */
export interface Offset {
  readonly runId: string
  readonly version: number
  readonly index: number
}

/**
 * A frame for a reader: an event, a reset of one run, a keep-alive after a quiet time, or a notice of a broken stream.
 */
export type Frame =
  | Logs.Entry
  | { readonly _tag: "Quiet" }
  | { readonly _tag: "Reset"; readonly runId: string }
  | { readonly _tag: "Broken"; readonly code: string; readonly message: string }

/** Server parts needed for reading. */
export interface Site {
  readonly hub: Logs.Hub
  readonly polls: Polls.Polls
  readonly publish: Event.PublicOptions
  /** Name of this process in its runs' journals. */
  readonly processName: string
}

/** Parses an offset. Returns `undefined` for an invalid text. */
export const parsed = (text: string): Offset | undefined => {
  const [, runId, version, index] = /^(.{1,200})\.(\d{1,15})\.(\d{1,15})$/s.exec(text) ?? []
  return runId === undefined ? undefined : { runId, version: Number(version), index: Number(index) }
}

/** Reads an offset from a request. Offsets are opaque to clients; an invalid one is refused. */
export const offsetOf = (text: string | undefined): Effect.Effect<Offset | undefined, Refusals.Refusal> =>
  Effect.suspend(() => {
    if (text === undefined || text === "") return Effect.succeed(undefined)
    const offset = parsed(text)
    return offset === undefined
      ? Refusals.badRequest(
        "invalid_offset",
        "The offset (after, or the last-event-id header) is not one of this server's offsets."
      )
      : Effect.succeed(offset)
  })

/** Log entries from an index on, until the attempt ends or breaks off, or the log proves too large. */
class Delivery {
  /** Succeeds with `false` if the log was too large. */
  readonly isWhole = Deferred.makeUnsafe<boolean>()
  readonly log: Logs.RunLog
  private index: number

  constructor(log: Logs.RunLog, from: number) {
    this.log = log
    this.index = from
  }

  /** Takes the next frames: an empty list while the reader must wait, `undefined` at the end. */
  take(): ReadonlyArray<Frame> | undefined {
    const { index, log } = this
    const next = log.isFull ? [] : log.entries.slice(index, index + most)
    this.index += next.length
    const entries = next.flatMap((entry) => entry ?? [])
    if (entries.length > 0) return entries
    if (next.length > 0) return this.take()
    if (!log.isFull && !log.isEnded) return []
    Deferred.doneUnsafe(this.isWhole, Exit.succeed(!log.isFull))
    return undefined
  }
}

/** Output of a reader for its stream: a frame, or a log whose frames the stream takes itself. */
type Part = Frame | Delivery

type Emit = (part: Part) => Effect.Effect<unknown>

/** Maximum number of events per batch for a reader. */
const most = 64

/** Interval between keep-alives on a quiet connection. */
const quiet = "15 seconds"

/** Interval between polls of the journal for a run in another process, or for the next run. */
const poll = "1 second"

/** Interval between polls of the journal for a run begun or resumed by this process. */
const soon = "50 millis"

/** Takes a journal event. */
type Tell = (told: JournalEvents.Told) => Effect.Effect<unknown>

/** A reader of one session. */
class Reader {
  /** `true` once the session has proved to be removed. */
  isRemoved = false
  /** The journal, as far as read. */
  telling: JournalEvents.Telling
  private readonly site: Site
  private readonly key: string
  private readonly emit: Emit

  constructor(site: Site, key: string, emit: Emit) {
    this.site = site
    this.key = key
    this.emit = emit
    this.telling = new JournalEvents.Telling(key, site.publish)
  }

  /** `true` if the journal has an open run begun or resumed by this process. */
  get isHere(): boolean {
    return this.telling.driver === this.site.processName
  }

  /**
   * Reads further records from the journal, or from a poll result, and passes their events to `tell`. Stops before the
   * first record too far ahead.
   */
  advance(
    tell: Tell,
    isTooFar: (version: number) => boolean = () => false,
    polled?: Polls.Polled
  ): Effect.Effect<void, Journal.StoreError, Session.Store> {
    return Effect.gen({ self: this }, function*() {
      const store = yield* Session.Store
      const { version } = this.telling
      const now = polled?.version ?? (yield* store.version(this.key))
      // A poll begun before this reader's last read proves no removal.
      this.isRemoved = now < version && (polled === undefined || (yield* store.version(this.key)) < version)
      if (now <= version) return
      const entries = polled !== undefined && polled.after <= version
        ? Stream.fromIterable(polled.entries.filter((entry) => entry.version > version))
        : store.read(this.key, version)
      yield* Stream.runForEachWhile(entries, (entry) => {
        if (isTooFar(entry.version)) return Effect.succeed(false)
        return JournalEvents.toldOf(this.telling, entry).pipe(
          Effect.flatMap((told) => Effect.forEach(told, tell, { discard: true })),
          Effect.as(true)
        )
      })
    })
  }

  /** Skips to the end of the journal without emitting events, starting from the process's cached fold. */
  catchUp(): Effect.Effect<void, Journal.StoreError, Session.Store> {
    return Effect.map(JournalEvents.read(this.key, this.site.publish), (telling) => void (this.telling = telling))
  }

  /** Emits a journal event. Its offset always leads to a reset. */
  tell({ event, runId }: JournalEvents.Told): Effect.Effect<unknown> {
    return this.emit(Logs.entry(`${runId}.0.${this.telling.version}`, event))
  }

  /** Emits the open suspensions, if no run follows. */
  tellWaiting(): Effect.Effect<unknown> {
    return Effect.flatMap(
      JournalEvents.stillWaiting(this.telling.kept, this.site.publish),
      (event) => this.emit(Logs.entry("", event))
    )
  }

  reset(runId: string): Effect.Effect<unknown> {
    return this.emit({ _tag: "Reset", runId })
  }

  /** Reads the journal from its beginning. Stops before the first record too far ahead. */
  retell(
    tell: Tell,
    isTooFar?: (version: number) => boolean
  ): Effect.Effect<void, Journal.StoreError, Session.Store> {
    return Effect.suspend(() => {
      this.telling = new JournalEvents.Telling(this.key, this.site.publish)
      return this.advance(tell, isTooFar)
    })
  }

  /** Emits a run from the journal, from its beginning until it ends or this process resumes it. */
  follow(runId: string, log: Logs.RunLog): Effect.Effect<void, Journal.StoreError, Session.Store> {
    return Effect.gen({ self: this }, function*() {
      const tell: Tell = (told) => told.runId === runId ? this.tell(told) : Effect.void
      const { begun } = log
      const isHere = () => log.begun !== begun || log.next?.begun !== undefined
      // Later runs are read on demand.
      const isOver = () => this.telling.runs.includes(runId) && this.telling.running !== runId
      yield* this.retell(tell, isOver)
      while (this.telling.running === runId && !isHere() && !this.isRemoved) {
        yield* this.advance(tell, isOver, yield* this.pause(log))
      }
    })
  }

  /** Waits until a log changes, or for the next journal poll by this process's readers. */
  pause(log: Logs.RunLog): Effect.Effect<Polls.Polled | undefined, Journal.StoreError, Session.Store> {
    const interval = this.isHere ? soon : poll
    return Effect.raceFirst(
      this.site.polls.next(this.key, interval, this.telling.version),
      Effect.as(log.changed(log.changes), undefined)
    )
  }

  /** Emits the log entries from an index on, until the attempt ends. Succeeds with `false` if the log was too large. */
  deliver(log: Logs.RunLog, from: number): Effect.Effect<boolean> {
    return Effect.suspend(() => {
      const delivery = new Delivery(log, from)
      return Effect.andThen(this.emit(delivery), Deferred.await(delivery.isWhole))
    })
  }
}

/** Signals for a stream waiting on a log. */
class Signs {
  isOver = false
  isQuiet = false
  wake: () => void = () => {}

  /** Takes log frames and keep-alives, until the log or the stream ends. */
  frames(delivery: Delivery): Stream.Stream<Frame> {
    const pull: Pull.Pull<NonEmptyReadonlyArray<Frame>> = Effect.suspend(() => {
      if (this.isOver) return Cause.done()
      if (this.isQuiet) {
        this.isQuiet = false
        return Effect.succeed([{ _tag: "Quiet" }] as const)
      }
      const seen = delivery.log.changes
      const frames = delivery.take()
      if (frames === undefined) return Cause.done()
      if (isReadonlyArrayNonEmpty(frames)) return Effect.succeed(frames)
      const waits = (wake: () => void) => {
        this.wake = wake
        if (this.isOver || this.isQuiet) wake()
      }
      return Effect.andThen(delivery.log.changed(seen, waits), pull)
    })
    return Stream.fromPull(Effect.succeed(pull))
  }
}

/**
 * Returns a reader's stream, which ends when `until` does. The stream buffers a few frames for a slow client. It takes
 * log frames without the buffer, because queueing a delta costs more than the delta.
 */
const streamOf = <E, R>(
  site: Site,
  key: string,
  until: Effect.Effect<void>,
  read: (reader: Reader) => Effect.Effect<void, E, R>
): Stream.Stream<Frame, E, Exclude<R, Scope.Scope>> =>
  Stream.suspend(() => {
    const signs = new Signs()
    return Stream.callback<Part, E, R>((queue) =>
      Effect.gen(function*() {
        /** Log supplying the stream's frames. */
        let taken: Delivery | undefined
        const isTaken = () => taken !== undefined && !Deferred.isDoneUnsafe(taken.isWhole)
        const sign = Effect.suspend(() => {
          if (!isTaken()) return Queue.offer(queue, { _tag: "Quiet" })
          signs.isQuiet = true
          return Effect.sync(signs.wake)
        })
        const over = Effect.suspend(() => {
          signs.isOver = true
          signs.wake()
          return Queue.end(queue)
        })
        yield* sign
        yield* Effect.forkScoped(Effect.forever(Effect.andThen(Effect.sleep(quiet), sign)))
        yield* Effect.forkScoped(Effect.andThen(until, over))
        yield* read(
          new Reader(site, key, (part) => {
            taken = part instanceof Delivery ? part : undefined
            return Queue.offer(queue, part)
          })
        )
        yield* Queue.end(queue)
      }), { bufferSize: most, strategy: "suspend" }).pipe(
        Stream.flatMap((part) => part instanceof Delivery ? signs.frames(part) : Stream.succeed(part))
      )
  })

/**
 * The run awaited by a request: the run taking a message, a run by id, or the next run. The next run is the open one,
 * or the first beyond the number of `known` runs, except the run `after`.
 */
export type Wanted =
  | { readonly takes: string }
  | { readonly runId: string }
  | { readonly known: number; readonly after?: string }

/**
 * The requested part of a session: events after an offset, or else after the number of `endedRuns`, without end; or one
 * run's events, preceded by those of `earlier` runs without their ends.
 */
export type Request =
  | { readonly _tag: "Events"; readonly after?: Offset; readonly endedRuns: number }
  | { readonly _tag: "Run"; readonly wanted: Wanted; readonly earlier: ReadonlyArray<string> }

/** Searches for one run. Without a wanted run, it finds all runs. */
class Search {
  /** The run, once known. */
  found: string | undefined
  private readonly wanted: Wanted | undefined

  constructor(request: Request) {
    this.wanted = request._tag === "Run" ? request.wanted : undefined
    if (this.wanted !== undefined && "runId" in this.wanted) this.found = this.wanted.runId
  }

  /** `true` if a single run is wanted. */
  get isForOne(): boolean {
    return this.wanted !== undefined
  }

  private isNext(runId: string): boolean {
    return this.wanted !== undefined && "known" in this.wanted && runId !== this.wanted.after
  }

  /** Looks at the journal. A run that could not start has returned its message, for the next attempt. */
  look(telling: JournalEvents.Telling): void {
    const { found, wanted } = this
    if (wanted === undefined || "runId" in wanted) return
    if ("takes" in wanted) this.found = Session.view(telling.kept).receipts.get(wanted.takes)?.requestId ?? found
    else if (found === undefined) {
      const next = [telling.running, ...telling.runs.slice(wanted.known)]
      this.found = next.find((runId) => runId !== undefined && this.isNext(runId))
    }
  }

  /** Waits until a log's attempt has ended, or has delivered the message of the wanted run. */
  waits(log: Logs.RunLog, from = 0): Effect.Effect<void> {
    return Effect.suspend(() => {
      const { changes, entries } = log
      if (this.delivers(log, from) || log.isEnded) return Effect.void
      return Effect.andThen(log.changed(changes), this.waits(log, entries.length))
    })
  }

  /** Tells whether a log has delivered the message of the wanted run: the log then belongs to that run. */
  private delivers({ begun, entries }: Logs.RunLog, from: number): boolean {
    const { wanted } = this
    if (wanted === undefined || !("takes" in wanted)) return false
    const isDelivered = entries.slice(from).some((entry) =>
      entry?.event._tag === "MessageDelivered" && entry.event.id === wanted.takes
    )
    if (isDelivered) this.found = begun?.runId
    return isDelivered
  }

  /** Looks at the log of a run driven by this process. Returns whether to read its events. */
  hears({ runId, takes }: Logs.Beginning): boolean {
    const { found, wanted } = this
    const isTaken = wanted !== undefined && "takes" in wanted && takes === wanted.takes
    if (isTaken || found === undefined && this.isNext(runId)) this.found = runId
    return this.has(runId)
  }

  /** Returns whether to read a run's events. */
  has(runId: string): boolean {
    return this.wanted === undefined || this.found === runId
  }

  /** Returns whether no run follows, because other calls still wait, or the message was withdrawn or refused. */
  isVain(telling: JournalEvents.Telling): boolean {
    const { found, wanted } = this
    if (wanted === undefined || found !== undefined || "runId" in wanted) return false
    if ("known" in wanted) return !Session.isUnfinished(telling.kept)
    const became = Session.view(telling.kept).receipts.get(wanted.takes)?.became
    return became === "withdrawn" || became === "refused"
  }

  /** Returns whether the run with the wanted id has no end, because it could not start. */
  isLost({ running, runs }: JournalEvents.Telling): boolean {
    const { wanted } = this
    return wanted !== undefined && "runId" in wanted && runs.includes(wanted.runId) && running !== wanted.runId
  }
}

const isHeld = ({ begun, entries, isFull }: Logs.RunLog, { index, runId, version }: Offset): boolean =>
  begun?.runId === runId && begun.version === version && index < entries.length && !isFull

/**
 * Returns the requested part of a session, until `until` ends, the session is removed, or the wanted run has ended.
 * `start` is the log place from before the request, so a run begun and ended since is found. If no run follows, the
 * stream ends with the open suspensions.
 */
export const frames = (
  site: Site,
  key: string,
  request: Request,
  until: Effect.Effect<void>,
  start?: Logs.RunLog
): Stream.Stream<Frame, Journal.StoreError, Session.Store> =>
  streamOf(site, key, until, (reader) =>
    Effect.gen(function*() {
      let log = start ?? (yield* site.hub.follow(key))
      const search = new Search(request)
      /** Runs with events from logs. */
      const local = new Set<string>()
      const isForeign = (runId: string) => !local.has(runId) && log.begun?.runId !== runId
      let from = 0
      /** The run already shown in part, or named by the reader's offset: repeating its events needs a reset. */
      let shown: string | undefined
      /** The run with a broken-off log: if another process resumes the run, the journal repeats its events. */
      let broken: string | undefined
      /** `true` once the reader has the end of the wanted run. */
      let isOver = false
      /** Shows a run. Another run replaces a run unable to start. */
      const shows = (runId: string): Effect.Effect<unknown> => {
        const before = shown
        shown = runId
        return before !== undefined && search.isForOne && before !== runId ? reader.reset(before) : Effect.void
      }
      const tell = (told: JournalEvents.Told): Effect.Effect<unknown> => {
        const { event, runId } = told
        if (!isForeign(runId) || !search.has(runId)) return Effect.void
        isOver ||= search.isForOne && event._tag === "ChatCompleted"
        return Effect.andThen(shows(runId), reader.tell(told))
      }
      const tellNew: Tell = (told) => {
        if (told.event._tag === "RunStarted") search.look(reader.telling)
        return broken === undefined ? tell(told) : Effect.void
      }
      const tellOf = (isWanted: (runId: string) => boolean): Tell => (told) =>
        isWanted(told.runId) ? tell(told) : Effect.void
      /** Resets a run, and emits it and later runs from the journal. */
      const retellFrom = (first: string, isTooFar?: (version: number) => boolean) =>
        Effect.suspend(() => {
          let isReached = false
          const isWanted = (runId: string) => isReached ||= runId === first
          shown = undefined
          return Effect.andThen(reader.reset(first), reader.retell(tellOf(isWanted), isTooFar))
        })
      const isTold = () => isOver
      if (request._tag === "Run" && request.earlier.length > 0) {
        const { earlier } = request
        yield* reader.retell((told) =>
          earlier.includes(told.runId) && told.event._tag !== "ChatCompleted" ? reader.tell(told) : Effect.void
        )
      }
      // The wanted run's log contains the whole run.
      const isLogged = search.isForOne && log.begun !== undefined && search.hears(log.begun)
      if (!isLogged) yield* reader.catchUp()
      search.look(reader.telling)
      const after = request._tag === "Events" ? request.after : undefined
      if (after !== undefined && isHeld(log, after)) from = after.index + 1
      else {
        const first = after === undefined ? undefined : reader.telling.runs.indexOf(after.runId)
        const known = request._tag === "Events" ? first ?? request.endedRuns : 0
        const wanted = new Set(reader.telling.runs.slice(Math.max(0, known)).filter((runId) => search.has(runId)))
        if (after !== undefined) {
          shown = after.runId
          if (isForeign(after.runId)) yield* reader.reset(after.runId)
        }
        if (Array.from(wanted).some(isForeign)) yield* reader.retell(tellOf((runId) => wanted.has(runId)), isTold)
      }
      /** Reads further records. If a run got the wanted message only later, emits that run from its beginning. */
      const advanceAll = (polled?: Polls.Polled) =>
        Effect.gen(function*() {
          yield* reader.advance(tellNew, isTold, polled)
          search.look(reader.telling)
          const { found } = search
          if (!search.isForOne || found === undefined || found === shown || !isForeign(found)) return
          if (reader.telling.runs.includes(found)) yield* reader.retell(tellOf((runId) => runId === found), isTold)
        })
      while (!reader.isRemoved && !isTold() && !log.isRemoved) {
        if (log.begun === undefined) {
          if (search.isVain(reader.telling)) return yield* Effect.asVoid(reader.tellWaiting())
          if (search.isLost(reader.telling)) return
          const polled = yield* reader.pause(log)
          if (log.isRemoved || log.begun !== undefined) continue
          yield* advanceAll(polled)
          // This process still has the run, and may resume it, unless another process does.
          if (broken === undefined || reader.telling.running === broken && reader.isHere) continue
          const first = broken
          broken = undefined
          yield* retellFrom(first, isTold)
          continue
        }
        const { runId, version } = log.begun
        if (search.hears(log.begun)) {
          // Earlier runs from other processes come first.
          const isBehind = (other: number) => other > version
          if (broken !== undefined && broken !== runId && !search.isForOne) yield* retellFrom(broken, isBehind)
          else if (!search.isForOne) yield* reader.advance(tell, isBehind)
          broken = undefined
          if (shown === runId) yield* reader.reset(runId)
          yield* shows(runId)
          local.add(runId)
          const isDelivered = yield* reader.deliver(log, from)
          from = 0
          if (!isDelivered) yield* reader.reset(runId)
          if (!isDelivered) yield* reader.follow(runId, log)
          if (search.isForOne && log.isWhole) return
          if (isDelivered && !log.isWhole) {
            broken = runId
            local.delete(runId)
          }
        } else {
          yield* search.waits(log)
          if (!search.has(runId)) yield* advanceAll()
          if (search.has(runId)) continue
        }
        if (log.next === undefined) return
        log = log.next
      }
    }))
