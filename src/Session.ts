/**
 * A conversation as plain data. It waits for a person or another system, and continues in this process or the next.
 * Every operation takes a session and returns the next session. A store records events as they happen, so two writers
 * cannot fork a session, and a crash loses nothing. Every provider accepts a session's thread unchanged, except for its
 * suspended calls.
 *
 * **Details**
 *
 * An operation not allowed by the session's status is a defect naming the right call; unfitting data is a typed error.
 * Options belong to one run and are never recorded. `context` and `sessionId` come from the caller, else from the
 * session, else from the application. The data functions (`answer`, `approve`, `deny`, `append`, ...) also take the
 * session last.
 */
import type * as Effect from "effect/Effect"
import { dual } from "effect/Function"
import type * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import type * as Stream from "effect/Stream"
import type * as Adapter from "./Adapter.ts"
import type * as Chat from "./Chat.ts"
import type * as Event from "./Event.ts"
import type * as Declared from "./internal/declare/tool.ts"
import type * as Claims from "./internal/session/claim.ts"
import * as SessionData from "./internal/session/data.ts"
import * as Drives from "./internal/session/drive.ts"
import * as SessionEvents from "./internal/session/events.ts"
import * as Journals from "./internal/session/journal.ts"
import * as Kept from "./internal/session/kept.ts"
import * as Operations from "./internal/session/operations.ts"
import type * as Records from "./internal/session/records.ts"
import * as SessionRun from "./internal/session/run.ts"
import * as Settling from "./internal/session/settling.ts"
import type * as States from "./internal/session/state.ts"
import * as StoredCommands from "./internal/session/storedCommands.ts"
import type * as Writers from "./internal/session/writer.ts"
import type * as Message from "./Message.ts"
import type * as Thread from "./Thread.ts"
import type * as Tool from "./Tool.ts"

export { Answer, Session, SessionError, Status } from "./internal/session/data.ts"

export type {
  Allowed,
  ApprovedAnswer,
  DeniedAnswer,
  ExpiredAnswer,
  NestedAnswers,
  Options,
  Resumable,
  Resume,
  Settled,
  ValueAnswer
} from "./internal/session/data.ts"

export { Store } from "./internal/session/journal.ts"

export type {
  Claimed,
  Inspected,
  InspectedCall,
  Interrupted,
  InterruptedCall,
  Kept,
  OpenOptions,
  Outcome,
  Reloaded,
  View,
  ViewedRun,
  WaitsFor
} from "./internal/session/kept.ts"

export type { StopReport, WholeStep } from "./internal/session/state.ts"

export { ResumeError } from "./internal/session/resumption.ts"

export type { KeepError } from "./internal/session/writer.ts"

export type { Options as DriveOptions, RunOf, RunOptions } from "./internal/session/drive.ts"

export type { RunsOptions } from "./internal/session/run.ts"

export type { OperationError } from "./internal/session/operations.ts"

export type { ApproveOptions, SettleOptions, Submission, Verdict } from "./internal/session/settling.ts"

export type {
  Forked,
  ForkOptions,
  LabelOptions,
  LabelReceipt,
  RunStopOptions,
  StopOptions,
  StopReceipt,
  SubmitOptions,
  SubmitReceipt
} from "./internal/session/storedCommands.ts"

export type { Done, Mode, StreamReducer } from "./internal/session/events.ts"

/**
 * Makes an idle session from an id, a thread, a context and metadata, all optional.
 *
 * **Example** (A new session)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 *
 * const session = Session.make({ context: { userId: "u1" } })
 *
 * session.status // => "idle"
 * ```
 *
 * @category constructors
 */
export const make: (options?: SessionData.Options) => SessionData.Session = SessionData.make

/**
 * Returns a session in status `error` as idle, with its whole thread and without `metadata.error`. Returns any other
 * session unchanged.
 *
 * **Gotchas**
 *
 * `recover` only changes data, and records nothing by itself. Inside {@link keep}, recover in the continuing operation:
 * `(session) => Session.reply(Session.recover(session), …)`. An operation that only recovers records nothing.
 *
 * **Example** (Continuing after a reply that broke)
 *
 * ```ts import.meta.vitest
 * import * as Effect from "effect/Effect"
 * import { Message, Session } from "heddle"
 * import { Script } from "heddle/testing"
 *
 * const { finish, streamError, text } = Script
 * const broken = [text("It is "), streamError("network_error")]
 * const whole = [text("It is raining."), finish("stop")]
 *
 * const program = Effect.gen(function*() {
 *   const { session } = yield* Session.start([Message.user("Is it raining?")])
 *   const after = yield* Session.reply(Session.recover(session), "Please say that again.")
 *   return [session.status, after.result.finalResponse?.outputText]
 * })
 *
 * await Effect.runPromise(Effect.provide(program, Script.layer([broken, whole]))) // => ["error", "It is raining."]
 * ```
 *
 * @category transitions
 */
export const recover: (session: SessionData.Session) => SessionData.Session = SessionData.recover

/**
 * Reads the session with this id, creating it from the options if it does not exist. Concurrent callers get the same
 * session. `interrupted` is set as by {@link load}.
 *
 * **Example** (A session that is kept)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const model = Script.layer([
 *   [Script.text("Hello"), Script.finish("stop")],
 *   [Script.text("Fine"), Script.finish("stop")]
 * ])
 * const program = Effect.gen(function*() {
 *   const opened = yield* Session.open("s1")
 *   const kept = yield* Session.keep(opened, (session) => Session.reply(session, "Hi"))
 *   return [opened.version, kept.version > opened.version]
 * })
 *
 * await Effect.runPromise(program.pipe(Effect.provide(model), Effect.provide(Session.Store.layerMemory))) // => [1, true]
 * ```
 *
 * @category keeping
 */
export const open: (
  id: string,
  options?: Kept.OpenOptions
) => Effect.Effect<Kept.Kept, Journals.StoreError, Journals.Store> = Kept.open

/**
 * Reads the session with this id from the store. Returns `undefined` if it does not exist. Fails with a `StoreError`.
 *
 * `interrupted` is set if the last run has no recorded end: it is running elsewhere, was interrupted, or its process
 * was killed. Those of its `calls` in state `Started` may have had their effect. {@link resume} resumes the run,
 * {@link abandon} closes it, and any other operation starting a run abandons it first. {@link next} names the operation
 * to call.
 *
 * **Example** (A session that does not exist)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const loaded = await Effect.runPromise(Session.load("none").pipe(Effect.provide(Session.Store.layerMemory)))
 *
 * loaded // => undefined
 * ```
 *
 * @category keeping
 */
export const load: (id: string) => Effect.Effect<Kept.Kept | undefined, Journals.StoreError, Journals.Store> = Kept.load

/**
 * Runs an operation on a session and records events as they happen.
 *
 * **Details**
 *
 * An operation records its messages and answers before anything follows from them, and each call before its handler
 * starts. The first append decides: if the journal has changed since the session was read, the operation fails with
 * `SessionConflict` before anything has run. If several operations begin at the same version, only one runs. If a
 * record cannot be written, the operation is stopped and fails with a `StoreError`.
 *
 * An operation starting a run or adding messages first abandons an interrupted run: answered calls keep their answer,
 * started calls are answered as `unknown_effect`, the others as not run, and the turn's questions are withdrawn.
 * {@link resume} resumes the run instead.
 *
 * If the first model call fails before its first event, the operation fails (`AdapterError`), its messages are not
 * added, and the session is not in error. From the first event on the operation succeeds with the outcome `Failed`, and
 * the session is in status `error`.
 *
 * **Gotchas**
 *
 * After a failed or interrupted `keep` the journal has changed: load the session again before the next operation.
 *
 * **Example** (Two operations, one after the other)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const model = Script.layer([
 *   [Script.text("Hello"), Script.finish("stop")],
 *   [Script.text("Fine"), Script.finish("stop")]
 * ])
 * const program = Effect.gen(function*() {
 *   const opened = yield* Session.open("s1")
 *   const first = yield* Session.keep(opened, (session) => Session.reply(session, "Hi"))
 *   const second = yield* Session.keep(first, (session) => Session.reply(session, "How are you?"))
 *   return second.value.result.finalResponse?.outputText
 * })
 *
 * await Effect.runPromise(program.pipe(Effect.provide(model), Effect.provide(Session.Store.layerMemory))) // => "Fine"
 * ```
 *
 * @category keeping
 */
