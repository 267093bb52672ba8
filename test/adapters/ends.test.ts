/**
 * How replies begin and end: what counts as their first event, which end is none, what still counts behind the last event,
 * and replies that a server has divided into several.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import { Chat as Runs } from "heddle"
import { layer as bridge } from "heddle/bridges/ai-sdk"
import { Script } from "heddle/testing"
import * as Adapters from "../support/adapters.ts"
import * as AiSdk from "../support/aiSdk.ts"
import * as Anthropic from "../support/anthropic.ts"
import * as Gemini from "../support/gemini.ts"
import * as Chat from "../support/openAiChat.ts"
import * as Responses from "../support/openAiResponses.ts"
import { callsOf, names, played, protocols } from "../support/replies.ts"

const open = (body: string): string => body.replace("data: [DONE]\n\n", "")

/** The beginnings of replies that have shown nothing: heads, counts of tokens, empty texts. */
const unseen: { readonly [name in (typeof names)[number]]: string } = {
  chat: open(Chat.body(
    Chat.chunk({ role: "assistant", content: "" }),
    Chat.usage({ prompt_tokens: 10, completion_tokens: 1, total_tokens: 11 })
  )),
  responses: Responses.body(
    Responses.event("created", { response: Responses.response({ status: "in_progress", usage: Responses.usage }) }),
    Responses.added(0, Responses.message(""))
  ),
  anthropic: Anthropic.body(Anthropic.start(), Anthropic.ping, Anthropic.opened(0, { type: "text", text: "" })),
  gemini: Gemini.body(Gemini.usage({ promptTokenCount: 10, candidatesTokenCount: 1 }), Gemini.chunk([{ text: "" }]))
}

describe("the first event of a reply", () => {
  for (const name of names) {
    const protocol = protocols[name]
    it.effect(`O-16: the ${name} adapter retries a reply that fails before its first visible event, and counts the usage of each try`, () =>
      Effect.gen(function*() {
        const broken = { pieces: [unseen[name] + protocol.failing(true)] }
        const found = yield* Adapters.trying(protocol, (index) => index < 2 ? broken : { pieces: [protocol.whole] })
        assert.deepStrictEqual([found.requests, found.error], [3, undefined])
        const usage = Chat.of(found.events, "MessageCompleted")[0]!.usage as { inputTokens: number }
        const once = name === "responses" ? 12 : 10
        assert.strictEqual(usage.inputTokens, name === "anthropic" ? 3 * once : 2 * once)
      }))

    it.effect(`O-16: the ${name} adapter reports the usage of all tries when every try fails`, () =>
      Effect.gen(function*() {
        const found = yield* Adapters.trying(protocol, () => ({ pieces: [unseen[name] + protocol.failing(true)] }))
        assert.deepStrictEqual([found.requests, found.error?.isRetryable], [3, true])
        const [cost, ...others] = Chat.of(found.events, "RawChunk")
        assert.deepStrictEqual(others, [])
        const { usage } = cost!.chunk as { usage: { inputTokens: number } }
        assert.strictEqual(usage.inputTokens, 3 * (name === "responses" ? 12 : 10))
      }))

    it.effect(`O-16: the ${name} adapter does not retry a reply after a text, a thought or a call`, () =>
      Effect.gen(function*() {
        for (const begun of [protocol.begun, protocol.calling]) {
          const found = yield* Adapters.trying(protocol, () => ({ pieces: [begun + protocol.failing(true)] }))
          assert.deepStrictEqual([found.requests, found.error?.isRetryable], [1, true])
        }
      }))
  }

  it.live("O-16: a bridge retries a reply that fails before its first visible event", () =>
    Effect.gen(function*() {
      const parts = (index: number) =>
        index === 0
          ? [
            { type: "text-start", id: "0" },
            { type: "reasoning-start", id: "1", providerMetadata: { acme: { item: "1" } } },
            { type: "error", error: { message: "overloaded" } }
          ]
          : [AiSdk.text("a"), AiSdk.finish("stop")]
      const model = AiSdk.scripted((_, index) => parts(index))
      const adapter = bridge({ model, retries: 1, retryDelay: 0 })
      const { error, events } = yield* Gemini.steady(Chat.outcome(AiSdk.stream(adapter)))
      assert.deepStrictEqual([model.calls.length, error], [2, undefined])
      assert.deepStrictEqual(Chat.of(events, "TextDelta").map(({ delta }) => delta), ["a"])
    }))
})

