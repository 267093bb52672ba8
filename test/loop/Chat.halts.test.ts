/**
 * Runs that a tool ends: a question to the user, a halt of the tool's own, an error under `onToolError: "halt"`; and which
 * of several ends decides.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { Chat, Message, Policy, Thread, Tool } from "heddle"
import { Script } from "heddle/testing"
import {
  ask,
  askO,
  boom,
  chatOf,
  echo,
  fail,
  kaboom,
  only,
  slow,
  start,
  stop1,
  tags,
  told,
  transcript
} from "../support/scenarios.ts"

const { finish, text, toolCall } = Script

const done = [text("done"), finish("stop")]

describe("Chat: questions", () => {
  it.effect("C-08, R-138, R-172, R-178: a question ends the run and is the last message of its thread", () =>
    Effect.gen(function*() {
      const script = [toolCall("c0", "ask"), toolCall("c1", "echo"), finish("tool_calls")]
      const { events, model, result } = yield* chatOf([script, done], { tools: [ask, echo] })
      assert.deepStrictEqual(result.outcome, {
        _tag: "AskUser",
        pendingQuestion: "Which city?",
        pendingToolCallId: "c0",
        askUserOpts: []
      })
      assert.strictEqual(result.haltedReason, "ask_user")
      assert.strictEqual(result.pendingQuestion, "Which city?")
      assert.strictEqual(result.pendingToolCallId, "c0")
      assert.deepStrictEqual(result.metadata, {})
      assert.deepStrictEqual(transcript(result.thread), [
        "user(go)",
        "assistant()",
        "TM(c0,<awaiting user response>)",
        "TM(c1,{})",
        "assistant(Which city?)"
      ])
      assert.deepStrictEqual(Thread.lastMessage(result.thread), {
        ...Message.assistant("Which city?"),
        askUser: true,
        toolCallId: "c0"
      })
      assert.deepStrictEqual(only(events, "StepCompleted")[0]?.thread.messages, result.thread.messages.slice(0, -1))
      assert.strictEqual(only(events, "MessageStarted").length, 1, "the question is no message of the model")
      assert.strictEqual(only(events, "MessageCompleted").length, 1)
      assert.strictEqual(yield* model.opens, 1)
    }))

  it.effect("R-178: the outcome of a run carries the options of its question", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([[toolCall("c0", "askO"), finish("tool_calls")]], { tools: [askO] })
      assert.deepInclude(result.outcome, { askUserOpts: [["kind", "pick"]] })
    }))

  it.effect("R-178: the user's reply to a question continues the thread of the result", () =>
    Effect.gen(function*() {
      const asked = yield* chatOf([[toolCall("c0", "ask"), finish("tool_calls")]], { tools: [ask] })
      const thread = Thread.append(asked.result.thread, [Message.user("Oslo")])
      const { model, result } = yield* chatOf([done], { tools: [ask] }, thread)
      const [request] = yield* model.requests
      assert.deepStrictEqual(request?.messages, thread.messages)
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "stop" })
    }))
})

describe("Chat: halts", () => {
  it.effect("C-09, R-172: a halting tool ends the run with its own reason and result", () =>
    Effect.gen(function*() {
      const { model, result } = yield* chatOf([[toolCall("c0", "stop1"), finish("tool_calls")], done], {
        tools: [stop1]
      })
      assert.deepStrictEqual(result.outcome, {
        _tag: "Halted",
        reason: "done_early",
        haltToolCallId: "c0",
        haltResult: { v: 1 }
      })
      assert.strictEqual(result.haltedReason, "done_early")
      assert.deepStrictEqual(transcript(result.thread).at(-1), "TM(c0,{\"v\":1})")
      assert.strictEqual(yield* model.opens, 1)
    }))

  it.effect("C-10, R-172, R-107: a failing tool ends the run under halt, and no next turn is asked for", () =>
    Effect.gen(function*() {
      const { events, model, result } = yield* chatOf([[toolCall("c0", "boom"), finish("tool_calls")], done], {
        tools: [boom],
        onToolError: "halt"
      })
      assert.deepStrictEqual(result.outcome, { _tag: "ToolFailed", haltToolCallId: "c0" })
      assert.strictEqual(result.haltedReason, "tool_error")
      assert.strictEqual(yield* model.opens, 1)
      assert.deepStrictEqual(tags(events).slice(-3), ["ToolHalt", "StepCompleted", "ChatCompleted"])
    }))

  it.effect("R-186: ChatCompleted immediately follows StepCompleted after a question or a halt", () =>
    Effect.gen(function*() {
      for (const tool of [ask, stop1]) {
        const { events } = yield* chatOf([[toolCall("c0", tool.name), finish("tool_calls")]], { tools: [tool] })
        assert.deepStrictEqual(tags(events).slice(-2), ["StepCompleted", "ChatCompleted"])
      }
    }))

  it.effect("C-11, R-192: the run reports what its error policy throws, awaited and streamed", () =>
    Effect.gen(function*() {
      const thrown = new Error("X")
      const { events, result } = yield* chatOf([[toolCall("c0", "boom"), finish("tool_calls")]], {
        tools: [boom],
        onToolError: (_call, _error) => Effect.die(thrown)
      })
      assert.deepStrictEqual(result.outcome, {
        _tag: "ToolFailed",
        haltToolCallId: "c0",
        onToolErrorException: thrown
      })
      const [event] = only(events, "ChatCompleted")
      assert.deepInclude(event?.result.outcome, { onToolErrorException: thrown })
      assert.strictEqual(only(events, "ToolHalt")[0]?.onToolErrorException, thrown)
    }))

  it.effect("R-194: an error policy that continues replaces the error with its own value", () =>
    Effect.gen(function*() {
      const seen: Array<unknown> = []
      const { result } = yield* chatOf([[toolCall("c0", "boom"), toolCall("c1", "fail"), finish("tool_calls")], done], {
        tools: [boom, fail],
        onToolError: (call, error) => {
          seen.push([call.id, error instanceof Tool.ToolError ? error.cause : error])
          return Effect.succeed(Tool.ErrorDecision.continue({ fallback: call.id }))
        }
      })
      assert.deepStrictEqual(transcript(result.thread).slice(2, 4), [
        "TM(c0,{\"fallback\":\"c0\"})",
        "TM(c1,{\"fallback\":\"c1\"})"
      ])
      assert.deepStrictEqual(seen.slice(0, 2), [["c0", kaboom], ["c1", Symbol.for("not_found")]])
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "stop" })
    }))

  it.effect("an error policy that fails the run fails it awaited and streamed, and every connection is closed", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([
        [toolCall("c0", "boom"), finish("tool_calls")],
        [toolCall("c0", "boom"), finish("tool_calls")]
      ])
      const options = {
        tools: [boom],
        onToolError: (_call: unknown, _error: unknown) => Effect.succeed(Tool.ErrorDecision.fail("mine" as const))
      }
      assert.strictEqual(yield* Effect.flip(Effect.provide(Chat.run(start, options), model.layer)), "mine")
      const streamed = Effect.provide(Stream.runDrain(Chat.stream(start, options)), model.layer)
      assert.strictEqual(yield* Effect.flip(streamed), "mine")
      assert.strictEqual(yield* model.cleanups, 2)
    }))
})

describe("Chat: several ends in one turn", () => {
  it.effect("C-22, R-193: every call of a turn with two halts is answered, and the halt of the first call decides", () =>
    Effect.gen(function*() {
      const { events, result } = yield* chatOf(
        [[toolCall("a", "stop1"), toolCall("b", "stop1"), finish("tool_calls")]],
        {
          tools: [stop1]
        }
      )
      assert.deepStrictEqual(transcript(result.thread).slice(2), ["TM(a,{\"v\":1})", "TM(b,{\"v\":1})"])
      assert.deepInclude(result.outcome, { reason: "done_early", haltToolCallId: "a" })
      assert.strictEqual(only(events, "ToolHalt").length, 2)
    }))

  it.effect("R-060, R-193: the halt of the first call decides although it ends last, and completion precedence reverses that", () =>
    Effect.gen(function*() {
      const tools = [slow("late", 50, "late"), slow("early", 10, "early")]
      const scripts = [[toolCall("a", "late"), toolCall("b", "early"), finish("tool_calls")]]
      const request = yield* chatOf(scripts, { tools })
      assert.deepInclude(request.result.outcome, { reason: "late", haltToolCallId: "a" })
      const completion = yield* chatOf(scripts, {
        tools,
        policy: { ...Policy.standard, haltPrecedence: "completion" }
      })
      assert.deepInclude(completion.result.outcome, { reason: "early", haltToolCallId: "b" })
      assert.deepStrictEqual(completion.result.thread, request.result.thread)
    }))

  it.effect("R-172: call order decides between a question, a halt and a tool error", () =>
    Effect.gen(function*() {
      const tools = [ask, stop1, boom]
      for (const first of tools) {
        const calls = [first, ...tools.filter((tool) => tool !== first)].map((tool) => toolCall(tool.name, tool.name))
        const { result } = yield* chatOf([[...calls, finish("tool_calls")]], { tools, onToolError: "halt" })
        assert.strictEqual(
          result.haltedReason,
          { ask: "ask_user", stop1: "done_early", boom: "tool_error" }[first.name]
        )
        assert.strictEqual(result.steps[0]?.toolResults.length, 3)
      }
    }))

  it.effect("R-172: a halt ends the run before halt_when and max_turns are checked", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([[toolCall("a", "stop1"), finish("tool_calls")]], {
        tools: [stop1],
        maxTurns: 1,
        haltWhen: () => true
      })
      assert.strictEqual(result.haltedReason, "done_early")
    }))

  it.effect("R-305: failed answers carry isError in the step, and the thread keeps them", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([[toolCall("a", "fail"), toolCall("b", "echo"), finish("tool_calls")], done], {
        tools: [fail, echo]
      })
      assert.deepStrictEqual(result.steps[0]?.toolResults.map((message) => message.isError === true), [true, false])
      assert.match(told(result.thread.messages[2]!), /^TM\(a,/)
    }))
})
