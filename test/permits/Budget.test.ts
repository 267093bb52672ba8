import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Budget, Chat, type Event, Limits, Message, Pricing, Rule, Step, Tool } from "heddle"
import { everyStep, Script } from "heddle/testing"
import { passing } from "../support/edges.ts"

const { delay, error, finish, preflightError, streamError, text, toolCall, usage } = Script

type Reply = ReadonlyArray<Script.Entry>

/** A model that counts its requests. `reply` gives the reply to each. */
const modelOf = (reply: (request: Adapter.Request, index: number) => Reply, facts: Partial<Adapter.Service> = {}) => {
  const requests: Array<Adapter.Request> = []
  const service: Adapter.Service = {
    ...facts,
    stream: (request) => {
      const index = requests.push(request) - 1
      return Stream.unwrap(Effect.map(Script.make(reply(request, index)), (scripted) => scripted.stream(request)))
    }
  }
  return { requests, layer: Adapter.layer(service) }
}

const used = (inputTokens: number, outputTokens: number) => usage({ inputTokens, outputTokens })
const say = (words: string, ...more: Reply): Reply => [text(words), ...more, finish("stop")]
const call = (name: string, ...more: Reply): Reply => [toolCall("c", name, {}), ...more, finish("tool_calls")]

const look = Tool.make("look", { parameters: {}, handler: () => Effect.succeed("a loom") })

/** Runs on the virtual clock until the run has ended. */
const timed = <A, E, R>(program: Effect.Effect<A, E, R>) => passing(program, 1_000)

const tokensIn = (spent: Event.Spent | undefined) => (spent?.inputTokens ?? 0) + (spent?.outputTokens ?? 0)

const ended = (result: Event.ChatResult) => result.outcome._tag === "RuleEnded" ? result.outcome.detail : result.outcome

const table: Pricing.Table = {
  openai: {
    models: {
      "gpt-5": { cost: { input: 1.25, output: 10, cache_read: 0.125 } },
      "gpt-5-mini": { cost: { input: 0.25, output: 2 } },
      "gpt-writes": { cost: { input: 1, output: 8, cache_read: 0.5, cache_write: 4 } },
      "gpt-free": { cost: { input: 0, output: 0 } }
    }
  }
}

