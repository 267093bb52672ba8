/**
 * Sessions that another process owns, over a connection that the test has in its hands: it breaks after any frame, or has
 * nothing at its end. The connection itself is that of `cluster.process.test.ts`.
 */
import { assert, describe, it } from "@effect/vitest"
import { readUIMessageStream } from "ai"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, type Event, Journal, Message, Session, Tool } from "heddle"
import { Agent } from "heddle/server"
import { Script } from "heddle/testing"
import * as Peers from "../../src/durable/internal/peers.ts"
import { CurrentProcess } from "../../src/internal/session/claim.ts"
import { network } from "../cluster/support/network.ts"
import { until } from "../support/until.ts"
import { type Reader, type Sent, serve, type Site, textsIn } from "./support/site.ts"
import { told } from "./support/told.ts"

const at = "/agents/helper/sessions"

const shared = Effect.map(Layer.build(Session.Store.layerMemory), Layer.succeedContext)

/** The services of a process of this name. */
const process = (name: string, store: Layer.Layer<Session.Store>, peers?: (name: string) => Peers.Peers) =>
  Layer.mergeAll(store, Layer.succeed(CurrentProcess, name), Layer.succeed(Peers.Peers, peers?.(name)))

const open = (site: Site, method: string, path: string, body?: unknown, headers?: Record<string, string>) =>
  Effect.promise(() => site.open(method, path, body, headers))

const saidBy = (reader: Reader, text: string) =>
  Effect.promise(() => reader.until(({ data }) => data._tag === "TextDelta" && data.delta === text))

/** The texts of the runs that a reader has, who discards a run at its reset. */
const read = (sent: ReadonlyArray<Sent>): ReadonlyArray<string> => {
  const runs = new Map<string, Array<Event.PublicEvent>>()
  let run: Array<Event.PublicEvent> = []
  for (const { data, event } of sent) {
    if (event === "reset") runs.set(data.runId, run = [])
    else if (data._tag === "RunStarted" && !runs.has(data.runId)) runs.set(data.runId, run = [data])
    else run.push(data)
  }
  return Array.from(runs.values()).flatMap(textsIn)
}

/** Says "one" and calls `pay`, then says "two" and calls `hold`, then says "three". */
const model = Adapter.layer({
  stream: ({ messages }) => {
    const answers = messages.filter(({ role }) => role === "tool").length
    const said = ["one", "two", "three"][answers]!
    const calls = ["pay", "hold"].slice(answers, answers + 1).map((name) => ({
      id: name,
      name,
      arguments: {},
      rawArguments: "{}",
      metadata: {}
    }))
    return Stream.fromIterable([
      { _tag: "MessageStarted" as const, message: Message.assistant("") },
      ...Array.from(said, (delta) => ({ _tag: "TextDelta" as const, id: null, delta })),
      ...calls.flatMap((call) => [
        { _tag: "ToolCallStarted" as const, id: call.id, name: call.name },
        { _tag: "ToolCallCompleted" as const, ...call }
      ]),
      {
        _tag: "MessageCompleted" as const,
        message: Message.assistant(said, calls),
        finishReason: calls.length === 0 ? "stop" as const : "tool_calls" as const
      }
    ])
  }
})

/** The sessions whose call of `hold` has begun, and the gates that end it. */
const holding = () => {
  const sessions = new Map<
    string,
    { readonly began: Deferred.Deferred<void>; readonly gate: Deferred.Deferred<void> }
  >()
  const of = (id: string) => {
    const own = sessions.get(id) ?? { began: Deferred.makeUnsafe<void>(), gate: Deferred.makeUnsafe<void>() }
    sessions.set(id, own)
    return own
  }
  const hold = Tool.make("hold", {
    parameters: {},
    handler: (_, { sessionId }) => {
      const { began, gate } = of(String(sessionId).replace("local:", ""))
      return Effect.as(Effect.andThen(Deferred.succeed(began, undefined), Deferred.await(gate)), "held")
    }
  })
  const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
  const agent = Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools: [pay, hold] }) })
  return { agent, of }
}

