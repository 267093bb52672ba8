/** What the model asks for: two turns with calls, each call unlike every other, and then an answer without any. */

/** A call: the tool, and its arguments. */
export type Call = readonly [name: string, args: Readonly<Record<string, unknown>>]

/** The calls of each turn. */
export const turns: ReadonlyArray<ReadonlyArray<Call>> = [
  [["lookup", { word: "loom" }], ["charge", { order: 1 }], ["mail", { to: "ada" }]],
  [["charge", { order: 2 }], ["lookup", { word: "weft" }]]
]
