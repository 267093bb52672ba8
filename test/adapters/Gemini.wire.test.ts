/**
 * What is particular to Gemini's replies on their way: events or one array, usage wherever it stands, and pieces that only
 * this protocol has. What all protocols have in common stands in `travel.test.ts`.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import type { Event, Response } from "heddle"
import { AdapterSuite, Conformance } from "heddle/testing"
import * as net from "node:net"
import * as Connections from "../support/connections.ts"
import * as Chunks from "../support/gemini.ts"
import * as Server from "../support/server.ts"
import { parsing } from "../support/work.ts"

const { array, body, call, chunk, finish, mixed, mixedCalls, of, offering, outcome, outcomeOf, said, usage } = Chunks

const stop = finish("STOP")

const textOf = (events: ReadonlyArray<Event.AdapterEvent>) => of(events, "TextCompleted").map(({ text }) => text)

const usageOf = (...chunks: ReadonlyArray<Readonly<Record<string, unknown>>>) =>
  Effect.map(
    outcomeOf(body(said("x"), ...chunks)),
    ({ events }) => of(events, "MessageCompleted")[0]!.usage as Response.Usage
  )

const cutInto = (text: string | Uint8Array, size: number) =>
  Chunks.steady(
    outcome(
      Chunks.stream("http://model.test", {}, offering("search")).pipe(Connections.reading(Server.pieces(text, size)))
    )
  )

/** The bodies in which servers write the same reply. */
const bodies: ReadonlyArray<readonly [name: string, text: string]> = [
  ["events", body(...mixed)],
  ["events with bare line feeds, and no blank line at the end", body(...mixed).replaceAll("\r\n", "\n").trimEnd()],
  ["an array", array(...mixed)],
  ["an array on one line", JSON.stringify(mixed)]
]

describe("Gemini bodies", () => {
  for (const [name, text] of bodies) {
    it.effect(`R-349: reads of any size give the same events: ${name}`, () =>
      Effect.gen(function*() {
        const expected = yield* cutInto(body(...mixed), 1_000_000)
        const named = of(expected.events, "ToolCallCompleted").map(({ arguments: args, name }) => ({
          name,
          arguments: args
        }))
        assert.deepStrictEqual(named, mixedCalls)
        assert.deepStrictEqual(textOf(expected.events), ["Himmel 🌤"])
        for (const size of [1, 2, 3, 5, 1000]) {
          assert.deepStrictEqual(yield* cutInto(text, size), expected, `reads of ${size}`)
        }
      }))
  }

  it.effect("R-349: a body written in pieces reads alike over HTTP, whatever its content type", () =>
    Effect.gen(function*() {
      for (const [, text] of bodies) {
        for (const type of ["text/event-stream", "application/json"]) {
          const { error, events } = yield* outcomeOf({
            headers: { "content-type": type },
            pieces: Server.pieces(text, 40)
          })
          assert.isUndefined(error)
          assert.deepStrictEqual(textOf(events), ["Himmel 🌤"])
          assert.strictEqual(of(events, "ToolCallCompleted").length, 2)
        }
      }
    }))

  it.effect("R-349: the reply emits the elements of an array before the array ends", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({ pieces: [array(said("a"), said("b"))], ending: "open" }))
      const deltas = yield* Chunks.stream(server.url).pipe(
        Stream.filter((event) => event._tag === "TextDelta"),
        Stream.take(2),
        Stream.runCollect
      )
      assert.deepStrictEqual(deltas.map((event) => event._tag === "TextDelta" && event.delta), ["a", "b"])
    })))

  it.effect("R-349: the adapter reads a whole reply instead of a stream", () =>
    Effect.gen(function*() {
      const whole = {
        ...chunk([{ text: "Hi" }, call("now")], { finishReason: "STOP" }),
        usageMetadata: { promptTokenCount: 3 }
      }
      for (const text of [JSON.stringify(whole, null, 2), JSON.stringify(whole), JSON.stringify([whole])]) {
        const { error, events } = yield* outcomeOf({ headers: { "content-type": "application/json" }, pieces: [text] })
        assert.isUndefined(error)
        assert.deepStrictEqual(textOf(events), ["Hi"])
        assert.strictEqual(of(events, "ToolCallCompleted")[0]!.name, "now")
        assert.deepInclude(of(events, "MessageCompleted")[0]!.usage as object, { inputTokens: 3 })
      }
    }))

  it.effect("R-334: the adapter skips comments, other fields, a byte order mark and [DONE]", () =>
    Effect.gen(function*() {
      const noise = "\ufeff: PROCESSING\r\n\r\nid: 1\r\nretry: 10\r\nevent: message\r\n"
      const text = noise + body(said("a")) + ":\n".repeat(1000) + body(said("b"), stop) + "data: [DONE]\n\ndata:\n\n"
      const { error, events } = yield* outcomeOf(text)
      assert.isUndefined(error)
      assert.deepStrictEqual(textOf(events), ["ab"])
    }))

  it.effect("R-349: invalid UTF-8 fails the reply in either framing, after the events before", () =>
    Effect.gen(function*() {
      for (const text of [body(said("a"), said("xyz"), stop), array(said("a"), said("xyz"), stop)]) {
        const broken = Buffer.from(text)
        broken[broken.indexOf("xyz") + 1] = 0xff
        for (const size of [1, 7, 10_000]) {
          const { error, events } = yield* cutInto(broken, size)
          assert.deepStrictEqual([error?.reason, error?.detail], [
            "malformed_response",
            "the answer contains bytes that are not valid UTF-8"
          ])
          assert.deepStrictEqual(of(events, "TextDelta").map(({ delta }) => delta), ["a"])
        }
      }
    }))
})

