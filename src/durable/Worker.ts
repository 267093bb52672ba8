/**
 * A pool of processes over one store, without any other server: each worker claims sessions with work left and does
 * that work. It takes over a session whose process was killed once its claim has ended, and resumes its run; it
 * replies to a message of `Session.submit`; and it continues a session whose calls have been settled.
 *
 * **Details**
 *
 * Two processes may believe that they own a session, for example when a frozen one wakes up. The journal decides:
 * appends that follow an outdated version are refused, and the old owner's run is stopped there. An effect under way
 * in the frozen process may still happen; `idempotencyKey` and the tool option `lookUp` exist for this.
 *
 * @since 0.1.0
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as FiberSet from "effect/FiberSet"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import type * as Adapter from "../Adapter.ts"
import type * as Event from "../Event.ts"
import * as Claims from "../internal/session/claim.ts"
import * as Journals from "../internal/session/journal.ts"
import * as Keeping from "../internal/session/kept.ts"
import type * as Session from "../Session.ts"
import type * as Tool from "../Tool.ts"
import * as Drives from "./internal/drive.ts"

/**
 * Options of a worker.
 *
 * @category options
 * @since 0.1.0
 */
export interface Options<
  T extends ReadonlyArray<Tool.Any> = ReadonlyArray<Tool.Any>,
  E = never,
  R = never,
  RHalt = R,
  REvent = R,
  RPublish = never
> {
  /**
   * Returns the options of the next run of a session: its tools, its system prompt, its limits, and the limit of its
   * resumptions. Every worker over one store has to return the same. It is called before each run, with the current
   * session.
   */
  readonly run: (kept: Keeping.Kept) => Session.ResumeOptions<T, E, R, RHalt, REvent>
  /** Number of sessions that the worker drives concurrently. 10 by default. */
  readonly concurrency?: number
  /**
   * Interval at which the worker looks for sessions, and for commands to those that it drives. A number is
   * milliseconds. `"200 millis"` by default.
   */
  readonly poll?: Duration.Input
  /**
   * Duration of a claim unless it is renewed: the sessions of a dead process are taken over after this time. At least
   * three times the longest pause of a process. A number is milliseconds. `"30 seconds"` by default.
   */
  readonly term?: Duration.Input
  /**
   * Called with each event of each run, which waits for it. Events that repeat recorded ones have `replayed: true`.
   */
  readonly onEvent?: (id: string, event: Event.Event) => Effect.Effect<void, never, RPublish>
}

/**
 * Returns the pause before the next attempt to drive a session that failed, longer with each attempt up to a maximum.
 */
const pauses = (pollMillis: number, termMillis: number) => (attempt: number): number =>
  Math.min(pollMillis * 2 ** Math.min(attempt, 30), Math.max(pollMillis, termMillis))

/**
 * Tells whether another owner has claimed the session or written to it. The work that is left is then determined
 * again.
 */
const isOvertaken = (cause: Cause.Cause<unknown>): boolean => {
  const error = Option.getOrUndefined(Cause.findErrorOption(cause))
  return error instanceof Claims.SessionClaimed || error instanceof Journals.SessionConflict
}

const overtaken = (id: string): string => `session ${JSON.stringify(id)} has another owner now`

/**
 * Runs a worker in this process until the layer is released. It then stops claiming, interrupts the runs that it
 * drives and releases their claims, so that other workers resume them at once.
 *
 * The failure of a session does not stop the worker: it is logged, and the session is tried again, later each time.
 * `maxAttempts` and `maxAge` of the run's options limit the attempts to resume a run.
 *
 * **Example** (A message that a worker answers)
 *
 * ```ts import.meta.vitest
 * import * as Deferred from "effect/Deferred"
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 * import { Session } from "heddle"
 * import { Worker } from "heddle/durable"
 * import { Script } from "heddle/testing"
 *
 * const model = Script.layer([[Script.text("Hello, Ann."), Script.finish("stop")]])
 * const program = Effect.gen(function*() {
 *   const answer = yield* Deferred.make<string | null | undefined>()
 *   const worker = Worker.layer({
 *     run: () => ({ system: "Be friendly." }),
 *     onEvent: (_id, event) =>
 *       event._tag === "ChatCompleted"
 *         ? Deferred.succeed(answer, event.result.finalResponse?.outputText)
 *         : Effect.void
 *   })
 *   yield* Layer.build(worker)
 *   yield* Session.submit("ann", "Hi, I am Ann")
 *   return yield* Deferred.await(answer)
 * }).pipe(Effect.scoped)
 *
 * const store = Session.Store.layerMemory
 * await Effect.runPromise(program.pipe(Effect.provide(model), Effect.provide(store))) // => "Hello, Ann."
 * ```
 *
 * @category layers
 * @since 0.1.0
 */
