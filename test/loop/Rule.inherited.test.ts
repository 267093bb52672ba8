/** Rules of a layer: every model call below asks them, whatever makes it, and no rule asks itself. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Chat, Rule, Session, Step, Tool } from "heddle"
import { Worker } from "heddle/durable"
import { Agent } from "heddle/server"
import { Script } from "heddle/testing"
import { serve } from "../server/support/site.ts"
import { modelOf, type Replies } from "../support/ruled.ts"

const { finish, text, toolCall } = Script

/** A rule that counts the requests it is asked about, and names each by its system prompt. */
const counting = () => {
  const asked: Array<string> = []
  const heard: Array<boolean> = []
  const count = Rule.make("count", {
    ask: (ask) => {
      asked.push(ask.system ?? "")
      return ask
    },
    reply: ({ hasSaid }) => {
      heard.push(hasSaid)
      return Rule.keep()
    }
  })
  return { asked, heard, count, layer: Rule.layer([count]) }
}

const hello: Replies = () => [text("Hello"), finish("stop")]

const layerOf = (replies: Replies = hello) => Adapter.layer(modelOf(replies, []))

/** Calls `inner` once, and then answers. */
const nesting: Replies = ({ messages }) =>
  messages.at(-1)?.content === "outer"
    ? [toolCall("c", "inner"), finish("tool_calls")]
    : [text("done"), finish("stop")]

const inner = Tool.fromChat("inner", { parameters: {}, chat: () => Chat.stream("in", { system: "inner" }) })

