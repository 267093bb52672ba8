/**
 * The journal of a session: the records of what happened, the store that keeps them, and the recorder that appends the
 * records of an operation as it runs. A journal only grows: its version is the number of its records, and an append names
 * the version that it follows, so that of two writers one fails with a conflict. Public as `Session`.
 *
 * **Details**
 *
 * A journal is written so that a run that was killed can be taken up by a reader of the journal alone:
 *
 * - `RunStarted` precedes every record of a run, and `RunEnded` follows them. A journal with the first and without the
 *   second belongs to a run that is under way, was interrupted, or was killed.
 * - `RunFailed` means that a run could not be started: its user message is discarded. A run that had completed
 *   a step keeps what it came to.
 * - `RunStarted` has what was said to the session with it. An answer to a question that was not asked in words is no
 *   message: `answered` has it. Calls that were approved run first, and `ApprovedAnswered` has the answer of each that has
 *   one now, and the questions that some of them asked; what was said stands behind the last of them. `QuestionWithdrawn`
 *   has the answer to such a question when the run ends for another reason than to wait.
 * - `ReplyReceived` has the assistant message of a turn before one of its calls starts (except for calls of read-only
 *   tools, which may start while the model still streams).
 * - `CallStarted` is written before a handler starts: the intent. `CallEnded` has its outcome before anything follows from
 *   it. A call with both is not run again; a call with neither has not started and can be run; a call that has only started
 *   may have had its effect: its `idempotencyKey` lets an idempotent tool be asked again, and anything else is for a person
 *   to decide. An approved call that ended with a question is open, until `expiresAt` if there is one.
 * - `StepCompleted` adds the messages of the turn, all at once, and those of its calls that are open. The thread of a
 *   session that is read back is therefore whole at every version: a call is in it with its answer, or with a suspension,
 *   or not at all.
 *
 * @since 0.1.0
 */
import type * as Arr from "effect/Array"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Semaphore from "effect/Semaphore"
import * as Stream from "effect/Stream"
import * as Event from "../../Event.ts"
import * as Message from "../../Message.ts"
import * as Settings from "../ask/options.ts"
import * as Json from "../json.ts"
import { Running, Worker } from "../stop/ownedFibers.ts"
import * as SessionState from "./state.ts"

const ofRun = {
  /** The run that the record belongs to. */
  requestId: Schema.String
}

const ofStep = {
  ...ofRun,
  /** The turn of the run, from 0. */
  stepIndex: Schema.Int
}

/**
 * The first record of a journal, and the session as a whole where an operation went on with another one.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Opened extends Schema.Opaque<Opened>()(Schema.TaggedStruct("Opened", {
  /** What the session begins with. */
  session: SessionState.Session
})) {}

/**
 * Messages were added between runs.
 *
 * @category schemas
 * @since 0.1.0
 */
export class MessagesAppended extends Schema.Opaque<MessagesAppended>()(Schema.TaggedStruct("MessagesAppended", {
  /** The messages, in order. */
  messages: Schema.Array(Message.Message)
})) {}

/**
 * A suspension was settled between runs, which happens at most once.
 *
 * @category schemas
 * @since 0.1.0
 */
export class Answered extends Schema.Opaque<Answered>()(Schema.TaggedStruct("Answered", {
  /** The id of the call. */
  id: Schema.String,
  /** How it was settled. */
  answer: SessionState.Answer
})) {}

/**
 * A run starts.
 *
 * @category schemas
 * @since 0.1.0
 */
export class RunStarted extends Schema.Opaque<RunStarted>()(Schema.TaggedStruct("RunStarted", {
  ...ofRun,
  /** The operation of `Session` that started it. */
  operation: Schema.Literals(["start", "reply", "continue", "step"]),
  /** What was said to the session with it. */
  messages: Schema.Array(Message.Message),
  /** The open question that it answers in its place, and the answer. */
  answered: Schema.optionalKey(Schema.Struct({
    /** The id of the call that asked it. */
    id: Schema.String,
    /** The answer. */
    answer: SessionState.Answer
  }))
})) {}

