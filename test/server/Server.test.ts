/** A server of agents over real HTTP: what clients read and write, and what remains of it. */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Message, Session, Tool } from "heddle"
import { Agent } from "heddle/server"
import { Script } from "heddle/testing"
import { until } from "../support/until.ts"
import { obedient } from "./support/hostile.ts"
import { asking, eventsOf, saidIn, serve, type Site } from "./support/site.ts"

const { finish, text, toolCall } = Script

const helper = (tools: ReadonlyArray<Tool.Any> = [], name = "helper") =>
  Agent.make({ name, description: "Helps", run: () => Effect.succeed({ tools }) })

const at = "/agents/helper/sessions"

const post = (site: Site, path: string, body?: unknown) => Effect.promise(() => site.ask("POST", path, body))

const get = (site: Site, path: string) => asking(site)("GET", path)

/** Says something and reads the run to its end. */
const say = (site: Site, session: string, content: string) =>
  Effect.promise(async () => {
    const reader = await site.open("POST", `${at}/${session}/messages`, { content })
    return eventsOf(await reader.end())
  })

const pay = (paid: Array<number> = []) =>
  Tool.make("pay", {
    parameters: { amount: Schema.Finite },
    approval: true,
    handler: ({ amount }) => Effect.sync(() => (paid.push(amount), `paid ${amount}`))
  })

/** A tool that runs until it is stopped, and tells when it began and ended. */
const endless = () => {
  const began = Deferred.makeUnsafe<void>()
  const ended = Deferred.makeUnsafe<void>()
  const tool = Tool.make("endless", {
    parameters: {},
    handler: () =>
      Effect.ensuring(
        Effect.andThen(Deferred.succeed(began, undefined), Effect.never),
        Deferred.succeed(ended, undefined)
      )
  })
  return { began, ended, tool }
}

describe("messages over HTTP", () => {
  it.live("a posted message is answered, and the session has the message and the reply", () =>
    Effect.gen(function*() {
      const site = yield* serve([helper()], Script.layer([[text("Hel"), text("lo"), finish("stop")]]))
      const events = yield* say(site, "s1", "Hi")
      assert.strictEqual(saidIn(events), "Hello")
      assert.deepStrictEqual(events.at(-1)?._tag, "ChatCompleted")
      const { body } = yield* get(site, `${at}/s1`)
      assert.deepStrictEqual([body.status, body.next, body.isRunning], ["completed", "nothing", false])
      assert.deepStrictEqual(body.messages.map(({ role }: { role: string }) => role), ["user", "assistant"])
    }))

  it.live("a repeated message follows its run, and another message under its id is refused", () =>
    Effect.gen(function*() {
      const site = yield* serve([helper()], Script.layer([[text("Hello"), finish("stop")]]))
      const body = { content: "Hi", id: "m1" }
      const first = yield* post(site, `${at}/s1/messages`, body)
      const again = yield* post(site, `${at}/s1/messages`, body)
      assert.deepStrictEqual([first.status, again.status], [200, 200])
      assert.include(again.text, "\"text\":\"Hello\"")
      const other = yield* post(site, `${at}/s1/messages`, { content: "Bye", id: "m1" })
      assert.deepStrictEqual([other.status, JSON.parse(other.text).error.code], [409, "id_taken"])
    }))

  it.live("a message during a run is refused, or follows the run if the server allows messages to follow", () =>
    Effect.gen(function*() {
      const { began, tool } = endless()
      const script = () =>
        Script.layer([[toolCall("c0", "endless"), finish("tool_calls")], [text("Next"), finish("stop")]])
      const refusing = yield* serve([helper([tool])], script())
      yield* post(refusing, `${at}/s1/messages?wait=false`, { content: "Go" })
      yield* Deferred.await(began)
      const refused = yield* post(refusing, `${at}/s1/messages`, { content: "And" })
      assert.deepStrictEqual([refused.status, JSON.parse(refused.text).error.code], [409, "running"])
      const other = endless()
      const following = yield* serve([helper([other.tool])], script(), { whileRunning: "follow" })
      yield* post(following, `${at}/s1/messages?wait=false`, { content: "Go" })
      yield* Deferred.await(other.began)
      const reader = yield* Effect.promise(() => following.open("POST", `${at}/s1/messages`, { content: "And" }))
      yield* post(following, `${at}/s1/stop`)
      const events = eventsOf(yield* Effect.promise(reader.end))
      assert.strictEqual(saidIn(events), "Next")
    }))
})