export const keep: <K extends Kept.Kept, A, E, R>(
  kept: K,
  operation: (session: SessionData.Session) => Effect.Effect<A, E, R>
) => Effect.Effect<Kept.Outcome<A, K>, E | Writers.KeepError, R | Journals.Store> = Kept.keep

/**
 * Emits the events of an operation, recording it like {@link keep}. After the stream has ended, load the session again.
 *
 * **Example** (The events of a kept operation)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 * const program = Effect.gen(function*() {
 *   const opened = yield* Session.open("s1")
 *   yield* Stream.runDrain(Session.keepStream(opened, (session) => Session.streamReply(session, "Hi")))
 *   const loaded = yield* Session.load("s1")
 *   return loaded?.session.thread.messages.length
 * })
 *
 * await Effect.runPromise(program.pipe(Effect.provide(model), Effect.provide(Session.Store.layerMemory))) // => 2
 * ```
 *
 * @category keeping
 */
export const keepStream: <A, E, R>(
  kept: Kept.Kept,
  operation: (session: SessionData.Session) => Stream.Stream<A, E, R>
) => Stream.Stream<A, E | Writers.KeepError, R | Journals.Store> = Kept.keepStream

/**
 * Claims the session with this id, creating it if it does not exist: no other owner can claim it until the scope
 * closes. Fails with a `SessionClaimed` if another owner holds the claim. Instead of an id it also accepts a claim from
 * `Journal.claim` or `Journal.claimUnfinished`, with that claim's own options.
 *
 * **Details**
 *
 * The claim is renewed in the background. Without renewal it ends after its term, by the store's clock. Operations of
 * {@link keep} under the claim apply commands from other processes: {@link stop}, {@link submit}, and verdicts. After
 * losing its claim, an operation is stopped, and fails with `SessionClaimed`.
 *
 * **Example** (One owner at a time)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 * const program = Effect.gen(function*() {
 *   const claimed = yield* Session.claim("s1", { owner: "here", term: "10 seconds" })
 *   const other = yield* Effect.flip(Session.claim("s1", { owner: "there" }))
 *   const kept = yield* Session.keep(claimed, (session) => Session.reply(session, "Hi"))
 *   return [other._tag, kept.session.status]
 * }).pipe(Effect.scoped)
 * const store = Session.Store.layerMemory
 *
 * await Effect.runPromise(program.pipe(Effect.provide(model), Effect.provide(store))) // => ["SessionClaimed", "completed"]
 * ```
 *
 * @category keeping
 */
export const claim: (
  id: string | Claims.HeldClaim,
  options?: Claims.Options
) => Effect.Effect<Kept.Claimed, Claims.SessionClaimed | Journals.StoreError, Journals.Store | Scope.Scope> = Kept.claim

/**
 * Reads a session again, under the same claim if claimed: after a stream, or to see other processes' commands. A
 * removed session is at version 0.
 *
 * **Example** (A message that arrived meanwhile)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.gen(function*() {
 *   const claimed = yield* Session.claim("s1", { owner: "here" })
 *   yield* Session.submit("s1", "Hi")
 *   const { owner, submitted = [] } = yield* Session.reload(claimed)
 *   return [owner, submitted.length]
 * }).pipe(Effect.scoped)
 *
 * await Effect.runPromise(Effect.provide(program, Session.Store.layerMemory)) // => ["here", 1]
 * ```
 *
 * @category keeping
 */
export const reload: <K extends Kept.Kept>(
  kept: K
) => Effect.Effect<Kept.Reloaded<K>, Claims.SessionClaimed | Journals.StoreError, Journals.Store> = Kept.reload

/**
 * Does the remaining work of a claimed session, like a worker: resumes an interrupted run, replies to submitted
 * messages, continues once all calls are settled, and expires overdue calls. Succeeds with the session when no work is
 * left, when a call waits, or when its owner is leaving (`claim.leave`).
 *
 * Fails with the error of a run unable to start or continue. The next `drive` tries again, until `maxFailures` ends the
 * run. Until then nothing is lost: the message stays submitted, and the interrupted run can be resumed.
 *
 * **Example** (A message that is replied to)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.gen(function*() {
 *   const claimed = yield* Session.claim("s1")
 *   yield* Session.submit("s1", "Hi")
 *   const { session } = yield* Session.drive(claimed, { run: () => ({ system: "Be friendly." }) })
 *   return [session.status, Session.outputText(session)]
 * }).pipe(Effect.scoped)
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 *
 * await Effect.runPromise(Effect.provide(program, [model, Session.Store.layerMemory])) // => ["completed", "Hello"]
 * ```
 *
 * @category running
 */
export const drive: <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never,
  RPublish = never
>(
  claimed: Kept.Claimed,
  options: Drives.Options<T, E, R, RHalt, REvent, RPublish>
) => Effect.Effect<
  Kept.Claimed,
  Operations.OperationError | Writers.KeepError | Tool.Fatal<T[number]> | E,
  Adapter.Adapter | Journals.Store | Tool.Services<T[number]> | Declared.Later<R | RHalt | REvent | RPublish>
> = Drives.drive

/**
 * Records a program's `Chat.run` and `Chat.stream` runs, each in its own journal, whose id begins with the claim's id.
 * If restarted under the same id, the program resumes an interrupted run, and gets a finished run's recorded result.
 * The layer renews the claim, and finally releases it. If a run can no longer be recorded, because the store fails or
 * the claim is lost, the run dies with that error.
 *
 * `Durable.layer` of `heddle/durable` takes the claim as well.
 *
 * **Example** (A job that is started twice)
 *
 * ```ts import.meta.vitest
 * import { Chat, Journal, Session, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * let paid = 0
 * const pay = Tool.make("pay", { parameters: {}, handler: () => Effect.sync(() => ++paid) })
 * const model = Script.layer([
 *   [Script.toolCall("c0", "pay", {}), Script.finish("tool_calls")],
 *   [Script.text("Paid."), Script.finish("stop")]
 * ])
 * const job = Effect.gen(function*() {
 *   const claim = yield* Journal.claim("job-7")
 *   const run = Chat.run("Pay the invoice", { tools: [pay] })
 *   const { finalResponse } = yield* Effect.provide(run, Session.layerRuns(claim))
 *   return finalResponse?.outputText
 * })
 * const twice = Effect.all([job, job])
 *
 * await Effect.runPromise(Effect.provide(twice, [model, Session.Store.layerMemory])) // => ["Paid.", "Paid."]
 * paid // => 1
 * ```
 *
 * @category layers
 */
export const layerRuns: (
  claim: Claims.HeldClaim,
  options?: SessionRun.RunsOptions
) => Layer.Layer<never, never, Journals.Store> = SessionRun.layerRuns

