/**
 * Answers that no server should give: cut off, garbled, endless, or meant to be run. What comes of them is a typed error
 * or a call that is marked and not run; nothing hangs, and nothing is held without bounds.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Queue from "effect/Queue"
import * as Redacted from "effect/Redacted"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Chat, Tool } from "heddle"
import * as Chunks from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"

const { body, call, calls, finish, of, outcomeOf, said } = Chunks

const unfinished = (text: string): string => text.replace("data: [DONE]\n\n", "")

/** What a run comes to whose model answers so, and the arguments its tool was run with. */
const running = (answer: Server.Answer) =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve((_, index) =>
      index === 0 ? answer : { pieces: [body(said("done"), finish("stop"))] }
    )
    const ran: Array<unknown> = []
    const tool = Tool.make("write", {
      parameters: { type: "object", properties: { path: { type: "string" } } },
      handler: (args) =>
        Effect.sync(() => {
          ran.push(args)
          return "written"
        })
    })
    const result = yield* Effect.result(
      Chat.run("go", { tools: [tool] }).pipe(Effect.provide(Chunks.layer(server.url, { retries: 0 })))
    )
    return { ran, result, requests: server.requests }
  }))

const opened = call({ index: 0, id: "a", name: "write", arguments: "{\"path\":\"/et" })

describe("a run with an incomplete tool call", () => {
  const broken: ReadonlyArray<readonly [name: string, answer: Server.Answer]> = [
    ["a dropped socket", { pieces: [unfinished(body(opened))], ending: "drop" }],
    ["the end of the body", { pieces: [unfinished(body(opened))] }],
    ["truncated JSON", { pieces: [unfinished(body(opened)), "data: {\"choices\":[{\"delta\":{\"tool_c\n\n"] }],
    ["an error event", { pieces: [unfinished(body(opened)), "data: {\"error\":{\"message\":\"no\"}}\n\n"] }],
    ["invalid UTF-8", { pieces: [unfinished(body(opened)), new Uint8Array([0xff, 0xfe, 0xff, 0xfe])] }]
  ]
  for (const [name, answer] of broken) {
    it.effect(`R-355, R-357: a run fails without running a tool call cut by ${name}`, () =>
      Effect.gen(function*() {
        const { ran, result } = yield* running(answer)
        assert.deepStrictEqual(ran, [])
        assert.strictEqual(result._tag === "Success" ? result.success.outcome._tag : "", "Failed")
      }))
  }

  it.effect("R-345, R-357, I-18: a call cut according to its arguments is answered and not run, and the run continues", () =>
    Effect.gen(function*() {
      for (const word of ["length", "tool_calls", "stop"]) {
        const { ran, requests, result } = yield* running({ pieces: [body(opened, finish(word))] })
        assert.deepStrictEqual(ran, [], word)
        assert.strictEqual(result._tag === "Success" ? result.success.outcome._tag : "", "Completed", word)
        const [, , answer] = requests[1]!.body.messages
        assert.strictEqual(answer.tool_call_id, "a")
        assert.include(answer.content, "arguments", word)
      }
    }))
})

