/** The words of the chat that no run is needed for: costs. */
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
})
