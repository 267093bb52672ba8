/**
 * What keeps a store small: snapshots of sessions at rest, and what refuses to be one; lists and deletion.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Chat, Journal, Message, Session, Tool } from "heddle"
import { SessionStore } from "heddle/sql"
import { Script } from "heddle/testing"
import { temporaryFile } from "../sql/support/files.ts"
import { calling, done, payer, tools } from "../support/sessions.ts"
import { appendAll } from "../support/stores.ts"
import { deniedTurn, turn } from "../support/turns.ts"

const opened = (id: string): Journal.Record => ({ _tag: "Opened", format: 1, session: Session.make({ id }) })

const started: Journal.Record = { _tag: "RunStarted", requestId: "r", operation: "reply", startedAt: 0, messages: [] }

const memory = Effect.provide(Session.Store.layerMemory, { local: true })

describe("Session.snapshot", () => {
  it.effect("a snapshot keeps a waiting approval, and the call runs once approved", () =>
    Effect.gen(function*() {
      const { pay, runs } = payer()
      const begun = yield* Session.open("s")
      const asked = yield* Session.keep(begun, (session) => Session.reply(session, "Pay", { tools: [pay] })).pipe(
        Effect.provide(Script.layer([calling("pay:p")]))
      )
      const kept = yield* Session.snapshot(asked)
      const store = yield* Session.Store
      const records = yield* Stream.runCollect(store.read("s"))
      assert.deepStrictEqual(records.map(({ record, version }) => [record._tag, version]), [["Opened", kept.version]])
      const loaded = (yield* Session.load("s"))!
      assert.deepStrictEqual(loaded.session, asked.session)
      const given = yield* Session.keep(loaded, (session) => Session.approve(session, "p"))
      const ended = yield* Session.keep(given, (session) => Session.continue(session, null, { tools: [pay] })).pipe(
        Effect.provide(Script.layer([done]))
      )
      assert.deepStrictEqual([ended.session.status, runs], ["completed", [{ amount: 5 }]])
    }).pipe(memory))

  it.effect("a snapshot keeps the runs inside a call that asks with resume, and its next attempt repeats none of them", () =>
    Effect.gen(function*() {
      const said: Array<string> = []
      const plan = Tool.make("plan", {
        parameters: {},
        handler: (_, { resumed }) =>
          Effect.map(Chat.run("Inside"), ({ thread }) => {
            said.push(Message.text(thread.messages.at(-1)!))
            return resumed === undefined ? Tool.askUser("Sure?", { resume: {} }) : "planned"
          })
      })
      const model = yield* Script.make([calling("plan:c0"), [Script.text("a plan"), Script.finish("stop")], done])
      yield* Effect.gen(function*() {
        const begun = yield* Session.open("s")
        const asked = yield* Session.keep(begun, (session) => Session.reply(session, "Plan", { tools: [plan] }))
        const kept = yield* Session.snapshot(asked)
        const given = yield* Session.keep(kept, (session) => Session.answer(session, "c0", "yes"))
        const ended = yield* Session.keep(given, (session) => Session.continue(session, null, { tools: [plan] }))
        assert.deepStrictEqual([ended.session.status, said], ["completed", ["a plan", "a plan"]])
      }).pipe(Effect.provide(model.layer))
      assert.lengthOf(yield* model.requests, 3)
    }).pipe(memory))

  it.effect("a snapshot of a nested run is refused and removes nothing, and its parent continues the run", () =>
    Effect.gen(function*() {
      const { pay, runs } = payer()
      const sub = Tool.fromChat("sub", { parameters: {}, chat: () => Chat.stream("inner", { tools: [pay] }) })
      const model = Script.layer([
        [Script.toolCall("c0", "sub", {}), Script.finish("tool_calls")],
        calling("pay:p"),
        done,
        done
      ])
      const begun = yield* Session.open("s")
      const asked = yield* Session.keep(begun, (session) => Session.reply(session, "go", { tools: [sub] })).pipe(
        Effect.provide(model)
      )
      const [{ id } = { id: "" }] = yield* Stream.runCollect(Session.list({ prefix: "s/" }))
      const nested = (yield* Session.load(id))!
      const error = yield* Effect.flip(Session.snapshot(nested))
      assert.strictEqual(error.message, `nested: the session is a run inside "s": take the snapshot of that session`)
      assert.deepStrictEqual(yield* Session.load(id), nested)
      const given = yield* Session.keep(asked, (session) => Session.approve(session, "c0/p"))
      const ended = yield* Session.keep(given, (session) => Session.continue(session, null, { tools: [sub] })).pipe(
        Effect.provide(Script.layer([done, done]))
      )
      assert.deepStrictEqual([ended.session.status, runs], ["completed", [{ amount: 5 }]])
      // An ended one is refused as well, and goes with the snapshot of its session.
      assert.strictEqual((yield* Effect.flip(Session.snapshot((yield* Session.load(id))!)))._tag, "SessionError")
      yield* Session.snapshot(ended)
      assert.isUndefined(yield* Session.load(id))
    }).pipe(memory))

  const left: Record<string, readonly [records: ReadonlyArray<Journal.Record>, detail: string]> = {
    "a run has no end": [[started], "a run is unfinished: call Session.resume, or Session.abandon"],
    "a message was submitted": [
      [{ _tag: "MessageSubmitted", id: "m", message: Message.user("hi") }],
      "a message waits for a run: a worker takes it, or Session.reply with { takes }"
    ],
    "an answer lets the session continue": [
      deniedTurn(0).slice(0, 6),
      "calls were settled: call Session.continue"
    ]
  }

  for (const [what, [records, detail]] of Object.entries(left)) {
    it.effect(`a snapshot is refused where ${what}, and removes nothing`, () =>
      Effect.gen(function*() {
        const store = yield* Session.Store
        yield* appendAll(store, "s", [opened("s"), ...records])
        const error = yield* Effect.flip(Session.snapshot((yield* Session.load("s"))!))
        assert.deepInclude(error, { _tag: "SessionError", reason: "unfinished", detail })
        assert.strictEqual((yield* Stream.runCollect(store.read("s"))).length, 1 + records.length)
      }).pipe(memory))
  }

  it.effect("a snapshot of a session written to since is a SessionConflict", () =>
    Effect.gen(function*() {
      const begun = yield* Session.open("s")
      yield* Session.keep(begun, (session) => Session.append(session, [Message.user("Hi")]))
      const late = yield* Effect.flip(Session.snapshot(begun))
      assert.deepStrictEqual(late, new Journal.SessionConflict({ id: "s", expected: 1, actual: 2 }))
      yield* Session.delete("s")
      const gone = yield* Effect.flip(Session.snapshot(begun))
      assert.deepStrictEqual(gone, new Journal.SessionConflict({ id: "s", expected: 1, actual: 0 }))
    }).pipe(memory))

  it.live("D-18: a session of 10,000 records loads from its snapshot in less than half the time", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      const records = Array.from({ length: 1429 }, (_, n) => turn(n)).flat()
      yield* appendAll(store, "s", [opened("s"), ...records])
      /** The shortest of several loads, in milliseconds of the processor: a busy machine lengthens both. */
      const shortest = Effect.gen(function*() {
        let millis = Infinity
        for (let round = 0; round < 3; round++) {
          const began = process.cpuUsage()
          const kept = yield* Session.load("s")
          const { system, user } = process.cpuUsage(began)
          millis = Math.min(millis, (system + user) / 1000)
          assert.strictEqual(kept?.session.thread.messages.length, 4 * 1429)
        }
        return millis
      })
      const fromRecords = yield* shortest
      const before = (yield* Session.load("s"))!
      assert.isAtLeast(before.version, 10_000)
      yield* Session.snapshot(before)
      const fromSnapshot = yield* shortest
      process.stdout.write(`D-18, ms: from 10,000 records ${fromRecords}, from a snapshot ${fromSnapshot}\n`)
      assert.isBelow(fromSnapshot * 2, fromRecords)
    }).pipe(
      Effect.provide(Layer.unwrap(Effect.map(temporaryFile, (filename) => SessionStore.layerSqlite({ filename }))))
    ))
})

describe("the sessions of a store", () => {
  it.effect("sessions are listed, unfinished sessions apart, and a run of a deleted session conflicts", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      for (const id of ["ada/1", "ada/2", "bob/1"]) yield* Session.open(id)
      yield* appendAll(store, "ada/2", [started])
      assert.deepStrictEqual(yield* Stream.runCollect(Session.list({ prefix: "ada/" })), [
        { id: "ada/1", version: 1, since: 0, next: "nothing", status: "idle" },
        { id: "ada/2", version: 2, since: 0, next: "resume", status: "idle", resumptions: 0 }
      ])
      assert.deepStrictEqual(yield* Stream.runCollect(Session.unfinished), ["ada/2"])
      const running = (yield* Session.load("bob/1"))!
      yield* Session.delete("bob/1")
      const run = Session.keep(running, (session) => Session.reply(session, "Hi", { tools }))
      const error = yield* Effect.flip(Effect.provide(run, Script.layer([done])))
      assert.strictEqual(error._tag, "SessionConflict")
      assert.deepStrictEqual((yield* Stream.runCollect(Session.list())).map(({ id }) => id), ["ada/1", "ada/2"])
    }).pipe(memory))
})
