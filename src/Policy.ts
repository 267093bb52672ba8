/**
 * The knobs in which tool loops differ, and their presets. No policy switches a law off: every call is answered once,
 * nothing outlives a run and history stays valid under all of them.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import type * as Tool from "./Tool.ts"

const Siblings = Schema.Literals(["drain", "abortCancelable", "abortAll"])

/**
 * How a run decides.
 *
 * - `start`: when a tool may start. `"afterTurn"` waits until the model's reply has ended. `"readOnly"` starts tools that
 *   are declared `readOnly` as soon as their arguments are final, `"onCallReady"` all of them; if the reply is then
 *   filtered or breaks, those still running are stopped and answered as cancelled. A reply that is cut off by the token
 *   limit keeps the calls whose arguments were final.
 * - `resultOrder`: the order of tool events in the stream. Threads are always in call order.
 * - `toolEvents`: `"live"` shows a start when it happens, `"grouped"` holds a call's events back until it has ended.
 * - `unknownTool`: a call of a tool that does not exist is answered with an error, or fails the turn before any tool
 *   runs.
 * - `toolTurn`: whether the presence of calls makes a turn a tool turn, or the provider's finish reason alone.
 * - `badArguments`: calls whose arguments were lost are answered with an error, or run with what there is.
 * - `haltPrecedence`: which of several halts in one turn decides: the first call, or the first to complete.
 * - `adapterErrors`: whether an error inside a reply stays (`"sticky"`) or a later finish reason replaces it.
 * - `siblings`: what a halt (`onHalt`) and a failed call (`onToolError`) do to the other calls of the turn. `"drain"` lets
 *   them run to their end, `"abortCancelable"` interrupts those that run beside it unless they block interruption,
 *   `"abortAll"` these as well; interrupted calls are answered as cancelled at once. A halt finds
 *   every call running that has been admitted by then, its gates included. `queued` says whether calls that
 *   wait by then still run or are skipped, and `trigger` whether only crashes count as failures or what handlers report,
 *   too. Calls that never ran (refused, denied, cancelled) trigger nothing, and a failed exclusive call has no siblings.
 * - `concurrency`, `interrupt`: how tools that say nothing about it are taken.
 * - `results`: whether what a handler returns is its result (`"plain"`), or is read as `{ success, data, error,
 *   contextUpdate }` where it has one of the first three fields (`"resultObject"`).
 * - `maxConcurrency`, `maxTurns`: what a run uses where neither its options nor the application's defaults say.
 * - `resultLimit`: how many characters (UTF-16 code units) of a tool's result the model reads where the tool has no
 *   `maxResultChars`; `0` or `Infinity` for all of them. The raw result, the `result` of `ToolExecutionCompleted`, is never
 *   cut; what a run is awaited for has the text as it was cut. A JSON result that is cut is no JSON any more. A result that
 *   is submitted to a session for a manual call is cut by the policy of the run that made the call.
 * - `resultCut`: what the model reads of a result that is longer. `"headAndTail"` keeps both, at line ends where the lines
 *   are not too long for that, with a notice between them that counts as well; an error has 8,192 characters at most, or
 *   `resultLimit` where that is less. `"head"` keeps the first characters and puts the notice behind them, and leaves
 *   errors whole.
 * - `toolChoice`: for how long a run's `toolChoice` of `"required"` or of a named tool holds: for its `"first"` turn, from
 *   which on the model chooses (`"auto"`) and can answer, or for `"every"` turn, which then ends by a bound or a halt only.
 *   An operation of a session that goes on where calls of an earlier run were settled since, by an approval, a denial, an
 *   answer or a result, is no first turn.
 * - `crashes`: what a model reads of a handler that died: that it did and no more (`"hidden"`), or with the message and the
 *   plain fields of what it died with (`"told"`). What a handler reports, a rejected promise of `call.promise` included, is
 *   always told. `Encoder.allm`, a debug rendering, writes all of an error under either.
 * - `onMaxTurns`: whether a run that used up its turns ends as it is, or makes one more model call without tools, so that
 *   it ends in an answer.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Policy = Schema.Struct({
  start: Schema.Literals(["afterTurn", "readOnly", "onCallReady"]),
  resultOrder: Schema.Literals(["request", "completion"]),
  toolEvents: Schema.Literals(["live", "grouped"]),
  unknownTool: Schema.Literals(["answer", "failTurn"]),
  toolTurn: Schema.Literals(["presence", "finishReason"]),
  badArguments: Schema.Literals(["answer", "runWithHeaderArguments"]),
  haltPrecedence: Schema.Literals(["request", "completion"]),
  adapterErrors: Schema.Literals(["sticky", "lastWins"]),
  siblings: Schema.Struct({
    onHalt: Siblings,
    onToolError: Siblings,
    queued: Schema.Literals(["run", "skip"]),
    trigger: Schema.Literals(["crashed", "crashedOrReported"])
  }),
  concurrency: Schema.Literals(["shared", "exclusive"]),
  interrupt: Schema.Literals(["cancel", "block"]),
  results: Schema.Literals(["plain", "resultObject"]),
  maxConcurrency: Schema.optionalKey(Schema.Int),
  maxTurns: Schema.optionalKey(Schema.Int),
  resultLimit: Schema.Number.pipe(
    Schema.withDecodingDefaultKey(Effect.succeed(32_768), { encodingStrategy: "passthrough" })
  ),
  resultCut: Schema.Literals(["headAndTail", "head"]).pipe(
    Schema.withDecodingDefaultKey(Effect.succeed("headAndTail" as const), { encodingStrategy: "passthrough" })
  ),
  toolChoice: Schema.Literals(["first", "every"]).pipe(
    Schema.withDecodingDefaultKey(Effect.succeed("first" as const), { encodingStrategy: "passthrough" })
  ),
  crashes: Schema.Literals(["hidden", "told"]).pipe(
    Schema.withDecodingDefaultKey(Effect.succeed("hidden" as const), { encodingStrategy: "passthrough" })
  ),
  onMaxTurns: Schema.Literals(["halt", "finalize"])
})

/**
 * @see {@link Policy}
 *
 * @category models
 * @since 0.1.0
 */
