/**
 * The built declarations resolve under the package's own name, entry by entry.
 */
import type * as Heddle from "heddle"
import type * as Chat from "heddle/Chat"
import type * as Tool from "heddle/Tool"
import { expect, test } from "tstyche"

test("the core holds its modules as namespaces", () => {
  expect<typeof Heddle>().type.toHaveProperty("Message")
  expect<typeof Heddle>().type.toHaveProperty("Tool")
  expect<typeof Heddle>().type.toHaveProperty("Adapter")
})

test("an entry point is the module of its name", () => {
  expect<typeof Chat>().type.toBe<typeof Heddle.Chat>()
  expect<typeof Tool>().type.toBe<typeof Heddle.Tool>()
})
