/**
 * Holds every field of every public type to a doc comment of its own, which an editor shows where the field is written.
 */
import { assert, describe, it } from "@effect/vitest"
import { undocumentedFields } from "../support/fields.ts"

// The compiler reads all of it.
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
