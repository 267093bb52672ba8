/**
 * The answer of a stopped call: it waits for the handler, for the grace period and for five seconds at most, and says
 * whether the call has stopped or may still take effect.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { Chat, Event, Message, Policy, Session, StreamingToolExecutor, Tool, ToolRunner } from "heddle"
import { Script } from "heddle/testing"
import { AgUi, UiStream } from "heddle/ui"
import { elapsed } from "../support/runs.ts"

const stopAt = 20

/** How a handler takes an interruption, and how long it is alive behind it. */
const handlers: { readonly [name: string]: readonly [handler: Effect.Effect<unknown>, alive: number] } = {
  "stops at once": [Effect.never, 0],
  "cleans up": [Effect.onInterrupt(Effect.never, () => Effect.sleep(60)), 60],
  "ends by itself": [Effect.uninterruptible(Effect.sleep(stopAt + 90)), 90],
  "ends after six seconds": [Effect.uninterruptible(Effect.sleep(stopAt + 6_000)), 6_000],
  "never ends": [Effect.uninterruptible(Effect.never), Infinity]
}

const graces = { "50 millis": 50, "5 seconds": 5_000, "1 minute": 60_000, infinity: Infinity } as const
type Grace = keyof typeof graces

const strict = { ...Policy.standard, siblings: { ...Policy.standard.siblings, onToolError: "abortAll" } } as const

/** Each way in which a call is stopped: further options, the word of a call that stops, and what the model reads. */
const ways = {
  stop: [{ cancel: Effect.sleep(stopAt) }, "cancelled", "interrupted: Execution cancelled by parent abort signal"],
  timeout: [{ toolTimeout: stopAt }, "timeout", "timed out after 20 ms"],
  sibling: [{ policy: strict }, "cancelled", "interrupted: a call beside it failed"],
  deadline: [
    { deadline: { after: stopAt * 2, reserve: stopAt } },
    "cancelled",
    "interrupted: the deadline of the run leaves no more time for tools"
  ]
} as const
type Way = keyof typeof ways

const broken = Tool.make("broken", { parameters: {}, handler: () => Effect.delay(Effect.fail("no"), stopAt) })

const run = (way: Way, handler: Effect.Effect<unknown>, grace: Grace) => {
  const tool = Tool.make("mail", { parameters: {}, handler: () => handler })
  const calls = [Message.toolCall("c0", "mail"), ...(way === "sibling" ? [Message.toolCall("c1", "broken")] : [])]
  return Stream.runFoldEffect(
    ToolRunner.stream(calls, [tool, broken], { ...ways[way][0], grace }),
    (): Array<Event.Event & { readonly time: number }> => [],
    (events, event) =>
      Effect.clockWith((clock) =>
        Effect.sync(() => {
          events.push({ ...event, time: clock.currentTimeMillisUnsafe() })
          return events
        })
      )
  )
}