/**
 * Calls that were approved have their answers.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ApprovedAnswered extends Schema.Opaque<ApprovedAnswered>()(Schema.TaggedStruct("ApprovedAnswered", {
  ...ofRun,
  /** The answers. */
  messages: Schema.Array(Message.Message),
  /** The questions that some of the calls asked. */
  suspensions: Schema.optionalKey(Schema.Array(Event.Suspension))
})) {}

/**
 * The run withdrew the question of a call that was approved.
 *
 * @category schemas
 * @since 0.1.0
 */
export class QuestionWithdrawn extends Schema.Opaque<QuestionWithdrawn>()(Schema.TaggedStruct("QuestionWithdrawn", {
  ...ofRun,
  /** What the call has as its answer. */
  message: Message.Message
})) {}

/**
 * The model replied with calls.
 *
 * @category schemas
 * @since 0.1.0
 */
export class ReplyReceived extends Schema.Opaque<ReplyReceived>()(Schema.TaggedStruct("ReplyReceived", {
  ...ofStep,
  /** Its message. */
  message: Message.Message
})) {}

/**
 * A handler is about to start.
 *
 * @category schemas
 * @since 0.1.0
 */
export class CallStarted extends Schema.Opaque<CallStarted>()(Schema.TaggedStruct("CallStarted", {
  ...ofStep,
  /** The call, with the arguments that the handler gets. */
  toolCall: Message.ToolCall,
  /** The attempt, from 1. */
  attempt: Schema.Int,
  /** The key under which an idempotent tool may be asked again. */
  idempotencyKey: Schema.String
})) {}

/**
 * A handler ended.
 *
 * @category schemas
 * @since 0.1.0
 */
export class CallEnded extends Schema.Opaque<CallEnded>()(Schema.TaggedStruct("CallEnded", {
  ...ofStep,
  /** The id of the call. */
  toolCallId: Schema.String,
  /** What the handler came to. */
  outcome: Json.Opaque,
  /** Of an outcome that is a question: when it is settled without an answer, in milliseconds since 1970. */
  expiresAt: Schema.optionalKey(Schema.Finite)
})) {}

/**
 * A turn is whole.
 *
 * @category schemas
 * @since 0.1.0
 */
export class StepCompleted extends Schema.Opaque<StepCompleted>()(Schema.TaggedStruct("StepCompleted", {
  ...ofStep,
  /** The messages of the turn. */
  messages: Schema.Array(Message.Message),
  /** The calls of the turn that are open. */
  suspensions: Schema.optionalKey(Schema.Array(Event.Suspension))
})) {}

/**
 * The run could not be started.
 *
 * @category schemas
 * @since 0.1.0
 */
export class RunFailed extends Schema.Opaque<RunFailed>()(Schema.TaggedStruct("RunFailed", ofRun)) {}

/**
 * The run ended.
 *
 * @category schemas
 * @since 0.1.0
 */
export class RunEnded extends Schema.Opaque<RunEnded>()(Schema.TaggedStruct("RunEnded", {
  ...ofRun,
  /** The `haltedReason` of its result; empty for a step that only ran tools. */
  haltedReason: Schema.String,
  /** Messages that no step has, such as the answer to a structured request. */
  messages: Schema.Array(Message.Message),
  /** The status of the session after it, unless a call is open. */
  status: SessionState.Status,
  /** The calls that are open after it. */
  suspensions: Schema.Array(Event.Suspension),
  /** What it adds to the context of the session. */
  context: Schema.Record(Schema.String, Json.Opaque),
  /** What it adds to the metadata of the session. */
  metadata: Json.Metadata
})) {}

