/** The error of a call that nobody reported. Public as `Tool.ToolError`. */
import * as Schema from "effect/Schema"
import * as Json from "../json.ts"

/**
 * What the runtime says of a call that went wrong without the handler reporting it. `cause` keeps what was thrown (a
 * thrown value that is no `Error` stands as `{ _tag: "Thrown", value }`), `detail` is safe to show to a model.
 *
 * - `handler_raised`, `handler_exit`: the handler threw, or ended by interruption of its own
 * - `timeout`: it took longer than its limit
 * - `invalid_return`: it returned something that is no result
 * - `not_found`: the tool has no handler
 * - `encoding_failed`: its result cannot be written as text
 * - `unknown_tool`, `invalid_arguments`, `truncated_arguments`: the call itself cannot be run
 * - `denied`: its tool's `validate` or `authorize` did not let it run; `metadata.gate` names which
 * - `cancelled`: the call was answered without having been run to its end
 *
 * @category errors
 * @since 0.1.0
 */
export class ToolError extends Schema.TaggedError<ToolError>("heddle/Tool/ToolError")("ToolError", {
  reason: Schema.Literals([
    "handler_raised",
    "handler_exit",
    "timeout",
    "invalid_return",
    "not_found",
    "encoding_failed",
    "unknown_tool",
    "invalid_arguments",
    "truncated_arguments",
    "denied",
    "cancelled"
  ]),
  toolName: Schema.optionalKey(Schema.String),
  toolCallId: Schema.optionalKey(Schema.String),
  detail: Schema.optionalKey(Schema.String),
  cause: Schema.optionalKey(Json.Opaque),
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
}) {
  override get message(): string {
    const subject = this.toolName === undefined ? "tool error" : `tool error (${this.toolName})`
    return `${subject}: ${this.reason}${this.detail === undefined ? "" : `: ${this.detail}`}`
  }
}

/** A call, as far as an error names it. */
export interface CallNamed {
  readonly id: string
  readonly name: string
}

/** The error of one call. */
export const toolError = (
  reason: ToolError["reason"],
  call: CallNamed,
  fields: Partial<Pick<ToolError, "detail" | "cause" | "metadata">> = {}
): ToolError => new ToolError({ reason, toolName: call.name, toolCallId: call.id, ...fields })

/** The error of a call that took longer than it may. `subject` is what took so long, where that is not the call itself. */
export const timedOut = (call: CallNamed, millis: number, subject = ""): ToolError =>
  toolError("timeout", call, { detail: `${subject}timed out after ${millis} ms` })

/** Reasons for which a call was not run, or not to its end. */
const unrun: ReadonlySet<ToolError["reason"]> = new Set([
  "unknown_tool",
  "invalid_arguments",
  "truncated_arguments",
  "denied",
  "cancelled"
])

/** Whether a call broke: it ran, and its handler did not report how it ended. */
export const isCrash = (error: unknown): error is ToolError => error instanceof ToolError && !unrun.has(error.reason)

/** What is said of an error to somebody who wants no more than the reason: of a denial, the denier's own words. */
export const reasonText = (error: ToolError): string =>
  error.reason === "denied" ? error.detail ?? error.message : error.message
