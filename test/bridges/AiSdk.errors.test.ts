/**
 * What goes wrong between here and a model of the AI SDK: HTTP errors as its packages reject with them, errors inside a
 * reply, replies without an end, models that fall silent, and what is tried again, and when.
 */
import { APICallError, LoadAPIKeyError, UnsupportedFunctionalityError } from "@ai-sdk/provider"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Random from "effect/Random"
import * as Redacted from "effect/Redacted"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import type { Adapter } from "heddle"
import * as AiSdk from "heddle/bridges/ai-sdk"
import * as Models from "../support/aiSdk.ts"
import * as WaitingClock from "../support/clock.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"

const { body, call, chunk, finish, of, said, usage } = Chunks
const { outcomeOf, outcomeOfParts, scripted, stream, tagsOf, versions } = Models

const json = (status: number, value: unknown, headers: Readonly<Record<string, string>> = {}): Server.Answer => ({
  status,
  headers: { "content-type": "application/json", ...headers },
  pieces: [typeof value === "string" ? value : JSON.stringify(value)]
})

/** What a model that rejects comes to. */
const rejecting = (error: unknown, options: Partial<AiSdk.Options> = {}) => {
  const model = { ...scripted([]), doStream: () => Promise.reject(error) }
  return Effect.map(Chunks.outcome(stream(AiSdk.layer({ model, retries: 0, ...options }))), ({ error }) => error!)
}

describe("HTTP errors of a bridged model", () => {
  for (const version of versions) {
    it.effect(`R-122: the error of an HTTP answer comes before any event, with all fields of the answer, in version ${version}`, () =>
      Effect.gen(function*() {
        const body = { error: { message: "No such key", type: "invalid_request_error", code: "invalid_api_key" } }
        const { error, events } = yield* outcomeOf(json(401, body, { "x-request-id": "req_1" }), version)
        assert.deepStrictEqual(events, [])
        assert.deepInclude({ ...error }, {
          reason: "authentication_failed",
          detail: "HTTP 401: No such key",
          provider: "acme.chat",
          status: 401,
          requestId: "req_1",
          metadata: { type: "invalid_request_error", code: "invalid_api_key" }
        })
        assert.isFalse(error?.isRetryable)
      }))
  }

  it.effect("R-122: the status decides the error reason, and the message decides where the status is ambiguous", () =>
    Effect.gen(function*() {
      const tooLong = { error: { message: "wrong", code: "context_length_exceeded" } }
      const cases: ReadonlyArray<readonly [number, unknown, Adapter.AdapterError["reason"]]> = [
        [400, {}, "invalid_request"],
        [400, tooLong, "context_length_exceeded"],
        [400, { error: { message: "no", code: "content_filter" } }, "content_filter"],
        [403, {}, "authentication_failed"],
        [408, {}, "timeout"],
        [429, {}, "rate_limited"],
        [429, { error: { message: "no", code: "insufficient_quota" } }, "quota_exceeded"],
        [500, {}, "provider_unavailable"],
        [529, "<title>Busy</title>", "provider_unavailable"]
      ]
      for (const [status, value, reason] of cases) {
        const { error } = yield* outcomeOf(json(status, value))
        assert.deepStrictEqual([error?.reason, error?.status], [reason, status], JSON.stringify(value))
      }
    }))

  it.effect("R-122: an unreachable server is a network error", () =>
    Effect.gen(function*() {
      const { error, events } = yield* Chunks.outcome(stream(Models.layer(yield* Server.unreachable)))
      assert.deepStrictEqual([events, error?.reason, error?.isRetryable], [[], "network_error", true])
      assert.match(error?.detail ?? "", /ECONNREFUSED/)
    }))

  it.effect("N-24: the error keeps a retry delay named only in its message", () =>
    Effect.gen(function*() {
      const answer = json(429, { error: { message: "Rate limit reached. Please try again in 6m0s." } })
      const { error } = yield* outcomeOf(answer, "v4", { retries: 0 })
      assert.deepStrictEqual([error?.reason, error?.retryAfterMillis], ["rate_limited", 360_000])
    }))

  it("N-26: a plain secret or an invalid header throws a TypeError without the value", () => {
    const model = scripted([])
    const made = (options: object) => () => AiSdk.layer({ model, ...options })
    assert.throws(
      made({ secrets: ["sk-secret"] }),
      TypeError,
      /^AiSdk.layer: secrets\[0\] must be a Redacted string: Redacted.make\(secret\)$/
    )
    assert.throws(made({ headers: { "x-token": 1 } }), TypeError, /"x-token" is neither/)
    assert.doesNotThrow(made({ secrets: [Redacted.make("sk-secret")], headers: { "x-token": "t-1" } }))
  })

  it.effect("an error does not show keys and headers, even if the server quotes them", () =>
    Effect.gen(function*() {
      const answer = json(401, { error: { message: "Incorrect API key: sk-secret, token t-1" } })
      const { error } = yield* outcomeOf(answer, "v4", {
        secrets: [Redacted.make("sk-secret")],
        headers: { "x-token": Redacted.make("t-1") }
      })
      assert.strictEqual(error?.detail, "HTTP 401: Incorrect API key: <redacted>, token <redacted>")
      assert.notMatch(JSON.stringify(error), /sk-secret|t-1/)
    }))

  it.effect("R-122: an error does not show the request", () =>
    Effect.gen(function*() {
      const error = yield* rejecting(
        new APICallError({
          message: "no",
          url: "https://example.com?key=hidden",
          requestBodyValues: { messages: "hidden" },
          statusCode: 400,
          responseBody: "{\"error\":{\"message\":\"no\"}}"
        })
      )
      assert.notInclude(JSON.stringify(error) + error.message, "hidden")
    }))
})

