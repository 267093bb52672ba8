/** What the command does without a process of its own: loading a module, and showing a run in a terminal. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type { Event } from "heddle"
import * as Definitions from "../../src/command/internal/definition.ts"
import * as Terminal from "../../src/command/internal/terminal.ts"
import { fixture } from "../support/command.ts"

const shown = (events: ReadonlyArray<Event.PublicEvent>) => {
  const written = { text: "", note: "" }
  const view = new Terminal.View({
    text: (text) => void (written.text += text),
    note: (text) => void (written.note += text)
  })
  for (const event of events) view.take(event)
  return written
}

describe("calls of another process", () => {
  it("O-34: calls of another process are named by what the session knows of them", () => {
    const notes: Array<string> = []
    const view = new Terminal.View({ text: () => {}, note: (text) => void notes.push(text) })
    view.know([{ id: "c0", name: "order" }, { id: "c1", name: "pay" }])
    view.take({ _tag: "ToolResultEncoded", id: "c0", content: "Emma" })
    view.take({ _tag: "ToolHalt", toolCallId: "c1", reason: "tool_error", content: "no" } as Event.PublicEvent)
    assert.deepStrictEqual(notes, ["= order Emma\n", "= pay no\n"])
  })
})

type Told = ReadonlyArray<Event.PublicEvent>

/** The turn of a reply with a call, whose tool has a run of its own where one is given. */
const turnOf = (id: string, name: string, inside?: Told): Told => [
  { _tag: "MessageStarted" },
  { _tag: "TextDelta", id: null, delta: `I ${name}.` },
  { _tag: "ToolCallStarted", id, name },
  { _tag: "ToolCallCompleted", id, name, arguments: { by: name } },
  { _tag: "ToolExecutionStarted", id, name },
  ...(inside ?? []).map((nested) => ({ _tag: "ToolProgress", id, name, nested }) as const),
  ...(inside === undefined ? [{ _tag: "ToolProgress", id, name, progress: `${name} asks` } as const] : []),
  // A call may begin before its reply has ended.
  { _tag: "TextDelta", id: null, delta: "More" },
  { _tag: "MessageCompleted" },
  { _tag: "ToolResultEncoded", id, content: `${name} did` }
]

/** Turns whose calls have one of two ids, and those of the runs inside them. */
const turns: Readonly<Record<string, Told>> = {
  look: turnOf("c0", "look"),
  find: turnOf("c0", "find"),
  dig: turnOf("c0", "dig", turnOf("c0", "look")),
  mine: turnOf("c0", "mine", turnOf("c0", "find")),
  drill: turnOf("c1", "drill", turnOf("c0", "dig", turnOf("c0", "pay")))
}

describe("turns in a terminal", () => {
  it("W-19: each turn is shown like the only turn, with repeated ids and inner runs", () => {
    for (const [name, second] of Object.entries(turns)) {
      const alone = shown(second)
      assert.include(alone.note, name)
      for (const [other, first] of Object.entries(turns)) {
        const before = shown(first)
        assert.deepStrictEqual(
          shown([...first, ...second]),
          { text: before.text + alone.text, note: before.note + alone.note },
          `${name} behind ${other}`
        )
      }
    }
  })

  it("W-19: each note begins a line, also a note of an inner run", () => {
    for (const [name, events] of Object.entries(turns)) {
      let written = ""
      const starts: Array<string> = []
      const view = new Terminal.View({
        text: (text) => void (written += text),
        note: (text) => {
          starts.push(written.at(-1) ?? "\n")
          written += text
        }
      })
      for (const event of events) {
        view.take(event)
        // Text of the reply is open in front of the next note, whatever writes it.
        view.take({ _tag: "TextDelta", id: null, delta: "said" })
      }
      assert.isNotEmpty(starts, name)
      assert.deepStrictEqual(new Set(starts), new Set(["\n"]), name)
    }
  })
})

describe("a run in a terminal", () => {
  it("W-19: a view writes the text once on the standard output, and calls and their runs as notes", () => {
    const { note, text } = shown([
      { _tag: "MessageStarted" },
      { _tag: "TextDelta", id: null, delta: "Hel" },
      { _tag: "TextDelta", id: null, delta: "lo" },
      { _tag: "ToolCallCompleted", id: "c0", name: "look", arguments: { city: "Oslo" } },
      { _tag: "TextCompleted", id: null, text: "Hello" },
      { _tag: "MessageCompleted" },
      { _tag: "ToolExecutionStarted", id: "c0", name: "look" },
      { _tag: "ToolProgress", id: "c0", name: "look", progress: "asking" },
      { _tag: "ToolProgress", id: "c0", name: "look", nested: { _tag: "TextDelta", id: null, delta: "inner" } },
      { _tag: "ToolProgress", id: "c0", name: "look", nested: { _tag: "ToolCallCompleted", id: "d0", name: "deep" } },
      { _tag: "ToolResultEncoded", id: "c0", content: "7", isError: true },
      { _tag: "MessageStarted" },
      { _tag: "TextCompleted", id: null, text: "Bye" },
      { _tag: "MessageCompleted" }
    ])
    assert.strictEqual(text, "Hello\nBye\n")
    assert.strictEqual(note, "> look {\"city\":\"Oslo\"}\n  look: asking\n  look > deep\nx look 7\n")
  })

  it("W-25: no text of a model or a tool controls the terminal", () => {
    const hostile = "\u001b[31mred\u0007\u009b2J\u202eback\r\b"
    const { note, text } = shown([
      { _tag: "TextDelta", id: null, delta: hostile },
      { _tag: "ToolCallCompleted", id: hostile, name: hostile, arguments: { [hostile]: hostile } },
      { _tag: "ToolProgress", id: hostile, name: hostile, progress: hostile },
      { _tag: "ToolResultEncoded", id: hostile, content: hostile },
      { _tag: "Error", error: { code: "internal", message: hostile } }
    ])
    assert.include(text, "red")
    assert.notMatch(text + note, /[^\P{Cc}\n]|\p{Bidi_Control}/u)
  })

  it.effect("W-19: a module is loaded from a path, and its only agent needs no name", () =>
    Effect.gen(function*() {
      const loaded = yield* Definitions.load(fixture("servedWeather"))
      assert.deepStrictEqual([...loaded.agents.keys()], ["weather"])
      assert.strictEqual(yield* Definitions.agentOf(loaded, undefined), "weather")
      const other = yield* Effect.flip(Definitions.agentOf(loaded, "x\u001b"))
      assert.strictEqual(other.message, "the module has no agent x; it has: weather")
      const missing = yield* Effect.flip(Definitions.load("./nowhere.ts"))
      assert.strictEqual(missing.message, "there is no file ./nowhere.ts")
    }))
})
