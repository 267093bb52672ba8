/** When a run ends, and with what: one total order of reasons, first match wins. */
import type * as Event from "../../Event.ts"
import * as Lists from "../lists.ts"

/** The end that a step brings by itself, before the caller's own conditions are asked. */
export const ofStep = (step: Event.StepResult, stepIndex: number): Event.Outcome | undefined => {
  if (step.haltedReason !== undefined) return ofHalt(step, step.haltedReason)
  const { manualToolCalls = Lists.none, suspensions = Lists.none } = step
  if (manualToolCalls.length > 0) return { _tag: "ManualToolCalls", manualTurnIndex: stepIndex, manualToolCalls }
  if (step.mode === "manual") return { _tag: "ManualToolCalls", manualTurnIndex: stepIndex }
  const approvals = suspensions.filter((suspension) => suspension.kind === "approval")
  if (approvals.length > 0) {
    const approvalToolCalls = approvals.map((suspension) => suspension.toolCall)
    return { _tag: "ApprovalRequested", approvalTurnIndex: stepIndex, approvalToolCalls }
  }
  if (!step.done) return undefined
  return step.response.finishReason === "error"
    ? { _tag: "Failed", error: step.response.error ?? null }
    : { _tag: "Completed", finishReason: step.response.finishReason }
}

const ofHalt = (step: Event.StepResult, haltedReason: string): Event.Outcome => {
  const { pendingQuestion = "", pendingToolCallId = "", askUserOpts = [], haltToolCallId = "" } = step
  if (haltedReason === "ask_user") return { _tag: "AskUser", pendingQuestion, pendingToolCallId, askUserOpts }
  if (haltedReason !== "tool_error") {
    return { _tag: "Halted", reason: haltedReason, haltToolCallId, haltResult: step.haltResult ?? null }
  }
  return "onToolErrorException" in step
    ? { _tag: "ToolFailed", haltToolCallId, onToolErrorException: step.onToolErrorException }
    : { _tag: "ToolFailed", haltToolCallId }
}

const words: { readonly [Tag in Exclude<Event.Outcome["_tag"], "Halted">]: string } = {
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

/** Whether a run ended to wait for somebody. */
export const isWaiting = (outcome: Event.Outcome): boolean => waiting.has(outcome._tag)

/** An outcome as one word; a tool that halted chose its own. */
export const haltedReason = (outcome: Event.Outcome): string =>
  outcome._tag === "Halted" ? outcome.reason : words[outcome._tag]
