/**
 * Runs sessions on a pool of processes over one store, without any other server. Each worker claims sessions with
 * remaining work and does the work. It takes over sessions from killed processes once their claims end, and resumes
 * their runs. It replies to messages from `Session.submit`, and continues sessions whose calls have been settled.
 *
 * **Details**
 *
 * Two processes may both believe they own a session, for example after a frozen process wakes up. The journal decides:
 * it refuses appends based on an outdated version, and this stops the old owner's run. An effect already running in the
 * frozen process may still happen; for such effects, use `idempotencyKey` and the tool option `lookUp`.
 */
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as FiberSet from "effect/FiberSet"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import type * as Adapter from "../Adapter.ts"
import type * as Event from "../Event.ts"
import * as Settings from "../internal/ask/options.ts"
import * as Requests from "../internal/ask/request.ts"
import { checkNames, type NamesOf } from "../internal/declare/schema.ts"
import type * as Declared from "../internal/declare/tool.ts"
import * as Values from "../internal/declare/values.ts"
import * as Json from "../internal/json.ts"
import { Running, Worker as Hooks } from "../internal/stop/ownedFibers.ts"
import * as Telemetry from "../internal/telemetry.ts"
import * as Journal from "../Journal.ts"
import * as Session from "../Session.ts"
import type * as Tool from "../Tool.ts"
import * as Owners from "./internal/ownerHealth.ts"
import * as Peers from "./internal/peers.ts"
import * as Replies from "./internal/replies.ts"

export type { Health } from "./internal/ownerHealth.ts"

/**
 * Options of a worker.
 *
 * @category options
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
   * Returns the options for a session's next run: tools, system prompt, limits, and the limit on resumptions. Every
   * worker over the same store must return the same options. The worker calls this function before each run, with the
   * current session. The function may return an Effect, which cannot fail.
   */
  readonly run: (
    kept: Session.Kept
  ) =>
    | Session.ResumeOptions<T, E, R, RHalt, REvent>
    | Effect.Effect<
      Session.ResumeOptions<T, E, R, RHalt, REvent>,
      never,
      R
    >
  /** Maximum number of sessions driven concurrently. 10 by default. */
  readonly concurrency?: number
  /**
   * Interval between searches for sessions, and for commands to driven sessions. A number is milliseconds.
   * `"200 millis"` by default.
   */
  readonly poll?: Duration.Input
  /**
   * Claim duration unless renewed: after this time a dead process's sessions are taken over. Choose at least three
   * times a process's longest pause, and one and a half times the longest time a call's effect may take: `lookUp` is
   * asked afterwards. A number is milliseconds. `"30 seconds"` by default.
   */
  readonly term?: Duration.Input
  /**
   * Maximum time for running calls to end when the layer is released. The worker then interrupts the remaining calls,
   * and the next owner treats their effects as unknown. A number is milliseconds. `"20 seconds"` by default.
   */
  readonly drain?: Duration.Input
  /**
   * Number of consecutive failures, over all workers, after which a run unable to start or continue is ended: its
   * outcome is `Failed`, and the session's status is `error`. 5 by default.
   *
   * A request that cannot be sent, or that the model refuses every time (`authentication_failed`, `quota_exceeded`,
   * `invalid_request`, `unsupported_feature`, `context_length_exceeded`, `content_filter`), ends the run at once. A
   * missing tool, the store or a claim never ends the run. The first pause between attempts is five times `poll`; each
   * further pause is four times longer, up to a minute. With the defaults a run ends 81 seconds after its first
   * failure. If the model fails after the first reply, the run ends as `Failed` by itself, as in `Chat.run`.
   */
  readonly maxFailures?: number
  /** Receives each event; the run waits for the effect. Events repeating recorded events have `replayed: true`. */
  readonly onEvent?: (id: string, event: Event.Event) => Effect.Effect<void, never, RPublish>
  /**
   * Receives a request to stop a driven run, before the worker stops anything. The run's end waits for the effect, at
   * most for the grace period. A request already present when a run resumes is not received again: the previous run
   * received the request.
   */
  readonly onStop?: (id: string, stop: Journal.StopRequested) => Effect.Effect<void, never, RPublish>
  /** Receives each run's result when the run ends or waits for an answer. The worker waits for the effect. */
  readonly onEnd?: (id: string, result: Event.ChatResult) => Effect.Effect<void, never, RPublish>
  /**
   * Receives the error of a run ended because it cannot succeed: the run's own error, or the `ResumeError` `too_old` or
   * `too_many_attempts`. The worker waits for the effect.
   */
  readonly onGiveUp?: (id: string, error: unknown) => Effect.Effect<void, never, RPublish>
}

