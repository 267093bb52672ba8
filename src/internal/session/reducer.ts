/**
 * The fold from records and from events to a session. `apply` takes a record, and reads a journal; `next` takes an event
 * of an operation, and gives the records of it, which `apply` takes in turn. The operations use it themselves, and so does
 * a caller who has the events. A stream that was cut comes to a session as well: with every whole step of it, and with an
 * answer for each approved call that had begun. What is open is changed in `state` alone. Public as `Session`.
 *
 * @since 0.1.0
 */
import type * as Types from "effect/Types"
import * as Collector from "../../Collector.ts"
import type * as Event from "../../Event.ts"
import * as Message from "../../Message.ts"
import * as Policy from "../../Policy.ts"
import * as Response from "../../Response.ts"
import type * as Thread from "../../Thread.ts"
import * as Answers from "../answer/answer.ts"
import * as OpenCalls from "../answer/openCalls.ts"
import * as EventJson from "../fold/eventJson.ts"
import * as Outcomes from "../fold/outcome.ts"
import * as SharedMessages from "../fold/sharedMessages.ts"
import * as Fold from "../fold/state.ts"
import * as Replay from "../run/replay.ts"
import * as Nested from "./nested.ts"
import type * as Records from "./records.ts"
import * as SessionState from "./state.ts"

type Session = SessionState.Session

type JournalState = Records.JournalState

type Interrupted = Records.Interrupted

type RecordOf<Tag extends Records.Record["_tag"]> = Extract<Records.Record, { readonly _tag: Tag }>

// Records to state.

/** The answer to an approved call that began in a run without an end. It is not run again. */
const unknownEffect = ({ id }: Message.ToolCall): Message.Message => ({
  ...Message.answer(id, { error: "the process ended while the call ran; whether it had its effect is not known" }),
  isError: true
})

/**
 * What handlers of whole steps, and of approved calls, added to the context. The end of a run adds it to the session. Of the
 * calls without an answer those count that are answered at rest.
 */
const contextOf = ({ approved, approvedAnswers, calls, steps }: Interrupted): Session["context"] => {
  const ids = new Set(approved.map(({ id }) => id))
  const begun = steps.length > 0 ? [] : calls.filter(({ toolCall }) => ids.has(toolCall.id))
  const updates = [...approvedAnswers, ...begun, ...steps.map(({ result }) => result)]
  return Fold.mergeUpdates(updates.map(({ contextUpdate }) => contextUpdate)) ?? {}
}

/** The session between runs: of a run that has no end, what is whole has happened, and nothing else has. */
export const atRest = ({ interrupted, session }: JournalState): Session => {
  if (interrupted === undefined) return session
  const rested = settledBy(interrupted.answers, SessionState.brokenOff(session, interrupted.calls, unknownEffect))
  const context = contextOf(interrupted)
  return Object.keys(context).length === 0 ? rested : { ...rested, context: { ...rested.context, ...context } }
}

/** What a call is answered with in a turn that is closed, since its run was cut and is not taken up. */
const closed = (toolCall: Message.ToolCall, call: Records.InterruptedCall | undefined): ClosedAnswer => {
  const withdrawn = (detail: string) =>
    Answers.refused("cancelled", toolCall, `${detail}: the run was cut and not taken up again`)
  if (call === undefined) return withdrawn("not run")
  if (SessionState.questionsOf([call]).length > 0) return withdrawn("withdrawn")
  if (call.isErrorDecided === true) {
    return { ...Message.answer(toolCall.id, { error: "the call failed" }), isError: true }
  }
  const { resultCut, resultLimit } = { ...Policy.standard, ...call }
  return { _tag: "Reference", toolCallId: toolCall.id, resultLimit, resultCut }
}

type ClosedAnswer = RecordOf<"StepCompleted">["messages"][number]

/** A session for an operation that does not take up the run which was cut. */
export interface Left {
  readonly session: Session
  /** What has to be recorded before it. */
  readonly closing: NewRecords
  /** What its closed turn has added to the context. */
  readonly contextUpdate: Session["context"]
}

