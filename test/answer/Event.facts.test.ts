/**
 * Facts of events about calls: the code of an answer that is an error, the same on every way that an answer takes; the wait
 * of a call for its turn; and the number of an attempt that starts.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import {
  Chat,
  Collector,
  Event,
  type Journal,
  Limits,
  Message,
  Policy,
  Session,
  Thread,
  Tool,
  ToolRunner
} from "heddle"
import { check, Script } from "heddle/testing"
import { journalOf, prefixed } from "../support/survivor.ts"

const { finish, text, toolCall } = Script

type Events = ReadonlyArray<Event.Event>

const done = [text("done"), finish("stop")]

const encodedIn = (events: Events) => events.filter(Event.guards.ToolResultEncoded)

const codesIn = (events: Events) => encodedIn(events).map(({ code, id }) => [id, code])

const mapOf = (events: Events): ReadonlyMap<string | undefined, string | undefined> =>
  new Map(encodedIn(events).map(({ code, id }) => [id, code]))

/** A tool for each kind of answer, by the code that the answer has. */
const kinds: ReadonlyArray<
  readonly [name: string, code: string | undefined, tool: Tool.Any | undefined, args?: object]
> = [
  ["result", undefined, Tool.make("result", { parameters: {}, handler: () => Effect.succeed({ code: "denied" }) })],
  ["reported", undefined, Tool.make("reported", { parameters: {}, handler: () => Effect.fail({ code: "denied" }) })],
  [
    "replaced",
    undefined,
    Tool.make("replaced", {
      parameters: {},
      handler: () => Effect.die("lost"),
      onToolError: () => Effect.succeed(Tool.ErrorDecision.continue("another"))
    })
  ],
  ["absent", "unknown_tool", undefined],
  [
    "wrong",
    "invalid_arguments",
    Tool.make("wrong", { parameters: { n: Schema.Number }, handler: () => Effect.succeed(1) }),
    { n: "x" }
  ],
  ["broken", "handler_raised", Tool.make("broken", { parameters: {}, handler: () => Effect.die("lost") })],
  ["left", "handler_exit", Tool.make("left", { parameters: {}, handler: () => Effect.interrupt })],
  [
    "unwritten",
    "encoding_failed",
    Tool.make("unwritten", { parameters: {}, success: Schema.Number, handler: () => Effect.succeed("x" as never) })
  ],
  [
    "forbidden",
    "denied",
    Tool.make("forbidden", { parameters: {}, authorize: () => false, handler: () => Effect.succeed(1) })
  ],
  ["slow", "timeout", Tool.make("slow", { parameters: {}, timeout: 10, handler: () => Effect.never })],
  [
    "agent",
    "cancelled",
    Tool.fromChat("agent", {
      parameters: {},
      chat: () => Chat.stream("go", { cancel: AbortSignal.abort() })
    })
  ]
]

const calls = kinds.map(([name, , , args]) => toolCall(name, name, { ...args }))

const tools = kinds.flatMap(([, , tool]) => tool ?? []) as unknown as []

const codes: ReadonlyMap<string | undefined, string | undefined> = new Map(kinds.map(([name, code]) => [name, code]))

/** Runs an effect on a clock that reaches the timeouts of its tools. */
const timed = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.gen(function*() {
    const fiber = yield* Effect.forkChild(effect, { startImmediately: true })
    yield* TestClock.adjust(10)
    return yield* Fiber.join(fiber)
  })

const streamed = (options: Chat.Options<[]> = {}) =>
  Chat.stream("go", { tools, requestId: "run", ...options }).pipe(
    Stream.runCollect,
    Effect.provide(Script.layer([[...calls, finish("tool_calls")], done]))
  )

const recorded = (model: Parameters<typeof Script.layer>[0], options: Chat.Options<[]>) =>
  Effect.gen(function*() {
    const opened = yield* Session.open("s")
    yield* timed(Session.keep(opened, (session) => Session.reply(session, "go", options)))
    return yield* journalOf("s")
  }).pipe(Effect.provide([Script.layer(model), Session.Store.layerMemory]))

