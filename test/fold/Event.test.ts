/**
 * Events and results are plain data: each survives JSON, by example and over generated values, and hostile members in
 * what a model sent change nothing but themselves.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { Adapter, Event, Message, Response, Thread, type Tool } from "heddle"
import { shareOf } from "../support/property.ts"

const encode = Schema.encodeUnknownSync(Event.Event)
const decode = Schema.decodeUnknownSync(Event.Event)

const throughJson = (value: unknown): unknown => JSON.parse(JSON.stringify(value))

const call = Message.toolCall("c0", "echo", { x: 1 })

const thread = Thread.fromMessages([Message.user("go"), Message.assistant("", [call]), Message.tool("c0", "1")])

const response: Response.Response = {
  id: "r",
  requestId: "q",
  model: null,
  outputText: "",
  reasoning: "hm",
  toolCalls: [call],
  message: Message.assistant(""),
  finishReason: "tool_calls",
  rawFinishReason: "tool_use",
  usage: Response.usage({ inputTokens: 1 }),
  metadata: {}
}

const halts: ReadonlyArray<Event.Halt> = [
  { haltedReason: "ask_user", pendingQuestion: "?", pendingToolCallId: "c0", askUserOpts: [["kind", "pick"]] },
  { haltedReason: "tool_error", haltToolCallId: "c0" },
  { haltedReason: "tool_error", haltToolCallId: "c0", onToolErrorException: "X" },
  { haltedReason: "done_early", haltToolCallId: "c0", haltResult: { v: 1 } }
]

const outcomes: ReadonlyArray<Event.Outcome> = [
  { _tag: "Completed", finishReason: "stop" },
  { _tag: "MaxTurns", maxTurns: 8 },
  { _tag: "HaltWhen", stepIndex: 0 },
  { _tag: "AskUser", pendingQuestion: "?", pendingToolCallId: "c0", askUserOpts: [] },
  { _tag: "ToolFailed", haltToolCallId: "c0" },
  { _tag: "ToolFailed", haltToolCallId: "c0", onToolErrorException: "X" },
  { _tag: "Halted", reason: "done_early", haltToolCallId: "c0", haltResult: { v: 1 } },
  { _tag: "ManualToolCalls", stepIndex: 1 },
  { _tag: "ManualToolCalls", stepIndex: 1, manualToolCalls: [call] },
  { _tag: "Cancelled", reason: "cancel" },
  { _tag: "Failed", error: "lost" }
]

const stepResults: ReadonlyArray<Event.StepResult> = [
  { thread, response, toolResults: [Message.tool("c0", "1")], done: false, metadata: {} },
  { thread, response, toolResults: [], done: false, mode: "manual", metadata: { mine: 1 } },
  { thread, response, toolResults: [], done: false, manualToolCalls: [call], metadata: {} },
  ...halts.map((halt) => ({ thread, response, toolResults: [], done: true, halt, metadata: {} }))
]

const chatResults: ReadonlyArray<Event.ChatResult> = outcomes.map((outcome) => ({
  thread,
  finalResponse: response,
  steps: stepResults,
  outcome,
  haltedReason: "whatever",
  pendingQuestion: "?",
  pendingToolCallId: "c0",
  usage: Response.usage({ totalTokens: 3 }),
  totalUsage: Response.usage({ totalTokens: 8 }),
  structuredFinalize: { pass1Halted: "completed", pass2Error: "lost" },
  abandoned: [{ kind: "handler", id: "c0", name: "echo", ageMillis: 7 }],
  metadata: {}
}))

const results: ReadonlyArray<Tool.Outcome> = [
  { _tag: "Ok", value: [1, "two", null] },
  { _tag: "Error", error: "nope" },
  { _tag: "AskUser", question: "?", opts: [] },
  { _tag: "Halt", reason: "done_early", result: { v: 1 } }
]

/** At least one event of every tag. */
const samples: ReadonlyArray<Event.Event> = [
  { _tag: "MessageStarted", message: Message.assistant("") },
  { _tag: "TextDelta", id: null, delta: "a" },
  { _tag: "TextCompleted", id: "t", text: "a" },
  { _tag: "ReasoningDelta", id: null, delta: "hm" },
  { _tag: "ToolCallStarted", id: "c0", name: "echo" },
  { _tag: "ToolCallDelta", id: "c0", argumentsDelta: "{\"x\"" },
  { _tag: "ToolCallCompleted", id: "c0", name: "echo", arguments: { x: 1 }, rawArguments: "{\"x\":1}" },
  {
    _tag: "ToolCallCompleted",
    id: "c0",
    name: "echo",
    arguments: {},
    rawArguments: "{",
    argumentsLost: "json_decode_error",
    providerExecuted: true,
    metadata: { signature: "s" }
  },
  { _tag: "MessageCompleted", message: Message.assistant("a"), finishReason: null },
  {
    _tag: "MessageCompleted",
    message: Message.assistant("a"),
    finishReason: "stop",
    rawFinishReason: "end_turn",
    usage: Response.usage({ inputTokens: 1 })
  },
  { _tag: "RawChunk", chunk: { usage: { inputTokens: 1 } } },
  { _tag: "Error", error: "lost" },
  { _tag: "ToolQueued", id: "c0", name: "echo", reason: "permit" },
  { _tag: "ToolExecutionStarted", id: "c0", name: "echo", arguments: { x: 1 } },
  { _tag: "ToolExecutionStarted", id: "c0", name: "echo", arguments: { x: 1 }, attempt: 2, replayed: true },
  { _tag: "ToolProgress", id: "c0", name: "echo", progress: { done: 0.5 } },
  ...results.map((result) => ({ _tag: "ToolExecutionCompleted", id: "c0", name: "echo", result } as const)),
  { _tag: "ToolResultEncoded", id: "c0", content: "1" },
  { _tag: "ToolResultEncoded", id: "c0", content: "1", isError: true, code: "denied", originalLength: 10 },
  { _tag: "AskUserRequested", toolCallId: "c0", toolName: "ask", question: "?", opts: [["kind", "pick"]] },
  {
    _tag: "AskUserRequested",
    toolCallId: "c0",
    toolName: "ask",
    question: "?",
    opts: [],
    answerSchema: { type: "integer" },
    expiresAt: 1_700_000_000_000,
    defaultAnswer: 1
  },
  { _tag: "ToolApprovalRequested", toolCallId: "c0", toolName: "pay", arguments: { x: 1 }, expiresAt: 1 },
  {
    _tag: "ToolSuspended",
    toolCallId: "c0",
    toolName: "agent",
    suspensions: [{
      id: "c0/q",
      path: ["c0", "q"],
      kind: "question",
      toolCall: Message.toolCall("q", "ask"),
      question: "?"
    }]
  },
  { _tag: "ToolHalt", toolCallId: "c0", reason: "done_early", result: { v: 1 } },
  { _tag: "ToolHalt", toolCallId: "c0", reason: "tool_error", result: null, content: "x", onToolErrorException: "X" },
  { _tag: "StepReset", error: "lost" },
  { _tag: "ModelSwitched", from: "first", to: "second", error: "lost" },
  { _tag: "MessageDelivered", id: "m1", message: Message.user("not that"), stepIndex: 1 },
  { _tag: "MessageRefused", id: "m2", message: Message.user("Stop"), reason: "finished" },
  { _tag: "OutputPartial", value: { city: "Os" } },
  { _tag: "OutputCompleted", value: { city: "Oslo" } },
  { _tag: "StepCompleted", response, thread, messages: [], mode: "auto", manualToolCalls: [] },
  {
    _tag: "StepCompleted",
    response,
    thread,
    messages: thread.messages,
    mode: "auto",
    manualToolCalls: [],
    suspensions: [{ id: "c0", kind: "approval", toolCall: call, expiresAt: 1 }]
  },
  ...halts.map((halt) =>
    ({
      _tag: "StepCompleted",
      response,
      thread,
      messages: thread.messages,
      mode: "manual",
      isToolTurn: true,
      manualToolCalls: [call],
      done: true,
      halt
    }) as const
  ),
  ...chatResults.map((result) => ({ _tag: "ChatCompleted", result }) as const),
  { _tag: "ChatCompleted", result: chatResults[0]!, messages: [Message.assistant("?")] }
]

