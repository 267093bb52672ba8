/**
 * Typed answers. An output contains a schema and the way to ask the model for a fitting answer; a run with an output
 * ends with a value of the schema's type.
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
 * A typed answer, made by `make`.
 *
 * @category models
 */
export interface Output<out A, out R = never> {
  /** Tool through which the model answers. `undefined` if it never uses a tool. */
  readonly tool: Tool.Any | undefined
  /** `true` if the model answers only through the tool: `mode: "tool"`. */
  readonly isByTool: boolean
  /** Decodes an answer encoded for events and journals. */
  readonly decode: (encoded: unknown) => Effect.Effect<A, Schema.SchemaError, R>
  /** Makes the rule for a run. */
  readonly rule: (start: OutputStart) => Rule<never, R>
}

/**
 * A run ended without a typed answer.
 *
 * @category errors
 */
export class Missing extends Schema.TaggedError<Missing>("heddle/Output/Missing")("Missing", {
  /** Outcome of the run, as one word. */
  reason: Schema.String,
  /** Problems of the last answer, if an answer failed to fit. */
  issues: Schema.optionalKey(Schema.String),
  /** Outcome of the run. */
  outcome: Json.Opaque
}) {
  override get message(): string {
    const issues = this.issues === undefined ? "" : `: ${this.issues}`
    return `the run has no answer of the output's type; it ended as ${this.reason}${issues}`
  }
}

/**
 * Options of an output.
 *
 * @category models
 */
export interface Options {
  /**
   * Way to ask the model. `"native"` sends the schema to the provider with each request. `"tool"` offers a tool with
   * the schema as its parameters; calling the tool is the answer. `"finalize"` runs the tools without the schema, then
   * asks once more with it. `"auto"` is `"native"` if the step's adapter supports the schema beside the step's tools,
   * else `"tool"`. `"auto"` by default.
   */
  readonly mode?: "auto" | "native" | "tool" | "finalize" | undefined
  /** Number of repeated requests after an unfitting or missing answer. 2 by default. */
  readonly retries?: number | undefined
  /** Schema name sent to the provider: 1 to 64 letters, digits, `_` or `-`. `"answer"` by default. */
  readonly name?: string | undefined
  /** Description of the answer for the model. None by default. */
  readonly description?: string | undefined
  /** Name of the answer tool, as for `name`. `"final_answer"` by default. */
  readonly toolName?: string | undefined
}

const knownOptions = Values.nullable(
  {
    mode: Values.oneOf("auto", "native", "tool", "finalize"),
    retries: Values.whole,
    name: Values.sentName,
    description: Values.text,
    toolName: Values.sentName
  } satisfies Schemas.NamesOf<Options>
)

/**
 * Makes an output from a schema, for a run's `output` option.
 *
 * **Details**
 *
 * After an unfitting answer the model is asked again, and learns what did not fit. Such a repair is a turn. After
 * `retries` repairs the outcome is `RuleEnded` with the rule `output`, and with `issues` and `text` as its `detail`. A
 * run reaching `maxTurns`, or the reserve of its deadline or budget, makes one more call for the answer. On the wire, a
 * root other than one object, such as a union, is wrapped as the member `value`. A schema without a JSON Schema throws.
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
 */
export const make = <A, I, RD, RE>(schema: Schema.Codec<A, I, RD, RE>, options: Options = {}): Output<A, RD | RE> => {
  if (!Schema.isSchema(schema)) {
    throw new TypeError("Output.make: schema must be a Schema, such as Schema.Struct({ … })")
  }
  if (!Json.isObject(options as unknown)) {
    throw new TypeError("Output.make: the options must be an object, such as { retries: 1 }")
  }
  Schemas.checkNames("Output.make", options, knownOptions)
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
      handler: (value) => Effect.map(form.write(value), (answer) => Tool.halt(OutputRule.name, answer))
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
 * Returns the typed answer from a result. Fails if the run has no answer.
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
 */
export const get = <A>(result: Event.ChatResult & { readonly output?: A }): Effect.Effect<A, Missing> => {
  if ("output" in result) return Effect.succeed(result.output as A)
  const { haltedReason: reason, outcome } = result
  const detail = outcome._tag === "RuleEnded" ? outcome.detail : undefined
  const issues = Json.isObject(detail) && typeof detail["issues"] === "string" ? { issues: detail["issues"] } : {}
  return Effect.fail(new Missing({ reason, outcome, ...issues }))
}
