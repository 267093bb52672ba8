/** Many clients of one session at once: one run, each event once and in order, and nothing left once they have gone. */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import { Session, Tool } from "heddle"
import { Agent, Server } from "heddle/server"
import * as net from "node:net"
import { afterEach } from "vitest"
import type { RunLog } from "../../src/server/internal/log.ts"
import type { Site as Parts } from "../../src/server/internal/routes.ts"
import { until } from "../support/until.ts"
import { codeOf, obedient } from "./support/hostile.ts"
import { heldBy, nothingHeld } from "./support/ledger.ts"
import { eventsOf, parts, partsOf, type Reader, saidIn, type Sent, serve, type Site, textsIn } from "./support/site.ts"
import { told } from "./support/told.ts"

const at = "/agents/helper/sessions"

const helper = (tools: ReadonlyArray<Tool.Any> = []) =>
  Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools }) })

const many = { streams: 10_000, writes: 10_000, runs: 1_000 }

/** A number from 0 up to a bound, the same ones in each run of a test. */
const numbers = (seed: number) => {
  let state = seed
  return (bound: number): number => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) & 0x7fffffff
    return (state >> 8) % bound
  }
}

const together = <A>(count: number, effect: (index: number) => Effect.Effect<A>) =>
  Effect.all(Array.from({ length: count }, (_, index) => effect(index)), { concurrency: "unbounded" })

const open = (site: Site, method: string, path: string, body?: unknown): Effect.Effect<Reader> =>
  Effect.promise(() => site.open(method, path, body))

const post = (site: Site, path: string, body?: unknown) => Effect.promise(() => site.ask("POST", path, body))

const read = (site: Site, id: string) =>
  Effect.map(Effect.promise(() => site.ask("GET", `${at}/${id}`)), ({ status, text }) => ({
    status,
    body: JSON.parse(text)
  }))

const sentIn = (text: string): ReadonlyArray<any> =>
  text.split("\n").flatMap((line) => line.startsWith("data: ") ? [JSON.parse(line.slice(6))] : [])

const tick = Effect.promise(() => new Promise<void>((resolve) => setImmediate(resolve)))

/** A store whose appends take a while to arrive, as those of a database do. */
const distant = Effect.map(Layer.build(Session.Store.layerMemory), (context) => {
  const store = Context.get(context, Session.Store)
  const far = Effect.repeat(tick, { times: 20 })
  return Layer.succeed(Session.Store, {
    ...store,
    append: (...given) => Effect.andThen(far, store.append(...given))
  })
})

/** Waits until no server holds anything for a client that has gone. */
const nothingLeft = Effect.suspend(() => nothingHeld(parts.values()))

afterEach(() => parts.clear())