const upTo = (tag: Journal.Record["_tag"], records: ReadonlyArray<Journal.Record>) => {
  const at = records.findLastIndex(({ _tag }) => _tag === tag)
  assert.isAtLeast(at, 0, tag)
  return records.slice(0, at + 1)
}

/** The events of a run that is taken up from its records. */
const resumed = (records: ReadonlyArray<Journal.Record>, options: Session.ResumeOptions<[]>) =>
  Effect.gen(function*() {
    const cut = yield* Session.load("s")
    return yield* Stream.runCollect(Session.streamResume(cut!, { takeOver: true, ...options }))
  }).pipe(Effect.provide([Script.layer([done]), prefixed("s", records)]))

describe("an answer's code", () => {
  it.effect("W-26: an answer has the reason of its runtime error as its code, and any other answer has no code", () =>
    Effect.gen(function*() {
      const events = yield* timed(streamed())
      assert.deepStrictEqual(mapOf(events), codes)
      for (const event of encodedIn(events)) assert.strictEqual("code" in event, event.code !== undefined)
      for (const event of encodedIn(events)) assert.deepStrictEqual(Event.fromWire(Event.toWire(event)), event)
      assert.deepStrictEqual(check(events), [])
    }))

  it.effect("R-526: the message of an answer has its code in the run, its fold, its session and its journal", () =>
    Effect.gen(function*() {
      const inMessages = (messages: ReadonlyArray<Message.Message>) =>
        new Map(messages.flatMap(({ code, role, toolCallId }) => role === "tool" ? [[toolCallId, code]] : []))
      const events = yield* timed(streamed())
      const { result } = events.findLast(Event.guards.ChatCompleted)!
      assert.deepStrictEqual(inMessages(result.thread.messages), codes)
      const begun = Collector.initial({ thread: Thread.fromMessages([Message.user("go")]) })
      const folded = Collector.toChatResult(Collector.applyAll(begun, events))
      assert.deepStrictEqual(inMessages(folded.thread.messages), codes)
      const records = yield* recorded([[...calls, finish("tool_calls")], done], { tools })
      const written = records.flatMap((record) => record._tag === "CallEnded" ? [record.message] : [])
      assert.deepStrictEqual(inMessages(written), codes)
      const denied = yield* Effect.flatMap(waiting, Session.deny("p"))
      assert.strictEqual(inMessages(denied.thread.messages).get("p"), "denied")
      const hidden = yield* timed(streamed({ policy: { ...Policy.falai, unknownTool: "answer" } }))
      const untold = inMessages(hidden.findLast(Event.guards.ChatCompleted)!.result.thread.messages)
      assert.deepStrictEqual(new Set(untold.values()), new Set([undefined]))
    }))

  it.effect("R-526: an answer that ends a run has its code, also in its public event", () =>
    Effect.gen(function*() {
      const events = yield* Chat.stream("go", { tools, onToolError: "halt" }).pipe(
        Stream.runCollect,
        Effect.provide(Script.layer([[toolCall("broken", "broken"), finish("tool_calls")]]))
      )
      const halt = events.find(Event.guards.ToolHalt)
      assert.strictEqual(halt?.code, "handler_raised")
      assert.deepInclude(Event.toPublic(halt!), { code: "handler_raised", isError: true })
      const { thread } = events.findLast(Event.guards.ChatCompleted)!.result
      assert.strictEqual(thread.messages.at(-1)?.code, "handler_raised")
    }))

  it.effect("W-26: a cancelled call is answered with code cancelled, whether it had run or not", () =>
    Effect.gen(function*() {
      const latch = Latch.makeUnsafe(false)
      const wait = Tool.make("wait", {
        parameters: {},
        handler: () => Effect.andThen(latch.open, Effect.never)
      })
      const two = [Message.toolCall("a", "wait"), Message.toolCall("b", "wait")]
      const events = yield* ToolRunner.stream(two, [wait], { cancel: latch.await, maxConcurrency: 1 }).pipe(
        Stream.runCollect
      )
      assert.sameDeepMembers(codesIn(events), [["a", "cancelled"], ["b", "cancelled"]])
    }))

  it.effect("W-26: the reason in a call's record is its answer's code, also when the run is resumed", () =>
    Effect.gen(function*() {
      const records = yield* recorded([[...calls, finish("tool_calls")], done], { tools })
      const ends = records.filter((record) => record._tag === "CallEnded")
      const reasons = new Map<string | undefined, string | undefined>(
        ends.map(({ message, reason }) => [message.toolCallId, reason])
      )
      assert.deepStrictEqual(reasons, codes)
      const events = yield* resumed(upTo("CallEnded", records), { tools })
      const replayed = encodedIn(events)
      assert.isTrue(replayed.every(({ replayed }) => replayed === true))
      assert.deepStrictEqual(mapOf(replayed), codes)
    }))

  it.effect("W-26: a call whose effect is unknown is answered with code unknown_effect", () =>
    Effect.gen(function*() {
      const work = Tool.make("work", { parameters: {}, afterCrash: "report", handler: () => Effect.succeed(1) })
      const options = { tools: [work] as unknown as [] }
      const records = yield* recorded([[toolCall("c", "work"), finish("tool_calls")], done], options)
      const events = yield* resumed(upTo("CallStarted", records), options)
      assert.deepStrictEqual(codesIn(events), [["c", "unknown_effect"]])
    }))

  const pay = Tool.make("pay", {
    parameters: {},
    approval: true,
    answerWithin: "1 minute",
    handler: () => Effect.succeed("paid")
  })
  const ask = Tool.make("ask", {
    parameters: {},
    handler: () => Effect.succeed(Tool.askUser("Which?", { expiresIn: "1 minute" }))
  })
  const settling = { tools: [pay, ask] as unknown as [] }
  const asking = Script.layer([[toolCall("p", "pay"), toolCall("q", "ask"), finish("tool_calls")]])
  const waiting = Effect.map(
    Session.reply(Session.make(), "go", settling),
    ({ session }) => session
  ).pipe(Effect.provide(asking))
  const continued = (session: Session.Session, options: object = settling) =>
    Session.streamContinue(session, null, options).pipe(Stream.runCollect, Effect.provide(Script.layer([done])))
  const settledIn = (events: Events) => encodedIn(events).map(({ code, id, settled }) => [id, settled, code])

  it.effect("W-26: a denial settled at the beginning of a run has code denied, and a submitted answer has no code", () =>
    Effect.gen(function*() {
      const session = yield* waiting
      const denied = yield* Effect.flatMap(Session.deny(session, "p"), Session.answer("q", { code: "denied" }))
      const through = Schema.decodeUnknownSync(Session.Session)(JSON.parse(JSON.stringify(denied)))
      const expected = [["p", true, "denied"], ["q", true, undefined]]
      assert.deepStrictEqual(settledIn(yield* continued(denied)), expected)
      assert.deepStrictEqual(settledIn(yield* continued(through)), expected)
      const approved = yield* Effect.flatMap(Session.approve(session, "p"), Session.answer("q", "this"))
      assert.deepStrictEqual(codesIn(yield* continued(approved)), [["q", undefined], ["p", undefined]])
    }))

  it.effect("W-26: an expired approval is answered with code denied", () =>
    Effect.gen(function*() {
      const session = yield* waiting
      yield* TestClock.adjust("2 minutes")
      const expired = yield* Session.expire(session)
      assert.deepStrictEqual(settledIn(yield* continued(expired)), [["p", true, "denied"], ["q", true, undefined]])
    }))

  it.effect("W-26: a question withdrawn by its run has code cancelled in its event and in its record", () =>
    Effect.gen(function*() {
      const stop = Tool.make("stop", { parameters: {}, handler: () => Effect.succeed(Tool.halt("enough", null)) })
      const options = { tools: [ask, stop] as unknown as [], requestId: "run" }
      const reply = [toolCall("s", "stop"), toolCall("q", "ask"), finish("tool_calls")]
      const events = yield* Chat.stream("go", options).pipe(Stream.runCollect, Effect.provide(Script.layer([reply])))
      assert.deepStrictEqual(settledIn(events), [["q", true, "cancelled"]])
      const records = yield* recorded([reply], options)
      const end = records.find((record) => record._tag === "CallEnded" && record.message.toolCallId === "q")
      assert.strictEqual(end?._tag === "CallEnded" ? end.reason : undefined, "cancelled")
    }))

  it.effect("W-26: verdicts in a session's journal bring their codes, also when the following run is resumed", () =>
    Effect.gen(function*() {
      const seen: Array<Event.Event> = []
      const program = Effect.gen(function*() {
        const opened = yield* Session.open("s")
        const asked = yield* Session.keep(opened, (session) => Session.reply(session, "go", settling)).pipe(
          Effect.provide(asking)
        )
        const denied = yield* Session.keep(asked, Session.deny("p", "no"))
        yield* Session.keep(denied, Session.answer("q", { code: "denied" }))
        const kept = (yield* Session.load("s"))!
        const options = { ...settling, onEvent: (event: Event.Event) => void seen.push(event) }
        yield* Session.keep(kept, (session) => Session.continue(session, null, options)).pipe(
          Effect.provide(Script.layer([done]))
        )
        return yield* journalOf("s")
      })
      const records = yield* Effect.provide(program, Session.Store.layerMemory)
      const expected = [["p", true, "denied"], ["q", true, undefined]]
      assert.deepStrictEqual(settledIn(seen), expected)
      assert.lengthOf(records.filter(({ _tag }) => _tag === "CallSettled"), 2)
      assert.deepStrictEqual(settledIn(yield* resumed(upTo("RunStarted", records), settling)), expected)
    }))

  it.effect("W-26: an approved call that ended before its run was resumed keeps its answer's code", () =>
    Effect.gen(function*() {
      const slow = Tool.make("slow", { parameters: {}, approval: true, timeout: 10, handler: () => Effect.never })
      const fails = Tool.make("fails", {
        parameters: {},
        approval: true,
        failure: Schema.Struct({ code: Schema.String }),
        handler: () => Effect.fail({ code: "denied" })
      })
      const options = { tools: [slow, fails] as unknown as [] }
      const asking = Script.layer([[toolCall("t", "slow"), toolCall("f", "fails"), finish("tool_calls")]])
      const program = Effect.gen(function*() {
        const opened = yield* Session.open("s")
        const asked = yield* Session.keep(opened, (session) => Session.reply(session, "go", options)).pipe(
          Effect.provide(asking)
        )
        const first = yield* Session.keep(asked, Session.approve("t"))
        const both = yield* Session.keep(first, Session.approve("f"))
        yield* timed(Session.keep(both, (session) => Session.continue(session, null, options))).pipe(
          Effect.provide(Script.layer([done]))
        )
        return yield* journalOf("s")
      })
      const records = yield* Effect.provide(program, Session.Store.layerMemory)
      const events = yield* resumed(upTo("CallEnded", records), options)
      assert.sameDeepMembers(codesIn(events), [["t", "timeout"], ["f", undefined]])
    }))

  it.effect("W-26: a result submitted for a manual call has no code, whatever the result says", () =>
    Effect.gen(function*() {
      const sign = Tool.make("sign", { parameters: {}, manual: true })
      const options = { tools: [sign] as unknown as [] }
      const { session } = yield* Session.reply(Session.make(), "go", options).pipe(
        Effect.provide(Script.layer([[toolCall("m", "sign"), finish("tool_calls")]]))
      )
      const submitted = yield* Session.answer(session, "m", { error: "no", code: "denied" })
      assert.deepStrictEqual(settledIn(yield* continued(submitted, options)), [["m", true, undefined]])
    }))

  it.effect("W-26: policies of other libraries hide the code in events but not in the journal", () =>
    Effect.gen(function*() {
      for (const policy of [Policy.allm, Policy.falai]) {
        const own = { ...policy, unknownTool: "answer" } as const
        assert.deepStrictEqual(codesIn(yield* timed(streamed({ policy: own }))).filter(([, code]) => code), [])
        const denied = yield* Effect.flatMap(waiting, Session.deny("p"))
        const session = yield* Session.answer(denied, "q", "this")
        assert.deepStrictEqual(
          settledIn(yield* continued(session, { ...settling, policy })),
          [["p", true, undefined], ["q", true, undefined]]
        )
        const records = yield* recorded([[toolCall("forbidden", "forbidden"), finish("tool_calls")], done], {
          tools,
          policy
        })
        assert.strictEqual(records.find((record) => record._tag === "CallEnded")?.reason, "denied")
      }
    }))
})

