/**
 * Splits Markdown into pieces, each parsed in bounded time. A piece taking a parser seconds, or overflowing its stack,
 * becomes plain text. A piece depends only on the text from its start on, and no longer changes once followed by
 * another: a growing text is split again from its last piece.
 *
 * A piece begins where a top-level block certainly begins. All checks err toward plain text: every block start they
 * find is also a block start for the parser.
 */

/** Maximum number of emphasis, code and bracket marks in one paragraph. The parser compares each with each. */
export const mostMarks = 1_000

/** Maximum nesting of quotes and lists. */
export const mostLevels = 40

/** Maximum table rows. */
export const mostRows = 200

/** Maximum message characters read as Markdown. */
export const mostCharacters = 200_000

const mostCells = 2_000
const mostColumns = 100
const mostDefinitions = 200
/** Characters possibly ending an address, in sequence. The parser reads the sequence again from each character. */
const punctuation = /[!"&'),.:;<>?\]}*_~]{200}/
const pieceSize = 8_192
const pieceLines = 200
const lineSize = 16_384
const tableSize = 32_768

/** A piece of text. */
export interface Piece {
  /** `"code"` is a top-level fenced block, read by no parser. */
  readonly kind: "markdown" | "plain" | "code"
  /** Offset of the first character. */
  readonly start: number
  /** Offset after the last character. */
  readonly end: number
  readonly text: string
  /** Table rows beyond the maximum, excluded from `text`. */
  readonly rows?: string
}

interface Fence {
  readonly mark: string
  readonly size: number
}

/** Returns the fence opened by a complete line at the first column. */
const fenceOf = (line: string): Fence | undefined => {
  const [, run = ""] = /^(`{3,})[^`]*$/.exec(line) ?? /^(~{3,})/.exec(line) ?? []
  return run === "" ? undefined : { mark: run.charAt(0), size: run.length }
}

/** Tells whether a line closes a fenced block. */
export const isClosing = (line: string, { mark, size }: Fence): boolean => {
  const [, run = ""] = /^ {0,3}(`{3,}|~{3,})[ \t]*$/.exec(line) ?? []
  return run.startsWith(mark) && run.length >= size
}

const isBlank = (line: string): boolean => /^[ \t]*$/.test(line)

/** Tells whether a line after a blank line may continue a list or its indented content. */
const isPerhapsInside = (line: string): boolean => /^(?:[ \t]|[-+*](?:[ \t]|$)|\d{1,9}(?:$|[.)](?:[ \t]|$)))/.test(line)

/** Tells whether a line is a table's second line. */
const isDelimiterRow = (line: string): boolean =>
  line.includes("|") && /^[ \t>|:-]+$/.test(line) &&
  line.replace(/^[ \t>]+/, "").trim().replace(/^\|/, "").replace(/\|$/, "").split("|").every((cell) =>
    /^:?-+:?$/.test(cell.trim())
  )

/** Counts the cells in a table row. */
const cellsOf = (line: string): number => {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "")
  let cells = 1
  for (let at = 0; at < inner.length; at++) {
    if (inner[at] === "\\") at++
    else if (inner[at] === "|") cells++
  }
  return cells
}

const isMark: ReadonlyArray<boolean> = Array.from(
  { length: 128 },
  (_, code) => "*_~[]<`".includes(String.fromCharCode(code))
)

const marksIn = (line: string): number => {
  let marks = 0
  for (let at = 0; at < line.length; at++) if (isMark[line.charCodeAt(at)] === true) marks++
  return marks
}

/** Returns an upper bound for a line's nesting in quotes and lists. */
const levelsOf = (line: string): number => {
  const [prefix = ""] = /^[ \t>]*(?:(?:[-+*]|\d{1,9}[.)])[ \t]+[ \t>]*)*/.exec(line) ?? []
  if (!/[^ \t]/.test(prefix)) return 0
  let quotes = 0
  let width = 0
  for (const character of prefix) {
    if (character === ">") quotes++
    else width += character === "\t" ? 4 : 1
  }
  // A list level takes at least two columns.
  return quotes + width / 2
}

/** Tells whether a piece would take a parser disproportionately long, or overflow its stack. */
export const isHostile = (text: string): boolean => {
  const lines = text.split("\n")
  let marks = 0
  let cost = 0
  let definitions = 0
  let ordered = ""
  let isStart = true
  let isTable = false
  for (const [index, line] of lines.entries()) {
    if (levelsOf(line) > mostLevels || isDelimiterRow(line) && cellsOf(line) > mostColumns) return true
    if (/^[ \t>]*\[[^\]]*\]:/.test(line) && ++definitions > mostDefinitions) return true
    if (isBlank(line)) {
      isStart = true
      isTable = false
      ordered = ""
      marks = 0
      continue
    }
    const [, digits = "", delimiter = ""] = /^(\d{1,9})([.)])[ \t]+\S/.exec(line) ?? []
    const isItem = /^(?:[-+*]|#{1,6})[ \t]+\S/.test(line) ||
      digits !== "" && (isStart || digits === "1" || delimiter === ordered)
    ordered = isItem ? delimiter : ""
    // The table header begins with a bar here, so it is no other block.
    if (isStart && line.startsWith("|")) {
      const delimiters = lines[index + 1] ?? ""
      isTable = delimiters.startsWith("|") && isDelimiterRow(delimiters) && cellsOf(delimiters) === cellsOf(line)
    }
    if (isItem) isTable = false
    if (isItem || isTable) marks = 0
    isStart = false
    const found = marksIn(line)
    cost += found * (found + 2 * marks)
    marks += found
    if (marks > mostMarks || cost > 2 * mostMarks ** 2) return true
  }
  return /:\/\/|www\./i.test(text) && punctuation.test(text)
}

