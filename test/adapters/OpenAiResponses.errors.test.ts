/**
 * Errors inside a reply of Responses, replies that stop, and answers that are no replies. HTTP errors and retries are the
 * same for all protocols and stand in `errors.test.ts`.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { type Adapter, Chat, Tool } from "heddle"
import * as Adapters from "../support/adapters.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Replies from "../support/openAiResponses.ts"
import * as Server from "../support/server.ts"

const { added, args, body, call, completed, created, done, event, outcomeOf, response, said, usage } = Replies

const { json } = Adapters

const errorOf = (answer: string | Server.Answer) => Effect.map(outcomeOf(answer), ({ error }) => error!)

describe("an error inside a Responses reply", () => {
  const quota = { type: "insufficient_quota", code: "insufficient_quota", message: "You exceeded your quota." }
  const failed = (error: unknown, rest: Replies.Json = {}) =>
    event("failed", { response: response({ status: "failed", error, ...rest }) })

  it.effect("R-145: an error event and the failed event after it give a single error, after the text and the usage", () =>
    Effect.gen(function*() {
      const { error, events } = yield* outcomeOf(body(
        created,
        said("a"),
        { type: "error", sequence_number: 2, error: quota },
        said("b"),
        failed({ code: "other", message: "other" }, { usage })
      ))
      assert.deepStrictEqual(events.map(({ _tag }) => _tag), ["MessageStarted", "TextDelta", "RawChunk"])
      assert.deepInclude((Chunks.of(events, "RawChunk")[0]!.chunk as { usage: object }).usage, { inputTokens: 12 })
      assert.deepInclude({ ...error }, { reason: "quota_exceeded", detail: "You exceeded your quota." })
      assert.deepStrictEqual(error?.metadata, {
        type: "insufficient_quota",
        code: "insufficient_quota",
        finishReason: "failed"
      })
      assert.deepStrictEqual(error?.cause, quota)
    }))

  it.effect("R-145: an error at every position fails the reply with its reason and detail", () =>
    Effect.gen(function*() {
      const start = body(created, said("a"))
      const errors: ReadonlyArray<readonly [string, Adapter.AdapterError["reason"], string]> = [
        [body({ type: "error", code: "rate_limit_exceeded", message: "wait", param: null }), "rate_limited", "wait"],
        [body(failed({ code: "server_error", message: "oops" })), "provider_unavailable", "oops"],
        [
          body(failed({ code: "server_error", message: "oops" }, { status: "completed" })),
          "provider_unavailable",
          "oops"
        ],
        [body(failed(null, { status: "completed" })), "unknown", "the provider says that the reply failed"],
        [body(failed(null)), "unknown", "the provider says that the reply failed"],
        [
          body(completed({ status: "failed", error: { code: "server_error", message: "oops" } })),
          "provider_unavailable",
          "oops"
        ],
        [
          body(event("in_progress", { error: { code: "server_error", message: "oops" } })),
          "provider_unavailable",
          "oops"
        ],
        ["event: error\ndata: {\"message\":\"no\",\"code\":\"invalid_prompt\"}\n\n", "content_filter", "no"],
        ["event: error\ndata: it broke\n\n", "unknown", "it broke"],
        ["{\"error\":{\"message\":\"cut\",\"code\":503}}", "provider_unavailable", "cut"]
      ]
      for (const [text, reason, detail] of errors) {
        const { error, events } = yield* outcomeOf(start + text)
        assert.deepStrictEqual([error?.reason, error?.detail], [reason, detail], text)
        assert.deepStrictEqual(events.map(({ _tag }) => _tag), ["MessageStarted", "TextDelta"], text)
      }
    }))

  it.effect("R-145: a run whose reply breaks off with an error fails and runs none of its calls", () =>
    Effect.scoped(Effect.gen(function*() {
      let started = 0
      const now = Tool.make("now", { parameters: {}, handler: () => Effect.sync(() => ++started) })
      const reply = body(created, done(0, call("a", "now", "{}")), { type: "error", error: quota })
      const server = yield* Server.serve(() => ({ pieces: [reply] }))
      const result = yield* Chat.run("Go", { tools: [now] }).pipe(Effect.provide(Replies.layer(server.url)))
      assert.strictEqual(result.outcome._tag, "Failed")
      assert.strictEqual(started, 0)
    })))
})

describe("invalid and incomplete Responses replies", () => {
  it.effect("R-355: a reply without its final event fails as cut, wherever it stops, and [DONE] is not a final event", () =>
    Effect.gen(function*() {
      const whole = [created, added(0, call("a", "now")), args(0, "{}"), done(0, call("a", "now", "{}"))]
      for (let count = 1; count <= whole.length; count++) {
        for (const end of ["", "data: [DONE]\n\n", "{\"note\":1}"]) {
          const { error, events } = yield* outcomeOf(body(...whole.slice(0, count)) + end)
          assert.strictEqual(error?.reason, "network_error", `${count} events`)
          assert.deepStrictEqual(Chunks.of(events, "MessageCompleted"), [])
        }
      }
    }))

  it.effect("R-122: truncated JSON, an HTML page, an empty body and a cut document fail the reply, and the error names the problem", () =>
    Effect.gen(function*() {
      const bodies: ReadonlyArray<readonly [string, RegExp]> = [
        [body(created) + "data: {\"type\":\"response.comp\n\n", /not a JSON object \(22 characters\)/],
        ["data: [1]\n\n", /not a JSON object/],
        ["<html><head><title>Bad gateway</title></head></html>", /holds no reply: Bad gateway/],
        ["", /holds no reply/],
        ["{\"output\":[", /holds no reply/]
      ]
      for (const [text, detail] of bodies) {
        const error = yield* errorOf(text)
        assert.deepStrictEqual(error.reason, "malformed_response", text)
        assert.match(error.message, detail)
      }
    }))

  it.effect("N-24: a background reply without output fails as an unsupported feature; a background reply that streams is read", () =>
    Effect.gen(function*() {
      for (const status of ["queued", "in_progress"]) {
        const { error, events } = yield* outcomeOf({
          headers: { "content-type": "application/json" },
          pieces: [JSON.stringify(response({ status, background: true }))]
        }, { options: { background: true } })
        assert.deepStrictEqual([error?.reason, error?.isRetryable], ["unsupported_feature", false])
        assert.match(
          error?.detail ?? "",
          new RegExp(`in the background.*the reply is ${status} \\(resp_1\\). Leave out the option background`)
        )
        assert.deepStrictEqual(Chunks.of(events, "MessageCompleted"), [])
      }
      const streamed = yield* outcomeOf(
        body(event("queued", { response: response({ status: "queued" }) }), created, Replies.said("Hi"), completed()),
        { options: { background: true } }
      )
      assert.deepStrictEqual([streamed.error, Replies.last(streamed.events).message.content], [undefined, "Hi"])
    }))

  it.effect("R-349: the adapter reads a whole JSON reply instead of a stream", () =>
    Effect.gen(function*() {
      const output = [
        { type: "reasoning", id: "rs_1", summary: [{ type: "summary_text", text: "hm" }] },
        Replies.message("Hi"),
        call("a", "now", "{}")
      ]
      const { error, events } = yield* outcomeOf(json(200, JSON.stringify(response({ output, usage }), null, 2)))
      assert.isUndefined(error)
      assert.deepStrictEqual(events.map(({ _tag }) => _tag), [
        "MessageStarted",
        "ReasoningDelta",
        "TextDelta",
        "ToolCallStarted",
        "ToolCallDelta",
        "ToolCallCompleted",
        "TextCompleted",
        "MessageCompleted"
      ])
      assert.deepInclude(Replies.last(events), { finishReason: "tool_calls", rawFinishReason: "completed" })
      const failed = yield* errorOf(json(200, response({ status: "failed", error: { message: "no", code: "x" } })))
      assert.strictEqual(failed.detail, "no")
      const refused = yield* errorOf(json(200, { error: { message: "filtered", code: "content_filter" } }))
      assert.strictEqual(refused.reason, "content_filter")
    }))

  it.effect("R-122: invalid UTF-8 fails the reply", () =>
    Effect.gen(function*() {
      const [before, after] = body(done(0, call("a", "now", "{\"q\":\"|\"}")), completed()).split("|")
      const { error, events } = yield* outcomeOf({
        pieces: [Buffer.from(before!), Buffer.from([0xff, 0xfe]), Buffer.from(after!)]
      })
      assert.strictEqual(error?.reason, "malformed_response")
      assert.deepStrictEqual(Chunks.of(events, "MessageCompleted"), [])
    }))
})
