/**
 * The four wire protocols as one table: how an adapter is made, and the bodies in which a server of each protocol says
 * the same things. Suites that run over it try what all adapters have in common.
 */
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Random from "effect/Random"
import * as Stream from "effect/Stream"
import { Adapter, type Event } from "heddle"
import type { OpenAiChat as Options } from "heddle/adapters"
import * as Anthropic from "./anthropic.ts"
import * as WaitingClock from "./clock.ts"
import * as Gemini from "./gemini.ts"
import * as OpenAiChat from "./openAiChat.ts"
import * as OpenAiResponses from "./openAiResponses.ts"
import * as Server from "./server.ts"

/** The options that all adapters share. */
export type Shared = Partial<
  Pick<
    Options.Options,
    "apiKey" | "headers" | "provider" | "retries" | "retryDelay" | "maxRetryDelay" | "maxEventLength"
  >
>

/** A protocol, and what its servers write. */
export interface Protocol {
  readonly name: string
  readonly layer: (url: string, options?: Shared) => Layer.Layer<Adapter.Adapter>
  /** A reply with text and calls of the tools `search` and `read` or `now`; it is not ASCII. */
  readonly rich: string
  /** A reply that says "a" and is over. */
  readonly whole: string
  /** The beginning of a reply: "a" was said. */
  readonly begun: string
  /** The beginning of a reply: "a" was said, and a call of `search` has begun. */
  readonly calling: string
  /** The beginning of a reply that says nothing yet. */
  readonly silent: string
  /** A reply that calls `note` with arguments in fragments of a character each. */
  readonly fragments: (text: string) => string
  /** Whether fragments of arguments are emitted as they come. */
  readonly isStreamed: boolean
  /** How often the text of arguments may be parsed, besides the events that it came in. */
  readonly timesParsed: number
  /** An error within a reply: that the provider is busy, or that it refuses. */
  readonly failing: (isBusy: boolean) => string
  /** A provider that is overloaded for now. */
  readonly busy: Server.Answer
}

export const request: Adapter.Request = Gemini.offering("search", "read", "note", "now")

/** The stream that a server's answer comes to. */
export const stream = ({ layer }: Protocol, url: string, options?: Shared) =>
  Stream.unwrap(Adapter.Adapter.useSync((adapter) => adapter.stream(request))).pipe(
    Stream.provide(layer(url, options))
  ) as Stream.Stream<Event.AdapterEvent, Adapter.AdapterError>

/** What an answer of a loopback server comes to. Ids that are made up are the same in every run. */
export const outcomeOf = (
  protocol: Protocol,
  answer: string | Server.Answer,
  options: Shared = {}
): Effect.Effect<OpenAiChat.Outcome> =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => typeof answer === "string" ? { pieces: [answer] } : answer)
    return yield* OpenAiChat.outcome(stream(protocol, server.url, { retries: 0, ...options }))
  })).pipe(Gemini.steady)

export const errorOf = (protocol: Protocol, answer: string | Server.Answer, options: Shared = {}) =>
  Effect.map(outcomeOf(protocol, answer, options), ({ error }) => error!)

/** An answer of JSON. */
export const json = (
  status: number,
  value: unknown,
  headers: Readonly<Record<string, string>> = {}
): Server.Answer => ({
  status,
  headers: { "content-type": "application/json", ...headers },
  pieces: [typeof value === "string" ? value : JSON.stringify(value)]
})

/** The adapter's own limits, which only pass when a server is too slow. */
const limits: ReadonlyArray<number> = [1000, 10_000, 300_000]

/** How often a server is asked, after which waits, and what comes out; without jitter, and without waiting. */
export const trying = (
  protocol: Protocol,
  answer: (index: number) => Server.Answer,
  options: Shared = {},
  startMillis = 0,
  jitter = 0
) =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve((_, index) => answer(index))
    const clock = WaitingClock.make((millis) => !limits.includes(millis), startMillis)
    const asked = OpenAiChat.outcome(stream(protocol, server.url, { retryDelay: "600 millis", ...options }))
    const { error, events } = yield* WaitingClock.by(clock)(asked).pipe(
      Effect.provideService(Random.Random, { nextDoubleUnsafe: () => jitter, nextIntUnsafe: () => 0 })
    )
    const waits = clock.waits.filter((millis) => !limits.includes(millis))
    return { requests: server.requests.length, waits, error, events }
  }))

const open = (body: string): string => body.replace("data: [DONE]\n\n", "")

const { added, args, call, completed, created, done } = OpenAiResponses

