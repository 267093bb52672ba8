/**
 * Bytes into text: cut anywhere, and wrong anywhere.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Sse from "../../../src/adapters/internal/sse.ts"

/** What a decoder reads of bytes in reads of a size, and whether it found them wrong. */
const decoded = (bytes: Uint8Array, size: number) => {
  const decoder = new Sse.Decoder()
  let text = ""
  for (let start = 0; start < bytes.length; start += size) text += decoder.decode(bytes.subarray(start, start + size))
  return [text, decoder.isInvalid]
}

const encoder = new TextEncoder()

describe("UTF-8", () => {
  it("R-349: the decoder reads a text alike wherever its bytes are cut", () => {
    for (const text of ["", "a", "tøj", "\u{feff}marked", "🌤 and 한글, \u{fffd} too", "\u{feff}", "x\u{feff}y"]) {
      const expected = text.startsWith("\u{feff}") ? text.slice(1) : text
      for (const size of [1, 2, 3, 4, 5, 100]) {
        assert.deepStrictEqual(decoded(encoder.encode(text), size), [expected, false], `${text}, ${size}`)
      }
    }
  })

  it("R-349: the decoder reads a text alike from a single buffer filled again and again", () => {
    const bytes = encoder.encode("tøj 🌤 and 한글")
    for (const size of [1, 2, 3, 4, 5]) {
      const decoder = new Sse.Decoder()
      const buffer = new Uint8Array(size)
      let text = ""
      for (let start = 0; start < bytes.length; start += size) {
        const read = bytes.subarray(start, start + size)
        buffer.fill(0).set(read)
        text += decoder.decode(buffer.subarray(0, read.length))
      }
      assert.deepStrictEqual([text, decoder.isInvalid], ["tøj 🌤 and 한글", false], `${size}`)
    }
  })

  it("R-349: the decoder reads up to the first invalid byte, wherever the bytes are cut", () => {
    const wrong: ReadonlyArray<ReadonlyArray<number>> = [
      [0xff, 0x61, 0x62, 0x63],
      [0x80],
      [0xc3, 0x28],
      [0xe2, 0x28, 0xa1, 0x61],
      [0xed, 0xa0, 0x80],
      [0xf4, 0x90, 0x80, 0x80],
      [0xc0, 0xaf]
    ]
    const good = encoder.encode("tøj 🌤")
    for (const bytes of wrong) {
      const all = new Uint8Array([...good, ...bytes, ...good])
      for (const size of [1, 2, 3, 7, 100]) {
        assert.deepStrictEqual(decoded(all, size), ["tøj 🌤", true], `${bytes.join(" ")}, ${size}`)
      }
    }
  })

  it("R-349: the decoder reads up to a code point cut by the end, and such an end is valid", () => {
    const cut = encoder.encode("a🌤").subarray(0, 4)
    for (const size of [1, 2, 100]) assert.deepStrictEqual(decoded(cut, size), ["a", false])
  })
})
