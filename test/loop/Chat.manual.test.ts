/**
 * Calls that are the caller's to answer: the whole loop by hand, single tools by hand, what wins over them, and how the
 * caller comes back.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { Chat, type Event, Message, Policy, Step, Thread } from "heddle"
import { Script } from "heddle/testing"
import { appr, ask, boom, chatOf, echo, only, start, stop1, tags, told, transcript } from "../support/scenarios.ts"

const { finish, text, toolCall } = Script

const callEcho = [toolCall("c0", "echo", { x: 1 }), finish("tool_calls")]
const done = [text("done"), finish("stop")]
const mixed = [toolCall("a", "echo", { x: 1 }), toolCall("m", "appr", { y: 2 }), finish("tool_calls")]

const executions = (events: ReadonlyArray<Event.Event>) =>
  events.flatMap((event) =>
    event._tag.startsWith("ToolExecution") ? [(event as Event.Of<"ToolExecutionStarted">).id] : []
  )

describe("Chat: the whole loop by hand", () => {
  it.effect("C-15, R-172, R-181: manual mode surfaces the calls and runs no handler", () =>
    Effect.gen(function*() {
      const { events, model, result } = yield* chatOf([callEcho, done], { tools: [echo], mode: "manual" })
      assert.deepStrictEqual(result.outcome, { _tag: "ManualToolCalls", stepIndex: 0 })
      assert.strictEqual(result.haltedReason, "manual_tool_calls")
      assert.deepStrictEqual(result.finalResponse?.toolCalls.map((call) => call.id), ["c0"])
      assert.isEmpty(executions(events))
      assert.strictEqual(yield* model.opens, 1)
    }))

  it.effect("C-16, R-179: a text turn in manual mode completes like any other turn", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([[text("x"), finish("stop")]], { mode: "manual" })
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "stop" })
    }))

  it.effect("R-179, R-467: a manual turn without calls completes the run", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([[finish("tool_calls")]], { mode: "manual" })
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "tool_calls" })
    }))

  it.effect("C-19, R-181: manual mode overrides the flags of the tools", () =>
    Effect.gen(function*() {
      const { events, result } = yield* chatOf([mixed], { tools: [echo, appr], mode: "manual" })
      assert.deepStrictEqual(result.outcome, { _tag: "ManualToolCalls", stepIndex: 0 })
      assert.deepStrictEqual(result.finalResponse?.toolCalls.map((call) => call.id), ["a", "m"])
      assert.notProperty(result.steps[0], "manualToolCalls")
      assert.isEmpty(executions(events))
    }))
})

describe("Chat: single tools by hand", () => {
  it.effect("C-17, R-172, R-180: manual calls are surfaced while the other calls of the turn run, and the run ends", () =>
    Effect.gen(function*() {
      const { events, result } = yield* chatOf([mixed], { tools: [echo, appr] })
      assert.deepStrictEqual(transcript(result.thread), ["user(go)", "assistant()", "TM(a,{\"x\":1})"])
      assert.strictEqual(result.outcome._tag, "ManualToolCalls")
      assert.deepInclude(result.outcome, { stepIndex: 0 })
      const { manualToolCalls } = result.outcome as Extract<Event.Outcome, { _tag: "ManualToolCalls" }>
      assert.deepStrictEqual(manualToolCalls?.map((call) => [call.id, call.arguments]), [["m", { y: 2 }]])
      assert.deepStrictEqual(executions(events), ["a", "a"])
      assert.strictEqual(only(events, "StepCompleted")[0]?.mode, "auto")
    }))

  it.effect("C-18, R-180: manual calls alone run no handler and are surfaced in call order", () =>
    Effect.gen(function*() {
      const scripts = [[toolCall("m1", "appr"), toolCall("m2", "appr"), finish("tool_calls")]]
      const { events, result } = yield* chatOf(scripts, { tools: [appr] })
      assert.deepStrictEqual(result.steps[0]?.manualToolCalls?.map((call) => call.id), ["m1", "m2"])
      assert.isEmpty(executions(events))
      assert.deepStrictEqual(transcript(result.thread), ["user(go)", "assistant()"])
    }))

  it.effect("R-180: a result without a manual call has no manualToolCalls field", () =>
    Effect.gen(function*() {
      const { events, result } = yield* chatOf([callEcho, done], { tools: [echo, appr] })
      assert.notProperty(result.steps[0], "manualToolCalls")
      assert.deepStrictEqual(only(events, "StepCompleted").map((event) => event.manualToolCalls), [[], []])
    }))

  it.effect("R-172: manual calls end the run before halt_when and max_turns are checked", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([mixed], { tools: [echo, appr], maxTurns: 1, haltWhen: () => true })
      assert.strictEqual(result.haltedReason, "manual_tool_calls")
    }))

  it.effect("R-172: manual calls of a later turn carry its index", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([callEcho, mixed], { tools: [echo, appr] })
      assert.deepInclude(result.outcome, { stepIndex: 1 })
    }))

  it.effect("C-20, R-172, R-184: a question decides the outcome, and a manual call waits beside the question", () =>
    Effect.gen(function*() {
      const scripts = [[toolCall("q", "ask"), toolCall("m", "appr"), finish("tool_calls")]]
      const { events, result } = yield* chatOf(scripts, { tools: [ask, appr] })
      assert.strictEqual(result.haltedReason, "ask_user")
      assert.notProperty(result.steps[0], "manualToolCalls")
      assert.deepStrictEqual(only(events, "StepCompleted")[0]?.manualToolCalls.map((call) => call.id), ["m"])
      assert.deepStrictEqual(result.suspensions?.map(({ id, kind }) => [id, kind]), [["q", "question"], [
        "m",
        "manual"
      ]])
      assert.deepStrictEqual(result.thread.messages.map((message) => message.role), ["user", "assistant", "tool"])
      assert.deepStrictEqual(Thread.unanswered(result.thread).map((call) => call.id), ["m"])
    }))

  it.effect("R-184: a halt and a tool error decide the outcome beside a manual call, which is answered", () =>
    Effect.gen(function*() {
      const tools = [stop1, boom, appr]
      for (const [name, reason] of [["stop1", "done_early"], ["boom", "tool_error"]] as const) {
        const scripts = [[toolCall("m", "appr"), toolCall("h", name), finish("tool_calls")]]
        const { result } = yield* chatOf(scripts, { tools, onToolError: "halt" })
        assert.strictEqual(result.haltedReason, reason)
        assert.deepStrictEqual(result.steps[0]?.toolResults.map((message) => message.toolCallId), ["m", "h"])
      }
    }))

  it.effect("R-185: the caller answers surfaced calls and continues with the next run", () =>
    Effect.gen(function*() {
      const surfaced = yield* chatOf([mixed], { tools: [echo, appr] })
      assert.deepStrictEqual(Thread.unanswered(surfaced.result.thread).map((call) => call.id), ["m"])
      const thread = Thread.append(surfaced.result.thread, [Message.tool("m", "approved")])
      const { model, result } = yield* chatOf([done], { tools: [echo, appr] }, thread)
      const [request] = yield* model.requests
      assert.deepStrictEqual(request?.messages.at(-1), Message.tool("m", "approved"))
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "stop" })
    }))
})

describe("Chat: unknown names beside manual calls", () => {
  const scripts = [[toolCall("g", "ghost"), toolCall("m", "appr"), finish("tool_calls")], done]

  it.effect("C-21, R-183: by default an unknown name is answered with an error and the manual call is surfaced", () =>
    Effect.gen(function*() {
      const { events, result } = yield* chatOf(scripts, { tools: [appr] })
      assert.strictEqual(result.haltedReason, "manual_tool_calls")
      assert.deepStrictEqual(result.steps[0]?.manualToolCalls?.map((call) => call.id), ["m"])
      assert.include(told(result.thread.messages[2]!), "unknown_tool")
      assert.isEmpty(only(events, "Error"))
    }))

  it.effect("C-21, R-182, R-183: under allm an unknown name beside a manual call fails the turn, awaited and streamed", () =>
    Effect.gen(function*() {
      const options = { tools: [appr], policy: Policy.allm }
      const model = yield* Script.make([...scripts, ...scripts])
      const failure = yield* Effect.flip(Effect.provide(Chat.run(start, options), model.layer))
      assert.instanceOf(failure, Step.EngineError)
      const again = yield* Script.make(scripts)
      const events = yield* Effect.provide(Stream.runCollect(Chat.stream(start, options)), again.layer)
      assert.deepStrictEqual(tags(events).slice(-3), ["Error", "StepCompleted", "ChatCompleted"])
      const { result } = only(events, "ChatCompleted")[0]!
      assert.strictEqual(result.haltedReason, "error")
      assert.deepInclude((result.outcome as Extract<Event.Outcome, { _tag: "Failed" }>).error, {
        reason: "unknown_tool"
      })
      assert.isEmpty(Thread.unanswered(result.thread))
      assert.strictEqual(yield* again.opens, 1, "the loop does not go on behind the error")
    }))
})
