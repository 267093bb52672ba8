/**
 * Sub-agents that do more at once than a reader takes: what was not read in time comes from their journals at the end of
 * the call, so that a reader of the run has all of it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { type Event, Tool } from "heddle"
import { Agent } from "heddle/server"
import * as Fold from "../../src/studio/data/fold.ts"
import { agent, casting, type Turn } from "../support/nests.ts"
import { eventsOf, serve } from "./support/site.ts"

const add = Tool.make("add", { parameters: {}, handler: () => Effect.succeed(3) })
const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
const deep = agent("deep", [add])
const sub = agent("sub", [add, deep, pay])

const helper = Agent.make({
  name: "helper",
  description: "Helps",
  run: () => Effect.succeed({ tools: [sub] })
})

const call = (id: string, name: string): Exclude<Turn, string>[number] => [id, name, {}]
const many = (name: string): Turn => Array.from({ length: 40 }, (_, index) => call(`${name}${index}`, "add"))

/** The picture of a run, without times. */
const pictureOf = (events: ReadonlyArray<Event.PublicEvent>) => {
  const run = Fold.make("r")
  for (const event of events) Fold.take(run, event)
  const { counts, nested, total, usage } = run
  return {
    counts: { ...counts, most: 0, early: 0 },
    nested,
    total,
    usage,
    turns: run.turns.map(({ calls, index, owner, text, usage }) => ({ calls, index, owner, text, usage })).sort((
      one,
      other
    ) => `${one.owner} ${one.index}` < `${other.owner} ${other.index}` ? -1 : 1),
    calls: Array.from(run.calls.values(), ({ content, path, state, usage }) => ({ content, path, state, usage })).sort(
      (one, other) => one.path < other.path ? -1 : 1
    )
  }
}

const isBeginning = (event: Event.PublicEvent): boolean =>
  event._tag === "ToolProgress" && event.nested !== undefined &&
  (event.nested._tag === "RunStarted" || isBeginning(event.nested))

describe("V-07: a live reader of a busy sub-agent", () => {
  const parts = {
    sub: { go: [[call("c", "sub")], "go ends"], sub: [many("a"), "sub ends"] },
    deep: {
      go: [[call("c", "sub")], "go ends"],
      sub: [[call("d", "deep")], "sub ends"],
      deep: [many("b"), "deep ends"]
    },
    waiting: { go: [[call("c", "sub")]], sub: [many("a"), [call("p", "pay")]] }
  }
  const done: Readonly<Record<string, number>> = { sub: 41, deep: 42, waiting: 40 }
  for (const [depth, said] of Object.entries(parts)) {
    it.live(`the reader has all of the sub-agent's output at the end of the call: ${depth}`, () =>
      Effect.gen(function*() {
        const site = yield* serve([helper], casting(said))
        const at = "/agents/helper/sessions/s1"
        const reader = yield* Effect.promise(() => site.open("POST", `${at}/messages`, { content: "go" }))
        const live = eventsOf(yield* Effect.promise(() => reader.end()))
        const { text } = yield* Effect.promise(() => site.ask("GET", `${at}/runs`))
        const [run] = JSON.parse(text).runs
        assert.isTrue(live.some(isBeginning), "progress was missed")
        assert.deepStrictEqual(pictureOf(live), pictureOf(run.events))
        assert.strictEqual(pictureOf(live).calls.filter(({ state }) => state === "done").length, done[depth])
      }))
  }
})
