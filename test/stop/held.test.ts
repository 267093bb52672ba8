/** The ledger that tests of the core are held to: each of them is, wherever its file lies. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { heldNow } from "../durable/support/ledger.ts"

describe("the ledger of the core", () => {
  it("a test of a core room is held: the ledger counts a fiber that has not ended", async () => {
    const before = heldNow()["fibers"]
    const fiber = Effect.runFork(Effect.never)
    assert.strictEqual(heldNow()["fibers"], before! + 1)
    await Effect.runPromise(Fiber.interrupt(fiber))
    assert.strictEqual(heldNow()["fibers"], before)
  })
})
