/**
 * The fold of what a model says: text, reasoning, the end of the message, usage and errors. It is pure and total, and
 * its work is bounded by the number of events.
 */
import { assert, describe, it } from "@effect/vitest"
import { Collector, type Event, Message, Policy, Response } from "heddle"
import * as Fold from "../../src/internal/fold/fold.ts"
import {
  completed,
  delta,
  encoded,
  failed,
  finished,
  fold,
  fragment,
  respond,
  started,
  stepEnd,
  thread
} from "../support/folds.ts"
import { deepFreeze } from "../support/frozen.ts"

describe("Collector: pure and total", () => {
  it("R-290, K-05: unknown tags and malformed payloads return the same state", () => {
    const state = fold([delta("a"), started("c0", "echo"), encoded("c0", "1")])
    const nonsense: ReadonlyArray<unknown> = [
      null,
      undefined,
      42,
      "TextDelta",
      {},
      { _tag: "ToolQueued", id: "c0" },
      { _tag: "toString" },
      { _tag: "constructor", id: "c0" },
      { _tag: "TextDelta", id: null },
      { _tag: "TextDelta", id: null, delta: 42 },
      { _tag: "TextDelta", id: null, delta: "" },
      { _tag: "TextCompleted", id: null },
      { _tag: "ReasoningDelta", id: null, delta: null },
      { _tag: "ReasoningDelta", id: null, delta: "" },
      { _tag: "ToolCallStarted", id: "c1" },
      { _tag: "ToolCallStarted", name: "echo" },
      { _tag: "ToolCallDelta", id: "c1" },
      { _tag: "ToolCallDelta", argumentsDelta: "{}" },
      { _tag: "ToolCallCompleted", id: "c1", arguments: {} },
      { _tag: "ToolCallCompleted", name: "echo", arguments: {} },
      { _tag: "MessageCompleted", finishReason: "stop" },
      { _tag: "MessageCompleted", message: "hi", finishReason: "stop" },
      { _tag: "MessageCompleted", message: Message.assistant(""), finishReason: 42 },
      { _tag: "MessageCompleted", message: Message.assistant(""), finishReason: null, metadata: "abc" },
      { _tag: "RawChunk", chunk: "usage" },
      { _tag: "RawChunk", chunk: { usage: 5 } },
      { _tag: "Error" },
      { _tag: "ToolResultEncoded", id: "c0" },
      { _tag: "ToolResultEncoded", content: "1" },
      { _tag: "AskUserRequested", toolCallId: "c0" },
      { _tag: "AskUserRequested", toolCallId: "c0", question: "?", opts: "none" },
      { _tag: "ToolHalt", toolCallId: "c0" },
      { _tag: "ToolHalt", toolCallId: "c0", reason: "r", result: 1, content: 42 },
      { _tag: "StepCompleted" },
      { _tag: "StepCompleted", response: {}, thread, mode: "auto", manualToolCalls: [] },
      { _tag: "StepCompleted", response: respond([]), thread: {}, mode: "auto", manualToolCalls: [] },
      { _tag: "StepCompleted", response: respond([]), thread, mode: "auto", manualToolCalls: 1 },
      { _tag: "ChatCompleted", result: "done" },
      { _tag: "ChatCompleted", result: {} }
    ]
    for (const event of nonsense) {
      assert.strictEqual(Collector.applyEvent(state, event as Event.Event), state, JSON.stringify(event))
    }
  })

  it("R-291: the fold ignores the start of a message and the events of running tools", () => {
    const state = fold([delta("a")])
    const events: ReadonlyArray<Event.Event> = [
      { _tag: "MessageStarted", message: Message.assistant("ignored") },
      { _tag: "ToolExecutionStarted", id: "c0", name: "echo", arguments: {} },
      { _tag: "ToolProgress", id: "c0", name: "echo", progress: 1 },
      { _tag: "ToolExecutionCompleted", id: "c0", name: "echo", result: { _tag: "Ok", value: 1 } }
    ]
    for (const event of events) assert.strictEqual(Collector.applyEvent(state, event), state, event._tag)
  })

  it("R-290: folding an event never changes the given state", () => {
    const events: ReadonlyArray<Event.Event> = [
      delta("a"),
      started("c0", "echo"),
      fragment("c0", "{\"x\":1}"),
      completed("c1", "echo", { y: 2 }),
      started("c1", "other"),
      encoded("c0", "1"),
      { _tag: "AskUserRequested", toolCallId: "c1", toolName: "ask", question: "?", opts: [] },
      failed("lost"),
      finished("stop", { metadata: { a: 1 } }),
      stepEnd(respond([]))
    ]
    let state = Collector.initial({ thread })
    for (const event of events) {
      const before = snapshot(state)
      const next = Collector.applyEvent(state, event)
      assert.deepStrictEqual(snapshot(state), before, event._tag)
      for (const other of events) Collector.applyEvent(state, other)
      assert.deepStrictEqual(snapshot(state), before, event._tag)
      state = next
    }
  })

  it("R-290: a fragment belongs to the call with the latest header, also in a branch", () => {
    const headers = [started("a", "x"), started("a", "y"), started("a", "x")]
    const branches = headers.map((header) => [...headers, header, fragment("a", "1")])
    for (const events of branches) {
      let state = Collector.initial({ thread })
      for (const event of events) state = Collector.applyEvent(state, event)
      const texts = Collector.toResponse(state).toolCalls.map(({ name, rawArguments = "" }) =>
        `${name}: ${rawArguments}`
      )
      assert.deepStrictEqual(texts, events.at(-2) === headers[1] ? ["x: ", "y: 1"] : ["x: 1", "y: "])
    }
  })

  it("R-290: a frozen state can be folded further, and a state is the same however its text was cut", () => {
    const pieces = Array.from({ length: 70 }, (_, index) => delta(`${index} `))
    const state = deepFreeze(pieces.reduce(Collector.applyEvent, Collector.initial({ thread })))
    const written = JSON.stringify(state)
    assert.strictEqual(Collector.toResponse(Collector.applyEvent(state, delta("end"))).outputText?.slice(-6), "69 end")
    assert.strictEqual(JSON.stringify(state), written)
    assert.deepStrictEqual(Collector.applyAll(Collector.initial({ thread }), pieces), state)
  })

  it("events folded at once, one by one and in place give the same state", () => {
    const events = [
      delta("a"),
      started("c0", "echo"),
      fragment("c0", "{}"),
      delta("b"),
      encoded("c0", "1"),
      failed("x")
    ]
    const single = events.reduce(Collector.applyEvent, Collector.initial({ thread }))
    const inPlace = Fold.initial(Policy.standard, { thread })
    assert.isTrue(Fold.apply(inPlace, events))
    assert.isFalse(Fold.apply(inPlace, [{ _tag: "ToolCallStarted", id: "c0", name: "echo" }]))
    assert.deepStrictEqual(snapshot(single), snapshot(fold(events)))
    assert.deepStrictEqual(snapshot(inPlace), snapshot(fold(events)))
  })
})

