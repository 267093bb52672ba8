/** AI SDK versions supported by `UiStream`. */
import * as Values from "../../internal/declare/values.ts"

/**
 * Major version of the package `ai` on the page, which determines the available chunks.
 *
 * - `7` has them all.
 * - `6` cannot discard: a discarded reply stays in the message, in its own step ending with the part
 *   `data-heddle-reset`, and its unanswered calls become errors. A stopped run has the finish reason `other`; the
 *   outcome in the message metadata identifies a stop.
 * - `5` also lacks approvals, denials and finish reasons. An approval becomes a `data-heddle-question` part with kind
 *   `approval`, answered through `addToolOutput` with `{ approved, reason?, arguments? }`. A denied call becomes an
 *   error.
 */
export type Protocol = 5 | 6 | 7

/** Kind of the option. */
export const protocol: Values.Kind = Values.described(
  Values.oneOf(5, 6, 7),
  "5, 6 or 7, the major version of the package ai"
)
