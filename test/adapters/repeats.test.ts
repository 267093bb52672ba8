/**
 * Servers say things twice: whole arguments behind their fragments, a call behind itself, a text as content and as the
 * transcript of a sound. Each counts once; what contradicts itself is never run.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Collector, type Event } from "heddle"
import * as AiSdk from "../support/aiSdk.ts"
import * as Anthropic from "../support/anthropic.ts"
import * as Gemini from "../support/gemini.ts"
import * as Chat from "../support/openAiChat.ts"
import * as Responses from "../support/openAiResponses.ts"
import { callsOf, lostOf, played } from "../support/replies.ts"

const head = Chat.call({ index: 0, id: "t1", type: "function", name: "look", arguments: "" })

const chat = (...fragments: ReadonlyArray<string>) =>
  played(
    "chat",
    Chat.body(
      head,
      ...fragments.map((text) => Chat.call({ index: 0, arguments: text })),
      Chat.finish("tool_calls")
    )
  )

const anthropic = (...fragments: ReadonlyArray<string>) =>
  played("anthropic", Anthropic.reply([Anthropic.called(0, "t1", "look", ...fragments)], "tool_use"))

const responses = (...fragments: ReadonlyArray<string>) =>
  played(
    "responses",
    Responses.body(
      Responses.created,
      Responses.added(0, Responses.call("t1", "look")),
      ...fragments.map((text) => Responses.args(0, text)),
      Responses.completed()
    )
  )

const fold = (...fragments: ReadonlyArray<string>) =>
  Effect.sync(() => {
    const events: ReadonlyArray<Event.Event> = [
      { _tag: "ToolCallStarted", id: "a", name: "look" },
      ...fragments.map((argumentsDelta): Event.Event => ({ _tag: "ToolCallDelta", id: "a", argumentsDelta })),
      {
        _tag: "MessageCompleted",
        message: { role: "assistant", content: "", metadata: {} },
        finishReason: "tool_calls"
      }
    ]
    return Collector.classify(events).toolCalls.map((call) => call.argumentsLost ?? call.arguments)
  })

const ways = { chat, responses, anthropic }

const whole = "{\"q\":\"a{\\\"}\",\"n\":[{}]}"
const args = { q: "a{\"}", n: [{}] }

const repetitions: ReadonlyArray<readonly [name: string, fragments: ReadonlyArray<string>]> = [
  ["as they are", [whole.slice(0, 6), whole.slice(6), whole]],
  ["as a JSON string", [whole.slice(0, 9), whole.slice(9), JSON.stringify(whole)]],
  ["in fragments", [whole, whole.slice(0, 7), whole.slice(7, 8), whole.slice(8)]],
  ["with other spaces", [whole, JSON.stringify(args, null, 2)]],
  ["in the same fragment", [whole + whole]],
  ["three times", [whole, whole, JSON.stringify(whole)]],
  ["letter by letter", [...whole, ..."\n", ...JSON.stringify(whole)]],
  ["behind {}", ["{}", whole]],
  ["behind {} in pieces", ["{", "}", ...whole]],
  ["behind null", ["null", whole]],
  ["as a JSON string behind {}", ["{}", JSON.stringify(whole)]]
]

const contradictions: ReadonlyArray<readonly [name: string, fragments: ReadonlyArray<string>]> = [
  ["other arguments", [whole, "{\"q\":\"b\"}"]],
  ["other arguments behind equal ones", [whole, whole, "{\"q\":\"b\"}"]],
  ["other arguments as a JSON string", [whole, JSON.stringify("{\"q\":\"b\"}")]],
  ["{} behind others", [whole, "{}"]],
  ["half of them", [whole, "{\"q\":"]],
  ["a brace", [whole, "}"]]
]

describe("repeated arguments", () => {
  for (const [name, run] of Object.entries(ways)) {
    it.effect(`O-19: the ${name} adapter runs a call with repeated whole arguments once`, () =>
      Effect.forEach(repetitions, ([how, fragments]) =>
        Effect.gen(function*() {
          const found = yield* run(...fragments)
          assert.deepStrictEqual(callsOf(found), [["look", args]], how)
          assert.strictEqual(found.outcome._tag, "Completed", how)
        })))

    it.effect(`O-19: the ${name} adapter does not run a call with contradictory arguments`, () =>
      Effect.forEach(contradictions, ([how, fragments]) =>
        Effect.gen(function*() {
          const found = yield* run(...fragments)
          assert.deepStrictEqual(callsOf(found), [], how)
          assert.isTrue(lostOf(found).length === 1 || found.outcome._tag === "Failed", how)
        })))
  }

  it.effect("O-19: the fold reads repeated and contradictory deltas of any adapter alike", () =>
    Effect.gen(function*() {
      for (const [how, fragments] of repetitions) assert.deepStrictEqual(yield* fold(...fragments), [args], how)
      for (const [how, fragments] of contradictions) {
        assert.deepStrictEqual(yield* fold(...fragments), ["json_decode_error"], how)
      }
    }))

  it.effect("O-19: a chunk that repeats a whole call adds no call, with or without the id, also after the next call", () =>
    Effect.gen(function*() {
      const again = [
        Chat.call({ index: 0, id: "t1", type: "function", name: "look", arguments: "{\"q\":1}" }),
        Chat.call({ index: 0, arguments: JSON.stringify("{\"q\":1}") })
      ]
      const fragments = [Chat.call({ index: 0, arguments: "{\"q\":" }), Chat.call({ index: 0, arguments: "1}" })]
      const next = Chat.call({ index: 1, id: "t2", type: "function", name: "find", arguments: "{\"p\":1}" })
      for (const more of [again, [next, ...again], [...again, next]]) {
        const found = yield* played("chat", Chat.body(head, ...fragments, ...more, Chat.finish("tool_calls")))
        assert.deepStrictEqual(callsOf(found)[0], ["look", { q: 1 }])
        assert.strictEqual(found.ran.length, more.length === 2 ? 1 : 2)
      }
    }))

  it.effect("O-07, O-19: a call without arguments has lost them if another call has two", () =>
    Effect.gen(function*() {
      const found = yield* played(
        "chat",
        Chat.body(
          head,
          Chat.call({ index: 1, id: "t2", type: "function", name: "find", arguments: "" }),
          Chat.call({ index: 0, arguments: "{\"q\":1}" }),
          Chat.call({ index: 0, arguments: "{\"p\":2}" }),
          Chat.finish("tool_calls")
        )
      )
      assert.deepStrictEqual(callsOf(found), [])
      assert.deepStrictEqual(lostOf(found), [["look", "json_decode_error"], ["find", "missing_fragments"]])
    }))

  it.effect("O-19: a whole call repeated with its id at another index adds no call; other arguments add a call", () =>
    Effect.gen(function*() {
      const call = (index: number, args: string) =>
        Chat.call({ index, id: "t1", type: "function", name: "look", arguments: args })
      const pieces = [
        call(0, ""),
        Chat.call({ index: 0, arguments: "{\"q\":" }),
        Chat.call({ index: 0, arguments: "1}" })
      ]
      for (const first of [[call(0, "{\"q\":1}")], pieces]) {
        for (const again of ["{\"q\":1}", "{ \"q\": 1 }", JSON.stringify("{\"q\":1}")]) {
          const found = yield* played("chat", Chat.body(...first, call(1, again), Chat.finish("tool_calls")))
          assert.deepStrictEqual(callsOf(found), [["look", { q: 1 }]])
        }
        const other = yield* played("chat", Chat.body(...first, call(1, "{\"q\":2}"), Chat.finish("tool_calls")))
        assert.deepStrictEqual(callsOf(other), [["look", { q: 1 }], ["look", { q: 2 }]])
      }
    }))

  it.effect("O-19: whole arguments of an event that contradict whole fragments never run", () =>
    Effect.gen(function*() {
      const over = (fragments: string, whole: string) =>
        played(
          "responses",
          Responses.body(
            Responses.created,
            Responses.added(0, Responses.call("t1", "look")),
            Responses.args(0, fragments),
            Responses.done(0, Responses.call("t1", "look", whole)),
            Responses.completed()
          )
        )
      for (const whole of ["{}", "{\"q\":2}"]) {
        const found = yield* over("{\"q\":1}", whole)
        assert.deepStrictEqual([callsOf(found), lostOf(found)], [[], [["look", "json_decode_error"]]], whole)
      }
      assert.deepStrictEqual(callsOf(yield* over("{}", "{\"q\":1}")), [["look", { q: 1 }]])
      assert.deepStrictEqual(callsOf(yield* over("{\"p\":", "{\"q\":1}")), [["look", { q: 1 }]])
      for (const input of ["{}", "{\"q\":2}"]) {
        const { events } = yield* AiSdk.outcomeOfParts(
          { type: "tool-input-start", id: "t1", toolName: "look" },
          { type: "tool-input-delta", id: "t1", delta: "{\"q\":1}" },
          { type: "tool-call", toolCallId: "t1", toolName: "look", input },
          AiSdk.finish("tool-calls")
        )
        assert.deepStrictEqual(Chat.calls(events), [
          { id: "t1", name: "look", arguments: {}, argumentsLost: "json_decode_error" }
        ])
      }
    }))

  it.effect("O-19: a repeated item, block or part adds no call; an item or block with other arguments fails the reply", () =>
    Effect.gen(function*() {
      const item = (args: string) => [
        Responses.added(0, Responses.call("t1", "look")),
        Responses.args(0, args),
        Responses.done(0, Responses.call("t1", "look", args))
      ]
      const items = (...events: ReadonlyArray<Responses.Json>) =>
        played("responses", Responses.body(Responses.created, ...events, Responses.completed()))
      assert.deepStrictEqual(callsOf(yield* items(...item("{\"q\":1}"), ...item("{\"q\":1}"))), [["look", { q: 1 }]])
      assert.strictEqual((yield* items(...item("{\"q\":1}"), ...item("{\"q\":2}"))).outcome._tag, "Failed")
      const block = (args: string) => Anthropic.called(0, "t1", "look", args)
      const blocks = (...said: ReadonlyArray<ReadonlyArray<Responses.Json>>) =>
        played("anthropic", Anthropic.reply(said, "tool_use"))
      assert.deepStrictEqual(callsOf(yield* blocks(block("{\"q\":1}"), block("{\"q\":1}"))), [["look", { q: 1 }]])
      assert.strictEqual((yield* blocks(block("{\"q\":1}"), block("{\"q\":2}"))).outcome._tag, "Failed")
      const part = (q: number) => Gemini.chunk([Gemini.call("look", { q }, { id: "t1" })])
      const parts = (...chunks: ReadonlyArray<Responses.Json>) =>
        played("gemini", Gemini.body(...chunks, Gemini.finish("STOP")))
      assert.deepStrictEqual(callsOf(yield* parts(part(1), part(1))), [["look", { q: 1 }]])
      assert.deepStrictEqual(callsOf(yield* parts(part(1), part(2))), [["look", { q: 1 }], ["look", { q: 2 }]])
    }))
})

describe("a repeated text", () => {
  const spoken = (transcript: string) => Chat.chunk({ audio: { id: "a", transcript } })
  const textOf = (...chunks: ReadonlyArray<Responses.Json>) =>
    Effect.map(
      Chat.outcomeOf(Chat.body(...chunks, Chat.finish("stop"))),
      ({ events }) => Chat.of(events, "TextDelta").map(({ delta }) => delta).join("")
    )

  it.effect("O-70: an audio transcript equal to the text adds no text, in whatever pieces the two come", () =>
    Effect.gen(function*() {
      const both = Chat.chunk({ content: "Hello.", audio: { id: "a", transcript: "Hello." } })
      assert.strictEqual(yield* textOf(both), "Hello.")
      assert.strictEqual(yield* textOf(Chat.said("Hello."), spoken("Hel"), spoken("lo.")), "Hello.")
      assert.strictEqual(yield* textOf(spoken("Hel"), Chat.said("Hello"), spoken("lo."), Chat.said(".")), "Hello.")
      const document = JSON.stringify({
        choices: [{
          message: { role: "assistant", content: "Hello.", audio: { id: "a", transcript: "Hello." } },
          finish_reason: "stop"
        }]
      })
      const { events } = yield* Chat.outcomeOf({ pieces: [document] })
      assert.deepStrictEqual(Chat.of(events, "TextCompleted").map(({ text }) => text), ["Hello."])
    }))

  it.effect("O-70: a different transcript adds its text, and a text with a repeated word stays whole", () =>
    Effect.gen(function*() {
      assert.strictEqual(yield* textOf(Chat.said("Yes. "), spoken("No."), Chat.said("No.")), "Yes. No.No.")
      assert.strictEqual(yield* textOf(spoken("ha"), spoken("ha")), "haha")
      assert.strictEqual(yield* textOf(Chat.said("ha"), Chat.said("ha")), "haha")
    }))
})
