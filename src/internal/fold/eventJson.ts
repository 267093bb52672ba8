/**
 * Events as data from outside, since they come from adapters and from storage: which of them the fold takes in, and the JSON
 * form in which they travel and are stored. Both are total, whatever they are given. A malformed event is passed over.
 * Writing throws nothing and has an end, and what is written is what `JSON.parse(JSON.stringify(…))` returns; an event is
 * written without what earlier events contain, at any depth: the progress of a call may be the events of a run
 * inside its handler.
 */
import * as Cause from "effect/Cause"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { errorFields, reasonOf } from "../answer/errorFields.ts"
import * as ToolCalls from "../hear/toolCalls.ts"
import * as Json from "../json.ts"
import * as SharedMessages from "./sharedMessages.ts"

// Which events are folded.

type Payload = { readonly [name: string]: unknown }

const isString = (value: unknown): value is string => typeof value === "string"

const isContent = (value: unknown): boolean => isString(value) || (Array.isArray(value) && value.every(Json.isObject))

const isOptional = (value: unknown, is: (value: unknown) => boolean): boolean =>
  value === undefined || value === null || is(value)

const hasUsage = (chunk: unknown): boolean => Json.isObject(chunk) && Json.isObject(chunk["usage"])

/** Whether a delta of text or reasoning adds something. */
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
  StepCompleted: ({ manualToolCalls, response, thread }) =>
    Json.isObject(response) && Array.isArray(response["toolCalls"]) &&
    Json.isObject(thread) && SharedMessages.hasMessages(thread) && isOptional(manualToolCalls, Array.isArray),
  ChatCompleted: ({ result }) =>
    Json.isObject(result) && Array.isArray(result["steps"]) && Json.isObject(result["outcome"])
}

/** A map, so that a tag like `constructor` finds nothing. */
const byTag = new Map<unknown, (event: Payload) => boolean>(Object.entries(checks))

/** Whether an event is well formed, with what the fold reads of it. */
export const isFoldable = (event: object): boolean => {
  const payload = event as Payload
  return byTag.get(payload["_tag"])?.(payload) === true
}

/** A raw chunk that reports usage: the one kind that is always shown, and folded. */
export const isUsage = (event: { readonly chunk: unknown }): boolean => hasUsage(event.chunk)

// What is written of an event.

/**
 * How deep a value of foreign code is written, and so are the arguments of a call, wherever they stand: those that run
 * are whole.
 */
const deepest = ToolCalls.deepest

/** How deep anything is written. `JSON.stringify` and `JSON.parse` take some thousand levels. */
const deepestOfAll = 4 * deepest

/**
 * How much of one value of foreign code is written: what refers to one value from many places is written there each time,
 * and a text has to fit into one string with all of its escapes.
 */
class Room {
  values = 1_000_000
  characters = 64 * 1_048_576

  get isSpent(): boolean {
    return this.values <= 0 || this.characters <= 0
  }
}

