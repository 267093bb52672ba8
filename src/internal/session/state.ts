/**
 * Journal state: the single fold of records, and questions about the state.
 *
 * A turn is a table of calls; waiting and interruption are call states. `apply` is the only fold of a journal, whether
 * read or being written by an operation. `change`, its part without fingerprint and size, folds an unrecorded session.
 * Both change the given state, so a call costs the same in long and short turns; `copyOf` makes a branch. Nothing else
 * duplicates this state.
 */
import type * as Event from "../../Event.ts"
import * as Message from "../../Message.ts"
import type * as Policy from "../../Policy.ts"
import * as Response from "../../Response.ts"
import type * as Thread from "../../Thread.ts"
import * as Answers from "../answer/answer.ts"
import * as CallPaths from "../answer/callPath.ts"
import * as Contents from "../answer/content.ts"
import * as OpenCalls from "../answer/openCalls.ts"
import * as Teller from "../answer/teller.ts"
import * as Fold from "../fold/fold.ts"
import * as Outcomes from "../fold/runOutcome.ts"
import * as SharedMessages from "../fold/sharedMessages.ts"
import * as Json from "../json.ts"
import * as Accounts from "../permits/account.ts"
import * as RunJournal from "../run/runJournal.ts"
import * as SessionData from "./data.ts"
import * as Records from "./records.ts"

type Session = SessionData.Session

type Answers_ = SessionData.NestedAnswers["answers"]

type Resume = Omit<SessionData.Resumable, "id">

// The table of calls.

/** Fields of a call in any state. */
interface Known {
  /** The call, with its handler's arguments. */
  readonly toolCall: Message.ToolCall
  /**
   * Idempotency key, from the turn that asked for the call. `undefined` if a program handed over the session as data.
   */
  readonly idempotencyKey: string | undefined
  /** Number of started attempts. */
  readonly attempt: number
  /** Tool version for the run that asked for the call. */
  readonly version?: string | undefined
  /** State left by the handler with its question, and the answer once available. */
  readonly resume?: Resume | undefined
}

/** A call requested by the model. Nothing has begun, or each attempt so far has failed with another one granted. */
interface Asked extends Known {
  readonly _tag: "Asked"
}

/** A call that waited and may run now. */
interface Granted extends Known {
  readonly _tag: "Granted"
  /** Answers for the nested run. */
  readonly answers: Answers_
}

/** A call that may have had its effect. */
interface Started extends Known {
  readonly _tag: "Started"
  readonly answers: Answers_
  /** Ids of calls that halted, asked or failed beside it: each may have stopped this call. */
  readonly beside?: ReadonlyArray<string>
}

/** A call waiting for outside answers. */
export interface Waiting extends Known {
  readonly _tag: "Waiting"
  /** The run where it began to wait. `undefined` if a program handed over the session as data. */
  readonly requestId: string | undefined
  /** Open suspensions. */
  readonly suspensions: ReadonlyArray<Event.Suspension>
  /** Answers for the nested run so far. */
  readonly answers: Answers_
  readonly contextUpdate?: Json.JsonObject | undefined
}

/** An answered call. The fields below `message` are kept until its run has ended. */
interface Answered extends Known {
  readonly _tag: "Answered"
  readonly message: Message.Message
  readonly failure?: "reported" | "crashed" | undefined
  readonly code?: Records.CallEnded["reason"] | undefined
  readonly halt?: Event.Halt | undefined
  readonly contextUpdate?: Json.JsonObject | undefined
  readonly originalLength?: number | undefined
}

/** A call of the turn. */
export type Call = Asked | Granted | Started | Waiting | Answered

/** The unfinished turn: some calls have no answer, or it is not recorded as whole. */
export interface Turn {
  /** `true` if an ended run asked for the turn. */
  readonly isEarlier: boolean
  /** `true` if its `StepCompleted` is recorded: the turn waits. */
  readonly isStepped?: boolean
  /** Reply. `undefined` outside the run that received the reply. */
  readonly response: Response.Response | undefined
  /** Reply message. `undefined` while calls start before the reply is complete. */
  readonly message: Message.Message | undefined
  /** Calls by id, in call order. */
  readonly calls: Map<string, Call>
  /** Messages after the answers: a question's text, and the user's words. */
  readonly behind: Array<Message.Message>
  /** Number of calls without an answer. */
  open: number
}

/** Values from before a run, for the fields it changes before one of its calls starts. */
interface Before {
  /** Conversation. */
  readonly thread: Thread.Thread
  /** The unfinished turn. */
  readonly turn: Turn | undefined
  /** Session status. */
  readonly status: Session["status"]
  /** Suspensions settled since the last run. */
  readonly answered: Session["answered"]
}

/** Outcome of a call in a run. */
type Came = "asked" | keyof StopReport

/** Rule notes, by rule name. */
type Notes = Readonly<Record<string, unknown>>

const noNotes: Notes = {}

/** A run without a recorded end. */
export interface Run {
  /** Id of the run. */
  readonly requestId: string
  /** `Session` operation that started the run. */
  readonly operation: Records.RunStarted["operation"]
  /** Time of the first start, in milliseconds since 1970. */
  readonly startedAt: number
  /** Time of the last start or resumption, in milliseconds since 1970. */
  begunAt: number
  /** Time of the last record, in milliseconds since `begunAt`. */
  at: number
  /** Deadline, in milliseconds since 1970. */
  readonly deadlineAt: number | undefined
  /** Whole steps, in order. */
  readonly steps: Array<WholeStep>
  /** Rule notes on the current step, by rule name. */
  noted: Notes
  /** Number of messages added by rules before its requests. */
  introduced: number
  /** Number of the current step's last recorded request, from 1; 0 if nothing is recorded. */
  attempt: number
  /** Usage of its discarded replies. */
  spent: Response.Usage | null
  /** Usage of nested runs ended since the last whole step. */
  nestedUsage: Response.Usage | null
  /** Cost of its calls' requests without a journal. */
  nestedSpent: Accounts.Amount
  /** Context updates by handlers in whole turns. */
  context: Json.JsonObject | undefined
  /** Number of times another process resumed the run. */
  resumptions: number
  /** Process that last started or resumed the run. */
  processName: string | undefined
  /** Command taken by the run, with its message if submitted. */
  readonly taken: {
    /** Command id. */
    readonly id: string
    /** Message. `undefined` if not submitted. */
    readonly message: Records.MessageSubmitted | undefined
  } | undefined
  /** Versions of versioned tools, by tool name. */
  readonly versions: NonNullable<Records.RunStarted["versions"]>
  /** `true` once one of its calls has started. */
  hasStarted: boolean
  /** Values restored if the run fails before a call has started or a step is whole. */
  readonly before: Before
  /** Verdicts that arrived during the run. They count at its end. */
  readonly settlements: Array<Records.CallSettled>
  /** Requests to stop one of its calls, in order. */
  callStops: ReadonlyArray<Records.StopRequested>
  /** Call outcomes, by id. */
  readonly came: Map<string, Came>
  /** Halts by an earlier turn's calls, with their call positions, in order of arrival. */
  halts: ReadonlyArray<{
    /** Call id. */
    readonly id: string
    /** Call position, from 0. */
    readonly place: number
    /** Halt. */
    readonly halt: Event.Halt
  }>
}

/** A submitted message for a run inside a call, until settled. */
interface Inner {
  /** Message, with the call path. */
  readonly message: Records.MessageSubmitted
  /** Journal of the receiving run. `undefined` until passed on. */
  readonly session: string | undefined
}

/** An ended run. */
interface Ended {
  /** Id of the run. */
  readonly requestId: string
  /** Call outcomes. */
  readonly report: StopReport
  /** Whole steps of a nested run. */
  readonly steps: ReadonlyArray<WholeStep>
  /** Result of a nested run. */
  readonly result: Event.WireResult | undefined
}

/** Journal state. Its fields are internal. */
export interface State {
  /** Session id. `undefined` if a program made the session without an id. */
  readonly id: string | undefined
  /** Session context. */
  context: Session["context"]
  /** Session metadata. */
  metadata: Session["metadata"]
  /** Status while nothing waits. */
  status: Session["status"]
  /** Conversation before the unfinished turn. */
  thread: Thread.Thread
  /** The unfinished turn. */
  turn: Turn | undefined
  /** Suspensions settled since the last run. */
  answered: Session["answered"]
  /** Remembered approvals, oldest first. */
  allowed: ReadonlyArray<SessionData.Allowed>
  /** The run without a recorded end. */
  run: Run | undefined
  /** The last ended run. */
  ended: Ended | undefined
  /** Rule notes kept for the session, by rule name. */
  kept: Notes
  /** Outcome of the last ended run. A later run does not change it before its own end. */
  lastRun: Records.LastRun | undefined
  /** Parent of a nested run. */
  parent: Records.Parent | undefined
  /** The last run's span. `undefined` if not traced. */
  span: Records.RunStarted["span"] | undefined
  /** Session origin. */
  origin: Records.Origin
  /** Labels a person has given the session. */
  labels: Records.Labels
  /** Client tools served by the last run. */
  clientTools: Records.ClientTools
  /** Submitted messages no run has taken, oldest first. */
  inbox: ReadonlyArray<Records.MessageSubmitted>
  /** Submitted messages for runs inside calls, oldest first. */
  inside: ReadonlyArray<Inner>
  /** Request to stop the run. */
  stop: Records.StopRequested | undefined
  /** Number of consecutive run failures since the last whole step. */
  failures: number
  /** Receipts of the last commands, by id. */
  readonly receipts: Map<string, Records.Receipt>
  /** Fingerprint of the records. */
  fingerprint: string
  /** Size of the records since the last `Opened`. */
  size: Size
}

