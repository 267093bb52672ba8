/** What a server asks of a session beside its conversation. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import { Journal, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import { until } from "../support/edges.ts"

const { finish, text, toolCall, usage } = Script

const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
const ask = Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Where?")) })

const loaded = (id: string) =>
  Effect.flatMap(Session.load(id), (kept) => kept === undefined ? Effect.die(`no session ${id}`) : Effect.succeed(kept))

const viewOf = (id: string) => Effect.map(loaded(id), Session.view)

/** Every session is compared as its process sees it and as the next one reads it. */
const same = <K extends Session.Kept>(kept: K) =>
  Effect.map(loaded(kept.id), (again) => {
    assert.deepStrictEqual(Session.view(again), Session.view(kept))
    return Session.view(again)
  })

describe("Session.view", () => {
  it.effect("the view of a session at rest has only its size", () =>
    Effect.gen(function*() {
      const { size, ...view } = yield* same(yield* Session.open("s"))
      assert.deepStrictEqual(view, {
        calls: [],
        waiting: [],
        inbox: [],
        receipts: new Map(),
        failures: 0,
        clientTools: []
      })
      assert.strictEqual(size.turns, 0)
      assert.isAbove(size.bytes, 0)
    }).pipe(Effect.provide([Script.layer([]), Session.Store.layerMemory])))

  it.effect("the view of an open run has its message, its whole steps, its calls, and the thread before the run", () => {
    const gate = Deferred.makeUnsafe<void>()
    const look = Tool.make("look", { parameters: {}, handler: () => Effect.as(Deferred.await(gate), "seen") })
    const fast = Tool.make("fast", { parameters: {}, handler: () => Effect.succeed("soon") })
    const model = Script.layer([
      [text("Hello"), finish("stop")],
      [toolCall("c1", "fast"), usage({ inputTokens: 5, outputTokens: 2 }), finish("tool_calls")],
      [toolCall("c2", "look"), toolCall("c3", "fast"), finish("tool_calls")],
      [text("Done"), finish("stop")]
    ])
    return Effect.gen(function*() {
      const first = yield* Session.keep(yield* Session.open("s"), (session) => Session.reply(session, "Hi"))
      yield* Session.submit("s", "Look", { id: "m1", by: "ada" })
      yield* Session.submit("s", "And then", { id: "m2" })
      const running = yield* Effect.forkChild(
        Session.keep(
          yield* loaded("s"),
          (session) => Session.reply(session, "Look", { tools: [look, fast], takes: "m1", requestId: "r1" })
        )
      )
      const states = Effect.map(viewOf("s"), ({ calls }) => calls.map(({ state }) => state).join())
      yield* until(Effect.map(states, (states) => states === "Started,Answered"))
      const { inbox, receipts, run } = yield* viewOf("s")
      assert.strictEqual(run?.requestId, "r1")
      assert.strictEqual(run?.operation, "reply")
      assert.strictEqual(run?.takes?.id, "m1")
      assert.strictEqual(run?.takes?.message?.content, "Look")
      assert.strictEqual(run?.steps, 1)
      assert.strictEqual(run?.usage?.inputTokens, 5)
      assert.isString(run?.processName)
      assert.deepStrictEqual(run?.settled, [])
      assert.deepStrictEqual(run?.before.thread, first.session.thread)
      assert.deepStrictEqual(run?.before.suspensions, [])
      assert.deepStrictEqual(inbox.map(({ id }) => id), ["m2"])
      assert.strictEqual(receipts.get("m1")?.became, "taken")
      assert.strictEqual(receipts.get("m1")?.requestId, "r1")
      assert.strictEqual(receipts.get("m2")?.became, "queued")
      Deferred.doneUnsafe(gate, Effect.void)
      const view = yield* same(yield* Fiber.join(running))
      assert.isUndefined(view.run)
      assert.deepStrictEqual(view.lastRun, { requestId: "r1", outcome: "completed" })
      assert.deepStrictEqual(view.calls, [])
      assert.strictEqual(view.receipts.get("m1")?.became, "completed")
      assert.strictEqual(view.size.turns, 4)
      assert.strictEqual(receipts.get("m1")?.became, "taken", "a view that was given out does not change")
    }).pipe(Effect.provide([model, Session.Store.layerMemory]))
  })

  it.effect("waiting calls belong to the run that asked, also after a verdict, a snapshot and a load by the next process", () => {
    const model = Script.layer([
      [toolCall("c1", "pay"), toolCall("c2", "pay"), finish("tool_calls")],
      [text("Paid"), finish("stop")]
    ])
    return Effect.gen(function*() {
      const asked = yield* Session.keep(
        yield* Session.open("s"),
        (session) => Session.reply(session, "Pay", { tools: [pay], requestId: "r1" })
      )
      const first = yield* same(asked)
      assert.deepStrictEqual(first.waiting, asked.session.suspensions)
      assert.deepStrictEqual(first.calls.map(({ state }) => state), ["Waiting", "Waiting"])
      assert.strictEqual(first.waitingSince, "r1")
      const approved = yield* Session.keep(asked, (session) => Session.approve(session, "c1", { command: "v1" }))
      const second = yield* same(approved)
      assert.deepStrictEqual(second.waiting.map(({ id }) => id), ["c2"])
      assert.deepStrictEqual(second.calls.map(({ state }) => state), ["Granted", "Waiting"])
      assert.strictEqual(second.waitingSince, "r1")
      assert.strictEqual(second.receipts.get("v1")?.became, "completed")
      const third = yield* same(yield* Session.snapshot(approved))
      assert.deepStrictEqual(third.waiting.map(({ id }) => id), ["c2"])
      assert.strictEqual(third.waitingSince, "r1")
      assert.deepStrictEqual(third.lastRun, { outcome: "approval_requested" })
      const all = yield* Session.keep(yield* loaded("s"), (session) => Session.deny(session, "c2"))
      const last = yield* same(yield* Session.keep(all, (session) => Session.continue(session, null, { tools: [pay] })))
      assert.deepStrictEqual(last.waiting, [])
      assert.isUndefined(last.waitingSince)
    }).pipe(Effect.provide([model, Session.Store.layerMemory]))
  })

  it.effect("a session that a program made from data waits since no known run", () => {
    const model = Script.layer([[toolCall("c1", "pay"), finish("tool_calls")]])
    return Effect.gen(function*() {
      const { session } = yield* Session.start("Pay", { tools: [pay] })
      const kept = yield* Session.keep(yield* Session.open("s"), () => Effect.succeed(session))
      const opened = yield* Session.open("t", { thread: session.thread })
      assert.strictEqual(Session.view(kept).waitingSince, undefined)
      assert.deepStrictEqual(Session.view(opened).waiting, [])
    }).pipe(Effect.provide([model, Session.Store.layerMemory]))
  })

  it.effect("a verdict during a run counts at the run's end, and is named until then", () => {
    const gate = Deferred.makeUnsafe<void>()
    const slow = Tool.make("slow", { parameters: {}, handler: () => Effect.as(Deferred.await(gate), "late") })
    const tools = [pay, slow]
    const model = Script.layer([[toolCall("c1", "pay"), toolCall("c2", "slow"), finish("tool_calls")]])
    return Effect.gen(function*() {
      const claimed = yield* Session.claim("s", { poll: "10 millis" })
      const running = yield* Effect.forkChild(
        Session.keep(claimed, (session) => Session.reply(session, "Pay", { tools, requestId: "r1" }))
      )
      yield* until(Effect.map(viewOf("s"), ({ waiting }) => waiting.length === 1))
      const during = yield* loaded("s")
      assert.strictEqual(Session.view(during).waitingSince, "r1")
      yield* Session.keep(during, (session) => Session.approve(session, "c1"))
      const { run, waiting } = yield* viewOf("s")
      assert.deepStrictEqual(run?.settled, ["c1"])
      assert.deepStrictEqual(waiting.map(({ id }) => id), ["c1"])
      Deferred.doneUnsafe(gate, Effect.void)
      const kept = yield* Fiber.join(running)
      assert.deepStrictEqual((yield* viewOf("s")).waiting, [])
      assert.strictEqual(Session.next(kept), "continue")
    }).pipe(Effect.scoped, Effect.provide([model, Session.Store.layerMemory]))
  })

  it.effect("the view before a run still has the question that the run's reply answers", () => {
    const model = Script.layer([
      [toolCall("c1", "ask"), finish("tool_calls")],
      [toolCall("c2", "pay"), finish("tool_calls")]
    ])
    const tools = [ask, pay]
    return Effect.gen(function*() {
      const asked = yield* Session.keep(yield* Session.open("s"), (session) => Session.reply(session, "Go", { tools }))
      const events = Session.keepStream(asked, (session) => Session.streamReply(session, "Oslo", { tools }))
      yield* Stream.runDrain(Stream.take(events, 1))
      const { run, waiting } = yield* viewOf("s")
      assert.deepStrictEqual(run?.before.suspensions, asked.session.suspensions)
      assert.deepStrictEqual(run?.before.thread, asked.session.thread)
      assert.deepStrictEqual(waiting, [])
    }).pipe(Effect.provide([model, Session.Store.layerMemory]))
  })

  it.effect("failures count the consecutive runs that could not start", () => {
    const model = Script.layer([
      [Script.preflightError("network_error")],
      [Script.preflightError("network_error")],
      [text("Hello"), finish("stop")]
    ])
    return Effect.gen(function*() {
      yield* Session.submit("s", "Hi", { id: "m1" })
      const reply = (session: Session.Session) => Session.reply(session, "Hi", { takes: "m1" })
      for (const count of [1, 2]) {
        yield* Effect.flip(Session.keep(yield* loaded("s"), reply))
        const { failures, inbox, lastRun, receipts } = yield* viewOf("s")
        assert.strictEqual(failures, count)
        assert.strictEqual(lastRun?.error?.reason, "AdapterError")
        assert.deepStrictEqual(inbox.map(({ id }) => id), ["m1"], "the message is given back")
        assert.strictEqual(receipts.get("m1")?.became, "queued")
      }
      const view = yield* same(yield* Session.keep(yield* loaded("s"), reply))
      assert.strictEqual(view.failures, 0)
      assert.deepStrictEqual(view.inbox, [])
    }).pipe(Effect.provide([model, Session.Store.layerMemory]))
  })
})