/**
 * One thing that happened in a session.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Record = Schema.Union([
  Opened,
  MessagesAppended,
  Answered,
  RunStarted,
  ApprovedAnswered,
  QuestionWithdrawn,
  ReplyReceived,
  CallStarted,
  CallEnded,
  StepCompleted,
  RunFailed,
  RunEnded
]).pipe(Schema.toTaggedUnion("_tag"))

/**
 * @see {@link Record}
 *
 * @category models
 * @since 0.1.0
 */
export type Record =
  | Opened
  | MessagesAppended
  | Answered
  | RunStarted
  | ApprovedAnswered
  | QuestionWithdrawn
  | ReplyReceived
  | CallStarted
  | CallEnded
  | StepCompleted
  | RunFailed
  | RunEnded

/** Records of one append. */
export type Records = Arr.NonEmptyReadonlyArray<Record>

/**
 * A record in its place.
 *
 * @category models
 * @since 0.1.0
 */
export interface Entry {
  /** The version of the journal after the record, from 1. */
  readonly version: number
  /** The record. */
  readonly record: Record
}

/**
 * A run whose start the journal has, and not its end: it is under way elsewhere, was interrupted, or its process was
 * killed.
 *
 * @category models
 * @since 0.1.0
 */
export interface Interrupted {
  /** The id of the run. */
  readonly requestId: string
  /** What was said to the session with it. */
  readonly messages: ReadonlyArray<Message.Message>
  /** The session as it was before the run, until a step is whole. */
  readonly before?: SessionState.Session
  /** The last message of the model, if it has calls and its turn is not whole. */
  readonly reply?: Message.Message
  /** The calls that started since the last whole step. They may have had their effect. */
  readonly calls: ReadonlyArray<InterruptedCall>
}

/**
 * A call of a run that was interrupted.
 *
 * @category models
 * @since 0.1.0
 */
export interface InterruptedCall {
  /** The call, with the arguments that its handler got. */
  readonly toolCall: Message.ToolCall
  /** The key under which an idempotent tool may be asked again. */
  readonly idempotencyKey: string
  /** What the handler came to. Absent if it has not ended. */
  readonly outcome?: unknown
  /** Of a call whose outcome is a question: when it is settled without an answer, in milliseconds since 1970. */
  readonly expiresAt?: number
}

/** The fold of a journal: the session, and the run that has no end yet. */
export interface JournalState {
  /** The session, with every whole step of the run, and the calls that are open. */
  readonly session: SessionState.Session
  /** The run that has no end, if there is one. */
  readonly interrupted?: Interrupted
}

/**
 * A session as a store has it.
 *
 * @category models
 * @since 0.1.0
 */
export interface Kept extends JournalState {
  /** The id of the session. */
  readonly id: string
  /** The version of the journal that the session was read at. The next operation is written behind it, or conflicts. */
  readonly version: number
}

/**
 * What a kept operation came to: the session as the store has it now, and the value of the operation.
 *
 * @category models
 * @since 0.1.0
 */
export interface Outcome<out A> extends Kept {
  /** What the operation succeeded with. */
  readonly value: A
}

/**
 * The session has been written to since it was read: by another program, or by this one, also by an operation that failed
 * or was interrupted. Nothing was appended: load it again, and decide anew.
 *
 * @category errors
 * @since 0.1.0
 */
export class SessionConflict extends Schema.TaggedError<SessionConflict>("heddle/Session/SessionConflict")(
  "SessionConflict",
  {
    /** The id of the session. */
    id: Schema.String,
    /** The version that the append was to follow. */
    expected: Schema.Int,
    /** The version that the journal is at. */
    actual: Schema.Int
  }
) {
  override get message(): string {
    const session = JSON.stringify(this.id)
    return `session ${session} is at version ${this.actual}, not ${this.expected}: it has been written to since it was `
      + "read, by another program or by this one; load it again"
  }
}

/**
 * A store could not do what it was asked to. After a failed append the records are in the journal as a whole or not at
 * all; reading shows which.
 *
 * @category errors
 * @since 0.1.0
 */
