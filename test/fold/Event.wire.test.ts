/**
 * The form of events for logs, servers and pages: what each step added instead of whole threads, plain JSON whatever the
 * events hold, and a fold that gives the result of the run.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Collector, Event, Message, Session, type Thread, Tool } from "heddle"
import { Script } from "heddle/testing"
import { appr, ask, boom, chatOf, echo, only, start, stepOf, transcript } from "../support/scenarios.ts"
import { after, calling, done, tools } from "../support/sessions.ts"
import { differing, plain, travelled } from "../support/travelled.ts"

const { finish, text, toolCall } = Script

const callEcho = [text("let me see"), toolCall("c0", "echo", { x: 1 }), finish("tool_calls")]
const answer = [text("a"), finish("stop")]

/** The messages of each step, and those behind the last one, in short. */
const added = (events: ReadonlyArray<Event.Event>) =>
  [
    ...only(events, "StepCompleted"),
    ...only(events, "ChatCompleted")
  ].map(({ messages = [] }) => transcript({ messages, metadata: {} }))

describe("Event: the messages of a step", () => {
  it.effect("M-21: a step has the messages that it added, and no others", () =>
    Effect.gen(function*() {
      const { events } = yield* chatOf([callEcho, callEcho, answer], { tools: [echo] })
      assert.deepStrictEqual(added(events), [
        ["assistant(let me see)", "TM(c0,{\"x\":1})"],
        ["assistant(let me see)", "TM(c0_2,{\"x\":1})"],
        ["assistant(a)"],
        []
      ])
      const steps = only(events, "StepCompleted")
      const all = steps.flatMap(({ messages }) => messages)
      assert.deepStrictEqual(steps.at(-1)?.thread.messages, [...start.messages, ...all])
      const step = yield* stepOf(callEcho, { tools: [echo] })
      assert.deepStrictEqual(added(step.events), [["assistant(let me see)", "TM(c0,{\"x\":1})"]])
    }))

  it.effect("M-21: the prompt of a structured final answer belongs to the step that it introduces", () =>
    Effect.gen(function*() {
      const responseFormat: Adapter.ResponseFormat = { type: "json_object" }
      const options = { tools: [echo], responseFormat, structuredFinalize: true, finalizePrompt: "now" }
      const { events } = yield* chatOf([callEcho, answer, answer], options)
      assert.deepStrictEqual(added(events), [
        ["assistant(let me see)", "TM(c0,{\"x\":1})"],
        ["assistant(a)"],
        ["user(now)", "assistant(a)"],
        []
      ])
    }))

  it.effect("M-21: the question that ends a run follows its last step", () =>
    Effect.gen(function*() {
      const { events, result } = yield* chatOf([toolCall("c0", "ask"), finish("tool_calls")], { tools: [ask] })
      const [step, end] = added(events)
      assert.deepStrictEqual(step, ["assistant()", "TM(c0,<awaiting user response>)"])
      assert.deepStrictEqual(end, ["assistant(Which city?)"])
      assert.strictEqual(Message.text(result.thread.messages.at(-1)!), "Which city?")
    }))

  it.effect("M-21: a step has its failed and manual calls as the thread has them", () =>
    Effect.gen(function*() {
      const calls = [toolCall("c0", "boom"), toolCall("c1", "appr", {}), finish("tool_calls")]
      const { events } = yield* chatOf([calls], { tools: [boom, appr] })
      const [step] = only(events, "StepCompleted")
      assert.deepStrictEqual(step?.messages, step?.thread.messages.slice(1))
      assert.deepStrictEqual(step?.messages.map(({ role }) => role), ["assistant", "tool"])
    }))
})

class NotFound
  extends Schema.TaggedError<NotFound>()("NotFound", { path: Schema.String, key: Schema.Redacted(Schema.String) })
{}

class Untyped
  extends Data.TaggedError("Untyped")<{ readonly code: number; readonly request: object; readonly cause: unknown }>
{}

