/** The finish reasons, for the schemas of messages and of responses. Public as `Response.FinishReason`. */
import * as Schema from "effect/Schema"

export const FinishReason = Schema.Literals(["stop", "length", "tool_calls", "content_filter", "error", "other"])
