/**
 * Which events say something to the fold: those whose payload has what the fold reads of it. Events come from adapters
 * and from storage, so that nothing about them is sure; what is not well formed is passed over.
 */
import type * as Event from "../Event.ts"
import * as Json from "./json.ts"
import * as Log from "./log.ts"

type Payload = { readonly [name: string]: unknown }

const isString = (value: unknown): value is string => typeof value === "string"

const isText = (value: unknown): boolean => isString(value) && value !== ""

const isOptional = (value: unknown, is: (value: unknown) => boolean): boolean =>
  value === undefined || value === null || is(value)

const hasUsage = (chunk: unknown): boolean => Json.isObject(chunk) && Json.isObject(chunk["usage"])

/** Whether it can be looked at as an event. */
export const isEvent = (event: unknown): boolean => Json.isObject(event)

/** Whether a delta of text or reasoning says something. */
export const saysText = (event: { readonly delta?: unknown }): boolean => isText(event.delta)

export const isFragment = (event: { readonly id?: unknown; readonly argumentsDelta?: unknown }): boolean =>
  isString(event.id) && isString(event.argumentsDelta)

/** A map, so that a tag like `constructor` finds nothing. */
const checks = new Map<unknown, (event: Payload) => boolean>(Object.entries(
  {
    TextDelta: saysText,
    ReasoningDelta: saysText,
    ToolCallDelta: isFragment,
    TextCompleted: (event) => isString(event["text"]),
    ToolCallStarted: (event) => isString(event["id"]) && isString(event["name"]),
    ToolCallCompleted: (event) => isString(event["id"]) && isString(event["name"]),
    MessageCompleted: (event) =>
      Json.isObject(event["message"]) && isOptional(event["finishReason"], isString) &&
      isOptional(event["metadata"], Json.isObject),
    RawChunk: (event) => hasUsage(event["chunk"]),
    Error: (event) => "error" in event,
    ToolExecutionCompleted: (event) => isString(event["id"]) && Json.isObject(event["contextUpdate"]),
    ToolResultEncoded: (event) => isString(event["id"]) && isString(event["content"]),
    AskUserRequested: (event) =>
      isString(event["toolCallId"]) && isString(event["question"]) && isOptional(event["opts"], Array.isArray),
    ToolApprovalRequested: (event) => isString(event["toolCallId"]),
    ToolHalt: (event) =>
      isString(event["toolCallId"]) && isString(event["reason"]) && isOptional(event["content"], isString),
    StepCompleted: ({ manualToolCalls, response, thread }) =>
      Json.isObject(response) && Array.isArray(response["toolCalls"]) &&
      Json.isObject(thread) && Log.hasMessages(thread) && isOptional(manualToolCalls, Array.isArray),
    ChatCompleted: ({ result }) =>
      Json.isObject(result) && Array.isArray(result["steps"]) && Json.isObject(result["outcome"])
  } satisfies { readonly [Tag in Event.Event["_tag"]]?: (event: Payload) => boolean }
))

export const isFoldable = (event: unknown): event is Event.Event =>
  Json.isObject(event) && checks.get(event["_tag"])?.(event) === true

/** A raw chunk that reports usage: the one kind that is always shown, and folded. */
export const isUsage = (event: Event.Of<"RawChunk">): boolean => hasUsage(event.chunk)