describe("answers over HTTP", () => {
  it.live("an approved call runs with its edited arguments, and a denied call is answered as denied", () =>
    Effect.gen(function*() {
      const paid: Array<number> = []
      const site = yield* serve(
        [helper([pay(paid)])],
        Script.layer([
          [toolCall("c0", "pay", { amount: 1 }), toolCall("c1", "pay", { amount: 2 }), finish("tool_calls")],
          [text("Done"), finish("stop")]
        ])
      )
      yield* say(site, "s1", "Pay")
      const { body } = yield* get(site, `${at}/s1`)
      const [first, second] = body.suspensions
      assert.deepStrictEqual(first.toolCall, { id: "c0", name: "pay", arguments: { amount: 1 } })
      const answered = yield* post(site, `${at}/s1/answers`, {
        answers: [
          { id: first.id, approve: true, arguments: { amount: 5 } },
          { id: second.id, approve: false, reason: "too much" }
        ]
      })
      assert.deepStrictEqual(paid, [5])
      assert.include(answered.text, "\"content\":\"paid 5\"")
      assert.include(answered.text, "\"code\":\"denied\"")
      assert.include(answered.text, "Done")
      const again = yield* post(site, `${at}/s1/answers`, { answers: [{ id: first.id, approve: false }] })
      assert.deepStrictEqual([again.status, JSON.parse(again.text).error.code], [409, "already_answered"])
    }))

  it.live("a client can give some answers first, and the response names the remaining suspensions", () =>
    Effect.gen(function*() {
      const site = yield* serve(
        [helper([pay()])],
        Script.layer([
          [toolCall("c0", "pay", { amount: 1 }), toolCall("c1", "pay", { amount: 2 }), finish("tool_calls")],
          [text("Done"), finish("stop")]
        ])
      )
      yield* say(site, "s1", "Pay")
      const [first, second] = (yield* get(site, `${at}/s1`)).body.suspensions
      const partial = yield* Effect.promise(async () => {
        const reader = await site.open("POST", `${at}/s1/answers`, { answers: [{ id: first.id, approve: true }] })
        return eventsOf(await reader.end())
      })
      const last = partial.at(-1)
      assert.deepStrictEqual(
        last?._tag === "ChatCompleted" ? last.suspensions?.map(({ id }) => id) : undefined,
        [second.id]
      )
      const rest = yield* post(site, `${at}/s1/answers`, { answers: [{ id: second.id, approve: true }] })
      assert.include(rest.text, "Done")
    }))

  it.live("W-11: an answer to the same call id of an earlier turn is refused", () =>
    Effect.gen(function*() {
      const paid: Array<number> = []
      const asking = [toolCall("c0", "pay", { amount: 1 }), finish("tool_calls")]
      const said = [text("Done"), finish("stop")]
      const site = yield* serve([helper([pay(paid)])], Script.layer([asking, said, asking, said]))
      yield* say(site, "s1", "Pay")
      const [old] = (yield* get(site, `${at}/s1`)).body.suspensions
      yield* post(site, `${at}/s1/answers`, { answers: [{ id: old.id, approve: true }] })
      yield* say(site, "s1", "Again")
      const stale = yield* post(site, `${at}/s1/answers`, { answers: [{ id: old.id, approve: false }] })
      assert.strictEqual(stale.status, 409)
      const [now] = (yield* get(site, `${at}/s1`)).body.suspensions
      assert.notStrictEqual(now.id, old.id)
      assert.deepStrictEqual(paid, [1])
    }))
})

