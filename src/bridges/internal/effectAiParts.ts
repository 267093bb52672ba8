/**
 * The response parts of effect/ai, streamed and whole. A model hands over a call's arguments as it has parsed them, so
 * that they are written as text again, by which every reply is read.
 */
import type * as AiResponse from "effect/ai/Response"
import * as Base64 from "effect/encoding/Base64"
import * as Json from "../../internal/json.ts"
import * as Response from "../../Response.ts"
import * as Layout from "./layout.ts"
import type * as Part from "./part.ts"

/** What is to be made of the errors among the parts. */
export type ReadError = (error: unknown) => Part.Failure["error"]

/** A part of a reply. `index` is its position, which tells the blocks of a reply apart that came whole. */
export const read = (part: AiResponse.AnyPart, index: number, readError: ReadError): ReadonlyArray<Part.Part> => {
  switch (part.type) {
    case "text":
    case "reasoning":
      return [said(part.type, { id: `whole-${index}`, metadata: part.metadata }, part.text)]
    case "text-start":
    case "text-delta":
    case "text-end":
      return [said("text", part, "delta" in part ? part.delta : "")]
    case "reasoning-start":
    case "reasoning-delta":
    case "reasoning-end":
      return [said("reasoning", part, "delta" in part ? part.delta : "")]
    case "tool-params-start":
      return [{ type: "input", id: part.id, name: part.name, delta: "", isJson: true }]
    case "tool-params-delta":
      return [{ type: "input", id: part.id, name: undefined, delta: part.delta, isJson: true }]
    case "tool-call":
      return [call(part)]
    case "tool-result":
      return part.preliminary ? [] : [result(part)]
    case "file":
      return [file(part)]
    case "finish":
      return [finish(part)]
    case "error":
      return [{ type: "error", error: readError(part.error) }]
    default:
      return about(part)
  }
}

const said = (
  type: "text" | "reasoning",
  part: { readonly id: string; readonly metadata: AiResponse.ProviderMetadata },
  delta: string
): Part.Said => ({ type, id: part.id, delta, options: Layout.spoken(part.metadata) })

const call = (part: AiResponse.ToolCallPart<string, unknown>): Part.Call => ({
  type: "call",
  id: part.id,
  name: part.name,
  text: typeof part.params === "string" ? part.params : JSON.stringify(Json.toJson(part.params ?? {})),
  isExecuted: part.providerExecuted,
  options: Layout.spoken(part.metadata)
})

const result = (part: AiResponse.ToolResultPart<string, unknown, unknown>): Part.Result => ({
  type: "result",
  id: part.id,
  value: part.encodedResult,
  isError: part.isFailure,
  options: Layout.spoken(part.metadata)
})

const file = ({ data, mediaType, metadata }: AiResponse.FilePart): Part.File => ({
  type: "file",
  mediaType,
  data: Base64.encode(data),
  url: undefined,
  isReasoning: false,
  options: Layout.spoken(metadata)
})

/** What belongs to no content. */
const about = (part: AiResponse.AnyPart): ReadonlyArray<Part.Part> => {
  switch (part.type) {
    case "response-metadata":
      return [{ type: "about", id: part.id, model: part.modelId }]
    case "source": {
      const { id, metadata, sourceType, title } = part
      const found = sourceType === "url" ? { url: part.url.href } : { mediaType: part.mediaType }
      return [{ type: "about", notes: { sources: [{ id, sourceType, title, ...found, metadata }] } }]
    }
    case "tool-approval-request": {
      const { approvalId, toolCallId } = part
      return [{ type: "about", notes: { approvalRequests: [{ approvalId, toolCallId }] } }]
    }
    default:
      return []
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// finish

const finishReasons: { readonly [Reason in AiResponse.FinishReason]: Response.FinishReason | null } = {
  stop: "stop",
  length: "length",
  "content-filter": "content_filter",
  "tool-calls": "tool_calls",
  error: "error",
  pause: "other",
  other: "other",
  unknown: null
}

const finish = ({ metadata, reason, usage }: AiResponse.FinishPart): Part.Finish => ({
  type: "finish",
  reason: finishReasons[reason],
  word: reason,
  usage: usageOf(usage),
  isCut: false,
  options: Layout.spoken(metadata)
})

// ---------------------------------------------------------------------------------------------------------------------
// usage

const usageOf = ({ inputTokens, outputTokens }: AiResponse.Usage): Response.Usage => {
  const { total: input } = inputTokens
  const { total: output } = outputTokens
  return Response.usage({
    inputTokens: input,
    outputTokens: output,
    cachedInputTokens: inputTokens.cacheRead,
    cacheWriteInputTokens: inputTokens.cacheWrite,
    reasoningTokens: outputTokens.reasoning,
    totalTokens: input === undefined || output === undefined ? undefined : input + output
  })
}
