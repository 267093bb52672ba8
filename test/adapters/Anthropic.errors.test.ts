/**
 * What goes wrong between here and the model, and what is said of it: the provider's HTTP errors and their headers,
 * errors inside a reply, and what is tried again, and when.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Random from "effect/Random"
import type { Adapter } from "heddle"
import type { Anthropic } from "heddle/adapters"
import * as Wire from "../support/anthropic.ts"
import * as WaitingClock from "../support/clock.ts"
import { of, outcome } from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"

const { body, outcomeOf, reply, start, text } = Wire

const said = (type: string, message: string, requestId: string | null = null) => ({
  type: "error",
  error: { type, message, details: null },
  request_id: requestId
})

const json = (status: number, value: unknown, headers: Readonly<Record<string, string>> = {}): Server.Answer => ({
  status,
  headers: { "content-type": "application/json", ...headers },
  pieces: [typeof value === "string" ? value : JSON.stringify(value)]
})

const errorOf = (answer: string | Server.Answer, options: Partial<Anthropic.Options> = {}) =>
  Effect.map(outcomeOf(answer, options), ({ error }) => error!)

describe("HTTP errors", () => {
  it.effect("R-122: the error of an HTTP answer comes before any event, with all that the answer says", () =>
    Effect.gen(function*() {
      const value = said("authentication_error", "invalid x-api-key")
      const { error, events } = yield* outcomeOf(json(401, value, { "request-id": "req_1", "x-should-retry": "false" }))
      assert.deepStrictEqual(events, [])
      assert.deepInclude({ ...error }, {
        reason: "authentication_failed",
        detail: "HTTP 401: invalid x-api-key",
        provider: "anthropic",
        status: 401,
        requestId: "req_1",
        metadata: { type: "authentication_error" }
      })
      assert.deepStrictEqual(error?.cause, value.error)
      assert.isFalse(error?.isRetryable)
      const named = yield* errorOf(json(404, said("not_found_error", "model: x", "req_2")))
      assert.deepStrictEqual([named.requestId, named.reason], ["req_2", "invalid_request"])
    }))

  it.effect("R-122: each of the provider's errors has its reason", () =>
    Effect.gen(function*() {
      const tooLong = "prompt is too long: 210000 tokens > 200000 maximum"
      const broke = "Your credit balance is too low to access the Anthropic API."
      const cases: ReadonlyArray<readonly [number, string, string, Adapter.AdapterError["reason"]]> = [
        [400, "invalid_request_error", "messages: at least one message is required", "invalid_request"],
        [400, "invalid_request_error", tooLong, "context_length_exceeded"],
        [400, "invalid_request_error", broke, "quota_exceeded"],
        [400, "invalid_request_error", "Output blocked by content_filter", "content_filter"],
        [401, "authentication_error", "invalid x-api-key", "authentication_failed"],
        [402, "billing_error", "pay", "quota_exceeded"],
        [403, "permission_error", "no", "authentication_failed"],
        [404, "not_found_error", "model: x", "invalid_request"],
        [413, "request_too_large", "Request exceeds the maximum size", "invalid_request"],
        [429, "rate_limit_error", "This request would exceed your rate limit of 50,000 input tokens", "rate_limited"],
        [500, "api_error", "Internal server error", "provider_unavailable"],
        [504, "timeout_error", "timed out", "provider_unavailable"],
        [529, "overloaded_error", "Overloaded", "provider_unavailable"]
      ]
      for (const [status, type, message, reason] of cases) {
        const error = yield* errorOf(json(status, said(type, message)))
        assert.deepStrictEqual([error.reason, error.status], [reason, status], `${status} ${message}`)
      }
    }))

  it.effect("R-122: a page, a redirect to nowhere and an empty answer are errors of one line", () =>
    Effect.gen(function*() {
      const page = yield* errorOf({
        status: 502,
        headers: { "content-type": "text/html" },
        pieces: ["<html><title>Bad\n gateway</title></html>"]
      })
      assert.deepStrictEqual([page.reason, page.detail], ["provider_unavailable", "HTTP 502: Bad gateway"])
      const signIn = yield* errorOf({ headers: { "content-type": "text/html" }, pieces: ["<title>Sign in</title>"] })
      assert.deepStrictEqual([signIn.reason, signIn.detail], [
        "malformed_response",
        "the answer holds no reply: Sign in"
      ])
      const moved = yield* errorOf({ status: 302, headers: {}, pieces: [] })
      assert.strictEqual(moved.status, 302)
      assert.strictEqual((yield* errorOf("")).reason, "malformed_response")
      assert.strictEqual((yield* errorOf(json(200, "[1]"))).reason, "malformed_response")
    }))
})

describe("errors inside a reply", () => {
  const kinds: ReadonlyArray<readonly [string, Adapter.AdapterError["reason"]]> = [
    ["overloaded_error", "provider_unavailable"],
    ["api_error", "provider_unavailable"],
    ["rate_limit_error", "rate_limited"],
    ["timeout_error", "timeout"],
    ["invalid_request_error", "invalid_request"],
    ["authentication_error", "authentication_failed"],
    ["billing_error", "quota_exceeded"],
    ["some_new_error", "unknown"]
  ]

  it.effect("R-145: an error event fails the reply after what it had said, with its cost and its request", () =>
    Effect.gen(function*() {
      for (const [type, reason] of kinds) {
        const { error, events } = yield* outcomeOf(body(start(), ...text(0, "a"), said(type, "no", "req_3")))
        assert.deepStrictEqual(events.map(({ _tag }) => _tag), ["MessageStarted", "TextDelta", "RawChunk"])
        const { usage } = of(events, "RawChunk")[0]!.chunk as { usage: object }
        assert.deepInclude(usage, { inputTokens: 10, outputTokens: 1 })
        assert.deepInclude({ ...error }, { reason, detail: "no", requestId: "req_3", metadata: { type } })
      }
    }))

  it.effect("R-145: an error may come first, without its event's name, by its name alone, or as a bare document", () =>
    Effect.gen(function*() {
      const overloaded = JSON.stringify(said("overloaded_error", "Overloaded"))
      const first = yield* errorOf(`event: error\ndata: ${overloaded}\n\n`)
      assert.deepStrictEqual([first.reason, first.detail], ["provider_unavailable", "Overloaded"])
      const nameless = yield* errorOf(`${body(start())}data: ${overloaded}\n\n`)
      assert.strictEqual(nameless.reason, "provider_unavailable")
      const plain = yield* errorOf(`${body(start())}event: error\ndata: it broke\n\n`)
      assert.deepStrictEqual([plain.reason, plain.detail], ["unknown", "it broke"])
      const bare = yield* errorOf(`${body(start(), ...text(0, "a"))}${overloaded}\n`)
      assert.strictEqual(bare.reason, "provider_unavailable")
      const flat = yield* errorOf(`${body(start())}data: {"type":"error","message":"no"}\n\n`)
      assert.deepStrictEqual([flat.reason, flat.detail], ["unknown", "no"])
      const stray = yield* errorOf(`${body(start(), ...text(0, "a"))}{"content":[{"type":"text","text":"b"}]}\n`)
      assert.strictEqual(stray.reason, "network_error")
      const whole = yield* errorOf(json(200, said("overloaded_error", "Overloaded")))
      assert.deepStrictEqual([whole.reason, whole.detail], ["provider_unavailable", "Overloaded"])
      assert.strictEqual((yield* errorOf(json(200, { detail: "no" }))).detail, "no")
    }))

  it.effect("R-145: after an error nothing more is said, and nothing is called", () =>
    Effect.gen(function*() {
      const { error, events } = yield* outcomeOf(body(
        start(),
        Wire.call(0, "toolu_a", "note"),
        Wire.args(0, "{}"),
        said("overloaded_error", "Overloaded"),
        Wire.closed(0),
        ...text(1, "more"),
        ...Wire.ended("tool_use")
      ))
      assert.strictEqual(error?.reason, "provider_unavailable")
      assert.deepStrictEqual(of(events, "ToolCallCompleted"), [])
      assert.deepStrictEqual(of(events, "MessageCompleted"), [])
    }))

  it.effect("R-145: an event that is no JSON or no UTF-8 fails the reply, and is not quoted", () =>
    Effect.gen(function*() {
      const broken = yield* errorOf(`${body(start())}data: {"type":"content_blo\n\n`)
      assert.deepStrictEqual([broken.reason, broken.message.includes("content_blo")], ["malformed_response", false])
      assert.strictEqual((yield* errorOf("data: [1]\n\n")).reason, "malformed_response")
      const invalid = Buffer.concat([Buffer.from("data: {\"type\":\"ping\",\"x\":\""), Buffer.from([0xc3, 0x28, 0xff])])
      const bytes = yield* errorOf({ pieces: [body(start()), invalid, `"}\n\n${reply([text(0, "a")], "end_turn")}`] })
      assert.strictEqual(bytes.reason, "malformed_response")
    }))
})

describe("retries", () => {
  const answered = reply([text(0, "ok")], "end_turn")

  /** The adapter's own limits, which only pass when a server is too slow. */
  const limits: ReadonlyArray<number> = [1000, 10_000, 300_000]

  const trying = (answer: (index: number) => Server.Answer, options: Partial<Anthropic.Options> = {}) =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve((_, index) => answer(index))
      const clock = WaitingClock.make((millis) => !limits.includes(millis))
      const { error, events } = yield* outcome(Wire.stream(server.url, { retryDelay: "600 millis", ...options })).pipe(
        WaitingClock.by(clock),
        Effect.provideService(Random.Random, { nextDoubleUnsafe: () => 0, nextIntUnsafe: () => 0 })
      )
      const waits = clock.waits.filter((millis) => !limits.includes(millis))
      return { requests: server.requests.length, waits, error, events }
    }))

  it.effect("R-122: an overloaded provider is asked again with growing delays, and the reply is as if nothing had been", () =>
    Effect.gen(function*() {
      const overloaded = json(529, said("overloaded_error", "Overloaded"), { "x-should-retry": "true" })
      const found = yield* trying((index) => index < 2 ? overloaded : { pieces: [answered] })
      assert.deepStrictEqual([found.requests, found.waits, found.error], [3, [600, 1200], undefined])
      assert.strictEqual(found.events.length, 4)
      const never = yield* trying(() => overloaded)
      assert.deepStrictEqual([never.requests, never.error?.status], [3, 529])
    }))

  it.effect("R-122: a rate limit is waited for as long as it asks, the provider's word against a retry counts", () =>
    Effect.gen(function*() {
      const limited = json(429, said("rate_limit_error", "slow down"), { "retry-after": "7", "request-id": "req_4" })
      const found = yield* trying((index) => index === 0 ? limited : { pieces: [answered] })
      assert.deepStrictEqual([found.requests, found.waits, found.error], [2, [7000], undefined])
      const kept = yield* trying(() => limited, { retries: 0 })
      assert.deepInclude({ ...kept.error }, { reason: "rate_limited", retryAfterMillis: 7000, requestId: "req_4" })
      const final = yield* trying(() => json(500, said("api_error", "no"), { "x-should-retry": "false" }))
      assert.strictEqual(final.requests, 1)
    }))

  it.effect("R-122: a delay that is named by an answer that needs no second try is not listened to", () =>
    Effect.gen(function*() {
      const good = yield* trying(() => ({ headers: { "retry-after": "7" }, pieces: [answered] }))
      assert.deepStrictEqual([good.requests, good.waits], [1, []])
      const bad = yield* trying(() => json(400, said("invalid_request_error", "no"), { "retry-after": "7" }))
      assert.deepStrictEqual([bad.requests, bad.error?.retryAfterMillis], [1, undefined])
    }))

  it.effect("R-122: after the first event nothing is tried again", () =>
    Effect.gen(function*() {
      const found = yield* trying(() => ({ pieces: [body(start(), said("overloaded_error", "Overloaded"))] }))
      assert.deepStrictEqual([found.requests, found.error?.isRetryable], [1, true])
    }))
})
