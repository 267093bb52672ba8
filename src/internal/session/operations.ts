/**
 * Prepares session operations: checks each against the session, and computes its start before anything is written. A
 * wrong status is a defect naming the right call; wrong data is a typed error. Public as `Session`.
 */
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Chat from "../../Chat.ts"
import type * as Event from "../../Event.ts"
import * as Message from "../../Message.ts"
import * as Thread from "../../Thread.ts"
import * as Settings from "../ask/options.ts"
import { checkNames, type NamesOf } from "../declare/schema.ts"
import * as Values from "../declare/values.ts"
import * as SharedMessages from "../fold/sharedMessages.ts"
import type * as RunJournal from "../run/runJournal.ts"
import * as SessionData from "./data.ts"
import type * as SessionEvents from "./events.ts"
import type * as Journals from "./journal.ts"
import * as Records from "./records.ts"
import * as Resumptions from "./resumption.ts"
import * as Settling from "./settling.ts"
import * as States from "./state.ts"
import * as StoredCommands from "./storedCommands.ts"
import * as Writers from "./writer.ts"

/**
 * Operation errors. The caller's session is unchanged, and no approved call has run. Once an approved call has run, a
 * model that cannot be asked ends the operation with outcome `Failed`, so that the call's answer is kept. If the
 * adapter, the tools or the options are at fault, nothing is recorded.
 *
 * @category errors
 */
export type OperationError = Chat.ChatError | SessionData.SessionError | Resumptions.ResumeError

type Session = SessionData.Session

/** An operation the session allows. */
export interface Operation<M extends SessionEvents.Mode> {
  readonly mode: M
  readonly name: Records.RunStarted["operation"]
  readonly base: Settling.Base
  /** Messages the operation adds to the session. */
  readonly messages: ReadonlyArray<Message.Message>
  /** Open question answered by the operation in its place. */
  readonly answered?: Settled
  /** Command taken by the operation. */
  readonly takes?: Records.RunStarted["takes"]
  /** The resumed run, and the reason to end it instead, if any. */
  readonly resumed?: Resumed
  readonly parent?: Records.Parent | undefined
}

/** A resumed run, or a run ended instead. */
export interface Resumed {
  readonly run: States.Run
  readonly ending: RunJournal.Ends | undefined
  /** `true` if the run ends without caller code, which may have caused so many failed attempts. */
  readonly isBroken: boolean
}

interface Settled {
  readonly id: string
  readonly answer: SessionData.Answer
}

// Checks of the session status.

const wrong = (operation: string, { status }: Session, instead: string) =>
  Effect.die(new Error(`Session.${operation}: the session is ${status}; call ${instead}`))

const settling: Record<Event.Suspension["kind"], string> = {
  question: `${Settling.settlingOne.question} for each question`,
  manual: `${Settling.settlingOne.manual} for each manual call`,
  approval: `${Settling.settlingOne.approval} for each approval`,
  unknown: `${Settling.settlingOne.unknown} for each call whose effect is unknown`
}

const kinds = ({ suspensions }: Session): ReadonlyArray<Event.Suspension["kind"]> => [
  ...new Set(suspensions.map(({ kind }) => kind))
]

/** Returns the operations allowed instead. A reply answers a question if nothing else is open. */
const instead = (session: Session): string =>
  session.suspensions.length === 1 && session.suspensions[0]?.kind === "question"
    ? "Session.reply"
    : kinds(session).map((kind) => settling[kind]).join(", ")

/** Refuses a session with an open call. */
const free = (operation: string, session: Session): Effect.Effect<void, SessionData.SessionError> =>
  Effect.andThen(
    Settling.usable(session),
    session.suspensions.length === 0 ? Effect.void : wrong(operation, session, instead(session))
  )

const approvalPending = (session: Session): string => {
  const others = kinds(session).filter((kind) => kind !== "approval").map((kind) => settling[kind])
  const beside = others.length === 0 ? "" : `; beside it, call ${others.join(" and ")}`
  return "a call waits for an approval: call Session.approve or Session.deny first, or Session.expire where its time is "
    + `up, or Session.reply with { pending: "deny" }${beside}`
}

const withdrawn: Record<Event.Suspension["kind"], string> = {
  approval: "the user continued without approving the call",
  manual: "the user continued before the call had its result",
  question: "the user continued without answering the question",
  unknown: "the user continued before the effect of the call was known"
}

