/**
 * Work under a watchdog: what comes in time, even just, is waited for anew, and what does not is given up. It leaves
 * nothing behind.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type { Event } from "heddle"
import { Simulation } from "heddle/testing"
import * as Answer from "../../../src/adapters/internal/answer.ts"
import * as Watchdog from "../../../src/adapters/internal/watchdog.ts"

const limitOf = (duration: Duration.Input, late = "late"): Watchdog.Limit<string, never> => ({
  duration: Duration.fromInputUnsafe(duration),
  late: Effect.succeed(late)
})

/** Work that takes so long each time, and what became of it. */
class Work {
  started = 0
  done = 0
  interrupted = 0
  private readonly millis: ReadonlyArray<number>

  constructor(...millis: ReadonlyArray<number>) {
    this.millis = millis
  }

  readonly effect: Effect.Effect<string> = Effect.suspend(() => {
    const millis = this.millis[this.started] ?? Infinity
    const name = `work ${this.started++}`
    const work = millis === 0 ? Effect.void : Number.isFinite(millis) ? Effect.sleep(millis) : Effect.never
    return Effect.as(work, name).pipe(
      Effect.tap(() => Effect.sync(() => this.done++)),
      Effect.onInterrupt(() => Effect.sync(() => this.interrupted++))
    )
  })
}

/** How an effect ends that is given work, in virtual time; nothing is left of it. */
const played = <A>(work: Work, use: (watchdog: Watchdog.Watchdog<string, never>) => Effect.Effect<A>) =>
  Effect.gen(function*() {
    const program = Effect.gen(function*() {
      return yield* use(yield* Watchdog.make(work.effect, yield* Effect.scope))
    })
    const report = yield* Simulation.run(Effect.scoped(program))
    assert.deepStrictEqual([report.sleeping, report.fibers], [0, 0])
    assert.strictEqual(work.done + work.interrupted, work.started)
    if (report.exit === undefined || Exit.isFailure(report.exit)) return assert.fail(`it came to ${report.exit}`)
    return { value: report.exit.value, millis: report.millis }
  })

/** A clock that counts what sleeps on it. */
const counting = (clock: Clock.Clock, slept: Array<number>): Clock.Clock => ({
  currentTimeMillisUnsafe: () => clock.currentTimeMillisUnsafe(),
  currentTimeMillis: clock.currentTimeMillis,
  currentTimeNanosUnsafe: () => clock.currentTimeNanosUnsafe(),
  currentTimeNanos: clock.currentTimeNanos,
  monotonicTimeNanosUnsafe: () => clock.monotonicTimeNanosUnsafe(),
  monotonicTimeNanos: clock.monotonicTimeNanos,
  sleep: (duration) =>
    Effect.suspend(() => {
      slept.push(Duration.toMillis(duration))
      return clock.sleep(duration)
    })
})

const timed = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.timed(effect), ([duration, value]) => [value, Duration.toMillis(duration)] as const)

