/**
 * What a question is after, by the way it is put. Most questions are searches; some ask for a number, a list, a file,
 * an overview, or ask the model to keep a note. A thing may be named the way people name it: the README, the src folder.
 */
import * as Words from "../words.ts"

export type Intent =
  | { readonly _tag: "Search"; readonly terms: ReadonlyArray<Words.Term> }
  /** Without a target, all files are counted. */
  | { readonly _tag: "CountLines"; readonly targets: ReadonlyArray<string>; readonly glob: string | undefined }
  | { readonly _tag: "ListFiles"; readonly path: string | undefined; readonly glob: string | undefined }
  /** A file is opened, a folder is listed. */
  | { readonly _tag: "Look"; readonly target: string }
  | { readonly _tag: "Overview" }
  | { readonly _tag: "Note"; readonly note: string }
  | { readonly _tag: "Unclear" }

const languages: Readonly<Record<string, string>> = {
  css: "*.css",
  go: "*.go",
  html: "*.html",
  java: "*.java",
  javascript: "*.{js,mjs,cjs,jsx}",
  json: "*.json",
  markdown: "*.md",
  python: "*.py",
  ruby: "*.rb",
  rust: "*.rs",
  typescript: "*.{ts,tsx,mts,cts}"
}
const languageName = new RegExp(`(?<![\\w.])(${Object.keys(languages).join("|")})(?![\\w.])`, "i")

const stemsOf = (words: string): ReadonlySet<string> => new Set(words.split(/\s+/).map(Words.stem))

/** Words that name a folder and its parts, and nothing in it. */
const generic = stemsOf(
  `code codebase content count directory file folder line library list long number overview package program project repo
  repository source summary there total`
)
/** Words that ask for a size, and those that ask to see something; elsewhere they may be what is looked for. */
const sizeWords = stemsOf("altogether big count large length loc size wc")
const showWords = stemsOf(
  "begin cat contain content describe display explain ls open print read stand start summarize summarise view written"
)

const noteForm =
  /^(?:please\s+)?(?:(?:make|take|leave|add|write)\s+a\s+note|note|remember|(?:write|jot)\s+down|keep\s+in\s+mind|don['’]?t\s+forget)\b[\s:,]*(?:(?:that|of|to\s+self:?)\s+)?(.+)$/is
const alsoNote =
  /(?<=[?.!,;]|\band)\s*(?:and\s+|then\s+|please\s+)*(?:note|write|jot|keep|remember|save)\s+(?:it|that|this|them|(?:the\s+)?(?:places?|answers?|results?))(?:\s+(?:down|in\s+mind))?\s*[.!]*$/i

const countsLines =
  /\bhow (?:many|much)\b.*\b(?:lines?|code|loc)\b|\bcount\b.*\b(?:lines?|loc)\b|\b(?:line count|number of lines|lines of code|loc|wc)\b|^\W*lines (?:in|of)\b/is
const asksSize = /\bhow (?:long|big|large)\b|\b(?:length|size) of\b/i
const asksToSee =
  /^\W*(?:please\s+)?(?:(?:can|could|would|will)\s+you\s+)?(?:please\s+)?(?:show|open|read|print|cat|display|view|summari[sz]e|describe|explain|list|ls)\b/i
const asksWhat = /\bwhat(?:'s|\s+(?:is|are|does|do|stands?))\b/i
const asksForAll = /\b(?:overview|summary|project|repo|repository|codebase|program|library|package|folder|directory)\b/i
const listsFiles = /\bfiles?\b/i
const inPlace =
  /\b(?:in|under|inside|within|of)\s+(?:the\s+)?[`']?([\w.-]+)[`']?(?:\s+(?:file|folder|directory))?\s*(?:have|has)?\s*[?.!]*$/i

/** Names that people say without their endings, in any spelling. */
const documents: ReadonlyArray<readonly [form: RegExp, name: string]> = [
  [/\bread[\s_-]?me\b(?!\.\w)/gi, "README"],
  [/\bchange[\s_-]?log\b(?!\.\w)/gi, "CHANGELOG"],
  [/\blicen[sc]e\b(?!\.\w)/gi, "LICENSE"]
]
const known = new Set(
  "authors changelog codeowners contributing copying dockerfile license makefile notice readme security".split(" ")
)

/** Whether a name says where it is, or at least which kind of file it is. */
export const isPath = (name: string): boolean => /[^/]\/|\/$|\.\w+$/.test(name)

const isUnmistakable = (name: string): boolean => isPath(name) || known.has(name.toLowerCase())

const words = /[\p{L}\p{N}_.-]*[\p{L}\p{N}_]/gu

/** What a question leaves when its general words are gone: the name of a language, paths, and the words of its own. */
const named = (question: string, further: ReadonlyArray<ReadonlySet<string>>) => {
  const glob = languages[languageName.exec(question)?.[1]?.toLowerCase() ?? ""]
  const paths = [...new Set(Words.paths(question))]
  const isGeneral = (term: Words.Term) =>
    term._tag === "Word" && [generic, ...further].some((stems) => stems.has(term.stem))
  const text = paths.reduce((rest, path) => rest.replace(path, " "), question.replace(languageName, " "))
  const own = [...text.replaceAll(/['’]s\b/g, "").matchAll(words)]
    .map(([word]) => word)
    .filter((word) => Words.terms(word).some((term) => !isGeneral(term)))
  return { glob, targets: [...paths, ...own] }
}

const ofCount = (question: string): Intent | undefined => {
  const hasLines = countsLines.test(question)
  if (!hasLines && !asksSize.test(question)) return undefined
  const { glob, targets } = named(question, [sizeWords])
  // One word alone may name a file or be what the lines are about: the files will tell.
  const isCounted = targets.every(isUnmistakable) || (hasLines && targets.length === 1)
  return isCounted ? { _tag: "CountLines", targets, glob } : undefined
}

const ofSight = (question: string): Intent | undefined => {
  const isAsked = asksToSee.test(question)
  const { glob, targets } = named(question, isAsked || asksWhat.test(question) ? [showWords] : [])
  const [target, ...others] = targets
  if (others.length > 0) return undefined
  if (target === undefined) {
    if (glob !== undefined || listsFiles.test(question)) return { _tag: "ListFiles", path: undefined, glob }
    return asksForAll.test(question) ? { _tag: "Overview" } : undefined
  }
  const isPlace = inPlace.exec(question)?.[1] === target
  if (glob !== undefined && (isPlace || isPath(target)) && !/\.\w+$/.test(target)) {
    return { _tag: "ListFiles", path: target, glob }
  }
  return isUnmistakable(target) || isAsked || isPlace ? { _tag: "Look", target } : undefined
}

/** The question itself: a request at its end to note what is found is met without being asked for. */
export const question = (asked: string): string => {
  const rest = asked.replace(alsoNote, "").replace(/[\s,;]+(?:and)?\s*$/i, "")
  return rest === "" ? asked : rest
}

/** What the question is after. */
export const of = (asked: string): Intent => {
  const note = noteForm.exec(asked)?.[1]?.trim()
  if (note !== undefined && !note.endsWith("?")) return { _tag: "Note", note }
  const terms = Words.terms(asked)
  if (terms.length === 0) return { _tag: "Unclear" }
  const search: Intent = { _tag: "Search", terms }
  if (/["“”]/.test(asked)) return search
  const spelled = documents.reduce((text, [form, name]) => text.replace(form, name), asked)
  return ofCount(spelled) ?? ofSight(spelled) ?? search
}
