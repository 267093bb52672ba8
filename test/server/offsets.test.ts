/**
 * Readers that come back with an offset and stay over the runs that follow: each has every run once and whole, as one who
 * read from the beginning has them one after another.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { type Event, Session } from "heddle"
import { Agent, type Server } from "heddle/server"
import { until } from "../support/until.ts"
import { heldBy, nothingHeld } from "./support/ledger.ts"
import { partsOf, type Reader, type Sent, serve } from "./support/site.ts"
import { told } from "./support/told.ts"

const at = "/agents/helper/sessions"
const agents = [Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({}) })]

const isEnd = ({ data }: Sent): boolean => data._tag === "ChatCompleted"

/** The events of each run as a client has them that discards a run for a reset. */
const runsOf = (
  sent: ReadonlyArray<Sent>
): ReadonlyArray<readonly [runId: string, events: ReadonlyArray<Event.PublicEvent>]> => {
  const runs: Array<[string, Array<Event.PublicEvent>]> = []
  let current: [string, Array<Event.PublicEvent>] | undefined
  for (const { data, event } of sent) {
    if (event === "reset") {
      const index = runs.findIndex(([runId]) => runId === data.runId)
      // A run may be discarded before anything of it has come.
      if (index >= 0) assert.strictEqual(index, runs.length - 1, "a reset of a run that others follow")
      if (index >= 0) runs.pop()
      current = undefined
      continue
    }
    if (data._tag === "RunStarted") runs.push(current = [data.runId, []])
    assert.isDefined(current, `${data._tag} of no run`)
    current?.[1].push(data)
  }
  return runs
}

/** What runs say, which a journal tells as well as a log: their order, their texts, and their ends. */
const gist = (sent: ReadonlyArray<Sent>) =>
  runsOf(sent).map(([runId, events]) => {
    const text = events.map((event) =>
      event._tag === "TextDelta" ? event.delta : event._tag === "TextCompleted" ? event.text : ""
    )
    const count = (tag: string) => events.filter(({ _tag }) => _tag === tag).length
    return {
      runId,
      text: text.join(""),
      steps: count("StepCompleted"),
      replies: count("MessageStarted"),
      ends: events.flatMap((event) => event._tag === "ChatCompleted" ? [event.outcome] : [])
    }
  })

/** Reads on from an offset until the last run has ended, and returns all that a client has been sent. */
const readOn = (reader: Reader, before: ReadonlyArray<Sent>, last: string) =>
  Effect.gen(function*() {
    let current: string | undefined = before.at(-1)?.id?.split(".")[0]
    const rest = yield* Effect.promise(() =>
      reader.until((one) => {
        if (one.data._tag === "RunStarted") current = one.data.runId
        return isEnd(one) && current === last
      })
    )
    return [...before, ...rest]
  })

const site = (bounds: Server.Options["bounds"]) =>
  Effect.gen(function*() {
    const { model, say } = told()
    const served = yield* serve(agents, model, {
      bounds: { streams: 10_000, writes: 10_000, ...bounds },
      joinMillis: 0
    })
    return {
      served,
      say,
      open: (query = "") => Effect.promise(() => served.open("GET", `${at}/s1/events${query}`)),
      post: Effect.gen(function*() {
        const { status } = yield* Effect.promise(() =>
          served.ask("POST", `${at}/s1/messages?wait=false`, { content: "Go" })
        )
        assert.strictEqual(status, 202)
      }),
      ended: until(
        "the end of the run",
        Effect.promise(() => served.ask("GET", `${at}/s1`)),
        ({ text }) => JSON.parse(text).next === "nothing"
      )
    }
  })

const runs = 3

/** Where the runs are read from. */
const places = { "from logs": {}, "from the journal, where logs are full": { log: 10 } }

