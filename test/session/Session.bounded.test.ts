/** A store that is slow holds up no stop: its `append` is left behind after the grace period, and its writer closed. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as TestClock from "effect/testing/TestClock"
import { Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import { leaves } from "../durable/support/ledger.ts"

const grace = 100
const echo = Tool.make("echo", { parameters: {}, handler: () => Effect.void })

/** A store whose append of one kind of record never ends. Counts what is appended after that. */
const hanging = (tag: string, pace: "never ends" | "refuses interruption") =>
  Effect.map(Session.Store, (store) => {
    const seen = { isHanging: false, after: 0 }
    const wait = pace === "never ends" ? Effect.never : Effect.uninterruptible(Effect.never)
    const slow: typeof store = {
      ...store,
      append: (id, expected, records) =>
        Effect.suspend(() => {
          if (seen.isHanging) seen.after++
          if (!records.some((record) => record._tag === tag)) return store.append(id, expected, records)
          seen.isHanging = true
          return wait
        })
    }
    return { seen, layer: Layer.succeed(Session.Store, slow) }
  })

/** The turn in which a stop has to answer calls that did not end in time. */
for (const calls of [1, 2, 3]) {
  it.effect(`N-45: a stop ends a kept run in which ${calls} blocking calls of one turn outlive the grace period`, () =>
    Effect.gen(function*() {
      const kept = yield* Session.open("s")
      const slow = Tool.make("slow", { parameters: {}, interrupt: "block", handler: () => Effect.sleep(2 * grace) })
      const ids = Array.from({ length: calls }, (_, index) => `c${index}`)
      const model = Script.layer([[...ids.map((id) => Script.toolCall(id, "slow")), Script.finish("tool_calls")]])
      const fiber = yield* Effect.forkDetach(
        Session.keep(
          kept,
          (session) => Session.reply(session, "go", { tools: [slow], grace, cancel: Effect.sleep(10) })
        ).pipe(Effect.provide(model)),
        { startImmediately: true }
      )
      yield* TestClock.adjust(10)
      yield* TestClock.adjust(grace)
      const exit = fiber.pollUnsafe()
      if (exit === undefined || !Exit.isSuccess(exit)) return assert.fail("the run is not over")
      const { outcome, thread } = exit.value.value.result
      assert.strictEqual(outcome._tag, "Cancelled")
      assert.deepStrictEqual(thread.messages.flatMap(({ toolCallId }) => toolCallId ?? []), ids)
    }).pipe(Effect.provide(Session.Store.layerMemory)))
}

describe("a store that does not answer", () => {
  for (const tag of ["RunStarted", "StepCompleted", "CallStarted", "CallEnded", "RunEnded"]) {
    for (const how of ["cancel", "deadline", "interrupt"] as const) {
      it.effect(`M-03: a run stopped by ${how} ends although the append of ${tag} never ends`, () =>
        Effect.gen(function*() {
          leaves("writes")
          const kept = yield* Session.open("s")
          const { layer, seen } = yield* hanging(tag, "refuses interruption")
          const stop = how === "cancel" ? { cancel: Effect.sleep(10) } : how === "deadline" ? { deadline: 10 } : {}
          const model = Script.layer([
            [Script.toolCall("c0", "echo"), Script.finish("tool_calls")],
            [Script.text("done"), Script.finish("stop")]
          ])
          const fiber = yield* Effect.forkDetach(
            Session.keep(kept, (session) => Session.reply(session, "go", { tools: [echo], grace, ...stop })).pipe(
              Effect.provide(Layer.merge(layer, model))
            ),
            { startImmediately: true }
          )
          yield* TestClock.adjust(10)
          if (how === "interrupt") fiber.interruptUnsafe()
          yield* TestClock.adjust(grace)
          const exit = fiber.pollUnsafe()
          assert.isTrue(seen.isHanging, "the store was asked")
          assert.isDefined(exit, "the run is over")
          assert.strictEqual(seen.after, 0, "nothing is written after it")
          if (how === "interrupt" || tag === "RunStarted" || exit === undefined || !Exit.isSuccess(exit)) return
          const { abandoned = [] } = exit.value.value.result
          if (tag !== "RunEnded") assert.deepInclude(abandoned.map(({ kind }) => kind), "store")
        }).pipe(Effect.provide(Session.Store.layerMemory)))
    }
  }

  for (const how of ["cancel", "deadline", "interrupt"] as const) {
    it.effect(`M-03: a run stopped by ${how} beside a handler that does not stop takes one grace period and not two`, () =>
      Effect.gen(function*() {
        leaves("writes")
        const kept = yield* Session.open("s")
        const { layer, seen } = yield* hanging("CallEnded", "refuses interruption")
        const deaf = Tool.make("deaf", { parameters: {}, handler: () => Effect.uninterruptible(Effect.never) })
        const stop = how === "cancel" ? { cancel: Effect.sleep(10) } : how === "deadline" ? { deadline: 10 } : {}
        const model = Script.layer([[
          Script.toolCall("c0", "deaf"),
          Script.toolCall("c1", "echo"),
          Script.finish("tool_calls")
        ]])
        const fiber = yield* Effect.forkDetach(
          Session.keep(kept, (session) => Session.reply(session, "go", { tools: [deaf, echo], grace, ...stop })).pipe(
            Effect.provide(Layer.merge(layer, model))
          ),
          { startImmediately: true }
        )
        yield* TestClock.adjust(10)
        assert.isTrue(seen.isHanging, "the store was asked")
        if (how === "interrupt") fiber.interruptUnsafe()
        yield* TestClock.adjust(grace)
        const exit = fiber.pollUnsafe()
        assert.isDefined(exit, "the run is over")
        if (how === "interrupt" || !Exit.isSuccess(exit)) return
        const { abandoned = [] } = exit.value.value.result
        assert.sameMembers(abandoned.map(({ kind }) => kind), ["handler", "store"])
      }).pipe(Effect.provide(Session.Store.layerMemory)))
  }
})

describe("approved calls", () => {
  it.effect("M-07: an approved call's handler that does not stop is named, whether or not the operation calls a model afterwards", () =>
    Effect.gen(function*() {
      const pay = Tool.make("pay", {
        parameters: {},
        approval: true,
        timeout: 10,
        handler: () => Effect.uninterruptible(Effect.never)
      })
      const asked = [Script.toolCall("p1", "pay"), Script.finish("tool_calls")]
      const { session } = yield* Effect.provide(Session.start("go", { tools: [pay] }), Script.layer([asked]))
      const approved = yield* Session.approve(session, "p1")
      const done = [Script.text("done"), Script.finish("stop")]
      for (const onToolError of ["continue", "halt"] as const) {
        const fiber = yield* Effect.forkChild(
          Effect.provide(Session.continue(approved, null, { tools: [pay], grace, onToolError }), Script.layer([done]))
        )
        yield* TestClock.adjust(10 + 2 * grace)
        const exit = fiber.pollUnsafe()
        if (exit === undefined || !Exit.isSuccess(exit)) return assert.fail(`it did not end well: ${String(exit)}`)
        const { abandoned = [], outcome } = exit.value.result
        assert.strictEqual(outcome._tag, onToolError === "halt" ? "ToolFailed" : "Completed")
        assert.deepStrictEqual(abandoned.map(({ id, kind }) => [id, kind]), [["p1", "handler"]])
      }
    }))
})
