/**
 * Sessions that have grown: a bound whose refusal says what to do, and requests that read what came since the last one.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, type Journal, Message, Session, Tool } from "heddle"
import { Agent } from "heddle/server"
import * as JournalEvents from "../../src/server/internal/journalEvents.ts"
import * as StateData from "../support/states.ts"
import { appendAll } from "../support/stores.ts"
import { turn } from "../support/turns.ts"
import { until } from "../support/until.ts"
import { serve, type Site } from "./support/site.ts"

const at = "/agents/helper/sessions"

const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })

const helper = Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools: [pay] }) })

/** A model that answers each message, and calls a tool where the message says so. */
const model = Adapter.layer({
  stream: ({ messages }) => {
    const last = messages.at(-1)
    const isAsked = last !== undefined && last.role === "user" && Message.text(last) === "pay"
    const calls = isAsked ? [Message.toolCall("c0", "pay", {})] : []
    return Stream.make(
      { _tag: "MessageStarted" as const, message: Message.assistant("") },
      ...calls.flatMap((call) => [
        { _tag: "ToolCallStarted" as const, id: call.id, name: call.name },
        { _tag: "ToolCallCompleted" as const, ...call, rawArguments: "{}" }
      ]),
      {
        _tag: "MessageCompleted" as const,
        message: Message.assistant(isAsked ? "" : "Heard", calls),
        finishReason: isAsked ? "tool_calls" as const : "stop" as const
      }
    )
  }
})

const ask = (site: Site, method: string, path: string, body?: unknown) =>
  Effect.map(Effect.promise(() => site.ask(method, path, body)), ({ status, text }) => ({
    status,
    text,
    code: status >= 400 ? JSON.parse(text).error.code : undefined
  }))

const say = (site: Site, id: string, content: string, more: object = {}) =>
  ask(site, "POST", `${at}/${id}/messages`, { content, ...more })

describe("a session at its bounds", () => {
  it.live("O-58: a session with too many turns refuses messages, can be read, answered and deleted, and other sessions work", () =>
    Effect.gen(function*() {
      const site = yield* serve([helper], model, { bounds: { sessionTurns: 3 } })
      for (const content of ["one", "two"]) assert.strictEqual((yield* say(site, "s1", content)).status, 200)
      assert.strictEqual((yield* say(site, "s1", "pay", { id: "m3" })).status, 200)
      const waiting = JSON.parse((yield* ask(site, "GET", `${at}/s1`)).text)
      const answers = [{ id: waiting.suspensions[0].id, approve: true }]
      const refused = yield* say(site, "s1", "four")
      assert.deepStrictEqual([refused.status, refused.code], [409, "waits_for_answers"])
      assert.strictEqual((yield* ask(site, "POST", `${at}/s1/answers`, { answers })).status, 200)
      // The second refusal is as the first one, and the message that was taken before is answered again.
      for (const _ of [1, 2]) {
        const full = yield* say(site, "s1", "four")
        assert.deepStrictEqual([full.status, full.code], [413, "session_full"])
        assert.include(full.text, "3 turns")
        assert.include(full.text, "Begin a new session")
      }
      assert.strictEqual((yield* say(site, "s1", "pay", { id: "m3" })).status, 200)
      assert.strictEqual((yield* ask(site, "GET", `${at}/s1`)).status, 200)
      assert.strictEqual((yield* say(site, "s2", "one")).status, 200)
      const idle = until("the end of the run", ask(site, "DELETE", `${at}/s1`), ({ status }) => status === 204)
      yield* idle
      assert.strictEqual((yield* say(site, "s1", "one")).status, 200)
    }))

  it.live("O-58: a session with too many bytes refuses messages, and other sessions work", () =>
    Effect.gen(function*() {
      const site = yield* serve([helper], model, { bounds: { sessionBytes: 20_000 }, whileRunning: "follow" })
      assert.strictEqual((yield* say(site, "s1", "x".repeat(21_000))).status, 200)
      const full = yield* say(site, "s1", "one")
      assert.deepStrictEqual([full.status, full.code], [413, "session_full"])
      assert.include(full.text, "20000 bytes")
      assert.strictEqual((yield* say(site, "s2", "x".repeat(5_000))).status, 200)
      assert.strictEqual((yield* say(site, "s2", "pay")).status, 200)
    }))
})

/** A store that notes from which version on each journal is read, and how many records it gave. */
const watched = Effect.map(Layer.build(Session.Store.layerMemory), (context) => {
  const store = Context.get(context, Session.Store)
  const given: Array<number> = []
  const service: Journal.Service = {
    ...store,
    read: (id, after) => Stream.tap(store.read(id, after), ({ version }) => Effect.sync(() => void given.push(version)))
  }
  return { service, given, store }
})

const opened = (agent = "helper"): Journal.Record => ({
  _tag: "Opened",
  format: 1,
  session: Session.make({ id: "local:s1" }),
  agent,
  principal: "local"
})