const knownOptions = {
  run: Values.fn,
  concurrency: Values.count,
  poll: Values.finiteDuration,
  term: Values.finiteDuration,
  drain: Values.finiteDurationOrNone,
  maxFailures: Values.count,
  onEvent: Values.fn,
  onStop: Values.fn,
  onEnd: Values.fn,
  onGiveUp: Values.fn
} satisfies NamesOf<Options>

const longestPause = 60_000

/** Number of sessions whose failures a worker remembers. */
const mostAttempts = 10_000

/** Returns the pause before the next attempt, four times longer each time, up to a maximum. */
const pauses = (pollMillis: number) => (attempt: number): number =>
  Math.min(5 * pollMillis * 4 ** Math.min(attempt, 15), Math.max(pollMillis, longestPause))

const millisOf = (duration: Duration.Input): number => Duration.toMillis(Duration.fromInputUnsafe(duration))

/** Names a session in a log. */
const named = ({ id }: Journal.HeldClaim): string => `session ${JSON.stringify(id)}`

/**
 * Worker of this process, for a health check.
 *
 * @category services
 */
export class Worker extends Context.Service<Worker, Owners.Owner & Taker>()("heddle/durable/Worker") {}

/** Returns a hook's effect. A hook that throws becomes a defect. */
const attempted = <R>(hook: () => Effect.Effect<void, never, R>): Effect.Effect<void, never, R> => {
  try {
    return hook()
  } catch (error) {
    return Effect.die(error)
  }
}

/** Reason for driving a session. */
interface Reason {
  /** `true` if a search found it, `false` if it was taken by name. */
  readonly isFound: boolean
  /** Failed run to continue after, if still the session's last run. */
  readonly failed: string | undefined
}

/** Takes sessions by name. */
interface Taker {
  readonly take: (id: string, failed?: string) => Effect.Effect<boolean, Journal.StoreError>
}

/**
 * Worker health: driven sessions, recently lost claims, and whether the worker is leaving.
 *
 * **Example** (A worker that has nothing to do)
 *
 * ```ts import.meta.vitest
 * import * as Effect from "effect/Effect"
 * import { Session } from "heddle"
 * import { Worker } from "heddle/durable"
 * import { Script } from "heddle/testing"
 *
 * const worker = Worker.layer({ run: () => ({}) })
 * const health = await Effect.runPromise(
 *   Worker.ready.pipe(
 *     Effect.provide(worker),
 *     Effect.provide([Script.layer([]), Session.Store.layerMemory])
 *   )
 * )
 *
 * health // => { isReady: true, isLeaving: false, driven: 0, lostClaims: 0, latestMillis: 0 }
 * ```
 *
 * @category getters
 */
export const ready: Effect.Effect<Owners.Health, never, Worker> = Effect.flatMap(Worker, ({ health }) => health)

