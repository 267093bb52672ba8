/** Holds comments, pages and titles to plain words: `../support/prose.ts` measures them, `../support/language.ts` has the words. */
import { assert, describe, it } from "@effect/vitest"
import { exceptions, longLinesIn, otherNames, otherNamesIn, readTexts, vagueIn } from "../support/language.ts"
import { excessesOf, readSentences, type Sentence, sentencesIn, worstOf } from "../support/prose.ts"
import { readSource, readSources, type SourceText } from "../support/source.ts"

const plant = (path: string, ...lines: ReadonlyArray<string>): SourceText => ({
  path,
  text: ["/** The module. */", ...lines, ""].join("\n")
})

/** A room of twenty sentences with eleven words each, where the first `count` sentences are bad. */
const room = (count: number, bad: string): ReadonlyArray<Sentence> => {
  const good = "The server reads its next request and sends a short answer."
  const comments = Array.from({ length: 20 }, (_, index) => `/** ${index < count ? bad : good} */`)
  return sentencesIn(plant("src/mcp/a.ts", ...comments))
}

/** The words that a page defines in its glossary. */
const glossary = (page: string): ReadonlyArray<string> =>
  Array.from(page.slice(page.indexOf("## Words")).matchAll(/^\| (\w+) +\|/gm), ([, word]) => word!).slice(1)

