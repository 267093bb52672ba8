/**
 * The time limit of a call holds for handlers that block the thread, where no timer can fire: what comes after the limit
 * is dropped, whatever it is. The clock of these tests moves while no timer does, as a thread that is blocked makes it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Chat, Executor, Message, Policy, StreamingToolExecutor, Tool, ToolRunner } from "heddle"
import { Script } from "heddle/testing"
import { contents } from "../support/runs.ts"

const calls = [Message.toolCall("c0", "busy")]

/** What the model reads, told as its code where it is that of a timeout. */
const told = (content: unknown): unknown => String(content).includes("\"code\":\"timeout\"") ? timeout : content

const timeout = "timeout"

const results = (result: ToolRunner.Result) => contents(result).map(([, content]) => told(content))

/** A clock that `block` moves on, as a busy thread does: nothing else gets its turn meanwhile. */
const blocking = <A, E, R>(
  use: (block: (millis: number) => Effect.Effect<void>) => Effect.Effect<A, E, R>
): Effect.Effect<A, E, R> =>
  Effect.clockWith((clock) => {
    let blocked = 0
    const moved: Clock.Clock = {
      ...clock,
      monotonicTimeNanosUnsafe: () => clock.monotonicTimeNanosUnsafe() + BigInt(blocked) * 1_000_000n
    }
    return Effect.provideService(
      use((millis) =>
        Effect.sync(() => {
          blocked += millis
        })
      ),
      Clock.Clock,
      moved
    )
  })

/** What a handler that has been busy comes to. */
const ends: { readonly [how: string]: Effect.Effect<unknown, unknown> } = {
  "a value": Effect.succeed("late"),
  "a failure": Effect.fail("late"),
  "a defect": Effect.die("late"),
  "a halt": Effect.succeed(Tool.halt("late", "late")),
  "a question": Effect.succeed(Tool.askUser("late?"))
}

const busy = (handler: () => Effect.Effect<unknown, unknown>, options: Partial<Tool.Any> = {}): Tool.Any => ({
  ...Tool.make("busy", { parameters: {}, timeout: 50, handler }),
  ...options
})

