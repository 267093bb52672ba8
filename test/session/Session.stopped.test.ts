/**
 * A stop whose grace period ends with handlers at work: one that refuses to stop is left running, and one that may
 * finish is interrupted at that moment. Both calls are answered in the journal that they belong to, which ends too.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Logger from "effect/Logger"
import * as Stream from "effect/Stream"
import { Chat, type Event, type Journal, Session, Tool } from "heddle"
import { isLoaded, passing, recordsOf, slow, stores } from "../support/edges.ts"
import { casting } from "../support/nests.ts"

const quiet = Logger.layer([])

const grace = 400

const deaf = Tool.make("deaf", {
  parameters: {},
  handler: () => Effect.as(Effect.uninterruptible(Effect.sleep(2_000)), "late")
})

const block = Tool.make("block", {
  parameters: {},
  interrupt: "block",
  handler: () => Effect.as(Effect.sleep(2_000), "late")
})

/** The calls of one turn that are at work when the grace period is over, and the codes of their answers. */
const turns = {
  "one left running, one interrupted": [["deaf", "abandoned"], ["block", "cancelled"]],
  "two left running": [["deaf", "abandoned"], ["deaf", "abandoned"]],
  "two left running, one interrupted": [["deaf", "abandoned"], ["block", "cancelled"], ["deaf", "abandoned"]],
  "two interrupted": [["block", "cancelled"], ["block", "cancelled"]]
} as const

type Calls = (typeof turns)[keyof typeof turns]

const turnOf = (calls: Calls) =>
  calls.map(([name], index): readonly [string, string, Record<string, unknown>] => [`c${index}`, name, {}])

/** The ways to stop the run of session `s`, at 100 milliseconds. */
const ways = {
  cancel: { options: { cancel: Effect.sleep(100) }, stop: Effect.void },
  deadline: { options: { deadline: 100 }, stop: Effect.void },
  stop: { options: {}, stop: Effect.delay(Session.stop("s"), 100) }
} as const

/** Sub-agents within each other, which may finish. The innermost makes the calls of the turn. */
const nested = (depth: number): ReadonlyArray<Tool.Any> =>
  depth === 0 ? [deaf, block] : [
    Tool.fromChat(`sub${depth}`, {
      parameters: {},
      interrupt: "block",
      chat: () => Chat.stream(`sub${depth}`, { tools: nested(depth - 1) as [], grace })
    })
  ]

const modelOf = (calls: Calls, depth: number) =>
  casting({
    go: [depth === 0 ? turnOf(calls) : [[`s${depth}`, `sub${depth}`, {}]], "Done"],
    sub1: [turnOf(calls), "Done"],
    sub2: [[["s1", "sub1", {}]], "Done"]
  })

/** The codes of the answers in a journal, by their calls. */
const answersIn = (records: ReadonlyArray<Journal.Record>) =>
  Object.fromEntries(
    records.flatMap((record) => record._tag === "CallEnded" ? [[record.message.toolCallId, record.message.code]] : [])
  )

const namesOf = (abandoned: ReadonlyArray<Event.Abandoned> = []) => abandoned.map(({ id, name }) => [id, name]).sort()

/** Stops a run at work, and succeeds with what it came to and its events. */
const stopped = (calls: Calls, way: keyof typeof ways, depth: number) =>
  Effect.gen(function*() {
    const { options, stop } = ways[way]
    const events: Array<Event.Event> = []
    const fiber = yield* Effect.forkChild(Effect.scoped(Effect.gen(function*() {
      const kept = yield* Session.claim("s", { poll: 20 })
      return yield* Session.keep(kept, (session) =>
        Session.reply(session, "go", {
          ...options,
          tools: nested(depth) as [],
          grace,
          onEvent: (event) => Effect.sync(() => void events.push(event))
        }))
    })))
    yield* passing(stop)
    const kept = yield* passing(Fiber.join(fiber), 1)
    yield* passing(isLoaded(kept))
    return { kept, events }
  }).pipe(Effect.provide(modelOf(calls, depth)))

