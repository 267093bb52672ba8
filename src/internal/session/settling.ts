/**
 * Settles the suspensions of a session: checks each verdict against the session, and records all of them or, where one
 * is refused, none. Settling changes data and runs nothing. Public as `Session`.
 *
 * @since 0.1.0
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as DateTime from "effect/DateTime"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import * as Policy from "../../Policy.ts"
import * as CallPaths from "../answer/callPath.ts"
import * as ToolOutcomes from "../declare/outcome.ts"
import { checkNames, misfits, type NamesOf } from "../declare/schema.ts"
import type * as Declared from "../declare/tool.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import * as Values from "../declare/values.ts"
import * as ToolCalls from "../hear/toolCalls.ts"
import * as Json from "../json.ts"
import * as Accounts from "../permits/account.ts"
import * as SessionData from "./data.ts"
import * as Kept from "./kept.ts"
import * as Records from "./records.ts"
import * as States from "./state.ts"
import * as StoredCommands from "./storedCommands.ts"
import * as Writers from "./writer.ts"

type Session = SessionData.Session

/** The start of an operation. */
export interface Base {
  readonly writer: Writers.Writer
  /** The state that the operation is checked against. */
  readonly state: States.State
  /** Records that lead to that state, written with the first record of the operation. */
  readonly before: ReadonlyArray<Records.Record>
}

// The start state of an operation.

export const behind = ({ before, state, writer }: Base, records: ReadonlyArray<Records.Record>): Base => ({
  writer,
  state: States.after(state, records),
  before: [...before, ...records]
})

/** Returns the program's session with the changes of thread and context that closing its run made. */
const sinceClosed = (session: Session, known: Session, closed: Session): Session => {
  const updates = Object.entries(closed.context).filter(([name, value]) => !Json.isSame(value, known.context[name]))
  return { ...session, thread: closed.thread, context: { ...session.context, ...Object.fromEntries(updates) } }
}

/** Returns the records that close an interrupted run, whose account may be that of the session. */
export const closing = (
  { state, store }: Writers.Writer,
  leaving: States.Leaving
): Effect.Effect<ReadonlyArray<Records.Record>> =>
  store !== undefined && Accounts.isOfSession(States.stepsOf(state))
    ? Effect.map(Kept.insideOf(store, state), (inside) => States.closing(state, leaving, inside))
    : Effect.succeed(States.closing(state, leaving, []))

/** Returns the base of an operation. `leaves` abandons an interrupted run first. */
export const baseOf = (session: Session, leaves: boolean): Effect.Effect<Base> =>
  Effect.gen(function*() {
    const current = yield* Writers.CurrentWriter
    if (current === undefined) {
      const writer = yield* Writers.unkept(session)
      return { writer, state: writer.state, before: [] }
    }
    const { given, state } = current
    const base: Base = { writer: current, state, before: [] }
    const known = States.sessionOf(state)
    const isOwn = Json.isSame(session, known)
    if (isOwn && !leaves) return base
    const closed = behind(base, yield* closing(current, "operation"))
    if (state.run !== undefined) given.closed = States.sessionOf(closed.state)
    if (isOwn) return closed
    // A session that the program has changed is written as a whole. If its run was interrupted, it gets the closed
    // turn.
    const has = (other: Session) => Json.isSame(session.thread, other.thread)
    const before = has(given.session) ? given.session : state.run !== undefined && has(known) ? known : undefined
    const replaced = given.closed === undefined || before === undefined
      ? session
      : sinceClosed(session, before, given.closed)
    if (Json.isSame(replaced, States.sessionOf(closed.state))) return closed
    // The session keeps the id of its journal.
    const own = known.id === undefined ? replaced : { ...replaced, id: known.id }
    return behind(closed, [States.openedBy(closed.state, own)])
  })

/** Appends the records of an operation that starts no run. */
export const happened = ({ before, writer }: Base, records: ReadonlyArray<Records.Record>): Effect.Effect<Session> =>
  Effect.map(
    writer.append([...before, ...records] as unknown as Records.Records),
    () => States.sessionOf(writer.state)
  )

// Checks of the session's status.

