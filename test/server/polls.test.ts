/** What readers ask of a store: as much as one of them, however many there are. */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Session } from "heddle"
import { Agent } from "heddle/server"
import { until } from "../support/until.ts"
import { heldBy, nothingHeld } from "./support/ledger.ts"
import { eventsOf, partsOf, type Reader, serve, textsIn } from "./support/site.ts"
import { told } from "./support/told.ts"

const at = "/agents/helper/sessions"
const agents = [Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({}) })]

/** A store in memory that counts what is asked of one session. */
const counted = Effect.map(Layer.build(Session.Store.layerMemory), (context) => {
  const store = Context.get(context, Session.Store)
  const counts = { version: 0, read: 0 }
  const layer = Layer.succeed(Session.Store, {
    ...store,
    version: (id) => Effect.suspend(() => (counts.version++, store.version(id))),
    read: (id, after) => (counts.read++, store.read(id, after))
  })
  return { counts, layer }
})

const bounds = { streams: 10_000, writes: 10_000, log: 2_000 }

describe("readers of a run whose log is full", () => {
  it.live("O-56: readers of a full log poll the store at a rate that does not depend on events and readers", () =>
    Effect.gen(function*() {
      const { counts, layer } = yield* counted
      const { model, say } = told()
      const site = yield* serve(agents, model, { bounds, joinMillis: 0, store: layer })
      const open = (path: string) => Effect.promise(() => site.open("GET", path))
      yield* Effect.promise(() => site.ask("POST", `${at}/s1/messages?wait=false`, { content: "Hi" }))
      yield* say("x".repeat(3_000))
      const { hub } = partsOf(site)
      yield* until("a full log", Effect.sync(() => hub.current("local:s1")?.isFull), (isFull) => isFull === true)
      const readers: Array<Reader> = []
      for (let index = 0; index < 50; index++) {
        const reader = yield* open(index % 2 === 0 ? `${at}/s1/events` : `${at}/s1/stream`)
        readers.push(reader)
      }
      yield* until("the readers", Effect.sync(() => heldBy(partsOf(site))["streams"]), (count) => count === 50)
      const before = { ...counts }
      const began = yield* Clock.currentTimeMillis
      for (let index = 0; index < 200; index++) {
        yield* say(`${index}`)
        yield* Effect.promise(() => new Promise((resolve) => setImmediate(resolve)))
      }
      const elapsed = (yield* Clock.currentTimeMillis) - began
      // The test's clock looks each 50 milliseconds, and the owner of the run each 200 for commands.
      const looks = Math.ceil(elapsed / 50) + 1
      const owners = Math.ceil(elapsed / 200) + 1
      assert.isAtMost(counts.version - before.version, looks + owners)
      assert.isAtMost(counts.read - before.read, looks + owners)
      yield* say(undefined)
      for (const [index, reader] of readers.entries()) {
        const isEnd = ({ data }: { readonly data: any }) => data._tag === "ChatCompleted" || data === "[DONE]"
        const sent = yield* Effect.promise(() => reader.until(isEnd))
        if (index % 2 === 0) assert.strictEqual(textsIn(eventsOf(sent)).at(-1)?.startsWith("xxx"), true)
        assert.isTrue(isEnd(sent.at(-1)!), `${index}`)
        reader.leave()
      }
      yield* nothingHeld([partsOf(site)])
    }))

  it.live("O-56: when the polling reader leaves, another reader polls for the others", () =>
    Effect.gen(function*() {
      const { layer } = yield* counted
      const { model, say } = told()
      const site = yield* serve(agents, model, { bounds, joinMillis: 0, store: layer })
      const open = (path: string) => Effect.promise(() => site.open("GET", path))
      yield* say("First", undefined)
      yield* Effect.promise(() => site.ask("POST", `${at}/s1/messages`, { content: "Hi" }))
      const readers = yield* Effect.forEach(Array.from({ length: 10 }), () => open(`${at}/s1/events`))
      yield* until("the readers", Effect.sync(() => heldBy(partsOf(site))["streams"]), (count) => count === 10)
      // The one that looks is the one that came first.
      for (const reader of readers.slice(0, 9)) {
        reader.leave()
        yield* Effect.sleep(10)
      }
      // Another process runs the next message: nothing but the journal tells of it here.
      const other = yield* serve(agents, model, { bounds, joinMillis: 0, store: layer })
      yield* say("Second", undefined)
      yield* Effect.promise(() => other.ask("POST", `${at}/s1/messages`, { content: "Hi" }))
      const sent = yield* Effect.promise(() => readers[9]!.until(({ data }) => data._tag === "ChatCompleted"))
      assert.include(JSON.stringify(sent), "Second")
      readers[9]!.leave()
    }))
})
