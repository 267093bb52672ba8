/** Stops beside appends that hang, come late or are refused: no handler starts without its durable start. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Stream from "effect/Stream"
import { type Event, Journal, Session, Tool } from "heddle"
import { Worker } from "heddle/durable"
import { leaves } from "../durable/support/ledger.ts"
import { isLoaded, passing, recordsOf, stores, until, wrapped } from "../support/edges.ts"
import { agent, casting } from "../support/nests.ts"

const model = casting({ go: [[["a", "charge", {}]], "Done"] })

/** A charge that notes its attempts. */
const charging = (interrupt: "block" | "cancel", charges: Array<number>) =>
  Tool.make("charge", {
    parameters: {},
    interrupt,
    handler: (_, { attempt }) => Effect.sync(() => void charges.push(attempt))
  })

const hasStart = (records: Journal.Records) => records.some(({ _tag }) => _tag === "CallStarted")

/** What the journal says of calls: their starts and the codes of their answers. */
const callsIn = (records: ReadonlyArray<Journal.Record>) =>
  records.flatMap((record) =>
    record._tag === "CallStarted" ? ["CallStarted"] : record._tag === "CallEnded" ? [`CallEnded ${record.reason}`] : []
  )

const answersIn = (events: ReadonlyArray<Event.Event>) =>
  events.flatMap((event) => event._tag === "ToolResultEncoded" ? [event.content] : [])

const isStopped = (id: string) =>
  Effect.map(recordsOf(id), (records) => records.some(({ _tag }) => _tag === "StopRequested"))

/** The ways to stop the run of session `s`, at 100 milliseconds. */
const ways = {
  cancel: { options: { cancel: Effect.sleep(100) }, stop: Effect.void },
  deadline: { options: { deadline: 100 }, stop: Effect.void },
  stop: { options: {}, stop: Effect.delay(Session.stop("s"), 100) },
  interrupt: { options: {}, stop: Effect.void }
} as const

