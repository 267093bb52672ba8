/**
 * Limits shared by a whole tree of runs: permits, a deadline, and permits by name. They are Context references: a run
 * started by a handler inherits them through the handler's fiber, and no caller passes them along. A handler waiting
 * for a nested run holds no permit, so a tree never waits for itself.
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
 * Maximum number of concurrent handlers, over all inheriting runs. Without a value, the outermost run makes its own
 * permits, as many as its `maxConcurrency`.
 *
 * @category references
 */
export const Permits: Context.Reference<Semaphore.Semaphore | undefined> = Inherited.Permits

/**
 * Clock time, in milliseconds since 1970, at which running work is stopped. A handler reads its run's deadline, less
 * the reserve for a last answer from the model.
 *
 * @category references
 */
export const CurrentDeadline: Context.Reference<number | undefined> = Inherited.CurrentDeadline

export type { DeadlineInput } from "./internal/ask/options.ts"

/**
 * A set of keys with permits, made by {@link layer}.
 *
 * @category models
 */
export interface Keyed {
  /** Number of keys whose permits are held or awaited. */
  readonly size: number
}

/**
 * Keyed permits used by `Tool.Options.limits`. Without a layer, the process has a single set of keys.
 *
 * @category references
 */
export const Keyed: Context.Reference<Keyed> = Inherited.Keyed as unknown as Context.Reference<Keyed>

/**
 * Time left until {@link CurrentDeadline}: `Duration.infinity` without a deadline, zero after it has passed.
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
 */
export const remaining: Effect.Effect<Duration.Duration> = Effect.flatMap(
  CurrentDeadline,
  (deadline) =>
    deadline === undefined
      ? Effect.succeed(Duration.infinity)
      : Effect.map(Clock.currentTimeMillis, (now) => Duration.millis(Math.max(0, deadline - now)))
)

/**
 * Limits shared by all runs below a layer.
 *
 * @category options
 */
export interface Options {
  /**
   * Maximum number of concurrent handlers, over all these runs. Anything but a positive integer is a defect. By default
   * each outermost run has its own limit.
   */
  readonly permits?: number | undefined
  /**
   * Joint budget for all these runs: one account, as long as the layer lives. A run exceeding it ends (`RuleEnded` with
   * the rule `budget`). Unbounded by default.
   */
  readonly budget?: Budget.Budget | undefined
  /** Joint time limit for all these runs, starting when the layer is built. Unbounded by default. */
  readonly deadline?: Duration.Input | undefined
}

const optionNames = {
  permits: Values.count,
  budget: Settings.budgetKind,
  deadline: Values.duration
} satisfies NamesOf<Options>

/**
 * Provides limits shared by all runs below this layer. With `permits`, these runs also get their own keyed permits.
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
