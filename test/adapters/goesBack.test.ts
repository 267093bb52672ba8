/**
 * What a server made and its thread holds: it goes back to that server unchanged, and to no other: reasoning that it
 * demands, fields that only it can read, and ids.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { type Adapter, Chat, Message, Tool } from "heddle"
import type { OpenAiChat } from "heddle/adapters"
import * as Anthropic from "../support/anthropic.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Responses from "../support/openAiResponses.ts"
import * as Server from "../support/server.ts"

type Options = Partial<OpenAiChat.Options>
type Json = Readonly<Record<string, any>>

const look = Tool.make("look", { parameters: {}, handler: () => Effect.succeed("a") })

const lookAt = (id: string, extra: Json = {}) =>
  Chunks.call({ index: 0, id, type: "function", name: "look", arguments: "{}", ...extra })

const called = (...chunks: ReadonlyArray<Json>) => Chunks.body(...chunks, Chunks.finish("tool_calls"))

const answered = Chunks.body(Chunks.said("It is a."), Chunks.finish("stop"))

/** The messages of the assistant, as they go out behind a reply: to the server that made it, and to another one. */
const sentBack = (reply: string, options: Options = {}, other: Options = options) =>
  Effect.scoped(Effect.gen(function*() {
    const own = yield* Server.serve((_, index) => ({ pieces: [index === 0 ? reply : answered] }))
    const foreign = yield* Server.serve(() => ({ pieces: [answered] }))
    const { thread } = yield* Chat.run("go", { tools: [look] }).pipe(Effect.provide(Chunks.layer(own.url, options)))
    const again = [...thread.messages, Message.user("and?")]
    yield* Chat.run({ messages: again }, { tools: [look] }).pipe(Effect.provide(Chunks.layer(own.url, options)))
    yield* Chat.run({ messages: again }, { tools: [look] }).pipe(Effect.provide(Chunks.layer(foreign.url, other)))
    const first = (body: any): Json => body.messages.find(({ role }: Json) => role === "assistant")
    const [, second, third] = own.requests
    assert.deepStrictEqual(first(third!.body), first(second!.body), "a later request says the same")
    return { own: first(second!.body), foreign: first(foreign.requests[0]!.body), body: second!.body as Json }
  }))

