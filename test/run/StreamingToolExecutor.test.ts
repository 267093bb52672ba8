/**
 * The executor by the rows of the contract: all calls are handed over at once, and every result is reported once, in
 * the order of the calls, at the millisecond it is due.
 */
import { describe, it } from "@effect/vitest"
import { rows } from "../support/falaiRows.ts"
import { holds } from "../support/rows.ts"
import { byExecutor } from "../support/seen.ts"

for (const [theme, some] of Object.entries(rows)) {
  describe(`StreamingToolExecutor: ${theme}`, () => {
    for (const row of some) it.effect(row.name, () => holds(row, byExecutor))
  })
}