/**
 * Takes a session's claim away from its owner, and succeeds with `true` if there was a claim. The owner notices at its
 * next renewal or poll, and stops; another owner can claim the session at once.
 *
 * For an operator who knows that the owner has stopped working: a call still running there may have its effect, while
 * the next owner starts the same call again or asks about its effect. {@link list} shows the claims.
 *
 * **Example** (A claim of a machine that is gone)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.gen(function*() {
 *   const store = yield* Session.Store
 *   yield* store.claim("s1", "gone", 60_000)
 *   const revoked = [yield* Session.revoke("s1"), yield* Session.revoke("s1")]
 *   const { owner } = yield* store.claim("s1", "next", 60_000)
 *   return [...revoked, owner]
 * })
 *
 * await Effect.runPromise(Effect.provide(program, Session.Store.layerMemory)) // => [true, false, "next"]
 * ```
 *
 * @category keeping
 */
export const revoke: (id: string) => Effect.Effect<boolean, Journals.StoreError, Journals.Store> = Journals.revoke

/**
 * Asks a session's run to stop, from any process. The request is a record, honored by the session's current or next
 * owner. The run ends softly, with outcome `Cancelled` and reason `"stop"`, and the session is then in status
 * `stopped`. A session without a run does not change.
 *
 * With `call` only one call is stopped, as by `call.cancelCall`, and the run continues. If the call had started when
 * its process ended, the next owner answers it as `unknown_effect`, without running it again. If the journal has no
 * such unanswered call, the receipt has no `id`.
 *
 * Succeeds as soon as the request is durable. The receipt's `ended` waits for the end of the run, and names its calls.
 *
 * **Example** (A session that does not run)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.gen(function*() {
 *   const { version } = yield* Session.open("s1")
 *   const { accepted, ended } = yield* Session.stop("s1")
 *   return [accepted === version, (yield* ended).stopped]
 * })
 *
 * await Effect.runPromise(Effect.provide(program, Session.Store.layerMemory)) // => [true, []]
 * ```
 *
 * @category commands
 */
export const stop: (
  id: string,
  options?: StoredCommands.RunStopOptions
) => Effect.Effect<StoredCommands.StopReceipt, Journals.StoreError, Journals.Store> = StoredCommands.stop

/**
 * Revokes a tool's approvals remembered by a session, through `remember` of {@link approve}, and tells whether there
 * were any: calls to the tool wait for an approval again. Any process may do so. A process running the session notices
 * at its next `poll`, or before it writes: calls whose start is recorded afterwards do not run.
 *
 * **Example** (A session that remembers nothing)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.andThen(Session.open("s1"), Session.disallow("s1", "pay", { by: "ann" }))
 *
 * await Effect.runPromise(Effect.provide(program, Session.Store.layerMemory)) // => false
 * ```
 *
 * @category commands
 */
export const disallow: (
  id: string,
  tool: string,
  options?: StoredCommands.StopOptions
) => Effect.Effect<boolean, Journals.StoreError, Journals.Store> = StoredCommands.disallow

/**
 * Submits a message to a session, from any process, creating the session if it does not exist. Succeeds once the
 * message is durable. A `heddle/durable` worker replies as soon as the session is free; a program does so with
 * {@link reply} and `takes`. The message waits while a call waits: a submitted message never answers a question.
 * {@link receipt} returns its outcome.
 *
 * `check` sees the session receiving the message, and may refuse it: a session of another principal, or one with a run.
 * Nothing is added between the check and the message.
 *
 * **Example** (A message that waits)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.gen(function*() {
 *   const { accepted } = yield* Session.submit("s1", "Hi")
 *   const kept = yield* Session.open("s1")
 *   return [accepted, kept.submitted?.map(({ message }) => message.content)]
 * })
 *
 * await Effect.runPromise(Effect.provide(program, Session.Store.layerMemory)) // => [2, ["Hi"]]
 * ```
 *
 * @category commands
 */
export const submit: <E = never>(
  id: string,
  content: Message.Content,
  options?: StoredCommands.SubmitOptions<E>
) => Effect.Effect<StoredCommands.SubmitReceipt, SessionData.SessionError | Journals.StoreError | E, Journals.Store> =
  StoredCommands.submit

/**
 * Withdraws a submitted message, from any process, even while another process runs the session. Succeeds with `true` if
 * this withdrawal took effect: no run ever gets the message. Succeeds with `false` if the session has no such message,
 * or its outcome is already known: {@link receipt} returns the outcome.
 *
 * **Example** (A message that is taken back)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.gen(function*() {
 *   yield* Session.submit("s1", "And tomorrow?", { id: "m1", mode: "follow" })
 *   const isWithdrawn = yield* Session.withdraw("s1", "m1")
 *   return [isWithdrawn, Session.receipt(yield* Session.open("s1"), "m1")?.became]
 * })
 *
 * await Effect.runPromise(Effect.provide(program, Session.Store.layerMemory)) // => [true, "withdrawn"]
 * ```
 *
 * @category commands
 */
export const withdraw: (
  id: string,
  messageId: string,
  options?: StoredCommands.StopOptions
) => Effect.Effect<boolean, Journals.StoreError, Journals.Store> = StoredCommands.withdraw

/**
 * Changes a session's title and pin, from any process, even while another process runs the session. {@link list} shows
 * them without reading a journal. Snapshots keep them. Succeeds once the change is durable, with the resulting labels,
 * or with `undefined` if the session does not exist. Unchanged labels are not written again.
 *
 * **Example** (A session that is renamed)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.gen(function*() {
 *   yield* Session.submit("s1", "Where does it rain?")
 *   const named = yield* Session.label("s1", { title: "Rain", pinned: true })
 *   const again = yield* Session.label("s1", { title: null })
 *   return [named?.title, named?.pinned, again?.title]
 * })
 *
 * await Effect.runPromise(Effect.provide(program, Session.Store.layerMemory)) // => ["Rain", true, "Where does it rain?"]
 * ```
 *
 * @category commands
 */
export const label: <E = never>(
  id: string,
  options: StoredCommands.LabelOptions<E>
) => Effect.Effect<
  StoredCommands.LabelReceipt | undefined,
  SessionData.SessionError | Journals.StoreError | E,
  Journals.Store
> = StoredCommands.label

/**
 * Begins a new session with another session's conversation before one of its messages, and with its context, metadata
 * and notes at that point. `message` is submitted to the new session in the same append. The earlier session is only
 * read: its journal does not change, and none of its calls runs again. `Forked.calls` lists the calls left behind.
 *
 * The same branch under the same id is made once; repeating the command succeeds with the existing session. Fails with
 * a `SessionError`: `unknown_message` if no run began with the message, `unfinished` while the earlier session has a
 * run or an open call, `id_taken` if the id belongs to another session or other content, and `nested` for a nested run.
 * If the earlier session inherited the message from the session it branched from, the new session branches from that
 * session.
 *
 * **Example** (Another question in the place of the second one)
 *
 * ```ts import.meta.vitest
 * import { Session, Thread } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const model = Script.layer([[Script.text("It rains."), Script.finish("stop")]])
 * const program = Effect.gen(function*() {
 *   yield* Session.submit("s1", "Is it raining?", { id: "m1" })
 *   const kept = yield* Session.open("s1")
 *   yield* Session.keep(kept, (session) => Session.reply(session, "Is it raining?", { takes: "m1" }))
 *   const { kept: forked } = yield* Session.fork("s1", { id: "s2", before: "m1", message: { content: "Is it windy?" } })
 *   return [forked.origin.forkedFrom?.id, forked.submitted?.map(({ message }) => message.content)]
 * })
 *
 * await Effect.runPromise(Effect.provide(program, [model, Session.Store.layerMemory])) // => ["s1", ["Is it windy?"]]
 * ```
 *
 * @category commands
 */
export const fork: <E = never>(
  from: string,
  options: StoredCommands.ForkOptions<E>
) => Effect.Effect<StoredCommands.Forked, SessionData.SessionError | Journals.StoreError | E, Journals.Store> =
  StoredCommands.fork