/** Values that `JSON.stringify` loses, refuses or does not end with, and what each is written as. */
const values: ReadonlyArray<readonly [name: string, value: unknown, written: unknown]> = [
  ["a BigInt", { n: 12n, list: [2n ** 70n] }, { n: "12", list: ["1180591620717411303424"] }],
  ["numbers without a JSON form", [Number.NaN, Infinity, -Infinity, -0], ["NaN", "Infinity", "-Infinity", 0]],
  ["undefined members", { a: undefined, b: null, list: [undefined] }, { b: null, list: [null] }],
  ["undefined", undefined, null],
  ["symbols and functions", [Symbol("s"), Symbol.for("t"), () => 1, Map], [
    "Symbol(s)",
    "Symbol(t)",
    "[function]",
    "[function]"
  ]],
  ["dates", [new Date(0), new Date(Number.NaN)], ["1970-01-01T00:00:00.000Z", null]],
  ["maps and sets", [new Map<unknown, unknown>([["a", new Set([1])], [{ b: 1 }, 2]])], [[["a", [1]], [{ b: 1 }, 2]]]],
  ["bytes", [new Uint8Array([1, 2, 3]), new Uint8Array([0, 255]).buffer], ["AQID", "AP8="]],
  ["values of Effect", [Option.some(1n), Redacted.make("key")], [
    { _id: "Option", _tag: "Some", value: "1" },
    "<redacted>"
  ]],
  [
    "a class",
    new (class {
      readonly a = 1
      get b() {
        return 2
      }
    })(),
    { a: 1 }
  ],
  ["an object without a prototype", Object.assign(Object.create(null) as object, { a: 1 }), { a: 1 }],
  ["a string with half a character", "a\ud800", "a\ud800"],
  ["a list with holes", Array(2), [null, null]],
  ["an error", new TypeError("no", { cause: "secret" }), { name: "TypeError", message: "no" }],
  ["a tagged error with a schema", new NotFound({ path: "/a", key: Redacted.make("k") }), {
    _tag: "NotFound",
    name: "NotFound",
    message: "",
    path: "/a",
    key: "<redacted>"
  }],
  [
    "a tagged error with a request",
    new Untyped({ code: 4, request: { url: "https://a/?key=secret" }, cause: new Error("secret") }),
    { _tag: "Untyped", name: "Untyped", message: "", code: 4 }
  ],
  ["an error among other things", { errors: [new Error("a")] }, { errors: [{ name: "Error", message: "a" }] }],
  ["a cause", Cause.combine(Cause.fail(new Error("a")), Cause.die("b")), {
    _tag: "Cause",
    reasons: [{ _tag: "Fail", error: { name: "Error", message: "a" } }, { _tag: "Die", defect: "b" }]
  }],
  ["a member that throws", {
    a: 1,
    get b(): never {
      throw new Error("no")
    }
  }, { a: 1, b: "[unreadable]" }],
  ["a toJSON that throws", {
    toJSON: () => {
      throw new Error("no")
    }
  }, "[unreadable]"],
  ["a toJSON", { secret: 1, toJSON: () => ({ shown: 1n }) }, { shown: "1" }],
  [
    "a proxy that throws",
    new Proxy({}, {
      ownKeys: () => {
        throw new Error("no")
      }
    }),
    "[unreadable]"
  ],
  ["a revoked proxy", revoked(), "[unreadable]"],
  ["a name of the prototype", JSON.parse("{\"a\":{\"__proto__\":{\"x\":1}},\"constructor\":1}"), {
    a: {},
    constructor: 1
  }]
]

function revoked(): object {
  const { proxy, revoke } = Proxy.revocable([], {})
  revoke()
  return proxy
}

const circle = (): unknown => {
  const own: Record<string, unknown> = { a: 1 }
  own["own"] = own
  own["list"] = [own]
  return own
}

const nestedBy = (depth: number): unknown => {
  let value: unknown = "end"
  for (let level = 0; level < depth; level++) value = { next: value }
  return value
}