describe("concurrent writes", () => {
  it.live("W-09: twenty concurrent copies of a message are one run, and each response has the whole run", () =>
    Effect.gen(function*() {
      const { model, opened, say } = told()
      const site = yield* serve([helper()], model, { bounds: many, joinMillis: 0, store: yield* distant })
      yield* say("One ", "two ", "three", undefined)
      const all = yield* together(20, () => post(site, `${at}/s1/messages`, { content: "Count", id: "m1" }))
      assert.strictEqual(opened(), 1)
      const runs = new Set<string>()
      for (const { status, text } of all) {
        assert.strictEqual(status, 200, text)
        const events = sentIn(text)
        assert.strictEqual(events.at(-1)?._tag, "ChatCompleted")
        assert.strictEqual(saidIn(events) || events.find(({ _tag }) => _tag === "TextCompleted")?.text, "One two three")
        runs.add(events[0].runId)
      }
      assert.strictEqual(runs.size, 1)
      const { body } = yield* read(site, "s1")
      assert.deepStrictEqual(body.messages.map(({ role }: any) => role), ["user", "assistant"])
      yield* nothingLeft
    }))

  it.live("W-09: of concurrent different messages the server takes one and refuses the others", () =>
    Effect.gen(function*() {
      const { model, opened, say } = told()
      const site = yield* serve([helper()], model, { bounds: many, joinMillis: 0, store: yield* distant })
      // The session exists: its messages race, not its beginning.
      yield* say("Hello", undefined)
      yield* post(site, `${at}/s1/messages`, { content: "Hi" })
      let refusals = 0
      const all = together(20, (index) =>
        Effect.tap(
          post(site, `${at}/s1/messages`, { content: `Hi ${index}`, id: `m${index}` }),
          ({ status }) => Effect.sync(() => status === 409 && refusals++)
        ))
      const [responses] = yield* Effect.all([
        all,
        Effect.andThen(
          until("the refusals", Effect.sync(() => refusals), (count) => count === 19),
          say("Hello", undefined)
        )
      ], { concurrency: "unbounded" })
      assert.deepStrictEqual([responses.filter(({ status }) => status === 200).length, opened()], [1, 2])
      for (const answered of responses) {
        if (answered.status !== 200) assert.strictEqual(codeOf(answered), "running")
      }
      const { body } = yield* read(site, "s1")
      assert.deepStrictEqual(body.messages.length, 4)
      yield* nothingLeft
    }))

  it.live("W-09: concurrent first messages begin as many sessions as the bound allows", () =>
    Effect.gen(function*() {
      const bounds = { ...many, sessions: 3 }
      const site = yield* serve([helper()], obedient, { bounds, joinMillis: 0, store: yield* distant })
      const all = yield* together(10, (index) => post(site, `${at}/s${index}/messages`, { content: "Hi" }))
      assert.strictEqual(all.filter(({ status }) => status === 200).length, 3)
      assert.deepStrictEqual(
        new Set(all.filter(({ status }) => status !== 200).map(codeOf)),
        new Set(["too_many_sessions"])
      )
      yield* nothingLeft
    }))

  it.live("W-09: an answer from ten concurrent connections counts once, and of two different answers one counts", () =>
    Effect.gen(function*() {
      const paid: Array<number> = []
      const pay = Tool.make("pay", {
        parameters: { amount: Schema.Finite },
        approval: true,
        handler: ({ amount }) => Effect.sync(() => (paid.push(amount), "paid"))
      })
      const site = yield* serve([helper([pay])], obedient, { bounds: many, joinMillis: 0, store: yield* distant })
      const content = JSON.stringify([{ id: "c0", name: "pay", args: { amount: 1 } }])
      const asking = (id: string) =>
        Effect.andThen(
          post(site, `${at}/${id}/messages`, { content }),
          Effect.map(read(site, id), ({ body }) => body.suspensions[0].id as string)
        )
      const id = yield* asking("s1")
      const same = yield* together(10, () => post(site, `${at}/s1/answers`, { answers: [{ id, approve: true }] }))
      for (const { status, text } of same) {
        assert.strictEqual(status, 200, text)
        assert.strictEqual(sentIn(text).at(-1)?._tag, "ChatCompleted", text)
      }
      assert.deepStrictEqual(paid, [1])
      for (let round = 0; round < 10; round++) {
        const other = yield* asking(`r${round}`)
        paid.length = 0
        const mixed = yield* together(
          10,
          (index) => post(site, `${at}/r${round}/answers`, { answers: [{ id: other, approve: index % 2 === 0 }] })
        )
        const taken = mixed.filter(({ status }) => status === 200)
        assert.strictEqual(taken.length, 5, JSON.stringify(mixed.map(({ status }) => status)))
        assert.deepStrictEqual(
          new Set(mixed.filter(({ status }) => status !== 200).map(codeOf)),
          new Set(["already_answered"])
        )
        assert.strictEqual(paid.length, mixed[0]?.status === 200 ? 1 : 0)
      }
      yield* nothingLeft
    }))

  it.live("W-06: a stop concurrent with a message leaves a complete session that continues, and nothing acts after the end", () =>
    Effect.gen(function*() {
      let acts = 0
      const act = Tool.make("act", {
        parameters: {},
        handler: () => Effect.forever(Effect.andThen(Effect.sync(() => acts++), Effect.yieldNow))
      })
      const site = yield* serve([helper([act])], obedient, { bounds: many, joinMillis: 0 })
      const content = JSON.stringify([{ id: "c0", name: "act" }])
      for (let round = 0; round < 10; round++) {
        const reader = yield* open(site, "POST", `${at}/s1/messages`, { content })
        assert.strictEqual(reader.status, 200)
        const stops = yield* together(3, () => open(site, "POST", `${at}/s1/stop`))
        const reports = yield* together(3, (index) => Effect.promise(stops[index]!.end))
        const seen = acts
        yield* until("the end of the run", post(site, `${at}/s1/stop`), ({ text }) => text.includes("event: ended"))
        const { body } = yield* until("the session", read(site, "s1"), ({ body }) => !body.isRunning)
        const isStopped = reports.some((sent) => sent.some(({ data }) => data.stopped?.length > 0))
        if (isStopped) assert.strictEqual(acts, seen)
        assert.include(["nothing", "wait"], body.next)
        yield* Effect.promise(reader.end)
        const said = yield* post(site, `${at}/s1/messages`, { content: "And now?" })
        assert.include(said.text, "Heard: And now?")
      }
      yield* nothingLeft
    }))

  it.live("W-09: a message right after the end of a run is accepted, thirty times", () =>
    Effect.gen(function*() {
      const site = yield* serve([helper()], obedient, { bounds: { ...many, runs: 1 }, joinMillis: 0 })
      const follower = yield* Effect.gen(function*() {
        yield* post(site, `${at}/s1/messages`, { content: "0" })
        return yield* open(site, "GET", `${at}/s1/events`)
      })
      for (let round = 1; round <= 30; round++) {
        // Another session of the same principal has its place as soon as the run has ended.
        const reader = yield* open(site, "POST", `${at}/${round % 3 === 0 ? "s2" : "s1"}/messages`, {
          content: `${round}`
        })
        assert.strictEqual(reader.status, 200, `${round}`)
        const sent = yield* Effect.promise(() => reader.until(({ data }) => data._tag === "ChatCompleted"))
        reader.leave()
        assert.include(JSON.stringify(sent), `Heard: ${round}`)
      }
      let ends = 0
      const sent = yield* Effect.promise(() =>
        follower.until(({ data }) => data._tag === "ChatCompleted" && ++ends === 20)
      )
      follower.leave()
      assert.deepStrictEqual(
        eventsOf(sent).flatMap((event) => event._tag === "TextDelta" ? [event.delta] : []),
        Array.from({ length: 30 }, (_, index) => index + 1).filter((round) => round % 3 !== 0).map((round) =>
          `Heard: ${round}`
        )
      )
      yield* nothingLeft
    }))

  it.live("W-06: concurrent copies of a message at two servers over one store are one run, and both have the whole run", () =>
    Effect.gen(function*() {
      const store = Layer.succeedContext(yield* Layer.build(Session.Store.layerMemory))
      const { model, opened, say } = told()
      const options = { bounds: many, joinMillis: 0, store }
      const [here, there] = [yield* serve([helper()], model, options), yield* serve([helper()], model, options)]
      yield* say("One ", "two", undefined)
      const all = yield* together(
        20,
        (index) => post(index % 2 === 0 ? here : there, `${at}/s1/messages`, { content: "Count", id: "m1" })
      )
      assert.strictEqual(opened(), 1)
      for (const { status, text } of all) {
        assert.strictEqual(status, 200, text)
        const events = sentIn(text)
        assert.strictEqual(events.at(-1)?._tag, "ChatCompleted", text)
        assert.include(text, "two")
      }
      const bodies = [(yield* read(here, "s1")).body, (yield* read(there, "s1")).body]
      assert.deepStrictEqual(bodies[0], bodies[1])
      assert.strictEqual(bodies[0].messages.length, 2)
      yield* nothingLeft
    }))
})

