/**
 * What the parts of a model's stream come to, also those that few servers make a model say: calls that are handed over
 * in every order, tools that the provider ran, files, marks that have to go back, and streams that hold on.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import { Chat, Collector, Message, Thread, Tool } from "heddle"
import * as AiSdk from "heddle/bridges/ai-sdk"
import * as Models from "../support/aiSdk.ts"
import * as Chunks from "../support/openAiChat.ts"

const { calls, of } = Chunks
const { call, completed, finish, outcomeOfParts, scripted, stream, tagsOf, text } = Models

const start = (id: string, toolName: string, rest = {}) => ({ type: "tool-input-start", id, toolName, ...rest })
const delta = (id: string, value: string) => ({ type: "tool-input-delta", id, delta: value })

/** What the model is sent in the turn after a reply of the given parts. */
const sentBack = (parts: ReadonlyArray<Readonly<Record<string, unknown>>>, version: Models.Version = "v4") =>
  Effect.gen(function*() {
    const model = scripted((_, index) => index === 0 ? parts : [finish("stop")], version)
    const adapter = AiSdk.layer({ model, retries: 0 })
    const tool = Tool.make("now", { parameters: {}, handler: () => Effect.succeed("noon") })
    const first = yield* Chat.run("Hi", { tools: [tool] }).pipe(Effect.provide(adapter))
    if (model.calls.length === 1) {
      yield* Chat.run(Thread.append(first.thread, [Message.user("And?")])).pipe(Effect.provide(adapter))
    }
    return model.calls[1].prompt.find((message: any) => message.role === "assistant")?.content
  })

