/** `Adapter.fallback`: which error leads to which adapter, what a run shows of it, and what a resumed run asks. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Chat, Collector, Event, Message, type Rule, Session, Step, Tool } from "heddle"
import { Script } from "heddle/testing"
import { AgUi, UiStream } from "heddle/ui"
import * as Adapters from "../support/adapters.ts"
import * as WaitingClock from "../support/clock.ts"
import { stores } from "../support/edges.ts"
import { names as protocolNames, protocols } from "../support/replies.ts"
import { killedAtEach, look, modelOf, passing, type Replies } from "../support/ruled.ts"
import * as Server from "../support/server.ts"
import * as Spans from "../support/spans.ts"
import { journalOf, prefixed } from "../support/survivor.ts"

const { finish, text, toolCall, usage } = Script

type Reason = Adapter.AdapterError["reason"]

const failing = (reason: Reason, more: Partial<Adapter.AdapterError> = {}) =>
  new Adapter.AdapterError({ reason, ...more })

/** A model that fails, behind some events. */
const broken = (reason: Reason, before: ReadonlyArray<Event.AdapterEvent> = []): Adapter.Service => ({
  stream: () => Stream.concat(Stream.fromIterable(before), Stream.fail(failing(reason)))
})

const started: Event.AdapterEvent = { _tag: "MessageStarted", message: Message.assistant("") }

/** A model that notes its requests under a name. */
const noting = (asked: Array<string>, name: string, service: Adapter.Service): Adapter.Service => ({
  ...service,
  stream: (request) => {
    asked.push(request.model === undefined ? name : `${name}:${request.model}`)
    return service.stream(request)
  }
})

const answering: Replies = () => [text("done"), finish("stop")]

/** Calls `look` in the first turn, and then answers. */
const looking: Replies = ({ messages }) =>
  messages.some(({ role }) => role === "assistant")
    ? [usage({ totalTokens: 10 }), text("done"), finish("stop")]
    : [usage({ totalTokens: 10 }), toolCall("c0", "look"), finish("tool_calls")]

/** A run over candidates `a`, `b`, … */
const over = (
  services: ReadonlyArray<
    Adapter.Service | (Omit<Adapter.FallbackOptions, "layer"> & { readonly of: Adapter.Service })
  >,
  options: Omit<Chat.Options<ReadonlyArray<Tool.Any>, never, never, never, never>, "onEvent"> = {}
) => {
  const asked: Array<string> = []
  const events: Array<Event.Event> = []
  const candidates = services.map((given, index) => {
    const { of, ...more } = "of" in given ? given : { of: given }
    const name = "abcdef"[index]!
    return { name, ...more, layer: Adapter.layer(noting(asked, name, of)) }
  })
  const run = Stream.runForEach(Chat.stream("go", options), (event) => Effect.sync(() => void events.push(event)))
  return Effect.map(Effect.exit(Effect.provide(run, Adapter.fallback(candidates))), (exit) => {
    const last = events.at(-1)
    return {
      exit,
      asked,
      events,
      result: last?._tag === "ChatCompleted" ? last.result : undefined,
      error: Exit.isFailure(exit) ? Exit.getCause(exit) : undefined
    }
  })
}

const good = modelOf(answering, [])

const switchesOf = (events: ReadonlyArray<Event.Event>) =>
  events.flatMap((event) =>
    event._tag === "ModelSwitched" ? [[event.from, event.to, (event.error as Adapter.AdapterError).reason]] : []
  )

const others: ReadonlyArray<Reason> = [
  "authentication_failed",
  "invalid_request",
  "context_length_exceeded",
  "content_filter",
  "malformed_response",
  "unsupported_feature",
  "unknown"
]

const spent: Event.AdapterEvent = { _tag: "RawChunk", chunk: { usage: { inputTokens: 3 } } }

