/**
 * A timeout lasts as long as it says, whatever the time of day is set to, and concerns only its own call; and a pull
 * that was interrupted has ended its run.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Chat, Message, Tool, ToolRunner } from "heddle"
import { Script } from "heddle/testing"
import { elapsed } from "../support/runs.ts"

const call = Message.toolCall
const { finish, text, toolCall } = Script

/** The clock of the test, whose time of day can be set. How long a sleep takes does not depend on that. */
const settable = Effect.map(Clock.Clock, (clock) => {
  let offset = 0
  const millis = () => clock.currentTimeMillisUnsafe() + offset
  const nanos = () => clock.currentTimeNanosUnsafe() + BigInt(offset) * 1_000_000n
  const set: Clock.Clock = {
    sleep: (duration) => clock.sleep(duration),
    monotonicTimeNanosUnsafe: () => clock.monotonicTimeNanosUnsafe(),
    monotonicTimeNanos: clock.monotonicTimeNanos,
    currentTimeMillisUnsafe: millis,
    currentTimeMillis: Effect.sync(millis),
    currentTimeNanosUnsafe: nanos,
    currentTimeNanos: Effect.sync(nanos)
  }
  const by = (milliseconds: number) => {
    offset += milliseconds
  }
  return { by, clock: set }
})

const never = Tool.make("never", { parameters: {}, handler: () => Effect.never })

describe("times: the time of day", () => {
  it.effect("R-075: a timeout fires on time although the time of day is set back meanwhile", () =>
    Effect.gen(function*() {
      const { by, clock } = yield* settable
      const run = ToolRunner.run([call("c0", "never")], [never], { toolTimeout: 1_000 })
      const fiber = yield* Effect.forkChild(Effect.provideService(run, Clock.Clock, clock), { startImmediately: true })
      yield* TestClock.adjust(500)
      by(-600_000)
      yield* TestClock.adjust(1_000)
      const isDone = fiber.pollUnsafe() !== undefined
      yield* Fiber.interrupt(fiber)
      assert.isTrue(isDone, "1.5 s have passed, and the timeout is 1 s")
    }))

  it.effect("R-075: a timeout is not cut short although the time of day is set forward meanwhile", () =>
    Effect.gen(function*() {
      const { by, clock } = yield* settable
      const brief = Tool.make("brief", { parameters: {}, timeout: 100, handler: () => Effect.never })
      const slow = Tool.make("slow", { parameters: {}, handler: () => Effect.as(Effect.sleep(500), "ok") })
      const run = ToolRunner.run([call("a", "brief"), call("b", "slow")], [brief, slow], { toolTimeout: 1_000 })
      const fiber = yield* Effect.forkChild(Effect.provideService(run, Clock.Clock, clock), { startImmediately: true })
      yield* TestClock.adjust(50)
      by(600_000)
      yield* TestClock.adjust(1_000)
      const { messages } = yield* Fiber.join(fiber)
      assert.strictEqual(messages[1]?.content, "ok")
    }))
})

describe("times: at the same moment", () => {
  it.effect("law 7: the outcome of a call at the moment of its timeout does not depend on concurrent calls", () =>
    Effect.gen(function*() {
      const nap = Tool.make("nap", { parameters: {}, handler: () => Effect.as(Effect.sleep(100), "ok") })
      const alone = yield* elapsed(ToolRunner.run([call("a", "nap")], [nap], { toolTimeout: 100 }))
      const both = yield* elapsed(ToolRunner.run([call("a", "nap"), call("b", "nap")], [nap], { toolTimeout: 100 }))
      const [expected] = alone.value.messages
      assert.deepStrictEqual(both.value.messages.map(({ content }) => content), [expected?.content, expected?.content])
    }))

  it.effect("law 11: at a deadline the runs within a blocking handler end before the handler, so that the handler can answer", () =>
    Effect.gen(function*() {
      const leaf = Tool.make("leaf", { parameters: {}, interrupt: "block", handler: () => Effect.sleep(5_000) })
      const agent = Tool.make("agent", {
        parameters: {},
        interrupt: "block",
        timeout: "1 hour",
        handler: () => Effect.map(ToolRunner.run([call("i0", "leaf")], [leaf], { toolTimeout: "1 hour" }), () => "told")
      })
      const quick = Tool.make("quick", { parameters: {}, timeout: 200, handler: () => Effect.succeed("quick") })
      const stuck = Tool.make("stuck", { parameters: {}, timeout: 200, handler: () => Effect.never })
      for (const names of [["agent"], ["agent", "quick"], ["agent", "stuck"], ["stuck", "agent"]]) {
        const { value } = yield* elapsed(ToolRunner.run(
          names.map((name) => call(name, name)),
          [agent, quick, stuck],
          { deadline: 1_000, grace: 100 }
        ))
        const answer = value.messages.find(({ toolCallId }) => toolCallId === "agent")
        assert.strictEqual(answer?.content, "told", names.join(" beside "))
      }
    }))
})

describe("an interrupted pull", () => {
  it.effect("law 3: an interrupted pull ends the run, and a later pull makes no request", () =>
    Effect.gen(function*() {
      const nap = Tool.make("nap", { parameters: {}, handler: () => Effect.sleep(1_000) })
      const model = yield* Script.make([
        [toolCall("c0", "nap"), finish("tool_calls")],
        [text("done"), finish("stop")]
      ])
      const reading = Effect.gen(function*() {
        const pull = yield* Stream.toPull(Chat.stream("go", { tools: [nap] }))
        for (let count = 0; count < 10; count++) {
          if (Exit.isFailure(yield* Effect.exit(Effect.timeoutOption(pull, 20)))) return
        }
      })
      yield* elapsed(Effect.scoped(reading).pipe(Effect.provide(model.layer)))
      assert.strictEqual(yield* model.opens, 1)
    }))
})
