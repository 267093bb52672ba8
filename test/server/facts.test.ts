/** What a page learns of an agent before the first message: its model, its tools, and examples. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Schema from "effect/Schema"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Chat, Policy, Tool } from "heddle"
import { Agent } from "heddle/server"
import * as Facts from "../../src/server/internal/facts.ts"
import { bearer, byToken, obedient, send } from "./support/hostile.ts"
import { serve, type Site } from "./support/site.ts"

const model = Layer.effect(
  Adapter.Adapter,
  Effect.map(Adapter.Adapter, (adapter) => ({ ...adapter, provider: "openai", model: "small" }))
).pipe(Layer.provide(obedient))

const factsAt = ({ url }: Site, token: string, name = "helper") =>
  Effect.map(
    send(url, { path: `/agents/${name}`, headers: bearer(token) }),
    ({ status, text }) => ({ status, body: JSON.parse(text) })
  )

const handler = () => Effect.succeed("done")

const tools = [
  Tool.make("search", { description: "Searches", parameters: {}, readOnly: true, openWorld: true, handler }),
  Tool.make("remove", { description: "Removes", parameters: {}, destructive: true, approval: true, handler }),
  Tool.make("query", {
    description: "Asks a database",
    parameters: { sql: Schema.String },
    readOnly: ({ sql }) => sql.startsWith("SELECT"),
    destructive: ({ sql }) => sql.startsWith("DROP"),
    approval: ({ sql }) => sql.startsWith("DROP"),
    handler
  }),
  Tool.make("pick", { description: "Is answered by the caller", parameters: {}, manual: true }),
  Tool.fromChat("research", { description: "Researches", parameters: {}, chat: () => Chat.stream("Find out") }),
  { ...Agent.toTool(Agent.make({ name: "writer", description: "Writes", run: () => ({}) })), name: "write" }
]

const plain = { readOnly: false, destructive: false, openWorld: false, approval: "never" }

describe("facts about an agent", () => {
  it.live("W-31: the facts about an agent name its model and its tools, with their hints and approvals", () =>
    Effect.gen(function*() {
      const agent = Agent.make({
        name: "helper",
        description: "Helps",
        examples: ["What is new?", "Remove the old ones"],
        run: ({ principal }) => ({ tools, ...(principal === "bea" ? { model: "large" } : {}) })
      })
      const known = Tool.make("time", { description: "Tells the time", parameters: {}, handler })
      const site = yield* serve([agent], model, { authorize: byToken(), hosts: ["127.0.0.1"] }).pipe(
        Effect.provide(Policy.layer({ tools: [known] }))
      )
      const { body, status } = yield* factsAt(site, "ann")
      assert.strictEqual(status, 200)
      assert.deepStrictEqual(body, {
        name: "helper",
        description: "Helps",
        examples: ["What is new?", "Remove the old ones"],
        model: "small",
        provider: "openai",
        tools: [
          { name: "time", description: "Tells the time", ...plain },
          { name: "search", description: "Searches", ...plain, readOnly: true, openWorld: true },
          { name: "remove", description: "Removes", ...plain, destructive: true, approval: "always" },
          { name: "query", description: "Asks a database", ...plain, destructive: true, approval: "sometimes" },
          { name: "pick", description: "Is answered by the caller", ...plain },
          { name: "research", description: "Researches", ...plain, agent: "research" },
          { name: "write", description: "Writes", ...plain, agent: "writer" }
        ]
      })
      assert.strictEqual((yield* factsAt(site, "bea")).body.model, "large")
      assert.strictEqual((yield* factsAt(site, "operator@bea")).body.model, "large")
    }))

  it.live("W-31: the facts about an agent are for principals that may list sessions, and an unknown agent is refused", () =>
    Effect.gen(function*() {
      const asked: Array<string> = []
      const agent = Agent.make({
        name: "helper",
        description: "Helps",
        run: ({ principal }) => Effect.sync(() => (asked.push(principal), {}))
      })
      const site = yield* serve([agent], obedient, { authorize: byToken(), hosts: ["127.0.0.1"] })
      const forbidden = yield* factsAt(site, "ann:read,write")
      assert.deepStrictEqual([forbidden.status, forbidden.body.error.code], [403, "forbidden"])
      const unknown = yield* factsAt(site, "ann", "other")
      assert.deepStrictEqual([unknown.status, unknown.body.error.code], [404, "unknown_agent"])
      assert.deepStrictEqual(asked, [])
      const bare = yield* factsAt(site, "ann:list")
      assert.deepStrictEqual(bare.body, { name: "helper", description: "Helps", tools: [] })
    }))

  it.live("W-31: the facts publish a tool as far as its calls: its name only, or nothing", () =>
    Effect.gen(function*() {
      const agent = Agent.make({ name: "helper", description: "Helps", run: () => ({ tools }) })
      const extents: Record<string, "all" | "names" | "none"> = { search: "all", remove: "names" }
      const site = yield* serve([agent], obedient, { publish: (tool) => extents[tool] ?? "none" })
      const { body } = yield* factsAt(site, "")
      assert.deepStrictEqual(body.tools, [
        { name: "search", description: "Searches", ...plain, readOnly: true, openWorld: true },
        { name: "remove", description: "", ...plain, destructive: true, approval: "always" }
      ])
    }))

  it.live("W-31: reading the facts releases what the agent's options acquired, and cuts a long description between characters", () =>
    Effect.gen(function*() {
      const done: Array<string> = []
      const long = Tool.make("long", { description: `${"x".repeat(999)}😀`, parameters: {}, handler })
      const agent = Agent.make({
        name: "helper",
        description: "Helps",
        run: () =>
          Effect.acquireRelease(
            Effect.sync(() => (done.push("taken"), { tools: [long] })),
            () => Effect.sync(() => done.push("given back"))
          )
      })
      const site = yield* serve([agent], obedient)
      const { body } = yield* factsAt(site, "")
      assert.strictEqual(body.tools[0].description, "x".repeat(999))
      assert.deepStrictEqual(done, ["taken", "given back"])
    }))

  it.live("W-31: an agent whose options die has its description and examples, and says why it has no tools", () =>
    Effect.gen(function*() {
      const run = (): never => {
        throw new Error("sk-0123456789abcdef")
      }
      const helper = Agent.make({ name: "helper", description: "Helps", examples: ["Hi"], run })
      const site = yield* Effect.provide(serve([helper], model), Logger.layer([]))
      const { body, status } = yield* factsAt(site, "")
      assert.deepStrictEqual([status, body], [
        200,
        { name: "helper", description: "Helps", examples: ["Hi"], unavailable: "failed" }
      ])
    }))
})

const agent = { name: "helper", description: "Helps", examples: ["Hi"] }

/** The facts by options that a test makes, and how often they were asked for. */
const counted = (optionsOf: (count: number) => Effect.Effect<Agent.Options>) =>
  Effect.gen(function*() {
    const asked: Array<string> = []
    const facts = yield* Facts.make({
      optionsOf: (name, principal) => Effect.suspend(() => optionsOf(asked.push(`${name} ${principal}`))),
      adapter: undefined,
      defaults: {},
      publish: undefined
    })
    return { facts, asked }
  })