describe("a switch", () => {
  for (const reason of [...passing, ...others]) {
    it.effect(`G34: ${reason} before any output, at each event, ${passing.includes(reason) ? "switches to the next candidate" : "asks no other candidate"}`, () =>
      Effect.gen(function*() {
        const isPassing = passing.includes(reason)
        for (const before of [[], [started], [started, spent]]) {
          const { asked, events, exit, result } = yield* over([broken(reason, before), good])
          assert.deepStrictEqual(asked, isPassing ? ["a", "b"] : ["a"], `behind ${before.length} events`)
          assert.deepStrictEqual(switchesOf(events), isPassing ? [["a", "b", reason]] : [])
          if (isPassing) {
            const tags = events.map(({ _tag }) => _tag)
            assert.strictEqual(tags.indexOf("StepReset") + 1, tags.indexOf("ModelSwitched"))
            assert.strictEqual(result?.finalResponse?.outputText, "done")
            assert.strictEqual(result?.totalUsage?.inputTokens ?? 0, before.length === 2 ? 3 : 0)
          } else {
            // Without any event there is no step, and the run fails.
            const outcome = result?.outcome._tag === "Failed" ? result.outcome.error : Exit.findErrorOption(exit)
            const error = Option.isOption(outcome) ? Option.getOrUndefined(outcome) : outcome
            assert.strictEqual((error as Adapter.AdapterError | undefined)?.reason, reason)
            assert.strictEqual(Exit.isFailure(exit), before.length === 0)
          }
        }
      }))
  }

  const said: ReadonlyArray<Event.AdapterEvent> = [
    { _tag: "TextDelta", id: null, delta: "a" },
    { _tag: "ReasoningDelta", id: null, delta: "a" },
    { _tag: "ToolCallStarted", id: "c", name: "look" },
    { _tag: "ToolCallCompleted", id: "c", name: "look", arguments: {}, rawArguments: "{}" }
  ]
  for (const event of said) {
    it.effect(`G35: a reply broken behind ${event._tag} stays broken, and no other candidate is asked`, () =>
      Effect.gen(function*() {
        const { asked, events } = yield* over([broken("provider_unavailable", [started, event]), good], {
          tools: [look]
        })
        assert.deepStrictEqual([asked[0], switchesOf(events)], ["a", []])
        assert.notInclude(asked.slice(0, 1), "b")
        assert.isFalse(asked.includes("b"))
      }))
  }

  it.effect("R-518: a too long conversation goes to a candidate with a larger window and skips candidates without a window", () =>
    Effect.gen(function*() {
      const long = { ...broken("context_length_exceeded"), contextWindow: 100 }
      const small = { ...good, contextWindow: 50 }
      const large = { ...good, contextWindow: 200 }
      assert.deepStrictEqual((yield* over([long, small, good, large])).asked, ["a", "d"])
      assert.deepStrictEqual((yield* over([long, small, good])).asked, ["a"])
      assert.deepStrictEqual((yield* over([broken("context_length_exceeded"), large])).asked, ["a"])
    }))

  it.effect("R-518: `when` decides in place of the reasons", () =>
    Effect.gen(function*() {
      const of = broken("authentication_failed")
      const { asked } = yield* over([{ of, when: ({ reason }) => reason === "authentication_failed" }, good])
      assert.deepStrictEqual(asked, ["a", "b"])
      const never = yield* over([{ of: broken("timeout"), when: () => false }, good])
      assert.deepStrictEqual(never.asked, ["a"])
    }))

  it.effect("G37: when all candidates fail the run has the last error, which lists the others", () =>
    Effect.gen(function*() {
      const all = [broken("rate_limited"), broken("timeout"), broken("provider_unavailable")]
      const { asked, error, events } = yield* over(all)
      assert.deepStrictEqual(asked, ["a", "b", "c"])
      const tried = [{ name: "a", reason: "rate_limited" }, { name: "b", reason: "timeout" }]
      const expected = failing("provider_unavailable", { metadata: { tried } })
      assert.deepStrictEqual(error, Exit.getCause(Exit.fail(expected) as Exit.Failure<never, unknown>))
      assert.deepStrictEqual(switchesOf(events), [["a", "b", "rate_limited"], ["b", "c", "timeout"]])
      let steps = 0
      const later: Adapter.Service = {
        stream: (request) => steps++ === 0 ? modelOf(looking, []).stream(request) : broken("timeout").stream(request)
      }
      const { result } = yield* over([later, broken("network_error")], { tools: [look] })
      assert.strictEqual(result?.steps.length, 1)
      const { outcome } = result!
      assert.deepStrictEqual(
        outcome,
        {
          _tag: "Failed",
          error: failing("network_error", { metadata: { tried: [{ name: "a", reason: "timeout" }] } })
        } as never
      )
    }))

  it.effect("G38: a stop during a switch asks no further candidate", () =>
    Effect.gen(function*() {
      const reached = yield* Deferred.make<void>()
      const stopping: Adapter.Service = {
        stream: () =>
          Stream.concat(
            Stream.fromEffectDrain(Deferred.succeed(reached, undefined)),
            Stream.fail(failing("rate_limited"))
          )
      }
      const { asked, events } = yield* over([stopping, good], { cancel: Deferred.await(reached) })
      assert.deepStrictEqual([asked, switchesOf(events)], [["a"], []])
    }))

  it.effect("R-518: a run stays with its current candidate, and a handler's run begins with the first candidate", () =>
    Effect.gen(function*() {
      const nested: Array<string> = []
      let isDown = true
      const first: Adapter.Service = {
        stream: (request) => isDown ? broken("rate_limited").stream(request) : good.stream(request)
      }
      const sub = Tool.make("look", {
        parameters: {},
        handler: () =>
          Effect.gen(function*() {
            isDown = false
            const result = yield* Chat.run("inside")
            nested.push(result.finalResponse?.provider ?? "")
            return "seen"
          }) as Effect.Effect<string>
      })
      const { asked, result } = yield* over(
        [{ ...first, provider: "one" }, { ...modelOf(looking, []), provider: "two" }],
        { tools: [sub] }
      )
      assert.deepStrictEqual(asked, ["a", "b", "a", "b"])
      assert.deepStrictEqual(nested, ["one"])
      assert.deepStrictEqual(result?.steps.map(({ response }) => response.provider), ["two", "two"])
    }))

  it.effect("R-518: the run's model applies to the first candidate, and other candidates use their own model", () =>
    Effect.gen(function*() {
      const down = broken("timeout")
      const { asked } = yield* over([down, down, { of: good, model: "own" }], { model: "gpt-5" })
      assert.deepStrictEqual(asked, ["a:gpt-5", "b", "c:own"])
    }))

  it.effect("R-518: every candidate but the last gets its own retries and a short patience", () =>
    Effect.gen(function*() {
      const attempts: Array<unknown> = []
      const seen = (service: Adapter.Service): Adapter.Service => ({
        stream: (request) => {
          attempts.push(request.attempt)
          return service.stream(request)
        }
      })
      const down = seen(broken("timeout"))
      yield* over([down, { of: down, retries: 3 }, seen(good)])
      assert.deepStrictEqual(attempts, [
        { retries: 0, patienceMillis: 5000 },
        { retries: 3, patienceMillis: 5000 },
        undefined
      ])
    }))

  it.effect("R-518: `within` bounds the time until the first output and no longer", () =>
    Effect.gen(function*() {
      const silent: Adapter.Service = { stream: () => Stream.concat(Stream.make(started), Stream.never) }
      const fiber = yield* Effect.forkChild(over([{ of: silent, within: "2 seconds" }, good]))
      yield* TestClock.adjust("1999 millis")
      assert.isUndefined(fiber.pollUnsafe())
      yield* TestClock.adjust("1 millis")
      const { asked, events } = yield* Fiber.join(fiber)
      assert.deepStrictEqual([asked, switchesOf(events)], [["a", "b"], [["a", "b", "timeout"]]])
      const reached = yield* Deferred.make<void>()
      const slow: Adapter.Service = {
        stream: (request) =>
          Stream.concat(
            Stream.make(started, { _tag: "TextDelta", id: null, delta: "x" } as const),
            Stream.unwrap(
              Effect.as(
                Effect.andThen(Deferred.succeed(reached, undefined), Effect.sleep("1 minute")),
                Stream.drop(good.stream(request), 1)
              )
            )
          )
      }
      const slowly = yield* Effect.forkChild(over([{ of: slow, within: "2 seconds" }, good]))
      yield* Deferred.await(reached)
      yield* TestClock.adjust("2 minutes")
      const found = yield* Fiber.join(slowly)
      assert.deepStrictEqual(found.asked, ["a"])
    }))

  it.effect("R-518: `within` does not count the time in which the reader pulls nothing", () =>
    Effect.gen(function*() {
      const asked: Array<string> = []
      const layerOf = (name: string) => Adapter.layer(noting(asked, name, good))
      const models = Adapter.fallback([{ layer: layerOf("a"), within: "2 seconds", name: "a" }, {
        layer: layerOf("b")
      }])
      const onEvent = ({ _tag }: Event.Event) => _tag === "MessageStarted" ? Effect.sleep("1 minute") : Effect.void
      const fiber = yield* Effect.forkChild(Effect.provide(Chat.run("go", { onEvent }), models))
      yield* TestClock.adjust("5 minutes")
      const { outcome } = yield* Fiber.join(fiber)
      assert.deepStrictEqual([asked, outcome._tag], [["a"], "Completed"])
    }))

  it.effect("R-518: `within` bounds the time that an adapter takes to connect, and all of its silence together", () =>
    Effect.gen(function*() {
      const connecting: Adapter.Service = { stream: () => Stream.unwrap(Effect.as(Effect.never, Stream.empty)) }
      // Each second it says nothing once more.
      const busy: Adapter.Service = {
        stream: () =>
          Stream.concat(
            Stream.make(started),
            Stream.fromEffectRepeat(Effect.as(Effect.sleep("1 second"), { _tag: "RawChunk", chunk: {} } as const))
          )
      }
      for (const service of [connecting, busy]) {
        const fiber = yield* Effect.forkChild(over([{ of: service, within: "2500 millis" }, good]))
        yield* TestClock.adjust("2499 millis")
        assert.isUndefined(fiber.pollUnsafe())
        yield* TestClock.adjust("1 millis")
        assert.deepStrictEqual((yield* Fiber.join(fiber)).asked, ["a", "b"])
      }
    }))

  it.effect("R-518: the fold of the events of a switched run equals its result", () =>
    Effect.gen(function*() {
      const { events, result } = yield* over([broken("timeout", [started, spent]), modelOf(looking, [])], {
        tools: [look]
      })
      assert.deepStrictEqual(Collector.toChatResult(Collector.applyAll(Collector.initial(), events)), result)
    }))
})