describe("the removal of a session", () => {
  it.live("W-06: a running session cannot be removed, and readers of a removed session end and see nothing of its successor", () =>
    Effect.gen(function*() {
      const { model, say } = told()
      const site = yield* serve([helper()], model, { bounds: many, joinMillis: 0 })
      const writer = yield* open(site, "POST", `${at}/s1/messages`, { content: "Go" })
      yield* say("First")
      yield* Effect.promise(() => writer.until(({ data }) => data._tag === "TextDelta"))
      const readers = yield* together(10, () => open(site, "GET", `${at}/s1/events`))
      const refused = yield* together(5, () => Effect.promise(() => site.ask("DELETE", `${at}/s1`)))
      assert.deepStrictEqual(refused.map(({ status }) => status), [409, 409, 409, 409, 409])
      yield* say(undefined)
      yield* Effect.promise(writer.end)
      const removed = yield* together(5, () => Effect.promise(() => site.ask("DELETE", `${at}/s1`)))
      assert.include(removed.map(({ status }) => status), 204)
      yield* say("Second", undefined)
      yield* post(site, `${at}/s1/messages`, { content: "Once more" })
      for (const reader of readers) {
        const events = eventsOf(yield* Effect.promise(reader.end))
        assert.strictEqual(saidIn(events), "First")
      }
      yield* nothingLeft
    }))
})

