/** Approved calls have effects: whatever becomes of the operation that runs them, none is lost and none runs twice. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import { Adapter, Policy, Session } from "heddle"
import { Laws, Script } from "heddle/testing"
import { transcript } from "./support/scenarios.ts"
import { after, calling, done, payer } from "./support/sessions.ts"

const broken = new Adapter.AdapterError({ reason: "rate_limited" })

const limited = [Script.preflightError("rate_limited")]

const models = {
  "fails before its first event": Layer.succeed(Adapter.Adapter, { stream: () => Stream.fail(broken) }),
  "dies before its first event": Layer.succeed(Adapter.Adapter, { stream: () => Stream.die("connection refused") }),
  "throws": Layer.succeed(Adapter.Adapter, {
    stream: () => {
      throw new Error("no model")
    }
  })
}

describe("M-04: a model that cannot be asked after approved calls have run", () => {
  const approved = Effect.flatMap(after("pay:p1"), (session) => Session.approve(session, "p1"))

  for (const [what, model] of Object.entries(models)) {
    it.effect(`one that ${what} ends the operation as failed, with what has run`, () =>
      Effect.gen(function*() {
        const { pay, runs } = payer()
        const session = yield* approved
        const options = { tools: [pay], requestId: "r" }
        const awaited = yield* Effect.provide(Session.continue(session, null, options), model)
        assert.strictEqual(awaited.result.outcome._tag, "Failed")
        assert.strictEqual(awaited.session.status, "error")
        assert.instanceOf(awaited.session.metadata["error"], Adapter.AdapterError)
        assert.isEmpty(awaited.session.approved)
        assert.deepStrictEqual(transcript(awaited.session.thread).slice(2), ["TM(p1,paid)"])
        assert.isEmpty(Laws.history(awaited.session.thread))

        const events = yield* Stream.runCollect(Session.streamContinue(session, null, options)).pipe(
          Effect.provide(model)
        )
        assert.deepStrictEqual(events.slice(-2).map(({ _tag }) => _tag), ["Error", "ChatCompleted"])
        assert.isEmpty(Laws.check(events))
        const folded = events.reduce(
          (reducer, event) => Session.applyEvent(reducer, event),
          Session.reducer(session, "chat")
        )
        const streamed = Session.finalize(folded)
        assert.strictEqual(streamed.result.outcome._tag, "Failed")
        assert.deepStrictEqual(streamed.session.thread, awaited.session.thread)

        // The natural retry goes on with what has run, and does not run it again.
        assert.lengthOf(runs, 2)
        const again = Session.continue(Session.recover(awaited.session), null, options)
        const { result } = yield* Effect.provide(again, Script.layer([done]))
        assert.strictEqual(result.outcome._tag, "Completed")
        assert.lengthOf(runs, 2)
      }))
  }

  it.effect("with a store, with what was said, and after the replies that were asked for again", () =>
    Effect.gen(function*() {
      const { pay, runs } = payer()
      const options = { tools: [pay], requestId: "r" }
      const turns = Script.layer([calling("pay:p1"), limited, limited])
      const again = { ...options, retryReply: Schedule.recurs(1) }
      const opened = yield* Session.open("s")
      const program = Effect.gen(function*() {
        const waiting = yield* Session.keep(opened, (session) => Session.reply(session, "go", options))
        const allowed = yield* Session.keep(waiting, (session) => Session.approve(session, "p1"))
        return yield* Session.keep(allowed, (session) => Session.reply(session, "and?", again))
      })
      const kept = yield* Effect.provide(program, turns)
      assert.strictEqual(kept.value.result.outcome._tag, "Failed")
      assert.strictEqual(kept.session.status, "error")
      assert.deepStrictEqual(transcript(kept.session.thread).slice(2), ["TM(p1,paid)", "user(and?)"])
      const loaded = yield* Session.load("s")
      assert.deepStrictEqual(loaded?.session.thread, kept.session.thread)
      assert.strictEqual(loaded?.session.status, "error")
      assert.isUndefined(loaded?.interrupted)
      assert.lengthOf(runs, 1)
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("a first reply that calls an unknown tool is no failure of the operation either", () =>
    Effect.gen(function*() {
      const { pay, runs } = payer()
      const session = yield* approved
      const policy = { ...Policy.standard, start: "afterTurn", unknownTool: "failTurn" } as const
      const { result, session: left } = yield* Session.continue(session, null, { tools: [pay], policy }).pipe(
        Effect.provide(Script.layer([calling("nowhere:n")]))
      )
      assert.strictEqual(result.outcome._tag, "Failed")
      assert.strictEqual(left.status, "error")
      assert.isEmpty(left.approved)
      assert.lengthOf(runs, 1)
    }))

  it.effect("where no approved call has run it is a failure, and the session is as it was", () =>
    Effect.gen(function*() {
      const session = yield* after("ask:q")
      const failure = yield* Effect.flip(Session.reply(session, "Oslo")).pipe(
        Effect.provide(models["fails before its first event"])
      )
      assert.instanceOf(failure, Adapter.AdapterError)
    }))
})
