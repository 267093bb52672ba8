/**
 * The words of a question and of a line of text, made comparable: identifiers are split at their humps, endings are
 * cut off, words that carry no meaning are dropped. A stem is always the beginning of the word it came from, so that a
 * text that does not contain the stem cannot contain the word.
 */

/** Something to look for: a word by its stem, or a phrase (quoted text, a path, an identifier) letter by letter. */
export type Term =
  | { readonly _tag: "Word"; readonly label: string; readonly stem: string; readonly weight: number }
  | { readonly _tag: "Phrase"; readonly label: string; readonly text: string; readonly weight: number }

/** More than this many terms do not fit the bit mask of a line, and no question needs them. */
export const maxTerms = 16

const stopWords = new Set(
  `a about above after again all also am an and any anyone anything are aren around as ask at be because been before
  being below between both but by can cannot could did do does doing done down during each else ever every exactly few
  find for from further get gets give given got had has have having he help her here hers him his how however i if in
  into is it its itself just kind know let like long look made make makes many may me mean means might more most much
  must my no nor not now of off on once one only or other our out over own people place please same say see shall she
  should show so some someone something such tell than that the their them then there these they thing things this
  those through to too under until up us use used uses using very was way we well were what whats when where wheres
  which while who whom whose why will with within without would you your yours`.split(/\s+/)
)

const vowel = /[aeiouy]/

/** The word without its last `count` letters and without a doubled consonant at its end. */
const cut = (word: string, count: number): string => {
  const rest = word.slice(0, -count)
  return /([bdfgmnprt])\1$/.test(rest) ? rest.slice(0, -1) : rest
}

const withoutPlural = (word: string): string => {
  if (/(ies|ied)$/.test(word) && word.length > 4) return word.slice(0, -3)
  if (/(ss|x|ch|sh|zz)es$/.test(word)) return word.slice(0, -2)
  return /[^su]s$/.test(word) && !word.endsWith("is") && word.length > 3 ? word.slice(0, -1) : word
}

const endings: ReadonlyArray<readonly [ending: string, rest: number]> = [
  ["ment", 4],
  ["ing", 3],
  ["ion", 4],
  ["ed", 3],
  ["er", 4],
  ["or", 4],
  ["ly", 4]
]

/** The stem of a lower-case word: `copies` → `cop`, `cached` → `cach`, `running` → `run`. */
export const stem = (word: string): string => {
  if (word.length <= 3) return word
  let rest = withoutPlural(word)
  for (const [ending, least] of endings) {
    const before = rest.slice(0, -ending.length)
    if (rest.endsWith(ending) && before.length >= least && vowel.test(before)) {
      rest = cut(rest, ending.length)
      break
    }
  }
  return /[ey]$/.test(rest) && rest.length > 3 ? rest.slice(0, -1) : rest
}

/** Where an identifier falls into words: `parseLine`, `HTTPServer`, `max_size`. */
const humps = (identifier: string): ReadonlyArray<string> =>
  identifier
    .replaceAll(/([\p{Ll}\d])(\p{Lu})/gu, "$1 $2")
    .replaceAll(/(\p{Lu})(\p{Lu}\p{Ll})/gu, "$1 $2")
    .split(/[\s_]+/)
    .filter((part) => part !== "")

const identifiers = /[\p{L}\p{N}_]+/gu

/** The stems of the words in a text; of an identifier, those of its parts and of the whole. */
export const stems = (text: string): ReadonlySet<string> => {
  const found = new Set<string>()
  for (const [identifier] of text.matchAll(identifiers)) {
    const parts = humps(identifier)
    for (const part of parts) found.add(stem(part.toLowerCase()))
    if (parts.length > 1) found.add(stem(identifier.replaceAll("_", "").toLowerCase()))
  }
  return found
}

