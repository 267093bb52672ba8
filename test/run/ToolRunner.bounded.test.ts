/**
 * Calls are answered within the grace period of a stop, whatever writes their answers: those that run, those that come up
 * after the stop, and those that an approval was asked for. There is one grace period, which begins with the stop.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Chat, Encoder, Message, StreamingToolExecutor, Tool, ToolRunner } from "heddle"
import { Script } from "heddle/testing"

const grace = 300
const stopAt = 50

const paces: { readonly [how: string]: Effect.Effect<never> } = {
  "never ends": Effect.never,
  "refuses interruption": Effect.uninterruptible(Effect.never)
}

const ok = Tool.make("ok", { parameters: {}, handler: () => Effect.succeed(1) })
const slow = Tool.make("slow", { parameters: {}, timeout: 20, handler: () => Effect.never })
const asking = Tool.make("asking", { parameters: {}, approval: true, handler: () => Effect.succeed(1) })
const endless = Tool.make("endless", { parameters: {}, handler: () => Effect.never })

const stop = { grace, toolTimeout: "infinity", cancel: Effect.sleep(stopAt) } as const
const encoder = (wait: Effect.Effect<never>) => Encoder.layer({ encode: () => wait })
const call = (name: string, id = "c0") => Message.toolCall(id, name)
const calling = (...names: ReadonlyArray<string>) =>
  Script.layer([
    [...names.map((name, index) => Script.toolCall(`c${index}`, name)), Script.finish("tool_calls")],
    [Script.finish("stop")]
  ])

/** Speaks for longer than the run has. */
const speaking = Script.layer([[Script.toolCall("c0", "ok"), Script.delay(100), Script.finish("tool_calls")]])

/** When something ends, by the test clock. */
const endOf = <A, E>(run: Effect.Effect<A, E>) =>
  Effect.gen(function*() {
    const timed = Effect.all({ exit: Effect.exit(run), at: Clock.currentTimeMillis })
    const fiber = yield* Effect.forkDetach(timed, { startImmediately: true })
    for (let at = 0; at < 2000 && fiber.pollUnsafe() === undefined; at += 10) yield* TestClock.adjust(10)
    assert.isDefined(fiber.pollUnsafe(), "it goes on after 2 seconds")
    return yield* Fiber.join(fiber)
  })

const executor = (signal: Effect.Effect<void>, onset: number, wait: Effect.Effect<never>) =>
  Effect.scoped(Effect.gen(function*() {
    const executor = yield* StreamingToolExecutor.make({ grace, signal, toolTimeout: "infinity" })
    yield* Effect.sleep(onset)
    yield* executor.addTool(call("ok"), ok)
    return yield* Stream.runCollect(executor.remainingResults)
  })).pipe(Effect.provide(encoder(wait)))

/** What is stopped at 50 ms. */
const cases: { readonly [what: string]: (wait: Effect.Effect<never>) => Effect.Effect<unknown, unknown> } = {
  "the encoder for a call of a reply cut off by the stop": (wait) =>
    Effect.provide(Chat.run("go", { ...stop, tools: [ok] }), [encoder(wait), speaking]),
  "the encoder for a call of a reply cut off by the deadline": (wait) =>
    Effect.provide(
      Chat.run("go", { grace, toolTimeout: "infinity", deadline: { after: stopAt, reserve: 0 }, tools: [ok] }),
      [encoder(wait), speaking]
    ),
  "the encoder for an approval closed by the stop": (wait) =>
    Effect.provide(Chat.run("go", { ...stop, tools: [asking, endless] }), [
      encoder(wait),
      calling("asking", "endless")
    ]),
  "the encoder for a running call": (wait) =>
    Effect.provide(Chat.run("go", { ...stop, tools: [ok] }), [encoder(wait), calling("ok")]),
  "the encoder of a batch": (wait) => Effect.provide(ToolRunner.run([call("ok")], [ok], stop), encoder(wait)),
  "the encoder of an executor": (wait) => executor(Effect.sleep(stopAt), 0, wait),
  "the encoder for a call added to an executor after the stop": (wait) => executor(Effect.sleep(stopAt), 80, wait),
  "onToolError after a timeout": (wait) => ToolRunner.run([call("slow")], [slow], { ...stop, onToolError: () => wait }),
  "onToolError for an unknown tool": (wait) =>
    Effect.provide(Chat.run("go", { ...stop, tools: [ok], onToolError: () => wait }), calling("nope")),
  "onToolError of a tool after a failure": (wait) =>
    ToolRunner.run(
      [call("failing")],
      [Tool.make("failing", { parameters: {}, onToolError: () => wait, handler: () => Effect.fail("no") })],
      stop
    )
}