/** Members that the runtime makes itself, and how deep they stand at most: there is room for them in any case. */
const frame: ReadonlySet<string> = new Set([
  "abandoned",
  "approvalToolCalls",
  "content",
  "halt",
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

const circular = "[circular]"
const truncated = "[truncated]"
const tooDeep = "[too deep]"
const unreadable = "[unreadable]"

const attempt = <A>(read: () => A, otherwise: A): A => Result.getOrElse(Result.try(read), () => otherwise)

const base64 = Schema.encodeSync(Schema.Uint8ArrayFromBase64)

const bytes = (view: ArrayBufferView): string => base64(new Uint8Array(view.buffer, view.byteOffset, view.byteLength))

/** What a value is written as, if that is not its own members: an error by the fields that may be shown of it. */
const standIn = (value: object): { readonly value: unknown } | undefined => {
  if (value instanceof Error) return { value: errorFields(value) }
  if (Cause.isCause(value)) return { value: { _tag: "Cause", reasons: value.reasons.map(reasonOf) } }
  if (ArrayBuffer.isView(value)) return { value: bytes(value) }
  if (value instanceof ArrayBuffer) return { value: bytes(new Uint8Array(value)) }
  // Not by their own iterators, which may have no end.
  if (value instanceof Map) return { value: Array.from(Map.prototype.entries.call(value)) }
  if (value instanceof Set) return { value: Array.from(Set.prototype.values.call(value)) }
  if ("toJSON" in value && typeof value.toJSON === "function") return { value: value.toJSON() }
  return undefined
}

/** Members that a schema wants, whatever their value: JSON has no `undefined`. */
const required: ReadonlySet<string> = new Set(["chunk", "error", "haltResult", "progress", "result", "value"])

/** Times that never come. Without them a call waits as long. */
const times: ReadonlySet<string> = new Set(["expiresAt", "withinMillis"])

const isLeftOut = (key: string, value: unknown): boolean =>
  key === "__proto__" || (value === undefined && !required.has(key)) || (times.has(key) && value === Infinity)

type Members = ReadonlyArray<readonly [key: string, value: unknown]>

/** The members of an object. Reading one may run foreign code. */
const membersOf = (value: object, without: ReadonlyArray<string> = []): Members =>
  Object.keys(value).flatMap((key) => {
    if (without.includes(key)) return []
    const member = attempt((): unknown => Reflect.get(value, key), unreadable)
    return isLeftOut(key, member) ? [] : [[key, member] as const]
  })

/** What is read of a result (`Event.ChatResult`). */
interface ChatResult extends Json.JsonObject {
  readonly thread: SharedMessages.Thread
  readonly steps: ReadonlyArray<{ readonly response: unknown; readonly thread: SharedMessages.Thread }>
  readonly finalResponse: unknown
}

/** What is read of the last event of a run. */
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

/** What came to the thread behind the last step: an event that was made by hand may not say so. */
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

/** Of a whole run that a handler yields, each step without its thread: the result has the last one. */
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

class Writer {
  private readonly path = new Set<object>()

  /** `above`: how many of the levels that are open do not count. */
  write(value: unknown, room?: Room, above = 0): Schema.Json {
    if (room !== undefined && room.values-- <= 0) return truncated
    switch (typeof value) {
      case "string":
        return text(value, room)
      case "boolean":
        return value
      case "number":
        // JSON has no negative zero.
        return Number.isFinite(value) ? value + 0 : String(value)
      case "bigint":
      case "symbol":
        return text(String(value), room)
      case "function":
        return "[function]"
      case "undefined":
        return null
      case "object":
        return value === null ? null : this.object(value, room, above)
    }
  }

  private object(value: object, room: Room | undefined, above: number): Schema.Json {
    if (this.path.has(value)) return circular
    if (this.path.size - above >= deepest || this.path.size >= deepestOfAll) return tooDeep
    this.path.add(value)
    const json = attempt(() => this.inner(value, room, above), unreadable)
    this.path.delete(value)
    return json
  }

  /** May throw: a getter, a `toJSON` and a proxy are foreign code. */
  private inner(value: object, room: Room | undefined, above: number): Schema.Json {
    if (Array.isArray(value)) return this.list(value, room, above)
    const instead = standIn(value)
    if (instead !== undefined) return this.write(instead.value, room, above)
    const json: Record<string, Schema.Json> = {}
    for (const [key, member] of written(value as Json.JsonObject)) {
      if (room !== undefined) room.characters -= key.length
      const own = room ?? this.roomFor(key)
      const isOwn = own !== room || key === "arguments"
      json[key] = this.write(member, own, isOwn ? this.path.size : above)
      if (room?.isSpent === true) break
    }
    return json
  }

  private roomFor(key: string): Room | undefined {
    return frame.has(key) && this.path.size <= deepestFrame ? undefined : new Room()
  }

  private list(values: ReadonlyArray<unknown>, room: Room | undefined, above: number): Schema.Json {
    const json: Array<Schema.Json> = []
    for (let index = 0; index < values.length; index++) {
      if (room?.isSpent === true) return [...json, truncated]
      json.push(this.write(attempt(() => values[index], unreadable), room, above))
    }
    return json
  }
}

const text = (value: string, room: Room | undefined): string => {
  if (room === undefined) return value
  room.characters -= value.length
  return room.characters < 0 ? truncated : value
}

/** Any value as JSON. */
export const toJson = (value: unknown): Schema.Json => new Writer().write(value)
