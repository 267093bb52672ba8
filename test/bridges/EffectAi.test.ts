/**
 * Language models of effect/ai as adapters: replies of a model that `LanguageModel.make` made of a server, over HTTP,
 * whole runs with tools, what goes back, and what becomes of the connection when its reader stops.
 */
import { assert, describe, it } from "@effect/vitest"
import * as AiTool from "effect/ai/Tool"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, Message, Thread, Tool } from "heddle"
import type * as EffectAi from "heddle/bridges/effect-ai"
import { AdapterSuite, Conformance } from "heddle/testing"
import { completed, tagsOf } from "../support/aiSdk.ts"
import * as Models from "../support/effectAi.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"

const { calls, interleavedCalls, of } = Chunks
const { body, call, finish, outcomeOf, outcomeOfParts, stream, text } = Models

const search = AiTool.providerDefined({
  id: "acme.search",
  customName: "search",
  providerName: "web_search",
  args: Schema.Struct({ limit: Schema.Finite }),
  parameters: Schema.Struct({ q: Schema.String }),
  success: Schema.Struct({ hits: Schema.Finite })
})({ limit: 3 })

/** What the model is sent in the turn after a reply of the given parts. */
const sentBack = (parts: ReadonlyArray<Models.Part>, options: EffectAi.Options = {}) =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve((_, index) => ({
      pieces: [index === 0 ? body(...parts) : body(text("Done"), finish("stop"))]
    }))
    const adapter = Models.layer(server.url, options)
    const tool = Tool.make("now", { parameters: {}, handler: () => Effect.succeed("noon") })
    const first = yield* Chat.run("Hi", { tools: [tool] }).pipe(Effect.provide(adapter))
    if (server.requests.length === 1) {
      yield* Chat.run(Thread.append(first.thread, [Message.user("And?")])).pipe(Effect.provide(adapter))
    }
    return server.requests[1]!.body.prompt.slice(1)
  }))

