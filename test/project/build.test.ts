/**
 * What the build makes of the sources: every entry point is there, what a run loads is two files, and data still loads
 * nothing that runs. Nothing is written here.
 */
import { assert, describe, it } from "@effect/vitest"
import { rolldown } from "rolldown"
import config from "../../scratchpad/rolldown.config.ts"
import { readSource } from "../support/source.ts"

const { output: outputOptions, ...inputOptions } = config
const { output } = await (await rolldown(inputOptions)).generate({ ...outputOptions, sourcemap: false })
const chunks = new Map(output.flatMap((file) => file.type === "chunk" ? [[file.fileName, file]] : []))

/** All that loading a file loads: files of the build, and packages. */
const loadedBy = (file: string, loaded = new Set<string>()): ReadonlySet<string> => {
  if (loaded.has(file)) return loaded
  loaded.add(file)
  for (const imported of chunks.get(file)?.imports ?? []) loadedBy(imported, loaded)
  return loaded
}

describe("build", () => {
  it("every entry point is built, except index files", () => {
    const exported: Readonly<Record<string, unknown>> = JSON.parse(readSource("package.json").text).exports
    const built = Object.values(exported)
      .flatMap((entry) =>
        typeof entry === "object" && entry !== null && "default" in entry ? [String(entry.default)] : []
      )
      .map((path) => path.replace("./dist/", ""))
    assert.isAbove(built.length, 16)
    assert.deepStrictEqual(built.filter((path) => !path.endsWith("index.js") && !chunks.has(path)), [])
  })

  it("Chat loads two files beside its entry point", () => {
    const ours = Array.from(loadedBy("Chat.js")).filter((file) => chunks.has(file))
    assert.deepStrictEqual(ours.toSorted(), ["Chat.js", "internal/data.js", "internal/run.js"])
    assert.isTrue(loadedBy("Chat.js").has("effect/Stream"))
  })

  it("a data module loads no running code", () => {
    for (const name of ["Message", "Response", "Thread", "Event"]) {
      const loaded = loadedBy(`${name}.js`)
      assert.isTrue(loaded.has("internal/data.js"), name)
      assert.isFalse(loaded.has("internal/run.js") || loaded.has("effect/Stream"), name)
    }
  })
})
