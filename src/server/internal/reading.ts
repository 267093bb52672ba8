/**
 * Reads the events of a session for its clients: from the log where this process drives the run, from the journal
 * where another one does or where the log is gone. A reader that cannot be continued where it was gets a reset, and the
 * run as a whole.
 *
 * @since 0.1.0
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

/** A place in the events of a session. */
export interface Offset {
  readonly runId: string
  readonly version: number
  readonly index: number
}

/**
 * Something that a reader gets: an event, word that all it has of a run is to be discarded, a sign of life after a
 * quiet time, or word that the stream has broken.
 */
export type Frame =
  | Logs.Entry
  | { readonly _tag: "Quiet" }
  | { readonly _tag: "Reset"; readonly runId: string }
  | { readonly _tag: "Broken"; readonly code: string; readonly message: string }

/** The parts of a server that reading needs. */
export interface Site {
  readonly hub: Logs.Hub
  readonly polls: Polls.Polls
  readonly publish: Event.PublicOptions
  /** The name of this process in the journals of its runs. */
  readonly processName: string
}

/** Reads an offset. Returns nothing for a text that is none. */
export const parsed = (text: string): Offset | undefined => {
  const [, runId, version, index] = /^(.{1,200})\.(\d{1,15})\.(\d{1,15})$/s.exec(text) ?? []
  return runId === undefined ? undefined : { runId, version: Number(version), index: Number(index) }
}

/** Reads an offset from a request. An offset is opaque to clients; one that is none is refused. */
export const offsetOf = (text: string | undefined): Effect.Effect<Offset | undefined, Refusals.Refusal> =>
  Effect.suspend(() => {
    if (text === undefined || text === "") return Effect.succeed(undefined)
    const offset = parsed(text)
    return offset === undefined
      ? Refusals.badRequest("invalid_offset", "The offset is none that this server has given.")
      : Effect.succeed(offset)
  })

/** Entries of a log from an index on, until its attempt ends, is broken off, or the log turns out to be too large. */
class Delivery {
  /** Succeeds with `false` if the log was too large. */
  readonly isWhole = Deferred.makeUnsafe<boolean>()
  readonly log: Logs.RunLog
  private index: number

  constructor(log: Logs.RunLog, from: number) {
    this.log = log
    this.index = from
  }

  /** Takes the next frames. Returns none where the reader has to wait, and nothing at the end. */
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

/** The part of a stream that a reader gives it: a frame, or those of a log, which the stream itself takes. */
type Part = Frame | Delivery

type Emit = (part: Part) => Effect.Effect<unknown>

/** Number of events that a reader is given at once. */
const most = 64

/** Interval of the signs of life by which a quiet connection is kept. */
const quiet = "15 seconds"

/** Interval at which the journal of a run elsewhere is read. */
const poll = "1 second"

/** Interval at which the journal is read where this process is about to write to it. */
const soon = "50 millis"

/** Takes an event of the journal. */
type Tell = (told: JournalEvents.Told) => Effect.Effect<unknown>

/** A reader of one session. */
class Reader {
  /** `true` once the session was found to be removed. */
  isRemoved = false
  /** The journal, as far as it was read. */
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

  /** `true` where the journal has a run under way that this process began or resumed. */
  get isHere(): boolean {
    return this.telling.driver === this.site.processName
  }

  /**
   * Reads on in the journal, or in what a look has found of it, and gives its events to `tell`. It stops before the
   * first record that is too far.
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
      // A look that began before this reader read on says nothing of a removal.
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

  /** Reads on to the end of the journal without its events: from the fold that the process keeps, at the beginning. */
  catchUp(): Effect.Effect<void, Journal.StoreError, Session.Store> {
    return Effect.map(JournalEvents.read(this.key, this.site.publish), (telling) => void (this.telling = telling))
  }

  /** Emits an event of the journal. Its offset is always answered by a reset. */
  tell({ event, runId }: JournalEvents.Told): Effect.Effect<unknown> {
    return this.emit(Logs.entry(`${runId}.0.${this.telling.version}`, event))
  }