/**
 * Drives a session at once, ahead of the worker's next search. Returns `true` if this process's worker now drives the
 * session. Returns `false` if another owner holds its claim (or took it, on a server cluster), if the worker is
 * leaving, or if it already drives as many sessions as allowed. The session is then found later, like any other.
 *
 * **Example** (A message that is answered without waiting for the next search)
 *
 * ```ts import.meta.vitest
 * import * as Deferred from "effect/Deferred"
 * import * as Effect from "effect/Effect"
 * import { Session } from "heddle"
 * import { Worker } from "heddle/durable"
 * import { Script } from "heddle/testing"
 *
 * const ended = Deferred.makeUnsafe<string>()
 * const worker = Worker.layer({
 *   run: () => ({}),
 *   poll: "1 hour",
 *   onEnd: (id) => Deferred.succeed(ended, id)
 * })
 * const program = Effect.gen(function*() {
 *   yield* Session.submit("ann", "Hi")
 *   return [yield* Worker.take("ann"), yield* Deferred.await(ended)]
 * })
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 *
 * await Effect.runPromise(
 *   program.pipe(Effect.provide(worker), Effect.provide([model, Session.Store.layerMemory]))
 * ) // => [true, "ann"]
 * ```
 *
 * @category driving
 */
export const take = (id: string): Effect.Effect<boolean, Journal.StoreError, Worker> =>
  Effect.flatMap(Worker, (worker) => worker.take(id))

/**
 * Runs a worker in this process until the layer is released. On release the worker claims no sessions, starts no calls
 * and asks no models. Running calls get the `drain` time to end, and their answers are recorded. The worker then
 * releases its claims, so other workers resume the runs at once. A call still unfinished keeps its claim until the term
 * ends.
 *
 * A failing session does not stop the worker: it logs the failure and tries the session again, later each time.
 * `maxFailures` limits consecutive failures; the run options `maxAttempts` and `maxAge` limit attempts to resume a run.
 * The worker also settles expired questions and approvals.
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
 */
export const layer = <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never,
  RPublish = never
>(
  options: Options<T, E, R, RHalt, REvent, RPublish>
): Layer.Layer<
  Worker,
  never,
  Session.Store | Adapter.Adapter | Tool.Services<T[number]> | Declared.Later<R | RHalt | REvent | RPublish>
