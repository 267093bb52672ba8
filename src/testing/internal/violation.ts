/** The inputs and the findings of the checks of the laws. Public as members of `Check` and `Recorder`. */
import type * as Event from "../../Event.ts"
import type * as Policy from "../../Policy.ts"

/**
 * A finding of a check: the law that is broken and how. `index` is the position of the event, the message or the log
 * entry that shows it.
 *
 * - `"answers"`: every tool call of an assistant message is answered exactly once, or pending in a suspended run.
 * - `"starts"`: a handler starts at most once per call.
 * - `"lifetime"`: nothing outlives the run, and every finalizer runs exactly once.
 * - `"concurrency"`: executing calls are shared and within the bound, or one and exclusive.
 * - `"order"`: per call started, progress, completed, tail; after the tail only the settlement of a question.
 * - `"frame"`: one `StepCompleted` per step, one `ChatCompleted`, at the end.
 * - `"fold"`: what is awaited is what the stream folds to.
 * - `"history"`: a thread can be sent to any provider as it is.
 * - `"calls"`: a call stays as the model made it, whatever its handler does to its arguments.
 * - `"messages"`: a message into the run has one fate. A delivered one comes to the thread once, a refused one never.
 *
 * @category models
 * @since 0.1.0
 */
export interface Violation {
  /** The law that was broken. */
  readonly law:
    | "answers"
    | "starts"
    | "lifetime"
    | "concurrency"
    | "order"
    | "frame"
    | "fold"
    | "history"
    | "calls"
    | "messages"
  /** A description of the fault. */
  readonly message: string
  /** The position of the event, the message or the entry that shows it. Left out when none does by itself. */
  readonly index?: number
}

/**
 * The facts that are known of the run whose events are checked.
 *
 * @category models
 * @since 0.1.0
 */
export interface Options {
  /** The policy that it ran under. `Policy.standard` by default; the fold depends on it. */
  readonly policy?: Policy.Policy
  /**
   * The result that `Chat.run` gave for the same input, the same script and the same `requestId`. Not compared when it
   * is left out.
   */
  readonly result?: Event.ChatResult
  /**
   * `true` if the reader left, or the stream failed: what is there must be lawful, but need not be whole. `false` by
   * default.
   */
  readonly isCut?: boolean
}

/**
 * The position in a thread at which the check starts, and the calls of its last turn that may be open.
 *
 * @category models
 * @since 0.1.0
 */
export interface ThreadOptions {
  /** The position of the message at which the check starts. `0` by default. */
  readonly from?: number
  /** The ids of the calls of the last turn that may be open. None by default. */
  readonly pending?: ReadonlyArray<string>
}

/**
 * The facts that are known of recorded handlers.
 *
 * @category models
 * @since 0.1.0
 */
export interface HandlerOptions {
  /** The number of handlers that may run at once. Any number by default. */
  readonly bound?: number
  /** Returns `true` if the handlers of a name run alone. None do by default. */
  readonly isExclusive?: (name: string) => boolean
  /**
   * The names of handlers that the run gave up and reported. They may still be alive, keep exclusive ones out and take
   * no place of others. None by default.
   */
  readonly abandoned?: ReadonlyArray<string>
}

/**
 * One thing that happened: an event was emitted, or a tracked effect started, ended in one of three ways, or had its
 * finalizer run.
 *
 * @category models
 * @since 0.1.0
 */
export type Entry =
  | {
    readonly _tag: "Emitted"
    /** The time, in milliseconds after the recorder was made. */
    readonly at: number
    /** The event. */
    readonly event: Event.Event
    /** The text of the calls that the event had at that time, for `check.calls`. */
    readonly calls?: string
  }
  | {
    readonly _tag: Mark
    /** The time, in milliseconds after the recorder was made. */
    readonly at: number
    /** The name under which the effect is tracked. */
    readonly name: string
  }

/**
 * A mark of a tracked effect. Each run is `Started` first, then exactly one of `Succeeded`, `Failed` (which a defect
 * is, too) and `Interrupted`, then `Finalized`.
 *
 * @category models
 * @since 0.1.0
 */
export type Mark = "Started" | "Succeeded" | "Failed" | "Interrupted" | "Finalized"
