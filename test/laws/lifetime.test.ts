/**
 * Laws 2, 3, 4 and 11 on generated runs that are interrupted at any time or at any of their steps, left by their reader
 * after any number of events, or asked to stop: nothing is alive afterwards, and it does not take longer than the grace
 * period.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Policy } from "heddle"
import { call, caseOf, cases, stops, turn } from "../support/cases.ts"
import { oneOf } from "../support/dimensions/dimension.ts"
import * as Lawful from "../support/lawful.ts"
import { property } from "../support/property.ts"
import { play, simulate } from "../support/worlds.ts"

const percents = Arbitrary.schema(Schema.Literals(Array.from({ length: 100 }, (_, percent) => percent)))

describe("the lifetime of a stopped run", () => {
  property(
    "X-02: laws 2, 3, 4 and 11, U-2, U-3, U-4, hold for a run that is interrupted at any time, or left",
    Arbitrary.all([cases, stops]),
    ([played, stop]) =>
      Effect.map(play(played, "stream", stop), (trace) => [
        ...Lawful.lifetime(trace, played),
        ...Lawful.starts(trace),
        ...Lawful.concurrency(played, trace),
        ...Lawful.stopping(trace, stop, played)
      ]),
    10_000
  )

  property(
    "law 3, U-4: nothing outlives a run that is interrupted before any one of its steps",
    Arbitrary.all([cases, percents]),
    ([played, percent]) =>
      Effect.gen(function*() {
        const whole = yield* simulate(played)
        const cut = yield* simulate(played, Math.floor(whole.report.steps * percent / 100))
        return [...Lawful.remains(whole, played), ...Lawful.remains(cut, played)]
      }),
    1000
  )

  property(
    "law 11: a soft stop ends within the grace period and with ChatCompleted",
    Arbitrary.all([cases, oneOf(0, 13, 37, 62, 99, 150)]),
    ([played, cancelAt]) => {
      const asked = { ...played, driving: { ...played.driving, cancelAt, readerPause: 0 } }
      return Effect.map(play(asked, "stream"), (trace) => Lawful.softStop(trace, cancelAt, asked))
    },
    1000
  )

  it.effect("X-02: a run that fails while the answer of a blocking call is written leaves no fiber", () =>
    Effect.gen(function*() {
      const bad = call({ latency: 40, gap: 10, delivery: "fragments" })
      const played = caseOf([turn([call({ kind: "block", latency: 20, gap: 10 }), bad], { pause: 10 })], {
        policy: { ...Policy.standard, start: "afterTurn", badArguments: "runWithHeaderArguments" },
        onToolError: "fail",
        decisionLatency: 30,
        encoder: "slow",
        maxConcurrency: 2
      })
      const trace = yield* play(played, "stream")
      assert.strictEqual(trace.exit?._tag, "Failure")
      assert.deepStrictEqual(Lawful.lifetime(trace, played), [])
      assert.deepStrictEqual(trace.abandoned, [])
    }))

  it.effect("law 3: a cancelled run, interrupted before any one of its steps, leaves nothing behind", () =>
    Effect.gen(function*() {
      const played = caseOf([turn([call({ kind: "keyed", latency: 40, gate: "invalid", progress: 3, id: "" })], {
        text: "",
        ending: "drop"
      })], { maxConcurrency: 2, isStructured: true, readerPause: 100, maxOps: 7, cancelAt: 13 })
      const { report } = yield* simulate(played)
      for (let step = 0; step < report.steps; step++) {
        assert.deepStrictEqual(Lawful.remains(yield* simulate(played, step), played), [], `at step ${step}`)
      }
    }))

  it.effect("X-02: a run left by its reader has no timer and no fiber, although its fibers get their turns late", () =>
    Effect.gen(function*() {
      const calls = [
        call({ kind: "nothing", latency: 40, gate: "forbidden", progress: 1 }),
        call({ kind: "nothing", latency: 40, progress: 1, id: "d_2" }),
        call({ kind: "retry", gap: 10, delivery: "lost" }),
        call({ kind: "throw", latency: 40, isExclusive: true, isReadOnly: true, id: "" }),
        call({ kind: "unknown", latency: 30, gate: "hangs", isReadOnly: true })
      ]
      const played = caseOf([turn(calls, { text: "", ending: "drop" })], {
        policy: {
          ...Policy.standard,
          start: "onCallReady",
          resultOrder: "request",
          siblings: { onHalt: "drain", onToolError: "abortCancelable", queued: "run", trigger: "crashedOrReported" },
          concurrency: "exclusive",
          interrupt: "block",
          onMaxTurns: "finalize",
          maxConcurrency: 10
        },
        decisionLatency: 10,
        hidesDeltas: true,
        maxOps: 3
      })
      const trace = yield* play(played, "stream", { take: 22 })
      assert.deepStrictEqual(Lawful.lifetime(trace, played), [])
    }))
})
