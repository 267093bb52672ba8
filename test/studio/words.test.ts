/** The words of the chat that no run is needed for: costs, and lines of Markdown. */
import { assert, describe, it } from "@effect/vitest"
import * as Words from "../../src/studio/chat/words.ts"

describe("words", () => {
  it("a cost has its currency, and a small one is not nothing", () => {
    assert.strictEqual(Words.cost({ totalCost: 1.5, currency: "USD" }), "1.50 USD")
    assert.strictEqual(Words.cost({ totalCost: 0.0334 }), "0.0334")
    assert.strictEqual(Words.cost({ totalCost: 0.00004, currency: "EUR" }), "< 0.0001 EUR")
    assert.strictEqual(Words.cost({ totalCost: 0 }), "0.0000")
    assert.strictEqual(Words.cost({ totalTokens: 3 }), "")
  })

  it("a line of Markdown loses the marks of headings, emphasis and code, and nothing else", () => {
    assert.strictEqual(Words.plain("### What a loom needs A **heddle** lifts"), "What a loom needs A heddle lifts")
    assert.strictEqual(Words.plain("The shop fills **14 of 16** by `plan.md`"), "The shop fills 14 of 16 by plan.md")
    assert.strictEqual(Words.plain("2 * 3 in snake_case, C# and #1"), "2 * 3 in snake_case, C# and #1")
  })
})
