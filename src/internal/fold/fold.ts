/**
 * The fold: from events to step state. The loop folds all run events into one state, in place; the public `Collector`
 * copies the state first. The fold accepts any input and is linear in the number of events: an event with an unknown
 * tag or a malformed payload changes nothing. `outcome` derives a whole run's result.
 */
import type * as Types from "effect/Types"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type * as Policy from "../../Policy.ts"
import * as Response from "../../Response.ts"
import type * as Thread from "../../Thread.ts"
import * as OpenCalls from "../answer/openCalls.ts"
import * as ToolCalls from "../hear/toolCalls.ts"
import * as Json from "../json.ts"
import * as EventJson from "./eventJson.ts"
import * as SharedMessages from "./sharedMessages.ts"

declare const opaque: unique symbol

/** A state handed out by the public `Collector`: its fields belong to the runtime. */
export interface Opaque {
  readonly [opaque]: true
}

/** State of the fold. The fields from `text` to `tools` belong to the current step, except for `ids`. */
export interface State extends Opaque {
  thread: Thread.Thread | undefined
  /** The model's reply so far, if any. */
  text: string | undefined
  reasoning: string
  calls: ToolCalls.EventCalls
  message: Message.Message | null
  finishReason: Response.FinishReason | null
  rawFinishReason: string | null
  isPaused: boolean
  responseId: string | null
  provider: string | undefined
  model: string | null
  usage: Response.Usage | null
  /** Call ids in the thread, for a fold naming the calls in replies. */
  ids?: ThreadIds
  /** Usage of this step's discarded replies. */
  spent: Response.Usage | null
  error: { readonly value: unknown } | undefined
  tools: ToolAnswers
  readonly policy: Policy.Policy
  readonly requestId: string | null
  metadata: Json.JsonObject
  steps: Array<Event.StepResult>
  chatResult: Event.ChatResult | undefined
}

/** Fields of a new reply. */
const fresh = (thread: Thread.Thread | undefined) => ({
  text: undefined,
  reasoning: "",
  calls: new ToolCalls.EventCalls(thread === undefined ? undefined : SharedMessages.length(thread)),
  message: null,
  finishReason: null,
  rawFinishReason: null,
  isPaused: false,
  responseId: null,
  provider: undefined,
  model: null,
  usage: null,
  error: undefined
})

/** Returns the state before the first event. */
export const initial = (
  policy: Policy.Policy,
  { requestId, thread }: { readonly thread?: Thread.Thread; readonly requestId?: string | undefined } = {}
): State =>
  ({
    thread,
    ...fresh(thread),
    spent: null,
    tools: new ToolAnswers(),
    policy,
    requestId: requestId ?? null,
    metadata: Json.none,
    steps: [],
    chatResult: undefined
  }) as Omit<State, keyof Opaque> as State

/** Call ids in a growing thread, read when a call is named. */
class ThreadIds {
  private readonly ids = new ToolCalls.UniqueIds()
  private messages = 0
  private steps = 0

  /** Returns the call ids in a thread and steps, along with ids read earlier from a shorter thread. */
  upTo(thread: Thread.Thread, steps: ReadonlyArray<Event.StepResult>): ToolCalls.UniqueIds {
    for (const { toolCalls } of SharedMessages.since(thread, this.messages)) {
      // A caller's messages may hold anything.
      if (Array.isArray(toolCalls)) {
        for (const { id } of toolCalls.filter(Json.isObject)) this.ids.reserve(String(id))
      }
    }
    this.messages = SharedMessages.length(thread)
    // The thread lacks provider-run calls.
    for (; this.steps < steps.length; this.steps++) {
      for (const { id } of steps[this.steps]?.response.toolCalls ?? []) this.ids.reserve(id)
    }
    return this.ids
  }
}

/**
 * Begins a reply to a thread, for a fold that names calls: no call in the reply reuses a call id from the thread or the
 * steps.
 */
