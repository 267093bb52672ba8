/**
 * A conversation that is kept: it stops to ask, waits for a person or for another system, and goes on, in this process or
 * the next. A session is plain data, and every operation gives the next one; a store keeps what happened, so that two
 * writers cannot fork it. Every provider accepts the thread of a session as it is, except for the calls that it waits for.
 *
 * **Details**
 *
 * An operation that the status of the session does not allow is a defect that names the right call; data that does not
 * fit is a typed error. Options are those of one run and are never kept. `context` and `sessionId` are the caller's, else
 * the session's, else the application's. The functions of data (`answer`, `approve`, `deny`, `append`, ...) also take the
 * session last.
 *
 * @since 0.1.0
 */
import type * as Effect from "effect/Effect"
import { dual } from "effect/Function"
import type * as Scope from "effect/Scope"
import type * as Stream from "effect/Stream"
import type * as Adapter from "./Adapter.ts"
import type * as Chat from "./Chat.ts"
import type * as Event from "./Event.ts"
import * as Claims from "./internal/session/claim.ts"
import type * as Ledgers from "./internal/session/ledger.ts"
import * as Recorders from "./internal/session/recorder.ts"
import type * as Records from "./internal/session/records.ts"
import * as Reducer from "./internal/session/reducer.ts"
import * as SessionRun from "./internal/session/run.ts"
import * as SessionState from "./internal/session/state.ts"
import type * as Stores from "./internal/session/store.ts"
import type * as Message from "./Message.ts"
import type * as Thread from "./Thread.ts"
import type * as Tool from "./Tool.ts"

export {
  /**
   * How a suspension was settled.
   *
   * @category schemas
   * @since 0.1.0
   */
  Answer,
  /**
   * A session: serialisable data and nothing else.
   *
   * @category schemas
   * @since 0.1.0
   */
  Session,
  /**
   * What a caller got wrong about a session's data. `reason` says what, and `detail` names the call that
   * goes on from there. A wrong status is a defect instead.
   *
   * @category errors
   * @since 0.1.0
   */
  SessionError,
  /**
   * Where a session stands.
   *
   * @category schemas
   * @since 0.1.0
   */
  Status
} from "./internal/session/state.ts"

export type {
  ApprovedAnswer,
  DeniedAnswer,
  ExpiredAnswer,
  NestedAnswers,
  Options,
  ValueAnswer
} from "./internal/session/state.ts"

export {
  /**
   * One thing that happened in a session, as a store keeps it.
   *
   * @category schemas
   * @since 0.1.0
   */
  Record
} from "./internal/session/records.ts"

export {
  isUnfinishedAfter,
  /**
   * How many bytes of JSON a record may have, 8 MiB by default. A larger one is refused when it is written, with the
   * `StoreError` `too_large`, and the operation ends with it.
   *
   * @category services
   * @since 0.1.0
   */
  MaxRecordBytes,
  /**
   * The session has been written to since it was read, by another program or by this one. Nothing was appended: load it
   * again, and decide anew.
   *
   * @category errors
   * @since 0.1.0
   */
  SessionConflict,
  /**
   * The store of sessions. `Session.Store.layerMemory` keeps them in memory, `SessionStore.layerSqlite({ filename })` of
   * `heddle/sql` in a file.
   *
   * @category services
   * @since 0.1.0
   */
  Store,
  /**
   * A store could not do what it was asked: it was `unavailable`, `full` or `read_only`, a record was `too_large`, or it holds
   * what is no journal (`unreadable`) or is of a later release (`newer_version`). After an append that was `unavailable`,
   * reading shows whether the records are there.
   *
   * @category errors
   * @since 0.1.0
   */
  StoreError
} from "./internal/session/store.ts"

