/**
 * Bounds of a server, and the counters that hold it to them.
 *
 * @since 0.1.0
 */
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Refusals from "./refusal.ts"

/**
 * Bounds of a server. Each of them is answered by a status and a sentence when it is passed.
 *
 * @category options
 * @since 0.1.0
 */
export interface Bounds {
  /** Bytes of a body. Clients post the whole history again, which is skipped. 16 MiB by default. */
  readonly body?: number
  /** Bytes of the text, the answers and the edits that are taken from one body. 1 MiB by default. */
  readonly taken?: number
  /** File parts of a message. 64 by default. */
  readonly files?: number
  /** Bytes of a file part, decoded. 8 MiB by default. */
  readonly file?: number
  /** Tools that a client may bring. 32 by default. */
  readonly clientTools?: number
  /** Bytes of a tool of a client. 16 KiB by default. */
  readonly clientTool?: number
  /** Bodies that are read at once in the process. 32 by default. */
  readonly bodies?: number
  /** Sessions of a principal. 1,000 by default. */
  readonly sessions?: number
  /** Runs of a principal that are under way in this process. 8 by default. */
  readonly runs?: number
  /** Streams of a principal that are open in this process. 16 by default. */
  readonly streams?: number
  /** Writes of a principal in a minute, in this process. 60 by default. */
  readonly writes?: number
  /** Lists of sessions that a principal gets in a minute, in this process. 60 by default. */
  readonly lists?: number
  /** Bytes of the log of a run. Past it, readers get the run as the journal has it. 8 MiB by default. */
  readonly log?: number
  /** Bytes of all logs of the process. 256 MiB by default. */
  readonly logs?: number
  /**
   * The time that a detached run may take, unless its agent says otherwise. A number is milliseconds. 1 hour by
   * default.
   */
  readonly run?: Duration.Input
  /** The interval at which an open stream is authorised again. A number is milliseconds. 60 seconds by default. */
  readonly authorization?: Duration.Input
}

const mebi = 1_048_576

/** The bounds without options. */
export const standard: Required<Bounds> = {
  body: 16 * mebi,
  taken: mebi,
  files: 64,
  file: 8 * mebi,
  clientTools: 32,
  clientTool: 16_384,
  bodies: 32,
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

/** The times of what principals did in the last minute. */
class Recent {
  private readonly times = new Map<string, ReadonlyArray<number>>()

  /** Adds a time, unless there are too many. */
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

/**
 * Counts what a process does for its principals. A principal without open streams and recent writes takes no memory.
 */
export class Counters {
  private readonly streams = new Map<string, number>()
  private readonly writes = new Recent()
  private readonly lists = new Recent()
  /** Number of the writes under way by the keys of their sessions. */
  private readonly begun = new Map<string, number>()
  /** The keys of the sessions that are being created. */
  readonly opening = new Set<string>()
  private bodies = 0
  private readonly bounds: Required<Bounds>

  constructor(bounds: Required<Bounds>) {
    this.bounds = bounds
  }

  /** Counts a write, and refuses one too many in a minute. */
  write(principal: string, now: number): Effect.Effect<void, Refusals.Refusal> {
    return Effect.suspend(() =>
      this.writes.take(principal, now, this.bounds.writes)
        ? Effect.void
        : Refusals.tooMany("too_many_writes", "There were too many requests. Try again in a minute.")
    )
  }

  /** Counts a list of sessions, and refuses one too many in a minute. */
  list(principal: string, now: number): Effect.Effect<void, Refusals.Refusal> {
    return Effect.suspend(() =>
      this.lists.take(principal, now, this.bounds.lists)
        ? Effect.void
        : Refusals.tooMany("too_many_lists", "There were too many lists. Try again in a minute.")
    )
  }

  /** Counts an open stream until the scope closes, and refuses one too many. */
  stream(principal: string): Effect.Effect<void, Refusals.Refusal, Scope.Scope> {
    return Effect.acquireRelease(
      Effect.suspend(() => {
        const open = this.streams.get(principal) ?? 0
        if (open >= this.bounds.streams) {
          return Refusals.tooMany("too_many_streams", "There are too many open streams. Close one of them first.")
        }
        this.streams.set(principal, open + 1)
        return Effect.void
      }),
      () =>
        Effect.sync(() => {
          const open = (this.streams.get(principal) ?? 1) - 1
          if (open === 0) this.streams.delete(principal)
          else this.streams.set(principal, open)
        })
    )
  }

  /**
   * Counts the run that a write may begin until the scope closes, and refuses one too many. `running` has the
   * principal's sessions whose runs are under way, or are about to begin.
   */
  run(key: string, prefix: string, running: ReadonlySet<string>): Effect.Effect<void, Refusals.Refusal, Scope.Scope> {
    return Effect.acquireRelease(
      Effect.suspend(() => {
        const keys = new Set(running)
        for (const other of this.begun.keys()) if (other.startsWith(prefix)) keys.add(other)
        if (!keys.has(key) && keys.size >= this.bounds.runs) {
          return Refusals.tooMany("too_many_runs", `There are ${this.bounds.runs} runs under way. Wait for one to end.`)
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

  /** Counts a body while it is read, and refuses one too many. */
  body<A, E, R>(read: Effect.Effect<A, E, R>): Effect.Effect<A, E | Refusals.Refusal, R> {
    return Effect.acquireUseRelease(
      Effect.suspend(() => {
        if (this.bodies >= this.bounds.bodies) {
          return new Refusals.Refusal({ status: 503, code: "busy", message: "The server is busy. Try again." })
        }
        this.bodies++
        return Effect.void
      }),
      () => read,
      () => Effect.sync(() => this.bodies--)
    )
  }
}