describe("O-67: opaque fields of a reply", () => {
  const signature = { google: { thought_signature: "abc" } }

  it.effect("O-67, O-39: opaque fields of a message and a call go back to their own server, and to no other server", () =>
    Effect.gen(function*() {
      const fields = {
        extra_content: signature,
        thought_signature: "s1",
        provider_specific_fields: { thought_signatures: ["s2"] },
        reasoning_opaque: "opaque",
        encrypted_state: "e"
      }
      const { foreign, own } = yield* sentBack(called(
        Chunks.chunk({ role: "assistant", content: null, ...fields }),
        lookAt("a", { extra_content: signature, thought_signature: "s3", provider_specific_fields: { x: 1 } })
      ))
      const { content: _, role: __, tool_calls: [call], ...rest } = own
      assert.deepStrictEqual(rest, fields)
      assert.deepStrictEqual(
        [call.extra_content, call.thought_signature, call.provider_specific_fields],
        [signature, "s3", { x: 1 }]
      )
      assert.deepStrictEqual(Object.keys(foreign), ["role", "content", "tool_calls"])
      assert.deepStrictEqual(Object.keys(foreign["tool_calls"][0]), ["id", "type", "function"])
    }))

  it.effect("O-67: opaque fields inside the function of a call go back inside the function", () =>
    Effect.gen(function*() {
      const reply = Chunks.body(
        Chunks.chunk({
          tool_calls: [{
            index: 0,
            id: "a",
            type: "function",
            function: { name: "look", arguments: "{}", provider_specific_fields: { thought_signature: "s" } }
          }]
        }),
        Chunks.finish("tool_calls")
      )
      const { foreign, own } = yield* sentBack(reply)
      assert.deepStrictEqual(own["tool_calls"][0].function, {
        name: "look",
        arguments: "{}",
        provider_specific_fields: { thought_signature: "s" }
      })
      assert.deepStrictEqual(foreign["tool_calls"][0].function, { name: "look", arguments: "{}" })
    }))

  it.effect("O-67: thinking blocks that come in pieces go back whole, each with its signature", () =>
    Effect.gen(function*() {
      const block = (piece: Json) => Chunks.chunk({ thinking_blocks: [{ type: "thinking", ...piece }] })
      const { foreign, own } = yield* sentBack(called(
        block({ thinking: "I ", signature: "" }),
        block({ thinking: "think.", signature: null }),
        block({ thinking: "", signature: "s1" }),
        block({ thinking: "More.", signature: "" }),
        block({ thinking: "", signature: "s2" }),
        Chunks.chunk({ thinking_blocks: [{ type: "redacted_thinking", data: "x" }] }),
        lookAt("a")
      ))
      assert.deepStrictEqual(own["thinking_blocks"], [
        { type: "thinking", thinking: "I think.", signature: "s1" },
        { type: "thinking", thinking: "More.", signature: "s2" },
        { type: "redacted_thinking", data: "x" }
      ])
      assert.notProperty(foreign, "thinking_blocks")
    }))

  it.effect("O-67: reasoning details go back to the server that made them, also without a known vendor", () =>
    Effect.gen(function*() {
      const details = [{ type: "reasoning.encrypted", id: "a", data: "x" }]
      const reply = called(Chunks.chunk({ reasoning_details: details }), lookAt("a"))
      const { foreign, own } = yield* sentBack(reply)
      assert.deepStrictEqual(own["reasoning_details"], details)
      assert.notProperty(foreign, "reasoning_details")
      assert.notProperty((yield* sentBack(reply, { sendReasoningAs: "none" })).own, "reasoning_details")
      const behind = yield* sentBack(reply, { vendor: "openrouter" })
      assert.deepStrictEqual(behind.foreign["reasoning_details"], details, "the same vendor at another address")
    }))

  it.effect("O-67: `reasoning_text` is reasoning, and goes back together with GitHub Copilot's signature", () =>
    Effect.scoped(Effect.gen(function*() {
      const reply = called(
        Chunks.chunk({ reasoning_text: "I should " }),
        Chunks.chunk({ reasoning_text: "look.", reasoning_opaque: "sig" }),
        lookAt("a")
      )
      const { foreign, own } = yield* sentBack(reply)
      assert.deepInclude(own, { reasoning_text: "I should look.", reasoning_opaque: "sig" })
      assert.notProperty(foreign, "reasoning_text")
      const { events } = yield* Chunks.outcomeOf(reply)
      assert.deepStrictEqual(Chunks.of(events, "ReasoningDelta").map(({ delta }) => delta), ["I should ", "look."])
    })))

  it.effect("O-67: other unknown fields never go back", () =>
    Effect.gen(function*() {
      const { own } = yield* sentBack(called(
        Chunks.chunk({ padding: "xxx", annotations: [{ type: "url_citation" }], executed_tools: [{}], refusal: "" }),
        lookAt("a", { custom: { x: 1 } })
      ))
      assert.deepStrictEqual(Object.keys(own), ["role", "content", "tool_calls"])
      assert.deepStrictEqual(Object.keys(own["tool_calls"][0]), ["id", "type", "function"])
    }))
})

