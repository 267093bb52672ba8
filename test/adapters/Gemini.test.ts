/**
 * What a streamed reply says: text, thoughts, images, and the finish word. The replies come from a server on the
 * loopback interface, over the real HTTP client.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Collector, type Event, Message, type Response } from "heddle"
import { body, call, chunk, finish, of, outcomeOf, request, said, thought } from "../support/gemini.ts"

const tagsOf = (events: ReadonlyArray<Event.AdapterEvent>) => events.map((event) => event._tag)

const completed = (events: ReadonlyArray<Event.AdapterEvent>) => of(events, "MessageCompleted")[0]!

/** What the events fold into. */
const responseOf = (events: ReadonlyArray<Event.AdapterEvent>) =>
  Collector.toResponse(Collector.applyAll(Collector.initial(), events))

const stop = finish("STOP")

describe("the content of a Gemini reply", () => {
  it.effect("R-334, R-349: the reply streams and joins its text, and a last chunk without parts ends the reply", () =>
    Effect.gen(function*() {
      const { error, events } = yield* outcomeOf(body(said("Hel"), said(""), chunk([]), said("lo"), stop))
      assert.isUndefined(error)
      assert.deepStrictEqual(events, [
        { _tag: "MessageStarted", message: Message.assistant("") },
        { _tag: "TextDelta", id: null, delta: "Hel" },
        { _tag: "TextDelta", id: null, delta: "lo" },
        { _tag: "TextCompleted", id: null, text: "Hello" },
        {
          _tag: "MessageCompleted",
          message: { ...Message.assistant("Hello"), finishReason: "stop" },
          finishReason: "stop",
          rawFinishReason: "STOP",
          responseId: "resp-1",
          model: "test-model"
        }
      ])
    }))

  it.effect("R-334: thoughts are reasoning at every position, and never part of the text", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(thought("a"), said("Red"), thought("b"), said("!"), stop))
      assert.deepStrictEqual(of(events, "ReasoningDelta").map(({ delta }) => delta), ["a", "b"])
      assert.deepStrictEqual(of(events, "TextCompleted").map(({ text }) => text), ["Red!"])
      assert.deepStrictEqual(completed(events).message.reasoning, [{ type: "reasoning", text: "ab" }])
    }))

  it.effect("R-333: content without parts and a candidate without content give a message without text or calls", () =>
    Effect.gen(function*() {
      for (const candidate of [{ content: { role: "model" } }, { content: {} }, {}]) {
        const { error, events } = yield* outcomeOf(body({ candidates: [{ ...candidate, finishReason: "MAX_TOKENS" }] }))
        assert.isUndefined(error)
        assert.deepStrictEqual(tagsOf(events), ["MessageStarted", "MessageCompleted"])
        assert.strictEqual(completed(events).finishReason, "length")
        assert.isNull(responseOf(events).outputText)
      }
    }))

  it.effect("R-334: the adapter reads only the first of several candidates", () =>
    Effect.gen(function*() {
      const both = { candidates: [{ content: { parts: [{ text: "b" }] }, index: 1 }, ...said("a")["candidates"] as []] }
      const { events } = yield* outcomeOf(body(both, stop))
      assert.deepStrictEqual(of(events, "TextCompleted").map(({ text }) => text), ["a"])
    }))

  it.effect("R-334: generated images and files are parts of the message content", () =>
    Effect.gen(function*() {
      const image = { inlineData: { mimeType: "image/png", data: "AAAA" } }
      const file = { fileData: { mimeType: "video/mp4", fileUri: "gs://b/c.mp4" } }
      const sketch = { ...image, thought: true }
      const { events } = yield* outcomeOf(body(chunk([sketch]), chunk([{ text: "Here:" }, image, file]), stop))
      assert.deepStrictEqual(completed(events).message.content, [
        { type: "text", text: "Here:" },
        { type: "image", mediaType: "image/png", data: "AAAA" },
        { type: "file", mediaType: "video/mp4", url: "gs://b/c.mp4" }
      ])
    }))

  it.effect("R-358: the metadata gathers citations and log probabilities, and keeps the latest value of other fields", () =>
    Effect.gen(function*() {
      const first = { citationSources: [{ uri: "a" }] }
      const second = { citationSources: [{ uri: "a" }, { uri: "b" }] }
      const probable = (token: string) => ({ logprobsResult: { chosenCandidates: [{ token }] } })
      const { events } = yield* outcomeOf(body(
        chunk([{ text: "x" }], { citationMetadata: first, avgLogprobs: -2, ...probable("x") }),
        chunk([{ text: "x" }], { citationMetadata: second, avgLogprobs: -1, ...probable("x") }),
        stop
      ))
      assert.deepStrictEqual(completed(events).metadata?.["gemini"], {
        citationMetadata: { citationSources: [{ uri: "a" }, { uri: "b" }] },
        avgLogprobs: -1,
        logprobsResult: { chosenCandidates: [{ token: "x" }, { token: "x" }] }
      })
    }))
})