export const beginReply = (state: State, thread: Thread.Thread): void => {
  const { steps } = state
  const ids = state.ids ??= new ThreadIds()
  state.calls = new ToolCalls.EventCalls(SharedMessages.length(thread), () => ids.upTo(thread, steps))
}

/** Folds events and returns them under their calls' own ids. */
export const named = (state: State, events: ReadonlyArray<Event.Event>): ReadonlyArray<Event.Event> => {
  let renamed: Array<Event.Event> | undefined
  for (let index = 0; index < events.length; index++) {
    const event = events[index] as Event.Event
    const own = foldNamed(state, event)
    if (own !== event) renamed ??= events.slice(0, index)
    renamed?.push(own)
  }
  return renamed ?? events
}

const withOwnIds = ({ calls }: State, event: Event.Of<"MessageCompleted">): Event.Of<"MessageCompleted"> => {
  const given: unknown = Json.isObject(event.message) ? event.message.toolCalls : undefined
  if (!Array.isArray(given)) return event
  const toolCalls = calls.named(given)
  const isNew = toolCalls.some((call, index) => call !== given[index])
  return isNew ? { ...event, message: { ...event.message, toolCalls } } : event
}

const foldNamed = (state: State, event: Event.Event): Event.Event => {
  switch (event._tag) {
    case "ToolCallStarted":
    case "ToolCallDelta":
    case "ToolCallCompleted":
      fold(state, event)
      return state.calls.withOwnId(event)
    case "MessageCompleted": {
      const own = withOwnIds(state, event)
      fold(state, own)
      return own
    }
    default:
      fold(state, event)
      return event
  }
}

/** Returns `true` for text deltas: they leave all lists unchanged. */
const isDelta = (event: unknown): boolean =>
  Json.isObject(event) && (event["_tag"] === "TextDelta" || event["_tag"] === "ReasoningDelta")

/** Returns the state after some events: the given state if nothing changed, otherwise a copy. */
export const applied = (state: State, events: ReadonlyArray<Event.Event>): State => {
  const next = { ...state }
  if (!events.every(isDelta)) {
    next.steps = state.steps.slice()
    next.calls = state.calls.copy()
    next.tools = state.tools.copy()
  }
  return apply(next, events) ? next : state
}

/** Returns an independent copy. */
export const copy = (state: State): State => ({
  ...state,
  steps: state.steps.slice(),
  calls: state.calls.copy(),
  tools: state.tools.copy()
})

/** Folds events into a state in place, for its sole owner. Returns whether anything changed. */
export const apply = (state: State, events: ReadonlyArray<Event.Event>): boolean => {
  let hasChanged = false
  // Indexed loop: before compilation, an iterator allocates an object per event.
  for (let index = 0; index < events.length; index++) {
    hasChanged = fold(state, events[index] as Event.Event) || hasChanged
  }
  return hasChanged
}

/** Folds one event. The most frequent events come first, before any further checks. */
const fold = (state: State, event: Event.Event): boolean => {
  if (typeof event !== "object" || event === null) return false
  switch (event._tag) {
    case "TextDelta":
      if (!EventJson.isSaid(event)) return false
      state.text = (state.text ?? "") + event.delta
      return true
    case "ReasoningDelta":
      if (!EventJson.isSaid(event)) return false
      state.reasoning += event.delta
      return true
    case "ToolCallDelta":
      return EventJson.isFragment(event) && state.calls.delta(event.id, event.argumentsDelta)
    case "MessageStarted":
      return foldOpening(state)
    case "ToolCallStarted":
      return EventJson.isHeader(event) && state.calls.started(event.id, event.name)
    default:
      if (!EventJson.isFoldable(event)) return false
      foldWhole(state, event)
      return true
  }
}

