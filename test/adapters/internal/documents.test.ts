/**
 * JSON objects out of the lines of a body: found wherever they end, in the order of the lines, and never twice.
 */
import { assert, describe, it } from "@effect/vitest"
import { Documents, Parser, type SseEvent } from "../../../src/adapters/internal/sse.ts"

const bytes = (text: string) => new TextEncoder().encode(text)

/** What a parser makes of a body that arrives in reads of the given size. */
const parsed = (text: string, size: number, maximum = 1000) => {
  const parser = new Parser(maximum, new Documents())
  const events: Array<SseEvent> = []
  const all = bytes(text)
  for (let start = 0; start < all.length; start += size) events.push(...parser.feed(all.subarray(start, start + size)))
  events.push(...parser.end())
  return { data: events.map((event) => event.data), stray: parser.stray, isTooLong: parser.isTooLong }
}

const values = [
  { a: "}{ \" \\", b: [{ c: {} }] },
  {},
  { text: "data: x\n: y", "ø": "🌤" },
  { deep: { deeper: [[{ deepest: null }]] } }
]

describe("Documents", () => {
  const spellings: ReadonlyArray<readonly [name: string, text: string]> = [
    ["a pretty list", JSON.stringify(values, null, 2)],
    ["a list on one line", JSON.stringify(values)],
    ["objects one after the other", values.map((value) => JSON.stringify(value, null, 1)).join("")],
    ["a list written piece by piece", `[${values.map((value) => JSON.stringify(value, null, 2)).join("\n,\r\n")}\n]\n`]
  ]

  for (const [name, text] of spellings) {
    it(`R-349: the parser finds every object of ${name}, at any cut`, () => {
      for (const size of [1, 2, 3, 7, 1000]) {
        const { data, stray } = parsed(text, size)
        assert.deepStrictEqual(data.map((item) => JSON.parse(item)), values, `reads of ${size}`)
        assert.strictEqual(stray, "")
      }
    })
  }

  it("R-349: the parser reads objects and events in their order", () => {
    const text = `data: 1\n\n{\n  "a": 1\n}\ndata: 2\ndata: 3\n{"b":2}\n\n: comment\ndata: 4\n\n`
    for (const size of [1, 5, 1000]) {
      assert.deepStrictEqual(parsed(text, size).data, ["1", "{\n  \"a\": 1\n}", "2\n3", "{\"b\":2}", "4"])
    }
  })

  it("R-349: the parser keeps other text as stray, and so an incomplete object", () => {
    assert.deepStrictEqual(parsed("<html>\n{\"a\":1}\nnot { it }\n", 1), {
      data: ["{\"a\":1}"],
      stray: "<html>\nnot { it }\n",
      isTooLong: false
    })
    const cut = parsed("[{\"a\":1},\n{\"b\": {\n\"c", 1)
    assert.deepStrictEqual(cut.data, ["{\"a\":1}"])
    assert.strictEqual(cut.stray, "{\"b\": {\n\"c\n")
    assert.deepStrictEqual(parsed("}}]\n{\"a\":1}", 1).data, ["{\"a\":1}"])
  })

  it("R-353: the parser rejects an object over the length limit, and not many short objects", () => {
    const { isTooLong } = parsed(`{\n${"\"x\": 1,\n".repeat(200)}`, 64)
    assert.isTrue(isTooLong)
    assert.isFalse(parsed("{\n\"x\": 1\n},\n".repeat(200), 64).isTooLong)
  })
})