/** Session size. */
interface Size {
  /** Bytes of the records as JSON. */
  readonly bytes: number
  /** Turns of the model. */
  readonly turns: number
}

/**
 * A whole step of an interrupted run.
 *
 * @category models
 */
export interface WholeStep {
  /** Step result. */
  readonly result: Event.StepResult
  /** Nested usage up to this step. Left out if zero. */
  readonly nestedUsage?: Response.Usage
  /** Rule notes on the step, by rule name. */
  readonly notes: Readonly<Record<string, unknown>>
}

/**
 * Call outcomes of a stopped run, by call id.
 *
 * @category models
 */
export interface StopReport {
  /** Calls ended by the stop, before or while their handlers ran. */
  readonly stopped: ReadonlyArray<string>
  /** Calls that had ended by themselves. */
  readonly ended: ReadonlyArray<string>
  /** Calls whose handlers refused to stop and were abandoned. They may still have an effect. */
  readonly refused: ReadonlyArray<string>
  /** Calls already started when their process died. Their effect is unknown. */
  readonly unknown: ReadonlyArray<string>
}

// Conversion between states and data.

const copyTurn = (turn: Turn): Turn => ({ ...turn, calls: new Map(turn.calls), behind: turn.behind.slice() })

/** Returns a branch: changes to either do not show in the other. */
export const copyOf = (state: State): State => ({
  ...state,
  turn: state.turn && copyTurn(state.turn),
  run: state.run && {
    ...state.run,
    steps: state.run.steps.slice(),
    settlements: state.run.settlements.slice(),
    came: new Map(state.run.came)
  },
  receipts: new Map(state.receipts)
})

/** Returns the fields of a call whose handler is restarted. */
const resumedOf = (resumable: SessionData.Resumable): Omit<Known, "toolCall"> => {
  const { id: _, ...resume } = resumable
  return { idempotencyKey: resume.idempotencyKey, attempt: resume.attempt, resume }
}

/** Returns the version for a name or an id. */
const versioned = (versions: Readonly<Record<string, string>>, key: string): Pick<Known, "version"> =>
  Object.hasOwn(versions, key) ? { version: versions[key] } : {}

/** Returns a call of a session handed over as data by a program. */
const callOf = (
  toolCall: Message.ToolCall,
  session: Session,
  suspensions: ReadonlyArray<Event.Suspension>,
  approved: Message.ToolCall | undefined,
  message: Message.Message | undefined
): Call | undefined => {
  const answers = session.nested?.find(({ id }) => id === toolCall.id)?.answers ?? []
  const { resumable = [], versions = {} } = session
  const resumed = resumable.find(({ id }) => id === toolCall.id)
  const known = {
    toolCall,
    ...(resumed === undefined ? { idempotencyKey: undefined, attempt: 0 } : resumedOf(resumed)),
    ...versioned(versions, toolCall.id)
  }
  if (suspensions.length > 0) return { _tag: "Waiting", ...known, requestId: undefined, suspensions, answers }
  if (approved !== undefined) {
    return { _tag: "Granted", ...known, toolCall: approved, answers }
  }
  return message && { _tag: "Answered", ...known, message }
}

/** Finds a session's open turn: the latest turn with one of the open calls. */
const turnOf = (session: Session): Pick<State, "thread" | "turn"> => {
  const { approved, suspensions, thread } = session
  const waiting = new Map<string, Array<Event.Suspension>>()
  for (const suspension of suspensions) {
    const id = OpenCalls.outerOf(suspension)
    waiting.set(id, [...waiting.get(id) ?? [], suspension])
  }
  const granted = new Map(approved.map((call) => [call.id, call]))
  const open = [...waiting.keys(), ...granted.keys()]
  if (open.length === 0) return { thread, turn: undefined }
  const position = SharedMessages.findLastIndex(
    thread,
    ({ role, toolCalls }) => role === "assistant" && toolCalls?.some(({ id }) => id === open[0]) === true
  )
  const [message, ...rest] = position < 0 ? [] : SharedMessages.since(thread, position)
  const end = rest.findIndex(({ role }) => role !== "tool")
  const answers = new Map((end < 0 ? rest : rest.slice(0, end)).map((answer) => [answer.toolCallId, answer]))
  const calls = new Map<string, Call>()
  const toolCalls = new Map(message?.toolCalls?.map((call) => [call.id, call]))
  for (const [id, [suspension]] of waiting) {
    // A suspension's call is as made by the model. A nested suspension's call belongs to the nested run.
    const known = toolCalls.get(id)
    if (suspension?.path === undefined && suspension !== undefined) toolCalls.set(id, suspension.toolCall)
    else if (known === undefined) toolCalls.set(id, Message.toolCall(id, id))
  }
  for (const call of approved) toolCalls.set(call.id, toolCalls.get(call.id) ?? call)
  for (const [id, toolCall] of toolCalls) {
    const call = callOf(toolCall, session, waiting.get(id) ?? [], granted.get(id), answers.get(id))
    if (call !== undefined) calls.set(id, call)
  }
  return {
    thread: position < 0 ? thread : SharedMessages.replacedFrom(thread, position, []),
    turn: {
      isEarlier: true,
      response: undefined,
      message,
      calls,
      behind: end < 0 ? [] : rest.slice(end),
      open: open.length
    }
  }
}

/** Returns the state of a session without an open run. */
export const stateOf = (session: Session): State => {
  const isWaiting = session.status === "awaiting_user" || session.status === "awaiting_tools"
  return {
    id: session.id,
    context: session.context,
    metadata: session.metadata,
    status: isWaiting ? "idle" : session.status,
    ...turnOf(session),
    answered: session.answered,
    allowed: session.allowed ?? [],
    run: undefined,
    ended: undefined,
    lastRun: undefined,
    parent: undefined,
    span: undefined,
    origin: {},
    kept: noNotes,
    labels: {},
    clientTools: [],
    inbox: [],
    inside: [],
    stop: undefined,
    failures: 0,
    receipts: new Map(),
    fingerprint: "",
    size: { bytes: 0, turns: 0 }
  }
}

/** Returns a test for questions whose answer is also the call's answer. */
export const isOwnQuestion = (call: Waiting) => ({ kind, path }: Event.Suspension): boolean =>
  kind === "question" && path === undefined && !isToResume(call.resume)

/**
 * Returns `true` if a handler's state waits for the answer to its question. A state with an answer belongs to the
 * attempt that got the answer.
 */
export const isToResume = (resume: Resume | undefined): resume is Resume =>
  resume !== undefined && !("answer" in resume)

/** Returns a call's message in the thread, if any. An open question's message takes the place of the answer. */
const messageIn = (id: string, call: Call): Message.Message | undefined => {
  if (call._tag === "Answered") return call.message
  return call._tag === "Waiting" && call.suspensions.some(isOwnQuestion(call)) ? OpenCalls.unanswered(id) : undefined
}

/** Returns the messages answering a turn's calls, in call order. */
const answersIn = ({ calls }: Turn): ReadonlyArray<Message.Message> =>
  Array.from(calls, ([id, call]) => messageIn(id, call)).filter((message) => message !== undefined)

/** Returns a turn's messages. */
export const messagesIn = (turn: Turn): ReadonlyArray<Message.Message> => [
  ...turn.message === undefined ? [] : [turn.message],
  ...answersIn(turn),
  ...turn.behind
]

/**
 * Returns the conversation with the unfinished turn. It is a branch: the state's conversation grows without that turn.
 */
export const threadOf = ({ thread, turn }: Pick<State, "thread" | "turn">): Thread.Thread =>
  turn === undefined ? thread : SharedMessages.replacedFrom(thread, SharedMessages.length(thread), messagesIn(turn))

const callsOf = ({ turn }: Pick<State, "turn">): ReadonlyArray<Call> =>
  turn === undefined ? [] : Array.from(turn.calls.values())

/** Returns the open suspensions, in call order. */
export const suspensionsOf = (state: Pick<State, "turn">): ReadonlyArray<Event.Suspension> =>
  callsOf(state).flatMap((call) => call._tag === "Waiting" ? call.suspensions : [])

/** Returns the run where the open suspensions began to wait: a single run, since no run starts while a call waits. */
export const askerOf = (state: State): string | undefined => {
  const call = callsOf(state).find(({ _tag }) => _tag === "Waiting")
  return call?._tag === "Waiting" ? call.requestId : undefined
}

/** Returns the calls that may run now, in call order. */
export const approvedIn = (state: State): ReadonlyArray<Message.ToolCall> =>
  callsOf(state).flatMap((call) => call._tag === "Granted" ? [call.toolCall] : [])

/** Returns the session of a state without an open run, as seen by programs. */
const sessionAtRest = (state: State): Session => {
  const suspensions = suspensionsOf(state)
  const question = suspensions.find(({ kind }) => kind === "question")
  const calls = suspensions.filter(({ kind }) => kind !== "question")
  const open = callsOf(state).filter(({ _tag }) => _tag !== "Answered")
  const nested = open.flatMap((call) =>
    (call._tag === "Waiting" || call._tag === "Granted") && call.answers.length > 0
      ? [{ id: call.toolCall.id, answers: call.answers }]
      : []
  )
  const resumable = open.flatMap(({ resume, toolCall: { id } }) => resume === undefined ? [] : [{ id, ...resume }])
  const versions = open.flatMap(({ toolCall: { id }, version }) => version === undefined ? [] : [[id, version]])
  return {
    ...(state.id === undefined ? {} : { id: state.id }),
    thread: SharedMessages.plain(threadOf(state)),
    status: question !== undefined ? "awaiting_user" : calls.length > 0 ? "awaiting_tools" : state.status,
    suspensions,
    approved: approvedIn(state),
    answered: state.answered,
    ...(nested.length === 0 ? {} : { nested }),
    ...(resumable.length === 0 ? {} : { resumable }),
    ...(versions.length === 0 ? {} : { versions: Object.fromEntries(versions) }),
    ...(state.allowed.length === 0 ? {} : { allowed: state.allowed }),
    pendingToolCalls: calls.map(({ toolCall }) => toolCall),
    ...(question === undefined ? {} : { pendingQuestion: question.question ?? "", pendingToolCallId: question.id }),
    context: state.context,
    metadata: state.metadata
  }
}