describe("Adapter.fallback without a loop", () => {
  const two = (first: Adapter.Service, asked: Array<string> = []) =>
    Adapter.fallback([
      { layer: Adapter.layer(noting(asked, "a", first)), name: "a" },
      { layer: Adapter.layer(noting(asked, "b", good)), name: "b" }
    ])

  it.effect("G34: a classification and a bare adapter stream switch for the same reasons", () =>
    Effect.gen(function*() {
      for (const reason of [...passing, "invalid_request"] as ReadonlyArray<Reason>) {
        const asked: Array<string> = []
        const layer = two(broken(reason, [started, spent]), asked)
        const exit = yield* Effect.exit(Adapter.classify("go").pipe(Effect.provide(layer)))
        assert.deepStrictEqual(
          [asked, Exit.isSuccess(exit)],
          passing.includes(reason) ? [["a", "b"], true] : [["a"], false]
        )
        const events: Array<string> = []
        const read = Stream.unwrap(
          Adapter.Adapter.useSync((adapter) => adapter.stream({ messages: [Message.user("go")], tools: [] }))
        )
        yield* Effect.exit(
          Stream.runForEach(read, ({ _tag }) => Effect.sync(() => void events.push(_tag))).pipe(Effect.provide(layer))
        )
        assert.strictEqual(events.filter((tag) => tag === "MessageStarted").length, 1)
        assert.strictEqual(events.at(-1), passing.includes(reason) ? "MessageCompleted" : "RawChunk")
      }
    }))

  it.effect("G34: a run, a step, a classification and a bare stream agree on what says something", () =>
    Effect.gen(function*() {
      const whole = { _tag: "MessageCompleted", message: Message.assistant(""), finishReason: "stop" } as const
      const replies: ReadonlyArray<readonly [behind: ReadonlyArray<Event.AdapterEvent>, isSwitched: boolean]> = [
        [[{ _tag: "TextDelta", id: null, delta: "" }], true],
        [[{ _tag: "ReasoningDelta", id: null, delta: "" }], true],
        [[{ _tag: "TextCompleted", id: null, text: "" }], true],
        [[whole], true],
        [[{ _tag: "TextDelta", id: null, delta: "a" }], false],
        [[{ _tag: "ReasoningDelta", id: null, delta: "a" }], false],
        [[{ _tag: "TextCompleted", id: null, text: "a" }], false],
        [[{ _tag: "ToolCallStarted", id: "c", name: "look" }], false]
      ]
      const bare = Stream.runDrain(Stream.unwrap(
        Adapter.Adapter.useSync((adapter) => adapter.stream({ messages: [Message.user("go")], tools: [] }))
      ))
      for (const [behind, isSwitched] of replies) {
        const asked: Array<string> = []
        const layer = two(broken("timeout", [started, ...behind]), asked)
        for (const ran of [Chat.run("go"), Step.run("go"), Adapter.classify("go"), bare]) {
          asked.length = 0
          yield* Effect.exit(Effect.provide(ran as typeof bare, layer))
          assert.deepStrictEqual(asked, isSwitched ? ["a", "b"] : ["a"], JSON.stringify(behind))
        }
      }
    }))

  it.effect("G35: a classification broken behind a text asks no other candidate", () =>
    Effect.gen(function*() {
      const asked: Array<string> = []
      const layer = two(broken("timeout", [started, { _tag: "TextDelta", id: null, delta: "a" }]), asked)
      const error = yield* Effect.flip(Adapter.classify("go").pipe(Effect.provide(layer)))
      assert.deepStrictEqual([asked, error.reason], [["a"], "timeout"])
    }))

  it.effect("G37: a classification whose candidates all fail has the last error, which lists the others", () =>
    Effect.gen(function*() {
      const layer = Adapter.fallback([
        { layer: Adapter.layer(broken("timeout")), name: "a" },
        { layer: Adapter.layer(broken("rate_limited")), name: "b" }
      ])
      const error = yield* Effect.flip(Adapter.classify("go").pipe(Effect.provide(layer)))
      assert.deepStrictEqual(
        error,
        failing("rate_limited", { metadata: { tried: [{ name: "a", reason: "timeout" }] } })
      )
    }))
})

