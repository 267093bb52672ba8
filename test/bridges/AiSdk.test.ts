/**
 * Models of the AI SDK's own packages as adapters, over HTTP: what their replies come to in every version of the
 * interface, whole runs with tools, and what becomes of the connection when its reader stops.
 */
import { assert, describe, it } from "@effect/vitest"
import { extractReasoningMiddleware, simulateStreamingMiddleware, wrapLanguageModel } from "ai"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, Message, Thread, Tool } from "heddle"
import * as AiSdk from "heddle/bridges/ai-sdk"
import { AdapterSuite, Conformance } from "heddle/testing"
import * as Models from "../support/aiSdk.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"

const { body, call, calls, chunk, finish, interleaved, interleavedCalls, of, said, usage } = Chunks
const { completed, outcomeOf, tagsOf, versions } = Models

describe("the reply of a bridged model", () => {
  for (const version of versions) {
    it.effect(`R-334, R-337: the bridge reads text, calls, usage and ids from a model of version ${version}`, () =>
      Effect.gen(function*() {
        const { error, events } = yield* outcomeOf(interleaved, version)
        assert.isUndefined(error)
        assert.deepStrictEqual(of(events, "TextDelta").map(({ delta }) => delta), ["Høj ", "sky 🌤"])
        assert.deepStrictEqual(calls(events), interleavedCalls)
        assert.strictEqual(tagsOf(events)[0], "MessageStarted")
        const last = completed(events)
        assert.strictEqual(last.finishReason, "tool_calls")
        assert.strictEqual(last.message.content, "Høj sky 🌤")
        assert.deepStrictEqual(last.message.toolCalls?.map(({ id }) => id), ["call_a", "call_b"])
        assert.deepInclude(last, { responseId: "chatcmpl-1", model: "test-model" })
        assert.deepInclude(last.usage, { inputTokens: 12, outputTokens: 7, totalTokens: 19 })
      }))

    it.effect(`R-334: reasoning stays apart from the text in version ${version}, and goes back unchanged`, () =>
      Effect.scoped(Effect.gen(function*() {
        const answer = body(
          chunk({ reasoning_content: "Let me " }),
          chunk({ reasoning_content: "see" }),
          said("Yes"),
          finish("stop")
        )
        const server = yield* Server.serve(() => ({ pieces: [answer] }))
        const adapter = Models.layer(server.url, version)
        const { thread } = yield* Chat.run("Is it?", {}).pipe(Effect.provide(adapter))
        assert.strictEqual(thread.messages[1]?.content, "Yes")
        yield* Chat.run(Thread.append(thread, [Message.user("Sure?")])).pipe(Effect.provide(adapter))
        const [, assistant] = server.requests[1]!.body.messages
        assert.strictEqual(assistant.reasoning_content, "Let me see")
        assert.strictEqual(assistant.content, "Yes")
      })))

    it.effect(`R-357: a call cut by the token limit is truncated, and the call before is whole, in version ${version}`, () =>
      Effect.gen(function*() {
        const { events } = yield* outcomeOf(
          body(
            call({ index: 0, id: "a", name: "search", arguments: "{\"q\":1}" }),
            call({ index: 1, id: "b", name: "search", arguments: "{\"q\":" }),
            finish("length")
          ),
          version
        )
        assert.deepStrictEqual(calls(events), [
          { id: "a", name: "search", arguments: { q: 1 } },
          { id: "b", name: "search", arguments: {}, argumentsLost: "truncated" }
        ])
        assert.strictEqual(completed(events).finishReason, "length")
      }))

    it.effect(`R-348: each finish reason of version ${version} is mapped, and the provider's own is kept`, () =>
      Effect.gen(function*() {
        for (
          const [word, reason] of [["stop", "stop"], ["length", "length"], [
            "content_filter",
            "content_filter"
          ]] as const
        ) {
          const last = completed((yield* outcomeOf(body(said("a"), finish(word)), version)).events)
          assert.strictEqual(last.finishReason, reason)
          assert.strictEqual(last.rawFinishReason, version === "v2" ? word.replace("_", "-") : word)
        }
      }))
  }

  it.effect("R-344: a reply with a call and finish reason stop is a tool turn", () =>
    Effect.gen(function*() {
      const reply = body(call({ index: 0, id: "a", name: "now", arguments: "{}" }), finish("stop"))
      const last = completed((yield* outcomeOf(reply)).events)
      assert.strictEqual(last.finishReason, "tool_calls")
      assert.strictEqual(last.rawFinishReason, "stop")
    }))

  it.effect("R-345: arguments that are not a JSON object are marked as lost, and a __proto__ key is dropped", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(
        call({ index: 0, id: "a", name: "search", arguments: "{\"q\": oops}" }),
        call({ index: 1, id: "b", name: "search", arguments: "[1]" }),
        call({ index: 2, id: "c", name: "search", arguments: "" }),
        call({ index: 3, id: "d", name: "search", arguments: "{\"__proto__\":{\"x\":1},\"q\":1}" }),
        finish("tool_calls")
      ))
      assert.sameDeepMembers([...calls(events)], [
        { id: "a", name: "search", arguments: {}, argumentsLost: "json_decode_error" },
        { id: "b", name: "search", arguments: {}, argumentsLost: "not_an_object" },
        { id: "c", name: "search", arguments: {} },
        { id: "d", name: "search", arguments: { q: 1 } }
      ])
      const made = completed(events).message.toolCalls ?? []
      assert.deepStrictEqual(made.map(({ id }) => id), ["a", "b", "c", "d"])
      assert.isFalse(made.some((item) => Object.hasOwn(item.arguments, "__proto__")))
    }))

  it.effect("R-350: the parts of the usage have their own counts, and the provider's raw usage is kept", () =>
    Effect.gen(function*() {
      const figures = {
        prompt_tokens: 10,
        completion_tokens: 5,
        total_tokens: 15,
        prompt_tokens_details: { cached_tokens: 4 },
        completion_tokens_details: { reasoning_tokens: 3 }
      }
      const { events } = yield* outcomeOf(body(said("a"), finish("stop"), usage(figures)))
      const reported = completed(events).usage
      assert.deepInclude(reported, { inputTokens: 10, outputTokens: 5, cachedInputTokens: 4, reasoningTokens: 3 })
      assert.deepStrictEqual((reported as any).extra, { raw: figures })
    }))

  it.effect("a body in pieces of any size reads alike", () =>
    Effect.gen(function*() {
      const { events: expected } = yield* outcomeOf(interleaved)
      for (const size of [1, 7, 100]) {
        const { error, events } = yield* outcomeOf({ pieces: Server.pieces(interleaved, size) })
        assert.isUndefined(error)
        assert.deepStrictEqual(events, expected)
      }
    }))

  it.effect("a model wrapped in middleware of the AI SDK works like any model", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({
        pieces: [body(said("<think>hm"), said("</think>"), said("Yes"), finish("stop"))]
      }))
      const model = wrapLanguageModel({
        model: Models.providers.v4(server.url)("test-model"),
        middleware: extractReasoningMiddleware({ tagName: "think" })
      })
      const result = yield* Chat.run("Is it?").pipe(Effect.provide(AiSdk.layer({ model })))
      assert.strictEqual(result.finalResponse?.reasoning, "hm")
      assert.strictEqual(result.finalResponse?.outputText, "Yes")
    })))

  it.effect("a model that answers whole and simulates streaming reads like a streaming model", () =>
    Effect.scoped(Effect.gen(function*() {
      const message = {
        content: "Now",
        tool_calls: [{ id: "a", type: "function", function: { name: "now", arguments: "{}" } }]
      }
      const reply = { id: "r", model: "m", choices: [{ index: 0, message, finish_reason: "tool_calls" }] }
      const server = yield* Server.serve(() => ({
        headers: { "content-type": "application/json" },
        pieces: [JSON.stringify(reply)]
      }))
      const model = wrapLanguageModel({
        model: Models.providers.v4(server.url)("test-model"),
        middleware: simulateStreamingMiddleware()
      })
      const { error, events } = yield* Chunks.outcome(Models.stream(AiSdk.layer({ model })))
      assert.isUndefined(error)
      assert.deepStrictEqual(calls(events), [{ id: "a", name: "now", arguments: {} }])
      assert.strictEqual(completed(events).message.content, "Now")
    })))
})