describe("concurrent readers", () => {
  const ids = (sent: ReadonlyArray<Sent>) => sent.map(({ id }) => id)

  it.live(
    "W-09: each of a hundred readers that come and go at any moment has each event once, in order and without a gap",
    () =>
      Effect.gen(function*() {
        const { model, say } = told()
        const site = yield* serve([helper()], model, { bounds: many, joinMillis: 0 })
        const random = numbers(7)
        yield* post(site, `${at}/s1/messages?wait=false`, { content: "Go" })
        const whole = yield* open(site, "GET", `${at}/s1/events`)
        yield* say("0 ")
        yield* Effect.promise(() => whole.until(({ data }) => data._tag === "TextDelta"))
        const words = 150
        let begun = 0
        const one = Effect.gen(function*() {
          const sent: Array<Sent> = []
          let isOver = false
          while (!isOver) {
            const after = sent.at(-1)?.id
            const reader = yield* open(site, "GET", `${at}/s1/events${after === undefined ? "" : `?after=${after}`}`)
            if (sent.length === 0) begun++
            let more = 1 + random(60)
            const got = yield* Effect.promise(() =>
              reader.until(({ data }) => {
                isOver = data._tag === "ChatCompleted"
                return --more === 0 || isOver
              })
            )
            // More may have come with what was waited for: it was seen as well.
            sent.push(...got)
            isOver = got.some(({ data }) => data._tag === "ChatCompleted")
            reader.leave()
          }
          return sent
        })
        const feeding = Effect.forEach(
          Array.from({ length: words }, (_, index) => index + 1),
          (index) => Effect.andThen(say(`${index} `), tick),
          { discard: true }
        )
        const [all] = yield* Effect.all([
          together(100, (index) =>
            Effect.andThen(
              Effect.promise(async () => {
                for (let ticks = 0; ticks < index; ticks++) await new Promise((resolve) => setImmediate(resolve))
              }),
              one
            )),
          Effect.andThen(
            // One that comes first after the end of the run finds none.
            Effect.andThen(feeding, until("the readers", Effect.sync(() => begun), (count) => count === 100)),
            say(undefined)
          )
        ], { concurrency: "unbounded" })
        const reference = yield* Effect.promise(() => whole.until(({ data }) => data._tag === "ChatCompleted"))
        whole.leave()
        const expected = Array.from({ length: words + 1 }, (_, index) => `${index} `).join("")
        assert.strictEqual(saidIn(eventsOf(reference)), expected)
        for (const sent of all) {
          // Who comes back after the run has ended gets a reset, and the run as a whole.
          const reset = sent.findIndex(({ event }) => event === "reset")
          const live = reset < 0 ? sent : sent.slice(0, reset)
          assert.deepStrictEqual(ids(live), ids(reference).slice(0, live.length))
          if (reset < 0) assert.strictEqual(live.length, reference.length)
          else {assert.strictEqual(
              sent.slice(reset).find(({ data }) => data._tag === "TextCompleted")?.data.text,
              expected
            )}
        }
        yield* nothingLeft
      }),
    60_000
  )

  it.live("W-09: a reader continues from any offset of an active run", () =>
    Effect.gen(function*() {
      const { model, say } = told()
      const site = yield* serve([helper()], model, { bounds: many, joinMillis: 0 })
      yield* post(site, `${at}/s1/messages?wait=false`, { content: "Go" })
      const whole = yield* open(site, "GET", `${at}/s1/events`)
      yield* say(...Array.from({ length: 40 }, (_, index) => `${index} `))
      const sent = [...(yield* Effect.promise(() => whole.until(({ data }) => data.delta === "39 ")))]
      const readers = yield* together(sent.length, (index) =>
        open(site, "GET", `${at}/s1/events?after=${sent[index]!.id}`))
      yield* say(undefined)
      const reference = ids(
        yield* Effect.promise(() =>
          whole.until(({ data }) => data._tag === "ChatCompleted")
        )
      )
      whole.leave()
      for (const [index, reader] of readers.entries()) {
        const rest = yield* Effect.promise(() => reader.until(({ data }) => data._tag === "ChatCompleted"))
        assert.deepStrictEqual(ids(rest), reference.slice(index + 1), `${index}`)
        reader.leave()
      }
      yield* nothingLeft
    }))

  it.live("W-09: a reader that does not read holds a bounded part of the later runs", () =>
    Effect.gen(function*() {
      const { model, say } = told()
      const site = yield* serve([helper()], model, { bounds: many, joinMillis: 0 })
      const { port } = new URL(site.url)
      yield* say("Begin", undefined)
      yield* post(site, `${at}/s1/messages`, { content: "Go" })
      const socket = net.connect(Number(port), "127.0.0.1")
      socket.pause()
      socket.write(`GET ${at}/s1/events HTTP/1.1\r\nhost: localhost\r\n\r\n`)
      yield* until("the reader", Effect.sync(() => heldBy(partsOf(site)).streams), (count) => count === 1)
      const logs = new Set<RunLog>()
      const hub = partsOf(site).hub as any
      const runs = 4
      for (let run = 0; run < runs; run++) {
        const writer = yield* open(site, "POST", `${at}/s1/messages`, { content: "Go" })
        for (let index = 0; index < 8; index++) yield* say("x".repeat(100_000))
        yield* Effect.promise(() => writer.until(({ data }) => data._tag === "TextDelta"))
        for (const log of hub.logs.values()) logs.add(log)
        yield* say(undefined)
        yield* Effect.promise(writer.end)
      }
      assert.strictEqual(logs.size, runs)
      const held = Array.from(logs).reduce(
        (sum, { entries }) => sum + entries.reduce((all, entry) => all + (entry?.text.length ?? 0), 0),
        0
      )
      assert.isBelow(held, 2_000_000)
      assert.isAtMost(hub.bytes, held)
      socket.destroy()
      yield* nothingLeft
    }))

  it.live("W-09: the logs of a process have a common bound, and ended runs are forgotten first", () =>
    Effect.gen(function*() {
      const { model, say } = told()
      const site = yield* serve([helper()], model, { bounds: { ...many, logs: 3_000 }, joinMillis: 0 })
      const readers: Array<Reader> = []
      for (let index = 0; index < 5; index++) {
        yield* post(site, `${at}/s${index}/messages?wait=false`, { content: "Go" })
        const reader = yield* open(site, "GET", `${at}/s${index}/events`)
        readers.push(reader)
        const text = `${index}`.repeat(1_500)
        yield* say(text, undefined)
        const sent = yield* Effect.promise(() => reader.until(({ data }) => data._tag === "ChatCompleted"))
        assert.isFalse(sent.some(({ event }) => event === "reset"), `${index}`)
        assert.strictEqual(saidIn(eventsOf(sent)), text)
        const hub = partsOf(site).hub as any
        assert.isAtMost(hub.bytes, 3_000)
      }
      for (const reader of readers) reader.leave()
      yield* nothingLeft
    }))

  it.live("W-09: clients that leave at once, also while their response begins, leave nothing behind", () =>
    Effect.gen(function*() {
      const { model, say } = told()
      const site = yield* serve([helper()], model, { bounds: many, joinMillis: 0 })
      const { port } = new URL(site.url)
      yield* post(site, `${at}/s1/messages?wait=false`, { content: "Go" })
      const random = numbers(11)
      const paths = [`GET ${at}/s1/events`, `GET ${at}/s1/stream`, `HEAD ${at}/s1/stream`, `POST ${at}/s1/stop?wait=x`]
      yield* together(200, (index) =>
        Effect.callback<void>((resume) => {
          const socket = net.connect(Number(port), "127.0.0.1", () => {
            socket.write(`${paths[index % 3]} HTTP/1.1\r\nhost: localhost\r\n\r\n`)
            let ticks = random(20)
            const leave = () => {
              if (ticks-- > 0) return void setImmediate(leave)
              socket.destroy()
              resume(Effect.void)
            }
            leave()
          })
          socket.on("error", () => {})
        }))
      yield* say("Done", undefined)
      yield* until("the session", read(site, "s1"), ({ body }) => body.status === "completed")
      yield* nothingLeft
    }))
})

