/**
 * Laws 1 to 6, 8 and 9 on generated runs that end by themselves: any script, any outcome of any call, any policy.
 */
import { describe } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import { type Case, cases, readAtOnce, stops } from "../support/cases.ts"
import { oneOf } from "../support/dimensions/dimension.ts"
import { usualOps } from "../support/dimensions/driving.ts"
import * as Lawful from "../support/lawful.ts"
import { property } from "../support/property.ts"
import { play, type Trace } from "../support/worlds.ts"

/** Everything that events, handlers and requests show of a run that was streamed to its end. */
const laws = (played: Case, trace: Trace): ReadonlyArray<string> => [
  ...Lawful.events(trace),
  ...Lawful.starts(trace),
  ...Lawful.calls(trace),
  ...Lawful.lifetime(trace, played),
  ...Lawful.concurrency(played, trace),
  ...Lawful.startsInTime(played, trace),
  ...Lawful.ending(trace, false),
  ...Lawful.history(trace),
  ...Lawful.texts(played, trace)
]

describe("the events of a run that is not stopped", () => {
  property(
    "X-01, X-03, X-07, X-08: laws 1 to 6, 8 and 9, U-1 to U-6, U-8, and CF-3, hold for any script under any policy",
    cases,
    (any) =>
      Effect.gen(function*() {
        const { hidesDeltas } = any.driving
        const played = readAtOnce(any, hidesDeltas)
        const streamed = yield* play(played, "stream")
        const awaited = yield* play(readAtOnce(any, !hidesDeltas), "run")
        return [...laws(played, streamed), ...Lawful.fold(played, streamed, awaited)]
      }),
    10_000
  )

  property(
    "X-01: the laws of events, handlers and requests hold at any pace of readers and fibers",
    Arbitrary.all([cases, oneOf(0, 100), oneOf(3, 7, 31, usualOps)]),
    ([{ driving, turns }, readerPause, maxOps]) => {
      const played: Case = { turns, driving: { ...driving, readerPause, maxOps } }
      return Effect.map(play(played, "stream"), (trace) => laws(played, trace))
    },
    2000
  )

  property(
    "law 8, U-8: each failure of a call is of its own kind, and interruption is none of them",
    Arbitrary.all([cases, stops]),
    ([played, stop]) => {
      const plain = { onToolError: "continue", encoder: "json", isStructured: false, cancelAt: null, deadline: null }
      const told: Case = { ...played, driving: { ...played.driving, ...plain } as Case["driving"] }
      return Effect.map(
        play(told, "stream", stop),
        (trace) => [...Lawful.failures(told, trace), ...Lawful.ending(trace, true)]
      )
    },
    1000
  )
})
