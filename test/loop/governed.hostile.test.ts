/** Budgets, prices and inboxes against bad input, hostile providers, accounts that break, and stops at any step. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Budget, Chat, Inbox, Limits, Message, Pricing, Response, Session, Tool } from "heddle"
import { everyStep, Script } from "heddle/testing"
import { passing, stores } from "../support/edges.ts"

const { delay, finish, text, toolCall, usage } = Script

type Reply = ReadonlyArray<Script.Entry>

const modelOf = (reply: (request: Adapter.Request) => Reply) =>
  Adapter.layer({
    provider: "openai",
    model: "m",
    stream: (request) => Stream.unwrap(Effect.map(Script.make(reply(request)), (scripted) => scripted.stream(request)))
  })

const repliesIn = ({ messages }: Adapter.Request): number => messages.filter(({ role }) => role === "assistant").length

const say = (...more: Reply): Reply => [text("Yes."), ...more, finish("stop")]

const look = Tool.make("look", { parameters: {}, readOnly: true, handler: () => Effect.succeed("seen") })

const tableOf = (text: string): Pricing.Table => JSON.parse(text) as Pricing.Table

describe("bad input to budgets and prices", () => {
  it("a limit that is not a whole number and limits that are not an object are defects", () => {
    const values = [-1, 0.5, NaN, Infinity, 2 ** 53, 1e308, "5", 5n, [], {}, Symbol("five"), true]
    for (const name of ["calls", "inputTokens", "outputTokens", "tokens", "money"]) {
      for (const value of values) {
        assert.throws(() => Budget.make({ [name]: value }), `Budget.make: ${name} must be a whole number, 0 or more`)
      }
    }
    for (const limits of [null, undefined, "x", 5, []]) {
      assert.throws(() => Budget.make(limits as never), /Budget.make: the limits must be an object/)
    }
    for (const limits of [{}, { calls: undefined }, Object.create({ calls: 5 })]) {
      assert.throws(() => Budget.make(limits), /give at least one of calls/)
    }
    assert.throws(() => Budget.make(JSON.parse("{\"__proto__\":{\"calls\":5}}")), /has no option "__proto__"/)
  })

  it("Budget.make reads a computed limit once", () => {
    let reads = 0
    const limits = {
      get calls(): number {
        return reads++ === 0 ? 1 : NaN
      }
    }
    assert.doesNotThrow(() => Budget.make(limits))
    assert.strictEqual(reads, 1)
  })

  it("Budget.from refuses an account without its two functions and accepts an instance of a class", () => {
    for (const account of [undefined, null, "x", []]) {
      assert.throws(
        () => Budget.from(account as never),
        /the account must be an object with the functions reserve and settle/
      )
    }
    for (const account of [{}, { reserve: () => Effect.succeed(true) }, { reserve: 1, settle: 2 }]) {
      assert.throws(() => Budget.from(account as never), /Budget.from: account/)
    }
    class Tenant implements Budget.Account {
      reserve() {
        return Effect.succeed(true)
      }
      settle() {
        return Effect.void
      }
    }
    assert.doesNotThrow(() => Budget.from(new Tenant()))
    assert.throws(() => Limits.layer({ budget: { open: () => ({}) } as never }), /made with Budget.make or Budget.from/)
  })

  it.effect("a price table with hostile names reaches no prototype, and no inherited name has a price", () =>
    Effect.gen(function*() {
      const table = tableOf(`{
        "openai": { "models": {
          "__proto__": { "cost": { "input": 1, "output": 1 } },
          "m": { "cost": { "input": 2, "output": 2 } }
        } },
        "__proto__": { "models": { "m": { "cost": { "input": 3, "output": 3 } } } }
      }`)
      const prices = yield* Effect.provide(Pricing.Prices, Pricing.layer(table))
      const priceOf = (provider: string, model: string) =>
        prices({ provider, model, usage: Response.usage({ inputTokens: 5, outputTokens: 5 }) })
      assert.deepStrictEqual([priceOf("openai", "__proto__"), priceOf("openai", "m"), priceOf("__proto__", "m")], [
        10,
        20,
        30
      ])
      for (const [provider, model] of [["openai", "constructor"], ["openai", "toString"], ["constructor", "name"]]) {
        assert.isUndefined(priceOf(provider!, model!))
      }
      assert.isUndefined(({} as Record<string, unknown>)["models"])
      const wrong = [null, [], { openai: [] }, { openai: { models: { m: { cost: { input: 1 } } } } }]
      for (const cost of [-1, NaN, Infinity, "1", null]) {
        wrong.push({ openai: { models: { m: { cost: { input: cost, output: 1 } } } } } as never)
      }
      for (const table of wrong) assert.throws(() => Pricing.layer(table as never), /^Pricing.layer: /)
    }))
})

describe("what a hostile provider reports", () => {
  const reports = {
    "endless tokens": { inputTokens: 1e308, outputTokens: 1e308, totalTokens: 1e308 },
    "an endless cost": { inputTokens: 1, outputTokens: 1, totalCost: 1e308 },
    "the largest safe integers": {
      inputTokens: Number.MAX_SAFE_INTEGER,
      outputTokens: Number.MAX_SAFE_INTEGER,
      totalCost: Number.MAX_SAFE_INTEGER
    },
    "fractions of tokens": { inputTokens: 0.5, outputTokens: 1.25 },
    "negative numbers": { inputTokens: -1e308, outputTokens: -1, totalCost: -1 }
  }
  for (const [where, store] of Object.entries(stores)) {
    for (const [name, counts] of Object.entries(reports)) {
      it.effect(`a session run whose provider reports ${name} is kept, and all it spent is a whole number: ${where}`, () =>
        Effect.gen(function*() {
          for (const scope of ["run", "session"] as const) {
            const replied = Effect.gen(function*() {
              const budget = Budget.make({ calls: 9 }, { scope })
              const kept = yield* Session.open(scope)
              const done = yield* Session.keep(
                kept,
                (session) => Session.reply(session, "go", { tools: [look], budget })
              )
              const { spent, totalUsage } = done.value.result
              for (const amount of [spent?.calls, spent?.inputTokens, spent?.outputTokens, spent?.money ?? 0]) {
                assert.isTrue(Number.isInteger(amount), `${amount}`)
              }
              for (const count of [totalUsage?.inputTokens, totalUsage?.totalCost]) {
                if (count !== null) assert.isTrue(Number.isFinite(count))
              }
              return spent?.calls
            })
            const calls = [yield* replied, yield* replied]
            assert.deepStrictEqual(calls, scope === "run" ? [2, 2] : [2, 4])
            assert.isDefined(yield* Session.load(scope))
          }
        }).pipe(
          Effect.provide(Layer.fresh(store as Layer.Layer<Session.Store>)),
          Effect.provide(modelOf((request) =>
            repliesIn(request) % 2 === 0
              ? [toolCall("c", "look", {}), usage(counts), finish("tool_calls")]
              : say(usage(counts))
          ))
        ))
    }
  }
})

describe("a broken account of the caller", () => {
  const ways: Readonly<Record<string, () => Effect.Effect<never>>> = {
    throws: () => {
      throw new Error("no database")
    },
    dies: () => Effect.die(new Error("no database")),
    "returns nothing": () => undefined as never,
    "is interrupted": () => Effect.interrupt,
    hangs: () => Effect.never,
    "hangs uninterruptibly": () => Effect.uninterruptible(Effect.never)
  }
  for (const action of ["reserve", "settle"] as const) {
    for (const [way, act] of Object.entries(ways)) {
      it.effect(`a run with a caller's account whose ${action} ${way} ends or can be stopped, and leaves nothing reserved in the outer account`, () =>
        Effect.gen(function*() {
          const settled: Array<number> = []
          const account: Budget.Account = {
            reserve: () => action === "reserve" ? act() : Effect.succeed(true),
            settle: (_, { calls }) => action === "settle" ? act() : Effect.sync(() => void settled.push(calls))
          }
          const others: Array<number> = []
          const other = Budget.from({
            reserve: () => Effect.succeed(true),
            settle: (_, { calls }) => Effect.sync(() => void others.push(calls))
          })
          const outer = Layer.provideMerge(
            Limits.layer({
              budget: Budget.make({ calls: 1_000, tokens: 100_000 }, { estimate: () => 100, outputReserve: 100 })
            }),
            Limits.layer({ budget: other })
          )
          const spent = yield* Effect.gen(function*() {
            const run = Chat.run("Hi", { budget: Budget.from(account), grace: 10 })
            const exit = yield* Effect.exit(Effect.timeoutOption(run, "1 second"))
            // A run that hangs is stopped, and says that it had to leave something behind.
            if (way.startsWith("hangs")) assert.isTrue(Exit.isSuccess(exit) && exit.value._tag === "None")
            else assert.isTrue(Exit.isFailure(exit))
            return yield* Budget.spent
          }).pipe(
            Effect.provide(Layer.merge(modelOf(() => say(usage({ inputTokens: 10, outputTokens: 5 }))), outer)),
            (program) => passing(program, 100)
          )
          const calls = action === "settle" ? 1 : 0
          assert.deepStrictEqual(spent?.left, { calls: 1_000 - calls, tokens: 100_000 - 15 * calls })
          assert.deepStrictEqual(settled, action === "settle" ? [] : [0])
          if (!way.startsWith("hangs")) assert.deepStrictEqual(others, [calls])
        }))
    }
  }
})

describe("twenty sub-agents of one parent", () => {
  const inner = Tool.fromChat("inner", {
    parameters: { n: Schema.Finite },
    chat: ({ n }) => Chat.stream(`Inner ${n}`)
  })
  const isInner = ({ messages }: Adapter.Request) => Message.text(messages[0]!).startsWith("Inner")

  it.effect("G1, G3, G88: a run stopped at every step leaves no call reserved and never spends more than the limit", () =>
    Effect.gen(function*() {
      const found = new Set<string>()
      const model = modelOf((request) => {
        if (isInner(request)) {
          return [
            delay(1 + Number(Message.text(request.messages[0]!).slice(6)) % 3),
            ...say(usage({ inputTokens: 10, outputTokens: 5 }))
          ]
        }
        return repliesIn(request) === 0
          ? [...Array.from({ length: 20 }, (_, n) => toolCall(`c${n}`, "inner", { n })), finish("tool_calls")]
          : say()
      })
      const budget = Budget.make({ calls: 30, tokens: 2_400 }, { estimate: () => 100, outputReserve: 100 })
      const checked = Layer.effectDiscard(Effect.acquireRelease(
        Effect.void,
        () =>
          Effect.map(Budget.spent, (spent) => {
            const { calls = 0, inputTokens = 0, left, outputTokens = 0 } = spent ?? {}
            if (calls + (left?.["calls"] ?? 0) !== 30) found.add(`${calls} calls, ${left?.["calls"]} left`)
            const tokens = inputTokens + outputTokens
            if (tokens + (left?.["tokens"] ?? 0) !== 2_400) found.add(`${tokens} tokens, ${left?.["tokens"]} left`)
          })
      )).pipe(Layer.provideMerge(Limits.layer({ budget })))
      const report = yield* everyStep(
        ({ cancel }) =>
          Chat.run("Ask", { tools: [inner], budget: Budget.make({ calls: 9 }), maxConcurrency: 20, cancel }),
        { layer: Layer.merge(model, checked), limit: 25, maxOpsBeforeYield: 60 }
      )
      assert.deepStrictEqual(report.violations, [])
      assert.deepStrictEqual([...found], [])
      assert.isAbove(report.points, 20)
    }))
})

describe("an inbox against bad input", () => {
  it.effect("an inbox accepts any non-empty string as an id, and any other id is a defect", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const ids = ["__proto__", "constructor", "toString", " ", "\u0000", "\ud800", "a/b", "a".repeat(100_000)]
      for (const id of ids) {
        assert.isUndefined(yield* inbox.fate(id))
        assert.isFalse(yield* inbox.withdraw(id))
        yield* inbox.follow(`words of ${id.slice(0, 9)}`, { id })
        assert.isTrue(yield* inbox.withdraw(id))
        assert.deepStrictEqual(yield* inbox.fate(id), { _tag: "Withdrawn" })
      }
      for (const id of ["", 5, {}, [], true]) {
        assert.isTrue(Exit.hasDies(yield* Effect.exit(inbox.steer("x", { id: id as never }))))
      }
    }))

  it.effect("bad content for an inbox is a defect, and content changed after the send is delivered as sent", () =>
    Effect.gen(function*() {
      const cycle: Array<unknown> = []
      cycle.push(cycle)
      const inbox = Inbox.make()
      for (
        const content of [null, undefined, 5, {}, [null], [{}], [{ type: "text" }], [{ type: "text", text: 5 }], cycle]
      ) {
        const exit = yield* Effect.exit(inbox.steer(content as never))
        assert.match(String(exit), /the message for the inbox cannot be used: /)
      }
      const part = { type: "text" as const, text: "before" }
      const parts: Array<typeof part> = [part]
      yield* inbox.follow(parts, { id: "m" })
      part.text = "after"
      parts.push(5 as never)
      const result = yield* Effect.provide(Chat.run("go", { inbox }), modelOf(() => say()))
      assert.deepStrictEqual(result.thread.messages[2]?.content, [{ type: "text", text: "before" }])
    }))

  it.effect("handlers that always steer stop at maxTurns, and each message has its fate", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const sent: Array<Inbox.Sent> = []
      const again = Tool.make("again", {
        parameters: {},
        handler: () =>
          Effect.map(Effect.all([inbox.steer("more"), inbox.follow("and more")]), (both) => {
            sent.push(...both)
            return "said"
          })
      })
      const model = modelOf((request) => [toolCall(`c${repliesIn(request)}`, "again", {}), finish("tool_calls")])
      const result = yield* Effect.provide(Chat.run("go", { tools: [again], inbox, maxTurns: 5 }), model)
      assert.strictEqual(result.outcome._tag, "MaxTurns")
      const fates = yield* Effect.forEach(sent, ({ fate }) => fate)
      assert.deepStrictEqual(fates.map((fate) => fate._tag === "Refused" ? fate.reason : fate._tag), [
        ...Array.from({ length: 4 }, () => ["Delivered", "max_turns"]).flat(),
        "max_turns",
        "max_turns"
      ])
    }))

  it.effect("thousands of messages enter the thread in their order", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      const words = Array.from({ length: 3_000 }, (_, index) => `m${index}`)
      yield* Effect.forEach(words, (word) => inbox.follow(word), { discard: true })
      const result = yield* Effect.provide(Chat.run("go", { inbox }), modelOf(() => say()))
      assert.deepStrictEqual(result.thread.messages.slice(2, -1).map(({ content }) => content), words)
    }))
})