describe("the reply of a language model of effect/ai", () => {
  it.effect("R-334, R-337: the bridge reads text, calls, usage and ids of a model over HTTP", () =>
    Effect.gen(function*() {
      for (const size of [1, 9, 1000]) {
        const { error, events } = yield* outcomeOf({ pieces: Server.pieces(Models.interleaved, size) })
        assert.isUndefined(error)
        assert.strictEqual(of(events, "TextDelta").map(({ delta }) => delta).join(""), "Høj sky 🌤")
        assert.deepStrictEqual(calls(events), interleavedCalls)
        const last = completed(events)
        assert.deepStrictEqual([last.finishReason, last.rawFinishReason], ["tool_calls", "tool-calls"])
        assert.deepStrictEqual(last.message.toolCalls?.map(({ id }) => id), ["call_a", "call_b"])
        assert.deepInclude(last, { responseId: "resp_1", model: "test-model" })
        assert.deepInclude(last.usage, { inputTokens: 5, outputTokens: 2, totalTokens: 7 })
      }
    }))

  it.effect("R-334: reasoning stays apart from the text, and the parts of the usage have their own counts", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOfParts(
        { type: "reasoning-start", id: "r" },
        { type: "reasoning-delta", id: "r", delta: "hm" },
        { type: "reasoning-end", id: "r" },
        text("Yes"),
        finish("stop", {
          usage: {
            inputTokens: { total: 10, uncached: 4, cacheRead: 5, cacheWrite: 1 },
            outputTokens: { total: 6, text: 2, reasoning: 4 }
          }
        })
      )
      assert.deepStrictEqual(of(events, "ReasoningDelta").map(({ delta }) => delta), ["hm"])
      assert.deepInclude(completed(events).usage, {
        inputTokens: 10,
        outputTokens: 6,
        cachedInputTokens: 5,
        cacheWriteInputTokens: 1,
        reasoningTokens: 4,
        totalTokens: 16
      })
    }))

  it.effect("R-348: each finish reason is mapped, and stop with a call means tool_calls", () =>
    Effect.gen(function*() {
      const cases = [
        ["stop", "stop"],
        ["length", "length"],
        ["content-filter", "content_filter"],
        ["tool-calls", "tool_calls"],
        ["error", "error"],
        ["pause", "other"],
        ["other", "other"],
        ["unknown", null]
      ] as const
      for (const [word, reason] of cases) {
        const last = completed((yield* outcomeOfParts(text("a"), finish(word))).events)
        assert.deepStrictEqual([last.finishReason, last.rawFinishReason], [reason, word])
        assert.strictEqual(last.paused, word === "pause" ? true : undefined)
      }
      const called = yield* outcomeOfParts(call("a", "now", {}), finish("stop"))
      assert.strictEqual(completed(called.events).finishReason, "tool_calls")
    }))

  it.effect("O-15: a paused reply goes back, and the run continues", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve((_, index) => ({
        pieces: [index === 0 ? body(text("So far."), finish("pause")) : body(text("Done"), finish("stop"))]
      }))
      const { outcome, steps } = yield* Chat.run("Hi").pipe(Effect.provide(Models.layer(server.url)))
      assert.deepStrictEqual([outcome._tag, steps.length, server.requests.length], ["Completed", 2, 2])
    })))

  it.effect("R-345: arguments are read as an object, as JSON or as nothing; invalid arguments are marked as lost", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOfParts(
        call("a", "now", { q: 1 }),
        call("b", "now", undefined),
        call("c", "now", "{\"q\":2}"),
        call("d", "now", "{\"q\":"),
        call("e", "now", [1]),
        call("f", "now", JSON.parse("{\"__proto__\":{\"x\":1},\"q\":3}")),
        finish("tool-calls")
      )
      assert.sameDeepMembers([...calls(events)], [
        { id: "a", name: "now", arguments: { q: 1 } },
        { id: "b", name: "now", arguments: {} },
        { id: "c", name: "now", arguments: { q: 2 } },
        { id: "d", name: "now", arguments: {}, argumentsLost: "json_decode_error" },
        { id: "e", name: "now", arguments: {}, argumentsLost: "not_an_object" },
        { id: "f", name: "now", arguments: { q: 3 } }
      ])
    }))

  it.effect("R-357: the last call at the token limit is truncated although its arguments are an object", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOfParts(call("a", "now", {}), call("b", "now", { q: 1 }), finish("length"))
      assert.deepStrictEqual(calls(events), [
        { id: "a", name: "now", arguments: {} },
        { id: "b", name: "now", arguments: {}, argumentsLost: "truncated" }
      ])
    }))

  it.effect("a file is part of the message, and the metadata holds sources and approval requests", () =>
    Effect.gen(function*() {
      const { error, events } = yield* outcomeOfParts(
        { type: "file", mediaType: "image/png", data: "iVBO" },
        { type: "source", sourceType: "url", id: "1", url: "https://example.com/", title: "Example" },
        { type: "source", sourceType: "document", id: "2", mediaType: "text/plain", title: "Notes" },
        { type: "tool-approval-request", approvalId: "p", toolCallId: "s" },
        finish("stop", { metadata: { acme: { cached: true } } })
      )
      assert.isUndefined(error)
      assert.deepStrictEqual(completed(events).message.content, [
        { type: "image", mediaType: "image/png", data: "iVBO" }
      ])
      assert.deepStrictEqual(completed(events).metadata?.["effectAi"], {
        sources: [
          { id: "1", sourceType: "url", title: "Example", url: "https://example.com/", metadata: {} },
          { id: "2", sourceType: "document", title: "Notes", mediaType: "text/plain", metadata: {} }
        ],
        approvalRequests: [{ approvalId: "p", toolCallId: "s" }],
        options: { acme: { cached: true } }
      })
    }))
})