describe("Journal.fold", () => {
  it.effect("a fold has the whole turns, the calls and the usage of the session at each record", () => {
    const model = Script.layer([
      [text("Hello"), usage({ inputTokens: 3 }), finish("stop")],
      [toolCall("c1", "fast"), toolCall("c2", "pay"), usage({ inputTokens: 5 }), finish("tool_calls")],
      [text("Paid"), usage({ inputTokens: 7 }), finish("stop")]
    ])
    const fast = Tool.make("fast", { parameters: {}, handler: () => Effect.succeed("soon") })
    const tools = [fast, pay]
    return Effect.gen(function*() {
      const first = yield* Session.keep(yield* Session.open("s"), (session) => Session.reply(session, "Hi"))
      const asked = yield* Session.keep(first, (session) => Session.reply(session, "Pay", { tools }))
      const approved = yield* Session.keep(asked, (session) => Session.approve(session, "c2"))
      const kept = yield* Session.keep(approved, (session) => Session.continue(session, null, { tools }))
      const store = yield* Session.Store
      const fold = Journal.fold("s")
      const states = new Set<string>()
      const totals = new Set<number | null | undefined>()
      yield* Stream.runForEach(store.read("s"), (entry) =>
        Effect.sync(() => {
          fold.apply(entry)
          const { calls, thread, usage, version } = fold
          const view = Session.view(fold.kept)
          assert.deepStrictEqual(calls, view.calls, `version ${version}`)
          assert.deepStrictEqual(usage, view.run?.usage ?? null, `version ${version}`)
          const { messages } = fold.kept.session.thread
          assert.deepStrictEqual(thread.messages, messages.slice(0, thread.messages.length), `version ${version}`)
          if (calls.length === 0) assert.strictEqual(thread.messages.length, messages.length, `version ${version}`)
          for (const { state } of calls) states.add(state)
          totals.add(usage?.inputTokens)
        }))
      assert.deepStrictEqual(fold.kept.session, kept.session)
      assert.deepStrictEqual(Array.from(states).sort(), ["Answered", "Asked", "Granted", "Started", "Waiting"])
      assert.includeMembers(Array.from(totals), [undefined, 3, 5, 7])
    }).pipe(Effect.provide([model, Session.Store.layerMemory]))
  })
})

