/** Renders Markdown as elements, never as HTML: anything resembling HTML stays text. */
import type { AlignType, ListItem, Nodes, TableCell } from "mdast"
import type { ReactNode } from "react"
import { Fragment, lazy, memo, Suspense, useEffect, useRef, useState } from "react"
import { Copy } from "../parts/Copy.tsx"
import { Long } from "../parts/Long.tsx"
import { type Block, empty, parse, type Parsed } from "./parse.ts"

const Code = lazy(async () => ({ default: (await import("./Code.tsx")).Code }))

/** Returns a link's complete address, or `undefined` for an unacceptable address. */
const addressOf = (url: string): string | undefined => {
  if (!/^(?:https?|mailto):/i.test(url) || url.length > 4_000) return undefined
  return URL.canParse(url) ? new URL(url).href : undefined
}

const Link = ({ children, url }: { readonly children: ReactNode; readonly url: string }): ReactNode => {
  const address = addressOf(url)
  if (address === undefined) return children
  // The style sheet shows the address of the hovered or focused link.
  return <a href={address} target="_blank" rel="noreferrer noopener" data-address={address}>{children}</a>
}

const CodeBlock = ({ isGrowing, lang, value }: {
  readonly isGrowing: boolean
  readonly lang: string
  readonly value: string
}): ReactNode => {
  const plain = <code>{value}</code>
  return (
    <figure className="code">
      <figcaption>
        <span>{lang === "" ? "text" : lang.slice(0, 40)}</span>
        <Copy text={value} what="code" />
      </figcaption>
      <pre tabIndex={0}>
        {isGrowing ? plain : <Suspense fallback={plain}><Code lang={lang} value={value} /></Suspense>}
      </pre>
    </figure>
  )
}

const all = (nodes: ReadonlyArray<Nodes>): ReactNode =>
  // Text nodes have no keys except their positions.
  // oxlint-disable-next-line react/no-array-index-key
  nodes.map((node, index) => <Fragment key={index}>{one(node, false)}</Fragment>)

const item = ({ checked, children, spread }: ListItem, index: number): ReactNode => {
  const [first, ...rest] = children
  const isTight = spread !== true && first?.type === "paragraph"
  return (
    <li key={index}>
      {typeof checked === "boolean" && (
        <input type="checkbox" checked={checked} disabled aria-label={checked ? "Done" : "Open"} />
      )}
      {isTight ? <>{all(first.children)}{all(rest)}</> : all(children)}
    </li>
  )
}

const cells = (row: ReadonlyArray<TableCell>, isHead: boolean, align: ReadonlyArray<AlignType>): ReactNode =>
  row.map(({ children }, index) => {
    const style = { textAlign: align[index] ?? undefined }
    return isHead
      ? <th key={index} scope="col" style={style}>{all(children)}</th>
      : <td key={index} style={style}>{all(children)}</td>
  })

const one = (node: Nodes | Block, isGrowing: boolean): ReactNode => {
  switch (node.type) {
    case "text":
      return node.value
    case "paragraph":
      return <p>{all(node.children)}</p>
    case "heading": {
      const Heading = `h${node.depth as 3 | 4 | 5 | 6}` as const
      return <Heading>{all(node.children)}</Heading>
    }
    case "strong":
      return <strong>{all(node.children)}</strong>
    case "emphasis":
      return <em>{all(node.children)}</em>
    case "delete":
      return <del>{all(node.children)}</del>
    case "inlineCode":
      return <code>{node.value}</code>
    case "code":
      return <CodeBlock lang={node.lang ?? ""} value={node.value} isGrowing={isGrowing} />
    case "link":
      return <Link url={node.url}>{all(node.children)}</Link>
    case "image":
      return <Link url={node.url}>Image: {node.alt || "without a description"}</Link>
    case "break":
      return <br />
    case "thematicBreak":
      return <hr />
    case "list":
      return node.ordered === true
        ? <ol start={node.start ?? 1}>{node.children.map(item)}</ol>
        : <ul>{node.children.map(item)}</ul>
    case "blockquote":
      return <blockquote>{all(node.children)}</blockquote>
    case "table": {
      const [head, ...rows] = node.children
      const align = node.align ?? []
      return (
        <div className="scroll" tabIndex={0} role="group" aria-label="Table">
          <table>
            <thead>
              <tr>{cells(head?.children ?? [], true, align)}</tr>
            </thead>
            <tbody>{rows.map(({ children }, index) => <tr key={index}>{cells(children, false, align)}</tr>)}</tbody>
          </table>
        </div>
      )
    }
    case "footnoteReference":
      return <sup>[{node.label ?? node.identifier}]</sup>
    case "footnoteDefinition":
      return (
        <div className="footnote">
          <sup>[{node.label ?? node.identifier}]</sup> {all(node.children)}
        </div>
      )
    case "plain":
      return (
        <div className="plain">
          <Long text={node.value} />
        </div>
      )
    case "rest":
      return (
        <details className="rest">
          <summary>
            {node.rows === undefined
              ? `${node.value.length.toLocaleString("en")} more characters as plain text`
              : node.rows === 1
              ? "1 more row"
              : `${node.rows.toLocaleString("en")} more rows`}
          </summary>
          <div className="plain">
            <Long text={node.value} />
          </div>
        </details>
      )
    case "html":
      return node.value
    case "imageReference":
      return node.alt ?? ""
    case "linkReference":
      return all(node.children)
    default:
      return null
  }
}

const Shown = memo(({ block, isGrowing }: { readonly block: Block; readonly isGrowing: boolean }): ReactNode =>
  one(block, isGrowing)
)

/** Number of pieces compared and drawn together. */
const together = 32

interface ChunkOf {
  readonly parts: Parsed["parts"]
  readonly isGrowing: boolean
}

const isSame = (before: ChunkOf, now: ChunkOf): boolean =>
  before.isGrowing === now.isGrowing && before.parts.length === now.parts.length &&
  before.parts.every((part, index) => part === now.parts[index])

/** Consecutive pieces. A long text has many, and a delta changes only the last. */
const Chunk = memo(
  ({ isGrowing, parts }: ChunkOf): ReactNode =>
    parts.map(({ blocks, piece }, part) =>
      blocks.map((block, index) => (
        <Shown
          key={`${piece.start}/${index}`}
          block={block}
          isGrowing={isGrowing && part === parts.length - 1 && index === blocks.length - 1}
        />
      ))
    ),
  isSame
)

/** Time in milliseconds after which parsing yields to drawing. */
const slice = 12

/** Model text as Markdown. `isGrowing` means that more may come. */
export const Markdown = memo(({ isGrowing = false, text }: {
  readonly text: string
  readonly isGrowing?: boolean
}): ReactNode => {
  const parsed = useRef<Parsed>(empty)
  const [, again] = useState(0)
  const end = performance.now() + slice
  parsed.current = parse(parsed.current, text, !isGrowing, () => performance.now() > end)
  const { isWhole, parts } = parsed.current
  useEffect(() => {
    if (isWhole) return
    const timer = setTimeout(() => again((count) => count + 1))
    return () => clearTimeout(timer)
  })
  return Array.from({ length: Math.ceil(parts.length / together) }, (_, index) => {
    const end = (index + 1) * together
    return <Chunk key={index} parts={parts.slice(end - together, end)} isGrowing={isGrowing && end >= parts.length} />
  })
})
