/**
 * The soft stop of a run: requested once, it stays requested. A listener added later is called at once, so nothing
 * starting after the request misses it.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import type { CancelSource } from "../ask/options.ts"
import * as Deadline from "./deadline.ts"

const abortCause = "Execution cancelled by parent abort signal"

/** The cause for a session's stop request. */
export const stopCause = "the run was stopped"

/** The cause for stopping one call without a given reason. */
export const callStopCause = "the call was stopped"

const textOf = (reason: unknown, of: string, otherwise: string): string => {
  if (reason === undefined || reason === "") return otherwise
  if (typeof reason === "string") return reason
  throw new TypeError(`${of}: the reason must be a string, which the model reads`)
}

/** Returns the reason shown to the model for stopping one call. A reason other than a string is a defect. */
export const reasonOf = (reason: unknown, of: string): string => textOf(reason, of, callStopCause)

/** Returns the cause shown to the model for stopping a run. A reason other than a string is a defect. */
export const causeOf = (reason: unknown, of: string): string => textOf(reason, of, abortCause)

/**
 * Request source. A run started by an abandoned handler is stopped as if the handler were interrupted: `"interrupt"`.
 */
export type Reason = "cancel" | "deadline" | "interrupt" | "stop"

export class Cancellation {
  /** Reason of the request: `cause` as read by the model, `reason` as named by the outcome. */
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

  /**
   * Calls `listener` when the request is made, or at once after an earlier request. The returned function removes the
   * listener.
   */
  onRequest(listener: () => void): () => void {
    if (this.hasBeenRequested) listener()
    else this.listeners.add(listener)
    return () => this.listeners.delete(listener)
  }
}

/** Returns an effect's result, or, once cancellation is requested, the result of `otherwise`. */
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

/** Sources of a soft stop. */
interface Stops {
  /** Soft stop of the enclosing run. */
  readonly parent: Cancellation | undefined
  readonly deadline: Deadline.Deadline | undefined
  /** Signal or effect from the caller. `Inherited.listen` starts an effect, since it belongs to the run. */
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
      // The finalizer comes before the listener, so an interruption in between leaves no listener behind.
      yield* Scope.addFinalizer(scope, Effect.sync(() => cancel.removeEventListener("abort", request)))
      if (cancel.aborted) request()
      else cancel.addEventListener("abort", request, { once: true })
    }
  })
