/**
 * Classification of events in hand: whether they ask for tools, which calls they hold and what became of the arguments.
 * Whatever order the wire chose, it agrees with the response that the same events fold into.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Collector, type Event, Message, Policy } from "heddle"
import { completed, delta, failed, finished, fragment, respond, started } from "../support/folds.ts"
import { shareOf } from "../support/property.ts"

const thought = (text: string): Event.Event => ({ _tag: "ReasoningDelta", id: null, delta: text })

const classify = (...events: ReadonlyArray<Event.Event>) => Collector.classify(events)

/** What matters of a call: its id, its name, and its arguments or how they were lost. */
const brief = (calls: ReadonlyArray<Message.ToolCall>) =>
  calls.map((call) => [call.id, call.name, call.argumentsLost ?? call.arguments])

describe("the type of a reply", () => {
  it("R-330, I-01: a header and its fragments make a reply of type tool_calls, although no end was reported", () => {
    const found = classify(
      started("call_1", "get_weather"),
      fragment("call_1", "{\"ci"),
      fragment("call_1", "ty\":\"Oslo\"}")
    )
    assert.strictEqual(found.type, "tool_calls")
    assert.deepStrictEqual(brief(found.toolCalls), [["call_1", "get_weather", { city: "Oslo" }]])
    assert.deepStrictEqual(found.diagnostics, [])
  })

  it("R-333, I-09: a reply without events is an empty final answer", () => {
    assert.deepStrictEqual(classify(), {
      type: "final_answer",
      text: "",
      thinking: "",
      toolCalls: [],
      finishReason: null,
      diagnostics: []
    })
  })

  it("R-331, R-344, I-08: calls outweigh finish reason stop, and text and thinking stay apart", () => {
    const found = classify(delta("h"), thought("t"), delta("m"), completed("a", "echo"), finished("stop"))
    const { finishReason, text, thinking, type } = found
    assert.deepStrictEqual([type, text, thinking, finishReason], ["tool_calls", "hm", "t", "tool_calls"])
  })

  it("R-334: the completed text replaces its deltas, and empty pieces and unknown events are ignored", () => {
    const odd = [{ _tag: "Nonsense", delta: "x" }, { _tag: "TextDelta" }, null, { _tag: "RawChunk", chunk: {} }]
    const events = [delta("a"), ...odd as ReadonlyArray<any>, { _tag: "TextCompleted", id: null, text: "A" } as const]
    assert.strictEqual(Collector.classify(events).text, "A")
    assert.strictEqual(classify({ _tag: "TextDelta", id: null, delta: null as never }).text, "")
  })

  it("R-332, I-10: a provider-executed call is listed, and its reply is a final answer", () => {
    const found = classify(completed("a", "web_search", {}, { providerExecuted: true }), finished("stop"))
    assert.deepStrictEqual([found.type, found.finishReason], ["final_answer", "stop"])
    assert.deepStrictEqual(brief(found.toolCalls), [["a", "web_search", {}]])
    const both = classify(completed("a", "web_search", {}, { providerExecuted: true }), completed("b", "echo"))
    assert.strictEqual(both.type, "tool_calls")
  })

  it("R-331, I-11: finish reason tool_calls without a call is reported, and decides only under a policy that trusts finish reasons", () => {
    const found = classify(finished("tool_calls"))
    assert.deepStrictEqual([found.type, found.diagnostics], ["final_answer", [{ _tag: "NoToolCalls" }]])
    assert.strictEqual(Collector.classify([finished("tool_calls")], { policy: Policy.allm }).type, "tool_calls")
    const calls = [completed("a", "echo"), finished("stop")]
    assert.strictEqual(Collector.classify(calls, { policy: Policy.allm }).type, "final_answer")
  })

  it("R-331: a broken or filtered reply is a final answer, whatever calls it contains", () => {
    assert.strictEqual(classify(completed("a", "echo"), failed("no")).type, "final_answer")
    assert.strictEqual(classify(completed("a", "echo"), finished("content_filter")).type, "final_answer")
    assert.strictEqual(classify(failed("no"), finished("stop")).finishReason, "error")
    const policy = { ...Policy.standard, adapterErrors: "lastWins" } as const
    assert.strictEqual(Collector.classify([failed("no"), finished("stop")], { policy }).finishReason, "stop")
  })

  it("R-346: the latest end of a message decides, and an end without a reason changes nothing", () => {
    assert.strictEqual(classify(finished("stop"), finished("length")).finishReason, "length")
    assert.strictEqual(classify(finished("length"), finished(null)).finishReason, "length")
    assert.strictEqual(classify(finished("finished" as never)).finishReason, "other")
  })
})

