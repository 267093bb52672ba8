/** Messages into a running run over HTTP: where they go, their outcome, and how one is taken back. */
import { assert, describe, it } from "@effect/vitest"
import { readUIMessageStream, type UIMessage } from "ai"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { type Adapter, Journal, Session, Tool } from "heddle"
import { Agent, type Server } from "heddle/server"
import { Script } from "heddle/testing"
import * as JournalEvents from "../../src/server/internal/journalEvents.ts"
import { asking, eventsOf, serve } from "./support/site.ts"

const at = "/agents/helper/sessions"

const asks = [Script.toolCall("c", "wait"), Script.finish("tool_calls")]
const answer = (text: string) => [Script.text(text), Script.finish("stop")]

/** A message of a chat, as the server shows it. */
interface Shown {
  readonly role: string
  readonly parts: ReadonlyArray<{
    readonly type: string
    readonly text?: string
    readonly parts?: ReadonlyArray<{ readonly text?: string }>
  }>
}

/** A server whose tool waits until it is let go, with a run under way in session `s1`. */
const running = (
  options: Partial<Server.Options<never>> = {},
  model: Layer.Layer<Adapter.Adapter> = Script.layer([asks, answer("done"), answer("next")])
) =>
  Effect.gen(function*() {
    const gate = yield* Deferred.make<void>()
    const wait = Tool.make("wait", { parameters: {}, handler: () => Effect.as(Deferred.await(gate), "waited") })
    const helper = Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools: [wait] }) })
    const site = yield* serve([helper], model, { joinMillis: 0, ...options })
    const ask = asking(site)
    const reader = yield* Effect.promise(() => site.open("POST", `${at}/s1/messages`, { content: "go" }))
    yield* Effect.promise(() => reader.until(({ data }) => data._tag === "ToolExecutionStarted"))
    const end = Effect.andThen(
      Deferred.succeed(gate, undefined),
      Effect.map(Effect.promise(() => reader.end()), eventsOf)
    )
    const fate = (id: string) =>
      Effect.map(ask("GET", `${at}/s1/messages/${encodeURIComponent(id)}`), ({ body }) => body)
    const texts = Effect.map(ask("GET", `${at}/s1`), ({ body }) =>
      // A message into a run is a part of the reply.
      (body.messages as ReadonlyArray<Shown>).flatMap(({ parts, role }) =>
        role === "user" ?
          parts.map(({ text }) => text) :
          parts.flatMap(({ parts = [], type }) => type === "steering-message" ? parts.map(({ text }) => text) : [])
      ))
    return { site, ask, end, fate, texts }
  })