export type {
  Answered,
  ApprovedAnswered,
  CallEnded,
  CallStarted,
  Ended,
  Entry,
  Interrupted,
  InterruptedCall,
  Kept,
  MessagesAppended,
  MessageSubmitted,
  Opened,
  Outcome,
  Parent,
  QuestionWithdrawn,
  Reference,
  ReplyReceived,
  RunEnded,
  RunFailed,
  RunStarted,
  StepCompleted,
  StopRequested,
  WholeStep
} from "./internal/session/records.ts"

export type { Claim, Listed, ListOptions, Service as StoreService } from "./internal/session/store.ts"

export {
  /**
   * The session belongs to another owner (`held`), or the claim of this one could not be renewed in time (`lost`): nothing
   * of it may go on here.
   *
   * @category errors
   * @since 0.1.0
   */
  SessionClaimed
} from "./internal/session/claim.ts"

export type {
  HeldClaim,
  Options as ClaimOptions,
  StopReceipt,
  StopReport,
  SubmitReceipt
} from "./internal/session/claim.ts"

export {
  /**
   * Why a run that was cut cannot be taken up, or was ended in place of being taken up.
   *
   * @category errors
   * @since 0.1.0
   */
  ResumeError
} from "./internal/session/ledger.ts"

export type { Claimed, Failure as KeepError } from "./internal/session/recorder.ts"

export type { ApproveOptions, ToolResult } from "./internal/session/run.ts"

export type { Done, Mode, StreamReducer } from "./internal/session/reducer.ts"

export type { Failure } from "./internal/session/run.ts"

/**
 * A session at rest, of an id, a thread, a context and metadata, all of which may be left out.
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
 * @since 0.1.0
 */
export const make: (options?: SessionState.Options) => SessionState.Session = SessionState.make

/**
 * Leads a session out of status `error`: idle, with its whole thread and without `metadata.error`. Returns any other
 * session as it is.
 *
 * **Gotchas**
 *
 * It is a function of data, and is not written by itself: within {@link keep} recover in the operation that goes on,
 * `(session) => Session.reply(Session.recover(session), …)`. An operation that only recovers keeps nothing.
 *
 * **Example** (Going on after a reply that broke)
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
 * @since 0.1.0
 */
export const recover: (session: SessionState.Session) => SessionState.Session = SessionState.recover

/**
 * The session with this id, begun with the options if there is none. Two programs that open it at once get the same one.
 * `interrupted` is set as by {@link load}.
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
 * @since 0.1.0
 */
export const open: (
  id: string,
  options?: Omit<SessionState.Options, "id">
) => Effect.Effect<Records.Kept, Stores.StoreError, Stores.Store> = Recorders.open

/**
 * The session with this id as the store has it, or `undefined` if there is none. Fails with a `StoreError`.
 *
 * `interrupted` is set if the last run has no end: it is under way elsewhere, was interrupted, or its process was killed.
 * Its `calls` have started and may have had their effect. {@link resume} takes the run up. Another run closes its turn first,
 * as {@link keep} says.
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
 * @since 0.1.0
 */
export const load: (id: string) => Effect.Effect<Records.Kept | undefined, Stores.StoreError, Stores.Store> =
  Recorders.load

/**
 * Runs an operation on a session and records what happens as it does.
 *
 * **Details**
 *
 * What an operation says and answers is written before anything follows from it, and a call before its handler starts. The
 * first append decides: if the session has been written to since it was read, it fails with `SessionConflict` before
 * anything has run, and so does every operation but one of those that begin at one version. It fails with a `StoreError`
 * where something cannot be written, and stops the operation.
 *
 * Of a run that was cut (`interrupted`) an operation that begins another run, or adds messages, closes the turn first: calls
 * that ended have their results, those that had only started are answered as `unknown_effect`, the others as not run, and
 * questions are withdrawn. {@link resume} takes the run up instead.
 *
 * Where the first model call fails before its first event, the operation fails (`AdapterError`), what was said counts as
 * not said, and the session is not in error. From the first event on it succeeds, with the outcome `Failed`, and the
 * session is in status `error`.
 *
 * **Gotchas**
 *
 * After a `keep` that failed or was interrupted the session has been written to: load it again before the next.
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
 * @since 0.1.0
 */
