/**
 * Plays generated cases on the test clock, each in a world of its own that counts the fibers and the timers of the run,
 * so that what is left when it has ended can be seen.
 */
import * as Clock from "effect/Clock"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Logger from "effect/Logger"
import * as Metric from "effect/Metric"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { type Adapter, Chat, Encoder, type Event, Executor, Step, Tool } from "heddle"
import { Recorder, Script, Simulation } from "heddle/testing"
import type { Call, Case, Driving, Kind, Stop, Turn } from "./cases.ts"

const toolTimeout = 45
export const grace = 25

/** What is run: a chat or one step, streamed or awaited. */
export type How = "stream" | "run" | "stepStream" | "step"

/** What is left of a run: fibers that have not ended, and timers that are set. */
interface Left {
  readonly fibers: number
  readonly timers: number
}

/** What a run left behind. `exit` is missing if it did not end within an hour. */
export interface Trace {
  readonly exit: Exit.Exit<Event.ChatResult | Event.StepResult | undefined, unknown> | undefined
  readonly events: ReadonlyArray<Event.Event>
  readonly log: ReadonlyArray<Recorder.Entry>
  readonly starts: ReadonlyArray<string>
  readonly requests: ReadonlyArray<Adapter.Request>
  /** Model requests that were opened and not closed. */
  readonly openRequests: number
  readonly endedAt: number
  readonly left: Left | undefined
  readonly leftLater: Left
  readonly abandoned: ReadonlyArray<Event.Abandoned>
}

/** The failure that `onToolError` decides on, where it fails the run. */
export class Decided {
  readonly _tag = "Decided"
}

/** A call says no more than its place in the case, so that nothing of a result depends on how long it takes. */
const args = { place: Schema.String }

type Args = Schema.Struct<typeof args>["Type"]

const placed = ({ turns }: Case): ReadonlyMap<string, Call> =>
  new Map(turns.flatMap((turn, step) => turn.calls.map((call, index) => [`${step}.${index}`, call] as const)))

const cycle: { self?: unknown } = {}
cycle.self = cycle

/** What the handler does once it has waited. */
const behave = (kind: Kind, attempt: number): Effect.Effect<unknown, unknown> => {
  switch (kind) {
    case "object":
      return Effect.succeed({ celsius: 7, names: ["a", "b"] })
    case "nothing":
      return Effect.void
    case "fail":
      return Effect.fail(Symbol.for("not_found"))
    case "die":
      return Effect.die("plain value")
    case "throw":
      throw new Error("kaboom")
    case "exit":
      return Effect.interrupt
    case "ask":
      return Effect.succeed(Tool.askUser("Which one?", ["a", "b"]))
    case "halt":
      return Effect.succeed(Tool.halt("done_early", { v: 1 }))
    case "reserved":
      return Effect.succeed(Tool.halt("completed", 1))
    case "unencodable":
      return Effect.succeed(cycle)
    case "child":
      return Effect.as(Effect.forkChild(Effect.never), "child")
    case "leak":
      return Effect.asVoid(Effect.forkDetach(Effect.sleep(10_000), { startImmediately: true }))
    case "retry":
      return attempt < 3 ? Effect.fail(`attempt ${attempt}`) : Effect.succeed(attempt)
    case "never":
      return Effect.never
    case "slowStop":
      return Effect.onInterrupt(Effect.never, () => Effect.sleep(10))
    default:
      return Effect.succeed("ok")
  }
}

/** How long a handler waits before it does anything, and whether it can be stopped meanwhile. */
const waiting = ({ kind, latency }: Call): Effect.Effect<void> => {
  if (kind === "late") return Effect.uninterruptible(Effect.sleep(303))
  if (kind === "refuse") return Effect.uninterruptible(Effect.never)
  return latency === 0 ? Effect.void : Effect.sleep(kind === "retry" ? 10 : latency)
}

const tools = (played: Case, recorder: Recorder.Recorder, starts: Array<string>) => {
  const calls = placed(played)
  const specOf = ({ place }: Args): Call => calls.get(place)!
  const handler = (given: Args, call: Tool.CallContext): Effect.Effect<unknown, unknown> => {
    const spec = specOf(given)
    starts.push(`${call.idempotencyKey} attempt ${call.attempt}`)
    if (spec.kind === "invalid") return 42 as unknown as Effect.Effect<unknown>
    const progress = Effect.forEach(Array.from({ length: spec.progress }, (_, n) => n), call.progress, {
      discard: true
    })
    return progress.pipe(
      Effect.andThen(waiting(spec)),
      Effect.andThen(Effect.suspend(() => behave(spec.kind, call.attempt))),
      recorder.track(`${spec.isExclusive ? "alone" : "shared"} ${spec.kind} ${given.place}`)
    )
  }
  const concurrency = (given: Args): Tool.Concurrency => specOf(given).isExclusive ? "exclusive" : "shared"
  return [
    Tool.make("work", { parameters: args, concurrency, handler }),
    Tool.make("look", { parameters: args, concurrency, readOnly: true, handler }),
    Tool.make("block", { parameters: args, concurrency, interrupt: "block", handler }),
    Tool.make("retry", { parameters: args, concurrency, retry: Schedule.recurs(2), handler }),
    Tool.make("manual", { parameters: args, concurrency, manual: true, handler })
  ] as const
}

