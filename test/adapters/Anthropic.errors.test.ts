/**
 * Errors inside a reply of Anthropic's. HTTP errors and retries are the same for all protocols and stand in
 * `errors.test.ts`.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type { Adapter } from "heddle"
import type { Anthropic } from "heddle/adapters"
import * as Adapters from "../support/adapters.ts"
import * as Wire from "../support/anthropic.ts"
import { of } from "../support/openAiChat.ts"
import type * as Server from "../support/server.ts"

const { body, outcomeOf, reply, start, text } = Wire

const said = (type: string, message: string, requestId: string | null = null) => ({
  type: "error",
  error: { type, message, details: null },
  request_id: requestId
})

const { json } = Adapters

const errorOf = (answer: string | Server.Answer, options: Partial<Anthropic.Options> = {}) =>
  Effect.map(outcomeOf(answer, options), ({ error }) => error!)

describe("an error inside an Anthropic reply", () => {
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

  it.effect("R-145: an error event fails the reply after the earlier events; the usage and the request id are kept", () =>
    Effect.gen(function*() {
      for (const [type, reason] of kinds) {
        const { error, events } = yield* outcomeOf(body(start(), ...text(0, "a"), said(type, "no", "req_3")))
        assert.deepStrictEqual(events.map(({ _tag }) => _tag), ["MessageStarted", "TextDelta", "RawChunk"])
        const { usage } = of(events, "RawChunk")[0]!.chunk as { usage: object }
        assert.deepInclude(usage, { inputTokens: 10, outputTokens: 1 })
        assert.deepInclude({ ...error }, { reason, detail: "no", requestId: "req_3", metadata: { type } })
      }
    }))

  it.effect("R-145: an error is recognised as the first event, without an event name, by its event name alone, and as a bare document", () =>
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

  it.effect("R-145: after an error event, the reply emits no completed tool call and no message", () =>
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

  it.effect("R-145: an event of invalid JSON or UTF-8 fails the reply; the error does not quote the event", () =>
    Effect.gen(function*() {
      const broken = yield* errorOf(`${body(start())}data: {"type":"content_blo\n\n`)
      assert.deepStrictEqual([broken.reason, broken.message.includes("content_blo")], ["malformed_response", false])
      assert.strictEqual((yield* errorOf("data: [1]\n\n")).reason, "malformed_response")
      const invalid = Buffer.concat([Buffer.from("data: {\"type\":\"ping\",\"x\":\""), Buffer.from([0xc3, 0x28, 0xff])])
      const bytes = yield* errorOf({ pieces: [body(start()), invalid, `"}\n\n${reply([text(0, "a")], "end_turn")}`] })
      assert.strictEqual(bytes.reason, "malformed_response")
    }))
})

describe("retries of an Anthropic request", () => {
  it.effect("R-122: the adapter does not retry a request after the reply has emitted events", () =>
    Effect.gen(function*() {
      const answer = { pieces: [body(start(), ...text(0, "a"), said("overloaded_error", "Overloaded"))] }
      const found = yield* Adapters.trying(Adapters.anthropic, () => answer)
      assert.deepStrictEqual([found.requests, found.error?.isRetryable], [1, true])
    }))
})
