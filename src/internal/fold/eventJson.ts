/**
 * Treats events as outside data, since they come from adapters and storage: selects the events the fold accepts, and
 * defines their JSON form on the wire and in storage. Both handle any input. Malformed events are skipped. Writing
 * never throws, always ends, and yields the result of `JSON.parse(JSON.stringify(…))`. An event is written without
 * anything contained in earlier events, at any depth: a call's progress may be the events of a run inside its handler.
 */
import * as Cause from "effect/Cause"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { errorFields, reasonOf } from "../answer/errorFields.ts"
import * as Json from "../json.ts"
import * as SharedMessages from "./sharedMessages.ts"

// Folded events.

type Payload = { readonly [name: string]: unknown }

const isString = (value: unknown): value is string => typeof value === "string"

const isContent = (value: unknown): boolean => isString(value) || (Array.isArray(value) && value.every(Json.isObject))

const isOptional = (value: unknown, is: (value: unknown) => boolean): boolean =>
  value === undefined || value === null || is(value)

const hasUsage = (chunk: unknown): boolean => Json.isObject(chunk) && Json.isObject(chunk["usage"])

/** Returns `true` if a text or reasoning delta adds something. */
export const isSaid = ({ delta }: { readonly delta?: unknown }): boolean => typeof delta === "string" && delta !== ""

export const isFragment = (event: { readonly id?: unknown; readonly argumentsDelta?: unknown }): boolean =>
  typeof event.id === "string" && typeof event.argumentsDelta === "string"

export const isHeader = (event: { readonly id?: unknown; readonly name?: unknown }): boolean =>
  typeof event.id === "string" && typeof event.name === "string"

const checks: { readonly [tag: string]: (event: Payload) => boolean } = {
  TextDelta: isSaid,
  ReasoningDelta: isSaid,
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
  ToolSuspended: (event) => isString(event["toolCallId"]) && Array.isArray(event["suspensions"]),
  ToolHalt: (event) =>
    isString(event["toolCallId"]) && isString(event["reason"]) && isOptional(event["content"], isContent),
  StepReset: (event) => "error" in event,
  OutputPartial: () => true,
  OutputCompleted: () => true,
  MessageDelivered: (event) => isString(event["id"]) && Json.isObject(event["message"]),
  MessageRefused: (event) => isString(event["id"]) && isString(event["reason"]),
  ModelSwitched: (event) => isString(event["from"]) && isString(event["to"]),
  StepCompleted: ({ manualToolCalls, response, thread }) =>
    Json.isObject(response) && Array.isArray(response["toolCalls"]) &&
    Json.isObject(thread) && SharedMessages.hasMessages(thread) && isOptional(manualToolCalls, Array.isArray),
  ChatCompleted: ({ result }) =>
    Json.isObject(result) && Array.isArray(result["steps"]) && Json.isObject(result["outcome"])
}

/** A map, so that a tag like `constructor` finds nothing. */
const byTag = new Map<unknown, (event: Payload) => boolean>(Object.entries(checks))

/** Returns `true` if an event has all fields read by the fold, well formed. */
export const isFoldable = (event: object): boolean => {
  const payload = event as Payload
  return byTag.get(payload["_tag"])?.(payload) === true
}

/** Returns `true` for a raw chunk with usage: the only raw chunk always shown and folded. */
export const isUsage = (event: { readonly chunk: unknown }): boolean => hasUsage(event.chunk)

// Event JSON.

/** Members made by the runtime itself, and their deepest level: these always fit. */
const frame: ReadonlySet<string> = new Set([
  "abandoned",
  "approvalToolCalls",
  "content",
  "halt",
  "leftOutTools",
  "manualToolCalls",
  "message",
  "messages",
  "outcome",
  "reasoning",
  "response",
  "result",
  "structuredFinalize",
  "suspensions",
  "toolCall",
  "toolCalls",
  "usage"
])
const deepestFrame = 4

const marks = {
  circular: "[circular]",
  tooDeep: "[too deep]",
  truncated: "[truncated]",
  unreadable: "[unreadable]"
}

const base64 = Schema.encodeSync(Schema.Uint8ArrayFromBase64)

const bytes = (view: ArrayBufferView): string => base64(new Uint8Array(view.buffer, view.byteOffset, view.byteLength))