/**
 * The session with the turn closed that its run was cut in. A call that ended has its answer, one that only started is
 * answered as unknown, one that did not start as not run, and one that waits for a person as withdrawn. Nothing where the
 * reply of the turn is not recorded: there is nothing to keep.
 */
export const leave = (cut: JournalState): Left | undefined => {
  const { interrupted, session } = cut
  const toolCalls = interrupted?.reply?.toolCalls ?? []
  if (interrupted === undefined || toolCalls.length === 0) return undefined
  const { calls, requestId, steps } = interrupted
  const ofStep = { requestId, stepIndex: steps.length }
  const begun = begunOf(interrupted)
  const unknown = calls.filter((call) => !("outcome" in call)).map(({ toolCall }): Records.Record => ({
    _tag: "CallEnded",
    ...ofStep,
    toolCallId: toolCall.id,
    outcome: EventJson.toJson(Replay.unknownEffect(toolCall)),
    encoded: false
  }))
  const contextUpdate = Fold.mergeUpdates(calls.map((call) => call.contextUpdate))
  const closing: NewRecords = [...unknown, {
    _tag: "StepCompleted",
    ...ofStep,
    messages: [{ _tag: "Reference" }, ...toolCalls.map((toolCall) => closed(toolCall, begun.get(toolCall.id)))],
    suspensions: session.suspensions,
    done: false,
    ...(contextUpdate === undefined ? {} : { contextUpdate })
  }]
  const reading = new Reading(cut)
  for (const record of closing) reading.take(record)
  return { session: SessionState.plain(atRest(reading.state)), closing, contextUpdate: contextUpdate ?? {} }
}

/** Journals of 0.1.0 have the questions of approved calls among their outcomes only. */
const questionsIn = (
  { messages, suspensions }: RecordOf<"ApprovedAnswered">,
  calls: Interrupted["calls"]
): ReadonlyArray<Event.Suspension> => {
  if (suspensions !== undefined) return suspensions
  const open = new Set(messages.filter(OpenCalls.isUnanswered).map(({ toolCallId }) => toolCallId))
  return SessionState.questionsOf(calls.filter(({ toolCall }) => open.has(toolCall.id)))
}

/** The state after approved calls have their answers. The run's user message is placed after the last of them. */
const approvedAnswered = (
  state: JournalState,
  interrupted: Interrupted,
  record: RecordOf<"ApprovedAnswered">
): JournalState => {
  const { session } = state
  const { before, messages } = interrupted
  const questions = questionsIn(record, interrupted.calls)
  const ended = new Set([...record.messages.map(({ toolCallId }) => toolCallId), ...questions.map(OpenCalls.outerOf)])
  const calls = interrupted.calls.filter(({ toolCall }) => !ended.has(toolCall.id))
  const answered = (session: Session) => SessionState.withApproved(session, record.messages, questions)
  const isSaid = messages.length > 0 && answered(session).approved.length === 0
  return {
    ...state,
    session: isSaid ? SessionState.saying(answered(SessionState.spokenTo(session)), messages) : answered(session),
    interrupted: {
      ...interrupted,
      ...(before === undefined ? {} : { before: answered(before) }),
      approvedAnswers: [...interrupted.approvedAnswers, record],
      calls
    }
  }
}

/** The calls of a lost reply that had started early are no calls of the reply that came after it. */
const replyReceived = (interrupted: Interrupted, record: RecordOf<"ReplyReceived">): Interrupted => {
  const reply = replyOf(record)
  if (reply === undefined) return interrupted
  const names = new Map(reply.toolCalls?.map(({ id, name }) => [id, name]))
  const calls = interrupted.calls.filter(({ toolCall }) => names.get(toolCall.id) === toolCall.name)
  const { response } = record
  return { ...interrupted, reply, calls, ...(response === undefined ? {} : { response }) }
}

const replyOf = ({ message, response }: RecordOf<"ReplyReceived">): Message.Message | undefined =>
  response === undefined ? message : messageOf(response)

