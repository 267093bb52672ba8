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
import * as Telling from "./journalEvents.ts"
import type * as Logs from "./log.ts"
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
  | { readonly _tag: "Quiet" }
  | { readonly _tag: "Event"; readonly offset: string; readonly event: Event.PublicEvent; readonly text: string }
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
    const entries = log.isFull ? [] : log.entries.slice(index, index + most)
    this.index += entries.length
    if (entries.length > 0) {
      return entries.map((entry, at) => ({ _tag: "Event", offset: log.offset(index + at), ...entry }))
    }
    if (!log.isFull && !log.isEnded) return []
    Deferred.doneUnsafe(this.isWhole, Exit.succeed(!log.isFull))
    return undefined
  }
}

/** The part of a stream that a reader gives it: a frame, or those of a log, which the stream itself takes. */
type Part = Frame | Delivery

type Emit = (parts: ReadonlyArray<Part>) => Effect.Effect<unknown>

/** Number of events that a reader is given at once. */
const most = 64

/** Interval of the signs of life by which a quiet connection is kept. */
const quiet = "15 seconds"

/** Interval at which the journal of a run elsewhere is read. */
const poll = "1 second"

/** A reader of one session. */
class Reader {
  /** `true` once the session was found to be removed. */
  isRemoved = false
  private telling: Telling.Telling
  private readonly site: Site
  private readonly key: string
  private readonly emit: Emit

  constructor(site: Site, key: string, emit: Emit) {
    this.site = site
    this.key = key
    this.emit = emit
    this.telling = new Telling.Telling(key, site.publish)
  }

  /** The version of the last record. */
  private get version(): number {
    return this.telling.version
  }

  /** The session at the last record. */
  get kept(): Session.Kept {
    return this.telling.kept
  }

  /** The runs that the journal has, in order. */
  get runs(): ReadonlyArray<string> {
    return this.telling.runs
  }

  /**
   * Reads on in the journal, or in what a look has found of it, and emits the events of the wanted runs. Their offsets
   * are always answered by a reset. It stops before the first record that is too far.
   */
  advance(
    wants: (runId: string, event: Event.PublicEvent) => boolean,
    isTooFar: (version: number) => boolean = () => false,
    polled?: Polls.Polled
  ): Effect.Effect<void, Journal.StoreError, Session.Store> {
    return Effect.gen({ self: this }, function*() {
      const store = yield* Session.Store
      const now = polled?.version ?? (yield* store.version(this.key))
      // A look that began before this reader read on says nothing of a removal.
      this.isRemoved = now < this.version && (polled === undefined || (yield* store.version(this.key)) < this.version)
      if (now <= this.version) return
      const entries = polled !== undefined && polled.after <= this.version
        ? Stream.fromIterable(polled.entries.filter(({ version }) => version > this.version))
        : store.read(this.key, this.version)
      yield* Stream.runForEachWhile(entries, (entry) => {
        if (isTooFar(entry.version)) return Effect.succeed(false)
        return Effect.as(
          Effect.forEach(
            this.telling.take(entry),
            ({ event, runId }) =>
              wants(runId, event)
                ? this.emit([
                  { _tag: "Event", offset: `${runId}.0.${this.version}`, event, text: JSON.stringify(event) }
                ])
                : Effect.void,
            { discard: true }
          ),
          true
        )
      })
    })
  }

  /** Reads on to the end of the journal without its events: from the fold that the process keeps, at the beginning. */
  catchUp(polled?: Polls.Polled): Effect.Effect<void, Journal.StoreError, Session.Store> {
    return Effect.gen({ self: this }, function*() {
      if (this.version > 0) return yield* this.advance(() => false, undefined, polled)
      this.telling = yield* Telling.read(this.key, this.site.publish)
    })
  }

  /** Emits an event that no offset names. */
  tell(event: Event.PublicEvent): Effect.Effect<void> {
    return Effect.asVoid(this.emit([{ _tag: "Event", offset: "", event, text: JSON.stringify(event) }]))
  }

  reset(runId: string): Effect.Effect<unknown> {
    return this.emit([{ _tag: "Reset", runId }])
  }

  /** Emits runs as the journal has them, from its beginning. It stops before the first record that is too far. */
  retell(
    wants: (runId: string, event: Event.PublicEvent) => boolean,
    isTooFar?: (version: number) => boolean
  ): Effect.Effect<void, Journal.StoreError, Session.Store> {
    return Effect.suspend(() => {
      this.telling = new Telling.Telling(this.key, this.site.publish)
      return this.advance(wants, isTooFar)
    })
  }

