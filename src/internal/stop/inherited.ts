/**
 * Everything a run passes to runs started by its handlers: the tree's permits, the deadline, the soft stop, and usage
 * accounting. Context references in the handler's fiber carry it, so callers pass nothing along. While a nested run is
 * alive, the enclosing handler holds no permit. A run started by an abandoned handler does nothing.
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import type * as Encoder from "../../Encoder.ts"
import type * as Executor from "../../Executor.ts"
import * as Settings from "../ask/options.ts"
import { KeyedPermits } from "../permits/permits.ts"
import type * as Telemetry from "../telemetry.ts"
import * as Cancellation from "./cancellation.ts"
import * as Deadline from "./deadline.ts"
import { CurrentHandler, type Running, Worker } from "./ownedFibers.ts"
import * as Spendings from "./spending.ts"

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

/** Soft stop of the run whose handler this code runs in. */
export const ParentCancellation: Context.Reference<Cancellation.Cancellation | undefined> = Context.Reference<
  Cancellation.Cancellation | undefined
>("heddle/internal/ParentCancellation", { defaultValue: () => undefined })

/** Holds a handle's run: the first run entered. Its handlers may start others. */
export class Hold {
  running: Running | undefined
  private readonly onEntered: () => void

  constructor(onEntered: () => void) {
    this.onEntered = onEntered
  }

  take(running: Running): void {
    if (this.running !== undefined) return
    this.running = running
    this.onEntered()
  }
}

/** Public through `Chat.start`. */
export const CurrentHold: Context.Reference<Hold | undefined> = Context.Reference<Hold | undefined>(
  "heddle/internal/Hold",
  { defaultValue: () => undefined }
)

export interface Ambient {
  /** Permits of the tree. */
  readonly permits: Semaphore.Semaphore
  readonly deadline: Deadline.Deadline | undefined
  /** The run's soft stop. `undefined` if nothing can request a stop. */
  readonly cancellation: Cancellation.Cancellation | undefined
  readonly spending: Spendings.Spending
  readonly sessionId: string | null
  /** Services found by the last batch, mostly valid for the next step too. */
  found: Found | undefined
}

/** Services found by a run's batches in the context of its steps. */
export interface Found {
  /** Context they were found in. */
  readonly context: Context.Context<any>
  readonly executor: Executor.Service
  readonly encoder: Encoder.Service
  /** Services for handlers. */
  readonly services: Context.Context<any>
  readonly clock: Clock.Clock
  /** Services for call spans, if the run is observed. */
  readonly tracing: Telemetry.Tracing | undefined
}

/** Stops and usage account for an operation with a single run. */
export interface Given {
  /** Soft stop, with its sources already watched, and deadline. Left out if the run has its own. */
  readonly stops?: Pick<Ambient, "cancellation" | "deadline"> | undefined
  readonly spending?: Spendings.Spending
}

/**
 * Enters a run, which ends when the scope closes. The caller's finalizer, which stops the run's handlers, is added
 * later and so runs first: the handlers return their permits before the enclosing handler takes its own back.
 */
export const enter = <E, R>(
  running: Running,
  settings: Settings.Settings<E, R>,
  cancel: Settings.CancelSource<R> | undefined,
  scope: Scope.Scope,
  context: Context.Context<R>,
  { spending = new Spendings.Spending(Context.get(context, Spendings.CurrentSpending)), stops }: Given = {}
): Effect.Effect<Ambient> => {
  const handler = Context.get(context, CurrentHandler)
  const now = Context.get(context, Clock.Clock).currentTimeMillisUnsafe()
  const deadline = stops === undefined
    ? Deadline.resolve(settings.deadline, Context.get(context, CurrentDeadline), now)
    : stops.deadline
  const parent = Context.get(context, ParentCancellation)
  const isTooLate = handler?.permits.until !== undefined && handler.permits.until <= now
  const isStoppable = (cancel ?? parent ?? deadline) !== undefined || isTooLate
  const cancellation = stops?.cancellation ?? (isStoppable ? new Cancellation.Cancellation() : undefined)
  if (isTooLate) cancellation?.request("interrupt")
  const permits = Context.get(context, Permits) ??
    Semaphore.makeUnsafe(settings.maxConcurrency ?? Settings.widest())
  const entered = spending.enter(scope)
  const lent = handler === undefined ? entered : Effect.andThen(entered, handler.permits.lend(scope, running))
  const watched = cancellation === undefined || cancellation === stops?.cancellation
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
 * Passes soft stops on to the run from now on, and starts the caller's stopping effect. It runs in one of the run's
 * fibers, so the caller first makes sure that the scope stops those.
 */
export const listen = <R>(
  running: Running,
  { cancellation }: Pick<Ambient, "cancellation">,
  cancel: Settings.CancelSource<R> | undefined,
  id: string
): void => {
  if (cancellation === undefined) return
  cancellation.onRequest(() => running.stopSoftly())
  if (!Effect.isEffect(cancel)) return
  new Worker(running, { kind: "cancel", id, name: "cancel", onSoftStop: "grace", once: true })
    .start(cancel, running.services, (exit) => Exit.isSuccess(exit) ? cancellation.request() : undefined)
}

/** Returns the services for handlers. Their deadline is the time the run's tools are stopped. */
export const forHandlers = <R>(services: Context.Context<R>, ambient: Ambient): Context.Context<R> => {
  const { cancellation, deadline, permits, sessionId, spending } = ambient
  let context = Context.add(Context.add(services, Permits, permits), Spendings.CurrentSpending, spending)
  if (sessionId !== null) context = Context.add(context, Settings.CurrentSessionId, sessionId)
  if (deadline !== undefined) context = Context.add(context, CurrentDeadline, deadline.toolsUntil)
  if (cancellation !== undefined) context = Context.add(context, ParentCancellation, cancellation)
  return context as Context.Context<R>
}
