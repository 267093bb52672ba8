/** The error of a run that cannot be driven as asked. Public as `Step.EngineError`. */
import * as Schema from "effect/Schema"
import type * as Message from "../../Message.ts"
import * as Toolbox from "../declare/toolbox.ts"
import * as Json from "../json.ts"

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

/** The first call that names no tool, as the error of a turn that must not run then. */
export const unknownTool = (
  calls: ReadonlyArray<Pick<Message.ToolCall, "name">>,
  tools: Toolbox.Toolbox
): EngineError | undefined => {
  const unknown = calls.find((call) => Toolbox.find(tools, call.name) === undefined)
  if (unknown === undefined) return undefined
  return new EngineError({
    reason: "unknown_tool",
    detail: `tool ${unknown.name} not in engine.tools`,
    metadata: { toolName: unknown.name }
  })
}
