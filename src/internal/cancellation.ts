/**
 * The soft stop of a run: a request that is made once and stays made. Whoever asks later learns of it as well as whoever
 * listened before, so that nothing that starts in between is missed.
 */
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"

/** What a caller may stop a run with: a signal, or an effect that stops it when it succeeds. */
export type Source<R> = AbortSignal | Effect.Effect<unknown, never, R>

export const cause = "Execution cancelled by parent abort signal"

export class Cancellation {
  private hasBeenRequested = false
  private readonly listeners = new Set<() => void>()

  get isRequested(): boolean {
    return this.hasBeenRequested
  }

  request(): void {
    if (this.hasBeenRequested) return
    this.hasBeenRequested = true
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

/** Listens to a source until the scope closes. Without a source there is nothing to ask. */
export const listen = <R>(
  source: Source<R> | null | undefined,
  scope: Scope.Scope
): Effect.Effect<Cancellation | undefined, never, R> => {
  if (source === null || source === undefined) return Effect.succeed(undefined)
  const cancellation = new Cancellation()
  const listening = Effect.isEffect(source)
    ? listenToEffect(source, cancellation, scope)
    : listenToSignal(source, cancellation, scope)
  return Effect.as(listening, cancellation)
}

const listenToSignal = (
  signal: AbortSignal,
  cancellation: Cancellation,
  scope: Scope.Scope
): Effect.Effect<void> => {
  const request = () => cancellation.request()
  if (signal.aborted) request()
  else signal.addEventListener("abort", request, { once: true })
  return Scope.addFinalizer(scope, Effect.sync(() => signal.removeEventListener("abort", request)))
}

const listenToEffect = <R>(
  effect: Effect.Effect<unknown, never, R>,
  cancellation: Cancellation,
  scope: Scope.Scope
): Effect.Effect<void, never, R> =>
  Effect.contextWith((context) => {
    const fiber = Effect.runForkWith(context)(Effect.map(effect, () => cancellation.request()))
    return Scope.addFinalizer(scope, Fiber.interrupt(fiber))
  })
