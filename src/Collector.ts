/**
 * The fold from events to results: a response, step results, a chat result. It is pure, total and linear in the number
 * of events; unknown tags and malformed payloads change nothing. The loop itself folds with it, so that what a caller
 * awaits is what a reader of the stream would have put together.
 *
 * @since 0.1.0
 */
import * as Result from "effect/Result"
import type * as Types from "effect/Types"
import type * as Event from "./Event.ts"
import * as OpenCalls from "./internal/answer/openCalls.ts"
import * as Classifications from "./internal/fold/classification.ts"
import * as Ending from "./internal/fold/outcome.ts"
import * as Payload from "./internal/fold/payload.ts"
import * as Log from "./internal/fold/sharedMessages.ts"
import * as StepState from "./internal/fold/state.ts"
import * as ToolEvents from "./internal/fold/toolEvents.ts"
import * as Wires from "./internal/fold/wire.ts"
import * as CallArguments from "./internal/hear/callArguments.ts"
import * as FinishReasons from "./internal/hear/finishReason.ts"
import * as Calls from "./internal/hear/toolCalls.ts"
import * as Json from "./internal/json.ts"
import type * as Message from "./Message.ts"
import * as Policy from "./Policy.ts"
import * as Response from "./Response.ts"
import * as Thread from "./Thread.ts"

/**
 * What the fold knows. Read it through {@link toResponse}, {@link toStepResult} and {@link toChatResult}.
 *
 * @category models
 * @since 0.1.0
 */
export interface State extends StepState.StepState {
  readonly policy: Policy.Policy
  readonly requestId: string | null
  metadata: Readonly<Record<string, unknown>>
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
  text: undefined,
  reasoning: undefined,
  calls: new Calls.Calls(options.thread?.messages.length),
  message: null,
  finishReason: null,
  rawFinishReason: null,
  responseId: null,
  model: null,
  usage: null,
  spent: null,
  error: undefined,
  tools: new ToolEvents.ToolEvents(),
  metadata: Json.none,
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
  const next = { ...state, text: state.text?.copy(), reasoning: state.reasoning?.copy() }
  if (!events.every(isDelta)) {
    next.steps = state.steps.slice()
    next.calls = state.calls.copy()
    next.tools = state.tools.copy()
  }
  if (!applyAllUnsafe(next, events)) return state
  StepState.settle(next)
  return next
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
  // By position: until it is compiled an iterator is an object for each event.
  for (let index = 0; index < events.length; index++) {
    hasChanged = fold(state, events[index] as Event.Event) || hasChanged
  }
  return hasChanged
}

/** Deltas of text leave every list alone. */
const isDelta = (event: unknown): boolean =>
  Json.isObject(event) && (event["_tag"] === "TextDelta" || event["_tag"] === "ReasoningDelta")

/** What most events are is told from the rest before anything else about them is looked at. */
const fold = (state: State, event: Event.Event): boolean => {
  if (typeof event !== "object" || event === null) return false
  switch (event._tag) {
    case "TextDelta":
      if (!Payload.saysText(event)) return false
      StepState.said(state, event.delta)
      return true
    case "ReasoningDelta":
      if (!Payload.saysText(event)) return false
      StepState.thought(state, event.delta)
      return true
    case "ToolCallDelta":
      return Payload.isFragment(event) && state.calls.delta(event.id, event.argumentsDelta)
    case "MessageStarted":
      return foldOpening(state)
    case "ToolCallStarted":
      return Payload.isHeader(event) && state.calls.started(event.id, event.name)
    default:
      if (!Payload.saysMore(event)) return false
      foldWhole(state, event)
      return true
  }
}

const foldWhole = (state: State, event: Event.Event): void => {
  switch (event._tag) {
    case "TextCompleted":
      StepState.saidInAll(state, event.text)
      return
    case "ToolCallCompleted":
      return state.calls.completed(event)
    case "MessageCompleted":
      return foldMessage(state, event)
    case "RawChunk":
      state.usage = Response.usage((event.chunk as { readonly usage: Json.JsonObject }).usage)
      return
    case "Error":
      state.error = { value: event.error }
      state.finishReason = "error"
      return
    case "ToolExecutionCompleted":
      return state.tools.updated(event)
    case "ToolResultEncoded":
      return event.settled === true ? foldSettlement(state, event) : foldTail(state, event)
    case "AskUserRequested":
    case "ToolHalt":
      return foldTail(state, event)
    case "StepReset":
      state.spent = Response.sumUsage([state.spent, state.usage])
      return StepState.unsay(state)
    case "StepCompleted":
      return foldStep(state, event)
    case "ChatCompleted":
      state.chatResult = event.result
  }
}

const foldMessage = (state: State, event: Event.Of<"MessageCompleted">): void => {
  state.message = event.message
  state.calls.describe(event.message.toolCalls)
  const isErrorKept = state.error !== undefined && state.policy.adapterErrors === "sticky"
  if (!isErrorKept) state.finishReason = FinishReasons.normalised(event.finishReason) ?? state.finishReason
  state.rawFinishReason = event.rawFinishReason ?? event.finishReason ?? state.rawFinishReason
  if (event.metadata !== undefined && event.metadata !== null) foldMetadata(state, event.metadata)
}

