/**
 * The time limits of an answer: a read that comes in time, even just, renews the limit, and one that does not ends the
 * answer. Nothing is left behind.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type { Event } from "heddle"
import { Simulation } from "heddle/testing"
import * as Answer from "../../../src/adapters/internal/answerBody.ts"

/** Reads every event as text. `finish` is the answer's own word for its end, `done` says that nothing more comes. */
class Reader implements Answer.Reader {
  isComplete = false
  isDone = false
  readonly failure = undefined

  read({ data }: { readonly data: string }, out: Array<Event.AdapterEvent>): void {
    this.isComplete ||= data === "finish"
    this.isDone ||= data === "done"
    out.push({ _tag: "TextDelta", id: null, delta: data })
  }

  end(): void {}
}

const limits: Answer.Limits = {
  firstChunkTimeout: Duration.millis(500),
  idleTimeout: Duration.millis(100),
  maxEventLength: 1000,
  maxAnswerLength: 1000
}

type Sent = readonly [millis: number, data: string]

const body = (...sent: ReadonlyArray<Sent>): Stream.Stream<Uint8Array> =>
  Stream.fromIterable(sent).pipe(
    Stream.mapEffect(([millis, data]) =>
      Effect.as(
        millis === 0 ? Effect.void : Number.isFinite(millis) ? Effect.sleep(millis) : Effect.never,
        new TextEncoder().encode(`data: ${data}\n\n`)
      )
    )
  )

const origin = { provider: "test", secrets: [], words: [], requestId: undefined }

const begin = (sent: Stream.Stream<Uint8Array, unknown>, given: Partial<Answer.Limits> = {}) =>
  Answer.begin(sent, origin, new Reader(), { ...limits, ...given })

/** What an answer says, what it ends with, and when. `between` runs after every read. */
const heard = (
  sent: Stream.Stream<Uint8Array, unknown>,
  given: Partial<Answer.Limits> = {},
  between: Effect.Effect<void> = Effect.void
) =>
  Effect.gen(function*() {
    const texts: Array<string> = []
    const report = yield* Simulation.run(Effect.scoped(Effect.gen(function*() {
      const events = yield* begin(sent, given)
      return yield* Effect.exit(Stream.runForEachArray(events, (some) =>
        Effect.andThen(
          Effect.sync(() => texts.push(...some.flatMap((event) => event._tag === "TextDelta" ? [event.delta] : []))),
          between
        )))
    })))
    assert.deepStrictEqual([report.sleeping, report.fibers], [0, 0])
    if (report.exit === undefined || Exit.isFailure(report.exit)) return assert.fail(`it came to ${report.exit}`)
    const error = Exit.findErrorOption(report.exit.value)
    return { texts, millis: report.millis, error: error._tag === "Some" ? error.value : undefined }
  })

describe("the time limits of an answer", () => {
  it.effect("R-122: each read just in time renews the limit for the next read", () =>
    Effect.gen(function*() {
      const { error, millis, texts } = yield* heard(body([499, "0"], [99, "1"], [99, "2"], [101, "3"]))
      assert.deepStrictEqual(texts, ["0", "1", "2"])
      assert.strictEqual(millis, 499 + 99 + 99 + 100)
      assert.deepStrictEqual([error?.reason, error?.detail], ["timeout", "the server was silent for 100ms"])
    }))

  it.effect("R-122: time counts only during a read", () =>
    Effect.gen(function*() {
      const { error, millis, texts } = yield* heard(body([60, "0"], [60, "1"], [101, "2"]), {}, Effect.sleep(1000))
      assert.deepStrictEqual(texts, ["0", "1"])
      // The first array is the start of the message.
      assert.strictEqual(millis, 60 + 1000 + 1000 + 60 + 1000 + 100)
      assert.strictEqual(error?.reason, "timeout")
    }))

  it.effect("R-122: a body that stays open after its final event is read for ten seconds at most, or for a shorter idle limit", () =>
    Effect.gen(function*() {
      const idleTimeout = Duration.minutes(1)
      const patient = yield* heard(body([59_000, "0"], [1000, "finish"], [Infinity, "1"]), {
        ...limits,
        idleTimeout,
        firstChunkTimeout: idleTimeout
      })
      assert.deepStrictEqual([patient.texts, patient.millis], [["0", "finish"], 70_000])
      const impatient = yield* heard(body([0, "finish"], [Infinity, "1"]))
      assert.deepStrictEqual([impatient.texts, impatient.millis, impatient.error], [["finish"], 100, undefined])
    }))

  it.effect("R-122: the end of a body is awaited for one second after its last event", () =>
    Effect.gen(function*() {
      const idleTimeout = Duration.minutes(1)
      const { millis, texts } = yield* heard(body([0, "done"], [999, "1"], [Infinity, "2"]), { idleTimeout })
      assert.deepStrictEqual([texts, millis], [["done", "1"], 1999])
    }))

  it.effect("R-122: an infinite limit never ends an answer", () =>
    Effect.gen(function*() {
      const idleTimeout = Duration.infinity
      const { error, millis, texts } = yield* heard(body([0, "0"], [1_000_000, "1"]), { idleTimeout })
      assert.deepStrictEqual([texts, millis, error], [["0", "1"], 1_000_000, undefined])
    }))

  it.effect("many reads in time leave no timer behind", () =>
    Effect.gen(function*() {
      const sent = Array.from({ length: 100 }, (_, index): Sent => [index < 50 ? 0 : 5, String(index)])
      const { error, millis, texts } = yield* heard(body(...sent))
      assert.deepStrictEqual([texts.length, millis, error], [100, 250, undefined])
    }))

  it.effect("a read stops with its reader", () =>
    Effect.gen(function*() {
      let interrupted = 0
      const silent = Stream.fromEffect(Effect.onInterrupt(Effect.never, () => Effect.sync(() => interrupted++)))
      const report = yield* Simulation.run(Effect.scoped(Effect.gen(function*() {
        const events = yield* begin(Stream.concat(body([0, "0"]), silent), { idleTimeout: Duration.minutes(1) })
        return yield* Effect.timeoutOption(Stream.runDrain(events), 100)
      })))
      assert.deepStrictEqual([report.millis, report.sleeping, report.fibers, interrupted], [100, 0, 0, 1])
    }))

  it.effect("a read ends when the scope of the answer closes the body", () =>
    Effect.gen(function*() {
      const report = yield* Simulation.run(Effect.gen(function*() {
        const scope = yield* Scope.make()
        const closed = yield* Deferred.make<never, Error>()
        const connection = Effect.acquireRelease(
          Effect.succeed(closed),
          (own) => Deferred.fail(own, new Error("closed"))
        )
        const rest = Stream.unwrap(Effect.map(connection, (own) => Stream.fromEffect(Deferred.await(own))))
        const sent = Stream.concat(body([0, "0"]), rest)
        const events = yield* Scope.provide(begin(sent, { idleTimeout: Duration.minutes(1) }), scope)
        const closing = Effect.andThen(Effect.sleep(100), Scope.close(scope, Exit.void))
        const [error] = yield* Effect.all([Effect.flip(Stream.runDrain(events)), closing], { concurrency: 2 })
        return error.reason
      }))
      assert.deepStrictEqual(report.exit, Exit.succeed("network_error"))
      assert.deepStrictEqual([report.millis, report.sleeping, report.fibers], [100, 0, 0])
    }))
})
