import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, type Event, Tool } from "heddle"
import { Script, Simulation } from "heddle/testing"
import * as Kept from "../../scratchpad/agent/view/kept.ts"
import * as Layout from "../../scratchpad/agent/view/layout.ts"
import * as Paint from "../../scratchpad/agent/view/paint.ts"
import * as Picture from "../../scratchpad/agent/view/picture.ts"
import * as Run from "../../scratchpad/agent/view/run.ts"
import * as Timeline from "../../scratchpad/agent/view/timeline.ts"

type Lasting = Tool.Tool<string, any, any, any, never>

/** A tool that takes as long as its call says, by the name of one of the agent's. */
const lasting = (
  name: string,
  more: Pick<Tool.Any, "readOnly"> | Pick<Tool.Any, "concurrency" | "interrupt">
): Lasting =>
  Tool.make(name, {
    ...more,
    parameters: { millis: Schema.Finite },
    handler: ({ millis }) => Effect.as(Effect.sleep(millis), { total: 1 })
  })

const reading = ["list_files", "search_text", "read_file", "count_lines"].map((name) =>
  lasting(name, { readOnly: true })
)
const tools: ReadonlyArray<Lasting> = [
  ...reading,
  lasting("write_note", { concurrency: "exclusive", interrupt: "block" })
]

const instead = (tool: Lasting) => tools.map((other) => other.name === tool.name ? tool : other)

const call = (id: string, name: string, millis: number) => Script.toolCall(id, name, { millis })
const answer = [Script.delay(100), Script.text("There."), Script.delay(300), Script.finish("stop")]

interface Options {
  readonly tools?: ReadonlyArray<Lasting>
  readonly stopAt?: number
  /** The run is left at that time, instead of being stopped softly. */
  readonly leftAt?: number
  /** How many handlers refuse to stop, and sleep on. */
  readonly sleeping?: number
}

/** Records a run of the real loop on a virtual clock, each event at the time at which it is read, and folds it. */
const record = (script: Script.Input, options: Options = {}) =>
  Effect.gen(function*() {
    let run = Run.begin(0)
    const cancel = options.stopAt === undefined ? {} : { cancel: Effect.sleep(options.stopAt) }
    const events: Stream.Stream<Event.Event, unknown> = Chat.stream("go", {
      tools: options.tools ?? tools,
      grace: "1 second",
      ...cancel
    }).pipe(Stream.provide(Script.layer(script)))
    const fold = Stream.runForEach(events, (event) =>
      Effect.map(Clock.currentTimeMillis, (at) => {
        run = Run.step(run, event, at)
      }))
    const report = yield* Simulation.run(
      options.leftAt === undefined
        ? fold
        : Effect.andThen(
          Effect.timeoutOption(fold, options.leftAt),
          Effect.map(Clock.currentTimeMillis, (at) => {
            run = Run.stop(run, at)
          })
        )
    )
    assert.isTrue(report.exit !== undefined && Exit.isSuccess(report.exit), JSON.stringify(report.exit))
    assert.strictEqual(report.sleeping, options.sleeping ?? 0)
    return run
  })

const drawn = (run: Run.Run) => Picture.timeline(run, 80, Paint.none)

/** Searches that overlap each other and the reply, text after them, and a note that has to wait for both. */
const early = [
  Script.delay(100),
  Script.text("I look. "),
  Script.delay(100),
  call("a", "search_text", 400),
  Script.delay(50),
  call("b", "read_file", 100),
  Script.text("I go on. "),
  Script.delay(250),
  call("c", "count_lines", 600),
  call("d", "write_note", 200),
  Script.delay(100),
  Script.finish("tool_calls")
]

/** The cells in which a lane shows that its call ran. */
const ranIn = (cells: ReadonlyArray<readonly [letter: string, style: string]> = []) =>
  cells.flatMap(([letter], index) => "█▓▒".includes(letter) ? [index] : [])

