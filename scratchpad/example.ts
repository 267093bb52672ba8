/** Runs a program of this repository, such as an example: `npm run example <file>`. Lists the examples without a file. */
import { existsSync, readdirSync } from "node:fs"
import { resolve } from "node:path"
import { pathToFileURL } from "node:url"

// The program sees the arguments that it has when Node runs it directly.
process.argv.splice(1, 1)
const file = process.argv[1]

if (file !== undefined && existsSync(file)) await import(pathToFileURL(resolve(file)).href)
else {
  const examples = readdirSync(new URL("examples", import.meta.url)).filter((name) => name.endsWith(".ts")).sort()
  const problem = file === undefined ? "" : `There is no file ${file}. `
  process.stderr.write(
    `${problem}Usage: npm run example <file>, with one of these, or another program of the repository:\n\n`
      + examples.map((name) => `  scratchpad/examples/${name}\n`).join("")
  )
  process.exitCode = 1
}
