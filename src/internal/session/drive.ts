/**
 * Does the work left in a session: resumes an interrupted run, replies to a submitted message, and continues once all
 * calls are settled, until no work is left or a call waits. Expires overdue calls, and ends a run that cannot succeed.
 * Public as `Session.drive`.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Metric from "effect/Metric"
import * as Stream from "effect/Stream"
import * as Adapter from "../../Adapter.ts"
import type * as Chat from "../../Chat.ts"
import type * as Event from "../../Event.ts"
import * as Thread from "../../Thread.ts"
import type * as Tool from "../../Tool.ts"
import { checkNames, type NamesOf } from "../declare/schema.ts"
import * as Values from "../declare/values.ts"
import * as Json from "../json.ts"
import * as Telemetry from "../telemetry.ts"
import * as Claims from "./claim.ts"
import * as SessionData from "./data.ts"
import * as Journals from "./journal.ts"
import * as Kept from "./kept.ts"
import * as Operations from "./operations.ts"
import type * as Records from "./records.ts"
import * as Resumptions from "./resumption.ts"
import * as SessionRun from "./run.ts"
import * as Settling from "./settling.ts"
import * as Writers from "./writer.ts"

/**
 * Options for the runs of a driven session.
 *
 * @category options
 */
export type RunOptions<T extends ReadonlyArray<Tool.Any>, E, R, RHalt, REvent> =
  & Chat.Options<T, E, R, RHalt, REvent>
  & Operations.ResumeOptions

/**
 * Returns the options for a session's next run, directly or from an effect.
 *
 * @category options
 */
export type RunOf<T extends ReadonlyArray<Tool.Any>, E, R, RHalt, REvent> = (
  kept: Kept.Kept
) => RunOptions<T, E, R, RHalt, REvent> | Effect.Effect<RunOptions<T, E, R, RHalt, REvent>, never, R>

/** Errors of driving a session. */
export type Failure<T extends ReadonlyArray<Tool.Any>, E> =
  | Operations.OperationError
  | Writers.KeepError
  | Tool.Fatal<T[number]>
  | E

/** Options for driving a session, except those of its runs. */
interface Settings<RPublish> {
  /** Receives each event; the drive waits for the effect. Repeated recorded events have `replayed: true`. */
  readonly onEvent?: (event: Event.Event) => Effect.Effect<void, never, RPublish>
  /**
   * Receives the request to stop the current run, once this process knows about it and before anything stops. The end
   * of the run waits for the effect, at most for the grace period. Not called for a request a resumed run begins with:
   * the run before was asked.
   */
  readonly onStop?: (stop: Records.StopRequested) => Effect.Effect<void, never, RPublish>
  /**
   * Number of consecutive failures after which a run that cannot start or continue is ended: its outcome is `Failed`,
   * and the session gets status `error`. Requests that cannot be sent, or that the model always refuses, end the run at
   * once. A missing tool, the store and a claim never end a run. Before that, `drive` fails with the error, and the
   * next `drive` tries again. Defaults to 5.
   */
  readonly maxFailures?: number
  /** Receives the error of a run ended because it cannot succeed. The drive waits for the effect. */
  readonly onGiveUp?: (error: unknown) => Effect.Effect<void, never, RPublish>
  /** `true` to continue a session once after its last run failed, although no work is left. Defaults to `false`. */
  readonly retry?: boolean
}

/**
 * Options for driving a session.
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
> extends Settings<RPublish> {
  /** Returns the next run's options, for the current session, directly or from an effect that cannot fail. */
  readonly run: RunOf<T, E, R, RHalt, REvent>
}

const knownOptions = {
  run: Values.fn,
  onEvent: Values.fn,
  onStop: Values.fn,
  maxFailures: Values.count,
  onGiveUp: Values.fn,
  retry: Values.flag
} satisfies NamesOf<Options>

/** Metrics for driven sessions. Their names and meanings are part of the guide. */
const metrics = {
  attempts: Metric.counter("heddle.runs.attempts", {
    description: "Runs that were begun or resumed",
    incremental: true
  }),
  takenOver: Metric.counter("heddle.runs.taken_over", {
    description: "Runs that another process had left, and that were resumed",
    incremental: true
  }),
  givenUp: Metric.counter("heddle.runs.given_up", {
    description: "Runs that were ended since they cannot succeed",
    incremental: true
  })
}