/** Reads the piece beginning at `start`. */
const pieceAt = (text: string, start: number): Piece => {
  let fence: Fence | undefined
  let columns = 0
  let rows = 0
  let lines = 0
  let restAt: number | undefined
  let before = ""
  let isBehindBlank = false
  let at = start
  const until = (end: number): Piece => {
    const own = text.slice(start, restAt ?? end)
    const kind = fence !== undefined ? "code" : isHostile(own) ? "plain" : "markdown"
    return { kind, start, end, text: own, ...(restAt === undefined ? {} : { rows: text.slice(restAt, end) }) }
  }
  /** Tells whether the piece exceeds a multiple of the usual size. */
  const isLarge = (times: number): boolean => at - start > times * pieceSize || lines > times * pieceLines
  while (at < text.length) {
    const newline = text.indexOf("\n", at)
    const isComplete = newline >= 0
    const lineEnd = isComplete ? newline : text.length
    const next = isComplete ? newline + 1 : text.length
    if (fence !== undefined) {
      if (isComplete && lineEnd - at < lineSize && isClosing(text.slice(at, lineEnd), fence)) return until(next)
      at = next
      continue
    }
    if (restAt === undefined && next - at > lineSize) {
      if (at > start) return until(at)
      const isPair = /[\uD800-\uDBFF]/.test(text.charAt(at + lineSize - 1))
      return until(at + lineSize - (isPair ? 1 : 0))
    }
    const line = text.slice(at, lineEnd)
    if (isBlank(line)) {
      if (restAt !== undefined || isLarge(2)) return until(at)
      isBehindBlank = true
      columns = 0
    } else if (restAt === undefined) {
      const opened = isComplete ? fenceOf(line) : undefined
      if (at > start && (opened !== undefined || isBehindBlank && !isPerhapsInside(line))) return until(at)
      fence = opened
      const size = at - start
      if (columns > 0) {
        rows++
        const isLong = rows > Math.max(1, Math.min(mostRows, Math.floor(mostCells / columns))) || size > tableSize
        if (isLong) restAt = at
      } else if (isComplete && before.includes("|") && isDelimiterRow(line)) {
        columns = cellsOf(line)
        rows = 0
      } else if (isLarge(2) || isLarge(1) && /^\S/.test(line)) return until(at)
      isBehindBlank = false
    } else if (isComplete && fenceOf(line) !== undefined) return until(at)
    before = line
    lines++
    at = next
  }
  return until(text.length)
}

/** Normalizes line ends. */
export const normal = (text: string): string => text.includes("\r") ? text.replace(/\r\n?/g, "\n") : text

/** Splits a text, from the offset of a piece. */
export const split = function*(text: string, from = 0): Generator<Piece> {
  for (let at = from; at < text.length;) {
    const piece = pieceAt(text, at)
    yield piece
    at = piece.end
  }
}
