/**
 * Prepares the operations of a session: checks each against the session, and computes its start before anything is
 * written. A wrong status is a defect that names the right call, and wrong data a typed error. Settling a suspension
 * changes data and runs nothing. Public as `Session`.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Chat from "../../Chat.ts"
import type * as Event from "../../Event.ts"
import * as Message from "../../Message.ts"
import * as Thread from "../../Thread.ts"
import * as Settings from "../ask/options.ts"
import * as ToolOutcomes from "../declare/outcome.ts"
import { checkNames, type NamesOf } from "../declare/schema.ts"
import * as Values from "../declare/values.ts"
import * as SharedMessages from "../fold/sharedMessages.ts"
import * as ToolCalls from "../hear/toolCalls.ts"
import * as Json from "../json.ts"
import type * as Replay from "../run/callReplay.ts"
import * as SessionData from "./data.ts"
import type * as SessionEvents from "./events.ts"
import type * as Journals from "./journal.ts"
import * as Keeping from "./kept.ts"
import * as Records from "./records.ts"
import * as States from "./state.ts"
import * as Replays from "./turnReplay.ts"
import * as Writers from "./writer.ts"

/**
 * Errors of an operation. The caller's session is unchanged, and no approved call has run: once one has run, a model
 * that cannot be asked ends the operation with outcome `Failed`, so that the answer of the call is kept.
 *
 * @category errors
 * @since 0.1.0
 */
export type OperationError = Chat.ChatError | SessionData.SessionError | Replays.ResumeError

type Session = SessionData.Session

/** The start of an operation. */
export interface Base {
  readonly writer: Writers.Writer
  /** The state that the operation is checked against. */
  readonly state: States.State
  /** Records that lead to that state, written with the first record of the operation. */
  readonly before: ReadonlyArray<Records.Record>
}

/** An operation that the session allows. */
export interface Operation<M extends SessionEvents.Mode> {
  readonly mode: M
  readonly name: Records.RunStarted["operation"]
  readonly base: Base
  /** Messages that the operation adds to the session. */
  readonly messages: ReadonlyArray<Message.Message>
  /** An open question that the operation answers in its place. */
  readonly answered?: Settled
  /** The command that the operation takes. */
  readonly takes?: Records.RunStarted["takes"]
  /** The run that the operation resumes, and the reason to end it instead, if there is one. */
  readonly resumed?: Resumed
  readonly parent?: Records.Parent | undefined
}

/** A run that is resumed, or ended in its place. */
export interface Resumed {
  readonly run: States.Run
  readonly ending: Replay.Ends | undefined
  /** `true` where the run ends without code of the caller's, which may be why so many attempts have failed. */
  readonly isBroken: boolean
}

interface Settled {
  readonly id: string
  readonly answer: SessionData.Answer
}

// The start state of an operation.

const after = (state: States.State, records: ReadonlyArray<Records.Record>): States.State => {
  if (records.length === 0) return state
  const next = States.copyOf(state)
  for (const record of records) States.apply(next, record)
  return next
}

const then = ({ before, state, writer }: Base, records: ReadonlyArray<Records.Record>): Base => ({
  writer,
  state: after(state, records),
  before: [...before, ...records]
})

/** Returns the program's session with the changes of thread and context that closing its run made. */
const sinceClosed = (session: Session, known: Session, closed: Session): Session => {
  const updates = Object.entries(closed.context).filter(([name, value]) => !Json.isSame(value, known.context[name]))
  return { ...session, thread: closed.thread, context: { ...session.context, ...Object.fromEntries(updates) } }
}

