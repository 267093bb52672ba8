/** A stop as readers of a session see it: who asked for it and when, live, from the journal, and of a resumed run. */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { type Event, type Journal, Session, Tool } from "heddle"
import { Worker } from "heddle/durable"
import { Agent } from "heddle/server"
import { Script } from "heddle/testing"
import { recordsOf, until as untilTimePasses } from "../support/edges.ts"
import { toldOf } from "../support/journalEvents.ts"
import { until } from "../support/until.ts"
import { eventsOf, serve } from "./support/site.ts"

const at = "/agents/helper/sessions"

const wait = Tool.make("wait", { parameters: {}, handler: () => Effect.never })

const agents = [
  Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools: [wait], grace: 100 }) })
]

const calling = Script.layer([[Script.toolCall("c", "wait"), Script.finish("tool_calls")]])

const silent = Script.layer([[Script.text("Hm"), Script.delay(3_600_000), Script.finish("stop")]])

const stopsIn = (events: ReadonlyArray<Event.PublicEvent>) => events.filter(({ _tag }) => _tag === "StopAccepted")

const memory = Effect.map(Layer.build(Session.Store.layerMemory), (context) => Context.get(context, Session.Store))

const requestIn = (records: ReadonlyArray<Journal.Record>) =>
  records.find((record): record is Journal.StopRequested => record._tag === "StopRequested")

describe("a stop over HTTP", () => {
  const senders = {
    "this server": { by: "local", request: undefined },
    "another process": { by: "ann", request: Session.stop("local:s1", { by: "ann" }) },
    "a program that does not say who": { by: undefined, request: Session.stop("local:s1") }
  } as const
  const phases = { "a call is at work": calling, "the model speaks": silent } as const

  for (const [from, { by, request }] of Object.entries(senders)) {
    for (const [phase, model] of Object.entries(phases)) {
      it.live(`V-07: a stop from ${from}, while ${phase}: readers get the stop once, before its effects, as the journal has it`, () =>
        Effect.gen(function*() {
          const store = yield* memory
          const site = yield* serve(agents, model, { joinMillis: 0, store: Layer.succeed(Session.Store, store) })
          const reader = yield* Effect.promise(() => site.open("POST", `${at}/s1/messages`, { content: "go" }))
          const begun = phase === "the model speaks" ? "TextDelta" : "ToolExecutionStarted"
          yield* Effect.promise(() => reader.until(({ data }) => data._tag === begun))
          if (request === undefined) yield* Effect.promise(() => site.ask("POST", `${at}/s1/stop?wait=false`, {}))
          else yield* Effect.provideService(request, Session.Store, store)
          const live = eventsOf(yield* Effect.promise(() => reader.end()))
          yield* Effect.gen(function*() {
            const asked = requestIn(yield* recordsOf("local:s1"))
            const expected = [{ _tag: "StopAccepted", ...(by === undefined ? {} : { by }), at: asked?.time }]
            assert.isDefined(asked?.time)
            assert.deepStrictEqual(stopsIn(live), expected as unknown as typeof live)
            assert.deepStrictEqual(stopsIn(yield* toldOf("local:s1")), stopsIn(live))
            const tags = live.map(({ _tag }) => _tag)
            const effect = tags.indexOf(phase === "the model speaks" ? "ChatCompleted" : "ToolResultEncoded")
            assert.isBelow(tags.indexOf("StopAccepted"), effect, tags.join())
          }).pipe(Effect.provideService(Session.Store, store))
        }).pipe(Effect.scoped))
    }
  }

  it.live("V-07: a repeated stop is recorded once", () =>
    Effect.gen(function*() {
      const store = yield* memory
      const site = yield* serve(agents, calling, { joinMillis: 0, store: Layer.succeed(Session.Store, store) })
      const reader = yield* Effect.promise(() => site.open("POST", `${at}/s1/messages`, { content: "go" }))
      yield* Effect.promise(() => reader.until(({ data }) => data._tag === "ToolExecutionStarted"))
      const first = yield* Effect.provideService(Session.stop("local:s1", { by: "ann" }), Session.Store, store)
      const second = yield* Effect.provideService(Session.stop("local:s1", { by: "bob" }), Session.Store, store)
      assert.strictEqual(second.id, first.id)
      const live = eventsOf(yield* Effect.promise(() => reader.end()))
      assert.deepStrictEqual(stopsIn(live).map((event) => "by" in event ? event.by : undefined), ["ann"])
    }).pipe(Effect.scoped))
})

