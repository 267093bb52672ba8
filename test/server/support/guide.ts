/** The modules that a guide shows, as files that can be loaded and bundled. */
import * as fs from "node:fs"
import * as path from "node:path"
import { rolldown } from "rolldown"
import { type Example, examplesOf } from "../../support/examples.ts"
import { readSource, root } from "../../support/source.ts"

/** Returns the one example of a page whose code has a text. */
export const exampleOf = (page: string, text: string): Example => {
  const [example, second] = examplesOf(readSource(page)).filter(({ code }) => code.includes(text))
  if (example === undefined || second !== undefined) throw new Error(`${page} has no one example with ${text}`)
  return example
}

/** Returns the number of lines of an example without imports and blank ones. */
export const linesOf = ({ code }: Example): number =>
  code.split("\n").filter((line) => line.trim() !== "" && !line.startsWith("import ")).length

/** Writes the code of an example, as it stands on its page, to a file from which it finds its packages. */
export const write = (name: string, { code, imports = "" }: Example): string => {
  const folder = path.join(root, "node_modules/.cache/heddle-examples/guides")
  fs.mkdirSync(folder, { recursive: true })
  const file = path.join(folder, name)
  fs.writeFileSync(file, `${imports}\n${code}`)
  return file
}

/** Returns a page of a guide as one script for browsers, which shows it in the element `chat`. */
export const bundle = async (name: string, example: Example): Promise<string> => {
  const page = write(`${name}.tsx`, example)
  const main = write(`${name}-main.ts`, {
    place: "",
    code: `import { show } from ${JSON.stringify(page)}\nvoid show(document.getElementById("chat")!)\n`
  })
  const built = await rolldown({
    input: main,
    platform: "browser",
    logLevel: "silent",
    transform: { jsx: { runtime: "automatic" }, define: { "process.env.NODE_ENV": `"production"` } }
  })
  const { output: [{ code }] } = await built.generate({ format: "iife" })
  await built.close()
  return code
}