describe("the calls in a bridged stream", () => {
  it.effect("R-349: a call completes as soon as the reply continues with other content", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOfParts(
        start("a", "now"),
        delta("a", "{}"),
        { type: "tool-input-end", id: "a" },
        call("a", "now", "{}"),
        { type: "text-end", id: "0" },
        { type: "response-metadata", id: "r" },
        text("go on"),
        finish("stop")
      )
      assert.deepStrictEqual(tagsOf(events), [
        "MessageStarted",
        "ToolCallStarted",
        "ToolCallDelta",
        "ToolCallCompleted",
        "TextDelta",
        "TextCompleted",
        "MessageCompleted"
      ])
    }))

  it.effect("R-357: the last call at the token limit is truncated although its arguments parse, unless text follows", () =>
    Effect.gen(function*() {
      const whole = call("a", "now", "{\"q\":1}")
      const last = yield* outcomeOfParts(whole, { type: "text-end", id: "0" }, finish("length"))
      assert.deepStrictEqual(calls(last.events), [
        { id: "a", name: "now", arguments: {}, argumentsLost: "truncated" }
      ])
      const before = yield* outcomeOfParts(whole, text("and"), finish("length"))
      assert.deepStrictEqual(calls(before.events), [{ id: "a", name: "now", arguments: { q: 1 } }])
      const empty = yield* outcomeOfParts(call("a", "now", ""), call("b", "now", "{}"), text("x"), finish("length"))
      assert.deepStrictEqual(calls(empty.events).map((item: any) => item.argumentsLost), [undefined, undefined])
    }))

  it.effect("R-336: calls without an id and calls with the same id get distinct ids", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOfParts(
        call("", "now", "{\"n\":1}"),
        call("", "now", "{\"n\":2}"),
        start("x", "now"),
        delta("x", "{\"n\":3}"),
        call("x", "now", "{\"n\":3}"),
        call("x", "now", "{\"n\":4}"),
        start("x", "later"),
        delta("x", "{\"n\":5}"),
        call("x", "later", "{\"n\":5}"),
        finish("tool-calls")
      )
      const made = completed(events).message.toolCalls ?? []
      assert.strictEqual(new Set(made.map(({ id }) => id)).size, 5)
      assert.deepStrictEqual(made.map(({ arguments: args }) => args), [{ n: 1 }, { n: 2 }, { n: 3 }, { n: 4 }, {
        n: 5
      }])
      assert.match(made[0]!.id, /^call_[0-9a-f]{32}$/)
      assert.deepStrictEqual(made.slice(2).map(({ id }) => id), ["x", "x_2", "x_3"])
      assert.strictEqual(made[3]!.metadata["duplicateOf"], "x")
      const folded = Collector.toResponse(Collector.applyAll(Collector.initial(), events))
      assert.deepStrictEqual(folded.toolCalls, made)
    }))

  it.effect("R-337: interleaved fragments of two calls stay apart", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOfParts(
        start("a", "now"),
        start("b", "now"),
        delta("a", "{\"n\":"),
        delta("b", "{\"n\":"),
        delta("nobody", "x"),
        delta("a", "1}"),
        delta("b", "2}"),
        call("b", "now", "{\"n\":2}"),
        delta("b", "late"),
        call("a", "now", "{\"n\":1}"),
        finish("tool-calls")
      )
      assert.deepStrictEqual(
        of(events, "ToolCallDelta").map(({ argumentsDelta, id }) => id + argumentsDelta),
        ["a{\"n\":", "b{\"n\":", "a1}", "b2}"]
      )
      assert.deepStrictEqual(completed(events).message.toolCalls?.map(({ id }) => id), ["a", "b"])
    }))

  it.effect("fragments of plain text are not emitted, and arguments given as an object are emitted as JSON", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOfParts(
        start("a", "patch", { inputEncoding: "text" }),
        delta("a", "*** Begin"),
        call("a", "patch", "{\"patch\":\"*** Begin\"}"),
        { ...call("b", "now", ""), input: { n: 1 } },
        finish("tool-calls")
      )
      assert.deepStrictEqual(calls(events), [
        { id: "a", name: "patch", arguments: { patch: "*** Begin" } },
        { id: "b", name: "now", arguments: { n: 1 } }
      ])
      assert.deepStrictEqual(of(events, "ToolCallDelta").map(({ argumentsDelta }) => argumentsDelta), [
        "{\"patch\":\"*** Begin\"}",
        "{\"n\":1}"
      ])
    }))

  it.effect("M-34, R-340: a call announced and never made has lost its arguments only if its fragments are incomplete", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOfParts(
        start("a", "now"),
        start("b", "now"),
        delta("b", "{\"n\":1}"),
        start("c", "now"),
        delta("c", "{\"n\":"),
        finish("stop")
      )
      assert.deepStrictEqual(calls(events), [
        { id: "a", name: "now", arguments: {} },
        { id: "b", name: "now", arguments: { n: 1 } },
        { id: "c", name: "now", arguments: {}, argumentsLost: "json_decode_error" }
      ])
    }))

  it.effect(
    "R-353: the bridge reads 50,000 fragments of a call, and gives 50,000 calls with the same id distinct ids",
    () =>
      Effect.gen(function*() {
        const fragments = Array.from({ length: 50_000 }, () => delta("a", "1"))
        const one = yield* outcomeOfParts(start("a", "now"), ...fragments, finish("stop"))
        assert.strictEqual(of(one.events, "ToolCallDelta").length, 50_000)
        const many = yield* outcomeOfParts(
          ...Array.from({ length: 50_000 }, () => call("x", "now", "{}")),
          finish("stop")
        )
        assert.strictEqual(new Set(of(many.events, "ToolCallCompleted").map(({ id }) => id)).size, 50_000)
      })
  )
})

