/**
 * Law 11 on generated runs in which something of the caller's besides its tools takes its time: hooks, the adapter, the
 * store, the effect that cancels. However such a run is stopped, its connection is closed first, it is over within the
 * grace period, and what it leaves behind is named.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Broken from "../support/broken.ts"
import { call, type Case, caseOf, cases, type Stop, turn } from "../support/cases.ts"
import { oneOf, points } from "../support/dimensions/dimension.ts"
import { type Place, places, type Slow, slowDimensions } from "../support/dimensions/slowness.ts"
import { grace, toolTimeout } from "../support/handlers.ts"
import * as Lawful from "../support/lawful.ts"
import { property } from "../support/property.ts"
import { type How, type More, play } from "../support/worlds.ts"

/** How a run is stopped. At a time at which nothing else happens, so that the effect of the stop is unambiguous. */
const ways = Arbitrary.map(
  Arbitrary.all({
    way: oneOf("cancel", "deadline", "interrupt", "take"),
    isAwaited: oneOf(false, true),
    size: Arbitrary.schema(Schema.Literals(Array.from({ length: 40 }, (_, n) => n)))
  }),
  ({ isAwaited, size, way }) => ({ way, isAwaited: isAwaited && way !== "take", size, at: size * 5 + 1 })
)

type Way = typeof ways extends Arbitrary.Arbitrary<infer A> ? A : never

interface Stopped {
  readonly played: Case
  readonly how: How
  readonly stop: Stop | null
}

/** The case as it is stopped in one way and in no other. A cancel effect that is slow is none that stops the run. */
const stopped = (
  { driving, turns }: Case,
  slow: Slow,
  { at, isAwaited, size, way }: Way
): Stopped => {
  const isCancel = way === "cancel" && slow.place !== "cancel"
  const isDeadline = way === "deadline" || (way === "cancel" && !isCancel)
  const stop: Stop | null = way === "interrupt" ? { at } : way === "take" ? { take: size } : null
  return {
    played: {
      turns,
      driving: {
        ...driving,
        cancelAt: isCancel ? at : null,
        deadline: isDeadline ? at : null,
        // A reader that is slow learns of a soft stop when it asks again.
        readerPause: stop === null ? 0 : driving.readerPause
      }
    },
    how: slow.place === "append" ? "kept" : isAwaited ? "run" : "stream",
    stop
  }
}

/** One way to stop a run at 11 ms, for whatever is slow. */
const at11 = (way: Way["way"], slow: Slow, played: Case, size = 2): Stopped =>
  stopped(played, slow, { way, isAwaited: false, size, at: 11 })

const subjects = Arbitrary.map(
  Arbitrary.all([cases, points(slowDimensions), ways]),
  ([any, slow, way]) => ({ slow, ...stopped(any, slow, way) })
)

/** The title of the law that values fell under before it was held together with the one about connections. */
const bounded = "M-03, law 11: when it is stopped, it is over within the grace period, and names what it leaves behind"

describe("a run with slow parts besides its tools", () => {
  property(
    "M-02, M-03, law 11: when it is stopped, its connection is closed before any handler has ended, it is over within the grace period, and names what it leaves behind",
    subjects,
    ({ how, played, slow, stop }) =>
      Effect.map(
        play(played, how, stop, undefined, { slow }),
        (trace) => [...Lawful.closing(trace, stop, played, slow), ...Lawful.bounded(trace, stop, played, slow)]
      ),
    10_000,
    [
      { id: "N-45", of: bounded, seed: "105373320", at: 570, size: 6 },
      { id: "N-45", of: bounded, seed: "1716606889", at: 595, size: 6 },
      { id: "N-45", of: bounded, seed: "1728083628", at: 308, size: 3 }
    ]
  )
})

/** Two tools that have started early, of which one needs a moment to stop, beside a model that goes on. */
const speaking = caseOf([turn([
  call({ kind: "slowStop", isReadOnly: true }),
  call({ latency: 40, isReadOnly: true }),
  call({ gap: 100 })
])])

/** A tool that is done at once, and a model that is not. */
const brief = caseOf([turn([call({ isReadOnly: true })], { pause: 0 })])

const finds = (problems: ReadonlyArray<string>, pattern: RegExp): void =>
  assert.isTrue(problems.some((problem) => pattern.test(problem)), `${pattern} in ${JSON.stringify(problems)}`)

const quick: Slow = { place: "onEvent", pace: "soon", after: 1000 }