describe("the grace period of a stopped run", () => {
  for (const [what, make] of Object.entries(cases)) {
    for (const [pace, wait] of Object.entries(paces)) {
      it.effect(`M-03: the run ends within the grace period although ${what} ${pace}`, () =>
        Effect.gen(function*() {
          const { at, exit } = yield* endOf(make(wait))
          assert.isTrue(Exit.isSuccess(exit), String(exit))
          assert.strictEqual(at, stopAt + grace)
        }))
    }
  }

  it.effect("M-03: a hook that begins after the stop gets no grace period of its own for forked fibers", () =>
    Effect.gen(function*() {
      const late = Tool.make("late", {
        parameters: {},
        interrupt: "block",
        timeout: stopAt + 100,
        handler: () => Effect.never
      })
      let beganAt = 0
      const onToolError = () =>
        Effect.gen(function*() {
          beganAt = yield* Clock.currentTimeMillis
          yield* Effect.forkChild(Effect.uninterruptible(Effect.never), { startImmediately: true })
          return Tool.ErrorDecision.continue("too late")
        })
      const { at, exit } = yield* endOf(ToolRunner.run([call("late")], [late], { ...stop, onToolError }))
      assert.strictEqual(beganAt, stopAt + 100)
      assert.strictEqual(at, stopAt + grace)
      assert.isTrue(Exit.isSuccess(exit) && exit.value.messages[0]?.content === "too late", String(exit))
    }))

  it.effect("M-03: a batch aborted before it begins ends within the grace period of its encoder", () =>
    Effect.gen(function*() {
      for (const wait of Object.values(paces)) {
        const began = yield* Clock.currentTimeMillis
        const run = ToolRunner.run([call("ok")], [ok], { ...stop, cancel: AbortSignal.abort() })
        const { at, exit } = yield* endOf(Effect.provide(run, encoder(wait)))
        assert.strictEqual(at - began, grace)
        assert.isTrue(Exit.isSuccess(exit))
        if (Exit.isSuccess(exit)) {
          assert.include(String(exit.value.messages[0]?.content), "not run: Execution cancelled by parent abort signal")
        }
      }
    }))

  it.effect("M-03: an executor answers a call added after the grace period of its signal at once", () =>
    Effect.gen(function*() {
      const { at, exit } = yield* endOf(executor(Effect.sleep(stopAt), 500, Effect.never))
      assert.isAtMost(at, 510)
      assert.isTrue(Exit.isSuccess(exit) && exit.value.length === 1)
    }))

  it.effect("M-03: an interruption within the grace period of a soft stop starts no second grace period", () =>
    Effect.gen(function*() {
      for (const onToolError of [false, true]) {
        const began = yield* Clock.currentTimeMillis
        const deaf = paces["refuses interruption"]!
        const run = onToolError
          ? ToolRunner.run([call("slow")], [slow], { ...stop, onToolError: () => deaf })
          : Effect.provide(ToolRunner.run([call("ok")], [ok], stop), encoder(deaf))
        const { at } = yield* endOf(Effect.timeoutOption(run, 150))
        assert.strictEqual(at - began, stopAt + grace, String(onToolError))
      }
    }))
})