/** Reasons why a model always refuses the same request, until a person changes something. */
const hopeless: ReadonlySet<Adapter.AdapterError["reason"]> = new Set([
  "authentication_failed",
  "quota_exceeded",
  "invalid_request",
  "unsupported_feature",
  "context_length_exceeded",
  "content_filter",
  "no_scripted_response"
])

/** Returns `true` if the same attempt would fail again: a request no model is sent, or every model refuses. */
const isHopeless = (error: unknown): boolean =>
  error instanceof Thread.ValidationError || error instanceof Adapter.AdapterError && hopeless.has(error.reason)

/** Returns `true` for an error that passes, or belongs to this owner: another owner may have the missing tool. */
const isPassing = (error: unknown): boolean =>
  error instanceof Resumptions.ResumeError || error instanceof Journals.StoreError ||
  error instanceof Claims.SessionClaimed

/** Returns `true` for a record that can never be written: the same attempt would fail again. */
const isUnwritable = (error: unknown): error is Journals.StoreError =>
  error instanceof Journals.StoreError && error.operation === "append"
  && (error.reason === "too_large" || error.reason === "unreadable")

/**
 * Returns `true` if a reply was too large for the store: asking the model again would yield another. A reply without
 * calls is recorded with its step.
 */
const isReplyTooLarge = (error: unknown): error is Journals.StoreError =>
  isUnwritable(error) && error.reason === "too_large"
  && (error.record === "ReplyReceived" || error.record === "StepCompleted")

/** Returns the error if a run ended instead of being resumed. */
const endedBy = (event: Event.Event): Resumptions.ResumeError | undefined => {
  const outcome = event._tag === "ChatCompleted" ? event.result.outcome : undefined
  return outcome?._tag === "Failed" && outcome.error instanceof Resumptions.ResumeError ? outcome.error : undefined
}

/**
 * Does the work left, if an owner can do that work. A new message continues a session whose last run failed. The whole
 * operation races with the loss of its claim, which costs each `Kept.keepStream` event a queue.
 */
const workOf = <T extends ReadonlyArray<Tool.Any>, E, R, RHalt, REvent, RPublish>(
  kept: Kept.Claimed,
  options: RunOptions<T, E, R, RHalt, REvent>,
  { failure, isFinal, isRetry, maxFailures, published }: {
    /** Error ending the run instead of another attempt. */
    readonly failure: Journals.StoreError | undefined
    readonly isFinal: SessionRun.IsFinal
    readonly isRetry: boolean
    readonly maxFailures: number
    readonly published: (event: Event.Event) => Effect.Effect<void, never, RPublish>
  }
) => {
  const operation = (checked: (session: SessionData.Session) => ReturnType<typeof Operations.continuing>) =>
    Kept.keep(kept, (session) => Stream.runForEach(SessionRun.stream(checked(session), options, isFinal), published))
  switch (Kept.next(kept)) {
    case "resume":
      return Kept.keep(
        kept,
        () => Stream.runForEach(SessionRun.resumption(options, { failure, isFinal, maxFailures }), published)
      )
    case "reply": {
      const [next] = kept.submitted ?? []
      return next &&
        operation((session) =>
          Operations.replying(SessionData.recover(session), next.message.content, { takes: next.id })
        )
    }
    case "continue":
      return operation((session) => Operations.continuing(session, null))
    default:
      return isRetry
        ? operation((session) => Operations.continuing(SessionData.recover(session), null))
        : undefined
  }
}

const times = (count: number): string => count === 1 ? "once" : `${count} times`

/** Names a session in a log. */
const named = ({ id }: { readonly id: string }): string => `session ${JSON.stringify(id)}`

/** Logs that another process's run is resumed. */
const takingOver = (kept: Kept.Kept, processName: string): Effect.Effect<void> => {
  const { interrupted, state } = kept
  return interrupted === undefined || state.run?.processName === processName ? Effect.void : Effect.andThen(
    Metric.update(metrics.takenOver, 1),
    Telemetry.logged(Effect.logWarning(
      `${named(kept)} is taken over: its run ${interrupted.requestId} was left by another process, and was resumed `
        + `${times(interrupted.resumptions)} before`
    ))
  )
}

/** Names the settled calls a session continues with. */
const settledIn = (kept: Kept.Kept): string | undefined => {
  const { answered, approved } = kept.session
  return Kept.next(kept) === "continue" ? JSON.stringify([answered, approved.map(({ id }) => id)]) : undefined
}

