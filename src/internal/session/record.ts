/**
 * What happened in a session, record after record, and where it is kept. A journal only grows: its version is the number
 * of its records, and appending says which version it follows, so that of two writers one wins and the other is told.
 * Nothing that was acknowledged is lost, and nothing is written twice. Public as `Session`.
 *
 * **Details**
 *
 * A journal is written so that a run that was killed can be taken up again by somebody who has nothing else:
 *
 * - `RunStarted` stands before anything of a run, `RunEnded` after all of it. A journal that has the one and not the
 *   other belongs to a run that is under way, or was killed.
 * - `RunFailed` says that a run could not be started: what was said with it counts as not said. One that had come to a
 *   whole step keeps what it had come to.
 * - `RunStarted` has what was said to the session with it. What answers a question that was not asked in words is no
 *   message: `answered` has it. Calls that were approved run first, and `ApprovedAnswered` has
 *   the answer of each that has one now, and the questions that some of them asked; what was said comes behind the last. `QuestionWithdrawn` has the
 *   answer of such a question when the run ends for another reason than to wait.
 * - `ReplyReceived` has the assistant message of a turn before a call of it is acted on (calls of read-only tools, which
 *   may start while the model still speaks, come before it).
 * - `CallStarted` is written before a handler starts: the intent. `CallEnded` has its outcome before anything else
 *   follows from it. A call with both is not run again; one with neither has not begun and can be; one that has only
 *   begun may have had its effect: its `idempotencyKey` lets an idempotent tool be asked again, anything else is for a
 *   person to decide. An approved call that ended with a question waits for its answer, until `expiresAt` if there is one.
 * - `StepCompleted` adds the messages of the turn, all at once, and the calls of it that wait. The thread of a session that is read back is therefore
 *   whole at every version: a call is in it with its answer, or with a suspension, or not at all.
 *
 * @since 0.1.0
 */
import type * as Arr from "effect/Array"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as Event from "../../Event.ts"
import * as Message from "../../Message.ts"
import * as OpenCalls from "../answer/openCalls.ts"
import * as Json from "../json.ts"
import * as Conversation from "./state.ts"

const ofStep = { requestId: Schema.String, stepIndex: Schema.Int }

/**
 * One thing that happened. `Opened` says what the session began with and is the first record of a journal; `Answered`
 * that a suspension was settled, which happens at most once; the others are explained with the journal.
 *
 * @category schemas
 * @since 0.1.0
 */
export const Record = Schema.Union([
  Schema.TaggedStruct("Opened", { session: Conversation.Session }),
  Schema.TaggedStruct("MessagesAppended", { messages: Schema.Array(Message.Message) }),
  Schema.TaggedStruct("Answered", { id: Schema.String, answer: Conversation.Answer }),
  Schema.TaggedStruct("RunStarted", {
    requestId: Schema.String,
    operation: Schema.Literals(["start", "reply", "continue", "step"]),
    messages: Schema.Array(Message.Message),
    answered: Schema.optionalKey(Schema.Struct({ id: Schema.String, answer: Conversation.Answer }))
  }),
  Schema.TaggedStruct("ApprovedAnswered", {
    requestId: Schema.String,
    messages: Schema.Array(Message.Message),
    suspensions: Schema.optionalKey(Schema.Array(Event.Suspension))
  }),
  Schema.TaggedStruct("QuestionWithdrawn", { requestId: Schema.String, message: Message.Message }),
  Schema.TaggedStruct("ReplyReceived", { ...ofStep, message: Message.Message }),
  Schema.TaggedStruct("CallStarted", {
    ...ofStep,
    toolCall: Message.ToolCall,
    attempt: Schema.Int,
    idempotencyKey: Schema.String
  }),
  Schema.TaggedStruct("CallEnded", {
    ...ofStep,
    toolCallId: Schema.String,
    outcome: Json.Opaque,
    expiresAt: Schema.optionalKey(Schema.Finite)
  }),
  Schema.TaggedStruct("StepCompleted", {
    ...ofStep,
    messages: Schema.Array(Message.Message),
    suspensions: Schema.optionalKey(Schema.Array(Event.Suspension))
  }),
  Schema.TaggedStruct("RunFailed", { requestId: Schema.String }),
  Schema.TaggedStruct("RunEnded", {
    requestId: Schema.String,
    haltedReason: Schema.String,
    messages: Schema.Array(Message.Message),
    status: Conversation.Status,
    suspensions: Schema.Array(Event.Suspension),
    context: Schema.Record(Schema.String, Json.Opaque),
    metadata: Json.Metadata
  })
]).pipe(Schema.toTaggedUnion("_tag"))