/** Calls that settle a suspension, by its kind. */
export const settlingOne: Record<Event.Suspension["kind"], string> = {
  question: "Session.answer",
  manual: "Session.answer",
  approval: "Session.approve or Session.deny",
  unknown: "Session.answer, Session.approve or Session.deny"
}

/** Names the calls that wait, at most ten. */
const openIn = ({ suspensions }: Session): string => {
  const ids = suspensions.slice(0, 10).map(({ id }) => JSON.stringify(id)).join(", ")
  return ids === "" ? "none waits" : `these wait: ${ids}${suspensions.length > 10 ? ", …" : ""}`
}

export const failed = (reason: SessionData.SessionError["reason"], detail: string, toolCallId?: string) =>
  new SessionData.SessionError({
    reason,
    detail,
    ...(toolCallId === undefined ? {} : { metadata: { toolCallId } })
  })

/** Refuses a session whose last run failed. */
export const usable = (session: Session): Effect.Effect<void, SessionData.SessionError> =>
  session.status === "error"
    ? failed("session_in_error_state", "the last run failed: see metadata.error, and call Session.recover first")
    : Effect.void

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

/** Returns a time of a record as a text, if there is one. */
const timeOf = (at: number | undefined): string =>
  Option.match(at === undefined ? Option.none() : DateTime.make(at), {
    onNone: () => "before",
    onSome: (time) => `at ${DateTime.formatIso(time)}`
  })

/** Returns the suspension with this id, unless its time is over. */
const find = (
  session: Session,
  id: string,
  given = "an answer to"
): Effect.Effect<Event.Suspension, SessionData.SessionError> =>
  Effect.gen(function*() {
    yield* usable(session)
    const call = `call ${JSON.stringify(id)}`
    const suspension = session.suspensions.find((suspension) => suspension.id === id)
    if (suspension === undefined) {
      const settled = session.answered.find((settled) => settled.id === id)
      if (settled === undefined) {
        return yield* failed("unknown_tool_call_id", `no ${call} waits for an answer; ${openIn(session)}`, id)
      }
      const left = session.suspensions.length > 0 ? openIn(session) : "call Session.continue"
      const stands = `it was ${settled.verdict} ${timeOf(settled.at)}, and that stands; ${left}`
      return yield* failed("already_answered", `${given} ${call} comes too late: ${stands}`, id)
    }
    const { expiresAt } = suspension
    if (expiresAt !== undefined && expiresAt <= (yield* Clock.currentTimeMillis)) {
      const detail = `the time for an answer is up: ${call} expired ${timeOf(expiresAt)}; call Session.expire`
      return yield* failed("expired", detail, id)
    }
    return suspension
  })

