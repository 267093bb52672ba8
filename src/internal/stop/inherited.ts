/**
 * Inheritance from a run to the runs that its handlers start: the permits of the tree, the deadline, the soft stop, and
 * the account of usage. It travels as Context references in the handler's fiber, so that no caller passes it along.
 * While a nested run is alive, the handler around it holds no permit. A run that an abandoned handler starts does
 * nothing.
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import type * as Encoder from "../../Encoder.ts"
import type * as Executor from "../../Executor.ts"
import * as Response from "../../Response.ts"
import * as Settings from "../ask/options.ts"
import { KeyedPermits } from "../permits/permits.ts"
import * as Cancellation from "./cancellation.ts"
import * as Deadline from "./deadline.ts"
import { CurrentHandler, type Running, Worker } from "./ownedFibers.ts"

/** Public as `Limits.Permits`. */
export const Permits: Context.Reference<Semaphore.Semaphore | undefined> = Context.Reference<
  Semaphore.Semaphore | undefined
>("heddle/Limits/Permits", { defaultValue: () => undefined })

/** Public as `Limits.CurrentDeadline`. */
export const CurrentDeadline: Context.Reference<number | undefined> = Context.Reference<number | undefined>(
  "heddle/Limits/CurrentDeadline",
  { defaultValue: () => undefined }
)

/** Public as `Limits.Keyed`. */
export const Keyed: Context.Reference<KeyedPermits> = Context.Reference<KeyedPermits>("heddle/Limits/Keyed", {
  defaultValue: () => new KeyedPermits()
})

/** The soft stop of the run whose handler this code runs in. */
export const ParentCancellation: Context.Reference<Cancellation.Cancellation | undefined> = Context.Reference<
  Cancellation.Cancellation | undefined
>("heddle/internal/ParentCancellation", { defaultValue: () => undefined })

/** The usage of the run whose handler this code runs in. */
export const CurrentSpending: Context.Reference<Spending | undefined> = Context.Reference<Spending | undefined>(
  "heddle/internal/Spending",
  { defaultValue: () => undefined }
)

export interface Ambient {
  /** The permits of the tree. */
  readonly permits: Semaphore.Semaphore
  readonly deadline: Deadline.Deadline | undefined
  /** The soft stop of the run. `undefined` where nothing can request it. */
  readonly cancellation: Cancellation.Cancellation | undefined
  readonly spending: Spending
  readonly sessionId: string | null
  /** The services that the last batch found: those of one step are mostly those of the next. */
  found: Found | undefined
}

/** The services that the batches of a run find in the context of its steps. */
export interface Found {
  /** The context that they were found in. */
  readonly context: Context.Context<any>
  readonly executor: Executor.Service
  readonly encoder: Encoder.Service
  /** The services of handlers. */
  readonly services: Context.Context<any>
  readonly clock: Clock.Clock
  readonly isTraced: boolean
}

/**
 * Enters a run, which ends when the scope closes. The caller adds the finalizer that stops the run's handlers after
 * this one, so that they have returned their permits when the handler around the run takes its own back.
 */
export const enter = <E, R>(
  settings: Settings.Settings<E, R>,
  cancel: Settings.CancelSource<R> | null | undefined,
  scope: Scope.Scope,
  context: Context.Context<R>
): Effect.Effect<Ambient> => {
  const handler = Context.get(context, CurrentHandler)
  const now = Context.get(context, Clock.Clock).currentTimeMillisUnsafe()
  const deadline = Deadline.resolve(settings.deadline, Context.get(context, CurrentDeadline), now)
  const parent = Context.get(context, ParentCancellation)
  const isTooLate = handler?.permits.until !== undefined && handler.permits.until <= now
  const isStoppable = (cancel ?? parent ?? deadline) !== undefined || isTooLate
  const cancellation = isStoppable ? new Cancellation.Cancellation() : undefined
  if (isTooLate) cancellation?.request("interrupt")
  const spending = new Spending(Context.get(context, CurrentSpending))
  const permits = Context.get(context, Permits) ??
    Semaphore.makeUnsafe(settings.maxConcurrency ?? Settings.widest())
  const entered = spending.enter(scope)
  const lent = handler === undefined ? entered : Effect.andThen(entered, handler.permits.lend(scope))
  const watched = cancellation === undefined
    ? lent
    : Effect.andThen(lent, Cancellation.watch(cancellation, { parent, deadline, cancel: cancel ?? undefined }, scope))
  return Effect.mapEager(watched, () => ({
    permits,
    deadline,
    cancellation,
    spending,
    sessionId: settings.sessionId,
    found: undefined
  }))
}

