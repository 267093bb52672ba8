/**
 * What goes wrong between here and a model, in every protocol, and what is said of it: HTTP errors in every shape,
 * answers that are no replies, redirects, and what is tried again, and when.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import type { Adapter } from "heddle"
import * as Adapters from "../support/adapters.ts"
import * as Server from "../support/server.ts"

const { json } = Adapters

type Reason = Adapter.AdapterError["reason"]

/** What a provider answers with when something is wrong. */
interface Row {
  readonly protocol: Adapters.Protocol
  /** An error as the provider writes it, with all that it says. */
  readonly full: {
    readonly answer: Server.Answer
    readonly options?: Adapters.Shared
    readonly expected: object
    readonly cause: unknown
    readonly isRetryable: boolean
  }
  /** The reasons of its errors, by status and body. */
  readonly reasons: ReadonlyArray<readonly [status: number, value: unknown, reason: Reason]>
  /** A used-up quota, which no second try brings back. */
  readonly spent: Server.Answer
}

// ---------------------------------------------------------------------------------------------------------------------
// OpenAI

const noKey = { message: "No such key", type: "invalid_request_error", code: "invalid_api_key", param: null }
const tooBig = { message: "Too big", type: "invalid_request_error", code: "context_length_exceeded" }
const tooLong = { error: { message: "wrong", code: "context_length_exceeded" } }
const openAiError = (message: string, code: string | null = null) => ({ error: { message, code } })

const openAiSpent = json(429, {
  error: { message: "no money", type: "insufficient_quota", code: "insufficient_quota" }
})

const openAiChat: Row = {
  protocol: Adapters.openAiChat,
  full: {
    answer: json(401, { error: noKey }, { "x-request-id": "req_1" }),
    options: { provider: "acme" },
    expected: {
      reason: "authentication_failed",
      detail: "HTTP 401: No such key",
      provider: "acme",
      status: 401,
      requestId: "req_1",
      metadata: { type: "invalid_request_error", code: "invalid_api_key" },
      message: "adapter error (acme): authentication_failed: HTTP 401: No such key"
    },
    cause: noKey,
    isRetryable: false
  },
  reasons: [
    [400, {}, "invalid_request"],
    [400, tooLong, "context_length_exceeded"],
    [400, { error: { message: "prompt is too long: 9 tokens > 8 maximum" } }, "context_length_exceeded"],
    [400, { error: { message: "Incorrect API key provided: x" } }, "authentication_failed"],
    [400, { error: { message: "no", code: "content_filter" } }, "content_filter"],
    [401, {}, "authentication_failed"],
    [403, {}, "authentication_failed"],
    [404, {}, "invalid_request"],
    [408, {}, "timeout"],
    [413, tooLong, "context_length_exceeded"],
    [422, {}, "invalid_request"],
    [429, {}, "rate_limited"],
    [429, { error: { message: "too many tokens, wait" } }, "rate_limited"],
    [429, tooLong, "context_length_exceeded"],
    [500, {}, "provider_unavailable"],
    [500, tooLong, "provider_unavailable"],
    [529, {}, "provider_unavailable"],
    // A quota that is used up is none that waiting brings back, however that is said.
    [402, {}, "quota_exceeded"],
    [429, openAiError("You exceeded your current quota", "insufficient_quota"), "quota_exceeded"],
    [403, openAiError("no", "insufficient_user_quota"), "quota_exceeded"],
    [400, openAiError("no", "billing_hard_limit_reached"), "quota_exceeded"],
    [400, openAiError("Your credit balance is too low to access the API"), "quota_exceeded"],
    [403, openAiError("Insufficient credits. Add more"), "quota_exceeded"],
    [429, openAiError("You have exceeded your monthly included credits"), "quota_exceeded"],
    [429, openAiError("You exceeded your current quota, please check"), "rate_limited"],
    [401, openAiError("Insufficient credits"), "authentication_failed"]
  ],
  spent: openAiSpent
}

