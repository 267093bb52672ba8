/** The times that the records of a journal have, and that the events have which a journal tells. */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import { TestClock } from "effect/testing"
import { type Chat, type Event, Journal, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import * as Journals from "../../src/internal/session/journal.ts"
import { living, toldBy } from "../support/journalEvents.ts"
import { withinHour } from "../support/runs.ts"
import { journalOf, prefixed } from "../support/survivor.ts"

const { delay, finish, text, toolCall } = Script

/** A tool whose calls take so many milliseconds. */
const work = Tool.make("work", {
  parameters: { millis: Schema.Finite },
  handler: ({ millis }) => Effect.as(Effect.sleep(millis), `took ${millis}`)
})

const ask = Tool.make("ask", { parameters: {}, approval: true, handler: () => Effect.succeed("allowed") })

const turns = [
  [delay(100), toolCall("a", "work", { millis: 200 }), toolCall("b", "work", { millis: 50 }), finish("tool_calls")],
  [delay(30), toolCall("c", "ask", {}), finish("tool_calls")],
  [delay(40), text("Done."), finish("stop")]
]

const replying = (options: Chat.Options<any, any, any, any, any> = {}) =>
  Effect.flatMap(
    Session.open("s"),
    (opened) =>
      withinHour(Session.keep(opened, (session) =>
        Session.reply(session, "go", { tools: [work, ask] as unknown as [], ...options })))
  )

const recorded = (script: Parameters<typeof Script.layer>[0], options?: Chat.Options<any, any, any, any, any>) =>
  Effect.andThen(replying(options), journalOf("s")).pipe(
    Effect.provide([Script.layer(script), Session.Store.layerMemory])
  )

/** The tags of records, each with its times. */
const timesOf = (records: ReadonlyArray<Journal.Record>) =>
  records.map((record) => {
    const at = "at" in record ? record.at : undefined
    const time = "time" in record ? record.time : undefined
    return [record._tag, ...(at === undefined ? [] : [at]), ...(time === undefined ? [] : [time])]
  })

const moments = (events: ReadonlyArray<Event.PublicEvent>) => events.map(({ _tag, at }) => [_tag, at])

describe("times of records", () => {
  it.effect("V-21: the times of a run count from its start", () =>
    Effect.gen(function*() {
      yield* TestClock.setTime(1_000_000)
      const records = yield* recorded(turns)
      assert.deepStrictEqual(timesOf(records), [
        ["Opened"],
        ["RunStarted"],
        ["ReplyReceived", 100],
        ["CallStarted", 100],
        ["CallStarted", 100],
        ["CallEnded", 150],
        ["CallEnded", 300],
        ["StepCompleted", 300],
        ["ReplyReceived", 330],
        ["CallWaits", 330],
        ["StepCompleted", 330],
        ["RunEnded", 330]
      ])
      const started = records.find((record) => record._tag === "RunStarted")
      assert.strictEqual(started?._tag === "RunStarted" ? started.startedAt : undefined, 1_000_000)
      assert.deepStrictEqual(Journal.check(records), [])
    }))

  it.effect("V-21: the times of a resumed run count from its resumption", () =>
    Effect.gen(function*() {
      const records = yield* recorded(turns.toSpliced(1, 1))
      const cut = records.slice(0, records.findIndex(({ _tag }) => _tag === "CallEnded"))
      const resumed = yield* Effect.gen(function*() {
        const kept = yield* Session.load("s")
        const started = yield* Clock.currentTimeMillis
        yield* withinHour(Session.resume(kept!, { tools: [work], takeOver: true }))
        const all = yield* journalOf("s")
        assert.deepStrictEqual(Journal.check(all), [])
        const own = all.slice(cut.length)
        assert.strictEqual(own[0]?._tag === "RunStarted" ? own[0].startedAt : undefined, started)
        return own
      }).pipe(Effect.provide([Script.layer(turns.slice(2)), prefixed("s", cut)]))
      // The effects of both calls are not known, and the model is asked again.
      assert.deepStrictEqual(timesOf(resumed), [
        ["RunStarted"],
        ["CallEnded", 0],
        ["CallEnded", 0],
        ["StepCompleted", 0],
        ["StepCompleted", 40],
        ["RunEnded", 40]
      ])
    }))

  it.effect("V-21: times never decrease, also where the clock is set back or lags the earlier process's clock", () =>
    Effect.gen(function*() {
      const clock = yield* Clock.Clock
      let behind = 0
      const now = () => clock.currentTimeMillisUnsafe() - behind
      const own = Object.assign(Object.create(clock), { currentTimeMillisUnsafe: now }) as Clock.Clock
      const back = Tool.make("back", {
        parameters: {},
        handler: () => Effect.as(Effect.andThen(Effect.sleep(50), Effect.sync(() => void (behind = 5_000))), "back")
      })
      const script = [[delay(100), toolCall("a", "back", {}), finish("tool_calls")], [text("Done."), finish("stop")]]
      const records = yield* Effect.provideService(
        recorded(script, { tools: [back] as unknown as [] }),
        Clock.Clock,
        own
      )
      assert.deepStrictEqual(timesOf(records).slice(2), [
        ["ReplyReceived", 100],
        ["CallStarted", 100],
        ["CallEnded", 100],
        ["StepCompleted", 100],
        ["StepCompleted", 100],
        ["RunEnded", 100]
      ])
      const cut = records.slice(0, records.findIndex(({ _tag }) => _tag === "CallEnded"))
      yield* Effect.gen(function*() {
        yield* Effect.provideService(Session.abandon((yield* Session.load("s"))!), Clock.Clock, {
          ...clock,
          currentTimeMillisUnsafe: () => 0
        } as Clock.Clock)
        const all = yield* journalOf("s")
        assert.deepStrictEqual(timesOf(all.slice(cut.length)), [["CallEnded", 100], ["RunEnded", 100]])
        assert.deepStrictEqual(Journal.check(all), [])
      }).pipe(Effect.provide(prefixed("s", cut)))
    }))

  it.effect("V-21: the times of an abandoned run count from its last resumption", () =>
    Effect.gen(function*() {
      const records = yield* recorded(turns.toSpliced(1, 1))
      const cut = records.slice(0, records.findIndex(({ _tag }) => _tag === "CallEnded"))
      const now = yield* Clock.currentTimeMillis
      const started = cut.find((record) => record._tag === "RunStarted")!
      const resumed: Journal.Record = { ...started, resumes: true, messages: [], startedAt: now - 250 }
      const { after: _, ...unsealed } = resumed
      yield* Effect.gen(function*() {
        yield* Session.abandon((yield* Session.load("s"))!)
        const own = (yield* journalOf("s")).slice(cut.length + 1)
        assert.deepStrictEqual(timesOf(own), [["CallEnded", 250], ["CallEnded", 250], ["RunEnded", 250]])
      }).pipe(Effect.provide(prefixed("s", [...cut, unsealed])))
    }))

  it.effect("V-21: each attempt of a call has its own times", () =>
    Effect.gen(function*() {
      let attempts = 0
      const flaky = Tool.make("flaky", {
        parameters: {},
        retry: Schedule.upTo(Schedule.spaced(70), { times: 1 }),
        handler: () =>
          Effect.delay(
            Effect.suspend(() => attempts++ === 0 ? Effect.fail(new Error("once")) : Effect.succeed("ok")),
            20
          )
      })
      const script = [[toolCall("a", "flaky", {}), finish("tool_calls")], [text("Done."), finish("stop")]]
      const records = yield* recorded(script, { tools: [flaky] as unknown as [] })
      assert.deepStrictEqual(timesOf(records).slice(3, 7), [
        ["CallStarted", 0],
        ["AttemptFailed", 20],
        ["CallStarted", 90],
        ["CallEnded", 110]
      ])
    }))

  it.effect("V-21: commands have the time of the clock", () =>
    Effect.gen(function*() {
      yield* TestClock.setTime(2_000)
      yield* Session.submit("s", "go", { id: "m" })
      yield* TestClock.setTime(3_000)
      const kept = (yield* Session.load("s"))!
      const waiting = yield* Session.keep(kept, (session) => Session.reply(session, "go", { tools: [ask] }))
      yield* TestClock.setTime(4_000)
      const settled = yield* Session.keep(waiting, (session) => Session.approve(session, "c"))
      assert.deepStrictEqual(settled.session.answered, [{ id: "c", verdict: "approved", at: 4_000 }])
      const records = yield* journalOf("s")
      assert.deepStrictEqual(timesOf(records).filter(([tag]) => tag === "MessageSubmitted" || tag === "CallSettled"), [
        ["MessageSubmitted", 2_000],
        ["CallSettled", 4_000]
      ])
    }).pipe(Effect.provide([
      Script.layer([[toolCall("c", "ask", {}), finish("tool_calls")]]),
      Session.Store.layerMemory
    ])))

  it.effect("V-21: a denial by a reply and a stop have the time of the clock", () =>
    Effect.gen(function*() {
      const opened = yield* Session.open("s")
      const waiting = yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools: [ask] }))
      yield* TestClock.setTime(5_000)
      const running = yield* Effect.forkChild(
        Session.keep(waiting, (session) => Session.reply(session, "no", { tools: [ask], pending: "deny" })),
        { startImmediately: true }
      )
      yield* TestClock.adjust(10)
      yield* Session.stop("s")
      yield* TestClock.adjust("1 minute")
      yield* Fiber.join(running)
      const records = yield* journalOf("s")
      assert.deepStrictEqual(timesOf(records).filter(([tag]) => tag === "CallSettled" || tag === "StopRequested"), [
        ["CallSettled", 5_000],
        ["StopRequested", 5_010]
      ])
    }).pipe(Effect.provide([
      Script.layer([[toolCall("c", "ask", {}), finish("tool_calls")], [delay(60_000)]]),
      Session.Store.layerMemory
    ])))

  it.effect("V-21: a kept run with its times has the same session as a run that is not kept", () =>
    Effect.gen(function*() {
      const own = yield* Effect.provide(withinHour(Session.reply(Session.make(), "go", { tools: [work, ask] })), [
        Script.layer(turns)
      ])
      const kept = yield* Effect.provide(replying(), [Script.layer(turns), Session.Store.layerMemory])
      assert.deepStrictEqual({ ...own.session, id: "s" }, kept.session)
    }))
})

