/**
 * The examples in doc comments and on Markdown pages, as programs. An example is a fence marked `ts import.meta.vitest`; a
 * trailing `expression // => value` in it is an assertion. A page may declare the imports that its examples have in
 * common, in one fence marked `ts import.meta.vitest imports`. An example keeps its line numbers, and an assertion that
 * could not be placed is an error rather than a comment. A fence marked `tsx import.meta.vitest` is a module of a page: it
 * states its own imports.
 */
import { type Comment, parseSync } from "oxc-parser"
import { lineAt, type Node, type SourceText, walk } from "./source.ts"

export interface Example {
  /** Where the first line of its code stands, as `src/Tool.ts:12`. */
  readonly place: string
  readonly code: string
  /** The import declarations that its page states once for all of its examples. */
  readonly imports?: string
  /** `true` if it is written in TSX. */
  readonly isPage?: boolean
}

const marked = "ts import.meta.vitest"
const markedPage = "tsx import.meta.vitest"
const markedImports = `${marked} imports`

/** The marked fences of a source: those in doc comments of TypeScript, those at any place of Markdown. */
export const examplesOf = (source: SourceText): ReadonlyArray<Example> => {
  const fences = fencesOf(source)
  const declared = fences.filter(({ info }) => info === markedImports)
  const [imports, second] = declared
  if (second !== undefined) throw new Error(`${second.place}: the page declares its imports twice`)
  if (imports !== undefined && !isImports(imports.code)) {
    throw new Error(`${imports.place}: the imports of a page hold more than import declarations`)
  }
  return fences.flatMap((fence) => {
    const { code, info, place } = fence
    if (info === markedPage) return [{ code, place, isPage: true }]
    if (fence === imports || (info === marked && imports === undefined)) return [{ code, place }]
    return info === marked ? [{ code, place, imports: imports!.code }] : []
  })
}

const isImports = (code: string): boolean => {
  const { errors, program } = parseSync("imports.ts", code, { sourceType: "module" })
  return errors.length === 0 && program.body.every(({ type }) => type === "ImportDeclaration")
}

/** The places of TypeScript fences that are not marked, and so would be shown without ever being run. */
export const unmarkedIn = (source: SourceText): ReadonlyArray<string> =>
  fencesOf(source).flatMap(({ info, place }) =>
    /^(ts|typescript|tsx|mts|js|javascript|jsx|mjs)\b/.test(info) && ![marked, markedImports, markedPage].includes(info)
      ? [place]
      : []
  )

/** The code of an example with its assertions made real. */
export const programOf = ({ code, imports = "", isPage = false, place }: Example): string => {
  const { comments, errors, program } = parseSync(isPage ? "page.tsx" : "example.ts", code, { sourceType: "module" })
  if (errors.length > 0) throw new Error(`${place}: the example does not parse: ${errors[0]!.message}`)
  const statements = assertable(program as unknown as Node, code)
  const edits = comments.flatMap((comment, index) => {
    if (comment.type !== "Line" || !/^\s*=>/.test(comment.value)) return []
    const where = `${place}: the assertion in line ${lineAt(code, comment.start)}`
    const statement = statements.findLast(({ end }) => isBetween(code, end, comment.start))
    if (statement === undefined) throw new Error(`${where} follows no expression or constant`)
    const value = valueOf(code, comments.slice(index))
    if (value === undefined) throw new Error(`${where} has a value that does not parse`)
    return [{ ...statement, value }]
  })
  return edits.reduceRight((text, { end, replace, start, subject, value }) => {
    const assertion = `;exampleEquals((${subject}), (${value}))`
    return text.slice(0, replace ? start : end) + assertion + text.slice(end)
  }, code) + `\n${imports}` + epilogue
}

/** Whether a comment belongs to what ends before it: in the same line or alone in the next. */
const isBetween = (code: string, end: number, start: number): boolean =>
  end <= start && /^[ \t;]*\n?[ \t]*$/.test(code.slice(end, start))

