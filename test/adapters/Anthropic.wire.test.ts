/**
 * How a reply travels: bodies cut anywhere and written in the ways that servers are known to write them, usage that is
 * told in parts, work that is linear in what arrives, and connections that end with their streams.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type { Event } from "heddle"
import { AdapterSuite, Conformance } from "heddle/testing"
import * as Wire from "../support/anthropic.ts"
import * as Connections from "../support/connections.ts"
import { calls, of, outcome, request } from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"
import { parsing } from "../support/work.ts"

const { args, body, call, called, closed, completed, ended, outcomeOf, reply, rich, start, stopped, text } = Wire

const textOf = (events: ReadonlyArray<Event.AdapterEvent>) => of(events, "TextCompleted").map((event) => event.text)

const cutInto = (pieces: ReadonlyArray<Uint8Array>) =>
  outcome(Wire.stream("http://model.test").pipe(Connections.reading(pieces)))

describe("reads", () => {
  it.effect("R-349: a body that is written in pieces of any size says the same, over HTTP", () =>
    Effect.gen(function*() {
      const expected = yield* outcomeOf(rich)
      assert.strictEqual(calls(expected.events).length, 2)
      for (const size of [1, 7, 100]) {
        assert.deepStrictEqual(yield* outcomeOf({ pieces: Server.pieces(rich, size) }), expected)
      }
    }))

  it.effect.prop(
    "R-349: a body cut anywhere, with any line ends, says the same",
    {
      cuts: Schema.Array(Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 60 }))),
      ends: Schema.Literals(["\n", "\r\n", "\r"])
    },
    ({ cuts, ends }) =>
      Effect.gen(function*() {
        const expected = yield* outcomeOf(rich)
        const bytes = Buffer.from(rich.replaceAll("\n", ends))
        const pieces: Array<Uint8Array> = []
        let position = 0
        for (const size of [...cuts, 1, 2, 3, 5]) pieces.push(bytes.subarray(position, position += size))
        pieces.push(bytes.subarray(position))
        assert.deepStrictEqual(yield* cutInto(pieces), expected)
      }),
    { arbitrary: { runs: 60, size: 40 }, timeout: 30_000 }
  )

  it.effect("R-349: a server that answers with a whole reply instead of a stream is understood", () =>
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
      assert.deepInclude(completed(events).metadata?.["usage"] as object, { inputTokens: 3, outputTokens: 4 })
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

  it.effect("R-145: whatever JSON an event holds, the reply ends in a message or a typed error", () =>
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

describe("usage", () => {
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
      ({ events }) => completed(events).metadata?.["usage"] as object
    )

  it.effect("R-303, R-350: figures are named alike, unknown ones are kept, and the total counts the cache", () =>
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

  it.effect("I-16, R-350: what is told at the end replaces what was told before, and is never added to it", () =>
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

describe("work", () => {
  it.effect("R-353: 50,000 fragments of one byte are parsed once each, and their text as often as one would be", () =>
    Effect.gen(function*() {
      const whole = JSON.stringify({ text: "x".repeat(49_989) })
      assert.strictEqual(whole.length, 50_000)
      const answer = reply([called(0, "a", "note", ...whole)], "tool_use")
      const [{ events }, parsed] = yield* parsing(cutInto(Server.pieces(answer, 64 * 1024)))
      assert.strictEqual(of(events, "ToolCallDelta").length, 50_000)
      assert.strictEqual(of(events, "ToolCallCompleted")[0]!.rawArguments, whole)
      assert.isAtMost(parsed, answer.length + 2 * whole.length)
    }))

  it.effect("R-353: 64 calls whose fragments take turns are each parsed once", () =>
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

  it.effect("R-353: an event longer than allowed ends the reply instead of filling the memory, pings do not", () =>
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

describe("connections", () => {
  const begun = body(start(), ...text(0, "a"))

  it.effect("R-125: nothing is sent before the first pull, and each run sends a request of its own", () =>
    Connections.sentWhenPulled(Wire.stream, rich))

  it.effect("R-144: a reader that leaves closes the socket, and the server sees it within milliseconds", () =>
    Connections.closedByLeaving(Wire.stream, begun, 250))

  it.effect("R-144: a reader that is interrupted closes the socket, before the answer and within it", () =>
    Connections.closedByInterruption(Wire.stream, begun))

  it.effect("R-355: a connection that is lost in the middle of a call fails the reply, one lost after its end does not", () =>
    Effect.gen(function*() {
      const cut = body(start(), ...text(0, "a"), call(1, "a", "search"), args(1, "{\"q\":"))
      const dropped = yield* outcomeOf({ pieces: [cut], ending: "drop" })
      assert.strictEqual(dropped.error?.reason, "network_error")
      assert.deepStrictEqual(dropped.events.map(({ _tag }) => _tag).slice(0, 4), [
        "MessageStarted",
        "TextDelta",
        "ToolCallStarted",
        "ToolCallDelta"
      ])
      assert.deepStrictEqual(of(dropped.events, "ToolCallCompleted"), [])
      const complete = yield* outcomeOf({ pieces: [reply([text(0, "a")], "end_turn")], ending: "drop" })
      assert.deepStrictEqual([textOf(complete.events), complete.error], [["a"], undefined])
    }))

  Conformance.register(
    AdapterSuite.answering({
      request: { ...request, tools: [{ name: "search", description: "", parameters: {} }] },
      connections: Connections.counted
    }),
    Connections.served(Wire.layer, { pieces: Server.pieces(rich, 50) }),
    (name, run) => {
      it(`R-334, R-337, ${name}`, run)
    }
  )

  Conformance.register(
    AdapterSuite.failing({ connections: Connections.counted }),
    Connections.served(Wire.layer, { status: 401, headers: {}, pieces: ["{}"] }),
    (name, run) => {
      it(`R-122, ${name}`, run)
    }
  )
})