/**
 * Returns a session's remaining work, which determines the operation to call. Workers, clusters and stores use the same
 * answer. If several apply, the first counts.
 *
 * - `"resume"`: a run was interrupted. Call {@link resume}, or {@link abandon}.
 * - `"wait"`: a call waits for an answer from outside. Call {@link answer}, {@link approve}, {@link deny},
 *   {@link settle} or {@link expire}.
 * - `"reply"`: a message was submitted. Call {@link reply} with it and `takes`, after {@link recover} in status
 *   `error`.
 * - `"continue"`: calls were settled. Call `Session.continue`.
 * - `"nothing"`: the session waits for its next message, or is nested and continued by its parent.
 *
 * **Example** (A session with a message)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.gen(function*() {
 *   const opened = yield* Session.open("s1")
 *   yield* Session.submit("s1", "Hi")
 *   return [Session.next(opened), Session.next(yield* Session.open("s1"))]
 * })
 *
 * await Effect.runPromise(Effect.provide(program, Session.Store.layerMemory)) // => ["nothing", "reply"]
 * ```
 *
 * @category keeping
 */
export const next: (kept: Kept.Kept) => States.Next = Kept.next

/**
 * Tells whether an owner can continue the session: {@link next} is `"resume"`, `"reply"` or `"continue"`.
 * {@link unfinished} lists these sessions, and those with an overdue call.
 *
 * **Example** (A message makes work)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.gen(function*() {
 *   const opened = yield* Session.open("s1")
 *   yield* Session.submit("s1", "Hi")
 *   return [Session.isUnfinished(opened), Session.isUnfinished(yield* Session.open("s1"))]
 * })
 *
 * await Effect.runPromise(Effect.provide(program, Session.Store.layerMemory)) // => [false, true]
 * ```
 *
 * @category keeping
 */
export const isUnfinished: (kept: Kept.Kept) => boolean = Kept.isUnfinished

/**
 * Returns the outcome of a message, a verdict or a stop by its id: for the last 1,000, and for each earlier one still
 * without an outcome. Returns `undefined` for an unknown id.
 *
 * **Example** (A message that waits for a run)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.gen(function*() {
 *   yield* Session.submit("s1", "Hi", { id: "m1" })
 *   return Session.receipt(yield* Session.open("s1"), "m1")?.became
 * })
 *
 * await Effect.runPromise(Effect.provide(program, Session.Store.layerMemory)) // => "queued"
 * ```
 *
 * @category commands
 */
export const receipt: (kept: Kept.Kept, id: string) => Records.Receipt | undefined = Kept.receipt

/**
 * Reads a session's current activity without changing anything: its remaining work, its open calls, and the number of
 * times its run was resumed. Returns `undefined` if the session does not exist.
 *
 * **Example** (A session at rest)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.andThen(Session.open("s1"), Session.inspect("s1"))
 *
 * await Effect.runPromise(Effect.provide(program, Session.Store.layerMemory))
 * // => { id: "s1", version: 1, next: "nothing", calls: [], resumptions: 0 }
 * ```
 *
 * @category keeping
 */
export const inspect: (
  id: string
) => Effect.Effect<Kept.Inspected | undefined, Journals.StoreError, Journals.Store> = Kept.inspect

/**
 * Returns the facts a server needs about a session besides its conversation: the open run and its message, the open
 * suspensions and their run, submitted messages, receipts, and failures. Reads nothing: the facts belong to the version
 * of `kept`.
 *
 * **Example** (A payment that waits for a person)
 *
 * ```ts import.meta.vitest
 * import { Session, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
 * const model = Script.layer([[Script.toolCall("c0", "pay"), Script.finish("tool_calls")]])
 * const program = Effect.gen(function*() {
 *   yield* Session.submit("s1", "Pay", { id: "m1" })
 *   const kept = yield* Session.keep(yield* Session.open("s1"), (session) =>
 *     Session.reply(session, "Pay", { tools: [pay], takes: "m1", requestId: "r1" }))
 *   const { lastRun, receipts, waiting, waitingSince } = Session.view(kept)
 *   return [waiting.map(({ id }) => id), waitingSince, lastRun?.outcome, receipts.get("m1")?.became]
 * })
 *
 * await Effect.runPromise(program.pipe(Effect.provide(model), Effect.provide(Session.Store.layerMemory)))
 * // => [["c0"], "r1", "approval_requested", "completed"]
 * ```
 *
 * @category keeping
 */
export const view: (kept: Kept.Kept) => Kept.View = Kept.view

/**
 * Abandons an interrupted run without starting another operation. The run is closed, its unanswered calls are answered
 * as not run, as unknown or as withdrawn, and its messages stay. Dies if no run was interrupted.
 *
 * **Example** (A run that is not resumed)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 * const program = Effect.gen(function*() {
 *   const opened = yield* Session.open("s1")
 *   const events = Session.keepStream(opened, (session) => Session.streamReply(session, "Hi"))
 *   yield* Stream.runDrain(Stream.take(events, 1))
 *   const interrupted = yield* Session.open("s1")
 *   const { session } = yield* Session.abandon(interrupted)
 *   return [Session.next(interrupted), session.thread.messages.length]
 * })
 *
 * await Effect.runPromise(program.pipe(Effect.provide(model), Effect.provide(Session.Store.layerMemory)))
 * // => ["resume", 1]
 * ```
 *
 * @category keeping
 */
export const abandon: <K extends Kept.Kept>(
  kept: K
) => Effect.Effect<Kept.Outcome<SessionData.Session, K>, Writers.KeepError, Journals.Store> = SessionRun.abandoned

/**
 * Writes a session without remaining work as a single record and removes the earlier records and its nested runs'
 * journals, making load time independent of history. The receipts of the last 1,000 commands stay. Succeeds with the
 * session after that record.
 *
 * Fails with the `SessionError` `unfinished` if work remains ({@link next}), because that work needs the records, and
 * with `nested` for a nested run, because its parent needs them. Fails with a `SessionConflict` if the journal has
 * changed since the session was read.
 *
 * **Example** (A journal of one record)
 *
 * ```ts import.meta.vitest
 * import { Message, Session } from "heddle"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const program = Effect.gen(function*() {
 *   const opened = yield* Session.open("s1")
 *   const said = yield* Session.keep(opened, (session) => Session.append(session, [Message.user("Hi")]))
 *   const kept = yield* Session.snapshot(said)
 *   const store = yield* Session.Store
 *   const records = yield* Stream.runCollect(store.read("s1"))
 *   return [said.version, kept.version, records.map(({ record }) => record._tag)]
 * })
 *
 * await Effect.runPromise(program.pipe(Effect.provide(Session.Store.layerMemory))) // => [2, 3, ["Opened"]]
 * ```
 *
 * @category keeping
 */
export const snapshot: (
  kept: Kept.Kept
) => Effect.Effect<
  Kept.Kept,
  SessionData.SessionError | Journals.SessionConflict | Journals.StoreError,
  Journals.Store
> = Kept.snapshot

/**
 * Lists the ids of sessions in the store for a program to continue: {@link next} is `"resume"`, `"reply"` or
 * `"continue"`, or `"wait"` with an expiry due. A run without a recorded end may be running in another process.
 *
 * **Example** (What a process finds when it starts)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const program = Effect.gen(function*() {
 *   yield* Session.submit("s1", "Hi")
 *   yield* Session.open("s2")
 *   return yield* Stream.runCollect(Session.unfinished)
 * })
 *
 * await Effect.runPromise(program.pipe(Effect.provide(Session.Store.layerMemory))) // => ["s1"]
 * ```
 *
 * @category keeping
 */