describe("planted violations beside a slow part", () => {
  for (const way of ["cancel", "deadline", "interrupt", "take"] as const) {
    it.effect(`M-02, law 11: the closing law finds a run that closes its connection after its handlers: ${way}`, () =>
      Effect.gen(function*() {
        // A reader that leaves does so when the second tool has started.
        const { how, played, stop } = at11(way, quick, speaking, 7)
        const lawful = yield* play(played, how, stop, undefined, { slow: quick })
        assert.lengthOf(lawful.slow?.opened ?? [], 1)
        assert.lengthOf(lawful.starts, 2)
        assert.deepStrictEqual(Lawful.closing(lawful, stop, played, quick), [])
        const found = Lawful.closing(
          yield* play(played, how, stop, undefined, { slow: quick, plant: Broken.hoarding }),
          stop,
          played,
          quick
        )
        finds(found, /^stopped at \d+, a connection is closed at [\d.]+$/)
        finds(found, /^"shared slowStop 0.0" has ended before the connection is closed$/)
      }))
  }

  for (const place of Object.keys(places) as ReadonlyArray<Place>) {
    for (const way of ["cancel", "deadline", "interrupt"] as const) {
      if (place === "cancel" && way === "cancel") continue
      it.effect(`M-03, law 11: the bound law finds a run that waits for a slow part or does not name it: ${place}, ${way}`, () =>
        Effect.gen(function*() {
          for (const pace of ["deaf", "late"] as const) {
            const slow: Slow = { place, pace, after: 0 }
            const { how, played, stop } = at11(way, slow, place === "cancel" ? speaking : brief)
            const checked = (plant?: More["plant"]) =>
              Effect.map(
                play(played, how, stop, undefined, { slow, ...(plant === undefined ? {} : { plant }) }),
                (trace) => ({ trace, problems: Lawful.bounded(trace, stop, played, slow) })
              )
            const lawful = yield* checked()
            assert.deepStrictEqual(lawful.problems, [])
            assert.lengthOf(lawful.trace.slow?.alive ?? [], 1, "it is slow when the run is stopped")
            const { problems } = yield* checked(Broken.waiting)
            finds(problems, pace === "deaf" ? /^the run does not end$/ : /^stopped at 11, over at 300$/)
            finds((yield* checked(Broken.silent)).problems, /^1 of "\w+ \w+" are alive after the run, 0 are named$/)
          }
        }))
    }
  }

  it.effect("M-03, law 11: the bound law finds a finished run that waits for a cancel effect that refuses to stop", () =>
    Effect.gen(function*() {
      const slow: Slow = { place: "cancel", pace: "deaf", after: 0 }
      const { how, played, stop } = stopped(brief, slow, { way: "deadline", isAwaited: false, size: 0, at: 151 })
      const trace = yield* play(played, how, stop, undefined, { slow })
      assert.deepStrictEqual(Lawful.bounded(trace, stop, played, slow), [])
      assert.strictEqual(trace.endedAt, grace)
      const waited = yield* play(played, how, stop, undefined, { slow, plant: Broken.waiting })
      finds(Lawful.bounded(waited, stop, played, slow), /^the run does not end$/)
    }))
})

describe("a soft stop beside a slow part", () => {
  for (const place of ["onEvent", "append"] as const) {
    for (const way of ["cancel", "deadline"] as const) {
      it.effect(`M-02: a soft stop closes the connection at once, while the run waits for ${place}: ${way}`, () =>
        Effect.gen(function*() {
          for (const pace of ["never", "deaf", "slowStop"] as const) {
            const slow: Slow = { place, pace, after: place === "onEvent" ? 3 : 2 }
            const { how, played, stop } = at11(way, slow, speaking)
            const trace = yield* play(played, how, stop, undefined, { slow })
            assert.isDefined(trace.slow?.during, "it was slow")
            assert.deepStrictEqual(trace.slow?.closing.map(({ at }) => at), [11])
            assert.deepStrictEqual(Lawful.closing(trace, stop, played, slow), [])
          }
        }))
    }
  }
})

/** The grace period of the handler ends at 70; the opening, which is stopped at 56, has stopped at 66. */
it.effect("M-03, law 11: when another fiber has just ended, a stop waits no longer for a handler that does not stop", () =>
  Effect.gen(function*() {
    const slow: Slow = { place: "open", pace: "slowStop", after: 1 }
    const { how, played, stop } = stopped(caseOf([turn([call({ kind: "late" })])]), slow, {
      way: "cancel",
      isAwaited: false,
      size: 0,
      at: 56
    })
    const trace = yield* play(played, how, stop, undefined, { slow })
    assert.deepStrictEqual(Lawful.bounded(trace, stop, played, slow), [])
    assert.strictEqual(trace.endedAt, toolTimeout + grace)
  }))
