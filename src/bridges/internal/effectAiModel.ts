/**
 * Calls an effect/ai language model and reads its parts and errors. The offered tools cannot be run by the model. The
 * model is interrupted when reading stops.
 */
import * as AiError from "effect/ai/AiError"
import type * as LanguageModel from "effect/ai/LanguageModel"
import type * as Prompt from "effect/ai/Prompt"
import * as AiResponse from "effect/ai/Response"
import type * as AiTool from "effect/ai/Tool"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Base64 from "effect/encoding/Base64"
import * as JsonSchema from "effect/JsonSchema"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as SchemaRepresentation from "effect/SchemaRepresentation"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Adapter from "../../Adapter.ts"
import * as Answer from "../../adapters/internal/answerBody.ts"
import * as Errors from "../../adapters/internal/errors.ts"
import * as Http from "../../adapters/internal/http.ts"
import * as Wire from "../../adapters/internal/wire.ts"
import * as Json from "../../internal/json.ts"
import * as Response from "../../Response.ts"
import * as EffectAiPrompt from "./effectAiPrompt.ts"
import * as EffectAiTools from "./effectAiTools.ts"
import * as Layout from "./layout.ts"
import type * as Part from "./part.ts"
import * as Reply from "./reply.ts"

/** The model and its options, independent of a request. */
export interface Bridge {
  readonly model: LanguageModel.LanguageModel
  readonly services: ((request: Adapter.Request) => Context.Context<never>) | undefined
  readonly strict: boolean
  readonly providerTools: ReadonlyArray<AiTool.AnyProviderDefined>
  readonly owner: Layout.Owner
  readonly origin: Errors.Origin
}

/** Returns the first requested setting effect/ai cannot express. */
const unsupported = ({ services }: Bridge, request: Adapter.Request): string | undefined => {
  const isStructured = request.responseFormat !== undefined && request.responseFormat.type !== "text"
  if (isStructured && request.tools.length > 0 && request.toolChoice !== "none") {
    return "effect/ai supports structured output only in requests without tools: use structuredFinalize"
  }
  if (services !== undefined) return undefined
  const { maxTokens, model, options: further = {}, temperature } = request
  const asked = Object.entries({ model, temperature, maxTokens }).find(([, value]) => value !== undefined)?.[0] ??
    Object.keys(further)[0]
  return asked === undefined
    ? undefined
    : `effect/ai has no setting "${asked}" common to all models: provide it through the option services of EffectAi.layer`
}

const toolChoice = (choice: Adapter.ToolChoice | undefined): LanguageModel.ToolChoice<string> =>
  choice === undefined || typeof choice === "string" ? choice ?? "auto" : { tool: choice.name }

const answerSchema = (format: Adapter.ResponseFormat): Result.Result<Schema.Top, string> =>
  format.type !== "json_schema"
    ? Result.succeed(Schema.Record(Schema.String, Schema.Json))
    : Result.try({
      try: () =>
        SchemaRepresentation.fromJsonSchemaDocument(JsonSchema.fromSchemaDraft2020_12(format.schema), {
          patterns: "apply"
        }),
      catch: (cause) => `the schema "${format.name}" cannot be read: ${cause instanceof Error ? cause.message : cause}`
    })

/** Streams the parts of a reply. Calls pass through as the model made them, known or not. */
const streamed = (bridge: Bridge, request: Adapter.Request, prompt: Prompt.Prompt) =>
  bridge.model.streamText({
    prompt,
    toolkit: EffectAiTools.offered(request.tools, bridge.providerTools, bridge.strict),
    toolChoice: toolChoice(request.toolChoice),
    disableToolCallResolution: true,
    toolCallValidation: "deferred"
  })