export const unfinished: Stream.Stream<string, Journals.StoreError, Journals.Store> = Kept.unfinished

/**
 * Lists sessions in the store, in no particular order, with their remaining work and since when: all, or those whose
 * ids begin with a prefix.
 *
 * **Example** (The sessions of one user)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const program = Effect.gen(function*() {
 *   for (const id of ["ada/1", "bob/1"]) yield* Session.open(id)
 *   const listed = yield* Stream.runCollect(Session.list({ prefix: "ada/" }))
 *   return listed.map(({ id, next }) => `${id}: ${next}`)
 * })
 *
 * await Effect.runPromise(program.pipe(Effect.provide(Session.Store.layerMemory))) // => ["ada/1: nothing"]
 * ```
 *
 * @category keeping
 */
export const list: (
  options?: Journals.ListOptions
) => Stream.Stream<Journals.Listed, Journals.StoreError, Journals.Store> = Kept.list

/**
 * Counts sessions in the store by status: all, or those whose ids begin with a prefix. Reads no journal.
 *
 * **Example** (Failed jobs)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.gen(function*() {
 *   for (const id of ["jobs/1", "jobs/2"]) yield* Session.open(id)
 *   const { error, idle } = yield* Session.count({ prefix: "jobs/" })
 *   return { error, idle }
 * })
 *
 * await Effect.runPromise(program.pipe(Effect.provide(Session.Store.layerMemory))) // => { error: 0, idle: 2 }
 * ```
 *
 * @category keeping
 */
export const count: (
  options?: Journals.ListOptions
) => Effect.Effect<Journals.Counts, Journals.StoreError, Journals.Store> = Kept.count

const remove: (id: string) => Effect.Effect<void, Journals.StoreError, Journals.Store> = Kept.remove

export {
  /**
   * Removes a session from the store: its journal, its claim, and those of its nested runs. A process running the
   * session fails with a `SessionConflict` at its next record.
   *
   * **Example** (A session that is gone)
   *
   * ```ts import.meta.vitest
   * import { Session } from "heddle"
   * import * as Effect from "effect/Effect"
   *
   * const program = Effect.gen(function*() {
   *   yield* Session.open("s1")
   *   yield* Session.delete("s1")
   *   return yield* Session.load("s1")
   * })
   *
   * await Effect.runPromise(program.pipe(Effect.provide(Session.Store.layerMemory))) // => undefined
   * ```
   *
   * @category keeping
   */
  remove as delete
}

/**
 * Options of a resumed run: those of any run, plus limits on its age and its resumptions.
 *
 * @category options
 */
export interface ResumeOptions<
  T extends ReadonlyArray<Tool.Any> = ReadonlyArray<Tool.Any>,
  E = never,
  R = never,
  RHalt = R,
  REvent = R,
  A = unknown
> extends Chat.Options<T, E, R, RHalt, REvent, A>, Operations.ResumeOptions {}

/**
 * Emits the events of {@link resume}. Repeated events from the journal have `replayed: true`; `replays: false` omits
 * them. After the stream has ended, load the session again.
 *
 * **Example** (The events of a run that was interrupted)
 *
 * ```ts import.meta.vitest
 * import { Session, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const ping = Tool.make("ping", { parameters: {}, handler: () => Effect.succeed("pong") })
 * const model = Script.layer([
 *   [Script.toolCall("c0", "ping"), Script.finish("tool_calls")],
 *   [Script.text("Done."), Script.finish("stop")]
 * ])
 * const program = Effect.gen(function*() {
 *   const opened = yield* Session.open("s1")
 *   // The reader leaves the run when the model has replied.
 *   yield* Session.keepStream(opened, (session) => Session.streamReply(session, "Go", { tools: [ping] })).pipe(
 *     Stream.takeUntil((event) => event._tag === "MessageCompleted"),
 *     Stream.runDrain
 *   )
 *   const kept = yield* Session.claim("s1")
 *   return yield* Stream.runCollect(Session.streamResume(kept, { tools: [ping] }))
 * }).pipe(Effect.scoped)
 * const store = Session.Store.layerMemory
 * const events = await Effect.runPromise(program.pipe(Effect.provide(model), Effect.provide(store)))
 *
 * events.filter((event) => "replayed" in event).map((event) => event._tag).slice(0, 3)
 * // => ["MessageStarted", "ToolCallStarted", "ToolCallCompleted"]
 * events.at(-1)?._tag // => "ChatCompleted"
 * ```
 *
 * @category streams
 */
export const streamResume = <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never
>(
  kept: Kept.Kept,
  options: ResumeOptions<T, E, R, RHalt, REvent> = {}
): Stream.Stream<
  Event.Event,
  Operations.OperationError | Writers.KeepError | Declared.Later<E> | Tool.Fatal<T[number]>,
  Adapter.Adapter | Journals.Store | Tool.Services<T[number]> | Declared.Later<R | RHalt | REvent>
> => SessionRun.streamResumed(kept, options)

/**
 * Resumes a session's interrupted run, after its process was killed or its reader left. The run keeps its id and
 * continues from the end of the journal. Whole steps are not repeated. In the interrupted step, the recorded reply is
 * emitted again, answered calls keep their answer, calls not yet started run, and suspended calls keep waiting. A
 * started call without an answer may have had its effect: its tool decides, by `lookUp`, by `afterCrash` or by its
 * flags. An incomplete reply is requested again.
 *
 * Fails with a {@link ResumeError}, before writing anything, if the session was loaded without a claim, or if the tools
 * no longer fit the records. Dies if no run was interrupted.
 *
 * **Example** (After a restart)
 *
 * ```ts import.meta.vitest
 * import { Session, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * let charged = 0
 * const charge = Tool.make("charge", { parameters: {}, handler: () => Effect.sync(() => ++charged) })
 * const model = Script.layer([
 *   [Script.toolCall("c0", "charge"), Script.finish("tool_calls")],
 *   [Script.text("Paid."), Script.finish("stop")]
 * ])
 * const program = Effect.gen(function*() {
 *   const opened = yield* Session.open("s1")
 *   // The reader leaves the run with the first answer.
 *   yield* Session.keepStream(opened, (session) => Session.streamReply(session, "Pay", { tools: [charge] })).pipe(
 *     Stream.takeUntil((event) => event._tag === "ToolResultEncoded"),
 *     Stream.runDrain
 *   )
 *   const kept = yield* Session.claim("s1")
 *   return yield* Session.resume(kept, { tools: [charge] })
 * }).pipe(Effect.scoped)
 * const store = Session.Store.layerMemory
 * const { value } = await Effect.runPromise(program.pipe(Effect.provide(model), Effect.provide(store)))
 *
 * value.result.finalResponse?.outputText // => "Paid."
 * charged // => 1
 * ```
 *
 * @category running
 */
export const resume = <
  K extends Kept.Kept,
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never,
  A = never
>(
  kept: K,
  options: ResumeOptions<T, E, R, RHalt, REvent, A> = {}
): Effect.Effect<
  Kept.Outcome<SessionEvents.Done<"chat", A>, K>,
  Operations.OperationError | Writers.KeepError | Declared.Later<E> | Tool.Fatal<T[number]>,
  Adapter.Adapter | Journals.Store | Tool.Services<T[number]> | Declared.Later<R | RHalt | REvent>
> => SessionRun.resumed(kept, options)

/**
 * Emits the events of {@link start}.
 *
 * **Example** (The events of a run)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 * const tags = await Effect.runPromise(
 *   Session.streamStart("Hi").pipe(Stream.map((event) => event._tag), Stream.runCollect, Effect.provide(model))
 * )
 *
 * tags.at(-1) // => "ChatCompleted"
 * ```
 *
 * @category streams
 */
