/**
 * From the first call to the end: aborted before or after it, discarded, left, or closed to further calls. Every
 * call that was taken has its result, results end, and nothing is alive when the scope has closed.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import { StreamingToolExecutor } from "heddle"
import { Simulation } from "heddle/testing"
import { cancelable, Floor, safe, takes, type Work } from "../support/floor.ts"
import {
  assertClean,
  assertSeen,
  callOf,
  cancelled,
  ok,
  type Seen,
  seenOf,
  timedUpdates,
  valueOf
} from "../support/seen.ts"

type Executor = StreamingToolExecutor.StreamingToolExecutor

const add = (executor: Executor, ...works: ReadonlyArray<Work>) =>
  Effect.forEach(works, (work) => executor.addTool(callOf(work), work.tool), { discard: true })

/** The updates not yet read. Their stream has to end. */
const rest = (executor: Executor): Effect.Effect<ReadonlyArray<Seen>> =>
  Effect.map(timedUpdates(executor), (told) => told.flatMap(([at, update]) => seenOf(update, at)))

const play = <A>(
  floor: Floor,
  scenario: (executor: Executor) => Effect.Effect<A, never, Scope.Scope>,
  options: StreamingToolExecutor.Options = {}
) =>
  Effect.gen(function*() {
    const report = yield* Simulation.run(Effect.scoped(Effect.flatMap(StreamingToolExecutor.make(options), scenario)))
    assertClean(floor, report.sleeping)
    return valueOf(report)
  })

const abortCause = "Execution cancelled by parent abort signal"

describe("StreamingToolExecutor: a signal", () => {
  it.effect("J-17, R-399: under a signal that has already fired, a call is cancelled, and the results end", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const signal = AbortSignal.abort()
      const told = yield* play(
        floor,
        (executor) => Effect.andThen(add(executor, floor.work("a", takes(1), safe)), rest(executor)),
        { signal }
      )
      assertSeen(told, [cancelled("a", 0, `not run: ${abortCause}`)])
      assert.deepStrictEqual(floor.marks, [])
      assert.deepStrictEqual(yield* play(floor, rest, { signal }), [], "they end without a call as well")
    }))

  it.effect("J-18, R-399: a call added after the signal is cancelled, and its result reaches the remaining reader", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const told = yield* play(
        floor,
        (executor) =>
          Effect.gen(function*() {
            yield* add(executor, floor.work("a", takes(20), cancelable))
            yield* Effect.sleep(10)
            yield* add(executor, floor.work("b", takes(1), safe), floor.work("c", takes(1)))
            assert.isFalse(yield* executor.hasUnfinishedTools)
            return yield* rest(executor)
          }),
        { signal: Effect.sleep(5) }
      )
      assertSeen(told, [cancelled("a", 10), cancelled("b", 10, "not run"), cancelled("c", 10, "not run")])
    }))

  it.effect("R-398: after a signal the results end with the last result, and no earlier", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const [told, at] = yield* play(
        floor,
        (executor) =>
          Effect.gen(function*() {
            yield* add(executor, floor.work("a", takes(30), safe), floor.work("b", takes(30), cancelable))
            return [yield* rest(executor), yield* Clock.currentTimeMillis] as const
          }),
        { signal: Effect.sleep(5) }
      )
      assertSeen(told, [ok("a", 30, "after 30"), cancelled("b", 30)])
      assert.strictEqual(at, 30)
    }))

  it.effect("R-396, O-09: the answer of a handler that does not stop waits for the handler's end", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const deaf = floor.work("a", Effect.uninterruptible(Effect.sleep(60)), cancelable)
      const [told, at] = yield* play(
        floor,
        (executor) =>
          Effect.gen(function*() {
            yield* add(executor, deaf)
            return [yield* rest(executor), yield* Clock.currentTimeMillis] as const
          }),
        { signal: Effect.sleep(5) }
      )
      assertSeen(told, [cancelled("a", 60)])
      assert.strictEqual(at, 60)
      assert.deepStrictEqual(floor.marks, [[0, "start", "a"], [60, "stop", "a"]])
    }))

  it.effect("the executor removes its listener from the signal when the scope closes", () =>
    Effect.gen(function*() {
      const { signal } = new AbortController()
      let listening = 0
      const listen = signal.addEventListener.bind(signal)
      const unlisten = signal.removeEventListener.bind(signal)
      signal.addEventListener = (...args: Parameters<typeof listen>) => {
        listening++
        listen(...args)
      }
      signal.removeEventListener = (...args: Parameters<typeof unlisten>) => {
        listening--
        unlisten(...args)
      }
      const during = yield* play(new Floor(), () => Effect.sync(() => listening), { signal })
      assert.deepStrictEqual([during, listening], [1, 0])
    }))
})