export const keep: <A, E, R>(
  kept: Records.Kept,
  operation: (session: SessionState.Session) => Effect.Effect<A, E, R>
) => Effect.Effect<Records.Outcome<A>, E | Recorders.Failure, R | Stores.Store> = Recorders.keep

/**
 * The same for the events of an operation. Load the session again when the stream has ended.
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
 * @since 0.1.0
 */
export const keepStream: <A, E, R>(
  kept: Records.Kept,
  operation: (session: SessionState.Session) => Stream.Stream<A, E, R>
) => Stream.Stream<A, E | Recorders.Failure, R | Stores.Store> = Recorders.keepStream

/**
 * The session with this id under a claim, begun if there is none: no other owner can claim it until the scope closes. Fails
 * with a `SessionClaimed` if another owner has it.
 *
 * **Details**
 *
 * The claim is renewed in the background, and ends by the clock of the store where it is not, so that the sessions of a
 * process that is gone are free after their term. While an operation of {@link keep} runs under it, commands of other
 * processes are taken in: {@link stop}, {@link submit}. An operation whose claim is lost is stopped, and fails with
 * `SessionClaimed`.
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
 * @since 0.1.0
 */
export const claim: (
  id: string,
  options?: Claims.Options
) => Effect.Effect<Recorders.Claimed, Claims.SessionClaimed | Stores.StoreError, Stores.Store | Scope.Scope> =
  Recorders.claim

/**
 * Asks the run of a session to stop, from any process. The request is a record: the owner takes it in, or the next one does
 * if there is none. The run ends softly, with outcome `Cancelled` and reason `"stop"`, and leaves the session in status
 * `stopped`. A session without a run is left as it is.
 *
 * Succeeds as soon as the request is durable. `ended` of its receipt waits for the end, and names the calls.
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
 * @since 0.1.0
 */
export const stop: (id: string) => Effect.Effect<Claims.StopReceipt, Stores.StoreError, Stores.Store> = Claims.stop

/**
 * Leaves a message for a session, from any process, which a worker of `heddle/durable` takes up as soon as the session is
 * free. Begins the session if there is none. Succeeds when the message is durable.
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
 * @since 0.1.0
 */
export const submit: (
  id: string,
  content: Message.Content
) => Effect.Effect<Claims.SubmitReceipt, Stores.StoreError, Stores.Store> = Claims.submit

/**
 * Writes a session that is at rest as one record and removes the records before it, and the journals of the runs inside it,
 * so that loading it no longer depends on its history. Succeeds with the session behind that record.
 *
 * Fails with the `SessionError` `unfinished` where a run has no end, or where a message or an answer waits for a run: they
 * need the records. Fails with a `SessionConflict` where the session has been written to since it was read.
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
 * @since 0.1.0
 */
export const snapshot: (
  kept: Records.Kept
) => Effect.Effect<
  Records.Kept,
  SessionState.SessionError | Stores.SessionConflict | Stores.StoreError,
  Stores.Store
> = Recorders.snapshot

/**
 * The ids of the sessions of the store that have work left: a run without an end, or a message or an answer that no run has
 * taken up. A run without an end may be under way in another process.
 *
 * **Example** (What a process finds when it starts)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const program = Effect.gen(function*() {
 *   const store = yield* Session.Store
 *   yield* store.append("s1", 0, [{ _tag: "RunStarted", requestId: "r1", operation: "start", messages: [] }])
 *   yield* Session.open("s2")
 *   return yield* Stream.runCollect(Session.unfinished)
 * })
 *
 * await Effect.runPromise(program.pipe(Effect.provide(Session.Store.layerMemory))) // => ["s1"]
 * ```
 *
 * @category keeping
 * @since 0.1.0
 */