describe("errors of a bridged model", () => {
  it.effect("R-122: each kind of error has its reason", () =>
    Effect.gen(function*() {
      const named = (name: string, message = "no", cause?: unknown) =>
        Object.assign(new Error(message, { cause }), { name })
      const connect = new APICallError({
        message: "Cannot connect to API: refused",
        url: "u",
        requestBodyValues: {},
        isRetryable: true
      })
      const cases: ReadonlyArray<readonly [unknown, Adapter.AdapterError["reason"]]> = [
        [connect, "network_error"],
        [new LoadAPIKeyError({ message: "no key" }), "authentication_failed"],
        [new UnsupportedFunctionalityError({ functionality: "images" }), "unsupported_feature"],
        [named("AI_InvalidPromptError"), "invalid_request"],
        [named("AI_NoSuchModelError"), "invalid_request"],
        [named("AI_TypeValidationError"), "malformed_response"],
        [named("AI_JSONParseError"), "malformed_response"],
        [
          named("AI_APICallError", "Failed to process successful response", named("AI_EmptyResponseBodyError")),
          "malformed_response"
        ],
        [named("AI_APICallError", "Failed to process successful response", new Error("terminated")), "network_error"],
        [named("TimeoutError"), "timeout"],
        [Object.assign(new Error("slow down"), { statusCode: 429 }), "rate_limited"],
        [Object.assign(new Error("no"), { type: "overloaded_error" }), "provider_unavailable"],
        [{ type: "rate_limit_error", message: "no" }, "rate_limited"],
        [new Error("odd"), "unknown"],
        ["odd", "unknown"],
        [undefined, "unknown"],
        [null, "unknown"]
      ]
      for (const [value, reason] of cases) {
        const error = yield* rejecting(value)
        assert.strictEqual(error.reason, reason, String(value))
        assert.strictEqual(error.provider, "scripted")
      }
    }))

  it.effect("a model that throws or returns no stream fails the reply with an error", () =>
    Effect.gen(function*() {
      const broken: ReadonlyArray<() => unknown> = [
        () => {
          throw new Error("kaboom")
        },
        () => Promise.resolve({}),
        () => undefined
      ]
      for (const doStream of broken) {
        const model = { ...scripted([]), doStream } as AiSdk.LanguageModel
        const { error } = yield* Chunks.outcome(stream(AiSdk.layer({ model, retries: 0 })))
        assert.strictEqual(error?.reason, "unknown")
      }
    }))

  it.effect("a circular error and a long error are reported", () =>
    Effect.gen(function*() {
      const circle: Record<string, unknown> = { message: "round", big: 10n }
      circle["self"] = circle
      assert.strictEqual((yield* rejecting(circle)).detail, "round")
      const long = yield* rejecting(Object.assign(new Error("x".repeat(5000)), { name: "AI_JSONParseError" }))
      assert.isAtMost(long.detail?.length ?? 0, 1000)
    }))
})

