/**
 * The journals of sessions, as stores keep them: records, claims, and the errors of stores. Programs that only use
 * sessions do not need this module. Programs that implement a store, read journals, or catch the errors of stores do.
 *
 * @since 0.1.0
 */
import type * as Records from "./internal/session/records.ts"
import * as States from "./internal/session/state.ts"

export {
  /**
   * A receipt of a command.
   *
   * @see {@link Record}
   *
   * @category schemas
   * @since 0.1.0
   */
  Receipt,
  /**
   * A record: one thing that happened in a session. `RunStarted` precedes the records of a run and `RunEnded` follows
   * them.
   *
   * **Example** (A record as JSON)
   *
   * ```ts import.meta.vitest
   * import { Journal, Message } from "heddle"
   * import * as Schema from "effect/Schema"
   *
   * const record: Journal.Record = { _tag: "MessagesAppended", messages: [Message.user("Hi")] }
   * const json = Schema.encodeSync(Schema.toCodecJson(Journal.Record))(record)
   *
   * json // => { _tag: "MessagesAppended", messages: [{ role: "user", content: "Hi", metadata: {} }] }
   * ```
   *
   * @category schemas
   * @since 0.1.0
   */
  Record,
  /**
   * The error of a run that failed without a result.
   *
   * @see {@link Receipt}
   *
   * @category schemas
   * @since 0.1.0
   */
  RunError
} from "./internal/session/records.ts"

export type {
  AttemptFailed,
  CallEnded,
  CallSettled,
  CallStarted,
  CallWaits,
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
  StopRequested
} from "./internal/session/records.ts"

export {
  /**
   * Largest size of a record in bytes of JSON, 8 MiB by default. A larger record is refused when it is written, with
   * the `StoreError` `too_large`, and the operation ends with it.
   *
   * @category services
   * @since 0.1.0
   */
  MaxRecordBytes,
  /**
   * The journal has changed since it was read. Nothing was appended. Load the session again and decide again.
   *
   * @category errors
   * @since 0.1.0
   */
  SessionConflict,
  /**
   * A store operation failed.
   *
   * @category errors
   * @since 0.1.0
   */
  StoreError,
  summaryAfter
} from "./internal/session/journal.ts"

export type { AppendOptions, Claim, Listed, ListOptions, Service } from "./internal/session/journal.ts"

export {
  /**
   * The session is claimed by another owner, or this owner's claim has ended.
   *
   * @category errors
   * @since 0.1.0
   */
  SessionClaimed
} from "./internal/session/claim.ts"

export type { HeldClaim, Options as ClaimOptions } from "./internal/session/claim.ts"

export type { Next, Summary } from "./internal/session/state.ts"

/**
 * Describes the problems of a whole journal's records, in their order. A journal that operations have written has
 * none.
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
