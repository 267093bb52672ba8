/**
 * What a run takes over from the run whose handler started it, if there is one, and hands on to those that its own
 * handlers start: the permits of the tree, the deadline, the soft stop. While it is alive, the handler around it holds
 * no permit. A run that is started by a handler that was given up does nothing.
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import * as Cancellation from "./cancellation.ts"
import * as Deadline from "./deadline.ts"
import { Pool } from "./holding.ts"
import * as Limits from "./limits.ts"
import * as Settings from "./settings.ts"

export interface Ambient {
  readonly pool: Pool
  readonly deadline: Deadline.Deadline | undefined
  /** There is one where anything can request it. */
  readonly cancellation: Cancellation.Cancellation | undefined
}

const pools = new WeakMap<Semaphore.Semaphore, Pool>()

/** One pool for all runs that share a semaphore, so that those who wait are seen by all. */
const poolOf = (semaphore: Semaphore.Semaphore): Pool => {
  const known = pools.get(semaphore)
  if (known !== undefined) return known
  const pool = new Pool(semaphore)
  pools.set(semaphore, pool)
  return pool
}

/**
 * Enters a run, which ends when the scope closes. What stops its handlers is to be added to the scope after this: the
 * handler around it has its permits back when they have given up theirs.
 */
export const enter = <E, R>(
  settings: Settings.Settings<E, R>,
  cancel: Cancellation.Source<R> | null | undefined,
  scope: Scope.Scope
): Effect.Effect<Ambient, never, R> =>
  Effect.gen(function*() {
    const holding = yield* Limits.CurrentHolding
    if (holding !== undefined) yield* holding.lend(scope)
    const pool = poolOf((yield* Limits.Permits) ?? Semaphore.makeUnsafe(settings.maxConcurrency ?? Settings.widest()))
    const now = yield* Clock.currentTimeMillis
    const deadline = Deadline.resolve(settings.deadline, yield* Limits.Deadline, now)
    const parent = yield* Limits.ParentCancellation
    const isTooLate = holding !== undefined && holding.until <= now
    if ((cancel ?? parent ?? deadline) === undefined && !isTooLate) return { pool, deadline, cancellation: undefined }
    const cancellation = new Cancellation.Cancellation()
    if (isTooLate) cancellation.request()
    if (parent !== undefined) yield* Cancellation.follow(parent, cancellation, scope)
    if (deadline !== undefined) yield* Cancellation.expire(deadline.at, Deadline.cause, cancellation, scope)
    if (cancel !== null && cancel !== undefined) yield* Cancellation.listen(cancel, cancellation, scope)
    return { pool, deadline, cancellation }
  })

/** The services of handlers. They have until a last answer of the model has to begin. */
export const forHandlers = <R>(
  services: Context.Context<R>,
  { cancellation, deadline, pool }: Ambient
): Context.Context<R> => {
  let context = Context.add(services, Limits.Permits, pool.semaphore)
  if (deadline !== undefined) context = Context.add(context, Limits.Deadline, deadline.toolsUntil)
  if (cancellation !== undefined) context = Context.add(context, Limits.ParentCancellation, cancellation)
  return context as Context.Context<R>
}