/** Sessions by state, until the state changes. */
const sessions = new WeakMap<State, Session>()

/**
 * Returns the session as seen by programs, the same object until the state changes. For an open run it contains the
 * whole steps and, if a call of its turn waits, that turn without its unended calls.
 */
export const sessionOf = (state: State): Session => {
  const session = sessions.get(state) ?? sessionNow(state)
  sessions.set(state, session)
  return session
}

/**
 * Returns the open turn with its answered and waiting calls, if any call waits. Nothing is known about its other calls
 * yet.
 */
const knownOf = (turn: Turn): Turn | undefined => {
  const { calls, message } = turn
  const known = new Map(Array.from(calls).filter(([, { _tag }]) => _tag === "Answered" || _tag === "Waiting"))
  const open = Array.from(known.values()).filter(({ _tag }) => _tag === "Waiting").length
  if (message === undefined || open === 0) return undefined
  const toolCalls = message.toolCalls?.filter(({ id }) => known.has(id) || !calls.has(id)) ?? []
  return { ...turn, message: { ...message, toolCalls }, calls: known, open }
}

const sessionNow = (state: State): Session => {
  if (state.run === undefined) return sessionAtRest(state)
  const rested = copyOf(state)
  const { turn } = rested
  if (turn?.isEarlier === false) rested.turn = knownOf(turn)
  // Messages starting the run follow the approved calls' answers. Until these exist, the session lacks the messages.
  const isOpen = callsOf(rested).some(({ _tag }) => _tag === "Granted" || _tag === "Waiting")
  if (turn?.isEarlier === true && isOpen) {
    turn.behind.length = state.run.before.turn?.behind.length ?? turn.behind.length
  }
  endRun(rested, state.run, "idle")
  return sessionAtRest(rested)
}

// The fold.

const setCall = (turn: Turn, id: string, call: Call): void => {
  const before = turn.calls.get(id)
  const wasOpen = before !== undefined && before._tag !== "Answered"
  turn.open += Number(call._tag !== "Answered") - Number(wasOpen)
  turn.calls.set(id, call)
}

const known = ({ attempt, idempotencyKey, resume, toolCall, version }: Known): Known => ({
  attempt,
  idempotencyKey,
  toolCall,
  ...(version === undefined ? {} : { version }),
  ...(resume === undefined ? {} : { resume })
})

const answered = ({ attempt, idempotencyKey, toolCall }: Call, message: Message.Message): Answered => ({
  _tag: "Answered",
  attempt,
  idempotencyKey,
  toolCall,
  message
})

/** Adds messages to the conversation: after the unfinished turn, if any. */
const say = (state: State, messages: ReadonlyArray<Message.Message>): void => {
  if (state.turn === undefined) state.thread = SharedMessages.appendedShared(state.thread, messages)
  else state.turn.behind.push(...messages)
}

/** Returns the context updates by a turn's calls in its run, in call order. */
const updateIn = (turn: Turn | undefined): Json.JsonObject | undefined =>
  turn && Fold.mergeUpdates(
    Array.from(
      turn.calls.values(),
      (call) => call._tag === "Answered" || call._tag === "Waiting" ? call.contextUpdate : undefined
    )
  )

const gather = (state: State, turn: Turn): void => {
  if (state.run !== undefined) state.run.context = Fold.mergeUpdates([state.run.context, updateIn(turn)])
}

/** Moves a turn to the conversation. */
const complete = (state: State, turn: Turn): void => {
  state.turn = undefined
  say(state, messagesIn(turn))
}

/** Moves an earlier run's turn to the conversation once whole. The current run's turn waits for its `StepCompleted`. */
const completeEarlier = (state: State): void => {
  const { turn } = state
  if (turn === undefined || !turn.isEarlier || turn.open > 0) return
  gather(state, turn)
  complete(state, turn)
}

/** Answers an earlier turn's open questions with the messages following the turn. */
const answerBehind = (state: State): void => {
  const { turn } = state
  if (turn?.isEarlier !== true) return
  for (const [id, call] of turn.calls) {
    if (call._tag === "Waiting" && call.suspensions.every(isOwnQuestion(call))) {
      setCall(turn, id, answered(call, OpenCalls.unanswered(id)))
    }
  }
  completeEarlier(state)
}

const mostReceipts = 1_000

/** Keeps a receipt. Among receipts before the last 1,000 changed, only those without an outcome stay. */
const receive = (state: State, receipt: Records.Receipt): void => {
  state.receipts.delete(receipt.id)
  state.receipts.set(receipt.id, receipt)
  let earlier = state.receipts.size - mostReceipts
  if (earlier <= 0) return
  for (const { became, id } of state.receipts.values()) {
    const isOpen = became === "queued" || became === "taken"
    if (!isOpen) state.receipts.delete(id)
    if (!isOpen || --earlier === 0) return
  }
}

/** Resolves an unsettled submitted message: no run takes the message any more. */
const resolve = (state: State, id: string, fate: Omit<Records.Receipt, "hash" | "id">): void => {
  const receipt = state.receipts.get(id)
  if (receipt === undefined || !isUnsettled(state, id)) return
  state.inbox = state.inbox.filter((message) => message.id !== id)
  state.inside = state.inside.filter(({ message }) => message.id !== id)
  receive(state, { ...receipt, ...fate })
}

/**
 * Returns `true` if a submitted message is open: no run or other journal has taken the message, and it was not
 * withdrawn.
 */
export const isOpenMessage = (state: State, id: string): boolean =>
  isUnsettled(state, id) && passedOn(state, id) === undefined

/** Returns `true` if a submitted message has no outcome. */
export const isUnsettled = ({ inbox, inside }: State, id: string): boolean =>
  inbox.some((message) => message.id === id) || inside.some(({ message }) => message.id === id)

/** Returns a submitted message passed on to another journal, without an outcome here. */
export const passedOn = (
  { inside }: State,
  id: string
): { readonly message: Records.MessageSubmitted; readonly session: string } | undefined => {
  const { message, session } = inside.find(({ message }) => message.id === id) ?? {}
  return message === undefined || session === undefined ? undefined : { message, session }
}

/** Outcome of a message whose call has no active run. */
export const unreachable = { became: "refused", reason: "finished" } as const

/** Refuses messages for runs inside answered calls, unless passed on. Once the run has ended, refuses all. */
const refuseLost = (state: State): void => {
  for (const { message: { id, to }, session } of state.inside) {
    const isLost = session === undefined && !isOpenCall(state.turn, CallPaths.parse(to)?.path[0])
    if (isLost || state.run === undefined) resolve(state, id, unreachable)
  }
}

/** Refuses the open messages no later run takes. */
const refuseOpen = (state: State, reason: string): void => {
  for (const { id, otherwise } of state.inbox) {
    if (otherwise === "refuse") resolve(state, id, { became: "refused", reason })
  }
}

/** Returns the call and the suspension with this id. */
const findWaiting = (
  { turn }: State,
  id: string
): { readonly call: Waiting; readonly suspension: Event.Suspension } | undefined => {
  if (turn === undefined) return undefined
  const own = turn.calls.get(CallPaths.parse(id)?.path[0] ?? id)
  for (const call of own?._tag === "Waiting" ? [own, ...turn.calls.values()] : turn.calls.values()) {
    const suspension = call._tag === "Waiting" ? call.suspensions.find((other) => other.id === id) : undefined
    if (call._tag === "Waiting" && suspension !== undefined) return { call, suspension }
  }
  return undefined
}

// The model reads this text, which stored threads contain.
const late = "nobody answered within the time there was"

/** Returns the call with other arguments, and without the model's argument text. */
const edited = (toolCall: Message.ToolCall, args: Message.ToolCall["arguments"] | undefined): Message.ToolCall => {
  if (args === undefined) return toolCall
  const { rawArguments: _, ...call } = toolCall
  return { ...call, arguments: args }
}

/**
 * Returns the call after its own suspension was settled. A question whose text ends the thread is answered by a message
 * after that text.
 */
const settledOwn = (turn: Turn, call: Waiting, suspension: Event.Suspension, answer: SessionData.Answer): Call => {
  const { defaultAnswer, kind, resultCut = "headAndTail", resultLimit = 0 } = suspension
  const { resume, toolCall: { id } } = call
  const isResumed = kind === "question" && isToResume(resume)
  const denied = (reason: string) => answered(call, Answers.refused("denied", call.toolCall, reason))
  const given = (value: unknown): Call => {
    if (isResumed) return { ...known(call), _tag: "Granted", resume: { ...resume, answer: value }, answers: [] }
    const message = Message.answer(id, value)
    const { content } = Contents.cutResult(message.content, resultLimit, { resultLimit, resultCut })
    const last = turn.behind.at(-1)
    if (kind !== "question" || last?.askUser !== true || last.toolCallId !== id) {
      return answered(call, { ...message, content })
    }
    turn.behind.push({ role: "user", content, metadata: message.metadata })
    return answered(call, OpenCalls.unanswered(id))
  }
  switch (answer._tag) {
    case "Value":
      return given(answer.value)
    case "Approved": {
      const toolCall = edited(call.toolCall, answer.arguments)
      return { ...known(call), _tag: "Granted", toolCall, answers: [] }
    }
    case "Denied":
      return denied(answer.reason ?? "the call was not approved")
    case "Expired":
      if (defaultAnswer === undefined && isResumed) return denied(late)
      return defaultAnswer !== undefined || kind === "question" ? given(defaultAnswer ?? late) : denied(late)
  }
}

