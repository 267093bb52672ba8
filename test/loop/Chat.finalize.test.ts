/**
 * A structured answer at the end: the tools run without the format, and one more call without tools gives the answer in
 * the format that was asked for.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { type Adapter, Chat, type Event, Message, Policy, Tool } from "heddle"
import { Script, Simulation } from "heddle/testing"
import { succeeded } from "../support/runs.ts"
import {
  ask,
  boom,
  chatOf,
  type ChatOptions,
  echo,
  only,
  start,
  stop1,
  tags,
  transcript
} from "../support/scenarios.ts"

const { finish, text, toolCall } = Script

const responseFormat: Adapter.ResponseFormat = { type: "json_object" }
const callEcho = [toolCall("c0", "echo", { x: 1 }), finish("tool_calls")]
const answer = [text("a"), finish("stop")]
const structured = [text("{}"), finish("stop")]
const nudge = "Now provide your final structured response."

const options: ChatOptions = { tools: [echo], responseFormat, structuredFinalize: true }

describe("Chat: structured finalize", () => {
  it.effect("C-25, R-195, R-196, R-197, R-198, R-199: a run with structuredFinalize makes two passes and has one result", () =>
    Effect.gen(function*() {
      const { events, model, result } = yield* chatOf([callEcho, answer, structured], {
        ...options,
        toolChoice: "auto"
      })
      assert.strictEqual(result.steps.length, 3)
      assert.deepStrictEqual(transcript(result.thread), [
        "user(go)",
        "assistant()",
        "TM(c0,{\"x\":1})",
        "assistant(a)",
        `user(${nudge})`,
        "assistant({})"
      ])
      const requests = yield* model.requests
      assert.deepStrictEqual(requests.map((request) => request.responseFormat), [undefined, undefined, responseFormat])
      assert.deepStrictEqual(requests.map((request) => request.tools.length), [1, 1, 0])
      assert.deepStrictEqual(requests.map((request) => request.toolChoice), ["auto", "auto", undefined])
      assert.strictEqual(only(events, "ChatCompleted").length, 1)
      assert.deepStrictEqual(result.structuredFinalize, { pass1Halted: "completed" })
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "stop" })
      assert.strictEqual(result.finalResponse?.outputText, "{}")
      assert.deepStrictEqual(result.metadata, {})
    }))

  it.effect("R-197: the second pass follows an answer forced by the deadline and has its own outcome", () =>
    Effect.gen(function*() {
      const slow = Tool.make("slow", { parameters: {}, handler: () => Effect.as(Effect.sleep(80), "slow") })
      const call = [toolCall("c0", "slow"), finish("tool_calls")]
      const deadline = { after: 100, reserve: 50 }
      for (const [last, ends] of [[structured, "Completed"], [call, "MaxTurns"]] as const) {
        const run = Chat.run("go", { tools: [slow], responseFormat, structuredFinalize: true, deadline }).pipe(
          Effect.provide(Script.layer([call, answer, last]))
        )
        const { finalized, outcome, steps, structuredFinalize } = succeeded(yield* Simulation.run(run))
        assert.deepStrictEqual(structuredFinalize, { pass1Halted: "completed" })
        assert.deepStrictEqual([steps.length, finalized, outcome._tag], [3, "deadline", ends])
      }
    }))

  it.effect("R-197: a second pass cancelled before the model is asked leaves no prompt in the thread", () =>
    Effect.gen(function*() {
      const controller = new AbortController()
      const onEvent = (event: Event.Event) =>
        event._tag === "StepCompleted" ? Effect.sync(() => controller.abort()) : undefined
      const model = yield* Script.make([answer, structured])
      const result = yield* Effect.provide(
        Chat.run("go", { responseFormat, structuredFinalize: true, cancel: controller.signal, onEvent }),
        model.layer
      )
      assert.strictEqual(result.outcome._tag, "Cancelled")
      assert.lengthOf(yield* model.requests, 1)
      assert.deepStrictEqual(transcript(result.thread), ["user(go)", "assistant(a)"])
    }))

  it.effect("C-26, R-197: an empty prompt appends no message", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([answer, structured], { ...options, finalizePrompt: "" })
      assert.deepStrictEqual(transcript(result.thread), ["user(go)", "assistant(a)", "assistant({})"])
    }))

  it.effect("R-197: the caller's prompt wins over the application's prompt, which wins over the built-in prompt", () =>
    Effect.gen(function*() {
      const layer = Layer.succeed(Policy.Defaults, { finalizePrompt: "theirs" })
      const own = yield* chatOf([answer, structured], { ...options, finalizePrompt: "mine" }).pipe(
        Effect.provide(layer)
      )
      assert.include(transcript(own.result.thread), "user(mine)")
      const theirs = yield* chatOf([answer, structured], options).pipe(Effect.provide(layer))
      assert.include(transcript(theirs.result.thread), "user(theirs)")
    }))

  it.effect("C-27, R-196, R-198: a question skips the second pass, and the result has the outcome of the first pass", () =>
    Effect.gen(function*() {
      const scripts = [[toolCall("c0", "ask"), finish("tool_calls")], structured]
      const { events, model, result } = yield* chatOf(scripts, { ...options, tools: [ask] })
      assert.strictEqual(result.haltedReason, "ask_user")
      assert.strictEqual(result.pendingQuestion, "Which city?")
      assert.deepStrictEqual(result.structuredFinalize, { pass1Halted: "ask_user" })
      assert.strictEqual(yield* model.opens, 1)
      assert.deepStrictEqual(tags(events).slice(-2), ["StepCompleted", "ChatCompleted"])
    }))

  it.effect("R-196: a halt, a tool error, a reply error and manual calls skip the second pass", () =>
    Effect.gen(function*() {
      const turns: ReadonlyArray<readonly [string, ReadonlyArray<Script.Entry>, ChatOptions]> = [
        ["done_early", [toolCall("c0", "stop1"), finish("tool_calls")], { tools: [stop1] }],
        ["tool_error", [toolCall("c0", "boom"), finish("tool_calls")], { tools: [boom], onToolError: "halt" }],
        ["error", [text("p"), Script.error("timeout")], {}],
        ["manual_tool_calls", callEcho, { mode: "manual" }]
      ]
      for (const [reason, turn, more] of turns) {
        const { model, result } = yield* chatOf([turn, structured], { ...options, ...more })
        assert.strictEqual(result.haltedReason, reason)
        assert.deepStrictEqual(result.structuredFinalize, { pass1Halted: reason })
        assert.strictEqual(yield* model.opens, 1)
      }
    }))

  it.effect("C-28, R-199, R-200: a refused second pass leaves the result of the first pass and adds the error", () =>
    Effect.gen(function*() {
      const { events, result } = yield* chatOf([callEcho, answer], options)
      assert.strictEqual(result.haltedReason, "completed")
      assert.strictEqual(result.steps.length, 2)
      assert.strictEqual(result.finalResponse?.outputText, "a")
      assert.strictEqual(result.structuredFinalize?.pass1Halted, "completed")
      assert.deepInclude(result.structuredFinalize?.pass2Error, { reason: "no_scripted_response" })
      assert.deepStrictEqual(tags(events).slice(-3), ["StepCompleted", "Error", "ChatCompleted"])
      assert.strictEqual(result.thread.messages.at(-1)?.content, "a", "the prompt of a pass that never was is not kept")
    }))

  it.effect("R-198: a second pass that breaks after its first event decides the result", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([answer, [text("{"), Script.error("timeout")]], options)
      assert.strictEqual(result.haltedReason, "error")
      assert.strictEqual(result.steps.length, 2)
      assert.deepStrictEqual(result.structuredFinalize, { pass1Halted: "completed" })
      assert.strictEqual(result.finalResponse?.outputText, "{")
    }))

  it.effect("C-29, R-195: a run without a format or without structuredFinalize makes one pass", () =>
    Effect.gen(function*() {
      for (
        const more of [{ structuredFinalize: true }, { responseFormat }, { responseFormat, structuredFinalize: false }]
      ) {
        const { model, result } = yield* chatOf([answer, structured], more)
        assert.notProperty(result, "structuredFinalize")
        const requests = yield* model.requests
        assert.deepStrictEqual(requests.map((request) => request.responseFormat), [
          "responseFormat" in more ? responseFormat : undefined
        ])
      }
    }))

  it.effect("C-30, R-196, R-197: the second pass takes no turn and also follows max_turns", () =>
    Effect.gen(function*() {
      const { model, result } = yield* chatOf([callEcho, structured], { ...options, maxTurns: 1 })
      assert.strictEqual(yield* model.opens, 2)
      assert.deepStrictEqual(result.structuredFinalize, { pass1Halted: "max_turns" })
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "stop" })
    }))

  it.effect("R-196: the second pass also follows halt_when", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([callEcho, structured], { ...options, haltWhen: () => true })
      assert.deepStrictEqual(result.structuredFinalize, { pass1Halted: "halt_when" })
      assert.strictEqual(result.haltedReason, "completed")
    }))

  it.effect("R-200: the second pass offers no tools, and a call in it is answered as unknown", () =>
    Effect.gen(function*() {
      const layer = Layer.succeed(Policy.Defaults, { tools: [stop1] })
      const { model, result } = yield* chatOf([answer, [toolCall("c9", "echo"), finish("tool_calls")]], options).pipe(
        Effect.provide(layer)
      )
      const requests = yield* model.requests
      assert.deepStrictEqual(requests.map((request) => request.tools.length), [2, 0])
      assert.include(transcript(result.thread).at(-1), "not offered in this step")
      assert.strictEqual(yield* model.opens, 2, "it is one call, whatever it says")
    }))

  it.effect("R-172, R-198: manual calls of the second pass carry the index of their step", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([answer, callEcho], { ...options, mode: "manual" })
      assert.deepStrictEqual(result.outcome, { _tag: "ManualToolCalls", stepIndex: 1 })
    }))

  it.effect("R-199, R-205: the second pass is not requested before the reader goes past the last step of the first pass", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([answer, structured])
      const events: ReadonlyArray<Event.Event> = yield* Chat.stream(start, options).pipe(
        Stream.takeUntil((event) => event._tag === "StepCompleted"),
        Stream.runCollect,
        Effect.provide(model.layer)
      )
      assert.strictEqual(events.at(-1)?._tag, "StepCompleted")
      assert.strictEqual(yield* model.opens, 1)
      assert.strictEqual(yield* model.cleanups, 1)
    }))

  it.effect("R-197: the prompt is the last message of the second request", () =>
    Effect.gen(function*() {
      const { model } = yield* chatOf([answer, structured], options)
      const [, second] = yield* model.requests
      assert.deepStrictEqual(second?.messages.at(-1), Message.user(nudge))
    }))
})
