/**
 * Runs a turn's tool calls. Every call is answered exactly once, whatever happens to it. Handlers are fibers owned by
 * the run, bounded in number and in time. None is alive after the run has ended, unless reported as abandoned.
 */
import * as Effect from "effect/Effect"
import * as Pull from "effect/Pull"
import type * as Stream from "effect/Stream"
import type * as Event from "./Event.ts"
import type * as Settings from "./internal/ask/options.ts"
import * as Plan from "./internal/decide/plan.ts"
import type * as Declared from "./internal/declare/tool.ts"
import * as Fold from "./internal/fold/fold.ts"
import * as Pulled from "./internal/loop/scopedPull.ts"
import * as Batches from "./internal/run/batch.ts"
import type * as Message from "./Message.ts"
import type * as Policy from "./Policy.ts"
import type * as Tool from "./Tool.ts"

export type { OnToolError } from "./internal/declare/tool.ts"

export type { CancelSource } from "./internal/ask/options.ts"

/**
 * Options of calls.
 *
 * @category models
 */
export interface Options<E = never, R = never, Failure = unknown> extends Settings.RunnerOptions<E, R, Failure> {
  /** Step index for handlers. `0` by default. */
  readonly stepIndex?: number
  /**
   * Ids of calls permitted to run although their tools require an approval. Without its id here such a call does not
   * run, and appears in the result's `suspensions`.
   */
  readonly approved?: ReadonlyArray<string>
}

/**
 * Result of the calls.
 *
 * @category models
 */
export interface Result {
  /** Answers in call order. A call waiting for an approval, or suspended (`ToolSuspended`), has no answer. */
  readonly messages: ReadonlyArray<Message.Message>
  /** Halt by which a tool ended the run. Absent without a halt. */
  readonly halt?: Event.Halt
  /** Values added to the context by handlers, merged in call order. Absent without such values. */
  readonly contextUpdate?: Readonly<Record<string, unknown>>
  /** Waiting calls, in call order. Absent without such calls. */
  readonly suspensions?: ReadonlyArray<Event.Suspension>
  /** Handlers still running after the grace period. Absent if all stopped. */
  readonly abandoned?: ReadonlyArray<Event.Abandoned>
}

/**
 * A call as written by a provider or a caller.
 *
 * @category models
 */
export interface Call extends Omit<Message.ToolCall, "arguments" | "metadata"> {
  /** Parsed arguments. `{}` by default. */
  readonly arguments?: Message.ToolCall["arguments"] | null
  /** Data attached to the call by you. `{}` by default. */
  readonly metadata?: Message.ToolCall["metadata"]
}

type ServicesOf<Tools extends ReadonlyArray<Tool.Any>> = Tool.Services<Tools[number]>

const normalized = (call: Call): Message.ToolCall => ({
  ...call,
  arguments: call.arguments ?? {},
  metadata: call.metadata ?? {}
})

/**
 * Emits the events of a batch. Nothing starts before the first pull; from then on no handler waits for the reader.
 * Leaving the stream stops every handler. Under `unknownTool: "failTurn"` a call to an unknown tool emits one `Error`
 * event.
 *
 * **Example** (Events of one call)
 *
 * ```ts import.meta.vitest
 * import { Message, Tool, ToolRunner } from "heddle"
 * import * as Effect from "effect/Effect"
 * import * as Schema from "effect/Schema"
 * import * as Stream from "effect/Stream"
 *
 * const echo = Tool.make("echo", {
 *   parameters: { x: Schema.Finite },
 *   handler: (args) => Effect.succeed(args)
 * })
 * const events = await Effect.runPromise(
 *   Stream.runCollect(ToolRunner.stream([Message.toolCall("c0", "echo", { x: 1 })], [echo]))
 * )
 *
 * events.map((event) => event._tag)
 * // => ["ToolExecutionStarted", "ToolExecutionCompleted", "ToolResultEncoded"]
 * ```
 *
 * @category running
 */
