/**
 * The rule for the language of comments, pages and titles: a sentence names its subject, such as the caller, the reader or
 * the call, and states what is emitted, returned or reported. The words below do neither.
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