/**
 * Passes a soft stop on to the run from now on, and starts the caller's effect that asks for one. That effect runs in a
 * fiber of the run: the caller first makes sure that the scope stops the fibers of the run.
 */
export const listen = <R>(
  running: Running,
  { cancellation }: Pick<Ambient, "cancellation">,
  cancel: Settings.CancelSource<R> | null | undefined,
  id: string
): void => {
  if (cancellation === undefined) return
  cancellation.onRequest(() => running.stopSoftly())
  if (!Effect.isEffect(cancel)) return
  new Worker(running, { kind: "cancel", id, name: "cancel", onSoftStop: "grace", once: true })
    .start(cancel, running.services, (exit) => Exit.isSuccess(exit) ? cancellation.request() : undefined)
}

/** Returns the services of handlers. Their deadline is the time at which the tools of the run are stopped. */
export const forHandlers = <R>(services: Context.Context<R>, ambient: Ambient): Context.Context<R> => {
  const { cancellation, deadline, permits, sessionId, spending } = ambient
  let context = Context.add(Context.add(services, Permits, permits), CurrentSpending, spending)
  if (sessionId !== null) context = Context.add(context, Settings.CurrentSessionId, sessionId)
  if (deadline !== undefined) context = Context.add(context, CurrentDeadline, deadline.toolsUntil)
  if (cancellation !== undefined) context = Context.add(context, ParentCancellation, cancellation)
  return context as Context.Context<R>
}

/**
 * The usage of a run itself: that of its steps, of replies that broke and were asked for again, and of the step in
 * progress.
 */
export interface Used {
  readonly steps: ReadonlyArray<{ readonly response: Response.Response }>
  readonly spent: Response.Usage | null
  readonly usage: Response.Usage | null
}

/**
 * Tracks the usage of a run together with that of its nested runs. A run that has ended leaves its sum to the run
 * around it. A run that is still alive, because its handler was abandoned, counts with its usage by now.
 */
export class Spending {
  private readonly around: Spending | undefined
  /** Tells whether the runs directly within it are parts of one operation, whose usage they all report. */
  private readonly isOperation: boolean
  private used: Used | undefined
  private ended: Response.Usage | null = null
  private alive: Set<Spending> | undefined

  constructor(around: Spending | undefined, isOperation = false) {
    this.around = around
    this.isOperation = isOperation
  }

  /** Sets where the usage of the run itself is read from. */
  of(used: Used): void {
    this.used = used
  }

  /** Usage of the runs that its handlers started. */
  private get ofNestedRuns(): Response.Usage | null {
    const alive = this.alive === undefined ? [] : Array.from(this.alive, (spending) => spending.total)
    return Response.sumUsage([this.ended, ...alive])
  }

  private get own(): Response.Usage | null {
    return this.used === undefined ? null : Response.sumUsage(usages(this.used))
  }

  /** Usage of the nested runs of an operation, and of those of the runs that the operation consists of. */
  get nested(): Response.Usage | null {
    const alive = this.alive === undefined ? [] : Array.from(this.alive, (spending) => spending.ofNestedRuns)
    return Response.sumUsage([this.ended, ...alive])
  }

  /** Adds the usage of nested runs from before the interruption of a run that is resumed. */
  takeUp(nested: Response.Usage): void {
    this.ended = Response.sumUsage([this.ended, nested])
  }

  /** Usage of the run itself and of all runs within it, at any depth. */
  get total(): Response.Usage | null {
    return Response.sumUsage([this.own, this.ofNestedRuns])
  }

  /** Usage of the operation that this run is a part of, or of the run if it is a part of none. */
  get reported(): Response.Usage | null {
    return this.around?.isOperation === true ? this.around.total : this.total
  }

  /** Counts it in the spending around it, which keeps its sum when the scope closes. */
  enter(scope: Scope.Scope): Effect.Effect<void> {
    const { around } = this
    if (around === undefined) return Effect.void
    around.alive ??= new Set()
    around.alive.add(this)
    return Scope.addFinalizer(scope, Effect.sync(() => around.left(this)))
  }

  private left(spending: Spending): void {
    if (this.alive?.delete(spending) !== true) return
    this.ended = Response.sumUsage([this.ended, spending.total])
  }
}

/** Yields the parts of a usage one by one, so that a run of many steps makes no list of them. */
function* usages({ spent, steps, usage }: Used): Generator<Response.Usage | null> {
  for (const { response } of steps) yield response.usage
  yield spent
  yield usage
}
