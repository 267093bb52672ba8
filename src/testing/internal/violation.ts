/** Law checks' inputs and findings, public through `Check` and `Recorder`. */
import type * as Event from "../../Event.ts"
import type * as Policy from "../../Policy.ts"

/**
 * A finding: the broken law and how it was broken. `index` is the position of the revealing event, message or log
 * entry.
 *
 * - `"answers"`: every tool call in an assistant message is answered exactly once, or pending in a suspended run.
 * - `"starts"`: a handler starts at most once per attempt, and a call has at most one start event of its own in a run.
 * - `"lifetime"`: nothing outlives the run, and every finalizer runs exactly once.
 * - `"concurrency"`: running calls are either all shared and within the bound, or a single exclusive call.
 * - `"order"`: per call, the order is started, progress, completed, tail; after the tail only a question's settlement.
 * - `"frame"`: one `StepCompleted` per step, one `ChatCompleted`, at the end.
 * - `"fold"`: the awaited result equals the fold of the stream.
 * - `"history"`: a thread can be sent to any provider unchanged.
 * - `"calls"`: a call stays as the model made it, whatever its handler does to its arguments.
 * - `"messages"`: a message into the run has one fate. A delivered message enters the thread once, a refused message
 *   never.
 * - `"output"`: each part of a typed answer belongs to the JSON of its reply, and each repair counts once.
 * - `"switches"`: a fallback asks another model only in place of a reply that has said nothing.
 *
 * @category models
 */
export interface Violation {
  /** Broken law. */
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
    | "output"
    | "switches"
  /** Description of the fault. */
  readonly message: string
  /** Position of the revealing event, message or entry. Undefined without a single such position. */
  readonly index?: number
}

/**
 * Known facts about the run whose events are checked.
 *
 * @category models
 */
export interface Options {
  /** Policy of the run. `Policy.standard` by default; the fold depends on the policy. */
  readonly policy?: Policy.Policy
  /** Result of `Chat.run` for the same input, script and `requestId`. By default no result is compared. */
  readonly result?: Event.ChatResult
  /**
   * `true` if the reader left, or the stream failed: the events must be lawful but may be incomplete. `false` by
   * default.
   */
  readonly isCut?: boolean
}

/**
 * Start position in a thread, and the calls of its last turn allowed to be open.
 *
 * @category models
 */
export interface ThreadOptions {
  /** Message position at which the check starts. `0` by default. */
  readonly from?: number
  /** Ids of calls in the last turn allowed to be open. None by default. */
  readonly pending?: ReadonlyArray<string>
}

/**
 * Known facts about recorded handlers.
 *
 * @category models
 */
export interface HandlerOptions {
  /** Maximum number of concurrent handlers. Unlimited by default. */
  readonly bound?: number
  /** Returns `true` if handlers with a name run alone. By default none do. */
  readonly isExclusive?: (name: string) => boolean
  /**
   * Names of handlers the run abandoned and reported. They may still be alive, which excludes exclusive handlers but
   * takes no other handler's place. None by default.
   */
  readonly abandoned?: ReadonlyArray<string>
}

/**
 * A single occurrence: an event was emitted, or a tracked effect started, ended in one of three ways, or ran its
 * finalizer.
 *
 * @category models
 */
export type Entry =
  | {
    readonly _tag: "Emitted"
    /** Time since the recorder was made, in milliseconds. */
    readonly at: number
    /** Emitted event. */
    readonly event: Event.Event
    /** The event's calls at that time, as text, for `check.calls`. */
    readonly calls?: string
  }
  | {
    readonly _tag: Mark
    /** Time since the recorder was made, in milliseconds. */
    readonly at: number
    /** Name of the tracked effect. */
    readonly name: string
  }

/**
 * A mark of a tracked effect. Each run is first `Started`, then exactly one of `Succeeded`, `Failed` (including
 * defects) and `Interrupted`, then `Finalized`.
 *
 * @category models
 */
export type Mark = "Started" | "Succeeded" | "Failed" | "Interrupted" | "Finalized"