/** Two processes, of which one owns all sessions and the other one is asked. */
const two = Effect.gen(function*() {
  const { agent, of } = holding()
  const { between, peers } = network(() => "owner")
  const store = yield* shared
  const start = (name: string) =>
    serve([agent], model, {
      store: process(name, store, peers) as Layer.Layer<Session.Store>,
      bounds: { streams: 1_000, writes: 1_000, runs: 1_000 },
      joinMillis: 0
    })
  return { between, of, owner: yield* start("owner"), asked: yield* start("asked") }
})

const post = (site: Site, path: string, body?: unknown) => Effect.promise(() => site.ask("POST", path, body))

/** Has a session wait for the approval of `pay`, and returns the id of its answer. */
const waiting = (site: Site, id: string) =>
  Effect.map(post(site, `${at}/${id}/messages`, { content: "Go" }), ({ text }) => {
    const { suspensions: [{ id }] } = JSON.parse(text.trim().split("\n").at(-1)!.slice("data: ".length))
    return id as string
  })

const messageOf = async (response: Response) => {
  let last: any
  const chunks = (await response.text()).split("\n\n").flatMap((piece) =>
    piece.startsWith("data: {") ? [JSON.parse(piece.slice(6))] : []
  )
  const stream = new ReadableStream<any>({
    start: (controller) => {
      for (const chunk of chunks) controller.enqueue(chunk)
      controller.close()
    }
  })
  for await (const message of readUIMessageStream({ stream, terminateOnError: true })) last = message
  return last.parts.flatMap((part: any) => part.type === "text" ? [part.text] : part.toolCallId ?? [])
}

/** The requests whose streams are broken, and what a client has of each in the end. */
const readers: Record<
  string,
  (asked: Site, id: string, wait: string) => Effect.Effect<Promise<ReadonlyArray<string>>>
> = {
  "an event stream": (asked, id) =>
    Effect.map(open(asked, "GET", `${at}/${id}/events`), async (reader) => {
      const sent = await reader.until(({ data }) => data._tag === "ChatCompleted")
      reader.leave()
      return read(sent)
    }),
  "the response to answers": (asked, id, wait) =>
    Effect.map(
      open(asked, "POST", `${at}/${id}/answers`, { answers: [{ id: wait, approve: true }] }),
      async (reader) => read(await reader.end())
    ),
  "a stream of the AI SDK": (asked, id) =>
    Effect.map(Effect.promise(() => fetch(`${asked.url}${at}/${id}/stream`)), messageOf)
}

