/**
 * What the readers of all protocols do alike: how an event of the wire is opened, what a reply without an end comes to,
 * and how the message of a whole one is handed out.
 */
import * as Result from "effect/Result"
import type * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import * as Json from "../../internal/json.ts"
import * as Message from "../../Message.ts"
import type * as Response from "../../Response.ts"
import * as Errors from "./errors.ts"
import type * as Sse from "./sse.ts"
import * as Wire from "./wire.ts"

/** The object that an event holds. What an event named `error` holds is an error, whatever it is. */
export const opened = ({ data, name }: Sse.SseEvent): Json.JsonObject | undefined => {
  const parsed = Result.getOrUndefined(Json.parseWire(data))
  if (Json.isObject(parsed)) return parsed
  return name === "error" ? { error: data } : undefined
}

/** The object of a body that is no stream of events, which some servers put into a list. */
export const document = (stray: string): Json.JsonObject | undefined => {
  const parsed = stray === "" ? undefined : Result.getOrUndefined(Json.parseWire(stray))
  const body: unknown = Array.isArray(parsed) ? parsed[0] : parsed
  return Json.isObject(body) ? body : undefined
}

export const notOpened = (origin: Errors.Origin, { data }: Sse.SseEvent): Adapter.AdapterError =>
  Errors.make(
    origin,
    "malformed_response",
    `the stream holds an event that is no JSON object (${data.length} characters)`
  )

/** A reply that was cut off, or that never began: then `stray` is what was there instead. */
export const unfinished = (origin: Errors.Origin, hasBegun: boolean, stray: string): Adapter.AdapterError =>
  hasBegun
    ? Errors.make(origin, "network_error", "the connection was closed before the reply was complete")
    : Errors.make(origin, "malformed_response", `the answer holds no reply: ${Errors.describe(stray)}`)

/** What a reply has cost that comes to no message. */
export const cost = (usage: Response.Usage | null): ReadonlyArray<Event.AdapterEvent> =>
  usage === null ? [] : [{ _tag: "RawChunk", chunk: { usage } }]

/** A reply that is whole. `word` is the provider's own for its end, `notes` are what it says besides. */
export interface Whole {
  readonly content: Message.Content
  readonly toolCalls: ReadonlyArray<Message.ToolCall>
  readonly reasoning: ReadonlyArray<Message.Part>
  readonly finishReason: Response.FinishReason | null
  readonly word: string | undefined
  readonly usage: Response.Usage | null
  readonly id: string | undefined
  readonly model: string | undefined
  readonly notes: Json.JsonObject
}

export const completed = (whole: Whole): Event.AdapterEvent => {
  const { content, finishReason, id, model, notes, reasoning, toolCalls, usage, word } = whole
  return {
    _tag: "MessageCompleted",
    message: {
      ...Message.assistant(content, toolCalls),
      finishReason,
      ...(reasoning.length === 0 ? {} : { reasoning })
    },
    finishReason,
    ...(word === undefined ? {} : { rawFinishReason: word }),
    metadata: {
      ...(usage === null ? {} : { usage }),
      ...Wire.given("responseId", id),
      ...Wire.given("model", model),
      ...notes
    }
  }
}