describe("a changed adapter", () => {
  it.effect("R-517: Adapter.map changes each candidate, also the candidates of a named adapter", () =>
    Effect.gen(function*() {
      for (const isNamed of [false, true]) {
        const asked: Array<string> = []
        const candidates = Adapter.fallback([
          { layer: Adapter.layer(broken("timeout")), name: "a", model: "first" },
          { layer: Adapter.layer(good), name: "b", model: "second" }
        ])
        const layer = isNamed ? Adapter.named({ other: Adapter.layer(good), both: candidates }) : candidates
        const counted = Adapter.map((adapter) => noting(asked, "asked", adapter)).pipe(Layer.provide(layer))
        const options = isNamed ? { prepareStep: () => ({ adapter: "both" }) } : {}
        const result = yield* Chat.run("go", options).pipe(Effect.provide(counted))
        assert.strictEqual(result.finalResponse?.outputText, "done")
        assert.deepStrictEqual(asked, ["asked:first", "asked:second"])
      }
    }))

  it.effect("R-517: candidates stay candidates where the first is a named adapter, and its names lead past none of them", () =>
    Effect.gen(function*() {
      const asked: Array<string> = []
      const layerOf = (name: string, service: Adapter.Service) => Adapter.layer(noting(asked, name, service))
      const inner = Adapter.named({ fast: layerOf("fast", broken("timeout")), strong: layerOf("strong", good) })
      const models = Adapter.fallback([{ layer: inner, name: "a" }, { layer: layerOf("b", good), name: "b" }])
      for (const layer of [models, Adapter.map((adapter) => adapter).pipe(Layer.provide(models))]) {
        asked.length = 0
        const result = yield* Chat.run("go").pipe(Effect.provide(layer))
        assert.deepStrictEqual([result.finalResponse?.outputText, asked], ["done", ["fast", "b"]])
      }
      const exit = yield* Effect.exit(
        Chat.run("go", { prepareStep: () => ({ adapter: "strong" }) }).pipe(Effect.provide(models))
      )
      assert.match(String(Exit.isFailure(exit) && exit.cause), /no adapter "strong"; those of Adapter.named: none/)
    }))
})