/** The message of a reply in the thread. */
export const messageOf = (response: Response.Response): Message.Message =>
  Outcomes.assistantMessage(response, Response.actionableCalls(response), response.message?.reasoning)

/** The calls of a turn by their ids, in the order in which they started last. */
type Begun = Map<string, Records.InterruptedCall>

const begunOf = ({ calls }: Interrupted): Begun => new Map(calls.map((call) => [call.toolCall.id, call]))

/** Takes a record of a call in, which takes the same however many calls there are. */
const note = (begun: Begun, record: RecordOf<"CallStarted"> | RecordOf<"CallEnded">): void => {
  if (record._tag === "CallStarted") {
    const { attempt, idempotencyKey, toolCall } = record
    begun.delete(toolCall.id)
    begun.set(toolCall.id, { toolCall, attempt, idempotencyKey })
    return
  }
  const { _tag: _, nestedUsage: __, requestId: ___, stepIndex: ____, toolCallId, ...ended } = record
  const call = begun.get(toolCallId)
  if (call !== undefined) begun.set(toolCallId, { ...call, ...ended })
}

/** What runs inside a call that ended have used, with what those before it have. */
const withUsage = (interrupted: Interrupted, record: Records.Record): Interrupted => {
  if (record._tag !== "CallEnded" || record.nestedUsage === undefined) return interrupted
  const nestedUsage = Response.sumUsage([interrupted.nestedUsage ?? null, record.nestedUsage])
  return nestedUsage === null ? interrupted : { ...interrupted, nestedUsage }
}

/** A message of a turn. What the records before it contain is written once. */
const referredTo = (
  reference: RecordOf<"StepCompleted">["messages"][number],
  reply: Message.Message | undefined,
  begun: Begun
): ReadonlyArray<Message.Message> => {
  if (!("_tag" in reference)) return [reference]
  const { resultCut = "headAndTail", resultLimit = 0, toolCallId } = reference
  if (toolCallId === undefined) return reply === undefined ? [] : [reply]
  const call = begun.get(toolCallId)
  return call === undefined ? [] : [Answers.recalled(call.toolCall, call, { resultLimit, resultCut })]
}

const stepCompleted = (
  state: JournalState,
  interrupted: Interrupted,
  record: RecordOf<"StepCompleted">
): JournalState => {
  const { before: _, nestedUsage: __, reply, response: replied, ...rest } = interrupted
  const response = record.response ?? replied
  const said = record.response === undefined ? reply : messageOf(record.response)
  const begun = begunOf(interrupted)
  const messages = record.messages.flatMap((message) => referredTo(message, said, begun))
  const session = SessionState.stepped(state.session, messages, record.suspensions ?? [])
  const step = response === undefined || record.done === undefined
    ? []
    : [wholeStep(session.thread, response, record.done, messages, record)]
  return { ...state, session, interrupted: { ...rest, steps: [...interrupted.steps, ...step], calls: [] } }
}

/** A whole step as the run that made it has it. */
const wholeStep = (
  thread: Thread.Thread,
  response: Response.Response,
  done: boolean,
  messages: ReadonlyArray<Message.Message>,
  { closing, contextUpdate, halt, manualToolCalls = [], mode = "auto", suspensions, nestedUsage }: RecordOf<
    "StepCompleted"
  >
): Records.WholeStep => {
  const toolResults = messages.filter(({ role }) => role === "tool")
  const answered = { thread, response, toolResults, done, halt, manualToolCalls, mode, suspensions, contextUpdate }
  return {
    result: Fold.stepResultOf(answered),
    ...(closing === undefined ? {} : { closing }),
    ...(nestedUsage === undefined ? {} : { nestedUsage })
  }
}

/** Of a run that is a part of another one: what it came to. */
const endedOf = (
  { parent, requestId, steps }: Interrupted,
  { result }: RecordOf<"RunEnded">
): Pick<JournalState, "ended"> =>
  parent === undefined || result === undefined ? {} : { ended: { requestId, steps, result, parent } }

