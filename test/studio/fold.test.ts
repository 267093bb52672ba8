/** The fold of the public events of a run: what a run really tells becomes its turns, its calls and their times. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, Event, Output, Session } from "heddle"
import { Script } from "heddle/testing"
import * as JournalEvents from "../../src/server/internal/journalEvents.ts"
import * as Fold from "../../src/studio/data/fold.ts"
import * as Layouts from "../../src/studio/run/layout.ts"
import { upToCallStarted } from "../support/publicRuns.ts"
import { echo } from "../support/tools.ts"
import * as Shop from "./support/shop.ts"
import { foldOf, tell } from "./support/told.ts"

const { delay, finish, reasoning, streamError, text, toolCall, usage } = Script

const weaving = tell(Chat.stream("weave", { ...Shop.options, cancel: Effect.sleep(8800) }), Shop.model)
const ordering = tell(Chat.stream("order both", Shop.options), Shop.model)
/** The run of a session, in which the call of a sub-agent waits with it. */
const delegating = tell(
  Stream.unwrap(
    Effect.map(
      Session.open("s"),
      (opened) => Session.keepStream(opened, (session) => Session.streamReply(session, "delegate", Shop.options))
    )
  ),
  Layer.merge(Shop.model, Session.Store.layerMemory)
)
/** The same run outside of a session, whose sub-agent then fails. */
const failing = tell(Chat.stream("delegate", Shop.options), Shop.model)

const call = (run: Fold.Run, path: string): Fold.Call => {
  const found = run.calls.get(path)
  assert.isDefined(found, path)
  return found!
}

/** The counts of a run, counted again from its calls. */
const recounted = (run: Fold.Run): Omit<Fold.Counts, "most"> => {
  const calls = Array.from(run.calls.values())
  const having = (state: Fold.State) => calls.filter((call) => call.state === state).length
  return {
    early: calls.filter(({ isEarly }) => isEarly).length,
    failed: having("failed"),
    denied: having("denied"),
    cancelled: having("cancelled"),
    asks: having("asks"),
    running: having("running")
  }
}