/**
 * Returns the denials for a reply with `pending: "deny"`: every suspension except a single question, which the reply
 * answers.
 */
const denials = ({ suspensions }: Session, time: number): ReadonlyArray<Records.CallSettled> => {
  const questions = suspensions.filter(({ kind }) => kind === "question")
  const refused = suspensions.filter(({ kind }) => kind !== "question" || questions.length > 1)
  return refused.map(({ id, kind }) => ({
    _tag: "CallSettled",
    id,
    answer: { _tag: "Denied", reason: withdrawn[kind] },
    time
  }))
}

interface Said extends Pick<Operation<"chat">, "answered" | "messages"> {
  /** An answer for a handler or its nested run: the operation begins with the call. */
  readonly within?: Settled & { readonly time: number }
}

/**
 * Adds a user message to a session. It answers the only open question, if any: as a message after a question in the
 * thread, otherwise in place of the call's answer.
 */
const spokenTo = (
  operation: string,
  session: Session,
  message: Message.Message
): Effect.Effect<Said, SessionData.SessionError> =>
  Effect.gen(function*() {
    yield* Settling.usable(session)
    if (session.suspensions.some(({ kind }) => kind === "approval")) {
      return yield* Settling.failed("approval_pending", approvalPending(session))
    }
    if (session.status === "awaiting_tools") return yield* wrong(operation, session, instead(session))
    const [question, ...others] = session.suspensions
    if (question === undefined) return { messages: [message] }
    if (message.role !== "user") return yield* wrong(operation, session, instead(session))
    if (others.length > 0) {
      return yield* Settling.failed("several_pending", "several calls wait: call Session.answer for each by its id")
    }
    const { id, toolCall } = question
    const value = yield* Settling.answerTo(session, id, message.content)
    const isResumed = States.isToResume(session.resumable?.find((other) => other.id === toolCall.id))
    if (question.path !== undefined || isResumed) {
      return { messages: [], within: { id, answer: { _tag: "Value", value }, time: yield* Clock.currentTimeMillis } }
    }
    return SharedMessages.endsWithQuestion(session.thread, toolCall.id)
      ? { messages: [message] }
      : { messages: [], answered: { id, answer: { _tag: "Value", value } } }
  })

/** Returns an operation adding messages to the session. */
const spoken = (name: "reply" | "continue", base: Settling.Base, { within, ...said }: Said): Operation<"chat"> => ({
  mode: "chat",
  name,
  base: within === undefined ? base : Settling.behind(base, [{ _tag: "CallSettled", ...within }]),
  ...said
})

/** Returns the session for an input. A conversation starts anew in the kept session, which must be free. */
const sessionIn = (input: unknown): Effect.Effect<Session, OperationError> =>
  Effect.gen(function*() {
    if (SessionData.isSession(input)) return input
    const thread = yield* Effect.mapError(
      Effect.fromResult(Thread.validate(input)),
      ({ errors }) => new Thread.ValidationError({ reason: "invalid_session_input", errors })
    )
    const current = yield* Writers.CurrentWriter
    if (current === undefined) return SessionData.make({ thread })
    yield* free("start", States.sessionOf(current.state))
    const { context, metadata } = current.state
    return SessionData.make({ thread, context, metadata })
  })

/** Checks `Session.start`: an input is a session, or makes a new one. */
export const starting = (input: unknown): Effect.Effect<Operation<"chat">, OperationError> =>
  Effect.gen(function*() {
    const base = yield* Settling.baseOf(yield* sessionIn(input), true)
    yield* free("start", States.sessionOf(base.state))
    return { mode: "chat", name: "start", base, messages: [] }
  })

/** Reply options. */
export interface Reply {
  readonly pending?: "deny" | undefined
  readonly takes?: string | undefined
}

/** Returns the command of a message. Refuses a command already taken. */
const taking = (
  { state }: Settling.Base,
  id: string,
  content: Message.Content
): Effect.Effect<Pick<Operation<"chat">, "takes">, SessionData.SessionError> => {
  const hash = Records.hashOfContent(content)
  const known = state.receipts.get(id)
  return known === undefined || known.became === "queued" && known.hash === hash
    ? Effect.succeed({ takes: { id, hash } })
    : StoredCommands.idTaken(id)
}

const replyOptions = Values.nullable({ pending: Values.oneOf("deny"), takes: Values.text } satisfies NamesOf<Reply>)

