/**
 * How what a session waits for gets its answer: each call by its own id, in any order, and each once. An answer changes
 * data and runs nothing; it is checked first, and what does not fit leaves the session as it was. Public as `Session`.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import * as Outcomes from "../declare/outcome.ts"
import * as Questions from "../declare/question.ts"
import * as CallArguments from "../hear/callArguments.ts"
import * as Json from "../json.ts"
import * as Keeper from "./recorder.ts"
import * as Conversation from "./state.ts"

type Session = Conversation.Session

const failed = (reason: Conversation.SessionError["reason"], detail: string, toolCallId?: string) =>
  new Conversation.SessionError({
    reason,
    detail,
    ...(toolCallId === undefined ? {} : { metadata: { toolCallId } })
  })

/**
 * Refuses a session whose last run broke.
 *
 * @category checks
 * @since 0.1.0
 */
export const usable = (session: Session): Effect.Effect<void, Conversation.SessionError> =>
  session.status === "error"
    ? failed("session_in_error_state", "the last run broke: see metadata.error, and call Session.recover to go on")
    : Effect.void

/** The call that waits under an id, if its time is not up. */
const find = (session: Session, id: string): Effect.Effect<Event.Suspension, Conversation.SessionError> =>
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

/**
 * The answer to the call that waits under an id, as a content counts. Refuses one that does not fit.
 *
 * @category checks
 * @since 0.1.0
 */
export const answerTo = (
  session: Session,
  id: string,
  content: unknown
): Effect.Effect<unknown, Conversation.SessionError> =>
  Effect.flatMap(find(session, id), (suspension) => fitting(suspension, content))

const settle = (session: Session, id: string, answer: Conversation.Answer): Effect.Effect<Session> =>
  Keeper.happened(session, { _tag: "Answered", id, answer })

/** What can be read of a value by `read`, which may throw: a value may be an object of foreign code, or a revoked proxy. */
const readable = <A>(id: string, what: string, read: () => A): Effect.Effect<A, Conversation.SessionError> =>
  Effect.try({ try: read, catch: () => failed("invalid_answer", `the ${what} cannot be read`, id) })

/**
 * The answer as it counts: one that fits the type of the question. A text that is JSON may be meant as such. It is plain
 * JSON from here on, so that a session is the same whether a store has had it or not: a list of parts has lost the mark of
 * `Tool.content`, a date is a text, and what has no value is `null`.
 */
const fitting = (
  { answerSchema, id }: Event.Suspension,
  given: unknown
): Effect.Effect<unknown, Conversation.SessionError> =>
  Effect.flatMap(
    readable(id, "answer", () => Json.toJson(Outcomes.partsOf(given) ?? given)),
    (value) =>
      answerSchema === undefined
        ? Effect.succeed(value)
        : Effect.mapError(Questions.decode(answerSchema, value), (problem) => failed("invalid_answer", problem, id))
  )

/**
 * Answers a question, or gives the result of a manual call. The other calls go on waiting; after the last one the session
 * is idle, and `Session.continue` goes on. Makes no model call.
 *
 * @category answering
 * @since 0.1.0
 */
export const answer = (
  session: Session,
  id: string,
  value: unknown
): Effect.Effect<Session, Conversation.SessionError> =>
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

/** Arguments as plain JSON, like a model's. Refuses those that overflow the stack of what writes or reads them. */
const writable = (id: string, given: Arguments): Effect.Effect<Arguments, Conversation.SessionError> =>
  Effect.flatMap(
    readable(id, "arguments", () =>
      Json.isDeeper(given, CallArguments.deepest) ? undefined : Json.toJson(given) as Arguments),
    (plain) =>
      plain === undefined
        ? Effect.fail(failed("invalid_answer", `the arguments nest deeper than ${CallArguments.deepest} levels`, id))
        : Effect.succeed(plain)
  )

/**
 * Allows a call, with its own arguments or with others, which are decoded like a model's. It runs when the session goes
 * on, once, through the same gates. Arguments that nest deeper than 256 levels are refused; else they are not checked
 * here: those that do not fit are answered as `invalid_arguments` when it runs.
 *
 * @category answering
 * @since 0.1.0
 */
export const approve = (
  session: Session,
  id: string,
  options: { readonly arguments?: Message.ToolCall["arguments"] } = {}
): Effect.Effect<Session, Conversation.SessionError> =>
  Effect.gen(function*() {
    yield* approval(session, id)
    const edited = options.arguments === undefined ? {} : { arguments: yield* writable(id, options.arguments) }
    return yield* settle(session, id, { _tag: "Approved", ...edited })
  })

/**
 * Refuses a call: it is answered as `denied`, and never runs.
 *
 * @category answering
 * @since 0.1.0
 */
export const deny = (
  session: Session,
  id: string,
  reason?: string
): Effect.Effect<Session, Conversation.SessionError> =>
  Effect.andThen(
    approval(session, id),
    settle(session, id, { _tag: "Denied", ...(reason === undefined ? {} : { reason }) })
  )

/**
 * Settles every call whose time is up: questions and manual calls by their default, approvals as denied. A session in
 * which nothing is due is given back as it is.
 *
 * @category answering
 * @since 0.1.0
 */
export const expire = (session: Session): Effect.Effect<Session, Conversation.SessionError> =>
  Effect.gen(function*() {
    yield* usable(session)
    const now = yield* Clock.currentTimeMillis
    let settled = session
    for (const { expiresAt, id } of session.suspensions) {
      if (expiresAt !== undefined && expiresAt <= now) settled = yield* settle(settled, id, { _tag: "Expired" })
    }
    return settled
  })

/**
 * Gives the result of a manual call. Dies where nothing of the kind waits or has waited.
 *
 * @category answering
 * @since 0.1.0
 */
export const submitToolResult = (
  session: Session,
  id: string,
  content: unknown
): Effect.Effect<Session, Conversation.SessionError> =>
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
 * Gives several results, one after the other, up to the first that is refused. In the thread they stand in call order.
 *
 * @category answering
 * @since 0.1.0
 */
export const submitToolResults = (
  session: Session,
  results: ReadonlyArray<{ readonly toolCallId: string; readonly content: unknown }>
): Effect.Effect<Session, Conversation.SessionError> =>
  Effect.reduce(
    results,
    () => session,
    (session, { content, toolCallId }) => submitToolResult(session, toolCallId, content)
  )
