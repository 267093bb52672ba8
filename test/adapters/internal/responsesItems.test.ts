/** The texts of an item of a Responses reply, however a server divides and numbers what it streams and what it repeats. */
import { describe } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { type Source, Texts } from "../../../src/adapters/internal/responsesItems.ts"
import { property } from "../../support/property.ts"

const Lengths = Schema.Array(Schema.Literals([1, 2, 3]))

/** Short texts of two letters, which are often alike, and how each telling of them is divided. */
const repliesOf = Arbitrary.schema(Schema.Struct({
  letters: Schema.Array(Schema.Literals(["a", "b"])),
  streamed: Lengths,
  isCut: Schema.Boolean,
  indexes: Schema.Literals(["none", "fromZero", "fromOne"]),
  text: Schema.UndefinedOr(Lengths),
  part: Schema.UndefinedOr(Lengths),
  item: Lengths
}))

/** A text in pieces of these lengths, and the rest. */
const divided = (whole: string, lengths: ReadonlyArray<number>): ReadonlyArray<string> => {
  const pieces: Array<string> = []
  let start = 0
  for (const length of [...lengths, whole.length]) {
    if (start < whole.length) pieces.push(whole.slice(start, start + length))
    start += length
  }
  return pieces
}

describe("the texts of a Responses item", () => {
  property(
    "M-35: the emitted text and the kept text are both the whole text, once",
    repliesOf,
    ({ indexes, isCut, item, letters, part, streamed, text }) =>
      Effect.sync(() => {
        const whole = letters.join("")
        const texts = new Texts()
        const place = "content"
        let said = ""
        const pieces = divided(whole, streamed)
        const first = indexes === "fromOne" ? 1 : 0
        for (const [index, piece] of (isCut ? pieces.slice(0, -1) : pieces).entries()) {
          texts.add(place, indexes === "none" ? 0 : first + index, piece)
          said += piece
        }
        for (
          const [source, lengths] of [["text", text], ["part", part]] as const satisfies ReadonlyArray<[Source, any]>
        ) {
          for (const [index, one] of (lengths === undefined ? [] : divided(whole, lengths)).entries()) {
            said += texts.repeat(source, { place, index: first + index, whole: one })
          }
        }
        said += texts.list(divided(whole, item).map((one, index) => ({ place, index, whole: one })))
        return said === whole && texts.text === whole ? [] : [`${whole} was said as ${said} and kept as ${texts.text}`]
      }),
    2000
  )
})