  /** Emits a run from its beginning as the journal has it, and on, until it ends or this process resumes it. */
  follow(runId: string, log: Logs.RunLog): Effect.Effect<void, Journal.StoreError, Session.Store> {
    return Effect.gen({ self: this }, function*() {
      const isWanted = (other: string) => other === runId
      const { begun } = log
      const isHere = () => log.begun !== begun || log.next?.begun !== undefined
      // The runs behind it are read later, by one who wants them.
      const isOver = () => this.runs.includes(runId) && this.telling.running !== runId
      yield* this.retell(isWanted, isOver)
      while (this.telling.running === runId && !isHere() && !this.isRemoved) {
        yield* this.advance(isWanted, isOver, yield* this.pause(log))
      }
    })
  }

  /** Waits until a log changes, or for the next look at the journal by the readers of this process. */
  pause(
    log: Logs.RunLog,
    interval: "1 second" | "50 millis" = poll
  ): Effect.Effect<Polls.Polled | undefined, Journal.StoreError, Session.Store> {
    return Effect.raceFirst(
      this.site.polls.next(this.key, interval, this.version),
      Effect.as(log.changed(log.changes), undefined)
    )
  }

  /** Emits the entries of a log from an index on, until its attempt ends. Succeeds with `false` if it was too large. */
  deliver(log: Logs.RunLog, from: number): Effect.Effect<boolean> {
    return Effect.suspend(() => {
      const delivery = new Delivery(log, from)
      return Effect.andThen(this.emit([delivery]), Deferred.await(delivery.isWhole))
    })
  }
}

/** Interval at which the journal is read where this process is about to write to it. */
const soon = "50 millis"

/** Waits until the attempt of a log has ended. */
const ended = (log: Logs.RunLog): Effect.Effect<void> =>
  Effect.suspend(() => log.isEnded ? Effect.void : Effect.andThen(log.changed(log.changes), ended(log)))

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
          new Reader(site, key, (parts) => {
            taken = parts.find((part) => part instanceof Delivery)
            return Queue.offerAll(queue, parts)
          })
        )
        yield* Queue.end(queue)
      }), { bufferSize: most, strategy: "suspend" }).pipe(
        Stream.flatMap((part) => part instanceof Delivery ? signs.frames(part) : Stream.succeed(part))
      )
  })

/**
 * Returns the events of a session from an offset on, and on without end. Without an offset they begin behind the
 * number of runs that have ended (`endedRuns`). Ends where the session is removed.
 */
export const events = (
  site: Site,
  key: string,
  after: Offset | undefined,
  until: Effect.Effect<void>,
  endedRuns: number
): Stream.Stream<Frame, Journal.StoreError, Session.Store> =>
  streamOf(site, key, until, (reader) =>
    Effect.gen(function*() {
      let log = yield* site.hub.follow(key)
      /** The runs whose events come from logs. */
      const local = new Set<string>()
      const isForeign = (runId: string) => !local.has(runId) && log.begun?.runId !== runId
      let from = 0
      /** The run that the reader has something of, or names by its offset: what comes of it again needs a reset. */
      let shown: string | undefined
      /** The run whose log was broken off: the journal tells it anew if another process resumes it. */
      let broken: string | undefined
      const tells = (runId: string) => {
        if (isForeign(runId)) shown = runId
        return isForeign(runId)
      }
      /** Resets a run, and emits it and those behind it as the journal has them. */
      const retellFrom = (first: string, isTooFar?: (version: number) => boolean) =>
        Effect.suspend(() => {
          let isReached = false
          const isWanted = (runId: string) => {
            isReached ||= runId === first
            return isReached && tells(runId)
          }
          return Effect.andThen(reader.reset(first), reader.retell(isWanted, isTooFar))
        })
      yield* reader.catchUp()
      if (after === undefined) {
        const wanted = reader.runs.slice(endedRuns).filter(isForeign)
        if (wanted.length > 0) yield* reader.retell((runId) => wanted.includes(runId) && tells(runId))
      } else if (isHeld(log, after)) {
        from = after.index + 1
      } else {
        shown = after.runId
        const wanted = new Set(reader.runs.slice(Math.max(0, reader.runs.indexOf(after.runId))))
        if (isForeign(after.runId)) yield* reader.reset(after.runId)
        yield* reader.retell((runId) => wanted.has(runId) && tells(runId))
      }
      while (!reader.isRemoved) {
        if (log.begun === undefined) {
          const polled = yield* reader.pause(log)
          if (log.isRemoved) return
          if (log.begun !== undefined) continue
          yield* reader.advance((runId) => broken === undefined && tells(runId), undefined, polled)
          const { run } = Session.view(reader.kept)
          // This process has the run still, and may resume it, until another one does.
          if (broken === undefined || run?.requestId === broken && run.processName === site.processName) continue
          yield* retellFrom(broken)
          broken = undefined
          continue
        }
        const { runId, version } = log.begun
        // The runs of other processes before it come first.
        const isBehind = (other: number) => other > version
        if (broken !== undefined && broken !== runId) yield* retellFrom(broken, isBehind)
        else yield* reader.advance(tells, isBehind)
        broken = undefined
        if (shown === runId) yield* reader.reset(runId)
        shown = runId
        local.add(runId)
        const isDelivered = yield* reader.deliver(log, from)
        from = 0
        if (!isDelivered) yield* reader.reset(runId)
        if (!isDelivered) yield* reader.follow(runId, log)
        if (log.next === undefined) return
        if (isDelivered && !log.isWhole) {
          broken = runId
          local.delete(runId)
        }
        log = log.next
      }
    }))