describe("a layer's account", () => {
  const twenty = (model: Layer.Layer<Adapter.Adapter>, budget: Budget.Budget) =>
    Effect.all(Array.from({ length: 20 }, (_, index) => Chat.run(`Say ${index}`)), { concurrency: "unbounded" }).pipe(
      Effect.provide(Layer.merge(model, Limits.layer({ budget })))
    )

  it.effect("G1: of twenty concurrent runs under a limit of seven calls, seven complete and thirteen end", () =>
    Effect.gen(function*() {
      const model = modelOf(() => [delay("1 second"), ...say("Yes.")])
      const results = yield* timed(twenty(model.layer, Budget.make({ calls: 7 })))
      assert.lengthOf(model.requests, 7)
      assert.deepStrictEqual(
        results.map(({ haltedReason }) => haltedReason).sort(),
        [...Array<string>(13).fill("budget"), ...Array<string>(7).fill("completed")]
      )
      const halted = results.filter(({ haltedReason }) => haltedReason === "budget")
      for (const result of halted) assert.deepStrictEqual(ended(result), { resource: "calls", limit: 7, spent: 7 })
    }))

  it.effect("G8: the same order of requests gets the same grants, never above the limit", () =>
    Effect.gen(function*() {
      const seen = new Set<string>()
      for (let round = 0; round < 100; round++) {
        let running = 0
        let most = 0
        const model = modelOf((_, index) => [
          delay(Duration.millis(10 + (index * 7 + round * 3) % 13)),
          ...say("Yes.", used(10, 10))
        ])
        const budget = Budget.make({ tokens: 20_000 }, { estimate: () => 904 })
        const watched = Adapter.layer({
          stream: (request) =>
            Stream.unwrap(Adapter.Adapter.useSync((adapter) => {
              most = Math.max(most, ++running)
              return Stream.ensuring(adapter.stream(request), Effect.sync(() => running--))
            })).pipe(Stream.provide(model.layer))
        })
        const results = yield* timed(twenty(watched, budget))
        assert.isAtMost(most, 4)
        seen.add(results.map(({ haltedReason }) => haltedReason).join())
      }
      assert.strictEqual(seen.size, 1)
    }))

  it.effect("G10: the account counts a step, a classification and a second pass whose reply breaks", () =>
    Effect.gen(function*() {
      const model = modelOf((_, index) => index === 3 ? [streamError("network_error")] : say("{\"a\":1}"))
      const format = { type: "json_schema", name: "a", schema: { type: "object", properties: {} } } as const
      const spent = yield* Effect.gen(function*() {
        yield* Step.run("One")
        yield* Adapter.classify([Message.user("Two")])
        yield* Chat.run("Three", { responseFormat: format, structuredFinalize: true })
        return yield* Budget.spent
      }).pipe(Effect.provide(Layer.merge(model.layer, Limits.layer({ budget: Budget.make({ calls: 10 }) }))))
      assert.strictEqual(spent?.left.calls, 10 - model.requests.length)
      assert.lengthOf(model.requests, 4)
    }))

  it.effect("G3, G10: a reply's usage settles a classification, and each classification has its own id", () =>
    Effect.gen(function*() {
      const ids = new Set<string>()
      const budget = Budget.from({
        reserve: ({ id }) => Effect.sync(() => void ids.add(id)).pipe(Effect.as(true)),
        settle: () => Effect.void
      })
      const model = modelOf((_, index) => index === 0 ? say("Yes.", used(10, 5)) : say("No.", used(20, 5)))
      const spent = yield* Effect.gen(function*() {
        yield* Adapter.classify([Message.user("One")])
        yield* Adapter.classify([Message.user("Two")])
        return yield* Budget.spent
      }).pipe(Effect.provide([model.layer, Limits.layer({ budget })]))
      assert.deepStrictEqual([spent?.calls, spent?.inputTokens, spent?.outputTokens], [2, 30, 10])
      assert.strictEqual(ids.size, 2)
    }))

  it.effect("G10: a step and a classification fail without a request when the account refuses them", () =>
    Effect.gen(function*() {
      const model = modelOf(() => say("Yes."))
      const errors = yield* Effect.all([
        Effect.flip(Step.run("One")),
        Effect.flip(Adapter.classify([Message.user("Two")]))
      ]).pipe(Effect.provide(Layer.merge(model.layer, Limits.layer({ budget: Budget.make({ calls: 0 }) }))))
      for (const error of errors) assert.propertyVal(error, "reason", "invalid_request")
      assert.lengthOf(model.requests, 0)
    }))
})

