/**
 * Fragments of arguments that come where their call is not: under another index, item or block, or in another choice. They
 * are given to the one call that can have them. Where several can, none of these runs.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Collector, type Event } from "heddle"
import * as AiSdk from "../support/aiSdk.ts"
import * as Anthropic from "../support/anthropic.ts"
import * as Gemini from "../support/gemini.ts"
import * as Chat from "../support/openAiChat.ts"
import * as Responses from "../support/openAiResponses.ts"
import { callsOf, lostOf, type Name, names, played } from "../support/replies.ts"

/** How a server of each protocol writes the head of a call, a fragment of arguments at a place, and a whole reply. */
interface Writing {
  readonly head: (place: number, id: string, name: string) => ReadonlyArray<object>
  readonly args: (place: number, text: string) => object
  readonly reply: (...events: ReadonlyArray<object>) => string
}

const writings: { readonly [name in Exclude<Name, "gemini">]: Writing } = {
  chat: {
    head: (index, id, name) => [Chat.call({ index, id, type: "function", name, arguments: "" })],
    args: (index, text) => Chat.call({ index, arguments: text }),
    reply: (...events) => Chat.body(...events as ReadonlyArray<Responses.Json>, Chat.finish("stop"))
  },
  responses: {
    head: (place, id, name) => [Responses.added(place, Responses.call(id, name))],
    args: (place, text) => Responses.args(place, text),
    reply: (...events) =>
      Responses.body(Responses.created, ...events as ReadonlyArray<Responses.Json>, Responses.completed())
  },
  anthropic: {
    head: (place, id, name) => [Anthropic.call(place, id, name)],
    args: (place, text) => Anthropic.args(place, text),
    reply: (...events) =>
      Anthropic.body(
        Anthropic.start(),
        ...events as ReadonlyArray<Responses.Json>,
        ...Anthropic.ended("tool_use")
      )
  }
}

const streamed = Object.entries(writings) as ReadonlyArray<readonly [Exclude<Name, "gemini">, Writing]>

