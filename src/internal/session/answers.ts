/**
 * How a suspension gets its answer: each by its own id, in any order, and once. An answer changes data and runs nothing. It
 * is checked first, and one that does not fit leaves the session as it was. Public as `Session`.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import * as ToolOutcomes from "../declare/outcome.ts"
import * as ToolCalls from "../hear/toolCalls.ts"
import * as Json from "../json.ts"
import * as Reducer from "./reducer.ts"
import * as SessionState from "./state.ts"

type Session = SessionState.Session

const failed = (reason: SessionState.SessionError["reason"], detail: string, toolCallId?: string) =>
  new SessionState.SessionError({
    reason,
    detail,
    ...(toolCallId === undefined ? {} : { metadata: { toolCallId } })
  })

/** Refuses a session whose last run broke. */
export const usable = (session: Session): Effect.Effect<void, SessionState.SessionError> =>
  session.status === "error"
    ? failed("session_in_error_state", "the last run broke: see metadata.error, and call Session.recover to go on")
    : Effect.void

/** The suspension with an id, if its time is not up. */
const find = (session: Session, id: string): Effect.Effect<Event.Suspension, SessionState.SessionError> =>
  Effect.gen(function*() {
    yield* usable(session)
    const suspension = session.suspensions.find((suspension) => suspension.id === id)
    if (suspension === undefined) {
      return yield* session.answered.includes(id)
        ? failed("already_answered", `call ${JSON.stringify(id)} has had its answer`, id)
        : failed("unknown_tool_call_id", `no call ${JSON.stringify(id)} waits for an answer`, id)
    }
    if (suspension.expiresAt !== undefined && suspension.expiresAt <= (yield* Clock.currentTimeMillis)) {
      return yield* failed("expired", "the time for an answer is up: call Session.expire", id)
    }
    return suspension
  })

/** Reads a content as the answer to a suspension. Refuses one that does not fit. */
export const answerTo = (
  session: Session,
  id: string,
  content: unknown
): Effect.Effect<unknown, SessionState.SessionError> =>
  Effect.flatMap(find(session, id), (suspension) => fitting(suspension, content))

const settle = (session: Session, id: string, answer: SessionState.Answer): Effect.Effect<Session> =>
  Reducer.happened(session, { _tag: "Answered", id, answer })

/** What `read` reads of a value. It may throw: the value may be an object of foreign code, or a revoked proxy. */
const readable = <A>(id: string, what: string, read: () => A): Effect.Effect<A, SessionState.SessionError> =>
  Effect.try({ try: read, catch: () => failed("invalid_answer", `the ${what} cannot be read`, id) })

/**
 * The answer, if it fits the schema of the question. A text that is JSON is also read as such. The answer is plain JSON
 * from here on, so that a session is the same whether it was stored or not: a list of parts has lost the mark of
 * `Tool.content`, a date is a text, and `undefined` is `null`.
 */
const fitting = (
  { answerSchema, id }: Event.Suspension,
  given: unknown
): Effect.Effect<unknown, SessionState.SessionError> =>
  Effect.flatMap(
    readable(id, "answer", () => Json.toJson(ToolOutcomes.partsOf(given) ?? given)),
    (value) =>
      answerSchema === undefined
        ? Effect.succeed(value)
        : Effect.mapError(
          ToolOutcomes.decodeAnswer(answerSchema, value),
          (problem) => failed("invalid_answer", problem, id)
        )
  )

/** Answers a question, or gives the result of a manual call. */
export const answer = (
  session: Session,
  id: string,
  value: unknown
): Effect.Effect<Session, SessionState.SessionError> =>
  Effect.gen(function*() {
    const suspension = yield* find(session, id)
    if (suspension.kind === "approval") {
      return yield* failed("invalid_answer", "the call waits for Session.approve or Session.deny", id)
    }
    return yield* settle(session, id, { _tag: "Value", value: yield* fitting(suspension, value) })
  })