const snapshot = (state: Collector.State) =>
  JSON.stringify([Collector.toResponse(state), Collector.answers(state), Collector.halt(state), state.steps])

describe("Collector: text", () => {
  it("R-292, K-01: deltas are appended, and the completed text replaces the deltas", () => {
    assert.strictEqual(respond([delta("ab"), delta("c")]).outputText, "abc")
    const whole: Event.Event = { _tag: "TextCompleted", id: null, text: "AB!" }
    assert.strictEqual(respond([delta("ab"), delta("c"), whole]).outputText, "AB!")
    assert.strictEqual(respond([delta("ab"), whole, delta("?")]).outputText, "AB!?")
  })

  it("R-293: texts with different ids are joined into one text", () => {
    const events = [{ ...delta("a"), id: "1" }, { ...delta("b"), id: "2" }, { ...delta("c"), id: "1" }]
    assert.strictEqual(respond(events).outputText, "abc")
  })

  it("a reply without text has null, and an empty completed text is empty", () => {
    assert.isNull(respond([]).outputText)
    assert.strictEqual(respond([{ _tag: "TextCompleted", id: null, text: "" }]).outputText, "")
  })

  it("reasoning is kept apart from text", () => {
    const reasoning = (text: string): Event.Event => ({ _tag: "ReasoningDelta", id: null, delta: text })
    const response = respond([reasoning("h"), delta("a"), reasoning("m")])
    assert.strictEqual(response.reasoning, "hm")
    assert.strictEqual(response.outputText, "a")
  })
})