const foldWhole = (state: State, event: Event.Event): void => {
  switch (event._tag) {
    case "TextCompleted":
      state.text = event.text
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
    case "ToolApprovalRequested":
    case "ToolSuspended":
      state.tools.add(event)
      return
    case "ToolResultEncoded":
      return event.settled === true ? foldSettlement(state, event) : foldTail(state, event)
    case "AskUserRequested":
    case "ToolHalt":
      return foldTail(state, event)
    case "StepReset":
      state.spent = Response.sumUsage([state.spent, state.usage])
      state.calls.discard()
      Object.assign(state, fresh(state.thread))
      return
    case "StepCompleted":
      state.steps.push(stepResult(state, event))
      Object.assign(state, fresh(event.thread), { thread: event.thread, spent: null, tools: new ToolAnswers() })
      return
    case "ChatCompleted":
      state.chatResult = event.result
  }
}

const finishReasons: ReadonlyArray<string> = Response.FinishReason.literals

/** Normalizes an unknown finish reason to `other`: the message has ended in any case. */
const normalized = (reason: Response.FinishReason | null): Response.FinishReason | null =>
  reason === null || reason === undefined || finishReasons.includes(reason) ? reason ?? null : "other"

const foldMessage = (state: State, event: Event.Of<"MessageCompleted">): void => {
  state.message = event.message
  state.calls.describe(event.message.toolCalls)
  const isErrorKept = state.error !== undefined && state.policy.adapterErrors === "keepFirst"
  if (!isErrorKept) state.finishReason = normalized(event.finishReason) ?? state.finishReason
  // A recorded reply's finish reason may be derived from its calls, and is then not the provider's own.
  const word = event.rawFinishReason ?? (event.replayed === true ? null : event.finishReason)
  state.rawFinishReason = word ?? state.rawFinishReason
  state.isPaused = event.paused === true
  const { metadata, model, provider, responseId, usage } = event
  if (Json.isObject(usage)) state.usage = Response.usage(usage)
  if (typeof responseId === "string") state.responseId = responseId
  if (typeof model === "string") state.model = model
  if (typeof provider === "string") state.provider = provider
  if (Json.isObject(metadata)) state.metadata = { ...state.metadata, ...metadata }
}

/**
 * Returns `true` before anything came from the model. Tool events then belong to calls in the thread, from an earlier
 * turn.
 */
const isOpening = ({ calls, message, steps, text }: State): boolean =>
  steps.length === 0 && calls.isEmpty && message === null && text === undefined

/** Drops answers to an earlier turn's calls: they are in the thread, not in the new step. */
export const foldOpening = (state: State): boolean => {
  if (state.tools.isEmpty || !isOpening(state)) return false
  state.tools = new ToolAnswers()
  return true
}

const foldTail = (state: State, event: OpenCalls.Tail): void => {
  state.tools.add(event)
  if (state.thread === undefined || !isOpening(state)) return
  state.thread = SharedMessages.withAnswerToCall(state.thread, OpenCalls.messageOf(event))
}

/** Settles a question in the current step. Every other call was answered earlier, in the thread. */
const foldSettlement = (state: State, event: Event.Of<"ToolResultEncoded">): void => {
  if (state.tools.settled(event) && !isOpening(state)) return
  if (state.thread !== undefined) state.thread = SharedMessages.withSettlement(state.thread, OpenCalls.messageOf(event))
}

/** Adds steps folded in another process, before any event. Their messages are in the thread. */
export const takeUp = (state: State, steps: ReadonlyArray<Event.StepResult>): void => {
  state.steps.push(...steps)
}

/** Returns the answers to the current step's calls, in call order. */
export const answers = (state: State): ReadonlyArray<Message.Message> => state.tools.inOrder(state.calls.ids)

/** Returns the halt deciding the current step, if a tool halted. */
export const halt = (state: State): Event.Halt | undefined =>
  state.tools.deciding(state.calls.ids, state.policy.haltPrecedence)

