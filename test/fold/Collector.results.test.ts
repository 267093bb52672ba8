/**
 * What a fold comes to: answers in call order, the halt that decides, step results, and a chat result also for a stream
 * that was cut.
 */
import { assert, describe, it } from "@effect/vitest"
import { Collector, type Event, Message, Policy, Response, Thread } from "heddle"
import {
  completed,
  delta,
  encoded,
  failed,
  finished,
  fold,
  fragment,
  respond,
  started,
  stepEnd,
  thread
} from "../support/folds.ts"

const asked = (id: string, question = "?"): Event.Event => ({
  _tag: "AskUserRequested",
  toolCallId: id,
  toolName: "ask",
  question,
  opts: [["kind", "pick"]]
})

const halted = (id: string, reason: string, more: Partial<Event.Of<"ToolHalt">> = {}): Event.Event => ({
  _tag: "ToolHalt",
  toolCallId: id,
  reason,
  result: { v: 1 },
  content: "{\"v\":1}",
  ...more
})

const twoCalls = [completed("a", "echo"), completed("b", "echo")]

const contents = (state: Collector.State) =>
  Collector.answers(state).map((message) => [message.toolCallId, message.content])

describe("Collector: answers", () => {
  it("R-305: an encoded result answers its call, in call order, whichever call completed first", () => {
    const state = fold([...twoCalls, encoded("b", "2"), { ...encoded("a", "1"), isError: true }])
    assert.deepStrictEqual(Collector.answers(state), [
      { ...Message.tool("a", "1"), isError: true },
      Message.tool("b", "2")
    ])
  })

  it("R-306, R-193: every halt answers its call, and the first call's halt decides", () => {
    const state = fold([...twoCalls, halted("b", "second"), asked("a")])
    assert.deepStrictEqual(contents(state), [["a", "<awaiting user response>"], ["b", "{\"v\":1}"]])
    assert.deepStrictEqual(Collector.halt(state), {
      haltedReason: "ask_user",
      pendingQuestion: "?",
      pendingToolCallId: "a",
      askUserOpts: [["kind", "pick"]]
    })
  })

  it("R-306, R-060: under completion precedence the earliest halt decides", () => {
    const policy: Policy.Policy = { ...Policy.standard, haltPrecedence: "completion" }
    const state = fold([...twoCalls, halted("b", "second"), asked("a")], { thread, policy })
    assert.deepStrictEqual(Collector.halt(state), {
      haltedReason: "second",
      haltToolCallId: "b",
      haltResult: { v: 1 }
    })
  })

  it("R-306: a halt without content is answered with a rendering of its result", () => {
    const bare = { _tag: "ToolHalt", toolCallId: "a", reason: "r", result: { v: 1 } }
    assert.deepStrictEqual(contents(fold([completed("a", "echo"), bare])), [["a", "{\"v\":1}"]])
    assert.deepStrictEqual(contents(fold([completed("a", "echo"), { ...bare, result: "text" }])), [["a", "text"]])
    const broken = { ...bare, result: new Error("broken") }
    assert.deepStrictEqual(contents(fold([completed("a", "echo"), broken])), [["a", "broken"]])
  })

  it("R-313, R-192: a tool error halts without a result, and keeps an exception of onToolError", () => {
    const plain = fold([completed("a", "echo"), halted("a", "tool_error")])
    assert.deepStrictEqual(Collector.halt(plain), { haltedReason: "tool_error", haltToolCallId: "a" })
    assert.isTrue(Collector.answers(plain)[0]?.isError)
    const thrown = fold([completed("a", "echo"), halted("a", "tool_error", { onToolErrorException: "X" })])
    assert.deepStrictEqual(Collector.halt(thrown), {
      haltedReason: "tool_error",
      haltToolCallId: "a",
      onToolErrorException: "X"
    })
  })

  it("a fold without a halt has no deciding halt", () => {
    assert.isUndefined(Collector.halt(fold([...twoCalls, encoded("a", "1")])))
  })
})