describe("candidates of several named adapters", () => {
  /** Adapters of two candidates each, whose names are the same. The first of them is down. */
  const models = (asked: Array<string>) => {
    const both = (name: string, isDown: boolean) =>
      Adapter.fallback([
        { layer: Adapter.layer(noting(asked, `${name}1`, isDown ? broken("timeout") : modelOf(twice, []))), name: "1" },
        { layer: Adapter.layer(noting(asked, `${name}2`, modelOf(twice, []))), name: "2" }
      ])
    return Adapter.named({ left: both("left", true), right: both("right", false), far: both("far", true) })
  }
  /** Calls `look` in the first four turns. */
  const twice: Replies = ({ messages }) => {
    const turn = messages.filter(({ role }) => role === "assistant").length
    return turn < 4 ? [toolCall(`c${turn}`, "look"), finish("tool_calls")] : [text("done"), finish("stop")]
  }
  const names = ["left", "right", "far", "left", "far"]
  const given = { tools: [look], prepareStep: ({ stepIndex }: Rule.Place) => ({ adapter: names[stepIndex]! }) }
  const all = ["left1", "left2", "right1", "far1", "far2", "left2", "far2"]

  it.effect("R-518: a switch among the candidates of one named adapter leaves the candidates of the others, and lasts", () =>
    Effect.gen(function*() {
      const asked: Array<string> = []
      yield* Chat.run("go", given).pipe(Effect.provide(models(asked)))
      assert.deepStrictEqual(asked, all)
      // The default adapter is the first of the named ones, with its candidates.
      asked.length = 0
      const prepareStep = ({ stepIndex }: Rule.Place) => stepIndex % 2 === 0 ? {} : { adapter: names[stepIndex]! }
      yield* Chat.run("go", { tools: [look], prepareStep }).pipe(Effect.provide(models(asked)))
      assert.deepStrictEqual(asked, ["left1", "left2", "right1", "left2", "left2", "left2"])
    }))

  for (const [where, store] of Object.entries(stores)) {
    it.effect(`G93: a run over several named adapters with candidates, killed behind any record, asks as the uncut run: ${where}`, () =>
      Effect.gen(function*() {
        const asked: Array<string> = []
        const layer = models(asked)
        const records = yield* Effect.gen(function*() {
          yield* Session.keep(yield* Session.open("s"), (session) => Session.reply(session, "go", given))
          return yield* journalOf("s")
        }).pipe(Effect.provide([layer, Layer.fresh(store)]))
        assert.deepStrictEqual(asked, all)
        for (let length = 2; length < records.length; length++) {
          asked.length = 0
          const result = yield* Effect.gen(function*() {
            yield* (yield* Session.Store).append("s", 0, records.slice(0, length) as never)
            const cut = (yield* Session.load("s"))!
            return (yield* Session.resume(cut, { ...given, takeOver: true })).value.result
          }).pipe(Effect.provide([layer, Layer.fresh(store)]))
          assert.strictEqual(result.outcome._tag, "Completed")
          assert.deepStrictEqual(asked, asked.length === 0 ? [] : all.slice(-asked.length), `killed behind ${length}`)
        }
      }))
  }
})