describe("provider-executed tools of a bridged model", () => {
  const search = { providerExecuted: true, providerMetadata: { acme: { itemId: "ws" } } }
  const executed = [
    text("Looking. "),
    start("s", "search", { providerExecuted: true }),
    delta("s", "{\"q\":\"x\"}"),
    call("s", "search", "{\"q\":\"x\"}", search),
    { type: "tool-result", toolCallId: "s", toolName: "search", result: { hits: 0 }, preliminary: true },
    {
      type: "tool-result",
      toolCallId: "s",
      toolName: "search",
      result: { hits: 1 },
      providerMetadata: { acme: { r: 1 } }
    },
    text("Found.", "1"),
    finish("stop")
  ]

  it.effect("R-332: a provider-executed call is listed with its result, and never runs locally", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOfParts(...executed)
      const [only] = of(events, "ToolCallCompleted")
      assert.isTrue(only?.providerExecuted)
      assert.deepStrictEqual(only?.metadata?.["aiSdk"], {
        provider: "scripted",
        at: 1,
        options: { acme: { itemId: "ws" } },
        result: { value: { hits: 1 }, isError: false, options: { acme: { r: 1 } } }
      })
      assert.strictEqual(completed(events).finishReason, "stop")
      const tool = Tool.make("search", { parameters: {}, handler: () => Effect.die("ran") })
      const result = yield* Chat.run("Hi", { tools: [tool] }).pipe(
        Effect.provide(AiSdk.layer({ model: scripted(executed) }))
      )
      assert.strictEqual(result.outcome._tag, "Completed")
      assert.strictEqual(result.thread.messages.length, 2)
    }))

  it.effect("a provider-executed call goes back in place, with its result and its metadata", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* sentBack(executed), [
        { type: "text", text: "Looking. " },
        {
          type: "tool-call",
          toolCallId: "s",
          toolName: "search",
          input: { q: "x" },
          providerExecuted: true,
          providerOptions: { acme: { itemId: "ws" } }
        },
        {
          type: "tool-result",
          toolCallId: "s",
          toolName: "search",
          output: { type: "json", value: { hits: 1 } },
          providerOptions: { acme: { r: 1 } }
        },
        { type: "text", text: "Found." }
      ])
    }))

  it.effect("a text result and an error result keep their kind, and a call without a result does not go back", () =>
    Effect.gen(function*() {
      const made = (id: string) => call(id, "search", "{}", { providerExecuted: true })
      const result = (toolCallId: string, value: unknown, isError = false) => ({
        type: "tool-result",
        toolCallId,
        toolName: "search",
        result: value,
        isError
      })
      const content = yield* sentBack([
        made("a"),
        result("a", "text"),
        made("b"),
        result("b", { code: 1 }, true),
        made("c"),
        result("nobody", 1),
        text("done"),
        finish("stop")
      ])
      assert.deepStrictEqual(
        content.filter((part: any) => part.type === "tool-result").map((part: any) => part.output),
        [
          { type: "text", value: "text" },
          { type: "error-json", value: { code: 1 } }
        ]
      )
      assert.isFalse(content.some((part: any) => part.toolCallId === "c"))
    }))

  it.effect("a result makes a call provider-executed, unless the call is already complete as the caller's", () =>
    Effect.gen(function*() {
      const result = (toolCallId: string) => ({ type: "tool-result", toolCallId, toolName: "search", result: 1 })
      const { events } = yield* outcomeOfParts(
        call("a", "search", "{}"),
        call("b", "search", "{}"),
        result("a"),
        result("b"),
        finish("tool-calls")
      )
      const made = completed(events).message
      assert.deepStrictEqual(made.toolCalls?.map(({ id, providerExecuted }) => [id, providerExecuted]), [
        ["a", undefined],
        ["b", true]
      ])
      assert.strictEqual(made.reasoning?.length, 1)
    }))

  it.effect("the metadata lists the provider's approval requests", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOfParts(
        { type: "tool-approval-request", approvalId: "p", toolCallId: "s" },
        finish("stop")
      )
      assert.deepStrictEqual(completed(events).metadata?.["aiSdk"], {
        approvalRequests: [{ approvalId: "p", toolCallId: "s" }]
      })
    }))
})

