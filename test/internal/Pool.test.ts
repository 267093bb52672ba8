/**
 * The permits of a tree: a count until somebody waits or uses them by itself, an Effect semaphore from then on. Whatever
 * was taken before is taken after.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Semaphore from "effect/Semaphore"
import { Pool } from "../../src/internal/permits/treePermits.ts"

/** What can be done with all of the interface, each beside a plain semaphore. */
const uses: Record<string, (permits: Semaphore.Semaphore) => Effect.Effect<unknown>> = {
  withPermit: (permits) => permits.withPermit(permits.takeIfAvailable(2)),
  "withPermit as a function": ({ withPermit }) => Effect.succeed("in").pipe(withPermit),
  withPermits: (permits) => permits.withPermits(2)(permits.takeIfAvailable(1)),
  withPermitsIfAvailable: (permits) => Effect.map(permits.withPermitsIfAvailable(3)(Effect.void), Option.isSome),
  take: (permits) => Effect.andThen(permits.take(2), permits.takeIfAvailable(1)),
  takeScoped: (permits) => Effect.andThen(Effect.scoped(permits.takeScoped(2)), permits.takeIfAvailable(2)),
  takeIfAvailable: (permits) => permits.takeIfAvailable(3),
  release: (permits) => permits.release(1),
  releaseAll: (permits) => permits.releaseAll,
  resize: (permits) => Effect.andThen(permits.resize(4), permits.takeIfAvailable(3))
}

describe("permits of a tree", () => {
  it("are given while there are any", () => {
    const pool = new Pool(2)
    assert.deepStrictEqual([pool.takeNow(), pool.takeNow(), pool.takeNow()], [true, true, false])
    assert.isTrue(pool.returnNow())
    assert.isTrue(pool.takeNow())
  })

  for (const [name, use] of Object.entries(uses)) {
    it.effect(`${name} counts what was taken before, as a semaphore does`, () =>
      Effect.gen(function*() {
        const pool = new Pool(3)
        assert.isTrue(pool.takeNow())
        const plain = Semaphore.makeUnsafe(3)
        yield* plain.take(1)
        assert.deepStrictEqual(yield* use(pool.semaphore), yield* use(plain))
        // From here on it is asked.
        assert.isFalse(pool.takeNow())
        assert.isFalse(pool.returnNow())
      }))
  }

  it.effect("whoever waits is served when one is returned, and is not overtaken", () =>
    Effect.gen(function*() {
      const pool = new Pool(1)
      assert.isTrue(pool.takeNow())
      const waiting = yield* Effect.forkChild(Effect.scoped(Effect.as(pool.wait(), "served")), {
        startImmediately: true
      })
      assert.isFalse(pool.takeNow())
      assert.isFalse(yield* pool.takeIfFree())
      yield* pool.semaphore.release(1)
      assert.isFalse(yield* pool.takeIfFree())
      assert.strictEqual(yield* Fiber.join(waiting), "served")
      assert.isTrue(yield* pool.takeIfFree())
    }))

  it.effect("those that are the caller's are asked from the beginning, and handed on as they are", () =>
    Effect.gen(function*() {
      const semaphore = Semaphore.makeUnsafe(1)
      const pool = new Pool(semaphore)
      assert.strictEqual(pool.semaphore, semaphore)
      assert.isFalse(pool.takeNow())
      assert.isTrue(yield* pool.takeIfFree())
      assert.isFalse(yield* semaphore.takeIfAvailable(1))
    }))
})
