/** Why a call started as late as it did: its waits, and the time at which the model had asked for it. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { Adapter, Chat, Event, type Journal, Limits, Message, Policy, Session, Tool, ToolRunner } from "heddle"
import { check, Script } from "heddle/testing"
import { living, toldBy } from "../support/journalEvents.ts"
import { withinHour } from "../support/runs.ts"
import { journalOf } from "../support/survivor.ts"

const { delay, finish, text, toolCall } = Script

const done = [text("done"), finish("stop")]

/** A tool whose handler takes so many seconds. */
const work = <const Name extends string>(name: Name, seconds = 10, options: object = {}) =>
  Tool.make(name, {
    parameters: {},
    timeout: "infinity",
    ...options,
    handler: () => Effect.as(Effect.sleep(`${seconds} seconds`), name)
  })

const account = (name: string, permits = 1) => ({ key: `account:${name}`, permits })

const call = (id: string, name = id) => Message.toolCall(id, name)

const waitedIn = (events: ReadonlyArray<Event.Event>) =>
  Object.fromEntries(
    events.filter(Event.guards.ToolExecutionStarted).flatMap(({ id, waited }) =>
      waited === undefined ? [] : [[id, waited]]
    )
  )

/** The waits of the calls, by their ids, once all calls have ended. */
const waitsOf = (
  calls: ReadonlyArray<Message.ToolCall>,
  tools: ReadonlyArray<Tool.Any>,
  options: ToolRunner.Options<any, any> = {}
) =>
  Effect.map(
    withinHour(Stream.runCollect(ToolRunner.stream(calls, tools as unknown as [], options))),
    (events) => {
      assert.deepStrictEqual(check(events).filter(({ law }) => law !== "frame"), [])
      return waitedIn(events)
    }
  )

