/**
 * Law of what a client has of a run, wherever its connection was cut and the journal told it the run anew: the thread,
 * the states, the codes, the times, the totals and the sub-agents of the run as it lived.
 */
import { describe } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Event, Session, Tool } from "heddle"
import * as Requests from "../../src/internal/ask/request.ts"
import * as Bounds from "../../src/server/internal/bounds.ts"
import * as JournalEvents from "../../src/server/internal/journalEvents.ts"
import * as Logs from "../../src/server/internal/log.ts"
import * as Polls from "../../src/server/internal/polls.ts"
import * as Reading from "../../src/server/internal/reading.ts"
import * as RunPages from "../../src/server/internal/runPages.ts"
import * as Fold from "../../src/studio/data/fold.ts"
import { agent, casting, holding, listing, type Turn, type Written } from "../support/nests.ts"
import { property } from "../support/property.ts"

const add = Tool.make("add", { parameters: {}, handler: () => Effect.as(Effect.sleep(11), 3) })
const fail = Tool.make("fail", { parameters: {}, handler: () => Effect.andThen(Effect.sleep(5), Effect.fail("no")) })
const slow = Tool.make("slow", { parameters: {}, timeout: 20, handler: () => Effect.never })
const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.as(Effect.sleep(3), "paid") })
/** Calls that wait for one another. */
const keyed = Tool.make("keyed", {
  parameters: {},
  limits: [{ key: () => "account", permits: 1 }],
  handler: () => Effect.as(Effect.sleep(13), "kept")
})
const alone = Tool.make("alone", {
  parameters: {},
  concurrency: "exclusive",
  handler: () => Effect.as(Effect.sleep(9), "written")
})
const deep = agent("deep", [add, fail, pay])
const sub = agent("sub", [add, slow, pay, keyed, deep])
const tools = [add, fail, slow, pay, keyed, alone, sub]

/** The calls of the turns of a run, by the names of the tools. */
const turnsOf = <const Names extends ReadonlyArray<string>>(names: Names, most: number) =>
  Schema.Array(
    Schema.Array(Schema.Literals(names)).check(Schema.isMinLength(1), Schema.isMaxLength(3))
  ).check(Schema.isMinLength(1), Schema.isMaxLength(most))

const Script = Schema.Struct({
  go: turnsOf(["add", "fail", "slow", "pay", "keyed", "keyed", "alone", "sub", "sub"], 3),
  sub: turnsOf(["add", "slow", "pay", "keyed", "deep"], 2),
  deep: turnsOf(["add", "fail", "pay"], 1),
  /** The verdicts about what waits, by turns. */
  verdicts: Schema.Array(Schema.Boolean).check(Schema.isMinLength(1), Schema.isMaxLength(3))
})
type Script = typeof Script.Type

const partOf = (name: string, turns: ReadonlyArray<ReadonlyArray<string>>): ReadonlyArray<Turn> => [
  ...turns.map((calls, turn) => calls.map((tool, index) => [`${name}${turn}-${index}`, tool, {}] as const)),
  `${name} ends`
]

/** A model that takes its time, before its reply and between the pieces. */
const modelOf = (script: Script) =>
  Layer.effect(
    Adapter.Adapter,
    Effect.map(Adapter.Adapter, (model) => ({
      ...model,
      stream: (request: Adapter.Request) =>
        model.stream(request).pipe(
          Stream.rechunk(1),
          Stream.mapEffect((event) => Effect.as(Effect.sleep(event._tag === "MessageStarted" ? 7 : 4), event))
        )
    }))
  ).pipe(Layer.provide(casting({
    go: partOf("go", script.go),
    sub: partOf("sub", script.sub),
    deep: partOf("deep", script.deep)
  })))

/** An event of a run while it lives, and the number of records that all journals have by then. */
interface Lived {
  readonly runId: string
  readonly event: Event.PublicEvent
  readonly records: number
}

