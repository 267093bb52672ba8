/**
 * Runs and type-checks the examples of doc comments, of the README and of the guides, each as a test of its own; checks
 * that every link between these pages leads somewhere; and holds the public exports to being documented.
 */
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { spawnSync } from "node:child_process"
import { once } from "node:events"
import * as fs from "node:fs"
import { Server } from "node:http"
import * as path from "node:path"
import { undocumentedIn, unshownIn } from "../support/documentation.ts"
import { type Example, examplesOf, programOf, unmarkedIn, withEnvironment } from "../support/examples.ts"
import { anchorsIn, linksIn, repository, targetOf } from "../support/links.ts"
import * as PageModel from "../support/pageModel.ts"
import { readSource, readSources, root, type SourceText } from "../support/source.ts"

const sources = readSources("src")
const guides = fs.readdirSync(path.join(root, "docs")).filter((name) => name.endsWith(".md"))
const pages = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", ...guides.map((name) => `docs/${name}`)].map(readSource)
const folder = path.join(root, "node_modules/.cache/heddle-examples")

interface Written {
  readonly place: string
  readonly run: () => Promise<unknown>
}

interface Exported {
  readonly dispose?: () => Promise<void>
  readonly server?: unknown
}

/** Ends what a program has begun and exported: left open, its worker polls for as long as the tests run. */
const close = async ({ dispose, server }: Exported): Promise<void> => {
  await dispose?.()
  if (!(server instanceof Server)) return
  server.close()
  await once(server, "close")
}

/** Writes the programs of examples to a folder. One that cannot be made into a program fails where it is run. */
const write = (name: string, examples: ReadonlyArray<Example>): ReadonlyArray<Written> => {
  const target = path.join(folder, name)
  fs.rmSync(target, { recursive: true, force: true })
  fs.mkdirSync(target, { recursive: true })
  return examples.map((example) => {
    const extension = example.isPage === true ? "tsx" : "ts"
    const file = path.join(target, `${example.place.replaceAll(/[^\w]+/g, "-")}.${extension}`)
    try {
      fs.writeFileSync(file, withEnvironment(programOf(example)))
      return { place: example.place, run: () => import(file).then(close) }
    } catch (error) {
      return { place: example.place, run: () => Promise.reject(error) }
    }
  })
}

/** A program whose types do not hold. */
const mistyped = [{ place: "README.md:1", code: "import { Nothing } from \"heddle\"\nNothing.at.all" }]

/**
 * What the compiler says against the files of two folders, by folder, under the settings of the package. It reads all of
 * them at once, since most of its time goes to the library.
 */
const typeErrors = (...names: ReadonlyArray<string>): ReadonlyMap<string, string> => {
  const project = path.join(folder, "tsconfig.json")
  const compilerOptions = {
    noEmit: true,
    composite: false,
    declarationMap: false,
    incremental: false,
    noUnusedLocals: false,
    jsx: "react-jsx",
    types: ["node"]
  }
  const include = names.flatMap((name) => [`${name}/*.ts`, `${name}/*.tsx`])
  const settings = { extends: path.join(root, "tsconfig.json"), include, exclude: [], references: [] }
  fs.writeFileSync(project, JSON.stringify({ ...settings, compilerOptions }))
  const { error, stdout } = spawnSync(
    process.execPath,
    [path.join(root, "node_modules/typescript/bin/tsc"), "-p", project],
    { cwd: folder, encoding: "utf8" }
  )
  if (error !== undefined) throw error
  // What belongs to a message is indented below it.
  const messages = stdout.split(/^(?=\S)/m)
  const known = new Map(names.map((name) => [name, messages.filter((text) => text.startsWith(`${name}/`)).join("")]))
  const others = messages.filter((text) => !names.some((name) => text.startsWith(`${name}/`)))
  if (others.join("") !== "") throw new Error(others.join(""))
  return known
}

