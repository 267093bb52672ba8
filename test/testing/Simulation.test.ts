import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import { Chat, Message, Tool, ToolRunner } from "heddle"
import { Explorer, Script, Simulation } from "heddle/testing"

describe("Simulation", () => {
  it.effect("a simulated hour passes at once and leaves no fiber asleep", () =>
    Effect.gen(function*() {
      const report = yield* Simulation.run(Effect.as(Effect.sleep("1 hour"), "woke"))
      assert.deepStrictEqual(report.exit, Exit.succeed("woke"))
      assert.strictEqual(report.millis, 3_600_000)
      assert.strictEqual(report.sleeping, 0)
    }))

  it.effect("a simulation counts the same steps every time", () =>
    Effect.gen(function*() {
      const program = Effect.all([Effect.sleep(10), Effect.sleep(20), Effect.yieldNow], { concurrency: "unbounded" })
      const first = yield* Simulation.run(program)
      const second = yield* Simulation.run(program)
      assert.isAbove(first.steps, 2)
      assert.strictEqual(first.steps, second.steps)
    }))

  it.effect("a simulation counts a sleeping fiber that outlives the effect", () =>
    Effect.gen(function*() {
      const report = yield* Simulation.run(
        Effect.asVoid(Effect.forkDetach(Effect.sleep(50), { startImmediately: true }))
      )
      assert.strictEqual(report.sleeping, 1)
    }))

  it.effect("sleepers with the same end time wake in the order in which they fell asleep", () =>
    Effect.gen(function*() {
      const woken: Array<string> = []
      const sleeper = (name: string, millis: number) =>
        Effect.andThen(Effect.sleep(millis), Effect.sync(() => void woken.push(name)))
      yield* Simulation.run(
        Effect.all([sleeper("a", 10), sleeper("b", 10), sleeper("c", 5), sleeper("d", 10)], {
          concurrency: "unbounded"
        })
      )
      assert.deepStrictEqual(woken, ["c", "a", "b", "d"])
    }))

  it.effect("a simulation of an effect that never ends has no exit", () =>
    Effect.gen(function*() {
      const report = yield* Simulation.run(Effect.never)
      assert.isUndefined(report.exit)
    }))

  it.effect("a simulation interrupts the effect at the given step", () =>
    Effect.gen(function*() {
      const program = Effect.forEach([1, 2, 3], () => Effect.sleep(10))
      const whole = yield* Simulation.run(program)
      const ends: Array<number> = []
      for (let interruptAt = 0; interruptAt < whole.steps; interruptAt++) {
        const report = yield* Simulation.run(program, { interruptAt })
        assert.isTrue(report.exit !== undefined && Exit.hasInterrupts(report.exit))
        assert.strictEqual(report.sleeping, 0)
        ends.push(report.millis)
      }
      assert.deepStrictEqual(Array.from(new Set(ends)), [0, 10, 20])
    }))

  it.effect("a simulation waits for promises that settle by themselves", () =>
    Effect.gen(function*() {
      const report = yield* Simulation.run(Effect.andThen(Effect.promise(() => Promise.resolve(1)), Effect.sleep(5)))
      assert.strictEqual(report.millis, 5)
      assert.isTrue(report.exit !== undefined && Exit.isSuccess(report.exit))
    }))

  it.effect("a simulation lets ready promises settle before it moves the clock", () =>
    Effect.gen(function*() {
      const chained = Effect.promise(() => Promise.resolve(1).then((one) => one + 1).then((two) => two + 1))
      const report = yield* Simulation.run(Effect.timeout(chained, "1 minute"))
      assert.deepStrictEqual(report.exit, Exit.succeed(3))
      assert.strictEqual(report.millis, 0)
    }))

  it.effect("a simulation counts the remaining fibers, asleep or not", () =>
    Effect.gen(function*() {
      const alone = yield* Simulation.run(Effect.all([Effect.sleep(1), Effect.sleep(2)], { concurrency: 2 }))
      assert.strictEqual(alone.fibers, 0)
      const left = yield* Simulation.run(Effect.asVoid(Effect.forkDetach(Effect.never, { startImmediately: true })))
      assert.strictEqual(left.fibers, 1)
      assert.strictEqual(left.sleeping, 0)
      const stuck = yield* Simulation.run(Effect.never)
      assert.strictEqual(stuck.fibers, 1)
    }))

  it.effect("a simulation reports each step before it takes the step", () =>
    Effect.gen(function*() {
      const seen: Array<readonly [number, string]> = []
      let phase = "before"
      const program = Effect.sync(() => phase = "first").pipe(
        Effect.andThen(Effect.sleep(10)),
        Effect.andThen(Effect.sync(() => phase = "second"))
      )
      const report = yield* Simulation.run(program, { onStep: (step) => seen.push([step, phase]) })
      assert.strictEqual(report.steps, 2)
      assert.deepStrictEqual(seen, [[0, "before"], [1, "first"], [2, "second"]])
    }))

  it.effect("a simulation interrupts a hanging effect", () =>
    Effect.gen(function*() {
      const whole = yield* Simulation.run(Effect.never)
      const report = yield* Simulation.run(Effect.never, { interruptAt: whole.steps })
      assert.isTrue(report.exit !== undefined && Exit.hasInterrupts(report.exit))
      assert.strictEqual(report.fibers, 0)
    }))

  it.effect("a simulation drives a whole run with its script and timeouts", () =>
    Effect.gen(function*() {
      const slow = Tool.make("slow", { parameters: {}, timeout: "1 minute", handler: () => Effect.never })
      const model = Script.layer([
        [Script.delay(500), Script.toolCall("c0", "slow"), Script.finish("tool_calls")],
        [Script.text("done"), Script.finish("stop")]
      ])
      const report = yield* Simulation.run(Effect.provide(Chat.run("go", { tools: [slow] }), model))
      assert.strictEqual(report.millis, 60_500)
      assert.strictEqual(report.sleeping, 0)
      assert.isTrue(report.exit !== undefined && Exit.isSuccess(report.exit) && report.exit.value.steps.length === 2)
    }))
})

