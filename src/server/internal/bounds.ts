/**
 * Limits of a server, and their counters.
 */
import * as Deferred from "effect/Deferred"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as HttpServerRequest from "effect/http/HttpServerRequest"
import * as Option from "effect/Option"
import type * as Scope from "effect/Scope"
import type { NamesOf } from "../../internal/declare/schema.ts"
import * as Values from "../../internal/declare/values.ts"
import * as Refusals from "./refusal.ts"

/**
 * Limits of a server. A request beyond a limit is refused with a status, a code and a message.
 *
 * @category options
 */
export interface Bounds {
  /** Bytes in a body. Clients post the whole history again, which the server skips. 16 MiB by default. */
  readonly body?: number
  /** Bytes of text, answers and edits taken from one body. 1 MiB by default. */
  readonly taken?: number
  /** File parts in a message. 64 by default. */
  readonly files?: number
  /** Bytes in a file part, decoded. 8 MiB by default. */
  readonly file?: number
  /** Tools per client. 32 by default. */
  readonly clientTools?: number
  /** Bytes in a client's tool. 16 KiB by default. */
  readonly clientTool?: number
  /** Bodies per principal being read at once in this process. 32 by default. */
  readonly bodies?: number
  /**
   * Bytes of all bodies being read at once in this process. Beyond the limit, the server refuses a body of the
   * principal with the most bytes. 512 MiB by default.
   */
  readonly bodyBytes?: number
  /**
   * Requests per address waiting at once for the first answer from `authorize`, in this process. Behind a proxy all
   * requests share its address. 1,000 by default.
   */
  readonly undecided?: number
  /**
   * Bytes in a session's records, since its last snapshot. A session at the limit accepts no further message. 64 MiB
   * by default.
   */
  readonly sessionBytes?: number
  /** Model turns in a session. A session at the limit accepts no further message. 10,000 by default. */
  readonly sessionTurns?: number
  /** Sessions per principal. 1,000 by default. */
  readonly sessions?: number
  /** Sessions per principal with a run under way or about to begin, in this process. 8 by default. */
  readonly runs?: number
  /** Open streams per principal in this process. 16 by default. */
  readonly streams?: number
  /** Writes per principal and minute, in this process. 60 by default. */
  readonly writes?: number
  /** Session lists per principal and minute, in this process. 60 by default. */
  readonly lists?: number
  /**
   * Characters in a run's log, as JSON. Beyond the limit, readers get the run from the journal. 8,388,608 by default.
   */
  readonly log?: number
  /**
   * Characters in all the process's logs, as JSON. Beyond the limit, the process forgets logs of ended runs, then the
   * log that grew. 268,435,456 by default.
   */
  readonly logs?: number
  /** Maximum duration of a run, unless its agent sets a `deadline`. A number is milliseconds. 1 hour by default. */
  readonly run?: Duration.Input
  /** Interval between renewed authorizations of an open stream. A number is milliseconds. 60 seconds by default. */
  readonly authorization?: Duration.Input
}

/** Option kinds of the limits. */
export const knownBounds: Values.Kind = Values.options(
  {
    body: Values.bound,
    taken: Values.bound,
    files: Values.bound,
    file: Values.bound,
    clientTools: Values.bound,
    clientTool: Values.bound,
    bodies: Values.bound,
    bodyBytes: Values.bound,
    undecided: Values.bound,
    sessionBytes: Values.bound,
    sessionTurns: Values.bound,
    sessions: Values.bound,
    runs: Values.bound,
    streams: Values.bound,
    writes: Values.bound,
    lists: Values.bound,
    log: Values.bound,
    logs: Values.bound,
    run: Values.plainDuration,
    authorization: Values.plainDuration
  } satisfies NamesOf<Bounds>
)

const mebi = 1_048_576

