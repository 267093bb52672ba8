/**
 * Tests `everyKill` with programs that are killed in processes of their own, once with a program that keeps the laws and once
 * with one that breaks one. `EveryKill.process.test.ts` has the rest.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { everyKill } from "heddle/testing"
import { join } from "node:path"
import { bundle } from "../../scratchpad/crash/bundle.ts"
import { bound, limit } from "../support/until.ts"

const killing = (fault: string) =>
  Effect.flatMap(
    Effect.promise(() => bundle(join(import.meta.dirname, "../fixtures/killed.ts"))),
    (program) => everyKill(program, { args: [fault], limit: 3, timeout: bound })
  )

describe("everyKill", { timeout: limit }, () => {
  it.live("D-01: a program that is killed and started again keeps the laws", () =>
    Effect.gen(function*() {
      const { attempts, kills, violations } = yield* killing("retries")
      assert.deepStrictEqual(violations, [])
      assert.deepStrictEqual([kills, attempts.map(({ isDone }) => isDone)], [3, [true, true, true]])
    }))

  it.live("D-01: a program that repeats a finished call is found", () =>
    Effect.gen(function*() {
      const { violations } = yield* killing("retried")
      assert.include(violations.map(({ law }) => law), "finished")
    }))
})