/** A tool whose handler waits until it is let go. */
const gate = (name: string, options: object = {}) => {
  const latch = Latch.makeUnsafe(false)
  return { latch, tool: Tool.make(name, { parameters: {}, ...options, handler: () => Effect.as(latch.await, name) }) }
}

/** The queued and started calls of the events, in their order. */
const turnsIn = (events: Events) =>
  events.flatMap((event) => {
    if (event._tag === "ToolQueued") return [`${event.id} ${event.reason}`]
    return event._tag === "ToolExecutionStarted" ? [event.id] : []
  })

/** The events of calls whose tools are let go once so many events were read. */
const observed = (
  ids: ReadonlyArray<readonly [id: string, tool: ReturnType<typeof gate>]>,
  options: ToolRunner.Options<any, any> = {},
  until: (events: Events) => boolean
) =>
  Effect.gen(function*() {
    const seen: Array<Event.Event> = []
    const tools = Array.from(new Set(ids.map(([, { tool }]) => tool)))
    const asked = ids.map(([id, { tool }]) => Message.toolCall(id, tool.name))
    yield* ToolRunner.stream(asked, tools as unknown as [], options).pipe(
      Stream.runForEach((event) =>
        Effect.sync(() => {
          seen.push(event)
          if (until(seen)) { for (const [, { latch }] of ids) latch.openUnsafe() }
        })
      )
    )
    assert.deepStrictEqual(check(seen).filter(({ law }) => law !== "frame"), [])
    return seen
  })