describe("Collector: step results", () => {
  const response = respond(twoCalls)

  it("R-307: a completed step is derived from the events folded before, and its fields are reset", () => {
    const longer = Thread.append(thread, [Message.assistant("x")])
    const state = fold([
      delta("x"),
      ...twoCalls,
      { _tag: "ReasoningDelta", id: null, delta: "hm" },
      encoded("b", "2"),
      encoded("a", "1"),
      finished("tool_calls", {
        usage: Response.usage({ inputTokens: 1 }),
        responseId: "r1",
        model: "m1",
        metadata: { tier: "fast" }
      }),
      stepEnd(response, { thread: longer })
    ])
    assert.deepStrictEqual(state.steps, [{
      thread: longer,
      response,
      toolResults: [Message.tool("a", "1"), Message.tool("b", "2")],
      done: false,
      metadata: {}
    }])
    assert.strictEqual(state.steps[0]?.thread, longer)
    const next = Collector.toResponse(state)
    assert.deepInclude(next, {
      outputText: null,
      reasoning: "",
      toolCalls: [],
      message: null,
      finishReason: null,
      rawFinishReason: null,
      id: null,
      model: null
    })
    assert.deepStrictEqual(Collector.answers(state), [])
    assert.isUndefined(Collector.halt(state))
  })

  it("R-307, R-204: metadata carries over from step to step, and each step has its own usage", () => {
    const state = fold([
      finished("stop", { metadata: { tier: "fast" }, usage: Response.usage({ inputTokens: 1 }) }),
      stepEnd(response),
      finished("stop", { metadata: { seed: 1 } })
    ])
    assert.deepStrictEqual(Collector.toResponse(state).metadata, { tier: "fast", seed: 1 })
    assert.isNull(Collector.toResponse(state).usage)
  })

  it("R-307: a step shows its mode only when the mode is manual and calls were to run", () => {
    const stepOf = (event: Event.Event) => fold([event]).steps[0]!
    assert.strictEqual(stepOf(stepEnd(response, { mode: "manual" })).mode, "manual")
    assert.notProperty(stepOf(stepEnd(response)), "mode")
    assert.notProperty(stepOf(stepEnd(respond([delta("a")]), { mode: "manual" })), "mode")
  })

  it("R-307, R-180: a step shows its manual calls, but not beside a halt", () => {
    const calls = response.toolCalls
    assert.notProperty(fold([stepEnd(response)]).steps[0], "manualToolCalls")
    assert.deepStrictEqual(fold([stepEnd(response, { manualToolCalls: calls })]).steps[0]?.manualToolCalls, calls)
    const halt: Event.Halt = { haltedReason: "r", haltToolCallId: "a", haltResult: 1 }
    const step = fold([stepEnd(response, { manualToolCalls: calls, done: true, halt })]).steps[0]
    assert.notProperty(step, "manualToolCalls")
    assert.deepInclude(step, { halt, done: true })
  })

  it("R-307, R-310: a step without a verdict of the loop is done when it halted or has nothing to run", () => {
    assert.isTrue(fold([...twoCalls, halted("a", "r"), stepEnd(response)]).steps[0]?.done)
    assert.strictEqual(fold([...twoCalls, halted("a", "r"), stepEnd(response)]).steps[0]?.halt?.haltedReason, "r")
    assert.isFalse(fold([stepEnd(response)]).steps[0]?.done)
    assert.isTrue(fold([stepEnd(respond([delta("a"), finished("stop")]))]).steps[0]?.done)
    assert.isTrue(fold([stepEnd(response, { done: true })]).steps[0]?.done)
  })

  it("R-129, R-206: answers follow the calls of the response, also where a filter hid the calls' own events", () => {
    const deltas = [fragment("a", "{}"), fragment("b", "{}"), started("a", "x"), started("b", "x")]
    const hidden = [encoded("b", "2"), encoded("a", "1"), stepEnd(respond(deltas))]
    assert.deepStrictEqual(fold(hidden).steps[0]?.toolResults.map((message) => message.toolCallId), ["a", "b"])
  })

  it("R-311, K-06: a response needs no thread, and step and chat results are defects without a thread", () => {
    const state = fold([delta("a"), failed("lost")], {})
    assert.strictEqual(Collector.toResponse(state).outputText, "a")
    assert.strictEqual(Collector.toResponse(state).error, "lost")
    assert.throws(() => Collector.toStepResult(state), /toStepResult needs the thread/)
    assert.throws(() => Collector.toChatResult(state), /toChatResult needs the thread/)
  })

  it("the result of a step in progress contains the events folded so far", () => {
    const step = Collector.toStepResult(fold([delta("a"), ...twoCalls, encoded("a", "1")]))
    assert.strictEqual(step.response.outputText, "a")
    assert.deepStrictEqual(step.toolResults, [Message.tool("a", "1")])
    assert.strictEqual(step.thread, thread)
    assert.isFalse(step.done)
  })
})