describe("a reply that is cut", () => {
  /** The beginnings of replies in two writes: without a word, and with the text "a". */
  const cuts: { readonly [name in (typeof names)[number]]: ReadonlyArray<readonly [string, string]> } = {
    chat: [
      [{ prompt_tokens: 3, completion_tokens: 0 }, Chat.chunk({ role: "assistant", content: "" })],
      [{ prompt_tokens: 3, completion_tokens: 0 }, Chat.said("a")],
      [{ prompt_tokens: 3, completion_tokens: 2 }, Chat.said("a")]
    ].flatMap(([counts, chunk]) => {
      const [usage, rest] = [Chat.usage(counts!), chunk!].map((one) => open(Chat.body(one))) as [string, string]
      return [[usage, rest], ...(rest.includes("assistant") ? [[rest, usage] as const] : [])]
    }),
    responses: [
      [Responses.body(Responses.created), Responses.body(Responses.added(0, Responses.message("")))],
      [Responses.body(Responses.created), Responses.body(Responses.said("a"))]
    ],
    anthropic: [
      Anthropic.opened(0, { type: "text", text: "" }),
      Anthropic.opened(0, { type: "text", text: "a" })
    ].map((event) => [
      Anthropic.body(Anthropic.start({ usage: { input_tokens: 3, output_tokens: 0 } })),
      Anthropic.body(event)
    ]),
    gemini: ["", "a"].map((text) => [
      Gemini.body(Gemini.usage({ promptTokenCount: 3, candidatesTokenCount: 0 })),
      Gemini.body(Gemini.said(text))
    ])
  }
  for (const name of names) {
    it.effect(`R-330: the ${name} adapter fails a reply that its server ends or drops after 0, 1 or 2 events, without a finish reason`, () =>
      Effect.gen(function*() {
        for (const pieces of cuts[name]) {
          for (const ending of ["end", "drop"] as const) {
            for (const count of [0, 1, 2]) {
              const { outcome, requests } = yield* played(name, { pieces: pieces.slice(0, count), ending })
              const failure = outcome._tag === "Failed" ? outcome.error as { readonly reason: string } : undefined
              const reason = count === 0 && ending === "end" ? "malformed_response" : "network_error"
              const where = `${ending} after ${count}: ${pieces.join("")}`
              assert.deepStrictEqual([outcome._tag, failure?.reason, requests.length], ["Failed", reason, 1], where)
            }
          }
        }
      }))
  }

  it.effect("R-330: usage before a Chat Completions reply, or between its pieces, does not end the reply", () =>
    Effect.gen(function*() {
      const usage = Chat.usage({ prompt_tokens: 3, completion_tokens: 1 })
      const whole = open(Chat.body(usage, Chat.said("a"), usage, Chat.said("b"), usage))
      const { error, events } = yield* Chat.outcomeOf(whole)
      assert.deepStrictEqual([error, Chat.of(events, "TextCompleted")[0]?.text], [undefined, "ab"])
      const image = Chat.chunk({ images: [{ image_url: { url: "data:image/png;base64,AA==" } }] })
      for (const piece of [image, Chat.chunk({ audio: { id: "x", data: "AA==" } })]) {
        assert.isUndefined((yield* Chat.outcomeOf(open(Chat.body(piece, usage)))).error)
        assert.strictEqual((yield* Chat.outcomeOf(open(Chat.body(usage, piece)))).error?.reason, "network_error")
      }
    }))
})

