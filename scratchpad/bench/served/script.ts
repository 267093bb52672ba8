/** The script of the load of servers: each session says so many deltas of twenty bytes, fifty in a second. */

/** Time between two deltas, in milliseconds. */
export const gap = 20
/** Number of deltas of a session. */
export const deltas = 250

/** A delta: the time at which it was said, and its number, in twenty bytes. */
export const delta = (index: number): string => `${Date.now()}:${String(index).padStart(5, "0")} `

/** Reads the deltas in a text. */
export const read = (text: string): ReadonlyArray<{ readonly at: number; readonly index: number }> =>
  Array.from(text.matchAll(/(\d{13}):(\d{5}) /g), ([, at, index]) => ({ at: Number(at), index: Number(index) }))
