/** The requests of a run as a server shows them: while it lives, and as the journal tells them. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { Adapter, Chat, Event, type Journal, Policy, Session, Tool } from "heddle"
import { Agent } from "heddle/server"
import { Script } from "heddle/testing"
import * as Requests from "../../src/internal/ask/request.ts"
import * as Anthropic from "../support/anthropic.ts"
import { toldBy } from "../support/journalEvents.ts"
import { withinHour } from "../support/runs.ts"
import * as Models from "../support/server.ts"
import { journalOf } from "../support/survivor.ts"
import { eventsOf, serve } from "./support/site.ts"

const { delay, finish, text, toolCall } = Script

const done = [delay(40), text("Done."), finish("stop")]

type Shown = Event.PublicEvent | undefined

/** The requests and the beginnings of replies, of a run and of those inside its handlers, each with its time. */
const requestsIn = (events: ReadonlyArray<Shown>) =>
  events.flatMap((event) => {
    const inner = event?._tag === "ToolProgress" ? event.nested : event
    switch (inner?._tag) {
      case "RequestStarted": {
        const { attempt, model, provider, stepIndex } = inner
        return [[event?._tag, stepIndex, attempt, model, provider, event?.at]]
      }
      case "RequestRetried": {
        const { afterMillis, attempt, code, stepIndex } = inner
        return [[inner._tag, stepIndex, attempt, inner.try, code, afterMillis, event?.at]]
      }
      case "MessageStarted":
        return [["MessageStarted", event?.at]]
      default:
        return []
    }
  })

/** A model with a name, that answers by a script, and listens to what a request says of its tries. */
const named = (script: Parameters<typeof Script.layer>[0], retries: ReadonlyArray<Requests.Retried> = []) =>
  Layer.effect(
    Adapter.Adapter,
    Effect.map(Adapter.Adapter, (adapter): Adapter.Service => ({
      ...adapter,
      model: "one",
      provider: "fake",
      stream: (request) =>
        Stream.unwrap(Effect.gen(function*() {
          const tell = yield* Requests.RetryListener
          for (const retried of retries) {
            tell?.(retried)
            yield* Effect.sleep(retried.afterMillis)
          }
          return adapter.stream(request)
        }))
    }))
  ).pipe(Layer.provide(Script.layer(script)))

/** A kept run as a server shows it. */
const kept = (
  model: Layer.Layer<Adapter.Adapter>,
  tools: ReadonlyArray<Tool.Any>,
  options: Chat.Options<any, any> = {}
) =>
  Effect.gen(function*() {
    yield* TestClock.setTime(1_000_000)
    const live: Array<Shown> = []
    const calls = new Map()
    const clock = yield* Effect.clockWith(Effect.succeed)
    const add = (event: { readonly _tag: string }) =>
      void live.push(Event.toPublic(event as Event.Event, { calls, at: clock.currentTimeMillisUnsafe() }))
    const opened = yield* Session.open("s")
    const run = Session.keep(opened, (session) =>
      Session.reply(session, "go", {
        ...options,
        tools: tools as unknown as [],
        onEvent: (event) => Effect.sync(() => add(event))
      }))
    yield* withinHour(Effect.provideService(run, Requests.CurrentListener, { within: undefined, tell: add }))
    const records = yield* journalOf("s")
    return { live, records, told: toldBy(records) }
  }).pipe(Effect.provide(Layer.merge(model, Session.Store.layerMemory)))

const timesIn = (records: ReadonlyArray<Journal.Record>): ReadonlyArray<ReadonlyArray<unknown>> =>
  records.flatMap((record): ReadonlyArray<ReadonlyArray<unknown>> => {
    if (record._tag === "CallStarted") return record.request === undefined ? [] : [[record._tag, record.request]]
    if (record._tag !== "ReplyReceived" && record._tag !== "StepCompleted") return []
    const { attempt, first, model, requested } = record
    return requested === undefined && record.response === undefined
      ? []
      : [[record._tag, requested, first, attempt, model]]
  })

const look = Tool.make("look", { parameters: {}, readOnly: true, handler: () => Effect.as(Effect.sleep(10), "seen") })
const pay = Tool.make("pay", { parameters: {}, handler: () => Effect.as(Effect.sleep(100), "paid") })