/** Returns the calls so far. A reply without a completed message has broken off. */
const toToolCalls = ({ calls, finishReason, message, policy }: State): ReadonlyArray<Message.ToolCall> =>
  calls.toToolCalls({
    parse: policy.badArguments === "answer",
    ending: message === null ? "broken" : ToolCalls.endingOf(finishReason)
  })

/** Returns the effective finish reason. Calls outweigh a missing or vague finish reason, if the policy allows. */
const effectiveFinish = (state: State, toolCalls: ReadonlyArray<Message.ToolCall>): Response.FinishReason | null => {
  const isVague = state.finishReason === null || state.finishReason === "stop" || state.finishReason === "other"
  return state.policy.toolTurn === "presence" && isVague && toolCalls.some(Response.isActionable)
    ? "tool_calls"
    : state.finishReason
}

/** Returns the response so far. */
export const toResponse = (state: State): Response.Response => {
  const toolCalls = toToolCalls(state)
  const response: Types.Mutable<Response.Response> = {
    id: state.responseId,
    requestId: state.requestId,
    model: state.model,
    outputText: state.text ?? null,
    reasoning: state.reasoning,
    toolCalls,
    message: state.message,
    finishReason: effectiveFinish(state, toolCalls),
    rawFinishReason: state.rawFinishReason,
    usage: Response.sumUsage([state.spent, state.usage]),
    metadata: state.metadata
  }
  if (state.provider !== undefined) response.provider = state.provider
  if (state.isPaused) response.paused = true
  if (state.error !== undefined) response.error = state.error.value
  return response
}

/** Returns `true` if the reply has any text, reasoning or call. */
export const hasSaid = (state: State): boolean =>
  (state.text ?? "") !== "" || state.reasoning !== "" || !state.calls.isEmpty

/** Returns `true` if the current step has any text, reasoning, call or failure. */
export const hasPartial = (state: State): boolean =>
  hasSaid(state) || state.message !== null || state.error !== undefined

/** Returns `true` if the runtime has tools to run after a response. */
export const isToolTurn = ({ toolTurn }: Pick<Policy.Policy, "toolTurn">, response: Response.Response): boolean =>
  toolTurn === "finishReason"
    ? response.finishReason === "tool_calls"
    : response.finishReason !== "error" && response.finishReason !== "content_filter" &&
      response.toolCalls.some(Response.isActionable)

/** Returns `true` if a reply claims a tool call but contains no call: that call never arrived. */
export const isVoid = ({ calls, error, finishReason, policy }: State): boolean =>
  finishReason === "tool_calls" && error === undefined && policy.toolTurn === "presence" && !calls.hasNamed

const finalReasons: ReadonlyArray<Response.FinishReason | null> = ["stop", "length", "content_filter", "error"]

/** Returns `true` if a response continues once sent back. Failed and filtered responses do not. */
export const isPaused = ({ finishReason, paused }: Response.Response): boolean =>
  paused === true && finishReason !== "error" && finishReason !== "content_filter"

/** Returns `true` if the model has nothing more to do after a response without a halt. */
export const isDone = (policy: Pick<Policy.Policy, "toolTurn">, response: Response.Response): boolean => {
  if (isPaused(response)) return false
  return policy.toolTurn === "finishReason"
    ? finalReasons.includes(response.finishReason)
    : !isToolTurn(policy, response)
}

/** Returns the thread a result continues. */
export const threadOf = ({ thread }: State, name: string): Thread.Thread => {
  if (thread !== undefined) return thread
  throw new Error(`Collector.${name} needs the thread that the run started from: Collector.initial({ thread })`)
}

/** Returns the last step's result, or the current step's if no step has ended. */
export const toStepResult = (state: State): Event.StepResult =>
  state.steps.at(-1) ?? stepResult(state, {
    _tag: "StepCompleted",
    response: toResponse(state),
    thread: threadOf(state, "toStepResult"),
    messages: [],
    mode: "auto",
    manualToolCalls: []
  })