/** Runs the programs of planted examples and says how each ended. */
const outcomes = (name: string, codes: ReadonlyArray<string>): Promise<ReadonlyArray<string>> =>
  Promise.all(
    write(name, codes.map((code, index) => ({ place: `planted:${index + 1}`, code }))).map(({ run }) =>
      run().then(() => "passed", (error: unknown) => (error as Error).message)
    )
  )

/** Examples that hold: what they assert is true. */
const right = [
  "1 + 1 // => 2",
  "const sum = 1 + 1 // => 2",
  "const [first] = [1]\nfirst // => 1",
  "const list = [\n  1,\n  2\n]\nlist\n  .map((item) => item + 1)\n// => [2, 3]",
  "({ a: 1, b: [2] })\n// => {\n//   a: 1,\n//   b: [2]\n// }\n// and a remark",
  "for (const item of [1, 2]) {\n  item > 0 // => true\n}",
  "await Promise.resolve(\"late\") // => \"late\"",
  "import * as Option from \"effect/Option\"\nOption.some({ a: 1 }) // => Option.some({ a: 1 })",
  "import * as Heddle from \"heddle\"\ntypeof Heddle // => \"object\"",
  "const text = \"1 // => 2\""
]

/** Examples that do not hold, each with the start of what is said about it. */
const wrong: ReadonlyArray<readonly [code: string, message: string]> = [
  ["1 + 1 // => 3", "expected 2 to deeply equal 3"],
  ["const sum = 1 + 1 // => 3", "expected 2 to deeply equal 3"],
  ["const list = [1]\nlist\n// => [\n//   2\n// ]", "expected [ 1 ] to deeply equal [ 2 ]"],
  ["let called = 0\nconst call = () => {\n  called++ // => 1\n}\ncall()", "expected +0 to deeply equal 1"],
  ["throw new Error(\"thrown\")", "thrown"],
  ["// => 3", "planted:6: the assertion in line 1 follows no expression or constant"],
  ["1 + 1\n\n// => 2", "planted:7: the assertion in line 3 follows no expression or constant"],
  ["1 + 1 // => two of them", "planted:8: the assertion in line 1 has a value that does not parse"],
  ["const = 1", "planted:9: the example does not parse"]
]

