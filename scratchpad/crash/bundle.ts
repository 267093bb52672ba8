/**
 * A program as one file. A process that loads the sources one by one takes twice as long to start, and there are hundreds
 * of them.
 */
import { existsSync, mkdirSync } from "node:fs"
import { basename, dirname, join } from "node:path"
import { rolldown } from "rolldown"

/** Packages that are no JavaScript alone, and those that are asked for and need not be there. */
const external = ["better-sqlite3", "pg", "pg-native"]

/** The nearest folder of packages: a file in it finds the packages that its program does. */
const packagesOf = (folder: string): string => {
  const packages = join(folder, "node_modules")
  return existsSync(packages) ? packages : packagesOf(dirname(folder))
}

/** Writes the program with all that it imports into one file, and gives its path. */
export const bundle = async (program: string): Promise<string> => {
  const folder = join(packagesOf(dirname(program)), ".cache/heddle-crash")
  mkdirSync(folder, { recursive: true })
  const file = join(folder, `${basename(program, ".ts")}-${process.pid}.mjs`)
  const built = await rolldown({
    input: program,
    platform: "node",
    external,
    resolve: { conditionNames: ["source", "import", "default"] },
    logLevel: "warn"
  })
  await built.write({ file, format: "esm", codeSplitting: false })
  await built.close()
  return file
}
