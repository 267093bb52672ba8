/**
 * What is particular to Chat Completions on its way: reads and events, the ways in which servers write and end a reply,
 * and usage wherever it stands. What all protocols have in common stands in `travel.test.ts`.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type { Event } from "heddle"
import * as Connections from "../support/connections.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"

const { body, calls, chunk, finish, of, outcomeOf, said } = Chunks

const textOf = (events: ReadonlyArray<Event.AdapterEvent>) => of(events, "TextCompleted").map((event) => event.text)

const usageIn = (events: ReadonlyArray<Event.AdapterEvent>) => of(events, "MessageCompleted")[0]?.usage

const read = (pieces: ReadonlyArray<Uint8Array>) =>
  Chunks.outcome(Chunks.stream("http://model.test").pipe(Connections.reading(pieces)))

const cutInto = (text: string, size: number) => read(Server.pieces(text, size))

describe("Chat Completions bodies", () => {
  it.effect("R-125, R-349: each network read comes out as one array of events", () =>
    Effect.gen(function*() {
      const words = Array.from({ length: 30 }, (_, index) => said(String(index)))
      const [first, second] = [words.slice(0, 20), words.slice(20)].map((part) =>
        Buffer.from(body(...part).replace("data: [DONE]\n\n", ""))
      )
      const sizes: Array<number> = []
      yield* Chunks.stream("http://model.test").pipe(
        Connections.reading([first!, second!, Buffer.from(body(finish("stop")))]),
        Stream.runForEachArray((events) => Effect.sync(() => sizes.push(events.length)))
      )
      assert.deepStrictEqual(sizes, [1, 20, 10, 2])
    }))

  it.effect("R-334: the adapter skips comments, unused fields and a byte order mark", () =>
    Effect.gen(function*() {
      const noise = ": PROCESSING\n\nid: 1\nretry: 10\nevent: message\n"
      const text = `\ufeff${noise}${
        body(said("a"), said("b"), finish("stop")).replaceAll("data: ", `: x\ndata:`)
      }: bye\n\n`
      const { error, events } = yield* outcomeOf(text)
      assert.isUndefined(error)
      assert.deepStrictEqual(textOf(events), ["ab"])
    }))

  it.effect("R-334: the data lines of an event join, an empty event is ignored, and the last event needs no blank line", () =>
    Effect.gen(function*() {
      const pretty = JSON.stringify(said("a"), null, 2).split("\n").map((line) => `data: ${line}`).join("\n")
      const last = JSON.stringify(chunk({ content: "b" }, { finish_reason: "stop" }))
      for (const ends of ["\n", "\r\n", "\r"]) {
        const { error, events } = yield* cutInto(`${pretty}\n\ndata:\n\ndata: ${last}`.replaceAll("\n", ends), 1)
        assert.isUndefined(error)
        assert.deepStrictEqual(textOf(events), ["ab"])
      }
    }))

  it.effect("R-330: a finish reason completes a stream without [DONE]; a stream with neither fails", () =>
    Effect.gen(function*() {
      const withWord = yield* outcomeOf(body(said("a"), finish("stop")).replace("data: [DONE]\n\n", ""))
      assert.deepStrictEqual([textOf(withWord.events), withWord.error], [["a"], undefined])
      const without = yield* outcomeOf(body(said("a")).replace("data: [DONE]\n\n", ""))
      assert.deepStrictEqual(without.events.map(({ _tag }) => _tag), ["MessageStarted", "TextDelta"])
      assert.strictEqual(without.error?.reason, "network_error")
    }))

  it.effect("R-330: a stream that ends with its usage is complete without a finish reason or [DONE]", () =>
    Effect.gen(function*() {
      const usage = Chunks.usage({ prompt_tokens: 1, completion_tokens: 1 })
      const { error, events } = yield* outcomeOf(body(said("a"), usage).replace("data: [DONE]\n\n", ""))
      assert.deepStrictEqual([error, textOf(events)], [undefined, ["a"]])
      const first = { ...chunk({}), choices: [], prompt_filter_results: [] }
      const cut = yield* outcomeOf(body(first, said("a")).replace("data: [DONE]\n\n", ""))
      assert.strictEqual(cut.error?.reason, "network_error")
    }))

  it.effect("R-334: a message that repeats the deltas beside or before it adds nothing", () =>
    Effect.gen(function*() {
      const beside = { ...said("a"), choices: [{ index: 0, delta: { content: "a" }, message: { content: "a" } }] }
      const after = { ...said("a"), choices: [{ index: 0, message: { content: "ab" }, finish_reason: "stop" }] }
      const { events } = yield* outcomeOf(body(beside, said("b"), after))
      assert.deepStrictEqual(textOf(events), ["ab"])
    }))

  it.effect("R-349: the adapter reads a whole JSON reply instead of a stream", () =>
    Effect.gen(function*() {
      const message = {
        role: "assistant",
        content: "Hi",
        tool_calls: [{ id: "a", function: { name: "now", arguments: {} } }]
      }
      const whole = { id: "1", choices: [{ index: 0, message, finish_reason: "stop" }], usage: { prompt_tokens: 3 } }
      const { error, events } = yield* outcomeOf({
        headers: { "content-type": "application/json" },
        pieces: [JSON.stringify(whole, null, 2)]
      })
      assert.isUndefined(error)
      assert.deepStrictEqual(textOf(events), ["Hi"])
      assert.deepStrictEqual(calls(events), [{ id: "a", name: "now", arguments: {} }])
      assert.deepInclude(usageIn(events) as object, { inputTokens: 3 })
    }))
})

describe("the usage of a Chat Completions reply", () => {
  const usageOf = (...chunks: ReadonlyArray<Readonly<Record<string, unknown>>>) =>
    Effect.map(outcomeOf(body(said("x"), ...chunks)), ({ events }) => usageIn(events))

  it.effect("R-303, R-350: usage counts have common names, and unknown counts are kept", () =>
    Effect.gen(function*() {
      const found = yield* usageOf(
        finish("stop"),
        Chunks.usage({
          prompt_tokens: 100,
          completion_tokens: 20,
          total_tokens: 120,
          prompt_tokens_details: { cached_tokens: 64, audio_tokens: 1, cache_write_tokens: 3 },
          completion_tokens_details: { reasoning_tokens: 8 },
          cost: 0.25,
          queue_time: 0.5
        })
      )
      assert.deepInclude(found as object, {
        inputTokens: 100,
        outputTokens: 20,
        totalTokens: 120,
        cachedInputTokens: 64,
        cacheWriteInputTokens: 3,
        reasoningTokens: 8,
        totalCost: 0.25,
        extra: { queue_time: 0.5, prompt_tokens_details: { audio_tokens: 1 } }
      })
    }))

  it.effect("R-350: the latest count replaces the earlier one at every position; a missing or zero count changes nothing", () =>
    Effect.gen(function*() {
      const found = yield* usageOf(
        { ...chunk({}), x_groq: { usage: { prompt_tokens: 10, completion_tokens: 0 } } },
        { ...finish("stop"), usage: { completion_tokens: 5 } },
        Chunks.usage({ prompt_tokens: 0, completion_tokens: 7 }),
        { ...chunk({}), usage: null }
      )
      assert.deepInclude(found as object, {
        inputTokens: 10,
        outputTokens: 7,
        totalTokens: 17,
        cachedInputTokens: null
      })
    }))
})