describe("a run with a budget", () => {
  it.effect("G7: an exhausted budget leaves one closing call without tools", () =>
    Effect.gen(function*() {
      const model = modelOf((_, index) => index < 2 ? call("look") : say("A loom."))
      const result = yield* Chat.run("What?", { tools: [look], budget: Budget.make({ calls: 3 }) }).pipe(
        Effect.provide(model.layer)
      )
      assert.strictEqual(result.finalized, "budget")
      assert.strictEqual(result.haltedReason, "completed")
      assert.strictEqual(model.requests[2]?.toolChoice, "none")
      assert.strictEqual(result.spent?.calls, 3)
      assert.deepStrictEqual(result.spent?.left, { calls: 0 })
    }))

  it.effect("G7: an exhausted budget with \"halt\" ends the run and answers its calls", () =>
    Effect.gen(function*() {
      const model = modelOf(() => call("look"))
      const budget = Budget.make({ calls: 2 }, { onExhausted: "halt" })
      const result = yield* Chat.run("What?", { tools: [look], budget }).pipe(Effect.provide(model.layer))
      assert.deepStrictEqual(ended(result), { resource: "calls", limit: 2, spent: 2 })
      assert.strictEqual(result.thread.messages.at(-1)?.role, "tool")
      assert.lengthOf(model.requests, 2)
    }))

  for (const resource of ["calls", "inputTokens", "outputTokens", "tokens", "money"] as const) {
    it.effect(`G6: a run with a limit of 0 ${resource} makes no request`, () =>
      Effect.gen(function*() {
        const model = modelOf(() => say("Yes."), { provider: "openai", model: "gpt-free" })
        const result = yield* Chat.run("Hi", { budget: Budget.make({ [resource]: 0 }) }).pipe(
          Effect.provide(Layer.merge(model.layer, Pricing.layer(table)))
        )
        assert.deepStrictEqual(ended(result), { resource, limit: 0, spent: 0 })
        assert.lengthOf(model.requests, 0)
      }))
  }

  it.effect("G5: a model without a price makes no request under a money limit", () =>
    Effect.gen(function*() {
      const model = modelOf(() => say("Yes."), { provider: "openai", model: "gpt-6" })
      const result = yield* Chat.run("Hi", { budget: Budget.make({ money: 1_000_000 }) }).pipe(
        Effect.provide(Layer.merge(model.layer, Pricing.layer(table)))
      )
      assert.deepStrictEqual(ended(result), { resource: "money", limit: 1_000_000, spent: 0, reason: "unpriced" })
      assert.lengthOf(model.requests, 0)
    }))

  it.effect("G5: \"count-tokens\" counts the tokens of a model without a price", () =>
    Effect.gen(function*() {
      const model = modelOf(() => say("Yes.", used(10, 5)), { provider: "openai", model: "gpt-6" })
      const budget = Budget.make({ money: 0 + 1, tokens: 20_000 }, { onUnpriced: "count-tokens" })
      const result = yield* Chat.run("Hi", { budget }).pipe(Effect.provide(model.layer))
      assert.deepStrictEqual(result.spent, {
        calls: 1,
        inputTokens: 10,
        outputTokens: 5,
        money: 0,
        left: { money: 1, tokens: 19_985 }
      })
    }))

  const priced: ReadonlyArray<readonly [string, string | undefined, number]> = [
    ["gpt-5", undefined, 2_250],
    ["gpt-5-mini", undefined, 450],
    ["gpt-5-2025-08-07", undefined, 2_250],
    ["gpt-5-20250807", undefined, 2_250],
    ["alias", "gpt-5-mini-2025-08-07", 450]
  ]
  for (const [requested, replied, money] of priced) {
    it.effect(`G92: a reply of ${requested}${replied === undefined ? "" : `, which replies as ${replied},`} costs ${money}`, () =>
      Effect.gen(function*() {
        const model = modelOf(
          () => [text("Yes."), used(1_000, 100), finish("stop", replied === undefined ? {} : { model: replied })],
          { provider: "openai", model: requested }
        )
        const budget = Budget.make({ calls: 9, tokens: 100_000 })
        const result = yield* Chat.run("Hi", { budget }).pipe(
          Effect.provide(Layer.merge(model.layer, Pricing.layer(table)))
        )
        assert.strictEqual(result.spent?.money, money)
      }))
  }

  it.effect("a price is rounded up, and cached tokens have their own price", () =>
    Effect.gen(function*() {
      const counts = usage({ inputTokens: 1_001, cachedInputTokens: 1_000, outputTokens: 0 })
      const model = modelOf(() => say("Yes.", counts), { provider: "openai", model: "gpt-5" })
      const result = yield* Chat.run("Hi", { budget: Budget.make({ calls: 2 }) }).pipe(
        Effect.provide(Layer.merge(model.layer, Pricing.layer(table)))
      )
      assert.strictEqual(result.spent?.money, 127)
    }))

  it.effect("tokens written to the cache cost the price of cache writes once, or the input price if the table lacks it", () =>
    Effect.gen(function*() {
      const counts = usage({ inputTokens: 900, cachedInputTokens: 200, cacheWriteInputTokens: 300, outputTokens: 10 })
      for (const [name, money] of [["gpt-writes", 400 + 100 + 1_200 + 80], ["gpt-5-mini", 225 + 20]] as const) {
        const model = modelOf(() => say("Yes.", counts), { provider: "openai", model: name })
        const result = yield* Chat.run("Hi", { budget: Budget.make({ calls: 2 }) }).pipe(
          Effect.provide(Layer.merge(model.layer, Pricing.layer(table)))
        )
        assert.strictEqual(result.spent?.money, money, name)
      }
    }))

  it.effect("a price reported by the provider counts in dollars and in no other currency", () =>
    Effect.gen(function*() {
      const counts = usage({ inputTokens: 1_000, outputTokens: 100, totalCost: 0.0031 })
      const model = modelOf(() => say("Yes.", counts), { provider: "openai", model: "gpt-5" })
      const spentIn = (currency: string) =>
        Effect.map(
          Chat.run("Hi", { budget: Budget.make({ calls: 2 }) }).pipe(
            Effect.provide(Layer.merge(model.layer, Pricing.layer(table, { currency })))
          ),
          ({ spent }) => spent?.money
        )
      assert.deepStrictEqual(yield* Effect.all([spentIn("USD"), spentIn("EUR")]), [3_100, 2_250])
    }))
})

