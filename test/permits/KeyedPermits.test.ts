/**
 * Permits by name: which names a call takes, the order in which calls wait, and that an unused name holds no memory.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type { Tool } from "heddle"
import { Simulation } from "heddle/testing"
import { KeyedPermits, wanted } from "../../src/internal/permits/permits.ts"
import { callOf } from "../support/calls.ts"
import { valueOf } from "../support/seen.ts"

/** Holds what is wanted for so long, and notes when it got it and when it gave it back. */
const worker =
  (permits: KeyedPermits, log: Array<string>) =>
  (name: string, millis: number, ...keys: ReadonlyArray<readonly [key: string, permits: number]>) =>
    Effect.scoped(
      Effect.gen(function*() {
        yield* permits.takeAll(new Map(keys))
        log.push(`+${name}`)
        yield* Effect.sleep(millis)
      }).pipe(Effect.ensuring(Effect.sync(() => log.push(`-${name}`))))
    )

const play = (scenario: (permits: KeyedPermits, log: Array<string>) => Effect.Effect<unknown>) =>
  Effect.gen(function*() {
    const permits = new KeyedPermits()
    const log: Array<string> = []
    const report = yield* Simulation.run(scenario(permits, log))
    valueOf(report)
    assert.strictEqual(permits.size, 0, "no name is kept")
    assert.strictEqual(report.sleeping, 0)
    return { log, millis: report.millis }
  })

const together = (...effects: ReadonlyArray<Effect.Effect<unknown>>) =>
  Effect.all(effects, { concurrency: "unbounded", discard: true })

describe("KeyedPermits: the names of a call", () => {
  it("a name is a text or made from the arguments and the call, and the smaller of two numbers for one name counts", () => {
    const limits: NonNullable<Tool.Any["limits"]> = [
      { key: "all", permits: 5 },
      { key: ({ user }: { readonly user: string }) => `user ${user}`, permits: 2 },
      { key: (_args: unknown, call: Tool.CallContext) => call.name, permits: 3 },
      { key: "all", permits: 4 },
      { key: "all", permits: 9 }
    ]
    const map = wanted(limits, { user: "__proto__" }, callOf("save"))
    assert.deepStrictEqual([...map], [["all", 4], ["user __proto__", 2], ["save", 3]])
  })
})

describe("KeyedPermits: taking", () => {
  it.effect("as many calls as permitted hold a name at once, and the next calls follow in their order", () =>
    Effect.gen(function*() {
      const { log, millis } = yield* play((permits, log) => {
        const work = worker(permits, log)
        return together(
          work("a", 10, ["k", 2]),
          work("b", 20, ["k", 2]),
          work("c", 5, ["k", 2]),
          work("d", 5, ["k", 2])
        )
      })
      assert.deepStrictEqual(log, ["+a", "+b", "-a", "+c", "-c", "+d", "-b", "-d"])
      assert.strictEqual(millis, 20)
    }))

  it.effect("calls with different names do not wait for each other", () =>
    Effect.gen(function*() {
      const { millis } = yield* play((permits, log) => {
        const work = worker(permits, log)
        return together(work("a", 10, ["k", 1]), work("b", 10, ["l", 1]))
      })
      assert.strictEqual(millis, 10)
    }))

  it.effect("calls that take the same names in different orders never deadlock", () =>
    Effect.gen(function*() {
      const { millis } = yield* play((permits, log) => {
        const work = worker(permits, log)
        return together(
          work("a", 10, ["k", 1], ["l", 1]),
          work("b", 10, ["l", 1], ["k", 1]),
          work("c", 10, ["m", 1], ["k", 1])
        )
      })
      assert.strictEqual(millis, 30)
    }))

  it.effect("a smaller number applies from the call that names it until the name is unused", () =>
    Effect.gen(function*() {
      const { log } = yield* play((permits, log) => {
        const work = worker(permits, log)
        return Effect.andThen(
          together(work("a", 10, ["k", 3]), work("b", 10, ["k", 3]), work("c", 5, ["k", 1]), work("d", 5, ["k", 3])),
          Effect.andThen(
            Effect.sync(() => log.push("later")),
            together(work("e", 5, ["k", 2]), work("f", 5, ["k", 2]))
          )
        )
      })
      assert.deepStrictEqual(log.slice(0, 4), ["+a", "+b", "-a", "-b"])
      assert.deepStrictEqual(log.slice(4, 8), ["+c", "-c", "+d", "-d"])
      assert.deepStrictEqual(log.slice(8), ["later", "+e", "+f", "-e", "-f"])
    }))

  it.effect("a call interrupted while it waits returns its permits and leaves the queues of its names", () =>
    Effect.gen(function*() {
      const { log, millis } = yield* play((permits, log) =>
        Effect.gen(function*() {
          const work = worker(permits, log)
          const first = yield* Effect.forkChild(work("a", 50, ["l", 1]), { startImmediately: true })
          const waiting = yield* Effect.forkChild(work("b", 10, ["k", 1], ["l", 1]), { startImmediately: true })
          const behind = yield* Effect.forkChild(work("c", 10, ["k", 1]), { startImmediately: true })
          yield* Effect.sleep(5)
          assert.deepStrictEqual(log, ["+a"])
          assert.strictEqual(permits.size, 2)
          yield* Fiber.interrupt(waiting)
          yield* Effect.all([Fiber.join(first), Fiber.join(behind)])
        })
      )
      assert.deepStrictEqual(log, ["+a", "-b", "+c", "-c", "-a"])
      assert.strictEqual(millis, 50)
    }))
})