// Remembered approvals.

const mostAllowed = 100

/** Remembers an approval. For the same calls the latest approval counts. */
const allow = (state: State, allowed: SessionData.Allowed): void => {
  const isOther = (other: SessionData.Allowed) =>
    other.name !== allowed.name || other.tool !== allowed.tool || other.remember !== allowed.remember ||
    !Json.isSame(other.arguments, allowed.arguments)
  state.allowed = [...state.allowed.filter(isOther), allowed].slice(-mostAllowed)
}

/** Returns `true` if an approval for a tool is remembered now, or will be at the end of the run. */
export const isAllowing = (state: State, name: string): boolean =>
  state.allowed.some((allowed) => allowed.name === name) ||
  state.run?.settlements.some(({ id, remember }) =>
      remember !== undefined && findWaiting(state, id)?.suspension.toolCall.name === name
    ) === true

/** Forgets a tool's approvals, including those counting at the end of the run. */
const disallow = (state: State, { name }: Records.ToolDisallowed): void => {
  state.allowed = state.allowed.filter((allowed) => allowed.name !== name)
  const { settlements = [] } = state.run ?? {}
  settlements.forEach((settlement, index) => {
    const { remember: _, ...settled } = settlement
    if (findWaiting(state, settled.id)?.suspension.toolCall.name === name) settlements[index] = settled
  })
}

/** Returns the remembered approval covering a call. */
export const allowedIn = (
  { allowed }: Pick<State, "allowed">,
  { arguments: args, name }: Pick<Message.ToolCall, "arguments" | "name">,
  tool: string
): SessionData.Allowed | undefined => {
  const own = allowed.filter((each) => each.name === name && each.tool === tool)
  if (own.length === 0) return undefined
  const asked = Json.canonical(args ?? {})
  return own.findLast(({ arguments: known, remember }) => remember === "tool" || Json.canonical(known) === asked)
}

/** Settles a suspension. An id without an open suspension changes nothing: an answer counts once. */
const settle = (
  state: State,
  verdict: Pick<Records.CallSettled, "answer" | "by" | "id" | "remember" | "time">
): void => {
  const { answer, by, id, remember, time } = verdict
  const { turn } = state
  const found = findWaiting(state, id)
  if (turn === undefined || found === undefined) return
  const { call, suspension } = found
  const { toolCall } = call
  if (suspension.path === undefined) setCall(turn, toolCall.id, settledOwn(turn, call, suspension, answer))
  else {
    const suspensions = call.suspensions.filter((other) => other !== suspension)
    const answers = [...call.answers, {
      id: OpenCalls.innerOf(suspension),
      answer,
      ...(by === undefined ? {} : { by })
    }]
    setCall(
      turn,
      toolCall.id,
      suspensions.length > 0
        ? { ...call, suspensions, answers }
        : { ...known(call), _tag: "Granted", answers }
    )
  }
  if (remember !== undefined && suspension.remember !== undefined && answer._tag === "Approved") {
    allow(state, {
      name: suspension.toolCall.name,
      tool: suspension.remember.tool,
      remember,
      ...(remember === "arguments" ? { arguments: suspension.toolCall.arguments ?? {} } : {}),
      id,
      ...(by === undefined ? {} : { by }),
      ...(time === undefined ? {} : { time })
    })
  }
  const settled = { id, ...Teller.verdictOf(answer, time), ...Teller.denialOf(verdict) }
  state.answered = [...state.answered, settled]
  state.status = "idle"
  completeEarlier(state)
}

/** Describes a call that will not run any more. */
const notRun = (call: Call | undefined): string => {
  if (call?._tag === "Waiting") return "withdrawn"
  return call !== undefined && call.attempt > 0 ? "not tried again" : "not run"
}

/** Returns the answer for a call that will not run again: its effect may be unknown. */
const withdrawn = (call: Call, detail: string): Message.Message => {
  const { toolCall } = call
  if (!isInDoubt(call)) return Answers.refused("cancelled", toolCall, `${notRun(call)}: ${detail}`)
  return Answers.ofError(toolCall, RunJournal.unknownEffect(toolCall).error)
}

/**
 * Answers the unanswered calls after their run failed or was interrupted. Suspended and approved calls are unchanged.
 */
const closeTurn = (turn: Turn, detail: string): void => {
  for (const [id, call] of turn.calls) {
    if (call._tag === "Started" || call._tag === "Asked") setCall(turn, id, answered(call, withdrawn(call, detail)))
  }
}

/**
 * Closes a failed or interrupted run: its whole steps are kept, its unfinished turn is dropped, and an earlier turn's
 * started calls are cancelled.
 */
export const leave = (state: State, detail: string): void => {
  sessions.delete(state)
  const { turn } = state
  if (turn === undefined) return
  if (!turn.isEarlier && turn.isStepped !== true) {
    state.turn = undefined
    return
  }
  for (const [id, call] of turn.calls) {
    if (call._tag !== "Started") continue
    setCall(turn, id, answered(call, Answers.refused("cancelled", call.toolCall, detail)))
  }
}

/** Ends the run: its turn becomes an earlier turn, and its context and the verdicts that arrived meanwhile count. */
const endRun = (state: State, run: Run, status: Session["status"]): void => {
  const { turn } = state
  if (turn !== undefined) {
    closeTurn(turn, "the run was interrupted and not resumed")
    gather(state, turn)
    const calls = new Map<string, Call>()
    for (const [id, call] of turn.calls) calls.set(id, resting(call))
    const { behind, isEarlier, message, open } = state.turn ?? turn
    // An incomplete reply is dropped.
    const isWhole = message !== undefined || isEarlier
    state.turn = isWhole ? { isEarlier: true, response: undefined, message, calls, behind, open } : undefined
  }
  const context = state.run?.context
  if (context !== undefined) state.context = { ...state.context, ...context }
  state.status = status
  state.run = undefined
  state.stop = undefined
  completeEarlier(state)
  for (const verdict of run.settlements) settle(state, verdict)
}

/** Returns a call of an ended run. */
const resting = (call: Call): Call => {
  switch (call._tag) {
    case "Answered":
      return answered(call, call.message)
    case "Waiting":
      return {
        ...known(call),
        _tag: "Waiting",
        requestId: call.requestId,
        suspensions: call.suspensions,
        answers: call.answers
      }
    default:
      return call
  }
}

const originOf = ({ agent, forkedFrom, metadata, principal }: Records.Origin): Records.Origin => ({
  ...(principal === undefined ? {} : { principal }),
  ...(agent === undefined ? {} : { agent }),
  ...(metadata === undefined ? {} : { metadata }),
  ...(forkedFrom === undefined ? {} : { forkedFrom })
})

/** Returns the labels after a change. */
const labelsAfter = (
  { pinned: wasPinned, title: before }: Records.Labels,
  { pinned = wasPinned, title = before }: Pick<Records.Labelled, "pinned" | "title">
): Records.Labels => ({
  ...(title === undefined || title === null ? {} : { title }),
  ...(pinned === true ? { pinned } : {})
})

/** Returns `true` if a label change has any effect. */
export const changesLabels = ({ labels }: State, change: Pick<Records.Labelled, "pinned" | "title">): boolean =>
  !Json.isSame(labelsAfter(labels, change), labels)

const opened = (state: State, record: Records.Opened): void => {
  const { calls = {}, clientTools = [], kept = noNotes, labels = {}, lastRun, receipts, session } = record
  const { fingerprint, inbox, receipts: known, size } = state
  const metadata = Json.withError(session.metadata, "error")
  Object.assign(state, stateOf(session), {
    metadata,
    inbox,
    clientTools,
    fingerprint,
    size,
    kept,
    labels,
    lastRun,
    origin: originOf(record)
  })
  for (const receipt of receipts ?? known.values()) state.receipts.set(receipt.id, receipt)
  for (const [id, call] of state.turn?.calls ?? []) {
    if (Object.hasOwn(calls, id)) state.turn?.calls.set(id, { ...call, ...calls[id] })
  }
}

const runStarted = (state: State, record: Records.RunStarted): void => {
  const { answered, clientTools, deadlineAt, messages, operation, parent, processName, requestId, startedAt, takes } =
    record
  const { versions = {} } = record
  if (record.resumes === true && state.run?.requestId === requestId) {
    state.span = record.span
    // All owners in one process count as one owner: a busy process may lose its claim, and then resumes its own run.
    if (processName === undefined || processName !== state.run.processName) state.run.resumptions++
    state.run.processName = processName
    state.run.begunAt = startedAt
    state.run.at = 0
    // Calls started before their incomplete reply do not belong to the reply requested again.
    if (state.turn?.isEarlier === false && state.turn.message === undefined) state.turn = undefined
    return
  }
  if (state.run !== undefined) endRun(state, state.run, "idle")
  state.clientTools = clientTools ?? []
  const { status, thread, turn } = state
  const before: Before = { thread, turn: turn && copyTurn(turn), status, answered: state.answered }
  if (answered !== undefined) settle(state, { time: startedAt, ...answered })
  if (messages.length > 0) {
    say(state, messages)
    answerBehind(state)
  }
  const message = state.inbox.find(({ id }) => id === takes?.id)
  if (message !== undefined) state.inbox = state.inbox.filter((other) => other !== message)
  if (takes !== undefined) receive(state, { ...takes, became: "taken", requestId })
  state.parent = parent
  state.span = record.span
  state.ended = undefined
  state.run = {
    requestId,
    operation,
    startedAt,
    begunAt: startedAt,
    at: 0,
    deadlineAt,
    steps: [],
    noted: noNotes,
    introduced: 0,
    attempt: 0,
    spent: null,
    nestedUsage: null,
    nestedSpent: Accounts.nothing,
    context: undefined,
    resumptions: 0,
    processName,
    taken: takes && { id: takes.id, message },
    versions,
    hasStarted: false,
    before,
    settlements: [],
    callStops: [],
    came: new Map(),
    halts: []
  }
}