describe("the settlement of a reply", () => {
  const estimate = () => 1_000
  const budget = () => Budget.make({ calls: 9, tokens: 100_000 }, { estimate, outputReserve: 500, onExhausted: "halt" })
  const spentBy = (reply: Reply, leave?: number) =>
    Effect.gen(function*() {
      const model = modelOf((_, index) => index === 0 ? reply : say("Yes.", used(0, 0)))
      const account = Limits.layer({ budget: budget() })
      return yield* Effect.gen(function*() {
        const events = Chat.stream("Hi")
        yield* Effect.ignore(Stream.runDrain(leave === undefined ? events : Stream.take(events, leave)))
        const spent = yield* Budget.spent
        // Nothing stays reserved: what was not spent can be reserved again.
        const left = spent?.left.tokens ?? 0
        const all = yield* Chat.run("More", { maxTokens: left - 1_000 })
        assert.strictEqual(all.haltedReason, "completed")
        return [9 - (spent?.left.calls ?? 0), 100_000 - left]
      }).pipe(Effect.provide(Layer.merge(model.layer, account)))
    })

  const said = "x".repeat(400)
  const counted = Script.rawChunk({ usage: { inputTokens: 10, outputTokens: 5 } })
  const rows: ReadonlyArray<readonly [string, Reply, readonly [number, number], number?]> = [
    ["a whole reply with usage", say("Yes.", used(10, 5)), [1, 15]],
    ["a whole reply without usage", say("Yes."), [1, 1_500]],
    ["a reply refused before its first word", [preflightError("rate_limited")], [0, 0]],
    ["a reply refused after its usage", [counted, streamError("provider_unavailable")], [1, 15]],
    ["a network error before the first word", [preflightError("network_error")], [1, 1_500]],
    ["a timeout before the first word", [preflightError("timeout")], [1, 1_500]],
    ["a reply broken after a text without reported usage", [text(said), streamError("provider_unavailable")], [
      1,
      1_500
    ]],
    ["a reply broken after a text with reported input", [counted, text(said), streamError("provider_unavailable")], [
      1,
      110
    ]],
    ["a reply broken after a text with more reported output", [
      Script.rawChunk({ usage: { inputTokens: 10, outputTokens: 900 } }),
      text(said),
      error("network_error")
    ], [1, 910]],
    ["a reply left by its reader", [counted, text(said), delay(Duration.infinity)], [1, 110], 3],
    ["a reply left before its request", say("Yes.", used(10, 5)), [0, 0], 0]
  ]
  for (const [title, reply, spent, leave] of rows) {
    it.effect(`G3: ${title} costs ${spent[0]} calls and ${spent[1]} tokens`, () =>
      Effect.map(spentBy(reply, leave), (found) => assert.deepStrictEqual(found, [...spent])))
  }

  it.effect("G3: a reply cut at any event by its reader, by the provider or by the network settles its reservation", () =>
    Effect.gen(function*() {
      const words = Array.from({ length: 12 }, () => text("x".repeat(40)))
      const reported = 6
      // The input is reported behind six texts.
      const entries = [...words.slice(0, reported), counted, ...words.slice(reported)]
      const expected = (said: number, isReported: boolean) => isReported ? [1, 10 + Math.max(5, 10 * said)] : [1, 1_500]
      for (let length = 0; length <= entries.length; length++) {
        const said = entries.slice(0, length).filter((entry) => entry !== counted).length
        const isReported = length > reported
        for (const reason of ["provider_unavailable", "network_error"] as const) {
          const found = yield* spentBy([...entries.slice(0, length), streamError(reason)])
          const isRefused = length === 0 && reason === "provider_unavailable"
          assert.deepStrictEqual(found, isRefused ? [0, 0] : expected(said, isReported), `${length} ${reason}`)
        }
        const left = yield* spentBy([...entries.slice(0, length), delay(Duration.infinity)], length + 1)
        assert.deepStrictEqual(left, expected(said, isReported), `${length} left`)
      }
    }))

  it.effect("G3, G88: a run stopped at any step leaves nothing reserved", () =>
    Effect.gen(function*() {
      const left: Array<number> = []
      const model = modelOf(({ messages }) =>
        messages.length === 1
          ? [delay(1), ...call("look", used(10, 5))]
          : [text("Do"), delay(1), ...say("ne.", used(10, 5))]
      )
      const checked = Layer.effectDiscard(Effect.acquireRelease(
        Effect.void,
        () => Effect.map(Budget.spent, (spent) => left.push((spent?.left.tokens ?? 0) + tokensIn(spent)))
      )).pipe(Layer.provideMerge(Limits.layer({ budget: budget() })))
      const report = yield* everyStep(({ cancel }) => Chat.run("Hi", { tools: [look], cancel }), {
        layer: Layer.merge(model.layer, checked),
        maxOpsBeforeYield: 12
      })
      assert.deepStrictEqual(report.violations, [])
      assert.isAbove(report.points, 20)
      assert.deepStrictEqual(Array.from(new Set(left)), [100_000])
    }))
})

