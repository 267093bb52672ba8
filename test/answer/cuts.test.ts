/**
 * A text that is cut and has secrets in it: no part of a secret is shown, wherever the cut is and however much shorter
 * the text before it becomes.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Redacted from "effect/Redacted"
import { Policy } from "heddle"
import * as Errors from "../../src/adapters/internal/errors.ts"
import * as Answers from "../../src/internal/answer/answer.ts"
import * as Contents from "../../src/internal/answer/content.ts"
import { shownText } from "../../src/internal/answer/errorFields.ts"
import { toolError } from "../../src/internal/declare/outcome.ts"
import * as Json from "../../src/internal/json.ts"
import { attributesOf } from "../../src/telemetry/internal/capture.ts"

const long = "sk-0123456789-abcdefghijkl"
const short = long.slice(0, 13)

/** Whether four characters of a secret in a row stand in a text, of those that are in no other text of the tests. */
const shows = (text: string, secret: string): string | undefined => {
  for (let from = 0; from + 4 <= secret.length; from++) {
    if (text.includes(secret.slice(from, from + 4))) return secret.slice(from, from + 4)
  }
  return undefined
}

const error = (status: number, body: string, secrets: ReadonlyArray<string>, headers = {}) =>
  JSON.stringify(Errors.fromResponse(
    { provider: "p", requestId: undefined, words: [], secrets: secrets.map((secret) => Redacted.make(secret)) },
    { status, headers: headers as never },
    body,
    0
  ))

describe("a cut after hidden secrets", () => {
  it("known secrets are removed whole, in any order, also where a cut has split them", () => {
    for (const secrets of [[short, long], [long, short]]) {
      assert.strictEqual(Json.withoutKnown(`a ${long} b ${short} c`, secrets, "*"), "a * b * c")
      for (let length = 1; length < long.length; length++) {
        const parts = { start: true, end: true }
        assert.strictEqual(
          Json.withoutKnown(`${long.slice(-length)} a ${long.slice(0, length)}`, secrets, "*", parts),
          " a "
        )
      }
    }
    assert.strictEqual(Json.withoutKnown("s", [long], "*"), "s")
    assert.strictEqual(Json.withoutKnown("a b", ["", "b"], "*"), "a *")
  })

  it("a provider's error shows no part of a key from its message, its cut body or its address", () => {
    for (const secrets of [[short, long], [long, short]]) {
      for (
        const body of [`not ${long}`, JSON.stringify({ error: { message: `no ${long}`, code: long, type: long } })]
      ) {
        assert.isUndefined(shows(error(401, body, secrets), long), body)
      }
      assert.isUndefined(shows(error(302, "", secrets, { location: `https://h/${long}/x` }), long))
    }
    for (let length = 4; length < long.length; length++) {
      const page = `<style>${"<i>".repeat(22_000)}</style>refused ${long.slice(0, length)}`
      const shown = error(401, page, [long])
      assert.include(shown, "refused")
      assert.isUndefined(shows(shown, long), String(length))
    }
  })

  it("the text of a failure shows no part of a password after a long address", () => {
    const password = "hunter2-hunter3-hunter4"
    for (let before = 0; before < 560; before++) {
      const text = `https://h/?token=${"t".repeat(900)} ${"x".repeat(before)} https://ann:${password}@h/ ${
        "y".repeat(2_000)
      }`
      assert.isUndefined(shows(shownText(text, false, 700), password), String(before))
    }
  })

  it("telemetry redacts a text before it cuts the text, at every length and in every place", () => {
    const redact = (text: string) => text.replaceAll(long, "*")
    const message = { role: "user", content: `say ${long} now`, metadata: {} } as const
    for (let maxPartLength = 1; maxPartLength < 60; maxPartLength++) {
      const writing = { redact, maxPartLength }
      const request = () => ({
        messages: [message],
        tools: [{ name: "t", description: `use ${long}`, parameters: { title: long } }]
      })
      const call = { id: "c", name: "t", arguments: { [long]: `x ${long}` }, metadata: {} }
      for (
        const facts of [
          { kind: "inference", request, response: undefined },
          { kind: "execute_tool", call, result: { _tag: "Ok", value: [`a ${long}`] } },
          { kind: "execute_tool", call, result: { _tag: "Error", error: new Error(`a ${long}`) } }
        ]
      ) {
        const shown = JSON.stringify(attributesOf({ facts } as never, writing))
        assert.isUndefined(shows(shown, long), `${facts.kind} ${maxPartLength}`)
      }
    }
  })
})

describe("a limit of zero", () => {
  const knobs = (resultLimit: number, resultCut: "headAndTail" | "head") => ({
    ...Policy.standard,
    resultLimit,
    resultCut
  })

  it("a limit of zero leaves results uncut, and errors keep the limit of their policy", () => {
    const text = "x".repeat(20_000)
    for (const resultCut of ["headAndTail", "head"] as const) {
      assert.deepStrictEqual(Contents.cutResult(text, undefined, knobs(0, resultCut)), { content: text })
      assert.deepStrictEqual(Contents.cutResult(text, 0, knobs(100, resultCut)), { content: text })
      const { content, originalLength } = Contents.cutError(text, knobs(0, resultCut))
      assert.strictEqual(content.length > 8_192, resultCut === "head")
      assert.strictEqual(originalLength, resultCut === "head" ? undefined : 20_000)
    }
  })

  it("a limit of zero keeps the limit of errors in the answer of an unfinished call", () => {
    const call = { id: "c", name: "n".repeat(20_000), arguments: {}, metadata: {} }
    const error = toolError("cancelled", call, { detail: "y".repeat(20_000) })
    const { tail } = Answers.unfinished({ policy: knobs(0, "headAndTail") }, { call, tool: undefined }, error)
    assert.isAtMost(tail._tag === "ToolResultEncoded" ? tail.content.length : Infinity, 8_192)
  })
})