describe("words", () => {
  it("every room of src, and docs with the README, keep the aims for genitives, relative clauses and stranded ends", () => {
    const sentences = readSentences()
    const excesses = excessesOf(sentences)
    assert.isEmpty(excesses, excesses.join("\n"))
    const rooms = new Set(sentences.map(({ room }) => room))
    for (const name of ["src", "src/studio", "src/internal", "src/internal/session", "docs"]) {
      assert.include([...rooms], name)
    }
    assert.isTrue(sentences.some(({ place }) => place.includes(".tsx:")))
  })

  it("a room over an aim is named with its figure and its twenty worst sentences", () => {
    const faults: ReadonlyArray<readonly [bad: string, allowed: number, message: string]> = [
      ["The server reads its next request and the end of that.", 4, "src/mcp: that 2.3, at most 2.2"],
      ["The server reads its next request and an end of answers.", 5, "src/mcp: of 2.7, at most 2.5"],
      ["The server reads its next request and says how long there.", 0, "src/mcp: stranded 5.0, at most 4"]
    ]
    for (const [bad, allowed, message] of faults) {
      assert.deepStrictEqual(excessesOf(room(allowed, bad)), [])
      const [first, ...worst] = excessesOf(room(allowed + 1, bad))
      assert.strictEqual(first, message)
      assert.lengthOf(worst, 20)
      assert.isTrue(worst[0]!.endsWith(`src/mcp/a.ts:2 ${bad}`), worst[0])
    }
  })

  it("a sentence is read with its line from doc comments and pages, without code, tags, tables and headings", () => {
    const comment = [
      "/**",
      " * The first sentence stands here. The second",
      " * one has a line more.",
      " *",
      " * ```ts"
    ]
    const rest = [" * const that = of", " * ```", " *", " * The last one follows.", " * @internal", " */"]
    assert.deepStrictEqual(sentencesIn(plant("src/internal/hear/a.tsx", ...comment, ...rest)), [
      { place: "src/internal/hear/a.tsx:3", room: "src/internal/hear", text: "The first sentence stands here." },
      { place: "src/internal/hear/a.tsx:3", room: "src/internal/hear", text: "The second one has a line more." },
      { place: "src/internal/hear/a.tsx:10", room: "src/internal/hear", text: "The last one follows." }
    ])
    const page = [
      "# A title of that page",
      "",
      "A first paragraph, over",
      "two lines.",
      "",
      "| a table | of that |",
      ""
    ]
    assert.deepStrictEqual(sentencesIn({ path: "README.md", text: page.join("\n") }), [
      { place: "README.md:3", room: "docs", text: "A first paragraph, over two lines." }
    ])
  })

  it("a short sentence weighs no more than ten words", () => {
    const sentences = sentencesIn(
      plant("src/a.ts", "/** The way of it. The end of the text that stands in the list of all. */")
    )
    assert.deepStrictEqual(worstOf(sentences), [
      "0.25 src/a.ts:2 The end of the text that stands in the list of all.",
      "0.20 src/a.ts:2 The way of it."
    ])
  })

  it("comments, titles and pages name their subject, and say what is emitted, returned or reported", () => {
    assert.deepStrictEqual(readTexts().flatMap(vagueIn), [])
  })

  it("a vague word is found in every kind of text, with its line", () => {
    const told = ["told", "."].join("")
    for (const word of ["whoever", "somebody", "Nobody"]) {
      assert.deepStrictEqual(vagueIn(plant("src/Chat.ts", `// It is for ${word}.`)), [`src/Chat.ts:2 ${word}`])
      assert.deepStrictEqual(vagueIn(plant("test/a.test.ts", `it("R-001: ${word} reads", run)`)), [
        `test/a.test.ts:2 ${word}`
      ])
      assert.deepStrictEqual(vagueIn({ path: "docs/tools.md", text: `Tools\n\nare for ${word}.\n` }), [
        `docs/tools.md:3 ${word}`
      ])
      assert.deepStrictEqual(vagueIn(plant("src/Chat.ts", `export const ${word} = { name: "${word}" }`)), [])
    }
    const found = [["src/Chat.ts:2 are", "told"].join(" ")]
    assert.deepStrictEqual(vagueIn(plant("src/Chat.ts", "/** Tools are", ` * ${told} */`)), found)
    assert.deepStrictEqual(vagueIn(plant("src/Chat.ts", "// Tools are", `// ${told}`)), found)
    assert.deepStrictEqual(vagueIn(plant("src/Chat.ts", `const text = \`\${tools} are ${told}\``)), found)
  })

  it("every exception to the vague words stands in the sources", () => {
    const sources = readSources("src")
    const missing = [...exceptions.keys()].filter((words) => !sources.some(({ text }) => text.includes(`"${words}"`)))
    assert.deepStrictEqual(missing, [])
  })

  it("no line of a comment is longer than a line of code", () => {
    const long = `// ${"words ".repeat(20)}`
    assert.deepStrictEqual(longLinesIn(plant("src/Chat.ts", long, `${long}https://a.b`, `run(${long.length})`)), [
      "src/Chat.ts:2"
    ])
    const sources = readTexts().filter(({ path }) => path.startsWith("src/"))
    assert.isAbove(sources.length, 120)
    assert.deepStrictEqual(sources.flatMap(longLinesIn), [])
  })

  it("N-34: no comment has @since before a second release", () => {
    const dated = readTexts().filter(({ path, text }) => path.startsWith("src/") && text.includes("@since"))
    assert.deepStrictEqual(dated.map(({ path }) => path), [])
  })

  it("a thing of the glossary has no other name", () => {
    const words = glossary(readSource("docs/architecture.md").text)
    assert.deepStrictEqual([...otherNames.keys()].filter((word) => !words.includes(word)), [])
    const texts = readTexts().filter(({ path }) => /^(?:src\/|docs\/|\w+\.md)/.test(path))
    assert.deepStrictEqual(texts.flatMap(otherNamesIn), [])
  })

  it("another name for a thing of the glossary is found", () => {
    const names = ["cut run", "run that was cut", "taken up", "took it up", "goes on with", "left run", "run is left"]
    for (const name of names) {
      const found = otherNamesIn(plant("src/Chat.ts", `/** Names the ${name.replace(" ", "\n * ")} here. */`))
      assert.strictEqual(found.length, 1, name)
      assert.isTrue(found[0]!.startsWith("src/Chat.ts:2 "), name)
      assert.strictEqual(otherNamesIn({ path: "docs/tools.md", text: `Tools\n\n${name}\n` }).length, 1, name)
      assert.deepStrictEqual(otherNamesIn(plant("src/Chat.ts", `const name = "${name.replaceAll(" ", "_")}"`)), [])
    }
    assert.deepStrictEqual(
      otherNamesIn(plant("src/Chat.ts", "// Texts are cut; what is left of the run is on the disk.")),
      []
    )
  })
})