const openAiResponses: Row = {
  protocol: Adapters.openAiResponses,
  full: {
    answer: json(400, { error: tooBig }, { "x-request-id": "req_1" }),
    options: { provider: "acme" },
    expected: {
      reason: "context_length_exceeded",
      detail: "HTTP 400: Too big",
      provider: "acme",
      status: 400,
      requestId: "req_1",
      metadata: { type: "invalid_request_error", code: "context_length_exceeded" }
    },
    cause: tooBig,
    isRetryable: false
  },
  reasons: [
    [400, { code: "invalid-argument", error: "Model not found: x" }, "invalid_request"],
    [400, { error: { message: "flagged", code: "invalid_prompt" } }, "content_filter"],
    [400, { error: { message: "no", code: "content_filter" } }, "content_filter"],
    [401, { detail: "Could not parse your authentication token." }, "authentication_failed"],
    [429, { error: { message: "wait", code: "rate_limit_exceeded" } }, "rate_limited"],
    [429, { error: { message: "pay", code: "insufficient_quota" } }, "quota_exceeded"],
    [500, { error: { message: "oops", type: "server_error" } }, "provider_unavailable"]
  ],
  spent: openAiSpent
}

// ---------------------------------------------------------------------------------------------------------------------
// Anthropic

const anthropicError = (type: string, message: string, requestId: string | null = null) => ({
  type: "error",
  error: { type, message, details: null },
  request_id: requestId
})

const anthropicReason = (
  status: number,
  type: string,
  message: string,
  reason: Reason
): Row["reasons"][number] => [status, anthropicError(type, message), reason]

const invalidKey = anthropicError("authentication_error", "invalid x-api-key")

const anthropic: Row = {
  protocol: Adapters.anthropic,
  full: {
    answer: json(401, invalidKey, { "request-id": "req_1", "x-should-retry": "false" }),
    expected: {
      reason: "authentication_failed",
      detail: "HTTP 401: invalid x-api-key",
      provider: "anthropic",
      status: 401,
      requestId: "req_1",
      metadata: { type: "authentication_error" }
    },
    cause: invalidKey.error,
    isRetryable: false
  },
  reasons: [
    anthropicReason(400, "invalid_request_error", "messages: at least one message is required", "invalid_request"),
    anthropicReason(
      400,
      "invalid_request_error",
      "prompt is too long: 210000 tokens > 200000 maximum",
      "context_length_exceeded"
    ),
    anthropicReason(
      400,
      "invalid_request_error",
      "Your credit balance is too low to access the Anthropic API.",
      "quota_exceeded"
    ),
    anthropicReason(400, "invalid_request_error", "Output blocked by content_filter", "content_filter"),
    anthropicReason(401, "authentication_error", "invalid x-api-key", "authentication_failed"),
    anthropicReason(402, "billing_error", "pay", "quota_exceeded"),
    anthropicReason(403, "permission_error", "no", "authentication_failed"),
    anthropicReason(404, "not_found_error", "model: x", "invalid_request"),
    anthropicReason(413, "request_too_large", "Request exceeds the maximum size", "invalid_request"),
    anthropicReason(
      429,
      "rate_limit_error",
      "This request would exceed your rate limit of 50,000 input tokens",
      "rate_limited"
    ),
    anthropicReason(500, "api_error", "Internal server error", "provider_unavailable"),
    anthropicReason(504, "timeout_error", "timed out", "provider_unavailable"),
    anthropicReason(529, "overloaded_error", "Overloaded", "provider_unavailable")
  ],
  spent: json(402, anthropicError("billing_error", "pay"))
}

// ---------------------------------------------------------------------------------------------------------------------
// Google

const google = (code: number, status: string, message: string, details?: ReadonlyArray<object>) => ({
  error: { code, message, status, ...(details === undefined ? {} : { details }) }
})

const retryInfo = (retryDelay: string) => ({ "@type": "type.googleapis.com/google.rpc.RetryInfo", retryDelay })
const quotaFailure = (quotaId: string) => ({
  "@type": "type.googleapis.com/google.rpc.QuotaFailure",
  violations: [{ quotaMetric: "generate_content_free_tier_requests", quotaId }]
})
const errorInfo = (reason: string) => ({ "@type": "type.googleapis.com/google.rpc.ErrorInfo", reason })

const perMinute = google(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota.", [
  quotaFailure("GenerateRequestsPerMinutePerProjectPerModel-FreeTier"),
  retryInfo("34.4s")
])

const perDay = google(429, "RESOURCE_EXHAUSTED", "Quota", [
  quotaFailure("GenerateRequestsPerDayPerProject"),
  retryInfo("9s")
])

