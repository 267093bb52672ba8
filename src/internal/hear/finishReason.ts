/** The closed set of finish reasons: messages carry one, and responses explain it. */
import * as Schema from "effect/Schema"

export const FinishReason = Schema.Literals(["stop", "length", "tool_calls", "content_filter", "error", "other"])

const literals: ReadonlyArray<string> = FinishReason.literals

/** The word of an adapter that is no finish reason of ours ends the message all the same. */
export const normalised = (reason: (typeof FinishReason)["Type"] | null): (typeof FinishReason)["Type"] | null =>
  reason === null || reason === undefined || literals.includes(reason) ? reason ?? null : "other"
