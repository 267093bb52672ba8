/** Runs behind other ones: each is as one alone, in its events, its usage, the calls of its model and its warnings. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Message, type Response, Tool } from "heddle"
import { Agent } from "heddle/server"
import { until } from "../support/until.ts"
import { obedient } from "./support/hostile.ts"
import { nothingHeld } from "./support/ledger.ts"
import { partsOf, type Sent, serve, type Site } from "./support/site.ts"

const at = "/agents/helper/sessions"

/** A model that reports its usage, counts its replies, and fails where the message says so. */
const metered = () => {
  const asked = { count: 0 }
  const model = Layer.effect(
    Adapter.Adapter,
    Effect.map(Adapter.Adapter, (adapter) => ({
      ...adapter,
      stream: (request: Adapter.Request) =>
        Stream.suspend(() => {
          asked.count++
          const last = request.messages.at(-1)
          if (last?.role === "user" && Message.text(last) === "fail") {
            return Stream.fail(new Adapter.AdapterError({ reason: "authentication_failed" }))
          }
          return Stream.map(adapter.stream(request), (event) =>
            event._tag === "MessageCompleted"
              ? { ...event, usage: { inputTokens: 100, outputTokens: 10 } as Response.Usage }
              : event)
        })
    }))
  ).pipe(Layer.provide(obedient))
  return { asked, model }
}

/** What the server has warned of. */
const warned: Array<string> = []

const warnings = Logger.layer([Logger.make(({ logLevel, message }) => {
  if (logLevel === "Warn" || logLevel === "Error") warned.push(String(message))
})])

const site = (options: Parameters<typeof serve>[2] = {}) =>
  Effect.gen(function*() {
    const { asked, model } = metered()
    const gates = new Map<string, Deferred.Deferred<void>>()
    const gate = (name: string) => {
      const known = gates.get(name) ?? Deferred.makeUnsafe<void>()
      gates.set(name, known)
      return known
    }
    const tools = [
      Tool.make("add", { parameters: { a: Schema.Finite }, handler: ({ a }) => Effect.succeed(a + 1) }),
      Tool.make("pay", { parameters: { a: Schema.Finite }, approval: true, handler: ({ a }) => Effect.succeed(a) }),
      Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("How many?")) }),
      Tool.make("wait", {
        parameters: { name: Schema.String },
        handler: ({ name }) =>
          Effect.as(
            Effect.andThen(Deferred.succeed(gate(`${name} began`), undefined), Deferred.await(gate(name))),
            "ok"
          )
      })
    ]
    const agents = [Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools }) })]
    const bounds = { writes: 1e6, runs: 1_000, streams: 1_000, ...options.bounds }
    const served = yield* Effect.provide(serve(agents, model, { joinMillis: 0, ...options, bounds }), warnings)
    return { ...served, asked, gate }
  })

type Served = Effect.Success<ReturnType<typeof site>>

const post = (all: Site, path: string, body?: unknown) => Effect.promise(() => all.ask("POST", path, body))

const say = (all: Site, id: string, content: string) => post(all, `${at}/${id}/messages`, { content })

const calls = (...given: ReadonlyArray<readonly [name: string, args: object]>): string =>
  JSON.stringify(given.map(([name, args], index) => ({ id: `c${index}`, name, args })))

const read = (all: Site, id: string) =>
  Effect.map(Effect.promise(() => all.ask("GET", `${at}/${id}`)), ({ text }) => JSON.parse(text))

