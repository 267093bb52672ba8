/**
 * The law of switches: another model is asked only in place of a reply that has said nothing. It holds at every step at
 * which a run can be stopped, and it finds a rule that switches behind a word.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, Chat, type Event, Message } from "heddle"
import { check, everyStep, Script } from "heddle/testing"
import * as Rules from "../../src/internal/loop/rules.ts"
import { look, modelOf } from "../support/ruled.ts"

/**
 * A planted fault: it switches behind whatever the reply of the first model has said. `Rule.make` refuses such events, so
 * that no caller can switch like that.
 */
const hasty: Rules.Rule<never, never> = {
  name: "hasty",
  reply: ({ error }) =>
    error === undefined ? Rules.keep : {
      _tag: "AskAgain",
      after: 0,
      events: [{ _tag: "ModelSwitched", from: "first", to: "second", error }]
    },
  ask: (ask, { attempt }) => {
    const second = ask.adapter.candidates?.[1]
    return attempt === 0 || second === undefined ? ask : { ...ask, adapter: second.adapter }
  }
}

const started: Event.AdapterEvent = { _tag: "MessageStarted", message: Message.assistant("") }

/** What the first candidate says before it fails, and whether that is a word. */
const beginnings: Readonly<Record<string, readonly [events: ReadonlyArray<Event.AdapterEvent>, isWord: boolean]>> = {
  "nothing": [[], false],
  "a beginning": [[started], false],
  "a beginning and usage": [[started, { _tag: "RawChunk", chunk: { usage: { inputTokens: 3 } } }], false],
  "a text": [[started, { _tag: "TextDelta", id: null, delta: "a" }], true],
  "reasoning": [[started, { _tag: "ReasoningDelta", id: null, delta: "a" }], true],
  "a call": [[started, { _tag: "ToolCallStarted", id: "c", name: "send" }], true]
}

const models = (before: ReadonlyArray<Event.AdapterEvent>) => {
  const lost: Adapter.Service = {
    stream: () =>
      Stream.concat(Stream.fromIterable(before), Stream.fail(new Adapter.AdapterError({ reason: "network_error" })))
  }
  const second = modelOf(({ messages }) =>
    messages.some(({ role }) => role === "tool")
      ? [Script.text("done"), Script.finish("stop")]
      : [Script.toolCall("c0", "look"), Script.finish("tool_calls")], [])
  return Adapter.fallback([{ layer: Adapter.layer(lost), name: "first" }, {
    layer: Adapter.layer(second),
    name: "second"
  }])
}

const lawsOf = (before: ReadonlyArray<Event.AdapterEvent>, rules: Rules.Rules<never, never> = []) =>
  Effect.map(
    everyStep(({ cancel }) => Chat.stream("go", { tools: [look], cancel }), {
      layer: Layer.merge(models(before), Layer.succeed(Rules.Inherited, rules)),
      maxOpsBeforeYield: 6,
      limit: 80
    }),
    ({ violations }) => Array.from(new Set(violations.map(({ law }) => law)))
  )

describe("the law of switches", () => {
  for (const [what, [before, isWord]] of Object.entries(beginnings)) {
    it.effect(`G35: a run whose first model fails behind ${what} switches lawfully or not at all, stopped at every step`, () =>
      Effect.gen(function*() {
        assert.deepStrictEqual(yield* lawsOf(before), [])
      }))

    it.effect(`G35: the law of switches ${isWord ? "finds a planted switch" : "allows a switch"} behind ${what}`, () =>
      Effect.gen(function*() {
        assert.deepStrictEqual(yield* lawsOf(before, [hasty]), isWord ? ["switches"] : [])
      }))
  }

  it("G35: the law of switches finds a switch that follows no StepReset", () => {
    const switched: Event.Event = { _tag: "ModelSwitched", from: "first", to: "second", error: null }
    const found = check([started, switched], { isCut: true })
    assert.deepStrictEqual(found, [
      { law: "switches", index: 1, message: "the switch from \"first\" to \"second\" does not follow a StepReset" }
    ])
    assert.deepStrictEqual(check([started, { _tag: "StepReset", error: null }, switched], { isCut: true }), [])
  })
})
