/**
 * What is particular to Gemini's errors: Google's details, errors inside a reply in every framing, and the delays that
 * bodies ask for. HTTP errors and retries are the same for all protocols and stand in `errors.test.ts`.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import { type Adapter, Message, Step } from "heddle"
import type { Gemini } from "heddle/adapters"
import * as Adapters from "../support/adapters.ts"
import * as Chunks from "../support/gemini.ts"
import * as Server from "../support/server.ts"

const { array, body, call, chunk, finish, of, outcomeOf, said, usage } = Chunks

const stop = finish("STOP")

const json = (status: number, value: unknown): Server.Answer => ({
  status,
  headers: { "content-type": "application/json; charset=UTF-8" },
  pieces: [typeof value === "string" ? value : JSON.stringify(value, null, 2)]
})

const google = (code: number, status: string, message: string, details?: ReadonlyArray<object>) => ({
  error: { code, message, status, ...(details === undefined ? {} : { details }) }
})

const retryInfo = (retryDelay: string) => ({ "@type": "type.googleapis.com/google.rpc.RetryInfo", retryDelay })
const quotaFailure = (quotaId: string) => ({
  "@type": "type.googleapis.com/google.rpc.QuotaFailure",
  violations: [{ quotaMetric: "generate_content_free_tier_requests", quotaId }]
})

const errorOf = (answer: string | Server.Answer, options: Partial<Gemini.Options> = {}) =>
  Effect.map(outcomeOf(answer, options), ({ error }) => error!)

const perMinute = google(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota.", [
  quotaFailure("GenerateRequestsPerMinutePerProjectPerModel-FreeTier"),
  retryInfo("34.4s")
])

describe("an HTTP error of Gemini", () => {
  it.effect("R-122: an error with the content type of a stream, an HTML page and an empty body fail the reply with the HTTP status", () =>
    Effect.gen(function*() {
      const streamed = {
        ...json(400, google(400, "INVALID_ARGUMENT", "bad")),
        headers: { "content-type": "text/event-stream" }
      }
      assert.strictEqual((yield* errorOf(streamed)).detail, "HTTP 400: bad")
      const page = yield* errorOf(json(502, "<html><title>Error 502 (Server Error)!!1</title></html>"))
      assert.deepStrictEqual([page.reason, page.detail], [
        "provider_unavailable",
        "HTTP 502: Error 502 (Server Error)!!1"
      ])
      assert.strictEqual((yield* errorOf(json(404, ""))).detail, "HTTP 404")
    }))
})

describe("retries of a Gemini request", () => {
  const trying = (answers: ReadonlyArray<Server.Answer>) =>
    Effect.map(
      Adapters.trying(Adapters.gemini, (index) => answers[index] ?? answers.at(-1)!),
      ({ error, requests, waits }) => [requests, waits, error?.reason]
    )

  it.effect("R-122: a retry waits for the delay named in the error body, up to the longest allowed delay", () =>
    Effect.gen(function*() {
      const patient = json(429, google(429, "RESOURCE_EXHAUSTED", "Slow down", [retryInfo("4.5s")]))
      assert.deepStrictEqual(yield* trying([patient, { pieces: [body(said("ok"), stop)] }]), [2, [4500], undefined])
      assert.deepStrictEqual(yield* trying([json(429, perMinute)]), [3, [30_000, 30_000], "rate_limited"])
      const odd = json(503, google(503, "UNAVAILABLE", "Busy", [retryInfo("soon")]))
      assert.deepStrictEqual(yield* trying([odd]), [3, [600, 1200], "provider_unavailable"])
    }))

  it.effect("R-122: the adapter does not retry a used-up daily quota or an invalid request", () =>
    Effect.gen(function*() {
      const spent = google(429, "RESOURCE_EXHAUSTED", "Quota", [quotaFailure("RequestsPerDay"), retryInfo("1s")])
      assert.deepStrictEqual(yield* trying([json(429, spent)]), [1, [], "quota_exceeded"])
      assert.deepStrictEqual(yield* trying([json(400, google(400, "INVALID_ARGUMENT", "x"))]), [
        1,
        [],
        "invalid_request"
      ])
    }))
})

describe("an error inside a Gemini reply", () => {
  const cancelled = google(499, "CANCELLED", "The operation was cancelled.")

  it.effect("R-145: an error fails the reply after the earlier events and the usage, in every framing", () =>
    Effect.gen(function*() {
      const chunks = [said("a"), chunk([call("now", {})]), usage({ promptTokenCount: 3 })]
      const list = array(...chunks, cancelled)
      const bodies = [
        body(...chunks, cancelled),
        `${body(...chunks)}${JSON.stringify(cancelled, null, 2)}\r\n`,
        `${body(...chunks)}${JSON.stringify(cancelled)}`,
        `${body(...chunks)}data: [${JSON.stringify(cancelled)}]\r\n\r\n`,
        list,
        list.slice(0, -1)
      ]
      for (const text of bodies) {
        const { error, events } = yield* outcomeOf({ pieces: Server.pieces(text, 11) }, {}, Chunks.offering("now"))
        assert.deepStrictEqual(events.map(({ _tag }) => _tag), [
          "MessageStarted",
          "TextDelta",
          "ToolCallStarted",
          "ToolCallDelta",
          "ToolCallCompleted",
          "RawChunk"
        ])
        assert.deepStrictEqual(
          [error?.reason, error?.detail, error?.status, error?.metadata],
          ["provider_unavailable", "The operation was cancelled.", 499, { code: "499", status: "CANCELLED" }]
        )
      }
    }))

  it.effect("R-145: an error after the finish reason fails the reply, and the error keeps that reason", () =>
    Effect.scoped(Effect.gen(function*() {
      const text = body(chunk([{ text: "a" }, call("now", {})], { finishReason: "STOP" })) +
        JSON.stringify(cancelled, null, 2)
      const server = yield* Server.serve(() => ({ pieces: [text] }))
      const { response } = yield* Effect.provide(Step.run([Message.user("go")]), Chunks.layer(server.url))
      const error = response.error as Adapter.AdapterError
      assert.deepStrictEqual([response.finishReason, error.reason], ["error", "provider_unavailable"])
      assert.strictEqual(error.metadata?.["finishReason"], "STOP")
    })))

  it.effect("R-145: an error with status 200, an HTML page, another JSON document, an empty body and invalid JSON fail the reply", () =>
    Effect.gen(function*() {
      const limited = google(429, "RESOURCE_EXHAUSTED", "Slow down", [retryInfo("2s")])
      const first = yield* errorOf(JSON.stringify(limited, null, 2))
      assert.deepStrictEqual([first.reason, first.retryAfterMillis], ["rate_limited", 2000])
      const page = yield* errorOf("<html><head><title>Sign in</title></head></html>")
      assert.deepStrictEqual([page.reason, page.detail], ["malformed_response", "the answer holds no reply: Sign in"])
      assert.strictEqual((yield* errorOf("")).reason, "malformed_response")
      assert.strictEqual((yield* errorOf("event: error\ndata: no route\n\n")).detail, "no route")
      assert.strictEqual((yield* errorOf("{\"message\": \"no such route\"}")).detail, "no such route")
      const odd = yield* outcomeOf(`${body(said("a"))}data: not JSON\r\n\r\n${body(stop)}`)
      assert.deepStrictEqual([odd.error?.reason, of(odd.events, "TextDelta").length], ["malformed_response", 1])
      assert.notInclude(odd.error!.message, "not JSON")
    }))

  it.effect("R-145: a chunk of any JSON shape leads to a completed message or a typed error", () =>
    Effect.gen(function*() {
      const odd: ReadonlyArray<unknown> = [null, 0, "x", [], [[]], {}, { a: null }]
      const chunks = odd.flatMap((value) => [
        { candidates: value },
        { candidates: [value] },
        {
          candidates: [{
            content: value,
            finishReason: value,
            index: 0,
            citationMetadata: value,
            logprobsResult: value
          }]
        },
        { candidates: [{ content: { parts: value } }] },
        { candidates: [{ content: { parts: [value] } }] },
        chunk([{ text: value, thought: value, thoughtSignature: value }, { inlineData: value }, { fileData: value }]),
        chunk([{ functionCall: value }, { functionResponse: value }, { executableCode: value }, { toolCall: value }]),
        chunk([call("f", value), { functionCall: { name: value, args: value, id: value } }]),
        chunk([{ functionCall: { name: "f", willContinue: true, partialArgs: value } }]),
        chunk([{
          functionCall: {
            name: "f",
            partialArgs: [value, { jsonPath: value }, { jsonPath: "$.a", stringValue: value }]
          }
        }]),
        { promptFeedback: value, usageMetadata: value, modelVersion: value, responseId: value },
        { promptFeedback: { blockReason: value } },
        { usageMetadata: { promptTokenCount: value, totalTokenCount: value } },
        chunk([], { groundingMetadata: { webSearchQueries: value }, urlContextMetadata: { urlMetadata: value } }),
        { error: value }
      ])
      for (const value of chunks) {
        const exit = yield* Effect.exit(outcomeOf(body(value as object as Readonly<Record<string, unknown>>, stop)))
        assert.isTrue(Exit.isSuccess(exit), JSON.stringify(value))
        if (Exit.isSuccess(exit) && exit.value.error === undefined) {
          assert.strictEqual(exit.value.events.at(-1)?._tag, "MessageCompleted", JSON.stringify(value))
        }
      }
    }))
})
