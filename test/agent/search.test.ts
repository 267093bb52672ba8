import { assert, describe, it } from "@effect/vitest"
import * as Search from "../../scratchpad/agent/search.ts"
import * as Words from "../../scratchpad/agent/words.ts"

/** The places found for a question in files given as path and text, best first. */
const find = (question: string, files: Readonly<Record<string, string>>, limit = 10) => {
  const terms = Words.terms(question)
  const paths = Object.entries(files)
  const hits = paths.map(([path, text]) => Search.scan(path, text, terms, question)).filter((found) =>
    found !== undefined
  )
  return Search.rank(hits, paths.length, terms, limit)
}
const places = (matches: ReadonlyArray<Search.Match>) => matches.map((match) => `${match.path}:${match.line}`)

describe("the search of the agent", () => {
  it("main job: a line with all words ranks before lines with some of the words", () => {
    const found = find("Where is the tax rate defined?", {
      "a.ts": "const rate = 1\nconst tax = 2\n",
      "b.ts": "// nothing\nexport const taxRate = 0.2\n",
      "c.ts": "the rate\n"
    })
    assert.strictEqual(places(found)[0], "b.ts:2")
    assert.deepStrictEqual(found[0]?.words, ["tax", "rate"])
    assert.strictEqual(found[0]?.text, "export const taxRate = 0.2")
  })

  it("main job: words close to each other rank before words far apart", () => {
    const gap = "\n".repeat(40)
    const found = find("retry delay", {
      "far.ts": `let retry = 1${gap}let delay = 2\n`,
      "near.ts": `\n\nlet retry = 1\n\n\nlet delay = 2\n`
    })
    assert.match(places(found)[0] ?? "", /^near\.ts/)
  })

  it("main job: a line with a rare word ranks before lines with a common word", () => {
    const common = Object.fromEntries(Array.from({ length: 8 }, (_, index) => [`f${index}.ts`, "tool tool tool\n"]))
    const found = find("tool lighthouse", { ...common, "z.ts": "\n\nthe lighthouse\n" })
    assert.strictEqual(places(found)[0], "z.ts:3")
  })

  it("main job: source ranks before documents, tests and settings, unless the question asks for tests", () => {
    const line = "the anchor chain\n"
    const files = { "package.json": line, "README.md": line, "src/x.ts": line, "test/x.test.ts": line }
    const order = (question: string) => places(find(question, files)).map((place) => place.split(":")[0])
    assert.deepStrictEqual(order("anchor chain"), ["src/x.ts", "README.md", "test/x.test.ts", "package.json"])
    assert.strictEqual(order("which test has an anchor chain?")[0], "test/x.test.ts")
    assert.deepStrictEqual(
      ["LICENSE", "docs/a.md", ".ci/run", "a/.env", "src/main.rs", "spec/a_spec.rb"].map(Search.kindOf),
      ["document", "document", "settings", "settings", "source", "test"]
    )
  })

  it("main job: a search leaves out lines that only repeat the question", () => {
    const question = "Where are whale songs recorded?"
    const found = find(question, {
      "run.sh": `npm start -- "${question}"\n`,
      "faq.ts": "const example = \"Where are whale songs recorded in winter?\"\n",
      "song.ts": "const record = (whale) => tape.add(whale.song)\n"
    })
    assert.deepStrictEqual(places(found), ["song.ts:1"])
  })

  it("main job: a declaration ranks before a use, and a use before an import", () => {
    const found = find("lantern", {
      "a.ts": "import { lantern } from \"./b.ts\"\n",
      "b.ts": "x(lantern)\n\n\n\n\n\n\n\n\n\n\n\nexport const lantern = 1\n"
    })
    assert.deepStrictEqual(places(found), ["b.ts:13", "b.ts:1", "a.ts:1"])
  })

  it("main job: a search returns at most three results of a file, at most the limit in total, and cuts long lines", () => {
    const long = `${"x".repeat(500)} buoy`
    const files = Object.fromEntries(
      Array.from({ length: 20 }, (_, index) => [`f${index}.ts`, `buoy${"\n".repeat(30)}`.repeat(10) + long])
    )
    const found = find("buoy", files, 7)
    assert.strictEqual(found.length, 7)
    const all = find("buoy", files, 100)
    const perFile = Object.keys(files).map((path) => all.filter((match) => match.path === path).length)
    assert.deepStrictEqual(perFile, Object.keys(files).map(() => 3))
    assert.isTrue(find("buoy", { "long.ts": long }).every((match) => match.text.length < 250))
  })

  it("main job: the order of results does not depend on the order of the files", () => {
    const files = { "b.ts": "cargo\nhold\n", "a.ts": "cargo\nhold\n", "c.ts": "cargo hold\n" }
    const reversed = Object.fromEntries(Object.entries(files).toReversed())
    assert.deepStrictEqual(find("cargo hold", files), find("cargo hold", reversed))
  })

  it("main job: a line ends at LF or CRLF, and a final line break starts no further line", () => {
    assert.deepStrictEqual(Search.linesOf("a\nb\n"), ["a", "b"])
    assert.deepStrictEqual(Search.linesOf("a\r\nb"), ["a", "b"])
    assert.deepStrictEqual(Search.linesOf("\n\n"), ["", ""])
    assert.deepStrictEqual(Search.linesOf(""), [])
  })
})
