/** The words of the picture and of the table, and the order of its rows: for a reader, who does not know call ids. */
import { assert, describe, it } from "@effect/vitest"
import * as Fold from "../../src/studio/data/fold.ts"
import * as Phrases from "../../src/studio/run/phrases.ts"
import { foldOf } from "./support/told.ts"

const asked = (id: string, name: string, given: unknown, at: number): Fold.Told =>
  ({ _tag: "ToolCallCompleted", id, name, ...(given === undefined ? {} : { arguments: given }), at }) as Fold.Told

const started = (id: string, name: string, at: number, more: object = {}): Fold.Told =>
  ({ _tag: "ToolExecutionStarted", id, name, at, ...more }) as Fold.Told

const run = foldOf([
  { _tag: "RunStarted", runId: "r", at: 0 },
  { _tag: "MessageStarted", at: 0 },
  asked("c1", "read", { path: "plan.md", ms: 3 }, 10),
  started("c1", "read", 10),
  asked("c2", "account", undefined, 20),
  asked("c3", "account", undefined, 30),
  asked("c4", "agent", { topic: "looms" }, 40),
  started("c4", "agent", 40),
  { _tag: "MessageCompleted", at: 100 },
  started("c2", "account", 101),
  started("c3", "account", 160, { waited: [{ reason: "key", key: "ann", behind: ["c2"], millis: 60 }] }),
  { _tag: "ToolProgress", id: "c4", name: "agent", nested: { _tag: "MessageStarted", at: 170 }, at: 170 },
  { _tag: "ToolProgress", id: "c4", name: "agent", nested: asked("c1", "read", { path: "loom.md" }, 180), at: 180 },
  { _tag: "ToolResultEncoded", id: "c1", content: "", at: 300 },
  { _tag: "ToolResultEncoded", id: "c2", content: "", at: 200 },
  { _tag: "ToolResultEncoded", id: "c3", content: "", at: 900 }
])

const call = (path: string): Fold.Call => run.calls.get(path)!

describe("Studio's phrases", () => {
  it("V-08: a call is named by the first words of its arguments, or by its place among its tool's calls", () => {
    assert.strictEqual(Phrases.nameOf(run, call("c1")), "read \"plan.md\"")
    assert.strictEqual(Phrases.nameOf(run, call("c3")), "account 2 of 2")
    assert.strictEqual(Phrases.why(run, call("c3")), "ann, held by account 1 of 2")
    const [long] = foldOf([asked("a", "read", { path: `\u202e${"x".repeat(200)}` }, 0)]).list
    assert.isAtMost(Phrases.nameOf(run, long!).length, 50)
    assert.notInclude(Phrases.nameOf(run, long!), "\u202e")
  })

  it("V-08: a call that started early has not waited for the end of its reply", () => {
    const early = { ...call("c1"), started: 11 }
    assert.strictEqual(Phrases.stateOf(early), "done, early")
    assert.deepStrictEqual([Phrases.why(run, early), Phrases.waitedOf(early, 300)], ["", undefined])
    assert.deepStrictEqual([Phrases.why(run, call("c2")), Phrases.waitedOf(call("c2"), 300)], [
      "the reply had to end",
      81
    ])
  })

  it("V-08: the facts of a run count calls in sub-agents and stopped calls, and omit parallelism without parallel calls", () => {
    assert.include(Phrases.facts(run), "5 calls, 1 of them in sub-agents")
    assert.include(Phrases.facts(run), "2 started early")
    const stopped = foldOf([
      { _tag: "RunStarted", runId: "r", at: 0 },
      { _tag: "MessageStarted", at: 0 },
      asked("a", "read", {}, 1),
      { _tag: "MessageCompleted", at: 2 },
      { _tag: "ToolResultEncoded", id: "a", isError: true, code: "cancelled", at: 3 },
      { _tag: "StepCompleted", usage: { inputTokens: 13_940, outputTokens: 620 }, at: 4 } as Fold.Told
    ])
    assert.deepStrictEqual(Phrases.facts(stopped), [
      "1 turn",
      "1 call",
      "1 stopped",
      "13,940 tokens in, 620 out"
    ])
    assert.notInclude(Phrases.sentence(stopped), "at once")
    assert.strictEqual(
      Phrases.usageOf({ inputTokens: 5, outputTokens: 1 }, true),
      "5 tokens in, 1 out, with sub-agents"
    )
  })

  it("V-08: the rows of the table can be ordered as the model asked, by waiting time and by running time", () => {
    const paths = (order: Phrases.Order) => Phrases.ordered(run, order, 1_000).map(({ path }) => path)
    assert.deepStrictEqual(paths("asked"), ["c1", "c2", "c3", "c4", "c4/c1"])
    assert.deepStrictEqual(paths("waited").slice(0, 2), ["c3", "c2"])
    assert.deepStrictEqual(paths("ran").slice(0, 3), ["c4", "c3", "c1"])
  })

  it("V-08: a run that asked and has no open question is described as asked", () => {
    const ended = Fold.make("r")
    ended.outcome = { _tag: "ApprovalRequested" }
    assert.strictEqual(Phrases.outcomeOf(ended), "Asked")
  })
})