/** Returns a reply's message in the thread. */
export const messageOf = (response: Response.Response): Message.Message =>
  Outcomes.assistantMessage(response, Response.actionableCalls(response), response.message?.reasoning)

const newTurn = (response: Response.Response | undefined): Turn => ({
  isEarlier: false,
  response,
  message: response && messageOf(response),
  calls: new Map(),
  behind: [],
  open: 0
})

/** Adds a reply. Calls started before its completion become its calls. */
const replyReceived = (state: State, run: Run, { requestId, response, stepIndex }: Records.ReplyReceived): void => {
  answerBehind(state)
  const early = state.turn?.message === undefined ? state.turn?.calls : undefined
  const turn = newTurn(Json.withError(response, "error"))
  Response.actionableCalls(response).forEach((toolCall, index) => {
    const { id, name } = toolCall
    const started = early?.get(id)
    const idempotencyKey = `${requestId}:${stepIndex}:${index}:${id}`
    const asked: Call = { _tag: "Asked", toolCall, idempotencyKey, attempt: 0, ...versioned(run.versions, name) }
    setCall(turn, id, started?.toolCall.name === name ? { ...started, toolCall } : asked)
    if (started === undefined) run.came.set(id, "asked")
  })
  state.turn = turn
}

/** Returns the turn of a call record. A call without a turn starts before its reply is complete. */
const turnWith = (state: State, id: string): Turn => {
  if (state.turn?.calls.has(id) === true || state.turn?.isEarlier === false) return state.turn
  answerBehind(state)
  return state.turn = newTurn(undefined)
}

const callStarted = (state: State, run: Run, record: Records.CallStarted): void => {
  const { attempt, idempotencyKey, toolCallId } = record
  const turn = turnWith(state, toolCallId)
  const call = turn.calls.get(toolCallId)
  const toolCall = record.toolCall ?? call?.toolCall
  if (toolCall === undefined) return
  const answers = call !== undefined && "answers" in call ? call.answers : []
  const { resume, version } = call ?? versioned(run.versions, toolCall.name) as Partial<Known>
  setCall(turn, toolCallId, {
    _tag: "Started",
    ...known({ toolCall, idempotencyKey, attempt, resume, version }),
    answers
  })
  run.hasStarted = true
  run.came.set(toolCallId, "unknown")
}

const attemptFailed = (state: State, { toolCallId }: Records.AttemptFailed): void => {
  if (toolCallId === undefined) {
    state.failures++
    return
  }
  const { turn } = state
  const call = turn?.calls.get(toolCallId)
  if (turn === undefined || call?._tag !== "Started") return
  const { answers } = call
  setCall(turn, toolCallId, { ...known(call), ...(turn.isEarlier ? { _tag: "Granted", answers } : { _tag: "Asked" }) })
}

/** Notes that a call halted, asked or failed beside the started calls. */
const noteBeside = (turn: Turn, id: string): void => {
  for (const [other, call] of turn.calls) {
    if (call._tag === "Started") turn.calls.set(other, { ...call, beside: [...call.beside ?? [], id] })
  }
}

const use = (run: Run, { nestedSpent, nestedUsage }: Records.CallEnded | Records.CallWaits): void => {
  if (nestedSpent !== undefined) run.nestedSpent = Accounts.plus(run.nestedSpent, nestedSpent)
  if (nestedUsage !== undefined) run.nestedUsage = Response.sumUsage([run.nestedUsage, nestedUsage])
}

/**
 * Returns an answered call's outcome. A cancelled call counts as stopped only if its stop, or the run's, was requested.
 */
const cameOf = ({ run, stop }: State, reason: Records.CallEnded["reason"], id: string): Came => {
  if (reason === "unknown_effect") return "unknown"
  if (reason === "abandoned") return "refused"
  const isRequested = stop !== undefined || run?.callStops.some(({ call }) => call === CallPaths.format({ path: [id] }))
  return reason === "cancelled" && isRequested === true ? "stopped" : "ended"
}

/**
 * Returns the stop requests for unanswered calls. A request for a call inside another call is returned while the outer
 * call is unanswered.
 */
export const callStopsIn = ({ run, turn }: State): ReadonlyArray<Records.StopRequested> => {
  const stops = run?.callStops ?? []
  if (stops.length === 0) return stops
  return stops.filter(({ call }) => isOpenCall(turn, CallPaths.parse(call)?.path[0]))
}

/** Returns `true` if the open turn has a call still without an answer. */
export const isOpenCall = (turn: State["turn"], id: string | undefined): boolean => {
  const call = id === undefined ? undefined : turn?.calls.get(id)
  return call !== undefined && call._tag !== "Answered"
}

const callEnded = (state: State, run: Run, record: Records.CallEnded): void => {
  const { contextUpdate, failure, halt, message, originalLength, reason } = record
  const { toolCallId = "" } = message
  const { turn } = state
  const call = turn?.calls.get(toolCallId)
  if (turn === undefined || call === undefined || call._tag === "Answered") return
  const haltedBy = halt && Json.withError(halt, "onToolErrorException")
  const ended = { ...answered(call, message), failure, code: reason, halt: haltedBy, contextUpdate, originalLength }
  setCall(turn, toolCallId, ended)
  use(run, record)
  noteHalt(run, turn, ended)
  if (halt !== undefined || failure !== undefined) noteBeside(turn, toolCallId)
  run.came.set(toolCallId, cameOf(state, reason, toolCallId))
  completeEarlier(state)
}

/** Notes how an earlier turn's call ends the run, since no later step contains the call. */
const noteHalt = (run: Run, turn: Turn, call: Call): void => {
  if (!turn.isEarlier) return
  const { id } = call.toolCall
  const halt = haltOf(call)
  run.halts = run.halts.filter((other) => other.id !== id)
  if (halt === undefined) return
  run.halts = [...run.halts, { id, place: Array.from(turn.calls.keys()).indexOf(id), halt }]
}

const callWaits = ({ turn }: State, run: Run, record: Records.CallWaits): void => {
  const { contextUpdate, requestId, resume, toolCallId } = record
  const call = turn?.calls.get(toolCallId)
  if (turn === undefined || call === undefined || call._tag === "Answered") return
  const suspensions = record.suspensions.map((open) => ({ ...open, toolCall: open.toolCall ?? call.toolCall }))
  const waits = { _tag: "Waiting", requestId, suspensions, answers: [], contextUpdate } as const
  const waiting = { ...known(call), ...waits, ...(resume === undefined ? {} : { resume }) }
  setCall(turn, toolCallId, waiting)
  use(run, record)
  noteHalt(run, turn, waiting)
  if (suspensions.some(isOwnQuestion(waiting))) noteBeside(turn, toolCallId)
  if (call._tag === "Started") run.came.set(toolCallId, "ended")
}

const callSettled = (state: State, record: Records.CallSettled): void => {
  const { answer, command, time } = record
  const verdict = Teller.verdictOf(answer, time)
  if (command !== undefined) receive(state, { ...command, became: "completed", ...verdict })
  if (state.run === undefined) settle(state, record)
  else if (findWaiting(state, record.id) !== undefined) state.run.settlements.push(record)
}

/** Returns a call's halt, or the question it waits with. */
const haltOf = (call: Call | undefined): Event.Halt | undefined => {
  if (call?._tag === "Answered") return call.halt
  const question = call?._tag === "Waiting" ? call.suspensions.find(isOwnQuestion(call)) : undefined
  return question && OpenCalls.haltOf(OpenCalls.askedAgain(question))
}

const stepCompleted = (state: State, run: Run, record: Records.StepCompleted): void => {
  state.failures = 0
  answerBehind(state)
  const { done, introduced = [], mode = "auto", nestedUsage } = record
  const notes = record.notes === undefined ? run.noted : { ...run.noted, ...record.notes }
  const own = state.turn
  const said = record.response ?? own?.response
  if (said === undefined) return
  const response = Json.withError(said, "error")
  const toolResults = record.messages?.filter(({ role }) => role === "tool") ??
    (own === undefined ? [] : answersIn(own))
  const suspensions = record.messages === undefined ? suspensionsOf(state) : []
  const halt = record.haltedBy === undefined ? undefined : haltOf(own?.calls.get(record.haltedBy))
  const contextUpdate = updateIn(own)
  if (introduced.length > 0) state.thread = SharedMessages.appendedShared(state.thread, introduced)
  if (own === undefined || record.messages !== undefined) {
    // A call whose handler had not begun when its reply broke off has no answer of its own.
    if (own !== undefined) {
      for (const [id, { _tag }] of own.calls) {
        if (_tag === "Started") run.came.set(id, cameOf(state, "cancelled", id))
      }
    }
    state.turn = undefined
    say(state, record.messages ?? [messageOf(response)])
  } else if (suspensions.length === 0) complete(state, own)
  else state.turn = { ...own, isStepped: true }
  const manual = suspensions.flatMap(({ kind, path, toolCall }) =>
    kind === "manual" && path === undefined ? [toolCall] : []
  )
  run.context = Fold.mergeUpdates([run.context, contextUpdate])
  run.nestedUsage = null
  run.steps.push({
    result: Fold.stepResultOf({
      thread: threadOf(state),
      response,
      toolResults,
      done,
      mode,
      manualToolCalls: mode === "manual" ? [] : manual,
      halt,
      suspensions: suspensions.length === 0 ? undefined : suspensions,
      contextUpdate
    }),
    notes,
    ...(nestedUsage === undefined ? {} : { nestedUsage })
  })
  run.noted = noNotes
  run.introduced = 0
  run.attempt = 0
  run.spent = null
}

