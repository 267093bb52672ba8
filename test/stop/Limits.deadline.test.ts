/**
 * The deadline of a run: tools are stopped early enough for a last answer, the rest when it has come, and what handlers
 * start has what is left.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Stream from "effect/Stream"
import { Chat, Limits, Tool } from "heddle"
import { Script, Simulation } from "heddle/testing"
import { succeeded } from "../support/runs.ts"
import { caller, Gauge, lastOf, leafOf, tree } from "../support/trees.ts"

const anything = { type: "object" } as const

describe("Limits: deadline", () => {
  const wait = (millis: number, more: { readonly interrupt?: "block" } = {}) =>
    Tool.make("wait", { parameters: anything, handler: () => Effect.as(Effect.sleep(millis), "waited"), ...more })

  const last = (delay: number) =>
    Script.layer([
      [Script.toolCall("c0", "wait"), Script.finish("tool_calls")],
      [Script.delay(delay), Script.text("last words"), Script.finish("stop")]
    ])

  it.effect("tools are stopped early enough for a last answer, which is asked for without tools", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([
        [Script.toolCall("c0", "wait"), Script.finish("tool_calls")],
        [Script.delay(100), Script.text("last words"), Script.finish("stop")]
      ])
      const report = yield* Simulation.run(
        Effect.provide(
          Chat.run("go", { tools: [wait(60_000)], toolTimeout: "infinity", deadline: "1 second" }),
          model.layer
        )
      )
      const result = succeeded(report)
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "stop" })
      assert.strictEqual(result.finalized, "deadline")
      assert.strictEqual(result.finalResponse?.outputText, "last words")
      assert.strictEqual(report.millis, 750 + 100)
      assert.include(String(result.steps[0]?.toolResults[0]?.content), "deadline")
      const [first, second] = yield* model.requests
      assert.isUndefined(first?.toolChoice)
      assert.strictEqual(second?.toolChoice, "none")
    }))

  it.effect("law 6: a structured answer after the last answer of a deadline keeps finalized \"deadline\"", () =>
    Effect.gen(function*() {
      const model = Script.layer([
        [Script.toolCall("c0", "wait"), Script.finish("tool_calls")],
        [Script.text("last words"), Script.finish("stop")],
        [Script.text("{}"), Script.finish("stop")]
      ])
      const report = yield* Simulation.run(
        Effect.provide(
          Chat.run("go", {
            tools: [wait(60_000)],
            toolTimeout: "infinity",
            deadline: "1 second",
            structuredFinalize: true,
            responseFormat: { type: "json_object" }
          }),
          model
        )
      )
      const result = succeeded(report)
      assert.deepStrictEqual(result.structuredFinalize, { pass1Halted: "completed" })
      assert.strictEqual(result.finalized, "deadline")
    }))

  it.effect("a run that is not over at the deadline is stopped softly", () =>
    Effect.gen(function*() {
      const report = yield* Simulation.run(
        Effect.provide(
          Chat.run("go", { tools: [wait(60_000)], toolTimeout: "infinity", deadline: { after: 1000, reserve: 400 } }),
          last(500)
        )
      )
      const result = succeeded(report)
      assert.deepStrictEqual(result.outcome, { _tag: "Cancelled", reason: "deadline" })
      assert.strictEqual(result.finalized, "deadline")
      assert.strictEqual(report.millis, 1000)
      assert.strictEqual(report.sleeping, 0)
    }))

  it.effect("an absolute deadline is the same however late the run starts, and a passed deadline asks no model", () =>
    Effect.gen(function*() {
      const options = { tools: [wait(60_000)], toolTimeout: "infinity", deadline: { at: 5000, reserve: 400 } } as const
      for (const started of [0, 4000]) {
        const run = Effect.provide(Chat.run("go", options), last(10))
        const report = yield* Simulation.run(Effect.andThen(Effect.sleep(started), run))
        assert.strictEqual(succeeded(report).finalized, "deadline")
        assert.deepStrictEqual(succeeded(report).outcome, { _tag: "Completed", finishReason: "stop" })
        assert.deepStrictEqual([report.millis, report.sleeping], [4610, 0])
      }
      const model = yield* Script.make([[Script.text("late"), Script.finish("stop")]])
      const late = Effect.provide(Chat.run("go", options), model.layer)
      const report = yield* Simulation.run(Effect.andThen(Effect.sleep(6000), late))
      assert.deepStrictEqual(succeeded(report).outcome, { _tag: "Cancelled", reason: "deadline" })
      assert.strictEqual(yield* model.opens, 0)
    }))

  it.effect("with a reserve of zero, tools may use all of the time", () =>
    Effect.gen(function*() {
      const run = (millis: number) =>
        Simulation.run(Effect.provide(
          Chat.run("go", { tools: [wait(millis)], toolTimeout: "infinity", deadline: { after: 1000, reserve: 0 } }),
          last(50)
        ))
      const inTime = yield* run(900)
      assert.deepStrictEqual(succeeded(inTime).outcome, { _tag: "Completed", finishReason: "stop" })
      assert.isUndefined(succeeded(inTime).finalized)
      assert.strictEqual(succeeded(inTime).steps[0]?.toolResults[0]?.content, "waited")
      assert.strictEqual(inTime.millis, 950)
      const late = yield* run(60_000)
      assert.deepStrictEqual(succeeded(late).outcome, { _tag: "Cancelled", reason: "deadline" })
      assert.include(String(succeeded(late).steps[0]?.toolResults[0]?.content), "deadline")
      assert.deepStrictEqual([late.millis, late.sleeping], [1000, 0])
    }))

  it.effect("a run that ends in time is not affected by its deadline", () =>
    Effect.gen(function*() {
      const report = yield* Simulation.run(
        Effect.provide(Chat.run("go", { tools: [wait(10)], deadline: "1 second" }), last(10))
      )
      const result = succeeded(report)
      assert.strictEqual(result.outcome._tag, "Completed")
      assert.isUndefined(result.finalized)
      assert.strictEqual(report.millis, 20)
      assert.strictEqual(report.sleeping, 0)
    }))

  it.effect("tool calls in the last reply of a deadline are answered without running", () =>
    Effect.gen(function*() {
      const stubborn = Script.layer([
        [Script.toolCall("c0", "wait"), Script.finish("tool_calls")],
        [Script.toolCall("c1", "wait"), Script.finish("tool_calls")],
        [Script.text("never asked"), Script.finish("stop")]
      ])
      const report = yield* Simulation.run(
        Effect.provide(Chat.run("go", { tools: [wait(60_000)], toolTimeout: "infinity", deadline: 1000 }), stubborn)
      )
      const result = succeeded(report)
      assert.deepStrictEqual(result.outcome, { _tag: "Cancelled", reason: "deadline" })
      assert.strictEqual(result.steps.length, 2)
      assert.strictEqual(result.thread.messages.filter((message) => message.role === "tool").length, 2)
    }))

  it.effect("handlers and the runs they start inherit and can read the remaining time", () =>
    Effect.gen(function*() {
      const seen: Array<number> = []
      const look = Tool.make("look", {
        parameters: {},
        handler: () =>
          Effect.gen(function*() {
            seen.push(Duration.toMillis(yield* Limits.remaining))
            return "ok"
          })
      })
      const agent = Tool.fromChat("agent", {
        parameters: {},
        chat: () =>
          Stream.provide(Chat.stream("go", { tools: [look], deadline: { after: "1 hour" } }), caller("look", 1))
      })
      const program = Chat.run("go", { tools: [agent, look], deadline: { after: 1000, reserve: 200 } }).pipe(
        Effect.provide(Script.layer([
          [Script.toolCall("c0", "look"), Script.toolCall("c1", "agent"), Script.finish("tool_calls")],
          [Script.text("done"), Script.finish("stop")]
        ]))
      )
      succeeded(yield* Simulation.run(program))
      assert.deepStrictEqual(seen, [800, 600])
    }))

  it.effect("three nested runs that never end by themselves leave the outermost run time to answer", () =>
    Effect.gen(function*() {
      const gauge = new Gauge()
      const report = yield* Simulation.run(
        Stream.runCollect(tree(3, 2, leafOf(gauge, 1_000_000), { deadline: 500, toolTimeout: "infinity" }))
      )
      const result = lastOf(succeeded(report))
      assert.strictEqual(result.outcome._tag, "Completed")
      assert.isUndefined(result.finalized, "the runs inside it were stopped in time for it to go on")
      assert.isBelow(report.millis, 375)
      assert.deepStrictEqual([gauge.now, report.sleeping], [0, 0])
    }))

  it.effect("a run with a passed inherited deadline asks no model and starts no tool", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([[Script.text("never"), Script.finish("stop")]])
      const run = Chat.run("go", { tools: [wait(1)] }).pipe(
        Effect.provide(model.layer),
        Effect.provideService(Limits.CurrentDeadline, -1)
      )
      const result = succeeded(yield* Simulation.run(run))
      assert.deepStrictEqual(result.outcome, { _tag: "Cancelled", reason: "deadline" })
      assert.strictEqual(yield* model.opens, 0)
    }))

  it.effect("invalid deadlines are refused with a message that names the valid values", () =>
    Effect.gen(function*() {
      const refused: ReadonlyArray<readonly [Limits.DeadlineInput, string]> = [
        [0, "deadline must be a duration above zero"],
        [-1, "deadline must be a duration above zero"],
        [{ after: 0 }, "deadline.after must be a duration above zero"],
        [{ at: Number.NaN }, "deadline.at must be a time in milliseconds since 1970"],
        [{ at: "tomorrow" as never }, "deadline.at must be a time in milliseconds since 1970"],
        [{ at: 10, reserve: -1 }, "deadline.reserve must be a duration of zero or more"],
        [{ at: 10, after: 10 }, "deadline must have after or at"],
        [{ after: 10, reserve: -1 }, "deadline.reserve must be a duration of zero or more"],
        [{ after: 10, reserve: Number.NaN }, "deadline.reserve must be a duration of zero or more"]
      ]
      for (const [deadline, message] of refused) {
        const exit = yield* Effect.exit(Effect.provide(Chat.run("go", { deadline }), last(0)))
        assert.isTrue(Exit.isFailure(exit) && Cause.hasDies(exit.cause), JSON.stringify(deadline))
        assert.include(Exit.isFailure(exit) ? Cause.pretty(exit.cause) : "", message)
      }
    }))

  it.effect("without a deadline the remaining time is unlimited, and after a passed deadline the remaining time is zero", () =>
    Effect.gen(function*() {
      assert.isFalse(Duration.isFinite(yield* Limits.remaining))
      const passed = yield* Effect.provideContext(Limits.remaining, Context.make(Limits.CurrentDeadline, -5))
      assert.strictEqual(Duration.toMillis(passed), 0)
    }))
})
