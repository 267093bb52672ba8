/**
 * Anthropic's Messages as a server writes it: the events of a stream, blocks in them, and bodies made of them; and the
 * adapter that reads them, over the real HTTP client. Its events are read with the helpers of `openAiChat.ts`.
 */
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, type Event } from "heddle"
import { Anthropic } from "heddle/adapters"
import * as Chunks from "./openAiChat.ts"
import * as Server from "./server.ts"

type Json = Readonly<Record<string, unknown>>

type Events = ReadonlyArray<Json>

/** The first event of a reply. */
export const start = (rest: Json = {}): Json => ({
  type: "message_start",
  message: {
    id: "msg_1",
    type: "message",
    role: "assistant",
    model: "test-model",
    content: [],
    stop_reason: null,
    stop_sequence: null,
    usage: { input_tokens: 10, output_tokens: 1 },
    ...rest
  }
})

export const opened = (index: number, block: Json): Json => ({
  type: "content_block_start",
  index,
  content_block: block
})

export const delta = (index: number, piece: Json): Json => ({ type: "content_block_delta", index, delta: piece })

export const closed = (index: number): Json => ({ type: "content_block_stop", index })

export const args = (index: number, text: string): Json =>
  delta(index, { type: "input_json_delta", partial_json: text })

/** A whole block of text, in the given pieces. */
export const text = (index: number, ...pieces: ReadonlyArray<string>): Events => [
  opened(index, { type: "text", text: "" }),
  ...pieces.map((piece) => delta(index, { type: "text_delta", text: piece })),
  closed(index)
]

/** A whole block of thinking. */
export const thinking = (index: number, thought: string, signature: string): Events => [
  opened(index, { type: "thinking", thinking: "", signature: "" }),
  ...(thought === "" ? [] : [delta(index, { type: "thinking_delta", thinking: thought })]),
  delta(index, { type: "signature_delta", signature }),
  closed(index)
]

/** The opening of a call. */
export const call = (index: number, id: string, name: string, rest: Json = {}): Json =>
  opened(index, { type: "tool_use", id, name, input: {}, ...rest })

/** A whole call, in the given fragments. */
export const called = (index: number, id: string, name: string, ...fragments: ReadonlyArray<string>): Events => [
  call(index, id, name),
  ...fragments.map((fragment) => args(index, fragment)),
  closed(index)
]

/** The word for the end, and the cost. */
export const stopped = (word: string | null, rest: Json = {}, usage: Json = { output_tokens: 5 }): Json => ({
  type: "message_delta",
  delta: { stop_reason: word, stop_sequence: null, ...rest },
  usage
})

export const stop: Json = { type: "message_stop" }

export const ping: Json = { type: "ping" }

/** The last events of a reply. */
export const ended = (word: string | null): Events => [stopped(word), stop]

/** A body of the events, as Anthropic writes it. */
export const body = (...events: Events): string =>
  events.map((event) => `event: ${String(event["type"])}\ndata: ${JSON.stringify(event)}\n\n`).join("")

/** A whole reply with these blocks. */
export const reply = (blocks: ReadonlyArray<Events>, word: string | null): string =>
  body(start(), ping, ...blocks.flat(), ...ended(word))

/** A reply that thinks, speaks and calls twice; it is not ASCII. */
export const rich = reply([
  thinking(0, "Hvad nu 🤔", "sig_1"),
  text(1, "Høj ", "sky 🌤"),
  called(2, "toolu_a", "search", "", "{\"query\":", "\"tøj\"}"),
  called(3, "toolu_b", "now", "")
], "tool_use")

export const layer = (url: string, options: Partial<Anthropic.Options> = {}): Layer.Layer<Adapter.Adapter> =>
  Anthropic.layer({ model: "test-model", baseUrl: url, ...options }).pipe(Layer.provide(FetchHttpClient.layer))

/** The stream that a server's answer comes to. */
export const stream = (url: string, options: Partial<Anthropic.Options> = {}, asked = Chunks.request) =>
  Stream.unwrap(Adapter.Adapter.useSync((adapter) => adapter.stream(asked))).pipe(Stream.provide(layer(url, options)))

/** What an answer of a loopback server comes to. */
export const outcomeOf = (
  answer: string | Server.Answer,
  options: Partial<Anthropic.Options> = {}
): Effect.Effect<Chunks.Outcome> =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => typeof answer === "string" ? { pieces: [answer] } : answer)
    return yield* Chunks.outcome(stream(server.url, { retries: 0, ...options }))
  }))

/** The last event of a reply. */
export const completed = (events: ReadonlyArray<Event.AdapterEvent>) => Chunks.of(events, "MessageCompleted")[0]!
