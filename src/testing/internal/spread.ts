/** Returns a list's indices, or `limit` indices spread evenly from first to last. */
export const spread = (count: number, limit = Infinity): ReadonlyArray<number> =>
  count <= limit
    ? Array.from({ length: count }, (_, index) => index)
    : Array.from({ length: limit }, (_, index) => Math.round(index * (count - 1) / Math.max(1, limit - 1)))