  /** Emits what still waits, where no run follows. */
  tellWaiting(): Effect.Effect<unknown> {
    return Effect.flatMap(
      JournalEvents.stillWaiting(this.telling.kept, this.site.publish),
      (event) => this.emit(Logs.entry("", event))
    )
  }

  reset(runId: string): Effect.Effect<unknown> {
    return this.emit({ _tag: "Reset", runId })
  }

  /** Reads the journal from its beginning. It stops before the first record that is too far. */
  retell(
    tell: Tell,
    isTooFar?: (version: number) => boolean
  ): Effect.Effect<void, Journal.StoreError, Session.Store> {
    return Effect.suspend(() => {
      this.telling = new JournalEvents.Telling(this.key, this.site.publish)
      return this.advance(tell, isTooFar)
    })
  }

  /** Emits a run from its beginning as the journal has it, and on, until it ends or this process resumes it. */
  follow(runId: string, log: Logs.RunLog): Effect.Effect<void, Journal.StoreError, Session.Store> {
    return Effect.gen({ self: this }, function*() {
      const tell: Tell = (told) => told.runId === runId ? this.tell(told) : Effect.void
      const { begun } = log
      const isHere = () => log.begun !== begun || log.next?.begun !== undefined
      // The runs behind it are read later, by one who wants them.
      const isOver = () => this.telling.runs.includes(runId) && this.telling.running !== runId
      yield* this.retell(tell, isOver)
      while (this.telling.running === runId && !isHere() && !this.isRemoved) {
        yield* this.advance(tell, isOver, yield* this.pause(log))
      }
    })
  }

  /** Waits until a log changes, or for the next look at the journal by the readers of this process. */
  pause(log: Logs.RunLog): Effect.Effect<Polls.Polled | undefined, Journal.StoreError, Session.Store> {
    const interval = this.isHere ? soon : poll
    return Effect.raceFirst(
      this.site.polls.next(this.key, interval, this.telling.version),
      Effect.as(log.changed(log.changes), undefined)
    )
  }

  /** Emits the entries of a log from an index on, until its attempt ends. Succeeds with `false` if it was too large. */
  deliver(log: Logs.RunLog, from: number): Effect.Effect<boolean> {
    return Effect.suspend(() => {
      const delivery = new Delivery(log, from)
      return Effect.andThen(this.emit(delivery), Deferred.await(delivery.isWhole))
    })
  }
}

/** Signs that reach a stream while it waits for a log. */
class Signs {
  isOver = false
  isQuiet = false
  wake: () => void = () => {}

  /** Takes the frames of a log, and signs of life, until the log or the stream is over. */
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
 * Returns the stream of a reader, which ends when `until` does. The stream holds a few frames for a slow client, and
 * takes those of a log itself, since a queue costs more than a delta.
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
        /** The log that the stream takes frames from. */
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
 * The run that a request waits for: the one that takes a message, one by its id, or the next one, which is the one that
 * is under way, or the first behind the number of `known` runs, unless it is the one of `after`.
 */
export type Wanted =
  | { readonly takes: string }
  | { readonly runId: string }
  | { readonly known: number; readonly after?: string }

/**
 * A part of a session that is read: the events from an offset on, or else behind the number of `endedRuns`, without
 * end; or those of one run, behind those of `earlier` runs without their ends.
 */
export type Request =
  | { readonly _tag: "Events"; readonly after?: Offset; readonly endedRuns: number }
  | { readonly _tag: "Run"; readonly wanted: Wanted; readonly earlier: ReadonlyArray<string> }

/** The search for one run. Without a wanted run, all runs are found. */
class Search {
  /** The run, once it is known. */
  found: string | undefined
  private readonly wanted: Wanted | undefined

  constructor(request: Request) {
    this.wanted = request._tag === "Run" ? request.wanted : undefined
    if (this.wanted !== undefined && "runId" in this.wanted) this.found = this.wanted.runId
  }

  /** `true` where one run is wanted. */
  get isForOne(): boolean {
    return this.wanted !== undefined
  }

  private isNext(runId: string): boolean {
    return this.wanted !== undefined && "known" in this.wanted && runId !== this.wanted.after
  }