describe("an append that hangs while a run is stopped", () => {
  for (const interrupt of ["block", "cancel"] as const) {
    for (const way of ["cancel", "deadline", "stop", "interrupt"] as const) {
      it.effect(`O-46: a run stopped by ${way} starts no handler whose start was given up: ${interrupt}`, () =>
        Effect.gen(function*() {
          leaves("writes")
          const charges: Array<number> = []
          const tools = [charging(interrupt, charges)]
          let isHanging = true
          const store = wrapped((base) => (...append) =>
            isHanging && hasStart(append[2]) ? Effect.never : base.append(...append)
          )
          yield* Effect.gen(function*() {
            const events: Array<Event.Event> = []
            const { options, stop } = ways[way]
            const run = Effect.scoped(Effect.gen(function*() {
              const kept = yield* Session.claim("s", { poll: 20, term: "1 minute" })
              return yield* Session.keep(kept, (session) =>
                Session.reply(session, "go", {
                  ...options,
                  tools,
                  grace: 200,
                  onEvent: (event) => Effect.sync(() => void events.push(event))
                }))
            }))
            const fiber = yield* Effect.forkChild(run)
            yield* passing(stop)
            yield* passing(Effect.sleep(100))
            if (way === "interrupt") yield* passing(Fiber.interrupt(fiber))
            else assert.strictEqual((yield* passing(Fiber.join(fiber))).value.result.outcome._tag, "Cancelled")
            assert.deepStrictEqual(charges, [])
            if (way !== "interrupt") {
              assert.lengthOf(answersIn(events), 1)
              assert.match(String(answersIn(events)[0]), /"code":"cancelled"/)
            }
            assert.deepStrictEqual(callsIn(yield* recordsOf("s")), [])
            // The next owner finds no trace of the call, and it is the first to charge.
            isHanging = false
            yield* Session.revoke("s")
            yield* Effect.scoped(Effect.gen(function*() {
              yield* passing(Session.resume(yield* Session.claim("s"), { tools }))
            }))
            assert.isTrue(charges.length === 0 || charges.join() === "1", charges.join())
          }).pipe(Effect.provide([model, store]))
        }))
    }

    it.effect(`O-76: a call start that a stop overtakes is not written: ${interrupt}`, () =>
      Effect.gen(function*() {
        const charges: Array<number> = []
        let isAsked = false
        const store = wrapped((base) => (...append) =>
          !isAsked && append[2].some(({ _tag }) => _tag === "ReplyReceived")
            ? Effect.suspend(() => {
              isAsked = true
              return Effect.andThen(
                Effect.provideService(Session.stop("s"), Session.Store, base),
                base.append(...append)
              )
            })
            : base.append(...append)
        )
        yield* Effect.gen(function*() {
          const { value } = yield* passing(Effect.scoped(Effect.gen(function*() {
            const kept = yield* Session.claim("s")
            return yield* Session.keep(
              kept,
              (session) => Session.reply(session, "go", { tools: [charging(interrupt, charges)], grace: 200 })
            )
          })))
          assert.strictEqual(value.result.outcome._tag, "Cancelled")
          assert.deepStrictEqual(charges, [])
          assert.deepStrictEqual(callsIn(yield* recordsOf("s")), ["CallEnded cancelled"])
          assert.deepStrictEqual(Journal.check(yield* recordsOf("s")), [])
        }).pipe(Effect.provide([model, store]))
      }))
  }

  it.effect("O-46: a stop of another process ends the run although the append never returns", () =>
    Effect.gen(function*() {
      const store = wrapped((base) => (...append) => hasStart(append[2]) ? Effect.never : base.append(...append))
      yield* Effect.gen(function*() {
        const fiber = yield* Effect.forkChild(Effect.scoped(Effect.gen(function*() {
          const kept = yield* Session.claim("s", { poll: 20, term: "1 hour" })
          const tools = [charging("cancel", [])]
          return yield* Session.keep(kept, (session) => Session.reply(session, "go", { tools, grace: 200 }))
        })))
        yield* passing(Effect.sleep(100))
        yield* Session.stop("s")
        yield* until(isStopped("s"))
        yield* passing(Effect.sleep(400))
        assert.isDefined(fiber.pollUnsafe())
        assert.deepStrictEqual((yield* Fiber.join(fiber)).value.result.outcome, { _tag: "Cancelled", reason: "stop" })
      }).pipe(Effect.provide([model, store]))
    }))

  for (const late of ["succeeds", "fails"] as const) {
    it.effect(`O-47: an append that ${late} after its run has given up the wait changes nothing about the end of the run`, () =>
      Effect.gen(function*() {
        const error = new Journal.StoreError({ reason: "unreadable", operation: "append", id: "s" })
        const store = wrapped((base) => (...append) =>
          hasStart(append[2])
            ? Effect.delay(late === "fails" ? Effect.fail(error) : base.append(...append), 350)
            : base.append(...append)
        )
        yield* Effect.gen(function*() {
          const kept = yield* passing(Effect.scoped(Effect.gen(function*() {
            const kept = yield* Session.claim("s", { poll: 20 })
            return yield* Session.keep(kept, (session) =>
              Session.streamReply(session, "go", {
                tools: [charging("block", [])],
                cancel: Effect.sleep(100),
                grace: 200
              }).pipe(
                // The reader is at work when the append ends.
                Stream.tap((event) => event._tag === "ChatCompleted" ? Effect.sleep(500) : Effect.void),
                Stream.runCollect
              ))
          })))
          const last = kept.value.at(-1)
          assert.isTrue(last?._tag === "ChatCompleted" && last.result.outcome._tag === "Cancelled")
          assert.deepStrictEqual(
            last?._tag === "ChatCompleted" ? last.result.abandoned?.map(({ kind, name }) => [kind, name]) : undefined,
            [["store", "append"]]
          )
          // The result is what the store has.
          assert.strictEqual(kept.version, (yield* Session.load("s"))?.version)
        }).pipe(Effect.provide([model, store]))
      }))
  }

  it.effect("O-47: an operation after an abandoned append fails, and its error says that the append may have been written or not", () =>
    Effect.gen(function*() {
      const store = wrapped((base) => (...append) => hasStart(append[2]) ? Effect.never : base.append(...append))
      yield* Effect.gen(function*() {
        const kept = yield* Session.open("s")
        const options = { tools: [charging("cancel", [])], cancel: Effect.sleep(100), grace: 200 }
        const twice = Session.keep(kept, (session) =>
          Effect.flatMap(
            Session.reply(session, "go", options),
            ({ session }) => Session.reply(session, "and again", options)
          ))
        const error = yield* passing(Effect.flip(twice))
        assert.isTrue(error._tag === "StoreError" && error.reason === "unavailable")
        assert.match(
          error.message,
          /an append was given up: .* may have been written or not .*; load the session again/
        )
      }).pipe(Effect.provide([model, store]))
    }))
})