/** Returns the base of an operation. `leaves` abandons an interrupted run first. */
const baseOf = (session: Session, leaves: boolean): Effect.Effect<Base> =>
  Effect.flatMap(Writers.CurrentWriter, (current) => {
    if (current === undefined) {
      return Effect.map(
        Writers.unkept(States.stateOf(session)),
        (writer): Base => ({ writer, state: writer.state, before: [] })
      )
    }
    const { given, state } = current
    const base: Base = { writer: current, state, before: [] }
    const known = States.sessionOf(state)
    const isOwn = Json.isSame(session, known)
    if (isOwn && !leaves) return Effect.succeed(base)
    const closed = then(base, States.closing(state, "operation"))
    if (state.run !== undefined) given.closed = States.sessionOf(closed.state)
    if (isOwn) return Effect.succeed(closed)
    // A session that the program has changed is written as a whole. If its run was interrupted, it gets the closed
    // turn.
    const has = (other: Session) => Json.isSame(session.thread, other.thread)
    const before = has(given.session) ? given.session : state.run !== undefined && has(known) ? known : undefined
    const replaced = given.closed === undefined || before === undefined
      ? session
      : sinceClosed(session, before, given.closed)
    if (Json.isSame(replaced, States.sessionOf(closed.state))) return Effect.succeed(closed)
    // The session keeps the id of its journal.
    const own = known.id === undefined ? replaced : { ...replaced, id: known.id }
    return Effect.succeed(then(closed, [States.openedBy(closed.state, own)]))
  })

/** Appends the records of an operation that starts no run. */
const happened = ({ before, writer }: Base, records: ReadonlyArray<Records.Record>): Effect.Effect<Session> =>
  Effect.map(
    writer.append([...before, ...records] as unknown as Records.Records),
    () => States.sessionOf(writer.state)
  )

// Checks of the session's status.

const wrong = (operation: string, { status }: Session, instead: string) =>
  Effect.die(new Error(`Session.${operation}: the session is ${status}; call ${instead}`))

/** Calls that settle a suspension, by its kind. */
const settlingOne: Record<Event.Suspension["kind"], string> = {
  question: "Session.answer",
  manual: "Session.submitToolResult",
  approval: "Session.approve or Session.deny",
  unknown: "Session.answer, Session.approve or Session.deny"
}

const settling: Record<Event.Suspension["kind"], string> = {
  question: `${settlingOne.question} for each question`,
  manual: `${settlingOne.manual} for each manual call`,
  approval: `${settlingOne.approval} for each approval`,
  unknown: `${settlingOne.unknown} for each call whose effect is unknown`
}

/** Names the calls that wait, at most ten. */
const openIn = ({ suspensions }: Session): string => {
  const ids = suspensions.slice(0, 10).map(({ id }) => JSON.stringify(id)).join(", ")
  return ids === "" ? "none waits" : `these wait: ${ids}${suspensions.length > 10 ? ", …" : ""}`
}

const kinds = ({ suspensions }: Session): ReadonlyArray<Event.Suspension["kind"]> => [
  ...new Set(suspensions.map(({ kind }) => kind))
]

/** Returns the operations that are allowed instead. A reply answers a question if nothing else is open. */
const instead = (session: Session): string =>
  session.suspensions.length === 1 && session.suspensions[0]?.kind === "question"
    ? "Session.reply"
    : kinds(session).map((kind) => settling[kind]).join(", ")

const failed = (reason: SessionData.SessionError["reason"], detail: string, toolCallId?: string) =>
  new SessionData.SessionError({
    reason,
    detail,
    ...(toolCallId === undefined ? {} : { metadata: { toolCallId } })
  })

/** Refuses a session whose last run failed. */
const usable = (session: Session): Effect.Effect<void, SessionData.SessionError> =>
  session.status === "error"
    ? failed("session_in_error_state", "the last run failed: see metadata.error, and call Session.recover first")
    : Effect.void

