/**
 * The knobs in which tool loops differ, and their presets. No policy switches a law off: every call is answered once,
 * nothing outlives a run and history stays valid under all of them.
 *
 * @since 0.1.0
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
 * The decisions of a run in which tool loops differ. A run takes what is not given from `standard`.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Policy extends Schema.Opaque<Policy>()(Schema.Struct({
  /**
   * The moment from which a tool may start. `"afterTurn"` waits until the reply has ended. `"readOnly"` starts calls
   * that are `readOnly`, as their tools declare, as soon as their arguments are final, `"onCallReady"` starts all of
   * them; if the reply is then filtered or breaks, those that run are stopped and answered as cancelled. A reply that
   * is cut off by the token limit keeps the calls whose arguments were final. In a session `"onCallReady"` acts as
   * `"readOnly"`: a reply that is lost in a crash would take calls with it that had their effect.
   */
  start: Schema.Literals(["afterTurn", "readOnly", "onCallReady"]),
  /**
   * The order of tool events in the stream: that of the calls, or that in which they end. Threads are always in call
   * order.
   */
  resultOrder: Schema.Literals(["request", "completion"]),
  /** `"live"` shows a start when it happens; `"grouped"` holds the events of a call back until it has ended. */
  toolEvents: Schema.Literals(["live", "grouped"]),
  /**
   * The facts about calls that other tool loops do not have: `ToolQueued`, the `code` of an answer in events and
   * messages, and the `attempt` and `waited` of `ToolExecutionStarted`. A run with `"hidden"` leaves them out.
   */
  callFacts: Schema.Literals(["told", "hidden"]),
  /**
   * A call of a tool that does not exist is answered with an error, or fails the turn before any tool runs.
   * `"failTurn"` needs `start: "afterTurn"`.
   */
  unknownTool: Schema.Literals(["answer", "failTurn"]),
  /** The sign of a tool turn: the calls in a reply, or its finish reason alone. */
  toolTurn: Schema.Literals(["presence", "finishReason"]),
  /** Calls whose arguments were lost are answered with an error, or run with the arguments that there are. */
  badArguments: Schema.Literals(["answer", "runWithHeaderArguments"]),
  /** The halt that decides, of several in one turn: that of the first call, or the first to complete. */
  haltPrecedence: Schema.Literals(["request", "completion"]),
  /** The error of a reply that ends well later: it stays, or the later finish reason replaces it. */
  adapterErrors: Schema.Literals(["keepFirst", "lastWins"]),
  /** The effects of a halt and of a failed call on the other calls of the turn. */
  siblings: Schema.Struct({
    /**
     * The effect of a halt: `"drain"` lets the other calls run to their end, `"abortCancelable"` interrupts those that
     * run unless they block interruption, `"abortAll"` these as well. Calls that are interrupted are answered as
     * cancelled. A halt finds every call running that has been admitted by then, its gates included.
     */
    onHalt: Siblings,
    /**
     * The effect of a failed call, in the same words. `trigger` defines a failure: by default a crash, and also
     * what a handler reports, such as a rejected `call.promise`. A failed exclusive call has no siblings.
     */
    onToolError: Siblings,
    /** The treatment of calls that wait by then: they still run, or are skipped. */
    queued: Schema.Literals(["run", "skip"]),
    /**
     * The failures that count. `"crashedOrReported"`, the default: also what a handler reports, by `Effect.fail`, an
     * effect that fails or a rejected `call.promise`. `"crashed"`: only a handler that dies, exits, takes too long or
     * has no usable result. Calls that never ran trigger nothing.
     */
    trigger: Schema.Literals(["crashed", "crashedOrReported"])
  }),
  /** The concurrency of tools without the `concurrency` option: they run beside others, or alone. */
  concurrency: Schema.Literals(["shared", "exclusive"]),
  /**
   * The treatment of running tools without the `interrupt` option when they are stopped: they are interrupted, or may
   * finish within the grace period.
   */
  interrupt: Schema.Literals(["cancel", "block"]),
  /**
   * The reading of what a handler returns: it is the result, or is read as `{ success, data, error, contextUpdate }`
   * where it has one of the first three fields.
   */
  results: Schema.Literals(["plain", "resultObject"]),
  /**
   * The number of handlers that run concurrently, where neither the options nor the application's defaults set it. Left
   * out: twice the number of cores.
   */
  maxConcurrency: Schema.optionalKey(Schema.Int),
  /**
   * The number of model calls that a run may make, where neither the options nor the application's defaults set it.
   * Left out: 8.
   */
  maxTurns: Schema.optionalKey(Schema.Int),
  /**
   * The number of characters (UTF-16 code units) of a tool's result that the model reads, where the tool has no
   * `maxResultChars`; `0` or `Infinity` for all of them. The `result` of `ToolExecutionCompleted` is never cut. A JSON
   * result that is cut is no JSON any more. A result that is submitted to a session for a manual call is cut by the
   * policy of the run that made the call.
   */
  resultLimit: Schema.Number,
  /**
   * The part of a longer result that the model reads. `"headAndTail"` keeps both, at line ends where the lines are
   * short enough for that, with a notice between them that counts as well; an error has 8,192 characters at most, or
   * `resultLimit` where that is less. `"head"` keeps the first characters and puts the notice behind them, and leaves
   * errors whole.
   */
  resultCut: Schema.Literals(["headAndTail", "head"]),
  /**
   * The turns for which a run's `toolChoice` of `"required"` or of a named tool holds: its first one, after which the
   * model chooses (`"auto"`) and can answer, or every turn, which then ends only by a limit or a halt. An operation of
   * a session that continues after calls of an earlier run were settled has no first turn.
   */
  toolChoice: Schema.Literals(["first", "every"]),
  /**
   * The text that the model reads of a handler that died: that it did and no more, or also the message and the plain
   * fields of what it died with. The model always reads what a handler reports, a rejected promise of `call.promise`
   * included. `Encoder.allm` writes all of an error under either.
   */
  crashes: Schema.Literals(["hidden", "told"]),
  /**
   * The end of a run that used up its turns: it ends as it is, or makes one more model call without tools, so that it
   * ends in an answer.
   */
  onMaxTurns: Schema.Literals(["halt", "finalize"])
})) {}

