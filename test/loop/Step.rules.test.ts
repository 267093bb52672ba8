/** The rules of all runs, in what is no run of several steps. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Adapter, Journal, Message, Rule, Session, Step } from "heddle"
import { Script } from "heddle/testing"
import { recordsOf } from "../support/edges.ts"
import { look, modelOf } from "../support/ruled.ts"

const closed = Rule.layer([Rule.make("closed", { ask: () => Rule.end({ detail: "maintenance" }) })])

describe("a rule that ends a request outside of a run", () => {
  it.effect("a rule that ends the request of a step fails the step, and no model is asked", () =>
    Effect.gen(function*() {
      const error = yield* Effect.flip(Step.run("Hi"))
      assert.instanceOf(error, Adapter.AdapterError)
      assert.strictEqual(error.message, "adapter error: invalid_request: the rule \"closed\" allows no request")
    }).pipe(Effect.provide(Layer.merge(Script.layer([]), closed))))

  it.effect("a rule that ends the request of a classification fails the classification, and no model is asked", () =>
    Effect.gen(function*() {
      const error = yield* Effect.flip(Adapter.classify("Hi"))
      assert.strictEqual(error.message, "adapter error: invalid_request: the rule \"closed\" allows no request")
    }).pipe(Effect.provide(Layer.merge(Script.layer([]), closed))))
})

describe("a rule that keeps its notes for the session", () => {
  const meter = Rule.make("meter", {
    keeps: "session",
    reply: (_, at) => Rule.keep({ note: Number(Rule.latest(at, "meter") ?? 0) + 1 })
  })
  /** Ends a run with the kept note. */
  const shown = Rule.make("shown", { ask: (_, at) => Rule.end({ detail: Rule.latest(at, "meter") ?? null }) })

  /** The note that the next run finds. */
  const found = (kept: Session.Kept) =>
    Effect.map(
      Session.keep(kept, (session) => Session.reply(session, "how many?", { rules: [shown] })),
      ({ value: { result: { outcome } } }) => outcome._tag === "RuleEnded" ? outcome.detail : undefined
    )

  const model = () =>
    Adapter.layer(modelOf(({ messages }) =>
      messages.some(({ role }) => role === "tool")
        ? [Script.text("done"), Script.finish("stop")]
        : [Script.toolCall("c", "look"), Script.finish("tool_calls")], []))

  const tools = [look]

  const stepped = Effect.gen(function*() {
    const opened = yield* Session.open("s")
    const said = yield* Session.keep(opened, (session) => Session.append(session, [Message.user("go")]))
    return yield* Session.keep(said, (session) => Session.step(session, { tools }))
  })

  it.effect("R-513: a session rule finds its notes behind steps of the session", () =>
    Effect.gen(function*() {
      const first = yield* stepped
      const second = yield* Session.keep(first, (session) => Session.step(session, { tools }))
      assert.strictEqual(second.session.status, "completed")
      assert.isEmpty(Journal.check(yield* recordsOf("s")))
      assert.strictEqual(yield* found((yield* Session.load("s"))!), 2)
      assert.strictEqual(yield* found(yield* Session.snapshot((yield* Session.load("s"))!)), 2)
    }).pipe(Effect.provide([model(), Session.Store.layerMemory, Rule.layer([meter])])))

  it.effect("R-513: a session rule finds its notes behind a step that was killed at any record and resumed", () =>
    Effect.gen(function*() {
      const records = yield* Effect.andThen(stepped, recordsOf("s")).pipe(
        Effect.provide([model(), Session.Store.layerMemory])
      )
      const started = records.findIndex(({ _tag }) => _tag === "RunStarted")
      assert.isAbove(started, 0)
      for (let length = started + 1; length < records.length; length++) {
        const note = yield* Effect.gen(function*() {
          const store = yield* Session.Store
          yield* store.append("s", 0, records.slice(0, length) as never)
          const cut = (yield* Session.load("s"))!
          assert.strictEqual(Session.next(cut), "resume")
          return yield* found(yield* Session.resume(cut, { tools, takeOver: true }))
        }).pipe(Effect.provide([model(), Session.Store.layerMemory]))
        assert.strictEqual(note, 1, `killed behind ${records[length - 1]?._tag}`)
      }
    }).pipe(Effect.provide(Rule.layer([meter]))))
})

describe("rules in the options of Session.step", () => {
  const said = Session.make({ thread: { messages: [Message.user("go")], metadata: {} } })
  const done = [Script.text("done"), Script.finish("stop")]
  const larger = Rule.make("larger", {
    ask: (ask) => Rule.ask({ ...ask, template: { ...ask.template, model: "large" } }, { note: "large" })
  })

  it.effect("R-540: rules of Session.step and prepareStep may change its request", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([done, done])
      const step = (options: object) => Session.step(said, options).pipe(Effect.provide(model.layer))
      yield* step({ rules: [larger] })
      yield* step({ prepareStep: () => ({ model: "small" }) })
      assert.deepStrictEqual((yield* model.requests).map((request) => request.model), ["large", "small"])
    }))

  it.effect("R-540: rules of Session.step hear its reply and may ask again", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([done, done])
      const again = Rule.make("again", { reply: (_, { attempt }) => attempt === 1 ? Rule.askAgain() : Rule.keep() })
      yield* Session.step(said, { rules: [again] }).pipe(Effect.provide(model.layer))
      assert.strictEqual((yield* model.requests).length, 2)
    }))

  it.effect("R-540: a rule of Session.step that ends the request fails the step", () =>
    Effect.gen(function*() {
      const error = yield* Effect.flip(Session.step(said, { rules: [Rule.make("closed", { ask: () => Rule.end() })] }))
      assert.strictEqual(error.message, "adapter error: invalid_request: the rule \"closed\" allows no request")
    }).pipe(Effect.provide(Script.layer([]))))

  it.effect("R-540: rules of Session.step apply in a step that was killed at any record and resumed", () =>
    Effect.gen(function*() {
      const replies = [[Script.toolCall("c", "look"), Script.finish("tool_calls")]]
      const options = { tools: [look], rules: [larger] }
      const whole = yield* Effect.gen(function*() {
        const opened = yield* Session.open("s")
        const kept = yield* Session.keep(opened, (session) => Session.append(session, [Message.user("go")]))
        const stepped = yield* Session.keep(kept, (session) => Session.step(session, options))
        return { records: yield* recordsOf("s"), thread: stepped.session.thread }
      }).pipe(Effect.provide([Script.layer(replies), Session.Store.layerMemory]))
      assert.isEmpty(Journal.check(whole.records))
      const started = whole.records.findIndex(({ _tag }) => _tag === "RunStarted")
      for (let length = started + 1; length < whole.records.length; length++) {
        const where = `killed behind ${whole.records[length - 1]?._tag}`
        const model = yield* Script.make(replies)
        const session = yield* Effect.gen(function*() {
          const store = yield* Session.Store
          yield* store.append("s", 0, whole.records.slice(0, length) as never)
          const cut = (yield* Session.load("s"))!
          return (yield* Session.resume(cut, { ...options, takeOver: true })).session
        }).pipe(Effect.provide([model.layer, Session.Store.layerMemory]))
        assert.deepStrictEqual(session.thread, whole.thread, where)
        for (const request of yield* model.requests) assert.strictEqual(request.model, "large", where)
      }
    }))
})