export class StoreError extends Schema.TaggedError<StoreError>("heddle/Session/StoreError")("StoreError", {
  /** `unavailable`: the store did not do it. `unreadable`: what it holds is no journal. */
  reason: Schema.Literals(["unavailable", "unreadable"]),
  /** What the store was asked to do. */
  operation: Schema.Literals(["append", "version", "read"]),
  /** The id of the session. */
  id: Schema.String,
  /**
   * Of a damaged journal the first version that is not as it was written: its record is missing, is no record, or stands in
   * the place of another one. The records before it are as they were written.
   */
  version: Schema.optionalKey(Schema.Int),
  /** The error of the database, or what is wrong with the journal as text. */
  cause: Schema.optionalKey(Json.Opaque)
}) {
  override get message(): string {
    const session = JSON.stringify(this.id)
    return this.version === undefined
      ? `the store is ${this.reason} (${this.operation} of session ${session})`
      : `the journal of session ${session} is damaged at version ${this.version}`
  }
}

/** What is wrong with a journal, and from which version on. */
const damaged = (id: string, version: number, cause: unknown): StoreError =>
  new StoreError({ reason: "unreadable", operation: "read", id, version, cause })

/**
 * What a store of journals does, one journal per session id. `StoreSuite` of `heddle/testing` holds a store to it.
 *
 * @category models
 * @since 0.1.0
 */
export interface Service {
  /**
   * Adds records behind version `expected`, which is 0 for a session without records, and succeeds with the new version. All
   * of them are added or none: it fails with {@link SessionConflict} if the journal is at any other version. What it
   * succeeded with is durable. Its cost depends on what is appended, not on the length of the journal.
   */
  readonly append: (
    id: string,
    expected: number,
    records: Records
  ) => Effect.Effect<number, SessionConflict | StoreError>
  /** The number of records, 0 for a session without any. */
  readonly version: (id: string) => Effect.Effect<number, StoreError>
  /**
   * The records behind version `after`, which is 0 by default, oldest first and without gaps, at least up to the last one
   * there was when the reading began. It holds a bounded part of the journal in memory.
   */
  readonly read: (id: string, after?: number) => Stream.Stream<Entry, StoreError>
}

const RecordText = Schema.toCodecJson(Record)

const encode = Schema.encodeEffect(RecordText)
const decode = Schema.decodeUnknownEffect(RecordText)

/**
 * A record as the one line of JSON that a store keeps. Values that are not JSON are rendered. With the `version` that the
 * journal has after it the text says where it belongs, so that reading finds a record that stands elsewhere.
 */
export const toText = (id: string, record: Record, version?: number): Effect.Effect<string, StoreError> =>
  encode(record).pipe(
    Effect.map((json) => JSON.stringify(version === undefined ? json : { version, ...json as Json.JsonObject })),
    Effect.mapError((cause) => new StoreError({ reason: "unreadable", operation: "append", id, cause: cause.message }))
  )

/** The version that a text has of its record. The texts of 0.1.0 have none. */
const versionOf = (json: unknown): number | undefined => {
  const version = Json.isObject(json) ? json["version"] : undefined
  return typeof version === "number" ? version : undefined
}

/**
 * The record that a text of {@link toText} stands for. A text that is anything else is `unreadable`, and so is one that
 * says another `version` than the one it is read at.
 */
export const fromText = (id: string, text: string, version?: number): Effect.Effect<Record, StoreError> => {
  const unreadable = (cause: string) =>
    version === undefined
      ? new StoreError({ reason: "unreadable", operation: "read", id, cause })
      : damaged(id, version, cause)
  return Effect.fromResult(Json.parse(text)).pipe(
    Effect.mapError((cause) => unreadable(Json.render(cause))),
    Effect.flatMap((json) => {
      const written = versionOf(json)
      return written === undefined || version === undefined || written === version
        ? Effect.mapError(decode(json), (cause) => unreadable(Json.render(cause)))
        : Effect.fail(unreadable(`the record of version ${written} stands in its place`))
    })
  )
}

