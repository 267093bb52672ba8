/**
 * The table of switches, over real HTTP: each kind of error behind 0, 1 and 2 events of each adapter's stream, and each that
 * a server can write, as the answer itself, as the first event of a stream, and behind an event with usage. The table is
 * printed.
 */
import { afterAll, assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Stream from "effect/Stream"
import { Adapter, Chat, type Event } from "heddle"
import * as Adapters from "../support/adapters.ts"
import * as Anthropic from "../support/anthropic.ts"
import * as Gemini from "../support/gemini.ts"
import * as OpenAiChat from "../support/openAiChat.ts"
import * as OpenAiResponses from "../support/openAiResponses.ts"
import { type Name, names, protocols } from "../support/replies.ts"
import { passing } from "../support/ruled.ts"
import * as Server from "../support/server.ts"

type Reason = Adapter.AdapterError["reason"]

/** An error as servers write it: its status, its word at OpenAI, Anthropic and Gemini, and a message. */
interface Said {
  readonly status: number
  readonly word: string
  readonly type: string
  readonly google: string
  readonly message?: string
}

const errors: Readonly<Partial<Record<Reason, Said>>> = {
  rate_limited: { status: 429, word: "rate_limit_exceeded", type: "rate_limit_error", google: "RESOURCE_EXHAUSTED" },
  quota_exceeded: {
    status: 402,
    word: "insufficient_quota",
    type: "billing_error",
    google: "FAILED_PRECONDITION",
    message: "Your credit balance is too low."
  },
  provider_unavailable: { status: 503, word: "server_error", type: "overloaded_error", google: "UNAVAILABLE" },
  timeout: { status: 408, word: "timeout", type: "timeout_error", google: "DEADLINE_EXCEEDED" },
  authentication_failed: {
    status: 401,
    word: "invalid_api_key",
    type: "authentication_error",
    google: "UNAUTHENTICATED"
  },
  invalid_request: {
    status: 400,
    word: "invalid_request_error",
    type: "invalid_request_error",
    google: "INVALID_ARGUMENT"
  },
  context_length_exceeded: {
    status: 400,
    word: "context_length_exceeded",
    type: "invalid_request_error",
    google: "INVALID_ARGUMENT",
    message:
      "prompt is too long: 213462 tokens > 200000 maximum; the input token count exceeds the maximum context length"
  },
  content_filter: {
    status: 400,
    word: "content_filter",
    type: "invalid_request_error",
    google: "INVALID_ARGUMENT",
    message: "Output blocked by content_filter policy"
  },
  unknown: { status: 299, word: "odd", type: "odd_error", google: "ODD" }
}

const bodyOf = (name: Name, { google, message = "no", status, type, word }: Said): Readonly<Record<string, unknown>> =>
  name === "anthropic"
    ? { type: "error", error: { type, message } }
    : name === "gemini"
    ? { error: { code: status, message, status: google } }
    : { error: { message, type: word, code: word } }

const tokens = { prompt_tokens: 3, completion_tokens: 0, total_tokens: 3 }

/** A beginning with usage and no word. The Responses protocol has usage at its ends alone. */
const costs: Readonly<Record<Name, string | undefined>> = {
  chat: OpenAiChat.body(OpenAiChat.usage(tokens)).replace("data: [DONE]\n\n", ""),
  responses: undefined,
  anthropic: Anthropic.body(Anthropic.start()),
  gemini: Gemini.body(Gemini.usage({ promptTokenCount: 3 }))
}

/** A whole reply without a word. Its first events are `MessageStarted` and the usage. */
const wordless: Readonly<Record<Name, string>> = {
  chat: OpenAiChat.body(OpenAiChat.usage(tokens), OpenAiChat.finish("stop")),
  responses: OpenAiResponses.body(OpenAiResponses.created, OpenAiResponses.completed({ output: [] })),
  anthropic: Anthropic.body(Anthropic.start(), Anthropic.stopped("end_turn"), Anthropic.stop),
  gemini: Gemini.body(Gemini.usage({ promptTokenCount: 3 }), Gemini.finish("STOP"))
}

const inStream = (name: Name, said: Said): string =>
  name === "anthropic"
    ? Anthropic.body(bodyOf(name, said))
    : name === "responses"
    ? `data: ${JSON.stringify({ type: "error", ...bodyOf(name, said) })}\n\n`
    : `data: ${JSON.stringify(bodyOf(name, said))}\n\n`

/** The answer of a server that fails. Not every server can fail in every way. */
const answerOf = (name: Name, reason: Reason, place: "answer" | "first event" | "behind usage") => {
  const said = errors[reason]
  if (place === "answer") {
    return reason === "unknown" || said === undefined ? undefined : Adapters.json(said.status, bodyOf(name, said))
  }
  const begun = place === "first event" ? "" : costs[name]
  if (begun === undefined) return undefined
  // A dropped connection may lose what was sent before: behind usage, the body ends.
  if (reason === "network_error") return begun === "" ? { pieces: [], ending: "drop" } as const : { pieces: [begun] }
  if (reason === "malformed_response") return { pieces: [`${begun}data: {"oops\n\n`] }
  return said === undefined ? undefined : { pieces: [begun + inStream(name, said)] }
}

const others = ["malformed_response", "unsupported_feature"] as const
const reasons = [...new Set<Reason>([...passing, ...Object.keys(errors) as Array<Reason>, ...others])]

/** A run over a first model that fails, and a second one that is well. */
const switchOf = (name: Name, answer: Server.Answer, change: (adapter: Adapter.Service) => Adapter.Service = same) =>
  Effect.scoped(Effect.gen(function*() {
    const down = yield* Server.serve(() => answer)
    const next = yield* Server.serve(() => ({ pieces: [protocols.chat.whole] }))
    const events: Array<Event.Event> = []
    const models = Adapter.fallback([
      { layer: Adapter.map(change).pipe(Layer.provide(protocols[name].layer(down.url))), name: "first" },
      { layer: protocols.chat.layer(next.url), name: "second" }
    ])
    const onEvent = (event: Event.Event) => Effect.sync(() => void events.push(event))
    const exit = yield* Effect.exit(Chat.run("go", { onEvent }).pipe(Effect.provide(models)))
    const end = events.findIndex(({ _tag }) => _tag === "StepReset" || _tag === "Error")
    const told = events.find((event) => event._tag === "ModelSwitched" || event._tag === "Error")
    const error = told === undefined ? Option.getOrUndefined(Exit.findErrorOption(exit)) : told.error
    return {
      requests: [down.requests.length, next.requests.length],
      reason: (error as Adapter.AdapterError | undefined)?.reason,
      before: Math.max(end, 0)
    }
  }))

const same = (adapter: Adapter.Service): Adapter.Service => adapter

/** Cuts a reply behind so many events. */
const failing = (reason: Reason, before: number) => (adapter: Adapter.Service): Adapter.Service => ({
  ...adapter,
  stream: (request) =>
    Stream.concat(Stream.take(adapter.stream(request), before), Stream.fail(new Adapter.AdapterError({ reason })))
})

/** Words in the table: whether the second model was asked. */
const cells = new Map<string, string>()
const note = (reason: Reason, name: Name, place: string, requests: ReadonlyArray<number>) =>
  cells.set(`${reason} ${name} ${place}`, requests[1] === 1 ? "switches" : "stays")

const ways = ["answer", "first event", "behind usage"] as const

describe("the table of switches", () => {
  for (const name of names) {
    for (const reason of reasons) {
      const isPassing = passing.includes(reason)
      const what = isPassing ? "asks the next candidate" : "asks no other candidate"

      it.effect(`G34: ${name}: ${reason} behind 0, 1 and 2 events of the stream ${what}`, () =>
        Effect.gen(function*() {
          for (const before of [0, 1, 2]) {
            const found = yield* switchOf(name, { pieces: [wordless[name]] }, failing(reason, before))
            // Without any event of the first model, its server is not asked.
            const requests = [before === 0 ? 0 : 1, isPassing ? 1 : 0]
            assert.deepStrictEqual(found, { reason, before, requests })
            note(reason, name, `behind ${before}`, requests)
          }
        }))

      it.effect(`G34: ${name}: ${reason} as the server writes it, before any word, ${what}`, () =>
        Effect.gen(function*() {
          for (const place of ways) {
            const answer = answerOf(name, reason, place)
            if (answer === undefined) continue
            const found = yield* switchOf(name, answer)
            const requests = [1, isPassing ? 1 : 0]
            assert.deepStrictEqual(found, { reason, before: place === "behind usage" ? 2 : 0, requests }, place)
            note(reason, name, place, requests)
          }
        }))
    }
  }

  afterAll(() => {
    const head = ["", "error", ...reasons]
    const rows = names.flatMap((name) =>
      ["behind 0", "behind 1", "behind 2", ...ways].map((place) => [
        name,
        place,
        ...reasons.map((reason) => cells.get(`${reason} ${name} ${place}`) ?? "–")
      ])
    )
    console.log([head, head.map(() => "-"), ...rows].map((row) => `| ${row.join(" | ")} |`).join("\n"))
  })
})
