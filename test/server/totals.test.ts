/**
 * The usage of a run as its journal tells it, for a page that is loaded again: the same as the run told while it lived.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Chat, Event, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import * as JournalEvents from "../../src/server/internal/journalEvents.ts"

type Completed = Extract<Event.PublicEvent, { readonly _tag: "ChatCompleted" }>

const used = (inputTokens: number) => Script.usage({ inputTokens, outputTokens: 0 })

const calls = (inputTokens: number, ...names: ReadonlyArray<string>) => [
  ...names.map((name, index) => Script.toolCall(`${name}${index}`, name, {})),
  used(inputTokens),
  Script.finish("tool_calls")
]

const says = (inputTokens: number, text: string) => [Script.text(text), used(inputTokens), Script.finish("stop")]

const sub = Tool.fromChat("sub", { parameters: {}, chat: () => Chat.stream("sub") })

const asking = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })

const careful = Tool.fromChat("careful", { parameters: {}, chat: () => Chat.stream("careful", { tools: [asking] }) })

const tools = [sub, careful]

/** The ends of the runs as the journal tells them. */
const folded = Effect.map(
  Effect.flatMap(Session.Store, ({ read }) => Stream.runCollect(read("s"))),
  (entries) => {
    const telling = new JournalEvents.Telling("s", {})
    const told = entries.flatMap((entry) => telling.take(entry))
    return told.flatMap(({ event }) => event._tag === "ChatCompleted" ? [event] : [])
  }
)

/** Collects the results of runs while the runs live. */
const living = () => {
  const results: Array<Event.ChatResult> = []
  const onEvent = (event: Event.Event) => {
    if (event._tag === "ChatCompleted") results.push(event.result)
  }
  return { results, options: { tools, onEvent } }
}

const inputs = (results: ReadonlyArray<Pick<Completed | Event.ChatResult, "usage" | "totalUsage">>) =>
  results.map(({ totalUsage, usage }) => [usage?.inputTokens, totalUsage?.inputTokens])

