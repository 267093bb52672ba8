/**
 * Laws 1, 2, 4, 5, 8 and 9 on generated runs: any script, any outcome of any call, any policy, streamed to the end.
 */
import { describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Laws } from "heddle/testing"
import { type Case, cases, peaceful, stops } from "../support/cases.ts"
import * as Lawful from "../support/lawful.ts"
import { play, type Trace } from "../support/worlds.ts"

const options = { arbitrary: { runs: 1000, size: 10 }, timeout: 60_000 }

/** Plays the case and fails with what the law says against it. */
const holds = (law: (trace: Trace, played: Case) => ReadonlyArray<string>) => ([played]: readonly [Case]) =>
  Effect.flatMap(play(played, "stream"), (trace) => {
    const problems = law(trace, played)
    return problems.length === 0 ? Effect.void : Effect.fail(problems)
  })

const isFailed = (trace: Trace): boolean => trace.exit?._tag === "Failure"

describe("laws that events show", () => {
  it.effect.prop(
    "law 1, U-1, X-01: every call is answered once or pending",
    [cases],
    holds((trace, { driving }) =>
      Lawful.of(Laws.check(trace.events, { policy: driving.policy, isCut: isFailed(trace) }), "answers", "frame")
    ),
    options
  )

  it.effect.prop("law 2, U-2, X-01: a handler starts once per attempt", [cases], holds(Lawful.starts), options)

  it.effect.prop(
    "law 4, U-3, X-01: calls overlap within the bound, exclusive ones with none",
    [cases],
    holds((trace, played) => Lawful.concurrency(played, trace)),
    options
  )

  it.effect.prop(
    "CF-3: before the reply has ended, only those tools start that the policy lets start early",
    [cases],
    holds((trace, played) => Lawful.startsInTime(played, trace)),
    options
  )

  it.effect.prop(
    "law 5, U-5, X-01: started, progress, completed, tail",
    [cases],
    holds((trace) => Lawful.of(Laws.order(trace.events, { isCut: isFailed(trace) }), "order", "starts")),
    options
  )

  it.effect.prop(
    "law 8, U-8: a run ends in a result or a typed failure, whatever tools, models and error policies do",
    [cases],
    holds((trace) => Lawful.ending(trace, false)),
    options
  )

  it.effect.prop(
    "law 8, U-8: each failure of a call is of its own kind, and interruption is none of them",
    [cases, stops],
    ([played, stop]) => {
      const plain = { onToolError: "continue", encoder: "json", isStructured: false, cancelAt: null } as const
      const { driving, turns } = peaceful(played)
      const told: Case = { turns, driving: { ...driving, ...plain } }
      return Effect.flatMap(play(told, "stream", stop), (trace) => {
        const problems = [...Lawful.failures(told, trace), ...Lawful.ending(trace, true)]
        return problems.length === 0 ? Effect.void : Effect.fail(problems)
      })
    },
    options
  )

  it.effect.prop("law 9, X-08: every thread handed out or sent can be sent", [cases], holds(Lawful.history), options)
})