export const streamStart = <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never
>(
  input: SessionData.Session | Thread.Input,
  options: Chat.Options<T, E, R, RHalt, REvent> = {}
): Stream.Stream<
  Event.Event,
  Operations.OperationError | Declared.Later<E> | Tool.Fatal<T[number]>,
  Adapter.Adapter | Tool.Services<T[number]> | Declared.Later<R | RHalt | REvent>
> => SessionRun.stream(Operations.starting(input), options)

/**
 * Runs a session, a thread or messages. A session keeps its id, context and metadata.
 *
 * **Example** (A session from a prompt)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 * const { result, session } = await Effect.runPromise(Session.start("Hi").pipe(Effect.provide(model)))
 *
 * result.finalResponse?.outputText // => "Hello"
 * session.status // => "completed"
 * ```
 *
 * @category running
 */
export const start = <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never,
  A = never
>(
  input: SessionData.Session | Thread.Input,
  options: Chat.Options<T, E, R, RHalt, REvent, A> = {}
): Effect.Effect<
  SessionEvents.Done<"chat", A>,
  Operations.OperationError | Declared.Later<E> | Tool.Fatal<T[number]>,
  Adapter.Adapter | Tool.Services<T[number]> | Declared.Later<R | RHalt | REvent>
> => SessionRun.awaited(Operations.starting(input), options)

/**
 * Options of a reply for its run and for waiting calls.
 *
 * @category options
 */
export interface ReplyOptions<
  T extends ReadonlyArray<Tool.Any> = ReadonlyArray<Tool.Any>,
  E = never,
  R = never,
  RHalt = R,
  REvent = R,
  A = unknown
> extends Chat.Options<T, E, R, RHalt, REvent, A> {
  /**
   * Decides about calls still waiting for an answer when the user replies. By default, a reply during a pending
   * approval fails with the `SessionError` `approval_pending`. `"deny"` answers every waiting call as denied, and
   * continues; a single open question is not denied, because the reply answers it.
   */
  readonly pending?: "deny"
  /**
   * Message id: of a submission (`Session.submit`), or a command the program received in another way. Its
   * receipt (`Session.receipt`) tells its outcome, and each id is taken only once. None by default.
   */
  readonly takes?: string
}

/**
 * Emits the events of {@link reply}.
 *
 * **Example** (The events of a reply)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 * const tags = await Effect.runPromise(
 *   Session.streamReply(Session.make(), "Hi").pipe(
 *     Stream.map((event) => event._tag),
 *     Stream.runCollect,
 *     Effect.provide(model)
 *   )
 * )
 *
 * tags.at(-1) // => "ChatCompleted"
 * ```
 *
 * @category streams
 */
export const streamReply = <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never
>(
  session: SessionData.Session,
  content: Message.Content,
  { pending, takes, ...options }: ReplyOptions<T, E, R, RHalt, REvent> = {}
): Stream.Stream<
  Event.Event,
  Operations.OperationError | Declared.Later<E> | Tool.Fatal<T[number]>,
  Adapter.Adapter | Tool.Services<T[number]> | Declared.Later<R | RHalt | REvent>
> => SessionRun.stream(Operations.replying(session, content, { pending, takes }), options)

/**
 * Continues with a user message: the answer to the waiting question, or something new. An answer to the question ending
 * the thread is added as a user message. If other calls waited beside a question, or an approved call asked it, the
 * question is not in the thread; its answer then fills the call's place, like with {@link answer}. During a pending
 * approval, fails with the `SessionError` `approval_pending`, unless `pending` decides about the call.
 *
 * **Example** (A conversation)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const model = Script.layer([
 *   [Script.text("Hello"), Script.finish("stop")],
 *   [Script.text("Fine"), Script.finish("stop")]
 * ])
 * const program = Effect.gen(function*() {
 *   const { session } = yield* Session.start("Hi")
 *   return yield* Session.reply(session, "How are you?")
 * })
 * const { session } = await Effect.runPromise(program.pipe(Effect.provide(model)))
 *
 * session.thread.messages.map((message) => message.content) // => ["Hi", "Hello", "How are you?", "Fine"]
 * ```
 *
 * @category running
 */
export const reply = <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never,
  A = never
>(
  session: SessionData.Session,
  content: Message.Content,
  { pending, takes, ...options }: ReplyOptions<T, E, R, RHalt, REvent, A> = {}
): Effect.Effect<
  SessionEvents.Done<"chat", A>,
  Operations.OperationError | Declared.Later<E> | Tool.Fatal<T[number]>,
  Adapter.Adapter | Tool.Services<T[number]> | Declared.Later<R | RHalt | REvent>
> => SessionRun.awaited(Operations.replying(session, content, { pending, takes }), options)

/**
 * Emits the events of `Session.continue`.
 *
 * **Example** (The events after an answer)
 *
 * ```ts import.meta.vitest
 * import { Session, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const book = Tool.make("book", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("How many seats?")) })
 * const model = Script.layer([
 *   [Script.toolCall("c0", "book"), Script.finish("tool_calls")],
 *   [Script.text("Booked."), Script.finish("stop")]
 * ])
 * const program = Effect.gen(function*() {
 *   const asked = yield* Session.start("Book", { tools: [book] })
 *   const answered = yield* Session.answer(asked.session, "c0", 2)
 *   return yield* Stream.runCollect(Session.streamContinue(answered, null, { tools: [book] }))
 * })
 * const events = await Effect.runPromise(program.pipe(Effect.provide(model)))
 *
 * events.at(-1)?._tag // => "ChatCompleted"
 * ```
 *
 * @category streams
 */
export const streamContinue = <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never
>(
  session: SessionData.Session,
  message: Message.Input | null = null,
  options: Chat.Options<T, E, R, RHalt, REvent> = {}
): Stream.Stream<
  Event.Event,
  Operations.OperationError | Declared.Later<E> | Tool.Fatal<T[number]>,
  Adapter.Adapter | Tool.Services<T[number]> | Declared.Later<R | RHalt | REvent>
> => SessionRun.stream(Operations.continuing(session, message), options)

/**
 * Continues with a message, or without one: after the last verdict, with the approved calls. Fails with the
 * {@link ResumeError} `tool_missing` if an approved call's tool is not given; the call stays approved. Public as
 * `Session.continue`.
 *
 * **Example** (After an answer)
 *
 * ```ts import.meta.vitest
 * import { Session, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const book = Tool.make("book", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("How many seats?")) })
 * const model = Script.layer([
 *   [Script.toolCall("c0", "book"), Script.finish("tool_calls")],
 *   [Script.text("Booked."), Script.finish("stop")]
 * ])
 * const program = Effect.gen(function*() {
 *   const asked = yield* Session.start("Book", { tools: [book] })
 *   const answered = yield* Session.answer(asked.session, "c0", 2)
 *   return yield* Session.continue(answered, null, { tools: [book] })
 * })
 * const { result } = await Effect.runPromise(program.pipe(Effect.provide(model)))
 *
 * result.finalResponse?.outputText // => "Booked."
 * ```
 *
 * @category running
 */
const continue_ = <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never,
  A = never
>(
  session: SessionData.Session,
  message: Message.Input | null = null,
  options: Chat.Options<T, E, R, RHalt, REvent, A> = {}
): Effect.Effect<
  SessionEvents.Done<"chat", A>,
  Operations.OperationError | Declared.Later<E> | Tool.Fatal<T[number]>,
  Adapter.Adapter | Tool.Services<T[number]> | Declared.Later<R | RHalt | REvent>
> => SessionRun.awaited(Operations.continuing(session, message), options)

export { continue_ as continue }

