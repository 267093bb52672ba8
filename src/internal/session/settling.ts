/**
 * Settles a session's suspensions: checks each verdict against the session, and records all verdicts or, if any is
 * refused, none at all. Settling changes data and runs nothing. Public as `Session`.
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
import { checkNames, describeMisfits, misfits, type NamesOf } from "../declare/schema.ts"
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

/** Start of an operation. */
export interface Base {
  readonly writer: Writers.Writer
  /** State the operation is checked against. */
  readonly state: States.State
  /** Records leading to that state, written with the operation's first record. */
  readonly before: ReadonlyArray<Records.Record>
}

// Start state of an operation.

export const behind = ({ before, state, writer }: Base, records: ReadonlyArray<Records.Record>): Base => ({
  writer,
  state: States.after(state, records),
  before: [...before, ...records]
})

/** Returns the program's session with the thread and context changes made by closing its run. */
const sinceClosed = (session: Session, known: Session, closed: Session): Session => {
  const updates = Object.entries(closed.context).filter(([name, value]) => !Json.isSame(value, known.context[name]))
  return { ...session, thread: closed.thread, context: { ...session.context, ...Object.fromEntries(updates) } }
}

/** Returns the records closing an interrupted run, whose account may belong to the session. */
export const closing = (
  { state, store }: Writers.Writer,
  leaving: States.Leaving
): Effect.Effect<ReadonlyArray<Records.Record>> =>
  store !== undefined && Accounts.isOfSession(States.stepsOf(state))
    ? Effect.map(Kept.insideOf(store, state), (inside) => States.closing(state, leaving, inside))
    : Effect.succeed(States.closing(state, leaving, []))

/** Returns an operation's base. `leaves` abandons an interrupted run first. */
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
    // A session changed by the program is written as a whole. If its run was interrupted, it gets the closed turn.
    const has = (other: Session) => Json.isSame(session.thread, other.thread)
    const before = has(given.session) ? given.session : state.run !== undefined && has(known) ? known : undefined
    const replaced = given.closed === undefined || before === undefined
      ? session
      : sinceClosed(session, before, given.closed)
    if (Json.isSame(replaced, States.sessionOf(closed.state))) return closed
    // The session keeps its journal's id.
    const own = known.id === undefined ? replaced : { ...replaced, id: known.id }
    return behind(closed, [States.openedBy(closed.state, own)])
  })

/** Appends an operation's records without starting a run. */
export const happened = ({ before, writer }: Base, records: ReadonlyArray<Records.Record>): Effect.Effect<Session> =>
  Effect.map(
    writer.append([...before, ...records] as unknown as Records.Records),
    () => States.sessionOf(writer.state)
  )

// Checks of the session status.

/** Calls settling a suspension, by kind. */
export const settlingOne: Record<Event.Suspension["kind"], string> = {
  question: "Session.answer",
  manual: "Session.answer",
  approval: "Session.approve or Session.deny",
  unknown: "Session.answer, Session.approve or Session.deny"
}

/** Names the waiting calls, at most ten. */
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

// Verdicts on suspensions. Each names a suspension by id; their order does not matter, and each counts once. A verdict
// is checked first, and an invalid verdict leaves the session unchanged.

/**
 * Verdict options.
 *
 * @category options
 */
export interface SettleOptions {
  /**
   * Command id. The same verdict under the same id counts once, even if it arrives twice, among the session's last
   * 1,000 commands. None by default.
   */
  readonly command?: string
  /** Sender of the verdict, recorded in the journal. Left out by default. */
  readonly by?: string
}

/** Returns a record's time as text, or "before" for an unknown time. */
const timeOf = (at: number | undefined): string =>
  Option.match(at === undefined ? Option.none() : DateTime.make(at), {
    onNone: () => "before",
    onSome: (time) => `at ${DateTime.formatIso(time)}`
  })

/** Returns the suspension with this id, unless expired. */
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

/** Reads a value as the answer to a suspension. Refuses a misfit. */
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
 * Returns the answer if it fits the question's schema. JSON text is also tried as JSON. From here on the answer is
 * plain JSON, so that a session is the same whether stored or not: a list of parts loses the `Tool.content` mark, a
 * date becomes text, and `undefined` becomes `null`.
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
 * A verdict on one suspension.
 *
 * @category models
 */
export interface Verdict extends Pick<ApproveOptions, "by" | "command" | "remember" | "tools"> {
  /** Suspension id. */
  readonly id: string
  /**
   * Verdict. `Value` answers a question, a manual call or a call with an unknown effect, like `Session.answer`;
   * `Approved` is `Session.approve`. `Denied` denies a call, or gives up a question or a manual call: the model reads
   * the reason.
   */
  readonly answer: Exclude<SessionData.Answer, SessionData.ExpiredAnswer>
}

