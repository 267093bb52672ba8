/**
 * The fold from events to results: a response, step results, a chat result. It is pure, total and linear in the number
 * of events; unknown tags and malformed payloads change nothing. The loop itself folds with it, so that what a caller
 * awaits is what a reader of the stream would have put together.
 *
 * @since 0.1.0
 */
import type * as Event from "./Event.ts"
import * as Calls from "./internal/calls.ts"
import * as Json from "./internal/json.ts"
import * as Outcomes from "./internal/outcome.ts"
import * as Message from "./Message.ts"
import * as Policy from "./Policy.ts"
import * as Response from "./Response.ts"
import * as Thread from "./Thread.ts"

/**
 * What the fold knows. Read it through {@link toResponse}, {@link toStepResult} and {@link toChatResult}.
 *
 * @category models
 * @since 0.1.0
 */
export interface State {
  readonly policy: Policy.Policy
  readonly requestId: string | null
  thread: Thread.Thread | undefined
  text: string | null
  reasoning: string
  calls: Calls.Calls
  message: Message.Message | null
  finishReason: Response.FinishReason | null
  rawFinishReason: string | null
  usage: Response.Usage | null
  error: { readonly value: unknown } | undefined
  metadata: Readonly<Record<string, unknown>>
  answers: Array<Message.Message>
  halts: Array<{ readonly id: string; readonly halt: Event.Halt }>
  steps: Array<Event.StepResult>
  chatResult: Event.ChatResult | undefined
}

/**
 * What the fold starts from. `thread` is needed for step and chat results.
 *
 * @category models
 * @since 0.1.0
 */
export interface Options {
  readonly thread?: Thread.Thread
  readonly policy?: Policy.Policy
  readonly requestId?: string | null
}

/** The part of a state that belongs to one step. */
const freshStep = () => ({
  text: null,
  reasoning: "",
  calls: new Calls.Calls(),
  message: null,
  finishReason: null,
  rawFinishReason: null,
  usage: null,
  error: undefined,
  metadata: {},
  answers: [],
  halts: []
})

/**
 * The state before the first event.
 *
 * @category constructors
 * @since 0.1.0
 */
export const initial = (options: Options = {}): State => ({
  policy: options.policy ?? Policy.standard,
  requestId: options.requestId ?? null,
  thread: options.thread,
  ...freshStep(),
  steps: [],
  chatResult: undefined
})

/**
 * The state after one event. The given state is not changed; an event that says nothing new gives the same reference
 * back.
 *
 * **Example** (The completed text is authoritative)
 *
 * ```ts import.meta.vitest
 * import { Collector } from "heddle"
 *
 * const streamed = Collector.applyEvent(Collector.initial(), { _tag: "TextDelta", id: null, delta: "ab" })
 * const completed = Collector.applyEvent(streamed, { _tag: "TextCompleted", id: null, text: "AB!" })
 *
 * Collector.toResponse(completed).outputText // => "AB!"
 * Collector.toResponse(streamed).outputText // => "ab"
 * ```
 *
 * @category folding
 * @since 0.1.0
 */
export const applyEvent = (state: State, event: Event.Event): State => applyAll(state, [event])

/**
 * The state after some events, in order.
 *
 * @category folding
 * @since 0.1.0
 */
export const applyAll = (state: State, events: ReadonlyArray<Event.Event>): State => {
  const next = events.every(isDelta) ? { ...state } : {
    ...state,
    calls: state.calls.copy(),
    answers: [...state.answers],
    halts: [...state.halts],
    steps: [...state.steps]
  }
  return applyAllUnsafe(next, events) ? next : state
}

/**
 * Folds events into the given state in place, and tells whether anything changed. For the one owner of a state that
 * nobody else has seen.
 *
 * @category folding
 * @since 0.1.0
 */
export const applyAllUnsafe = (state: State, events: ReadonlyArray<Event.Event>): boolean => {
  let hasChanged = false
  for (const event of events) hasChanged = fold(state, event) || hasChanged
  return hasChanged
}