describe("times of events from a journal", () => {
  it.effect("V-21: events from a journal have the times of the live events, from the start of a call on", () =>
    Effect.gen(function*() {
      yield* TestClock.setTime(1_000_000)
      const { events: live, onEvent } = living()
      const records = yield* recorded(turns, { onEvent })
      const told = toldBy(records)
      assert.deepStrictEqual(moments(told.slice(0, 1)), [["RunStarted", 1_000_000]])
      const of = (events: ReadonlyArray<Event.PublicEvent>) =>
        moments(events).filter(([tag]) =>
          String(tag).startsWith("ToolExecution") || tag === "MessageCompleted" || tag === "ToolResultEncoded" ||
          tag === "StepCompleted" || tag === "ChatCompleted"
        )
      assert.deepStrictEqual(of(told), of(live))
      assert.isTrue(told.every(({ at }) => at !== undefined))
    }))

  it.effect("V-21: the times of events continue after a resumption", () =>
    Effect.gen(function*() {
      const records = yield* recorded(turns.toSpliced(1, 1))
      const started = records.find((record) => record._tag === "RunStarted")!
      const at = records.findIndex(({ _tag }) => _tag === "CallEnded")
      const resumed: Journal.Record = { ...started, resumes: true, messages: [], startedAt: 9_000_000 }
      const told = toldBy([...records.slice(0, at), resumed, ...records.slice(at)])
      // The attempts of the process that was killed end with the last record of that process.
      const ended = told.filter(({ _tag }) => _tag === "ToolExecutionCompleted").map(({ at }) => at)
      assert.deepStrictEqual(ended, [100, 100, 9_000_000 + 150, 9_000_000 + 300])
      assert.deepStrictEqual(moments(told).at(-1), ["ChatCompleted", 9_000_000 + 340])
    }))
})

