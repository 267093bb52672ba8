/**
 * Which calls run concurrently: exclusive calls as a barrier in the queue, and batches of thousands of calls.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Logger from "effect/Logger"
import * as Schema from "effect/Schema"
import { Message, Policy, Tool, ToolRunner } from "heddle"
import { Recorder } from "heddle/testing"
import { elapsed, watched } from "../support/runs.ts"
import * as Tools from "../support/tools.ts"

const call = Message.toolCall

const calling = (...names: ReadonlyArray<string>) => names.map((name, index) => call(`c${index}`, name))

/** When each call started, by name of the tool. */
const startsOf = (
  calls: ReadonlyArray<Message.ToolCall>,
  tools: ReadonlyArray<Tool.Any>,
  options: ToolRunner.Options = {}
) =>
  Effect.map(watched(ToolRunner.stream(calls, tools, options)), ({ at, line }) => ({
    at,
    starts: line.flatMap(([at, tag, id]) => tag === "ToolExecutionStarted" ? [[id, at]] : [])
  }))

const alone = (millis: number) => ({ ...Tools.slow(millis, "alone"), concurrency: "exclusive" as const })

/** A tool that is exclusive or not by its arguments, and says when it runs. */
const writing = (
  recorder: Recorder.Recorder,
  concurrency: Tool.Concurrency | ((args: { readonly path: string }) => Tool.Concurrency)
) =>
  Tool.make("write", {
    parameters: { path: Schema.String },
    concurrency,
    handler: recorder.handler(() => Effect.sleep(10))
  })

describe("ToolRunner: exclusive calls", () => {
  it.effect("R-382, R-384: an exclusive call waits for earlier calls and runs by itself, and later calls wait", () =>
    Effect.gen(function*() {
      const tools = [Tools.slow(30, "a"), Tools.slow(50, "b"), alone(20), Tools.slow(10, "c")]
      const { at, starts } = yield* startsOf(calling("a", "b", "alone", "c", "c"), tools)
      assert.deepStrictEqual(starts, [["c0", 0], ["c1", 0], ["c2", 50], ["c3", 70], ["c4", 70]])
      assert.strictEqual(at, 80)
    }))

  it.effect("R-382: exclusive calls never overlap, whatever the bound", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const write = writing(recorder, "exclusive")
      const calls = [1, 2, 3, 4].map((index) => call(`c${index}`, "write", { path: "a" }))
      const { at } = yield* elapsed(ToolRunner.run(calls, [write], { maxConcurrency: 8 }))
      assert.strictEqual(at, 40)
      assert.deepInclude(yield* recorder.counts(), { starts: 4, peak: 1 })
    }))

  it.effect("R-382: whether a call is exclusive may depend on its arguments", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const write = writing(recorder, ({ path }) => path === "shared" ? "shared" : "exclusive")
      const calls = ["shared", "shared", "own", "shared"].map((path, index) => call(`c${index}`, "write", { path }))
      const { starts } = yield* startsOf(calls, [write])
      assert.deepStrictEqual(starts, [["c0", 0], ["c1", 0], ["c2", 10], ["c3", 20]])
    }))

  it.effect("R-382: a call whose concurrency function throws runs by itself, and a warning is logged", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const warnings: Array<unknown> = []
      const logger = Logger.make<unknown, void>(({ logLevel, message }) => void warnings.push([logLevel, message]))
      const write = writing(recorder, () => {
        throw Tools.kaboom
      })
      const calls = [call("c0", "echo"), call("c1", "write", { path: "a" }), call("c2", "write", { path: "b" })]
      const { starts } = yield* startsOf(calls, [Tools.slow(5, "echo"), write]).pipe(
        Effect.provide(Logger.layer([logger]))
      )
      assert.deepStrictEqual(starts, [["c0", 0], ["c1", 5], ["c2", 15]])
      assert.strictEqual(warnings.length, 2)
      assert.include(JSON.stringify(warnings[0]), "concurrency of tool \\\"write\\\" failed")
    }))

  it.effect("R-055, R-382: an exclusive call waits for a timed-out handler that has not stopped yet", () =>
    Effect.gen(function*() {
      const reluctant = Tool.make("reluctant", {
        parameters: {},
        timeout: 50,
        handler: () => Effect.onInterrupt(Effect.never, () => Effect.sleep(25))
      })
      const { starts } = yield* startsOf(calling("reluctant", "alone"), [reluctant, alone(10)])
      assert.deepStrictEqual(starts, [["c0", 0], ["c1", 75]])
    }))

  it.effect("R-382: an exclusive call waits one grace period for a handler that was given up, and is refused afterwards", () =>
    Effect.gen(function*() {
      const holding = (millis: number) =>
        Tool.make("holding", {
          parameters: {},
          timeout: 50,
          handler: () => Effect.uninterruptible(Effect.sleep(millis))
        })
      const calls = calling("holding", "alone", "echo")
      const ended = yield* startsOf(calls, [holding(200), alone(10), Tools.echo], { grace: 100 })
      assert.deepStrictEqual(ended.starts, [["c0", 0], ["c1", 200], ["c2", 210]])
      const { at, value } = yield* elapsed(
        ToolRunner.run(calls, [holding(10_000), alone(10), Tools.echo], { grace: 100 })
      )
      assert.strictEqual(at, 250)
      assert.deepStrictEqual(
        value.messages.map(({ content }) => /"code":"(\w+)"/.exec(String(content))?.[1] ?? content),
        [
          "abandoned",
          "cancelled",
          "{}"
        ]
      )
      assert.deepStrictEqual(value.abandoned?.map(({ id }) => id), ["c0"])
    }))

  it.effect("R-067, R-382: a refused exclusive call is no failure, and the error policy is not asked", () =>
    Effect.gen(function*() {
      const asked: Array<string> = []
      const onToolError = (call: Message.ToolCall, _error: unknown) =>
        Effect.sync(() => {
          asked.push(call.name)
          return Tool.ErrorDecision.halt
        })
      const deaf = Tool.make("deaf", {
        parameters: {},
        timeout: 50,
        handler: () => Effect.uninterruptible(Effect.never)
      })
      const { value } = yield* elapsed(
        ToolRunner.run(calling("deaf", "alone"), [deaf, alone(10)], { grace: 100, onToolError })
      )
      assert.deepStrictEqual(asked, ["deaf"])
      assert.strictEqual(value.messages.length, 2)
    }))
})