describe("Studio's fold", () => {
  it("V-07: a call of an earlier turn has waited since the same time, live and from a journal", () => {
    const begun = { _tag: "RunStarted", runId: "r", at: 0 } as const
    const waits = { _tag: "ToolQueued", id: "c", name: "pay", reason: "permit", behind: [], at: 10 } as const
    const started = { _tag: "ToolExecutionStarted", id: "c", name: "pay", at: 13 } as const
    const waited = [{ reason: "permit", millis: 3 }] as const
    const pictures = [[begun, waits, started], [begun, { ...started, waited }]].map((events) => {
      const run = Fold.make("r")
      for (const event of events) Fold.take(run, event as Event.PublicEvent)
      const { asked, waits: [wait] } = call(run, "c")
      return [asked, wait?.from, wait?.to]
    })
    assert.deepStrictEqual(pictures, [[10, 10, 13], [10, 10, 13]])
  })

  it.effect("the fold has when calls were asked for, waited, started and ended", () =>
    Effect.gen(function*() {
      const run = foldOf(yield* weaving)
      const times = ({ ended, ready, started }: Fold.Call) => [ready, started, ended]
      assert.deepStrictEqual(times(call(run, "c01")), [600, 600, 2100])
      assert.deepStrictEqual(times(call(run, "c05")), [960, 2210, 2810])
      assert.deepStrictEqual(call(run, "c05").waits, [
        { reason: "key", key: "account:ann", behind: ["c04"], isElsewhere: false, from: 1410, to: 2210 }
      ])
      assert.deepStrictEqual(call(run, "d06").waits, [
        { reason: "exclusive", behind: ["d03"], isElsewhere: false, from: 4994, to: 6644 }
      ])
      assert.deepStrictEqual(call(run, "c03").notches, [1730])
      assert.deepStrictEqual([call(run, "c01").isEarly, call(run, "c04").isEarly], [true, false])
      assert.deepStrictEqual(call(run, "c04").arguments, { to: "ann", ms: 800 })
      assert.strictEqual(call(run, "c04").content, "ann owes nothing")
      assert.deepStrictEqual([call(run, "c08").state, call(run, "e03").state], ["failed", "cancelled"])
    }))

  it.effect("the fold has the calls of inner runs under the paths that lead to them", () =>
    Effect.gen(function*() {
      const run = foldOf(yield* weaving)
      const inner = Array.from(run.calls.values()).filter(({ owner }) => owner === "c10")
      assert.deepStrictEqual(inner.map(({ path }) => path), [
        "c10/s0-heddles",
        "c10/s1-heddles",
        "c10/s2-heddles"
      ])
      assert.deepStrictEqual(inner[1]?.waits[0]?.behind, ["c10/s0-heddles"])
      assert.isTrue(inner[1]?.waits[0]?.isElsewhere)
      assert.strictEqual(call(run, "c10").outcome?._tag, "Completed")
      assert.deepInclude(call(run, "c10").usage, { inputTokens: 920, outputTokens: 65 })
      assert.deepStrictEqual(
        run.turns.map(({ index, owner }) => `${owner}:${index}`),
        [":0", "c09:0", "c10:0", "c09:1", "c10:1", ":1", ":2"]
      )
    }))

  it.effect("the fold distinguishes calls that run alone from calls that wait for them", () =>
    Effect.gen(function*() {
      const run = foldOf(yield* weaving)
      const alone = Array.from(run.calls.values()).filter(({ isAlone }) => isAlone)
      assert.deepStrictEqual(alone.map(({ path }) => path), ["d03"])
    }))

  it.effect("V-08: the fold has the same calls from a journal's events, with their waits, times and rows", () =>
    Effect.gen(function*() {
      const store = yield* Layer.build(Session.Store.layerMemory)
      const options = { ...Shop.options, requestId: "r", cancel: Effect.sleep(8800) }
      const live = yield* tell(
        Stream.unwrap(
          Effect.map(
            Session.open("s"),
            (opened) => Session.keepStream(opened, (session) => Session.streamReply(session, "weave", options))
          )
        ),
        Layer.merge(Shop.model, Layer.succeedContext(store))
      )
      const kept = yield* Effect.provideContext(JournalEvents.eventsOf("s", "r", { publish: "all" }), store)
      const calls = (events: ReadonlyArray<Fold.Told>) =>
        Array.from(
          foldOf(events).list,
          ({ argumentsText: _text, notches: _notches, progress: _progress, ...call }) => call
        )
          .toSorted((left, right) => left.path < right.path ? -1 : 1)
      assert.deepStrictEqual(calls(kept), calls(live))
      assert.deepStrictEqual(foldOf(kept).counts, foldOf(live).counts)
      const begun = (events: ReadonlyArray<Fold.Told>) =>
        foldOf(events).turns.map(({ from, index, owner, to }) => `${owner}:${index} ${from} ${to}`).toSorted()
      assert.deepStrictEqual(begun(kept), begun(live))
      // The journal tells calls that started early before the text of their reply.
      const texts = (events: ReadonlyArray<Fold.Told>) =>
        foldOf(events).turns.filter(({ owner }) => owner === "").map(({ parts }) =>
          parts.map((part) => part.type === "call" ? part.path : part.text)
        )
      assert.deepStrictEqual(texts(kept), texts(live))
      const rows = (events: ReadonlyArray<Fold.Told>) =>
        Layouts.make(foldOf(events)).rows.map((bars) => bars.map(({ call }) => call.path))
      assert.deepStrictEqual(rows(kept), rows(live))
    }))

  it.effect("the fold has turns with their requests, text, reasoning, ordered calls, ends and usage", () =>
    Effect.gen(function*() {
      const run = foldOf(
        yield* tell(
          Chat.stream("go", { tools: [echo] }),
          Script.layer([
            [
              delay(200),
              reasoning("Let me see. "),
              text("First "),
              text("this, "),
              delay(100),
              toolCall("a", "echo", {}),
              text("then that."),
              usage({ inputTokens: 5, outputTokens: 3 }),
              finish("tool_calls")
            ],
            [delay(50), text("Done."), usage({ inputTokens: 9, outputTokens: 1 }), finish("stop")]
          ])
        )
      )
      const [first, second] = run.turns
      assert.deepStrictEqual(first?.parts, [
        { type: "reasoning", text: "Let me see. " },
        { type: "text", text: "First this, " },
        { type: "call", path: "a" },
        { type: "text", text: "then that." }
      ])
      assert.strictEqual(first?.text, "First this, then that.")
      assert.deepStrictEqual([first?.from, first?.first, first?.to], [0, 200, 300])
      assert.strictEqual(first?.finishReason, "tool_calls")
      assert.deepStrictEqual([second?.from, second?.first, second?.to, second?.text], [300, 350, 350, "Done."])
      assert.deepStrictEqual(first?.usage, { inputTokens: 5, outputTokens: 3 })
      assert.deepStrictEqual(run.usage, { inputTokens: 14, outputTokens: 4 })
      assert.deepStrictEqual([run.end, run.outcome?._tag, run.startedAt], [350, "Completed", 0])
    }))

  it.effect("the fold has the calls that wait for an answer, with their ids, questions and choices", () =>
    Effect.gen(function*() {
      const run = foldOf(yield* ordering)
      assert.deepStrictEqual(run.suspensions.map(({ id, kind }) => [id, kind]), [
        ["r~o1", "approval"],
        ["r~o2", "approval"],
        ["r~o3", "question"]
      ])
      assert.strictEqual(call(run, "o1").state, "asks")
      assert.strictEqual(call(run, "o1").suspension?.id, "r~o1")
      assert.isUndefined(call(run, "o1").started)
      assert.deepInclude(call(run, "o3").suspension, { question: "Hardcover?", opts: ["yes", "no"] })
      assert.strictEqual(call(run, "o3").ended, call(run, "o3").started)
    }))

  it.effect("the fold shows both an inner call that asks and its outer call as waiting", () =>
    Effect.gen(function*() {
      const run = foldOf(yield* delegating)
      assert.deepStrictEqual([call(run, "p1").state, call(run, "p1").suspension], ["asks", undefined])
      assert.deepInclude(call(run, "p1/a-Emma").suspension, { id: "r~p1/a-Emma", kind: "approval" })
      assert.strictEqual(run.counts.running, 0)
    }))

  it.effect("the end of a call ends its inner calls", () =>
    Effect.gen(function*() {
      const run = foldOf(yield* failing)
      assert.deepStrictEqual([call(run, "p1").state, call(run, "p1/a-Emma").state], ["failed", "cancelled"])
      assert.isUndefined(call(run, "p1/a-Emma").suspension)
      assert.strictEqual(run.counts.asks, 0)
    }))

  it.effect("the counts of the fold stay right as calls begin, start and end", () =>
    Effect.gen(function*() {
      for (const told of [weaving, ordering, delegating, failing]) {
        const run = Fold.make("r")
        let most = 0
        for (const event of yield* told) {
          Fold.take(run, event)
          most = Math.max(most, recounted(run).running)
          assert.deepStrictEqual({ ...run.counts }, { ...recounted(run), most }, event._tag)
        }
      }
    }))

  it.effect("the fold discards a broken reply, and keeps each of its requests", () =>
    Effect.gen(function*() {
      const events = yield* tell(
        Chat.stream("go", { tools: [echo], retryReply: Schedule.recurs(2) }),
        Script.layer([
          [delay(100), text("It is "), toolCall("c9", "echo", {}), delay(50), streamError("network_error")],
          [delay(70), text("It is raining."), finish("stop")]
        ])
      )
      const run = foldOf(events)
      const [turn] = run.turns
      assert.strictEqual(run.turns.length, 1)
      assert.strictEqual(run.calls.size, 0)
      assert.deepStrictEqual(turn?.parts, [{ type: "text", text: "It is raining." }])
      assert.deepStrictEqual(turn?.requests.map(({ error, first, from, to }) => [from, first, to, error?.code]), [
        [0, 100, 150, "network_error"],
        [150, 220, 220, undefined]
      ])
      assert.deepStrictEqual([turn?.from, turn?.first], [0, 220])
    }))

  it("V-14: a stopped call inside a sub-agent says who stopped it, live and from a journal, which has the stop earlier", () => {
    const begun = [
      { _tag: "RunStarted", runId: "r", at: 1_000 },
      { _tag: "ToolCallCompleted", id: "c", name: "ask", at: 1_010 },
      { _tag: "ToolExecutionStarted", id: "c", name: "ask", at: 1_020 }
    ]
    const inner = (event: object) => ({ _tag: "ToolProgress", id: "c", name: "ask", nested: event })
    const started = [
      inner({ _tag: "ToolCallCompleted", id: "d", name: "dig", at: 1_030 }),
      inner({ _tag: "ToolExecutionStarted", id: "d", name: "dig", at: 1_040 })
    ]
    const stop = { _tag: "StopAccepted", call: "c/d", by: "ann", at: 1_050 }
    const answer = inner({
      _tag: "ToolResultEncoded",
      id: "d",
      content: "no",
      isError: true,
      code: "cancelled",
      at: 1_060
    })
    const later = inner({ _tag: "ToolCallCompleted", id: "d", name: "dig", at: 1_070 })
    const fold = (events: ReadonlyArray<object>) => {
      const run = Fold.make("r")
      for (const event of events) Fold.take(run, event as Fold.Told)
      return run.calls.get("c/d")
    }
    const live = fold([...begun, ...started, stop, answer])
    assert.deepStrictEqual([live?.state, live?.by, live?.stopAt], ["cancelled", "ann", 50])
    assert.deepStrictEqual(fold([...begun, stop, ...started, answer]), live)
    // A call that the model begins behind the stop is another one.
    assert.isUndefined(fold([...begun, stop, later])?.by)
  })

  it("V-13: the fold has each message sent into the run once, with its turn or its refusal reason", () => {
    const sent: ReadonlyArray<object> = [
      { _tag: "MessageDelivered", id: "m1", content: "Not that", stepIndex: 1 },
      { _tag: "MessageDelivered", id: "m2", content: [{ type: "text", text: "Nor this" }], stepIndex: 1 },
      { _tag: "MessageRefused", id: "m3", content: "Too late", reason: "stopped" }
    ]
    const run = Fold.make("r")
    Fold.take(run, { _tag: "RunStarted", runId: "r", at: 1_000 } as Fold.Told)
    for (const event of [...sent, ...sent]) Fold.take(run, event as Fold.Told)
    // A message to the agent inside a call is none to this run.
    const nested = { _tag: "MessageDelivered", id: "m4", content: "Inner", stepIndex: 1 }
    Fold.take(run, { _tag: "ToolProgress", id: "c", name: "ask", nested } as unknown as Fold.Told)
    assert.deepStrictEqual(run.sent, [
      { id: "m1", content: "Not that", turn: 1 },
      { id: "m2", content: [{ type: "text", text: "Nor this" }], turn: 1 },
      { id: "m3", content: "Too late", reason: "stopped" }
    ])
  })

  it("a discarded reply leaves the counts right and keeps the started calls", () => {
    const run = foldOf([
      { _tag: "RunStarted", runId: "r", at: 0 },
      { _tag: "MessageStarted", at: 0 },
      { _tag: "ToolCallCompleted", id: "a", name: "read", at: 1 },
      { _tag: "ToolExecutionStarted", id: "a", name: "read", at: 1 },
      { _tag: "ToolCallCompleted", id: "b", name: "read", at: 2 },
      { _tag: "ToolQueued", id: "b", name: "read", reason: "permit", behind: ["a"], at: 2 },
      { _tag: "StepReset", error: { code: "network_error", message: "" }, at: 3 }
    ])
    assert.deepStrictEqual(Array.from(run.calls.keys()), ["a"])
    assert.deepStrictEqual(run.list, Array.from(run.calls.values()))
    assert.deepStrictEqual({ ...run.counts }, { ...recounted(run), most: 1 })
  })

  it.effect("the fold has the error of a reply and of a run, and the typed answer", () =>
    Effect.gen(function*() {
      const broken = foldOf(
        yield* tell(Chat.stream("go"), Script.layer([[text("Hel"), streamError("rate_limited")]]))
      )
      assert.strictEqual(broken.outcome?._tag, "Failed")
      assert.strictEqual(broken.error?.code, "rate_limited")
      assert.strictEqual(broken.turns[0]?.error?.code, "rate_limited")
      const typed = foldOf(
        yield* tell(
          Chat.stream("go", { output: Output.make(Schema.Struct({ city: Schema.String }), { mode: "finalize" }) }),
          Script.layer([
            [text("Oslo it is."), finish("stop")],
            [text("{\"city\":\"Oslo\"}"), finish("stop")]
          ])
        )
      )
      assert.deepStrictEqual(typed.output, { value: { city: "Oslo" }, isWhole: true })
    }))

  it.effect("the fold takes the repeated events of a resumed run once, and has its question about a started call", () =>
    Effect.gen(function*() {
      const calls = new Map()
      const resumed = (yield* upToCallStarted("4111")).flatMap((event) =>
        Event.toPublic(event, { calls, runId: "r", at: 5_000 }) ?? []
      )
      const run = Fold.make("r")
      const before: ReadonlyArray<Fold.Told> = [
        { _tag: "RunStarted", runId: "r", at: 1_000 },
        { _tag: "MessageStarted", at: 1_100 },
        { _tag: "ToolCallStarted", id: "c", name: "pays", at: 1_200 },
        { _tag: "ToolCallCompleted", id: "c", name: "pays", arguments: { card: "4111" }, at: 1_300 },
        { _tag: "MessageCompleted", finishReason: "tool_calls", at: 1_400 },
        { _tag: "ToolExecutionStarted", id: "c", name: "pays", at: 1_400 },
        { _tag: "RunStarted", runId: "r", at: 4_000 }
      ]
      for (const event of [...before, ...resumed]) Fold.take(run, event)
      assert.isTrue(resumed.some(({ replayed }) => replayed === true))
      assert.strictEqual(run.turns.length, 1)
      assert.deepStrictEqual(run.turns[0]?.parts, [{ type: "call", path: "c" }])
      assert.deepStrictEqual(run.resumed, [3_000])
      const { attempts, ready, started, state, suspension } = call(run, "c")
      assert.deepStrictEqual([ready, started, state, suspension?.kind], [300, 400, "asks", "unknown"])
      assert.deepStrictEqual(attempts, [{ from: 400, to: 3_000 }])
      assert.strictEqual(run.counts.running, 0)
      // Without the events before, the repeated ones tell the same but for the times.
      const fresh = foldOf(resumed)
      assert.deepStrictEqual(call(fresh, "c").arguments, { card: "4111" })
      assert.strictEqual(fresh.turns.length, 1)
    }))

  it("V-07: a call that starts again in a continuing run has one attempt there, beside its repeated start", () => {
    const start = { _tag: "ToolExecutionStarted", id: "c", name: "sub", arguments: {} } as const
    const run = foldOf([
      { _tag: "RunStarted", runId: "r2", at: 1_000 },
      { ...start, replayed: true, at: 1_100 },
      { ...start, attempt: 2, at: 1_100 },
      { _tag: "ToolExecutionCompleted", id: "c", name: "sub", at: 1_300 },
      { _tag: "ToolResultEncoded", id: "c", content: "done", at: 1_300 }
    ])
    const { attempts, started, state } = call(run, "c")
    assert.deepStrictEqual([attempts, started, state], [[{ from: 100, to: 300 }], 100, "done"])
  })

  it("the fold has the requests, waits, stop and cost that a server reports", () => {
    const at = 10_000
    const run = foldOf([
      { _tag: "RunStarted", runId: "r", at },
      { _tag: "RequestStarted", stepIndex: 0, attempt: 1, model: "fake-1", at: at + 5 },
      { _tag: "RequestRetried", stepIndex: 0, attempt: 1, try: 1, code: "rate_limited", afterMillis: 20, at: at + 40 },
      { _tag: "MessageStarted", at: at + 100 },
      { _tag: "ToolCallStarted", id: "a/b", name: "pay", at: at + 200 },
      { _tag: "ToolCallCompleted", id: "a/b", name: "pay", at: at + 200 },
      { _tag: "MessageCompleted", at: at + 200 },
      {
        _tag: "ToolExecutionStarted",
        id: "a/b",
        name: "pay",
        asked: at + 150,
        waited: [
          { reason: "permit", behind: ["x"], millis: 30 },
          { reason: "key", key: "account:ann", elsewhere: true, millis: 60 }
        ],
        at: at + 300
      },
      { _tag: "StopAccepted", by: "ann", at: at + 400 },
      { _tag: "ToolResultEncoded", id: "a/b", isError: true, code: "cancelled", by: "ann", at: at + 450 },
      {
        _tag: "ChatCompleted",
        outcome: { _tag: "Cancelled", reason: "stop" },
        usage: { inputTokens: 3, totalCost: 0.25 },
        nestedUsage: { inputTokens: 4 },
        abandoned: [{ id: "a/b", name: "pay", kind: "handler", ageMillis: 150 }],
        at: at + 500
      }
    ])
    const [turn] = run.turns
    assert.deepStrictEqual([turn?.from, turn?.first, turn?.to], [5, 100, 200])
    assert.deepStrictEqual(turn?.requests[0]?.model, "fake-1")
    assert.deepStrictEqual(turn?.requests[0]?.retries, [{ at: 40, code: "rate_limited", afterMillis: 20 }])
    const pay = call(run, "a%2Fb")
    assert.deepStrictEqual([pay.ready, pay.started], [150, 300])
    assert.deepStrictEqual(pay.waits, [
      { reason: "permit", behind: ["x"], isElsewhere: false, from: 210, to: 240 },
      { reason: "key", key: "account:ann", behind: [], isElsewhere: true, from: 240, to: 300 }
    ])
    assert.deepStrictEqual([run.stopAt, run.stoppedBy, pay.abandoned, pay.by], [400, "ann", 150, "ann"])
    assert.deepStrictEqual([run.usage, run.nested], [{ inputTokens: 3, totalCost: 0.25 }, { inputTokens: 4 }])
  })

  it("the fold keeps answers to calls of an earlier run, and gives them to that run", () => {
    const asked = foldOf([
      { _tag: "RunStarted", runId: "r", at: 0 },
      { _tag: "MessageStarted", at: 0 },
      { _tag: "ToolCallCompleted", id: "o1", name: "order", at: 1 },
      {
        _tag: "ToolApprovalRequested",
        toolCallId: "o1",
        toolName: "order",
        suspensions: [{ id: "r~o1", kind: "approval", toolCall: { id: "o1", name: "order" } }],
        at: 2
      }
    ])
    const next = foldOf([
      { _tag: "RunStarted", runId: "s", at: 50 },
      { _tag: "ToolResultEncoded", id: "o1", settled: true, isError: true, code: "denied", by: "ann", at: 60 },
      { _tag: "ToolResultEncoded", id: "o2", settled: true, content: "a…", originalLength: 70_000, at: 60 }
    ], "s")
    assert.strictEqual(next.calls.size, 0)
    const [settled, cut] = next.settled
    assert.deepStrictEqual(settled, { path: "o1", at: 10, state: "denied", code: "denied", by: "ann" })
    assert.deepStrictEqual(cut, { path: "o2", at: 10, state: "done", content: "a…", originalLength: 70_000 })
    assert.isTrue(Fold.settle(asked, settled!))
    assert.deepStrictEqual([call(asked, "o1").state, call(asked, "o1").by, asked.counts.asks], ["denied", "ann", 0])
    assert.isFalse(Fold.settle(asked, settled!))
  })

  it("the fold takes events without times, and then has no times", () => {
    const run = foldOf([
      { _tag: "RunStarted", runId: "r" },
      { _tag: "MessageStarted" },
      { _tag: "TextCompleted", id: null, text: "Hello" },
      { _tag: "MessageCompleted" }
    ])
    assert.isUndefined(run.startedAt)
    assert.strictEqual(run.turns[0]?.text, "Hello")
    assert.strictEqual(run.version, 4)
  })
})