export const stream = <const Tools extends ReadonlyArray<Tool.Any>, E = never, R = never>(
  calls: ReadonlyArray<Call>,
  tools: Tools,
  options: Options<E, R, Tool.Failure<Tools[number]>> = {}
): Stream.Stream<Event.Event, Declared.Later<E> | Tool.Fatal<Tools[number]>, Declared.Later<R> | ServicesOf<Tools>> =>
  Pulled.stream((scope) =>
    Effect.map(Batches.begin<E, R>(calls.map(normalized), tools, options, scope), ({ pull }) => () => pull)
  )

/**
 * Runs a batch and awaits its answers, in call order: the fold of {@link stream}.
 *
 * **Example** (Two calls at once)
 *
 * ```ts import.meta.vitest
 * import { Message, Tool, ToolRunner } from "heddle"
 * import * as Effect from "effect/Effect"
 * import * as Schema from "effect/Schema"
 *
 * const double = Tool.make("double", {
 *   parameters: { n: Schema.Finite },
 *   handler: ({ n }) => Effect.succeed(n * 2)
 * })
 * const result = await Effect.runPromise(ToolRunner.run(
 *   [Message.toolCall("a", "double", { n: 2 }), Message.toolCall("b", "double", { n: "two" })],
 *   [double]
 * ))
 *
 * result.messages[0]?.content // => "4"
 * result.messages[1]?.isError // => true
 * ```
 *
 * @category running
 */
export const run = <const Tools extends ReadonlyArray<Tool.Any>, E = never, R = never>(
  calls: ReadonlyArray<Call>,
  tools: Tools,
  options: Options<E, R, Tool.Failure<Tools[number]>> = {}
): Effect.Effect<
  Result,
  Plan.EngineError | Declared.Later<E> | Tool.Fatal<Tools[number]>,
  Declared.Later<R> | ServicesOf<Tools>
> =>
  Effect.scopedWith((scope) =>
    Effect.gen(function*() {
      const asked = calls.map(normalized)
      const ids = asked.map(({ id }) => id)
      // Two calls with one id are distinguished by their order.
      const keys = new Set(ids).size === ids.length ? undefined : ids.map((_, position) => position)
      const { policy, pull, stopped } = yield* Batches.begin<E, R>(asked, tools, options, scope, {
        // Events come as they happen: none is shown.
        order: { resultOrder: keys === undefined ? "completion" : "request", toolEvents: "live" }
      })
      const answers = new Fold.ToolAnswers()
      let ended = 0
      let error: unknown
      const read = Effect.map(pull, (events) => {
        for (const event of events) {
          if (event._tag === "Error") error = event.error
          else answers.add(event, keys?.[ended])
          if (lasts.has(event._tag)) ended++
        }
      })
      yield* Pull.catchDone(Effect.forever(read, { disableYield: true }), () => Effect.void)
      if (error instanceof Plan.EngineError) return yield* error
      return result(asked, keys ?? ids, answers, policy, yield* stopped)
    })
  )

/** Last event of a call: its answer, or its request for an approval. */
const lasts: ReadonlySet<Event.Event["_tag"]> = new Set<Event.Event["_tag"]>([
  "ToolResultEncoded",
  "AskUserRequested",
  "ToolHalt",
  "ToolApprovalRequested",
  "ToolSuspended"
])

/** `keys` distinguish the calls: their ids, or their positions if two share an id. */
const result = (
  calls: ReadonlyArray<Message.ToolCall>,
  keys: ReadonlyArray<Fold.Key>,
  answers: Fold.ToolAnswers,
  { haltPrecedence }: Policy.Policy,
  abandoned: ReadonlyArray<Event.Abandoned>
): Result => {
  const halt = answers.deciding(keys, haltPrecedence)
  const contextUpdate = answers.contextUpdate(keys)
  const suspensions = answers.open(calls, keys)
  return {
    messages: answers.inOrder(keys),
    ...(halt === undefined ? {} : { halt }),
    ...(contextUpdate === undefined ? {} : { contextUpdate }),
    ...(suspensions.length === 0 ? {} : { suspensions }),
    ...(abandoned.length === 0 ? {} : { abandoned })
  }
}