describe("a tree of runs", () => {
  const inner = (options: Omit<Chat.Options<ReadonlyArray<Tool.Any>, never, never, never, never>, "tools"> & {
    readonly tools?: ReadonlyArray<typeof look>
  } = {}) =>
    Tool.fromChat("inner", {
      parameters: { n: Schema.Finite },
      chat: ({ n }) => Chat.stream(`Inner ${n}`, options)
    })
  const asksFor = (count: number): Reply => [
    ...Array.from({ length: count }, (_, n) => toolCall(`c${n}`, "inner", { n })),
    finish("tool_calls")
  ]
  const isInner = ({ messages }: Adapter.Request) => Message.text(messages[0]!).startsWith("Inner")

  it.effect("G1: nine calls allow one request, seven sub-agents and a closing call; thirteen sub-agents fail", () =>
    Effect.gen(function*() {
      const model = modelOf((request) =>
        isInner(request)
          ? [delay("1 second"), ...say("Inside.")]
          : request.messages.length === 1
          ? asksFor(20)
          : say("All in all.")
      )
      const result = yield* timed(
        Chat.run("Ask twenty", { tools: [inner()], budget: Budget.make({ calls: 9 }), maxConcurrency: 20 }).pipe(
          Effect.provide(model.layer)
        )
      )
      assert.lengthOf(model.requests, 9)
      assert.strictEqual(result.finalized, "budget")
      const answers = result.thread.messages.filter(({ role }) => role === "tool")
      const failed = answers.filter(({ isError }) => isError === true)
      assert.lengthOf(failed, 13)
      for (const { content } of failed) assert.match(String(content), /budget/)
      assert.lengthOf(answers.filter(({ content }) => content === "Inside."), 7)
      assert.strictEqual(result.spent?.calls, 9)
    }))

  it.effect("a run's remainder is the least of the budgets around the run and of its own budget", () =>
    Effect.gen(function*() {
      for (const [around, own, left] of [[3, 10, 2], [10, 3, 2]] as const) {
        const model = modelOf(() => say("Yes.", used(10, 5)))
        const result = yield* Chat.run("Hi", { budget: Budget.make({ calls: own }) }).pipe(
          Effect.provide(Layer.merge(model.layer, Limits.layer({ budget: Budget.make({ calls: around }) })))
        )
        assert.deepStrictEqual(result.spent?.left, { calls: left })
      }
    }))

  it.effect("G2: a budget exhausted at depth 3 ends every level with a result", () =>
    Effect.gen(function*() {
      const ends: Array<string> = []
      const heard = Rule.make("heard", { end: ({ _tag }) => void ends.push(_tag) })
      const lowest = inner({ tools: [look], rules: [heard] })
      const middle = Tool.fromChat("inner", {
        parameters: { n: Schema.Finite },
        chat: () => Chat.stream("Inner 1", { tools: [lowest], rules: [heard] })
      })
      const model = modelOf((request) => Message.text(request.messages[0]!) === "Inner 0" ? call("look") : asksFor(1))
      const run = (calls: number, onExhausted: "finalize" | "halt") =>
        Chat.run("Go down", { tools: [middle], rules: [heard], budget: Budget.make({ calls }, { onExhausted }) }).pipe(
          Effect.provide(model.layer)
        )
      const halted = yield* run(4, "halt")
      assert.lengthOf(model.requests, 4)
      assert.deepStrictEqual(ends, ["RuleEnded", "RuleEnded", "RuleEnded"])
      assert.deepStrictEqual(ended(halted), { resource: "calls", limit: 4, spent: 4 })
      // Each level has an answer for its call, which says why.
      const answer = halted.thread.messages.find(({ role }) => role === "tool")
      assert.isTrue(answer?.isError)
      assert.match(String(answer?.content), /budget/)
      ends.length = model.requests.length = 0
      const closed = yield* run(4, "finalize")
      assert.lengthOf(model.requests, 4)
      assert.deepStrictEqual(closed.spent?.left, { calls: 0 })
      assert.deepStrictEqual(ends.slice(0, 2), ["RuleEnded", "RuleEnded"])
      assert.lengthOf(ends, 3)
    }))

  it.effect("G90: both accounts grant each request of a run with a budget inside another budget", () =>
    Effect.gen(function*() {
      const model = modelOf((request) =>
        isInner(request) ? call("look") : request.messages.length === 1 ? asksFor(1) : say("So.")
      )
      const bounded = inner({ tools: [look], budget: Budget.make({ calls: 2 }, { onExhausted: "halt" }) })
      const run = (calls: number) =>
        Chat.run("Ask", { tools: [bounded], budget: Budget.make({ calls }) }).pipe(Effect.provide(model.layer))
      const wide = yield* run(9)
      assert.strictEqual(wide.spent?.calls, 4)
      const narrow = yield* run(3)
      assert.strictEqual(narrow.spent?.calls, 3)
      assert.strictEqual(narrow.finalized, "budget")
    }))

  it.effect("G91: a sub-agent that starts early waits for the reservation of its parent's reply", () =>
    Effect.gen(function*() {
      const early = Tool.fromChat("inner", {
        parameters: { n: Schema.Finite },
        readOnly: true,
        chat: () => Chat.stream("Inner", { maxTokens: 600 })
      })
      const model = modelOf((request) =>
        isInner(request)
          ? say("Inside.", used(10, 10))
          : request.messages.length === 1
          ? [toolCall("c", "inner", { n: 1 }), delay("10 seconds"), used(10, 10), finish("tool_calls")]
          : say("So.", used(10, 10))
      )
      const budget = Budget.make({ tokens: 1_500 }, { estimate: () => 100, outputReserve: 600, onExhausted: "halt" })
      const result = yield* timed(Chat.run("Ask", { tools: [early], budget }).pipe(Effect.provide(model.layer)))
      assert.strictEqual(result.haltedReason, "completed")
      assert.lengthOf(model.requests, 3)
    }))

  it.effect("handlers read what the tree has spent, and prepareStep reads what its run has spent", () =>
    Effect.gen(function*() {
      const seen: Array<number | undefined> = []
      const meter = Tool.make("look", {
        parameters: {},
        handler: () => Effect.map(Budget.spent, (spent) => void seen.push(spent?.calls))
      })
      const model = modelOf((_, index) => index === 0 ? call("look") : say("Done."))
      yield* Chat.run("Hi", {
        tools: [meter],
        budget: Budget.make({ calls: 9 }),
        prepareStep: ({ spent }) => {
          seen.push(spent?.calls)
          return {}
        }
      }).pipe(Effect.provide(model.layer))
      assert.deepStrictEqual(seen, [0, 1, 1])
    }))
})

