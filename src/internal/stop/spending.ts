/**
 * What a run and the runs within its handlers have used, together. A run that has ended leaves its sum to the run around
 * it; of one that is still alive, because its handler was abandoned, what it has used by now counts.
 */
import * as Effect from "effect/Effect"
import * as Scope from "effect/Scope"
import * as Response from "../../Response.ts"

/** Where the usage of a run is found: that of its steps, of replies that broke and were asked for again, and of the one it is in. */
export interface Used {
  readonly steps: ReadonlyArray<{ readonly response: Response.Response }>
  readonly spent: Response.Usage | null
  readonly usage: Response.Usage | null
}

export class Spending {
  private readonly around: Spending | undefined
  /** Whether the runs directly within it are parts of one operation, which they all report. */
  private readonly isOperation: boolean
  private used: Used | undefined
  private ended: Response.Usage | null = null
  private alive: Set<Spending> | undefined

  constructor(around: Spending | undefined, isOperation = false) {
    this.around = around
    this.isOperation = isOperation
  }

  /** From now on the usage of the run itself is read from here. */
  of(used: Used): void {
    this.used = used
  }

  /** What the runs within it have used. */
  private get within(): Response.Usage | null {
    const alive = this.alive === undefined ? [] : Array.from(this.alive, (spending) => spending.total)
    return Response.sumUsage([this.ended, ...alive])
  }

  private get own(): Response.Usage | null {
    return this.used === undefined ? null : Response.sumUsage(usages(this.used))
  }

  /** What it has used itself, and all runs within it, at any depth. */
  get total(): Response.Usage | null {
    return Response.sumUsage([this.own, this.within])
  }

  /** What the operation has used that this run is a part of, which may be itself alone. */
  get reported(): Response.Usage | null {
    return this.around?.isOperation === true ? this.around.total : this.total
  }

  /** Counts it in what is around it. Its sum is left there when the scope closes. */
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

/** Of a run of many steps no list of them is made. */
function* usages({ spent, steps, usage }: Used): Generator<Response.Usage | null> {
  for (const { response } of steps) yield response.usage
  yield spent
  yield usage
}