const foldMetadata = (state: State, told: Json.JsonObject): void => {
  const { usage, responseId, model, ...metadata } = told
  if (Json.isObject(usage)) state.usage = Response.usage(usage)
  if (typeof responseId === "string") state.responseId = responseId
  if (typeof model === "string") state.model = model
  state.metadata = { ...state.metadata, ...metadata }
}

/** Whether nothing of the model has come: tool events are then of calls that the thread has, of an earlier turn. */
const isOpening = ({ calls, message, steps, text }: State): boolean =>
  steps.length === 0 && calls.isEmpty && message === null && text === undefined

const foldTail = (state: State, event: OpenCalls.Tail): void => {
  state.tools.ended(event)
  if (state.thread === undefined || !isOpening(state)) return
  state.thread = Log.answering(state.thread, OpenCalls.messageOf(event))
}

/** The calls of an earlier turn have their answers in the thread, and are none of the step that begins. */
const foldOpening = (state: State): boolean => {
  if (state.tools.isEmpty || !isOpening(state)) return false
  state.tools = new ToolEvents.ToolEvents()
  return true
}

/** A question of the step in progress is settled there; any other call was answered before, in the thread. */
const foldSettlement = (state: State, event: Event.Of<"ToolResultEncoded">): void => {
  if (state.tools.settled(event) && !isOpening(state)) return
  if (state.thread !== undefined) state.thread = Log.heard(state.thread, OpenCalls.messageOf(event))
}

const foldStep = (state: State, event: Event.Of<"StepCompleted">): void => {
  state.steps.push(stepResult(state, event))
  StepState.begin(state, event.thread)
}

/**
 * The answers to the calls of the step in progress, in call order.
 *
 * @category getters
 * @since 0.1.0
 */
export const answers = (state: State): ReadonlyArray<Message.Message> => state.tools.answersInOrder(state.calls.ids)

/**
 * The halt that decides the step in progress, if a tool halted it: the first call's, or, under
 * `haltPrecedence: "completion"`, the first to complete.
 *
 * @category getters
 * @since 0.1.0
 */
export const halt = (state: State): Event.Halt | undefined =>
  state.tools.deciding(state.calls.ids, state.policy.haltPrecedence)

/** A reply whose message was never completed has broken off. */
const toToolCalls = ({ calls, finishReason, message, policy }: State): ReadonlyArray<Message.ToolCall> =>
  calls.toToolCalls({
    parse: policy.badArguments === "answer",
    ending: message === null ? "broken" : CallArguments.endingOf(finishReason)
  })

/** Calls that are there outweigh a finish reason that does not mention them. */
const effectiveFinish = (state: State, toolCalls: ReadonlyArray<Message.ToolCall>): Response.FinishReason | null => {
  const isVague = state.finishReason === null || state.finishReason === "stop" || state.finishReason === "other"
  return state.policy.toolTurn === "presence" && isVague && toolCalls.some(Response.isActionable)
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
  const response: Types.Mutable<Response.Response> = {
    id: state.responseId,
    requestId: state.requestId,
    model: state.model,
    outputText: state.text?.toString() ?? null,
    reasoning: state.reasoning?.toString() ?? "",
    toolCalls,
    message: state.message,
    finishReason: effectiveFinish(state, toolCalls),
    rawFinishReason: state.rawFinishReason,
    usage: Response.sumUsage([state.spent, state.usage]),
    metadata: state.metadata
  }
  if (state.error !== undefined) response.error = state.error.value
  return response
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
      response.toolCalls.some(Response.isActionable)

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
  const isManual = event.mode === "manual" && (event.isToolTurn ?? isToolTurn(state.policy, event.response))
  const ids = event.response.toolCalls.map((call) => call.id)
  const { contextUpdate } = state.tools.contextUpdate(ids)
  const result: Types.Mutable<Event.StepResult> = {
    thread: event.thread,
    response: event.response,
    toolResults: state.tools.answersInOrder(ids),
    done: event.done ?? (decided !== undefined || isDone(state.policy, event.response)),
    metadata: Json.none
  }
  if (isManual) result.mode = "manual"
  if (decided !== undefined) Object.assign(result, decided)
  else if (manualToolCalls.length > 0) result.manualToolCalls = manualToolCalls
  if (event.suspensions !== undefined) result.suspensions = event.suspensions
  if (contextUpdate !== undefined) result.contextUpdate = contextUpdate
  return result
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
    messages: [],
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
    ? { _tag: "Cancelled", reason: "interrupt" }
    : { _tag: "Failed", error: state.error.value }
  const partial = hasPartial(state) && state.steps.length === 0 ? { finalResponse: toResponse(state) } : {}
  return chatResult({ thread, steps: state.steps, outcome, ...partial })
}

