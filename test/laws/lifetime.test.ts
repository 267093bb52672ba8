/**
 * Laws 3 and 11 on generated runs that end, are interrupted at any time, or are left by their reader after any number of
 * events: nothing is alive afterwards, and it does not take longer than the grace period.
 */
import { describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { cases, oneOf, stops } from "../support/cases.ts"
import * as Lawful from "../support/lawful.ts"
import { play, simulate } from "../support/worlds.ts"

const options = { arbitrary: { runs: 1000, size: 10 }, timeout: 60_000 }

const lawful = (problems: ReadonlyArray<string>) => problems.length === 0 ? Effect.void : Effect.fail(problems)

describe("laws of the end", () => {
  it.effect.prop(
    "law 3, U-4: nothing outlives a run that ends by itself",
    [cases],
    ([played]) => Effect.flatMap(play(played, "stream"), (trace) => lawful(Lawful.lifetime(trace, played))),
    options
  )

  it.effect.prop(
    "laws 1, 2 and 3, U-4, X-02: nothing outlives a run that is interrupted or left, and it started no call twice",
    [cases, stops],
    ([played, stop]) =>
      Effect.flatMap(
        play(played, "stream", stop),
        (trace) =>
          lawful([...Lawful.lifetime(trace, played), ...Lawful.starts(trace), ...Lawful.concurrency(played, trace)])
      ),
    options
  )

  it.effect.prop(
    "law 3, U-4: nothing outlives a run that is interrupted before any one of its steps",
    [cases, Arbitrary.schema(Schema.Literals(Array.from({ length: 100 }, (_, percent) => percent)))],
    ([played, percent]) =>
      Effect.gen(function*() {
        const whole = yield* simulate(played)
        const cut = yield* simulate(played, Math.floor(whole.report.steps * percent / 100))
        yield* lawful([...Lawful.remains(whole, played), ...Lawful.remains(cut, played)])
      }),
    options
  )

  it.effect.prop(
    "law 11: stopping takes no longer than the grace period, and names what refuses",
    [cases, stops],
    ([played, stop]) =>
      Effect.flatMap(play(played, "stream", stop), (trace) => lawful(Lawful.stopping(trace, stop, played))),
    options
  )

  it.effect.prop(
    "law 11: a soft stop takes no longer, either, and ends in ChatCompleted",
    [cases, oneOf(0, 13, 37, 62, 99, 150)],
    ([played, cancelAt]) => {
      const asked = { ...played, driving: { ...played.driving, cancelAt, readerPause: 0 } }
      return Effect.flatMap(play(asked, "stream"), (trace) => lawful(Lawful.softStop(trace, cancelAt, asked)))
    },
    options
  )
})