/** Runs a session until nothing waits, and returns what its readers see, and all records in their order. */
const live = (script: Script) =>
  Effect.gen(function*() {
    const written: Array<Written> = []
    const lived: Array<Lived> = []
    let begun = 0
    let hear = (_event: Event.Event): void => {}
    const program = Effect.gen(function*() {
      const clock = yield* Clock.Clock
      const options = () => {
        const runId = `r${++begun}`
        const calls = new Map<string, Event.PublicCall>()
        const take = (event: Event.PublicEvent) => lived.push({ runId, event, records: written.length })
        take({ _tag: "RunStarted", runId, at: clock.currentTimeMillisUnsafe() })
        const onEvent = (event: Event.Event) => {
          const shown = Event.toPublic(event, { calls, runId, at: clock.currentTimeMillisUnsafe() })
          if (shown !== undefined) take(shown)
        }
        hear = onEvent
        return { tools, requestId: runId, onEvent }
      }
      let kept: Session.Kept = yield* Session.open("s")
      kept = yield* Session.keep(kept, (session) => Session.reply(session, "go", options()))
      for (let index = 0; kept.session.suspensions.length > 0; index++) {
        for (const { id } of kept.session.suspensions) {
          yield* Effect.sleep(1_000)
          const isAllowed = script.verdicts[index % script.verdicts.length]
          kept = yield* Session.keep(
            kept,
            (session) => isAllowed ? Session.approve(session, id) : Session.deny(session, id, "too much")
          )
        }
        kept = yield* Session.keep(kept, (session) => Session.continue(session, null, options()))
      }
    }).pipe(
      Effect.provide([modelOf(script), listing(written)]),
      Effect.provideService(Requests.CurrentListener, {
        within: undefined,
        tell: (event) => hear(event as unknown as Event.Event)
      })
    )
    const fiber = yield* Effect.forkChild(program, { startImmediately: true })
    yield* TestClock.adjust("10 minutes")
    yield* Fiber.join(fiber)
    return { written, lived }
  }).pipe(Effect.provide(Layer.fresh(TestClock.layer())))

/** The picture of a run, without what no journal has: pieces of texts, and values of progress. */
const pictureOf = (id: string, events: ReadonlyArray<Event.PublicEvent>) => {
  const run = Fold.make(id)
  for (const event of events) Fold.take(run, event)
  const at = (time: number | undefined) => time
  const requestsOf = (requests: ReadonlyArray<Fold.Request>) =>
    requests.map(({ first, from, to }) => ({ first, from, to }))
  return {
    end: at(run.end),
    outcome: run.outcome,
    usage: run.usage,
    nested: run.nested,
    total: run.total,
    suspensions: run.suspensions,
    settled: run.settled,
    counts: run.counts,
    turns: run.turns.map((
      { calls, ended, finishReason, first, from, index, owner, reasoning, requests, text, to, usage }
    ) => ({
      calls,
      from: at(from),
      first: at(first),
      to: at(to),
      ended: at(ended),
      requests: requestsOf(requests),
      finishReason,
      index,
      owner,
      reasoning,
      text,
      usage
    })).sort((left, right) => `${left.owner} ${left.index}` < `${right.owner} ${right.index}` ? -1 : 1),
    calls: Array.from(run.calls.values(), (call) => ({
      path: call.path,
      name: call.name,
      turn: call.turn,
      state: call.state,
      code: call.code,
      content: call.content,
      arguments: call.arguments,
      attempts: call.attempts.map(({ from, to }) => ({ from, to: at(to) })),
      asked: at(call.asked),
      ready: at(call.ready),
      waits: call.waits,
      isEarly: call.isEarly,
      isAlone: call.isAlone,
      started: at(call.started),
      ended: at(call.ended),
      outcome: call.outcome,
      usage: call.usage,
      suspension: call.suspension?.id
    })).sort((left, right) => left.path < right.path ? -1 : 1)
  }
}

const picturesOf = (told: ReadonlyArray<Told>) => {
  const runs = new Map<string, Array<Event.PublicEvent>>()
  for (const { event, runId } of told) runs.set(runId, [...runs.get(runId) ?? [], event])
  return Array.from(runs, ([id, events]) => ({ id, ...pictureOf(id, events) }))
}