/** What an event has that is not written, since the events before it have said it. */
const unwritten = (event: Event.Event): object => {
  if (event._tag === "StepCompleted") {
    const { thread: _, ...rest } = event
    return rest
  }
  if (event._tag !== "ChatCompleted") return event
  const { thread: _, steps, finalResponse, ...result } = event.result
  const isLast = finalResponse === steps.at(-1)?.response
  return { ...event, result: isLast ? result : { ...result, finalResponse } }
}

describe("Event", () => {
  it("M-21: an event decoded from its wire form is unchanged, except for what earlier events contain", () => {
    for (const event of samples) {
      const received = Event.fromWire(JSON.parse(JSON.stringify(Event.toWire(event))))
      const expected = JSON.parse(JSON.stringify(Event.toWire(unwritten(event) as Event.Event))) as unknown
      assert.deepStrictEqual(JSON.parse(JSON.stringify(Event.toWire(received))), expected)
      assert.strictEqual(received._tag, event._tag)
    }
  })

  it("every tag of the union has a sample and a guard", () => {
    const tagsOfUnion = [...new Set(samples.map((event) => event._tag))].toSorted()
    assert.deepStrictEqual([...Event.Event.discriminants].toSorted(), tagsOfUnion)
    assert.deepStrictEqual(Object.keys(Event.guards).toSorted(), tagsOfUnion)
    assert.strictEqual(tagsOfUnion.length, 27)
    for (const event of samples) {
      assert.deepStrictEqual(
        Event.Event.discriminants.filter((tag) => Event.guards[tag](event)),
        [event._tag]
      )
    }
  })

  it("match passes an event to the case of its tag, and to no other", () => {
    const cases = Object.fromEntries(
      Event.Event.discriminants.map((tag) => [tag, (event: Event.Event) => [tag, event]])
    )
    for (const event of samples) assert.deepStrictEqual(Event.match(event, cases as any), [event._tag, event] as any)
  })

  it("R-126: an adapter emits only the first ten tags", () => {
    assert.deepStrictEqual([...Event.AdapterEvent.discriminants], [
      "MessageStarted",
      "TextDelta",
      "TextCompleted",
      "ReasoningDelta",
      "ToolCallStarted",
      "ToolCallDelta",
      "ToolCallCompleted",
      "MessageCompleted",
      "RawChunk",
      "Error"
    ])
  })

  for (const [index, event] of samples.entries()) {
    it(`an event survives JSON: sample ${index}, ${event._tag}`, () => {
      assert.deepStrictEqual(decode(throughJson(encode(event))), event)
    })
  }

  it("an unknown tag and a missing field are refused", () => {
    const refused = (value: unknown) => Result.isFailure(Schema.decodeUnknownResult(Event.Event)(value))
    assert.isTrue(refused({ _tag: "ToolQueued", id: "c0" }))
    assert.isTrue(refused({ _tag: "TextDelta", delta: "a" }))
    assert.isTrue(refused({ _tag: "StepCompleted", response, thread, mode: "auto" }))
    assert.isFalse(refused({ _tag: "TextDelta", id: null, delta: "a" }))
  })

  it.prop("a generated event is decoded from its encoding unchanged", [Event.Event], ([event]) => {
    const text = JSON.stringify(encode(event))
    // The JSON.parse of Node 24 may read a key that is half of a surrogate pair, such as "\\udc00", as a backslash.
    if (/\\ud[89a-f]/.test(text)) return
    const json: unknown = JSON.parse(text)
    assert.deepStrictEqual(throughJson(encode(decode(json))), json)
  }, { arbitrary: { runs: shareOf(400) } })
})

