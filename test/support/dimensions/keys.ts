/** The names of the permits that a call has to hold. There is one permit of each. */
export const keys = {
  none: [],
  one: ["a", "a"],
  other: ["b", "b"],
  both: ["a", "b"],
  crossed: ["b", "a"],
  broken: ["a", "broken"]
} satisfies { readonly [name: string]: ReadonlyArray<string> }

export type KeysName = keyof typeof keys

/** The names that a call of this dimension holds; none if they cannot be told. */
export const heldBy = (name: KeysName): ReadonlySet<string> => new Set(name === "broken" ? [] : keys[name])

/** What a tool says is the name of a permit. */
export const nameOfPermit = (name: string | undefined): string => {
  if (name === undefined || name === "broken") throw new Error("the name of the permit cannot be told")
  return name
}
