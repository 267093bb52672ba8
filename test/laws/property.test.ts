/** However a property fails, its message says how to see it fail again. */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { caseOf, cases } from "../support/cases.ts"
import * as Lawful from "../support/lawful.ts"
import { check, type Law } from "../support/property.ts"
import { play } from "../support/worlds.ts"

const numbers = Arbitrary.schema(Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 1000 })))

const options = { seed: "11", runs: 1000 }

const replayIn = (message: string): string => /HEDDLE_REPLAY='(.*)'$/m.exec(message)?.[1] ?? ""

const broken: { readonly [how: string]: Law<number> } = {
  "says what is wrong": (n) => Effect.succeed(n > 41 ? [`${n} is too much`] : []),
  "fails": (n) => n > 41 ? Effect.fail("too much") : Effect.succeed([]),
  "dies": (n) => n > 41 ? Effect.die(new Error("too much")) : Effect.succeed([]),
  "throws": (n) => {
    if (n > 41) throw new Error("too much")
    return Effect.succeed([])
  },
  "interrupts itself": (n) => n > 41 ? Effect.interrupt : Effect.succeed([])
}

describe("properties", () => {
  it.live("a property whose law holds reports nothing", () =>
    Effect.gen(function*() {
      assert.isUndefined(yield* check("holds", numbers, () => Effect.succeed([]), options))
    }))

  for (const [how, law] of Object.entries(broken)) {
    it.live(`a property whose law ${how} names its seed, and the seed and the replay show the same value again`, () =>
      Effect.gen(function*() {
        const message = yield* check("breaks", numbers, law, options)
        assert.include(message, "Shrunk input: 42\n")
        assert.include(message, "HEDDLE_SEED=11 npx vitest run test/laws -t \"breaks\"")
        const replay = replayIn(message ?? "")
        assert.strictEqual(replayIn((yield* check("breaks", numbers, law, options)) ?? ""), replay)
        const again = yield* check("breaks", numbers, law, { seed: "other", runs: 1, replay })
        assert.include(again, "Shrunk input: 42\n")
        assert.strictEqual(replayIn(again ?? ""), replay)
      }))
  }

  it.live("a property whose law never ends names its seed and the value", () =>
    Effect.gen(function*() {
      const law: Law<number> = (n) => n === 42 ? Effect.never : Effect.succeed([])
      const message = yield* check("hangs", numbers, law, { ...options, patienceMillis: 50 })
      assert.match(message ?? "", /^hangs: no end after 50 ms, at value \d+\n42\nSeed: 11\n/)
    }))

  it.live("a property draws other values for another seed and for another name", () =>
    Effect.gen(function*() {
      const seen = (name: string, seed: string) =>
        Effect.gen(function*() {
          const values: Array<number> = []
          const law = (n: number) => Effect.sync(() => values.push(n)).pipe(Effect.as([]))
          yield* check(name, numbers, law, { seed, runs: 20 })
          return values.join()
        })
      const all = yield* Effect.all([seen("a", "1"), seen("a", "1"), seen("a", "2"), seen("b", "1")])
      assert.strictEqual(all[0], all[1])
      assert.strictEqual(new Set(all).size, 3)
    }))

  it.live("a case that breaks a law shrinks to a case with a single call", () =>
    Effect.gen(function*() {
      const law: Law<Parameters<typeof play>[0]> = (played) =>
        Effect.map(play(played, "stream"), ({ log }) =>
          log.some((entry) => entry._tag === "Failed") ? ["a handler failed"] : [])
      const message = yield* check("shrinks", cases, law, { seed: "1", runs: 300 })
      assert.include(message, "a handler failed")
      assert.include(message, "\"cancelAt\": null")
      assert.strictEqual(message?.match(/"kind"/g)?.length, 1)
      assert.deepStrictEqual(Lawful.lifetime(yield* play(caseOf([]), "stream"), caseOf([])), [])
    }))
})