/** The texts of an append, each with its version. */
export const toTexts = (
  id: string,
  expected: number,
  records: ReadonlyArray<Record>
): Effect.Effect<ReadonlyArray<string>, StoreError> =>
  Effect.forEach(records, (record, index) => toText(id, record, expected + index + 1))

const pageSize = 128

/**
 * The reading of a journal page by page, for a store to read with: `page` gives up to `limit` texts of {@link toText}
 * behind a version, oldest first and without gaps. It ends where a page is not full.
 *
 * `version` is the store's own count of the records. With it a journal that ends before that count, or goes beyond it, is
 * reported as damaged; a writer that appends meanwhile damages nothing.
 */
export const pages = (
  id: string,
  after: number,
  page: (after: number, limit: number) => Effect.Effect<ReadonlyArray<string>, StoreError>,
  version?: Effect.Effect<number, StoreError>
): Stream.Stream<Entry, StoreError> =>
  Stream.unwrap(
    Effect.map(version ?? Effect.succeed(undefined), (begun) =>
      Stream.paginate(after, (at) =>
        Effect.gen(function*() {
          const texts = yield* page(at, pageSize)
          const entries = yield* Effect.forEach(texts, (text, index) =>
            Effect.map(fromText(id, text, at + index + 1), (record): Entry => ({ version: at + index + 1, record })))
          const end = at + texts.length
          if (texts.length === pageSize) {
            return [entries, Option.some(end)] as const
          }
          if (begun !== undefined && end < begun) {
            return yield* damaged(id, end + 1, "the record is missing")
          }
          if (version !== undefined && end > Math.max(after, begun ?? 0)) {
            const count = yield* version
            if (end > count) {
              return yield* damaged(id, count + 1, "the store does not count this record")
            }
          }
          return [entries, Option.none()] as const
        })))
  )

/** Texts and not values are kept, so that what is read is what any other store would give. */
const memory = (): Service => {
  const journals = new Map<string, Array<string>>()
  const texts = (id: string): ReadonlyArray<string> => journals.get(id) ?? []
  const commit = (id: string, expected: number, lines: ReadonlyArray<string>) =>
    Effect.suspend((): Effect.Effect<number, SessionConflict> => {
      const journal = journals.get(id) ?? []
      if (journal.length !== expected) {
        return Effect.fail(new SessionConflict({ id, expected, actual: journal.length }))
      }
      for (const line of lines) journal.push(line)
      journals.set(id, journal)
      return Effect.succeed(journal.length)
    })
  return {
    append: (id, expected, records) =>
      Effect.flatMap(toTexts(id, expected, records), (lines) => commit(id, expected, lines)),
    version: (id) => Effect.sync(() => texts(id).length),
    read: (id, after = 0) =>
      pages(id, after, (version, limit) => Effect.sync(() => texts(id).slice(version, version + limit)))
  }
}

/**
 * The store of sessions.
 *
 * @category services
 * @since 0.1.0
 */
export class Store extends Context.Service<Store, Service>()("heddle/Session/Store") {
  /** Journals in memory. They are lost when the layer is released. */
  static readonly layerMemory: Layer.Layer<Store> = Layer.sync(Store, memory)
}

/** Whether a record belongs to a run that has started. */
const isOfRun = (record: Record): boolean => "requestId" in record && record._tag !== "RunStarted"

/** Appends the records of one operation, one append at a time, whichever of its fibers writes. */
export class Recorder {
  /** The session as the journal has it. */
  session: SessionState.Session
  version: number
  /** Fails when an append does. The operation is stopped then. */
  readonly failed = Deferred.makeUnsafe<never, SessionConflict | StoreError>()
  private readonly id: string
  private readonly store: Service
  private readonly lock = Semaphore.makeUnsafe(1)
  /** Owns the appends that belong to no run. */
  private readonly own: Running
  /** An append was abandoned: whether it has been written is unknown, and nothing may be written after it. */
  private isClosed = false