const googleReason = (
  code: number,
  status: string,
  message: string,
  reason: Reason,
  details?: ReadonlyArray<object>
): Row["reasons"][number] => [code, google(code, status, message, details), reason]

const tokenCount = "The input token count (1250074) exceeds the maximum number of tokens allowed (1048576)."

const gemini: Row = {
  protocol: Adapters.gemini,
  full: {
    answer: json(429, perMinute),
    expected: {
      reason: "rate_limited",
      detail: "HTTP 429: You exceeded your current quota.",
      provider: "google",
      status: 429,
      retryAfterMillis: 34_400,
      metadata: { code: "429", status: "RESOURCE_EXHAUSTED" }
    },
    cause: perMinute.error,
    isRetryable: true
  },
  reasons: [
    googleReason(400, "INVALID_ARGUMENT", "Unknown name", "invalid_request"),
    googleReason(400, "INVALID_ARGUMENT", "API key not valid.", "authentication_failed", [
      errorInfo("API_KEY_INVALID")
    ]),
    googleReason(400, "INVALID_ARGUMENT", "No good", "authentication_failed", [errorInfo("API_KEY_INVALID")]),
    googleReason(400, "INVALID_ARGUMENT", tokenCount, "context_length_exceeded"),
    googleReason(400, "FAILED_PRECONDITION", "User location is not supported.", "invalid_request"),
    googleReason(401, "UNAUTHENTICATED", "Request had invalid authentication credentials.", "authentication_failed"),
    googleReason(403, "PERMISSION_DENIED", "Denied", "authentication_failed"),
    googleReason(404, "NOT_FOUND", "models/x is not found", "invalid_request"),
    googleReason(429, "RESOURCE_EXHAUSTED", "Resource exhausted. Please try again later.", "rate_limited"),
    [429, perDay, "quota_exceeded"],
    googleReason(499, "CANCELLED", "The operation was cancelled.", "provider_unavailable"),
    googleReason(500, "INTERNAL", "Internal error", "provider_unavailable"),
    googleReason(503, "UNAVAILABLE", "The model is overloaded.", "provider_unavailable"),
    googleReason(504, "DEADLINE_EXCEEDED", "Deadline expired", "provider_unavailable")
  ],
  spent: json(429, perDay)
}

// ---------------------------------------------------------------------------------------------------------------------

/** The shapes in which providers, and what stands before them, write an error. */
const shapes: ReadonlyArray<readonly [name: string, body: unknown, detail: string]> = [
  ["an error object", { error: { message: "wrong", code: 400 } }, "wrong"],
  ["an error string", { error: "wrong", code: "bad" }, "wrong"],
  ["a flat error", { object: "error", message: "wrong", type: "invalid" }, "wrong"],
  ["a detail member", { detail: "wrong" }, "wrong"],
  ["a typed error", { type: "error", error: { type: "x", message: "wrong" }, request_id: "r" }, "wrong"],
  ["an error event", "event: error\ndata: {\"error\":{\"message\":\"wrong\"}}\n\n", "wrong"],
  ["a list of errors", [{ error: { message: "wrong" } }], "wrong"],
  ["an unknown shape", { problem: "wrong" }, "{\"problem\":\"wrong\"}"],
  ["an HTML page", "<html><head><title>Bad\n gateway</title></head><body>no</body></html>", "Bad gateway"],
  ["plain text", "wrong,   indeed", "wrong, indeed"]
]