describe("usage from a journal", () => {
  it.effect("O-65: the total usage includes the usage of sub-agents, and each run has its own", () =>
    Effect.gen(function*() {
      const { options, results } = living()
      const opened = yield* Session.open("s")
      const first = yield* Session.keep(opened, (session) => Session.reply(session, "go", options))
      yield* Session.keep(first, (session) => Session.reply(session, "again", options))
      assert.deepStrictEqual(inputs(results), [[3, 33], [2, 102]])
      assert.deepStrictEqual(inputs(yield* folded), inputs(results))
    }).pipe(
      Effect.provide(Script.layer([
        calls(1, "sub", "sub"),
        says(10, "a"),
        says(20, "b"),
        says(2, "end"),
        calls(1, "sub"),
        says(100, "c"),
        says(1, "end")
      ])),
      Effect.provide(Session.Store.layerMemory)
    ))

  it.effect("O-65: a waiting run and the run that continues it each have their own usage", () =>
    Effect.gen(function*() {
      const { options, results } = living()
      const opened = yield* Session.open("s")
      const asked = yield* Session.keep(opened, (session) => Session.reply(session, "go", options))
      const [suspension] = asked.session.suspensions
      const allowed = yield* Session.keep(asked, (session) => Session.approve(session, suspension?.id ?? ""))
      yield* Session.keep(allowed, (session) => Session.continue(session, null, options))
      assert.deepStrictEqual(inputs(results), [[1, 11], [2, 102]])
      assert.deepStrictEqual(inputs(yield* folded), inputs(results))
    }).pipe(
      Effect.provide(Script.layer([calls(1, "careful"), calls(10, "pay"), says(100, "paid"), says(2, "end")])),
      Effect.provide(Session.Store.layerMemory)
    ))

  it.effect("O-65: a run continued by another process has the usage of both processes", () =>
    Effect.gen(function*() {
      const { options, results } = living()
      const opened = yield* Session.open("s")
      const asked = yield* Deferred.make<void>()
      let requests = 0
      const first = Layer.effect(
        Adapter.Adapter,
        Effect.map(Adapter.Adapter, (model) => ({
          ...model,
          stream: (request: Adapter.Request) =>
            ++requests < 3
              ? model.stream(request)
              : Stream.fromEffect(Effect.andThen(Deferred.succeed(asked, undefined), Effect.never))
        }))
      ).pipe(Layer.provide(Script.layer([calls(1, "sub"), says(10, "a")])))
      const cut = Effect.provide(Session.keep(opened, (session) => Session.reply(session, "go", options)), first)
      const fiber = yield* Effect.forkChild(cut, { startImmediately: true })
      yield* Deferred.await(asked)
      yield* Fiber.interrupt(fiber)
      const kept = yield* Session.load("s")
      const last = Script.layer([calls(2, "sub"), says(100, "b"), says(3, "end")])
      yield* Effect.provide(Session.resume(kept!, { ...options, takeOver: true }), last)
      assert.deepStrictEqual(inputs(results), [[6, 116]])
      assert.deepStrictEqual(inputs(yield* folded), inputs(results))
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})

/** The usages of the ends of runs, as they are published. */
const usages = (events: ReadonlyArray<Event.PublicEvent>) =>
  events.flatMap((event) => {
    if (event._tag !== "ChatCompleted") return []
    const { nestedUsage, outcome, totalUsage, usage } = event
    return [{ outcome: outcome._tag, usage, totalUsage, nestedUsage }]
  })

const hanging = Tool.fromChat("hanging", {
  parameters: {},
  timeout: "1 second",
  chat: () => Chat.stream("hanging", { tools: [Tool.make("hang", { parameters: {}, handler: () => Effect.never })] })
})

interface Ending {
  readonly name: string
  readonly outcome: string
  readonly turns: ReadonlyArray<ReadonlyArray<Script.Entry>>
  readonly options?: object
}

const endings: ReadonlyArray<Ending> = [
  { name: "a whole run", outcome: "Completed", turns: [calls(1, "sub"), says(10, "a"), says(3, "end")] },
  {
    name: "a run that cuts a sub-agent",
    outcome: "Completed",
    turns: [calls(1, "sub"), says(10, "a"), calls(2, "hanging"), calls(20, "hang"), says(3, "end")]
  },
  {
    name: "a run whose deadline cuts its reply",
    outcome: "Cancelled",
    turns: [calls(1, "sub"), says(10, "a"), [Script.text("I am"), used(5), Script.delay("1 hour")]],
    options: { deadline: "1 second" }
  },
  {
    name: "a run whose reply breaks",
    outcome: "Failed",
    turns: [calls(1, "sub"), says(10, "a"), [Script.text("I am"), used(5), Script.streamError("network_error")]]
  },
  {
    name: "a run whose sub-agent fails",
    outcome: "Completed",
    turns: [
      calls(1, "sub"),
      [Script.text("I am"), used(20), Script.streamError("network_error")],
      says(3, "end")
    ]
  },
  {
    name: "a run that asks again",
    outcome: "Completed",
    turns: [
      calls(1, "sub"),
      says(10, "a"),
      [Script.text(""), used(7), Script.streamError("network_error")],
      says(3, "end")
    ],
    options: { retryReply: Schedule.recurs(2) }
  }
]

describe("the usage at the end of a run", () => {
  it.effect.each(endings.map((ending) => [ending.name, ending] as const))(
    "V-07: the journal tells the usage of %s as the live run did",
    ([, { options, outcome, turns }]) =>
      Effect.gen(function*() {
        const live: Array<Event.PublicEvent> = []
        const calls = new Map<string, Event.PublicCall>()
        const onEvent = (event: Event.Event) => {
          const shown = Event.toPublic(event, { calls })
          if (shown !== undefined) live.push(shown)
        }
        const opened = yield* Session.open("s")
        const run = Session.keep(opened, (session) =>
          Session.reply(session, "go", { tools: [sub, hanging], onEvent, ...options }))
        const fiber = yield* Effect.forkChild(run, { startImmediately: true })
        yield* TestClock.adjust("1 minute")
        yield* Fiber.await(fiber)
        assert.deepStrictEqual(
          usages(live).map((each) =>
            each.outcome
          ),
          [outcome]
        )
        assert.deepStrictEqual(usages(yield* folded), usages(live))
      }).pipe(Effect.provide([Script.layer(turns), Session.Store.layerMemory]))
  )
})
