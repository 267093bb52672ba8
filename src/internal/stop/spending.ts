/** The account of usage of a tree of runs. */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Scope from "effect/Scope"
import * as Response from "../../Response.ts"

/** The usage of the run whose handler this code runs in. */
export const CurrentSpending: Context.Reference<Spending | undefined> = Context.Reference<Spending | undefined>(
  "heddle/internal/Spending",
  { defaultValue: () => undefined }
)

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
  private used: Used | undefined
  private ended: Response.Usage | null = null
  private alive: Set<Spending> | undefined

  constructor(around: Spending | undefined) {
    this.around = around
  }

  /** Sets where the usage of the run itself is read from. */
  of(used: Used): void {
    this.used = used
  }

  /** Usage of the runs that its handlers started. */
  get nested(): Response.Usage | null {
    const alive = this.alive === undefined ? [] : Array.from(this.alive, (spending) => spending.total)
    return Response.sumUsage([this.ended, ...alive])
  }

  private get own(): Response.Usage | null {
    return this.used === undefined ? null : Response.sumUsage(usages(this.used))
  }

  /** Adds the usage of nested runs from before the interruption of a run that is resumed. */
  takeUp(nested: Response.Usage): void {
    this.ended = Response.sumUsage([this.ended, nested])
  }

  /** Usage of the run itself and of all runs within it, at any depth. */
  get total(): Response.Usage | null {
    return Response.sumUsage([this.own, this.nested])
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
