/**
 * Values with one change each, for laws about what notices a change.
 */
import * as Json from "../../src/internal/json.ts"

/** Each leaf of a value as JSON altered alone, and each member left out, with the path to it. */
export const altered = (value: unknown): ReadonlyArray<readonly [path: string, value: unknown]> => {
  const within = (key: string, member: unknown, put: (changed: unknown) => unknown) =>
    altered(member).map(([path, changed]) => [`${key}${path === "" ? "" : `.${path}`}`, put(changed)] as const)
  if (Array.isArray(value)) {
    return [
      ...value.flatMap((member, index) => within("*", member, (changed) => value.with(index, changed))),
      ...value.map((_, index) => ["*", value.toSpliced(index, 1)] as const)
    ]
  }
  if (Json.isObject(value)) {
    return Object.entries(value).flatMap(([key, member]) => [
      ...within(key, member, (changed) => ({ ...value, [key]: changed })),
      [key, Object.fromEntries(Object.entries(value).filter(([other]) => other !== key))] as const
    ])
  }
  if (typeof value === "string") return [["", `${value}x`]]
  if (typeof value === "number") return [["", value + 1]]
  return [["", typeof value === "boolean" ? !value : "x"]]
}