/**
 * Emits the events of {@link step}.
 *
 * **Example** (The events of one turn)
 *
 * ```ts import.meta.vitest
 * import { Message, Session, Thread } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 * const said = Session.make({ thread: Thread.fromMessages([Message.user("Hi")]) })
 * const tags = await Effect.runPromise(
 *   Session.streamStep(said).pipe(Stream.map((event) => event._tag), Stream.runCollect, Effect.provide(model))
 * )
 *
 * tags.at(-1) // => "StepCompleted"
 * ```
 *
 * @category streams
 */
export const streamStep = <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never
>(
  session: SessionData.Session,
  options: Chat.Options<T, E, R, RHalt, REvent> = {}
): Stream.Stream<
  Event.Event,
  Operations.OperationError | Declared.Later<E> | Tool.Fatal<T[number]>,
  Adapter.Adapter | Tool.Services<T[number]> | Declared.Later<R | RHalt | REvent>
> => SessionRun.stream(Operations.stepping(session), options)

/**
 * Runs one turn of the model and its tools. If calls were approved, they are the step. Options about several turns have
 * no effect: `maxTurns`, `haltWhen`, `structuredFinalize` and `output`. `rules` are asked about the request and the
 * reply; a rule ending the request fails the step.
 *
 * **Example** (One turn)
 *
 * ```ts import.meta.vitest
 * import { Message, Session, Thread } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 * const said = Session.make({ thread: Thread.fromMessages([Message.user("Hi")]) })
 * const { result } = await Effect.runPromise(Session.step(said).pipe(Effect.provide(model)))
 *
 * result.done // => true
 * ```
 *
 * @category running
 */
export const step = <const T extends ReadonlyArray<Tool.Any> = [], E = never, R = never, RHalt = never, REvent = never>(
  session: SessionData.Session,
  options: Chat.Options<T, E, R, RHalt, REvent> = {}
): Effect.Effect<
  SessionEvents.Done<"step">,
  Operations.OperationError | Declared.Later<E> | Tool.Fatal<T[number]>,
  Adapter.Adapter | Tool.Services<T[number]> | Declared.Later<R | RHalt | REvent>
> => SessionRun.awaited(Operations.stepping(session), options as Chat.Options<T, E, R, RHalt, REvent, never>)

/** Tells whether the session comes first among the arguments, followed by an id or verdicts. */
const hasSession = ({ 0: first }: IArguments): boolean => typeof first !== "string" && !Array.isArray(first)

/**
 * Answers a question, or provides the result of a manual call or of a call with an unknown effect, by its id.
 *
 * **Example** (The answer to a question)
 *
 * ```ts import.meta.vitest
 * import { Session, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const book = Tool.make("book", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("How many seats?")) })
 * const model = Script.layer([
 *   [Script.toolCall("c0", "book"), Script.finish("tool_calls")],
 *   [Script.text("Booked."), Script.finish("stop")]
 * ])
 * const program = Effect.gen(function*() {
 *   const { session } = yield* Session.start("Book", { tools: [book] })
 *   return yield* Session.answer(session, "c0", 2)
 * })
 * const session = await Effect.runPromise(program.pipe(Effect.provide(model)))
 *
 * session.status // => "idle"
 * session.suspensions // => []
 * ```
 *
 * **Example** (The result of a manual call)
 *
 * ```ts import.meta.vitest
 * import { Session, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const stamp = Tool.make("stamp", { parameters: {}, manual: true })
 * const model = Script.layer([
 *   [Script.toolCall("c0", "stamp"), Script.finish("tool_calls")],
 *   [Script.text("Stamped."), Script.finish("stop")]
 * ])
 * const program = Effect.gen(function*() {
 *   const asked = yield* Session.start("Stamp", { tools: [stamp] })
 *   const stamped = yield* Session.answer(asked.session, "c0", "done by hand")
 *   return yield* Session.continue(stamped, null, { tools: [stamp] })
 * })
 * const { result } = await Effect.runPromise(program.pipe(Effect.provide(model)))
 *
 * result.finalResponse?.outputText // => "Stamped."
 * ```
 *
 * @category answering
 */
export const answer: {
  /** Takes the session last, as in a pipe. */
  (
    id: string,
    value: unknown,
    options?: Settling.SettleOptions
  ): (session: SessionData.Session) => Effect.Effect<SessionData.Session, SessionData.SessionError>
  /**
   * Answers a question, or provides the result of a manual call or of a call with an unknown effect, by its id. An
   * answer to the question ending the thread is added as a user message, and the call keeps its placeholder; any other
   * answer fills the call's place. A result is truncated, for the model and in the thread, if longer than the tool's
   * `maxResultChars`, or than the policy's `resultLimit` in the run with the call.
   *
   * Changes data and runs nothing. The other calls keep waiting; after the last verdict, call `Session.continue`. Fails
   * with a `SessionError` and leaves the session unchanged: `unknown_tool_call_id`, `already_answered`, `expired`,
   * `session_in_error_state`, `id_taken` for a `command` already given with different content, or `invalid_answer` for
   * a value not fitting the question or for a call waiting for an approval.
   */
  (
    session: SessionData.Session,
    id: string,
    value: unknown,
    options?: Settling.SettleOptions
  ): Effect.Effect<SessionData.Session, SessionData.SessionError>
} = dual(hasSession, Settling.answer)

/**
 * Approves a call waiting for an approval, or retries a call with an unknown effect, using its own arguments or others.
 *
 * **Example** (A payment that waits for a person)
 *
 * ```ts import.meta.vitest
 * import { Session, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
 * const model = Script.layer([
 *   [Script.toolCall("c0", "pay"), Script.finish("tool_calls")],
 *   [Script.text("Done."), Script.finish("stop")]
 * ])
 * const program = Effect.gen(function*() {
 *   const asked = yield* Session.start("Pay", { tools: [pay] })
 *   const approved = yield* Session.approve(asked.session, "c0")
 *   return yield* Session.continue(approved, null, { tools: [pay] })
 * })
 * const { session } = await Effect.runPromise(program.pipe(Effect.provide(model)))
 *
 * session.thread.messages.find((message) => message.role === "tool")?.content // => "paid"
 * ```
 *
 * @category answering
 */
export const approve: {
  /** Takes the session last, as in a pipe. */
  (
    id: string,
    options?: Settling.ApproveOptions
  ): (session: SessionData.Session) => Effect.Effect<SessionData.Session, SessionData.SessionError>
  /**
   * Approves a call waiting for an approval, or retries a call with an unknown effect, using its own arguments or
   * others. The call runs once, when the session continues; a call that waited for an approval passes its gates again.
   * The answer precedes a user message. Fails like {@link answer}.
   *
   * **Gotchas**
   *
   * `arguments` nested deeper than 256 levels are an `invalid_answer`. With `tools`, arguments unreadable for the tool
   * are refused as `invalid_arguments`. Otherwise they are checked when the call runs: unfitting arguments are answered
   * to the model as `invalid_arguments`, and the handler is not called.
   */
  (
    session: SessionData.Session,
    id: string,
    options?: Settling.ApproveOptions
  ): Effect.Effect<SessionData.Session, SessionData.SessionError>
} = dual(hasSession, Settling.approve)

/**
 * Denies a call: it is answered as `denied`, with the reason if given, and never runs.
 *
 * **Example** (A payment that is refused)
 *
 * ```ts import.meta.vitest
 * import { Session, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
 * const model = Script.layer([
 *   [Script.toolCall("c0", "pay"), Script.finish("tool_calls")],
 *   [Script.text("Done."), Script.finish("stop")]
 * ])
 * const program = Effect.gen(function*() {
 *   const asked = yield* Session.start("Pay", { tools: [pay] })
 *   return yield* Session.deny(asked.session, "c0", "too expensive")
 * })
 * const session = await Effect.runPromise(program.pipe(Effect.provide(model)))
 *
 * session.thread.messages.at(-1)?.isError // => true
 * session.approved // => []
 * ```
 *
 * @category answering
 */
