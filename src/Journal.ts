/**
 * Session journals as kept by stores: records, claims, and store errors. Programs only using sessions do not need this
 * module; it is for implementing a store, reading journals, or catching store errors.
 */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import * as Claims from "./internal/session/claim.ts"
import * as Journals from "./internal/session/journal.ts"
import * as Kept from "./internal/session/kept.ts"
import * as Nested from "./internal/session/nested.ts"
import type * as Records from "./internal/session/records.ts"
import * as States from "./internal/session/state.ts"

export {
  hashOfContent,
  Labels,
  LastRun,
  Origin,
  Receipt,
  Record,
  RunError,
  runErrorOf
} from "./internal/session/records.ts"

export type {
  AttemptFailed,
  CallEnded,
  CallSettled,
  CallStarted,
  CallWaits,
  ClientTools,
  Entry,
  Labelled,
  MessageForwarded,
  MessagesAppended,
  MessageSettled,
  MessageSubmitted,
  MessageWithdrawn,
  Opened,
  Parent,
  Records,
  ReplyReceived,
  RunEnded,
  RunStarted,
  StepCompleted,
  StepPrepared,
  StopRequested,
  ToolDisallowed
} from "./internal/session/records.ts"

export {
  checkSnapshot,
  countsOf,
  dueOf,
  fromText,
  MaxRecordBytes,
  pages,
  SessionConflict,
  StoreError,
  summaryAfter,
  toTexts
} from "./internal/session/journal.ts"

export type {
  AppendOptions,
  Claim,
  Counts,
  Extent,
  Line,
  Listed,
  ListOptions,
  Service
} from "./internal/session/journal.ts"

export { CurrentProcess, Hurry, SessionClaimed } from "./internal/session/claim.ts"

export type { HeldClaim, Options as ClaimOptions } from "./internal/session/claim.ts"

export type { Fold } from "./internal/session/kept.ts"

export type { Next, Summary } from "./internal/session/state.ts"

/**
 * Describes the problems in a whole journal's records, in order. A journal written by operations has no problems.
 * `RunStarted`, `StepCompleted`, `RunEnded` and later `Opened` records carry a fingerprint of the preceding records,
 * which exposes every missing, doubled, moved or altered record. Records after the last fingerprint are checked only by
 * their position. A store refuses a record with altered text while reading the record.
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
 */
export const check: (records: ReadonlyArray<Records.Record>) => ReadonlyArray<string> = States.problemsOf

/**
 * Returns a journal's fold before its first record. A reader following a session applies each arriving record, and asks
 * for the session at that version, rather than loading it again.
 *
 * **Example** (The work that is left after each record)
 *
 * ```ts import.meta.vitest
 * import { Journal, Session } from "heddle"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const program = Effect.gen(function*() {
 *   yield* Session.open("s1")
 *   yield* Session.submit("s1", "Hi")
 *   const store = yield* Session.Store
 *   const fold = Journal.fold("s1")
 *   return yield* store.read("s1", fold.version).pipe(
 *     Stream.map((entry) => {
 *       fold.apply(entry)
 *       return [fold.version, Session.next(fold.kept)]
 *     }),
 *     Stream.runCollect
 *   )
 * })
 *
 * await Effect.runPromise(Effect.provide(program, Session.Store.layerMemory)) // => [[1, "nothing"], [2, "reply"]]
 * ```
 *
 * @category folding
 */
export const fold: (id: string) => Kept.Fold = Kept.fold

/**
 * Returns the summary of a loaded or folded session, for an append at this version to pass to the store.
 *
 * **Example** (The title of a session)
 *
 * ```ts import.meta.vitest
 * import { Journal, Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.gen(function*() {
 *   yield* Session.submit("s1", "What is a heddle?")
 *   return Journal.summaryOf(yield* Session.open("s1")).title
 * })
 *
 * await Effect.runPromise(Effect.provide(program, Session.Store.layerMemory)) // => "What is a heddle?"
 * ```
 *
 * @category getters
 */
export const summaryOf = ({ state }: Pick<Kept.Kept, "state">): States.Summary => States.summaryOf(state)

