/**
 * What the package offers for import: every public module is an entry point of its own, beside the index that has them
 * all, and loading one loads nothing that it can do without. Start and bundle size rest on that, and are not timed here.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Heddle from "heddle"
import * as Tool from "heddle/Tool"
import { loadedBy } from "../support/entries.ts"
import { readSource, readSources } from "../support/source.ts"

const sources = readSources("src")

const entryPoints: Readonly<Record<string, unknown>> = JSON.parse(readSource("package.json").text).exports

describe("package", () => {
  it("exactly the modules of the index are entry points of the core", () => {
    const named = Object.entries(entryPoints).filter(([path]) => /^\.\/[A-Z]/.test(path))
    assert.deepStrictEqual(
      named,
      Object.keys(Heddle).sort().map((name) => [
        `./${name}`,
        { source: `./src/${name}.ts`, types: `./dist/${name}.d.ts`, default: `./dist/${name}.js` }
      ])
    )
  })

  it("an entry point is the same module as in the index", () => {
    assert.strictEqual(Tool.ToolError, Heddle.Tool.ToolError)
  })

  it("a chat with tools loads no sessions and no event codecs", () => {
    const loaded = loadedBy(["Adapter", "Chat", "Message", "Tool"].map((name) => `src/${name}.ts`), sources)
    const needless = [
      "Answering",
      "Conversation",
      "Event",
      "Journal",
      "Keeper",
      "Limits",
      "Session",
      "SessionPlan",
      "SessionRun",
      "StreamReducer",
      "StreamingToolExecutor"
    ]
    assert.deepStrictEqual(needless.filter((name) => loaded.has(`src/${name}.ts`)), [])
    // The code of typed answers, and the parser of their parts, come with the value of `Output.make`.
    const ofAnswers = ["src/Output.ts", "src/internal/loop/outputRule.ts", "partial-json"]
    assert.deepStrictEqual(ofAnswers.filter((name) => loaded.has(name)), [])
    assert.isTrue(loadedBy(["src/Output.ts"], sources).has("partial-json"))
    assert.isTrue(loaded.has("src/Step.ts"))
    assert.isTrue(loaded.has("effect/Stream"))
  })

  it("a data module loads no running code", () => {
    const loaded = loadedBy(["Message", "Response", "Thread", "Event"].map((name) => `src/${name}.ts`), sources)
    const running = ["Tool", "ToolRunner", "Step", "Chat", "Adapter", "Executor", "Encoder", "Collector"]
    assert.deepStrictEqual(running.filter((name) => loaded.has(`src/${name}.ts`)), [])
    assert.isFalse(loaded.has("effect/Stream"))
  })

  it("a type import loads nothing, a re-export loads its module, and a missing module is reported", () => {
    const modules = [
      { path: "src/A.ts", text: "import type * as B from \"./B.ts\"\nimport { type D } from \"./D.ts\"" },
      { path: "src/C.ts", text: "export { one } from \"./E.ts\"\nexport type { two } from \"./B.ts\"" },
      { path: "src/E.ts", text: "import * as Effect from \"effect/Effect\"\nexport const one = 1" },
      { path: "src/F.ts", text: "import * as Gone from \"./Gone.ts\"" }
    ]
    assert.deepStrictEqual([...loadedBy(["src/A.ts", "src/C.ts"], modules)], [
      "src/A.ts",
      "src/C.ts",
      "src/E.ts",
      "effect/Effect"
    ])
    assert.throws(() => loadedBy(["src/F.ts"], modules), "there is no src/Gone.ts")
  })
})
