/** Checks that a run's result equals its folded stream, and that the stream has a run's frame. */
import * as Collector from "../../Collector.ts"
import type * as Event from "../../Event.ts"
import * as Json from "../../internal/json.ts"
import * as Thread from "../../Thread.ts"
import * as AnswerLaws from "./answerLaws.ts"
import type { Options, Violation } from "./violation.ts"

type Found = ReadonlyArray<Violation>

const counted = (events: ReadonlyArray<Event.Event>, tag: Event.Event["_tag"]): number =>
  events.filter((event) => event._tag === tag).length

export const frame = (events: ReadonlyArray<Event.Event>, isCut: boolean): Found => {
  const end = events.findIndex((event) => event._tag === "ChatCompleted")
  if (end < 0) return isCut ? [] : [{ law: "frame", message: "there is no ChatCompleted", index: events.length }]
  const completed = events[end]
  const lastStep = events.findLastIndex((event) => event._tag === "StepCompleted")
  const behind = events.slice(Math.max(lastStep + 1, AnswerLaws.opening(events)), end).filter((event) =>
    event._tag !== "Error" && event._tag !== "OutputCompleted" && event._tag !== "MessageRefused"
  )
  const messages: Array<string> = []
  if (end < events.length - 1) messages.push(`${events.length - 1 - end} events come after ChatCompleted`)
  if (behind.length > 0) messages.push(`${behind[0]?._tag} belongs to no completed step`)
  if (completed?._tag === "ChatCompleted" && completed.result.steps.length !== counted(events, "StepCompleted")) {
    const steps = completed.result.steps.length
    messages.push(`the result has ${steps} steps, the stream ${counted(events, "StepCompleted")} StepCompleted`)
  }
  if (completed?._tag === "ChatCompleted") messages.push(...ofOutput(events, completed.result))
  return messages.map((message) => ({ law: "frame", message, index: end }))
}

/** Checks that a typed answer is accepted once, as in the result. An awaited run's events lack typed answers. */
const ofOutput = (events: ReadonlyArray<Event.Event>, result: Event.ChatResult): ReadonlyArray<string> => {
  const accepted = events.flatMap((event) => event._tag === "OutputCompleted" ? [event.value] : [])
  const isAwaited = events.every(({ _tag }) => _tag === "StepCompleted" || _tag === "ChatCompleted")
  const expected = "output" in result && !isAwaited ? [result.output] : []
  return isSame(accepted, expected) ? [] : ["OutputCompleted does not come once with the output of the result"]
}

const isSame = (left: unknown, right: unknown): boolean =>
  JSON.stringify(Json.toJson(left)) === JSON.stringify(Json.toJson(right))

/** Returns the fields in which two records differ. */
const differing = (left: object, right: object): ReadonlyArray<string> => {
  const fields = new Set([...Object.keys(left), ...Object.keys(right)])
  const value = (record: object, field: string): unknown => (record as Readonly<Record<string, unknown>>)[field]
  return Array.from(fields).filter((field) => !isSame(value(left, field), value(right, field)))
}

export const fold = (events: ReadonlyArray<Event.Event>, { policy, result }: Options): Found => {
  const told = events.find((event) => event._tag === "ChatCompleted")
  if (told === undefined) return []
  const initial = Collector.initial({ thread: Thread.empty, ...(policy === undefined ? {} : { policy }) })
  const { steps } = Collector.applyAll(initial, events.filter((event) => event !== told))
  const messages = [
    ...additions(events),
    ...steps.flatMap((step, index) =>
      differing(step, told.result.steps[index] ?? {}).map((field) => `step ${index} of the result has another ${field}`)
    ),
    ...ofParts(told.result),
    ...(result === undefined
      ? []
      : differing(told.result, result).map((field) => `the awaited result has another ${field}`))
  ]
  return messages.map((message) => ({ law: "fold", message }))
}

/** Checks that the thread gained exactly each step's messages, and the messages after the last step. */
const additions = (events: ReadonlyArray<Event.Event>): ReadonlyArray<string> => {
  let before: number | undefined
  return events.flatMap((event) => {
    if (event._tag !== "StepCompleted" && event._tag !== "ChatCompleted") return []
    const { messages = [] } = event
    const thread = event._tag === "StepCompleted" ? event.thread : event.result.thread
    const from = before ?? thread.messages.length - messages.length
    before = thread.messages.length
    return isSame(thread.messages.slice(from), messages)
      ? []
      : [`the messages of ${event._tag} are not what came to its thread`]
  })
}

