/** When a run ends, and with what: one total order of reasons, first match wins. */
import type * as Event from "../Event.ts"

/** The end that a step brings by itself, before the caller's own conditions are asked. */
export const ofStep = (step: Event.StepResult, stepIndex: number): Event.Outcome | undefined => {
  if (step.haltedReason !== undefined) return ofHalt(step, step.haltedReason)
  const { manualToolCalls = [] } = step
  if (manualToolCalls.length > 0) return { _tag: "ManualToolCalls", manualTurnIndex: stepIndex, manualToolCalls }
  if (step.mode === "manual") return { _tag: "ManualToolCalls", manualTurnIndex: stepIndex }
  if (!step.done) return undefined
  return step.response.finishReason === "error" ? { _tag: "Failed", error: step.response.error ?? null } : { _tag: "Completed" }
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
