/** Tool events as updates on calls, for callers that think in results and not in events. */
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type * as Tool from "../../Tool.ts"
import { described } from "../answer/errorFields.ts"
import { reasonText, ToolError } from "../declare/outcome.ts"
import * as Json from "../json.ts"

export interface Result {
  /** Whether the handler produced a value. */
  readonly success: boolean
  /** The value, before it is encoded. Left out when there is none. */
  readonly data?: unknown
  /** What went wrong, as a text. Left out when nothing did. */
  readonly error?: string
  /** What the model reads. */
  readonly content: Message.Content
  /** What else there is to say of the call. */
  readonly metadata: Json.JsonObject & {
    /** The name of the tool. */
    readonly toolId: string
    /** `true` when the call was not run to its end. */
    readonly cancelled?: boolean
    /** The gate that did not let the call run: `validate` or `authorize`. */
    readonly gate?: string
    /** `true` when `content` was cut to the result limit. */
    readonly truncated?: boolean
    /** The length of the whole text in characters (UTF-16 code units), where `content` was cut. */
    readonly originalLength?: number
  }
}

export interface Update {
  /** The id of the call. */
  readonly toolCallId: string
  /** What the handler reports. Left out of a result. */
  readonly progress?: unknown
  /** The one result of the call. Left out of progress. */
  readonly result?: Result
  /** What the handler added to the context. Left out when it added nothing. */
  readonly contextUpdate?: Json.JsonObject
}

type Completed = Event.Of<"ToolExecutionCompleted">

const errorText = (error: unknown): string => error instanceof ToolError ? reasonText(error) : described(error).text

const about = (error: unknown): Json.JsonObject => {
  if (!(error instanceof ToolError)) return {}
  return error.reason === "cancelled" ? { cancelled: true } : error.metadata ?? {}
}

const value = (outcome: Tool.Outcome): unknown => {
  if (outcome._tag === "Ok") return outcome.value
  return outcome._tag === "Halt" ? outcome.result : outcome
}

const toResult = ({ name, result: outcome }: Completed, { content, originalLength }: End): Result => ({
  ...(outcome._tag === "Error"
    ? { success: false, error: errorText(outcome.error) }
    : { success: true, data: value(outcome) }),
  content,
  metadata: {
    ...(outcome._tag === "Error" ? about(outcome.error) : {}),
    ...(originalLength === undefined ? {} : { truncated: true, originalLength }),
    toolId: name
  }
})

/** How a call's text ends it: with the length it had, if it was cut. A question has none but itself. */
interface End {
  readonly content: Message.Content
  readonly originalLength?: number
}

const end = (event: Event.Event): End | undefined => {
  switch (event._tag) {
    case "ToolResultEncoded":
      return event
    case "AskUserRequested":
      return { content: event.question }
    case "ToolHalt":
      return { content: event.content ?? Json.render(event.result) }
    default:
      return undefined
  }
}

/** Reads events in the order in which they come: what a call came to, and right after it the text for the model. */
export class Reading {
  private completed: Completed | undefined

  read(events: ReadonlyArray<Event.Event>): ReadonlyArray<Update> {
    return events.flatMap((event) => this.update(event))
  }

  private update(event: Event.Event): ReadonlyArray<Update> {
    if (event._tag === "ToolProgress") return [{ toolCallId: event.id, progress: event.progress }]
    if (event._tag === "ToolExecutionCompleted") this.completed = event
    const { completed } = this
    const ending = end(event)
    if (completed === undefined || ending === undefined) return []
    const { contextUpdate } = completed
    const result = toResult(completed, ending)
    return [{ toolCallId: completed.id, result, ...(contextUpdate === undefined ? {} : { contextUpdate }) }]
  }
}
