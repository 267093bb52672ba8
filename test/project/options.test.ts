/**
 * Holds the page "What you want → which option" to naming every option of `Chat`, `Tool`, `Policy`, `Limits`, `Session` and
 * `SessionClient` once, in the place where a caller writes it.
 */
import { assert, describe, it } from "@effect/vitest"
import { optionsOf, type OptionsType } from "../support/fields.ts"
import { readSource } from "../support/source.ts"

const types: ReadonlyArray<OptionsType> = [
  "Limits.Options",
  ["Limits.DeadlineInput", "Chat.deadline"],
  "Chat.Options",
  "Tool.Options",
  "Tool.ChatOptions",
  ["Tool.AskUserOptions", "Tool.askUser"],
  "Policy.Policy",
  "Session.Options",
  ["Session.ReplyOptions", "Session.reply"],
  ["Session.SettleOptions", "Session.answer"],
  ["Session.ApproveOptions", "Session.approve"],
  ["Session.SubmitOptions", "Session.submit"],
  ["Session.StopOptions", "Session.stop"],
  ["Journal.ClaimOptions", "Session.claim"],
  ["Session.ResumeOptions", "Session.resume"],
  ["Session.DriveOptions", "Session.drive"],
  ["Session.RunsOptions", "Session.layerRuns"]
]

const clientTypes: ReadonlyArray<OptionsType> = [
  ["SessionClient.ReplyOptions", "SessionClient.reply"],
  ["SessionClient.DenyOptions", "SessionClient.deny"]
]

/** The options that the tables of a page name in their last column. */
const named = (page: string): ReadonlyArray<string> =>
  [...page.matchAll(/\| `((?:Chat|Tool|Policy|Limits|Session|SessionClient)(?:\.\w+)+)`\s*\|$/gm)].map(([, name]) =>
    name!
  )

// The compiler reads all of it.
describe("options", () => {
  it("options.md names every option once", () => {
    assert.deepStrictEqual(
      named(readSource("docs/options.md").text).toSorted(),
      [
        ...optionsOf(types),
        ...optionsOf(clientTypes, "src/cluster/index.ts")
      ].toSorted()
    )
  })

  it("options are read from the last column of a table, with repetitions, and from their types", () => {
    const page =
      "`Chat.run` has\n| how far | `Chat.maxTurns` |\n| again | `Chat.maxTurns`   |\n| stop | `Policy.siblings.onHalt` |"
    assert.deepStrictEqual(named(page), ["Chat.maxTurns", "Chat.maxTurns", "Policy.siblings.onHalt"])
    const options = optionsOf(["Limits.Options", ["Session.ReplyOptions", "Session.reply"], "Chat.Options"])
    assert.include(options, "Limits.permits")
    assert.include(options, "Session.reply.pending")
    assert.notInclude(options, "Chat.pending")
    assert.strictEqual(new Set(options).size, options.length)
    assert.throws(() => optionsOf(["Chat.Nothing"]), "there is no type Chat.Nothing")
  })
})