it.effect("G39: a fallback model reserves at its own price, and the first model's reservation returns", () =>
  Effect.gen(function*() {
    const first = modelOf(() => [preflightError("provider_unavailable")], { provider: "openai", model: "gpt-5-mini" })
    const second = modelOf(() => say("Yes.", used(1_000, 100)), { provider: "openai", model: "gpt-5" })
    const models = Adapter.fallback([{ layer: first.layer, name: "first" }, { layer: second.layer, name: "second" }])
    const run = (money: number) => {
      const budget = Budget.make({ money }, { estimate: () => 1_000, outputReserve: 100, onExhausted: "halt" })
      return Chat.run("Hi", { budget }).pipe(Effect.provide(Layer.merge(models, Pricing.layer(table))))
    }
    assert.strictEqual((yield* run(2_250)).spent?.money, 2_250)
    const refused = yield* run(2_249)
    assert.deepStrictEqual(ended(refused), { resource: "money", limit: 2_249, spent: 0 })
    assert.deepStrictEqual(refused.spent?.left, { money: 2_249 })
  }))

describe("a custom account", () => {
  it.effect("a custom account reserves and settles each request once, also when the reader leaves the run", () =>
    Effect.gen(function*() {
      const told: Array<unknown> = []
      const budget = Budget.from({
        reserve: ({ amount, id }) => Effect.as(Effect.sync(() => told.push(["reserve", id, amount.calls])), true),
        settle: ({ id }, spent) => Effect.sync(() => told.push(["settle", id, spent.outputTokens]))
      })
      const model = modelOf((_, index) => index === 0 ? call("look", used(10, 5)) : say("Done.", used(10, 7)))
      const options = { tools: [look], budget, requestId: "r" } as const
      yield* Chat.run("Hi", options).pipe(Effect.provide(model.layer))
      assert.deepStrictEqual(told, [["reserve", "r/0/1", 1], ["settle", "r/0/1", 5], ["reserve", "r/1/1", 1], [
        "settle",
        "r/1/1",
        7
      ]])
      told.length = 0
      yield* Stream.runDrain(Stream.take(Chat.stream("Hi", options), 2)).pipe(Effect.provide(model.layer))
      assert.lengthOf(told, 2)
    }))

  it.effect("G88: a reservation that is interrupted or dies is settled at zero", () =>
    Effect.gen(function*() {
      for (const isStopped of [true, false]) {
        const told: Array<unknown> = []
        const committed = yield* Deferred.make<void>()
        const commit = Effect.andThen(Effect.sync(() => told.push("reserve")), Deferred.succeed(committed, undefined))
        const budget = Budget.from({
          reserve: () => Effect.andThen(commit, isStopped ? Effect.never : Effect.die(new Error("no database"))),
          settle: (_, { calls, money }) => Effect.sync(() => told.push([calls, money]))
        })
        const model = modelOf(() => say("Yes."))
        const running = yield* Effect.forkChild(Chat.run("Hi", { budget }).pipe(Effect.provide(model.layer)))
        yield* Deferred.await(committed)
        if (isStopped) yield* Fiber.interrupt(running)
        assert.isTrue(Exit.isFailure(yield* Fiber.await(running)))
        assert.deepStrictEqual(told, ["reserve", [0, 0]])
        assert.lengthOf(model.requests, 0)
      }
    }))

  it.effect("a refusal ends the run before its request and returns the outer account's reservation", () =>
    Effect.gen(function*() {
      const model = modelOf(() => say("Yes."))
      const closed = Budget.from({ reserve: () => Effect.succeed(false), settle: () => Effect.void })
      const result = yield* Chat.run("Hi", { budget: closed }).pipe(
        Effect.provide(Layer.merge(model.layer, Limits.layer({ budget: Budget.make({ calls: 1 }) })))
      )
      assert.deepStrictEqual(ended(result), { reason: "refused" })
      assert.deepStrictEqual(result.spent?.left, { calls: 1 })
      assert.lengthOf(model.requests, 0)
    }))
})

