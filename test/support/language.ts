/**
 * The words that comments, pages and titles avoid. A sentence names its subject, such as the caller, the reader or the
 * call. A thing in `docs/architecture.md#words` has no other name. `prose.ts` measures the sentences.
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
      .filter((name) => /(?<!\.d)\.(?:tsx?|mjs|md)$/.test(name) && !/\/(?:node_modules|dist)\//.test(name))
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