/** Every place of an event that may hold a value of foreign code. */
const around = (value: unknown): ReadonlyArray<Event.Event> => {
  const call = { ...Message.toolCall("c0", "echo", { value }), metadata: { value } }
  const message = { ...Message.assistant("a", [call]), metadata: { value } }
  const thread: Thread.Thread = { messages: [message], metadata: { value } }
  const response = {
    ...Collector.toResponse(Collector.initial()),
    toolCalls: [call],
    message,
    error: value,
    metadata: { value }
  }
  const step = { thread, response, toolResults: [], done: true, metadata: { value } }
  const result = Collector.chatResult({ thread, steps: [step], outcome: { _tag: "Failed", error: value } })
  const suspensions = [{ id: "c0", kind: "question", toolCall: call, opts: [value], defaultAnswer: value }] as const
  return [
    { _tag: "MessageStarted", message },
    { _tag: "ToolCallCompleted", id: "c0", name: "echo", arguments: { value }, rawArguments: "", metadata: { value } },
    { _tag: "MessageCompleted", message, finishReason: null, metadata: { value } },
    { _tag: "RawChunk", chunk: value },
    { _tag: "Error", error: value },
    { _tag: "ToolExecutionStarted", id: "c0", name: "echo", arguments: { value } },
    { _tag: "ToolProgress", id: "c0", name: "echo", progress: value },
    { _tag: "ToolExecutionCompleted", id: "c0", name: "echo", result: { _tag: "Ok", value }, contextUpdate: { value } },
    { _tag: "ToolExecutionCompleted", id: "c0", name: "echo", result: { _tag: "Error", error: value } },
    { _tag: "ToolExecutionCompleted", id: "c0", name: "echo", result: { _tag: "Halt", reason: "r", result: value } },
    {
      _tag: "AskUserRequested",
      toolCallId: "c0",
      toolName: "echo",
      question: "?",
      opts: [value],
      defaultAnswer: value
    },
    { _tag: "ToolApprovalRequested", toolCallId: "c0", toolName: "echo", arguments: { value } },
    {
      _tag: "ToolSuspended",
      toolCallId: "c0",
      toolName: "agent",
      suspensions: [{
        id: "c0/q",
        path: ["c0", "q"],
        kind: "question",
        toolCall: Message.toolCall("q", "ask"),
        defaultAnswer: value
      }]
    },
    { _tag: "ToolHalt", toolCallId: "c0", reason: "r", result: value, onToolErrorException: value },
    {
      _tag: "StepCompleted",
      response,
      thread,
      messages: [message],
      mode: "auto",
      manualToolCalls: [call],
      halt: { haltedReason: "r", haltToolCallId: "c0", haltResult: value },
      suspensions
    },
    { _tag: "ChatCompleted", result: { ...result, suspensions, contextUpdate: { value } }, messages: [message] }
  ]
}

/** What is written of an event is JSON, and is read, and written again as it was. */
const survives = (event: Event.Event): void => {
  const wire = Event.toWire(event)
  assert.deepStrictEqual(travelled(event), wire)
  const received = Event.fromWire(travelled(event))
  assert.strictEqual(received._tag, event._tag)
  assert.deepStrictEqual(Event.toWire(received), wire)
}

