/** The closed set of finish reasons: messages carry one, and responses explain it. */
import * as Schema from "effect/Schema"

export const FinishReason = Schema.Literals(["stop", "length", "tool_calls", "content_filter", "error", "other"])