const many = 4_096

describe("ToolRunner: thousands of calls", () => {
  const calls = Array.from({ length: many }, (_, index) => call(`c${index}`, "n", { index }))
  const expected = Array.from({ length: many }, (_, index) => String(index))

  for (const maxConcurrency of [1, 7, many]) {
    it.effect(`R-054, R-058, R-112: ${many} calls that end at once run ${maxConcurrency} at a time, in order and on a flat stack`, () =>
      Effect.gen(function*() {
        let depth = 0
        let deepest = 0
        const tool = Tool.make("n", {
          parameters: { index: Schema.Finite },
          handler: ({ index }) =>
            Effect.sync(() => {
              depth++
              deepest = Math.max(deepest, depth, (new Error("where").stack ?? "").split("\n").length)
              depth--
              return index
            })
        })
        const { messages } = yield* ToolRunner.run(calls, [tool], { maxConcurrency })
        assert.deepStrictEqual(messages.map(({ content }) => content), expected)
        assert.isAtMost(deepest, 60)
      }))
  }

  it.effect(`R-054: ${many} exclusive calls and ${many} yielding calls are answered in order under the bound 1`, () =>
    Effect.gen(function*() {
      const index = { index: Schema.Finite }
      const exclusive = Tool.make("n", {
        parameters: index,
        concurrency: "exclusive",
        handler: ({ index }) => Effect.succeed(index)
      })
      const waiting = Tool.make("n", { parameters: index, handler: ({ index }) => Effect.as(Effect.yieldNow, index) })
      for (const tool of [exclusive, waiting]) {
        const { messages } = yield* ToolRunner.run(calls, [tool], { maxConcurrency: 1 })
        assert.deepStrictEqual(messages.map(({ content }) => content), expected)
      }
    }))

  it.effect(`R-068, R-074: the error policy is asked once about each of ${many} calls that fail, are unknown or cannot be encoded`, () =>
    Effect.gen(function*() {
      const kinds = ["fail", "ghost", "fn", "boom"]
      const mixed = Array.from({ length: many }, (_, index) => call(`c${index}`, kinds[index % kinds.length] ?? ""))
      const asked = new Map<string, number>()
      const onToolError = (call: Message.ToolCall, _error: unknown) =>
        Effect.sync(() => {
          asked.set(call.id, (asked.get(call.id) ?? 0) + 1)
          return Tool.ErrorDecision.continue(call.id)
        })
      const { messages } = yield* ToolRunner.run(mixed, [Tools.fail, Tools.fn, Tools.boom], {
        onToolError,
        maxConcurrency: 3
      })
      assert.deepStrictEqual(messages.map(({ content }) => content), mixed.map(({ id }) => id))
      assert.strictEqual(asked.size, many)
      assert.isTrue([...asked.values()].every((times) => times === 1))
    }))

  it.effect(`R-102: ${many} results held back by the first call come in request order`, () =>
    Effect.gen(function*() {
      const tool = Tool.make("n", {
        parameters: { index: Schema.Finite },
        handler: ({ index }) => Effect.as(index === 0 ? Effect.sleep(10) : Effect.void, index)
      })
      const policy = { ...Policy.standard, resultOrder: "request" } as const
      const { events } = yield* watched(ToolRunner.stream(calls, [tool], { policy, maxConcurrency: many }))
      const contents = events.flatMap((event) => event._tag === "ToolResultEncoded" ? [event.content] : [])
      assert.deepStrictEqual(contents, expected)
    }))
})
