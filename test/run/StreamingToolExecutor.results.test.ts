/**
 * What an executor says of a call that came to an outcome: one result per call, with the text that ends it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { Executor, Message, StreamingToolExecutor, Tool } from "heddle"

/** A tool of which each call has the outcome that the executor service gives it. */
const tool = Tool.make("t", { parameters: {}, handler: () => Effect.void })

const cut = Tool.make("t", { parameters: {}, maxResultChars: 5, handler: () => Effect.void })

/** The updates of calls with these outcomes, all of them read at once, or each as it comes. */
const updatesOf = (outcomes: ReadonlyArray<Tool.Outcome>, called = tool, isAtOnce = false) =>
  Effect.scoped(Effect.gen(function*() {
    const executor = yield* StreamingToolExecutor.make()
    for (const [index] of outcomes.entries()) yield* executor.addTool(Message.toolCall(`c${index}`, "t"), called)
    yield* executor.noMoreCalls
    if (isAtOnce) {
      while (yield* executor.hasUnfinishedTools) yield* Effect.yieldNow
      return yield* executor.completedResults
    }
    return yield* Stream.runCollect(executor.remainingResults)
  })).pipe(Effect.provide(Executor.layer({
    execute: (_tool, _args, { index }) => Effect.succeed(outcomes[index] as never)
  })))

/** The one result of a call with this outcome. */
const resultOf = (outcome: Tool.Outcome, called = tool) =>
  Effect.map(updatesOf([outcome], called), (updates) => {
    assert.strictEqual(updates.length, 1)
    return updates[0]?.result
  })

const toolError = (
  reason: Tool.ToolError["reason"],
  more: Partial<Pick<Tool.ToolError, "detail" | "metadata">> = {}
) => new Tool.ToolError({ reason, toolName: "t", toolCallId: "a", ...more })

describe("StreamingToolExecutor: results", () => {
  it.effect("R-387, R-404: an update has the result with its text and tool, and what the call adds to the context", () =>
    Effect.gen(function*() {
      const adding = Tool.make("t", {
        parameters: {},
        handler: (_args, call) =>
          call.progress({ half: true }).pipe(Effect.andThen(call.updateContext({ x: 1 })), Effect.as(1))
      })
      const updates = yield* Effect.scoped(Effect.gen(function*() {
        const executor = yield* StreamingToolExecutor.make()
        yield* executor.addTool(Message.toolCall("a", "t"), adding)
        yield* executor.noMoreCalls
        return yield* Stream.runCollect(executor.remainingResults)
      }))
      assert.deepStrictEqual(updates, [
        { toolCallId: "a", progress: { half: true } },
        {
          toolCallId: "a",
          result: { success: true, data: 1, content: "1", metadata: { toolId: "t" } },
          contextUpdate: { x: 1 }
        }
      ])
    }))

  it.effect("R-389: each result is emitted once with its own text, however the results are read", () =>
    Effect.gen(function*() {
      const outcomes = [Tool.ok("A"), Tool.ok("B"), Tool.error("C")]
      for (const isAtOnce of [true, false]) {
        const updates = yield* updatesOf(outcomes, tool, isAtOnce)
        assert.deepStrictEqual(updates.map(({ result, toolCallId }) => [toolCallId, result?.data, result?.content]), [
          ["c0", "A", "A"],
          ["c1", "B", "B"],
          ["c2", undefined, "{\"error\":\"C\"}"]
        ])
      }
    }))

  it.effect("R-404: null and undefined are data of a successful result", () =>
    Effect.gen(function*() {
      for (const value of [null, undefined]) {
        const result = yield* resultOf(Tool.ok(value))
        assert.deepStrictEqual([result?.success, result?.data], [true, value])
        assert.property(result, "data")
        assert.notProperty(result, "error")
      }
    }))

  it.effect("R-404: a failed result has its error as text, and no data", () =>
    Effect.gen(function*() {
      const rows: ReadonlyArray<readonly [unknown, string]> = [
        ["nope", "nope"],
        [new Error("kaboom"), "kaboom"],
        [{ code: 7 }, "{\"code\":7}"],
        [undefined, "undefined"],
        [toolError("timeout"), "tool error (t): timeout"],
        [toolError("denied", { detail: "Permission denied: not yours" }), "Permission denied: not yours"],
        [toolError("cancelled", { detail: "interrupted" }), "tool error (t): cancelled: interrupted"]
      ]
      for (const [reason, error] of rows) {
        const result = yield* resultOf(Tool.error(reason))
        assert.deepStrictEqual([result?.success, result?.error], [false, error])
        assert.isString(result?.content)
        assert.notProperty(result, "data")
      }
    }))

  it.effect("R-397, R-406: result metadata says that a call was cancelled, or which gate denied the call", () =>
    Effect.gen(function*() {
      const metadataOf = (error: unknown) => Effect.map(resultOf(Tool.error(error)), (result) => result?.metadata)
      const toolId = "t"
      assert.deepStrictEqual(yield* metadataOf(toolError("cancelled")), { cancelled: true, toolId })
      const cancelled = toolError("cancelled", { metadata: { other: 1 } })
      assert.deepStrictEqual(yield* metadataOf(cancelled), { cancelled: true, toolId })
      const denied = toolError("denied", { metadata: { gate: "authorize", canOverride: true, toolId: "forged" } })
      assert.deepStrictEqual(yield* metadataOf(denied), { gate: "authorize", canOverride: true, toolId })
      assert.deepStrictEqual(yield* metadataOf(toolError("timeout")), { toolId })
      assert.deepStrictEqual(yield* metadataOf("nope"), { toolId })
    }))

  it.effect("J-23, R-039: a truncated text is reported with its original length", () =>
    Effect.gen(function*() {
      const result = yield* resultOf(Tool.ok("0123456789"), cut)
      assert.deepStrictEqual(result?.metadata, { truncated: true, originalLength: 10, toolId: "t" })
      assert.strictEqual(result?.data, "0123456789")
      assert.isTrue(String(result?.content).startsWith("01234"))
    }))

  it.effect("a halt ends a call with its value, and a question with its text", () =>
    Effect.gen(function*() {
      const ask = Tool.askUser("Which one?", ["a", "b"])
      const halted = yield* resultOf(Tool.halt("enough", { v: 1 }))
      assert.deepInclude(halted, { success: true, data: { v: 1 }, content: "{\"v\":1}" })
      const asked = yield* resultOf(ask)
      assert.deepInclude(asked, { success: true, data: ask, content: "Which one?" })
    }))
})