/** The state after a run, with what was submitted meanwhile. */
const over = ({ submitted }: JournalState, session: Session): JournalState =>
  submitted === undefined ? { session } : { session, submitted }

/** A message that was submitted waits for another run where the one that took it up could not start. */
const resubmitted = (state: JournalState, { taken }: Interrupted): JournalState =>
  taken === undefined ? state : { ...state, submitted: [taken, ...state.submitted ?? []] }

const settledBy = (answers: Interrupted["answers"] = [], session: Session): Session =>
  answers.reduce((session, { answer, id }) => SessionState.settle(session, id, answer), session)

const inRun = (state: JournalState, record: Records.Record): JournalState => {
  const { interrupted, session } = state
  if (interrupted === undefined) return state
  switch (record._tag) {
    case "ApprovedAnswered":
      return approvedAnswered(state, interrupted, record)
    case "QuestionWithdrawn": {
      const { before } = interrupted
      return {
        ...state,
        session: SessionState.withdrawn(session, record.message),
        interrupted: before === undefined
          ? interrupted
          : { ...interrupted, before: SessionState.withdrawn(before, record.message) }
      }
    }
    case "ReplyReceived":
      return { ...state, interrupted: replyReceived(interrupted, record) }
    case "CallStarted":
    case "CallEnded": {
      const begun = begunOf(interrupted)
      note(begun, record)
      return { ...state, interrupted: { ...withUsage(interrupted, record), calls: Array.from(begun.values()) } }
    }
    case "StepCompleted":
      return stepCompleted(state, interrupted, record)
    case "RunFailed":
      return over(resubmitted(state, interrupted), atRest({ session: interrupted.before ?? session, interrupted }))
    case "RunEnded":
      return {
        ...over(
          state,
          settledBy(interrupted.answers, SessionState.ended(SessionState.saying(session, record.messages), record))
        ),
        ...endedOf(interrupted, record)
      }
    default:
      return state
  }
}

/**
 * A state after a record. The same records give the same state in every process. A record that does not fit where it stands
 * changes nothing.
 */
export const apply = (state: JournalState, record: Records.Record): JournalState => {
  switch (record._tag) {
    case "Opened":
      return over(state, record.session)
    case "MessagesAppended":
      return over(state, SessionState.saying(atRest(state), record.messages))
    case "Answered":
      return answered(state, record)
    case "StopRequested":
      return state.interrupted?.requestId === record.requestId ? { ...state, stop: record } : state
    case "MessageSubmitted":
      return { ...state, submitted: [...state.submitted ?? [], record] }
    case "RunStarted":
      return runStarted(state, record)
    default:
      return inRun(state, record)
  }
}

/**
 * A journal that is read record by record, which comes to what {@link apply} gives. The calls of a turn are gathered here,
 * so that a turn of many takes as much for each of them as a turn of few.
 */
export class Reading {
  private read: JournalState
  private begun: Begun | undefined

  constructor(state: JournalState) {
    this.read = state
  }

  take(record: Records.Record): void {
    const { interrupted } = this.read
    if (interrupted === undefined || (record._tag !== "CallStarted" && record._tag !== "CallEnded")) {
      this.read = apply(this.state, record)
      return
    }
    this.begun ??= begunOf(interrupted)
    note(this.begun, record)
    const used = withUsage(interrupted, record)
    if (used !== interrupted) this.read = { ...this.read, interrupted: used }
  }

  /** What the records come to so far. */
  get state(): JournalState {
    const { begun, read } = this
    if (begun !== undefined && read.interrupted !== undefined) {
      this.read = { ...read, interrupted: { ...read.interrupted, calls: Array.from(begun.values()) } }
    }
    this.begun = undefined
    return this.read
  }
}

/**
 * An answer that comes while a run has no end is for a call that one of its whole steps, or an approved call, has left open. It is settled behind
 * the end of the run, which may have been written without knowing of it.
 */
const answered = (state: JournalState, record: RecordOf<"Answered">): JournalState => {
  const { interrupted, session } = state
  if (interrupted === undefined) return over(state, settledBy([record], session))
  // The question of an approved call may not be in the session yet.
  if (!atRest(state).suspensions.some(({ id }) => id === record.id)) return state
  return { ...state, interrupted: { ...interrupted, answers: [...interrupted.answers ?? [], record] } }
}

