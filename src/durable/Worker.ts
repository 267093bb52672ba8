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
   * session. It may be an Effect of the options, which cannot fail.
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
  /** Number of sessions that the worker drives concurrently. 10 by default. */
  readonly concurrency?: number
  /**
   * Interval at which the worker looks for sessions, and for commands to those that it drives. A number is
   * milliseconds. `"200 millis"` by default.
   */
  readonly poll?: Duration.Input
  /**
   * Duration of a claim unless it is renewed: the sessions of a dead process are taken over after this time. At least
   * three times the longest pause of a process, and one and a half times the longest time in which the effect of a
   * call can be under way: `lookUp` is asked after it. A number is milliseconds. `"30 seconds"` by default.
   */
  readonly term?: Duration.Input
  /**
   * Longest time that calls under way have to end when the layer is released. A call that is still under way then is
   * interrupted, and the next owner treats it as a call whose effect is unknown. A number is milliseconds.
   * `"20 seconds"` by default.
   */
  readonly drain?: Duration.Input
  /**
   * Number of failures in a row after which a run is ended that cannot start or continue, over all workers: its
   * outcome is `Failed`, and the session is in status `error`. Requests that cannot be sent, or that the model refuses
   * each time (`authentication_failed`, `quota_exceeded`, `invalid_request`, `unsupported_feature`,
   * `context_length_exceeded`, `content_filter`), end it at once. A missing tool, the store and a claim never do. The
   * pause between two attempts begins with five times `poll`, and is four times longer each
   * time, up to a minute: with the defaults a run is ended 81 seconds after its first failure. A run whose model fails
   * behind the first reply ends as `Failed` by itself, as `Chat.run` does. 5 by default.
   */
  readonly maxFailures?: number
  /** Receives each event of each run, which waits for it. Events that repeat recorded ones have `replayed: true`. */
  readonly onEvent?: (id: string, event: Event.Event) => Effect.Effect<void, never, RPublish>
  /**
   * Receives the request to stop a run that the worker drives, once the worker knows of the request and before it stops
   * anything. The end of the run waits for the effect, for the grace period at most. A request that a resumed run
   * begins with is not received: the run before it was asked.
   */
  readonly onStop?: (id: string, stop: Journal.StopRequested) => Effect.Effect<void, never, RPublish>
  /** Receives the result of each run that has ended, or waits for an answer. The worker waits for it. */
  readonly onEnd?: (id: string, result: Event.ChatResult) => Effect.Effect<void, never, RPublish>
  /**
   * Receives the error of a run that is ended because it cannot succeed: the one that it failed with, or the
   * `ResumeError` `too_old` or `too_many_attempts`. The worker waits for it.
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

/** Returns the pause before the next attempt, four times longer with each attempt up to a maximum. */
const pauses = (pollMillis: number) => (attempt: number): number =>
  Math.min(5 * pollMillis * 4 ** Math.min(attempt, 15), Math.max(pollMillis, longestPause))

const millisOf = (duration: Duration.Input): number => Duration.toMillis(Duration.fromInputUnsafe(duration))

/** Names a session in a log. */
const named = ({ id }: Journal.HeldClaim): string => `session ${JSON.stringify(id)}`

/**
 * The worker of this process, for a health check.
 *
 * @category services
 * @since 0.1.0
 */
export class Worker extends Context.Service<Worker, Owners.Owner & Taker>()("heddle/durable/Worker") {}

/** Returns what a hook returns. One that throws returns a defect. */
const attempted = <R>(hook: () => Effect.Effect<void, never, R>): Effect.Effect<void, never, R> => {
  try {
    return hook()
  } catch (error) {
    return Effect.die(error)
  }
}

/** The reason why a worker drives a session. */
interface Reason {
  /** `true` where a search has found it, `false` where it was taken by its name. */
  readonly isFound: boolean
  /** The failed run after which the session is continued, if that was its last one. */
  readonly failed: string | undefined
}

/** Takes sessions by name. */
interface Taker {
  readonly take: (id: string, failed?: string) => Effect.Effect<boolean, Journal.StoreError>
}

/**
 * The health of the worker: how many sessions it drives, whether it lost claims lately, and whether it is leaving.
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
 * @since 0.1.0
 */
export const ready: Effect.Effect<Owners.Health, never, Worker> = Effect.flatMap(Worker, ({ health }) => health)

/**
 * Drives a session at once, in place of waiting until the worker finds it, and succeeds with `true` if the worker of
 * this process has it now. It is `false` where another owner has its claim or, on a cluster of servers, has taken it,
 * and where the worker is leaving or drives as many sessions as it may: the session is then found later, as any other.
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
 * @since 0.1.0
 */
export const take = (id: string): Effect.Effect<boolean, Journal.StoreError, Worker> =>
  Effect.flatMap(Worker, (worker) => worker.take(id))