/**
 * The default: every call is answered, calls decide whether tools run, read-only tools start during the
 * reply, the first call in the turn decides a halt.
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
 * @since 0.1.0
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
 * ALLM's behaviour where its laws allow it: an unknown tool fails the turn, the finish reason alone decides whether
 * tools run, arguments that were lost are replaced by those of the call's header, tool events come in groups, results
 * are cut for tools that ask for it only.
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
 * @since 0.1.0
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
 * falai's behaviour where its laws allow it: tools start as soon as their arguments are final, run alone and block
 * interruption unless declared otherwise, results come in request order, a failure interrupts its siblings, and five
 * follow-ups are closed by an answer.
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
 * @since 0.1.0
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
 * The values that a run uses where its options are silent. An option that is given, and not `null`, wins.
 *
 * @category models
 * @since 0.1.0
 */
export interface Defaults {
  /** The decisions of runs. `Policy.standard` by default. */
  readonly policy?: Policy
  /** The name of the model. The adapter's by default. */
  readonly model?: string
  /** The freedom with which the model chooses its words, from 0 to 2. The provider's by default. */
  readonly temperature?: number
  /** The number of tokens that a reply may have. The adapter's by default, else the provider's. */
  readonly maxTokens?: number
  /**
   * Tools that every run offers. A tool of a run replaces one of the same name, in its place; others are added. None by
   * default.
   */
  readonly tools?: ReadonlyArray<Tool.Tool<string, any, any, any, never>>
  /**
   * The value that handlers read as `call.context`. The `context` of a run replaces it and is not merged with it. `{}`
   * by default.
   */
  readonly context?: Readonly<Record<string, unknown>>
  /** The number of model calls that a run may make. The policy's by default, else 8. */
  readonly maxTurns?: number
  /** The number of handlers that run at once. The policy's by default, else twice the number of cores. */
  readonly maxConcurrency?: number
  /**
   * The time that a call may take; a number is milliseconds, `"infinity"` is no limit, and `{ total, idle }` limits the
   * time without progress as well. 30 seconds by default.
   */
  readonly toolTimeout?: Tool.TimeoutInput
  /** The time that code which is stopped may take to stop; a number is milliseconds. 5 seconds by default. */
  readonly grace?: Duration.Input
  /**
   * The user message that leads in the last call of a run with `structuredFinalize`. A text of one line by default,
   * none for `""`.
   */
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
 * @since 0.1.0
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