/**
 * @see {@link Record}
 *
 * @category models
 * @since 0.1.0
 */
export type Record = (typeof Record)["Type"]

/**
 * A record in its place: the version of the journal after it, from 1.
 *
 * @category models
 * @since 0.1.0
 */
export interface Entry {
  readonly version: number
  readonly record: Record
}

/**
 * The session has been written to since it was read: by another program, or by this one, also by an operation that failed
 * or was interrupted. Nothing was appended: load it again, and decide anew.
 *
 * @category errors
 * @since 0.1.0
 */
export class SessionConflict extends Schema.TaggedError<SessionConflict>("heddle/Journal/SessionConflict")(
  "SessionConflict",
  { id: Schema.String, expected: Schema.Int, actual: Schema.Int }
) {
  override get message(): string {
    const session = JSON.stringify(this.id)
    return `session ${session} is at version ${this.actual}, not ${this.expected}: it has been written to since it was `
      + "read, by another program or by this one; load it again"
  }
}

/**
 * A store could not do what it was asked: it was `unavailable`, or holds what is no journal (`unreadable`). After a
 * failed append the records are in the journal as a whole or not at all; reading tells which.
 *
 * Of a damaged journal, which is `unreadable`, `version` is the first version that is not what was written: its record is
 * missing, is no record, or stands in another record's place. What was read before that version is as it was written.
 *
 * @category errors
 * @since 0.1.0
 */