const toolNames: Partial<Record<Kind, string>> = {
  block: "block",
  retry: "retry",
  manual: "manual",
  unknown: "nobody",
  misnamed: "functions.work"
}

const toEntries = (call: Call, turn: number, index: number): ReadonlyArray<Script.Entry> => {
  const id = call.id ?? `c${turn}_${index}`
  const name = toolNames[call.kind] ?? (call.isReadOnly ? "look" : "work")
  const values = { place: call.kind === "badArguments" ? 1 : `${turn}.${index}` }
  const text = JSON.stringify(values)
  const started = Script.event({ _tag: "ToolCallStarted", id, name })
  switch (call.delivery) {
    case "whole":
      return [Script.toolCall(id, name, values)]
    case "fragments":
      return [started, Script.toolCallDelta(id, text.slice(0, 9)), Script.toolCallDelta(id, text.slice(9))]
    case "cut":
      return [started, Script.toolCallDelta(id, text.slice(0, 9))]
    case "missing":
      return [started]
    case "lost":
      return [{ ...Script.toolCall(id, name, {}), argumentsLost: "json_decode_error" }]
    case "nameless":
      return [Script.toolCallDelta(id, text)]
    case "provider":
      return [{ ...Script.toolCall(id, name, values), providerExecuted: true }]
  }
}

const toEnd = (ending: Turn["ending"]): ReadonlyArray<Script.Entry> => {
  switch (ending) {
    case "none":
      return [Script.finish(null)]
    case "errorEvent":
      return [Script.error("provider_unavailable")]
    case "errorThenContinue":
      return [Script.errorThenContinue("provider_unavailable"), Script.finish("tool_calls")]
    case "drop":
      return [Script.streamError("network_error")]
    case "preflight":
      return []
    default:
      return [Script.finish(ending)]
  }
}

const toScript = (turn: Turn, position: number): ReadonlyArray<Script.Entry> => [
  ...(turn.ending === "preflight" ? [Script.preflightError("provider_unavailable")] : []),
  ...(turn.text === null ? [] : [Script.text(turn.text)]),
  ...(turn.pause === 0 ? [] : [Script.delay(turn.pause)]),
  ...turn.calls.flatMap((call, index) => [
    ...(call.gap === 0 ? [] : [Script.delay(call.gap)]),
    ...toEntries(call, position, index)
  ]),
  ...toEnd(turn.ending)
]

/** The turns of a case, and two that end it: the answer, and the structured answer. */
const scriptsOf = ({ turns }: Case): ReadonlyArray<ReadonlyArray<Script.Entry>> => {
  const done = [Script.text("done"), Script.finish("stop")]
  return [...turns.map(toScript), done, done]
}

const decide = (
  how: Driving["onToolError"],
  call: { readonly id: string }
): Effect.Effect<Tool.ErrorDecision<Decided>> => {
  switch (how) {
    case "halting":
      return Effect.succeed(Tool.ErrorDecision.halt)
    case "fail":
      return Effect.succeed(Tool.ErrorDecision.fail(new Decided()))
    case "die":
      return Effect.die(new Error("onToolError broke"))
    case "invalid":
      return Effect.succeed("continue" as unknown as Tool.ErrorDecision)
    case "mixed":
      return Effect.succeed(call.id.endsWith("1") ? Tool.ErrorDecision.halt : Tool.ErrorDecision.continue("replaced"))
    default:
      return Effect.succeed(Tool.ErrorDecision.continue("replaced"))
  }
}

/** Waits, and needs a moment to stop when it is interrupted. */
const pause = (millis: number): Effect.Effect<void> =>
  millis === 0 ? Effect.void : Effect.onInterrupt(Effect.sleep(millis), () => Effect.sleep(5))

const encoders: { readonly [Name in Driving["encoder"]]: Encoder.Service } = {
  json: Encoder.json,
  slow: { encode: (value) => Effect.andThen(pause(10), Encoder.json.encode(value)) },
  broken: { encode: () => Effect.die("the encoder broke") }
}

