/** Typed answers of recorded programs: killed behind any record on each store, the same values, asked for once. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Adapter, Chat, Output, Tool } from "heddle"
import { Durable } from "heddle/durable"
import { Script } from "heddle/testing"
import { stores } from "../support/edges.ts"
import { holding, listing, type Written } from "../support/nests.ts"
import { modelOf, type Replies } from "../support/ruled.ts"

const { finish, text, toolCall } = Script

const city = Output.make(Schema.Union([Schema.Struct({ city: Schema.String }), Schema.Null]), { retries: 1 })
const weather = Output.make(Schema.Struct({ celsius: Schema.FiniteFromString }), { retries: 1 })
const finding = Tool.fromChat("find", {
  parameters: {},
  chat: () => Chat.stream("Where?", { output: city })
})

/** Three runs: the first has a sub-agent with an answer of its own, and no answer of the third fits. */
const program = Effect.gen(function*() {
  const first = yield* Chat.run("How warm?", { requestId: "first", tools: [finding], output: weather })
  const second = yield* Chat.run("Where?", { requestId: "second", output: city })
  const third = yield* Chat.run("When?", { requestId: "third", output: weather })
  return [first, second, third] as const
}).pipe(Effect.provide(Durable.layer({ id: "p" })))

type By = "text" | "call"

/** Each answer that fits comes at the second try. */
const replies = (by: By): Replies => ({ messages }) => {
  const turn = messages.filter(({ role }) => role === "assistant").length
  const answer = (json: object) =>
    by === "text"
      ? [text(JSON.stringify(json)), finish("stop")]
      : [toolCall(`a${turn}`, "final_answer", json as {}), finish("tool_calls")]
  if (messages[0]?.content === "When?") return answer({ celsius: "warm" })
  if (messages[0]?.content === "Where?") return answer({ value: turn === 0 ? "Oslo" : { city: "Oslo" } })
  return turn === 0 ? [toolCall("f", "find"), finish("tool_calls")] : answer({ celsius: turn === 1 ? "warm" : "7" })
}

/** The replies in these records: those of whole steps, and those of steps that are open. */
const repliesIn = (records: ReadonlyArray<Written>): number =>
  records.filter(({ id, record }, index) =>
    record._tag === "StepCompleted" ||
    record._tag === "ReplyReceived" &&
      !records.slice(index).some((later) => later.id === id && later.record._tag === "StepCompleted")
  ).length

describe("the typed answers of a recorded program", () => {
  for (const by of ["text", "call"] satisfies ReadonlyArray<By>) {
    for (const [where, store] of Object.entries(stores)) {
      it.effect(`G86: a program killed behind any record ${where} has its values by ${by}, and asks for each repair once`, () =>
        Effect.gen(function*() {
          const asked: Array<Adapter.Request> = []
          const model = Adapter.layer(
            modelOf(replies(by), asked, by === "text" ? { native: "always", forced: true } : undefined)
          )
          const written: Array<Written> = []
          const whole = yield* Effect.provide(program, [model, listing(written, store)])
          assert.deepStrictEqual(whole.map(({ output }) => output), [{ celsius: 7 }, { city: "Oslo" }, undefined])
          assert.deepInclude(whole[2].outcome, { _tag: "RuleEnded", rule: "output" })
          assert.strictEqual(whole[0].steps[0]?.toolResults[0]?.content, "{\"city\":\"Oslo\"}")
          assert.strictEqual(asked.length, 9)
          for (let length = 0; length <= written.length; length++) {
            asked.length = 0
            const before = written.slice(0, length)
            const cut = `cut behind record ${length}, ${before.at(-1)?.record._tag} of ${before.at(-1)?.id}`
            const again = yield* Effect.provide(program, [model, holding(before, [], store)])
            assert.deepStrictEqual(again, whole, cut)
            assert.strictEqual(asked.length, 9 - repliesIn(before), cut)
          }
        }))
    }
  }
})
