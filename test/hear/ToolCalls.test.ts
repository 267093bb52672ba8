/**
 * Calls gathered from fragments: ids that are unique, arguments that are read once and marked as lost, and the fold, which
 * gathers the same calls from the events that adapters emit.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Schema from "effect/Schema"
import type { Event } from "heddle"
import * as ToolCalls from "../../src/internal/hear/toolCalls.ts"

type Emitted = Array<Extract<Event.AdapterEvent, { readonly id: string }>>

const wire = () => {
  let made = 0
  return new ToolCalls.WireCalls(() => `made_${++made}`, "test")
}

/** The calls that the fold gathers from events. */
const folded = (events: Emitted, ending: ToolCalls.Ending = "whole") => {
  const calls = new ToolCalls.EventCalls()
  for (const event of events) {
    if (event._tag === "ToolCallStarted") calls.started(event.id, event.name)
    if (event._tag === "ToolCallDelta") calls.delta(event.id, event.argumentsDelta)
    if (event._tag === "ToolCallCompleted") calls.completed(event)
  }
  return calls.toToolCalls({ parse: true, ending })
}

const lostOf = (text: string, ending: ToolCalls.Ending, isCut = false): string | undefined => {
  const calls = wire()
  const out: Emitted = []
  const call = calls.open("a")
  calls.name(call, "note", out)
  if (text !== "") calls.append(call, text, out)
  calls.end(call, ending, isCut, out)
  return calls.completed[0]!.argumentsLost
}

describe("unique call ids", () => {
  it("R-297: no two calls of a reply have the same id, and no made id is longer than servers accept", () => {
    const ids = new ToolCalls.UniqueIds()
    assert.deepStrictEqual(["a", "a", "a_2", "a", "b"].map((id) => ids.take(id)), ["a", "a_2", "a_2_2", "a_3", "b"])
    const long = "x".repeat(60)
    const taken = Array.from({ length: 50 }, () => ids.take(long)).slice(1)
    assert.strictEqual(new Set(taken).size, 49)
    assert.isTrue(taken.every((id) => id.length <= 40))
    assert.deepStrictEqual([ids.number("call_0", 1), ids.number("call_0", 1)], ["call_0_1", "call_0_2"])
  })

  it("a made id splits no surrogate pair", () => {
    const ids = new ToolCalls.UniqueIds()
    const odd = `${"x".repeat(37)}🌤tail`
    ids.take(odd)
    assert.strictEqual(ids.take(odd), `${"x".repeat(37)}_2`)
  })

  it("a copy of UniqueIds is independent of its original", () => {
    const ids = new ToolCalls.UniqueIds()
    ids.take("a")
    const copy = new ToolCalls.UniqueIds(ids)
    assert.deepStrictEqual([copy.take("a"), ids.take("a")], ["a_2", "a_2"])
  })
})