/** Notes the rules' additions to a request. A reply to an earlier request does not count. */
const stepPrepared = (state: State, run: Run, record: Records.StepPrepared): void => {
  const { attempt, delivered = [], messages, notes, spent, stepIndex } = record
  for (const id of delivered) resolve(state, id, { became: "delivered", requestId: run.requestId, stepIndex })
  if (state.turn?.isEarlier === false) state.turn = undefined
  if (notes !== undefined) run.noted = { ...run.noted, ...notes }
  if (messages !== undefined) {
    say(state, messages)
    run.introduced += messages.length
  }
  run.attempt = attempt
  if (spent !== undefined) run.spent = spent
}

/** Returns the recorded nested usage of a run so far. */
export const nestedUsageOf = ({ nestedUsage, steps }: Pick<Run, "nestedUsage" | "steps">): Response.Usage | null =>
  Response.sumUsage([steps.at(-1)?.nestedUsage ?? null, nestedUsage])

/** Returns the recorded usage of a run and its nested runs so far. */
export const totalUsageOf = (run: Pick<Run, "nestedUsage" | "spent" | "steps">): Response.Usage | null =>
  Response.sumUsage([...run.steps.map(({ result }) => result.response.usage), run.spent, nestedUsageOf(run)])

/** Returns the outcomes of the run's calls so far. */
export const reportSoFar = (state: State): StopReport =>
  state.run === undefined ? { stopped: [], ended: [], refused: [], unknown: [] } : reportOf(state.run, state, [])

const reportOf = ({ came }: Run, { turn }: State, abandoned: ReadonlyArray<Event.Abandoned>): StopReport => {
  const report: Record<keyof StopReport, Array<string>> = { stopped: [], ended: [], refused: [], unknown: [] }
  const refused = new Set(abandoned.flatMap(({ id, kind, path = [] }) => kind === "handler" ? [path[0] ?? id] : []))
  for (const [id, outcome] of came) if (outcome === "refused") refused.add(id)
  for (const [id, outcome] of came) {
    if (refused.has(id)) report.refused.push(id)
    else if (outcome !== "asked" || turn?.calls.get(id)?._tag !== "Waiting") {
      report[outcome === "asked" ? "stopped" : outcome].push(id)
    }
  }
  return report
}

/** Restores the values from before a run without started calls. */
const giveBack = (state: State, run: Run): void => {
  const { before, settlements, taken } = run
  Object.assign(state, before, { turn: before.turn && copyTurn(before.turn), run: undefined, stop: undefined })
  if (taken !== undefined) {
    const receipt = state.receipts.get(taken.id)
    if (taken.message === undefined) state.receipts.delete(taken.id)
    else {
      state.inbox = [taken.message, ...state.inbox]
      if (receipt !== undefined) receive(state, { id: receipt.id, hash: receipt.hash, became: "queued" })
    }
  }
  for (const verdict of settlements) settle(state, verdict)
}

const becameOf = ({ haltedReason, status }: Records.RunEnded): Records.Receipt["became"] => {
  if (haltedReason === "abandoned") return "withdrawn"
  if (haltedReason === undefined || status === "error") return "failed"
  return status === "stopped" ? "stopped" : "completed"
}

/** Returns an ended run's outcome, unless it was a step that only ran tools. */
const lastRunOf = (
  { error, haltedReason = "error", metadata, output, rule, status }: Records.RunEnded,
  finalized: string | undefined
): Records.LastRun | undefined => {
  if (haltedReason === "") return undefined
  const closing = finalized === undefined ? {} : { finalized }
  if (output !== undefined) return { outcome: haltedReason, output, ...closing }
  if (rule !== undefined) return { outcome: haltedReason, rule }
  if (error !== undefined || status !== "error") {
    return { outcome: haltedReason, ...(error === undefined ? {} : { error }), ...closing }
  }
  const { detail, reason } = Records.runErrorOf(metadata?.["error"])
  return { outcome: haltedReason, error: { detail, reason: reason === "unknown" ? haltedReason : reason } }
}

/** Returns `true` if a failing run gives back everything it took: no call has started, and no step is whole. */
export const isUnstarted = ({ hasStarted, steps }: Run): boolean => !hasStarted && steps.length === 0

/** Returns a nested run's result with its errors restored. */
const resultOf = (result: Event.WireResult): Event.WireResult => {
  const { finalResponse, outcome, structuredFinalize } = result
  return {
    ...result,
    outcome: Json.withError(Json.withError(outcome, "error"), "onToolErrorException"),
    ...(structuredFinalize === undefined
      ? {}
      : { structuredFinalize: Json.withError(structuredFinalize, "pass2Error") }),
    ...(finalResponse == null ? {} : { finalResponse: Json.withError(finalResponse, "error") })
  }
}

const runEnded = (state: State, run: Run, record: Records.RunEnded): void => {
  const { abandoned = [], error, haltedReason, messages = [], metadata, requestId, result, status = "idle" } = record
  const { steps, taken } = run
  const stop = state.stop
  state.failures = haltedReason === undefined ? state.failures + 1 : 0
  const finalized = finalizedBy(steps)
  state.lastRun = lastRunOf(record, finalized)
  if (record.kept !== undefined) state.kept = record.kept
  const isGivenBack = haltedReason === undefined && isUnstarted(run)
  state.ended = {
    requestId,
    report: reportOf(run, state, abandoned),
    steps: result === undefined ? [] : steps,
    result: result && resultOf(result)
  }
  if (isGivenBack) giveBack(state, run)
  else {
    if (haltedReason === undefined && state.turn !== undefined && !state.turn.isEarlier) {
      closeTurn(state.turn, "the run failed")
    }
    say(state, messages)
    state.answered = []
    endRun(state, run, status)
    if (metadata !== undefined) state.metadata = { ...state.metadata, ...Json.withError(metadata, "error") }
    const receipt = taken && state.receipts.get(taken.id)
    if (receipt !== undefined) {
      receive(state, { ...receipt, became: becameOf(record), ...(error === undefined ? {} : { error }) })
    }
  }
  const stopped = stop && state.receipts.get(stop.id)
  if (stopped !== undefined) receive(state, { ...stopped, became: "completed" })
  for (const { id } of run.callStops) {
    const receipt = state.receipts.get(id)
    if (receipt !== undefined) receive(state, { ...receipt, became: "completed" })
  }
  refuseOpen(state, Outcomes.refusalOf({ haltedReason, rule: record.rule?.name, finalized }))
}

/** Returns the refusal reason for a message after the last run, given by that run's end. */
const refusalAfter = ({ finalized, outcome, rule }: Partial<Records.LastRun> = {}): string =>
  Outcomes.refusalOf({ haltedReason: outcome ?? "", rule: rule?.name, finalized })

/** Returns the rule that made the last step final, or the other reason: `"max_turns"`. */
const finalizedBy = (steps: Run["steps"]): string | undefined => {
  const last = steps.at(-1)?.notes["last"]
  return typeof last === "string" && last !== "output" && last !== "structured" ? last : undefined
}

const inRun = (state: State, run: Run, record: Records.Record): void => {
  if ("at" in record && record.at !== undefined) run.at = record.at
  switch (record._tag) {
    case "ReplyReceived":
      return replyReceived(state, run, record)
    case "CallStarted":
      return callStarted(state, run, record)
    case "AttemptFailed":
      return attemptFailed(state, record)
    case "CallEnded":
      return callEnded(state, run, record)
    case "CallWaits":
      return callWaits(state, run, record)
    case "StepPrepared":
      return stepPrepared(state, run, record)
    case "StepCompleted":
      return stepCompleted(state, run, record)
    case "RunEnded":
      return runEnded(state, run, record)
    default:
  }
}

/**
 * Applies a record. The same records give the same state in every process. An event record for a run not open
 * changes only the fingerprint and the size.
 */
export const apply = (state: State, record: Records.Record): void => {
  const text = Records.textOf(record)
  state.fingerprint = Records.fingerprint(state.fingerprint, record, text)
  state.size = sizeAfter(state.size, record, Records.bytesOf(text))
  change(state, record)
}

/** Applies an unjournaled record: the state keeps no fingerprint and no size. */
export const change = (state: State, record: Records.Record): void => {
  sessions.delete(state)
  applied(state, record)
  if (state.inside.length > 0) refuseLost(state)
}

