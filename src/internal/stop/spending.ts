/** Usage accounting for a tree of runs. */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Scope from "effect/Scope"
import * as Response from "../../Response.ts"
import * as Accounts from "../permits/account.ts"

/** Usage of the run whose handler this code runs in. */
export const CurrentSpending: Context.Reference<Spending | undefined> = Context.Reference<Spending | undefined>(
  "heddle/internal/Spending",
  { defaultValue: () => undefined }
)

/** A run's own usage: its steps, broken replies that were requested again, and the current step. */
export interface Used {
  readonly steps: ReadonlyArray<{ readonly response: Response.Response }>
  readonly spent: Response.Usage | null
  readonly usage: Response.Usage | null
}

/**
 * Tracks a run's usage together with its nested runs'. An ended run leaves its sum to the enclosing run. A run still
 * alive after its handler was abandoned counts with its usage so far.
 */
export class Spending {
  private readonly around: Spending | undefined
  private used: Used | undefined
  private ended: Response.Usage | null = null
  private alive: Set<Spending> | undefined
  /** Cost of a recorded call's requests outside any journal: steps and classifications. */
  unkept: Accounts.Amount | undefined

  /** Keeps the cost of such requests where `unkept` is given: in a recorded call. */
  constructor(around: Spending | undefined, unkept?: Accounts.Amount) {
    this.around = around
    this.unkept = unkept
  }

  /** Counts a request without a journal in the nearest recorded call. */
  pay(amount: Accounts.Amount): void {
    if (this.unkept === undefined) this.around?.pay(amount)
    else this.unkept = Accounts.plus(this.unkept, amount)
  }

  /** Sets the source for the run's own usage. */
  of(used: Used): void {
    this.used = used
  }

  /** Usage of runs started by its handlers. */
  get nested(): Response.Usage | null {
    const alive = this.alive === undefined ? [] : Array.from(this.alive, (spending) => spending.total)
    return Response.sumUsage([this.ended, ...alive])
  }

  private get own(): Response.Usage | null {
    return this.used === undefined ? null : Response.sumUsage(usages(this.used))
  }

  /** Adds nested runs' usage from before a resumed run was interrupted. */
  takeUp(nested: Response.Usage): void {
    this.ended = Response.sumUsage([this.ended, nested])
  }

  /** Usage by the run itself and all runs within, at any depth. */
  get total(): Response.Usage | null {
    return Response.sumUsage([this.own, this.nested])
  }

  /** Counts this usage in the enclosing spending, which keeps the sum when the scope closes. */
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

/** Yields the parts of a usage one by one, so that a run with many steps makes no list. */
function* usages({ spent, steps, usage }: Used): Generator<Response.Usage | null> {
  for (const { response } of steps) yield response.usage
  yield spent
  yield usage
}
