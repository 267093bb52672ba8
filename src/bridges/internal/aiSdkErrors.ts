/**
 * What the AI SDK's providers reject with, as one error. Errors are told by their names and fields, because several
 * versions of their classes may be installed. Nothing of the request is taken over, which some of them carry.
 */
import * as Option from "effect/Option"
import type * as Adapter from "../../Adapter.ts"
import * as Errors from "../../adapters/internal/errors.ts"
import type * as Http from "../../adapters/internal/http.ts"
import * as Json from "../../internal/json.ts"

const longestDetail = 1000

const byName: { readonly [name: string]: Errors.Reason } = {
  AI_LoadAPIKeyError: "authentication_failed",
  AI_LoadSettingError: "invalid_request",
  AI_InvalidArgumentError: "invalid_request",
  AI_InvalidPromptError: "invalid_request",
  AI_NoSuchModelError: "invalid_request",
  AI_NoSuchProviderReferenceError: "invalid_request",
  AI_UnsupportedFunctionalityError: "unsupported_feature",
  AI_EmptyResponseBodyError: "malformed_response",
  AI_InvalidResponseDataError: "malformed_response",
  AI_JSONParseError: "malformed_response",
  AI_NoContentGeneratedError: "malformed_response",
  AI_TypeValidationError: "malformed_response",
  TimeoutError: "timeout",
  AbortError: "network_error"
}

/** What a provider rejected with. `now` is the time that a date in its headers is compared with. */
export const fromRejection = (origin: Errors.Origin, rejection: unknown, now: number): Http.Failure => {
  const error = fromUnknown(origin, rejection, now)
  return { error, isWorthRetrying: isWorthRetrying(error, Json.isObject(rejection) ? rejection : {}) }
}

/** The server's own word on it outweighs the provider's, and that what the error is taken for. */
const isWorthRetrying = (error: Adapter.AdapterError, rejection: Json.JsonObject): boolean => {
  const word = headers(rejection["responseHeaders"])["x-should-retry"]
  if (word === "true" || word === "false") return word === "true"
  const { isRetryable } = rejection
  return typeof isRetryable === "boolean" ? isRetryable && error.reason !== "quota_exceeded" : error.isRetryable
}

/** The error that a rejection, or an error among the parts of a reply, stands for. */
export const fromUnknown = (origin: Errors.Origin, thrown: unknown, now: number): Adapter.AdapterError => {
  if (!Json.isObject(thrown)) return said(origin, { error: String(thrown) })
  const { name, responseHeaders, statusCode } = thrown
  const from = { ...origin, requestId: origin.requestId ?? requestId(responseHeaders) }
  if (typeof statusCode === "number" && statusCode >= 400) return fromStatus(from, statusCode, thrown, now)
  if (typeof name === "string" && Object.hasOwn(byName, name)) return named(from, byName[name] ?? "unknown", thrown)
  if (name === "AI_APICallError") return fromCause(from, thrown, now)
  return said(from, { error: thrown instanceof Error ? wordsOf(thrown) : thrown })
}

const said = (origin: Errors.Origin, chunk: Json.JsonObject): Adapter.AdapterError =>
  Option.getOrElse(
    Errors.fromChunk(origin, Json.toJson(chunk) as Json.JsonObject, true),
    () => Errors.make(origin, "unknown", "the provider told of an error without words")
  )

/** An error's own words, without what else its provider put into it. */
const wordsOf = (error: Error): Json.JsonObject => {
  const fields: Json.JsonObject = { ...error }
  return { message: error.message, type: fields["type"], code: fields["code"] }
}

const fromStatus = (
  origin: Errors.Origin,
  status: number,
  error: Json.JsonObject,
  now: number
): Adapter.AdapterError => {
  const body = error["responseBody"]
  const text = typeof body === "string" && body !== "" ? body : JSON.stringify({ error: { message: error["message"] } })
  return Errors.fromResponse(origin, { status, headers: headers(error["responseHeaders"]) }, text, now)
}

/** A call that failed without an error's status: the connection broke, or the answer could not be read. */
const fromCause = (origin: Errors.Origin, error: Json.JsonObject, now: number): Adapter.AdapterError => {
  const { cause } = error
  const name = Json.isObject(cause) ? cause["name"] : undefined
  if (typeof name === "string" && name.startsWith("AI_")) return fromUnknown(origin, cause, now)
  return named(origin, "network_error", error)
}

/** A reply that a provider found to be incomplete is one whose connection was lost. */
const cutWords = /ended without|unexpected(ly)? end|closed before|terminated/i

const named = (origin: Errors.Origin, reason: Errors.Reason, error: Json.JsonObject): Adapter.AdapterError => {
  const detail = [String(error["message"] ?? ""), innermost(error["cause"])].filter((text) => text !== "").join(": ")
  const isCut = reason === "malformed_response" && error["name"] === "AI_InvalidResponseDataError"
  return Errors.make(
    origin,
    isCut && cutWords.test(detail) ? "network_error" : reason,
    detail.slice(0, longestDetail)
  )
}

/** What stands at the bottom of the causes: above it stands only that something failed. */
const innermost = (cause: unknown, depth = 0): string => {
  if (!(cause instanceof Error)) return ""
  return cause.cause instanceof Error && depth < 8 ? innermost(cause.cause, depth + 1) : cause.message
}

const headers = (value: unknown): Readonly<Record<string, string>> =>
  !Json.isObject(value) ? {} : Object.fromEntries(
    Object.entries(value).flatMap(([name, text]) => typeof text === "string" ? [[name.toLowerCase(), text]] : [])
  )

/** The provider's name for a request, by the headers of its answer. */
export const requestId = (value: unknown): string | undefined => {
  const found = headers(value)
  return ["x-request-id", "request-id", "apim-request-id"].map((name) => found[name]).find((id) => id !== undefined)
}
