/**
 * Content of the model that is no plain text: an answer that the server writes as a JSON value, the sound and the images
 * of the model, and no text beside calls. Each reply is read as a stream and as a document, and sent back with the next
 * request.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Base64 from "effect/encoding/Base64"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Chat, type Event, Message, Tool } from "heddle"
import { OpenAiChat } from "heddle/adapters"
import * as Adapters from "../support/adapters.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Requests from "../support/requests.ts"
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

describe("content as a JSON value", () => {
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

  it.effect("N-20: the adapter reads content that is a JSON value as its JSON text, in a document and in a stream", () =>
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

  it.effect("N-20: content that was a JSON value goes back as its JSON text with the next request", () =>
    Effect.gen(function*() {
      const { message } = yield* replyOf(document({ content: { name: "Ada" } }))
      const messages = yield* sent([Message.user("Who?"), message, Message.user("And when?")])
      assert.deepStrictEqual(messages[1], { role: "assistant", content: "{\"name\":\"Ada\"}" })
    }))

  it.effect("N-20: content that is a JSON value stays beside reasoning and calls like any text", () =>
    Effect.gen(function*() {
      const tool_calls = [{ id: "a", type: "function", function: { name: "now", arguments: "{}" } }]
      const reply = yield* replyOf(document({ content: [1, 2], reasoning_content: "Two.", tool_calls }, "tool_calls"))
      assert.strictEqual(reply.message.content, "[1,2]")
      assert.deepStrictEqual(reply.message.reasoning, [{ type: "reasoning", text: "Two." }])
      assert.deepStrictEqual(reply.message.toolCalls?.map(({ name }) => name), ["now"])
    }))

  it.effect("N-20: text and thinking parts of a content are read as parts, and empty content gives an empty text", () =>
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

describe("an assistant message with calls and no text", () => {
  const silent = Message.assistant("", [Message.toolCall("a", "now")])
  const thread = [Message.user("When?"), silent, Message.tool("a", "12:00")]

  /** The content of the message with calls, as a server at the address gets it. */
  const contentAt = (baseUrl: string, options: Options = {}, messages = thread) =>
    Effect.map(
      Requests.elsewhere(
        body(Chunks.said("ok"), finish("stop")),
        OpenAiChat.layer({ model: "m", baseUrl, ...options }),
        {
          messages
        }
      ),
      ({ body }) => body.messages[1].content
    )

  const own = "http://localhost:1/v1"

  it.effect("N-23: the content of a message with calls and no text is an empty string by default", () =>
    Effect.gen(function*() {
      const workers = "https://api.cloudflare.com/client/v4/accounts/1/ai/v1"
      for (
        const url of [workers, own, "https://api.openai.com/v1", "https://api.mistral.ai/v1", "https://ollama.com/v1"]
      ) {
        assert.strictEqual(yield* contentAt(url), "", url)
      }
      const parts = { ...silent, content: [] }
      assert.strictEqual(yield* contentAt(own, {}, [Message.user("When?"), parts, Message.tool("a", "12:00")]), "")
    }))

  it.effect("N-23: the content of a message with calls and no text is null for Snowflake, and where the option sets null", () =>
    Effect.gen(function*() {
      assert.isNull(yield* contentAt("https://me.snowflakecomputing.com/api/v2/cortex/v1"))
      assert.isNull(yield* contentAt(own, { vendor: "snowflake" }))
      assert.isNull(yield* contentAt(own, { emptyContent: null }))
      assert.strictEqual(yield* contentAt(own, { vendor: "snowflake", emptyContent: "" }), "")
    }))

  it.effect("N-23: a text beside calls stays unchanged, and the request omits a message without text and calls", () =>
    Effect.gen(function*() {
      const spoken = Message.assistant("Let me see.", [Message.toolCall("a", "now")])
      const answered = [Message.user("When?"), spoken, Message.tool("a", "12:00")]
      assert.strictEqual(yield* contentAt(own, { emptyContent: null }, answered), "Let me see.")
      const quiet = [Message.user("When?"), Message.assistant(""), Message.user("And now?")]
      assert.strictEqual(yield* contentAt(own, { emptyContent: null }, quiet), "And now?")
    }))

  it.effect("N-23: a strict server that requires string contents accepts the second request of a run", () =>
    Effect.scoped(Effect.gen(function*() {
      const isText = (message: Json) => typeof message["content"] === "string"
      const server = yield* Server.serve(({ body: asked }, index) =>
        !asked.messages.every(isText)
          ? {
            status: 400,
            pieces: ["{\"error\":\"AiError: Type mismatch of '/messages/1/content', 'string' not in 'null'\"}"]
          }
          : {
            pieces: [
              index === 0
                ? body(Chunks.call({ index: 0, id: "a", name: "now", arguments: "{}" }), finish("tool_calls"))
                : body(Chunks.said("Noon."), finish("stop"))
            ]
          }
      )
      const now = Tool.make("now", { parameters: {}, handler: () => Effect.succeed("12:00") })
      const result = yield* Chat.run("When?", { tools: [now] }).pipe(Effect.provide(Chunks.layer(server.url)))
      assert.strictEqual(result.finalResponse?.outputText, "Noon.")
    })))
})