const runStarted = (state: JournalState, record: RecordOf<"RunStarted">): JournalState => {
  const { answered, deadlineAt, messages, operation, parent, requestId, resumes, startedAt, submitted } = record
  const { interrupted } = state
  if (resumes !== undefined && interrupted?.requestId === resumes) {
    return { ...state, interrupted: { ...interrupted, requestId, resumptions: interrupted.resumptions + 1 } }
  }
  const before = atRest(state)
  const session = answered === undefined ? before : SessionState.settle(before, answered.id, answered.answer)
  const begun: Interrupted = {
    requestId,
    operation,
    messages,
    before,
    approved: session.approved,
    approvedAnswers: [],
    steps: [],
    calls: [],
    resumptions: 0,
    ...(startedAt === undefined ? {} : { startedAt }),
    ...(deadlineAt === undefined ? {} : { deadlineAt }),
    ...(parent === undefined ? {} : { parent })
  }
  const taken = state.submitted?.find(({ id }) => id === submitted)
  const waiting = state.submitted?.filter((other) => other !== taken) ?? []
  return {
    // The message stands behind the answers of the approved calls. Until they are there, what it answers is open.
    session: session.approved.length > 0 ? session : SessionState.saying(SessionState.running(session), messages),
    interrupted: taken === undefined ? begun : { ...begun, taken },
    ...(waiting.length === 0 ? {} : { submitted: waiting })
  }
}

// Events to records.

/**
 * What the events of an operation are: those of a whole run, or of one step.
 *
 * @category models
 * @since 0.1.0
 */
export type Mode = "chat" | "step"

/**
 * A fold in progress, from the events of an operation to the session after it. Read it through `Session.finalize`.
 *
 * @category models
 * @since 0.1.0
 */
export interface StreamReducer<out M extends Mode = Mode> {
  /** The session that it started from, which it never changes. */
  readonly session: Session
  /** What the events are. */
  readonly mode: M
  /** Whether the run has ended. Further events change nothing. */
  readonly isEnded: boolean
}

/** What a fold in progress knows. */
export interface Progress<out M extends Mode = Mode> extends StreamReducer<M> {
  /** The session so far, with the run that it is in. */
  readonly state: JournalState
  /** What the events came to. */
  readonly collector: Fold.State
  /** The calls that were approved, and what they came to. They run before anything else does. */
  readonly approvedCalls: ReadonlyArray<Message.ToolCall>
  readonly approved: Fold.State
  /** Those of them that have begun. */
  readonly begun: ReadonlyArray<SessionState.Begun>
}

/**
 * What an operation came to.
 *
 * @category models
 * @since 0.1.0
 */
export interface Done<out M extends Mode = "chat"> {
  /** The session after it. */
  readonly session: Session
  /** The result of its run: a `StepResult` for `Session.step`, and a `ChatResult` for every other operation. */
  readonly result: M extends "chat" ? Event.ChatResult : Event.StepResult
}

type NewRecords = ReadonlyArray<Records.Record>

/** The reducer of an operation, which has the id of the run and its user message. */
export const started = <M extends Mode>(session: Session, mode: M, state: JournalState): Progress<M> => {
  const collector = Fold.initial(Policy.standard, { thread: session.thread })
  const approved = Fold.initial(Policy.standard)
  const { interrupted } = state
  if (interrupted !== undefined) {
    Fold.takeUp(collector, interrupted.steps.map(({ result }) => result))
    Fold.apply(approved, interrupted.approvedAnswers.flatMap(eventsOf))
  }
  const approvedCalls = interrupted?.approved ?? session.approved
  return { session, mode, state, collector, approvedCalls, approved, begun: [], isEnded: false }
}

