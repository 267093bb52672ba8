/** The words of the chat that no run is needed for: costs and budgets. */
import { assert, describe, it } from "@effect/vitest"
import * as Words from "../../src/studio/chat/words.ts"

describe("Studio's words", () => {
  it("a cost has its currency, and a small cost is not shown as nothing", () => {
    assert.strictEqual(Words.cost({ totalCost: 1.5, currency: "USD" }), "1.50 USD")
    assert.strictEqual(Words.cost({ totalCost: 0.0334 }), "0.0334")
    assert.strictEqual(Words.cost({ totalCost: 0.00004, currency: "EUR" }), "< 0.0001 EUR")
    assert.strictEqual(Words.cost({ totalCost: 0 }), "0.0000")
    assert.strictEqual(Words.cost({ totalTokens: 3 }), "")
  })

  it("the words for spent budget name each bound, and are empty without a bound", () => {
    const spent = { calls: 4, inputTokens: 9_000, outputTokens: 615, money: 250_000 }
    const left = { calls: 20, tokens: 390_385, money: 1_750_000 }
    assert.strictEqual(
      Words.spent({ ...spent, left }),
      "4 of 24 calls, 9,615 of 400,000 tokens, 0.25 of 2 money spent"
    )
    assert.strictEqual(Words.spent({ ...spent, left: {} }), "")
    assert.strictEqual(Words.spent(undefined), "")
  })
})