describe("the audio of a reply", () => {
  const bytes = Uint8Array.from({ length: 50 }, (_, index) => (index * 37) % 256)
  const data = Base64.encode(bytes)
  const format: Options = { options: { modalities: ["text", "audio"], audio: { voice: "alloy", format: "wav" } } }
  const audio = { id: "audio_1", expires_at: 4_102_444_800, transcript: "Good morning." }
  const told = document({ content: null, refusal: null, audio: { ...audio, data } })

  const file: Message.Part = { type: "file", data, mediaType: "audio/wav" }

  /** What goes back stands beside the content, as for every protocol. */
  const kept = (given: Json = audio): Message.Part => ({
    type: "reasoning",
    text: "",
    metadata: { openaiChat: { audio: given } }
  })

  /** A stream of the sound, whose data is cut into pieces of so many bytes. */
  const streamed = (size: number, ...rest: ReadonlyArray<Json>): string => {
    const cuts = Array.from(
      { length: Math.ceil(bytes.length / size) },
      (_, index) => bytes.subarray(index * size, (index + 1) * size)
    )
    return body(
      chunk({ role: "assistant", content: null, audio: { id: "audio_1", transcript: "Good " } }),
      chunk({ audio: { id: "audio_1", transcript: "morning." } }),
      ...cuts.map((cut) => chunk({ audio: { id: "audio_1", data: Base64.encode(cut) } })),
      chunk({ audio: { expires_at: audio.expires_at } }),
      ...rest,
      finish(rest.length === 0 ? "stop" : "tool_calls")
    )
  }

  it.effect("N-21: audio is a file part after its transcript, in a document and in a stream, however the stream is cut", () =>
    Effect.gen(function*() {
      const texts = data.match(/.{1,7}/g) ?? []
      const answers = [
        told,
        streamed(50),
        streamed(6),
        streamed(7),
        streamed(1),
        body(
          chunk({ audio: { ...audio, data: "" } }),
          ...texts.map((piece) => chunk({ audio: { data: piece } })),
          finish("stop")
        )
      ]
      for (const answer of answers) {
        const reply = yield* replyOf(answer, format)
        assert.deepStrictEqual(reply.message.content, [{ type: "text", text: "Good morning." }, file])
        assert.deepStrictEqual(reply.message.reasoning, [kept()])
        assert.deepStrictEqual([reply.text, reply.whole, reply.finishReason], [
          "Good morning.",
          ["Good morning."],
          "stop"
        ])
      }
    }))

  it.effect("N-21: the media type of audio follows the format set in the request or the adapter options", () =>
    Effect.gen(function*() {
      const typeIn = (format: unknown, asked: Partial<Adapter.Request> = {}) =>
        Effect.map(
          replyOf(told, { options: { audio: { format } } }, asked),
          ({ message }) => (message.content as ReadonlyArray<Message.FilePart>)[1]?.mediaType
        )
      assert.strictEqual(yield* typeIn("mp3"), "audio/mpeg")
      assert.strictEqual(yield* typeIn("pcm16"), "audio/pcm")
      assert.strictEqual(yield* typeIn("flac"), "audio/flac")
      assert.strictEqual(yield* typeIn("mp3", { options: { audio: { format: "opus" } } }), "audio/opus")
      assert.isUndefined(yield* typeIn(undefined))
    }))

  it.effect("N-21: audio goes back by its id, beside other text and calls", () =>
    Effect.gen(function*() {
      const { message } = yield* replyOf(told, format)
      const thread = [Message.user("Hi"), message, Message.user("And?")]
      assert.deepStrictEqual((yield* sent(thread))[1], { role: "assistant", audio: { id: "audio_1" } })
      const called = yield* replyOf(
        streamed(7, Chunks.call({ index: 0, id: "a", name: "now", arguments: "{}" })),
        format
      )
      const [, second] = yield* sent([Message.user("Hi"), called.message, Message.tool("a", "12:00")])
      assert.deepStrictEqual([second.audio, "content" in second, second.tool_calls.length], [
        { id: "audio_1" },
        false,
        1
      ])
      const mixed = yield* replyOf(
        body(Chunks.said("Listen: "), chunk({ audio: { ...audio, data } }), finish("stop")),
        format
      )
      assert.strictEqual(Message.text(mixed.message), "Listen: Good morning.")
      assert.deepStrictEqual((yield* sent([Message.user("Hi"), mixed.message, Message.user("And?")]))[1], {
        role: "assistant",
        audio: { id: "audio_1" },
        content: "Listen: "
      })
    }))

  it.effect("N-21: the transcript goes back alone once the audio id has expired or is missing, or the text has changed", () =>
    Effect.gen(function*() {
      const said = (given: Json, text = "Good morning."): Message.Message => ({
        ...Message.assistant(""),
        content: [{ type: "text", text }, file],
        reasoning: [kept(given)]
      })
      const second = (message: Message.Message) =>
        Effect.map(sent([Message.user("Hi"), message, Message.user("And?")]), (messages) => messages[1])
      const words = { role: "assistant", content: "Good morning." }
      yield* TestClock.setTime(1_000_000)
      assert.deepStrictEqual(yield* second(said({ ...audio, expires_at: 1000 })), words)
      assert.deepStrictEqual((yield* second(said({ ...audio, expires_at: 1001 }))).audio, { id: "audio_1" })
      assert.deepStrictEqual((yield* second(said({ id: "audio_1", transcript: "Good morning." }))).audio, {
        id: "audio_1"
      })
      assert.deepStrictEqual(yield* second(said({ transcript: "Good morning." })), words)
      assert.deepStrictEqual(yield* second(said(audio, "My key is ***.")), {
        role: "assistant",
        content: "My key is ***."
      })
      const silent = said({ id: "audio_1", expires_at: 1000, transcript: "" }, "")
      assert.deepStrictEqual((yield* second(silent)).role, "user")
    }))

  it.effect("N-21: requests of the other protocols carry the transcript and not the audio", () =>
    Effect.gen(function*() {
      const { message } = yield* replyOf(told, format)
      for (const protocol of Adapters.all.slice(1)) {
        const { body: asked } = yield* Requests.received(
          protocol.whole,
          (url) =>
            Stream.unwrap(
              Adapter.Adapter.useSync((adapter) =>
                adapter.stream({ messages: [Message.user("Hi"), message, Message.user("And?")], tools: [] })
              )
            ).pipe(Stream.provide(protocol.layer(url)))
        )
        assert.include(JSON.stringify(asked), "Good morning.", protocol.name)
        assert.notInclude(JSON.stringify(asked), data, protocol.name)
      }
    }))

  it.effect("N-21: a run keeps audio in its response and sends it back by id in the next turn", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve((_, index) => ({
        pieces: [
          index === 0
            ? streamed(7, Chunks.call({ index: 0, id: "a", name: "now", arguments: "{}" }))
            : body(Chunks.said("Noon."), finish("stop"))
        ]
      }))
      const now = Tool.make("now", { parameters: {}, handler: () => Effect.succeed("12:00") })
      const result = yield* Chat.run("When?", { tools: [now] }).pipe(Effect.provide(Chunks.layer(server.url, format)))
      const [first] = result.steps
      assert.deepStrictEqual(first?.response.message?.content, [{ type: "text", text: "Good morning." }, file])
      assert.deepInclude(result.thread.messages[1], { content: "Good morning.", reasoning: [kept()] })
      assert.deepStrictEqual(server.requests[1]!.body.messages[1].audio, { id: "audio_1" })
    })))

  it.effect("N-21: absent or damaged audio leaves a message of plain text", () =>
    Effect.gen(function*() {
      for (const nothing of [null, {}, { id: "", data: "", transcript: "", expires_at: 0 }, "x", []]) {
        assert.strictEqual((yield* replyOf(document({ content: "Hi", audio: nothing }))).message.content, "Hi")
      }
      const words = yield* replyOf(document({ content: null, audio: { transcript: "Hi" } }))
      assert.strictEqual(words.message.content, "Hi")
      const lost = yield* replyOf(
        body(chunk({ audio: { id: "audio_1", transcript: "Hi", data: "AA==B" } }), finish("stop"))
      )
      assert.strictEqual(Message.text(lost.message), "Hi")
    }))
})

