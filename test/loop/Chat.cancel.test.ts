import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Collector, Message, Thread, Tool, ToolRunner } from "heddle"
import { Recorder, Script, Simulation } from "heddle/testing"
import { succeeded } from "../support/runs.ts"

const at = (millis: number) => Effect.sleep(millis)

const contents = (messages: ReadonlyArray<Message.Message>) => messages.map((message) => String(message.content))

const cancelledRun = (
  script: Script.Input,
  tools: ReadonlyArray<Tool.Tool<string, any, any, any, never>>,
  millis: number
) =>
  Simulation.run(
    Effect.provide(Stream.runCollect(Chat.stream("go", { tools, cancel: at(millis) })), Script.layer(script))
  )

describe("Chat: the cancel option", () => {
  it.effect("CF-16: a run cancelled during a reply keeps the partial text and completes as Cancelled", () =>
    Effect.gen(function*() {
      const report = yield* cancelledRun(
        [[Script.text("one "), Script.delay(100), Script.text("two"), Script.finish("stop")]],
        [],
        50
      )
      const events = succeeded(report)
      const last = events.at(-1)
      assert.strictEqual(last?._tag, "ChatCompleted")
      const result = Collector.toChatResult(Collector.applyAll(Collector.initial({ thread: Thread.empty }), events))
      assert.deepStrictEqual(result.outcome, { _tag: "Cancelled", reason: "cancel" })
      assert.strictEqual(result.haltedReason, "cancelled")
      assert.strictEqual(result.finalResponse?.outputText, "one ")
      assert.strictEqual(result.finalResponse?.rawFinishReason, "cancelled")
      assert.deepStrictEqual(contents(result.thread.messages), ["go", "one "])
      assert.strictEqual(report.millis, 50)
      assert.strictEqual(report.sleeping, 0)
    }))

  it.effect("R-398, CF-20: a cancel interrupts running calls, lets blocking calls finish and never starts queued calls", () =>
    Effect.gen(function*() {
      const program = Effect.gen(function*() {
        const recorder = yield* Recorder.make
        const handler = (name: string, body: Effect.Effect<unknown>) => ({
          parameters: {},
          handler: recorder.handler(() => body),
          name
        })
        const tools = [
          Tool.make("quick", handler("quick", Effect.succeed("done"))),
          Tool.make("block", { ...handler("block", Effect.as(Effect.sleep(30), "whole")), interrupt: "block" }),
          Tool.make("wait", handler("wait", Effect.sleep(30))),
          Tool.make("late", handler("late", Effect.succeed("never")))
        ]
        const model = Script.layer([[
          Script.toolCall("a", "quick"),
          Script.toolCall("b", "block"),
          Script.toolCall("c", "wait"),
          Script.toolCall("d", "late"),
          Script.finish("tool_calls")
        ], [Script.text("never said"), Script.finish("stop")]])
        const result = yield* Effect.provide(Chat.run("go", { tools, cancel: at(5), maxConcurrency: 2 }), model)
        return { result, late: yield* recorder.counts("late"), all: yield* recorder.counts() }
      })
      const report = yield* Simulation.run(program)
      const { result, late, all } = succeeded(report)
      assert.strictEqual(result.outcome._tag, "Cancelled")
      const [quick, block, wait, queued] = contents(result.steps[0]?.toolResults ?? [])
      assert.strictEqual(quick, "done")
      assert.strictEqual(block, "whole")
      assert.include(wait ?? "", "interrupted: Execution cancelled by parent abort signal")
      assert.include(queued ?? "", "not run: Execution cancelled by parent abort signal")
      assert.strictEqual(late.starts, 0)
      assert.deepStrictEqual([all.live, all.finalizers], [0, all.starts])
      assert.deepStrictEqual(Thread.unanswered(result.thread), [])
      assert.strictEqual(result.steps.length, 1)
      assert.strictEqual(report.millis, 30)
    }))

  it.effect("law 3: no model call follows a stop between two turns", () =>
    Effect.gen(function*() {
      const program = Effect.gen(function*() {
        const scripted = yield* Script.make([
          [Script.toolCall("a", "ping"), Script.finish("tool_calls")],
          [Script.text("never said"), Script.finish("stop")]
        ])
        const controller = new AbortController()
        const ping = Tool.make("ping", { parameters: {}, handler: () => Effect.succeed("pong") })
        const result = yield* Stream.runFold(
          Chat.stream("go", { tools: [ping], cancel: controller.signal }).pipe(Stream.provide(scripted.layer)),
          (): Collector.State => Collector.initial({ thread: Thread.empty }),
          (state, event) => {
            if (event._tag === "StepCompleted") controller.abort()
            return Collector.applyEvent(state, event)
          }
        )
        return { result: Collector.toChatResult(result), opens: yield* scripted.opens }
      })
      const { result, opens } = succeeded(yield* Simulation.run(program))
      assert.strictEqual(opens, 1)
      assert.strictEqual(result.outcome._tag, "Cancelled")
      assert.deepStrictEqual(contents(result.thread.messages), ["go", "", "pong"])
    }))

  it.effect("R-399: a run given an already aborted signal starts nothing", () =>
    Effect.gen(function*() {
      const program = Effect.gen(function*() {
        const scripted = yield* Script.make([[Script.text("x"), Script.finish("stop")]])
        const result = yield* Chat.run("go", { cancel: AbortSignal.abort() }).pipe(Effect.provide(scripted.layer))
        return { result, opens: yield* scripted.opens }
      })
      const { result, opens } = succeeded(yield* Simulation.run(program))
      assert.strictEqual(opens, 0)
      assert.strictEqual(result.outcome._tag, "Cancelled")
      assert.deepStrictEqual(contents(result.thread.messages), ["go"])
    }))

  it.effect("CF-16: a cancelled run leaves a model that never answers at once", () =>
    Effect.gen(function*() {
      const report = yield* cancelledRun([[Script.delay("Infinity"), Script.text("x")]], [], 20)
      assert.strictEqual(succeeded(report).at(-1)?._tag, "ChatCompleted")
      assert.strictEqual(report.millis, 20)
      assert.strictEqual(report.sleeping, 0)
    }))

  it.effect("CF-16: a cancel or a deadline leaves a model that never opens its reply at once", () =>
    Effect.gen(function*() {
      const opening = Stream.fromPull<never, never, never, never, never>(Effect.never)
      const adapter = { stream: () => opening }
      for (const stop of [{ cancel: at(20) }, { deadline: 20 }]) {
        const report = yield* Simulation.run(
          Effect.provideService(Chat.run("go", { ...stop, tools: [] }), Adapter.Adapter, adapter)
        )
        const reason = "cancel" in stop ? "cancel" : "deadline"
        assert.deepStrictEqual(succeeded(report).outcome, { _tag: "Cancelled", reason })
        assert.deepStrictEqual([report.millis, report.fibers], [20, 0])
      }
    }))

  it.effect("a cancel or a deadline ends a run at once while its halt condition is being asked", () =>
    Effect.gen(function*() {
      const tool = Tool.make("tool", { parameters: {}, handler: () => Effect.succeed("answer") })
      for (const stop of [{ cancel: at(20) }, { deadline: 20 }]) {
        const asked: Array<string> = []
        const haltWhen = () => Effect.onInterrupt(Effect.never, () => Effect.sync(() => asked.push("stopped")))
        const model = Script.layer([[Script.toolCall("a", "tool"), Script.finish("tool_calls")]])
        const run = Chat.run("go", { ...stop, tools: [tool], haltWhen })
        const report = yield* Simulation.run(Effect.provide(run, model))
        const { outcome, thread } = succeeded(report)
        const reason = "cancel" in stop ? "cancel" : "deadline"
        assert.deepStrictEqual(outcome, { _tag: "Cancelled", reason })
        assert.deepStrictEqual(contents(thread.messages), ["go", "", "answer"])
        assert.deepStrictEqual([report.millis, report.fibers, asked], [20, 0, ["stopped"]])
      }
    }))

  it.effect("CF-16: a run that ends before its cancel effect completes normally", () =>
    Effect.gen(function*() {
      const report = yield* cancelledRun([[Script.text("x"), Script.finish("stop")]], [], 1000)
      const last = succeeded(report).at(-1)
      assert.strictEqual(last?._tag === "ChatCompleted" && last.result.outcome._tag, "Completed")
      assert.strictEqual(report.millis, 0)
      assert.strictEqual(report.sleeping, 0)
    }))

  it.effect("J-16: ToolRunner.run cancels its calls like a chat run", () =>
    Effect.gen(function*() {
      const wait = Tool.make("wait", { parameters: {}, handler: () => Effect.sleep(30) })
      const block = Tool.make("block", {
        parameters: {},
        interrupt: "block",
        handler: () => Effect.as(Effect.sleep(30), "whole")
      })
      const calls = ["block", "wait", "wait"].map((name, index) => Message.toolCall(`c${index}`, name))
      const report = yield* Simulation.run(
        ToolRunner.run(calls, [wait, block], { maxConcurrency: 2, cancel: at(5) })
      )
      const [whole, interrupted, queued] = contents(succeeded(report).messages)
      assert.strictEqual(whole, "whole")
      assert.include(interrupted ?? "", "interrupted")
      assert.include(queued ?? "", "not run")
      assert.strictEqual(report.millis, 30)
    }))

  it.effect("law 1: every call is answered, at whatever time the run is cancelled", () =>
    Effect.gen(function*() {
      const look = Tool.make("look", { parameters: {}, readOnly: true, handler: () => Effect.sleep(7) })
      const work = Tool.make("work", { parameters: {}, handler: () => Effect.sleep(5) })
      const model = [
        [
          Script.text("a"),
          Script.delay(3),
          Script.toolCall("c0", "look"),
          Script.delay(3),
          Script.toolCall("c1", "work"),
          Script.delay(3),
          Script.finish("tool_calls")
        ],
        [Script.delay(3), Script.toolCall("c2", "look"), Script.delay(10), Script.finish("tool_calls")],
        [Script.text("done"), Script.finish("stop")]
      ]
      const outcomes = new Set<string>()
      for (let millis = 0; millis < 40; millis++) {
        const report = yield* cancelledRun(model, [look, work], millis + 0.5)
        const last = succeeded(report).at(-1)
        if (last?._tag !== "ChatCompleted") return assert.fail("no ChatCompleted")
        outcomes.add(last.result.outcome._tag)
        assert.deepStrictEqual(Thread.unanswered(last.result.thread), [], `cancelled at ${millis} ms`)
        assert.strictEqual(report.sleeping, 0, `cancelled at ${millis} ms`)
      }
      assert.deepStrictEqual(Array.from(outcomes), ["Cancelled", "Completed"])
    }))
})
