import { assert, describe, it } from "@effect/vitest"
import * as ConfigProvider from "effect/ConfigProvider"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stdio from "effect/Stdio"
import * as Terminal from "effect/Terminal"
import * as TestClock from "effect/testing/TestClock"
import { Collector, type Event, Thread } from "heddle"
import * as View from "../../scratchpad/agent/view/terminal.ts"

const escape = "\u001b"
const pieces = new RegExp(`${escape}\\[\\??\\d*[A-Za-z]|\\r|\\n|[^${escape}\\r\\n]+`, "g")
const up = new RegExp(`^${escape}\\[\\d+A$`)

/** A terminal that understands what the view writes: line feeds, going up, clearing below, hiding the cursor. */
class Screen {
  readonly lines: Array<string> = [""]
  row = 0
  written = ""
  isCursorShown = true
  private readonly columns: number

  constructor(columns: number) {
    this.columns = columns
  }

  write(text: string): void {
    this.written += text
    for (const [piece] of text.matchAll(pieces)) this.apply(piece)
  }

  private apply(piece: string): void {
    if (piece === "\n") {
      this.row += 1
      this.lines[this.row] ??= ""
    } else if (up.test(piece)) this.row -= Number(piece.slice(2, -1))
    else if (piece === "\u001b[J") this.lines.splice(this.row, Infinity, "")
    else if (piece.startsWith("\u001b[?25")) this.isCursorShown = piece.endsWith("h")
    else if (!piece.startsWith("\u001b") && piece !== "\r") {
      this.lines[this.row] = (this.lines[this.row] ?? "") + piece
      assert.isAtMost((this.lines[this.row] ?? "").length, this.columns)
    }
    assert.isAtLeast(this.row, 0)
  }

  get text(): string {
    return this.lines.map((line) => line.trimEnd()).join("\n")
  }
}

const services = (screen: Screen, isTerminal: boolean, environment: Readonly<Record<string, string>> = {}) =>
  Layer.mergeAll(
    Layer.succeed(
      Terminal.Terminal,
      Terminal.make({
        columns: Effect.succeed(60),
        rows: Effect.succeed(12),
        size: Effect.die("unused"),
        readInput: Effect.die("unused"),
        readLine: Effect.die("unused"),
        display: (text) => Effect.sync(() => screen.write(text))
      })
    ),
    Stdio.layerTest({ stdoutIsTerminal: Effect.succeed(isTerminal) }),
    ConfigProvider.layer(ConfigProvider.fromUnknown(environment))
  )

const text = (delta: string): Event.Event => ({ _tag: "TextDelta", id: null, delta })
const asked = (id: string, path: string): Event.Event => ({
  _tag: "ToolCallCompleted",
  id,
  name: "read_file",
  arguments: { path },
  rawArguments: ""
})

/** Plays a run of twelve calls, more than the screen has rows, with redraws in between. */
const play = (view: View.View) =>
  Effect.gen(function*() {
    yield* view.headline("A headline")
    yield* view.begin
    yield* TestClock.adjust("200 millis")
    yield* view.onEvent(text("I read twelve files, one after the other, and say it at length.\nThen"))
    yield* TestClock.adjust("100 millis")
    for (let index = 0; index < 12; index++) yield* view.onEvent(asked(`c${index}`, `f${index}.ts`))
    for (let index = 0; index < 12; index++) {
      yield* view.onEvent({ _tag: "ToolExecutionStarted", id: `c${index}`, name: "read_file", arguments: {} })
      yield* TestClock.adjust("50 millis")
      const result = { _tag: "Ok", value: { text: "x", path: "" } } as const
      if (index < 11) {
        yield* view.onEvent({ _tag: "ToolExecutionCompleted", id: `c${index}`, name: "read_file", result })
      }
      yield* TestClock.adjust("50 millis")
    }
  })