export type Policy = (typeof Policy)["Type"]

/**
 * The default: every call is answered, calls decide whether tools run, read-only tools start while the model still
 * speaks, the first call in the turn decides a halt.
 *
 * **Example** (Changing one knob)
 *
 * ```ts import.meta.vitest
 * import { Policy } from "heddle"
 *
 * const ordered: Policy.Policy = { ...Policy.standard, resultOrder: "request" }
 *
 * ordered.unknownTool // => "answer"
 * ```
 *
 * @category constants
 * @since 0.1.0
 */
export const standard: Policy = {
  start: "readOnly",
  resultOrder: "completion",
  toolEvents: "live",
  unknownTool: "answer",
  toolTurn: "presence",
  badArguments: "answer",
  haltPrecedence: "request",
  adapterErrors: "sticky",
  siblings: { onHalt: "drain", onToolError: "drain", queued: "run", trigger: "crashed" },
  concurrency: "shared",
  interrupt: "cancel",
  results: "plain",
  resultLimit: 32_768,
  resultCut: "headAndTail",
  toolChoice: "first",
  crashes: "hidden",
  onMaxTurns: "halt"
}

/**
 * ALLM's behaviour where its laws allow it: an unknown tool fails the turn, the finish reason alone decides whether
 * tools run, arguments that were lost are replaced by those of the call's header, tool events come in groups, results are
 * cut for tools that ask for it only.
 *
 * @category constants
 * @since 0.1.0
 */
export const allm: Policy = {
  ...standard,
  start: "afterTurn",
  toolEvents: "grouped",
  unknownTool: "failTurn",
  toolTurn: "finishReason",
  badArguments: "runWithHeaderArguments",
  adapterErrors: "lastWins",
  resultLimit: 0,
  resultCut: "head"
}

/**
 * falai's behaviour where its laws allow it: tools start as soon as their arguments are final, run alone and block
 * interruption unless they say otherwise, results come in request order, a failure interrupts the calls beside it, and
 * five follow-ups are closed by an answer.
 *
 * @category constants
 * @since 0.1.0
 */
export const falai: Policy = {
  ...standard,
  start: "onCallReady",
  resultOrder: "request",
  siblings: { onHalt: "drain", onToolError: "abortCancelable", queued: "run", trigger: "crashedOrReported" },
  concurrency: "exclusive",
  interrupt: "block",
  results: "resultObject",
  resultLimit: 0,
  resultCut: "head",
  maxConcurrency: 10,
  maxTurns: 6,
  onMaxTurns: "finalize"
}

/**
 * What a run uses where its options are silent. An option that is given, and not `null`, wins; `context` is replaced,
 * never merged; tools of the same name are replaced in place, others added.
 *
 * @category models
 * @since 0.1.0
 */
export interface Defaults {
  readonly policy?: Policy
  readonly model?: string
  readonly temperature?: number
  readonly maxTokens?: number
  readonly tools?: ReadonlyArray<Tool.Tool<string, any, any, any, never>>
  readonly context?: Readonly<Record<string, unknown>>
  readonly maxTurns?: number
  readonly maxConcurrency?: number
  readonly toolTimeout?: Duration.Input
  readonly grace?: Duration.Input
  readonly finalizePrompt?: string
}

/**
 * The defaults of an application, as a Context reference: empty without a {@link layer}.
 *
 * @category references
 * @since 0.1.0
 */
export const Defaults: Context.Reference<Defaults> = Context.Reference<Defaults>("heddle/Policy/Defaults", {
  defaultValue: () => ({})
})

/**
 * Provides the defaults of an application, once at its edge. They replace those of a layer around it as a whole.
 *
 * **Example** (Two turns at most, wherever nothing else is said)
 *
 * ```ts import.meta.vitest
 * import { Chat, Policy, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
 *
 * const ping = Tool.make("ping", { parameters: {}, handler: () => Effect.succeed("pong") })
 * const again = [Script.toolCall("c0", "ping"), Script.finish("tool_calls")]
 * const program = Chat.run("go", { tools: [ping] }).pipe(
 *   Effect.provide(Policy.layer({ maxTurns: 2 })),
 *   Effect.provide(Script.layer([again, again, again]))
 * )
 * const result = await Effect.runPromise(program)
 *
 * result.outcome // => { _tag: "MaxTurns", maxTurns: 2 }
 * ```
 *
 * @category layers
 * @since 0.1.0
 */
export const layer = (defaults: Defaults): Layer.Layer<never> => Layer.succeed(Defaults, defaults)