describe("provider metadata of a bridged model", () => {
  const block = (type: "reasoning" | "text", id: string, value: string, ...words: ReadonlyArray<unknown>) => [
    { type: `${type}-start`, id, providerMetadata: words[0] },
    { type: `${type}-delta`, id, delta: value },
    { type: `${type}-delta`, id, delta: "", providerMetadata: words[1] },
    { type: `${type}-end`, id, providerMetadata: words[2] }
  ]

  it.effect("R-342: the provider metadata of reasoning and calls goes back unchanged, block by block", () =>
    Effect.gen(function*() {
      const content = yield* sentBack([
        ...block("reasoning", "1", "first", { acme: { id: "a" } }, { acme: { signature: "x" } }, undefined),
        ...block("reasoning", "2", "", { acme: { redacted: "zzz" } }),
        ...block("reasoning", "3", "plain"),
        ...block("text", "4", "Answer"),
        call("c", "now", "{}", { providerMetadata: { acme: { thoughtSignature: "s" } } }),
        finish("tool-calls")
      ])
      assert.deepStrictEqual(content, [
        { type: "reasoning", text: "first", providerOptions: { acme: { id: "a", signature: "x" } } },
        { type: "reasoning", text: "", providerOptions: { acme: { redacted: "zzz" } } },
        { type: "reasoning", text: "plain" },
        { type: "text", text: "Answer" },
        {
          type: "tool-call",
          toolCallId: "c",
          toolName: "now",
          input: {},
          providerOptions: { acme: { thoughtSignature: "s" } }
        }
      ])
    }))

  it.effect("mixed blocks go back in their order, and texts with their own metadata", () =>
    Effect.gen(function*() {
      const content = yield* sentBack([
        ...block("text", "1", "Høj "),
        ...block("reasoning", "2", "hm"),
        ...block("text", "3", "🌤 sky", undefined, undefined, { acme: { itemId: "t" } }),
        call("c", "now", "{}"),
        ...block("reasoning", "4", "again"),
        finish("tool-calls")
      ])
      assert.deepStrictEqual(
        content.map(({ providerOptions, text: value, type }: any) => [type, value, providerOptions]),
        [
          ["text", "Høj ", undefined],
          ["reasoning", "hm", undefined],
          ["text", "🌤 sky", { acme: { itemId: "t" } }],
          ["tool-call", undefined, undefined],
          ["reasoning", "again", undefined]
        ]
      )
    }))

  it.effect("a provider gets its own call ids back unchanged", () =>
    Effect.gen(function*() {
      const [called] = yield* sentBack([call("functions.now:0", "now", "{}"), finish("tool-calls")])
      assert.strictEqual(called.toolCallId, "functions.now:0")
    }))

  it.effect("a changed text goes back whole, before the reasoning", () =>
    Effect.gen(function*() {
      const model = scripted([
        text("Høj "),
        { type: "reasoning-delta", id: "2", delta: "hm" },
        text("sky", "3"),
        finish("stop")
      ])
      const adapter = AiSdk.layer({ model })
      const { thread } = yield* Chat.run("Hi").pipe(Effect.provide(adapter))
      const edited = thread.messages.map((message) =>
        message.role === "assistant" ? { ...message, content: "Other" } : message
      )
      yield* Chat.run([...edited, Message.user("And?")]).pipe(Effect.provide(adapter))
      assert.deepStrictEqual(model.calls[1].prompt[1].content, [
        { type: "text", text: "Other" },
        { type: "reasoning", text: "hm" }
      ])
    }))

  it.effect("metadata of another provider behind the same bridge does not go back", () =>
    Effect.gen(function*() {
      const parts = [
        { type: "reasoning-delta", id: "1", delta: "hm", providerMetadata: { one: { signature: "x" } } },
        call("c", "now", "{}", { providerMetadata: { one: { itemId: "y" } } }),
        finish("tool-calls")
      ]
      const one = scripted(parts, "v4", "one")
      const two = scripted([text("ok"), finish("stop")], "v4", "two")
      const tool = Tool.make("now", { parameters: {}, handler: () => Effect.succeed("noon") })
      const first = yield* Chat.run("Hi", { tools: [tool], maxTurns: 1 }).pipe(
        Effect.provide(AiSdk.layer({ model: one }))
      )
      yield* Chat.run(first.thread).pipe(Effect.provide(AiSdk.layer({ model: two })))
      assert.deepStrictEqual(two.calls[0].prompt[1].content, [
        { type: "tool-call", toolCallId: "c", toolName: "now", input: {} }
      ])
    }))

  it.effect("a message with provider metadata survives JSON", () =>
    Effect.gen(function*() {
      const options = { acme: { bytes: new Uint8Array([1]), at: new Date(0), none: undefined } }
      const { events } = yield* outcomeOfParts(
        { type: "reasoning-delta", id: "1", delta: "hm", providerMetadata: options },
        finish("stop", { providerMetadata: options })
      )
      const { message, metadata } = completed(events)
      assert.deepStrictEqual(JSON.parse(JSON.stringify(message)), message)
      assert.deepStrictEqual(JSON.parse(JSON.stringify(metadata)), metadata)
    }))
})