const approval = (session: Session, id: string) =>
  Effect.flatMap(find(session, id), ({ kind }) =>
    kind === "approval"
      ? Effect.void
      : Effect.fail(failed("invalid_answer", "the call waits for Session.answer, not for an approval", id)))

type Arguments = NonNullable<Message.ToolCall["arguments"]>

/** Arguments as plain JSON, like a model's. Refuses those that are nested too deeply to be written and read again. */
const writable = (id: string, given: Arguments): Effect.Effect<Arguments, SessionState.SessionError> =>
  Effect.flatMap(
    readable(id, "arguments", () =>
      Json.isDeeper(given, ToolCalls.deepest) ? undefined : Json.toJson(given) as Arguments),
    (plain) =>
      plain === undefined
        ? Effect.fail(failed("invalid_answer", `the arguments nest deeper than ${ToolCalls.deepest} levels`, id))
        : Effect.succeed(plain)
  )

/**
 * How a call is approved.
 *
 * @category options
 * @since 0.1.0
 */
export interface ApproveOptions {
  /**
   * The arguments that the call runs with in place of its own, nested at most 256 levels deep. They are decoded when the
   * call runs, like the model's.
   */
  readonly arguments?: Message.ToolCall["arguments"]
}

/** Allows a call, with its own arguments or with others. */
export const approve = (
  session: Session,
  id: string,
  options: ApproveOptions = {}
): Effect.Effect<Session, SessionState.SessionError> =>
  Effect.gen(function*() {
    yield* approval(session, id)
    const edited = options.arguments === undefined ? {} : { arguments: yield* writable(id, options.arguments) }
    return yield* settle(session, id, { _tag: "Approved", ...edited })
  })

/** Refuses a call: it is answered as `denied`, and never runs. */
export const deny = (
  session: Session,
  id: string,
  reason?: string
): Effect.Effect<Session, SessionState.SessionError> =>
  Effect.andThen(
    approval(session, id),
    settle(session, id, { _tag: "Denied", ...(reason === undefined ? {} : { reason }) })
  )

/** Settles every suspension whose time is up. */
export const expire = (session: Session): Effect.Effect<Session, SessionState.SessionError> =>
  Effect.gen(function*() {
    yield* usable(session)
    const now = yield* Clock.currentTimeMillis
    let settled = session
    for (const { expiresAt, id } of session.suspensions) {
      if (expiresAt !== undefined && expiresAt <= now) settled = yield* settle(settled, id, { _tag: "Expired" })
    }
    return settled
  })

/** Gives the result of a manual call. Dies where no call waits for a result or has waited for one. */
export const submitToolResult = (
  session: Session,
  id: string,
  content: unknown
): Effect.Effect<Session, SessionState.SessionError> =>
  Effect.gen(function*() {
    yield* usable(session)
    if (session.pendingToolCalls.length === 0 && !session.answered.includes(id)) {
      return yield* Effect.die(
        new Error(`Session.submitToolResult: the session is ${session.status} and waits for no tool result`)
      )
    }
    const { kind } = yield* find(session, id)
    return kind === "manual"
      ? yield* answer(session, id, content)
      : yield* failed("invalid_answer", `call ${JSON.stringify(id)} is no manual call`, id)
  })

/**
 * The result of a manual call.
 *
 * @category models
 * @since 0.1.0
 */
export interface ToolResult {
  /** The id of the call. */
  readonly toolCallId: string
  /** Its result: a text, a list of parts (`Tool.content`), or a value, which is written as JSON. */
  readonly content: unknown
}

/** Gives several results, one after the other, up to the first that is refused. */
export const submitToolResults = (
  session: Session,
  results: ReadonlyArray<ToolResult>
): Effect.Effect<Session, SessionState.SessionError> =>
  Effect.reduce(
    results,
    () => session,
    (session, { content, toolCallId }) => submitToolResult(session, toolCallId, content)
  )