describe("an empty reply", () => {
  const nothing: { readonly [name in (typeof names)[number]]: ReadonlyArray<string> } = {
    chat: [
      "data: [DONE]\n\n",
      Chat.body(Chat.chunk({ role: "assistant", content: "" })),
      JSON.stringify({ choices: [{ message: { role: "assistant", content: "" } }] })
    ],
    responses: ["data: [DONE]\n\n", Responses.body(Responses.created)],
    anthropic: [Anthropic.body(Anthropic.start({ usage: null }), Anthropic.stop), "data: [DONE]\n\n"],
    gemini: [Gemini.body({ responseId: "r" }), "data: [DONE]\n\n"]
  }
  for (const name of names) {
    it.effect(`O-21: the ${name} adapter retries or fails a reply without text, call, reasoning and finish reason`, () =>
      Effect.forEach(nothing[name], (body) =>
        Effect.gen(function*() {
          const found = yield* Adapters.trying(protocols[name], (index) => ({
            pieces: [index === 0 ? body : protocols[name].whole]
          }))
          const isTried = found.requests === 2 && found.error === undefined
          assert.isTrue(isTried || found.error?.reason === "malformed_response", body)
        })))
  }

  it.effect("O-21: an empty reply is retried, and fails the run if every try is empty", () =>
    Effect.gen(function*() {
      const found = yield* Adapters.trying(Adapters.openAiChat, () => ({ pieces: ["data: [DONE]\n\n"] }))
      assert.deepStrictEqual([found.requests, found.error?.reason], [3, "provider_unavailable"])
      assert.include(found.error?.message, "the reply is empty")
      assert.strictEqual((yield* played("chat", "data: [DONE]\n\n")).outcome._tag, "Failed")
    }))

  it.effect("O-21: a bridge fails an empty reply", () =>
    Effect.gen(function*() {
      const { error } = yield* AiSdk.outcomeOfParts(AiSdk.finish("stop", { finishReason: undefined }))
      assert.strictEqual(error?.reason, "provider_unavailable")
    }))

  it.effect("O-21, R-333: an empty reply with a finish reason is complete, and so is an empty reply with an output count of zero", () =>
    Effect.gen(function*() {
      const stopped = yield* Chat.outcomeOf(Chat.body(Chat.chunk({ content: "" }), Chat.finish("stop")))
      assert.isUndefined(stopped.error)
      const counted = Chat.body(Chat.chunk({ content: "" }), Chat.usage({ prompt_tokens: 0, completion_tokens: 0 }))
      assert.isUndefined((yield* Chat.outcomeOf(counted)).error)
      const lost = Chat.body(Chat.chunk({ content: "" }), Chat.usage({ prompt_tokens: 3, completion_tokens: 9 }))
      assert.strictEqual((yield* Chat.outcomeOf(lost)).error?.reason, "provider_unavailable")
    }))

  it.effect("O-70: the finish reason of a whole body or a stream without a finish reason is null", () =>
    Effect.gen(function*() {
      const document = JSON.stringify({ choices: [{ message: { role: "assistant", content: "a" } }] })
      for (const body of [document, Chat.body(Chat.said("a"))]) {
        const { events } = yield* Chat.outcomeOf({ pieces: [body] })
        assert.deepInclude(Chat.of(events, "MessageCompleted")[0]!, { finishReason: null })
      }
    }))
})

describe("an error after the last event", () => {
  const ended = { ...protocols, chat: { ...protocols.chat, whole: Chat.body(Chat.said("a"), Chat.finish("stop")) } }
  for (const name of names) {
    it.effect(`O-22: the ${name} adapter fails a reply with an error after its end, in the stream or as a document`, () =>
      Effect.gen(function*() {
        const { failing, whole } = ended[name]
        for (const error of [failing(true), `${JSON.stringify({ error: { message: "overloaded", code: 503 } })}\n`]) {
          const found = yield* played(name, whole + error)
          assert.strictEqual(found.outcome._tag, "Failed", error)
          assert.strictEqual(found.requests.length, 1)
        }
      }))
  }

  it.effect("O-22: a failed event after the end of a Responses reply fails the reply, with or without an error", () =>
    Effect.gen(function*() {
      for (const error of [{ code: "server_error", message: "overloaded" }, null]) {
        const failed = Responses.event("failed", { response: { id: "r", status: "failed", error } })
        const found = yield* played("responses", `${protocols.responses.whole}data: ${JSON.stringify(failed)}\n\n`)
        assert.strictEqual(found.outcome._tag, "Failed")
      }
    }))

  it.live("O-22: an error after the end fails a reply although its body stays open", () =>
    Effect.gen(function*() {
      const { error } = yield* Anthropic.outcomeOf({
        pieces: [protocols.anthropic.whole, protocols.anthropic.failing(true)],
        ending: "open"
      })
      assert.strictEqual(error?.reason, "provider_unavailable")
    }))

  it.effect("O-22: an error after the end of a bridged reply fails the reply", () =>
    Effect.gen(function*() {
      const error = { type: "error", error: { message: "overloaded" } }
      const found = yield* AiSdk.outcomeOfParts(AiSdk.text("a"), AiSdk.finish("stop"), error)
      assert.isDefined(found.error)
    }))
})

