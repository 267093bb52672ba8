/** The finish reasons of a message and of a response, which both have in their schema. Public as `Response.FinishReason`. */
import * as Schema from "effect/Schema"

export const FinishReason = Schema.Literals(["stop", "length", "tool_calls", "content_filter", "error", "other"])
