/**
 * Failures, aborts and discarding beyond the rows: what depends on when an answer is written, on when a call comes up,
 * and on who stops it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Encoder } from "heddle"
import { cancelable, failsAfter, Floor, safe, takes } from "./support/floor.ts"
import { assertClean, assertSeen, byExecutor, cancelled, failed, ok } from "./support/seen.ts"

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
