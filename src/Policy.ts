/**
 * The choices on which tool loops differ, and their presets. No policy switches a law off: under every policy each call
 * is answered once, nothing outlives a run, and history stays valid.
 */
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import { checkNames, type NamesOf } from "./internal/declare/schema.ts"
import * as Values from "./internal/declare/values.ts"
import type * as Tool from "./Tool.ts"

const Siblings = Schema.Literals(["drain", "abortCancelable", "abortAll"])

/**
 * A run's choices where tool loops differ. Missing choices come from `standard`.
 *
 * @category schemas
 */
export class Policy extends Schema.Opaque<Policy>()(Schema.Struct({
  /**
   * Earliest start of a tool. `"afterTurn"` waits until the reply has ended. `"readOnly"` starts calls to tools
   * declared `readOnly` as soon as their arguments are final; `"onCallReady"` starts all calls at that point. If the
   * reply is then filtered or breaks, running calls are stopped and answered as cancelled. A reply cut off by the token
   * limit keeps calls with final arguments. In a session `"onCallReady"` acts as `"readOnly"`: a reply lost in a crash
   * would otherwise lose calls after they had their effect.
   */
  start: Schema.Literals(["afterTurn", "readOnly", "onCallReady"]),
  /** Order of tool events in the stream: call order or completion order. Threads are always in call order. */
  resultOrder: Schema.Literals(["request", "completion"]),
  /** `"live"` shows a start when it happens; `"grouped"` holds a call's events back until the call has ended. */
  toolEvents: Schema.Literals(["live", "grouped"]),
  /**
   * Call facts unknown to other tool loops: `ToolQueued`, the `code` of an answer in events and messages, and the
   * `attempt` and `waited` of `ToolExecutionStarted`. A run with `"hidden"` omits them.
   */
  callFacts: Schema.Literals(["told", "hidden"]),
  /**
   * Response to a call to an unknown tool: an error answer, or failing the turn before any tool runs. `"failTurn"`
   * needs `start: "afterTurn"`.
   */
  unknownTool: Schema.Literals(["answer", "failTurn"]),
  /** Mark of a tool turn: calls in the reply, or its finish reason alone. */
  toolTurn: Schema.Literals(["presence", "finishReason"]),
  /** Response to a call with lost arguments: an error answer, or running it with the arguments at hand. */
  badArguments: Schema.Literals(["answer", "runWithHeaderArguments"]),
  /** The deciding halt if one turn has several: the first call's, or the first to complete. */
  haltPrecedence: Schema.Literals(["request", "completion"]),
  /** Fate of an error if the reply later ends well: it stays, or the later finish reason replaces the error. */
  adapterErrors: Schema.Literals(["keepFirst", "lastWins"]),
  /** Effects of a halt or a failed call on the turn's other calls. */
  siblings: Schema.Struct({
    /**
     * Effect of a halt. `"drain"` lets the other calls run to their end, `"abortCancelable"` interrupts running calls
     * unless they block interruption, `"abortAll"` interrupts those as well. Interrupted calls are answered as
     * cancelled. By the time of a halt, every call admitted so far counts as running, even in its gates.
     */
    onHalt: Siblings,
    /**
     * Effect of a failed call, with the same values. `trigger` defines a failure: by default a crash, or an error
     * reported by a handler, such as a rejected `call.promise`. A failed exclusive call has no siblings.
     */
    onToolError: Siblings,
    /** Treatment of calls still waiting at that point: they still run, or are skipped. */
    queued: Schema.Literals(["run", "skip"]),
    /**
     * Failures having an effect. `"crashedOrReported"`, the default, also counts errors reported by a handler:
     * `Effect.fail`, a failing effect or a rejected `call.promise`. `"crashed"` counts only handlers dying, exiting,
     * timing out or returning no usable result. Calls that never ran trigger nothing.
     */
    trigger: Schema.Literals(["crashed", "crashedOrReported"])
  }),
  /** Concurrency of tools without the `concurrency` option: beside other calls, or alone. */
  concurrency: Schema.Literals(["shared", "exclusive"]),
  /**
   * Treatment of stopped running tools without the `interrupt` option: they are interrupted, or may finish within the
   * grace period.
   */
  interrupt: Schema.Literals(["cancel", "block"]),
  /**
   * Reading of a handler's return value: always as the result, or as `{ success, data, error, contextUpdate }` if the
   * value has one of the first three fields.
   */
  results: Schema.Literals(["plain", "resultObject"]),
  /**
   * Maximum number of concurrent handlers, if neither the options nor the application's defaults set a limit. If
   * absent: twice the number of cores.
   */
  maxConcurrency: Schema.optionalKey(Schema.Int),
  /**
   * Maximum number of model calls in a run, if neither the options nor the application's defaults set a limit. If
   * absent: 8.
   */
  maxTurns: Schema.optionalKey(Schema.Int),
  /**
   * Maximum length of a tool result for the model, in characters (UTF-16 code units), if the tool has no
   * `maxResultChars`; `0` or `Infinity` for unlimited. The `result` of `ToolExecutionCompleted` is never cut. A cut
   * JSON result is no longer JSON. A result submitted to a session for a manual call is cut by the policy of the run
   * with that call.
   */
  resultLimit: Schema.Number,
  /**
   * Part of a longer result kept for the model. `"headAndTail"` keeps both ends, at line ends if the lines are short
   * enough, with a notice between them; the notice counts as well. Errors then have at most 8,192 characters, or
   * `resultLimit` if less. `"head"` keeps the first characters, followed by the notice, and leaves errors whole.
   */
  resultCut: Schema.Literals(["headAndTail", "head"]),
  /**
   * Turns in which the model must follow a `toolChoice` of `"required"` or a named tool. Either only the run's first
   * turn, and then the model chooses (`"auto"`) and can answer, or every turn; then a run ends only by a limit or a
   * halt. A session operation continuing after an earlier run's calls were settled has no first turn.
   */
  toolChoice: Schema.Literals(["first", "every"]),
  /**
   * Text for the model after a handler died: only the fact, or also the message and plain fields of the thrown value.
   * The model always reads errors reported by a handler, including a rejected `call.promise`. `Encoder.allm` writes all
   * of an error under either setting.
   */
  crashes: Schema.Literals(["hidden", "told"]),
  /**
   * End of a run without remaining turns: it ends immediately, or makes one more model call without tools, to end with
   * an answer.
   */
  onMaxTurns: Schema.Literals(["halt", "finalize"])
})) {}