describe("a message into a running run, over HTTP", () => {
  it.live("G45: a steer is delivered once, readers see the delivery, and its sender can ask for its outcome", () =>
    Effect.gen(function*() {
      const { ask, end, fate, texts } = yield* running()
      const sent = yield* ask("POST", `${at}/s1/messages?wait=false`, { content: "not that", id: "m/1", mode: "steer" })
      assert.deepStrictEqual(sent, { status: 202, body: { id: "m/1" } })
      assert.deepStrictEqual(yield* fate("m/1"), { id: "m/1", became: "queued" })
      const events = yield* end
      const delivered = events.filter(({ _tag }) => _tag === "MessageDelivered")
      assert.lengthOf(delivered, 1)
      const { runId } = yield* fate("m/1")
      assert.deepStrictEqual(yield* fate("m/1"), { id: "m/1", became: "delivered", runId, stepIndex: 1 })
      assert.isString(runId)
      assert.deepStrictEqual(yield* texts, ["go", "not that"])
    }).pipe(Effect.scoped))

  it.live("G45: the sender of a steer reads the active run to its end", () =>
    Effect.gen(function*() {
      const { end, site } = yield* running()
      const reader = yield* Effect.promise(() =>
        site.open("POST", `${at}/s1/messages`, { content: "not that", id: "m1", mode: "steer" })
      )
      assert.strictEqual(reader.status, 200)
      const whole = yield* end
      const seen = eventsOf(yield* Effect.promise(() => reader.end()))
      const runsOf = (events: typeof whole) =>
        events.flatMap((event) => event._tag === "RunStarted" ? [event.runId] : [])
      assert.lengthOf(runsOf(seen), 1)
      assert.deepStrictEqual(runsOf(seen), runsOf(whole))
      assert.lengthOf(seen.filter(({ _tag }) => _tag === "MessageDelivered"), 1)
      assert.strictEqual(seen.at(-1)?._tag, "ChatCompleted")
    }).pipe(Effect.scoped))

  it.live("G49: a withdrawn message is in no request, and is withdrawn once", () =>
    Effect.gen(function*() {
      const { ask, end, fate, texts } = yield* running()
      yield* ask("POST", `${at}/s1/messages?wait=false`, { content: "not that", id: "m1", mode: "follow" })
      const first = yield* ask("DELETE", `${at}/s1/messages/m1`)
      assert.deepStrictEqual(first, { status: 200, body: { withdrawn: true, id: "m1", became: "withdrawn" } })
      const second = yield* ask("DELETE", `${at}/s1/messages/m1`)
      assert.deepStrictEqual(second.body, { withdrawn: false, id: "m1", became: "withdrawn" })
      yield* end
      assert.deepStrictEqual(yield* texts, ["go"])
      assert.propertyVal(yield* fate("m1"), "became", "withdrawn")
    }).pipe(Effect.scoped))

  it.live("a message with mode next waits for its own run, although the server refuses other messages", () =>
    Effect.gen(function*() {
      const { ask, end, site, texts } = yield* running()
      const refused = yield* ask("POST", `${at}/s1/messages?wait=false`, { content: "and this" })
      assert.deepStrictEqual([refused.status, refused.body.error.code], [409, "running"])
      const next = yield* Effect.promise(() =>
        site.open("POST", `${at}/s1/messages`, { content: "and this", id: "m1", mode: "next" })
      )
      yield* end
      const events = eventsOf(yield* Effect.promise(() => next.end()))
      assert.deepStrictEqual(events.flatMap((event) => event._tag === "TextCompleted" ? [event.text] : []), ["next"])
      assert.deepStrictEqual(yield* texts, ["go", "and this"])
    }).pipe(Effect.scoped))

  it.live("G95: a repeated message under a used id is accepted, and a different message is refused", () =>
    Effect.gen(function*() {
      const { ask, end, texts } = yield* running()
      const body = { content: "not that", id: "m1", mode: "steer" }
      yield* ask("POST", `${at}/s1/messages?wait=false`, body)
      assert.strictEqual((yield* ask("POST", `${at}/s1/messages?wait=false`, body)).status, 202)
      const other = yield* ask("POST", `${at}/s1/messages?wait=false`, { ...body, content: "that" })
      assert.deepStrictEqual([other.status, other.body.error.code], [409, "id_taken"])
      yield* end
      assert.deepStrictEqual(yield* texts, ["go", "not that"])
      assert.strictEqual((yield* ask("POST", `${at}/s1/messages?wait=false`, body)).status, 202)
    }).pipe(Effect.scoped))

  it.live("a message that no active run can take is refused with the reason if its sender asks for a refusal", () =>
    Effect.gen(function*() {
      const { ask, end, fate, texts } = yield* running()
      yield* end
      const body = { content: "not that", id: "m1", mode: "steer", otherwise: "refuse" }
      const late = yield* ask("POST", `${at}/s1/messages`, body)
      assert.deepStrictEqual([late.status, late.body.error.code], [409, "refused"])
      assert.include(late.body.error.message, "finished")
      assert.deepStrictEqual(yield* fate("m1"), { id: "m1", became: "refused", reason: "finished" })
      assert.deepStrictEqual(yield* texts, ["go"])
    }).pipe(Effect.scoped))

  it.live("a waiting message whose sender asks for a refusal is refused before its run ends, live and from the journal", () =>
    Effect.gen(function*() {
      const store = Context.get(yield* Layer.build(Session.Store.layerMemory), Session.Store)
      const { ask, end } = yield* running({ store: Layer.succeed(Session.Store, store) } as object)
      const sent = [
        { content: "not that", id: "m1", mode: "steer", otherwise: "refuse" },
        { content: "and then?", id: "m2", mode: "follow", otherwise: "refuse" },
        { content: "later", id: "m3", mode: "steer" }
      ]
      for (const body of sent) yield* ask("POST", `${at}/s1/messages?wait=false`, body)
      yield* ask("DELETE", `${at}/s1/messages/m2`)
      yield* ask("POST", `${at}/s1/stop?wait=false`, {})
      const live = yield* end
      const entries = yield* Stream.runCollect(store.read("local:s1"))
      const telling = new JournalEvents.Telling("local:s1", {})
      const told = entries.flatMap((entry) => telling.take(entry).map(({ event }) => event))
      for (const events of [live, told]) {
        const first = events.findIndex(({ _tag }) => _tag === "ChatCompleted")
        const refused = events.slice(0, first).filter(({ _tag }) => _tag === "MessageRefused")
        assert.deepStrictEqual(refused.map((event) => ({ ...event, at: 0 })), [
          { _tag: "MessageRefused", id: "m1", content: "not that", reason: "stopped", at: 0 }
        ])
      }
    }).pipe(Effect.scoped))

  it.live("a body with a wrong place, and an unknown message, are refused with the field's name", () =>
    Effect.gen(function*() {
      const { ask, end } = yield* running()
      const bodies = [
        [{ content: "x", mode: "later" }, `mode: must be "next", "steer" or "follow"`],
        [{ content: "x", mode: "steer", otherwise: "drop" }, `otherwise: must be "next" or "refuse"`],
        [{ content: "x", otherwise: "refuse" }, "otherwise: must be left out"],
        [{ answers: [{ id: "c", value: 1 }], mode: "steer" }, "mode: must be left out with answers"]
      ] as const
      for (const [body, message] of bodies) {
        const refused = yield* ask("POST", `${at}/s1/messages?wait=false`, body)
        assert.strictEqual(refused.status, 400, message)
        assert.include(refused.body.error.message, message)
      }
      for (const method of ["GET", "DELETE"]) {
        for (const id of ["none", "__proto__", "%2F..%2Fs2"]) {
          const unknown = yield* ask(method, `${at}/s1/messages/${id}`)
          assert.deepStrictEqual([unknown.status, unknown.body.error.code], [404, "unknown_message"], `${method} ${id}`)
        }
        assert.strictEqual((yield* ask(method, `${at}/s2/messages/m1`)).status, 404)
      }
      yield* end
    }).pipe(Effect.scoped))

  it.live("a message for an active run only creates no session, and an id that fits no address is refused", () =>
    Effect.gen(function*() {
      const { ask, end } = yield* running()
      for (const place of [{ mode: "steer", otherwise: "refuse" }, { mode: "follow", to: "c" }]) {
        const refused = yield* ask("POST", `${at}/s2/messages?wait=false`, { content: "x", id: "m1", ...place })
        assert.deepStrictEqual([refused.status, refused.body.error?.code], [409, "refused"])
      }
      assert.strictEqual((yield* ask("GET", `${at}/s2`)).status, 404)
      for (const id of [".", "..", "\ud800"]) {
        const refused = yield* ask("POST", `${at}/s1/messages?wait=false`, { content: "x", id, mode: "steer" })
        assert.deepStrictEqual([refused.status, refused.body.error?.code], [400, "invalid_body"], JSON.stringify(id))
        assert.include(refused.body.error.message, "id: must be usable in an address")
      }
      yield* end
    }).pipe(Effect.scoped))

  it.live("R-593: a stop and an answer are not messages: no message is found or withdrawn under their ids", () =>
    Effect.gen(function*() {
      const { ask, end } = yield* running()
      const stopped = yield* ask("POST", `${at}/s1/stop?wait=false`)
      assert.strictEqual(stopped.status, 202)
      assert.isString(stopped.body.id)
      for (const time of ["under way", "ended"]) {
        for (const method of ["GET", "DELETE"]) {
          const found = yield* ask(method, `${at}/s1/messages/${encodeURIComponent(stopped.body.id)}`)
          assert.deepStrictEqual([found.status, found.body.error?.code], [404, "unknown_message"], `${method} ${time}`)
        }
        yield* end
      }
    }).pipe(Effect.scoped))

  it.live("with whileRunning steer, a server gives messages without a place to the active run", () =>
    Effect.gen(function*() {
      const { ask, end, fate, texts } = yield* running({ whileRunning: "steer" })
      assert.strictEqual(
        (yield* ask("POST", `${at}/s1/messages?wait=false`, { content: "not that", id: "m1" })).status,
        202
      )
      yield* end
      assert.propertyVal(yield* fate("m1"), "became", "delivered")
      assert.deepStrictEqual(yield* texts, ["go", "not that"])
    }).pipe(Effect.scoped))

  it.live("a page whose message begins a run reads that run, also if the message is repeated", () =>
    Effect.gen(function*() {
      const { end, site, texts } = yield* running({ whileRunning: "steer" })
      yield* end
      const message = { id: "m1", role: "user", parts: [{ type: "text", text: "and now" }] }
      for (const time of ["first", "second"]) {
        const page = yield* Effect.promise(() =>
          site.ask("POST", at, { id: "s1", messages: [message], trigger: "submit-message" })
        )
        assert.strictEqual(page.status, 200, time)
        assert.include(page.text, `"delta":"next"`, time)
      }
      assert.deepStrictEqual(yield* texts, ["go", "and now"])
    }).pipe(Effect.scoped))

  it.live("a page that posts while it reads has the words in its only reply, and no second reply", () =>
    Effect.gen(function*() {
      const { end, site, texts } = yield* running({ whileRunning: "steer" })
      const message = { id: "m1", role: "user", parts: [{ type: "text", text: "not that" }] }
      const page = yield* Effect.promise(() =>
        site.ask("POST", at, { id: "s1", messages: [message], trigger: "submit-message" })
      )
      assert.deepStrictEqual([page.status, page.text], [200, "data: [DONE]\n\n"])
      const agent = yield* Effect.promise(() =>
        site.ask("POST", "/agui/helper", {
          threadId: "s1",
          runId: "r9",
          messages: [{ id: "m2", role: "user", content: "nor that" }],
          tools: [],
          context: [],
          state: {},
          forwardedProps: {}
        })
      )
      const types = agent.text.trim().split("\n\n").map((line) => JSON.parse(line.slice("data: ".length)).type)
      assert.deepStrictEqual([agent.status, types], [200, ["RUN_STARTED", "RUN_FINISHED"]])
      const events = yield* end
      assert.lengthOf(events.filter(({ _tag }) => _tag === "MessageDelivered"), 2)
      assert.deepStrictEqual(yield* texts, ["go", "not that", "nor that"])
    }).pipe(Effect.scoped))
})