describe("the rules of a layer", () => {
  it.effect("a run and the runs of its handlers at any depth ask the rules of a layer", () =>
    Effect.gen(function*() {
      const { asked, heard, layer } = counting()
      const middle = Tool.fromChat("inner", {
        parameters: {},
        chat: () => Chat.stream("outer", { system: "middle", tools: [inner] })
      })
      yield* Chat.run("outer", { system: "outer", tools: [middle] }).pipe(Effect.provide([layer, layerOf(nesting)]))
      assert.deepStrictEqual(asked, ["outer", "middle", "inner", "middle", "outer"])
      assert.deepStrictEqual(heard, asked.map(() => true))
    }))

  it.effect("a step asks the rules of a layer, which may end the step", () =>
    Effect.gen(function*() {
      const { asked, heard, layer } = counting()
      yield* Step.run("Hi", { system: "step" }).pipe(Effect.provide([layer, layerOf()]))
      assert.deepStrictEqual([asked, heard], [["step"], [true]])
      const closed = Rule.layer([Rule.make("closed", { ask: () => Rule.end() })])
      const session = yield* Session.appendUser(Session.make({ id: "s" }), "Hi")
      const refused: ReadonlyArray<Effect.Effect<unknown, unknown, Adapter.Adapter>> = [
        Step.run("Hi"),
        Stream.runCollect(Step.stream("Hi")),
        Session.step(session)
      ]
      for (const step of refused) {
        const error = yield* Effect.flip(Effect.provide(step, [closed, layerOf()]))
        assert.instanceOf(error, Adapter.AdapterError)
        assert.strictEqual(error.detail, "the rule \"closed\" allows no request")
      }
    }))

  it.effect("the rules of a layer may make the request of a step or of a classification the last", () =>
    Effect.gen(function*() {
      const seen: Array<Adapter.Request> = []
      const last = Rule.layer([Rule.make("closing", { ask: () => Rule.last("enough") })])
      yield* Effect.gen(function*() {
        yield* Step.run("Hi", { tools: [inner] })
        yield* Adapter.classify("Hi", { tools: [inner] })
      }).pipe(Effect.provide(last), Effect.provideService(Adapter.Adapter, modelOf(hello, seen)))
      assert.deepStrictEqual(seen.map(({ toolChoice }) => toolChoice), ["none", "none"])
    }))

  it.effect("a classification asks the rules of a layer, which may change, repeat or refuse its request", () =>
    Effect.gen(function*() {
      const { asked, layer } = counting()
      const seen: Array<Adapter.Request> = []
      const model = modelOf(
        ({ model }) => model === "small" ? hello({ messages: [], tools: [] }) : [Script.error("x")],
        seen
      )
      const smaller = Rule.make("smaller", {
        ask: (ask, { noted }) =>
          noted["smaller"] === undefined ? ask : { ...ask, template: { ...ask.template, model: "small" } },
        reply: ({ error }) => error === undefined ? Rule.keep() : Rule.askAgain({ note: true })
      })
      const classified = (rules: ReadonlyArray<Rule.Rule>) =>
        Adapter.classify("Hi", { system: "classify" }).pipe(
          Effect.provide(Rule.layer(rules)),
          Effect.provideService(Adapter.Adapter, model)
        )
      yield* classified([smaller])
      assert.deepStrictEqual(seen.map(({ model }) => model), [undefined, "small"])
      const refused = yield* Effect.flip(classified([Rule.make("closed", { ask: () => Rule.end() })]))
      assert.deepStrictEqual([refused.reason, seen.length], ["invalid_request", 2])
      assert.include(refused.message, "closed")
      yield* Adapter.classify("Hi", { system: "classify" }).pipe(Effect.provide([layer, layerOf()]))
      assert.deepStrictEqual(asked, ["classify"])
    }))

  it.effect("the operations of a session, kept or not, ask the rules of a layer", () =>
    Effect.gen(function*() {
      const { asked, layer } = counting()
      const session = Session.make({ id: "s" })
      yield* Effect.gen(function*() {
        yield* Session.reply(session, "Hi", { system: "reply" })
        yield* Session.step(yield* Session.appendUser(session, "Hi"), { system: "step" })
        yield* Session.start("Hi", { system: "start" })
        const opened = yield* Session.open("kept")
        yield* Session.keep(opened, (session) => Session.reply(session, "Hi", { system: "kept" }))
      }).pipe(Effect.provide([layer, layerOf(), Session.Store.layerMemory]))
      assert.deepStrictEqual(asked, ["reply", "step", "start", "kept"])
    }))

  it.effect("a worker asks the rules of a layer", () =>
    Effect.gen(function*() {
      const { asked, layer } = counting()
      yield* Session.submit("s", "one")
      yield* Layer.build(
        Worker.layer({ run: () => ({ system: "worker" }) }).pipe(Layer.provide([layer, layerOf()]))
      )
      const isDone = Effect.map(Session.open("s"), ({ session }) => session.status === "completed")
      for (let turn = 0; turn < 100 && !(yield* isDone); turn++) yield* TestClock.adjust("200 millis")
      assert.deepStrictEqual(asked, ["worker"])
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

  it.live("the agents of a server ask the rules of a layer", () =>
    Effect.gen(function*() {
      const { asked, layer } = counting()
      const agent = Agent.make({ name: "helper", description: "Helps", run: () => ({ system: "agent" }) })
      const site = yield* serve([agent], Layer.merge(layerOf(), layer))
      const body = { content: "Hi" }
      const { status } = yield* Effect.promise(() => site.ask("POST", "/agents/helper/sessions/s/messages", body))
      assert.deepStrictEqual([status, asked], [200, ["agent"]])
    }))

  it.effect("the rules of a layer precede a run's own rules, which do not reach the runs of its handlers", () =>
    Effect.gen(function*() {
      const order: Array<string> = []
      const noting = (name: string) =>
        Rule.make(name, {
          ask: (ask) => {
            order.push(`${name}: ${ask.system}`)
            return ask
          }
        })
      yield* Chat.run("outer", { system: "outer", tools: [inner], rules: [noting("own")] }).pipe(
        Effect.provide([Rule.layer([noting("all")]), layerOf(nesting)])
      )
      assert.deepStrictEqual(order, [
        "all: outer",
        "own: outer",
        "all: inner",
        "all: outer",
        "own: outer"
      ])
    }))

  it.effect("nested layers add up their rules, each once, until Rule.Inherited is emptied", () =>
    Effect.gen(function*() {
      const order: Array<string> = []
      const noting = (name: string) =>
        Rule.make(name, {
          ask: (ask) => {
            order.push(name)
            return ask
          }
        })
      const [outer, inner] = [noting("outer"), noting("inner")]
      const asking = Effect.andThen(Chat.run("Hi"), Adapter.classify("Hi"))
      yield* asking.pipe(
        Effect.provide(Rule.layer([inner, outer])),
        Effect.provide(Rule.layer([outer])),
        Effect.provide(layerOf())
      )
      assert.deepStrictEqual(order, ["outer", "inner", "outer", "inner"])
      yield* asking.pipe(
        Effect.provideService(Rule.Inherited, []),
        Effect.provide([Rule.layer([outer]), layerOf()])
      )
      assert.strictEqual(order.length, 4)
    }))

  it.effect("a rule of a layer is not asked by its own effects in a run, a step or a classification", () =>
    Effect.gen(function*() {
      const { asked, count } = counting()
      const running = (system: string) => Effect.orDie(Effect.provide(Chat.run("a", { system }), layerOf()))
      const asking = Rule.make("asking", {
        open: () =>
          Effect.as(running("open"), {
            ask: (ask) =>
              Effect.gen(function*() {
                yield* running("run")
                yield* Step.run("a", { system: "step" }).pipe(Effect.provide(layerOf()), Effect.orDie)
                yield* Adapter.classify("a", { system: "classify" }).pipe(Effect.provide(layerOf()), Effect.orDie)
                return Rule.ask(ask, { recorded: running("recorded") })
              }),
            next: (next) => Effect.as(running("next"), next)
          })
      })
      yield* Chat.run("Hi", { system: "own" }).pipe(Effect.provide([Rule.layer([asking, count]), layerOf()]))
      // The other rule is asked by each of them.
      assert.deepStrictEqual(asked, ["open", "run", "step", "classify", "own", "recorded", "next"])
      asked.length = 0
      yield* Adapter.classify("Hi", { system: "own" }).pipe(Effect.provide([Rule.layer([asking, count]), layerOf()]))
      assert.deepStrictEqual(asked, ["open", "run", "step", "classify", "own", "recorded"])
    }))
})
