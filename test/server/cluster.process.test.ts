/** Servers on a cluster: the owner of a session drives it, and the others pass on what it says. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Agent } from "heddle/server"
import { afterEach, beforeEach, vi } from "vitest"
import { Hub } from "../../src/server/internal/log.ts"
import { until } from "../support/until.ts"
import { cluster, ownedBy } from "./support/cluster.ts"
import { eventsOf, type Reader, saidIn, type Sent, textsIn } from "./support/site.ts"
import { told } from "./support/told.ts"

const at = "/agents/helper/sessions"

const helper = Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({}) })

const saidBy = (reader: Reader, text: string) =>
  Effect.promise(() => reader.until(({ data }) => data._tag === "TextDelta" && data.delta === text))

/** The events that a reader has by the rules of resets. */
const kept = (sent: ReadonlyArray<Sent>) =>
  eventsOf(sent.slice(sent.findLastIndex(({ event }) => event === "reset") + 1))

/** The logs of the servers, as a test finds them. */
const hubs = new Set<any>()

beforeEach(() => {
  const { follow } = Hub.prototype
  vi.spyOn(Hub.prototype, "follow").mockImplementation(function(this: Hub, key) {
    hubs.add(this)
    return follow.call(this, key)
  })
})

afterEach(() => {
  vi.restoreAllMocks()
  hubs.clear()
})

describe("servers on a cluster", () => {
  it.live(
    "W-06: the owner drives a run requested at another process, whose client reads its deltas live and stops it",
    () =>
      Effect.gen(function*() {
        // No search and no look at the journal comes within the test: all comes from the other process.
        const start = yield* cluster(helper, { poll: "1 hour", joinMillis: 0 })
        const [here, there] = [told(), told()]
        const [asked, owner] = [yield* start("asked", here.model), yield* start("owner", there.model)]
        const id = yield* ownedBy(owner, asked)
        const path = `${at}/${id}`
        const open = (headers?: Record<string, string>) =>
          Effect.promise(() => asked.site.open("GET", `${path}/events`, undefined, headers))
        const writer = yield* Effect.promise(() => asked.site.open("POST", `${path}/messages`, { content: "Count" }))
        yield* there.say("one ")
        yield* saidBy(writer, "one ")
        const reader = yield* open()
        const first = yield* saidBy(reader, "one ")
        reader.leave()
        yield* there.say("two ")
        const later = yield* open({ "last-event-id": first.at(-1)?.id ?? "" })
        // The reader continues at its offset: the log is the same one.
        assert.deepStrictEqual((yield* saidBy(later, "two ")).map(({ data }) => data.delta), ["two "])
        assert.strictEqual(saidIn(eventsOf(yield* saidBy(writer, "two "))), "one two ")
        const stopped = yield* Effect.promise(() => asked.site.ask("POST", `${path}/stop`))
        assert.match(stopped.text, /event: accepted[^]*event: ended/)
        const ended = eventsOf(yield* Effect.promise(writer.end)).at(-1)
        assert.deepInclude(ended, { _tag: "ChatCompleted" })
        later.leave()
        yield* until(
          "readers in all processes",
          Effect.sync(() => Array.from(hubs, (hub) => hub.readers.size as number)),
          (counts) => counts.length === 2 && counts.every((count) => count === 0)
        )
        assert.deepStrictEqual([here.opened(), there.opened()], [0, 1])
      })
  )

  it.live("W-07: when the owner leaves in a run, a reader elsewhere has each word once, and the words of the next owner live", () =>
    Effect.gen(function*() {
      const start = yield* cluster(helper, { joinMillis: 0, term: "2 seconds" })
      const [here, there] = [told(), told()]
      const asked = yield* start("asked", here.model)
      const owner = yield* start("owner", there.model)
      const id = yield* ownedBy(owner, asked)
      const path = `${at}/${id}`
      const writer = yield* Effect.promise(() => asked.site.open("POST", `${path}/messages`, { content: "Count" }))
      const reader = yield* Effect.promise(() => asked.site.open("GET", `${path}/events`))
      yield* there.say("one ")
      for (const each of [writer, reader]) yield* saidBy(each, "one ")
      yield* Effect.forkScoped(owner.leave, { startImmediately: true })
      yield* here.say("one ", "two ")
      for (const each of [writer, reader]) yield* saidBy(each, "two ")
      yield* here.say("three", undefined)
      const sent = yield* Effect.promise(() => reader.until(({ data }) => data._tag === "ChatCompleted"))
      reader.leave()
      for (const each of [sent, yield* Effect.promise(writer.end)]) {
        assert.include(each.map(({ event }) => event), "reset")
        assert.deepStrictEqual(textsIn(kept(each)), ["one two three"])
      }
      assert.deepStrictEqual([here.opened(), there.opened()], [1, 1])
    }))

  it.live("W-05: when a client of an attached server leaves, the owner of the session stops the run", () =>
    Effect.gen(function*() {
      const start = yield* cluster(helper, { joinMillis: 0, mode: "attached" })
      const [here, there] = [told(), told()]
      const [asked, owner] = [yield* start("asked", here.model), yield* start("owner", there.model)]
      const path = `${at}/${yield* ownedBy(owner, asked)}`
      const writer = yield* Effect.promise(() => asked.site.open("POST", `${path}/messages`, { content: "Count" }))
      yield* there.say("one ")
      yield* saidBy(writer, "one ")
      writer.leave()
      const status = Effect.map(
        Effect.promise(() => owner.site.ask("GET", path)),
        ({ text }) => JSON.parse(text).status as string
      )
      assert.strictEqual(yield* until("the stop", status, (status) => status === "stopped"), "stopped")
      assert.deepStrictEqual([here.opened(), there.opened()], [0, 1])
    }))
})
