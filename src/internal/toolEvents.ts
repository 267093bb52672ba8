/** What the last event of a call says to the fold: the answer to the call, and the halt it may be. */
import type * as Event from "../Event.ts"
import type * as Message from "../Message.ts"
import * as Json from "./json.ts"
import * as Outcomes from "./outcome.ts"

/** A call's halt; which of several decides is the policy's. */
export interface CallHalt {
  readonly id: string
  readonly halt: Event.Halt
}

const message = (toolCallId: string, content: string, isError: boolean): Message.Message => ({
  role: "tool",
  toolCallId,
  content,
  metadata: {},
  ...(isError ? { isError: true } : {})
})

export const answer = (
  event: Event.Of<"ToolResultEncoded"> | Event.Of<"AskUserRequested"> | Event.Of<"ToolHalt">
): Message.Message => {
  switch (event._tag) {
    case "ToolResultEncoded":
      return message(event.id, event.content, event.isError === true)
    case "AskUserRequested":
      return message(event.toolCallId, Outcomes.awaitingAnswer, false)
    case "ToolHalt":
      return message(event.toolCallId, event.content ?? Json.render(event.result), event.reason === "tool_error")
  }
}

export const halt = (event: Event.Of<"AskUserRequested"> | Event.Of<"ToolHalt">): CallHalt => {
  const id = event.toolCallId
  if (event._tag === "AskUserRequested") {
    const { opts, question } = event
    return {
      id,
      halt: { haltedReason: "ask_user", pendingQuestion: question, pendingToolCallId: id, askUserOpts: opts ?? [] }
    }
  }
  if (event.reason !== "tool_error") {
    return { id, halt: { haltedReason: event.reason, haltToolCallId: id, haltResult: event.result } }
  }
  const exception = "onToolErrorException" in event ? { onToolErrorException: event.onToolErrorException } : {}
  return { id, halt: { haltedReason: "tool_error", haltToolCallId: id, ...exception } }
}

/** By the order in which the model made the calls: what completed first must not show. */
export const inCallOrder = <A>(
  ids: ReadonlyArray<string>,
  items: ReadonlyArray<A>,
  id: (item: A) => string | undefined
): ReadonlyArray<A> => {
  if (items.length < 2) return items
  const order = new Map(ids.map((callId, index) => [callId, index]))
  const position = (item: A): number => order.get(id(item) ?? "") ?? order.size
  return items.toSorted((left, right) => position(left) - position(right))
}
