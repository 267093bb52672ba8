/**
 * What keeping a run costs, counted and not timed: how often a turn is committed, and how many bytes its calls take.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { type Journal, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import * as Journals from "../../src/internal/session/journal.ts"

/** Turns of so many calls, whose results have so many characters, and what was written for them. */
const written = (turns: number, calls: number, characters: number) =>
  Effect.gen(function*() {
    let commits = 0
    const store = Layer.effect(
      Session.Store,
      Effect.map(Session.Store, (store): Journal.Service => ({
        ...store,
        append: (id, expected, records, options) => {
          commits++
          return store.append(id, expected, records, options)
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
    const texts = yield* Effect.forEach(records, ({ record, version }) => Journals.toText("s", record, version))
    return { commits, bytes: texts.join("").length, texts, records: records.map(({ record }) => record) }
  })

describe("the cost of a kept run", () => {
  for (const calls of [5, 32, 64]) {
    it.effect(`a turn of ${calls} calls that start together is committed at most 2 + 3 times`, () =>
      Effect.gen(function*() {
        const [few, more] = [yield* written(2, calls, 10), yield* written(4, calls, 10)]
        assert.isAtMost((more.commits - few.commits) / 2, 5)
      }))
  }

  it.effect("a journal takes at most 1.3 times the bytes of large results, and at most 1 kB for a small call", () =>
    Effect.gen(function*() {
      const large = yield* written(2, 5, 100_000)
      assert.isAtMost(large.bytes / (2 * 5 * 100_000), 1.3)
      for (const calls of [5, 32]) {
        const small = yield* written(2, calls, 10)
        assert.isAtMost(small.bytes / (2 * calls) - 10, 1_000)
      }
    }))

  it.effect("a reply is written once, and its step has only what no earlier record contains", () =>
    Effect.gen(function*() {
      const { records } = yield* written(1, 3, 10)
      const [first, last] = records.flatMap((record) => record._tag === "StepCompleted" ? [record] : [])
      assert.notProperty(first, "response")
      assert.notProperty(first, "messages")
      assert.notProperty(last, "messages")
      assert.strictEqual(last?.response?.outputText, "Done.")
    }))

  it.effect("Q-10: a call in a turn of 32 calls takes at most 700 bytes besides its result and its arguments", () =>
    Effect.gen(function*() {
      const [few, more] = [yield* written(2, 32, 10), yield* written(4, 32, 10)]
      const given = 10 + `{"line":31}`.length
      assert.isAtMost((more.bytes - few.bytes) / (2 * 32) - given, 700)
    }))

  const occurrences = (texts: ReadonlyArray<string>, what: string) =>
    texts.flatMap((text) => Array.from({ length: text.split(what).length - 1 }, () => JSON.parse(text)._tag))

  /** What has been written of a call with the marked arguments, whose marked answer comes before or after its reply. */
  const marked = (options: { readonly isEarly?: boolean; readonly isEdited?: boolean }) =>
    Effect.gen(function*() {
      const tool = Tool.make("mark", {
        parameters: { text: Schema.String },
        readOnly: true,
        approval: options.isEdited === true,
        handler: () => Effect.succeed("<answer>")
      })
      const given = { tools: [tool] }
      const model = yield* Script.make([
        [
          Script.toolCall("c0", "mark", { text: "<arguments>" }),
          ...options.isEarly === true ? [Script.delay(100)] : [],
          Script.finish("tool_calls")
        ],
        [Script.text("Done."), Script.finish("stop")]
      ])
      const opened = yield* Session.open("s")
      const run = Effect.gen(function*() {
        const kept = yield* Session.keep(opened, (session) => Session.reply(session, "go", given))
        if (options.isEdited !== true) return
        const approved = yield* Session.keep(kept, (session) =>
          Session.approve(session, "c0", { arguments: { text: "<edited>" } }))
        yield* Session.keep(approved, (session) =>
          Session.continue(session, null, given))
      })
      const fiber = yield* Effect.forkChild(Effect.provide(run, model.layer), { startImmediately: true })
      yield* TestClock.adjust(200)
      yield* Fiber.join(fiber)
      const store = yield* Session.Store
      const records = yield* Stream.runCollect(store.read("s"))
      return yield* Effect.forEach(records, ({ record }) => Journals.toText("s", record))
    }).pipe(Effect.provide(Session.Store.layerMemory))

  it.effect("Q-10: an answer is written once, and so are the arguments of a call", () =>
    Effect.gen(function*() {
      const texts = yield* marked({})
      assert.deepStrictEqual(occurrences(texts, "<answer>"), ["CallEnded"])
      assert.deepStrictEqual(occurrences(texts, "<arguments>"), ["ReplyReceived"])
    }))

  it.effect("Q-10: the arguments of a call that began before its reply was whole are written once more", () =>
    Effect.gen(function*() {
      const texts = yield* marked({ isEarly: true })
      assert.deepStrictEqual(occurrences(texts, "<answer>"), ["CallEnded"])
      assert.deepStrictEqual(occurrences(texts, "<arguments>"), ["CallStarted", "ReplyReceived"])
    }))

  it.effect("Q-10: edited arguments are written once", () =>
    Effect.gen(function*() {
      const texts = yield* marked({ isEdited: true })
      assert.deepStrictEqual(occurrences(texts, "<answer>"), ["CallEnded"])
      assert.deepStrictEqual(occurrences(texts, "<arguments>"), ["ReplyReceived"])
      assert.deepStrictEqual(occurrences(texts, "<edited>"), ["CallSettled"])
    }))
})