describe("an error inside a bridged reply", () => {
  for (const version of versions) {
    it.effect(`R-145: an error chunk fails the reply after the earlier events and the usage, in version ${version}`, () =>
      Effect.gen(function*() {
        const found = yield* outcomeOf(
          body(
            said("a"),
            { error: { message: "Provider returned error", type: "server_error", code: 502 } },
            usage({ prompt_tokens: 3, completion_tokens: 1, total_tokens: 4 })
          ),
          version
        )
        assert.deepStrictEqual(tagsOf(found.events), ["MessageStarted", "TextDelta", "RawChunk"])
        const { usage: cost } = of(found.events, "RawChunk")[0]!.chunk as { usage: object }
        assert.deepInclude(cost, { inputTokens: 3, outputTokens: 1 })
        assert.include(found.error?.detail, "Provider returned error")
      }))

    it.effect(`R-355: a connection lost during a call fails the reply, in version ${version}`, () =>
      Effect.gen(function*() {
        const cut = body(said("a"), call({ index: 0, id: "a", name: "search", arguments: "{\"q\":" }))
          .replace("data: [DONE]\n\n", "")
        const dropped = yield* outcomeOf({ pieces: [cut], ending: "drop" }, version)
        assert.strictEqual(dropped.error?.reason, "network_error")
        assert.isTrue(dropped.error?.isRetryable)
        assert.deepStrictEqual(tagsOf(dropped.events).slice(0, 4), [
          "MessageStarted",
          "TextDelta",
          "ToolCallStarted",
          "ToolCallDelta"
        ])
        assert.deepStrictEqual(of(dropped.events, "ToolCallCompleted"), [])
        assert.deepStrictEqual(of(dropped.events, "MessageCompleted"), [])
      }))
  }

  it.effect("R-355: a reply without its final part fails as cut, wherever it stops", () =>
    Effect.gen(function*() {
      const provider = yield* outcomeOf(body(said("a")).replace("data: [DONE]\n\n", ""))
      assert.strictEqual(provider.error?.reason, "network_error")
      const stream = yield* outcomeOfParts(Models.text("a"))
      assert.deepStrictEqual([stream.error?.reason, tagsOf(stream.events)], ["network_error", [
        "MessageStarted",
        "TextDelta"
      ]])
      const told = yield* outcomeOfParts(Models.text("a"), Models.finish("interrupted"))
      assert.deepStrictEqual([told.error?.reason, tagsOf(told.events)], [
        "network_error",
        ["MessageStarted", "TextDelta", "RawChunk"]
      ])
      const nothing = yield* outcomeOfParts()
      assert.deepStrictEqual([nothing.error?.reason, nothing.events], ["network_error", []])
    }))

  it.effect("R-145: a chunk of invalid JSON fails the reply", () =>
    Effect.gen(function*() {
      const { error, events } = yield* outcomeOf(body(said("a")).replace("[DONE]", "{\"choices\":[{"))
      assert.deepStrictEqual([error?.reason, tagsOf(events)[1]], ["malformed_response", "TextDelta"])
    }))

  it.effect("R-145: a chunk of any JSON shape leads to a completed message or an error", () =>
    Effect.gen(function*() {
      const odd: ReadonlyArray<Readonly<Record<string, unknown>>> = [
        { choices: {} },
        { choices: [null, 1, "x", []] },
        chunk({ content: 1, tool_calls: [null] }),
        chunk({ tool_calls: [{ index: 0, id: "a", function: { name: {}, arguments: [] } }] })
      ]
      for (const value of odd) {
        const { error, events } = yield* outcomeOf(body(value, finish("stop")))
        assert.isTrue(error !== undefined || tagsOf(events).at(-1) === "MessageCompleted", JSON.stringify(value))
      }
    }))

  it.effect("R-122: an error inside a reply names its request id", () =>
    Effect.gen(function*() {
      const { error } = yield* outcomeOf({
        headers: { "content-type": "text/event-stream", "x-request-id": "req_1" },
        pieces: [body(said("a"), { error: { message: "busy", type: "overloaded_error" } })]
      })
      assert.deepStrictEqual([error?.reason, error?.requestId], ["provider_unavailable", "req_1"])
    }))

  it.effect("the bridge ignores parts after an error", () =>
    Effect.gen(function*() {
      const { error, events } = yield* outcomeOfParts(
        Models.text("a"),
        { type: "error", error: { type: "overloaded_error", message: "busy" } },
        Models.text("b"),
        Models.call("a", "now", "{}"),
        Models.finish("stop")
      )
      assert.deepStrictEqual(tagsOf(events), ["MessageStarted", "TextDelta", "RawChunk"])
      assert.deepStrictEqual([error?.reason, error?.detail], ["provider_unavailable", "busy"])
    }))
})