describe("wrong budgets", () => {
  const wrong: ReadonlyArray<readonly [string, () => unknown, RegExp]> = [
    ["a negative limit", () => Budget.make({ calls: -1 }), /calls.*whole number, 0 or more/],
    ["a fractional limit", () => Budget.make({ money: 0.5 }), /money.*whole number, 0 or more/],
    ["an unknown limit", () => Budget.make({ dollars: 1 } as never), /dollars/],
    ["no limit", () => Budget.make({}), /at least one/],
    ["count-tokens without tokens", () => Budget.make({ money: 1 }, { onUnpriced: "count-tokens" }), /tokens/],
    [
      "an object that is no budget",
      () => Effect.runSync(Effect.scoped(Layer.build(Limits.layer({ budget: {} as never })))),
      /Budget.make/
    ],
    ["a layer without a limit", () => Limits.layer({}), /at least one/],
    [
      "a negative price",
      () => Pricing.layer({ a: { models: { m: { cost: { input: -1, output: 0 } } } } }),
      /greater than or equal to 0.*\["a"\]\["models"\]\["m"\]\["cost"\]\["input"\]/s
    ],
    ["a table without models", () => Pricing.layer({ a: {} } as never), /\["a"\]\["models"\]/]
  ]
  for (const [title, make, message] of wrong) {
    it(`${title} is a defect whose message says what is right`, () => assert.throws(make, message))
  }
})