/**
 * The default: every call is answered, calls decide whether tools run, read-only tools start during the reply, and the
 * turn's first call decides a halt.
 *
 * **Example** (Changing one field)
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
 */
export const standard: Policy = {
  start: "readOnly",
  resultOrder: "completion",
  toolEvents: "live",
  callFacts: "told",
  unknownTool: "answer",
  toolTurn: "presence",
  badArguments: "answer",
  haltPrecedence: "request",
  adapterErrors: "keepFirst",
  siblings: { onHalt: "drain", onToolError: "drain", queued: "run", trigger: "crashedOrReported" },
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
 * ALLM's behavior, as far as Heddle's laws allow: an unknown tool fails the turn, the finish reason alone decides
 * whether tools run, the call header's arguments replace lost ones, tool events come in groups, and results are cut
 * only for tools asking for a cut.
 *
 * **Example** (Tools start when the reply has ended)
 *
 * ```ts import.meta.vitest
 * import { Policy } from "heddle"
 *
 * Policy.allm.start // => "afterTurn"
 * ```
 *
 * @category constants
 */
export const allm: Policy = {
  ...standard,
  start: "afterTurn",
  toolEvents: "grouped",
  callFacts: "hidden",
  unknownTool: "failTurn",
  toolTurn: "finishReason",
  badArguments: "runWithHeaderArguments",
  adapterErrors: "lastWins",
  resultLimit: 0,
  resultCut: "head"
}

/**
 * falai's behavior, as far as Heddle's laws allow: tools start as soon as their arguments are final, run alone and
 * block interruption unless declared otherwise, results come in request order, a failure interrupts its siblings, and
 * five follow-ups are closed by an answer.
 *
 * **Example** (Tools start as soon as they can)
 *
 * ```ts import.meta.vitest
 * import { Policy } from "heddle"
 *
 * Policy.falai.start // => "onCallReady"
 * Policy.falai.onMaxTurns // => "finalize"
 * ```
 *
 * @category constants
 */
export const falai: Policy = {
  ...standard,
  start: "onCallReady",
  resultOrder: "request",
  callFacts: "hidden",
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
 * Values for a run's missing options. An option other than `null` or `undefined` wins.
 *
 * @category models
 */
export interface Defaults {
  /** Policy of runs. `Policy.standard` by default. */
  readonly policy?: Policy
  /** Model name. The adapter's by default. */
  readonly model?: string
  /** Sampling temperature, from 0 to 2. The provider's by default. */
  readonly temperature?: number
  /** Maximum number of tokens in a reply. The adapter's by default, else the provider's. */
  readonly maxTokens?: number
  /**
   * Tools offered by every run. A run's tool replaces a default tool with the same name, in its place; other tools are
   * added. None by default.
   */
  readonly tools?: ReadonlyArray<Tool.Tool<string, any, any, any, never>>
  /**
   * Value for handlers to read as `call.context`. A run's own `context` replaces the whole value, without merging. `{}`
   * by default.
   */
  readonly context?: Readonly<Record<string, unknown>>
  /** Maximum number of model calls in a run. The policy's by default, else 8. */
  readonly maxTurns?: number
  /** Maximum number of concurrent handlers. The policy's by default, else twice the number of cores. */
  readonly maxConcurrency?: number
  /**
   * Maximum duration of a call; a number is milliseconds, `"infinity"` means unlimited, and `{ total, idle }` also
   * limits the time without progress. 30 seconds by default.
   */
  readonly toolTimeout?: Tool.TimeoutInput
  /** Maximum time for stopped code to stop; a number is milliseconds. 5 seconds by default. */
  readonly grace?: Duration.Input
  /**
   * User message introducing the last call of a run with `structuredFinalize`. One line of text by default, none for
   * `""`.
   */
  readonly finalizePrompt?: string
}

/**
 * An application's defaults, as a Context reference: empty without a {@link layer}.
 *
 * @category references
 */
export const Defaults: Context.Reference<Defaults> = Context.Reference<Defaults>("heddle/Policy/Defaults", {
  defaultValue: () => ({})
})

/**
 * Provides an application's defaults, once at its edge. They replace an outer layer's defaults as a whole.
 *
 * **Example** (Two turns at most by default)
 *
 * ```ts import.meta.vitest
 * import { Chat, Policy, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
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
 */
export const layer = (defaults: Defaults): Layer.Layer<never> => {
  checkNames("Policy.layer", defaults, knownDefaults)
  return Layer.succeed(Defaults, defaults)
}

const knownDefaults = {
  policy: Values.policyOf(Policy),
  model: Values.name,
  temperature: Values.checkedLater,
  maxTokens: Values.count,
  tools: Values.tools,
  context: Values.record,
  maxTurns: Values.count,
  maxConcurrency: Values.count,
  toolTimeout: Values.timeout,
  grace: Values.duration,
  finalizePrompt: Values.text
} satisfies NamesOf<Defaults>
