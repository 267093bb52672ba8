/** The closed set of finish reasons: messages carry one, and responses explain it. */
import * as Schema from "effect/Schema"

export const FinishReason = Schema.Literals(["stop", "length", "tool_calls", "content_filter", "error", "other"])

const literals: ReadonlyArray<string> = FinishReason.literals

/** An unknown finish reason counts as `other`: the message has ended in any case. */
export const normalised = (reason: (typeof FinishReason)["Type"] | null): (typeof FinishReason)["Type"] | null =>
  reason === null || reason === undefined || literals.includes(reason) ? reason ?? null : "other"
