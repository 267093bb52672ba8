/**
 * Lists that mostly come in one piece, or have one member. One that something is pushed on has room for seventeen; these
 * have room for what they were given first.
 */

/** From how many members on a table is worth its room: below, a list is gone through. */
export const many = 8

/** A list of nothing, which stays one. */
export const none: ReadonlyArray<never> = Object.freeze([])

/** The list with something more: itself, unless there was nothing in it. */
export const added = <A>(list: Array<A> | undefined, item: A): Array<A> => {
  if (list === undefined || list.length === 0) return [item]
  list.push(item)
  return list
}

/** The list with something at a position: itself, unless that is its first member. */
export const placed = <A>(list: Array<A | undefined> | undefined, index: number, item: A): Array<A | undefined> => {
  if (index === 0 && (list === undefined || list.length === 0)) return [item]
  const placed = list ?? []
  placed[index] = item
  return placed
}

/** The list with some more: itself, unless there was nothing in it. */
export const joined = <A>(list: Array<A> | undefined, more: ReadonlyArray<A>): Array<A> => {
  if (list === undefined || list.length === 0) return more.slice()
  for (const item of more) list.push(item)
  return list
}
