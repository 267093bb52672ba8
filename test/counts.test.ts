/**
 * The work of a delta, a fragment of arguments, a call and a run of one call, in counts that are the same on every machine and
 * in every run; `npm run bench -- --counts` prints them. A change may lower a figure, and none may raise one.
 */
import { assert, describe, it } from "@effect/vitest"
import { count } from "../scratchpad/bench/counts.ts"
import { implementation } from "../scratchpad/bench/loops/heddle.ts"

describe("counts", () => {
  it("W-18: a delta, a fragment, a call and a run take exactly this much work, and never more", async () => {
    assert.deepStrictEqual(await count(implementation), {
      delta: { steps: 13, suspensions: 2, fibers: 0, timers: 0, clockReads: 1 },
      fragment: { steps: 13, suspensions: 2, fibers: 0, timers: 0, clockReads: 1 },
      call: { steps: 36, suspensions: 2, fibers: 2, timers: 0, clockReads: 6 },
      run: { steps: 162, suspensions: 12, fibers: 7, timers: 0, clockReads: 12 }
    })
  })
})
