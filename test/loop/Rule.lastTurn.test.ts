/** The rule of a last turn, in which the model has no tools. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Chat, Policy, Rule } from "heddle"
import { Script } from "heddle/testing"
import { killedAtEach, look, type Replies } from "../support/ruled.ts"
import { seamOf, stepOf } from "../support/seam.ts"

const steps = [stepOf("", "c0")]

const { finish, text, toolCall } = Script

describe("the rule lastTurn", () => {
  it.effect("the rule lastTurn offers no tool in a last step and still describes the tools", () =>
    Effect.gen(function*() {
      const { asked, base } = seamOf({ tools: [look], toolChoice: "required" })
      for (const last of ["max_turns", "deadline", "enough"]) {
        const prepared = yield* asked({ steps, last })
        assert.deepStrictEqual(prepared?._tag === "Ask" && prepared.ask.tools, new Map())
        assert.deepStrictEqual(prepared?._tag === "Ask" && prepared.ask.template, {
          ...base.template,
          toolChoice: "none"
        })
      }
      const open = yield* asked({ steps: [] })
      assert.strictEqual(open?._tag === "Ask" && open.ask, base)
    }))

  it.effect("the rule lastTurn leaves a request without tools unchanged", () =>
    Effect.gen(function*() {
      const { asked, base } = seamOf({})
      const prepared = yield* asked({ steps, last: "max_turns" })
      assert.strictEqual(prepared?._tag === "Ask" && prepared.ask.template, base.template)
    }))

  it.effect("the rule lastTurn follows the caller's rules, any of which may make a step the last", () =>
    Effect.gen(function*() {
      const closing = Rule.make("closing", { ask: () => Rule.last("enough", { note: 1 }) })
      const { asked, names } = seamOf({ tools: [look], rules: [closing] })
      assert.isBelow(names.indexOf("closing"), names.indexOf("lastTurn"))
      const prepared = yield* asked()
      assert.deepInclude(prepared, { notes: { closing: 1, last: "enough" } })
      assert.strictEqual(prepared?._tag === "Ask" && prepared.ask.template.toolChoice, "none")
    }))

  const closing = Rule.make("closing", { next: (next) => next._tag === "Go" ? Rule.last("enough") : next })

  it.effect("the rule lastTurn answers a call made in a last step, under any policy for unknown tools", () =>
    Effect.gen(function*() {
      const policy = { ...Policy.standard, unknownTool: "failTurn", start: "afterTurn" } as const
      const turn = [toolCall("c0", "look"), finish("tool_calls")]
      const result = yield* Chat.run("go", { tools: [look], rules: [closing], policy }).pipe(
        Effect.provide(Script.layer([turn, [toolCall("c1", "look"), finish("tool_calls")]]))
      )
      assert.deepStrictEqual(result.outcome, { _tag: "RuleEnded", rule: "enough", status: "completed" })
      assert.strictEqual(result.finalized, "enough")
      const answer = result.steps[1]?.toolResults[0]
      assert.isTrue(answer?.isError)
      assert.include(String(answer?.content), "not offered in this step")
    }))

  it.effect("the rule lastTurn makes the same step the last in a run killed at any record", () =>
    Effect.gen(function*() {
      const replies: Replies = ({ toolChoice }) =>
        toolChoice === "none" ? [text("done"), finish("stop")] : [toolCall("c0", "look"), finish("tool_calls")]
      const { asked, result } = yield* killedAtEach(replies, () => ({ tools: [look], rules: [closing] }))
      assert.deepStrictEqual(asked.map(({ toolChoice }) => toolChoice), [undefined, "none"])
      assert.strictEqual(result.finalized, "enough")
    }))
})