/**
 * Runs a worker in this process until the layer is released. It then claims nothing new, starts no further call and
 * asks no model. Calls under way have the time of `drain` to end, and their answers are recorded. The worker then
 * releases its claims, so that other workers resume the runs at once. A call that has not ended keeps its claim until
 * the end of the term.
 *
 * The failure of a session does not stop the worker: it is logged, and the session is tried again, later each time.
 * `maxFailures` limits the failures in a row, and `maxAttempts` and `maxAge` of the run's options limit the attempts
 * to resume a run. The worker also settles questions and approvals whose time is over.
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
      /** Number of searches for sessions with work left. */
      let polls = 0
      /** Number of consecutive failures by session. */
      const attempts = new Map<string, number>()

      /** Pauses a session, longer each time. `failures` counts those before in its journal, over all workers. */
      const pause = (claim: Journal.HeldClaim, failures: number) =>
        Effect.suspend(() => {
          const attempt = attempts.get(claim.id) ?? 0
          attempts.delete(claim.id)
          attempts.set(claim.id, attempt + 1)
          // Another worker may have succeeded with the oldest.
          const [oldest] = attempts.keys()
          if (attempts.size > mostAttempts && oldest !== undefined) attempts.delete(oldest)
          return claim.rest(pauseOf(Math.max(attempt, failures)))
        })

      const failed = (claim: Journal.HeldClaim, failures: number, cause: Cause.Cause<unknown>) => {
        const error = Option.getOrUndefined(Cause.findErrorOption(cause))
        // Another owner does the work that is left. The loss of the claim is logged with its figures.
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
        // A leave waits for hooks no longer than the grace period.
        const running = new Running(Settings.defaultGrace, context)
        const hooks = new Hooks(running, { kind: "hook", id: claim.id, name: "onEvent", onSoftStop: "unaffected" })
        const hooked = <R>(name: string, hook: () => Effect.Effect<void, never, R>): Effect.Effect<void, never, R> => {
          const work = attempted(hook)
          // Most hooks have done their work by now, which nothing has to wait for.
          if (work === Effect.void) return Effect.void
          return hooks.do(
            // A hook that dies does not end the run.
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
          // A retry that was asked for twice is one.
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
          // A message may have to wait until other calls are settled.
          if (isDone) attempts.delete(claim.id)
          // The next search would find the session again at once.
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
          // The claim goes back before the scope of the drive closes, in which its host shows the end of a run. Who
          // sees that end can claim the session at once, even if this process is killed by then.
          Effect.ensuring(claim.release),
          Effect.scoped
        )
      }

      const fibers = yield* FiberSet.make<void>()
      const claims = new Map<Journal.HeldClaim, Fiber.Fiber<void>>()
      const begin = (claim: Journal.HeldClaim, reason: Reason) => {
        owner.begin(claim.id)
        // The fiber notes its claim itself: a drive that waits for nothing has ended before its fiber is known here.
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
       * Returns the options of the next claims. A session whose claim was revoked is claimed under another name, so
       * that the one who drives it learns it.
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

      /** Begins a session that a search has found, or has its owner take it where that is another process. */
      const found = (claim: Journal.HeldClaim) => {
        const reason = { isFound: true, failed: undefined }
        return peers === undefined || peers.isHere(claim.id)
          ? Effect.asVoid(accept(claim, reason))
          // A session that cannot be passed on is found again.
          : Effect.ignore(Effect.andThen(claim.release, take(claim.id, reason)))
      }

      /** Has the run of a session that this worker drives look for commands now. */
      const lookAgain = (id: string) =>
        Effect.forEach(claims.keys(), (claim) => claim.id === id ? claim.look : Effect.void, { discard: true })

      /** Begins a session whose claim was taken, and tells whether this worker drives it. */
      const accept = (claim: Journal.HeldClaim, reason: Reason) =>
        Effect.suspend(() =>
          // The claim of a session that this worker has lost and not yet given up waits until then.
          owner.isLeaving || owner.drives(claim.id)
            ? Effect.as(claim.release, owner.drives(claim.id))
            : Effect.as(begin(claim, reason), true)
        )

      const take = (id: string, reason: Reason) =>
        Effect.gen(function*() {
          // A drive that is about to end does nothing after it: a retry is asked for again.
          if (owner.drives(id)) return yield* Effect.as(lookAgain(id), reason.failed === undefined)
          if (peers !== undefined && (yield* peers.take(id, reason.failed))) return false
          if (owner.isLeaving || owner.size >= concurrency) return false
          return yield* Effect.uninterruptible(
            Effect.flatMap(Journal.claim(id, claiming()), (claim) => accept(claim, reason))
          ).pipe(Effect.catchTag("SessionClaimed", () => Effect.succeed(false)))
        })
      /** Number of requests in a row that the store has not answered. */
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

      // A request that is under way at the leave is waited for: what it claims is released.
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
      // The services of the layer are those of what a caller has begun.
      const taking = (id: string, failed?: string) =>
        Effect.provideContext(take(id, { isFound: false, failed }), context) as Effect.Effect<
          boolean,
          Journal.StoreError
        >
      return Object.assign(owner, { take: taking })
    })
  )