export const unfinished: Stream.Stream<string, Stores.StoreError, Stores.Store> = Recorders.unfinished

/**
 * The sessions of the store whose ids begin with a prefix, or all of them, in no particular order.
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
 *   return yield* Stream.runCollect(Session.list({ prefix: "ada/" }))
 * })
 *
 * await Effect.runPromise(program.pipe(Effect.provide(Session.Store.layerMemory)))
 * // => [{ id: "ada/1", version: 1, isUnfinished: false }]
 * ```
 *
 * @category keeping
 * @since 0.1.0
 */
export const list: (
  options?: Stores.ListOptions
) => Stream.Stream<Stores.Listed, Stores.StoreError, Stores.Store> = Recorders.list

const remove: (id: string) => Effect.Effect<void, Stores.StoreError, Stores.Store> = Recorders.remove

export {
  /**
   * Removes a session from the store: its journal, its claim, and those of the runs inside it. A process that runs it meanwhile has a
   * `SessionConflict` at its next record.
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
   * @since 0.1.0
   */
  remove as delete
}

/**
 * The options of taking up a run: those of the run, how old it may be, and how often it may be taken up.
 *
 * @category options
 * @since 0.1.0
 */
export interface ResumeOptions<
  T extends ReadonlyArray<Tool.Any> = ReadonlyArray<Tool.Any>,
  E = never,
  R = never,
  RHalt = R,
  REvent = R
> extends Chat.Options<T, E, R, RHalt, REvent>, SessionRun.ResumeOptions {}

/**
 * The events of {@link resume}. Those that repeat what was recorded have `replayed: true`. Load the session again when the
 * stream has ended.
 *
 * **Example** (The events of a run that was cut)
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
 *   const cut = yield* Session.claim("s1")
 *   return yield* Stream.runCollect(Session.streamResume(cut, { tools: [ping] }))
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
 * @since 0.1.0
 */
export const streamResume = <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never
>(
  kept: Records.Kept,
  options: ResumeOptions<T, E, R, RHalt, REvent> = {}
): Stream.Stream<
  Event.Event,
  Ledgers.ResumeError | SessionRun.Failure | Recorders.Failure | E | Tool.Fatal<T[number]>,
  Adapter.Adapter | Stores.Store | Tool.Services<T[number]> | R | RHalt | REvent
> => SessionRun.streamResumed(kept, options)

/**
 * Takes up the run of a session that was cut: its process was killed, or its reader left. The run keeps its id and goes on
 * where the journal ends. Whole steps are not repeated. Of the cut step the recorded reply is read again, a call that ended
 * has its recorded result, and a call that had not started runs. A call that had started and not ended may have had its
 * effect: its tool decides, by `lookUp` or `unknown`. A reply that was cut is asked for again.
 *
 * Fails with a {@link ResumeError}, before anything was written, where the session was loaded without a claim, or where the
 * tools no longer fit what was recorded. Dies where no run was cut.
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
 *   const cut = yield* Session.claim("s1")
 *   return yield* Session.resume(cut, { tools: [charge] })
 * }).pipe(Effect.scoped)
 * const store = Session.Store.layerMemory
 * const { value } = await Effect.runPromise(program.pipe(Effect.provide(model), Effect.provide(store)))
 *
 * value.result.finalResponse?.outputText // => "Paid."
 * charged // => 1
 * ```
 *
 * @category running
 * @since 0.1.0
 */
export const resume = <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never
>(
  kept: Records.Kept,
  options: ResumeOptions<T, E, R, RHalt, REvent> = {}
): Effect.Effect<
  Records.Outcome<Reducer.Done>,
  Ledgers.ResumeError | SessionRun.Failure | Recorders.Failure | E | Tool.Fatal<T[number]>,
  Adapter.Adapter | Stores.Store | Tool.Services<T[number]> | R | RHalt | REvent
> => SessionRun.resumed(kept, options)

