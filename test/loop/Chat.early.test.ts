import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Stream from "effect/Stream"
import { Adapter, Chat, type Event, Message, Policy, Step, Thread, Tool } from "heddle"
import { Recorder, Script, Simulation } from "heddle/testing"
import { succeeded } from "../support/runs.ts"

const readOnly = (
  name: string,
  body: Effect.Effect<unknown>,
  more: Partial<Tool.Options<{}, any, never, never>> = {}
) => Tool.make(name, { parameters: {}, readOnly: true, handler: () => body, ...more })

/** Events with the virtual time at which they were read. */
const timed = <E, R>(stream: Stream.Stream<{ readonly _tag: string }, E, R>) =>
  Stream.runCollect(
    Stream.mapEffect(stream, (event) => Effect.map(Clock.currentTimeMillis, (at) => [at, event._tag] as const))
  )

const at = (log: ReadonlyArray<readonly [number, string]>, tag: string): ReadonlyArray<number> =>
  log.filter(([, name]) => name === tag).map(([time]) => time)

/** A call that is complete at 50 ms in a reply of 550 ms, and then a text. */
const overlapping = (name: string) =>
  Script.layer([
    [Script.delay(50), Script.toolCall("a", name), Script.delay(500), Script.text("x"), Script.finish("tool_calls")],
    [Script.text("done"), Script.finish("stop")]
  ])

describe("early start", () => {
  it.effect("J-28: a read-only tool of 300 ms runs inside a reply of 550 ms", () =>
    Effect.gen(function*() {
      const look = readOnly("look", Effect.as(Effect.sleep(300), "seen"))
      const report = yield* Simulation.run(
        timed(Chat.stream("go", { tools: [look] })).pipe(Effect.provide(overlapping("look")))
      )
      const log = succeeded(report)
      assert.deepStrictEqual(at(log, "ToolExecutionStarted"), [50])
      assert.deepStrictEqual(at(log, "ToolResultEncoded"), [350])
      assert.deepStrictEqual(at(log, "MessageStarted"), [0, 550])
      assert.strictEqual(report.millis, 550)
    }))

  it.effect("CF-3: a tool not declared read-only waits for the end of the reply", () =>
    Effect.gen(function*() {
      const write = Tool.make("write", { parameters: {}, handler: () => Effect.as(Effect.sleep(300), "written") })
      const log = succeeded(
        yield* Simulation.run(timed(Chat.stream("go", { tools: [write] })).pipe(Effect.provide(overlapping("write"))))
      )
      assert.deepStrictEqual(at(log, "ToolExecutionStarted"), [550])
      assert.deepStrictEqual(at(log, "ToolResultEncoded"), [850])
    }))

  it.effect("CF-3: onCallReady starts every tool early, and afterTurn starts none early", () =>
    Effect.gen(function*() {
      const write = Tool.make("write", { parameters: {}, handler: () => Effect.sleep(10) })
      const look = readOnly("look", Effect.sleep(10))
      const starts = (start: Policy.Policy["start"], name: string) =>
        Effect.map(
          Simulation.run(
            timed(Chat.stream("go", { tools: [write, look], policy: { ...Policy.standard, start } })).pipe(
              Effect.provide(overlapping(name))
            )
          ),
          (report) => at(succeeded(report), "ToolExecutionStarted")
        )
      assert.deepStrictEqual(yield* starts("onCallReady", "write"), [50])
      assert.deepStrictEqual(yield* starts("afterTurn", "look"), [550])
    }))

  it.effect("R-136: answers stand in call order, whichever calls started early", () =>
    Effect.gen(function*() {
      const write = Tool.make("write", { parameters: {}, handler: () => Effect.succeed("w") })
      const look = readOnly("look", Effect.as(Effect.sleep(1000), "l"))
      const model = Script.layer([
        [
          Script.toolCall("a", "write"),
          Script.delay(1),
          Script.toolCall("b", "look"),
          Script.delay(1),
          Script.toolCall("c", "write"),
          Script.delay(1),
          Script.finish("tool_calls")
        ],
        [Script.text("done"), Script.finish("stop")]
      ])
      for (const resultOrder of ["request", "completion"] as const) {
        const policy: Policy.Policy = { ...Policy.standard, resultOrder }
        const report = yield* Simulation.run(
          Effect.provide(Chat.run("go", { tools: [write, look], policy }), model)
        )
        const { thread, steps } = succeeded(report)
        assert.deepStrictEqual(thread.messages.slice(2, 5).map((message) => message.toolCallId), ["a", "b", "c"])
        assert.deepStrictEqual(steps[0]?.toolResults.map((message) => message.content), ["w", "l", "w"])
      }
    }))

  it.effect("R-384: an exclusive call that started early is a barrier for later calls", () =>
    Effect.gen(function*() {
      let live = 0
      let peak = 0
      const body = Effect.acquireUseRelease(
        Effect.sync(() => {
          peak = Math.max(peak, ++live)
        }),
        () => Effect.sleep(20),
        () => Effect.sync(() => live--)
      )
      const alone = readOnly("alone", body, { concurrency: "exclusive" })
      const look = readOnly("look", body)
      const model = Script.layer([
        [
          Script.toolCall("a", "look"),
          Script.delay(1),
          Script.toolCall("b", "alone"),
          Script.delay(1),
          Script.toolCall("c", "look"),
          Script.delay(1),
          Script.finish("tool_calls")
        ],
        [Script.text("done"), Script.finish("stop")]
      ])
      const report = yield* Simulation.run(Effect.provide(Chat.run("go", { tools: [alone, look] }), model))
      assert.strictEqual(peak, 1)
      assert.strictEqual(report.millis, 60)
    }))

  it.effect("law 2: a call whose completion is sent twice runs once", () =>
    Effect.gen(function*() {
      let runs = 0
      const look = readOnly("look", Effect.sync(() => ++runs))
      const model = Script.layer([
        [
          Script.toolCall("a", "look"),
          Script.delay(5),
          Script.toolCall("a", "look"),
          Script.delay(5),
          Script.finish("stop")
        ],
        [Script.text("done"), Script.finish("stop")]
      ])
      const report = yield* Simulation.run(Effect.provide(Chat.run("go", { tools: [look] }), model))
      const { thread } = succeeded(report)
      const calls = thread.messages.flatMap((message) => message.toolCalls ?? [])
      assert.strictEqual(runs, calls.length)
      assert.deepStrictEqual(Thread.unanswered(thread), [])
    }))

  it.effect("R-357, R-345: a call without usable arguments is answered after the reply and never starts", () =>
    Effect.gen(function*() {
      let runs = 0
      const look = readOnly("look", Effect.sync(() => ++runs))
      const lost = Script.event({
        _tag: "ToolCallCompleted",
        id: "a",
        name: "look",
        arguments: {},
        rawArguments: "{\"x",
        argumentsLost: "json_decode_error"
      })
      const model = Script.layer([
        [lost, Script.delay(5), Script.finish("tool_calls")],
        [Script.text("done"), Script.finish("stop")]
      ])
      const result = succeeded(
        yield* Simulation.run(Effect.provide(Chat.run("go", { tools: [look] }), model))
      )
      assert.strictEqual(runs, 0)
      assert.include(String(result.thread.messages[2]?.content), "invalid_arguments")
    }))

  it.effect("§3.3-7: a policy that fails whole turns cannot start calls early", () =>
    Effect.gen(function*() {
      const policy: Policy.Policy = { ...Policy.allm, start: "readOnly" }
      const exit = yield* Effect.exit(Effect.provide(Chat.run("go", { policy }), Script.layer([])))
      assert.isTrue(Exit.hasDies(exit))
    }))
})