describe("other parts of a bridged stream", () => {
  it.effect("generated files are parts of the message, and go back in the form of the version", () =>
    Effect.gen(function*() {
      const data = { type: "data", data: new Uint8Array([137, 80]) }
      const parts = [
        { type: "file", mediaType: "image/png", data, providerMetadata: { acme: { a: 1 } } },
        { type: "reasoning-file", mediaType: "image/png", data: { type: "data", data: "iVBO" } },
        {
          type: "file",
          mediaType: "application/pdf",
          data: { type: "url", url: new URL("https://example.com/a.pdf") }
        },
        { type: "custom", kind: "acme.note", providerMetadata: { acme: { note: 1 } } },
        text("Here"),
        finish("stop")
      ]
      const { events } = yield* outcomeOfParts(...parts)
      assert.deepStrictEqual(completed(events).message.content, [
        { type: "text", text: "Here" },
        { type: "image", mediaType: "image/png", data: "iVA=" },
        { type: "file", mediaType: "application/pdf", url: "https://example.com/a.pdf" }
      ])
      assert.deepStrictEqual(yield* sentBack(parts), [
        {
          type: "file",
          mediaType: "image/png",
          data: { type: "data", data: "iVA=" },
          providerOptions: { acme: { a: 1 } }
        },
        { type: "reasoning-file", mediaType: "image/png", data: { type: "data", data: "iVBO" } },
        {
          type: "file",
          mediaType: "application/pdf",
          data: { type: "url", url: new URL("https://example.com/a.pdf") }
        },
        { type: "custom", kind: "acme.note", providerOptions: { acme: { note: 1 } } },
        { type: "text", text: "Here" }
      ])
      const old = [{ type: "file", mediaType: "image/png", data: "iVBO" }, ...parts.slice(1)]
      assert.deepStrictEqual(yield* sentBack(old, "v3"), [
        { type: "file", mediaType: "image/png", data: "iVBO" },
        { type: "file", mediaType: "application/pdf", data: new URL("https://example.com/a.pdf") },
        { type: "text", text: "Here" }
      ])
    }))

  it.effect("a message with a generated file goes back with the file once", () =>
    Effect.gen(function*() {
      const parts = [{ type: "file", mediaType: "image/png", data: { type: "data", data: "iVBO" } }, finish("stop")]
      const model = scripted(parts)
      const adapter = AiSdk.layer({ model })
      const { message } = completed((yield* Chunks.outcome(stream(adapter))).events)
      yield* Stream.runDrain(stream(adapter, { ...Chunks.request, messages: [Message.user("Hi"), message] }))
      assert.strictEqual(model.calls[1].prompt[1].content.length, 1)
      const other = scripted(parts, "v4", "other")
      yield* Stream.runDrain(stream(AiSdk.layer({ model: other }), {
        ...Chunks.request,
        messages: [Message.user("Hi"), message]
      }))
      assert.deepStrictEqual(other.calls[0].prompt[1].content, [
        { type: "file", mediaType: "image/png", data: { type: "data", data: "iVBO" } }
      ])
    }))

  it.effect("the metadata holds warnings, sources and citations; raw chunks and unknown parts are emitted unchanged", () =>
    Effect.gen(function*() {
      const source = { type: "source", sourceType: "url", id: "1", url: "https://example.com" }
      const { events } = yield* outcomeOfParts(
        { type: "stream-start", warnings: [{ type: "unsupported", feature: "topK" }] },
        { type: "response-metadata", id: "r", modelId: "m", timestamp: new Date(0) },
        { type: "ping" },
        { type: "raw", rawValue: { x: 1 } },
        source,
        source,
        text("a"),
        { type: "text-end", id: "0", citations: [{ start: 0 }] },
        { type: "brand-new", value: 1 },
        null as never,
        finish("stop", { providerMetadata: { acme: { cached: true }, empty: {} } })
      )
      const { type: _, ...cited } = source
      assert.deepStrictEqual(completed(events).metadata?.["aiSdk"], {
        warnings: [{ type: "unsupported", feature: "topK" }],
        sources: [cited, cited],
        citations: [{ start: 0 }],
        options: { acme: { cached: true }, empty: {} }
      })
      assert.deepInclude(completed(events), { responseId: "r", model: "m" })
      assert.deepStrictEqual(of(events, "RawChunk").map(({ chunk }) => chunk), [{ x: 1 }, {
        type: "brand-new",
        value: 1
      }])
    }))

  it.effect("R-350: the flat usage of version 2 is read, and missing or invalid counts are null", () =>
    Effect.gen(function*() {
      const usageOf = (usage: unknown) =>
        Effect.map(outcomeOfParts(finish("stop", { usage })), ({ events }) => completed(events).usage as any)
      const flat = yield* usageOf({
        inputTokens: 3,
        outputTokens: 4,
        totalTokens: 9,
        reasoningTokens: 1,
        cachedInputTokens: 2
      })
      assert.deepInclude(flat, {
        inputTokens: 3,
        outputTokens: 4,
        totalTokens: 9,
        reasoningTokens: 1,
        cachedInputTokens: 2
      })
      const half = yield* usageOf({
        inputTokens: { total: 3 },
        outputTokens: { total: undefined, text: 1 },
        special: 7
      })
      assert.deepInclude(half, { inputTokens: 3, outputTokens: null, totalTokens: null, extra: { special: 7 } })
      for (const absurd of [undefined, null, "many", { inputTokens: NaN }]) {
        assert.isNull((yield* usageOf(absurd)).inputTokens)
      }
    }))

  it.effect("R-348: each finish reason of every version is mapped", () =>
    Effect.gen(function*() {
      const cases: ReadonlyArray<readonly [unknown, string | null, string | undefined]> = [
        [{ unified: "stop", raw: "end_turn" }, "stop", "end_turn"],
        [{ unified: "length", raw: undefined }, "length", "length"],
        [{ unified: "content-filter", raw: "SAFETY" }, "content_filter", "SAFETY"],
        [{ unified: "tool-calls", raw: "x" }, "tool_calls", "x"],
        [{ unified: "error", raw: "x" }, "error", "x"],
        [{ unified: "other", raw: "x" }, "other", "x"],
        [{ unified: "brand-new", raw: "x" }, "other", "x"],
        ["tool-calls", "tool_calls", "tool-calls"],
        ["unknown", null, "unknown"],
        [{ unified: "constructor" }, "other", "constructor"],
        [undefined, "other", undefined]
      ]
      for (const [finishReason, reason, word] of cases) {
        const said = { type: "text-delta", id: "t", delta: "a" }
        const last = completed((yield* outcomeOfParts(said, finish("stop", { finishReason }))).events)
        assert.deepStrictEqual([last.finishReason, last.rawFinishReason], [reason, word], JSON.stringify(finishReason))
      }
    }))
})

