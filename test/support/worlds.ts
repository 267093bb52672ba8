/**
 * Plays generated cases, each in a simulated world of its own that counts the fibers and the timers of the run, so that
 * what is left when it has ended can be seen.
 */
import * as Clock from "effect/Clock"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Logger from "effect/Logger"
import * as Metric from "effect/Metric"
import * as Stream from "effect/Stream"
import { Adapter, Chat, type Event, Executor, Session, Step } from "heddle"
import { Recorder, Script, Simulation } from "heddle/testing"
import { KeyedPermits } from "../../src/internal/permits/permits.ts"
import { Keyed } from "../../src/internal/stop/inherited.ts"
import type { Case, Stop, Turn } from "./cases.ts"
import { deliveries } from "./dimensions/deliveries.ts"
import { around, optionsOf } from "./dimensions/driving.ts"
import { isRefused, replied } from "./dimensions/endings.ts"
import type { Slow } from "./dimensions/slowness.ts"
import { argumentsOf, grace, toolOf, tools, toolTimeout, World } from "./handlers.ts"
import { Slowness } from "./slowness.ts"

/** What is run: a chat or one step, streamed or awaited, or a chat that a session keeps. */
export type How = "stream" | "run" | "stepStream" | "step" | "kept"

/** What is left of a run: fibers that have not ended, and timers that are set. */
interface Left {
  readonly fibers: number
  readonly timers: number
}

/** What a run left behind. `exit` is missing if it did not end within an hour. */
export interface Trace {
  readonly exit: Exit.Exit<Event.ChatResult | Event.StepResult | undefined, unknown> | undefined
  readonly events: ReadonlyArray<Event.Event>
  /** The events as they were emitted, with the calls as they read then. */
  readonly emitted: ReadonlyArray<Recorder.Entry>
  readonly log: ReadonlyArray<Recorder.Entry>
  readonly starts: ReadonlyArray<string>
  readonly requests: ReadonlyArray<Adapter.Request>
  /** Model requests that were opened and not closed. */
  readonly openRequests: number
  readonly endedAt: number
  readonly left: Left | undefined
  readonly leftLater: Left
  /** How many names of keyed permits are in use an hour later. */
  readonly keysLater: number
  readonly abandoned: ReadonlyArray<Event.Abandoned>
  /** Of a run that has something slow: its connections, its stop, and what was slow and alive when it had ended. */
  readonly slow?: SlowTrace
}

interface SlowTrace extends Pick<Slowness, "opened" | "closing" | "stopped" | "during"> {
  readonly alive: ReadonlyArray<string>
}

const slowTrace = ({ closing, during, opened, stopped }: Slowness, alive: ReadonlyArray<string>): SlowTrace => ({
  closing,
  during,
  opened,
  stopped,
  alive
})

type Driven = Effect.Effect<Event.ChatResult | Event.StepResult | undefined, unknown, Adapter.Adapter>

/** What else a run is played with: something that is slow, and a fault that is planted around the run. */
export interface More {
  readonly slow?: Slow
  readonly plant?: (run: Driven, slowness: Slowness) => Driven
}

const toEntries = (turn: Turn, position: number): ReadonlyArray<Script.Entry> =>
  turn.calls.flatMap((call, index) => [
    ...(call.gap === 0 ? [] : [Script.delay(call.gap)]),
    ...deliveries[call.delivery].entries(
      call.id ?? `c${position}_${index}`,
      toolOf(call),
      argumentsOf(call, `${position}.${index}`)
    )
  ])

const toScript = (turn: Turn, position: number): ReadonlyArray<Script.Entry> =>
  replied(turn.ending, [
    ...(turn.text === null ? [] : [Script.text(turn.text)]),
    ...(turn.pause === 0 ? [] : [Script.delay(turn.pause)]),
    ...toEntries(turn, position)
  ])

/** The turns of a case, and two that end it: the answer, and the structured answer. */
const scriptsOf = ({ turns }: Case): ReadonlyArray<ReadonlyArray<Script.Entry>> => {
  const done = [Script.text("done"), Script.finish("stop")]
  return [...turns.map(toScript), done, done]
}