/** The message that a page of the AI SDK has of a stream, without what only lives, such as the states of texts. */
const pageOf = async (text: string) => {
  const chunks = text.split("\n\n").flatMap((piece) => piece.startsWith("data: {") ? [JSON.parse(piece.slice(6))] : [])
  let last: UIMessage | undefined
  const stream = new ReadableStream({
    start: (controller) => {
      for (const chunk of chunks) controller.enqueue(chunk)
      controller.close()
    }
  })
  for await (const message of readUIMessageStream({ stream, terminateOnError: true })) last = message
  return last === undefined ? undefined : { id: last.id, parts: last.parts.map(partOf) }
}

const partOf = ({ id, parts, text, toolCallId, type }: any) =>
  JSON.parse(JSON.stringify({ id, parts, text, toolCallId, type }))

describe("R-594: a loaded page has a message into a run within its one reply, like a page that saw the run live", () => {
  it.live("a loaded page shows the message within the reply during the run and after its end", () =>
    Effect.gen(function*() {
      const gates = [yield* Deferred.make<void>(), yield* Deferred.make<void>()]
      const began = [yield* Deferred.make<void>(), yield* Deferred.make<void>()]
      let calls = 0
      const wait = Tool.make("wait", {
        parameters: {},
        handler: () =>
          Effect.suspend(() => {
            const call = calls++
            return Effect.as(
              Effect.andThen(Deferred.succeed(began[call]!, undefined), Deferred.await(gates[call]!)),
              "ok"
            )
          })
      })
      const helper = Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools: [wait] }) })
      const second = [Script.text("I see."), Script.toolCall("d", "wait"), Script.finish("tool_calls")]
      const site = yield* serve([helper], Script.layer([asks, second, answer("done")]), { joinMillis: 0 })
      const said = { id: "m0", role: "user", parts: [{ type: "text", text: "go" }] }
      const page = fetch(`${site.url}${at}`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ id: "s1", trigger: "submit-message", messages: [said] })
      }).then((response) => response.text())
      yield* Deferred.await(began[0]!)
      const steer = { content: "not that", id: "m1", mode: "steer" }
      yield* Effect.promise(() => site.ask("POST", `${at}/s1/messages?wait=false`, steer))
      yield* Deferred.succeed(gates[0]!, undefined)
      yield* Deferred.await(began[1]!)
      const loaded = Effect.map(
        Effect.promise(() => site.ask("GET", `${at}/s1`)),
        ({ text }) => JSON.parse(text)
      )
      const underWay = yield* loaded
      const resumed = yield* Effect.promise(() => fetch(`${site.url}${at}/s1/stream`))
      yield* Deferred.succeed(gates[1]!, undefined)
      const live = yield* Effect.promise(async () => pageOf(await page))
      assert.deepStrictEqual(live?.parts.map(({ type }: { readonly type: string }) => type), [
        "step-start",
        "dynamic-tool",
        "steering-message",
        "step-start",
        "text",
        "dynamic-tool",
        "step-start",
        "text"
      ])
      assert.deepStrictEqual(underWay.messages.map(({ id }: { readonly id: string }) => id), ["m0"])
      assert.strictEqual(underWay.open.id, live?.id)
      assert.deepStrictEqual(underWay.open.parts.map(partOf), live?.parts.slice(0, 3))
      assert.deepStrictEqual(yield* Effect.promise(async () => pageOf(await resumed.text())), live)
      const { messages } = yield* loaded
      assert.deepStrictEqual(messages.map(({ id }: { readonly id: string }) => id), ["m0", live?.id])
      assert.deepStrictEqual(messages[1].parts.map(partOf), live?.parts)
    }).pipe(Effect.scoped))
})

