/**
 * What an editor shows where the mouse rests on a name: read by the language service of TypeScript 6, since the
 * TypeScript that the package is built with has no JavaScript API.
 */
import * as path from "node:path"
import ts from "../../scratchpad/reference/node_modules/typescript/lib/typescript.js"
import { root } from "./source.ts"

/** One hover: the name that the mouse is on, what is shown of its type, and its documentation. */
export interface Hover {
  readonly name: string
  readonly type: string
  readonly documentation: string
}

const mark = /\/\* hover \*\/ /g

const settings = (): ts.CompilerOptions => {
  const { config } = ts.readConfigFile(path.join(root, "tsconfig.json"), ts.sys.readFile)
  const { options } = ts.parseJsonConfigFileContent({ ...config, files: ["x.ts"], references: [] }, ts.sys, root)
  return { ...options, composite: false, incremental: false, declarationMap: false, noEmit: true, types: ["node"] }
}

/** The hovers at the marks of some files. The files need not be on disk. Throws where one has a type error. */
export const hoversOf = (files: { readonly [file: string]: string }): ReadonlyArray<Hover> => {
  const texts = new Map(Object.entries(files).map(([file, text]) => [path.join(root, file), text]))
  const options = settings()
  const read = (file: string): string | undefined => texts.get(file) ?? ts.sys.readFile(file)
  const service = ts.createLanguageService({
    useCaseSensitiveFileNames: () => true,
    directoryExists: ts.sys.directoryExists,
    getDirectories: ts.sys.getDirectories,
    readDirectory: ts.sys.readDirectory,
    fileExists: (file) => texts.has(file) || ts.sys.fileExists(file),
    readFile: read,
    getScriptFileNames: () => [...texts.keys()],
    getScriptVersion: () => "1",
    getScriptSnapshot: (file) => {
      const text = read(file)
      return text === undefined ? undefined : ts.ScriptSnapshot.fromString(text)
    },
    getCurrentDirectory: () => root,
    getCompilationSettings: () => options,
    getDefaultLibFileName: ts.getDefaultLibFilePath
  })
  return [...texts].flatMap(([file, text]) => {
    const errors = [...service.getSyntacticDiagnostics(file), ...service.getSemanticDiagnostics(file)]
    if (errors.length > 0) {
      throw new Error(errors.map(({ messageText }) => ts.flattenDiagnosticMessageText(messageText, "\n")).join("\n"))
    }
    return [...text.matchAll(mark)].map(({ 0: matched, index }) => {
      const at = index + matched.length
      const info = service.getQuickInfoAtPosition(file, at)
      return {
        name: /^\w+/.exec(text.slice(at))?.[0] ?? "",
        type: ts.displayPartsToString(info?.displayParts),
        documentation: ts.displayPartsToString(info?.documentation)
      }
    })
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