/** Default limits. */
export const standard: Required<Bounds> = {
  body: 16 * mebi,
  taken: mebi,
  files: 64,
  file: 8 * mebi,
  clientTools: 32,
  clientTool: 16_384,
  bodies: 32,
  bodyBytes: 512 * mebi,
  undecided: 1_000,
  sessionBytes: 64 * mebi,
  sessionTurns: 10_000,
  sessions: 1_000,
  runs: 8,
  streams: 16,
  writes: 60,
  lists: 60,
  log: 8 * mebi,
  logs: 256 * mebi,
  run: "1 hour",
  authorization: "60 seconds"
}

const minute = 60_000

/** Times of principals' actions within the last minute. Beyond 10,000 principals, those without such actions go. */
class Recent {
  private readonly times = new Map<string, ReadonlyArray<number>>()

  /** Adds a time, unless the limit is reached. */
  take(principal: string, now: number, most: number): boolean {
    const recent = (this.times.get(principal) ?? []).filter((time) => time > now - minute)
    if (recent.length >= most) return false
    if (this.times.size > 10_000) this.forget(now)
    this.times.set(principal, [...recent, now])
    return true
  }

  private forget(now: number): void {
    for (const [principal, times] of this.times) {
      if ((times.at(-1) ?? 0) <= now - minute) this.times.delete(principal)
    }
  }
}

/** Counts temporarily held items by holder. A holder without items takes no memory. */
class Held {
  private readonly held = new Map<string, number>()

  /** Holds one more item, unless the limit is reached. */
  take(holder: string, most: number): boolean {
    const held = this.held.get(holder) ?? 0
    if (held >= most) return false
    this.held.set(holder, held + 1)
    return true
  }

  give(holder: string): void {
    const left = (this.held.get(holder) ?? 1) - 1
    if (left === 0) this.held.delete(holder)
    else this.held.set(holder, left)
  }
}

export const busy = new Refusals.Refusal({ status: 503, code: "busy", message: "The server is busy. Try again." })

/** A body being read. */
export interface Reading {
  readonly principal: string
  bytes: number
  /** Fails if the body is refused in favor of others. */
  readonly refused: Deferred.Deferred<never, Refusals.Refusal>
}

/** Counts the process's work for its principals. */
export class Counters {
  private readonly streams = new Held()
  private readonly writes = new Recent()
  private readonly lists = new Recent()
  /** Number of running writes by session key. */
  private readonly begun = new Map<string, number>()
  /** Keys of sessions being created. */
  readonly opening = new Set<string>()
  private readonly bodies = new Held()
  private readonly readings = new Set<Reading>()
  private bytes = 0
  private readonly addresses = new Held()
  /** Requests already admitted by `authorize`. */
  private readonly letIn = new WeakSet<HttpServerRequest.HttpServerRequest>()
  private readonly bounds: Required<Bounds>

  constructor(bounds: Required<Bounds>) {
    this.bounds = bounds
  }

  /** Counts a write, and refuses it beyond the limit per minute. */
  write(principal: string, now: number): Effect.Effect<void, Refusals.Refusal> {
    return Effect.suspend(() =>
      this.writes.take(principal, now, this.bounds.writes)
        ? Effect.void
        : Refusals.tooMany(
          "too_many_writes",
          `There were too many requests: ${this.bounds.writes} writes per minute are allowed. Try again in a minute.`
        )
    )
  }

  /** Counts a session list, and refuses it beyond the limit per minute. */
  list(principal: string, now: number): Effect.Effect<void, Refusals.Refusal> {
    return Effect.suspend(() =>
      this.lists.take(principal, now, this.bounds.lists)
        ? Effect.void
        : Refusals.tooMany(
          "too_many_lists",
          `There were too many lists: ${this.bounds.lists} per minute are allowed. Try again in a minute.`
        )
    )
  }