describe("a session in another process", () => {
  for (const [kind, reading] of Object.entries(readers)) {
    for (const isSent of [false, true]) {
      it.live(`W-07: ${kind} ${isSent ? "is sent again to the next owner" : "breaks off"} at any frame, and the client has each word once`, () =>
        Effect.gen(function*() {
          const { asked, between, of, owner } = yield* two
          const whole = new Map<string, number>()
          const { read } = between
          /** The frames after which the first stream of each session breaks off. */
          const breaks = new Map<string, number>()
          between.read = (key, request) => {
            const id = key.replace("local:", "")
            const most = breaks.get(id) ?? Infinity
            breaks.delete(id)
            const parts = Stream.tap(
              read(key, request),
              () => Effect.sync(() => whole.set(id, (whole.get(id) ?? 0) + 1))
            )
            const first = most === 0 ? Stream.empty : Stream.take(parts, most)
            return isSent && most < Infinity ? Stream.concat(first, parts) : first
          }
          const one = (id: string, broken: number) =>
            Effect.gen(function*() {
              const wait = yield* waiting(owner, id)
              const { began, gate } = of(id)
              breaks.set(id, broken)
              if (kind !== "the response to answers") {
                yield* post(owner, `${at}/${id}/answers?wait=false`, { answers: [{ id: wait, approve: true }] })
                yield* Deferred.await(began)
              }
              const has = yield* reading(asked, id, wait)
              yield* Deferred.await(began)
              yield* Deferred.succeed(gate, undefined)
              return yield* Effect.promise(() => has)
            })
          const unbroken = yield* one("unbroken", Infinity)
          const count = whole.get("unbroken")!
          assert.isAbove(count, 10)
          const all = yield* Effect.all(Array.from({ length: count }, (_, broken) => one(`s${broken}`, broken)), {
            concurrency: "unbounded"
          })
          for (const has of all) assert.deepStrictEqual(has, unbroken)
        }))
    }
  }

  it.live("W-06: a run that ended before its owner is asked for its events is found", () =>
    Effect.gen(function*() {
      const { asked, between, of, owner } = yield* two
      const wait = yield* waiting(asked, "s1")
      yield* Deferred.succeed(of("s1").gate, undefined)
      const { take } = between
      const status = Effect.map(
        Effect.promise(() => owner.ask("GET", `${at}/s1`)),
        ({ text }) => JSON.parse(text).status as string
      )
      between.take = (key, failed) =>
        Effect.tap(take(key, failed), until("its end", status, (status) => status === "completed"))
      const reader = yield* open(asked, "POST", `${at}/s1/answers`, { answers: [{ id: wait, approve: true }] })
      assert.deepStrictEqual(read(yield* Effect.promise(() => reader.end())), ["two", "three"])
    }))

  it.live("W-07: an event too large for a connection is read from the journal", () =>
    Effect.gen(function*() {
      const text = "long ".repeat(1_000)
      const { between, peers } = network(() => "owner")
      const { read: reading } = between
      let longest = 0
      between.read = (key, request) =>
        Stream.tap(reading(key, request), (part) =>
          Effect.sync(() => {
            longest = Math.max(longest, JSON.stringify(part).length)
          }))
      const store = yield* shared
      const { agent } = holding()
      const { model, say } = told()
      const start = (name: string) => {
        const limited = Layer.merge(process(name, store, peers), Layer.succeed(Journal.MaxRecordBytes, 12_000))
        return serve([agent], model, { store: limited as Layer.Layer<Session.Store>, joinMillis: 0 })
      }
      yield* start("owner")
      const asked = yield* start("asked")
      const reader = yield* open(asked, "POST", `${at}/s1/messages`, { content: "Go" })
      yield* say("short ")
      yield* saidBy(reader, "short ")
      yield* say(text, undefined)
      assert.deepStrictEqual(read(yield* Effect.promise(() => reader.end())), [`short ${text}`])
      assert.isBelow(longest, 4_000)
    }))

  it.live("W-06: if the owner does not answer, the process that was asked drives the session", () =>
    Effect.gen(function*() {
      const { model, say } = told()
      const store = process("asked", yield* shared, network(() => "none").peers) as Layer.Layer<Session.Store>
      const { agent } = holding()
      const site = yield* serve([agent], model, { store, joinMillis: 0 })
      const reader = yield* open(site, "POST", `${at}/s1/messages`, { content: "Count" })
      yield* say("one")
      yield* saidBy(reader, "one")
      yield* say(undefined)
      assert.deepStrictEqual(read(yield* Effect.promise(() => reader.end())), ["one"])
    }))
})

describe("bounds of relayed runs", () => {
  it.live("W-11: runs driven by other processes count in the process that was asked, until they end", () =>
    Effect.gen(function*() {
      const { peers } = network(() => "owner")
      const store = yield* shared
      const { agent } = holding()
      const { model, say } = told()
      const start = (name: string) =>
        serve([agent], model, {
          store: process(name, store, peers) as Layer.Layer<Session.Store>,
          bounds: { runs: 2 }
        })
      yield* start("owner")
      const asked = yield* start("asked")
      const begin = (id: string) =>
        Effect.map(post(asked, `${at}/${id}/messages?wait=false`, { content: "Go" }), ({ status }) => status)
      const statuses = [yield* begin("s1"), yield* begin("s2"), yield* begin("s3")]
      assert.deepStrictEqual(statuses, [202, 202, 429])
      yield* say(undefined)
      const status = yield* until("the end of a run", begin("s3"), (status) => status !== 429)
      assert.strictEqual(status, 202)
      assert.strictEqual(yield* begin("s4"), 429)
    }))
})

