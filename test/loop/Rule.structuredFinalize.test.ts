/** The rule of a structured answer: a pass with tools, and one more request in the form of the answer. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type { Event } from "heddle"
import { Script } from "heddle/testing"
import { killedAtEach, look, type Replies } from "../support/ruled.ts"
import { answered, seamOf, stepOf } from "../support/seam.ts"

const responseFormat = { type: "json_object" } as const

const options = {
  tools: [look],
  toolChoice: "auto",
  responseFormat,
  structuredFinalize: true,
  finalizePrompt: "JSON."
} as const

const steps = [stepOf("done")]

describe("the rule structuredFinalize", () => {
  it.effect("the rule structuredFinalize keeps the format out of the first pass and the tools out of the second pass", () =>
    Effect.gen(function*() {
      const { asked, base } = seamOf(options)
      const first = yield* asked()
      assert.deepInclude(first, { _tag: "Ask", notes: {} })
      const { responseFormat: _, ...template } = base.template
      assert.deepStrictEqual(first?._tag === "Ask" && first.ask.template, template)
      const second = yield* asked({ steps, last: "structured" })
      assert.deepStrictEqual(second?._tag === "Ask" && second.ask.template, { responseFormat, tools: [] })
      assert.deepStrictEqual(second?._tag === "Ask" && second.ask.tools, new Map())
    }))

  it.effect("the rule structuredFinalize notes the outcome of the first pass and adds the prompt for the second pass", () =>
    Effect.gen(function*() {
      const ends: ReadonlyArray<Event.Outcome> = [
        answered,
        { _tag: "MaxTurns", maxTurns: 1 },
        { _tag: "HaltWhen", stepIndex: 0 }
      ]
      for (const outcome of ends) {
        assert.deepStrictEqual(yield* seamOf(options).decided(outcome, { steps }), {
          next: {
            _tag: "Last",
            by: "structured",
            messages: [{ role: "user", content: "JSON.", metadata: {} }]
          },
          notes: { structuredFinalize: outcome, last: "structured" }
        } as never)
      }
      const silent = yield* seamOf({ ...options, finalizePrompt: "" }).decided(answered, { steps })
      assert.deepStrictEqual(silent?.next, { _tag: "Last", by: "structured", messages: [] })
    }))

  it.effect("the rule structuredFinalize makes no second pass behind an end without an answer or behind the second pass", () =>
    Effect.gen(function*() {
      const { decided } = seamOf(options)
      const ends: ReadonlyArray<Event.Outcome> = [
        { _tag: "Cancelled", reason: "cancel" },
        { _tag: "Failed", error: "no" },
        { _tag: "Halted", reason: "enough", haltToolCallId: "c0", haltResult: 1 },
        { _tag: "RuleEnded", rule: "other", status: "completed" }
      ]
      for (const outcome of ends) {
        assert.deepStrictEqual((yield* decided(outcome, { steps }))?.next, { _tag: "End", outcome })
      }
      const second = yield* decided(answered, { steps, last: "structured" })
      assert.deepStrictEqual(second?.next, { _tag: "End", outcome: answered })
    }))

  it.effect("the rule structuredFinalize asks for the answer once in a run killed at any record", () =>
    Effect.gen(function*() {
      const replies: Replies = ({ messages, responseFormat }) =>
        responseFormat !== undefined
          ? [Script.text("{}"), Script.finish("stop")]
          : messages.length < 2
          ? [Script.toolCall("c0", "look"), Script.finish("tool_calls")]
          : [Script.text("done"), Script.finish("stop")]
      const { asked, result } = yield* killedAtEach(replies, () => ({ ...options, rules: [] }))
      assert.deepStrictEqual(asked.map((request) => request.responseFormat), [undefined, undefined, responseFormat])
      assert.deepStrictEqual([result.finalResponse?.outputText, result.outcome], ["{}", answered])
    }))
})
