/**
 * Tools handed over call by call while a model still speaks, for callers that drive a model of their own. It is a thin
 * front on the runner of `Chat`, under `Policy.falai`: shared calls overlap, others run alone, first come, first served;
 * every call has one result, and results come in the order of the calls. Nothing outlives the scope it is made in.
 *
 * @since 0.1.0
 */
import * as Cause from "effect/Cause"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Pull from "effect/Pull"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import * as Stream from "effect/Stream"
import * as Settings from "./internal/ask/options.ts"
import * as Plan from "./internal/decide/plan.ts"
import * as Fold from "./internal/fold/state.ts"
import * as Updates from "./internal/fold/updates.ts"
import type { Batch } from "./internal/run/batch.ts"
import * as Open from "./internal/run/open.ts"
import type * as Cancellation from "./internal/stop/cancellation.ts"
import type * as Limits from "./Limits.ts"
import type * as Message from "./Message.ts"
import * as Policy from "./Policy.ts"
import type * as Tool from "./Tool.ts"

/**
 * How calls are run.
 *
 * - `maxParallel` (10): handlers at once, whatever their class.
 * - `signal`: an `AbortSignal`, or an effect that succeeds: handlers that may be interrupted are, those that block
 *   finish, and calls that wait or come up later get a cancelled result.
 * - `context`: what handlers get as `call.context`, the same for all of them.
 * - `policy`: `Policy.falai`. The results come in request order under every policy.
 * - `toolTimeout` (30 s), `grace` (5 s), `deadline`, `requestId`, `sessionId`: as in `ToolRunner.Options`.
 *
 * What is not given here is taken from `Policy.Defaults`, except for the policy.
 *
 * @category models
 * @since 0.1.0
 */
export interface Options<R = never> {
  readonly maxParallel?: number
  readonly signal?: Cancellation.Source<R>
  readonly context?: Readonly<Record<string, unknown>>
  readonly policy?: Policy.Policy
  readonly toolTimeout?: Duration.Input | "infinity"
  readonly grace?: Duration.Input | "infinity"
  readonly deadline?: Limits.DeadlineInput
  readonly requestId?: string
  readonly sessionId?: string
}

/**
 * What a call came to. `content` is the text for the model, `metadata.toolId` the name of its tool; `metadata.cancelled`
 * and `metadata.gate` say why it was not run to its end, or not let run.
 *
 * @category models
 * @since 0.1.0
 */
export type Result = Updates.Result

/**
 * Something to tell about a call: its progress, or its one result, with what its handler added to the context.
 *
 * @category models
 * @since 0.1.0
 */
export type Update = Updates.Update

/**
 * An executor.
 *
 * - `addTool`: takes a call and starts it as soon as it may run; without a tool, where the call names none that exists, it
 *   is answered as `unknown_tool`. A call is dropped once the executor was discarded or its scope has closed.
 * - `completedResults`: what there is to tell now, without waiting. Nothing is told twice, here or below.
 * - `remainingResults`: everything that is still to be told, as it comes. It ends after `noMoreCalls`, `discard` or the
 *   signal, when every call has its result, and when the scope closes.
 * - `noMoreCalls`: no further call comes up.
 * - `discard`: stops as the signal does, and ends the results.
 * - `updatedContext`: the initial context with what completed calls added to it, in the order of the calls.
 * - `hasUnfinishedTools`: whether a call waits or runs.
 *
 * @category models
 * @since 0.1.0
 */
export interface StreamingToolExecutor<R = never> {
  readonly addTool: (
    call: Message.ToolCall,
    tool: Tool.Tool<string, any, any, any, R> | undefined
  ) => Effect.Effect<void>
  readonly completedResults: Effect.Effect<ReadonlyArray<Update>>
  readonly remainingResults: Stream.Stream<Update>
  readonly noMoreCalls: Effect.Effect<void>
  readonly discard: Effect.Effect<void>
  readonly updatedContext: Effect.Effect<Readonly<Record<string, unknown>>>
  readonly hasUnfinishedTools: Effect.Effect<boolean>
}

/** The batch behind an executor, and what has been read of it. */
class Executor<R> implements StreamingToolExecutor<R> {
  private readonly batch: Batch<never>
  private readonly settings: Settings.Settings<never, R>
  private readonly isStopped: () => boolean
  /** Readers take turns: each update goes to one of them. */
  private readonly turn = Semaphore.makeUnsafe(1)
  private readonly reading = new Updates.Reading()
  /** What was read and not told, because its reader left. */
  private untold: Array<Update> = []
  private calls = 0
  private phase: "open" | "sealed" | "discarded" = "open"

  constructor(batch: Batch<never>, settings: Settings.Settings<never, R>, isStopped: () => boolean) {
    this.batch = batch
    this.settings = settings
    this.isStopped = isStopped
  }

