import { assert, describe, it } from "@effect/vitest"
import { TextBuffer } from "../../src/internal/fold/textBuffer.ts"

const piece = (index: number): string => `${index},`

describe("a text that grows by pieces", () => {
  it("is what it was made of, however many there were and whenever it was read", () => {
    for (const every of [1, 3, 63, 64, 65, 1000]) {
      const text = new TextBuffer()
      let expected = ""
      for (let index = 0; index < 300; index++) {
        text.add(piece(index))
        expected += piece(index)
        if (index % every === 0) assert.strictEqual(text.toString(), expected)
      }
      assert.strictEqual(text.toString(), expected)
    }
  })

  it("begins empty, also with pieces that are", () => {
    const text = new TextBuffer()
    assert.isTrue(text.isEmpty)
    text.add("")
    assert.isTrue(text.isEmpty)
    text.add("a")
    text.add("")
    text.add("b")
    assert.isFalse(text.isEmpty)
    assert.strictEqual(text.toString(), "ab")
  })

  it("is not changed by whoever reads it", () => {
    const text = new TextBuffer()
    for (const piece of ["a", "b", "c"]) text.add(piece)
    const frozen = Object.freeze(text)
    assert.strictEqual(frozen.toString(), "abc")
    assert.strictEqual(frozen.copy().toString(), "abc")
  })

  it("leaves a copy alone", () => {
    const text = new TextBuffer("a")
    text.add("b")
    const copy = text.copy()
    text.add("c")
    copy.add("d")
    assert.strictEqual(text.toString(), "abc")
    assert.strictEqual(copy.toString(), "abd")
  })
})
