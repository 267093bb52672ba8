/**
 * A handler that has returned while a fiber it forked does not stop: the call is answered at once, and its place is free
 * when that fiber has ended or has had its grace period. One that is alive when the run ends is named.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Chat, type Event, Executor, Limits, Message, Policy, StreamingToolExecutor, Tool, ToolRunner } from "heddle"
import { Recorder, Script, Simulation } from "heddle/testing"
import { contents, elapsed, timed, watched } from "../support/runs.ts"
import * as Tools from "../support/tools.ts"

const calling = (...names: ReadonlyArray<string>) => names.map((name, index) => Message.toolCall(`c${index}`, name))

/** Children that do not stop: one never ends, one takes four seconds for its release. */
const children = {
  deaf: Effect.uninterruptible(Effect.never),
  slow: Effect.onInterrupt(Effect.never, () => Effect.sleep(4000))
}

/** Forks a child, which is running when this returns. */
const forking = (child: Effect.Effect<unknown>) => Effect.asVoid(Effect.forkChild(child, { startImmediately: true }))

/** A tool that is done after 10 ms, and leaves a child behind. */
const parent = (child: Effect.Effect<unknown>, options: Partial<Tool.Any> = {}): Tool.Any => ({
  ...Tool.make("parent", {
    parameters: {},
    handler: () => Effect.as(Effect.andThen(forking(child), Effect.sleep(10)), "done")
  }),
  ...options
})

const startedAt = (line: ReadonlyArray<readonly [number, string, string]>) =>
  line.flatMap(([at, tag, id]) => tag === "ToolExecutionStarted" ? [[at, id]] : [])

const answeredAt = (line: ReadonlyArray<readonly [number, string, string]>) =>
  line.flatMap(([at, tag, id]) => tag === "ToolExecutionCompleted" ? [[at, id]] : [])

const named = (abandoned: ReadonlyArray<Event.Abandoned> | undefined) => abandoned?.map(({ id, name }) => [id, name])

