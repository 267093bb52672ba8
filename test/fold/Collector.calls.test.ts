/**
 * The fold of tool calls: headers, fragments and completed calls come to one list of calls with ids of their own, in the
 * order in which the model opened them.
 */
import { assert, describe, it } from "@effect/vitest"
import { Collector, type Event, type Message, Policy } from "heddle"
import * as Fold from "../../src/internal/fold/fold.ts"
import { completed, delta, finished, fold, fragment, respond, started, thread } from "../support/folds.ts"

const callsOf = (events: ReadonlyArray<unknown>, policy: Policy.Policy = Policy.standard) =>
  respond(events, { policy }).toolCalls

/** What matters of a call: its id, its name, and its arguments or how they were lost. */
const brief = (calls: ReadonlyArray<Message.ToolCall>) =>
  calls.map((call) => [call.id, call.name, call.argumentsLost ?? call.arguments])

describe("Collector: calls", () => {
  it("R-294: a start opens a call, and a second start of the same name changes nothing", () => {
    const state = fold([started("a", "echo")])
    assert.deepStrictEqual(Collector.toResponse(state).toolCalls.map((call) => [call.id, call.name]), [["a", "echo"]])
    assert.strictEqual(Collector.applyEvent(state, started("a", "echo")), state)
  })

  it("R-295, K-03: a fragment of an unseen id opens a call without a name, and a later start names the call", () => {
    assert.deepStrictEqual(brief(callsOf([fragment("a", "{\"x\":1}")])), [["a", "", { x: 1 }]])
    assert.deepStrictEqual(brief(callsOf([fragment("a", "{\"x\":1}"), started("a", "echo")])), [["a", "echo", {
      x: 1
    }]])
  })

  it("R-296: a completed call replaces its fragments, and calls keep their opening order", () => {
    const calls = callsOf([
      started("a", "echo"),
      started("b", "echo"),
      fragment("a", "{\"old\":"),
      completed("b", "echo", { x: 2 }),
      completed("a", "echo", { x: 1 })
    ])
    assert.deepStrictEqual(brief(calls), [["a", "echo", { x: 1 }], ["b", "echo", { x: 2 }]])
    assert.strictEqual(calls[0]?.rawArguments, "{\"x\":1}")
  })

  it("R-296, K-04: a call completed twice is one call with the last payload at the first position", () => {
    const calls = callsOf([
      completed("a", "echo", { x: 1 }, { metadata: { first: true }, argumentsLost: "json_decode_error" }),
      completed("b", "echo"),
      completed("a", "echo", { x: 2 }, { metadata: { second: true } })
    ])
    assert.deepStrictEqual(brief(calls), [["a", "echo", { x: 2 }], ["b", "echo", {}]])
    assert.deepStrictEqual(calls[0]?.metadata, { second: true })
  })

  it("arguments that arrive as null are empty, and arguments other than objects are lost", () => {
    const odd = (args: unknown) => ({ ...completed("a", "echo"), arguments: args })
    assert.deepStrictEqual(brief(callsOf([odd(null)])), [["a", "echo", {}]])
    for (const args of ["{}", [1], 42, true]) {
      const [call] = callsOf([odd(args)])
      assert.strictEqual(call?.argumentsLost, "not_an_object")
      assert.deepStrictEqual(call?.arguments, {})
    }
  })

  it("the metadata, argument loss and provider execution that an adapter reports are kept", () => {
    const [call] = callsOf([
      completed("a", "echo", {}, { metadata: { s: 1 }, argumentsLost: "missing_fragments", providerExecuted: true })
    ])
    assert.deepInclude(call, { metadata: { s: 1 }, argumentsLost: "missing_fragments", providerExecuted: true })
    assert.deepStrictEqual(Object.keys(callsOf([completed("a", "echo")])[0]!).toSorted(), [
      "arguments",
      "id",
      "metadata",
      "name",
      "rawArguments"
    ])
  })

  it("a fragment after its call's completion changes nothing", () => {
    const state = fold([completed("a", "echo", { x: 1 })])
    assert.strictEqual(Collector.applyEvent(state, fragment("a", "junk")), state)
  })
})

