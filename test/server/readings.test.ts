/**
 * Readers of a session whose runs another process drives: one that waits for a single run gets what one that reads all
 * events gets of that run, wherever the two begin.
 */
import { describe } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { type Journal, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import * as Bounds from "../../src/server/internal/bounds.ts"
import * as Logs from "../../src/server/internal/log.ts"
import * as Polls from "../../src/server/internal/polls.ts"
import * as Reading from "../../src/server/internal/reading.ts"
import { oneOf } from "../support/dimensions/dimension.ts"
import { property } from "../support/property.ts"

const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
const add = Tool.make("add", { parameters: {}, handler: () => Effect.succeed(3) })
const options = { tools: [pay, add] }

const { finish, streamError, text, toolCall } = Script

/** The journal of a session of four runs: an answer, calls of which one waits, the run behind its approval, a failure. */
const entries = Effect.gen(function*() {
  const opened = yield* Session.open("s")
  const first = yield* Session.keep(opened, (session) => Session.reply(session, "Hi", options))
  const asked = yield* Session.keep(first, (session) => Session.reply(session, "Pay", options))
  const allowed = yield* Session.keep(asked, (session) => Session.approve(session, "c1"))
  const paid = yield* Session.keep(allowed, (session) => Session.continue(session, null, options))
  yield* Session.keep(paid, (session) => Session.reply(session, "More", options))
  return yield* Stream.runCollect((yield* Session.Store).read("s"))
}).pipe(
  Effect.provide(Script.layer([
    [text("Hel"), text("lo."), finish("stop")],
    [text("One moment."), toolCall("c0", "add"), toolCall("c1", "pay"), finish("tool_calls")],
    [text("Paid."), finish("stop")],
    [text("I am"), streamError("network_error")]
  ])),
  Effect.provide(Layer.fresh(Session.Store.layerMemory))
)

const places = Arbitrary.all({
  /** The number of records that the readers find. */
  cut: oneOf(...Array.from({ length: 24 }, (_, cut) => cut + 1)),
  /** The run by its place. */
  run: oneOf(0, 1, 2, 3),
  by: oneOf("id", "id", "number"),
  /** The number of records that are written at once. */
  step: oneOf(1, 2, 5)
})

type Place = typeof places extends Arbitrary.Arbitrary<infer A> ? A : never

const shown = (frames: ReadonlyArray<Reading.Frame>) =>
  frames.flatMap((frame) => frame._tag === "Quiet" ? [] : [JSON.stringify(frame)])

const isOf = (runId: string) => (frame: Reading.Frame): boolean =>
  frame._tag === "Event" && frame.offset.startsWith(`${runId}.`) || frame._tag === "Reset" && frame.runId === runId

/** What one reader of a run gets, and what one of all events gets of it. */
const read = ({ by, cut, run, step }: Place) =>
  Effect.gen(function*() {
    const all = yield* entries
    const runs = all.flatMap(({ record }) =>
      record._tag === "RunStarted" && record.resumes !== true ? [record.requestId] : []
    )
    const before = all.slice(0, cut).map(({ record }) => record)
    const begun = before.filter(({ _tag }) => _tag === "RunStarted").length
    const isOpen = before.findLastIndex(({ _tag }) => _tag === "RunStarted") >
      before.findLastIndex(({ _tag }) => _tag === "RunEnded")
    // The next run is the one under way, if there is one. A run that nothing asks for yet is known by its id alone.
    const isNumbered = by === "number" && (isOpen || run < begun)
    const runId = runs[isNumbered && isOpen ? begun - 1 : run] ?? ""
    const store = yield* Session.Store
    const append = (from: number, to: number) => {
      const records = all.slice(from, to).map(({ record }) => record)
      return records.length === 0 ? Effect.void : store.append("s", from, records as unknown as Journal.Records)
    }
    yield* append(0, cut)
    const site: Reading.Site = {
      hub: new Logs.Hub(Bounds.standard, 0, yield* Effect.scope, {}, yield* Clock.Clock),
      polls: new Polls.Polls(),
      publish: {},
      processName: "another"
    }
    const wanted = isNumbered ? { known: run } : { runId }
    const frames = (request: Reading.Request) =>
      Effect.forkChild(Stream.runCollect(Reading.frames(site, "s", request, Effect.sleep("1 minute"))), {
        startImmediately: true
      })
    const one = yield* frames({ _tag: "Run", wanted, earlier: [] })
    const every = yield* frames({ _tag: "Events", endedRuns: 0 })
    for (let at = cut; at < all.length; at += step) {
      yield* TestClock.adjust("1 second")
      yield* append(at, Math.min(at + step, all.length))
    }
    yield* TestClock.adjust("1 minute")
    const everything = yield* Fiber.join(every)
    return { one: shown(yield* Fiber.join(one)), every: shown(everything.filter(isOf(runId))) }
  }).pipe(Effect.scoped, Effect.provide(Layer.fresh(Session.Store.layerMemory)), Effect.provide(TestClock.layer()))

describe("a reader of one run", () => {
  property(
    "R-522: a reader of one run gets that run's part of all events, and its end",
    places,
    (place) =>
      Effect.map(read(place), ({ every, one }) => {
        const hasEnd = one.at(-1)?.includes("ChatCompleted") === true
        return hasEnd && JSON.stringify(one) === JSON.stringify(every)
          ? []
          : [`${one.join("\n")}\nnot\n${every.join("\n")}`]
      }),
    60
  )
})