describe("a watchdog", () => {
  it.effect("R-122: lets through what comes just in time, which moves the limit", () =>
    Effect.gen(function*() {
      const limit = limitOf(100)
      const { millis, value } = yield* played(
        new Work(99, 99, 99),
        (watchdog) => Effect.forEach(Array.from({ length: 4 }), () => timed(watchdog.within(limit)))
      )
      assert.deepStrictEqual(value, [["work 0", 99], ["work 1", 99], ["work 2", 99], ["late", 100]])
      assert.strictEqual(millis, 397)
    }))

  it.effect("R-122: counts the time only while somebody waits", () =>
    Effect.gen(function*() {
      const limit = limitOf(100)
      const { millis, value } = yield* played(new Work(60, 60), (watchdog) =>
        Effect.gen(function*() {
          const first = yield* watchdog.within(limit)
          yield* Effect.sleep(1000)
          const second = yield* watchdog.within(limit)
          yield* Effect.sleep(70)
          return [first, second, ...(yield* timed(watchdog.within(limit)))]
        }))
      assert.deepStrictEqual(value, ["work 0", "work 1", "late", 100])
      assert.strictEqual(millis, 60 + 1000 + 60 + 70 + 100)
    }))

  it.effect("R-122: holds the work to the limit that it was asked for with, a shorter one as well", () =>
    Effect.gen(function*() {
      const { value } = yield* played(new Work(50, 50), (watchdog) =>
        Effect.all([
          timed(watchdog.within(limitOf("1 hour"))),
          timed(watchdog.within(limitOf(60))),
          timed(watchdog.within(limitOf(10, "too late")))
        ]))
      assert.deepStrictEqual(value, [["work 0", 50], ["work 1", 50], ["too late", 10]])
    }))

  it.effect("R-122: goes on after what was late, and after a limit that never comes", () =>
    Effect.gen(function*() {
      const { value } = yield* played(new Work(Infinity, 20, 1_000_000), (watchdog) =>
        Effect.all([
          timed(watchdog.within(limitOf(10))),
          timed(watchdog.within(limitOf(30))),
          timed(watchdog.within(limitOf("Infinity")))
        ]))
      assert.deepStrictEqual(value, [["late", 10], ["work 1", 20], ["work 2", 1_000_000]])
    }))

  it.effect("has one timer for all that comes in time, and none for what is there", () =>
    Effect.gen(function*() {
      const slept: Array<number> = []
      const limit = limitOf(1000)
      const work = new Work(...Array.from({ length: 100 }, (_, index) => index < 50 ? 0 : 5))
      const report = yield* Simulation.run(Effect.scoped(Effect.gen(function*() {
        const clock = counting(yield* Clock.Clock, slept)
        const made = Watchdog.make(work.effect, yield* Effect.scope)
        const watchdog = yield* Effect.provideContext(made, Context.make(Clock.Clock, clock))
        for (let index = 0; index < 100; index++) yield* watchdog.within(limit)
      })))
      assert.strictEqual(report.millis, 250)
      assert.deepStrictEqual(slept.filter((millis) => millis !== 5), [1000])
    }))

  it.effect("stops the work with whoever waits for it, and can be asked again", () =>
    Effect.gen(function*() {
      const work = new Work(1000, 10)
      const limit = limitOf(5000)
      const { millis, value } = yield* played(work, (watchdog) =>
        Effect.gen(function*() {
          yield* Effect.timeoutOption(watchdog.within(limit), 100)
          assert.deepStrictEqual([work.started, work.interrupted], [1, 1])
          return yield* watchdog.within(limit)
        }))
      assert.deepStrictEqual([value, millis], ["work 1", 110])
    }))

  it.effect("stops with its scope, and so does whoever waits, then and later", () =>
    Effect.gen(function*() {
      const work = new Work(1000)
      const limit = limitOf(5000)
      const report = yield* Simulation.run(Effect.gen(function*() {
        const scope = yield* Scope.make()
        const watchdog = yield* Watchdog.make(work.effect, scope)
        const closing = Effect.andThen(Effect.sleep(100), Scope.close(scope, Exit.void))
        const [waiting] = yield* Effect.all([Effect.exit(watchdog.within(limit)), closing], { concurrency: 2 })
        return [waiting, yield* Effect.exit(watchdog.within(limit))].map(Exit.hasInterrupts)
      }))
      assert.deepStrictEqual(report.exit, Exit.succeed([true, true]))
      assert.deepStrictEqual([report.millis, report.sleeping, report.fibers], [100, 0, 0])
      assert.deepStrictEqual([work.started, work.interrupted], [1, 1])
    }))
})

describe("an answer", () => {
  it.effect("R-122: each read that comes just in time moves the limit for the next one", () =>
    Effect.gen(function*() {
      const reader: Answer.Reader = {
        isComplete: false,
        isDone: false,
        failure: undefined,
        read: ({ data }, out) => {
          out.push({ _tag: "TextDelta", id: null, delta: data })
        },
        end: () => undefined
      }
      const limits: Answer.Limits = {
        firstChunkTimeout: Duration.millis(500),
        idleTimeout: Duration.millis(100),
        maxEventLength: 1000,
        maxAnswerLength: 1000
      }
      const sent = [499, 99, 99, 101].map((millis, index) =>
        Stream.fromEffect(Effect.as(Effect.sleep(millis), new TextEncoder().encode(`data: ${index}\n\n`)))
      )
      const body = sent.reduce((before, next) => Stream.concat(before, next))
      const origin = { provider: "test", secrets: [], words: [], requestId: undefined }
      const seen: Array<Event.AdapterEvent> = []
      const report = yield* Simulation.run(Effect.scoped(Effect.gen(function*() {
        const events = yield* Answer.begin(body, origin, reader, limits)
        return yield* Effect.flip(Stream.runForEach(events, (event) => Effect.sync(() => seen.push(event))))
      })))
      assert.deepStrictEqual(seen.flatMap((event) => event._tag === "TextDelta" ? [event.delta] : []), ["0", "1", "2"])
      assert.strictEqual(report.millis, 499 + 99 + 99 + 100)
      assert.deepStrictEqual([report.sleeping, report.fibers], [0, 0])
      const error = report.exit !== undefined && Exit.isSuccess(report.exit) ? report.exit.value : undefined
      assert.deepStrictEqual([error?.reason, error?.detail], ["timeout", "the server was silent for 100ms"])
    }))
})