describe("a kept run", () => {
  it.effect("G93: a run killed behind any record asks the candidate recorded so far", () =>
    Effect.gen(function*() {
      let asked: Array<string> = []
      const layer = Adapter.fallback([
        { layer: Adapter.layer(noting(asked, "a", broken("timeout"))), name: "a" },
        { layer: Adapter.layer(noting(asked, "b", modelOf(looking, []))), name: "b" }
      ])
      const records = yield* Effect.gen(function*() {
        const given = { tools: [look], requestId: "run" }
        yield* Session.keep(yield* Session.open("s"), (session) => Session.reply(session, "go", given))
        const store = yield* Session.Store
        return (yield* Stream.runCollect(store.read("s"))).map(({ record }) => record)
      }).pipe(Effect.provide([layer, Session.Store.layerMemory]))
      assert.deepStrictEqual(asked, ["a", "b", "b"])
      const switched = records.findIndex(({ _tag }) => _tag === "StepPrepared") + 1
      assert.isAbove(switched, 0)
      for (let length = 2; length < records.length; length++) {
        asked.length = 0
        const result = yield* Effect.gen(function*() {
          const cut = (yield* Session.load("s"))!
          return (yield* Session.resume(cut, { tools: [look], takeOver: true })).value.result
        }).pipe(Effect.provide([layer, prefixed("s", records.slice(0, length))]))
        assert.strictEqual(result.outcome._tag, "Completed")
        assert.strictEqual(asked.includes("a"), length < switched, `killed behind record ${length}: ${asked.join()}`)
      }
      asked = []
    }))

  it.effect("G82: a run without candidates records no StepPrepared", () =>
    Effect.gen(function*() {
      const { records } = yield* killedAtEach(looking, () => ({ tools: [look], rules: [] }))
      assert.notInclude(records.map(({ _tag }) => _tag), "StepPrepared")
    }))
})