describe("a handler that blocks the thread past its time limit", () => {
  for (const [what, end] of Object.entries(ends)) {
    it.effect(`M-06: ${what} after the time limit is dropped, and the answer is the timeout, awaited and streamed`, () =>
      blocking((block) =>
        Effect.gen(function*() {
          for (const before of [Effect.void, Effect.yieldNow]) {
            const tool = busy(() => Effect.andThen(Effect.andThen(before, block(300)), end))
            const awaited = yield* ToolRunner.run(calls, [tool])
            assert.deepStrictEqual(results(awaited), [timeout])
            assert.notProperty(awaited, "halt")
            assert.notProperty(awaited, "abandoned")
            const streamed = yield* Stream.runCollect(ToolRunner.stream(calls, [tool]))
            assert.deepStrictEqual(streamed.map((event) => event._tag), [
              "ToolExecutionStarted",
              "ToolExecutionCompleted",
              "ToolResultEncoded"
            ])
            assert.isTrue(
              streamed.some((event) => event._tag === "ToolResultEncoded" && told(event.content) === timeout)
            )
          }
        })
      ))
  }

  it.effect("M-06: a value within the time limit is kept, also at the last moment", () =>
    blocking((block) =>
      Effect.gen(function*() {
        for (const [millis, expected] of [[49, "late"], [50, "late"], [51, timeout]] as const) {
          const run = yield* ToolRunner.run(calls, [busy(() => Effect.as(block(millis), "late"))])
          assert.deepStrictEqual(results(run), [expected])
        }
        const patient = busy(() => Effect.as(block(3_600_000), "late"))
        const run = yield* ToolRunner.run(calls, [{ ...patient, timeout: Duration.infinity }])
        assert.deepStrictEqual(results(run), ["late"])
      })
    ))

  it.effect("M-06: a late value is a timeout under every policy, in a run of Chat, and with an executor of the caller", () =>
    blocking((block) =>
      Effect.gen(function*() {
        const tool = busy(() => Effect.as(block(300), "late"))
        const executor = Executor.layer({ execute: Executor.direct.execute })
        for (const policy of [Policy.standard, Policy.allm, Policy.falai]) {
          const run = Effect.provide(ToolRunner.run(calls, [tool], { policy }), executor, { local: true })
          assert.deepStrictEqual(results(yield* run), [timeout])
          const model = Script.layer([
            [Script.toolCall("c0", "busy"), Script.finish("tool_calls")],
            [Script.text("done"), Script.finish("stop")]
          ])
          const chat = yield* Effect.provide(Chat.run("go", { tools: [tool], policy }), model, { local: true })
          const answer = chat.thread.messages.find(({ role }) => role === "tool")
          assert.strictEqual(told(answer?.content), timeout)
        }
      })
    ))

  it.effect("M-06: a late value is a timeout in a StreamingToolExecutor", () =>
    blocking((block) =>
      Effect.scoped(Effect.gen(function*() {
        const executor = yield* StreamingToolExecutor.make()
        yield* executor.addTool(Message.toolCall("c0", "busy"), busy(() => Effect.as(block(300), "late")) as never)
        yield* executor.noMoreCalls
        const updates = yield* Stream.runCollect(executor.remainingResults)
        const answers = updates.flatMap(({ result }) =>
          result === undefined ? [] : [[told(result.content), result.success]]
        )
        assert.deepStrictEqual(answers, [[timeout, false]])
      }))
    ))

  it.effect("M-06: a failed attempt that used up the time limit is the last attempt", () =>
    blocking((block) =>
      Effect.gen(function*() {
        let attempts = 0
        const failing = () =>
          Effect.suspend(() => {
            attempts++
            return Effect.andThen(block(30), Effect.fail("no"))
          })
        const run = yield* ToolRunner.run(calls, [busy(failing, { retry: Schedule.forever })])
        assert.deepStrictEqual(results(run), [timeout])
        assert.strictEqual(attempts, 2)
      })
    ))

  it.effect("M-06: a gate that blocks the thread past the time limit denies the call", () =>
    blocking((block) =>
      Effect.gen(function*() {
        let hasRun = false
        const handler = () =>
          Effect.sync(() => {
            hasRun = true
          })
        const gates: ReadonlyArray<Partial<Tool.Any>> = [
          { validate: () => Effect.as(block(300), true) },
          { authorize: () => Effect.as(block(300), true) },
          { approval: () => Effect.as(block(300), false) }
        ] as ReadonlyArray<Partial<Tool.Any>>
        for (const gate of gates) {
          const run = yield* ToolRunner.run(calls, [busy(handler, gate)])
          assert.include(String(run.messages[0]?.content), "the call was not allowed within 50 ms")
        }
        assert.isFalse(hasRun)
      })
    ))

  it.effect("M-06: the time limit of a waiting handler includes the time that the handler blocked the thread", () =>
    blocking((block) =>
      Effect.gen(function*() {
        for (const [blocked, left] of [[20, 30], [50, 0], [300, 0]] as const) {
          const tool = busy(() => Effect.andThen(block(blocked), Effect.never))
          const run = yield* Effect.forkChild(ToolRunner.run(calls, [tool]), { startImmediately: true })
          if (left > 0) {
            yield* TestClock.adjust(left - 1)
            assert.isUndefined(run.pollUnsafe(), `before ${blocked} and ${left} ms`)
            yield* TestClock.adjust(1)
          } else yield* TestClock.adjust(0)
          assert.isDefined(run.pollUnsafe(), `after ${blocked} and ${left} ms`)
          assert.deepStrictEqual(results(yield* Fiber.join(run)), [timeout])
        }
      })
    ))

  it.effect("M-06: the time limit for writing a result includes the time that writing blocked the thread", () =>
    blocking((block) =>
      Effect.gen(function*() {
        const tool: Tool.Any = {
          ...busy(() => Effect.succeed("a result")),
          encodeSuccess: () => Effect.andThen(block(20), Effect.never)
        }
        const run = yield* Effect.forkChild(ToolRunner.run(calls, [tool]), { startImmediately: true })
        yield* TestClock.adjust(29)
        assert.isUndefined(run.pollUnsafe())
        yield* TestClock.adjust(1)
        assert.isDefined(run.pollUnsafe())
        assert.include(
          String((yield* Fiber.join(run)).messages[0]?.content),
          "writing the result timed out after 50 ms"
        )
      })
    ))

  it.live("M-06: a handler that really blocks its thread past the time limit is a timeout by the real clock", () =>
    Effect.gen(function*() {
      const spin = Effect.sync(() => {
        const until = performance.now() + 60
        while (performance.now() < until);
        return "late"
      })
      const tool = busy(() => Effect.andThen(Effect.yieldNow, spin), { timeout: Duration.millis(20) })
      assert.deepStrictEqual(results(yield* ToolRunner.run(calls, [tool])), [timeout])
    }))
})