describe("StreamingToolExecutor: discarding", () => {
  it.effect("J-19, R-400: discarding lets running calls finish, cancels waiting calls and ends the results", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const [told, isBusy] = yield* play(floor, (executor) =>
        Effect.gen(function*() {
          yield* add(executor, floor.work("a", takes(20)), floor.work("b", takes(5)))
          yield* Effect.sleep(5)
          yield* executor.discard
          return [yield* rest(executor), yield* executor.hasUnfinishedTools] as const
        }))
      assertSeen(told, [ok("a", 20, "after 20"), cancelled("b", 20, "not run: the executor was discarded")])
      assert.isFalse(isBusy)
    }))

  it.effect("R-400: discarding interrupts an interruptible handler at once", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const told = yield* play(floor, (executor) =>
        Effect.gen(function*() {
          yield* add(executor, floor.work("a", takes(20), cancelable))
          yield* Effect.sleep(5)
          yield* executor.discard
          return yield* rest(executor)
        }))
      assertSeen(told, [cancelled("a", 5, "interrupted: the executor was discarded")])
      assert.deepStrictEqual(floor.marks, [[0, "start", "a"], [5, "stop", "a"]])
    }))

  it.effect("R-400: discarding ends the results for a waiting reader, also without a call", () =>
    Effect.gen(function*() {
      const at = yield* play(new Floor(), (executor) =>
        Effect.gen(function*() {
          const reader = yield* Effect.forkChild(rest(executor), { startImmediately: true })
          yield* Effect.sleep(7)
          yield* executor.discard
          assert.deepStrictEqual(yield* Fiber.join(reader), [])
          return yield* Clock.currentTimeMillis
        }))
      assert.strictEqual(at, 7)
    }))

  it.effect("R-400: a call added after discarding is dropped, and discarding again has no effect", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const told = yield* play(floor, (executor) =>
        Effect.gen(function*() {
          yield* add(executor, floor.work("a", takes(1)))
          yield* executor.discard
          yield* executor.discard
          yield* executor.noMoreCalls
          yield* add(executor, floor.work("b", takes(1)))
          return yield* rest(executor)
        }))
      assertSeen(told, [ok("a", 1, "after 1")])
    }))
})

describe("StreamingToolExecutor: its end", () => {
  it.effect("a call added after `noMoreCalls` is a defect", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const exit = yield* play(floor, (executor) =>
        Effect.andThen(executor.noMoreCalls, Effect.exit(add(executor, floor.work("a", takes(1))))))
      assert.isTrue(Exit.hasDies(exit))
      assert.include(String(Exit.isFailure(exit) ? exit.cause : ""), "addTool was called after noMoreCalls")
    }))

  it.effect("law 3: when the scope closes, handlers stop, and the results end for a reader in another fiber", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const program = Effect.gen(function*() {
        const scope = yield* Scope.make()
        const executor = yield* Scope.provide(StreamingToolExecutor.make(), scope)
        const works = ["a", "b", "c"].map((id) => floor.work(id, takes(id === "a" ? 5 : 100), cancelable))
        yield* add(executor, ...works, floor.work("d", takes(1)))
        const reader = yield* Effect.forkChild(rest(executor), { startImmediately: true })
        yield* Effect.sleep(10)
        yield* Scope.close(scope, Exit.void)
        const told = yield* Fiber.join(reader)
        yield* add(executor, floor.work("e", takes(1)))
        return { told, isBusy: yield* executor.hasUnfinishedTools, later: yield* rest(executor) }
      })
      const report = yield* Simulation.run(program)
      const { isBusy, later, told } = valueOf(report)
      assertSeen(told, [ok("a", 5, "after 5")])
      assert.deepStrictEqual([isBusy, later, report.millis], [false, [], 10])
      assert.deepStrictEqual(floor.marks.slice(4).map(([at, what]) => [at, what]), [[10, "stop"], [10, "stop"]])
      assertClean(floor, report.sleeping)
    }))

  it.effect("law 3: an executor interrupted at any step leaves no live handler and no sleeping fiber", () =>
    Effect.gen(function*() {
      const observed = (interruptAt: number) => {
        const floor = new Floor()
        const scenario = (executor: Executor) =>
          Effect.gen(function*() {
            yield* add(
              executor,
              floor.work("a", takes(10), { ...cancelable, validate: () => Effect.as(Effect.sleep(2), true) }),
              floor.work("b", takes(5), { interrupt: "cancel" }),
              floor.work("c", takes(5), cancelable)
            )
            yield* executor.noMoreCalls
            return yield* rest(executor)
          })
        return Effect.map(
          Simulation.run(Effect.scoped(Effect.flatMap(StreamingToolExecutor.make(), scenario)), { interruptAt }),
          (report) => ({ floor, report })
        )
      }
      const whole = yield* observed(Infinity)
      assert.isAbove(whole.report.steps, 5)
      for (let step = 0; step <= whole.report.steps; step++) {
        const { floor, report } = yield* observed(step)
        assert.isDefined(report.exit, `step ${step}: it did not end`)
        assertClean(floor, report.sleeping)
      }
    }))

  it.effect("R-401: an executor has unfinished tools while a call waits or runs", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const told = yield* play(floor, (executor) =>
        Effect.gen(function*() {
          const seen = [yield* executor.hasUnfinishedTools]
          yield* add(executor, floor.work("a", takes(2)), floor.work("b", takes(2)))
          for (let count = 0; count < 3; count++) {
            seen.push(yield* executor.hasUnfinishedTools)
            yield* Effect.sleep(2)
          }
          return seen
        }))
      assert.deepStrictEqual(told, [false, true, true, false])
    }))
})