describe("ToolExecutionStarted.waited", () => {
  it.effect("V-22: a started call lists its waits for a permit, and a call that starts at once lists none", () =>
    Effect.gen(function*() {
      const calls = ["a", "b", "c"].map((id) => call(id, "work"))
      assert.deepStrictEqual(yield* waitsOf(calls, [work("work")], { maxConcurrency: 1 }), {
        b: [{ reason: "permit", behind: ["a"], millis: 10_000 }],
        c: [{ reason: "permit", behind: ["a"], millis: 20_000 }]
      })
      assert.deepStrictEqual(yield* waitsOf(calls, [work("work")], { maxConcurrency: 3 }), {})
    }))

  it.effect("V-22: a started call lists its wait for an exclusive call, and an exclusive call its wait for earlier calls", () =>
    Effect.gen(function*() {
      const tools = [work("work"), work("alone", 5, { concurrency: "exclusive" })]
      const calls = [call("a", "work"), call("x", "alone"), call("b", "work")]
      assert.deepStrictEqual(yield* waitsOf(calls, tools), {
        x: [{ reason: "exclusive", behind: ["a"], millis: 10_000 }],
        b: [{ reason: "exclusive", behind: ["x"], millis: 15_000 }]
      })
    }))

  it.effect("V-22: a started call lists each wait in order: for a place in its run, and for each keyed permit", () =>
    Effect.gen(function*() {
      const tools = [
        work("ann", 10, { limits: [account("ann")] }),
        work("bob", 25, { limits: [account("bob")] }),
        work("other", 40),
        work("all", 1, { limits: [account("ann"), account("bob")] }),
        work("short", 4)
      ]
      const calls = [call("s", "short"), call("a", "ann"), call("b", "bob"), call("o", "other"), call("z", "all")]
      // Another run has the second place of the application, for 70 seconds.
      const other = yield* Effect.forkChild(waitsOf([call("p", "long")], [work("long", 70)]))
      yield* TestClock.adjust(0)
      const waits = yield* waitsOf(calls, tools, { maxConcurrency: 4 })
      yield* Fiber.join(other)
      assert.deepStrictEqual(waits, {
        z: [
          { reason: "permit", behind: ["s", "a", "b"], millis: 4_000 },
          { reason: "key", key: "account:ann", behind: ["a"], millis: 6_000 },
          { reason: "key", key: "account:bob", behind: ["b"], millis: 15_000 }
        ]
      })
    }).pipe(Effect.provide(Limits.layer({ permits: 5 }))))

  it.effect("V-22: a wait for a keyed permit names the call that has the permit, and no ended call", () =>
    Effect.gen(function*() {
      const tools = [work("ann", 10, { limits: [account("ann")] }), work("other", 15), work("short", 5)]
      const calls = [call("a", "ann"), call("b", "ann"), call("o", "other"), call("s", "short"), call("c", "ann")]
      const first = { reason: "permit", behind: ["a", "b", "o"] } as const
      // The call `c` begins at 15 s: `a` has ended, and `b` has the permit of the key.
      assert.deepStrictEqual(yield* waitsOf(calls, tools, { maxConcurrency: 3 }), {
        b: [{ reason: "key", key: "account:ann", behind: ["a"], millis: 10_000 }],
        s: [{ ...first, millis: 10_000 }],
        c: [{ ...first, millis: 15_000 }, { reason: "key", key: "account:ann", behind: ["b"], millis: 5_000 }]
      })
    }).pipe(Effect.provide(Limits.layer({ permits: 5 }))))

  it.effect("V-22: a started call lists waits for permits of another run as elsewhere", () =>
    Effect.gen(function*() {
      const tools = [work("ann", 10, { limits: [account("ann")] })]
      const other = yield* Effect.forkChild(waitsOf([call("p", "long"), call("q", "later")], [
        work("long", 15),
        work("later", 5, { limits: [account("ann")] })
      ]))
      yield* TestClock.adjust(0)
      const waits = yield* waitsOf([call("a", "ann")], tools)
      yield* Fiber.join(other)
      // The place that `q` gave back at 5 s is there at once.
      assert.deepStrictEqual(waits, { a: [{ reason: "key", key: "account:ann", elsewhere: true, millis: 5_000 }] })
      const long = yield* Effect.forkChild(waitsOf([call("p", "long"), call("q", "long")], [work("long", 15)]))
      yield* TestClock.adjust(0)
      const last = yield* waitsOf([call("a", "ann"), call("b", "ann")], tools)
      yield* Fiber.join(long)
      assert.deepStrictEqual(last, {
        a: [{ reason: "permit", elsewhere: true, millis: 15_000 }],
        b: [{ reason: "key", key: "account:ann", behind: ["a"], millis: 25_000 }]
      })
    }).pipe(Effect.provide(Limits.layer({ permits: 2 }))))

  it.effect("V-22: started calls list no waits under the policies allm and falai, nor with hidden call facts", () =>
    Effect.gen(function*() {
      const reply = [toolCall("a", "work"), toolCall("b", "work"), finish("tool_calls")]
      const run = (policy: Policy.Policy) =>
        withinHour(Stream.runCollect(Chat.stream("go", { tools: [work("work")], maxConcurrency: 1, policy }))).pipe(
          Effect.map(waitedIn),
          Effect.provide(Script.layer([reply, done]))
        )
      assert.deepStrictEqual(yield* run(Policy.standard), {
        b: [{ reason: "permit", behind: ["a"], millis: 10_000 }]
      })
      for (const policy of [Policy.allm, Policy.falai, { ...Policy.standard, callFacts: "hidden" } as const]) {
        assert.deepStrictEqual(yield* run(policy), {})
      }
    }))
})

const wait = { reason: "key", key: "account:ann", behind: ["a", "b"], elsewhere: true, millis: 5 } as const

const started = { _tag: "ToolExecutionStarted", id: "c", name: "work", arguments: {}, waited: [wait] } as const