export class StoreError extends Schema.TaggedError<StoreError>("heddle/Journal/StoreError")("StoreError", {
  reason: Schema.Literals(["unavailable", "unreadable"]),
  operation: Schema.Literals(["append", "version", "read"]),
  id: Schema.String,
  version: Schema.optionalKey(Schema.Int),
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
 * A store of journals, one per session id.
 *
 * - `append` adds records behind version `expected` (0 for a session that nobody has written) and gives the new version.
 *   All of them or none: it fails with {@link SessionConflict} if the journal is at any other version. What it
 *   acknowledged is kept. What it costs depends on what is appended, not on how much there is.
 * - `version` is the number of records, 0 for a session that nobody has written.
 * - `read` streams the records behind a version, from the first if none is given, oldest first and without gaps, up to
 *   what was there when the reading began at least. It holds a bounded part of the journal at a time.
 *
 * @category models
 * @since 0.1.0
 */
export interface Service {
  readonly append: (
    id: string,
    expected: number,
    records: Arr.NonEmptyReadonlyArray<Record>
  ) => Effect.Effect<number, SessionConflict | StoreError>
  readonly version: (id: string) => Effect.Effect<number, StoreError>
  readonly read: (id: string, after?: number) => Stream.Stream<Entry, StoreError>
}

const RecordText = Schema.toCodecJson(Record)

const encode = Schema.encodeEffect(RecordText)
const decode = Schema.decodeUnknownEffect(RecordText)

/**
 * A record as the one line of JSON that a store keeps. What was never meant to be JSON is rendered. With the `version`
 * that the journal has after it the text says where it belongs, so that reading finds a record that stands elsewhere.
 *
 * @category encoding
 * @since 0.1.0
 */
export const toText = (id: string, record: Record, version?: number): Effect.Effect<string, StoreError> =>
  encode(record).pipe(
    Effect.map((json) => JSON.stringify(version === undefined ? json : { version, ...json as Json.JsonObject })),
    Effect.mapError((cause) => new StoreError({ reason: "unreadable", operation: "append", id, cause: cause.message }))
  )

/** The version that a text says its record has. Those that 0.1.0 wrote say none. */
const versionOf = (json: unknown): number | undefined => {
  const version = Json.isObject(json) ? json["version"] : undefined
  return typeof version === "number" ? version : undefined
}

/**
 * The record that a text of {@link toText} stands for. A text that is anything else is `unreadable`, and so is one that
 * says another `version` than the one it is read at.
 *
 * @category encoding
 * @since 0.1.0
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
 * told as damaged; a writer that appends meanwhile damages nothing.
 *
 * @category encoding
 * @since 0.1.0
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
export class Store extends Context.Service<Store, Service>()("heddle/Journal/Store") {
  /** Journals in memory: they are gone with the layer. */
  static readonly layerMemory: Layer.Layer<Store> = Layer.sync(Store, memory)
}

/**
 * A run that a journal has the start of and not the end: it is under way somewhere, or was killed. `calls` are those that
 * began since its last whole step, with the outcome of each that has one; `reply` is the model's message they are from.
 *
 * @category models
 * @since 0.1.0
 */
export interface Interrupted {
  readonly requestId: string
  readonly messages: ReadonlyArray<Message.Message>
  /** The session as it was before, for as long as no step is whole. */
  readonly before?: Conversation.Session
  readonly reply?: Message.Message
  readonly calls: ReadonlyArray<{
    readonly toolCall: Message.ToolCall
    readonly idempotencyKey: string
    readonly outcome?: unknown
    /** Of a call whose outcome is a question: when it is settled without an answer. */
    readonly expiresAt?: number
  }>
}

/**
 * A session and the run that is on its way.
 *
 * @category models
 * @since 0.1.0
 */
export interface State {
  readonly session: Conversation.Session
  readonly interrupted?: Interrupted
}

const unknownEffect = "the process ended while the call ran; whether it had its effect is not known"

type Call = Interrupted["calls"][number]

/**
 * What stands in the thread for an approved call that began in a run that has no end, and whose answer was not written. It
 * is not run again.
 */
const remembered = (call: Call): Message.Message =>
  "outcome" in call
    ? Conversation.recalled(call.toolCall, call.outcome)
    : { ...Message.answer(call.toolCall.id, { error: unknownEffect }), isError: true }

/** The questions that calls ended with. */
const questionsOf = (calls: ReadonlyArray<Call>): ReadonlyArray<Event.Suspension> =>
  calls.flatMap((call) => OpenCalls.remembered(call.toolCall, call) ?? [])

/**
 * The session between runs: of a run that has no end, what happened stands, and what did not is as it was. A question that
 * an approved call asked waits for its answer.
 *
 * @category folding
 * @since 0.1.0
 */
export const atRest = ({ interrupted, session }: State): Conversation.Session => {
  if (interrupted === undefined || session.approved.length === 0) return session
  const begun = interrupted.calls.filter(({ toolCall }) => session.approved.some((call) => call.id === toolCall.id))
  if (begun.length === 0) return session
  return Conversation.withApproved(session, begun.map(remembered), questionsOf(begun))
}

/** Journals of 0.1.0 have the questions of approved calls among their outcomes only. */
const openIn = (
  { messages, suspensions }: Extract<Record, { readonly _tag: "ApprovedAnswered" }>,
  calls: ReadonlyArray<Call>
): ReadonlyArray<Event.Suspension> => {
  if (suspensions !== undefined) return suspensions
  const open = new Set(messages.filter(OpenCalls.isUnanswered).map(({ toolCallId }) => toolCallId))
  return questionsOf(calls.filter(({ toolCall }) => open.has(toolCall.id)))
}

/** The state after approved calls have their answers. What was said with the run is said behind the last of them. */
const approvedAnswered = (
  session: Conversation.Session,
  interrupted: Interrupted,
  record: Extract<Record, { readonly _tag: "ApprovedAnswered" }>
): State => {
  const { before, messages } = interrupted
  const questions = openIn(record, interrupted.calls)
  const calls = interrupted.calls.filter(({ toolCall }) => record.messages.every((m) => m.toolCallId !== toolCall.id))
  const answered = (session: Conversation.Session) => Conversation.withApproved(session, record.messages, questions)
  const isSaid = messages.length > 0 && answered(session).approved.length === 0
  return {
    session: isSaid ? Conversation.saying(answered(spokenTo(session)), messages) : answered(session),
    interrupted: { ...interrupted, ...(before === undefined ? {} : { before: answered(before) }), calls }
  }
}

/** The session when the user has spoken: of the questions only those of approved calls are open still. */
const spokenTo = (session: Conversation.Session): Conversation.Session =>
  Conversation.waitingFor(session, session.suspensions.filter(({ id }) => session.answered.includes(id)), "idle")

const inRun = (state: State, record: Record): State => {
  const { interrupted, session } = state
  if (interrupted === undefined) return state
  switch (record._tag) {
    case "ApprovedAnswered":
      return approvedAnswered(session, interrupted, record)
    case "QuestionWithdrawn": {
      const { before } = interrupted
      return {
        session: Conversation.withdrawn(session, record.message),
        interrupted: before === undefined
          ? interrupted
          : { ...interrupted, before: Conversation.withdrawn(before, record.message) }
      }
    }
    case "ReplyReceived":
      return { session, interrupted: { ...interrupted, reply: record.message } }
    case "CallStarted": {
      const { idempotencyKey, toolCall } = record
      const calls = interrupted.calls.filter((call) => call.toolCall.id !== toolCall.id)
      return { session, interrupted: { ...interrupted, calls: [...calls, { toolCall, idempotencyKey }] } }
    }
    case "CallEnded": {
      const { expiresAt, outcome, toolCallId } = record
      const ended = expiresAt === undefined ? { outcome } : { outcome, expiresAt }
      const calls = interrupted.calls.map((call) => call.toolCall.id === toolCallId ? { ...call, ...ended } : call)
      return { session, interrupted: { ...interrupted, calls } }
    }
    case "StepCompleted": {
      const { before: _, reply: __, ...rest } = interrupted
      const said = Conversation.saying(session, record.messages)
      return {
        session: Conversation.waitingFor(said, record.suspensions ?? [], "idle"),
        interrupted: { ...rest, calls: [] }
      }
    }
    case "RunFailed":
      return { session: atRest({ session: interrupted.before ?? session, interrupted }) }
    case "RunEnded":
      return { session: Conversation.ended(Conversation.saying(session, record.messages), record) }
    default:
      return state
  }
}

/**
 * A state after a record. The same records give the same state, in whatever process they are read; what does not fit in
 * where it stands changes nothing.
 *
 * @category folding
 * @since 0.1.0
 */
export const apply = (state: State, record: Record): State => {
  switch (record._tag) {
    case "Opened":
      return { session: record.session }
    case "MessagesAppended":
      return { session: Conversation.saying(atRest(state), record.messages) }
    case "Answered":
      return { session: Conversation.settle(atRest(state), record.id, record.answer) }
    case "RunStarted": {
      const before = atRest(state)
      const { answered, messages, requestId } = record
      const interrupted = { requestId, messages, before, calls: [] }
      const session = answered === undefined ? before : Conversation.settle(before, answered.id, answered.answer)
      // Until what was said has its place behind the answers of approved calls, what it answers is open.
      return session.approved.length > 0
        ? { session, interrupted }
        : { session: Conversation.saying(Conversation.running(session), messages), interrupted }
    }
    default:
      return inRun(state, record)
  }
}