describe("clients that leave", () => {
  it.live("W-05: in attached mode a client that leaves at any moment leaves no run", () =>
    Effect.gen(function*() {
      let running = 0
      const act = Tool.make("act", {
        parameters: {},
        handler: () =>
          Effect.ensuring(Effect.andThen(Effect.sync(() => running++), Effect.never), Effect.sync(() => running--))
      })
      const site = yield* serve([helper([act])], obedient, { bounds: many, joinMillis: 0, mode: "attached" })
      const { port } = new URL(site.url)
      const random = numbers(3)
      const content = JSON.stringify([{ id: "c0", name: "act" }])
      const body = JSON.stringify({ content })
      yield* together(40, (index) =>
        Effect.callback<void>((resume) => {
          const socket = net.connect(Number(port), "127.0.0.1", () => {
            socket.write(
              `POST ${at}/s${index}/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n`
                + `content-length: ${body.length}\r\n\r\n${body}`
            )
            let ticks = 1 + random(30)
            const leave = () => {
              if (ticks-- > 0) return void setImmediate(leave)
              socket.destroy()
              resume(Effect.void)
            }
            leave()
          })
          socket.on("error", () => {})
        }))
      yield* until(
        "the runs",
        Effect.gen(function*() {
          const { text } = yield* Effect.promise(() => site.ask("GET", at))
          return { running, next: JSON.parse(text).sessions.map(({ next }: any) => next) }
        }),
        ({ next, running }) => running === 0 && next.every((each: string) => each === "nothing")
      )
      yield* nothingLeft
    }))

  it.live("W-05: in attached mode with following messages a client that leaves stops only its own run", () =>
    Effect.gen(function*() {
      const begun: Array<string> = []
      const ended: Array<string> = []
      const act = Tool.make("act", {
        parameters: { name: Schema.String },
        handler: ({ name }) =>
          Effect.ensuring(
            Effect.andThen(Effect.sync(() => begun.push(name)), Effect.never),
            Effect.sync(() => ended.push(name))
          )
      })
      const options = { bounds: many, joinMillis: 0, mode: "attached", whileRunning: "follow" } as const
      const site = yield* serve([helper([act])], obedient, options)
      const asking = (name: string) => ({
        content: JSON.stringify([{ id: "c0", name: "act", args: { name } }]),
        id: name
      })
      const one = yield* open(site, "POST", `${at}/s1/messages`, asking("one"))
      yield* until("the first run", Effect.sync(() => begun), ({ length }) => length === 1)
      const two = yield* open(site, "POST", `${at}/s1/messages`, asking("two"))
      two.leave()
      const three = yield* open(site, "POST", `${at}/s1/messages`, asking("three"))
      assert.deepStrictEqual([begun, ended], [["one"], []])
      one.leave()
      yield* until("the third run", Effect.sync(() => begun), (names) => names.includes("three"))
      assert.notInclude(ended, "three")
      three.leave()
      yield* until("its end", Effect.sync(() => ended), (names) => names.includes("three"))
      yield* nothingLeft
    }))

  it.live("W-05, W-09: an aborted request without a port leaves nothing behind, and its run continues", () =>
    Effect.gen(function*() {
      const { model, say } = told()
      const held = () => {
        const site = parts.get("web")
        return site && heldBy(site)
      }
      const mcp = { mount: (_: unknown, site: Parts) => Effect.sync(() => void parts.set("web", site)) }
      const options = { authorize: Server.allowLoopback, bounds: many, joinMillis: 0, drain: 100, mcp }
      const { dispose, handler } = Server.toWebHandler(
        Server.layer({ agents: [helper()], ...options })
          .pipe(
            Layer.provide([model, Session.Store.layerMemory])
          )
      )
      yield* Effect.addFinalizer(() => Effect.promise(dispose))
      const ask = (method: string, path: string, body?: object, signal?: AbortSignal) =>
        Effect.promise(() =>
          handler(
            new Request(`http://localhost${path}`, {
              method,
              headers: { host: "localhost", ...(body === undefined ? {} : { "content-type": "application/json" }) },
              ...(body === undefined ? {} : { body: JSON.stringify(body) }),
              ...(signal === undefined ? {} : { signal })
            })
          )
        )
      const controllers = Array.from({ length: 20 }, () => new AbortController())
      const message = { content: "Go", id: "m1" }
      for (const [index, { signal }] of controllers.entries()) {
        const response = index % 2 === 0
          ? yield* ask("POST", `${at}/s1/messages`, message, signal)
          : yield* ask("GET", `${at}/s1/events`, undefined, signal)
        assert.strictEqual(response.status, 200)
        const reading = response.body!.getReader()
        yield* Effect.promise(() => reading.read())
      }
      assert.strictEqual(held()?.streams, 20)
      for (const controller of controllers) controller.abort()
      yield* until("the readers", Effect.sync(held), (held) => held?.streams === 0)
      yield* say("Done", undefined)
      yield* until(
        "the session",
        Effect.flatMap(ask("GET", `${at}/s1`), (response) => Effect.promise(() => response.json() as Promise<any>)),
        ({ status }) => status === "completed"
      )
      yield* nothingLeft
    }))

  it.live("W-05: clients that leave at any moment do not stop their runs, and each session is complete", () =>
    Effect.gen(function*() {
      const site = yield* serve([helper()], obedient, { bounds: many, joinMillis: 0 })
      const random = numbers(5)
      const ids = Array.from({ length: 20 }, (_, index) => `s${index}`)
      yield* together(ids.length, (index) =>
        Effect.gen(function*() {
          const reader = yield* open(site, "POST", `${at}/${ids[index]}/messages`, { content: "Hi" })
          for (let ticks = random(20); ticks > 0; ticks--) {
            yield* tick
          }
          reader.leave()
        }))
      for (const id of ids) {
        const { body } = yield* until("the session", read(site, id), ({ body }) => body.status === "completed")
        assert.include(JSON.stringify(body.messages), "Heard: Hi")
      }
      yield* nothingLeft
    }))
})