describe("Collector: the end of a message", () => {
  it("R-299: the end of a message sets the response's message, finish reason, usage, id, model and metadata", () => {
    const response = respond([
      finished("stop", {
        rawFinishReason: "end_turn",
        usage: Response.usage({ inputTokens: 3 }),
        responseId: "r1",
        model: "m1",
        metadata: { tier: "fast" }
      })
    ])
    assert.deepStrictEqual(response.message, Message.assistant("whole"))
    assert.strictEqual(response.finishReason, "stop")
    assert.strictEqual(response.rawFinishReason, "end_turn")
    assert.deepStrictEqual(response.usage, Response.usage({ inputTokens: 3 }))
    assert.strictEqual(response.id, "r1")
    assert.strictEqual(response.model, "m1")
    assert.deepStrictEqual(response.metadata, { tier: "fast" })
  })

  it("O-32: usage, id and model are fields of a message's end, and are never taken from its metadata", () => {
    const of = (fields: object) => {
      const { id, metadata, model, usage } = respond([finished("stop", fields as never)])
      return { id, metadata, model, usage }
    }
    const none = { id: null, metadata: {}, model: null, usage: null }
    const usage = Response.usage({ inputTokens: 3 })
    assert.deepStrictEqual(of({}), none)
    assert.deepStrictEqual(of({ usage }), { ...none, usage })
    assert.deepStrictEqual(of({ responseId: "r1" }), { ...none, id: "r1" })
    assert.deepStrictEqual(of({ model: "m1" }), { ...none, model: "m1" })
    const metadata = { usage: { inputTokens: 3 }, responseId: "r1", model: "m1" }
    assert.deepStrictEqual(of({ metadata }), { ...none, metadata })
    for (const odd of [5, null, "many", [1]]) {
      assert.deepStrictEqual(
        of({ usage: odd, responseId: odd === "many" ? null : odd, model: odd === "many" ? 1 : odd }),
        none
      )
    }
  })

  it("R-299: a null finish reason keeps the earlier reason, metadata is merged, and odd usage is ignored", () => {
    const response = respond([
      finished("length", { metadata: { a: 1 }, usage: Response.usage({ inputTokens: 1 }) }),
      finished(null, { metadata: { b: 2 }, usage: 5 as never })
    ])
    assert.strictEqual(response.finishReason, "length")
    assert.strictEqual(response.rawFinishReason, "length")
    assert.deepStrictEqual(response.metadata, { a: 1, b: 2 })
    assert.deepStrictEqual(response.usage, Response.usage({ inputTokens: 1 }))
  })

  it("R-348: an unknown finish reason becomes other, and its raw word is kept", () => {
    const response = respond([{ ...finished(null), finishReason: "pause_turn" }])
    assert.strictEqual(response.finishReason, "other")
    assert.strictEqual(response.rawFinishReason, "pause_turn")
  })

  it("R-300: a raw chunk with usage replaces the usage, and any other raw chunk is ignored", () => {
    const chunk = (value: unknown): Event.Event => ({ _tag: "RawChunk", chunk: value })
    const response = respond([
      chunk({ usage: { inputTokens: 1, outputTokens: 1 } }),
      chunk({ usage: { inputTokens: 2 } }),
      chunk({ other: 1 }),
      chunk(null)
    ])
    assert.deepStrictEqual(response.usage, Response.usage({ inputTokens: 2 }))
  })

  it("R-303: usage with unknown keys never breaks the fold", () => {
    const response = respond([
      { _tag: "RawChunk", chunk: { usage: { inputTokens: 1, audio: 2 } } },
      finished("stop")
    ])
    assert.deepStrictEqual(response.usage?.extra, { audio: 2 })
    assert.strictEqual(response.finishReason, "stop")
  })

  it("a response has the request id given at the start of the fold", () => {
    assert.strictEqual(respond([], { requestId: "q" }).requestId, "q")
    assert.isNull(respond([], {}).requestId)
  })
})