/**
 * The events of {@link start}.
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
 * @since 0.1.0
 */
export const streamStart = <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never
>(
  input: SessionState.Session | Thread.Input,
  options: Chat.Options<T, E, R, RHalt, REvent> = {}
): Stream.Stream<
  Event.Event,
  SessionRun.Failure | E | Tool.Fatal<T[number]>,
  Adapter.Adapter | Tool.Services<T[number]> | R | RHalt | REvent
> => SessionRun.stream(SessionRun.starting(input), options)

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
 * @since 0.1.0
 */
export const start = <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never
>(
  input: SessionState.Session | Thread.Input,
  options: Chat.Options<T, E, R, RHalt, REvent> = {}
): Effect.Effect<
  Reducer.Done,
  SessionRun.Failure | E | Tool.Fatal<T[number]>,
  Adapter.Adapter | Tool.Services<T[number]> | R | RHalt | REvent
> => SessionRun.awaited(SessionRun.starting(input), options)

/**
 * The options of a reply: those of its run, and what becomes of the calls that wait.
 *
 * @category options
 * @since 0.1.0
 */
export interface ReplyOptions<
  T extends ReadonlyArray<Tool.Any> = ReadonlyArray<Tool.Any>,
  E = never,
  R = never,
  RHalt = R,
  REvent = R
> extends Chat.Options<T, E, R, RHalt, REvent> {
  /**
   * What becomes of calls that still wait for an answer when the user speaks. By default a reply while an approval is
   * pending fails with the `SessionError` `approval_pending`. `"deny"` answers every call that waits as denied, and goes
   * on; a single open question is not denied, since the reply is its answer.
   */
  readonly pending?: "deny"
}

/**
 * The events of {@link reply}.
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
 * @since 0.1.0
 */
export const streamReply = <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never
>(
  session: SessionState.Session,
  content: Message.Content,
  { pending, ...options }: ReplyOptions<T, E, R, RHalt, REvent> = {}
): Stream.Stream<
  Event.Event,
  SessionRun.Failure | E | Tool.Fatal<T[number]>,
  Adapter.Adapter | Tool.Services<T[number]> | R | RHalt | REvent
> => SessionRun.stream(SessionRun.replying(session, content, pending), options)

/**
 * Goes on with a message of the user: the answer to the question that waits, or something new. The answer to a question
 * that the thread ends with is a message of the user. The answer to a question that is not in the thread, because other calls
 * waited beside it or an approved call asked it, stands in the place of the call, as `Session.answer` puts it. While an
 * approval is pending, fails with the `SessionError` `approval_pending`, unless `pending` says what becomes of the call.
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
 * Session.messages(session).map((message) => message.content) // => ["Hi", "Hello", "How are you?", "Fine"]
 * ```
 *
 * @category running
 * @since 0.1.0
 */
export const reply = <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never
>(
  session: SessionState.Session,
  content: Message.Content,
  { pending, ...options }: ReplyOptions<T, E, R, RHalt, REvent> = {}
): Effect.Effect<
  Reducer.Done,
  SessionRun.Failure | E | Tool.Fatal<T[number]>,
  Adapter.Adapter | Tool.Services<T[number]> | R | RHalt | REvent
> => SessionRun.awaited(SessionRun.replying(session, content, pending), options)

/**
 * The events of `Session.continue`.
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
 * @since 0.1.0
 */
export const streamContinue = <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never
>(
  session: SessionState.Session,
  message: Message.Input | null = null,
  options: Chat.Options<T, E, R, RHalt, REvent> = {}
): Stream.Stream<
  Event.Event,
  SessionRun.Failure | E | Tool.Fatal<T[number]>,
  Adapter.Adapter | Tool.Services<T[number]> | R | RHalt | REvent
> => SessionRun.stream(SessionRun.continuing(session, message), options)

/**
 * Goes on with a message, or without one: after the last answer, with the calls that were approved. Public as
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
 * @since 0.1.0
 */
