/** The rule of the caller's condition. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Rule } from "heddle"
import { Script } from "heddle/testing"
import { killedAtEach, look, type Replies } from "../support/ruled.ts"
import { answered, seamOf, stepOf } from "../support/seam.ts"

const steps = [stepOf("", "c0"), stepOf("", "c1")]

describe("the rule haltWhen", () => {
  it.effect("the rule haltWhen ends the run behind the step for which its condition holds, at once or after a wait", () =>
    Effect.gen(function*() {
      const seen: Array<unknown> = []
      const conditions = [(step: unknown) => {
        seen.push(step)
        return seen.length < 3
      }, () => Effect.as(Effect.yieldNow, true)]
      const { decided } = seamOf({ haltWhen: conditions[0]! })
      const halted = { next: { _tag: "End", outcome: { _tag: "HaltWhen", stepIndex: 1 } }, notes: {} } as const
      assert.deepStrictEqual(yield* decided(undefined, { steps }), halted)
      assert.deepStrictEqual(yield* seamOf({ haltWhen: conditions[1]! }).decided(undefined, { steps }), halted)
      yield* decided(undefined, { steps })
      assert.deepStrictEqual((yield* decided(undefined, { steps }))?.next, { _tag: "Go" })
      assert.deepStrictEqual(seen, [steps[1], steps[1], steps[1]])
    }))

  it.effect("the rule haltWhen asks no condition behind a step that ends the run by itself or behind a second pass", () =>
    Effect.gen(function*() {
      const { decided } = seamOf({ haltWhen: () => assert.fail("it is asked") })
      assert.deepStrictEqual((yield* decided(answered, { steps }))?.next, { _tag: "End", outcome: answered })
      yield* decided(undefined, { steps, last: "structured" })
    }))

  it.effect("the rule haltWhen precedes the caller's rules, which may continue the run", () =>
    Effect.gen(function*() {
      const seen: Array<Rule.Next> = []
      const on = Rule.make("on", { next: (next) => (seen.push(next), Rule.go()) })
      const { decided, names } = seamOf({ haltWhen: () => true, rules: [on] })
      assert.isBelow(names.indexOf("haltWhen"), names.indexOf("on"))
      assert.deepStrictEqual((yield* decided(undefined, { steps }))?.next, { _tag: "Go" })
      assert.deepStrictEqual(seen, [{ _tag: "End", outcome: { _tag: "HaltWhen", stepIndex: 1 } }])
    }))

  it.effect("the rule haltWhen ends a run killed at any record behind the same step", () =>
    Effect.gen(function*() {
      const replies: Replies = ({ messages }) => [
        Script.toolCall(`c${messages.length}`, "look"),
        Script.finish("tool_calls")
      ]
      const haltWhen = ({ thread }: { readonly thread: { readonly messages: ReadonlyArray<unknown> } }) =>
        thread.messages.length > 4
      const { asked, result } = yield* killedAtEach(replies, () => ({ tools: [look], rules: [], haltWhen }))
      assert.deepStrictEqual([asked.length, result.outcome], [2, { _tag: "HaltWhen", stepIndex: 1 }])
    }))
})
