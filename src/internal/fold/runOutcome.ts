/**
 * Derives results from the fold's state: step and run outcomes, a run's result, and whether a reply asks for tools (its
 * classification). Reasons for ending a run have one total order; the first applicable reason counts.
 */
import type * as Types from "effect/Types"
import type * as Event from "../../Event.ts"
import * as Message from "../../Message.ts"
import * as Response from "../../Response.ts"
import * as Thread from "../../Thread.ts"
import * as ToolCalls from "../hear/toolCalls.ts"
import * as Json from "../json.ts"
import * as Fold from "./fold.ts"
import * as SharedMessages from "./sharedMessages.ts"

/** Returns the outcome a step brings by itself, before the caller's own conditions. */
export const ofStep = (step: Event.StepResult, stepIndex: number): Event.Outcome | undefined => {
  if (step.halt !== undefined) return ofHalt(step.halt)
  const { suspensions = [] } = step
  const question = suspensions.find(({ kind }) => kind === "question")
  if (question !== undefined) {
    const { id: pendingToolCallId, opts: askUserOpts = [], question: pendingQuestion = "" } = question
    return { _tag: "AskUser", pendingQuestion, pendingToolCallId, askUserOpts }
  }
  if (step.mode === "manual") return { _tag: "ManualToolCalls", stepIndex }
  const own = step.manualToolCalls ?? []
  const others = suspensions.flatMap(({ kind, path, toolCall }) =>
    kind === "manual" && (path !== undefined || own.every(({ id }) => id !== toolCall.id)) ? [toolCall] : []
  )
  const manualToolCalls = [...own, ...others]
  if (manualToolCalls.length > 0) return { _tag: "ManualToolCalls", stepIndex, manualToolCalls }
  // A call with an unknown effect waits for permission to run again, or for its result.
  const approvals = suspensions.filter(({ kind }) => kind === "approval" || kind === "unknown")
  if (approvals.length > 0) {
    const approvalToolCalls = approvals.map((suspension) => suspension.toolCall)
    return { _tag: "ApprovalRequested", stepIndex, approvalToolCalls }
  }
  if (!step.done) return undefined
  return step.response.finishReason === "error"
    ? { _tag: "Failed", error: step.response.error ?? null }
    : { _tag: "Completed", finishReason: step.response.finishReason }
}

/** Fields of any halt. A halt read from storage may lack fields of its kind. */
interface AnyHalt {
  readonly haltedReason: string
  readonly pendingQuestion?: string
  readonly pendingToolCallId?: string
  readonly askUserOpts?: ReadonlyArray<unknown>
  readonly haltToolCallId?: string
  readonly haltResult?: unknown
  readonly onToolErrorException?: unknown
}

const ofHalt = (halt: AnyHalt): Event.Outcome => {
  const { askUserOpts = [], haltToolCallId = "", haltedReason, pendingQuestion = "", pendingToolCallId = "" } = halt
  if (haltedReason === "ask_user") return { _tag: "AskUser", pendingQuestion, pendingToolCallId, askUserOpts }
  if (haltedReason !== "tool_error") {
    return { _tag: "Halted", reason: haltedReason, haltToolCallId, haltResult: halt.haltResult ?? null }
  }
  return "onToolErrorException" in halt
    ? { _tag: "ToolFailed", haltToolCallId, onToolErrorException: halt.onToolErrorException }
    : { _tag: "ToolFailed", haltToolCallId }
}

/** Outcome words. A halting tool chooses its own word, and a rule's word is its name. */
export const words: { readonly [Tag in Exclude<Event.Outcome["_tag"], "Halted" | "RuleEnded">]: string } = {
  Completed: "completed",
  MaxTurns: "max_turns",
  HaltWhen: "halt_when",
  AskUser: "ask_user",
  ToolFailed: "tool_error",
  ManualToolCalls: "manual_tool_calls",
  ApprovalRequested: "approval_requested",
  Cancelled: "cancelled",
  Failed: "error"
}

const waiting: ReadonlySet<Event.Outcome["_tag"]> = new Set(["AskUser", "ManualToolCalls", "ApprovalRequested"])

/** Returns `true` if a run ended to wait for an answer, an approval or a result. */
const isWaiting = (outcome: Event.Outcome): boolean => waiting.has(outcome._tag)

/** Returns an outcome as one word. */
export const haltedReason = (outcome: Event.Outcome): string => {
  switch (outcome._tag) {
    case "Halted":
      return outcome.reason
    case "RuleEnded":
      return outcome.rule
    default:
      return words[outcome._tag]
  }
}

