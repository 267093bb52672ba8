/**
 * The rules for the language of comments, pages and titles. A sentence names its subject, such as the caller, the reader or
 * the call. A comment begins with a verb in the third person or with the noun that it explains. A thing that
 * `docs/architecture.md#words` names has no other name.
 */
import * as fs from "node:fs"
import * as path from "node:path"
import { parseSync } from "oxc-parser"
import { lineAt, type Node, readSource, root, type SourceText, walk } from "./source.ts"

/** Also over the end of a line of a comment or a page. */
const vague = /\b(?:whoever|somebody|nobody|(?:is|are)[\s*/]+told)\b/gi

/** Texts that cannot change, each with its reason. */
export const exceptions: ReadonlyMap<string, string> = new Map([
  ["nobody answered within the time there was", "the model has read this text, and stored threads contain it"]
])

const pages = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]

/** The sources and pages under the rule: those of `src`, `test`, `scratchpad` and `docs`, and the pages at the top. */
export const readTexts = (): ReadonlyArray<SourceText> => {
  const folders = ["src", "test", "scratchpad", "docs"]
  const files = folders.flatMap((folder) =>
    fs.readdirSync(path.join(root, folder), { recursive: true, encoding: "utf8" })
      .map((name) => `${folder}/${name.replaceAll(path.sep, "/")}`)
      .filter((name) => /(?<!\.d)\.(?:ts|mjs|md)$/.test(name) && !/\/(?:node_modules|dist)\//.test(name))
      .sort()
  )
  return [...files, ...pages].map(readSource)
}

/** The places at which a text is vague, each as `path:line words`. */
export const vagueIn = (source: SourceText): ReadonlyArray<string> => {
  if (source.text.search(vague) === -1) return []
  const prose = source.path.endsWith(".md") ? source.text : proseOf(source)
  return Array.from(prose.matchAll(vague), ({ 0: words, index }) => {
    return `${source.path}:${lineAt(prose, index)} ${words.replaceAll(/[\s*/]+/g, " ")}`
  })
}

/**
 * The comments of a source and its strings of several words, which are titles and messages, everything else blank. A string
 * of one word is data.
 */
const proseOf = ({ path, text }: SourceText): string => {
  const { comments, errors, program } = parseSync(path, text, { sourceType: "module" })
  if (errors.length > 0) throw new Error(`${path} does not parse: ${errors[0]!.message}`)
  const spans: Array<{ readonly start: number; readonly end: number }> = [...comments]
  walk(program as unknown as Node, (node) => {
    const content = contentOf(node)
    if (content?.includes(" ") === true && !exceptions.has(content)) spans.push(node)
  })
  const isProse = new Uint8Array(text.length)
  for (const { end, start } of spans) isProse.fill(1, start, end)
  return Array.from(text.split(""), (unit, index) => isProse[index] === 1 || unit === "\n" ? unit : " ").join("")
}

const contentOf = (node: Node): string | undefined => {
  if (node.type === "Literal" && typeof node.value === "string") return node.value
  if (node.type !== "TemplateElement" || typeof node.value !== "object" || node.value === null) return undefined
  return (node.value as { readonly cooked?: string }).cooked
}

/** Words that are no noun, no article and no verb in the third person: no comment begins with one of them. */
const functionWords = new Set(
  ("what whatever whether how however why where wherever which whichever when whenever who whose that those there here "
    + "of by from under in into inside within with without at on onto off as if since because before after until while "
    + "between behind beside besides above below for to up out over through unless though although but and or so than then "
    + "not only also even just too again always never it they he she we you i them him us "
    + "may must can could should would shall might is are was were be been do true false").split(" ")
)

/** The base forms of verbs with which orders begin: "Return the text" addresses the reader. */
const orders = new Set(
  ("return make give take get create build find check send use see let put keep tell add remove run write ask begin fold "
    + "decode encode parse convert throw fail emit wait choose allow refuse ensure avoid handle").split(" ")
)

/** A participle, or "one", whose subject is missing: "Called when …", "One that …". */
const subjectless =
  /^(?:(?!(?:Seed|Speed|Need|Feed)\b)\w+ed|Made|Given|Taken|Written|Kept|Held|Left|Sent|Known|Put|Told|Said|Seen|Shown|Begun|Drawn|Chosen|Thrown|Run),?\s+(?:when|before|after|by|if|as|with|without|to|in|into|for|from|where|once|at|on|only|and|or|until|while|of|again|so|because|since|out|up|that|instead|each|unless)\b|^One\s+(?:that|which|who|whose|with|without|is|was|has|had|in|of\s+(?:them|these|those|its))\b/

/** A comment of a source, without its marks, and where it stands. */
interface Remark {
  readonly place: string
  readonly text: string
}

/** The comments of a source. Consecutive `//` lines are one; directives and rules drawn with dashes are none. */
const remarksIn = ({ path, text }: SourceText): ReadonlyArray<Remark> => {
  const { comments, errors } = parseSync(path, text, { sourceType: "module" })
  if (errors.length > 0) throw new Error(`${path} does not parse: ${errors[0]!.message}`)
  const remarks: Array<{ readonly place: string; text: string; end: number; readonly isLine: boolean }> = []
  for (const { end, start, type, value } of comments) {
    const isLine = type === "Line"
    const isRule = /^\s*-{3,}\s*$/.test(value)
    const last = remarks.at(-1)
    if (isLine && !isRule && last?.isLine === true && /^\n?[ \t]*$/.test(text.slice(last.end, start))) {
      last.text += `\n${value}`
      last.end = end
    } else if (!isRule) {
      remarks.push({ place: `${path}:${lineAt(text, start)}`, text: value.replaceAll(/^\s*\*/gm, ""), end, isLine })
    }
  }
  return remarks.filter(({ text }) => !/^\s*(?:@|\/ ?<|oxlint-|eslint-|dprint-|v8 |c8 |#)/.test(text))
}

/** The comments of a source that begin neither with a verb in the third person nor with a noun, each as `path:line words`. */
export const openingsIn = (source: SourceText): ReadonlyArray<string> =>
  remarksIn(source).flatMap(({ place, text }) => {
    const words = text.replaceAll(/\s+/g, " ").trim()
    const [, first = ""] = /^([A-Za-z]+)(?=[\s,.:;!?]|$)/.exec(words) ?? []
    const word = first.toLowerCase()
    const isWrong = functionWords.has(word) || orders.has(word) || subjectless.test(words)
    return isWrong ? [`${place} ${words.split(" ").slice(0, 4).join(" ")}`] : []
  })

/** The lines of comments that run past the width of the code, but for examples and for those with an address. */
export const longLinesIn = ({ path, text }: SourceText): ReadonlyArray<string> => {
  let isCode = false
  return text.split("\n").flatMap((line, index) => {
    if (/^\s*\* ```/.test(line)) isCode = !isCode
    const isLong = line.length > 120 && /^\s*(?:\*|\/[*/])/.test(line) && !line.includes("://")
    return isLong && !isCode ? [`${path}:${index + 1}`] : []
  })
}

const anyOf = (words: string): RegExp => new RegExp(`\\b(?:${words.replaceAll(" ", "\\s+")})\\b`, "gi")

/** For words of the glossary, the other names under which their things must not stand. */
export const otherNames: ReadonlyMap<string, RegExp> = new Map([
  ["interrupted", anyOf("(?:cut|crashed|killed|dead) runs?|runs? (?:(?:that|which) )?(?:is|are|was|were) cut")],
  ["resumed", anyOf("(?:take|takes|taken|taking|took) (?:\\w+ )?up")],
  ["continued", anyOf("(?:go|goes|going|gone|went) on(?! (?:an?|the|its?)\\b)")],
  ["abandoned", anyOf("left runs?|runs? (?:(?:that|which) )?(?:is|are|was|were) left")],
  ["suspended", anyOf("parked")],
  ["kept", anyOf("(?:saved|stored|persisted) sessions?")],
  ["nested", anyOf("(?:inner|child) runs?")],
  ["submitted", anyOf("(?:queued|posted) messages?")],
  ["unknown", anyOf("(?:doubtful|uncertain) calls?")]
])

/** The places at which a source or a page has another name for a thing of the glossary, each as `path:line words`. */
export const otherNamesIn = (source: SourceText): ReadonlyArray<string> => {
  const prose = source.path.endsWith(".md") ? source.text : proseOf(source)
  const text = prose.replaceAll(/^[ \t]*(?:\*|\/\/)/gm, (marks) => " ".repeat(marks.length))
  return [...otherNames.values()].flatMap((other) =>
    Array.from(
      text.matchAll(other),
      ({ 0: words, index }) => `${source.path}:${lineAt(text, index)} ${words.replaceAll(/\s+/g, " ")}`
    )
  )
}
