/**
 * Errors inside a reply of Chat Completions, in every place where servers put them. HTTP errors and retries are the same
 * for all protocols and stand in `errors.test.ts`.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Stream from "effect/Stream"
import type { OpenAiChat } from "heddle/adapters"
import * as Adapters from "../support/adapters.ts"
import * as Clock from "../support/clock.ts"
import * as Chunks from "../support/openAiChat.ts"
import type * as Server from "../support/server.ts"

const { body, call, chunk, finish, of, outcomeOf, said } = Chunks

const { json } = Adapters

const errorOf = (answer: string | Server.Answer, options: Partial<OpenAiChat.Options> = {}) =>
  Effect.map(outcomeOf(answer, options), ({ error }) => error!)

describe("an error inside a Chat Completions reply", () => {
  const failing = (...parts: ReadonlyArray<string>) => outcomeOf(parts.join(""))

  it.effect("R-145: an error chunk fails the reply after the earlier events, and the usage is kept", () =>
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

  it.effect("R-145: an error event, a flat error object and an error string fail the reply", () =>
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

  it.effect("R-145: an error may be inside a choice, and may have only a message", () =>
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

  it.effect("R-145: a bare error document after the finish reason fails the reply", () =>
    Effect.gen(function*() {
      const bare = JSON.stringify({ error: { code: 503, message: "overloaded", status: "UNAVAILABLE" } }, null, 2)
      const { error } = yield* failing(body(said("a"), finish("stop")).replace("data: [DONE]\n\n", ""), bare)
      assert.deepStrictEqual([error?.reason, error?.detail], ["provider_unavailable", "overloaded"])
    }))

  it.effect("R-145: an error with status 200, an HTML page, an empty body and invalid JSON fail the reply", () =>
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

  it.effect("R-145: a chunk of any JSON shape leaves the reply complete", () =>
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

describe("an error body without an end", () => {
  it.effect("R-122: an error with an endless body is known by its status, after a wait of ten seconds for the body", () =>
    Effect.gen(function*() {
      const fetch: typeof globalThis.fetch = () =>
        Promise.resolve(
          new Response(new ReadableStream({ start: (body) => body.enqueue(new Uint8Array([123])) }), { status: 400 })
        )
      const clock = Clock.make((millis) => millis === 10_000)
      const { error } = yield* Chunks.outcome(
        Chunks.stream("http://model.test", { retries: 0 }).pipe(Stream.provideService(FetchHttpClient.Fetch, fetch))
      ).pipe(Clock.by(clock))
      assert.deepInclude({ ...error }, { reason: "invalid_request", status: 400 })
      assert.include(clock.waits, 10_000)
    }))
})

describe("retries of a Chat Completions request", () => {
  it.effect("R-122: the adapter closes the connection of a refused attempt before it reads the next attempt", () =>
    Effect.gen(function*() {
      const refusals: ReadonlyArray<() => Response> = [
        () => new Response("{}", { status: 429, headers: { "retry-after": "1" } }),
        () => new Response("data: {\"error\":{\"message\":\"busy\",\"code\":503}}\n\n")
      ]
      for (const refused of refusals) {
        const signals: Array<AbortSignal> = []
        const fetch: typeof globalThis.fetch = (_, init) => {
          signals.push(init!.signal!)
          return Promise.resolve(signals.length === 1 ? refused() : new Response(body(said("a"), finish("stop"))))
        }
        const aborted: Array<ReadonlyArray<boolean>> = []
        yield* Chunks.stream("http://model.test", { retries: 1, retryDelay: 0 }).pipe(
          Stream.provideService(FetchHttpClient.Fetch, fetch),
          Stream.runForEach(() => Effect.sync(() => aborted.push(signals.map((signal) => signal.aborted)))),
          Clock.by(Clock.make((millis) => millis < 5_000))
        )
        assert.deepStrictEqual(aborted[0], [true, false])
      }
    }))

  it.effect("R-122: the adapter does not retry a request after the reply has emitted reasoning", () =>
    Effect.gen(function*() {
      const thought = body(chunk({ reasoning_content: "hm" })).replace("data: [DONE]\n\n", "")
      const answer = { pieces: [thought, "data: {\"error\":{\"message\":\"busy\",\"code\":503}}\n\n"] }
      const found = yield* Adapters.trying(Adapters.openAiChat, () => answer)
      assert.deepStrictEqual([found.requests, found.events.length, found.error?.isRetryable], [1, 2, true])
    }))
})
