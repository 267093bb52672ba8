/**
 * Lists that mostly come in one piece, or have one member. One that something is pushed on has room for seventeen, and
 * until it is compiled whoever goes through it with an iterator makes an object for each member.
 */

/** The list with something more: itself, unless it was empty. */
export const added = <A>(list: Array<A>, item: A): Array<A> => {
  if (list.length === 0) return [item]
  list.push(item)
  return list
}

/** The list with some more: itself, unless it was empty. */
export const joined = <A>(list: Array<A>, more: ReadonlyArray<A>): Array<A> => {
  if (list.length === 0) return more.slice()
  for (const item of more) list.push(item)
  return list
}
