/**
 * Turns provider errors into one type. The HTTP status decides before the body is read; the body may be JSON in any
 * provider's shape, an HTML page, or empty. Every quotation is redacted first, because servers are known to echo
 * request secrets.
 */
import * as DateTime from "effect/DateTime"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as Result from "effect/Result"
import * as Adapter from "../../Adapter.ts"
import * as Json from "../../internal/json.ts"
import * as Wire from "./wire.ts"

export type Reason = Adapter.AdapterError["reason"]

/** A protocol's own error types, codes and statuses. They take precedence over an HTTP status below 500. */
export type Words = ReadonlyArray<readonly [words: RegExp, reason: Reason]>

/** Error origin, known without reading the body. */
export interface Origin {
  readonly provider: string
  readonly secrets: ReadonlyArray<Redacted.Redacted<string>>
  readonly requestId: string | undefined
  readonly words: Words
}

/** Contents of an error body, in any shape. */
interface Said {
  readonly message?: string | undefined
  readonly type?: string | undefined
  readonly code?: string | undefined
  /** Status as text, beside the number. */
  readonly statusWord?: string | undefined
  readonly status?: number | undefined
  readonly requestId?: string | undefined
  /** Reasons given in the details: quota names, and why a key was refused. */
  readonly reasons: string
  readonly retryAfterMillis?: number | undefined
  readonly error?: Json.JsonObject
}

/** Maximum length of a detail quoted from a provider. */
export const longestDetail = 1000

/** Length at which a body may have been cut while reading. */
const longestWhole = 16 * 1024

const redact = (text: string, secrets: ReadonlyArray<Redacted.Redacted<string>>): string =>
  Json.withoutKnown(
    text,
    secrets.map((secret) => Redacted.value(secret).trim()),
    "<redacted>",
    { end: text.length >= longestWhole }
  )

/** Returns the provider's request id from the answer headers. */
export const requestIdOf = (headers: Headers): string | undefined =>
  ["x-request-id", "request-id", "apim-request-id"].map((name) => headers[name]).find((id) => Boolean(id))

/** Makes an error found by Heddle. Its detail may quote the answer or the cause, so it is redacted too. */
export const make = (origin: Origin, reason: Reason, detail: string): Adapter.AdapterError =>
  new Adapter.AdapterError({
    reason,
    detail: redact(detail, origin.secrets),
    provider: origin.provider,
    ...Wire.defined({ requestId: origin.requestId })
  })

const fromSaid = (origin: Origin, said: Said, reason: Reason, detail: string): Adapter.AdapterError => {
  const { code, error: cause, retryAfterMillis, status, statusWord, type } = said
  const requestId = origin.requestId ?? said.requestId
  return new Adapter.AdapterError({
    reason,
    detail: detail.slice(0, longestDetail),
    provider: origin.provider,
    ...Wire.defined({ requestId, status, retryAfterMillis, cause }),
    ...Wire.filled("metadata", Wire.defined({ type, code, status: statusWord }))
  })
}

/** Makes the error of an HTTP answer. `now` is compared with dates in the headers. */
export const fromResponse = (
  origin: Origin,
  response: { readonly status: number; readonly headers: Headers },
  body: string,
  now: number
): Adapter.AdapterError => {
  const text = redact(body, origin.secrets)
  const said = read(text)
  const { headers, status } = response
  const told = said.message ?? (said.error === undefined ? describe(text) : JSON.stringify(said.error))
  const detail = status >= 300 && status < 400 ? redact(redirected(headers["location"]), origin.secrets) : told
  const reason = reasonOf(origin, status, said)
  const retryAfterMillis = canHeal(status)
    ? delayOfHeaders(headers, now) ?? said.retryAfterMillis ?? delayInText(reason, text)
    : undefined
  return fromSaid(
    origin,
    { ...said, status, retryAfterMillis },
    reason,
    `HTTP ${status}${detail === "" ? "" : `: ${detail}`}`
  )
}