const endings = {
  content_filter: [Script.finish("content_filter")],
  error: [Script.error("network_error")],
  dropped: [Script.streamError("network_error")]
} as const

describe("a reply that ends badly after a tool has started", () => {
  for (const [name, ending] of Object.entries(endings)) {
    it.effect(`J-29, law 1: a running call is interrupted, awaited and answered after its reply ends badly (${name})`, () =>
      Effect.gen(function*() {
        const program = Effect.gen(function*() {
          const recorder = yield* Recorder.make
          const look = Tool.make("look", {
            parameters: {},
            readOnly: true,
            handler: recorder.handler(() => Effect.onInterrupt(Effect.never, () => Effect.sleep(60)))
          })
          const quick = readOnly("quick", Effect.succeed("kept"))
          const model = Script.layer([[
            Script.toolCall("a", "look"),
            Script.delay(5),
            Script.toolCall("b", "quick"),
            Script.delay(5),
            ...ending
          ]])
          const step = yield* Effect.provide(Step.run("go", { tools: [look, quick] }), model)
          return { step, counts: yield* recorder.counts("look"), now: yield* Clock.currentTimeMillis }
        })
        const report = yield* Simulation.run(program)
        const { step, counts, now } = succeeded(report)
        assert.deepStrictEqual(step.toolResults.map((message) => message.toolCallId), ["a", "b"])
        assert.include(String(step.toolResults[0]?.content), "interrupted: the reply ended with")
        assert.isTrue(step.toolResults[0]?.isError)
        assert.strictEqual(step.toolResults[1]?.content, "kept")
        assert.deepStrictEqual([counts.starts, counts.live, counts.interrupts, counts.finalizers], [1, 0, 1, 1])
        assert.strictEqual(now, 70)
        assert.strictEqual(report.sleeping, 0)
        assert.deepStrictEqual(Thread.unanswered(step.thread), [])
      }))
  }

  it.effect("law 7: a call behind the end or an error of its reply never starts, in the same read or in a later read", () =>
    Effect.gen(function*() {
      const message = Message.assistant("")
      const call = { _tag: "ToolCallCompleted", id: "a", name: "look", arguments: {}, rawArguments: "{}" } as const
      const endings: ReadonlyArray<Event.AdapterEvent> = [
        { _tag: "MessageCompleted", message, finishReason: "content_filter" },
        { _tag: "Error", error: "broken" }
      ]
      for (const ending of endings) {
        for (const stream of [Stream.make(ending, call), Stream.concat(Stream.make(ending), Stream.make(call))]) {
          let runs = 0
          const look = readOnly("look", Effect.sync(() => ++runs))
          const step = yield* Effect.provideService(Step.run("go", { tools: [look] }), Adapter.Adapter, {
            stream: () => stream
          })
          assert.strictEqual(runs, 0)
          assert.include(String(step.toolResults[0]?.content), "not run: the reply ended with")
        }
      }
    }))

  for (const interrupt of ["cancel", "block"] as const) {
    for (const start of ["readOnly", "onCallReady", "afterTurn"] as const) {
      it.effect(`M-05: after a cut every call with final arguments runs to its end (${interrupt}, ${start})`, () =>
        Effect.gen(function*() {
          const body = (value: string) => Effect.as(Effect.sleep(40), value)
          const look = readOnly("look", body("seen"), { interrupt })
          const write = Tool.make("write", { parameters: {}, interrupt, handler: () => body("written") })
          const model = Script.layer([
            [
              Script.toolCall("a", "look"),
              Script.toolCall("b", "write"),
              Script.event({ _tag: "ToolCallStarted", id: "c", name: "look" }),
              Script.toolCallDelta("c", "{\"x"),
              Script.delay(5),
              Script.finish("length")
            ],
            [Script.text("done"), Script.finish("stop")]
          ])
          const policy: Policy.Policy = { ...Policy.standard, start }
          const run = Chat.run("go", { tools: [look, write], policy }).pipe(Effect.provide(model))
          const result = succeeded(yield* Simulation.run(run))
          const answers = result.thread.messages.filter(({ role }) => role === "tool")
          assert.deepStrictEqual(answers.slice(0, 2).map(({ content }) => content), ["seen", "written"])
          assert.include(String(answers[2]?.content), "truncated_arguments")
          assert.deepStrictEqual([result.outcome._tag, result.steps.length], ["Completed", 2])
        }))
    }
  }

  it.effect("M-05: after a content filter or an error no call starts, and running calls are interrupted", () =>
    Effect.gen(function*() {
      for (const ending of [endings.content_filter, endings.error, endings.dropped, [Script.finish("error")]]) {
        let writes = 0
        const look = readOnly("look", Effect.as(Effect.sleep(40), "seen"))
        const write = Tool.make("write", { parameters: {}, handler: () => Effect.sync(() => ++writes) })
        const model = Script.layer([
          [Script.toolCall("a", "look"), Script.toolCall("b", "write"), Script.delay(5), ...ending]
        ])
        const step = succeeded(yield* Simulation.run(Effect.provide(Step.run("go", { tools: [look, write] }), model)))
        assert.deepStrictEqual(
          step.toolResults.map(({ content }) => /cancelled: (interrupted|not run)/.exec(String(content))?.[1]),
          ["interrupted", "not run"]
        )
        assert.strictEqual(writes, 0)
      }
    }))

  it.effect("R-357, P-17: a complete call runs after a cut, whether or not another call had started", () =>
    Effect.gen(function*() {
      const look = readOnly("look", Effect.sleep(40))
      const write = Tool.make("write", { parameters: {}, handler: () => Effect.succeed("written") })
      for (const before of [[], [Script.toolCall("a", "look"), Script.delay(5)]]) {
        const model = Script.layer([[
          ...before,
          Script.toolCall("b", "write"),
          Script.delay(5),
          Script.finish("length")
        ]])
        const step = succeeded(yield* Simulation.run(Effect.provide(Step.run("go", { tools: [look, write] }), model)))
        assert.strictEqual(step.toolResults.at(-1)?.content, "written")
        assert.isFalse(step.done)
      }
    }))

  it.effect("law 1: two calls with one id in one read are kept apart, and only the read-only call starts early", () =>
    Effect.gen(function*() {
      const starts: Array<string> = []
      const look = readOnly("look", Effect.sync(() => starts.push("look")))
      const write = Tool.make("write", { parameters: {}, handler: () => Effect.sync(() => starts.push("write")) })
      const model = Script.layer([
        [Script.toolCall("d", "look"), Script.toolCall("d", "write"), Script.delay(50), Script.error("network_error")]
      ])
      const step = succeeded(yield* Simulation.run(Effect.provide(Step.run("go", { tools: [look, write] }), model)))
      assert.deepStrictEqual(starts, ["look"])
      assert.deepStrictEqual(Thread.unanswered(step.thread), [])
    }))

  it.effect("R-398: after an error a handler that blocks interruption finishes, and its result counts", () =>
    Effect.gen(function*() {
      const look = readOnly("look", Effect.as(Effect.sleep(50), "whole"), { interrupt: "block" })
      const model = Script.layer([[Script.toolCall("a", "look"), Script.delay(5), Script.error("network_error")]])
      const step = succeeded(yield* Simulation.run(Effect.provide(Step.run("go", { tools: [look] }), model)))
      assert.strictEqual(step.response.finishReason, "error")
      assert.strictEqual(step.toolResults[0]?.content, "whole")
    }))

  it.effect("law 1: after a content filter a call waiting for a permit is answered and never starts", () =>
    Effect.gen(function*() {
      let runs = 0
      const look = readOnly("look", Effect.andThen(Effect.sync(() => runs++), Effect.sleep(50)))
      const model = Script.layer([[
        Script.toolCall("a", "look"),
        Script.toolCall("b", "look"),
        Script.delay(5),
        Script.finish("content_filter")
      ]])
      const step = succeeded(
        yield* Simulation.run(Effect.provide(Step.run("go", { tools: [look], maxConcurrency: 1 }), model))
      )
      assert.strictEqual(runs, 1)
      assert.include(String(step.toolResults[1]?.content), "not run: the reply ended with")
    }))
})