export const openAiChat: Protocol = {
  name: "OpenAiChat",
  layer: OpenAiChat.layer,
  rich: OpenAiChat.interleaved,
  whole: OpenAiChat.body(OpenAiChat.said("a"), OpenAiChat.finish("stop")),
  begun: open(OpenAiChat.body(OpenAiChat.said("a"))),
  calling: open(
    OpenAiChat.body(
      OpenAiChat.said("a"),
      OpenAiChat.call({ index: 0, id: "a", name: "search", arguments: "{\"q\":" })
    )
  ),
  silent: open(OpenAiChat.body(OpenAiChat.chunk({ role: "assistant", content: "" }))),
  fragments: (text) =>
    OpenAiChat.body(
      OpenAiChat.call({ index: 0, id: "a", name: "note", arguments: "" }),
      ...[...text].map((letter) => OpenAiChat.call({ index: 0, arguments: letter })),
      OpenAiChat.finish("tool_calls")
    ),
  isStreamed: true,
  timesParsed: 3,
  failing: (isBusy) => `data: ${JSON.stringify({ error: { message: "no", code: isBusy ? 503 : 400 } })}\n\n`,
  busy: json(500, {})
}

export const openAiResponses: Protocol = {
  name: "OpenAiResponses",
  layer: OpenAiResponses.layer,
  rich: OpenAiResponses.interleaved,
  whole: OpenAiResponses.body(created, OpenAiResponses.said("a"), completed()),
  begun: OpenAiResponses.body(created, OpenAiResponses.said("a")),
  calling: OpenAiResponses.body(
    created,
    OpenAiResponses.said("a"),
    added(1, call("a", "search")),
    args(1, "{\"q\":")
  ),
  silent: OpenAiResponses.body(created),
  fragments: (text) =>
    OpenAiResponses.body(
      added(0, call("a", "note")),
      ...[...text].map((letter) => args(0, letter)),
      OpenAiResponses.event("function_call_arguments.done", { output_index: 0, arguments: text }),
      done(0, call("a", "note", text)),
      completed({ output: [call("a", "note", text)] })
    ),
  isStreamed: true,
  timesParsed: 3,
  failing: (isBusy) => `data: ${JSON.stringify({ error: { message: "no", code: isBusy ? 503 : 400 } })}\n\n`,
  busy: json(429, { error: { message: "no", code: "rate_limit_exceeded" } })
}

export const anthropic: Protocol = {
  name: "Anthropic",
  layer: Anthropic.layer,
  rich: Anthropic.rich,
  whole: Anthropic.reply([Anthropic.text(0, "a")], "end_turn"),
  begun: Anthropic.body(Anthropic.start(), ...Anthropic.text(0, "a")),
  calling: Anthropic.body(
    Anthropic.start(),
    ...Anthropic.text(0, "a"),
    Anthropic.call(1, "a", "search"),
    Anthropic.args(1, "{\"q\":")
  ),
  silent: Anthropic.body(Anthropic.ping),
  fragments: (text) => Anthropic.reply([Anthropic.called(0, "a", "note", ...text)], "tool_use"),
  isStreamed: true,
  timesParsed: 2,
  failing: (isBusy) =>
    Anthropic.body({
      type: "error",
      error: { type: isBusy ? "overloaded_error" : "invalid_request_error", message: "no" }
    }),
  busy: json(529, { type: "error", error: { type: "overloaded_error", message: "Overloaded", details: null } }, {
    "x-should-retry": "true"
  })
}

export const gemini: Protocol = {
  name: "Gemini",
  layer: Gemini.layer,
  rich: Gemini.body(...Gemini.mixed),
  whole: Gemini.body(Gemini.said("a"), Gemini.finish("STOP")),
  begun: Gemini.body(Gemini.said("a")),
  calling: Gemini.body(
    Gemini.said("a"),
    Gemini.chunk([Gemini.call("search", undefined, { willContinue: true })])
  ),
  silent: Gemini.body({ responseId: "r" }),
  fragments: (text) => {
    const letters = [...(JSON.parse(text) as { readonly text: string }).text]
    const piece = (letter: string) => ({
      functionCall: { partialArgs: [{ jsonPath: "$.text", stringValue: letter }], willContinue: true }
    })
    return Gemini.body(
      Gemini.chunk([Gemini.call("note", undefined, { willContinue: true })]),
      ...letters.map((letter) => Gemini.chunk([piece(letter)])),
      Gemini.chunk([{ functionCall: {} }]),
      Gemini.finish("STOP")
    )
  },
  isStreamed: false,
  timesParsed: 3,
  failing: (isBusy) =>
    Gemini.body({
      error: { code: isBusy ? 503 : 400, message: "no", status: isBusy ? "UNAVAILABLE" : "INVALID_ARGUMENT" }
    }),
  busy: json(503, { error: { code: 503, message: "The model is overloaded.", status: "UNAVAILABLE" } })
}

export const all: ReadonlyArray<Protocol> = [openAiChat, openAiResponses, anthropic, gemini]
