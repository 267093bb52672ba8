/**
 * Sources as texts with paths, and the few operations on their syntax trees that the checks over them share.
 */
import * as fs from "node:fs"
import * as path from "node:path"
import { fileURLToPath } from "node:url"

/** A file of the package: its path from the package's root, with forward slashes, and its text. */
export interface SourceText {
  readonly path: string
  readonly text: string
}

/** A node of a syntax tree in the ESTree shape. */
export interface Node {
  readonly type: string
  readonly start: number
  readonly end: number
  readonly [property: string]: unknown
}

/** The root folder of the package. */
export const root = fileURLToPath(new URL("../../", import.meta.url))

/** Reads a file of the package. */
export const readSource = (file: string): SourceText => ({
  path: file,
  text: fs.readFileSync(path.join(root, file), "utf8")
})

/** Reads every TypeScript file below a folder of the package, in a stable order. */
export const readSources = (folder: string): ReadonlyArray<SourceText> =>
  fs.readdirSync(path.join(root, folder), { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(".ts") && !name.endsWith(".d.ts"))
    .sort()
    .map((name) => readSource(`${folder}/${name.replaceAll(path.sep, "/")}`))

/** The line, counted from one, on which an offset of a text lies. */
export const lineAt = (text: string, offset: number): number => text.slice(0, offset).split("\n").length

/** Visits a node and everything below it, parents first. */
export const walk = (
  node: Node,
  visit: (node: Node, parent: Node | undefined) => void,
  parent: Node | undefined = undefined
): void => {
  visit(node, parent)
  for (const value of Object.values(node)) {
    for (const child of Array.isArray(value) ? value : [value]) {
      if (isNode(child)) walk(child, visit, node)
    }
  }
}

/** Whether a value found in a tree is a node of it. */
export const isNode = (value: unknown): value is Node =>
  typeof value === "object" && value !== null && "type" in value && typeof value.type === "string"