describe("Adapter.fallback over loopback", () => {
  const failures: Readonly<
    Record<string, { readonly answer: (name: keyof typeof protocols) => Server.Answer; readonly isSwitched: boolean }>
  > = {
    "a status of 503": { answer: () => Adapters.json(503, {}), isSwitched: true },
    "a status of 429": { answer: () => Adapters.json(429, {}), isSwitched: true },
    "a status of 401": { answer: () => Adapters.json(401, {}), isSwitched: false },
    "a status of 400": { answer: () => Adapters.json(400, {}), isSwitched: false },
    "an overload as the first event": {
      answer: (name) => ({ pieces: [protocols[name].failing(true)] }),
      isSwitched: true
    },
    "an overload behind a silent beginning": {
      answer: (name) => ({ pieces: [protocols[name].silent + protocols[name].failing(true)] }),
      isSwitched: true
    },
    "a dropped connection": {
      answer: (name) => ({ pieces: [protocols[name].silent], ending: "drop" }),
      isSwitched: true
    },
    "an overload behind a text": {
      answer: (name) => ({ pieces: [protocols[name].begun + protocols[name].failing(true)] }),
      isSwitched: false
    }
  }
  for (const name of protocolNames) {
    for (const [what, { answer, isSwitched }] of Object.entries(failures)) {
      it.effect(`G34: ${name}: ${what} ${isSwitched ? "asks the next candidate" : "asks no other candidate"}`, () =>
        Effect.scoped(Effect.gen(function*() {
          const down = yield* Server.serve(() => answer(name))
          const next = yield* Server.serve(() => ({ pieces: [protocols.chat.whole] }))
          const models = Adapter.fallback([
            { layer: protocols[name].layer(down.url), name: "first" },
            { layer: protocols.chat.layer(next.url), name: "second" }
          ])
          const exit = yield* Effect.exit(Chat.run("go").pipe(Effect.provide(models)))
          assert.deepStrictEqual([down.requests.length, next.requests.length], [1, isSwitched ? 1 : 0])
          if (isSwitched) assert.isTrue(Exit.isSuccess(exit))
        })))
    }
  }

  for (const name of protocolNames) {
    it.effect(`R-518: ${name}: a candidate with retries is asked so many times more, and the last one as its adapter says`, () =>
      Effect.scoped(Effect.gen(function*() {
        const down = yield* Server.serve(() => Adapters.json(503, {}))
        const layer = protocols[name].layer(down.url, { retryDelay: "1 millis", retries: 4 })
        const models = Adapter.fallback([{ layer, name: "first", retries: 2 }, { layer, name: "second" }])
        // The adapter's own limits never pass.
        const clock = WaitingClock.make((millis) => millis < 1000)
        yield* Effect.exit(Chat.run("go").pipe(Effect.provide(models), WaitingClock.by(clock)))
        assert.strictEqual(down.requests.length, 3 + 5)
      })))

    it.effect(`R-518: ${name}: the connection to a candidate that is given up as silent is closed`, () =>
      Effect.scoped(Effect.gen(function*() {
        const reached = yield* Deferred.make<void>()
        const silent = yield* Server.serve(() => {
          Deferred.doneUnsafe(reached, Exit.void)
          return { pieces: [protocols[name].silent], ending: "open" }
        })
        const next = yield* Server.serve(() => ({ pieces: [protocols.chat.whole] }))
        const models = Adapter.fallback([
          { layer: protocols[name].layer(silent.url), name: "first", within: "2 seconds" },
          { layer: protocols.chat.layer(next.url), name: "second" }
        ])
        const fiber = yield* Effect.forkChild(Chat.run("go").pipe(Effect.provide(models)))
        yield* Deferred.await(reached)
        yield* TestClock.adjust("1999 millis")
        assert.deepStrictEqual(next.requests.length, 0)
        yield* TestClock.adjust("1 millis")
        const { outcome } = yield* Fiber.join(fiber)
        assert.deepStrictEqual([outcome._tag, (yield* silent.settled).left], ["Completed", 1])
      })))
  }

  it.effect("R-518: a run waits for a short pause that a server asks for, and asks that server again", () =>
    Effect.scoped(Effect.gen(function*() {
      const first = yield* Server.serve((_, index) =>
        index === 0 ? Adapters.json(429, {}, { "retry-after": "3" }) : { pieces: [protocols.chat.whole] }
      )
      const next = yield* Server.serve(() => ({ pieces: [protocols.chat.whole] }))
      const models = Adapter.fallback([
        { layer: protocols.chat.layer(first.url), name: "first" },
        { layer: protocols.chat.layer(next.url), name: "second" }
      ])
      const run = Chat.run("go").pipe(Effect.provide(models))
      yield* run
      assert.deepStrictEqual([first.requests.length, next.requests.length], [1, 1])
      const fiber = yield* Effect.forkChild(run, { startImmediately: true })
      yield* TestClock.adjust("2999 millis")
      assert.deepStrictEqual([first.requests.length, next.requests.length], [1, 1])
      // Runs that waited together ask within a quarter of a second.
      yield* TestClock.adjust("251 millis")
      yield* Fiber.join(fiber)
      assert.deepStrictEqual([first.requests.length, next.requests.length], [2, 1])
    })))

  it.effect("R-518: a run does not wait for a long pause that a server asks for, and the next run skips that server", () =>
    Effect.scoped(Effect.gen(function*() {
      const down = yield* Server.serve(() => Adapters.json(429, {}, { "retry-after": "20" }))
      const next = yield* Server.serve(() => ({ pieces: [protocols.chat.whole] }))
      const models = Adapter.fallback([
        { layer: protocols.chat.layer(down.url), name: "first" },
        { layer: protocols.chat.layer(next.url), name: "second" }
      ])
      const run = Chat.run("go").pipe(Effect.provide(models))
      const first = yield* run
      const second = yield* run
      assert.deepStrictEqual([first.outcome._tag, second.outcome._tag], ["Completed", "Completed"])
      // The second run knows of the pause, and does not ask.
      assert.deepStrictEqual([down.requests.length, next.requests.length], [1, 2])
    })))
})

