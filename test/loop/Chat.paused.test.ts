/** Replies that say that they are paused, whichever provider they are of: in a run, in its events and in its journal. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { Chat, Collector, Event, Policy, type Response, Session, Thread } from "heddle"
import { Script } from "heddle/testing"
import * as JournalEvents from "../../src/server/internal/journalEvents.ts"
import { failed, finished } from "../support/folds.ts"
import { journalOf, prefixed } from "../support/survivor.ts"

const paused = [Script.text("So far. "), Script.finish("other", { paused: true })]

const done = [Script.text("Done."), Script.finish("stop")]

const asked = Thread.fromMessages([{ role: "user", content: "go", metadata: {} }])

const respond = (events: ReadonlyArray<Event.Event>, policy: Policy.Policy = Policy.standard): Response.Response =>
  Collector.toResponse(Collector.applyAll(Collector.initial({ thread: asked, policy }), events))

describe("a paused reply", () => {
  it("O-15: a paused reply ends no turn under any policy, unless the reply failed or was filtered", () => {
    for (const policy of [Policy.standard, Policy.allm, { ...Policy.standard, adapterErrors: "lastWins" } as const]) {
      const isDone = (...events: ReadonlyArray<Event.Event>) => Collector.isDone(policy, respond(events, policy))
      for (const reason of ["stop", "length", "other", null] as const) {
        assert.isFalse(isDone(finished(reason, { paused: true })), String(reason))
      }
      assert.isTrue(isDone(finished("stop", { paused: false })))
      assert.isTrue(isDone(finished("content_filter", { paused: true })))
      assert.isTrue(isDone(finished("other", { paused: true }), failed("broken")))
    }
  })

  it("O-15: the paused fact is forgotten when a reply is reset and when the next message completes", () => {
    assert.isTrue(respond([finished("other", { paused: true })]).paused)
    const reset: Event.Event = { _tag: "StepReset", error: "broken" }
    assert.notProperty(respond([finished("other", { paused: true }), reset, finished("stop")]), "paused")
    assert.notProperty(respond([finished("other", { paused: true }), finished("stop")]), "paused")
    assert.notProperty(respond([finished("stop", { paused: "yes" as never })]), "paused")
  })

  it.effect("O-15: the paused fact survives JSON and reaches clients in live and in journal events", () =>
    Effect.gen(function*() {
      const live: Array<Event.PublicEvent> = []
      const events: Array<Event.Event> = []
      const onEvent = (event: Event.Event) => {
        events.push(event)
        const shown = Event.toPublic(event, { runId: "run" })
        if (shown !== undefined) live.push(shown)
      }
      const opened = yield* Session.open("s")
      const { value } = yield* Session.keep(
        opened,
        (session) => Session.reply(session, "go", { requestId: "run", onEvent })
      )
      assert.deepStrictEqual(value.result.steps.map(({ response }) => response.paused), [true, undefined])
      const ends = (all: ReadonlyArray<{ readonly _tag: string; readonly paused?: unknown }>) =>
        all.filter(({ _tag }) => _tag === "MessageCompleted").map((event) => event.paused)
      assert.deepStrictEqual(ends(live), [true, undefined])
      assert.deepStrictEqual(ends(yield* JournalEvents.eventsOf("s", "run", {})), [true, undefined])
      const wire = events.map((event) => Event.fromWire(JSON.parse(JSON.stringify(Event.toWire(event)))))
      assert.deepStrictEqual(ends(wire), [true, undefined])
      const folded = Collector.toChatResult(Collector.applyAll(Collector.initial({ thread: asked }), events))
      assert.deepStrictEqual(folded.steps.map(({ done }) => done), [false, true])
    }).pipe(Effect.provide([Script.layer([paused, done]), Session.Store.layerMemory])))

  it.effect("O-15, O-01: a run stopped in its paused step ends, also when the process ends behind that step", () =>
    Effect.gen(function*() {
      const stop = yield* Deferred.make<void>()
      const { records, result } = yield* Effect.gen(function*() {
        const opened = yield* Session.open("s")
        const { value: { result } } = yield* Session.keep(opened, (session) =>
          Session.reply(session, "go", {
            cancel: Deferred.await(stop),
            onEvent: ({ _tag }) => _tag === "MessageCompleted" ? Deferred.succeed(stop, undefined) : Effect.void
          }))
        return { records: yield* journalOf("s"), result }
      }).pipe(Effect.provide([Script.layer([paused, done]), Session.Store.layerMemory]))
      assert.deepStrictEqual(result.outcome, { _tag: "Cancelled", reason: "cancel" })
      const cut = records.slice(0, records.findIndex(({ _tag }) => _tag === "StepCompleted") + 1)
      const resumed = yield* Effect.gen(function*() {
        return yield* Session.resume((yield* Session.load("s"))!, { takeOver: true })
      }).pipe(Effect.provide([Script.layer([done]), prefixed("s", cut)]))
      assert.deepStrictEqual(resumed.value.result, result)
    }))

  it.effect("O-15: a paused reply ends a session's step, and the next step continues", () =>
    Effect.gen(function*() {
      const opened = yield* Session.open("s")
      const first = yield* Session.keep(opened, (session) =>
        Effect.flatMap(Session.appendUser(session, "go"), (said) => Session.step(said)))
      const second = yield* Session.keep(first, (session) =>
        Session.step(session))
      assert.deepStrictEqual([first.value.result.done, first.session.status], [false, "idle"])
      assert.deepStrictEqual([second.value.result.done, second.session.status], [true, "completed"])
      assert.deepStrictEqual((yield* Session.load("s"))?.session, second.session)
    }).pipe(Effect.provide([Script.layer([paused, done]), Session.Store.layerMemory])))

  it.effect("O-15: a streamed run continues after a paused reply like an awaited run", () =>
    Effect.gen(function*() {
      const events = yield* Stream.runCollect(Chat.stream("go")).pipe(Effect.provide(Script.layer([paused, done])))
      const tags = Array.from(events, ({ _tag }) => _tag).filter((tag) => tag.endsWith("Completed"))
      const reply = ["TextCompleted", "MessageCompleted", "StepCompleted"]
      assert.deepStrictEqual(tags, [...reply, ...reply, "ChatCompleted"])
    }))
})