describe("the journal of a run of 26 calls", () => {
  it.effect("V-21: times, waits and requests make the journal at most 8 % longer", () =>
    Effect.gen(function*() {
      const line = "The answer has about as many characters as those of a search: a title, an address, and a line. "
      const search = Tool.make("search", {
        parameters: { query: Schema.String },
        readOnly: true,
        handler: ({ query }) => Effect.as(Effect.sleep(900), `${query}: ${line.repeat(3)}`)
      })
      const turn = (index: number, count: number) => [
        delay(700),
        ...Array.from({ length: count }, (_, at) =>
          toolCall(`call_${index}_${at}`, "search", { query: `line ${index} of the page ${at}` })),
        delay(200),
        finish("tool_calls")
      ]
      const script = [turn(0, 4), turn(1, 10), turn(2, 6), turn(3, 6), [delay(900), text(line), finish("stop")]]
      // Four of the ten calls of the second turn wait.
      const records = yield* recorded(script, { tools: [search] as unknown as [], maxConcurrency: 6 })
      const bytes = (records: ReadonlyArray<Journal.Record>) =>
        Effect.map(
          Effect.forEach(records, (record, index) =>
            Journals.toText("s", record, index + 1)),
          (texts) => texts.join("\n").length
        )
      const times = ["at", "time", "asked", "waited", "request", "requested", "first", "model", "provider"]
      const plain = records.map((record) =>
        Object.fromEntries(
          Object.entries(record).filter(([name]) => !times.includes(name))
        ) as unknown as Journal.Record
      )
      const [before, after] = [yield* bytes(plain), yield* bytes(records)]
      const growth = (after - before) / before
      console.info(
        `${records.length} records: ${before} bytes, and ${after - before} bytes of times, waits and requests`
      )
      assert.isAbove(growth, 0)
      assert.isAtMost(growth, 0.08)
      assert.strictEqual(records.flatMap((record) => record._tag === "CallEnded" ? [record] : []).length, 26)
    }))
})