describe("O-06: reasoning that a vendor demands", () => {
  const thought = Chunks.chunk({ role: "assistant", content: null, reasoning_content: "I should look." })

  it.effect("O-06: every later request to DeepSeek has the reasoning of each message with calls, even if empty", () =>
    Effect.gen(function*() {
      const { own } = yield* sentBack(called(thought, lookAt("a")), { vendor: "deepseek" })
      assert.strictEqual(own["reasoning_content"], "I should look.")
      const silent = yield* sentBack(called(lookAt("a")), { vendor: "deepseek" })
      assert.strictEqual(silent.own["reasoning_content"], "")
      const still = yield* sentBack(called(lookAt("a")), { vendor: "deepseek", reasoning: { enabled: false } })
      assert.notProperty(still.own, "reasoning_content")
    }))

  it.effect("O-06: every later request to Kimi has the reasoning of each call, or a placeholder for empty reasoning", () =>
    Effect.gen(function*() {
      const { own } = yield* sentBack(called(thought, lookAt("a")), { vendor: "moonshot" })
      assert.strictEqual(own["reasoning_content"], "I should look.")
      for (const empty of [called(lookAt("a")), called(Chunks.chunk({ reasoning_content: "" }), lookAt("a"))]) {
        const silent = yield* sentBack(empty, { vendor: "moonshot" })
        assert.strictEqual(silent.own["reasoning_content"], "(no reasoning)")
        const again = yield* sentBack(empty, { vendor: "moonshot" })
        assert.strictEqual(again.own["reasoning_content"], silent.own["reasoning_content"], "always the same")
      }
      const off: Options = { vendor: "moonshot", options: { thinking: { type: "disabled" } } }
      assert.notProperty((yield* sentBack(called(lookAt("a")), off)).own, "reasoning_content")
      const resting: Options = { vendor: "moonshot", model: "moonshot-v1-8k" }
      assert.notProperty((yield* sentBack(called(lookAt("a")), resting)).own, "reasoning_content")
    }))

  it.effect("O-06: a request with thinking omits a forced tool choice for a vendor that refuses both together", () =>
    Effect.scoped(Effect.gen(function*() {
      const choice = (options: Options, toolChoice: Adapter.ToolChoice) =>
        Effect.scoped(Effect.gen(function*() {
          const server = yield* Server.serve(() => ({ pieces: [answered] }))
          const request = { ...Chunks.request, tools: [Tool.definition(look)], toolChoice }
          yield* Stream.runDrain(Chunks.stream(server.url, options, request))
          return server.requests[0]!.body.tool_choice
        }))
      const named = { type: "function", function: { name: "look" } }
      for (const vendor of ["moonshot", "deepseek"] as const) {
        assert.isUndefined(yield* choice({ vendor }, "required"))
        assert.isUndefined(yield* choice({ vendor }, { name: "look" }))
        assert.strictEqual(yield* choice({ vendor }, "none"), "none")
        assert.strictEqual(yield* choice({ vendor, reasoning: { enabled: false } }, "required"), "required")
        assert.deepStrictEqual(yield* choice({ vendor, reasoning: { enabled: false } }, { name: "look" }), named)
      }
      assert.isUndefined(yield* choice({ vendor: "qwen", reasoning: { enabled: true } }, "required"))
      assert.strictEqual(yield* choice({ vendor: "qwen" }, "required"), "required")
      assert.strictEqual(yield* choice({ vendor: "zai" }, "required"), "required")
    })))

  it.effect("O-06: a 400 error about reasoning_content names the missing option, unless the vendor is set", () =>
    Effect.gen(function*() {
      const refusal = (options: Options) =>
        Effect.map(
          Chunks.outcomeOf({
            status: 400,
            pieces: [JSON.stringify({ error: { message: "The `reasoning_content` must be passed back to the API." } })]
          }, options),
          ({ error }) => error!
        )
      const unknown = yield* refusal({})
      assert.include(unknown.detail, "must be passed back to the API.; give OpenAiChat.layer the vendor of the server")
      assert.include(unknown.detail, "sendReasoningAs: \"reasoning_content\"")
      assert.deepStrictEqual([unknown.status, unknown.reason], [400, "invalid_request"])
      assert.notInclude((yield* refusal({ vendor: "deepseek" })).detail, "OpenAiChat.layer")
    }))

  it.effect("O-39: the provider name of an error is the vendor's, unless an option names the provider", () =>
    Effect.gen(function*() {
      const providerOf = (options: Options) =>
        Effect.map(Chunks.outcomeOf({ status: 400, pieces: ["{}"] }, options), ({ error }) => error!.provider)
      assert.strictEqual(yield* providerOf({ vendor: "deepseek" }), "deepseek")
      assert.strictEqual(yield* providerOf({ vendor: "deepseek", provider: "gateway" }), "gateway")
      assert.strictEqual(yield* providerOf({}), "openai")
    }))
})

