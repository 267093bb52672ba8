/**
 * Tool events read as updates: one result per call, with the text that ends it, however the events are cut into reads.
 */
import { assert, describe, it } from "@effect/vitest"
import { type Event, Tool } from "heddle"
import * as Updates from "../../src/internal/fold/updates.ts"

const completed = (
  id: string,
  result: Tool.Outcome,
  contextUpdate?: Readonly<Record<string, unknown>>
): Event.Event => ({
  _tag: "ToolExecutionCompleted",
  id,
  name: `tool of ${id}`,
  result,
  ...(contextUpdate === undefined ? {} : { contextUpdate })
})

const encoded = (id: string, content: string, originalLength?: number): Event.Event => ({
  _tag: "ToolResultEncoded",
  id,
  content,
  ...(originalLength === undefined ? {} : { originalLength })
})

const read = (...events: ReadonlyArray<Event.Event>) => new Updates.Reading().read(events)

/** The one result of a call with this outcome and text. */
const resultOf = (outcome: Tool.Outcome, end: Event.Event = encoded("a", "text")) => {
  const updates = read(completed("a", outcome), end)
  assert.strictEqual(updates.length, 1)
  return updates[0]?.result
}

const toolError = (
  reason: Tool.ToolError["reason"],
  more: Partial<Pick<Tool.ToolError, "detail" | "metadata">> = {}
) => new Tool.ToolError({ reason, toolName: "t", toolCallId: "a", ...more })

describe("updates", () => {
  it("R-387, R-404: progress is told as it is, a result with its text, its tool and what it adds to the context", () => {
    const progress: Event.Event = { _tag: "ToolProgress", id: "a", name: "t", progress: { half: true } }
    assert.deepStrictEqual(read(progress, completed("a", Tool.ok(1), { x: 1 }), encoded("a", "1")), [
      { toolCallId: "a", progress: { half: true } },
      {
        toolCallId: "a",
        result: { success: true, data: 1, content: "1", metadata: { toolId: "tool of a" } },
        contextUpdate: { x: 1 }
      }
    ])
  })

  it("R-389: however the events are cut into reads, each result is told once, with its own text", () => {
    const events = [
      completed("a", Tool.ok("A")),
      encoded("a", "text of a"),
      completed("b", Tool.ok("B"), { b: 1 }),
      encoded("b", "text of b"),
      completed("a", Tool.ok("again")),
      encoded("a", "again")
    ]
    const whole = read(...events)
    assert.deepStrictEqual(whole.map(({ result, toolCallId }) => [toolCallId, result?.data, result?.content]), [
      ["a", "A", "text of a"],
      ["b", "B", "text of b"],
      ["a", "again", "again"]
    ])
    assert.deepStrictEqual(whole.map(({ contextUpdate }) => contextUpdate), [undefined, { b: 1 }, undefined])
    for (let cut = 0; cut <= events.length; cut++) {
      const reading = new Updates.Reading()
      assert.deepStrictEqual([...reading.read(events.slice(0, cut)), ...reading.read(events.slice(cut))], whole)
    }
  })

  it("R-404: null and undefined are data", () => {
    for (const value of [null, undefined]) {
      const result = resultOf(Tool.ok(value))
      assert.deepStrictEqual([result?.success, result?.data], [true, value])
      assert.property(result, "data")
      assert.notProperty(result, "error")
    }
  })

  it("R-404: a failure has an error and no data, in words", () => {
    const rows: ReadonlyArray<readonly [unknown, string]> = [
      ["nope", "nope"],
      [new Error("kaboom"), "kaboom"],
      [{ code: 7 }, "{\"code\":7}"],
      [undefined, "undefined"],
      [toolError("timeout"), "tool error (t): timeout"],
      [toolError("denied", { detail: "Permission denied: not yours" }), "Permission denied: not yours"],
      [toolError("cancelled", { detail: "interrupted" }), "tool error (t): cancelled: interrupted"]
    ]
    for (const [reason, error] of rows) {
      const result = resultOf(Tool.error(reason), encoded("a", "told"))
      assert.deepStrictEqual([result?.success, result?.error, result?.content], [false, error, "told"])
      assert.notProperty(result, "data")
    }
  })

  it("R-397, R-406: metadata says whether a call was cancelled, and which gate denied it", () => {
    const metadataOf = (error: unknown) => resultOf(Tool.error(error))?.metadata
    const toolId = "tool of a"
    assert.deepStrictEqual(metadataOf(toolError("cancelled")), { cancelled: true, toolId })
    assert.deepStrictEqual(metadataOf(toolError("cancelled", { metadata: { other: 1 } })), { cancelled: true, toolId })
    const denied = toolError("denied", { metadata: { gate: "authorize", canOverride: true, toolId: "forged" } })
    assert.deepStrictEqual(metadataOf(denied), { gate: "authorize", canOverride: true, toolId })
    assert.deepStrictEqual(metadataOf(toolError("timeout")), { toolId })
    assert.deepStrictEqual(metadataOf("nope"), { toolId })
  })

  it("J-23, R-039: a text that was cut is told with the length it had", () => {
    const cut = resultOf(Tool.ok("0123456789"), encoded("a", "01234", 10))
    assert.deepStrictEqual(cut?.metadata, { truncated: true, originalLength: 10, toolId: "tool of a" })
    assert.deepStrictEqual([cut?.data, cut?.content], ["0123456789", "01234"])
    assert.deepStrictEqual(resultOf(Tool.ok(""), encoded("a", "", 0))?.metadata, {
      truncated: true,
      originalLength: 0,
      toolId: "tool of a"
    })
  })

  it("a halt and a question end a call as well", () => {
    const halt = Tool.halt("enough", { v: 1 })
    const end: Event.Event = { _tag: "ToolHalt", toolCallId: "a", reason: "enough", result: { v: 1 } }
    assert.deepInclude(resultOf(halt, { ...end, content: "text" }), { success: true, data: { v: 1 }, content: "text" })
    assert.deepInclude(resultOf(halt, end), { content: "{\"v\":1}" })
    const failing: Event.Event = {
      _tag: "ToolHalt",
      toolCallId: "a",
      reason: "tool_error",
      result: "no",
      content: "no"
    }
    assert.deepInclude(resultOf(Tool.error("no"), failing), { success: false, error: "no", content: "no" })
    const ask = Tool.askUser("Which one?", ["a", "b"])
    const asked: Event.Event = {
      _tag: "AskUserRequested",
      toolCallId: "a",
      toolName: "t",
      question: "Which one?",
      opts: ["a", "b"]
    }
    assert.deepInclude(resultOf(ask, asked), { success: true, data: ask, content: "Which one?" })
  })

  it("events of which an update says nothing are passed over", () => {
    const started: Event.Event = { _tag: "ToolExecutionStarted", id: "a", name: "t", arguments: {} }
    assert.deepStrictEqual(read(started, { _tag: "TextDelta", id: null, delta: "x" }, encoded("stray", "x")), [])
  })
})