const refusals: { readonly [word: string]: string } = {
  "": "finished",
  completed: "finished",
  ask_user: "waiting",
  manual_tool_calls: "waiting",
  approval_requested: "waiting",
  cancelled: "stopped",
  abandoned: "stopped",
  max_turns: "max_turns",
  error: "failed",
  tool_error: "failed"
}

/**
 * Returns the reason an ended run refuses messages: the rule ending the run or making its last step final, or else the
 * kind of ending. An unknown word belongs to a halting tool.
 */
export const refusalOf = (
  { finalized, haltedReason = "error", rule }: {
    readonly haltedReason?: string | undefined
    readonly rule?: string | undefined
    readonly finalized?: string | undefined
  }
): string => {
  if (rule !== undefined) return rule
  if (haltedReason === "completed" && finalized !== undefined) return finalized
  return Object.hasOwn(refusals, haltedReason) ? refusals[haltedReason] ?? "halted" : "halted"
}

/** Parts of a run result. */
interface Parts {
  readonly thread: Thread.Thread
  readonly steps: ReadonlyArray<Event.StepResult>
  readonly outcome: Event.Outcome
  readonly finalResponse?: Response.Response
  readonly finalized?: Event.ChatResult["finalized"] | undefined
  readonly suspensions?: Event.ChatResult["suspensions"] | undefined
  readonly totalUsage?: Event.ChatResult["totalUsage"]
  readonly nestedUsage?: Response.Usage | null
}

/** Builds a run result from its parts. */
export const chatResult = (parts: Parts): Event.ChatResult => {
  const { finalized, outcome, steps } = parts
  const suspensions = parts.suspensions ?? steps.at(-1)?.suspensions
  const contextUpdate = Fold.mergeUpdates(steps.map((step) => step.contextUpdate))
  const usage = Response.sumUsage(steps.map((step) => step.response.usage))
  const result: Types.Mutable<Event.ChatResult> = {
    thread: SharedMessages.plain(parts.thread),
    finalResponse: steps.at(-1)?.response ?? parts.finalResponse ?? null,
    steps: steps.slice(),
    outcome,
    haltedReason: haltedReason(outcome),
    usage,
    totalUsage: parts.totalUsage ?? usage,
    metadata: Json.none
  }
  if (parts.nestedUsage != null) result.nestedUsage = parts.nestedUsage
  if (outcome._tag === "AskUser") {
    result.pendingQuestion = outcome.pendingQuestion
    result.pendingToolCallId = outcome.pendingToolCallId
  }
  if (suspensions !== undefined && isWaiting(outcome)) result.suspensions = suspensions
  if (finalized !== undefined) result.finalized = finalized
  if (contextUpdate !== undefined) result.contextUpdate = contextUpdate
  return result
}

/** Returns the result of a run that ended before its last event, with the thread so far. */
export const ofCut = (state: Fold.State, thread: Thread.Thread): Event.ChatResult => {
  const outcome: Event.Outcome = state.error === undefined
    ? { _tag: "Cancelled", reason: "interrupt" }
    : { _tag: "Failed", error: state.error.value }
  const isPartial = Fold.hasPartial(state) && state.steps.length === 0
  return chatResult({
    thread,
    steps: state.steps,
    outcome,
    ...(isPartial ? { finalResponse: Fold.toResponse(state) } : {})
  })
}

/** Returns the thread's messages not yet emitted, neither in a step nor as input. */
export const since = (thread: Thread.Thread, told: Thread.Thread | undefined): ReadonlyArray<Message.Message> => {
  const known = told === undefined ? Infinity : SharedMessages.length(told)
  return SharedMessages.length(thread) > known ? SharedMessages.since(thread, known) : []
}

/** Returns a call with a name all providers accept: a model may have invented an invalid name. */
const sendable = (call: Message.ToolCall): Message.ToolCall =>
  /^[A-Za-z0-9_-]{1,64}$/.test(call.name)
    ? call
    : { ...call, name: call.name.replaceAll(/[^A-Za-z0-9_-]/g, "_").slice(0, 64) }

/** Builds a turn's assistant message from the streamed content, not from the provider's final repetition. */
export const assistantMessage = (
  response: { readonly outputText: string | null; readonly finishReason: Message.Message["finishReason"] },
  toolCalls: ReadonlyArray<Message.ToolCall>,
  reasoning: Message.Message["reasoning"]
): Message.Message => {
  const message: Types.Mutable<Message.Message> = {
    role: "assistant",
    content: Json.wellFormed(response.outputText ?? ""),
    finishReason: response.finishReason ?? null,
    metadata: Json.none
  }
  if (toolCalls.length > 0) message.toolCalls = toolCalls.map(sendable)
  if (reasoning !== undefined) message.reasoning = reasoning
  return message
}

