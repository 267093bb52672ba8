/**
 * Measures the prose of doc comments and pages, room by room: genitives, relative clauses, and sentences with a stranded
 * end, such as "is" or "one". `npm run words -- src/mcp` prints the figures and the worst sentences of a folder.
 */
import { readTexts } from "./language.ts"
import { lineAt, type SourceText } from "./source.ts"

/** A sentence of a doc comment or a page, without the marks around it. */
export interface Sentence {
  readonly place: string
  readonly room: string
  readonly text: string
}

/** The shares of a room: genitives and relatives per 100 words, stranded ends per 100 sentences. */
interface Figures {
  readonly of: number
  readonly that: number
  readonly stranded: number
}

/** The most that a room may have. */
const aims: Figures = { of: 2.5, that: 2.2, stranded: 4 }

/** A share of fewer words says nothing. */
const fewestWords = 200

const stranded = /\b(?:is|was|are|has|had|does|did|one|none|them|it|there|so)[.:]$/

/** Each top folder of `src`, each folder of `src/internal`, the public modules, and the pages. */
const roomOf = (path: string): string => {
  if (path.endsWith(".md")) return "docs"
  return path.split("/").slice(0, path.startsWith("src/internal/") ? 3 : 2).filter((name) => !name.includes("."))
    .join("/")
}

/** Blanks a part of a text, and keeps its lines. */
const blank = (part: string): string => part.replaceAll(/[^\n]/g, "")

/** The passages of a source: its doc comments up to their tags and examples, or the paragraphs of a page. */
const passagesIn = ({ path, text }: SourceText): ReadonlyArray<{ readonly line: number; readonly text: string }> => {
  if (path.endsWith(".md")) {
    const prose = text.replaceAll(/```[^]*?```|^\|.*$|^#.*$/gm, blank)
    return Array.from(prose.matchAll(/\S[^]*?(?=\n\s*\n|$)/g), ({ 0: part, index }) => ({
      line: lineAt(prose, index),
      text: part
    }))
  }
  return Array.from(text.matchAll(/\/\*\*([^]*?)\*\//g), ({ 1: comment, index }) => ({
    line: lineAt(text, index),
    text: comment!.replaceAll(/^[ \t]*\*[ \t]?/gm, "").replaceAll(/```[^]*?```/g, blank)
      .split(/(?:^|\n)@|\*\*Example/)[0]!
  }))
}

/** The sentences of a source. Passages of 25 characters and fewer have none. */
export const sentencesIn = (source: SourceText): ReadonlyArray<Sentence> =>
  passagesIn(source).filter(({ text }) => oneLine(text).length > 25).flatMap(({ line, text }) =>
    Array.from(text.matchAll(/(?=\S)[^]*?(?:[.!?](?=\s)|$)/g), ({ 0: sentence, index }) => ({
      place: `${source.path}:${line - 1 + lineAt(text, index)}`,
      room: roomOf(source.path),
      text: oneLine(sentence)
    }))
  )

const oneLine = (text: string): string => text.replaceAll(/\s+/g, " ").trim()

const countsIn = (text: string) => {
  const words = text.toLowerCase().match(/[a-z']+/g) ?? []
  return {
    words: words.length,
    of: words.filter((word) => word === "of").length,
    that: words.filter((word) => word === "that" || word === "which").length,
    stranded: stranded.test(text) ? 1 : 0
  }
}

/** The figures of each room with words enough. */
const figuresOf = (sentences: ReadonlyArray<Sentence>): ReadonlyMap<string, Figures> => {
  const rooms = [...new Set(sentences.map(({ room }) => room))]
  return new Map(rooms.flatMap((room): ReadonlyArray<[string, Figures]> => {
    const counts = sentences.filter((sentence) => sentence.room === room).map(({ text }) => countsIn(text))
    const sum = (key: keyof (typeof counts)[number]) => counts.reduce((total, count) => total + count[key], 0)
    const share = (key: keyof Figures, whole: number) => 100 * sum(key) / whole
    return sum("words") < fewestWords ? [] : [[room, {
      of: share("of", sum("words")),
      that: share("that", sum("words")),
      stranded: share("stranded", counts.length)
    }]]
  }))
}

/** The twenty sentences with the highest share of the counted words. A short one counts as one of ten words. */
export const worstOf = (sentences: ReadonlyArray<Sentence>): ReadonlyArray<string> =>
  sentences.map(({ place, text }) => {
    const counts = countsIn(text)
    return { place, text, score: (counts.of + counts.that + counts.stranded) / Math.max(10, counts.words) }
  }).toSorted((left, right) => right.score - left.score).slice(0, 20).map(({ place, score, text }) =>
    `${score.toFixed(2)} ${place} ${text}`
  )

/** For each room over an aim, its figures and its worst sentences. */
export const excessesOf = (sentences: ReadonlyArray<Sentence>): ReadonlyArray<string> =>
  [...figuresOf(sentences)].flatMap(([room, figures]) => {
    const over = (Object.keys(aims) as Array<keyof Figures>).filter((key) => figures[key] > aims[key])
    if (over.length === 0) return []
    const said = over.map((key) => `${key} ${figures[key].toFixed(1)}, at most ${aims[key]}`).join("; ")
    return [`${room}: ${said}`, ...worstOf(sentences.filter((sentence) => sentence.room === room))]
  })

/** The sentences of all doc comments in `src`, of the guides and of the README. */
export const readSentences = (): ReadonlyArray<Sentence> =>
  readTexts().filter(({ path }) => /^(?:src\/|docs\/|README)/.test(path)).flatMap(sentencesIn)

if (import.meta.main) {
  const sentences = readSentences().filter(({ place }) => place.startsWith(process.argv[2] ?? ""))
  for (const [room, { of, stranded, that }] of figuresOf(sentences)) {
    console.log(`${room.padEnd(22)} of ${of.toFixed(1)}  that ${that.toFixed(1)}  stranded ${stranded.toFixed(1)} %`)
  }
  console.log(worstOf(sentences).join("\n"))
}
