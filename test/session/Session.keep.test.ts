/**
 * Sessions in a store: what is written down, when, and what is read back of a run that ended, that could not start, that
 * was left, or that was killed at any record.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as HttpClientError from "effect/http/HttpClientError"
import * as HttpClientRequest from "effect/http/HttpClientRequest"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Chat, Journal, Message, Session, Thread, Tool } from "heddle"
import { check, Script } from "heddle/testing"
import * as Journals from "../../src/internal/session/journal.ts"
import { transcript } from "../support/scenarios.ts"
import { calling, done, payer, throughJson, tools } from "../support/sessions.ts"
import { appendAll } from "../support/stores.ts"
import { anything, echo } from "../support/tools.ts"

const memory = Effect.provide(Session.Store.layerMemory)

const journal = (id: string) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    return yield* Stream.runCollect(store.read(id))
  })

const tagsOf = (id: string) => Effect.map(journal(id), (entries) => entries.map(({ record }) => record._tag))

/** Starts a kept session with this script. */
const started = (id: string, script: Script.Input, given: ReadonlyArray<Tool.Any> = tools) =>
  Effect.gen(function*() {
    const opened = yield* Session.open(id, { context: { a: 1 }, thread: Thread.fromMessages([Message.user("go")]) })
    return yield* Session.keep(opened, (session) =>
      Effect.provide(Session.start(session, { tools: given }), Script.layer(script)))
  })

/** A store that has the first records of a journal. */
const prefix = (id: string, records: ReadonlyArray<Journal.Record>) =>
  Layer.effectDiscard(Effect.gen(function*() {
    const store = yield* Session.Store
    yield* appendAll(store, id, records)
  })).pipe(Layer.provideMerge(Session.Store.layerMemory))

const isValid = ({ session }: Pick<Session.Kept, "session">) => {
  const pending = [...session.pendingToolCalls, ...session.approved].map((call) => call.id)
  assert.isEmpty(check.thread(session.thread, { pending }))
}