describe("Event.toWire", () => {
  for (const [name, value, written] of values) {
    it(`M-21: the wire form of ${name} is plain data at every depth`, () => {
      assert.deepStrictEqual(plain(value), written)
      for (const event of around(value)) survives(event)
    })
  }

  it("M-21: a cycle is cut, and a value referred to twice without a cycle is encoded twice", () => {
    assert.deepStrictEqual(plain(circle()), { a: 1, own: "[circular]", list: ["[circular]"] })
    const shared = { a: 1 }
    assert.deepStrictEqual(plain([shared, { shared }]), [{ a: 1 }, { shared: { a: 1 } }])
    for (const event of around(circle())) survives(event)
  })

  it("M-21: values that are too deep, too large or infinite are cut", () => {
    const written = JSON.stringify(plain(nestedBy(100_000)))
    assert.include(written, "\"[too deep]\"")
    assert.isBelow(written.length, 5_000)
    let doubled: unknown = "x"
    for (let level = 0; level < 60; level++) doubled = [doubled, doubled]
    assert.include(JSON.stringify(plain(doubled)), "[truncated]")
    const endless: unknown = new Proxy({}, {
      ownKeys: () => ["a", "b"],
      getOwnPropertyDescriptor: () => ({ enumerable: true, configurable: true }),
      get: (_, key) => key === "a" ? endless : undefined
    })
    assert.isString(JSON.stringify(plain(endless)))
    for (const value of [nestedBy(100_000), endless]) for (const event of around(value)) survives(event)
  })

  it.effect("M-33, M-21: arguments keep all of their 256 levels in every event", () =>
    Effect.gen(function*() {
      const deep: Record<string, unknown> = { a: nestedBy(255) }
      const json = JSON.stringify(deep)
      const turns = [[toolCall("c0", "echo", deep), finish("tool_calls")], answer]
      const { events, result } = yield* chatOf(turns, { tools: [echo] })
      const folded = Collector.fromWire(start, events.map((event) => travelled(event)))
      assert.deepStrictEqual(folded.thread, result.thread)
      assert.include(JSON.stringify(folded.thread), json)
      for (const event of around(deep)) survives(event)
      const call = Message.toolCall("c1", "echo", deep)
      const wire = JSON.stringify(plain({ progress: { inner: [{ call }, { inner: [{ inner: call }] }] } }))
      assert.lengthOf(wire.split(json), 3)
    }))

  it("M-33, M-21: endlessly nested arguments are cut", () => {
    let endless: unknown = "end"
    for (let level = 0; level < 100_000; level++) endless = { arguments: endless }
    const written = JSON.stringify(plain(endless))
    assert.include(written, "\"[too deep]\"")
    assert.isBelow(written.length, 30_000)
    for (const event of around(endless)) survives(event)
  })

  it("M-21: a long text stays whole, and texts beyond a string's limit are cut", () => {
    const long = "x".repeat(5_000_000)
    assert.strictEqual(plain(long), long)
    const wire = JSON.stringify(plain(Array.from({ length: 1000 }, () => long)))
    assert.isBelow(wire.length, 2 ** 27)
    assert.include(wire, "[truncated]")
  })

  it("M-21: an error keeps its fields at every depth, and never its cause, stack, request or response", () => {
    const error = new Adapter.AdapterError({ reason: "rate_limited", status: 429, cause: new Error("secret") })
    for (const event of around(error)) {
      const wire = JSON.stringify(Event.toWire(event))
      if (wire.includes("rate_limited")) assert.include(wire, "429")
      assert.notInclude(wire, "secret")
    }
    assert.include(JSON.stringify(Event.toWire({ _tag: "Error", error })), "\"reason\":\"rate_limited\"")
  })

  it("M-21: a value that is not an event in wire form is refused with the name of its field", () => {
    const message = (wire: unknown): string => {
      try {
        return Event.fromWire(wire)._tag
      } catch (error) {
        assert.instanceOf(error, Event.WireError)
        return (error as Event.WireError).message
      }
    }
    assert.strictEqual(message({ _tag: "TextDelta", id: null, delta: "a" }), "TextDelta")
    assert.include(message({ _tag: "TextDelta", id: null, delta: 1 }), "delta")
    assert.include(message({ _tag: "StepCompleted" }), "response")
    for (const wire of [null, 1, "{}", [], {}, { _tag: "Later" }]) assert.include(message(wire), "not the wire form")
  })

  it("M-21: decoding pollutes no prototype", () => {
    const wire = JSON.parse(
      "{\"_tag\":\"ToolProgress\",\"id\":\"c\",\"name\":\"n\",\"__proto__\":{\"x\":1},\"progress\":{\"__proto__\":{\"x\":1},\"y\":2}}"
    ) as unknown
    const received = Event.fromWire(wire)
    assert.deepStrictEqual(received, { _tag: "ToolProgress", id: "c", name: "n", progress: { y: 2 } })
    assert.isUndefined(({} as { readonly x?: unknown }).x)
  })
})

describe("Collector.fromWire", () => {
  it("M-21: an unknown event is ignored, and the other events are folded", () => {
    const wires = [null, { _tag: "Later" }, { _tag: "TextDelta", id: null, delta: "a" }, { _tag: "TextDelta" }, "x"]
    assert.strictEqual(Collector.fromWire("go", wires).finalResponse?.outputText, "a")
    assert.throws(() => Collector.fromWire([{ role: "robot" as "user", content: "x" }], []), /messages\[0\]\.role/)
  })

  it.effect("M-21: the events of one step fold to that step", () =>
    Effect.gen(function*() {
      const { events, step } = yield* stepOf(callEcho, { tools: [echo] })
      const { steps } = Collector.fromWire(start, events.map(travelled))
      assert.deepStrictEqual(steps.map(plain), [plain(step)])
    }))

  it.effect("M-21: the events of a session operation fold to its result", () =>
    Effect.gen(function*() {
      const said = Message.user("Oslo")
      const with_ = (
        session: Session.Session,
        ...more: ReadonlyArray<Message.Message>
      ) => [...session.thread.messages, ...more]
      const asked = yield* after("ask:q")
      const two = yield* after("pay:p1", "pay:p2")
      const first = yield* Session.approve(two, "p1")
      const denied = yield* Session.deny(first, "p2")
      const both = yield* Session.approve(first, "p2")
      const answered = yield* Session.answer(asked, "q", "Oslo")
      const operations = [
        [with_(asked, said), Session.streamReply(asked, "Oslo", { tools })],
        [with_(denied), Session.streamContinue(denied, null, { tools })],
        // What was settled between two runs is in the events of the second one.
        [with_(two), Session.streamContinue(denied, null, { tools })],
        [with_(asked), Session.streamContinue(answered, null, { tools })],
        [with_(both, said), Session.streamContinue(both, said, { tools })],
        [with_(Session.make(), said), Session.streamStart([said], { tools })]
      ] as const
      for (const [input, stream] of operations) {
        const events = yield* Stream.runCollect(stream).pipe(Effect.provide(Script.layer([calling("echo:e"), done])))
        const last = events.at(-1)
        if (last?._tag !== "ChatCompleted") return assert.fail("the stream did not complete")
        assert.deepStrictEqual(differing(input, events, last.result), [])
      }
      const events = yield* Stream.runCollect(Session.streamStep(denied, { tools })).pipe(
        Effect.provide(Script.layer([done]))
      )
      const step = only(events, "StepCompleted")[0]
      const folded = Collector.fromWire(denied.thread, events.map(travelled))
      assert.deepStrictEqual(plain(folded.thread), plain(step?.thread))
    }))
})

