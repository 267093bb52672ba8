/**
 * A conversation that is kept: it stops to ask, waits for a person or for another system, and goes on, in this process or
 * the next. A session is plain data, and every operation gives the next one; a store keeps what happened, so that two
 * writers cannot fork it. The thread that a session hands out can be sent to any provider as it is, but for the calls it
 * says it waits for.
 *
 * **Details**
 *
 * An operation that the status of the session does not allow is a defect that names the right call; data that does not
 * fit is a typed error. Options are those of one run and are never kept. `context` and `sessionId` are the caller's, else
 * the session's, else the application's.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type * as Chat from "./Chat.ts"
import type * as Conversation from "./Conversation.ts"
import type * as Event from "./Event.ts"
import * as Journal from "./Journal.ts"
import * as Keeper from "./Keeper.ts"
import * as Message from "./Message.ts"
import * as SessionPlan from "./SessionPlan.ts"
import * as SessionRun from "./SessionRun.ts"
import type * as Step from "./Step.ts"
import type * as StreamReducer from "./StreamReducer.ts"
import * as Thread from "./Thread.ts"
import type * as Tool from "./Tool.ts"

export {
  /**
   * Answers a question, or gives the result of a manual call, by its id.
   *
   * @category answering
   * @since 0.1.0
   */
  answer,
  /**
   * Allows a call, which runs when the session goes on.
   *
   * @category answering
   * @since 0.1.0
   */
  approve,
  /**
   * Refuses a call, which is answered as `denied` and never runs.
   *
   * @category answering
   * @since 0.1.0
   */
  deny,
  /**
   * Settles every call whose time is up.
   *
   * @category answering
   * @since 0.1.0
   */
  expire,
  /**
   * Gives the result of a manual call.
   *
   * @category answering
   * @since 0.1.0
   */
  submitToolResult,
  /**
   * The same, by the name of the other appending calls.
   *
   * @category answering
   * @since 0.1.0
   */
  submitToolResult as appendToolResult,
  /**
   * Gives several results, up to the first that is refused.
   *
   * @category answering
   * @since 0.1.0
   */
  submitToolResults
} from "./Answering.ts"

export {
  /**
   * How a suspension was settled.
   *
   * @category schemas
   * @since 0.1.0
   */
  Answer,
  /**
   * A session at rest.
   *
   * @category constructors
   * @since 0.1.0
   */
  make,
  /**
   * Leads a session out of status `error`.
   *
   * @category transitions
   * @since 0.1.0
   */
  recover,
  /**
   * A session: serialisable data and nothing else.
   *
   * @category schemas
   * @since 0.1.0
   */
  Session,
  /**
   * What a caller got wrong about a session's data.
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
} from "./Conversation.ts"

export {
  /**
   * One thing that happened in a session.
   *
   * @category schemas
   * @since 0.1.0
   */
  Record,
  /**
   * Somebody else wrote to the session first.
   *
   * @category errors
   * @since 0.1.0
   */
  SessionConflict,
  /**
   * The store of sessions.
   *
   * @category services
   * @since 0.1.0
   */
  Store,
  /**
   * A store could not do what it was asked.
   *
   * @category errors
   * @since 0.1.0
   */
  StoreError
} from "./Journal.ts"

export type { Entry, Interrupted, Service as StoreService } from "./Journal.ts"

export {
  /**
   * Runs an operation on a session and writes down what happens as it does.
   *
   * @category keeping
   * @since 0.1.0
   */
  keep,
  /**
   * The same for the events of an operation.
   *
   * @category keeping
   * @since 0.1.0
   */
  keepStream,
  /**
   * The session with this id as the store has it, if there is one.
   *
   * @category keeping
   * @since 0.1.0
   */
  load,
  /**
   * The session with this id, begun if there is none.
   *
   * @category keeping
   * @since 0.1.0
   */
  open
} from "./Keeper.ts"

export type { Kept, Outcome } from "./Keeper.ts"

export {
  /**
   * The reducer after an event.
   *
   * @category folding
   * @since 0.1.0
   */
  applyEvent,
  /**
   * The session after a stream, whole or cut, and its result.
   *
   * @category folding
   * @since 0.1.0
   */
  finalize,
  /**
   * The fold from the events of an operation to the session after it.
   *
   * @category folding
   * @since 0.1.0
   */
  make as reducer
} from "./StreamReducer.ts"

export type { StreamReducer } from "./StreamReducer.ts"

/**
 * What makes a store of your own: the text of a record and back, and reading page by page.
 *
 * @category encoding
 * @since 0.1.0
 */
export const Texts = { toText: Journal.toText, fromText: Journal.fromText, pages: Journal.pages }

type Session = Conversation.Session

type Tools = ReadonlyArray<Tool.Any>

type Options<T extends Tools, E, R, RHalt, REvent> = Chat.Options<T, E, R, RHalt, REvent>

/**
 * What an operation came to: the session after it, and the result of its run.
 *
 * @category models
 * @since 0.1.0
 */
export type Done<M extends StreamReducer.Mode = "chat"> = StreamReducer.Finalized<M>

/**
 * Why an operation could not be done. The caller's session is as it was.
 *
 * @category errors
 * @since 0.1.0
 */
export type Failure = SessionRun.Failure

type Events<T extends Tools, E, R> = Stream.Stream<
  Event.Event,
  Failure | E | Tool.Fatal<T[number]>,
  R | Step.Services<T>
>

type Running<M extends StreamReducer.Mode, T extends Tools, E, R> = Effect.Effect<
  Done<M>,
  Failure | E | Tool.Fatal<T[number]>,
  R | Step.Services<T>
>

