/** Returns the indices of a list, or `limit` of them, spread evenly from the first to the last. */
export const spread = (count: number, limit = Infinity): ReadonlyArray<number> =>
  count <= limit
    ? Array.from({ length: count }, (_, index) => index)
    : Array.from({ length: limit }, (_, index) => Math.round(index * (count - 1) / Math.max(1, limit - 1)))