describe("the terminal of the agent", () => {
  it.effect("main job: a terminal shows each line once, in order, however often the view redraws", () => {
    const screen = new Screen(60)
    return Effect.gen(function*() {
      const view = yield* View.make
      yield* play(view)
      assert.isFalse(screen.isCursorShown)
      assert.match(screen.text, /[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] read_file {2}f11\.ts/)
      yield* view.interrupted("word")
      const before = screen.text
      yield* TestClock.adjust("1 second")
      assert.strictEqual(screen.text, before, "nothing is drawn any more")
      assert.match(
        screen.text,
        /^A headline\n\nI read twelve files, one after the other, and say it at\nlength\.\nThen\n\n/
      )
      for (let index = 0; index < 11; index++) {
        assert.strictEqual(screen.text.match(new RegExp(`✓ read_file {2}f${index}\\.ts`, "g"))?.length, 1, `f${index}`)
      }
      assert.match(screen.text, /■ read_file {2}f11\.ts +stopped +100 ms/)
      assert.match(screen.text, /Stopped while running: read_file\./)
      assert.match(screen.text, /Stopped at once · 1 turn · 12 calls/)
      assert.notMatch(screen.text, /[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]/)
    }).pipe(
      Effect.scoped,
      Effect.andThen(Effect.sync(() => assert.isTrue(screen.isCursorShown))),
      Effect.provide(services(screen, true))
    )
  })

  it.effect("main job: the view redraws between events, so that the shown time advances", () => {
    const screen = new Screen(60)
    return Effect.gen(function*() {
      const view = yield* View.make
      yield* view.begin
      yield* view.onEvent(asked("a", "x.ts"))
      yield* view.onEvent({ _tag: "ToolExecutionStarted", id: "a", name: "read_file", arguments: {} })
      yield* TestClock.adjust("2 seconds")
      const early = screen.text
      yield* TestClock.adjust("1 second")
      assert.match(early, /x\.ts +(1\.9\d|2\.0\d) s/)
      assert.match(screen.text, /x\.ts +(2\.9\d|3\.0\d) s/)
    }).pipe(Effect.scoped, Effect.provide(services(screen, true)))
  })

  it.effect("main job: the picture leaves out the time spent waiting for the user", () => {
    const screen = new Screen(60)
    return Effect.gen(function*() {
      const view = yield* View.make
      const turn: Event.Event = {
        _tag: "MessageCompleted",
        message: { role: "assistant", content: "", metadata: {} },
        finishReason: "stop"
      }
      yield* view.begin
      yield* TestClock.adjust("1 second")
      yield* view.onEvent(turn)
      yield* view.pause
      yield* TestClock.adjust("1 hour")
      yield* view.begin
      yield* TestClock.adjust("1 second")
      yield* view.onEvent(turn)
      yield* view.finish(null, "word")
      assert.match(screen.text, /turn 2 +1\.00 s ─+ 2\.00 s\n +model .* 1\.00 s$/m)
      assert.match(screen.text, /2 turns · 0 calls · 2\.00 s$/m)
    }).pipe(Effect.scoped, Effect.provide(services(screen, true)))
  })

  const step: Event.Event = {
    _tag: "StepCompleted",
    response: Collector.toResponse(Collector.initial()),
    thread: Thread.empty,
    messages: [],
    mode: "auto",
    manualToolCalls: [],
    done: true
  }
  const over: Event.Event = {
    _tag: "ChatCompleted",
    result: Collector.chatResult({ thread: Thread.empty, steps: [], outcome: { _tag: "Cancelled", reason: "cancel" } })
  }

  it.effect("main job: the terminal shows that a run is stopping until the run has stopped, and then the kept parts", () => {
    const screen = new Screen(60)
    return Effect.gen(function*() {
      const view = yield* View.make
      yield* view.begin
      yield* view.onEvent(text("Let me think"))
      yield* view.stopping
      assert.match(screen.text, /^Let me think\n\n. stopping what runs; Ctrl-C again stops at once$/m)
      yield* view.onEvent(step)
      yield* view.onEvent(over)
      yield* view.stopping
      yield* view.finish(null, "word")
      assert.notInclude(screen.text, "stopping what runs")
      assert.match(screen.text, /\nStopped · 1 turn · 0 calls · < 1 ms\nKept: what was said\.\n$/)
    }).pipe(Effect.scoped, Effect.provide(services(screen, true)))
  })

  it.effect("main job: the plain view shows a requested stop once, and never two blank lines in a row", () => {
    const screen = new Screen(Infinity)
    return Effect.gen(function*() {
      const view = yield* View.make
      yield* view.begin
      yield* view.onEvent(text("One.\n"))
      yield* view.onEvent(asked("a", "x.ts"))
      yield* view.onEvent(text("Two.\n"))
      yield* view.stopping
      yield* view.stopping
      yield* view.onEvent(step)
      yield* view.onEvent(over)
      yield* view.finish(null, "word")
      assert.match(
        screen.text,
        /^One\.\n\nTwo\.\n\nstopping what runs; Ctrl-C again stops at once\n\n {2}turn 1 /
      )
    }).pipe(Effect.scoped, Effect.provide(services(screen, false)))
  })

  const plainly: ReadonlyArray<readonly [string, boolean, Readonly<Record<string, string>>]> = [
    ["outside a terminal", false, {}],
    ["with NO_COLOR", true, { NO_COLOR: "1" }],
    ["on a dumb terminal", true, { TERM: "dumb" }]
  ]
  for (const [where, isTerminal, environment] of plainly) {
    it.effect(`main job: the view ${where} writes plain lines without escape codes`, () => {
      const screen = new Screen(Infinity)
      return Effect.gen(function*() {
        const view = yield* View.make
        yield* play(view)
        yield* view.interrupted("word")
        assert.notInclude(screen.written, "\u001b")
        assert.notInclude(screen.written, "\r")
        assert.match(screen.text, /✓ read_file {2}f3\.ts - 1 line \(50 ms\)/)
        assert.match(screen.text, /■ read_file {2}f11\.ts - stopped \(100 ms\)/)
      }).pipe(Effect.scoped, Effect.provide(services(screen, isTerminal, environment)))
    })
  }

  it.effect("main job: the view ignores an empty NO_COLOR", () => {
    const screen = new Screen(60)
    return Effect.gen(function*() {
      const view = yield* View.make
      yield* view.begin
      yield* view.pause
      assert.include(screen.written, "\u001b[")
    }).pipe(Effect.scoped, Effect.provide(services(screen, true, { NO_COLOR: "" })))
  })
})
