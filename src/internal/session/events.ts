/**
 * Converts events to records. An operation's journal uses the functions for single events, and `Session.reducer`
 * converts all events of a run. Records already in the state are not made again.
 */
import type * as Types from "effect/Types"
import type * as Chat from "../../Chat.ts"
import * as Collector from "../../Collector.ts"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import * as Policy from "../../Policy.ts"
import * as Response from "../../Response.ts"
import * as Answers from "../answer/answer.ts"
import * as OpenCalls from "../answer/openCalls.ts"
import { isCrash, resumeOf, ToolError } from "../declare/outcome.ts"
import * as Fold from "../fold/fold.ts"
import * as Outcomes from "../fold/runOutcome.ts"
import * as SharedMessages from "../fold/sharedMessages.ts"
import * as Json from "../json.ts"
import type * as RunJournal from "../run/runJournal.ts"
import type * as SessionData from "./data.ts"
import * as Nested from "./nested.ts"
import type * as Records from "./records.ts"
import * as States from "./state.ts"

type NewRecords = ReadonlyArray<Records.Record>

// Calls.

/** A call's nested usage, and the cost of its unjournaled requests. */
export type Used = Pick<Records.CallEnded, "nestedSpent" | "nestedUsage">

/** A call's answer, apart from the message in its last event. */
export interface Answer {
  readonly failure?: Answers.Answer["failure"] | undefined
  readonly code?: Answers.Answer["code"] | undefined
  readonly contextUpdate?: Json.JsonObject | undefined
  readonly used?: Used
}

/** Returns the record of a call-ending event. A question becomes a suspension record. */
export const endOf = (
  requestId: string,
  toolCall: Message.ToolCall,
  tail: OpenCalls.Tail,
  { code, contextUpdate, failure, used: nested = {} }: Answer
): Records.Record => {
  const used = {
    ...(contextUpdate === undefined ? {} : { contextUpdate }),
    ...nested
  }
  if (tail._tag === "AskUserRequested") {
    const { toolCall: _, ...suspension } = OpenCalls.question(toolCall, tail)
    return { _tag: "CallWaits", requestId, toolCallId: toolCall.id, suspensions: [suspension], ...used }
  }
  const halt = OpenCalls.haltOf(tail)
  const ended: Types.Mutable<Records.CallEnded> = {
    _tag: "CallEnded",
    requestId,
    message: OpenCalls.messageOf(tail),
    ...used
  }
  if (failure !== undefined) ended.failure = failure
  if (code !== undefined) ended.reason = code
  // JSON has no `undefined`.
  if (halt !== undefined) ended.halt = "haltResult" in halt ? { ...halt, haltResult: halt.haltResult ?? null } : halt
  if (tail._tag === "ToolResultEncoded" && tail.originalLength !== undefined) ended.originalLength = tail.originalLength
  return ended
}

/** Returns the record of a suspended call. */
export const waitOf = (
  requestId: string,
  toolCall: Message.ToolCall,
  event: Event.Of<"ToolApprovalRequested" | "ToolSuspended">,
  used: Used = {}
): Records.Record => {
  const suspensions = event._tag === "ToolSuspended"
    ? event.suspensions
    : [OpenCalls.waiting("approval", toolCall, event.expiresAt, event.remember)]
  const resume = resumeOf(suspensions[0])
  return {
    _tag: "CallWaits",
    requestId,
    toolCallId: toolCall.id,
    suspensions: suspensions.map(({ toolCall, ...open }) => open.path === undefined ? open : { ...open, toolCall }),
    ...(resume === undefined ? {} : { resume }),
    ...used
  }
}

// A fold in progress.

/**
 * Scope of the events: a whole run, or one step.
 *
 * @category models
 */
export type Mode = "chat" | "step"

/**
 * A fold in progress, from an operation's events to the session after it. Read its result with `Session.finalize`.
 *
 * @category models
 */
export interface StreamReducer<out M extends Mode = Mode> {
  /** Initial session, which the fold never changes. */
  readonly session: SessionData.Session
  /** Scope of the events. */
  readonly mode: M
  /** `true` once the run has ended. Further events change nothing. */
  readonly isEnded: boolean
}