describe("the calls of a reply", () => {
  it("R-335, R-337, I-02: interleaved fragments are kept apart, and calls keep their opening order", () => {
    const found = classify(
      started("b", "second"),
      started("a", "first"),
      fragment("b", "{\"x\":"),
      fragment("a", "{\"y\":"),
      fragment("b", "1}"),
      fragment("a", "2}"),
      finished("tool_calls")
    )
    assert.deepStrictEqual(brief(found.toolCalls), [["b", "second", { x: 1 }], ["a", "first", { y: 2 }]])
  })

  it("R-336, I-03: headers without an id get distinct ids", () => {
    const { toolCalls } = classify(completed("", "echo"), completed("", "echo"), started("", "other"))
    const ids = toolCalls.map(({ id }) => id)
    assert.isTrue(ids.every((id) => id !== ""))
    assert.strictEqual(new Set(ids).size, ids.length)
  })

  it("R-336, R-338, I-13, I-14: a call that never gets a name is ignored", () => {
    const found = classify(fragment("x", "{\"a\":1}"), started("y", ""), finished("stop"))
    assert.deepStrictEqual([found.type, found.toolCalls, found.diagnostics], ["final_answer", [], []])
  })

  it("R-338, I-21: a header may come after its fragments", () => {
    const found = classify(fragment("a", "{\"x\":"), fragment("a", "1}"), started("a", "echo"))
    assert.deepStrictEqual(brief(found.toolCalls), [["a", "echo", { x: 1 }]])
  })

  it("R-341, I-07: the first fragment after a header begins the arguments", () => {
    const found = classify(started("a", "echo"), fragment("a", "{"), fragment("a", "\"x\":1}"))
    assert.deepStrictEqual(brief(found.toolCalls), [["a", "echo", { x: 1 }]])
  })

  it("R-343, I-12: two headers with one id are two calls, each with its own fragments", () => {
    const found = classify(
      started("a", "first"),
      fragment("a", "{\"x\":1}"),
      started("a", "second"),
      fragment("a", "{\"y\":2}")
    )
    assert.deepStrictEqual(brief(found.toolCalls), [["a", "first", { x: 1 }], ["a_2", "second", { y: 2 }]])
  })

  it("R-342: metadata that the wire attaches to a call is kept, also when it arrives with the end of the message", () => {
    const early = completed("a", "echo", {}, { metadata: { gemini: { thoughtSignature: "s" } } })
    assert.deepStrictEqual(classify(early).toolCalls[0]?.metadata, { gemini: { thoughtSignature: "s" } })
    const toolCalls = [
      { ...Message.toolCall("a", "echo"), metadata: { late: 1 } },
      { ...Message.toolCall("b", "echo"), metadata: { nobody: 1 } },
      { ...Message.toolCall("a", "other"), metadata: { misnamed: 1 } }
    ]
    const message = Message.assistant("", toolCalls)
    const described = classify(early, finished("tool_calls", { message })).toolCalls
    assert.deepStrictEqual(described.map(({ metadata }) => metadata), [{ gemini: { thoughtSignature: "s" }, late: 1 }])
    const odd = { ...message, toolCalls: [null, 1, { id: "a", name: "echo", metadata: "x" }] } as never
    assert.strictEqual(classify(early, finished("tool_calls", { message: odd })).toolCalls.length, 1)
    const response = respond([early, finished("tool_calls", { message })])
    assert.deepStrictEqual(response.toolCalls, described)
  })
})

