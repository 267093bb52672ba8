/** A handler that asks twice, killed in processes of its own at each boundary of its calls, answers and appends. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { everyKill } from "heddle/testing"
import { join } from "node:path"
import { bundle } from "../../scratchpad/crash/bundle.ts"
import { bound, limit } from "../support/until.ts"

describe("a killed handler with resumable questions", { timeout: limit }, () => {
  it.live("W-29: a handler with two resumable questions receives each answer once, killed at any boundary and in its recovery", () =>
    Effect.gen(function*() {
      const program = yield* Effect.promise(() => bundle(join(import.meta.dirname, "../fixtures/killedAsking.ts")))
      const { attempts, kills, points, violations } = yield* everyKill(program, { timeout: bound, again: "random" })
      assert.deepStrictEqual(violations, [])
      assert.strictEqual(points.filter((name) => name === "after CallSettled").length, 2)
      assert.strictEqual(points.filter((name) => /^after .*CallWaits/.test(name)).length, 2)
      assert.isAtLeast(kills, points.length)
      assert.isTrue(attempts.every(({ isDone }) => isDone))
      for (const { value } of attempts) {
        assert.deepStrictEqual(value, ["user Pay", "assistant ", "tool 5 paid: yes", "assistant Paid."])
      }
    }))
})