/** The fold of the events, apart from the state. */
interface Folded {
  readonly mode: Mode
  /** The fold of the model's turns. */
  collector: Fold.State
  /** Latest call with an outcome, whose answer follows. */
  completed: Event.Of<"ToolExecutionCompleted"> | undefined
  /** Ends of unstarted calls from before their reply was complete: they follow the reply. */
  early: ReadonlyArray<Pick<Folded, "completed"> & { readonly tail: OpenCalls.Tail }>
}

interface Progress<out M extends Mode = Mode> extends StreamReducer<M>, Omit<Folded, "mode"> {
  readonly state: States.State
}

/**
 * Result of an operation.
 *
 * @category models
 */
export interface Done<out M extends Mode = "chat", A = never> {
  /** The session after the operation. */
  readonly session: SessionData.Session
  /** Result of the run: a `StepResult` for `Session.step`, and a `ChatResult` for all other operations. */
  readonly result: M extends "chat" ? Chat.Result<A> : Event.StepResult
}

/** Returns the fold before the first event of an operation on a state. */
const folding = (mode: Mode, state: States.State): Folded => {
  const collector = Fold.initial(Policy.standard, { thread: SharedMessages.plain(States.threadOf(state)) })
  if (state.run !== undefined) Fold.takeUp(collector, state.run.steps.map(({ result }) => result))
  return { mode, collector, completed: undefined, early: [] }
}

/** Returns `true` if an earlier turn's calls still have to run. They run before the model is asked. */
export const hasEarlierCalls = ({ turn }: States.State): boolean =>
  turn?.isEarlier === true && turn.open > 0 &&
  Array.from(turn.calls.values()).some(({ _tag }) => _tag === "Granted" || _tag === "Started")

/** Folds an event into the fold's sole owner. A step folds an earlier turn's calls together with its own. */
const take = (folded: Folded, state: States.State, event: Event.Event): void => {
  if (event._tag === "ToolExecutionCompleted") folded.completed = event
  if (folded.mode === "step" || !hasEarlierCalls(state)) Fold.apply(folded.collector, [event])
}

const requestIdOf = ({ run }: States.State): string => run?.requestId ?? ""

/** Returns the thread messages missing from the state. */
const news = ({ thread }: States.State, longer: Thread): ReadonlyArray<Message.Message> =>
  SharedMessages.since(longer, SharedMessages.length(thread))

type Thread = SessionData.Session["thread"]

/** Returns the record of a reply with tool calls. */
export const replyOf = (state: States.State, response: Response.Response, stepIndex: number): NewRecords => {
  const requestId = requestIdOf(state)
  return Response.actionableCalls(response).length === 0
    ? []
    : [{ _tag: "ReplyReceived", requestId, stepIndex, response: { ...response, requestId } }]
}

const started = (state: States.State, { id, name, arguments: args }: Event.Of<"ToolExecutionStarted">): NewRecords => {
  const call = state.turn?.calls.get(id)
  if (call !== undefined && call._tag !== "Asked" && call._tag !== "Granted") return []
  const toolCall = call === undefined ? { toolCall: { id, name, arguments: args, metadata: {} } } : {}
  const requestId = requestIdOf(state)
  const attempt = (call?.attempt ?? 0) + 1
  return [{
    _tag: "CallStarted",
    requestId,
    toolCallId: id,
    ...toolCall,
    attempt,
    idempotencyKey: call?.idempotencyKey ?? ""
  }]
}

const failureOf = (result: Event.CallOutcome | undefined): Answer["failure"] => {
  if (result?._tag !== "Error") return undefined
  if (!(result.error instanceof ToolError)) return "reported"
  return isCrash(result.error) ? "crashed" : undefined
}

const ended = (state: States.State, folded: Folded, tail: OpenCalls.Tail): NewRecords => {
  const { completed } = folded
  const id = OpenCalls.callOf(tail)
  const call = state.turn?.calls.get(id)
  if (call === undefined) folded.early = [...folded.early, { completed, tail }]
  if (call === undefined || call._tag === "Answered") return []
  // An open question is settled or asked again. A call waiting for something else is answered or settled.
  const isSettlement = tail._tag === "ToolResultEncoded" && tail.settled === true
  if (call._tag === "Waiting" && tail._tag !== "ToolResultEncoded") return []
  if (isSettlement && call._tag !== "Waiting") return []
  const own = completed?.id === id && !isSettlement ? completed : undefined
  // A question is settled when withdrawn by its run.
  const code = isSettlement ? "cancelled" : codeOf(own?.result)
  const answer = { failure: failureOf(own?.result), code, contextUpdate: own?.contextUpdate }
  return [endOf(requestIdOf(state), call.toolCall, tail, answer)]
}

