/** What a policy that asks for an abort does when a call fails: the calls beside it are stopped at once. */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import { Chat, Message, Policy, Tool, ToolRunner } from "heddle"
import { Script, Simulation } from "heddle/testing"
import { succeeded } from "../support/runs.ts"

/** A tool that fails once the calls beside it have started. */
const failing = (handler: (args: {}, call: Tool.CallContext) => Effect.Effect<unknown, unknown>) =>
  Tool.make("failing", {
    parameters: {},
    handler: (args, call) => Effect.andThen(Effect.sleep(1), handler(args, call))
  })

const refused = new Error("refused")

const failures = {
  "a rejected call.promise": failing((_args, call) => call.promise(() => Promise.reject(refused))),
  "a rejected Effect.tryPromise": failing(() => Effect.tryPromise(() => Promise.reject(refused))),
  "Effect.fail": failing(() => Effect.fail("no")),
  "a defect": failing(() => Effect.die(refused))
}

const slow = (interrupt: "cancel" | "block") =>
  Tool.make(interrupt, { parameters: {}, interrupt, handler: () => Effect.as(Effect.sleep(300), "whole") })

const calls = ["failing", "cancel", "block"].map((name) => Message.toolCall(name, name))

type Siblings = Partial<Policy.Policy["siblings"]>

/** When the run is over, and which of the slow calls came to their end. */
const over = (tool: Tool.Any, siblings: Siblings) =>
  Effect.gen(function*() {
    const policy = { ...Policy.standard, siblings: { ...Policy.standard.siblings, ...siblings } }
    const tools = [tool, slow("cancel"), slow("block")]
    const report = yield* Simulation.run(
      Effect.gen(function*() {
        const { messages } = yield* ToolRunner.run(calls, tools, { policy })
        return { whole: messages.map(({ content }) => content === "whole"), at: yield* Clock.currentTimeMillis }
      })
    )
    return succeeded(report)
  })

describe("fail fast", () => {
  for (const [name, tool] of Object.entries(failures)) {
    it.effect(`N-29: under abortAll ${name} stops every call beside it at once`, () =>
      Effect.gen(function*() {
        assert.deepStrictEqual(yield* over(tool, { onToolError: "abortAll" }), { whole: [false, false, false], at: 1 })
      }))

    it.effect(`N-29: under abortCancelable ${name} stops only interruptible calls`, () =>
      Effect.gen(function*() {
        assert.deepStrictEqual(yield* over(tool, { onToolError: "abortCancelable" }), {
          whole: [false, false, true],
          at: 300
        })
      }))

    it.effect(`N-29: by default ${name} stops no other call`, () =>
      Effect.gen(function*() {
        assert.deepStrictEqual(yield* over(tool, {}), { whole: [false, true, true], at: 300 })
      }))
  }

  it.effect("N-29: a failure reported by a handler stops no other call where only crashes count", () =>
    Effect.gen(function*() {
      for (const [name, tool] of Object.entries(failures)) {
        const { whole } = yield* over(tool, { onToolError: "abortAll", trigger: "crashed" })
        assert.deepStrictEqual(whole, name === "a defect" ? [false, false, false] : [false, true, true], name)
      }
    }))

  it.effect("N-29: a failure stops every call beside it under a policy without trigger", () =>
    Effect.gen(function*() {
      const siblings = { onToolError: "abortAll" } as Policy.Policy["siblings"]
      const run = ToolRunner.run(calls, [failures["a rejected call.promise"], slow("cancel"), slow("block")], {
        policy: { ...Policy.standard, siblings }
      })
      const { messages } = succeeded(yield* Simulation.run(run))
      assert.deepStrictEqual(messages.map(({ content }) => content === "whole"), [false, false, false])
    }))

  it.effect("N-29: a run continues with the answers after an abort, and the error policy is asked once", () =>
    Effect.gen(function*() {
      const policy = {
        ...Policy.standard,
        siblings: { ...Policy.standard.siblings, onToolError: "abortAll", queued: "skip" }
      } as const
      const model = Script.layer([
        [...calls.map(({ id, name }) => Script.toolCall(id, name)), Script.finish("tool_calls")],
        [Script.text("done"), Script.finish("stop")]
      ])
      const asked: Array<string> = []
      const run = Chat.run("go", {
        tools: [failures["a rejected call.promise"], slow("cancel"), slow("block")],
        policy,
        onToolError: (call, _error) =>
          Effect.sync(() => {
            asked.push(call.id)
            return Tool.ErrorDecision.continue("failed")
          })
      })
      const result = succeeded(yield* Simulation.run(Effect.provide(run, model)))
      assert.strictEqual(result.outcome._tag, "Completed")
      assert.deepStrictEqual(asked, ["failing"])
    }))
})