/** Returns a structured answer's parts, all at once. The text is the decoded value. */
const whole = (
  { model }: Bridge,
  format: Adapter.ResponseFormat,
  schema: Schema.Top,
  prompt: Prompt.Prompt
): Stream.Stream<AiResponse.AnyPart, AiError.AiError> =>
  Stream.fromIterableEffect(
    model.generateObject({
      prompt,
      schema: schema as Schema.Codec<unknown, Record<string, any>>,
      ...(format.type === "json_schema" ? { objectName: format.name } : {})
    }).pipe(
      Effect.map(({ content, value }) => valueAsText(content, value)),
      Effect.catchReason("AiError", "StructuredOutputError", (reason, error) =>
        reason.responseText === "" ? Effect.fail(error) : Effect.succeed(asWritten(reason)))
    )
  )

const valueAsText = (content: ReadonlyArray<AiResponse.AnyPart>, value: unknown): ReadonlyArray<AiResponse.AnyPart> => {
  const first = content.findIndex(({ type }) => type === "text")
  return content.flatMap((part, index): ReadonlyArray<AiResponse.AnyPart> => {
    if (part.type !== "text") return [part]
    return index === first ? [{ ...part, text: JSON.stringify(value) }] : []
  })
}

/**
 * Returns an answer violating its schema as text, since judging it is up to the caller, as with every adapter. Little
 * else is known about such an answer.
 */
const asWritten = ({ responseText, usage }: AiError.StructuredOutputError): ReadonlyArray<AiResponse.AnyPart> => [
  AiResponse.makePart("text", { text: responseText }),
  AiResponse.makePart("finish", {
    reason: "unknown",
    usage: new AiResponse.Usage({
      inputTokens: { total: usage?.promptTokens },
      outputTokens: { total: usage?.completionTokens }
    })
  })
]

/** Streams the parts; a failure becomes an adapter error. */
const answered = (bridge: Bridge, request: Adapter.Request): Result.Result<
  Stream.Stream<AiResponse.AnyPart, Adapter.AdapterError>,
  Adapter.AdapterError
> =>
  Result.gen(function*() {
    const { origin, owner } = bridge
    const refuse = (reason: Errors.Reason) => (detail: string) => Errors.make(origin, reason, detail)
    const problem = unsupported(bridge, request)
    if (problem !== undefined) return yield* Result.fail(refuse("unsupported_feature")(problem))
    const prompt = yield* Result.mapError(EffectAiPrompt.write(owner, request.messages), refuse("invalid_request"))
    const { responseFormat: format } = request
    const parts: Stream.Stream<AiResponse.AnyPart, AiError.AiError> = format === undefined || format.type === "text"
      ? streamed(bridge, request, prompt)
      : whole(bridge, format, yield* Result.mapError(answerSchema(format), refuse("unsupported_feature")), prompt)
    return parts.pipe(
      Stream.catch((error) =>
        Stream.fromEffect(Effect.flatMap(
          Clock.currentTimeMillis,
          (now) => Effect.fail(fromUnknown(origin, error, now))
        ))
      ),
      Stream.provideContext(bridge.services?.(request) ?? Context.empty())
    )
  })

/** Calls the model at the first pull. */
export const open = (
  bridge: Bridge,
  request: Adapter.Request
): Effect.Effect<Reply.PartPull, Http.Failure, Scope.Scope> =>
  Effect.gen(function*() {
    const parts = yield* Effect.fromResult(Result.mapError(answered(bridge, request), Http.failed))
    const pull = yield* Answer.ofOneReader(parts, yield* Effect.scope)
    let count = 0
    return Effect.flatMap(pull, (some) =>
      Effect.map(Clock.currentTimeMillis, (now): ReadonlyArray<Part.Part> =>
        some.flatMap((part) =>
          read(part, count++, (error) =>
            fromUnknown(bridge.origin, error, now))
        )))
  })

// ---------------------------------------------------------------------------------------------------------------------
// Parts, streamed and whole. A model delivers parsed arguments, so they become text again, the form every reply is read
// in.

/** Reads a reply part. `index` is its position, to distinguish the blocks of a whole reply. */
const read = (part: AiResponse.AnyPart, index: number, readError: Part.ReadError): ReadonlyArray<Part.Part> => {
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

/** Returns parts other than content. */
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
  isPaused: reason === "pause",
  options: Layout.spoken(metadata)
})

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

