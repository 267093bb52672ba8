/**
 * Asking again for a reply that broke: what counts as said, when it is asked for and when not, and what a reader, a fold
 * and a session make of it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Chat, Collector, Event, Message, Session, Step, Thread, Tool } from "heddle"
import { check, Script } from "heddle/testing"
import { body, finish as finishChunk, layer, said } from "../support/openAiChat.ts"
import type { ChatOptions } from "../support/scenarios.ts"
import { serve } from "../support/server.ts"
import { calling, done } from "../support/sessions.ts"
import { anything, echo } from "../support/tools.ts"

const { delay, error, finish, rawChunk, streamError, text, toolCall } = Script

const twice = Schedule.recurs(2)

const broken = [
  rawChunk({ usage: { inputTokens: 5 } }),
  text("It is "),
  toolCall("c9", "echo", {}),
  streamError("network_error")
]
const whole = [rawChunk({ usage: { inputTokens: 7 } }), text("It is raining."), finish("stop")]

/** The events of a run, and the result of the same run awaited. */
const both = (script: Script.Input, options: ChatOptions = {}) =>
  Effect.gen(function*() {
    const given = { requestId: "r", tools: [echo], retryReply: twice, ...options }
    const events = yield* Stream.runCollect(Chat.stream("go", given)).pipe(Effect.provide(Script.layer(script)))
    const result = yield* Effect.provide(Chat.run("go", given), Script.layer(script))
    assert.isEmpty(check(events, { result }))
    const wires = events.map((event): unknown => JSON.parse(JSON.stringify(Event.toWire(event))))
    const folded = Collector.fromWire("go", wires)
    assert.deepStrictEqual([folded.thread, folded.usage], [result.thread, result.usage])
    return { events, result, tags: events.map((event) => event._tag) }
  })

const resets = (events: ReadonlyArray<Event.Event>) => events.filter((event) => event._tag === "StepReset")