  readonly addTool: StreamingToolExecutor<R>["addTool"] = (call, tool) =>
    Effect.suspend(() => {
      if (this.phase === "discarded") return Effect.void
      if (this.phase === "sealed") {
        return Effect.die(new Error("addTool: the executor was told that there are no more calls"))
      }
      const whole = { ...call, arguments: call.arguments ?? {}, metadata: call.metadata ?? {} }
      const index = this.calls++
      const job = tool === undefined
        ? Plan.unknown(index, whole)
        : Plan.planned(index, whole, new Map([[call.name, tool]]), this.settings.policy)
      this.batch.add([job])
      return Effect.void
    })

  readonly completedResults: StreamingToolExecutor<R>["completedResults"] = Effect.sync(() => {
    const updates = [...this.untold, ...this.reading.read(this.batch.takeNow())]
    this.untold = []
    return updates
  })

  /** One update after the other, so that a reader who leaves takes no other with him. */
  private readonly next: Pull.Pull<readonly [Update]> = Effect.suspend(() => {
    const update = this.untold.shift()
    if (update !== undefined) return Effect.succeed([update])
    if (this.batch.isEmpty && this.isAtEnd) return Cause.done()
    return Effect.flatMap(this.batch.take, (events) => {
      this.untold.push(...this.reading.read(events))
      return this.next
    })
  })

  private get isAtEnd(): boolean {
    return this.batch.isOver || this.batch.isSettled || (this.isStopped() && !this.batch.isBusy)
  }

  readonly remainingResults: StreamingToolExecutor<R>["remainingResults"] = Stream.fromPull(
    Effect.sync(() => this.turn.withPermit(this.next))
  )

  readonly noMoreCalls: StreamingToolExecutor<R>["noMoreCalls"] = Effect.sync(() => this.end("sealed"))

  readonly discard: StreamingToolExecutor<R>["discard"] = Effect.sync(() => {
    this.batch.cancel("the executor was discarded")
    this.end("discarded")
  })

  private end(phase: "sealed" | "discarded"): void {
    if (this.phase === "open") this.batch.seal()
    if (this.phase !== "discarded") this.phase = phase
  }

  readonly updatedContext: StreamingToolExecutor<R>["updatedContext"] = Effect.sync(() => ({
    ...this.settings.context,
    ...Fold.mergeUpdates(this.batch.answers.map((answer) => answer.contextUpdate))
  }))

  readonly hasUnfinishedTools: StreamingToolExecutor<R>["hasUnfinishedTools"] = Effect.sync(() =>
    this.batch.isBusy && !this.batch.isOver
  )
}

/**
 * An executor that lives as long as the scope: when it closes, handlers are stopped within the grace period. Throws for
 * an option that cannot be used, and names it. Tools may need what `R` says, which is taken from here.
 *
 * **Example** (Two calls, the second behind the first)
 *
 * ```ts import.meta.vitest
 * import { Message, StreamingToolExecutor, Tool } from "heddle"
 * import * as Effect from "effect/Effect"
 * import * as Schema from "effect/Schema"
 * import * as Stream from "effect/Stream"
 *
 * const double = Tool.make("double", { parameters: { n: Schema.Finite }, handler: ({ n }) => Effect.succeed(n * 2) })
 * const program = Effect.gen(function*() {
 *   const executor = yield* StreamingToolExecutor.make()
 *   yield* executor.addTool(Message.toolCall("a", "double", { n: 1 }), double)
 *   yield* executor.addTool(Message.toolCall("b", "double", { n: 2 }), double)
 *   yield* executor.noMoreCalls
 *   return yield* Stream.runCollect(executor.remainingResults)
 * })
 * const updates = await Effect.runPromise(Effect.scoped(program))
 *
 * updates.map((update) => update.result?.data) // => [2, 4]
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const make = <R = never>(
  options: Options<R> = {}
): Effect.Effect<StreamingToolExecutor<R>, never, Scope.Scope | R> =>
  Effect.gen(function*() {
    const scope = yield* Effect.scope
    const { maxParallel, policy = Policy.falai, signal, ...rest } = options
    const given = maxParallel === undefined
      ? {}
      : { maxConcurrency: Settings.positiveInteger("maxParallel", maxParallel) }
    const settings = Settings.resolve<never, R>(
      { ...rest, ...given, policy: { ...policy, resultOrder: "request", toolEvents: "live" } },
      yield* Policy.Defaults,
      Policy.falai,
      Settings.mintRequestId(yield* Effect.context<never>())
    )
    const { ambient, batch } = yield* Open.scoped<never, R>(Infinity, settings, { cancel: signal }, scope)
    batch.begin()
    return new Executor(batch, settings, () => ambient.cancellation?.isRequested === true)
  })
