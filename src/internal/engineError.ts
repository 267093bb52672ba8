/** The error of a run that cannot be driven as asked. Public as `Step.EngineError`. */
import * as Schema from "effect/Schema"
import * as Json from "./json.ts"

/**
 * The run cannot be driven as asked: there is no adapter, or a call names a tool that does not exist under a policy
 * that fails the turn. `metadata` names what is missing.
 *
 * @category errors
 * @since 0.1.0
 */
export class EngineError extends Schema.TaggedError<EngineError>("heddle/Step/EngineError")("EngineError", {
  reason: Schema.Literals(["missing_adapter", "unknown_tool"]),
  detail: Schema.optionalKey(Schema.String),
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
}) {
  override get message(): string {
    return this.detail ?? `engine error: ${this.reason}`
  }
}