/** Names the members in which two pictures of a session differ. */
const different = (got: unknown, expected: unknown, path = "runs"): ReadonlyArray<string> => {
  if (JSON.stringify(got) === JSON.stringify(expected)) return []
  // A wait is recorded in whole milliseconds.
  if (typeof got === "number" && typeof expected === "number" && Math.abs(got - expected) <= 1) return []
  if (typeof got !== "object" || typeof expected !== "object" || got === null || expected === null) {
    return [`${path} is ${JSON.stringify(got)}, and was ${JSON.stringify(expected)}`]
  }
  const names = new Set([...Object.keys(got), ...Object.keys(expected)])
  return Array.from(names).flatMap((name) =>
    different(Reflect.get(got, name), Reflect.get(expected, name), `${path}.${name}`)
  )
}

type Told = { readonly runId: string; readonly event: Event.PublicEvent }

/** A client: the events of each run, by its id. */
class Client {
  private readonly runs = new Map<string, Array<Event.PublicEvent>>()
  private current = ""

  take(event: Event.PublicEvent): void {
    if (event._tag === "RunStarted") this.runs.set(this.current = event.runId, [])
    this.runs.get(this.current)?.push(event)
  }

  see(frame: Reading.Frame): void {
    if (frame._tag === "Reset") this.runs.delete(frame.runId)
    if (frame._tag === "Event") this.take(frame.event)
  }

  get told(): ReadonlyArray<Told> {
    return Array.from(this.runs).flatMap(([runId, events]) => events.map((event) => ({ runId, event })))
  }
}

/** The pictures of two clients in another process, behind an event: one that was cut there, and one that loads there. */
const behind = (lived: ReadonlyArray<Lived>, written: ReadonlyArray<Written>, index: number) =>
  Effect.gen(function*() {
    const { records = 0, runId = "" } = lived[index] ?? {}
    const site: Reading.Site = {
      hub: new Logs.Hub(Bounds.standard, 0, yield* Effect.scope, {}, yield* Clock.Clock),
      polls: new Polls.Polls(),
      publish: {},
      processName: "another"
    }
    const telling = yield* JournalEvents.read("s", {})
    const { running, runs } = telling
    const [cut, loaded] = [new Client(), new Client()]
    for (const { event } of lived.slice(0, index + 1)) cut.take(event)
    const page = yield* RunPages.page("s", telling, { before: undefined, limit: 100 }, {})
    for (const run of page.runs) for (const event of run.events) loaded.take(event)
    const reads = (client: Client, request: Reading.Request) =>
      Reading.frames(site, "s", request, Deferred.await(over)).pipe(
        Stream.runForEach((frame) => Effect.sync(() => client.see(frame))),
        Effect.forkChild({ startImmediately: true })
      )
    const over = yield* Deferred.make<void>()
    const endedRuns = runs.length - (running === undefined ? 0 : 1)
    const after = runs.includes(runId) ? { after: { runId, version: 1, index: 0 } } : {}
    const readers = [
      yield* reads(cut, { _tag: "Events", endedRuns, ...after }),
      yield* reads(loaded, { _tag: "Events", endedRuns })
    ]
    const store = yield* Session.Store
    for (const { id, record } of written.slice(records)) {
      yield* store.append(id, yield* store.version(id), [record])
      // Most looks find several records.
      if (record._tag === "CallStarted" || record._tag === "RunEnded") yield* TestClock.adjust("1 second")
    }
    // Each look reads with the platform, and the next one waits for the clock behind it.
    for (let looks = 0; looks < 10; looks++) yield* TestClock.adjust("1 second")
    yield* Deferred.succeed(over, undefined)
    yield* Effect.forEach(readers, Fiber.join)
    return { cut: picturesOf(cut.told), loaded: picturesOf(loaded.told) }
  }).pipe(
    Effect.scoped,
    Effect.provide(Layer.fresh(holding(written.slice(0, lived[index]?.records)))),
    Effect.provide(Layer.fresh(TestClock.layer()))
  )