/** Checks `Session.reply`. Denies the open calls first if the options say so. */
export const replying = (
  given: Session,
  content: Message.Content,
  { pending, takes }: Reply
): Effect.Effect<Operation<"chat">, OperationError> =>
  Effect.gen(function*() {
    checkNames("Session.reply", { pending, takes }, replyOptions)
    const message = Message.user(content)
    const base = yield* Settling.baseOf(given, true)
    const freed = pending === "deny"
      ? Settling.behind(base, denials(States.sessionOf(base.state), yield* Clock.currentTimeMillis))
      : base
    const said = yield* spokenTo("reply", States.sessionOf(freed.state), message)
    const operation = spoken("reply", freed, said)
    return typeof takes === "string" ? { ...operation, ...yield* taking(base, takes, content) } : operation
  })

/** Checks `Session.continue`, with or without a message. */
export const continuing = (
  given: Session,
  message: Message.Input | null
): Effect.Effect<Operation<"chat">, OperationError> =>
  Effect.gen(function*() {
    const base = yield* Settling.baseOf(given, true)
    const session = States.sessionOf(base.state)
    const [said] = message === null ? [] : Thread.fromMessages([message]).messages
    if (said !== undefined) return spoken("continue", base, yield* spokenTo("continue", session, said))
    yield* free("continue", session)
    return { mode: "chat", name: "continue", base, messages: [] }
  })

/** Checks that a suspended nested run continues. An answer already in its journal changes nothing. */
export const continuingNested = (
  answers: Resumptions.NestedAnswers,
  parent: Records.Parent
): Effect.Effect<Operation<"chat">, OperationError> =>
  Effect.gen(function*() {
    const writer = yield* Writers.CurrentWriter
    if (writer === undefined) return yield* Effect.die(new Error("a suspended nested run must be recorded"))
    const open = new Set(States.suspensionsOf(writer.state).map(({ id }) => id))
    const time = yield* Clock.currentTimeMillis
    const settled = answers.filter(({ id }) => open.has(id)).map((settled): Records.Record => ({
      _tag: "CallSettled",
      ...settled,
      time
    }))
    const base = Settling.behind({ writer, state: writer.state, before: [] }, settled)
    return { mode: "chat", name: "continue", base, messages: [], parent }
  })

/** Checks the start of a nested run recorded for the first time, or again. */
export const beginningNested = (session: Session, parent: Records.Parent): Effect.Effect<Operation<"chat">> =>
  Effect.map(Settling.baseOf(session, true), ({ writer }) => {
    const closed = Settling.behind(
      { writer, state: writer.state, before: [] },
      States.closing(writer.state, "operation", [])
    )
    // An earlier run in the journal has nothing in common with this run.
    const base = Settling.behind(closed, [{ _tag: "Opened", format: 1, session }])
    return { mode: "chat", name: "start", base, messages: [], parent }
  })

/** Checks `Session.step`. */
export const stepping = (given: Session): Effect.Effect<Operation<"step">, OperationError> =>
  Effect.flatMap(
    Settling.baseOf(given, true),
    (base) => Effect.as(free("step", States.sessionOf(base.state)), { mode: "step", name: "step", base, messages: [] })
  )

/** Limits on resuming an interrupted run. */
export interface ResumeOptions {
  /**
   * Longest time after its start when a run may be resumed; a number is milliseconds. An older run is ended: recorded
   * effects are answered, nothing new starts, and the outcome is `Failed` with `ResumeError` `too_old`. Defaults to 7
   * days.
   */
  readonly maxAge?: Duration.Input
  /**
   * Number of times a run may be resumed by another process than before. Afterwards it is ended like a run too old,
   * with `too_many_attempts`. Defaults to 10.
   */
  readonly maxAttempts?: number
  /**
   * `true` to allow resuming a session loaded without a claim. Set it only if nothing else runs the session. Defaults
   * to `false`.
   */
  readonly takeOver?: boolean
  /**
   * `true` to emit repeated recorded events, marked `replayed: true`, and pass them to `onEvent`. The result does not
   * depend on this setting. Defaults to `true`.
   */
  readonly replays?: boolean
}

const defaultMaxAge = Duration.days(7)
const defaultMaxAttempts = 10

const resumeOptions = { maxAge: Values.duration, maxAttempts: Values.whole, takeOver: Values.flag }

