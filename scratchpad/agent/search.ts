/**
 * Finding the lines that answer a question, by its words alone. A line counts for the terms on it and near it; a term
 * that occurs in few files counts more than one that is everywhere; code counts more than what is said about it. Pure:
 * `scan` looks at one file, `rank` compares what was found in all of them.
 */
import * as Words from "./words.ts"

/** Source says what happens, documents what is meant, tests what is expected, settings the least. */
export type Kind = "source" | "document" | "test" | "settings"

/** A line on which terms occur, as a bit mask over their positions. */
export interface Hit {
  readonly line: number
  readonly text: string
  readonly mask: number
}

/** What one file holds of the terms. */
export interface FileHits {
  readonly path: string
  readonly pathMask: number
  readonly mask: number
  readonly hits: ReadonlyArray<Hit>
}

/** A line worth reading, and the labels of the terms on it or close to it. */
export interface Match {
  readonly path: string
  readonly line: number
  readonly text: string
  readonly words: ReadonlyArray<string>
}

/** How far apart, in lines, terms may stand and still belong together. */
const reach = 8
const maxHitsPerFile = 400
const maxLineLength = 200

const prior: Readonly<Record<Kind, number>> = { source: 1, document: 0.7, test: 0.5, settings: 0.45 }

/** What kind of file a path names. */
export const kindOf = (path: string): Kind => {
  if (/(^|\/)(tests?|__tests__|specs?|fixtures?|mocks?)\/|[._-](test|spec|tst)\.\w+$/i.test(path)) return "test"
  if (/^\.[^/]+\//.test(path) && !/\.(md|txt)$/i.test(path)) return "settings"
  if (/\.(md|mdx|txt|rst|adoc|html?)$/i.test(path) || /(^|\/)[A-Z]+$/.test(path)) return "document"
  return /\.(json|ya?ml|toml|ini|cfg|conf|env|lock|csv|xml)$|(^|\/)\.[^/]+$/i.test(path) ? "settings" : "source"
}

const shortened = (text: string): string => {
  const line = text.trimEnd()
  return line.length <= maxLineLength ? line : `${line.slice(0, maxLineLength)} …`
}

/** The lines of a text: a line break at the very end opens no further line. */
export const linesOf = (text: string): ReadonlyArray<string> => {
  const lines = text.split(/\r\n|\n|\r/)
  return lines.at(-1) === "" ? lines.slice(0, -1) : lines
}

const plain = (text: string): string => text.toLowerCase().replaceAll(/[\s?!.]+/g, " ").trim()

const quotedQuestion = /["'`](?:where|what|who|how|which|when|why|is|are|does|do|can)\b[^"'`]*\?["'`]/i

/** A line that asks a question, or repeats this one (an example, a test, a script), does not answer it. */
const asks = (line: string, query: string): boolean =>
  (line.includes("?") && quotedQuestion.test(line)) ||
  (query.length <= line.length && query.split(" ").length >= 4 && plain(line).includes(query))

/** The hits in one file; `undefined` when neither the text nor the path has any of the terms. */
export const scan = (
  path: string,
  text: string,
  terms: ReadonlyArray<Words.Term>,
  query = ""
): FileHits | undefined => {
  const whole = plain(query)
  const pathMask = Words.occurring(path, terms)
  const lower = text.toLowerCase()
  const possible = terms.reduce((all, term, index) => Words.mayContain(lower, term) ? all | (1 << index) : all, 0)
  if (possible === 0) return pathMask === 0 ? undefined : { path, pathMask, mask: 0, hits: [] }
  const hits: Array<Hit> = []
  let mask = 0
  for (const [index, line] of linesOf(text).entries()) {
    const found = Words.occurring(line, terms)
    if (found === 0 || asks(line, whole)) continue
    mask |= found
    if (hits.length < maxHitsPerFile) hits.push({ line: index + 1, text: shortened(line), mask: found })
    else if (mask === possible) break
  }
  return mask === 0 && pathMask === 0 ? undefined : { path, pathMask, mask, hits }
}

const has = (mask: number, index: number): boolean => (mask & (1 << index)) !== 0

/** What each term is worth: the rarer among the files searched, the more. */
const worths = (
  files: ReadonlyArray<FileHits>,
  searched: number,
  terms: ReadonlyArray<Words.Term>
): ReadonlyArray<number> =>
  terms.map((term, index) => {
    const holding = files.filter((file) => has(file.mask | file.pathMask, index)).length
    return term.weight * Math.log(1 + (searched + 1) / (holding + 0.5))
  })

/** An import names a thing without saying anything of it, a declaration is where a thing is. */
const lineFactor = (text: string): number => {
  const line = text.trim()
  if (/^(import|from|#include|require|use|package)\b|^export .* from\b/.test(line)) return 0.4
  if (/^(\/\/|\/?\*|#|--|<!--|""")/.test(line)) return 0.85
  return isDeclaration(line) ? 1.15 : 1
}

const declaration =
  /^(export\s+|public\s+|private\s+|static\s+|readonly\s+|async\s+|pub\s+|default\s+)*(const|let|var|function|class|interface|type|enum|def|fn|func|struct|trait|module|val|sub)\b/

/** Whether a line opens a declaration, in most languages. */
export const isDeclaration = (line: string): boolean => declaration.test(line.trim())

const bits = (mask: number): number => mask === 0 ? 0 : (mask & 1) + bits(mask >>> 1)

interface Scored extends Match {
  readonly score: number
}

/** A term on the line counts in full, one close by the less the farther, one in the file's path a little. */
const scoreHit = (file: FileHits, at: number, worth: ReadonlyArray<number>): { score: number; near: number } => {
  const hit = file.hits[at] as Hit
  const nearest = new Map<number, number>()
  for (const step of [-1, 1]) {
    for (let other = at; other >= 0 && other < file.hits.length; other += step) {
      const candidate = file.hits[other] as Hit
      const distance = Math.abs(candidate.line - hit.line)
      if (distance > reach) break
      for (const index of worth.keys()) {
        if (has(candidate.mask, index)) nearest.set(index, Math.min(distance, nearest.get(index) ?? reach))
      }
    }
  }
  let score = 0
  let near = 0
  for (const [index, value] of worth.entries()) {
    const distance = nearest.get(index)
    if (distance !== undefined) near |= 1 << index
    const closeness = distance === undefined ? 0 : distance === 0 ? 1 : 0.7 * (1 - distance / (reach + 1))
    score += value * Math.max(closeness, has(file.pathMask, index) ? 0.5 : 0)
  }
  const coverage = bits(near | file.pathMask) / worth.length
  return { score: score * (0.4 + 0.6 * coverage) * lineFactor(hit.text), near }
}

/** How much the file as a whole is about the terms: many hits of the rare ones, up to a point. */
const density = (file: FileHits, worth: ReadonlyArray<number>): number =>
  worth.reduce((sum, value, index) => {
    const count = file.hits.filter((hit) => has(hit.mask, index)).length
    return sum + value * Math.min(1, Math.log(1 + count) / 4)
  }, 0)

const scoreFile = (
  file: FileHits,
  terms: ReadonlyArray<Words.Term>,
  worth: ReadonlyArray<number>,
  priorOf: (path: string) => number
): ReadonlyArray<Scored> => {
  const about = density(file, worth)
  const scored = file.hits.map((hit, at) => {
    const { near, score } = scoreHit(file, at, worth)
    const words = terms.flatMap((term, index) => has(near, index) ? [term.label] : [])
    return {
      path: file.path,
      line: hit.line,
      text: hit.text,
      words,
      score: (score + 0.35 * about) * priorOf(file.path)
    }
  })
  const chosen: Array<Scored> = []
  for (const match of scored.sort((left, right) => right.score - left.score || left.line - right.line)) {
    if (chosen.length === 3) break
    if (chosen.every((other) => Math.abs(other.line - match.line) > reach / 2)) chosen.push(match)
  }
  return chosen
}

/** A question about tests or documents is not answered best by source. */
const priorFor = (terms: ReadonlyArray<Words.Term>) => (path: string): number => {
  const kind = kindOf(path)
  const asks = (stems: ReadonlyArray<string>) => terms.some((term) => term._tag === "Word" && stems.includes(term.stem))
  if (kind === "test" && asks(["test", "spec", "scenario"])) return 1.3
  if (kind === "document" && asks(["doc", "readm", "document", "documentation", "licens", "changelog", "not"])) {
    return 1.3
  }
  return kind === "settings" && asks(["setting", "config", "configuration", "version", "dependenc", "script"])
    ? 1.3
    : prior[kind]
}

/** The best lines first, at most three of one file. */
export const rank = (
  files: ReadonlyArray<FileHits>,
  searched: number,
  terms: ReadonlyArray<Words.Term>,
  limit: number
): ReadonlyArray<Match> => {
  const worth = worths(files, searched, terms)
  const priorOf = priorFor(terms)
  return files
    .flatMap((file) => scoreFile(file, terms, worth, priorOf))
    .sort((left, right) => right.score - left.score || left.path.localeCompare(right.path) || left.line - right.line)
    .slice(0, limit)
    .map(({ line, path, text, words }) => ({ path, line, text, words }))
}