describe("a run that another process began", () => {
  it.live("W-07: when this process resumes another process's run, its readers discard their events and read the run live", () =>
    Effect.gen(function*() {
      const store = yield* shared
      const gate = Deferred.makeUnsafe<void>()
      let began = 0
      const hold = Tool.make("hold", {
        parameters: {},
        idempotent: true,
        handler: () => Effect.as(Effect.andThen(Effect.sync(() => began++), Deferred.await(gate)), "held")
      })
      const agent = Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools: [hold] }) })
      const later = told()
      const start = (name: string, model: Layer.Layer<Adapter.Adapter>) =>
        serve([agent], model, {
          store: process(name, store) as Layer.Layer<Session.Store>,
          joinMillis: 0,
          term: "4 seconds"
        })
      const here = yield* start("here", later.model)
      const first = Script.layer([[Script.text("one"), Script.toolCall("c0", "hold"), Script.finish("tool_calls")]])
      const message = { content: "Go", id: "m1" }
      const readers = yield* Effect.scoped(Effect.gen(function*() {
        const there = yield* start("there", first)
        yield* post(there, `${at}/s1/messages?wait=false`, message)
        yield* until("the call", Effect.sync(() => began), (count) => count === 1)
        const readers = [
          yield* open(here, "GET", `${at}/s1/events`),
          yield* open(here, "POST", `${at}/s1/messages`, message)
        ]
        for (const reader of readers) {
          yield* Effect.promise(() => reader.until(({ data }) => data._tag === "ToolExecutionStarted"))
        }
        return readers
      }))
      yield* until("the call again", Effect.sync(() => began), (count) => count === 2)
      yield* Deferred.succeed(gate, undefined)
      yield* later.say("two ")
      for (const reader of readers) yield* saidBy(reader, "two ")
      yield* later.say("three", undefined)
      for (const reader of readers) {
        const sent = yield* Effect.promise(() => reader.until(({ data }) => data._tag === "ChatCompleted"))
        reader.leave()
        assert.include(sent.map(({ event }) => event), "reset")
        assert.deepStrictEqual(read(sent), ["one", "two three"])
      }
    }))

  it.live("W-07: when another process takes over this process's run, its readers discard their events and follow the run there", () =>
    Effect.gen(function*() {
      const store = yield* shared
      const { agent } = holding()
      const [here, there] = [told(), told()]
      const start = (name: string, { model }: { readonly model: Layer.Layer<Adapter.Adapter> }, poll: number) => {
        const services = process(name, store) as Layer.Layer<Session.Store>
        return serve([agent], model, { store: services, joinMillis: 0, term: "4 seconds", poll })
      }
      // It does not search, and learns of the loss where it renews its claim.
      const site = yield* start("here", here, 3_600_000)
      const writer = yield* open(site, "POST", `${at}/s1/messages`, { content: "Go" })
      const reader = yield* open(site, "GET", `${at}/s1/events`)
      yield* here.say("one ")
      for (const each of [writer, reader]) yield* saidBy(each, "one ")
      yield* start("there", there, 20)
      yield* Effect.provide(Session.revoke("local:s1"), store)
      yield* there.say("one ", "two", undefined)
      for (const each of [writer, reader]) {
        const sent = yield* Effect.promise(() => each.until(({ data }) => data._tag === "ChatCompleted"))
        each.leave()
        assert.include(sent.map(({ event }) => event), "reset")
        assert.deepStrictEqual(read(sent), ["one two"])
      }
    }))
})
