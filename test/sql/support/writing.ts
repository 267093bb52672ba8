/**
 * What a writing process and the test that orders it about agree on.
 */

/** What the process is asked to do. */
export type Order =
  | { readonly _tag: "Append"; readonly version: number; readonly text: string }
  | { readonly _tag: "GoOn"; readonly sizes: ReadonlyArray<number> }

/** What the process says. */
export type Report =
  | { readonly _tag: "Ready" }
  | { readonly _tag: "Begun"; readonly from: number; readonly size: number }
  | { readonly _tag: "Appended"; readonly version: number }
  | { readonly _tag: "Conflict"; readonly actual: number }
  | { readonly _tag: "Failed"; readonly message: string }

/** The session that is written to. */
export const id = "shared"

const padding = "x".repeat(1000)

/** The text at a place of a batch. */
export const textAt = (from: number, size: number, index: number): string => `${from}+${size}:${index}:${padding}`
