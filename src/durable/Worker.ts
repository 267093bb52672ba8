/**
 * A pool of processes over one store, and nothing else: each worker claims sessions that have something left to do and drives
 * them. A session whose process was killed is taken over as soon as its claim has ended, its run taken up where the journal
 * ends; a message that `Session.submit` has left is answered; a session whose calls have been settled goes on.
 *
 * **Details**
 *
 * Where two processes believe that they own a session, as when one was frozen and wakes up, the journal decides: every append
 * behind the start of the next owner is refused, and the run of the old one is stopped there. An effect that was under way in
 * the frozen process may still happen, hence `idempotencyKey` and the tool option `lookUp`.
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
import * as Recorders from "../internal/session/recorder.ts"
import type * as Records from "../internal/session/records.ts"
import * as Stores from "../internal/session/store.ts"
import type * as Session from "../Session.ts"
import type * as Tool from "../Tool.ts"
import * as Drives from "./internal/drive.ts"

/**
 * How a worker drives sessions.
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
   * The options of the next run of a session: its tools, its system prompt, its limits, and how often a run is taken up.
   * Every worker over one store has to give the same. It is called before each run, with the session as it is then.
   */
  readonly run: (kept: Records.Kept) => Session.ResumeOptions<T, E, R, RHalt, REvent>
  /** How many sessions it drives at once. 10 by default. */
  readonly concurrency?: number
  /**
   * How often it looks for sessions, and for commands to those that it drives. A number is milliseconds. `"200 millis"` by
   * default.
   */
  readonly poll?: Duration.Input
  /**
   * How long a claim lasts where it is not renewed: so soon are the sessions of a process that is gone taken over. At least
   * three times the longest pause of a process. A number is milliseconds. `"30 seconds"` by default.
   */
  readonly term?: Duration.Input
  /** Called with each event of each run, which waits for it. Events that repeat what was recorded have `replayed: true`. */
  readonly onEvent?: (id: string, event: Event.Event) => Effect.Effect<void, never, RPublish>
}

/** A session that cannot be driven on now is left alone for this long after so many attempts, and for the longest in the end. */
const pauses = (pollMillis: number, termMillis: number) => (attempt: number): number =>
  Math.min(pollMillis * 2 ** Math.min(attempt, 30), Math.max(pollMillis, termMillis))

/** Whether another owner has the session now, or has written to it. What is left to do is found anew. */
const isOvertaken = (cause: Cause.Cause<unknown>): boolean => {
  const error = Option.getOrUndefined(Cause.findErrorOption(cause))
  return error instanceof Claims.SessionClaimed || error instanceof Stores.SessionConflict
}

const overtaken = (id: string): string => `another owner goes on with session ${JSON.stringify(id)}`

/**
 * A worker of this process, until the layer is released. It stops claiming then, interrupts the runs that it drives and
 * releases their claims, so that other workers take them up at once.
 *
 * What a session fails with stops no worker: it is logged, and the session is tried again, later each time. Attempts to take
 * up one run are limited by `maxAttempts` and `maxAge` of its options.
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
  Stores.Store | Adapter.Adapter | Tool.Services<T[number]> | R | RHalt | REvent | RPublish
> =>
  Layer.effectDiscard(Effect.gen(function*() {
    if (!Number.isInteger(concurrency) || concurrency < 1) {
      return yield* Effect.die(
        new TypeError(`Worker.layer: concurrency must be a whole number from 1; got: ${concurrency}`)
      )
    }
    const store = yield* Stores.Store
    const owner = globalThis.crypto.randomUUID()
    const pollMillis = Claims.millisOf("Worker.layer: poll", poll)
    const termMillis = Claims.millisOf("Worker.layer: term", term)
    const pauseOf = pauses(pollMillis, termMillis)
    const ended = yield* Latch.make(false)
    const driven = new Set<string>()
    /** How often in a row a session could not be driven on. */
    const attempts = new Map<string, number>()

    /** Leaves a session to itself for a while, longer each time. */
    const pause = (claim: Claims.HeldClaim) =>
      Effect.suspend(() => {
        const attempt = attempts.get(claim.id) ?? 0
        attempts.set(claim.id, attempt + 1)
        return claim.rest(pauseOf(attempt))
      })

    const failed = (claim: Claims.HeldClaim) => (cause: Cause.Cause<unknown>) =>
      isOvertaken(cause) ? Effect.logDebug(overtaken(claim.id), cause) : Effect.andThen(
        Effect.logWarning(`session ${JSON.stringify(claim.id)} could not be driven on and is tried again`, cause),
        pause(claim)
      )

    const drive = (claim: Claims.HeldClaim) =>
      Effect.gen(function*() {
        yield* Effect.addFinalizer(() => claim.release)
        const { version } = yield* Recorders.claimed(claim)
        const kept = yield* Drives.drive(Recorders.reloaded(claim), run, (event) => onEvent(claim.id, event))
        const isDone = kept.version > version && !Drives.hasWork(kept) && kept.submitted === undefined
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
        // A claim that this worker has lost and has not left yet is left as it is.
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
      Effect.logWarning("the store could not be asked for sessions", cause))
    const looking = Effect.andThen(look, Effect.raceFirst(Effect.sleep(pollMillis), ended.await))
    yield* Effect.forkScoped(Effect.forever(looking))
  }))
