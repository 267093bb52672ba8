/** what a preset has to reproduce is in tests, row by row. Each of these names its row. */
import { assert, describe, it } from "@effect/vitest"
import { readSources } from "../support/source.ts"

/** The rows of the contract in which ALLM behaves in its own way. */
const allm = ["B-03", "B-06", "T-07", "P-05", "P-06", "P-12", "P-14", "P-15", "P-17", "C-21", "F-04", "K-02"]

const tests = readSources("test").filter(({ path }) => path.endsWith(".test.ts"))

/** Whether a test has the row in its name. */
const isTested = (row: string): boolean =>
  tests.some(({ text }) =>
    Array.from(text.matchAll(/\bit(?:\.\w+)*\(\s*(["'`])(.*?)\1/gs)).some(([, , name]) => name?.includes(row) === true)
  )

describe("contract rows", () => {
  it("X-05: a test title names every row in which ALLM behaves in its own way", () => {
    assert.deepStrictEqual(allm.filter((row) => !isTested(row)), [])
    assert.isFalse(isTested("B-00"))
  })
})