/** Limits on resuming a run driven by an owner. Beyond them the run is ended. */
export interface Limits {
  /** Number of consecutive failures. */
  readonly maxFailures?: number
  /** Error that no attempt can overcome. */
  readonly failure?: Journals.StoreError | undefined
}

/** Checks `Session.resume`. */
export const resuming = (
  { maxAge = defaultMaxAge, maxAttempts = defaultMaxAttempts, takeOver = false }: ResumeOptions,
  { failure, maxFailures = Infinity }: Limits = {}
): Effect.Effect<Operation<"chat">, Resumptions.ResumeError> =>
  Effect.gen(function*() {
    checkNames("Session.resume", { maxAge, maxAttempts, takeOver }, resumeOptions)
    const writer = yield* Writers.CurrentWriter
    const { failures = 0, run, stop } = writer?.state ?? {}
    if (writer === undefined || run === undefined) {
      return yield* Effect.die(
        new Error("Session.resume: no run of the session was interrupted; call Session.reply or Session.continue")
      )
    }
    const refused = (reason: Resumptions.ResumeError["reason"], detail: string) =>
      new Resumptions.ResumeError({ reason, id: writer.id, detail })
    if (writer.owner === undefined && !takeOver) {
      return yield* refused(
        "unclaimed",
        "another process may be running it; load it with Session.claim, or give { takeOver: true } where nothing else can"
      )
    }
    const now = yield* Clock.currentTimeMillis
    const oldest = now - Settings.millis("maxAge", maxAge)
    const most = Settings.positiveInteger("maxAttempts", maxAttempts)
    const { deadlineAt = Infinity, resumptions, startedAt } = run
    const { parent } = writer.state
    const ending: RunJournal.Ends | undefined = stop !== undefined
      ? { _tag: "Stop" }
      : failure !== undefined
      ? { _tag: "Failure", error: failure }
      : startedAt < oldest
      ? { _tag: "Failure", error: refused("too_old", "the run started longer ago than maxAge allows") }
      : resumptions >= most
      ? { _tag: "Failure", error: refused("too_many_attempts", `the run was resumed ${resumptions} times already`) }
      : failures >= maxFailures
      ? { _tag: "Failure", error: refused("too_many_attempts", `the run failed ${failures} times in a row`) }
      : deadlineAt <= now
      ? { _tag: "Deadline" }
      : undefined
    const base: Settling.Base = { writer, state: writer.state, before: [] }
    const isBroken = failure !== undefined || resumptions >= most || failures >= maxFailures
    return { mode: "chat", name: run.operation, base, messages: [], resumed: { run, ending, isBroken }, parent }
  })

/** Records that the interrupted run failed, if the operation could not record the failure. */
export const failing: Effect.Effect<void> = Effect.flatMap(Writers.CurrentWriter, (writer) => {
  const requestId = writer?.state.run?.requestId
  return writer === undefined || requestId === undefined
    ? Effect.void
    : writer.append([{ _tag: "AttemptFailed", requestId }])
})

/** Closes the interrupted run and its turn, and nothing else. */
export const abandoning: Effect.Effect<Session> = Effect.gen(function*() {
  const writer = yield* Writers.CurrentWriter
  const records = writer && Writers.nonEmpty(yield* Settling.closing(writer, "abandon"))
  if (writer === undefined || records === undefined) {
    return yield* Effect.die(
      new Error("Session.abandon: no run of the session was interrupted; there is nothing to abandon")
    )
  }
  yield* writer.append(records)
  return States.sessionOf(writer.state)
})

/** Appends messages to a session. Nothing may come between a call and its answer. */
export const append = (
  given: Session,
  messages: ReadonlyArray<Message.Input>
): Effect.Effect<Session, SessionData.SessionError> =>
  Effect.gen(function*() {
    const base = yield* Settling.baseOf(given, true)
    const session = States.sessionOf(base.state)
    yield* free("append", session)
    if (session.approved.length > 0) return yield* wrong("append", session, "Session.continue")
    const added = Thread.fromMessages(messages).messages
    return yield* Settling.happened(base, [{ _tag: "MessagesAppended", messages: added }])
  })

/** Appends a user message to a session. */
export const appendUser = (
  session: Session,
  content: Message.Content
): Effect.Effect<Session, SessionData.SessionError> => append(session, [Message.user(content)])
