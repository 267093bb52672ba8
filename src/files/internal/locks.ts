/**
 * Locks between the processes of one machine: a file that one process at a time can make, with the process that has made it.
 * A lock whose process is dead is taken over.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import type * as FileSystem from "effect/FileSystem"
import type * as PlatformError from "effect/PlatformError"
import * as RcMap from "effect/RcMap"
import * as Result from "effect/Result"
import * as Semaphore from "effect/Semaphore"
import * as Json from "../../internal/json.ts"

/** A process: its id is given to another one some time after its end, its start is not. */
export interface Process {
  readonly pid: number
  /** When it started, in the unit of the platform. Empty where the platform does not say. */
  readonly start: string
}

/** The part of the platform's process that a lock needs, which Node, Bun and Deno have. */
interface Platform {
  readonly pid: number
  readonly kill: (pid: number, signal: 0) => boolean
}

const platform = (globalThis as { readonly process?: Platform }).process

/** When a process started, on Linux. */
const startOf = (fs: FileSystem.FileSystem, pid: number): Effect.Effect<string> =>
  fs.readFileString(`/proc/${pid}/stat`).pipe(
    // The name of the program, in parentheses, may hold anything.
    Effect.map((stat) => stat.slice(stat.lastIndexOf(") ") + 2).split(" ")[19] ?? ""),
    Effect.orElseSucceed(() => "")
  )

/** This process. */
export const self = (fs: FileSystem.FileSystem): Effect.Effect<Process> => {
  const pid = platform?.pid
  return pid === undefined
    ? Effect.die(new Error("FileStore: the platform has no process with an id; use Node, Bun or Deno"))
    : Effect.map(startOf(fs, pid), (start) => ({ pid, start }))
}

const isRunning = (pid: number): boolean => {
  try {
    return platform?.kill(pid, 0) ?? true
  } catch (error) {
    // A process of another user may not be asked, and runs.
    return error instanceof Error && "code" in error && error.code === "EPERM"
  }
}

/** Whether a process still runs. */
export const isAlive = (fs: FileSystem.FileSystem, { pid, start }: Process): Effect.Effect<boolean> =>
  Effect.suspend(() => {
    if (!isRunning(pid)) return Effect.succeed(false)
    return start === "" ? Effect.succeed(true) : Effect.map(startOf(fs, pid), (now) => now === start)
  })

/** The process that a text names. */
export const processIn = (text: string): Process | undefined => {
  const parsed = Json.parse(text)
  if (Result.isFailure(parsed) || !Json.isObject(parsed.success)) return undefined
  const { pid, start } = parsed.success
  return typeof pid === "number" && typeof start === "string" ? { pid, start } : undefined
}

/** The lock is held by a process that runs. */
export interface Held {
  readonly _tag: "Held"
  readonly path: string
  readonly by: string
}

type Failure = PlatformError.PlatformError | Held

/** How often a lock is asked for, and for how long. */
const every = 2
const atMost = 5000

const isTag = (tag: string) => ({ reason }: PlatformError.PlatformError): boolean => reason._tag === tag

/**
 * The locks in a folder. `with` runs an effect under the lock of a name, as a whole: it is not interrupted halfway. It fails
 * with {@link Held} where another process does not let the lock go.
 */
export const make = (fs: FileSystem.FileSystem, folder: string) =>
  Effect.gen(function*() {
    const mine = yield* self(fs)
    const identity = `${folder}/${yield* Effect.sync(() => crypto.randomUUID())}.self`
    const text = JSON.stringify(mine)
    const turns = yield* RcMap.make({ lookup: (_name: string) => Semaphore.make(1) })
    // A lock is a link to this file, so that it has its content from the beginning.
    yield* Effect.acquireRelease(
      fs.writeFileString(identity, text),
      () => Effect.ignore(fs.remove(identity))
    )

    const read = (path: string) =>
      fs.readFileString(path).pipe(Effect.catchIf(isTag("NotFound"), () => Effect.succeed("")))
    const remove = (path: string) => fs.remove(path, { force: true })

    const isDead = (holder: string) => {
      const found = processIn(holder)
      return found === undefined ? Effect.succeed(false) : Effect.map(isAlive(fs, found), (alive) => !alive)
    }

    // What killed processes have left.
    for (const file of yield* fs.readDirectory(folder)) {
      if (file.endsWith(".self") && (yield* isDead(yield* read(`${folder}/${file}`)))) {
        yield* remove(`${folder}/${file}`)
      }
    }

    const link = (path: string) =>
      fs.link(identity, path).pipe(
        Effect.as(true),
        Effect.catchIf(isTag("AlreadyExists"), () => Effect.succeed(false))
      )
    /** Removes a lock whose process is dead. One process at a time does, so that none removes the lock of the next holder. */
    const takeOver = (path: string, holder: string) =>
      Effect.gen(function*() {
        const guard = `${path}.dead`
        if (!(yield* link(guard))) {
          if (yield* isDead(yield* read(guard))) yield* remove(guard)
          return
        }
        if ((yield* read(path)) === holder) yield* remove(path)
        yield* remove(guard)
      })

    /** Succeeds with the holder where the lock is not free. */
    const attempt = (path: string): Effect.Effect<string | undefined, PlatformError.PlatformError> =>
      Effect.gen(function*() {
        if (yield* link(path)) return undefined
        const holder = yield* read(path)
        if (yield* isDead(holder)) yield* takeOver(path, holder)
        return holder
      })

    return {
      with: <A, E>(name: string, effect: Effect.Effect<A, E>): Effect.Effect<A, E | Failure> => {
        const path = `${folder}/${name}.lock`
        const locked = Effect.uninterruptibleMask((restore) =>
          Effect.gen(function*() {
            for (let waited = 0;; waited += every) {
              const holder = yield* attempt(path)
              if (holder === undefined) break
              if (waited >= atMost) return yield* Effect.fail<Held>({ _tag: "Held", path, by: holder })
              yield* restore(Effect.sleep(every))
            }
            return yield* Effect.ensuring(effect, Effect.ignore(remove(path)))
          })
        )
        // The fibers of one process take turns without the file.
        return Effect.scoped(Effect.flatMap(RcMap.get(turns, name), (turn) => turn.withPermit(locked)))
      }
    }
  })