const codeOf = (result: Event.CallOutcome | undefined): Answer["code"] =>
  result?._tag === "Error" ? Answers.codeOf(result.error) : undefined

const waits = (state: States.State, event: Event.Of<"ToolApprovalRequested" | "ToolSuspended">): NewRecords => {
  const call = state.turn?.calls.get(event.toolCallId)
  return call === undefined || call._tag === "Answered" || call._tag === "Waiting"
    ? []
    : [waitOf(requestIdOf(state), call.toolCall, event)]
}

// Steps and runs.

/** Returns the records of calls handed over to the caller in a step, which no batch call has reported. */
const handedOver = (state: States.State, { suspensions = [] }: Event.Of<"StepCompleted">): NewRecords => {
  const requestId = requestIdOf(state)
  return suspensions.flatMap(({ toolCall, ...open }): NewRecords => {
    const call = state.turn?.calls.get(toolCall.id)
    return open.path !== undefined || call === undefined || call._tag === "Waiting"
      ? []
      : [{ _tag: "CallWaits", requestId, toolCallId: toolCall.id, suspensions: [open] }]
  })
}

/** Returns `true` if the record of the turn's reply has a response, unless the turn failed since. */
const isOfReply = (own: States.Turn | undefined, response: Response.Response): boolean =>
  own?.response !== undefined && (own.response.error === undefined) === (response.error === undefined)

/** Returns the records of a whole step. */
export const stepOf = (
  state: States.State,
  operation: Mode,
  event: Event.Of<"StepCompleted">,
  { index, kept, nestedUsage, result: step }: RunJournal.Stepped
): NewRecords => {
  const { halt, mode, notes, response } = event
  const requestId = requestIdOf(state)
  const own = state.turn?.isEarlier === false ? state.turn : undefined
  const waiting = handedOver(state, event)
  const whole: Types.Mutable<Records.StepCompleted> = {
    _tag: "StepCompleted",
    requestId,
    stepIndex: index,
    done: step.done,
    ...messagesOf(state, event, response)
  }
  if (!isOfReply(own, response)) whole.response = response
  if (step.mode === "manual") whole.mode = mode
  if (halt !== undefined) whole.haltedBy = "haltToolCallId" in halt ? halt.haltToolCallId : halt.pendingToolCallId
  const noted = newNotes(state, notes)
  if (noted !== undefined) whole.notes = noted
  if (nestedUsage !== null) whole.nestedUsage = nestedUsage
  if (operation === "chat") return [...waiting, whole]
  const ended = { ...runEnded(state, step, Outcomes.ofStep(step, 0)), ...keptOf(state, kept) }
  // A step that ended with an earlier turn's calls has no turn of its own.
  return whole.messages?.length === 0 ? [ended] : [...waiting, whole, ended]
}

/** Returns a step's notes missing from earlier records. */
const newNotes = ({ run }: States.State, notes: Event.Of<"StepCompleted">["notes"] = {}): typeof notes | undefined => {
  const news = Object.entries(notes).filter(([name, note]) => !Json.isSame(note, run?.noted[name]))
  return news.length === 0 ? undefined : Object.fromEntries(news)
}

/** Returns a step's messages missing from earlier records. */
const messagesOf = (
  state: States.State,
  { thread }: Event.Of<"StepCompleted">,
  response: Response.Response
): Pick<Records.StepCompleted, "introduced" | "messages"> => {
  const { turn } = state
  const own = turn?.isEarlier === false ? States.messagesIn(turn) : [States.messageOf(response)]
  const earlier = turn?.isEarlier === true ? States.messagesIn(turn).length : 0
  const all = news(state, thread).slice(earlier)
  // Calls started, but their reply never became complete.
  if (turn?.isEarlier === false && turn.message === undefined) return { messages: all }
  const introduced = all.slice(0, Math.max(0, all.length - own.length))
  const isOwn = own.every((message, index) => isSameMessage(all[introduced.length + index], message))
  if (!isOwn || all.length < own.length) return { messages: all }
  return introduced.length === 0 ? {} : { introduced }
}