const isHeld = ({ begun, entries, isFull }: Logs.RunLog, { index, runId, version }: Offset): boolean =>
  begun?.runId === runId && begun.version === version && index < entries.length && !isFull

/**
 * The run that a request waits for: the one that takes a message, one by its id, or the next one, which is the one that
 * is under way, or the first behind the number of `known` runs, unless it is the one of `after`.
 */
export type Wanted =
  | { readonly takes: string }
  | { readonly runId: string }
  | { readonly known: number; readonly after?: string }

/**
 * Returns the events of one run until its end. `log` is the place in the session from before the request: a run that
 * has begun and ended since is found. Ends with what still waits where no run follows. The events of `earlier` runs
 * come before it, without their ends.
 */
export const run = (
  site: Site,
  key: string,
  start: Logs.RunLog,
  wanted: Wanted,
  until: Effect.Effect<void>,
  earlier: ReadonlyArray<string> = []
): Stream.Stream<Frame, Journal.StoreError, Session.Store> =>
  streamOf(site, key, until, (reader) =>
    Effect.gen(function*() {
      let log = start
      let polled: Polls.Polled | undefined
      let found = "runId" in wanted ? wanted.runId : undefined
      const isNext = (runId: string | undefined) => "known" in wanted && runId !== wanted.after
      /** The run that the reader has something of: one that could not start is followed by another one. */
      let shown: string | undefined
      const isEarlier = (runId: string, { _tag }: Event.PublicEvent) =>
        earlier.includes(runId) && _tag !== "ChatCompleted"
      if (earlier.length > 0) yield* reader.retell(isEarlier)
      while (!reader.isRemoved) {
        const { begun } = log
        if (log.isRemoved) return
        if (begun === undefined) {
          yield* reader.catchUp(polled)
          polled = undefined
          const { kept } = reader
          const { receipts, run } = Session.view(kept)
          // A run that could not start has given its message back, for the next attempt.
          const receipt = "takes" in wanted ? receipts.get(wanted.takes) : undefined
          const begunSince = "known" in wanted ? reader.runs.slice(wanted.known) : []
          const next = [run?.requestId, ...begunSince].find((runId) => runId !== undefined && isNext(runId))
          found = receipt === undefined ? found ?? next : receipt.requestId
          if (found === undefined && "known" in wanted && !Session.isUnfinished(kept)) {
            const event = Telling.stillWaiting(kept, site.publish)
            return yield* reader.tell(event)
          }
          // Another process drives the run, or it has ended and only the journal has it.
          const isElsewhere = found !== undefined && log.begun === undefined
            && (run?.requestId !== found || run.processName !== site.processName)
          if (isElsewhere && found !== undefined) {
            if (shown !== undefined) yield* reader.reset(shown)
            shown = found
            yield* reader.follow(found, log)
            if (reader.kept.interrupted?.requestId !== found) return
          }
          if (log.begun === undefined) {
            polled = yield* reader.pause(log, run?.processName === site.processName ? soon : poll)
          }
          continue
        }
        const isWanted = "takes" in wanted && begun.takes === wanted.takes || begun.runId === found
        if (isWanted || isNext(begun.runId) && found === undefined) {
          found = begun.runId
          if (shown !== undefined) yield* reader.reset(shown)
          shown = found
          const isDelivered = yield* reader.deliver(log, 0)
          if (!isDelivered) {
            yield* reader.reset(found)
            yield* reader.follow(found, log)
          }
          if (log.isWhole) return
        } else yield* ended(log)
        if (log.next === undefined) return
        log = log.next
      }
    }))