describe("the finish reason of a Gemini reply", () => {
  it.effect("R-347, R-348, I-15: each finish reason is mapped, and the original is kept", () =>
    Effect.gen(function*() {
      const words: ReadonlyArray<readonly [word: string, reason: Response.FinishReason]> = [
        ["STOP", "stop"],
        ["MAX_TOKENS", "length"],
        ["CONTINUATION", "length"],
        ["SAFETY", "content_filter"],
        ["RECITATION", "content_filter"],
        ["BLOCKLIST", "content_filter"],
        ["PROHIBITED_CONTENT", "content_filter"],
        ["SPII", "content_filter"],
        ["MODEL_ARMOR", "content_filter"],
        ["IMAGE_SAFETY", "content_filter"],
        ["OTHER", "other"],
        ["IMAGE_OTHER", "other"],
        ["MALFORMED_FUNCTION_CALL", "error"],
        ["UNEXPECTED_TOOL_CALL", "error"],
        ["NEVER_HEARD_OF", "error"],
        ["constructor", "error"]
      ]
      for (const [word, reason] of words) {
        const { error, events } = yield* outcomeOf(body(said("x"), finish(word)))
        assert.isUndefined(error)
        const { finishReason, message, rawFinishReason } = completed(events)
        assert.deepStrictEqual([finishReason, message.finishReason, rawFinishReason], [reason, reason, word])
      }
    }))

  it.effect("M-40: the finish reason OTHER ends the reply as other, and its message is part of the metadata", () =>
    Effect.gen(function*() {
      const finishMessage = "The reply was stopped for reasons of its own."
      const { error, events } = yield* outcomeOf(
        body(said("so far"), chunk([], { finishReason: "OTHER", finishMessage }))
      )
      assert.isUndefined(error)
      const { finishReason, metadata, rawFinishReason } = completed(events)
      assert.deepStrictEqual([finishReason, rawFinishReason], ["other", "OTHER"])
      assert.deepStrictEqual(metadata?.["gemini"], { finishMessage })
      assert.deepStrictEqual(responseOf(events).outputText, "so far")
    }))

  it.effect("R-344, I-08: STOP means tool_calls with a call of the caller's tools, and stop otherwise", () =>
    Effect.gen(function*() {
      const calling = yield* outcomeOf(body(thought("t"), said("hm"), chunk([call("a")], { finishReason: "STOP" })))
      assert.deepStrictEqual([completed(calling.events).finishReason, completed(calling.events).rawFinishReason], [
        "tool_calls",
        "STOP"
      ])
      const hosted = yield* outcomeOf(body(chunk([{ executableCode: { code: "1" } }], { finishReason: "STOP" })))
      assert.strictEqual(completed(hosted.events).finishReason, "stop")
    }))

  it.effect("R-346: the last finish reason counts, and the adapter still reads text after a finish reason", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(
        body(
          chunk([{ text: "a" }], { finishReason: "STOP" }),
          said("b"),
          chunk([], { finishReason: "SAFETY" }),
          said("c")
        )
      )
      assert.strictEqual(responseOf(events).outputText, "abc")
      assert.strictEqual(completed(events).finishReason, "content_filter")
    }))

  it.effect("R-347: a blocked prompt ends the reply as content_filter, although no candidate comes", () =>
    Effect.gen(function*() {
      const promptFeedback = { blockReason: "SAFETY", safetyRatings: [{ category: "x", probability: "HIGH" }] }
      const { error, events } = yield* outcomeOf(body({ promptFeedback }))
      assert.isUndefined(error)
      const { finishReason, metadata, rawFinishReason } = completed(events)
      assert.deepStrictEqual([finishReason, rawFinishReason], ["content_filter", undefined])
      assert.deepStrictEqual(metadata, { blockReason: "SAFETY", gemini: { promptFeedback } })
    }))

  it.effect("R-330: a reply without a finish reason fails, whatever it contains", () =>
    Effect.gen(function*() {
      for (const text of [body(said("a")), body(chunk([call("a")])), body({ usageMetadata: {} }), "{\"candidates\":"]) {
        const { error, events } = yield* outcomeOf(text, {}, request)
        assert.strictEqual(error?.reason, "network_error", text)
        assert.deepStrictEqual(of(events, "MessageCompleted"), [])
        assert.deepStrictEqual(of(events, "ToolCallCompleted"), [])
      }
    }))
})