describe("calls from the wire", () => {
  it("R-336: a call starts once it has its name, with its earlier fragments, and completes once", () => {
    const calls = wire()
    const out: Emitted = []
    const call = calls.open(undefined)
    calls.append(call, "{\"a\":", out)
    assert.deepStrictEqual(out, [])
    calls.name(call, "note", out)
    calls.append(call, "1}", out)
    assert.isTrue(calls.settle(call, out))
    calls.end(call, "truncated", true, out)
    assert.deepStrictEqual(out.map(({ _tag }) => _tag), [
      "ToolCallStarted",
      "ToolCallDelta",
      "ToolCallDelta",
      "ToolCallCompleted"
    ])
    assert.deepStrictEqual(calls.completed.map(({ arguments: args, id }) => [id, args]), [["made_1", { a: 1 }]])
  })

  it("a fragment that adds to a completed call is refused, and a repeating fragment is accepted", () => {
    const calls = wire()
    const out: Emitted = []
    const call = calls.open("a")
    calls.name(call, "note", out)
    calls.append(call, "{}", out)
    calls.close(call, false, out)
    assert.deepStrictEqual(["", " ", "{}", "{\"b\":1}"].map((text) => calls.append(call, text, out)), [
      true,
      true,
      true,
      false
    ])
  })

  it("R-339, R-340, R-352: incomplete arguments are lost, with the reason of the loss", () => {
    assert.deepStrictEqual(
      [
        lostOf("{}", "whole"),
        lostOf("", "whole"),
        lostOf("null", "whole"),
        lostOf("{", "whole"),
        lostOf("[1]", "whole"),
        lostOf("{\"a\":".repeat(300) + "1" + "}".repeat(300), "whole"),
        lostOf("", "broken"),
        lostOf("{\"a\":", "truncated"),
        lostOf("{}", "truncated", true)
      ],
      [
        undefined,
        undefined,
        undefined,
        "json_decode_error",
        "not_an_object",
        "too_deep",
        "missing_fragments",
        "truncated",
        "truncated"
      ]
    )
  })

  it("the token limit cuts the last call, even with parseable arguments, and every call without arguments", () => {
    const calls = wire()
    const out: Emitted = []
    for (const [id, text] of [["a", "{}"], ["b", ""], ["c", "{}"]] as const) {
      const call = calls.open(id)
      calls.name(call, "note", out)
      calls.append(call, text, out)
    }
    calls.endAll("truncated", out)
    assert.deepStrictEqual(calls.completed.map((call) => call.argumentsLost), [undefined, "truncated", "truncated"])
  })

  const step = Schema.Struct({
    id: Schema.Literals(["a", "b", ""]),
    name: Schema.Literals(["note", "look"]),
    texts: Schema.Array(Schema.Literals(["{", "}", "\"x\":1", "", "null"])).check(Schema.isMaxLength(4)),
    isClosed: Schema.Boolean
  })

  it.prop(
    "the fold gathers exactly the emitted calls",
    { steps: Schema.Array(step).check(Schema.isMaxLength(6)), isCut: Schema.Boolean },
    ({ isCut, steps }) => {
      const calls = wire()
      const out: Emitted = []
      for (const { id, isClosed, name, texts } of steps) {
        const call = calls.open(id === "" ? undefined : id)
        calls.name(call, name, out)
        for (const text of texts) calls.append(call, text, out)
        if (isClosed) calls.close(call, false, out)
      }
      calls.endAll(isCut ? "truncated" : "whole", out)
      const expected = calls.completed.map(({ rawArguments = "", ...call }) =>
        rawArguments === "" ? call : { ...call, rawArguments }
      )
      assert.deepStrictEqual(folded(out), expected)
    }
  )
})

describe("calls from events", () => {
  it("a repeated id makes a separate call, and a call without an id gets an id", () => {
    const calls = folded([
      { _tag: "ToolCallStarted", id: "a", name: "note" },
      { _tag: "ToolCallDelta", id: "a", argumentsDelta: "{}" },
      { _tag: "ToolCallCompleted", id: "a", name: "note", arguments: {}, rawArguments: "{}" },
      { _tag: "ToolCallStarted", id: "a", name: "note" },
      { _tag: "ToolCallDelta", id: "a", argumentsDelta: "{\"b\":2}" },
      { _tag: "ToolCallStarted", id: "", name: "look" }
    ])
    assert.deepStrictEqual(calls.map(({ arguments: args, id, metadata, name }) => [id, name, args, metadata]), [
      ["a", "note", {}, {}],
      ["a_2", "note", { b: 2 }, { duplicateOf: "a" }],
      ["call_0_1", "look", {}, {}]
    ])
  })

  it("a copy of EventCalls does not change with its original", () => {
    const calls = new ToolCalls.EventCalls()
    calls.started("a", "note")
    calls.delta("a", "{\"a\":")
    const copy = calls.copy()
    calls.delta("a", "1}")
    copy.delta("a", "2}")
    const read = (one: ToolCalls.EventCalls) =>
      one.toToolCalls({ parse: true, ending: "whole" }).map((call) => call.arguments)
    assert.deepStrictEqual([read(calls), read(copy)], [[{ a: 1 }], [{ a: 2 }]])
  })

  it("a call taken for execution does not change, whatever events follow", () => {
    const calls = new ToolCalls.EventCalls()
    const said = { id: "a", name: "note", arguments: { a: 1 }, rawArguments: "{\"a\":1}" }
    calls.started("a", "note")
    calls.completed(said)
    const taken = calls.take(said)
    assert.deepStrictEqual(taken?.call.arguments, { a: 1 })
    assert.isUndefined(calls.take(said))
    calls.completed({ ...said, arguments: { a: 2 }, rawArguments: "{\"a\":2}" })
    const read = calls.toToolCalls({ parse: true, ending: "whole" })
    assert.deepStrictEqual(read.map(({ arguments: args, id }) => [id, args]), [["a", { a: 1 }], ["a_2", { a: 2 }]])
  })
})