describe("retries of a bridged model", () => {
  const answered = body(said("ok"), finish("stop"))

  /** The bridge's own limits, which only pass when a model is too slow. */
  const limits: ReadonlyArray<number> = [1000, 300_000]

  const trying = (answer: (index: number) => Server.Answer, options: Models.Options = {}) =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve((_, index) => answer(index))
      const clock = WaitingClock.make((millis) => !limits.includes(millis))
      const { error, events } = yield* Chunks.outcome(
        stream(Models.layer(server.url, "v4", { retries: 2, retryDelay: "600 millis", ...options }))
      ).pipe(
        WaitingClock.by(clock),
        Effect.provideService(Random.Random, { nextDoubleUnsafe: () => 0, nextIntUnsafe: () => 0 })
      )
      const waits = clock.waits.filter((millis) => !limits.includes(millis))
      return { requests: server.requests.length, waits, error, events }
    }))

  it.effect("R-122: the bridge retries a busy server with growing delays, and then emits the reply as usual", () =>
    Effect.gen(function*() {
      const found = yield* trying((index) => index < 2 ? json(index === 0 ? 500 : 429, {}) : { pieces: [answered] })
      assert.deepStrictEqual([found.requests, found.waits, found.error], [3, [600, 1200], undefined])
      assert.deepStrictEqual(tagsOf(found.events), ["MessageStarted", "TextDelta", "TextCompleted", "MessageCompleted"])
    }))

  it.effect("R-122: a retry waits for the delay requested by the server, up to the longest allowed delay", () =>
    Effect.gen(function*() {
      const asked = yield* trying(() => json(429, {}, { "retry-after": "7" }), { retries: 1 })
      assert.deepStrictEqual([asked.waits, asked.error?.retryAfterMillis], [[7000], 7000])
      const long = yield* trying(() => json(429, {}, { "retry-after": "3600" }), { retries: 1 })
      assert.deepStrictEqual([long.waits, long.error?.retryAfterMillis], [[30_000], 3_600_000])
    }))

  it.effect("R-122: the bridge retries no request that can never succeed, unless the server demands a retry", () =>
    Effect.gen(function*() {
      for (const status of [400, 401, 404]) assert.strictEqual((yield* trying(() => json(status, {}))).requests, 1)
      const quota = json(429, { error: { message: "no", code: "insufficient_quota" } })
      assert.strictEqual((yield* trying(() => quota)).requests, 1)
      assert.strictEqual((yield* trying(() => json(500, {}, { "x-should-retry": "false" }))).requests, 1)
      assert.strictEqual((yield* trying(() => json(400, {}, { "x-should-retry": "true" }))).requests, 3)
      assert.strictEqual((yield* trying(() => json(503, {}), { retries: 0 })).requests, 1)
    }))

  it.effect("R-122: the bridge retries an error before the first content of a reply, and no error afterwards", () =>
    Effect.gen(function*() {
      const busy = { error: { message: "busy", type: "overloaded_error" } }
      const silent = yield* trying((index) => ({ pieces: [index === 0 ? body(busy) : answered] }))
      assert.deepStrictEqual([silent.requests, silent.error], [2, undefined])
      const spoken = yield* trying(() => ({ pieces: [body(said("a"), busy)] }))
      assert.deepStrictEqual([spoken.requests, spoken.error?.reason], [1, "provider_unavailable"])
    }))

  it.effect("the bridge closes the connection of a failed try before the next try", () =>
    Effect.scoped(Effect.gen(function*() {
      const signals: Array<AbortSignal> = []
      const closed: Array<boolean> = []
      const model = scripted((call, index) => {
        closed.push(...signals.map(({ aborted }) => aborted))
        signals.push(call.abortSignal)
        return index === 0 ? [{ type: "error", error: { type: "overloaded_error" } }] : [Models.finish("stop")]
      })
      const fiber = yield* Effect.forkChild(Chunks.outcome(stream(AiSdk.layer({ model }))), { startImmediately: true })
      while (fiber.pollUnsafe() === undefined) {
        yield* TestClock.adjust("1 second")
        yield* Effect.promise(() => new Promise((resolve) => setImmediate(resolve)))
      }
      assert.isUndefined((yield* Fiber.join(fiber)).error)
      assert.deepStrictEqual(closed, [true])
      assert.deepStrictEqual(signals.map(({ aborted }) => aborted), [true, true])
    })))
})