describe("lost arguments", () => {
  const lostOf = (...events: ReadonlyArray<Event.Event>) => {
    const { diagnostics, toolCalls } = classify(...events)
    return [brief(toolCalls), diagnostics] as ReadonlyArray<unknown>
  }

  it("R-339, R-359, I-04: arguments other than JSON are lost, affect no other call and are reported by their length", () => {
    const secret = "{\"key\":\"sk-sécret"
    const [calls, diagnostics] = lostOf(
      started("a", "first"),
      started("b", "second"),
      fragment("a", secret),
      fragment("b", "{\"b\":2}"),
      finished("tool_calls")
    )
    assert.deepStrictEqual(calls, [["a", "first", "json_decode_error"], ["b", "second", { b: 2 }]])
    const bytes = new TextEncoder().encode(secret).length
    const told = { _tag: "ArgumentsLost", id: "a", name: "first", reason: "json_decode_error", bytes }
    assert.deepStrictEqual(diagnostics, [told])
    assert.notInclude(JSON.stringify(diagnostics), "cret")
  })

  it("R-359: the length of lost arguments counts UTF-8 bytes", () => {
    for (const text of ["", "a", "é", "한", "🌤", "\ud83c", "\ud83cx", "🌤é"]) {
      const [diagnostic] = classify(completed("a", "echo", {}, { rawArguments: text, argumentsLost: "truncated" }))
        .diagnostics
      const { bytes } = diagnostic as { readonly bytes: number }
      assert.strictEqual(bytes, new TextEncoder().encode(text).length, text)
    }
  })

  it("M-34, R-340, I-05, I-06: a call without fragments has empty arguments, and lost arguments in a reply that never ended", () => {
    assert.deepStrictEqual(lostOf(started("a", "echo"), fragment("a", "")), [[["a", "echo", {}]], []])
    assert.deepStrictEqual(lostOf(started("a", "echo"), finished("tool_calls")), [[["a", "echo", {}]], []])
    const missing = { _tag: "ArgumentsLost", id: "a", name: "echo", reason: "missing_fragments", bytes: 0 }
    assert.deepStrictEqual(lostOf(started("a", "echo")), [[["a", "echo", "missing_fragments"]], [missing]])
    assert.deepStrictEqual(lostOf(completed("a", "echo")), [[["a", "echo", {}]], []])
  })

  it("R-339, I-17: JSON arguments other than objects are lost", () => {
    for (const text of ["[1]", "\"x\"", "1", "true"]) {
      assert.deepStrictEqual(lostOf(started("a", "echo"), fragment("a", text))[0], [["a", "echo", "not_an_object"]])
    }
  })

  it("R-357, I-18: arguments cut at finish reason length are lost as truncated, and under tool_calls as undecodable", () => {
    const cut = [started("a", "echo"), fragment("a", "{\"p\":\"x")]
    assert.deepStrictEqual(lostOf(...cut, finished("length"))[0], [["a", "echo", "truncated"]])
    assert.deepStrictEqual(lostOf(...cut, finished("tool_calls"))[0], [["a", "echo", "json_decode_error"]])
    assert.strictEqual(classify(...cut, finished("length")).type, "tool_calls")
  })

  it("R-345: a policy may run a call with its header's arguments", () => {
    const policy = { ...Policy.standard, badArguments: "runWithHeaderArguments" } as const
    const { diagnostics, toolCalls } = Collector.classify([started("a", "echo"), fragment("a", "{\"p\"")], { policy })
    assert.deepStrictEqual([brief(toolCalls), diagnostics], [[["a", "echo", {}]], []])
  })

  it("R-352: no text of arguments makes the classification throw", () => {
    for (
      const text of ["{", "}", "\u0000", "\ud800", "{\"__proto__\":1}", "[".repeat(10_000), "NaN", "{'a':1}", "//"]
    ) {
      assert.strictEqual(classify(started("a", "echo"), fragment("a", text)).toolCalls.length, 1, text)
    }
  })
})

