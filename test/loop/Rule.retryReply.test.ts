/** The rule that asks for a broken reply again. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import { Adapter, Rule } from "heddle"
import { Script } from "heddle/testing"
import { killedAtEach, look, type Replies } from "../support/ruled.ts"
import { seamOf } from "../support/seam.ts"

const retryReply = Schedule.max([Schedule.spaced("100 millis"), Schedule.recurs(2)])

const errorOf = (reason: Adapter.AdapterError["reason"], retryAfterMillis?: number) =>
  new Adapter.AdapterError({ reason, detail: "no", ...(retryAfterMillis === undefined ? {} : { retryAfterMillis }) })

const busy = errorOf("rate_limited")

describe("the rule retryReply", () => {
  it.effect("the rule retryReply asks again as often as its schedule says, anew in each step", () =>
    Effect.gen(function*() {
      const { replied } = seamOf({ retryReply })
      const askedAgain = (stepIndex: number, error: unknown = busy) =>
        Effect.map(replied({ error }, { stepIndex }), ({ again }) => again?.after)
      assert.deepStrictEqual([yield* askedAgain(0), yield* askedAgain(0), yield* askedAgain(0)], [100, 100, undefined])
      assert.deepStrictEqual([yield* askedAgain(1), yield* askedAgain(1), yield* askedAgain(1)], [100, 100, undefined])
      assert.strictEqual(yield* askedAgain(2, errorOf("rate_limited", 5000)), 5000)
      assert.strictEqual(yield* askedAgain(3, errorOf("malformed_response")), 100)
    }))

  it.effect("the rule retryReply keeps a reply that is whole, fails for good or may not be repeated", () =>
    Effect.gen(function*() {
      const { replied } = seamOf({ retryReply })
      const kept: ReadonlyArray<Partial<Rule.Replied>> = [
        {},
        { error: new Error("a defect") },
        { error: errorOf("invalid_request") },
        { error: errorOf("authentication_failed") },
        { error: busy, mayRepeat: false }
      ]
      for (const reply of kept) assert.deepStrictEqual(yield* replied(reply), { again: undefined, notes: {} })
    }))

  it.effect("the rule retryReply follows the caller's rules, which may ask again first", () =>
    Effect.gen(function*() {
      const own = Rule.make("own", {
        reply: ({ error }) => error === undefined ? Rule.keep() : Rule.askAgain({ note: 1 })
      })
      const { names, replied } = seamOf({ retryReply, rules: [own] })
      assert.strictEqual(names.at(-1), "retryReply")
      assert.deepStrictEqual(yield* replied({ error: busy }), {
        again: { _tag: "AskAgain", after: 0, note: 1 },
        notes: { own: 1 }
      })
    }))

  it.effect("the rule retryReply leaves nothing of a broken reply to a run killed at any record", () =>
    Effect.gen(function*() {
      let opens = 0
      // The first reply to the first message is broken in each process.
      const replies: Replies = ({ messages }) =>
        messages.length < 2 && opens++ === 0
          ? [Script.text("do"), Script.streamError("network_error")]
          : messages.length < 2
          ? [Script.toolCall("c0", "look"), Script.finish("tool_calls")]
          : [Script.text("done"), Script.finish("stop")]
      const given = () => {
        opens = 0
        return { tools: [look], rules: [], retryReply: Schedule.recurs(1) }
      }
      const { asked, result } = yield* killedAtEach(replies, given)
      assert.strictEqual(asked.length, 3)
      assert.strictEqual(result.finalResponse?.outputText, "done")
    }))
})