describe("a reply in several choices", () => {
  const of = (index: number, delta: Responses.Json, finish_reason: string | null = null): Responses.Json => ({
    id: "c",
    choices: [{ index, delta, finish_reason }]
  })
  const call = (name: string, text: string, id?: string) => ({
    tool_calls: [{
      index: 0,
      ...(id === undefined ? {} : { id, type: "function" }),
      function: { name, arguments: text }
    }]
  })
  const more = (text: string) => ({ tool_calls: [{ index: 0, function: { arguments: text } }] })

  it.effect("O-08: all choices form a single message, with the text of one choice and the calls of the others", () =>
    Effect.gen(function*() {
      const found = yield* played(
        "chat",
        Chat.body(
          of(0, { role: "assistant", content: "Let me look." }),
          of(1, call("look", "", "t1")),
          of(2, call("find", "", "t2")),
          of(1, more("{\"q\":")),
          of(2, more("{\"p\":2}")),
          of(1, more("1}")),
          of(0, {}, "tool_calls")
        )
      )
      assert.deepStrictEqual(callsOf(found), [["look", { q: 1 }], ["find", { p: 2 }]])
      assert.strictEqual(found.result!.steps[0]!.response.outputText, "Let me look.")
      const [, said] = found.requests[1]!.body.messages
      assert.deepStrictEqual(said.tool_calls.map(({ id }: { id: string }) => id), ["t1", "t2"])
    }))

  it.effect("O-08: a whole body with several unnumbered choices gives the calls of all choices", () =>
    Effect.gen(function*() {
      const message = (content: string | null, calls: ReadonlyArray<unknown>) => ({
        finish_reason: "tool_calls",
        message: { role: "assistant", content, ...(calls.length === 0 ? {} : { tool_calls: calls }) }
      })
      const own = (id: string, name: string, text: string) => ({
        id,
        type: "function",
        function: { name, arguments: text }
      })
      const document = JSON.stringify({
        choices: [
          message("Let me look.", []),
          message(null, [own("t1", "look", "{\"q\":1}")]),
          message(null, [own("t2", "find", "{\"p\":2}")])
        ]
      })
      assert.deepStrictEqual(callsOf(yield* played("chat", document)), [["look", { q: 1 }], ["find", { p: 2 }]])
    }))

  it.effect("O-08: a choice cut by the token limit cuts the reply, and an open choice leaves the reply open", () =>
    Effect.gen(function*() {
      const cut = yield* played(
        "chat",
        Chat.body(
          of(0, { content: "a" }),
          of(1, call("look", "{\"q\":1", "t1")),
          of(1, {}, "length"),
          of(0, {}, "stop")
        )
      )
      assert.deepStrictEqual([callsOf(cut), cut.result!.steps[0]!.response.finishReason], [[], "length"])
      const dropped = Chat.body(of(0, { content: "a" }), of(0, {}, "stop"), of(1, call("look", "", "t1")))
      const left = yield* played("chat", { pieces: [open(dropped)], ending: "drop" })
      assert.deepStrictEqual([callsOf(left), left.outcome._tag], [[], "Failed"])
    }))

  it.effect("O-08: an error in any choice fails the reply", () =>
    Effect.gen(function*() {
      const body = Chat.body(of(0, { content: "a" }), {
        choices: [{ index: 0, delta: {} }, { index: 1, delta: {}, error: { message: "no", code: 503 } }]
      })
      assert.strictEqual((yield* played("chat", body)).outcome._tag, "Failed")
    }))

  it.effect("O-08: an adapter refuses a request for several replies before it sends anything", () =>
    Effect.gen(function*() {
      const several = [
        yield* Chat.outcomeOf(protocols.chat.whole, { options: { n: 2 } }),
        yield* Chat.outcomeOf(protocols.chat.whole, {}, { ...Chat.request, options: { n: 3 } }),
        yield* Gemini.outcomeOf(protocols.gemini.whole, { options: { generationConfig: { candidateCount: 2 } } })
      ]
      for (const { error, events } of several) {
        assert.deepStrictEqual([events, error?.reason], [[], "unsupported_feature"])
        assert.match(error!.message, /must be 1/)
      }
      assert.isUndefined((yield* Chat.outcomeOf(protocols.chat.whole, { options: { n: 1 } })).error)
    }))
})