describe("Collector: one id for two calls", () => {
  it("R-297: a completion under another name opens a separate call, with a new id and the original one in `duplicateOf`", () => {
    const calls = callsOf([completed("x", "read", { p: 1 }), completed("x", "write", { p: 2 })])
    assert.deepStrictEqual(brief(calls), [["x", "read", { p: 1 }], ["x_2", "write", { p: 2 }]])
    assert.deepStrictEqual(calls.map((call) => call.metadata), [{}, { duplicateOf: "x" }])
  })

  it("R-297: a start after completion opens a separate call, also under the same name", () => {
    const calls = callsOf([
      started("x", "read"),
      completed("x", "read", { p: 1 }),
      started("x", "read"),
      fragment("x", "{\"p\":2}"),
      completed("x", "read", { p: 2 })
    ])
    assert.deepStrictEqual(brief(calls), [["x", "read", { p: 1 }], ["x_2", "read", { p: 2 }]])
  })

  it("R-297: two open calls under one id are completed by their names", () => {
    const calls = callsOf([
      started("x", "read"),
      started("x", "write"),
      completed("x", "read", { p: 1 }),
      completed("x", "write", { p: 2 })
    ])
    assert.deepStrictEqual(brief(calls), [["x", "read", { p: 1 }], ["x_2", "write", { p: 2 }]])
  })

  it("R-297, R-343: fragments after a repeated header belong to the header's call", () => {
    const calls = callsOf([
      started("x", "read"),
      fragment("x", "{\"p\":"),
      started("x", "write"),
      fragment("x", "{\"q\":2}"),
      started("x", "read"),
      fragment("x", "1}")
    ])
    assert.deepStrictEqual(brief(calls), [["x", "read", { p: 1 }], ["x_2", "write", { q: 2 }]])
  })

  it("R-297: a fresh id never equals an id of the wire, whichever comes first", () => {
    const first = callsOf([completed("x_2", "a"), completed("x", "b"), completed("x", "c")])
    assert.deepStrictEqual(first.map((call) => call.id), ["x_2", "x", "x_3"])
    const last = callsOf([
      completed("x", "b"),
      completed("x", "c"),
      completed("x_2", "a"),
      completed("x_2", "a", { p: 1 })
    ])
    assert.deepStrictEqual(brief(last), [["x", "b", {}], ["x_2", "c", {}], ["x_2_2", "a", { p: 1 }]])
  })

  it("R-297: a thousand calls under one id get a thousand ids", () => {
    const events = Array.from({ length: 1000 }, (_, index) => completed("x", `t${index}`))
    const ids = callsOf(events).map((call) => call.id)
    assert.strictEqual(new Set(ids).size, 1000)
    assert.deepStrictEqual([ids[0], ids[1], ids[999]], ["x", "x_2", "x_1000"])
  })
})

describe("Collector: a repeated completion", () => {
  it("R-297: a repeated completion opens no further call, whether its arguments are repeated, null or absent", () => {
    const again = [undefined, null, "{}"].map((rawArguments) => ({ ...completed("a", "echo"), rawArguments }))
    for (const first of again) {
      for (const second of again) {
        // Arguments that were not there before are another call's.
        if (second.rawArguments === "{}" && first.rawArguments !== "{}") continue
        const state = Fold.initial(Policy.standard, { thread })
        Fold.apply(state, [first as Event.Event])
        assert.isDefined(state.calls.take(first as Event.Of<"ToolCallCompleted">), String(first.rawArguments))
        Fold.apply(state, [second as Event.Event])
        assert.deepStrictEqual(brief(Collector.toResponse(state).toolCalls), [["a", "echo", {}]])
      }
    }
  })
})