/** Describes a redirect. The address loses its query string, since this may contain secrets. */
const redirected = (location: string | undefined): string =>
  `the server redirects${location === undefined ? "" : ` to ${location.replace(/[?#].*$/s, "")}`}; change the base URL`

/** Finds the error in a stream chunk. With `isError`, the wire marked the chunk as an error. */
export const fromChunk = (
  origin: Origin,
  chunk: Json.JsonObject,
  isError: boolean
): Option.Option<Adapter.AdapterError> => {
  const error = chunk["error"]
  const isSaid = error !== undefined && error !== null && error !== ""
  if (!isError && !isSaid && chunk["object"] !== "error") return Option.none()
  const said = read(redact(JSON.stringify(chunk), origin.secrets))
  const reason = reasonOf(origin, said.status, said)
  const text = JSON.stringify(said.error ?? {})
  const retryAfterMillis = said.retryAfterMillis ?? delayInText(reason, text)
  return Option.some(fromSaid(origin, { ...said, retryAfterMillis }, reason, said.message ?? text))
}

/** Adds the provider's finish reason to the error, if the reply had a reason. */
export const ended = (error: Adapter.AdapterError, word: string | undefined): Adapter.AdapterError => {
  if (word === undefined) return error
  const { cause, metadata } = error
  return new Adapter.AdapterError({
    ...error,
    ...Wire.defined({ cause }),
    metadata: { ...metadata, finishReason: word }
  })
}

// ---------------------------------------------------------------------------------------------------------------------
// reading

const string = (value: unknown): string | undefined => {
  if (typeof value === "number") return String(value)
  return typeof value === "string" && value !== "" ? value : undefined
}

/** Returns a text that is not a number. */
const word = (value: unknown): string | undefined =>
  typeof value === "string" && /[a-z]/i.test(value) ? value : undefined

/** Returns an error body written as an event. */
const payload = (text: string): string => /^data: ?(.*)$/m.exec(text)?.[1] ?? ""

/** Finds the object with the message: under `error`, at the top, or first in a list. */
const read = (text: string): Said => {
  const parsed = Result.getOrUndefined(Result.orElse(Json.parseWire(text), () => Json.parseWire(payload(text))))
  const body: unknown = Array.isArray(parsed) ? parsed[0] : parsed
  if (!Json.isObject(body)) return { reasons: "" }
  const error = Json.isObject(body["error"]) ? body["error"] : body
  const details = Wire.list(error["details"])
  return {
    message: string(error["message"]) ?? string(body["error"]) ?? string(error["detail"]) ?? string(body["message"]),
    type: string(error["type"]),
    code: string(error["code"]) ?? string(body["code"]),
    statusWord: word(error["status"]),
    requestId: word(body["request_id"]),
    status: [error["status_code"], error["status"], error["code"], body["status_code"], body["code"]].map(Number)
      .find((number) => number >= 400 && number < 600),
    reasons: reasonsOf(details),
    retryAfterMillis: retryDelay(details),
    error
  }
}

const reasonsOf = (details: ReadonlyArray<Json.JsonObject>): string =>
  details.flatMap(({ reason, violations }) => [reason, ...Wire.list(violations).map(({ quotaId }) => quotaId)])
    .map(word).filter((reason) => reason !== undefined).join(" ")

/** Reads the delay some providers state only in the body. */
const retryDelay = (details: ReadonlyArray<Json.JsonObject>): number | undefined => {
  const delay = details.find((detail) => "retryDelay" in detail)?.["retryDelay"]
  return typeof delay === "string" ? positive(Number.parseFloat(delay) * 1000) : undefined
}

/** Describes a body other than JSON in one line: a page title, or the beginning of the text. */
export const describe = (text: string): string => {
  const title = /<title[^>]*>([^<]*)<\/title>/i.exec(text)?.[1]
  return (title ?? text.replaceAll(/<[^>]*>/g, " ")).replaceAll(/\s+/g, " ").trim().slice(0, 200)
}

const positive = (value: number): number | undefined => Number.isFinite(value) && value > 0 ? value : undefined

// ---------------------------------------------------------------------------------------------------------------------
// reasons

/** Returns `true` for transient statuses, whose delay headers apply to this answer. */
const canHeal = (status: number): boolean => status === 408 || status === 409 || status === 429 || status >= 500

/** Returns the provider's own retry advice, if any. */
export const retryWord = (headers: Headers): boolean | undefined => {
  const word = headers["x-should-retry"]
  return word === "true" || word === "false" ? word === "true" : undefined
}

/**
 * Returns `true` if the same request may succeed later. The provider's own header takes precedence over the status.
 */
export const isWorthRetrying = (error: Adapter.AdapterError, headers: Headers): boolean =>
  retryWord(headers) ?? (canHeal(error.status ?? 0) && error.reason !== "quota_exceeded")

const contextWords =
  /context (length|window|size)|prompt (is )?too long|too many tokens|maximum context|exceeds the maximum number of (input )?tokens/i
const quotaWords =
  /credit balance is too low|insufficient (balance|credits?|funds)|(used|exceeded) (all|your) .*credits/i
const filterWords = /content_filter|content_policy|content management policy/i
const keyWords = /(incorrect|invalid|missing) api[ _]?key|api[ _]?key (is )?(not valid|invalid|missing)/i

const byStatus: { readonly [status: number]: Reason } = {
  401: "authentication_failed",
  402: "quota_exceeded",
  403: "authentication_failed",
  408: "timeout",
  409: "provider_unavailable",
  429: "rate_limited"
}

/** Error words inside a stream, where no HTTP status exists. */
const byWord: Words = [
  [/rate_limit/i, "rate_limited"],
  [/authentication|permission|invalid_api_key/i, "authentication_failed"],
  [/overloaded|server_error|api_error|unavailable|internal/i, "provider_unavailable"],
  [/timeout/i, "timeout"],
  [/invalid|not_found|bad ?request/i, "invalid_request"]
]

const firstReason = (table: Words, words: string): Reason | undefined =>
  table.find(([pattern]) => pattern.test(words))?.[1]

const reasonOf = (origin: Origin, status: number | undefined, said: Said): Reason => {
  const words = `${said.type ?? ""} ${said.code ?? ""} ${said.statusWord ?? ""} ${said.reasons}`
  const text = `${words} ${said.message ?? ""}`
  const own = status !== undefined && status >= 500 ? undefined : firstReason(origin.words, words)
  if (own !== undefined) return own
  if (status !== 401 && quotaWords.test(text)) return "quota_exceeded"
  const isRefused = status === undefined || (status >= 400 && status < 500 && status !== 401 && status !== 403)
  // Rate limit messages may mention too many tokens, too.
  if (isRefused && status !== 429 && contextWords.test(text)) return "context_length_exceeded"
  if (isRefused && filterWords.test(text)) return "content_filter"
  if (status === undefined) return firstReason(byWord, words) ?? firstReason(byWord, text) ?? "unknown"
  if (status === 400 && keyWords.test(text)) return "authentication_failed"
  if (status >= 500) return "provider_unavailable"
  return byStatus[status] ?? (status >= 300 ? "invalid_request" : "unknown")
}

// ---------------------------------------------------------------------------------------------------------------------
// Delays: `retry-after`, or, with a limit used up, the refill time in the headers; otherwise the delay in the error
// text. Providers write times in every possible format.

type Headers = Readonly<Record<string, string | undefined>>

/** A proxy prefixes the headers it forwards from its provider. */
const prefixes = ["", "llm_provider-"] as const

/** Returns the delay in milliseconds, if the headers name a delay. `now` is compared with dates. */
export const delayOfHeaders = (headers: Headers, now: number): number | undefined =>
  prefixes.map((prefix) => statedDelay(headers, prefix, now)).find((delay) => delay !== undefined) ??
    refillDelay(headers, now)

const statedDelay = (headers: Headers, prefix: string, now: number): number | undefined => {
  const millis = positive(Number(headers[`${prefix}retry-after-ms`]))
  const after = headers[`${prefix}retry-after`]
  if (millis !== undefined || after === undefined) return millis
  const seconds = Number(after)
  return Number.isNaN(seconds) ? untilDate(after, now) : positive(seconds * 1000)
}

const untilDate = (text: string, now: number): number | undefined =>
  Option.match(DateTime.make(text), {
    onNone: () => undefined,
    onSome: (time) => positive(DateTime.toEpochMillis(time) - now)
  })

const resetName = /^(llm_provider-)?(x-ratelimit-reset(-[a-z0-9-]+)?|anthropic-ratelimit-[a-z-]+-reset)$/

/** Returns the time until every exhausted limit is full again. */
const refillDelay = (headers: Headers, now: number): number | undefined => {
  const delays = Object.entries(headers).flatMap(([name, value]) => {
    if (value === undefined || !resetName.test(name)) return []
    const left = headers[name.replace("reset", "remaining")]
    const delay = left === undefined || Number(left) > 0 ? undefined : untilReset(value.trim(), now)
    return delay === undefined ? [] : [delay]
  })
  return delays.length === 0 ? undefined : Math.max(...delays)
}

/** Transient reasons: only for these does a delay in the error text mean "retry later". */
const passing: ReadonlyArray<Reason> = ["rate_limited", "provider_unavailable", "timeout"]

const asking =
  /\b(?:(?:try(?:ing)? again|retry(?:ing)?|resets?) (?:in|after)|wait(?: for)?) (?:about |another )?(?=\d)/gi

/** A number and its unit. Bounded digits keep matching linear. */
const amount =
  /(\d{1,9}(?:\.\d{1,9})?) ?(ms|millis(?:econds?)?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)(?![a-z])(?:, ?| and | )?/iy

const units: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }

/** Returns a unit's length in milliseconds, by its first letter; milliseconds share theirs with minutes. */
const unitOf = (name: string): number => units[/^(ms|millis)/i.test(name) ? "ms" : name.charAt(0).toLowerCase()] ?? 0

/** Sums the durations in a text from `start` on, and returns the position after the last. */
const amountsAt = (text: string, start: number): { readonly millis: number; readonly end: number } => {
  let millis = 0
  let end = start
  amount.lastIndex = start
  for (let found = amount.exec(text); found !== null; found = amount.exec(text)) {
    millis += Number(found[1]) * unitOf(found[2] ?? "")
    end = amount.lastIndex
  }
  return { millis, end }
}

/**
 * Returns the delay an error asks for in words: "try again in 20 seconds", "retry after 6m0s". The first duration with
 * a unit counts.
 */
export const delayInText = (reason: Reason, text: string): number | undefined => {
  if (!passing.includes(reason)) return undefined
  for (const { 0: { length }, index } of text.matchAll(asking)) {
    const delay = positive(amountsAt(text, index + length).millis)
    if (delay !== undefined) return delay
  }
  return undefined
}

/** Parses a duration in units, plain seconds, seconds or milliseconds since 1970, or a date. */
const untilReset = (text: string, now: number): number | undefined => {
  const number = Number(text)
  if (text !== "" && !Number.isNaN(number)) {
    if (number >= 1e11) return positive(number - now)
    return positive(number >= 1e9 ? number * 1000 - now : number * 1000)
  }
  const { end, millis } = amountsAt(text, 0)
  return end === text.length ? positive(millis) : untilDate(text, now)
}
