/**
 * Generated mixes of calls: safe and unsafe, quick and slow, failing, gated, blocking or not, handed over at once or one
 * after the other, under any bound and any policy for siblings, read to the end, aborted or discarded. Which handlers
 * may run concurrently is checked whenever a handler starts or ends.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as Scope from "effect/Scope"
import { Message, Policy, StreamingToolExecutor } from "heddle"
import { Simulation } from "heddle/testing"
import { oneOf } from "../support/dimensions/dimension.ts"
import { type AnyTool, type Declared, Floor } from "../support/floor.ts"
import { shareOf } from "../support/property.ts"
import { type Seen, seenOf, timedUpdates, valueOf } from "../support/seen.ts"

type Outcome = "ok" | "fail" | "soft" | "die" | "timeout" | "deaf"
type Gate = "none" | "quick" | "slow" | "denies" | "throws" | "hangs"

interface Call {
  readonly isSafe: boolean
  readonly isBlocking: boolean
  readonly millis: number
  readonly outcome: Outcome
  readonly gate: Gate
  readonly isLimited: boolean
  /** How long it comes after the one before it. */
  readonly pause: number
}

interface Mix {
  readonly calls: ReadonlyArray<Call>
  readonly maxParallel: number | undefined
  readonly onToolError: Policy.Policy["siblings"]["onToolError"]
  readonly queued: Policy.Policy["siblings"]["queued"]
  readonly stop: "none" | "abort" | "discard"
  readonly stopAt: number
}

/** Times have no common multiples with those of the gates and stops, so that little happens at the same instant. */
const call: Arbitrary.Arbitrary<Call> = Arbitrary.all({
  isSafe: oneOf(true, true, false),
  isBlocking: oneOf(false, true),
  millis: oneOf(0, 2, 4, 8, 16, 32),
  outcome: oneOf("ok", "ok", "ok", "ok", "fail", "soft", "die", "timeout", "deaf"),
  gate: oneOf("none", "none", "none", "quick", "slow", "denies", "throws", "hangs"),
  isLimited: oneOf(false, false, false, true),
  pause: oneOf(0, 0, 0, 3)
})

const mix: Arbitrary.Arbitrary<Mix> = Arbitrary.all({
  calls: Arbitrary.array(call, { minLength: 1, maxLength: 15 }),
  maxParallel: oneOf(undefined, 1, 2, 3),
  onToolError: oneOf("abortCancelable", "abortCancelable", "drain", "abortAll"),
  queued: oneOf("run", "skip"),
  stop: oneOf("none", "none", "none", "abort", "discard"),
  stopAt: oneOf(0, 1, 5, 13, 29)
})

const timeout = 41
const grace = 100

const gates: Readonly<Record<Gate, Declared["validate"] | undefined>> = {
  none: undefined,
  quick: () => true,
  slow: () => Effect.as(Effect.sleep(7), true),
  denies: () => false,
  throws: () => {
    throw new Error("broken gate")
  },
  hangs: () => Effect.never
}

const outcomes: Readonly<Record<Outcome, Effect.Effect<unknown, unknown>>> = {
  ok: Effect.succeed("ok"),
  fail: Effect.fail("reported"),
  soft: Effect.succeed({ success: false, error: "soft" }),
  die: Effect.die("broken"),
  timeout: Effect.never,
  deaf: Effect.uninterruptible(Effect.sleep(57))
}

const toolOf = (floor: Floor, made: Call, index: number): AnyTool => {
  const validate = gates[made.gate]
  return floor.tool(`t${index}`, Effect.andThen(Effect.sleep(made.millis), outcomes[made.outcome]), {
    ...(made.isSafe ? { concurrency: "shared" } : {}),
    ...(made.isBlocking ? {} : { interrupt: "cancel" }),
    ...(made.isLimited ? { limits: [{ key: "mixes", permits: 1 }] } : {}),
    ...(validate === undefined ? {} : { validate })
  })
}

