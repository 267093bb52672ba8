/** What a worker counts, for those who watch it. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Metric from "effect/Metric"
import * as Stream from "effect/Stream"
import { Session } from "heddle"
import { Worker } from "heddle/durable"
import { Script } from "heddle/testing"
import * as Claims from "../../src/internal/session/claim.ts"
import { ledger } from "./support/ledger.ts"

ledger()

/** The counts by their names. */
const counts = Effect.map(
  Metric.snapshot,
  (snapshots) =>
    Object.fromEntries(snapshots.flatMap(({ id, state }): ReadonlyArray<readonly [string, unknown]> => {
      if (!id.startsWith("heddle.")) return []
      return [[id, "value" in state ? state.value : "count" in state ? state.count : undefined]]
    }))
)

describe("worker metrics", () => {
  it.live("W-22: a worker counts driven sessions, attempts, takeovers, given-up runs and lost claims", () =>
    Effect.gen(function*() {
      const model = Script.layer([
        [Script.text("Taken over"), Script.finish("stop")],
        [Script.text("Hello"), Script.finish("stop")],
        [Script.preflightError("provider_unavailable")],
        [Script.preflightError("invalid_request")]
      ])
      const left = Session.keepStream(
        yield* Session.open("left"),
        (session) => Session.streamReply(session, "Hi")
      ).pipe(Stream.takeUntil(({ _tag }) => _tag === "TextDelta"), Stream.runDrain)
      yield* left.pipe(
        Effect.provide(Script.layer([[Script.text("Hel"), Script.delay("1 hour")]])),
        Effect.provideService(Claims.CurrentProcess, "another process")
      )
      const ended = [Deferred.makeUnsafe<void>(), Deferred.makeUnsafe<void>()] as const
      const taken = Deferred.makeUnsafe<void>()
      const released = Deferred.makeUnsafe<void>()
      const worker = Worker.layer({
        run: () => ({}),
        poll: "10 millis",
        onEnd: (id) =>
          id === "held"
            ? Effect.andThen(Deferred.succeed(ended[0], undefined), Deferred.await(released))
            : Deferred.succeed(taken, undefined),
        onGiveUp: () => Deferred.succeed(ended[1], undefined)
      })
      yield* Layer.build(worker).pipe(Effect.provide(model))
      yield* Deferred.await(taken)
      yield* Session.submit("held", "Hi")
      yield* Deferred.await(ended[0])
      const during = yield* counts
      assert.deepInclude(during, {
        "heddle.sessions.driven": 1,
        "heddle.runs.attempts": 2,
        "heddle.runs.taken_over": 1
      })
      yield* Session.revoke("held")
      yield* Session.submit("broken", "Hi")
      yield* Deferred.await(ended[1])
      yield* Deferred.succeed(released, undefined)
      const after = yield* counts
      assert.strictEqual(after["heddle.runs.given_up"], 1)
      assert.isAtLeast(Number(after["heddle.runs.attempts"]), 2)
      // The owner learns of the claim at its next look.
      while (((yield* counts)["heddle.claims.lost"] ?? 0) === 0) yield* Effect.sleep(5)
    }).pipe(
      Effect.scoped,
      Effect.provide(Session.Store.layerMemory),
      Effect.provideService(Metric.MetricRegistry, new Map()),
      Effect.provideService(Claims.CurrentProcess, "this process")
    ))
})
