/** The rule of the bound of turns. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Chat, Policy, Rule } from "heddle"
import { Script } from "heddle/testing"
import { killedAtEach, look, type Replies } from "../support/ruled.ts"
import { answered, seamOf, stepOf } from "../support/seam.ts"

const steps = [stepOf("", "c0"), stepOf("", "c1")]

const closing = { ...Policy.standard, onMaxTurns: "finalize" } as const

describe("the rule maxTurns", () => {
  it.effect("the rule maxTurns ends the run behind its last turn or asks for an answer first", () =>
    Effect.gen(function*() {
      const nextOf = (maxTurns: number, policy: Policy.Policy, last?: string) =>
        Effect.map(seamOf({ maxTurns, policy }).decided(undefined, { steps, last }), (decided) => decided?.next)
      const ended = { _tag: "End", outcome: { _tag: "MaxTurns", maxTurns: 2 } }
      assert.deepStrictEqual(yield* nextOf(3, Policy.standard), { _tag: "Go" })
      assert.deepStrictEqual(yield* nextOf(2, { ...Policy.standard, onMaxTurns: "halt" }), ended as Rule.Next)
      assert.deepStrictEqual(yield* nextOf(2, closing), { _tag: "Last", by: "max_turns" })
      assert.deepStrictEqual(yield* nextOf(2, closing, "max_turns"), ended as Rule.Next)
    }))

  it.effect("the rule maxTurns takes the bound of the options before the bound of the policy, and eight without either", () =>
    Effect.gen(function*() {
      const policy = { ...Policy.standard, maxTurns: 2, onMaxTurns: "halt" } as const
      const tagOf = (options: object, all: ReadonlyArray<typeof steps[number]>) =>
        Effect.map(seamOf(options).decided(undefined, { steps: all }), (decided) => decided?.next._tag)
      assert.strictEqual(yield* tagOf({ policy }, steps), "End")
      assert.strictEqual(yield* tagOf({ policy, maxTurns: 3 }, steps), "Go")
      const many = Array.from({ length: 8 }, (_, index) => stepOf("", `c${index}`))
      assert.strictEqual(yield* tagOf({}, many.slice(1)), "Go")
      assert.notStrictEqual(yield* tagOf({}, many), "Go")
    }))

  it.effect("the rule maxTurns ends a run that calls tools in its last step with the reason of that last step", () =>
    Effect.gen(function*() {
      const outcomeOf = (last: string) =>
        Effect.map(seamOf({ maxTurns: 8 }).decided(undefined, { steps, last }), (decided) => decided?.next)
      assert.deepStrictEqual(yield* outcomeOf("deadline"), {
        _tag: "End",
        outcome: { _tag: "Cancelled", reason: "deadline" }
      })
      assert.deepStrictEqual(yield* outcomeOf("calls"), {
        _tag: "End",
        outcome: { _tag: "RuleEnded", rule: "calls", status: "completed" }
      })
    }))

  it.effect("the rule maxTurns leaves an earlier end unchanged", () =>
    Effect.gen(function*() {
      const { decided } = seamOf({ maxTurns: 2, policy: closing })
      assert.deepStrictEqual((yield* decided(answered, { steps }))?.next, { _tag: "End", outcome: answered })
    }))

  it.effect("the rule maxTurns bounds the caller's rules, whose messages the last step keeps", () =>
    Effect.gen(function*() {
      const messages = [{ role: "user", content: "More.", metadata: {} }] as const
      const more = Rule.make("more", { next: () => Rule.go({ messages, note: 1 }) })
      const { decided } = seamOf({ maxTurns: 2, policy: closing, rules: [more] })
      assert.deepStrictEqual(yield* decided(answered, { steps }), {
        next: { _tag: "Last", by: "max_turns", messages },
        notes: { more: 1, last: "max_turns" }
      })
    }))

  it.effect("the rule maxTurns bounds a last step of the caller's rules", () =>
    Effect.gen(function*() {
      const last = Rule.make("closing", { next: () => Rule.last("enough") })
      const nextOf = (maxTurns: number, onMaxTurns: "finalize" | "halt") =>
        Effect.map(
          seamOf({ maxTurns, policy: { ...Policy.standard, onMaxTurns }, rules: [last] }).decided(undefined, { steps }),
          (decided) => decided?.next
        )
      assert.deepStrictEqual(yield* nextOf(3, "halt"), { _tag: "Last", by: "enough" })
      assert.deepStrictEqual(yield* nextOf(2, "finalize"), { _tag: "Last", by: "enough" })
      assert.deepStrictEqual(yield* nextOf(2, "halt"), { _tag: "End", outcome: { _tag: "MaxTurns", maxTurns: 2 } })
    }))

  it.effect("a run whose rule asks for a last step behind each step ends after one last step", () =>
    Effect.gen(function*() {
      const waits = [<A>(value: A) => value, <A>(value: A) => Effect.as(Effect.yieldNow, value)] as const
      for (const wait of waits) {
        const last = Rule.make("closing", { next: () => wait(Rule.last("enough")) })
        const turn = [Script.toolCall("c0", "look"), Script.finish("tool_calls")]
        const answer = [Script.text("done"), Script.finish("stop")]
        const outcomeOf = (...turns: ReadonlyArray<ReadonlyArray<Script.Entry>>) =>
          Effect.map(
            Effect.provide(Chat.run("go", { tools: [look], rules: [last] }), Script.layer(turns as Script.Input)),
            ({ outcome }) => outcome
          )
        assert.deepStrictEqual(yield* outcomeOf(turn, answer), answered)
        assert.deepStrictEqual(yield* outcomeOf(turn, turn), { _tag: "RuleEnded", rule: "enough", status: "completed" })
      }
    }))

  it("Rule.last refuses a reason that the library uses or that is not a name", () => {
    for (const reason of ["max_turns", "deadline", "structured", "last", "error", "", "two words", 1 as never]) {
      assert.throws(() => Rule.last(reason), /^Rule\.last: /)
    }
  })

  for (const onMaxTurns of ["finalize", "halt"] as const) {
    it.effect(`the rule maxTurns ends a run killed at any record in the same way (${onMaxTurns})`, () =>
      Effect.gen(function*() {
        const replies: Replies = ({ messages, toolChoice }) =>
          toolChoice === "none"
            ? [Script.text("done"), Script.finish("stop")]
            : [Script.toolCall(`c${messages.length}`, "look"), Script.finish("tool_calls")]
        const policy = { ...Policy.standard, onMaxTurns }
        const given = () => ({ tools: [look], rules: [], maxTurns: 2, policy })
        const { asked, result } = yield* killedAtEach(replies, given)
        assert.deepStrictEqual(
          [asked.length, result.outcome._tag, result.finalized],
          onMaxTurns === "halt" ? [2, "MaxTurns", undefined] : [3, "Completed", "max_turns"]
        )
      }))
  }
})