/** Refuses a session with an open call. */
const free = (operation: string, session: Session): Effect.Effect<void, SessionData.SessionError> =>
  Effect.andThen(
    usable(session),
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
 * Returns the denials of a reply with `pending: "deny"`: every suspension except a single question, which the reply
 * answers.
 */
const denials = ({ suspensions }: Session): ReadonlyArray<Records.CallSettled> => {
  const questions = suspensions.filter(({ kind }) => kind === "question")
  const refused = suspensions.filter(({ kind }) => kind !== "question" || questions.length > 1)
  return refused.map(({ id, kind }) => ({
    _tag: "CallSettled",
    id,
    answer: { _tag: "Denied", reason: withdrawn[kind] }
  }))
}

interface Said extends Pick<Operation<"chat">, "answered" | "messages"> {
  /** An answer for a handler or for its nested run: the operation begins with the call. */
  readonly within?: Settled
}

/**
 * Adds a user message to a session. It answers the one open question, if there is one: as a message after a question
 * in the thread, and in the place of the call if the question is not in the thread.
 */
const spokenTo = (
  operation: string,
  session: Session,
  message: Message.Message
): Effect.Effect<Said, SessionData.SessionError> =>
  Effect.gen(function*() {
    yield* usable(session)
    if (session.suspensions.some(({ kind }) => kind === "approval")) {
      return yield* failed("approval_pending", approvalPending(session))
    }
    if (session.status === "awaiting_tools") return yield* wrong(operation, session, instead(session))
    const [question, ...others] = session.suspensions
    if (question === undefined) return { messages: [message] }
    if (message.role !== "user") return yield* wrong(operation, session, instead(session))
    if (others.length > 0) {
      return yield* failed("several_pending", "several calls wait: call Session.answer for each by its id")
    }
    const { id } = question
    const value = yield* answerTo(session, id, message.content)
    const isResumed = States.isToResume(session.resumable?.find((other) => other.id === id))
    if (question.path !== undefined || isResumed) {
      return { messages: [], within: { id, answer: { _tag: "Value", value } } }
    }
    return SharedMessages.endsWithQuestion(session.thread, id)
      ? { messages: [message] }
      : { messages: [], answered: { id, answer: { _tag: "Value", value } } }
  })

/** Returns an operation that adds messages to the session. */
const spoken = (name: "reply" | "continue", base: Base, { within, ...said }: Said): Operation<"chat"> => ({
  mode: "chat",
  name,
  base: within === undefined ? base : then(base, [{ _tag: "CallSettled", ...within }]),
  ...said
})

/** Returns the session that an input stands for. A conversation starts anew in the kept session, which must be free. */
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

/** Checks `Session.start`: an input is a session, or makes one. */
export const starting = (input: unknown): Effect.Effect<Operation<"chat">, OperationError> =>
  Effect.gen(function*() {
    const base = yield* baseOf(yield* sessionIn(input), true)
    yield* free("start", States.sessionOf(base.state))
    return { mode: "chat", name: "start", base, messages: [] }
  })

/** Options of a reply. */
export interface Reply {
  readonly pending?: "deny" | undefined
  readonly takes?: string | undefined
}

/** Returns the command of a message. Refuses a command that was taken before. */
const taking = (
  { state }: Base,
  id: string | undefined,
  content: Message.Content
): Effect.Effect<Pick<Operation<"chat">, "takes">, SessionData.SessionError> => {
  if (id === undefined) return Effect.succeed({})
  const hash = Records.hashOf(content)
  const known = state.receipts.get(id)
  return known === undefined || known.became === "queued" && known.hash === hash
    ? Effect.succeed({ takes: { id, hash } })
    : Keeping.idTaken(id)
}

const replyOptions = Values.nullable({ pending: Values.oneOf("deny"), takes: Values.text } satisfies NamesOf<Reply>)

/** Checks `Session.reply`. Denies the open calls first if the options ask for it. */
export const replying = (
  given: Session,
  content: Message.Content,
  { pending, takes }: Reply
): Effect.Effect<Operation<"chat">, OperationError> =>
  Effect.gen(function*() {
    checkNames("Session.reply", { pending, takes }, replyOptions)
    const message = Message.user(content)
    const base = yield* baseOf(given, true)
    const freed = pending === "deny" ? then(base, denials(States.sessionOf(base.state))) : base
    const said = yield* spokenTo("reply", States.sessionOf(freed.state), message)
    return { ...spoken("reply", freed, said), ...yield* taking(base, takes ?? undefined, content) }
  })

/** Checks `Session.continue`, with a message or without. */
export const continuing = (
  given: Session,
  message: Message.Input | null
): Effect.Effect<Operation<"chat">, OperationError> =>
  Effect.gen(function*() {
    const base = yield* baseOf(given, true)
    const session = States.sessionOf(base.state)
    const [said] = message === null ? [] : Thread.fromMessages([message]).messages
    if (said !== undefined) return spoken("continue", base, yield* spokenTo("continue", session, said))
    yield* free("continue", session)
    return { mode: "chat", name: "continue", base, messages: [] }
  })

/** Checks that a suspended nested run continues. An answer that its journal already contains changes nothing. */
export const continuingNested = (
  answers: Replays.NestedAnswers,
  parent: Records.Parent
): Effect.Effect<Operation<"chat">, OperationError> =>
  Effect.flatMap(Writers.CurrentWriter, (writer) => {
    if (writer === undefined) return Effect.die(new Error("a suspended nested run must be recorded"))
    const open = new Set(States.suspensionsOf(writer.state).map(({ id }) => id))
    const settled = answers.filter(({ id }) => open.has(id)).map((settled): Records.Record => ({
      _tag: "CallSettled",
      ...settled
    }))
    const base = then({ writer, state: writer.state, before: [] }, settled)
    return Effect.succeed<Operation<"chat">>({ mode: "chat", name: "continue", base, messages: [], parent })
  })

/** Checks the start of a nested run that is recorded for the first time, or again. */
export const beginningNested = (session: Session, parent: Records.Parent): Effect.Effect<Operation<"chat">> =>
  Effect.map(baseOf(session, true), ({ writer }) => {
    const closed = then({ writer, state: writer.state, before: [] }, States.closing(writer.state, "operation"))
    // An earlier run in the journal has nothing in common with this one.
    const base = then(closed, [{ _tag: "Opened", format: 1, session }])
    return { mode: "chat", name: "start", base, messages: [], parent }
  })

/** Checks `Session.step`. */
export const stepping = (given: Session): Effect.Effect<Operation<"step">, OperationError> =>
  Effect.flatMap(
    baseOf(given, true),
    (base) => Effect.as(free("step", States.sessionOf(base.state)), { mode: "step", name: "step", base, messages: [] })
  )

/** Limits of resuming an interrupted run. */
export interface ResumeOptions {
  /**
   * Longest time after its start in which a run may be resumed; a number is milliseconds. An older run is ended:
   * recorded effects are answered, nothing new starts, and the outcome is `Failed` with the `ResumeError` `too_old`.
   * 7 days by default.
   */
  readonly maxAge?: Duration.Input
  /**
   * Number of times that a run may be resumed by another process than the one before. After that it is ended like one
   * that is too old, with `too_many_attempts`. 10 by default.
   */
  readonly maxAttempts?: number
  /**
   * Allows resuming a session that was loaded without a claim. Set it only where nothing else runs the session.
   * `false` by default.
   */
  readonly takeOver?: boolean
  /**
   * Emits the events that repeat recorded ones, which have `replayed: true`, and passes them to `onEvent`. The result
   * does not depend on it. `true` by default.
   */
  readonly replays?: boolean
}

const defaultMaxAge = Duration.days(7)
const defaultMaxAttempts = 10

const resumeOptions = { maxAge: Values.duration, maxAttempts: Values.whole, takeOver: Values.flag }

/** Limits of resuming a run that an owner drives. Beyond them the run is ended. */
export interface Limits {
  /** Number of failures in a row. */
  readonly maxFailures?: number
  /** An error for which no attempt can succeed. */
  readonly failure?: Journals.StoreError | undefined
}

/** Checks `Session.resume`. */
export const resuming = (
  { maxAge = defaultMaxAge, maxAttempts = defaultMaxAttempts, takeOver = false }: ResumeOptions,
  { failure, maxFailures = Infinity }: Limits = {}
): Effect.Effect<Operation<"chat">, Replays.ResumeError> =>
  Effect.gen(function*() {
    checkNames("Session.resume", { maxAge, maxAttempts, takeOver }, resumeOptions)
    const writer = yield* Writers.CurrentWriter
    const { failures = 0, run, stop } = writer?.state ?? {}
    if (writer === undefined || run === undefined) {
      return yield* Effect.die(
        new Error("Session.resume: no run of the session was interrupted; call Session.reply or Session.continue")
      )
    }
    const refused = (reason: Replays.ResumeError["reason"], detail: string) =>
      new Replays.ResumeError({ reason, id: writer.id, detail })
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
    const ending: Replay.Ends | undefined = stop !== undefined
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
    const base: Base = { writer, state: writer.state, before: [] }
    const isBroken = failure !== undefined || resumptions >= most || failures >= maxFailures
    return { mode: "chat", name: run.operation, base, messages: [], resumed: { run, ending, isBroken }, parent }
  })

/** Records that the interrupted run failed, where the operation could not. */
export const failing: Effect.Effect<void> = Effect.flatMap(Writers.CurrentWriter, (writer) => {
  const requestId = writer?.state.run?.requestId
  return writer === undefined || requestId === undefined
    ? Effect.void
    : writer.append([{ _tag: "AttemptFailed", requestId }])
})

/** Closes the interrupted run and its turn, and does nothing else. */
export const abandoning: Effect.Effect<Session> = Effect.flatMap(Writers.CurrentWriter, (writer) => {
  const records = writer && Writers.nonEmpty(States.closing(writer.state, "abandon"))
  if (writer === undefined || records === undefined) {
    return Effect.die(new Error("Session.abandon: no run of the session was interrupted; there is nothing to abandon"))
  }
  return Effect.map(writer.append(records), () => States.sessionOf(writer.state))
})

/** Adds messages to the end of a session. Nothing may come between a call and its answer. */
export const append = (
  given: Session,
  messages: ReadonlyArray<Message.Input>
): Effect.Effect<Session, SessionData.SessionError> =>
  Effect.gen(function*() {
    const base = yield* baseOf(given, true)
    const session = States.sessionOf(base.state)
    yield* free("append", session)
    if (session.approved.length > 0) return yield* wrong("append", session, "Session.continue")
    const added = Thread.fromMessages(messages).messages
    return yield* happened(base, [{ _tag: "MessagesAppended", messages: added }])
  })

/** Adds a user message to the end of a session. */
export const appendUser = (
  session: Session,
  content: Message.Content
): Effect.Effect<Session, SessionData.SessionError> => append(session, [Message.user(content)])

// Verdicts about suspensions. Each names a suspension by its id; their order does not matter, and each counts once. A
// verdict is checked first, and an invalid one leaves the session unchanged.

/**
 * Options of a verdict.
 *
 * @category options
 * @since 0.1.0
 */
export interface SettleOptions {
  /**
   * The id of the command. The same verdict under the same id counts once, even if it arrives twice, among the last
   * 1,000 commands of the session. None by default.
   */
  readonly command?: string
  /** The sender of the verdict, as recorded in the journal. Left out by default. */
  readonly by?: string
}

/** Returns the suspension with this id, unless its time is over. */
const find = (session: Session, id: string): Effect.Effect<Event.Suspension, SessionData.SessionError> =>
  Effect.gen(function*() {
    yield* usable(session)
    const suspension = session.suspensions.find((suspension) => suspension.id === id)
    if (suspension === undefined) {
      return yield* session.answered.includes(id)
        ? failed("already_answered", `call ${JSON.stringify(id)} is already answered`, id)
        : failed("unknown_tool_call_id", `no call ${JSON.stringify(id)} waits for an answer; ${openIn(session)}`, id)
    }
    if (suspension.expiresAt !== undefined && suspension.expiresAt <= (yield* Clock.currentTimeMillis)) {
      return yield* failed("expired", "the time for an answer is up: call Session.expire", id)
    }
    return suspension
  })

/** Reads a value as the answer to a suspension. Refuses one that does not fit. */
const answerTo = (
  session: Session,
  id: string,
  content: unknown
): Effect.Effect<unknown, SessionData.SessionError> =>
  Effect.flatMap(find(session, id), (suspension) => fitting(suspension, content))

/** Calls `read` on a value. The call may throw: the value may be a foreign object, or a revoked proxy. */
const readable = <A>(id: string, what: string, read: () => A): Effect.Effect<A, SessionData.SessionError> =>
  Effect.try({ try: read, catch: () => failed("invalid_answer", `the ${what} cannot be read`, id) })

/**
 * Returns the answer if it fits the schema of the question. A text that is JSON is also tried as JSON. The answer is
 * plain JSON from here on, so that a session is the same whether it was stored or not: a list of parts loses the mark
 * of `Tool.content`, a date becomes a text, and `undefined` becomes `null`.
 */
const fitting = (
  { answerSchema, id }: Event.Suspension,
  given: unknown
): Effect.Effect<unknown, SessionData.SessionError> =>
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

/** A verdict about one suspension. */
export interface Verdict {
  readonly id: string
  readonly options: SettleOptions
  /** The kind and the words of the verdict: the same command with others is refused. */
  readonly content: unknown
  /** Returns the answer in a session that it fits. */
  readonly decide: (session: Session) => Effect.Effect<SessionData.Answer, SessionData.SessionError>
}

/**
 * Settles suspensions and adds a message for the next run, in one append: all of it or, where a verdict is refused,
 * nothing. A repeated command changes nothing.
 */
export const settle = (
  given: Session,
  verdicts: ReadonlyArray<Verdict>,
  submitted?: Records.MessageSubmitted
): Effect.Effect<Session, SessionData.SessionError> =>
  Effect.gen(function*() {
    const base = yield* baseOf(given, false)
    const state = verdicts.length > 1 ? States.copyOf(base.state) : base.state
    const records: Array<Records.Record> = []
    for (const { content, decide, id, options } of verdicts) {
      checkNames("a verdict", options, knownVerdict)
      const { by, command } = options
      const hash = command === undefined ? "" : Records.hashOf([id, Json.toJson(content)])
      const known = command === undefined ? undefined : state.receipts.get(command)
      if (known !== undefined && command !== undefined) {
        if (known.hash !== hash) return yield* Keeping.idTaken(command)
        continue
      }
      const record: Records.Record = {
        _tag: "CallSettled",
        id,
        answer: yield* decide(States.sessionOf(state)),
        ...(command === undefined ? {} : { command: { id: command, hash } }),
        ...(by === undefined ? {} : { by })
      }
      records.push(record)
      // The next verdict is about the session after this one.
      if (verdicts.length > 1) States.apply(state, record)
    }
    if (submitted !== undefined) records.push(submitted)
    if (records.length === 0) return verdicts.length === 0 ? given : States.sessionOf(base.state)
    return yield* happened(base, records)
  })

/** Returns the verdict that answers a question, or gives the result of a call. */
export const answerOf = (id: string, value: unknown, options: SettleOptions = {}): Verdict => ({
  id,
  options,
  content: { answered: value },
  decide: (session) =>
    Effect.gen(function*() {
      const suspension = yield* find(session, id)
      if (suspension.kind === "approval") {
        return yield* failed("invalid_answer", "the call waits for Session.approve or Session.deny", id)
      }
      return { _tag: "Value", value: yield* fitting(suspension, value) }
    })
})

/** Answers a question, gives the result of a manual call, or gives the result of a call whose effect is unknown. */
export const answer = (session: Session, id: string, value: unknown, options?: SettleOptions) =>
  settle(session, [answerOf(id, value, options)])

const approvable = (session: Session, id: string) =>
  Effect.flatMap(find(session, id), ({ kind }) =>
    kind === "approval" || kind === "unknown"
      ? Effect.void
      : Effect.fail(failed("invalid_answer", "the call waits for Session.answer, not for an approval", id)))

type Arguments = NonNullable<Message.ToolCall["arguments"]>

/**
 * Returns arguments as plain JSON, like a model's. Refuses arguments that nest too deeply to be written and read
 * again.
 */
const writable = (id: string, given: Arguments): Effect.Effect<Arguments, SessionData.SessionError> =>
  Effect.flatMap(
    readable(id, "arguments", () =>
      Json.isDeeper(given, ToolCalls.deepest) ? undefined : Json.toJson(given) as Arguments),
    (plain) =>
      plain === undefined
        ? Effect.fail(failed("invalid_answer", `the arguments nest deeper than ${ToolCalls.deepest} levels`, id))
        : Effect.succeed(plain)
  )

/**
 * Options of an approval.
 *
 * @category options
 * @since 0.1.0
 */
export interface ApproveOptions extends SettleOptions {
  /**
   * Arguments that replace those of the call, nested at most 256 levels deep. They are decoded when the call runs,
   * like the model's.
   */
  readonly arguments?: Message.ToolCall["arguments"]
}

/** The options of a verdict of any kind. */
const knownVerdict = { command: Values.name, by: Values.text, arguments: Values.objectLike } satisfies NamesOf<
  ApproveOptions
>

/** Returns the verdict that approves a call. */
export const approvalOf = (id: string, options: ApproveOptions = {}): Verdict => ({
  id,
  options,
  content: { approved: options.arguments ?? null },
  decide: (session) =>
    Effect.gen(function*() {
      yield* approvable(session, id)
      const edited = options.arguments === undefined ? {} : { arguments: yield* writable(id, options.arguments) }
      return { _tag: "Approved", ...edited }
    })
})

/** Approves a call, with its own arguments or with others. A call whose effect is unknown is tried again. */
export const approve = (session: Session, id: string, options?: ApproveOptions) =>
  settle(session, [approvalOf(id, options)])

/** Returns the verdict that denies a call. */
export const denialOf = (id: string, reason: string | undefined, options: SettleOptions = {}): Verdict => ({
  id,
  options,
  content: { denied: reason ?? null },
  decide: (session) =>
    Effect.as(approvable(session, id), { _tag: "Denied", ...(reason === undefined ? {} : { reason }) })
})

/** Denies a call: it is answered as `denied`, and never runs. */
export const deny = (session: Session, id: string, reason?: string, options?: SettleOptions) =>
  settle(session, [denialOf(id, reason, options)])

/** Returns the verdict that a call is given up, of whatever kind: the model reads the reason. */
export const withdrawalOf = (id: string, reason: string, options: SettleOptions): Verdict => ({
  id,
  options,
  content: { denied: reason },
  decide: (session) => Effect.as(find(session, id), { _tag: "Denied", reason })
})

/** Settles every suspension whose time is over. */
export const expire = (session: Session): Effect.Effect<Session, SessionData.SessionError> =>
  Effect.gen(function*() {
    yield* usable(session)
    const now = yield* Clock.currentTimeMillis
    return yield* settle(
      session,
      session.suspensions.filter(({ expiresAt = Infinity }) => expiresAt <= now).map(({ id }) => ({
        id,
        options: {},
        content: undefined,
        decide: () => Effect.succeed({ _tag: "Expired" })
      }))
    )
  })

/** Returns the verdict that gives the result of a manual call. */
const resultOf = (id: string, content: unknown, options: SettleOptions = {}): Verdict => ({
  id,
  options,
  content: { answered: content },
  decide: (session) =>
    Effect.gen(function*() {
      yield* usable(session)
      if (session.pendingToolCalls.length === 0 && !session.answered.includes(id)) {
        return yield* Effect.die(
          new Error(`Session.submitToolResult: the session is ${session.status} and waits for no tool result`)
        )
      }
      const suspension = yield* find(session, id)
      if (suspension.kind !== "manual") {
        const detail = `call ${JSON.stringify(id)} is no manual call: call ${settlingOne[suspension.kind]}`
        return yield* failed("invalid_answer", detail, id)
      }
      return { _tag: "Value", value: yield* fitting(suspension, content) }
    })
})

/** Gives the result of a manual call. Dies where no call waits for a result or has waited for one. */
export const submitToolResult = (session: Session, id: string, content: unknown, options?: SettleOptions) =>
  settle(session, [resultOf(id, content, options)])

/**
 * The result of a manual call.
 *
 * @category models
 * @since 0.1.0
 */
export interface ToolResult {
  /** The id of the call. */
  readonly toolCallId: string
  /** The result: a text, a list of parts (`Tool.content`), or a value, which is written as JSON. */
  readonly content: unknown
}

/** Gives several results, in order: all of them or, where one is refused, none. */
export const submitToolResults = (
  session: Session,
  results: ReadonlyArray<ToolResult>
): Effect.Effect<Session, SessionData.SessionError> =>
  settle(session, results.map(({ content, toolCallId }) => resultOf(toolCallId, content)))
