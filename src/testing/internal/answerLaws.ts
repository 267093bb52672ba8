/** Checks tool events: each call starts once, in order, and is answered once. */
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import * as Response from "../../Response.ts"
import type * as Thread from "../../Thread.ts"
import type { Violation } from "./violation.ts"

type Found = ReadonlyArray<Violation>

type Tail = Event.Of<"ToolResultEncoded" | "AskUserRequested" | "ToolHalt" | "ToolSuspended">
type ToolEvent = Event.Of<"ToolQueued" | "ToolExecutionStarted" | "ToolProgress" | "ToolExecutionCompleted"> | Tail

const isTail = (event: Event.Event): event is Tail =>
  event._tag === "ToolResultEncoded" || event._tag === "AskUserRequested" || event._tag === "ToolHalt" ||
  event._tag === "ToolSuspended"

const isToolEvent = (event: Event.Event): event is ToolEvent =>
  event._tag === "ToolQueued" || event._tag === "ToolExecutionStarted" || event._tag === "ToolProgress" ||
  event._tag === "ToolExecutionCompleted" || isTail(event)

const callOf = (event: ToolEvent): string => "toolCallId" in event ? event.toolCallId : event.id

const actionable = (calls: ReadonlyArray<Message.ToolCall> = []): ReadonlyArray<string> =>
  Response.actionableCalls({ toolCalls: calls }).map((call) => call.id)

/**
 * Returns the position of the turn a step added, if `from` messages came before: a turn cut short may be empty. Without
 * `from`, returns the model's last message after the last user message.
 */
export const turnStart = ({ messages }: Thread.Thread, from?: number): number => {
  const lastOf = (role: Message.Role): number => messages.findLastIndex((message) => message.role === role)
  const start = from === undefined
    ? lastOf("assistant")
    : messages.findIndex((message, index) => index >= from && message.role === "assistant")
  return start < 0 || (from === undefined && start < lastOf("user")) ? messages.length : start
}

/** Returns the step's own calls waiting for nested runs. */
const waitingWithin = ({ suspensions = [] }: Pick<Event.StepResult, "suspensions">): ReadonlyArray<string> =>
  Array.from(new Set(suspensions.flatMap(({ path }) => path?.[0] ?? [])))

/**
 * Returns the calls of a completed step still to be answered by the caller. A question has a placeholder answer in the
 * thread, unless its handler will restart. A run halted for another reason has no open calls.
 */
export const pendingOf = (step: Event.Of<"StepCompleted">): ReadonlyArray<string> => {
  if (step.halt !== undefined && step.halt.haltedReason !== "ask_user") return []
  const own = (step.suspensions ?? []).filter(({ path }) => path === undefined)
  const isSaid = (id: string) => step.messages.some(({ toolCallId }) => toolCallId === id)
  const waiting = own.filter(({ id, kind }) => kind !== "question" || !isSaid(id))
  const within = waitingWithin(step)
  if (step.halt !== undefined) return [...waiting.map((suspension) => suspension.id), ...within]
  const approvals = waiting.flatMap(({ id, kind }) => kind === "manual" ? [] : [id]).concat(within)
  const last = step.thread.messages.at(-1)
  return step.mode === "manual" && last?.role === "assistant"
    ? actionable(last.toolCalls)
    : [...actionable(step.manualToolCalls), ...approvals]
}

/**
 * Counts the leading events of calls from earlier turns. Before it asks the model, a continued session reports their
 * settlements and runs the approved calls.
 */
export const opening = (events: ReadonlyArray<Event.Event>): number => {
  const end = events.findIndex((event) => !isToolEvent(event) && event._tag !== "ToolApprovalRequested")
  return end < 0 ? events.length : end
}

const isSettlement = (event: Event.Event): event is Event.Of<"ToolResultEncoded"> =>
  event._tag === "ToolResultEncoded" && event.settled === true

