/**
 * Parses Markdown into nodes, none of them HTML. While a text grows, only its last piece is parsed again. At the end,
 * pieces with possible references to definitions elsewhere are parsed once more with those definitions.
 */
import type { Definition, FootnoteDefinition, Nodes, Parents, RootContent } from "mdast"
import { fromMarkdown } from "mdast-util-from-markdown"
import { gfmFromMarkdown } from "mdast-util-gfm"
import { gfm } from "micromark-extension-gfm"
import { isClosing, mostCharacters, normal, type Piece, split } from "./guard.ts"

/** Text kept as written. */
interface Plain {
  readonly type: "plain"
  readonly value: string
}

/** Unparsed table rows, or the unparsed end of a text. */
interface Rest {
  readonly type: "rest"
  readonly value: string
  /** Row count. Absent for the end of a text. */
  readonly rows?: number
}

/**
 * A block of a text. A heading's depth is its level in the document: at least 3, and at most one deeper than its
 * parent.
 */
export type Block = RootContent | Plain | Rest

interface Part {
  readonly piece: Piece
  readonly blocks: ReadonlyArray<Block>
  /** Depths of the headings around the following text. */
  readonly depths: ReadonlyArray<number>
}

/** A text, as far as parsed. */
export interface Parsed {
  readonly text: string
  readonly parts: ReadonlyArray<Part>
  /** `false` while part of the text is left to parse. */
  readonly isWhole: boolean
  /** Tells whether the text was parsed as final. */
  readonly isEnd: boolean
}

/** A text without characters. */
export const empty: Parsed = { text: "", parts: [], isWhole: true, isEnd: false }

// HTML is off, so that nothing ends at a distant mark, and Markdown between tags stays Markdown. The syntax finds
// addresses itself: the library's additional search reads a long text several times.
const options = {
  extensions: [gfm(), { disable: { null: ["htmlFlow", "htmlText"] } }],
  mdastExtensions: [gfmFromMarkdown().map(({ transforms: _transforms, ...extension }) => extension)]
}

/** Sets heading levels, and resolves references. */
const settle = (nodes: Array<RootContent>, depths: Array<number>): void => {
  const definitions = new Map<string, Definition>()
  const visit = (node: Nodes, each: (node: Nodes, parent: Parents, index: number) => void): void => {
    if (!("children" in node)) return
    for (const [index, child] of node.children.entries()) {
      each(child, node, index)
      visit(child, each)
    }
  }
  const root: Parents = { type: "root", children: nodes }
  visit(root, (node) => {
    if (node.type === "definition" && !definitions.has(node.identifier)) definitions.set(node.identifier, node)
    if (node.type !== "heading") return
    while ((depths.at(-1) ?? 0) >= node.depth) depths.pop()
    depths.push(node.depth)
    node.depth = Math.min(6, depths.length + 2) as typeof node.depth
  })
  if (definitions.size === 0) return
  visit(root, (node, parent, index) => {
    if (node.type !== "linkReference" && node.type !== "imageReference") return
    const definition = definitions.get(node.identifier)
    if (definition === undefined) return
    const { url } = definition
    const { children } = parent as { children: Array<Nodes> }
    children[index] = node.type === "linkReference"
      ? { type: "link", url, children: node.children }
      : { type: "image", url, alt: node.alt ?? null }
  })
}

/** Returns the block for a fence, whose lines no parser reads. */
const codeOf = ({ text }: Piece): RootContent => {
  const lines = text.replace(/\n$/, "").split("\n")
  const [opening = "", ...rest] = lines
  const [fence = "```"] = /^(?:`+|~+)/.exec(opening) ?? []
  if (isClosing(rest.at(-1) ?? "", { mark: fence.charAt(0), size: fence.length })) rest.pop()
  const [node] = fromMarkdown(opening.slice(0, 1_000), options).children
  const { lang = null, meta = null } = node?.type === "code" ? node : {}
  return { type: "code", lang, meta, value: rest.join("\n") }
}

/** Parses a piece, preceded by definitions from elsewhere. */
const partOf = (piece: Piece, around: ReadonlyArray<number>, definitions: string): Part => {
  const depths = [...around]
  const rest: ReadonlyArray<Rest> = piece.rows === undefined
    ? []
    : [{ type: "rest", value: piece.rows, rows: piece.rows.trimEnd().split("\n").length }]
  const done = (blocks: ReadonlyArray<Block>): Part => ({ piece, blocks: [...blocks, ...rest], depths })
  if (piece.kind === "plain") return done([{ type: "plain", value: piece.text }])
  if (piece.kind === "code") return done([codeOf(piece)])
  const nodes = fromMarkdown(definitions + piece.text, options).children
  settle(nodes, depths)
  return done(nodes.filter(({ position }) => (position?.start.offset ?? 0) >= definitions.length))
}

const isDefinition = (block: Block): block is Definition | FootnoteDefinition =>
  block.type === "definition" || block.type === "footnoteDefinition"

/** Returns a text's definitions as text. */
const definitionsOf = (parts: ReadonlyArray<Part>): string => {
  const found = parts.flatMap(({ blocks, piece }) =>
    blocks.filter(isDefinition).map(({ position }) =>
      piece.text.slice(position?.start.offset ?? 0, position?.end.offset ?? 0)
    )
  ).slice(0, 100)
  const text = found.join("\n\n")
  return text === "" || text.length > 4_000 ? "" : `${text}\n\n`
}

/**
 * Parses a text, reusing the parts in `before`. `isEnd` means that the text is final. `isOver` is asked between pieces:
 * if it returns `true`, the rest is left for the next call with the same text.
 */
export const parse = (before: Parsed, whole: string, isEnd: boolean, isOver = (): boolean => false): Parsed => {
  const full = normal(whole)
  const text = full.slice(0, mostCharacters)
  if (before.isWhole && before.isEnd === isEnd && before.text === full) return before
  const isGrown = full.startsWith(before.text)
  const parts = isGrown && !before.isEnd ? before.parts.filter(({ piece }) => piece.end > piece.start) : []
  // The last piece may change.
  const last = isGrown && !before.isEnd ? parts.pop() : undefined
  const from = last?.piece.start ?? 0
  for (const piece of split(text, from)) {
    const depths = parts.at(-1)?.depths ?? []
    const isSame = last !== undefined && piece.start === last.piece.start && piece.text === last.piece.text &&
      piece.kind === last.piece.kind && piece.rows === last.piece.rows
    parts.push(isSame ? last : partOf(piece, depths, ""))
    if (!isSame && piece.end < text.length && isOver()) {
      return { text: text.slice(0, piece.end), parts, isWhole: false, isEnd: false }
    }
  }
  const definitions = isEnd ? definitionsOf(parts) : ""
  if (definitions !== "") {
    for (const [index, { piece }] of parts.entries()) {
      if (piece.kind !== "markdown" || !piece.text.includes("[")) continue
      parts[index] = partOf(piece, parts[index - 1]?.depths ?? [], definitions)
    }
  }
  if (full.length > text.length) {
    const value = full.slice(text.length)
    const piece: Piece = { kind: "plain", start: text.length, end: text.length, text: "" }
    parts.push({ piece, blocks: [{ type: "rest", value }], depths: [] })
  }
  return { text: full, parts, isWhole: true, isEnd }
}

/** Returns a parsed text's blocks. */
export const blocksOf = ({ parts }: Parsed): ReadonlyArray<Block> => parts.flatMap(({ blocks }) => blocks)
