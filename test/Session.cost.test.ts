/**
 * What keeping a run costs, counted and not timed: how often a turn is committed, and how many bytes its calls take.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Session, Tool } from "heddle"
import { Script } from "heddle/testing"

/** Turns of so many calls, whose results have so many characters, and what was written for them. */
const written = (turns: number, calls: number, characters: number) =>
  Effect.gen(function*() {
    let commits = 0
    const store = Layer.effect(
      Session.Store,
      Effect.map(Session.Store, (store): Session.StoreService => ({
        ...store,
        append: (id, expected, records) => {
          commits++
          return store.append(id, expected, records)
        }
      }))
    ).pipe(Layer.provide(Session.Store.layerMemory))
    const read = Tool.make("read", {
      parameters: { line: Schema.Finite },
      handler: ({ line }) => Effect.succeed(String(line).padEnd(characters, "x"))
    })
    const reply = (turn: number) => [
      ...Array.from({ length: calls }, (_, line) => Script.toolCall(`call_${turn}_${line}`, "read", { line })),
      Script.finish("tool_calls")
    ]
    const model = Script.layer([
      ...Array.from({ length: turns }, (_, turn) => reply(turn)),
      [Script.text("Done."), Script.finish("stop")]
    ])
    const records = yield* Effect.gen(function*() {
      const opened = yield* Session.open("s")
      const options = { tools: [read], maxTurns: turns + 1, maxConcurrency: calls }
      yield* Session.keep(opened, (session) => Session.reply(session, "go", options))
      return yield* Stream.runCollect(Session.Store.use(({ read }) => Effect.succeed(read("s"))).pipe(Stream.unwrap))
    }).pipe(Effect.provide([model, store]))
    const encode = Schema.encodeSync(Schema.toCodecJson(Session.Record))
    const bytes = records.reduce((sum, { record }) => sum + JSON.stringify(encode(record)).length, 0)
    return { commits, bytes, records: records.map(({ record }) => record) }
  })

describe("a run that is kept", () => {
  for (const calls of [5, 32, 64]) {
    it.effect(`commits a turn of ${calls} calls that start together at most 2 + 3 times`, () =>
      Effect.gen(function*() {
        const [few, more] = [yield* written(2, calls, 10), yield* written(4, calls, 10)]
        assert.isAtMost((more.commits - few.commits) / 2, 5)
      }))
  }

  it.effect("writes at most 1.3 times the results of 100 kB, and 1 kB a call besides", () =>
    Effect.gen(function*() {
      const large = yield* written(2, 5, 100_000)
      assert.isAtMost(large.bytes / (2 * 5 * 100_000), 1.3)
      for (const calls of [5, 32]) {
        const small = yield* written(2, calls, 10)
        assert.isAtMost(small.bytes / (2 * calls) - 10, 1_000)
      }
    }))

  it.effect("writes a reply once: the step that it belongs to has what no record before it contains", () =>
    Effect.gen(function*() {
      const { records } = yield* written(1, 3, 10)
      const [first, last] = records.flatMap((record) => record._tag === "StepCompleted" ? [record] : [])
      assert.notProperty(first, "response")
      assert.deepStrictEqual(first?.messages.map((message) => "_tag" in message), [true, true, true, true])
      assert.strictEqual(last?.response?.outputText, "Done.")
    }))
})