describe("O-66: call ids in later requests", () => {
  const long = `tool_look_${"Zm9v".repeat(40)}__thought__${"c2ln".repeat(200)}`
  const odd = `functions.look:0 ${"x".repeat(60)}`

  interface Protocol {
    readonly layer: (url: string) => Layer.Layer<Adapter.Adapter>
    readonly called: (id: string) => string
    readonly answered: string
    readonly longest: number
    /** The ids of the call and of its answer. */
    readonly ids: (body: any) => readonly [string, string]
  }

  const protocols: Readonly<Record<string, Protocol>> = {
    OpenAiChat: {
      layer: Chunks.layer,
      called: (id) => called(lookAt(id)),
      answered,
      longest: 40,
      ids: ({ messages }) => [messages[1].tool_calls[0].id, messages[2].tool_call_id]
    },
    OpenAiResponses: {
      layer: Responses.layer,
      called: (id) =>
        Responses.body(
          Responses.created,
          Responses.done(0, Responses.call(id, "look", "{}")),
          Responses.completed()
        ),
      answered: Responses.body(Responses.created, Responses.said("ok"), Responses.completed()),
      longest: 64,
      ids: ({ input }) => [input[1].call_id, input[2].call_id]
    },
    Anthropic: {
      layer: Anthropic.layer,
      called: (id) => Anthropic.reply([Anthropic.called(0, id, "look", "{}")], "tool_use"),
      answered: Anthropic.reply([Anthropic.text(0, "ok")], "end_turn"),
      longest: 40,
      ids: ({ messages }) => [messages[1].content[0].id, messages[2].content[0].tool_use_id]
    }
  }

  for (const [name, protocol] of Object.entries(protocols)) {
    it.effect(`O-66: ${name}: an id of any length goes back to its own server unchanged, and shortened to another server`, () =>
      Effect.scoped(Effect.gen(function*() {
        for (const id of [long, odd]) {
          const own = yield* Server.serve((_, index) => ({
            pieces: [index === 0 ? protocol.called(id) : protocol.answered]
          }))
          const foreign = yield* Server.serve(() => ({ pieces: [protocol.answered] }))
          const { thread } = yield* Chat.run("go", { tools: [look] }).pipe(Effect.provide(protocol.layer(own.url)))
          assert.deepStrictEqual(protocol.ids(own.requests[1]!.body), [id, id])
          const again = { messages: [...thread.messages, Message.user("and?")] }
          yield* Chat.run(again, { tools: [look] }).pipe(Effect.provide(protocol.layer(own.url)))
          assert.deepStrictEqual(protocol.ids(own.requests[2]!.body), [id, id])
          yield* Chat.run(again, { tools: [look] }).pipe(Effect.provide(protocol.layer(foreign.url)))
          const [sent, answer] = protocol.ids(foreign.requests[0]!.body)
          assert.strictEqual(sent, answer)
          assert.isAtMost(sent.length, protocol.longest)
        }
      })))
  }

  it.effect("O-17: Mistral gets ids of nine letters and digits, and no id twice", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({ pieces: [answered] }))
      const turn = [
        Message.assistant("", [Message.toolCall("call_0123456789", "look")]),
        Message.tool("call_0123456789", "a")
      ]
      const messages = [Message.user("go"), ...turn, Message.user("go"), ...turn, Message.user("go")]
      yield* Stream.runDrain(Chunks.stream(server.url, { vendor: "mistral" }, { ...Chunks.request, messages }))
      const ids: ReadonlyArray<string> = server.requests[0]!.body.messages.flatMap(({ tool_calls = [] }: Json) =>
        tool_calls.map(({ id }: Json) => id)
      )
      for (const id of ids) assert.match(id, /^[A-Za-z0-9]{9}$/)
      assert.strictEqual(new Set(ids).size, 2)
    })))
})