// ---------------------------------------------------------------------------------------------------------------------
// Errors. If the provider's own answer is known, its text makes the reason more precise. Request data is dropped.

const reasons: { readonly [Tag in AiError.AiErrorReason["_tag"]]: Errors.Reason } = {
  RateLimitError: "rate_limited",
  QuotaExhaustedError: "quota_exceeded",
  AuthenticationError: "authentication_failed",
  ContentPolicyError: "content_filter",
  InvalidRequestError: "invalid_request",
  InvalidResponseError: "malformed_response",
  InternalProviderError: "provider_unavailable",
  NetworkError: "network_error",
  InvalidOutputError: "malformed_response",
  StructuredOutputError: "malformed_response",
  UnsupportedSchemaError: "unsupported_feature",
  UnknownError: "unknown",
  ToolNotFoundError: "malformed_response",
  ToolParameterValidationError: "malformed_response",
  InvalidToolResultError: "malformed_response",
  ToolResultEncodingError: "malformed_response",
  ToolConfigurationError: "invalid_request",
  ToolkitRequiredError: "invalid_request",
  InvalidUserInputError: "invalid_request"
}

/** Reasons an answer's text states more precisely than the library. */
const exact: ReadonlyArray<Errors.Reason> = ["context_length_exceeded", "content_filter", "quota_exceeded"]

/** Converts a model failure, or an error among the parts. */
const fromUnknown = (origin: Errors.Origin, error: unknown, now: number): Adapter.AdapterError => {
  if (AiError.isAiError(error)) return fromReason(origin, error.reason, error.retryAfter, now)
  if (AiError.isAiErrorReason(error)) return fromReason(origin, error, undefined, now)
  return Reply.errorSaid(origin, error instanceof Error ? { message: error.message } : error, "model")
}

const fromReason = (
  origin: Errors.Origin,
  reason: AiError.AiErrorReason,
  retryAfter: Duration.Duration | undefined,
  now: number
): Adapter.AdapterError => {
  const detail = detailOf(reason)
  const answer = answerOf(origin, reason, detail, now)
  const words = answer ?? Reply.errorSaid(origin, { message: detail }, "model")
  const known = reasonOf(reason)
  const isVague = known === "unknown" && answer !== undefined
  const retryAfterMillis = retryAfter === undefined
    ? answer?.retryAfterMillis ?? Errors.delayInText(known, detail)
    : Duration.toMillis(retryAfter)
  const { cause, requestId, status } = answer ?? {}
  return new Adapter.AdapterError({
    reason: isVague || exact.includes(words.reason) ? words.reason : known,
    detail: Errors.make(origin, known, detail).detail ?? "",
    provider: origin.provider,
    ...Wire.defined({ status, requestId, retryAfterMillis, cause }),
    metadata: { ...answer?.metadata, reason: reason._tag }
  })
}

const reasonOf = (reason: AiError.AiErrorReason): Errors.Reason =>
  reason._tag === "NetworkError" && reason.reason !== "TransportError" ? "invalid_request" : reasons[reason._tag]

/** Returns the reason's text, without the address and advice some messages contain. */
const detailOf = (reason: AiError.AiErrorReason): string => {
  const description = "description" in reason ? reason.description : undefined
  const words = reason._tag === "NetworkError" ? `the provider cannot be reached: ${reason.reason}` : reason.message
  const text = reason._tag === "NetworkError" && description !== undefined ? `${words}: ${description}` : words
  return text.slice(0, Errors.longestDetail)
}

/** Returns the error described by the provider's answer, if any. */
const answerOf = (
  origin: Errors.Origin,
  reason: AiError.AiErrorReason,
  detail: string,
  now: number
): Adapter.AdapterError | undefined => {
  const http = "http" in reason ? reason.http : undefined
  if (http?.response === undefined) return undefined
  const { status } = http.response
  const headers = Reply.headersOf(http.response.headers)
  const requestId = origin.requestId ?? Errors.requestIdOf(headers)
  const body = http.body ?? JSON.stringify({ error: { message: detail } })
  return Errors.fromResponse({ ...origin, requestId }, { status, headers }, body, now)
}
