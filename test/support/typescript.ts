/**
 * TypeScript as a library: the language service of TypeScript 6, since the TypeScript that the package is built with has
 * no JavaScript API.
 */
import * as path from "node:path"
import ts from "../../scratchpad/reference/node_modules/typescript/lib/typescript.js"
import { root } from "./source.ts"

const settings = (): ts.CompilerOptions => {
  const { config } = ts.readConfigFile(path.join(root, "tsconfig.json"), ts.sys.readFile)
  const { options } = ts.parseJsonConfigFileContent({ ...config, files: ["x.ts"], references: [] }, ts.sys, root)
  return { ...options, composite: false, incremental: false, declarationMap: false, noEmit: true, types: ["node"] }
}

/** Texts that were parsed, for all services: most of them are the declarations of packages. */
let registry = ts.createDocumentRegistry()

/** Lets go of the parsed texts. They take half a gigabyte, which each collection of the heap goes through. */
export const forget = (): void => {
  registry = ts.createDocumentRegistry()
}

/** A language service over some files, by their paths in the package. A text stands in for what is on disk, or is not. */
export const serviceOf = (files: { readonly [file: string]: string }): ts.LanguageService => {
  const texts = new Map(Object.entries(files).map(([file, text]) => [path.join(root, file), text]))
  const options = settings()
  const read = (file: string): string | undefined => texts.get(file) ?? ts.sys.readFile(file)
  return ts.createLanguageService({
    useCaseSensitiveFileNames: () => true,
    directoryExists: ts.sys.directoryExists,
    getDirectories: ts.sys.getDirectories,
    readDirectory: ts.sys.readDirectory,
    fileExists: (file) => texts.has(file) || ts.sys.fileExists(file),
    readFile: read,
    getScriptFileNames: () => [...texts.keys()],
    getScriptVersion: (file) => texts.get(file) ?? "",
    getScriptSnapshot: (file) => {
      const text = read(file)
      return text === undefined ? undefined : ts.ScriptSnapshot.fromString(text)
    },
    getCurrentDirectory: () => root,
    getCompilationSettings: () => options,
    getDefaultLibFileName: ts.getDefaultLibFilePath
  }, registry)
}

export { ts }
