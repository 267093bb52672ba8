/**
 * Usage as it is reported piece by piece: the latest report of a figure counts, and a report that leaves a figure out or
 * calls it zero takes nothing back.
 */
import * as Response from "../../Response.ts"

/** The usage after another report. A total that the report does not state is the sum of what is known. */
export const merge = (previous: Response.Usage | null, next: Response.Usage): Response.Usage => {
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