describe("a stop of one call over HTTP", () => {
  const short = Tool.make("short", { parameters: {}, handler: () => Effect.as(Effect.sleep(2_000), "short") })
  const both = [
    Agent.make({
      name: "helper",
      description: "Helps",
      run: () => Effect.succeed({ tools: [wait, short], grace: 100 })
    })
  ]
  const model = Script.layer([
    [Script.toolCall("a/b", "wait"), Script.toolCall("c1", "short"), Script.finish("tool_calls")],
    [Script.text("Done."), Script.finish("stop")]
  ])

  it.live("G75, G77, G98: a stop answers 202 for a running call and 404 for any other, and readers get it, live and from the journal", () =>
    Effect.gen(function*() {
      const store = yield* memory
      const site = yield* serve(both, model, { joinMillis: 0, store: Layer.succeed(Session.Store, store) })
      const ask = (path: string) => Effect.promise(() => site.ask("POST", `${at}/s1/calls/${path}/stop`, {}))
      const reader = yield* Effect.promise(() => site.open("POST", `${at}/s1/messages`, { content: "go" }))
      yield* Effect.promise(() =>
        reader.until(({ data }) => data._tag === "ToolExecutionStarted" && data["id"] === "c1")
      )
      const path = encodeURIComponent("a%2Fb")
      for (const unknown of ["c9", "a%2Fb", encodeURIComponent("c1/x"), encodeURIComponent("r0~c1"), "%25"]) {
        const { status, text } = yield* ask(unknown)
        assert.deepStrictEqual(
          [status, text.includes("no_such_call")],
          [404, true],
          unknown
        )
      }
      const accepted = yield* ask(path)
      assert.strictEqual(accepted.status, 202)
      assert.isString(JSON.parse(accepted.text).id)
      const live = eventsOf(yield* Effect.promise(() => reader.end()))
      assert.strictEqual((yield* ask(path)).status, 404, "the run has ended")
      const missing = yield* Effect.promise(() => site.ask("POST", `${at}/none/calls/c1/stop`, {}))
      assert.strictEqual(missing.status, 404)
      assert.deepStrictEqual(
        stopsIn(live).map((event) => event._tag === "StopAccepted" ? [event.by, event.call] : []),
        [["local", "a%2Fb"]]
      )
      const told = yield* Effect.provideService(toldOf("local:s1"), Session.Store, store)
      assert.deepStrictEqual(stopsIn(told), stopsIn(live))
      const answers = live.flatMap((event) =>
        event._tag === "ToolResultEncoded" ? [[event.id, "code" in event ? event.code : undefined]] : []
      )
      assert.deepStrictEqual(new Map(answers as any), new Map([["a/b", "cancelled"], ["c1", undefined]]))
      const last = live.at(-1)
      assert.strictEqual(last?._tag === "ChatCompleted" ? last.outcome._tag : "", "Completed")
    }).pipe(Effect.scoped))
})

