/**
 * The permits of one handler: taken before it starts, lent to the runs that it starts, taken back when the last of them
 * has ended, and never waited for by a handler that is being stopped.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import { Simulation } from "heddle/testing"
import { HeldPermits } from "../../src/internal/permits/permits.ts"
import { valueOf } from "../support/seen.ts"

const owner = { id: "c", running: {} }

/** A tree with so many permits, and what counts how many of them are free. */
const tree = (permits: number) => {
  const semaphore = Semaphore.makeUnsafe(permits)
  const free = Effect.gen(function*() {
    let count = 0
    while (yield* semaphore.takeIfAvailable(1)) count++
    yield* semaphore.release(count)
    return count
  })
  return { semaphore, free }
}

const play = <A>(scenario: (services: Context.Context<any>) => Effect.Effect<A>) =>
  Effect.gen(function*() {
    const report = yield* Simulation.run(Effect.flatMap(Effect.context<any>(), scenario))
    assert.strictEqual(report.sleeping, 0)
    return valueOf(report)
  })

const borrower = () => ({ isHeldUp: false, stopCall: () => false, inboxAt: () => undefined })
const open = Effect.sync(() => Scope.makeUnsafe())
const close = (scope: Scope.Closeable) => Scope.close(scope, Exit.void)
const now = Clock.currentTimeMillis

describe("HeldPermits: the permits of a handler", () => {
  it.effect("a handler takes one permit of the tree and returns the permit once, however often it gives it back", () =>
    Effect.gen(function*() {
      const counts = yield* play((services) =>
        Effect.gen(function*() {
          const { free, semaphore } = tree(2)
          const holding = new HeldPermits(semaphore, undefined, services, owner)
          const before = yield* free
          yield* holding.take()
          const during = yield* free
          yield* holding.giveBack()
          yield* holding.giveBack()
          holding.release()
          return [before, during, yield* free]
        })
      )
      assert.deepStrictEqual(counts, [2, 1, 2])
    }))

  it.effect("a later call that finds a free permit does not overtake a waiting call", () =>
    Effect.gen(function*() {
      const order = yield* play((services) =>
        Effect.gen(function*() {
          const { semaphore } = tree(1)
          const order: Array<string> = []
          const first = new HeldPermits(semaphore, undefined, services, owner)
          yield* first.take()
          const take = (name: string) =>
            Effect.gen(function*() {
              const holding = new HeldPermits(semaphore, undefined, services, owner)
              yield* holding.take()
              order.push(name)
              yield* holding.giveBack()
            })
          const waiting = yield* Effect.forkChild(take("waits"), { startImmediately: true })
          yield* first.giveBack()
          yield* take("comes later")
          yield* Fiber.join(waiting)
          return order
        })
      )
      assert.deepStrictEqual(order, ["waits", "comes later"])
    }))

  it.effect("keyed permits are taken first, and return with the others when the wait is interrupted", () =>
    Effect.gen(function*() {
      const log = yield* play((services) =>
        Effect.gen(function*() {
          const { semaphore } = tree(1)
          const log: Array<string> = []
          const keyed: Effect.Effect<void, never, Scope.Scope> = Effect.acquireRelease(
            Effect.sync(() => void log.push("+key")),
            () => Effect.sync(() => void log.push("-key"))
          )
          yield* semaphore.take(1)
          const holding = new HeldPermits(semaphore, keyed, services, owner)
          const taking = yield* Effect.forkChild(holding.take(), { startImmediately: true })
          log.push("waits for the tree")
          yield* Fiber.interrupt(taking)
          holding.release()
          yield* Effect.yieldNow
          yield* semaphore.release(1)
          const again = new HeldPermits(semaphore, keyed, services, owner)
          yield* again.take()
          log.push("works")
          yield* again.giveBack()
          return [...log, yield* semaphore.takeIfAvailable(1)]
        })
      )
      assert.deepStrictEqual(log, ["+key", "waits for the tree", "-key", "+key", "works", "-key", true])
    }))
})

