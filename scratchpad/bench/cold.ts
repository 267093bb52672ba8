/**
 * Measures programs from the start of their process to its end. The program of a loop is one file with its packages beside
 * it, as they are installed, and one with everything in it; the bundler makes both, so that no process pays for types.
 */
import { execFile } from "node:child_process"
import { mkdir, readFile, writeFile } from "node:fs/promises"
import { createRequire } from "node:module"
import { dirname, join } from "node:path"
import { pathToFileURL } from "node:url"
import { promisify } from "node:util"
import { gzipSync } from "node:zlib"
import * as Implementations from "./implementations.ts"
import type { Row } from "./passes.ts"
import { elapsed } from "./workload.ts"

/** The part of the bundler that is used. It is installed with the peers, and not with the project. */
interface Bundler {
  readonly build: (options: Readonly<Record<string, unknown>>) => Promise<unknown>
}

const bench = import.meta.dirname
const run = promisify(execFile)

const bundler = async (): Promise<Bundler> => {
  const path = createRequire(join(Implementations.peerFolder, "package.json")).resolve("esbuild")
  const { default: esbuild }: { readonly default: Bundler } = await import(pathToFileURL(path).href)
  return esbuild
}

/** A program in its two forms. */
interface Program {
  readonly installed: string
  readonly bundled: string
}

const source = (name: string): string =>
  [
    `import { implementation } from ${JSON.stringify(Implementations.place(name))}`,
    "import { program } from \"./workloads/start.ts\"",
    "await program(implementation)",
    "process.exit(0)"
  ].join("\n")

/** Some packages are not written as modules and ask for `require`. */
const banner = "import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);"

/** Both are written beside the loop's own file: its packages are looked for from there. */
const build = async (name: string, { build }: Bundler): Promise<Program> => {
  const folder = join(bench, dirname(Implementations.place(name)), ".cold")
  await mkdir(folder, { recursive: true })
  const program = { installed: join(folder, `${name}.mjs`), bundled: join(folder, `${name}.bundle.mjs`) }
  const common = {
    stdin: { contents: source(name), resolveDir: bench, loader: "ts" },
    bundle: true,
    format: "esm",
    platform: "node",
    logLevel: "silent"
  }
  await build({ ...common, packages: "external", outfile: program.installed })
  await build({ ...common, minify: true, banner: { js: banner }, outfile: program.bundled })
  return program
}

const timed = (path: string): Promise<number> => elapsed(() => run(process.execPath, [path]))

interface Prepared {
  readonly row: Row
  readonly program: Program
  readonly sizes: Readonly<Record<"size" | "compressed", number>>
}

/** A loop's row and its programs, which have run once by then. */
const prepare = async (row: Row, name: string, esbuild: Bundler): Promise<Prepared> => {
  const program = await build(name, esbuild)
  await timed(program.installed)
  await timed(program.bundled)
  const bytes = await readFile(program.bundled)
  const sizes = { size: bytes.length / 1_024, compressed: gzipSync(bytes, { level: 9 }).length / 1_024 }
  return { row, program, sizes }
}

const sample = async ({ program, row, sizes }: Prepared, node: number): Promise<void> => {
  const installed = await timed(program.installed)
  const bundled = await timed(program.bundled)
  row.rounds.push({ installed, over: installed - node, bundled, ...sizes })
}

/** What goes wrong with a program fails its row. */
const guarded = async <A>(row: Row, work: () => Promise<A>): Promise<A | undefined> => {
  if (row.failures.length > 0) return undefined
  try {
    return await work()
  } catch (error) {
    row.failures.push(error instanceof Error ? error.message : String(error))
    return undefined
  }
}

/** All samples of the programs, in turn. */
export const measure = async (names: ReadonlyArray<string>, samples: number): Promise<ReadonlyArray<Row>> => {
  const esbuild = await bundler()
  const rows = names.map((name): Row => ({ name, rounds: [], failures: [], millis: 0 }))
  const prepared: Array<Prepared | undefined> = []
  for (const [index, row] of rows.entries()) {
    prepared.push(await guarded(row, () => prepare(row, names[index]!, esbuild)))
    row.name = (await Implementations.load(names[index]!)).name
  }
  const nothing = join(bench, "loops", ".cold", "nothing.mjs")
  await mkdir(dirname(nothing), { recursive: true })
  await writeFile(nothing, "")
  for (let round = 0; round < samples; round++) {
    const node = await timed(nothing)
    for (const each of prepared) if (each !== undefined) await guarded(each.row, () => sample(each, node))
  }
  return rows
}
