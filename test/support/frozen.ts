/** What a careful reader does with what it is shown. */

/** Freezes a value and everything that can be found in it, by whatever name. */
export const deepFreeze = <A>(value: A): A => {
  if (typeof value !== "object" || value === null || Object.isFrozen(value)) return value
  Object.freeze(value)
  for (const key of Reflect.ownKeys(value)) deepFreeze(value[key as keyof A])
  return value
}
