/**
 * How a reply ends: what the token limit has cut, the word for the end, and what is said beside it. The replies come from
 * a server on the loopback interface, over the real HTTP client.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type { Event, Response } from "heddle"
import * as Wire from "../support/anthropic.ts"
import { calls, of } from "../support/openAiChat.ts"

const { args, body, call, called, closed, completed, outcomeOf, reply, start, text } = Wire

const tagsOf = (events: ReadonlyArray<Event.AdapterEvent>) => events.map((event) => event._tag)

const textsOf = (events: ReadonlyArray<Event.AdapterEvent>) => of(events, "TextCompleted").map((event) => event.text)

describe("a reply cut by the token limit", () => {
  it.effect("I-18, R-357: a tool call cut by the token limit has lost its arguments as truncated, whether its block is closed or open", () =>
    Effect.gen(function*() {
      const cut = [call(1, "b", "note"), args(1, "{\"text\":\"The")]
      for (const end of [[], [closed(1)]]) {
        for (const word of ["max_tokens", "model_context_window_exceeded"]) {
          const { events } = yield* outcomeOf(reply([called(0, "a", "note", "{\"text\":\"whole\"}"), cut, end], word))
          assert.deepStrictEqual(calls(events), [
            { id: "a", name: "note", arguments: { text: "whole" } },
            { id: "b", name: "note", arguments: {}, argumentsLost: "truncated" }
          ])
          assert.strictEqual(completed(events).finishReason, "length")
        }
      }
    }))

  it.effect("R-357: a call without any argument text at the token limit is truncated if its block is open or the last block", () =>
    Effect.gen(function*() {
      const lostOf = (...blocks: ReadonlyArray<ReadonlyArray<Readonly<Record<string, unknown>>>>) =>
        Effect.map(
          outcomeOf(reply(blocks, "max_tokens")),
          ({ events }) => of(events, "ToolCallCompleted").map((event) => event.argumentsLost)
        )
      assert.deepStrictEqual(yield* lostOf(called(0, "a", "note", "")), ["truncated"])
      assert.deepStrictEqual(yield* lostOf([call(0, "a", "note"), args(0, "{}")]), ["truncated"])
      assert.deepStrictEqual(yield* lostOf(called(0, "a", "now", ""), text(1, "and")), [undefined])
      assert.deepStrictEqual(yield* lostOf(called(0, "a", "note", "{\"text\":1}")), [undefined])
    }))

  it.effect("R-357: a cut tool call in a reply with stop reason tool_use has lost its arguments", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(reply([[call(0, "a", "note"), args(0, "{\"t")]], "tool_use"))
      assert.deepStrictEqual(of(events, "ToolCallCompleted").map((event) => event.argumentsLost), ["json_decode_error"])
    }))
})

describe("the finish reason of a reply", () => {
  const words: ReadonlyArray<readonly [string, Response.FinishReason]> = [
    ...["end_turn", "stop", "stop_sequence"].map((word) => [word, "stop"] as const),
    ["tool_use", "tool_calls"],
    ...["max_tokens", "model_context_window_exceeded"].map((word) => [word, "length"] as const),
    ...["refusal", "content_filter"].map((word) => [word, "content_filter"] as const),
    ...["pause_turn", "compaction", "wobbly", "toString"].map((word) => [word, "other"] as const)
  ]

  it.effect("I-15, R-347, R-348: each stop reason is mapped to a finish reason and kept; an unknown stop reason maps to other", () =>
    Effect.forEach(words, ([word, reason]) =>
      Effect.gen(function*() {
        const { events } = yield* outcomeOf(reply([text(0, "x")], word))
        assert.deepInclude(completed(events), { finishReason: reason, rawFinishReason: word })
      })))

  it.effect("R-347: a reply without a stop reason finishes as other, or as tool_calls if it has calls", () =>
    Effect.gen(function*() {
      const said = yield* outcomeOf(reply([text(0, "x")], null))
      assert.strictEqual(completed(said.events).finishReason, "other")
      assert.isUndefined(completed(said.events).rawFinishReason)
      const asked = yield* outcomeOf(reply([called(0, "a", "now", "")], null))
      assert.strictEqual(completed(asked.events).finishReason, "tool_calls")
    }))

  it.effect("R-346: the last stop reason counts, a missing one changes nothing, and the metadata reports its details", () =>
    Effect.gen(function*() {
      const details = { type: "refusal", category: "cyber", explanation: null }
      const { events } = yield* outcomeOf(body(
        start({ container: { id: "container_1" } }),
        Wire.stopped("end_turn", { stop_sequence: "END" }),
        Wire.stopped("refusal", { stop_details: details }),
        { ...Wire.stopped(null), context_management: { applied_edits: [] } },
        Wire.stop
      ))
      assert.deepInclude(completed(events), { finishReason: "content_filter", rawFinishReason: "refusal" })
      assert.strictEqual(completed(events).metadata?.["stopSequence"], "END")
      assert.deepStrictEqual(completed(events).metadata?.["anthropic"], {
        container: { id: "container_1" },
        stop_details: details,
        context_management: { applied_edits: [] }
      })
    }))

  it.effect("R-330: a stop reason or the last event completes a stream; the adapter does not read what follows", () =>
    Effect.gen(function*() {
      const withWord = yield* outcomeOf(body(start(), ...text(0, "a"), Wire.stopped("end_turn")))
      assert.deepStrictEqual([textsOf(withWord.events), withWord.error], [["a"], undefined])
      const withDone = yield* outcomeOf(`${body(start(), ...text(0, "a"), Wire.stopped("end_turn"))}data: [DONE]\n\n`)
      assert.deepStrictEqual([textsOf(withDone.events), withDone.error], [["a"], undefined])
      const withMore = yield* outcomeOf(`${reply([text(0, "a")], "end_turn")}${body(...text(1, "b"))}`)
      assert.deepStrictEqual(tagsOf(withMore.events).slice(1), ["TextDelta", "TextCompleted", "MessageCompleted"])
      assert.isUndefined(withMore.error)
      const without = yield* outcomeOf(body(start(), ...text(0, "a")))
      assert.deepStrictEqual(tagsOf(without.events), ["MessageStarted", "TextDelta", "RawChunk"])
      assert.strictEqual(without.error?.reason, "network_error")
    }))
})