describe("Explorer", () => {
  it.effect("the explorer runs every order, and finds one result where order does not matter", () =>
    Effect.gen(function*() {
      const report = yield* Explorer.explore(
        3,
        (point) => Effect.map(Effect.all([point(0), point(1), point(2)], { concurrency: "unbounded" }), () => "same")
      )
      assert.strictEqual(report.runs, 6)
      assert.deepStrictEqual(
        report.findings.map((finding) => finding.result),
        ["same"]
      )
    }))

  it.effect("the explorer reports which orders lead to which result", () =>
    Effect.gen(function*() {
      const report = yield* Explorer.explore(3, (point) =>
        Effect.gen(function*() {
          const fibers = yield* Effect.forEach([0, 1, 2], (index) => Effect.forkChild(Effect.as(point(index), index)))
          return yield* Effect.raceAll(fibers.map(Fiber.join))
        }))
      assert.deepStrictEqual(report.findings.map((finding) => finding.result), [0, 1, 2])
      assert.isTrue(report.findings.every((finding) => finding.orders.every((order) => order[0] === finding.result)))
    }))

  it.effect("the explorer runs at most `limit` orders, each a different one", () =>
    Effect.gen(function*() {
      const seen = new Set<string>()
      const report = yield* Explorer.explore(8, (point) =>
        Effect.gen(function*() {
          const order: Array<number> = []
          const wait = (index: number) => Effect.andThen(point(index), Effect.sync(() => order.push(index)))
          yield* Effect.all([0, 1, 2, 3, 4, 5, 6, 7].map(wait), { concurrency: "unbounded" })
          seen.add(order.join(""))
        }), { limit: 50 })
      assert.isAtMost(report.runs, 50)
      assert.strictEqual(seen.size, report.runs)
    }))

  it.effect("a batch of tools has the same answers and halt in every order, and its events follow the order", () =>
    Effect.gen(function*() {
      const report = yield* Explorer.explore(4, (point) => {
        const wait = Tool.make("wait", {
          parameters: {},
          handler: (_args, call) => Effect.as(point(call.index), Tool.halt(`h${call.index}`, call.index))
        })
        const calls = [0, 1, 2, 3].map((index) => Message.toolCall(`c${index}`, "wait"))
        return Effect.map(
          ToolRunner.run(calls, [wait], { maxConcurrency: 4 }),
          ({ messages, halt }) => ({ messages, halt })
        )
      })
      assert.strictEqual(report.runs, 24)
      assert.strictEqual(report.findings.length, 1)
      const events = yield* Explorer.explore(2, (point) => {
        const wait = Tool.make("wait", { parameters: {}, handler: (_args, call) => point(call.index) })
        const calls = [0, 1].map((index) => Message.toolCall(`c${index}`, "wait"))
        return Effect.map(
          Stream.runCollect(ToolRunner.stream(calls, [wait], { maxConcurrency: 2 })),
          (all) => all.map((event) => "id" in event ? event.id : "")
        )
      })
      assert.strictEqual(events.findings.length, 2)
    }))
})