type Seen<M extends StreamReducer.Mode> = (run: SessionRun.Run<M>) => void

/** The events of an operation that is checked when it begins. */
const checked = <M extends StreamReducer.Mode, T extends Tools, E, R, RHalt, REvent>(
  plan: Effect.Effect<SessionRun.Plan<M>, Failure>,
  options: Options<T, E, R, RHalt, REvent>,
  seen?: Seen<M>
): Events<T, E, R | RHalt | REvent> => Stream.unwrap(Effect.map(plan, (plan) => SessionRun.stream(plan, options, seen)))

/**
 * The events of {@link start}.
 *
 * @category streams
 * @since 0.1.0
 */
export const streamStart = <const T extends Tools = [], E = never, R = never, RHalt = never, REvent = never>(
  input: Session | Thread.Input,
  options: Options<T, E, R, RHalt, REvent> = {}
): Events<T, E, R | RHalt | REvent> => checked(SessionPlan.starting(input), options)

/**
 * Runs a session, a thread or messages. A session keeps its id, context and metadata.
 *
 * @category running
 * @since 0.1.0
 */
export const start = <const T extends Tools = [], E = never, R = never, RHalt = never, REvent = never>(
  input: Session | Thread.Input,
  options: Options<T, E, R, RHalt, REvent> = {}
): Running<"chat", T, E, R | RHalt | REvent> =>
  SessionRun.awaited((seen) => checked(SessionPlan.starting(input), options, seen))

/**
 * How the user is replied for: the options of the run, and what becomes of the calls that wait.
 *
 * @category models
 * @since 0.1.0
 */
export interface ReplyOptions<T extends Tools, E, R, RHalt, REvent> extends Options<T, E, R, RHalt, REvent> {
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
 * @category streams
 * @since 0.1.0
 */
export const streamReply = <const T extends Tools = [], E = never, R = never, RHalt = never, REvent = never>(
  session: Session,
  content: Message.Content,
  { pending, ...options }: ReplyOptions<T, E, R, RHalt, REvent> = {}
): Events<T, E, R | RHalt | REvent> => checked(SessionPlan.replying(session, content, pending), options)

/**
 * Says what the user says: the answer to the question that waits, or something new. While an approval is pending it fails
 * with the `SessionError` `approval_pending`, unless `pending` says what becomes of the call.
 *
 * @category running
 * @since 0.1.0
 */
export const reply = <const T extends Tools = [], E = never, R = never, RHalt = never, REvent = never>(
  session: Session,
  content: Message.Content,
  { pending, ...options }: ReplyOptions<T, E, R, RHalt, REvent> = {}
): Running<"chat", T, E, R | RHalt | REvent> =>
  SessionRun.awaited((seen) => checked(SessionPlan.replying(session, content, pending), options, seen))

/**
 * The events of `Session.continue`.
 *
 * @category streams
 * @since 0.1.0
 */
export const streamContinue = <const T extends Tools = [], E = never, R = never, RHalt = never, REvent = never>(
  session: Session,
  message: Message.Input | null = null,
  options: Options<T, E, R, RHalt, REvent> = {}
): Events<T, E, R | RHalt | REvent> => checked(SessionPlan.continuing(session, message), options)

/** Public as `Session.continue`. */
const continue_ = <const T extends Tools = [], E = never, R = never, RHalt = never, REvent = never>(
  session: Session,
  message: Message.Input | null = null,
  options: Options<T, E, R, RHalt, REvent> = {}
): Running<"chat", T, E, R | RHalt | REvent> =>
  SessionRun.awaited((seen) => checked(SessionPlan.continuing(session, message), options, seen))

export {
  /**
   * Goes on with a message, or without one: after the last answer, with the calls that were approved.
   *
   * @category running
   * @since 0.1.0
   */
  continue_ as continue
}

/**
 * The events of {@link step}.
 *
 * @category streams
 * @since 0.1.0
 */
export const streamStep = <const T extends Tools = [], E = never, R = never, RHalt = never, REvent = never>(
  session: Session,
  options: Options<T, E, R, RHalt, REvent> = {}
): Events<T, E, R | RHalt | REvent> => checked(SessionPlan.stepping(session), options)

/**
 * One turn of the model and its tools. Where calls were approved, they are the step.
 *
 * @category running
 * @since 0.1.0
 */
export const step = <const T extends Tools = [], E = never, R = never, RHalt = never, REvent = never>(
  session: Session,
  options: Options<T, E, R, RHalt, REvent> = {}
): Running<"step", T, E, R | RHalt | REvent> =>
  SessionRun.awaited((seen) => checked(SessionPlan.stepping(session), options, seen))

/**
 * The session with messages at its end. Dies where calls wait or are approved: their answers come first.
 *
 * @category combinators
 * @since 0.1.0
 */
export const append = (
  session: Session,
  messages: ReadonlyArray<Message.Input>
): Effect.Effect<Session, Conversation.SessionError> =>
  Effect.andThen(
    SessionPlan.appending(session),
    Keeper.happened(session, { _tag: "MessagesAppended", messages: Thread.fromMessages(messages).messages })
  )

/**
 * The session with a user message at its end.
 *
 * @category combinators
 * @since 0.1.0
 */
export const appendUser = (session: Session, content: Message.Content) => append(session, [Message.user(content)])

/**
 * The messages of a session.
 *
 * @category getters
 * @since 0.1.0
 */
export const messages = (session: Session): ReadonlyArray<Message.Message> => session.thread.messages

/**
 * The calls that somebody has to run or to allow.
 *
 * @category getters
 * @since 0.1.0
 */
export const pendingToolCalls = (session: Session): ReadonlyArray<Message.ToolCall> => session.pendingToolCalls