describe("R-592: the sender of a message reads the run that takes the message, whichever run that is", () => {
  /** Two servers over one store. The first of them is about to begin a run with the message `m0`, once it is let go. */
  const beginning = Effect.gen(function*() {
    const options = yield* Deferred.make<void>()
    const tool = yield* Deferred.make<void>()
    const wait = Tool.make("wait", { parameters: {}, handler: () => Effect.as(Deferred.await(tool), "waited") })
    const asked = yield* Deferred.make<void>()
    const run = () =>
      Effect.as(Effect.andThen(Deferred.succeed(asked, undefined), Deferred.await(options)), { tools: [wait] })
    const helper = Agent.make({ name: "helper", description: "Helps", run })
    const store = Layer.succeed(Session.Store, yield* Effect.provide(Session.Store, Session.Store.layerMemory))
    const serving = (name: string) =>
      Effect.provideService(
        serve([helper], Script.layer([asks, answer("done"), answer("next")]), { joinMillis: 0, store }),
        Journal.CurrentProcess,
        name
      )
    const first = yield* serving("first")
    yield* Effect.promise(() => first.ask("POST", `${at}/s1/messages?wait=false`, { content: "go", id: "m0" }))
    yield* Deferred.await(asked)
    const second = yield* serving("second")
    return { first, second, begin: Deferred.succeed(options, undefined), go: Deferred.succeed(tool, undefined) }
  })

  for (const where of ["first", "second"] as const) {
    it.live(`G45: a steer sent to the ${where} of two processes before an earlier message's run begins is read in that run`, () =>
      Effect.gen(function*() {
        const servers = yield* beginning
        const steer = { content: "not that", id: "m1", mode: "steer" }
        const reader = yield* Effect.promise(() => servers[where].open("POST", `${at}/s1/messages`, steer))
        assert.strictEqual(reader.status, 200)
        const other = yield* Effect.promise(() => servers.first.open("GET", `${at}/s1/events`))
        yield* servers.begin
        yield* Effect.promise(() => other.until(({ data }) => data._tag === "ToolExecutionStarted"))
        yield* servers.go
        const events = eventsOf(yield* Effect.promise(reader.end))
        assert.lengthOf(events.filter(({ _tag }) => _tag === "RunStarted"), 1)
        assert.deepStrictEqual(events.flatMap((event) => event._tag === "MessageDelivered" ? [event.id] : []), ["m1"])
        assert.strictEqual(events.at(-1)?._tag, "ChatCompleted")
        other.leave()
      }).pipe(Effect.scoped))
  }

  it.live("a withdrawn message ends its sender's stream", () =>
    Effect.gen(function*() {
      const { ask, end, site } = yield* running()
      const reader = yield* Effect.promise(() =>
        site.open("POST", `${at}/s1/messages`, { content: "and this", id: "m1", mode: "next" })
      )
      assert.isTrue((yield* ask("DELETE", `${at}/s1/messages/m1`)).body.withdrawn)
      yield* end
      const events = eventsOf(yield* Effect.promise(reader.end))
      assert.deepStrictEqual(events.map(({ _tag }) => _tag), ["ChatCompleted"])
    }).pipe(Effect.scoped))
})
