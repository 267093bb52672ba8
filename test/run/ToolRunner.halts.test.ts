/**
 * Calls that end the run: which halt decides, what is kept of it, and that all other calls are still answered.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Message, Policy, Tool, ToolRunner } from "heddle"
import { Recorder } from "heddle/testing"
import { contents, elapsed, only, watched } from "../support/runs.ts"
import * as Tools from "../support/tools.ts"

const call = Message.toolCall

const calling = (...names: ReadonlyArray<string>) => names.map((name, index) => call(`c${index}`, name))

const all: ReadonlyArray<Tool.Any> = [Tools.echo, Tools.fail, Tools.boom, Tools.ask, Tools.askO, Tools.stop1]

const halting = (name: string, reason: string, millis = 0) =>
  Tool.make(name, {
    parameters: {},
    handler: () => Effect.as(millis === 0 ? Effect.void : Effect.sleep(millis), Tool.halt(reason, { by: name }))
  })

const reserved = ["ask_user", "max_turns", "halt_when", "tool_error", "cancelled", "completed"]

/** What the source lets a handler forge, and the ends of rules, which it does not have. */
const forgeable = [
  "error",
  "manual_tool_calls",
  "approval_requested",
  "budget",
  "output",
  "inbox",
  "fallback",
  "prepareStep",
  "loops",
  "guard",
  "compaction"
]

describe("ToolRunner: onToolError halt", () => {
  it.effect("B-08, R-067: the run halts as tool_error, with every answer and without a result", () =>
    Effect.gen(function*() {
      const { messages, halt } = yield* ToolRunner.run(calling("boom", "echo"), all, { onToolError: "halt" })
      assert.deepStrictEqual(messages.map(({ toolCallId, isError }) => [toolCallId, isError]), [["c0", true], [
        "c1",
        undefined
      ]])
      assert.deepStrictEqual(halt, { haltedReason: "tool_error", haltToolCallId: "c0" })
    }))

  it.effect("B-09, R-060, R-067: the first failing call halts the run", () =>
    Effect.gen(function*() {
      const { messages, halt } = yield* ToolRunner.run(calling("echo", "boom", "fail"), all, { onToolError: "halt" })
      assert.strictEqual(messages.length, 3)
      assert.deepStrictEqual(halt, { haltedReason: "tool_error", haltToolCallId: "c1" })
    }))

  it.effect("R-067: the model reads the same answers under halt as under continue", () =>
    Effect.gen(function*() {
      const calls = calling("boom", "fail", "ghost")
      const halted = yield* ToolRunner.run(calls, all, { onToolError: "halt" })
      const continued = yield* ToolRunner.run(calls, all, { onToolError: "continue" })
      assert.deepStrictEqual(halted.messages, continued.messages)
      assert.isUndefined(continued.halt)
    }))
})

