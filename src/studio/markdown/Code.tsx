/** Colors code. Loaded with the first complete code block. */
import type { RootContent, Text } from "hast"
import { common, createLowlight } from "lowlight"
import type { ReactNode } from "react"
import { memo } from "react"

const lowlight = createLowlight(common)

/** Maximum number of colored characters: some grammars read a long text several times. */
const most = 20_000

const isText = (node: RootContent): node is Text => node.type === "text"

const show = (node: RootContent, key: number): ReactNode => {
  if (isText(node)) return node.value
  if (node.type !== "element") return null
  const { className } = node.properties
  return (
    <span key={key} className={Array.isArray(className) ? className.join(" ") : ""}>{node.children.map(show)}</span>
  )
}

const isColored = (lang: string, value: string): boolean =>
  value.length <= most && lowlight.registered(lang) && value.split("\n").every((line) => line.length <= 2_000)

/** Code in its language's colors. */
export const Code = memo(({ lang, value }: { readonly lang: string; readonly value: string }) => (
  <code>{isColored(lang, value) ? lowlight.highlight(lang, value).children.map(show) : value}</code>
))
