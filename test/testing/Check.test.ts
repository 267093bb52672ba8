/**
 * The checks of the laws on what was planted: a lawful run gives nothing, and every way to break a law that a check
 * knows of is found, under the name of its law and in words that say where.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, type Event, Message, Output, Rule, Thread, Tool } from "heddle"
import { type Check, check, everyStep, type Recorder, Script } from "heddle/testing"

const report = Tool.make("report", {
  parameters: {},
  handler: (_, call) => Effect.as(call.progress("half"), "done")
})
const fail = Tool.make("fail", { parameters: {}, handler: () => Effect.fail("no such city") })
const ask = Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which city?")) })
const sign = Tool.make("sign", { parameters: {}, manual: true })
const halt = Tool.make("halt", { parameters: {}, handler: () => Effect.succeed(Tool.halt("enough", null)) })

const played = (...calls: ReadonlyArray<string>) => {
  const entries = calls.map((name, index) => Script.toolCall(`c${index}`, name))
  const model = Script.layer([
    [...entries, Script.usage({ inputTokens: 3 }), Script.finish("tool_calls")],
    [Script.text("done"), Script.finish("stop")]
  ])
  const options = { tools: [report, fail, ask, sign, halt], requestId: "request" }
  return Chat.stream("go", options).pipe(Stream.runCollect, Effect.provide(model))
}

type Events = ReadonlyArray<Event.Event>

const run: Events = await Effect.runPromise(played("report", "fail"))
const asked: Events = await Effect.runPromise(played("report", "ask"))
const manual: Events = await Effect.runPromise(played("report", "sign"))

/** A run with a typed answer, at its second try, and a part that no reply has. */
const typed: Events = await Effect.runPromise(
  Chat.stream("go", { output: Output.make(Schema.Struct({ city: Schema.String })) }).pipe(
    Stream.runCollect,
    Effect.provide(Script.layer([
      [Script.toolCall("c0", "final_answer", { city: 7 }), Script.finish("tool_calls")],
      [Script.toolCall("c1", "final_answer", { city: "Oslo" }), Script.finish("tool_calls")]
    ]))
  )
)

/** A run whose adapter loses the arguments of its first answer, and reads a null for a missing member. */
const adapted: Events = await Effect.runPromise(
  Chat.stream("go", {
    output: Output.make(Schema.Struct({ city: Schema.String, note: Schema.optionalKey(Schema.String) }))
  }).pipe(
    Stream.runCollect,
    Effect.provide(Script.layer([
      { id: "c0", rawArguments: "{\"city\":\"Bergen\",}", arguments: {}, argumentsLost: "json_decode_error" } as const,
      { id: "c1", rawArguments: "{\"note\":null,\"city\":\"Oslo\"}", arguments: { city: "Oslo" } }
    ].map((call) => [
      Script.event({ _tag: "ToolCallStarted", id: call.id, name: "final_answer" }),
      Script.toolCallDelta(call.id, call.rawArguments),
      Script.event({ _tag: "ToolCallCompleted", name: "final_answer", ...call }),
      Script.finish("tool_calls")
    ])))
  )
)
const bergen: Event.Event = { _tag: "OutputPartial", value: { city: "Bergen" } }

/** A run that withdraws its question, and the event that says so. */
const withdrawn: Events = await Effect.runPromise(played("halt", "ask"))
const isSettlement = (event: Event.Event): boolean => event._tag === "ToolResultEncoded" && event.settled === true

/** A call of an earlier turn that was settled between two runs. */
const settled: Event.Event = { _tag: "ToolResultEncoded", id: "earlier", content: "yes", settled: true }

const isOf = (id: string, ...tags: ReadonlyArray<Event.Event["_tag"]>) => (event: Event.Event): boolean =>
  tags.includes(event._tag) && ("id" in event ? event.id === id : "toolCallId" in event && event.toolCallId === id)

const without = (events: Events, is: (event: Event.Event) => boolean): Events => events.filter((event) => !is(event))

const twice = (events: Events, is: (event: Event.Event) => boolean): Events =>
  events.flatMap((event) => is(event) ? [event, event] : [event])