describe("argument fragments under a wrong index", () => {
  for (const [name, { args, head, reply }] of streamed) {
    it.effect(`O-07: the ${name} adapter gives stray fragments to the only call without arguments, after the call or before`, () =>
      Effect.gen(function*() {
        const strays = [args(1, "{\"q\":"), args(1, "\"a b\"}")]
        const behind = yield* played(name, reply(...head(2, "t1", "look"), ...strays))
        assert.deepStrictEqual(callsOf(behind), [["look", { q: "a b" }]])
        const before = yield* played(name, reply(...strays, ...head(2, "t1", "look")))
        assert.deepStrictEqual(callsOf(before), [["look", { q: "a b" }]])
        const beside = yield* played(
          name,
          reply(...head(2, "t1", "find"), args(2, "{\"p\":1}"), ...head(3, "t2", "look"), ...strays)
        )
        assert.deepStrictEqual(callsOf(beside).toSorted(), [["find", { p: 1 }], ["look", { q: "a b" }]])
      }))

    it.effect(`O-07: the ${name} adapter joins fragments divided between two indexes in the order of the wire`, () =>
      Effect.gen(function*() {
        const split = reply(...head(2, "t1", "look"), args(2, "{\"q\":\"a"), args(1, "b"), args(2, "\"}"))
        assert.deepStrictEqual(callsOf(yield* played(name, split)), [["look", { q: "ab" }]])
      }))

    it.effect(`O-07: the ${name} adapter runs no call if each call's arguments stand under the index before`, () =>
      Effect.gen(function*() {
        const two = [
          ...head(1, "t1", "look"),
          args(0, "{\"q\":1}"),
          ...head(2, "t2", "find"),
          args(1, "{\"p\":2}")
        ]
        const found = yield* played(name, reply(...two))
        assert.deepStrictEqual([callsOf(found), lostOf(found).length], [[], 2])
        const three = yield* played(name, reply(...two, ...head(3, "t3", "look"), args(2, "{\"q\":3}")))
        assert.deepStrictEqual([callsOf(three), lostOf(three).length], [[], 3])
      }))

    it.effect(`O-07: the ${name} adapter ignores a stray {} before, after or among the fragments of a call`, () =>
      Effect.gen(function*() {
        const none = args(0, "{}")
        const [one, other] = [args(1, "{\"q\":"), args(1, "1}")]
        for (const fragments of [[none, one, other], [one, none, other], [one, other, none]]) {
          const found = yield* played(name, reply(...head(0, "t1", "look"), ...fragments))
          assert.deepStrictEqual(callsOf(found), [["look", { q: 1 }]])
        }
      }))

    it.effect(`O-07: the ${name} adapter runs no call that was open at a stray fragment and got its own arguments later`, () =>
      Effect.gen(function*() {
        const open = head(0, "t1", "look")
        const stray = args(7, "{\"q\":1}")
        const later = args(0, "{\"p\":2}")
        const alone = yield* played(name, reply(...open, stray, later))
        assert.deepStrictEqual([callsOf(alone), lostOf(alone)], [[], [["look", "missing_fragments"]]])
        const piece = yield* played(name, reply(...open, args(7, "more"), args(0, "{\"p\":\""), args(0, "\"}")))
        assert.deepStrictEqual([callsOf(piece), lostOf(piece)], [[], [["look", "missing_fragments"]]])
        const next = [...head(1, "t2", "find"), args(1, "{\"r\":3}")]
        const beside = yield* played(name, reply(...open, stray, later, ...next))
        assert.deepStrictEqual([callsOf(beside), lostOf(beside).length], [[], 2])
        const missing = yield* played(name, reply(...open, ...head(1, "t2", "find"), stray, later))
        assert.deepStrictEqual([callsOf(missing), lostOf(missing).length], [[], 2])
        const before = yield* played(name, reply(...next, ...open, stray, later))
        assert.deepStrictEqual([callsOf(before), lostOf(before).length], [[["find", { r: 3 }]], 1])
      }))

    it.effect(`O-07: the ${name} adapter loses the arguments of each call that a stray may belong to, and runs the other calls`, () =>
      Effect.gen(function*() {
        const found = yield* played(
          name,
          reply(
            ...head(0, "t0", "find"),
            args(0, "{\"p\":1}"),
            ...head(1, "t1", "look"),
            ...head(2, "t2", "look"),
            args(7, "{\"q\":1}")
          )
        )
        assert.deepStrictEqual(callsOf(found), [["find", { p: 1 }]])
        assert.deepStrictEqual(lostOf(found), [["look", "missing_fragments"], ["look", "missing_fragments"]])
        assert.strictEqual(found.outcome._tag, "Completed")
        const answers = found.result!.steps[0]!.toolResults.map(({ toolCallId }) => toolCallId)
        assert.deepStrictEqual(answers, ["t0", "t1", "t2"])
      }))
  }

  it.effect("O-07: a call cut by the token limit stays truncated although its fragments came under another index", () =>
    Effect.gen(function*() {
      const reply = Chat.body(
        ...writings.chat.head(2, "t1", "look") as ReadonlyArray<Responses.Json>,
        Chat.call({ index: 1, arguments: "{\"q\":1}" }),
        Chat.finish("length")
      )
      const found = yield* played("chat", reply)
      assert.deepStrictEqual([callsOf(found), lostOf(found)], [[], [["look", "truncated"]]])
    }))

  it.effect("O-07: whole arguments at an index without an item belong to the only call", () =>
    Effect.gen(function*() {
      const done = Responses.event("function_call_arguments.done", { output_index: 5, arguments: "{\"q\":1}" })
      const empty = Responses.done(0, Responses.call("t1", "look"))
      for (const events of [[done], [empty, done], [done, empty]]) {
        const reply = Responses.body(
          Responses.created,
          Responses.added(0, Responses.call("t1", "look")),
          ...events,
          Responses.completed({ output: [Responses.call("t1", "look")] })
        )
        assert.deepStrictEqual(callsOf(yield* played("responses", reply)), [["look", { q: 1 }]])
      }
    }))

  it.effect("O-07: a Gemini call without arguments takes the pieces directly after the call, and no later pieces", () =>
    Effect.gen(function*() {
      const bare = Gemini.chunk([Gemini.call("look")])
      const piece = Gemini.chunk([{ functionCall: { partialArgs: [{ jsonPath: "$.q", stringValue: "a" }] } }])
      const joined = yield* played("gemini", Gemini.body(bare, piece, Gemini.finish("STOP")))
      assert.deepStrictEqual(callsOf(joined), [["look", { q: "a" }]])
      const late = yield* played("gemini", Gemini.body(bare, Gemini.said("x"), piece, Gemini.finish("STOP")))
      assert.strictEqual(late.outcome._tag, "Failed")
    }))

  it.effect("O-07: a bridge gives stray fragments to the only call, and to no call if two are possible", () =>
    Effect.gen(function*() {
      const parts = [
        { type: "tool-input-start", id: "a", toolName: "look" },
        { type: "tool-input-delta", id: "b", delta: "{\"q\":1}" },
        AiSdk.finish("tool-calls")
      ]
      const { events } = yield* AiSdk.outcomeOfParts(...parts)
      assert.deepStrictEqual(Chat.calls(events), [{ id: "a", name: "look", arguments: { q: 1 } }])
      const two = yield* AiSdk.outcomeOfParts({ type: "tool-input-start", id: "c", toolName: "look" }, ...parts)
      assert.deepStrictEqual(Chat.calls(two.events), [
        { id: "c", name: "look", arguments: {}, argumentsLost: "missing_fragments" },
        { id: "a", name: "look", arguments: {}, argumentsLost: "missing_fragments" }
      ])
    }))

  it("O-07: the fold gives stray deltas of any adapter to the only call, and to no call if two are possible", () => {
    const started = (id: string): Event.Event => ({ _tag: "ToolCallStarted", id, name: "look" })
    const stray: Event.Event = { _tag: "ToolCallDelta", id: "x", argumentsDelta: "{\"q\":1}" }
    const end: Event.Event = {
      _tag: "MessageCompleted",
      message: { role: "assistant", content: "", metadata: {} },
      finishReason: "tool_calls"
    }
    const calls = (...events: ReadonlyArray<Event.Event>) =>
      Collector.classify([...events, end]).toolCalls.map((call) => [call.id, call.argumentsLost ?? call.arguments])
    assert.deepStrictEqual(calls(started("a"), stray), [["a", { q: 1 }]])
    assert.deepStrictEqual(calls(started("a"), started("b"), stray), [
      ["a", "missing_fragments"],
      ["b", "missing_fragments"]
    ])
  })

  it.effect("O-07: arguments that can belong to no call are dropped", () =>
    Effect.gen(function*() {
      for (const name of names.filter((one) => one !== "gemini")) {
        const { args, head, reply } = writings[name as Exclude<Name, "gemini">]
        const found = yield* played(name, reply(...head(0, "a", "look"), args(0, "{\"q\":1}"), args(4, "{\"z\":1}")))
        assert.deepStrictEqual(callsOf(found), [["look", { q: 1 }]], name)
      }
    }))
})