describe("Session.submit with a check", () => {
  /** Refuses a session with a message that no run has taken. */
  const oneAtATime = (kept: Session.Kept | undefined) =>
    kept !== undefined && Session.isUnfinished(kept) ? Effect.fail("busy" as const) : Effect.void

  it.effect("the check runs before a session is created and before each message, and a refusal writes nothing", () =>
    Effect.gen(function*() {
      const asked: Array<number | undefined> = []
      const check = (kept: Session.Kept | undefined) => {
        asked.push(kept?.version)
        return oneAtATime(kept)
      }
      const origin = { principal: "ada", agent: "helper" }
      assert.strictEqual(yield* Effect.flip(Session.submit("t", "Hi", { check: () => Effect.fail("no") })), "no")
      assert.isUndefined(yield* Session.load("t"))
      yield* Session.submit("s", "Hi", { id: "m1", origin, check })
      const error = yield* Effect.flip(Session.submit("s", "You", { id: "m2", origin: { agent: "other" }, check }))
      assert.strictEqual(error, "busy")
      assert.deepStrictEqual(asked, [undefined, 2])
      const kept = yield* loaded("s")
      assert.deepStrictEqual(kept.origin, origin)
      assert.strictEqual(kept.version, 2)
      // The same message again is the same submission, whatever the session does.
      assert.deepStrictEqual(yield* Session.submit("s", "Hi", { id: "m1", check }), { id: "m1", accepted: 2 })
      assert.deepStrictEqual(asked, [undefined, 2])
      const taken = yield* Effect.flip(Session.submit("s", "Ho", { id: "m1", check }))
      assert.strictEqual(taken instanceof Session.SessionError ? taken.reason : taken, "id_taken")
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("of concurrent messages to a known session one is accepted", () =>
    Effect.gen(function*() {
      const known = yield* Session.open("s")
      const send = (id: string) => Session.submit("s", id, { id, known, check: oneAtATime })
      const results = yield* Effect.all(["m1", "m2", "m3"].map((id) => Effect.result(send(id))), {
        concurrency: "unbounded"
      })
      assert.strictEqual(results.filter(({ _tag }) => _tag === "Success").length, 1)
      assert.strictEqual((yield* viewOf("s")).inbox.length, 1)
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("a message has the tools of its client, and so has the run that takes the message", () => {
    const clientTools = [{ name: "map", description: "Shows a map", parameters: { type: "object" } }]
    return Effect.gen(function*() {
      yield* Session.submit("s", "Hi", { id: "m1", clientTools })
      const kept = yield* loaded("s")
      assert.deepStrictEqual(Session.view(kept).inbox[0]?.clientTools, clientTools)
      assert.deepStrictEqual(Session.view(kept).clientTools, [])
      const view = yield* same(yield* Session.keep(kept, (session) => Session.reply(session, "Hi", { takes: "m1" })))
      assert.deepStrictEqual(view.clientTools, clientTools)
    }).pipe(Effect.provide([Script.layer([[text("Hello"), finish("stop")]]), Session.Store.layerMemory]))
  })
})
