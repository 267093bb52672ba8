/**
 * What is particular to Anthropic's replies on their way: whole replies in place of streams, usage that comes in parts,
 * and pings. What all protocols have in common stands in `travel.test.ts`.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type { Event } from "heddle"
import * as Wire from "../support/anthropic.ts"
import * as Connections from "../support/connections.ts"
import { calls, of, outcome } from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"
import { parsing } from "../support/work.ts"

const { args, body, call, closed, completed, ended, outcomeOf, start, stopped, text } = Wire

const textOf = (events: ReadonlyArray<Event.AdapterEvent>) => of(events, "TextCompleted").map((event) => event.text)

const cutInto = (pieces: ReadonlyArray<Uint8Array>) =>
  outcome(Wire.stream("http://model.test").pipe(Connections.reading(pieces)))

describe("Anthropic bodies", () => {
  it.effect("R-349: the adapter reads a whole JSON reply instead of a stream", () =>
    Effect.gen(function*() {
      const whole = {
        id: "msg_1",
        type: "message",
        role: "assistant",
        model: "test-model",
        content: [
          { type: "thinking", thinking: "hm", signature: "sig" },
          { type: "text", text: "Hi" },
          { type: "tool_use", id: "a", name: "now", input: {} },
          { type: "tool_use", id: "b", name: "read", input: { path: "x" } }
        ],
        stop_reason: "tool_use",
        usage: { input_tokens: 3, output_tokens: 4 }
      }
      const answer = (value: unknown): Server.Answer => ({
        headers: { "content-type": "application/json" },
        pieces: [JSON.stringify(value, null, 2)]
      })
      const { error, events } = yield* outcomeOf(answer(whole))
      assert.isUndefined(error)
      assert.deepStrictEqual(textOf(events), ["Hi"])
      assert.deepStrictEqual(calls(events), [
        { id: "a", name: "now", arguments: {} },
        { id: "b", name: "read", arguments: { path: "x" } }
      ])
      assert.deepInclude(completed(events).usage as object, { inputTokens: 3, outputTokens: 4 })
      assert.deepInclude(completed(events).message.reasoning?.[0], { text: "hm", signature: "sig" })
      const cut = yield* outcomeOf(answer({ ...whole, stop_reason: "max_tokens" }))
      assert.deepStrictEqual(calls(cut.events).at(-1), {
        id: "b",
        name: "read",
        arguments: {},
        argumentsLost: "truncated"
      })
      const odd = { ...whole, content: [{ type: "tool_use", id: "a", name: "now", input: [1] }, null, {}, { type: 1 }] }
      assert.deepStrictEqual(calls((yield* outcomeOf(answer(odd))).events), [
        { id: "a", name: "now", arguments: {}, argumentsLost: "not_an_object" }
      ])
    }))

  it.effect("R-145: an event of any JSON shape leaves the reply complete and its text whole", () =>
    Effect.gen(function*() {
      const odd: ReadonlyArray<Readonly<Record<string, unknown>>> = [
        { type: 1 },
        { type: "message_start" },
        { type: "message_start", message: [] },
        { type: "content_block_start", index: {}, content_block: { type: "text", text: 5, citations: 6 } },
        { type: "content_block_start", index: 0 },
        { type: "content_block_start", index: 0, content_block: { type: "thinking", thinking: {}, signature: 1 } },
        { type: "content_block_delta", index: 0, delta: null },
        { type: "content_block_delta", index: 0, delta: { type: "constructor" } },
        { type: "content_block_delta", index: 0, delta: { type: "citations_delta", citation: 1 } },
        { type: "content_block_stop", index: "toString" },
        { type: "message_delta" },
        { type: "message_delta", delta: { stop_reason: {}, container: 3 }, usage: { output_tokens: "many" } },
        { type: "something_new", error: null }
      ]
      for (const value of odd) {
        const { error, events } = yield* outcomeOf(body(start(), value, ...text(9, "x"), ...ended("end_turn")))
        assert.isUndefined(error, JSON.stringify(value))
        assert.deepStrictEqual(textOf(events), ["x"], JSON.stringify(value))
      }
    }))
})

describe("the usage of a reply", () => {
  const usageOf = (
    first: Readonly<Record<string, unknown>>,
    ...later: ReadonlyArray<Readonly<Record<string, unknown>>>
  ) =>
    Effect.map(
      outcomeOf(body(
        start({ usage: first }),
        ...later.map((usage) => stopped("end_turn", {}, usage)),
        Wire.stop
      )),
      ({ events }) => completed(events).usage as object
    )

  it.effect("R-303, R-350: usage counts have common names, unknown counts are kept, and the total includes the cache", () =>
    Effect.gen(function*() {
      const found = yield* usageOf({
        input_tokens: 100,
        cache_read_input_tokens: 64,
        cache_creation_input_tokens: 3,
        cache_creation: { ephemeral_5m_input_tokens: 3 },
        output_tokens: 1,
        service_tier: "standard"
      }, {
        output_tokens: 20,
        output_tokens_details: { thinking_tokens: 8 },
        server_tool_use: { web_search_requests: 2 }
      })
      assert.deepInclude(found, {
        inputTokens: 100,
        outputTokens: 20,
        cachedInputTokens: 64,
        cacheWriteInputTokens: 3,
        reasoningTokens: 8,
        totalTokens: 187,
        toolUsage: { web_search_requests: 2 },
        extra: { cache_creation: { ephemeral_5m_input_tokens: 3 }, service_tier: "standard" }
      })
    }))

  it.effect("I-16, R-350: later usage replaces the earlier counts and is never added to them", () =>
    Effect.gen(function*() {
      const found = yield* usageOf(
        { input_tokens: 10, output_tokens: 0, cache_read_input_tokens: 0 },
        { output_tokens: 5 },
        { input_tokens: 0, output_tokens: 7 }
      )
      assert.deepInclude(found, { inputTokens: 10, outputTokens: 7, totalTokens: 17, cachedInputTokens: 0 })
      const corrected = yield* usageOf({ input_tokens: 10, output_tokens: 1 }, { input_tokens: 25, output_tokens: 2 })
      assert.deepInclude(corrected, { inputTokens: 25, outputTokens: 2, totalTokens: 27, cachedInputTokens: null })
    }))
})

describe("the work and memory of a reply", () => {
  it.effect("R-353: the adapter parses each of 64 calls with interleaved fragments once", () =>
    Effect.gen(function*() {
      const indices = Array.from({ length: 64 }, (_, index) => index)
      const whole = JSON.stringify({ text: "y".repeat(500) })
      const answer = body(
        start(),
        ...indices.map((index) => call(index, `c${index}`, "note")),
        ...[...whole].flatMap((letter) => indices.map((index) => args(index, letter))),
        ...indices.map(closed),
        ...ended("tool_use")
      )
      const [{ events }, parsed] = yield* parsing(cutInto(Server.pieces(answer, 64 * 1024)))
      const found = of(events, "ToolCallCompleted")
      assert.deepStrictEqual(found.map(({ rawArguments }) => rawArguments), indices.map(() => whole))
      assert.isAtMost(parsed, answer.length + 2 * indices.length * whole.length)
    }))

  it.effect("R-353: an event over the length limit fails the reply; pings do not", () =>
    Effect.gen(function*() {
      const options = { maxEventLength: 1000 }
      const endless = `data: ${"x".repeat(5000)}`
      const begun = body(start(), ...text(0, "a"))
      for (const piece of [endless, `${endless}\n\n`]) {
        const { error, events } = yield* outcomeOf({ pieces: [begun, piece] }, options)
        assert.strictEqual(error?.reason, "malformed_response")
        assert.strictEqual(of(events, "TextDelta").length, 1)
      }
      const noise = `: waiting\n\n${body(Wire.ping)}`.repeat(20_000)
      const patient = yield* outcomeOf({ pieces: [begun, noise, body(...ended("end_turn"))] }, options)
      assert.deepStrictEqual([patient.error, textOf(patient.events)], [undefined, ["a"]])
    }))
})
