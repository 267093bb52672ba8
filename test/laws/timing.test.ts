/**
 * Laws 7 and 10 on generated runs: the same outcomes at other times, in another order, with another bound or under a slow
 * reader, give the same decisions; and a slow reader does not change when a tool runs.
 */
import { describe } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Policy } from "heddle"
import { type Call, type Case, cases } from "../support/cases.ts"
import { oneOf } from "../support/dimensions/dimension.ts"
import * as Lawful from "../support/lawful.ts"
import { property } from "../support/property.ts"
import { play } from "../support/worlds.ts"

/** Everything about a case that is a matter of time. What calls and turns take is drawn from the seed. */
const times = Arbitrary.all({
  seed: Arbitrary.schema(Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 2 ** 30 }))),
  decisionLatency: oneOf(0, 10, 30),
  maxConcurrency: oneOf(null, 1, 2, 3),
  readerPause: oneOf(0, 100),
  encoder: oneOf("json", "slow")
})

type Times = typeof times extends Arbitrary.Arbitrary<infer A> ? A : never

/** One of the values, by a seed and a number. */
const drawn = (seed: number, number: number, values: readonly [number, ...ReadonlyArray<number>]): number => {
  const mixed = Math.imul(seed ^ Math.imul(number + 1, 0x9e3779b1), 0x85ebca6b)
  return values[((mixed ^ (mixed >>> 13)) >>> 0) % values.length] ?? values[0]
}

/** The case without what makes an outcome itself depend on time. */
const settled = ({ driving, turns }: Case): Case => ({
  turns: turns.map((turn) => ({ ...turn, calls: turn.calls.map(prompt) })),
  driving: {
    ...driving,
    cancelAt: null,
    deadline: null,
    policy: {
      ...driving.policy,
      start: startOf(turns, driving.policy),
      haltPrecedence: "request",
      siblings: Policy.standard.siblings
    },
    encoder: driving.encoder === "slow" ? "json" : driving.encoder
  }
})

/** A reply that is not acted on calls back what was started on its word, unless it has ended by then. */
const startOf = (turns: Case["turns"], { start }: Policy.Policy): Policy.Policy["start"] =>
  turns.every((turn) => turn.ending === "tool_calls") ? start : "afterTurn"

/** Handlers that are slow to stop keep others out for as long as they take, in a later turn as well: these stop. */
const prompt = (call: Call): Call => {
  if (call.kind === "refuse" || call.kind === "late" || call.kind === "slowStop") return { ...call, kind: "never" }
  if (call.kind === "nestedDeaf") return { ...call, kind: "nested" }
  return call.kind === "deafChild" || call.kind === "lateChild" ? { ...call, kind: "child" } : call
}

const shifted = ({ driving, turns }: Case, shift: Times): Case => ({
  turns: turns.map((turn, index) => ({
    ...turn,
    pause: drawn(shift.seed, index, [0, 10, 20]),
    calls: turn.calls.map((call, position) => ({
      ...call,
      latency: drawn(shift.seed, 100 * index + position, [0, 10, 20, 30, 40]),
      gap: drawn(shift.seed, 100 * index + position + 50, [0, 0, 10, 20])
    }))
  })),
  driving: {
    ...driving,
    decisionLatency: shift.decisionLatency,
    maxConcurrency: shift.maxConcurrency,
    readerPause: shift.readerPause,
    encoder: driving.encoder === "json" ? shift.encoder : driving.encoder
  }
})

/**
 * A run that fails is over when its reader hears of it, and a reply is read when its reader asks: neither is a matter of
 * the tools.
 */
const apart = ({ driving, turns }: Case): Case => ({
  turns,
  driving: {
    ...driving,
    policy: { ...driving.policy, start: "afterTurn" },
    onToolError: driving.onToolError === "fail" ? "continue" : driving.onToolError
  }
})

const readEvery = (readerPause: number, played: Case): Case => ({
  ...played,
  driving: { ...played.driving, readerPause }
})

describe("timing", () => {
  property(
    "X-04: law 7, U-7: decisions do not depend on timing",
    Arbitrary.all([cases, times]),
    ([any, shift]) =>
      Effect.gen(function*() {
        const played = settled(any)
        return Lawful.decisions(yield* play(played, "run"), yield* play(shifted(played, shift), "run"))
      }),
    10_000
  )

  property(
    "X-06: law 10: a reader that takes 100 ms or more for an event makes no tool run at other times, or time out",
    Arbitrary.all([cases, oneOf(100, 1000)]),
    ([any, pause]) =>
      Effect.gen(function*() {
        const played = apart(settled(any))
        return Lawful.times(
          yield* play(readEvery(0, played), "stream"),
          yield* play(readEvery(pause, played), "stream")
        )
      }),
    1000
  )
})
