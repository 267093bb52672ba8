/**
 * Builds Studio, the application in the browser: `dist/studio` has its files under names with a hash of their content, a
 * manifest of what a server serves, and the licenses of the bundled libraries. The sizes are printed.
 */
import { readdirSync, readFileSync } from "node:fs"
import { join, resolve, sep } from "node:path"
import { gzipSync } from "node:zlib"
import { defineConfig, type Plugin, type RolldownOptions } from "rolldown"

const root = resolve(import.meta.dirname, "..")
const source = join(root, "src/studio")

/** A file that a server serves. */
export interface Served {
  readonly name: string
  readonly type: string
  /** `"page"` for the document and what it names, `"later"` for what the application asks for when it needs it. */
  readonly load: "page" | "later"
  readonly bytes: number
  readonly gzip: number
}

const types: Readonly<Record<string, string>> = {
  css: "text/css; charset=utf-8",
  html: "text/html; charset=utf-8",
  js: "text/javascript; charset=utf-8",
  txt: "text/plain; charset=utf-8"
}

const typeOf = (name: string): string => types[name.slice(name.lastIndexOf(".") + 1)]!

/** The styles in the order of their names, without comments and line ends. */
const styles = (): string =>
  readdirSync(join(source, "styles")).filter((name) => name.endsWith(".css")).sort()
    .map((name) => readFileSync(join(source, "styles", name), "utf8"))
    .join("\n").replaceAll(/\/\*.*?\*\//gs, "").replaceAll(/\s+/g, " ").replaceAll(/\s*([{};,])\s*/g, "$1").trim()

/** Returns the folder of the package that has a module, if one has. */
const packageOf = (id: string): string | undefined => {
  const parts = id.replace(/^\0/, "").replace(/\?.*$/, "").split(sep)
  const at = parts.lastIndexOf("node_modules")
  if (at < 0) return undefined
  const isScoped = parts[at + 1]?.startsWith("@") === true
  return parts.slice(0, at + (isScoped ? 3 : 2)).join(sep)
}

const licenseOf = (folder: string): string => {
  const { license, name, version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"))
  const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each))
  const text = file === undefined ? `License: ${license}` : readFileSync(join(folder, file), "utf8").trim()
  return `${name} ${version} (${license})\n\n${text}\n`
}

/** The licenses of all packages of which modules are in the bundle. */
const licenses = (modules: Iterable<string>): string => {
  const folders = new Set(Array.from(modules, packageOf).filter((folder) => folder !== undefined))
  return Array.from(folders).sort().map(licenseOf).join(`\n${"-".repeat(80)}\n\n`)
}

const kilobytes = (bytes: number): string => (bytes / 1000).toFixed(1).padStart(8)

const print = (files: ReadonlyArray<Served>): void => {
  const row = (name: string, bytes: number, gzip: number, load: string) =>
    console.log(`${name.padEnd(36)}${kilobytes(bytes)}${kilobytes(gzip)}  ${load}`)
  console.log(`${"Studio".padEnd(36)}${"kB".padStart(8)}${"gzip".padStart(8)}  load`)
  for (const { bytes, gzip, load, name } of files) row(name, bytes, gzip, load)
  const first = files.filter(({ load }) => load === "page")
  row(
    "first load",
    first.reduce((sum, { bytes }) => sum + bytes, 0),
    first.reduce((sum, { gzip }) => sum + gzip, 0),
    ""
  )
}

/** Adds the document, the styles, the licenses and the manifest to the bundle of scripts. */
const site = (isQuiet: boolean): Plugin => ({
  name: "site",
  generateBundle: {
    order: "post",
    handler(_, bundle) {
      const chunks = Object.values(bundle).filter((output) => output.type === "chunk")
      const entry = chunks.find(({ isEntry }) => isEntry)!
      const first = new Set<string>()
      const load = (name: string): void => {
        if (first.has(name)) return
        first.add(name)
        chunks.find(({ fileName }) => fileName === name)?.imports.forEach(load)
      }
      load(entry.fileName)
      const emit = (name: string, source: string): string =>
        this.getFileName(this.emitFile({ type: "asset", name, source }))
      const css = emit("studio.css", styles())
      const preloads = Array.from(first).filter((name) => name !== entry.fileName)
        .map((name) => `\n    <link rel="modulepreload" href="${name}">`).join("")
      const html = readFileSync(join(source, "index.html"), "utf8")
        .replace("\"studio.css\"", `"${css}"`)
        .replace(/(<script type="module" src=")main\.tsx("><\/script>)/, `$1${entry.fileName}$2${preloads}`)
      const modules = chunks.flatMap((chunk) => Object.keys(chunk.modules))
      const text = licenses(modules)
      const contents: ReadonlyArray<readonly [name: string, content: string, load: Served["load"]]> = [
        ["index.html", html, "page"],
        [css, styles(), "page"],
        ...chunks.map((chunk) => [chunk.fileName, chunk.code, first.has(chunk.fileName) ? "page" : "later"] as const),
        ["LICENSES.txt", text, "later"]
      ]
      const files = contents.map(([name, content, load]): Served => ({
        name,
        type: typeOf(name),
        load,
        bytes: Buffer.byteLength(content),
        gzip: gzipSync(content, { level: 9 }).length
      }))
      this.emitFile({ type: "asset", fileName: "index.html", source: html })
      this.emitFile({ type: "asset", fileName: "LICENSES.txt", source: text })
      this.emitFile({
        type: "asset",
        fileName: "manifest.json",
        source: `${JSON.stringify({ files }, undefined, 2)}\n`
      })
      if (!isQuiet) print(files)
    }
  }
})

/** Leaves out what no module calls: the transforms of Markdown, which `markdown/parse.ts` takes away. */
const uncalled = (): Plugin => ({
  name: "uncalled",
  resolveId: (id) => id === "mdast-util-find-and-replace" ? "\0uncalled" : undefined,
  load: (id) => id === "\0uncalled" ? "export const findAndReplace = undefined" : undefined
})

/** How Studio is built. */
export interface Building {
  /** The folder of the files. `dist/studio` by default. */
  readonly dir?: string
  /** `"development"` keeps the warnings of React. */
  readonly mode?: "production" | "development"
  readonly isQuiet?: boolean
}

export const configOf = (
  { dir = join(root, "dist/studio"), isQuiet = false, mode = "production" }: Building = {}
): RolldownOptions & { readonly output: { readonly dir: string } } => ({
  cwd: root,
  input: { studio: join(source, "main.tsx") },
  platform: "browser",
  logLevel: "silent",
  transform: {
    target: "es2023",
    define: { "process.env.NODE_ENV": JSON.stringify(mode) },
    jsx: { runtime: "automatic", development: false }
  },
  plugins: [uncalled(), site(isQuiet)],
  output: {
    dir,
    cleanDir: true,
    format: "es",
    minify: mode === "production",
    entryFileNames: "[name]-[hash].js",
    chunkFileNames: "[name]-[hash].js",
    assetFileNames: "[name]-[hash].[ext]"
  }
})

export default defineConfig(configOf())