const applied = (state: State, record: Records.Record): void => {
  switch (record._tag) {
    case "Opened":
      return opened(state, record)
    case "MessagesAppended":
      return say(state, record.messages)
    case "MessageSubmitted":
      if (record.to === undefined) state.inbox = [...state.inbox, record]
      else state.inside = [...state.inside, { message: record, session: undefined }]
      receive(state, { id: record.id, hash: Records.hashOfContent(record.message.content), became: "queued" })
      if (state.run === undefined) refuseOpen(state, refusalAfter(state.lastRun))
      return
    case "MessageWithdrawn":
      return isOpenMessage(state, record.id) ? resolve(state, record.id, { became: "withdrawn" }) : undefined
    case "MessageForwarded":
      state.inside = state.inside.map((inner) =>
        inner.message.id === record.id ? { ...inner, session: inner.session ?? record.session } : inner
      )
      return
    case "MessageSettled":
      return resolve(state, record.id, record.fate)
    case "StopRequested":
      if (state.run?.requestId !== record.requestId) return
      if (record.call === undefined) state.stop = record
      else state.run.callStops = [...state.run.callStops, record]
      return receive(state, {
        id: record.id,
        hash: Records.hashOf(record.requestId),
        isStop: true,
        became: "taken",
        requestId: record.requestId
      })
    case "Labelled":
      state.labels = labelsAfter(state.labels, record)
      return
    case "CallSettled":
      return callSettled(state, record)
    case "ToolDisallowed":
      return disallow(state, record)
    case "RunStarted":
      return runStarted(state, record)
    default:
      if (state.run !== undefined && state.run.requestId === record.requestId) inRun(state, state.run, record)
  }
}

/** Returns the state after records: a branch, if there are any records. */
export const after = (state: State, records: ReadonlyArray<Records.Record>): State => {
  if (records.length === 0) return state
  const next = copyOf(state)
  for (const record of records) apply(next, record)
  return next
}

/** Returns a session's size after a record with `more` bytes. */
const sizeAfter = ({ bytes, turns }: Size, record: Records.Record, more: number): Size => {
  if (record._tag !== "Opened") return { bytes: bytes + more, turns: turns + Number(record._tag === "StepCompleted") }
  const replies = record.session.thread.messages.filter(SharedMessages.isReply)
  return { bytes: more, turns: replies.length }
}

/** Returns a record with the state's labels, which another process may have changed meanwhile. */
const labelledAs = ({ labels }: State, given: Records.Opened): Records.Opened => {
  const { labels: _, ...record } = given
  return Object.keys(labels).length === 0 ? record : { ...record, labels }
}

/** Returns records sealed to follow a state: with its labels, and the fingerprints of earlier records. */
export const sealed = (state: State, records: Records.Records): Records.Records => {
  let { fingerprint } = state
  const next = (given: Records.Record): Records.Record => {
    const record = given._tag === "Opened" ? labelledAs(state, given) : given
    const after = fingerprint
    fingerprint = Records.fingerprint(after, record)
    return Records.isSealed(record) ? { ...record, after } : record
  }
  const [first, ...rest] = records
  return [next(first), ...rest.map(next)]
}

/** Returns the state before the first record. */
export const initial = (id?: string): State => stateOf(SessionData.make(id === undefined ? {} : { id }))

// Questions about the state.

/**
 * The work left in a session, naming the operation to call:
 *
 * - `"resume"`: a run was interrupted: `Session.resume`
 * - `"reply"`: a message was submitted: `Session.reply` with the message, after `Session.recover` in status `error`
 * - `"continue"`: calls were settled: `Session.continue`
 * - `"wait"`: a call waits for an outside answer
 * - `"nothing"`: the session waits for its next message, or is nested and waits for its parent
 *
 * @category models
 */
export type Next = "resume" | "reply" | "continue" | "wait" | "nothing"

/** Returns the work left. */
export const next = (state: State): Next => {
  const { answered, inbox, parent, run, status, turn } = state
  if (parent !== undefined) return "nothing"
  if (run !== undefined) return "resume"
  if (status === "error") return inbox.length > 0 ? "reply" : "nothing"
  const calls = turn === undefined ? [] : Array.from(turn.calls.values())
  if (calls.some(({ _tag }) => _tag === "Waiting")) return "wait"
  if (inbox.length > 0) return "reply"
  return answered.length > 0 || calls.some(({ _tag }) => _tag === "Granted") ? "continue" : "nothing"
}

/**
 * Data a store keeps with a session's version, so that sessions are listed, and those with work left found, without
 * reading journals. An append with only records inside a run brings no new summary.
 *
 * @category models
 */
export interface Summary {
  /** Work left. */
  readonly next: Next
  /** Session status. During an open run, `"idle"` unless one of its calls waits. */
  readonly status: Session["status"]
  /** Number of times the open run was resumed. Left out without an open run. */
  readonly resumptions?: number
  /** Time of the first expiry, in milliseconds since 1970. Left out if nothing expires. */
  readonly expiresAt?: number
  /**
   * `haltedReason` of the last ended run: `"error"` for a failed run, `"abandoned"` for an abandoned run. Left out if
   * no run has ended.
   */
  readonly lastOutcome?: string
  /** That run's error. Left out unless the run failed. */
  readonly error?: Records.RunError
  /**
   * Title a person has given the session (`Session.label`), otherwise the first user message, in one line of at most
   * 120 characters. Left out if both are missing.
   */
  readonly title?: string
  /** Last user or model message with a text, in one line of at most 120 characters. Left out if absent. */
  readonly lastLine?: string
  /** `true` if a person has pinned the session. Left out otherwise. */
  readonly pinned?: boolean
  /** Agent running the session. Left out without an agent. */
  readonly agent?: string
  /** Session this one branched from. Left out for other sessions. */
  readonly forkedFrom?: NonNullable<Records.Origin["forkedFrom"]>
}

const longestLine = 120

/** Returns a text in one line of bounded length, cut between characters. */
const lineOf = (message: Message.Message | undefined): string | undefined => {
  if (message === undefined) return undefined
  // White space may be many times as long as the line.
  const line = Message.text(message).slice(0, 32 * longestLine).replaceAll(/\s+/g, " ").trim()
  return line.slice(0, longestLine).replace(/[\uD800-\uDBFF]$/, "").trimEnd() || undefined
}

/** Returns the session title, and the last model or user message with a text. */
const linesOf = (state: State): Pick<Summary, "lastLine" | "title"> => {
  const messages = SharedMessages.list(threadOf(state))
  const submitted = state.inbox[0]?.message
  const { title = lineOf(messages.find(({ role }) => role === "user") ?? submitted) } = state.labels
  const isSaid = (message: Message.Message) =>
    (message.role === "user" || message.role === "assistant") && lineOf(message) !== undefined
  const lastLine = lineOf(messages.findLast(isSaid) ?? submitted)
  return { ...(title === undefined ? {} : { title }), ...(lastLine === undefined ? {} : { lastLine }) }
}

/** Returns the session summary kept by a store. */
export const summaryOf = (state: State): Summary => {
  const { labels: { pinned }, lastRun, origin: { agent, forkedFrom }, run } = state
  const left = next(state)
  const expiry = left === "wait"
    ? suspensionsOf(state).reduce((first, { expiresAt = Infinity }) => Math.min(first, expiresAt), Infinity)
    : Infinity
  return {
    next: left,
    status: sessionOf(state).status,
    ...(run === undefined ? {} : { resumptions: run.resumptions }),
    ...(expiry === Infinity ? {} : { expiresAt: expiry }),
    ...(lastRun === undefined ? {} : { lastOutcome: lastRun.outcome }),
    ...(lastRun?.error === undefined ? {} : { error: lastRun.error }),
    ...linesOf(state),
    ...(pinned === undefined ? {} : { pinned }),
    ...(agent === undefined ? {} : { agent }),
    ...(forkedFrom === undefined ? {} : { forkedFrom })
  }
}

/** Reason to close an interrupted run: another operation, which keeps settled calls, or `Session.abandon`. */
export type Leaving = "operation" | "abandon"

/**
 * Returns the records closing an open run and its turn. An incomplete reply is dropped. `inside` has the steps of runs
 * started by its calls: a run's spending stays spent.
 */
export const closing = (
  state: State,
  leaving: Leaving,
  inside: ReadonlyArray<RunJournal.Inside>
): ReadonlyArray<Records.Record> => {
  const { run } = state
  if (run === undefined) return []
  const settled = copyOf(state)
  for (const verdict of run.settlements) settle(settled, verdict)
  const answers = closingAnswers(settled, run, leaving, "the run was interrupted and not resumed")
  const kept = Accounts.keptBehind(state.kept, stepsOf(state), inside)
  return [...answers, {
    _tag: "RunEnded",
    requestId: run.requestId,
    haltedReason: "abandoned",
    ...(kept === state.kept ? {} : { kept })
  }]
}

/** Returns the open run's steps, and the current step, as counted by a rule. */
export const stepsOf = ({ run, turn }: State): ReadonlyArray<RunJournal.Inside> => {
  const { noted = noNotes, steps = [] } = run ?? {}
  const reply = turn?.isEarlier === false ? turn.response : undefined
  return [
    ...steps.map(({ notes, result: { response: { usage } } }) => ({ notes, usage })),
    reply === undefined ? { notes: noted } : { notes: noted, usage: reply.usage }
  ]
}

/** Returns the answers of a run's open calls when it fails for good before any has started. */
export const failing = (state: State): ReadonlyArray<Records.Record> =>
  state.run === undefined ? [] : closingAnswers(state, state.run, "abandon", "the run failed")

const closingAnswers = (
  { turn }: State,
  { requestId }: Run,
  leaving: Leaving,
  left: string
): ReadonlyArray<Records.Record> =>
  turn?.message === undefined ? [] : Array.from(turn.calls.values()).flatMap((call): ReadonlyArray<Records.Record> => {
    const isSettled = call._tag === "Granted" || call._tag === "Waiting" && turn.isEarlier
    if (call._tag === "Answered" || leaving === "operation" && isSettled) return []
    const reason = isInDoubt(call) ? "unknown_effect" : "cancelled"
    return [{ _tag: "CallEnded", requestId, message: withdrawn(call, left), reason }]
  })