export const deny: {
  /** Takes the session last, as in a pipe. */
  (
    id: string,
    reason?: string,
    options?: Settling.SettleOptions
  ): (session: SessionData.Session) => Effect.Effect<SessionData.Session, SessionData.SessionError>
  /** Denies a call: it is answered as `denied`, with the reason if given, and never runs. Fails like {@link answer}. */
  (
    session: SessionData.Session,
    id: string,
    reason?: string,
    options?: Settling.SettleOptions
  ): Effect.Effect<SessionData.Session, SessionData.SessionError>
} = dual(hasSession, Settling.deny)

/**
 * Gives several verdicts, with a message or without, in one append.
 *
 * **Example** (Two approvals at once)
 *
 * ```ts import.meta.vitest
 * import { Session, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
 * const model = Script.layer([[Script.toolCall("c0", "pay"), Script.toolCall("c1", "pay"), Script.finish("tool_calls")]])
 * const program = Effect.gen(function*() {
 *   const { session } = yield* Session.start("Pay both", { tools: [pay] })
 *   return yield* Session.settle(session, [
 *     { id: "c0", answer: { _tag: "Approved" }, by: "ada" },
 *     { id: "c1", answer: { _tag: "Denied", reason: "paid already" }, by: "ada" }
 *   ])
 * })
 * const session = await Effect.runPromise(program.pipe(Effect.provide(model)))
 *
 * session.approved.map(({ id }) => id) // => ["c0"]
 * session.suspensions // => []
 * ```
 *
 * @category answering
 */
export const settle: {
  /** Takes the session last, as in a pipe. */
  (
    verdicts: ReadonlyArray<Settling.Verdict>,
    message?: Settling.Submission
  ): (session: SessionData.Session) => Effect.Effect<SessionData.Session, SessionData.SessionError>
  /**
   * Gives several verdicts, in order, and submits a message with them: if one is refused, none takes effect. A verdict
   * already given under its `command`, and a message already submitted under its id, change nothing. Fails like
   * {@link answer}. Dies when given a message for a session that is not kept.
   */
  (
    session: SessionData.Session,
    verdicts: ReadonlyArray<Settling.Verdict>,
    message?: Settling.Submission
  ): Effect.Effect<SessionData.Session, SessionData.SessionError>
} = dual(hasSession, Settling.settle)

/**
 * Settles every overdue call: a question with its default answer or else as unanswered, any other call as denied. A
 * session without overdue calls is returned unchanged. Calls do not expire by themselves, and a late answer fails as
 * `expired`.
 *
 * **Example** (Nothing is due)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const session = Session.make()
 *
 * Effect.runSync(Session.expire(session)) === session // => true
 * ```
 *
 * @category answering
 */
export const expire: (session: SessionData.Session) => Effect.Effect<SessionData.Session, SessionData.SessionError> =
  Settling.expire

/**
 * Returns the session with messages appended.
 *
 * **Example** (Messages from elsewhere)
 *
 * ```ts import.meta.vitest
 * import { Message, Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const session = Effect.runSync(Session.append(Session.make(), [Message.user("Hi"), Message.assistant("Hello")]))
 *
 * session.thread.messages.length // => 2
 * ```
 *
 * @category combinators
 */
export const append: {
  /** Takes the session last, as in a pipe. */
  (
    messages: ReadonlyArray<Message.Input>
  ): (session: SessionData.Session) => Effect.Effect<SessionData.Session, SessionData.SessionError>
  /** Returns the session with messages appended. Dies if calls wait or are approved: their answers come first. */
  (
    session: SessionData.Session,
    messages: ReadonlyArray<Message.Input>
  ): Effect.Effect<SessionData.Session, SessionData.SessionError>
} = dual(2, Operations.append)

/**
 * Returns the session with a user message appended.
 *
 * **Example** (A message of the user)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const session = Effect.runSync(Session.appendUser(Session.make(), "Hi"))
 *
 * session.thread.messages.map((message) => message.content) // => ["Hi"]
 * ```
 *
 * @category combinators
 */
export const appendUser: {
  /** Takes the session last, as in a pipe. */
  (
    content: Message.Content
  ): (session: SessionData.Session) => Effect.Effect<SessionData.Session, SessionData.SessionError>
  /** Returns the session with a user message appended. Dies like {@link append}. */
  (
    session: SessionData.Session,
    content: Message.Content
  ): Effect.Effect<SessionData.Session, SessionData.SessionError>
} = dual(2, Operations.appendUser)

/**
 * Returns the text of the model's last reply, `""` without a reply. A tool's question does not count as a reply.
 *
 * **Example** (The last reply)
 *
 * ```ts import.meta.vitest
 * import { Message, Session, Thread } from "heddle"
 *
 * const thread = Thread.fromMessages([Message.user("Hi"), Message.assistant("Hello")])
 *
 * Session.outputText(Session.make({ thread })) // => "Hello"
 * ```
 *
 * @category getters
 */
export const outputText: (session: SessionData.Session) => string = SessionData.outputText

/**
 * Returns the fold from an operation's events to the session afterwards. Throws for a mode other than `"chat"` and
 * `"step"`.
 *
 * **Example** (Before the first event)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 *
 * Session.reducer(Session.make(), "chat").isEnded // => false
 * ```
 *
 * @category folding
 */
export const reducer: <const M extends SessionEvents.Mode>(
  session: SessionData.Session,
  mode: M
) => SessionEvents.StreamReducer<M> = SessionEvents.make

/**
 * Returns the reducer after an event.
 *
 * **Example** (The session after a stream)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 * const program = Effect.gen(function*() {
 *   const session = Session.make()
 *   const events = yield* Stream.runCollect(Session.streamReply(session, "Hi"))
 *   let reducer = Session.reducer(session, "chat")
 *   for (const event of events) reducer = Session.applyEvent(reducer, event)
 *   return Session.finalize(reducer)
 * })
 * const done = await Effect.runPromise(program.pipe(Effect.provide(model)))
 *
 * done.result.haltedReason // => "completed"
 * ```
 *
 * @category folding
 */
export const applyEvent: {
  /** Takes the reducer last, as in a pipe. */
  (
    event: Event.Event
  ): <M extends SessionEvents.Mode>(reducer: SessionEvents.StreamReducer<M>) => SessionEvents.StreamReducer<M>
  /** Returns the reducer after an event. The given reducer does not change. */
  <M extends SessionEvents.Mode>(
    reducer: SessionEvents.StreamReducer<M>,
    event: Event.Event
  ): SessionEvents.StreamReducer<M>
} = dual(2, SessionEvents.applyEvent)

/**
 * Returns the session after a stream, and its result. A whole run gives the same session as the operation. An
 * interrupted run is cancelled and keeps its whole steps; an interrupted step leaves the session unchanged, except for
 * approved calls already begun. Repeated calls give the same result.
 *
 * **Example** (The session after a stream)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 * const program = Effect.gen(function*() {
 *   const session = Session.make()
 *   const events = yield* Stream.runCollect(Session.streamReply(session, "Hi"))
 *   let reducer = Session.reducer(session, "chat")
 *   for (const event of events) reducer = Session.applyEvent(reducer, event)
 *   return Session.finalize(reducer)
 * })
 * const done = await Effect.runPromise(program.pipe(Effect.provide(model)))
 *
 * done.session.status // => "completed"
 * ```
 *
 * @category folding
 */
export const finalize: <M extends SessionEvents.Mode>(
  reducer: SessionEvents.StreamReducer<M>
) => SessionEvents.Done<M> = SessionEvents.finalize