/** Returns the written form of an object. Errors are written by their public fields. */
const view = (value: object): Json.View => {
  if (value instanceof Error) return { instead: errorFields(value) }
  if (Cause.isCause(value)) return { instead: { _tag: "Cause", reasons: value.reasons.map(reasonOf) } }
  if (ArrayBuffer.isView(value)) return { instead: bytes(value) }
  if (value instanceof ArrayBuffer) return { instead: bytes(new Uint8Array(value)) }
  // Collections may override iterators, even with endless ones, so the prototype's own iterators are called.
  if (value instanceof Map) return { instead: Array.from(Map.prototype.entries.call(value)) }
  if (value instanceof Set) return { instead: Array.from(Set.prototype.values.call(value)) }
  if ("toJSON" in value && typeof value.toJSON === "function") return { instead: value.toJSON() ?? null }
  return { members: written(value as Json.JsonObject) }
}

/** Members required by a schema even if `undefined`: JSON has no `undefined`. */
const required: ReadonlySet<string> = new Set(["chunk", "error", "haltResult", "progress", "result", "value"])

/** Times that may be infinite. Without the field, a call waits just as long. */
const times: ReadonlySet<string> = new Set(["expiresAt", "expiresInMillis"])

const isLeftOut = (key: string, value: unknown): boolean =>
  key === "__proto__" || (value === undefined && !required.has(key)) || (times.has(key) && value === Infinity)

type Members = ReadonlyArray<readonly [key: string, value: unknown]>

/** Returns an object's members. Reading a member may run foreign code. */
const membersOf = (value: object, without: ReadonlyArray<string> = []): Members =>
  Object.keys(value).flatMap((key) => {
    if (without.includes(key)) return []
    const member = Result.getOrElse(Result.try((): unknown => Reflect.get(value, key)), () => marks.unreadable)
    return isLeftOut(key, member) ? [] : [[key, member ?? null] as const]
  })

/** Result fields read here (`Event.ChatResult`). */
interface ChatResult extends Json.JsonObject {
  readonly thread: SharedMessages.Thread
  readonly steps: ReadonlyArray<{ readonly response: unknown; readonly thread: SharedMessages.Thread }>
  readonly finalResponse: unknown
}

/** A run's last event, with the fields read here. */
interface ChatCompleted extends Json.JsonObject {
  readonly result: ChatResult
  readonly messages?: ReadonlyArray<unknown>
}

const isStep = (value: Json.JsonObject): boolean =>
  value["_tag"] === "StepCompleted" && Array.isArray(value["messages"]) && Json.isObject(value["thread"])

const isResult = (value: Json.JsonObject): value is ChatResult =>
  Array.isArray(value["steps"]) && Json.isObject(value["thread"]) && Json.isObject(value["outcome"]) &&
  typeof value["haltedReason"] === "string"

const isChat = (value: Json.JsonObject): value is ChatCompleted =>
  value["_tag"] === "ChatCompleted" && Json.isObject(value["result"]) && isResult(value["result"])

/**
 * Returns the messages added to the thread after the last step, computed from the thread if a hand-made event omits the
 * list.
 */
const behind = ({ messages, result }: ChatCompleted): Members => {
  const last = result.steps.at(-1)
  const added = messages ??
    (last === undefined ? [] : SharedMessages.since(result.thread, SharedMessages.length(last.thread)))
  return added.length === 0 ? [] : [["messages", added]]
}

/** Names the result fields not written as they are: the steps, and a final response equal to the last step's. */
const repeated = ({ finalResponse, steps }: ChatResult): ReadonlyArray<string> =>
  finalResponse === (steps.at(-1)?.response ?? null) ? ["steps", "finalResponse"] : ["steps"]

/** Returns a result without its thread and steps, and without the final response if it belongs to the last step. */
const end = (result: ChatResult): Json.JsonObject =>
  Object.fromEntries(membersOf(result, ["thread", ...repeated(result)]))

/** Returns a whole run yielded by a handler, its steps without their threads: the result has the last thread. */
const whole = (result: ChatResult): Members => [
  ...membersOf(result, repeated(result)),
  [
    "steps",
    result.steps.map((step: unknown) => Json.isObject(step) ? Object.fromEntries(membersOf(step, ["thread"])) : step)
  ]
]

/** Returns the members to write for an object. */
const written = (value: Json.JsonObject): Members => {
  if (isStep(value)) return membersOf(value, ["thread"])
  if (isChat(value)) {
    return [...membersOf(value, ["messages", "result"]), ["result", end(value.result)], ...behind(value)]
  }
  return isResult(value) ? whole(value) : membersOf(value)
}

const writing: Json.Writing = {
  view,
  marks,
  roomOf: (name, depth) => frame.has(name) && depth <= deepestFrame ? undefined : new Json.Room()
}

/** Converts any value to JSON. */
export const toJson = (value: unknown): Schema.Json => Json.write(value, writing) ?? null
