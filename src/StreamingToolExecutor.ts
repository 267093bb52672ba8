/**
 * Runs tool calls while a reply is still streaming, for callers driving their own model. It is a thin front on `Chat`'s
 * runner, under `Policy.falai`: shared calls overlap, others run alone, first come, first served; every call has one
 * result, and results come in call order. Nothing outlives the scope of its creation.
 */
import * as Cause from "effect/Cause"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Pull from "effect/Pull"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import * as Stream from "effect/Stream"
import type * as Event from "./Event.ts"
import { described } from "./internal/answer/errorFields.ts"
import * as Settings from "./internal/ask/options.ts"
import * as Plan from "./internal/decide/plan.ts"
import { isCrash, reasonText, ToolError } from "./internal/declare/outcome.ts"
import { checkNames, type NamesOf } from "./internal/declare/schema.ts"
import * as Values from "./internal/declare/values.ts"
import * as Fold from "./internal/fold/fold.ts"
import * as Json from "./internal/json.ts"
import * as Batches from "./internal/run/batch.ts"
import type * as Limits from "./Limits.ts"
import type * as Message from "./Message.ts"
import * as Policy from "./Policy.ts"
import type * as Tool from "./Tool.ts"

/**
 * Options of calls. Missing options come from `Policy.Defaults`, except for the policy.
 *
 * @category models
 */
export interface Options<R = never> {
  /** Maximum number of concurrent handlers. By default the policy's: 10 under `Policy.falai`. */
  readonly maxParallel?: number
  /**
   * An `AbortSignal`, or an effect, signalling by its success. Interruptible handlers are then interrupted, handlers
   * blocking interruption finish, and waiting or later calls are answered as cancelled. None by default.
   */
  readonly signal?: Settings.CancelSource<R>
  /** Value for all handlers to read as `call.context`. `{}` by default. */
  readonly context?: Readonly<Record<string, unknown>>
  /** Policy for the calls. `Policy.falai` by default. Results come in request order under every policy. */
  readonly policy?: Policy.Policy
  /**
   * Maximum duration of a call, from the start of its handler; a number is milliseconds, `"infinity"` means unlimited,
   * and `{ total, idle }` also limits the time without progress. 30 seconds by default.
   */
  readonly toolTimeout?: Tool.TimeoutInput
  /** Maximum time for stopped code to stop before it is abandoned; a number is milliseconds. 5 seconds by default. */
  readonly grace?: Duration.Input | "infinity"
  /** Time limit for the executor's tools, as in `ToolRunner.Options`. None by default. */
  readonly deadline?: Limits.DeadlineInput
  /** Id for handlers and spans. A new id by default. */
  readonly requestId?: string
  /** Id for handlers to read as `call.sessionId`. `null` by default. */
  readonly sessionId?: string
}

/**
 * Result of a call.
 *
 * @category models
 */
export interface Result {
  /** `true` if the handler produced a value. */
  readonly success: boolean
  /** Value, before encoding. Absent without a value. */
  readonly data?: unknown
  /** Error text. Absent without an error. */
  readonly error?: string
  /** Content for the model. */
  readonly content: Message.Content
  /** Further facts about the call. */
  readonly metadata: Readonly<Record<string, unknown>> & {
    /** Tool name. */
    readonly toolId: string
    /** `true` if the call did not run to its end. */
    readonly cancelled?: boolean
    /** Gate refusing the call: `validate` or `authorize`. */
    readonly gate?: string
    /** `true` if `content` was cut to the result limit. */
    readonly truncated?: boolean
    /** Length of the complete text in characters (UTF-16 code units), if `content` was cut. */
    readonly originalLength?: number
  }
}

/**
 * A call update: progress, or the call's only result, with the handler's additions to the context.
 *
 * @category models
 */
export interface Update {
  /** Call id. */
  readonly toolCallId: string
  /** Progress reported by the handler. Absent in a result. */
  readonly progress?: unknown
  /** The call's only result. Absent in progress. */
  readonly result?: Result
  /** Values added to the context by the handler. Absent without such values. */
  readonly contextUpdate?: Readonly<Record<string, unknown>>
}

/**
 * An executor.
 *
 * @category models
 */
export interface StreamingToolExecutor<R = never> {
  /**
   * Takes a call and starts it as soon as permitted. Without a tool, for a call to an unknown tool, the call is
   * answered as `unknown_tool`. After `discard`, or after the scope has closed, the call is dropped; after
   * `noMoreCalls` it is a defect.
   */
  readonly addTool: (
    call: Message.ToolCall,
    tool: Tool.Tool<string, any, any, any, R> | undefined
  ) => Effect.Effect<void>
  /** Returns the updates available now, without waiting. Nothing is reported twice, here or by `remainingResults`. */
  readonly completedResults: Effect.Effect<ReadonlyArray<Update>>
  /**
   * Emits the results not yet reported, as they arrive. The stream ends after `noMoreCalls`, `discard` or the signal,
   * once every call has its result, and when the scope closes.
   */
  readonly remainingResults: Stream.Stream<Update>
  /** Declares that no further call comes. */
  readonly noMoreCalls: Effect.Effect<void>
  /** Stops calls like the signal, and ends the results. */
  readonly discard: Effect.Effect<void>
  /** Returns the initial context with the additions from completed calls, in call order. */
  readonly updatedContext: Effect.Effect<Readonly<Record<string, unknown>>>
  /** `true` if a call waits or runs. */
  readonly hasUnfinishedTools: Effect.Effect<boolean>
}