/** Hands all calls over while a reader reads, and returns every result. */
const scenario = ({ calls, maxParallel, onToolError, queued, stop, stopAt }: Mix, floor: Floor) =>
  Effect.gen(function*() {
    const controller = new AbortController()
    const executor: StreamingToolExecutor.StreamingToolExecutor = yield* StreamingToolExecutor.make({
      ...(maxParallel === undefined ? {} : { maxParallel }),
      policy: { ...Policy.falai, siblings: { ...Policy.falai.siblings, onToolError, queued } },
      signal: controller.signal,
      toolTimeout: timeout,
      grace
    })
    const reader = yield* Effect.forkChild(timedUpdates(executor), { startImmediately: true })
    const stopping = Effect.andThen(
      Effect.sleep(stopAt),
      stop === "abort" ? Effect.sync(() => controller.abort()) : executor.discard
    )
    if (stop !== "none") yield* Effect.forkScoped(stopping)
    for (const [index, made] of calls.entries()) {
      if (made.pause > 0) yield* Effect.sleep(made.pause)
      yield* executor.addTool(Message.toolCall(`c${index}`, `t${index}`), toolOf(floor, made, index))
    }
    yield* executor.noMoreCalls
    const told = [...yield* Fiber.join(reader)]
    // A signal ends the results for a reader that has read all of them. Calls added after that go to the next reader.
    told.push(...yield* timedUpdates(executor))
    return told.flatMap(([at, update]) => seenOf(update, at))
  })

const play = (made: Mix) =>
  Effect.gen(function*() {
    const floor = new Floor(made.maxParallel)
    const effect: Effect.Effect<ReadonlyArray<Seen>, never, Scope.Scope> = scenario(made, floor)
    const report = yield* Simulation.run(Effect.scoped(effect))
    return { floor, results: valueOf(report), report }
  })

const starts = (floor: Floor) => floor.marks.flatMap(([at, what, id]) => what === "start" ? [{ at, id }] : [])

/** One result per call, in the order of the calls; each handler started once at most, and none after a stop. */
const assertOrder = ({ calls, stop, stopAt }: Mix, floor: Floor, results: ReadonlyArray<Seen>): void => {
  const ids = results.map(({ id }) => id)
  const expected = calls.map((_, index) => `c${index}`)
  assert.deepStrictEqual(ids, stop === "discard" ? expected.slice(0, ids.length) : expected)
  const times = results.map(({ at }) => at)
  assert.deepStrictEqual(times, times.toSorted((left, right) => left - right))
  const started = starts(floor).map(({ id }) => id)
  assert.deepStrictEqual(started, [...new Set(started)], "no call starts twice")
  if (stop !== "none") {
    assert.deepStrictEqual(starts(floor).filter(({ at }) => at > stopAt), [], "no call starts after the stop")
  }
}

/** What a result says is what became of its call. */
const assertTrue = (made: Mix, floor: Floor, results: ReadonlyArray<Seen>): void => {
  const started = new Set(starts(floor).map(({ id }) => id))
  const isForAll = made.stop !== "none" || made.queued === "skip" || made.onToolError === "abortAll"
  for (const { id, cancelled, error, gate, success } of results) {
    const { gate: asked, isBlocking, outcome } = made.calls[Number(id.slice(1))]!
    const isGated = asked === "denies" || asked === "throws" || asked === "hangs"
    if (isGated) assert.isFalse(started.has(id), `${id} has passed its gate`)
    if (success) assert.isTrue(started.has(id) && outcome === "ok", `${id} has succeeded`)
    if (gate !== undefined) assert.isTrue(isGated && !started.has(id), `${id} was denied`)
    if (error?.includes("not run") === true) assert.isFalse(started.has(id), `${id} was run`)
    if (cancelled !== true) continue
    assert.isTrue(isForAll || (made.onToolError === "abortCancelable" && !isBlocking), `${id} was cancelled`)
  }
}

/** No call overtakes an unsafe call, where no call is removed from the queue. */
const assertBarriers = ({ calls }: Mix, floor: Floor): void => {
  const order = starts(floor).map(({ id }) => Number(id.slice(1)))
  for (const [position, index] of order.entries()) {
    if (calls[index]!.isSafe) continue
    assert.isTrue(order.slice(0, position).every((other) => other < index), `c${index} was overtaken`)
  }
}

describe("StreamingToolExecutor: generated mixes", () => {
  it.effect.prop(
    "J-02, R-381 to R-384, R-386, R-391, R-394, R-398, U-1 to U-4: each call has one true result, in request order, and "
      + "no call runs beside an unsafe call",
    [mix],
    ([made]) =>
      Effect.gen(function*() {
        const { floor, report, results } = yield* play(made)
        assert.deepStrictEqual(floor.breaches, [])
        assert.deepStrictEqual(floor.live, [])
        assert.strictEqual(report.sleeping, 0)
        assertOrder(made, floor, results)
        assertTrue(made, floor, results)
        assertBarriers(made, floor)
      }),
    { arbitrary: { runs: shareOf(1_200), size: 15 } }
  )
})
