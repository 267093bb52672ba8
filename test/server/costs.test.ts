/** The cost of a run, which leaves a server only where its options say so: live, from the journal and on every route. */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Budget, Chat, type Event, Response, Session, Tool } from "heddle"
import { Agent } from "heddle/server"
import { Script } from "heddle/testing"
import * as JournalEvents from "../../src/server/internal/journalEvents.ts"
import { eventsOf, serve } from "./support/site.ts"

const at = "/agents/helper/sessions"

/** Figures that stand nowhere else. */
const prices = { inputCost: 0.071_113, outputCost: 0.071_117, totalCost: 0.142_23 }

const used = (cost: object) => Script.usage(Response.usage({ inputTokens: 3, outputTokens: 4, ...cost }))

const turns = (cost: object, name: string) => [
  [Script.toolCall("c", name), used(cost), Script.finish("tool_calls")],
  [Script.text("done"), used(cost), Script.finish("stop")]
]

const echo = Tool.make("echo", { parameters: {}, handler: () => Effect.void })

const sub = Tool.fromChat("sub", {
  parameters: {},
  chat: () => Stream.provide(Chat.stream("sub", { tools: [echo] }), Script.layer(turns(prices, "echo")))
})

const agentsOf = (budget: Budget.Budget | undefined) => [
  Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools: [sub], budget }) })
]

const usagesIn = (events: ReadonlyArray<Event.PublicEvent>) =>
  events.flatMap((event) =>
    event._tag === "StepCompleted"
      ? [event.usage]
      : event._tag === "ChatCompleted"
      ? [event.usage, event.totalUsage, event.nestedUsage]
      : []
  )

const times = (count: number, cost: object = prices): object => ({
  inputTokens: 3 * count,
  outputTokens: 4 * count,
  ...Object.fromEntries(
    Object.entries(cost).map(([name, value]) => [name, typeof value === "number" ? sum(value, count) : value])
  )
})

/** Adds as the sum of usages does, figure after figure. */
const sum = (value: number, count: number) =>
  Array.from({ length: count }, () => value).reduce((all, next) => all + next)

/** Serves a run, and returns its public events, those of its journal, and all that the server says of the session. */
const served = (options: { readonly publishCost?: boolean }, cost: object, budget?: Budget.Budget) =>
  Effect.gen(function*() {
    const store = Context.get(yield* Layer.build(Session.Store.layerMemory), Session.Store)
    const model = Script.layer([...turns(cost, "sub"), ...turns(cost, "sub")])
    const site = yield* serve(agentsOf(budget), model, {
      ...options,
      joinMillis: 0,
      store: Layer.succeed(Session.Store, store)
    })
    const reader = yield* Effect.promise(() => site.open("POST", `${at}/s1/messages`, { content: "go" }))
    const sent = yield* Effect.promise(() => reader.end())
    const telling = new JournalEvents.Telling("local:s1", { publishCost: options.publishCost === true })
    const entries = yield* Stream.runCollect(store.read("local:s1"))
    const told = entries.flatMap((entry) => telling.take(entry).map(({ event }) => event))
    const message = { id: "m", role: "user", parts: [{ type: "text", text: "go" }] }
    const page = yield* Effect.promise(() => site.open("POST", at, { id: "s2", messages: [message] }))
    const chunks = yield* Effect.promise(() => page.end())
    assert.strictEqual(page.status, 200)
    const routes = yield* Effect.forEach(
      [`${at}/s1`, `${at}/s1/runs`, at],
      (path) => Effect.promise(() => site.ask("GET", path))
    )
    const said = JSON.stringify([sent, chunks, routes.map(({ text }) => text)])
    return { live: eventsOf(sent), told, said }
  }).pipe(Effect.scoped)