/** The events that answers of approved calls are folded from again. */
const eventsOf = (record: RecordOf<"ApprovedAnswered">): ReadonlyArray<Event.Event> => {
  const { contextUpdate, halts = [], messages, suspensions = [] } = record
  const within = suspensions.filter(({ path }) => path !== undefined)
  const suspended = Array.from(new Set(within.map(OpenCalls.outerOf)), (toolCallId): Event.Event => ({
    _tag: "ToolSuspended",
    toolCallId,
    toolName: "",
    suspensions: within.filter((suspension) => OpenCalls.outerOf(suspension) === toolCallId)
  }))
  const answers = messages.map((message): Event.Event => {
    const { content, isError, toolCallId: id = "" } = message
    const question = suspensions.find((suspension) => suspension.id === id)
    if (question !== undefined) return OpenCalls.askedAgain(question)
    const halt = halts.find((halt) => "haltToolCallId" in halt && halt.haltToolCallId === id)
    return halt === undefined
      ? { _tag: "ToolResultEncoded", id, content, ...(isError === true ? { isError } : {}) }
      : OpenCalls.haltedAgain(id, content, halt)
  })
  const [first] = messages
  return contextUpdate === undefined || first?.toolCallId === undefined ? [...answers, ...suspended] : [
    {
      _tag: "ToolExecutionCompleted",
      id: first.toolCallId,
      name: "",
      result: { _tag: "Ok", value: null },
      contextUpdate
    },
    ...answers,
    ...suspended
  ]
}

/** The reducer before the first event. Dies for another mode than the two. */
export const make = <const M extends Mode>(session: Session, mode: M): StreamReducer<M> => {
  if (mode !== "chat" && mode !== "step") {
    throw new TypeError(`Session.reducer: the mode must be "chat" or "step"; got: ${JSON.stringify(mode)}`)
  }
  // The events do not have the user message. An open question stays open until they show its answer.
  const interrupted: Interrupted = {
    requestId: "",
    operation: mode === "step" ? "step" : "continue",
    messages: [],
    before: session,
    approved: session.approved,
    approvedAnswers: [],
    steps: [],
    calls: [],
    resumptions: 0
  }
  return started(session, mode, { session, interrupted })
}

const approvedIds = ({ approvedCalls }: Progress): ReadonlyArray<string> => approvedCalls.map((call) => call.id)

/** The questions of approved calls that are open, in call order. */
export const questionsOf = ({ approved, approvedCalls }: Progress): ReadonlyArray<Event.Suspension> =>
  approved.tools.open(approvedCalls)

/** The halt of an approved call that decides, as it would in a turn. */
export const haltOf = (
  reducer: Progress,
  { haltPrecedence }: Pick<Policy.Policy, "haltPrecedence">
): Event.Halt | undefined => reducer.approved.tools.deciding(approvedIds(reducer), haltPrecedence)

/** What the approved calls add to the context. */
export const contextUpdateOf = (reducer: Progress): Event.ChatResult["contextUpdate"] =>
  reducer.approved.tools.contextUpdate(approvedIds(reducer))

const requestId = ({ state }: Progress): string => state.interrupted?.requestId ?? ""

/** The messages that a thread has more than the session. */
const news = ({ state }: Progress, thread: Thread.Thread): ReadonlyArray<Message.Message> =>
  SharedMessages.since(thread, SharedMessages.length(state.session.thread))

const replied = (reducer: Progress, stepIndex: number): NewRecords => {
  const run = requestId(reducer)
  // As the step has it, which the journal then does not write again.
  const response = { ...Collector.toResponse(reducer.collector), requestId: run }
  const calls = Response.actionableCalls(response)
  if (calls.length === 0) return []
  return [{ _tag: "ReplyReceived", requestId: run, stepIndex, response }]
}

/** The end of a run after which `open` is what the session waits for. */
const endedAs = (
  reducer: Progress,
  open: Session["suspensions"],
  result: Parameters<typeof SessionState.leaving>[0],
  outcome: Event.Outcome | undefined,
  messages: ReadonlyArray<Message.Message> = []
): RecordOf<"RunEnded"> => {
  const left = SessionState.leaving(result, outcome)
  const context = { ...contextUpdateOf(reducer), ...left.context }
  const haltedReason = outcome === undefined ? "" : Outcomes.haltedReason(outcome)
  return {
    _tag: "RunEnded",
    requestId: requestId(reducer),
    haltedReason,
    messages,
    suspensions: open,
    ...left,
    context
  }
}