describe("examples", () => {
  const examples = write("all", [...sources, ...pages].flatMap(examplesOf))

  write("mistyped", mistyped)
  let errors: ReadonlyMap<string, string> | undefined
  const errorsIn = (name: string): string => (errors ??= typeErrors("all", "mistyped")).get(name) ?? ""
  let stopModel = () => {}
  beforeAll(async () => {
    stopModel = await PageModel.start()
  })
  afterAll(() => stopModel())

  for (const { place, run } of examples) it(`the example at ${place} holds`, run)

  it("all examples type-check", () => {
    assert.strictEqual(errorsIn("all"), "")
  })

  it("every example of the README and the guides runs as a test", () => {
    assert.deepStrictEqual(pages.flatMap(unmarkedIn), [])
  })

  it("examples are found in doc comments and in Markdown, at their lines", () => {
    const comment = [
      "/** Head. */",
      "",
      "/**",
      " * ```ts import.meta.vitest",
      " * first",
      " *   second",
      " * ```",
      " */"
    ]
    const markdown = [
      "Text",
      "  ```ts import.meta.vitest",
      "  first",
      "",
      "    second",
      "  ```",
      "```ts",
      "other",
      "```"
    ]
    const source = { path: "src/Tool.ts", text: comment.join("\n") }
    const page = { path: "README.md", text: markdown.join("\n") }
    assert.deepStrictEqual(examplesOf(source), [{ place: "src/Tool.ts:5", code: "first\n  second" }])
    assert.deepStrictEqual(examplesOf(page), [{ place: "README.md:3", code: "first\n\n  second" }])
    assert.deepStrictEqual(unmarkedIn(page), ["README.md:8"])
    const tsx = (info: string) => ({ path: "README.md", text: "```" + info + "\nconst page = <p>Hi</p>\n```" })
    assert.deepStrictEqual(examplesOf(tsx("tsx import.meta.vitest")).map(({ isPage }) => isPage), [true])
    assert.deepStrictEqual([unmarkedIn(tsx("tsx import.meta.vitest")), unmarkedIn(tsx("tsx"))], [[], ["README.md:2"]])
    assert.throws(() => examplesOf({ path: "README.md", text: "```ts import.meta.vitest\nfirst" }), "README.md:1")
  })

  it("an example of a page has the imports declared by the page", async () => {
    const fence = (info: string, ...code: ReadonlyArray<string>) => ["```" + info, ...code, "```"].join("\n")
    const declared = fence("ts import.meta.vitest imports", "import * as Option from \"effect/Option\"")
    const example = fence("ts import.meta.vitest", "Option.isSome(Option.some(1)) // => true")
    const page = (...fences: ReadonlyArray<string>) => ({ path: "docs/page.md", text: fences.join("\n") })
    const ended = await Promise.all(write("imports", examplesOf(page(declared, example))).map(({ run }) => run()))
    assert.strictEqual(ended.length, 2)
    assert.deepStrictEqual(unmarkedIn(page(declared, example)), [])
    assert.throws(() => examplesOf(page(declared, declared)), "docs/page.md:5: the page declares its imports twice")
    assert.throws(() => examplesOf(page(fence("ts import.meta.vitest imports", "const more = 1"))), "docs/page.md:2")
  })

  it("an example passes when every assertion holds", async () => {
    assert.deepStrictEqual(await outcomes("right", right), right.map(() => "passed"))
  })

  it("an example fails when an assertion does not hold or stands in a wrong place", async () => {
    const messages = await outcomes("wrong", wrong.map(([code]) => code))
    for (const [index, [code, message]] of wrong.entries()) {
      assert.strictEqual(messages[index]?.slice(0, message.length), message, code)
    }
  })

  it("an example fails when its types do not hold", () => {
    assert.include(errorsIn("mistyped"), "has no exported member 'Nothing'")
  })
})

describe("links", () => {
  const anchors = new Map<string, ReadonlySet<string>>()

  /** Whether a link from a page leads to no place of the repository. */
  const broken = (from: string, link: string): boolean => {
    const [file, anchor] = targetOf(from, link)
    if (!fs.existsSync(path.join(root, file))) return true
    if (anchor === undefined || !file.endsWith(".md")) return false
    if (!anchors.has(file)) anchors.set(file, anchorsIn(readSource(file)))
    return !anchors.get(file)!.has(anchor)
  }

  it("every link of the README and the guides has a target", () => {
    const dead = pages.flatMap((page) =>
      linksIn(page).filter(({ target }) => broken(page.path, target)).map(({ place, target }) => `${place} ${target}`)
    )
    assert.deepStrictEqual(dead, [])
  })

  it("every guide is in the index, and the README links to the index", () => {
    const listed = new Set(linksIn(readSource("docs/README.md")).map(({ target }) => target))
    assert.deepStrictEqual(guides.filter((name) => name !== "README.md" && !listed.has(name)), [])
    assert.isTrue(linksIn(readSource("README.md")).some(({ target }) => target === "docs/README.md"))
  })

  it("links are found with their places outside of code, and anchors match GitHub's anchors", () => {
    const text = [
      "# A `title`, twice",
      "[a](b.md#c) and [web](https://x.y)",
      "```",
      "[no](gone)",
      "```",
      "## A title twice"
    ]
    const page = { path: "docs/page.md", text: text.join("\n") }
    assert.deepStrictEqual(linksIn(page), [{ place: "docs/page.md:2", target: "b.md#c" }])
    assert.deepStrictEqual([...anchorsIn(page)], ["a-title-twice", "a-title-twice-1"])
    assert.deepStrictEqual(linksIn({ path: "docs/page.md", text: `[a](${repository}README.md)` }).length, 1)
    assert.isFalse(broken("docs/tools.md", `${repository}CONTRIBUTING.md#tests`))
    assert.isTrue(broken("docs/tools.md", `${repository}docs/none.md`))
    assert.isTrue(broken("README.md", "docs/none.md"))
    assert.isTrue(broken("README.md", "docs/README.md#none"))
  })
})

