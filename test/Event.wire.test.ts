/**
 * The form of events for logs, servers and pages: what each step added instead of whole threads, plain JSON whatever the
 * events hold, and a fold that gives the result of the run.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { type Adapter, type Event, Message } from "heddle"
import { Script } from "heddle/testing"
import { appr, ask, boom, chatOf, echo, only, start, stepOf, transcript } from "./support/scenarios.ts"

const { finish, text, toolCall } = Script

const callEcho = [text("let me see"), toolCall("c0", "echo", { x: 1 }), finish("tool_calls")]
const answer = [text("a"), finish("stop")]

/** The messages of each step, and those behind the last one, in short. */
const added = (events: ReadonlyArray<Event.Event>) =>
  [
    ...only(events, "StepCompleted"),
    ...only(events, "ChatCompleted")
  ].map(({ messages = [] }) => transcript({ messages, metadata: {} }))

describe("Event: what a step added", () => {
  it.effect("M-21: a step has the messages that it added, and only these", () =>
    Effect.gen(function*() {
      const { events } = yield* chatOf([callEcho, callEcho, answer], { tools: [echo] })
      assert.deepStrictEqual(added(events), [
        ["assistant(let me see)", "TM(c0,{\"x\":1})"],
        ["assistant(let me see)", "TM(c0,{\"x\":1})"],
        ["assistant(a)"],
        []
      ])
      const steps = only(events, "StepCompleted")
      const all = steps.flatMap(({ messages }) => messages)
      assert.deepStrictEqual(steps.at(-1)?.thread.messages, [...start.messages, ...all])
      const step = yield* stepOf(callEcho, { tools: [echo] })
      assert.deepStrictEqual(added(step.events), [["assistant(let me see)", "TM(c0,{\"x\":1})"]])
    }))

  it.effect("M-21: the prompt of a last, structured answer belongs to the step it introduces", () =>
    Effect.gen(function*() {
      const responseFormat: Adapter.ResponseFormat = { type: "json_object" }
      const options = { tools: [echo], responseFormat, structuredFinalize: true, finalizePrompt: "now" }
      const { events } = yield* chatOf([callEcho, answer, answer], options)
      assert.deepStrictEqual(added(events), [
        ["assistant(let me see)", "TM(c0,{\"x\":1})"],
        ["assistant(a)"],
        ["user(now)", "assistant(a)"],
        []
      ])
    }))

  it.effect("M-21: the question that a run ends with comes behind its last step", () =>
    Effect.gen(function*() {
      const { events, result } = yield* chatOf([toolCall("c0", "ask"), finish("tool_calls")], { tools: [ask] })
      const [step, end] = added(events)
      assert.deepStrictEqual(step, ["assistant()", "TM(c0,<awaiting user response>)"])
      assert.deepStrictEqual(end, ["assistant(Which city?)"])
      assert.strictEqual(Message.text(result.thread.messages.at(-1)!), "Which city?")
    }))

  it.effect("M-21: failed and handed-over calls stand in their step as they do in the thread", () =>
    Effect.gen(function*() {
      const calls = [toolCall("c0", "boom"), toolCall("c1", "appr", {}), finish("tool_calls")]
      const { events } = yield* chatOf([calls], { tools: [boom, appr] })
      const [step] = only(events, "StepCompleted")
      assert.deepStrictEqual(step?.messages, step?.thread.messages.slice(1))
      assert.deepStrictEqual(step?.messages.map(({ role }) => role), ["assistant", "tool"])
    }))
})
