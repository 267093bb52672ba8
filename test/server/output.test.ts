/** Typed answers of a server's agents: what clients of each wire see of one, at once, late, and in the next process. */
import { HttpAgent } from "@ag-ui/client"
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as TestRunner from "effect/cluster/TestRunner"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { type Event, Output, Session } from "heddle"
import { Cluster, SessionClient } from "heddle/cluster"
import { Worker } from "heddle/durable"
import { Agent } from "heddle/server"
import { Script } from "heddle/testing"
import * as Bounds from "../../src/server/internal/bounds.ts"
import * as Logs from "../../src/server/internal/log.ts"
import { find } from "../support/until.ts"
import { chatWith, protocols, settled } from "../ui/support/page.ts"
import { answering, type By } from "./support/answering.ts"
import { eventsOf, serve } from "./support/site.ts"

const at = "/agents/clerk/sessions"

/** The encoded form differs from the value, and what comes on the wire differs from both. */
const Orders = Schema.Array(Schema.Struct({ title: Schema.String, count: Schema.FiniteFromString }))
const output = Output.make(Orders)
const clerk = Agent.make({ name: "clerk", description: "Reads orders", run: () => Effect.succeed({ output }) })

const pieces = ["{\"value\":[{\"title\":\"Em", "ma\",\"count\":\"2", "\"}]}"]
const half = [{ title: "Em" }]
const whole = [{ title: "Emma", count: "2" }]

const bys: ReadonlyArray<By> = ["text", "call"]

type Seen = readonly [value: unknown, isWhole: boolean]

const ofEvents = (events: ReadonlyArray<Event.PublicEvent>): ReadonlyArray<Seen> =>
  events.flatMap((event): ReadonlyArray<Seen> =>
    event._tag === "OutputPartial" || event._tag === "OutputCompleted"
      ? [[event.value, event._tag === "OutputCompleted"]]
      : []
  )

const ofParts = (messages: ReadonlyArray<any>): ReadonlyArray<Seen> =>
  messages.flatMap(({ parts }) =>
    parts.flatMap(({ data, type }: any) => type === "data-heddle-output" ? [[data.value, data.isWhole]] : [])
  )

const hasPart = ({ data }: { readonly data: any }) =>
  data._tag === "OutputPartial" || data.type === "data-heddle-output" || data.name === "heddle.output"

describe("the typed answer of an agent", () => {
  for (const by of bys) {
    it.live(`R-550: by ${by}, plain events: readers get the parts and then the whole answer, also if they join late`, () =>
      Effect.gen(function*() {
        const { give, model } = answering(by)
        const site = yield* serve([clerk], model)
        const first = yield* Effect.promise(() => site.open("POST", `${at}/s1/messages`, { content: "Two of Emma" }))
        yield* give(pieces[0])
        yield* Effect.promise(() => first.until(hasPart))
        const second = yield* Effect.promise(() => site.open("GET", `${at}/s1/events`))
        yield* Effect.promise(() => second.until(hasPart))
        assert.deepStrictEqual(ofEvents(eventsOf(second.sent)), [[half, false]])
        yield* give(pieces[1], pieces[2], undefined)
        const seen = eventsOf(yield* Effect.promise(first.end))
        assert.deepStrictEqual(ofEvents(seen)[0], [half, false])
        assert.deepStrictEqual(ofEvents(seen).filter(([, isWhole]) => isWhole), [[whole, true]])
        assert.notInclude(JSON.stringify(seen), "final_answer")
        yield* Effect.promise(() => second.until(({ data }) => data._tag === "ChatCompleted"))
        assert.deepStrictEqual(ofEvents(eventsOf(second.sent)).at(-1), [whole, true])
        second.leave()
      }))

    for (const protocol of protocols) {
      it.live(`R-550: by ${by}, ai ${protocol}: a live page, a joined page and a loaded page show the typed answer`, () =>
        Effect.gen(function*() {
          const { give, model } = answering(by)
          const site = yield* serve([clerk], model, { protocol })
          const page = chatWith(protocol, site.url + at)
          const sending = page.sendMessage({ text: "Two of Emma" })
          yield* give(pieces[0])
          yield* find("the first part", Effect.sync(() => ofParts(page.messages)[0]))
          assert.deepStrictEqual(ofParts(page.messages), [[half, false]])
          const loaded = () => Effect.promise(async () => JSON.parse((await site.ask("GET", `${at}/s1`)).text))
          const joining = chatWith(protocol, site.url + at, { messages: (yield* loaded()).messages })
          const joined = joining.resumeStream()
          yield* find("the first part for a late reader", Effect.sync(() => ofParts(joining.messages)[0]))
          yield* give(pieces[1], pieces[2], undefined)
          yield* Effect.promise(() => Promise.all([sending, joined]))
          yield* Effect.promise(() => Promise.all([settled(page), settled(joining)]))
          const { messages, output } = yield* loaded()
          assert.deepStrictEqual(ofParts(page.messages), [[whole, true]])
          assert.deepStrictEqual(ofParts(joining.messages), [[whole, true]])
          assert.deepStrictEqual(ofParts(messages), [[whole, true]])
          assert.deepStrictEqual(output, whole)
          assert.notInclude(JSON.stringify([page.messages, messages]), "final_answer")
        }))
    }

    it.live(`R-550: by ${by}, AG-UI: custom events have the typed answer, also for a client that joins after the end`, () =>
      Effect.gen(function*() {
        const { give, model } = answering(by)
        const site = yield* serve([clerk], model)
        const client = new HttpAgent({ url: `${site.url}/agui/clerk`, threadId: "s1" })
        client.addMessage({ id: "u1", role: "user", content: "Two of Emma" })
        const seen: Array<Seen> = []
        yield* give(...pieces, undefined)
        yield* Effect.promise(() =>
          client.runAgent({ runId: "r1" }, {
            onCustomEvent: ({ event }) => {
              if (event.name === "heddle.output") seen.push([event.value.value, event.value.isWhole])
            }
          })
        )
        assert.deepStrictEqual(seen[0], [half, false])
        assert.deepStrictEqual(seen.filter(([, isWhole]) => isWhole), [[whole, true]])
        const late = yield* Effect.promise(() => site.open("GET", "/agui/clerk/s1?runId=r1"))
        const sent = yield* Effect.promise(late.end)
        const again = sent.filter(hasPart).map(({ data }) => [data.value.value, data.value.isWhole])
        assert.deepStrictEqual(again.at(-1), [whole, true])
      }))

    it.live(`R-550: by ${by}: another process has the typed answer from the journal, also from a journal shortened by a snapshot`, () =>
      Effect.gen(function*() {
        const { give, model } = answering(by)
        const store = Layer.succeed(Session.Store, yield* Effect.provide(Session.Store, Session.Store.layerMemory))
        const first = yield* serve([clerk], model, { store })
        yield* give(...pieces, undefined)
        const body = { content: "Two of Emma", id: "m1" }
        yield* Effect.promise(() => first.ask("POST", `${at}/s1/messages`, body))
        const key = (yield* Effect.provide(Stream.runCollect(Session.list()), store))[0]!.id
        for (const isShort of [false, true]) {
          if (isShort) {
            const kept = yield* Effect.provide(Session.load(key), store)
            yield* Effect.provide(Session.snapshot(kept!), store)
          }
          const next = yield* serve([clerk], model, { store })
          const { messages, output } = JSON.parse((yield* Effect.promise(() => next.ask("GET", `${at}/s1`))).text)
          assert.deepStrictEqual([ofParts(messages), output], [[[whole, true]], whole])
          if (isShort) continue
          const again = yield* Effect.promise(() => next.open("POST", `${at}/s1/messages`, body))
          assert.deepStrictEqual(ofEvents(eventsOf(yield* Effect.promise(again.end))), [[whole, true]])
        }
      }))
  }
})