/** Returns `true` if a call's handler had started before the call waited: its gates are not asked again. */
export const hasStarted = ({ answers, attempt, resume }: Granted): boolean =>
  attempt > 0 || answers.length > 0 || resume !== undefined

/**
 * Returns `true` if a call may have had its effect: it has started, and has no answer or waits for a verdict about its
 * effect.
 */
export const isInDoubt = (call: Call): boolean =>
  call._tag === "Started" || call._tag === "Granted" && hasStarted(call) && call.attempt !== call.resume?.attempt
  || call._tag === "Waiting" && call.suspensions.some(({ kind }) => kind === "unknown")

/** Returns the record a journal continues with, replacing its earlier records or a changed session. */
export const openedBy = (state: State, session: Session): Records.Opened => {
  const calls = callsOf(state).flatMap((call) => {
    const { _tag, attempt, idempotencyKey, toolCall } = call
    if (_tag === "Answered" || idempotencyKey === undefined) return []
    const wait = _tag === "Waiting" && call.requestId !== undefined ? { requestId: call.requestId } : {}
    return [[toolCall.id, { idempotencyKey, attempt, ...wait }] as const]
  })
  const { clientTools, kept, lastRun, origin } = state
  const opened = labelledAs(state, {
    _tag: "Opened",
    format: 1,
    session,
    ...origin,
    ...(Object.keys(kept).length === 0 ? {} : { kept }),
    ...(clientTools.length === 0 ? {} : { clientTools }),
    ...(lastRun === undefined ? {} : { lastRun })
  })
  return calls.length === 0 ? opened : { ...opened, calls: Object.fromEntries(calls) }
}

/** Returns `true` while the run still works an earlier turn's calls. */
export const isOpening = ({ run, turn }: State): boolean =>
  run !== undefined && run.steps.length === 0 && turn?.isEarlier !== false &&
  Array.from(run.before.turn?.calls.values() ?? []).some(({ _tag }) => _tag === "Granted")

/** Returns the context updates by the run's handlers so far. */
export const contextUpdateOf = ({ run, turn }: State): Json.JsonObject | undefined =>
  Fold.mergeUpdates([run?.context, turn?.isEarlier === true ? updateIn(turn) : undefined])

/** Returns the deciding halt among an earlier turn's calls, by the rule of a turn. */
export const decidingHalt = (
  { run }: State,
  { haltPrecedence }: Pick<Policy.Policy, "haltPrecedence">
): Event.Halt | undefined => {
  const halts = run?.halts ?? []
  return (haltPrecedence === "request" ? halts.toSorted((left, right) => left.place - right.place) : halts)[0]?.halt
}

/** Describes a problem with a call record. */
const problemOfCall = (
  turn: Turn | undefined,
  record: Records.CallStarted | Records.AttemptFailed | Records.CallEnded | Records.CallWaits
): string | undefined => {
  const id = record._tag === "CallEnded" ? record.message.toolCallId ?? "" : record.toolCallId
  if (id === undefined) return undefined
  const call = turn?.calls.get(id)
  const has = `has call ${JSON.stringify(id)}`
  if (call === undefined) {
    const isEarly = record._tag === "CallStarted" && record.toolCall !== undefined && record.attempt === 1
    return isEarly ? undefined : `${has}, which the turn does not have`
  }
  if (call._tag === "Answered") return `${has}, which has its answer`
  if (record._tag === "AttemptFailed" && call._tag !== "Started") return `${has}, which has not started`
  if (record._tag !== "CallStarted") return undefined
  if (call._tag === "Waiting") return `${has}, which waits`
  const { attempt } = record
  return attempt === call.attempt + 1 ? undefined : `${has} in attempt ${attempt}, after ${call.attempt}`
}

/** Run endings that may leave a turn without its `StepCompleted`. */
const broken: ReadonlySet<string> = new Set(["abandoned", "cancelled", "error"])

/**
 * Describes a problem with messages delivered to a step: each must be open, named once, and among those of the step.
 */
const problemOfDelivery = (
  { inbox }: State,
  { delivered = [], messages = [] }: Records.StepPrepared
): string | undefined => {
  const open = new Map(inbox.map(({ id, message }) => [id, JSON.stringify(message.content)]))
  const left = new Map<string, number>()
  const count = (content: string, by: 1 | -1): number => {
    const number = (left.get(content) ?? 0) + by
    left.set(content, number)
    return number
  }
  for (const { content } of messages) count(JSON.stringify(content), 1)
  const seen = new Set<string>()
  for (const id of delivered) {
    const named = `delivers message ${JSON.stringify(id)}`
    if (seen.has(id)) return `${named} twice`
    seen.add(id)
    const content = open.get(id)
    if (content === undefined) return `${named}, which is not open`
    if (count(content, -1) < 0) return `${named}, which is not among its messages`
  }
  return undefined
}

/** Describes a problem with a run record. */
const problemInRun = (state: State, record: Records.Record): string | undefined => {
  const { run, stop, turn } = state
  const steps = run?.steps.length ?? 0
  switch (record._tag) {
    case "ReplyReceived":
      if (record.stepIndex !== steps) return `is of step ${record.stepIndex}, after ${steps}`
      return turn?.isEarlier === false && turn.message !== undefined ? "follows a reply without an end" : undefined
    case "CallStarted":
    case "AttemptFailed":
    case "CallEnded":
    case "CallWaits":
      return problemOfCall(turn, record)
    case "StepPrepared": {
      if (record.stepIndex !== steps) return `is of step ${record.stepIndex}, after ${steps}`
      if (record.attempt < (run?.attempt ?? 0)) return `is of request ${record.attempt}, after ${run?.attempt}`
      const wrong = problemOfDelivery(state, record)
      if (wrong !== undefined) return wrong
      const begun = turn?.isEarlier === false && Array.from(turn.calls).find(([, { _tag }]) => _tag !== "Asked")
      return begun ? `asks again, and call ${JSON.stringify(begun[0])} has started` : undefined
    }
    case "StepCompleted": {
      if (record.stepIndex !== steps) return `is of step ${record.stepIndex}, after ${steps}`
      if (record.messages !== undefined || turn === undefined || turn.isEarlier) return undefined
      const left = Array.from(turn.calls).find(([, { _tag }]) => _tag !== "Answered" && _tag !== "Waiting")
      return left && `leaves call ${JSON.stringify(left[0])} without an answer`
    }
    case "RunEnded": {
      if (record.status === "stopped" && stop === undefined) return "is stopped without a request"
      const isOpen = turn?.isEarlier === false && turn.message !== undefined && turn.isStepped !== true
      const isWhole = record.haltedReason !== undefined && !broken.has(record.haltedReason)
      return isOpen && isWhole ? "leaves a turn without its StepCompleted" : undefined
    }
    default:
      return undefined
  }
}

/** Describes a problem with a record at its position. */
const problemOf = (state: State, record: Records.Record, isFirst: boolean): string | undefined => {
  const { fingerprint, receipts, run, stop } = state
  if (isFirst) return record._tag === "Opened" ? undefined : "stands before Opened"
  if (Records.isSealed(record) && record.after !== undefined && record.after !== fingerprint) {
    return "does not follow the records before it: one of them is missing, doubled, moved or altered"
  }
  const within = run === undefined ? undefined : `stands within run ${run.requestId}`
  switch (record._tag) {
    case "Opened":
    case "MessagesAppended":
      return within
    case "MessageSubmitted":
      return receipts.has(record.id) ? `has the id ${JSON.stringify(record.id)} of an earlier command` : undefined
    case "MessageWithdrawn":
      return isOpenMessage(state, record.id)
        ? undefined
        : `withdraws message ${JSON.stringify(record.id)}, which is not open`
    case "MessageForwarded":
      if (run?.requestId !== record.requestId) return `belongs to run ${record.requestId}, which is not open`
      return state.inside.some(({ message, session }) => message.id === record.id && session === undefined)
        ? undefined
        : `passes on message ${JSON.stringify(record.id)}, which is not open`
    case "MessageSettled":
      return isUnsettled(state, record.id)
        ? undefined
        : `settles message ${JSON.stringify(record.id)}, which is settled`
    case "StopRequested":
      if (run?.requestId !== record.requestId) return `stops run ${record.requestId}, which is not open`
      if (record.call === undefined) return stop === undefined ? undefined : `stops run ${record.requestId} again`
      return run.callStops.some(({ call }) => call === record.call)
        ? `stops call ${JSON.stringify(record.call)} of run ${record.requestId} again`
        : undefined
    case "ToolDisallowed":
      return undefined
    case "CallSettled":
      return findWaiting(state, record.id) === undefined
        ? `settles ${JSON.stringify(record.id)}, which does not wait`
        : undefined
    case "Labelled":
      return undefined
    case "RunStarted":
      if (record.resumes !== true) return within
      return run?.requestId === record.requestId ? undefined : `resumes run ${record.requestId}, which is not open`
    default:
      if (run?.requestId !== record.requestId) return `belongs to run ${record.requestId}, which is not open`
      if ("at" in record && record.at !== undefined && record.at < run.at) return `is at ${record.at}, after ${run.at}`
      return problemInRun(state, record)
  }
}

/** Describes the problems of a journal's records, in order. */
export const problemsOf = (records: ReadonlyArray<Records.Record>): ReadonlyArray<string> => {
  const state = initial()
  return records.flatMap((record, index) => {
    const problem = problemOf(state, record, index === 0)
    apply(state, record)
    return problem === undefined ? [] : [`record ${index + 1}, ${record._tag}, ${problem}`]
  })
}
