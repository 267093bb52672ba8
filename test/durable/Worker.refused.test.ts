/** A worker over a store that refuses replies: the model is not paid again for what it has said. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import { Journal, Session } from "heddle"
import { Worker } from "heddle/durable"
import { linesOf, recordsOf, stores, until, wrapped } from "../support/edges.ts"
import { acting, agent, casting } from "../support/nests.ts"
import type { Deed } from "../support/survivor.ts"
import { ledger } from "./support/ledger.ts"

ledger()

const quiet = Logger.layer([])

/** Tells whether records have a reply. One without calls is recorded with its step. */
const isReplied = (records: Journal.Records) =>
  records.some((record) => record._tag === "ReplyReceived" || record._tag === "StepCompleted")

const isOver = (id: string, status: Session.Status) =>
  Effect.map(Session.load(id), (kept) => kept?.session.status === status && Session.next(kept) === "nothing")

describe("a reply that the store refuses", () => {
  for (const reason of ["full", "read_only", "unavailable"] as const) {
    it.effect(`O-57: a refused reply is kept while the store is tried again, and the model is asked once per reply: ${reason}`, () =>
      Effect.gen(function*() {
        const asked: Array<string> = []
        const world: Array<Deed> = []
        const model = casting({
          go: [[["a", "act", {}], ["s", "sub", {}]], "Done"],
          sub: [[["b", "act", {}]], "Sub"]
        }, asked)
        const tools = [acting(world, "act"), agent("sub", [acting(world, "act")])]
        let refusals = 0
        // Each reply is refused twice.
        const store = wrapped((base) => (...append) =>
          Effect.suspend(() =>
            isReplied(append[2]) && refusals++ % 3 < 2
              ? Effect.fail(new Journal.StoreError({ reason, operation: "append", id: append[0] }))
              : base.append(...append)
          )
        )
        yield* Effect.gen(function*() {
          const worker = Worker.layer({
            run: () => ({ tools: tools as unknown as [], maxConcurrency: 1 }),
            maxFailures: 2
          })
          yield* Layer.build(worker)
          yield* Session.submit("s", "go")
          yield* until(isOver("s", "completed"), 1_000)
          assert.deepStrictEqual(asked, ["go 0", "sub 0", "sub 1", "go 1"])
          assert.lengthOf(world, 2)
          assert.strictEqual(linesOf((yield* Session.load("s"))!.session).at(-1), "assistant: Done")
          assert.deepStrictEqual(Journal.check(yield* recordsOf("s")), [])
        }).pipe(Effect.scoped, Effect.provide([model, store, quiet]))
      }))
  }

  for (const [where, base] of Object.entries(stores)) {
    it.effect(`O-57: a reply too large for the store ends its run with that error, and the model is asked once, ${where}`, () =>
      Effect.gen(function*() {
        const asked: Array<string> = []
        const givenUp: Array<unknown> = []
        const large = "x".repeat(5_000)
        yield* Effect.gen(function*() {
          yield* Layer.build(Worker.layer({
            run: () => ({}),
            onGiveUp: (_, error) => Effect.sync(() => void givenUp.push(error))
          }))
          yield* Session.submit("s", "go", { id: "m" })
          yield* until(isOver("s", "error"), 100)
          const kept = (yield* Session.load("s"))!
          assert.deepStrictEqual(asked, ["go 0"])
          assert.strictEqual(Session.receipt(kept, "m")?.became, "failed")
          const [error] = givenUp
          assert.isTrue(error instanceof Journal.StoreError && error.reason === "too_large")
          assert.deepStrictEqual(Journal.check(yield* recordsOf("s")), [])
        }).pipe(
          Effect.scoped,
          Effect.provide([casting({ go: [large, "Done"] }, asked), base, quiet]),
          Effect.provideService(Journal.MaxRecordBytes, 3_000)
        )
      }))
  }
})
