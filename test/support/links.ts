/**
 * The links of Markdown pages to other places of the repository, and the anchors that a page offers to them.
 */
import { posix } from "node:path"
import type { SourceText } from "./source.ts"

export interface Link {
  /** Where the link stands, as `docs/tools.md:12`. */
  readonly place: string
  readonly target: string
}

/** The lines of a page outside of code fences, with their numbers. */
const proseOf = ({ text }: SourceText): ReadonlyArray<readonly [line: number, text: string]> => {
  let isCode = false
  return text.split("\n").flatMap((line, index) => {
    const isFence = /^\s*```/.test(line)
    if (isFence) isCode = !isCode
    return isFence || isCode ? [] : [[index + 1, line] as const]
  })
}

/** The address of the repository's files, for links to those that are not in the package. */
export const repository = "https://github.com/heddle-ts/heddle/blob/main/"

/** The path in the repository, and the heading, that a link on a page leads to. */
export const targetOf = (page: string, link: string): readonly [file: string, anchor: string | undefined] => {
  const [target = "", anchor] = link.split("#")
  if (target.startsWith(repository)) return [target.slice(repository.length), anchor]
  return [target === "" ? page : posix.join(posix.dirname(page), target), anchor]
}

/** The links of a page that lead to a file or a heading of this repository. */
export const linksIn = (page: SourceText): ReadonlyArray<Link> =>
  proseOf(page).flatMap(([line, text]) =>
    Array.from(text.matchAll(/\]\(([^)\s]+)\)/g), ([, target = ""]) => ({ place: `${page.path}:${line}`, target }))
      .filter(({ target }) => !/^[a-z]+:/.test(target) || target.startsWith(repository))
  )

/** The anchors of a page's headings, by the rule of GitHub: lower case, no punctuation, a number for a repetition. */
export const anchorsIn = (page: SourceText): ReadonlySet<string> => {
  const found = new Map<string, number>()
  const anchors = proseOf(page).flatMap(([, text]) => {
    const heading = /^#{1,6}\s+(.*)$/.exec(text)?.[1]
    if (heading === undefined) return []
    const name = heading.toLowerCase().replaceAll(/[^\p{L}\p{N}\s_-]/gu, "").trim().replaceAll(/\s/g, "-")
    const times = found.get(name) ?? 0
    found.set(name, times + 1)
    return [times === 0 ? name : `${name}-${times}`]
  })
  return new Set(anchors)
}
