/**
 * Failures, aborts and discarding beyond the rows: what depends on when an answer is written, on when a call comes up,
 * and on who stops it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Encoder, Message, StreamingToolExecutor, ToolRunner } from "heddle"
import { Simulation } from "heddle/testing"
import { cancelable, failsAfter, Floor, safe, takes } from "./support/floor.ts"
import {
  assertClean,
  assertSeen,
  byExecutor,
  callOf,
  cancelled,
  failed,
  ok,
  seenOf,
  timedUpdates,
  valueOf
} from "./support/seen.ts"

const slowEncoder = Encoder.layer({
  encode: (value) => Effect.andThen(Effect.sleep(3), Encoder.json.encode(value))
})

describe("StreamingToolExecutor: a failure whose answer takes time", () => {
  it.effect("R-394: whoever took the place of a call that timed out is no sibling of it, however late it is answered", () =>
    Effect.gen(function*() {
      const floor = new Floor(2)
      const works = [
        floor.work("a", Effect.never, { ...safe, timeout: 7 }),
        floor.work("b", takes(30), cancelable),
        floor.work("c", takes(5), cancelable),
        floor.work("d", takes(5), cancelable)
      ]
      const { results, sleeping } = yield* byExecutor(works, { maxParallel: 2 }).pipe(Effect.provide(slowEncoder))
      assertSeen(results, [
        failed("a", 10, "timeout"),
        cancelled("b", 13),
        ok("c", 15, "after 5"),
        ok("d", 18, "after 5")
      ])
      assert.deepStrictEqual(floor.marks, [
        [0, "start", "a"],
        [0, "start", "b"],
        [7, "stop", "a"],
        [7, "start", "c"],
        [10, "stop", "b"],
        [10, "start", "d"],
        [12, "end", "c"],
        [15, "end", "d"]
      ])
      assertClean(floor, sleeping)
    }))

  it.effect("R-394, CF-1: nor does its failure skip what came to wait behind others after it", () =>
    Effect.gen(function*() {
      const floor = new Floor(1)
      const works = [
        floor.work("a", Effect.never, { ...safe, timeout: 7 }),
        floor.work("b", takes(20), cancelable),
        floor.work("c", takes(5), cancelable)
      ]
      const given = { maxParallel: 1, siblings: { queued: "skip" } } as const
      const { results } = yield* byExecutor(works, given).pipe(Effect.provide(slowEncoder))
      assertSeen(results, [failed("a", 10, "timeout"), ok("b", 30, "after 20"), ok("c", 38, "after 5")])
    }))

  it.effect("R-391: a sibling that has ended by the time the failure is told keeps its result", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const works = [floor.work("a", failsAfter(7), safe), floor.work("b", takes(9), cancelable)]
      const { results } = yield* byExecutor(works).pipe(Effect.provide(slowEncoder))
      assertSeen(results, [failed("a", 10, "kaboom"), ok("b", 12, "after 9")])
    }))
})

describe("StreamingToolExecutor: an abort from within", () => {
  it.effect("R-395, R-398: a call that was about to start when a handler aborts the run never starts", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const controller = new AbortController()
      const works = [
        floor.work("x", takes(3)),
        floor.work("a", Effect.sync(() => controller.abort()), safe),
        floor.work("b", takes(5), safe)
      ]
      const program = Effect.gen(function*() {
        const executor = yield* StreamingToolExecutor.make({ signal: controller.signal })
        for (const work of works) yield* executor.addTool(callOf(work), work.tool)
        return (yield* timedUpdates(executor)).flatMap(([at, update]) => seenOf(update, at))
      })
      const report = yield* Simulation.run(Effect.scoped(program))
      assertSeen(valueOf(report), [ok("x", 3, "after 3"), ok("a", 3, undefined), cancelled("b", 3, "not run")])
      assert.deepStrictEqual(floor.marks.map(([, , id]) => id), ["x", "x", "a", "a"])
      assertClean(floor, report.sleeping)
    }))

  it.effect("R-395, R-398: so it is in a batch", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const controller = new AbortController()
      const tools = [
        floor.tool("a", Effect.sync(() => controller.abort()), safe),
        floor.tool("b", takes(5), { ...safe, interrupt: "block" })
      ]
      const calls = tools.map(({ name }) => Message.toolCall(name, name))
      const report = yield* Simulation.run(ToolRunner.run(calls, tools, { cancel: controller.signal }))
      assert.include(String(valueOf(report).messages[1]?.content), "not run: Execution cancelled")
      assert.strictEqual(report.millis, 0)
      assert.deepStrictEqual(floor.marks.map(([, , id]) => id), ["a", "a"])
    }))
})
