/**
 * The same rules for runs of `Chat` under `Policy.falai`: the rows that an executor is held to hold for them, whether the
 * tools start while the model still speaks or when it has stopped.
 */
import { describe, it } from "@effect/vitest"
import { rows } from "../support/falaiRows.ts"
import { holds } from "../support/rows.ts"
import { byChat } from "../support/seen.ts"

const deliveries = { "while the model speaks": byChat("early"), "when the model has spoken": byChat("after") }

for (const [when, play] of Object.entries(deliveries)) {
  for (const [theme, some] of Object.entries(rows)) {
    describe(`Chat under Policy.falai, ${when}: ${theme}`, () => {
      for (const row of some) it.effect(`X-05, ${row.name} (${when})`, () => holds(row, play))
    })
  }
}
