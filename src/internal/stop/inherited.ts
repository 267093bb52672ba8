/**
 * What a run takes over from the run whose handler started it, if there is one, and hands on to those that its own
 * handlers start: the permits of the tree, the deadline, the soft stop. While it is alive, the handler around it holds
 * no permit. A run that is started by a handler that was given up does nothing.
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Scope from "effect/Scope"
import type * as Semaphore from "effect/Semaphore"
import * as Settings from "../ask/options.ts"
import * as Now from "../now.ts"
import { Pool } from "../permits/treePermits.ts"
import type { Found } from "../run/batchEnvironment.ts"
import * as Cancellation from "./cancellation.ts"
import * as Deadline from "./deadline.ts"
import * as Limits from "./limits.ts"
import type { Running } from "./ownedFibers.ts"
import { Spending } from "./spending.ts"
import { Worker } from "./worker.ts"

export interface Ambient {
  readonly pool: Pool
  readonly deadline: Deadline.Deadline | undefined
  /** There is one where anything can request it. */
  readonly cancellation: Cancellation.Cancellation | undefined
  readonly spending: Spending
  /** What was found last: the services of one step are mostly those of the next. */
  found: Found | undefined
}

/** Of semaphores that are the caller's. */
const pools = new WeakMap<Semaphore.Semaphore, Pool>()

/** One pool for all runs that share a semaphore, so that those who wait are seen by all. */
const poolOf = (semaphore: Semaphore.Semaphore): Pool => {
  if (semaphore instanceof Pool) return semaphore
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
): Effect.Effect<Ambient, never, R> => {
  const context = Now.services<R>()
  const holding = Context.get(context, Limits.CurrentHolding)
  const permits = Context.get(context, Limits.Permits)
  const pool = permits === undefined
    ? new Pool(settings.maxConcurrency ?? Settings.widest())
    : poolOf(permits)
  const now = Context.get(context, Clock.Clock).currentTimeMillisUnsafe()
  const deadline = Deadline.resolve(settings.deadline, Context.get(context, Limits.Deadline), now)
  const parent = Context.get(context, Limits.ParentCancellation)
  const isTooLate = holding?.until !== undefined && holding.until <= now
  const isStoppable = (cancel ?? parent ?? deadline) !== undefined || isTooLate
  const cancellation = isStoppable ? new Cancellation.Cancellation() : undefined
  if (isTooLate) cancellation?.request("interrupt")
  const around = Context.get(context, Limits.CurrentSpending)
  const spending = new Spending(around)
  const ambient: Ambient = { pool, deadline, cancellation, spending, found: undefined }
  if (holding === undefined && cancellation === undefined && around === undefined) return Effect.succeed(ambient)
  const lent = holding === undefined ? Effect.void : holding.lend(scope)
  const watched = cancellation === undefined
    ? Effect.void
    : watch(cancellation, { parent, deadline, cancel: cancel ?? undefined }, scope)
  return Effect.as(Effect.andThen(Effect.andThen(spending.enter(scope), lent), watched), ambient)
}

/** What may stop a run softly. */
interface Stops<R> {
  readonly parent: Cancellation.Cancellation | undefined
  readonly deadline: Deadline.Deadline | undefined
  readonly cancel: Cancellation.Source<R> | undefined
}

/** Lets all that may stop a run request it, until the scope closes. */
export const watch = <R>(
  cancellation: Cancellation.Cancellation,
  { cancel, deadline, parent }: Stops<R>,
  scope: Scope.Scope
): Effect.Effect<void> =>
  Effect.gen(function*() {
    if (parent !== undefined) yield* Cancellation.follow(parent, cancellation, scope)
    if (deadline !== undefined) yield* Cancellation.expire(deadline.at, Deadline.cause, cancellation, scope)
    if (cancel instanceof AbortSignal) yield* Cancellation.listen(cancel, cancellation, scope)
  })

/**
 * From now on the run learns of a soft stop, and of the effect that asks for one. What that effect runs in is the run's: it
 * is to be listened to when the scope is known to stop what is the run's.
 */
export const listen = <R>(
  running: Running,
  { cancellation }: Pick<Ambient, "cancellation">,
  cancel: Cancellation.Source<R> | null | undefined,
  id: string
): void => {
  if (cancellation === undefined) return
  cancellation.onRequest(() => running.softly())
  if (!Effect.isEffect(cancel)) return
  new Worker(running, { kind: "cancel", id, name: "cancel", onSoftStop: "grace", once: true })
    .start(cancel, Now.services(), (exit) => Exit.isSuccess(exit) ? cancellation.request() : undefined)
}

/** The services of handlers. They have until a last answer of the model has to begin. */
export const forHandlers = <R>(services: Context.Context<R>, ambient: Ambient): Context.Context<R> => {
  const { cancellation, deadline, pool, spending } = ambient
  let context = Context.add(Context.add(services, Limits.Permits, pool.semaphore), Limits.CurrentSpending, spending)
  if (deadline !== undefined) context = Context.add(context, Limits.Deadline, deadline.toolsUntil)
  if (cancellation !== undefined) context = Context.add(context, Limits.ParentCancellation, cancellation)
  return context as Context.Context<R>
}
