/**
 * Calls that wait for an answer from outside: approvals, questions with a type and a term, manual calls, and all of them in one batch.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, Encoder, type Event, Message, Policy, Step, Thread, Tool, ToolRunner } from "heddle"
import { check, Script } from "heddle/testing"
import { appr, ask, chatOf, echo, only, start, stop1, tags, told } from "../support/scenarios.ts"

const { finish, text, toolCall } = Script

/** A tool that counts how often it runs. */
const counting = (options: Partial<Parameters<typeof Tool.make>[1]> = {}) => {
  const runs: Array<unknown> = []
  const tool = Tool.make("pay", {
    parameters: { amount: Schema.Finite },
    approval: true,
    handler: (args) => Effect.sync(() => runs.push(args)).pipe(Effect.as("paid")),
    ...options as {}
  })
  return { tool, runs }
}

const pay = (id: string, amount: unknown = 5) => toolCall(id, "pay", { amount } as Record<string, unknown>)

const waiting = (suspensions: ReadonlyArray<Event.Suspension> = []) => suspensions.map(({ id, kind }) => [id, kind])

describe("approvals", () => {
  it.effect("a call that needs an approval does not run, and its run ends waiting", () =>
    Effect.gen(function*() {
      const { runs, tool } = counting()
      const { events, result } = yield* chatOf([[pay("p"), finish("tool_calls")]], { tools: [tool] })
      const [call] = result.finalResponse!.toolCalls
      assert.deepStrictEqual(result.outcome, {
        _tag: "ApprovalRequested",
        stepIndex: 0,
        approvalToolCalls: [call!]
      })
      assert.strictEqual(result.haltedReason, "approval_requested")
      assert.deepStrictEqual(result.suspensions, [{ id: "p", kind: "approval", toolCall: call! }])
      assert.deepStrictEqual(result.steps[0]?.suspensions, result.suspensions)
      assert.deepStrictEqual(only(events, "ToolApprovalRequested"), [
        { _tag: "ToolApprovalRequested", toolCallId: "p", toolName: "pay", arguments: { amount: 5 } }
      ])
      assert.isEmpty(tags(events).filter((tag) => tag.startsWith("ToolExecution")))
      assert.deepStrictEqual(runs, [])
      assert.isEmpty(check(events))
    }))

  it.effect("the siblings of a waiting call run to their end and are committed", () =>
    Effect.gen(function*() {
      const { runs, tool } = counting()
      const script = [pay("p"), toolCall("e", "echo", { x: 1 }), finish("tool_calls")]
      const { events, result } = yield* chatOf([script], { tools: [tool, echo] })
      assert.deepStrictEqual(result.steps[0]?.toolResults.map(told), ["TM(e,{\"x\":1})"])
      assert.deepStrictEqual(Thread.unanswered(result.thread).map(({ id }) => id), ["p"])
      assert.deepStrictEqual(runs, [])
      assert.isEmpty(check(events))
    }))

  it.effect("CF-18: the gates come first, and a call that a gate denies needs no approval", () =>
    Effect.gen(function*() {
      const { runs, tool } = counting({ authorize: () => ({ allowed: false, reason: "too much" }) })
      const { events, result } = yield* chatOf([[pay("p"), finish("tool_calls")], [finish("stop")]], { tools: [tool] })
      assert.include(told(result.steps[0]!.toolResults[0]!), "too much")
      assert.isEmpty(only(events, "ToolApprovalRequested"))
      assert.deepStrictEqual(runs, [])
    }))

  it.effect("a call with unfit arguments needs no approval", () =>
    Effect.gen(function*() {
      const { tool } = counting()
      const { result } = yield* chatOf([[pay("p", "much"), finish("tool_calls")], [finish("stop")]], { tools: [tool] })
      assert.include(told(result.steps[0]!.toolResults[0]!), "invalid_arguments")
      assert.notProperty(result, "suspensions")
    }))

  it.effect("a function of the arguments decides on the approval, and a broken function requires an approval", () =>
    Effect.gen(function*() {
      const approval = ({ amount }: any) => {
        if (amount === 13) throw new Error("unlucky")
        if (amount === 15) return undefined as never
        return amount === 14 ? Effect.fail("no") : amount > 100
      }
      for (const [amount, isAsked] of [[5, false], [500, true], [13, true], [14, true], [15, true]] as const) {
        const { runs, tool } = counting({ approval })
        const script = [[pay("p", amount), finish("tool_calls")], [text("done"), finish("stop")]]
        const { result } = yield* chatOf(script, { tools: [tool] })
        assert.deepStrictEqual(waiting(result.suspensions), isAsked ? [["p", "approval"]] : [])
        // Awaited and streamed: each ran it once, or neither did.
        assert.strictEqual(runs.length, isAsked ? 0 : 2)
      }
    }))

  it.effect("a read-only tool that needs an approval does not start during the reply", () =>
    Effect.gen(function*() {
      const { runs, tool } = counting({ readOnly: true })
      const script = [pay("p"), text("and more"), finish("length")]
      const { result } = yield* chatOf([script], { tools: [tool] })
      assert.deepStrictEqual(waiting(result.suspensions), [["p", "approval"]])
      assert.deepStrictEqual(runs, [])
    }))

  it.effect("answerWithin bounds the wait for an approval", () =>
    Effect.gen(function*() {
      const { tool } = counting({ answerWithin: "1 minute" })
      const { events, result } = yield* chatOf([[pay("p"), finish("tool_calls")]], { tools: [tool] })
      const { expiresAt } = only(events, "ToolApprovalRequested")[0]!
      assert.strictEqual(expiresAt! % 3_600_000, 60_000)
      assert.isDefined(result.suspensions?.[0]?.expiresAt)
    }))

  it.effect("an approved call runs through the same runner, is decoded, and passes its gates again", () =>
    Effect.gen(function*() {
      const asked: Array<string> = []
      const { runs, tool } = counting({ validate: (_: unknown, call: Tool.CallContext) => (asked.push(call.id), true) })
      const calls = [
        Message.toolCall("a", "pay", { amount: 1 }),
        Message.toolCall("b", "pay", { amount: "x" }),
        Message.toolCall("c", "pay", { amount: 3 })
      ]
      const result = yield* ToolRunner.run(calls, [tool], { approved: ["a", "b"] })
      assert.deepStrictEqual(result.messages.map((message) => [message.toolCallId, message.isError]), [
        ["a", undefined],
        ["b", true]
      ])
      assert.deepStrictEqual(runs, [{ amount: 1 }])
      assert.deepStrictEqual(asked, ["a", "c"])
      assert.deepStrictEqual(waiting(result.suspensions), [["c", "approval"]])
    }))

  it("approval and manual exclude each other, and approval is a flag or a function", () => {
    assert.throws(() => Tool.make("t", { parameters: {}, manual: true, approval: true }), /manual/)
    assert.throws(() => Tool.make("t", { parameters: {}, approval: "yes" as any }), /approval/)
    assert.throws(() => Tool.make("t", { parameters: {}, answerWithin: "soon" as any }), /answerWithin/)
  })
})

