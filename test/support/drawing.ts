/**
 * Long programs of a law: a generated collection has ten members at most, and what comes second is often further on. A
 * number chooses each step, and a failure is played again with fewer of them.
 */
import * as Arbitrary from "effect/Arbitrary"
import * as Schema from "effect/Schema"

const upTo = (count: number) => Schema.Literals(Array.from({ length: count }, (_, index) => index))

/** A program: so many steps, which a number chooses. */
export const draws = Arbitrary.schema(Schema.Struct({ seed: upTo(100_000), count: upTo(60) }))

export type Draws = typeof draws extends Arbitrary.Arbitrary<infer A> ? A : never

/** Numbers below a bound, which a seed chooses (mulberry32). */
export const drawing = (seed: number) => {
  let state = seed
  return (bound: number): number => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) % bound
  }
}