const stepped = (reducer: Progress, event: Event.Of<"StepCompleted">): NewRecords => {
  const step = Collector.toStepResult(reducer.collector)
  const { halt, manualToolCalls, mode, response, suspensions } = event
  const whole: Types.Mutable<RecordOf<"StepCompleted">> = {
    _tag: "StepCompleted",
    requestId: requestId(reducer),
    stepIndex: reducer.collector.steps.length - 1,
    messages: news(reducer, event.thread),
    response,
    done: step.done
  }
  if (suspensions !== undefined) whole.suspensions = suspensions
  if (step.mode === "manual") whole.mode = mode
  if (manualToolCalls.length > 0) whole.manualToolCalls = manualToolCalls
  if (halt !== undefined) whole.halt = halt
  if (step.contextUpdate !== undefined) whole.contextUpdate = step.contextUpdate
  if (event.closing !== undefined) whole.closing = event.closing
  if (reducer.mode === "chat") return [whole]
  return [whole, endedAs(reducer, suspensions ?? [], step, Outcomes.ofStep(step, 0))]
}

/**
 * A question of an approved call that its own run withdraws, or one that the user answers with the run. What was settled
 * before the run is in the session.
 */
const withdrawn = (reducer: Progress, event: Event.Event): NewRecords => {
  if (event._tag !== "ToolResultEncoded" || event.settled !== true) return []
  return reducer.state.session.suspensions.some((suspension) => OpenCalls.outerOf(suspension) === event.id)
    ? [{ _tag: "QuestionWithdrawn", requestId: requestId(reducer), message: OpenCalls.messageOf(event) }]
    : []
}

/** How a run ended. A step that was taken up leaves the session as a step does, unless it was stopped or given up. */
const outcomeOf = ({ state: { interrupted } }: Progress, result: Event.ChatResult): Event.Outcome | undefined => {
  const { outcome, steps } = result
  if (interrupted?.operation !== "step" || outcome._tag === "Cancelled" || outcome._tag === "Failed") return outcome
  const last = steps.at(-1)
  return last === undefined ? undefined : Outcomes.ofStep(last, 0)
}

/** The records of an event that the reducer has folded. */
const recordsOf = (reducer: Progress, event: Event.Event): NewRecords => {
  switch (event._tag) {
    case "MessageCompleted":
      return replied(reducer, reducer.collector.steps.length)
    case "ToolResultEncoded":
      return withdrawn(reducer, event)
    case "StepCompleted":
      return stepped(reducer, event)
    case "ChatCompleted": {
      const { result } = event
      const { suspensions } = reducer.state.session
      const { abandoned = [] } = result
      const ended = endedAs(reducer, suspensions, result, outcomeOf(reducer, result), news(reducer, result.thread))
      const named = abandoned.length === 0 ? ended : { ...ended, abandoned }
      return [reducer.state.interrupted?.parent === undefined ? named : { ...named, result: Nested.received(result) }]
    }
    default:
      return []
  }
}

const withBegun = ({ begun, session }: Progress, event: Event.Event): Progress["begun"] => {
  if (event._tag !== "ToolExecutionStarted" && event._tag !== "ToolExecutionCompleted") return begun
  const toolCall = session.approved.find(({ id }) => id === event.id)
  if (toolCall === undefined) return begun
  const others = begun.filter((call) => call.toolCall !== toolCall)
  return [...others, event._tag === "ToolExecutionStarted" ? { toolCall } : { toolCall, outcome: event.result }]
}

