/**
 * What an entry point of the package loads: the modules that its imports reach, followed through the sources without
 * running them. Imports of types alone load nothing.
 */
import { parseSync } from "oxc-parser"
import type { SourceText } from "./source.ts"

/**
 * Every module that loading `entries` loads: ours by their paths from the root of the package, those of packages as they
 * are imported. An entry that is not among the sources is an error, and so is an import of one.
 */
export const loadedBy = (entries: ReadonlyArray<string>, sources: ReadonlyArray<SourceText>): ReadonlySet<string> => {
  const texts = new Map(sources.map(({ path, text }) => [path, text]))
  const loaded = new Set<string>()
  const load = (module: string): void => {
    if (loaded.has(module)) return
    loaded.add(module)
    if (!module.startsWith("src/")) return
    const text = texts.get(module)
    if (text === undefined) throw new Error(`there is no ${module}`)
    importsOf(module, text).forEach(load)
  }
  entries.forEach(load)
  return loaded
}

const importsOf = (path: string, text: string): ReadonlyArray<string> => {
  const { staticExports, staticImports } = parseSync(path, text, { sourceType: "module" }).module
  const imported = staticImports
    .filter(({ entries }) => entries.length === 0 || entries.some(({ isType }) => !isType))
    .map(({ moduleRequest }) => moduleRequest.value)
  const passedOn = staticExports.flatMap(({ entries }) =>
    entries.flatMap(({ isType, moduleRequest }) => isType || moduleRequest === null ? [] : [moduleRequest.value])
  )
  return [...imported, ...passedOn].map((specifier) =>
    specifier.startsWith(".") ? new URL(specifier, `file:///${path}`).pathname.slice(1) : specifier
  )
}