/** The events with those that `is` names put right behind those that `behind` names. */
const moved = (events: Events, is: (event: Event.Event) => boolean, behind: (event: Event.Event) => boolean): Events =>
  without(events, is).flatMap((event) => behind(event) ? [event, ...events.filter(is)] : [event])

const waits: Event.Of<"ToolQueued"> = { _tag: "ToolQueued", id: "c0", name: "report", reason: "permit" }

/** The events of a run with others right before the one of a call with that tag. */
const queued = (waiting: Events, tag: Event.Event["_tag"], id = "c0"): Events =>
  run.flatMap((event) => isOf(id, tag)(event) ? [...waiting, event] : [event])

const changed = <Tag extends Event.Event["_tag"]>(
  events: Events,
  tag: Tag,
  change: (event: Event.Of<Tag>, index: number) => Event.Event
): Events => {
  let index = 0
  return events.map((event) => event._tag === tag ? change(event as Event.Of<Tag>, index++) : event)
}

const withResult = (
  change: Partial<Event.ChatResult> | ((result: Event.ChatResult) => Partial<Event.ChatResult>)
): Events =>
  changed(run, "ChatCompleted", ({ result }) => ({
    _tag: "ChatCompleted",
    result: { ...result, ...(typeof change === "function" ? change(result) : change) }
  }))

/** The thread of the first step, changed where the step hands it out. */
const withThread = (change: (messages: ReadonlyArray<Message.Message>) => ReadonlyArray<Message.Message>): Events =>
  changed(
    run,
    "StepCompleted",
    (event, index) =>
      index > 0 ? event : { ...event, thread: { ...event.thread, messages: change(event.thread.messages) } }
  )

const resultOf = (events: Events): Event.ChatResult => {
  const last = events.at(-1)
  return last?._tag === "ChatCompleted" ? last.result : assert.fail("the run has no result")
}

const completed = (event: Event.Event): boolean => event._tag === "ChatCompleted"
const says = (violations: ReadonlyArray<Check.Violation>): ReadonlyArray<string> =>
  violations.map(({ law, message }) => `${law}: ${message}`)