/** The options of a run, and what its tools note. */
const optionsOf = (played: Case, recorder: Recorder.Recorder, starts: Array<string>) => {
  const { driving } = played
  const { decisionLatency, haltAt, onToolError } = driving
  return {
    tools: tools(played, recorder, starts),
    policy: driving.policy,
    onToolError: onToolError === "continue" || onToolError === "halt"
      ? onToolError
      : (call: { readonly id: string }, _error: unknown) =>
        Effect.andThen(pause(decisionLatency), decide(onToolError, call)),
    toolTimeout,
    grace,
    maxConcurrency: driving.maxConcurrency,
    maxTurns: driving.maxTurns,
    mode: driving.mode,
    haltWhen: haltAt === null ? null : (step: Event.StepResult) => step.thread.messages.length > haltAt * 8 + 1,
    requestId: "request",
    ...(driving.cancelAt === null ? {} : { cancel: Effect.sleep(driving.cancelAt) }),
    emitTextDeltas: !driving.hidesDeltas,
    emitToolDeltas: !driving.hidesDeltas,
    ...(driving.isStructured ? { structuredFinalize: true, responseFormat: { type: "json_object" } as const } : {})
  }
}

/** A run, streamed or awaited, with the events that it showed. */
const driven = (
  played: Case,
  how: How,
  stop: Stop | null,
  recorder: Recorder.Recorder,
  starts: Array<string>,
  events: Array<Event.Event>
): Effect.Effect<Event.ChatResult | Event.StepResult | undefined, unknown, Adapter.Adapter> => {
  const options = optionsOf(played, recorder, starts)
  if (how === "run") return Chat.run("go", options)
  if (how === "step") return Step.run("go", options)
  const stream = how === "stream" ? Chat.stream("go", options) : Step.stream("go", options)
  const cut: Stream.Stream<Event.Event, unknown, Adapter.Adapter> = stop !== null && "take" in stop
    ? Stream.take(stream, stop.take)
    : stream
  return cut.pipe(
    Stream.runForEach((event) => {
      events.push(event)
      return played.driving.readerPause === 0 ? Effect.void : Effect.sleep(played.driving.readerPause)
    }),
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
  Array.from({ length: requests }, (_, index) => index)
    .filter((index) => turns[index]?.ending === "preflight" || index >= turns.length + 2).length

/** Some turns of the scheduler, in which whatever is ready goes on. */
const settle = Effect.forEach([1, 2, 3, 4, 5], () => Effect.yieldNow, { discard: true })

/** Plays a case from its start to its end. */
export const play = (
  played: Case,
  how: How,
  stop: Stop | null = null,
  executor: Executor.Service = Executor.direct
): Effect.Effect<Trace> =>
  Effect.gen(function*() {
    const recorder = yield* Recorder.make
    const model = yield* Script.make({ scripts: scriptsOf(played) })
    const clock = yield* Clock.Clock
    const starts: Array<string> = []
    const events: Array<Event.Event> = []
    const messages: Array<unknown> = []
    const count = { fibers: 0, timers: 0 }
    const counting = {
      ...clock,
      sleep: (duration: Duration.Duration) =>
        Effect.suspend(() => {
          count.timers++
          return Effect.ensuring(clock.sleep(duration), Effect.sync(() => count.timers--))
        })
    }
    const run = Effect.runForkWith(yield* Effect.context<never>())(
      driven(played, how, stop, recorder, starts, events).pipe(
        Effect.provide(model.layer),
        Effect.provideService(Encoder.Encoder, encoders[played.driving.encoder]),
        Effect.provideService(Executor.Executor, executor),
        Effect.provideService(Clock.Clock, counting),
        Effect.provideService(Logger.CurrentLoggers, noting(messages)),
        Effect.provideService(Metric.FiberRuntimeMetrics, {
          recordFiberStart: () => count.fibers++,
          recordFiberEnd: () => count.fibers--
        })
      )
    )
    let left: Left | undefined
    let endedAt = -1
    run.addObserver(() => {
      endedAt = clock.currentTimeMillisUnsafe()
      left = { ...count }
    })
    // The fiber that ended the run may be in its last breath: fibers are counted again after a turn of the scheduler.
    yield* Effect.forkChild(
      Effect.andThen(
        Effect.andThen(Fiber.await(run), settle),
        Effect.sync(() => left = { fibers: count.fibers, timers: left?.timers ?? 0 })
      )
    )
    yield* settle
    if (stop !== null && "at" in stop) {
      yield* TestClock.adjust(stop.at)
      run.interruptUnsafe()
      yield* settle
    }
    yield* TestClock.adjust("1 hour")
    yield* settle
    const requests = yield* model.requests
    return {
      exit: run.pollUnsafe(),
      events,
      log: yield* recorder.log,
      starts,
      requests,
      openRequests: requests.length - refused(played, requests.length) - (yield* model.cleanups),
      endedAt,
      left,
      leftLater: { ...count },
      abandoned: abandonedIn(messages)
    }
  })

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
      driven(played, "stream", null, recorder, [], []).pipe(
        Effect.provide(model.layer),
        Effect.provideService(Encoder.Encoder, encoders[played.driving.encoder]),
        Effect.provideService(Logger.CurrentLoggers, noting(messages))
      ),
      { interruptAt }
    )
    const requests = (yield* model.requests).length
    const openRequests = requests - refused(played, requests) - (yield* model.cleanups)
    return { report, log: yield* recorder.log, openRequests, abandoned: abandonedIn(messages) }
  })
