/**
 * The soft stop of a run: a request that is made once and stays made. Whoever asks later learns of it as well as whoever
 * listened before, so that nothing that starts in between is missed.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"

const abortCause = "Execution cancelled by parent abort signal"

/** What made the request. A run that a given-up handler starts is stopped as by an interruption of the handler. */
export type Reason = "cancel" | "deadline" | "interrupt"

export class Cancellation {
  /** Why it was requested, as the model reads it, and as the outcome says it. */
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

  /** Calls `listener` when the request is made, at once if it has been. The returned function takes it back. */
  onRequest(listener: () => void): () => void {
    if (this.hasBeenRequested) listener()
    else this.listeners.add(listener)
    return () => this.listeners.delete(listener)
  }
}

/** What an effect comes to, or something else as soon as the request is made. What has its end is not waited for. */
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

/** Is requested when the other one is, for the same reason. */
export const follow = (
  parent: Cancellation,
  cancellation: Cancellation,
  scope: Scope.Scope
): Effect.Effect<void> => {
  const unsubscribe = parent.onRequest(() => cancellation.request(parent.reason, parent.cause))
  return Scope.addFinalizer(scope, Effect.sync(unsubscribe))
}

/** Is requested at a time of the clock. */
export const expire = (
  at: number,
  cause: string,
  cancellation: Cancellation,
  scope: Scope.Scope
): Effect.Effect<void> =>
  Effect.flatMap(Clock.currentTimeMillis, (now) => {
    if (at <= now) return Effect.sync(() => cancellation.request("deadline", cause))
    const waiting = Effect.map(Effect.sleep(at - now), () => cancellation.request("deadline", cause))
    return Effect.asVoid(Effect.forkIn(waiting, scope, { startImmediately: true }))
  })

/** Listens to a signal until the scope closes, which knows of it before it begins: nothing can come between the two. */
export const listen = (
  signal: AbortSignal,
  cancellation: Cancellation,
  scope: Scope.Scope
): Effect.Effect<void> => {
  const request = () => cancellation.request()
  return Effect.andThen(
    Scope.addFinalizer(scope, Effect.sync(() => signal.removeEventListener("abort", request))),
    Effect.sync(() => signal.aborted ? request() : signal.addEventListener("abort", request, { once: true }))
  )
}