const quiet = Logger.layer([])

describe("a stopped run with handlers that refuse to stop", () => {
  const deaf = Tool.make("deaf", {
    parameters: {},
    handler: () => Effect.as(Effect.uninterruptible(Effect.sleep(2_000)), "late")
  })
  const block = Tool.make("block", {
    parameters: {},
    interrupt: "block",
    handler: () => Effect.as(Effect.sleep(2_000), "late")
  })
  const sub = agent("sub", [deaf, block])
  const both = casting({
    go: [[["a", "deaf", {}], ["b", "block", {}]], "Done"],
    outer: [[["c", "sub", {}], ["d", "block", {}]], "Done"],
    sub: [[["a", "deaf", {}], ["b", "block", {}]], "Done"]
  })

  for (const [where, base] of Object.entries(stores)) {
    for (const way of ["cancel", "deadline", "stop"] as const) {
      for (const says of ["go", "outer"] as const) {
        it.effect(`O-64: a run stopped by ${way} ends in its journal with its abandoned handlers: ${says}, ${where}`, () =>
          Effect.gen(function*() {
            const { options, stop } = ways[way]
            const events: Array<Event.Event> = []
            const fiber = yield* Effect.forkChild(Effect.scoped(Effect.gen(function*() {
              const kept = yield* Session.claim("s", { poll: 20 })
              return yield* Session.keep(kept, (session) =>
                Session.reply(session, says, {
                  ...options,
                  tools: [deaf, block, sub],
                  grace: 400,
                  onEvent: (event) => Effect.sync(() => void events.push(event))
                }))
            })))
            yield* passing(stop)
            const kept = yield* passing(Fiber.join(fiber))
            const records = yield* recordsOf("s")
            const ended = records.at(-1)
            assert.isTrue(ended?._tag === "RunEnded" && ended.haltedReason === "cancelled")
            assert.isTrue(ended?._tag === "RunEnded" && (ended.abandoned?.length ?? 0) > 0, "names what is left")
            assert.strictEqual(records.filter(({ _tag }) => _tag === "RunStarted").length, 1)
            assert.deepStrictEqual(callsIn(records).filter((said) => said !== "CallStarted").length, 2)
            assert.lengthOf(answersIn(events), 2)
            assert.deepStrictEqual([Session.next(kept), kept.interrupted], ["nothing", undefined])
            yield* passing(isLoaded(kept))
          }).pipe(Effect.provide([both, base, quiet])))
      }
    }
  }

  it.effect("O-64: a worker does not resume a run that the worker has stopped", () =>
    Effect.gen(function*() {
      const ends: Array<string> = []
      const worker = Worker.layer({
        run: () => ({ tools: [deaf, block], grace: 400 }),
        poll: 20,
        onEnd: (_, { outcome }) => Effect.sync(() => void ends.push(outcome._tag))
      })
      yield* Layer.build(worker)
      yield* Session.submit("s", "go")
      yield* until(Effect.map(recordsOf("s"), (records) => callsIn(records).length === 2))
      yield* Session.stop("s")
      yield* until(Effect.sync(() => ends.length > 0))
      yield* passing(Effect.sleep(5_000))
      const records = yield* recordsOf("s")
      assert.deepStrictEqual(ends, ["Cancelled"])
      assert.strictEqual(records.filter(({ _tag }) => _tag === "RunStarted").length, 1)
      assert.notInclude(JSON.stringify(records), "unknown_effect")
    }).pipe(Effect.scoped, Effect.provide([both, Session.Store.layerMemory, quiet])))
})
