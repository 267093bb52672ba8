/**
 * What a question is after, by the way it is put. Most questions are searches; some ask for a number, a list, a file,
 * an overview, or ask the model to keep a note.
 */
import * as Words from "../words.ts"

export type Intent =
  | { readonly _tag: "Search"; readonly terms: ReadonlyArray<Words.Term> }
  | { readonly _tag: "CountLines"; readonly path: string; readonly glob: string | undefined }
  | { readonly _tag: "ListFiles"; readonly path: string | undefined; readonly glob: string | undefined }
  | { readonly _tag: "OpenFile"; readonly path: string }
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

/** Words that name a folder and its parts, and nothing in it. */
const generic = new Set(
  `code codebase content count directory file folder line library list long number overview package program project repo
  repository source summary there total`.split(/\s+/).map(Words.stem)
)

const noteForm = /^(?:please\s+)?(?:note|remember|write down|keep in mind)\b[\s:,]*(?:that\s+)?(.+)$/is
const countsLines =
  /\bhow (many|much)\b.*\b(lines?|code)\b|\bhow long is\b|\bcount\b.*\blines?\b|\b(line count|number of lines)\b/i
const listsFiles = /\bfiles?\b/i
const place =
  /\b(?:in|under|inside|within|of|does)\s+(?:the\s+)?[`"']?([\w.-]+)[`"']?(?:\s+(?:file|folder|directory))?(?:\s+have)?\s*[?.!]*$/i

const isGeneric = (term: Words.Term): boolean => term._tag === "Word" && generic.has(term.stem)

/** What a question leaves when its general words are gone: the names of languages, of a place, and the rest. */
const parts = (question: string) => {
  const glob = languages[languageName.exec(question)?.[1]?.toLowerCase() ?? ""]
  const rest = Words.terms(question.replace(languageName, " ")).filter((term) => !isGeneric(term))
  const named = Words.paths(question)[0]
  const last = place.exec(question)?.[1]
  const only = rest.length === 1 ? rest[0]?.label : undefined
  const path = named ?? (last !== undefined && last.toLowerCase() === only?.toLowerCase() ? last : undefined)
  const others = rest.filter((term) => term.label.toLowerCase() !== path?.toLowerCase())
  return { path, glob, others }
}

/** What the question is after. */
export const of = (question: string): Intent => {
  const note = noteForm.exec(question)?.[1]?.trim()
  if (note !== undefined && !note.endsWith("?")) return { _tag: "Note", note }
  const terms = Words.terms(question)
  if (terms.length === 0) return { _tag: "Unclear" }
  const { glob, others, path } = parts(question)
  if (others.length > 0) return { _tag: "Search", terms }
  if (countsLines.test(question)) return { _tag: "CountLines", path: path ?? ".", glob }
  const isFile = path !== undefined && /\.\w+$/.test(path)
  if (isFile) return { _tag: "OpenFile", path }
  return glob !== undefined || path !== undefined || listsFiles.test(question)
    ? { _tag: "ListFiles", path, glob }
    : { _tag: "Overview" }
}
