/**
 * Names of members with escapes. V8 13.6, which Node 24 has, reads such a name as the text of its escape where JSON that
 * was parsed earlier in the process had a member of that name behind the same members: a hostile reply could change the
 * arguments of later calls, and what a journal has of an approved one.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { type Journal, Message } from "heddle"
import * as Json from "../../src/internal/json.ts"
import * as Journals from "../../src/internal/session/journal.ts"
import { replyOf } from "../support/keptRecords.ts"

/**
 * Parses JSON in which a member has the name that V8 may take a written one for: as much of its text as the name is long.
 * V8 does so where it knows one member behind the others.
 */
const primed = (members: string, name: string, written: string) => {
  const text = `{${members}${JSON.stringify(written.slice(0, name.length))}:1}`
  for (let times = 0; times < 4; times++) JSON.parse(times % 2 === 0 ? text : `[${text},${text}]`)
}

const unit = (letter: string): string => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`

/** A name as JSON has it, as a writer of ASCII has it, with all letters escaped, and with the first or the last one. */
const writings = (name: string): ReadonlyArray<string> => {
  const letters = name.split("")
  const written = letters.map((letter) => JSON.stringify(letter).slice(1, -1))
  return [
    written.join(""),
    letters.map((letter, index) => letter > "~" ? unit(letter) : written[index]).join(""),
    letters.map(unit).join(""),
    letters.map((letter, index) => index === 0 ? unit(letter) : written[index]).join(""),
    letters.map((letter, index) => index === letters.length - 1 ? unit(letter) : written[index]).join("")
  ]
}

const names = [
  "ü",
  "währung",
  "dry_run",
  "\n",
  "a\nb",
  "\"",
  "\"a\":",
  "\\",
  "a\\",
  "\\u0061",
  "/",
  "\ud800",
  "0",
  "~0"
]

const dataOf = (members: ReadonlyArray<readonly [string, unknown]>): unknown => Object.fromEntries(members)

describe("a JSON member name with escapes", () => {
  for (const before of [[], ["a"], ["a", "b"], ["ü"]]) {
    it(`a name with escapes is read correctly behind ${JSON.stringify(before)}, whatever was parsed earlier`, () => {
      let count = 0
      for (const name of names) {
        for (const written of writings(name)) {
          count++
          const members = before.map((name) => [`${name}${count}`, 1] as const)
          const text = members.map(([name]) => `${JSON.stringify(name)}:1,`).join("")
          primed(text, name, written)
          const object = `{${text}"${written}" : "\\"\\\\\\":"}`
          const whole = `{ "list": [${object}, ${object}], "~\\u007e": {"${written}": ${object}}, "${written}":"~" }`
          const one = dataOf([...members, [name, "\"\\\":"]])
          const expected = dataOf([["list", [one, one]], ["~~", dataOf([[name, one]])], [name, "~"]])
          for (const parse of [Json.parse, Json.parseWire]) {
            assert.deepStrictEqual(Result.getOrThrow(parse(whole)), expected, whole)
          }
        }
      }
    })
  }

  it("names with escapes keep their order and the last of two values, and set no prototype", () => {
    const parsed = (text: string) => JSON.stringify(Json.parse(text))
    assert.strictEqual(
      parsed(`{"b\\n":1,"a":2,"\\u0062\\n":3,"1":4,"\\u0030":5}`),
      parsed(`{"b\\n":3,"a":2,"1":4,"0":5}`)
    )
    assert.deepStrictEqual(Json.parse(`{"\\u005f_proto__":{"a":1},"\\n":1}`), Json.parse(`{"\\n":1}`))
    assert.deepStrictEqual(
      Json.parse(`["\\u005f_proto__", {"__proto__":{"a\\n":1},"b":{"\\u005f_proto__":1}}]`),
      Json.parse(`["__proto__",{"b":{}}]`)
    )
  })

  it("names with escapes are found in linear time, and texts with millions of escapes are read", () => {
    const long = Json.parse(`{"\\t":"${"\\n".repeat(2_000_000)}"}`)
    assert.deepStrictEqual(Result.getOrThrow(long), { "\t": "\n".repeat(2_000_000) })
    assert.strictEqual(Json.parse(`"${"\\\"".repeat(2_000_000)}`)._tag, "Failure")
    assert.strictEqual(Json.parse(`{"\\n":"${"~".repeat(2_000_000)}"}`)._tag, "Success")
  })

  it.effect("a name with escapes in an approved call survives its journal", () =>
    Effect.gen(function*() {
      const rawArguments = `{"to":"ann","\\u0064ry_run":true}`
      const call = { ...Message.toolCall("c", "send", { to: "ann", dry_run: true }), rawArguments }
      const record: Journal.Record = {
        _tag: "ReplyReceived",
        requestId: "r",
        stepIndex: 0,
        response: replyOf("", [call])
      }
      const text = yield* Journals.toText("s", record)
      primed(`"to":"ann",`, "dry_run", "\\u0064ry_run")
      assert.deepStrictEqual(yield* Journals.fromText("s", text), record)
    }))
})
