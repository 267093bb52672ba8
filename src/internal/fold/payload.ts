/**
 * Which events say something to the fold: those whose payload has what the fold reads of it. Events come from adapters
 * and from storage, so that nothing about them is sure; what is not well formed is passed over.
 */
import type * as Event from "../../Event.ts"
import * as Json from "../json.ts"
import * as Log from "./sharedMessages.ts"

type Payload = { readonly [name: string]: unknown }

const isString = (value: unknown): value is string => typeof value === "string"

const isContent = (value: unknown): boolean => isString(value) || (Array.isArray(value) && value.every(Json.isObject))

const isOptional = (value: unknown, is: (value: unknown) => boolean): boolean =>
  value === undefined || value === null || is(value)

const hasUsage = (chunk: unknown): boolean => Json.isObject(chunk) && Json.isObject(chunk["usage"])

/** Whether a delta of text or reasoning says something. */
export const saysText = ({ delta }: { readonly delta?: unknown }): boolean => typeof delta === "string" && delta !== ""

export const isFragment = (event: { readonly id?: unknown; readonly argumentsDelta?: unknown }): boolean =>
  typeof event.id === "string" && typeof event.argumentsDelta === "string"

export const isHeader = (event: { readonly id?: unknown; readonly name?: unknown }): boolean =>
  typeof event.id === "string" && typeof event.name === "string"

/** A map, so that a tag like `constructor` finds nothing. */
const checks = new Map<unknown, (event: Payload) => boolean>(Object.entries(
  {
    TextDelta: saysText,
    ReasoningDelta: saysText,
    ToolCallDelta: isFragment,
    TextCompleted: (event) => isString(event["text"]),
    ToolCallStarted: isHeader,
    ToolCallCompleted: isHeader,
    MessageCompleted: (event) =>
      Json.isObject(event["message"]) && isOptional(event["finishReason"], isString) &&
      isOptional(event["metadata"], Json.isObject),
    RawChunk: (event) => hasUsage(event["chunk"]),
    Error: (event) => "error" in event,
    ToolExecutionCompleted: ({ contextUpdate, id }) => typeof id === "string" && Json.isObject(contextUpdate),
    ToolResultEncoded: ({ content, id }) => typeof id === "string" && isContent(content),
    AskUserRequested: (event) =>
      isString(event["toolCallId"]) && isString(event["question"]) && isOptional(event["opts"], Array.isArray),
    ToolApprovalRequested: (event) => isString(event["toolCallId"]),
    ToolHalt: (event) =>
      isString(event["toolCallId"]) && isString(event["reason"]) && isOptional(event["content"], isContent),
    StepReset: (event) => "error" in event,
    StepCompleted: ({ manualToolCalls, response, thread }) =>
      Json.isObject(response) && Array.isArray(response["toolCalls"]) &&
      Json.isObject(thread) && Log.hasMessages(thread) && isOptional(manualToolCalls, Array.isArray),
    ChatCompleted: ({ result }) =>
      Json.isObject(result) && Array.isArray(result["steps"]) && Json.isObject(result["outcome"])
  } satisfies { readonly [Tag in Event.Event["_tag"]]?: (event: Payload) => boolean }
))

/** Whether an event says something. */
export const saysMore = (event: object): boolean => {
  const payload = event as Payload
  return checks.get(payload["_tag"])?.(payload) === true
}

export const isFoldable = (event: unknown): event is Event.Event => Json.isObject(event) && saysMore(event)

/** A raw chunk that reports usage: the one kind that is always shown, and folded. */
export const isUsage = (event: Event.Of<"RawChunk">): boolean => hasUsage(event.chunk)
