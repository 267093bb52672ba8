/** The two figures that stand for a list of samples. */

const sorted = (values: ReadonlyArray<number>): Array<number> => values.toSorted((one, other) => one - other)

/** The value below which the given share of the samples lies, between two samples if need be. */
const quantile = (ascending: ReadonlyArray<number>, share: number): number => {
  const place = (ascending.length - 1) * share
  const below = ascending[Math.floor(place)] ?? Number.NaN
  const above = ascending[Math.ceil(place)] ?? Number.NaN
  return below + (above - below) * (place - Math.floor(place))
}

export const median = (values: ReadonlyArray<number>): number => quantile(sorted(values), 0.5)

/** How far the samples lie apart: the middle half of them, over the median. */
export const spread = (values: ReadonlyArray<number>): number => {
  const ascending = sorted(values)
  return (quantile(ascending, 0.75) - quantile(ascending, 0.25)) / quantile(ascending, 0.5)
}
