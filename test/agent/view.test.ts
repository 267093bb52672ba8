import { assert, describe, it } from "@effect/vitest"
import { type Event, Message, Response, Thread, type Tool } from "heddle"
import { FileProblem } from "../../scratchpad/agent/problem.ts"
import * as Lines from "../../scratchpad/agent/view/lines.ts"
import * as Paint from "../../scratchpad/agent/view/paint.ts"
import * as Picture from "../../scratchpad/agent/view/picture.ts"
import * as Run from "../../scratchpad/agent/view/run.ts"

type Timed = readonly [at: number, event: Event.Event]

const thread = Thread.fromMessages([Message.user("q")])
const response = (finishReason: "stop" | "tool_calls"): Response.Response => ({
  id: null,
  requestId: null,
  model: null,
  outputText: null,
  reasoning: "",
  toolCalls: [],
  message: null,
  finishReason,
  rawFinishReason: null,
  usage: null,
  metadata: {}
})
const text = (delta: string): Event.Event => ({ _tag: "TextDelta", id: null, delta })
const asked = (id: string, name: string, args: Readonly<Record<string, unknown>> = {}): Event.Event => ({
  _tag: "ToolCallCompleted",
  id,
  name,
  arguments: args,
  rawArguments: ""
})
const said = (finishReason: "stop" | "tool_calls"): Event.Event => ({
  _tag: "MessageCompleted",
  message: Message.assistant(""),
  finishReason
})
const started = (id: string, name: string): Event.Event => ({ _tag: "ToolExecutionStarted", id, name, arguments: {} })
const progress = (id: string, done: number, total: number): Event.Event => ({
  _tag: "ToolProgress",
  id,
  name: "search_text",
  progress: { done, total, unit: "files" }
})
const completed = (id: string, result: Tool.Outcome): Event.Event => ({
  _tag: "ToolExecutionCompleted",
  id,
  name: "",
  result
})
const stepped = (done: boolean): Event.Event => ({
  _tag: "StepCompleted",
  response: response(done ? "stop" : "tool_calls"),
  thread,
  messages: [],
  mode: "auto",
  manualToolCalls: [],
  done
})
const ended = (outcome: Event.Outcome): Event.Event => ({
  _tag: "ChatCompleted",
  result: {
    thread,
    finalResponse: null,
    steps: [],
    outcome,
    haltedReason: "completed",
    usage: Response.usage({ inputTokens: 1234, outputTokens: 56 }),
    totalUsage: Response.usage({ inputTokens: 1234, outputTokens: 56 }),
    metadata: {}
  }
})

/** A run with two calls of a turn, one of which is long and one of which fails, and an answer. */
const script: ReadonlyArray<Timed> = [
  [100, text("I look ")],
  [200, text("around.\nNow")],
  [250, asked("a", "search_text", { query: "lamp" })],
  [260, asked("b", "read_file", { path: "src/x.ts", from: 3 })],
  [300, said("tool_calls")],
  [310, started("a", "search_text")],
  [320, started("b", "read_file")],
  [400, progress("a", 10, 40)],
  [
    500,
    completed("b", { _tag: "Error", error: new FileProblem({ reason: "unreadable", path: "src/x.ts", detail: "no" }) })
  ],
  [1700, progress("a", 30, 40)],
  [2300, completed("a", { _tag: "Ok", value: { matches: [1, 2], searched: 40 } })],
  [2310, stepped(false)],
  [2500, text("Here: src/y.ts:1")],
  [3000, said("stop")],
  [3010, stepped(true)],
  [3020, ended({ _tag: "Completed", finishReason: "stop" })]
]

const play = (events: ReadonlyArray<Timed>, from = Run.begin(0)) =>
  events.reduce((run, [at, event]) => Run.step(run, event, at), from)