  /** Counts an open stream until the scope closes, and refuses it beyond the limit. */
  stream(principal: string): Effect.Effect<void, Refusals.Refusal, Scope.Scope> {
    return Effect.acquireRelease(
      Effect.suspend(() =>
        this.streams.take(principal, this.bounds.streams)
          ? Effect.void
          : Refusals.tooMany(
            "too_many_streams",
            `There are too many open streams: ${this.bounds.streams} are allowed. Close a stream first.`
          )
      ),
      () => Effect.sync(() => this.streams.give(principal))
    )
  }

  /**
   * Counts a write's possible run until the scope closes, and refuses it beyond the limit. `running` contains the
   * principal's sessions with a run under way or about to begin.
   */
  run(key: string, prefix: string, running: ReadonlySet<string>): Effect.Effect<void, Refusals.Refusal, Scope.Scope> {
    return Effect.acquireRelease(
      Effect.suspend(() => {
        const keys = new Set(running)
        for (const other of this.begun.keys()) if (other.startsWith(prefix)) keys.add(other)
        if (!keys.has(key) && keys.size >= this.bounds.runs) {
          return Refusals.tooMany(
            "too_many_runs",
            `There are ${this.bounds.runs} runs under way. Wait for a run to end.`
          )
        }
        this.begun.set(key, (this.begun.get(key) ?? 0) + 1)
        return Effect.void
      }),
      () =>
        Effect.sync(() => {
          const left = (this.begun.get(key) ?? 1) - 1
          if (left === 0) this.begun.delete(key)
          else this.begun.set(key, left)
        })
    )
  }

  /**
   * Counts a principal's body during reading, and refuses it beyond the limit. `read` counts its bytes, and is ended if
   * others need the room.
   */
  body<A, E, R>(
    principal: string,
    read: (count: (bytes: number) => void) => Effect.Effect<A, E, R>
  ): Effect.Effect<A, E | Refusals.Refusal, R> {
    return Effect.acquireUseRelease(
      Effect.suspend(() => {
        if (!this.bodies.take(principal, this.bounds.bodies)) return busy
        const reading: Reading = { principal, bytes: 0, refused: Deferred.makeUnsafe() }
        this.readings.add(reading)
        return Effect.succeed(reading)
      }),
      (reading) => Effect.raceFirst(read((bytes) => this.count(reading, bytes)), Deferred.await(reading.refused)),
      (reading) =>
        Effect.sync(() => {
          this.bytes -= reading.bytes
          this.readings.delete(reading)
          this.bodies.give(principal)
        })
    )
  }

  private count(reading: Reading, bytes: number): void {
    reading.bytes += bytes
    this.bytes += bytes
    if (this.bytes <= this.bounds.bodyBytes) return
    const sums = new Map<string, number>()
    for (const { bytes, principal } of this.readings) sums.set(principal, (sums.get(principal) ?? 0) + bytes)
    const most = Math.max(...sums.values())
    const last = Array.from(this.readings).findLast((each) => each.bytes > 0 && sums.get(each.principal) === most)
    if (last !== undefined) Deferred.doneUnsafe(last.refused, Exit.fail(busy))
  }

  /**
   * Counts an address's request until the decision, and refuses it beyond the limit. An admitted request no longer
   * counts: a stream renewing its authorization does not wait for undecided requests.
   */
  undecided<A, E, R>(
    request: HttpServerRequest.HttpServerRequest,
    decided: Effect.Effect<A, E, R>
  ): Effect.Effect<A, E | Refusals.Refusal, R> {
    return Effect.suspend(() => {
      const address = Option.getOrUndefined(request.remoteAddress)
      if (address === undefined || this.letIn.has(request)) return decided
      return Effect.acquireUseRelease(
        Effect.suspend(() => this.addresses.take(address, this.bounds.undecided) ? Effect.void : busy),
        () => Effect.tap(decided, () => Effect.sync(() => this.letIn.add(request))),
        () => Effect.sync(() => this.addresses.give(address))
      )
    })
  }
}
