/**
 * The journals of sessions, as stores keep them: records, claims, and the errors of stores. Programs that only use
 * sessions do not need this module. Programs that implement a store, read journals, or catch the errors of stores do.
 *
 * @since 0.1.0
 */
import type * as Records from "./internal/session/records.ts"
import * as States from "./internal/session/state.ts"

export { LastRun, Origin, Receipt, Record, RunError } from "./internal/session/records.ts"

export type {
  AttemptFailed,
  CallEnded,
  CallSettled,
  CallStarted,
  CallWaits,
  ClientTools,
  Entry,
  MessagesAppended,
  MessageSubmitted,
  Opened,
  Parent,
  Records,
  ReplyReceived,
  RunEnded,
  RunStarted,
  StepCompleted,
  StepPrepared,
  StopRequested
} from "./internal/session/records.ts"

export { MaxRecordBytes, SessionConflict, StoreError, summaryAfter } from "./internal/session/journal.ts"

export type { AppendOptions, Claim, Counts, Listed, ListOptions, Service } from "./internal/session/journal.ts"

export { SessionClaimed } from "./internal/session/claim.ts"

export type { HeldClaim, Options as ClaimOptions } from "./internal/session/claim.ts"

export type { Next, Summary } from "./internal/session/state.ts"

/**
 * Describes the problems of a whole journal's records, in their order. A journal that operations have written has
 * none. `RunStarted`, `StepCompleted`, `RunEnded` and later `Opened` records have a fingerprint of the records before
 * them: one that is missing, doubled, moved or altered there is named. The records behind the last fingerprint are
 * checked by their places alone. A store refuses a record whose text was altered when it reads the record.
 *
 * **Example** (A run without a start)
 *
 * ```ts import.meta.vitest
 * import { Journal, Session } from "heddle"
 *
 * const problems = Journal.check([
 *   { _tag: "Opened", format: 1, session: Session.make() },
 *   { _tag: "RunEnded", requestId: "r1", haltedReason: "completed" }
 * ])
 *
 * problems // => ["record 2, RunEnded, belongs to run r1, which is not open"]
 * ```
 *
 * @category stores
 * @since 0.1.0
 */
export const check: (records: ReadonlyArray<Records.Record>) => ReadonlyArray<string> = States.problemsOf