/** Events of one call in one step. */
interface Call {
  isQueued: boolean
  isStarted: boolean
  /** `true` if it started in this run, rather than only before the run was resumed. */
  isStartedHere: boolean
  result: Event.Of<"ToolExecutionCompleted">["result"] | undefined
  isAnswered: boolean
  /** `true` if it asked a question not yet settled. */
  isOpen: boolean
}

const untouched = (): Call => ({
  isQueued: false,
  isStarted: false,
  isStartedHere: false,
  result: undefined,
  isAnswered: false,
  isOpen: false
})

const fits = (result: NonNullable<Call["result"]>, tail: Tail): boolean => {
  switch (result._tag) {
    case "Ok":
      return tail._tag === "ToolResultEncoded" && tail.isError !== true
    case "Error":
      return tail._tag === "ToolHalt"
        ? tail.reason === "tool_error"
        : tail._tag === "ToolResultEncoded" && tail.isError === true
    case "AskUser":
      return tail._tag === "AskUserRequested"
    case "Halt":
      return tail._tag === "ToolHalt" && tail.reason === result.reason
  }
}

/** Returns the fault of a tool event, given its call's earlier events. */
const misplaced = (call: Call, event: ToolEvent): Pick<Violation, "law" | "message"> | undefined => {
  const id = callOf(event)
  if (isSettlement(event)) {
    return call.isOpen ? undefined : { law: "answers", message: `call "${id}" is settled, and has no open question` }
  }
  if (event._tag === "ToolQueued" && call.isQueued) return { law: "order", message: `call "${id}" is queued twice` }
  if (event._tag === "ToolQueued" && call.isStarted) {
    return { law: "order", message: `call "${id}" is queued after its start` }
  }
  if (event._tag === "ToolExecutionStarted" && (event.replayed === true ? call.isStarted : call.isStartedHere)) {
    return { law: "starts", message: `call "${id}" started twice` }
  }
  if (isTail(event) && call.isAnswered) return { law: "answers", message: `call "${id}" is answered twice` }
  if (call.isAnswered) return { law: "order", message: `${event._tag} of call "${id}" comes after its answer` }
  if (event._tag === "ToolSuspended") {
    return call.isStarted && call.result === undefined
      ? undefined
      : { law: "order", message: `call "${id}" waits for what runs inside it, and is not running` }
  }
  if (isTail(event)) {
    if (call.result === undefined) return { law: "order", message: `call "${id}" is answered before it has completed` }
    return fits(call.result, event)
      ? undefined
      : { law: "order", message: `${event._tag} of call "${id}" does not fit its result, ${call.result._tag}` }
  }
  if (call.result !== undefined) {
    return { law: "order", message: `${event._tag} of call "${id}" comes after its completion` }
  }
  return event._tag === "ToolProgress" && !call.isStarted
    ? { law: "order", message: `call "${id}" makes progress before its start` }
    : undefined
}

const advance = (call: Call, event: ToolEvent): void => {
  if (event._tag === "ToolQueued") call.isQueued = true
  if (event._tag === "ToolExecutionStarted") {
    call.isStarted = true
    call.isStartedHere ||= event.replayed !== true
  }
  if (event._tag === "ToolExecutionCompleted") call.result = event.result
  if (isTail(event)) {
    call.isAnswered = true
    call.isOpen = event._tag === "AskUserRequested" || event._tag === "ToolSuspended"
  }
}

const unanswered = (calls: ReadonlyMap<string, Call>, index: number): Found =>
  Array.from(calls).flatMap(([id, call]) =>
    call.isAnswered ? [] : [{ law: "answers", message: `call "${id}" is left without an answer`, index }]
  )