describe("the published waits of a call", () => {
  it("V-22: the waits of a call survive the wire, where each field has its type", () => {
    assert.deepStrictEqual(Event.fromWire(JSON.parse(JSON.stringify(Event.toWire(started)))), started)
    for (const wrong of [{ key: 1 }, { reason: "luck" }, { behind: "a" }, { millis: "5" }, { elsewhere: 1 }]) {
      assert.throws(() => Event.fromWire({ ...started, waited: [{ ...wait, ...wrong }] }))
    }
  })

  it("V-22: published waits contain the key only with the arguments, and never an unpublished call", () => {
    const { key: _, ...unnamed } = wait
    const [tag, id, name] = [started._tag, "c", "work"]
    assert.deepStrictEqual(Event.toPublic(started), { _tag: tag, id, name, waited: [wait] })
    assert.deepStrictEqual(Event.toPublic(started, { publish: "names" }), { _tag: tag, id, name, waited: [unnamed] })
    assert.isUndefined(Event.toPublic(started, { publish: "none" }))
    const publish = (tool: string) => tool === "secret" ? "none" : "all"
    const calls = new Map()
    for (const [id, name] of [["a", "secret"], ["b", "work"]] as const) {
      Event.toPublic({ _tag: "ToolCallStarted", id, name }, { publish, calls })
    }
    Event.toPublic({ _tag: "ToolCallStarted", id, name }, { publish, calls })
    Event.toPublic(
      { _tag: "ToolCallCompleted", id, name, arguments: {}, rawArguments: "{}" },
      { publish, calls }
    )
    assert.deepStrictEqual(Event.toPublic(started, { publish, calls }), {
      _tag: tag,
      id,
      name,
      waited: [{ ...wait, behind: ["b"] }]
    })
    const progress: Event.Event = { _tag: "ToolProgress", id: "o", name: "outer", progress: started }
    const nested = Event.toPublic(progress, { publish: "names", calls: new Map() }) as { readonly nested: object }
    assert.deepStrictEqual(nested.nested, { _tag: tag, id, name, waited: [unnamed] } as object)
  })

  it("V-22: malformed waits are left out of a published event, and a getter that throws breaks nothing", () => {
    const hostile = [
      null,
      "x",
      { reason: "luck", millis: 1 },
      { reason: "key", millis: Infinity },
      {
        get reason() {
          throw new Error("no")
        }
      },
      { ...wait, key: { a: 1 }, behind: [1, "a"], elsewhere: "x", more: "canary" }
    ]
    for (const waited of [hostile, { length: 3 }, 1]) {
      const shown = Event.toPublic({ ...started, waited } as never)
      const expected = waited === hostile ? { waited: [{ reason: "key", millis: 5, behind: ["a"] }] } : {}
      assert.deepStrictEqual(shown, { _tag: "ToolExecutionStarted", id: "c", name: "work", ...expected } as never)
    }
  })

  it("V-22: a published start has the request time of its call, and a repeated start has none", () => {
    const calls = new Map()
    const asked = { _tag: "ToolCallCompleted", id: "c", name: "work", arguments: {}, rawArguments: "{}" } as const
    const askedOf = (event: Event.Event, at?: number) => {
      const shown = Event.toPublic(event, { calls, ...(at === undefined ? {} : { at }) })
      return shown?._tag === "ToolExecutionStarted" ? shown.asked : undefined
    }
    assert.isUndefined(askedOf(started, 9))
    askedOf(asked, 7)
    assert.strictEqual(askedOf(started, 9), 7)
    assert.isUndefined(askedOf({ ...started, replayed: true }, 9))
    assert.isUndefined(askedOf({ ...started, asked: null } as never, 9))
    askedOf({ ...asked, replayed: true }, 20)
    assert.strictEqual(askedOf(started, 21), 7)
  })
})

