/**
 * Ids of calls: those that are made here are short enough for every server, and longer ones that another protocol's
 * server made are rewritten on their way out. What is sent is read off a server on the loopback interface.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, Collector, type Event, Message } from "heddle"
import * as AiSdk from "../support/aiSdk.ts"
import * as Anthropic from "../support/anthropic.ts"
import * as EffectAi from "../support/effectAi.ts"
import * as Gemini from "../support/gemini.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Responses from "../support/openAiResponses.ts"
import * as Server from "../support/server.ts"

/** An id of a call or an answer, in the order of what was sent. */
type Sent = readonly [kind: "call" | "answer", id: string]

interface Protocol {
  readonly layer: (url: string) => Layer.Layer<Adapter.Adapter>
  readonly answered: string
  /** How long an id may be. */
  readonly longest: number
  /** The ids in a request. */
  readonly ids: (body: any) => ReadonlyArray<Sent>
}

const all = <A>(items: ReadonlyArray<any>, read: (item: any) => ReadonlyArray<A>): ReadonlyArray<A> =>
  items.flatMap(read)

const chat: Omit<Protocol, "layer"> = {
  longest: 40,
  answered: Chunks.body(Chunks.said("ok"), Chunks.finish("stop")),
  ids: (body) =>
    all<Sent>(body.messages, (message) =>
      message.role === "tool"
        ? [["answer", message.tool_call_id]]
        : (message.tool_calls ?? []).map(({ id }: { readonly id: string }) => ["call", id]))
}

const protocols: Readonly<Record<string, Protocol>> = {
  OpenAiChat: { ...chat, layer: Chunks.layer },
  OpenAiResponses: {
    layer: Responses.layer,
    longest: 64,
    answered: Responses.body(Responses.created, Responses.said("ok"), Responses.completed()),
    ids: (body) =>
      all<Sent>(
        body.input,
        ({ call_id, type }) => call_id === undefined ? [] : [[type === "function_call" ? "call" : "answer", call_id]]
      )
  },
  Anthropic: {
    layer: Anthropic.layer,
    longest: 40,
    answered: Anthropic.reply([Anthropic.text(0, "ok")], "end_turn"),
    ids: (body) =>
      all<Sent>(
        body.messages,
        ({ content }) =>
          all<Sent>(content, ({ id, tool_use_id, type }) =>
            type === "tool_use" ? [["call", id]] : type === "tool_result" ? [["answer", tool_use_id]] : [])
      )
  },
  "the AI SDK": { ...chat, layer: (url) => AiSdk.layer(url) },
  "effect/ai": {
    layer: EffectAi.layer,
    longest: 40,
    answered: EffectAi.body(EffectAi.text("ok"), EffectAi.finish("stop")),
    ids: (body) =>
      all<Sent>(body.prompt, ({ content }) =>
        typeof content === "string"
          ? []
          : all<Sent>(
            content,
            ({ id, type }) => type === "tool-call" ? [["call", id]] : type === "tool-result" ? [["answer", id]] : []
          ))
  }
}

const long = "chatcmpl-tool-0123456789abcdef0123456789abcdef-0123456789abcdef01"

/** Ids that are long, that begin alike, that are what a long one is cut to, that are numbered, and that come again. */
const turns = [
  [`${long}-first`, `${long}-second`, "short"],
  [long.slice(0, 40), `${long.slice(0, 38)}_2`, long.slice(0, 64)],
  [`${long}-third`, long.slice(0, 40).replace("-", "_")],
  [`x${long}`]
]

const threadOf = (count: number): ReadonlyArray<Message.Message> => [
  Message.user("go"),
  ...turns.slice(0, count).flatMap((ids) => [
    Message.assistant("", ids.map((id) => Message.toolCall(id, "read"))),
    ...ids.toReversed().map((id) => Message.tool(id, `about ${id}`))
  ])
]

describe("M-37: call ids in requests", () => {
  for (const [name, { answered, ids, layer, longest }] of Object.entries(protocols)) {
    const sent = (messages: ReadonlyArray<Message.Message>) =>
      Effect.scoped(Effect.gen(function*() {
        const server = yield* Server.serve(() => ({ pieces: [answered] }))
        const { stream } = yield* Effect.provide(Adapter.Adapter, layer(server.url))
        yield* Stream.runDrain(stream({ messages, tools: [] }))
        return ids(server.requests[0]!.body)
      }))

    it.effect(`M-37: ${name}: sent ids have at most ${longest} characters, are distinct, and match between a call and its answer`, () =>
      Effect.gen(function*() {
        const found = yield* sent(threadOf(turns.length))
        const called = found.filter(([kind]) => kind === "call").map(([, id]) => id)
        assert.strictEqual(called.length, turns.flat().length)
        assert.strictEqual(new Set(called).size, called.length)
        for (const id of called) assert.isAtMost(id.length, longest)
        // Answers came in reverse within a turn, and some protocols put them in the order of the calls.
        let start = 0
        for (const turn of turns) {
          const group = called.slice(start, start += turn.length)
          const answers = found.filter(([kind, id]) => kind === "answer" && group.includes(id))
          assert.strictEqual(answers.length, turn.length)
        }
        assert.include(called, "short")
      }))

    it.effect(`M-37: ${name}: sent ids stay the same while the thread grows`, () =>
      Effect.gen(function*() {
        const whole = yield* sent(threadOf(turns.length))
        for (const count of [1, 2, 3]) {
          const earlier = yield* sent(threadOf(count))
          assert.deepStrictEqual(whole.slice(0, earlier.length), earlier)
        }
      }))

    it.effect(`M-37: ${name}: an id repeated in a later turn has its answer in that turn`, () =>
      Effect.gen(function*() {
        const turn = (text: string) => [
          Message.assistant("", [Message.toolCall(`${long}-again`, "read")]),
          Message.tool(`${long}-again`, text)
        ]
        const found = yield* sent([Message.user("go"), ...turn("1"), ...turn("2")])
        assert.deepStrictEqual(found.map(([kind]) => kind), ["call", "answer", "call", "answer"])
        assert.strictEqual(found[0]![1], found[1]![1])
        assert.strictEqual(found[2]![1], found[3]![1])
        for (const [, id] of found) assert.isAtMost(id.length, longest)
      }))
  }
})

