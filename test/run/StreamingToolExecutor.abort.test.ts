/**
 * Failures, aborts and discarding beyond the rows: what depends on when an answer is written, on when a call comes up,
 * and on who stops it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Encoder, Message, Policy, StreamingToolExecutor, Tool, ToolRunner } from "heddle"
import { Simulation } from "heddle/testing"
import { cancelable, failsAfter, Floor, safe, takes } from "../support/floor.ts"
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
} from "../support/seen.ts"

const slowEncoder = Encoder.layer({
  encode: (value) => Effect.andThen(Effect.sleep(3), Encoder.json.encode(value))
})

describe("StreamingToolExecutor: a failure whose answer takes time", () => {
  it.effect("R-394: a call in the place of a timed-out call is no sibling, however late the timeout is answered", () =>
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

  it.effect("R-394, CF-1: a timeout answered late does not skip calls queued since", () =>
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

  it.effect("R-391: a sibling that ends before the failure is reported keeps its result", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const works = [floor.work("a", failsAfter(7), safe), floor.work("b", takes(9), cancelable)]
      const { results } = yield* byExecutor(works).pipe(Effect.provide(slowEncoder))
      assertSeen(results, [failed("a", 10, "kaboom"), ok("b", 12, "after 9")])
    }))
})

describe("StreamingToolExecutor: calls that come up after a failure or a halt", () => {
  /** A failure or a halt at 5 ms beside a blocking call of 20 ms; then a call at 10 ms and one at 30 ms. */
  const later = (first: Effect.Effect<unknown, unknown>, siblings: Partial<Policy.Policy["siblings"]>) =>
    Effect.gen(function*() {
      const floor = new Floor()
      const policy = { ...Policy.falai, siblings: { ...Policy.falai.siblings, ...siblings } }
      const program = Effect.gen(function*() {
        const executor = yield* StreamingToolExecutor.make({ policy })
        const add = (id: string, body: Effect.Effect<unknown, unknown>) => {
          const work = floor.work(id, body, safe)
          return executor.addTool(callOf(work), work.tool)
        }
        yield* add("a", Effect.andThen(Effect.sleep(5), first))
        yield* add("b", takes(20))
        yield* Effect.sleep(10)
        yield* add("c", takes(1))
        yield* Effect.sleep(20)
        yield* add("d", takes(1))
        yield* executor.noMoreCalls
        return (yield* timedUpdates(executor)).flatMap(([at, update]) => seenOf(update, at))
      })
      const report = yield* Simulation.run(Effect.scoped(program))
      assertClean(floor, report.sleeping)
      return valueOf(report)
    })

  it.effect("R-395, CF-1: a call added beside the siblings of a failure runs, or is skipped where the policy skips waiting calls", () =>
    Effect.gen(function*() {
      const failing = Effect.fail("kaboom")
      const run = yield* later(failing, {})
      assertSeen(run.slice(2), [ok("c", 30, "after 1"), ok("d", 31, "after 1")])
      const skip = yield* later(failing, { queued: "skip" })
      assertSeen(skip.slice(2), [cancelled("c", 30, "not run: a call beside it failed"), ok("d", 31, "after 1")])
    }))

  it.effect("CF-1: after a halt no call starts where the policy skips waiting calls", () =>
    Effect.gen(function*() {
      const halting = Effect.succeed(Tool.halt("enough", null))
      const skip = yield* later(halting, { onHalt: "abortCancelable", queued: "skip" })
      assertSeen(skip.slice(1), [ok("b", 30, "after 20"), cancelled("c", 30), cancelled("d", 30)])
    }))

  it.effect("CF-1: a failure after a halt does not lift the ban on new calls", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const siblings = { onHalt: "abortCancelable", queued: "skip" } as const
      const works = [
        floor.work("a", takes(1, Tool.halt("enough", null)), safe),
        floor.work("b", failsAfter(5), safe)
      ]
      const program = Effect.gen(function*() {
        const policy = { ...Policy.falai, siblings: { ...Policy.falai.siblings, ...siblings } }
        const executor = yield* StreamingToolExecutor.make({ policy })
        for (const work of works) yield* executor.addTool(callOf(work), work.tool)
        yield* Effect.sleep(10)
        const late = floor.work("c", takes(1), safe)
        yield* executor.addTool(callOf(late), late.tool)
        yield* executor.noMoreCalls
        return (yield* timedUpdates(executor)).flatMap(([at, update]) => seenOf(update, at))
      })
      const told = valueOf(yield* Simulation.run(Effect.scoped(program)))
      assertSeen(told.slice(1), [failed("b", 10, "kaboom"), cancelled("c", 10, "another call of the turn ended it")])
    }))
})

describe("StreamingToolExecutor: an abort from within", () => {
  it.effect("R-395, R-398: a call about to start when a handler aborts the executor never starts", () =>
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

  it.effect("R-395, R-398: a call about to start when a handler aborts the batch never starts", () =>
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