describe("a call waiting for its turn", () => {
  const all = (count: number) => (events: Events) => turnsIn(events).length >= count

  it.effect("W-27: a call waiting behind its run's bound is queued once before its start, and calls that start at once are not queued", () =>
    Effect.gen(function*() {
      const tool = gate("work")
      const ids = ["a", "b", "c", "d"].map((id) => [id, tool] as const)
      const events = yield* observed(ids, { maxConcurrency: 2 }, all(4))
      assert.deepStrictEqual(turnsIn(events), ["a", "b", "c permit", "d permit", "c", "d"])
      assert.deepStrictEqual(events.find(Event.guards.ToolQueued), {
        _tag: "ToolQueued",
        id: "c",
        name: "work",
        reason: "permit",
        behind: ["a", "b"]
      })
      assert.deepStrictEqual(turnsIn(yield* observed(ids, { maxConcurrency: 4 }, all(4))), ["a", "b", "c", "d"])
    }))

  it.effect("W-27: a call is not queued while it only waits for calls that end at once", () =>
    Effect.gen(function*() {
      const quick = Tool.make("quick", { parameters: {}, handler: () => Effect.succeed(1) })
      const asked = Array.from({ length: 5 }, (_, index) => Message.toolCall(`c${index}`, "quick"))
      const events = yield* Stream.runCollect(ToolRunner.stream(asked, [quick], { maxConcurrency: 1 }))
      assert.deepStrictEqual(turnsIn(events), ["c0", "c1", "c2", "c3", "c4"])
    }))

  it.effect("W-27: an exclusive call that waits, and a call that waits for an exclusive call, have reason exclusive", () =>
    Effect.gen(function*() {
      const run = (bound: number, count: number, ...ids: ReadonlyArray<string>) => {
        const shared = gate("shared")
        const alone = gate("alone", { concurrency: "exclusive" })
        const asked = ids.map((id) => [id, id === "x" ? alone : shared] as const)
        return observed(asked, { maxConcurrency: bound }, all(count))
      }
      const events = yield* run(8, 3, "a", "x", "b")
      assert.deepStrictEqual(turnsIn(events), ["a", "x exclusive", "b exclusive", "x", "b"])
      assert.deepStrictEqual(turnsIn(yield* run(8, 2, "x", "b")), ["x", "b exclusive", "b"])
      assert.deepStrictEqual(
        turnsIn(yield* run(1, 4, "a", "b", "x", "c")).filter((turn) => turn.includes(" ")),
        ["b permit", "x exclusive", "c exclusive"]
      )
    }))

  it.effect("W-27: a call waiting for a permit by name and then for one of the application has one event with the first reason", () =>
    Effect.gen(function*() {
      const keyed = gate("keyed", { limits: [{ key: "one", permits: 1 }] })
      const events = yield* observed([["a", keyed], ["b", keyed]], { maxConcurrency: 8 }, all(2))
      assert.deepStrictEqual(turnsIn(events), ["a", "b key", "b"])

      const holding = yield* Deferred.make<void>()
      const free = gate("free")
      const first = Tool.make("first", {
        parameters: {},
        limits: [{ key: "one", permits: 1 }],
        handler: () => Effect.andThen(Deferred.succeed(holding, undefined), free.latch.await)
      })
      const seen = yield* Effect.gen(function*() {
        const other = yield* Effect.forkChild(ToolRunner.run([Message.toolCall("f", "first")], [first]))
        yield* Deferred.await(holding)
        const events = yield* observed([["k", keyed], ["t", free]], {}, all(2))
        yield* Fiber.join(other)
        return events
      }).pipe(Effect.provide(Limits.layer({ permits: 1 })))
      assert.deepStrictEqual(turnsIn(seen).filter((turn) => turn.includes(" ")), ["k key", "t permit"])
    }))

  it.effect("W-27: a queued call may be denied or wait for an approval in place of its start", () =>
    Effect.gen(function*() {
      const first = gate("first")
      const denied = { ...gate("denied", { authorize: () => false }) }
      const paid = { ...gate("paid", { approval: true }) }
      const events = yield* observed(
        [["a", first], ["d", denied], ["p", paid]],
        { maxConcurrency: 1 },
        all(3)
      )
      assert.deepStrictEqual(turnsIn(events), ["a", "d permit", "p permit"])
      assert.deepStrictEqual(
        events.filter((event) => "toolCallId" in event).map(({ _tag }) => _tag),
        ["ToolApprovalRequested"]
      )
      assert.deepStrictEqual(codesIn(events), [["a", undefined], ["d", "denied"]])
    }))

  it.effect("W-27: grouped tool events show a queued event beside the other events of its call", () =>
    Effect.gen(function*() {
      const latch = Latch.makeUnsafe(false)
      const work = Tool.make("work", {
        parameters: {},
        handler: (_, { id }) => id === "a" ? Effect.as(Effect.yieldNow, 1) : Effect.as(latch.open, 2)
      })
      const asked = [Message.toolCall("a", "work"), Message.toolCall("b", "work")]
      const policy = { ...Policy.standard, toolEvents: "grouped" } as const
      const events = yield* Stream.runCollect(ToolRunner.stream(asked, [work], { policy, maxConcurrency: 1 }))
      assert.deepStrictEqual(events.map(({ _tag }) => _tag), [
        "ToolExecutionStarted",
        "ToolExecutionCompleted",
        "ToolResultEncoded",
        "ToolQueued",
        "ToolExecutionStarted",
        "ToolExecutionCompleted",
        "ToolResultEncoded"
      ])
    }))

  it.effect("W-27: a wait is in no record and no result, and policies of other libraries have no event for a wait", () =>
    Effect.gen(function*() {
      const pause = Tool.make("pause", { parameters: {}, handler: () => Effect.as(Effect.yieldNow, "ok") })
      const reply = [toolCall("a", "pause"), toolCall("b", "pause"), finish("tool_calls")]
      const options = { tools: [pause] as unknown as [], requestId: "run", maxConcurrency: 1 }
      const run = (policy: Policy.Policy) =>
        Chat.stream("go", { ...options, policy }).pipe(Stream.runCollect, Effect.provide(Script.layer([reply, done])))
      const isQueued = (event: Event.Event) => event._tag === "ToolQueued"
      const told = yield* run(Policy.standard)
      const hidden = yield* run({ ...Policy.standard, callFacts: "hidden" })
      assert.deepStrictEqual(turnsIn(told), ["a", "b permit", "b"])
      const unwaited = (event: Event.Event) => {
        if (event._tag !== "ToolExecutionStarted") return event
        const { waited: _, ...more } = event
        return more
      }
      assert.deepStrictEqual(told.filter((event) => !isQueued(event)).map(unwaited), hidden)
      assert.deepStrictEqual(check(told), [])
      for (const policy of [Policy.allm, Policy.falai]) assert.isFalse((yield* run(policy)).some(isQueued))
      const tags = (yield* recorded([reply, done], options)).map(({ _tag }) => _tag as string)
      assert.notInclude(tags, "ToolQueued")
      assert.deepStrictEqual(
        tags,
        (yield* recorded([reply, done], { ...options, policy: { ...Policy.standard, callFacts: "hidden" } })).map((
          { _tag }
        ) => _tag)
      )
    }))

  it.effect("W-27: a queued event survives the wire, and its guard recognizes the event", () =>
    Effect.sync(() => {
      const event: Event.Event = { _tag: "ToolQueued", id: "c", name: "work", reason: "key" }
      assert.deepStrictEqual(Event.fromWire(JSON.parse(JSON.stringify(Event.toWire(event)))), event)
      assert.isTrue(Event.guards.ToolQueued(event))
      assert.throws(() => Event.fromWire({ ...event, reason: "luck" }))
    }))
})

