/** The rule of a deadline's reserve: behind it, the model answers without tools. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as TestClock from "effect/testing/TestClock"
import { Rule } from "heddle"
import { Script } from "heddle/testing"
import { kept, look, type Replies, resumed } from "../support/ruled.ts"
import { seamOf, stepOf } from "../support/seam.ts"

const steps = [stepOf("", "c0")]

describe("the rule deadline", () => {
  it.effect("the rule deadline makes the step the last once the time for tools is over", () =>
    Effect.gen(function*() {
      let now = 499
      const { asked, base } = seamOf({ tools: [look] }, { now: () => now, toolsUntil: 500 })
      const before = yield* asked({ steps })
      assert.strictEqual(before?._tag === "Ask" && before.ask, base)
      now = 500
      const last = yield* asked({ steps })
      assert.deepInclude(last, { notes: { last: "deadline" } })
      assert.strictEqual(last?._tag === "Ask" && last.ask.template.toolChoice, "none")
    }))

  it.effect("the rule deadline changes nothing without tools, in a last step or for a recorded reply", () =>
    Effect.gen(function*() {
      const late = { now: () => 500, toolsUntil: 500 }
      const notesOf = (options: object, more: Partial<Rule.At>) =>
        Effect.map(seamOf(options, late).asked({ steps, ...more }), (asked) => asked?._tag === "Ask" && asked.notes)
      assert.deepStrictEqual(yield* notesOf({}, {}), {})
      assert.deepStrictEqual(yield* notesOf({ tools: [look] }, { isRepeated: true }), {})
      assert.deepStrictEqual(yield* notesOf({ tools: [look] }, { last: "max_turns" }), {})
      assert.deepStrictEqual(yield* notesOf({ tools: [look] }, {}), { last: "deadline" })
    }))

  it.effect("the rule deadline decides the same in a run killed at any record, whatever the time is by then", () =>
    Effect.gen(function*() {
      const replies: Replies = ({ messages, toolChoice }) =>
        toolChoice === "none" || messages.length > 2
          ? [Script.text("done"), Script.finish("stop")]
          : [Script.toolCall("c0", "look"), Script.finish("tool_calls")]
      // The first step takes 600 milliseconds.
      const slow = Rule.make("slow", { next: (next) => Effect.as(TestClock.setTime(600), next) })
      const given = { tools: [look], rules: [slow], deadline: { after: 1000, reserve: 500 } }
      const whole = yield* kept(replies, given)
      assert.strictEqual(whole.result.finalized, "deadline")
      assert.deepStrictEqual(whole.asked.map(({ toolChoice }) => toolChoice), [undefined, "none"])
      for (let length = 2; length < whole.records.length; length++) {
        const before = whole.records.slice(0, length)
        const isNoted = before.some(({ _tag }) => _tag === "StepPrepared")
        const isBehind = before.some(({ _tag }) => _tag === "StepCompleted")
        yield* TestClock.setTime(isBehind && !isNoted ? 600 : 0)
        const { asked, result } = yield* resumed(replies, given, before)
        const where = `killed behind record ${length}, ${before.at(-1)?._tag}`
        assert.strictEqual(result.finalized, "deadline", where)
        if (asked.length > 0) assert.strictEqual(asked.at(-1)?.toolChoice, "none", where)
      }
    }))
})