describe("a stop of a session that a worker drives", () => {
  const seeing = (seen: Array<unknown>, onStop: (stop: Journal.StopRequested) => Effect.Effect<void>) =>
    Worker.layer({
      run: () => ({ tools: [wait], grace: 100 }),
      poll: 20,
      onStop: (id, stop) =>
        Effect.andThen(Effect.sync(() => void seen.push([id, stop.by])), Effect.suspend(() => onStop(stop))),
      onEvent: (_, event) => Effect.sync(() => void seen.push(event._tag))
    })

  const driven = (onStop: (stop: Journal.StopRequested) => Effect.Effect<void>) =>
    Effect.gen(function*() {
      const seen: Array<unknown> = []
      yield* Layer.build(seeing(seen, onStop))
      yield* Session.submit("s", "go")
      yield* untilTimePasses(Effect.sync(() => seen.includes("ToolExecutionStarted")))
      yield* Session.stop("s", { by: "ann" })
      yield* untilTimePasses(Effect.sync(() => seen.includes("ChatCompleted")))
      const told = seen.findIndex((each) => Array.isArray(each))
      assert.deepStrictEqual(seen.filter((each) => Array.isArray(each)), [["s", "ann"]])
      assert.isBelow(told, seen.indexOf("ToolResultEncoded"))
      assert.strictEqual((yield* recordsOf("s")).at(-1)?._tag, "RunEnded")
    }).pipe(Effect.scoped, Effect.provide([calling, Session.Store.layerMemory]))

  it.effect("V-07: onStop has the request once, before the stop has any effect", () => driven(() => Effect.void))

  it.effect("V-07: onStop does not have the request again after another command", () =>
    Effect.gen(function*() {
      const seen: Array<string | undefined> = []
      const block = Tool.make("wait", { parameters: {}, interrupt: "block", handler: () => Effect.never })
      yield* Layer.build(Worker.layer({
        run: () => ({ tools: [block], grace: 1_000 }),
        poll: 20,
        onStop: (_, { by }) => Effect.sync(() => void seen.push(by))
      }))
      yield* Session.submit("s", "go")
      const has = (tag: Journal.Record["_tag"]) =>
        untilTimePasses(Effect.map(recordsOf("s"), (records) => records.some(({ _tag }) => _tag === tag)))
      yield* has("CallStarted")
      yield* Session.stop("s", { by: "ann" })
      yield* untilTimePasses(Effect.sync(() => seen.length > 0))
      yield* Session.submit("s", "and then?")
      yield* has("RunEnded")
      assert.deepStrictEqual(seen, ["ann"])
    }).pipe(Effect.scoped, Effect.provide([calling, Session.Store.layerMemory])))

  it.effect("V-07: an onStop that dies does not prevent the stop", () => driven(() => Effect.die("broken")))

  it.effect("V-07: an onStop that throws does not prevent the stop", () =>
    driven(() => {
      throw new Error("broken")
    }))

  it.effect("V-07: an onStop that never ends does not delay the stop beyond the grace period", () =>
    driven(() => Effect.never))
})

describe("a stop that the next owner obeys", () => {
  it.live("V-07: the stop is among the events of the run before its resumption", () =>
    Effect.gen(function*() {
      const store = yield* memory
      const key = "local:s1"
      // The first process leaves the run with a call at work, and a stop in the journal.
      yield* Effect.gen(function*() {
        const site = yield* serve(agents, calling, { store: Layer.succeed(Session.Store, store) })
        yield* Effect.promise(() => site.ask("POST", `${at}/s1/messages?wait=false`, { content: "go" }))
        yield* until("a call", Effect.provideService(recordsOf(key), Session.Store, store), (records) =>
          records.some(({ _tag }) =>
            _tag === "CallStarted"
          ))
      }).pipe(Effect.scoped)
      yield* Effect.provideService(Session.stop(key, { by: "ann" }), Session.Store, store)
      assert.isTrue(yield* Effect.provideService(Session.revoke(key), Session.Store, store))
      const site = yield* serve(agents, calling, { store: Layer.succeed(Session.Store, store) })
      const ended = yield* until("the end", Effect.provideService(toldOf(key), Session.Store, store), (events) =>
        events.some(({ _tag }) =>
          _tag === "ChatCompleted"
        ))
      assert.lengthOf(stopsIn(ended), 1)
      const shown = yield* Effect.promise(() =>
        site.ask("GET", `${at}/s1/runs`)
      )
      const { runs } = JSON.parse(shown.text) as { runs: ReadonlyArray<{ events: ReadonlyArray<Event.PublicEvent> }> }
      assert.deepStrictEqual(runs.map(({ events }) => stopsIn(events)), [stopsIn(ended)])
    }).pipe(Effect.scoped))
})