/** Each planted violation, with one thing that has to be said about it. */
const planted: { readonly [name: string]: readonly [violations: ReadonlyArray<Check.Violation>, said: string] } = {
  "a missing answer": [
    check(without(run, isOf("c0", "ToolResultEncoded"))),
    "answers: call \"c0\" is left without an answer"
  ],
  "a step with a missing answer": [
    check(without(run, isOf("c0", "ToolResultEncoded"))),
    "answers: call \"c0\" is answered or pending 0 times"
  ],
  "a batch that ends with a missing answer": [
    check(without(run, (event) => isOf("c1", "ToolResultEncoded")(event) || event._tag === "StepCompleted")),
    "answers: call \"c1\" is left without an answer"
  ],
  "a call answered twice": [
    check(twice(run, isOf("c1", "ToolResultEncoded"))),
    "answers: call \"c1\" is answered twice"
  ],
  "a call both answered and pending": [
    check(changed(run, "StepCompleted", (event) => ({ ...event, manualToolCalls: event.response.toolCalls }))),
    "answers: call \"c0\" is answered or pending 2 times"
  ],
  "a manual call missing among the manual calls": [
    check(changed(manual, "StepCompleted", (event) => ({ ...event, manualToolCalls: [] }))),
    "answers: call \"c1\" is answered or pending 0 times"
  ],
  "a call of the model missing in the assistant message": [
    check(
      withThread((messages) =>
        messages.map((message) =>
          message.role === "assistant" ? { ...message, toolCalls: message.toolCalls?.slice(1) ?? [] } : message
        )
      )
    ),
    "answers: call \"c0\" of the model is not in the assistant message"
  ],
  "an invented call in the assistant message": [
    check(
      withThread((messages) =>
        messages.map((message) =>
          message.role === "assistant"
            ? { ...message, toolCalls: [...message.toolCalls ?? [], Message.toolCall("x", "report")] }
            : message
        )
      )
    ),
    "answers: call \"x\" of the assistant message was not made by the model"
  ],
  "an answer without a call": [
    check(
      twice(run, isOf("c1", "ToolResultEncoded")).map((event, index) =>
        isOf("c1", "ToolResultEncoded")(event) && index % 2 === 0 ? { ...event, id: "x" } as Event.Event : event
      )
    ),
    "answers: the answer to \"x\" has no call"
  ],
  "a handler that starts twice": [
    check(twice(run, isOf("c0", "ToolExecutionStarted"))),
    "starts: call \"c0\" started twice"
  ],
  "progress before the start": [
    check(without(run, isOf("c0", "ToolExecutionStarted"))),
    "order: call \"c0\" makes progress before its start"
  ],
  "progress after the completion": [
    check(moved(run, isOf("c0", "ToolProgress"), isOf("c0", "ToolExecutionCompleted"))),
    "order: ToolProgress of call \"c0\" comes after its completion"
  ],
  "progress after the answer": [
    check(moved(run, isOf("c0", "ToolProgress"), isOf("c0", "ToolResultEncoded"))),
    "order: ToolProgress of call \"c0\" comes after its answer"
  ],
  "W-27: a call queued twice": [
    check(queued([waits, waits], "ToolExecutionStarted")),
    "order: call \"c0\" is queued twice"
  ],
  "W-27: a call queued after its start": [
    check(queued([waits], "ToolProgress")),
    "order: call \"c0\" is queued after its start"
  ],
  "W-27: a call queued after its completion": [
    check(
      queued([{ ...waits, id: "c1" }], "ToolResultEncoded", "c1").filter((event) =>
        !isOf("c1", "ToolExecutionStarted")(event)
      )
    ),
    "order: ToolQueued of call \"c1\" comes after its completion"
  ],
  "W-27: a queued call without an answer": [
    check(queued([{ ...waits, id: "c2" }], "ToolProgress")),
    "answers: call \"c2\" is left without an answer"
  ],
  "an answer without a completion": [
    check(without(run, isOf("c0", "ToolExecutionCompleted"))),
    "order: call \"c0\" is answered before it has completed"
  ],
  "an answer that does not fit its result": [
    check(changed(run, "ToolExecutionCompleted", (event) => ({ ...event, result: Tool.ok("fine") }))),
    "order: ToolResultEncoded of call \"c1\" does not fit its result, Ok"
  ],
  "a question whose result is a value": [
    check(changed(asked, "ToolExecutionCompleted", (event) => ({ ...event, result: Tool.ok("fine") }))),
    "order: AskUserRequested of call \"c1\" does not fit its result, Ok"
  ],
  "M-42: a question settled twice": [
    check(twice(withdrawn, isSettlement)),
    "answers: call \"c1\" is settled, and has no open question"
  ],
  "M-42: a settlement before the question": [
    check(moved(withdrawn, isOf("c1", "AskUserRequested"), isSettlement)),
    "answers: call \"c1\" is settled, and has no open question"
  ],
  "M-42: a settlement of an answered call": [
    check(
      twice(run, isOf("c1", "ToolResultEncoded")).map((event, index, events) =>
        isOf("c1", "ToolResultEncoded")(event) && isOf("c1", "ToolResultEncoded")(events[index - 1]!)
          ? { ...event, settled: true } as Event.Event
          : event
      )
    ),
    "answers: call \"c1\" is settled, and has no open question"
  ],
  "M-42: a question that is neither open nor withdrawn": [
    check(without(withdrawn, isSettlement)),
    "answers: the question of \"c1\" is neither open nor withdrawn"
  ],
  "M-42: a withdrawn question that still waits": [
    check(changed(withdrawn, "StepCompleted", (event) => ({
      ...event,
      suspensions: [{ id: "c1", kind: "question", toolCall: Message.toolCall("c1", "ask") }]
    }))),
    "answers: call \"c1\" waits, and has asked nothing that is open"
  ],
  "M-43: a call of an earlier turn settled twice": [
    check([settled, settled, ...run]),
    "answers: call \"earlier\" is settled, and has no open question"
  ],
  "M-43: a settlement of an earlier call after the first reply": [
    check([...run.slice(0, 1), settled, ...run.slice(1)]),
    "answers: call \"earlier\" is settled, and has no open question"
  ],
  "a run without ChatCompleted": [check(without(run, completed)), "frame: there is no ChatCompleted"],
  "an event after ChatCompleted": [check([...run, run[0]!]), "frame: 1 events come after ChatCompleted"],
  "a second ChatCompleted": [check(twice(run, completed)), "frame: 1 events come after ChatCompleted"],
  "an answer accepted twice": [
    check(twice(typed, ({ _tag }) => _tag === "OutputCompleted")),
    "frame: OutputCompleted does not come once with the output of the result"
  ],
  "an accepted answer missing in the result": [
    check(changed(typed, "ChatCompleted", () => ({ _tag: "ChatCompleted", result: resultOf(run) }))),
    "frame: OutputCompleted does not come once with the output of the result"
  ],
  "an accepted answer other than the result's": [
    check(changed(typed, "OutputCompleted", () => ({ _tag: "OutputCompleted", value: { city: "Bergen" } }))),
    "frame: OutputCompleted does not come once with the output of the result"
  ],
  "an answer's part that its reply does not have": [
    check(typed.flatMap((event): Events => event._tag === "ToolCallCompleted" ? [bergen, event] : [event])),
    "output: an answer's part is not in the reply's JSON"
  ],
  "a repair that counts twice": [
    check(
      changed(
        typed,
        "StepCompleted",
        (event, index) => index === 0 ? event : { ...event, notes: { output: { mode: "tool", repair: 2 } } }
      )
    ),
    "output: repair 2 follows repair 0"
  ],
  "a step without StepCompleted": [
    check(run.filter((event, index) => event._tag !== "StepCompleted" || index < run.length - 2)),
    "frame: MessageStarted belongs to no completed step"
  ],
  "a step missing in the result": [
    check(withResult(({ steps }) => ({ steps: steps.slice(1) }))),
    "frame: the result has 1 steps, the stream 2 StepCompleted"
  ],
  "a step that differs from the fold of its events": [
    check(withResult(({ steps }) => ({ steps: steps.map((step) => ({ ...step, toolResults: [] })) }))),
    "fold: step 0 of the result has another toolResults"
  ],
  "a usage that is not the sum of the steps": [
    check(withResult({ usage: null })),
    "fold: the result's usage is not that of its steps"
  ],
  "a final response of an earlier step": [
    check(withResult(({ steps }) => ({ finalResponse: steps[0]!.response }))),
    "fold: the result's finalResponse is not that of its steps"
  ],
  "a halt reason that does not fit the outcome": [
    check(withResult({ haltedReason: "max_turns" })),
    "fold: the result's haltedReason is not that of its steps"
  ],
  "an outcome that the last step does not have": [
    check(withResult({ outcome: { _tag: "MaxTurns", maxTurns: 3 } })),
    "fold: the last step does not end in MaxTurns"
  ],
  "a result with the thread of an earlier step": [
    check(withResult(({ steps }) => ({ thread: steps[0]!.thread }))),
    "fold: the result's thread is not that of its last step"
  ],
  "a step that reports messages of earlier steps": [
    check(changed(run, "StepCompleted", (event) => ({ ...event, messages: event.thread.messages }))),
    "fold: the messages of StepCompleted are not what came to its thread"
  ],
  "a question in the thread without an event": [
    check(changed(asked, "ChatCompleted", ({ result }) => ({ _tag: "ChatCompleted", result }))),
    "fold: the messages of ChatCompleted are not what came to its thread"
  ],
  "a question missing in the thread": [
    check(changed(asked, "ChatCompleted", ({ result }) => ({
      _tag: "ChatCompleted",
      result: { ...result, thread: { ...result.thread, messages: result.thread.messages.slice(0, -1) } }
    }))),
    "fold: the result's thread is not that of its last step"
  ],
  "an awaited result that differs from the streamed result": [
    check(run, { result: { ...resultOf(run), metadata: { late: true } } }),
    "fold: the awaited result has another metadata"
  ],
  "a thread with an unanswered call": [
    check(withThread((messages) => messages.slice(0, -1))),
    "history: call \"c1\" is not answered"
  ]
}