/** Returns `true` if two messages in one turn are the same. Most are single-text answers. */
const isSameMessage = (one: Message.Message | undefined, other: Message.Message): boolean => {
  if (one?.role !== other.role || one.toolCallId !== other.toolCallId || one.isError !== other.isError) return false
  const isSameText = one.content === other.content && one.finishReason === other.finishReason
  if (!isSameText || one.role !== "assistant" && one.role !== "tool") return Json.isSame(one, other)
  const { toolCalls = [] } = one
  const others = other.toolCalls ?? []
  return toolCalls.length === others.length && toolCalls.every(({ id }, index) => id === others[index]?.id)
}

/** Returns the record ending a run. */
const runEnded = (
  state: States.State,
  result: Pick<Event.ChatResult, "metadata" | "output" | "spent">,
  outcome: Event.Outcome | undefined,
  messages: ReadonlyArray<Message.Message> = []
): Records.RunEnded => {
  const metadata = { ...result.metadata, ...errorOf(outcome) }
  const status = statusOf(outcome)
  return {
    _tag: "RunEnded",
    requestId: requestIdOf(state),
    haltedReason: outcome === undefined ? "" : Outcomes.haltedReason(outcome),
    ...(messages.length === 0 ? {} : { messages }),
    ...(outcome?._tag === "RuleEnded" ? { rule: endedBy(outcome) } : {}),
    ...("output" in result ? { output: result.output } : {}),
    ...(result.spent === undefined ? {} : { spent: result.spent }),
    ...(status === "idle" ? {} : { status }),
    ...(Object.keys(metadata).length === 0 ? {} : { metadata })
  }
}

const statusOf = (outcome: Event.Outcome | undefined): SessionData.Status => {
  if (outcome === undefined) return "idle"
  if (outcome._tag === "Cancelled" && outcome.reason === "stop") return "stopped"
  if (outcome._tag === "RuleEnded") return outcome.status
  return outcome._tag === "ToolFailed" || outcome._tag === "Failed" ? "error" : "completed"
}

const endedBy = ({ detail, rule: name }: Event.RuleEndedOutcome): NonNullable<Records.RunEnded["rule"]> =>
  detail === undefined ? { name } : { name, detail }

const errorOf = (outcome: Event.Outcome | undefined): SessionData.Session["metadata"] => {
  if (outcome?._tag === "Failed") return { error: outcome.error }
  if (outcome?._tag === "RuleEnded" && outcome.status === "error") {
    const { name: rule, ...more } = endedBy(outcome)
    return { error: { rule, ...more } }
  }
  if (outcome?._tag !== "ToolFailed") return {}
  const { haltToolCallId, onToolErrorException } = outcome
  return { error: onToolErrorException ?? { haltToolCallId } }
}

/** Returns a run's outcome. A resumed step leaves the session as a step does, unless stopped or given up. */
const outcomeOf = ({ run }: States.State, { outcome, steps }: Event.ChatResult): Event.Outcome | undefined => {
  if (run?.operation !== "step" || outcome._tag === "Cancelled" || outcome._tag === "Failed") return outcome
  const last = steps.at(-1)
  return last === undefined ? undefined : Outcomes.ofStep(last, 0)
}

/** Returns the rule notes kept for the session, if different from those before the run. */
const keptOf = (
  state: States.State,
  kept: Event.Of<"ChatCompleted">["kept"]
): Pick<Records.RunEnded, "kept"> => kept === undefined || Json.isSame(kept, state.kept) ? {} : { kept }

/** Returns the record of a run's end. */
export const runOf = (state: States.State, { kept, result }: Event.Of<"ChatCompleted">): NewRecords => {
  const { turn } = state
  const known = turn === undefined ? 0 : States.messagesIn(turn).length
  const messages = news(state, result.thread).slice(known)
  const { abandoned = [] } = result
  return [{
    ...runEnded(state, result, outcomeOf(state, result), messages),
    ...(abandoned.length === 0 ? {} : { abandoned }),
    ...keptOf(state, kept),
    ...(state.parent === undefined ? {} : { result: Nested.received(result) })
  }]
}