const continue_ = <const T extends ReadonlyArray<Tool.Any> = [], E = never, R = never, RHalt = never, REvent = never>(
  session: SessionState.Session,
  message: Message.Input | null = null,
  options: Chat.Options<T, E, R, RHalt, REvent> = {}
): Effect.Effect<
  Reducer.Done,
  SessionRun.Failure | E | Tool.Fatal<T[number]>,
  Adapter.Adapter | Tool.Services<T[number]> | R | RHalt | REvent
> => SessionRun.awaited(SessionRun.continuing(session, message), options)

export { continue_ as continue }

/**
 * The events of {@link step}.
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
 * @since 0.1.0
 */
export const streamStep = <
  const T extends ReadonlyArray<Tool.Any> = [],
  E = never,
  R = never,
  RHalt = never,
  REvent = never
>(
  session: SessionState.Session,
  options: Chat.Options<T, E, R, RHalt, REvent> = {}
): Stream.Stream<
  Event.Event,
  SessionRun.Failure | E | Tool.Fatal<T[number]>,
  Adapter.Adapter | Tool.Services<T[number]> | R | RHalt | REvent
> => SessionRun.stream(SessionRun.stepping(session), options)

/**
 * One turn of the model and its tools. Where calls were approved, they are the step.
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
 * @since 0.1.0
 */
export const step = <const T extends ReadonlyArray<Tool.Any> = [], E = never, R = never, RHalt = never, REvent = never>(
  session: SessionState.Session,
  options: Chat.Options<T, E, R, RHalt, REvent> = {}
): Effect.Effect<
  Reducer.Done<"step">,
  SessionRun.Failure | E | Tool.Fatal<T[number]>,
  Adapter.Adapter | Tool.Services<T[number]> | R | RHalt | REvent
> => SessionRun.awaited(SessionRun.stepping(session), options)

/** Whether the session stands first among the arguments of a function that takes an id behind it. */
const hasSession = ({ 0: first }: IArguments): boolean => typeof first !== "string"

/**
 * Answers a question, or gives the result of a manual call, by its id.
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
 * @category answering
 * @since 0.1.0
 */
export const answer: {
  /**
   * Answers a question, or gives the result of a manual call, by its id. Changes data and runs nothing; the other calls go
   * on waiting, and after the last answer `Session.continue` goes on. Fails with a `SessionError`, and leaves the session as
   * it was: `unknown_tool_call_id`, `already_answered`, `expired`, `session_in_error_state`, or `invalid_answer` for a value
   * that does not fit the question or a call that waits for an approval.
   */
  (
    session: SessionState.Session,
    id: string,
    value: unknown
  ): Effect.Effect<SessionState.Session, SessionState.SessionError>
  /**
   * The same, for a session that comes last.
   */
  (
    id: string,
    value: unknown
  ): (session: SessionState.Session) => Effect.Effect<SessionState.Session, SessionState.SessionError>
} = dual(hasSession, SessionRun.answer)

/**
 * Allows a call, with its own arguments or with others.
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
 * Session.messages(session).find((message) => message.role === "tool")?.content // => "paid"
 * ```
 *
 * @category answering
 * @since 0.1.0
 */
export const approve: {
  /**
   * Allows a call, with its own arguments or with others. It runs when the session goes on, once, through its gates again;
   * where the user speaks then, the message comes behind its answer. Fails like {@link answer}.
   *
   * **Gotchas**
   *
   * `arguments` that nest deeper than 256 levels are an `invalid_answer`. Else they are not checked here but when the call
   * runs: those that do not fit are answered as `invalid_arguments`, to the model, and the handler is not called.
   */
  (
    session: SessionState.Session,
    id: string,
    options?: SessionRun.ApproveOptions
  ): Effect.Effect<SessionState.Session, SessionState.SessionError>
  /**
   * The same, for a session that comes last.
   */
  (
    id: string,
    options?: SessionRun.ApproveOptions
  ): (session: SessionState.Session) => Effect.Effect<SessionState.Session, SessionState.SessionError>
} = dual(hasSession, SessionRun.approve)

