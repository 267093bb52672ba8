/**
 * Finds the public exports that no doc comment explains, and those that are called and have no example.
 */
import { posix } from "node:path"
import { type Comment, parseSync } from "oxc-parser"
import { isNode, lineAt, type Node, type SourceText, walk } from "./source.ts"

/**
 * The exports of a module without a doc comment, each as `src/Tool.ts:12 make`. A name that is exported as a value and
 * as a type, or with overloads, needs one comment; the comment that opens the file is the module's and serves no export.
 * What is exported from another of the `sources` may have its comment there.
 */
export const undocumentedIn = (source: SourceText, sources: ReadonlyArray<SourceText> = []): ReadonlyArray<string> => {
  const { comments, program } = parseSync(source.path, source.text, { sourceType: "module" })
  const documented = documentedIn(source)
  const exported = new Map<string, Exported>()
  for (const statement of program.body as unknown as ReadonlyArray<Node>) {
    for (const item of exportsOf(statement)) if (!exported.has(item.name)) exported.set(item.name, item)
  }
  return [...exported.values()].filter(({ from, local, node }) => {
    const other = sources.find(({ path }) =>
      from !== undefined && path === posix.join(posix.dirname(source.path), from)
    )
    const isTold = (other === undefined ? documented : documentedIn(other)).has(local)
    return !isTold && !hasDoc(source.text, comments, node)
  }).map(({ name, node }) => `${source.path}:${lineAt(source.text, node.start)} ${name}`)
}

/** The names that a module declares with a doc comment. */
const documentedIn = ({ path, text }: SourceText): ReadonlySet<string> => {
  const { comments, program } = parseSync(path, text, { sourceType: "module" })
  const told = (program.body as unknown as ReadonlyArray<Node>).filter((node) => hasDoc(text, comments, node))
  return new Set(told.flatMap(declaredBy))
}

const hasDoc = (text: string, comments: ReadonlyArray<Comment>, node: Node): boolean =>
  comments.some(({ end, start, type, value }) =>
    start > 0 && type === "Block" && value.startsWith("*") && isBefore(text, end, node.start)
  )

/** Whether there is nothing but space between two places. */
const isBefore = (text: string, end: number, start: number): boolean =>
  end <= start && text.slice(end, start).trim() === ""

/** What is not called by itself: it is shown where it is used. */
const unshown = new Set([
  "schemas",
  "models",
  "options",
  "errors",
  "services",
  "references",
  "utility types",
  "entries"
])

/** The exports of a module that are called and whose doc comments show no example that is run. */
export const unshownIn = (source: SourceText): ReadonlyArray<string> => {
  const { comments, program } = parseSync(source.path, source.text, { sourceType: "module" })
  return (program.body as unknown as ReadonlyArray<Node>).flatMap((statement) =>
    exportsOf(statement).flatMap(({ name, node }) => {
      const doc = comments.find(({ end, start, type }) =>
        start > 0 && type === "Block" && isBefore(source.text, end, node.start)
      )
      const category = /@category (.+)/.exec(doc?.value ?? "")?.[1]
      return category === undefined || unshown.has(category) || doc!.value.includes("```ts import.meta.vitest")
        ? []
        : [`${source.path}:${lineAt(source.text, node.start)} ${name}`]
    })
  )
}

interface Exported {
  readonly name: string
  /** The name it has inside the module. */
  readonly local: string
  readonly node: Node
  /** The module that it is exported from, if that is another one. */
  readonly from?: string
}

const exportsOf = (statement: Node): ReadonlyArray<Exported> => {
  if (statement.type === "ExportAllDeclaration") {
    const name = statement.exported === null ? "*" : nameOf(statement.exported)
    return [{ name, local: name, node: statement }]
  }
  if (statement.type !== "ExportNamedDeclaration") return []
  return [
    ...declaredBy(statement).map((name) => ({ name, local: name, node: statement })),
    ...(statement.specifiers as ReadonlyArray<Node>).map((node) => ({
      name: nameOf(node.exported),
      local: nameOf(node.local),
      node,
      ...(isNode(statement.source) ? { from: String(statement.source.value) } : {})
    }))
  ]
}

/** The names that a statement declares, exported or not. */
const declaredBy = (statement: Node): ReadonlyArray<string> => {
  const declaration = (statement.type === "ExportNamedDeclaration" ? statement.declaration : statement) as Node | null
  if (declaration === null) return []
  if (declaration.type !== "VariableDeclaration") return isNode(declaration.id) ? [nameOf(declaration.id)] : []
  const names: Array<string> = []
  for (const declarator of declaration.declarations as ReadonlyArray<Node>) {
    walk(declarator.id as Node, (node, parent) => {
      if (node.type === "Identifier" && (parent?.type !== "Property" || parent.value === node)) names.push(nameOf(node))
    })
  }
  return names
}

const nameOf = (node: unknown): string => String((node as Node).name)