/** The time for which no process has a killed run. */
const dead = 1_800_000

/** The pictures of a run that a kill has cut: as a client has it of the process that resumes it, and of the journal. */
const resumed = (written: ReadonlyArray<Written>, cut: number) =>
  Effect.gen(function*() {
    yield* TestClock.adjust(dead)
    const kept = yield* Session.load("s")
    const runId = kept?.interrupted?.requestId
    if (kept === undefined || runId === undefined) return undefined
    const past = yield* JournalEvents.eventsOf("s", runId, {}, true)
    const clock = yield* Clock.Clock
    const calls = new Map<string, Event.PublicCall>()
    const lived: Array<Event.PublicEvent> = []
    const onEvent = (event: Event.Event) => {
      const shown = Event.toPublic(event, { calls, runId, at: clock.currentTimeMillisUnsafe() })
      if (shown !== undefined) lived.push(shown)
    }
    const resuming = yield* Session.keep(
      kept,
      () => Session.resume(kept, { tools, onEvent, replays: false, takeOver: true })
    ).pipe(
      Effect.provideService(Requests.CurrentListener, {
        within: undefined,
        tell: (event) => onEvent(event as unknown as Event.Event)
      }),
      Effect.forkChild({ startImmediately: true })
    )
    // Parts of a run wait for the platform and not for the clock, such as for a hash: what sleeps behind them sleeps later.
    while (resuming.pollUnsafe() === undefined) yield* TestClock.adjust(10)
    yield* Fiber.join(resuming)
    const whole = yield* JournalEvents.eventsOf("s", runId, {})
    return { live: pictureOf(runId, [...past, ...lived]), whole: pictureOf(runId, whole) }
  }).pipe(
    Effect.provide(Layer.fresh(holding(written.slice(0, cut)))),
    Effect.provide(Layer.fresh(TestClock.layer()))
  )

describe("the run that a client reads", () => {
  property(
    "V-07: a client reads the same run from the journal as live",
    Arbitrary.schema(Script),
    (script) =>
      Effect.gen(function*() {
        const { lived, written } = yield* live(script)
        const expected = picturesOf(lived)
        const pages = yield* Effect.gen(function*() {
          const telling = yield* JournalEvents.read("s", {})
          return yield* RunPages.page("s", telling, { before: undefined, limit: 100 }, {})
        }).pipe(Effect.provide(Layer.fresh(holding(written))))
        const got = picturesOf(pages.runs.flatMap(({ events, runId }) => events.map((event) => ({ runId, event }))))
        return different(got, expected)
      }),
    30
  )

  property(
    "V-07: a client reads the same run where its connection is cut or the session is loaded at any event",
    Arbitrary.schema(
      Schema.Struct({ script: Script, first: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 10 })) })
    ),
    ({ first, script }) =>
      Effect.gen(function*() {
        const { lived, written } = yield* live(script)
        const expected = picturesOf(lived)
        const problems: Array<string> = []
        for (let index = first; index < lived.length; index += 11) {
          const { cut, loaded } = yield* behind(lived, written, index)
          problems.push(...different(cut, expected, `cut at ${index}`))
          problems.push(...different(loaded, expected, `loaded at ${index}`))
        }
        return problems
      }),
    20
  )

  property(
    "V-07: after a kill at any record a client sees no call running without a process, live and from the journal",
    Arbitrary.schema(
      Schema.Struct({ script: Script, first: Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 8 })) })
    ),
    ({ first, script }) =>
      Effect.gen(function*() {
        const { written } = yield* live(script)
        const problems: Array<string> = []
        for (let cut = first; cut < written.length; cut += 7) {
          const pictures = yield* Effect.provide(resumed(written, cut), modelOf(script))
          if (pictures === undefined) continue
          for (const { attempts, path } of [...pictures.live.calls, ...pictures.whole.calls]) {
            for (const { from, to = Infinity } of attempts) {
              if (to - from > dead / 2) problems.push(`cut at ${cut}: ${path} ran from ${from} to ${to}`)
            }
          }
        }
        return problems
      }),
    20
  )
})