const until = (at: number) => play(script.filter(([time]) => time <= at))
const shown = (run: Run.Run, now: number, columns = 80) => {
  const { live, settled } = Lines.frame(run, now, columns, Paint.none)
  return [...settled, ...live].map((line) => line.trimEnd())
}
/** Every line that is appended over a run. */
const appended = (events: ReadonlyArray<Timed>) => {
  let run = Run.begin(0)
  return events.flatMap(([at, event]) => {
    const before = run
    run = Run.step(run, event, at)
    return Lines.append(before, run, event, at)
  })
}

describe("the view of a run", () => {
  it("main job: the view folds each call from its request to its end, with its times", () => {
    const standing = (at: number) => Run.calls(until(at)).map((call) => call.standing)
    assert.deepStrictEqual(standing(200), [])
    assert.deepStrictEqual(standing(300), ["waiting", "waiting"])
    assert.deepStrictEqual(standing(310), ["running", "waiting"])
    assert.deepStrictEqual(standing(500), ["running", "failed"])
    assert.deepStrictEqual(standing(3020), ["done", "failed"])
    const [search] = Run.calls(until(3020))
    assert.deepStrictEqual([search?.startedAt, search?.endedAt, search?.outcome], [310, 2300, "2 matches in 40 files"])
    assert.deepStrictEqual(until(3020).turns, [
      { startedAt: 0, spokeAt: 100, endedAt: 300, isWhole: true },
      { startedAt: 2310, spokeAt: 2500, endedAt: 3000, isWhole: true }
    ])
    assert.deepStrictEqual(until(3020).unreadable, [{ path: "src/x.ts", reason: "no" }])
  })

  it("main job: a terminal shows the text as it arrives, and a line per call with its state and time", () => {
    assert.deepStrictEqual(shown(until(100), 150), ["I look"])
    assert.deepStrictEqual(
      shown(until(1700), 1810),
      [
        "I look around.",
        "Now",
        "",
        "  ⠹ search_text  lamp                          ━━━━━━━━━╌╌╌ 30/40 files   1.50 s",
        "  ✗ read_file  src/x.ts:3                      cannot read src/x.ts: no   180 ms"
      ].map((line) => line.trimEnd())
    )
  })

  it("main job: settled lines never change, and all other lines are live", () => {
    let before: ReadonlyArray<string> = []
    for (let count = 0; count <= script.length; count++) {
      const at = script[count - 1]?.[0] ?? 0
      const run = play(script.slice(0, count))
      for (const now of [at, at + 5]) {
        const { live, settled } = Lines.frame(run, now, 40, Paint.none)
        assert.deepStrictEqual(settled.slice(0, before.length), before, `after ${count} events`)
        assert.isAtMost(live.length, 5)
        before = settled
      }
    }
    assert.deepStrictEqual(Lines.frame(until(3020), 9999, 40, Paint.none).live, [])
    assert.isTrue(before.some((line) => line.includes("src/y.ts:1")))
  })

  it("main job: no line is wider than the terminal, whatever it contains", () => {
    const wide = "駅前の時刻表 ".repeat(30)
    const run = play([
      [1, text(`${wide}\n    12  ${"code ".repeat(60)}\n${"x".repeat(300)}`)],
      [2, asked("a", "search_text", { query: wide })],
      [3, asked("b", `${"n".repeat(20)}`, { path: "p/".repeat(90) })],
      [4, started("a", "search_text")],
      [5, progress("a", 1, 2)],
      [6, completed("b", { _tag: "Error", error: new Error(wide) })]
    ])
    for (const columns of [19, 40, 60, 80, 132]) {
      for (const line of shown(run, 10, columns)) assert.isAtMost(Paint.width(line), columns, line)
    }
  })

  it("main job: a wrapped line is indented under its text, and earlier lines stay as the text grows", () => {
    assert.deepStrictEqual(Paint.wrap("  12  aaa bbb ccc", 12), ["  12  aaa", "      bbb", "      ccc"])
    assert.deepStrictEqual(Paint.wrap("- aaa bbb ccc", 9), ["- aaa bbb", "  ccc"])
    assert.deepStrictEqual(Paint.wrap("abcdefgh", 3), ["abc", "def", "gh"])
    const whole = "one two three four five six seven eight nine ten"
    for (let length = 1; length < whole.length; length++) {
      const lines = Paint.wrap(whole.slice(0, length), 12).slice(0, -1)
      assert.deepStrictEqual(Paint.wrap(whole, 12).slice(0, lines.length), lines)
    }
  })

  it("main job: control characters of a tool or a model never reach the terminal", () => {
    const hostile = "\u001b]0;owned\u0007\u001b[2J\u001b[31mred\r\u202egnp"
    const run = play([
      [1, text(hostile)],
      [2, asked("a", `read_file${hostile}`, { path: hostile })],
      [3, completed("a", { _tag: "Error", error: new Error(hostile) })]
    ])
    const written = [
      ...shown(run, 5),
      ...Picture.timeline(Run.stop(run, 6), 80, Paint.none),
      ...Lines.stopped(Run.stop(run, 6), 6)
    ].join(
      "\n"
    )
    assert.notMatch(written, /[^\P{Cc}\n]|\p{Bidi_Control}/u)
    assert.include(written, "red")
  })

  it("main job: the plain view appends each line once", () => {
    assert.deepStrictEqual(appended(script), [
      "I look around.",
      "Now",
      "",
      "  ▸ search_text  lamp",
      "  ▸ read_file  src/x.ts:3",
      "  ✗ read_file  src/x.ts:3 - cannot read src/x.ts: no (180 ms)",
      "  ▸ search_text  lamp - 30/40 files",
      "  ✓ search_text  lamp - 2 matches in 40 files (1.99 s)",
      "",
      "Here: src/y.ts:1",
      ""
    ])
    assert.isFalse(appended(script).join("").includes("\u001b"))
  })

  it("main job: a call to an unknown tool is shown as failed with its answer", () => {
    const run = play([
      [1, asked("a", "fly_away")],
      [2, said("tool_calls")],
      [3, { _tag: "ToolResultEncoded", id: "a", content: "{\"error\":\"unknown_tool\"}", isError: true }]
    ])
    assert.deepStrictEqual(Run.calls(run).map(({ outcome, standing }) => [standing, outcome]), [
      ["failed", "{\"error\":\"unknown_tool\"}"]
    ])
  })

  it("main job: a repeated call id in a later turn is another call", () => {
    const run = play([
      [1, asked("a", "list_files")],
      [2, started("a", "list_files")],
      [3, completed("a", { _tag: "Ok", value: { total: 1 } })],
      [4, stepped(false)],
      [5, asked("a", "list_files")],
      [6, started("a", "list_files")]
    ])
    assert.deepStrictEqual(Run.calls(run).map((call) => call.standing), ["done", "running"])
  })

  const barrier: ReadonlyArray<Timed> = [
    [10, text("I look.")],
    [20, asked("a", "search_text", { query: "lamp" })],
    [21, started("a", "search_text")],
    [30, text(" And on.")],
    [40, asked("b", "write_note", { note: "lamp" })],
    [60, said("tool_calls")],
    [90, completed("a", { _tag: "Ok", value: { matches: [], searched: 2 } })],
    [91, started("b", "write_note")],
    [95, completed("b", { _tag: "Ok", value: { note: "- lamp", isWritten: true, path: "/n.md" } })]
  ]

  it("main job: the line of a call shows what the call waits for, and whether it started early or waited at the barrier", () => {
    const at = (time: number) =>
      shown(play(barrier.filter(([each]) => each <= time)), time, 60).find((line) => line.includes("write_note"))
    assert.strictEqual(at(40), "  · write_note  lamp            waits for the reply")
    assert.strictEqual(at(60), " ‖· write_note  lamp          waits for search_text")
    assert.strictEqual(at(91), " ‖⠙ write_note  lamp                                  < 1 ms")
    assert.deepStrictEqual(shown(play(barrier), 95, 60).slice(2, 5), [
      " »✓ search_text  lamp          0 matches in 2 files    69 ms",
      "",
      "And on."
    ])
    assert.deepStrictEqual(appended(barrier), [
      "I look.",
      "",
      " »▸ search_text  lamp",
      "",
      "And on.",
      "",
      " ‖· write_note  lamp - waits for search_text",
      " »✓ search_text  lamp - 0 matches in 2 files (69 ms)",
      " ‖▸ write_note  lamp",
      " ‖✓ write_note  lamp - written to /n.md (4 ms)"
    ])
    assert.deepStrictEqual(play(barrier).notes, [{ note: "- lamp", isWritten: true, path: "/n.md" }])
  })

  it("main job: the view of an interrupted run names each stopped call with its progress and time", () => {
    const run = Run.stop(until(1700), 2000)
    assert.deepStrictEqual(Lines.stopped(run, 2000), ["  ■ search_text  lamp - stopped at 30/40 files (1.69 s)"])
    assert.isFalse(run.isThinking)
    assert.match(Picture.caption(run, null, "word", Paint.none), /^Stopped at once · 1 turn · 2 calls · 2\.00 s$/)
    const early = Run.stop(until(250), 260)
    assert.deepStrictEqual(Lines.stopped(early, 260), ["  ■ search_text  lamp - never started"])
  })

  it("main job: the caption of a picture shows the outcome and the usage", () => {
    const run = until(3020)
    assert.strictEqual(
      Picture.caption(run, run.result?.usage ?? null, "token", Paint.none),
      "Completed · 2 turns · 2 calls · 3.00 s · 1,234 tokens in, 56 out"
    )
    const other = play([[3020, ended({ _tag: "MaxTurns", maxTurns: 2 })]], until(3000))
    assert.match(
      Picture.caption(other, null, "token", Paint.none),
      /^Gave up after 2 turns · 2 turns · 2 calls · 3\.00 s$/
    )
    const outcomes: ReadonlyArray<Event.Outcome> = [
      { _tag: "AskUser", pendingQuestion: "?", pendingToolCallId: "a", askUserOpts: [] },
      { _tag: "Halted", reason: "done", haltToolCallId: "a", haltResult: 1 },
      { _tag: "ToolFailed", haltToolCallId: "a" },
      { _tag: "Failed", error: "x" }
    ]
    for (const outcome of outcomes) {
      const line = Picture.caption(play([[3020, ended(outcome)]], until(3000)), null, "token", Paint.none)
      assert.notMatch(line, /^(Completed|Stopped)|undefined/)
    }
    const cancelled = play([[3020, ended({ _tag: "Cancelled", reason: "cancel" })]], until(3000))
    assert.match(Picture.caption(cancelled, null, "token", Paint.none), /^Stopped · /)
  })

  it("main job: the view adds colour only on request, and colour changes no width", () => {
    const run = until(1700)
    const plain = Lines.frame(run, 1810, 80, Paint.none)
    const painted = Lines.frame(run, 1810, 80, Paint.ansi)
    assert.notInclude(plain.live.join(), "\u001b")
    assert.include(painted.live.join(), "\u001b[")
    assert.deepStrictEqual(painted.live.map(Paint.width), plain.live.map(Paint.width))
  })

  it("main job: durations have at most two decimals and a unit, and a cut text has an ellipsis and fits its width", () => {
    assert.deepStrictEqual([0, 12.7, 999, 1250, 59_940, 125_000].map(Paint.duration), [
      "< 1 ms",
      "12 ms",
      "999 ms",
      "1.25 s",
      "59.9 s",
      "2:05 m"
    ])
    assert.strictEqual(Paint.cut("abcdef", 4), "abc…")
    assert.strictEqual(Paint.cutLeft("a/long/path.ts", 8), "…path.ts")
    assert.strictEqual(Paint.width(Paint.cut("駅前の時刻表", 5)), 5)
  })
})
