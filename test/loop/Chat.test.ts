/**
 * The loop: how many turns it takes, what ends it and in which order the reasons are asked, and what its result holds.
 * Every row is made twice, awaited and streamed.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Stream from "effect/Stream"
import { Chat, type Event, Message, Policy, Response, Thread } from "heddle"
import { Script } from "heddle/testing"
import { inspect } from "node:util"
import { chatOf, type ChatOptions, echo, start, tags, transcript } from "../support/scenarios.ts"

const { finish, text, toolCall, usage } = Script

const callEcho = [toolCall("c0", "echo", { x: 1 }), finish("tool_calls")]
const done = [text("done"), finish("stop")]

describe("Chat: the loop", () => {
  it.effect("the thread of a result, and a thread that extends it, show their messages when printed", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([callEcho, callEcho, done], { tools: [echo] })
      const thread = Thread.append(result.thread, [Message.user("and now?")])
      assert.strictEqual(inspect(result.thread), inspect(structuredClone(result.thread)))
      assert.include(inspect(thread), "and now?")
      assert.deepStrictEqual(result.thread, result.steps.at(-1)?.thread)
    }))

  it.effect("C-01, R-126, R-170, R-186, R-257: a tool turn and an answer give fourteen events", () =>
    Effect.gen(function*() {
      const { events, model, result } = yield* chatOf([callEcho, done], { tools: [echo] })
      assert.deepStrictEqual(tags(events), [
        "MessageStarted",
        "ToolCallStarted",
        "ToolCallCompleted",
        "MessageCompleted",
        "ToolExecutionStarted",
        "ToolExecutionCompleted",
        "ToolResultEncoded",
        "StepCompleted",
        "MessageStarted",
        "TextDelta",
        "TextCompleted",
        "MessageCompleted",
        "StepCompleted",
        "ChatCompleted"
      ])
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "stop" })
      assert.strictEqual(result.haltedReason, "completed")
      assert.strictEqual(result.steps.length, 2)
      assert.deepStrictEqual(transcript(result.thread), [
        "user(go)",
        "assistant()",
        "TM(c0,{\"x\":1})",
        "assistant(done)"
      ])
      assert.deepStrictEqual(result.metadata, {})
      assert.strictEqual(result.finalResponse?.outputText, "done")
      assert.strictEqual(yield* model.opens, 2)
      assert.strictEqual(yield* model.cleanups, 2)
    }))

  it.effect("R-136, R-186: each turn is requested with the thread of the turn before", () =>
    Effect.gen(function*() {
      const { model, result } = yield* chatOf([callEcho, done], { tools: [echo] })
      const requests = yield* model.requests
      assert.deepStrictEqual(requests[1]?.messages, result.steps[0]?.thread.messages)
      assert.deepStrictEqual(result.steps[1]?.thread, result.thread)
      assert.deepStrictEqual(result.steps[0]?.thread.messages, result.thread.messages.slice(0, 3))
    }))

  it.effect("C-02, R-170, R-174: with max_turns 1 the tools of the turn run, and then the run ends", () =>
    Effect.gen(function*() {
      const { model, result } = yield* chatOf([callEcho, done], { tools: [echo], maxTurns: 1 })
      assert.deepStrictEqual(result.outcome, { _tag: "MaxTurns", maxTurns: 1 })
      assert.strictEqual(result.haltedReason, "max_turns")
      assert.strictEqual(result.steps.length, 1)
      assert.strictEqual(transcript(result.thread).at(-1), "TM(c0,{\"x\":1})")
      assert.strictEqual(yield* model.opens, 1)
    }))

  it.effect("R-170: a run makes at most eight model calls by default", () =>
    Effect.gen(function*() {
      const { model, result } = yield* chatOf(Array.from({ length: 10 }, () => callEcho), { tools: [echo] })
      assert.deepStrictEqual(result.outcome, { _tag: "MaxTurns", maxTurns: 8 })
      assert.strictEqual(yield* model.opens, 8)
    }))

  it.effect("R-170: an answer in the last allowed turn completes the run", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([callEcho, done], { tools: [echo], maxTurns: 2 })
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "stop" })
    }))

  it.effect("C-03, R-171: a max_turns that is no positive integer is a defect before the adapter is opened", () =>
    Effect.gen(function*() {
      for (const [value, shown] of [[0, "0"], [-1, "-1"], [1.5, "1.5"], ["8", "\"8\""], [true, "true"]] as const) {
        const model = yield* Script.make([done, done])
        const options = { maxTurns: value } as ChatOptions
        const awaited = yield* Effect.exit(Effect.provide(Chat.run(start, options), model.layer))
        const streamed = yield* Effect.exit(Effect.provide(Stream.runDrain(Chat.stream(start, options)), model.layer))
        for (const exit of [awaited, streamed] as ReadonlyArray<Exit.Exit<unknown, unknown>>) {
          assert.isTrue(Exit.hasDies(exit))
          const { cause } = exit as Exit.Failure<unknown, unknown>
          assert.strictEqual(
            (Cause.squash(cause) as Error).message,
            `maxTurns must be a positive integer; got: ${shown}`
          )
        }
        assert.strictEqual(yield* model.opens, 0)
      }
    }))

  it.effect("R-142, P-15: a reply without calls ends the run, and under allm the loop continues to max_turns", () =>
    Effect.gen(function*() {
      const scripts = [[finish("tool_calls")], done]
      assert.strictEqual((yield* chatOf(scripts)).result.steps.length, 1)
      const allm = yield* chatOf(scripts, { policy: Policy.allm })
      assert.strictEqual(allm.result.steps.length, 2)
      assert.deepStrictEqual(allm.result.outcome, { _tag: "Completed", finishReason: "stop" })
      const silent = yield* chatOf([[], [], []], { policy: Policy.allm, maxTurns: 3 })
      assert.deepStrictEqual(silent.result.outcome, { _tag: "MaxTurns", maxTurns: 3 })
    }))

  it.effect("P-14, P-16: a run continues after stop with calls, and a cut text completes the run", () =>
    Effect.gen(function*() {
      const stopped = yield* chatOf([[toolCall("c0", "echo"), finish("stop")], done], { tools: [echo] })
      assert.strictEqual(stopped.result.steps.length, 2)
      const cut = yield* chatOf([[text("x"), finish("length")]])
      assert.deepStrictEqual(cut.result.outcome, { _tag: "Completed", finishReason: "length" })
    }))

  it.effect("R-357: after finish reason length the model gets the answers to its calls and another turn", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([[toolCall("c0", "echo"), finish("length")], done], { tools: [echo] })
      assert.strictEqual(result.steps.length, 2)
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "stop" })
    }))

  it.effect("R-204: the usage of a run is the sum over its steps, and each step has its own usage", () =>
    Effect.gen(function*() {
      const scripts = [
        [toolCall("c0", "echo"), usage({ inputTokens: 1, outputTokens: 2 }), finish("tool_calls")],
        [text("a"), toolCall("c1", "echo"), finish("tool_calls")],
        [text("b"), usage({ inputTokens: 10 }), finish("stop")]
      ]
      const { result } = yield* chatOf(scripts, { tools: [echo] })
      assert.deepStrictEqual(result.usage, Response.usage({ inputTokens: 11, outputTokens: 2 }))
      assert.deepStrictEqual(result.steps.map((step) => step.response.usage?.inputTokens ?? null), [1, null, 10])
      assert.isNull((yield* chatOf([done])).result.usage)
    }))

  it.effect("R-177: the final response of a run is the response of its last step", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([callEcho, done], { tools: [echo] })
      assert.deepStrictEqual(result.finalResponse, result.steps[1]?.response)
    }))
})

describe("Chat: halt_when", () => {
  it.effect("C-05, R-172, R-173: halt_when wins over max_turns, and the outcome has the step index", () =>
    Effect.gen(function*() {
      const options = { tools: [echo], haltWhen: () => true }
      const first = yield* chatOf([callEcho, done], { ...options, maxTurns: 1 })
      assert.deepStrictEqual(first.result.outcome, { _tag: "HaltWhen", stepIndex: 0 })
      assert.strictEqual(first.result.haltedReason, "halt_when")
      const second = yield* chatOf([callEcho, callEcho, done], {
        tools: [echo],
        haltWhen: (step) => step.thread.messages.length > 3
      })
      assert.deepStrictEqual(second.result.outcome, { _tag: "HaltWhen", stepIndex: 1 })
    }))

  it.effect("R-173: halt_when sees each step once, with the answers of its tools", () =>
    Effect.gen(function*() {
      const seen: Array<Event.StepResult> = []
      const haltWhen = (step: Event.StepResult) => {
        seen.push(step)
        return false
      }
      const { result } = yield* chatOf([callEcho, callEcho, done], { tools: [echo], haltWhen })
      assert.deepStrictEqual(seen.length, 4, "two steps of the awaited run, two of the streamed one")
      assert.deepStrictEqual(seen.slice(0, 2), result.steps.slice(0, 2))
    }))

  it.effect("C-06, R-173: halt_when is not asked for a step that completes, fails or hands calls over", () =>
    Effect.gen(function*() {
      let asked = 0
      const haltWhen = () => {
        asked++
        return true
      }
      assert.deepStrictEqual((yield* chatOf([done], { haltWhen })).result.outcome, {
        _tag: "Completed",
        finishReason: "stop"
      })
      const manual = yield* chatOf([callEcho], { tools: [echo], mode: "manual", haltWhen })
      assert.strictEqual(manual.result.outcome._tag, "ManualToolCalls")
      const failed = yield* chatOf([[Script.error("timeout")]], { haltWhen })
      assert.strictEqual(failed.result.outcome._tag, "Failed")
      assert.strictEqual(asked, 0)
    }))

  it.effect("R-173: halt_when may return an Effect, and a truthy value halts", () =>
    Effect.gen(function*() {
      const haltWhen = () => Effect.succeed(true)
      const answered = yield* chatOf([callEcho, done], { tools: [echo], haltWhen })
      assert.strictEqual(answered.result.outcome._tag, "HaltWhen")
      const truthy = (() => "yes") as unknown as () => boolean
      assert.strictEqual(
        (yield* chatOf([callEcho, done], { tools: [echo], haltWhen: truthy })).result.outcome._tag,
        "HaltWhen"
      )
      const falsy = (() => Effect.succeed(0)) as unknown as () => boolean
      assert.strictEqual(
        (yield* chatOf([callEcho, done], { tools: [echo], haltWhen: falsy })).result.outcome._tag,
        "Completed"
      )
    }))

  it.effect("C-07, R-173: an error thrown by halt_when fails the run and the stream after the tools of the step have run", () =>
    Effect.gen(function*() {
      const thrown = new Error("halt_when")
      const failures: ReadonlyArray<NonNullable<ChatOptions["haltWhen"]>> = [
        () => {
          throw thrown
        },
        () => Effect.die(thrown)
      ]
      for (const haltWhen of failures) {
        const seen: Array<string> = []
        const model = yield* Script.make([callEcho, callEcho])
        const options = { tools: [echo], haltWhen, onEvent: (event: Event.Event) => void seen.push(event._tag) }
        const awaited = yield* Effect.exit(Effect.provide(Chat.run(start, options), model.layer))
        assert.include(seen, "ToolResultEncoded")
        assert.strictEqual(seen.at(-1), "StepCompleted")
        const streamed = yield* Effect.exit(Effect.provide(Stream.runDrain(Chat.stream(start, options)), model.layer))
        for (const exit of [awaited, streamed] as ReadonlyArray<Exit.Exit<unknown, unknown>>) {
          assert.isTrue(Exit.isFailure(exit) && Cause.squash(exit.cause) === thrown)
        }
      }
    }))
})

describe("Chat: input and options", () => {
  it.effect("R-120: a run continues a conversation and keeps its metadata", () =>
    Effect.gen(function*() {
      const messages = [Message.user("a"), Message.assistant("b"), Message.user("c")]
      const { result } = yield* chatOf([done], {}, { messages, metadata: { mine: 1 } } as { messages: typeof messages })
      assert.deepStrictEqual(transcript(result.thread), ["user(a)", "assistant(b)", "user(c)", "assistant(done)"])
      assert.deepStrictEqual(result.thread.metadata, { mine: 1 })
    }))

  it.effect("R-123: the system text leads every request once", () =>
    Effect.gen(function*() {
      const { model, result } = yield* chatOf([callEcho, done], { tools: [echo], system: "be brief" })
      const requests = yield* model.requests
      assert.deepStrictEqual(
        requests.map((request) => request.messages.filter((message) => message.role === "system").length),
        [1, 1]
      )
      assert.isEmpty(result.thread.messages.filter((message) => message.role === "system"))
    }))

  it.effect("P-21, R-131: the observer sees every event of the run, ChatCompleted included, also events hidden from the reader", () =>
    Effect.gen(function*() {
      const seen: Array<string> = []
      const onEvent = (event: Event.Event) => void seen.push(event._tag)
      const { events } = yield* chatOf([callEcho, done], { tools: [echo] })
      const model = yield* Script.make([callEcho, done])
      yield* Chat.stream(start, { tools: [echo], emitTextDeltas: false, onEvent }).pipe(
        Stream.runDrain,
        Effect.provide(model.layer)
      )
      assert.deepStrictEqual(seen, [...tags(events)])
    }))
})