describe("a run over effect/ai", () => {
  const celsius = Tool.make("celsius", {
    description: "Temperature of a city",
    parameters: { city: Schema.String },
    handler: ({ city }) => city === "?" ? Effect.fail("no such city") : Effect.succeed({ celsius: 7 })
  })

  it.effect("R-126, R-136: Heddle alone runs the tools, and answers all calls in a single message", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve((_, index) => ({
        pieces: [
          index > 0 ? body(text("Seven"), finish("stop")) : body(
            call("a", "celsius", { city: "Oslo" }),
            call("b", "celsius", { city: "?" }),
            call("c", "celsius", { city: 5 }),
            call("d", "unheard_of", {}),
            finish("tool-calls")
          )
        ]
      }))
      const result = yield* Chat.run("How warm is it?", { tools: [celsius] }).pipe(
        Effect.provide(Models.layer(server.url))
      )
      assert.strictEqual(result.outcome._tag, "Completed")
      const [first, second] = server.requests
      assert.deepStrictEqual(first?.body.validation, "deferred")
      const [, assistant, answers] = second!.body.prompt
      assert.deepStrictEqual(assistant.content.map((part: any) => [part.type, part.id, part.name, part.params]), [
        ["tool-call", "a", "celsius", { city: "Oslo" }],
        ["tool-call", "b", "celsius", { city: "?" }],
        ["tool-call", "c", "celsius", { city: 5 }],
        ["tool-call", "d", "unheard_of", {}]
      ])
      assert.deepStrictEqual(answers.content.map((part: any) => [part.id, part.name, part.isFailure]), [
        ["a", "celsius", false],
        ["b", "celsius", true],
        ["c", "celsius", true],
        ["d", "unheard_of", true]
      ])
      assert.strictEqual(answers.content[0].result, "{\"celsius\":7}")
      assert.strictEqual(answers.content[1].result, "{\"error\":\"no such city\"}")
      assert.match(answers.content[2].result, /invalid_arguments/)
      assert.match(answers.content[3].result, /unknown_tool/)
    })))

  it.effect("design, law 6: the awaited run equals the result of the streamed run", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve((_, index) => ({
        pieces: [
          index % 2 === 1
            ? body(text("Seven"), finish("stop"))
            : body(call("a", "celsius", { city: "Oslo" }), finish("tool-calls"))
        ]
      }))
      const adapter = Models.layer(server.url)
      const options = { tools: [celsius], requestId: "r" }
      const events = yield* Stream.runCollect(Chat.stream("Hi", options)).pipe(Effect.provide(adapter))
      const awaited = yield* Chat.run("Hi", options).pipe(Effect.provide(adapter))
      const last = events.at(-1)
      assert.deepStrictEqual(last?._tag === "ChatCompleted" ? last.result : undefined, awaited)
    })))
})

describe("a turn in the next request to effect/ai", () => {
  it.effect("R-342: the provider metadata of reasoning, texts and calls goes back unchanged", () =>
    Effect.gen(function*() {
      const [assistant] = yield* sentBack([
        { type: "reasoning-start", id: "1", metadata: { acme: { id: "a" } } },
        { type: "reasoning-delta", id: "1", delta: "hm" },
        { type: "reasoning-delta", id: "1", delta: "", metadata: { acme: { signature: "x" } } },
        { type: "reasoning-end", id: "1" },
        text("Look"),
        { type: "text-end", id: "0", metadata: { acme: { itemId: "t" } } },
        call("c", "now", {}, { metadata: { acme: { thoughtSignature: "s" } } }),
        finish("tool-calls")
      ])
      assert.deepStrictEqual(assistant.content, [
        { type: "reasoning", text: "hm", options: { acme: { id: "a", signature: "x" } } },
        { type: "text", text: "Look", options: { acme: { itemId: "t" } } },
        {
          type: "tool-call",
          id: "c",
          name: "now",
          params: {},
          providerExecuted: false,
          options: { acme: { thoughtSignature: "s" } }
        }
      ])
    }))

  it.effect("R-332: a provider-executed call is listed, never runs, and goes back in place with its result", () =>
    Effect.gen(function*() {
      const parts: ReadonlyArray<Models.Part> = [
        text("Looking. "),
        call("s", "search", { q: "x" }, { providerExecuted: true, metadata: { acme: { itemId: "ws" } } }),
        {
          type: "tool-result",
          id: "s",
          name: "search",
          result: { hits: 0 },
          isFailure: false,
          providerExecuted: true,
          preliminary: true
        },
        { type: "tool-result", id: "s", name: "search", result: { hits: 1 }, isFailure: false, providerExecuted: true },
        text("Found.", "1"),
        finish("stop")
      ]
      const options = { providerTools: [search] }
      const { events } = yield* outcomeOf(body(...parts), options)
      const [only] = of(events, "ToolCallCompleted")
      assert.deepStrictEqual([only?.providerExecuted, only?.arguments], [true, { q: "x" }])
      assert.strictEqual(completed(events).finishReason, "stop")
      const [assistant] = yield* sentBack(parts, options)
      assert.deepStrictEqual(
        assistant.content.map(({ type, ...rest }: any) => [type, rest.text ?? rest.result ?? rest.params]),
        [
          ["text", "Looking. "],
          ["tool-call", { q: "x" }],
          ["tool-result", { hits: 1 }],
          ["text", "Found."]
        ]
      )
      assert.deepInclude(assistant.content[1], { providerExecuted: true, options: { acme: { itemId: "ws" } } })
    }))

  it.effect("a generated file goes back with its message", () =>
    Effect.gen(function*() {
      const [assistant] = yield* sentBack([
        { type: "file", mediaType: "image/png", data: "iVBO", metadata: { acme: { a: 1 } } },
        text("Here"),
        finish("stop")
      ])
      assert.deepStrictEqual(assistant.content, [
        { type: "file", mediaType: "image/png", data: "iVBO", options: { acme: { a: 1 } } },
        { type: "text", text: "Here", options: {} }
      ])
    }))
})

