/**
 * Tests `everyKill` with a program that breaks a law, killed in processes of its own. `EveryKill.process.test.ts` has the rest.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { everyKill } from "heddle/testing"
import { join } from "node:path"
import { bundle } from "../../scratchpad/crash/bundle.ts"
import { bound, limit } from "../support/until.ts"

describe("everyKill", { timeout: limit }, () => {
  it.live("D-01: everyKill finds a program that repeats a finished call", () =>
    Effect.gen(function*() {
      const program = yield* Effect.promise(() => bundle(join(import.meta.dirname, "../fixtures/killed.ts")))
      const { violations } = yield* everyKill(program, { args: ["retried"], limit: 3, timeout: bound })
      assert.include(violations.map(({ law }) => law), "finished")
    }))
})
