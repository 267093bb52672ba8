/**
 * Laws 1 to 5, 8 and 9 on generated runs that end by themselves: any script, any outcome of any call, any policy.
 */
import { describe } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import { type Case, cases, stops } from "../support/cases.ts"
import * as Lawful from "../support/lawful.ts"
import { property } from "../support/property.ts"
import { play, type Trace } from "../support/worlds.ts"

/** Everything that events, handlers and requests show of a run that was streamed to its end. */
const laws = (played: Case, trace: Trace): ReadonlyArray<string> => [
  ...Lawful.events(trace),
  ...Lawful.starts(trace),
  ...Lawful.lifetime(trace, played),
  ...Lawful.concurrency(played, trace),
  ...Lawful.startsInTime(played, trace),
  ...Lawful.ending(trace, false),
  ...Lawful.history(trace),
  ...Lawful.texts(played, trace)
]

describe("laws of a run that ends by itself", () => {
  property(
    "X-01, X-07, X-08: laws 1 to 5, 8 and 9, U-1 to U-5, U-8, and CF-3, hold for any script under any policy",
    cases,
    (played) => Effect.map(play(played, "stream"), (trace) => laws(played, trace)),
    10_000
  )

  property(
    "law 8, U-8: each failure of a call is of its own kind, and interruption is none of them",
    Arbitrary.all([cases, stops]),
    ([played, stop]) => {
      const plain = {
        onToolError: "continue",
        encoder: "json",
        isStructured: false,
        cancelAt: null,
        deadline: null
      } as const
      const told: Case = { ...played, driving: { ...played.driving, ...plain } }
      return Effect.map(
        play(told, "stream", stop),
        (trace) => [...Lawful.failures(told, trace), ...Lawful.ending(trace, true)]
      )
    },
    1000
  )
})
