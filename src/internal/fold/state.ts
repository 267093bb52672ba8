/** The part of the fold's state that belongs to one step. */
import type * as Message from "../../Message.ts"
import type * as Response from "../../Response.ts"
import type * as Thread from "../../Thread.ts"
import * as Calls from "../hear/toolCalls.ts"
import * as Log from "./sharedMessages.ts"
import { GrowingText } from "./textBuffer.ts"
import * as ToolEvents from "./toolEvents.ts"

export interface StepState {
  thread: Thread.Thread | undefined
  /** What was said and thought so far, if anything was. */
  text: GrowingText | undefined
  reasoning: GrowingText | undefined
  calls: Calls.Calls
  message: Message.Message | null
  finishReason: Response.FinishReason | null
  rawFinishReason: string | null
  responseId: string | null
  model: string | null
  usage: Response.Usage | null
  /** What replies of the step cost that broke before this one. */
  spent: Response.Usage | null
  error: { readonly value: unknown } | undefined
  tools: ToolEvents.ToolEvents
}

/** Takes in a piece of what is said. */
export const said = (state: StepState, piece: string): void => {
  state.text ??= new GrowingText()
  state.text.add(piece)
}

/** Makes equal texts and arguments equal, whatever their pieces were. */
export const settle = (state: StepState): void => {
  state.text?.settle()
  state.reasoning?.settle()
  state.calls.settle()
}

/** What was said, whatever its pieces were. */
export const saidInAll = (state: StepState, text: string): void => {
  state.text = new GrowingText(text)
}

/** Takes in a piece of what is thought. */
export const thought = (state: StepState, piece: string): void => {
  state.reasoning ??= new GrowingText()
  state.reasoning.add(piece)
}

/** Begins a step on a thread. */
export const begin = (state: StepState, thread: Thread.Thread): void => {
  state.thread = thread
  state.spent = null
  unsay(state)
  state.tools = new ToolEvents.ToolEvents()
}

/** Forgets what the model said. */
export const unsay = (state: StepState): void => {
  state.text = undefined
  state.reasoning = undefined
  state.calls = new Calls.Calls(state.thread === undefined ? undefined : Log.length(state.thread))
  state.message = null
  state.finishReason = null
  state.rawFinishReason = null
  state.responseId = null
  state.model = null
  state.usage = null
  state.error = undefined
}