describe("session writes", () => {
  it.live("W-09: a write reads its session once, and appends everything that its body asks for, or nothing", () =>
    Effect.gen(function*() {
      const store = Context.get(yield* Layer.build(Session.Store.layerMemory), Session.Store)
      let done: Array<string> = []
      const watched = Layer.succeed(Session.Store, {
        ...store,
        read: (...given) => (done.push("read"), store.read(...given)),
        append: (id, expected, records, options) => {
          done.push(records.map(({ _tag }) => _tag).join())
          return store.append(id, expected, records, options)
        }
      })
      const calls = (...ids: ReadonlyArray<string>) =>
        Script.layer([
          [...ids.map((id) => toolCall(id, "pay", { amount: 1 })), finish("tool_calls")],
          [text("Done"), finish("stop")],
          [text("More"), finish("stop")]
        ])
      const site = yield* serve([helper([pay()])], calls("c0", "c1"), { store: watched, whileRunning: "follow" })
      /** Posts a body once the session is free, and returns what happens up to the first append. */
      const written = (path: string, body: unknown) =>
        Effect.gen(function*() {
          yield* until("the claim", Effect.orDie(store.claimOf("local:s1")), (claim) => claim === undefined)
          done = []
          const { status, text } = yield* post(site, path, body)
          assert.strictEqual(status, 200, text)
          return done.slice(0, done.findIndex((each) => each !== "read") + 1)
        })
      const opened = yield* written(`${at}/s1/messages`, { content: "Pay" })
      assert.deepStrictEqual(opened, ["read", "Opened,MessageSubmitted"])
      const { body } = yield* get(site, `${at}/s1`)
      const resume = body.suspensions.map(({ id }: { id: string }) => ({
        interruptId: id,
        status: "resolved",
        payload: { approved: true }
      }))
      const messages = [{ id: "m1", role: "user", content: "And then?" }]
      const all = yield* written("/agui/helper", { threadId: "s1", runId: "r1", messages, tools: [], resume })
      assert.deepStrictEqual(all, ["read", "CallSettled,CallSettled,MessageSubmitted"])
      const said = yield* written(`${at}/s1/messages`, { content: "More" })
      assert.deepStrictEqual(said, ["read", "MessageSubmitted"])
    }))

  it.live("W-11: session lists have a bound of their own, and read no journal", () =>
    Effect.gen(function*() {
      const store = Context.get(yield* Layer.build(Session.Store.layerMemory), Session.Store)
      const done: Array<readonly [string, number]> = []
      const watched = Layer.succeed(Session.Store, {
        ...store,
        read: (id, after) =>
          Stream.tap(store.read(id, after), ({ version }) => Effect.sync(() => void done.push([id, version])))
      })
      const options = { store: watched, bounds: { lists: 5, writes: 100 }, joinMillis: 0 }
      const site = yield* serve([helper(), helper([], "other")], obedient, options)
      const at = (agent: string) => `/agents/${agent}/sessions`
      for (let index = 0; index < 30; index++) {
        const agent = index % 10 === 0 ? "other" : "helper"
        yield* post(site, `${at(agent)}/s${index}/messages`, { content: "Hi" })
        yield* until("the claim", Effect.orDie(store.claimOf(`local:s${index}`)), (claim) => claim === undefined)
      }
      const read = (next: string) =>
        Effect.gen(function*() {
          done.length = 0
          const { body } = yield* get(site, `${at("helper")}?next=${next}`)
          const ids: ReadonlyArray<string> = body.sessions.map(({ id }: { readonly id: string }) => id)
          return { ids, next: body.next, journals: done.map(([id]) => id) }
        })
      const first = yield* read("")
      assert.strictEqual(first.ids.length, 20)
      const second = yield* read(first.next)
      assert.strictEqual(second.ids.length, 7)
      assert.isUndefined(second.next)
      assert.strictEqual(new Set([...first.ids, ...second.ids]).size, 27)
      for (const { journals } of [first, second]) assert.deepStrictEqual(journals, [])
      assert.deepStrictEqual(yield* read("0.s0"), { ids: [], next: undefined, journals: [] })
      for (const next of ["", ""]) yield* read(next)
      const refused = yield* get(site, at("helper"))
      assert.deepStrictEqual([refused.status, refused.body.error.code], [429, "too_many_lists"])
    }))

  it.live("W-11: a body with one invalid answer gives no answer", () =>
    Effect.gen(function*() {
      const site = yield* serve(
        [helper([pay()])],
        Script.layer([[
          toolCall("c0", "pay", { amount: 1 }),
          toolCall("c1", "pay", { amount: 2 }),
          finish("tool_calls")
        ]])
      )
      yield* say(site, "s1", "Pay")
      const { body } = yield* get(site, `${at}/s1`)
      const [first, second] = body.suspensions
      const answers = [{ id: first.id, approve: true }, { id: second.id, value: 1 }]
      const refused = yield* post(site, `${at}/s1/answers`, { answers })
      assert.strictEqual(refused.status, 409, refused.text)
      assert.deepStrictEqual((yield* get(site, `${at}/s1`)).body.suspensions, body.suspensions)
    }))
})