describe("a reader that returns with an offset, and stays", () => {
  for (const [name, bounds] of Object.entries(places)) {
    it.live(`W-09: a returning reader has each run once and complete, ${name}`, () =>
      Effect.gen(function*() {
        const { ended, open, post, say, served } = yield* site(bounds)
        yield* post
        const whole = yield* open()
        const readers: Array<{ readonly reader: Reader; readonly before: ReadonlyArray<Sent> }> = []
        /** Reads on to something that is sent next, and opens a reader at each offset so far. */
        const back = (holds: (sent: Sent) => boolean) =>
          Effect.gen(function*() {
            const known = whole.sent.length
            const isNext = (one: Sent) => holds(one) && whole.sent.indexOf(one) >= known
            const sent = yield* Effect.promise(() => whole.until(isNext))
            for (const [index, { id }] of sent.entries()) {
              if (id === undefined) continue
              readers.push({ reader: yield* open(`?after=${id}`), before: sent.slice(0, index + 1) })
            }
          })
        for (let run = 0; run < runs; run++) {
          if (run > 0) yield* post
          yield* say(`${run}a `, `${run}b `)
          yield* back(({ data }) => data._tag === "RunStarted" || data.delta === `${run}b `)
          yield* say(`${run}c`, undefined)
          if (run < runs - 1) yield* back(isEnd)
          yield* ended
        }
        // The last end is that of the last run, which began behind those that were read so far.
        let started = 0
        yield* Effect.promise(() =>
          whole.until((one) => {
            if (one.data._tag === "RunStarted") started++
            return started === runs && isEnd(one)
          })
        )
        const expected = gist(whole.sent)
        assert.strictEqual(expected.length, runs)
        const last = expected.at(-1)!.runId
        for (const { before, reader } of readers) {
          const all = yield* readOn(reader, before, last)
          const seen = all.map(({ data, event, id }) => `${event ?? data._tag} ${id ?? ""}`).slice(before.length - 1)
          assert.deepStrictEqual(gist(all), expected, seen.join("\n"))
          // Who was not given a reset has the events as they were, with their offsets.
          if (!all.some(({ event }) => event === "reset")) assert.deepStrictEqual(all, whole.sent)
          reader.leave()
        }
        whole.leave()
        yield* nothingHeld([partsOf(served)])
      }))
  }

  it.live("W-09: a returning reader has each run once and complete after a time without readers", () =>
    Effect.gen(function*() {
      const { ended, open, post, say, served } = yield* site({})
      yield* post
      const first = yield* open()
      yield* say("0a ", "0b ", undefined)
      const sent = [...(yield* Effect.promise(() => first.until(isEnd)))]
      first.leave()
      yield* ended
      yield* nothingHeld([partsOf(served)])
      const readers = yield* Effect.forEach(sent, ({ id }) => open(`?after=${id}`))
      const whole = yield* open()
      for (let run = 1; run < runs; run++) {
        yield* post
        yield* say(`${run}a `, `${run}b`, undefined)
        yield* ended
      }
      let ends = 0
      const rest = yield* Effect.promise(() => whole.until((one) => isEnd(one) && ++ends === runs - 1))
      const expected = gist([...sent, ...rest])
      assert.strictEqual(expected.length, runs)
      for (const [index, reader] of readers.entries()) {
        const all = yield* readOn(reader, sent.slice(0, index + 1), expected.at(-1)!.runId)
        assert.deepStrictEqual(gist(all), expected, `${index}`)
        reader.leave()
      }
      whole.leave()
      yield* nothingHeld([partsOf(served)])
    }))

  it.live("W-07: a returning reader has each run once and complete after an interrupted run was resumed here", () =>
    Effect.gen(function*() {
      const context = yield* Layer.build(Session.Store.layerMemory)
      const { model, say } = told()
      const served = yield* serve(agents, model, {
        store: Layer.succeedContext(context),
        bounds: { streams: 1_000, writes: 1_000 },
        joinMillis: 0,
        poll: "10 millis",
        term: "3 seconds"
      })
      const { hub } = partsOf(served)
      const open = (query = "") => Effect.promise(() => served.open("GET", `${at}/s1/events${query}`))
      const post = Effect.promise(() => served.ask("POST", `${at}/s1/messages?wait=false`, { content: "Go" }))
      yield* post
      const whole = yield* open()
      yield* say("lost ")
      yield* Effect.promise(() => whole.until(({ data }) => data.delta === "lost "))
      const readers = yield* Effect.forEach(
        whole.sent.slice(),
        (_, index) => Effect.map(open(`?after=${whole.sent[index]!.id}`), (reader) => ({ reader, index }))
      )
      yield* until(
        "the readers",
        Effect.sync(() => heldBy(partsOf(served))["streams"]),
        (count) => count === readers.length + 1
      )
      const before = hub.current("local:s1")?.begun?.version
      assert.isTrue(yield* Effect.provideContext(Session.revoke("local:s1"), context))
      const again = Effect.sync(() => hub.current("local:s1")?.begun?.version)
      yield* until("the run again", again, (version) => version !== undefined && version !== before)
      const texts = ["found", "second", "third"]
      for (const [index, text] of texts.entries()) {
        if (index > 0) yield* post
        yield* say(text, undefined)
        yield* until(
          "the end",
          Effect.promise(() => served.ask("GET", `${at}/s1`)),
          ({ text }) => JSON.parse(text).next === "nothing"
        )
      }
      for (const { index, reader } of [{ index: -1, reader: whole }, ...readers]) {
        const first = whole.sent.slice(0, index + 1)
        const isOver = () => JSON.stringify(reader.sent.slice(-8)).includes("third")
        yield* Effect.promise(() => reader.until((one) => isEnd(one) && isOver()))
        const all = [...first, ...reader.sent]
        assert.deepStrictEqual(
          gist(all).map(({ ends, text }) => [text, ends.length]),
          texts.map((text) => [text, 1]),
          `${index}`
        )
        reader.leave()
      }
      yield* nothingHeld([partsOf(served)])
    }))
})
