/**
 * Runs that were cut and are taken up: at every record of a journal the run comes to what it would have come to, no
 * finished call is repeated, and of a call that may have had its effect its tool decides.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Session } from "heddle"
import { type Deed, journalOf, modelOf, prefixed, toolsOf } from "./support/survivor.ts"

const options = { context: { user: "ann" }, requestId: "run" } as const

/** The uncut run: its journal and what it came to. */
const uncut = Effect.gen(function*() {
  const world: Array<Deed> = []
  const asked: Array<number> = []
  const program = Effect.gen(function*() {
    const opened = yield* Session.open("s")
    const kept = yield* Session.keep(
      opened,
      (session) => Session.reply(session, "go", { ...options, tools: toolsOf(world) })
    )
    return { kept, records: yield* journalOf("s") }
  })
  const { kept, records } = yield* program.pipe(Effect.provide([modelOf(asked), Session.Store.layerMemory]))
  return { asked, kept, records, world }
})

const resumed = (records: ReadonlyArray<Session.Record>) => {
  const world: Array<Deed> = []
  const asked: Array<number> = []
  return Effect.gen(function*() {
    const cut = (yield* Session.load("s"))!
    const kept = yield* Session.resume(cut, { context: { user: "ann" }, tools: toolsOf(world), takeOver: true })
    return { asked, cut, kept, loaded: yield* Session.load("s"), records: yield* journalOf("s"), world }
  }).pipe(Effect.provide([modelOf(asked), prefixed("s", records)]))
}

describe("a run that was cut at a record", () => {
  it.effect("D-03: comes to the result of the uncut one, and no finished call is repeated", () =>
    Effect.gen(function*() {
      const whole = yield* uncut
      for (let length = 2; length < whole.records.length; length++) {
        const before = whole.records.slice(0, length)
        const where = `cut behind record ${length}, ${before.at(-1)?._tag}`
        const { kept, loaded, records, world } = yield* resumed(before)
        const ended = new Set(before.flatMap((record) => record._tag === "CallEnded" ? [record.toolCallId] : []))
        const started = before.flatMap((record) => record._tag === "CallStarted" ? [record] : [])
        const unknown = started.filter(({ toolCall }) => !ended.has(toolCall.id) && toolCall.name === "charge")
        for (const { key } of world) assert.isFalse(ended.has(key.split(":").at(-1) ?? ""), `${where}: ${key} again`)
        for (const { idempotencyKey, attempt, toolCall } of started) {
          const again = world.find(({ key }) => key.endsWith(`:${toolCall.id}`))
          if (again !== undefined) assert.deepInclude(again, { key: idempotencyKey, attempt: attempt + 1 }, where)
        }
        if (unknown.length === 0) {
          assert.deepStrictEqual(kept.value.result, whole.kept.value.result, where)
          assert.deepStrictEqual(kept.session, whole.kept.session, where)
        }
        assert.deepStrictEqual(loaded?.session, kept.session, where)
        assert.strictEqual(records.filter(({ _tag }) => _tag === "RunEnded").length, 1, where)
      }
    }))
})