/**
 * Refuses a call, which is answered as `denied`, with the reason if one is given, and never runs.
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
 * Session.messages(session).at(-1)?.isError // => true
 * session.approved // => []
 * ```
 *
 * @category answering
 * @since 0.1.0
 */
export const deny: {
  /**
   * Refuses a call, which is answered as `denied`, with the reason if one is given, and never runs. Fails like
   * {@link answer}.
   */
  (
    session: SessionState.Session,
    id: string,
    reason?: string
  ): Effect.Effect<SessionState.Session, SessionState.SessionError>
  /**
   * The same, for a session that comes last.
   */
  (
    id: string,
    reason?: string
  ): (session: SessionState.Session) => Effect.Effect<SessionState.Session, SessionState.SessionError>
} = dual(hasSession, SessionRun.deny)

/**
 * Gives the result of a manual call.
 *
 * **Example** (A result of your own)
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
 *   const submitted = yield* Session.submitToolResult(asked.session, "c0", "done by hand")
 *   return yield* Session.continue(submitted, null, { tools: [stamp] })
 * })
 * const { result } = await Effect.runPromise(program.pipe(Effect.provide(model)))
 *
 * result.finalResponse?.outputText // => "Stamped."
 * ```
 *
 * @category answering
 * @since 0.1.0
 */
export const submitToolResult: {
  /**
   * Gives the result of a manual call. What is longer than the tool's `maxResultChars`, or the `resultLimit` of the policy of
   * the run that made the call, is cut, for the model and in the thread. Fails like {@link answer}, and as `invalid_answer`
   * for a call of another kind. Dies where no call waits for a result or has waited for one.
   */
  (
    session: SessionState.Session,
    id: string,
    content: unknown
  ): Effect.Effect<SessionState.Session, SessionState.SessionError>
  /**
   * The same, for a session that comes last.
   */
  (
    id: string,
    content: unknown
  ): (session: SessionState.Session) => Effect.Effect<SessionState.Session, SessionState.SessionError>
} = dual(hasSession, SessionRun.submitToolResult)

/**
 * Gives several results, up to the first that is refused, with which it fails.
 *
 * **Example** (Several results)
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
 *   const { session } = yield* Session.start("Stamp", { tools: [stamp] })
 *   return yield* Session.submitToolResults(session, [{ toolCallId: "c0", content: "done by hand" }])
 * })
 * const session = await Effect.runPromise(program.pipe(Effect.provide(model)))
 *
 * session.suspensions // => []
 * ```
 *
 * @category answering
 * @since 0.1.0
 */
export const submitToolResults: {
  /**
   * Gives several results, up to the first that is refused, with which it fails. In the thread they stand in call order.
   */
  (
    session: SessionState.Session,
    results: ReadonlyArray<SessionRun.ToolResult>
  ): Effect.Effect<SessionState.Session, SessionState.SessionError>
  /**
   * The same, for a session that comes last.
   */
  (
    results: ReadonlyArray<SessionRun.ToolResult>
  ): (session: SessionState.Session) => Effect.Effect<SessionState.Session, SessionState.SessionError>
} = dual(2, SessionRun.submitToolResults)

/**
 * Settles every call whose time is up: questions and manual calls by their default, approvals as denied. A session in
 * which nothing is due is returned as it is. Calls do not expire by themselves, and a late answer fails as `expired`.
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
 * @since 0.1.0
 */
export const expire: (session: SessionState.Session) => Effect.Effect<SessionState.Session, SessionState.SessionError> =
  SessionRun.expire