describe("runs of clients that leave", () => {
  it.live("W-05: a client that leaves does not stop its run, and the session is complete", () =>
    Effect.gen(function*() {
      const { began, ended, tool } = endless()
      const gate = Deferred.makeUnsafe<void>()
      const waiting = Tool.make("wait", {
        parameters: {},
        handler: () => Effect.as(Effect.andThen(Deferred.succeed(began, undefined), Deferred.await(gate)), "waited")
      })
      const site = yield* serve(
        [helper([tool, waiting])],
        Script.layer([
          [toolCall("c0", "wait"), finish("tool_calls")],
          [text("Done"), finish("stop")]
        ])
      )
      const reader = yield* Effect.promise(() => site.open("POST", `${at}/s1/messages`, { content: "Go" }))
      yield* Deferred.await(began)
      reader.leave()
      const follower = yield* Effect.promise(() => site.open("GET", `${at}/s1/events`))
      yield* Deferred.succeed(gate, undefined)
      const events = eventsOf(yield* Effect.promise(() => follower.until(({ data }) => data._tag === "ChatCompleted")))
      follower.leave()
      assert.strictEqual(saidIn(events), "Done")
      assert.strictEqual((yield* get(site, `${at}/s1`)).body.status, "completed")
      assert.isFalse(yield* Deferred.isDone(ended))
    }))

  it.live("W-05: in attached mode a client that leaves stops its run", () =>
    Effect.gen(function*() {
      const { began, ended, tool } = endless()
      const site = yield* serve(
        [helper([tool])],
        Script.layer([[toolCall("c0", "endless"), finish("tool_calls")]]),
        { mode: "attached" }
      )
      const reader = yield* Effect.promise(() => site.open("POST", `${at}/s1/messages`, { content: "Go" }))
      yield* Deferred.await(began)
      reader.leave()
      yield* Deferred.await(ended)
    }))

  it.live("W-06: a stop from another connection ends the run and reports its calls", () =>
    Effect.gen(function*() {
      const { began, ended, tool } = endless()
      const site = yield* serve([helper([tool])], Script.layer([[toolCall("c0", "endless"), finish("tool_calls")]]))
      const reader = yield* Effect.promise(() => site.open("POST", `${at}/s1/messages`, { content: "Go" }))
      yield* Deferred.await(began)
      const stopper = yield* Effect.promise(() => site.open("POST", `${at}/s1/stop`))
      const reports = yield* Effect.promise(stopper.end)
      assert.deepStrictEqual(reports.map(({ event }) => event), ["accepted", "ended"])
      assert.deepStrictEqual(reports[1]?.data.stopped, ["c0"])
      assert.isTrue(yield* Deferred.isDone(ended))
      const events = eventsOf(yield* Effect.promise(reader.end))
      const last = events.at(-1)
      assert.strictEqual(last?._tag === "ChatCompleted" ? last.outcome._tag : undefined, "Cancelled")
    }))
})