describe("a kept run", () => {
  it.effect("a call's start is recorded before the call and its result after the call, within the run's records", () =>
    memory(Effect.gen(function*() {
      const seen: Array<ReadonlyArray<string>> = []
      const look = Tool.make("look", {
        parameters: anything,
        handler: () => Effect.flatMap(tagsOf("s"), (tags) => Effect.sync(() => seen.push(tags))).pipe(Effect.as("ok"))
      })
      yield* started("s", [calling("look:c0"), done], [look])
      assert.deepStrictEqual(seen, [["Opened", "RunStarted", "ReplyReceived", "CallStarted"]])
      assert.deepStrictEqual(yield* tagsOf("s"), [
        "Opened",
        "RunStarted",
        "ReplyReceived",
        "CallStarted",
        "CallEnded",
        "StepCompleted",
        "StepCompleted",
        "RunEnded"
      ])
    })))

  it.effect("Session.load returns the operation's session, at rest and with waiting calls", () =>
    memory(Effect.gen(function*() {
      const scripts = [[done], [calling("echo:c0"), done], [calling("ask:q")], [calling("pay:p", "appr:m", "ask:q")]]
      for (const [index, script] of scripts.entries()) {
        const kept = yield* started(`s${index}`, script)
        assert.strictEqual(kept.value.session, kept.session)
        const loaded = yield* Session.load(`s${index}`)
        assert.deepStrictEqual(loaded?.session, throughJson(kept.session))
        assert.strictEqual(loaded?.version, kept.version)
        assert.notProperty(loaded, "interrupted")
      }
    })))

  it.effect("an append contains only new records, however long the history grows", () =>
    memory(Effect.gen(function*() {
      const store = yield* Session.Store
      let kept: Session.Kept = yield* Session.open("s")
      const sizes: Array<number> = []
      for (let turn = 0; turn < 60; turn++) {
        const { version } = kept
        kept = yield* Session.keep(kept, (session) =>
          Effect.provide(Session.reply(session, "go", { requestId: "r" }), Script.layer([done])))
        const entries = yield* Stream.runCollect(store.read("s", version))
        sizes.push(entries.reduce((size, { record }) =>
          size + JSON.stringify(record).length, 0))
      }
      assert.strictEqual(new Set(sizes).size, 1)
      assert.strictEqual(kept.session.thread.messages.length, 120)
    })))

  it.effect("R-468: of concurrent operations at one version one runs, and no call of the others runs", () =>
    memory(Effect.gen(function*() {
      const { pay, runs } = payer()
      const waiting = yield* started("s", [calling("pay:p")], [pay])
      const approved = yield* Session.keep(waiting, (session) => Session.approve(session, "p"))
      const going = Session.keep(
        approved,
        (session) => Effect.provide(Session.continue(session, null, { tools: [pay] }), Script.layer([done]))
      )
      const exits = yield* Effect.forEach([going, going, going, going], Effect.exit, { concurrency: "unbounded" })
      assert.strictEqual(exits.filter(Exit.isSuccess).length, 1)
      assert.strictEqual(runs.length, 1)
      const again = yield* Effect.flip(Session.keep(waiting, (session) => Session.deny(session, "p")))
      assert.strictEqual(again._tag, "SessionConflict")
      // It may have been this program: the message does not say that it was another.
      assert.include(String(again), "it has been written to since it was read, by another program or by this one")
    })))

  it.effect("a call whose start cannot be written does not run, and the operation fails", () =>
    Effect.gen(function*() {
      const { pay, runs } = payer()
      const free = { ...pay, approval: false }
      const failing = Layer.effect(
        Session.Store,
        Effect.map(Session.Store, (store): Journal.Service => ({
          ...store,
          append: (id, expected, records, options) =>
            records.some(({ _tag }) => _tag === "CallStarted")
              ? Effect.fail(new Journal.StoreError({ reason: "unavailable", operation: "append", id }))
              : store.append(id, expected, records, options)
        }))
      ).pipe(Layer.provide(Session.Store.layerMemory))
      const failure = yield* Effect.flip(Effect.provide(started("s", [calling("pay:p"), done], [free]), failing))
      assert.strictEqual(failure._tag, "StoreError")
      assert.deepStrictEqual(runs, [])
    }))

  it.effect("R-456: a run that could not start leaves the session unchanged", () =>
    memory(Effect.gen(function*() {
      const asked = yield* started("s", [calling("ask:q")])
      const reply = (script: Script.Input) => (session: Session.Session) =>
        Effect.provide(Session.reply(session, "Oslo"), Script.layer(script))
      const failure = yield* Effect.flip(Session.keep(asked, reply({ scripts: [done], retryUntilCall: 2 })))
      assert.strictEqual(failure._tag, "AdapterError")
      const back = (yield* Session.load("s"))!
      assert.deepStrictEqual(back.session, throughJson(asked.session))
      const { session } = yield* Session.keep(back, reply([done]))
      assert.deepStrictEqual(transcript(session.thread).slice(-2), ["user(Oslo)", "assistant(done)"])
    })))

  it.effect("a run inside a handler writes no call into the session's journal", () =>
    memory(Effect.gen(function*() {
      const inner = Script.layer([calling("echo:i0"), done])
      const sub = Tool.fromChat("sub", {
        parameters: anything,
        chat: () => Stream.provide(Chat.stream("go", { tools: [echo] }), inner)
      })
      yield* started("s", [calling("sub:c0"), done], [sub])
      const started1 = (yield* journal("s")).flatMap(({ record }) =>
        record._tag === "CallStarted" ? [record.toolCallId] : []
      )
      assert.deepStrictEqual(started1, ["c0"])
    })))

  it.effect("several operations in one keep are one history", () =>
    memory(Effect.gen(function*() {
      const { pay, runs } = payer()
      const waiting = yield* started("s", [calling("pay:p")], [pay])
      const kept = yield* Session.keep(waiting, (session) =>
        Effect.gen(function*() {
          const approved = yield* Session.approve(session, "p")
          return yield* Effect.provide(Session.continue(approved, null, { tools: [pay] }), Script.layer([done]))
        }))
      assert.strictEqual(runs.length, 1)
      assert.strictEqual((yield* tagsOf("s")).filter((tag) => tag === "Opened").length, 1)
      assert.deepStrictEqual((yield* Session.load("s"))?.session, throughJson(kept.session))
    })))

  it.effect("two concurrent openings create one session, and both return the session", () =>
    memory(Effect.gen(function*() {
      const both = yield* Effect.all([
        Session.open("s", { context: { by: 1 } }),
        Session.open("s", { context: { by: 2 } })
      ], {
        concurrency: "unbounded"
      })
      assert.deepStrictEqual(both[0].session, both[1].session)
      assert.deepStrictEqual(yield* tagsOf("s"), ["Opened"])
      assert.isUndefined(yield* Session.load("nobody"))
    })))
})

describe("a kept stream", () => {
  it.effect("a kept stream emits the operation's events, and its session is in the store at the end", () =>
    memory(Effect.gen(function*() {
      const opened = yield* Session.open("s")
      const stream = Session.keepStream(opened, (session) => Session.streamReply(session, "go", { tools }))
      const model = Script.layer([calling("echo:c0"), done])
      const events = yield* Effect.provide(Stream.runCollect(stream), model)
      assert.isEmpty(check(events))
      assert.strictEqual((yield* Session.load("s"))?.session.status, "completed")
      const stale = yield* Effect.flip(Effect.provide(Stream.runCollect(stream), model))
      assert.strictEqual((stale as { readonly _tag: string })._tag, "SessionConflict")
    })))

  it.effect("a kept stream left by its reader stays interrupted, with every whole step", () =>
    memory(Effect.gen(function*() {
      const opened = yield* Session.open("s")
      const stream = Session.keepStream(opened, (session) => Session.streamReply(session, "go", { tools }))
      const left = Stream.takeUntil(stream, (event) => event._tag === "StepCompleted")
      yield* Effect.provide(Stream.runDrain(left), Script.layer([calling("echo:c0"), done]))
      const kept = (yield* Session.load("s"))!
      assert.deepStrictEqual(transcript(kept.session.thread), ["user(go)", "assistant()", "TM(c0,{})"])
      assert.isDefined(kept.interrupted)
      isValid(kept)
    })))
})