describe("several waiting calls in one batch", () => {
  const script = [
    toolCall("m", "appr"),
    toolCall("q1", "ask"),
    pay("p"),
    toolCall("e", "echo", { x: 1 }),
    toolCall("q2", "ask"),
    finish("tool_calls")
  ]

  it.effect("all waiting calls are pending in call order, under every policy of events", () =>
    Effect.gen(function*() {
      for (const policy of [Policy.standard, Policy.falai, { ...Policy.standard, resultOrder: "request" as const }]) {
        const { tool } = counting()
        const { events, result } = yield* chatOf([script], { tools: [appr, ask, tool, echo], policy })
        assert.deepStrictEqual(waiting(result.suspensions), [
          ["m", "manual"],
          ["q1", "question"],
          ["p", "approval"],
          ["q2", "question"]
        ])
        assert.strictEqual(result.outcome._tag, "AskUser")
        assert.strictEqual(result.pendingToolCallId, "q1")
        assert.deepStrictEqual(result.steps[0]?.toolResults.map((message) => message.toolCallId), ["q1", "e", "q2"])
        assert.deepStrictEqual(Thread.unanswered(result.thread).map(({ id }) => id), ["m", "p"])
        assert.isUndefined(result.thread.messages.find((message) => message.askUser === true))
        assert.isEmpty(check(events, { policy }))
      }
    }))

  it.effect("a question asked during the reply is placed in call order as well", () =>
    Effect.gen(function*() {
      const { tool } = counting()
      const early = Tool.make("early", {
        parameters: {},
        readOnly: true,
        handler: () => Effect.succeed(Tool.askUser("Which?"))
      })
      const calls = [pay("p"), toolCall("q", "early"), Script.delay("1 second"), pay("p2"), finish("tool_calls")]
      const { result } = yield* chatOf([calls], { tools: [tool, early] })
      assert.deepStrictEqual(waiting(result.suspensions).map(([id]) => id), ["p", "q", "p2"])
    }))

  it.effect("the outcome of manual calls and approvals names the manual calls", () =>
    Effect.gen(function*() {
      const { tool } = counting()
      const { result } = yield* chatOf([[pay("p"), toolCall("m", "appr"), finish("tool_calls")]], {
        tools: [tool, appr]
      })
      assert.deepInclude(result.outcome, { _tag: "ManualToolCalls", stepIndex: 0 })
      assert.deepStrictEqual(result.steps[0]?.manualToolCalls?.map(({ id }) => id), ["m"])
      assert.deepStrictEqual(waiting(result.suspensions), [["p", "approval"], ["m", "manual"]])
    }))

  it.effect("R-184: a tool's halt waits for no answer, and every call is answered", () =>
    Effect.gen(function*() {
      const { tool } = counting()
      const { events, result } = yield* chatOf([[pay("p"), toolCall("h", "stop1"), finish("tool_calls")]], {
        tools: [tool, stop1]
      })
      assert.strictEqual(result.haltedReason, "done_early")
      assert.notProperty(result, "suspensions")
      assert.isEmpty(Thread.unanswered(result.thread))
      assert.isEmpty(check.thread(result.thread))
      assert.deepStrictEqual(tags(events).filter((tag) => tag === "ToolApprovalRequested"), ["ToolApprovalRequested"])
    }))

  it.effect("a run cancelled while calls wait leaves no open call", () =>
    Effect.gen(function*() {
      const { tool } = counting()
      const controller = new AbortController()
      const stops = Tool.make("stops", { parameters: {}, handler: () => Effect.sync(() => controller.abort()) })
      const calls = [pay("p"), toolCall("m", "appr"), toolCall("s", "stops"), finish("tool_calls")]
      const model = Script.layer([calls])
      const result = yield* Chat.run(start, { tools: [tool, appr, stops], cancel: controller.signal }).pipe(
        Effect.provide(model)
      )
      assert.strictEqual(result.haltedReason, "cancelled")
      assert.notProperty(result, "suspensions")
      assert.isEmpty(Thread.unanswered(result.thread))
      assert.isEmpty(check.thread(result.thread))
    }))
})

