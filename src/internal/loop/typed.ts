/** Marks calls by which a model gives a typed answer: readers are shown the answer instead. */
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type * as ToolOptions from "../declare/toolOptions.ts"
import * as Json from "../json.ts"

type Events = ReadonlyArray<Event.Event>

const outputTools = (tools: ToolOptions.Toolbox): string | undefined => {
  for (const tool of tools.values()) if (tool["~heddle/Output"] === true) return tool.name
  return undefined
}

/** Returns `true` if the model may answer by a tool. */
export const isByTool = (tools: ToolOptions.Toolbox): boolean => outputTools(tools) !== undefined

/** Returns `true` if the answer tool is the only offered tool. */
export const isAnswerOnly = (tools: ToolOptions.Toolbox): boolean => tools.size === 1 && isByTool(tools)

const withMark = <C extends Pick<Message.ToolCall, "name"> & { readonly metadata?: Json.JsonObject }>(call: C): C => ({
  ...call,
  metadata: { ...call.metadata, output: true }
})

const mark = (name: string, event: Event.Event): Event.Event => {
  switch (event._tag) {
    case "ToolCallStarted":
      return event.name === name ? { ...event, output: true } : event
    case "ToolCallCompleted":
      return event.name === name ? withMark(event) : event
    case "MessageCompleted": {
      const calls: unknown = Json.isObject(event.message) ? event.message.toolCalls : undefined
      if (!Array.isArray(calls) || !calls.some((call) => call?.name === name)) return event
      const toolCalls = calls.map((call) => call?.name === name ? withMark(call) : call)
      return { ...event, message: { ...event.message, toolCalls } }
    }
    default:
      return event
  }
}

const tags: ReadonlySet<string> = new Set(["ToolCallStarted", "ToolCallCompleted", "MessageCompleted"])

/** Returns a reply's events with the answer call marked. */
export const marked = (tools: ToolOptions.Toolbox, events: Events): Events => {
  if (!events.some(({ _tag }) => tags.has(_tag))) return events
  const name = outputTools(tools)
  return name === undefined ? events : events.map((event) => mark(name, event))
}
