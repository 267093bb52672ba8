/**
 * Holds every field of every public type to a doc comment of its own, which an editor shows where the field is written, and
 * the page "What you want → which option" to naming every option of `Chat`, `Tool`, `Policy`, `Limits`, `Session` and
 * `SessionClient` once, in the place where a caller writes it. One compiler reads the types for both.
 */
import { afterAll, assert, describe, it } from "@effect/vitest"
import { forget, optionsOf, type OptionsType, undocumentedFields } from "../support/fields.ts"
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

afterAll(forget)

describe("fields", () => {
  it("every field of a public type has a doc comment of its own", () => {
    assert.deepStrictEqual(undocumentedFields(), [])
  })

  it("a field without a doc comment is found, wherever its type is declared", () => {
    const planted = [
      "import * as Schema from \"effect/Schema\"",
      "import * as Effect from \"effect/Effect\"",
      "/** Options. `named` is described here, where no editor shows it. */",
      "export interface Options {",
      "  /** Told. */",
      "  readonly told: string",
      "  readonly named?: number",
      "  /** A list. */",
      "  readonly list: ReadonlyArray<{ readonly member: string }>",
      "  /** A choice. */",
      "  readonly choice: \"none\" | { readonly chosen: string }",
      "}",
      "export interface More extends Options, Base { readonly own: Options }",
      "interface Base {",
      "  readonly inherited: string",
      "}",
      "export type Either = { readonly _tag: \"Left\" } | {",
      "  readonly _tag: \"Right\"",
      "  readonly right: string",
      "}",
      "export class Model extends Schema.Opaque<Model>()(Schema.Struct({",
      "  /** Told. */",
      "  told: Schema.String,",
      "  decoded: Schema.optionalKey(Schema.String).pipe(Schema.withDecodingDefaultKey(Effect.succeed(\"\"))),",
      "  plain: Schema.Finite",
      "})) {}",
      "export class Wrong extends Schema.TaggedError<Wrong>()(\"Wrong\", { detail: Schema.String }) {",
      "  override get message(): string {",
      "    return this.detail",
      "  }",
      "}",
      "interface Hidden {",
      "  readonly hidden: string",
      "}",
      "export const used: Hidden = { hidden: \"\" }"
    ].join("\n")
    assert.deepStrictEqual(undocumentedFields({ "src/planted.ts": planted }), [
      "src/planted.ts:11 Options.choice.chosen",
      "src/planted.ts:13 More.own",
      "src/planted.ts:15 More.inherited",
      "src/planted.ts:19 Either.right",
      "src/planted.ts:24 Model.decoded",
      "src/planted.ts:25 Model.plain",
      "src/planted.ts:27 Wrong.detail",
      "src/planted.ts:7 Options.named",
      "src/planted.ts:9 Options.list.member"
    ])
  })
})

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
