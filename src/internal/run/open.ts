/**
 * Opens batches: what a batch needs of the services of its run, and, for a run that is no more than one batch, its scope.
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import * as Encoder from "../../Encoder.ts"
import * as Executor from "../../Executor.ts"
import * as Settings from "../ask/options.ts"
import * as Ambient from "../stop/inherited.ts"
import { Running } from "../stop/ownedFibers.ts"
import * as Telemetry from "../telemetry.ts"
import { Batch } from "./batch.ts"

/**
 * A batch of calls inside a run: what a step opens for its turn. `calls` is how many are expected at most, `Infinity` where
 * that is not known. Its handlers belong to `running`; the caller has to close it.
 */
export const open = <E, R>(
  context: Context.Context<R>,
  calls: number,
  settings: Settings.Settings<E, R>,
  stepIndex: number,
  running: Running,
  ambient: Ambient.Ambient
): Batch<E> =>
  new Batch<E>({
    found: find(context, ambient),
    settings,
    bound: settings.maxConcurrency ?? Settings.defaultBound(calls),
    stepIndex,
    running,
    ambient
  })

/** What a batch needs of the services of a step. It is looked up once for all steps that have the same. */
const find = <R>(context: Context.Context<R>, ambient: Ambient.Ambient): Ambient.Found => {
  if (ambient.found?.context === context) return ambient.found
  return ambient.found = {
    context,
    executor: Context.get(context, Executor.Executor),
    encoder: Context.get(context, Encoder.Encoder),
    services: Ambient.forHandlers(context, ambient),
    clock: Context.get(context, Clock.Clock),
    isTraced: Telemetry.isTraced(context)
  }
}

/** A batch that is closed with the scope, of a run that ends with it. */
export const scoped = <E, R>(
  calls: number,
  settings: Settings.Settings<E, R>,
  options: { readonly stepIndex?: number; readonly cancel?: Settings.RunnerOptions<E, R>["cancel"] | undefined },
  scope: Scope.Scope
): Effect.Effect<Opened<E>, never, R> =>
  Effect.contextWith((context: Context.Context<R>) => {
    const running = new Running(settings.graceMillis, context as Context.Context<never>)
    return Effect.flatMap(Ambient.enter(settings, options.cancel, scope), (ambient) => {
      const batch = open<E, R>(context, calls, settings, options.stepIndex ?? 0, running, ambient)
      const leaving = Effect.suspend(() => {
        const closed = batch.close()
        return Effect.andThen(running.end(Exit.void), closed)
      })
      return Effect.map(Scope.addFinalizer(scope, leaving), () => {
        Ambient.listen(running, ambient, options.cancel, settings.requestId)
        return { ambient, batch, running }
      })
    })
  }).pipe(
    // A batch listens and waits from the start: nothing can come between that and the scope that ends it.
    Effect.uninterruptible
  )

/** A batch and the run that it is of. */
interface Opened<E> {
  readonly ambient: Ambient.Ambient
  readonly batch: Batch<E>
  readonly running: Running
}