describe("O-09: the answer of a stopped call", () => {
  for (const way of Object.keys(ways) as ReadonlyArray<Way>) {
    it.effect(`O-09: the answer of a stopped call waits for its handler, and says whether the handler has ended (${way})`, () =>
      Effect.gen(function*() {
        const [, word, detail] = ways[way]
        for (const [name, [handler, alive]] of Object.entries(handlers)) {
          for (const [grace, graceMillis] of Object.entries(graces)) {
            const isEnding = Number.isFinite(alive)
            if (!isEnding && graceMillis === Infinity) continue
            const start = yield* Effect.clockWith((clock) => clock.currentTimeMillis)
            const { value: events } = yield* elapsed(run(way, handler, grace as Grace))
            const encoded = events.find((event) => event._tag === "ToolResultEncoded" && event.id === "c0")
            assert.strictEqual(encoded?._tag, "ToolResultEncoded")
            if (encoded?._tag !== "ToolResultEncoded") return
            const wait = Math.min(alive, graceMillis, 5_000)
            const where = `${name}, ${grace}`
            assert.strictEqual(encoded.time - start, stopAt + wait, where)
            const hasEnded = alive <= wait
            assert.strictEqual(encoded.code, hasEnded ? word : "abandoned", where)
            const reason = hasEnded
              ? `${word}: ${detail}`
              : `abandoned: ${detail}; it has not stopped, and may still take effect`
            assert.deepStrictEqual(
              JSON.parse(String(encoded.content)),
              { error: `tool error (mail): ${reason}`, code: hasEnded ? word : "abandoned" },
              where
            )
          }
        }
      }))
  }

  it.effect("O-09: a waiting or gated call is cancelled within the grace period of a stop", () =>
    Effect.gen(function*() {
      const deaf = Effect.uninterruptible(Effect.never)
      const gated = Tool.make("gated", { parameters: {}, authorize: () => deaf, handler: () => Effect.void })
      const limited = Tool.make("limited", {
        parameters: {},
        limits: [{ key: "one", permits: 1 }],
        handler: () => Effect.never
      })
      const { at, value } = yield* elapsed(
        ToolRunner.run(
          [Message.toolCall("c0", "gated"), Message.toolCall("c1", "limited"), Message.toolCall("c2", "limited")],
          [gated, limited],
          { cancel: Effect.sleep(stopAt), grace: 100 }
        )
      )
      assert.strictEqual(at, stopAt + 100, "the gate, which is no handler, is given its grace period")
      assert.deepStrictEqual(value.messages.map(({ content }) => JSON.parse(String(content)).code), [
        "cancelled",
        "cancelled",
        "cancelled"
      ])
    }))

  it.effect("O-09: a blocking handler has one turn to stop after its grace period, and is abandoned afterwards", () =>
    Effect.gen(function*() {
      const rows = [
        [Effect.never, "cancelled"],
        [Effect.onInterrupt(Effect.never, () => Effect.yieldNow), "cancelled"],
        [Effect.onInterrupt(Effect.never, () => Effect.sleep(1)), "abandoned"],
        [Effect.uninterruptible(Effect.never), "abandoned"]
      ] as const
      for (const [handler, code] of rows) {
        const block = Tool.make("block", { parameters: {}, interrupt: "block", handler: () => handler })
        const { at, value } = yield* elapsed(
          ToolRunner.run([Message.toolCall("c0", "block")], [block], { cancel: Effect.sleep(stopAt), grace: 100 })
        )
        assert.strictEqual(at, stopAt + 100)
        assert.strictEqual(JSON.parse(String(value.messages[0]?.content)).code, code)
        assert.strictEqual(value.abandoned?.length, code === "abandoned" ? 1 : undefined, code)
      }
    }))

  it.effect("O-09: a timeout is a failure, also of an abandoned handler: onToolError decides, and siblings stop", () =>
    Effect.gen(function*() {
      const asked: Array<string> = []
      const onToolError = (_: Message.ToolCall, error: unknown) =>
        Effect.sync(() => {
          asked.push(error instanceof Tool.ToolError ? `${error.reason} ${error.metadata?.["after"]}` : "none")
          return Tool.ErrorDecision.halt
        })
      const deaf = Tool.make("deaf", { parameters: {}, handler: () => Effect.uninterruptible(Effect.never) })
      const calls = [Message.toolCall("c0", "deaf")]
      const halted = yield* elapsed(ToolRunner.run(calls, [deaf], { toolTimeout: stopAt, grace: 50, onToolError }))
      assert.deepStrictEqual([asked, halted.value.halt === undefined], [["abandoned timeout"], false])
      const slow = Tool.make("slow", { parameters: {}, timeout: "1 hour", handler: () => Effect.never })
      const { at, value } = yield* elapsed(
        ToolRunner.run([...calls, Message.toolCall("c1", "slow")], [deaf, slow], {
          toolTimeout: stopAt,
          grace: 50,
          policy: strict
        })
      )
      assert.deepStrictEqual(
        [at, ...value.messages.map(({ content }) => JSON.parse(String(content)).code)],
        [stopAt + 50, "abandoned", "cancelled"]
      )
      const stopped = yield* elapsed(
        ToolRunner.run(calls, [deaf], { cancel: Effect.sleep(stopAt), grace: 50, onToolError })
      )
      assert.deepStrictEqual([asked.length, stopped.value.halt], [1, undefined], "a stop is no failure")
    }))

  it.effect("O-09: a call whose nested run has abandoned a call is abandoned", () =>
    Effect.gen(function*() {
      const deaf = Tool.make("deaf", { parameters: {}, handler: () => Effect.uninterruptible(Effect.never) })
      const model = () => Script.layer([[Script.toolCall("i", "deaf"), Script.finish("tool_calls")]])
      const inner = [
        () => Effect.provide(Chat.run("go", { tools: [deaf] }), model()),
        () => ToolRunner.run([Message.toolCall("i", "deaf")], [deaf])
      ]
      for (const handler of inner) {
        for (
          const [how, options] of [["timeout", { toolTimeout: stopAt }], ["stop", {
            cancel: Effect.sleep(stopAt)
          }]] as const
        ) {
          const outer = Tool.make("outer", { parameters: {}, handler })
          const { at, value } = yield* elapsed(
            ToolRunner.run([Message.toolCall("c0", "outer")], [outer], { ...options, grace: 1_000 })
          )
          assert.strictEqual(JSON.parse(String(value.messages[0]?.content)).code, "abandoned", how)
          assert.deepStrictEqual(value.abandoned?.map(({ path }) => path), [["c0", "i"]])
          assert.isAtMost(at, stopAt + 1_000)
        }
      }
    }))

  it.effect("O-09: a StreamingToolExecutor marks an abandoned call in the result metadata", () =>
    Effect.gen(function*() {
      const deaf = Tool.make("deaf", { parameters: {}, handler: () => Effect.uninterruptible(Effect.never) })
      for (
        const [options, more] of [[{ toolTimeout: stopAt }, {}], [{ signal: Effect.sleep(stopAt) }, {
          cancelled: true
        }]] as const
      ) {
        const { at, value } = yield* elapsed(
          Effect.scoped(Effect.gen(function*() {
            const executor = yield* StreamingToolExecutor.make({ ...options, grace: 50 })
            yield* executor.addTool(Message.toolCall("c0", "deaf"), deaf)
            yield* executor.noMoreCalls
            return yield* Stream.runCollect(executor.remainingResults)
          }))
        )
        const [result] = value.flatMap((update) =>
          "result" in update && update.result !== undefined ? [update.result] : []
        )
        assert.deepStrictEqual(result?.metadata, { toolId: "deaf", abandoned: true, ...more })
        assert.strictEqual(at, stopAt + 50)
      }
    }))

  it.effect("O-09: awaited run, streamed run, UI stream and AG-UI report the same abandoned call", () =>
    Effect.gen(function*() {
      const deaf = Tool.make("deaf", { parameters: {}, handler: () => Effect.uninterruptible(Effect.never) })
      const script = () => Script.layer([[Script.toolCall("c0", "deaf"), Script.finish("tool_calls")]])
      const options = { tools: [deaf], cancel: Effect.sleep(stopAt), grace: 50, requestId: "r" }
      const { value: result } = yield* elapsed(Effect.provide(Chat.run("go", options), script()))
      const { value: events } = yield* elapsed(
        Effect.provide(Stream.runCollect(Chat.stream("go", options)), script())
      )
      const encoded = events.find(({ _tag }) => _tag === "ToolResultEncoded")
      assert.deepInclude(encoded, { code: "abandoned", isError: true })
      assert.deepInclude(result.thread.messages.at(-1), {
        content: encoded?._tag === "ToolResultEncoded" ? encoded.content : "none",
        isError: true
      })
      assert.deepStrictEqual(result.abandoned?.map(({ id }) => id), ["c0"])
      const calls = new Map<string, Event.PublicCall>()
      const shared = events.flatMap((event) => Event.toPublic(event, { runId: "r", calls }) ?? [])
      const chunks = yield* Stream.runCollect(UiStream.chunks(Stream.fromIterable(shared)))
      assert.include(
        JSON.stringify(chunks.find(({ type }) => type === "tool-output-error")),
        "it has not stopped, and may still take effect"
      )
      const shown = yield* Stream.runCollect(
        AgUi.events(Stream.fromIterable(shared), { threadId: "t", runId: "r" })
      )
      assert.include(
        JSON.stringify(shown.find(({ type }) => type === "TOOL_CALL_RESULT")),
        "it has not stopped, and may still take effect"
      )
    }))

  for (const others of [0, 1, 2]) {
    it.effect(`O-09: the journal of a session with an abandoned call and ${others} others has all answers, the run end and the report`, () =>
      Effect.gen(function*() {
        const deaf = Tool.make("deaf", { parameters: {}, handler: () => Effect.uninterruptible(Effect.never) })
        const block = Tool.make("block", { parameters: {}, interrupt: "block", handler: () => Effect.never })
        const calls = [Script.toolCall("c", "deaf"), Script.toolCall("b0", "block"), Script.toolCall("b1", "block")]
        const script = Script.layer([[...calls.slice(0, others + 1), Script.finish("tool_calls")]])
        const claimed = yield* Session.claim("s")
        const fiber = yield* Session.keep(
          claimed,
          (session) => Effect.provide(Session.reply(session, "go", { tools: [deaf, block], grace: 100 }), script)
        ).pipe(
          Effect.forkChild({ startImmediately: true })
        )
        yield* TestClock.adjust(1)
        const { ended } = yield* Session.stop("s")
        yield* TestClock.adjust("400 millis")
        yield* Fiber.join(fiber)
        const store = yield* Session.Store
        const records = (yield* Stream.runCollect(store.read("s"))).map(({ record }) => record)
        const reasons = records.flatMap((record) =>
          record._tag === "CallEnded" ? [[record.message.toolCallId, record.reason]] : []
        )
        assert.deepStrictEqual(reasons.find(([id]) => id === "c")?.[1], "abandoned")
        assert.strictEqual(reasons.length, others + 1)
        const last = records.at(-1)
        assert.strictEqual(last?._tag, "RunEnded")
        assert.deepInclude(last, { haltedReason: "cancelled" })
        const stopped = ["b0", "b1"].slice(0, others)
        assert.deepStrictEqual(yield* ended, { stopped, ended: [], refused: ["c"], unknown: [] })
        assert.strictEqual(Session.next(yield* Session.open("s")), "nothing")
      }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))
  }
})
