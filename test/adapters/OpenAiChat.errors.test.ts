/**
 * What goes wrong between here and the model, and what is said of it: HTTP errors in every shape, errors inside a reply,
 * and what is tried again, and when.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Random from "effect/Random"
import type { Adapter } from "heddle"
import type { OpenAiChat } from "heddle/adapters"
import * as WaitingClock from "../support/clock.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"

const { body, call, chunk, finish, of, outcomeOf, said } = Chunks

const json = (status: number, value: unknown, headers: Readonly<Record<string, string>> = {}): Server.Answer => ({
  status,
  headers: { "content-type": "application/json", ...headers },
  pieces: [typeof value === "string" ? value : JSON.stringify(value)]
})

const errorOf = (answer: string | Server.Answer, options: Partial<OpenAiChat.Options> = {}) =>
  Effect.map(outcomeOf(answer, options), ({ error }) => error!)

const reasonOf = (status: number, value: unknown = {}) =>
  Effect.map(errorOf(json(status, value)), (error) => error.reason)

describe("HTTP errors", () => {
  it.effect("R-122: the error of an HTTP answer comes before any event, with all that the answer says", () =>
    Effect.gen(function*() {
      const said = {
        error: { message: "No such key", type: "invalid_request_error", code: "invalid_api_key", param: null }
      }
      const { error, events } = yield* outcomeOf(json(401, said, { "x-request-id": "req_1" }), { provider: "acme" })
      assert.deepStrictEqual(events, [])
      assert.deepInclude({ ...error }, {
        reason: "authentication_failed",
        detail: "HTTP 401: No such key",
        provider: "acme",
        status: 401,
        requestId: "req_1",
        metadata: { type: "invalid_request_error", code: "invalid_api_key" }
      })
      assert.deepStrictEqual(error?.cause, said.error)
      assert.strictEqual(error?.message, "adapter error (acme): authentication_failed: HTTP 401: No such key")
      assert.isFalse(error?.isRetryable)
    }))

  const shapes: ReadonlyArray<readonly [name: string, body: unknown, detail: string]> = [
    ["an object under error", { error: { message: "wrong", code: 400 } }, "wrong"],
    ["a text under error", { error: "wrong", code: "bad" }, "wrong"],
    ["flat", { object: "error", message: "wrong", type: "invalid" }, "wrong"],
    ["detail", { detail: "wrong" }, "wrong"],
    ["typed", { type: "error", error: { type: "x", message: "wrong" }, request_id: "r" }, "wrong"],
    ["an event", "event: error\ndata: {\"error\":{\"message\":\"wrong\"}}\n\n", "wrong"],
    ["a list", [{ error: { message: "wrong" } }], "wrong"],
    ["of no known shape", { problem: "wrong" }, "{\"problem\":\"wrong\"}"],
    ["a page", "<html><head><title>Bad\n gateway</title></head><body>no</body></html>", "Bad gateway"],
    ["a text", "wrong,   indeed", "wrong, indeed"]
  ]

  for (const [name, value, detail] of shapes) {
    it.effect(`R-122: what went wrong is read from a body that is ${name}`, () =>
      Effect.gen(function*() {
        const error = yield* errorOf(json(400, value))
        assert.deepStrictEqual([error.reason, error.detail], ["invalid_request", `HTTP 400: ${detail}`])
      }))
  }

  it.effect("R-122: a quota that is used up is none that waiting brings back, however it is told", () =>
    Effect.gen(function*() {
      const error = (message: string, code: string | null = null) => ({ error: { message, code } })
      assert.strictEqual(yield* reasonOf(402), "quota_exceeded")
      for (
        const [status, value] of [
          [429, error("You exceeded your current quota", "insufficient_quota")],
          [403, error("no", "insufficient_user_quota")],
          [400, error("no", "billing_hard_limit_reached")],
          [400, error("Your credit balance is too low to access the API")],
          [403, error("Insufficient credits. Add more")],
          [429, error("You have exceeded your monthly included credits")]
        ] as const
      ) {
        assert.strictEqual(yield* reasonOf(status, value), "quota_exceeded", JSON.stringify(value))
      }
      assert.strictEqual(yield* reasonOf(429, error("You exceeded your current quota, please check")), "rate_limited")
      assert.strictEqual(yield* reasonOf(401, error("Insufficient credits")), "authentication_failed")
    }))

  it.effect("R-122: what only the body says is kept: the request's id, and a status in words", () =>
    Effect.gen(function*() {
      const typed = yield* errorOf(json(400, { type: "error", error: { message: "no" }, request_id: "req_2" }))
      assert.strictEqual(typed.requestId, "req_2")
      const both = { request_id: "req_2", error: { message: "no", status: "NOT_FOUND", code: 404 } }
      const found = yield* errorOf(json(404, both, { "request-id": "req_1" }))
      assert.strictEqual(found.requestId, "req_1")
      assert.deepStrictEqual(found.metadata, { code: "404", status: "NOT_FOUND" })
    }))

  it.effect("R-122: an empty body and an endless one leave the status to speak", () =>
    Effect.gen(function*() {
      assert.strictEqual((yield* errorOf(json(503, ""))).detail, "HTTP 503")
      const endless = yield* errorOf({ status: 500, headers: {}, pieces: ["x".repeat(200_000)], ending: "open" })
      assert.strictEqual(endless.reason, "provider_unavailable")
      assert.isBelow(endless.message.length, 1100)
    }))

  it.effect("R-122: the status decides on the reason, and the words where the status says too little", () =>
    Effect.gen(function*() {
      const tooLong = { error: { message: "wrong", code: "context_length_exceeded" } }
      const cases: ReadonlyArray<readonly [number, unknown, Adapter.AdapterError["reason"]]> = [
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
        [529, {}, "provider_unavailable"]
      ]
      for (const [status, value, reason] of cases) {
        assert.strictEqual(yield* reasonOf(status, value), reason, `${status} ${JSON.stringify(value)}`)
      }
    }))
})

describe("errors inside a reply", () => {
  const failing = (...parts: ReadonlyArray<string>) => outcomeOf(parts.join(""))

  it.effect("R-145: an error chunk fails the reply after what it had said, its cost included", () =>
    Effect.gen(function*() {
      const error = { message: "Provider returned error", code: 502, metadata: { raw: "cut" } }
      const found = yield* failing(body(
        said("a"),
        call({ index: 0, id: "a", name: "now", arguments: "{}" }),
        { ...finish("stop"), error },
        Chunks.usage({ prompt_tokens: 3, completion_tokens: 1 })
      ))
      assert.deepStrictEqual(found.events.map(({ _tag }) => _tag), [
        "MessageStarted",
        "TextDelta",
        "ToolCallStarted",
        "ToolCallDelta",
        "ToolCallCompleted",
        "RawChunk"
      ])
      const { usage } = of(found.events, "RawChunk")[0]!.chunk as { usage: object }
      assert.deepInclude(usage, { inputTokens: 3, outputTokens: 1 })
      assert.deepInclude({ ...found.error }, { reason: "provider_unavailable", status: 502 })
      assert.deepStrictEqual(found.error?.cause, error)
      assert.strictEqual(found.error?.metadata?.["finishReason"], "stop")
    }))

  it.effect("R-145: an error event, a flat error and an error that is a text are errors all the same", () =>
    Effect.gen(function*() {
      const start = body(said("a")).replace("data: [DONE]\n\n", "")
      const called = yield* failing(start, "event: error\ndata: {\"message\":\"no\",\"type\":\"rate_limit_error\"}\n\n")
      assert.deepStrictEqual([called.error?.reason, called.error?.detail], ["rate_limited", "no"])
      const plain = yield* failing(start, "event: error\ndata: it broke\n\n")
      assert.deepStrictEqual([plain.error?.reason, plain.error?.detail], ["unknown", "it broke"])
      const flat = yield* failing(start, "data: {\"object\":\"error\",\"message\":\"no\",\"code\":400}\n\n")
      assert.deepStrictEqual([flat.error?.reason, flat.error?.status], ["invalid_request", 400])
      const text = yield* failing(start, "data: {\"error\":\"overloaded\"}\n\n", "data: [DONE]\n\n")
      assert.deepStrictEqual([text.error?.detail, text.events.length], ["overloaded", 2])
    }))

  it.effect("R-145: an error may stand in the choice that it broke, and tell nothing but a message", () =>
    Effect.gen(function*() {
      const within = { error: { code: 502, message: "upstream is gone" }, finish_reason: "error" }
      const found = yield* failing(body(said("a"), chunk({ content: "" }, within)))
      assert.deepInclude({ ...found.error }, {
        reason: "provider_unavailable",
        status: 502,
        detail: "upstream is gone"
      })
      assert.strictEqual(found.error?.metadata?.["finishReason"], "error")
      const reasonOf = (message: string) =>
        Effect.map(failing(body(said("a"), { error: { message } })), ({ error }) => error?.reason)
      assert.strictEqual(yield* reasonOf("The server is overloaded"), "provider_unavailable")
      assert.strictEqual(yield* reasonOf("boo"), "unknown")
    }))

  it.effect("R-145: a bare document that breaks the stream off is an error, not the end of the reply", () =>
    Effect.gen(function*() {
      const bare = JSON.stringify({ error: { code: 503, message: "overloaded", status: "UNAVAILABLE" } }, null, 2)
      const { error } = yield* failing(body(said("a"), finish("stop")).replace("data: [DONE]\n\n", ""), bare)
      assert.deepStrictEqual([error?.reason, error?.detail], ["provider_unavailable", "overloaded"])
    }))

  it.effect("R-145: an error under status 200, a page, and a body without anything fail the reply", () =>
    Effect.gen(function*() {
      const filtered = yield* errorOf(json(200, { error: { message: "no", code: "content_filter", status: 400 } }))
      assert.strictEqual(filtered.reason, "content_filter")
      const page = yield* errorOf({ headers: { "content-type": "text/html" }, pieces: ["<title>Sign in</title>"] })
      assert.deepStrictEqual([page.reason, page.detail], ["malformed_response", "the answer holds no reply: Sign in"])
      assert.strictEqual((yield* errorOf("")).reason, "malformed_response")
      assert.strictEqual((yield* errorOf(json(200, { detail: "no" }))).detail, "no")
      assert.strictEqual((yield* errorOf("data: [1]\n\n")).reason, "malformed_response")
      const broken = yield* errorOf("data: {\"choices\":[{\n\n")
      assert.deepStrictEqual([broken.reason, broken.message.includes("choices")], ["malformed_response", false])
    }))

  it.effect("R-145: whatever JSON a chunk holds, the reply ends in a message or a typed error", () =>
    Effect.gen(function*() {
      const odd: ReadonlyArray<Readonly<Record<string, unknown>>> = [
        { choices: {} },
        { choices: [null, 1, "x", []] },
        { choices: [{ delta: [] }] },
        chunk({ content: 1, reasoning: {}, tool_calls: [null, 1, { function: 1 }, { index: "0", id: 5 }] }),
        chunk({ tool_calls: [{ index: 0, id: "a", function: { name: {}, arguments: [] } }] }),
        chunk({}, { finish_reason: 7 }),
        { ...chunk({}), usage: 3, id: 4, model: null },
        { ...chunk({}), usage: { prompt_tokens: "many", completion_tokens_details: [], inputTokens: {} } }
      ]
      for (const value of odd) {
        const exit = yield* Effect.exit(outcomeOf(body(value, finish("stop"))))
        assert.isTrue(Exit.isSuccess(exit), JSON.stringify(value))
        if (Exit.isSuccess(exit)) assert.strictEqual(of(exit.value.events, "MessageCompleted").length, 1)
      }
    }))
})

describe("retries", () => {
  const answered = body(said("ok"), finish("stop"))

  /** The adapter's own limits, which only pass when a server is too slow. */
  const limits: ReadonlyArray<number> = [1000, 10_000, 300_000]

  /** How often a server is asked, after which waits, and what comes out; without jitter, and without waiting. */
  const trying = (
    answer: (index: number) => Server.Answer,
    options: Partial<OpenAiChat.Options> = {},
    startMillis = 0,
    jitter = 0
  ) =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve((_, index) => answer(index))
      const clock = WaitingClock.make((millis) => !limits.includes(millis), startMillis)
      const { error, events } = yield* Chunks.outcome(
        Chunks.stream(server.url, { retryDelay: "600 millis", ...options })
      ).pipe(
        WaitingClock.by(clock),
        Effect.provideService(Random.Random, { nextDoubleUnsafe: () => jitter, nextIntUnsafe: () => 0 })
      )
      const waits = clock.waits.filter((millis) => !limits.includes(millis))
      return { requests: server.requests.length, waits, error, events }
    }))

  it.effect("R-122: a busy server is asked again with growing delays, and the reply is as if nothing had been", () =>
    Effect.gen(function*() {
      const found = yield* trying((index) => index < 2 ? json(index === 0 ? 500 : 429, {}) : { pieces: [answered] })
      assert.deepStrictEqual([found.requests, found.waits, found.error], [3, [600, 1200], undefined])
      assert.deepStrictEqual(found.events.length, 4)
    }))

  it.effect("R-122: the last error comes out when the tries are used up, and no try is made that was not granted", () =>
    Effect.gen(function*() {
      const busy = yield* trying(() => json(503, {}))
      assert.deepStrictEqual([busy.requests, busy.error?.status], [3, 503])
      const once = yield* trying(() => json(503, {}), { retries: 0 })
      assert.deepStrictEqual([once.requests, once.waits], [1, []])
      const slow = yield* trying(() => json(503, {}), {
        retries: 4,
        retryDelay: "2 seconds",
        maxRetryDelay: "5 seconds"
      })
      assert.deepStrictEqual([slow.requests, slow.waits], [5, [2000, 4000, 5000, 5000]])
    }))

  it.effect("R-122: the jitter is added on top, at most a quarter of a second", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual((yield* trying(() => json(503, {}), { retries: 1 }, 0, 0.5)).waits, [725])
      const capped = yield* trying(() => json(503, {}, { "retry-after": "99" }), { retries: 1 }, 0, 0.8)
      assert.deepStrictEqual(capped.waits, [30_200])
    }))

  it.effect("R-122: what can never succeed is not tried again, unless the server says so", () =>
    Effect.gen(function*() {
      for (const status of [400, 401, 403, 404, 422]) {
        assert.strictEqual((yield* trying(() => json(status, {}))).requests, 1)
      }
      const quota = { error: { message: "no money", type: "insufficient_quota", code: "insufficient_quota" } }
      const spent = yield* trying(() => json(429, quota))
      assert.deepStrictEqual([spent.requests, spent.error?.reason], [1, "quota_exceeded"])
      assert.strictEqual((yield* trying(() => json(500, {}, { "x-should-retry": "false" }))).requests, 1)
      assert.strictEqual((yield* trying(() => json(400, {}, { "x-should-retry": "true" }))).requests, 3)
      for (const status of [408, 409, 429, 502, 529]) {
        assert.strictEqual((yield* trying(() => json(status, {}))).requests, 3)
      }
    }))

  it.effect("R-122: the delay that the server asks for counts, up to the longest allowed", () =>
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
      const details = [{ "@type": "type.googleapis.com/google.rpc.RetryInfo", retryDelay: "4.5s" }]
      assert.deepStrictEqual(yield* asking({}, { error: { message: "no", details } }), [[4500], 4500])
    }))

  it.effect("R-122: a delay named by an answer that needs no second try is not listened to", () =>
    Effect.gen(function*() {
      const error = yield* errorOf(json(400, {}, { "retry-after": "7" }))
      assert.isUndefined(error.retryAfterMillis)
      const good = yield* trying(() => ({ headers: { "retry-after": "7" }, pieces: [answered] }))
      assert.deepStrictEqual([good.requests, good.waits], [1, []])
    }))

  const broken = "data: {\"error\":{\"message\":\"busy\",\"code\":503}}\n\n"

  it.effect("R-122: after the first event nothing is tried again", () =>
    Effect.gen(function*() {
      const spoken = body(said("ok")).replace("data: [DONE]\n\n", "")
      const answers: ReadonlyArray<Server.Answer> = [
        { pieces: [spoken], ending: "drop" },
        { pieces: [spoken, broken] },
        { pieces: [body(chunk({ reasoning_content: "hm" })).replace("data: [DONE]\n\n", broken)] }
      ]
      for (const answer of answers) {
        const found = yield* trying(() => answer)
        assert.deepStrictEqual([found.requests, found.events.length, found.error?.isRetryable], [1, 2, true])
      }
    }))

  it.effect("R-122: an answer that breaks before it has said anything is like one that never came", () =>
    Effect.gen(function*() {
      const answers: ReadonlyArray<Server.Answer> = [
        { pieces: [": nothing yet\n\n"], ending: "drop" },
        { pieces: [broken] },
        { pieces: [body(chunk({ role: "assistant", content: "" })).replace("data: [DONE]\n\n", broken)] }
      ]
      for (const answer of answers) {
        const healed = yield* trying((index) => index === 0 ? answer : { pieces: [answered] })
        assert.deepStrictEqual([healed.requests, healed.waits, healed.error], [2, [600], undefined])
        const found = yield* trying(() => answer)
        assert.deepStrictEqual([found.requests, found.events.length, found.error?.isRetryable], [3, 0, true])
      }
      const refused = "data: {\"error\":{\"message\":\"no\",\"code\":400}}\n\n"
      assert.strictEqual((yield* trying(() => ({ pieces: [refused] }))).requests, 1)
      assert.strictEqual((yield* trying(() => ({ pieces: ["<html>"] }))).requests, 1)
    }))
})