describe("Collector: arguments in fragments", () => {
  const fragments: ReadonlyArray<Event.Event> = [started("a", "echo"), fragment("a", "{\"a\":"), fragment("a", "1}")]

  it("R-298, K-02: fragments are parsed at the end of the message, and allm leaves the arguments empty", () => {
    assert.deepStrictEqual(brief(callsOf(fragments)), [["a", "echo", { a: 1 }]])
    const [call] = callsOf(fragments, Policy.allm)
    assert.deepStrictEqual(call?.arguments, {})
    assert.strictEqual(call?.rawArguments, "{\"a\":1}")
    assert.notProperty(call, "argumentsLost")
  })

  it("R-298, R-339, R-340: unreadable arguments are lost with a reason", () => {
    const lost = (...events: ReadonlyArray<Event.Event>) => callsOf([started("a", "echo"), ...events])[0]?.argumentsLost
    assert.strictEqual(lost(), "missing_fragments")
    assert.strictEqual(lost(fragment("a", "{\"a\":")), "json_decode_error")
    assert.strictEqual(lost(fragment("a", "[1]")), "not_an_object")
    assert.strictEqual(lost(fragment("a", "null")), "not_an_object")
    assert.isUndefined(lost(fragment("a", "")), "an empty text is a call without parameters")
    assert.isUndefined(lost(fragment("a", " {} ")))
  })

  it("R-298: arguments in a thousand fragments are the same, however many fragments are folded at once", () => {
    const json = (id: string) => JSON.stringify({ id, text: "abcdefghi ".repeat(100) })
    const wire = Array.from(json("a"), (piece, index) => [fragment("a", piece), fragment("b", json("b")[index] ?? "")])
    const events = [started("a", "echo"), started("b", "echo"), ...wire.flat()]
    const whole = fold(events)
    const expected = ["a", "b"].map((id) => [id, "echo", JSON.parse(json(id))])
    for (const size of [1, 7, 64, 65]) {
      let state = Collector.initial({ thread })
      const states: Array<readonly [Collector.State, string]> = []
      for (let index = 0; index < events.length; index += size) {
        state = Collector.applyAll(state, events.slice(index, index + size))
        if (index % 91 === 0) states.push([state, Collector.toResponse(state).toolCalls[0]?.rawArguments ?? ""])
      }
      assert.deepStrictEqual(state, whole, `${size} at a time`)
      assert.deepStrictEqual(brief(Collector.toResponse(state).toolCalls), expected)
      for (const [seen, text] of states) {
        assert.strictEqual(
          Collector.toResponse(seen).toolCalls[0]?.rawArguments ?? "",
          text,
          "a state stays what it was"
        )
        assert.isTrue(json("a").startsWith(text))
      }
    }
    const owned = Fold.initial(Policy.standard, { thread })
    for (const event of events) {
      Fold.apply(owned, [event])
      if (event === events[90]) assert.strictEqual(Collector.toResponse(owned).toolCalls[0]?.rawArguments?.length, 45)
    }
    assert.deepStrictEqual(Collector.toResponse(owned), Collector.toResponse(whole))
    const ended = [
      completed("a", "echo", JSON.parse(json("a"))),
      completed("b", "echo", { x: 1 }, { rawArguments: "{}" })
    ]
    Fold.apply(owned, ended)
    assert.deepStrictEqual(Collector.toResponse(owned), Collector.toResponse(fold([...events, ...ended])))
    assert.deepStrictEqual(Collector.toResponse(owned).toolCalls.map((call) => call.rawArguments), [json("a"), "{}"])
  })

  it("R-357: after finish reason length only completed calls keep their arguments", () => {
    const calls = callsOf([...fragments, completed("b", "echo", { x: 1 }), finished("length")])
    assert.deepStrictEqual(brief(calls), [["a", "echo", "truncated"], ["b", "echo", { x: 1 }]])
    assert.deepStrictEqual(calls[0]?.arguments, {})
  })

  it("__proto__ in a model's arguments is dropped in every spelling", () => {
    for (const key of ["__proto__", "\\u005f_proto__", "__pr\\u006Fto__"]) {
      const [call] = callsOf([fragment("a", `{"x":{"${key}":{"admin":true}},"${key}":{"admin":true},"b":1}`)])
      assert.deepStrictEqual(Object.keys(call!.arguments), ["x", "b"], key)
      assert.deepStrictEqual(Object.keys(call!.arguments["x"] as object), [], key)
      assert.isUndefined(({} as Record<string, unknown>)["admin"])
    }
  })
})

describe("Collector: the effective finish reason", () => {
  it("R-141, R-344: calls take precedence over the finish reasons stop, other and null, except under allm", () => {
    const finishOf = (reason: Parameters<typeof finished>[0], policy = Policy.standard) =>
      respond([completed("a", "echo"), finished(reason)], { policy }).finishReason
    assert.strictEqual(finishOf("stop"), "tool_calls")
    assert.strictEqual(finishOf("other"), "tool_calls")
    assert.strictEqual(finishOf(null), "tool_calls")
    assert.strictEqual(finishOf("length"), "length")
    assert.strictEqual(finishOf("content_filter"), "content_filter")
    assert.strictEqual(finishOf("stop", Policy.allm), "stop")
    assert.isNull(finishOf(null, Policy.allm))
  })

  it("R-332, R-344: provider-executed calls do not change the finish reason", () => {
    const theirs = completed("a", "search", {}, { providerExecuted: true })
    assert.strictEqual(respond([theirs, finished("stop")]).finishReason, "stop")
    assert.strictEqual(respond([theirs, completed("b", "echo"), finished("stop")]).finishReason, "tool_calls")
    assert.isNull(respond([delta("a")]).finishReason)
  })

  it("R-310: a step is done by its finish reason under allm, and otherwise by having no calls to run", () => {
    const done = (reason: Parameters<typeof finished>[0], hasCall: boolean, policy: Policy.Policy) =>
      Collector.isDone(policy, respond([...(hasCall ? [completed("a", "echo")] : []), finished(reason)], { policy }))
    const reasons = ["stop", "length", "content_filter", "error", "tool_calls", "other", null] as const
    const all = (hasCall: boolean, policy: Policy.Policy) => reasons.map((reason) => done(reason, hasCall, policy))
    assert.deepStrictEqual(all(true, Policy.allm), [true, true, true, true, false, false, false])
    assert.deepStrictEqual(all(false, Policy.allm), [true, true, true, true, false, false, false])
    assert.deepStrictEqual(all(true, Policy.standard), [false, false, true, true, false, false, false])
    assert.deepStrictEqual(all(false, Policy.standard), [true, true, true, true, true, true, true])
  })
})