describe("the images of a reply", () => {
  const url = "data:image/png;base64,iVBORw0KGgo="
  const images = [{ type: "image_url", image_url: { url } }, {
    type: "image_url",
    image_url: "https://model.test/b.png"
  }]
  const parts = [{ type: "image", url }, { type: "image", url: "https://model.test/b.png" }]

  it.effect("N-21: images are parts of the content, in a document and in a stream, with a text or without", () =>
    Effect.gen(function*() {
      const text = { type: "text", text: "Here:" }
      const answers: ReadonlyArray<readonly [answer: string | Server.Answer, content: ReadonlyArray<object>]> = [
        [document({ content: "Here:", images }), [text, ...parts]],
        [document({ content: "", images }), parts],
        [
          body(
            Chunks.said("Here:"),
            chunk({ images: images.slice(0, 1) }),
            chunk({ images: images.slice(1) }),
            finish("stop")
          ),
          [text, ...parts]
        ]
      ]
      for (const [answer, content] of answers) {
        const { message } = yield* replyOf(answer)
        assert.deepStrictEqual(message.content as ReadonlyArray<object>, content)
        assert.notProperty(message, "reasoning")
      }
      for (const nothing of [null, [], [{}], [{ image_url: {} }], {}, "x"]) {
        assert.strictEqual((yield* replyOf(document({ content: "Hi", images: nothing }))).message.content, "Hi")
      }
    }))

  it.effect("N-21: a run has images in its response, and only the text in its thread", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({
        pieces: [body(Chunks.said("Here:"), chunk({ images }), finish("stop"))]
      }))
      const result = yield* Chat.run("Draw").pipe(Effect.provide(Chunks.layer(server.url)))
      assert.deepStrictEqual(result.finalResponse?.message?.content as unknown, [
        { type: "text", text: "Here:" },
        ...parts
      ])
      assert.strictEqual(result.thread.messages[1]?.content, "Here:")
    })))
})
