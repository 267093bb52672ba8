/**
 * How a reply travels: bodies cut anywhere and written in the ways that servers are known to write them, usage that is
 * told in parts, work that is linear in what arrives, and connections that end with their streams.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import type { Event } from "heddle"
import { AdapterSuite, Conformance } from "heddle/testing"
import * as Wire from "../support/anthropic.ts"
import { calls, of, outcome, request } from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"

const { args, body, call, called, closed, completed, ended, outcomeOf, reply, rich, start, stopped, text } = Wire

const textOf = (events: ReadonlyArray<Event.AdapterEvent>) => of(events, "TextCompleted").map((event) => event.text)

/** A client whose answer arrives in reads of exactly the given pieces, which no network would grant. */
const reading = (pieces: ReadonlyArray<Uint8Array>) =>
  Stream.provideService(FetchHttpClient.Fetch, () => {
    let next = 0
    const source = new ReadableStream<Uint8Array>({
      pull: (controller) => next < pieces.length ? controller.enqueue(pieces[next++]!) : controller.close()
    })
    return Promise.resolve(new Response(source))
  })

const cutInto = (pieces: ReadonlyArray<Uint8Array>) => outcome(Wire.stream("http://model.test").pipe(reading(pieces)))

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
      const parse = JSON.parse
      let parsed = 0
      JSON.parse = (source: string, reviver?: Parameters<typeof parse>[1]) => {
        parsed += source.length
        return parse(source, reviver)
      }
      const { events } = yield* cutInto(Server.pieces(answer, 64 * 1024)).pipe(
        Effect.ensuring(Effect.sync(() => {
          JSON.parse = parse
        }))
      )
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
      const parse = JSON.parse
      let parsed = 0
      JSON.parse = (source: string, reviver?: Parameters<typeof parse>[1]) => {
        parsed += source.length
        return parse(source, reviver)
      }
      const { events } = yield* cutInto(Server.pieces(answer, 64 * 1024)).pipe(
        Effect.ensuring(Effect.sync(() => {
          JSON.parse = parse
        }))
      )
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
  const waiting: Server.Answer = { pieces: [body(start(), ...text(0, "a"))], ending: "open" }

  it.effect("R-125: nothing is sent before the first pull, and each run sends a request of its own", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({ pieces: [rich] }))
      const stream = Wire.stream(server.url)
      yield* Effect.scoped(Stream.toPull(stream))
      assert.strictEqual(server.requests.length, 0)
      yield* Stream.runDrain(stream)
      yield* Stream.runDrain(stream)
      assert.strictEqual(server.requests.length, 2)
      assert.deepStrictEqual(yield* server.settled, { answered: 2, left: 0 })
    })))

  it.effect("R-144: a reader that leaves closes the socket, and the server sees it within milliseconds", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => waiting)
      const seen = yield* Stream.runCollect(Stream.take(Wire.stream(server.url), 2))
      const left = performance.now()
      assert.deepStrictEqual(seen.map(({ _tag }) => _tag), ["MessageStarted", "TextDelta"])
      assert.deepStrictEqual(yield* server.settled, { answered: 1, left: 1 })
      assert.isBelow(performance.now() - left, 250)
    })))

  it.effect("R-144: a reader that is interrupted closes the socket, before the answer and within it", () =>
    Effect.scoped(Effect.gen(function*() {
      const arrived = yield* Latch.make()
      const server = yield* Server.serve((_, index) => {
        if (index === 0) return waiting
        arrived.openUnsafe()
        return { pieces: [], ending: "open" }
      })
      const started = yield* Latch.make()
      const within = yield* Effect.forkChild(
        Stream.runForEach(Wire.stream(server.url), (event) => event._tag === "TextDelta" ? started.open : Effect.void)
      )
      yield* started.await
      yield* Fiber.interrupt(within)
      const before = yield* Effect.forkChild(Stream.runDrain(Wire.stream(server.url)))
      yield* arrived.await
      yield* Fiber.interrupt(before)
      assert.deepStrictEqual(yield* server.settled, { answered: 2, left: 2 })
    })))

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

  class ModelServer extends Context.Service<ModelServer, Server.Server>()("test/ModelServer") {}

  const served = Layer.effect(ModelServer, Server.serve(() => ({ pieces: Server.pieces(rich, 50) })))

  Conformance.register(
    AdapterSuite.answering({
      request: { ...request, tools: [{ name: "search", description: "", parameters: {} }] },
      connections: Effect.flatMap(
        ModelServer,
        (server) => Effect.map(server.settled, ({ answered }) => ({ opened: server.requests.length, closed: answered }))
      )
    }),
    Layer.provideMerge(Layer.unwrap(Effect.map(ModelServer, (server) => Wire.layer(server.url))), served),
    (name, run) => {
      it(`R-334, R-337, ${name}`, run)
    }
  )

  const refusing = Layer.effect(ModelServer, Server.serve(() => ({ status: 401, headers: {}, pieces: ["{}"] })))

  Conformance.register(
    AdapterSuite.failing({
      connections: Effect.flatMap(
        ModelServer,
        (server) => Effect.map(server.settled, ({ answered }) => ({ opened: server.requests.length, closed: answered }))
      )
    }),
    Layer.provideMerge(Layer.unwrap(Effect.map(ModelServer, (server) => Wire.layer(server.url))), refusing),
    (name, run) => {
      it(`R-122, ${name}`, run)
    }
  )
})