describe("classified events", () => {
  const events = [delta("a"), completed("b", "echo")]

  it("R-330: any iterable of events can be classified", () => {
    const expected = Collector.classify(events)
    function* generated() {
      yield* events
    }
    assert.deepStrictEqual(Collector.classify(new Set(events)), expected)
    assert.deepStrictEqual(Collector.classify(generated()), expected)
    assert.deepStrictEqual(Collector.classify({ [Symbol.iterator]: generated }), expected)
  })

  it("R-354, I-20: events that can be read once fail on a second reading, and events in a list can be read again", () => {
    function* generated() {
      yield* events
    }
    const once = generated()
    Collector.classify(once)
    assert.throws(() => Collector.classify(once), "these events have been read already")
    const iterator = events[Symbol.iterator]()
    Collector.classify(iterator)
    assert.throws(() => Collector.classify(iterator))
    assert.deepStrictEqual(Collector.classify(events), Collector.classify(events))
  })

  it("R-353, I-19: 50,000 fragments of one character are parsed once", () => {
    const text = JSON.stringify({ text: "x".repeat(49_989) })
    const parse = JSON.parse
    let parsed = 0
    JSON.parse = (source: string, reviver?: Parameters<typeof parse>[1]) => {
      parsed += source.length
      return parse(source, reviver)
    }
    try {
      const { toolCalls } = classify(started("a", "note"), ...[...text].map((letter) => fragment("a", letter)))
      assert.strictEqual((toolCalls[0]!.arguments["text"] as string).length, 49_989)
    } finally {
      JSON.parse = parse
    }
    assert.isAtMost(parsed, 2 * text.length)
  })
})

// ---------------------------------------------------------------------------------------------------------------------
// agreement

const oneOf = <const A>(...values: ReadonlyArray<A>): Arbitrary.Arbitrary<A> =>
  Arbitrary.map(Arbitrary.schema(Schema.Literals(values.map((_, index) => index))), (index) => values[index] as A)

const pieces = Arbitrary.all({
  kind: oneOf(
    "text",
    "whole",
    "thought",
    "start",
    "start",
    "fragment",
    "fragment",
    "complete",
    "server",
    "end",
    "fail"
  ),
  text: oneOf("a", "{\"x\":", "1}", "{}", "", "[1]"),
  id: oneOf("a", "b", ""),
  name: oneOf("echo", "other", ""),
  reason: oneOf("stop", "tool_calls", "length", "content_filter", "other", null)
})

type Piece = typeof pieces extends Arbitrary.Arbitrary<infer A> ? A : never

const eventOf = ({ id, kind, name, reason, text }: Piece): Event.Event => {
  switch (kind) {
    case "text":
      return delta(text)
    case "whole":
      return { _tag: "TextCompleted", id: null, text }
    case "thought":
      return thought(text)
    case "start":
      return started(id, name)
    case "fragment":
      return fragment(id, text)
    case "complete":
      return completed(id, name, { text }, { metadata: { text } })
    case "server":
      return completed(id, name, {}, { providerExecuted: true })
    case "end":
      return finished(reason, {
        message: Message.assistant("", [{ ...Message.toolCall(id, name), metadata: { late: text } }])
      })
    case "fail":
      return failed(text)
  }
}

describe("classification and fold", () => {
  it.effect.prop(
    "R-330, R-355: a classification equals the fold of the same events",
    [Arbitrary.array(pieces, { minLength: 0, maxLength: 12 }), oneOf(Policy.standard, Policy.allm)],
    ([generated, policy]) =>
      Effect.sync(() => {
        const events = generated.map(eventOf)
        const found = Collector.classify(events, { policy })
        const response = respond(events, { policy })
        assert.deepStrictEqual(found.toolCalls, response.toolCalls.filter(({ name }) => name !== ""))
        assert.strictEqual(found.finishReason, response.finishReason)
        assert.strictEqual(found.text, response.outputText ?? "")
        assert.strictEqual(found.thinking, response.reasoning)
        assert.strictEqual(found.type === "tool_calls", Collector.isToolTurn(policy, response))
      }),
    { arbitrary: { runs: shareOf(1000) } }
  )
})
