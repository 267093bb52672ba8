/** The rule that forces a call in the first turn only. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Policy } from "heddle"
import { Script } from "heddle/testing"
import { killedAtEach, look, type Replies } from "../support/ruled.ts"
import { seamOf, stepOf } from "../support/seam.ts"

const choiceIn = (prepared: object | undefined) =>
  (prepared as { readonly ask: { readonly template: { readonly toolChoice?: unknown } } }).ask.template.toolChoice

describe("the rule toolChoice", () => {
  it.effect("the rule toolChoice forces the first turn and no later turn", () =>
    Effect.gen(function*() {
      const steps = [stepOf("", "c0")]
      for (const toolChoice of ["required", { name: "look" }] as const) {
        const { asked } = seamOf({ tools: [look], toolChoice })
        assert.deepStrictEqual(choiceIn(yield* asked()), toolChoice)
        assert.deepStrictEqual(choiceIn(yield* asked({ attempt: 2 })), toolChoice)
        assert.strictEqual(choiceIn(yield* asked({ steps })), "auto")
      }
    }))

  it.effect("the rule toolChoice changes nothing for a choice that forces nothing or under the policy that forces every turn", () =>
    Effect.gen(function*() {
      const steps = [stepOf("", "c0")]
      for (const toolChoice of ["auto", "none"] as const) {
        const { asked, base } = seamOf({ tools: [look], toolChoice })
        assert.strictEqual((yield* asked({ steps }) as Effect.Effect<{ readonly ask: unknown }>).ask, base)
      }
      const policy = { ...Policy.standard, toolChoice: "every" } as const
      const { asked } = seamOf({ tools: [look], toolChoice: "required", policy })
      assert.strictEqual(choiceIn(yield* asked({ steps })), "required")
    }))

  it.effect("the rule toolChoice forces nothing when an earlier run has made the first request", () =>
    Effect.gen(function*() {
      const { asked } = seamOf({ tools: [look], toolChoice: "required" }, { hasBegun: true })
      assert.strictEqual(choiceIn(yield* asked()), "auto")
    }))

  it.effect("the rule toolChoice forces the same turns in a run killed at any record", () =>
    Effect.gen(function*() {
      const replies: Replies = ({ toolChoice }) =>
        toolChoice === "required"
          ? [Script.toolCall("c0", "look"), Script.finish("tool_calls")]
          : [Script.text("done"), Script.finish("stop")]
      const { asked } = yield* killedAtEach(replies, () => ({ tools: [look], rules: [], toolChoice: "required" }))
      assert.deepStrictEqual(asked.map(({ toolChoice }) => toolChoice), ["required", "auto"])
    }))
})
