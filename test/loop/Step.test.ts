/**
 * What a step comes to: which replies run tools, what stands in the thread afterwards, and whether the model has more to
 * do. Every row is made twice, awaited and streamed.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { Message, Policy, Step, type Thread, Tool } from "heddle"
import { Script } from "heddle/testing"
import {
  appr,
  ask,
  boom,
  echo,
  only,
  slow,
  start,
  stepOf,
  stop1,
  tags,
  told,
  transcript
} from "../support/scenarios.ts"

const { error, finish, text, toolCall, toolCallDelta } = Script

const last = (thread: Thread.Thread): Message.Message => thread.messages.at(-1)!

describe("Step: replies without tools", () => {
  it.effect("P-01, R-134, R-137: text ends the step, and the message carries its finish reason", () =>
    Effect.gen(function*() {
      const { step } = yield* stepOf([text("hi"), finish("stop")])
      assert.isTrue(step.done)
      assert.deepStrictEqual(step.thread.messages, [
        Message.user("go"),
        { role: "assistant", content: "hi", finishReason: "stop", metadata: {} }
      ])
      assert.deepStrictEqual(step.toolResults, [])
      assert.deepStrictEqual(step.metadata, {})
      assert.notProperty(step, "halt")
      assert.notProperty(step, "mode")
      assert.notProperty(step, "manualToolCalls")
    }))

  it.effect("R-137: the content of the message is the streamed text, not the provider's repetition at the end", () =>
    Effect.gen(function*() {
      const { step } = yield* stepOf([finish("stop")])
      assert.deepStrictEqual(last(step.thread), {
        role: "assistant",
        content: "",
        finishReason: "stop",
        metadata: {}
      })
    }))

  it.effect("P-15, R-142: finish reason tool_calls without calls ends the run, and under allm the run continues", () =>
    Effect.gen(function*() {
      const { step } = yield* stepOf([finish("tool_calls")])
      assert.isTrue(step.done)
      const allm = yield* stepOf([finish("tool_calls")], { policy: Policy.allm })
      assert.isFalse(allm.step.done)
    }))

  it.effect("R-142: the finish reasons null and other end the run, and under allm the run continues", () =>
    Effect.gen(function*() {
      for (const reason of [null, "other"] as const) {
        assert.isTrue((yield* stepOf([text("x"), finish(reason)])).step.done)
        assert.isFalse((yield* stepOf([text("x"), finish(reason)], { policy: Policy.allm })).step.done)
      }
    }))

  it.effect("P-16: a text cut off by the token limit ends the run", () =>
    Effect.gen(function*() {
      const { step } = yield* stepOf([text("x"), finish("length")])
      assert.isTrue(step.done)
      assert.strictEqual(last(step.thread).finishReason, "length")
    }))

  it.effect("R-332: calls run by the provider stand in the response and not in the thread", () =>
    Effect.gen(function*() {
      const theirs = { ...toolCall("c0", "search"), providerExecuted: true }
      const { step } = yield* stepOf([text("found"), theirs, finish("stop")], { tools: [echo] })
      assert.isTrue(step.done)
      assert.strictEqual(step.response.toolCalls.length, 1)
      assert.notProperty(last(step.thread), "toolCalls")
    }))
})

describe("Step: replies with tools", () => {
  it.effect("P-02, R-135, R-136, R-137: the calls of a reply run, and their answers follow the message of the calls", () =>
    Effect.gen(function*() {
      const { step } = yield* stepOf([toolCall("c0", "echo", { x: 1 }), finish("tool_calls")], { tools: [echo] })
      assert.isFalse(step.done)
      assert.deepStrictEqual(step.thread.messages, [
        Message.user("go"),
        {
          role: "assistant",
          content: "",
          finishReason: "tool_calls",
          toolCalls: [{ ...Message.toolCall("c0", "echo", { x: 1 }), rawArguments: "{\"x\":1}" }],
          metadata: {}
        },
        Message.tool("c0", "{\"x\":1}")
      ])
      assert.deepStrictEqual(step.toolResults, [Message.tool("c0", "{\"x\":1}")])
      assert.deepStrictEqual(step.metadata, {})
    }))

  it.effect("P-03, R-146: the message keeps the text before a call beside the call", () =>
    Effect.gen(function*() {
      const script = [text("let me check"), toolCall("c0", "echo"), finish("tool_calls")]
      const { step } = yield* stepOf(script, { tools: [echo] })
      const message = step.thread.messages[1]!
      assert.strictEqual(message.content, "let me check")
      assert.deepStrictEqual(message.toolCalls?.map((call) => call.id), ["c0"])
    }))

  it.effect("P-14, R-141: calls run whatever the finish reason, and under allm they are answered without running", () =>
    Effect.gen(function*() {
      const script = [toolCall("c0", "echo", { x: 1 }), finish("stop")]
      const { step } = yield* stepOf(script, { tools: [echo] })
      assert.isFalse(step.done)
      assert.strictEqual(told(last(step.thread)), "TM(c0,{\"x\":1})")
      const allm = yield* stepOf(script, { tools: [echo], policy: Policy.allm })
      assert.isTrue(allm.step.done)
      assert.isEmpty(only(allm.events, "ToolExecutionStarted"))
      assert.isTrue(last(allm.step.thread).isError)
      assert.include(told(last(allm.step.thread)), "not run: the reply ended with stop")
    }))

  it.effect("P-17, R-357: after finish reason length only complete calls run, and under allm no call runs", () =>
    Effect.gen(function*() {
      const cutOff = Script.event({ _tag: "ToolCallStarted", id: "c1", name: "echo" })
      const script = [toolCall("c0", "echo", { x: 1 }), cutOff, toolCallDelta("c1", "{\"x\""), finish("length")]
      const { events, step } = yield* stepOf(script, { tools: [echo] })
      assert.deepStrictEqual(only(events, "ToolExecutionStarted").map((event) => event.id), ["c0"])
      assert.include(told(last(step.thread)), "truncated_arguments")
      assert.isFalse(step.done)
      const allm = yield* stepOf(script, { tools: [echo], policy: Policy.allm })
      assert.isEmpty(only(allm.events, "ToolExecutionStarted"))
      assert.isTrue(allm.step.done)
      assert.deepStrictEqual(allm.step.toolResults.map((message) => message.isError), [true, true])
    }))

  it.effect("R-357: a filtered reply runs no call and answers every call", () =>
    Effect.gen(function*() {
      const { events, step } = yield* stepOf([toolCall("c0", "echo"), finish("content_filter")], { tools: [echo] })
      assert.isTrue(step.done)
      assert.isEmpty(only(events, "ToolExecutionStarted"))
      assert.strictEqual(step.toolResults.length, 1)
    }))

  it.effect("P-20, R-136, R-143: answers stand in call order, and events are emitted in completion order", () =>
    Effect.gen(function*() {
      const wait = slow("wait", 30)
      const script = [toolCall("c1", "wait"), toolCall("c0", "echo"), finish("tool_calls")]
      const { events, step } = yield* stepOf(script, { tools: [wait, echo] })
      assert.deepStrictEqual(step.toolResults.map((message) => message.toolCallId), ["c1", "c0"])
      assert.deepStrictEqual(only(events, "ToolResultEncoded").map((event) => event.id), ["c0", "c1"])
      const allm = yield* stepOf(script, { tools: [wait, echo], policy: Policy.allm })
      assert.deepStrictEqual(only(allm.events, "ToolResultEncoded").map((event) => event.id), ["c0", "c1"])
      assert.deepStrictEqual(allm.step.toolResults, step.toolResults)
    }))

  it.effect("R-298: a call of fragments runs with their joined arguments, and under allm without arguments", () =>
    Effect.gen(function*() {
      const header = Script.event({ _tag: "ToolCallStarted", id: "c0", name: "echo" })
      const script = [header, toolCallDelta("c0", "{\"x\":"), toolCallDelta("c0", "1}"), finish("tool_calls")]
      assert.strictEqual(told(last((yield* stepOf(script, { tools: [echo] })).step.thread)), "TM(c0,{\"x\":1})")
      const allm = yield* stepOf(script, { tools: [echo], policy: Policy.allm })
      assert.strictEqual(told(last(allm.step.thread)), "TM(c0,{})")
    }))

  it.effect("R-297: two calls under one id both run, and each has its own answer", () =>
    Effect.gen(function*() {
      const script = [toolCall("x", "echo", { x: 1 }), toolCall("x", "other", { x: 2 }), finish("tool_calls")]
      const other = Tool.make("other", { parameters: { type: "object" }, handler: (args) => Effect.succeed([args]) })
      const { step } = yield* stepOf(script, { tools: [echo, other] })
      assert.deepStrictEqual(transcript(step.thread).slice(2), ["TM(x,{\"x\":1})", "TM(x_2,[{\"x\":2}])"])
    }))
})

describe("Step: unknown tools", () => {
  const script = [toolCall("c0", "ghost"), finish("tool_calls")]

  it.effect("P-05, R-139: under allm an unknown tool fails an awaited step with the engine error", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([toolCall("c1", "echo"), ...script])
      const failure = yield* Step.run(start, { tools: [echo], policy: Policy.allm }).pipe(
        Effect.provide(model.layer),
        Effect.flip
      )
      assert.instanceOf(failure, Step.EngineError)
      assert.strictEqual((failure as Step.EngineError).reason, "unknown_tool")
      assert.deepStrictEqual((failure as Step.EngineError).metadata, { toolName: "ghost" })
    }))

  it.effect("P-06, R-139: under allm an unknown tool gives a streamed step one error and no tool execution", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([toolCall("c1", "echo"), ...script])
      const events = yield* collect(Step.stream(start, { tools: [echo], policy: Policy.allm }), model)
      assert.deepStrictEqual(tags(events), [
        "MessageStarted",
        "ToolCallStarted",
        "ToolCallCompleted",
        "ToolCallStarted",
        "ToolCallCompleted",
        "MessageCompleted",
        "Error",
        "StepCompleted"
      ])
      assert.strictEqual((only(events, "Error")[0]!.error as Step.EngineError).reason, "unknown_tool")
      const { thread, response } = only(events, "StepCompleted")[0]!
      assert.strictEqual(thread.messages.length, 2)
      assert.notProperty(last(thread), "toolCalls", "calls that will not be answered are not committed")
      assert.strictEqual(response.finishReason, "error")
    }))

  it.effect("P-07, R-140: by default an unknown tool is answered with an error, and the known tools run", () =>
    Effect.gen(function*() {
      const alone = yield* stepOf(script, { tools: [echo] })
      assert.isFalse(alone.step.done)
      assert.isEmpty(only(alone.events, "Error"))
      assert.isEmpty(only(alone.events, "ToolExecutionStarted"))
      assert.include(told(last(alone.step.thread)), "unknown_tool")
      const { step } = yield* stepOf([toolCall("c1", "echo", { x: 1 }), ...script], { tools: [echo] })
      assert.deepStrictEqual(step.toolResults.map((message) => message.isError === true), [false, true])
    }))

  it.effect("R-133: under allm an unknown tool fails the turn also beside a manual call", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([toolCall("m", "appr"), ...script])
      const failure = yield* Step.run(start, { tools: [appr], policy: Policy.allm }).pipe(
        Effect.provide(model.layer),
        Effect.flip
      )
      assert.instanceOf(failure, Step.EngineError)
    }))

  it.effect("R-132, R-133: in manual mode an unknown name fails nothing, since no call runs", () =>
    Effect.gen(function*() {
      const { events, step } = yield* stepOf(script, { tools: [echo], policy: Policy.allm, mode: "manual" })
      assert.isEmpty(only(events, "Error"))
      assert.strictEqual(step.mode, "manual")
      assert.deepStrictEqual(step.response.toolCalls.map((call) => call.name), ["ghost"])
    }))
})

describe("Step: manual", () => {
  it.effect("P-04, R-132: manual mode hands the calls over and runs none of them", () =>
    Effect.gen(function*() {
      const script = [toolCall("c0", "echo", { x: 1 }), finish("tool_calls")]
      const { events, step } = yield* stepOf(script, { tools: [echo], mode: "manual" })
      assert.strictEqual(step.mode, "manual")
      assert.isFalse(step.done)
      assert.deepStrictEqual(step.toolResults, [])
      assert.deepStrictEqual(step.metadata, {})
      assert.notProperty(step, "halt")
      assert.notProperty(step, "manualToolCalls")
      assert.deepStrictEqual(step.thread.messages.map((message) => message.role), ["user", "assistant"])
      assert.deepStrictEqual(last(step.thread).toolCalls?.map((call) => call.id), ["c0"])
      assert.strictEqual(only(events, "StepCompleted")[0]?.mode, "manual")
      assert.isFalse(tags(events).some((tag) => tag.startsWith("ToolExecution")))
    }))

  it.effect("R-180: calls of manual tools are handed over, and the other calls run", () =>
    Effect.gen(function*() {
      const script = [toolCall("m", "appr"), toolCall("a", "echo", { x: 1 }), finish("tool_calls")]
      const { events, step } = yield* stepOf(script, { tools: [echo, appr] })
      assert.deepStrictEqual(step.manualToolCalls?.map((call) => call.id), ["m"])
      assert.notProperty(step, "mode")
      assert.isFalse(step.done)
      assert.deepStrictEqual(step.toolResults, [Message.tool("a", "{\"x\":1}")])
      assert.strictEqual(only(events, "StepCompleted")[0]?.mode, "auto")
    }))

  it.effect("R-180, R-345: a manual tool never runs, also when its arguments are lost", () =>
    Effect.gen(function*() {
      const script = [{ ...toolCall("m", "appr"), argumentsLost: "json_decode_error" as const }, finish("tool_calls")]
      const { events, step } = yield* stepOf(script, { tools: [appr] })
      assert.isEmpty(only(events, "ToolExecutionStarted"))
      assert.include(told(last(step.thread)), "invalid_arguments")
      const lenient: Policy.Policy = { ...Policy.standard, badArguments: "runWithHeaderArguments" }
      const handed = yield* stepOf(script, { tools: [appr], policy: lenient })
      assert.isEmpty(only(handed.events, "ToolExecutionStarted"))
      assert.deepStrictEqual(handed.step.manualToolCalls?.map((call) => call.id), ["m"])
    }))
})

describe("Step: halts", () => {
  it.effect("R-135, R-138: a question halts the step and adds no message", () =>
    Effect.gen(function*() {
      const { step } = yield* stepOf([toolCall("c0", "ask"), finish("tool_calls")], { tools: [ask] })
      assert.isTrue(step.done)
      assert.deepStrictEqual(step.halt, {
        haltedReason: "ask_user",
        pendingQuestion: "Which city?",
        pendingToolCallId: "c0",
        askUserOpts: []
      })
      assert.deepStrictEqual(transcript(step.thread), ["user(go)", "assistant()", "TM(c0,<awaiting user response>)"])
    }))

  it.effect("R-135: a tool's own halt and a tool error under halt end the step", () =>
    Effect.gen(function*() {
      const own = yield* stepOf([toolCall("c0", "stop1"), finish("tool_calls")], { tools: [stop1] })
      assert.isTrue(own.step.done)
      assert.deepStrictEqual(own.step.halt, { haltedReason: "done_early", haltToolCallId: "c0", haltResult: { v: 1 } })
      const failed = yield* stepOf([toolCall("c0", "boom"), finish("tool_calls")], {
        tools: [boom],
        onToolError: "halt"
      })
      assert.isTrue(failed.step.done)
      assert.deepStrictEqual(failed.step.halt, { haltedReason: "tool_error", haltToolCallId: "c0" })
    }))

  it.effect("R-184: a question wins over manual calls, which wait beside the question", () =>
    Effect.gen(function*() {
      const script = [toolCall("m", "appr"), toolCall("q", "ask"), finish("tool_calls")]
      const { events, step } = yield* stepOf(script, { tools: [ask, appr] })
      assert.strictEqual(step.halt?.haltedReason, "ask_user")
      assert.notProperty(step, "manualToolCalls")
      assert.deepStrictEqual(step.toolResults.map((message) => message.toolCallId), ["q"])
      assert.deepStrictEqual(step.suspensions?.map(({ id, kind }) => [id, kind]), [["m", "manual"], ["q", "question"]])
      assert.deepStrictEqual(only(events, "StepCompleted")[0]?.manualToolCalls.map((call) => call.id), ["m"])
      assert.deepStrictEqual(only(events, "ToolExecutionStarted").map((event) => event.id), ["q"])
    }))
})

describe("Step: errors of the reply", () => {
  it.effect("P-11, R-145: an error in the stream ends the step, which succeeds with the partial text", () =>
    Effect.gen(function*() {
      const { step } = yield* stepOf([text("par"), error("timeout")], { tools: [echo] })
      assert.isTrue(step.done)
      assert.strictEqual(step.response.finishReason, "error")
      assert.deepInclude(step.response.error, { _tag: "AdapterError", reason: "timeout" })
      assert.deepStrictEqual(transcript(step.thread), ["user(go)", "assistant(par)"])
    }))

  it.effect("P-12: an error wins over a later finish reason and no tool runs, and under allm the finish reason wins", () =>
    Effect.gen(function*() {
      const script = [toolCall("c0", "echo"), Script.errorThenContinue("timeout"), finish("tool_calls")]
      const { events, step } = yield* stepOf(script, { tools: [echo] })
      assert.isEmpty(only(events, "ToolExecutionStarted"))
      assert.isTrue(step.done)
      assert.include(told(last(step.thread)), "cancelled")
      const allm = yield* stepOf(script, { tools: [echo], policy: Policy.allm })
      assert.strictEqual(only(allm.events, "ToolExecutionStarted").length, 1)
      assert.deepInclude(allm.step.response.error, { reason: "timeout" })
      assert.isFalse(allm.step.done)
    }))
})

const collect = (stream: ReturnType<typeof Step.stream>, model: Script.Scripted) =>
  Effect.provide(Stream.runCollect(stream), model.layer)