for (const { full, protocol, reasons, spent } of [openAiChat, openAiResponses, anthropic, gemini]) {
  const { begun, busy, failing, name, silent, whole } = protocol

  const errorOf = (answer: string | Server.Answer) => Adapters.errorOf(protocol, answer)

  const trying = (
    answer: (index: number) => Server.Answer,
    options?: Adapters.Shared,
    startMillis?: number,
    jitter?: number
  ) => Adapters.trying(protocol, answer, options, startMillis, jitter)

  describe(`HTTP errors: ${name}`, () => {
    it.effect("R-122: the error of an HTTP answer comes before any event, with all fields of the answer", () =>
      Effect.gen(function*() {
        const { error, events } = yield* Adapters.outcomeOf(protocol, full.answer, full.options)
        assert.deepStrictEqual(events, [])
        assert.deepInclude({ ...error, message: error!.message }, full.expected)
        assert.deepStrictEqual(error?.cause, full.cause)
        assert.strictEqual(error?.isRetryable, full.isRetryable)
      }))

    it.effect("R-122: the status decides the error reason, and the provider's message decides where the status is ambiguous", () =>
      Effect.gen(function*() {
        for (const [status, value, reason] of reasons) {
          const error = yield* errorOf(json(status, value))
          assert.deepStrictEqual([error.reason, error.status], [reason, status], `${status} ${JSON.stringify(value)}`)
          const listed = yield* errorOf(json(status, [value]))
          assert.deepStrictEqual([listed.reason, listed.detail], [reason, error.detail])
        }
      }))

    for (const [shape, value, detail] of shapes) {
      it.effect(`R-122: the error detail is read from a body with ${shape}`, () =>
        Effect.gen(function*() {
          const error = yield* errorOf(json(400, value))
          assert.deepStrictEqual([error.reason, error.detail], ["invalid_request", `HTTP 400: ${detail}`])
        }))
    }

    it.effect("R-122: the error keeps a request id and a status that only the body contains", () =>
      Effect.gen(function*() {
        const typed = yield* errorOf(json(404, { type: "error", error: { message: "no" }, request_id: "req_2" }))
        assert.deepStrictEqual([typed.requestId, typed.reason], ["req_2", "invalid_request"])
        const both = { request_id: "req_2", error: { message: "no", status: "NOT_FOUND", code: 404 } }
        const found = yield* errorOf(json(404, both, { "request-id": "req_1" }))
        assert.strictEqual(found.requestId, "req_1")
        assert.deepStrictEqual(found.metadata, { code: "404", status: "NOT_FOUND" })
      }))

    it.effect("R-122: the status alone decides the error reason for an HTML page, an empty body and an endless body", () =>
      Effect.gen(function*() {
        const page = yield* errorOf({
          status: 502,
          headers: { "content-type": "text/html" },
          pieces: ["<html><title>Bad\n gateway</title></html>"]
        })
        assert.deepStrictEqual([page.reason, page.detail], ["provider_unavailable", "HTTP 502: Bad gateway"])
        assert.strictEqual((yield* errorOf(json(503, ""))).detail, "HTTP 503")
        assert.strictEqual((yield* errorOf(json(404, ""))).detail, "HTTP 404")
        const endless = yield* errorOf({ status: 500, headers: {}, pieces: ["x".repeat(200_000)], ending: "open" })
        assert.strictEqual(endless.reason, "provider_unavailable")
        assert.isBelow(endless.message.length, 1100)
      }))

    it.effect("R-122: an answer with status 200 that is a page, a list, another document or empty is an error", () =>
      Effect.gen(function*() {
        const signIn = yield* errorOf({ headers: { "content-type": "text/html" }, pieces: ["<title>Sign in</title>"] })
        assert.deepStrictEqual([signIn.reason, signIn.detail], [
          "malformed_response",
          "the answer holds no reply: Sign in"
        ])
        assert.strictEqual((yield* errorOf("")).reason, "malformed_response")
        assert.strictEqual((yield* errorOf(json(200, "[1]"))).reason, "malformed_response")
        assert.strictEqual((yield* errorOf(json(200, { detail: "no" }))).detail, "no")
        assert.strictEqual((yield* errorOf("event: error\ndata: it broke\n\n")).detail, "it broke")
      }))

    it.effect("R-122: a redirect is an error, and no request goes to its target", () =>
      Effect.scoped(Effect.gen(function*() {
        const stranger = yield* Server.serve(() => ({ pieces: [whole] }))
        for (const status of [301, 302, 303, 307, 308]) {
          const headers = { location: `${stranger.url}/other?key=secret-9` }
          const answer = { status, headers, pieces: [] }
          const { error, events } = yield* Adapters.outcomeOf(protocol, answer, { apiKey: Redacted.make("k") })
          const detail = `HTTP ${status}: the server redirects to ${stranger.url}/other; change the base URL`
          assert.deepStrictEqual(
            [error?.reason, error?.detail, error?.status, events],
            ["invalid_request", detail, status, []]
          )
        }
        assert.deepStrictEqual(stranger.requests, [])
        assert.strictEqual((yield* errorOf({ status: 302, headers: {}, pieces: [] })).status, 302)
      })))
  })

  describe(`retries: ${name}`, () => {
    it.effect("R-122: the adapter retries a busy server with growing delays, and then emits the reply as usual", () =>
      Effect.gen(function*() {
        const other = json(429, {})
        const found = yield* trying((index) => index === 0 ? busy : index === 1 ? other : { pieces: [whole] })
        assert.deepStrictEqual([found.requests, found.waits, found.error], [3, [600, 1200], undefined])
        assert.strictEqual(found.events.length, 4)
        const never = yield* trying(() => busy)
        assert.deepStrictEqual([never.requests, never.error?.status], [3, busy.status])
      }))

    it.effect("R-122: the last error comes out after the allowed number of tries", () =>
      Effect.gen(function*() {
        const late = yield* trying(() => json(503, {}))
        assert.deepStrictEqual([late.requests, late.error?.status], [3, 503])
        const once = yield* trying(() => json(503, {}), { retries: 0 })
        assert.deepStrictEqual([once.requests, once.waits], [1, []])
        const slow = yield* trying(() => json(503, {}), {
          retries: 4,
          retryDelay: "2 seconds",
          maxRetryDelay: "5 seconds"
        })
        assert.deepStrictEqual([slow.requests, slow.waits], [5, [2000, 4000, 5000, 5000]])
      }))

    it.effect("R-122: the retry delay has a random addition of at most a quarter of a second", () =>
      Effect.gen(function*() {
        assert.deepStrictEqual((yield* trying(() => json(503, {}), { retries: 1 }, 0, 0.5)).waits, [725])
        const capped = yield* trying(() => json(503, {}, { "retry-after": "99" }), { retries: 1 }, 0, 0.8)
        assert.deepStrictEqual(capped.waits, [30_200])
      }))

    it.effect("R-122: the adapter retries no request that can never succeed, unless the server demands a retry", () =>
      Effect.gen(function*() {
        for (const status of [400, 401, 403, 404, 422]) {
          assert.strictEqual((yield* trying(() => json(status, {}))).requests, 1)
        }
        const paid = yield* trying(() => spent)
        assert.deepStrictEqual([paid.requests, paid.error?.reason], [1, "quota_exceeded"])
        assert.strictEqual((yield* trying(() => json(500, {}, { "x-should-retry": "false" }))).requests, 1)
        assert.strictEqual((yield* trying(() => json(400, {}, { "x-should-retry": "true" }))).requests, 3)
        for (const status of [408, 409, 429, 502, 529]) {
          assert.strictEqual((yield* trying(() => json(status, {}))).requests, 3)
        }
      }))

    it.effect("R-122: a retry waits for the delay requested by the server, up to the longest allowed delay", () =>
      Effect.gen(function*() {
        const asking = (headers: Record<string, string>, value: unknown = {}, now = 0) =>
          Effect.map(trying(() => json(429, value, headers), { retries: 1 }, now), ({ error, waits }) => [
            waits,
            error?.retryAfterMillis
          ])
        assert.deepStrictEqual(yield* asking({ "retry-after": "7" }), [[7000], 7000])
        assert.deepStrictEqual(yield* asking({ "retry-after": "0.5" }), [[500], 500])
        assert.deepStrictEqual(yield* asking({ "retry-after": "3600" }), [[30_000], 3_600_000])
        assert.deepStrictEqual(yield* asking({ "retry-after": "1", "retry-after-ms": "1500" }), [[1500], 1500])
        assert.deepStrictEqual(yield* asking({ "retry-after": "2", "retry-after-ms": "0" }), [[2000], 2000])
        assert.deepStrictEqual(yield* asking({ "retry-after": "nonsense" }), [[600], undefined])
        const date = "Thu, 01 Jan 1970 00:01:03 GMT"
        assert.deepStrictEqual(yield* asking({ "retry-after": date }, {}, 60_000), [[3000], undefined])
        const details = [retryInfo("4.5s")]
        assert.deepStrictEqual(yield* asking({}, { error: { message: "no", details } }), [[4500], 4500])
        const kept = yield* trying(() => json(429, {}, { "retry-after": "7", "request-id": "req_4" }), { retries: 0 })
        assert.deepInclude({ ...kept.error }, { reason: "rate_limited", retryAfterMillis: 7000, requestId: "req_4" })
        const healed = yield* trying((index) =>
          index === 0 ? json(429, {}, { "retry-after": "7" }) : { pieces: [whole] }
        )
        assert.deepStrictEqual([healed.requests, healed.waits, healed.error], [2, [7000], undefined])
      }))

    it.effect("N-24: a retry waits for a delay named only in the error message, and a header wins over the message", () =>
      Effect.gen(function*() {
        const message = "Rate limit reached. Please try again in 20 seconds."
        const asking = (answer: Server.Answer, options: Adapters.Shared = {}) =>
          Effect.map(trying(() => answer, { retries: 1, ...options }), ({ error, waits }) => [
            waits,
            error?.retryAfterMillis
          ])
        assert.deepStrictEqual(yield* asking(json(429, { error: { message } })), [[20_000], 20_000])
        assert.deepStrictEqual(yield* asking(json(503, { message: "Overloaded, retry in 1.5s" })), [[1500], 1500])
        assert.deepStrictEqual(yield* asking(json(429, "Please try again in 6m0s.")), [[30_000], 360_000])
        const raw = JSON.stringify({ error: { message } })
        const behind = { error: { message: "Provider returned error", code: 429, metadata: { raw } } }
        assert.deepStrictEqual(yield* asking(json(429, behind)), [[20_000], 20_000])
        assert.deepStrictEqual(yield* asking(json(429, { error: { message } }, { "retry-after": "7" })), [[7000], 7000])
        const details = [retryInfo("4.5s")]
        assert.deepStrictEqual(yield* asking(json(429, { error: { message, details } })), [[4500], 4500])
        assert.deepStrictEqual(yield* asking(json(429, { error: { message: "Try again later." } })), [[600], undefined])
        assert.deepStrictEqual(yield* asking(json(400, { error: { message: "You said: wait 5 seconds" } })), [
          [],
          undefined
        ])
      }))

    it.effect("N-24: an error inside a reply names its retry delay in its message", () =>
      Effect.gen(function*() {
        const busy = failing(true).replace("\"no\"", "\"Please try again in 20s.\"")
        const said = yield* Adapters.errorOf(protocol, begun + busy)
        assert.deepStrictEqual([said.isRetryable, said.retryAfterMillis], [true, 20_000])
        const refused = failing(false).replace("\"no\"", "\"Please try again in 20s.\"")
        assert.isUndefined((yield* Adapters.errorOf(protocol, begun + refused)).retryAfterMillis)
      }))

    it.effect("R-122: an answer that needs no retry has no retry delay", () =>
      Effect.gen(function*() {
        const bad = yield* trying(() => json(400, {}, { "retry-after": "7" }))
        assert.deepStrictEqual([bad.requests, bad.error?.retryAfterMillis], [1, undefined])
        const good = yield* trying(() => ({ headers: { "retry-after": "7" }, pieces: [whole] }))
        assert.deepStrictEqual([good.requests, good.waits], [1, []])
      }))

    it.effect("R-122: the adapter does not retry a request after the first event of the reply", () =>
      Effect.gen(function*() {
        const answers: ReadonlyArray<Server.Answer> = [
          { pieces: [begun], ending: "drop" },
          { pieces: [begun, failing(true)] }
        ]
        for (const answer of answers) {
          const found = yield* trying(() => answer)
          assert.deepStrictEqual([found.requests, found.error?.isRetryable], [1, true])
          assert.deepStrictEqual(found.events.map(({ _tag }) => _tag).slice(0, 2), ["MessageStarted", "TextDelta"])
        }
      }))

    it.effect("R-122: the adapter retries an answer that breaks before its first event, unless the error is final", () =>
      Effect.gen(function*() {
        const answers: ReadonlyArray<Server.Answer> = [
          { pieces: [": nothing yet\n\n"], ending: "drop" },
          { pieces: [failing(true)] },
          { pieces: [silent, failing(true)] }
        ]
        for (const answer of answers) {
          const healed = yield* trying((index) => index === 0 ? answer : { pieces: [whole] })
          assert.deepStrictEqual([healed.requests, healed.waits, healed.error], [2, [600], undefined])
          const found = yield* trying(() => answer)
          assert.deepStrictEqual([found.requests, found.events.length, found.error?.isRetryable], [3, 0, true])
        }
        assert.strictEqual((yield* trying(() => ({ pieces: [failing(false)] }))).requests, 1)
        assert.strictEqual((yield* trying(() => ({ pieces: ["<html>"] }))).requests, 1)
      }))
  })
}