describe("documentation", () => {
  const undocumented = (...lines: ReadonlyArray<string>) =>
    undocumentedIn({ path: "src/Tool.ts", text: ["/** The module. */", ...lines].join("\n") })

  it("every public export has a doc comment", () => {
    const isPublic = ({ path }: SourceText) => !path.includes("/internal/") && !path.endsWith("/index.ts")
    assert.deepStrictEqual(sources.filter(isPublic).flatMap((source) => undocumentedIn(source, sources)), [])
  })

  it("every public function has an example that runs", () => {
    const isPublic = ({ path }: SourceText) => !path.includes("/internal/") && !path.endsWith("/index.ts")
    assert.deepStrictEqual(sources.filter(isPublic).flatMap(unshownIn), [])
  })

  it("a function without an example is found", () => {
    const shown = " * ```ts import.meta.vitest\n * 1 + 1 // => 2\n * ```\n"
    const text = [
      "/** The module. */",
      "/**\n * Makes.\n *",
      `${shown} * @category constructors\n */`,
      "export const make = () => 1",
      "/**\n * Runs.\n *",
      " * ```ts",
      " * run()",
      " * ```",
      " * @category running\n */",
      "export const run = () => 1",
      "/**\n * Options.\n * @category options\n */",
      "export interface Options {}"
    ]
    assert.deepStrictEqual(unshownIn({ path: "src/Tool.ts", text: text.join("\n") }), ["src/Tool.ts:19 run"])
  })

  it("an export without a doc comment is found", () => {
    assert.deepStrictEqual(undocumented("export const make = 1"), ["src/Tool.ts:2 make"])
    assert.deepStrictEqual(undocumented("export const make = 1", "/** Doc. */", "export const other = 1"), [
      "src/Tool.ts:2 make"
    ])
    assert.deepStrictEqual(undocumented("export const { make, other: [renamed] } = 1"), [
      "src/Tool.ts:2 make",
      "src/Tool.ts:2 renamed"
    ])
    assert.deepStrictEqual(undocumented("// A remark.", "export interface Any {}"), ["src/Tool.ts:3 Any"])
    assert.deepStrictEqual(undocumented("/** Doc. */", "const other = 1", "export class Tool {}"), [
      "src/Tool.ts:4 Tool"
    ])
    assert.deepStrictEqual(undocumented("const make = 1", "export { make as of }"), ["src/Tool.ts:3 of"])
    assert.deepStrictEqual(undocumented("export * from \"./Other.ts\""), ["src/Tool.ts:2 *"])
    assert.deepStrictEqual(undocumented("export * as Other from \"./Other.ts\""), ["src/Tool.ts:2 Other"])
  })

  it("a comment at the declaration serves a re-export", () => {
    const source = {
      path: "src/Tool.ts",
      text: "/** The module. */\nexport type { Told, Untold as Other } from \"./b/c.ts\""
    }
    const other = {
      path: "src/b/c.ts",
      text: "/** The module. */\n/** Doc. */\nexport class Told {}\nexport class Untold {}"
    }
    assert.deepStrictEqual(undocumentedIn(source, [source, other]), ["src/Tool.ts:2 Other"])
  })

  it("one comment serves all declarations of a name", () => {
    const lines = [
      "/** Doc. */",
      "export interface Tool {}",
      "export const Tool = 1",
      "/** Doc. */",
      "export function make(): void",
      "export function make(name?: string): void {}",
      "/** Doc. */",
      "const catchTag = 1",
      "export {",
      "  catchTag as catch,",
      "  /** Doc. */",
      "  hidden",
      "}",
      "const hidden = 1"
    ]
    assert.deepStrictEqual(undocumented(...lines), [])
  })
})
