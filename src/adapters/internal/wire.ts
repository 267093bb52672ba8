/**
 * Reading what a provider wrote, member by member. Total: whatever has another form than expected is not there.
 */
import * as Json from "../../internal/json.ts"

/** A text that says something; an empty one is none. */
export const string = (value: unknown): string | undefined =>
  typeof value === "string" && value !== "" ? value : undefined

export const object = (value: unknown): Json.JsonObject => Json.isObject(value) ? value : {}

/** The objects of a list. */
export const list = (value: unknown): ReadonlyArray<Json.JsonObject> =>
  Array.isArray(value) ? value.filter(Json.isObject) : []

/** A member for an object that is being written, left out when it has no value. */
export const given = <K extends string>(key: K, value: unknown): { readonly [P in K]?: unknown } =>
  (value === undefined ? {} : { [key]: value }) as { readonly [P in K]?: unknown }