describe("M-37: generated call ids", () => {
  const idsOf = ({ error, events }: Chunks.Outcome) => {
    assert.isUndefined(error)
    return Chunks.of(events, "ToolCallCompleted").map(({ id }) => id)
  }

  it.effect("M-37: a call without an id gets an id of 37 characters", () =>
    Effect.gen(function*() {
      const made = [
        ...idsOf(
          yield* Gemini.outcomeOf(
            Gemini.body(Gemini.chunk([Gemini.call("a"), Gemini.call("b")]), Gemini.finish("STOP")),
            {},
            Gemini.offering("a", "b")
          )
        ),
        ...idsOf(
          yield* Chunks.outcomeOf(
            Chunks.body(Chunks.call({ index: 0, name: "a", arguments: "{}" }), Chunks.finish("tool_calls"))
          )
        ),
        ...idsOf(yield* Anthropic.outcomeOf(Anthropic.reply([Anthropic.called(0, "", "a", "{}")], "tool_use"))),
        ...idsOf(
          yield* Responses.outcomeOf(
            Responses.body(Responses.created, Responses.done(0, Responses.call("", "a", "{}")), Responses.completed())
          )
        ),
        ...idsOf(yield* AiSdk.outcomeOfParts(AiSdk.call("", "a", "{}"), AiSdk.finish("tool-calls")))
      ]
      assert.strictEqual(made.length, 6)
      assert.strictEqual(new Set(made).size, 6)
      for (const id of made) assert.match(id, /^call_[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}$/)
    }))

  it.effect("M-37: a number appended to a repeated id keeps the id within 40 characters", () =>
    Effect.gen(function*() {
      const id = "c".repeat(40)
      const twice = [id, id, `${"c".repeat(38)}_2`, "b".repeat(60), "b".repeat(60), "short", "short"]
      const whole = (wire: ReadonlyArray<string>) =>
        Chunks.body(
          ...wire.map((one, index) => Chunks.call({ index, id: one, name: "a", arguments: "{}" })),
          Chunks.finish("tool_calls")
        )
      const found = idsOf(yield* Chunks.outcomeOf(whole(twice)))
      assert.deepStrictEqual(found, [
        id,
        `${"c".repeat(38)}_2`,
        `${"c".repeat(38)}_3`,
        "b".repeat(60),
        `${"b".repeat(38)}_2`,
        "short",
        "short_2"
      ])
      const opened = twice.map((id, index): Event.Event => ({ _tag: "ToolCallStarted", id, name: `tool_${index}` }))
      const folded = Collector.toResponse(Collector.applyAll(Collector.initial(), opened)).toolCalls
      assert.strictEqual(new Set(folded.map((call) => call.id)).size, twice.length)
      for (const call of folded) assert.isTrue(call.id.length <= 40 || twice.includes(call.id))
    }))
})

describe("M-19: shortened call ids", () => {
  for (const [name, { answered, ids, layer }] of Object.entries(protocols)) {
    it.effect(`M-19: ${name}: a shortened id splits no surrogate pair, and a call and its answer have the same id`, () =>
      Effect.scoped(Effect.gen(function*() {
        const server = yield* Server.serve(() => ({ pieces: [answered] }))
        const { stream } = yield* Effect.provide(Adapter.Adapter, layer(server.url))
        const long = (start: string) => `${start}${"🌤".repeat(60)}`
        const given = [long("a"), long("b"), long("ab"), `${long("ab")}c`]
        const messages = [
          Message.user("go"),
          Message.assistant("", given.map((id) => Message.toolCall(id, "show"))),
          ...given.map((id) => Message.tool(id, "done"))
        ]
        yield* Stream.runDrain(stream({ messages, tools: [] }))
        const sent = ids(server.requests[0]!.body)
        const [called = [], answers = []] = ["call", "answer"].map((kind) =>
          sent.flatMap(([own, id]) => own === kind ? [id] : [])
        )
        assert.deepStrictEqual(new Set(answers), new Set(called))
        for (const id of called) {
          assert.isFalse(/[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/.test(id ?? ""), id)
        }
      })))
  }
})
