/**
 * When a run has to have ended, and its tools before it: from what a caller asks for and what the run around it has left.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Schema from "effect/Schema"
import type { DeadlineWish } from "../../src/internal/ask/options.ts"
import * as Deadline from "../../src/internal/stop/deadline.ts"

const wish = (afterMillis: number, reserveMillis?: number): DeadlineWish => ({ afterMillis, reserveMillis })

const now = 1_000

describe("Deadline.resolve", () => {
  it("a run without an own and an outer deadline has no deadline", () => {
    assert.isUndefined(Deadline.resolve(undefined, undefined, now))
    assert.isUndefined(Deadline.resolve(wish(Infinity), undefined, now))
    assert.isUndefined(Deadline.resolve(undefined, Infinity, now))
  })

  it("a quarter of the time, at most ten seconds, is kept for the last answer", () => {
    assert.deepStrictEqual(Deadline.resolve(wish(1_000), undefined, now), { at: 2_000, toolsUntil: 1_750 })
    assert.deepStrictEqual(Deadline.resolve(wish(40_000), undefined, now), { at: 41_000, toolsUntil: 31_000 })
    assert.deepStrictEqual(Deadline.resolve(wish(100_000), undefined, now), { at: 101_000, toolsUntil: 91_000 })
  })

  it("the caller's reserve replaces the default reserve, as far as there is time", () => {
    assert.deepStrictEqual(Deadline.resolve(wish(1_000, 100), undefined, now), { at: 2_000, toolsUntil: 1_900 })
    assert.deepStrictEqual(Deadline.resolve(wish(60_000, 30_000), undefined, now), { at: 61_000, toolsUntil: 31_000 })
    assert.deepStrictEqual(Deadline.resolve(wish(1_000, 5_000), undefined, now), { at: 2_000, toolsUntil: 1_000 })
    assert.deepStrictEqual(Deadline.resolve(wish(1_000, 0), undefined, now), { at: 2_000, toolsUntil: 2_000 })
  })

  it("the earlier of the own and the outer deadline counts, and the reserve is taken from that deadline", () => {
    assert.deepStrictEqual(Deadline.resolve(wish(1_000), 1_400, now), { at: 1_400, toolsUntil: 1_300 })
    assert.deepStrictEqual(Deadline.resolve(wish(1_000), 9_000, now), { at: 2_000, toolsUntil: 1_750 })
    assert.deepStrictEqual(Deadline.resolve(undefined, 1_400, now), { at: 1_400, toolsUntil: 1_300 })
    assert.deepStrictEqual(Deadline.resolve(wish(1_000, 300), 1_400, now), { at: 1_400, toolsUntil: 1_100 })
  })

  it("a passed deadline leaves no time and stays in the past", () => {
    assert.deepStrictEqual(Deadline.resolve(undefined, 600, now), { at: 600, toolsUntil: 600 })
    assert.deepStrictEqual(Deadline.resolve(wish(1_000, 300), 600, now), { at: 600, toolsUntil: 600 })
  })

  const times = Schema.Struct({
    after: Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 1_000_000 })),
    reserve: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 1_000_000 })),
    inherited: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 1_000_000 })),
    now: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 1_000_000 }))
  })

  it.prop(
    "a deadline is never later than the own or outer deadline, tools end before it, and a nested deadline is never later",
    [times],
    (
      [{ after, inherited, now, reserve }]
    ) => {
      const found = Deadline.resolve(wish(after, reserve), inherited, now)
      assert.isDefined(found)
      if (found === undefined) return
      assert.isAtMost(found.at, Math.min(now + after, inherited))
      assert.isAtMost(found.toolsUntil, found.at)
      if (inherited >= now) assert.isAtLeast(found.toolsUntil, now)
      const inner = Deadline.resolve(wish(after, reserve), found.toolsUntil, now)
      assert.isAtMost(inner?.at ?? Infinity, found.toolsUntil)
    }
  )
})
