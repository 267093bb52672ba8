/** A worker and what is submitted while a question is open: the message waits, and the question is left to its answer. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { type Event, Session, Tool } from "heddle"
import { Worker } from "heddle/durable"
import { check } from "heddle/testing"
import { driven, errands, holding, inOrder, isLoaded, linesOf, placesOf, stores, until } from "../support/edges.ts"
import { agent, casting } from "../support/nests.ts"
import type { Deed } from "../support/survivor.ts"
import { ledger } from "./support/ledger.ts"

ledger()

const questions = {
  "a plain question": [
    Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Wipe the disk?")) })
  ],
  "a typed question": [
    Tool.make("ask", {
      parameters: {},
      handler: () => Effect.succeed(Tool.askUser("Wipe the disk?", { answer: Schema.Boolean }))
    })
  ],
  "two questions": [
    Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Wipe the disk?")) }),
    Tool.make("ask2", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("And format it?")) })
  ],
  "a sub-agent's question": [
    agent("ask", [
      Tool.make("inner", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Wipe the disk?")) })
    ])
  ],
  "an approval": [Tool.make("ask", { parameters: {}, approval: true, handler: () => Effect.succeed("wiped") })],
  "a manual call": [Tool.make("ask", { parameters: {}, manual: true })]
} as const

const settle = (session: Session.Session, { id, kind }: Event.Suspension) =>
  kind === "approval" ? Session.approve(session, id) : Session.answer(session, id, true)

describe("a message submitted beside a question", () => {
  for (const [where, base] of Object.entries(stores)) {
    for (const [what, tools] of Object.entries(questions)) {
      for (const when of ["before", "after"] as const) {
        it.effect(`N-38: a message submitted ${when} ${what} waits until every waiting call is settled, ${where}`, () =>
          Effect.gen(function*() {
            const names = tools.map(({ name }) => [name, name, {}] as const)
            const model = casting({ go: [names, "Done", "Later"], ask: [[["inner", "inner", {}]], "Asked"] })
            const lines: Array<string> = []
            const logger = Logger.layer([Logger.make(({ message }) => void lines.push(String(message)))])
            const answer = "yes, and also order pizza"
            yield* Session.submit("s", "go", { id: "m1" })
            if (when === "before") yield* Session.submit("s", answer, { id: "m2" })
            const worker = Worker.layer({ run: () => ({ tools: tools as unknown as [] }), term: "10 seconds" })
            yield* Layer.build(worker.pipe(Layer.provide([model, logger])))
            const loaded = Effect.map(Session.load("s"), (kept) => kept!)
            yield* until(
              Effect.map(
                loaded,
                ({ interrupted, session }) => interrupted === undefined && session.suspensions.length === tools.length
              ),
              100
            )
            if (when === "after") yield* Session.submit("s", answer, { id: "m2" })
            const { version } = yield* loaded
            yield* TestClock.adjust("2 minutes")
            let kept = yield* loaded
            assert.deepStrictEqual([kept.version, Session.next(kept)], [version, "wait"])
            assert.strictEqual(Session.receipt(kept, "m2")?.became, "queued")
            assert.isEmpty(lines)
            assert.deepStrictEqual(yield* Stream.runCollect(Session.unfinished), [])
            for (const suspension of kept.session.suspensions) {
              kept = yield* Session.keep(yield* loaded, (session) => settle(session, suspension))
            }
            yield* until(Effect.map(loaded, ({ submitted }) => submitted === undefined), 100)
            yield* until(Effect.map(loaded, (kept) => Session.next(kept) === "nothing"), 100)
            const done = yield* loaded
            assert.strictEqual(Session.receipt(done, "m2")?.became, "completed")
            assert.isEmpty(check.thread(done.session.thread))
            assert.strictEqual(linesOf(done.session).at(-2), `user: ${answer}`)
            assert.strictEqual(
              linesOf(done.session).filter((line) => line.includes("pizza")).length,
              1,
              linesOf(done.session).join("\n")
            )
            yield* inOrder
          }).pipe(Effect.scoped, Effect.provide(base)))
      }
    }
  }
})

describe("the remaining work of a session", () => {
  it.effect("Q-07: a worker and a program of ten lines end a session alike from each append of all journals", () =>
    Effect.gen(function*() {
      const { model, toolsOf } = errands
      const appends = yield* errands.appends
      for (const length of placesOf(1, appends.length)) {
        const where = `behind append ${length}, ${appends[length - 1]?.records.map(({ _tag }) => _tag).join(" ")}`
        const before = appends.slice(0, length)
        const own = yield* Effect.gen(function*() {
          const world: Array<Deed> = []
          const kept = yield* driven("s", toolsOf(world))
          yield* isLoaded(kept, where)
          return { world, kept, listed: yield* Stream.runCollect(Session.list()) }
        }).pipe(Effect.provide([model, holding(before)]))
        const other = yield* Effect.gen(function*() {
          const world: Array<Deed> = []
          yield* Layer.build(
            Layer.provide(Worker.layer({ run: () => ({ tools: toolsOf(world) }) }), model)
          )
          const loaded = Effect.map(Session.load("s"), (kept) => kept!)
          yield* until(Effect.map(loaded, (kept) => ["wait", "nothing"].includes(Session.next(kept))), 100)
          const kept = yield* loaded
          yield* inOrder
          return { world, kept, listed: yield* Stream.runCollect(Session.list()) }
        }).pipe(Effect.scoped, Effect.provide(holding(before)))
        assert.deepStrictEqual(other.kept.session, own.kept.session, where)
        assert.strictEqual(Session.next(other.kept), Session.next(own.kept), where)
        assert.deepStrictEqual(other.world.map(({ tool }) => tool), own.world.map(({ tool }) => tool), where)
        for (const { listed, kept } of [own, other]) {
          for (const { id, next } of listed) {
            assert.strictEqual(next, id === "s" ? Session.next(kept) : "nothing", `${where}: ${id}`)
          }
        }
        for (const id of ["m1", "m2", "m3"]) {
          const [one, two] = [Session.receipt(own.kept, id), Session.receipt(other.kept, id)]
          assert.strictEqual(one?.became, two?.became, `${where}: ${id}`)
        }
      }
    }))
})