describe("invalid answers", () => {
  it.effect("R-349: invalid UTF-8 fails the reply, after the events before", () =>
    Effect.gen(function*() {
      const [before, after] = body(said("a"), said("b|c"), finish("stop")).split("|").map((text) => Buffer.from(text))
      const { error, events } = yield* outcomeOf({ pieces: [Buffer.concat([before!, Buffer.from([0xe9]), after!])] })
      assert.deepStrictEqual([error?.reason, error?.detail], [
        "malformed_response",
        "the answer contains bytes that are not valid UTF-8"
      ])
      assert.deepStrictEqual(of(events, "TextDelta").map(({ delta }) => delta), ["a"])
    }))

  it.effect("R-145: an event of invalid JSON, an HTML page and a cut document fail the reply", () =>
    Effect.gen(function*() {
      const whole = JSON.stringify({
        choices: [{ message: { role: "assistant", content: "Hi" }, finish_reason: "stop" }]
      })
      for (
        const text of [
          "data: {\"choices\":[{\"delta\":\n\n",
          "data: oops\n\n",
          "<!doctype html><html><head><title>Sign in</title></head></html>",
          whole.slice(0, -10),
          "null",
          "[]",
          "\u0000\u0000"
        ]
      ) {
        const { error, events } = yield* outcomeOf(text)
        assert.strictEqual(error?.reason, "malformed_response", text)
        assert.deepStrictEqual(events, [], text)
      }
    }))

  it.effect("R-122: the adapter does not follow a redirect; the error names the target without its query", () =>
    Effect.scoped(Effect.gen(function*() {
      const elsewhere = yield* Server.serve(() => ({ pieces: [body(said("caught"), finish("stop"))] }))
      for (const status of [301, 302, 303, 307, 308]) {
        const headers = { location: `${elsewhere.url}/v1/chat/completions?token=hunter2` }
        const { error, events } = yield* outcomeOf({ status, headers, pieces: [] }, { apiKey: Redacted.make("sk-1") })
        assert.deepStrictEqual([events, error?.reason, error?.status], [[], "invalid_request", status])
        assert.include(error?.message, `redirects to ${elsewhere.url}/v1/chat/completions; change the base URL`)
      }
      assert.deepStrictEqual(elsewhere.requests, [])
    })))

  it.effect("R-122: the adapter keeps a client's own fetch settings, and sets redirect to manual", () =>
    Effect.gen(function*() {
      let seen: RequestInit | undefined
      yield* Chunks.outcome(
        Chunks.stream("http://model.test").pipe(
          Stream.provideService(FetchHttpClient.RequestInit, { credentials: "omit", redirect: "follow" }),
          Stream.provideService(FetchHttpClient.Fetch, (_, init) => {
            seen = init
            return Promise.resolve(new Response(body(said("a"), finish("stop"))))
          })
        )
      )
      assert.deepInclude({ ...seen }, { credentials: "omit", redirect: "manual" })
    }))
})

describe("endless answers", () => {
  it.effect("R-353: the adapter reads a line of 10 MB, and fails the reply for a line over the limit without its end", () =>
    Effect.scoped(Effect.gen(function*() {
      const long = "x".repeat(10 * 1024 * 1024)
      const { events } = yield* outcomeOf(body(said(long), finish("stop")))
      assert.strictEqual(of(events, "TextCompleted")[0]?.text.length, long.length)
      const server = yield* Server.serve(() => ({ pieces: ["data: ", long, long], ending: "open" }))
      const { error } = yield* Chunks.outcome(Chunks.stream(server.url))
      assert.strictEqual(error?.reason, "malformed_response")
      assert.include(error?.message, "16777216 characters")
      assert.deepStrictEqual(yield* server.settled, { answered: 1, left: 1 })
    })))

  it.effect("R-353: the adapter ignores a million empty comments", () =>
    Effect.gen(function*() {
      const comments = ":\n".repeat(50_000)
      const pieces = [...Array.from({ length: 20 }, () => comments), body(said("a"), finish("stop"))]
      const { error, events } = yield* outcomeOf({ pieces })
      assert.deepStrictEqual([error, of(events, "TextCompleted")[0]?.text], [undefined, "a"])
    }))

  it.effect("R-353: an answer without an end fails at the length limit", () =>
    Effect.scoped(Effect.gen(function*() {
      const pieces = Array.from({ length: 100 }, () => unfinished(body(said("again and again"))))
      const server = yield* Server.serve(() => ({ pieces, ending: "open" }))
      const { error, events } = yield* Chunks.outcome(Chunks.stream(server.url, { maxAnswerLength: 2000 }))
      assert.strictEqual(error?.reason, "malformed_response")
      assert.include(error?.message, "longer than 2000 bytes")
      assert.isAbove(of(events, "TextDelta").length, 0)
      assert.deepStrictEqual(yield* server.settled, { answered: 1, left: 1 })
    })))

  it.effect("R-122: a server that sends only comments never times out; a silent server does", () =>
    Effect.gen(function*() {
      const asked = yield* Queue.unbounded<ReadableStreamDefaultController<Uint8Array>>()
      const fetch = () =>
        Promise.resolve(
          new Response(
            new ReadableStream<Uint8Array>({
              pull: (controller) =>
                new Promise<void>((resolve) => {
                  Queue.offerUnsafe(asked, controller)
                  waiting.push(resolve)
                })
            }, { highWaterMark: 0 })
          )
        )
      const waiting: Array<() => void> = []
      const say = (text: string) =>
        Effect.gen(function*() {
          const controller = yield* Queue.take(asked)
          controller.enqueue(new TextEncoder().encode(text))
          waiting.shift()?.()
        })
      const stream = Chunks.stream("http://model.test", { retries: 0, idleTimeout: "5 minutes" })
      const fiber = yield* Effect.forkChild(
        Chunks.outcome(stream.pipe(Stream.provideService(FetchHttpClient.Fetch, fetch)))
      )
      for (let index = 0; index < 6; index++) {
        yield* say(": still thinking\n\n")
        yield* asleep(asked)
        yield* TestClock.adjust("4 minutes")
      }
      yield* say(unfinished(body(said("a"))))
      yield* asleep(asked)
      yield* TestClock.adjust("5 minutes")
      const { error, events } = yield* Fiber.join(fiber)
      assert.deepStrictEqual([of(events, "TextDelta").length, error?.reason], [1, "timeout"])
    }))

  /** Waits until the answer is read further, and its reader has set its limit. */
  const asleep = <A>(asked: Queue.Queue<A>) =>
    Effect.andThen(
      Queue.peek(asked),
      Effect.promise(() => new Promise((resolve) => setImmediate(resolve)))
    )
})

