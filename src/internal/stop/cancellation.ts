/**
 * The soft stop of a run: a request that is made once and stays made. A listener that is added later is called at once,
 * so that nothing that starts after the request misses it.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import type { CancelSource } from "../ask/options.ts"
import * as Deadline from "./deadline.ts"

const abortCause = "Execution cancelled by parent abort signal"

/** The cause of a stop that was requested of the session. */
export const stopCause = "the run was stopped"

/** The cause of the stop of one call that was given no reason. */
export const callStopCause = "the call was stopped"

const textOf = (reason: unknown, of: string, otherwise: string): string => {
  if (reason === undefined || reason === "") return otherwise
  if (typeof reason === "string") return reason
  throw new TypeError(`${of}: the reason must be a text, which the model reads`)
}

/** Returns the reason that the model reads for the stop of one call. Any reason but a text is a defect. */
export const reasonOf = (reason: unknown, of: string): string => textOf(reason, of, callStopCause)

/** Returns the cause that the model reads for the stop of a run. Any reason but a text is a defect. */
export const causeOf = (reason: unknown, of: string): string => textOf(reason, of, abortCause)

/**
 * The source of the request. A run that an abandoned handler starts is stopped as if the handler were interrupted:
 * `"interrupt"`.
 */
export type Reason = "cancel" | "deadline" | "interrupt" | "stop"

export class Cancellation {
  /** The reason of the request: `cause` as the model reads it, `reason` as the outcome names it. */
  cause = abortCause
  reason: Reason = "cancel"
  private hasBeenRequested = false
  private readonly listeners = new Set<() => void>()

  get isRequested(): boolean {
    return this.hasBeenRequested
  }

  request(reason: Reason = "cancel", cause = abortCause): void {
    if (this.hasBeenRequested) return
    this.hasBeenRequested = true
    this.reason = reason
    this.cause = cause
    for (const listener of this.listeners) listener()
    this.listeners.clear()
  }

  /** Calls `listener` when the request is made, at once if it has been. The returned function removes the listener. */
  onRequest(listener: () => void): () => void {
    if (this.hasBeenRequested) listener()
    else this.listeners.add(listener)
    return () => this.listeners.delete(listener)
  }
}

/** Returns the result of an effect, or that of `otherwise` as soon as the request is made. */
export const orElse = <A, E, R>(
  effect: Effect.Effect<A, E, R>,
  cancellation: Cancellation | undefined,
  otherwise: () => A
): Effect.Effect<A, E, R> => {
  if (cancellation === undefined || Exit.isExit(effect)) return effect
  const requested = Effect.callback<A>((resume) => {
    const unsubscribe = cancellation.onRequest(() => resume(Effect.sync(otherwise)))
    return Effect.sync(unsubscribe)
  })
  return Effect.raceFirst(effect, requested)
}

/** The sources that may stop a run softly. */
interface Stops {
  /** The soft stop of the run around this one. */
  readonly parent: Cancellation | undefined
  readonly deadline: Deadline.Deadline | undefined
  /** The caller's signal or effect. An effect is started by `Inherited.listen`, since it belongs to the run. */
  readonly cancel: CancelSource<any> | undefined
}

/** Lets each source request the stop of a run, until the scope closes. */
export const watch = (
  cancellation: Cancellation,
  { cancel, deadline, parent }: Stops,
  scope: Scope.Scope
): Effect.Effect<void> =>
  Effect.gen(function*() {
    if (parent !== undefined) {
      const unsubscribe = parent.onRequest(() => cancellation.request(parent.reason, parent.cause))
      yield* Scope.addFinalizer(scope, Effect.sync(unsubscribe))
    }
    if (deadline !== undefined) {
      const expire = Effect.sync(() => cancellation.request("deadline", Deadline.cause))
      const left = deadline.at - (yield* Clock.currentTimeMillis)
      if (left <= 0) yield* expire
      else yield* Effect.forkIn(Effect.delay(expire, left), scope, { startImmediately: true })
    }
    if (cancel instanceof AbortSignal) {
      const request = () => cancellation.request()
      // The scope learns of the listener before it is added, so that an interruption in between leaves none behind.
      yield* Scope.addFinalizer(scope, Effect.sync(() => cancel.removeEventListener("abort", request)))
      if (cancel.aborted) request()
      else cancel.addEventListener("abort", request, { once: true })
    }
  })