/** Returns `true` if a waiting call in the session has expired. */
const isDue = ({ session: { suspensions } }: Kept.Kept, now: number): boolean =>
  suspensions.some(({ expiresAt = Infinity }) => expiresAt <= now)

/** Drives a claimed session until no work is left or its owner is leaving, and returns the session. */
export const drive = <T extends ReadonlyArray<Tool.Any>, E, R, RHalt, REvent, RPublish>(
  claimed: Kept.Claimed,
  options: Options<T, E, R, RHalt, REvent, RPublish>
): Effect.Effect<
  Kept.Claimed,
  Failure<T, E>,
  RPublish | Journals.Store | Adapter.Adapter | Tool.Services<T[number]> | R | RHalt | REvent
> =>
  Effect.gen(function*() {
    checkNames("Session.drive", options, knownOptions)
    const { maxFailures = 5, onEvent = () => Effect.void, onGiveUp = () => Effect.void, onStop, retry = false, run } =
      options
    const processName = yield* Claims.CurrentProcess
    const claim = Claims.own(claimed.claim)
    let kept = yield* Kept.reload(claimed)
    /** Error ending the current run, which could not start. */
    let final: { readonly error: unknown; readonly failures: number } | undefined
    /** `true` while the run is a person's retry, whose sender gets its end. */
    let isFailed = false
    const isFinal: SessionRun.IsFinal = (error, failures) => {
      if (isPassing(error) || !isFailed && failures < maxFailures && !isHopeless(error)) return false
      final = { error, failures }
      return true
    }
    const published = (event: Event.Event) => {
      const ending = endedBy(event)
      const { error, failures } = (ending && { error: ending, failures: kept.state.failures }) ?? final ?? {}
      if (event._tag !== "ChatCompleted" || error === undefined) return claim.during(onEvent(event))
      return claim.during(Effect.gen(function*() {
        yield* onEvent(event)
        yield* Metric.update(metrics.givenUp, 1)
        yield* Telemetry.logged(Effect.andThen(
          Effect.logWarning(`${named(kept)} is given up: it failed ${times(failures ?? 0)}`, Json.nameOf(error)),
          Effect.logDebug(`${named(kept)} failed`, error)
        ))
        yield* onGiveUp(error)
      }))
    }
    /** The previous attempt's reply, which the store never takes. */
    let refused: Journals.StoreError | undefined
    /** `true` to continue the session although no work is left. */
    let retries = retry
    const stopHook: Writers.StopHook | undefined = onStop && {
      id: kept.id,
      onStop: (stop) =>
        Effect.catchCause(
          Effect.suspend(() => onStop(stop)),
          (cause) => Telemetry.warned(`onStop of ${named(kept)} died`, cause)
        )
    }
    while (!claim.isLeaving) {
      const { version } = kept
      isFailed = retries && kept.session.status === "error"
      retries = false
      if (Kept.next(kept) === "wait" && isDue(kept, yield* Clock.currentTimeMillis)) {
        kept = yield* Kept.keep(kept, Settling.expire)
      }
      final = refused && { error: refused, failures: kept.state.failures + 1 }
      if (!isFailed && !Kept.isUnfinished(kept)) return kept
      const given = run(kept)
      const resolved = Effect.isEffect(given) ? yield* given : given
      const work = workOf(kept, resolved, { failure: refused, isFinal, isRetry: isFailed, maxFailures, published })
      if (work === undefined) return kept
      refused = undefined
      yield* Metric.update(metrics.attempts, 1)
      yield* takingOver(kept, processName)
      yield* work.pipe(
        Effect.provideService(Writers.CurrentStopHook, stopHook),
        Effect.catchIf(isReplyTooLarge, (error) => Effect.sync(() => void (refused = error))),
        Effect.tapError((error) =>
          isUnwritable(error)
            ? Effect.flatMap(Kept.reload(kept), (kept) => Kept.keep(kept, () => Operations.failing))
            : Effect.void
        )
      )
      const before = settledIn(kept)
      kept = yield* Kept.reload(kept)
      if (refused !== undefined) continue
      // Settled calls unable to run, for example because they expired, are not retried at once.
      if (kept.version === version || before !== undefined && settledIn(kept) === before) return kept
    }
    return kept
  })