> =>
  Layer.effect(
    Worker,
    Effect.gen(function*() {
      checkNames("Worker.layer", options, knownOptions)
      const {
        concurrency = 10,
        drain = "20 seconds",
        maxFailures = 5,
        onEnd,
        onEvent,
        onGiveUp,
        onStop,
        poll = "200 millis",
        run,
        term = "30 seconds"
      } = options
      const peers = yield* Peers.Peers
      const context = yield* Effect.context<Session.Store>()
      const listener = yield* Requests.SessionListener
      const name = globalThis.crypto.randomUUID()
      const pollMillis = millisOf(poll)
      const drainMillis = millisOf(drain)
      const pauseOf = pauses(pollMillis)
      const owner = new Owners.Owner(context)
      const ended = yield* Latch.make(false)
      const replies = new Replies.Unrecorded()
      /** Number of claim requests, for searches and for sessions taken by name. */
      let polls = 0
      /** Number of consecutive failures per session. */
      const attempts = new Map<string, number>()

      /** Pauses a session, longer each time. `failures` counts earlier failures in its journal, over all workers. */
      const pause = (claim: Journal.HeldClaim, failures: number) =>
        Effect.suspend(() => {
          const attempt = attempts.get(claim.id) ?? 0
          attempts.delete(claim.id)
          attempts.set(claim.id, attempt + 1)
          // Another worker may since have succeeded with the oldest session.
          const [oldest] = attempts.keys()
          if (attempts.size > mostAttempts && oldest !== undefined) attempts.delete(oldest)
          return claim.rest(pauseOf(Math.max(attempt, failures)))
        })

      const failed = (claim: Journal.HeldClaim, failures: number, cause: Cause.Cause<unknown>) => {
        const error = Option.getOrUndefined(Cause.findErrorOption(cause))
        // Another owner does the remaining work. The lost claim is logged with its figures.
        if (error instanceof Journal.SessionClaimed) return Effect.void
        const log = error instanceof Journal.SessionConflict
          ? Effect.logDebug(`${named(claim)} was written to by another program`, cause)
          : Telemetry.logged(Effect.andThen(
            Effect.logWarning(`${named(claim)} failed and is tried again`, Cause.map(cause, Json.nameOf)),
            Effect.logDebug(`${named(claim)} failed`, cause)
          ))
        return Effect.andThen(log, pause(claim, failures))
      }

      const drive = (claim: Journal.HeldClaim, { failed: retried, isFound }: Reason) => {
        let failures = 0
        // Leaving waits for hooks at most for the grace period.
        const running = new Running(Settings.defaultGrace, context)
        const hooks = new Hooks(running, { kind: "hook", id: claim.id, name: "onEvent", onSoftStop: "unaffected" })
        const hooked = <R>(name: string, hook: () => Effect.Effect<void, never, R>): Effect.Effect<void, never, R> => {
          const work = attempted(hook)
          // Most hooks have already finished, so waiting is unnecessary.
          if (work === Effect.void) return Effect.void
          return hooks.do(
            // A dying hook does not end the run.
            Effect.catchCauseIf(
              work,
              (cause) => !Cause.hasInterruptsOnly(cause),
              (cause) => Telemetry.warned(`${name} of ${named(claim)} died`, cause)
            ),
            Exit.void,
            { name, onSoftStop: "unaffected" }
          )
        }
        const shown = (event: Event.Event) =>
          onEvent === undefined ? Effect.void : hooked("onEvent", () => onEvent(claim.id, event))
        const closed = Effect.suspend(() => {
          hooks.close()
          return running.end(Exit.void)
        })
        const driving = Effect.gen(function*() {
          const claimed = yield* Session.claim(claim)
          const { version } = claimed
          const { failures: before, lastRun } = Session.view(claimed)
          failures = before
          // Two requests for a retry count as a single retry.
          const isRetry = retried !== undefined && (lastRun?.requestId ?? "") === retried
          const driven = Session.drive(claimed, {
            run,
            maxFailures,
            retry: isRetry,
            onEvent: (event) =>
              event._tag === "ChatCompleted" && onEnd !== undefined
                ? Effect.andThen(shown(event), hooked("onEnd", () => onEnd(claim.id, event.result)))
                : shown(event),
            ...(onStop === undefined ? {} : { onStop: (stop) => onStop(claim.id, stop) }),
            onGiveUp: (error) =>
              onGiveUp === undefined ? Effect.void : hooked("onGiveUp", () => onGiveUp(claim.id, error))
          })
          const listened = listener === undefined ? driven : Effect.provideService(driven, Requests.CurrentListener, {
            within: undefined,
            tell: (event) => listener(claim.id, event)
          })
          const kept = yield* replies.during(claim.id, listened)
          const isRemoved = kept.version === 0
          const isDone = isRemoved || kept.version > version && !Session.isUnfinished(kept)
          if (isDone) attempts.delete(claim.id)
          // A message may have to wait until other calls are settled, and the next search would find the session at
          // once.
          else if (!claim.isLeaving && (isFound || Session.isUnfinished(kept))) {
            yield* pause(claim, Session.view(kept).failures)
          }
        })
        return driving.pipe(
          Effect.ensuring(closed),
          Effect.tapCauseIf(
            (cause) => !Cause.hasInterruptsOnly(cause),
            (cause) => failed(claim, failures, cause)
          ),
          Effect.ignoreCause,
          // The claim is released before the drive's scope closes, in which its host shows the run's end. An observer
          // of the end can therefore claim the session at once, even if this process is killed by then.
          Effect.ensuring(claim.release),
          Effect.scoped
        )
      }

      const fibers = yield* FiberSet.make<void>()
      const claims = new Map<Journal.HeldClaim, Fiber.Fiber<void>>()
      const begin = (claim: Journal.HeldClaim, reason: Reason) => {
        owner.begin(claim.id)
        // The fiber registers its claim itself, because a drive that never waits ends before its fiber is known here.
        const driven = Effect.withFiber((fiber) => {
          claims.set(claim, fiber as Fiber.Fiber<void>)
          return drive(claim, reason)
        })
        const left = Effect.sync(() => {
          owner.end(claim.id)
          claims.delete(claim)
          ended.openUnsafe()
        })
        return FiberSet.run(fibers, Effect.ensuring(driven, left))
      }

      /**
       * Returns options for the next claims. A session whose claim was revoked is claimed under another name, so its
       * driver notices.
       */
      const claiming = (): Journal.ClaimOptions => ({
        owner: `${name}:${++polls}`,
        term,
        poll,
        onLost: owner.lose
      })

      const claimSome = Effect.gen(function*() {
        yield* ended.close
        if (owner.size >= concurrency) return
        const claims = yield* Journal.claimUnfinished(concurrency - owner.size, claiming())
        owner.answered(true)
        yield* Effect.forEach(claims, found, { concurrency: "unbounded", discard: true })
      })

      /** Begins a session found by a search, or lets its owner take it if another process owns the session. */
      const found = (claim: Journal.HeldClaim) => {
        const reason = { isFound: true, failed: undefined }
        return peers === undefined || peers.isHere(claim.id)
          ? Effect.asVoid(accept(claim, reason))
          // A session that cannot be passed on is found again.
          : Effect.ignore(Effect.andThen(claim.release, take(claim.id, reason)))
      }

      /** Makes a driven session look for commands now. */
      const lookAgain = (id: string) =>
        Effect.forEach(claims.keys(), (claim) => claim.id === id ? claim.look : Effect.void, { discard: true })

      /** Begins a session with a taken claim. Returns whether this worker drives the session. */
      const accept = (claim: Journal.HeldClaim, reason: Reason) =>
        Effect.suspend(() =>
          // A claim on a session this worker lost but still drives waits until the old drive ends.
          owner.isLeaving || owner.drives(claim.id)
            ? Effect.as(claim.release, owner.drives(claim.id))
            : Effect.as(begin(claim, reason), true)
        )

      const take = (id: string, reason: Reason) =>
        Effect.gen(function*() {
          // A drive about to end does nothing more, so a retry must be requested again.
          if (owner.drives(id)) return yield* Effect.as(lookAgain(id), reason.failed === undefined)
          if (peers !== undefined && (yield* peers.take(id, reason.failed))) return false
          if (owner.isLeaving || owner.size >= concurrency) return false
          return yield* Effect.uninterruptible(
            Effect.flatMap(Journal.claim(id, claiming()), (claim) => accept(claim, reason))
          ).pipe(Effect.catchTag("SessionClaimed", () => Effect.succeed(false)))
        })
      /** Number of consecutive requests the store has not answered. */
      let unanswered = 0
      const look = Effect.matchCauseEffect(claimSome, {
        onSuccess: () => {
          unanswered = 0
          return Effect.raceFirst(Effect.sleep(pollMillis), ended.await)
        },
        onFailure: (cause) => {
          owner.answered(false)
          return Effect.andThen(
            Telemetry.logged(Effect.logWarning("the store could not list sessions with work left", cause)),
            Effect.suspend(() => Effect.sleep(pauseOf(unanswered++)))
          )
        }
      })

      // Leaving waits for a running request, to release its claims.
      const looking = yield* Effect.forkDetach(
        Effect.whileLoop({ while: () => !owner.isLeaving, body: () => look, step: () => {} })
      )
      const leave = Effect.gen(function*() {
        owner.leave()
        yield* ended.open
        yield* Effect.raceFirst(Fiber.await(looking), Effect.sleep(Settings.defaultGrace))
        looking.interruptUnsafe()
        yield* Effect.forEach(
          claims,
          ([claim, fiber]) => Effect.andThen(claim.leave(drainMillis), Fiber.interrupt(fiber)),
          { concurrency: "unbounded", discard: true }
        )
      })
      yield* Effect.addFinalizer(() => leave)
      // Effects begun by a caller run with the layer's services.
      const taking = (id: string, failed?: string) =>
        Effect.provideContext(take(id, { isFound: false, failed }), context) as Effect.Effect<
          boolean,
          Journal.StoreError
        >
      return Object.assign(owner, { take: taking })
    })
  )
