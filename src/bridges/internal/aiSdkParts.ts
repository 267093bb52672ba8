/**
 * The stream parts of the AI SDK's provider interface, as all its versions write them. Reading is total: a part of
 * another form than expected says nothing, and one of an unknown type is handed on raw.
 */
import * as Base64 from "effect/encoding/Base64"
import * as Wire from "../../adapters/internal/wire.ts"
import * as Json from "../../internal/json.ts"
import * as Response from "../../Response.ts"
import * as Layout from "./layout.ts"
import type * as Part from "./part.ts"

/** What is to be made of the errors among the parts. */
export type ReadError = (error: unknown) => Part.Failure["error"]

const string = (value: unknown): string => Wire.string(value) ?? ""

const optionsOf = (part: Json.JsonObject): Json.JsonObject | undefined => Layout.spoken(part["providerMetadata"])

export const read = (part: unknown, readError: ReadError): ReadonlyArray<Part.Part> => {
  if (!Json.isObject(part)) return []
  const type = string(part["type"])
  const block = /^(text|reasoning)-(start|delta|end)$/.exec(type)
  if (block !== null) return said(part, block[1] === "text" ? "text" : "reasoning")
  switch (type) {
    case "tool-input-start":
    case "tool-input-delta":
    case "tool-input-end":
      return [input(part)]
    case "tool-call":
      return [call(part)]
    case "tool-result":
      return result(part)
    case "file":
    case "reasoning-file":
      return file(part, type === "reasoning-file")
    case "custom":
      return [{ type: "custom", kind: string(part["kind"]), options: optionsOf(part) }]
    case "finish":
      return [finish(part)]
    case "error":
      return [{ type: "error", error: readError(part["error"]) }]
    default:
      return about(type, part)
  }
}

/** What belongs to no content. */
const about = (type: string, part: Json.JsonObject): ReadonlyArray<Part.Part> => {
  switch (type) {
    case "stream-start":
      return noted("warnings", part["warnings"])
    case "response-metadata":
      return [{ type: "about", id: Wire.string(part["id"]), model: Wire.string(part["modelId"]) }]
    case "source":
      return noted("sources", [part])
    case "tool-approval-request":
      return noted("approvalRequests", [part])
    case "ping":
      return []
    case "raw":
      return [{ type: "raw", chunk: part["rawValue"] }]
    default:
      return [{ type: "raw", chunk: part }]
  }
}

const noted = (name: string, items: unknown): ReadonlyArray<Part.About> =>
  Array.isArray(items) && items.length > 0
    ? [{ type: "about", notes: { [name]: items.map((item) => withoutType(item)) } }]
    : []

const withoutType = (item: unknown): unknown => {
  if (!Json.isObject(item) || (item["type"] !== "source" && item["type"] !== "tool-approval-request")) return item
  const { type: _type, ...rest } = item
  return rest
}

const said = (part: Json.JsonObject, type: "text" | "reasoning"): ReadonlyArray<Part.Part> => [
  { type, id: string(part["id"]), delta: string(part["delta"]), options: optionsOf(part) },
  ...noted("citations", part["citations"])
]

const input = (part: Json.JsonObject): Part.Input => ({
  type: "input",
  id: string(part["id"]),
  name: part["type"] === "tool-input-start" ? string(part["toolName"]) : undefined,
  delta: string(part["delta"]),
  isJson: part["inputEncoding"] !== "text"
})

const call = (part: Json.JsonObject): Part.Call => {
  const text = part["input"]
  return {
    type: "call",
    id: string(part["toolCallId"]),
    name: string(part["toolName"]),
    text: typeof text === "string" ? text : text === undefined ? "" : JSON.stringify(Json.toJson(text)),
    isExecuted: part["providerExecuted"] === true,
    options: optionsOf(part)
  }
}

const result = (part: Json.JsonObject): ReadonlyArray<Part.Result> =>
  part["preliminary"] === true ? [] : [{
    type: "result",
    id: string(part["toolCallId"]),
    value: part["result"],
    isError: part["isError"] === true,
    options: optionsOf(part)
  }]

const file = (part: Json.JsonObject, isReasoning: boolean): ReadonlyArray<Part.File> => {
  const tagged = Wire.object(part["data"])
  const content = tagged["type"] === "data" ? tagged["data"] : tagged["type"] === "url" ? tagged["url"] : part["data"]
  const common = { type: "file", mediaType: string(part["mediaType"]), isReasoning, options: optionsOf(part) } as const
  if (typeof content === "string") return [{ ...common, data: content, url: undefined }]
  if (content instanceof Uint8Array) return [{ ...common, data: Base64.encode(content), url: undefined }]
  return content instanceof URL ? [{ ...common, data: undefined, url: content.href }] : []
}

// ---------------------------------------------------------------------------------------------------------------------
// finish

const finishReasons: { readonly [word: string]: Response.FinishReason | null } = {
  stop: "stop",
  length: "length",
  "content-filter": "content_filter",
  "tool-calls": "tool_calls",
  error: "error",
  other: "other",
  unknown: null
}

const finish = (part: Json.JsonObject): Part.Finish => {
  const stands = part["finishReason"]
  const unified = typeof stands === "string" ? stands : string(Wire.object(stands)["unified"])
  return {
    type: "finish",
    reason: Object.hasOwn(finishReasons, unified) ? finishReasons[unified] ?? null : "other",
    word: Wire.string(Wire.object(stands)["raw"]) ?? Wire.string(unified),
    usage: usage(Wire.object(part["usage"])),
    isCut: unified === "interrupted",
    options: optionsOf(part)
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// usage

/** Version 2 writes plain numbers, the later ones their parts. A total that is not stated is the sum of both. */
const usage = (wire: Json.JsonObject): Response.Usage => {
  const { inputTokens, outputTokens, ...rest } = wire
  if (!Json.isObject(inputTokens) && !Json.isObject(outputTokens)) return Response.usage(defined(wire))
  const input = Wire.object(inputTokens)
  const output = Wire.object(outputTokens)
  const total = Number(input["total"]) + Number(output["total"])
  return Response.usage(defined({
    ...rest,
    inputTokens: input["total"],
    outputTokens: output["total"],
    cachedInputTokens: input["cacheRead"],
    cacheWriteInputTokens: input["cacheWrite"],
    reasoningTokens: output["reasoning"],
    totalTokens: Number.isFinite(total) ? total : undefined
  }))
}

const defined = (record: Json.JsonObject): Json.JsonObject =>
  Object.fromEntries(Object.entries(record).filter(([, value]) => value !== undefined))
