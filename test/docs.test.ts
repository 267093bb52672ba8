/**
 * The tables of the guides against the source: every outcome, every event and every reason of an error stands in its
 * table, with what it really leads to, and nothing else does; and README lists every public module.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Adapter, type Chat, Event, Policy, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import * as fs from "node:fs"
import * as path from "node:path"
import { readSource, root } from "./support/source.ts"

/** The rows of the table below a heading of a page whose head has these words, each cell without its markup. */
const table = (page: string, ...head: ReadonlyArray<string>): ReadonlyArray<ReadonlyArray<string>> => {
  const rows = readSource(page).text.split("\n").map((line) =>
    line.startsWith("|") ? line.slice(1, -1).split(/(?<!\\)\|/).map((cell) => cell.trim()) : []
  )
  const start = rows.findIndex((cells) => head.every((word, index) => cells[index] === word))
  assert.isAtLeast(start, 0, `${page} has no table that begins with ${head.join(", ")}`)
  const end = rows.findIndex((cells, index) => index > start && cells.length === 0)
  return rows.slice(start + 2, end)
}

const names = (cells: ReadonlyArray<string>): ReadonlyArray<string> =>
  cells.map((cell) => /^\[?`([^`]+)`/.exec(cell)?.[1] ?? cell)

const reasonsOf = (schema: { readonly fields: { readonly reason: { readonly literals: ReadonlyArray<string> } } }) =>
  [...schema.fields.reason.literals].sort()

const tagsOf = (schema: { readonly members: ReadonlyArray<any> }): ReadonlyArray<string> =>
  schema.members.map((member) => member.fields._tag.schema?.literal ?? member.fields._tag.literal)

/** A session that ends in each of the ways, each with a tool named `t`. */
const ends: Readonly<
  Record<string, readonly [tool: Partial<Parameters<typeof Tool.make>[1]>, options?: Chat.Options]>
> = {
  Completed: [{ handler: () => Effect.succeed(1) }],
  MaxTurns: [{ handler: () => Effect.succeed(1) }, { maxTurns: 1 }],
  HaltWhen: [{ handler: () => Effect.succeed(1) }, { haltWhen: () => true }],
  Halted: [{ handler: () => Effect.succeed(Tool.halt("enough", 1)) }],
  Cancelled: [{ handler: () => Effect.never }, { cancel: Effect.sleep(20) as Effect.Effect<never> }],
  AskUser: [{ handler: () => Effect.succeed(Tool.askUser("Which?")) }],
  ApprovalRequested: [{ approval: true, handler: () => Effect.succeed(1) }],
  ManualToolCalls: [{ manual: true }],
  ToolFailed: [{ handler: () => Effect.fail("broken") }, { onToolError: "halt" }],
  Failed: [{ handler: () => Effect.succeed(1) }]
}

describe("the tables of the guides", () => {
  const outcomes = table("docs/results.md", "`outcome._tag`", "`haltedReason`")

  it("results.md has every outcome", () => {
    assert.deepStrictEqual([...names(outcomes.map(([tag = ""]) => tag))].sort(), [...tagsOf(Event.Outcome)].sort())
  })

  for (const [tag = "", reason = "", , , status = ""] of outcomes.map(names)) {
    it.live(`results.md says what ${tag} leads to`, () =>
      Effect.gen(function*() {
        const [declared, options = {}] = ends[tag]!
        const tool = Tool.make("t", { parameters: {}, ...declared } as never)
        const second = tag === "Failed" ? [Script.streamError("network_error")] : [Script.finish("stop")]
        const model = Script.layer([
          [Script.toolCall("c0", "t"), Script.finish("tool_calls")],
          [Script.text("Done."), ...second]
        ])
        const { result, session } = yield* Session.start("go", { ...options, tools: [tool] } as never).pipe(
          Effect.provide(model)
        )
        assert.strictEqual(result.outcome._tag, tag)
        assert.strictEqual(result.haltedReason, tag === "Halted" ? "enough" : reason)
        assert.strictEqual(session.status, status)
      }))
  }

  it("results.md has every field of a result", () => {
    const fields = Object.keys(Event.ChatResult.fields).filter((name) =>
      !["haltedReason", "pendingQuestion", "pendingToolCallId", "metadata"].includes(name)
    )
    assert.deepStrictEqual(
      [...names(table("docs/results.md", "Field", "What it is").map(([name = ""]) => name))].sort(),
      [
        ...fields
      ].sort()
    )
  })

  it("streaming.md has every event", () => {
    const listed = names(table("docs/streaming.md", "Event", "Emitted by").map(([tag = ""]) => tag))
    assert.deepStrictEqual([...listed].sort(), [...Event.Event.discriminants].sort())
  })

  it("errors.md has every reason of an adapter's error, and whether it may pass", () => {
    const rows = table("docs/errors.md", "`reason`", "Meaning", "`isRetryable`")
    assert.deepStrictEqual(
      [...names(rows.map(([reason = ""]) => reason))].sort(),
      reasonsOf(Adapter.AdapterError as never)
    )
    for (const [reason = "", , passes] of rows.map(names)) {
      const error = new Adapter.AdapterError({ reason: reason as Adapter.AdapterError["reason"] })
      assert.strictEqual(passes === "yes", error.isRetryable, reason)
    }
  })

  it("errors.md has every reason of a tool's error", () => {
    const rows = table("docs/errors.md", "What happens")
    const told = rows.flatMap(([, result = ""]) => /`ToolError` `(\w+)`/.exec(result)?.[1] ?? [])
    assert.deepStrictEqual([...told].sort(), reasonsOf(Tool.ToolError as never))
  })

  it("sessions.md has every reason of a session's error", () => {
    const rows = table("docs/sessions.md", "`reason`", "Meaning, and what to do")
    assert.deepStrictEqual(
      [...names(rows.map(([reason = ""]) => reason))].sort(),
      reasonsOf(Session.SessionError as never)
    )
  })

  it("policies.md has every decision, with its standard setting", () => {
    const rows = table("docs/policies.md", "Decision", "`Policy.standard`")
    assert.deepStrictEqual([...names(rows.map(([name = ""]) => name))].sort(), Object.keys(Policy.standard).sort())
    for (const [name = "", setting = ""] of rows.map(names)) {
      const value = (Policy.standard as unknown as Readonly<Record<string, unknown>>)[name]
      if (typeof value === "string") assert.strictEqual(setting, JSON.stringify(value), name)
    }
  })

  it("README lists every public module", () => {
    const modules = fs.readdirSync(path.join(root, "src")).filter((name) => name.endsWith(".ts") && name !== "index.ts")
    const { text } = readSource("README.md")
    assert.deepStrictEqual(modules.filter((name) => !text.includes(`(src/${name})`)), [])
  })
})
