/** Markdown: what a parser would need seconds for is bounded, and a growing text is parsed as a whole one. */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type { Nodes, Root } from "mdast"
import { fromMarkdown } from "mdast-util-from-markdown"
import { gfmFromMarkdown } from "mdast-util-gfm"
import { gfm } from "micromark-extension-gfm"
import {
  isHostile,
  mostCharacters,
  mostLevels,
  mostMarks,
  mostRows,
  normal,
  split
} from "../../src/studio/markdown/guard.ts"
import { type Block, blocksOf, empty, parse } from "../../src/studio/markdown/parse.ts"
import { property } from "../support/property.ts"
import { hostileTexts } from "../support/studioTexts.ts"

const whole = (text: string): ReadonlyArray<Block> => blocksOf(parse(empty, text, true))

/** The parse of a text that came in pieces, at its end. */
const grown = (text: string, cuts: ReadonlyArray<number>): ReadonlyArray<Block> => {
  let parsed = empty
  for (const cut of cuts) parsed = parse(parsed, text.slice(0, cut), false)
  return blocksOf(parse(parsed, text, true))
}

/** A node without its place. */
const shapeOf = (node: unknown): unknown =>
  JSON.parse(JSON.stringify(node, (key, value) => key === "position" || key === "depth" ? undefined : value))

/** The parse of a text by the library at once. */
const byLibrary = (text: string): Root =>
  fromMarkdown(normal(text), {
    extensions: [gfm(), { disable: { null: ["htmlFlow", "htmlText"] } }],
    mdastExtensions: [gfmFromMarkdown().map(({ transforms: _transforms, ...extension }) => extension)]
  })

/** Lines, of which texts are made: each begins, continues or ends a block. */
const lines: ReadonlyArray<string> = [
  "",
  "",
  "A line with **bold**, `code` and [a link](https://example.com/a).",
  "more of it, *not ended",
  "# Heading",
  "### Deeper",
  "===",
  "---",
  "- item",
  "* other",
  "  - [ ] inside",
  "    deep",
  "1. one",
  "2. two",
  "12",
  "> quoted",
  ">",
  "```js",
  "```",
  "``` a`b",
  "~~~",
  "   indented by three",
  "    indented by four",
  "\tby a tab",
  "| a | b |",
  "|---|:-:|",
  "| c | *d* |",
  "e | f",
  "<div onclick=\"x\">",
  "<!--",
  "-->",
  "![image](https://example.com/i.png) ![](data:x)",
  "www.example.com, http://example.com/a_b_c.",
  "\\* escaped &amp; &#x41;",
  "two spaces  ",
  "`` ` ``",
  "**Bold** at the start",
  "***"
]

/** Lines of which most continue a list or a quote, or do so nearly. */
const inside: ReadonlyArray<string> = [
  "",
  "",
  "",
  "- item",
  "- item",
  "* other",
  "  - inside",
  "1. one",
  "2. two",
  "12",
  "text",
  "  indented by two",
  "    indented by four",
  "> quoted"
]

const definitions: ReadonlyArray<string> = [
  "[a]: https://example.com/first",
  "[b c]: <https://example.com/second> \"title\"",
  "[^1]: a note",
  "See [a], [b c][], [text][a], ![i][b c] and[^1].",
  "[a]: https://example.com/later"
]

const linesOf = (pool: ReadonlyArray<string>) =>
  Arbitrary.map(Arbitrary.array(Arbitrary.array(Arbitrary.schema(Schema.Literals(pool)))), (groups) => groups.flat())

const places = Arbitrary.array(Arbitrary.schema(Schema.Finite.check(Schema.isBetween({ minimum: 0, maximum: 1 }))))

const ends = Arbitrary.schema(Schema.Literals(["\n", "\r\n", "\r"]))

