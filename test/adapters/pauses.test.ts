/**
 * Turns that a provider pauses: they go back as they came, and the run continues.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Anthropic from "../support/anthropic.ts"
import { played } from "../support/replies.ts"

const hosted = { type: "server_tool_use", id: "s1", name: "web_search", input: { query: "x" } }

const search = [Anthropic.opened(0, hosted), Anthropic.closed(0)]

const compaction = [
  Anthropic.opened(0, { type: "compaction", content: "" }),
  Anthropic.delta(0, { type: "compaction_delta", content: "So far: a." }),
  Anthropic.closed(0)
]

describe("a turn that the provider pauses", () => {
  it.effect("O-15: pause_turn goes back as it came, and the run continues", () =>
    Effect.gen(function*() {
      const found = yield* played("anthropic", Anthropic.reply([search], "pause_turn"))
      assert.deepStrictEqual([found.requests.length, found.outcome._tag], [2, "Completed"])
      assert.deepStrictEqual(found.requests[1]!.body.messages[1], { role: "assistant", content: [hosted] })
    }))

  it.effect("O-15: so does tool_use beside a server tool that has no result", () =>
    Effect.gen(function*() {
      const found = yield* played("anthropic", Anthropic.reply([search], "tool_use"))
      assert.strictEqual(found.requests.length, 2)
    }))

  it.effect("O-68: compaction goes back as it came, and the run continues", () =>
    Effect.gen(function*() {
      const found = yield* played("anthropic", Anthropic.reply([compaction], "compaction"))
      assert.deepStrictEqual([found.requests.length, found.outcome._tag], [2, "Completed"])
      assert.deepStrictEqual(found.requests[1]!.body.messages[1].content[0].content, "So far: a.")
    }))
})
