/**
 * Calls that hold a place but have no handler yet, because they wait for permits or for their gates. However their tool
 * is declared, they never start once the run is stopped or left, and the run does not wait for them.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import { Limits, Message, Policy, Tool, ToolRunner } from "heddle"
import { Simulation } from "heddle/testing"
import { type Declared, failsAfter, Floor, safe, takes } from "../support/floor.ts"
import { assertClean, valueOf } from "../support/seen.ts"

const slowly = () => Effect.as(Effect.sleep(100), true)

const held = { limits: [{ key: "one at a time", permits: 1 }] } satisfies Declared

/** What a call waits for, how it is declared for that, and how many permits the tree has. */
const waits: ReadonlyArray<readonly [what: string, declared: Declared, permits: number]> = [
  ["a permit of the application", {}, 1],
  ["a keyed permit", held, 10],
  ["its validation", { validate: slowly }, 10],
  ["its authorization", { authorize: slowly }, 10]
]

const work = 500

/** What a run comes to beside one that holds the permit for 500 ms, and when. */
const beside = (declared: Declared, permits: number, floor: Floor, stop: "leave" | "cancel") =>
  Effect.gen(function*() {
    const first = floor.tool("first", takes(work), { ...safe, ...held })
    const second = floor.tool("second", takes(work), { ...safe, ...declared, interrupt: "block" })
    const other = yield* Effect.forkChild(ToolRunner.run([Message.toolCall("first", "first")], [first]), {
      startImmediately: true
    })
    const cancel = stop === "cancel" ? Effect.sleep(10) : Effect.never
    const run = yield* Effect.forkChild(ToolRunner.run([Message.toolCall("second", "second")], [second], { cancel }), {
      startImmediately: true
    })
    yield* Effect.sleep(10)
    if (stop === "leave") yield* Fiber.interrupt(run)
    else yield* Fiber.await(run)
    const at = yield* Clock.currentTimeMillis
    const messages = stop === "leave" ? [] : (yield* Fiber.join(run)).messages
    yield* Fiber.join(other)
    return { at, messages }
  }).pipe(Effect.provide(Limits.layer({ permits })), Simulation.run)

describe("ToolRunner: a blocking call that has not started", () => {
  for (const [what, declared, permits] of waits) {
    it.effect(`law 3, law 11, R-395: a blocking call waiting for ${what} is interrupted at once when the run is interrupted`, () =>
      Effect.gen(function*() {
        const floor = new Floor()
        const report = yield* beside(declared, permits, floor, "leave")
        assert.strictEqual(valueOf(report).at, 10)
        assert.deepStrictEqual(floor.marks, [[0, "start", "first"], [work, "end", "first"]])
        assertClean(floor, report.sleeping)
      }))

    it.effect(`J-20, R-398: a blocking call waiting for ${what} is answered as cancelled when the run is stopped softly`, () =>
      Effect.gen(function*() {
        const floor = new Floor()
        const report = yield* beside(declared, permits, floor, "cancel")
        const { at, messages } = valueOf(report)
        assert.strictEqual(at, 10)
        assert.include(
          String(messages[0]?.content),
          "cancelled: interrupted: Execution cancelled by parent abort signal"
        )
        assert.deepStrictEqual(floor.marks, [[0, "start", "first"], [work, "end", "first"]])
        assertClean(floor, report.sleeping)
      }))
  }
})

describe("ToolRunner: calls waiting at the end of a run", () => {
  it.effect("law 3, R-071: a call that gets its permit when the run has failed never starts, however slow the reader", () =>
    Effect.gen(function*() {
      for (const pause of [0, 50]) {
        const floor = new Floor()
        const tools = ["a", "b"].map((name) =>
          floor.tool(name, name === "a" ? failsAfter(5) : takes(5), { ...safe, ...held })
        )
        const calls = tools.map(({ name }) => Message.toolCall(name, name))
        const onToolError = (_call: Message.ToolCall, error: unknown) => Effect.succeed(Tool.ErrorDecision.fail(error))
        const read = Stream.runForEach(ToolRunner.stream(calls, tools, { onToolError }), () => Effect.sleep(pause))
        const report = yield* Simulation.run(Effect.provide(Effect.flip(read), Limits.layer({ permits: 10 })))
        assert.strictEqual(valueOf(report), "kaboom")
        assert.deepStrictEqual(floor.marks, [[0, "start", "a"], [5, "end", "a"]])
        assertClean(floor, report.sleeping)
      }
    }))

  it.effect("CF-1: a halt decided late stops calls that have started since", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const tools = [floor.tool("a", Effect.never, { timeout: 7 }), floor.tool("b", takes(50), { interrupt: "cancel" })]
      const calls = tools.map(({ name }) => Message.toolCall(name, name))
      const onToolError = (_call: Message.ToolCall, _error: unknown) =>
        Effect.as(Effect.sleep(3), Tool.ErrorDecision.halt)
      const policy = { ...Policy.falai, siblings: { ...Policy.falai.siblings, onHalt: "abortCancelable" } } as const
      const report = yield* Simulation.run(ToolRunner.run(calls, tools, { onToolError, policy }))
      const { halt, messages } = valueOf(report)
      assert.deepInclude(halt, { haltedReason: "tool_error", haltToolCallId: "a" })
      assert.include(String(messages[1]?.content), "interrupted: another call of the turn ended it")
      assert.deepStrictEqual(floor.marks.at(-1), [10, "stop", "b"])
      assertClean(floor, report.sleeping)
    }))
})
