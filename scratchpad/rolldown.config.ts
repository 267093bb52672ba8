import { readdirSync, rmSync } from "node:fs"
import { join, resolve } from "node:path"
import { defineConfig, type Plugin, type PluginContext } from "rolldown"

// The compiler writes a file for each module, and Node spends more time on finding a file than on reading one. What every
// run needs goes into two: what data is, which loads nothing that runs, and what runs it. Every other module stays a file
// of its own, so that a bundle can leave it out, and so does each entry point.

const isIndex = (path: string): boolean => /(^|[/\\])index\.(ts|js(\.map)?)$/.test(path)

const isInternal = (path: string): boolean => /(^|[/\\])internal[/\\]/.test(path)

const filesOf = (folder: string): ReadonlyArray<string> => readdirSync(folder, { encoding: "utf8", recursive: true })

/** Studio is a bundle of its own, for the browser. */
const isStudio = (path: string): boolean => /^studio[/\\]/.test(path)

const entries = filesOf("src").filter((path) =>
  path.endsWith(".ts") && !isIndex(path) && !isInternal(path) && !isStudio(path)
)

type Modules = Pick<PluginContext, "getModuleInfo">

/** The modules that loading these loads. */
const loadedBy = (names: ReadonlyArray<string>, modules: Modules): ReadonlySet<string> => {
  const loaded = new Set<string>()
  const load = (id: string): void => {
    if (loaded.has(id)) return
    loaded.add(id)
    modules.getModuleInfo(id)?.importedIds.forEach(load)
  }
  names.forEach((name) => load(resolve("src", `${name}.ts`)))
  return loaded
}

let groups: ReadonlyArray<readonly [name: string, modules: ReadonlySet<string>]> | undefined

/** The data of every run, and what events, which are data as well, have in common with what runs. */
const grouped = (modules: Modules): typeof groups => {
  const run = loadedBy(["Adapter", "Chat", "Tool"], modules)
  const shared = Array.from(loadedBy(["Event"], modules)).filter((id) => run.has(id))
  return [["data", new Set([...loadedBy(["Message", "Response", "Thread"], modules), ...shared])], ["run", run]]
}

const groupOf = (id: string, modules: Modules): string | null => {
  groups ??= grouped(modules)
  return groups?.find(([, members]) => members.has(id))?.[0] ?? null
}

/** What the compiler wrote and nothing loads any more goes, with its note that everything is written already. */
const tidy: Plugin = {
  name: "tidy",
  writeBundle({ dir = "" }, files) {
    const written = new Set(Object.keys(files).map((file) => resolve(dir, file)))
    filesOf(dir).filter((path) => /\.js(\.map)?$/.test(path) && !isIndex(path) && !isStudio(path))
      .map((path) => resolve(dir, path))
      .filter((path) => !written.has(path)).forEach((path) => rmSync(path))
    rmSync(resolve(dir, "tsconfig.tsbuildinfo"), { force: true })
  }
}

export default defineConfig({
  input: Object.fromEntries(entries.map((path) => [path.slice(0, -".ts".length), join("src", path)])),
  external: /^(?![./]|[A-Za-z]:)/,
  platform: "neutral",
  transform: { target: "es2022" },
  plugins: [tidy],
  logLevel: "warn",
  output: {
    dir: "dist",
    chunkFileNames: "internal/[name].js",
    sourcemap: true,
    sourcemapExcludeSources: true,
    codeSplitting: { groups: [{ name: groupOf, debugName: "core" }] }
  }
})