/** Ends of a first run. */
const firsts: Readonly<Record<string, (all: Served, id: string) => Effect.Effect<unknown>>> = {
  "completed": (all, id) => say(all, id, "Hi"),
  "completed with calls of the same ids": (all, id) => say(all, id, calls(["add", { a: 1 }], ["add", { a: 2 }])),
  "failed": (all, id) => say(all, id, "fail"),
  "failed and tried again": (all, id) => Effect.andThen(say(all, id, "fail"), post(all, `${at}/${id}/resume`)),
  "with a call that fails": (all, id) => say(all, id, calls(["nosuch", {}], ["add", { a: "x" }])),
  "stopped": (all, id) =>
    Effect.gen(function*() {
      yield* post(all, `${at}/${id}/messages?wait=false`, { content: calls(["wait", { name: id }]) })
      yield* Deferred.await(all.gate(`${id} began`))
      yield* post(all, `${at}/${id}/stop`)
    }),
  "left by its client": (all, id) =>
    Effect.gen(function*() {
      const reader = yield* Effect.promise(() =>
        all.open("POST", `${at}/${id}/messages`, { content: calls(["wait", { name: id }]) })
      )
      yield* Deferred.await(all.gate(`${id} began`))
      reader.leave()
      yield* Deferred.succeed(all.gate(id), undefined)
      yield* until("the end", read(all, id), ({ status }) => status === "completed")
    }),
  "beside a message that was refused": (all, id) =>
    Effect.gen(function*() {
      yield* post(all, `${at}/${id}/messages?wait=false`, { content: calls(["wait", { name: id }]) })
      yield* Deferred.await(all.gate(`${id} began`))
      assert.strictEqual((yield* say(all, id, "Hi")).status, 409)
      yield* Deferred.succeed(all.gate(id), undefined)
      yield* until("the end", read(all, id), ({ status }) => status === "completed")
    }),
  ...Object.fromEntries(
    ([
      ["approved", "pay", { approve: true }],
      ["approved with other arguments", "pay", { approve: true, arguments: { a: 7 } }],
      ["denied", "pay", { approve: false, reason: "No." }],
      ["answered", "ask", { value: "three" }]
    ] as const).map(([name, tool, verdict]) => [name, (all: Served, id: string) =>
      Effect.gen(function*() {
        yield* say(all, id, calls([tool, tool === "pay" ? { a: 1 } : {}]))
        const [open] = (yield* read(all, id)).suspensions
        const answered = yield* post(all, `${at}/${id}/answers`, { answers: [{ id: open.id, ...verdict }] })
        assert.strictEqual(answered.status, 200, answered.text)
      })]
    )
  ),
  "of a session that was removed": (all, id) =>
    Effect.andThen(say(all, id, calls(["add", { a: 5 }])), Effect.promise(() => all.ask("DELETE", `${at}/${id}`)))
}

const second = calls(["add", { a: 1 }], ["nosuch", {}])

const user = { id: "second", role: "user", content: second, parts: [{ type: "text", text: second }] }

/** Ways to send a message and read its run. */
const ways: Readonly<Record<string, (id: string) => readonly [path: string, body: unknown]>> = {
  "plain": (id) => [`${at}/${id}/messages`, { content: second, id: "second" }],
  "the AI SDK": (id) => [at, { id, trigger: "submit-message", messages: [user] }],
  "AG-UI": (id) => ["/agui/helper", { threadId: id, runId: "r2", messages: [user], tools: [] }]
}

/**
 * Returns what was sent without the names of the session and the run, and without times. A call whose id is used in the
 * session has the next one, which is as the id of the call alone.
 */
const normal = (sent: ReadonlyArray<Sent>, id: string): ReadonlyArray<unknown> =>
  sent.filter(({ data }) => data.type !== "MESSAGES_SNAPSHOT").map(({ data, event }) => ({
    event,
    data: JSON.parse(
      JSON.stringify(
        data,
        (key, value) => /^(at|asked|millis|timestamp|startedAt|endedAt|duration.*)$/.test(key) ? 0 : value
      )
        .replaceAll(/[0-9a-f]{8}-[0-9a-f-]{27}/g, "RUN").replaceAll(`"${id}"`, "\"SESSION\"")
        .replaceAll(/\b(c\d)_2\b/g, "$1")
    )
  }))

const run = (all: Served, way: string, id: string) =>
  Effect.gen(function*() {
    const [path, body] = ways[way]!(id)
    const before = all.asked.count
    warned.length = 0
    const reader = yield* Effect.promise(() => all.open("POST", path, body))
    assert.strictEqual(reader.status, 200, `${way} ${id}`)
    const sent = normal(yield* Effect.promise(reader.end), id)
    const { next, status, suspensions } = yield* read(all, id)
    return { sent, warned: [...warned], asked: all.asked.count - before, after: { next, status, suspensions } }
  })

const servers: Readonly<Record<string, readonly [Parameters<typeof serve>[2], ReadonlyArray<string>]>> = {
  "in all protocols": [{}, Object.keys(ways)],
  "from the journal, where logs are full": [{ bounds: { log: 10 } }, ["plain"]],
  "with names of calls alone": [{ publish: "names" }, ["the AI SDK"]]
}

describe("a second run", () => {
  for (const [server, [options, protocols]] of Object.entries(servers)) {
    it.live(`a run after another run works like the only run of its session, ${server}`, () =>
      Effect.gen(function*() {
        const all = yield* site(options)
        let count = 0
        for (const way of protocols) {
          const alone = yield* run(all, way, `alone${count++}`)
          assert.isAbove(alone.sent.length, 3)
          assert.strictEqual(alone.asked, 2)
          if (way === "plain") {
            const { totalUsage } = (alone.sent.at(-1) as any).data
            assert.deepInclude(totalUsage, { inputTokens: 200, outputTokens: 20 })
          }
          for (const [name, first] of Object.entries(firsts)) {
            const id = `s${count++}`
            yield* first(all, id)
            assert.deepStrictEqual(yield* run(all, way, id), alone, `${way}: ${name}`)
          }
        }
        yield* nothingHeld([partsOf(all)])
      }), 120_000)
  }
})