describe("retryReply", () => {
  it.effect("M-23: the run repeats the request of a broken reply, and only the whole reply counts", () =>
    Effect.gen(function*() {
      const { events, result, tags } = yield* both([broken, broken, whole])
      assert.strictEqual(resets(events).length, 2)
      assert.deepInclude(resets(events)[0]?.error, { _tag: "AdapterError", reason: "network_error" })
      assert.notInclude(tags, "Error")
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "stop" })
      assert.deepStrictEqual(result.thread.messages.map(Message.text), ["go", "It is raining."])
      assert.isUndefined(result.thread.messages[1]?.toolCalls)
      assert.strictEqual(result.usage?.inputTokens, 17)
      assert.strictEqual(result.steps.length, 1)
    }))

  it.effect("M-23: without retryReply or after the end of its schedule a broken reply ends the run", () =>
    Effect.gen(function*() {
      for (const options of [{ retryReply: undefined }, { retryReply: Schedule.recurs(0) }]) {
        const { result, tags } = yield* both([broken, whole], options)
        assert.strictEqual(result.haltedReason, "error")
        assert.notInclude(tags, "StepReset")
        assert.include(tags, "Error")
      }
      const { events, result } = yield* both([broken, broken, broken, whole])
      assert.strictEqual(resets(events).length, 2)
      assert.strictEqual(result.haltedReason, "error")
      assert.strictEqual(result.usage?.inputTokens, 15)
    }))

  it.effect("M-23: each turn gets the whole schedule, and the results of earlier turns stay", () =>
    Effect.gen(function*() {
      const script = [broken, broken, calling("echo:c0"), broken, broken, done]
      const { events, result } = yield* both(script)
      assert.strictEqual(resets(events).length, 4)
      assert.strictEqual(result.outcome._tag, "Completed")
      assert.deepStrictEqual(result.thread.messages.map(({ role }) => role), ["user", "assistant", "tool", "assistant"])
    }))

  it.effect("M-23: a failure before the first event and an error within the reply are retried", () =>
    Effect.gen(function*() {
      const refused = [Script.preflightError("provider_unavailable")]
      const told = [text("It "), error("timeout")]
      for (const first of [refused, told, [streamError("malformed_response")]]) {
        const { events, result } = yield* both([first, calling("echo:c0"), first, done])
        assert.strictEqual(resets(events).length, 2)
        assert.strictEqual(result.outcome._tag, "Completed")
      }
    }))

  it.effect("M-23: a permanent error is not retried", () =>
    Effect.gen(function*() {
      const reasons = ["authentication_failed", "invalid_request", "quota_exceeded", "context_length_exceeded"] as const
      for (const reason of reasons) {
        const { result, tags } = yield* both([[text("It "), streamError(reason)], whole])
        assert.notInclude(tags, "StepReset")
        assert.strictEqual(result.haltedReason, "error")
      }
    }))

  it.effect("M-23: a reply whose early call has started is not retried", () =>
    Effect.gen(function*() {
      let runs = 0
      const look = Tool.make("look", {
        parameters: anything,
        readOnly: true,
        handler: () => Effect.sync(() => runs++).pipe(Effect.as("seen"))
      })
      const script = [[toolCall("c0", "look", {}), delay("1 second"), streamError("network_error")], whole]
      const fiber = yield* Effect.forkChild(both(script, { tools: [look] }))
      yield* TestClock.adjust("5 seconds")
      const { result, tags } = yield* Fiber.join(fiber)
      assert.strictEqual(runs, 2, "once streamed, once awaited")
      assert.notInclude(tags, "StepReset")
      assert.strictEqual(result.haltedReason, "error")
    }))

  it.effect("M-23: a retry waits as long as the schedule requires and at least as long as the provider asks", () =>
    Effect.gen(function*() {
      const busy = [text("It "), streamError("rate_limited", { retryAfterMillis: 60_000 })]
      const retryReply = Schedule.spaced("10 seconds")
      const run = Chat.run("go", { retryReply }).pipe(Effect.provide(Script.layer([broken, busy, whole])))
      const fiber = yield* Effect.forkChild(run)
      yield* TestClock.adjust("69 seconds")
      assert.isUndefined(fiber.pollUnsafe())
      yield* TestClock.adjust("1 second")
      assert.strictEqual((yield* Fiber.join(fiber)).outcome._tag, "Completed")
    }))

  it.effect("M-23: a run stopped while waiting for a retry makes no further request", () =>
    Effect.gen(function*() {
      const retryReply = Schedule.spaced("1 hour")
      for (const options of [{ cancel: Effect.sleep("1 second") }, { deadline: "1 second" }] as const) {
        const cursor = yield* Script.makeCursor
        const layer = Script.layer({ scripts: [broken, whole], cursor })
        const fiber = yield* Effect.forkChild(Effect.provide(Chat.run("go", { retryReply, ...options }), layer))
        yield* TestClock.adjust("1 second")
        const { outcome, thread } = yield* Fiber.join(fiber)
        assert.deepStrictEqual(outcome, { _tag: "Cancelled", reason: "cancel" in options ? "cancel" : "deadline" })
        assert.deepStrictEqual(thread.messages.map(Message.text), ["go"])
        assert.strictEqual(yield* cursor.position, 1)
      }
      const cursor = yield* Script.makeCursor
      const left = Chat.stream("go", { retryReply }).pipe(
        Stream.takeUntil((event) => event._tag === "StepReset"),
        Stream.runDrain,
        Effect.provide(Script.layer({ scripts: [broken, whole], cursor }))
      )
      yield* left
      assert.strictEqual(yield* cursor.position, 1)
    }))

  it.effect("M-23: an awaited step, a streamed step and the fold of its events agree after a retry", () =>
    Effect.gen(function*() {
      const options = { requestId: "r", retryReply: twice }
      const result = yield* Effect.provide(Step.run("go", options), Script.layer([broken, whole]))
      const events = yield* Effect.provide(
        Stream.runCollect(Step.stream("go", options)),
        Script.layer([broken, whole])
      )
      const thread = Thread.fromMessages([Message.user("go")])
      const folded = Collector.toStepResult(Collector.applyAll(Collector.initial({ thread }), events))
      assert.deepStrictEqual(folded, result)
      assert.strictEqual(result.response.outputText, "It is raining.")
      assert.deepStrictEqual(Collector.classify(events).type, "final_answer")
    }))

  it.effect("M-23: a kept session holds nothing of the broken reply", () =>
    Effect.gen(function*() {
      const opened = yield* Session.open("s")
      const next = yield* Session.keep(opened, (session) =>
        Effect.provide(
          Session.reply(session, "go", { tools: [echo], retryReply: twice }),
          Script.layer([broken, calling("echo:c0"), broken, whole])
        ))
      assert.strictEqual(next.session.status, "completed")
      assert.deepStrictEqual(
        next.session.thread.messages.map(Message.text),
        ["go", "", "{}", "It is raining."]
      )
      assert.deepStrictEqual((yield* Session.load("s"))?.session, next.session)
      const store = yield* Session.Store
      const tags = (yield* Stream.runCollect(store.read("s", opened.version))).map(({ record }) => record._tag)
      assert.deepStrictEqual(tags, [
        "RunStarted",
        "ReplyReceived",
        "CallStarted",
        "CallEnded",
        "StepCompleted",
        "StepCompleted",
        "RunEnded"
      ])
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.live("M-23: a reply is retried after the server drops its connection in the middle", () =>
    Effect.gen(function*() {
      const server = yield* serve((_, index) =>
        index === 0
          ? { pieces: [`data: ${JSON.stringify(said("It is "))}\n\n`], ending: "drop" }
          : { pieces: [body(said("It is "), said("raining."), finishChunk("stop"))] }
      )
      const result = yield* Chat.run("go", { retryReply: twice }).pipe(
        Effect.provide(layer(server.url, { retries: 0 }))
      )
      assert.deepStrictEqual(result.thread.messages.map(Message.text), ["go", "It is raining."])
      assert.strictEqual(server.requests.length, 2)
      assert.deepStrictEqual(server.requests[0]?.body, server.requests[1]?.body)
    }).pipe(Effect.scoped))

  it.effect("M-03: a slow or uninterruptible schedule does not hold up a stop", () =>
    Effect.gen(function*() {
      const deaf = Effect.uninterruptible(Effect.never)
      for (const pace of [Effect.never, deaf]) {
        const left = pace === deaf ? [["hook", "retryReply"]] : []
        const retryReply = Schedule.recurs(2).pipe(Schedule.tap(() => pace))
        for (const first of [broken, [Script.preflightError("network_error")]]) {
          for (const options of [{ cancel: Effect.sleep(50) }, { deadline: 50 }] as const) {
            const run = Chat.run("go", { retryReply, grace: 100, ...options })
            const fiber = yield* Effect.forkChild(Effect.provide(run, Script.layer([first, whole])))
            yield* TestClock.adjust(150)
            const exit = fiber.pollUnsafe()
            assert.isTrue(exit !== undefined && Exit.isSuccess(exit), "it ends within the grace period")
            const reason = "cancel" in options ? "cancel" : "deadline"
            const { abandoned = [], outcome } = yield* Fiber.join(fiber)
            assert.deepStrictEqual(outcome, { _tag: "Cancelled", reason })
            assert.deepStrictEqual(abandoned.map(({ kind, name }) => [kind, name]), left)
          }
          const fiber = yield* Effect.forkDetach(
            Effect.provide(Chat.run("go", { retryReply, grace: 100 }), Script.layer([first, whole]))
          )
          yield* TestClock.adjust(50)
          fiber.interruptUnsafe()
          yield* TestClock.adjust(100)
          assert.isDefined(fiber.pollUnsafe(), "an interruption ends it within the grace period")
        }
      }
    }))

  it.effect("M-23: a run cancelled at the reset of a reply makes no further request, also without a delay", () =>
    Effect.gen(function*() {
      const controller = new AbortController()
      const model = yield* Script.make([broken, whole])
      const events = yield* Chat.stream("go", { retryReply: twice, cancel: controller.signal }).pipe(
        Stream.tap((event) => Effect.sync(() => event._tag === "StepReset" && controller.abort())),
        Stream.runCollect,
        Effect.provide(model.layer)
      )
      assert.strictEqual((yield* model.requests).length, 1)
      const last = events.at(-1)
      assert.strictEqual(last?._tag === "ChatCompleted" && last.result.outcome._tag, "Cancelled")
      assert.isEmpty(check(events))
    }))
})