describe("costs that providers report", () => {
  it.live("V-12: costs leave no server without publishCost", () =>
    Effect.gen(function*() {
      for (const options of [{}, { publishCost: false }]) {
        const { live, said, told } = yield* served(options, { ...prices, currency: "USD" })
        assert.deepStrictEqual(usagesIn(live), [1, 1, 2, 4, 2].map((count) => times(count, {})) as never)
        assert.deepStrictEqual(usagesIn(told), usagesIn(live))
        assert.notMatch(said, /Cost|currency|USD|0\.0711|0\.1422|0\.2844|0\.5689/)
      }
    }))

  it.live("V-12: with publishCost, costs are in the usage of each step and run, live and from the journal", () =>
    Effect.gen(function*() {
      const { live, told } = yield* served({ publishCost: true }, prices)
      assert.deepStrictEqual(usagesIn(live), [1, 1, 2, 4, 2].map((count) => times(count)) as never)
      assert.deepStrictEqual(usagesIn(told), usagesIn(live))
    }))

  it.live("V-12: with publishCost, the end of a run has its spent budget, live and from the journal", () =>
    Effect.gen(function*() {
      const spentIn = (events: ReadonlyArray<Event.PublicEvent>) =>
        events.flatMap((event) => event._tag === "ChatCompleted" ? [event.spent] : [])
      const budget = Budget.make({ calls: 9, tokens: 90_000 })
      const { live, told } = yield* served({ publishCost: true }, {}, budget)
      const money = 2 * Math.ceil(prices.totalCost * 1_000_000)
      const spent = { calls: 4, inputTokens: 12, outputTokens: 16, money, left: { calls: 5, tokens: 89_972 } }
      assert.deepStrictEqual(spentIn(live), [spent])
      assert.deepStrictEqual(spentIn(told), [spent])
      for (const [options, own] of [[{}, budget], [{ publishCost: true }, undefined]] as const) {
        const { live, told } = yield* served(options, {}, own)
        assert.deepStrictEqual([...spentIn(live), ...spentIn(told)], [undefined, undefined])
      }
    }))

  it.live("V-12: a usage has the known cost figures, and no cost of 0 for an unknown cost", () =>
    Effect.gen(function*() {
      const { live, told } = yield* served({ publishCost: true }, { totalCost: 0.5 })
      assert.deepStrictEqual(
        usagesIn(live).slice(0, 3),
        [1, 1, 2].map((count) => times(count, { totalCost: 0.5 })) as never
      )
      assert.deepStrictEqual(usagesIn(told), usagesIn(live))
      const unknown = yield* served({ publishCost: true }, {})
      assert.deepStrictEqual(usagesIn(unknown.live).slice(0, 3), [1, 1, 2].map((count) => times(count, {})) as never)
    }))

  it.live("V-12: a usage has its currency, and no cost if a part of the run has another currency", () =>
    Effect.gen(function*() {
      const priced = { ...prices, currency: "EUR" }
      const { live, told } = yield* served({ publishCost: true }, priced)
      const [step, , own, total, nested] = usagesIn(live)
      assert.deepStrictEqual([step, own], [times(1, priced), times(2, priced)] as never)
      // The run inside the handler does not say what its figures are in.
      assert.deepStrictEqual(nested, times(2) as never)
      assert.deepStrictEqual(total, times(4, {}) as never)
      assert.deepStrictEqual(usagesIn(told), usagesIn(live))
    }))
})

describe("the sum of usages", () => {
  const cost = (totalCost: number, currency?: string) =>
    Response.usage({ totalCost, ...(currency === undefined ? {} : { currency }) })
  const free = Response.usage({ inputTokens: 1, currency: "JPY" })

  it("V-12: a sum of usages keeps the only currency of its parts, in any order, and is XXX for several currencies", () => {
    const cases: ReadonlyArray<readonly [ReadonlyArray<Response.Usage>, unknown]> = [
      [[cost(1, "EUR"), cost(2, "EUR")], "EUR"],
      [[cost(1), cost(2)], undefined],
      [[cost(1, "EUR"), cost(2, "USD")], "XXX"],
      [[cost(1, "EUR"), cost(2)], "XXX"],
      [[cost(1), cost(2, "EUR")], "XXX"],
      [[cost(1, "EUR"), cost(2, "USD"), cost(3, "EUR")], "XXX"],
      [[cost(1, "EUR"), free], "EUR"],
      [[free, cost(1, "EUR")], "EUR"]
    ]
    for (const [parts, currency] of cases) {
      const total = Response.sumUsage(parts)
      assert.strictEqual(total?.extra["currency"], currency, JSON.stringify(parts.map(({ extra }) => extra)))
    }
  })
})