describe("an attempt's number", () => {
  const flaky = (log: Array<number>) =>
    Tool.make("work", {
      parameters: {},
      retry: Schedule.recurs(2),
      afterCrash: "retry",
      handler: (_, { attempt }) =>
        Effect.suspend(() => {
          log.push(attempt)
          return attempt < 3 ? Effect.fail("busy") : Effect.succeed("worked")
        })
    })
  const reply = [toolCall("c", "work"), finish("tool_calls")]
  const startsIn = (events: Events) => events.filter(Event.guards.ToolExecutionStarted)

  it.effect("W-28: a retried call announces only its first start, which has no number", () =>
    Effect.gen(function*() {
      const log: Array<number> = []
      const options = { tools: [flaky(log)] as unknown as [] }
      const events = yield* Chat.stream("go", options).pipe(
        Stream.runCollect,
        Effect.provide(Script.layer([reply, done]))
      )
      assert.deepStrictEqual(log, [1, 2, 3])
      assert.deepStrictEqual(startsIn(events), [
        { _tag: "ToolExecutionStarted", id: "c", name: "work", arguments: {} }
      ])
      assert.deepStrictEqual(check(events), [])
    }))

  it.effect("W-28: a resumed call repeats its last start and numbers its next attempt; policies of other libraries hide the numbers", () =>
    Effect.gen(function*() {
      const records = yield* recorded([reply, done], { tools: [flaky([])] as unknown as [] })
      const at = records.flatMap(({ _tag }, index) => _tag === "CallStarted" ? [index + 1] : [])
      assert.lengthOf(at, 3)
      for (const [index, length] of at.entries()) {
        const attempt = index + 1
        for (const policy of [Policy.standard, Policy.allm, Policy.falai]) {
          const log: Array<number> = []
          const tools = [flaky(log)] as unknown as []
          const start = { _tag: "ToolExecutionStarted", id: "c", name: "work", arguments: {} } as const
          const numbered = (attempt: number) => attempt > 1 && policy === Policy.standard ? { attempt } : {}
          assert.deepStrictEqual(startsIn(yield* resumed(records.slice(0, length), { tools, policy })), [
            { ...start, ...numbered(attempt), replayed: true },
            { ...start, ...numbered(attempt + 1) }
          ])
          assert.strictEqual(log[0], attempt + 1)
        }
      }
      const answered = startsIn(yield* resumed(upTo("CallEnded", records), { tools: [flaky([])] as unknown as [] }))
      assert.deepStrictEqual(answered.map(({ attempt, replayed }) => [attempt, replayed]), [[3, true]])
    }))

  it("W-28: an attempt's number survives the wire", () => {
    const event: Event.Event = { _tag: "ToolExecutionStarted", id: "c", name: "work", arguments: {}, attempt: 2 }
    assert.deepStrictEqual(Event.fromWire(JSON.parse(JSON.stringify(Event.toWire(event)))), event)
  })
})