/** Deltas of text replace a string and leave every list alone. */
const isDelta = (event: Event.Event): boolean => event._tag === "TextDelta" || event._tag === "ReasoningDelta"

const isString = (value: unknown): value is string => typeof value === "string"

const fold = (state: State, event: Event.Event): boolean => {
  switch (event._tag) {
    case "TextDelta":
      if (!isString(event.delta) || event.delta === "") return false
      state.text = (state.text ?? "") + event.delta
      return true
    case "TextCompleted":
      if (!isString(event.text)) return false
      state.text = event.text
      return true
    case "ReasoningDelta":
      if (!isString(event.delta)) return false
      state.reasoning += event.delta
      return true
    case "ToolCallStarted":
      return isString(event.id) && isString(event.name) && state.calls.started(event.id, event.name)
    case "ToolCallDelta":
      if (!isString(event.id) || !isString(event.argumentsDelta)) return false
      state.calls.delta(event.id, event.argumentsDelta)
      return true
    case "ToolCallCompleted":
      if (!isString(event.id) || !isString(event.name)) return false
      state.calls.completed(event)
      return true
    default:
      return foldRest(state, event)
  }
}

const foldRest = (state: State, event: Event.Event): boolean => {
  switch (event._tag) {
    case "MessageCompleted":
      return foldMessage(state, event)
    case "RawChunk":
      if (!Json.isObject(event.chunk) || !Json.isObject(event.chunk["usage"])) return false
      state.usage = Response.usage(event.chunk["usage"])
      return true
    case "Error":
      if (!("error" in event)) return false
      state.error = { value: event.error }
      state.finishReason = "error"
      return true
    case "ToolResultEncoded":
      if (!isString(event.id) || !isString(event.content)) return false
      return answer(state, event.id, event.content, event.isError === true)
    case "AskUserRequested":
      return foldQuestion(state, event)
    case "ToolHalt":
      return foldHalt(state, event)
    case "StepCompleted":
      return foldStep(state, event)
    case "ChatCompleted":
      if (!Json.isObject(event.result)) return false
      state.chatResult = event.result
      return true
    default:
      return false
  }
}

const foldMessage = (state: State, event: Event.Of<"MessageCompleted">): boolean => {
  if (!Json.isObject(event.message)) return false
  const { usage, ...metadata } = event.metadata ?? {}
  state.message = event.message
  const isErrorKept = state.error !== undefined && state.policy.adapterErrors === "sticky"
  if (!isErrorKept) state.finishReason = event.finishReason ?? state.finishReason
  state.rawFinishReason = event.rawFinishReason ?? event.finishReason ?? state.rawFinishReason
  if (Json.isObject(usage)) state.usage = Response.usage(usage)
  state.metadata = { ...state.metadata, ...metadata }
  return true
}

const answer = (state: State, id: string, content: string, isError: boolean): boolean => {
  const message = Message.tool(id, content)
  state.answers.push(isError ? { ...message, isError: true } : message)
  return true
}

const foldQuestion = (state: State, event: Event.Of<"AskUserRequested">): boolean => {
  if (!isString(event.toolCallId) || !isString(event.question)) return false
  state.halts.push({
    id: event.toolCallId,
    halt: {
      haltedReason: "ask_user",
      pendingQuestion: event.question,
      pendingToolCallId: event.toolCallId,
      askUserOpts: event.opts ?? []
    }
  })
  return answer(state, event.toolCallId, Outcomes.awaitingAnswer, false)
}

const foldHalt = (state: State, event: Event.Of<"ToolHalt">): boolean => {
  if (!isString(event.toolCallId) || !isString(event.reason)) return false
  const exception = "onToolErrorException" in event ? { onToolErrorException: event.onToolErrorException } : {}
  state.halts.push({
    id: event.toolCallId,
    halt: event.reason === "tool_error"
      ? { haltedReason: "tool_error", haltToolCallId: event.toolCallId, ...exception }
      : { haltedReason: event.reason, haltToolCallId: event.toolCallId, haltResult: event.result }
  })
  return answer(state, event.toolCallId, event.content ?? Json.render(event.result), event.reason === "tool_error")
}