describe("Collector: chat results", () => {
  const response = respond([delta("x"), finished("stop", { usage: Response.usage({ inputTokens: 2 }) })])

  it("R-308: the fold of a completed chat returns the chat's own result", () => {
    const result = Collector.chatResult({ thread, steps: [], outcome: { _tag: "Completed", finishReason: "stop" } })
    const state = fold([failed("late"), { _tag: "ChatCompleted", result }])
    assert.strictEqual(Collector.toChatResult(state), result)
  })

  it("R-312, K-07: a cut stream is cancelled, even if its last step looked complete", () => {
    const result = Collector.toChatResult(fold([delta("x"), finished("stop"), stepEnd(response, { done: true })]))
    assert.deepStrictEqual(result.outcome, { _tag: "Cancelled", reason: "interrupt" })
    assert.strictEqual(result.haltedReason, "cancelled")
    assert.strictEqual(result.steps.length, 1)
    assert.strictEqual(result.finalResponse, response)
    assert.deepStrictEqual(result.usage, Response.usage({ inputTokens: 2 }))
  })

  it("R-312, R-189: a stream cut after an error has failed with that error", () => {
    const result = Collector.toChatResult(fold([delta("par"), failed("lost")]))
    assert.deepStrictEqual(result.outcome, { _tag: "Failed", error: "lost" })
    assert.strictEqual(result.haltedReason, "error")
    assert.strictEqual(result.finalResponse?.outputText, "par")
  })

  it("R-312: the final response is the last step's response, else the first step's partial response, else null", () => {
    const cut = (...events: ReadonlyArray<Event.Event>) => Collector.toChatResult(fold(events)).finalResponse
    assert.isNull(cut())
    assert.strictEqual(cut(delta("a"))?.outputText, "a")
    assert.strictEqual(cut({ _tag: "ReasoningDelta", id: null, delta: "hm" })?.reasoning, "hm")
    assert.strictEqual(cut(started("c0", "echo"))?.toolCalls.length, 1)
    assert.strictEqual(cut(stepEnd(response), delta("later")), response)
  })

  it("R-204: a chat's usage is the sum of its steps' usage", () => {
    const step = Collector.toStepResult(fold([stepEnd(response)]))
    const result = Collector.chatResult({
      thread,
      steps: [step, step],
      outcome: { _tag: "Completed", finishReason: "stop" }
    })
    assert.deepStrictEqual(result.usage, Response.usage({ inputTokens: 4 }))
    assert.deepStrictEqual(result.steps.map((one) => one.response.usage?.inputTokens), [2, 2])
  })

  it("every outcome has its haltedReason", () => {
    const word = (outcome: Event.Outcome) => Collector.chatResult({ thread, steps: [], outcome }).haltedReason
    const halt = { haltToolCallId: "a", haltResult: 1 }
    assert.deepStrictEqual(
      [
        word({ _tag: "Completed", finishReason: "stop" }),
        word({ _tag: "MaxTurns", maxTurns: 1 }),
        word({ _tag: "HaltWhen", stepIndex: 0 }),
        word({ _tag: "AskUser", pendingQuestion: "?", pendingToolCallId: "a", askUserOpts: [] }),
        word({ _tag: "ToolFailed", haltToolCallId: "a" }),
        word({ _tag: "Halted", reason: "done_early", ...halt }),
        word({ _tag: "ManualToolCalls", stepIndex: 0 }),
        word({ _tag: "Cancelled", reason: "interrupt" }),
        word({ _tag: "Failed", error: 1 })
      ],
      [
        "completed",
        "max_turns",
        "halt_when",
        "ask_user",
        "tool_error",
        "done_early",
        "manual_tool_calls",
        "cancelled",
        "error"
      ]
    )
  })
})
