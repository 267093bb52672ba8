/**
 * The built declarations resolve under the package's own name, entry by entry.
 */
import type * as Heddle from "heddle"
import { expect, test } from "tstyche"

test("the core holds its modules as namespaces", () => {
  expect<typeof Heddle>().type.toHaveProperty("Message")
  expect<typeof Heddle>().type.toHaveProperty("Tool")
  expect<typeof Heddle>().type.toHaveProperty("Adapter")
})