/** Reads a value as the answer to a suspension. Refuses one that does not fit. */
export const answerTo = (
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

/**
 * A verdict about one suspension.
 *
 * @category models
 * @since 0.1.0
 */
export interface Verdict extends Pick<ApproveOptions, "by" | "command" | "remember" | "tools"> {
  /** The id of the suspension. */
  readonly id: string
  /**
   * The verdict. `Value` answers a question, a manual call or a call whose effect is unknown, as `Session.answer` does;
   * `Approved` is `Session.approve`. `Denied` denies a call, and gives up a question or a manual call: the model reads
   * the reason.
   */
  readonly answer: Exclude<SessionData.Answer, SessionData.ExpiredAnswer>
}

/**
 * A message that is submitted with verdicts.
 *
 * @category models
 * @since 0.1.0
 */
export interface Submission extends Pick<StoredCommands.SubmitOptions, "by" | "clientTools" | "id"> {
  /** The content of the message. */
  readonly content: Message.Content
}

/** A verdict with the check of its answer. */
interface Decision {
  readonly id: string
  readonly options: SettleOptions & Pick<ApproveOptions, "remember">
  /** The kind and the words of the verdict: the same command with others is refused. */
  readonly content: unknown
  /** Returns the answer in a session that it fits, by the id that the suspension has there. */
  readonly decide: (session: Session, id: string) => Effect.Effect<SessionData.Answer, SessionData.SessionError>
}

/** Returns the id that a suspension has in its session: without the run that began to wait, which servers add. */
const idOf = (name: string): string => {
  const { path } = CallPaths.parse(name) ?? {}
  return path === undefined ? name : CallPaths.format({ path })
}

/** Tells whether the run that an id names has asked: an answer to an earlier wait of a call is none to the next one. */
const isOfRun = (state: States.State, name: string): boolean => {
  const { run } = CallPaths.parse(name) ?? {}
  return run === undefined || run === (States.askerOf(state) ?? state.run?.requestId ?? state.ended?.requestId)
}

/**
 * Returns the refusal of a verdict behind others of its list. Since none of these counts, the refusal is about the
 * session before them.
 */
const refusalIn = (
  session: Session,
  id: string,
  error: SessionData.SessionError
): Effect.Effect<never, SessionData.SessionError> =>
  error.reason !== "unknown_tool_call_id" && error.reason !== "already_answered" ? Effect.fail(error) : Effect.flatMap(
    find(session, id, "a verdict about"),
    () => {
      const twice = `two of these verdicts are about call ${JSON.stringify(id)}, and none of them counts`
      return failed("already_answered", `${twice}; ${openIn(session)}`, id)
    }
  )

/**
 * Settles suspensions and adds a message for the next run, in one append: all of it or, where a verdict is refused,
 * nothing. A repeated command changes nothing.
 */
const settleAll = (
  given: Session,
  verdicts: ReadonlyArray<Decision>,
  submitted?: Records.MessageSubmitted
): Effect.Effect<Session, SessionData.SessionError> =>
  Effect.gen(function*() {
    const base = yield* baseOf(given, false)
    const state = verdicts.length > 1 ? States.copyOf(base.state) : base.state
    const records: Array<Records.Record> = []
    const time = yield* Clock.currentTimeMillis
    for (const { content, decide, id: name, options } of verdicts) {
      checkNames("a verdict", options, knownVerdict)
      const { by, command, remember } = options
      const id = idOf(name)
      const hash = command === undefined ? "" : Records.hashOf([id, Json.toJson(content)])
      const known = command === undefined ? undefined : state.receipts.get(command)
      if (known !== undefined && command !== undefined) {
        if (known.hash !== hash) return yield* StoredCommands.idTaken(command)
        continue
      }
      const named = isOfRun(state, name) ? id : name
      const decided = decide(States.sessionOf(state), named)
      const record: Records.Record = {
        _tag: "CallSettled",
        id,
        answer: yield* state === base.state
          ? decided
          : Effect.catch(decided, (error) => refusalIn(States.sessionOf(base.state), named, error)),
        time,
        ...(command === undefined ? {} : { command: { id: command, hash } }),
        ...(remember === undefined ? {} : { remember }),
        ...(by === undefined ? {} : { by })
      }
      records.push(record)
      // The next verdict is about the session after this one.
      if (verdicts.length > 1) States.apply(state, record)
    }
    if (submitted !== undefined) {
      const sent = base.state.receipts.get(submitted.id)
      if (sent === undefined) records.push(submitted)
      else if (sent.hash !== Records.hashOfContent(submitted.message.content)) {
        return yield* StoredCommands.idTaken(sent.id)
      }
    }
    if (records.length === 0) return verdicts.length === 0 ? given : States.sessionOf(base.state)
    return yield* happened(base, records)
  })

/** Returns the verdict that answers a question, or gives the result of a call. */
const answerOf = (id: string, value: unknown, options: SettleOptions = {}): Decision => ({
  id,
  options,
  content: { answered: value },
  decide: (session, id) =>
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
  settleAll(session, [answerOf(id, value, options)])

const approvable = (session: Session, id: string, given: string) =>
  Effect.flatMap(find(session, id, given), ({ kind }) =>
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

/** Longest time that a decoder of edited arguments may take. What takes longer is left to the run. */
const checkedWithin = "10 seconds"

/**
 * Refuses edited arguments that the tool of the call cannot read, as the run would. A call of a sub-agent has a tool
 * that is not known here, and what breaks without a word about the arguments, such as a decoder that lacks a service,
 * is left to the run as well.
 */
const decodable = (
  { id, path, toolCall }: Event.Suspension,
  edited: Arguments,
  tools: ReadonlyArray<Declared.Any>
): Effect.Effect<void, SessionData.SessionError> =>
  Effect.gen(function*() {
    const { tools: defaults = [] } = yield* Policy.Defaults
    const tool = path === undefined ? ToolOptions.toolbox(defaults, tools).get(toolCall.name) : undefined
    if (tool === undefined) return
    const decoding = ToolOptions.attempt(() => tool.parameters.decode(edited)) as Effect.Effect<unknown, unknown>
    const exit = Exit.isExit(decoding)
      ? decoding
      : Option.getOrElse(
        yield* Effect.timeoutOption(Effect.exit(decoding), checkedWithin),
        () => Exit.void
      )
    if (Exit.isSuccess(exit)) return
    const error = Option.getOrUndefined(Cause.findErrorOption(exit.cause))
    if (error === undefined) return
    const issues = Schema.isSchemaError(error)
      ? misfits(error)
      : [{
        path: "",
        reason: error instanceof ToolOutcomes.ToolError ? error.detail ?? error.message : "They do not fit"
      }]
    const named = issues.map(({ path, reason }) => `arguments${path === "" ? "" : `.${path}`}: ${reason}`).join("; ")
    return yield* new SessionData.SessionError({
      reason: "invalid_arguments",
      detail: `${named}; call ${JSON.stringify(id)} keeps waiting`,
      metadata: { toolCallId: id, issues }
    })
  })

/**
 * Options of an approval.
 *
 * @category options
 * @since 0.1.0
 */
export interface ApproveOptions extends SettleOptions {
  /**
   * Arguments that replace those of the call, nested at most 256 levels deep. They are decoded when the call runs,
   * like the model's, and with `tools` before as well.
   */
  readonly arguments?: Message.ToolCall["arguments"]
  /**
   * The tools of the run that continues, beside those of `Policy.Defaults`. Other `arguments` that the tool of the call
   * cannot read are then refused as `invalid_arguments`, and the call keeps waiting. A tool that is not among them, and
   * that of a sub-agent's call, checks the arguments when the call runs. By default, nothing is checked before.
   */
  readonly tools?: ReadonlyArray<Declared.Any>
  /**
   * Has the approval remembered for later calls of the session: those with the arguments that the model asked with, not
   * together with other `arguments`, or all of the tool. Only as far as `remember` of the tool allows it, and for no
   * call of a sub-agent. For this call alone by default.
   */
  readonly remember?: Declared.Remember
}

/** The options of a verdict of any kind. */
const knownVerdict = {
  command: Values.name,
  by: Values.text,
  arguments: Values.objectLike,
  tools: Values.tools,
  remember: Values.oneOf("tool", "arguments")
} satisfies NamesOf<ApproveOptions>

/** Refuses to remember an approval where the tool does not allow it, or where it would cover what was not approved. */
const rememberable = (
  session: Session,
  id: string,
  { arguments: edits, remember: wanted }: ApproveOptions
): Effect.Effect<void, SessionData.SessionError> =>
  Effect.flatMap(find(session, id, "an approval of"), ({ remember }) => {
    if (wanted === undefined) return Effect.void
    if (remember === undefined) {
      return failed("invalid_answer", "remember: the tool of the call does not allow it", id)
    }
    if (remember.scope === "arguments" && wanted === "tool") {
      return failed("invalid_answer", `remember: the tool of the call allows "arguments" alone`, id)
    }
    return wanted === "arguments" && edits !== undefined
      ? failed("invalid_answer", "remember: a call with other arguments was not approved as the model asked for it", id)
      : Effect.void
  })

/** Returns the verdict that approves a call. */
const approvalOf = (id: string, options: ApproveOptions = {}): Decision => ({
  id,
  options,
  content: {
    approved: options.arguments ?? null,
    ...(options.remember === undefined ? {} : { remember: options.remember })
  },
  decide: (session, id) =>
    Effect.gen(function*() {
      yield* approvable(session, id, "an approval of")
      yield* rememberable(session, id, options)
      if (options.arguments === undefined) return { _tag: "Approved" }
      const edited = yield* writable(id, options.arguments)
      if (options.tools !== undefined) yield* decodable(yield* find(session, id), edited, options.tools)
      return { _tag: "Approved", arguments: edited }
    })
})

/** Approves a call, with its own arguments or with others. A call whose effect is unknown is tried again. */
export const approve = (session: Session, id: string, options?: ApproveOptions) =>
  settleAll(session, [approvalOf(id, options)])

/** Returns the verdict that denies a call. */
const denialOf = (id: string, reason: string | undefined, options: SettleOptions = {}): Decision => ({
  id,
  options,
  content: { denied: reason ?? null },
  decide: (session, id) =>
    Effect.as(approvable(session, id, "a denial of"), { _tag: "Denied", ...(reason === undefined ? {} : { reason }) })
})

/** Denies a call: it is answered as `denied`, and never runs. */
export const deny = (session: Session, id: string, reason?: string, options?: SettleOptions) =>
  settleAll(session, [denialOf(id, reason, options)])

/** Returns the verdict that a call is given up, of whatever kind: the model reads the reason. */
const withdrawalOf = (id: string, reason: string | undefined, options: SettleOptions): Decision => ({
  id,
  options,
  content: { denied: reason ?? null },
  decide: (session, id) =>
    Effect.as(find(session, id, "a withdrawal of"), { _tag: "Denied", ...(reason === undefined ? {} : { reason }) })
})

const decisionOf = ({ answer, id, ...options }: Verdict): Decision => {
  if (options.remember !== undefined && answer._tag !== "Approved") {
    const refused = (_: Session, id: string) =>
      Effect.fail(failed("invalid_answer", "remember: an approval alone is remembered", id))
    return { id, options, content: answer, decide: refused }
  }
  switch (answer._tag) {
    case "Value":
      return answerOf(id, answer.value, options)
    case "Approved":
      return approvalOf(id, { ...options, ...answer.arguments === undefined ? {} : { arguments: answer.arguments } })
    case "Denied":
      return withdrawalOf(id, answer.reason, options)
  }
}

const answerKinds = {
  _tag: Values.oneOf("Value", "Approved", "Denied"),
  value: Values.anything,
  arguments: Values.objectLike,
  reason: Values.text
}

const verdictKinds = {
  id: Values.text,
  answer: Values.described(Values.required(answerKinds, ["_tag"]), "an object with a _tag"),
  command: knownVerdict.command,
  by: knownVerdict.by,
  remember: knownVerdict.remember,
  tools: knownVerdict.tools
} satisfies NamesOf<Verdict>

const settleKinds = {
  verdicts: Values.listOf(
    Values.described(Values.required(verdictKinds, ["id", "answer"]), "an object with id and answer"),
    "verdicts"
  ),
  message: Values.described(
    Values.required({ content: Values.anything, ...StoredCommands.submissionKinds }, ["content"]),
    "an object with content"
  )
}

/** Gives several verdicts, and submits a message with them. */
export const settle = (
  session: Session,
  verdicts: ReadonlyArray<Verdict>,
  message?: Submission
): Effect.Effect<Session, SessionData.SessionError> =>
  Effect.gen(function*() {
    checkNames("Session.settle", { verdicts, message }, settleKinds)
    const decisions = verdicts.map(decisionOf)
    if (message === undefined) return yield* settleAll(session, decisions)
    const { content, id = globalThis.crypto.randomUUID(), ...options } = message
    if ((yield* Writers.CurrentWriter) === undefined) {
      return yield* Effect.die(
        new Error("Session.settle: only a kept session takes a message; call it in Session.keep")
      )
    }
    return yield* settleAll(
      session,
      decisions,
      StoredCommands.submission(id, content, options, yield* Clock.currentTimeMillis)
    )
  })

/** Settles every suspension whose time is over. */
export const expire = (session: Session): Effect.Effect<Session, SessionData.SessionError> =>
  Effect.gen(function*() {
    yield* usable(session)
    const now = yield* Clock.currentTimeMillis
    return yield* settleAll(
      session,
      session.suspensions.filter(({ expiresAt = Infinity }) => expiresAt <= now).map(({ id }) => ({
        id,
        options: {},
        content: undefined,
        decide: () => Effect.succeed({ _tag: "Expired" })
      }))
    )
  })