describe("the cache of facts", () => {
  it.effect("W-31: the server reads the facts once a minute for each principal, and once for concurrent readers", () =>
    Effect.gen(function*() {
      const { asked, facts } = yield* counted((count) => Effect.as(Effect.sleep("1 second"), { model: `m${count}` }))
      const both = yield* Effect.forkChild(
        Effect.all([facts(agent, "ann"), facts(agent, "ann")], { concurrency: "unbounded" })
      )
      yield* TestClock.adjust("1 second")
      const models = Array.from(yield* Fiber.join(both), ({ model }) => model)
      assert.deepStrictEqual(models, ["m1", "m1"])
      yield* TestClock.adjust("59 seconds")
      assert.strictEqual((yield* facts(agent, "ann")).model, "m1")
      const other = yield* Effect.forkChild(facts(agent, "bea"))
      yield* TestClock.adjust("1 second")
      assert.strictEqual((yield* Fiber.join(other)).model, "m2")
      const again = yield* Effect.forkChild(facts(agent, "ann"))
      yield* TestClock.adjust("1 second")
      assert.strictEqual((yield* Fiber.join(again)).model, "m3")
      assert.deepStrictEqual(asked, ["helper ann", "helper bea", "helper ann"])
    }))

  it.effect("W-31: options that take longer than ten seconds are given up, and read again ten seconds later", () =>
    Effect.gen(function*() {
      const left = Deferred.makeUnsafe<void>()
      const { asked, facts } = yield* counted((count) =>
        count === 1
          ? Effect.onInterrupt(Effect.never, () => Deferred.succeed(left, undefined))
          : Effect.succeed({ model: "large" })
      )
      const waiting = yield* Effect.forkChild(facts(agent, "ann"))
      yield* TestClock.adjust("9999 millis")
      assert.isUndefined(waiting.pollUnsafe())
      yield* TestClock.adjust("1 millis")
      assert.deepStrictEqual(yield* Fiber.join(waiting), { ...agent, unavailable: "timeout" })
      yield* Deferred.await(left)
      yield* TestClock.adjust("9999 millis")
      assert.strictEqual((yield* facts(agent, "ann")).unavailable, "timeout")
      yield* TestClock.adjust("1 millis")
      assert.deepStrictEqual(yield* facts(agent, "ann"), { ...agent, model: "large", tools: [] })
      assert.strictEqual(asked.length, 2)
    }))

  it.effect("W-31: a reader that leaves does not end the reading for another reader", () =>
    Effect.gen(function*() {
      const { asked, facts } = yield* counted(() => Effect.as(Effect.sleep("1 second"), { model: "large" }))
      const first = yield* Effect.forkChild(facts(agent, "ann"))
      const second = yield* Effect.forkChild(facts(agent, "ann"))
      yield* TestClock.adjust("500 millis")
      yield* Fiber.interrupt(first)
      yield* TestClock.adjust("500 millis")
      assert.strictEqual((yield* Fiber.join(second)).model, "large")
      assert.strictEqual(asked.length, 1)
    }))
})

describe("examples of an agent", () => {
  it("O-11: an example that is not a text, or is empty, is a defect that names its index", () => {
    const make = (examples: unknown) => () =>
      Agent.make({ name: "helper", description: "Helps", examples: examples as never, run: () => ({}) })
    assert.throws(make(["Hi", ""]), /examples\[1\]/)
    assert.throws(make("Hi"), /examples/)
  })
})