describe("Collector: errors", () => {
  it("R-304: an error sets finish reason error, and later events still fold", () => {
    const response = respond([delta("par"), failed("lost"), delta("tial")])
    assert.strictEqual(response.error, "lost")
    assert.strictEqual(response.finishReason, "error")
    assert.strictEqual(response.outputText, "partial")
  })

  it("R-304: an error with value undefined is an error", () => {
    assert.property(respond([failed(undefined)]), "error")
    assert.notProperty(respond([]), "error")
  })

  it("R-309, R-250: a finish reason does not hide an error of its message", () => {
    const events = [failed("lost"), finished("stop")]
    assert.strictEqual(respond(events).finishReason, "error")
    assert.strictEqual(respond(events).rawFinishReason, "stop")
    const allm = respond(events, { policy: Policy.allm })
    assert.strictEqual(allm.finishReason, "stop")
    assert.strictEqual(allm.error, "lost")
  })

  it("R-309, K-08: an error does not leak into the next step", () => {
    const state = fold([failed("lost"), stepEnd(respond([failed("lost")])), delta("fine"), finished("stop")])
    const response = Collector.toResponse(state)
    assert.notProperty(response, "error")
    assert.strictEqual(response.finishReason, "stop")
  })
})

describe("Collector: work", () => {
  const many = 50_000

  /** How often a fold looks at its events, and how often it parses. */
  const work = (events: ReadonlyArray<Event.Event>) => {
    let reads = 0
    const watched = events.map((event) =>
      new Proxy(event, {
        get: (target, key) => {
          reads++
          return Reflect.get(target, key)
        }
      })
    )
    const parse = JSON.parse
    let parses = 0
    JSON.parse = (...args: Parameters<typeof parse>) => {
      parses++
      return parse(...args)
    }
    try {
      const state = Fold.initial(Policy.standard, { thread })
      Fold.apply(state, watched)
      const whileFolding = parses
      const response = Collector.toResponse(state)
      return { reads, whileFolding, parses, response }
    } finally {
      JSON.parse = parse
    }
  }

  it("R-290, R-353: the fold reads each event a fixed number of times, and parses each call once, at the end", () => {
    const events: ReadonlyArray<Event.Event> = [
      started("c0", "echo"),
      fragment("c0", "{\"x\":\""),
      ...Array.from({ length: many }, () => fragment("c0", "y")),
      fragment("c0", "\"}"),
      ...Array.from({ length: many }, () => delta("z"))
    ]
    const { parses, reads, response, whileFolding } = work(events)
    assert.isAtMost(reads / events.length, 8)
    assert.strictEqual(whileFolding, 0)
    assert.strictEqual(parses, 1)
    assert.deepStrictEqual(response.toolCalls[0]?.arguments, { x: "y".repeat(many) })
    assert.strictEqual(response.outputText, "z".repeat(many))
  })

  it("R-353: folding a single text event leaves the lists of the state unchanged", () => {
    const state = Fold.applied(Fold.initial(Policy.standard), [completed("c0", "echo"), encoded("c0", "1")])
    const next = Fold.applied(state, [delta("a")])
    assert.notStrictEqual(next, state)
    assert.strictEqual(next.calls, state.calls)
    assert.strictEqual(next.tools, state.tools)
    assert.strictEqual(next.steps, state.steps)
  })
})
