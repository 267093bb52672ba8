/**
 * What the laws suite is worth: runs that are broken on purpose, by an executor that breaks its contract, by a handler
 * that leaves something behind or by a trace that was tampered with, are found by the law that they break.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import { type Event, Policy, Tool } from "heddle"
import type { Recorder } from "heddle/testing"
import * as Broken from "../support/broken.ts"
import * as Cases from "../support/cases.ts"
import * as Lawful from "../support/lawful.ts"
import { play, simulate, type Trace } from "../support/worlds.ts"

type Case = Cases.Case

const call = (change: Partial<Cases.Call> = {}): Cases.Call => Cases.call({ latency: 20, ...change })

const turn = (...calls: ReadonlyArray<Cases.Call>): Cases.Turn => Cases.turn(calls)

const caseOf = (...turns: Case["turns"]): Case => Cases.caseOf(turns, { maxConcurrency: 2 })

const detached = Broken.changed((execution) => Effect.as(Effect.forkDetach(execution), Tool.ok("started")))
const doubled = Broken.changed((execution) => Effect.andThen(execution, execution))
const cheerful = Broken.changed(Effect.map(() => Tool.ok("all is well")))
const clocked = Broken.changed((execution) =>
  Effect.andThen(execution, Effect.clockWith((clock) => Effect.map(clock.currentTimeMillis, (now) => Tool.ok(now))))
)

const two = caseOf(turn(call(), call()))
const failing = caseOf(turn(call({ kind: "fail" })))
const lawfulRun = (played: Case): Effect.Effect<Trace> => play(played, "stream")

const finds = (problems: ReadonlyArray<string>, pattern: RegExp): void =>
  assert.isTrue(problems.some((problem) => pattern.test(problem)), `${pattern} in ${JSON.stringify(problems)}`)

describe("planted violations", () => {
  it.effect("law 2: the start law finds an executor that runs each call twice", () =>
    Effect.gen(function*() {
      finds(Lawful.starts(yield* play(two, "stream", null, doubled)), /was started twice/)
      assert.deepStrictEqual(Lawful.starts(yield* lawfulRun(two)), [])
    }))

  it.effect("M-20: the call law finds a call changed after its event, and a call that runs with other arguments", () =>
    Effect.gen(function*() {
      const spoiled = yield* lawfulRun(two)
      assert.deepStrictEqual(Lawful.calls(spoiled), [])
      const calls = spoiled.events.flatMap((event) => event._tag === "ToolCallCompleted" ? [event] : [])
      Object.assign(calls[0]!.arguments!, { place: 10n })
      finds(Lawful.calls(spoiled), /^calls: ToolCallCompleted told of \["c0_0",.*, which has become \["c0_0",/)
      finds(Lawful.calls(spoiled), /the arguments of call "c0_0" cannot be written as JSON/)
      const other = yield* lawfulRun(two)
      const emitted = other.emitted.map((entry): Recorder.Entry =>
        entry._tag === "Emitted" && entry.event._tag === "ToolExecutionStarted"
          ? { ...entry, calls: entry.calls!.replace("0.0", "9.9") }
          : entry
      )
      finds(Lawful.calls({ ...other, emitted }), /"9.9".* was run, and the step tells of/)
    }))

  it.effect("M-20: an executor that changes its input leaves the events and the thread unchanged", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(Lawful.calls(yield* play(two, "stream", null, Broken.meddling)), [])
      assert.deepStrictEqual(Lawful.history(yield* play(two, "run", null, Broken.meddling)), [])
    }))

  it.effect("law 2: the start law finds a second attempt without a first", () =>
    Effect.gen(function*() {
      const trace = yield* lawfulRun(two)
      finds(Lawful.starts({ ...trace, starts: ["request:0:0:c0_0 attempt 2"] }), /before the attempt in front of it/)
    }))

  it.effect("law 3: the lifetime law finds an executor that does not stop handlers, and a handler that leaks a fiber", () =>
    Effect.gen(function*() {
      const slow = caseOf(turn(call({ latency: 40 })))
      const leaky = caseOf(turn(call({ kind: "leak" })))
      const problems = Lawful.lifetime(yield* play(slow, "stream", null, detached), slow)
      finds(problems, /"shared ok 0.0" is alive after the run/)
      const leaking = Lawful.lifetime(yield* lawfulRun(leaky), leaky)
      finds(leaking, /1 fibers are alive after the run/)
      finds(leaking, /1 timers are set after the run/)
      finds(Lawful.remains(yield* simulate(leaky), leaky), /1 fibers are asleep after the run/)
      assert.deepStrictEqual(Lawful.lifetime(yield* lawfulRun(two), two), [])
      assert.deepStrictEqual(Lawful.remains(yield* simulate(two), two), [])
    }))

  it.effect("law 3: the lifetime law finds an open model request, a run without an end and fibers that never end", () =>
    Effect.gen(function*() {
      const trace = yield* lawfulRun(two)
      finds(Lawful.lifetime({ ...trace, openRequests: 1 }, two), /1 model requests were not closed/)
      finds(Lawful.lifetime({ ...trace, exit: undefined }, two), /does not end/)
      finds(Lawful.lifetime({ ...trace, leftLater: { fibers: 1, timers: 1 } }, two), /1 fibers never end/)
    }))

  it.effect("law 4: the concurrency law finds an executor that frees the permit of a running call", () =>
    Effect.gen(function*() {
      const many = caseOf(turn(call(), call(), call()))
      finds(Lawful.concurrency(many, yield* play(many, "stream", null, detached)), /is number 3 to run, the bound is 2/)
      assert.deepStrictEqual(Lawful.concurrency(many, yield* lawfulRun(many)), [])
      const barred = caseOf(turn(call(), call({ isExclusive: true }), call()))
      const problems = Lawful.concurrency(barred, yield* play(barred, "stream", null, detached))
      finds(problems, /exclusive "alone ok 0.1" starts while others run/)
      finds(problems, /"shared ok 0.2" starts while an exclusive handler runs/)
      assert.deepStrictEqual(Lawful.concurrency(barred, yield* lawfulRun(barred)), [])
    }))

  it.effect("CF-3: the start law finds a tool that starts earlier than its policy allows", () =>
    Effect.gen(function*() {
      const slow = caseOf({ ...turn(call({ isReadOnly: true }), call()), pause: 10 })
      const early = caseOf({ ...turn(call({ isReadOnly: true }), call({ gap: 10 })) })
      const told: Case = { ...early, driving: { ...early.driving, policy: { ...Policy.standard, start: "afterTurn" } } }
      const trace = yield* lawfulRun(early)
      finds(Lawful.startsInTime(told, trace), /call "c0_0" started before the reply had ended/)
      assert.deepStrictEqual(Lawful.startsInTime(early, trace), [])
      assert.deepStrictEqual(Lawful.startsInTime(slow, yield* lawfulRun(slow)), [])
    }))

  it.effect("law 7: the decision law finds an executor whose results depend on the time", () =>
    Effect.gen(function*() {
      const sooner = caseOf(turn(call({ latency: 10 }), call()))
      const first = yield* play(two, "run", null, clocked)
      finds(Lawful.decisions(first, yield* play(sooner, "run", null, clocked)), /"content":"20"/)
      assert.deepStrictEqual(Lawful.decisions(yield* play(two, "run"), yield* play(sooner, "run")), [])
    }))

  it.effect("law 8: the failure laws find an executor that hides failures, and a run that ends with a defect or an interruption", () =>
    Effect.gen(function*() {
      finds(Lawful.failures(failing, yield* play(failing, "stream", null, cheerful)), /came to Ok instead of reported/)
      const trace = yield* lawfulRun(failing)
      assert.deepStrictEqual(Lawful.failures(failing, trace), [])
      finds(Lawful.ending({ ...trace, exit: Exit.die(new Error("broken")) }, false), /the run ends with Error: broken/)
      finds(Lawful.ending({ ...trace, exit: Exit.interrupt(1) }, false), /the run ends with/)
      assert.deepStrictEqual(Lawful.ending({ ...trace, exit: Exit.interrupt(1) }, true), [])
    }))

  it.effect("law 9: the history law finds a request with an unanswered call", () =>
    Effect.gen(function*() {
      const trace = yield* lawfulRun(two)
      const requests = trace.requests.map((request) => ({ ...request, messages: request.messages.slice(0, 3) }))
      finds(Lawful.history({ ...trace, requests }), /call "c0_1" is not answered/)
      assert.deepStrictEqual(Lawful.history(trace), [])
    }))

  it.effect("law 10: the time law finds a tool that runs later because of its reader", () =>
    Effect.gen(function*() {
      const trace = yield* lawfulRun(two)
      const late = {
        ...trace,
        log: trace.log.map((entry, index) => index === 0 ? entry : { ...entry, at: entry.at + 5 })
      }
      finds(Lawful.times(trace, late), /shared ok 0.0 Succeeded 25/)
      assert.deepStrictEqual(Lawful.times(trace, trace), [])
    }))

  it.effect("law 11: the stop law finds a run that stops too late, and an unreported abandoned handler", () =>
    Effect.gen(function*() {
      const stubborn = caseOf(turn(call({ kind: "refuse" })))
      const trace = yield* play(stubborn, "stream", { at: 10 })
      assert.deepStrictEqual(Lawful.stopping(trace, { at: 10 }, stubborn), [])
      finds(Lawful.stopping({ ...trace, endedAt: 36 }, { at: 10 }, stubborn), /stopped at 10, over at 36/)
      finds(
        Lawful.stopping({ ...trace, abandoned: [] }, { at: 10 }, stubborn),
        /1 handlers were left behind, 0 are named/
      )
      const ended = yield* lawfulRun(stubborn)
      assert.deepStrictEqual(Lawful.stopping(ended, { take: 99 }, stubborn), [])
      const silent = ended.events.map((event): Event.Event =>
        event._tag === "ChatCompleted" ? { ...event, result: { ...event.result, abandoned: [] } } : event
      )
      finds(Lawful.stopping({ ...ended, events: silent }, { take: 99 }, stubborn), /1 are named, 0 are in the result/)
    }))

  it.effect("M-01, law 11: a run names a handler whose child does not stop and continues, and the laws find a run that waits or is silent", () =>
    Effect.gen(function*() {
      const awaiting = Broken.changed(Effect.awaitAllChildren)
      for (const kind of ["deafChild", "lateChild"] as const) {
        const parent = Cases.caseOf([turn(call({ kind }), call())], { maxConcurrency: 1 })
        const trace = yield* lawfulRun(parent)
        assert.deepStrictEqual(Lawful.lifetime(trace, parent), [])
        assert.deepStrictEqual(Lawful.failures(parent, trace), [])
        assert.deepStrictEqual(Lawful.stopping(trace, { take: 99 }, parent), [])
        finds(
          Lawful.stopping({ ...trace, abandoned: [] }, { take: 99 }, parent),
          /1 handlers were left behind, 0 are named/
        )
        const waited = yield* play(parent, "stream", null, awaiting)
        finds(Lawful.failures(parent, waited), /call "c0_0" came to abandoned instead of Ok/)
      }
    }))

  it.effect("M-07, law 11: the stop law finds a result that does not name the abandoned handler of a nested run", () =>
    Effect.gen(function*() {
      const nested = caseOf(turn(call({ kind: "nestedDeaf" })))
      const trace = yield* lawfulRun(nested)
      assert.deepStrictEqual(Lawful.stopping(trace, { take: 99 }, nested), [])
      assert.deepStrictEqual(Lawful.lifetime(trace, nested), [])
      const changed = (change: (entry: Event.Abandoned) => ReadonlyArray<Event.Abandoned>): Trace => ({
        ...trace,
        events: trace.events.map((event): Event.Event =>
          event._tag === "ChatCompleted"
            ? { ...event, result: { ...event.result, abandoned: (event.result.abandoned ?? []).flatMap(change) } }
            : event
        )
      })
      finds(
        Lawful.stopping(changed(({ path, ...entry }) => path === undefined ? [entry] : []), { take: 99 }, nested),
        /1 are named, 0 are in the result/
      )
      const bare = changed(({ ageMillis, id, kind, name }) => [{ ageMillis, id, kind, name }])
      finds(Lawful.stopping(bare, { take: 99 }, nested), /"leaf" is named with the path #1/)
      const severed = yield* play(nested, "stream", null, Broken.severed)
      finds(Lawful.stopping(severed, { take: 99 }, nested), /1 are named, 0 are in the result/)
    }))

  it.effect("law 11: the stop law finds a soft stop that takes too long, or ends without ChatCompleted", () =>
    Effect.gen(function*() {
      const asked: Case = { ...two, driving: { ...two.driving, cancelAt: 10 } }
      const trace = yield* lawfulRun(asked)
      assert.deepStrictEqual(Lawful.softStop(trace, 10, asked), [])
      finds(Lawful.softStop({ ...trace, endedAt: 36 }, 10, asked), /asked to stop at 10, over at 36/)
      finds(
        Lawful.softStop({ ...trace, events: trace.events.slice(0, -1) }, 10, asked),
        /the stream ends in StepCompleted/
      )
    }))
})