const foldStep = (state: State, event: Event.Of<"StepCompleted">): boolean => {
  if (!Json.isObject(event.response) || !Json.isObject(event.thread)) return false
  state.steps.push(stepResult(state, event))
  state.thread = event.thread
  Object.assign(state, freshStep())
  return true
}

/** By the order in which the model made the calls: what completed first must not show. */
const inCallOrder = <A>(state: State, items: ReadonlyArray<A>, id: (item: A) => string | undefined): ReadonlyArray<A> => {
  if (items.length < 2) return items
  const order = state.calls.order()
  const position = (item: A): number => order.get(id(item) ?? "") ?? order.size
  return items.toSorted((left, right) => position(left) - position(right))
}

/**
 * The answers to the calls of the step in progress, in call order.
 *
 * @category getters
 * @since 0.1.0
 */
export const answers = (state: State): ReadonlyArray<Message.Message> =>
  inCallOrder(state, state.answers, (message) => message.toolCallId)

/**
 * The halt that decides the step in progress, if a tool halted it: the first call's, or, under
 * `haltPrecedence: "completion"`, the first to complete.
 *
 * @category getters
 * @since 0.1.0
 */
export const halt = (state: State): Event.Halt | undefined =>
  (state.policy.haltPrecedence === "request" ? inCallOrder(state, state.halts, (item) => item.id) : state.halts)[0]?.halt

const toToolCalls = (state: State): ReadonlyArray<Message.ToolCall> =>
  state.calls.toToolCalls({
    parse: state.policy.badArguments === "answer",
    isTruncated: state.finishReason === "length"
  })

const isActionable = (call: Message.ToolCall): boolean => call.providerExecuted !== true

/** Calls that are there outweigh a finish reason that does not mention them. */
const effectiveFinish = (state: State, toolCalls: ReadonlyArray<Message.ToolCall>): Response.FinishReason | null => {
  const isVague = state.finishReason === null || state.finishReason === "stop" || state.finishReason === "other"
  return state.policy.toolTurn === "presence" && isVague && toolCalls.some(isActionable)
    ? "tool_calls"
    : state.finishReason
}

/**
 * The response so far. Works without a thread and never fails; an error of the reply stands in `error`.
 *
 * @category results
 * @since 0.1.0
 */
export const toResponse = (state: State): Response.Response => {
  const toolCalls = toToolCalls(state)
  const { model, responseId, ...metadata } = state.metadata
  return {
    id: isString(responseId) ? responseId : null,
    requestId: state.requestId,
    model: isString(model) ? model : null,
    outputText: state.text,
    reasoning: state.reasoning,
    toolCalls,
    message: state.message,
    finishReason: effectiveFinish(state, toolCalls),
    rawFinishReason: state.rawFinishReason,
    usage: state.usage,
    ...(state.error === undefined ? {} : { error: state.error.value }),
    metadata
  }
}

const finalReasons: ReadonlyArray<Response.FinishReason | null> = ["stop", "length", "content_filter", "error"]

/**
 * Whether the runtime has tools to run after a response: decided by the calls that are there, or by the finish reason
 * alone, as the policy says. A reply that ended in an error or was filtered is never acted on.
 *
 * @category getters
 * @since 0.1.0
 */
export const isToolTurn = (policy: Policy.Policy, response: Response.Response): boolean =>
  policy.toolTurn === "finishReason"
    ? response.finishReason === "tool_calls"
    : response.finishReason !== "error" && response.finishReason !== "content_filter" &&
      response.toolCalls.some(isActionable)

/**
 * Whether the model has nothing more to do after a response that is not halted.
 *
 * @category getters
 * @since 0.1.0
 */