/** Returns a step's result, from its last event. */
const stepResult = (state: State, event: Event.Of<"StepCompleted">): Event.StepResult => {
  const { response, suspensions, thread } = event
  const halted = event.done === undefined ? halt(state) : event.halt
  const isManual = event.mode === "manual" && (event.isToolTurn ?? isToolTurn(state.policy, response))
  const ids = response.toolCalls.map((call) => call.id)
  return stepResultOf({
    thread,
    response,
    toolResults: state.tools.inOrder(ids),
    done: event.done ?? (halted !== undefined || isDone(state.policy, response)),
    mode: isManual ? "manual" : "auto",
    manualToolCalls: event.manualToolCalls ?? [],
    halt: halted,
    suspensions,
    contextUpdate: state.tools.contextUpdate(ids)
  })
}

/** Builds a step result from its parts. */
export const stepResultOf = (
  step: Pick<Event.StepResult, "thread" | "response" | "toolResults" | "done"> & {
    readonly mode: "auto" | "manual"
    readonly manualToolCalls: ReadonlyArray<Message.ToolCall>
    readonly halt: Event.Halt | undefined
    readonly suspensions: Event.StepResult["suspensions"] | undefined
    readonly contextUpdate: Json.JsonObject | undefined
  }
): Event.StepResult => {
  const { contextUpdate, done, halt, manualToolCalls, mode, response, suspensions, thread, toolResults } = step
  const result: Types.Mutable<Event.StepResult> = { thread, response, toolResults, done, metadata: Json.none }
  if (mode === "manual") result.mode = "manual"
  if (halt !== undefined) result.halt = halt
  else if (manualToolCalls.length > 0) result.manualToolCalls = manualToolCalls
  if (suspensions !== undefined) result.suspensions = suspensions
  if (contextUpdate !== undefined) result.contextUpdate = contextUpdate
  return result
}

/** A call's id, or its position if two calls share an id. */
export type Key = string | number

/** Data about one call. */
interface OfCall {
  readonly id: Key
}

interface Answered extends OfCall {
  readonly message: Message.Message
  readonly halt: Event.Halt | undefined
}

interface Updated extends OfCall {
  readonly update: Json.JsonObject
}

/**
 * A waiting call. `position` is the index of a question's placeholder among the answers, or -1 without a placeholder.
 */
interface Waiting {
  readonly event: Event.Of<"AskUserRequested" | "ToolApprovalRequested" | "ToolSuspended">
  readonly position: number
}

/**
 * The folded tool events of a turn: answers, halts, waiting calls and context updates. Events arrive in completion
 * order; results are returned in call order.
 */
export class ToolAnswers {
  private readonly answers: Array<Answered> = []
  private readonly updates: Array<Updated> = []
  /** Open calls. Created with the first: an empty map would be a hundredth of an idle run's memory. */
  private waiting: Map<Key, Waiting> | undefined

  get isEmpty(): boolean {
    return this.answers.length === 0 && this.updates.length === 0
  }

  copy(): ToolAnswers {
    const copied = new ToolAnswers()
    copied.answers.push(...this.answers)
    copied.updates.push(...this.updates)
    copied.waiting = this.waiting && new Map(this.waiting)
    return copied
  }

  /** Takes in a call event. `key` identifies the call if two calls share an id. */
  add(event: Event.Event, key?: Key): void {
    switch (event._tag) {
      case "ToolExecutionCompleted": {
        const { contextUpdate: update, id } = event
        if (update !== undefined) this.updates.push({ id: key ?? id, update })
        return
      }
      case "ToolApprovalRequested":
      case "ToolSuspended":
        return this.wait(key ?? event.toolCallId, { event, position: -1 })
      case "ToolResultEncoded":
      case "AskUserRequested":
      case "ToolHalt":
        return this.ended(event, key ?? OpenCalls.callOf(event))
    }
  }

