/**
 * A journal in a file, to which appends are added at the end: where the last whole append ends, the records behind a version,
 * and what a writer adds. Only the end of the file is read to append to it.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import type * as FileSystem from "effect/FileSystem"
import * as Option from "effect/Option"
import type * as PlatformError from "effect/PlatformError"
import * as Lines from "./lines.ts"

/** How much is read of a file at a time. */
const blockSize = 65_536

type Failure = PlatformError.PlatformError

const readAt = (file: FileSystem.File, from: number, to: number): Effect.Effect<Uint8Array, Failure> =>
  Effect.gen(function*() {
    const bytes = new Uint8Array(Math.max(to - from, 0))
    let at = 0
    while (at < bytes.length) {
      const count = yield* file.read(bytes.subarray(at), { position: BigInt(from + at) })
      if (count === 0) break
      at += count
    }
    return bytes.subarray(0, at)
  })

/** The line that begins at an offset, without what follows it. Undefined if it does not end. */
const lineAt = (file: FileSystem.File, from: number, end: number): Effect.Effect<Uint8Array | undefined, Failure> =>
  Effect.gen(function*() {
    for (let size = blockSize;; size *= 2) {
      const bytes = yield* readAt(file, from, Math.min(from + size, end))
      const newline = bytes.indexOf(10)
      if (newline >= 0) return bytes.subarray(0, newline)
      if (from + size >= end) return undefined
    }
  })

/** What a file has. */
export interface Contents {
  /** The id of the session. */
  readonly id: string
  /** The offset of the first record. */
  readonly begin: number
  /** The offset behind the last append that is whole. */
  readonly end: number
  /** The size of the file, which is more where an append was torn. */
  readonly size: number
  /** The version of the last record, 0 without any. */
  readonly version: number
  /** Whether the session has work left. */
  readonly isUnfinished: boolean
}

/** The end of the last whole append between two offsets. */
const lastAppend = (file: FileSystem.File, begin: number, size: number) =>
  Effect.gen(function*() {
    for (let length = blockSize;; length *= 2) {
      const from = Math.max(size - length, begin)
      const bytes = yield* readAt(file, from, size)
      const ends = Lines.endsOf(bytes)
      // The first line of a block is whole where the block begins with the records.
      for (let index = ends.length - 1; index >= (from === begin ? 0 : 1); index--) {
        const end = ends[index] ?? 0
        const line = Lines.readLine(bytes.subarray(ends[index - 1] ?? 0, end - 1))
        if (line?.isUnfinished === undefined) continue
        return { end: from + end, version: line.version, isUnfinished: line.isUnfinished }
      }
      if (from === begin) return { end: begin, version: 0, isUnfinished: false }
    }
  })

/** What the file has, undefined if it is no journal yet: its making was cut. A journal of a later release is `newer`. */
export const contentsOf = (file: FileSystem.File): Effect.Effect<Contents | "newer" | undefined, Failure> =>
  Effect.gen(function*() {
    const size = Number((yield* file.stat).size)
    const first = yield* lineAt(file, 0, size)
    const header = first === undefined ? undefined : Lines.readHeader(first)
    if (first === undefined || header === undefined || header === "newer") {
      return header === "newer"
        ? header
        : undefined
    }
    const begin = first.length + 1
    return { id: header.id, begin, size, ...yield* lastAppend(file, begin, size) }
  })

/** The version of the first record. */
export const firstOf = (file: FileSystem.File, { begin, end }: Contents): Effect.Effect<number, Failure> =>
  Effect.map(lineAt(file, begin, end), (line) => (line === undefined ? undefined : Lines.versionOf(line)) ?? 1)

/** An offset at which a line begins, at or before the record behind a version. It is looked for from the end. */
export const before = (
  file: FileSystem.File,
  { begin, end }: Contents,
  version: number
): Effect.Effect<number, Failure> =>
  Effect.gen(function*() {
    for (let at = end - blockSize; at > begin; at -= blockSize) {
      const bytes = yield* readAt(file, at, Math.min(at + blockSize, end))
      const newline = bytes.indexOf(10)
      if (newline < 0) continue
      const found = Lines.versionOf(bytes.subarray(newline + 1))
      if (found !== undefined && found <= version + 1) return at + newline + 1
    }
    return begin
  })

/** The lines from an offset, at least one if there is any, and where they end. */
export const linesFrom = (
  file: FileSystem.File,
  from: number,
  end: number
): Effect.Effect<{ readonly lines: ReadonlyArray<Uint8Array>; readonly end: number }, Failure> =>
  Effect.gen(function*() {
    for (let size = blockSize;; size *= 2) {
      const bytes = yield* readAt(file, from, Math.min(from + size, end))
      const ends = Lines.endsOf(bytes)
      const last = ends.at(-1)
      if (last !== undefined) {
        return { lines: ends.map((end, index) => bytes.subarray(ends[index - 1] ?? 0, end - 1)), end: from + last }
      }
      if (from + size >= end) return { lines: [], end: from }
    }
  })

/** Adds bytes behind the last whole append, and has them on the disk. What was torn is cut off. */
export const add = (
  file: FileSystem.File,
  end: number,
  size: number,
  bytes: Uint8Array
): Effect.Effect<void, Failure> =>
  Effect.gen(function*() {
    if (size > end) yield* file.truncate(end)
    yield* file.seek(BigInt(end), "start")
    yield* file.writeAll(bytes)
    yield* file.sync
  })

/** Writes a file as a whole, so that a reader finds what was there before or what is there now. */
export const replace = (fs: FileSystem.FileSystem, path: string, bytes: Uint8Array): Effect.Effect<void, Failure> =>
  Effect.scoped(Effect.gen(function*() {
    const next = `${path}.new`
    const opened = yield* fs.open(next, { flag: "w" })
    yield* opened.writeAll(bytes)
    yield* opened.sync
    yield* fs.rename(next, path)
  }))

/** The bytes of all parts, one after the other. */
export const joined = (parts: ReadonlyArray<Uint8Array>): Uint8Array => {
  const whole = new Uint8Array(parts.reduce((length, part) => length + part.length, 0))
  let at = 0
  for (const part of parts) {
    whole.set(part, at)
    at += part.length
  }
  return whole
}

/** Opens a file that may not be there. */
export const open = (fs: FileSystem.FileSystem, path: string, flag: "r" | "r+") =>
  fs.open(path, { flag }).pipe(
    Effect.map(Option.some),
    Effect.catchIf((error) => error.reason._tag === "NotFound", () => Effect.succeed(Option.none()))
  )

/** Has the names of a folder on the disk, where the platform lets a folder be opened. */
export const syncFolder = (fs: FileSystem.FileSystem, folder: string): Effect.Effect<void> =>
  Effect.ignore(Effect.scoped(Effect.flatMap(fs.open(folder, { flag: "r" }), (file) => file.sync)))