describe("the usage of a Gemini reply", () => {
  it.effect("R-303, R-350: usage counts have common names, and unknown counts are kept", () =>
    Effect.gen(function*() {
      const found = yield* usageOf(
        stop,
        usage({
          promptTokenCount: 100,
          candidatesTokenCount: 20,
          thoughtsTokenCount: 30,
          cachedContentTokenCount: 64,
          toolUsePromptTokenCount: 5,
          totalTokenCount: 155,
          trafficType: "ON_DEMAND"
        })
      )
      assert.deepInclude(found, {
        inputTokens: 100,
        outputTokens: 20,
        reasoningTokens: 30,
        cachedInputTokens: 64,
        totalTokens: 155,
        extra: { toolUsePromptTokenCount: 5, trafficType: "ON_DEMAND" }
      })
    }))

  it.effect("R-350: the latest count replaces the earlier one; a missing or zero count changes nothing", () =>
    Effect.gen(function*() {
      const found = yield* usageOf(
        usage({ promptTokenCount: 10, totalTokenCount: 10 }),
        usage({ promptTokenCount: 10, candidatesTokenCount: 4, thoughtsTokenCount: 6, totalTokenCount: 20 }),
        usage({}),
        { ...stop, usageMetadata: { candidatesTokenCount: 5, totalTokenCount: 25 } },
        usage({ promptTokenCount: 0, trafficType: "x" })
      )
      assert.deepInclude(found, { inputTokens: 10, outputTokens: 5, reasoningTokens: 6, totalTokens: 25 })
    }))

  it.effect("R-350, I-16: a total that the server does not state is the sum of its parts", () =>
    Effect.gen(function*() {
      const found = yield* usageOf(
        usage({ promptTokenCount: 10, candidatesTokenCount: 0 }),
        usage({ candidatesTokenCount: 5 }),
        usage({ promptTokenCount: 0, candidatesTokenCount: 7 }),
        stop
      )
      assert.deepInclude(found, { inputTokens: 10, outputTokens: 7, totalTokens: 17 })
      const grown = yield* usageOf(
        usage({ promptTokenCount: 10, thoughtsTokenCount: 2, totalTokenCount: 12 }),
        usage({ candidatesTokenCount: 3, toolUsePromptTokenCount: 4 }),
        stop
      )
      assert.strictEqual(grown.totalTokens, 19)
      assert.isNull((yield* usageOf(usage({ trafficType: "x" }), stop)).totalTokens)
    }))
})

describe("the work and memory of a Gemini reply", () => {
  it.effect("R-353: the adapter parses an array of 20,000 pieces piece by piece", () =>
    Effect.gen(function*() {
      const answer = array(...Array.from({ length: 20_000 }, () => said("x")), stop)
      const [value, parsed] = yield* parsing(cutInto(answer, 64 * 1024))
      assert.deepStrictEqual(textOf(value.events), ["x".repeat(20_000)])
      assert.isAtMost(parsed, answer.length)
    }))

  it.effect("R-353: 64 calls, and 5,000 calls answered in their own reply, keep their order", () =>
    Effect.gen(function*() {
      const names = Array.from({ length: 64 }, (_, index) => `tool_${index}`)
      const { events } = yield* outcomeOf(body(...names.map((name) => chunk([call(name, { name })])), stop))
      assert.deepStrictEqual(of(events, "ToolCallCompleted").map(({ name }) => name), names)
      const far = Array.from({ length: 5000 }, (_, index) => call("far", { index }))
      const answers = far.map(() => ({ functionResponse: { name: "far", response: {} } }))
      const hosted = yield* outcomeOf(body(chunk(far), chunk(answers), stop))
      const executed = of(hosted.events, "ToolCallCompleted").filter(({ name }) => name === "far")
      assert.isTrue(executed.every(({ providerExecuted }) => providerExecuted === true))
      assert.deepStrictEqual(executed.map((event) => event.arguments["index"]), far.map((_, index) => index))
    }))

  it.effect("R-353: an event over the length limit fails the reply", () =>
    Effect.gen(function*() {
      const endless = [
        `data: ${"x".repeat(5000)}`,
        "data: y\n".repeat(900),
        "stray\n".repeat(900),
        "{\n\"x\":\n".repeat(900)
      ]
      for (const text of endless) {
        const { error, events } = yield* outcomeOf({ pieces: [body(said("a")), text] }, { maxEventLength: 1000 })
        assert.strictEqual(error?.reason, "malformed_response", text.slice(0, 20))
        assert.include(error?.message, "1000 characters")
        assert.strictEqual(of(events, "TextDelta").length, 1)
      }
    }))

  it.effect("R-353: the adapter reads a line of ten megabytes", () =>
    Effect.gen(function*() {
      const data = "A".repeat(10_000_000)
      const image = chunk([{ inlineData: { mimeType: "image/png", data } }], { finishReason: "STOP" })
      const { error, events } = yield* outcomeOf({ pieces: Server.pieces(body(image), 1_000_000) })
      assert.isUndefined(error)
      const [part] = of(events, "MessageCompleted")[0]!.message.content as ReadonlyArray<{ readonly data: string }>
      assert.strictEqual(part!.data.length, data.length)
    }))
})