describe("the model requests of a run", () => {
  it.effect("V-23: live requests appear as they are sent, and the journal tells them the same way", () =>
    Effect.gen(function*() {
      const { live, records, told } = yield* kept(
        named([[delay(30), text("I pay."), toolCall("a", "pay"), finish("tool_calls")], done]),
        [pay]
      )
      const expected = [
        ["RequestStarted", 0, 1, "one", "fake", 1_000_000],
        ["MessageStarted", 1_000_000],
        ["RequestStarted", 1, 1, "one", "fake", 1_000_130],
        ["MessageStarted", 1_000_130]
      ]
      assert.deepStrictEqual(requestsIn(live), expected)
      assert.deepStrictEqual(requestsIn(told), expected)
      assert.deepStrictEqual(timesIn(records), [
        ["ReplyReceived", 0, 0, undefined, "one"],
        ["StepCompleted", 130, 130, undefined, "one"]
      ])
    }))

  it.effect("V-23: a request comes before the calls that start while its reply is read, also in the journal", () =>
    Effect.gen(function*() {
      const script = [
        [text("I look."), toolCall("a", "look"), delay(50), toolCall("b", "look"), finish("tool_calls")],
        done
      ]
      const { live, records, told } = yield* kept(named(script), [look])
      const order = (events: ReadonlyArray<Shown>) =>
        events.flatMap((event) =>
          event?._tag === "RequestStarted" || event?._tag === "MessageStarted" || event?._tag === "ToolExecutionStarted"
            ? [`${event._tag} ${event.at}`]
            : []
        )
      assert.deepStrictEqual(order(live), [
        "RequestStarted 1000000",
        "MessageStarted 1000000",
        "ToolExecutionStarted 1000000",
        "ToolExecutionStarted 1000050",
        "RequestStarted 1000060",
        "MessageStarted 1000060"
      ])
      assert.deepStrictEqual(order(told), order(live))
      assert.deepStrictEqual(timesIn(records)[0], ["CallStarted", {
        requested: 0,
        first: 0,
        model: "one",
        provider: "fake"
      }])
    }))

  it.effect("V-23: requests are numbered within their step, and each reply has its own times", () =>
    Effect.gen(function*() {
      const script = [
        [delay(20), Script.streamError("network_error")],
        [text("Done."), finish("stop")]
      ]
      const { live, records, told } = yield* kept(named(script), [], {
        retryReply: Schedule.upTo(Schedule.spaced(500), { times: 1 })
      })
      const requests = (events: ReadonlyArray<Shown>) =>
        requestsIn(events).filter(([tag]) => tag === "RequestStarted").map((
          [, step, attempt, , , at]
        ) => [step, attempt, at])
      assert.deepStrictEqual(requests(live), [[0, 1, 1_000_000], [0, 2, 1_000_520]])
      assert.deepStrictEqual(requests(told), [[0, 2, 1_000_520]])
      assert.deepStrictEqual(timesIn(records), [["StepCompleted", 520, 520, 2, "one"]])
    }))

  it.effect("V-23: readers see a retried request at once, with the reason and the pause", () =>
    Effect.gen(function*() {
      const retries = [
        { try: 1, code: "rate_limited", afterMillis: 200 },
        { try: 2, code: "canary", afterMillis: 400 }
      ]
      const { live, records } = yield* kept(named([[text("Done."), finish("stop")]], retries), [])
      assert.deepStrictEqual(requestsIn(live), [
        ["RequestStarted", 0, 1, "one", "fake", 1_000_000],
        ["RequestRetried", 0, 1, 1, "rate_limited", 200, 1_000_000],
        ["RequestRetried", 0, 1, 2, "internal", 400, 1_000_200],
        ["MessageStarted", 1_000_600]
      ])
      assert.deepStrictEqual(timesIn(records), [["StepCompleted", 0, 600, undefined, "one"]])
    }))

  it.effect("V-23: a sub-agent's requests are events of its call, and a handler's private run has none", () =>
    Effect.gen(function*() {
      const research = Tool.fromChat("research", { parameters: {}, chat: () => Chat.stream("Look into it") })
      const secret = Tool.make("secret", { parameters: {}, handler: () => Effect.as(Chat.run("Hush"), "done") })
      const model = named([
        [toolCall("r", "research"), finish("tool_calls")],
        [text("inner"), finish("stop")],
        [toolCall("s", "secret"), finish("tool_calls")],
        [text("hushed"), finish("stop")],
        [text("Done."), finish("stop")]
      ])
      const { live } = yield* kept(model, [research, secret])
      const requests = requestsIn(live).filter(([tag]) => tag !== "MessageStarted").map(([tag, step]) => [tag, step])
      assert.deepStrictEqual(requests, [
        ["RequestStarted", 0],
        ["ToolProgress", 0],
        ["RequestStarted", 1],
        ["RequestStarted", 2]
      ])
    }))

  it.effect("V-23: the stream of a run has no requests, under any policy", () =>
    Effect.gen(function*() {
      for (const policy of [Policy.standard, Policy.allm, Policy.falai]) {
        const events = yield* withinHour(Stream.runCollect(Chat.stream("go", { tools: [pay], policy }))).pipe(
          Effect.provide(named([[toolCall("a", "pay"), finish("tool_calls")], done]))
        )
        assert.deepStrictEqual(events.filter(({ _tag }) => String(_tag).startsWith("Request")), [])
      }
    }))

  it("V-23: a request is published with its known fields only, and not with a malformed number", () => {
    const request = { _tag: "RequestStarted", stepIndex: 0, attempt: 1, model: "m", provider: "p", secret: "canary" }
    const shown = (event: object) => Event.toPublic(event as Event.Event)
    assert.deepStrictEqual(shown(request), {
      _tag: "RequestStarted",
      stepIndex: 0,
      attempt: 1,
      model: "m",
      provider: "p"
    })
    assert.isUndefined(shown({ ...request, attempt: "1" }))
    assert.deepStrictEqual(shown({ ...request, model: { a: 1 }, provider: 1 }), {
      _tag: "RequestStarted",
      stepIndex: 0,
      attempt: 1
    })
    const retried = {
      _tag: "RequestRetried",
      stepIndex: 0,
      attempt: 1,
      try: 1,
      code: "timeout",
      afterMillis: 5
    } as const
    assert.deepStrictEqual(shown({ ...retried, cause: "canary" }), retried)
    assert.isUndefined(shown({ ...retried, try: Infinity }))
  })
})