const knownOptions = {
  maxParallel: Values.count,
  signal: Settings.cancelSource,
  context: Values.record,
  policy: Settings.policyKind,
  toolTimeout: Values.timeout,
  grace: Values.duration,
  deadline: Settings.deadlineKind,
  requestId: Values.text,
  sessionId: Values.text
} satisfies NamesOf<Options>

type Completed = Event.Of<"ToolExecutionCompleted">

const errorText = (error: unknown): string => error instanceof ToolError ? reasonText(error) : described(error).text

const about = (error: unknown): Json.JsonObject => {
  if (!(error instanceof ToolError)) return {}
  if (error.reason === "cancelled") return { cancelled: true }
  if (error.reason === "abandoned") return { abandoned: true, ...(isCrash(error) ? {} : { cancelled: true }) }
  return error.metadata ?? {}
}

const value = (outcome: Tool.Outcome): unknown => {
  if (outcome._tag === "Ok") return outcome.value
  return outcome._tag === "Halt" ? outcome.result : outcome
}

const toResult = ({ name, result: outcome }: Completed, { content, originalLength }: End): Result => ({
  ...(outcome._tag === "Error"
    ? { success: false, error: errorText(outcome.error) }
    : { success: true, data: value(outcome) }),
  content,
  metadata: {
    ...(outcome._tag === "Error" ? about(outcome.error) : {}),
    ...(originalLength === undefined ? {} : { truncated: true, originalLength }),
    toolId: name
  }
})

/** Text ending a call: with its original length, if cut. For a question, the question itself. */
interface End {
  readonly content: Message.Content
  readonly originalLength?: number
}

const end = (event: Event.Event): End | undefined => {
  switch (event._tag) {
    case "ToolResultEncoded":
      return event
    case "AskUserRequested":
      return { content: event.question }
    case "ToolHalt":
      return { content: event.content ?? Json.render(event.result) }
    default:
      return undefined
  }
}

/** Reads tool events as updates. A call's outcome comes right before its text for the model. */
class Reading {
  private completed: Completed | undefined

  read(events: ReadonlyArray<Event.Event>): ReadonlyArray<Update> {
    return events.flatMap((event) => this.update(event))
  }

  private update(event: Event.Event): ReadonlyArray<Update> {
    if (event._tag === "ToolProgress") return [{ toolCallId: event.id, progress: event.progress }]
    if (event._tag === "ToolExecutionCompleted") this.completed = event
    const { completed } = this
    const ending = end(event)
    if (completed === undefined || ending === undefined) return []
    const { contextUpdate } = completed
    const result = toResult(completed, ending)
    return [{ toolCallId: completed.id, result, ...(contextUpdate === undefined ? {} : { contextUpdate }) }]
  }
}

/** The batch behind an executor, and the updates read so far. */
class Executor<R> implements StreamingToolExecutor<R> {
  private readonly batch: Batches.Batch<never>
  private readonly settings: Settings.Settings<never, R>
  private readonly isStopped: () => boolean
  /** Readers take turns: each update goes to a single reader. */
  private readonly turn = Semaphore.makeUnsafe(1)
  private readonly reading = new Reading()
  /** Updates taken from the batch but not handed out, because their reader left. */
  private pending: Array<Update> = []
  private calls = 0
  private phase: "open" | "sealed" | "discarded" = "open"

  constructor(batch: Batches.Batch<never>, settings: Settings.Settings<never, R>, isStopped: () => boolean) {
    this.batch = batch
    this.settings = settings
    this.isStopped = isStopped
  }

  readonly addTool: StreamingToolExecutor<R>["addTool"] = (call, tool) =>
    Effect.suspend(() => {
      if (this.phase === "discarded") return Effect.void
      if (this.phase === "sealed") {
        return Effect.die(new Error("addTool was called after noMoreCalls: add every call before"))
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
    const updates = [...this.pending, ...this.reading.read(this.batch.takeNow())]
    this.pending = []
    return updates
  })

  /** Takes one update at a time, so that a leaving reader consumes no other update. */
  private readonly next: Pull.Pull<readonly [Update]> = Effect.suspend(() => {
    const update = this.pending.shift()
    if (update !== undefined) return Effect.succeed([update])
    if (this.batch.isEmpty && this.isAtEnd) return Cause.done()
    return Effect.flatMap(this.batch.take, (events) => {
      this.pending.push(...this.reading.read(events))
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
 * Makes an executor for the scope's lifetime: when the scope closes, handlers are stopped within the grace period. Dies
 * for an invalid option, naming the option. The tools' services `R` come from this effect's context.
 *
 * **Example** (Two calls, one after the other)
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
 */
export const make = <R = never>(
  options: Options<R> = {}
): Effect.Effect<StreamingToolExecutor<R>, never, Scope.Scope | R> =>
  Effect.gen(function*() {
    const scope = yield* Effect.scope
    checkNames("StreamingToolExecutor.make", options, knownOptions)
    const { maxParallel, policy = Policy.falai, signal, ...rest } = options
    Settings.checkCancel(signal, "signal")
    const given = maxParallel === undefined
      ? {}
      : { maxConcurrency: Settings.positiveInteger("maxParallel", maxParallel) }
    const settings = Settings.resolve<never, R>(
      { ...rest, ...given, policy: { ...policy, resultOrder: "request", toolEvents: "live" } },
      yield* Policy.Defaults,
      Policy.falai,
      yield* Effect.context<never>()
    )
    const { ambient, batch } = yield* Batches.scoped<never, R>(Infinity, settings, { cancel: signal }, scope)
    batch.begin()
    return new Executor(batch, settings, () => ambient.cancellation?.isRequested === true)
  })
