/**
 * Folding events by hand, for tests of the fold.
 */
import { Collector, type Event, Message, type Response, Thread } from "heddle"

export const thread = Thread.fromMessages([Message.user("go")])

/** The state after events, folded purely, from a state that nothing was folded into yet. */
export const fold = (
  events: ReadonlyArray<unknown>,
  options: Collector.Options = { thread }
): Collector.State => Collector.applyAll(Collector.initial(options), events as ReadonlyArray<Event.Event>)

/** The response after events. */
export const respond = (events: ReadonlyArray<unknown>, options?: Collector.Options): Response.Response =>
  Collector.toResponse(fold(events, options))

export const delta = (text: string): Event.Event => ({ _tag: "TextDelta", id: null, delta: text })

export const started = (id: string, name: string): Event.Event => ({ _tag: "ToolCallStarted", id, name })

export const fragment = (id: string, text: string): Event.Event => ({
  _tag: "ToolCallDelta",
  id,
  argumentsDelta: text
})

export const completed = (
  id: string,
  name: string,
  args: Message.ToolCall["arguments"] = {},
  more: Partial<Event.Of<"ToolCallCompleted">> = {}
): Event.Event => ({
  _tag: "ToolCallCompleted",
  id,
  name,
  arguments: args,
  rawArguments: JSON.stringify(args),
  ...more
})

export const finished = (
  finishReason: Response.FinishReason | null,
  more: Partial<Event.Of<"MessageCompleted">> = {}
): Event.Event => ({ _tag: "MessageCompleted", message: Message.assistant("whole"), finishReason, ...more })

export const failed = (error: unknown): Event.Event => ({ _tag: "Error", error })

export const encoded = (id: string, content: string): Event.Event => ({ _tag: "ToolResultEncoded", id, content })

/** The end of a step that came to what the events before it came to. */
export const stepEnd = (
  response: Response.Response,
  more: Partial<Event.Of<"StepCompleted">> = {}
): Event.Event => ({
  _tag: "StepCompleted",
  response,
  thread,
  messages: [],
  mode: "auto",
  manualToolCalls: [],
  ...more
})
