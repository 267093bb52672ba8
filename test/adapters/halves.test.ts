/**
 * Halves of surrogate pairs: providers refuse a whole conversation for one, so no request holds any, wherever it came
 * from.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import { type Adapter, Chat, Message, Tool } from "heddle"
import * as AiSdk from "../support/aiSdk.ts"
import * as Anthropic from "../support/anthropic.ts"
import * as Gemini from "../support/gemini.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Responses from "../support/openAiResponses.ts"
import * as Server from "../support/server.ts"

interface Protocol {
  readonly layer: (url: string) => Layer.Layer<Adapter.Adapter>
  readonly called: (name: string, args: string) => string
  readonly said: (text: string) => string
}

const chat = {
  called: (name: string, args: string) =>
    Chunks.body(
      Chunks.call({ index: 0, id: "a", type: "function", name, arguments: args }),
      Chunks.finish("tool_calls")
    ),
  said: (text: string) => Chunks.body(Chunks.said(text), Chunks.finish("stop"))
}

const protocols: Readonly<Record<string, Protocol>> = {
  OpenAiChat: { ...chat, layer: Chunks.layer },
  OpenAiResponses: {
    layer: Responses.layer,
    called: (name, args) =>
      Responses.body(Responses.created, Responses.done(0, Responses.call("a", name, args)), Responses.completed()),
    said: (text) => Responses.body(Responses.created, Responses.said(text), Responses.completed())
  },
  Anthropic: {
    layer: Anthropic.layer,
    called: (name, args) => Anthropic.reply([Anthropic.called(0, "a", name, args)], "tool_use"),
    said: (text) => Anthropic.reply([Anthropic.text(0, text)], "end_turn")
  },
  Gemini: {
    layer: Gemini.layer,
    called: (name, args) =>
      Gemini.body(Gemini.chunk([{ functionCall: { name, args: JSON.parse(args) } }]), Gemini.finish("STOP")),
    said: (text) => Gemini.body(Gemini.chunk([{ text }]), Gemini.finish("STOP"))
  },
  "the AI SDK": { ...chat, layer: (url) => AiSdk.layer(url) }
}

const half = "\ud83d"

/** The texts of a body that hold a half, in letters or as an escape of the JSON in a text. */
const halvesIn = (value: unknown): ReadonlyArray<string> => {
  if (typeof value === "string") {
    const isHalved = /\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f])|(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f][0-9a-f]{2}/i.test(value)
    return value.isWellFormed() && !isHalved ? [] : [value]
  }
  return typeof value === "object" && value !== null
    ? Object.entries(value).flatMap(([key, member]) => [...halvesIn(key), ...halvesIn(member)])
    : []
}

