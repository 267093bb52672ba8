/**
 * Holds the page "What you want → which option" to naming every option of `Chat`, `Tool`, `Policy`, `Limits` and `Session`
 * once.
 */
import { assert, describe, it } from "@effect/vitest"
import { optionsOf } from "./support/fields.ts"
import { readSource } from "./support/source.ts"

const types = [
  "Limits.Options",
  "Limits.DeadlineInput",
  "Chat.Options",
  "Tool.Options",
  "Tool.ChatOptions",
  "Tool.AskUserOptions",
  "Policy.Policy",
  "Session.Options",
  "Session.ReplyOptions",
  "Session.ApproveOptions",
  "Session.ClaimOptions",
  "Session.ResumeOptions"
]

/** The options that the tables of a page name in their last column. */
const named = (page: string): ReadonlyArray<string> =>
  [...page.matchAll(/\| `((?:Chat|Tool|Policy|Limits|Session)(?:\.\w+)+)`\s*\|$/gm)].map(([, name]) => name!)

// The compiler reads all of it.
describe("options", { timeout: 120_000 }, () => {
  it("the page names every option once", () => {
    assert.deepStrictEqual(named(readSource("docs/options.md").text).toSorted(), optionsOf(types).toSorted())
  })

  it("an option that is missing, made up or named twice is found", () => {
    const page =
      "`Chat.run` has\n| how far | `Chat.maxTurns` |\n| again | `Chat.maxTurns`   |\n| stop | `Policy.siblings.onHalt` |"
    assert.deepStrictEqual(named(page), ["Chat.maxTurns", "Chat.maxTurns", "Policy.siblings.onHalt"])
    const options = optionsOf(["Limits.Options", "Session.ReplyOptions", "Chat.Options"])
    assert.include(options, "Limits.permits")
    assert.include(options, "Session.pending")
    assert.notInclude(options, "Chat.pending")
    assert.strictEqual(new Set(options).size, options.length)
    assert.throws(() => optionsOf(["Chat.Nothing"]), "there is no type Chat.Nothing")
  })
})