const questionsOf = (events: ReadonlyArray<Event.Event>) =>
  only(events, "ToolResultEncoded").filter((event) => event.settled === true)

describe("M-42: a question of a run that ends for another reason", () => {
  const fails = Tool.make("fails", { parameters: {}, handler: () => Effect.fail("broken") })
  const ends = [
    { name: "a tool's halt", call: "stop1", outcome: "Halted", options: {} },
    { name: "a failure that halts", call: "fails", outcome: "ToolFailed", options: { onToolError: "halt" as const } }
  ]
  const policies = {
    standard: Policy.standard,
    allm: Policy.allm,
    falai: Policy.falai,
    inOrder: { ...Policy.standard, resultOrder: "request" as const }
  }

  for (const { call, name, options, outcome } of ends) {
    for (const [policyName, policy] of Object.entries(policies)) {
      it.effect(`${name} withdraws the questions, in the thread and by an event (${policyName})`, () =>
        Effect.gen(function*() {
          const calls = [toolCall("h", call), toolCall("q1", "ask"), toolCall("e", "echo"), toolCall("q2", "ask")]
          const { events, result } = yield* chatOf([[...calls, finish("tool_calls")]], {
            tools: [stop1, fails, ask, echo],
            policy,
            ...options
          })
          assert.strictEqual(result.outcome._tag, outcome)
          assert.notProperty(result, "suspensions")
          assert.notProperty(result.steps[0], "suspensions")
          assert.deepStrictEqual(questionsOf(events).map(({ id, isError }) => [id, isError]), [["q1", true], [
            "q2",
            true
          ]])
          const answers = result.steps[0]!.toolResults
          assert.deepStrictEqual(answers.map((message) => message.toolCallId), ["h", "q1", "e", "q2"])
          for (const { content, id } of questionsOf(events)) {
            const answer = answers.find((message) => message.toolCallId === id)
            assert.deepInclude(answer, { content, isError: true })
            assert.include(content, "cancelled: withdrawn")
          }
          assert.notInclude(JSON.stringify(result.thread), "awaiting user response")
          assert.isEmpty(check(events, { policy }))
        }))
    }
  }

  it.effect("a run waits for a question that is its first halt", () =>
    Effect.gen(function*() {
      const script = [toolCall("q", "ask"), toolCall("h", "stop1"), finish("tool_calls")]
      const { events, result } = yield* chatOf([script], { tools: [ask, stop1] })
      assert.deepStrictEqual([result.outcome._tag, waiting(result.suspensions)], ["AskUser", [["q", "question"]]])
      assert.isEmpty(questionsOf(events))
      assert.isEmpty(check(events))
      const first = yield* chatOf([script], {
        tools: [
          Tool.make("ask", { parameters: {}, handler: () => Effect.delay(ask.handler!({}, {} as never), 5) }),
          stop1
        ],
        policy: { ...Policy.standard, haltPrecedence: "completion" }
      })
      assert.strictEqual(first.result.outcome._tag, "Halted")
      assert.deepStrictEqual(questionsOf(first.events).map(({ id }) => id), ["q"])
    }))

  it.effect("a cancellation withdraws the questions, and the step has no halt", () =>
    Effect.gen(function*() {
      const make = () => {
        const controller = new AbortController()
        const stops = Tool.make("stops", { parameters: {}, handler: () => Effect.sync(() => controller.abort()) })
        const early = Tool.make("early", {
          parameters: {},
          readOnly: true,
          handler: () => Effect.succeed(Tool.askUser("?"))
        })
        return { tools: [stops, ask, early, appr], cancel: controller.signal }
      }
      const calls = [toolCall("q", "ask"), toolCall("r", "early"), toolCall("m", "appr"), toolCall("s", "stops")]
      const model = Script.layer([[...calls, finish("tool_calls")]])
      const awaited = yield* Effect.provide(Chat.run(start, make()), model)
      const events = yield* Chat.stream(start, make()).pipe(
        Stream.runCollect,
        Effect.provide(Script.layer([[...calls, finish("tool_calls")]]))
      )
      const step = yield* Effect.provide(Step.run(start, make()), Script.layer([[...calls, finish("tool_calls")]]))
      assert.deepStrictEqual(questionsOf(events).map(({ id }) => id), ["q", "r"])
      assert.isEmpty(check(events))
      assert.strictEqual(awaited.outcome._tag, "Cancelled")
      for (const { toolResults, ...rest } of [awaited.steps[0]!, step]) {
        assert.deepStrictEqual(toolResults.map((message) => message.toolCallId), ["q", "r", "m", "s"])
        assert.deepStrictEqual(toolResults.slice(0, 3).map((message) => message.isError), [true, true, true])
        assert.notProperty(rest, "halt")
        assert.notProperty(rest, "suspensions")
      }
    }))

  it.effect("the application's encoder writes the withdrawal like any other error", () =>
    Effect.gen(function*() {
      const script = [toolCall("h", "stop1"), toolCall("q", "ask"), finish("tool_calls")]
      const encoder = Encoder.layer({ encode: () => Effect.succeed("written") })
      const events = yield* Chat.stream(start, { tools: [ask, stop1] }).pipe(
        Stream.runCollect,
        Effect.provide([Script.layer([script]), encoder])
      )
      assert.deepStrictEqual(questionsOf(events).map(({ content }) => content), ["written"])
    }))
})