describe("model requests over HTTP", () => {
  it.live("V-23: a server shows the tries of a real adapter while the request runs, and then the reply's request", () =>
    Effect.gen(function*() {
      const answered = Anthropic.reply([Anthropic.text(0, "Blue.")], "end_turn")
      const answers: ReadonlyArray<Models.Answer> = [
        { status: 429, headers: { "retry-after-ms": "30" }, pieces: ["{}"] },
        { status: 503, pieces: ["{}"] },
        { pieces: [answered] }
      ]
      const { url } = yield* Models.serve((_, index) => answers[Math.min(index, 2)]!)
      const agent = Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({}) })
      const site = yield* serve([agent], Anthropic.layer(url, { retries: 2, retryDelay: 10 }))
      const events = yield* Effect.promise(async () => {
        const reader = await site.open("POST", "/agents/helper/sessions/s1/messages", { content: "Go" })
        return eventsOf(await reader.end())
      })
      assert.deepStrictEqual(
        events.slice(0, 5).map((event) => [event._tag, ..."code" in event ? [event.code] : []]),
        [
          ["RunStarted"],
          ["RequestStarted"],
          ["RequestRetried", "rate_limited"],
          ["RequestRetried", "provider_unavailable"],
          ["MessageStarted"]
        ]
      )
      const times = events.map(({ at }) => at ?? NaN)
      assert.deepStrictEqual(times, times.toSorted((left, right) => left - right))
      const [request, ...retries] = events.filter(({ _tag }) => _tag.startsWith("Request"))
      assert.deepInclude(request, { stepIndex: 0, attempt: 1, provider: "anthropic" })
      assert.deepStrictEqual(retries.map((event) => event._tag === "RequestRetried" ? event.try : 0), [1, 2])
      for (const event of retries) if (event._tag === "RequestRetried") assert.isAtLeast(event.afterMillis, 10)
    }))
})
