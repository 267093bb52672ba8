/**
 * What an editor shows where the mouse rests on a name.
 */
import * as path from "node:path"
import { root } from "./source.ts"
import { serviceOf, ts } from "./typescript.ts"

/** One hover: the name that the mouse is on, and what is shown of its type. */
export interface Hover {
  readonly name: string
  readonly type: string
}

const mark = /\/\* hover \*\/ /g

/** The hovers at the marks of a file, which need not be on disk. Throws where it has a type error. */
export const hoversOf = (file: string, text: string): ReadonlyArray<Hover> => {
  const service = serviceOf({ [file]: text })
  const name = path.join(root, file)
  const errors = [...service.getSyntacticDiagnostics(name), ...service.getSemanticDiagnostics(name)]
  if (errors.length > 0) {
    throw new Error(errors.map(({ messageText }) => ts.flattenDiagnosticMessageText(messageText, "\n")).join("\n"))
  }
  return [...text.matchAll(mark)].map(({ 0: matched, index }) => {
    const at = index + matched.length
    const parts = service.getQuickInfoAtPosition(name, at)?.displayParts
    return { name: /^\w+/.exec(text.slice(at))?.[0] ?? "", type: ts.displayPartsToString(parts) }
  })
}

const width = 120

/** How many lines a text takes in an editor's window. */
export const linesOf = (text: string): number =>
  text.split("\n").reduce((lines, line) => lines + Math.max(1, Math.ceil(line.length / width)), 0)

/**
 * A type without what tells nothing: the module in front of a name, which is there if the file imports the module, and the
 * order of a union, in which the compiler met its members.
 */
export const plain = (type: string): string =>
  type.replaceAll(/\b[A-Z]\w*\.(?=[A-Z])/g, "")
    .replaceAll(/\w+(?: \| \w+)+/g, (union) => union.split(" | ").toSorted().join(" | "))