describe("a typed answer in another process", () => {
  const script = () =>
    Script.layer([[Script.toolCall("c", "final_answer", JSON.parse(pieces.join(""))), Script.finish("tool_calls")]])

  it.live("R-551: a cluster report has the encoded typed answer, and its readers have the event", () =>
    Effect.gen(function*() {
      const client = yield* SessionClient.SessionClient
      const elements = yield* Stream.runCollect(client.follow("ann", client.reply("ann", "Two of Emma")))
      const seen = elements.flatMap((element) => element._tag === "OutputCompleted" ? [element.value] : [])
      const last = elements.at(-1)
      assert.deepStrictEqual(seen, [whole])
      assert.deepStrictEqual(last?._tag === "Reported" && last.report.output, whole)
    }).pipe(Effect.provide(
      Layer.mergeAll(Cluster.layer({ run: () => ({ output }) }), SessionClient.layer).pipe(
        Layer.provide(script()),
        Layer.provideMerge(Session.Store.layerMemory),
        Layer.provideMerge(TestRunner.layer)
      )
    )))

  it.live("R-551: a worker gives the result with the encoded typed answer", () =>
    Effect.gen(function*() {
      const ended = yield* Deferred.make<Event.ChatResult>()
      yield* Layer.build(
        Worker.layer({ run: () => ({ output }), onEnd: (_, result) => Deferred.succeed(ended, result) })
      )
      yield* Session.submit("ann", "Two of Emma")
      assert.deepStrictEqual((yield* Deferred.await(ended)).output, whole)
      const kept = yield* find("the record of the end", Session.load("ann"))
      assert.deepStrictEqual(Session.view(kept).lastRun?.output, whole)
    }).pipe(Effect.scoped, Effect.provide([script(), Session.Store.layerMemory])))
})

describe("the log of a run", () => {
  for (const where of ["the run", "a run inside"]) {
    it.effect(`R-552: the log of a run keeps only the last part of a typed answer of ${where}`, () =>
      Effect.gen(function*() {
        const hub = new Logs.Hub({ ...Bounds.standard, log: 200_000 }, 0, yield* Effect.scope, {}, yield* Clock.Clock)
        hub.begin("s", { runId: "r", version: 1, takes: undefined, past: [] })
        const log = hub.current("s")!
        for (let length = 0; length < 60_000; length += 100) {
          for (const id of ["a", "b"]) {
            const part: Event.Event = { _tag: "OutputPartial", value: "x".repeat(length) }
            yield* hub.push("s", where === "the run" ? part : { _tag: "ToolProgress", id, name: "ask", progress: part })
          }
        }
        assert.isFalse(log.isFull)
        const kept = log.entries.flatMap((entry) => entry ?? [])
        assert.strictEqual(kept.length, where === "the run" ? 1 : 2)
        assert.strictEqual(log.bytes, kept.reduce((sum, { text }) => sum + text.length, 0))
      }))
  }
})
