/** The versions of the AI SDK that the chunks of `UiStream` may be written for. */
import * as Values from "../../internal/declare/values.ts"

/**
 * The major version of the package `ai` on the page, whose words the chunks have.
 *
 * - `7` has all of them.
 * - `6` cannot discard: a discarded reply stays in the message, in a step of its own that ends with the part
 *   `data-heddle-reset`, and its calls without an answer are errors. A stopped run has the finish reason `other`. The
 *   outcome in the metadata of its message tells it from another run.
 * - `5` also lacks approvals, denials and finish reasons. A permission is a part `data-heddle-question` of the kind
 *   `approval`, which `addToolOutput` answers with `{ approved, reason?, arguments? }`. A denied call is an error.
 */
export type Protocol = 5 | 6 | 7

/** The kind of the option that names it. */
export const protocol: Values.Kind = Values.described(
  Values.oneOf(5, 6, 7),
  "5, 6 or 7, the major version of the package ai"
)