/**
 * The session with messages at its end.
 *
 * **Example** (Messages from elsewhere)
 *
 * ```ts import.meta.vitest
 * import { Message, Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const session = Effect.runSync(Session.append(Session.make(), [Message.user("Hi"), Message.assistant("Hello")]))
 *
 * Session.messages(session).length // => 2
 * ```
 *
 * @category combinators
 * @since 0.1.0
 */
export const append: {
  /**
   * The session with messages at its end. Dies where calls wait or are approved: their answers come first.
   */
  (
    session: SessionState.Session,
    messages: ReadonlyArray<Message.Input>
  ): Effect.Effect<SessionState.Session, SessionState.SessionError>
  /**
   * The same, for a session that comes last.
   */
  (
    messages: ReadonlyArray<Message.Input>
  ): (session: SessionState.Session) => Effect.Effect<SessionState.Session, SessionState.SessionError>
} = dual(2, SessionRun.append)

/**
 * The session with a user message at its end.
 *
 * **Example** (A message of the user)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const session = Effect.runSync(Session.appendUser(Session.make(), "Hi"))
 *
 * Session.messages(session).map((message) => message.content) // => ["Hi"]
 * ```
 *
 * @category combinators
 * @since 0.1.0
 */
export const appendUser: {
  /**
   * The session with a user message at its end. Dies like {@link append}.
   */
  (
    session: SessionState.Session,
    content: Message.Content
  ): Effect.Effect<SessionState.Session, SessionState.SessionError>
  /**
   * The same, for a session that comes last.
   */
  (
    content: Message.Content
  ): (session: SessionState.Session) => Effect.Effect<SessionState.Session, SessionState.SessionError>
} = dual(2, SessionRun.appendUser)

/**
 * The messages of a session.
 *
 * **Example** (What was said)
 *
 * ```ts import.meta.vitest
 * import { Message, Session, Thread } from "heddle"
 *
 * const session = Session.make({ thread: Thread.fromMessages([Message.user("Hi")]) })
 *
 * Session.messages(session).map((message) => message.role) // => ["user"]
 * ```
 *
 * @category getters
 * @since 0.1.0
 */
export const messages = (session: SessionState.Session): ReadonlyArray<Message.Message> => session.thread.messages

/**
 * The calls that the caller has to run or to allow.
 *
 * **Example** (What waits for permission)
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
 * const { session } = await Effect.runPromise(Session.start("Pay", { tools: [pay] }).pipe(Effect.provide(model)))
 *
 * Session.pendingToolCalls(session).map((call) => call.name) // => ["pay"]
 * ```
 *
 * @category getters
 * @since 0.1.0
 */
export const pendingToolCalls = (session: SessionState.Session): ReadonlyArray<Message.ToolCall> =>
  session.pendingToolCalls

/**
 * The fold from the events of an operation to the session after it. Dies for a mode other than `"chat"` and `"step"`.
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
 * @since 0.1.0
 */
export const reducer: <const M extends Reducer.Mode>(
  session: SessionState.Session,
  mode: M
) => Reducer.StreamReducer<M> = Reducer.make

/**
 * The reducer after an event.
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
 * @since 0.1.0
 */
export const applyEvent: {
  /**
   * The reducer after an event. The given one is not changed.
   */
  <M extends Reducer.Mode>(reducer: Reducer.StreamReducer<M>, event: Event.Event): Reducer.StreamReducer<M>
  /**
   * The same, for a reducer that comes last.
   */
  (event: Event.Event): <M extends Reducer.Mode>(reducer: Reducer.StreamReducer<M>) => Reducer.StreamReducer<M>
} = dual(2, Reducer.applyEvent)

/**
 * The session after a stream, and its result. A whole run gives the session that the operation gives. A run that was cut
 * is cancelled and leaves what was whole of it; a step that was cut leaves the session as it was, except for approved
 * calls that had begun. Asking twice gives the same.
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
 * @since 0.1.0
 */
export const finalize: <M extends Reducer.Mode>(reducer: Reducer.StreamReducer<M>) => Reducer.Done<M> = Reducer.finalize
