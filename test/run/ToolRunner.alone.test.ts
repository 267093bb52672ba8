/** A call that runs alone, behind a handler that refuses to stop: it is never run beside that, and it waits no longer than a grace period. */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Latch from "effect/Latch"
import { Chat, Message, Tool, ToolRunner } from "heddle"
import { Script, Simulation } from "heddle/testing"
import { succeeded } from "../support/runs.ts"

const grace = 1000

/** It is interrupted by its timeout after 10 ms, and ends when `latch` is opened. */
const deaf = (latch: Latch.Latch, options: object = {}) =>
  Tool.make("deaf", { parameters: {}, timeout: 10, handler: () => Effect.uninterruptible(latch.await), ...options })

const alone = Tool.make("alone", {
  parameters: {},
  concurrency: "exclusive",
  handler: () => Effect.succeed("ran alone")
})
const look = Tool.make("look", { parameters: {}, handler: () => Effect.succeed("looked") })

const contents = (messages: ReadonlyArray<Message.Message>) => messages.map(({ content }) => String(content))

const refused = (name: string, why = "") =>
  JSON.stringify({
    error:
      `tool error (${name}): cancelled: not started: ${why}an earlier tool refused to stop and is still running: "deaf"`,
    code: "cancelled"
  })

describe("an exclusive call behind a handler that refuses to stop", () => {
  it.effect("N-31: an exclusive call is refused after the grace period with the handler's name, and a shared call runs", () =>
    Effect.gen(function*() {
      const tools = [deaf(Latch.makeUnsafe(false)), alone, look]
      const calls = ["deaf", "alone", "look"].map((name) => Message.toolCall(name, name))
      const report = yield* Simulation.run(
        Effect.gen(function*() {
          const { abandoned, messages } = yield* ToolRunner.run(calls, tools, { grace, maxConcurrency: 1 })
          return { abandoned, messages, at: yield* Clock.currentTimeMillis }
        })
      )
      const { abandoned, at, messages } = succeeded(report)
      assert.deepStrictEqual(contents(messages).slice(1), [refused("alone", "it runs alone, and "), "looked"])
      assert.deepStrictEqual(abandoned?.map(({ name }) => name), ["deaf"])
      assert.isAtMost(at, 10 + 2 * grace)
    }))

  it.effect("N-31: behind an exclusive handler that refuses to stop, every later call is refused", () =>
    Effect.gen(function*() {
      const tools = [deaf(Latch.makeUnsafe(false), { concurrency: "exclusive" }), alone, look]
      const calls = ["deaf", "look", "alone"].map((name) => Message.toolCall(name, name))
      const { messages } = succeeded(yield* Simulation.run(ToolRunner.run(calls, tools, { grace })))
      assert.deepStrictEqual(contents(messages).slice(1), [refused("look"), refused("alone", "it runs alone, and ")])
    }))

  it.effect("N-31: once the handler has ended, an exclusive call of the next turn runs", () =>
    Effect.gen(function*() {
      const latch = Latch.makeUnsafe(false)
      const open = Tool.make("open", { parameters: {}, handler: () => latch.open })
      const model = Script.layer([
        [Script.toolCall("a", "deaf"), Script.toolCall("b", "alone"), Script.finish("tool_calls")],
        [Script.toolCall("c", "open"), Script.toolCall("d", "alone"), Script.finish("tool_calls")],
        [Script.text("done"), Script.finish("stop")]
      ])
      const run = Chat.run("go", { tools: [deaf(latch), alone, open], grace })
      const result = succeeded(yield* Simulation.run(Effect.provide(run, model)))
      const [first, second] = result.steps.map(({ toolResults }) => contents(toolResults))
      assert.strictEqual(first?.[1], refused("alone", "it runs alone, and "))
      assert.strictEqual(second?.[1], "ran alone")
      assert.isUndefined(result.abandoned)
    }))
})