const quoted = /["“]([^"“”]+)["”]|`([^`]+)`/g
const extensions =
  "c|cc|cfg|cjs|conf|cpp|cs|css|csv|env|go|h|hpp|html|ini|java|js|json|jsx|kt|lock|log|lua|md|mjs|php|py|rb|rs|rst|sh|" +
  "sql|svg|swift|toml|ts|tsx|txt|xml|yaml|yml"
const pathLike = new RegExp(
  `(?<![\\w./-])(?:(?:[\\w.-]+/)*[\\w.-]+\\.(?:${extensions})\\b|(?:[\\w.-]+/)+(?:[\\w.-]*\\w)?)`,
  "gi"
)
const dotted = /[\p{L}_][\p{L}\p{N}_]+(?:\.[\p{L}_][\p{L}\p{N}_]+)+/gu
const isIdentifier = (word: string): boolean => /[\p{Ll}\d]\p{Lu}|\w_\w/u.test(word)

/** The paths named in a question, as they are written: `src/Tool.ts`, `docs/`, `notes.md`. */
export const paths = (question: string): ReadonlyArray<string> =>
  [...question.replaceAll("`", " ").matchAll(pathLike)]
    .map(([path]) => path)
    .filter((path) => path !== "and/or")

/** Words that say what is asked about a thing or where to look for it, and seldom stand where the thing stands. */
const weakStems = new Set(
  `called code contain declare define describe enforce exist explain file find folder happen implement line live locate
  mention need occur project repository reside store work`.split(/\s+/).map(stem)
)

const phrase = (label: string): Term => ({ _tag: "Phrase", label, text: label.toLowerCase(), weight: 1.5 })

const word = (label: string): Term => {
  const wanted = stem(label)
  return { _tag: "Word", label, stem: wanted, weight: weakStems.has(wanted) ? 0.35 : 1 }
}

/** What to look for in order to answer a question. Empty when the question has no word of its own. */
export const terms = (question: string): ReadonlyArray<Term> => {
  const found = new Map<string, Term>()
  const add = (key: string, term: Term) => found.has(key) || found.set(key, term)
  const rest = question.replaceAll(quoted, (_, inQuotes: string | undefined, inTicks: string | undefined) => {
    const text = (inQuotes ?? inTicks ?? "").trim()
    if (text !== "") add(`"${text.toLowerCase()}"`, phrase(text))
    return " "
  })
  const named = paths(rest)
  for (const path of named) add(`"${path.toLowerCase()}"`, phrase(path))
  const words = named.reduce((text, path) => text.replace(path, " "), rest)
  for (const [name] of words.matchAll(dotted)) add(`"${name.toLowerCase()}"`, phrase(name))
  for (const [name] of words.replaceAll(/['’]\w+/g, "").matchAll(identifiers)) {
    if (isIdentifier(name)) add(`"${name.toLowerCase()}"`, phrase(name))
    for (const part of humps(name)) {
      const lower = part.toLowerCase()
      if (lower.length > 1 && !stopWords.has(lower)) add(stem(lower), word(lower))
    }
  }
  return [...found.values()].slice(0, maxTerms)
}

/** Whether a lower-case text could contain the term at all: a cheap test before the exact one. */
export const mayContain = (lower: string, term: Term): boolean =>
  lower.includes(term._tag === "Word" ? term.stem : term.text)

/** Long stems also match the words they begin: `valid` matches `validity`. */
const matchesWord = (found: ReadonlySet<string>, wanted: string): boolean => {
  if (found.has(wanted)) return true
  if (wanted.length < 5) return false
  for (const candidate of found) if (candidate.startsWith(wanted)) return true
  return false
}

const wordCharacter = /[\p{L}\p{N}_]/u
const isWordCharacter = (text: string, at: number): boolean =>
  at >= 0 && at < text.length && wordCharacter.test(text[at] as string)

/** Whether a word is in a text: only the identifiers that contain its stem are taken apart. */
const hasWord = (text: string, lower: string, wanted: string): boolean => {
  if (text.length !== lower.length) return matchesWord(stems(text), wanted)
  for (let at = lower.indexOf(wanted); at >= 0;) {
    let start = at
    let end = at + wanted.length
    while (isWordCharacter(text, start - 1)) start -= 1
    while (isWordCharacter(text, end)) end += 1
    if (matchesWord(stems(text.slice(start, end)), wanted)) return true
    at = lower.indexOf(wanted, end)
  }
  return false
}

/** The terms that occur in a text, as a bit mask over their positions. */
export const occurring = (text: string, terms: ReadonlyArray<Term>): number => {
  const lower = text.toLowerCase()
  let mask = 0
  for (const [index, term] of terms.entries()) {
    const isThere = term._tag === "Phrase" ? lower.includes(term.text) : hasWord(text, lower, term.stem)
    if (isThere) mask |= 1 << index
  }
  return mask
}