/**
 * Lists the journal ids of runs started directly by a call's handler. Runs nested inside those are not included: list
 * them by the nested run's own id.
 *
 * **Example** (The journal of a sub-agent)
 *
 * ```ts import.meta.vitest
 * import { Chat, Journal, Session, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 * import * as Stream from "effect/Stream"
 *
 * const helper = Tool.fromChat("helper", { parameters: {}, chat: () => Chat.stream("Help") })
 * const program = Effect.gen(function*() {
 *   const opened = yield* Session.open("s1")
 *   yield* Session.keep(opened, (session) => Session.reply(session, "Hi", { tools: [helper] }))
 *   const ids = yield* Stream.runCollect(Journal.nestedIn("s1", "c1"))
 *   return ids.map((id) => id.split("@")[0])
 * })
 * const model = Script.layer([
 *   [Script.toolCall("c1", "helper"), Script.finish("tool_calls")],
 *   [Script.text("Done"), Script.finish("stop")],
 *   [Script.text("Done"), Script.finish("stop")]
 * ])
 *
 * await Effect.runPromise(Effect.provide(program, Layer.merge(model, Session.Store.layerMemory))) // => ["s1/c1"]
 * ```
 *
 * @category folding
 */
export const nestedIn = (
  id: string,
  toolCallId: string
): Stream.Stream<string, Journals.StoreError, Journals.Store> =>
  Stream.unwrap(Effect.map(Journals.Store, (store) => {
    const prefix = Nested.prefixOf(id, toolCallId)
    return store.list({ prefix }).pipe(
      Stream.map((listed) => listed.id),
      Stream.filter((other) => Nested.isDirect(other.slice(prefix.length)))
    )
  }))

/**
 * Claims a session without reading it: `Session.claim`, given the claim, reads the session and renews the claim. The
 * caller owns the claim and its release. Fails with a `SessionClaimed` if another owner holds the claim.
 *
 * **Example** (A claim that another fiber works under)
 *
 * ```ts import.meta.vitest
 * import { Journal, Session } from "heddle"
 * import * as Effect from "effect/Effect"
 * import * as Fiber from "effect/Fiber"
 *
 * const program = Effect.gen(function*() {
 *   const claim = yield* Journal.claim("s1", { owner: "worker 7" })
 *   const fiber = yield* Effect.forkChild(Effect.scoped(Session.claim(claim)))
 *   const { owner } = yield* Fiber.join(fiber)
 *   return owner
 * })
 *
 * await Effect.runPromise(Effect.provide(program, Session.Store.layerMemory)) // => "worker 7"
 * ```
 *
 * @category claims
 */
export const claim: (
  id: string,
  options?: Claims.Options
) => Effect.Effect<Claims.HeldClaim, Claims.SessionClaimed | Journals.StoreError, Journals.Store> = Claims.take

/**
 * Claims up to `limit` sessions with unfinished work and a free or expired claim, longest expired first. Concurrent
 * owners get different sessions. `Session.claim`, given a claim, reads its session and renews the claim. The caller
 * owns the claims and their release.
 *
 * **Example** (A worker in a few lines)
 *
 * ```ts import.meta.vitest
 * import { Journal, Session } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const work = (claim: Journal.HeldClaim) =>
 *   Effect.scoped(Effect.flatMap(Session.claim(claim), (kept) => Session.drive(kept, { run: () => ({}) })))
 *
 * const program = Effect.gen(function*() {
 *   yield* Session.submit("s1", "Hi")
 *   const claims = yield* Journal.claimUnfinished(10)
 *   yield* Effect.forEach(claims, work, { concurrency: "unbounded" })
 *   return (yield* Session.open("s1")).session.status
 * })
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 *
 * await Effect.runPromise(Effect.provide(program, [model, Session.Store.layerMemory])) // => "completed"
 * ```
 *
 * @category claims
 */
export const claimUnfinished: (
  limit: number,
  options?: Claims.Options
) => Effect.Effect<ReadonlyArray<Claims.HeldClaim>, Journals.StoreError, Journals.Store> = Claims.takeUnfinished
