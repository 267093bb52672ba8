/**
 * The things that a whole tree of runs has to share: permits, a deadline, permits by name. They are Context references,
 * so that a run which a handler starts inherits them through the handler's fiber, and no caller passes them along. A
 * handler that waits for a run it started holds no permit, so that a tree never waits for itself.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import type * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Semaphore from "effect/Semaphore"
import type * as Budget from "./Budget.ts"
import * as Settings from "./internal/ask/options.ts"
import { checkNames, type NamesOf } from "./internal/declare/schema.ts"
import * as Values from "./internal/declare/values.ts"
import * as Rules from "./internal/loop/rules.ts"
import { KeyedPermits } from "./internal/permits/permits.ts"
import * as Inherited from "./internal/stop/inherited.ts"

/**
 * The number of handlers that may run at once, over all runs that inherit it. Without one, the outermost run makes its
 * own, of its `maxConcurrency`.
 *
 * @category references
 * @since 0.1.0
 */
export const Permits: Context.Reference<Semaphore.Semaphore | undefined> = Inherited.Permits

/**
 * The time of the clock, in milliseconds since 1970, at which what runs here is stopped. A handler reads what
 * is left of its run's deadline, without what is kept for a last answer of the model.
 *
 * @category references
 * @since 0.1.0
 */
export const CurrentDeadline: Context.Reference<number | undefined> = Inherited.CurrentDeadline

export type { DeadlineInput } from "./internal/ask/options.ts"

/**
 * A set of keys with permits. {@link layer} makes one.
 *
 * @category models
 * @since 0.1.0
 */
export interface Keyed {
  /** The number of keys that have permits which are held or waited for. */
  readonly size: number
}

/**
 * The permits by key that `Tool.Options.limits` uses. Without a layer there is one set of keys for the process.
 *
 * @category references
 * @since 0.1.0
 */
export const Keyed: Context.Reference<Keyed> = Inherited.Keyed as unknown as Context.Reference<Keyed>

/**
 * The time that is left until {@link CurrentDeadline}: `Duration.infinity` without one, zero once it has passed.
 *
 * **Example** (What a handler has left)
 *
 * ```ts import.meta.vitest
 * import { Limits } from "heddle"
 * import * as Duration from "effect/Duration"
 * import * as Effect from "effect/Effect"
 *
 * const left = await Effect.runPromise(Limits.remaining)
 *
 * Duration.isFinite(left) // => false
 * ```
 *
 * @category getters
 * @since 0.1.0
 */
export const remaining: Effect.Effect<Duration.Duration> = Effect.flatMap(
  CurrentDeadline,
  (deadline) =>
    deadline === undefined
      ? Effect.succeed(Duration.infinity)
      : Effect.map(Clock.currentTimeMillis, (now) => Duration.millis(Math.max(0, deadline - now)))
)

/**
 * The limits that all runs below a layer share.
 *
 * @category options
 * @since 0.1.0
 */
export interface Options {
  /**
   * The number of handlers that run at once, over all of these runs. A number that is no positive integer is a defect.
   * The bound of each run by default.
   */
  readonly permits?: number | undefined
  /**
   * The budget of all of these runs together: one account, while the layer lives. A run that it does not suffice for
   * ends (`RuleEnded` with the rule `budget`). No bound by default.
   */
  readonly budget?: Budget.Budget | undefined
  /** The time for all of these runs together, from the building of the layer on. No bound by default. */
  readonly deadline?: Duration.Input | undefined
}

const optionNames = {
  permits: Values.count,
  budget: Settings.budgetKind,
  deadline: Values.duration
} satisfies NamesOf<Options>

/**
 * Limits that all runs below this layer share. With `permits`, these runs have keyed permits of their own, too.
 *
 * **Example** (Eight handlers at once, whatever runs)
 *
 * ```ts import.meta.vitest
 * import { Limits } from "heddle"
 * import * as Layer from "effect/Layer"
 *
 * Layer.isLayer(Limits.layer({ permits: 8 })) // => true
 * ```
 *
 * @category layers
 * @since 0.1.0
 */
export const layer = (options: Options): Layer.Layer<never> => {
  checkNames("Limits.layer", options, optionNames)
  const { budget, deadline, permits } = options
  const limits: Array<Layer.Layer<never>> = []
  if (permits !== undefined) {
    limits.push(
      Layer.sync(Permits, () => Semaphore.makeUnsafe(permits)),
      Layer.sync(Inherited.Keyed, () => new KeyedPermits())
    )
  }
  if (budget !== undefined) {
    limits.push(Layer.effectContext(Effect.map(Rules.CurrentBudget, (around) => budget.open(around).services)))
  }
  if (deadline !== undefined) {
    const millis = Duration.toMillis(Duration.fromInputUnsafe(deadline))
    limits.push(Layer.effect(
      CurrentDeadline,
      Effect.map(
        Effect.zip(Clock.currentTimeMillis, CurrentDeadline),
        ([now, around = Infinity]) => Math.min(now + millis, around)
      )
    ))
  }
  if (limits.length === 0) throw new TypeError("Limits.layer: give at least one of permits, budget and deadline")
  return limits.reduce((all, one) => Layer.merge(all, one), Layer.empty)
}