describe("HeldPermits: lending", () => {
  it.effect("others may take the permit while a run is alive, and the run's end waits until the permit is free again", () =>
    Effect.gen(function*() {
      const times = yield* play((services) =>
        Effect.gen(function*() {
          const { free, semaphore } = tree(1)
          const holding = new HeldPermits(semaphore, undefined, services, owner)
          yield* holding.take()
          const run = yield* open
          yield* holding.lend(run, borrower())
          assert.strictEqual(yield* free, 1)
          yield* semaphore.take(1)
          yield* Effect.forkChild(Effect.andThen(Effect.sleep(30), semaphore.release(1)))
          yield* Effect.sleep(10)
          yield* close(run)
          const at = yield* now
          assert.strictEqual(yield* free, 0)
          holding.release()
          yield* Effect.yieldNow
          return [at, yield* free]
        })
      )
      assert.deepStrictEqual(times, [30, 1])
    }))

  it.effect("the last of several overlapping runs takes the permit back", () =>
    Effect.gen(function*() {
      const counts = yield* play((services) =>
        Effect.gen(function*() {
          const { free, semaphore } = tree(1)
          const holding = new HeldPermits(semaphore, undefined, services, owner)
          yield* holding.take()
          const [one, two] = [yield* open, yield* open]
          const counts = [yield* free]
          yield* holding.lend(one, borrower())
          yield* holding.lend(two, borrower())
          counts.push(yield* free)
          yield* close(one)
          counts.push(yield* free)
          yield* close(two)
          counts.push(yield* free)
          yield* holding.giveBack()
          return [...counts, yield* free]
        })
      )
      assert.deepStrictEqual(counts, [0, 1, 1, 0, 1])
    }))

  it.effect("a run started while the permit is taken back borrows the permit as well", () =>
    Effect.gen(function*() {
      const counts = yield* play((services) =>
        Effect.gen(function*() {
          const { free, semaphore } = tree(1)
          const holding = new HeldPermits(semaphore, undefined, services, owner)
          yield* holding.take()
          const [one, two] = [yield* open, yield* open]
          yield* holding.lend(one, borrower())
          yield* semaphore.take(1)
          const closing = yield* Effect.forkChild(close(one), { startImmediately: true })
          yield* holding.lend(two, borrower())
          yield* semaphore.release(1)
          yield* Fiber.join(closing)
          const counts = [yield* free]
          yield* close(two)
          counts.push(yield* free)
          holding.release()
          yield* Effect.yieldNow
          return [...counts, yield* free]
        })
      )
      assert.deepStrictEqual(counts, [1, 0, 1])
    }))

  it.effect("law 11: a handler stopped before or during its wait for the permit waits no longer", () =>
    Effect.gen(function*() {
      for (const isEarly of [true, false]) {
        const left = yield* play((services) =>
          Effect.gen(function*() {
            const { free, semaphore } = tree(1)
            const holding = new HeldPermits(semaphore, undefined, services, owner)
            yield* holding.take()
            const run = yield* open
            yield* holding.lend(run, borrower())
            yield* semaphore.take(1)
            if (isEarly) holding.stop()
            else yield* Effect.forkChild(Effect.andThen(Effect.sleep(5), Effect.sync(() => holding.stop())))
            yield* close(run)
            const at = yield* now
            holding.release()
            yield* semaphore.release(1)
            return [at, yield* free]
          })
        )
        assert.deepStrictEqual(left, [isEarly ? 0 : 5, 1])
      }
    }))

  it.effect("law 3: a handler released while its run is alive takes no permit back", () =>
    Effect.gen(function*() {
      const count = yield* play((services) =>
        Effect.gen(function*() {
          const { free, semaphore } = tree(1)
          const holding = new HeldPermits(semaphore, undefined, services, owner)
          yield* holding.take()
          const run = yield* open
          yield* holding.lend(run, borrower())
          holding.release()
          yield* close(run)
          return yield* free
        })
      )
      assert.strictEqual(count, 1)
    }))
})