describe("failed runs", () => {
  it.live("a run refused by its model ends with a code and one sentence, and resume tries it again", () =>
    Effect.gen(function*() {
      const refused = () => Script.preflightError("authentication_failed")
      const model = Script.layer([[refused()], [text("Hello"), finish("stop")]])
      const site = yield* serve([helper()], model)
      const events = yield* say(site, "s1", "Hi")
      const last = events.at(-1)
      assert.deepStrictEqual(
        last?._tag === "ChatCompleted" ? [last.outcome._tag, last.outcome.error?.code] : [],
        ["Failed", "authentication_failed"]
      )
      assert.strictEqual((yield* get(site, `${at}/s1`)).body.status, "error")
      const again = yield* post(site, `${at}/s1/resume`)
      assert.include(again.text, "Hello")
      assert.strictEqual((yield* get(site, `${at}/s1`)).body.status, "completed")
      const nothing = yield* post(site, `${at}/s1/resume`)
      assert.deepStrictEqual([nothing.status, JSON.parse(nothing.text).error.code], [409, "nothing_to_retry"])
    }))

  it.live("N-10: the server begins a run again on its own only after a transient error", () =>
    Effect.gen(function*() {
      const mayPass = [
        "rate_limited",
        "provider_unavailable",
        "timeout",
        "network_error",
        "malformed_response",
        "unknown"
      ]
      const site = yield* serve(
        [helper()],
        Adapter.layer({
          stream: ({ messages }) => {
            asked++
            return Stream.fail(new Adapter.AdapterError({ reason: Message.text(messages.at(-1)!) as "unknown" }))
          }
        }),
        { bounds: { writes: 1_000 }, poll: "10 millis" }
      )
      let asked = 0
      for (const [index, reason] of Adapter.AdapterError.fields.reason.literals.entries()) {
        asked = 0
        const events = yield* say(site, `s${index}`, reason)
        const attempts = mayPass.includes(reason) ? 2 : 1
        assert.strictEqual(asked, attempts, reason)
        assert.strictEqual(events.filter(({ _tag }) => _tag === "ChatCompleted").length, 1, reason)
        const { body } = yield* get(site, `${at}/s${index}`)
        assert.deepStrictEqual([body.status, body.next], ["error", "nothing"], reason)
      }
    }))

  it.live("a reply that breaks ends the run as failed, with an error chunk for the AI SDK", () =>
    Effect.gen(function*() {
      const site = yield* serve([helper()], Script.layer([[text("Hel"), Script.streamError("network_error")]]))
      const message = { id: "u1", role: "user", parts: [{ type: "text", text: "Hi" }] }
      const { status, text: body } = yield* post(site, at, { id: "s1", trigger: "submit-message", messages: [message] })
      assert.strictEqual(status, 200)
      assert.match(body, /"type":"error","errorText":"The connection to the model was lost/)
    }))
})

describe("offsets of events", () => {
  const replies = () => Script.layer([[text("One"), finish("stop")], [text("Two"), finish("stop")]])

  it.live("a reader continues at its offset, and a stale offset gets a reset and the whole run", () =>
    Effect.gen(function*() {
      const site = yield* serve([helper()], replies(), { joinMillis: 0 })
      const first = yield* Effect.promise(() => site.open("GET", `${at}/s1/events`))
      assert.strictEqual(first.status, 404)
      yield* say(site, "s1", "Hi")
      const reader = yield* Effect.promise(() => site.open("GET", `${at}/s1/events`))
      const writer = yield* Effect.promise(() => site.open("POST", `${at}/s1/messages`, { content: "Go on" }))
      const sent = yield* Effect.promise(() => reader.until(({ data }) => data._tag === "ChatCompleted"))
      reader.leave()
      yield* Effect.promise(writer.end)
      assert.strictEqual(saidIn(eventsOf(sent)), "Two")
      const middle = sent.find(({ data }) => data._tag === "TextDelta")!.id!
      const again = yield* Effect.promise(() => site.open("GET", `${at}/s1/events?after=${middle}`))
      const reset = yield* Effect.promise(() => again.until(({ data }) => data._tag === "ChatCompleted"))
      again.leave()
      assert.strictEqual(reset[0]?.event, "reset")
      assert.strictEqual(reset[0]?.data.runId, middle.split(".")[0])
      assert.deepStrictEqual(
        eventsOf(reset).map(({ _tag }) => _tag),
        [
          "RunStarted",
          "RequestStarted",
          "MessageStarted",
          "TextCompleted",
          "MessageCompleted",
          "StepCompleted",
          "ChatCompleted"
        ]
      )
      const header = yield* Effect.promise(() =>
        site.open("GET", `${at}/s1/events`, undefined, { "last-event-id": middle })
      )
      assert.strictEqual((yield* Effect.promise(() => header.until(() => true)))[0]?.event, "reset")
      header.leave()
      for (const bad of ["nonsense", "elsewhere.1.0", "..", "a.b.c"]) {
        assert.strictEqual((yield* get(site, `${at}/s1/events?after=${bad}`)).status, 400, bad)
      }
    }))

  it.live("W-09: a reader that does not read neither slows the run nor loses events", () =>
    Effect.gen(function*() {
      const words = Array.from({ length: 2_000 }, (_, index) => `${index} ${"x".repeat(500)} `)
      const gate = Deferred.makeUnsafe<void>()
      const model = Adapter.layer({
        stream: () =>
          Stream.concat(
            Stream.fromEffect(Effect.as(Deferred.await(gate), {
              _tag: "MessageStarted" as const,
              message: Message.assistant("")
            })),
            Stream.concat(
              Stream.map(Stream.fromIterable(words), (delta) => ({ _tag: "TextDelta" as const, id: null, delta })),
              Stream.succeed({
                _tag: "MessageCompleted" as const,
                message: Message.assistant(words.join("")),
                finishReason: "stop" as const,
                metadata: {}
              })
            )
          )
      })
      const site = yield* serve([helper()], model, { bounds: { streams: 200 } })
      yield* post(site, `${at}/s1/messages?wait=false`, { content: "Go" })
      const readers = yield* Effect.promise(() =>
        Promise.all(Array.from({ length: 5 }, () => site.open("GET", `${at}/s1/events`)))
      )
      const deaf = yield* Effect.promise(() => site.open("GET", `${at}/s1/events`))
      yield* Deferred.succeed(gate, undefined)
      for (const reader of readers) {
        const events = eventsOf(
          yield* Effect.promise(() => reader.until(({ data }) => data._tag === "ChatCompleted"))
        )
        assert.strictEqual(saidIn(events), words.join(""))
        reader.leave()
      }
      assert.strictEqual((yield* get(site, `${at}/s1`)).body.status, "completed")
      const late = eventsOf(yield* Effect.promise(() => deaf.until(({ data }) => data._tag === "ChatCompleted")))
      deaf.leave()
      assert.strictEqual(saidIn(late), words.join(""))
    }))

  it.live("a log that is too large is dropped: its readers get a reset, and the run from the journal", () =>
    Effect.gen(function*() {
      const big = "x".repeat(5_000)
      const site = yield* serve([helper()], Script.layer([[text(big), text(big), finish("stop")]]), {
        bounds: { log: 1_000 },
        joinMillis: 0
      })
      const reader = yield* Effect.promise(() => site.open("POST", `${at}/s1/messages`, { content: "Go" }))
      const sent = yield* Effect.promise(reader.end)
      const from = sent.findIndex(({ event }) => event === "reset")
      const events = eventsOf(sent.slice(from))
      assert.isAtLeast(from, 0)
      const whole = events.find((event) => event._tag === "TextCompleted")
      assert.strictEqual(whole?._tag === "TextCompleted" ? whole.text : "", big + big)
      assert.strictEqual(events.at(-1)?._tag, "ChatCompleted")
    }))
})

describe("servers under load", () => {
  it.live("W-08: 50 concurrent sessions of 150 deltas each lose no delta and repeat no delta", () =>
    Effect.gen(function*() {
      const words = Array.from({ length: 150 }, (_, index) => `${index},`)
      const model = Adapter.layer({
        stream: () =>
          Stream.fromIterable([
            { _tag: "MessageStarted" as const, message: Message.assistant("") },
            ...words.map((delta) => ({ _tag: "TextDelta" as const, id: null, delta })),
            {
              _tag: "MessageCompleted" as const,
              message: Message.assistant(words.join("")),
              finishReason: "stop" as const,
              metadata: {}
            }
          ]).pipe(Stream.rechunk(1), Stream.tap(() => Effect.yieldNow))
      })
      const bounds = { runs: 100, streams: 100, writes: 100 }
      const site = yield* serve([helper()], model, { bounds, joinMillis: 0 })
      const said = yield* Effect.forEach(
        Array.from({ length: 50 }, (_, index) => `s${index}`),
        (id) => Effect.map(say(site, id, "Go"), saidIn),
        { concurrency: "unbounded" }
      )
      assert.deepStrictEqual(new Set(said), new Set([words.join("")]))
    }))

  it.live("W-10: 10 MB of arguments and results arrive uncut, and the server accepts the message that posts them back", () =>
    Effect.gen(function*() {
      const big = "x".repeat(5_000_000)
      const echo = Tool.make("echo", {
        parameters: { text: Schema.String },
        maxResultChars: Infinity,
        handler: ({ text }) => Effect.succeed(text)
      })
      const site = yield* serve(
        [helper([echo])],
        Script.layer([
          [toolCall("c0", "echo", { text: big }), finish("tool_calls")],
          [text("Done"), finish("stop")],
          [text("Again"), finish("stop")]
        ])
      )
      const asked = { id: "u1", role: "user", parts: [{ type: "text", text: "Go" }] }
      const response = yield* Effect.promise(() =>
        site.open("POST", at, { id: "s1", trigger: "submit-message", messages: [asked] })
      )
      const chunks = (yield* Effect.promise(response.end)).map(({ data }) => data)
      const input = chunks.find(({ type }) => type === "tool-input-available")
      const output = chunks.find(({ type }) => type === "tool-output-available")
      assert.deepStrictEqual([input.input.text.length, output.output.length], [big.length, big.length])
      const { body } = yield* get(site, `${at}/s1`)
      const next = { id: "u2", role: "user", parts: [{ type: "text", text: "More" }] }
      const again = yield* post(site, at, {
        id: "s1",
        trigger: "submit-message",
        messages: [asked, ...body.messages.slice(1), next]
      })
      assert.strictEqual(again.status, 200)
      assert.include(again.text, "Again")
    }))
})

describe("servers over one store", () => {
  it.live("W-06, W-07: another server over the same store reads, stops and continues a run", () =>
    Effect.gen(function*() {
      const store = Layer.succeedContext(yield* Layer.build(Session.Store.layerMemory))
      const { began, tool } = endless()
      const script = () => Script.layer([[toolCall("c0", "endless"), finish("tool_calls")]])
      const here = yield* serve([helper([tool])], script(), { store })
      const there = yield* serve([helper([tool])], Script.layer([[text("After"), finish("stop")]]), { store })
      yield* post(here, `${at}/s1/messages?wait=false`, { content: "Go" })
      yield* Deferred.await(began)
      const reader = yield* Effect.promise(() => there.open("GET", `${at}/s1/events`))
      yield* Effect.promise(() => reader.until(({ data }) => data._tag === "ToolExecutionStarted"))
      const stopper = yield* Effect.promise(() => there.open("POST", `${at}/s1/stop`))
      const reports = yield* Effect.promise(stopper.end)
      assert.deepStrictEqual(reports.at(-1)?.data.stopped, ["c0"])
      const events = eventsOf(yield* Effect.promise(() => reader.until(({ data }) => data._tag === "ChatCompleted")))
      const last = events.at(-1)
      assert.strictEqual(last?._tag === "ChatCompleted" ? last.outcome._tag : "", "Cancelled")
      assert.strictEqual(saidIn(yield* say(there, "s1", "And now?")), "After")
      const followed = eventsOf(
        yield* Effect.promise(() =>
          reader.until(({ data }) => data._tag === "TextDelta" || data._tag === "TextCompleted")
        )
      )
      assert.isTrue(followed.some((event) => event._tag === "TextDelta" && event.delta === "After"))
      reader.leave()
    }))
})
