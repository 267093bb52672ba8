/**
 * The calls that the model makes: two turns that pay, and one that books, each call unlike every other. The answer follows,
 * without any.
 */

/** A call: the tool, and its arguments. */
export type Call = readonly [name: string, args: Readonly<Record<string, unknown>>]

/** The turns that every library can be asked for. */
export const payments: ReadonlyArray<ReadonlyArray<Call>> = [
  [["lookup", { word: "loom" }], ["charge", { order: 1 }], ["mail", { to: "ada" }]],
  [["charge", { order: 2 }], ["lookup", { word: "weft" }]]
]

/** The calls of each turn. */
export const turns: ReadonlyArray<ReadonlyArray<Call>> = [
  ...payments,
  [["book", { order: 2 }], ["lookup", { word: "warp" }]]
]
