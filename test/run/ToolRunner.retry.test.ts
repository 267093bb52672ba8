/**
 * Retries of a tool that blocks interruption, when its run is stopped: the attempt that runs may finish, no other one
 * starts, and nothing waits for the time of the next one.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Chat, Message, Policy, StreamingToolExecutor, Tool, ToolRunner } from "heddle"
import { Script } from "heddle/testing"
import { elapsed, timed } from "../support/runs.ts"

const calls = [Message.toolCall("c0", "flaky")]

type Entry = readonly [what: string, at: number]

const later: ReadonlyArray<Entry> = [["start", 20], ["end", 40]]

/** A tool whose attempts take 20 ms and fail, and when each of them started and ended. */
const flaky = (schedule: Schedule.Schedule<unknown>) => {
  const log: Array<Entry> = []
  const note = (what: string) => Effect.map(Clock.currentTimeMillis, (now) => void log.push([what, now]))
  const attempt = Effect.andThen(Effect.andThen(note("start"), Effect.sleep(20)), note("end"))
  const tool = Tool.make("flaky", {
    parameters: {},
    interrupt: "block",
    timeout: 500,
    retry: schedule,
    handler: () => Effect.andThen(attempt, Effect.fail("no"))
  })
  return { log, tool }
}

/** An attempt that runs when the stop comes, and one that is waited for. */
const moments = [
  { name: "while an attempt runs", schedule: Schedule.spaced(0), stopAt: 30, until: 40 },
  { name: "between two attempts", schedule: Schedule.spaced("1 minute"), stopAt: 30, until: 30 }
] as const

const model = Script.layer([
  [Script.toolCall("c0", "flaky"), Script.finish("tool_calls")],
  [Script.text("done"), Script.finish("stop")]
])

const content = "{\"error\":\"no\"}"

describe("the retries of a blocking tool", () => {
  for (const { name, schedule, stopAt, until } of moments) {
    const isNext = until > stopAt
    const expected: ReadonlyArray<Entry> = [["start", 0], ["end", 20], ...isNext ? later : []]

    it.effect(`M-41: no attempt of a blocking tool starts after a soft stop ${name}, and the last failure is the answer`, () =>
      Effect.gen(function*() {
        const { log, tool } = flaky(schedule)
        const { at, value } = yield* elapsed(
          ToolRunner.run(calls, [tool], { cancel: Effect.sleep(stopAt), grace: 1000 })
        )
        assert.deepStrictEqual(log, expected)
        assert.strictEqual(at, until)
        assert.strictEqual(value.messages[0]?.content, content)
        assert.notProperty(value, "abandoned")
      }))

    it.effect(`M-41: no attempt of a blocking tool starts after the deadline ${name}`, () =>
      Effect.gen(function*() {
        const { log, tool } = flaky(schedule)
        const { at } = yield* elapsed(
          ToolRunner.run(calls, [tool], { deadline: { after: stopAt, reserve: 0 }, grace: 1000 })
        )
        assert.deepStrictEqual(log, expected)
        assert.strictEqual(at, until)
      }))

    it.effect(`M-41: no attempt of a blocking tool starts after an interruption ${name}`, () =>
      Effect.gen(function*() {
        const { log, tool } = flaky(schedule)
        const fiber = yield* Effect.forkChild(ToolRunner.run(calls, [tool], { grace: 1000 }), {
          startImmediately: true
        })
        yield* TestClock.adjust(stopAt)
        assert.strictEqual((yield* timed(Fiber.interrupt(fiber))).at, until - stopAt)
        assert.deepStrictEqual(log, expected)
      }))

    it.effect(`M-41: no attempt starts after a stop or an interruption of Chat under Policy.falai ${name}`, () =>
      Effect.gen(function*() {
        for (const isLeft of [false, true]) {
          const start = yield* Clock.currentTimeMillis
          const { log, tool } = flaky(schedule)
          const { interrupt: _, ...bare } = tool as Tool.Any
          const chat = Chat.stream("go", {
            tools: [bare as typeof tool],
            policy: Policy.falai,
            grace: 1000,
            ...isLeft ? {} : { cancel: Effect.sleep(stopAt) }
          }).pipe(Stream.provide(model))
          const { at } = yield* elapsed(
            isLeft ? Effect.timeoutOption(Stream.runDrain(chat), stopAt) : Stream.runDrain(chat)
          )
          assert.strictEqual(at, until)
          assert.deepStrictEqual(log.map(([what, now]): Entry => [what, now - start]), expected)
        }
      }))

    it.effect(`M-41: no attempt of a blocking tool starts after StreamingToolExecutor was discarded ${name}`, () =>
      Effect.scoped(Effect.gen(function*() {
        const { log, tool } = flaky(schedule)
        const executor = yield* StreamingToolExecutor.make({ grace: 1000 })
        yield* executor.addTool(Message.toolCall("c0", "flaky"), tool as never)
        yield* Effect.forkChild(Effect.andThen(Effect.sleep(stopAt), executor.discard), { startImmediately: true })
        const { at, value } = yield* elapsed(Stream.runCollect(executor.remainingResults))
        assert.strictEqual(at, until)
        assert.deepStrictEqual(value.flatMap(({ result }) => result?.success ?? []), [false])
        assert.deepStrictEqual(log, expected)
      })))
  }

  it.effect("M-41: without a stop a blocking tool is attempted as often as its schedule allows, and the schedule receives each failure", () =>
    Effect.gen(function*() {
      const seen: Array<unknown> = []
      const schedule = Schedule.recurs(3).pipe(Schedule.while(({ input }) => seen.push(input) > 0))
      const { log, tool } = flaky(schedule)
      const { at } = yield* elapsed(ToolRunner.run(calls, [tool]))
      assert.strictEqual(at, 80)
      assert.strictEqual(log.length, 8)
      assert.deepStrictEqual(seen, ["no", "no", "no"])
    }))
})
