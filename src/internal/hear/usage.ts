/** What turns have used, added up. Public as `Response.sumUsage`. */
import type * as Response from "../../Response.ts"

/** The figures of a usage report. */
export const names = [
  "inputTokens",
  "outputTokens",
  "cachedInputTokens",
  "cacheWriteInputTokens",
  "reasoningTokens",
  "totalTokens",
  "inputCost",
  "outputCost",
  "totalCost"
] as const satisfies ReadonlyArray<keyof Response.Usage>

const added = (left: number | null, right: number | null): number | null =>
  left === null ? right : right === null ? left : left + right

const both = (left: Response.Usage, right: Response.Usage): Response.Usage => ({
  ...left,
  ...Object.fromEntries(names.map((name) => [name, added(left[name], right[name])])),
  toolUsage: { ...left.toolUsage, ...right.toolUsage },
  extra: { ...left.extra, ...right.extra }
})

/** A figure that nobody reported stays `null`. */
export const sum = (usages: Iterable<Response.Usage | null>): Response.Usage | null => {
  let total: Response.Usage | null = null
  for (const next of usages) total = total === null || next === null ? total ?? next : both(total, next)
  return total
}
