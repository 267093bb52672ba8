/**
 * Content of the model that is no plain text: an answer that the server writes as a JSON value. Each reply is read as a
 * stream and as a document, and sent back with the next request.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { type Adapter, type Event, Message } from "heddle"
import type { OpenAiChat } from "heddle/adapters"
import * as Chunks from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"

const { body, chunk, finish, of } = Chunks

type Json = Readonly<Record<string, unknown>>
type Options = Partial<OpenAiChat.Options>

/** A whole reply in one document. */
const document = (message: Json, finish_reason = "stop"): Server.Answer => ({
  headers: { "content-type": "application/json" },
  pieces: [JSON.stringify({
    id: "chatcmpl-1",
    object: "chat.completion",
    model: "test-model",
    choices: [{ index: 0, message: { role: "assistant", ...message }, finish_reason }]
  })]
})

const completed = (events: ReadonlyArray<Event.AdapterEvent>) => of(events, "MessageCompleted")[0]!

const deltas = (events: ReadonlyArray<Event.AdapterEvent>): string =>
  of(events, "TextDelta").map(({ delta }) => delta).join("")

/** The reply of a server, without an error. */
const replyOf = (answer: string | Server.Answer, options: Options = {}, asked: Partial<Adapter.Request> = {}) =>
  Effect.map(Chunks.outcomeOf(answer, options, { ...Chunks.request, ...asked }), ({ error, events }) => {
    assert.isUndefined(error)
    return { ...completed(events), text: deltas(events), whole: of(events, "TextCompleted").map(({ text }) => text) }
  })

/** The messages that a server receives. */
const sent = (
  messages: ReadonlyArray<Message.Message>,
  options: Options = {}
): Effect.Effect<ReadonlyArray<any>, any> =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => ({ pieces: [body(Chunks.said("ok"), finish("stop"))] }))
    yield* Stream.runDrain(Chunks.stream(server.url, options, { messages, tools: [] }))
    return server.requests[0]!.body.messages
  }))

describe("content that is a JSON value", () => {
  const values: ReadonlyArray<readonly [value: unknown, text: string]> = [
    [{ name: "Ada", born: 1815 }, "{\"name\":\"Ada\",\"born\":1815}"],
    [{}, "{}"],
    [
      [{ type: "dog", name: "Rex" }, { type: "cat", name: "Tom" }],
      "[{\"type\":\"dog\",\"name\":\"Rex\"},{\"type\":\"cat\",\"name\":\"Tom\"}]"
    ],
    [["a", "b"], "[\"a\",\"b\"]"],
    [7, "7"],
    [0, "0"],
    [false, "false"]
  ]

  it.effect("N-20: it is read as its JSON text, in a document and in a stream", () =>
    Effect.gen(function*() {
      for (const [value, text] of values) {
        const replies = [
          yield* replyOf(document({ content: value })),
          yield* replyOf(body(chunk({ content: value }), finish("stop"))),
          yield* replyOf(
            body({ ...finish("stop"), choices: [{ index: 0, message: { content: value }, finish_reason: "stop" }] })
          )
        ]
        for (const reply of replies) {
          assert.deepStrictEqual([reply.message.content, reply.text, reply.whole], [text, text, [text]])
          assert.strictEqual(reply.finishReason, "stop")
        }
      }
    }))

  it.effect("N-20: it goes back as that text with the next request", () =>
    Effect.gen(function*() {
      const { message } = yield* replyOf(document({ content: { name: "Ada" } }))
      const messages = yield* sent([Message.user("Who?"), message, Message.user("And when?")])
      assert.deepStrictEqual(messages[1], { role: "assistant", content: "{\"name\":\"Ada\"}" })
    }))

  it.effect("N-20: it stands beside reasoning and calls like any text", () =>
    Effect.gen(function*() {
      const tool_calls = [{ id: "a", type: "function", function: { name: "now", arguments: "{}" } }]
      const reply = yield* replyOf(document({ content: [1, 2], reasoning_content: "Two.", tool_calls }, "tool_calls"))
      assert.strictEqual(reply.message.content, "[1,2]")
      assert.deepStrictEqual(reply.message.reasoning, [{ type: "reasoning", text: "Two." }])
      assert.deepStrictEqual(reply.message.toolCalls?.map(({ name }) => name), ["now"])
    }))

  it.effect("N-20: parts stay parts, and what is not there says nothing", () =>
    Effect.gen(function*() {
      const parts = [{ type: "thinking", thinking: [{ type: "text", text: "Hm." }] }, { type: "text", text: "Hi" }]
      const told = yield* replyOf(document({ content: parts }))
      assert.strictEqual(told.message.content, "Hi")
      assert.deepStrictEqual(told.message.reasoning, [{ type: "reasoning", text: "Hm." }])
      const reference = { type: "reference", reference_ids: [1] }
      for (const content of [null, "", [], [reference]]) {
        assert.strictEqual((yield* replyOf(body(chunk({ content }), finish("stop")))).message.content, "")
      }
    }))
})
