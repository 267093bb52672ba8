import { assert, describe, it } from "@effect/vitest"
import * as Words from "../../scratchpad/agent/words.ts"

const labels = (question: string) => Words.terms(question).map((term) => term.label)
const lacks = (text: string, question: string) => {
  const terms = Words.terms(question)
  const mask = Words.occurring(text, terms)
  return terms.filter((_, index) => (mask & (1 << index)) === 0).map((term) => term.label)
}

describe("search words", () => {
  it("main job: a question is reduced to its meaningful words", () => {
    assert.deepStrictEqual(labels("Where are tool timeouts enforced?"), ["tool", "timeouts", "enforced"])
    assert.deepStrictEqual(labels("Who sends the welcome mail, and why?"), ["sends", "welcome", "mail"])
    assert.deepStrictEqual(labels("What is this?"), [])
    assert.deepStrictEqual(labels("  ?!  "), [])
  })

  it("main job: a quotation, a path or an identifier is searched literally", () => {
    const phrases = (question: string) =>
      Words.terms(question).flatMap((term) => term._tag === "Phrase" ? [term.text] : [])
    assert.deepStrictEqual(phrases("Where is \"too many requests\" said?"), ["too many requests"])
    assert.deepStrictEqual(phrases("Where is `Effect.sleep` called?"), ["effect.sleep"])
    assert.deepStrictEqual(phrases("What does Effect.sleep do?"), ["effect.sleep"])
    assert.deepStrictEqual(phrases("What sets maxTurns or max_tokens?"), ["maxturns", "max_tokens"])
    assert.deepStrictEqual(phrases("What is in src/main.ts and docs/?"), ["src/main.ts", "docs/"])
    assert.deepStrictEqual(Words.paths("Compare `src/a.ts` with README.md, e.g. today"), ["src/a.ts", "README.md"])
  })

  it("main job: all forms of a word have the same stem, and each form begins with the stem", () => {
    const families = [
      ["timeout", "timeouts"],
      ["run", "runs", "running", "runner"],
      ["cache", "caches", "cached", "caching"],
      ["query", "queries"],
      ["parse", "parses", "parsed", "parsing", "parser"],
      ["validate", "validates", "validated", "validation"],
      ["process", "processes", "processed", "processing"]
    ]
    for (const family of families) {
      assert.strictEqual(new Set(family.map(Words.stem)).size, 1, family.join())
      for (const word of family) assert.isTrue(word.startsWith(Words.stem(word)), word)
    }
    const others = ["status", "this", "string", "class", "user", "version", "versus", "bus", "thing"]
    assert.strictEqual(new Set(others.map(Words.stem)).size, others.length)
  })

  it("main job: a word occurs in identifiers in any form, and not inside another word", () => {
    assert.deepStrictEqual(lacks("const toolTimeout = parse(x)", "tools timeouts parser"), [])
    assert.deepStrictEqual(lacks("MAX_RETRY_DELAY", "retry delays"), [])
    assert.deepStrictEqual(lacks("class HTTPServer {}", "http server"), [])
    assert.deepStrictEqual(lacks("the stool pigeon", "tool pigeons"), ["tool"])
    assert.deepStrictEqual(lacks("a validity check", "valid"), [])
    assert.deepStrictEqual(lacks("Größe der Straße", "größe straße"), [])
    assert.deepStrictEqual(lacks("İstanbul timeouts", "timeout"), [])
    assert.deepStrictEqual(lacks("say \"Too Many\" now", "\"too many\" \"too few\""), ["too few"])
  })

  it("main job: a question of any length has at most as many terms as the mask has bits", () => {
    const many = Array.from({ length: 60 }, (_, index) => `word${String.fromCharCode(97 + (index % 26))}${index}`)
    const terms = Words.terms(many.join(" "))
    assert.strictEqual(terms.length, Words.maxTerms)
    assert.strictEqual(Words.occurring(many.join(" "), terms), 2 ** Words.maxTerms - 1)
  })
})
