/**
 * The errors of effect/ai as one error. Where the provider's own answer is known, its words make a reason more exact;
 * nothing of the request is taken over.
 */
import * as AiError from "effect/ai/AiError"
import * as Duration from "effect/Duration"
import * as Option from "effect/Option"
import * as Adapter from "../../Adapter.ts"
import * as Errors from "../../adapters/internal/errors.ts"
import * as Json from "../../internal/json.ts"

const longestDetail = 1000

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

/** What the words of an answer tell more exactly than the library does. */
const exact: ReadonlyArray<Errors.Reason> = ["context_length_exceeded", "content_filter", "quota_exceeded"]

/** The error that a failure of a model, or an error among the parts of a reply, stands for. */
export const fromUnknown = (origin: Errors.Origin, error: unknown, now: number): Adapter.AdapterError => {
  if (AiError.isAiError(error)) return fromReason(origin, error.reason, error.retryAfter, now)
  if (AiError.isAiErrorReason(error)) return fromReason(origin, error, undefined, now)
  const words = error instanceof Error ? { message: error.message } : Json.toJson(error)
  return said(origin, words)
}

const said = (origin: Errors.Origin, words: unknown): Adapter.AdapterError =>
  Option.getOrElse(
    Errors.fromChunk(origin, { error: words }, true),
    () => Errors.make(origin, "unknown", "the model told of an error without words")
  )

const fromReason = (
  origin: Errors.Origin,
  reason: AiError.AiErrorReason,
  retryAfter: Duration.Duration | undefined,
  now: number
): Adapter.AdapterError => {
  const detail = detailOf(reason)
  const answer = answered(origin, reason, detail, now)
  const words = answer ?? said(origin, { message: detail })
  const known = reasonOf(reason)
  const isVague = known === "unknown" && answer !== undefined
  const retryAfterMillis = retryAfter === undefined ? answer?.retryAfterMillis : Duration.toMillis(retryAfter)
  const { cause, requestId, status } = answer ?? {}
  return new Adapter.AdapterError({
    reason: isVague || exact.includes(words.reason) ? words.reason : known,
    detail: Errors.make(origin, known, detail).detail ?? "",
    provider: origin.provider,
    ...(status === undefined ? {} : { status }),
    ...(requestId === undefined ? {} : { requestId }),
    ...(retryAfterMillis === undefined ? {} : { retryAfterMillis }),
    ...(cause === undefined ? {} : { cause }),
    metadata: { ...answer?.metadata, reason: reason._tag }
  })
}

const reasonOf = (reason: AiError.AiErrorReason): Errors.Reason =>
  reason._tag === "NetworkError" && reason.reason !== "TransportError" ? "invalid_request" : reasons[reason._tag]

/** The words of the reason, without the address and the advice that some messages hold. */
const detailOf = (reason: AiError.AiErrorReason): string => {
  const description = "description" in reason ? reason.description : undefined
  const words = reason._tag === "NetworkError" ? `the provider cannot be reached: ${reason.reason}` : reason.message
  const text = reason._tag === "NetworkError" && description !== undefined ? `${words}: ${description}` : words
  return text.slice(0, longestDetail)
}

/** What the provider's answer says, if there was one. */
const answered = (
  origin: Errors.Origin,
  reason: AiError.AiErrorReason,
  detail: string,
  now: number
): Adapter.AdapterError | undefined => {
  const http = "http" in reason ? reason.http : undefined
  if (http?.response === undefined) return undefined
  const { headers: found, status } = http.response
  const headers = Object.fromEntries(
    Object.entries(found).flatMap(([name, text]) => typeof text === "string" ? [[name.toLowerCase(), text]] : [])
  )
  const requestId = origin.requestId ?? headers["x-request-id"] ?? headers["request-id"]
  const body = http.body ?? JSON.stringify({ error: { message: detail } })
  return Errors.fromResponse({ ...origin, requestId }, { status, headers }, body, now)
}
