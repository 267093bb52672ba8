/**
 * What the checks of the laws are given, and what they find. Public as members of `Laws` and `Recorder`.
 */
import type * as Event from "../../Event.ts"
import type * as Policy from "../../Policy.ts"

/**
 * What a check found: the law that is broken and how. `index` is the position of the event, the message or the log entry
 * that shows it.
 *
 * - `"answers"`: every tool call of an assistant message is answered exactly once, or pending in a suspended run.
 * - `"starts"`: a handler starts at most once per call.
 * - `"lifetime"`: nothing outlives the run, and every finalizer runs exactly once.
 * - `"concurrency"`: executing calls are shared and within the bound, or one and exclusive.
 * - `"order"`: per call started, progress, completed, tail, and nothing after the tail but the settlement of a question.
 * - `"frame"`: one `StepCompleted` per step, one `ChatCompleted`, at the end.
 * - `"fold"`: what is awaited is what the stream folds to.
 * - `"history"`: a thread can be sent to any provider as it is.
 * - `"calls"`: a call stays as the model made it, whatever its handler does to its arguments.
 *
 * @category models
 * @since 0.1.0
 */
export interface Violation {
  readonly law: "answers" | "starts" | "lifetime" | "concurrency" | "order" | "frame" | "fold" | "history" | "calls"
  readonly message: string
  readonly index?: number
}

/**
 * What is known of the run whose events are checked.
 *
 * - `policy`: the one it ran under, `Policy.standard` by default; the fold depends on it.
 * - `result`: what `Chat.run` gave for the same input, the same script and the same `requestId`.
 * - `isCut`: the reader left, or the stream failed; what is there must be lawful, but need not be whole.
 *
 * @category models
 * @since 0.1.0
 */
export interface Options {
  readonly policy?: Policy.Policy
  readonly result?: Event.ChatResult
  readonly isCut?: boolean
}

/**
 * Where in a thread the check starts, and which calls of its last turn may be open.
 *
 * @category models
 * @since 0.1.0
 */
export interface HistoryOptions {
  readonly from?: number
  readonly pending?: ReadonlyArray<string>
}

/**
 * What is known of recorded handlers.
 *
 * - `bound`: how many may run at once; any number by default.
 * - `isExclusive`: whether the handlers of a name run alone; none do by default.
 * - `abandoned`: names of handlers that the run gave up and reported. They may still be alive, keep exclusive ones out
 *   and take no place of others.
 *
 * @category models
 * @since 0.1.0
 */
export interface HandlerOptions {
  readonly bound?: number
  readonly isExclusive?: (name: string) => boolean
  readonly abandoned?: ReadonlyArray<string>
}

/**
 * One thing that happened, `at` milliseconds after the recorder was made: an event was emitted, or a tracked effect
 * started, ended in one of three ways, or had its finalizer run. `calls` is the text of the calls that an event told of
 * at that time, for `Laws.calls`.
 *
 * @category models
 * @since 0.1.0
 */
export type Entry =
  | { readonly _tag: "Emitted"; readonly at: number; readonly event: Event.Event; readonly calls?: string }
  | { readonly _tag: Mark; readonly at: number; readonly name: string }

/**
 * What is noted of a tracked effect. Each run is `Started` first, then exactly one of `Succeeded`, `Failed` (which a
 * defect is, too) and `Interrupted`, then `Finalized`.
 *
 * @category models
 * @since 0.1.0
 */
export type Mark = "Started" | "Succeeded" | "Failed" | "Interrupted" | "Finalized"