describe("hostile arguments", () => {
  const argumentsOf = (text: string) =>
    Effect.map(
      outcomeOf(body(call({ index: 0, id: "a", name: "write", arguments: text }), finish("tool_calls"))),
      ({ events }) => of(events, "ToolCallCompleted")[0]!
    )

  it.effect("R-339: parsed arguments have no __proto__ key; other names of the prototype chain are plain keys", () =>
    Effect.gen(function*() {
      const text =
        "{\"__proto__\":{\"polluted\":true},\"constructor\":{\"prototype\":{\"polluted\":1}},\"toString\":\"x\"}"
      const { arguments: args, rawArguments } = yield* argumentsOf(text)
      assert.deepStrictEqual(Object.keys(args), ["constructor", "toString"])
      assert.strictEqual(rawArguments, text)
      assert.strictEqual(Object.getPrototypeOf(args), Object.prototype)
      assert.isUndefined(({} as { readonly polluted?: unknown }).polluted)
    }))

  it.effect("R-339: a call of a tool named __proto__ or constructor is read like any call", () =>
    Effect.gen(function*() {
      for (const name of ["__proto__", "constructor", "hasOwnProperty"]) {
        const { error, events } = yield* outcomeOf(
          body(call({ index: 0, id: name, name, arguments: "{}" }), finish("tool_calls"))
        )
        assert.isUndefined(error)
        assert.deepStrictEqual(calls(events), [{ id: name, name, arguments: {} }])
      }
    }))

  it.effect("R-339: deeply nested arguments run a tool at most once and end the run with a result or an adapter error", () =>
    Effect.gen(function*() {
      const deep = `{"a":${"[".repeat(200_000)}${"]".repeat(200_000)}}`
      const { ran, requests, result } = yield* running({
        pieces: [body(call({ index: 0, id: "a", name: "write", arguments: deep }), finish("tool_calls"))]
      })
      assert.isAtMost(ran.length, 1)
      assert.isTrue(result._tag === "Success" || result.failure._tag === "AdapterError")
      assert.isAtMost(requests.length, 2)
    }))
})