describe("the picture of a run", () => {
  it.effect("main job: the picture shows reads inside the reply, and a note that waits for the reply and the reads", () =>
    Effect.gen(function*() {
      const run = yield* record([early, answer])
      assert.deepStrictEqual(drawn(run), [
        "  turn 1                      0 s ────────────────────────────── 1.30 s",
        "     model                    ···░░░░░░░░░░░░░░░░                         600 ms",
        "  »✓ search_text                    ████████████ │                        400 ms",
        "  »✓ read_file                       ████        │                        100 ms",
        "  »✓ count_lines                             ███████████████████          600 ms",
        "  ‖✓ write_note                              ····┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄███████   200 ms",
        "",
        "  turn 2                      1.30 s ─────────────────────────── 1.70 s",
        "     model                    ··········░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░   400 ms",
        "",
        "  » 3 started before the reply had ended   ‖ 1 waited at the barrier"
      ])
      const [note] = Timeline.stretches(run).flatMap(({ lanes }) => lanes.filter(({ call }) => call.id === "d"))
      assert.deepStrictEqual([note?.waitsForReply, note?.waitsAtBarrier, note?.runs], [
        { from: 500, to: 600 },
        { from: 600, to: 1100 },
        { from: 1100, to: 1300 }
      ])
    }))

  it.effect("main job: the picture shows calls started after the reply behind its end, and a call held back by a barrier", () =>
    Effect.gen(function*() {
      const late = tools.map((tool) => ({ ...tool, readOnly: false }))
      const script = [
        call("a", "write_note", 100),
        call("b", "read_file", 50),
        Script.delay(100),
        Script.finish("tool_calls")
      ]
      const run = yield* record([script, answer], { tools: late })
      assert.deepStrictEqual(drawn(run).slice(0, 4), [
        "  turn 1                      0 s ────────────────────────────── 250 ms",
        "     model                    ░░░░░░░░░░░░░░░░░                           100 ms",
        "   ✓ write_note               ·················███████████████            100 ms",
        "  ‖✓ read_file                ·················┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄█████████    50 ms"
      ])
    }))

  it.effect("main job: the picture distinguishes calls started just before and just after the end of a long reply", () =>
    Effect.gen(function*() {
      const last = [
        call("a", "read_file", 1),
        Script.delay(1),
        call("b", "count_lines", 1),
        Script.finish("tool_calls")
      ]
      const late = instead(lasting("count_lines", { readOnly: false }))
      const run = yield* record([[Script.delay(10_000), ...last], answer], { tools: late })
      assert.deepStrictEqual(drawn(run).slice(0, 4), [
        "  turn 1                      0 s ────────────────────────────── 10.0 s",
        "     model                    ·······································░    10.0 s",
        "  »✓ read_file                                                       █│     1 ms",
        "   ✓ count_lines                                                      █     1 ms"
      ])
    }))

  it.effect("main job: the picture of a soft stop shows stopped calls, and calls that never started", () =>
    Effect.gen(function*() {
      const run = yield* record([early, answer], { stopAt: 800 })
      assert.deepStrictEqual(drawn(run), [
        "  turn 1                      0 s ────────────────────────────── 800 ms",
        "     model                    ·····░░░░░░░░░░░░░░░░░░░░░░░░░░             600 ms",
        "  »✓ search_text                        ████████████████████ │            400 ms",
        "  »✓ read_file                            █████              │            100 ms",
        "  »■ count_lines                                       ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒   300 ms",
        "  ‖■ write_note                                        ······┄┄┄┄┄┄┄┄┄┄",
        "",
        "  » 3 started before the reply had ended   ‖ 1 waited at the barrier",
        "  ■ 2 stopped"
      ])
      assert.deepStrictEqual(Kept.ofStopped(run), [
        "Kept: what was said and the answers of search_text and read_file.",
        "Not kept: count_lines (stopped after 300 ms) and write_note (never started)."
      ])
      assert.match(Picture.caption(run, null, "token", Paint.none), /^Stopped · 1 turn · 4 calls · 800 ms$/)
    }))

  it.effect("main job: the picture marks a reply that a stop cut short, and the stopped reads of this reply", () =>
    Effect.gen(function*() {
      const run = yield* record([early, answer], { stopAt: 400 })
      const [, model, search, read] = drawn(run)
      assert.match(model ?? "", /^ {3}■ model +·+░+ +400 ms$/)
      assert.match(search ?? "", /^ {2}»■ search_text +▒+ +200 ms$/)
      assert.match(read ?? "", /^ {2}»✓ read_file +█+ +100 ms$/)
      assert.deepStrictEqual(Kept.ofStopped(run), [
        "Kept: what was said and the answer of read_file.",
        "Not kept: search_text (stopped after 200 ms)."
      ])
      const first = yield* record([early, answer], { stopAt: 50 })
      assert.deepStrictEqual(Kept.ofStopped(first), ["Nothing had come by then."])
    }))

  it.effect("main job: a note that started before a soft stop finishes, and is listed as kept", () =>
    Effect.gen(function*() {
      const run = yield* record([early, answer], { stopAt: 1200 })
      assert.match(drawn(run)[5] ?? "", /^ {2}‖✓ write_note .* 200 ms$/)
      assert.deepStrictEqual(Kept.ofStopped(run), [
        "Kept: what was said and the answers of search_text, read_file, count_lines and write_note."
      ])
    }))

  it.effect("main job, law 11: the picture shows a call that refuses to stop until the run abandons the call", () =>
    Effect.gen(function*() {
      const deaf = Tool.make("count_lines", {
        readOnly: true,
        parameters: { millis: Schema.Finite },
        handler: ({ millis }) => Effect.uninterruptible(Effect.sleep(millis * 10))
      })
      const run = yield* record([early, answer], { tools: instead(deaf), stopAt: 700, sleeping: 1 })
      assert.match(drawn(run)[4] ?? "", /^ {2}»† count_lines +▒+ +1\.20 s$/)
      assert.include(drawn(run).at(-1), "† 1 refused to stop, left behind")
      assert.include(Kept.ofStopped(run).at(-1), "count_lines (refused to stop, left behind after 1.20 s)")
    }))

  it.effect("main job: the picture of an interrupted run shows its calls until the interruption, and lists nothing as kept", () =>
    Effect.gen(function*() {
      const run = yield* record([early, answer], { leftAt: 800 })
      assert.match(drawn(run)[4] ?? "", /^ {2}»■ count_lines +▒+ +300 ms$/)
      assert.match(drawn(run)[5] ?? "", /^ {2}‖■ write_note +·+┄+$/)
      assert.deepStrictEqual(Kept.ofStopped(run), [])
      assert.match(Picture.caption(run, null, "token", Paint.none), /^Stopped at once · /)
    }))

  it.effect("main job: the picture marks a failed call and a broken reply as failed", () =>
    Effect.gen(function*() {
      const failing = Tool.make("read_file", { parameters: {}, readOnly: true, handler: () => Effect.fail("no") })
      const broken = [call("a", "read_file", 0), Script.delay(50), Script.streamError("network_error")]
      const run = yield* record([broken], { tools: instead(failing) })
      assert.match(drawn(run)[1] ?? "", /^ {3}✗ model /)
      assert.match(drawn(run)[2] ?? "", /^ {2}»✗ read_file +▓/)
      assert.strictEqual(drawn(run).at(-1), "  » 1 started before the reply had ended   ✗ 2 failed")
    }))

  const calls = Schema.Array(Schema.Struct({
    gap: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 300 })),
    name: Schema.Literals(["search_text", "read_file", "count_lines", "write_note"]),
    millis: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 500 }))
  })).check(Schema.isMinLength(1), Schema.isMaxLength(6))

  type Calls = typeof calls.Type

  const isTrue = (calls: Calls) =>
    Effect.gen(function*() {
      const script = calls.flatMap(({ gap, millis, name }, index) => [
        Script.delay(gap),
        call(`c${index}`, name, millis)
      ])
      const run = yield* record([[...script, Script.delay(20), Script.finish("tool_calls")], answer])
      const [stretch] = Timeline.stretches(run)
      if (stretch === undefined) return assert.fail("no turn")
      const { lanes, reply } = Layout.make(stretch, 41)
      const end = reply.findLastIndex(([letter]) => letter !== " ") + 1
      for (const [index, lane] of stretch.lanes.entries()) {
        const cells = ranIn(lanes[index])
        assert.isAbove(cells.length, 0)
        assert.strictEqual((cells.at(-1) ?? 0) - (cells[0] ?? 0) + 1, cells.length)
        assert.strictEqual((cells[0] ?? 0) < end, lane.call.isEarly)
        const others = lanes.filter((_, other) => other !== index).flatMap(ranIn)
        if (lane.call.name === "write_note") assert.isFalse(cells.some((cell) => others.includes(cell)))
      }
      for (const columns of [19, 30, 40, 60, 79, 80, 200]) {
        const widths = Picture.timeline(run, columns, Paint.none).map(Paint.width)
        assert.isAtMost(Math.max(...widths), Math.min(80, columns))
      }
    })

  it.effect.each<readonly [what: string, calls: Calls]>([
    ["two notes without duration", [
      { gap: 0, name: "write_note", millis: 0 },
      { gap: 268, name: "write_note", millis: 0 }
    ]],
    ["a note, a read and a note without duration", [
      { gap: 300, name: "write_note", millis: 0 },
      { gap: 0, name: "read_file", millis: 0 },
      { gap: 0, name: "write_note", millis: 0 }
    ]]
  ])("main job: exclusive calls occupy separate cells of the picture: %s", ([, calls]) => isTrue(calls))

  it.effect.prop(
    "main job: the picture agrees with the recorded times, and fits any width",
    [calls],
    ([calls]) => isTrue(calls),
    { arbitrary: { runs: 200 } }
  )
})