describe("failing functions of the caller", () => {
  const model = () => modelOf(() => say("Yes.", used(100, 100)), { provider: "openai", model: "gpt-5" })
  const twice = <E>(budget: Budget.Budget, given: Layer.Layer<never, E>) =>
    Effect.all([Effect.exit(Chat.run("One")), Effect.exit(Chat.run("Two")), Budget.spent]).pipe(
      Effect.provide(Layer.mergeAll(model().layer, given, Limits.layer({ budget })))
    )
  const estimated = (value: unknown) =>
    twice(Budget.make({ tokens: 1_000 }, { estimate: () => value as number, outputReserve: 10 }), Layer.empty)
  const priced = (value: unknown) =>
    twice(Budget.make({ money: 2 }), Layer.succeed(Pricing.Prices, () => value as number))

  for (const value of [NaN, Infinity, -1, "5", null]) {
    it.effect(`an estimate and a price of ${JSON.stringify(value)} are defects and leave the limits unchanged`, () =>
      Effect.gen(function*() {
        for (
          const [ran, left, message] of [
            [estimated, { tokens: 1_000 }, /estimate returned .*; return a number, 0 or more/],
            [priced, { money: 2 }, /Prices returned .*; return a number, 0 or more/]
          ] as const
        ) {
          const [one, two, spent] = yield* ran(value)
          for (const exit of [one, two]) assert.match(Exit.isFailure(exit) ? String(exit.cause) : "", message)
          assert.deepStrictEqual(spent?.left, left)
        }
      }))
  }

  it.effect("a price below one counts as one, so that enough requests reach the limit", () =>
    Effect.gen(function*() {
      const [one, two, spent] = yield* priced(0.3)
      assert.isTrue(Exit.isSuccess(one) && Exit.isSuccess(two))
      assert.deepStrictEqual([spent?.money, spent?.left], [2, { money: 0 }])
    }))

  it.effect("a price function that throws fails its run, and other runs do not wait for its reservation", () =>
    Effect.gen(function*() {
      const told: Array<unknown> = []
      const own = Budget.from({
        reserve: () => Effect.succeed(true),
        settle: (_, { money }) => Effect.sync(() => told.push(money))
      })
      const throwing = Layer.succeed(Pricing.Prices, ({ usage: { outputTokens } }) => {
        if (outputTokens === 100) throw new Error("no table")
        return 1
      })
      const program = Effect.gen(function*() {
        const first = yield* Effect.exit(Chat.run("One", { budget: own }))
        const second = yield* Chat.run("Two")
        return [Exit.isFailure(first) ? String(first.cause) : "", second.haltedReason, yield* Budget.spent] as const
      })
      const [cause, halted, spent] = yield* timed(program.pipe(
        Effect.provide(Layer.mergeAll(model().layer, throwing, Limits.layer({ budget: Budget.make({ money: 1 }) })))
      ))
      assert.match(cause, /no table/)
      assert.strictEqual(halted, "budget")
      assert.deepStrictEqual([spent?.left, told], [{ money: 0 }, [1]])
    }))

  it.effect("an account that dies while it settles leaves the other accounts settled", () =>
    Effect.gen(function*() {
      for (
        const dies of [() => Effect.die(new Error("no database")), () => {
          throw new Error("no database")
        }]
      ) {
        const told: Array<number> = []
        const reserve = () => Effect.succeed(true)
        const inner = Budget.from({ reserve, settle: (_, { calls }) => Effect.sync(() => told.push(calls)) })
        const outer = Limits.layer({ budget: Budget.from({ reserve, settle: dies }) })
        const exit = yield* Effect.exit(
          Chat.run("Hi", { budget: inner }).pipe(Effect.provide(Layer.merge(model().layer, outer)))
        )
        assert.match(Exit.isFailure(exit) ? String(exit.cause) : "", /no database/)
        assert.deepStrictEqual(told, [1])
      }
    }))

  it.effect("usage and costs below zero count as unreported, and the reservation stays spent", () =>
    Effect.gen(function*() {
      const reported = usage({ inputTokens: -1_000, outputTokens: -1_000, totalCost: -5 })
      const { layer } = modelOf(() => say("Yes.", reported), { provider: "openai", model: "gpt-5" })
      const budget = Budget.make({ tokens: 100, money: 5 }, { estimate: () => 10, outputReserve: 10 })
      const spent = yield* Effect.andThen(Chat.run("Hi"), Budget.spent).pipe(
        Effect.provide(Layer.mergeAll(layer, Layer.succeed(Pricing.Prices, () => 1), Limits.layer({ budget })))
      )
      assert.deepStrictEqual(spent?.left, { tokens: 80, money: 4 })
    }))
})