  /** Looks at the journal. A run that could not start has given its message back, for the next attempt. */
  look(telling: JournalEvents.Telling): void {
    const { found, wanted } = this
    if (wanted === undefined || "runId" in wanted) return
    if ("takes" in wanted) this.found = Session.view(telling.kept).receipts.get(wanted.takes)?.requestId ?? found
    else if (found === undefined) {
      const next = [telling.running, ...telling.runs.slice(wanted.known)]
      this.found = next.find((runId) => runId !== undefined && this.isNext(runId))
    }
  }

  /** Waits until the attempt of a log has ended, or has delivered the message whose run is wanted. */
  waits(log: Logs.RunLog, from = 0): Effect.Effect<void> {
    return Effect.suspend(() => {
      const { changes, entries } = log
      if (this.delivers(log, from) || log.isEnded) return Effect.void
      return Effect.andThen(log.changed(changes), this.waits(log, entries.length))
    })
  }

  /** Tells whether a log has delivered the message whose run is wanted: that run is the log's. */
  private delivers({ begun, entries }: Logs.RunLog, from: number): boolean {
    const { wanted } = this
    if (wanted === undefined || !("takes" in wanted)) return false
    const isDelivered = entries.slice(from).some((entry) =>
      entry?.event._tag === "MessageDelivered" && entry.event.id === wanted.takes
    )
    if (isDelivered) this.found = begun?.runId
    return isDelivered
  }

  /** Looks at the log of a run that this process drives. Returns whether its events are read. */
  hears({ runId, takes }: Logs.Beginning): boolean {
    const { found, wanted } = this
    const isTaken = wanted !== undefined && "takes" in wanted && takes === wanted.takes
    if (isTaken || found === undefined && this.isNext(runId)) this.found = runId
    return this.has(runId)
  }

  /** Returns whether the events of a run are read. */
  has(runId: string): boolean {
    return this.wanted === undefined || this.found === runId
  }

  /** Returns whether no run follows, since other calls still wait, or the message was taken back or refused. */
  isVain(telling: JournalEvents.Telling): boolean {
    const { found, wanted } = this
    if (wanted === undefined || found !== undefined || "runId" in wanted) return false
    if ("known" in wanted) return !Session.isUnfinished(telling.kept)
    const became = Session.view(telling.kept).receipts.get(wanted.takes)?.became
    return became === "withdrawn" || became === "refused"
  }

  /** Returns whether the run by its id has no end, since it could not start. */
  isLost({ running, runs }: JournalEvents.Telling): boolean {
    const { wanted } = this
    return wanted !== undefined && "runId" in wanted && runs.includes(wanted.runId) && running !== wanted.runId
  }
}

const isHeld = ({ begun, entries, isFull }: Logs.RunLog, { index, runId, version }: Offset): boolean =>
  begun?.runId === runId && begun.version === version && index < entries.length && !isFull

/**
 * Returns what a request reads of a session, until `until` ends, the session is removed, or the wanted run has ended.
 * `start` is the place in the session from before the request: a run that has begun and ended since is found. Where no
 * run follows, it ends with what still waits.
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
      /** The runs whose events come from logs. */
      const local = new Set<string>()
      const isForeign = (runId: string) => !local.has(runId) && log.begun?.runId !== runId
      let from = 0
      /** The run that the reader has something of, or names by its offset: what comes of it again needs a reset. */
      let shown: string | undefined
      /** The run whose log was broken off: the journal tells it anew if another process resumes it. */
      let broken: string | undefined
      /** `true` once the reader has the end of the run that it wants. */
      let isOver = false
      /** Shows a run. A run that could not start is followed by another one, which takes its place. */
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
      /** Resets a run, and emits it and those behind it as the journal has them. */
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
      // The log of the wanted run has all of it.
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
      /** Reads on, and emits a run from its beginning that got the wanted message later on. */
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
          // This process has the run still, and may resume it, until another one does.
          if (broken === undefined || reader.telling.running === broken && reader.isHere) continue
          const first = broken
          broken = undefined
          yield* retellFrom(first, isTold)
          continue
        }
        const { runId, version } = log.begun
        if (search.hears(log.begun)) {
          // The runs of other processes before it come first.
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