/** Builds a step's last event. A turn halted by a tool is done, whatever the model intended. */
export const stepCompleted = (
  step: Pick<Event.Of<"StepCompleted">, "response" | "thread" | "messages" | "mode" | "manualToolCalls">,
  isToolTurn: boolean,
  isDone: boolean,
  halt: Event.Halt | undefined,
  suspensions: ReadonlyArray<Event.Suspension>,
  notes: Event.Of<"StepCompleted">["notes"] = {}
): Event.Of<"StepCompleted"> => ({
  _tag: "StepCompleted",
  ...step,
  done: halt !== undefined || isDone,
  ...(step.mode === "manual" ? { isToolTurn } : {}),
  ...(halt === undefined ? {} : { halt }),
  ...(suspensions.length === 0 ? {} : { suspensions }),
  ...(Object.keys(notes).length === 0 ? {} : { notes })
})

/**
 * Adds the question to the result's thread, so that the user's reply follows it directly. If other calls wait as well,
 * their answers come first, and nothing may stand between answers and calls. A question from a nested run, or from a
 * handler restarted with the answer, is not added: its call has no answer yet.
 */
export const withQuestion = (
  thread: Thread.Thread,
  steps: ReadonlyArray<Event.StepResult>,
  outcome: Event.Outcome
): Thread.Thread => {
  const { suspensions = [], toolResults = [] } = steps.at(-1) ?? {}
  if (outcome._tag !== "AskUser" || suspensions.length > 1) return thread
  const { pendingQuestion, pendingToolCallId: toolCallId } = outcome
  if (!toolResults.some((message) => message.toolCallId === toolCallId)) return thread
  return Thread.append(thread, [{ ...Message.assistant(pendingQuestion), askUser: true, toolCallId }])
}

/** Merges the results of a structured run's one or two passes. */
export const merged = (first: Event.ChatResult | undefined, last: Event.ChatResult): Event.ChatResult => {
  if (first === undefined) return { ...last, structuredFinalize: { pass1Halted: last.haltedReason } }
  const pass1Halted = first.haltedReason
  if (last.steps.length === 0 && last.outcome._tag === "Failed") {
    return { ...first, structuredFinalize: { pass1Halted, pass2Error: last.outcome.error } }
  }
  const steps = [...first.steps, ...last.steps]
  // A second pass cancelled before its request leaves no question behind.
  const { thread } = last.steps.length === 0 ? first : last
  return {
    ...chatResult({ thread, steps, outcome: last.outcome, finalized: first.finalized }),
    structuredFinalize: { pass1Halted }
  }
}

/**
 * A reply anomaly: a call with lost arguments, or the finish reason `tool_calls` without a call.
 *
 * @category models
 */
export type Diagnostic =
  | { readonly _tag: "ArgumentsLost" } & ToolCalls.LostArguments
  | { readonly _tag: "NoToolCalls" }

/**
 * Reply classification: whether it asks for tools, and its content. Public as `Adapter.Classification`.
 *
 * @category models
 */
export interface Classification {
  /** `"tool_calls"` if the reply asks for tools. */
  readonly type: "tool_calls" | "final_answer"
  /** Reply text. `""` if empty. */
  readonly text: string
  /** Reply reasoning. `""` if empty. */
  readonly thinking: string
  /** Calls in the order the model began them, including provider-run calls. */
  readonly toolCalls: ReadonlyArray<Message.ToolCall>
  /** Finish reason, or `null`. */
  readonly finishReason: Response.FinishReason | null
  /** Reply anomalies: calls with lost arguments, or a finish reason of tool calls without a call. */
  readonly diagnostics: ReadonlyArray<Diagnostic>
}

/** Folds an event of a reply being classified. Step and run endings are ignored. */
export const heard = (state: Fold.State, event: Event.Event): void => {
  const tag: unknown = Json.isObject(event) ? event._tag : undefined
  if (tag !== "StepCompleted" && tag !== "ChatCompleted") Fold.apply(state, [event])
}

/** Classifies a folded reply: it asks for tools, or is the final answer. */
export const classification = (state: Fold.State): Classification => {
  const response = Fold.toResponse(state)
  const { finishReason, outputText, reasoning } = response
  const toolCalls = response.toolCalls.filter(({ name }) => name !== "")
  const isVoid = finishReason === "tool_calls" && !toolCalls.some(Response.isActionable)
  const lost = ToolCalls.lostOf(toolCalls).map((call): Diagnostic => ({ _tag: "ArgumentsLost", ...call }))
  return {
    type: Fold.isToolTurn(state.policy, response) ? "tool_calls" : "final_answer",
    text: outputText ?? "",
    thinking: reasoning,
    toolCalls,
    finishReason,
    diagnostics: isVoid ? [...lost, { _tag: "NoToolCalls" }] : lost
  }
}