const call = (id: string, name = "read") => Message.toolCall(id, name)
const pair = Message.assistant("", [call("a"), call("b")])

const threads: { readonly [said: string]: ReadonlyArray<Message.Message> } = {
  "call \"a\" is not answered": [Message.assistant("", [call("a")])],
  "call \"b\" is not answered": [pair, Message.tool("a", ""), Message.user("go on"), Message.tool("b", "")],
  "the answer to \"b\" has no open call": [pair, Message.tool("a", ""), Message.user("go on"), Message.tool("b", "")],
  "the answer to \"a\" has no open call": [
    Message.assistant("", [call("a")]),
    Message.tool("a", ""),
    Message.tool("a", "")
  ],
  "the answer to \"x\" has no open call": [Message.tool("x", "")],
  "the answers to a, b are not in call order": [pair, Message.tool("b", ""), Message.tool("a", "")],
  "two calls have the id \"a\"": [
    Message.assistant("", [call("a"), call("a")]),
    Message.tool("a", ""),
    Message.tool("a", "")
  ],
  "a call has no id": [Message.assistant("", [call("")])],
  "call \"a\" has the name \"\"": [Message.assistant("", [call("a", "")]), Message.tool("a", "")],
  "call \"a\" has the name \"read file\"": [Message.assistant("", [call("a", "read file")]), Message.tool("a", "")],
  "messages[0].role: must be one of system, user, assistant, tool; got: robot": [
    { ...Message.user("hi"), role: "robot" as "user" }
  ]
}

