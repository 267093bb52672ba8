/**
 * The seam writing a value as text for the model. An encoder is pure: equal values give equal text. A failing or dying
 * encoder makes the call an `encoding_failed` error and nothing more.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import { causeFields, described, describedText, errorFields, shownText } from "./internal/answer/errorFields.ts"
import * as ToolOutcomes from "./internal/declare/outcome.ts"
import { reasonText } from "./internal/declare/outcome.ts"
import * as Tool from "./Tool.ts"

/**
 * An encoder.
 *
 * @category services
 */
export interface Service {
  /**
   * Returns the text for a value. It must depend on nothing else. A failure makes the call an `encoding_failed` error.
   */
  readonly encode: (value: unknown) => Effect.Effect<string, unknown>
}

const errorEnvelope = (reason: unknown): unknown => {
  if (reason instanceof Tool.ToolError) return { error: shownText(reason.message), code: reason.reason }
  const { details, text } = described(reason)
  return details === undefined ? { error: text } : { error: text, details }
}

const stringify = (value: unknown): string => {
  const text = JSON.stringify(value ?? null)
  if (text === undefined) throw new TypeError(`a ${typeof value} has no JSON form`)
  return text
}

const write = (value: unknown, envelope: (reason: unknown) => unknown): string => {
  if (typeof value === "string") return value
  if (!ToolOutcomes.isBranded(value)) return stringify(value)
  // Written around its value: a member without a JSON form would vanish unnoticed.
  if (value._tag === "Ok") return `{"ok":${stringify(value.value)}}`
  return value._tag === "Error" ? stringify(envelope(value.error)) : stringify(value)
}

const encodeWith = (text: (value: unknown) => string): Service => ({
  encode: (value) => Effect.try({ try: () => text(value), catch: (cause) => cause })
})

/**
 * The default: strings unchanged, everything else as JSON, `undefined` as `null`. `Tool.ok(x)` becomes `{"ok": x}`.
 * Functions, symbols and cycles fail.
 *
 * `Tool.error(reason)` becomes an envelope `{"error": message}`. An error made by the runtime adds a `code`, the
 * `ToolError` reason. Other errors add `details`, if any: the output of the error class's schema or, without a schema,
 * the error's tag, name, and own fields holding text, numbers or booleans. An error without a message shows its tag or
 * its name. The encoder never writes an error's cause or stack, a request or response object, or a key in a URL. The
 * same applies to errors inside a list or inside data a handler failed with, at any depth.
 *
 * **Example** (What a model reads)
 *
 * ```ts import.meta.vitest
 * import { Encoder, Tool } from "heddle"
 * import * as Effect from "effect/Effect"
 * import * as Schema from "effect/Schema"
 *
 * Effect.runSync(Encoder.json.encode("as it is")) // => "as it is"
 * Effect.runSync(Encoder.json.encode({ celsius: 7 })) // => '{"celsius":7}'
 * Effect.runSync(Encoder.json.encode(Tool.error("no such city"))) // => '{"error":"no such city"}'
 *
 * class NotFound extends Schema.TaggedError<NotFound>()("NotFound", { path: Schema.String }) {}
 *
 * Effect.runSync(Encoder.json.encode(Tool.error(new NotFound({ path: "/a" }))))
 * // => '{"error":"NotFound","details":{"path":"/a"}}'
 * ```
 *
 * @category constructors
 */
export const json: Service = encodeWith((value) => write(value, errorEnvelope))

/** A reason as written by ALLM's inspection: identifiers (symbols here) get a leading colon. */
const inspect = (reason: unknown): string => {
  if (typeof reason === "symbol") return `:${reason.description ?? ""}`
  if (!(reason instanceof Tool.ToolError)) return describedText(reason)
  const cause = reason.cause === undefined ? {} : { cause: causeFields(reason.cause) }
  return `${shownText(reason.message)} ${JSON.stringify({ ...errorFields(reason), ...cause })}`
}

/**
 * Writes errors like ALLM: a debug rendering of the reason, with `:name` for an identifier (`Symbol.for("name")`).
 *
 * **Example** (A debug rendering)
 *
 * ```ts import.meta.vitest
 * import { Encoder, Tool } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * Effect.runSync(Encoder.allm.encode(Tool.error(Symbol.for("not_found")))) // => '{"error":":not_found"}'
 * ```
 *
 * @category constructors
 */
export const allm: Service = encodeWith((value) => write(value, (reason) => ({ error: inspect(reason) })))

/** Writes an object without a JSON form (usually a cycle) as its keys. Any other value without a JSON form throws. */
const jsonOrKeys = (value: unknown): string => {
  const json = Result.try({ try: () => stringify(value), catch: (cause) => cause })
  return Result.isFailure(json) && typeof value === "object" && value !== null
    ? Object.keys(value).join(", ")
    : Result.getOrThrow(json)
}

const plainText = (value: unknown): string => {
  if (value === null || value === undefined) return "Tool executed successfully"
  if (typeof value === "string") return value
  if (!ToolOutcomes.isBranded(value)) return jsonOrKeys(value)
  if (value._tag === "Ok") return plainText(value.value)
  if (value._tag !== "Error") return jsonOrKeys(value)
  const { error } = value
  return `Tool execution failed: ${
    error instanceof Tool.ToolError ? shownText(reasonText(error)) : describedText(error)
  }`
}

/**
 * Writes like falai, in plain words: a failure as `Tool execution failed: <reason>`, nothing as
 * `Tool executed successfully`, strings unchanged, everything else as JSON, and a value with a cycle as its key list.
 * It goes with `Policy.falai`.
 *
 * **Example** (In plain words)
 *
 * ```ts import.meta.vitest
 * import { Encoder, Tool } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * Effect.runSync(Encoder.falai.encode(Tool.error("no such city"))) // => "Tool execution failed: no such city"
 * Effect.runSync(Encoder.falai.encode(null)) // => "Tool executed successfully"
 * Effect.runSync(Encoder.falai.encode({ celsius: 7 })) // => '{"celsius":7}'
 * ```
 *
 * @category constructors
 */
export const falai: Service = encodeWith(plainText)

/**
 * The run's encoder. A Context reference: {@link json} without a layer.
 *
 * @category references
 */
export const Encoder: Context.Reference<Service> = Context.Reference<Service>("heddle/Encoder", {
  defaultValue: () => json
})

/**
 * Replaces the encoder.
 *
 * **Example** (An encoder of your own)
 *
 * ```ts import.meta.vitest
 * import { Encoder, Message, Tool, ToolRunner } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const now = Tool.make("now", { parameters: {}, handler: () => Effect.succeed({ hour: 7 }) })
 * const terse = Encoder.layer({ encode: (value) => Effect.succeed(Object.values(value as object).join(" ")) })
 * const { messages } = await Effect.runPromise(
 *   ToolRunner.run([Message.toolCall("c0", "now")], [now]).pipe(Effect.provide(terse))
 * )
 *
 * messages[0]?.content // => "7"
 * ```
 *
 * @category layers
 */
export const layer = (service: Service): Layer.Layer<never> => Layer.succeed(Encoder, service)