/** The records of an event of the approved calls: each answer as it comes, with the question that it may be. */
const recordsOfApproved = (reducer: Progress, event: Event.Event): NewRecords => {
  const settled = withdrawn(reducer, event)
  if (settled.length > 0) return settled
  const pending = new Set(reducer.state.session.approved.map(({ id }) => id))
  const isPending = (id: string | undefined): boolean => id !== undefined && pending.has(id)
  const answers = reducer.approved.tools.inOrder(approvedIds(reducer))
  const messages = answers.filter(({ toolCallId }) => isPending(toolCallId))
  const suspensions = questionsOf(reducer).filter((suspension) => isPending(OpenCalls.outerOf(suspension)))
  if (messages.length === 0 && suspensions.length === 0) return []
  const ids = messages.flatMap(({ toolCallId }) => toolCallId ?? [])
  const halts = reducer.approved.tools.halts(ids).filter((halt) => halt.haltedReason !== "ask_user")
  const contextUpdate = reducer.approved.tools.contextUpdate(ids, true)
  return [{
    _tag: "ApprovedAnswered",
    requestId: requestId(reducer),
    messages,
    ...(suspensions.length === 0 ? {} : { suspensions }),
    ...(halts.length === 0 ? {} : { halts }),
    ...(contextUpdate === undefined ? {} : { contextUpdate })
  }]
}

const isOpening = ({ state }: Progress): boolean => state.session.approved.length > 0

/** The reducer after an event, and the records of it. */
export const next = <M extends Mode>(
  reducer: Progress<M>,
  event: Event.Event
): readonly [reducer: Progress<M>, records: NewRecords] => {
  if (reducer.isEnded) return [reducer, []]
  if (!isOpening(reducer)) {
    const folded = { ...reducer, collector: Fold.applied(reducer.collector, [event]) }
    return after(folded, recordsOf(folded, event))
  }
  const opened = {
    ...reducer,
    approved: Fold.applied(reducer.approved, [event]),
    collector: reducer.mode === "step" ? Fold.applied(reducer.collector, [event]) : reducer.collector,
    begun: withBegun(reducer, event)
  }
  return after(opened, recordsOfApproved(opened, event))
}

const after = <M extends Mode>(
  reducer: Progress<M>,
  records: NewRecords
): readonly [Progress<M>, NewRecords] => {
  if (records.length === 0) return [reducer, records]
  const state = records.reduce(apply, reducer.state)
  const isEnded = records.some((record) => record._tag === "RunEnded")
  const session = isEnded ? SessionState.plain(state.session) : state.session
  return [{ ...reducer, state: { ...state, session }, isEnded }, records]
}

/** The reducer after an event. The given one is not changed. */
export const applyEvent = <M extends Mode>(reducer: StreamReducer<M>, event: Event.Event): StreamReducer<M> =>
  next(reducer as Progress<M>, event)[0]

/** The run was left while the call ran. */
const runLeft = (toolCall: Message.ToolCall): Message.Message =>
  Answers.refused("cancelled", toolCall, "the run was left")

/** The session after the stream, and its result. A stream that was cut is cancelled, and leaves what was whole of it. */
export const finalize = <M extends Mode>(reducer: StreamReducer<M>): Done<M> => {
  const { begun, collector, isEnded, mode, session, state } = reducer as Progress<M>
  const done = (session: Session, result: Event.ChatResult | Event.StepResult) => ({ session, result }) as Done<M>
  if (isEnded) {
    return done(state.session, mode === "chat" ? Collector.toChatResult(collector) : Collector.toStepResult(collector))
  }
  const left = SessionState.brokenOff(state.session, begun, runLeft)
  if (mode === "step") {
    const result = { ...Collector.toStepResult(collector), haltedReason: "cancelled" }
    return done(session.approved.length === 0 ? session : SessionState.plain(left), result)
  }
  const result = Collector.toChatResult(collector)
  // A whole step, or an approved call, may have left calls open: they stay so.
  const record = endedAs(reducer as Progress<M>, left.suspensions, result, result.outcome)
  const ended = SessionState.plain(apply({ ...state, session: left }, record).session)
  const isReady = ended.approved.length > 0 && ended.suspensions.length === 0
  return done(isReady ? { ...ended, status: "idle" } : ended, result)
}