  private ended(event: OpenCalls.Tail, id: Key): void {
    if (event._tag === "AskUserRequested") this.wait(id, { event, position: this.answers.length })
    // A stopped call no longer waits for its approval.
    else this.waiting?.delete(id)
    this.answers.push({ id, message: OpenCalls.messageOf(event), halt: OpenCalls.haltOf(event) })
  }

  private wait(id: Key, waiting: Waiting): void {
    this.waiting ??= new Map()
    this.waiting.set(id, waiting)
  }

  /** Settles a question or a suspended call: it no longer halts. Returns whether such a call exists. */
  settled(event: Event.Of<"ToolResultEncoded">): boolean {
    const { id } = event
    const waiting = this.waiting?.get(id)
    if (waiting === undefined || waiting.event._tag === "ToolApprovalRequested") return false
    this.waiting?.delete(id)
    const position = waiting.position < 0 ? this.answers.length : waiting.position
    this.answers[position] = { id, message: OpenCalls.messageOf(event), halt: undefined }
    return true
  }

  /** Returns the messages answering the calls, in call order. */
  inOrder(ids: ReadonlyArray<Key>): ReadonlyArray<Message.Message> {
    return inCallOrder(ids, this.answers).map(({ message }) => message)
  }

  /** Returns the suspensions of waiting calls. `keys` are the keys passed to `add`. */
  open(calls: ReadonlyArray<Message.ToolCall>, keys?: ReadonlyArray<Key>): ReadonlyArray<Event.Suspension> {
    return calls.flatMap((call, index) => {
      const event = this.waiting?.get(keys?.[index] ?? call.id)?.event
      if (event === undefined) return []
      if (event._tag === "ToolSuspended") return event.suspensions
      return event._tag === "AskUserRequested"
        ? [OpenCalls.question(call, event)]
        : [OpenCalls.waiting("approval", call, event.expiresAt, event.remember)]
    })
  }

  /** Returns the deciding halt: by call order, or by completion order if that takes precedence. */
  deciding(ids: ReadonlyArray<Key>, precedence: Policy.Policy["haltPrecedence"]): Event.Halt | undefined {
    const halts = this.answers.filter(({ halt }) => halt !== undefined)
    return (precedence === "request" ? inCallOrder(ids, halts) : halts)[0]?.halt
  }

  /** Returns the halts among some calls. */
  halts(ids: ReadonlyArray<Key>): ReadonlyArray<Event.Halt> {
    return this.answers.flatMap(({ halt, id }) => halt !== undefined && ids.includes(id) ? [halt] : [])
  }

  /** Returns the context updates merged in call order. With `isOnly`, updates from other calls are left out. */
  contextUpdate(ids: ReadonlyArray<Key>, isOnly = false): Json.JsonObject | undefined {
    const updates = isOnly ? this.updates.filter(({ id }) => ids.includes(id)) : this.updates
    return mergeUpdates(inCallOrder(ids, updates).map(({ update }) => update))
  }
}

/** Merges updates in the given order. Returns `undefined` without any update. */
export const mergeUpdates = (updates: ReadonlyArray<Json.JsonObject | undefined>): Json.JsonObject | undefined => {
  const given = updates.filter((update) => update !== undefined)
  return given.length === 0 ? undefined : Object.fromEntries(given.flatMap((update) => Object.entries(update)))
}

/** Sorts by call order: completion order must not show. */
const inCallOrder = <A extends OfCall>(ids: ReadonlyArray<Key>, entries: ReadonlyArray<A>): ReadonlyArray<A> => {
  if (entries.every((entry, index) => entry.id === ids[index])) return entries
  const order = new Map(ids.map((id, index) => [id, index]))
  const position = ({ id }: A): number => order.get(id) ?? order.size
  return entries.toSorted((left, right) => position(left) - position(right))
}
