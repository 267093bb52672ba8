/**
 * What a reply of Chat Completions says: the delta of a streamed reply or the message of a whole one, and what is gathered
 * over all of them. Reading is total: a member of another form than expected is not there.
 */
import * as Json from "../../internal/json.ts"
import type * as CallFragments from "./callFragments.ts"
import * as Wire from "./wire.ts"

/** What a delta says. */
export interface Said {
  readonly text: string
  readonly thought: string
  readonly details: ReadonlyArray<Json.JsonObject>
  readonly refusal: string
  readonly annotations: ReadonlyArray<Json.JsonObject>
  readonly fragments: ReadonlyArray<CallFragments.Fragment>
}

export const read = (delta: Json.JsonObject): Said => {
  const content = delta["content"]
  const parts = Wire.list(content)
  return {
    text: Wire.string(content) ?? joined(parts, "text"),
    thought: parts.length === 0 ? reasoning(delta) : thinking(parts),
    details: Wire.list(delta["reasoning_details"]),
    refusal: Wire.string(delta["refusal"]) ?? "",
    annotations: Wire.list(delta["annotations"]),
    fragments: fragments(delta)
  }
}

const joined = (items: ReadonlyArray<Json.JsonObject>, key: string): string =>
  items.length === 0 ? "" : items.map((item) => Wire.string(item[key]) ?? "").join("")

/** Mistral writes its reasoning as parts of the content. */
const thinking = (parts: ReadonlyArray<Json.JsonObject>): string =>
  parts.map(({ thinking }) => Wire.string(thinking) ?? joined(Wire.list(thinking), "text")).join("")

/** The same reasoning may stand in several fields: they are alternatives, and never added up. */
const reasoning = (delta: Json.JsonObject): string => {
  const plain = Wire.string(delta["reasoning_content"]) ?? Wire.string(delta["reasoning"])
  if (plain !== undefined) return plain
  const details = Wire.list(delta["reasoning_details"])
  return joined(details, "text") || joined(details, "summary")
}

const fragments = (delta: Json.JsonObject): ReadonlyArray<CallFragments.Fragment> => {
  const calls = Wire.list(delta["tool_calls"])
  const legacy = delta["function_call"]
  if (calls.length === 0 && !Json.isObject(legacy)) return []
  const own = calls.map(({ function: called, id, index, type: _type, ...metadata }) => ({
    ...fragment(Wire.object(called)),
    index: typeof index === "number" ? index : undefined,
    id: Wire.string(id),
    metadata: Object.fromEntries(Object.entries(metadata).filter(([, value]) => isSaid(value)))
  }))
  if (calls.length > 0 || !Json.isObject(legacy)) return own
  return [{ ...fragment(legacy), index: "function_call", id: undefined, metadata: {} }]
}

/** Some servers write what is not there as `null`, an empty string or an empty object. */
const isSaid = (value: unknown): boolean =>
  value !== null && value !== "" && !(Json.isObject(value) && Object.keys(value).length === 0)

const fragment = (called: Json.JsonObject) => {
  const args = called["arguments"]
  return {
    name: Wire.string(called["name"]),
    text: typeof args === "string" ? args : Json.isObject(args) ? JSON.stringify(args) : undefined
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// notes and reasoning details

/** The sources that a text cites, each once, and how likely its words were, in their order. */
export class Notes {
  private readonly annotations = new Map<string, Json.JsonObject>()
  private readonly logprobs: Array<Json.JsonObject> = []

  add(annotations: ReadonlyArray<Json.JsonObject>, logprobs: unknown): void {
    for (const annotation of annotations) this.annotations.set(JSON.stringify(annotation), annotation)
    const { content, refusal } = Wire.object(logprobs)
    for (const token of [...Wire.list(content), ...Wire.list(refusal)]) this.logprobs.push(token)
  }

  get metadata(): Json.JsonObject {
    return {
      ...(this.annotations.size === 0 ? {} : { annotations: [...this.annotations.values()] }),
      ...(this.logprobs.length === 0 ? {} : { logprobs: this.logprobs })
    }
  }
}

/** The members of reasoning details that come in pieces. */
const pieced = ["text", "summary"] as const

/** Reasoning details, put together so that they can go back as the provider signed them. */
export class ReasoningDetails {
  private readonly details: Array<Record<string, unknown>> = []

  get list(): ReadonlyArray<Json.JsonObject> {
    return this.details
  }

  add(pieces: ReadonlyArray<Json.JsonObject>): void {
    for (const piece of pieces) {
      const last = this.details.at(-1)
      if (last === undefined || !isContinued(last, piece)) this.details.push(said(piece))
      else append(last, piece)
    }
  }
}

/** Whether a piece goes on with a detail. What is encrypted comes whole. */
const isContinued = (detail: Json.JsonObject, piece: Json.JsonObject): boolean =>
  detail["type"] === piece["type"] && detail["index"] === piece["index"] && isPieced(detail) && isPieced(piece)

/** A signature alone ends the text that it signs. */
const isPieced = (detail: Json.JsonObject): boolean =>
  pieced.some((name) => typeof detail[name] === "string") ||
  (detail["data"] === undefined && typeof detail["signature"] === "string")

const said = (piece: Json.JsonObject): Record<string, unknown> =>
  Object.fromEntries(Object.entries(piece).filter(([, value]) => value !== null && value !== undefined))

const append = (detail: Record<string, unknown>, piece: Json.JsonObject): void => {
  for (const [name, value] of Object.entries(said(piece))) {
    const isText = pieced.some((text) => text === name) && typeof value === "string"
    const before = isText ? detail[name] : undefined
    detail[name] = typeof before === "string" ? before + String(value) : value
  }
}
