/**
 * A run is the fold of its stream: the families of runs that the source systems compared, each awaited and streamed under
 * both presets, with the same outcome, steps, thread and final response.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { type Event, Message, Policy, type Thread, Tool } from "heddle"
import { Script } from "heddle/testing"
import { anything, appr, ask, boom, chatOf, type ChatOptions, echo, fail, slow, stop1 } from "../support/scenarios.ts"

const { finish, text, toolCall } = Script

const call = (id: string, name: string) => toolCall(id, name, { x: id })
const turn = (...calls: ReadonlyArray<Script.Entry>) => [...calls, finish("tool_calls")]
const done = [text("done"), finish("stop")]

interface Family {
  readonly name: string
  readonly scripts: ReadonlyArray<ReadonlyArray<Script.Entry>>
  readonly options?: ChatOptions
  readonly input?: Thread.Input
  readonly outcome: Event.Outcome["_tag"]
}

const compact = Tool.make("search", {
  summary: "search",
  compact: true,
  parameters: { type: "object", properties: { q: { type: "string" } }, required: ["q"] },
  handler: (args) => Effect.succeed(args)
})

const picture: Thread.Input = [
  Message.user([{ type: "text", text: "What is this?" }, { type: "image", url: "https://example.com/cat.png" }])
]

const families: ReadonlyArray<Family> = [
  { name: "several turns", scripts: [turn(call("a", "echo")), turn(call("b", "slow")), done], outcome: "Completed" },
  {
    name: "several calls of several speeds",
    scripts: [turn(call("a", "slow"), call("b", "echo"), call("c", "fail")), done],
    outcome: "Completed"
  },
  { name: "max_turns 1", scripts: [turn(call("a", "echo"))], options: { maxTurns: 1 }, outcome: "MaxTurns" },
  { name: "one text", scripts: [done], outcome: "Completed" },
  {
    name: "halt_when at step 1",
    scripts: [turn(call("a", "echo")), turn(call("b", "echo")), done],
    options: { haltWhen: (step) => step.thread.messages.length > 3 },
    outcome: "HaltWhen"
  },
  { name: "manual", scripts: [turn(call("a", "echo"))], options: { mode: "manual" }, outcome: "ManualToolCalls" },
  { name: "a question", scripts: [turn(call("a", "slow"), call("q", "ask"))], outcome: "AskUser" },
  { name: "a halt", scripts: [turn(call("h", "stop1"), call("a", "slow"))], outcome: "Halted" },
  {
    name: "an error policy that continues",
    scripts: [turn(call("a", "boom")), done],
    options: { onToolError: (_call, _error) => Effect.succeed(Tool.ErrorDecision.continue({ fallback: true })) },
    outcome: "Completed"
  },
  {
    name: "an error policy that throws",
    scripts: [turn(call("a", "boom"))],
    options: { onToolError: (_call, _error) => Effect.die("X") },
    outcome: "ToolFailed"
  },
  {
    name: "an error that halts",
    scripts: [turn(call("a", "slow"), call("b", "boom"))],
    options: { onToolError: "halt" },
    outcome: "ToolFailed"
  },
  { name: "a picture", scripts: [turn(call("a", "echo")), done], input: picture, outcome: "Completed" },
  {
    name: "manual calls among others",
    scripts: [turn(call("m", "appr"), call("a", "slow"))],
    outcome: "ManualToolCalls"
  },
  { name: "manual calls alone", scripts: [turn(call("m", "appr"), call("n", "appr"))], outcome: "ManualToolCalls" },
  { name: "manual tools that are not called", scripts: [turn(call("a", "echo")), done], outcome: "Completed" },
  { name: "a halt beside manual calls", scripts: [turn(call("m", "appr"), call("h", "stop1"))], outcome: "Halted" },
  {
    name: "a compact tool",
    scripts: [turn(toolCall("t", "tool_help", { names: ["search"] })), turn(toolCall("s", "search", { q: "x" })), done],
    options: { tools: [compact] },
    outcome: "Completed"
  },
  {
    name: "an error in a later reply",
    scripts: [turn(call("a", "echo")), [text("p"), call("b", "echo"), Script.error("timeout")]],
    outcome: "Failed"
  },
  { name: "a model that says no more", scripts: [turn(call("a", "echo"))], outcome: "Failed" },
  {
    name: "hidden deltas",
    scripts: [[text("a"), Script.toolCallDelta("a", "{}"), ...turn(call("b", "echo"))], done],
    options: { emitTextDeltas: false, emitToolDeltas: false },
    outcome: "Completed"
  },
  {
    name: "a structured answer",
    scripts: [turn(call("a", "echo")), done, [text("{}"), finish("stop")]],
    options: { responseFormat: { type: "json_object" }, structuredFinalize: true },
    outcome: "Completed"
  }
]

const tools = [
  Tool.make("echo", { parameters: anything, handler: echo.handler! }),
  slow("slow", 40),
  fail,
  boom,
  ask,
  stop1,
  appr
]

/** Under allm the hidden fragments open a call without a name, which fails the turn. */
const outcomeUnder = (policy: Policy.Policy, family: Family) =>
  policy.unknownTool === "failTurn" && family.name === "hidden deltas" ? undefined : family.outcome

describe("Chat: a run and the fold of its stream", () => {
  for (const family of families) {
    for (const [preset, policy] of Object.entries({ standard: Policy.standard, allm: Policy.allm })) {
      const outcome = outcomeUnder(policy, family)
      if (outcome === undefined) continue
      it.effect(`C-31, R-143, R-194: ${family.name}, ${preset}: the awaited and the streamed run are the same`, () =>
        Effect.gen(function*() {
          const { result } = yield* chatOf(family.scripts, { tools, ...family.options, policy }, family.input)
          assert.strictEqual(result.outcome._tag, outcome)
          assert.deepStrictEqual(result.finalResponse, result.steps.at(-1)?.response)
        }))
    }
  }

  it.effect("C-31, R-143: the two result orders give the same result and differ only in event order", () =>
    Effect.gen(function*() {
      const scripts = [turn(call("a", "slow"), call("b", "echo")), done]
      const completion = yield* chatOf(scripts, { tools })
      const request = yield* chatOf(scripts, { tools, policy: { ...Policy.standard, resultOrder: "request" } })
      assert.deepStrictEqual(request.result, completion.result)
      assert.notDeepEqual(
        request.events.map((event) => event._tag === "ToolResultEncoded" && event.id),
        completion.events.map((event) => event._tag === "ToolResultEncoded" && event.id)
      )
    }))
})