const expected = (calls: Calls) => ({
  answers: Object.fromEntries(calls.map(([, code], index) => [`c${index}`, code])),
  abandoned: calls.flatMap(([name], index) => name === "deaf" ? [[`c${index}`, name]] : [])
})

describe("a stop at the end of the grace period", () => {
  for (const [where, store] of Object.entries(stores)) {
    for (const [what, calls] of Object.entries(turns)) {
      for (const way of ["cancel", "deadline", "stop"] as const) {
        for (const depth of [0, 1, 2]) {
          const title = `${what}, by ${way}, ${depth} deep, ${where}`
          it.effect(`O-64: a stopped run answers its calls and ends in its journal: ${title}`, () =>
            Effect.gen(function*() {
              const { kept, events } = yield* stopped(calls, way, depth)
              const store = yield* Session.Store
              const ids = Array.from(yield* Stream.runCollect(store.list({ prefix: "s" })), ({ id }) => id).sort()
              assert.lengthOf(ids, depth + 1)
              for (const id of ids) {
                const records = yield* recordsOf(id)
                const ended = records.at(-1)
                if (ended?._tag !== "RunEnded") return assert.fail(`${id} ends with ${ended?._tag}`)
                assert.strictEqual(ended.haltedReason, "cancelled")
                assert.lengthOf(records.filter(({ _tag }) => _tag === "RunStarted"), 1)
                assert.deepStrictEqual(namesOf(ended.abandoned), expected(calls).abandoned, id)
              }
              const innermost = yield* recordsOf(ids.at(-1)!)
              assert.deepStrictEqual(answersIn(innermost), expected(calls).answers)
              const done = events.at(-1)
              if (done?._tag !== "ChatCompleted") return assert.fail("the run has no end")
              assert.deepStrictEqual(namesOf(done.result.abandoned), expected(calls).abandoned)
              assert.deepStrictEqual([Session.next(kept), kept.interrupted], ["nothing", undefined])
            }).pipe(Effect.provide([store, quiet])))
        }
      }
    }
  }

  for (const depth of [0, 1, 2]) {
    it.effect(`O-64: a stopped run ends in its journal over a slow store, ${depth} deep`, () =>
      Effect.gen(function*() {
        yield* stopped(turns["one left running, one interrupted"], "stop", depth)
        const store = yield* Session.Store
        for (const { id } of yield* Stream.runCollect(store.list({ prefix: "s" }))) {
          assert.strictEqual((yield* recordsOf(id)).at(-1)?._tag, "RunEnded", id)
        }
      }).pipe(Effect.provide([slow(3), quiet])))
  }

  for (const depth of [0, 1]) {
    it.effect(`O-64: a stopped run of a program ends in its journal, ${depth} deep`, () =>
      Effect.gen(function*() {
        const calls = turns["one left running, one interrupted"]
        const run = Effect.scoped(Effect.gen(function*() {
          const { claim } = yield* Session.claim("s", { poll: 20 })
          const tools = nested(depth) as []
          return yield* Effect.provide(
            Chat.run("go", { tools, grace, cancel: Effect.sleep(100) }),
            Session.layerRuns(claim)
          )
        }))
        const { abandoned } = yield* passing(Effect.provide(run, modelOf(calls, depth)), 1)
        assert.deepStrictEqual(namesOf(abandoned), expected(calls).abandoned)
        const store = yield* Session.Store
        const ids = Array.from(yield* Stream.runCollect(store.list({ prefix: "s/" })), ({ id }) => id)
        assert.lengthOf(ids, depth + 1)
        for (const id of ids) {
          const ended = (yield* recordsOf(id)).at(-1)
          if (ended?._tag !== "RunEnded") return assert.fail(`${id} ends with ${ended?._tag}`)
          assert.deepStrictEqual(namesOf(ended.abandoned), expected(calls).abandoned, id)
        }
      }).pipe(Effect.provide([Session.Store.layerMemory, quiet])))
  }
})