/** Checks that a result's parts agree with its steps. */
const ofParts = (result: Event.ChatResult): ReadonlyArray<string> => {
  const { outcome, steps } = result
  const last = steps.at(-1)
  if (last === undefined) return []
  const { metadata: _, nestedUsage: __, thread: ___, totalUsage: ____, ...expected } = Collector.chatResult({
    thread: last.thread,
    steps,
    outcome
  })
  const fields = Object.entries(expected).filter(([field, value]) =>
    !isSame(value, result[field as keyof typeof result])
  )
  return [
    ...fields.map(([field]) => `the result's ${field} is not that of its steps`),
    ...(isEnd(last, outcome, steps.length) ? [] : [`the last step does not end in ${outcome._tag}`]),
    ...(isContinued(last, result) ? [] : ["the result's thread is not that of its last step"])
  ]
}

/** Returns `true` if a run can end with an outcome after this last step, given the number of steps. */
const isEnd = (step: Event.StepResult, outcome: Event.Outcome, steps: number): boolean => {
  if (outcome._tag === "Cancelled") return true
  if (outcome._tag === "RuleEnded") return step.suspensions === undefined && step.halt?.haltedReason !== "tool_error"
  const halt = step.halt?.haltedReason
  if (halt === "ask_user") return outcome._tag === "AskUser"
  if (halt === "tool_error") return outcome._tag === "ToolFailed"
  // A step a rule wants after a halt or an answer may exceed the turn limit, or fail before its request.
  const isFurther = outcome._tag === "Failed" || outcome._tag === "MaxTurns" && steps >= outcome.maxTurns
  // A call giving a typed answer halts the step and completes the run.
  if (halt === "output" && outcome._tag === "Completed") return true
  if (halt !== undefined) return isFurther || outcome._tag === "Halted" && outcome.reason === halt
  if (step.suspensions?.some(({ kind }) => kind === "question") === true) return outcome._tag === "AskUser"
  const within = (step.suspensions ?? []).filter(({ path }) => path !== undefined)
  if (within.some(({ kind }) => kind === "manual")) return outcome._tag === "ManualToolCalls"
  if (step.mode === "manual" || step.manualToolCalls !== undefined) return outcome._tag === "ManualToolCalls"
  if (step.suspensions !== undefined) return outcome._tag === "ApprovalRequested"
  const { finishReason } = step.response
  if (step.done && finishReason === "error") return outcome._tag === "Failed"
  if (step.done) return isFurther || outcome._tag === "Completed" && outcome.finishReason === finishReason
  return outcome._tag === "MaxTurns" || outcome._tag === "HaltWhen" || outcome._tag === "Failed"
}

/** Ends that may come between a rule's messages and their request. */
const unasked: ReadonlySet<Event.Outcome["_tag"]> = new Set<Event.Outcome["_tag"]>(["Cancelled", "Failed", "RuleEnded"])

/**
 * Checks the thread after the last step. The run's only waiting question comes after its step's thread, and so do rule
 * messages for a request never made. Everything else ends where its last step ended.
 */
const isContinued = (step: Event.StepResult, { outcome, thread }: Event.ChatResult): boolean => {
  const question = thread.messages.at(-1)
  const isAsked = outcome._tag === "AskUser" && question?.askUser === true &&
    question.toolCallId === outcome.pendingToolCallId && question.content === outcome.pendingQuestion
  const { suspensions = [], toolResults } = step
  const isInThread = suspensions.every(({ id }) => toolResults.some(({ toolCallId }) => toolCallId === id))
  const isAlone = suspensions.length <= 1 && isInThread
  const behind = thread.messages.slice(step.thread.messages.length)
  const isOfRules = unasked.has(outcome._tag) && behind.every(({ role, toolCalls }) => role !== "tool" && !toolCalls)
  const more = isAsked ? 1 : isOfRules ? behind.length : 0
  const own = thread.messages.slice(0, thread.messages.length - more)
  return isSame(step.thread.messages, own) &&
    isAsked === (outcome._tag === "AskUser" && isAlone)
}