const worldOf = ({ driving, turns }: Case, recorder: Recorder.Recorder): World => {
  const calls = new Map(turns.flatMap((turn, step) => turn.calls.map((call, index) => [`${step}.${index}`, call])))
  return {
    recorder,
    starts: [],
    callAt: (place) => calls.get(place)!,
    isBlocking: driving.policy.interrupt === "block"
  }
}

/** A run, streamed or awaited, with the events that it showed. */
const driven = (
  played: Case,
  how: How,
  stop: Stop | null,
  recorder: Recorder.Recorder,
  slowness?: Slowness
): Driven => {
  const { driving } = played
  const given = { ...optionsOf(driving), tools, toolTimeout, grace, requestId: "request" }
  const options = slowness === undefined ? given : { ...given, ...slowness.options(given, driving) }
  if (how === "kept") {
    return Effect.flatMap(
      Session.open("kept"),
      (kept) => Session.keep(kept, (session) => Session.reply(session, "go", options))
    ).pipe(
      Effect.map(({ value: { result } }) => result),
      Effect.provide(slowness?.store ?? Session.Store.layerMemory, { local: true })
    )
  }
  if (how === "run") return Chat.run("go", options)
  if (how === "step") return Step.run("go", options)
  const stream = how === "stream" ? Chat.stream("go", options) : Step.stream("go", options)
  const cut: Stream.Stream<Event.Event, unknown, Adapter.Adapter> = stop !== null && "take" in stop
    ? Stream.take(stream, stop.take)
    : stream
  return cut.pipe(
    recorder.tap,
    Stream.onEnd(slowness !== undefined && stop !== null && "take" in stop ? slowness.left : Effect.void),
    Stream.runForEach(() => driving.readerPause === 0 ? Effect.void : Effect.sleep(driving.readerPause)),
    Effect.as(undefined)
  )
}

/** Loggers that note what is logged, and say nothing. */
const noting = (messages: Array<unknown>) => new Set([Logger.make(({ message }) => messages.push(message))])

const abandonedIn = (messages: ReadonlyArray<unknown>): ReadonlyArray<Event.Abandoned> =>
  messages.flatMap((message) =>
    Array.isArray(message) && Array.isArray(message[1]) ? message[1] as Array<Event.Abandoned> : []
  )

/** How many of the first requests were refused before they were opened. */
const refused = ({ turns }: Case, requests: number): number =>
  turns.slice(0, requests).filter((turn) => isRefused(turn.ending)).length + Math.max(0, requests - turns.length - 2)

/** Requests that were opened and not closed. */
const openIn = (played: Case, model: Script.Scripted): Effect.Effect<number> =>
  Effect.gen(function*() {
    const requests = (yield* model.requests).length
    return requests - refused(played, requests) - (yield* model.cleanups)
  })

/** Some turns of the scheduler, in which whatever is ready goes on. */
const settle = Effect.forEach([1, 2, 3, 4, 5], () => Effect.yieldNow, { discard: true })

/** Counts fibers as they start and end, and timers while they are set. */
const counting = (clock: Clock.Clock) => {
  const count = { fibers: 0, timers: 0 }
  const set = Effect.sync(() => count.timers++)
  const over = Effect.sync(() => count.timers--)
  const sleep = (duration: Duration.Duration) => Effect.acquireUseRelease(set, () => clock.sleep(duration), () => over)
  const metrics = { recordFiberStart: () => count.fibers++, recordFiberEnd: () => count.fibers-- }
  return { count, clock: { ...clock, sleep }, metrics }
}

/** The state of a run when it has ended, now and an hour later. */
const watched = (run: Fiber.Fiber<unknown, unknown>, clock: Clock.Clock, count: Left, stop: Stop | null) =>
  Effect.gen(function*() {
    let left: Left | undefined
    let endedAt = -1
    run.addObserver(() => {
      endedAt = clock.currentTimeMillisUnsafe()
      left = { ...count }
    })
    // The fiber that ended the run may be in its last breath: fibers are counted again after a turn of the scheduler.
    yield* Fiber.await(run).pipe(
      Effect.andThen(settle),
      Effect.andThen(Effect.sync(() => left = { fibers: count.fibers, timers: left?.timers ?? 0 })),
      Effect.forkChild
    )
    if (stop !== null && "at" in stop) {
      yield* Effect.sleep(stop.at)
      run.interruptUnsafe()
    }
    yield* Effect.sleep("1 hour")
    return { left, endedAt, leftLater: { ...count } }
  })