/** The value that comments assert, which goes on over the following lines until it is complete. */
const valueOf = (code: string, comments: ReadonlyArray<Comment>): string | undefined => {
  let value = ""
  for (const [index, comment] of comments.entries()) {
    const previous = comments[index - 1]
    if (previous !== undefined && !isBetween(code, previous.end, comment.start)) return undefined
    value += index === 0 ? comment.value.replace(/^\s*=>/, "") : `\n${comment.value}`
    if (value.trim() !== "" && parseSync("value.ts", `(${value}\n)`).errors.length === 0) return value.trim()
  }
  return undefined
}

interface Assertable {
  readonly start: number
  readonly end: number
  /** Whether the assertion stands for the statement, which it then contains. */
  readonly replace: boolean
  readonly subject: string
}

// It stands at the end, where imports and functions serve what is above them, so that an example keeps its lines.
const epilogue = `
import { assert as exampleAssert } from "@effect/vitest"
import * as ExampleEqual from "effect/Equal"
function exampleEquals(actual: unknown, expected: unknown): void {
  if (!ExampleEqual.equals(actual, expected)) exampleAssert.deepStrictEqual(actual, expected)
}
`

const assertable = (program: Node, code: string): ReadonlyArray<Assertable> => {
  const found: Array<Assertable> = []
  walk(program, (node) => {
    if (node.type === "ExpressionStatement") {
      const { end, start } = node.expression as Node
      found.push({ start: node.start, end: node.end, replace: true, subject: code.slice(start, end) })
    }
    if (node.type === "VariableDeclaration") {
      const name = ((node.declarations as ReadonlyArray<Node>).at(-1)!.id as Node).name
      if (typeof name !== "string") return
      found.push({ start: node.start, end: node.end, replace: false, subject: name })
    }
  })
  return found.sort((left, right) => left.end - right.end || right.start - left.start)
}

interface Fence {
  readonly info: string
  readonly code: string
  readonly place: string
}

const fencesOf = (source: SourceText): ReadonlyArray<Fence> => {
  const fences: Array<Fence> = []
  let open:
    | { readonly indent: number; readonly marker: string; readonly info: string; readonly line: number }
    | undefined
  let code: Array<string> = []
  for (const { line, text } of proseOf(source)) {
    const fence = /^(\s*)(`{3,})(.*)$/.exec(text)
    if (open === undefined && fence !== null) {
      open = { indent: fence[1]!.length, marker: fence[2]!, info: fence[3]!.trim(), line }
      code = []
    } else if (open !== undefined && fence?.[2] === open.marker && fence[3]!.trim() === "") {
      fences.push({ info: open.info, code: code.join("\n"), place: `${source.path}:${open.line + 1}` })
      open = undefined
    } else if (open !== undefined) code.push(text.slice(Math.min(open.indent, text.search(/\S|$/))))
  }
  if (open !== undefined) throw new Error(`${source.path}:${open.line}: the fence is never closed`)
  return fences
}

/** The lines that are read as Markdown, with their line numbers. */
const proseOf = (source: SourceText): ReadonlyArray<{ readonly line: number; readonly text: string }> => {
  if (source.path.endsWith(".md")) return source.text.split("\n").map((text, index) => ({ line: index + 1, text }))
  const { comments } = parseSync(source.path, source.text, { sourceType: "module" })
  return comments.filter(({ type, value }) => type === "Block" && value.startsWith("*")).flatMap(({ start, value }) =>
    value.split("\n").map((text, index) => ({
      line: lineAt(source.text, start) + index,
      text: text.replace(/^\s*\* ?/, "")
    }))
  )
}

/**
 * Returns a program that reads the environment as it is when it runs: Effect reads it once for each process, and another
 * test of the process may have been the first.
 */
export const withEnvironment = (program: string): string => {
  if (!program.includes(".layerConfig(")) return program
  const environment = "ExampleContext.make(ExampleConfig.ConfigProvider, ExampleConfig.fromEnv())"
  return program.replaceAll("Effect.runPromise(", `Effect.runPromiseWith(${environment})(`)
    + `\nimport * as ExampleContext from "effect/Context"\nimport * as ExampleConfig from "effect/ConfigProvider"\n`
}