const hasPartial = (state: State): boolean =>
  state.text !== undefined || state.reasoning?.isEmpty === false || !state.calls.isEmpty ||
  state.message !== null || state.error !== undefined

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
  readonly finalized?: Event.ChatResult["finalized"] | undefined
  readonly suspensions?: Event.ChatResult["suspensions"] | undefined
  readonly totalUsage?: Event.ChatResult["totalUsage"]
}): Event.ChatResult => {
  const { finalized, outcome, steps } = parts
  const suspensions = parts.suspensions ?? steps.at(-1)?.suspensions
  const { contextUpdate } = ToolEvents.mergeUpdates(steps.map((step) => step.contextUpdate))
  const usage = Response.sumUsage(steps.map((step) => step.response.usage))
  const result: Types.Mutable<Event.ChatResult> = {
    thread: Log.plain(parts.thread),
    finalResponse: steps.at(-1)?.response ?? parts.finalResponse ?? null,
    steps: steps.slice(),
    outcome,
    haltedReason: Ending.haltedReason(outcome),
    usage,
    totalUsage: parts.totalUsage ?? usage,
    metadata: Json.none
  }
  if (outcome._tag === "AskUser") {
    result.pendingQuestion = outcome.pendingQuestion
    result.pendingToolCallId = outcome.pendingToolCallId
  }
  if (suspensions !== undefined && Ending.isWaiting(outcome)) result.suspensions = suspensions
  if (finalized !== undefined) result.finalized = finalized
  if (contextUpdate !== undefined) result.contextUpdate = contextUpdate
  return result
}

/**
 * Whether events in hand ask for tools or are the final answer, as `Adapter.classify` finds it of a reply on its way.
 * Nothing is run. An iterator can be read once: to classify it again throws, instead of finding nothing.
 *
 * @category results
 * @since 0.1.0
 */
export const classify = (events: Iterable<Event.Event>, options: Options = {}): Classifications.Classification =>
  Classifications.of(events, options.policy ?? Policy.standard)

/** The thread after a step. One of a session that only runs approved calls has said nothing: their answers have a place. */
const grownBy = (state: State, messages: ReadonlyArray<Message.Message>): Thread.Thread => {
  const { thread = Thread.empty } = state
  return messages.length === 0 && !hasPartial(state)
    ? Log.placed(thread, state.tools.answersInOrder([]))
    : Log.grown(thread, messages)
}

/** What is passed over is not looked at by a schema: the fold itself takes in nothing that is not well formed. */
const foldReceived = (state: State, wire: unknown): void => {
  const read = Wires.toJson(wire)
  if (!Json.isObject(read)) return
  const event = read as unknown as Event.Received
  if (event._tag === "StepCompleted") {
    if (!Array.isArray(event.messages)) return
    applyAllUnsafe(state, [{ ...event, thread: grownBy(state, event.messages) }])
  } else if (event._tag === "ChatCompleted") {
    if (!Json.isObject(event.result)) return
    foldOpening(state)
    const steps = state.steps.slice()
    const messages = Array.isArray(event.messages) ? event.messages : []
    const result = {
      finalResponse: steps.at(-1)?.response ?? null,
      ...event.result,
      thread: Log.plain(Log.grown(state.thread ?? Thread.empty, messages)),
      steps
    }
    applyAllUnsafe(state, [{ ...event, result }])
  } else applyAllUnsafe(state, [event])
}

/**
 * The result of a run from the wire form of its events (`Event.toWire`): the thread, the steps, the outcome and the usage
 * that the run itself came to.
 *
 * **Details**
 *
 * `input` is what the run was given: the thread before it is in none of its events. For an operation of a session it is
 * the session's thread, as it was before or after its calls were settled, and the message that was said to it, unless that answered a question in its place. What is no event in wire form is passed over, so that the
 * events of a later version can be read. A run whose events end before its `ChatCompleted` comes to what
 * {@link toChatResult} gives for it: so does a run whose stream failed, since the failure of a stream is no event. Send it
 * yourself, or the result is `Cancelled` with the reason `"interrupt"`. Errors and values of the caller's own are the plain
 * data that they were written as: match errors on `_tag` and `reason`, not by `instanceof`.
 * Throws a `Thread.ValidationError` for an input that is no conversation.
 *
 * **Example** (Reading a log)
 *
 * ```ts import.meta.vitest
 * import { Collector } from "heddle"
 *
 * const result = Collector.fromWire("Hi", [{ _tag: "TextDelta", id: null, delta: "Hel" }])
 *
 * result.outcome // => { _tag: "Cancelled", reason: "interrupt" }
 * result.finalResponse?.outputText // => "Hel"
 * ```
 *
 * @category folding
 * @since 0.1.0
 */
export const fromWire = (
  input: Thread.Input,
  wires: Iterable<unknown>,
  options: Pick<Options, "policy"> = {}
): Event.ChatResult => {
  const state = initial({ ...options, thread: Result.getOrThrow(Thread.validate(input)) })
  for (const wire of wires) foldReceived(state, wire)
  return toChatResult(state)
}
