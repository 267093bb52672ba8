/**
 * A program as one file. A process that loads the sources one by one takes twice as long to start, and there are hundreds
 * of them.
 */
import { mkdirSync } from "node:fs"
import { basename, join, resolve } from "node:path"
import { rolldown } from "rolldown"

const folder = resolve(import.meta.dirname, "../../node_modules/.cache/heddle-crash")

/** Writes the program with all that it imports into one file, and gives its path. */
export const bundle = async (program: string): Promise<string> => {
  mkdirSync(folder, { recursive: true })
  const file = join(folder, `${basename(program, ".ts")}-${process.pid}.mjs`)
  const built = await rolldown({
    input: program,
    platform: "node",
    resolve: { conditionNames: ["source", "import", "default"] },
    logLevel: "warn"
  })
  await built.write({ file, format: "esm", codeSplitting: false })
  await built.close()
  return file
}
