/**
 * The work of a delta, a fragment of arguments, a call and a run of one call, in counts that are the same on every machine and
 * in every run; `npm run bench -- --counts` prints them. A change may lower a figure, and none may raise one.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { type Adapter, Chat, Session } from "heddle"
import { Script } from "heddle/testing"
import { count, watch } from "../../scratchpad/bench/counts.ts"
import { implementation } from "../../scratchpad/bench/loops/heddle.ts"

describe("counts", () => {
  it("W-18: a delta, a fragment, a call and a run take exactly the recorded work", async () => {
    assert.deepStrictEqual(await count(implementation), {
      delta: { steps: 13, suspensions: 2, fibers: 0, timers: 0, clockReads: 1 },
      fragment: { steps: 13, suspensions: 2, fibers: 0, timers: 0, clockReads: 1 },
      call: { steps: 36, suspensions: 2, fibers: 2, timers: 0, clockReads: 6 },
      run: { steps: 162, suspensions: 12, fibers: 7, timers: 0, clockReads: 12 }
    })
  })

  it("R-542: a session without a journal takes at most 1.3 times the steps of a run, and no more fibers", async () => {
    const taken = async (program: Effect.Effect<unknown, unknown, Adapter.Adapter>) => {
      const run = () =>
        Effect.runPromise(Effect.provide(program, Script.layer([[Script.text("Hello"), Script.finish("stop")]])))
      // What is made once in a process is made by then.
      await run()
      const stop = watch()
      await run()
      return stop()
    }
    const run = await taken(Chat.run("Hi"))
    const reply = await taken(Session.reply(Session.make(), "Hi"))
    assert.isAtMost(reply.steps / run.steps, 1.3)
    assert.deepStrictEqual({ ...reply, steps: 0, clockReads: 0 }, { ...run, steps: 0, clockReads: 0 })
  })
})