describe("connections to Gemini", () => {
  /**
   * A server that watches its sockets: which are asked something and still open, and when one of them is closed. A client
   * may open others that it asks nothing.
   */
  const sockets = Effect.gen(function*() {
    const all = new Set<net.Socket>()
    const open = new Set<net.Socket>()
    const closed = yield* Latch.make()
    const server = net.createServer((socket) => {
      all.add(socket)
      socket.on("error", () => undefined)
      socket.on("close", () => {
        if (open.delete(socket)) closed.openUnsafe()
      })
      socket.once("data", () => {
        open.add(socket)
        const text = body(said("a"))
        const size = Buffer.byteLength(text).toString(16)
        socket.write(
          `HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n${size}\r\n${text}\r\n`
        )
      })
    })
    yield* Effect.acquireRelease(
      Effect.promise(() => new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve))),
      () =>
        Effect.sync(() => {
          server.close()
          for (const socket of all) socket.destroy()
        })
    )
    return { url: `http://127.0.0.1:${(server.address() as net.AddressInfo).port}`, open, closed }
  })

  it.effect("R-144: a reader that leaves the stream closes the socket, although the server sends nothing more", () =>
    Effect.scoped(Effect.gen(function*() {
      const { closed, open, url } = yield* sockets
      const seen = yield* Chunks.stream(url).pipe(
        Stream.tap((event) => Effect.sync(() => event._tag === "TextDelta" && assert.strictEqual(open.size, 1))),
        Stream.takeUntil((event) => event._tag === "TextDelta"),
        Stream.runCollect
      )
      yield* closed.await
      assert.deepStrictEqual(seen.map(({ _tag }) => _tag), ["MessageStarted", "TextDelta"])
      assert.strictEqual(open.size, 0)
    })))

  it.effect("R-355: a connection lost before the finish reason fails the reply; a connection lost afterwards does not", () =>
    Effect.gen(function*() {
      const half = chunk([call("note", undefined, { willContinue: true })])
      const list = array(said("a"), half)
      for (const text of [body(said("a"), half), list.slice(0, list.lastIndexOf("]"))]) {
        const dropped = yield* outcomeOf({ pieces: [text], ending: "drop" }, {}, offering("note"))
        assert.strictEqual(dropped.error?.reason, "network_error")
        assert.deepStrictEqual(dropped.events.map(({ _tag }) => _tag), [
          "MessageStarted",
          "TextDelta",
          "ToolCallStarted"
        ])
      }
      const complete = yield* outcomeOf({ pieces: [body(said("a"), stop)], ending: "drop" })
      assert.deepStrictEqual([textOf(complete.events), complete.error], [["a"], undefined])
    }))

  it.effect("R-355: a body cut anywhere emits its events and then fails as cut; a body cut after the finish reason does not fail", () =>
    Effect.gen(function*() {
      const complete = Buffer.from(body(said("a"), stop))
      for (const text of [body(said("a"), said("ø")), array(said("a"), said("ø"))]) {
        const bytes = Buffer.from(text)
        const start = bytes.indexOf("responseId") + 30
        for (let size = start; size < bytes.length - 3; size += 17) {
          for (const ending of ["drop", "end"] as const) {
            const { error, events } = yield* outcomeOf({ pieces: [bytes.subarray(0, size)], ending })
            assert.strictEqual(error?.reason, "network_error", `${size} bytes, ${ending}`)
            assert.strictEqual(events[0]?._tag, "MessageStarted")
          }
          const after = yield* outcomeOf({ pieces: [complete, bytes.subarray(0, size)], ending: "drop" })
          assert.isUndefined(after.error, `${size} bytes after the end`)
        }
      }
    }))

  Conformance.register(
    AdapterSuite.failing(),
    Layer.unwrap(Effect.map(Server.unreachable, (url) => Chunks.layer(url, { retries: 0 }))),
    (name, run) => {
      it(`R-122, ${name}`, run)
    }
  )
})
