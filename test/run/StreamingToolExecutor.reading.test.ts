/**
 * Reading an executor: with and without waiting, by one reader or several, by readers that leave. Every update is
 * emitted once, and none is lost.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { StreamingToolExecutor } from "heddle"
import { Simulation } from "heddle/testing"
import { type Body, Floor, safe, takes, type Work } from "../support/floor.ts"
import { assertClean, assertSeen, callOf, ok, seenOf, timedUpdates, valueOf } from "../support/seen.ts"

type Executor = StreamingToolExecutor.StreamingToolExecutor

const add = (executor: Executor, ...works: ReadonlyArray<Work>) =>
  Effect.forEach(works, (work) => executor.addTool(callOf(work), work.tool), { discard: true })

const ids = (updates: ReadonlyArray<StreamingToolExecutor.Update>) => updates.map(({ toolCallId }) => toolCallId)

/** What a scenario with an executor comes to, and that nothing of it is left. */
const play = <A>(floor: Floor, scenario: (executor: Executor) => Effect.Effect<A, never, Scope.Scope>) =>
  Effect.gen(function*() {
    const report = yield* Simulation.run(Effect.scoped(Effect.flatMap(StreamingToolExecutor.make(), scenario)))
    assertClean(floor, report.sleeping)
    return valueOf(report)
  })

