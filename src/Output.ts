/**
 * Typed answers. An output holds a schema, and how the model is asked for an answer that fits; a run that has one ends
 * with a value of the schema's type.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type * as Event from "./Event.ts"
import * as Settings from "./internal/ask/options.ts"
import * as Schemas from "./internal/declare/schema.ts"
import * as Values from "./internal/declare/values.ts"
import * as Json from "./internal/json.ts"
import * as OutputRule from "./internal/loop/outputRule.ts"
import type { OutputStart, Rule } from "./internal/loop/rules.ts"
import * as Tool from "./Tool.ts"

export type { OutputStart } from "./internal/loop/rules.ts"

/**
 * A typed answer: a value of `make`.
 *
 * @category models
 * @since 0.1.0
 */
export interface Output<out A, out R = never> {
  /** The tool by which the model answers. `undefined` where it never does. */
  readonly tool: Tool.Any | undefined
  /** `true` if the model answers by the tool alone: `mode: "tool"`. */
  readonly isByTool: boolean
  /** Reads an answer as events and journals have it: encoded. */
  readonly decode: (encoded: unknown) => Effect.Effect<A, Schema.SchemaError, R>
  /** Makes the rule of a run. */
  readonly rule: (start: OutputStart) => Rule<never, R>
}

/**
 * A run has no typed answer.
 *
 * @category errors
 * @since 0.1.0
 */
export class Missing extends Schema.TaggedError<Missing>("heddle/Output/Missing")("Missing", {
  /** The outcome of the run, as one word. */
  reason: Schema.String,
  /** The problems of the last answer, where there was one that does not fit. */
  issues: Schema.optionalKey(Schema.String),
  /** The outcome of the run. */
  outcome: Json.Opaque
}) {
  override get message(): string {
    const issues = this.issues === undefined ? "" : `: ${this.issues}`
    return `the run has no answer of the output's type; it ended as ${this.reason}${issues}`
  }
}

/**
 * The options of an output.
 *
 * @category models
 * @since 0.1.0
 */
export interface Options {
  /**
   * The way in which the model is asked. `"native"` gives the provider the schema with each request. `"tool"` offers a
   * tool whose parameters are the schema, and whose call is the answer. `"finalize"` runs the tools without the schema,
   * and asks once more with it. `"auto"` is `"native"` where the adapter of a step can give it with the step's tools,
   * else `"tool"`. `"auto"` by default.
   */
  readonly mode?: "auto" | "native" | "tool" | "finalize" | undefined
  /** The number of answers that do not fit, or are none, and are asked for again. 2 by default. */
  readonly retries?: number | undefined
  /** The name of the schema, which the provider receives. `"answer"` by default. */
  readonly name?: string | undefined
  /** A description of the answer for the model. None by default. */
  readonly description?: string | undefined
  /** The name of the tool by which the model answers. `"final_answer"` by default. */
  readonly toolName?: string | undefined
}

const knownOptions = Values.nullable(
  {
    mode: Values.oneOf("auto", "native", "tool", "finalize"),
    retries: Values.whole,
    name: Values.name,
    description: Values.text,
    toolName: Values.name
  } satisfies Schemas.NamesOf<Options>
)

/**
 * Makes an output from a schema, for the option `output` of a run.
 *
 * **Details**
 *
 * An answer that does not fit is asked for again, with what does not fit. Such a repair is a turn. After `retries` of
 * them the outcome is `RuleEnded` with the rule `output`, and with `issues` and `text` as its `detail`. A run that
 * comes to `maxTurns`, or to the reserve of its deadline, makes one more call for the answer. A root that is no object
 * is the member `value` of one on the wire. A schema without a JSON Schema throws.
 *
 * **Example** (An answer of a type)
 *
 * ```ts import.meta.vitest
 * import { Chat, Output } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Schema from "effect/Schema"
 *
 * const weather = Output.make(Schema.Struct({ city: Schema.String, celsius: Schema.Finite }))
 * const model = Script.layer([
 *   [Script.toolCall("c0", "final_answer", { city: "Oslo", celsius: 7 }), Script.finish("tool_calls")]
 * ])
 * const result = await Effect.runPromise(
 *   Chat.run("How warm is it in Oslo?", { output: weather }).pipe(Effect.provide(model))
 * )
 *
 * result.output // => { city: "Oslo", celsius: 7 }
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const make = <A, I, RD, RE>(schema: Schema.Codec<A, I, RD, RE>, options: Options = {}): Output<A, RD | RE> => {
  Schemas.checkNames("Output.make", { schema, ...options }, { schema: Values.schema, ...knownOptions })
  const mode = options.mode ?? "auto"
  const toolName = options.toolName ?? "final_answer"
  const form = OutputRule.formOf(schema)
  const description = options.description ?? undefined
  const tool = mode === "native" || mode === "finalize" ? undefined : {
    ...Tool.make(toolName, {
      description: description ?? "Gives the final answer. Call it once, when you know the answer.",
      parameters: form.schema as Schema.Codec<unknown, unknown>,
      idempotent: true,
      afterCrash: "retry",
      handler: (value) => Effect.map(Effect.orDie(form.write(value)), (answer) => Tool.halt(OutputRule.name, answer))
    }) as Tool.Any,
    "~heddle/Output": true as const
  }
  const definition: OutputRule.Definition = {
    mode,
    retries: options.retries ?? 2,
    name: options.name ?? "answer",
    description,
    toolName,
    form,
    tool
  }
  const decode = Schema.decodeUnknownEffect(Schemas.jsonCodec(schema as Schema.Top))
  const output: Output<A, RD | RE> = {
    tool,
    isByTool: mode === "tool",
    decode: decode as Output<A, RD | RE>["decode"],
    rule: (start) => OutputRule.rule(definition, start)
  }
  Settings.madeOutputs.add(output)
  return output
}

/**
 * Returns the typed answer of a result. Fails where the run has none.
 *
 * **Example** (A run that ended otherwise)
 *
 * ```ts import.meta.vitest
 * import { Chat, Output } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Schema from "effect/Schema"
 *
 * const output = Output.make(Schema.Struct({ celsius: Schema.Finite }), { retries: 0 })
 * const model = Script.layer([[Script.text("It is warm."), Script.finish("stop")]])
 * const program = Effect.flatMap(Chat.run("How warm is it?", { output }), Output.get)
 * const error = await Effect.runPromise(Effect.flip(program).pipe(Effect.provide(model)))
 *
 * error._tag // => "Missing"
 * ```
 *
 * @category getters
 * @since 0.1.0
 */
export const get = <A>(result: Event.ChatResult & { readonly output?: A }): Effect.Effect<A, Missing> => {
  if ("output" in result) return Effect.succeed(result.output as A)
  const { haltedReason: reason, outcome } = result
  const detail = outcome._tag === "RuleEnded" ? outcome.detail : undefined
  const issues = Json.isObject(detail) && typeof detail["issues"] === "string" ? { issues: detail["issues"] } : {}
  return Effect.fail(new Missing({ reason, outcome, ...issues }))
}