describe("leaving a reply while its tools run", () => {
  it.effect("law 3: nothing stays alive at whatever step the run is interrupted", () =>
    Effect.gen(function*() {
      const program = (recorder: Recorder.Recorder) => {
        const look = Tool.make("look", {
          parameters: {},
          readOnly: true,
          handler: recorder.handler(() => Effect.sleep(30))
        })
        return Effect.provide(
          Chat.run("go", { tools: [look] }),
          Script.layer({
            scripts: [
              [
                Script.toolCall("a", "look"),
                Script.delay(10),
                Script.toolCall("b", "look"),
                Script.delay(50),
                Script.finish("stop")
              ],
              [Script.text("done"), Script.finish("stop")]
            ],
            chunkSize: 1
          })
        )
      }
      const observed = (interruptAt: number) =>
        Effect.gen(function*() {
          const recorder = yield* Recorder.make
          const report = yield* Simulation.run(program(recorder), { interruptAt })
          return { report, counts: yield* recorder.counts() }
        })
      const whole = yield* observed(Infinity)
      assert.isAbove(whole.report.steps, 5)
      for (let step = 0; step <= whole.report.steps; step++) {
        const { report, counts } = yield* observed(step)
        assert.isDefined(report.exit, `step ${step}: the run did not end`)
        assert.strictEqual(report.sleeping, 0, `step ${step}: a fiber is asleep`)
        assert.strictEqual(counts.live, 0, `step ${step}: a handler is alive`)
        assert.strictEqual(counts.finalizers, counts.starts, `step ${step}: finalizers`)
      }
    }))

  it.effect("law 10: the model is read at most one read ahead of the reader", () =>
    Effect.gen(function*() {
      const look = readOnly("look", Effect.sleep(1000))
      const entries = Array.from({ length: 200 }, (_, index) => Script.text(`${index} `))
      const program = Effect.gen(function*() {
        const scripted = yield* Script.make({
          scripts: [[Script.toolCall("a", "look"), ...entries, Script.finish("stop")]],
          chunkSize: 1
        })
        const seen = yield* Stream.runCollect(
          Stream.take(Chat.stream("go", { tools: [look] }).pipe(Stream.provide(scripted.layer)), 10)
        )
        return { seen, cleanups: yield* scripted.cleanups }
      })
      const report = yield* Simulation.run(program)
      const { seen, cleanups } = succeeded(report)
      assert.strictEqual(seen.length, 10)
      assert.strictEqual(cleanups, 1)
      assert.strictEqual(report.millis, 0)
      assert.strictEqual(report.sleeping, 0)
    }))
})
