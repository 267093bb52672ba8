/** The rules of the guide, as they stand on its page: short, and the same in a run that was killed at any record. */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import { Rule } from "heddle"
import { Script } from "heddle/testing"
import { stripTypeScriptTypes } from "node:module"
import { exampleOf } from "../server/support/guide.ts"
import { kept, killedAtEach, look, type Replies, resumed } from "../support/ruled.ts"

/** Returns the text of a declaration of the guide: its lines up to a line that closes it. */
const textOf = (name: string): string => {
  const { code } = exampleOf("docs/rules.md", `const ${name} = Rule.make("${name}", {`)
  const lines = code.split("\n")
  const start = lines.findIndex((line) => line.startsWith(`const ${name} =`))
  const length = lines.slice(start).indexOf("})") + 1
  assert.isAbove(length, 0, `${name} does not end`)
  return lines.slice(start, start + length).join("\n")
}

/** Makes a rule of the guide, with what else its text names. */
const ruleOf = (name: string, given: Readonly<Record<string, unknown>> = {}): Rule.Rule => {
  const all = { Context, Effect, Rule, ...given }
  return new Function(...Object.keys(all), `${stripTypeScriptTypes(textOf(name))}\nreturn ${name}`)(
    ...Object.values(all)
  )
}

const { finish, text, toolCall } = Script

/** Calls `look` in each of the first turns. */
const looking = (turns: number): Replies => ({ messages }) => {
  const turn = messages.filter(({ role }) => role === "assistant").length
  return turn < turns ? [toolCall(`c${turn}`, "look"), finish("tool_calls")] : [text("done"), finish("stop")]
}

describe("the rules of the guide", () => {
  it("each rule of the guide has fewer than fifteen lines", () => {
    for (const name of ["stuck", "larger", "escalate", "pinned"]) {
      assert.isBelow(textOf(name).split("\n").length, 15, name)
    }
  })

  it.effect("the rule stuck ends a run behind the third equal answer, also when the run is killed at any record", () =>
    Effect.gen(function*() {
      const { asked, result } = yield* killedAtEach(looking(9), () => ({ tools: [look], rules: [ruleOf("stuck")] }))
      assert.strictEqual(asked.length, 3)
      assert.deepStrictEqual(result.outcome, {
        _tag: "RuleEnded",
        rule: "stuck",
        status: "error",
        detail: ["seen", "seen", "seen"]
      })
    }))

  it.effect("the rule larger asks the same models in a run killed at any record", () =>
    Effect.gen(function*() {
      const { asked } = yield* killedAtEach(looking(5), () => ({ tools: [look], rules: [ruleOf("larger")] }))
      assert.deepStrictEqual(asked.map(({ model }) => model), [...Array<undefined>(4), "large", "large"])
    }))

  it.effect("the rule pinned asks its noted model in a run killed at any record and does not ask its service again", () =>
    Effect.gen(function*() {
      let prices = 0
      const given = (model: string) => ({
        tools: [look],
        rules: [ruleOf("pinned", { cheapest: Effect.sync(() => (prices++, model)) })]
      })
      const whole = yield* kept(looking(2), given("small"))
      assert.deepStrictEqual([whole.asked.map(({ model }) => model), prices], [["small", "small", "small"], 1])
      for (let length = 2; length < whole.records.length; length++) {
        const before = whole.records.slice(0, length)
        const isNoted = before.some(({ _tag }) => _tag === "StepPrepared")
        prices = 0
        // The service would name another model by now.
        const { asked } = yield* resumed(looking(2), given("other"), before)
        const where = `killed behind record ${length}, ${before.at(-1)?._tag}`
        assert.strictEqual(prices, isNoted ? 0 : 1, where)
        assert.deepStrictEqual(
          new Set(asked.map(({ model }) => model)),
          new Set(asked.length === 0 ? [] : [isNoted ? "small" : "other"]),
          where
        )
      }
    }))
})
