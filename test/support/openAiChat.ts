/**
 * Chat Completions as a server writes it: chunks, the calls in them, and bodies made of them; and the adapter that reads
 * them, over the real HTTP client.
 */
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, type Event, Message } from "heddle"
import { OpenAiChat } from "heddle/adapters"
import * as Server from "./server.ts"

type Json = Readonly<Record<string, unknown>>

export const chunk = (delta: Json, rest: Json = {}): Json => ({
  id: "chatcmpl-1",
  object: "chat.completion.chunk",
  model: "test-model",
  choices: [{ index: 0, delta, finish_reason: null, ...rest }]
})

export const said = (content: string): Json => chunk({ content })

/** A fragment of a call. */
export const call = (fragment: Json & { readonly name?: string | null; readonly arguments?: string | null }): Json => {
  const { arguments: text, name, ...rest } = fragment
  const called = { ...(name === undefined ? {} : { name }), ...(text === undefined ? {} : { arguments: text }) }
  return chunk({ tool_calls: [{ ...rest, function: called }] })
}

export const finish = (word: string): Json => chunk({}, { finish_reason: word })

export const usage = (counts: Json): Json => ({ ...chunk({}), choices: [], usage: counts })

/** A body of the chunks, as most servers write it. */
export const body = (...chunks: ReadonlyArray<Json>): string =>
  [...chunks.map((item) => JSON.stringify(item)), "[DONE]"].map((data) => `data: ${data}\n\n`).join("")

/** A reply with text and two calls whose fragments take turns; it is not ASCII. */
export const interleaved = body(
  chunk({ role: "assistant", content: "" }),
  said("Høj "),
  said("sky 🌤"),
  call({ index: 0, id: "call_a", type: "function", name: "search", arguments: "" }),
  call({ index: 1, id: "call_b", type: "function", name: "read", arguments: "" }),
  call({ index: 0, arguments: "{\"query\":" }),
  call({ index: 1, arguments: "{\"path\":\"a" }),
  call({ index: 0, arguments: "\"tøj\"}" }),
  call({ index: 1, arguments: ".txt\"}" }),
  finish("tool_calls"),
  usage({ prompt_tokens: 12, completion_tokens: 7, total_tokens: 19 })
)

/** The calls in it. */
export const interleavedCalls = [
  { id: "call_a", name: "search", arguments: { query: "tøj" } },
  { id: "call_b", name: "read", arguments: { path: "a.txt" } }
]

export const request: Adapter.Request = { messages: [Message.user("Hello")], tools: [] }

export const layer = (url: string, options: Partial<OpenAiChat.Options> = {}): Layer.Layer<Adapter.Adapter> =>
  OpenAiChat.layer({ model: "test-model", baseUrl: `${url}/v1`, ...options }).pipe(Layer.provide(FetchHttpClient.layer))

/** The stream that a server's answer comes to. */
export const stream = (url: string, options: Partial<OpenAiChat.Options> = {}, asked = request) =>
  Stream.unwrap(Adapter.Adapter.useSync((adapter) => adapter.stream(asked))).pipe(
    Stream.provide(layer(url, options))
  )

/** What a stream came to: all events before its end, and what it failed with, if it did. */
export interface Outcome {
  readonly events: ReadonlyArray<Event.AdapterEvent>
  readonly error: Adapter.AdapterError | undefined
}

export const outcome = (
  events: Stream.Stream<Event.AdapterEvent, Adapter.AdapterError>
): Effect.Effect<Outcome> => {
  const seen: Array<Event.AdapterEvent> = []
  return Stream.runForEach(events, (event) => Effect.sync(() => seen.push(event))).pipe(
    Effect.match({
      onFailure: (error) => ({ events: seen, error }),
      onSuccess: () => ({ events: seen, error: undefined })
    })
  )
}

/** What an answer of a loopback server comes to. */
export const outcomeOf = (
  answer: string | Server.Answer,
  options: Partial<OpenAiChat.Options> = {},
  asked = request
): Effect.Effect<Outcome> =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => typeof answer === "string" ? { pieces: [answer] } : answer)
    return yield* outcome(stream(server.url, { retries: 0, ...options }, asked))
  }))

/** The events of a tag. */
export const of = <Tag extends Event.AdapterEvent["_tag"]>(events: ReadonlyArray<Event.AdapterEvent>, tag: Tag) =>
  events.filter((event): event is Extract<Event.AdapterEvent, { readonly _tag: Tag }> => event._tag === tag)

/** The completed calls, as far as tests compare them. */
export const calls = (events: ReadonlyArray<Event.AdapterEvent>): ReadonlyArray<unknown> =>
  of(events, "ToolCallCompleted").map(({ arguments: args, argumentsLost, id, name }) => ({
    id,
    name,
    arguments: args,
    ...(argumentsLost === undefined ? {} : { argumentsLost })
  }))