describe("a run over a bridged model", () => {
  const celsius = Tool.make("celsius", {
    description: "Temperature of a city",
    parameters: { city: Schema.String },
    handler: ({ city }) => city === "?" ? Effect.fail("no such city") : Effect.succeed({ celsius: 7 })
  })

  for (const version of versions) {
    it.effect(`R-126, R-136: Heddle runs the tools and answers both calls in a single turn, in version ${version}`, () =>
      Effect.scoped(Effect.gen(function*() {
        const server = yield* Server.serve((_, index) => ({
          pieces: [
            index > 0 ? body(said("Seven"), finish("stop")) : body(
              call({ index: 0, id: "a", name: "celsius", arguments: "{\"city\":\"Oslo\"}" }),
              call({ index: 1, id: "b", name: "celsius", arguments: "{\"city\":\"?\"}" }),
              finish("tool_calls")
            )
          ]
        }))
        const result = yield* Chat.run("How warm is it?", { tools: [celsius] }).pipe(
          Effect.provide(Models.layer(server.url, version))
        )
        assert.strictEqual(result.outcome._tag, "Completed")
        assert.strictEqual(result.finalResponse?.outputText, "Seven")
        const [first, second] = server.requests
        assert.strictEqual(first?.body.tools[0].function.name, "celsius")
        assert.deepStrictEqual(second?.body.messages.slice(1), [
          {
            role: "assistant",
            content: null,
            tool_calls: [
              { id: "a", type: "function", function: { name: "celsius", arguments: "{\"city\":\"Oslo\"}" } },
              { id: "b", type: "function", function: { name: "celsius", arguments: "{\"city\":\"?\"}" } }
            ]
          },
          { role: "tool", tool_call_id: "a", content: "{\"celsius\":7}" },
          { role: "tool", tool_call_id: "b", content: "{\"error\":\"no such city\"}" }
        ])
      })))
  }

  it.effect("design, law 6: the awaited run equals the result of the streamed run", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve((_, index) => ({
        pieces: [
          index % 2 === 1 ? body(said("Seven"), finish("stop")) : body(
            call({ index: 0, id: "a", name: "celsius", arguments: "{\"city\":\"Oslo\"}" }),
            finish("tool_calls")
          )
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

describe("connections of a bridged model", () => {
  const waiting: Server.Answer = { pieces: [body(said("a")).replace("data: [DONE]\n\n", "")], ending: "open" }

  for (const version of versions) {
    it.effect(`R-144: a reader that leaves closes the socket of a model of version ${version}`, () =>
      Effect.scoped(Effect.gen(function*() {
        const server = yield* Server.serve(() => waiting)
        const seen = yield* Stream.runCollect(Stream.take(Models.stream(Models.layer(server.url, version)), 2))
        assert.deepStrictEqual(tagsOf(seen), ["MessageStarted", "TextDelta"])
        assert.deepStrictEqual(yield* server.settled, { answered: 1, left: 1 })
      })))

    it.effect(`R-144: an interruption closes the socket before the answer and during the answer, in version ${version}`, () =>
      Effect.scoped(Effect.gen(function*() {
        const arrived = yield* Latch.make()
        const server = yield* Server.serve((_, index) => {
          if (index === 0) return waiting
          arrived.openUnsafe()
          return { pieces: [], ending: "open" }
        })
        const events = Models.stream(Models.layer(server.url, version))
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
  }

  class ModelServer extends Context.Service<ModelServer, Server.Server>()("test/ModelServer") {}

  const served = (answer: Server.Answer) => Layer.effect(ModelServer, Server.serve(() => answer))

  const connections = Effect.flatMap(
    ModelServer,
    (server) => Effect.map(server.settled, ({ answered }) => ({ opened: server.requests.length, closed: answered }))
  )

  for (const version of versions) {
    const adapter = Layer.unwrap(Effect.map(ModelServer, (server) => Models.layer(server.url, version)))
    const request = { ...Chunks.request, tools: [{ name: "search", description: "", parameters: {} }] }

    Conformance.register(
      AdapterSuite.answering({ request, connections }),
      Layer.provideMerge(adapter, served({ pieces: Server.pieces(interleaved, 50) })),
      (name, run) => {
        it(`${version}, ${name}`, run)
      }
    )

    Conformance.register(
      AdapterSuite.failing({ request, connections }),
      Layer.provideMerge(adapter, served({ status: 401, pieces: ["no"] })),
      (name, run) => {
        it(`${version}, ${name}`, run)
      }
    )
  }
})