/** Plays a case from its start to its end. */
export const play = (
  played: Case,
  how: How,
  stop: Stop | null = null,
  executor: Executor.Service = Executor.direct,
  { plant, slow }: More = {}
): Effect.Effect<Trace> =>
  inWorld(Effect.gen(function*() {
    const recorder = yield* Recorder.make
    const world = worldOf(played, recorder)
    const model = yield* Script.make({ scripts: scriptsOf(played) })
    const reader = yield* Recorder.make
    const messages: Array<unknown> = []
    const counted = counting(yield* Clock.Clock)
    // A run that never ends keeps its permits from the runs of no other world.
    const keyed = new KeyedPermits()
    const slowness = slow === undefined ? undefined : new Slowness(slow, recorder)
    const subject = driven(played, how, stop, reader, slowness)
    const run = Effect.runForkWith(yield* Effect.context<never>())(
      (plant === undefined || slowness === undefined ? subject : plant(subject, slowness)).pipe(
        around(played.driving),
        slowness === undefined ? (run) => run : Effect.updateService(Adapter.Adapter, (own) => slowness.adapter(own)),
        Effect.provide(model.layer),
        Effect.provideService(World, world),
        Effect.provideService(Keyed, keyed),
        Effect.provideService(Executor.Executor, executor),
        Effect.provideService(Clock.Clock, counted.clock),
        Effect.provideService(Logger.CurrentLoggers, noting(messages)),
        Effect.provideService(Metric.FiberRuntimeMetrics, counted.metrics)
      )
    )
    const alive: Array<string> = []
    run.addObserver(() => void alive.push(...slowness?.alive ?? []))
    const end = yield* watched(run, yield* Clock.Clock, counted.count, stop)
    return {
      ...end,
      keysLater: keyed.size,
      exit: run.pollUnsafe(),
      events: yield* reader.events,
      emitted: yield* reader.log,
      log: yield* recorder.log,
      starts: world.starts,
      requests: yield* model.requests,
      openRequests: yield* openIn(played, model),
      abandoned: abandonedIn(messages),
      ...(slowness === undefined
        ? {}
        : { slow: slowTrace(slowness, alive) })
    }
  }))

/** Simulates what ends by itself. */
const inWorld = <A>(effect: Effect.Effect<A>): Effect.Effect<A> =>
  Effect.flatMap(Simulation.run(effect), ({ exit }) => exit ?? Effect.die("the world stands still"))

/** What a simulated run left behind. */
export interface Remains {
  readonly report: Simulation.Report<unknown, unknown>
  readonly log: ReadonlyArray<Recorder.Entry>
  readonly openRequests: number
  readonly abandoned: ReadonlyArray<Event.Abandoned>
}

/** Simulates a case that is interrupted before the step of a number, if there is one. */
export const simulate = (played: Case, interruptAt = Infinity): Effect.Effect<Remains> =>
  Effect.gen(function*() {
    const recorder = yield* Recorder.make
    const model = yield* Script.make({ scripts: scriptsOf(played) })
    const messages: Array<unknown> = []
    const report = yield* Simulation.run(
      driven(played, "stream", null, yield* Recorder.make).pipe(
        around(played.driving),
        Effect.provide(model.layer),
        Effect.provideService(World, worldOf(played, recorder)),
        Effect.provideService(Keyed, new KeyedPermits()),
        Effect.provideService(Logger.CurrentLoggers, noting(messages))
      ),
      { interruptAt }
    )
    return {
      report,
      log: yield* recorder.log,
      openRequests: yield* openIn(played, model),
      abandoned: abandonedIn(messages)
    }
  })
