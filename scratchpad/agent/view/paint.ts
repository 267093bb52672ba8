/**
 * The letters of the view: styles that can be switched off, widths as a terminal counts them, durations, and lines cut
 * or broken to fit.
 */
import * as CliOutput from "effect/cli/CliOutput"

/** How a stretch of text is set off. */
export type Style = "plain" | "dim" | "bold" | "good" | "bad" | "accent"

/** Writes a text in a style. */
export type Paint = (style: Style, text: string) => string

const codes: Readonly<Record<Style, string>> = { plain: "", dim: "2", bold: "1", good: "32", bad: "31", accent: "36" }

/** Styles by ANSI codes. */
export const ansi: Paint = (style, text) =>
  style === "plain" || text === "" ? text : `\u001b[${codes[style]}m${text}\u001b[0m`

/** No styles at all. */
export const none: Paint = (_, text) => text

/** The cells a text takes. */
export const width = CliOutput.displayWidth

/** A text with spaces to the right, up to a width. */
export const pad = (text: string, to: number): string => text + " ".repeat(Math.max(0, to - width(text)))

const graphemes = new Intl.Segmenter("en", { granularity: "grapheme" })

const head = (text: string, cells: number): string => {
  let taken = ""
  for (const { segment } of graphemes.segment(text)) {
    if (width(taken + segment) > cells) break
    taken += segment
  }
  return taken
}

/** An unstyled text cut at the right to a width. */
export const cut = (text: string, cells: number): string =>
  width(text) <= cells ? text : cells < 1 ? "" : `${head(text, cells - 1)}…`

/** An unstyled text cut at the left: a path, where it says least, or a line that is being typed. */
export const cutLeft = (path: string, cells: number): string => {
  if (width(path) <= cells) return path
  const reversed = [...graphemes.segment(path)].map(({ segment }) => segment).toReversed().join("")
  const kept = [...graphemes.segment(head(reversed, cells - 1))].map(({ segment }) => segment).toReversed().join("")
  return cells < 1 ? "" : `…${kept}`
}

/** `12 ms`, `1.25 s`, `12.5 s`, `2:05 m`. */
export const duration = (millis: number): string => {
  if (millis < 1) return "< 1 ms"
  const seconds = millis / 1000
  if (seconds < 1) return `${Math.floor(millis)} ms`
  if (seconds < 10) return `${seconds.toFixed(2)} s`
  if (seconds < 60) return `${seconds.toFixed(1)} s`
  const whole = Math.floor(seconds)
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")} m`
}

const pieces = /\s+|\S+/g

const breakWord = (word: string, columns: number): ReadonlyArray<string> => {
  const parts: Array<string> = []
  let rest = word
  while (width(rest) > columns) {
    const part = head(rest, columns)
    if (part === "") break
    parts.push(part)
    rest = rest.slice(part.length)
  }
  return [...parts, rest]
}

/** What a line begins with before its text does: an indent, with the number of a quoted line or the dash of a list. */
const opening = /^ *(?:\d+ {2,}|- )?/

/** A line broken at spaces to a width; what is broken off hangs. Growing text never changes earlier lines. */
const wrapLine = (line: string, columns: number): ReadonlyArray<string> => {
  const start = (opening.exec(line)?.[0] ?? "").slice(0, Math.floor(columns / 2))
  const indent = " ".repeat(start.length)
  const lines: Array<string> = []
  let current = start
  for (const [piece] of line.slice(start.length).matchAll(pieces)) {
    if (width(current) + width(piece) <= columns) {
      current += piece
      continue
    }
    if (piece.trim() === "") continue
    if (current.trim() !== "") {
      lines.push(current.trimEnd())
      current = indent
    }
    const [...parts] = breakWord(piece, columns - width(indent))
    const last = parts.pop() ?? ""
    lines.push(...parts.map((part) => indent + part))
    current = indent + last
  }
  return [...lines, current.trimEnd()]
}

/** A text broken to a width, line by line. */
export const wrap = (text: string, columns: number): ReadonlyArray<string> =>
  text.split("\n").flatMap((line) => wrapLine(line, columns))