describe("Event: values without a JSON form", () => {
  const encodedChunk = (chunk: unknown) => (encode({ _tag: "RawChunk", chunk }) as { readonly chunk: unknown }).chunk

  it("errors are written with their own fields, their name and their message", () => {
    const error = new Adapter.AdapterError({ reason: "timeout", detail: "slow", status: 504 })
    assert.deepStrictEqual(throughJson(encode({ _tag: "Error", error })), {
      _tag: "Error",
      error: { _tag: "AdapterError", reason: "timeout", detail: "slow", status: 504, message: error.message }
    })
    const chained = new TypeError("outer", { cause: new Error("inner") })
    assert.deepStrictEqual(throughJson(encodedChunk(chained)), {
      name: "TypeError",
      message: "outer",
      cause: { name: "Error", message: "inner" }
    })
  })

  it("non-finite numbers, big integers, symbols, functions, dates and cycles have a rendering", () => {
    const cyclic: { name: string; self?: unknown } = { name: "me" }
    cyclic.self = cyclic
    const rendered = encodedChunk([Number.NaN, 10n, Symbol.for("not_found"), undefined, new Date(0), cyclic])
    assert.deepStrictEqual(rendered, [
      "NaN",
      "10",
      "Symbol(not_found)",
      null,
      "1970-01-01T00:00:00.000Z",
      { name: "me", self: "[Circular]" }
    ])
    assert.isString(encodedChunk(() => 1))
    const shared = { a: 1 }
    assert.deepStrictEqual(encodedChunk([shared, shared]), [shared, shared], "a value that stands twice is no cycle")
  })

  it("a value that throws on reading is reported as unreadable, and the rest is kept", () => {
    const hostile = {
      get secret(): never {
        throw new Error("no")
      }
    }
    const toJSON = () => {
      throw new Error("no")
    }
    assert.deepStrictEqual(encodedChunk({ hostile, odd: { toJSON }, fine: 1 }), {
      hostile: "[Unreadable]",
      odd: "[Unreadable]",
      fine: 1
    })
  })

  it("a value with many references to one value is truncated, and so is a deep value", () => {
    let wide: unknown = "x"
    let deep: unknown = "x"
    for (let level = 0; level < 60; level++) wide = [wide, wide]
    for (let level = 0; level < 100_000; level++) deep = { deep }
    assert.include(JSON.stringify(encodedChunk(wide)), "[Truncated]")
    assert.include(JSON.stringify(encodedChunk(deep)), "[Too deep]")
  })

  it("__proto__ in arguments changes no prototype", () => {
    const args = JSON.parse("{\"__proto__\":{\"admin\":true},\"x\":{\"__proto__\":{\"admin\":true}}}")
    const event: Event.Event = { _tag: "ToolExecutionStarted", id: "c0", name: "echo", arguments: args }
    const back = decode(throughJson(encode(event))) as Event.Of<"ToolExecutionStarted">
    assert.strictEqual(Object.getPrototypeOf(back.arguments), Object.prototype)
    assert.isUndefined(back.arguments["admin"])
    assert.isUndefined((back.arguments["x"] as Record<string, unknown>)["admin"])
    assert.isUndefined(({} as Record<string, unknown>)["admin"])
  })
})

describe("Event: results", () => {
  for (const [index, result] of stepResults.entries()) {
    it(`a step result survives JSON: ${index}`, () => {
      const json = throughJson(Schema.encodeUnknownSync(Event.StepResult)(result))
      assert.deepStrictEqual(Schema.decodeUnknownSync(Event.StepResult)(json), result)
    })
  }

  for (const result of chatResults) {
    it(`a chat result survives JSON: ${JSON.stringify(result.outcome)}`, () => {
      const json = throughJson(Schema.encodeUnknownSync(Event.ChatResult)(result))
      assert.deepStrictEqual(Schema.decodeUnknownSync(Event.ChatResult)(json), result)
    })
  }
})