describe("a reply with a tool finish reason and no call", () => {
  const withoutCall = {
    chat: Chat.body(Chat.said("Let me look."), Chat.finish("tool_calls")),
    anthropic: Anthropic.reply([Anthropic.text(0, "Let me look.")], "tool_use")
  }
  for (const [name, body] of Object.entries(withoutCall) as ReadonlyArray<readonly ["chat" | "anthropic", string]>) {
    it.effect(`O-08: a ${name} reply with a tool finish reason and no call fails the run, and the run keeps its text`, () =>
      Effect.gen(function*() {
        const found = yield* played(name, body)
        assert.deepInclude(found.outcome, { _tag: "Failed" })
        assert.include(String((found.outcome as { error: Error }).error.message), "has no call")
        assert.strictEqual(found.result!.finalResponse?.outputText, "Let me look.")
      }))
  }

  it.effect("O-08: a reply without the announced call is retried by retryReply, and a server-side call counts as a call", () =>
    Effect.gen(function*() {
      const again = yield* played("chat", withoutCall.chat, { retryReply: Schedule.recurs(1) })
      assert.deepStrictEqual([again.outcome._tag, again.requests.length], ["Completed", 2])
      const hosted = { type: "server_tool_use", id: "s1", name: "web_search", input: { query: "x" } }
      const ran = yield* played(
        "anthropic",
        Anthropic.reply([[Anthropic.opened(0, hosted), Anthropic.closed(0)]], "tool_use")
      )
      assert.strictEqual(ran.outcome._tag, "Completed")
    }))

  it.effect("O-08: argument fragments without a tool name are not a call", () =>
    Effect.gen(function*() {
      const nameless = Chat.body(Chat.call({ index: 0, arguments: "{\"q\":1}" }), Chat.finish("tool_calls"))
      assert.strictEqual((yield* played("chat", nameless)).outcome._tag, "Failed")
    }))

  it.effect("O-08: a scripted model and a bridge fail a run whose reply lacks the announced call", () =>
    Effect.gen(function*() {
      const layers = [
        Script.layer([[Script.text("a"), Script.finish("tool_calls")]]),
        bridge({ model: AiSdk.scripted([AiSdk.text("a"), AiSdk.finish("tool-calls")]), retries: 0 })
      ]
      for (const layer of layers) {
        const { outcome } = yield* Runs.run("go").pipe(Effect.provide(layer))
        assert.strictEqual(outcome._tag, "Failed")
      }
    }))
})

describe("the index of a call", () => {
  it.effect("O-70: the index of a call counts only the caller's calls, also for a call that starts early", () =>
    Effect.gen(function*() {
      const search = {
        type: "web_search_call",
        id: "ws_1",
        status: "completed",
        action: { type: "search", query: "x" }
      }
      const item = (id: string, name: string, place: number) => [
        Responses.added(place, Responses.call(id, name)),
        Responses.done(place, Responses.call(id, name, "{}"))
      ]
      for (const names of [["look", "find"], ["find", "look"]] as const) {
        const found = yield* played(
          "responses",
          Responses.body(
            Responses.created,
            Responses.added(0, search),
            Responses.done(0, search),
            ...item("t1", names[0], 1),
            Responses.done(2, { ...search, id: "ws_2" }),
            ...item("t2", names[1], 3),
            Responses.completed()
          )
        )
        const places = Object.fromEntries(found.ran.map(({ index, name }) => [name, index]))
        assert.deepStrictEqual(places, { [names[0]]: 0, [names[1]]: 1 })
      }
    }))
})