/** Returns a folded event's records missing from the state. */
const recordsOf = (state: States.State, folded: Folded, event: Event.Event): NewRecords => {
  const { collector, mode } = folded
  switch (event._tag) {
    case "StepReset":
      folded.early = []
      return []
    case "MessageCompleted":
      return hasEarlierCalls(state) || event.replayed === true
        ? []
        : replyOf(state, Collector.toResponse(collector), collector.steps.length)
    case "ToolExecutionStarted":
      return started(state, event)
    case "ToolResultEncoded":
    case "AskUserRequested":
    case "ToolHalt":
      return ended(state, folded, event)
    case "ToolApprovalRequested":
    case "ToolSuspended":
      return waits(state, event)
    case "StepCompleted":
      return stepOf(state, mode, event, {
        result: Collector.toStepResult(collector),
        index: collector.steps.length - 1,
        nestedUsage: null
      })
    case "ChatCompleted":
      return runOf(state, event)
    default:
      return []
  }
}

// The reducer for callers with only the events.

/** Returns the reducer before the first event. Dies for an unknown mode. */
export const make = <const M extends Mode>(session: SessionData.Session, mode: M): StreamReducer<M> => {
  if (mode !== "chat" && mode !== "step") {
    throw new TypeError(`Session.reducer: the mode must be "chat" or "step"; got: ${JSON.stringify(mode)}`)
  }
  const state = States.stateOf(session)
  // The events lack the messages starting the run. An open question stays open until they show its answer.
  States.change(state, {
    _tag: "RunStarted",
    requestId: "",
    operation: mode === "step" ? "step" : "continue",
    startedAt: 0,
    messages: []
  })
  return progressOf({ ...folding(mode, state), session, mode, isEnded: false, state })
}

const progressOf = <M extends Mode>(progress: Progress<M>): StreamReducer<M> => progress

/** Ends a complete reply's calls whose ends came earlier. */
const endEarly = (state: States.State, folded: Folded): void => {
  const { early } = folded
  folded.early = []
  for (const { completed, tail } of early) {
    for (const record of ended(state, { ...folded, completed }, tail)) States.change(state, record)
  }
}

/** Returns the reducer after an event, without changing the given reducer. */
export const applyEvent = <M extends Mode>(reducer: StreamReducer<M>, event: Event.Event): StreamReducer<M> => {
  const before = reducer as Progress<M>
  if (before.isEnded) return before
  const after = { ...before, collector: Fold.copy(before.collector) }
  take(after, before.state, event)
  const records = recordsOf(before.state, after, event)
  if (records.length === 0) return after
  const state = States.copyOf(before.state)
  for (const record of records) States.change(state, record)
  if (event._tag === "MessageCompleted") endEarly(state, after)
  return progressOf({ ...after, state, isEnded: state.run === undefined })
}

/**
 * Returns the session after the stream, and its result. An interrupted stream counts as cancelled, and its whole steps
 * are kept.
 */
export const finalize = <M extends Mode>(reducer: StreamReducer<M>): Done<M> => {
  const { collector, isEnded, mode, session, state: given } = reducer as Progress<M>
  const done = (session: SessionData.Session, result: Event.ChatResult | Event.StepResult) =>
    ({ session, result }) as Done<M>
  if (isEnded) {
    const result = mode === "chat" ? Collector.toChatResult(collector) : Collector.toStepResult(collector)
    return done(States.sessionOf(given), result)
  }
  const state = States.copyOf(given)
  States.leave(state, "the run was interrupted")
  if (mode === "step") {
    const result = { ...Collector.toStepResult(collector), haltedReason: "cancelled" }
    return done(session.approved.length === 0 ? session : States.sessionOf(state), result)
  }
  const result = Collector.toChatResult(collector)
  States.change(state, runEnded(state, result, result.outcome))
  const left = States.sessionOf(state)
  const isReady = left.approved.length > 0 && left.suspensions.length === 0
  return done(isReady ? { ...left, status: "idle" } : left, result)
}