describe("O-12: lone surrogates", () => {
  for (const [name, { called, layer, said }] of Object.entries(protocols)) {
    const sent = (
      handler: (args: unknown) => Effect.Effect<unknown, unknown>,
      { args = "{}", system = "Be kind.", user = "go" }: {
        readonly args?: string
        readonly system?: string
        readonly user?: string
      } = {}
    ) =>
      Effect.scoped(Effect.gen(function*() {
        const server = yield* Server.serve((_, index) => ({
          pieces: [index === 0 ? called("look", args) : said("ok")]
        }))
        const look = Tool.make("look", { parameters: { type: "object", additionalProperties: true }, handler })
        const result = yield* Chat.run([{ role: "user", content: user }], { tools: [look], system }).pipe(
          Effect.provide(layer(server.url))
        )
        assert.strictEqual(result.outcome._tag, "Completed")
        assert.deepStrictEqual(halvesIn(result.thread.messages.map(({ content }) => content)), [], "the thread")
        return server.requests.map(({ body }) => body)
      }))

    it.effect(`O-12: ${name}: no request holds a lone surrogate from a user, a system text, a result, an error or the model`, () =>
      Effect.gen(function*() {
        const bodies = yield* Effect.all([
          sent(() => Effect.succeed(`ok ${half} end`)),
          sent(() => Effect.succeed({ text: "\ude00", [`key ${half}`]: [half] })),
          sent(() => Effect.succeed(Tool.content([{ type: "text", text: half }, { type: "text", text: "ok" }]))),
          sent(() => Effect.fail(`no ${half}`)),
          sent(() => Effect.fail({ _tag: "NotFound", path: half })),
          sent(() => Effect.die(new Error(half))),
          sent(Effect.succeed, { args: "{\"q\":\"\\ud83d\",\"r\":[\"\\ude00\"]}" }),
          sent(() => Effect.succeed("ok"), { user: `hi ${half}`, system: `Be ${half}` })
        ])
        assert.strictEqual(bodies.flat().length, 16)
        assert.deepStrictEqual(halvesIn(bodies), [])
        assert.include(JSON.stringify(bodies), "\ufffd")
      }))

    it.effect(`O-12: ${name}: surrogate pairs stay whole, escaped or not, and escapes in program source stay unchanged`, () =>
      Effect.gen(function*() {
        const source = String.raw`/[\ud83d-\udbff]/ "\\ud83d"`
        const [, body] = yield* sent(() => Effect.succeed({ face: "😀" }), { args: "{\"q\":\"\\ud83d\\ude00\"}" })
        const told = JSON.stringify(body)
        assert.include(told, "😀")
        assert.notInclude(told, "\ufffd")
        const plain = yield* Effect.scoped(Effect.gen(function*() {
          const server = yield* Server.serve((_, index) => ({
            pieces: [index === 0 ? called("look", "{}") : said("ok")]
          }))
          const look = Tool.make("look", { parameters: {}, handler: () => Effect.succeed(source) })
          yield* Chat.run("go", { tools: [look] }).pipe(Effect.provide(layer(server.url)))
          return JSON.stringify(server.requests[1]!.body)
        }))
        assert.include(plain, JSON.stringify(source).slice(1, -1))
      }))
  }

  it.effect("O-12: ids that differ only by a lone surrogate stay different, and each answer names its call", () =>
    Effect.scoped(Effect.gen(function*() {
      const ids = ["\ud802", "\ud800", "a"]
      for (const protocol of ["OpenAiChat", "OpenAiResponses", "Anthropic", "the AI SDK"]) {
        const { layer, said } = protocols[protocol]!
        const server = yield* Server.serve(() => ({ pieces: [said("ok")] }))
        const turn = (some: ReadonlyArray<string>) => [
          Message.assistant("", some.map((id) => Message.toolCall(id, "look"))),
          ...some.map((id) => Message.tool(id, "found"))
        ]
        yield* Chat.run([Message.user("go"), ...turn(ids), Message.user("on")]).pipe(
          Effect.provide(layer(server.url))
        )
        const { input, messages } = server.requests[0]!.body
        const pieces: ReadonlyArray<any> = (messages ?? input).flatMap(({ content, tool_calls, ...rest }: any) => [
          rest,
          ...(tool_calls ?? []),
          ...(Array.isArray(content) ? content : [])
        ])
        const called = pieces.flatMap(({ call_id, function: named, id, type }) =>
          type === "function_call" ? [call_id] : type === "tool_use" || named !== undefined ? [id] : []
        )
        const answered = pieces.flatMap(({ call_id, tool_call_id, tool_use_id, type }) =>
          tool_call_id ?? tool_use_id ?? (type === "function_call_output" ? call_id : undefined) ?? []
        )
        assert.strictEqual(new Set(called).size, 3, protocol)
        assert.deepStrictEqual(answered, called, protocol)
        assert.include(called, "a")
      }
    })))

  it.effect("O-12: the two halves of a surrogate pair in two deltas join to a pair", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({
        pieces: [Chunks.body(Chunks.said("a\ud83d"), Chunks.said("\ude00b"), Chunks.finish("stop"))]
      }))
      const { finalResponse, thread } = yield* Chat.run("go").pipe(Effect.provide(Chunks.layer(server.url)))
      assert.strictEqual(finalResponse?.outputText, "a😀b")
      assert.strictEqual(Message.text(thread.messages[1]!), "a😀b")
    })))
})