export const layer = <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never,
  RPublish = never
>(
  { concurrency = 10, onEvent = () => Effect.void, poll = "200 millis", run, term = "30 seconds" }: Options<
    T,
    E,
    R,
    RHalt,
    REvent,
    RPublish
  >
): Layer.Layer<
  never,
  never,
  Journals.Store | Adapter.Adapter | Tool.Services<T[number]> | R | RHalt | REvent | RPublish
> =>
  Layer.effectDiscard(Effect.gen(function*() {
    if (!Number.isInteger(concurrency) || concurrency < 1) {
      return yield* Effect.die(
        new TypeError(`Worker.layer: concurrency must be a whole number from 1; got: ${concurrency}`)
      )
    }
    const store = yield* Journals.Store
    const owner = globalThis.crypto.randomUUID()
    const pollMillis = Claims.millisOf("Worker.layer: poll", poll)
    const termMillis = Claims.millisOf("Worker.layer: term", term)
    const pauseOf = pauses(pollMillis, termMillis)
    const ended = yield* Latch.make(false)
    const driven = new Set<string>()
    /** Number of consecutive failures by session. */
    const attempts = new Map<string, number>()

    /** Pauses a session, longer each time. */
    const pause = (claim: Claims.HeldClaim) =>
      Effect.suspend(() => {
        const attempt = attempts.get(claim.id) ?? 0
        attempts.set(claim.id, attempt + 1)
        return claim.rest(pauseOf(attempt))
      })

    const failed = (claim: Claims.HeldClaim) => (cause: Cause.Cause<unknown>) =>
      isOvertaken(cause) ? Effect.logDebug(overtaken(claim.id), cause) : Effect.andThen(
        Effect.logWarning(`session ${JSON.stringify(claim.id)} failed and is tried again`, cause),
        pause(claim)
      )

    const drive = (claim: Claims.HeldClaim) =>
      Effect.gen(function*() {
        yield* Effect.addFinalizer(() => claim.release)
        const { version } = yield* Keeping.claimed(claim)
        const kept = yield* Drives.drive(Keeping.reloaded(claim), run, (event) => onEvent(claim.id, event))
        const isDone = kept.version > version && !Journals.isUnfinished(Keeping.next(kept))
        // A message may have to wait until other calls are settled.
        if (isDone) attempts.delete(claim.id)
        else yield* pause(claim)
      }).pipe(
        Effect.catchCauseIf((cause) => !Cause.hasInterruptsOnly(cause), failed(claim)),
        Effect.ignore,
        Effect.scoped
      )

    const fibers = yield* FiberSet.make<void>()
    const claimSome = Effect.gen(function*() {
      yield* ended.close
      if (driven.size >= concurrency) return
      const began = yield* Clock.currentTimeMillis
      const ids = yield* store.claimUnfinished(owner, termMillis, concurrency - driven.size)
      for (const id of ids) {
        // A claim that this worker has lost and not yet given up is not touched.
        if (driven.has(id)) continue
        driven.add(id)
        const claim = Claims.make(id, { owner, poll: pollMillis, term: termMillis }, store).taken(began)
        const left = Effect.sync(() => {
          driven.delete(id)
          ended.openUnsafe()
        })
        yield* FiberSet.run(fibers, Effect.ensuring(drive(claim), left))
      }
    })
    const look = Effect.catchCause(claimSome, (cause) =>
      Effect.logWarning("the store could not list sessions with work left", cause))
    const looking = Effect.andThen(look, Effect.raceFirst(Effect.sleep(pollMillis), ended.await))
    yield* Effect.forkScoped(Effect.forever(looking))
  }))