/** A run of so many steps, each with a result of 4 kB. */
const long = (steps: number) => ({
  script: [
    ...Array.from(
      { length: steps - 1 },
      (_, index) => [text(`step ${index}`), toolCall(`c${index}`, "read"), finish("tool_calls")]
    ),
    answer
  ],
  options: {
    maxTurns: steps,
    tools: [Tool.make("read", { parameters: {}, handler: () => Effect.succeed("x".repeat(4096)) })]
  }
})

const readAll = (steps: number) => {
  const { options, script } = long(steps)
  return Stream.runCollect(Chat.stream("go", options)).pipe(Effect.provide(Script.layer(script)))
}

/** The same run inside a handler that shows its events. */
const readNested = (steps: number) => {
  const { options, script } = long(steps)
  // Progress that is not read in time is coalesced.
  const child = () =>
    Chat.stream("go", options).pipe(Stream.tap(() => Effect.sleep(0)), Stream.provide(Script.layer(script)))
  const agent = Tool.fromChat("agent", { parameters: {}, chat: child })
  return Stream.runCollect(Chat.stream("go", { tools: [agent] })).pipe(
    Effect.provide(Script.layer([[toolCall("a0", "agent"), finish("tool_calls")], answer]))
  )
}

const withoutThread = ({ thread, ...step }: Event.StepResult) => plain({ ...step, length: thread.messages.length })

/** Three sizes, and what each step of a larger one takes more. */
const growth = (sizes: ReadonlyArray<number>, steps: ReadonlyArray<number>) => ({
  before: (sizes[1]! - sizes[0]!) / (steps[1]! - steps[0]!),
  after: (sizes[2]! - sizes[1]!) / (steps[2]! - steps[1]!)
})

const bytes = (values: ReadonlyArray<unknown>): number =>
  values.reduce<number>((sum, value) => sum + Buffer.byteLength(JSON.stringify(value)) + 1, 0)

describe("Event: growth", () => {
  it.live(
    "M-21: the wire form grows in proportion to the steps, also where a nested run shows its events",
    () =>
      Effect.gen(function*() {
        const steps = [50, 100, 200]
        const own: Array<number> = []
        const nested: Array<number> = []
        for (const count of steps) {
          const events = yield* readAll(count)
          const inner = yield* readNested(count)
          own.push(bytes(events.map(Event.toWire)))
          nested.push(bytes(inner.map(Event.toWire)))
          const last = events.at(-1)
          if (last?._tag !== "ChatCompleted") return assert.fail("the stream did not complete")
          const { result } = last
          const sent = Collector.fromWire("go", events.map(travelled))
          assert.deepStrictEqual(
            plain([sent.thread, sent.outcome, sent.usage]),
            plain([result.thread, result.outcome, result.usage])
          )
          assert.deepStrictEqual(sent.steps.map(withoutThread), result.steps.map(withoutThread))
          assert.deepStrictEqual(plain(sent.steps.at(-2)?.thread), plain(result.steps.at(-2)?.thread))
          const shown = inner.flatMap((event) => event._tag === "ToolProgress" ? [travelled(event)["progress"]] : [])
          const folded = Collector.fromWire("go", shown)
          assert.deepStrictEqual([folded.steps.length, folded.outcome._tag], [count, "Completed"])
          assert.deepStrictEqual(plain(folded.thread), plain(last.result.thread))
        }
        for (const sizes of [own, nested]) {
          const { after, before } = growth(sizes, steps)
          assert.isAtMost(after, before * 1.02, `a step takes ${before} bytes, then ${after}`)
          assert.isBelow(after, 5 * 4096)
        }
      })
  )
})