describe("a silent bridged model", () => {
  const hanging = (parts: ReadonlyArray<unknown>): AiSdk.LanguageModel => ({
    ...scripted([]),
    doStream: () =>
      Promise.resolve({
        stream: new ReadableStream<unknown>({
          start: (controller) => {
            for (const part of parts) controller.enqueue(part)
          }
        })
      })
  })

  it.effect("R-122: a model that never answers is tried three times and then fails", () =>
    Effect.gen(function*() {
      let asked = 0
      const model = {
        ...scripted([]),
        doStream: () => {
          asked++
          return new Promise<never>(() => {})
        }
      }
      const clock = WaitingClock.make(() => true)
      const { error } = yield* Chunks.outcome(stream(AiSdk.layer({ model, idleTimeout: "7 seconds" }))).pipe(
        WaitingClock.by(clock)
      )
      assert.deepStrictEqual([error?.reason, error?.detail, asked], [
        "timeout",
        "the model did not answer within 7s",
        3
      ])
    }))

  it.effect("R-122: a model that falls silent inside a reply fails the reply; a stream left open after the end does not", () =>
    Effect.gen(function*() {
      const listen = (parts: ReadonlyArray<unknown>) =>
        Effect.gen(function*() {
          let hasSpoken = false
          const spoken = Stream.tap(
            stream(AiSdk.layer({ model: hanging(parts), idleTimeout: "7 minutes", retries: 0 })),
            ({ _tag }) =>
              Effect.sync(() => {
                hasSpoken ||= _tag === "TextDelta"
              })
          )
          const clock = WaitingClock.make((millis) => hasSpoken && (millis === 420_000 || millis === 1000))
          const found = yield* WaitingClock.by(clock)(Chunks.outcome(spoken))
          return [found.error?.reason, found.error?.detail, tagsOf(found.events).at(-1)]
        })
      assert.deepStrictEqual(yield* listen([Models.text("a")]), ["timeout", "the model was silent for 7m", "TextDelta"])
      assert.deepStrictEqual(yield* listen([Models.text("a"), Models.finish("stop")]), [
        undefined,
        undefined,
        "MessageCompleted"
      ])
      const busy = { type: "error", error: { type: "overloaded_error", message: "busy" } }
      assert.deepStrictEqual(yield* listen([Models.text("a"), busy]), ["provider_unavailable", "busy", "TextDelta"])
    }))
})