describe("bad input to Adapter.fallback", () => {
  const layer = Adapter.layer(good)
  const wrong: ReadonlyArray<readonly [what: string, candidates: unknown, problem: RegExp]> = [
    ["no candidate", [], /at least one candidate/],
    ["an object in place of a list", { layer }, /at least one candidate/],
    ["a candidate without a layer", [{ name: "a" }], /each candidate needs a layer/],
    ["a misspelt field", [{ layer, wihtin: 1 }], /no option "wihtin"; did you mean "within"\?/],
    ["a negative time", [{ layer, within: -1 }], /within must be a duration/]
  ]
  for (const [what, candidates, problem] of wrong) {
    it(`R-518: ${what} is a defect`, () => {
      assert.throws(() => Adapter.fallback(candidates as never), problem)
    })
  }

  it.effect("R-518: two candidates of one name are a defect, and two candidates of one model get distinct names", () =>
    Effect.gen(function*() {
      const exit = yield* Effect.exit(
        Chat.run("go").pipe(Effect.provide(Adapter.fallback([{ layer, name: "a" }, { layer, name: "a" }])))
      )
      assert.match(String(Exit.isFailure(exit) && exit.cause), /two candidates are named "a"/)
      const same = Adapter.layer({ ...good, model: "m", provider: "p" })
      const names = yield* Adapter.Adapter.useSync(({ candidates }) => candidates?.map(({ name }) => name)).pipe(
        Effect.provide(Adapter.fallback([{ layer: same }, { layer: same }, { layer: same }]))
      )
      assert.deepStrictEqual(names, ["m", "p/m", "m (3)"])
    }))

  it.effect("R-518: a candidate whose layer fails fails the program, also where no request reaches the candidate", () =>
    Effect.gen(function*() {
      const failing = Layer.effect(Adapter.Adapter, Effect.fail("no key" as const))
      const models = Adapter.fallback([{ layer, name: "a" }, { layer: failing, name: "b" }])
      assert.strictEqual(yield* Effect.flip(Chat.run("go").pipe(Effect.provide(models))), "no key")
    }))

  it.effect("R-518: a `when` that throws or returns no boolean is a defect that names the option", () =>
    Effect.gen(function*() {
      const throwing = () => {
        throw new Error("lost")
      }
      for (
        const [when, problem] of [[async () => false, /when must return true or false/], [
          throwing,
          /when threw/
        ]] as const
      ) {
        const { asked, error } = yield* over([{ of: broken("timeout"), when: when as never }, good])
        assert.match(String(error), problem)
        assert.deepStrictEqual(asked, ["a"])
      }
    }))

  it("R-518: Adapter.fallback takes a Duration as within", () => {
    assert.isTrue(Layer.isLayer(Adapter.fallback([{ layer, within: Duration.seconds(1) }])))
  })
})

describe("what readers see of a switch", () => {
  const down: Adapter.Service = { ...broken("timeout", [started]), provider: "one", model: "small" }
  const second: Adapter.Service = { ...good, provider: "two", model: "large" }

  it.effect("R-518: each request has a span, and the second span names the model that failed", () =>
    Effect.gen(function*() {
      const { spans, tracer } = Spans.recording()
      yield* over([down, second]).pipe(Effect.withTracer(tracer))
      const shown = spans.filter(({ kind }) => kind === "client").map((span) => [
        span.name,
        Spans.statusOf(span),
        span.attributes.get("gen_ai.provider.name"),
        span.attributes.get("heddle.fallback.from")
      ])
      assert.deepStrictEqual(shown, [
        ["chat small", "ERROR timeout", "one", undefined],
        ["chat large", "OK", "two", "small"]
      ])
    }))

  it.effect("R-518: clients receive the candidate names and the error code of a switch, and nothing else", () =>
    Effect.gen(function*() {
      const { events } = yield* over([{ ...down, ...broken("timeout", [started]) }, second])
      const shown = events.flatMap((event) => Event.toPublic(event, { runId: "r" }) ?? [])
      const switched = shown.flatMap((event) =>
        event._tag === "ModelSwitched" ? [[event.from, event.to, event.error.code]] : []
      )
      assert.deepStrictEqual(switched, [["a", "b", "timeout"]])
      const encoder = UiStream.make({ messageId: "m", protocol: 6 })
      const chunks = shown.flatMap((event) => encoder.push(event)).filter(({ type }) => type === "data-heddle-model")
      assert.deepStrictEqual(chunks, [
        { type: "data-heddle-model", data: { from: "a", to: "b", code: "timeout" }, transient: true }
      ] as never)
      const agUi = AgUi.make({ threadId: "t", runId: "r" })
      const customs = shown.flatMap((event) => agUi.push(event)).filter((event) =>
        event.type === "CUSTOM" && event["name"] === "heddle.model"
      )
      assert.deepStrictEqual(customs, [
        { type: "CUSTOM", name: "heddle.model", value: { from: "a", to: "b", code: "timeout" } }
      ] as never)
    }))
})