  constructor({ id, session, version }: Kept, store: Service, context: Context.Context<never>) {
    this.own = new Running(Duration.toMillis(Settings.defaultGrace), context)
    this.id = id
    this.session = session
    this.version = version
    this.store = store
  }

  /**
   * Appends records, as a part of the run that owns `running`, which abandons the append where its own stop does not let it
   * finish. What cannot be written must not go on: where the append fails, the writer waits here until the operation is
   * stopped.
   */
  append(records: Records, after: SessionState.Session, running = this.own): Effect.Effect<void> {
    return Effect.suspend(() => {
      const writer = new Worker(running, {
        kind: "store",
        id: this.id,
        name: "append",
        onSoftStop: "grace",
        once: true,
        onAbandoned: () => {
          this.isClosed = true
        }
      })
      return writer.do(this.lock.withPermit(this.appendNow(records, after)), Exit.void)
    }).pipe(
      Effect.catch((error) => Effect.andThen(Deferred.fail(this.failed, error), Effect.never))
    )
  }

  private appendNow(records: Records, after: SessionState.Session): Effect.Effect<void, SessionConflict | StoreError> {
    return Effect.suspend(() => {
      if (this.isClosed) {
        // The stopped run ends. Nothing else may begin.
        return records.every(isOfRun) ? Effect.void : Effect.fail(
          new StoreError({
            reason: "unavailable",
            operation: "append",
            id: this.id,
            cause: "an append before it did not end within the grace period; open the session again"
          })
        )
      }
      return this.store.append(this.id, this.version, records).pipe(
        Effect.map((version) => {
          if (this.isClosed) return
          this.version = version
          this.session = after
        }),
        Effect.uninterruptible
      )
    })
  }

  /** Gives an append that is under way when its operation is left the grace period to end. */
  readonly leave: Effect.Effect<void> = Effect.suspend(() => Effect.asVoid(this.own.end(Exit.void)))
}

/** The recorder of the operation that this code runs in, if the operation is kept. */
export const CurrentRecorder: Context.Reference<Recorder | undefined> = Context.Reference<Recorder | undefined>(
  "heddle/internal/Recorder",
  { defaultValue: () => undefined }
)

const recorderOf = (kept: Kept): Effect.Effect<Recorder, never, Store> =>
  Effect.gen(function*() {
    return new Recorder(kept, yield* Store, yield* Effect.context<never>())
  })

/** Runs an operation on a session and appends its records as it runs. */
export const keep = <A, E, R>(
  kept: Kept,
  operation: (session: SessionState.Session) => Effect.Effect<A, E, R>
): Effect.Effect<Outcome<A>, E | SessionConflict | StoreError, R | Store> =>
  Effect.flatMap(recorderOf(kept), (recorder) =>
    Effect.raceFirst(
      Effect.provideService(Effect.suspend(() => operation(kept.session)), CurrentRecorder, recorder),
      Deferred.await(recorder.failed)
    ).pipe(
      Effect.ensuring(recorder.leave),
      Effect.map((value) => ({ id: kept.id, session: recorder.session, version: recorder.version, value }))
    ))

/** The same for the events of an operation. */
export const keepStream = <A, E, R>(
  kept: Kept,
  operation: (session: SessionState.Session) => Stream.Stream<A, E, R>
): Stream.Stream<A, E | SessionConflict | StoreError, R | Store> =>
  Stream.unwrap(Effect.map(recorderOf(kept), (recorder) =>
    Stream.suspend(() => operation(kept.session)).pipe(
      Stream.provideService(CurrentRecorder, recorder),
      Stream.interruptWhen(Deferred.await(recorder.failed)),
      Stream.ensuring(recorder.leave)
    )))
