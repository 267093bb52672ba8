/**
 * Reading what a provider wrote, member by member. Total: whatever has another form than expected is not there.
 */
import * as Json from "../../internal/json.ts"
import * as Response from "../../Response.ts"

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

/** The usage after another report. A total that the report does not state is the sum of what is known. */
export const mergedUsage = (previous: Response.Usage | null, next: Response.Usage): Response.Usage => {
  const merged = previous === null ? next : {
    ...Response.usage({ ...next, ...figures(previous), ...known(next) }),
    toolUsage: { ...previous.toolUsage, ...next.toolUsage },
    extra: { ...previous.extra, ...next.extra }
  }
  const isTotalStated = next.totalTokens !== null && next.totalTokens !== 0
  if (isTotalStated || merged.inputTokens === null || merged.outputTokens === null) return merged
  return { ...merged, totalTokens: merged.inputTokens + merged.outputTokens }
}

const figures = (usage: Response.Usage): Readonly<Record<string, unknown>> =>
  Object.fromEntries(Object.entries(usage).filter(([, value]) => typeof value === "number"))

const known = (usage: Response.Usage): Readonly<Record<string, unknown>> =>
  Object.fromEntries(Object.entries(figures(usage)).filter(([, value]) => value !== 0))