describe("connections of effect/ai", () => {
  const waiting: Server.Answer = { pieces: [body(text("a"))], ending: "open" }

  it.effect("R-144: a reader that leaves closes the socket", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => waiting)
      const seen = yield* Stream.runCollect(Stream.take(stream(Models.layer(server.url)), 2))
      assert.deepStrictEqual(tagsOf(seen), ["MessageStarted", "TextDelta"])
      assert.deepStrictEqual(yield* server.settled, { answered: 1, left: 1 })
    })))

  it.effect("R-144: an interruption closes the socket before the answer and during the answer", () =>
    Effect.scoped(Effect.gen(function*() {
      const arrived = yield* Latch.make()
      const server = yield* Server.serve((_, index) => {
        if (index === 0) return waiting
        arrived.openUnsafe()
        return { pieces: [], ending: "open" }
      })
      const events = stream(Models.layer(server.url))
      const started = yield* Latch.make()
      const within = yield* Effect.forkChild(
        Stream.runForEach(events, (event) => event._tag === "TextDelta" ? started.open : Effect.void)
      )
      yield* started.await
      yield* Fiber.interrupt(within)
      const before = yield* Effect.forkChild(Stream.runDrain(events))
      yield* arrived.await
      yield* Fiber.interrupt(before)
      assert.deepStrictEqual(yield* server.settled, { answered: 2, left: 2 })
    })))

  it.effect("R-144: an interruption reaches a streaming model, and its finalizers run first", () =>
    Effect.gen(function*() {
      const log: Array<string> = []
      const started = yield* Latch.make()
      const adapter = Models.scripted(() =>
        Stream.concat(Stream.make(text("a")), Stream.fromEffectDrain(Effect.andThen(started.open, Effect.never))).pipe(
          Stream.ensuring(Effect.sync(() => log.push("released")))
        )
      )
      const fiber = yield* Effect.forkChild(Stream.runDrain(stream(adapter)))
      yield* started.await
      yield* Fiber.interrupt(fiber)
      assert.deepStrictEqual(log, ["released"])
    }))

  class ModelServer extends Context.Service<ModelServer, Server.Server>()("test/ModelServer") {}

  const served = (answer: Server.Answer) => Layer.effect(ModelServer, Server.serve(() => answer))
  const adapter = Layer.unwrap(Effect.map(ModelServer, (server) => Models.layer(server.url)))
  const request = { ...Chunks.request, tools: [{ name: "search", description: "", parameters: {} }] }

  const connections = Effect.flatMap(
    ModelServer,
    (server) => Effect.map(server.settled, ({ answered }) => ({ opened: server.requests.length, closed: answered }))
  )

  Conformance.register(
    AdapterSuite.answering({ request, connections }),
    Layer.provideMerge(adapter, served({ pieces: Server.pieces(Models.interleaved, 50) })),
    (name, run) => {
      it(name, run)
    }
  )

  Conformance.register(
    AdapterSuite.failing({ request, connections }),
    Layer.provideMerge(adapter, served({ status: 401, pieces: ["no"] })),
    (name, run) => {
      it(name, run)
    }
  )
})