/** Folds what a reader of plain events got by the rules of the guide: the text of each run, and its ends. */
const runsIn = (sent: ReadonlyArray<Sent>) => {
  const runs = new Map<string, Array<any>>()
  let current = ""
  for (const { data, event } of sent) {
    if (event === "reset") runs.delete(data.runId)
    else {
      if (data._tag === "RunStarted") {
        assert.isFalse(runs.has(data.runId), "a run begins again without a reset")
        runs.set(current = data.runId, [])
      }
      runs.get(current)?.push(data)
    }
  }
  return Array.from(runs.values(), (events) => [
    textsIn(events).join("|"),
    events.filter(({ _tag }) => _tag === "ChatCompleted").length
  ])
}

describe("a session of two servers", () => {
  it.live("W-09: a reader has the end of a run elsewhere before the next run that begins here", () =>
    Effect.gen(function*() {
      const context = yield* Layer.build(Session.Store.layerMemory)
      const store = Context.get(context, Session.Store)
      const [first, second] = [told(), told()]
      const here = yield* serve([helper()], first.model, { store: Layer.succeedContext(context) })
      yield* post(here, `${at}/s1/messages?wait=false`, { content: "one" })
      // The reader does not look at the journal between the end of the first run and the beginning of the second.
      let seen: number | undefined
      const version = (id: string) => Effect.map(store.version(id), (now) => Math.min(now, seen ?? now))
      const agent = Agent.make({
        name: "helper",
        description: "Helps",
        run: () => Effect.sync(() => (seen = undefined, {}))
      })
      const late = Layer.succeed(Session.Store, { ...store, version })
      const there = yield* serve([agent], second.model, { store: late, poll: "1 hour" })
      const reader = yield* open(there, "GET", `${at}/s1/events`)
      yield* Effect.promise(() => reader.until(({ data }) => data._tag === "RunStarted"))
      seen = yield* Effect.orDie(store.version("local:s1"))
      yield* first.say("first", undefined)
      yield* until("the end", read(here, "s1"), ({ body }) => body.next === "nothing")
      yield* post(there, `${at}/s1/messages?wait=false`, { content: "two" })
      yield* second.say("second", undefined)
      const sent = yield* Effect.promise(() =>
        reader.until(({ data }) => data._tag === "ChatCompleted" && JSON.stringify(reader.sent).includes("second"))
      )
      reader.leave()
      assert.deepStrictEqual(runsIn(sent), [["first", 1], ["second", 1]])
    }))

  it.live("W-07: a run that loses its claim continues for each reader, at its old and at its new owner", () =>
    Effect.gen(function*() {
      const context = yield* Layer.build(Session.Store.layerMemory)
      const store = Layer.succeedContext(context)
      const [first, second] = [told(), told()]
      // This server does not find what it has lost.
      const blind = Layer.succeed(Session.Store, {
        ...Context.get(context, Session.Store),
        claimUnfinished: () => Effect.succeed([])
      })
      const here = yield* serve([helper()], first.model, { store: blind, term: "4 seconds" })
      yield* post(here, `${at}/s1/messages?wait=false`, { content: "one" })
      yield* first.say("lost")
      const there = yield* serve([helper()], second.model, { store, poll: "20 millis" })
      const events = [yield* open(here, "GET", `${at}/s1/events`), yield* open(there, "GET", `${at}/s1/events`)]
      const streams = [
        yield* open(here, "GET", `${at}/s1/stream`),
        yield* open(there, "GET", `${at}/s1/stream`),
        yield* open(here, "GET", "/agui/helper/s1")
      ]
      for (const reader of events) {
        yield* Effect.promise(() => reader.until(({ data }) => data._tag === "RunStarted"))
      }
      assert.isTrue(yield* Effect.provideContext(Session.revoke("local:s1"), context))
      yield* second.say("found", undefined)
      for (const reader of events) {
        const sent = yield* Effect.promise(() => reader.until(({ data }) => data._tag === "ChatCompleted"))
        assert.deepStrictEqual(runsIn(sent), [["found", 1]])
      }
      for (const stream of streams) {
        const sent = yield* Effect.promise(() => stream.end())
        assert.include(JSON.stringify(sent.slice(-8)), "found")
      }
      // The next run is where the first one was.
      yield* post(here, `${at}/s1/messages?wait=false`, { content: "two" })
      yield* first.say("next", undefined)
      for (const reader of events) {
        const sent = yield* Effect.promise(() => reader.until(() => runsIn(reader.sent)[1]?.[1] === 1))
        reader.leave()
        assert.deepStrictEqual(runsIn(sent), [["found", 1], ["next", 1]])
      }
    }))
})
