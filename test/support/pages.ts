/** What a page has to show of a run: texts and outputs, as its thread has them. */
import { Event, Message, type Thread } from "heddle"
import * as Json from "../../src/internal/json.ts"

/** The events of a run as they leave a server. */
export const published = (
  events: ReadonlyArray<Event.Event>,
  options: Omit<Event.PublicOptions, "calls"> = {}
): ReadonlyArray<Event.PublicEvent> => {
  const calls = new Map<string, Event.PublicCall>()
  return events.flatMap((event) => Event.toPublic(event, { runId: "run", ...options, calls }) ?? [])
}

/** What is shown of an answer: its JSON where it is JSON, else its text. */
export const shown = (content: Message.Content): unknown => {
  if (typeof content !== "string") return Json.toJson(content)
  const json = Json.parse(content)
  return json._tag === "Success" ? json.success : content
}

/** The text of each message of the model, behind the first messages of a thread. The question of a tool is none. */
export const textsOf = ({ messages }: Thread.Thread, from = 0): ReadonlyArray<string> =>
  messages.slice(from).flatMap((message) =>
    message.role === "assistant" && message.askUser !== true ? [Message.text(message)] : []
  )

/** A call of a thread, with its answer. */
export interface Answered {
  readonly id: string
  readonly answer: Message.Message | undefined
}

/** The calls behind the first messages of a thread, without those of the provider. */
export const callsOf = ({ messages }: Thread.Thread, from = 0): ReadonlyArray<Answered> => {
  const calls: Array<{ readonly id: string; readonly step: number; answer: Message.Message | undefined }> = []
  messages.slice(from).forEach((message, step) => {
    for (const { id, providerExecuted } of message.toolCalls ?? []) {
      if (providerExecuted !== true) calls.push({ id, step, answer: undefined })
    }
    const call = message.role === "tool" ? calls.findLast(({ id }) => id === message.toolCallId) : undefined
    if (call !== undefined) call.answer = message
  })
  return calls
}