describe("ToolRunner: a halt", () => {
  it.effect("B-10, R-060: the halt of the first call in request order wins, however late", () =>
    Effect.gen(function*() {
      const tools = [halting("late", "late", 50), halting("early", "early")]
      const { value } = yield* elapsed(ToolRunner.run(calling("late", "early"), tools))
      assert.deepStrictEqual(contents(value), [["c0", "{\"by\":\"late\"}"], ["c1", "{\"by\":\"early\"}"]])
      assert.deepStrictEqual(value.halt, { haltedReason: "late", haltToolCallId: "c0", haltResult: { by: "late" } })
    }))

  it.effect("T-12, R-060: every halt has its tail and its answer, and haltPrecedence determines the winner", () =>
    Effect.gen(function*() {
      const tools = [halting("stop1", "done_early", 50), halting("second", "second")]
      const calls = calling("stop1", "second")
      const { events } = yield* watched(ToolRunner.stream(calls, tools))
      const tails = events.flatMap((event) => event._tag === "ToolHalt" ? [[event.toolCallId, event.reason]] : [])
      assert.deepStrictEqual(tails, [["c1", "second"], ["c0", "done_early"]])
      for (const [haltPrecedence, reason] of [["request", "done_early"], ["completion", "second"]] as const) {
        // In which order results are shown decides nothing.
        for (const resultOrder of ["completion", "request"] as const) {
          const policy = { ...Policy.standard, haltPrecedence, resultOrder }
          const { value } = yield* elapsed(ToolRunner.run(calls, tools, { policy }))
          assert.strictEqual(value.messages.length, 2)
          assert.strictEqual(value.halt?.haltedReason, reason)
        }
      }
    }))

  it.effect("R-062: the result of a halt is encoded for the model and kept as it is for the caller", () =>
    Effect.gen(function*() {
      const result = { v: 1, at: new Date(0) }
      const halt = Tool.make("halt", { parameters: {}, handler: () => Effect.succeed(Tool.halt("done_early", result)) })
      const run = yield* ToolRunner.run(calling("halt"), [halt])
      assert.deepStrictEqual(contents(run), [["c0", "{\"v\":1,\"at\":\"1970-01-01T00:00:00.000Z\"}"]])
      assert.strictEqual(run.halt !== undefined && "haltResult" in run.halt && run.halt.haltResult, result)
    }))

  it.effect("R-065: a halt whose result cannot be encoded halts with its result all the same", () =>
    Effect.gen(function*() {
      const results = [Tools.unwritable, 10n, {
        toJSON: () => {
          throw new Error("no")
        }
      }]
      for (const result of results) {
        const halt = Tool.make("halt", {
          parameters: {},
          handler: () => Effect.succeed(Tool.halt("done_early", result))
        })
        const asked: Array<unknown> = []
        const onToolError = (_call: Message.ToolCall, error: unknown) =>
          Effect.sync(() => {
            asked.push(error)
            return Tool.ErrorDecision.continue("never")
          })
        const run = yield* ToolRunner.run(calling("halt"), [halt], { onToolError })
        assert.deepStrictEqual(run.halt, { haltedReason: "done_early", haltToolCallId: "c0", haltResult: result })
        assert.strictEqual(typeof JSON.parse(String(run.messages[0]?.content)), "string")
        assert.deepStrictEqual(asked, [])
      }
    }))

  it.effect("B-13, R-063, R-064: a halt with a reserved reason is answered as an error, and the run continues", () =>
    Effect.gen(function*() {
      for (const reason of [...reserved, ...forgeable]) {
        const { messages, halt } = yield* ToolRunner.run(calling("forge", "echo"), [
          halting("forge", reason),
          Tools.echo
        ])
        assert.match(String(messages[0]?.content), /reserved/)
        assert.strictEqual(messages.length, 2)
        assert.isUndefined(halt)
      }
    }))

  it.effect("B-14, R-063, R-064: under onToolError: \"halt\" a reserved reason halts as tool_error, and the error names the reason", () =>
    Effect.gen(function*() {
      for (const reason of [...reserved, ...forgeable]) {
        const { events } = yield* watched(
          ToolRunner.stream(calling("forge"), [halting("forge", reason)], { onToolError: "halt" })
        )
        const tail = only(events, "ToolHalt")
        assert.strictEqual(tail.reason, "tool_error")
        assert.instanceOf(tail.result, Tool.ToolError)
        assert.strictEqual((tail.result as Tool.ToolError).reason, "invalid_return")
        assert.deepStrictEqual((tail.result as Tool.ToolError).metadata, { reservedHaltAtom: reason })
      }
    }))

  it.effect("R-063: a reason similar to a reserved reason halts the run", () =>
    Effect.gen(function*() {
      const words = [
        "Completed",
        "complete",
        "tool",
        "user",
        "timeout",
        "done",
        "manual",
        "errors",
        "max-turns",
        "halt",
        "stop"
      ]
      for (const reason of words) {
        const { halt } = yield* ToolRunner.run(calling("t"), [halting("t", reason)])
        assert.strictEqual(halt?.haltedReason, reason)
      }
    }))
})