describe("a handler whose children do not stop", () => {
  it.effect("M-01: a handler whose child does not stop is answered at once, and its place is free one grace period later", () =>
    Effect.gen(function*() {
      const tools = [parent(children.deaf), Tools.echo]
      const options = { maxConcurrency: 1, grace: 1000 }
      const { line } = yield* watched(ToolRunner.stream(calling("parent", "echo"), tools, options))
      assert.deepStrictEqual(startedAt(line), [[0, "c0"], [1010, "c1"]])
      assert.deepStrictEqual(answeredAt(line), [[10, "c0"], [1010, "c1"]])
      const { at, value } = yield* elapsed(ToolRunner.run(calling("parent", "echo"), tools, options))
      assert.strictEqual(at, 1010)
      assert.deepStrictEqual(contents(value), [["c0", "done"], ["c1", "{}"]])
      assert.deepStrictEqual(named(value.abandoned), [["c0", "parent"]])
    }))

  it.effect("M-01: a call of the next turn takes the place of a handler with a live child, also in the same millisecond", () =>
    Effect.gen(function*() {
      const model = Script.layer([
        [Script.toolCall("c0", "parent"), Script.finish("tool_calls")],
        [Script.toolCall("c1", "look"), Script.finish("tool_calls")],
        [Script.text("done"), Script.finish("stop")]
      ])
      const look = Tool.make("look", { parameters: {}, readOnly: true, handler: () => Effect.void })
      for (const child of Object.values(children)) {
        const run = Chat.stream("go", { tools: [parent(child), look], maxConcurrency: 1, grace: 1000 })
        const recorder = yield* Recorder.make
        const report = yield* Simulation.run(Stream.runCollect(recorder.tap(Stream.provide(run, model))))
        assert.strictEqual(report.exit?._tag, "Success")
        const answers = (yield* recorder.events).flatMap((event) =>
          event._tag === "ToolExecutionCompleted" ? [[event.id, event.result._tag]] : []
        )
        assert.deepStrictEqual(answers, [["c0", "Ok"], ["c1", "Ok"]])
        assert.strictEqual(report.millis, 1010)
      }
    }))

  it.effect("M-01: a call behind a refused exclusive call takes the place that a handler with a live child gives up", () =>
    Effect.gen(function*() {
      const model = Script.layer([
        [Script.toolCall("c0", "parent"), Script.finish("tool_calls")],
        [Script.toolCall("c1", "alone"), Script.toolCall("c2", "echo"), Script.finish("tool_calls")],
        [Script.text("done"), Script.finish("stop")]
      ])
      const alone = Tool.make("alone", { parameters: {}, concurrency: "exclusive", handler: () => Effect.void })
      const tools = [parent(children.deaf), alone, Tools.echo]
      const recorder = yield* Recorder.make
      const run = Chat.stream("go", { tools, maxConcurrency: 1, grace: 1000 })
      yield* Simulation.run(Stream.runCollect(recorder.tap(Stream.provide(run, model))))
      const answers = (yield* recorder.events).flatMap((event) =>
        event._tag === "ToolExecutionCompleted" ? [[event.id, event.result._tag]] : []
      )
      assert.deepStrictEqual(answers, [["c0", "Ok"], ["c1", "Error"], ["c2", "Ok"]])
    }))

  it.effect("M-01: a handler keeps keyed and application permits as long as its place for its child, also permits it had waited for", () =>
    Effect.gen(function*() {
      const limits = [{ key: "one", permits: 1 }]
      const tools = [parent(children.deaf, { limits }), { ...Tools.echo, limits }]
      const { line } = yield* watched(ToolRunner.stream(calling("parent", "echo"), tools, { grace: 1000 }))
      assert.deepStrictEqual(startedAt(line), [[0, "c0"], [1010, "c1"]])
      for (
        const [names, starts] of [[["parent", "echo"], [0, 1010]], [["parent", "parent", "echo"], [
          0,
          1010,
          2020
        ]]] as const
      ) {
        const run = ToolRunner.stream(calling(...names), [parent(children.deaf), Tools.echo], { grace: 1000 })
        const { line } = yield* watched(Stream.provide(run, Limits.layer({ permits: 1 })))
        assert.deepStrictEqual(startedAt(line).map(([at]) => at), [...starts])
      }
    }))

  it.effect("M-01: the place of a handler is free when its child ends within the grace period, or after the grace period", () =>
    Effect.gen(function*() {
      const tools = [parent(children.slow), Tools.echo]
      for (const [grace, at] of [[5000, 4010], [1000, 1010]] as const) {
        const { value } = yield* elapsed(
          ToolRunner.run(calling("parent", "echo"), tools, { maxConcurrency: 1, grace })
        )
        assert.deepStrictEqual(contents(value), [["c0", "done"], ["c1", "{}"]])
        assert.deepStrictEqual(named(value.abandoned), grace === 5000 ? undefined : [["c0", "parent"]])
        const { line } = yield* watched(
          ToolRunner.stream(calling("parent", "echo"), tools, { maxConcurrency: 1, grace })
        )
        assert.deepStrictEqual(startedAt(line), [[0, "c0"], [at, "c1"]])
      }
    }))

  it.effect("M-01: an exclusive handler keeps other calls out while its child lives, and no call hangs", () =>
    Effect.gen(function*() {
      const ended = { ...parent(children.slow), concurrency: "exclusive" } as Tool.Any
      const { line } = yield* watched(
        ToolRunner.stream(calling("parent", "parent"), [ended], { grace: 5000 })
      )
      assert.deepStrictEqual(startedAt(line), [[0, "c0"], [4010, "c1"]])
      const deaf = { ...parent(children.deaf), concurrency: "exclusive" } as Tool.Any
      const { at, value } = yield* elapsed(
        ToolRunner.run(calling("parent", "echo", "parent"), [deaf, Tools.echo], { grace: 1000 })
      )
      assert.strictEqual(value.messages[0]?.content, "done")
      for (const message of value.messages.slice(1)) {
        assert.include(String(message.content), "an earlier tool refused to stop and is still running")
      }
      assert.strictEqual(at, 2010)
      assert.deepStrictEqual(named(value.abandoned), [["c0", "parent"]])
    }))

  it.effect("M-01: the end of the run adds no second grace period for a live child", () =>
    Effect.gen(function*() {
      for (const [millis, at] of [[600, 1010], [5, 1010], [3000, 3000]] as const) {
        const { value, ...run } = yield* elapsed(
          ToolRunner.run(calling("parent", "slow"), [parent(children.deaf), Tools.slow(millis)], { grace: 1000 })
        )
        assert.strictEqual(run.at, at)
        assert.deepStrictEqual(value.abandoned?.map(({ ageMillis, id }) => [id, ageMillis]), [["c0", at]])
      }
    }))

  it.effect("M-01: an interrupted run waits for a live child no longer than one grace period", () =>
    Effect.gen(function*() {
      for (const stopAt of [5, 510]) {
        const run = ToolRunner.run(calling("parent"), [parent(children.deaf)], { grace: 1000 })
        const fiber = yield* Effect.forkChild(run, { startImmediately: true })
        yield* TestClock.adjust(stopAt)
        assert.strictEqual((yield* timed(Fiber.interrupt(fiber))).at, stopAt === 5 ? 1000 : 500)
      }
    }))

  /** Each way in which the fiber of a call answers it, or lets it wait for an approval. */
  const ways: { readonly [how: string]: Tool.Any } = {
    "a failure": parent(children.deaf, {
      handler: () => Effect.andThen(forking(children.deaf), Effect.fail("no"))
    }),
    "a defect": parent(children.deaf, {
      handler: () => Effect.andThen(forking(children.deaf), Effect.die("no"))
    }),
    "the last of several attempts": parent(children.deaf, {
      retry: Schedule.recurs(2),
      handler: () => Effect.andThen(forking(children.deaf), Effect.fail("no"))
    }),
    "a value of a blocking handler": parent(children.deaf, { interrupt: "block" }),
    "a value without a time limit": parent(children.deaf, { timeout: Duration.infinity }),
    "a denial": parent(children.deaf, { validate: () => Effect.as(forking(children.deaf), false) }),
    "a needed approval": parent(children.deaf, {
      approval: () => Effect.as(forking(children.deaf), true)
    }),
    "a value behind a gate with a child": parent(Effect.void, {
      authorize: () => Effect.as(forking(children.deaf), true)
    })
  }

  for (const [how, tool] of Object.entries(ways)) {
    it.effect(`M-01: a later call starts, and the run names the handler whose child lives, after ${how}`, () =>
      Effect.gen(function*() {
        const executor = Executor.layer({ execute: Executor.direct.execute })
        for (const layer of [undefined, executor]) {
          const run = ToolRunner.run(calling("parent", "echo"), [tool, Tools.echo], { maxConcurrency: 1, grace: 1000 })
          const { at, value } = yield* elapsed(
            layer === undefined ? run : Effect.provide(run, layer, { local: true })
          )
          assert.isAtMost(at, 1010)
          assert.isAtLeast(at, 1000)
          assert.deepStrictEqual(contents(value).at(-1), ["c1", "{}"])
          assert.deepStrictEqual(named(value.abandoned), [["c0", "parent"]])
        }
      }))
  }

  it.effect("M-01: under every policy, early or not, a later call starts, and the result names the handler whose child lives", () =>
    Effect.gen(function*() {
      for (const policy of [Policy.standard, Policy.allm, Policy.falai]) {
        for (const readOnly of [false, true]) {
          const model = Script.layer([
            [Script.toolCall("c0", "parent"), Script.toolCall("c1", "echo"), Script.finish("tool_calls")],
            [Script.text("done"), Script.finish("stop")]
          ])
          const tools = [parent(children.deaf, { readOnly, concurrency: "shared" }), {
            ...Tools.echo,
            readOnly,
            concurrency: "shared" as const
          }]
          const chat = Chat.run("go", { tools, policy, maxConcurrency: 1, grace: 1000 })
          const { at, value } = yield* elapsed(Effect.provide(chat, model, { local: true }))
          assert.strictEqual(at, 1010)
          const answers = value.thread.messages.filter(({ role }) => role === "tool")
          assert.deepStrictEqual(answers.map(({ content }) => content), ["done", "{}"])
          assert.deepStrictEqual(named(value.abandoned), [["c0", "parent"]])
        }
      }
    }))

  it.effect("M-01: a StreamingToolExecutor starts a later call one grace period after a handler whose child lives", () =>
    Effect.scoped(Effect.gen(function*() {
      const executor = yield* StreamingToolExecutor.make({ maxParallel: 1, grace: 1000 })
      yield* executor.addTool(
        Message.toolCall("c0", "parent"),
        parent(children.deaf, { concurrency: "shared" }) as never
      )
      yield* executor.addTool(Message.toolCall("c1", "echo"), { ...Tools.echo, concurrency: "shared" } as never)
      yield* executor.noMoreCalls
      const start = yield* Clock.currentTimeMillis
      const times: Array<number> = []
      const read = Stream.tap(
        executor.remainingResults,
        () => Effect.map(Clock.currentTimeMillis, (now) => void times.push(now - start))
      )
      yield* elapsed(Stream.runDrain(read))
      assert.deepStrictEqual(times, [10, 1010])
    })))

  it.effect("M-01: a child that stops when its parent has ended delays nothing", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const tool = parent(recorder.track("child")(Effect.never))
      const { at, value } = yield* elapsed(
        ToolRunner.run(calling("parent", "parent"), [tool], { maxConcurrency: 1 })
      )
      assert.strictEqual(at, 20)
      assert.notProperty(value, "abandoned")
      assert.deepInclude(yield* recorder.counts("child"), { starts: 2, interrupts: 2, live: 0 })
    }))

  it.effect("M-01: a fiber left behind by an encoder or a decoder does not prevent an answer", () =>
    Effect.gen(function*() {
      const leaving = <A>(value: A) => Effect.as(forking(children.deaf), value)
      const latch = yield* Latch.make(true)
      const tool = Tool.make("parent", { parameters: {}, handler: () => Effect.as(latch.await, "done") })
      for (
        const subject of [
          { ...tool, encodeSuccess: leaving },
          { ...tool, parameters: { jsonSchema: {}, decode: leaving } }
        ]
      ) {
        const { at, value } = yield* elapsed(
          ToolRunner.run(calling("parent"), [subject as Tool.Any], { toolTimeout: "infinity", grace: 1000 })
        )
        assert.deepStrictEqual(contents(value), [["c0", "done"]])
        assert.strictEqual(at, 1000)
        assert.deepStrictEqual(named(value.abandoned), [["c0", "parent"]])
      }
    }))

  it.effect("M-01: an error policy that fails the run does so within the grace period of a live child", () =>
    Effect.gen(function*() {
      const failing: Tool.Any = {
        ...parent(children.deaf),
        handler: () => Effect.andThen(forking(children.deaf), Effect.fail("no"))
      }
      const decide = () => Effect.andThen(Effect.sleep(10), Effect.succeed(Tool.ErrorDecision.fail("enough")))
      for (const onToolError of [() => Effect.succeed(Tool.ErrorDecision.fail("enough")), decide]) {
        const run = ToolRunner.run(calling("parent"), [failing], { onToolError, grace: 1000 } as never)
        const { at, value } = yield* elapsed(Effect.exit(run))
        assert.deepStrictEqual(value, Exit.fail("enough") as never)
        assert.isAtMost(at, 1010)
      }
    }))
})
