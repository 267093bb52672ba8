/**
 * What the status of a session allows: each operation is checked here before it begins, and becomes a plan. A wrong status
 * is a defect that names the right call, wrong data a typed error. Public as `Session`.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import type * as Event from "../../Event.ts"
import * as Message from "../../Message.ts"
import * as Thread from "../../Thread.ts"
import * as Log from "../fold/sharedMessages.ts"
import * as Json from "../json.ts"
import * as Answering from "./answers.ts"
import * as Keeper from "./recorder.ts"
import type * as SessionRun from "./run.ts"
import * as Conversation from "./state.ts"

type Session = Conversation.Session

type Failure = SessionRun.Failure

const wrong = (operation: string, { status }: Session, instead: string) =>
  Effect.die(new Error(`Session.${operation}: the session is ${status}; call ${instead}`))

/** What settles a call that waits. */
const settling: Record<Event.Suspension["kind"], string> = {
  question: "Session.answer for each question",
  manual: "Session.submitToolResult for each manual call",
  approval: "Session.approve or Session.deny for each approval"
}

const kinds = ({ suspensions }: Session): ReadonlyArray<Event.Suspension["kind"]> => [
  ...new Set(suspensions.map(({ kind }) => kind))
]

/** The calls that work. The user answers a question that is the only thing that waits by speaking. */
const instead = (session: Session): string =>
  session.suspensions.length === 1 && session.suspensions[0]?.kind === "question"
    ? "Session.reply"
    : kinds(session).map((kind) => settling[kind]).join(", ")

/** A session in which no call waits. */
const free = (operation: string, session: Session): Effect.Effect<void, Conversation.SessionError> =>
  Effect.andThen(
    Answering.usable(session),
    session.suspensions.length === 0 ? Effect.void : wrong(operation, session, instead(session))
  )

const approvalPending = (session: Session): string => {
  const others = kinds(session).filter((kind) => kind !== "approval").map((kind) => settling[kind])
  const beside = others.length === 0 ? "" : `; beside it, call ${others.join(" and ")}`
  return "a call waits for an approval: call Session.approve or Session.deny first, or Session.expire where its time is "
    + `up, or Session.reply with { pending: "deny" }${beside}`
}

const withdrawn: Record<Event.Suspension["kind"], string> = {
  approval: "the user went on instead of approving the call",
  manual: "the user went on before the call had its result",
  question: "the user went on instead of answering the question"
}

type Settled = NonNullable<SessionRun.Plan<"chat">["answered"]>

/** The calls that a reply denies: all that wait, but for the one question that the user answers by speaking. */
const denials = ({ suspensions }: Session): ReadonlyArray<Settled> => {
  const questions = suspensions.filter(({ kind }) => kind === "question")
  const refused = suspensions.filter(({ kind }) => kind !== "question" || questions.length > 1)
  return refused.map(({ id, kind }) => ({ id, answer: { _tag: "Denied", reason: withdrawn[kind] } }))
}

type Said = Pick<SessionRun.Plan<"chat">, "answered" | "messages">

/**
 * What is said to a session that the user may speak to. Where it waits, that answers the one question there is: behind a
 * question that was asked in words as a message. Any other question stands nowhere in the thread, and an answer behind it
 * would be to nothing: it has its answer where it waits.
 */
const spokenTo = (
  operation: string,
  session: Session,
  message: Message.Message
): Effect.Effect<Said, Conversation.SessionError> =>
  Effect.gen(function*() {
    yield* Answering.usable(session)
    if (session.suspensions.some(({ kind }) => kind === "approval")) {
      return yield* new Conversation.SessionError({ reason: "approval_pending", detail: approvalPending(session) })
    }
    if (session.status === "awaiting_tools") return yield* wrong(operation, session, instead(session))
    const [question, ...others] = session.suspensions
    if (question === undefined) return { messages: [message] }
    if (message.role !== "user") return yield* wrong(operation, session, instead(session))
    if (others.length > 0) {
      const detail = "several calls wait: call Session.answer for each by its id"
      return yield* new Conversation.SessionError({ reason: "several_pending", detail })
    }
    const { id } = question
    const value = yield* Answering.answerTo(session, id, message.content)
    return Log.isAskedAloud(session.thread, id)
      ? { messages: [message] }
      : { messages: [], answered: { id, answer: { _tag: "Value", value } } }
  })

/** The session that an input stands for. */
const opened = (input: unknown): Effect.Effect<Session, Thread.ValidationError> =>
  Conversation.isSession(input) ? Effect.succeed(input) : Effect.fromResult(Thread.validate(input)).pipe(
    Effect.map((thread) => Conversation.make({ thread })),
    Effect.mapError(({ errors }) => new Thread.ValidationError({ reason: "invalid_session_input", errors }))
  )

/** Starting a session, or what one can be made of. */
export const starting = (input: unknown): Effect.Effect<SessionRun.Plan<"chat">, Failure> =>
  Effect.gen(function*() {
    const session = yield* opened(input)
    yield* free("start", session)
    return { mode: "chat", operation: "start", session, messages: [] }
  })

/** Saying something as the user. What waits is denied first, if that is wanted. */
export const replying = (
  session: Session,
  content: Message.Content,
  pending: "deny" | undefined
): Effect.Effect<SessionRun.Plan<"chat">, Failure> =>
  Effect.gen(function*() {
    const message = Message.user(content)
    if (pending !== undefined && pending !== "deny") {
      return yield* Effect.die(new TypeError(`Session.reply: pending must be "deny"; got: ${Json.render(pending)}`))
    }
    const denied = pending === "deny" ? denials(session) : []
    const freed = denied.reduce((session, { answer, id }) => Conversation.settle(session, id, answer), session)
    // What cannot be said denies nothing.
    const said = yield* spokenTo("reply", freed, message)
    const settled = yield* Effect.reduce(
      denied,
      () => session,
      (session, denial) => Keeper.happened(session, { _tag: "Answered", ...denial })
    )
    return { mode: "chat", operation: "reply", session: settled, ...said }
  })

/** Going on, with a message or without. */
export const continuing = (
  session: Session,
  message: Message.Input | null
): Effect.Effect<SessionRun.Plan<"chat">, Failure> => {
  const messages = message === null ? [] : Thread.fromMessages([message]).messages
  const [said] = messages
  const checked: Effect.Effect<Said, Conversation.SessionError> = said === undefined
    ? Effect.as(free("continue", session), { messages })
    : spokenTo("continue", session, said)
  return Effect.map(checked, (said) => ({ mode: "chat", operation: "continue", session, ...said }))
}

/** One turn. */
export const stepping = (session: Session): Effect.Effect<SessionRun.Plan<"step">, Failure> =>
  Effect.as(free("step", session), { mode: "step", operation: "step", session, messages: [] })

/** Adding messages: nothing may come between a call and its answer. */
export const appending = (session: Session): Effect.Effect<void, Conversation.SessionError> =>
  Effect.andThen(
    free("append", session),
    session.approved.length > 0 ? wrong("append", session, "Session.continue") : Effect.void
  )