export const isDone = (policy: Policy.Policy, response: Response.Response): boolean =>
  policy.toolTurn === "finishReason"
    ? finalReasons.includes(response.finishReason)
    : !isToolTurn(policy, response)

const stepResult = (state: State, event: Event.Of<"StepCompleted">): Event.StepResult => {
  const decided = event.done === undefined ? halt(state) : event.halt
  const manualToolCalls = event.manualToolCalls ?? []
  const isManual = event.mode === "manual" && isToolTurn(state.policy, event.response)
  return {
    thread: event.thread,
    response: event.response,
    toolResults: answers(state),
    done: event.done ?? (decided !== undefined || isDone(state.policy, event.response)),
    ...(isManual ? { mode: "manual" } : {}),
    ...(manualToolCalls.length === 0 || decided !== undefined ? {} : { manualToolCalls }),
    ...decided,
    metadata: {}
  }
}

const noThread = (name: string): never => {
  throw new Error(`Collector.${name} needs the thread that the run started from: Collector.initial({ thread })`)
}

/**
 * The last step that was completed, or what the step in progress has come to. Throws when the fold was started without
 * a thread.
 *
 * @category results
 * @since 0.1.0
 */
export const toStepResult = (state: State): Event.StepResult => {
  const last = state.steps.at(-1)
  if (last !== undefined) return last
  const thread = state.thread ?? noThread("toStepResult")
  return stepResult(state, {
    _tag: "StepCompleted",
    response: toResponse(state),
    thread,
    mode: "auto",
    manualToolCalls: []
  })
}

/**
 * The chat result: the one that the run completed with, or, for a stream that was cut, what was seen of it, with
 * outcome `Failed` if an error was held and `Cancelled` otherwise. Throws when the fold was started without a thread.
 *
 * @category results
 * @since 0.1.0
 */
export const toChatResult = (state: State): Event.ChatResult => {
  if (state.chatResult !== undefined) return state.chatResult
  const thread = state.thread ?? noThread("toChatResult")
  const outcome: Event.Outcome = state.error === undefined
    ? { _tag: "Cancelled" }
    : { _tag: "Failed", error: state.error.value }
  const hasPartial = state.text !== null || state.calls.size > 0 || state.message !== null || state.error !== undefined
  const partial = hasPartial && state.steps.length === 0 ? { finalResponse: toResponse(state) } : {}
  return chatResult({ thread, steps: state.steps, outcome, ...partial })
}

const haltedReasons: { readonly [Tag in Event.Outcome["_tag"]]: (outcome: Event.Outcome) => string } = {
  Completed: () => "completed",
  MaxTurns: () => "max_turns",
  HaltWhen: () => "halt_when",
  AskUser: () => "ask_user",
  ToolFailed: () => "tool_error",
  Halted: (outcome) => outcome._tag === "Halted" ? outcome.reason : "",
  ManualToolCalls: () => "manual_tool_calls",
  Cancelled: () => "cancelled",
  Failed: () => "error"
}

/**
 * A chat result from its parts: what the loop and the fold of a cut stream both build theirs with.
 *
 * @category results
 * @since 0.1.0
 */
export const chatResult = (parts: {
  readonly thread: Thread.Thread
  readonly steps: ReadonlyArray<Event.StepResult>
  readonly outcome: Event.Outcome
  readonly finalResponse?: Response.Response
}): Event.ChatResult => ({
  thread: parts.thread,
  finalResponse: parts.steps.at(-1)?.response ?? parts.finalResponse ?? null,
  steps: [...parts.steps],
  outcome: parts.outcome,
  haltedReason: haltedReasons[parts.outcome._tag](parts.outcome),
  ...(parts.outcome._tag === "AskUser"
    ? { pendingQuestion: parts.outcome.pendingQuestion, pendingToolCallId: parts.outcome.pendingToolCallId }
    : {}),
  usage: Response.sumUsage(parts.steps.map((step) => step.response.usage)),
  metadata: {}
})