describe("ToolRunner: asking the user", () => {
  it.effect("B-11, R-061: a question halts the run even under continue, and the model reads that the answer is awaited", () =>
    Effect.gen(function*() {
      const asked: Array<unknown> = []
      const onToolError = (_call: Message.ToolCall, error: unknown) =>
        Effect.sync(() => {
          asked.push(error)
          return Tool.ErrorDecision.continue("never")
        })
      for (const policy of ["continue", "halt", onToolError] as const) {
        const run = yield* ToolRunner.run(calling("ask", "echo"), all, { onToolError: policy })
        assert.deepStrictEqual(contents(run), [["c0", "<awaiting user response>"], ["c1", "{}"]])
        assert.deepStrictEqual(run.halt, {
          haltedReason: "ask_user",
          pendingQuestion: "Which city?",
          pendingToolCallId: "c0",
          askUserOpts: []
        })
      }
      assert.deepStrictEqual(asked, [])
    }))

  it.effect("B-12, R-061: the halt keeps the options of a question", () =>
    Effect.gen(function*() {
      const { halt } = yield* ToolRunner.run(calling("askO"), all)
      assert.deepInclude(halt, { haltedReason: "ask_user", askUserOpts: [{ kind: "pick" }] })
    }))
})

describe("ToolRunner: drain", () => {
  it.effect("B-26, R-059: under drain a halt stops no other call, and queued calls run and are answered", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const echo = Tool.make("echo", { parameters: {}, handler: recorder.handler((args) => Effect.succeed(args)) })
      const calls = calling("stop1", "echo", "echo", "echo", "echo", "echo")
      const run = yield* ToolRunner.run(calls, [Tools.stop1, echo], { maxConcurrency: 1 })
      assert.deepStrictEqual(contents(run), [
        ["c0", "{\"v\":1}"],
        ...[1, 2, 3, 4, 5].map((index) => [`c${index}`, "{}"] as const)
      ])
      assert.deepStrictEqual(run.halt, { haltedReason: "done_early", haltToolCallId: "c0", haltResult: { v: 1 } })
      assert.deepInclude(yield* recorder.counts("echo"), { starts: 5, ends: 5, interrupts: 0 })
    }))

  it.effect("R-059: under drain running siblings finish, whichever kind of halt comes first", () =>
    Effect.gen(function*() {
      for (const name of ["ask", "stop1", "boom"]) {
        const recorder = yield* Recorder.make
        const wait = Tool.make("wait", {
          parameters: {},
          handler: recorder.handler(() => Effect.as(Effect.sleep(50), "waited"))
        })
        const calls = calling("wait", name, "wait")
        const { at, value } = yield* elapsed(
          ToolRunner.run(calls, [...all, wait], { onToolError: "halt", maxConcurrency: 2 })
        )
        assert.strictEqual(at, 50)
        assert.deepStrictEqual([value.messages[0]?.content, value.messages[2]?.content], ["waited", "waited"])
        assert.deepInclude(yield* recorder.counts("wait"), { starts: 2, ends: 2, interrupts: 0 })
        assert.isDefined(value.halt)
      }
    }))

  it.effect("R-110: every call has its events in the stream after a halt", () =>
    Effect.gen(function*() {
      const calls = calling("stop1", "echo", "ask", "echo")
      const { line } = yield* watched(ToolRunner.stream(calls, all, { maxConcurrency: 1 }))
      assert.deepStrictEqual(line.map(([, tag, id]) => [id, tag]), [
        ["c0", "ToolExecutionStarted"],
        ["c0", "ToolExecutionCompleted"],
        ["c0", "ToolHalt"],
        ["c1", "ToolExecutionStarted"],
        ["c1", "ToolExecutionCompleted"],
        ["c1", "ToolResultEncoded"],
        ["c2", "ToolExecutionStarted"],
        ["c2", "ToolExecutionCompleted"],
        ["c2", "AskUserRequested"],
        ["c3", "ToolExecutionStarted"],
        ["c3", "ToolExecutionCompleted"],
        ["c3", "ToolResultEncoded"]
      ])
    }))
})