/**
 * A message submitted with verdicts.
 *
 * @category models
 */
export interface Submission extends Pick<StoredCommands.SubmitOptions, "by" | "clientTools" | "id"> {
  /** Message content. */
  readonly content: Message.Content
}

/** A verdict with the check of its answer. */
interface Decision {
  readonly id: string
  readonly options: SettleOptions & Pick<ApproveOptions, "remember">
  /** Kind and content of the verdict: the same command with another content is refused. */
  readonly content: unknown
  /** Returns the checked answer in a session, by the suspension id there. */
  readonly decide: (session: Session, id: string) => Effect.Effect<SessionData.Answer, SessionData.SessionError>
}

/** Returns a suspension's id within its session: without the run where it began to wait, added by servers. */
const idOf = (name: string): string => {
  const { path } = CallPaths.parse(name) ?? {}
  return path === undefined ? name : CallPaths.format({ path })
}

/**
 * Returns `true` if an id names no run, or the run where the open suspensions began to wait: an answer to a call's
 * earlier wait does not answer the next wait.
 */
const isOfRun = (state: States.State, name: string): boolean => {
  const { run } = CallPaths.parse(name) ?? {}
  return run === undefined || run === (States.askerOf(state) ?? state.run?.requestId ?? state.ended?.requestId)
}

/**
 * Returns the refusal of a verdict after others in its list. Since none of these counts, the refusal is about the
 * session before these verdicts.
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
 * Settles suspensions and adds a message for the next run, in one append: everything or, if a verdict is refused,
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
      // The next verdict is about the session after this verdict.
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

/** Returns the verdict answering a question or giving a call's result. */
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

/** Answers a question, or gives the result of a manual call or of a call with an unknown effect. */
export const answer = (session: Session, id: string, value: unknown, options?: SettleOptions) =>
  settleAll(session, [answerOf(id, value, options)])

const approvable = (session: Session, id: string, given: string) =>
  Effect.flatMap(find(session, id, given), ({ kind }) =>
    kind === "approval" || kind === "unknown"
      ? Effect.void
      : Effect.fail(failed("invalid_answer", "the call waits for Session.answer, not for an approval", id)))

type Arguments = NonNullable<Message.ToolCall["arguments"]>

/**
 * Returns arguments as plain JSON, like a model's. Refuses arguments nested too deeply to be written and read again.
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

/** Longest time for decoding edited arguments. Slower decoders are left to the run. */
const checkedWithin = "10 seconds"

/**
 * Refuses edited arguments the call's tool cannot read, as the run would. A sub-agent's call has a tool unknown here,
 * so it is left to the run, and so is any failure not about the arguments, such as a decoder without its service.
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
    return yield* new SessionData.SessionError({
      reason: "invalid_arguments",
      detail: `${describeMisfits("arguments", issues)}; call ${JSON.stringify(id)} keeps waiting`,
      metadata: { toolCallId: id, issues }
    })
  })

/**
 * Approval options.
 *
 * @category options
 */
export interface ApproveOptions extends SettleOptions {
  /**
   * Arguments replacing the call's own, nested at most 256 levels deep. They are decoded when the call runs, like the
   * model's, and with `tools` also before.
   */
  readonly arguments?: Message.ToolCall["arguments"]
  /**
   * Tools of the continuing run, beside those in `Policy.Defaults`. New `arguments` the call's tool cannot read are
   * then refused as `invalid_arguments`, and the call keeps waiting. A tool not listed here, and the tool of a
   * sub-agent's call, checks the arguments when the call runs. By default, nothing is checked before.
   */
  readonly tools?: ReadonlyArray<Declared.Any>
  /**
   * Calls the approval is remembered for in this session: calls with the arguments originally requested by the model
   * (not together with other `arguments`), or all calls to the tool. Only as far as the tool's `remember` allows, and
   * never for a sub-agent's call. Defaults to this call alone.
   */
  readonly remember?: Declared.Remember
}

/** Options for any kind of verdict. */
const knownVerdict = {
  command: Values.name,
  by: Values.text,
  arguments: Values.objectLike,
  tools: Values.tools,
  remember: Values.oneOf("tool", "arguments")
} satisfies NamesOf<ApproveOptions>

/** Refuses to remember an approval if the tool does not allow that, or if it would cover unapproved calls. */
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

/** Returns the verdict approving a call. */
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

/** Approves a call, with its own or other arguments. A call with an unknown effect is retried. */
export const approve = (session: Session, id: string, options?: ApproveOptions) =>
  settleAll(session, [approvalOf(id, options)])

/** Returns the verdict denying a call. */
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

/** Returns the verdict giving up a call of any kind: the model reads the reason. */
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

/** Gives several verdicts, and submits a message in the same append. */
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

/** Settles every expired suspension. */
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