describe("bridged streams that stay open", () => {
  it.effect("the bridge cancels the stream of a model that answers after an interruption", () =>
    Effect.gen(function*() {
      const asked = yield* Deferred.make<AbortSignal>()
      const taken = yield* Deferred.make<unknown>()
      let answer: (started: { readonly stream: ReadableStream<unknown> }) => void = () => {}
      const model: AiSdk.LanguageModel = {
        ...scripted([]),
        doStream: ({ abortSignal }: { readonly abortSignal: AbortSignal }) => {
          const promise = new Promise<{ readonly stream: ReadableStream<unknown> }>((resolve) => {
            answer = resolve
          })
          Effect.runSync(Deferred.succeed(asked, abortSignal))
          return promise
        }
      }
      const fiber = yield* Effect.forkChild(Stream.runDrain(stream(AiSdk.layer({ model }))))
      const signal = yield* Deferred.await(asked)
      yield* Fiber.interrupt(fiber)
      assert.isTrue(signal.aborted)
      answer({
        stream: new ReadableStream({
          cancel: () => {
            Effect.runSync(Deferred.succeed(taken, true))
          }
        })
      })
      assert.isTrue(yield* Deferred.await(taken))
    }))

  it.live("R-144: a stream that never closes does not delay a reader that leaves", () =>
    Effect.gen(function*() {
      let signal: AbortSignal | undefined
      const model: AiSdk.LanguageModel = {
        ...scripted([]),
        doStream: ({ abortSignal }: { readonly abortSignal: AbortSignal }) => {
          signal = abortSignal
          return Promise.resolve({
            stream: new ReadableStream<unknown>({
              start: (controller) => controller.enqueue(text("a")),
              cancel: () => new Promise(() => {})
            })
          })
        }
      }
      yield* Stream.runDrain(Stream.take(stream(AiSdk.layer({ model })), 1))
      assert.isTrue(signal?.aborted)
    }))
})
