/** The text of Markdown on one line, as the list and sentences for a screen reader show it. */
import { assert, describe, it } from "@effect/vitest"
import { plainOf } from "../../src/studio/parts/plain.ts"

describe("the plain text of Markdown", () => {
  const texts: ReadonlyArray<readonly [markdown: string, text: string]> = [
    ["Both are on their way: **Emma** and *Persuasion*.", "Both are on their way: Emma and Persuasion."],
    ["## Title\n\n- one\n- `two`\n> three", "Title one two three"],
    ["see [docs](https://a.b/c) and ![a picture](x.png)", "see docs and a picture"],
    ["```js\ncode()\n```", "code()"],
    ["2 * 3 * 4, snake_case_name, a_b, C# and 1. one", "2 * 3 * 4, snake_case_name, a_b, C# and 1. one"],
    ["### What a loom needs A **heddle** lifts", "What a loom needs A heddle lifts"],
    ["It is ready. ### Next by `plan.md`, #1", "It is ready. Next by plan.md, #1"],
    ["a sign that is cut **E", "a sign that is cut E"],
    ["<b>no HTML</b>", "<b>no HTML</b>"],
    ["  \n ", ""]
  ]
  for (const [markdown, text] of texts) {
    it(`V-09: plainOf gives the plain text of ${JSON.stringify(markdown)}`, () =>
      assert.strictEqual(plainOf(markdown), text))
  }

  it("V-06: plainOf gives a short text, and takes less than a second for a hostile text", () => {
    assert.strictEqual(plainOf("word ".repeat(100), 20), "word word word word…")
    assert.strictEqual(plainOf("a".repeat(160)), "a".repeat(160))
    for (const piece of ["*a_", "[", "](", "`", "~~~", "> ", "![x]("]) {
      const text = piece.repeat(1_000_000)
      const from = process.cpuUsage()
      assert.isAtMost(plainOf(text).length, 161)
      assert.isBelow(process.cpuUsage(from).user, 1_000_000, piece)
    }
  })
})
