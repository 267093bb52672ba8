/**
 * Responses as a server writes them: events, the items in them, and bodies made of them; and the adapter that reads
 * them, over the real HTTP client.
 */
import { assert } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, type Event } from "heddle"
import { OpenAiResponses } from "heddle/adapters"
import * as Chunks from "./openAiChat.ts"
import * as Server from "./server.ts"

export type Json = Readonly<Record<string, unknown>>

export const event = (type: string, rest: Json = {}): Json => ({ type: `response.${type}`, ...rest })

/** An item has begun, or is complete. */
export const added = (output_index: unknown, item: Json): Json => event("output_item.added", { output_index, item })

export const done = (output_index: unknown, item: Json): Json => event("output_item.done", { output_index, item })

/** A fragment of an item's text or arguments. */
export const delta = (family: string, output_index: unknown, text: string, rest: Json = {}): Json =>
  event(`${family}.delta`, { output_index, delta: text, ...rest })

export const said = (text: string, output_index: unknown = 0): Json => delta("output_text", output_index, text)

export const call = (call_id: string, name: string, args = "", rest: Json = {}): Json => ({
  type: "function_call",
  id: `fc_${call_id}`,
  call_id,
  name,
  arguments: args,
  ...rest
})

export const message = (text: string, rest: Json = {}): Json => ({
  type: "message",
  id: "msg_1",
  role: "assistant",
  content: [{ type: "output_text", text, annotations: [] }],
  ...rest
})

export const usage: Json = {
  input_tokens: 12,
  output_tokens: 7,
  total_tokens: 19,
  input_tokens_details: { cached_tokens: 4 },
  output_tokens_details: { reasoning_tokens: 3 }
}

export const response = (rest: Json = {}): Json => ({
  id: "resp_1",
  object: "response",
  model: "test-model",
  status: "completed",
  error: null,
  incomplete_details: null,
  output: [],
  usage: null,
  ...rest
})

export const created = event("created", { response: response({ status: "in_progress" }) })

export const completed = (rest: Json = {}): Json => event("completed", { response: response(rest) })

export const incomplete = (reason: string | null, rest: Json = {}): Json =>
  event("incomplete", {
    response: response({
      status: "incomplete",
      incomplete_details: reason === null ? null : { reason },
      ...rest
    })
  })

/** A body of the events, each under its name. */
export const body = (...events: ReadonlyArray<Json>): string =>
  events.map((item) => `event: ${String(item["type"])}\ndata: ${JSON.stringify(item)}\n\n`).join("")

const thought: Json = {
  type: "reasoning",
  id: "rs_1",
  encrypted_content: "gAAA",
  summary: [{ type: "summary_text", text: "Let me see." }]
}

/** A reply with reasoning, text and two calls whose fragments take turns; it is not ASCII. */
export const interleavedEvents: ReadonlyArray<Json> = [
  created,
  added(0, { type: "reasoning", id: "rs_1", summary: [] }),
  delta("reasoning_summary_text", 0, "Let me", { summary_index: 0 }),
  delta("reasoning_summary_text", 0, " see.", { summary_index: 0 }),
  done(0, thought),
  added(1, message("")),
  said("Høj ", 1),
  said("sky 🌤", 1),
  done(1, message("Høj sky 🌤")),
  added(2, call("call_a", "search")),
  added(3, call("call_b", "read")),
  delta("function_call_arguments", 2, "{\"query\":"),
  delta("function_call_arguments", 3, "{\"path\":\"a"),
  delta("function_call_arguments", 2, "\"tøj\"}"),
  delta("function_call_arguments", 3, ".txt\"}"),
  event("function_call_arguments.done", { output_index: 2, arguments: "{\"query\":\"tøj\"}" }),
  done(2, call("call_a", "search", "{\"query\":\"tøj\"}")),
  done(3, call("call_b", "read", "{\"path\":\"a.txt\"}")),
  completed({
    usage,
    output: [
      thought,
      message("Høj sky 🌤"),
      call("call_a", "search", "{\"query\":\"tøj\"}"),
      call("call_b", "read", "{\"path\":\"a.txt\"}")
    ]
  })
]

export const interleaved = body(...interleavedEvents)

/** The calls in it. */
export const interleavedCalls = [
  { id: "call_a", name: "search", arguments: { query: "tøj" } },
  { id: "call_b", name: "read", arguments: { path: "a.txt" } }
]

export const layer = (url: string, options: Partial<OpenAiResponses.Options> = {}): Layer.Layer<Adapter.Adapter> =>
  OpenAiResponses.layer({ model: "test-model", baseUrl: `${url}/v1`, ...options }).pipe(
    Layer.provide(FetchHttpClient.layer)
  )

/** The stream that a server's answer comes to. */
export const stream = (url: string, options: Partial<OpenAiResponses.Options> = {}, asked = Chunks.request) =>
  Stream.unwrap(Adapter.Adapter.useSync((adapter) => adapter.stream(asked))).pipe(
    Stream.provide(layer(url, options))
  )

/** A fragment of a call's arguments. */
export const args = (output_index: unknown, text: string, rest: Json = {}): Json =>
  delta("function_call_arguments", output_index, text, rest)

/** What an answer of a loopback server comes to. */
export const outcomeOf = (
  answer: string | Server.Answer,
  options: Partial<OpenAiResponses.Options> = {},
  asked: Partial<Adapter.Request> = {}
): Effect.Effect<Chunks.Outcome> =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => typeof answer === "string" ? { pieces: [answer] } : answer)
    return yield* Chunks.outcome(stream(server.url, { retries: 0, ...options }, { ...Chunks.request, ...asked }))
  }))

/** The events of a reply that says so much, and does not fail. */
export const eventsOf = (...parts: ReadonlyArray<Json>): Effect.Effect<Chunks.Outcome["events"]> =>
  Effect.map(outcomeOf(body(created, ...parts)), ({ error, events }) => {
    assert.isUndefined(error)
    return events
  })

/** The end of a reply. */
export const last = (events: ReadonlyArray<Event.AdapterEvent>) => Chunks.of(events, "MessageCompleted")[0]!
