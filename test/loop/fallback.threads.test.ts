/**
 * A thread that one provider began, sent to another one over real HTTP: its reasoning, its signatures, its own calls and
 * its ids stay with the protocol, and the request fits the types of the other's SDK.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Adapter, Chat, Tool } from "heddle"
import * as Adapters from "../support/adapters.ts"
import * as Anthropic from "../support/anthropic.ts"
import * as Gemini from "../support/gemini.ts"
import * as OpenAiChat from "../support/openAiChat.ts"
import * as Responses from "../support/openAiResponses.ts"
import { type Name, names, protocols } from "../support/replies.ts"
import * as SdkTypes from "../support/sdkTypes.ts"
import * as Server from "../support/server.ts"

const thought = { type: "reasoning", id: "rs_own", summary: [], encrypted_content: "own_encrypted" }
const searched = {
  type: "web_search_call",
  id: "ws_own",
  status: "completed",
  action: { type: "search", query: "own_query" }
}
const asked = Responses.call("call_a", "search", "{\"query\":\"sky\"}")

/** Replies with all that a provider gives for itself, each of it with `own` in its name, and a call of `search`. */
const replies: Readonly<Record<Name, string>> = {
  chat: OpenAiChat.body(
    OpenAiChat.chunk({
      reasoning_details: [{ type: "reasoning.encrypted", data: "own_encrypted", format: "f", index: 0 }]
    }),
    OpenAiChat.said("Let me look. "),
    OpenAiChat.call({
      index: 0,
      id: "call_a",
      type: "function",
      name: "search",
      arguments: "{\"query\":\"sky\"}",
      extra_content: { google: { thought_signature: "own_signature" } }
    }),
    OpenAiChat.finish("tool_calls")
  ),
  responses: Responses.body(
    Responses.created,
    Responses.added(0, { type: "reasoning", id: "rs_own", summary: [] }),
    Responses.done(0, thought),
    Responses.added(1, searched),
    Responses.done(1, searched),
    Responses.added(2, Responses.message("")),
    Responses.said("Let me look. ", 2),
    Responses.done(2, Responses.message("Let me look. ")),
    Responses.added(3, Responses.call("call_a", "search")),
    Responses.done(3, asked),
    Responses.completed({ output: [thought, searched, Responses.message("Let me look. "), asked] })
  ),
  anthropic: Anthropic.reply([
    Anthropic.thinking(0, "Where?", "own_signature"),
    [Anthropic.opened(1, { type: "redacted_thinking", data: "own_encrypted" }), Anthropic.closed(1)],
    [
      Anthropic.opened(2, {
        type: "server_tool_use",
        id: "srvtoolu_own",
        name: "web_search",
        input: { query: "own_query" }
      }),
      Anthropic.closed(2)
    ],
    [
      Anthropic.opened(3, {
        type: "web_search_tool_result",
        tool_use_id: "srvtoolu_own",
        content: [{
          type: "web_search_result",
          url: "https://own.test",
          title: "own",
          encrypted_content: "own_encrypted",
          page_age: null
        }]
      }),
      Anthropic.closed(3)
    ],
    Anthropic.text(4, "Let me look. "),
    Anthropic.called(5, "toolu_a", "search", "{\"query\":\"sky\"}")
  ], "tool_use"),
  gemini: Gemini.body(
    Gemini.chunk([{ text: "Where?", thought: true, thoughtSignature: "own_thought" }]),
    Gemini.chunk([
      { executableCode: { id: "own_run", language: "PYTHON", code: "own()" }, thoughtSignature: "own_signature" },
      { codeExecutionResult: { id: "own_run", outcome: "OUTCOME_OK", output: "own" } }
    ]),
    Gemini.said("Let me look. "),
    Gemini.chunk([{ ...Gemini.call("search", { query: "sky" }), thoughtSignature: "own_signature" }]),
    Gemini.finish("STOP")
  )
}

/** What must come back to the provider that gave it. */
const kept: Readonly<Record<Name, ReadonlyArray<string>>> = {
  chat: ["own_signature"],
  responses: ["own_encrypted", "ws_own"],
  anthropic: ["own_signature", "own_encrypted", "srvtoolu_own"],
  gemini: ["own_thought", "own_signature", "own_run"]
}

const typed = { chat: "openai", responses: "OpenAiResponses", anthropic: "Anthropic", gemini: "Gemini" } as const

const search = Tool.make("search", {
  parameters: { type: "object", properties: {} } as const,
  handler: () => Effect.succeed("seen")
})

/** The second request of a run whose first model is down by then, or is not. */
const secondOf = (from: Name, to: Name, isDown: boolean) =>
  Effect.scoped(Effect.gen(function*() {
    const first = yield* Server.serve((_, index) =>
      index === 0
        ? { pieces: [replies[from]] }
        : isDown
        ? Adapters.json(503, {})
        : { pieces: [protocols[from].whole] }
    )
    const next = yield* Server.serve(() => ({ pieces: [protocols[to].whole] }))
    const models = Adapter.fallback([
      { layer: protocols[from].layer(first.url), name: "first" },
      { layer: protocols[to].layer(next.url), name: "second" }
    ])
    const result = yield* Chat.run("go", { tools: [search] }).pipe(Effect.provide(models))
    assert.deepStrictEqual([from, to, result.outcome._tag], [from, to, "Completed"])
    assert.deepStrictEqual([first.requests.length, next.requests.length], [2, isDown ? 1 : 0])
    return JSON.stringify((isDown ? next.requests[0]! : first.requests[1]!).body)
  }))

describe("a thread begun by another provider", () => {
  for (const from of names) {
    it.live(`G36: what ${from} gave for itself comes back to its server, and to no candidate of another protocol`, () =>
      Effect.gen(function*() {
        const own = yield* secondOf(from, from, false)
        for (const word of kept[from]) assert.include(own, word)
        for (const to of names) {
          const body = yield* secondOf(from, to, true)
          assert.include(body, "Let me look. ")
          assert.include(body, "seen")
          // Platforms share the signatures of a protocol, but for Chat Completions, which many vendors speak.
          if (to !== from || to === "chat") assert.notInclude(body, "own", `${from} to ${to}`)
          else for (const word of kept[from]) assert.include(body, word)
        }
      }))
  }

  it.live("G36: the requests of each candidate behind each other one fit the types of the official SDKs", () =>
    Effect.gen(function*() {
      const bodies: Array<SdkTypes.Body> = []
      for (const from of names) {
        for (const to of names) bodies.push({ protocol: typed[to], body: yield* secondOf(from, to, true) })
      }
      assert.deepStrictEqual([bodies.length, ...SdkTypes.misfits(bodies).values()], [16])
    }))
})