describe("a killed run", () => {
  it.effect("a run killed at any record has a valid session, and no approved call that had begun runs again", () =>
    Effect.gen(function*() {
      const whole = yield* memory(Effect.gen(function*() {
        const { pay } = payer()
        const waiting = yield* started("s", [calling("pay:p1", "echo:e", "pay:p2", "ask:q")], [
          ...tools.slice(0, -1),
          pay
        ])
        const answered = yield* Session.keep(waiting, (session) =>
          Effect.gen(function*() {
            const one = yield* Session.approve(session, "p1")
            const two = yield* Session.approve(yield* Session.answer(one, "q", "Oslo"), "p2")
            return two
          }))
        yield* Session.keep(answered, (session) =>
          Effect.provide(
            Session.reply(session, "go on", { tools: [pay, echo] }),
            Script.layer([calling("echo:e2"), done])
          ))
        return yield* journal("s")
      }))
      const tags = whole.map(({ record }) => record._tag)
      const again = tags.slice(tags.lastIndexOf("RunStarted"))
      assert.deepStrictEqual(again.slice(0, 5), ["RunStarted", "CallStarted", "CallStarted", "CallEnded", "CallEnded"])
      for (let length = 1; length <= whole.length; length++) {
        const records = whole.slice(0, length).map(({ record }) => record)
        const begun = records.flatMap((record) => record._tag === "CallStarted" ? [record.toolCallId] : [])
        yield* Effect.gen(function*() {
          const { pay, runs } = payer()
          const kept = (yield* Session.load("s"))!
          isValid(kept)
          const approved = kept.session.approved.map(({ id }) => id)
          assert.isEmpty(approved.filter((id) => begun.includes(id)), `after ${length} records`)
          if (kept.session.suspensions.length > 0) return
          const next = yield* Session.keep(
            kept,
            (session) => Effect.provide(Session.reply(session, "again", { tools: [pay, echo] }), Script.layer([done]))
          )
          assert.strictEqual(runs.length, approved.length)
          isValid(next)
          assert.isEmpty(Thread.unanswered(next.session.thread))
          assert.deepStrictEqual((yield* Session.load("s"))?.session, throughJson(next.session))
        }).pipe(Effect.provide(prefix("s", records)))
      }
    }))

  it.effect("the journal records which calls had begun, their results, and a distinct key for each call", () =>
    memory(Effect.gen(function*() {
      const reached = yield* Deferred.make<void>()
      const stuck = Tool.make("stuck", {
        parameters: anything,
        handler: () => Effect.andThen(Deferred.succeed(reached, undefined), Effect.never)
      })
      const script = [calling("echo:e", "stuck:c")]
      const fiber = yield* Effect.forkChild(started("s", script, [echo, stuck]))
      yield* Deferred.await(reached)
      yield* Fiber.interrupt(fiber)
      const { interrupted, session } = (yield* Session.load("s"))!
      assert.deepStrictEqual(transcript(session.thread), ["user(go)"])
      assert.deepStrictEqual(interrupted?.reply?.toolCalls?.map(({ id }) => id), ["e", "c"])
      assert.deepStrictEqual(
        interrupted?.calls.map(({ message, state, toolCall }) => [toolCall.id, state, message?.content]),
        [
          ["e", "Answered", "{}"],
          ["c", "Started", undefined]
        ]
      )
      assert.strictEqual(new Set(interrupted?.calls.map((call) => call.idempotencyKey)).size, 2)
    })))
})

describe("an error with a request", () => {
  it.effect("M-10: an error with a request is kept in the journal without the key of the request", () =>
    Effect.gen(function*() {
      const url = "https://example.com/v1?key=sk-secret-1&alt=sse"
      const request = HttpClientRequest.get(url).pipe(HttpClientRequest.bearerToken("sk-secret-2"))
      const failure = new HttpClientError.HttpClientError({
        reason: new HttpClientError.TransportError({ request, cause: new Error(`fetch of ${url} failed`) })
      })
      const read = Tool.make("read", { parameters: anything, handler: () => Effect.fail(failure) })
      const opened = yield* Session.open("s")
      const broken = [
        Script.text("so"),
        Script.streamError("network_error", { cause: failure })
      ]
      const { session } = yield* Session.keep(
        opened,
        (session) =>
          Effect.provide(Session.reply(session, "go", { tools: [read] }), Script.layer([calling("read:c0"), broken]))
      )
      assert.strictEqual(session.status, "error")
      const store = yield* Session.Store
      const texts = yield* Effect.forEach(
        yield* Stream.runCollect(store.read("s")),
        ({ record }) => Journals.toText("s", record)
      )
      const kept = [...texts, JSON.stringify(throughJson(session))].join("\n")
      assert.include(kept, "network_error")
      assert.notInclude(kept, "sk-secret")
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})
