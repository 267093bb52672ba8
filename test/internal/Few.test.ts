/** A set that mostly has one member: whatever is done to it, it is what a set would be, in the same order. */
import { assert, describe, it } from "@effect/vitest"
import * as Schema from "effect/Schema"
import { Few } from "../../src/internal/few.ts"

const Member = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 2 }))

const Change = Schema.Union([
  Schema.Struct({ add: Member }),
  Schema.Struct({ delete: Member }),
  Schema.Struct({ clear: Schema.Literal(true) })
])

describe("few", () => {
  it.prop(
    "has the members of a set, in its order",
    [Schema.Array(Change).check(Schema.isMinLength(8))],
    ([changes]) => {
      const members = Array.from({ length: 3 }, (_, index) => ({ index }))
      const few = new Few<{ readonly index: number }>()
      const set = new Set<{ readonly index: number }>()
      for (const change of changes) {
        if ("add" in change) {
          few.add(members[change.add]!)
          set.add(members[change.add]!)
        } else if ("delete" in change) {
          assert.strictEqual(few.delete(members[change.delete]!), set.delete(members[change.delete]!))
        } else {
          few.clear()
          set.clear()
        }
        assert.deepStrictEqual(few.all, Array.from(set))
        assert.strictEqual(few.size, set.size)
        for (const member of members) assert.strictEqual(few.has(member), set.has(member))
      }
    },
    { arbitrary: { runs: 1000 } }
  )
})