describe("the record CallStarted", () => {
  /** The records of a run, and its events as a server publishes them while it lives and as the journal tells them. */
  const kept = (
    model: Layer.Layer<Adapter.Adapter>,
    tools: ReadonlyArray<Tool.Any>,
    options: Chat.Options<any, any> = {}
  ) =>
    Effect.gen(function*() {
      yield* TestClock.setTime(1_000_000)
      const { events, onEvent } = living()
      const opened = yield* Session.open("s")
      yield* withinHour(Session.keep(opened, (session) =>
        Session.reply(session, "go", { ...options, tools: tools as unknown as [], onEvent })))
      const records = yield* journalOf("s")
      return { records, live: events, told: toldBy(records) }
    }).pipe(Effect.provide(Layer.merge(model, Session.Store.layerMemory)))

  const starts = (events: ReadonlyArray<Event.PublicEvent>) =>
    events.flatMap((event) =>
      event._tag === "ToolExecutionStarted" ? [[event.id, event.at, event.asked, event.waited]] : []
    )

  const startsIn = (records: ReadonlyArray<Journal.Record>) =>
    records.flatMap((record) =>
      record._tag === "CallStarted" ? [[record.toolCallId, record.at, record.asked, record.waited]] : []
    )

  it.effect("V-22: a CallStarted record has waits and request time, and events from the journal equal the live events", () =>
    Effect.gen(function*() {
      const look = work("look", 1, { readOnly: true })
      const script = [
        [
          delay(100),
          toolCall("a", "look"),
          delay(200),
          toolCall("b", "pay"),
          delay(300),
          toolCall("c", "pay"),
          finish("tool_calls")
        ],
        done
      ]
      const pay = work("pay", 10, { limits: [account("ann")] })
      const { live, records, told } = yield* kept(Script.layer(script), [look, pay])
      const waited: ReadonlyArray<Event.Waited> = [{ reason: "key", key: "account:ann", behind: ["b"], millis: 10_000 }]
      assert.deepStrictEqual(startsIn(records), [
        ["a", 100, 100, undefined],
        ["b", 600, 300, undefined],
        ["c", 10_600, 600, waited]
      ])
      assert.deepStrictEqual(starts(told), [
        ["a", 1_000_100, 1_000_100, undefined],
        ["b", 1_000_600, 1_000_300, undefined],
        ["c", 1_010_600, 1_000_600, waited]
      ])
      assert.deepStrictEqual(starts(live), starts(told))
    }))

  it.effect("V-22: only the first attempt of a retried call records its waits and its request time", () =>
    Effect.gen(function*() {
      let attempts = 0
      const flaky = Tool.make("flaky", {
        parameters: {},
        limits: [account("ann")],
        retry: Schedule.recurs(1),
        handler: () =>
          Effect.delay(
            Effect.suspend(() => attempts++ % 2 === 0 ? Effect.fail(new Error("no")) : Effect.succeed(1)),
            10
          )
      })
      const script = [[toolCall("a", "flaky"), toolCall("b", "flaky"), finish("tool_calls")], done]
      const { records } = yield* kept(Script.layer(script), [flaky])
      const waited: ReadonlyArray<Event.Waited> = [{ reason: "key", key: "account:ann", behind: ["a"], millis: 20 }]
      assert.deepStrictEqual(startsIn(records), [
        ["a", 0, 0, undefined],
        ["a", 10, undefined, undefined],
        ["b", 20, 0, waited],
        ["b", 30, undefined, undefined]
      ])
    }))

  it.effect("V-22: a call completed by no event of the reply records no request time", () =>
    Effect.gen(function*() {
      const replies: Array<ReadonlyArray<Event.AdapterEvent>> = [[call("a", "look")], []].map((calls) => [
        { _tag: "MessageStarted", message: Message.assistant("") },
        ...calls.flatMap(({ id, name }): ReadonlyArray<Event.AdapterEvent> => [
          { _tag: "ToolCallStarted", id, name },
          { _tag: "ToolCallDelta", id, argumentsDelta: "{}" }
        ]),
        {
          _tag: "MessageCompleted",
          message: Message.assistant("", calls),
          finishReason: calls.length === 0 ? "stop" : "tool_calls"
        }
      ])
      const model = Adapter.layer({ stream: () => Stream.fromIterable(replies.shift() ?? []) })
      const { live, records, told } = yield* kept(model, [work("look")])
      assert.deepStrictEqual(startsIn(records), [["a", 0, undefined, undefined]])
      assert.deepStrictEqual(starts(told), [["a", 1_000_000, undefined, undefined]])
      assert.deepStrictEqual(starts(live), starts(told))
    }))
})
