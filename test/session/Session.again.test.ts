/**
 * What comes a second time in one operation: a turn after a turn, a nested run after one that failed, an operation behind
 * another one of its process. It is as the first one was.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Chat, Session, Tool } from "heddle"
import { Script } from "heddle/testing"

const done = [Script.text("done"), Script.finish("stop")]

const recordsOf = (id: string) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    return Array.from(yield* Stream.runCollect(store.read(id)), ({ record }) => record)
  })

const opened = (tools: ReadonlyArray<Tool.Any>) =>
  Effect.flatMap(Session.open("s"), (kept) => Session.keep(kept, (session) => Session.reply(session, "go", { tools })))

describe("repetitions within one operation", () => {
  it.effect("the start of a call that precedes its whole reply is recorded with the call, in each turn", () =>
    Effect.gen(function*() {
      const look = Tool.make("look", { parameters: {}, readOnly: true, handler: () => Effect.succeed("seen") })
      const turn = (id: string) => [Script.toolCall(id, "look"), Script.delay(50), Script.finish("tool_calls")]
      const fiber = yield* Effect.forkChild(
        Effect.provide(opened([look]), Script.layer([turn("a"), turn("b"), turn("c"), done]))
      )
      yield* TestClock.adjust(1_000)
      yield* Fiber.join(fiber)
      const records = yield* recordsOf("s")
      const started = records.flatMap((record, index) => {
        if (record._tag !== "CallStarted") return []
        const isEarly = records.slice(index).some((other) =>
          other._tag === "ReplyReceived" && other.response.toolCalls.some(({ id }) => id === record.toolCallId)
        )
        return [[record.toolCallId, isEarly, record.toolCall?.id]]
      })
      assert.deepStrictEqual(started, [["a", true, "a"], ["b", true, "b"], ["c", true, "c"]])
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("the next nested run with the same input continues the journal of a failed nested run, each time", () =>
    Effect.gen(function*() {
      let asked = 0
      const calling = [Script.toolCall("c0", "sub"), Script.finish("tool_calls")]
      const speaking = (entries: ReadonlyArray<Script.Entry>, request: Adapter.Request) =>
        Stream.unwrap(Effect.map(Adapter.Adapter, (adapter) => adapter.stream(request))).pipe(
          Stream.provide(Script.layer([entries]))
        )
      const model = Adapter.layer({
        stream: (request) => {
          const isInner = request.messages.some(({ content }) => content === "inner")
          if (!isInner) return speaking(request.messages.at(-1)?.role === "tool" ? done : calling, request)
          // Two of three runs fail.
          asked++
          return asked % 3 === 0
            ? speaking(done, request)
            : Stream.fail(new Adapter.AdapterError({ reason: "invalid_request" }))
        }
      })
      const inner = Effect.orDie(Effect.retry(Chat.run("inner"), { times: 2 }))
      const sub = Tool.make("sub", { parameters: {}, handler: () => Effect.as(Effect.andThen(inner, inner), "said") })
      yield* Effect.provide(opened([sub]), model)
      const nested = yield* Stream.runCollect(Session.list({ prefix: "s/" }))
      const ids = nested.map(({ id }) => id).toSorted()
      assert.strictEqual(asked, 6)
      assert.deepStrictEqual(ids.map((id) => id.replace(/^.*@[0-9a-f]{16}/, "")), ["", ".2"])
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})