const long: ReadonlyArray<Journal.Record> = [opened(), ...Array.from({ length: 200 }, (_, n) => turn(n)).flat()]

const read = (service: Journal.Service) =>
  Effect.provideService(JournalEvents.read("local:s1", {}), Session.Store, service)

describe("a request of a long session", () => {
  it.effect("O-58: a request reads the last record that the kept fold has, and the later records", () =>
    Effect.gen(function*() {
      const { given, service } = yield* watched
      yield* appendAll(service, "local:s1", long)
      given.length = 0
      const first = yield* read(service)
      assert.strictEqual(first.version, long.length)
      assert.strictEqual(given.length, long.length)
      for (const _ of [1, 2]) {
        given.length = 0
        const again = yield* read(service)
        assert.deepStrictEqual(given, [long.length])
        assert.deepStrictEqual(StateData.dataOf(again.kept.state), StateData.dataOf(first.kept.state))
        assert.deepStrictEqual(again.runs, first.runs)
      }
      yield* service.append("local:s1", long.length, turn(200) as unknown as Journal.Records)
      given.length = 0
      const later = yield* read(service)
      const whole = new JournalEvents.Telling("local:s1", {})
      yield* Stream.runForEach(service.read("local:s1"), (entry) => Effect.sync(() => void whole.take(entry)))
      assert.strictEqual(given.filter((version) => version <= long.length).length - long.length, 1)
      for (const field of ["runs", "names", "turns", "chain", "message", "records", "asked"] as const) {
        assert.deepStrictEqual(later[field], whole[field], field)
      }
      assert.deepStrictEqual(StateData.dataOf(later.kept.state), StateData.dataOf(whole.kept.state))
      // What one request has does not change with what another one reads.
      assert.strictEqual(first.records, long.length)
      assert.notDeepEqual(StateData.dataOf(first.kept.state), StateData.dataOf(later.kept.state))
    }).pipe(Effect.scoped))

  it.effect("O-58: a request notices a deleted session, and a session that began anew with as many records or more", () =>
    Effect.gen(function*() {
      const { service } = yield* watched
      const begin = (count: number, text: string) =>
        Effect.gen(function*() {
          yield* service.delete("local:s1")
          const said = (index: number): Journal.Record => ({
            _tag: "MessagesAppended",
            messages: [Message.user(`${text} ${index}`)]
          })
          yield* appendAll(service, "local:s1", [opened(), ...Array.from({ length: count - 1 }, (_, n) => said(n))])
          const telling = yield* read(service)
          const { messages } = telling.kept.session.thread
          assert.deepStrictEqual(
            messages.map(Message.text),
            Array.from({ length: count - 1 }, (_, n) => `${text} ${n}`)
          )
          assert.strictEqual(telling.version, count)
        })
      yield* begin(4, "first")
      yield* begin(4, "as many")
      yield* begin(9, "more")
      yield* begin(2, "less")
      yield* service.delete("local:s1")
      assert.strictEqual((yield* read(service)).version, 0)
    }).pipe(Effect.scoped))

  it.effect("O-58: a request reads a session whose earlier records a snapshot has removed", () =>
    Effect.gen(function*() {
      const { service } = yield* watched
      yield* appendAll(service, "local:s1", long)
      yield* read(service)
      const kept = (yield* Effect.provideService(Session.load("local:s1"), Session.Store, service))!
      yield* Effect.provideService(Session.snapshot(kept), Session.Store, service)
      const telling = yield* read(service)
      assert.strictEqual(telling.version, long.length + 1)
      assert.strictEqual(telling.kept.session.thread.messages.length, kept.session.thread.messages.length)
      assert.isBelow(telling.kept.state.size.bytes, kept.state.size.bytes)
      assert.strictEqual(telling.kept.state.size.turns, kept.state.size.turns)
    }).pipe(Effect.scoped))

  it.live("O-58: reading and serving do not change the journal", () =>
    Effect.gen(function*() {
      const { given, service, store } = yield* watched
      const site = yield* serve([helper], model, { store: Layer.succeed(Session.Store, service) })
      for (const content of ["one", "two"]) yield* say(site, "s1", content)
      yield* until("the claim", Effect.orDie(store.claimOf("local:s1")), (claim) => claim === undefined)
      const records = yield* Stream.runCollect(store.read("local:s1"))
      given.length = 0
      for (const _ of [1, 2, 3]) assert.strictEqual((yield* ask(site, "GET", `${at}/s1`)).status, 200)
      assert.strictEqual((yield* ask(site, "GET", at)).status, 200)
      assert.deepStrictEqual(yield* Stream.runCollect(store.read("local:s1")), records)
      // The first request reads what came since the last one.
      assert.isBelow(given.filter((version) => version === 1).length, 3)
    }))
})
