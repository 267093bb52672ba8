/**
 * Where a body is cut into network reads: as it was recorded, and in the ways that break readers: byte by byte, inside
 * every code point, inside every line end.
 */

/** Some way to cut a body: the lengths of the reads, together as long as the body. */
export interface Cut {
  readonly name: string
  readonly sizes: ReadonlyArray<number>
}

/** Reads of these lengths; what a recording does not cover is one last read. */
const recorded = (length: number, sizes: ReadonlyArray<number>): ReadonlyArray<number> => {
  const kept: Array<number> = []
  let rest = length
  for (const size of [...sizes, length]) {
    const read = Math.min(Math.max(size, 0), rest)
    if (read > 0) kept.push(read)
    rest -= read
  }
  return kept
}

/** Reads that end before each of the given positions. */
const before = (length: number, isCut: (position: number) => boolean): ReadonlyArray<number> => {
  const sizes: Array<number> = []
  let start = 0
  for (let position = 1; position <= length; position++) {
    if (position < length && !isCut(position)) continue
    sizes.push(position - start)
    start = position
  }
  return sizes
}

const isInsideCodePoint = (body: Uint8Array) => (position: number): boolean => ((body[position] ?? 0) & 0xc0) === 0x80

const isAtLineEnd = (body: Uint8Array) => (position: number): boolean => {
  const previous = body[position - 1]
  return previous === 0x0a || previous === 0x0d
}

/** The ways to cut a body that differ from each other. The first is how it came. */
export const all = (body: Uint8Array, chunkSizes: ReadonlyArray<number> | undefined): ReadonlyArray<Cut> => {
  const { length } = body
  const cuts: ReadonlyArray<Cut> = [
    ...(chunkSizes === undefined ? [] : [{ name: "recorded", sizes: recorded(length, chunkSizes) }]),
    { name: "whole", sizes: length === 0 ? [] : [length] },
    { name: "inside code points", sizes: before(length, isInsideCodePoint(body)) },
    { name: "at line ends", sizes: before(length, isAtLineEnd(body)) },
    { name: "7 bytes", sizes: before(length, (position) => position % 7 === 0) },
    { name: "1 byte", sizes: before(length, () => true) }
  ]
  return cuts.filter((cut, index) => cuts.findIndex((other) => isSame(cut.sizes, other.sizes)) === index)
}

const isSame = (left: ReadonlyArray<number>, right: ReadonlyArray<number>): boolean =>
  left.length === right.length && left.every((size, index) => size === right[index])

/** A body in the reads of a cut. */
export const pieces = (body: Uint8Array, sizes: ReadonlyArray<number>): ReadonlyArray<Uint8Array> => {
  let start = 0
  return sizes.map((size) => body.subarray(start, start += size))
}