/** Returns what is wrong with the parse of a text, of which no paragraph may have too much. */
const excessOf = (text: string): ReadonlyArray<string> => {
  const found: Array<string> = []
  for (const piece of split(normal(text))) {
    if (piece.kind !== "markdown") continue
    const visit = (node: Nodes, levels: number): void => {
      if (node.type === "paragraph" || node.type === "heading" || node.type === "tableCell") {
        const source = piece.text.slice(node.position?.start.offset, node.position?.end.offset)
        const marks = source.replace(/[^*_~[\]<`]/g, "").length
        if (marks > mostMarks) found.push(`${marks} marks in a ${node.type}`)
        return
      }
      if (node.type === "table" && node.children.length > mostRows + 1) found.push(`${node.children.length} rows`)
      const isLevel = node.type === "blockquote" || node.type === "listItem"
      if (isLevel && levels >= mostLevels) found.push(`${levels + 1} levels`)
      else if ("children" in node) { for (const child of node.children) visit(child, levels + (isLevel ? 1 : 0)) }
    }
    visit(byLibrary(piece.text), 0)
    if (piece.text.length > 60_000) found.push(`a piece of ${piece.text.length} characters`)
  }
  return found
}

const all = (node: Block | Nodes): ReadonlyArray<Block | Nodes> =>
  "children" in node ? [node, ...node.children.flatMap(all)] : [node]

const nodesOf = (text: string): ReadonlyArray<Block | Nodes> => whole(text).flatMap(all)

describe("V-06: the guard of Markdown", () => {
  for (const [name, text] of Object.entries(hostileTexts)) {
    it(`V-06: the guard bounds ${name}`, () => {
      assert.deepStrictEqual(excessOf(text), [])
      // All of the text is shown, in one form or another.
      assert.strictEqual(Array.from(split(text), ({ rows = "", text: own }) => own + rows).join(""), text)
    })
  }

  it("V-06: the guard does not change ordinary replies", () => {
    const list = Array.from({ length: 400 }, (_, index) => `${index + 1}. **name_${index}** with \`code\` [a](b)`)
    const bullets = Array.from({ length: 300 }, (_, index) => `- **name ${index}**: \`code\` and *more*`)
    const rows = Array.from(
      { length: 150 },
      (_, index) => `| **${index}** | \`a[${index}]\` | <https://a.b/${index}> |`
    )
    const table = ["| a | b | c |", "|---|---|---|", ...rows]
    const code = ["```c", ..."*p = a[0] < b[1];\n".repeat(2_000).trimEnd().split("\n"), "```"]
    for (const text of [list, bullets, table, code].map((each) => each.join("\n"))) {
      assert.notInclude(Array.from(split(text), ({ kind }) => kind), "plain", text.slice(0, 60))
    }
  })

  it("V-06: the guard counts a block only if the parser also takes it for a block", () => {
    const marks = "*a_".repeat(mostMarks)
    const fewer = "*a_".repeat(0.3 * mostMarks)
    const texts = [
      `- a\n  \`\`\`\n${marks}`,
      `> \`\`\`\n${marks}`,
      `a\n    \`\`\`\n${marks}`,
      `\`\`\` a\`b\n${marks}`,
      `\`\`\`\na\n\`\`\`\n${marks}`,
      `~~~\n\`\`\`\n~~~\n${marks}`,
      `<!--\n\`\`\`\n-->\n\`\`\`\n${marks}`,
      // A line of these has fewer marks than a paragraph may have. All are lines of one paragraph.
      `1. a\n2) ${fewer}\n2) ${fewer}`,
      `a\n2. ${fewer}\n2. ${fewer}`,
      `a\n    - ${fewer}\n    - ${fewer}`,
      `| a |\n|---|---|\n| ${fewer}\n| ${fewer}`
    ]
    for (const text of texts) {
      assert.deepStrictEqual(excessOf(text), [], text.slice(0, 20))
      assert.include(Array.from(split(text), ({ kind }) => kind), "plain", text.slice(0, 20))
    }
  })

  it("V-06: the guard cuts a table before parsing, and says how many rows are left", () => {
    const row = "| x | y |\n"
    const [table, rest, after] = whole(`| a | b |\n|---|---|\n${row.repeat(1_500)}\nAfter.`)
    assert.strictEqual(table?.type === "table" && table.children.length, mostRows + 1)
    assert.deepStrictEqual(rest, { type: "rest", value: row.repeat(1_300), rows: 1_300 })
    assert.strictEqual(after?.type, "paragraph")
    const wide = whole(`${"|a".repeat(60)}|\n${"|-".repeat(60)}|\n${`${"|b".repeat(60)}|\n`.repeat(1_500)}`)
    assert.isAtMost(wide[0]?.type === "table" ? wide[0].children.length : Infinity, 34)
  })

  it("V-06: the guard counts levels of quotes and lists together, also levels made by spaces", () => {
    assert.isTrue(isHostile("> ".repeat(mostLevels + 1)))
    assert.isTrue(isHostile("> - ".repeat(mostLevels)))
    assert.isTrue(isHostile(`${" ".repeat(2 * mostLevels + 2)}- a`))
    assert.isFalse(isHostile("> ".repeat(10) + "a"))
    assert.isFalse(isHostile(`${" ".repeat(200)}a`))
  })

  it("V-06: the end of a text too long for Markdown is shown unparsed", () => {
    const text = "A paragraph.\n\n".repeat(20_000)
    const rest = whole(text).at(-1)
    assert.deepStrictEqual(rest, { type: "rest", value: text.slice(mostCharacters) })
  })
})

describe("V-06: the parser of Markdown", () => {
  it("V-06: the parser makes no HTML, and reads Markdown between tags", () => {
    const types = new Set(
      nodesOf(Object.values(hostileTexts).map((text) => text.slice(0, 2_000)).join("\n\n")).map(
        ({ type }) => type
      )
    )
    assert.isFalse(types.has("html"))
    assert.include(JSON.stringify(shapeOf(whole("<b>**bold**</b>"))), "strong")
  })

  it("V-05: the headings of a reply begin at level 3 and skip none", () => {
    const levels = (text: string) => nodesOf(text).flatMap((node) => node.type === "heading" ? [node.depth] : [])
    assert.deepStrictEqual(levels("# a\n\n## b\n\n### c"), [3, 4, 5])
    assert.deepStrictEqual(levels("### a\n\n###### b\n\n# c\n\n### d\n\n- # e"), [3, 4, 3, 4, 3])
    assert.deepStrictEqual(levels("# a\n\n## b\n\n### c\n\n#### d\n\n##### e\n\n###### f"), [3, 4, 5, 6, 6, 6])
  })

  it("V-06: references find their definitions in earlier and later blocks", () => {
    const text = "[one] and [two][one].\n\n```\n[one]\n```\n\nA note.[^n]\n\n[one]: https://example.com/x\n\n[^n]: note"
    const links = nodesOf(text).filter(({ type }) => type === "link")
    assert.deepStrictEqual(links.map((node) => node.type === "link" && node.url), [
      "https://example.com/x",
      "https://example.com/x"
    ])
    assert.strictEqual(nodesOf(text).filter(({ type }) => type === "footnoteReference").length, 1)
    assert.strictEqual(nodesOf(text).filter(({ type }) => type === "footnoteDefinition").length, 1)
  })

  it("V-02: while a text grows, the blocks before its last piece stay the same objects", () => {
    let parsed = empty
    const text = "A paragraph.\n\n## Heading\n\n- a list\n\n```js\ncode\n```\n\nAnother one.\n\n".repeat(20)
    for (let end = 1; end <= text.length; end++) {
      const next = parse(parsed, text.slice(0, end), false)
      const kept = parsed.parts.slice(0, -1)
      assert.deepStrictEqual(next.parts.slice(0, kept.length).every((part, index) => part === kept[index]), true)
      assert.isAtMost(next.parts.at(-1)?.piece.text.length ?? 0, 60)
      parsed = next
    }
  })

  it("V-02: parsing in steps has the same result as parsing at once", () => {
    const text = `# A\n\n${"Text with [a] link.\n\n- item\n- item\n\n".repeat(200)}[a]: https://example.com`
    let parsed = empty
    let steps = 0
    while (!parsed.isWhole || steps === 0) {
      parsed = parse(parsed, text, true, () => true)
      steps++
    }
    assert.isAbove(steps, 100)
    assert.deepStrictEqual(blocksOf(parsed), whole(text))
  })

  property(
    "V-02: a text that grows is parsed at its end as the whole text",
    Arbitrary.all({ all: linesOf([...lines, ...definitions]), places, end: ends }),
    ({ all, end, places }) =>
      Effect.sync(() => {
        const text = all.join(end)
        const cuts = places.map((place) => Math.round(place * text.length)).sort((a, b) => a - b)
        const [one, other] = [grown(text, cuts), whole(text)]
        return JSON.stringify(one) === JSON.stringify(other) ? [] : [JSON.stringify(text)]
      }),
    500
  )

  for (const [what, pool] of [["blocks of each kind", lines], ["lists", inside]] as const) {
    property(
      `V-02: a text parsed in pieces has the same result as the library's parse of the whole text: ${what}`,
      linesOf(pool),
      (all) =>
        Effect.sync(() => {
          const text = all.join("\n")
          const [one, other] = [whole(text), byLibrary(text).children].map((each) => JSON.stringify(shapeOf(each)))
          return one === other ? [] : [JSON.stringify(text), String(one), String(other)]
        }),
      500
    )
  }

  property(
    "V-06: no text makes a paragraph, a table or a nest that is too large for the parser",
    Arbitrary.array(
      Arbitrary.all([
        Arbitrary.schema(
          Schema.Literals([
            ...lines,
            "*a_",
            "[",
            "a]",
            "`",
            "> ",
            "- ",
            "1. ",
            "2. *a_\n",
            "  ",
            "|",
            "|*a|\n",
            "<a",
            "\n",
            "- *a_\n",
            "```\n",
            "  ```\n",
            "[a]: b\n"
          ])
        ),
        Arbitrary.schema(Schema.Literals([1, 1, 1, 2, 45, 400]))
      ])
    ),
    (units) => Effect.sync(() => excessOf(units.map(([unit, times]) => unit.repeat(times)).join(""))),
    200
  )
})
