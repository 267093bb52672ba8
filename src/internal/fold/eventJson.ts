/**
 * Events as data from outside, since they come from adapters and from storage: which of them the fold takes in, and the
 * JSON form in which they travel and are stored. Both are total, whatever they are given. A malformed event is passed
 * over. Writing throws nothing and has an end, and what is written is what `JSON.parse(JSON.stringify(…))` returns; an
 * event is written without what earlier events contain, at any depth: the progress of a call may be the events of a run
 * inside its handler.
 */
import * as Cause from "effect/Cause"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { errorFields, reasonOf } from "../answer/errorFields.ts"
import * as Json from "../json.ts"
import * as SharedMessages from "./sharedMessages.ts"

// The events that are folded.

type Payload = { readonly [name: string]: unknown }

const isString = (value: unknown): value is string => typeof value === "string"

const isContent = (value: unknown): boolean => isString(value) || (Array.isArray(value) && value.every(Json.isObject))

const isOptional = (value: unknown, is: (value: unknown) => boolean): boolean =>
  value === undefined || value === null || is(value)

const hasUsage = (chunk: unknown): boolean => Json.isObject(chunk) && Json.isObject(chunk["usage"])

/** Returns `true` if a delta of text or reasoning adds something. */
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

/** Returns `true` if an event is well formed, with what the fold reads of it. */
export const isFoldable = (event: object): boolean => {
  const payload = event as Payload
  return byTag.get(payload["_tag"])?.(payload) === true
}

/** A raw chunk that reports usage: the one kind that is always shown, and folded. */
export const isUsage = (event: { readonly chunk: unknown }): boolean => hasUsage(event.chunk)

// The JSON that is written of an event.

/** Members that the runtime makes itself, and how deep they stand at most: there is room for them in any case. */
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

/** Returns what an object is written as: an error by the fields that may be shown of it. */
const view = (value: object): Json.View => {
  if (value instanceof Error) return { instead: errorFields(value) }
  if (Cause.isCause(value)) return { instead: { _tag: "Cause", reasons: value.reasons.map(reasonOf) } }
  if (ArrayBuffer.isView(value)) return { instead: bytes(value) }
  if (value instanceof ArrayBuffer) return { instead: bytes(new Uint8Array(value)) }
  // Collections have iterators of their own, which may have no end: those of their prototypes are called.
  if (value instanceof Map) return { instead: Array.from(Map.prototype.entries.call(value)) }
  if (value instanceof Set) return { instead: Array.from(Set.prototype.values.call(value)) }
  if ("toJSON" in value && typeof value.toJSON === "function") return { instead: value.toJSON() ?? null }
  return { members: written(value as Json.JsonObject) }
}

/** Members that a schema wants, whatever their value: JSON has no `undefined`. */
const required: ReadonlySet<string> = new Set(["chunk", "error", "haltResult", "progress", "result", "value"])

/** Times that never come. Without them a call waits as long. */
const times: ReadonlySet<string> = new Set(["expiresAt", "expiresInMillis"])

const isLeftOut = (key: string, value: unknown): boolean =>
  key === "__proto__" || (value === undefined && !required.has(key)) || (times.has(key) && value === Infinity)

type Members = ReadonlyArray<readonly [key: string, value: unknown]>

/** The members of an object. Reading one may run foreign code. */
const membersOf = (value: object, without: ReadonlyArray<string> = []): Members =>
  Object.keys(value).flatMap((key) => {
    if (without.includes(key)) return []
    const member = Result.getOrElse(Result.try((): unknown => Reflect.get(value, key)), () => marks.unreadable)
    return isLeftOut(key, member) ? [] : [[key, member ?? null] as const]
  })

/** The fields that are read of a result (`Event.ChatResult`). */
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

/** Returns what came to the thread behind the last step: an event that was made by hand may not say so. */
const behind = ({ messages, result }: ChatCompleted): Members => {
  const last = result.steps.at(-1)
  const added = messages ??
    (last === undefined ? [] : SharedMessages.since(result.thread, SharedMessages.length(last.thread)))
  return added.length === 0 ? [] : [["messages", added]]
}

/** The fields of a result that its steps contain as well. */
const repeated = ({ finalResponse, steps }: ChatResult): ReadonlyArray<string> =>
  finalResponse === (steps.at(-1)?.response ?? null) ? ["steps", "finalResponse"] : ["steps"]

/** A result without its thread and its steps, and without the response of the last of them, which is its own. */
const end = (result: ChatResult): Json.JsonObject =>
  Object.fromEntries(membersOf(result, ["thread", ...repeated(result)]))

/** Writes each step of a whole run that a handler yields without its thread: the result has the last one. */
const whole = (result: ChatResult): Members => [
  ...membersOf(result, repeated(result)),
  [
    "steps",
    result.steps.map((step: unknown) => Json.isObject(step) ? Object.fromEntries(membersOf(step, ["thread"])) : step)
  ]
]

/** The members that an object is written with. */
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

/** Any value as JSON. */
export const toJson = (value: unknown): Schema.Json => Json.write(value, writing) ?? null