export const order = (events: ReadonlyArray<Event.Event>, isCut: boolean): Found => {
  const found: Array<Violation> = []
  const calls = new Map<string, Call>()
  const begin = opening(events)
  events.forEach((event, index) => {
    if (event._tag === "StepCompleted" || (index === begin && event._tag !== "ChatCompleted")) {
      found.push(...unanswered(calls, index))
      calls.clear()
    }
    if (event._tag === "ToolApprovalRequested") {
      // A call may wait for its turn before its gates request an approval.
      const call = calls.get(event.toolCallId)
      if (call !== undefined && !call.isStarted && call.result === undefined) calls.delete(event.toolCallId)
      else if (call !== undefined) {
        found.push({ law: "order", message: `call "${event.toolCallId}" waits for approval after it has begun`, index })
      }
    }
    if (!isToolEvent(event)) return
    const known = calls.get(callOf(event))
    const call = known ?? untouched()
    calls.set(callOf(event), call)
    const isEarlier = index < begin && known === undefined && isSettlement(event)
    const problem = isEarlier ? undefined : misplaced(call, event)
    if (problem !== undefined) found.push({ ...problem, index })
    advance(call, event)
  })
  return isCut ? found : [...found, ...unanswered(calls, events.length)]
}

export const answers = (events: ReadonlyArray<Event.Event>): Found => {
  const found: Array<Violation> = []
  const begin = opening(events)
  let tails: Array<Tail> = []
  let from: number | undefined
  events.forEach((event, index) => {
    if (index === begin) tails = []
    if (isTail(event)) tails.push(event)
    if (event._tag !== "StepCompleted") return
    const turn = event.thread.messages[turnStart(event.thread, from)]
    // Approved calls may form a step by themselves, without a turn.
    const messages = index === begin && index > 0 ? [] : [...ofStep(event, turn, tails), ...ofQuestions(event, tails)]
    found.push(...messages.map((message): Violation => ({ law: "answers", message, index })))
    tails = []
    from = event.thread.messages.length
  })
  return found
}

/** Checks questions: each is either open in a waiting step, or settled. */
const ofQuestions = (step: Event.Of<"StepCompleted">, tails: ReadonlyArray<Tail>): ReadonlyArray<string> => {
  const settled = tails.filter(isSettlement).map(callOf)
  const asked = tails.filter(({ _tag }) => _tag === "AskUserRequested" || _tag === "ToolSuspended").map(callOf)
  const open = asked.filter((id) => !settled.includes(id))
  const own = (step.suspensions ?? []).filter(({ path }) => path === undefined)
  const waiting = [...own.flatMap(({ id, kind }) => kind === "question" ? [id] : []), ...waitingWithin(step)]
  return [
    ...open.filter((id) => !waiting.includes(id)).map((id) => `the question of "${id}" is neither open nor withdrawn`),
    ...waiting.filter((id) => !open.includes(id)).map((id) => `call "${id}" waits, and has asked nothing that is open`)
  ]
}

const ofStep = (
  step: Event.Of<"StepCompleted">,
  turn: Message.Message | undefined,
  all: ReadonlyArray<Tail>
): ReadonlyArray<string> => {
  const settled = all.filter(isSettlement).map(callOf)
  const isAnswer = (tail: Tail) =>
    !isSettlement(tail) && (tail._tag !== "ToolSuspended" || settled.includes(tail.toolCallId))
  const tails = all.filter(isAnswer).map(callOf)
  const asked = actionable(step.response.toolCalls)
  const committed = actionable(turn?.toolCalls)
  const pending = pendingOf(step)
  const isGivenUp = committed.length === 0 && step.response.finishReason === "error"
  const lost = isGivenUp ? [] : asked.filter((id) => !committed.includes(id))
  const made = committed.filter((id) => !asked.includes(id))
  return [
    ...lost.map((id) => `call "${id}" of the model is not in the assistant message`),
    ...made.map((id) => `call "${id}" of the assistant message was not made by the model`),
    ...tails.filter((id) => !committed.includes(id)).map((id) => `the answer to "${id}" has no call`),
    ...Array.from(new Set(committed)).flatMap((id) => {
      const count = [...tails, ...pending].filter((other) => other === id).length
      return count === 1 ? [] : [`call "${id}" is answered or pending ${count} times`]
    })
  ]
}