describe("questions with a type", () => {
  const Seats = Schema.Struct({ count: Schema.Int, rows: Schema.Array(Schema.Literals(["a", "b"])) })

  it.effect("the suspension has the question's type, term and default answer as plain data", () =>
    Effect.gen(function*() {
      const typed = Tool.make("seats", {
        parameters: {},
        handler: () =>
          Effect.succeed(
            Tool.askUser("Which seats?", {
              opts: ["window"],
              answer: Seats,
              expiresIn: "1 minute",
              defaultAnswer: { count: 1, rows: [] }
            })
          )
      })
      const { events, result } = yield* chatOf([[toolCall("q", "seats"), finish("tool_calls")]], { tools: [typed] })
      const [suspension] = result.suspensions!
      assert.deepInclude(suspension, {
        id: "q",
        kind: "question",
        question: "Which seats?",
        opts: ["window"],
        defaultAnswer: { count: 1, rows: [] }
      })
      assert.strictEqual(suspension!.expiresAt! % 3_600_000, 60_000)
      assert.deepStrictEqual((suspension!.answerSchema as any).required, ["count", "rows"])
      // The streamed run is a second one, at a later time.
      const { _tag, toolCallId, toolName, expiresAt, ...asked } = only(events, "AskUserRequested")[0]!
      assert.isAtLeast(expiresAt!, suspension!.expiresAt!)
      assert.deepInclude(suspension, asked)
      assert.deepStrictEqual([_tag, toolCallId, toolName], ["AskUserRequested", "q", "seats"])
      assert.deepStrictEqual(JSON.parse(JSON.stringify(suspension)), suspension)
    }))

  it("M-13: an answer type of a number is described as a number, and NaN is refused", () => {
    const { answerSchema, defaultAnswer } = Tool.askUser("How many?", { answer: Schema.Number, defaultAnswer: 2 })
    assert.deepStrictEqual([answerSchema, defaultAnswer], [{ type: "number" }, 2])
    assert.throws(() => Tool.askUser("?", { answer: Schema.Number, defaultAnswer: Number.NaN }), /finite number/)
  })

  it("a type that cannot travel, an unfit default and an unusable term are defects of the tool", () => {
    const keyed = Schema.Record(Schema.TemplateLiteral(["row ", Schema.String]), Schema.Int)
    assert.throws(
      () => Tool.askUser("?", { answer: keyed }),
      /^Tool\.askUser: the JSON Schema of the answer cannot be checked: /
    )
    assert.throws(() => Tool.askUser("?", { expiresIn: "never" as any }), /expiresIn/)
    assert.throws(() => Tool.askUser("?", { answer: Schema.Int, defaultAnswer: "x" as any }))
  })
})