const entry = (tag: Recorder.Mark, name: string): Recorder.Entry => ({ _tag: tag, at: 0, name })
const whole = (name: string) => [entry("Started", name), entry("Succeeded", name), entry("Finalized", name)]
const both = [entry("Started", "a"), entry("Started", "b"), ...whole("a").slice(1), ...whole("b").slice(1)]
const alone = (name: string): boolean => name === "b"

const logs: { readonly [said: string]: ReadonlyArray<Check.Violation> } = {
  "lifetime: 1 of \"a\" are alive after the run": check.handlers([entry("Started", "a")]),
  "lifetime: \"a\" ended 1 times and was finalized 2 times": check.handlers([...whole("a"), entry("Finalized", "a")]),
  "lifetime: \"a\" ended 1 times and was finalized 0 times": check.handlers(whole("a").slice(0, 2)),
  "concurrency: \"b\" is number 2 to run, the bound is 1": check.handlers(both, { bound: 1 }),
  "concurrency: exclusive \"b\" starts while others run": check.handlers(both, { isExclusive: alone }),
  "concurrency: \"a\" starts while an exclusive handler runs": check.handlers(
    [entry("Started", "b"), ...whole("a"), ...whole("b").slice(1)],
    { isExclusive: alone }
  )
}

describe("check of events, threads and handlers", () => {
  it("check passes lawful runs: answered, suspended by a question, with manual calls, with a typed answer, and cut at any event", () => {
    assert.includeDeepMembers([...adapted], [bergen, { _tag: "OutputPartial", value: { note: null, city: "Oslo" } }])
    for (const events of [run, asked, manual, withdrawn, typed, adapted, [settled, ...run]]) {
      assert.deepStrictEqual(check(events, { result: resultOf(events) }), [])
      for (let length = 0; length < events.length; length++) {
        assert.deepStrictEqual(check(events.slice(0, length), { isCut: true }), [], `cut after ${length}`)
      }
    }
  })

  it.effect("R-512: check passes a run whose rule asks for another step after an answer or a halt, however the run ends", () =>
    Effect.gen(function*() {
      const answer = [Script.text("done"), Script.finish("stop")]
      const stop = [Script.toolCall("c0", "halt"), Script.finish("tool_calls")]
      const further = Rule.make("further", { next: () => Rule.go() })
      const failing = Rule.make("failing", {
        ask: (ask, { stepIndex }) => stepIndex === 0 ? ask : Effect.fail(new Error("no price"))
      })
      const ending = Rule.make("ending", { ask: (ask, { stepIndex }) => stepIndex === 0 ? ask : Rule.end() })
      const telling = Rule.make("telling", { next: () => Rule.go({ messages: [Message.user("more")] }) })
      for (const reply of [answer, stop]) {
        const ends = [
          [[further], "MaxTurns"],
          [[further, failing], "Failed"],
          [[telling, failing], "Failed"],
          [[telling, ending], "RuleEnded"]
        ] as const
        for (const [rules, outcome] of ends) {
          const options = { tools: [halt], rules, maxTurns: 2 }
          const events = yield* Chat.stream("go", options).pipe(
            Stream.runCollect,
            Effect.provide(Script.layer([reply, reply]))
          )
          assert.strictEqual(resultOf(events).outcome._tag, outcome)
          assert.deepStrictEqual(check(events), [])
        }
      }
    }))

  it.effect("R-512: check passes a run stopped between the messages of a rule and their request", () =>
    Effect.gen(function*() {
      const telling = Rule.make("telling", {
        next: (next, { steps }) => steps.length === 1 ? Rule.go({ messages: [Message.user("more")] }) : next
      })
      const slow = Rule.make("slow", { ask: (ask) => Effect.as(Effect.sleep(3), ask) })
      const answer = [Script.text("done"), Script.finish("stop")]
      const { points, violations } = yield* everyStep(
        ({ cancel }) => Chat.stream("go", { rules: [telling, slow], cancel }),
        { layer: Script.layer([answer, answer]) }
      )
      assert.isAbove(points, 1)
      assert.deepStrictEqual(violations, [])
    }))

  for (const [name, [violations, said]] of Object.entries(planted)) {
    it(`${name} is a violation`, () => assert.include(says(violations), said))
  }

  for (const [said, messages] of Object.entries(threads)) {
    it(`check.thread reports in a thread: ${said}`, () =>
      assert.include(check.thread({ messages, metadata: {} }).map(({ message }) => message), said))
  }

  it("W-27: check passes a call queued before its start, and a queued call that is denied without a start", () => {
    const started = queued([waits], "ToolExecutionStarted")
    assert.lengthOf(started, run.length + 1)
    assert.deepStrictEqual(check(started), [])
    const denied = queued([{ ...waits, id: "c1" }], "ToolExecutionCompleted", "c1").filter((event) =>
      !isOf("c1", "ToolExecutionStarted")(event)
    )
    assert.lengthOf(denied, run.length)
    assert.deepStrictEqual(check(denied), [])
  })

  it("check.thread passes a pending call in the last turn only, and skips messages before `from`", () => {
    const open = Thread.fromMessages([pair, Message.tool("a", "")])
    assert.deepStrictEqual(check.thread(open, { pending: ["b"] }), [])
    assert.deepStrictEqual(says(check.thread(Thread.append(open, [Message.user("go on")]), { pending: ["b"] })), [
      "history: call \"b\" is not answered"
    ])
    assert.deepStrictEqual(check.thread(Thread.append(open, [Message.user("go on")]), { from: 2 }), [])
  })

  for (const [said, violations] of Object.entries(logs)) {
    it(`check.handlers reports in a log: ${said}`, () => assert.deepStrictEqual(says(violations), [said]))
  }

  it("check.handlers passes live abandoned handlers, counts none of them, and still keeps exclusive handlers out", () => {
    const left = [entry("Started", "a"), ...whole("b")]
    assert.deepStrictEqual(check.handlers(left, { abandoned: ["a"], bound: 1 }), [])
    assert.deepStrictEqual(says(check.handlers(left, { abandoned: ["a"], isExclusive: alone })), [
      "concurrency: exclusive \"b\" starts while others run"
    ])
  })

  it("check.handlers passes handlers that follow each other, and handlers that overlap within the bound", () => {
    assert.deepStrictEqual(check.handlers([...whole("a"), ...whole("b")], { bound: 1, isExclusive: alone }), [])
    assert.deepStrictEqual(check.handlers(both, { bound: 2 }), [])
  })
})