describe("StreamingToolExecutor: reading", () => {
  it.effect("J-26, R-389: a result read by `completedResults` is not emitted by `remainingResults`, and the reverse", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const [first, none, rest, after] = yield* play(floor, (executor) =>
        Effect.gen(function*() {
          yield* add(executor, floor.work("a", takes(1), safe), floor.work("b", takes(5), safe))
          yield* Effect.sleep(2)
          const first = yield* executor.completedResults
          const none = yield* executor.completedResults
          yield* executor.noMoreCalls
          const rest = yield* Stream.runCollect(executor.remainingResults)
          return [first, none, rest, yield* executor.completedResults] as const
        }))
      assert.deepStrictEqual([ids(first), ids(none), ids(rest), ids(after)], [["a"], [], ["b"], []])
    }))

  it.effect("R-386, R-389: `completedResults` holds a result back behind an unfinished call", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const told = yield* play(floor, (executor) =>
        Effect.gen(function*() {
          yield* add(executor, floor.work("a", takes(10), safe), floor.work("b", takes(1), safe))
          yield* Effect.sleep(5)
          const early = yield* executor.completedResults
          yield* Effect.sleep(5)
          return [ids(early), ids(yield* executor.completedResults)]
        }))
      assert.deepStrictEqual(told, [[], ["a", "b"]])
    }))

  it.effect("R-387, R-388: `completedResults` emits progress of a call behind an unfinished call", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const loud: Body = (_args, call) =>
        Effect.andThen(Effect.sleep(1), Effect.andThen(call.progress(1), Effect.sleep(10)))
      const told = yield* play(floor, (executor) =>
        Effect.gen(function*() {
          yield* add(executor, floor.work("a", takes(20), safe), floor.work("b", loud, safe))
          yield* Effect.sleep(5)
          return yield* executor.completedResults
        }))
      assert.deepStrictEqual(told, [{ toolCallId: "b", progress: 1 }])
    }))

  it.effect("R-388: progress reported after the result is dropped", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const told = yield* play(floor, (executor) =>
        Effect.gen(function*() {
          let late: Effect.Effect<void> = Effect.void
          const body: Body = (_args, call) => {
            late = call.progress("late")
            return call.progress("in time")
          }
          yield* add(executor, floor.work("a", body))
          yield* late
          return yield* executor.completedResults
        }))
      assert.deepStrictEqual(told.map(({ progress, result }) => progress ?? result?.success), ["in time", true])
    }))

  it.effect("R-389: a reader that stops early has consumed only the updates it received", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const works = ["a", "b", "c", "d"].map((id) => floor.work(id, Effect.succeed(id), safe))
      const told = yield* play(floor, (executor) =>
        Effect.gen(function*() {
          yield* add(executor, ...works)
          const one = yield* Stream.runCollect(Stream.take(executor.remainingResults, 1))
          const two = yield* Stream.runCollect(Stream.take(executor.remainingResults, 2))
          const left = yield* executor.completedResults
          return [ids(one), ids(two), ids(left), ids(yield* executor.completedResults)]
        }))
      assert.deepStrictEqual(told, [["a"], ["b", "c"], ["d"], []])
    }))

  it.effect("R-389: a reader interrupted while it waits consumes nothing", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const told = yield* play(floor, (executor) =>
        Effect.gen(function*() {
          const left = yield* Effect.forkChild(timedUpdates(executor), { startImmediately: true })
          yield* add(executor, floor.work("a", takes(5), safe))
          yield* Effect.sleep(3)
          yield* Fiber.interrupt(left)
          yield* executor.noMoreCalls
          return yield* timedUpdates(executor)
        }))
      assert.deepStrictEqual(told.map(([at, { toolCallId }]) => [at, toolCallId]), [[5, "a"]])
    }))

  it.effect("R-389: two waiting readers share the updates, and both end", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const works = Array.from({ length: 6 }, (_, index) => floor.work(`c${index}`, takes(index), safe))
      const shares = yield* play(floor, (executor) =>
        Effect.gen(function*() {
          const read = Stream.runCollect(executor.remainingResults)
          const readers = yield* Effect.forEach([read, read], (reader) => Effect.forkChild(reader))
          yield* add(executor, ...works)
          yield* executor.noMoreCalls
          return yield* Effect.forEach(readers, Fiber.join)
        }))
      assert.deepStrictEqual(shares.flatMap(ids).toSorted(), works.map(({ id }) => id))
    }))

  it.effect("J-27, R-390: results of calls added during reading are emitted, and the stream ends", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const told = yield* play(floor, (executor) =>
        Effect.gen(function*() {
          const reader = yield* Effect.forkChild(timedUpdates(executor), { startImmediately: true })
          yield* Effect.sleep(5)
          yield* add(executor, floor.work("a", takes(5), safe))
          yield* Effect.sleep(10)
          assert.isFalse(yield* executor.hasUnfinishedTools)
          assert.isUndefined(reader.pollUnsafe(), "a pause is no end")
          yield* add(executor, floor.work("b", takes(5), safe))
          yield* executor.noMoreCalls
          const seen = (yield* Fiber.join(reader)).flatMap(([at, update]) => seenOf(update, at))
          return [seen, yield* Clock.currentTimeMillis] as const
        }))
      assertSeen(told[0], [ok("a", 10, "after 5"), ok("b", 20, "after 5")])
      assert.strictEqual(told[1], 20)
    }))

  it.effect("R-390: without a call the results end at `noMoreCalls`", () =>
    Effect.gen(function*() {
      const at = yield* play(new Floor(), (executor) =>
        Effect.gen(function*() {
          const reader = yield* Effect.forkChild(timedUpdates(executor), { startImmediately: true })
          yield* Effect.sleep(7)
          yield* executor.noMoreCalls
          assert.deepStrictEqual(yield* Fiber.join(reader), [])
          return yield* Clock.currentTimeMillis
        }))
      assert.strictEqual(at, 7)
    }))

  it.effect("R-388: progress wakes a waiting reader", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const isTold = yield* play(floor, (executor) =>
        Effect.gen(function*() {
          const open = yield* Latch.make()
          const told = yield* Latch.make()
          const body: Body = (_args, call) => Effect.andThen(call.progress("here"), open.await)
          const reader = yield* Effect.forkChild(
            Stream.runForEach(
              executor.remainingResults,
              ({ progress }) => progress === "here" ? told.open : Effect.void
            ),
            { startImmediately: true }
          )
          yield* add(executor, floor.work("a", body))
          yield* told.await
          yield* open.open
          yield* executor.noMoreCalls
          yield* Fiber.join(reader)
          return true
        }))
      assert.isTrue(isTold)
    }))
})
